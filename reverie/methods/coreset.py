"""The coreset, and the frame of all methods that keep one: a few images of each class seen, of fixed number in all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b
from itertools import islice
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from reverie import seeding
from reverie.config.schema import Config
from reverie.data.images import Images, MemoryImages
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

    def admit(self, images: Images, classes: int, rank: Callable[[Images, int], Iterable[int]]) -> None:
        """Share the room among `classes` classes, and take those of `images` in, unless they are there already.

        `rank(images, label)` gives the rows of all images of one class, best first. The same picture twice, from a copy
        of its file or in place of one that cannot be read, is taken once.
        """
        quotas = shares(self.size, classes)
        old = [_rows(self.images.labels, label)[: quotas[label]] for label in range(self.classes)]
        kept = [self.images.select(torch.cat(old))] if old else []
        for label in range(self.classes, classes):
            rows = _rows(images.labels, label)
            if quotas[label] and len(rows):
                its = images.select(rows)
                pixels = _first_distinct(its, rank(its, label), quotas[label])
                kept.append(MemoryImages(pixels, torch.full([len(pixels)], label)))
        if kept:
            self.images = MemoryImages(torch.cat([k.pixels for k in kept]), torch.cat([k.labels for k in kept]))
        self.classes = classes

    def state_dict(self) -> dict[str, Any]:
        return {"classes": self.classes, "pixels": self.images.pixels, "labels": self.images.labels}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.classes, self.images = state["classes"], MemoryImages(state["pixels"], state["labels"])


def _first_distinct(images: Images, ranked: Iterable[int], count: int) -> Tensor:
    """The pixels of the first `count` rows that differ, or of fewer if there are no more."""
    found: dict[bytes, Tensor] = {}
    rows = iter(ranked)
    while len(found) < count and (part := [*islice(rows, count - len(found))]):
        for pixels in images.read(torch.tensor(part)):
            found.setdefault(blake2b(pixels.numpy().tobytes()).digest(), pixels)
    return torch.stack([*found.values()])


def shares(size: int, classes: int) -> list[int]:
    """Images of each class: equal shares, and what is left over goes one each to the most recent classes."""
    share, over = divmod(size, classes)
    return [share + (label >= classes - over) for label in range(classes)]


def nearest(features: Tensor) -> Iterator[int]:
    """All rows, the nearest to their mean first."""
    yield from (features - features.mean(dim=0)).norm(dim=1).argsort(stable=True).tolist()


def herding(features: Tensor) -> Iterator[int]:
    """All rows, each the one that brings the mean of those chosen so far closest to the mean of all (iCaRL)."""
    mean, total = features.mean(dim=0), torch.zeros_like(features[0])
    free = torch.zeros(len(features), dtype=features.dtype)  # infinite once a row is taken
    for number in range(1, len(features) + 1):
        distance = (mean - (total + features) / number).norm(dim=1) + free
        best = int(distance.argmin())
        free[best] = torch.inf
        total += features[best]
        yield best


class CoresetMethod(Method):
    """A method that keeps a coreset, filled when a task has been learned.

    A classifier that learned its classes elsewhere comes without one; the coreset then holds later classes only.
    """

    keeps = Keeps.CORESET
    selection: ClassVar[Selection] = "random"

    def __init__(self, classifier: Classifier, config: Config, device: torch.device) -> None:
        super().__init__(classifier, config, device)
        shape = classifier.preprocessing
        self.coreset = Coreset(config.coreset.size, (shape.channels, shape.size, shape.size))

    def remember(self, task: Task) -> None:
        """Take the task's classes into the coreset."""
        self.coreset.admit(task.images, self.total, self._rank)

    def end(self, task: Task) -> None:
        self.remember(task)
        super().end(task)

    def kept_images(self) -> int:
        return len(self.coreset)

    def _rank(self, images: Images, label: int) -> Iterable[int]:
        if self.selection == "random":
            rng = seeding.generator(self.config.seed, "coreset", label)
            return [int(row) for row in torch.randperm(len(images), generator=rng)]
        return (nearest if self.selection == "nearest" else herding)(self.features_of(images).double())

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | ({"coreset": self.coreset.state_dict()} if self.coreset.classes else {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        if "coreset" in state:
            self.coreset.load_state_dict(state["coreset"])


def _rows(labels: Tensor, label: int) -> Tensor:
    return (labels == label).nonzero().flatten()
