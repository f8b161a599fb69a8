"""Networks by name. A backbone maps images to features and says how many (`feature_dim`)."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from torch import nn

from reverie.errors import UserError
from reverie.nets.backbone import LIBRARIES, Architecture, Backbone, Headless, own_copy
from reverie.nets.external import (
    check_network_name,
    external_backbone,
    has_imagenet_stem,
    resnet18_for_small_images,
)
from reverie.nets.resnet import CifarResNet
from reverie.system.plugins import BACKBONES, load_plugin, plugin_names
from reverie.text import did_you_mean, first_line

log = logging.getLogger("reverie")
SMALL = 32  # pixels a side, up to which ImageNet's stem is worth a warning
OWN_BACKBONES: dict[str, Callable[[int], Backbone]] = {
    "resnet32": lambda channels: CifarResNet(blocks=5, channels=channels),
    "resnet32-signed": lambda channels: CifarResNet(blocks=5, channels=channels, signed=True),
    "resnet20": lambda channels: CifarResNet(blocks=3, channels=channels),
    "resnet14": lambda channels: CifarResNet(blocks=2, channels=channels),
    "resnet8": lambda channels: CifarResNet(blocks=1, channels=channels),
    "resnet18-cifar": resnet18_for_small_images,
    "resnet18": lambda channels: external_backbone(Architecture("torchvision", "resnet18"), channels),
}


def make_backbone(
    what: str | Architecture,
    channels: int,
    size: int | None = None,
    build: Callable[[], nn.Module] | None = None,
) -> Backbone:
    """A freshly initialised backbone for images of `channels` channels, and `size` pixels where that matters.

    `build` makes the whole module, head included, of a network of one's own.
    """
    wanted = Architecture.parse(what) if isinstance(what, str) else what
    check_network(wanted)
    if wanted.family == "own":
        return _own_backbone(wanted, build)
    if wanted.family in LIBRARIES:
        backbone: Backbone = external_backbone(wanted, channels, size)
    else:
        backbone = _builder(wanted.name)(channels)
        backbone.architecture = wanted
    if size is not None and size <= SMALL and has_imagenet_stem(backbone):
        warn_of_stem(str(wanted), size)
    return backbone


@functools.cache  # said once, however many networks a run makes
def warn_of_stem(network: str, size: int) -> None:
    log.warning(
        "%s begins with ImageNet's stem, which leaves a sixteenth of the %d x %d pixels; net.name=resnet18-cifar keeps "
        "them all.",
        network,
        size,
        size,
    )


def _builder(name: str) -> Callable[[int], Backbone]:
    """Ours, or that of another package, by entry point `reverie.backbones`: channels in, a `Backbone` out."""
    if name in OWN_BACKBONES:
        return OWN_BACKBONES[name]
    build: Callable[[int], Any] = load_plugin(BACKBONES, name, _check_builder)

    def checked(channels: int) -> Backbone:
        made = build(channels)
        if not isinstance(made, Backbone) or not isinstance(getattr(made, "feature_dim", None), int):
            raise UserError(
                f"The backbone {name!r} gave {type(made).__name__}, no reverie.Backbone with a feature_dim."
            )
        return made

    return checked


def _check_builder(build: object) -> None:
    if not callable(build):
        raise TypeError(f"{build!r} cannot be called with a number of channels")


def check_network(what: str | Architecture) -> None:
    """Whether there is a network of that name; nothing is built."""
    wanted = Architecture.parse(what) if isinstance(what, str) else what
    known = [*OWN_BACKBONES, *plugin_names(BACKBONES)]
    if wanted.family in LIBRARIES:
        check_network_name(wanted)
    elif wanted.family != "own" and wanted.name not in known:
        there = [f"{family}/{wanted.name}" for family in LIBRARIES if _has(family, wanted.name)]
        hint = f" Did you mean {there[0]!r}?" if there else did_you_mean(wanted.name, known)
        listed = f"{', '.join(known)}, torchvision/NAME and timm/NAME"
        raise UserError(f"net.name {wanted.name!r} is unknown; there are {listed}.{hint}")


def _has(family: str, name: str) -> bool:
    try:
        check_network_name(Architecture(family, name))
    except UserError:  # it has not, or it is not installed
        return False
    return True


def _own_backbone(wanted: Architecture, build: Callable[[], nn.Module] | None) -> Backbone:
    if build is None:
        raise UserError(
            f"This model is a network of your own ({wanted.name}), and loading runs no code. "
            "Load it in Python, with a function that builds it: reverie.load(folder, build=function)."
        )
    try:
        module = build()
    except Exception as error:  # whatever somebody else's code may raise
        raise UserError(f"The function that builds {wanted.name} failed: {first_line(error)}") from error
    if not isinstance(module, nn.Module):
        raise UserError(f"The function that builds {wanted.name} gave {type(module).__name__}, no torch.nn.Module.")
    backbone = Headless(own_copy(module), wanted.options.get("head", ""))
    backbone.architecture = wanted
    return backbone


def count_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
