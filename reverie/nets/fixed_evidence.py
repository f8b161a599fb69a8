"""What fixed features say of a class beyond what features say: discriminant analysis of what those leave open.

The means of fixed features that classes have kept are exact, however often the network has changed. How fixed features
spread inside classes is told by the new images; how far to believe that, by new images that did not tell it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from reverie.nets.class_statistics import FLOOR, ClassStatistics
from reverie.nets.heads import FixedLinearAnswer, LinearAnswer, fit_temperature
from reverie.nets.transport import AT_ONCE, by_parts, on_device, row_space

SHRINKAGES = (0.02, 0.1, 0.5, 2.0, 10.0)  # added to the variance of fixed features, which is one; the best is taken
LEAST_IMAGES = 4  # in whose halves that is tried


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
    head: LinearAnswer, statistics: ClassStatistics, view: FixedView, filters: Tensor
) -> LinearAnswer | FixedLinearAnswer:
    """A head that adds up what `head`, a calibrated one of features, says, and what fixed features say beyond that.

    Both say logarithms of probabilities. `head` itself comes back where there are too few images, or images too much
    alike, to tell how fixed features spread.
    """
    if statistics.fixed is None or len(view.labels) < LEAST_IMAGES * view.views:
        return head
    evidence = _Evidence.of(statistics, view)
    if evidence is None:
        return head
    shrinkage, temperature = evidence.believe()
    weight, offset = (part / temperature for part in evidence.spread().discriminant(evidence.means, shrinkage))
    ours, bias = (part.to(weight) / float(head.temperature) for part in (head.weight, head.bias))
    own, fixed = (part.mean(dim=0).to(weight) for part in (statistics.means, statistics.fixed))
    made = FixedLinearAnswer(
        weight=ours,
        bias=bias + ours @ own,
        evidence=weight,
        offset=offset + weight @ (fixed - own @ evidence.foretold),
        filters=filters,
        foretold=evidence.foretold,
        middle=torch.cat([own, fixed]),
    )
    return made.to(head.weight.device)


@dataclass(frozen=True)
class _Evidence:
    """`rest`: what features do not foretell of fixed features, of each row; `means`: of each class, as it was kept.

    Rows are many, and of single precision; sums over them are of double.
    """

    rest: Tensor  # [rows, fixed features]
    means: Tensor  # [classes, fixed features]
    foretold: Tensor  # [features, fixed features]: by how much one foretells the other inside classes
    labels: Tensor
    half: Tensor  # 0 or 1: the halves of each class's images

    @classmethod
    def of(cls, statistics: ClassStatistics, view: FixedView) -> _Evidence | None:
        assert statistics.fixed is not None
        features, labels = view.features.double(), view.labels.to(view.features.device)
        inside, spread = _inside(features, labels), _inside(view.fixed, labels)
        if not float(spread.square().mean()) > 0:
            return None
        gram = inside.T @ inside
        gram.diagonal().add_(FLOOR * gram.diagonal().mean() + 1e-30)
        foretold = torch.linalg.solve(gram, _products(inside, spread))
        means = statistics.fixed.to(gram) - statistics.means.to(gram) @ foretold
        rest = view.fixed - (features @ foretold).to(view.fixed)
        return cls(rest, means, foretold, labels, _halves(labels, view.views))

    def spread(self, rows: Tensor | slice = slice(None)) -> _Spread:
        return _Spread.of(_inside(self.rest[rows], self.labels[rows]))

    def believe(self) -> tuple[float, float]:
        """How much to shrink, and to which temperature, so that halves of the images foretell each other best."""
        first, second = ((self.half == half).nonzero().flatten() for half in (0, 1))
        labels = torch.cat([self.labels[second], self.labels[first]])
        told = [
            (self.spread(rows), self._means_by(rows), self.rest[asked])
            for rows, asked in ((first, second), (second, first))
        ]
        tried = []
        for shrinkage in SHRINKAGES:
            scores = []
            for spread, means, asked in told:
                weight, bias = spread.discriminant(means, shrinkage)
                scores.append(by_parts(asked, weight.T) + bias)
            temperature, unlikely = fit_temperature(torch.cat(scores), labels)
            tried.append((unlikely, shrinkage, temperature))
        return min(tried)[1:]

    def _means_by(self, rows: Tensor) -> Tensor:
        """Means of classes that these rows show are theirs: the others do not count when they are asked about."""
        labels = self.labels[rows]
        counts = torch.bincount(labels, minlength=len(self.means))[:, None]
        sums = torch.zeros_like(self.means)
        for part in rows.split(AT_ONCE):
            sums.index_add_(0, self.labels[part], self.rest[part].double())
        return torch.where(counts > 0, sums / counts.clamp_min(1), self.means)


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
            sizes = cls._at_least(covariance.diagonal().sqrt())
            return cls(covariance / sizes / sizes[:, None], sizes)
        inside = inside.double()
        sizes = cls._at_least(inside.square().mean(dim=0).sqrt())
        basis = row_space(inside / sizes)
        along = inside / sizes @ basis
        return cls(along.T @ along / rows, sizes, basis)

    @staticmethod
    def _at_least(sizes: Tensor) -> Tensor:
        return sizes.clamp_min(1e-6 * float(sizes.max()) or 1.0)

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
