"""What a classifier predicts for every test image: one pass, small enough to keep; all figures are made of it."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

    from reverie.data.images import Images
    from reverie.learner.task_learner import TaskLearner

TOP = 5  # classes kept for every image

Numbers = NDArray[np.int32]


@dataclass(frozen=True)
class Predictions:
    """Labels in learned order: the true one, those predicted (best first), and the best among the image's own task.

    Where the classifier corrects its logits: also those it would have predicted otherwise.
    """

    label: Numbers
    top: Numbers
    local: Numbers | None = None
    uncorrected: Numbers | None = None

    def right(self, top: int = 1) -> NDArray[np.bool_]:
        """Is the true class among the first `top` predicted?"""
        found: NDArray[np.bool_] = (self.top[:, :top] == self.label[:, None]).any(axis=1)
        return found

    def accuracy(self, top: int = 1) -> float:
        return float(self.right(top).mean())

    def tasks(self, sizes: Sequence[int]) -> NDArray[np.int64]:
        """The task of each image, where `sizes` counts classes by task."""
        return np.searchsorted(np.cumsum(sizes), self.label, side="right")

    def before_correction(self) -> Predictions:
        return self if self.uncorrected is None else replace(self, top=self.uncorrected)

    def without_local(self) -> Predictions:
        """For another split of the same classes, in which tasks are others."""
        return replace(self, local=None)

    def to_bytes(self) -> bytes:
        arrays = {name: array for name, array in vars(self).items() if array is not None}
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> Predictions:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            return cls(arrays["label"], arrays["top"], arrays.get("local"), arrays.get("uncorrected"))


def predict_test_images(
    learner: TaskLearner, test: Images, sizes: Sequence[int], batch_size: int | None = None
) -> Predictions:
    """`sizes` counts classes by task."""
    import torch

    label = test.labels.numpy().astype(np.int32)
    task = torch.from_numpy(Predictions(label, label[:, None]).tasks(sizes))
    last = torch.tensor(sizes).cumsum(0)[task][:, None]
    first = last - torch.tensor(sizes)[task][:, None]
    top, local, uncorrected, row = [], [], [], 0
    for logits in learner.logits(test, batch_size):
        rows = slice(row, row + len(logits))
        row += len(logits)
        classes = torch.arange(logits.shape[1])
        own = (classes >= first[rows]) & (classes < last[rows])
        top.append(_best(logits))
        local.append(logits.masked_fill(~own, -torch.inf).argmax(dim=1))
        if learner.classifier.corrected and learner.classifier.answering_head is None:
            uncorrected.append(_best(learner.classifier.before_correction(logits)))
    parts = [part for part in (top, local, uncorrected) if part]
    return Predictions(label, *(torch.cat(part).numpy().astype(np.int32) for part in parts))


def _best(logits: Tensor) -> Tensor:
    return logits.topk(min(TOP, logits.shape[1])).indices
