"""What layers remember of the training images: mean and variance by channel, and nothing else.

BatchNorm layers do so of their own accord. A network without any (ViT, ConvNeXt) gets the same for its LayerNorm and
GroupNorm layers: after a task, the statistics of what comes into them are noted as buffers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

Normalising = (nn.LayerNorm, nn.GroupNorm)


def batchnorm_layers(module: nn.Module) -> list[nn.Module]:
    """The layers whose running statistics remember what the training images were like."""
    layers = [layer for layer in module.modules() if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d)]
    return [layer for layer in layers if layer.running_mean is not None]


def set_batchnorm_momentum(module: nn.Module, momentum: float) -> None:
    for layer in batchnorm_layers(module):
        assert isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d)
        layer.momentum = momentum


@contextmanager
def statistics_at_rest(module: nn.Module) -> Iterator[None]:
    """Inside, running statistics stay what they are, though layers normalise by those of the batch."""
    layers = [layer for layer in batchnorm_layers(module) if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d)]
    momenta = [layer.momentum for layer in layers]
    set_batchnorm_momentum(module, 0.0)
    try:
        yield
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum


def make_room(module: nn.Module) -> None:
    """Buffers for the statistics of a network without BatchNorm. Others are left alone."""
    if batchnorm_layers(module):
        return
    for layer in module.modules():
        if isinstance(layer, Normalising):
            channels = layer.num_channels if isinstance(layer, nn.GroupNorm) else layer.normalized_shape[-1]
            layer.register_buffer("noted_mean", torch.zeros(channels))
            layer.register_buffer("noted_variance", torch.ones(channels))
            layer.register_buffer("noted", torch.zeros((), dtype=torch.long))  # places in all images: pixels or tokens


def noting_layers(module: nn.Module) -> list[nn.Module]:
    """Layers with room for statistics: those of a network without BatchNorm."""
    return [layer for layer in module.modules() if isinstance(layer, Normalising) and hasattr(layer, "noted")]


def can_remember(module: nn.Module) -> bool:
    """Whether dreams of what it learns can be made."""
    return bool(batchnorm_layers(module) or noting_layers(module))


def remembering_layers(module: nn.Module) -> list[nn.Module]:
    """The layers that remember something, by which dreams are judged. Looks at values, so not inside a step."""
    return batchnorm_layers(module) or [layer for layer in noting_layers(module) if layer.noted]


def remembered(layer: nn.Module) -> tuple[Tensor, Tensor]:
    """Mean and variance by channel over the training images."""
    if isinstance(layer, Normalising):
        return layer.noted_mean, layer.noted_variance  # type: ignore[return-value]
    return layer.running_mean, layer.running_var  # type: ignore[return-value]


def channels_second(layer: nn.Module, activations: Tensor) -> Tensor:
    """Channels come last in tokens; a LayerNorm that takes maps with channels first is called ...2d by its library."""
    last = isinstance(layer, nn.LayerNorm) and "2d" not in type(layer).__name__
    return activations.movedim(-1, 1) if last and activations.ndim > 2 else activations


@contextmanager
def noting(module: nn.Module) -> Iterator[None]:
    """Inside, what comes into the layers is added up; at the end it is mixed with what they have noted before.

    Every image has the same number of places, so old and new weigh as much as they have images.
    """
    sums: dict[nn.Module, Tensor] = {}  # by layer and channel: places, sum, sum of squares

    def add(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        rows = channels_second(layer, inputs[0]).double().transpose(0, 1).flatten(1)
        added = torch.stack([torch.full_like(rows[:, 0], rows.shape[1]), rows.sum(1), rows.square().sum(1)])
        sums[layer] = sums[layer] + added if layer in sums else added

    handles = [layer.register_forward_pre_hook(add) for layer in noting_layers(module)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    for layer, (places, total, squares) in sums.items():
        _mix(layer, places[0], total / places, squares / places)


@torch.no_grad()
def _mix(layer: nn.Module, places: Tensor, mean: Tensor, square: Tensor) -> None:
    """`square` is the mean of squares. Means of both are what can be mixed; variances are not."""
    noted: Tensor = layer.noted  # type: ignore[assignment]
    (old_mean, old_variance), share = remembered(layer), places / (places + noted)
    old_mean, old_variance = old_mean.double(), old_variance.double()
    mixed = old_mean.lerp(mean, share)
    variance = (old_variance + old_mean.square()).lerp(square, share) - mixed.square()
    layer.noted_mean.copy_(mixed)  # type: ignore[operator]
    layer.noted_variance.copy_(variance.clamp_min(0))  # type: ignore[operator]
    noted += places.long()
