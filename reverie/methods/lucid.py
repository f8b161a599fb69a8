"""Lucid, a method of our own: R-DFCIL's network and dreams, and class statistics that move along with it and answer.

docs/lucid.md has its equations, whose idea each part is, and what was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from reverie.config.schema import Weight, about, settings
from reverie.data.stream import Task
from reverie.methods.dream_replay import Replay
from reverie.methods.keeps import Keeps
from reverie.methods.rdfcil import RDFCIL
from reverie.methods.statistics_replay import Head, KeepStatistics, Map, Moving
from reverie.nets.layers import widened


class Lucid(RDFCIL):
    """Learn beside dreams as R-DFCIL does; keep each class's mean and covariance, move them along, answer by them.

    No image is kept. In the first task turned images are further classes, which makes better features.
    """

    title = "Lucid"
    keeps = Keeps.STATISTICS
    answers = True
    usual: ClassVar = {"train": {"rotations": "first"}}

    @settings("method")
    class Options(RDFCIL.Options):
        statistics: KeepStatistics = True
        stillness: Annotated[
            Weight,
            about("the weight of features that stay where they were, measured by their variance inside old classes"),
        ] = 0.0
        map: Annotated[Map, about("what the statistics of old classes are moved by: new images, dreams, both")] = "both"
        dream_weight: Annotated[
            Weight, about("of all dreams together in the map, where that of all new images is one")
        ] = 0.3
        ridge: Annotated[
            float, about("draws the map towards no change; a share of the features' mean variance", ge=0, le=1e3)
        ] = 1e-3
        residual: Annotated[bool, about("add the covariance of what the map leaves unexplained")] = True
        fixed: Annotated[
            bool, about("keep means of fixed features, too: they tell where classes go, and a linear head asks them")
        ] = True
        head: Annotated[Head, about("fitted to samples of the statistics (`linear`), or made of them")] = "linear"
        pooled: Annotated[
            float, about("the share of each covariance that is that of all classes, in a Gaussian head", ge=0, le=1)
        ] = 0.8

    def begin(self, task: Task) -> None:
        super().begin(task)
        self._metric = self.statistics.metric().to(self.device) if self.old and self.statistics is not None else None

    def retention(self, replay: Replay, features: Tensor) -> Mapping[str, Tensor]:
        """How far features have moved, in deviations inside old classes: mean of squares."""
        if not self.options.stillness or self._metric is None:
            return {}
        moved = widened(features) - widened(replay.taught_features)
        with torch.autocast(moved.device.type, enabled=False):
            distance = (moved @ widened(self._metric)).square().mean()
        return {"stillness": self.options.stillness * self.scales[1] * distance}

    @property
    def moving(self) -> Moving:
        options = self.options
        return Moving(
            options.map,
            options.dream_weight,
            options.ridge,
            options.residual,
            options.head,
            options.pooled,
            options.fixed,
        )
