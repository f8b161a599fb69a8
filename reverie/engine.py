"""The only training loop in the package: a phase in, trained parameters out.

fp32, eager and uncaptured is the reference. The loop can be left after any step and entered again there: what it needs
for that is in `snapshot()`, and all random numbers are a function of (seed of the phase, epoch).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor

from reverie.errors import Diverged, UserError
from reverie.phase import SGD, Phase
from reverie.seeding import derive

Snapshot = dict[str, Any]


class Observer:
    """Whoever follows a run: a progress bar, a journal on disk. All calls do nothing by default."""

    def phase_begins(self, phase: Phase, done: int) -> None:
        """`done` steps were made before an interruption."""

    def step_ends(self, done: int, snapshot: Callable[[], Snapshot]) -> None:
        """After every step. `snapshot` costs time; raising here stops the phase."""

    def epoch_ends(self, epoch: int, lr: float, losses: Mapping[str, float]) -> None:
        """Mean of each loss over the epoch."""

    def phase_ends(self, phase: Phase, summary: Mapping[str, Any]) -> None: ...


class Engine:
    """Runs phases on one device in one precision."""

    def __init__(self, device: torch.device, precision: Literal["fp32", "bf16"] = "fp32") -> None:
        self.device, self.precision = device, precision

    def run(self, phase: Phase, seed: int, observer: Observer | None = None, start: Snapshot | None = None) -> None:
        """Train. `seed` belongs to (run, task, phase); `start` is a snapshot of the same phase to go on from."""
        _Loop(self, phase, seed, observer or Observer()).run(start)

    def autocast(self, phase: Phase) -> AbstractContextManager[Any]:
        if self.precision == "fp32" or phase.full_precision:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)


class _Loop:
    """One phase being run."""

    def __init__(self, engine: Engine, phase: Phase, seed: int, observer: Observer) -> None:
        self.engine, self.phase, self.seed, self.observer = engine, phase, seed, observer
        self.optimizer = make_optimizer(phase)
        self.rng = torch.Generator(engine.device)
        self.done = 0  # steps
        self.names: tuple[str, ...] = ()
        self.sums: Tensor | None = None  # of the losses in this epoch, on the device

    def run(self, start: Snapshot | None) -> None:
        phase = self.phase
        if start is not None:
            self._restore(start)
        _set_modes(phase)
        self.observer.phase_begins(phase, self.done)
        per_epoch, total = phase.feed.steps_per_epoch, phase.total_steps
        while self.done < total:
            epoch, first = divmod(self.done, per_epoch)
            lr = self._begin_epoch(epoch, first)
            last = min((epoch + 1) * per_epoch, total)
            while self.done < last:
                phase.feed.advance()
                self._step()
                self.done += 1
                if self.done == last:  # first, so that a snapshot never stands between an epoch's last step and its end
                    self._end_epoch(epoch, lr)
                self.observer.step_ends(self.done, self.snapshot)
        if phase.memory is not None:
            phase.memory.state = self.optimizer.state_dict()
        self.observer.phase_ends(phase, phase.summary() if phase.summary else {})

    def snapshot(self) -> Snapshot:
        """Everything that moves, as nested dictionaries of tensors and numbers."""
        return {
            "done": self.done,
            "names": list(self.names),
            "sums": self.sums.clone() if self.sums is not None else None,
            "rng": self.rng.get_state(),
            "optimizer": self.optimizer.state_dict(),
            "moves": {name: module.state_dict() for name, module in self.phase.moves.items()},
        }

    def _restore(self, start: Snapshot) -> None:
        for name, module in self.phase.moves.items():
            module.load_state_dict(start["moves"][name])
        self.optimizer.load_state_dict(start["optimizer"])
        self.rng.set_state(start["rng"])
        self.done, self.names = start["done"], tuple(start["names"])
        self.sums = start["sums"].to(self.engine.device) if start["sums"] is not None else None

    def _begin_epoch(self, epoch: int, step: int) -> float:
        seed = derive(self.seed, "epoch", epoch)
        if step == 0:
            self.rng.manual_seed(derive(seed, "steps"))
            self.sums = None
        self.phase.feed.begin(seed, step)
        lr = self.phase.optimizer.lr * self.phase.optimizer.schedule.factor(epoch)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        return lr

    def _step(self) -> None:
        with self.engine.autocast(self.phase):
            losses = self.phase.losses(self.phase.feed.draw(self.rng))
        values = torch.stack([loss.float() for loss in losses.values()])
        self.optimizer.zero_grad(set_to_none=True)
        values.sum().backward()
        self.optimizer.step()
        self.names = tuple(losses)
        self.sums = values.detach() if self.sums is None else self.sums.add_(values.detach())

    def _end_epoch(self, epoch: int, lr: float) -> None:
        assert self.sums is not None
        steps = self.done - epoch * self.phase.feed.steps_per_epoch
        means = dict(zip(self.names, (self.sums / steps).tolist(), strict=True))  # the only look at the device's values
        broken = [name for name, value in means.items() if not math.isfinite(value)]
        if broken:
            raise Diverged(
                f"The loss {broken[0]!r} of phase {self.phase.name!r} is no longer a number (epoch {epoch + 1}). "
                f"A lower learning rate may help: --set {'dream' if self.phase.name == 'dream' else 'train'}.lr=…"
            )
        if self.phase.after_epoch:
            self.phase.after_epoch()
        self.observer.epoch_ends(epoch, lr, means)


def make_optimizer(phase: Phase) -> torch.optim.Optimizer:
    settings = phase.optimizer
    optimizer: torch.optim.Optimizer
    if isinstance(settings, SGD):
        optimizer = torch.optim.SGD(
            phase.trainable(), lr=settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay
        )
    else:
        optimizer = torch.optim.Adam(phase.trainable(), lr=settings.lr)
    if phase.memory is not None and phase.memory.state:
        optimizer.load_state_dict(copy.deepcopy(phase.memory.state))  # or it would be changed in place
    return optimizer


def _set_modes(phase: Phase) -> None:
    for module in phase.moves.values():
        module.train()
    for module in phase.rests:
        module.eval()


def find_device(name: str) -> torch.device:
    """`auto`, `cpu`, `cuda` or `cuda:1`, if it is there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"--device {name!r} is unknown; use auto, cpu, cuda or cuda:1.") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "--device cuda was asked for, but this machine has no GPU that torch can use. Try --device cpu."
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"--device {name} was asked for, but there are only {torch.cuda.device_count()} GPUs.")
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"reverie runs on cpu and cuda, not on {device.type}.")
    return device
