"""Networks by name. A backbone maps images to features and says how many (`feature_dim`)."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from reverie.errors import UserError, did_you_mean
from reverie.nets.resnet import Backbone, cifar_resnet, imagenet_resnet18

BACKBONES: dict[str, Callable[[int], Backbone]] = {
    "resnet32": lambda channels: cifar_resnet(blocks=5, channels=channels),
    "resnet32-signed": lambda channels: cifar_resnet(blocks=5, channels=channels, signed=True),
    "resnet20": lambda channels: cifar_resnet(blocks=3, channels=channels),
    "resnet14": lambda channels: cifar_resnet(blocks=2, channels=channels),
    "resnet8": lambda channels: cifar_resnet(blocks=1, channels=channels),
    "resnet18": imagenet_resnet18,
}


def make_backbone(name: str, channels: int) -> Backbone:
    """A freshly initialised backbone for images of `channels` channels."""
    if name not in BACKBONES:
        raise UserError(
            f"net.name {name!r} is unknown; there are {', '.join(BACKBONES)}.{did_you_mean(name, BACKBONES)}"
        )
    return BACKBONES[name](channels)


def count_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
