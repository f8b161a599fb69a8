"""Networks of torchvision and timm, by name and without weights."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

import torch
from torch import nn

from reverie.errors import UserError
from reverie.nets.backbone import Architecture, Headless, run_network
from reverie.nets.weights import FURTHER_HEADS
from reverie.text import did_you_mean, first_line

PRETRAINED_CLASSES = 1000  # what both libraries build, if they are not told otherwise
RESCALING = ("googlenet", "inception_v3")  # torchvision's: with its own weights they undo ImageNet's normalisation


def external_backbone(wanted: Architecture, channels: int, size: int | None = None) -> Headless:
    """A freshly initialised backbone for images of `channels` channels, and of `size` pixels where that is known."""
    wanted = for_size(wanted, size)
    module = build_network(wanted, channels)
    head = wanted.options.get("head") or head_path(module, wanted)
    backbone = Headless(module, head)
    backbone.architecture = replace(wanted, options={**wanted.options, "head": head})
    if size is not None:
        with torch.no_grad():
            run_network(backbone.body.eval(), torch.zeros(1, channels, size, size))
    return backbone.train()


def resnet18_for_small_images(channels: int) -> Headless:
    """torchvision's ResNet-18 with CIFAR's stem: a 3 x 3 convolution that keeps every pixel, and no max pooling."""
    module = build_network(Architecture("torchvision", "resnet18"), 3)
    stem = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
    module.set_submodule("conv1", stem)
    module.set_submodule("maxpool", nn.Identity())
    return Headless(module, "fc")


def has_imagenet_stem(module: nn.Module) -> bool:
    """Does it begin by leaving three of four pixels out, and by pooling the rest?"""
    first = next((layer for layer in module.modules() if isinstance(layer, nn.Conv2d)), None)
    pools = any(isinstance(layer, nn.MaxPool2d) for layer in module.modules())
    return first is not None and first.stride[0] > 1 and pools


def build_network(wanted: Architecture, channels: int, classes: int = PRETRAINED_CLASSES) -> nn.Module:
    """The whole network, with its head."""
    check_network_name(wanted)
    size = wanted.options.get("size")
    try:
        if wanted.family == "timm":
            sized = {"img_size": size} if size else {}
            made = _timm().create_model(wanted.name, num_classes=classes, in_chans=channels, **sized)
        else:
            sized = {"image_size": size} if size else {}
            if wanted.name in RESCALING:
                sized["init_weights"] = True  # as is usual; left open, they warn that it will change
            made = _torchvision().get_model(wanted.name, weights=None, num_classes=classes, **sized)
            if hasattr(made, "aux_logits"):
                made.aux_logits = False
                for head in FURTHER_HEADS:
                    setattr(made, head, None)
            if channels != 3:
                _change_channels(made, channels, wanted)
    except (TypeError, ValueError, RuntimeError, AssertionError, ZeroDivisionError) as error:
        images = f"{channels} channels" + (f" and {size} pixels" if size else "")
        reason = first_line(error)
        raise UserError(f"{wanted} cannot be built for images of {images}: {reason}.") from None
    module: nn.Module = made
    return module


def for_size(wanted: Architecture, size: int | None) -> Architecture:
    """Networks with learned positions are built for one size of image, and remember it."""
    if size is None or "size" in wanted.options:
        return wanted
    check_network_name(wanted)
    if wanted.family == "timm":
        fixed = getattr(_timm().get_pretrained_cfg(wanted.name), "fixed_input_size", False)
    else:
        fixed = wanted.name.startswith("vit_")
    return replace(wanted, options={**wanted.options, "size": size}) if fixed else wanted


def head_path(module: nn.Module, wanted: Architecture) -> str:
    """The path of the linear layer that makes the logits: timm tells, and in torchvision it is the last one."""
    if wanted.family == "timm":
        layers: Any = [module.get_classifier()]  # type: ignore[operator]
    else:
        layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear)][-1:]
    if not layers or not isinstance(layers[0], nn.Linear):
        raise UserError(f"{wanted} does not end in one linear layer, so no classes can be added to it.")
    return next(path for path, layer in module.named_modules() if layer is layers[0])


def usual_preprocessing(wanted: Architecture) -> tuple[int, tuple[float, ...], tuple[float, ...]]:
    """Size, mean and deviation that the library's own weights for this network were trained with."""
    check_network_name(wanted)
    if wanted.family == "timm":
        settings = _timm().get_pretrained_cfg(wanted.name)
        return settings.input_size[-1], tuple(settings.mean), tuple(settings.std)
    transforms = torchvision_weights(wanted).transforms()
    if wanted.name in RESCALING:
        return transforms.crop_size[0], (0.5,) * 3, (0.5,) * 3
    return transforms.crop_size[0], tuple(transforms.mean), tuple(transforms.std)


def torchvision_weights(wanted: Architecture) -> Any:
    """What torchvision publishes for this network: an address, and how images are prepared."""
    return _torchvision().get_model_weights(wanted.name).DEFAULT


def find_network(name: str) -> Architecture:
    """`torchvision/NAME` or `timm/NAME`; a bare name is torchvision's, where it has one, else timm's."""
    if "/" in name:
        return Architecture.parse(name)
    if name in _torchvision_names():
        return Architecture("torchvision", name)
    wanted = Architecture("timm", name)
    check_network_name(wanted)
    return wanted


def check_network_name(wanted: Architecture) -> None:
    if wanted.family == "timm":
        if not _timm().is_model(wanted.name):
            hint = did_you_mean(wanted.name, [*_torchvision_names(), *_timm().list_models()])
            raise UserError(f"timm has no network {wanted.name!r}, nor has torchvision.{hint}")
    elif wanted.name not in _torchvision_names():
        raise UserError(
            f"torchvision has no network {wanted.name!r} that classifies images."
            f"{did_you_mean(wanted.name, _torchvision_names())}"
        )


def _change_channels(module: nn.Module, channels: int, wanted: Architecture) -> None:
    """A first convolution for images that are not in colour, with fresh weights."""
    path, first = next((path, layer) for path, layer in module.named_modules() if isinstance(layer, nn.Conv2d))
    if first.in_channels != 3 or first.groups != 1:
        raise UserError(f"The first convolution of {wanted} cannot take {channels} channels.")
    own = nn.Conv2d(
        channels,
        first.out_channels,
        first.kernel_size,  # type: ignore[arg-type]
        first.stride,  # type: ignore[arg-type]
        first.padding,  # type: ignore[arg-type]
        first.dilation,  # type: ignore[arg-type]
        bias=first.bias is not None,
    )
    module.set_submodule(path, own)


def _torchvision() -> Any:
    return import_module("torchvision.models")


def _torchvision_names() -> list[str]:
    names: list[str] = _torchvision().list_models(module=_torchvision())
    return names


def _timm() -> Any:
    try:
        return import_module("timm")
    except ImportError:
        raise UserError("This network needs the package timm: pip install 'reverie[timm]'.") from None
