"""A learner from a network that somebody else trained, by the network's name and a file of weights."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch

from reverie.config.choices import Library
from reverie.config.schema import ADOPTED, Config, DataConfig, NetConfig
from reverie.data.class_names import in_order
from reverie.errors import UserError, explaining
from reverie.learner.task_learner import TaskLearner
from reverie.methods.base import Keeps, count_bytes
from reverie.nets import external as library
from reverie.nets import surgery as nets
from reverie.nets.backbone import LIBRARIES
from reverie.nets.classifier import Classifier
from reverie.nets.weights import fingerprint, load_weights, read_weights
from reverie.system import provenance


def adopt_file(
    name: str,
    file: Path,
    classes: Sequence[str],
    family: Library | None = None,
    size: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    device: torch.device | str = "cpu",
) -> TaskLearner:
    """A learner from a network of torchvision or timm, and a file of weights for it. No code from the file is run.

    What is not said of the images is as it was for the library's own weights.
    """
    wanted = library.find_library(name if family is None else f"{family}/{name.rpartition('/')[2]}")
    if wanted.family not in LIBRARIES:
        raise UserError(f"Networks are adopted from {' and '.join(LIBRARIES)}. For one of your own, use reverie.adopt.")
    if (mean is None) != (std is None):
        raise UserError("Mean and std belong together: say both, or neither.")
    usual_size, usual_mean, usual_std = library.usual_preprocessing(wanted)
    size, mean, std = size or usual_size, mean or usual_mean, std or usual_std
    wanted = library.for_size(wanted, size)
    module = library.build(wanted, len(mean), len(classes))
    weights = read_weights(file)
    rows = weights.get(f"{library.head_of(module, wanted)}.weight")
    if rows is not None and len(rows) != len(classes):
        raise UserError(f"The weights in {file} are for {len(rows)} classes, but there are {len(classes)} class names.")
    load_weights(module, weights, file)
    learner = begin(nets.adopt(module, classes, mean, std, size, architecture=wanted), file.name, device)
    learner.ledger[-1]["fingerprint"] = fingerprint(file)
    return learner


@explaining("read", "Choose another file of class names.")
def read_names(file: Path) -> list[str]:
    """Class names in the order of the network's outputs: one a line, or in JSON a list or a mapping of labels."""
    try:
        text = file.read_text("utf-8-sig").strip()
        lines = [line.strip() for line in text.splitlines()]
        names = in_order(json.loads(text)) if text.startswith(("[", "{")) else lines
    except ValueError as error:
        raise UserError(f"{file} holds neither a name a line nor a list in JSON: {error}.") from None
    if not names or not all(isinstance(name, str) and name for name in names):
        raise UserError(f"{file} must hold a name for each class, one a line or as a list in JSON, and none empty.")
    return list(names)


def begin(classifier: Classifier, source: str, device: torch.device | str = "cpu") -> TaskLearner:
    """A learner whose first step was taken by somebody else; the ledger says so."""
    architecture, size = classifier.backbone.architecture, classifier.preprocessing.size
    config = Config(ADOPTED, "abd", data=DataConfig("folder", size), net=NetConfig(str(architecture)))
    learner = TaskLearner(config, classifier, device)
    weights, statistics = (count_bytes([*values]) for values in (classifier.parameters(), classifier.buffers()))
    learner.ledger.append(
        {
            "task": 1,
            "action": ADOPTED,
            "date": provenance.now(),
            "source": source,
            "classes": list(classifier.class_names),
            "images_seen": 0,
            "method": ADOPTED,
            "keeps": str(Keeps.NOTHING),
            "kept_bytes": 0,
            "classifier_bytes": weights + statistics,
            "kept": {"weights": weights, "statistics": statistics},
            "images_kept": 0,
        }
    )
    return learner
