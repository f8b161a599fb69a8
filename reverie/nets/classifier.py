"""The classifier: a backbone, a head that grows by rows as classes arrive, and the class names in learned order."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reverie import seeding
from reverie.compile import fusable
from reverie.nets.backbone import Backbone
from reverie.nets.layers import widened
from reverie.nets.statistics import make_room

NATURAL_MEAN, NATURAL_DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's photographs


@dataclass(frozen=True)
class ImageStatistics:
    """Mean and deviation of images, by channel, with pixels counted from 0 to 1."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    @classmethod
    def natural(cls, channels: int) -> ImageStatistics:
        """Of photographs in colour, or of their mean channel."""
        if channels == 3:
            return cls(NATURAL_MEAN, NATURAL_DEVIATION)
        return cls((sum(NATURAL_MEAN) / 3,) * channels, (sum(NATURAL_DEVIATION) / 3,) * channels)


@dataclass(frozen=True)
class Preprocessing:
    """What an image must be before the classifier sees it: its size, its channels, and how pixels are normalised."""

    size: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    images: ImageStatistics | None = None  # of the training images, where they are not normalised by their own

    @property
    def channels(self) -> int:
        return len(self.mean)

    def without_normalisation(self) -> Preprocessing:
        """The same images, pixels between 0 and 1."""
        images = self.images or ImageStatistics(self.mean, self.deviation)
        return replace(self, mean=(0.0,) * self.channels, deviation=(1.0,) * self.channels, images=images)

    def as_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = {"size": self.size, "mean": list(self.mean), "deviation": list(self.deviation)}
        if self.images is not None:
            plain["images"] = {"mean": list(self.images.mean), "deviation": list(self.images.deviation)}
        return plain

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Preprocessing:
        theirs = values.get("images")
        images = ImageStatistics(tuple(theirs["mean"]), tuple(theirs["deviation"])) if theirs else None
        return cls(values["size"], tuple(values["mean"]), tuple(values["deviation"]), images)


class Head(nn.Module):
    """A linear layer with bias, a row a class."""

    def __init__(self, feature_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(0, feature_dim))
        self.bias = nn.Parameter(torch.empty(0))

    @property
    def rows(self) -> int:
        return len(self.weight)

    def grow(self, rows: int, rng: torch.Generator) -> None:
        """Add rows below the others, which stay as they are: Kaiming-normal weights, uniform bias."""
        feature_dim = self.weight.shape[1]
        weight = torch.randn(rows, feature_dim, generator=rng) * math.sqrt(2 / feature_dim)
        bias = (2 * torch.rand(rows, generator=rng) - 1) / math.sqrt(feature_dim)
        self.weight = nn.Parameter(torch.cat([self.weight.detach(), weight.to(self.weight)]))
        self.bias = nn.Parameter(torch.cat([self.bias.detach(), bias.to(self.bias)]))

    def forward(self, features: Tensor) -> Tensor:
        with torch.autocast(features.device.type, enabled=False):  # small, and losses deserve better logits
            return F.linear(features, self.weight, self.bias)


class Classifier(nn.Module):
    """`forward` gives a logit for each class seen so far. The head may have further rows (the released recipe).

    Logits may be corrected: multiplied by `factor` and moved by `shift`, class by class. Most classifiers have neither.
    """

    factor: Tensor | None
    shift: Tensor | None

    def __init__(
        self, backbone: Backbone, preprocessing: Preprocessing, seed: int = 0, rows_from_start: int = 0
    ) -> None:
        super().__init__()
        make_room(backbone)
        self.backbone = backbone
        self.head = Head(backbone.feature_dim)
        self.preprocessing = preprocessing
        self.class_names: tuple[str, ...] = ()
        self.seed = seed
        self.register_buffer("factor", None)
        self.register_buffer("shift", None)
        if rows_from_start:
            self.head.grow(rows_from_start, seeding.generator(seed, "head", 0))

    @property
    def seen(self) -> int:
        """The number of classes learned or being learned."""
        return len(self.class_names)

    def grow(self, names: Sequence[str]) -> None:
        """Make room for new classes."""
        twice = set(names) & set(self.class_names)
        if twice or len(set(names)) != len(names):
            raise ValueError(f"classes must be new and differ from each other: {sorted(twice) or list(names)}")
        missing = self.seen + len(names) - self.head.rows
        if missing > 0:
            self.head.grow(missing, seeding.generator(self.seed, "head", self.head.rows))
        self.class_names += tuple(names)
        if self.factor is not None and self.shift is not None:
            self.factor = F.pad(self.factor, (0, len(names)), value=1)
            self.shift = F.pad(self.shift, (0, len(names)))

    @torch.no_grad()
    def correct(self, first: int, factor: Tensor | float, shift: Tensor | float) -> None:
        """From now on, correct the logits of all classes from `first` on."""
        if self.factor is None or self.shift is None:
            self.factor, self.shift = self.head.bias.new_ones(self.seen), self.head.bias.new_zeros(self.seen)
        self.factor[first:] = factor
        self.shift[first:] = shift

    @torch.no_grad()
    def settle(self) -> None:
        """Work the corrections into the head: the same logits, and nothing left that a method could go past."""
        if self.factor is None or self.shift is None:
            return
        self.head.weight[: self.seen] *= self.factor[:, None]
        self.head.bias[: self.seen] = self.factor * self.head.bias[: self.seen] + self.shift
        self.factor = self.shift = None

    @fusable
    def features(self, images: Tensor) -> Tensor:
        """In single precision, whatever the backbone computes in."""
        return widened(self.backbone(images))

    def logits(self, features: Tensor) -> Tensor:
        """Of all classes seen, corrected; those of the head itself are not."""
        logits: Tensor = self.head(features)[:, : self.seen]
        if self.factor is None or self.shift is None:
            return logits
        return self.factor * logits + self.shift

    @property
    def corrected(self) -> bool:
        return self.factor is not None

    def before_correction(self, logits: Tensor) -> Tensor:
        """What the head itself had said, from corrected logits."""
        if self.factor is None or self.shift is None:
            return logits
        return (logits - self.shift.to(logits)) / self.factor.to(logits)

    def forward(self, images: Tensor) -> Tensor:
        return self.logits(self.features(images))

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        """A state says whether there are corrections."""
        for name in ("factor", "shift"):
            stored = state.get(prefix + name)
            setattr(self, name, None if stored is None else stored.to(self.head.bias, copy=True))
        super()._load_from_state_dict(state, prefix, *rest)

    def frozen_copy(self) -> Classifier:
        """A teacher: the same function for good."""
        teacher = copy.deepcopy(self).eval()
        teacher.requires_grad_(False)
        return teacher
