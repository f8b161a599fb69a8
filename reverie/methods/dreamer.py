"""The dreamer: makes images of the old classes out of a frozen teacher, from nothing but its weights.

A generator is fitted so that its images excite the teacher as training images did (`Dreamer.phase`), then sampled as
often as needed. docs/method.md, "The dreamer", has the equations.
"""

from __future__ import annotations

import copy
import itertools
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from reverie import seeding
from reverie.compile import compilable
from reverie.config.schema import DreamConfig
from reverie.data.feed import Batch, NoData
from reverie.data.images import images_at_once
from reverie.data.preprocessing import Normaliser, Preprocessing
from reverie.engine.phase import Adam, OptimizerMemory, Phase, Stage
from reverie.errors import UserError
from reverie.methods import losses
from reverie.nets.classifier import Classifier
from reverie.nets.generator import Generator
from reverie.nets.statistics import batchnorm_layers, can_remember, channels_second, noting_layers, remembered

log = logging.getLogger("reverie")


@dataclass(frozen=True)
class Noise:
    """What the generator makes images of."""

    values: Tensor


class DreamMaker(ABC):
    """Whatever makes images of the old classes: `making` prepares it, `sample` is what methods replay.

    `Dreamer` makes them of noise, `Drawer` of new images.
    """

    teacher: Classifier
    device: torch.device
    seed: int
    task: int

    @property
    def resting(self) -> Sequence[nn.Module]:
        """What takes part in replay, and learns nothing."""
        return ()

    @abstractmethod
    def making(self) -> Iterator[Phase | Stage]:
        """What has to be done before there are dreams."""

    @abstractmethod
    def sample(self, count: int, rng: torch.Generator) -> Tensor:
        """Dreams as the classifier takes images. `rng` lives on the device."""

    @abstractmethod
    def shown(self, count: int, rng: torch.Generator) -> Iterator[Tensor]:
        """At most so many dreams, part by part, since all of them together could fill the memory."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """What a run needs to go on inside a task, with the same dreams."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Called when the teacher has its weights."""

    def gallery(self, count: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """The same `count` dreams each time, the class the teacher sees in each, and how sure it is. Part by part."""
        rng = torch.Generator(self.device).manual_seed(seeding.derive(self.seed, "gallery", self.task))
        for images in self.shown(count, rng):
            with torch.no_grad():
                sure, label = self.teacher.eval()(images).softmax(dim=1).max(dim=1)
            yield images, label, sure

    def coverage(self) -> dict[str, Any]:
        """Which of the old classes are dreamed of, and how surely. A class counts from a tenth of its fair share on."""
        classes = self.teacher.seen
        seen = [part[1:] for part in self.gallery(max(500, 20 * classes))]
        labels, confidence = (torch.cat(part) for part in zip(*seen, strict=True))
        shares = torch.bincount(labels, minlength=classes) / len(labels)
        covered = int((shares >= 0.1 / classes).sum())
        if covered < max(2, classes / 2) <= classes:
            log.warning("The dreams collapse to %d of %d classes; more steps of dreaming may help.", covered, classes)
        return {
            "classes": classes,
            "covered": covered,
            "shares": [round(share, 4) for share in shares.tolist()],
            "confidence": round(float(confidence.mean()), 4),
        }


class Dreamer(DreamMaker):
    """Belongs to one task; one that is carried (`dream.life`) is taught anew for each, and goes on from where it was.

    What it draws is a function of seed, task and teacher, and of its earlier tasks if it is carried; not of the method.
    """

    def __init__(self, teacher: Classifier, config: DreamConfig, batch_size: int, seed: int, task: int) -> None:
        self.config, self.seed, self.task = config, seed, task
        self.batch_size = config.batch_size or batch_size
        self.device = teacher.head.weight.device
        shape = teacher.preprocessing
        with seeding.initialising(seed, "generator", task):
            self.generator = Generator(shape.size, shape.channels, config.noise, config.width).to(self.device)
        self.memory = OptimizerMemory() if config.life == "carried" else None
        self.blur = losses.blur_matrix(shape.size).to(teacher.head.weight)
        self.as_input = _into_input_range(shape, self.device)
        self.teach(teacher, task)

    def teach(self, teacher: Classifier, task: int) -> None:
        """From now on, dream of what `teacher` knows."""
        if not can_remember(teacher):
            raise without_memory(teacher)
        self.teacher, self.task = teacher, task
        self.watched = watching(teacher)

    @property
    def resting(self) -> Sequence[nn.Module]:
        return [self.generator]

    def making(self) -> Iterator[Phase | Stage]:
        yield self.phase()

    def phase(self) -> Phase:
        """The generator's training."""
        return Phase(
            name="dream",
            feed=NoData(self.device),
            losses=self.losses,
            optimizer=Adam(self.config.lr),
            moves={"generator": self.generator},
            rests=[self.watched],
            steps=self.config.steps,
            prepare=self.prepare,
            memory=self.memory,
            full_precision=not self.config.mixed,
            summary=self.coverage,
        )

    def prepare(self, batch: Batch, rng: torch.Generator) -> Noise:
        return Noise(self._noise(self.batch_size, rng))

    def losses(self, noise: Noise) -> Mapping[str, Tensor]:
        images = self.generator(noise.values)
        features, statistics = excite(self.watched, self.as_input(images))
        logits = self.watched.logits(features)
        weights = self.config
        return {
            "content": weights.content * losses.content(logits, weights.temperature),
            "diversity": weights.diversity * losses.diversity(logits),
            "statistics": weights.statistics * statistics,
            "prior": weights.prior * losses.smoothness(images, self.blur),
        }

    @torch.no_grad()
    def sample(self, count: int, rng: torch.Generator) -> Tensor:
        """Dreams as the classifier takes images, neither augmented nor clipped. `rng` lives on the dreamer's device."""
        return self.as_input(self.generator.eval()(self._noise(count, rng)))

    def shown(self, count: int, rng: torch.Generator) -> Iterator[Tensor]:
        at_once = images_at_once(self.teacher.preprocessing.size)
        for start in range(0, count, at_once):
            yield self.sample(min(at_once, count - start), rng)

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.state_dict(), "memory": self.memory.state if self.memory else {}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.generator.load_state_dict(state["generator"])
        if self.memory is not None:
            self.memory.state = dict(state["memory"])

    def _noise(self, count: int, rng: torch.Generator) -> Tensor:
        return torch.randn(count, self.config.noise, generator=rng, device=self.device)


def _into_input_range(shape: Preprocessing, device: torch.device) -> Callable[[Tensor], Tensor]:
    """From the generator's images, with zero mean and unit deviation by channel, to what the classifier takes.

    That is the same, unless the classifier's images are normalised by other numbers than their own.
    """
    if shape.images is None:
        return lambda images: images
    own = Normaliser.of(shape.images, device)
    wanted = Normaliser.of(shape, device)
    return lambda images: wanted.from_unit(own.to_unit(images))


def without_memory(classifier: Classifier) -> UserError:
    return UserError(
        f"Nothing can be dreamed from {classifier.backbone.architecture}: it has no BatchNorm, LayerNorm or "
        "GroupNorm layers, which remember what images are like. Choose another network, or a method such as lwf."
    )


def watching(classifier: Classifier) -> Classifier:
    """A twin with the very same tensors, whose remembering layers note the statistics of what comes in.

    The classifier itself is left alone.
    """
    tensors = itertools.chain(classifier.parameters(), classifier.buffers())
    twin = copy.deepcopy(classifier, {id(tensor): tensor for tensor in tensors})
    for layer in batchnorm_layers(twin) or noting_layers(twin):  # whatever they remember: that may be read in later
        layer.register_forward_pre_hook(_note)
    return twin


def _note(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    layer.met = (*losses.batch_statistics(channels_second(layer, inputs[0])), *remembered(layer))  # type: ignore[assignment]


@compilable
def excite(watched: Classifier, images: Tensor) -> tuple[Tensor, Tensor]:
    """Features, and the statistics loss: one pass. Layers that no image comes through take no part."""
    features = watched.features(images)
    layers = [layer for layer in watched.modules() if getattr(layer, "met", None) is not None]
    gap = losses.statistics([layer.met for layer in layers])  # type: ignore[misc]
    for layer in layers:
        layer.met = None  # type: ignore[assignment]
    return features, gap
