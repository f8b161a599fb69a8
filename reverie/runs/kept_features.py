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
from reverie.methods.statistics_replay import dreams_for_map
from reverie.nets.class_statistics import ClassStatistics
from reverie.nets.classifier import Classifier
from reverie.nets.transport import SeenByBoth
from reverie.system.files import write_bytes
from reverie.text import first_line

FEATURES = "features.safetensors"


@dataclass(frozen=True)
class KeptFeatures:
    """Of one task, by the network after it.

    `true` has the statistics of all classes so far, measured on their training images, which no method could do.
    `images` are the new ones and `dreams` those of old classes, both by the network before and after; none of either in
    a first task, nor where a method has no teacher, or no dreamer.
    """

    true: ClassStatistics
    test: Tensor
    test_labels: Tensor
    images: SeenByBoth | None = None
    dreams: SeenByBoth | None = None
    trained: Tensor | None = None  # what the training head answers for each test image

    def write(self, file: Path) -> None:
        tensors = {f"true.{name}": value for name, value in self.true.state_dict().items()}
        tensors |= {"test": self.test, "test_labels": self.test_labels}
        tensors |= {} if self.trained is None else {"trained": self.trained}
        for name, seen in (("images", self.images), ("dreams", self.dreams)):
            if seen is not None:
                tensors |= {f"{name}.before": seen.before, f"{name}.after": seen.after}
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
        if self.test.shape != (len(self.test_labels), features):
            raise ValueError("features of test images and their labels do not fit")
        if len(self.test_labels) and not 0 <= int(self.test_labels.min()) <= int(self.test_labels.max()) < classes:
            raise ValueError("a test image is of no class")
        if self.trained is not None and self.trained.shape != self.test_labels.shape:
            raise ValueError("what the training head answers is not of these test images")


def _seen(tensors: dict[str, Tensor], name: str) -> SeenByBoth | None:
    if f"{name}.before" not in tensors:
        return None
    return SeenByBoth(tensors[f"{name}.before"], tensors[f"{name}.after"])


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
        shown = method.features_of(test)
        KeptFeatures(
            true,
            shown,
            test.labels,
            self._of_new_images(seen[task.index], flipped),
            self._of_dreams(task.size),
            self._by_training_head(shown),
        ).write(folder / FEATURES)

    @torch.no_grad()
    def _by_training_head(self, features: Tensor) -> Tensor | None:
        classifier = self.learner.classifier
        if classifier.head.rows < classifier.seen:  # it knows the first classes alone
            return None
        logits = classifier.logits(features.to(self.learner.device))[:, : classifier.seen]
        return logits.argmax(dim=1).cpu()

    def _of_new_images(self, task: Task, flipped: bool) -> SeenByBoth | None:
        if self.teacher is None:
            return None
        method = self.learner.method
        before = method.features_of(task.images, self.teacher, flipped)
        return SeenByBoth(before, method.features_of(task.images, mirrored=flipped))

    def _of_dreams(self, images: int) -> SeenByBoth | None:
        if self.teacher is None or self.dreamer is None:
            return None
        networks = (self.teacher.eval(), self.learner.classifier.eval())
        found: tuple[list[Tensor], list[Tensor]] = ([], [])
        with torch.no_grad():
            for dreams, *_ in self.dreamer.gallery(dreams_for_map(images)):
                for network, parts in zip(networks, found, strict=True):
                    parts.append(network.features(dreams).float().cpu())
        return SeenByBoth(torch.cat(found[0]), torch.cat(found[1]))
