"""A data set cut into tasks: in which order the classes come, how many at a time, and what a method may see of them."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import torch

from reverie.data.images import Dataset, Images
from reverie.data.preprocessing import Preprocessing, pixel_statistics
from reverie.errors import UserError
from reverie.text import listing, plural, shortened


class PastTask(Exception):
    """Somebody reached for the images of a task that is over."""


class Task:
    """The classes that arrive together, with their training images; the only data a method ever sees.

    Labels count in learned order: `first_label` old classes come before the task's own. Images with a smaller label are
    further examples of an old class. When the task has been learned it is closed, and its images are out of reach.
    """

    def __init__(self, index: int, names: Sequence[str], first_label: int, images: Images) -> None:
        self.index = index
        self.names = tuple(names)
        self.first_label = first_label
        self._images: Images | None = images
        self.size = len(images)
        self.refines = bool((images.labels < first_label).any())

    def __repr__(self) -> str:
        images = "closed" if self._images is None else plural(self.size, "image")
        return f"Task({self.index + 1}, {images}, {plural(len(self.names), 'class')}: {listing(self.names)})"

    @property
    def images(self) -> Images:
        if self._images is None:
            raise PastTask(
                f"task {self.index + 1} is over and its images are gone: a method sees only the current task"
            )
        return self._images

    @property
    def classes_after(self) -> int:
        """How many classes are known once this task is learned."""
        return self.first_label + len(self.names)

    def close(self) -> None:
        self._images = None


@dataclass(frozen=True)
class _Place:
    """Where a task stands in the stream: its number, its classes (as the data set counts them), its first label."""

    index: int
    classes: tuple[int, ...]
    first_label: int


class Stream:
    """Tasks in order. `stream[i]` is a task, `stream[a:b]` a shorter stream, `stream.test()` what it is judged on."""

    def __init__(self, dataset: Dataset, order: Sequence[int], sizes: Sequence[int]) -> None:
        if sum(sizes) > len(order):
            raise UserError(f"The tasks need {sum(sizes)} classes, but there are only {len(order)}.")
        self.dataset = dataset
        self.classes_in_all = sum(sizes)  # also in a slice: of the stream that it was cut from
        self._places: tuple[_Place, ...] = ()
        first = 0
        for index, size in enumerate(sizes):
            self._places += (_Place(index, tuple(order[first : first + size]), first),)
            first += size

    @property
    def sizes(self) -> tuple[int, ...]:
        """Classes by task."""
        return tuple(len(place.classes) for place in self._places)

    @property
    def classes(self) -> tuple[int, ...]:
        """The data set's own class numbers, in learned order."""
        return tuple(c for place in self._places for c in place.classes)

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(self.dataset.class_names[c] for c in self.classes)

    def __repr__(self) -> str:
        classes = plural(len(self.classes), "class")
        return f"Stream({plural(len(self), 'task')}, {classes} of {self.dataset.name!r})"

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, which: int) -> Task: ...
    @overload
    def __getitem__(self, which: slice) -> Stream: ...
    def __getitem__(self, which: int | slice) -> Task | Stream:
        if isinstance(which, slice):
            part = Stream(self.dataset, (), ())
            part._places, part.classes_in_all = self._places[which], self.classes_in_all
            return part
        return self._task([self._places[which]])

    def __iter__(self) -> Iterator[Task]:
        return (self[index] for index in range(len(self)))

    def union(self) -> Task:
        """All tasks at once, as the upper bound sees them."""
        return self._task(self._places)

    def test(self) -> Images:
        """Test images of all classes of this stream, with labels in learned order."""
        return self._pick(self.dataset.test, self._places)

    def preprocessing(self) -> Preprocessing:
        """As published, or from the first task alone: later images are not known when the first are learned."""
        mean, deviation = self.dataset.normalisation or pixel_statistics(self[0].images)
        return Preprocessing(self.dataset.train.shape[1], mean, deviation)

    def _task(self, places: Sequence[_Place]) -> Task:
        names = [self.dataset.class_names[c] for place in places for c in place.classes]
        index = places[0].index
        return Task(index, names, places[0].first_label, self._pick(self.dataset.train, places))

    @staticmethod
    def _pick(images: Images, places: Sequence[_Place]) -> Images:
        highest = int(images.labels.max()) + 1
        new_label = torch.full((highest,), -1)
        for place in places:
            for offset, c in enumerate(place.classes):
                if c < highest:
                    new_label[c] = place.first_label + offset
        labels = new_label[images.labels]
        index = (labels >= 0).nonzero().flatten()
        return images.select(index).relabel(labels[index])


def class_order(order: str | Sequence[int], classes: int, seed: int) -> list[int]:
    """The order in which classes arrive. `seed` is the run's own, for the order "seed"."""
    if not isinstance(order, str):
        if len(set(order)) != len(order) or not set(order) <= set(range(classes)):
            raise UserError(f"stream.order must name each class once, by its number from 0 to {classes - 1}.")
        if not order:
            raise UserError("stream.order must name at least one class.")
        return list(order)
    if order == "natural":
        return list(range(classes))
    if order == "icarl-1993":
        shuffled = np.arange(classes)
        np.random.RandomState(1993).shuffle(shuffled)  # the old generator: the order is defined by it
        return [int(c) for c in shuffled]
    match = re.fullmatch(r"seed(?::(\d{1,18}))?", order)
    if not match:
        raise UserError(
            f"stream.order {shortened(order)} is unknown; use natural, seed, seed:K, icarl-1993 or a list of classes."
        )
    numbers = list(range(classes))
    random.Random(int(match[1]) if match[1] else seed).shuffle(numbers)
    return numbers


def task_sizes(split: int | str | Sequence[int], classes: int) -> list[int]:
    """Classes by task: 5 (equal tasks), [4, 3, 3], or "50+5x10" (fifty, then five times ten)."""
    if isinstance(split, str):
        terms = [re.fullmatch(r"(?:(\d{1,7})x)?(\d{1,7})", term.strip()) for term in split.split("+")]
        pairs = [(int(term[1] or 1), int(term[2])) for term in terms if term]
        if not all(terms):
            raise UserError(f"stream.split {shortened(split)} is not understood; write 5, [4, 3, 3] or 50+5x10.")
        if (asked := sum(times * size for times, size in pairs)) > classes:
            raise UserError(f"stream.split asks for {asked} classes; there are {classes}.")
        sizes = [size for times, size in pairs for _ in range(min(times, classes + 1))]
    elif isinstance(split, int):
        if split < 1 or classes % split:
            fits = ", ".join(str(n) for n in range(1, classes + 1) if classes % n == 0)
            raise UserError(
                f"{classes} classes cannot be cut into {split} equal tasks; {fits} can, or give a list of sizes."
            )
        sizes = [classes // split] * split
    else:
        sizes = list(split)
    if not sizes or min(sizes) < 1:
        raise UserError(f"stream.split {split!r} has a task without classes.")
    if sum(sizes) > classes:
        raise UserError(f"stream.split asks for {sum(sizes)} classes in {len(sizes)} tasks; there are {classes}.")
    return sizes
