"""Tables for people and programs: Markdown, CSV, LaTeX; and tables made of result files."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from reverie.errors import UserError
from reverie.methods import method_names
from reverie.runs.result import Result, read_result
from reverie.system.files import read_marked_text, write_text
from reverie.tables import paper
from reverie.tables.paper import Figure
from reverie.tables.rows import COLUMNS, Cost, Row, mean_percent, rows_beside_paper
from reverie.text import DASH, byte_size, markdown_table

Grid = tuple[list[str], list[list[str]]]  # header and rows


@dataclass(frozen=True)
class Section:
    """The rows of one preset."""

    caption: str
    rows: Sequence[Row]

    def accuracy(self) -> Grid:
        """The paper's columns are there if it has a figure for any of the rows."""
        with_paper = any(row.beside_paper for row in self.rows)
        header = ["Method", "seeds"]
        for metric in ("A_N", "Omega"):
            header += [metric, *(f"{metric}: {word}" for word in ("paper", "difference", "verdict") if with_paper)]
        return [*header, "average A", "forgetting"], [_accuracy_cells(row, with_paper) for row in self.rows]

    def cost(self) -> Grid:
        header = ["Method", "ms a step", "s a task: learn", "s a task: dream", "peak memory", "kept between tasks"]
        return header, [[row.title, *_cost_cells(row.cost())] for row in self.rows]

    def notes(self) -> list[str]:
        """What BiC has without its correction; where the paper's figures are from, and what the verdicts mean."""
        found = dict.fromkeys(row.paper.table for row in self.rows if row.paper and row.beside_paper)
        sources = [f"paper: {paper.find_table(name).source}" for name in found]
        raw = [
            f"{row.title}, before correction: A_N {mean_percent(values)}"
            for row in self.rows
            if (values := row.uncorrected())
        ]
        return [*raw, *sources, f"verdict: {paper.RULE}"] if sources else raw


def _accuracy_cells(row: Row, with_paper: bool) -> list[str]:
    cells = [row.title, str(len(row.results))]
    for metric in ("final_accuracy", "omega"):
        values = row.values(metric)
        cells.append(mean_percent(values))
        if with_paper:
            cells += _compared([100 * value for value in values], row.figure(metric))
    return [*cells, *(mean_percent(row.values(name)) for name in ("average_incremental_accuracy", "forgetting"))]


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
        DASH if cost.peak_memory_bytes is None else byte_size(cost.peak_memory_bytes),
        byte_size(cost.kept_bytes),
    ]


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


# --- formats


def rows_as_markdown(rows: Sequence[Row]) -> str:
    return markdown_table(COLUMNS, [row.cells() for row in rows])


def as_markdown(sections: Sequence[Section]) -> str:
    """A table of accuracies and one of costs for each preset, with a list of notes between them."""
    parts = []
    for section in sections:
        notes = "".join(f"* {note}\n" for note in section.notes())
        accuracy, cost = markdown_table(*section.accuracy()), markdown_table(*section.cost())
        parts.append("\n".join(part for part in (f"{section.caption}\n", accuracy, notes, cost) if part))
    return "\n".join(parts)


def as_csv(sections: Sequence[Section]) -> str:
    """A line a row; what is not known is empty."""
    records = [row.as_dict() for section in sections for row in section.rows]
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


def _latex(text: str) -> str:
    text = text.replace("\\", r"\textbackslash ")
    for sign in "&%$#_{}":
        text = text.replace(sign, f"\\{sign}")
    for sign in "<>|":  # others in LaTeX's usual font
        text = text.replace(sign, f"${sign}$")
    return text.replace("±", r"$\pm$").replace(DASH, "--").replace("~", r"\~{}").replace("^", r"\^{}")


# --- tables made of result files

NO_RESULTS = ("table.json", "tune.json", "diagnosis.json")  # which lie beside runs

_BLOCK = re.compile(r"(<!-- results: (\S+) -->\n).*?(<!-- /results -->)", re.DOTALL)


def load_results(folder: Path | str) -> list[Result]:
    """The results in a folder, by method and seed: of a run, of a table, of several of them, or result files.

        for result in reverie.load_results("runs/table-cifar100-10"):
            print(result.method, result.seed, result.metrics.final_accuracy)

    A run that is not finished has none. Raises UserError where there are none, and for a file (*.json) that is none.
    """
    files = _result_files(Path(folder))
    if not files:
        raise UserError(f"There are no result files (*.json) in {folder}, and no finished runs.")
    found = [_read(file) for file in files]
    order = [*method_names(), *sorted({result.method for result in found})]  # also those that are not installed here
    return sorted(found, key=lambda result: (order.index(result.method), result.seed))


def _result_files(folder: Path) -> list[Path]:
    """Those in the folder itself, of its runs, and of the runs of its tables."""
    if folder.is_file():
        return [folder]
    plain = [file for file in sorted(folder.glob("*.json")) if file.name not in NO_RESULTS]
    return [*plain, *sorted(folder.glob("*/result.json")), *sorted(folder.glob("*/*/result.json"))]


def _read(file: Path) -> Result:
    try:
        return read_result(file)
    except UserError as error:
        raise UserError(f"{file} is not the result of a run. {error}") from None


def results_by_name(folder: Path | str = "results") -> dict[str, list[Result]]:
    """The results below a folder by preset; or by folder, where each holds result files (results/NAME/*.json)."""
    folder = Path(folder)
    if not folder.exists():
        raise UserError(f"There is no folder {folder}.")
    inside = sorted(entry for entry in folder.glob("*/") if _holds_result_files(entry))
    if inside:
        return {entry.name: load_results(entry) for entry in inside}
    if not _result_files(folder):
        raise UserError(
            f"There are no result files in {folder}, and no finished runs. Name the folder of a run or of a table, or "
            f"put a run's result.json under {folder}/PRESET/."
        )
    return _by_preset(load_results(folder))


def _holds_result_files(folder: Path) -> bool:
    """That a person put there, by names of their own. What `run` and `table` write has other names."""
    names = {file.name for file in folder.glob("*.json")} - {*NO_RESULTS, "result.json"}
    return bool(names) and not (folder / "model.safetensors").exists()


def _by_preset(results: Sequence[Result]) -> dict[str, list[Result]]:
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(result.preset, []).append(result)
    return found


def results_table(folder: Path | str | Sequence[Result]) -> str:
    """The results in a folder (see `load_results`) as a table in Markdown, with the paper's A_N where it has one.

    Only what is there; a table for each preset where runs of several were found. Results that are loaded already make
    one table.
    """
    if not isinstance(folder, str | Path):
        return _table_of(folder)
    found = load_results(folder)
    if _holds_result_files(Path(folder)):
        return _table_of(found)
    tables = {preset: _table_of(results) for preset, results in _by_preset(found).items()}
    if len(tables) == 1:
        return next(iter(tables.values()))
    return "\n".join(f"{preset}\n\n{table}" for preset, table in tables.items())


def _table_of(results: Sequence[Result]) -> str:
    rows = rows_beside_paper(results)
    header, cells = [*COLUMNS, "seeds"], [[*row.cells(), _seeds(row)] for row in rows]
    if any(row.beside_paper for row in rows):
        place = COLUMNS.index("A_N") + 1
        header.insert(place, "paper's")
        for row, its in zip(rows, cells, strict=True):
            figure = row.figure("final_accuracy")
            its.insert(place, DASH if figure is None else str(figure))
    return markdown_table(header, cells)


def _seeds(row: Row) -> str:
    return ", ".join(str(result.seed) for result in row.results)


def records_of_results(results: Sequence[Result]) -> list[dict[str, Any]]:
    """The same rows as plain values."""
    return [row.as_dict() for row in rows_beside_paper(results)]


def renew_tables(file: Path | str, results: Path | str = "results") -> None:
    """Make every block `<!-- results: NAME -->` … `<!-- /results -->` of a text file anew from results/NAME."""
    file = Path(file)
    text = read_marked_text(file, "Name the file that holds the tables.")
    write_text(file, renewed(text, Path(results)))


def renewed(text: str, results: Path) -> str:
    if not _BLOCK.search(text):
        raise UserError(
            "There is no table in it to renew: mark the place with <!-- results: NAME --> and <!-- /results -->."
        )
    return _BLOCK.sub(lambda found: found[1] + results_table(results / found[2]) + found[3], text)
