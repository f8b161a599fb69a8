"""The model card: what a person wants to know of a model before using it, in Markdown, with the ledger as a table."""

from __future__ import annotations

from collections.abc import Sequence

import yaml

from reverie.config.choices import ADOPTED
from reverie.learner.ledger import LedgerEntry
from reverie.model.markdown import plain, table
from reverie.model.saved import SavedModel, needed_packages
from reverie.nets import count_parameters
from reverie.nets.classifier import Classifier
from reverie.text import DASH, listing, plural
from reverie.version import __version__

NAMED = 30  # classes of a step; the others are counted
HUB = {  # what the Hugging Face hub sorts and shows models by
    "library_name": "reverie",
    "pipeline_tag": "image-classification",
    "tags": ["image-classification", "continual-learning", "class-incremental-learning", "data-free", "reverie"],
}


def model_card(model: SavedModel) -> str:
    classifier, config = model.classifier, model.config
    shape = classifier.preprocessing
    head = ["---", yaml.safe_dump(HUB, sort_keys=False).rstrip(), "---", ""]
    about = [
        f"# A classifier of {plural(classifier.seen, 'class')}, made with reverie {__version__}",
        "",
        f"{plain(config.net.name)}, {count_parameters(classifier):,} parameters; {_origin(model)}.",
        f"Input: {shape.size}×{shape.size} pixels, {shape.channels} channel(s), scaled to 0..1, then (x - mean) / "
        f"deviation with mean {list(shape.mean)} and deviation {list(shape.deviation)}.",
        *_answered_by(classifier),
        "",
        f"Classes, in the order in which they were learned: {_names(classifier.class_names)}.",
        "",
        "```",
        "reverie predict THIS_FOLDER a.jpg b.jpg",
        "```",
        "",
    ]
    if model.rejection is not None:
        about += [f'With `--reject`, answers of a confidence below {model.rejection:.3f} are "none of these".', ""]
    return "\n".join([*head, *about, *_acceptance(model), *_ledger(model), ""])


def _answered_by(classifier: Classifier) -> list[str]:
    """The head that answers, where it is not the one that was trained, and packages of other people."""
    head, needed = classifier.answering_head, needed_packages(classifier)
    lines = [f"A head of the kind `{head.name}`, computed from the network's features, answers."] if head else []
    for package in dict.fromkeys(needed.values()):
        parts = ", ".join(what for what, its in needed.items() if its == package)
        lines.append(f"Needed besides reverie: the package {plain(package or DASH)} ({plain(parts)}).")
    return lines


def _origin(model: SavedModel) -> str:
    config = model.config
    if config.preset == ADOPTED:
        return "adopted as somebody else trained it, and taught nothing since"
    return f"learned last with the method `{config.method}`, recipe `{config.recipe}`, seed {config.seed}"


def _acceptance(model: SavedModel) -> list[str]:
    if model.acceptance is None:
        return []
    return ["## Acceptance of the last step", "", model.acceptance.markdown(), ""]


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


def _step(number: int, entry: LedgerEntry) -> list[str]:
    renamed = [f"{old} → {new}" for old, new in (entry.renamed or {}).items()]
    refined = [f"more of {name}" for name in entry.refined or ()]
    classes = _names([*(entry.classes or ()), *(entry.removed or ()), *renamed, *refined])
    weights = f", weights {entry.weights}" if entry.weights else ""
    return [
        str(number),
        plain((entry.date or DASH)[:10]),
        plain(f"{entry.source or DASH}{weights}"),
        f"{plain(entry.action)}: {classes}" if entry.action else classes,
        _images(entry),
        plain(entry.fingerprint or DASH),
        _kept(entry),
        plain(", ".join(entry.not_kept or ()) or DASH),
    ]


def _images(entry: LedgerEntry) -> str:
    if entry.images_seen is None:
        return DASH
    held_out = sum((entry.held_out or {}).values())
    return f"{entry.images_seen:,}" + (f" and {held_out:,} held out" if held_out else "")


def _kept(entry: LedgerEntry) -> str:
    """Bytes by kind, and how many images."""
    if entry.kept is None:
        return f"{plain(entry.keeps)} ({entry.kept_bytes or 0:,} bytes)" if entry.keeps else DASH
    kinds = [f"{plain(kind)} {size:,} bytes" for kind, size in entry.kept.items()]
    return "; ".join([*kinds, f"{entry.images_kept or 0:,} images"])


def _names(names: Sequence[str]) -> str:
    return listing(names, NAMED, plain) or DASH
