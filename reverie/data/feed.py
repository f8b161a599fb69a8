"""Batches on the device: the only way images reach a phase.

A feed plans an epoch ahead: which image comes when, and the random numbers of its augmentation. A step then is
arithmetic on tensors that stay where they are, without a word from the host, so that a CUDA graph can capture it.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Literal, Protocol

import torch
from torch import Tensor

from reverie.data.augment import Augmenter
from reverie.data.draws import DRAWS, draw_numbers, resized_crop
from reverie.data.images import Images, MemoryImages
from reverie.data.mixup import Mixer
from reverie.seeding import generator


@dataclass(frozen=True)
class Batch:
    """Images as the classifier takes them, and the class of each.

    Where images are mixed, each shows another one, too: `others` are the classes of those, `share` what is its own.
    """

    images: Tensor
    labels: Tensor
    others: Tensor | None = None
    share: Tensor | None = None


@dataclass(frozen=True)
class Source:
    """Images that take a share of each batch, by a rule of their own.

    `shuffle`: each image once an epoch, in random order; what does not fill a batch is left out. `replace`: drawn
    afresh, with replacement, for every batch. `even`: every class equally often, however many images it has; none of
    its images again before all the others were shown. The first source of a feed decides how long an epoch is.
    """

    images: Images
    batch_size: int
    rule: Literal["shuffle", "replace", "even"] = "shuffle"

    @property
    def share(self) -> int:
        """Rows in each batch: fewer than asked for where there are fewer images; two at least, for BatchNorm."""
        return self.batch_size if self.rule == "replace" else max(2, min(self.batch_size, len(self.images)))

    @property
    def steps(self) -> int:
        return max(1, len(self.images) // self.share)

    def plan(self, seed: int, name: int, steps: int) -> tuple[Tensor, Tensor]:
        """Image by image for one epoch: which, and the random numbers for it, a function of (epoch, image) alone."""
        rng = generator(seed, "feed", name)
        rows = steps * self.share
        if self.rule == "replace":
            return torch.randint(len(self.images), (rows,), generator=rng), draw_numbers(rows, rng)
        if self.rule == "even":
            classes = self.images.labels.unique()
            which = classes[_rounds(len(classes), rows, rng)]
            order = torch.empty(rows, dtype=torch.long)
            for label in classes:
                here, of_class = which == label, (self.images.labels == label).nonzero().flatten()
                order[here] = of_class[_rounds(len(of_class), int(here.sum()), rng)]
            return order, draw_numbers(rows, rng)
        order = _rounds(len(self.images), rows, rng)
        return order, draw_numbers(len(self.images), rng)[order]


class Feed(Protocol):
    steps_per_epoch: int
    batch_size: int

    def expect(self, seed: int) -> None:
        """The epoch of `seed` comes next. The host can plan it while the device is at work."""

    def begin(self, seed: int, step: int) -> None:
        """Plan the epoch of `seed`, unless it was expected, and go to its step number `step`."""

    def advance(self) -> None:
        """What the host has to do before a step; nothing where all images are on the device."""

    def draw(self) -> Batch:
        """The next batch, or any after the epoch's last. Only tensor arithmetic."""


class _Planned:
    """The part of a feed that knows which image comes when."""

    def __init__(self, sources: Sequence[Source], device: torch.device, mixup: float) -> None:
        self.sources = tuple(sources)
        self.steps_per_epoch = sources[0].steps
        self.batch_size = sum(source.share for source in sources)
        self.mixer = Mixer(mixup, self.steps_per_epoch, self.batch_size, device) if mixup else None
        self._step = torch.zeros((), dtype=torch.long, device=device)
        self._expected: tuple[int, tuple[Tensor, Tensor]] | None = None

    def expect(self, seed: int) -> None:
        self._expected = seed, self._plan(seed)

    def _begin_mixing(self, seed: int, step: int) -> None:
        self._step.fill_(step)
        if self.mixer is not None:
            self.mixer.begin(seed)

    def _mixed(self, images: Tensor, labels: Tensor) -> Batch:
        """The batch of this step. The next one is of the next."""
        batch = Batch(images, labels)
        if self.mixer is not None:
            mixed, others, share = self.mixer(images, labels, self._step)
            batch = Batch(mixed, labels, others, share)
        self._step += 1
        return batch

    def _planned(self, seed: int) -> tuple[Tensor, Tensor]:
        found, self._expected = self._expected, None
        return found[1] if found is not None and found[0] == seed else self._plan(seed)

    def _plan(self, seed: int) -> tuple[Tensor, Tensor]:
        """The epoch's rows, batch after batch, the sources side by side in each; and the random numbers of each row."""
        orders, draws, steps = [], [], self.steps_per_epoch
        for name, (source, offset) in enumerate(zip(self.sources, _offsets(self.sources), strict=True)):
            order, numbers = source.plan(seed, name, steps)
            orders.append(order.view(steps, source.share) + offset)
            draws.append(numbers.view(steps, source.share, DRAWS))
        return torch.cat(orders, dim=1).flatten(), torch.cat(draws, dim=1).flatten(0, 1)


class DeviceFeed(_Planned):
    """All images as one uint8 tensor on the device."""

    def __init__(self, sources: Sequence[Source], augment: Augmenter, device: torch.device, mixup: float = 0.0) -> None:
        super().__init__(sources, device, mixup)
        self.augment, self.device = augment, device
        every = [source.images.read(torch.arange(len(source.images))) for source in sources]
        self.pixels = torch.cat(every).to(device)
        self.labels = torch.cat([source.images.labels for source in sources]).to(device)
        rows = self.steps_per_epoch * self.batch_size
        self._order = torch.zeros(rows, dtype=torch.long, device=device)
        self._draws = torch.zeros(rows, DRAWS, device=device)
        self._row = torch.arange(self.batch_size, device=device)

    def begin(self, seed: int, step: int) -> None:
        order, draws = self._planned(seed)
        self._order.copy_(order)
        self._draws.copy_(draws)
        self._begin_mixing(seed, step)

    def advance(self) -> None:
        pass

    def draw(self) -> Batch:
        rows = (self._step * self.batch_size + self._row) % len(self._order)
        index, draws = self._order[rows], self._draws[rows]
        pixels = self.pixels[index]
        if self.augment.config.resized_crop:
            pixels = resized_crop(pixels, draws)
        return self._mixed(self.augment(pixels, draws), self.labels[index])


class StreamingFeed(_Planned):
    """Images decoded from disk by threads, some batches ahead; in all else the same as `DeviceFeed`."""

    AHEAD = 3

    def __init__(self, sources: Sequence[Source], augment: Augmenter, device: torch.device, mixup: float = 0.0) -> None:
        super().__init__(sources, device, mixup)
        self.augment, self.device = augment, device
        self._offsets = _offsets(self.sources)
        self._labels = torch.cat([source.images.labels for source in sources])
        channels, height, width = sources[0].images.shape
        self._pixels_now = torch.zeros(self.batch_size, channels, height, width, dtype=torch.uint8, device=device)
        self._labels_now = torch.zeros(self.batch_size, dtype=torch.long, device=device)
        self._draws_now = torch.zeros(self.batch_size, DRAWS, device=device)
        self._to_come: Iterator[tuple[Tensor, Tensor]] = iter(())  # the epoch's batches: which images, and their draws
        self._reading: deque[tuple[Tensor, Tensor, Future[Tensor]]] = deque()

    def begin(self, seed: int, step: int) -> None:
        for *_, pixels in self._reading:
            pixels.cancel()
        self._reading.clear()
        order, draws = self._planned(seed)
        batches = zip(order.view(-1, self.batch_size), draws.view(-1, self.batch_size, DRAWS), strict=True)
        self._to_come = islice(batches, step, None)
        self._begin_mixing(seed, step)
        self._read_ahead()

    def advance(self) -> None:
        order, draws, pixels = self._reading.popleft()
        self._pixels_now.copy_(pixels.result())
        self._labels_now.copy_(self._labels[order])
        self._draws_now.copy_(draws)
        self._read_ahead()

    def draw(self) -> Batch:
        return self._mixed(self.augment(self._pixels_now, self._draws_now), self._labels_now.clone())

    def _read_ahead(self) -> None:
        for order, draws in islice(self._to_come, self.AHEAD - len(self._reading)):
            self._reading.append((order, draws, _readers().submit(self._read, order, draws)))

    def _read(self, index: Tensor, draws: Tensor) -> Tensor:
        """Each row lies in the part of the batch that belongs to its source."""
        parts, row = [], 0
        for source, offset in zip(self.sources, self._offsets, strict=True):
            rows = slice(row, row + source.share)
            cut = draws[rows] if self.augment.config.resized_crop else None
            parts.append(source.images.read(index[rows] - offset, cut))
            row += source.share
        return torch.cat(parts)


class NoData:
    """For a phase that learns from no images: the dreamer's."""

    batch_size = 0

    def __init__(self, device: torch.device, steps_per_epoch: int = 100) -> None:
        self.steps_per_epoch = steps_per_epoch
        self._nothing = torch.empty(0, device=device)

    def expect(self, seed: int) -> None:
        pass

    def begin(self, seed: int, step: int) -> None:
        pass

    def advance(self) -> None:
        pass

    def draw(self) -> Batch:
        return Batch(self._nothing, self._nothing)


@functools.cache
def _readers() -> ThreadPoolExecutor:
    """For as long as the process lives: a pool of a feed's own would be closed by whoever comes to collect the feed."""
    return ThreadPoolExecutor(StreamingFeed.AHEAD, "reverie-batches")


def make_feed(sources: Sequence[Source], augment: Augmenter, device: torch.device, mixup: float = 0.0) -> Feed:
    """On the device where all images are in memory, from disk otherwise. `mixup` is its alpha; 0: none are mixed."""
    in_memory = all(isinstance(source.images, MemoryImages) for source in sources)
    return (DeviceFeed if in_memory else StreamingFeed)(sources, augment, device, mixup)


def _rounds(count: int, rows: int, rng: torch.Generator) -> Tensor:
    """So many rows of the numbers below `count`: all of them in random order, again and again."""
    return torch.cat([torch.randperm(count, generator=rng) for _ in range(-(-rows // count))])[:rows]


def _offsets(sources: Sequence[Source]) -> list[int]:
    return [sum(len(earlier.images) for earlier in sources[:i]) for i in range(len(sources))]
