"""Bias correction (Wu et al.): learn with distillation, then correct the new classes' logits on held-out images."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from reverie.config.schema import LearningRate, Temperature, about, settings
from reverie.data.feed import Batch, Source
from reverie.data.images import Images, join
from reverie.data.stream import Task
from reverie.engine.phase import SGD, Phase, Stage
from reverie.methods.base import Distiller, Taught
from reverie.methods.coreset import CoresetMethod
from reverie.methods.losses import cross_entropy, distillation

log = logging.getLogger("reverie")


class Correction(nn.Module):
    """One factor and one shift for the logits of all classes from `first` on."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self.first = first
        self.factor = nn.Parameter(torch.ones(()))
        self.shift = nn.Parameter(torch.zeros(()))

    def forward(self, logits: Tensor) -> Tensor:
        return torch.cat([logits[:, : self.first], self.factor * logits[:, self.first :] + self.shift], dim=1)


@dataclass(frozen=True)
class Answered:
    """What the classifier, at rest, makes of a batch."""

    logits: Tensor
    labels: Tensor


class BiC(CoresetMethod, Distiller):
    """Two phases: the network learns from new images and coreset, then two numbers from a balanced hold-out.

    The corrections of earlier tasks are part of the classifier, and of its copy, the teacher.
    """

    title = "BiC"
    selection = "herding"
    corrects = True
    correction: Correction | None = None

    @settings("method")
    class Options:
        temperature: Annotated[Temperature, about("of distillation")] = 2.0
        correction_lr: Annotated[LearningRate, about("of the bias correction")] = 0.001

    def sources(self, task: Task) -> list[Source]:
        images, _ = self._divided(task)
        return [self.source(images)]

    def phases(self, task: Task) -> Iterator[Phase | Stage]:
        yield from super().phases(task)
        _, held_out = self._divided(task)
        weighed = len(held_out.labels[held_out.labels < self.old].unique())
        if weighed < self.old:
            log.warning(
                "The coreset has a single image of %d of the %d old classes: BiC corrects its logits without them. "
                "A larger coreset.size helps.",
                self.old - weighed,
                self.old,
            )
        if not weighed:
            return  # nothing to weigh the new classes against
        train, self.correction = self.config.train, Correction(self.old).to(self.device)
        yield Phase(
            name="correct",
            feed=self.feed([Source(held_out, train.batch_size)]),
            losses=self.correcting_losses,
            optimizer=SGD(self.options.correction_lr, train.momentum, train.weight_decay, self.schedule()),
            moves={"correction": self.correction},
            rests=[self.classifier],
            epochs=train.epochs,
            prepare=self.prepare_correcting,
        )

    def losses(self, batch: Taught) -> Mapping[str, Tensor]:
        logits, share = self.classifier(batch.images), self.old / self.total
        kd = distillation(logits[:, : self.old], batch.taught_logits, self.options.temperature)
        return {"cross_entropy": (1 - share) * self.cross_entropy(logits, batch.labels), "distillation": share * kd}

    def prepare_correcting(self, batch: Batch, rng: torch.Generator) -> Answered:
        return Answered(self.classifier(batch.images), batch.labels)

    def correcting_losses(self, batch: Answered) -> Mapping[str, Tensor]:
        assert self.correction is not None
        return {"cross_entropy": cross_entropy(self.correction(batch.logits), batch.labels)}

    def end(self, task: Task) -> None:
        if self.correction is not None:
            self.classifier.correct(self.old, self.correction.factor, self.correction.shift)
            self.correction = None
        super().end(task)

    def _divided(self, task: Task) -> tuple[Images, Images]:
        """What is trained on, and what is held out: the first images of each class, as many of a new as of an old."""
        if not self.old:
            return task.images, self.coreset.images
        count = max(1, len(self.coreset) // 10 // self.old)  # a tenth of the coreset, but one of each class at least
        parts = [_divide(images, count) for images in (task.images, self.coreset.images)]
        train, held_out = zip(*parts, strict=True)
        return join(*train), join(*held_out)


def _divide(images: Images, count: int) -> tuple[Images, Images]:
    """The first `count` of each class are held out; where that would be all of them, all but one."""
    images = join(images)  # so that, where files cannot be read, all images of a class can stand in
    held_out = torch.zeros(len(images), dtype=torch.bool)
    for label in images.labels.unique():
        rows = (images.labels == label).nonzero().flatten()
        held_out[rows[: min(count, len(rows) - 1)]] = True
    return images.select((~held_out).nonzero().flatten()), images.select(held_out.nonzero().flatten())
