"""Heads: from features to a score for each class."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class LinearHead(nn.Module):
    """A linear layer with bias, a row a class."""

    def __init__(self, feature_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(0, feature_dim))
        self.bias = nn.Parameter(torch.empty(0))

    @property
    def rows(self) -> int:
        return len(self.weight)

    def grow(self, rows: int, rng: torch.Generator) -> None:
        """Add rows below the others, which stay as they are: Kaiming-normal weights, uniform bias."""
        feature_dim = self.weight.shape[1]
        weight = torch.randn(rows, feature_dim, generator=rng) * math.sqrt(2 / feature_dim)
        bias = (2 * torch.rand(rows, generator=rng) - 1) / math.sqrt(feature_dim)
        self.weight = nn.Parameter(torch.cat([self.weight.detach(), weight.to(self.weight)]))
        self.bias = nn.Parameter(torch.cat([self.bias.detach(), bias.to(self.bias)]))

    def forward(self, features: Tensor) -> Tensor:
        with torch.autocast(features.device.type, enabled=False):  # small, and losses deserve better logits
            return F.linear(features, self.weight, self.bias)

    def select(self, rows: Tensor) -> None:
        """Keep these rows alone, in this order."""
        self.weight = nn.Parameter(self.weight[rows].detach())
        self.bias = nn.Parameter(self.bias[rows].detach())
