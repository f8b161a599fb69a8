"""Mixup (Zhang et al., 2018): each image of a batch is shown through another one of it."""

from __future__ import annotations

import random

import torch
from torch import Tensor

from reverie.seeding import derive


class Mixer:
    """For every batch one share, drawn from Beta(alpha, alpha), and how far along the batch an image finds its partner.

    Both are a function of (epoch, step), planned on the host an epoch ahead, like the random numbers of augmentation.
    """

    def __init__(self, alpha: float, steps: int, rows: int, device: torch.device) -> None:
        self.alpha = alpha
        self._shares = torch.ones(steps, device=device)
        self._distances = torch.zeros(steps, dtype=torch.long, device=device)
        self._row = torch.arange(rows, device=device)

    def begin(self, seed: int) -> None:
        rng, steps, rows = random.Random(derive(seed, "mixup")), len(self._shares), len(self._row)
        plan = [(rng.betavariate(self.alpha, self.alpha), rng.randrange(1, rows)) for _ in range(steps)]
        self._shares.copy_(torch.tensor([share for share, _ in plan]))
        self._distances.copy_(torch.tensor([distance for _, distance in plan]))

    def __call__(self, images: Tensor, labels: Tensor, step: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mixed images, the labels of their partners, and the share of each image itself. Only tensor arithmetic."""
        step = (step % len(self._shares)).view(1)  # as a list of one: a number's value would be read back
        share = self._shares[step][0]
        partner = (self._row + self._distances[step]) % len(self._row)
        return share * images + (1 - share) * images[partner], labels[partner], share
