"""Features of a run, kept on wish (`keep=[features]`): enough to try other maps and heads without training again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from reverie.data.stream import Stream, Task
from reverie.engine.observer import Observer
from reverie.engine.phase import Phase, Stage
from reverie.errors import UserError, explaining
from reverie.learner.task_learner import TaskLearner
from reverie.methods.dreamer import DreamMaker
from reverie.methods.seen_features import fixed_features_of, see_dreams, see_images
from reverie.methods.statistics_replay import dreams_for_map
from reverie.nets.class_statistics import ClassStatistics
from reverie.nets.classifier import Classifier
from reverie.nets.fixed_evidence import FixedView
from reverie.nets.transport import SeenByBoth
from reverie.system.files import write_bytes
from reverie.text import first_line

FEATURES = "features.safetensors"


@dataclass(frozen=True)
class KeptFixed:
    """Fixed features of one task: of its new images beside what the network makes of them, and of test images.

    `test` are the test images of the task's new classes, `means` these classes' means.
    """

    view: FixedView
    means: Tensor
    test: Tensor


@dataclass(frozen=True)
class KeptFeatures:
    """Of one task, by the network after it.

    `true` has the statistics of all classes so far, measured on their training images, which no method could do.
    `images` are the new ones and `dreams` those of old classes, both by the network before and after; none of either in
    a first task, nor where a method has no teacher, or no dreamer. What earlier versions wrote has no fixed features.
    """

    true: ClassStatistics
    test: Tensor
    test_labels: Tensor
    images: SeenByBoth | None = None
    dreams: SeenByBoth | None = None
    trained: Tensor | None = None  # what the training head answers for each test image
    fixed: KeptFixed | None = None

    def write(self, file: Path) -> None:
        tensors = {f"true.{name}": value for name, value in self.true.state_dict().items()}
        tensors |= {"test": self.test, "test_labels": self.test_labels}
        tensors |= {} if self.trained is None else {"trained": self.trained}
        for name, seen in (("images", self.images), ("dreams", self.dreams)):
            if seen is not None:
                tensors |= {f"{name}.before": seen.before, f"{name}.after": seen.after}
                tensors |= {} if seen.labels is None else {f"{name}.labels": seen.labels}
                tensors |= {} if seen.fixed is None else {f"{name}.fixed": seen.fixed.half()}
        if self.fixed is not None:
            view = self.fixed.view
            tensors |= {"images.after": view.features, "images.labels": view.labels, "views": torch.tensor(view.views)}
            fixed = {"images.fixed": view.fixed, "fixed.means": self.fixed.means, "fixed.test": self.fixed.test}
            tensors |= {name: part.half() for name, part in fixed.items()}  # they are no more exact
        write_bytes(file, safetensors.torch.save({name: value.contiguous() for name, value in tensors.items()}))

    @classmethod
    @explaining("read", "Change its permissions, or make the run anew in another folder.")
    def read(cls, file: Path) -> KeptFeatures:
        try:
            tensors = safetensors.torch.load(file.read_bytes())
            true = {name.removeprefix("true."): tensors[name] for name in tensors if name.startswith("true.")}
            made = cls(
                ClassStatistics.from_state(true),
                tensors["test"],
                tensors["test_labels"],
                _seen(tensors, "images"),
                _seen(tensors, "dreams"),
                tensors.get("trained"),
                _fixed(tensors),
            )
            made.check()
        except OSError:
            raise
        except Exception as error:  # a damaged file can fail in any way
            raise UserError(f"{file} is damaged ({first_line(error)}). Make the run anew in another folder.") from None
        return made

    def check(self) -> None:
        """Raises ValueError where parts do not fit each other."""
        classes, features = self.true.means.shape
        for seen in (self.images, self.dreams):
            if seen is not None and (seen.before.shape != seen.after.shape or seen.before.shape[1] != features):
                raise ValueError("features before and after are not of the same images")
            beside = () if seen is None else (seen.labels, seen.fixed)
            if any(part is not None and len(part) != len(seen.before) for part in beside):  # type: ignore[union-attr]
                raise ValueError("labels or fixed features are not of the same images as the others")
        if self.test.shape != (len(self.test_labels), features):
            raise ValueError("features of test images and their labels do not fit")
        if len(self.test_labels) and not 0 <= int(self.test_labels.min()) <= int(self.test_labels.max()) < classes:
            raise ValueError("a test image is of no class")
        if self.trained is not None and self.trained.shape != self.test_labels.shape:
            raise ValueError("what the training head answers is not of these test images")
        if self.fixed is not None:
            view, width = self.fixed.view, self.fixed.view.fixed.shape[1]
            if not len(view.features) == len(view.fixed) == len(view.labels) or view.features.shape[1] != features:
                raise ValueError("fixed features are not of the same images as the others")
            new = self.test_labels >= classes - len(self.fixed.means)
            if view.views < 1 or self.fixed.means.shape[1:] != (width,) or self.fixed.test.shape != (new.sum(), width):
                raise ValueError("fixed features of new classes do not fit their test images")


def _seen(tensors: dict[str, Tensor], name: str) -> SeenByBoth | None:
    if f"{name}.before" not in tensors:
        return None
    fixed = tensors.get(f"{name}.fixed")
    return SeenByBoth(
        tensors[f"{name}.before"],
        tensors[f"{name}.after"],
        labels=tensors.get(f"{name}.labels"),
        fixed=None if fixed is None else fixed.float(),
        views=int(tensors["views"]) if name == "images" and "views" in tensors else 1,
    )


def _fixed(tensors: dict[str, Tensor]) -> KeptFixed | None:
    if "fixed.means" not in tensors:
        return None
    seen, views = [tensors[f"images.{name}"] for name in ("after", "fixed", "labels")], int(tensors["views"])
    view = FixedView(seen[0], seen[1].float(), seen[2], views)
    return KeptFixed(view, tensors["fixed.means"].float(), tensors["fixed.test"].float())


class FeatureKeeper(Observer):
    """Holds on to teacher and dreamer of a task, which the method lets go of at its end, until `keep` is called."""

    def __init__(self, learner: TaskLearner) -> None:
        self.learner = learner
        self.teacher: Classifier | None = None
        self.dreamer: DreamMaker | None = None

    def phase_begins(self, phase: Phase, done: int) -> None:
        self._take()

    def stage_begins(self, stage: Stage) -> None:
        self._take()

    def _take(self) -> None:
        method = self.learner.method
        self.teacher = getattr(method, "teacher", None)
        self.dreamer = method.dreamer

    def keep(self, task: Task, seen: Stream, folder: Path) -> None:
        """What the network that has learned `task` makes of all images of the classes `seen`."""
        method, flipped = self.learner.method, self.learner.config.augment.flip
        images, test = seen.union().images, seen.test()
        labels = images.labels.repeat(2 if flipped else 1)
        true = ClassStatistics.measure(method.features_of(images, mirrored=flipped), labels, len(seen.classes))
        new = see_images(method, seen[task.index].images, self.teacher, task.first_label, fixed=True)
        dreams = None
        if self.teacher is not None and self.dreamer is not None:
            dreams = see_dreams(method, self.dreamer, dreams_for_map(task.size), self.teacher, fixed=True)
        fixed = None
        if new.view is not None and new.fixed_means is not None:
            of_new = test.select((test.labels >= task.first_label).nonzero().flatten())
            fixed = KeptFixed(new.view, new.fixed_means, fixed_features_of(method, of_new))
        shown = method.features_of(test)
        by_both = new.some if self.teacher is not None else None
        kept = KeptFeatures(true, shown, test.labels, by_both, dreams, self._by_training_head(shown), fixed)
        kept.write(folder / FEATURES)

    @torch.no_grad()
    def _by_training_head(self, features: Tensor) -> Tensor | None:
        classifier = self.learner.classifier
        if classifier.head.rows < classifier.seen:  # it knows the first classes alone
            return None
        logits = classifier.logits(features.to(self.learner.device))[:, : classifier.seen]
        return logits.argmax(dim=1).cpu()
