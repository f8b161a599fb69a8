"""A person's own model: learned in a second, put together by hand, and with a folder that somebody has rewritten."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from reverie.data.images import MemoryImages
from reverie.data.preprocessing import Preprocessing
from reverie.learner.ledger import LedgerEntry
from reverie.learner.task_learner import TaskLearner
from reverie.model.acceptance import Acceptance
from reverie.model.folder import load_model
from reverie.model.job import learn_folder
from reverie.model.request import LearnRequest
from reverie.model.saved import SavedModel
from reverie.nets import make_backbone
from reverie.nets.backbone import Backbone
from reverie.nets.classifier import Classifier
from reverie.system.records import as_record
from tests.support.experiments import tiny_config

QUICK_STEP = ("train.epochs=2", "dream.steps=6", "dream.width=8", "train.batch_size=16")


# --- learned


def extended(world: Path, folder: str, to: Path, **given: Any) -> tuple[SavedModel, Acceptance]:
    """A folder of the `world` learned onto its old model: the model that was written, and the report on it."""
    given.setdefault("settings", QUICK_STEP)
    report = learn_folder(world / folder, to, old=world / "old", device="cpu", **given)
    return load_model(to), report


def quick_request(**given: Any) -> LearnRequest:
    """What `extended` asks for."""
    return LearnRequest(settings=QUICK_STEP, **given)


def assert_same_weights(one: SavedModel, other: SavedModel) -> None:
    """To the last bit."""
    ours, theirs = one.classifier.state_dict(), other.classifier.state_dict()
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert torch.equal(value, theirs[name]), name


# --- put together by hand

NAMES = ("ant", "bee", "cat", "dog")


class Pixels(Backbone):
    """Features are the pixels themselves, so that a test says what a model answers."""

    feature_dim = 16

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1)


def pixel_learner(classes: int, turned: int = 0) -> TaskLearner:
    """Answers the brightest of the first pixels; `turned` moves the answer on by so many classes."""
    classifier = Classifier(Pixels(), Preprocessing(4, (0.0,), (1.0,)))
    classifier.grow(NAMES[:classes])
    weight = torch.zeros(classes, 16)
    for row in range(classes):
        weight[row, (row - turned) % classes] = 4.0
    classifier.head.weight, classifier.head.bias = nn.Parameter(weight), nn.Parameter(torch.zeros(classes))
    return TaskLearner(tiny_config("base"), classifier)


def noise_images(count: int, labels: list[int], seed: int = 0) -> MemoryImages:
    """In which a model sees anything."""
    pixels = torch.randint(0, 256, (count, 1, 4, 4), generator=torch.Generator().manual_seed(seed))
    return MemoryImages(pixels.to(torch.uint8), torch.tensor(labels))


def showing(label: int, count: int = 1) -> Tensor:
    """Pixels in which everybody sees `label`."""
    pixels = torch.zeros(count, 1, 4, 4, dtype=torch.uint8)
    pixels.flatten(1)[:, label] = 255
    return pixels


def images_of(label: int, count: int) -> MemoryImages:
    """The same with their labels."""
    return MemoryImages(showing(label, count), torch.full((count,), label))


def dreams_of(*labels: int, each: int = 20) -> list[Tensor]:
    """The same as a dreamer gives them, part by part."""
    return [showing(label, each).float() / 255 for label in labels]


# --- a folder

AWKWARD = (
    "a|b",
    "`code`",
    "<script>alert(1)</script>",
    "🍎👩‍🌾",
    "../up/down",
    "two\nlines",
    " spaces ",
    "[x](y)",
    "ch\udce9rie",
)
REPORT = as_record(
    Acceptance,
    {
        "verdict": "look closer",
        "reasons": ["new class below 50%: a|b"],
        "rule": "a rule",
        "new": {"images": 4, "accuracy": 0.5, "by_class": [{"name": "a|b", "images": 4, "share": 0.5}]},
        "dreams": None,
        "check": None,
        "check_accuracy": None,
        "calibration": [{"on": "held-out new images", "before": None, "after": 0.1, "note": ""}],
        "calibration_bins": 15,
        "before": None,
        "after": {"parameters": 10, "bytes": 40, "image_ms": 1.0, "batch_ms": 2.0},
        "batch": 32,
        "device": "cpu",
    },
)


def awkward_model() -> SavedModel:
    """A model of classes with awkward names, untrained, with all that a folder can hold."""
    classifier = Classifier(make_backbone("resnet8", 1), Preprocessing(8, (0.5,), (0.25,)))
    classifier.grow(AWKWARD)
    entry = LedgerEntry(
        task=1,
        date="2026-03-01T12:00:00+00:00",
        source="photos | <b>2025</b>",
        classes=list(AWKWARD),
        images_seen=1200,
        held_out={"a|b": 300},
        fingerprint="0f" * 16,
        kept={"weights": 311_000, "statistics": 2_000},
        images_kept=0,
        not_kept=["images", "file names"],
    )
    config = tiny_config("abd", "net.name=resnet8")
    return SavedModel(classifier.eval(), config, [entry], ("ab" * 32,), 0.6, REPORT)


def rewrite_file(folder: Path, name: str, content: bytes) -> None:
    """As somebody would who knows of the digests: the file, its size and digest, and the digest of them all."""
    (folder / name).write_bytes(content)
    settings = json.loads((folder / "config.json").read_text())
    settings["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    rewrite_config(folder, settings)


def rewrite_config(folder: Path, settings: dict[str, Any]) -> None:
    """`config.json`, with a digest that is right."""
    rest = {key: value for key, value in settings.items() if key != "digest"}
    plain = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(plain.encode()).hexdigest()
    (folder / "config.json").write_text(json.dumps({**rest, "digest": digest}))
