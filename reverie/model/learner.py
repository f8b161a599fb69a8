"""What a person holds in Python: a learner that speaks folders, names and reports."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from reverie.config.choices import KnownClass
from reverie.data.images import MemoryImages
from reverie.data.inputs import as_material, as_pixels, fitted, in_channels, labelled_pixels
from reverie.engine.loop import find_device
from reverie.errors import UserError
from reverie.learner.task_learner import LearnerObserver, TaskLearner
from reverie.methods import find_method
from reverie.methods.base import Keeps
from reverie.model import adoption
from reverie.model import folder as model_io
from reverie.model import step as extend
from reverie.model.defaults import parse_duration
from reverie.model.folder import SavedModel
from reverie.model.step import Wish
from reverie.nets import surgery as nets

if TYPE_CHECKING:
    from reverie.learner.gallery import Dreams
    from reverie.model.acceptance import Acceptance
    from reverie.model.inference import Answer, Evaluation

ABD = "abd"  # what new classes are learned with, unless somebody says otherwise


class Learner:
    """`learn` some classes, then others without the images of the first; `predict`, `evaluate`, `dream`, `save`.

    Whatever is not said is chosen from the images of the first step by the rules in docs/practice.md. `settings` are
    those of the command's `--set`, such as "train.lr=0.05".
    """

    def __init__(
        self,
        backbone: str | None = None,
        *,
        weights: Path | str | None = None,
        size: int | None = None,
        method: str = ABD,
        seed: int = 0,
        device: str = "auto",
        settings: Sequence[str] = (),
    ) -> None:
        self.device = find_device(device)
        self.method, self.seed = method, seed
        self.settings = (settings,) if isinstance(settings, str) else tuple(settings)
        self._first_settings = (f"net.name={backbone}",) * (backbone is not None) + (f"data.size={size}",) * bool(size)
        self._weights = Path(weights) if weights else None
        self._saved: SavedModel | None = None
        self._digest: str | None = None  # of the folder that holds the model as it is
        self._task_learner: TaskLearner | None = None

    @classmethod
    def of(
        cls,
        saved: SavedModel,
        *,
        device: str = "auto",
        digest: str | None = None,
        method: str | None = None,
        settings: Sequence[str] = (),
    ) -> Learner:
        """A learner that goes on from a model: with its method, unless that is not here, or needs more than a model."""
        if method is None:
            method = ABD
            with suppress(UserError):
                if find_method(saved.config.method).keeps == Keeps.NOTHING:
                    method = saved.config.method
        learner = cls(method=method, seed=saved.config.seed, device=device, settings=settings)
        learner._saved, learner._digest = saved, digest
        return learner

    @property
    def saved(self) -> SavedModel:
        """The model, its ledger, its lineage and the report on its last step."""
        if self._saved is None:
            raise UserError("This learner has not learned anything yet. Call learn(...) first.")
        return self._saved

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of all classes, in learned order."""
        return self._saved.classifier.class_names if self._saved else ()

    @property
    def task_learner(self) -> TaskLearner:
        """The classifier with its method and engine, as runs use it."""
        if self._task_learner is None:
            self._task_learner = TaskLearner.of(self.saved, self.device)
        return self._task_learner

    def learn(
        self,
        material: Any,
        *,
        names: Sequence[str] | None = None,
        budget: str | None = None,
        on_known_class: KnownClass = "error",
        check: Path | str | None = None,
        observer: LearnerObserver | None = None,
    ) -> Acceptance:
        """Learn the classes of a folder, of `(images, labels)`, or of a torch Dataset, beside those already known.

        Images are uint8, or floating-point numbers from 0 to 1, with the channels first or last; labels are names, or
        numbers into `names`. Some images of each class are held out; the report judges the model by them. If anything
        goes wrong, the learner is as it was before.
        """
        settings = self.settings if self._saved else (*self._first_settings, *self.settings)
        seconds = parse_duration(budget) if budget else None
        weights = None if self._saved else self._weights
        wish = Wish(self.method, self.seed, settings, weights, seconds, on_known_class)
        step = extend.plan(self._saved, as_material(material, names, wish.data.holdout), wish)
        if not isinstance(check, str | Path | None):
            raise UserError(f"Images to check the model on are a folder, not {type(check).__name__}.")
        to_check = extend.read_check(Path(check), step) if check else None
        if wish.budget:
            step = extend.within(wish.budget, step, self.device)
        self._saved, report = extend.learn(step, self.device, observer, to_check, self._lineage())
        self._digest = self._task_learner = None
        return report

    def rename(self, names: Mapping[str, str]) -> None:
        """Other names for classes, from old to new."""
        from reverie.model.classes import rename

        self._become(rename(self.saved, names))

    def remove(self, names: Collection[str]) -> None:
        """Never answer these classes again; docs/serving.md says what this means, and what it does not."""
        from reverie.model.classes import remove

        self._become(remove(self.saved, [names] if isinstance(names, str) else names))

    def _become(self, changed: SavedModel) -> None:
        if changed is not self._saved:
            self._saved = replace(changed, lineage=self._lineage())
            self._digest = self._task_learner = None

    def _lineage(self) -> tuple[str, ...]:
        """Of what is made from the model as it is."""
        before = self._saved.lineage if self._saved else ()
        return (*before, self._digest) if self._digest else before

    def predict(self, images: Any, *, top: int = 1, reject: bool | float = False) -> list[Answer]:
        """The names that fit best, for files, folders, or images: arrays, tensors or PIL images, one or many.

        With `reject`, answers less sure than the model's threshold, or the one given, are marked as rejected.
        """
        from reverie.model.inference import predict

        own = isinstance(reject, bool | np.bool_)
        if own and reject and self.saved.rejection is None:
            raise UserError("This model has no threshold of its own; say one, such as reject=0.7.")
        threshold = (self.saved.rejection if reject else None) if own else reject and float(reject)
        return predict(self.task_learner, self._shown(images), top=top, reject=threshold)

    def evaluate(
        self, images: Any, *, names: Sequence[str] | None = None, new: Collection[str] | None = None
    ) -> Evaluation:
        """Accuracy by class, old and new (those of the last step, unless said otherwise), and what is mistaken.

        For whatever `learn` takes: a folder of class folders, `(images, labels)`, or a torch Dataset.
        """
        from reverie.model.inference import evaluate

        if not isinstance(images, str | Path) and not _is_set(images):
            found = labelled_pixels(images, names)
            if strange := [name for name in found.names if name not in self.classes]:
                raise UserError(f"The model does not know {strange[0]!r}. It knows {', '.join(self.classes)}.")
            label = torch.tensor([self.classes.index(name) for name in found.names])
            images = MemoryImages(self._shown([*found.images]), label[found.labels])
        return evaluate(self.task_learner, images, new=new)

    def dream(self, per_class: int = 8, *, steps: int | None = None, seed: int = 0) -> Dreams:
        """What the model remembers: images made from its weights alone."""
        from reverie.learner.gallery import dream

        return dream(self.task_learner, per_class, steps=steps, seed=seed)

    def _shown(self, images: Any) -> Any:
        """Images in memory as the classifier takes them. Paths and sets are left to whoever reads them."""
        if _is_set(images):
            return images
        listed = list(images) if isinstance(images, list | tuple) else [images]
        if all(isinstance(item, str | Path) for item in listed):
            return images
        parts = [as_pixels(item) for item in listed]
        pixels = [image for part in parts for image in (part if part.ndim == 4 else [part])]
        if not pixels:
            raise UserError("There are no images.")
        shape, rows = self.saved.classifier.preprocessing, torch.arange(len(pixels))
        return in_channels(MemoryImages(fitted(pixels, shape.size), rows), shape.channels).read(rows)

    def save(self, folder: Path | str, overwrite: bool = False) -> None:
        """Write a model folder: weights, classes, preprocessing, a card, and the ledger."""
        self._digest = model_io.save(Path(folder), self.saved, overwrite)


def _is_set(images: Any) -> bool:
    """Something that speaks `reverie.data.images.Images`."""
    return all(hasattr(images, name) for name in ("labels", "shape", "read"))


def load(
    folder: Path | str,
    device: str = "auto",
    build: Callable[[], nn.Module] | None = None,
    *,
    method: str | None = None,
    settings: Sequence[str] = (),
) -> Learner:
    """A learner from a model folder, ready to predict or to learn more. No code from the folder is run.

    `build` makes the network of a model that was adopted from a module of one's own. `method` and `settings` are for
    what is learned from now on; left out, it is the method of the last step, or ABD where that one keeps more from
    step to step than a model folder holds.
    """
    saved, digest = model_io.read(Path(folder), build)
    return Learner.of(saved, device=device, digest=digest, method=method, settings=settings)


def adopt(
    module: nn.Module,
    classes: Sequence[str],
    mean: Sequence[float],
    std: Sequence[float],
    size: int,
    images: tuple[Sequence[float], Sequence[float]] | None = None,
    device: str = "auto",
    *,
    method: str | None = None,
    settings: Sequence[str] = (),
) -> Learner:
    """A learner that does what `module` does, and learns more. The module itself is left as it is.

    It must end in a linear layer that makes the logits of `classes`, and have BatchNorm layers. `mean` and `std` are
    what pixels between 0 and 1 are normalised by, `size` is the side of the images in pixels. `images` are mean and
    deviation of the training images, where they are known and others than those. `method` and `settings` are for
    what is learned from now on.
    Saved, it is loaded again with `reverie.load(folder, build=function)`: the function makes a module such as this.
    """
    classifier = nets.adopt(module, classes, mean, std, size, images)
    made = adoption.begin(classifier, type(module).__name__)
    saved = SavedModel(made.classifier, made.config, made.ledger)
    return Learner.of(saved, device=device, method=method, settings=settings)
