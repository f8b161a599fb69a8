"""Dreams that begin with what is there: new images, changed until the teacher takes them for those of old classes.

What the teacher is asked for are the class statistics that a method keeps: no generator has to be trained, and no layer
need remember what images were like. docs/lucid.md has the rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from reverie import seeding
from reverie.data.augment import Augmenter
from reverie.data.draws import DRAWS
from reverie.data.images import Images, images_at_once
from reverie.engine.phase import Stage
from reverie.methods.dreamer import DreamMaker
from reverie.nets.class_statistics import ClassStatistics
from reverie.nets.classifier import Classifier

EACH = 64  # images of each old class, where memory allows
MOST_BYTES = 256 * 2**20  # of all of them, and at least one of each class
STEPS = 20
STRIDE = 0.05  # how far a step goes: a share of the norm that an image of unit variance has


class Drawer(DreamMaker):
    """Belongs to one task. Before `draw`, its dreams are new images as they are."""

    def __init__(
        self,
        teacher: Classifier,
        statistics: ClassStatistics | None,
        images: Images,
        augment: Augmenter,
        seed: int,
        task: int,
    ) -> None:
        self.teacher, self.statistics, self.images, self.augment = teacher, statistics, images, augment
        self.seed, self.task, self.device = seed, task, teacher.head.weight.device
        few = torch.arange(min(len(images), images_at_once(images.shape[1])))
        self.pixels, self.drawn = images.read(few).to(self.device), False

    def making(self) -> Iterator[Stage]:
        yield Stage("draw", lambda rng: self._draw_and_look())

    def _draw_and_look(self) -> Mapping[str, Any]:
        self.draw()
        return self.coverage()

    def draw(self) -> None:
        """The same number of images for each old class: a function of seed, task, teacher, statistics and images."""
        if self.statistics is None:
            raise RuntimeError("nothing can be drawn before there are class statistics")
        classes = len(self.statistics)
        size = self.images.shape[0] * self.images.shape[1] * self.images.shape[2]
        each = max(1, min(EACH, MOST_BYTES // (classes * size)))
        metric = self.statistics.metric().to(self.device)
        aims, _ = self.statistics.sample(each, seeding.generator(self.seed, "draw", self.task))
        rows = self._nearest(metric, each)
        pairs = zip(rows.split(self._at_once), aims.to(self.device).split(self._at_once), strict=True)
        self.pixels = torch.cat([self._towards(self.images.read(part), aim, metric) for part, aim in pairs])
        self.drawn = True

    @property
    def _at_once(self) -> int:
        return images_at_once(self.images.shape[1])

    @torch.no_grad()
    def _nearest(self, metric: Tensor, each: int) -> Tensor:
        """The rows of the new images that lie nearest to each class's mean; some again, where there are too few."""
        assert self.statistics is not None
        means = self.statistics.means.to(self.device) @ metric
        network, found = self.teacher.eval(), []
        for part in torch.arange(len(self.images)).split(self._at_once):
            shown = self.augment.normalise(self.images.read(part).to(self.device))
            found.append(torch.cdist(network.features(shown).float() @ metric, means))
        order = torch.cat(found).argsort(dim=0)[:each].T.cpu()
        return order[:, torch.arange(each) % order.shape[1]].flatten()

    def _towards(self, pixels: Tensor, aims: Tensor, metric: Tensor) -> Tensor:
        """Step by step down the distance to the aim, in pixels that stay between black and white."""
        normalise = self.augment.normalise
        shown = normalise(pixels.to(self.device))
        stride, network = STRIDE * shown[0].numel() ** 0.5, self.teacher.eval()
        for _ in range(STEPS):
            shown = shown.detach().requires_grad_()
            with torch.enable_grad():
                distance = ((network.features(shown).float() - aims) @ metric).square().sum()
                (gradient,) = torch.autograd.grad(distance, shown)
            norm = gradient.flatten(1).norm(dim=1).clamp_min(1e-12)[:, None, None, None]
            shown = (shown - stride * gradient / norm).detach()
            shown = normalise.from_unit(normalise.to_unit(shown).clamp(0, 1))
        return normalise.to_pixels(shown)

    @torch.no_grad()
    def sample(self, count: int, rng: torch.Generator) -> Tensor:
        rows = torch.randint(len(self.pixels), (count,), generator=rng, device=self.device)
        return self.augment(self.pixels[rows], torch.rand(count, DRAWS, generator=rng, device=self.device))

    def shown(self, count: int, rng: torch.Generator) -> Iterator[Tensor]:
        rows = torch.randperm(len(self.pixels), generator=rng, device=self.device)[:count]
        for part in rows.split(self._at_once):
            yield self.augment.normalise(self.pixels[part])

    def state_dict(self) -> dict[str, Any]:
        """No image: what was drawn is drawn again, the same, from what made it."""
        if self.statistics is None:
            return {"drawn": False}
        return {"drawn": self.drawn, "statistics": self.statistics.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The teacher must have its weights by now."""
        if "statistics" in state:
            self.statistics = ClassStatistics.from_state(state["statistics"])
        if state["drawn"]:
            self.draw()
