"""The verbs of experiments, one small function each. Parse, call, print; help loads no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reverie.cli.app import (
    EXPERIMENTS,
    AsJson,
    CheckpointEvery,
    DataFolder,
    DeviceName,
    Overwrite,
    Settings,
    app,
    aside,
    beside,
    check_target,
    console,
    leave,
    log_to,
    print_json,
    print_table,
)
from reverie.config.schema import Recipe
from reverie.errors import UserError

if TYPE_CHECKING:
    from reverie.tables.rows import Section

PRESET = "A preset's name (see `reverie presets`) or a YAML file."
Preset = Annotated[str, typer.Argument(metavar="PRESET", help=PRESET, show_default=False)]


@app.command(
    rich_help_panel=EXPERIMENTS, epilog="Example: reverie run cifar100-10 --method abd --seed 1 --set train.epochs=100"
)
def run(
    preset: Preset,
    method: Annotated[
        str, typer.Option("--method", "-m", help="How tasks are learned (see `reverie methods`).")
    ] = "abd",
    seed: Annotated[int, typer.Option("--seed", "-s", help="Of the class order and all random numbers.")] = 0,
    recipe: Annotated[Recipe, typer.Option(help="Values as in the paper, or as in its code.")] = "paper",
    device: DeviceName = "auto",
    data: DataFolder = Path("data"),
    out: Annotated[Path | None, typer.Option(help="The run's folder.", show_default="runs/PRESET-METHOD-…")] = None,
    settings: Settings = None,
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
    from reverie.cli.progress import following
    from reverie.runs import configure as experiment
    from reverie.runs import run as runs
    from reverie.system import provenance

    said = beside(as_json)
    config = experiment.configure(preset, method, seed=seed, recipe=recipe, settings=settings or ())
    folder = out or experiment.default_folder(config, settings or ())
    with ExitStack() as observing:
        observers: list[runs.RunObserver] = []
        if tensorboard:
            from reverie.report.tensorboard import mirroring

            observers.append(observing.enter_context(mirroring(folder)))
        observers.append(observing.enter_context(following(said, f"{config.preset} {config.method}")))
        result = runs.execute(
            config,
            folder,
            data=data,
            device=device,
            observer=runs.SeveralOfRuns(*observers),
            command=provenance.command_line(),
            checkpoint_seconds=checkpoint_every,
            share_first_task=share_first_task,
        )
    if as_json:
        print_json({"folder": str(folder), **result})
    else:
        _print_result(result, folder)


@app.command(epilog="Example: reverie demo --seeds 0,1,2")
def demo(
    seeds: Annotated[str, typer.Option(help="One or several, such as 0,1,2.")] = "0",
    out: Annotated[Path, typer.Option(help="Folder for runs, table and pictures.")] = Path("runs/demo"),
    device: DeviceName = "auto",
    as_json: AsJson = False,
) -> None:
    """Five methods learn handwritten digits, two classes at a time; needs no data and no GPU.

    Ends with a table, a plot of accuracy by task, a sheet of the digits that ABD dreamed, and a page that shows all of
    it and more: open page.html in a browser. Two to four minutes on two cores for one seed.
    """
    from reverie.cli.demo import run_demo
    from reverie.system import provenance
    from reverie.tables import rows as tables

    said = beside(as_json)
    rows, files = run_demo(_numbers(seeds, "--seeds"), out, device, said, provenance.command_line())
    if as_json:
        print_json({"rows": [tables.record(row) for row in rows], "files": [str(file) for file in files]})
        return
    for file in files:
        console.print(f"  {file}", soft_wrap=True)


@app.command(
    rich_help_panel=EXPERIMENTS,
    epilog="Example: reverie table cifar100-10 --methods base,lwf,abd --seeds 0,1,2 --parallel 2",
)
def table(
    preset: Annotated[
        str | None, typer.Argument(metavar="[PRESET]", help="A preset's name or a YAML file.", show_default=False)
    ] = None,
    methods: Annotated[
        str, typer.Option("--methods", "-m", help="Such as base,lwf,abd, or all.", show_default="all")
    ] = "",
    paper: Annotated[
        str | None,
        typer.Option(
            help="A table of the paper: data-free, replay, ablation, tiny-imagenet or imagenet-50.", show_default=False
        ),
    ] = None,
    seeds: Annotated[str, typer.Option(help="One or several.", show_default="0,1,2, or as many as the paper has")] = "",
    recipe: Annotated[Recipe, typer.Option(help="Values as in the paper, or as in its code.")] = "paper",
    out: Annotated[
        Path | None, typer.Option(help="Folder for the runs and the table.", show_default="runs/table-NAME")
    ] = None,
    upper_bound: Annotated[
        bool, typer.Option("--upper-bound/--no-upper-bound", help="Train the upper bound, too, which Omega needs.")
    ] = True,
    parallel: Annotated[int, typer.Option(min=1, help="Runs at the same time.")] = 1,
    settings: Settings = None,
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
    from reverie.cli.progress import following_grid
    from reverie.system import files as disk
    from reverie.system import provenance
    from reverie.tables import paper as published
    from reverie.tables import plan as grid

    said = beside(as_json)
    chosen = _names(methods, "--methods") if methods else []
    usual = [0, 1, 2]
    if paper is not None:
        theirs = published.find_table(paper)
        named = [] if chosen == ["all"] else chosen
        entries, missing = grid.entries_of_paper(theirs, [preset] if preset else [], named, upper_bound)
        for line in missing:
            said.print(line, soft_wrap=True)
        if not entries:
            raise UserError(f"Nothing of the paper's table {paper!r} can be run here.")
        usual = list(range(theirs.runs))
    elif preset is not None:
        entries = grid.entries_for(preset, chosen or ["all"], upper_bound)
    else:
        raise UserError("Say which preset (see `reverie presets`), or which table of the paper with --paper.")
    folder = out or Path("runs") / f"table-{paper or Path(str(preset)).stem}"
    numbers = _numbers(seeds, "--seeds") if seeds else usual
    plan = grid.Plan.make(entries, numbers, recipe, settings or (), folder)
    place = grid.Place(data, device, parallel, checkpoint_every)
    with following_grid(said, parallel) as progress:
        state = grid.train(plan, place, progress)
    made = grid.sections(plan, state.finished)
    files = grid.write(made, plan, provenance.command_line()) if made else []
    if as_json:
        facts = disk.read_json(files[-1]) if files else {"failed": [run.name for run in state.failed]}
        print_json({**facts, "files": [str(file) for file in files]})
    else:
        _print_sections(made)
        for file in files:
            console.print(f"{file}", soft_wrap=True)
    if state.failed:
        leave(f"reverie: {len(state.failed)} of {state.total} runs failed. The same command tries them again.", 1)


@app.command(
    rich_help_panel=EXPERIMENTS,
    epilog="Example: reverie tune cifar100-10 --method abd --grid method.distillation=0.01,0.1,1",
)
def tune(
    preset: Preset,
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
    settings: Settings = None,
    data: DataFolder = Path("data"),
    device: DeviceName = "auto",
    as_json: AsJson = False,
) -> None:
    """Find hyperparameters by the paper's rule, without a look at the test images.

    Every point of the grid learns the first half of the tasks, once for each fold: that part of the training images is
    held out and judged on. Ends with the points by mean accuracy after the last of these tasks. Stop it at any moment;
    the same command goes on.
    """
    from reverie.cli.progress import following
    from reverie.system import files as disk
    from reverie.system import provenance
    from reverie.tables import tune as tuning

    said = beside(as_json)
    wanted = tuning.Tuning(preset, method, grid, folds, seed, recipe, settings or ())
    folder = out or Path("runs") / f"tune-{Path(preset).stem}-{method}"
    points = tuning.search(
        wanted, folder, data, device, lambda label: following(said, label), provenance.command_line()
    )
    if as_json:
        print_json(disk.read_json(folder / "tune.json"))
    else:
        print_table(["point", "A_N"], [[", ".join(point.settings), str(point)] for point in points])
        console.print(tuning.choice(points), soft_wrap=True)
        console.print(f"{folder / 'tune.json'}", soft_wrap=True)
    if None in points[0].accuracies:  # as a run that diverged
        raise typer.Exit(1)


@app.command(rich_help_panel=EXPERIMENTS, epilog="Example: reverie bench cifar100-10 --methods abd --tasks 2,10")
def bench(
    preset: Annotated[str, typer.Argument(metavar="PRESET", help=PRESET)] = "cifar100-10",
    methods: Annotated[str, typer.Option(help="Which methods, or all.")] = "base,lwf,deepinversion,abd",
    tasks: Annotated[
        str,
        typer.Option(
            help="Which tasks, counted from 1: does a step cost more later on?", show_default="second and last"
        ),
    ] = "",
    modes: Annotated[
        str, typer.Option(help="fp32, tf32 (both eager), captured, fast; the first is what the last is compared with.")
    ] = "fp32,tf32,fast",
    steps: Annotated[int, typer.Option(min=5, help="Steps to time in each phase.")] = 100,
    settings: Settings = None,
    device: DeviceName = "auto",
    out: Annotated[Path | None, typer.Option(help="Write everything to this JSON file, too.")] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Measure the speed of a training step, by method, phase, task and mode of the engine.

    Needs no data: images are noise of the right shape, which cost the same. On a GPU it compares plain fp32 with the
    fast path; on a CPU there is but one path.
    """
    from reverie.engine.loop import find_device
    from reverie.runs import bench as benchmark
    from reverie.system import files as disk
    from reverie.system import provenance

    log_to(aside)
    where, chosen = find_device(device), _choices(modes, benchmark.MODES, "--modes")
    if where.type != "cuda":
        chosen = ["fp32"]
    names, numbers = _names(methods, "--methods"), _numbers(tasks, "--tasks") if tasks else None
    if out is not None:
        check_target(out, overwrite)
    with aside.status("preparing") as status:

        def report(what: str, step: str) -> None:
            status.update(f"{what}, {step}" if step else what)
            if not step and not aside.is_terminal:  # where nothing turns, a line for each
                aside.print(what)

        made = benchmark.measure(preset, names, numbers, chosen, steps, where, settings or (), report)
    facts = benchmark.as_json(made, preset, steps, provenance.command_line(), provenance.environment(where))
    if out is not None:
        disk.write_json(out, facts)
    if as_json:
        print_json(facts)
        return
    header, rows = benchmark.rows(made, chosen)
    print_table(header, rows)
    if out is not None:
        console.print(f"{out}", soft_wrap=True)


@app.command(
    rich_help_panel=EXPERIMENTS, epilog="Example: reverie diagnose runs/deepinversion runs/abd --out runs/diagnosis"
)
def diagnose(
    run: Annotated[Path | None, typer.Argument(metavar="[RUN]", help="A run's folder.", show_default=False)] = None,
    other: Annotated[
        Path | None,
        typer.Argument(metavar="[OTHER]", help="Another that shares task 1 and its dreams.", show_default=False),
    ] = None,
    task: Annotated[int, typer.Option(help="After which task; counted from 1.")] = 2,
    paper: Annotated[
        bool, typer.Option("--paper", help="Make the paper's figures: first two tasks with DeepInversion and ABD.")
    ] = False,
    preset: Annotated[str, typer.Option(help="With --paper: what is learned.")] = "cifar100-10",
    seed: Annotated[int, typer.Option("--seed", "-s", help="With --paper: of the runs.")] = 0,
    settings: Settings = None,
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
    from reverie.cli.progress import counting, following
    from reverie.diagnosis import measure as diagnosis
    from reverie.system import provenance

    said, command = beside(as_json), provenance.command_line()
    if paper:
        if run is not None:
            raise UserError("--paper makes its own runs; leave the folder out, or leave --paper out.")
        where = out or Path("runs") / f"diagnosis-{Path(preset).stem}-seed{seed}"
        folders = diagnosis.paper_runs(
            preset,
            where,
            lambda method: following(said, f"{Path(preset).stem} {method}"),
            seed=seed,
            settings=settings or (),
            data=data,
            device=device,
            command=command,
        )
    elif run is None:
        raise UserError("Say which run, by its folder; or let --paper make two.")
    elif settings:
        raise UserError("--set belongs to --paper: a run that is there already cannot be changed.")
    else:
        folders = [run, *([other] if other else [])]
        where = out or (run.parent if other else run) / "diagnosis"
    with counting(said, "reading images") as progress:
        facts, files = diagnosis.diagnose(
            folders, where, task=task, data=data, device=device, command=command, progress=progress
        )
    if as_json:
        print_json(facts)
        return
    for made in diagnosis.as_tables(facts["runs"]):
        print_table(*made)
        console.print()
    for line in [*diagnosis.lines(facts["runs"]), *map(str, files)]:
        console.print(line, soft_wrap=True)


@app.command(rich_help_panel=EXPERIMENTS, epilog="Example: reverie results --write README.md")
def results(
    folder: Annotated[Path, typer.Argument(help="Folders of result files, one a preset.")] = Path("results"),
    write: Annotated[
        Path | None, typer.Option(help="Renew the tables in this file: `<!-- results: NAME -->` … `<!-- /results -->`")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Tables of finished runs, made from their result files and from nothing else.

    Put a run's result.json under FOLDER/PRESET/, by any name. Runs of one method with several seeds make one row.
    """
    from reverie.errors import explaining
    from reverie.system import files as disk
    from reverie.tables import rows as tables

    if not folder.is_dir():
        raise UserError(f"There is no folder {folder}.")
    inside = sorted(entry for entry in folder.iterdir() if any(entry.glob("*.json")))
    if not inside:
        raise UserError(f"No folder in {folder} holds result files. Put a run's result.json under {folder}/PRESET/.")
    if write is not None:
        with explaining("read", "Name the file that holds the tables."):
            text = write.read_text("utf-8")
        disk.write_text(write, tables.rewritten(text, folder))
        beside(as_json).print(f"{write}", soft_wrap=True)
    if as_json:
        print_json({inner.name: tables.results_records(inner) for inner in inside})
    elif write is None:
        for inner in inside:
            console.print(f"{inner.name}\n\n{tables.results_table(inner)}", soft_wrap=True)


@app.command(rich_help_panel=EXPERIMENTS, epilog="Example: reverie run digits-5")
def presets() -> None:
    """List the experiments that come with reverie."""
    from reverie.config.layers import describe_preset, preset_names

    print_table(["preset", "what it is"], [[name, describe_preset(name)] for name in preset_names()])


@app.command(rich_help_panel=EXPERIMENTS, epilog="Example: reverie run digits-5 --method lwf")
def methods() -> None:
    """List the methods, and what each keeps from one task to the next."""
    from reverie.methods import find_method, methods_that_load

    rows = []
    for name in methods_that_load():
        cls = find_method(name)
        about = (cls.__doc__ or cls.title).strip().partition("\n")[0]
        rows.append([name, str(cls.keeps), about])
    print_table(["method", "keeps", "what it does"], rows)


def _print_sections(sections: Sequence[Section]) -> None:
    for section in sections:
        console.print(section.caption, soft_wrap=True)
        print_table(*section.accuracy())
        for note in section.notes():
            console.print(note, soft_wrap=True)
        console.print()
        print_table(*section.cost())
        console.print()


def _print_result(result: dict[str, Any], folder: Path) -> None:
    from reverie.data.class_names import DASH
    from reverie.tables.rows import COLUMNS, Row, method_title

    cells = Row(method_title(result["method"]), [result]).cells()
    print_table(COLUMNS, [cells])
    after = {"accuracy after each task (%)": result["metrics"]["accuracy_after"]}
    after["before correction (%)"] = result.get("uncorrected_accuracy_after") or []  # of BiC
    for name, shares in after.items():
        if shares:
            console.print(f"{name}: {'  '.join(f'{100 * share:.1f}' for share in shares)}")
    if cells[COLUMNS.index("Omega")] == DASH:
        console.print(
            f"Omega needs the upper bound: run the same with --method joint, beside {folder}.", soft_wrap=True
        )
    console.print(f"{folder / 'result.json'}", soft_wrap=True)


def _names(text: str, option: str) -> list[str]:
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise UserError(f"{option} wants one or several names, with commas between them, not {text!r}.")
    return names


def _numbers(text: str, option: str) -> list[int]:
    try:
        return list(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise UserError(f"{option} wants numbers such as 0,1,2, not {text!r}.") from None


def _choices(text: str, known: Iterable[str], option: str) -> list[str]:
    for part in (chosen := _names(text, option)):
        if part not in known:
            raise UserError(f"{option} takes {', '.join(known)}, not {part!r}.")
    return chosen
