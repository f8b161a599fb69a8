"""Taking in a network that somebody else trained: find its head, take it off, make sure that nothing has changed."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reverie.data.class_names import checked_names
from reverie.data.preprocessing import ImageStatistics, Preprocessing
from reverie.errors import UserError
from reverie.nets.backbone import Architecture, Headless, linear_layer, own_copy, run_network
from reverie.nets.classifier import Classifier
from reverie.nets.statistics import batchnorm_layers

WIDEST = 0.5  # deviation that pixels between 0 and 1 can have, if half of them are black and the others white


def adopt_module(
    module: nn.Module,
    classes: Sequence[str],
    mean: Sequence[float],
    std: Sequence[float],
    size: int,
    images: tuple[Sequence[float], Sequence[float]] | None = None,
    architecture: Architecture | None = None,
) -> Classifier:
    """A classifier that does what `module` does, and can grow. The module itself is left as it is.

    `mean` and `std` are what pixels between 0 and 1 are normalised by, `size` is the side of the images in pixels.
    `images` are mean and deviation of the training images themselves, where they are known and others than those.
    """
    if not isinstance(module, nn.Module):
        raise UserError(f"A network to adopt is a torch.nn.Module, not {type(module).__name__}.")
    classes, preprocessing = checked_names(classes), _preprocessing(mean, std, size, images)
    body = own_copy(module)
    shown = torch.randn(2, preprocessing.channels, size, size, generator=torch.Generator().manual_seed(0))
    head, logits = find_head(body, shown)
    if not batchnorm_layers(body):
        raise UserError(
            f"{type(module).__name__} has no BatchNorm layers, whose statistics dreams of its classes would be made "
            "from, so it cannot be adopted. Train such a network with reverie, which notes what it will need."
        )
    layer = linear_layer(body, head)
    _check_names(classes, layer.out_features)
    known = architecture or Architecture("own", type(module).__name__)
    backbone = Headless(body, head)
    backbone.architecture = Architecture(known.family, known.name, {**known.options, "head": head})
    _check_features(backbone, layer, shown, logits)
    classifier = Classifier(backbone, preprocessing)
    classifier.grow(classes)
    with torch.no_grad():
        classifier.head.weight.copy_(layer.weight)
        if layer.bias is None:
            classifier.head.bias.zero_()
        else:
            classifier.head.bias.copy_(layer.bias)
    return classifier.eval()


@torch.no_grad()
def find_head(module: nn.Module, images: Tensor) -> tuple[str, Tensor]:
    """The path of the linear layer whose output is the module's own, found by running it; and that output."""
    linear = {path: layer for path, layer in module.named_modules() if path and isinstance(layer, nn.Linear)}
    made: dict[nn.Module, Tensor] = {}
    handles = [
        layer.register_forward_hook(lambda layer, _, out: made.update({layer: out})) for layer in linear.values()
    ]
    try:
        logits = run_network(module, images)
    finally:
        for handle in handles:
            handle.remove()
    if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != len(images):
        raise UserError(f"{type(module).__name__} must give one row of logits for each image, and nothing else.")
    if not logits.isfinite().all():
        raise UserError(f"{type(module).__name__} answers with what are no numbers. Are its weights damaged?")
    for path, layer in linear.items():
        if layer in made and made[layer].shape == logits.shape and torch.equal(made[layer], logits):
            return path, logits
    raise UserError(
        f"{type(module).__name__} does not end in a linear layer (torch.nn.Linear) that makes the logits. "
        "If a softmax or the like comes behind it, take that away first."
    )


@torch.no_grad()
def _check_features(backbone: Headless, head: nn.Linear, images: Tensor, logits: Tensor) -> None:
    """The head on the backbone's features must do what the module does, and training must not add outputs."""
    name, features = backbone.architecture.name, run_network(backbone.body, images)
    same = features.shape == (len(images), head.in_features)
    if not same or not torch.allclose(F.linear(features, head.weight, head.bias), logits, rtol=1e-4, atol=1e-5):
        raise UserError(f"{name} does more than multiply features by its last linear layer, so it cannot be adopted.")
    with torch.random.fork_rng(devices=[]):
        if not isinstance(run_network(copy.deepcopy(backbone.body).train(), images), Tensor):
            raise UserError(f"{name} has further outputs in training. Switch them off before it is adopted.")


def _preprocessing(
    mean: Sequence[float], std: Sequence[float], size: int, images: tuple[Sequence[float], Sequence[float]] | None
) -> Preprocessing:
    """Pixels cannot deviate by more than `WIDEST`: what divides by so much is not the deviation of the images."""
    mean, std = _numbers(mean), _numbers(std)
    if not mean or len(mean) != len(std) or min(std) <= 0:
        raise UserError("Mean and std must have a number for each channel, and no std may be 0 or less.")
    if len(mean) not in (1, 3):
        raise UserError(f"Images have one channel or three, not {len(mean)}.")
    if not isinstance(size, int) or size < 1:
        raise UserError(f"The size of the images is a number of pixels, not {size!r}.")
    if max(mean) > 1:
        raise UserError("Mean and std are those of pixels between 0 and 1. Divide by 255 what is meant for 0 to 255.")
    known = ImageStatistics(_numbers(images[0]), _numbers(images[1])) if images else None
    if known is None and max(std) >= WIDEST:
        known = ImageStatistics.natural(len(mean))
    if known is not None and (len(known.mean), len(known.deviation)) != (len(mean), len(mean)):
        raise UserError(f"The statistics of the images must have a number for each of the {len(mean)} channels.")
    return Preprocessing(size, mean, std, known)


def _numbers(values: Sequence[float]) -> tuple[float, ...]:
    """From a list, an array or a tensor."""
    try:
        numbers = tuple(float(value) for value in values)
    except (TypeError, ValueError):
        numbers = (math.nan,)
    if not all(map(math.isfinite, numbers)):
        raise UserError(f"A number for each channel is wanted, such as (0.5, 0.5, 0.5), not {values!r}.")
    return numbers


def _check_names(classes: Sequence[str], outputs: int) -> None:
    if len(classes) != outputs:
        raise UserError(f"The network has {outputs} outputs, but there are {len(classes)} class names.")
