"""`reverie demo`: five methods on embedded data, side by side."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from reverie.cli.progress import following
from reverie.learner.dream_sheet import accuracy_plot
from reverie.methods import UPPER_BOUND
from reverie.report import page as report
from reverie.runs import configure as experiment
from reverie.runs import run as runs
from reverie.system import files as disk
from reverie.tables import rows as tables
from reverie.tables.rows import Row

PRESET = "digits-5"
METHODS = (UPPER_BOUND, "base", "lwf", "deepinversion", "abd")  # others' Omega refers to the first


def run_demo(
    seeds: Sequence[int], out: Path, device: str, console: Console, command: str
) -> tuple[list[Row], list[Path]]:
    """Run what is not finished yet and print the table. The answer is its rows, and the files that were written."""
    results = []
    for seed in seeds:
        for method in METHODS:
            config = experiment.configure(PRESET, method, seed=seed)
            folder = out / f"{method}-seed{seed}"
            with following(console, f"{method} seed {seed}") as progress:
                results.append(runs.execute(config, folder, device=device, observer=progress, command=command))
    rows = tables.rows_of(results)
    which = f"seeds {', '.join(map(str, seeds))}: mean ± deviation" if len(seeds) > 1 else f"seed {seeds[0]}"
    table = Table(*tables.COLUMNS, title=f"{PRESET}, {which}, percent")
    for row in rows:
        table.add_row(*row.cells())
    console.print(table)
    curves = {row.title: [r["metrics"]["accuracy_after"] for r in row.results] for row in rows}
    files = [out / name for name in ("table.md", "accuracy.png", "dreams.png", "page.html")]
    disk.write_text(files[0], tables.markdown(rows))
    disk.write_bytes(files[1], accuracy_plot(curves, "Handwritten digits, two classes at a time, no old image kept"))
    sheets = sorted((out / f"abd-seed{seeds[0]}" / "tasks").glob("*/dreams.png"))
    shutil.copyfile(sheets[-1], files[2])
    report.write([out], files[3])
    return rows, files
