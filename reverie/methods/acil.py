"""ACIL (Zhuang et al., NeurIPS 2022): the network rests after the first task, and ridge regression learns the rest.

The control without drift: but for rounding, it answers as ridge regression on the images of all tasks at once would.
RanPAC (McDonnell et al., NeurIPS 2023) is the same for a pretrained network, which rests from the start.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from reverie import seeding
from reverie.config.schema import about, settings
from reverie.data.stream import Task
from reverie.engine.phase import Phase, Stage
from reverie.methods.base import Method
from reverie.methods.keeps import Keeps
from reverie.nets.class_statistics import ClassStatistics, Form
from reverie.nets.heads import LinearAnswer, expand


class ACIL(Method):
    """Train the network in the first task alone; fit its last layer to all classes by ridge regression, recursively.

    No image is kept: for each class the mean of its features, made many by a fixed random layer, and one covariance of
    all classes. They say as much of the images seen as the regression needs.
    """

    title = "ACIL"
    keeps = Keeps.STATISTICS
    answers = True
    trains_head = False
    statistics_form: ClassVar[Form] = "shared"

    @settings("method")
    class Options:
        expansion: Annotated[
            int, about("features that a fixed random layer makes of the network's, for the regression", ge=1, le=16_384)
        ] = 2048
        ridge: Annotated[float, about("weight of the squared size of what is fitted", gt=0, le=1e9)] = 0.1

    @property
    def statistics_size(self) -> int:
        size: int = self.options.expansion
        return size

    def phases(self, task: Task) -> Iterator[Phase | Stage]:
        if not self.old and self.trains_network:
            yield self.learning(task, self.first_losses)
        yield Stage("measure", lambda rng: self._measure(task))
        yield Stage("fit head", lambda rng: self._fit(task))

    def _expansion(self) -> Tensor:
        """The fixed random layer, the same for all tasks: drawn in the first, whatever the seed of a later one is."""
        head = self.classifier.answering_head
        if self.old and isinstance(head, LinearAnswer):
            return head.expansion.cpu()
        inputs, outputs = self.classifier.backbone.feature_dim, self.options.expansion
        rng = seeding.generator(self.config.seed, "expansion")
        return torch.randn(inputs, outputs, generator=rng) / math.sqrt(inputs)

    def _features(self, task: Task) -> Tensor:
        return expand(self.features_of(task.images), self._expansion())

    def _measure(self, task: Task) -> Mapping[str, Any]:
        labels = task.images.labels - self.old
        new = ClassStatistics.measure(self._features(task), labels, self.total - self.old, self.statistics_form)
        self.statistics = new if self.statistics is None else self.statistics.joined(new)
        return {"classes": len(self.statistics), "features": self.options.expansion}

    def _fit(self, task: Task) -> Mapping[str, Any]:
        assert self.statistics is not None
        weight = ridge_regression(self.statistics, self.options.ridge)
        head = LinearAnswer.of(weight, expansion=self._expansion())
        temperature = head.calibrate(self.features_of(task.images), task.images.labels)
        self.classifier.answer_by(head)
        return {"temperature": temperature}


class RanPAC(ACIL):
    """Leave a pretrained network as it is; fit a last layer to all classes by ridge regression, recursively.

    What its features lie in is never trained, so that no class is forgotten and the order of tasks does not matter.
    """

    title = "RanPAC"
    trains_network = False


def ridge_regression(statistics: ClassStatistics, ridge: float) -> Tensor:
    """A row for each class: from features to one for the class and zero for all others, over all images measured."""
    assert statistics.shared is not None
    counts, means = statistics.counts.double(), statistics.means.double()
    sums = counts[:, None] * means
    products = counts.sum() * statistics.shared.double() + means.T @ sums
    products.diagonal().add_(ridge)
    return torch.linalg.solve(products, sums.T).T.float()
