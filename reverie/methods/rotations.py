"""Turned images as further classes (`train.rotations`): which class does an image show, and which way up is it?"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from reverie.methods.losses import cross_entropy

TURNS = 4  # by 0, 90, 180 and 270 degrees


class RotationHead(nn.Module):
    """A linear layer with a row for each new class each way up. It is gone when the classes are learned."""

    def __init__(self, feature_dim: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(feature_dim, TURNS * classes)

    def forward(self, features: Tensor) -> Tensor:
        with torch.autocast(features.device.type, enabled=False):
            logits: Tensor = self.linear(features)
            return logits


def turned(images: Tensor, all_ways: bool = True) -> Tensor:
    """All images as they are, then all of them turned by 90 degrees, and so on; or a quarter of them each way."""
    if all_ways:
        return torch.cat([torch.rot90(images, turns, (2, 3)) for turns in range(TURNS)])
    return torch.cat([torch.rot90(images[turns::TURNS], turns, (2, 3)) for turns in range(TURNS)])


def rotation_loss(logits: Tensor, labels: Tensor, first: int, smoothing: float = 0.0, all_ways: bool = True) -> Tensor:
    """Cross-entropy over class and turn of the images of new classes, which begin at `first`; mean over all rows.

    `logits` are those of `turned` images, `labels` those of the images themselves.
    """
    shown = [labels if all_ways else labels[turns::TURNS] for turns in range(TURNS)]
    targets = torch.cat([TURNS * (part - first).clamp_min(0) + turns for turns, part in enumerate(shown)])
    new = torch.cat([part >= first for part in shown]).to(logits.dtype)
    return cross_entropy(logits, targets, new, smoothing)
