"""Files that a list names: a CSV file with the columns path and label, or lines of paths."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from reverie.errors import UserError, explaining
from reverie.text import listing, plural

SHOWN = 3  # files that a message names


def is_list(path: Path) -> bool:
    return path.suffix.lower() == ".csv" and not path.is_dir()


def files_by_label(file: Path) -> dict[str, list[Path]]:
    """The files of each class that a CSV file names, in sorted order. Its paths are relative to where it lies."""
    labels: dict[Path, str] = {}
    torn: dict[Path, str] = {}
    for name, label in _rows(file, ("path", "label")):
        path = file.parent / name
        if labels.setdefault(path, label) != label:
            torn[path] = f"{path} ({labels[path]!r}, {label!r})"
    if torn:
        shown = listing([*torn.values()], SHOWN, str)
        raise UserError(f"{file} gives {plural(len(torn), 'file')} more than one label: {shown}. Leave one of each.")
    refuse_missing([*labels], f" that {file} names")
    found: dict[str, list[Path]] = {}
    for path in sorted(labels):
        found.setdefault(labels[path], []).append(path)
    return found


def listed_files(file: Path) -> list[Path]:
    """The files that a CSV file names, in its order; labels, if it has any, are not looked at."""
    paths = [file.parent / name for (name,) in _rows(file, ("path",))]
    refuse_missing(paths, f" that {file} names")
    return paths


def refuse_missing(paths: Sequence[Path], where: str = "") -> None:
    """All of them at once, so that nobody mends one after the other."""
    missing = [path for path in paths if not path.exists()]
    if len(missing) == 1:
        raise UserError(f"There is no file or folder {missing[0]}{where and f',{where}'}.")
    if missing:
        files = listing([str(path) for path in missing], SHOWN, str)
        raise UserError(f"{len(missing)} of {len(paths)} files{where} are missing: {files}.")


@explaining("read", "Change its permissions, or choose another file.")
def _rows(file: Path, columns: Sequence[str]) -> list[list[str]]:
    """The values of these columns, without lines that are empty."""
    if not file.exists():
        raise UserError(f"There is no file {file}.")
    try:
        lines = file.read_text("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise UserError(f"{file} is not text in UTF-8. Save it as CSV in UTF-8.") from None
    header = lines[0] if lines else ""
    rows = csv.reader(lines, delimiter=";" if ";" in header and "," not in header else ",")
    names = [name.strip().lower() for name in next(rows, [])]
    if lacking := [name for name in columns if name not in names]:
        raise UserError(
            f"{file} has no column {lacking[0]!r}. Its first line names the columns, such as path,label; here it is "
            f"{header[:60]!r}."
        )
    found = []
    for row in rows:
        if not any(cell.strip() for cell in row):
            continue
        values = [row[names.index(name)].strip() if names.index(name) < len(row) else "" for name in columns]
        if not all(values):
            raise UserError(f"Line {rows.line_num} of {file} has no {columns[values.index('')]}.")
        found.append(values)
    if not found:
        raise UserError(f"{file} names no files.")
    return found
