"""Runs side by side: which make one row, what each row is called, and what it has beside the paper's figures."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from statistics import mean, stdev
from typing import Any

from reverie.config.layers import preset_names
from reverie.config.schema import Config
from reverie.errors import UserError
from reverie.methods import find_method, method_names
from reverie.methods.keeps import Keeps
from reverie.runs.configure import configure
from reverie.runs.result import Result
from reverie.tables import paper
from reverie.tables.paper import Figure, PaperRow
from reverie.text import DASH

COLUMNS = ("Method", "A_N", "average A", "Omega", "forgetting", "seconds")


@dataclass(frozen=True)
class Row:
    """One method over its seeds. Shares between 0 and 1, as in the results."""

    title: str
    results: Sequence[Result]
    paper: PaperRow | None = None

    def values(self, metric: str) -> list[float]:
        """One for each seed, or none: a mean over some of the seeds would be taken for one over all."""
        found = [getattr(result.metrics, metric) for result in self.results]
        return [] if None in found else found

    def cells(self) -> list[str]:
        """What stands in the table, for `COLUMNS`."""
        seconds = [result.seconds.total for result in self.results]
        names = ("final_accuracy", "average_incremental_accuracy", "omega", "forgetting")
        return [self.title, *(mean_percent(self.values(name)) for name in names), f"{mean(seconds):.0f}"]

    def figure(self, metric: str) -> Figure | None:
        """The paper's, if it has one."""
        found: Figure | None = getattr(self.paper, metric, None)
        return found

    def uncorrected(self) -> list[float]:
        """Final accuracies of a method that corrects its logits (BiC), as they would be without."""
        found = [result.uncorrected_accuracy_after for result in self.results]
        return [after[-1] for after in found if after] if all(found) else []

    @property
    def beside_paper(self) -> bool:
        """Has the paper a figure for it?"""
        return self.figure("final_accuracy") is not None

    def cost(self) -> Cost:
        return Cost.of(self.results)

    def as_dict(self) -> dict[str, Any]:
        """Everything a row says, as plain values by name: percent, seconds, bytes."""
        first = self.results[0]
        plain: dict[str, Any] = {"preset": first.preset, "method": first.method, "recipe": first.recipe}
        plain |= {"title": self.title, "seeds": [result.seed for result in self.results]}
        for name in ("final_accuracy", "omega", "average_incremental_accuracy", "forgetting"):
            values = [100 * value for value in self.values(name)]
            plain[name] = mean(values) if values else None
            plain[f"{name}_deviation"] = stdev(values) if len(values) > 1 else None
            figure = self.figure(name)
            if figure is not None:
                plain |= {f"{name}_paper": figure.mean, f"{name}_paper_deviation": figure.spread}
                if values:
                    plain[f"{name}_difference"] = mean(values) - figure.mean
                    plain[f"{name}_tolerance"] = figure.tolerance(values)
                    plain[f"{name}_verdict"] = figure.verdict(values)
        if values := [100 * value for value in self.uncorrected()]:
            plain["final_accuracy_uncorrected"] = mean(values)
            plain["final_accuracy_uncorrected_deviation"] = stdev(values) if len(values) > 1 else None
        return plain | asdict(self.cost())


@dataclass(frozen=True)
class Cost:
    """What a method takes, mean over its runs. Time is counted from the second task on: the first is alike for all."""

    seconds_a_step: float | None  # in the same phases as the next, without what it takes to compile and capture them
    learn_seconds_a_task: float  # in all phases but the dreamer's
    dream_seconds_a_task: float
    peak_memory_bytes: float | None  # the most of all runs
    kept_bytes: int  # the most that was kept between two tasks, besides the classifier

    @classmethod
    def of(cls, results: Sequence[Result]) -> Cost:
        learn, dream, steps, stepping = [], [], 0.0, 0.0
        for result in results:
            by_task = result.seconds.by_task
            for task in range(min(1, len(by_task) - 1), len(by_task)):
                parts = by_task[task]
                dream.append(parts.get("dream", 0.0))
                learn.append(sum(parts.values()) - dream[-1] - parts.get("evaluate", 0.0))
                phases = result.phases[task] if result.phases else {}
                for name, phase in phases.items():
                    if name in parts and name != "dream":
                        steps, stepping = steps + phase.steps, stepping + parts[name] - phase.setup_seconds
        peaks = [result.peak_memory_bytes for result in results if result.peak_memory_bytes is not None]
        kept = max((entry.kept_bytes or 0 for result in results for entry in result.ledger), default=0)
        return cls(stepping / steps if steps else None, mean(learn), mean(dream), max(peaks, default=None), kept)


def mean_percent(values: Sequence[float]) -> str:
    """Of shares: their mean, with the sample standard deviation where there are several."""
    if not values:
        return DASH
    spread = f" ± {100 * stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * mean(values):.1f}{spread}"


# --- which runs make a row, and what it is called


def rows_of(results: Sequence[Result]) -> list[Row]:
    """A row for each method and what was changed for it, in the order in which they first appear.

    Runs that differ in more than the seed are never of one row.
    """
    plain = [_title(result) for result in results]
    alike = {title: [r for r, its in zip(results, plain, strict=True) if its == title] for title in {*plain}}
    titles = [", ".join([title, *_apart(result, alike[title])]) for result, title in zip(results, plain, strict=True)]
    return [
        Row(title, [result for result, its in zip(results, titles, strict=True) if its == title])
        for title in dict.fromkeys(titles)
    ]


def rows_beside_paper(results: Sequence[Result]) -> list[Row]:
    """The same with the paper's figures, and under the paper's name where it has one of its own."""
    rows = []
    for row in rows_of(results):
        config = row.results[0].configuration()
        published = paper_row(config)
        name = published.title if published is not None and config.recipe == "paper" else ""
        rows.append(Row(name or row.title, row.results, published))
    return rows


def paper_row(config: Config, wanted: str = "") -> PaperRow | None:
    """What the paper has for a run like this, unless something else that decides the figures was changed.

    Some figures stand in several tables: the one that is `wanted` comes first.
    """
    for table in sorted(paper.tables().values(), key=lambda table: table.name != wanted):
        for row in table.rows:
            if (row.preset, row.method) != (config.preset, config.method):
                continue
            usual = configure(row.preset, row.method, seed=config.seed, recipe=config.recipe, settings=row.settings)
            made = _completed(config)
            if all(key.startswith("engine.") for key in usual.differences(made)):
                return row
    return None


def _completed(config: Config) -> Config:
    """With all options of its method, and with those that the method has no more."""
    options = find_method(config.method).Options
    try:
        return config.completed(options)
    except UserError:
        today = {field.name for field in dataclasses.fields(options)}
        known = {name: value for name, value in config.options.items() if name in today}
        with suppress(UserError):
            made = dataclasses.replace(config, options=known).completed(options)
            return dataclasses.replace(made, options={**config.options, **made.options})
        return config  # a value that is out of today's bounds


def _title(result: Result) -> str:
    """The method, its recipe if it is not the paper's, and what differs from the preset that comes with reverie."""
    try:
        words = [method_title(result.method)]
    except UserError:  # of somebody's own package, which is not installed here
        return result.method
    made = _completed(result.configuration())
    if result.recipe != "paper":
        words.append(f"{result.recipe} recipe")
    if result.preset in preset_names():
        usual = configure(result.preset, result.method, seed=result.seed, recipe=made.recipe)
        changed = usual.differences(made)
        if result.engine is None or result.engine.precision != "bf16":
            changed.pop("dream.mixed", None)  # decides nothing there
        words += [f"{key}={value}" for key, (_, value) in changed.items() if not key.startswith("engine.")]
    return ", ".join(words)


def _apart(result: Result, alike: Sequence[Result]) -> list[str]:
    """What tells it from those that bear the same title: only what comes with reverie has usual values to name."""
    values = [_deciding(other) for other in alike]
    keys = dict.fromkeys(key for facts in values for key in facts)
    differing = [key for key in keys if any(facts.get(key) != values[0].get(key) for facts in values)]
    return [f"{key}={_deciding(result).get(key)}" for key in differing]


def _deciding(result: Result) -> dict[str, Any]:
    """What decides the figures besides the seed and what `_title` tells, by key."""
    made = result.configuration()
    with suppress(UserError):  # of somebody's own package, which is not installed here
        find_method(result.method)
        made = _completed(made)
        if result.preset in preset_names():
            return {"preset": result.preset}
    facts = {key: value for key, value in made.flat_identity().items() if not key.startswith("engine.")}
    data = result.data_fingerprint[:8] if made.data.source == "folder" else None
    return facts | {"seed": None, "data": data}


def method_title(name: str) -> str:
    """As in the paper's tables, with the name beside it where a method that is listed before has the same."""
    title = find_method(name).title or name
    return f"{title} ({name})" if title in _titles_before(name) else title


def _titles_before(name: str) -> set[str]:
    """Of the methods that are listed before: reverie's own come first. One that cannot be loaded has none."""
    found = set()
    for other in itertools.takewhile(lambda other: other != name, method_names()):
        with suppress(UserError):
            found.add(find_method(other).title or other)
    return found


def methods_in_order(methods: Sequence[str]) -> list[str]:
    """The upper bound, those that keep nothing, those that keep something; among equals, as the paper has them."""
    known = [*paper.order(), *method_names()]
    return sorted(dict.fromkeys(methods), key=lambda name: (keeping_rank(name), known.index(name)))


def keeping_rank(method: str) -> int:
    keeps = find_method(method).keeps
    if Keeps.EVERYTHING in keeps:
        return 0
    return 2 if keeps & (Keeps.CORESET | Keeps.NETWORKS) else 1
