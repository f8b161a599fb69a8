"""Pictures a person looks at: the dreams of each class, accuracy by task."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from reverie.data.augment import Normaliser

if TYPE_CHECKING:
    from reverie.dream import Dreamer

SHEET_COLUMNS = 12
SHEET_TILE = 48  # pixels a side, about, to which small images are enlarged
SHEET_ROWS = 100
# Told apart by colour-blind readers, too (Okabe and Ito), and by dashes and markers besides.
COLOURS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#D55E00", "#CC79A7", "#0072B2", "#F0E442")
MARKERS = "osD^vPX*"


def dream_sheet(dreamer: Dreamer) -> bytes:
    """A PNG: a row for each old class with dreams that the teacher takes for it; an empty row where there are none."""
    teacher = dreamer.teacher
    shape = teacher.preprocessing
    images, labels, confidence = dreamer.gallery(max(500, 4 * SHEET_COLUMNS * teacher.seen))
    pixels = Normaliser(shape.mean, shape.deviation, images.device).to_pixels(images).cpu()
    labels, confidence = labels.cpu(), confidence.cpu()
    rows = []
    for label in range(min(teacher.seen, SHEET_ROWS)):
        of_class = (labels == label).nonzero().flatten()
        surest = of_class[confidence[of_class].argsort(descending=True)][:SHEET_COLUMNS]
        rows.append((teacher.class_names[label], pixels[surest]))
    return _sheet(rows, shape.size)


def _sheet(rows: Sequence[tuple[str, torch.Tensor]], size: int) -> bytes:
    scale = max(1, SHEET_TILE // size)
    tile, gap, margin = size * scale, 2, 8
    font = ImageFont.load_default(size=14)
    text_width = max(int(font.getlength(name)) for name, _ in rows) + 2 * margin
    width = text_width + SHEET_COLUMNS * (tile + gap) + margin
    sheet = Image.new("RGB", (width, len(rows) * (tile + gap) + 2 * margin), "white")
    draw = ImageDraw.Draw(sheet)
    for row, (name, pixels) in enumerate(rows):
        top = margin + row * (tile + gap)
        draw.text((margin, top + tile // 2), name, fill="black", font=font, anchor="lm")
        for column, image in enumerate(pixels):
            array = image.expand(3, -1, -1).permute(1, 2, 0).numpy()
            picture = Image.fromarray(np.ascontiguousarray(array)).resize((tile, tile), Image.Resampling.NEAREST)
            sheet.paste(picture, (text_width + column * (tile + gap), top))
    return _png(sheet)


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


def _png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", compress_level=3)  # dreams hardly shrink further, however long one tries
    return buffer.getvalue()
