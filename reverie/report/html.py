"""A report as one HTML page that needs nothing else. Every word that is not ours goes through `escape`."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from html import escape
from importlib import resources
from string import Template
from typing import Any

from PIL import Image

from reverie.report.blocks import Block, Chapter, Figure, Part, Picture, Report, Table, Text
from reverie.version import __version__

LARGE_PICTURE = 300_000  # bytes; above, a sheet of dreams is packed with a little loss
LARGEST_SIDES = (1600, 16_000)  # of such a sheet, in pixels; the format allows no more than 16,383
_UNITS = {"": 1, "B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}
_NUMBER = re.compile(r"([+-]?[\d,]*\.?\d+(?:e[+-]?\d+)?)(?:\s*(B|kB|MB|GB))?(?:\s*±.*)?")


def whole_page(report: Report, watching: bool = False) -> str:
    """`watching`: the page asks its server for news."""
    drawn = body(report)
    facts = {"watching": watching, **drawn}
    del facts["html"]
    script = _file("page.js")
    # No script but this one may run, and nothing may be loaded; a page that is watched may ask its own server.
    known = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src 'sha256-{known}'"
    policy += "; connect-src 'self'" if watching else ""
    return Template(_file("page.html")).substitute(
        title=escape(report.title),
        policy=policy,
        style=_file("page.css"),
        script=script,
        body=drawn["html"],
        data=_embedded_json(facts),
        made=f"reverie {__version__}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
    )


def body(report: Report) -> dict[str, Any]:
    """What changes while a run goes on: the page's inner HTML, and what is to be drawn into it, by name."""
    page = _Page()
    html = "".join(page.chapter(chapter) for chapter in report.chapters)
    contents = ""
    if len(report.chapters) > 1:
        links = (f'<li><a href="#chapter-{n}">{escape(c.title)}</a></li>' for n, c in enumerate(report.chapters, 1))
        contents = f"<nav><ol>{''.join(links)}</ol></nav>"
    drawn = {"html": contents + html, "figures": page.figures, "title": report.title}
    return drawn | {"version": hashlib.blake2b(json.dumps(drawn).encode(), digest_size=8).hexdigest()}


class _Page:
    """A page being written. Numbers its chapters and blocks, so that a reader's place in them can be found again."""

    def __init__(self) -> None:
        self.figures: dict[str, Any] = {}
        self.chapters = self.blocks = 0

    def chapter(self, chapter: Chapter) -> str:
        self.chapters += 1
        tiles = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in chapter.tiles)
        lines = "".join(f"<li>{escape(line)}</li>" for line in chapter.missing)
        missing = (
            f'<aside class="missing"><strong>What is missing here</strong><ul>{lines}</ul></aside>' if lines else ""
        )
        return (
            f'<article id="chapter-{self.chapters}"><header><h1>{escape(chapter.title)}</h1>'
            f'<p class="about">{escape(chapter.about)}</p><dl class="tiles">{tiles}</dl>{missing}</header>'
            f"{''.join(map(self.part, chapter.parts))}</article>"
        )

    def part(self, part: Part) -> str:
        about = f'<p class="about">{escape(part.about)}</p>' if part.about else ""
        blocks = "".join(map(self.block, part.blocks))
        return f'<section><h2>{escape(part.heading)}</h2>{about}<div class="blocks">{blocks}</div></section>'

    def block(self, block: Block) -> str:
        self.blocks += 1
        name = f"block-{self.blocks}"
        if isinstance(block, Figure):
            return self._figure(name, block)
        if isinstance(block, Table):
            return f'<div class="wide">{_table(name, block)}</div>'
        if isinstance(block, Picture):
            return _picture(name, block)
        return _text(name, block)

    def _figure(self, name: str, figure: Figure) -> str:
        self.figures[name] = {"title": figure.title, **figure.drawing}
        about = f"<p>{escape(figure.about)}</p>" if figure.about else ""
        return (
            f'<figure id="{name}"><figcaption><h3>{escape(figure.title)}</h3>{about}</figcaption>'
            f'<div class="plot" data-figure="{name}"></div>'
            f'<details id="{name}-values"><summary>Values</summary>{_table(f"{name}-table", figure.table)}</details>'
            "</figure>"
        )


def _table(name: str, table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(title)}</th>' for title in table.header)
    rows = "".join(f"<tr>{_cells(row)}</tr>" for row in table.rows)
    return f'<div class="scroll"><table id="{name}"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _cells(row: Sequence[str]) -> str:
    """Numbers carry their value, by which the script sorts."""
    made = []
    for text in row:
        found = _NUMBER.fullmatch(text)
        value = f' data-value="{_value(found)}" class="number"' if found else ""
        made.append(f"<td{value}>{escape(text)}</td>")
    return "".join(made)


def _value(found: re.Match[str]) -> float:
    return float(found[1].replace(",", "")) * _UNITS[found[2] or ""]


def _picture(name: str, picture: Picture) -> str:
    about = f"{picture.title}. {picture.about}"
    return (
        f'<details id="{name}" class="picture" open><summary>{escape(picture.title)}</summary>'
        f'<p>{escape(picture.about)}</p><img alt="{escape(about)}" src="{_embedded_picture(picture.png)}"></details>'
    )


def _text(name: str, text: Text) -> str:
    return (
        f'<details id="{name}" class="wide"><summary>{escape(text.title)}</summary>'
        f"<pre>{escape(text.content)}</pre></details>"
    )


def _embedded_picture(png: bytes) -> str:
    kind, content = ("webp", _packed(png)) if len(png) > LARGE_PICTURE else ("png", png)
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


@lru_cache(maxsize=256)  # more than a page shows: one that is watched is made anew every other second
def _packed(png: bytes) -> bytes:
    packed, image = io.BytesIO(), Image.open(io.BytesIO(png)).convert("RGB")
    image.thumbnail(LARGEST_SIDES)
    image.save(packed, format="WEBP", quality=80)
    return packed.getvalue()


def _embedded_json(value: Any) -> str:
    """As it may stand inside a script element: nothing in it can end the element."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


def _file(name: str) -> str:
    return resources.files("reverie.report").joinpath("static", name).read_text("utf-8")
