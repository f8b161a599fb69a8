"""A method in the middle of its second task, in double precision, ready to have its losses looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from reverie.config.schema import Config
from reverie.data.feed import Batch
from reverie.data.images import MemoryImages
from reverie.data.preprocessing import Preprocessing
from reverie.data.stream import Task
from reverie.engine.phase import Phase
from reverie.learner.task_learner import TaskLearner
from reverie.methods.base import Method
from reverie.nets.classifier import Classifier

SIDE, ROWS = 8, 6


@dataclass
class Scene:
    """A classifier that knows `old` classes and learns `new` more, and one batch of images of the new ones."""

    method: Method
    phases: Mapping[str, Phase]
    phase: Phase  # in which the new classes are learned
    old: int
    new: int
    images: Tensor
    labels: Tensor

    @property
    def classifier(self) -> Classifier:
        return self.method.classifier

    def batch(self) -> Batch:
        return Batch(self.images, self.labels)

    def enter(self, name: str) -> None:
        """Another phase of the same task."""
        self.phase = self.phases[name]
        for module in self.phase.moves.values():
            module.train()
        for module in self.phase.rests:
            module.eval()

    def prepared(self) -> Any:
        with torch.no_grad():
            rng = torch.Generator().manual_seed(7)
            return self.phase.prepare(self.batch(), rng) if self.phase.prepare else self.batch()

    def losses(self) -> Mapping[str, Tensor]:
        """As the engine has them computed, for the batch above."""
        return self.phase.losses(self.prepared())

    def dreams(self) -> Tensor:
        """Those that the method sees in `losses()`."""
        return self.method.dreamer.sample(len(self.images), torch.Generator().manual_seed(7))

    def gradients(self, loss: Tensor) -> dict[str, Tensor]:
        parameters = dict(self.classifier.named_parameters())
        values = torch.autograd.grad(
            loss, list(parameters.values()), allow_unused=True, materialize_grads=True, retain_graph=True
        )
        return dict(zip(parameters, values, strict=True))

    def assert_same(self, losses: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
        """The same names, values and gradients."""
        assert losses.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(losses[name], value, rtol=1e-6, atol=1e-9)
            ours, theirs = self.gradients(losses[name]), self.gradients(value)
            for parameter in ours:
                torch.testing.assert_close(ours[parameter], theirs[parameter], rtol=1e-5, atol=1e-9)

    def moved_by(self, loss: Tensor) -> set[str]:
        """Parameters that the loss moves at all; head rows are told apart."""
        moved = set()
        for name, gradient in self.gradients(loss).items():
            if name.startswith("head."):
                rows = gradient.flatten(1).abs().sum(1) if gradient.ndim > 1 else gradient.abs()
                moved |= {f"head row {i}" for i, value in enumerate(rows.tolist()) if value > 0}
            elif gradient.abs().sum() > 0:
                moved.add("backbone")
        return moved


@pytest.fixture
def scene(float64: None, tiny: Callable[..., Config]) -> Callable[..., Scene]:
    def make(
        method: str,
        old: int = 3,
        new: int = 2,
        *settings: str,
        recipe: str = "paper",
        total: int = 9,
        before: Callable[[Method], None] = lambda method: None,
        phase_name: str | None = None,
    ) -> Scene:
        """`before` the task begins, something may happen to the method and its classifier."""
        config = tiny(method, *settings, recipe=recipe)
        learner = TaskLearner.fresh(config, Preprocessing(SIDE, (0.3,), (0.4,)), classes=total)
        learner.classifier.grow([f"old {i}" for i in range(old)])
        _unsettle(learner.classifier)
        rng = torch.Generator().manual_seed(3)
        labels = torch.arange(ROWS) % new + old
        pixels = torch.randint(0, 256, (ROWS, 1, SIDE, SIDE), generator=rng).to(torch.uint8)
        task = Task(1, [f"new {i}" for i in range(new)], old, MemoryImages(pixels, labels))
        before(learner.method)
        learner.method.begin(task)
        learner.classifier.grow(task.names)
        _unsettle(learner.classifier, seed=1)
        phases = {phase.name: phase for phase in learner.method.phases(task) if isinstance(phase, Phase)}
        images = torch.randn(ROWS, 1, SIDE, SIDE, generator=rng)
        chosen = phase_name or ("learn" if "learn" in phases else [*phases][-1])
        made = Scene(learner.method, phases, phases[chosen], old, new, images, labels)
        made.enter(chosen)
        return made

    return make


def _unsettle(classifier: Classifier, seed: int = 0) -> None:
    """Weights and statistics that are unlike their initial values, so that no term vanishes by accident."""
    rng = torch.Generator().manual_seed(seed)
    for name, value in classifier.state_dict().items():
        if value.is_floating_point():
            noise = torch.rand(value.shape, generator=rng)
            value.copy_(5 + 5 * noise if "running_var" in name else value + 0.1 * (noise - 0.5))
