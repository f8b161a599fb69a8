"""R-DFCIL (Gao et al., ECCV 2022): dreams keep the old logits, relations between new images keep the features."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from reverie import seeding
from reverie.config.schema import LearningRate, Weight, about, settings
from reverie.data.feed import Batch
from reverie.data.stream import Task
from reverie.engine.phase import SGD, Phase, Stage
from reverie.methods.dream_replay import Replay
from reverie.methods.losses import (
    balanced_cross_entropy,
    local_cross_entropy,
    logit_distillation,
    relation_distillation,
)
from reverie.methods.statistics_replay import KeepStatistics, StatisticsReplay

RELATION_WIDTH = 2  # times the number of features: what a row is mapped to before angles are taken


class Relations(nn.Module):
    """How the rows of a batch lie to each other, for student and teacher, each seen through a map of its own."""

    def __init__(self, feature_dim: int) -> None:
        super().__init__()
        self.student = nn.Linear(feature_dim, RELATION_WIDTH * feature_dim)
        self.teacher = nn.Linear(feature_dim, RELATION_WIDTH * feature_dim)

    def forward(self, features: Tensor, taught_features: Tensor) -> Tensor:
        with torch.autocast(features.device.type, enabled=False):
            return relation_distillation(self.student(features), self.teacher(taught_features))


class ClassWeights(nn.Module):
    """How often each class was met in this task, real or dreamed, and weights that make up for it."""

    met: Tensor
    values: Tensor

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.register_buffer("met", torch.zeros(classes, dtype=torch.long))
        self.register_buffer("values", torch.ones(classes))

    def meet(self, labels: Tensor) -> None:
        self.met.index_add_(0, labels, torch.ones_like(labels))

    def renew(self) -> None:
        """The class met most often has weight 1, one that was met half as often 2."""
        rarity = self.met.sum() / self.met.clamp_min(1)
        self.values.copy_(rarity / rarity.min())


@dataclass(frozen=True)
class Features:
    """What the head is refined with: features of new images, then of as many dreams."""

    values: Tensor
    labels: Tensor
    taught_logits: Tensor  # of the dreams, over the old classes


class RDFCIL(StatisticsReplay):
    """New classes among themselves, old logits on dreams, angles between new images; then the head alone on all."""

    title = "R-DFCIL"
    weights: ClassWeights | None = None

    @settings("method")
    class Options:
        cross_entropy: Annotated[Weight, about("its weight among the new classes, and in the refinement among all")] = (
            0.5
        )
        distillation: Annotated[Weight, about("the weight of old logits, on dreams")] = 0.15
        relations: Annotated[Weight, about("the weight of relations between new images")] = 0.5
        refinement: Annotated[
            float, about("the share of the epochs in which the head alone is trained", ge=0, lt=1)
        ] = 0.2
        refinement_lr: Annotated[LearningRate, about("of the head alone")] = 0.005
        statistics: KeepStatistics = False

    def begin(self, task: Task) -> None:
        super().begin(task)
        self.weights = ClassWeights(self.total).to(self.device) if self.old else None

    def phases(self, task: Task) -> Iterator[Phase | Stage]:
        if self.teacher is None or self.dreamer is None or self.weights is None:
            yield from super().phases(task)
        else:
            yield from self.dreamer.making()
            yield from self._beside_dreams(task, [self.teacher, *self.dreamer.resting], self.weights)
        yield from self.statistics_stages(task)

    def _beside_dreams(self, task: Task, resting: Sequence[nn.Module], weights: ClassWeights) -> Iterator[Phase]:
        train = self.config.train
        refining = min(round(self.options.refinement * train.epochs), train.epochs - 1)
        with seeding.initialising(self.config.seed, "relations", task.index):
            relations = Relations(self.classifier.backbone.feature_dim).to(self.device)
        representing = functools.partial(self.representation, relations=relations)
        usual = self.learning(task, representing, resting, self.prepare)
        yield replace(
            usual,
            name="represent",
            moves={**usual.moves, "relations": relations, "weights": weights},
            epochs=train.epochs - refining,
            optimizer=self.optimizer(train.lr, train.epochs - refining),
            after_epoch=weights.renew,
        )
        del relations, representing, usual
        if not refining:
            return
        yield replace(
            self.training(task, self.refinement, [self.classifier.backbone, *resting], self.prepare_refinement),
            name="refine",
            moves={"head": self.classifier.head, "weights": weights},
            epochs=refining,
            optimizer=SGD(self.options.refinement_lr, train.momentum, train.weight_decay),
            clip=None,
            full_precision=True,  # the head is fitted to the very features that it will be tested on
            after_epoch=weights.renew,
        )

    @property
    def scales(self) -> tuple[float, float]:
        """Of what is to be learned, and of what is to be kept: the more old classes a new one, the more is kept."""
        new = self.total - self.old
        alpha, beta = math.log2(new / 2 + 1), math.sqrt(self.old / new)
        return (1 + 1 / alpha) / beta, alpha * beta

    @property
    def rotation_weight(self) -> float:
        """As much as the cross-entropy of upright images."""
        return self.options.cross_entropy * self.scales[0] if self.old else 1.0

    def representation(self, replay: Replay, relations: Relations) -> Mapping[str, Tensor]:
        """The losses of the first stage. Two passes of the student: BatchNorm sees real and dreamed images apart."""
        assert self.weights is not None
        self.weights.meet(replay.labels)
        real, (learn, keep), options = replay.real, self.scales, self.options
        features = self.classifier.features(replay.images[:real])
        dreamed_features = self.classifier.features(replay.images[real:])
        dreamed = self.classifier.head(dreamed_features)
        logits = self.classifier.head(features)[:, : self.total]
        local = self.by_label(
            lambda labels: local_cross_entropy(logits, labels, self.old, smoothing=self.smoothing), replay.labels[:real]
        )
        kept = logit_distillation(dreamed[:, : self.old], replay.taught_logits[real:])
        return {
            "local_cross_entropy": options.cross_entropy * learn * local,
            "distillation": options.distillation * keep * kept,
            "relations": options.relations * keep * relations(features, replay.taught_features[:real]),
            **self.retention(replay, torch.cat([features, dreamed_features])),
        }

    def retention(self, replay: Replay, features: Tensor) -> Mapping[str, Tensor]:
        """Further losses of all rows' features in the first stage: none. A subclass may add its own."""
        return {}

    def prepare_refinement(self, batch: Batch, rng: torch.Generator) -> Features:
        """The backbone rests, so that its features belong here."""
        replay = self.prepare(batch, rng)
        return Features(self.classifier.features(replay.images), replay.labels, replay.taught_logits[replay.real :])

    def refinement(self, features: Features) -> Mapping[str, Tensor]:
        """The losses of the second stage: they move the head alone."""
        assert self.weights is not None
        self.weights.meet(features.labels)
        logits = self.classifier.head(features.values)[:, : self.total]
        real = len(logits) - len(features.taught_logits)
        kept = logit_distillation(logits[real:, : self.old], features.taught_logits)
        balanced = balanced_cross_entropy(logits, features.labels, self.weights.values, self.smoothing, real)
        return {
            "balanced_cross_entropy": self.options.cross_entropy * balanced,
            "distillation": self.options.distillation * self.scales[1] * kept,
        }

    def end(self, task: Task) -> None:
        super().end(task)
        self.weights = None

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | ({"weights": self.weights.state_dict()} if self.weights is not None else {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        if self.weights is not None:
            self.weights.load_state_dict(state["weights"])
