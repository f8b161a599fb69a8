"""The model card: what a person wants to know of a model before using it, in Markdown, with the ledger as a table.

Names of classes and folders come from anywhere, so they are written such that no renderer takes them for anything but
text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import yaml

from reverie.config.schema import ADOPTED
from reverie.data.class_names import DASH, brief
from reverie.errors import UserError, counted
from reverie.nets import count_parameters
from reverie.version import __version__

if TYPE_CHECKING:
    from reverie.model.folder import SavedModel

NAMED = 30  # classes of a step; the others are counted
# What a renderer may take for more than text.
TELLING = re.compile(r"(?<=www)\.|:(?! )|_|[^\w .:,;%()/'-]", re.IGNORECASE)
JOINER = "\u200d"  # of several emoji to one
HUB = {  # what the Hugging Face hub sorts and shows models by
    "library_name": "reverie",
    "pipeline_tag": "image-classification",
    "tags": ["image-classification", "continual-learning", "class-incremental-learning", "data-free", "reverie"],
}


def card(model: SavedModel) -> str:
    classifier, config = model.classifier, model.config
    shape = classifier.preprocessing
    head = ["---", yaml.safe_dump(HUB, sort_keys=False).rstrip(), "---", ""]
    about = [
        f"# A classifier of {counted(classifier.seen, 'class')}, made with reverie {__version__}",
        "",
        f"{plain(config.net.name)}, {count_parameters(classifier):,} parameters; {_taught(model)}.",
        f"Input: {shape.size}×{shape.size} pixels, {shape.channels} channel(s), scaled to 0..1, then (x - mean) / "
        f"deviation with mean {list(shape.mean)} and deviation {list(shape.deviation)}.",
        "",
        f"Classes, in the order in which they were learned: {_listed(classifier.class_names)}.",
        "",
        "```",
        "reverie predict THIS_FOLDER a.jpg b.jpg",
        "```",
        "",
    ]
    if model.rejection is not None:
        about += [f'With `--reject`, answers of a confidence below {model.rejection:.3f} are "none of these".', ""]
    return "\n".join([*head, *about, *_acceptance(model), *_ledger(model), ""])


def _taught(model: SavedModel) -> str:
    config = model.config
    if config.preset == ADOPTED:
        return "adopted as somebody else trained it, and taught nothing since"
    return f"learned last with the method `{config.method}`, recipe `{config.recipe}`, seed {config.seed}"


def plain(text: Any) -> str:
    """Any text as text: it cannot end a table's cell, break a line, turn it around, or be taken for markup or HTML."""
    return TELLING.sub(lambda found: _written(found[0]), str(text))


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows)]
    return [*lines, ""]


def _written(character: str) -> str:
    if character.isascii() and character.isprintable():
        return f"&#{ord(character)};"
    if character.isspace():
        return " "
    if character == JOINER or unicodedata.category(character)[0] != "C":
        return character
    return f"(U+{ord(character):04X})"


def _acceptance(model: SavedModel) -> list[str]:
    if model.acceptance is None:
        return []
    from reverie.model.acceptance import Acceptance

    try:
        report = Acceptance.from_dict(model.acceptance).markdown()
    except UserError:  # of another version
        report = "See `acceptance.json`."
    return ["## Acceptance of the last step", "", report, ""]


def _ledger(model: SavedModel) -> list[str]:
    header = ["step", "date", "source", "classes", "images seen", "fingerprint of the files", "kept", "not kept"]
    rows = [_step(number, entry) for number, entry in enumerate(model.ledger, start=1)]
    lines = [
        "## Ledger",
        "",
        "What this model was made from, and what was kept of it. `ledger.json` has it in full.",
        "",
    ]
    lines += table(header, rows)
    if model.lineage:
        lines += ["Extended from the models (oldest first):", "", *(f"- `{digest}`" for digest in model.lineage), ""]
    return lines


def _step(number: int, entry: Mapping[str, Any]) -> list[str]:
    renamed = [f"{old} → {new}" for old, new in entry.get("renamed", {}).items()]
    refined = [f"more of {name}" for name in entry.get("refined", ())]
    classes = _listed([*entry.get("classes", ()), *entry.get("removed", ()), *renamed, *refined])
    return [
        str(number),
        plain(str(entry.get("date", DASH))[:10]),
        plain(f"{entry.get('source', DASH)}" + (f", weights {entry['weights']}" if "weights" in entry else "")),
        f"{plain(entry['action'])}: {classes}" if "action" in entry else classes,
        _images(entry),
        plain(entry.get("fingerprint", DASH)),
        _kept(entry),
        plain(", ".join(entry.get("not_kept", ())) or DASH),
    ]


def _images(entry: Mapping[str, Any]) -> str:
    if "images_seen" not in entry:
        return DASH
    held_out = sum(entry.get("held_out", {}).values())
    return f"{entry['images_seen']:,}" + (f" and {held_out:,} held out" if held_out else "")


def _kept(entry: Mapping[str, Any]) -> str:
    """Bytes by kind, and how many images."""
    if "kept" not in entry:
        return f"{plain(entry['keeps'])} ({entry['kept_bytes']:,} bytes)" if "keeps" in entry else DASH
    kinds = [f"{plain(kind)} {size:,} bytes" for kind, size in entry["kept"].items()]
    return "; ".join([*kinds, f"{entry.get('images_kept', 0):,} images"])


def _listed(names: Sequence[str]) -> str:
    return brief(names, NAMED, plain) or DASH
