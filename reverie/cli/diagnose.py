"""The verbs `diagnose` and `heads`. Parse, call, print; help loads no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reverie.cli.output import print_json, print_line, print_lines, print_table, progress_console
from reverie.cli.verbs import EXPERIMENTS, AsJson, DataFolder, DeviceName, SettingTexts, verb
from reverie.errors import UserError


@verb(
    EXPERIMENTS,
    example="reverie diagnose runs/deepinversion runs/abd --out runs/diagnosis",
    words={"`share_first_task=True`": "--share-first-task"},
)
def diagnose(
    run: Annotated[Path | None, typer.Argument(metavar="RUN", help="A run's folder.", show_default=False)] = None,
    other: Annotated[
        Path | None,
        typer.Argument(metavar="OTHER", help="Another that shares task 1 and its dreams.", show_default=False),
    ] = None,
    task: Annotated[int, typer.Option(help="After which task; counted from 1.")] = 2,
    paper: Annotated[
        bool, typer.Option("--paper", help="Make the paper's figures: first two tasks with DeepInversion and ABD.")
    ] = False,
    preset: Annotated[str, typer.Option(help="With --paper: what is learned.")] = "cifar100-10",
    seed: Annotated[int, typer.Option("--seed", "-s", help="With --paper: of the runs.")] = 0,
    settings: SettingTexts = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for figures and numbers.", show_default="diagnosis, in RUN or beside two"),
    ] = None,
    data: DataFolder = Path("data"),
    device: DeviceName = "auto",
    as_json: AsJson = False,
) -> None:
    """See why it works: old images, dreams of them and new images in the features of a learned task.

    Writes mid.png, mmd.png, tsne.png, confusion.png, dreams.png and diagnosis.json. The run must have kept its models
    and dreamers: reverie run … --set 'keep=[models, dreamers]'. Two runs must share task 1 and the dreams of it:
    make them in one folder with --share-first-task.

    With --paper the runs are made first; stop it at any moment, the same command goes on. It ends by saying whether
    the paper's finding holds.
    """
    from reverie.diagnosis.measure import diagnose as diagnose_runs
    from reverie.diagnosis.measure import diagnose_paper
    from reverie.system.provenance import command_line

    progress, command = progress_console(as_json), command_line()
    if paper:
        if run is not None:
            raise UserError("--paper makes its own runs; leave the folder out, or leave --paper out.")
        made = diagnose_paper(
            preset,
            out,
            seed=seed,
            settings=settings or (),
            task=task,
            data=data,
            device=device,
            progress=progress,
            command=command,
        )
    elif run is None:
        raise UserError("Say which run, by its folder; or let --paper make two.")
    elif settings:
        raise UserError("--set belongs to --paper: a run that is there already cannot be changed.")
    else:
        folders = [run, *([other] if other else [])]
        made = diagnose_runs(folders, out, task=task, data=data, device=device, progress=progress, command=command)
    if as_json:
        print_json(made.as_dict())
        return
    for grid in made.tables():
        print_table(*grid)
        print_line("")
    print_lines([*made.lines(), *made.files])


@verb(EXPERIMENTS, example="reverie heads runs/lucid --heads linear,gaussian", words={"`heads`": "--heads"})
def heads(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.", show_default=False)],
    sources: Annotated[
        str | None,
        typer.Option(
            help="What statistics are moved by: none, images, dreams, both; true: measured on all images; trained: the "
            "head that was trained by steps.",
            show_default="all that the run has",
        ),
    ] = None,
    kinds: Annotated[
        str, typer.Option("--heads", help="What answers: linear, gaussian, prototype.")
    ] = "linear,gaussian,prototype",
    dream_weight: Annotated[
        float, typer.Option(help="Of all dreams together in the map, where that of all new images is one.")
    ] = 0.3,
    ridge: Annotated[float, typer.Option(help="Draws the map towards no change.")] = 1e-3,
    residual: Annotated[bool, typer.Option(help="Add the covariance of what the map leaves unexplained.")] = True,
    pooled: Annotated[float, typer.Option(help="Share of each covariance that all classes have in common.")] = 0.8,
    fixed: Annotated[
        bool | None,
        typer.Option(
            help="Fixed features tell where means go, and a linear head asks them.", show_default="as the run"
        ),
    ] = None,
    device: DeviceName = "auto",
    as_json: AsJson = False,
) -> None:
    """Compare answering heads, and ways to move class statistics, on a run's features: no training, seconds each.

    The run must have kept its features: reverie run … --set 'keep=[features]'. Any method with a teacher will do.
    Figures are of test images: they explain, and are nothing to choose by.
    """
    from reverie.diagnosis.heads import compare_heads

    found = compare_heads(
        run,
        sources=sources,
        heads=kinds,
        dream_weight=dream_weight,
        ridge=ridge,
        residual=residual,
        pooled=pooled,
        fixed=fixed,
        device=device,
        progress=progress_console(as_json),
    )
    if as_json:
        print_json(found.as_dict())
    else:
        print_table(*found.grid())
