"""Can a model be dreamed from? A short inversion, and what came of it in plain words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from reverie import seeding
from reverie.config.schema import DreamConfig
from reverie.engine.loop import Engine
from reverie.engine.observer import Observer
from reverie.methods.dreamer import Dreamer, excite
from reverie.nets.classifier import Classifier
from reverie.nets.statistics import remembered, remembering_layers

STEPS = 60
MOST_DREAMS = 400


@dataclass(frozen=True)
class Preflight:
    """What was found. The gap is the loss by which dreams are fitted to the statistics that the layers remember."""

    layers: int  # that remember the training images
    trained: bool  # they remember something, and not just what every layer begins with
    steps: int  # of the short inversion
    dreams: int  # looked at afterwards
    classes: int  # known to the model
    shown: int  # classes that the model sees in the dreams
    possible: float  # classes that as many images, each of any class, would show
    confidence: float  # of the model in what it sees there
    gap: float
    gap_of_noise: float

    @property
    def doubts(self) -> list[str]:
        """Why dreams of this model may be of no use, if they may."""
        if not self.trained:
            return ["its BatchNorm layers hold what they begin with: they were never trained, or frozen"]
        doubts = []
        if self.shown < self.possible / 2:
            doubts.append(f"the dreams show only {self.shown} of its {self.classes} classes")
        if self.confidence < 0.5:
            doubts.append(f"the model is not sure of what it sees in them (confidence {self.confidence:.2f})")
        if self.gap > self.gap_of_noise / 2:
            doubts.append("they excite it hardly more like training images than noise does")
        return doubts

    @property
    def passed(self) -> bool:
        return not self.doubts

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "passed": self.passed, "doubts": self.doubts}

    def lines(self) -> list[str]:
        """For a person to read."""
        found = [
            f"{self.layers} layers remember what the training images were like.",
            f"After {self.steps} steps of dreaming, {self.dreams} dreams show {self.shown} of {self.classes} classes; "
            f"confidence {self.confidence:.2f}; statistics gap {self.gap:.3g} (noise: {self.gap_of_noise:.3g}).",
        ]
        if self.passed:
            return [*found, "This model can be dreamed from."]
        return [
            *found,
            f"Doubtful whether this model can be dreamed from: {'; '.join(self.doubts)}.",
            "Size and normalisation must be those of its training. If they are, look at its dreams before you go on.",
        ]


def run_preflight(
    classifier: Classifier,
    device: torch.device | str = "cpu",
    steps: int = STEPS,
    seed: int = 0,
    observer: Observer | None = None,
) -> Preflight:
    """Dream for a short while, and look at what comes out. The classifier is left as it is."""
    device = torch.device(device)
    teacher = classifier.frozen_copy().to(device)
    batch = max(8, min(32, 32 * 64**2 // teacher.preprocessing.size**2))  # fewer where images are large
    dreamer = Dreamer(teacher, DreamConfig(steps=steps, batch_size=batch, width=32), batch, seed, task=0)
    phase = replace(dreamer.phase(), summary=None)
    Engine(device).run(phase, seeding.derive(seed, "preflight"), observer)
    classes = teacher.seen
    count = min(max(100, 4 * classes), MOST_DREAMS)
    rng = torch.Generator(device).manual_seed(seeding.derive(seed, "preflight", "dreams"))
    dreams = [dreamer.sample(part, rng) for part in _parts(count, batch)]
    noise = [dreamer.as_input(torch.randn(*part.shape, generator=rng, device=device)) for part in dreams[:4]]
    (gap, logits), (gap_of_noise, _) = _look(dreamer, dreams), _look(dreamer, noise)
    confidence, labels = logits.softmax(dim=1).max(dim=1)
    return Preflight(
        layers=len(remembering_layers(teacher)),
        trained=_trained(teacher),
        steps=steps,
        dreams=count,
        classes=classes,
        shown=len(labels.unique()),
        possible=classes * (1 - (1 - 1 / classes) ** count),
        confidence=float(confidence.mean()),
        gap=gap,
        gap_of_noise=gap_of_noise,
    )


@torch.no_grad()
def _look(dreamer: Dreamer, parts: list[Tensor]) -> tuple[float, Tensor]:
    """Statistics gap, and the logits of all images."""
    seen = [excite(dreamer.watched.eval(), images) for images in parts]
    gaps = torch.stack([gap for _, gap in seen])
    return float(gaps.mean()), dreamer.watched.logits(torch.cat([features for features, _ in seen]))


def _trained(classifier: Classifier) -> bool:
    known = [remembered(layer) for layer in remembering_layers(classifier)]
    return any(bool(mean.any()) or bool((variance != 1).any()) for mean, variance in known)


def _parts(count: int, most: int) -> Iterator[int]:
    return (min(most, count - start) for start in range(0, count, most))
