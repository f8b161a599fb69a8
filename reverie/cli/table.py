"""The verbs of many runs: `table`, `tune`, `results`, `presets`, `methods`. Parse, call, print; help loads no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reverie.cli.output import console, leave, print_json, print_line, print_lines, print_table, progress_console
from reverie.cli.verbs import (
    EXPERIMENTS,
    AsJson,
    CheckpointEvery,
    DataFolder,
    DeviceName,
    PresetArgument,
    SettingTexts,
    parse_names,
    parse_whole_numbers,
    verb,
)
from reverie.config.choices import Recipe


@verb(EXPERIMENTS, example="reverie table cifar100-10 --methods base,lwf,abd --seeds 0,1,2 --parallel 2")
def table(
    preset: Annotated[
        str | None, typer.Argument(metavar="PRESET", help="A preset's name or a YAML file.", show_default=False)
    ] = None,
    methods: Annotated[str, typer.Option("--methods", "-m", help="Such as base,lwf,abd, or all.")] = "all",
    paper: Annotated[
        str | None,
        typer.Option(
            help="A table of the paper: data-free, replay, ablation, tiny-imagenet or imagenet-50; or lucid, our own.",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="One or several.", show_default="0,1,2, or as many as the paper has")
    ] = None,
    recipe: Annotated[Recipe, typer.Option(help="Values as in the paper, or as in its code.")] = "paper",
    out: Annotated[
        Path | None, typer.Option(help="Folder for the runs and the table.", show_default="runs/table-NAME")
    ] = None,
    upper_bound: Annotated[
        bool, typer.Option("--upper-bound/--no-upper-bound", help="Train the upper bound, too, which Omega needs.")
    ] = True,
    parallel: Annotated[int, typer.Option(min=1, help="Runs at the same time.")] = 1,
    settings: SettingTexts = None,
    data: DataFolder = Path("data"),
    device: DeviceName = "auto",
    checkpoint_every: CheckpointEvery = 30.0,
    as_json: AsJson = False,
) -> None:
    """Many runs side by side, beside the paper's figures where it has any.

    Every method learns the preset's stream with every seed, each run in a process of its own. Stop it at any moment
    with Ctrl-C, or pull the plug: the same command goes on, and repeats no finished run. Ends with a table, also as
    table.md, table.csv, table.tex and table.json.

    With --paper NAME, the rows are those of a table of the paper; PRESET and --methods choose among them.
    """
    from reverie.system.provenance import command_line
    from reverie.tables.table import make_table

    made = make_table(
        preset,
        parse_names(methods, "--methods"),
        paper=paper,
        seeds=parse_whole_numbers(seeds, "--seeds") if seeds is not None else None,
        recipe=recipe,
        out=out,
        upper_bound=upper_bound,
        parallel=parallel,
        settings=settings or (),
        data=data,
        device=device,
        checkpoint_seconds=checkpoint_every,
        progress=progress_console(as_json),
        command=command_line(),
    )
    if as_json:
        print_json({**made.as_dict(), "files": [str(file) for file in made.files]})
    else:
        for section in made.sections:
            print_line(section.caption)
            print_table(*section.accuracy())
            print_lines([*section.notes(), ""])
            print_table(*section.cost())
            print_line("")
        print_lines(made.files)
    if made.failed:
        total = len(made.failed) + len(made.runs)
        leave(f"reverie: {len(made.failed)} of {total} runs failed. The same command tries them again.", 1)


@verb(EXPERIMENTS, example="reverie tune cifar100-10 --method abd --grid method.distillation=0.01,0.1,1")
def tune(
    preset: PresetArgument,
    grid: Annotated[
        list[str], typer.Option(help="What to try: section.key=value,value. Several make a grid.", show_default=False)
    ],
    method: Annotated[str, typer.Option("--method", "-m", help="How tasks are learned.")] = "abd",
    folds: Annotated[int, typer.Option(help="Parts that the training images are cut into.")] = 3,
    seed: Annotated[int, typer.Option("--seed", "-s", help="Of the folds, the class order, all random numbers.")] = 0,
    recipe: Annotated[Recipe, typer.Option(help="Values as in the paper, or as in its code.")] = "paper",
    out: Annotated[
        Path | None, typer.Option(help="Folder for the runs.", show_default="runs/tune-PRESET-METHOD")
    ] = None,
    settings: SettingTexts = None,
    data: DataFolder = Path("data"),
    device: DeviceName = "auto",
    as_json: AsJson = False,
) -> None:
    """Find hyperparameters by the paper's rule, without a look at the test images.

    Every point of the grid learns the first half of the tasks, once for each fold: that part of the training images is
    held out and judged on. Ends with the points by mean accuracy after the last of these tasks. Stop it at any moment;
    the same command goes on.
    """
    from reverie.system.provenance import command_line
    from reverie.tables.tune import tune_settings

    tuning = tune_settings(
        preset,
        grid,
        method,
        folds=folds,
        seed=seed,
        recipe=recipe,
        settings=settings or (),
        out=out,
        data=data,
        device=device,
        progress=progress_console(as_json),
        command=command_line(),
    )
    if as_json:
        print_json(tuning.as_dict())
    else:
        print_table(["point", "A_N"], [[", ".join(point.settings), str(point)] for point in tuning.points])
        print_lines([tuning.choice(), tuning.file])
    if tuning.chosen is None:  # as a run that diverged
        raise typer.Exit(1)


@verb(EXPERIMENTS, example="reverie results --write README.md")
def results(
    folder: Annotated[
        Path, typer.Argument(help="A run, a table, a folder of several, or folders of result files.")
    ] = Path("results"),
    write: Annotated[
        Path | None, typer.Option(help="Renew the tables in this file: `<!-- results: NAME -->` … `<!-- /results -->`")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Tables of finished runs, made from their result files and from nothing else.

    FOLDER is what `run` or `table` wrote, or a folder of those; or one that has result files under FOLDER/PRESET/, by
    any name. Runs of one method with several seeds make one row.
    """
    from reverie.tables.formats import records_of_results, renew_tables, results_by_name, results_table

    found = results_by_name(folder)
    if write is not None:
        renew_tables(write, folder)
        progress_console(as_json).print(f"{write}", soft_wrap=True)
    if as_json:
        print_json({name: records_of_results(its) for name, its in found.items()})
    elif write is None:
        for name, its in found.items():
            console.print(f"{name}\n\n{results_table(its)}", soft_wrap=True)


@verb(EXPERIMENTS, example="reverie run digits-5")
def presets() -> None:
    """List the experiments that come with reverie."""
    from reverie.config.layers import list_presets

    print_table(["preset", "what it is"], [[preset.name, preset.about] for preset in list_presets()])


@verb(EXPERIMENTS, example="reverie run digits-5 --method lwf")
def methods() -> None:
    """List the methods, and what each keeps from one task to the next."""
    from reverie.runs.configure import list_methods

    rows = [[method.name, method.keeps, method.about] for method in list_methods()]
    print_table(["method", "keeps", "what it does"], rows)
