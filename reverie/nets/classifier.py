"""The classifier: a backbone, heads that grow by rows as classes arrive, and the class names in learned order."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reverie import seeding
from reverie.compile import compilable
from reverie.data.preprocessing import Preprocessing
from reverie.nets import make_backbone
from reverie.nets.backbone import Architecture, Backbone
from reverie.nets.heads import AnsweringHead, LinearHead, find_head, head_from_state
from reverie.nets.layers import widened
from reverie.nets.statistics import make_room


class Classifier(nn.Module):
    """`forward` gives a logit for each class seen so far. The head may have further rows (the released recipe).

    Logits may be corrected: multiplied by `factor` and moved by `shift`, class by class. Most classifiers have neither.

    `head` is the training head. Where a method has given it an answering head, too (`answer_by`), that one answers:
    `answer` is what predictions are made of, `forward` what is trained, distilled and dreamed from.
    """

    factor: Tensor | None
    shift: Tensor | None

    def __init__(
        self, backbone: Backbone, preprocessing: Preprocessing, seed: int = 0, rows_from_start: int = 0
    ) -> None:
        super().__init__()
        make_room(backbone)
        self.backbone = backbone
        self.head = LinearHead(backbone.feature_dim)
        self.preprocessing = preprocessing
        self.class_names: tuple[str, ...] = ()
        self.seed = seed
        self.register_buffer("factor", None)
        self.register_buffer("shift", None)
        self.answering = nn.ModuleDict()  # at most one head, under its name, by which a state says what it is of
        if rows_from_start:
            self.head.grow(rows_from_start, seeding.generator(seed, "head", 0))

    @property
    def seen(self) -> int:
        """The number of classes learned or being learned."""
        return len(self.class_names)

    def grow(self, names: Sequence[str]) -> None:
        """Make room for new classes."""
        twice = set(names) & set(self.class_names)
        if twice or len(set(names)) != len(names):
            raise ValueError(f"classes must be new and differ from each other: {sorted(twice) or list(names)}")
        missing = self.seen + len(names) - self.head.rows
        if missing > 0:
            self.head.grow(missing, seeding.generator(self.seed, "head", self.head.rows))
        self.class_names += tuple(names)
        if self.factor is not None and self.shift is not None:
            self.factor = F.pad(self.factor, (0, len(names)), value=1)
            self.shift = F.pad(self.shift, (0, len(names)))
        if self.answering_head is not None:
            self.answering_head.grow(len(names))

    def drop(self, names: Collection[str]) -> None:
        """Forget these classes: their rows of the head are gone, all other weights are what they were."""
        kept = [row for row, name in enumerate(self.class_names) if name not in names]
        unseen = range(self.seen, self.head.rows)  # of a head that had all rows from the start
        rows = torch.tensor([*kept, *unseen], device=self.head.weight.device)
        self.head.select(rows)
        if self.factor is not None and self.shift is not None:
            self.factor, self.shift = self.factor[rows[: len(kept)]], self.shift[rows[: len(kept)]]
        if self.answering_head is not None:
            self.answering_head.select(rows[: len(kept)])
        self.class_names = tuple(self.class_names[row] for row in kept)

    @property
    def answering_head(self) -> AnsweringHead | None:
        return next((head for head in self.answering.values() if isinstance(head, AnsweringHead)), None)

    def answer_by(self, head: AnsweringHead | None) -> None:
        """From now on, let this head answer; none: the training head."""
        self.answering.clear()
        if head is None:
            return
        if head.rows != self.seen:
            raise ValueError(f"the head {head.name!r} knows {head.rows} classes, the classifier {self.seen}")
        if type(head) is not find_head(head.name):  # by its name it is found again
            raise ValueError(f"{type(head).__name__} needs a `name` of its own: {head.name!r} is that of another head")
        head.check(self.backbone.feature_dim, self.preprocessing.channels)
        self.answering[head.name] = head.to(self.head.weight.device).requires_grad_(False)

    @torch.no_grad()
    def correct(self, first: int, factor: Tensor | float, shift: Tensor | float) -> None:
        """From now on, correct the logits of all classes from `first` on."""
        if self.factor is None or self.shift is None:
            self.factor, self.shift = self.head.bias.new_ones(self.seen), self.head.bias.new_zeros(self.seen)
        self.factor[first:] = factor
        self.shift[first:] = shift

    @torch.no_grad()
    def settle(self) -> None:
        """Work the corrections into the head: the same logits, and nothing left that a method could go past."""
        if self.factor is None or self.shift is None:
            return
        self.head.weight[: self.seen] *= self.factor[:, None]
        self.head.bias[: self.seen] = self.factor * self.head.bias[: self.seen] + self.shift
        self.factor = self.shift = None

    @compilable
    def features(self, images: Tensor) -> Tensor:
        """In single precision, whatever the backbone computes in."""
        return widened(self.backbone(images))

    def logits(self, features: Tensor) -> Tensor:
        """Of all classes seen, corrected; those of the head itself are not."""
        logits: Tensor = self.head(features)[:, : self.seen]
        if self.factor is None or self.shift is None:
            return logits
        return self.factor * logits + self.shift

    @property
    def corrected(self) -> bool:
        return self.factor is not None

    def before_correction(self, logits: Tensor) -> Tensor:
        """What the head itself had said, from corrected logits."""
        if self.factor is None or self.shift is None:
            return logits
        return (logits - self.shift.to(logits)) / self.factor.to(logits)

    def forward(self, images: Tensor) -> Tensor:
        return self.logits(self.features(images))

    def answer(self, images: Tensor) -> Tensor:
        """Logits of what predictions are made of: the answering head's, where there is one."""
        features, head = self.features(images), self.answering_head
        return self.logits(features) if head is None else head(head.inputs(features, images))

    def load_answer(self, state: Mapping[str, Any], prefix: str = "") -> None:
        """A state says whether there are corrections, and whether another head answers. Raises ValueError for none."""
        stored = [state.get(prefix + name) for name in ("factor", "shift")]
        if any(part is not None and not _fits(part, self.seen) for part in stored) or stored.count(None) == 1:
            raise ValueError(f"corrections of logits are a factor and a shift for each of the {self.seen} classes")
        self.factor, self.shift = (part if part is None else part.to(self.head.bias, copy=True) for part in stored)
        self.answering.clear()
        within = f"{prefix}answering."
        buffers = {key.removeprefix(within): value for key, value in state.items() if key.startswith(within)}
        names = {key.partition(".")[0] for key in buffers}
        if len(names) > 1:
            raise ValueError(f"more than one head would answer: {', '.join(sorted(names))}")
        for name in names:
            self.answer_by(head_from_state(name, {key.removeprefix(f"{name}."): buffers[key] for key in buffers}))

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        self.load_answer(state, prefix)
        super()._load_from_state_dict(state, prefix, *rest)

    def made_anew(self) -> Classifier:
        """A classifier of the same shape that has learned nothing: whatever else hangs on this one does not come along.

        Only its makers can build a network of one's own, so that one is copied.
        """
        if self.backbone.architecture.family == "own":
            backbone = copy.deepcopy(self.backbone)
        else:
            with seeding.initialising(self.seed, "backbone"):
                architecture = Architecture.from_dict(self.backbone.architecture.as_dict())
                backbone = make_backbone(architecture, self.preprocessing.channels)
        preprocessing = Preprocessing.from_dict(self.preprocessing.as_dict())
        made = Classifier(backbone, preprocessing, self.seed, self.head.rows)
        made.class_names = tuple(map(str, self.class_names))
        return made

    def frozen_copy(self) -> Classifier:
        """A teacher: the same function for good."""
        teacher = copy.deepcopy(self).eval()
        teacher.requires_grad_(False)
        return teacher


def _fits(correction: Tensor, classes: int) -> bool:
    return correction.is_floating_point() and correction.shape == (classes,) and bool(correction.isfinite().all())
