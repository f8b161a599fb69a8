"""Dreams and class statistics together: what classes looked like to the network moves along with it, and answers.

After each task, the statistics of old classes are moved by maps from the old features to the new ones, fitted on new
images and on dreams; those of new classes are measured, and a head is fitted to all. docs/lucid.md has more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch

from reverie.config.schema import Config, about
from reverie.data.stream import Task
from reverie.engine.phase import Stage
from reverie.methods.dream_replay import DreamReplay
from reverie.methods.keeps import Keeps
from reverie.methods.seen_features import MOST, SeenImages, see_dreams, see_images
from reverie.nets.class_statistics import ClassStatistics, Form
from reverie.nets.classifier import Classifier
from reverie.nets.fixed_evidence import FixedView, with_fixed_evidence
from reverie.nets.fixed_features import make_filters
from reverie.nets.heads import AnsweringHead, LinearAnswer
from reverie.nets.transport import SeenByBoth, Transport

LEAST_DREAMS = 1000  # that the map is fitted on; more where there are more new images
SAMPLES = 400  # of each class, that a linear head is fitted to
OTHER_SAMPLES = 100  # of each class, that confidence is calibrated on
Map = Literal["none", "images", "dreams", "both"]
Head = Literal["linear", "gaussian", "prototype"]
KeepStatistics = Annotated[
    bool,
    about("keep the mean and covariance of each class's features, and answer by them ([lucid.md](lucid.md))"),
]


@dataclass(frozen=True)
class Moving:
    """How statistics are moved, and what answers by them."""

    map: Map = "both"
    dream_weight: float = 0.3  # of all dreams together, where that of all new images is one
    ridge: float = 1e-3
    residual: bool = True
    head: Head = "linear"
    pooled: float = 0.8  # the share of each covariance that is that of all classes, in a Gaussian head
    fixed: bool = False  # fixed features tell where means go, and a linear head asks them, too

    @property
    def by_images(self) -> bool:
        return self.map in ("images", "both")

    @property
    def by_dreams(self) -> bool:
        return self.map in ("dreams", "both")

    def move(
        self,
        statistics: ClassStatistics,
        images: SeenByBoth | None,
        dreams: SeenByBoth | None,
        device: torch.device | str = "cpu",
    ) -> tuple[ClassStatistics, float]:
        """The statistics of old classes by the new network, and how much of its features the map leaves unexplained.

        Of `images` and `dreams` those that the map needs must be there. The map is fitted on `device`.
        """
        seen = [images] if self.by_images and images else []
        if self.by_dreams and dreams:
            seen.append(replace(dreams, weight=self.dream_weight if seen else 1.0))
        if not seen:
            return statistics, 1.0
        if not self.fixed or statistics.fixed is None:
            seen = [replace(part, fixed=None) for part in seen]
        transport = Transport.fit([part.to(device) for part in seen], self.ridge).to(statistics.means.device)
        return transport.take(statistics, self.residual), transport.unexplained

    def make_head(
        self,
        statistics: ClassStatistics,
        rng: torch.Generator,
        device: torch.device,
        view: FixedView | None = None,
        channels: int = 3,
    ) -> AnsweringHead:
        """Confidence is calibrated on other samples than those that a head is fitted to.

        `view`: new images of so many channels, by which a linear head learns how far to believe fixed features.
        """
        head: AnsweringHead
        if self.head == "gaussian":
            head = statistics.gaussians(self.pooled)
        elif self.head == "prototype":
            head = statistics.prototypes()
        else:
            head = statistics.linear(SAMPLES, rng, device)
        samples, labels = statistics.sample(OTHER_SAMPLES, rng)
        head.calibrate(samples, labels)
        if isinstance(head, LinearAnswer) and self.fixed and view is not None:
            samples = samples.unflatten(0, (len(statistics), OTHER_SAMPLES))
            return with_fixed_evidence(head, statistics, view.to(device), make_filters(channels), samples)
        return head


class StatisticsReplay(DreamReplay):
    """A method that replays dreams and, with its option `statistics`, keeps class statistics and answers by them.

    Its `phases` end with `statistics_stages`. Without the option, nothing is kept and the training head answers.
    """

    statistics_form: ClassVar[Form] = "own"
    _seen: SeenImages | None = None  # what the stages of a task share; made anew after a stop

    def __init__(self, classifier: Classifier, config: Config, device: torch.device) -> None:
        super().__init__(classifier, config, device)
        self.answers = self.options.statistics  # type: ignore[misc]
        kept = Keeps.STATISTICS if self.options.statistics else Keeps.NOTHING
        self.keeps = (self.keeps & ~Keeps.STATISTICS) | kept

    @property
    def keeps_statistics(self) -> bool:
        wish: bool = self.options.statistics
        return wish

    @property
    def moving(self) -> Moving:
        return Moving()

    def statistics_stages(self, task: Task) -> Iterator[Stage]:
        if not self.options.statistics:
            return
        if self.teacher is not None and self.moving.map != "none":
            yield Stage("move statistics", lambda rng: self._move(task))
        if self.total > self.old:
            yield Stage("measure", lambda rng: self._measure(task))
        yield Stage("fit head", lambda rng: self._fit(task, rng))

    def _move(self, task: Task) -> Mapping[str, Any]:
        assert self.statistics is not None
        moving = self.moving
        images = self._look(task).some if moving.by_images else None
        dreams = self._look_at_dreams(task) if moving.by_dreams else None
        self.statistics, unexplained = moving.move(self.statistics, images, dreams, self.device)
        return {"unexplained": unexplained}

    @property
    def keeps_fixed(self) -> bool:
        """As statistics were begun, so that a step that does not ask for fixed features loses none."""
        return self.moving.fixed if self.statistics is None else self.statistics.fixed is not None

    def _look(self, task: Task) -> SeenImages:
        if self._seen is None:
            self._seen = see_images(self, task.images, self.teacher, self.old, self.keeps_fixed)
        return self._seen

    def _look_at_dreams(self, task: Task) -> SeenByBoth:
        assert self.teacher is not None and self.dreamer is not None
        return see_dreams(self, self.dreamer, dreams_for_map(task.size), self.teacher, self.keeps_fixed)

    def _measure(self, task: Task) -> Mapping[str, Any]:
        seen = self._look(task)
        labels = seen.labels - self.old
        rows = labels >= 0  # the rest are further images of old classes
        new = ClassStatistics.measure(
            seen.features[rows], labels[rows], self.total - self.old, self.statistics_form, seen.fixed_means
        )
        self.statistics = new if self.statistics is None else self.statistics.joined(new)
        return {"classes": len(self.statistics)}

    def _fit(self, task: Task, rng: torch.Generator) -> Mapping[str, Any]:
        assert self.statistics is not None
        view, channels = self._look(task).view, self.classifier.preprocessing.channels
        head = self.moving.make_head(self.statistics, rng, self.device, view, channels)
        self.classifier.answer_by(head)
        return {"temperature": float(head.temperature)}

    def end(self, task: Task) -> None:
        super().end(task)
        self._seen = None


def dreams_for_map(images: int) -> int:
    """How many dreams the map is fitted on, beside so many new images."""
    return max(LEAST_DREAMS, min(images, MOST))
