"""Runs side by side: what each row of a table says, beside the paper's figures; and tables made of result files."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from reverie.config.layers import preset_names
from reverie.config.schema import Config
from reverie.data.class_names import DASH
from reverie.errors import UserError
from reverie.methods import find_method, method_names
from reverie.runs import configure as experiment
from reverie.system import files as disk
from reverie.tables import paper
from reverie.tables.paper import Figure, PaperRow

Result = Mapping[str, Any]
COLUMNS = ("Method", "A_N", "average A", "Omega", "forgetting", "seconds")


@dataclass(frozen=True)
class Row:
    """One method over its seeds. Shares between 0 and 1, as in the results."""

    title: str
    results: Sequence[Result]
    paper: PaperRow | None = None

    def values(self, metric: str) -> list[float]:
        """One for each seed, or none: a mean over some of the seeds would be taken for one over all."""
        found = [r["metrics"][metric] for r in self.results]
        return [] if None in found else found

    def cells(self) -> list[str]:
        """What stands in the table, for `COLUMNS`."""
        seconds = [r["seconds"]["total"] for r in self.results]
        names = ("final_accuracy", "average_incremental_accuracy", "omega", "forgetting")
        return [self.title, *(percent(self.values(name)) for name in names), f"{mean(seconds):.0f}"]


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
        config = Config.from_dict(row.results[0]["config"])
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
            usual = experiment.configure(
                row.preset, row.method, seed=config.seed, recipe=config.recipe, settings=row.settings
            )
            made = config.completed(find_method(row.method).Options)
            if all(key.startswith("engine.") for key in usual.differences(made)):
                return row
    return None


def _title(result: Result) -> str:
    """The method, its recipe if it is not the paper's, and what differs from the preset that comes with reverie."""
    try:
        words = [method_title(result["method"])]
    except UserError:  # of somebody's own package, which is not installed here
        return str(result["method"])
    if result["recipe"] != "paper":
        words.append(f"{result['recipe']} recipe")
    if result["preset"] in preset_names():
        usual = experiment.configure(result["preset"], result["method"], seed=result["seed"], recipe=result["recipe"])
        made = Config.from_dict(result["config"]).completed(find_method(result["method"]).Options)
        changed = usual.differences(made)
        if result.get("engine", {}).get("precision") != "bf16":
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
    made = Config.from_dict(result["config"])
    try:
        made = made.completed(find_method(result["method"]).Options)
    except UserError:  # of somebody's own package, which is not installed here
        pass
    else:
        if result["preset"] in preset_names():
            return {"preset": result["preset"]}
    facts = {key: value for key, value in made.flat_identity().items() if not key.startswith("engine.")}
    data = str(result.get("data_fingerprint"))[:8] if made.data.source == "folder" else None
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


def percent(values: Sequence[float]) -> str:
    """Mean, with the sample standard deviation where there are several."""
    if not values:
        return DASH
    spread = f" ± {100 * stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * mean(values):.1f}{spread}"


def markdown(rows: Sequence[Row]) -> str:
    return _markdown(COLUMNS, [row.cells() for row in rows])


# --- a table beside the paper's


@dataclass(frozen=True)
class Section:
    """The rows of one preset."""

    caption: str
    rows: Sequence[Row]

    def accuracy(self) -> tuple[list[str], list[list[str]]]:
        """Header and cells. The paper's columns are there if it has a figure for any of the rows."""
        beside = any(row.paper is not None for row in self.rows)
        header = ["Method", "seeds"]
        for metric in ("A_N", "Omega"):
            header += [metric, *(f"{metric}: {word}" for word in ("paper", "difference", "verdict") if beside)]
        return [*header, "average A", "forgetting"], [_accuracy_cells(row, beside) for row in self.rows]

    def cost(self) -> tuple[list[str], list[list[str]]]:
        header = ["Method", "ms a step", "s a task: learn", "s a task: dream", "peak memory", "kept between tasks"]
        return header, [[row.title, *_cost_cells(Cost.of(row.results))] for row in self.rows]

    def notes(self) -> list[str]:
        """Where the paper's figures are from, and what the verdicts mean; nothing where there are none."""
        found = dict.fromkeys(row.paper.table for row in self.rows if row.paper is not None)
        sources = [f"paper: {paper.find_table(name).source}" for name in found]
        return [*sources, f"verdict: {paper.RULE}"] if sources else []


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
            by_task = result["seconds"]["by_task"]
            for task in range(min(1, len(by_task) - 1), len(by_task)):
                parts = by_task[task]
                dream.append(parts.get("dream", 0.0))
                learn.append(sum(parts.values()) - dream[-1] - parts.get("evaluate", 0.0))
                phases = result.get("phases", [{}] * len(by_task))[task]
                for name, phase in phases.items():
                    if name in parts and name != "dream":
                        steps, stepping = steps + phase["steps"], stepping + parts[name] - phase["setup_seconds"]
        peaks = [result["peak_memory_bytes"] for result in results if result["peak_memory_bytes"] is not None]
        kept = max((entry["kept_bytes"] for result in results for entry in result["ledger"]), default=0)
        return cls(stepping / steps if steps else None, mean(learn), mean(dream), max(peaks, default=None), kept)


def record(row: Row) -> dict[str, Any]:
    """Everything a row says, as plain values by name: percent, seconds, bytes."""
    first = row.results[0]
    plain: dict[str, Any] = {name: first[name] for name in ("preset", "method", "recipe")}
    plain |= {"title": row.title, "seeds": [result["seed"] for result in row.results]}
    for name in ("final_accuracy", "omega", "average_incremental_accuracy", "forgetting"):
        values = [100 * value for value in row.values(name)]
        plain[name] = mean(values) if values else None
        plain[f"{name}_deviation"] = stdev(values) if len(values) > 1 else None
        figure = _figure(row, name)
        if figure is not None:
            plain |= {f"{name}_paper": figure.mean, f"{name}_paper_deviation": figure.spread}
            if values:
                plain[f"{name}_difference"] = mean(values) - figure.mean
                plain[f"{name}_tolerance"] = figure.tolerance(values)
                plain[f"{name}_verdict"] = figure.verdict(values)
    return plain | vars(Cost.of(row.results))


def as_markdown(sections: Sequence[Section]) -> str:
    """A table of accuracies and one of costs for each preset, with a list of notes between them."""
    parts = []
    for section in sections:
        notes = "".join(f"* {note}\n" for note in section.notes())
        accuracy, cost = _markdown(*section.accuracy()), _markdown(*section.cost())
        parts.append("\n".join(part for part in (f"{section.caption}\n", accuracy, notes, cost) if part))
    return "\n".join(parts)


def as_csv(sections: Sequence[Section]) -> str:
    """A line a row; what is not known is empty."""
    records = [record(row) for section in sections for row in section.rows]
    for plain in records:
        plain["seeds"] = " ".join(map(str, plain["seeds"]))
    names = dict.fromkeys(name for plain in records for name in plain)
    text = io.StringIO()
    writer = csv.DictWriter(text, [*names], lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def as_latex(sections: Sequence[Section]) -> str:
    """A `tabular` for the accuracies and one for the cost of each preset; no package is needed."""
    parts = []
    for section in sections:
        for header, cells in (section.accuracy(), section.cost()):
            lines = [" & ".join(map(_latex, line)) + r" \\" for line in (header, *cells)]
            body = "\n".join([lines[0], r"\hline", *lines[1:]])
            columns = "l" + "r" * (len(header) - 1)
            about = "\n".join(f"% {line}" for line in (section.caption, *section.notes()))
            parts.append(f"{about}\n\\begin{{tabular}}{{{columns}}}\n\\hline\n{body}\n\\hline\n\\end{{tabular}}\n")
    return "\n".join(parts)


def _figure(row: Row, metric: str) -> Figure | None:
    figure: Figure | None = getattr(row.paper, metric, None)
    return figure


def _accuracy_cells(row: Row, beside_paper: bool) -> list[str]:
    cells = [row.title, str(len(row.results))]
    for metric in ("final_accuracy", "omega"):
        values, figure = row.values(metric), _figure(row, metric)
        cells.append(percent(values))
        if beside_paper:
            cells += _compared([100 * value for value in values], figure)
    return [*cells, *(percent(row.values(name)) for name in ("average_incremental_accuracy", "forgetting"))]


def _compared(ours: Sequence[float], figure: Figure | None) -> list[str]:
    """The paper's figure, our difference to it, and the verdict."""
    if figure is None:
        return [DASH, DASH, DASH]
    if not ours:
        return [str(figure), DASH, DASH]
    return [str(figure), f"{mean(ours) - figure.mean:+z.1f}", figure.verdict(ours)]


def _cost_cells(cost: Cost) -> list[str]:
    return [
        DASH if cost.seconds_a_step is None else _three_digits(1000 * cost.seconds_a_step),
        _three_digits(cost.learn_seconds_a_task),
        _three_digits(cost.dream_seconds_a_task) if cost.dream_seconds_a_task else DASH,
        DASH if cost.peak_memory_bytes is None else size(cost.peak_memory_bytes),
        size(cost.kept_bytes),
    ]


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def size(count: float) -> str:
    """Bytes for people: 2.4 MB."""
    for unit in ("B", "kB", "MB"):
        if count < 999.5:
            return f"{count:.3g} {unit}" if count else "0"
        count /= 1000
    return f"{count:.3g} GB"


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|---|" + "---:|" * (len(header) - 1)]
    lines += ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _latex(text: str) -> str:
    text = text.replace("\\", r"\textbackslash ")
    for sign in "&%$#_{}":
        text = text.replace(sign, f"\\{sign}")
    for sign in "<>|":  # others in LaTeX's usual font
        text = text.replace(sign, f"${sign}$")
    return text.replace("±", r"$\pm$").replace(DASH, "--").replace("~", r"\~{}").replace("^", r"\^{}")


# --- tables made of result files

_BLOCK = re.compile(r"(<!-- results: (\S+) -->\n).*?(<!-- /results -->)", re.DOTALL)


def read_results(folder: Path) -> list[Result]:
    """The result files in a folder, by method and seed."""
    files = sorted(folder.glob("*.json"))
    if not files:
        raise UserError(f"There are no result files (*.json) in {folder}.")
    found = [_read_result(file) for file in files]
    order = [*method_names(), *sorted({result["method"] for result in found})]  # also those that are not installed here
    return sorted(found, key=lambda result: (order.index(result["method"]), result["seed"]))


def _read_result(file: Path) -> Result:
    try:
        result = disk.read_json(file)
        if {"method", "seed", "metrics", "config", "seconds"} <= result.keys():
            return dict(result)
    except (ValueError, AttributeError):
        pass
    raise UserError(f"{file} is not the result of a run.")


def results_table(folder: Path) -> str:
    """One folder of result files as a table in Markdown: only what is there, with the paper's A_N where it has one."""
    rows = rows_beside_paper(read_results(folder))
    header, cells = [*COLUMNS, "seeds"], [[*row.cells(), _seeds(row)] for row in rows]
    if any(row.paper is not None for row in rows):
        place = COLUMNS.index("A_N") + 1
        header.insert(place, "paper's")
        for row, its in zip(rows, cells, strict=True):
            its.insert(place, DASH if row.paper is None else str(row.paper.final_accuracy))
    return _markdown(header, cells)


def _seeds(row: Row) -> str:
    return ", ".join(str(result["seed"]) for result in row.results)


def results_records(folder: Path) -> list[dict[str, Any]]:
    """The same rows as plain values."""
    return [record(row) for row in rows_beside_paper(read_results(folder))]


def rewritten(text: str, results: Path) -> str:
    """`text` with every block `<!-- results: NAME -->` … `<!-- /results -->` made anew from the folder NAME."""
    if not _BLOCK.search(text):
        raise UserError(
            "There is no table in it to renew: mark the place with <!-- results: NAME --> and <!-- /results -->."
        )
    return _BLOCK.sub(lambda found: found[1] + results_table(results / found[2]) + found[3], text)
