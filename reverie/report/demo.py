"""The demo: five methods on embedded data, side by side, and everything there is to look at."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from reverie.config.choices import UPPER_BOUND
from reverie.engine.observer import Observer
from reverie.report.page import write_report
from reverie.report.plots import accuracy_plot
from reverie.runs.configure import configure
from reverie.runs.run import run
from reverie.system.arguments import as_seeds, renaming_argument
from reverie.system.files import write_bytes, write_text
from reverie.tables.formats import rows_as_markdown
from reverie.tables.rows import Row, rows_of

PRESET = "digits-5"
METHODS = (UPPER_BOUND, "base", "lwf", "deepinversion", "abd")  # others' Omega refers to the first


@dataclass(frozen=True)
class Demo:
    """The rows of the demo's table, and the files that were written. `print(demo)` shows the table."""

    rows: Sequence[Row]
    files: Sequence[Path]
    caption: str

    def as_dict(self) -> dict[str, Any]:
        return {"rows": [row.as_dict() for row in self.rows], "files": [str(file) for file in self.files]}

    def __str__(self) -> str:
        return f"{self.caption}\n\n{rows_as_markdown(self.rows)}"


@renaming_argument("folder", "out")
def run_demo(
    seeds: Sequence[int] = (0,),
    out: Path | str = "runs/demo",
    *,
    device: str = "auto",
    progress: bool | Console = False,
    observer: Observer | None = None,
    command: str = "",
) -> Demo:
    """Five methods learn handwritten digits, two classes at a time; needs no data and no GPU.

    Runs what is not finished yet. Writes a table, a plot of accuracy by task, a sheet of the digits that ABD dreamed,
    and a page that shows all of it and more.
    """
    folder, results, seeds = Path(out), [], as_seeds(seeds)
    for seed in seeds:
        for method in METHODS:
            config = configure(PRESET, method, seed=seed)
            place = folder / f"{method}-seed{seed}"
            results.append(run(config, place, device=device, progress=progress, observer=observer, command=command))
    rows = rows_of(results)
    which = f"seeds {', '.join(map(str, seeds))}: mean ± deviation" if len(seeds) > 1 else f"seed {seeds[0]}"
    curves = {row.title: [result.metrics.accuracy_after for result in row.results] for row in rows}
    files = [folder / name for name in ("table.md", "accuracy.png", "dreams.png", "page.html")]
    write_text(files[0], rows_as_markdown(rows))
    write_bytes(files[1], accuracy_plot(curves, "Handwritten digits, two classes at a time, no old image kept"))
    sheets = sorted((folder / f"abd-seed{seeds[0]}" / "tasks").glob("*/dreams.png"))
    shutil.copyfile(sheets[-1], files[2])
    write_report(folder, files[3], overwrite=True)
    return Demo(rows, files, f"{PRESET}, {which}, percent")
