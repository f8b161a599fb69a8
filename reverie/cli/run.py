"""The verb `run`. Parse, call, print; help loads no torch."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reverie.cli.output import print_json, print_line, print_table, progress_console
from reverie.cli.verbs import (
    EXPERIMENTS,
    AsJson,
    CheckpointEvery,
    DataFolder,
    DeviceName,
    PresetArgument,
    SettingTexts,
    verb,
)
from reverie.config.choices import Recipe
from reverie.text import DASH

if TYPE_CHECKING:
    from reverie.runs.result import Result


@verb(
    EXPERIMENTS,
    example='reverie run cifar100-10 --method abd --seed 1 --set train.epochs=100 --set "train.milestones=[50, 80]"',
    words={"`folder`": "--out"},
)
def run(
    preset: PresetArgument,
    method: Annotated[
        str, typer.Option("--method", "-m", help="How tasks are learned (see `reverie methods`).")
    ] = "abd",
    seed: Annotated[int, typer.Option("--seed", "-s", help="Of the class order and all random numbers.")] = 0,
    recipe: Annotated[Recipe, typer.Option(help="Values as in the paper, or as in its code.")] = "paper",
    device: DeviceName = "auto",
    data: DataFolder = Path("data"),
    out: Annotated[Path | None, typer.Option(help="The run's folder.", show_default="runs/PRESET-METHOD-…")] = None,
    settings: SettingTexts = None,
    checkpoint_every: CheckpointEvery = 30.0,
    share_first_task: Annotated[
        bool,
        typer.Option(
            "--share-first-task", help="Train it, and dream of it, once for all runs beside this one that do the same."
        ),
    ] = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write losses, accuracies and dreams for TensorBoard, too.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Learn a stream of tasks with one method, and report the figures.

    Stop it at any moment with Ctrl-C; the same command goes on from there and ends with the same figures
    (on a CPU, to the last bit).
    A finished run is recognised and shown again. To use your own images, write a YAML file:

        extends: digits-5
        data: {source: folder, size: 32}
        stream: {split: 3}

    and run it with: reverie run mine.yaml --data FOLDER
    """
    from reverie.report.tensorboard import tensorboard_log
    from reverie.runs.configure import configure, default_folder
    from reverie.runs.run import run as run_config
    from reverie.system.provenance import command_line

    progress = progress_console(as_json)
    config = configure(preset, method, seed=seed, recipe=recipe, settings=settings or ())
    folder = out or default_folder(config, settings or ())
    with ExitStack() as observing:
        result = run_config(
            config,
            folder,
            data=data,
            device=device,
            progress=progress,
            observer=observing.enter_context(tensorboard_log(folder)) if tensorboard else None,
            command=command_line(),
            checkpoint_seconds=checkpoint_every,
            share_first_task=share_first_task,
        )
    if as_json:
        print_json({"folder": str(folder), **result.as_dict()})
    else:
        _print_result(result, folder)


def _print_result(result: Result, folder: Path) -> None:
    from reverie.tables.rows import COLUMNS, Row, method_title

    cells = Row(method_title(result.method), [result]).cells()
    print_table(COLUMNS, [cells])
    after = {"accuracy after each task (%)": result.metrics.accuracy_after}
    after["before correction (%)"] = result.uncorrected_accuracy_after or []  # of BiC
    for name, shares in after.items():
        if shares:
            print_line(f"{name}: {'  '.join(f'{100 * share:.1f}' for share in shares)}")
    if cells[COLUMNS.index("Omega")] == DASH:
        print_line(f"Omega needs the upper bound: run the same with --method joint, beside {folder}.")
    print_line(folder / "result.json")
