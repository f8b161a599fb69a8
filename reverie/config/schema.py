"""The typed configuration of a run; `layering.py` makes one out of presets and settings. Loads no torch."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from reverie.config.typed import as_plain, build
from reverie.errors import UserError

Recipe = Literal["paper", "released"]
RECIPES: tuple[Recipe, ...] = get_args(Recipe)
ADOPTED = "adopted"  # the preset of a network that somebody else trained


def check(right: bool, key: str, value: Any, wanted: str) -> None:
    if not right:
        raise UserError(f"{key} must be {wanted}, not {value!r}.")


@dataclass(frozen=True)
class DataConfig:
    source: str = "digits"  # digits, cifar10, cifar100, tinyimagenet, imagenet, or folder (any folder of images)
    size: int | None = None  # pixels a side; none: as the source has them
    holdout: float = 0.2  # a folder without test images: the share of each class held out for testing
    storage: Literal["auto", "memory", "stream"] = "auto"  # decoded once into memory, or from disk batch by batch

    def __post_init__(self) -> None:
        check(self.size is None or self.size >= 4, "data.size", self.size, "at least 4 pixels")
        check(0 < self.holdout < 1, "data.holdout", self.holdout, "between 0 and 1")


@dataclass(frozen=True)
class StreamConfig:
    order: str | tuple[int, ...] = "seed"  # natural, seed (of the run), seed:K, icarl-1993, or a list of classes
    split: int | str | tuple[int, ...] = 5  # equal tasks (5), sizes ([4, 3, 3]), or a larger first task ("50+5x10")
    classes: int | None = None  # only the first so many classes of the order
    take: int | None = None  # learn only the first so many tasks, for a quick look

    def __post_init__(self) -> None:
        check(self.classes is None or self.classes >= 1, "stream.classes", self.classes, "at least 1")
        check(self.take is None or self.take >= 1, "stream.take", self.take, "at least 1")


@dataclass(frozen=True)
class AugmentConfig:
    crop: int = 0  # zero-pad by so many pixels, then cut the original size out at random
    flip: bool = False  # mirror half of the images
    brightness: float = 0.0  # factor drawn from 1 ± this
    contrast: float = 0.0  # factor drawn from 1 ± this
    resized_crop: bool = False  # cut a box of random size and shape out, and scale it to the full size

    def __post_init__(self) -> None:
        check(self.crop >= 0, "augment.crop", self.crop, "0 or more")
        check(not (self.crop and self.resized_crop), "augment.crop", self.crop, "0 beside augment.resized_crop")
        for name in ("brightness", "contrast"):
            check(0 <= getattr(self, name) <= 1, f"augment.{name}", getattr(self, name), "between 0 and 1")


@dataclass(frozen=True)
class NetConfig:
    name: str = "resnet32"
    head: Literal["grow", "all"] = "grow"  # rows added as classes arrive, or all of them from the start


@dataclass(frozen=True)
class TrainConfig:
    epochs: int = 250
    milestones: tuple[int, ...] = (100, 150, 200)  # the learning rate is multiplied by gamma at each of these epochs
    gamma: float = 0.1
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 2e-4
    batch_size: int = 128
    even: bool = False  # draw every class equally often, however many images it has

    def __post_init__(self) -> None:
        check(self.epochs >= 1, "train.epochs", self.epochs, "at least 1")
        check(self.batch_size >= 2, "train.batch_size", self.batch_size, "at least 2")
        check(self.lr > 0, "train.lr", self.lr, "above 0")
        for epoch in self.milestones:
            check(epoch >= 1, "train.milestones", epoch, "1 or more, each")
        check(self.gamma > 0, "train.gamma", self.gamma, "above 0")
        check(0 <= self.momentum < 1, "train.momentum", self.momentum, "at least 0 and below 1")
        check(self.weight_decay >= 0, "train.weight_decay", self.weight_decay, "0 or more")


@dataclass(frozen=True)
class DreamConfig:
    steps: int = 5000  # generator steps before each task but the first
    batch_size: int | None = None  # none: as in training
    lr: float = 1e-3
    content: float = 1.0  # weights of the four losses of docs/method.md, "The dreamer"
    diversity: float = 1.0
    statistics: float = 50.0
    prior: float = 1e-3
    temperature: float = 1e3  # of the content loss
    noise: int = 1000  # numbers that go into the generator for one image
    width: int | None = None  # channels of the generator; none: by the size of the image
    life: Literal["fresh", "carried"] = "fresh"  # a new generator each task, or weights and Adam state carried over
    mixed: bool = False  # where networks are computed in mixed precision: the dreamer's, too

    def __post_init__(self) -> None:
        check(self.steps >= 1, "dream.steps", self.steps, "at least 1")
        check(self.batch_size is None or self.batch_size >= 2, "dream.batch_size", self.batch_size, "at least 2")
        check(self.lr > 0, "dream.lr", self.lr, "above 0")
        check(self.width is None or self.width >= 2, "dream.width", self.width, "at least 2")
        check(self.noise >= 1, "dream.noise", self.noise, "at least 1")
        for name in ("content", "diversity", "statistics", "prior"):
            check(getattr(self, name) >= 0, f"dream.{name}", getattr(self, name), "0 or more")
        check(self.temperature > 0, "dream.temperature", self.temperature, "above 0")


@dataclass(frozen=True)
class CoresetConfig:
    """Only for methods that keep one."""

    size: int = 2000  # images in all, shared by all classes

    def __post_init__(self) -> None:
        check(self.size >= 1, "coreset.size", self.size, "at least 1")


@dataclass(frozen=True)
class EvaluateConfig:
    top: Literal[1, 5] = 1  # a prediction counts when the class is among the first so many
    batch_size: int | None = None  # none: 500, or fewer where images are large

    def __post_init__(self) -> None:
        check(self.batch_size is None or self.batch_size >= 1, "evaluate.batch_size", self.batch_size, "at least 1")


@dataclass(frozen=True)
class EngineConfig:
    """Not set: as is best for the device."""

    precision: Literal["fp32", "tf32", "bf16"] | None = None  # bf16: networks in mixed precision
    capture: bool | None = None  # a training step as a CUDA graph
    compile: bool | None = None  # networks and augmentation through torch.compile


@dataclass(frozen=True)
class Config:
    preset: str
    method: str
    recipe: Recipe = "paper"
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)  # of the method: `--set method.NAME=VALUE`
    data: DataConfig = DataConfig()
    stream: StreamConfig = StreamConfig()
    augment: AugmentConfig = AugmentConfig()
    net: NetConfig = NetConfig()
    train: TrainConfig = TrainConfig()
    dream: DreamConfig = DreamConfig()
    coreset: CoresetConfig = CoresetConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    engine: EngineConfig = EngineConfig()
    keep: tuple[Literal["models", "dreamers"], ...] = ()  # of every task, for diagnosis; the last model is always kept
    reference: str = ""  # a digest of the upper bound's own configuration, by which Omega finds it

    def as_dict(self) -> dict[str, Any]:
        """Plain values for YAML and JSON; `from_dict` reads them back."""
        plain = as_plain(self)
        plain["method"] = {"name": plain.pop("method"), **plain.pop("options")}
        return plain

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Config:
        method = dict(values["method"])
        return build(cls, {**values, "method": method.pop("name"), "options": method})

    def completed(self, options: type) -> Config:
        """With the usual values of a method's `options` that did not exist when this was written down."""
        chosen = build(options, self.options, "method.")
        return dataclasses.replace(self, options=as_plain(chosen))

    def identity(self) -> dict[str, Any]:
        """What decides the figures. Where the data lies, the device and what is kept besides do not belong to it."""
        plain = self.as_dict()
        del plain["keep"], plain["reference"], plain["evaluate"]["batch_size"]
        del plain["engine"]["capture"], plain["engine"]["compile"]
        if not self.augment.resized_crop:  # which cuts from the whole file, or from the square that memory holds
            del plain["data"]["storage"]
        if not self.train.even:  # the usual case, from before there was a choice
            del plain["train"]["even"]
        return plain

    def flat_identity(self) -> dict[str, Any]:
        """The same by key, such as `train.epochs`."""
        return _flat(self.identity())

    def differences(self, other: Config) -> dict[str, tuple[Any, Any]]:
        """Where the identities of two runs differ: the values of both, by key."""
        ours, theirs = self.flat_identity(), other.flat_identity()
        keys = sorted({*ours, *theirs})
        return {key: (ours.get(key), theirs.get(key)) for key in keys if ours.get(key) != theirs.get(key)}

    def training_digest(self) -> str:
        """Short for everything that decides how a network is trained, besides the data and the seed."""
        plain = self.identity()
        deciding = [plain[section] for section in ("method", "data", "augment", "net", "train", "engine")]
        return hashlib.blake2b(json.dumps(deciding, sort_keys=True).encode(), digest_size=8).hexdigest()


SECTIONS = ("data", "stream", "augment", "net", "train", "dream", "coreset", "evaluate", "engine")


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat.update(_flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value})
    return flat
