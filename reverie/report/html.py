"""A page as one HTML file that needs nothing else, from Jinja templates: every word that is not ours is escaped."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from datetime import UTC, datetime
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from PIL import Image

from reverie.report.blocks import Chart, Page
from reverie.version import __version__

LARGE_PICTURE = 300_000  # bytes; above, a sheet of dreams is packed with a little loss
LARGEST_SIDES = (1600, 16_000)  # of such a sheet, in pixels; the format allows no more than 16,383
_UNITS = {"": 1, "B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}
_NUMBER = re.compile(r"([+-]?[\d,]*\.?\d+(?:e[+-]?\d+)?)(?:\s*(B|kB|MB|GB))?(?:\s*±.*)?")


def whole_page(page: Page, watching: bool = False) -> str:
    """`watching`: the page asks its server for news."""
    drawn = page_body(page)
    script = _static("page.js")
    # No script but this one may run, and nothing may be loaded; a page that is watched may ask its own server.
    known = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src 'sha256-{known}'"
    return (
        _templates()
        .get_template("page.html")
        .render(
            page=page,
            policy=f"{policy}; connect-src 'self'" if watching else policy,
            style=_static("page.css"),
            script=script,
            body=drawn["html"],
            data={"watching": watching, **{key: value for key, value in drawn.items() if key != "html"}},
            made=f"reverie {__version__}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        )
    )


def is_page(file: Path) -> bool:
    """Is it a page that this or an earlier version wrote?"""
    return file.is_file() and b"<footer>Made by reverie " in file.read_bytes()


def page_body(page: Page) -> dict[str, Any]:
    """What changes while a run goes on: the page's inner HTML, and what is to be drawn into it, by name."""
    blocks = [block for chapter in page.chapters for part in chapter.parts for block in part.blocks]
    names = {id(block): f"block-{number}" for number, block in enumerate(blocks, start=1)}
    charts = {names[id(block)]: {"title": block.title, **block.drawing} for block in blocks if isinstance(block, Chart)}
    html = _templates().get_template("body.html").render(page=page, names=names)
    drawn = {"html": html, "figures": charts, "title": page.title}
    return drawn | {"version": hashlib.blake2b(json.dumps(drawn).encode(), digest_size=8).hexdigest()}


@cache
def _templates() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("reverie.report"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    made.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    made.filters |= {
        "kind": lambda block: type(block).__name__,
        "identity": id,
        "sort_value": _sort_value,
        "data_uri": _data_uri,
    }
    return made


def _sort_value(text: str) -> float | None:
    """Of a cell that is a number: the script sorts by it."""
    found = _NUMBER.fullmatch(text)
    return None if found is None else float(found[1].replace(",", "")) * _UNITS[found[2] or ""]


def _data_uri(png: bytes) -> str:
    kind, content = ("webp", _packed(png)) if len(png) > LARGE_PICTURE else ("png", png)
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


@lru_cache(maxsize=256)  # more than a page shows: one that is watched is made anew every other second
def _packed(png: bytes) -> bytes:
    packed, image = io.BytesIO(), Image.open(io.BytesIO(png)).convert("RGB")
    image.thumbnail(LARGEST_SIDES)
    image.save(packed, format="WEBP", quality=80)
    return packed.getvalue()


def _static(name: str) -> str:
    return resources.files("reverie.report").joinpath("static", name).read_text("utf-8")
