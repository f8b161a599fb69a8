"""What a person holds in Python: a learner that speaks folders, names and reports."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import nn

from reverie.config.choices import KnownClass
from reverie.config.layers import Settings, setting_texts
from reverie.data.images import Images, MemoryImages
from reverie.data.inputs import as_inputs, as_pixels, fitted, in_channels, labelled_arrays
from reverie.deprecated import keywords_only
from reverie.engine.device import find_device
from reverie.engine.observer import Observer, Observers
from reverie.errors import UserError
from reverie.learner.gallery import Dreams, dream_of
from reverie.learner.progress import counting, showing_progress
from reverie.learner.task_learner import TaskLearner
from reverie.model.acceptance import Acceptance
from reverie.model.adoption import first_step_by_others
from reverie.model.budget import within_budget
from reverie.model.classes import remove_classes, rename_classes, trained_classes
from reverie.model.evaluation import Evaluation, evaluate_images, first_few
from reverie.model.folder import read_model, save_model
from reverie.model.inference import Prediction, class_probabilities, predict_images
from reverie.model.request import LearnRequest, method_to_begin_with, method_to_go_on_with, starting_weights
from reverie.model.saved import SavedModel
from reverie.model.step import learn_step, plan_step, read_check_images
from reverie.nets.surgery import adopt_module
from reverie.system.arguments import check_number
from reverie.text import did_you_mean, listing, plural

log = logging.getLogger("reverie")


class Learner:
    """`learn` some classes, then others without the images of the first; `predict`, `score`, `evaluate`, `save`.

        learner = reverie.Learner()
        print(learner.learn("photos/2024"))
        print(learner.predict(["a.jpg"])[0].names)
        learner.save("flowers")

    Whatever is not said is chosen from the images of the first step by the rules in docs/practice.md. `settings` are
    those of the command's `--set`, by key: {"train.lr": 0.05}.
    """

    def __init__(
        self,
        backbone: str | None = None,
        *,
        weights: Path | str | None = None,
        pretrained: bool = False,
        size: int | None = None,
        method: str | None = None,
        seed: int = 0,
        device: str = "auto",
        settings: Settings = (),
    ) -> None:
        self.device = find_device(device)
        self.method = method_to_begin_with(bool(weights or pretrained)) if method is None else method
        self.seed = seed
        self.settings = setting_texts(settings)
        first = {"net.name": backbone, "data.size": size}
        self._first_settings = setting_texts({key: value for key, value in first.items() if value is not None})
        self._weights, self._pretrained = Path(weights) if weights else None, pretrained
        self._saved: SavedModel | None = None
        self._digest: str | None = None  # of the folder that holds the model as it is
        self._task_learner: TaskLearner | None = None

    def __repr__(self) -> str:
        known = (
            f"{plural(len(self.classes), 'class')}: {listing(self.classes)}" if self.classes else "knows nothing yet"
        )
        return f"Learner({self.method!r}, {known})"

    @classmethod
    def of(
        cls,
        saved: SavedModel,
        *,
        device: str = "auto",
        digest: str | None = None,
        method: str | None = None,
        settings: Settings = (),
    ) -> Learner:
        """A learner that goes on from a model: with its method, unless that is not here, or needs more than a model."""
        method = method_to_go_on_with(saved) if method is None else method
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
            self._task_learner = self.saved.task_learner(self.device)
        return self._task_learner

    # --- learning

    def learn(
        self,
        images: Any,
        *,
        names: Sequence[str] | None = None,
        budget: str | float | None = None,
        on_known_class: KnownClass = "error",
        check: Path | str | None = None,
        progress: bool | Console = False,
        observer: Observer | None = None,
    ) -> Acceptance:
        """Learn the classes of a folder, a CSV file, `(images, labels)` or a torch Dataset, beside those known already.

        Images are uint8, or floating-point numbers from 0 to 1, with the channels first or last; labels are names, or
        numbers into `names`. Some images of each class are held out; the report judges the model by them. If anything
        goes wrong, the learner is as it was before. `learn_folder` does the same on disk, where it can be resumed.
        """
        if not isinstance(check, str | Path | None):
            raise UserError(f"`check` is a folder of images, not {type(check).__name__}.")
        with showing_progress(progress, self.method) as display:
            followers = Observers(observer, display)
            settings, weights = self.settings, None
            if self._saved is None:
                first = (*self._first_settings, *self.settings)
                settings, weights = starting_weights(first, self._weights, self._pretrained, followers.downloading)
            request = LearnRequest.of(self.method, self.seed, settings, weights, budget, on_known_class)
            inputs = as_inputs(images, names, request.data.holdout)
            step = plan_step(self._saved, inputs, request, followers.reading)
            to_check = read_check_images(Path(check), step, followers.reading) if check else None
            if request.budget:
                step = within_budget(request.budget, step, self.device)
            for line in step.lines():
                followers.decided(line)
            self._saved, report = learn_step(step, self.device, followers, to_check, self._lineage())
        self._digest = self._task_learner = None
        return report

    def rename(self, names: Mapping[str, str]) -> None:
        """Other names for classes, from old to new."""
        self._become(rename_classes(self.saved, names))

    def remove(self, names: Collection[str]) -> None:
        """Never predict these classes again; docs/serving.md says what this means, and what it does not."""
        self._become(remove_classes(self.saved, [names] if isinstance(names, str) else names))

    def _become(self, changed: SavedModel) -> None:
        if changed is not self._saved:
            self._saved = replace(changed, lineage=self._lineage())
            self._digest = self._task_learner = None

    def _lineage(self) -> tuple[str, ...]:
        """Of what is made from the model as it is."""
        before = self._saved.lineage if self._saved else ()
        return (*before, self._digest) if self._digest else before

    # --- predicting

    def predict(
        self,
        images: Any,
        *,
        top: int = 1,
        reject: bool | float = False,
        progress: bool | Console = False,
    ) -> list[Prediction]:
        """The names that fit best, for files, folders, or images: arrays, tensors or PIL images, one or many.

        With `reject`, predictions less sure than the model's threshold, or the one given, are marked as rejected.
        """
        with counting(progress, "reading images") as reading:
            return predict_images(
                self.task_learner, self._shown(images), top=top, reject=self._threshold(reject), progress=reading
            )

    def _threshold(self, reject: bool | float) -> float | None:
        if not isinstance(reject, bool | np.bool_):
            return check_number("reject", reject)
        if not reject:
            return None
        if self.saved.rejection is None:
            raise UserError("This model has no threshold of its own; say one, such as `reject=0.7`.")
        return self.saved.rejection

    def predict_proba(self, images: Any) -> NDArray[np.float32]:
        """The probability of every class for every image, an array [images, classes] in the order of `classes`.

        Raises UserError for a file that cannot be read, since each image must have its row.
        """
        found: NDArray[np.float32] = class_probabilities(self.task_learner, self._shown(images)).numpy()
        return found

    def score(self, images: Any, labels: Sequence[Any] | None = None, *, names: Sequence[str] | None = None) -> float:
        """The share of labelled images that is named rightly: of a folder, of images and labels, of a torch Dataset.

        Folders of no class and files that cannot be read are warned of, and do not count.
        """
        found = self.evaluate(images if labels is None else (images, labels), names=names)
        for line in first_few(found.left_aside()):
            log.warning("%s", line)
        return found.accuracy

    def evaluate(
        self,
        images: Any,
        *,
        names: Sequence[str] | None = None,
        new: Collection[str] | None = None,
        progress: bool | Console = False,
    ) -> Evaluation:
        """Accuracy by class, old and new (those of the last step, unless said otherwise), and what is mistaken.

        For whatever `learn` takes: a folder of class folders, a CSV file, `(images, labels)`, or a torch Dataset.
        """
        if not isinstance(images, str | Path) and not _is_set(images):
            found = labelled_arrays(images, names)
            if strange := [name for name in found.names if name not in self.classes]:
                hint = did_you_mean(strange[0], self.classes)
                raise UserError(f"The model does not know {strange[0]!r}.{hint} It knows {', '.join(self.classes)}.")
            label = torch.tensor([self.classes.index(name) for name in found.names])
            images = MemoryImages(self._shown([*found.images]), label[found.labels])
        with counting(progress, "reading images") as reading:
            return evaluate_images(self.task_learner, images, new=new, progress=reading)

    def dream(
        self,
        per_class: int = 8,
        *,
        steps: int | None = None,
        seed: int = 0,
        progress: bool | Console = False,
        observer: Observer | None = None,
    ) -> Dreams:
        """What the model remembers: images made from its weights alone. `dreams.sheet()` is a picture of them.

        A network that rests after the first step, as ACIL's does, remembers nothing of the classes of later ones: they
        are named in a warning, and left out.
        """
        known = trained_classes(self.saved)
        if known and (resting := [name for name in self.classes if name not in known]):
            log.warning(
                "The network was trained on %s alone, so there are no dreams of %s, which another head tells apart by "
                "its features.",
                listing(known, write=str),
                listing(resting, write=str),
            )
        if not known:
            raise UserError(
                "There is nothing to dream of: the network was trained on none of these classes. Those that it was "
                "trained on were removed, or it rests as its pretrained weights have it."
            )
        with showing_progress(progress, "dreams") as display:
            followers = Observers(observer, display)
            return dream_of(self.task_learner, per_class, known, steps=steps, seed=seed, observer=followers)

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
        shown: Images = in_channels(MemoryImages(fitted(pixels, shape.size), rows), shape.channels)
        return shown.read(rows)

    def save(self, folder: Path | str, overwrite: bool = False) -> None:
        """Write a model folder: weights, classes, preprocessing, a card, and the ledger.

        Another model folder is written over with `overwrite=True`. Raises UserError where there is something already.
        """
        self._digest = save_model(self.saved, folder, overwrite=overwrite)


def _is_set(images: Any) -> bool:
    """Something that speaks `reverie.data.images.Images`."""
    return all(hasattr(images, name) for name in ("labels", "shape", "read"))


def load(
    folder: Path | str,
    device: str = "auto",
    build: Callable[[], nn.Module] | None = None,
    *,
    method: str | None = None,
    settings: Settings = (),
) -> Learner:
    """A learner from a model folder, ready to predict or to learn more. No code from the folder is run.

    `build` makes the network of a model that was adopted from a module of one's own. `method` and `settings` are for
    what is learned from now on; left out, it is the method of the last step, or ABD where that one is not here, or
    keeps more from step to step than a model folder holds. Raises UserError where the folder is damaged, or no model.
    """
    saved, digest = read_model(Path(folder), build)
    return Learner.of(saved, device=device, digest=digest, method=method, settings=settings)


@keywords_only("classes", "mean", "std", "size", "images", "device")
def adopt(
    module: nn.Module,
    *,
    classes: Sequence[str],
    mean: Sequence[float],
    std: Sequence[float],
    size: int,
    images: tuple[Sequence[float], Sequence[float]] | None = None,
    device: str = "auto",
    method: str | None = None,
    settings: Settings = (),
) -> Learner:
    """A learner that does what `module` does, and learns more. The module itself is left as it is.

    It must end in a linear layer that makes the logits of `classes`, and have BatchNorm layers. `mean` and `std` are
    what pixels between 0 and 1 are normalised by, `size` is the side of the images in pixels. `images` are mean and
    deviation of the training images, where they are known and others than those. `method` and `settings` are for
    what is learned from now on.
    Saved, it is loaded again with `reverie.load(folder, build=function)`: the function makes a module such as this.
    """
    classifier = adopt_module(module, classes, mean, std, size, images)
    made = first_step_by_others(classifier, type(module).__name__)
    saved = SavedModel(made.classifier, made.config, made.ledger)
    return Learner.of(saved, device=device, method=method, settings=settings)
