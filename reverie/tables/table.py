"""Many runs side by side, as one call: planned, trained, and written as a table beside the paper's figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from reverie.config.choices import Recipe
from reverie.config.layers import Settings
from reverie.engine.observer import Observer, Observers
from reverie.errors import UserError, explaining
from reverie.methods import is_of_this_process
from reverie.runs.figures import finished_result
from reverie.runs.run import CHECKPOINT_SECONDS
from reverie.system import provenance
from reverie.system.arguments import as_names, as_seeds, check_number, check_whole_number, renaming_argument
from reverie.system.files import write_json, write_text
from reverie.tables import paper as published
from reverie.tables.executors import LOGS, LocalExecutor
from reverie.tables.formats import Section, as_csv, as_latex, as_markdown
from reverie.tables.plan import Entry, Plan, PlannedRun, entries_for, entries_of_paper
from reverie.tables.progress import showing_table_progress
from reverie.tables.rows import Row, paper_row
from reverie.version import __version__

SEEDS = (0, 1, 2)
MOST_PROCESSES = 1000


@dataclass(frozen=True)
class Table:
    """A table of finished runs. `print(table)` shows it in Markdown."""

    folder: Path
    sections: Sequence[Section]  # one a preset
    files: Sequence[Path]  # table.md, table.csv, table.tex and table.json
    runs: Sequence[str]  # that are finished
    failed: Sequence[str]
    left_out: Sequence[str]  # rows of the paper that cannot be run here, and why
    command: str = ""

    @property
    def rows(self) -> list[Row]:
        return [row for section in self.sections for row in section.rows]

    def as_dict(self) -> dict[str, Any]:
        return {
            "command": self.command,
            "reverie": __version__,
            "commit": provenance.commit(),
            "notes": [*dict.fromkeys(note for section in self.sections for note in section.notes())],
            "rows": [row.as_dict() for row in self.rows],
            "runs": list(self.runs),
            "failed": list(self.failed),
        }

    def __str__(self) -> str:
        failed = [f"* {name} (its log is {self.folder / LOGS / name}.log)\n" for name in self.failed]
        missing = ["\nWithout runs that failed:\n\n", *failed] if failed else []
        return as_markdown(self.sections) + "".join(missing)


@renaming_argument("folder", "out")
def make_table(
    preset: str | None = None,
    methods: Sequence[str] | str = "all",
    *,
    paper: str | None = None,
    seeds: Sequence[int] | None = None,
    recipe: Recipe = "paper",
    out: Path | str | None = None,
    upper_bound: bool = True,
    parallel: int = 1,
    settings: Settings = (),
    data: Path | str = "data",
    device: str = "auto",
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    progress: bool | Console = False,
    observer: Observer | None = None,
    command: str = "",
) -> Table:
    """Many runs side by side, beside the paper's figures where it has any; each in a process of its own.

        table = reverie.make_table("cifar100-10", ["base", "lwf", "abd"], seeds=[0, 1, 2], parallel=2, progress=True)
        print(table)

    - `preset`, `methods`: a row for each method, "all" of them or those named; "base,abd" will do. Or
      `paper`, a table of the paper ("data-free", "replay", "ablation", "tiny-imagenet", "imagenet-50") or our own of
      the method `lucid` ("lucid"), of which `preset` and `methods` choose rows.
    - `seeds`: 0, 1 and 2, or as many as the paper has. `upper_bound`: train it, too, since Omega needs it.
    - `out`: a folder for the runs and for table.md, table.csv, table.tex and table.json.
    - `parallel`: runs at a time. `command` is what table.json calls its origin. The others are as in `run`.

    Stopped or killed, the same call goes on and repeats no finished run. A run that fails is named in `failed`, and the
    others go on. Raises UserError before the first run for whatever can be wrong with any of them.
    """
    if parallel is not None:
        check_whole_number("parallel", parallel, 1, MOST_PROCESSES)
    checkpoint_seconds = check_number("checkpoint_seconds", checkpoint_seconds, least=0)
    chosen = as_names(methods, "methods")
    entries, left_out, usual_seeds = _entries(preset, chosen, paper, upper_bound)
    _refuse_methods_of_this_process(entries)
    folder = Path(out) if out is not None else Path("runs") / f"table-{paper or Path(str(preset)).stem}"
    plan = Plan.make(entries, as_seeds(seeds) if seeds is not None else usual_seeds, recipe, settings, folder)
    executor = LocalExecutor(Path(data), device, parallel, checkpoint_seconds)
    with showing_table_progress(progress) as display:
        followers = Observers(observer, display)
        for line in left_out:
            followers.decided(line)
        state = executor.train(plan, followers)
    sections = make_sections(plan, state.finished)
    finished = [run.name for run in plan.runs if run.folder.finished]
    failed = [run.name for run in plan.runs if not run.folder.finished]
    files = [folder / f"table.{kind}" for kind in ("md", "csv", "tex", "json")] if sections else []
    table = Table(folder, sections, files, finished, failed, left_out, command)
    if sections:
        write_table(table)
    return table


def _entries(
    preset: str | None, methods: list[str], paper: str | None, upper_bound: bool
) -> tuple[list[Entry], list[str], list[int]]:
    """Rows, what is left out of the paper's, and the usual seeds."""
    if paper is not None:
        theirs = published.find_table(paper)
        named = [] if methods == ["all"] else methods
        entries, missing = entries_of_paper(theirs, [preset] if preset else [], named, upper_bound)
        if not entries:
            raise UserError(f"Nothing of the paper's table {paper!r} can be run here. {' '.join(missing)}")
        return entries, missing, list(range(theirs.runs))
    if preset is None:
        raise UserError("Say which `preset` (`list_presets()` names them), or which table of the paper with `paper`.")
    return entries_for(preset, methods, upper_bound), [], list(SEEDS)


def _refuse_methods_of_this_process(entries: Sequence[Entry]) -> None:
    """The runs of a table are processes of their own."""
    for method in [entry.method for entry in entries if is_of_this_process(entry.method)]:
        raise UserError(
            f"The method {method!r} is known in this process alone, by register_method, and each run of a table is a "
            "process of its own. Give it an entry point (CONTRIBUTING.md), or name others in `methods`."
        )


def make_sections(plan: Plan, finished: Sequence[PlannedRun]) -> list[Section]:
    """The finished runs as rows, preset by preset."""
    made = []
    for preset in dict.fromkeys(run.entry.preset for run in plan.runs):
        rows = []
        for entry in dict.fromkeys(run.entry for run in plan.runs if run.entry.preset == preset):
            its = sorted((run for run in finished if run.entry == entry), key=lambda run: run.config.seed)
            found = [finished_result(run.folder, run.config) for run in its]
            if found:
                rows.append(Row(entry.name, found, paper_row(its[0].config, entry.table)))
        if rows:
            made.append(Section(_caption(preset, plan), rows))
    return made


def _caption(preset: str, plan: Plan) -> str:
    several = len(plan.seeds) > 1
    seeds = f"seed{'s' if several else ''} {', '.join(map(str, plan.seeds))}"
    spread = ": mean ± sample standard deviation" if several else ""
    changed = f"; changed: {', '.join(plan.settings)}" if plan.settings else ""
    return f"{Path(preset).stem}, {plan.recipe} recipe{changed}; percent, {seeds}{spread}"


@explaining("written", "Choose another `out`.")
def write_table(table: Table) -> None:
    """table.md, table.csv, table.tex and table.json."""
    write_text(table.folder / "table.md", str(table))
    write_text(table.folder / "table.csv", as_csv(table.sections))
    write_text(table.folder / "table.tex", as_latex(table.sections))
    write_json(table.folder / "table.json", table.as_dict())
