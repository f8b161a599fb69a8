"""A sheet of dreams that a person looks at: a row for each class."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

COLUMNS = 12
TILE = 48  # pixels a side, about, to which small images are enlarged
ROWS = 100

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def draw_sheet(
    class_names: Sequence[str],
    rows: Sequence[tuple[Tensor, Tensor]],
    columns: int,
    size: int,
    confidences: bool = False,
) -> bytes:
    """A PNG. `rows` has for each class uint8 images [n, channels, size, size], and how sure the model is of each.

    An empty row stands where there are none. `confidences`: they are written below each image.
    """
    side = size * max(1, TILE // size)
    gap, margin = 2, 8
    font, small = _font(14), _font(10)
    names = [_drawable(name, number, font) for number, name in enumerate(class_names[:ROWS], start=1)]
    left = max(int(font.getlength(name)) for name in names) + 2 * margin
    height = side + gap + (14 if confidences else 0)
    width = left + columns * (side + gap) + margin
    sheet = Image.new("RGB", (width, len(names) * height + 2 * margin), "white")
    draw = ImageDraw.Draw(sheet)
    for label, name in enumerate(names):
        top = margin + label * height
        draw.text((margin, top + side // 2), name, fill="black", font=font, anchor="lm")
        images, confidence = rows[label]
        for column, (image, sure) in enumerate(zip(images, confidence.tolist(), strict=True)):
            array = image.expand(3, -1, -1).permute(1, 2, 0).numpy()
            picture = Image.fromarray(np.ascontiguousarray(array)).resize((side, side), Image.Resampling.NEAREST)
            across = left + column * (side + gap)
            sheet.paste(picture, (across, top))
            if confidences:
                draw.text((across + side // 2, top + side), f"{100 * sure:.0f} %", "#555555", small, anchor="ma")
        if confidences and not len(images):
            draw.text((left, top + side // 2), "nothing dreamed", "#999999", font, anchor="lm")
    buffer = io.BytesIO()
    sheet.save(buffer, format="PNG", compress_level=3)  # dreams hardly shrink further, however long one tries
    return buffer.getvalue()


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
