"""The runs of a table, planned: a row for each method, a run for each of its seeds, all looked at before the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reverie.config.choices import UPPER_BOUND, Recipe
from reverie.config.layers import Settings, setting_keys, setting_texts
from reverie.config.schema import Config
from reverie.data.stream import task_sizes
from reverie.errors import UserError
from reverie.learner.folder import RunFolder
from reverie.methods import methods_that_load
from reverie.runs.configure import choose_classes, configure, folder_name
from reverie.tables.paper import PaperTable
from reverie.tables.rows import keeping_rank, method_title, methods_in_order

CLASSES = {"digits": 10, "cifar10": 10, "cifar100": 100}  # of data sets that nobody has a part of


@dataclass(frozen=True)
class Entry:
    """One row of a table, on one preset: a method, and the settings that make the row."""

    preset: str
    method: str
    settings: tuple[str, ...] = ()
    title: str = ""
    table: str = ""  # of the paper, if it is a row of one

    @property
    def name(self) -> str:
        return self.title or ", ".join([method_title(self.method), *self.settings])


@dataclass(frozen=True)
class PlannedRun:
    entry: Entry
    config: Config
    settings: tuple[str, ...]  # the row's and the person's
    folder: RunFolder

    @property
    def name(self) -> str:
        return self.folder.path.name

    @property
    def kind(self) -> str:
        """Runs of one kind take about as long."""
        return f"{self.entry.preset} {self.entry.name}"


@dataclass(frozen=True)
class Plan:
    """All runs of a table, row by row. The upper bound comes first, since the others' Omega refers to it."""

    runs: Sequence[PlannedRun]
    seeds: Sequence[int]
    recipe: Recipe
    settings: Sequence[str]  # for all rows
    out: Path

    @classmethod
    def make(
        cls, entries: Sequence[Entry], seeds: Sequence[int], recipe: Recipe, settings: Settings, out: Path
    ) -> Plan:
        """Looks at everything that can be wrong with any of them before the first is begun."""
        texts = setting_texts(settings)
        if not seeds:
            raise UserError("`seeds` names no seed. Name one or several, such as 0, 1 and 2.")
        of_methods = [text for text in texts if any(key.startswith("method.") for key in setting_keys([text]))]
        made = []
        for entry in dict.fromkeys(entries):
            _refuse_what_makes_the_row(entry, texts)
            common = [text for text in texts if entry.method != UPPER_BOUND or text not in of_methods]
            chosen = (*entry.settings, *common)
            for seed in dict.fromkeys(seeds):
                config = configure(entry.preset, entry.method, seed=seed, recipe=recipe, settings=chosen)
                _try_split(config)
                folder = RunFolder(out / folder_name(config, chosen))
                folder.refuse_others(config)
                made.append(PlannedRun(entry, config, chosen, folder))
        return cls(made, tuple(dict.fromkeys(seeds)), recipe, texts, out)


def _refuse_what_makes_the_row(entry: Entry, settings: Sequence[str]) -> None:
    """A row that has another value than its title says would stand beside a figure that is not its own."""
    twice = setting_keys(entry.settings) & setting_keys(settings)
    if twice:
        raise UserError(f"The setting {min(twice)} cannot be for all rows: it is what makes the row {entry.name!r}.")


def _try_split(config: Config) -> None:
    """Can the classes be cut into such tasks? Where anybody may have other classes, reading tells."""
    count = CLASSES.get(config.data.source)
    if count is not None:
        task_sizes(config.stream.split, len(choose_classes(config, count)))


def entries_for(preset: str, methods: Sequence[str], upper_bound: bool = True) -> list[Entry]:
    """A row for each method, `["all"]` of them or those named, and the upper bound unless it is not wanted."""
    every = list(methods) == ["all"]
    names = [name for name in methods_that_load() if name != UPPER_BOUND] if every else list(methods)
    return [Entry(preset, name) for name in methods_in_order([UPPER_BOUND, *names] if upper_bound else names)]


def entries_of_paper(
    table: PaperTable, presets: Sequence[str], methods: Sequence[str], upper_bound: bool = True
) -> tuple[list[Entry], list[str]]:
    """The rows of a table of the paper; and a line for each that cannot be run here."""
    for kind, wanted, known in (
        ("preset", presets, table.presets),
        ("method", methods, [row.method for row in table.rows]),
    ):
        unknown = {*wanted} - {*known}
        if unknown:
            raise UserError(f"The table {table.name!r} has no {kind} {min(unknown)!r}.")
    entries, missing = [], []
    for preset in presets or table.presets:
        rows = [row for row in table.rows if row.preset == preset and (not methods or row.method in methods)]
        made = [
            Entry(preset, row.method, row.settings, row.title, table.name)
            for row in rows
            if row.method != UPPER_BOUND or row.settings
        ]
        if upper_bound or UPPER_BOUND in methods:
            made.insert(0, Entry(preset, UPPER_BOUND, table=table.name))
        runnable = []
        for entry in made:
            why = _why_not(entry)
            if why is None:
                runnable.append(entry)
            else:
                missing.append(f"{why[0]} is left out: {why[1]}")
        entries += sorted(runnable, key=lambda entry: keeping_rank(entry.method))
    return entries, [*dict.fromkeys(missing)]


def _why_not(entry: Entry) -> tuple[str, UserError] | None:
    """What is not here, the preset or the row, and why."""
    for name, method, settings in (
        (entry.preset, UPPER_BOUND, ()),
        (entry.title or entry.method, entry.method, entry.settings),
    ):
        try:
            configure(entry.preset, method, settings=settings)
        except UserError as error:
            return name, error
    return None
