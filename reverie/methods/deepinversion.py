"""Dreams with ordinary distillation: LwF with synthetic images, and the paper's DeepInversion baseline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from torch import Tensor

from reverie.config.schema import Temperature, Weight, about, settings
from reverie.methods.dream_replay import DreamReplay, Replay
from reverie.methods.losses import distillation, padded_distillation


class LwFSynthetic(DreamReplay):
    """LwF whose distillation runs over new images and dreams alike. Dreams take no part in the cross-entropy."""

    title = "LwF (synthetic)"
    refines = True

    @settings("method")
    class Options:
        distillation: Annotated[Weight, about("the weight of distillation")] = 0.1
        temperature: Annotated[Temperature, about("of distillation")] = 2.0

    def losses(self, replay: Replay) -> Mapping[str, Tensor]:
        logits = self.classifier(replay.images)
        kd = distillation(logits[:, : self.old], replay.taught_logits, self.options.temperature)
        return {
            "cross_entropy": self.cross_entropy(logits[: replay.real], replay.labels[: replay.real]),
            "distillation": self.options.distillation * kd,
        }


class DeepInversion(DreamReplay):
    """Distillation on new images and on dreams, with probability zero for the new classes (eq. 8 and 9)."""

    title = "DeepInversion"
    refines = True
    released: ClassVar = {"on_real": "old"}  # the released code distils new images over the old classes only

    @settings("method")
    class Options:
        distillation: Annotated[Weight, about("the weight of each of its two distillations")] = 1.0
        temperature: Annotated[Temperature, about("of both")] = 2.0
        on_real: Annotated[
            Literal["padded", "old"],
            about(
                "new images are distilled over all classes, the teacher's new ones at 0 probability (`padded`), or "
                "over the `old` alone"
            ),
        ] = "padded"

    def losses(self, replay: Replay) -> Mapping[str, Tensor]:
        options = self.options
        logits = self.classifier(replay.images)
        real, dreamed = logits[: replay.real], logits[replay.real :]
        taught, taught_dreamed = replay.taught_logits[: replay.real], replay.taught_logits[replay.real :]
        if options.on_real == "padded":
            kd_real = padded_distillation(real, taught, options.temperature)
        else:
            kd_real = distillation(real[:, : self.old], taught, options.temperature)
        kd_dreamed = padded_distillation(dreamed, taught_dreamed, options.temperature)
        return {
            "cross_entropy": self.cross_entropy(real, replay.labels[: replay.real]),
            "distillation_real": options.distillation * kd_real,
            "distillation_dreamed": options.distillation * kd_dreamed,
        }
