"""The frame of all methods that replay dreams: invert the teacher first, then learn beside its dreams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from reverie.config.schema import Config
from reverie.data.feed import Batch
from reverie.data.stream import Task
from reverie.engine.phase import Phase, Stage
from reverie.errors import UserError
from reverie.methods.base import Distiller, Keeps, Taught
from reverie.methods.drawer import Drawer
from reverie.methods.dreamer import Dreamer, without_memory
from reverie.nets.classifier import Classifier
from reverie.nets.statistics import can_remember


@dataclass(frozen=True)
class Replay(Taught):
    """A batch with as many dreams below its real images. The label of a dream is the class the teacher sees in it."""

    real: int  # rows of real images; the rest are dreams


class DreamReplay(Distiller):
    """Two phases: the dreamer's training, then learning with `losses`, computed from a `Replay`.

    Its `images`, `labels`, `taught_features` and `taught_logits` are those of `real` new images and, below them, of as
    many dreams; the label of a dream is the class that the teacher sees in it.
    """

    def __init__(self, classifier: Classifier, config: Config, device: torch.device) -> None:
        super().__init__(classifier, config, device)
        if config.dream.source == "images":
            self._refuse_drawing_without_statistics()
        elif not can_remember(classifier):
            raise without_memory(classifier)
        self.carried = config.dream.life == "carried"
        if self.carried:
            self.keeps |= Keeps.NETWORKS

    def begin(self, task: Task) -> None:
        super().begin(task)
        if self.teacher is None:
            return
        if self.config.dream.source == "images":
            config = self.config
            self.dreamer = Drawer(self.teacher, self.statistics, task.images, self.augment, config.seed, task.index)
        elif isinstance(self.dreamer, Dreamer):  # carried
            self.dreamer.teach(self.teacher, task.index)
        else:
            self.dreamer = self._new_dreamer(self.teacher, task.index)

    def phases(self, task: Task) -> Iterator[Phase | Stage]:
        if self.teacher is None or self.dreamer is None:
            yield from super().phases(task)
            return
        yield from self.dreamer.making()
        yield self.learning(task, self.losses, [self.teacher, *self.dreamer.resting], self.prepare)

    def end(self, task: Task) -> None:
        super().end(task)
        if not self.carried:
            self.dreamer = None
        elif isinstance(self.dreamer, Dreamer):
            self.dreamer.teach(self.classifier, task.index)  # lets go of the old teacher

    def prepare(self, batch: Batch, rng: torch.Generator) -> Replay:
        """Real rows first, then as many dreams; one pass of the teacher over both."""
        assert self.dreamer is not None
        real = len(batch.images)
        images = torch.cat([batch.images, self.dreamer.sample(real, rng)])
        features, logits = self.ask_teacher(images)
        labels = torch.cat([batch.labels, logits[real:].argmax(dim=1)])
        return Replay(images, labels, features, logits, real)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | ({"dreamer": self.dreamer.state_dict()} if self.dreamer is not None else {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        if self.carried and self.dreamer is None and "dreamer" in state:
            self.dreamer = self._new_dreamer(self.classifier, task=1)
        if self.dreamer is not None:
            self.dreamer.load_state_dict(state["dreamer"])

    @property
    def keeps_statistics(self) -> bool:
        return Keeps.STATISTICS in self.keeps

    def _refuse_drawing_without_statistics(self) -> None:
        if not self.keeps_statistics:
            raise UserError(
                "dream.source=images draws new images towards the statistics of old classes, and this method keeps "
                "none. Set method.statistics=true where the method has it, choose lucid, or leave dream.source at "
                "noise."
            )

    def _new_dreamer(self, teacher: Classifier, task: int) -> Dreamer:
        return Dreamer(teacher, self.config.dream, self.config.train.batch_size, self.config.seed, task)
