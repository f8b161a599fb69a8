"""One step of dreaming and one of learning, for networks of all kinds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from reverie.config.schema import Config, DreamConfig, TrainConfig
from reverie.data.images import MemoryImages
from reverie.data.stream import Task
from reverie.learner.task_learner import TaskLearner
from reverie.nets.classifier import Classifier


@pytest.fixture
def one_step_of_each() -> Callable[[Classifier], None]:
    """ABD learns one more class: the dreamer makes a step, and the classifier makes one."""

    def learn(classifier: Classifier) -> None:
        train = TrainConfig(epochs=1, milestones=(), lr=0.01, batch_size=4)
        config = Config("test", "abd", train=train, dream=DreamConfig(steps=1, noise=4, width=4))
        learner, known, shape = TaskLearner(config, classifier), classifier.seen, classifier.preprocessing
        before = [parameter.clone() for parameter in classifier.backbone.parameters()]
        pixels = torch.randint(0, 256, (4, shape.channels, shape.size, shape.size)).to(torch.uint8)
        learner.learn(Task(1, ["new"], known, MemoryImages(pixels, torch.full((4,), known))))
        assert classifier.seen == known + 1
        after = list(classifier.backbone.parameters())
        assert all(torch.isfinite(parameter).all() for parameter in after)
        assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))

    return learn
