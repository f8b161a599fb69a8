"""What a method is: how a task is learned without forgetting the old ones.

A method is handed the current task, never the stream. It yields phases (`reverie.engine.phase`); the engine trains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from reverie.config.schema import Config, settings
from reverie.data.augment import Augmenter
from reverie.data.feed import Batch, Feed, Source, make_feed
from reverie.data.images import Images
from reverie.data.preprocessing import Normaliser
from reverie.data.stream import Task
from reverie.engine.phase import SGD, Phase, StepSchedule
from reverie.methods.dreamer import Dreamer
from reverie.methods.keeps import Keeps
from reverie.methods.losses import cross_entropy
from reverie.nets.classifier import Classifier
from reverie.system.records import build


class Method:
    """Override `losses`, and whatever else differs. The defaults train on the new images alone.

    `losses` is handed a `Batch`: `images`, as the classifier takes them, and `labels` in learned order. The method has
    `classifier`, `config`, `options`, `device`, `augment`, and the classes before the task and with it: `old`, `total`.
    """

    title: ClassVar[str] = ""  # as in the paper's tables
    released: ClassVar[Mapping[str, Any]] = {}  # options that differ in the released code
    usual: ClassVar[Mapping[str, Any]] = {}  # sections of the configuration in which it differs from all others
    normalised: ClassVar[bool] = True  # false: its classifier sees pixels between 0 and 1 as they are
    refines: ClassVar[bool] = False  # true: it can learn from further images of old classes, too
    corrects: ClassVar[bool] = False  # true: it knows of corrected logits; others find a head that needs none
    keeps: Keeps = Keeps.NOTHING
    dreamer: Dreamer | None = None

    @settings("method")
    class Options:
        """What a person may set with `--set method.NAME=VALUE`. A plain dataclass will do, too."""

    def __init__(self, classifier: Classifier, config: Config, device: torch.device) -> None:
        self.classifier, self.config, self.device = classifier, config, device
        self.options: Any = build(self.Options, config.options, "method.")
        shape = classifier.preprocessing
        self.augment = Augmenter(config.augment, Normaliser.of(shape, device))
        self.old = 0  # classes known before this task
        self.total = 0  # and with it

    def begin(self, task: Task) -> None:
        """Called before the classifier grows: the time to copy a teacher."""
        self.old, self.total = task.first_label, task.classes_after
        if not self.corrects:
            self.classifier.settle()

    def phases(self, task: Task) -> Iterator[Phase]:
        """One after the other. What is made between two of them must be in `state_dict()`."""
        yield self.learning(task, self.losses if self.old else self.first_losses)

    def end(self, task: Task) -> None:
        """Let go of everything that is not kept."""

    def first_losses(self, batch: Batch) -> Mapping[str, Tensor]:
        """The first task: nothing to forget yet."""
        return {"cross_entropy": cross_entropy(self.classifier(batch.images), batch.labels)}

    def losses(self, batch: Any) -> Mapping[str, Tensor]:
        """Named scalars whose sum is minimised, for every task but the first. Must not wait for the device."""
        return self.first_losses(batch)

    def sources(self, task: Task) -> list[Source]:
        """What the batches of the usual phase are made of."""
        return [self.source(task.images)]

    def source(self, images: Images, rows: int | None = None) -> Source:
        """Images to learn from, in the order that the configuration wants; they fill the batch, or so many rows."""
        train = self.config.train
        return Source(images, train.batch_size if rows is None else rows, "even" if train.even else "shuffle")

    def state_dict(self) -> dict[str, Any]:
        """Between tasks: what is kept. Inside a task: also what cannot be made again."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Called before `begin`, to restore what is kept, and again in the phase where a run goes on."""

    def kept_bytes(self) -> int:
        """Between tasks: how much is kept besides the classifier."""
        return count_bytes(self.state_dict())

    def kept_images(self) -> int:
        """Between tasks: how many of the images that were seen."""
        return 0

    def learning(
        self,
        task: Task,
        losses: Callable[[Any], Mapping[str, Tensor]],
        rests: Sequence[torch.nn.Module] = (),
        prepare: Callable[[Batch, torch.Generator], Any] | None = None,
    ) -> Phase:
        """The usual phase: the whole classifier, SGD, the preset's schedule, the images of `sources`."""
        return Phase(
            name="learn",
            feed=self.feed(self.sources(task)),
            losses=losses,
            optimizer=self.sgd(self.config.train.lr),
            moves={"classifier": self.classifier},
            rests=rests,
            epochs=self.config.train.epochs,
            prepare=prepare,
        )

    def feed(self, sources: Sequence[Source]) -> Feed:
        return make_feed(sources, self.augment, self.device)

    def sgd(self, lr: float) -> SGD:
        """With the preset's schedule."""
        train = self.config.train
        return SGD(lr, train.momentum, train.weight_decay, StepSchedule(train.milestones, train.gamma))


@dataclass(frozen=True)
class Taught:
    """A batch, and what the teacher makes of it."""

    images: Tensor
    labels: Tensor
    taught_features: Tensor
    taught_logits: Tensor  # of the old classes


class Distiller(Method):
    """A method with a teacher: a frozen copy of the classifier from the end of the last task.

    Its `losses` are computed from what `prepare` returns, a `Taught`: `images`, `labels`, `taught_features` and
    `taught_logits`, those of the old classes. In the first task, without a teacher, `first_losses` is handed a `Batch`.
    """

    teacher: Classifier | None = None

    def begin(self, task: Task) -> None:
        super().begin(task)
        self.teacher = self.classifier.frozen_copy() if self.old else None

    def phases(self, task: Task) -> Iterator[Phase]:
        if self.teacher is None:
            yield self.learning(task, self.first_losses)
        else:
            yield self.learning(task, self.losses, [self.teacher], self.prepare)

    def prepare(self, batch: Batch, rng: torch.Generator) -> Taught:
        """Everything that needs the teacher: one pass."""
        return Taught(batch.images, batch.labels, *self.ask_teacher(batch.images))

    def ask_teacher(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Features, and logits of the old classes."""
        assert self.teacher is not None
        features = self.teacher.features(images)
        return features, self.teacher.logits(features)

    def end(self, task: Task) -> None:
        self.teacher = None  # the next one is a copy of the classifier as it is now

    def state_dict(self) -> dict[str, Any]:
        return {"teacher": self.teacher.state_dict()} if self.teacher is not None else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self.teacher is not None:
            self.teacher.load_state_dict(state["teacher"])


def count_bytes(state: Any) -> int:
    """Bytes of all tensors in a nested state."""
    if isinstance(state, Tensor):
        return state.numel() * state.element_size()
    if isinstance(state, Mapping):
        return sum(count_bytes(item) for item in state.values())
    return sum(count_bytes(item) for item in state) if isinstance(state, list | tuple) else 0
