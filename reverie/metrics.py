"""One accuracy matrix, and every figure derived from it. docs/metrics.md defines each name in words and as a formula.

The matrix has a row for each task learned and a column for each task judged: `matrix[i, j]` is the share of task j's
test images that the classifier names rightly after task i, among all classes seen by then. Above the diagonal stands
NaN. All figures are shares between 0 and 1, or differences of such; people are shown percents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
CALIBRATION_BINS = 15  # of confidence


@dataclass(frozen=True)
class Metrics:
    final_accuracy: float  # A_N
    average_incremental_accuracy: float
    forgetting: float | None
    backward_transfer: float | None
    omega: float | None
    accuracy_after: list[float]  # A_1 .. A_N
    omega_up_to: list[float] | None
    task_local_accuracy: list[float]  # after the last task, by task


def accuracy_matrix(right: Sequence[NDArray[np.bool_]], tasks: Sequence[NDArray[np.int64]]) -> Matrix:
    """From what was right after each task: `right[i]` and the task of each test image, `tasks[i]`."""
    count = len(right)
    matrix = np.full((count, count), np.nan)
    for i in range(count):
        for j in range(i + 1):
            matrix[i, j] = right[i][tasks[i] == j].mean()
    return matrix


def accuracy_after(matrix: Matrix, images: Sequence[int]) -> list[float]:
    """A_i: over the test images of all classes seen after task i. `images` counts test images by task."""
    return [float(np.average(matrix[i, : i + 1], weights=images[: i + 1])) for i in range(len(matrix))]


def forgetting_by_task(matrix: Matrix) -> list[float]:
    """Of each task but the last: the best accuracy it ever had before the end, less the one at the end."""
    last = len(matrix) - 1
    return [float(np.max(matrix[j:last, j]) - matrix[last, j]) for j in range(last)]


def forgetting(matrix: Matrix) -> float | None:
    """Their mean; one task has nothing to forget."""
    lost = forgetting_by_task(matrix)
    return float(np.mean(lost)) if lost else None


def backward_transfer(matrix: Matrix) -> float | None:
    """Mean over all tasks but the last of: accuracy at the end, less accuracy just after it was learned."""
    last = len(matrix) - 1
    if last < 1:
        return None
    return float(np.mean([matrix[last, j] - matrix[j, j] for j in range(last)]))


def omega_up_to(after: Sequence[float], offline: Sequence[float]) -> list[float]:
    """For each t, the mean over i <= t of A_i over the upper bound's accuracy on the same classes."""
    ratios = np.asarray(after) / np.asarray(offline)
    return [float(value) for value in np.cumsum(ratios) / np.arange(1, len(ratios) + 1)]


def summarise(
    matrix: Matrix, images: Sequence[int], local: Sequence[float], offline: Sequence[float] | None = None
) -> Metrics:
    """Every figure. `offline` holds the upper bound's accuracy for each class prefix, where it is known."""
    after = accuracy_after(matrix, images)
    omegas = omega_up_to(after, offline) if offline is not None else None
    return Metrics(
        final_accuracy=after[-1],
        average_incremental_accuracy=float(np.mean(after)),
        forgetting=forgetting(matrix),
        backward_transfer=backward_transfer(matrix),
        omega=omegas[-1] if omegas else None,
        accuracy_after=after,
        omega_up_to=omegas,
        task_local_accuracy=list(local),
    )


def calibration_error(confidence: Sequence[float], right: Sequence[bool], bins: int = CALIBRATION_BINS) -> float:
    """The expected calibration error: how far confidence is from accuracy, in bins of equal width, by their images."""
    sure, correct = np.asarray(confidence, dtype=np.float64), np.asarray(right, dtype=np.float64)
    place = np.clip(np.ceil(sure * bins).astype(int) - 1, 0, bins - 1)  # a bin has its upper edge and not its lower
    gaps = np.bincount(place, weights=correct - sure, minlength=bins)
    return float(np.abs(gaps).sum() / len(sure))
