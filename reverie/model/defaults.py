"""The few rules by which `learn` chooses what nobody has said. docs/practice.md states them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from reverie.config.layers import compose, settings_by_section
from reverie.config.schema import AugmentConfig, Config, TrainConfig
from reverie.errors import UserError
from reverie.methods import find_method

PRESET = "learn"  # the name of a configuration that these rules made
SIZES = (8, 16, 32, 64)  # pixels a side
LARGE_SIZES = (*SIZES, 128, 224)  # for networks that were made for large images
SMALL = 16  # pixels a side; up to here a smaller network, a smaller dreamer and fewer steps will do
SLOWLY = 0.2  # times the usual learning rate, for one new class alone
MILESTONES = (0.6, 0.85)  # shares of the epochs after which the learning rate falls to a tenth
UNITS = {"s": 1, "min": 60, "h": 3600}


def choose_size(shorter_side: int, net: str | None) -> int:
    """The largest usual size that does not enlarge the usual image."""
    sizes = SIZES if net is None or (net.startswith("resnet") and net != "resnet18") else LARGE_SIZES
    return max((size for size in sizes if size <= shorter_side), default=SIZES[0])


def choose_size_for_weights(shorter_side: int, usual: int) -> int:
    """The size that the weights were learned with, unless the usual image has less than half of it."""
    return usual if 2 * shorter_side >= usual else choose_size(shorter_side, "a library's")


def may_be_photographs(size: int, channels: int) -> bool:
    """In colour, and as large as the package's own networks take them."""
    return size >= SIZES[-1] and channels == 3


def choose_net(size: int) -> str:
    if size <= SMALL:
        return "resnet8"
    return "resnet32" if size <= SIZES[-1] else "resnet18"


def choose_augmentation(size: int, colourful: bool) -> AugmentConfig:
    """Mirroring does not harm photographs. Of grey images, letters and digits may be among them."""
    if size > 64:
        return AugmentConfig(flip=colourful, brightness=0.25, contrast=0.8, resized_crop=True)
    return AugmentConfig(crop=size // 8, flip=colourful, brightness=0.25, contrast=0.8)


def choose(
    size: int,
    images: int,
    *,
    method: str,
    seed: int,
    settings: Sequence[str],
    augment: AugmentConfig,
    net: str | None = None,
    alone: bool = False,
) -> Config:
    """The configuration of a step that learns from `images` images, settings on top.

    `alone`: one new class beside old ones. It has no other to be told from, so ABD learns it among all classes; and
    slowly, since every image pulls the same way.
    """
    net = net or choose_net(size)
    small, batch_size = size <= SMALL, 32 if images < 4000 else 128
    steps, fewest, most = (1500, 20, 100) if small else (8000, 50, 200)  # of training, about; and the bounds in epochs
    epochs = min(max(round(steps / max(1, images // batch_size)), fewest), most)
    rules: dict[str, Any] = {
        "data": {"source": "folder", "size": size},
        "net": {"name": net},
        "augment": vars(augment),
        "train": {
            "epochs": epochs,
            "lr": 0.01 if "/" in net else 0.1,
            "batch_size": batch_size,
            "even": True,
        },
        "dream": {"steps": 1000, "width": 64, "noise": 100} if small else {"steps": 5000},
    }
    if alone and method == "abd":
        rules["method"] = {"cross_entropy": "standard"}
    if alone:
        rules["train"]["lr"] *= SLOWLY
    layers = [("the rules of learn", rules)]
    chosen = compose(PRESET, layers, method, find_method, seed, settings=settings)
    if "milestones" in settings_by_section(settings).get("train", {}):
        return chosen
    return replace(chosen, train=with_epochs(chosen.train, chosen.train.epochs))


def with_epochs(train: TrainConfig, epochs: int) -> TrainConfig:
    """With milestones in proportion."""
    milestones = (round(share * epochs) for share in MILESTONES)
    return replace(train, epochs=epochs, milestones=tuple(milestones))


def scaled(config: Config, factor: float) -> Config:
    """A longer or shorter schedule, of dreaming and of learning."""
    epochs, steps = max(2, int(factor * config.train.epochs)), max(50, int(factor * config.dream.steps))
    return replace(config, train=with_epochs(config.train, epochs), dream=replace(config.dream, steps=steps))


def parse_duration(text: str | float) -> float:
    """`90s`, `10min` or `1h`, or seconds as a number; in seconds."""
    if isinstance(text, int | float) and not isinstance(text, bool) and 0 < text < 10**9:
        return float(text)
    match = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*(s|min|h)\s*", str(text))
    if not match or not float(match[1]):
        raise UserError(f"`budget` is a time such as 90s, 10min or 1h, not {text!r}.")
    return float(match[1]) * UNITS[match[2]]
