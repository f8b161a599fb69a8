"""LDC (Gomez-Villa et al., ECCV 2024): class means that drift along with the network, by one linear map.

The network learns the new classes among themselves and is held to its old answers on their images (LwF); the nearest
class mean answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from reverie.config.schema import Temperature, Weight, about, settings
from reverie.data.stream import Task
from reverie.engine.phase import Phase, Stage
from reverie.methods.base import Distiller, Taught
from reverie.methods.keeps import Keeps
from reverie.methods.losses import distillation, local_cross_entropy
from reverie.nets.class_statistics import ClassStatistics, Form
from reverie.nets.heads import CosineAnswer

LEAST = 1e-12  # that is added to the squares of features, so that there is an inverse


class LDC(Distiller):
    """Keep the mean of each class's features, moved by a linear map fitted on new images; the nearest one answers.

    No image is kept. Features and means are compared by their direction.
    """

    title = "LDC"
    keeps = Keeps.STATISTICS
    answers = True
    statistics_form: ClassVar[Form] = "means"

    @settings("method")
    class Options:
        distillation: Annotated[Weight, about("its weight, on the new images")] = 10.0
        temperature: Annotated[Temperature, about("of distillation")] = 2.0
        ridge: Annotated[
            float, about("of the map from old to new features: of their mean square, so much is added", ge=0, le=1e3)
        ] = 1e-3

    def phases(self, task: Task) -> Iterator[Phase | Stage]:
        yield from super().phases(task)
        if self.teacher is not None:
            yield Stage("move statistics", lambda rng: self._move(task))
        yield Stage("measure", lambda rng: self._measure(task))
        yield Stage("fit head", lambda rng: self._fit(task))

    def losses(self, batch: Taught) -> Mapping[str, Tensor]:
        logits, options = self.classifier(batch.images), self.options
        kept = distillation(logits[:, : self.old], batch.taught_logits, options.temperature)
        local = self.by_label(
            lambda labels: local_cross_entropy(logits, labels, self.old, smoothing=self.smoothing), batch.labels
        )
        return {
            "local_cross_entropy": local,
            "distillation": options.distillation * kept,
        }

    def _move(self, task: Task) -> Mapping[str, Any]:
        assert self.statistics is not None
        before, after = self.features_of(task.images, self.teacher), self.features_of(task.images)
        matrix = linear_map(before, after, self.options.ridge)
        self.statistics = self.statistics.moved(matrix)
        size = after.double().square().mean().clamp_min(1e-300)  # features may all be zero
        left = (before.double() @ matrix - after.double()).square().mean() / size
        return {"unexplained": float(left)}

    def _measure(self, task: Task) -> Mapping[str, Any]:
        labels = task.images.labels - self.old
        features = self.features_of(task.images)
        new = ClassStatistics.measure(features, labels, self.total - self.old, self.statistics_form)
        self.statistics = new if self.statistics is None else self.statistics.joined(new)
        return {"classes": len(self.statistics)}

    def _fit(self, task: Task) -> Mapping[str, Any]:
        assert self.statistics is not None
        head = CosineAnswer(directions=self.statistics.means)
        temperature = head.calibrate(self.features_of(task.images), task.images.labels)
        self.classifier.answer_by(head)
        return {"temperature": temperature}


def linear_map(before: Tensor, after: Tensor, ridge: float) -> Tensor:
    """The matrix that brings `before` closest to `after`, by squares. `ridge` keeps it small where little is known."""
    before, after = before.double(), after.double()
    products = before.T @ before
    mean = float(products.diagonal().mean())
    least = LEAST if ridge and mean > 1 else LEAST * mean or LEAST  # small beside small features, too
    products.diagonal().add_(ridge * mean + least)
    return torch.linalg.solve(products, before.T @ after)
