"""Heads: from features to a score for each class.

The training head is linear: it is learned, distilled, dreamed from and corrected. A classifier may also have an
answering head, made in closed form.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reverie.errors import UserError
from reverie.nets.fixed_features import fixed_features
from reverie.system.plugins import HEADS, load_plugin, plugin_names
from reverie.text import did_you_mean

COLDEST, WARMEST = 1e-4, 1e6  # between which a temperature is looked for
USUAL = 1e-2, 1e5  # spreads of scores for which it is; for others, between those multiples of the spread
AT_ONCE = 1024  # rows whose scores are made together: a Gaussian head needs room for each in every class
UNKNOWN = torch.finfo(torch.float32).min  # the logit of a class that has only arrived


class LinearHead(nn.Module):
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

    def select(self, rows: Tensor) -> None:
        """Keep these rows alone, in this order."""
        self.weight = nn.Parameter(self.weight[rows].detach())
        self.bias = nn.Parameter(self.bias[rows].detach())


class AnsweringHead(nn.Module):
    """A head that only answers: made in closed form, never trained by steps, and dreamed from by nobody.

    All it knows stands in buffers, each with a row a class, or with none (`shared`). A subclass names its buffers in
    `by_class` and `shared`, and overrides `scores`; it grows, loses classes, is saved and loaded without more. A state
    says by itself which head it is of: classifiers keep it under its `name`.

    Scores are no logits. Divided by `temperature`, which `calibrate` fits, they are.
    """

    name: ClassVar[str]
    by_class: ClassVar[tuple[str, ...]] = ()
    shared: ClassVar[tuple[str, ...]] = ()
    temperature: Tensor
    known: Tensor  # a class that has only arrived is never answered

    def __init__(self, **buffers: Tensor) -> None:
        super().__init__()
        rows = {len(value) for name, value in buffers.items() if name in self.by_class}
        if {*buffers} != {*self.by_class, *self.shared} or len(rows) != 1:
            wanted = ", ".join((*self.by_class, *self.shared))
            raise ValueError(f"the head {self.name!r} is made of {wanted}, with a row for each class")
        for name, value in buffers.items():
            self.register_buffer(name, value.detach().float().contiguous())
        first = buffers[self.by_class[0]]
        self.register_buffer("known", torch.ones(len(first), dtype=torch.bool, device=first.device))
        self.register_buffer("temperature", torch.ones((), device=first.device))

    @property
    def rows(self) -> int:
        return len(self.known)

    def check(self, feature_dim: int, channels: int = 3) -> None:
        """Raises ValueError where buffers do not fit each other, features of this size, or images of these channels."""
        device = self.known.device
        features, images = torch.zeros(1, feature_dim, device=device), torch.zeros(1, channels, 4, 4, device=device)
        try:
            with torch.no_grad():
                found = self.scores(self.inputs(features, images))
        except (RuntimeError, LookupError):  # of torch, about shapes
            raise ValueError(
                f"the parts of the head {self.name!r} are not for {feature_dim} features and {channels} channels"
            ) from None
        if found.shape != (1, self.rows):
            raise ValueError(f"the head {self.name!r} gives scores of shape {tuple(found.shape)}")

    def inputs(self, features: Tensor, images: Tensor) -> Tensor:
        """What scores are made of, [images, inputs]: features; a head may look at the images, too."""
        return features

    def scores(self, features: Tensor) -> Tensor:
        """[images, classes], the larger the likelier."""
        raise NotImplementedError

    def by_features(self, features: Tensor) -> Tensor:
        """The scores of features alone, for a head that looks at more."""
        return self.scores(features)

    def forward(self, features: Tensor) -> Tensor:
        with torch.autocast(features.device.type, enabled=False):
            logits = self.scores(features.float()) / self.temperature
            return logits.masked_fill(~self.known, UNKNOWN)

    def grow(self, rows: int) -> None:
        """Room for classes of which nothing is known yet."""
        for name in (*self.by_class, "known"):
            value = getattr(self, name)
            setattr(self, name, torch.cat([value, value.new_zeros(rows, *value.shape[1:])]))

    def select(self, rows: Tensor) -> None:
        """Keep these classes alone, in this order."""
        for name in (*self.by_class, "known"):
            setattr(self, name, getattr(self, name)[rows])

    @torch.no_grad()
    def calibrate(self, features: Tensor, labels: Tensor) -> float:
        """Fit the temperature: with it, the labels of these features are likeliest. Answers stay what they are."""
        if not len(features) or len(features) != len(labels):
            raise ValueError(f"a temperature cannot be fitted to {len(features)} images with {len(labels)} labels")
        if int(labels.min()) < 0 or int(labels.max()) >= self.rows or not bool(self.known[labels].all()):
            raise ValueError(f"a temperature cannot be fitted to classes that the head {self.name!r} does not know")
        self.temperature.fill_(1)
        scores = torch.cat([self(part) for part in features.split(AT_ONCE)]).double()
        scores, labels = scores[:, self.known], (self.known.cumsum(0) - 1)[labels]
        if not bool(scores.isfinite().all()):
            raise ValueError(f"the scores of the head {self.name!r} are no longer numbers")
        best, _ = fit_temperature(scores, labels)
        single = torch.finfo(self.temperature.dtype)
        self.temperature.fill_(min(max(best, single.tiny), single.max))
        return float(self.temperature)


def fit_temperature(scores: Tensor, labels: Tensor) -> tuple[float, float]:
    """By which scores [images, classes] are to be divided, so that the labels are likeliest; and how unlikely they are.

    As if of two further images one were mistaken (Platt, 1999): images that were learned from may all be right, and no
    others are ever surely so. The second number is the mean of negative log-likelihoods.
    """
    spread = float((scores.amax(dim=1) - scores.amin(dim=1)).mean())
    if not spread:  # one class alone: every temperature is as good
        return 1.0, float(_cross_entropy(scores, labels, 0.0))
    unit = 1.0 if USUAL[0] <= spread <= USUAL[1] else spread
    classes = scores.shape[1]
    mistaken = min(1.0, classes / max(1, classes - 1) / (len(labels) + 2))
    ends = math.log(COLDEST * unit), math.log(WARMEST * unit)
    logs = torch.linspace(*ends, 61, dtype=torch.double, device=scores.device)
    for _ in range(3):  # a finer look around the best of the coarse one
        losses = torch.stack([_cross_entropy(scores / log.exp(), labels, mistaken) for log in logs])
        best = logs[losses.argmin()]
        width = (logs[1] - logs[0]).abs()
        logs = torch.linspace(float(best - width), float(best + width), 21, dtype=torch.double, device=logs.device)
    return float(best.exp()), float(losses.min())


def _cross_entropy(scores: Tensor, labels: Tensor, mistaken: float) -> Tensor:
    return F.cross_entropy(scores, labels, label_smoothing=mistaken)


class LinearAnswer(AnsweringHead):
    """A linear layer that somebody else has fitted: by ridge regression, or to samples of class statistics.

    With `expansion`, features go through it first: a fixed matrix, and a ReLU behind it. An empty one is none.
    """

    name = "linear"
    by_class = ("weight", "bias")
    shared = ("expansion",)
    weight: Tensor
    bias: Tensor
    expansion: Tensor

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None = None, expansion: Tensor | None = None) -> LinearAnswer:
        return cls(
            weight=weight,
            bias=weight.new_zeros(len(weight)) if bias is None else bias,
            expansion=weight.new_zeros(0) if expansion is None else expansion,
        )

    def scores(self, features: Tensor) -> Tensor:
        return F.linear(expand(features, self.expansion), self.weight, self.bias)


class FixedLinearAnswer(AnsweringHead):
    """A linear layer on features, and one on what they do not foretell of the image's fixed features by `filters`.

    `middle` is taken off both first: single precision would lose small differences of large numbers.
    """

    name = "linear-fixed"
    by_class = ("weight", "bias", "evidence", "offset")
    shared = ("filters", "foretold", "middle")
    weight: Tensor  # [classes, features]
    bias: Tensor
    evidence: Tensor  # [classes, fixed features]
    offset: Tensor
    filters: Tensor
    foretold: Tensor  # [features, fixed features]
    middle: Tensor  # of features, then of fixed features

    def inputs(self, features: Tensor, images: Tensor) -> Tensor:
        return torch.cat([features, fixed_features(images, self.filters)], dim=1)

    def check(self, feature_dim: int, channels: int = 3) -> None:
        super().check(feature_dim, channels)
        own, fixed = self.weight.shape[1], self.evidence.shape[1]
        if self.foretold.shape != (own, fixed) or self.middle.shape != (own + fixed,):
            raise ValueError(f"the parts of the head {self.name!r} do not fit each other")

    def scores(self, features: Tensor) -> Tensor:
        own, fixed = (features - self.middle).split([self.weight.shape[1], self.evidence.shape[1]], dim=1)
        return self._by_features(own) + F.linear(fixed - own @ self.foretold, self.evidence, self.offset)

    def select(self, rows: Tensor) -> None:
        """Of classes that are gone, no mean is left in what all share."""
        super().select(rows)
        own, fixed = self.middle.double().split([self.weight.shape[1], self.evidence.shape[1]])
        self.bias = (self.bias.double() - self.weight.double() @ own).float()
        self.offset = (self.offset.double() - self.evidence.double() @ (fixed - own @ self.foretold.double())).float()
        self.middle = torch.zeros_like(self.middle)

    def by_features(self, features: Tensor) -> Tensor:
        return self._by_features(features - self.middle[: self.weight.shape[1]])

    def _by_features(self, centred: Tensor) -> Tensor:
        return F.linear(centred, self.weight, self.bias)


def expand(features: Tensor, expansion: Tensor) -> Tensor:
    return F.relu(features @ expansion) if expansion.numel() else features


class CosineAnswer(AnsweringHead):
    """The cosine of the angle between the features and a direction for each class."""

    name = "cosine"
    by_class = ("directions",)
    directions: Tensor

    def scores(self, features: Tensor) -> Tensor:
        return F.normalize(features, dim=1) @ F.normalize(self.directions, dim=1).T


class PrototypeAnswer(AnsweringHead):
    """The class with the nearest mean; its score is the squared distance, negated."""

    name = "prototype"
    by_class = ("means",)
    means: Tensor

    def scores(self, features: Tensor) -> Tensor:
        features, means = centred(features, self.means)
        return 2 * features @ means.T - (features**2).sum(dim=1, keepdim=True) - (means**2).sum(dim=1)


def centred(features: Tensor, means: Tensor) -> tuple[Tensor, Tensor]:
    """Both without the mean of the means: squares of what they have in common would drown all differences."""
    middle = means.mean(dim=0)
    return features - middle, means - middle


class GaussianAnswer(AnsweringHead):
    """The class under whose normal distribution the features are likeliest, all classes being equally frequent.

    `whitening` turns what is left of the features without a class's mean into independent numbers of variance one: a
    matrix for each class, [classes, n, n], or a diagonal, [classes, n]. Classes that share one need no more than
    `SharedGaussianAnswer`.
    """

    name = "gaussian"
    by_class = ("means", "whitening", "log_volumes")
    means: Tensor
    whitening: Tensor
    log_volumes: Tensor

    def scores(self, features: Tensor) -> Tensor:
        if self.whitening.ndim == 2:
            distances = (((features[:, None] - self.means) * self.whitening) ** 2).sum(dim=2)
        else:
            centred = features[:, None] - self.means
            distances = (torch.einsum("ncd,ced->nce", centred, self.whitening) ** 2).sum(dim=2)
        return -distances / 2 - self.log_volumes


class SharedGaussianAnswer(AnsweringHead):
    """As `GaussianAnswer`, with one covariance for all classes: linear discriminant analysis."""

    name = "gaussian-shared"
    by_class = ("means",)
    shared = ("whitening",)
    means: Tensor
    whitening: Tensor

    def scores(self, features: Tensor) -> Tensor:
        features, means = centred(features, self.means)
        if self.whitening.ndim == 1:
            features, means = features * self.whitening, means * self.whitening
        else:
            features, means = features @ self.whitening.T, means @ self.whitening.T
        return features @ means.T - (features**2).sum(dim=1, keepdim=True) / 2 - (means**2).sum(dim=1) / 2


OWN_HEADS: dict[str, type[AnsweringHead]] = {
    head.name: head
    for head in (
        LinearAnswer,
        FixedLinearAnswer,
        CosineAnswer,
        PrototypeAnswer,
        GaussianAnswer,
        SharedGaussianAnswer,
    )
}


def find_head(name: str) -> type[AnsweringHead]:
    """The answering head of that name: ours, or that of another package, by entry point `reverie.heads`."""
    if name in OWN_HEADS:
        return OWN_HEADS[name]
    other: type[AnsweringHead] | None = load_plugin(HEADS, name, partial(_check_head, name))
    if other is None:
        known = [*OWN_HEADS, *plugin_names(HEADS)]
        raise UserError(f"There is no head {name!r} here; there are {', '.join(known)}.{did_you_mean(name, known)}")
    return other


def _check_head(name: str, head: Any) -> None:
    if not (isinstance(head, type) and issubclass(head, AnsweringHead)):
        raise TypeError(f"{head!r} is no subclass of reverie.AnsweringHead")
    if head.name != name or not head.by_class:
        raise TypeError(f"its `name` must be {name!r}, and its `by_class` name a buffer")


def head_from_state(name: str, state: Mapping[str, Tensor]) -> AnsweringHead:
    """The head whose buffers these are. Raises ValueError where they are of no head of that name."""
    head = find_head(name)
    own = {*head.by_class, *head.shared}
    if {*state} != own | {"known", "temperature"}:
        raise ValueError(f"the head {name!r} does not consist of {', '.join(state)}")
    made = head(**{key: state[key] for key in own})
    known, temperature = state["known"], state["temperature"]
    if known.shape != made.known.shape:
        raise ValueError(f"the head {name!r} has {made.rows} rows, and `known` is of the shape {tuple(known.shape)}")
    if known.dtype != torch.bool or not bool(known.any()):
        raise ValueError(f"the head {name!r} does not say which classes it knows")
    if temperature.ndim or not 0 < float(temperature) < math.inf:
        raise ValueError(f"the temperature of the head {name!r} is not a number above zero")
    for key in own:
        if not bool(state[key].isfinite().all()):
            raise ValueError(f"{key} of the head {name!r} are no longer numbers")
    made.known, made.temperature = known, temperature.float()
    return made
