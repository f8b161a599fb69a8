"""The figures of a diagnosis, drawn from its facts and from nothing else: a panel a run."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from reverie.diagnosis.records import Measure, RunDiagnosis
from reverie.report.plots import COLOURS

# Blue is old, light where real and dark where dreamed; red is new. Hatches and markers tell the same.
LOOKS = {"old": (COLOURS[2], "", "o"), "dreamed": (COLOURS[6], "///", "x"), "new": (COLOURS[4], "...", "^")}
MOST_NAMES = 40  # of classes that can be read on an axis


def draw_figures(made: Sequence[RunDiagnosis]) -> dict[str, bytes]:
    """PNG files by name. The runs share their dreams."""
    return {
        "mid": _distances(made, "mid", "MID from real {old}"),
        "mmd": _distances(made, "mmd", "unbiased squared MMD from real {old}"),
        "tsne": _tsne(made),
        "confusion": _confusion(made),
        "dreams": _dreams(made[0]),
    }


def _panels(count: int, height: float = 4.0, same_height: bool = False) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(5 * count, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(1, count, squeeze=False, sharey=same_height)[0])


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    return buffer.getvalue()


def _called(facts: RunDiagnosis) -> dict[str, str]:
    """The three kinds, by the number of the task."""
    task = facts.task
    old = "task 1" if task == 2 else f"tasks 1 to {task - 1}"
    return {"old": old, "dreamed": f"dreamed {old}", "new": f"real task {task}"}


def _distances(made: Sequence[RunDiagnosis], measure: Measure, label: str) -> bytes:
    """Histograms over sub-batches, on one scale for all runs; a line stands where all images together are."""
    figure, panels = _panels(len(made), same_height=True)
    values = [value for facts in made for batch in facts.distances(measure).batches.values() for value in batch]
    edges = np.linspace(min(values), max(max(values), min(values) + 1e-6), 61).tolist()
    for axes, facts in zip(panels, made, strict=True):
        names = _called(facts)
        for kind, (colour, hatch, _) in LOOKS.items():
            name = f"other real {names['old']}" if kind == "old" else names[kind]
            batches = facts.distances(measure).batches[kind]
            axes.hist(
                batches,
                edges,
                histtype="stepfilled",
                color=colour,
                hatch=hatch,
                alpha=0.7,
                edgecolor="white",
                label=name,
            )
            if kind != "old":
                axes.axvline(getattr(facts.distances(measure), kind), color=colour, linewidth=1.5)
        axes.set(xlabel=label.format(**names), ylabel=f"of {facts.batches.count} sub-batches")
        axes.set_title(facts.title, fontsize=11)
    panels[0].legend(frameon=False)
    return _png(figure)


def _tsne(made: Sequence[RunDiagnosis]) -> bytes:
    figure, panels = _panels(len(made), height=4.6)
    for axes, facts in zip(panels, made, strict=True):
        names, found = _called(facts), facts.tsne
        kinds, x, y = (np.asarray(values) for values in (found.kind, found.x, found.y))
        for kind, (colour, _, marker) in LOOKS.items():
            of = kinds == kind
            name = f"real {names['old']}" if kind == "old" else names[kind]
            axes.scatter(x[of], y[of], s=14, color=colour, marker=marker, linewidths=0.8, label=name)
        axes.set(xticks=[], yticks=[])
        axes.set_title(f"{facts.title}: features after task {facts.task}, t-SNE", fontsize=11)
    panels[0].legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.01), ncols=3, fontsize=9)
    return _png(figure)


def _confusion(made: Sequence[RunDiagnosis]) -> bytes:
    """Rows are true classes, columns named ones; white lines stand between old and new."""
    figure, panels = _panels(len(made), height=4.8)
    for axes, facts in zip(panels, made, strict=True):
        found = facts.confusion
        counts = np.asarray(found.counts, dtype=float)
        shares = 100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        picture = axes.imshow(shares, cmap="cividis", vmin=0, vmax=100)
        for line in (axes.axhline, axes.axvline):
            line(found.old_classes - 0.5, color="white", linewidth=1.5)
        axes.set(xlabel="named", ylabel="true class")
        if len(counts) <= MOST_NAMES:
            axes.set_xticks(range(len(counts)), found.class_names, rotation=90, fontsize=7, parse_math=False)
            axes.set_yticks(range(len(counts)), found.class_names, fontsize=7, parse_math=False)
        bias = 100 * facts.bias.towards_new
        axes.set_title(f"{facts.title}: bias towards new classes {bias:+.1f} points", fontsize=11)
    figure.colorbar(picture, ax=panels, label="% of the true class", shrink=0.8)
    return _png(figure)


def _dreams(facts: RunDiagnosis) -> bytes:
    """Which old classes the teacher sees in its dreams, and how sure it is of them."""
    found, (colour, hatch, _) = facts.dreams, LOOKS["dreamed"]
    figure, (left, right) = _panels(2)
    classes = np.arange(found.classes)
    left.bar(classes, 100 * np.asarray(found.shares), color=colour, edgecolor="white", hatch=hatch)
    left.axhline(100 / found.classes, color="black", linestyle="--", linewidth=1, label="a fair share")
    if len(classes) <= MOST_NAMES:
        left.set_xticks(classes, found.class_names, rotation=90, fontsize=8, parse_math=False)
    left.set(ylabel="% of dreams", title=f"{found.covered} of {found.classes} old classes are dreamed of")
    left.legend(frameon=False)
    right.hist(found.teacher_confidence, np.linspace(0, 1, 26).tolist(), color=colour, edgecolor="white", hatch=hatch)
    right.set(xlabel="the teacher's confidence", ylabel="dreams", title=f"mean confidence {found.confidence:.2f}")
    return _png(figure)
