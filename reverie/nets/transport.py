"""Transport: where class statistics go when a network learns on, told from images that it has seen before and after.

Covariances go through an affine map of old features, means through one of old and fixed features. docs/lucid.md has
the equations.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from reverie.nets.class_statistics import FLOOR, ClassStatistics

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # of fixed features that vary by one; the best on held-out classes is taken
FOLDS = 5
LEAST_CLASSES = 3  # that classes are held out of; of fewer, images are
TINY = 1e-12
AT_ONCE = 2000  # rows of fixed features, that are looked at in double precision
Tensors = TypeVar("Tensors", bound="DataclassInstance")


def on_device(record: Tensors, device: torch.device | str) -> Tensors:
    """A record whose tensors are there."""
    tensors = {field.name: getattr(record, field.name) for field in fields(record)}
    return replace(record, **{name: value.to(device) for name, value in tensors.items() if isinstance(value, Tensor)})


@dataclass(frozen=True)
class SeenByBoth:
    """Features of the same images, [images, features], by the old network and by the new one.

    Together they weigh `weight`, however many there are. `labels` say which are of one class, and `fixed` are the fixed
    features of the same images. There are one or more views of each image, all first ones before all second ones.
    """

    before: Tensor
    after: Tensor
    weight: float = 1.0
    labels: Tensor | None = None
    fixed: Tensor | None = None
    views: int = 1

    def to(self, device: torch.device | str) -> SeenByBoth:
        return on_device(self, device)


@dataclass(frozen=True)
class Transport:
    """Features become `features @ matrix + shift`, and what that leaves unexplained has the covariance `residual`.

    Means become `means @ of_means + fixed means @ of_fixed + shift_of_means`, where fixed features help.
    """

    matrix: Tensor
    shift: Tensor
    residual: Tensor
    unexplained: float  # the share of the new features' mean square
    of_means: Tensor | None = None
    of_fixed: Tensor | None = None
    shift_of_means: Tensor | None = None
    penalty: float | None = None  # of fixed features; none: they are not used

    def to(self, device: torch.device | str) -> Transport:
        return on_device(self, device)

    @classmethod
    def fit(cls, seen: Sequence[SeenByBoth], ridge: float) -> Transport:
        """By weighted least squares. `ridge`, as a share of the mean variance, draws it towards no change at all.

        So where few images tell little, features are taken to stay where they were. Where all that was seen has fixed
        features, these help to tell where means go, as far as that helps for classes held out of the first of `seen`.
        """
        rows = _Rows.of(seen)
        mean_before, mean_after = rows.mean(rows.before), rows.mean(rows.after)
        centred, moved = rows.before - mean_before, rows.after - mean_after
        spread = (rows.weights * centred).T @ centred
        spread.diagonal().add_((ridge + TINY) * spread.diagonal().mean() + TINY)
        change = torch.linalg.solve(spread, (rows.weights * centred).T @ (moved - centred))
        matrix = torch.eye(len(change)).to(change) + change
        left = moved - centred @ matrix
        shift, residual = mean_after - mean_before @ matrix, (rows.weights * left).T @ left
        found = _with_fixed(rows, ridge, len(seen[0].before), seen[0].views) if rows.fixed is not None else None
        if found is None:
            return cls(matrix, shift, residual, rows.share(left))
        of_means, of_fixed, shift_of_means, penalty = found
        assert rows.fixed is not None
        left = rows.after - rows.before @ of_means - by_parts(rows.fixed, of_fixed) - shift_of_means
        return cls(matrix, shift, residual, rows.share(left), of_means, of_fixed, shift_of_means, penalty)

    def take(self, statistics: ClassStatistics, with_residual: bool = True) -> ClassStatistics:
        means = None
        if self.of_means is not None and self.of_fixed is not None:
            if statistics.fixed is None:
                raise ValueError("this map is of fixed features, too, and these class statistics have none")
            means = statistics.means.double() @ self.of_means + statistics.fixed.double() @ self.of_fixed
            means = means if self.shift_of_means is None else means + self.shift_of_means
        return statistics.moved(self.matrix, self.shift, self.residual if with_residual else None, means)


@dataclass(frozen=True)
class _Rows:
    """All that was seen, weights summing up to one. In double precision, but for fixed features, which are many."""

    before: Tensor
    after: Tensor
    weights: Tensor  # [rows, 1]
    labels: Tensor | None
    fixed: Tensor | None

    @classmethod
    def of(cls, seen: Sequence[SeenByBoth]) -> _Rows:
        before = torch.cat([part.before for part in seen]).double()
        weights = torch.cat([torch.full((len(part.before), 1), part.weight / len(part.before)) for part in seen])
        labels = [part.labels for part in seen if part.labels is not None]
        fixed = [part.fixed for part in seen if part.fixed is not None]
        return cls(
            before,
            torch.cat([part.after for part in seen]).double(),
            (weights / weights.sum()).to(before),
            torch.cat(labels).to(before.device) if len(labels) == len(seen) else None,
            torch.cat(fixed).to(before.device) if len(fixed) == len(seen) else None,
        )

    def mean(self, values: Tensor) -> Tensor:
        return (self.weights * values).sum(dim=0)

    def mean_of_fixed(self, parts: Sequence[Tensor], middle: Tensor | None = None) -> Tensor:
        """Of fixed features, part by part; or of the squares of how far they are from the middle."""
        assert self.fixed is not None
        found = torch.zeros(self.fixed.shape[1]).to(self.before)
        for its in parts:
            values = self.fixed[its].double()
            values = values if middle is None else (values - middle).square()
            found += self.weights[its, 0] @ values
        return found

    def share(self, left: Tensor) -> float:
        size = (self.weights * self.after.square()).sum().clamp_min(1e-300)  # features may all be zero
        return float((self.weights * left.square()).sum() / size)


def _with_fixed(rows: _Rows, ridge: float, first: int, views: int) -> tuple[Tensor, Tensor, Tensor, float] | None:
    """Old features and fixed ones to new features: two matrices, a shift, and the penalty of fixed features.

    None where they do not help. Tried on the first rows, in folds of whole classes: how well is the mean of the classes
    held out foretold, in deviations inside classes?
    """
    assert rows.fixed is not None
    fold_of, groups = _groups(rows, first, views)
    if fold_of is None:
        return None
    width = rows.before.shape[1]
    folds = [torch.nonzero(fold_of == fold).flatten() for fold in (-1, *range(FOLDS))]
    mean_before, mean_fixed = rows.mean(rows.before), rows.mean_of_fixed(folds)
    sizes = rows.mean_of_fixed(folds, mean_fixed).sqrt()
    sizes = torch.where(sizes > 1e-6 * sizes.max().clamp_min(TINY), sizes, torch.inf)
    basis = None
    if len(rows.fixed) < len(
        sizes
    ):  # the penalty is the same in all directions, and keeps those that no row has at zero
        basis = row_space((rows.fixed.double() - mean_fixed) / sizes)
    base = torch.full((width + (len(sizes) if basis is None else basis.shape[1]) + 1,), TINY).to(sizes)
    base[:width] += (ridge + TINY) * rows.mean((rows.before - mean_before).square()).mean()

    def in_and_out(its: Tensor) -> Tensor:
        """Inputs, and behind them changes."""
        assert rows.fixed is not None
        fixed = (rows.fixed[its].double() - mean_fixed) / sizes
        fixed = fixed if basis is None else fixed @ basis
        before, one = rows.before[its], torch.ones_like(rows.weights[its])
        return torch.cat([before - mean_before, fixed, one, rows.after[its] - before], dim=1)

    def solved(products: Tensor, penalty: float | None) -> Tensor:
        """`products` of inputs with inputs and, behind them, with changes. No penalty: of old features alone."""
        alone = [*range(width), len(base) - 1]
        used = torch.tensor(alone if penalty is None else range(len(base)), device=base.device)
        penalties = base.clone()
        penalties[width:-1] = penalty or 0.0
        gram = products[used][:, used] + torch.diag(penalties[used])
        found = torch.zeros_like(products[:, len(base) :])
        found[used] = torch.cholesky_solve(products[used][:, len(base) :], torch.linalg.cholesky(gram))
        return found

    parts, means_of = [], []
    for its in folds:
        values = in_and_out(its)
        parts.append((rows.weights[its] * values[:, : len(base)]).T @ values)
        means_of.append(_means(values, groups[its]) if len(its) else None)
    total = functools.reduce(torch.add, parts)
    metric = _metric(rows, first, groups)
    errors = dict.fromkeys((None, *PENALTIES), 0.0)
    for means, part in zip(means_of[1:], parts[1:], strict=True):
        if means is None:
            continue
        for penalty in errors:
            wrong = means[:, len(base) :] - means[:, : len(base)] @ solved(total - part, penalty)
            errors[penalty] += float((wrong @ metric).square().sum())
    best = min(errors, key=lambda penalty: errors[penalty])
    if best is None:
        return None
    solution = solved(total, best)
    matrix = torch.eye(width).to(solution) + solution[:width]
    of_fixed = (solution[width:-1] if basis is None else basis @ solution[width:-1]) / sizes[:, None]
    return matrix, of_fixed, solution[-1] - mean_before @ solution[:width] - mean_fixed @ of_fixed, best


def _groups(rows: _Rows, first: int, views: int) -> tuple[Tensor | None, Tensor]:
    """The fold of each row, -1 for those that are never held out, and the group that it is judged with: its class.

    Of fewer than three classes, single images are held out, in all their views. None of a single image.
    """
    if rows.labels is not None:
        names, of = rows.labels[:first].unique(return_inverse=True)
        if len(names) >= LEAST_CLASSES:
            return F.pad(of % FOLDS, (0, len(rows.before) - first), value=-1), rows.labels
    each, images = torch.arange(len(rows.before), device=rows.before.device), first // views
    if images < 2:
        return None, each
    return torch.where(each < first, each % images % FOLDS, -1), each


def _metric(rows: _Rows, first: int, groups: Tensor) -> Tensor:
    """By which errors are measured: the inverse of the covariance of new features in a group, or of all of them."""
    after, of = rows.after[:first], groups[:first].unique(return_inverse=True)[1]
    centred = after - _means(after, groups[:first])[of] if int(of.max()) + 1 < first else after - after.mean(dim=0)
    covariance = centred.T @ centred / first
    size = covariance.diagonal().mean().clamp_min(1e-30)
    return torch.linalg.cholesky(torch.linalg.inv(covariance + FLOOR * size * torch.eye(len(covariance)).to(after)))


def row_space(rows: Tensor) -> Tensor:
    """[values, rows]: orthogonal directions that all rows, fewer than they have values, are made of."""
    basis: Tensor = torch.linalg.qr(rows.T).Q
    return basis


def by_parts(values: Tensor, matrix: Tensor) -> Tensor:
    """`values @ matrix` in double precision, some rows at a time."""
    return torch.cat([part.double() @ matrix for part in values.split(AT_ONCE)])


def _means(values: Tensor, groups: Tensor) -> Tensor:
    names, of = groups.unique(return_inverse=True)
    sums = torch.zeros(len(names), values.shape[1]).to(values).index_add_(0, of, values)
    return sums / torch.bincount(of)[:, None]
