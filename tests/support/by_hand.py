"""The paper's formulas written out once more, number by number, for the tests to compare with.

Nothing here is vectorised and nothing is shared with the package: loops over samples and classes, on float64 scalars.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def softmax(row: Tensor, temperature: float = 1.0) -> list[Tensor]:
    exponentials = [torch.exp(value / temperature) for value in row]
    total = sum(exponentials)
    return [value / total for value in exponentials]


def cross_entropy(logits: Tensor, labels: Tensor, weights: list[float] | None = None) -> Tensor:
    total = torch.zeros(())
    for i, label in enumerate(labels.tolist()):
        weight = 1.0 if weights is None else weights[i]
        total = total - weight * torch.log(softmax(logits[i])[label])
    return total / len(labels)


def distillation(student: Tensor, teacher: Tensor, classes: int, temperature: float) -> Tensor:
    """Softmax of both inside the first `classes` classes."""
    total = torch.zeros(())
    for s, t in zip(student, teacher, strict=True):
        p, q = softmax(t[:classes], temperature), softmax(s[:classes], temperature)
        total = total - sum(p[k] * torch.log(q[k]) for k in range(classes))
    return total / len(student)


def distillation_by_task(student: Tensor, teacher: Tensor, sizes: list[int], temperature: float) -> Tensor:
    """Softmax of both inside each task; a task weighs its share of all classes."""
    total, first = torch.zeros(()), 0
    for size in sizes:
        ours, theirs = student[:, first : first + size], teacher[:, first : first + size]
        total = total + size / sum(sizes) * distillation(ours, theirs, size, temperature)
        first += size
    return total


def padded_distillation(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """The student's softmax over all its classes, the teacher's over its own, zero beyond."""
    total = torch.zeros(())
    for s, t in zip(student, teacher, strict=True):
        p, q = softmax(t, temperature), softmax(s, temperature)
        total = total - sum(p[k] * torch.log(q[k]) for k in range(len(t)))
    return total / len(student)


def weighted_features(student: Tensor, teacher: Tensor, head: Tensor, bias: Tensor) -> Tensor:
    """Mean over rows and classes of the squared difference of logits that the old head gives to both."""
    total = torch.zeros(())
    for s, t in zip(student, teacher, strict=True):
        for w, b in zip(head, bias, strict=True):
            ours = sum(w[d] * s[d] for d in range(len(w))) + b
            theirs = sum(w[d] * t[d] for d in range(len(w))) + b
            total = total + (ours - theirs) ** 2
    return total / (len(student) * len(head))


def abd_weights(labels: Tensor, old: int, total: int) -> list[float]:
    return [old / total if label < old else (total - old) / total for label in labels.tolist()]


def binary_cross_entropy(logits: Tensor, labels: Tensor, taught: Tensor | None = None) -> Tensor:
    """Targets: the label's one-hot row, overwritten by the teacher's sigmoids for the classes it knows."""
    total = torch.zeros(())
    for i, label in enumerate(labels.tolist()):
        for k in range(logits.shape[1]):
            target = 1.0 if k == label else 0.0
            if taught is not None and k < taught.shape[1]:
                target = 1 / (1 + torch.exp(-taught[i, k]))
            p = 1 / (1 + torch.exp(-logits[i, k]))
            total = total - target * torch.log(p) - (1 - target) * torch.log(1 - p)
    return total / len(labels)


def balanced_cross_entropy(logits: Tensor, labels: Tensor, class_weights: list[float]) -> Tensor:
    """Divided by the sum of the rows' weights."""
    weights = [class_weights[label] for label in labels.tolist()]
    return cross_entropy(logits, labels, weights) * len(labels) / sum(weights)


def absolute_difference(a: Tensor, b: Tensor) -> Tensor:
    total = torch.zeros(())
    for x, y in zip(a.flatten(), b.flatten(), strict=True):
        total = total + (x - y if x > y else y - x)
    return total / a.numel()


def angle(points: Tensor, i: int, j: int, k: int) -> Tensor:
    """The cosine of the angle at point i between points j and k; 0 where one of them is at i."""
    a, b = points[j] - points[i], points[k] - points[i]
    if not a.any() or not b.any():
        return torch.zeros(())
    return (a @ b) / torch.sqrt((a @ a) * (b @ b))


def relations(student: Tensor, teacher: Tensor) -> Tensor:
    total, rows = torch.zeros(()), range(len(student))
    for i in rows:
        for j in rows:
            for k in rows:
                ours, theirs = angle(student, i, j, k), angle(teacher, i, j, k)
                total = total + (ours - theirs if ours > theirs else theirs - ours)
    return total / len(student) ** 3


def reconstruction(logits: Tensor, images: Tensor, weights: list[float]) -> Tensor:
    total = torch.zeros(())
    for z, x, weight in zip(logits, images, weights, strict=True):
        image = torch.zeros(())
        for logit, pixel in zip(z.flatten(), x.flatten(), strict=True):
            p = 1 / (1 + torch.exp(-logit))
            image = image - pixel * torch.log(p) - (1 - pixel) * torch.log(1 - p)
        total = total + weight * image / x.numel()
    return total / len(images)


def code_divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL(N(m, v) || N(0, 1)), summed over an image's numbers, mean over images."""
    total = torch.zeros(())
    for m, v in zip(mean.flatten(), torch.exp(log_variance.flatten()), strict=True):
        total = total + (m * m + v - 1) / 2 - torch.log(torch.sqrt(v))
    return total / len(mean)


def content(logits: Tensor, temperature: float) -> Tensor:
    total = torch.zeros(())
    for row in logits:
        values = row.tolist()
        best = values.index(max(values))
        total = total - torch.log(softmax(row, temperature)[best])
    return total / len(logits)


def diversity(logits: Tensor) -> Tensor:
    classes = logits.shape[1]
    if classes == 1:
        return 0 * logits.sum()  # no choice, no loss
    rows = [softmax(row) for row in logits]
    entropy = torch.zeros(())
    for k in range(classes):
        p = sum(row[k] for row in rows) / len(rows)
        entropy = entropy - p * torch.log(p)
    return 1 - entropy / math.log(classes)


def statistics(inputs: list[Tensor], means: list[Tensor], variances: list[Tensor]) -> Tensor:
    """KL between two normal distributions, mean over channels, then over layers."""
    total = torch.zeros(())
    for x, rm, rv in zip(inputs, means, variances, strict=True):
        layer = torch.zeros(())
        for c in range(x.shape[1]):
            values = x[:, c].flatten()
            m = sum(values) / len(values)
            v = sum((value - m) ** 2 for value in values) / len(values) + 1e-8
            r = rv[c] + 1e-8
            layer = layer + torch.log(torch.sqrt(v) / torch.sqrt(r)) - 0.5 * (1 - (r + (rm[c] - m) ** 2) / v)
        total = total + layer / x.shape[1]
    return total / len(inputs)


def blurred(image: Tensor) -> Tensor:
    """One channel; 5 x 5 weights exp(-(dx² + dy²) / 4), borders reflected without repeating the edge."""
    height, width = image.shape
    weights = {(a, b): math.exp(-(a * a + b * b) / 4) for a in range(-2, 3) for b in range(-2, 3)}
    total = sum(weights.values())

    def reflected(i: int, size: int) -> int:
        return -i if i < 0 else 2 * (size - 1) - i if i >= size else i

    return torch.stack(
        [
            torch.stack(
                [
                    sum(
                        w / total * image[reflected(y + a, height), reflected(x + b, width)]
                        for (a, b), w in weights.items()
                    )
                    for x in range(width)
                ]
            )
            for y in range(height)
        ]
    )
