"""How far apart two samples of features lie: MID and MMD, in double precision. docs/diagnosis.md has the formulas."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

EPSILON = 1e-8  # a feature that deviates less does not vary

Sample = NDArray[np.float64]  # a row an image


def mean_image_distance(reference: Sample, other: Sample) -> float:
    """MID: between the two mean feature vectors, each feature in units of its deviation in the reference sample.

    A feature that does not vary there has no such unit and is left out.
    """
    deviation = reference.std(axis=0)
    alive = deviation > EPSILON
    gaps = (reference.mean(axis=0) - other.mean(axis=0))[alive] / deviation[alive]
    return float(np.linalg.norm(gaps))


def dead_features(reference: Sample) -> int:
    """How many features do not vary in a sample."""
    return int((reference.std(axis=0) <= EPSILON).sum())


def squared_distances(a: Sample, b: Sample) -> Sample:
    """Between every row of `a` and every row of `b`."""
    centre = a.mean(axis=0)  # small numbers lose fewer digits in the difference below
    a, b = a - centre, b - centre
    squares: Sample = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None] - 2 * a @ b.T
    return np.maximum(squares, 0.0)


def median_distance(squares: Sample) -> float:
    """Of all pairs of different rows of one sample, from its squared distances."""
    pairs = np.sqrt(squares[np.triu_indices(len(squares), k=1)])
    return float(np.median(pairs)) or 1.0  # where most rows are equal, any unit will do


def gaussian_kernel(squares: Sample, bandwidth: float) -> Sample:
    kernel: Sample = np.exp(squares / (-2 * bandwidth**2))
    return kernel


def unbiased_squared_mmd(within_a: Sample, within_b: Sample, between: Sample) -> float:
    """From the kernel within each sample and between them. Its mean over samples is the true value, so for two samples
    of one distribution it is as often below zero as above.
    """
    return float(_mean_of_pairs(within_a) + _mean_of_pairs(within_b) - 2 * between.mean())


def _mean_of_pairs(kernel: Sample) -> float:
    """Of different rows: no row is paired with itself."""
    count = len(kernel)
    return float((kernel.sum() - np.trace(kernel)) / (count * (count - 1)))
