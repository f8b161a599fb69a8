"""Lucid, a method of our own: R-DFCIL's network and dreams, and class statistics that move along with it and answer.

docs/lucid.md has its equations, whose idea each part is, and what was measured.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from reverie import seeding
from reverie.config.schema import Weight, about, settings
from reverie.data.feed import Batch
from reverie.data.stream import Task
from reverie.engine.phase import Phase
from reverie.methods.dream_replay import Replay
from reverie.methods.keeps import Keeps
from reverie.methods.losses import cross_entropy, distillation, local_cross_entropy, logit_distillation
from reverie.methods.rdfcil import RDFCIL, ClassWeights, Relations
from reverie.methods.rotations import TURNS, RotationHead
from reverie.methods.statistics_replay import Head, KeepStatistics, Map, Moving
from reverie.nets.layers import widened
from reverie.nets.statistics import statistics_at_rest


class Follower(nn.Module):
    def __init__(self, feature_dim: int) -> None:
        super().__init__()
        self.change = nn.Linear(feature_dim, feature_dim)
        nn.init.zeros_(self.change.weight)
        nn.init.zeros_(self.change.bias)

    def forward(self, before: Tensor) -> Tensor:
        with torch.autocast(before.device.type, enabled=False):
            return widened(before) + self.change(widened(before))


def unexplained(after: Tensor, expected: Tensor) -> Tensor:
    after = widened(after)
    return (after - expected).square().sum() / (after - after.mean(dim=0)).square().sum()


@dataclass(frozen=True)
class Recalled(Replay):
    turned: Tensor
    taught_turned: Tensor
    samples: Tensor
    sample_labels: Tensor


def turn_each(images: Tensor) -> Tensor:
    """A quarter of the images each way up, in the order of `turns_of`."""
    return torch.cat([torch.rot90(images[k::TURNS], k, (2, 3)) for k in range(TURNS)])


def turned_targets(labels: Tensor, first: int) -> Tensor:
    return torch.cat([TURNS * (labels[k::TURNS] - first) + k for k in range(TURNS)])


class Lucid(RDFCIL):
    """Learn beside dreams as R-DFCIL does; keep each class's mean and covariance, move them along, answer by them.

    No image is kept. In the first task turned images are further classes, which makes better features.
    """

    title = "Lucid"
    keeps = Keeps.STATISTICS
    answers = True
    usual: ClassVar = {"train": {"rotations": "first"}}

    @settings("method")
    class Options(RDFCIL.Options):
        statistics: KeepStatistics = True
        following: Weight = 0.0
        real_distillation: Weight = 0.0
        soft: Weight = 0.0
        negatives: Weight = 0.0
        later_lr: float = 1.0
        turned: Weight = 0.0
        drawn: int = 0
        map: Annotated[Map, about("what the statistics of old classes are moved by: new images, dreams, both")] = "both"
        dream_weight: Annotated[
            Weight, about("of all dreams together in the map, where that of all new images is one")
        ] = 0.3
        ridge: Annotated[
            float, about("draws the map towards no change; a share of the features' mean variance", ge=0, le=1e3)
        ] = 1e-3
        residual: Annotated[bool, about("add the covariance of what the map leaves unexplained")] = True
        head: Annotated[Head, about("fitted to samples of the statistics (`linear`), or made of them")] = "linear"
        pooled: Annotated[
            float, about("the share of each covariance that is that of all classes, in a Gaussian head", ge=0, le=1)
        ] = 0.8

    @property
    def moving(self) -> Moving:
        options = self.options
        return Moving(options.map, options.dream_weight, options.ridge, options.residual, options.head, options.pooled)

    def begin(self, task: Task) -> None:
        super().begin(task)
        if self.old and self.statistics is not None and self.options.negatives:
            self._means = self.statistics.means.to(self.device).float()
            self._spread = torch.linalg.cholesky(self.statistics.shrunk()).float().to(self.device)

    def prepare(self, batch: Batch, rng: torch.Generator) -> Recalled:
        replay = super().prepare(batch, rng)
        none = replay.images.new_zeros(0)
        turned, taught = none, none
        samples, labels = none, none
        if self.options.turned:
            turned = turn_each(batch.images)
            taught, _ = self.ask_teacher(turned)
        if self.options.negatives:
            labels = torch.randint(self.old, (replay.real,), generator=rng, device=self.device)
            noise = torch.randn(replay.real, self._means.shape[1], generator=rng, device=self.device)
            samples = self._means[labels] + torch.bmm(self._spread[labels], noise[:, :, None])[:, :, 0]
        return Recalled(
            replay.images, replay.labels, replay.taught_features, replay.taught_logits, replay.real,
            turned, taught, samples, labels,
        )  # fmt: skip

    def _beside_dreams(self, task: Task, resting: Sequence[nn.Module], weights: ClassWeights) -> Iterator[Phase]:
        phases = list(super()._beside_dreams(task, resting, weights))
        train, options = self.config.train, self.options
        size = self.classifier.backbone.feature_dim
        moves = dict(phases[0].moves)
        follower = None
        if options.following:
            follower = moves["follower"] = Follower(size).to(self.device)
        turns = None
        if options.turned:
            with seeding.initialising(self.config.seed, "rotations", task.index):
                turns = moves["turns"] = RotationHead(size, self.total - self.old).to(self.device)
        relations = moves["relations"]
        losses = functools.partial(self.representing, relations=relations, follower=follower, turns=turns)
        epochs = phases[0].epochs
        yield replace(
            phases[0],
            losses=losses,
            moves=moves,
            optimizer=self.optimizer(train.lr * options.later_lr, epochs),
        )
        yield from phases[1:]

    def representing(
        self, replay: Recalled, relations: Relations, follower: Follower | None, turns: RotationHead | None
    ) -> Mapping[str, Tensor]:
        assert self.weights is not None
        self.weights.meet(replay.labels)
        real, (learn, keep), options = replay.real, self.scales, self.options
        features = self.classifier.features(replay.images[:real])
        dreamed_features = self.classifier.features(replay.images[real:])
        dreamed = self.classifier.head(dreamed_features)
        logits = self.classifier.head(features)[:, : self.total]
        labels = replay.labels[:real]
        local = local_cross_entropy(logits, labels, self.old)
        kept = logit_distillation(dreamed[:, : self.old], replay.taught_logits[real:])
        found: dict[str, Tensor] = {
            "local_cross_entropy": options.cross_entropy * learn * local,
            "distillation": options.distillation * keep * kept,
            "relations": options.relations * keep * relations(features, replay.taught_features[:real]),
        }
        before, after = [replay.taught_features], [features, dreamed_features]
        if turns is not None:
            with statistics_at_rest(self.classifier):
                turned = self.classifier.features(replay.turned)
            found["turned"] = options.turned * learn * cross_entropy(
                turns(turned), turned_targets(labels, self.old)
            )  # fmt: skip
            before.append(replay.taught_turned)
            after.append(turned)
        if follower is not None:
            found["following"] = options.following * keep * unexplained(torch.cat(after), follower(torch.cat(before)))
        if options.real_distillation:
            kept = logit_distillation(logits[:, : self.old], replay.taught_logits[:real])
            found["real_distillation"] = options.real_distillation * keep * kept
        if options.soft:
            found["soft"] = options.soft * distillation(logits[:, : self.old], replay.taught_logits[:real])
        if options.negatives:
            moved = replay.samples
            if follower is not None:
                with torch.no_grad():
                    moved = follower(replay.samples)
            samples = self.classifier.head(moved)[:, : self.total]
            share = (self.total - self.old) / self.total
            found["negatives"] = (
                options.negatives
                * learn
                * (
                    share * cross_entropy(logits, labels)
                    + (1 - share) * cross_entropy(samples, replay.sample_labels)
                )
            )
        return found

    def _move(self, task: Task) -> Mapping[str, Any]:
        """As usual; beside it, new images that were drawn towards old classes."""
        from reverie.nets.transport import SeenByBoth

        self.drawn = None
        if self.options.drawn:
            images = self._drawn_images(task, self.options.drawn)
            assert self.teacher is not None
            before, after = [], []
            with torch.no_grad():
                for part in images.split(500):
                    before.append(self.teacher.eval().features(part).float().cpu())
                    after.append(self.classifier.eval().features(part).float().cpu())
            self.drawn = SeenByBoth(torch.cat(before), torch.cat(after))
        return super()._move(task)

    def _drawn_images(self, task: Task, each: int, steps: int = 9, stride: float = 0.8) -> Tensor:
        assert self.teacher is not None and self.statistics is not None
        features = self.features_of(task.images, self.teacher)
        rng = torch.Generator().manual_seed(seeding.derive(self.config.seed, "drawn", task.index))
        targets, _ = self.statistics.sample(each, rng)
        targets = targets.view(self.old, each, -1)
        found = []
        for label in range(self.old):
            distance = (features - self.statistics.means[label]).square().sum(dim=1)
            rows = distance.argsort()[:each]
            images = self.augment.normalise(task.images.read(rows).to(self.device))
            found.append(images)
        all_images, goal = torch.cat(found), targets.flatten(0, 1).to(self.device)
        self.teacher.eval()
        parts = []
        with torch.enable_grad():
            for images, wanted in zip(all_images.split(500), goal.split(500), strict=True):
                for _ in range(steps):
                    images = images.detach().requires_grad_(True)
                    loss = (self.teacher.features(images).float() - wanted).square().sum()
                    (gradient,) = torch.autograd.grad(loss, images)
                    norm = gradient.flatten(1).norm(dim=1).clamp_min(1e-12)[:, None, None, None]
                    images = images - stride * gradient / norm
                parts.append(images.detach())
        return torch.cat(parts)
