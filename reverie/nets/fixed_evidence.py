"""What fixed features say of a class beyond what features say: discriminant analysis of what those leave open.

The means of fixed features that classes have kept are exact, however often the network has changed. How fixed features
spread inside classes is told by the new images; how far to believe that, by new images that did not tell it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from reverie.nets.class_statistics import FLOOR, ClassStatistics
from reverie.nets.heads import FixedLinearAnswer, LinearAnswer, fit_temperature
from reverie.nets.transport import AT_ONCE, by_parts, on_device, row_space

SHRINKAGES = (0.02, 0.1, 0.5, 2.0, 10.0)  # added to the variance of fixed features, which is one; the best is taken
LEAST_IMAGES = 4  # in whose halves that is tried
ALIKE = 1e-10  # of their mean square: fixed features inside classes that vary by less vary by rounding


@dataclass(frozen=True)
class FixedView:
    """New images by the network and by fixed filters: [rows, features], [rows, fixed features], and their labels.

    There are one or more views of each image, all first ones before all second ones.
    """

    features: Tensor
    fixed: Tensor
    labels: Tensor
    views: int = 1

    def to(self, device: torch.device | str) -> FixedView:
        return on_device(self, device)


def with_fixed_evidence(
    head: LinearAnswer, statistics: ClassStatistics, view: FixedView, filters: Tensor, samples: Tensor
) -> LinearAnswer | FixedLinearAnswer:
    """A head that adds up what `head`, a calibrated one of features, says, and what fixed features say beyond that.

    Both say logarithms of probabilities. The sum is calibrated once more: by what fixed features say of new images that
    did not tell it, beside what `head` says of `samples` of their classes' features, [classes, samples, features].
    `head` itself comes back where images are too few, or too much alike, to tell how fixed features spread.
    """
    evidence, believed = _Evidence.of(statistics, view), _believe(statistics, view)
    if evidence is None or believed is None:
        return head
    assert statistics.fixed is not None
    weight, offset = evidence.spread.discriminant(evidence.means, believed.shrinkage)
    weight, offset = weight / believed.temperature, offset / believed.temperature
    ours, bias = (part.to(weight) / float(head.temperature) for part in (head.weight, head.bias))
    own, fixed = (part.mean(dim=0).to(weight) for part in (statistics.means, statistics.fixed))
    made = FixedLinearAnswer(
        weight=ours,
        bias=bias + ours @ own,
        evidence=weight,
        offset=offset + weight @ (fixed - own @ evidence.foretold),
        filters=filters.clone(),
        foretold=evidence.foretold,
        middle=torch.cat([own, fixed]),
    )
    made = made.to(head.weight.device)
    turn = torch.arange(len(believed.labels)) % samples.shape[1]
    said = head(samples[believed.labels.to(samples.device), turn]).double().to(believed.scores.device)
    made.temperature.fill_(fit_temperature(said + believed.scores / believed.temperature, believed.labels)[0])
    return made


@dataclass(frozen=True)
class _Evidence:
    """What some of the new images tell of fixed features, beyond what features say.

    Rows are many, and of single precision; sums over them are of double.
    """

    foretold: Tensor  # [features, fixed features]: by how much one foretells the other inside classes
    spread: _Spread  # of what features do not foretell, inside classes
    means: Tensor  # of the same, [classes, fixed features]
    known: Tensor  # [classes]: of which there is a mean, that these images tell or an earlier task

    @classmethod
    def of(cls, statistics: ClassStatistics, view: FixedView, rows: Tensor | None = None) -> _Evidence | None:
        """`rows`: these images alone are looked at, and new classes have the means of these."""
        if statistics.fixed is None or not len(view.labels):
            return None
        features, fixed, labels = view.features.double(), view.fixed, view.labels.to(view.features.device)
        means, fixed_means = statistics.means.to(features), statistics.fixed.to(features)
        known = torch.ones(len(means), dtype=torch.bool, device=features.device)
        if rows is not None:
            known[labels] = False
            features, fixed, labels = features[rows], fixed[rows], labels[rows]
            known[labels] = True
            means, fixed_means = _means_by(features, labels, means), _means_by(fixed, labels, fixed_means)
        inside, spread = _inside(features, labels), _inside(fixed, labels)
        if not float(spread.square().mean()) > ALIKE * float(fixed.square().mean()):
            return None
        gram = inside.T @ inside
        gram.diagonal().add_(FLOOR * gram.diagonal().mean() + 1e-30)
        foretold = torch.linalg.solve(gram, _products(inside, spread))
        left = spread - (inside @ foretold).to(spread)
        return cls(foretold, _Spread.of(left), fixed_means - means @ foretold, known)

    def scores(self, view: FixedView, rows: Tensor, shrinkage: float) -> Tensor:
        """Of these images, [rows, classes]; the lowest of all for classes that are not known."""
        weight, bias = self.spread.discriminant(self.means, shrinkage)
        found = by_parts(view.fixed[rows], weight.T) - view.features[rows].double() @ (self.foretold @ weight.T) + bias
        return torch.where(self.known, found, found.amin(dim=1, keepdim=True))


@dataclass(frozen=True)
class _Believed:
    shrinkage: float
    temperature: float
    scores: Tensor  # [images, classes]: of each half of the images by what the other tells
    labels: Tensor


def _believe(statistics: ClassStatistics, view: FixedView) -> _Believed | None:
    """How much to shrink, and to which temperature, so that halves of the images foretell each other best.

    None where there are too few of them to tell.
    """
    labels, half = view.labels.to(view.features.device), _halves(view.labels, view.views).to(view.features.device)
    if len(labels) < LEAST_IMAGES * view.views:
        return None
    told: list[tuple[_Evidence, Tensor]] = []
    for telling in (0, 1):
        evidence = _Evidence.of(statistics, view, (half == telling).nonzero().flatten())
        if evidence is None:
            return None
        told.append((evidence, ((half != telling) & evidence.known[labels]).nonzero().flatten()))
    asked = torch.cat([rows for _, rows in told])
    best: tuple[float, _Believed] | None = None
    for shrinkage in SHRINKAGES:
        scores = torch.cat([evidence.scores(view, rows, shrinkage) for evidence, rows in told])
        temperature, unlikely = fit_temperature(scores, labels[asked]) if len(asked) else (math.nan, math.nan)
        if math.isfinite(temperature) and unlikely < (best[0] if best else math.inf):
            best = unlikely, _Believed(shrinkage, temperature, scores, labels[asked])
    return best[1] if best else None


@dataclass(frozen=True)
class _Spread:
    """How values spread inside classes: correlations, and the deviations that they are of.

    Of fewer rows than values, correlations are those along `basis`; in all other directions rows do not spread at all.
    """

    correlations: Tensor
    sizes: Tensor
    basis: Tensor | None = None  # [values, rows]

    @classmethod
    def of(cls, inside: Tensor) -> _Spread:
        rows, values = inside.shape
        if rows >= values:
            covariance = _products(inside, inside) / rows
            sizes = _sizes(covariance.diagonal())
            return cls(covariance / sizes / sizes[:, None], sizes)
        inside = inside.double()
        sizes = _sizes(inside.square().mean(dim=0))
        basis = row_space(inside / sizes)
        along = inside / sizes @ basis
        return cls(along.T @ along / rows, sizes, basis)

    def discriminant(self, means: Tensor, shrinkage: float) -> tuple[Tensor, Tensor]:
        """Weight [classes, values] and bias [classes] of linear discriminant analysis."""
        factor = torch.linalg.cholesky(self.correlations + shrinkage * torch.eye(len(self.correlations)).to(means))
        middle = means.mean(dim=0)
        apart = (means - middle) / self.sizes
        along = apart if self.basis is None else apart @ self.basis
        weight = torch.cholesky_solve(along.T, factor).T
        if self.basis is not None:
            weight = weight @ self.basis.T + (apart - along @ self.basis.T) / shrinkage
        weight = weight / self.sizes
        return weight, -(weight * (means + middle)).sum(dim=1) / 2


def _sizes(variances: Tensor) -> Tensor:
    """Deviations; without end where nothing varies, so that nothing is made of it."""
    return torch.where(variances > 1e-12 * variances.max(), variances, torch.inf).sqrt()


def _means_by(values: Tensor, labels: Tensor, otherwise: Tensor) -> Tensor:
    """[classes, values], of the classes that rows are of; the others keep theirs."""
    counts = torch.bincount(labels, minlength=len(otherwise))[:, None]
    sums = torch.zeros_like(otherwise)
    for part, its in zip(values.split(AT_ONCE), labels.split(AT_ONCE), strict=True):
        sums.index_add_(0, its, part.double())
    return torch.where(counts > 0, sums / counts.clamp_min(1), otherwise)


def _products(left: Tensor, right: Tensor) -> Tensor:
    """`left.T @ right` in double precision, some rows at a time."""
    pairs = zip(left.split(AT_ONCE), right.split(AT_ONCE), strict=True)
    found = torch.zeros(left.shape[1], right.shape[1], dtype=torch.double, device=left.device)
    for rows, others in pairs:
        found.addmm_(rows.double().T, others.double())
    return found


def _inside(values: Tensor, labels: Tensor) -> Tensor:
    """Without the mean of the class."""
    names, of = labels.unique(return_inverse=True)
    sums = torch.zeros(len(names), values.shape[1]).to(values).index_add_(0, of, values)
    return values - (sums / torch.bincount(of)[:, None])[of]


def _halves(labels: Tensor, views: int) -> Tensor:
    """Every second image of each class; all views of an image are on one side."""
    first = labels[: len(labels) // views]
    order = first.argsort(stable=True)
    counts = torch.bincount(first)
    starts = (counts.cumsum(0) - counts)[first[order]]
    ranks = torch.empty_like(order)
    ranks[order] = torch.arange(len(order), device=order.device) - starts
    return (ranks % 2).repeat(views)
