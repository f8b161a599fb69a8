"""Every loss as a pure function of tensors. docs/method.md has the equations; names follow the paper's ideas.

Nothing here waits for the device: no value is read back, no shape depends on data. Half-precision inputs are widened,
so that sums over many numbers are made in single precision.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from reverie.nets.layers import widened

STATISTICS_EPSILON = 1e-8
DISTANCE_FLOOR = 1e-12  # rows that are closer (squared) are the same point: there is no direction between them
PROBABILITY_FLOOR = 1e-12  # keeps the logarithm of a class that no dream belongs to finite

# --- learning a task ------------------------------------------------------------------------------------------------


def cross_entropy(
    logits: Tensor, labels: Tensor, weights: Tensor | None = None, smoothing: float = 0.0, real: int | None = None
) -> Tensor:
    """Mean over the rows of (weight times) cross-entropy: divided by the number of rows, not by the sum of weights.

    `smoothing` is the share of a label that is spread over all classes, in the first `real` rows; none: in all of them.
    """
    by_row = _smoothed_by_row(widened(logits), labels, smoothing, real)
    return (by_row if weights is None else weights * by_row).mean()


def _smoothed_by_row(
    logits: Tensor, labels: Tensor, smoothing: float, real: int | None, weights: Tensor | None = None
) -> Tensor:
    """`weights`: of the classes."""
    if not smoothing or real is None:
        return F.cross_entropy(logits, labels, weights, reduction="none", label_smoothing=smoothing)
    smoothed = F.cross_entropy(logits[:real], labels[:real], weights, reduction="none", label_smoothing=smoothing)
    return torch.cat([smoothed, F.cross_entropy(logits[real:], labels[real:], weights, reduction="none")])


def local_cross_entropy(
    logits: Tensor, labels: Tensor, first: int, weights: Tensor | None = None, smoothing: float = 0.0
) -> Tensor:
    """Cross-entropy among the task's own classes, which begin at `first`: old and new never compete (eq. 11).

    With weights there may be rows of old classes; theirs must be 0.
    """
    own = labels - first if weights is None else (labels - first).clamp_min(0)
    return cross_entropy(logits[:, first:], own, weights, smoothing)


def balanced_cross_entropy(
    logits: Tensor, labels: Tensor, weights: Tensor, smoothing: float = 0.0, real: int | None = None
) -> Tensor:
    """Cross-entropy with a weight for each class, divided by the sum of the weights of the rows."""
    if not smoothing:
        return F.cross_entropy(widened(logits), labels, widened(weights))
    by_row = _smoothed_by_row(widened(logits), labels, smoothing, real, widened(weights))
    return by_row.sum() / widened(weights)[labels].sum()


def binary_cross_entropy(
    logits: Tensor, labels: Tensor, taught: Tensor | None = None, smoothing: float = 0.0
) -> Tensor:
    """Every class a yes or no of its own, summed over classes, mean over rows.

    The label says which, but for the classes that a teacher has logits of: there it is as sure as the teacher.
    `smoothing` is the share of a label that is spread over all classes.
    """
    logits = widened(logits)
    targets = (labels.unsqueeze(1) == torch.arange(logits.shape[1], device=labels.device)).to(logits.dtype)
    if smoothing:
        targets = (1 - smoothing) * targets + smoothing / logits.shape[1]
    if taught is not None:
        targets = torch.cat([widened(taught).sigmoid(), targets[:, taught.shape[1] :]], dim=1)
    return F.binary_cross_entropy_with_logits(logits, targets, reduction="sum") / len(logits)


def task_weights(labels: Tensor, old: int, total: int) -> Tensor:
    """Weights that balance the tasks: old/total for a row of an old class, new/total for a row of a new one."""
    share = old / total
    return torch.where(labels < old, share, 1 - share)


def distillation(student: Tensor, teacher: Tensor, temperature: float = 2.0) -> Tensor:
    """Cross-entropy between softened predictions over the classes given (Hinton's form, without a factor T²)."""
    targets = F.softmax(widened(teacher) / temperature, dim=1)
    return _soft_cross_entropy(student, targets, temperature)


def distillation_by_task(student: Tensor, teacher: Tensor, sizes: Sequence[int], temperature: float = 2.0) -> Tensor:
    """Distillation among each task's own classes, a task weighing as much as it has classes. `sizes` counts them."""
    pairs = zip(sizes, student.split([*sizes], dim=1), teacher.split([*sizes], dim=1), strict=True)
    parts = [size / sum(sizes) * distillation(ours, theirs, temperature) for size, ours, theirs in pairs]
    return torch.stack(parts).sum()


def padded_distillation(student: Tensor, teacher: Tensor, temperature: float = 2.0) -> Tensor:
    """The same over all the student's classes, with probability zero for those the teacher does not know (eq. 9)."""
    targets = F.softmax(widened(teacher) / temperature, dim=1)
    return _soft_cross_entropy(student, F.pad(targets, (0, student.shape[1] - teacher.shape[1])), temperature)


def weighted_feature_distillation(student: Tensor, teacher: Tensor, head: Tensor) -> Tensor:
    """How far features moved in the directions that matter to old classes: both seen through the old head (eq. 13).

    Mean of squares over rows and old classes. The head's bias would cancel: only its weight [classes, features] counts.
    """
    moved = widened(student) - widened(teacher)
    with torch.autocast(moved.device.type, enabled=False):
        return F.linear(moved, widened(head)).square().mean()


def logit_distillation(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean absolute difference of the logits themselves (R-DFCIL's hard distillation)."""
    return F.l1_loss(widened(student), widened(teacher))


def relation_distillation(student: Tensor, teacher: Tensor) -> Tensor:
    """How differently the rows lie to each other: mean difference of all angles' cosines (R-DFCIL).

    For every triplet (i, j, k): the angle at i, between j and k. With unit vectors s and t between the rows of student
    and teacher, one product (s, t)(s, -t)' holds the difference for every triplet.
    """
    with torch.autocast(student.device.type, enabled=False):
        s, t = _directions(widened(student)), _directions(widened(teacher))
        return torch.bmm(torch.cat([s, t], dim=2), torch.cat([s, -t], dim=2).mT).abs().mean()


def _directions(points: Tensor) -> Tensor:
    """At [i, j] the unit vector from row i to row j; where both are the same point, zero, and no gradient."""
    way = points.unsqueeze(0) - points.unsqueeze(1)
    squared = way.square().sum(dim=2, keepdim=True)
    apart = squared > DISTANCE_FLOOR
    return way * (squared.masked_fill(~apart, 1).rsqrt() * apart)


def _soft_cross_entropy(student: Tensor, targets: Tensor, temperature: float) -> Tensor:
    return -(targets * F.log_softmax(widened(student) / temperature, dim=1)).sum(dim=1).mean()


# --- generative replay ----------------------------------------------------------------------------------------------


def reconstruction(logits: Tensor, images: Tensor, weights: Tensor) -> Tensor:
    """Binary cross-entropy of pixels between 0 and 1: mean over an image, times its weight, mean over the images."""
    by_pixel = F.binary_cross_entropy_with_logits(widened(logits), widened(images), reduction="none")
    return (weights * by_pixel.flatten(1).mean(dim=1)).mean()


def code_divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL between what an image is encoded as and standard normal noise: sum over its numbers, mean over images."""
    mean, log_variance = widened(mean), widened(log_variance)
    return 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(dim=1).mean()


# --- dreaming -------------------------------------------------------------------------------------------------------


def content(logits: Tensor, temperature: float) -> Tensor:
    """The teacher should be sure of its own first choice. At temperature 1000: a gentle constant push (eq. 2)."""
    return F.cross_entropy(widened(logits) / temperature, logits.argmax(dim=1))


def diversity(logits: Tensor) -> Tensor:
    """0 when the batch holds every class equally, 1 when it holds one; 0 where there is but one class (eq. 1)."""
    classes = logits.shape[1]
    if classes == 1:
        return widened(logits).sum() * 0
    mean = F.softmax(widened(logits), dim=1).mean(dim=0)
    return 1 + (mean * mean.clamp_min(PROBABILITY_FLOOR).log()).sum() / math.log(classes)


def statistics_gap(mean: Tensor, variance: Tensor, true_mean: Tensor, true_variance: Tensor) -> Tensor:
    """One layer's KL(N(true) || N(dreamed)), mean over its channels (eq. 5)."""
    variance, true_variance = variance + STATISTICS_EPSILON, true_variance + STATISTICS_EPSILON
    ratio = (true_variance + (true_mean - mean).square()) / variance
    return 0.5 * ((variance / true_variance).log() - 1 + ratio).mean()


def statistics(layers: Sequence[tuple[Tensor, Tensor, Tensor, Tensor]]) -> Tensor:
    """Mean over the layers of `statistics_gap`: do dreams excite the teacher as its training images did? (eq. 4)."""
    return torch.stack([statistics_gap(*layer) for layer in layers]).mean()


def batch_statistics(activations: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance by channel, over everything else."""
    wide = widened(activations)
    across = [dim for dim in range(wide.ndim) if dim != 1]
    variance, mean = torch.var_mean(wide, dim=across, correction=0)
    return mean, variance


def smoothness(images: Tensor, blur: Tensor) -> Tensor:
    """Mean squared difference between square images and their blur: neighbours in a picture are alike (eq. 6)."""
    with torch.autocast(images.device.type, enabled=False):
        images = widened(images)
        return F.mse_loss(images, blur @ images @ blur.T)  # down and across


def blur_matrix(size: int) -> Tensor:
    """Gaussian blur of a line of pixels with reflected borders: a row for each pixel that comes out.

    Five taps. The published formula divides by 2 sigma before it squares: its sigma of 1 acts as the root of 2.
    """
    taps = torch.exp(-((torch.arange(-2, 3, dtype=torch.float64) / 2) ** 2))
    lines = F.pad(torch.eye(size, dtype=torch.float64)[None], (2, 2), mode="reflect")[0]  # each lights up one pixel
    return (taps / taps.sum() * lines.unfold(1, 5, 1)).sum(dim=2).T.contiguous()
