"""MID and MMD by plain loops."""

from __future__ import annotations

import math


def kernel_by_hand(x, y, bandwidth):
    return math.exp(-math.fsum((p - q) ** 2 for p, q in zip(x, y, strict=True)) / (2 * bandwidth**2))


def mid_by_hand(a, b):
    total = 0.0
    for k in range(a.shape[1]):
        mean_a, mean_b = math.fsum(a[:, k]) / len(a), math.fsum(b[:, k]) / len(b)
        variance = math.fsum((value - mean_a) ** 2 for value in a[:, k]) / len(a)
        total += (mean_a - mean_b) ** 2 / variance
    return math.sqrt(total)


def mmd_by_hand(a, b, bandwidth):
    m, n = len(a), len(b)
    within_a = sum(kernel_by_hand(a[i], a[j], bandwidth) for i in range(m) for j in range(m) if i != j)
    within_b = sum(kernel_by_hand(b[i], b[j], bandwidth) for i in range(n) for j in range(n) if i != j)
    between = sum(kernel_by_hand(x, y, bandwidth) for x in a for y in b)
    return within_a / (m * (m - 1)) + within_b / (n * (n - 1)) - 2 * between / (m * n)
