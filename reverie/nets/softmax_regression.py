"""Softmax regression: the linear layer under which labels are likeliest, to convergence."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

MOST_STEPS = 200


def softmax_regression(features: Tensor, labels: Tensor, classes: int, decay: float = 1e-4) -> tuple[Tensor, Tensor]:
    """Weight [classes, n] and bias [classes], by the method of Newton's kind that needs no rate (L-BFGS).

    `decay` times half the squared weights, for features of unit variance, is added to the mean cross-entropy: classes
    that can be told apart for sure would make them grow without end.
    """
    wide = features.double()
    mean, deviation = wide.mean(dim=0), wide.std(dim=0, correction=0).clamp_min(1e-6)
    inputs = (wide - mean) / deviation
    with torch.enable_grad():
        weight = torch.zeros(classes, wide.shape[1]).to(inputs).requires_grad_()
        bias = torch.zeros(classes).to(inputs).requires_grad_()
        optimizer = torch.optim.LBFGS([weight, bias], max_iter=MOST_STEPS, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            optimizer.zero_grad()
            found = F.cross_entropy(F.linear(inputs, weight, bias), labels) + decay / 2 * weight.square().sum()
            found.backward()
            return found

        optimizer.step(loss)
    unscaled = weight.detach() / deviation
    return unscaled.float(), (bias.detach() - unscaled @ mean).float()
