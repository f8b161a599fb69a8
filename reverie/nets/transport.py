"""Transport: one affine map from the features of an old network to those of the new one.

It is fitted on images that both networks have seen, and takes class statistics along, of images that are gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reverie.nets.class_statistics import ClassStatistics


@dataclass(frozen=True)
class SeenByBoth:
    """Features of the same images, [images, features], by the old network and by the new one.

    Together they weigh `weight`, however many there are.
    """

    before: Tensor
    after: Tensor
    weight: float = 1.0


@dataclass(frozen=True)
class Transport:
    """`features @ matrix + shift`, and the covariance of what that leaves unexplained."""

    matrix: Tensor
    shift: Tensor
    residual: Tensor
    unexplained: float  # the residual's share of the new features' mean square

    @classmethod
    def fit(cls, seen: Sequence[SeenByBoth], ridge: float) -> Transport:
        """By weighted least squares. `ridge`, as a share of the mean variance, draws it towards no change at all.

        So where few images tell little, features are taken to stay where they were.
        """
        before = torch.cat([part.before for part in seen]).double()
        after = torch.cat([part.after for part in seen]).double()
        weights = torch.cat([torch.full((len(part.before), 1), part.weight / len(part.before)) for part in seen])
        weights = (weights / weights.sum()).to(before)
        mean_before, mean_after = (weights * before).sum(dim=0), (weights * after).sum(dim=0)
        centred, moved = before - mean_before, after - mean_after
        spread = (weights * centred).T @ centred
        spread.diagonal().add_(ridge * spread.diagonal().mean() + 1e-12)
        change = torch.linalg.solve(spread, (weights * centred).T @ (moved - centred))
        matrix = torch.eye(len(change)).to(change) + change
        left = moved - centred @ matrix
        residual = (weights * left).T @ left
        size = (weights * after.square()).sum().clamp_min(1e-300)  # features may all be zero
        return cls(matrix, mean_after - mean_before @ matrix, residual, float(residual.trace() / size))

    def take(self, statistics: ClassStatistics, with_residual: bool = True) -> ClassStatistics:
        return statistics.moved(self.matrix, self.shift, self.residual if with_residual else None)
