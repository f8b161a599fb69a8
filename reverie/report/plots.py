"""Plots as PNG files: accuracy by task."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import numpy as np

# Told apart by colour-blind readers, too (Okabe and Ito), and by dashes and markers besides.
COLOURS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#D55E00", "#CC79A7", "#0072B2", "#F0E442")
MARKERS = "osD^vPX*"


def accuracy_plot(curves: Mapping[str, Sequence[Sequence[float]]], title: str) -> bytes:
    """A PNG: accuracy over all classes seen, after each task. A curve is the mean of its runs, shaded: their range."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for number, (name, runs) in enumerate(curves.items()):
        values = 100 * np.asarray(runs, dtype=float)
        tasks = np.arange(1, values.shape[1] + 1)
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        axes.plot(tasks, values.mean(axis=0), color=colour, marker=marker, markersize=5, label=name)
        if len(values) > 1:
            axes.fill_between(tasks, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, linewidth=0)
    axes.set(xlabel="tasks learned", ylabel="accuracy on all classes seen (%)", ylim=(0, 102))
    axes.set_title(title, fontsize=11)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    return buffer.getvalue()
