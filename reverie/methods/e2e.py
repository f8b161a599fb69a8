"""End-to-end incremental learning (Castro et al.): distillation task by task, then the head balanced on the coreset."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from reverie.config.schema import Config, LearningRate, Temperature, about, settings
from reverie.data.feed import Batch, Source
from reverie.data.images import join
from reverie.data.stream import Task
from reverie.engine.phase import Phase, Stage
from reverie.methods.base import Distiller, Taught
from reverie.methods.coreset import CoresetMethod
from reverie.methods.losses import distillation_by_task
from reverie.nets.classifier import Classifier
from reverie.nets.heads import LinearHead


@dataclass(frozen=True)
class Balanced:
    """A batch as the resting backbone sees it, and what the teachers of all classes make of it."""

    features: Tensor
    labels: Tensor
    taught_logits: Tensor


class E2E(CoresetMethod, Distiller):
    """Two phases: everything learns from new images and coreset, then the head from a balanced coreset alone.

    In the second, the teacher of the new classes is the head as the first left it. The backbone rests, BatchNorm
    included, so one pass of it serves both heads.
    """

    title = "E2E"
    selection = "nearest"
    settled: LinearHead | None = None  # as the first phase left it

    @settings("method")
    class Options:
        temperature: Annotated[Temperature, about("of distillation")] = 2.0
        balancing_lr: Annotated[LearningRate, about("of its second phase")] = 0.001

    def __init__(self, classifier: Classifier, config: Config, device: torch.device) -> None:
        super().__init__(classifier, config, device)
        self.sizes: list[int] = []  # classes by past task

    def begin(self, task: Task) -> None:
        super().begin(task)
        if sum(self.sizes) < self.old:  # learned elsewhere: they count as one task
            self.sizes.insert(0, self.old - sum(self.sizes))

    def sources(self, task: Task) -> list[Source]:
        images = join(task.images, self.coreset.images) if len(self.coreset) else task.images
        return [self.source(images)]

    def phases(self, task: Task) -> Iterator[Phase | Stage]:
        yield from super().phases(task)
        if self.teacher is None:
            return
        self.remember(task)
        self.settled = copy.deepcopy(self.classifier.head).requires_grad_(False)
        yield Phase(
            name="balance",
            feed=self.feed([Source(self.coreset.images, self.config.train.batch_size)]),
            losses=self.balancing_losses,
            optimizer=self.optimizer(self.options.balancing_lr),
            moves={"head": self.classifier.head},
            rests=[self.classifier.backbone, self.teacher, self.settled],
            epochs=self.config.train.epochs,
            clip=self.config.train.clip,
            prepare=self.prepare_balancing,
        )

    def losses(self, batch: Taught) -> Mapping[str, Tensor]:
        return self._losses(self.classifier(batch.images), batch.labels, batch.taught_logits, self.sizes)

    def prepare_balancing(self, batch: Batch, rng: torch.Generator) -> Balanced:
        """Old classes as the teacher sees them, new ones as the settled head does."""
        assert self.settled is not None
        _, taught = self.ask_teacher(batch.images)
        features = self.classifier.features(batch.images)
        new = self.settled(features)[:, self.old : self.total]
        return Balanced(features, batch.labels, torch.cat([taught, new], dim=1))

    def balancing_losses(self, batch: Balanced) -> Mapping[str, Tensor]:
        logits, sizes = self.classifier.logits(batch.features), [*self.sizes, self.total - self.old]
        return self._losses(logits, batch.labels, batch.taught_logits, sizes)

    def _losses(self, logits: Tensor, labels: Tensor, taught: Tensor, sizes: list[int]) -> Mapping[str, Tensor]:
        """`sizes` counts the classes that have a teacher, by task."""
        kd = distillation_by_task(logits[:, : sum(sizes)], taught, sizes, self.options.temperature)
        return {"cross_entropy": self.cross_entropy(logits, labels), "distillation": kd}

    def end(self, task: Task) -> None:
        super().end(task)
        self.sizes.append(self.total - self.old)
        self.settled = None

    def state_dict(self) -> dict[str, Any]:
        settled = {"settled": self.settled.state_dict()} if self.settled is not None else {}
        return super().state_dict() | {"sizes": list(self.sizes)} | settled

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.sizes = list(state["sizes"])
        if self.settled is not None:
            self.settled.load_state_dict(state["settled"])
