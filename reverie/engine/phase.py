"""What a task consists of: phases, stretches of optimisation, and stages, computations in closed form.

Each says everything that the engine needs to know.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from reverie.data.feed import Batch, Feed


@dataclass(frozen=True)
class StepSchedule:
    """A learning rate that is multiplied by `gamma` at the start of each epoch in `milestones`."""

    milestones: tuple[int, ...] = ()
    gamma: float = 0.1

    def factor(self, epoch: int) -> float:
        return float(self.gamma ** sum(epoch >= milestone for milestone in self.milestones))


@dataclass(frozen=True)
class CosineSchedule:
    """A learning rate that falls along half a cosine, and would reach 0 after `epochs` epochs."""

    epochs: int

    def factor(self, epoch: int) -> float:
        return (1 + math.cos(math.pi * epoch / self.epochs)) / 2


@dataclass(frozen=True)
class Warmup:
    """A learning rate that rises in `epochs` equal steps; then it follows another schedule, whose first epoch is 0."""

    epochs: int
    then: StepSchedule | CosineSchedule

    def factor(self, epoch: int) -> float:
        if epoch < self.epochs:
            return (epoch + 1) / (self.epochs + 1)
        return self.then.factor(epoch - self.epochs)


Schedule = StepSchedule | CosineSchedule | Warmup


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent with momentum, the usual one or Nesterov's."""

    lr: float
    momentum: float = 0.9
    weight_decay: float = 0.0
    schedule: Schedule = StepSchedule()
    nesterov: bool = False


@dataclass(frozen=True)
class Adam:
    """Adam, with the usual values for its moments. Its weight decay is part of the gradient."""

    lr: float
    schedule: Schedule = StepSchedule()
    weight_decay: float = 0.0


@dataclass(frozen=True)
class AdamW:
    """Adam whose weight decay shrinks the weights themselves, apart from the gradient."""

    lr: float
    schedule: Schedule = StepSchedule()
    weight_decay: float = 0.0


OptimizerSettings = SGD | Adam | AdamW


@dataclass
class OptimizerMemory:
    """An optimizer's state that outlives its phase: the engine starts from it and leaves the new state in it."""

    state: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Stage:
    """One computation in closed form: measure statistics, fit a head. Like a phase without steps.

    `work` is given random numbers of its own, the same whenever it is done; it returns figures worth writing down, or
    nothing. Interrupted, it is done again from the state before it. It runs without gradients and in single precision,
    and may wait for the device. What it makes must be part of the method's `state_dict()`, or of the classifier.
    """

    name: str
    work: Callable[[torch.Generator], Mapping[str, Any] | None]


@dataclass
class Phase:
    """Data, trainable parameters, schedule, losses.

    `prepare` makes of a batch what `losses` is computed from: whatever takes only what rests, such as a teacher's
    answers, or random numbers. It runs without gradients, perhaps a step ahead and beside the step before, and returns
    a dataclass of tensors. Its generator lives on the device and is seeded anew each epoch.
    `losses` maps that, or the batch itself, to named scalars, whose sum is minimised.
    Neither may wait for the device: no `.item()`, no shapes from data, no Python branching on tensors.
    """

    name: str
    feed: Feed
    losses: Callable[[Any], Mapping[str, Tensor]]
    optimizer: OptimizerSettings
    moves: Mapping[str, nn.Module]  # what changes; put into train mode, and saved inside a checkpoint
    epochs: int | None = None
    steps: int | None = None  # instead of epochs
    prepare: Callable[[Batch, torch.Generator], Any] | None = None
    rests: Sequence[nn.Module] = ()  # what takes part unchanged; put into eval mode, after `moves`
    parameters: Sequence[nn.Parameter] | None = None  # what the optimizer steps; none: every parameter in `moves`
    memory: OptimizerMemory | None = None
    clip: float | None = None  # the largest norm of the whole gradient
    averages: Mapping[str, float] | None = None  # what of `moves` ends as a moving average of itself, with its decay
    full_precision: bool = False  # whatever the engine's precision is
    after_epoch: Callable[[], None] | None = None  # only to update what is in `moves`
    summary: Callable[[], Mapping[str, Any]] | None = None  # figures worth writing down at the end

    @property
    def total_steps(self) -> int:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError(f"phase {self.name!r} must have a length, in epochs or in steps")
        return self.steps if self.steps is not None else (self.epochs or 0) * self.feed.steps_per_epoch

    def trainable(self) -> list[nn.Parameter]:
        if self.parameters is not None:
            return list(self.parameters)
        return [parameter for module in self.moves.values() for parameter in module.parameters()]
