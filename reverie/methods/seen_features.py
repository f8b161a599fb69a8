"""What class statistics are measured, moved and answered by: features of new images and of dreams, and fixed ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from reverie.data.images import Images, images_at_once
from reverie.methods.base import Method
from reverie.methods.dreamer import DreamMaker
from reverie.nets.classifier import Classifier
from reverie.nets.fixed_evidence import FixedView
from reverie.nets.fixed_features import COUNT, fixed_features, make_filters
from reverie.nets.transport import SeenByBoth

MOST = 10_000  # new images, and dreams, that maps are fitted on: more would add next to nothing, and fill the memory


@dataclass(frozen=True)
class SeenImages:
    """New images as the network sees them, in one or more views: all of them as they are, then all mirrored.

    `features` and `labels` are of all; `some` of as many as maps are fitted on; `fixed_means` has a row for each class
    whose label is `first` or more.
    """

    features: Tensor
    labels: Tensor
    some: SeenByBoth
    views: int
    fixed_means: Tensor | None = None

    @property
    def view(self) -> FixedView | None:
        if self.some.fixed is None or self.some.labels is None:
            return None
        return FixedView(self.some.after, self.some.fixed, self.some.labels, self.views)


def see_images(method: Method, images: Images, teacher: Classifier | None, first: int, fixed: bool) -> SeenImages:
    """By the method's classifier and, where there is one, its teacher; `fixed`: and their fixed features.

    Mirror images count where training mirrors.
    """
    mirrored = method.config.augment.flip
    views, count = 1 + mirrored, len(images)
    chosen = torch.linspace(0, count - 1, min(count, MOST)).long()
    rows = torch.cat([chosen + view * count for view in range(views)])
    after, labels = method.features_of(images, mirrored=mirrored), images.labels.cpu().repeat(views)
    before = after[rows]
    if teacher is not None:
        before = method.features_of(images.select(chosen), teacher, mirrored)
    means, those = _fixed_of(method, images, chosen, first) if fixed else (None, None)
    return SeenImages(
        after, labels, SeenByBoth(before, after[rows], labels=labels[rows], fixed=those, views=views), views, means
    )


@torch.no_grad()
def see_dreams(method: Method, dreamer: DreamMaker, count: int, teacher: Classifier, fixed: bool) -> SeenByBoth:
    """The same of dreams, which are always the same ones. Their labels are what the teacher sees in them."""
    asked: list[Callable[[Tensor], Tensor]] = [teacher.eval().features, method.classifier.eval().features]
    if fixed:
        asked.append(_fixed_look(method))
    found: list[list[Tensor]] = []
    for dreams, labels, *_ in dreamer.gallery(count):
        found.append([labels.cpu(), *(ask(dreams).float().cpu() for ask in asked)])
    labels, before, after, *beside = (torch.cat(parts) for parts in zip(*found, strict=True))
    return SeenByBoth(before, after, labels=labels, fixed=beside[0] if beside else None)


def fixed_features_of(method: Method, images: Images) -> Tensor:
    """[images, fixed features], in their order."""
    return torch.cat([views[0] for _, views in _fixed_views(method, images, mirrored=False)])


def _fixed_of(method: Method, images: Images, chosen: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """Means of the classes from `first` on, over all images and views; and those of the chosen images."""
    labels = images.labels.cpu() - first
    classes = max(0, int(labels.max()) + 1) if len(labels) else 0
    sums, counts = torch.zeros(classes, COUNT, dtype=torch.double), torch.zeros(classes, dtype=torch.double)
    kept: list[list[Tensor]] = []
    wanted = torch.zeros(len(images), dtype=torch.bool)
    wanted[chosen] = True
    for rows, views in _fixed_views(method, images, method.config.augment.flip):
        new = labels[rows] >= 0
        for view in views:
            sums.index_add_(0, labels[rows][new], view[new].double())
            counts += torch.bincount(labels[rows][new], minlength=classes)
        kept.append([view[wanted[rows]] for view in views])
    return sums / counts[:, None], torch.cat([view for turn in zip(*kept, strict=True) for view in turn])


def _fixed_views(method: Method, images: Images, mirrored: bool) -> Iterator[tuple[Tensor, list[Tensor]]]:
    """Part by part: rows, and the fixed features of these images, then of their mirror images."""
    look = _fixed_look(method)
    for rows in torch.arange(len(images)).split(images_at_once(images.shape[1])):
        shown = method.augment.normalise(images.read(rows).to(method.device))
        yield rows, [look(view).cpu() for view in ([shown, shown.flip(3)] if mirrored else [shown])]


def _fixed_look(method: Method) -> Callable[[Tensor], Tensor]:
    filters = make_filters(method.classifier.preprocessing.channels).to(method.device)
    return lambda images: fixed_features(images, filters)
