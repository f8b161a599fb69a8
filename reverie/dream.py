"""The dreamer: makes images of the old classes out of a frozen teacher, from nothing but its weights.

A generator is fitted so that its images excite the teacher as training images did (`Dreamer.phase`), then sampled as
often as needed. docs/method.md, "The dreamer", has the equations.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from reverie import losses, seeding
from reverie.config import DreamConfig
from reverie.data.feed import Batch, NoData
from reverie.nets.classifier import Classifier
from reverie.nets.generator import Generator
from reverie.nets.resnet import batchnorm_layers
from reverie.phase import Adam, OptimizerMemory, Phase

log = logging.getLogger("reverie")
Layer = tuple[Tensor, Tensor, Tensor, Tensor]


class Dreamer:
    """Belongs to one task. Everything it draws is a function of (seed, task, teacher), whatever the method."""

    def __init__(self, teacher: Classifier, config: DreamConfig, batch_size: int, seed: int, task: int) -> None:
        self.config, self.seed, self.task = config, seed, task
        self.batch_size = config.batch_size or batch_size
        self.device = teacher.head.weight.device
        shape = teacher.preprocessing
        with seeding.initialising(seed, "generator", task):
            self.generator = Generator(shape.size, shape.channels, config.noise, config.width).to(self.device)
        self.memory = OptimizerMemory() if config.life == "carried" else None
        self.taps = losses.blur_taps(self.device)
        self.teach(teacher, task)

    def teach(self, teacher: Classifier, task: int) -> None:
        """From now on, dream of what `teacher` knows."""
        if not batchnorm_layers(teacher):
            raise ValueError("the classifier has no BatchNorm layers, whose statistics the dreamer needs")
        self.teacher, self.task = teacher, task

    def phase(self) -> Phase:
        """The generator's training."""
        return Phase(
            name="dream",
            feed=NoData(self.device),
            losses=self.losses,
            optimizer=Adam(self.config.lr),
            moves={"generator": self.generator},
            rests=[self.teacher],
            steps=self.config.steps,
            memory=self.memory,
            full_precision=True,
            summary=self.coverage,
        )

    def losses(self, batch: Batch) -> Mapping[str, Tensor]:
        images = self.generator(self._noise(self.batch_size, batch.rng))
        with watching_batchnorm(self.teacher) as layers:
            logits = self.teacher(images)
        weights = self.config
        return {
            "content": weights.content * losses.content(logits, weights.temperature),
            "diversity": weights.diversity * losses.diversity(logits),
            "statistics": weights.statistics * losses.statistics(layers),
            "prior": weights.prior * losses.smoothness(images, self.taps),
        }

    @torch.no_grad()
    def sample(self, count: int, rng: torch.Generator) -> Tensor:
        """Dreams in normalised pixel space, neither augmented nor clipped. `rng` lives on the dreamer's device."""
        images: Tensor = self.generator.eval()(self._noise(count, rng))
        return images

    @torch.no_grad()
    def gallery(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """The same `count` dreams each time, the class the teacher sees in each, and how sure it is."""
        rng = torch.Generator(self.device).manual_seed(seeding.derive(self.seed, "gallery", self.task))
        parts = []
        for start in range(0, count, 500):
            images = self.sample(min(500, count - start), rng)
            sure, label = self.teacher.eval()(images).softmax(dim=1).max(dim=1)
            parts.append((images, label, sure))
        images, labels, confidence = (torch.cat(part) for part in zip(*parts, strict=True))
        return images, labels, confidence

    def coverage(self) -> dict[str, Any]:
        """Which of the old classes are dreamed of, and how surely. A class counts from a tenth of its fair share on."""
        classes = self.teacher.seen
        _, labels, confidence = self.gallery(max(500, 20 * classes))
        shares = torch.bincount(labels, minlength=classes) / len(labels)
        covered = int((shares >= 0.1 / classes).sum())
        if covered < max(2, classes / 2) <= classes:
            log.warning(
                "The dreams of task %d collapse to %d of %d old classes; more dream.steps may help.",
                self.task + 1,
                covered,
                classes,
            )
        return {
            "classes": classes,
            "covered": covered,
            "shares": [round(share, 4) for share in shares.tolist()],
            "confidence": round(float(confidence.mean()), 4),
        }

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.state_dict(), "memory": self.memory.state if self.memory else {}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.generator.load_state_dict(state["generator"])
        if self.memory is not None:
            self.memory.state = dict(state["memory"])

    def _noise(self, count: int, rng: torch.Generator) -> Tensor:
        return torch.randn(count, self.config.noise, generator=rng, device=self.device)


@contextmanager
def watching_batchnorm(module: nn.Module) -> Iterator[list[Layer]]:
    """Inside, every BatchNorm layer passed adds (mean, variance) of what came in and of what it remembers."""
    seen: list[Layer] = []

    def look(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d)
        if layer.running_mean is not None and layer.running_var is not None:
            seen.append((*losses.batch_statistics(inputs[0]), layer.running_mean, layer.running_var))

    handles = [layer.register_forward_pre_hook(look) for layer in batchnorm_layers(module)]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
