"""Every setting there is, from the typed configuration: for people as a table, for editors as a JSON schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reverie.config.choices import RECIPES
from reverie.config.schema import SECTIONS, Config
from reverie.errors import UserError
from reverie.methods import find_method, methods_that_load
from reverie.system.files import read_marked_text, write_text
from reverie.system.records import described, schema_of
from reverie.text import markdown_table

_BLOCK = re.compile(r"(<!-- settings: (\w+) -->\n).*?(<!-- /settings -->)", re.DOTALL)


@dataclass(frozen=True)
class SettingInfo:
    key: str  # such as train.epochs
    default: Any
    allowed: str  # what it may be, in words
    about: str
    method: str = ""  # whose option it is

    @property
    def default_text(self) -> str:
        """As it would be written in YAML."""
        return self.default if isinstance(self.default, str) else json.dumps(self.default)


def list_settings() -> list[SettingInfo]:
    """Every key that settings and files can change, with its default; the options of methods at the end."""
    whole = schema_of(Config)
    found = [
        info
        for section in SECTIONS
        for info in _keys(f"{section}.", whole["$defs"][whole["properties"][section]["$ref"].rpartition("/")[2]], whole)
    ]
    found += _keys("", {"properties": {"keep": whole["properties"]["keep"]}}, whole)
    for method in methods_that_load():
        schema = schema_of(find_method(method).Options)
        found += _keys("method.", schema, schema, method)
    return found


def _keys(prefix: str, section: Any, whole: Any, method: str = "") -> list[SettingInfo]:
    return [
        SettingInfo(
            f"{prefix}{name}", schema.get("default"), described(schema, whole), schema.get("description", ""), method
        )
        for name, schema in section.get("properties", {}).items()
    ]


def settings_schema() -> dict[str, Any]:
    """A JSON schema of a preset file, by which an editor completes and checks it."""
    whole = schema_of(Config)
    options = {method: schema_of(find_method(method).Options) for method in methods_that_load()}
    sections: dict[str, Any] = {name: whole["properties"][name] for name in (*SECTIONS, "keep")}
    by_method = {name: _own_options(schema) for name, schema in options.items()}
    of_any = {"method": {"anyOf": [*by_method.values()]}}
    about = {"type": "string", "description": "one line, for people"}
    extends = {"type": "string", "description": "a preset's name, or another file"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A reverie preset",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "about": about,
            "extends": extends,
            **sections,
            **of_any,
            "recipes": _named(dict.fromkeys(RECIPES, sections | of_any)),
            "methods": _named({name: sections | {"method": own} for name, own in by_method.items()}),
        },
        "$defs": whole["$defs"],
    }


def _own_options(schema: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": schema.get("properties", {})}


def _named(blocks: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            name: {"type": "object", "additionalProperties": False, "properties": sections}
            for name, sections in blocks.items()
        },
    }


def settings_tables() -> dict[str, str]:
    """The tables of docs/settings.md in Markdown: of all keys, and of the methods' options."""
    every = list_settings()
    keys = [[f"`{info.key}`", *_cells(info)] for info in every if not info.method]
    options = [[f"`{info.method}`", f"`{info.key}`", *_cells(info)] for info in every if info.method]
    header = ["key", "default", "it is", "what it does"]
    return {
        "keys": markdown_table(header, keys, numbers=False),
        "methods": markdown_table(["method", *header], options, numbers=False),
    }


def _cells(info: SettingInfo) -> Iterable[str]:
    return [f"`{info.default_text}`", info.allowed, info.about]


def renew_settings_page(file: Path | str) -> None:
    """Make the tables of a page anew, between `<!-- settings: keys -->` and `<!-- /settings -->`; and `methods`."""
    file = Path(file)
    text = read_marked_text(file, "Name the page that holds the tables.")
    write_text(file, renewed_settings(text))


def renewed_settings(text: str) -> str:
    tables = settings_tables()
    if not _BLOCK.search(text):
        raise UserError(
            "There is no table in it to renew: mark the place with <!-- settings: keys --> and <!-- /settings -->."
        )
    return _BLOCK.sub(lambda found: found[1] + tables[found[2]] + found[3] if found[2] in tables else found[0], text)
