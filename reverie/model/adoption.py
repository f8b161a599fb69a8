"""Taking in a network that somebody else trained, by the network's name and a file of weights."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from reverie.config.choices import ADOPTED, Library
from reverie.config.schema import Config, DataConfig, NetConfig
from reverie.data.class_names import names_by_label
from reverie.engine.device import find_device
from reverie.errors import UserError, explaining
from reverie.learner.ledger import LedgerEntry
from reverie.learner.progress import showing_progress
from reverie.learner.task_learner import TaskLearner
from reverie.methods.base import count_bytes
from reverie.methods.keeps import Keeps
from reverie.model.folder import save_model
from reverie.model.preflight import Preflight, run_preflight
from reverie.nets import count_parameters
from reverie.nets.backbone import LIBRARIES
from reverie.nets.classifier import Classifier
from reverie.nets.external import build_network, find_network, for_size, head_path, usual_preprocessing
from reverie.nets.surgery import adopt_module
from reverie.nets.weights import fingerprint, load_weights, read_weights
from reverie.system import provenance
from reverie.text import plural


@dataclass(frozen=True)
class Adopted:
    """What was taken in, and whether it can be dreamed from. `print(adopted)` says so."""

    classifier: Classifier
    preflight: Preflight | None

    def lines(self) -> list[str]:
        classifier, shape = self.classifier, self.classifier.preprocessing
        mean, deviation = (", ".join(f"{number:g}" for number in part) for part in (shape.mean, shape.deviation))
        taken = (
            f"{classifier.backbone.architecture}: {count_parameters(classifier):,} parameters, "
            f"{plural(classifier.seen, 'class')}. It takes images of {shape.size}×{shape.size} pixels, less {mean}, "
            f"divided by {deviation}; if that is not how it was trained, give `size`, `mean` and `std`."
        )
        return [taken, *(self.preflight.lines() if self.preflight else ())]

    def __str__(self) -> str:
        return "\n".join(self.lines())


def adopt_weights(
    name: str,
    weights: Path | str,
    to: Path | str,
    *,
    classes: Sequence[str] | Path | str,
    family: Library | None = None,
    size: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    check: bool = True,
    device: str = "auto",
    progress: bool | Console = False,
) -> Adopted:
    """Take in a network of torchvision or timm and a file of its weights, and write a model folder.

        reverie.adopt_weights("resnet18", "weights.pth", "mine", classes="names.txt", size=64)

    - `classes`: the names in the order of the network's outputs, or a file that holds them.
    - `size`, `mean`, `std`: how images were prepared in training; left out, as for the library's own weights.
    - `check`: dream for a short while, to see whether it can be done.

    No code from the file is run. Raises UserError where the weights are not of this network, or it cannot be adopted.
    """
    to = Path(to)
    if to.exists():
        raise UserError(f"{to} exists already. Choose another folder, so that nothing is lost.")
    where = find_device(device)
    names = read_class_names(Path(classes)) if isinstance(classes, str | Path) else list(classes)
    learner = adopted_learner(name, Path(weights), names, family, size, mean, std, where)
    found = None
    if check:
        with showing_progress(progress, to.name) as display:
            found = run_preflight(learner.classifier, where, observer=display)
        learner.ledger[-1] = learner.ledger[-1].replace(preflight=found.as_dict())
    save_model(learner, to)
    return Adopted(learner.classifier, found)


def adopted_learner(
    name: str,
    file: Path,
    classes: Sequence[str],
    family: Library | None = None,
    size: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    device: torch.device | str = "cpu",
) -> TaskLearner:
    """A learner from a network of torchvision or timm, and a file of weights for it."""
    wanted = find_network(name if family is None else f"{family}/{name.rpartition('/')[2]}")
    if wanted.family not in LIBRARIES:
        raise UserError(f"Networks are adopted from {' and '.join(LIBRARIES)}. For one of your own, use reverie.adopt.")
    if (mean is None) != (std is None):
        raise UserError("`mean` and `std` belong together: give both, or neither.")
    usual_size, usual_mean, usual_std = usual_preprocessing(wanted)
    size, mean, std = size or usual_size, mean or usual_mean, std or usual_std
    wanted = for_size(wanted, size)
    module = build_network(wanted, len(mean), len(classes))
    weights = read_weights(file)
    rows = weights.get(f"{head_path(module, wanted)}.weight")
    if rows is not None and len(rows) != len(classes):
        raise UserError(f"The weights in {file} are for {len(rows)} classes, but there are {len(classes)} class names.")
    load_weights(module, weights, file)
    learner = first_step_by_others(
        adopt_module(module, classes, mean, std, size, architecture=wanted), file.name, device
    )
    learner.ledger[-1] = learner.ledger[-1].replace(fingerprint=fingerprint(file))
    return learner


@explaining("read", "Choose another file of class names.")
def read_class_names(file: Path) -> list[str]:
    """Class names in the order of the network's outputs: one a line, or in JSON a list or a mapping of labels."""
    try:
        text = file.read_text("utf-8-sig").strip()
        lines = [line.strip() for line in text.splitlines()]
        names = names_by_label(json.loads(text)) if text.startswith(("[", "{")) else lines
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} holds neither a name a line nor a list in JSON: {error}.") from None
    if not names or not all(isinstance(name, str) and name for name in names):
        raise UserError(f"{file} must hold a name for each class, one a line or as a list in JSON, and none empty.")
    return list(names)


def first_step_by_others(classifier: Classifier, source: str, device: torch.device | str = "cpu") -> TaskLearner:
    """A learner whose first step was taken by somebody else; the ledger says so."""
    architecture, size = classifier.backbone.architecture, classifier.preprocessing.size
    config = Config(ADOPTED, "abd", data=DataConfig("folder", size), net=NetConfig(str(architecture)))
    learner = TaskLearner(config, classifier, device)
    weights, statistics = (count_bytes([*values]) for values in (classifier.parameters(), classifier.buffers()))
    learner.ledger.append(
        LedgerEntry(
            task=1,
            action=ADOPTED,
            date=provenance.now(),
            source=source,
            classes=list(classifier.class_names),
            images_seen=0,
            method=ADOPTED,
            keeps=str(Keeps.NOTHING),
            kept_bytes=0,
            classifier_bytes=weights + statistics,
            kept={"weights": weights, "statistics": statistics},
            images_kept=0,
        )
    )
    return learner
