"""Pictures a person looks at: the dreams of each class, accuracy by task."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw, ImageFont

if TYPE_CHECKING:
    from reverie.learner.gallery import Dreams

SHEET_COLUMNS = 12
SHEET_TILE = 48  # pixels a side, about, to which small images are enlarged
SHEET_ROWS = 100
# Told apart by colour-blind readers, too (Okabe and Ito), and by dashes and markers besides.
COLOURS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#D55E00", "#CC79A7", "#0072B2", "#F0E442")
MARKERS = "osD^vPX*"


def dream_sheet(dreams: Dreams, confidences: bool = False) -> bytes:
    """A PNG: a row for each class with what was dreamed of it, an empty row where that is nothing.

    `confidences`: below each dream stands how sure the model is of it.
    """
    size = dreams.pixels.shape[-1] * max(1, SHEET_TILE // dreams.pixels.shape[-1])
    gap, margin = 2, 8
    font, small = _font(14), _font(10)
    names = [_drawable(name, number, font) for number, name in enumerate(dreams.class_names[:SHEET_ROWS], start=1)]
    left = max(int(font.getlength(name)) for name in names) + 2 * margin
    height = size + gap + (14 if confidences else 0)
    width = left + dreams.per_class * (size + gap) + margin
    sheet = Image.new("RGB", (width, len(names) * height + 2 * margin), "white")
    draw = ImageDraw.Draw(sheet)
    for label, name in enumerate(names):
        top = margin + label * height
        draw.text((margin, top + size // 2), name, fill="black", font=font, anchor="lm")
        images, confidence = dreams.of(label)
        for column, (image, sure) in enumerate(zip(images, confidence.tolist(), strict=True)):
            array = image.expand(3, -1, -1).permute(1, 2, 0).numpy()
            picture = Image.fromarray(np.ascontiguousarray(array)).resize((size, size), Image.Resampling.NEAREST)
            across = left + column * (size + gap)
            sheet.paste(picture, (across, top))
            if confidences:
                draw.text((across + size // 2, top + size), f"{100 * sure:.0f} %", "#555555", small, anchor="ma")
        if confidences and not len(images):
            draw.text((left, top + size // 2), "nothing dreamed", "#999999", font, anchor="lm")
    return _png(sheet)


Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def _font(size: int) -> Font:
    """One that comes with matplotlib and has the letters of many languages; Pillow's own has those of English."""
    found = importlib.util.find_spec("matplotlib")
    file = Path(found.origin).parent / "mpl-data/fonts/ttf/DejaVuSans.ttf" if found and found.origin else Path()
    return ImageFont.truetype(str(file), size) if file.is_file() else ImageFont.load_default(size)


def _drawable(name: str, number: int, font: Font) -> str:
    """The name, or its number among the classes where the font would show boxes alone."""
    name = "".join(letter if letter.isprintable() else " " for letter in name)  # a line break has no place in a line
    box = bytes(font.getmask("\uffff"))
    strange = any(bytes(font.getmask(letter)) == box for letter in name if letter != " ")
    return f"class {number}" if strange else name


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
