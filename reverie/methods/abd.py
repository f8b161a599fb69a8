"""Always Be Dreaming (Smith et al., ICCV 2021): three losses, none of which can tell real from dreamed (eq. 15)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from reverie.config import check
from reverie.data.feed import Batch
from reverie.data.stream import Task
from reverie.losses import cross_entropy, local_cross_entropy, task_weights, weighted_feature_distillation
from reverie.methods.dreaming import DreamReplay, Replay
from reverie.nets.resnet import set_batchnorm_momentum


class ABD(DreamReplay):
    """Learn the new classes among themselves, keep features where they matter to old ones, fit the head to both.

    Only rows that the head has can take part: those of classes seen, or all of them in the released recipe.
    """

    title = "ABD"
    released: ClassVar = {"bn_momentum": 0.19}  # running statistics updated twice a step, which is one update with 0.19

    @dataclass(frozen=True)
    class Options:
        distillation: float = 0.1  # lambda_kd
        fine_tuning: float = 1.0  # lambda_ft
        bn_momentum: float = 0.1  # of the classifier, after the first task

        def __post_init__(self) -> None:
            check(0 < self.bn_momentum <= 1, "method.bn_momentum", self.bn_momentum, "above 0 and at most 1")

    def begin(self, task: Task) -> None:
        super().begin(task)
        if self.teacher is not None:
            set_batchnorm_momentum(self.classifier, self.options.bn_momentum)

    def first_losses(self, batch: Batch) -> Mapping[str, Tensor]:
        every_row = self.classifier.head(self.classifier.features(batch.images))
        return {"cross_entropy": cross_entropy(every_row, batch.labels)}

    def losses(self, replay: Replay) -> Mapping[str, Tensor]:
        assert self.teacher is not None
        features = self.classifier.features(replay.images)
        local = self.classifier.head(features[: replay.real])[:, : self.total]
        tuned = self.classifier.head(features.detach())  # moves the head alone
        old_head = self.teacher.head.weight[: self.old]
        new_share = 1 - self.old / self.total
        weights = task_weights(replay.labels, self.old, self.total)
        kd = weighted_feature_distillation(features, replay.taught_features, old_head)  # moves the backbone alone
        return {
            "local_cross_entropy": new_share * local_cross_entropy(local, replay.labels[: replay.real], self.old),
            "fine_tuning": self.options.fine_tuning * cross_entropy(tuned, replay.labels, weights),
            "distillation": self.options.distillation * kd,
        }
