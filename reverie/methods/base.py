"""What a method is: how a task is learned without forgetting the old ones.

A method is handed the current task, never the stream. It yields phases and stages (`reverie.engine.phase`); the engine
does the work. Between two tasks it is made anew from its `state_dict()`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from reverie import seeding
from reverie.config.schema import Config, settings
from reverie.data.augment import Augmenter
from reverie.data.feed import Batch, Feed, Source, make_feed
from reverie.data.images import Images, images_at_once
from reverie.data.preprocessing import Normaliser
from reverie.data.stream import Task
from reverie.engine.phase import (
    SGD,
    Adam,
    AdamW,
    CosineSchedule,
    OptimizerSettings,
    Phase,
    Schedule,
    Stage,
    StepSchedule,
    Warmup,
)
from reverie.methods.dreamer import DreamMaker
from reverie.methods.keeps import Keeps
from reverie.methods.losses import cross_entropy
from reverie.methods.rotations import RotationHead, rotation_loss, turned
from reverie.nets.class_statistics import ClassStatistics, Form
from reverie.nets.classifier import Classifier
from reverie.nets.statistics import statistics_at_rest
from reverie.system.records import build

LONGEST_NAME = 100  # in a state, of which longer keys count as something kept
FEW_NUMBERS = 100  # in a state, which do not count: of classes by task, of an optimizer's settings


@dataclass(frozen=True)
class Shown:
    """A batch, and what a method's `prepare` makes of it."""

    batch: Batch
    prepared: Any


def _shown(prepare: Callable[[Batch, torch.Generator], Any] | None, batch: Batch, rng: torch.Generator) -> Shown:
    return Shown(batch, prepare(batch, rng) if prepare else batch)


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
    answers: ClassVar[bool] = False  # true: it gives the classifier an answering head; others find none
    trains_network: ClassVar[bool] = True  # false: it rests from the start, as the weights it begins with have it
    trains_head: ClassVar[bool] = True  # false: the training head knows the first classes alone, so others cannot go on
    statistics_form: ClassVar[Form | None] = None  # of class statistics; undeclared, others cannot go on from them
    keeps: Keeps = Keeps.NOTHING
    dreamer: DreamMaker | None = None
    statistics: ClassStatistics | None = None  # of all classes, between tasks; for methods that keep them
    _heeds_labels = False  # the losses just computed took labels as the settings have them
    _mixed: Batch | None = None  # while losses are computed

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

    @property
    def statistics_size(self) -> int:
        """Of how many features the class statistics are that it keeps."""
        return self.classifier.backbone.feature_dim

    def begin(self, task: Task) -> None:
        """Called before the classifier grows: the time to copy a teacher."""
        self.old, self.total = task.first_label, task.classes_after
        if not self.corrects:
            self.classifier.settle()
        if not self.answers:
            self.classifier.answer_by(None)

    def phases(self, task: Task) -> Iterator[Phase | Stage]:
        """One after the other. What is made in a stage, or between two of them, must be in `state_dict()`."""
        yield self.learning(task, self.losses if self.old else self.first_losses)

    def end(self, task: Task) -> None:
        """Let go of everything that is not kept."""

    def first_losses(self, batch: Batch) -> Mapping[str, Tensor]:
        """The first task: nothing to forget yet."""
        return {"cross_entropy": self.cross_entropy(self.classifier(batch.images), batch.labels)}

    def losses(self, batch: Any) -> Mapping[str, Tensor]:
        """Named scalars whose sum is minimised, for every task but the first. Must not wait for the device."""
        return self.first_losses(batch)

    # --- labels: whatever a loss takes from them goes through these, so that the settings of `train` hold

    @property
    def smoothing(self) -> float:
        """The share of a real image's label that is spread over all classes."""
        smoothing: float = self.config.train.label_smoothing
        return smoothing

    def cross_entropy(
        self,
        logits: Tensor,
        labels: Tensor,
        weigh: Callable[[Tensor], Tensor] | None = None,
        real: int | None = None,
    ) -> Tensor:
        """As the settings have it. Rows from `real` on are no real images; `weigh` gives the weight of a label."""

        def loss(labels: Tensor) -> Tensor:
            return cross_entropy(logits, labels, weigh(labels) if weigh else None, self.smoothing, real)

        return self.by_label(loss, labels)

    def by_label(self, loss: Callable[[Tensor], Tensor], labels: Tensor) -> Tensor:
        """A loss of labels, those of real images first. It is to spread them by `smoothing`.

        Where each image shows another one, too, it is that of both labels, each by the share of its image.
        """
        self._heeds_labels = True
        if self._mixed is None or self._mixed.others is None or self._mixed.share is None:
            return loss(labels)
        others, share = torch.cat([self._mixed.others, labels[len(self._mixed.others) :]]), self._mixed.share
        return share * loss(labels) + (1 - share) * loss(others)

    def sources(self, task: Task) -> list[Source]:
        """What the batches of the usual phase are made of."""
        return [self.source(task.images)]

    def source(self, images: Images, rows: int | None = None) -> Source:
        """Images to learn from, in the order that the configuration wants; they fill the batch, or so many rows."""
        train = self.config.train
        return Source(images, train.batch_size if rows is None else rows, "even" if train.even else "shuffle")

    def state_dict(self) -> dict[str, Any]:
        """Between tasks: what is kept. Inside a task: also what cannot be made again."""
        return {} if self.statistics is None else {"statistics": self.statistics.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Called before `begin`, to restore what is kept, and again in the phase where a run goes on."""
        if Keeps.STATISTICS in self.keeps:
            found = state.get("statistics")
            self.statistics = None if found is None else ClassStatistics.from_state(found)

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
        """The usual phase: the whole classifier, the images of `sources`, and all that the settings add."""
        train, head = self.config.train, self._rotation_head(task)
        if self.smoothing or train.mixup or head:
            losses, prepare = functools.partial(self._heeding, losses, head), functools.partial(_shown, prepare)
        phase = self.training(task, losses, rests, prepare, train.mixup)
        return replace(
            phase,
            moves={**phase.moves, "rotations": head} if head else phase.moves,
            averages={"classifier": train.average} if train.average else None,
        )

    def training(
        self,
        task: Task,
        losses: Callable[[Any], Mapping[str, Tensor]],
        rests: Sequence[torch.nn.Module] = (),
        prepare: Callable[[Batch, torch.Generator], Any] | None = None,
        mixup: float = 0.0,
    ) -> Phase:
        """The same with the preset's optimizer and schedule alone, for what is not the learning of a classifier."""
        train, sources = self.config.train, self.sources(task)
        return Phase(
            name="learn",
            feed=make_feed(sources, self.augment, self.device, mixup) if mixup else self.feed(sources),
            losses=losses,
            optimizer=self.optimizer(train.lr),
            moves={"classifier": self.classifier},
            rests=rests,
            epochs=train.epochs,
            prepare=prepare,
            clip=train.clip,
        )

    def _heeding(
        self, losses: Callable[[Any], Mapping[str, Tensor]], head: RotationHead | None, shown: Shown
    ) -> Mapping[str, Tensor]:
        """The losses, unless they leave out what the settings say of labels; and that of turned images."""
        self._heeds_labels, self._mixed = False, shown.batch
        try:
            found = losses(shown.prepared)
            if not self._heeds_labels and (self.smoothing or self.config.train.mixup):
                raise TypeError(
                    f"{type(self).__name__} does not know train.label_smoothing and train.mixup: its losses must take "
                    "labels through self.cross_entropy or self.by_label"
                )
            return found if head is None else {**found, "rotations": self._rotations(head, shown.batch)}
        finally:
            self._mixed = None

    # --- turned images

    def _rotation_head(self, task: Task) -> RotationHead | None:
        wanted = self.config.train.rotations
        if wanted == "none" or (wanted == "first" and self.old) or self.total == self.old:
            return None
        with seeding.initialising(self.config.seed, "rotations", task.index):
            return RotationHead(self.classifier.backbone.feature_dim, self.total - self.old).to(self.device)

    @property
    def rotation_weight(self) -> float:
        """Of the loss of turned images beside the others."""
        return 1.0

    def _rotations(self, head: RotationHead, batch: Batch) -> Tensor:
        """Running statistics stay those of upright images, which are all that the classifier will be shown."""
        all_ways = not self.old or self.config.train.rotations == "all"
        with statistics_at_rest(self.classifier):
            logits = head(self.classifier.features(turned(batch.images, all_ways)))
        return self.rotation_weight * self.by_label(
            lambda labels: rotation_loss(logits, labels, self.old, self.smoothing, all_ways), batch.labels
        )

    # --- features

    @torch.no_grad()
    def features_of(self, images: Images, network: Classifier | None = None, mirrored: bool = False) -> Tensor:
        """Features of images as they are, not augmented: of the classifier at rest, or of another, such as a teacher.

        [images, features], in main memory and in the order of the images; `mirrored`: then those of all their mirror
        images. For stages, and for `end`.
        """
        network = network or self.classifier
        network.eval()
        found: list[list[Tensor]] = [[], []]
        for index in torch.arange(len(images)).split(images_at_once(images.shape[1])):
            shown = self.augment.normalise(images.read(index).to(self.device))
            for parts, view in zip(found, [shown, shown.flip(3)] if mirrored else [shown], strict=False):
                parts.append(network.features(view).float().cpu())
        return torch.cat([*found[0], *found[1]])

    def feed(self, sources: Sequence[Source]) -> Feed:
        return make_feed(sources, self.augment, self.device)

    def optimizer(self, lr: float, epochs: int | None = None) -> OptimizerSettings:
        """The preset's, for a phase in which a network learns; of `epochs` epochs, where they are not the task's."""
        train, schedule = self.config.train, self.schedule(epochs)
        if train.optimizer == "adam":
            return Adam(lr, schedule, train.weight_decay)
        if train.optimizer == "adamw":
            return AdamW(lr, schedule, train.weight_decay)
        return SGD(lr, train.momentum, train.weight_decay, schedule, nesterov=train.optimizer == "nesterov")

    def sgd(self, lr: float) -> OptimizerSettings:
        """The name that `optimizer` had in version 0.1."""
        return self.optimizer(lr)

    def schedule(self, epochs: int | None = None) -> Schedule:
        """The preset's, for a phase of `epochs` epochs. Milestones are counted from the beginning of the phase."""
        train = self.config.train
        left = (epochs or train.epochs) - train.warmup
        after: StepSchedule | CosineSchedule
        if train.schedule == "cosine":
            after = CosineSchedule(max(1, left))
        else:
            after = StepSchedule(tuple(milestone - train.warmup for milestone in train.milestones), train.gamma)
        return Warmup(train.warmup, after) if train.warmup else after


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

    def phases(self, task: Task) -> Iterator[Phase | Stage]:
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
        return super().state_dict() | ({"teacher": self.teacher.state_dict()} if self.teacher is not None else {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        if self.teacher is not None:
            self.teacher.load_state_dict(state["teacher"])


def count_bytes(state: Any) -> int:
    """Bytes of all that a nested state holds.

    A name counts only where it is long, or where it names nothing, and plain numbers where they are many.
    """
    held, numbers = _held(state)
    return held + (8 * numbers if numbers > FEW_NUMBERS else 0)


def _held(state: Any) -> tuple[int, int]:
    """Bytes of everything but plain numbers, and how many of those there are."""
    if isinstance(state, Tensor):
        return state.numel() * state.element_size(), 0
    if isinstance(state, Mapping):
        return _sum([part for key, item in state.items() for part in _named(key, _held(item))])
    if isinstance(state, list | tuple | set | frozenset):
        return _sum([_held(item) for item in state])
    if isinstance(state, str):
        return len(state.encode("utf-8", "surrogatepass")), 0
    if isinstance(state, bytes | bytearray):
        return len(state), 0
    if isinstance(state, int) and state.bit_length() > 64:
        return (state.bit_length() + 7) // 8, 0
    if state is None or isinstance(state, int | float | complex):
        return 0, 1
    raise TypeError(f"a state consists of tensors and plain values, not of {type(state).__name__}")


def _named(key: Any, held: tuple[int, int]) -> list[tuple[int, int]]:
    return [held] if any(held) and isinstance(key, str) and len(key) <= LONGEST_NAME else [held, _held(key)]


def _sum(parts: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return sum(held for held, _ in parts), sum(numbers for _, numbers in parts)
