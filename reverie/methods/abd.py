"""Always Be Dreaming (Smith et al., ICCV 2021): three losses, none of which can tell real from dreamed (eq. 15)."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

from torch import Tensor

from reverie.config.schema import Weight, about, settings
from reverie.data.feed import Batch
from reverie.data.stream import Task
from reverie.engine.phase import Phase, Stage
from reverie.methods.dream_replay import Replay
from reverie.methods.losses import local_cross_entropy, task_weights, weighted_feature_distillation
from reverie.methods.statistics_replay import KeepStatistics, StatisticsReplay
from reverie.nets.statistics import set_batchnorm_momentum

USUAL_MOMENTUM = 0.1  # of BatchNorm in nearly all networks, ours among them


class ABD(StatisticsReplay):
    """Learn the new classes among themselves, keep features where they matter to old ones, fit the head to both.

    Only rows that the head has can take part: those of classes seen, or all of them in the released recipe.
    Further images of old classes take part as dreams do, with their own label.
    """

    title = "ABD"
    refines = True
    refining = False  # further images of old classes are among those of this task
    released: ClassVar = {"bn_momentum": 0.19}  # running statistics updated twice a step, which is one update with 0.19

    @settings("method")
    class Options:
        """From `task_weights` to `distil_dreams` they are parts to leave out, as in the paper's ablation table."""

        distillation: Annotated[Weight, about("the weight of feature distillation (lambda_kd)")] = 0.1
        fine_tuning: Annotated[Weight, about("the weight of the head's fine-tuning (lambda_ft); 0 leaves it out")] = 1.0
        bn_momentum: Annotated[
            float, about("of BatchNorm after the first task; at 0.1 a network's layers keep their own", gt=0, le=1)
        ] = USUAL_MOMENTUM
        task_weights: Annotated[bool, about("weigh old and new classes by their number")] = True
        cross_entropy: Annotated[
            Literal["local", "standard"], about("new classes among themselves, or among all (`standard`)")
        ] = "local"
        distil_real: Annotated[bool, about("distil on real images")] = True
        distil_dreams: Annotated[bool, about("distil on dreams")] = True
        statistics: KeepStatistics = False

    def begin(self, task: Task) -> None:
        super().begin(task)
        self.refining = task.refines
        if self.teacher is not None and self.options.bn_momentum != USUAL_MOMENTUM:
            set_batchnorm_momentum(self.classifier, self.options.bn_momentum)

    def phases(self, task: Task) -> Iterator[Phase | Stage]:
        if self.teacher is None and self.classifier.head.rows > self.total:
            yield self.learning(task, self.first_losses_of_every_row)
        else:
            yield from super().phases(task)
        yield from self.statistics_stages(task)

    def first_losses_of_every_row(self, batch: Batch) -> Mapping[str, Tensor]:
        """Those of future classes, too."""
        every_row = self.classifier.head(self.classifier.features(batch.images))
        return {"cross_entropy": self.cross_entropy(every_row, batch.labels)}

    def losses(self, replay: Replay) -> Mapping[str, Tensor]:
        options, share = self.options, self.old / self.total
        features = self.classifier.features(replay.images)
        losses = self._cross_entropy(features, replay, 1 - share if options.task_weights else 1.0)
        if options.fine_tuning:
            tuned = self.classifier.head(features.detach())  # moves the head alone
            weigh = functools.partial(task_weights, old=self.old, total=self.total) if options.task_weights else None
            tuning = self.cross_entropy(tuned, replay.labels, weigh, replay.real)
            losses["fine_tuning"] = options.fine_tuning * tuning
        if options.distil_real or options.distil_dreams:
            losses["distillation"] = options.distillation * self._distillation(features, replay)
        return losses

    def _cross_entropy(self, features: Tensor, replay: Replay, share: float) -> dict[str, Tensor]:
        """Of the real rows."""
        logits = self.classifier.head(features[: replay.real])[:, : self.total]
        labels = replay.labels[: replay.real]
        if self.options.cross_entropy == "local" and self.total == self.old:
            return {}  # nothing but further images of old classes
        if self.options.cross_entropy == "local":
            return {"local_cross_entropy": share * self.by_label(functools.partial(self._local, logits), labels)}
        return {"cross_entropy": share * self.cross_entropy(logits, labels)}

    def _local(self, logits: Tensor, labels: Tensor) -> Tensor:
        new = (labels >= self.old).float() if self.refining else None
        return local_cross_entropy(logits, labels, self.old, new, self.smoothing)

    def _distillation(self, features: Tensor, replay: Replay) -> Tensor:
        """Moves the backbone alone."""
        assert self.teacher is not None
        first = 0 if self.options.distil_real else replay.real
        last = len(features) if self.options.distil_dreams else replay.real
        old_head = self.teacher.head.weight[: self.old]
        return weighted_feature_distillation(features[first:last], replay.taught_features[first:last], old_head)
