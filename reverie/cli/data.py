"""The verbs of data sets, one small function each. Parse, call, print; help loads no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reverie.cli.app import EXPERIMENTS, DataFolder, app, aside, console, print_table
from reverie.errors import UserError

data_app = typer.Typer(help="Data sets: which there are, download one, check one.", no_args_is_help=True)
app.add_typer(data_app, name="data", rich_help_panel=EXPERIMENTS)


@data_app.command("list", epilog="Example: reverie data list --data ~/datasets")
def data_list(data: DataFolder = Path("data")) -> None:
    """List the data sets, and whether each is there."""
    from reverie.data.sources import ARCHIVES, SOURCES, locate

    rows = []
    for name, (about, _) in SOURCES.items():
        state = "always there" if name == "digits" else ""
        if name in ARCHIVES:
            try:
                locate(name, data)
                state = "found"
            except UserError:
                state = f"missing; reverie data get {name}" if ARCHIVES[name].md5 else f"missing; {ARCHIVES[name].url}"
        rows.append([name, about, state])
    print_table(["source", "what it is", f"under {data}"], rows)


@data_app.command("get", epilog="Example: reverie data get cifar100 --data ~/datasets")
def data_get(
    name: Annotated[str, typer.Argument(help="cifar10, cifar100 or tinyimagenet.")],
    data: DataFolder = Path("data"),
    mirror: Annotated[
        list[str] | None, typer.Option(help="Try this address first. May be given several times.")
    ] = None,
) -> None:
    """Download a data set, compare it with its published checksum, and unpack it."""
    from reverie.cli.progress import counting
    from reverie.data.download import fetch

    with counting(console, f"downloading {name}") as progress:
        folder = fetch(name, data, mirror or (), progress)
    console.print(f"{name} is complete in {folder}", soft_wrap=True)


@data_app.command("check", epilog="Example: reverie data check photos")
def data_check(
    what: Annotated[
        str, typer.Argument(help="digits, cifar10, cifar100, tinyimagenet, imagenet, or a folder of images.")
    ],
    data: DataFolder = Path("data"),
) -> None:
    """Check a data set's files against the published checksums, or read and count its images (ImageNet's: count)."""
    from reverie.cli.progress import counting
    from reverie.config.schema import DataConfig
    from reverie.data.download import damaged_files
    from reverie.data.folder import read_folder
    from reverie.data.sources import ARCHIVES, locate, read

    if what in ARCHIVES:
        folder = locate(what, data)
        damaged = damaged_files(what, folder)
        if damaged and not ARCHIVES[what].files:  # images are missing, or added: a run takes what there is
            aside.print(
                f"{folder} is not as published: it has {', '.join(damaged)}. A run takes it as it is; "
                f"`reverie data get {what}` puts all of it in its place.",
                soft_wrap=True,
            )
        elif damaged:
            raise UserError(f"Damaged in {folder}: {', '.join(damaged)}. `reverie data get {what}` fetches them anew.")
        if ARCHIVES[what].files:
            console.print(f"{what} in {folder} is complete and as published", soft_wrap=True)
            return
    with counting(console, f"reading {what}") as progress:
        if what in ARCHIVES or (what == "digits" and not Path(what).is_dir()):
            dataset = read(DataConfig(source=what), data, progress)
        else:
            dataset = read_folder(Path(what), size=32, progress=progress)
    parts = [
        part.labels.bincount(minlength=len(dataset.class_names)).tolist() for part in (dataset.train, dataset.test)
    ]
    rows = [[name, *map(str, counts)] for name, *counts in zip(dataset.class_names, *parts, strict=True)]
    print_table(["class", "training images", "test images"], rows)
