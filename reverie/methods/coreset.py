"""The coreset, and the frame of all methods that keep one: a few images of each class seen, of fixed number in all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from reverie import seeding
from reverie.config import Config
from reverie.data.images import Images, MemoryImages, images_at_once
from reverie.data.stream import Task
from reverie.methods.base import Keeps, Method
from reverie.nets.classifier import Classifier

Selection = Literal["random", "nearest", "herding"]


class Coreset:
    """At most `size` images, as many of each class: class after class in learned order, the best of a class first.

    When classes arrive, the others lose images from the end. None is ever chosen anew, so all stay distinct.
    """

    def __init__(self, size: int, shape: tuple[int, int, int]) -> None:
        self.size = size
        self.classes = 0  # that it has been shared among
        self.images = MemoryImages(torch.empty(0, *shape, dtype=torch.uint8), torch.empty(0, dtype=torch.long))

    def __len__(self) -> int:
        return len(self.images)

    def admit(self, images: Images, classes: int, choose: Callable[[Images, int, int], Tensor]) -> None:
        """Share the room among `classes` classes, and take those of `images` in, unless they are there already.

        `choose(images, label, count)` gives the rows of at most `count` distinct images of one class, best first.
        """
        quotas = shares(self.size, classes)
        old = [_rows(self.images.labels, label)[: quotas[label]] for label in range(self.classes)]
        kept = self.images.select(_joined(old))
        new = []
        for label in range(self.classes, classes):
            rows = _rows(images.labels, label)
            if quotas[label] and len(rows):
                new.append(rows[choose(images.select(rows), label, quotas[label])])
        index = _joined(new)
        if len(index):
            pixels = torch.cat([kept.pixels, images.read(index)])
            kept = MemoryImages(pixels, torch.cat([kept.labels, images.labels[index]]))
        self.images, self.classes = kept, classes

    def state_dict(self) -> dict[str, Any]:
        return {"classes": self.classes, "pixels": self.images.pixels, "labels": self.images.labels}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.classes, self.images = state["classes"], MemoryImages(state["pixels"], state["labels"])


def shares(size: int, classes: int) -> list[int]:
    """Images of each class: equal shares, and what is left over goes one each to the most recent classes."""
    share, over = divmod(size, classes)
    return [share + (label >= classes - over) for label in range(classes)]


def nearest(features: Tensor, count: int) -> Tensor:
    """The rows nearest to the mean of all, nearest first."""
    return (features - features.mean(dim=0)).norm(dim=1).argsort(stable=True)[:count]


def herding(features: Tensor, count: int) -> Tensor:
    """One row after the other, each the one that brings the mean of those chosen closest to the mean of all (iCaRL)."""
    mean, total = features.mean(dim=0), torch.zeros_like(features[0])
    free = torch.zeros(len(features), dtype=features.dtype)  # infinite once a row is taken
    chosen: list[int] = []
    for number in range(1, min(count, len(features)) + 1):
        distance = (mean - (total + features) / number).norm(dim=1) + free
        best = int(distance.argmin())
        free[best] = torch.inf
        total += features[best]
        chosen.append(best)
    return torch.tensor(chosen)


class CoresetMethod(Method):
    """A method that keeps a coreset, filled when a task has been learned.

    A classifier that learned its classes elsewhere comes without one; the coreset then holds later classes only.
    """

    keeps = Keeps.CORESET
    selection: ClassVar[Selection]

    def __init__(self, classifier: Classifier, config: Config, device: torch.device) -> None:
        super().__init__(classifier, config, device)
        shape = classifier.preprocessing
        self.coreset = Coreset(config.coreset.size, (shape.channels, shape.size, shape.size))

    def remember(self, task: Task) -> None:
        """Take the task's classes into the coreset."""
        self.coreset.admit(task.images, self.total, self._choose)

    def end(self, task: Task) -> None:
        self.remember(task)
        super().end(task)

    def kept_images(self) -> int:
        return len(self.coreset)

    def _choose(self, images: Images, label: int, count: int) -> Tensor:
        if self.selection == "random":
            rng = seeding.generator(self.config.seed, "coreset", label)
            return torch.randperm(len(images), generator=rng)[:count]
        return (nearest if self.selection == "nearest" else herding)(self._features(images), count)

    @torch.no_grad()
    def _features(self, images: Images) -> Tensor:
        """Of the classifier as it is, at rest, for images as they are: not augmented."""
        self.classifier.eval()
        parts = [
            self.classifier.features(self.augment.normalise(images.read(index).to(self.device))).cpu()
            for index in torch.arange(len(images)).split(images_at_once(images.shape[1]))
        ]
        return torch.cat(parts).double()

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | ({"coreset": self.coreset.state_dict()} if self.coreset.classes else {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        if "coreset" in state:
            self.coreset.load_state_dict(state["coreset"])


def _rows(labels: Tensor, label: int) -> Tensor:
    return (labels == label).nonzero().flatten()


def _joined(parts: list[Tensor]) -> Tensor:
    return torch.cat([torch.empty(0, dtype=torch.long), *parts])
