"""The verbs of data sets, one small function each. Parse, call, print; help loads no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reverie.cli.output import console, errors, print_line, print_table
from reverie.cli.verbs import EXPERIMENTS, DataFolder, app, in_flags, verb

data_app = typer.Typer(help="Data sets: which there are, download one, check one.", no_args_is_help=True)
app.add_typer(data_app, name="data", rich_help_panel=EXPERIMENTS)


@verb(to=data_app, name="list", example="reverie data list --data ~/datasets")
def data_list(data: DataFolder = Path("data")) -> None:
    """List the data sets, and whether each is there."""
    from reverie.runs.datasets import list_datasets

    rows = [[dataset.name, dataset.about, in_flags(dataset.state)] for dataset in list_datasets(data)]
    print_table(["source", "what it is", f"under {data}"], rows)


@verb(to=data_app, name="get", example="reverie data get cifar100 --data ~/datasets")
def data_get(
    name: Annotated[str, typer.Argument(help="cifar10, cifar100 or tinyimagenet.")],
    data: DataFolder = Path("data"),
    mirrors: Annotated[
        list[str] | None, typer.Option("--mirror", help="Try this address first. May be given several times.")
    ] = None,
) -> None:
    """Download a data set, compare it with its published checksum, and unpack it."""
    from reverie.runs.datasets import download_dataset

    folder = download_dataset(name, data, mirrors=mirrors or (), progress=console)
    print_line(f"{name} is complete in {folder}")


@verb(to=data_app, name="check", example="reverie data check photos")
def data_check(
    what: Annotated[
        str, typer.Argument(help="digits, cifar10, cifar100, tinyimagenet, imagenet, or a folder of images.")
    ],
    data: DataFolder = Path("data"),
) -> None:
    """Check a data set's files against the published checksums, or read and count its images (ImageNet's: count)."""
    from reverie.runs.datasets import check_dataset

    found = check_dataset(what, data, progress=console)
    if found.problem:
        errors.print(in_flags(found.problem), soft_wrap=True)
    if found.counts:
        rows = [[name, str(train), str(test)] for name, (train, test) in found.counts.items()]
        print_table(["class", "training images", "test images"], rows)
    else:
        print_line(found)
