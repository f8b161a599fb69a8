"""Rehearsal: learn from new images and a coreset side by side, with or without a teacher."""

from __future__ import annotations

from reverie.data.feed import Source
from reverie.data.stream import Task
from reverie.methods.coreset import CoresetMethod
from reverie.methods.lwf import LwF


class Rehearsal(CoresetMethod):
    """Cross-entropy over all classes seen, half of each batch new images, half drawn from the coreset."""

    title = "Naive Rehearsal"
    selection = "random"

    def sources(self, task: Task) -> list[Source]:
        if not len(self.coreset):
            return super().sources(task)
        half = self.config.train.batch_size // 2
        return [
            self.source(task.images, self.config.train.batch_size - half),
            Source(self.coreset.images, half, rule="replace"),
        ]


class LwFCoreset(Rehearsal, LwF):
    """Rehearsal with the losses of LwF, both of them on the whole batch."""

    title = "LwF (coreset)"
