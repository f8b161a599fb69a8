"""What a backbone is, and how its architecture is named so that it can be built again."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from torch import Tensor, nn

from reverie.config.choices import Library
from reverie.errors import UserError
from reverie.text import first_line

LIBRARIES: tuple[Library, ...] = get_args(Library)
FAMILIES = ("reverie", *LIBRARIES, "own")
OPTIONS = {"head": str, "size": int}


@dataclass(frozen=True)
class Architecture:
    """Who can build a network: reverie, a library, or the person's own code; under which name, and with what options.

    `head` is the path of the layer that made the logits before it was taken off. `size` is the side of the images, in
    pixels, of a network that is built for one size alone. There are no other options, since they come from a file.
    """

    family: str
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise UserError(f"Networks come from {', '.join(FAMILIES)}, not from {self.family!r}.")
        for key, value in self.options.items():
            if not isinstance(value, OPTIONS.get(key, ())):
                raise UserError(f"The network {self} cannot have the option {key}={value!r}.")

    def __str__(self) -> str:
        return self.name if self.family == "reverie" else f"{self.family}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> Architecture:
        """`resnet32` is reverie's own, `torchvision/resnet18` and `timm/resnet10t` are the libraries'."""
        family, slash, name = text.partition("/")
        return cls(family, name) if slash else cls("reverie", text)

    def as_dict(self) -> dict[str, Any]:
        return {"family": self.family, "name": self.name, "options": dict(self.options)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Architecture:
        return cls(values["family"], values["name"], dict(values["options"]))


class Backbone(nn.Module):
    """Images in, `feature_dim` numbers an image out."""

    feature_dim: int
    architecture = Architecture("own", "a network of one's own")


class Headless(Backbone):
    """Somebody else's network without the linear layer at `head`, which made the logits. A dropout before it stays."""

    def __init__(self, module: nn.Module, head: str) -> None:
        super().__init__()
        self.feature_dim = linear_layer(module, head).in_features
        self.head = head
        module.set_submodule(head, nn.Identity())
        self.body = module

    def forward(self, images: Any) -> Any:
        return self.body(images)


def own_copy(module: nn.Module) -> nn.Module:
    """A copy to be changed and trained, whatever state the module is in: on another device, halved, frozen."""
    try:
        copied = copy.deepcopy(module).cpu().float().eval().requires_grad_(True)
    except Exception as error:  # a script, weights behind hooks, layers without a shape yet
        raise UserError(
            f"{type(module).__name__} cannot be copied: {first_line(error)} Give a plain module, run once, and "
            "without what was put around its weights (pruning, weight_norm, torch.jit.script)."
        ) from None
    return _unsynchronised(copied)


def _unsynchronised(module: nn.Module) -> nn.Module:
    """With plain BatchNorm layers for those that need several GPUs to train."""
    if isinstance(module, nn.SyncBatchNorm):
        plain = nn.BatchNorm2d(
            module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats
        )
        plain.load_state_dict(module.state_dict())
        return plain.train(module.training)
    for name, child in module.named_children():
        if (plain_child := _unsynchronised(child)) is not child:
            setattr(module, name, plain_child)
    return module


def linear_layer(module: nn.Module, path: str) -> nn.Linear:
    try:
        layer = module.get_submodule(path)
    except AttributeError:
        layer = None
    if not isinstance(layer, nn.Linear):
        raise UserError(f"{type(module).__name__} has no linear layer {path!r}, which the saved model had.")
    return layer


def run_network(module: nn.Module, images: Tensor) -> Any:
    """What somebody else's network gives for images, or an error that says that it does not take them."""
    try:
        return module(images)
    except Exception as error:  # whatever somebody else's code may raise
        when = " in training" if module.training else ""
        shape = f"{images.shape[1]} channels and {images.shape[2]} pixels{when}"
        raise UserError(f"{type(module).__name__} does not take images of {shape}: {first_line(error)}") from None
