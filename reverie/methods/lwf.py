"""Learning without Forgetting (Li and Hoiem) and LwF.MC (Rebuffi et al.): the teacher's answers on the new images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from torch import Tensor

from reverie.config.schema import Temperature, Weight, about, settings
from reverie.data.feed import Batch
from reverie.methods.base import Distiller, Taught
from reverie.methods.losses import binary_cross_entropy, distillation, padded_distillation


class LwF(Distiller):
    """Cross-entropy over all classes seen, and distillation over the old ones, both on the new images."""

    title = "LwF"
    refines = True

    @settings("method")
    class Options:
        distillation: Annotated[Weight, about("the weight of distillation")] = 1.0
        temperature: Annotated[Temperature, about("of distillation")] = 2.0

    def losses(self, batch: Taught) -> Mapping[str, Tensor]:
        logits = self.classifier(batch.images)
        kd = distillation(logits[:, : self.old], batch.taught_logits, self.options.temperature)
        return {
            "cross_entropy": self.cross_entropy(logits, batch.labels),
            "distillation": self.options.distillation * kd,
        }


class LwFMC(Distiller):
    """A yes or no for every class: the teacher says which for the old ones, the label for the new ones.

    Or one softmax over all classes, as the authors' code had it at first: the label and the teacher each have a say.
    """

    title = "LwF.MC"

    @settings("method")
    class Options:
        answers: Annotated[
            Literal["binary", "softmax"],
            about(
                "yes or no for every class, or one `softmax` over all, as [in an older version of the authors' "
                "code](method.md#lwfmc)"
            ),
        ] = "binary"

    def first_losses(self, batch: Batch) -> Mapping[str, Tensor]:
        if self.options.answers == "softmax":
            return super().first_losses(batch)
        return {"binary_cross_entropy": self._binary(self.classifier(batch.images), batch.labels)}

    def losses(self, batch: Taught) -> Mapping[str, Tensor]:
        logits = self.classifier(batch.images)
        if self.options.answers == "softmax":
            return {
                "cross_entropy": self.cross_entropy(logits, batch.labels),
                "distillation": padded_distillation(logits, batch.taught_logits, temperature=1),
            }
        return {"binary_cross_entropy": self._binary(logits, batch.labels, batch.taught_logits)}

    def _binary(self, logits: Tensor, labels: Tensor, taught: Tensor | None = None) -> Tensor:
        return self.by_label(lambda labels: binary_cross_entropy(logits, labels, taught, self.smoothing), labels)
