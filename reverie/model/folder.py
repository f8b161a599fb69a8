"""The saved model: safetensors and JSON, a card for people, and the ledger of what was seen and what was kept.

docs/model-folder.md says what stands in each file. Every file is listed in `config.json` with its size and SHA-256, and
`config.json` holds a digest of itself, so that damage and careless changes are noticed. Loading runs no code.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from reverie.config.schema import Config
from reverie.errors import UserError, explaining, first_line
from reverie.model.card import card
from reverie.nets import Architecture, make_backbone
from reverie.nets.classifier import Classifier, Preprocessing
from reverie.nets.weights import as_state_of
from reverie.system import files as disk
from reverie.version import __version__

SCHEMA = 2
WEIGHTS, SETTINGS, CARD, LEDGER = "model.safetensors", "config.json", "README.md", "ledger.json"
ACCEPTANCE = "acceptance.json"  # only where the model has been judged
FILES = (WEIGHTS, SETTINGS, CARD, LEDGER, ACCEPTANCE)

READABLE = "Change its permissions, or choose another model."

log = logging.getLogger("reverie")


@dataclass
class SavedModel:
    """What a model folder holds."""

    classifier: Classifier
    config: Config  # how it was trained last
    ledger: list[dict[str, Any]]  # an entry a step
    lineage: tuple[str, ...] = ()  # digests of the models it was extended from, oldest first
    rejection: float | None = None  # the confidence below which `predict --reject` answers "none of these"
    acceptance: dict[str, Any] | None = None  # the report of the last step


def save(folder: Path, model: SavedModel, overwrite: bool = False) -> str:
    """Write a model folder: all of it, or nothing. Only another model folder is ever overwritten. Gives its digest."""
    deed, left, room = "written", "Nothing was left there", "Make room"
    try:
        if folder.exists():
            deed, left, room = "changed", "It is as it was", f"Make room in {folder.resolve().parent}"
        _refuse_loss(folder, overwrite)
        return write(folder, model)
    except OSError as error:
        raise UserError(
            f"{folder} cannot be {deed}: {error.strerror or error}. {left}. {room}, or choose a place where you may "
            "write."
        ) from None


def write(folder: Path, model: SavedModel) -> str:
    """The same into a folder that is nobody's."""
    content = _content(model)

    def fill(scratch: Path) -> None:
        for name, raw in content.items():
            disk.write_bytes(scratch / name, raw)

    disk.write_folder(folder, fill)
    return str(json.loads(content[SETTINGS])["digest"])


def load(folder: Path, build: Callable[[], nn.Module] | None = None) -> SavedModel:
    """Read a model folder that is whole and unchanged; any other is refused. `build` makes a network of one's own."""
    return read(folder, build)[0]


def read(folder: Path, build: Callable[[], nn.Module] | None = None) -> tuple[SavedModel, str]:
    """The same, with the digest of what was read: another model may have taken the folder's place since."""
    settings = _settings(folder)
    try:
        raw = _checked(folder, settings)
    except UserError:
        if _settings(folder) == settings:
            raise
        return read(folder, build)  # not damaged: replaced, between one file and the next
    with _reading(folder, WEIGHTS):
        weights = safetensors.torch.load(raw[WEIGHTS])
    with _reading(folder, LEDGER):
        ledger = [dict(entry) for entry in json.loads(raw[LEDGER])]
    with _reading(folder, ACCEPTANCE):
        acceptance = dict(json.loads(raw[ACCEPTANCE])) if ACCEPTANCE in raw else None
    with _reading(folder, SETTINGS):
        config = _config(settings)
        classifier = _classifier(settings, config, weights, build)
        lineage, rejection = tuple(settings["lineage"]), settings["rejection"]
    return SavedModel(classifier.eval(), config, ledger, lineage, rejection, acceptance), _named(settings, raw)


def digest(folder: Path) -> str:
    """Names the model in the lineage of those that are made from it: equal only for equal files."""
    settings = _settings(folder)
    return _named(settings, _checked(folder, settings) if settings["schema"] == 1 else {})


# --- writing


def _content(model: SavedModel) -> dict[str, bytes]:
    """Every file of the folder."""
    state = model.classifier.state_dict()
    weights = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in state.items()
    }
    content = {
        WEIGHTS: safetensors.torch.save(weights),
        LEDGER: disk.json_bytes(model.ledger),
        CARD: disk.text_bytes(card(model)),
    }
    if model.acceptance is not None:
        content[ACCEPTANCE] = disk.json_bytes(model.acceptance)
    classifier = model.classifier
    settings: dict[str, Any] = {
        "schema": SCHEMA,
        "reverie": __version__,
        "architecture": classifier.backbone.architecture.as_dict(),
        "head_rows": classifier.head.rows,
        "classes": list(classifier.class_names),
        "preprocessing": classifier.preprocessing.as_dict(),
        "rejection": model.rejection,
        "lineage": list(model.lineage),
        "training": model.config.as_dict(),
        "files": {name: {"bytes": len(raw), "sha256": _sha256(raw)} for name, raw in sorted(content.items())},
    }
    return {**content, SETTINGS: disk.json_bytes({**settings, "digest": _digest(settings)})}


def _refuse_loss(folder: Path, overwrite: bool) -> None:
    """Whatever a person has there is worth more than what would take its place."""
    if not folder.exists():
        return
    if not overwrite:
        raise UserError(f"{folder} exists already. Choose another folder, so that nothing is lost.")
    others = sorted(entry.name for entry in folder.iterdir() if entry.name not in FILES) if folder.is_dir() else ["it"]
    if others:
        raise UserError(f"{folder} is not a model folder alone ({others[0]!r} is none of its files). Choose another.")
    if _somebody_wrote_in_the_card(folder):
        raise UserError(
            f"Somebody wrote in {folder / CARD}, and a new card would take its place. Choose another folder for the "
            "model, or move that file away."
        )


def _somebody_wrote_in_the_card(folder: Path) -> bool:
    if not (folder / CARD).exists():
        return False
    with suppress(UserError):  # damaged: nothing is known of its files
        written = _settings(folder).get("files", {}).get(CARD)
        return written is not None and _sha256((folder / CARD).read_bytes()) != written["sha256"]
    return False


# --- reading


def _settings(folder: Path) -> dict[str, Any]:
    """`config.json`, of this or an older schema, found to be as it was written."""
    with explaining("read", READABLE):
        if not (folder / SETTINGS).is_file():
            raise UserError(f"{folder} is not a model folder: it has no {SETTINGS}.")
    with _reading(folder, SETTINGS):
        written = _unchanged(folder, SETTINGS, None)
        settings = json.loads(written)
        schema, version = int(settings["schema"]), settings["reverie"]
    if schema > SCHEMA:
        raise UserError(f"{folder} was written by a newer reverie ({version}); this is {__version__}. Please upgrade.")
    if schema == 1:
        with _reading(folder, SETTINGS):
            net = {"family": "reverie", "name": settings["net"], "options": {}}
            added = {"architecture": net, "rejection": None, "lineage": [], "training": settings["run"]}
        return settings | added | {"digest": _sha256(written)}
    rest = {key: value for key, value in settings.items() if key != "digest"}
    if settings.get("digest") != _digest(rest):
        raise _damaged(folder, f"{SETTINGS} has been changed since it was written")
    return dict(settings)


def _checked(folder: Path, settings: Mapping[str, Any]) -> dict[str, bytes]:
    """The other files, whole and unchanged. The card is for people, who may write in it: that is only warned of."""
    listed = settings.get("files", {WEIGHTS: None, LEDGER: None} if settings["schema"] == 1 else {})
    for name in (WEIGHTS, LEDGER):
        if name not in listed:
            raise _damaged(folder, f"{SETTINGS} does not list {name}")
    raw = {name: _unchanged(folder, name, listed[name]) for name in FILES if name in listed and name != CARD}
    try:
        if CARD in listed:
            _unchanged(folder, CARD, listed[CARD])
    except UserError:
        if _settings(folder) == settings:  # else another model has just taken its place
            log.warning("%s is not as reverie wrote it. The model and its ledger are.", folder / CARD)
    return raw


def _unchanged(folder: Path, name: str, wanted: Mapping[str, Any] | None) -> bytes:
    with explaining("read", READABLE):
        if not (folder / name).is_file():
            raise _damaged(folder, f"{name} is missing")
        raw = (folder / name).read_bytes()
    if wanted is not None and len(raw) != wanted["bytes"]:
        raise _damaged(folder, f"{name} has {len(raw):,} bytes instead of {wanted['bytes']:,}")
    if wanted is not None and _sha256(raw) != wanted["sha256"]:
        raise _damaged(folder, f"{name} has been changed since it was written")
    return raw


def _config(settings: Mapping[str, Any]) -> Config:
    try:
        return Config.from_dict(settings["training"])
    except UserError as error:
        raise UserError(
            f"{error} The model was written by reverie {settings['reverie']}; this is {__version__}."
        ) from None


def _classifier(
    settings: Mapping[str, Any], config: Config, weights: dict[str, Tensor], build: Callable[[], nn.Module] | None
) -> Classifier:
    rows = settings["head_rows"]
    if len(weights["head.weight"]) != rows or rows < len(settings["classes"]):
        raise ValueError(f"{rows} rows for {len(settings['classes'])} classes")
    preprocessing = Preprocessing.from_dict(settings["preprocessing"])
    backbone = make_backbone(Architecture.from_dict(settings["architecture"]), preprocessing.channels, build=build)
    classifier = Classifier(backbone, preprocessing, config.seed, rows)
    classifier.grow(settings["classes"])
    state = as_state_of(classifier, weights)
    if build is not None and backbone.architecture.family == "own":
        _refuse_another_network(classifier, state)
    classifier.load_state_dict(state)
    return classifier


def _refuse_another_network(classifier: Classifier, state: Mapping[str, Tensor]) -> None:
    """The files are as they were written, so it is the function that makes something else now."""
    ours = {name: list(tensor.shape) for name, tensor in classifier.state_dict().items()}
    theirs = {name: list(tensor.shape) for name, tensor in state.items()}
    for name in (name for name in (*theirs, *ours) if theirs.get(name) != ours.get(name)):
        was, now = (shapes.get(name, "not there") for shapes in (theirs, ours))
        raise UserError(
            f"The function given as `build` does not build the network that was saved: "
            f"{name.removeprefix('backbone.body.')} was {was} and is {now}."
        )


@contextmanager
def _reading(folder: Path, name: str) -> Iterator[None]:
    """Whatever goes wrong with what stands in a file is the file's fault."""
    try:
        yield
    except (SafetensorError, LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise _damaged(folder, f"{name} is not what reverie writes ({first_line(error)})") from None


def _damaged(folder: Path, why: str) -> UserError:
    return UserError(f"The model in {folder} is damaged: {why}. Fetch it anew from where it came.")


def _sha256(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


def _named(settings: Mapping[str, Any], raw: Mapping[str, bytes]) -> str:
    """The settings name the other files by their digests; those of schema 1 do not."""
    if settings["schema"] > 1:
        return str(settings["digest"])
    return _sha256("".join([settings["digest"], *(_sha256(raw[name]) for name in (WEIGHTS, LEDGER))]).encode())


def _digest(settings: Mapping[str, Any]) -> str:
    """However the JSON is laid out."""
    return _sha256(json.dumps(settings, sort_keys=True, separators=(",", ":")).encode())
