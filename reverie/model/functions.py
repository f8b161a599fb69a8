"""Using a model as one call: for a model folder, or for a learner or a model that is loaded already."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from reverie.errors import UserError
from reverie.learner.gallery import Dreams
from reverie.model.evaluation import Evaluation
from reverie.model.inference import Prediction
from reverie.model.learner import Learner
from reverie.model.opening import AnyModel, open_model
from reverie.model.request import ABD
from reverie.system.files import check_target, write_bytes

Model = AnyModel


def _learner(model: Model, device: str) -> Learner:
    if isinstance(model, Learner):
        return model
    return Learner.of(open_model(model), device=device, method=ABD)  # which is never asked to learn


def predict(
    model: Model,
    images: Any,
    *,
    top: int = 1,
    reject: bool | float = False,
    device: str = "auto",
    progress: bool | Console = False,
) -> list[Prediction]:
    """Name what is on images: files, folders, CSV files, arrays, tensors or PIL images. See `Learner.predict`.

    for found in reverie.predict("flowers", ["a.jpg", "some_folder"], top=3, reject=True):
        print(found)
    """
    return _learner(model, device).predict(images, top=top, reject=reject, progress=progress)


def predict_proba(model: Model, images: Any, *, device: str = "auto") -> NDArray[np.float32]:
    """The probability of every class for every image, an array [images, classes]. See `Learner.predict_proba`."""
    return _learner(model, device).predict_proba(images)


def score(
    model: Model,
    images: Any,
    labels: Sequence[Any] | None = None,
    *,
    names: Sequence[str] | None = None,
    device: str = "auto",
) -> float:
    """The share of labelled images that a model names rightly. See `Learner.score`."""
    return _learner(model, device).score(images, labels, names=names)


def evaluate(
    model: Model,
    images: Any,
    *,
    names: Sequence[str] | None = None,
    new: Collection[str] | None = None,
    device: str = "auto",
    progress: bool | Console = False,
) -> Evaluation:
    """How often a model is right: by class, old and new, and what it mistakes for what. See `Learner.evaluate`."""
    return _learner(model, device).evaluate(images, names=names, new=new, progress=progress)


def dream(
    model: Model,
    out: Path | str | None = None,
    *,
    per_class: int = 8,
    steps: int | None = None,
    seed: int = 0,
    overwrite: bool = False,
    device: str = "auto",
    progress: bool | Console = False,
) -> Dreams:
    """What a model remembers: images of each class, made from its weights alone; written to `out` as a PNG.

    See `Learner.dream`. Raises UserError where `out` exists and is not to be overwritten.
    """
    file = None if out is None else Path(out)
    if file is not None:
        if file.suffix.lower() != ".png" and not file.is_dir():
            raise UserError(f"The picture is a PNG, so {file} should end in .png.")
        check_target(file, overwrite, Path(model) if isinstance(model, str | Path) else None)
    dreams = _learner(model, device).dream(per_class, steps=steps, seed=seed, progress=progress)
    if file is not None:
        write_bytes(file, dreams.sheet())
    return dreams
