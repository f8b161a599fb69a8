"""What a model remembers: dreams of every class it knows, for a person to look at."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from reverie import seeding
from reverie.data.preprocessing import Normaliser
from reverie.engine.observer import Observer
from reverie.learner.dream_sheet import ROWS, draw_sheet
from reverie.learner.task_learner import TaskLearner
from reverie.methods.dreamer import Dreamer, DreamMaker
from reverie.system.arguments import check_whole_number
from reverie.text import plural

MOST_PER_CLASS, MOST_STEPS = 1000, 100_000_000


@dataclass(frozen=True)
class Dreams:
    """The surest dreams of each class, class by class, the surest first. Of some classes there may be none."""

    class_names: tuple[str, ...]
    pixels: Tensor  # uint8 [n, channels, size, size]
    labels: Tensor  # the class the model sees in each, in learned order
    confidence: Tensor  # and how sure it is
    per_class: int  # at most

    def __repr__(self) -> str:
        return f"Dreams({plural(len(self.labels), 'dream')} of {plural(len(self.class_names), 'class')})"

    def of(self, label: int) -> tuple[Tensor, Tensor]:
        """The dreams of one class, and how sure the model is of each."""
        return self.pixels[self.labels == label], self.confidence[self.labels == label]

    @property
    def missing(self) -> tuple[str, ...]:
        """The classes of which nothing was dreamed."""
        dreamed = set(self.labels.tolist())
        return tuple(name for label, name in enumerate(self.class_names) if label not in dreamed)

    def sheet(self, confidences: bool = True) -> bytes:
        """A PNG with a row for each class."""
        rows = [self.of(label) for label in range(min(ROWS, len(self.class_names)))]
        return draw_sheet(self.class_names, rows, self.per_class, self.pixels.shape[-1], confidences)


def dream_of(
    learner: TaskLearner,
    per_class: int = 8,
    classes: Collection[str] | None = None,
    *,
    steps: int | None = None,
    seed: int = 0,
    observer: Observer | None = None,
) -> Dreams:
    """Fit a dreamer to the model as it is now, and look at the surest of its dreams: of all classes, or of these.

    `steps` are the dreamer's own; left out, as many as in the model's configuration. The model is left alone.
    """
    per_class = check_whole_number("per_class", per_class, 1, MOST_PER_CLASS)
    if steps is not None:
        check_whole_number("steps", steps, 1, MOST_STEPS)
    settings = learner.config.dream
    if steps is not None:
        settings = replace(settings, steps=steps)
    teacher = learner.classifier.frozen_copy()
    if classes is not None:
        teacher.drop([name for name in teacher.class_names if name not in classes])
        teacher.requires_grad_(False)
    dreamer = Dreamer(teacher, settings, learner.config.train.batch_size, seed, task=len(learner.ledger))
    learner.engine.run(dreamer.phase(), seeding.derive(seed, "dreams"), observer)
    return surest(dreamer, per_class)


def surest(dreamer: DreamMaker, per_class: int) -> Dreams:
    """Of many dreams, those of each class that the teacher is surest of."""
    teacher = dreamer.teacher
    shape = teacher.preprocessing
    to_pixels = Normaliser.of(shape, dreamer.device).to_pixels
    pixels = torch.empty(0, shape.channels, shape.size, shape.size, dtype=torch.uint8)
    labels, confidence = torch.empty(0, dtype=torch.long), torch.empty(0)
    for images, seen, sure in dreamer.gallery(max(500, 4 * per_class * teacher.seen)):
        labels, confidence = torch.cat([labels, seen.cpu()]), torch.cat([confidence, sure.float().cpu()])
        best = _best(labels, confidence, per_class)
        pixels = torch.cat([pixels, to_pixels(images).cpu()])[best]
        labels, confidence = labels[best], confidence[best]
    return Dreams(teacher.class_names, pixels, labels, confidence, per_class)


def _best(labels: Tensor, confidence: Tensor, per_class: int) -> Tensor:
    """Class by class, the surest first, at most `per_class` of each."""
    order = confidence.argsort(descending=True, stable=True)
    order = order[labels[order].argsort(stable=True)]
    grouped = labels[order]
    place = torch.arange(len(order)) - torch.searchsorted(grouped, grouped)
    return order[place < per_class]
