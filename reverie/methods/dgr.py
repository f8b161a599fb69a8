"""Deep generative replay (Shin et al.): a VAE learns to paint the classes, and paints them again for later tasks."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from reverie import seeding
from reverie.config.schema import Config, Temperature, Weight, about, settings
from reverie.data.feed import Batch
from reverie.data.stream import Task
from reverie.engine.phase import Phase, Stage
from reverie.errors import UserError
from reverie.methods.base import Distiller, Keeps
from reverie.methods.losses import code_divergence, distillation, reconstruction, task_weights
from reverie.nets.classifier import Classifier
from reverie.nets.vae import VAE


@dataclass(frozen=True)
class Mixed:
    """New images, and as many painted ones below. The label of a painted one is the class the teacher sees in it."""

    images: Tensor
    labels: Tensor
    taught_logits: Tensor  # of the painted ones, over the old classes


@dataclass(frozen=True)
class Painted:
    """What the VAE learns from: images, the weight of each, and noise."""

    images: Tensor
    weights: Tensor
    noise: Tensor


class DGR(Distiller):
    """Learn beside images that a VAE paints of the old classes, then teach the VAE the new ones in the same way."""

    title = "DGR"
    keeps = Keeps.NETWORKS
    normalised = False  # the VAE's pixels lie between 0 and 1
    usual: ClassVar = {"train": {"weight_decay": 0.0}}

    @settings("method")
    class Options:
        distillation: Annotated[Weight, about("its weight, on painted images")] = 1.0
        temperature: Annotated[Temperature, about("of distillation")] = 2.0
        noise: Annotated[int, about("numbers that stand for an image", ge=1, le=16_384)] = 1024
        width: Annotated[
            int,
            about(
                "channels of the autoencoder next to the image; eight times as many in its smallest map", ge=1, le=1024
            ),
        ] = 64

    def __init__(self, classifier: Classifier, config: Config, device: torch.device) -> None:
        super().__init__(classifier, config, device)
        self.vae = None if classifier.seen else self._new_vae()  # it is no part of a saved model
        self.past: VAE | None = None  # as it was at the end of the last task

    def begin(self, task: Task) -> None:
        super().begin(task)
        if self.vae is None:
            raise UserError(
                "dgr replays from a VAE, and a saved model holds the classifier alone. Learn on with another method."
            )
        self.past = copy.deepcopy(self.vae).requires_grad_(False) if self.old else None

    def phases(self, task: Task) -> Iterator[Phase | Stage]:
        """Both learn from the past VAE and the teacher, so neither needs to come first."""
        assert self.vae is not None
        rests = [module for module in (self.teacher, self.past) if module is not None]
        if self.old:
            yield self.learning(task, self.losses, rests, self.prepare_learning)
        else:
            yield self.learning(task, self.first_losses)
        painting = self.training(task, self.vae_losses, rests, self.prepare_vae)
        yield replace(painting, name="vae", moves={"vae": self.vae})

    def prepare_learning(self, batch: Batch, rng: torch.Generator) -> Mixed:
        painted = self._paint(len(batch.images), rng)
        _, taught = self.ask_teacher(painted)
        labels = torch.cat([batch.labels, taught.argmax(dim=1)])
        return Mixed(torch.cat([batch.images, painted]), labels, taught)

    def losses(self, mixed: Mixed) -> Mapping[str, Tensor]:
        logits = self.classifier(mixed.images)
        painted = logits[-len(mixed.taught_logits) :, : self.old]
        kd = distillation(painted, mixed.taught_logits, self.options.temperature)
        weigh = functools.partial(task_weights, old=self.old, total=self.total)
        real = len(logits) - len(mixed.taught_logits)
        return {
            "cross_entropy": self.cross_entropy(logits, mixed.labels, weigh, real),
            "distillation": self.options.distillation * kd,
        }

    def prepare_vae(self, batch: Batch, rng: torch.Generator) -> Painted:
        images, old_share = batch.images, self.old / self.total
        weights = torch.full_like(batch.labels, 1 - old_share, dtype=images.dtype)
        if self.old:
            images = torch.cat([images, self._paint(len(images), rng)])
            weights = torch.cat([weights, torch.full_like(weights, old_share)])
        return Painted(images, weights, self._noise(len(images), rng))

    def vae_losses(self, painted: Painted) -> Mapping[str, Tensor]:
        assert self.vae is not None
        mean, log_variance = self.vae.encode(painted.images)
        logits = self.vae.decode(mean + painted.noise * (log_variance / 2).exp())
        return {
            "reconstruction": reconstruction(logits, painted.images, painted.weights),
            "divergence": code_divergence(mean, log_variance) / painted.images[0].numel(),
        }

    def end(self, task: Task) -> None:
        super().end(task)
        self.past = None

    def state_dict(self) -> dict[str, Any]:
        vaes = {"vae": self.vae, "past": self.past}
        return super().state_dict() | {name: vae.state_dict() for name, vae in vaes.items() if vae is not None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.vae = self.vae or self._new_vae()
        self.vae.load_state_dict(state["vae"])
        if self.past is not None:
            self.past.load_state_dict(state["past"])

    def _paint(self, count: int, rng: torch.Generator) -> Tensor:
        """Images of old classes."""
        assert self.past is not None
        return self.past.decode(self._noise(count, rng)).sigmoid()

    def _noise(self, count: int, rng: torch.Generator) -> Tensor:
        return torch.randn(count, self.options.noise, generator=rng, device=self.device)

    def _new_vae(self) -> VAE:
        shape = self.classifier.preprocessing
        with seeding.initialising(self.config.seed, "vae"):
            return VAE(shape.size, shape.channels, self.options.noise, self.options.width).to(self.device)
