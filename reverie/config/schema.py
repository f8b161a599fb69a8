"""The typed configuration of a run, with bounds on every number; `layers.py` makes one of presets and settings.

Each section is a frozen dataclass that pydantic checks, whenever one is made: from a file, in Python, or by
`dataclasses.replace`. What a key means stands in its `about`, from which docs/settings.md is made. Loads no torch.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, dataclass_transform

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from reverie.config.choices import UPPER_BOUND, Precision, Recipe
from reverie.config.setting_values import Settings, nearest_in_sections, nearest_section, settings_by_key
from reverie.errors import UserError
from reverie.system.records import build, refuse_too_large, sentence

Section = TypeVar("Section")
LARGEST_SEED = 2**63 - 1


@dataclass_transform(frozen_default=True)
def settings(name: str) -> Callable[[type[Section]], type[Section]]:
    """Makes a class a section of the configuration called `name`, or, called "method", the options of a method.

    Its fields have types and defaults, as those of a dataclass; `Annotated` adds bounds, and what a key means.
    """

    def decorate(cls: type[Section]) -> type[Section]:
        made: Any = dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid", allow_inf_nan=False))(cls)
        validate = made.__init__
        fields = [item.name for item in dataclasses.fields(made)]

        @functools.wraps(validate)
        def check(self: Any, *args: Any, **given: Any) -> None:
            values = {**dict(zip(fields, args, strict=False)), **given}
            if len(values) < len(args) + len(given):
                raise TypeError(f"{made.__name__} takes {', '.join(fields)}, each of them once")
            refuse_too_large(values, f"{name}." if name else "")
            try:
                validate(self, **values)
            except ValidationError as error:
                raise UserError(sentence(error, made, values, f"{name}." if name else "")) from None

        made.__init__ = check
        checked: type[Section] = made
        return checked

    return decorate


def about(text: str, **bounds: Any) -> Any:
    """For `Annotated`: what a key means, and the bounds of its value (`ge`, `gt`, `le`, `lt`)."""
    return Field(description=text, **bounds)


class Later:
    """For `Annotated`: a key that version 0.1 did not have.

    At its default a run is what it was before there was a choice, so that its identity does not name the key.
    """


LATER = Later()
LATER_OPTIONS = {"statistics": False}  # the same for options that methods of version 0.1 did not have
LIST_OR_TUPLE = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)  # for pydantic 2.9

# For the options of methods, too.
Weight = Annotated[float, Field(ge=0, le=1e9)]  # of a loss
Temperature = Annotated[float, Field(gt=0, le=1e9)]
LearningRate = Annotated[float, Field(gt=0, le=1e3)]
BatchSize = Annotated[int, Field(ge=2, le=65_536)]
Steps = Annotated[int, Field(ge=1, le=100_000_000)]
Epoch = Annotated[int, Field(ge=1, le=1_000_000)]
ClassCount = Annotated[int, Field(ge=1, le=1_000_000)]


@settings("data")
class DataConfig:
    """Which images."""

    source: Annotated[
        str,
        about(
            "`digits`, `cifar10`, `cifar100`, `tinyimagenet`, `imagenet`, or `folder`: any folder of images, named by "
            "`--data` ([data.md](data.md))"
        ),
    ] = "digits"
    size: Annotated[
        Annotated[int, Field(ge=4, le=4096)] | None, about("pixels a side; null: as the source has them")
    ] = None
    holdout: Annotated[
        float, about("of a folder without test images: the share of each class that is held out", gt=0, lt=1)
    ] = 0.2
    storage: Annotated[
        Literal["auto", "memory", "stream"],
        about("`memory`: decoded once; `stream`: from disk, batch by batch; `auto`: by what there is"),
    ] = "auto"


@settings("stream")
class StreamConfig:
    """How the data set is cut into tasks."""

    order: Annotated[
        str | Annotated[tuple[Annotated[int, Field(ge=0, le=1_000_000)], ...], Field(strict=False)],
        LIST_OR_TUPLE,
        about("the order of the classes: `natural`, `seed` (of the run), `seed:K`, `icarl-1993`, or a list of classes"),
    ] = "seed"
    split: Annotated[
        ClassCount | str | Annotated[tuple[ClassCount, ...], Field(strict=False)],
        LIST_OR_TUPLE,
        about("so many equal tasks; sizes, such as `[4, 3, 3]`; or a larger first task, such as `50+5x10`"),
    ] = 5
    classes: Annotated[ClassCount | None, about("only the first so many classes of the order")] = None
    take: Annotated[ClassCount | None, about("learn only the first so many tasks, for a quick look")] = None


@settings("augment")
class AugmentConfig:
    """What is done to images at random while they are learned."""

    crop: Annotated[
        int, about("pad by so many black pixels, then cut the original size out at random", ge=0, le=2048)
    ] = 0
    flip: Annotated[bool, about("mirror half of the images")] = False
    brightness: Annotated[float, about("a factor drawn from 1 ± this", ge=0, le=1)] = 0.0
    contrast: Annotated[float, about("a factor drawn from 1 ± this", ge=0, le=1)] = 0.0
    resized_crop: Annotated[
        bool, about("cut a box of random size and shape out, and scale it to the full size; not beside `crop`")
    ] = False

    cutout: Annotated[
        int,
        about("a square of so many pixels a side, anywhere, becomes the mean colour; 0: none", ge=0, le=4096),
        LATER,
    ] = 0
    trivial: Annotated[
        bool,
        about("TrivialAugment: one way of fourteen for each image, of random strength ([method.md](method.md#data))"),
        LATER,
    ] = False

    def __post_init__(self) -> None:
        if self.crop and self.resized_crop:
            raise ValueError(f"augment.crop must be 0 beside augment.resized_crop, not {self.crop}.")


def _sha256(file: Path) -> str:
    try:
        with file.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        raise ValueError(f"net.weights: {file} cannot be read: {error.strerror or error}.") from None


@settings("net")
class NetConfig:
    """Which network."""

    name: Annotated[
        str,
        about(
            "`resnet8`, `resnet14`, `resnet20`, `resnet32`, `resnet32-signed` ([for R-DFCIL](method.md)), `resnet18`, "
            "`resnet18-cifar` (its first layers keep all pixels of small images), a network of torchvision or timm, "
            "such as `torchvision/mobilenet_v2`, or one of another package"
        ),
    ] = "resnet32"
    head: Annotated[
        Literal["grow", "all"],
        about("rows of the last layer are added as classes arrive (`grow`), or are `all` there from the start"),
    ] = "grow"
    weights: Annotated[
        str | None,
        about(
            "a file of weights that the network of an experiment begins with (.safetensors, or a state dict): of this "
            "network, with any last layer or none. Images are normalised as without it"
        ),
        LATER,
    ] = None
    weights_sha256: Annotated[
        str | None,
        about("of that file, by which a run knows it, wherever it lies; null: noted when the configuration is made"),
        LATER,
    ] = None

    def __post_init__(self) -> None:
        if self.weights is None and self.weights_sha256 is not None:
            raise ValueError("net.weights_sha256 says which file net.weights is. Set that, too.")
        if self.weights is not None and self.weights_sha256 is None:
            file = Path(self.weights).absolute()
            object.__setattr__(self, "weights", str(file))
            object.__setattr__(self, "weights_sha256", _sha256(file))


@settings("train")
class TrainConfig:
    """How a task is learned."""

    epochs: Annotated[Epoch, about("of each task")] = 250
    milestones: Annotated[
        tuple[Epoch, ...],
        about("epochs at which the learning rate is multiplied by `gamma`, if `schedule` is `steps`", strict=False),
    ] = (100, 150, 200)
    gamma: Annotated[float, about("the factor at each milestone", gt=0, le=1e3)] = 0.1
    lr: Annotated[LearningRate, about("the learning rate; `adam` and `adamw` want a lower one, such as 0.001")] = 0.1
    momentum: Annotated[float, about("of `sgd` and `nesterov`", ge=0, lt=1)] = 0.9
    weight_decay: Annotated[float, about("of every optimizer", ge=0, le=1e3)] = 2e-4
    batch_size: Annotated[BatchSize, about("real images in a step; dreams come on top")] = 128
    even: Annotated[bool, about("draw every class equally often, however many images it has"), LATER] = False
    optimizer: Annotated[
        Literal["sgd", "nesterov", "adam", "adamw"],
        about(
            "of every phase that learns a network from images ([which those are](method.md#how-a-task-is-trained)); "
            "the generator has Adam in any case"
        ),
        LATER,
    ] = "sgd"
    schedule: Annotated[
        Literal["steps", "cosine"],
        about("the learning rate falls at the `milestones`, or along half a `cosine` to the last epoch"),
        LATER,
    ] = "steps"
    warmup: Annotated[
        int,
        about("so many epochs at first, in which the learning rate rises in equal steps", ge=0, le=1_000_000),
        LATER,
    ] = 0

    clip: Annotated[
        Annotated[float, Field(gt=0, le=1e9)] | None,
        about("the largest norm of the whole gradient, in the phases that `optimizer` is for; null: any"),
        LATER,
    ] = None
    label_smoothing: Annotated[
        float, about("the share of a real image's label that is spread over all classes", ge=0, lt=1), LATER
    ] = 0.0
    average: Annotated[
        Annotated[float, Field(gt=0, lt=1)] | None,
        about("the classifier ends its learning as a moving average of its weights, with this decay, such as 0.999"),
        LATER,
    ] = None

    rotations: Annotated[
        Literal["none", "first", "one", "all"],
        about(
            "new images are also learned turned by 90, 180 and 270 degrees, as further classes of a head that exists "
            "only meanwhile: in the `first` task, or in `all`; `one`: in all, but after the first each image is turned "
            "one way only, for a quarter of the cost"
        ),
        LATER,
    ] = "none"
    mixup: Annotated[
        float,
        about(
            "images of a batch are shown through each other, by one share a batch that is drawn from Beta(this, this); "
            "both labels count; 0: none",
            ge=0,
            le=1e3,
        ),
        LATER,
    ] = 0.0

    def __post_init__(self) -> None:
        if self.optimizer == "nesterov" and not self.momentum:
            raise ValueError("train.momentum must be above 0 beside train.optimizer=nesterov.")
        if self.warmup and self.warmup >= self.epochs:
            raise ValueError(f"train.warmup must be below train.epochs ({self.epochs}), not {self.warmup}.")
        if self.schedule == "steps" and any(milestone < self.warmup for milestone in self.milestones):
            raise ValueError(
                f"train.milestones must not lie inside train.warmup ({self.warmup} epochs), as {min(self.milestones)} "
                "does."
            )


@settings("dream")
class DreamConfig:
    """How old classes are dreamed up."""

    source: Annotated[
        Literal["noise", "images"],
        about(
            "what dreams are made of: `noise`, by a generator; or new `images`, changed until the network takes them "
            "for old classes, for methods that keep class statistics ([lucid.md](lucid.md))"
        ),
        LATER,
    ] = "noise"
    steps: Annotated[Steps, about("of the generator, before each task but the first")] = 5000
    batch_size: Annotated[BatchSize | None, about("null: as in training")] = None
    lr: Annotated[LearningRate, about("of Adam")] = 1e-3
    content: Annotated[
        Weight, about("weight of the content loss, one of the four of [method.md](method.md#the-dreamer)")
    ] = 1.0
    diversity: Annotated[Weight, about("weight of the diversity loss")] = 1.0
    statistics: Annotated[Weight, about("weight of the statistics loss")] = 50.0
    prior: Annotated[Weight, about("weight of the smoothness prior")] = 1e-3
    temperature: Annotated[Temperature, about("of the content loss")] = 1e3
    noise: Annotated[int, about("numbers that go into the generator for one image", ge=1, le=16_384)] = 1000
    width: Annotated[
        Annotated[int, Field(ge=2, le=1024)] | None,
        about("channels of the generator; null: by the size of the image"),
    ] = None
    life: Annotated[
        Literal["fresh", "carried"], about("a new generator for each task, or weights and optimizer `carried` over")
    ] = "fresh"
    mixed: Annotated[bool, about("the dreamer in bfloat16, too, where networks are ([speed.md](speed.md))")] = False

    def __post_init__(self) -> None:
        if self.source == "images" and self.life == "carried":
            raise ValueError(
                "dream.life must be fresh beside dream.source=images: there is no generator to carry over."
            )


@settings("coreset")
class CoresetConfig:
    """Only for methods that keep images (an exemplar memory)."""

    size: Annotated[int, about("images in all, for methods that keep some", ge=1, le=10_000_000)] = 2000


@settings("evaluate")
class EvaluateConfig:
    """How a classifier is tested."""

    top: Annotated[
        Literal[1, 5],
        BeforeValidator(lambda value: str(value) if isinstance(value, bool) else value),  # true is not 1
        about("a prediction counts when the class is among the first 1 or 5"),
    ] = 1
    batch_size: Annotated[
        Annotated[int, Field(ge=1, le=65_536)] | None,
        about("null: 500, fewer where images are large; makes no difference to figures"),
    ] = None


@settings("engine")
class EngineConfig:
    """How steps are computed. Not set: as is best for the device."""

    precision: Annotated[Precision | None, about("`fp32`, `tf32` or `bf16`; null: as is best for the device")] = None
    capture: Annotated[bool | None, about("a training step as a CUDA graph")] = None
    compile: Annotated[bool | None, about("networks and augmentation through torch.compile")] = None


@settings("")
class Config:
    """Everything that decides a run. `configure` makes one; `with_settings` makes another of it."""

    preset: str
    method: str
    recipe: Recipe = "paper"
    seed: Annotated[int, Field(ge=-LARGEST_SEED, le=LARGEST_SEED)] = 0
    options: Mapping[str, Any] = field(default_factory=dict)  # of the method: `method.NAME`
    data: DataConfig = DataConfig()
    stream: StreamConfig = StreamConfig()
    augment: AugmentConfig = AugmentConfig()
    net: NetConfig = NetConfig()
    train: TrainConfig = TrainConfig()
    dream: DreamConfig = DreamConfig()
    coreset: CoresetConfig = CoresetConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    engine: EngineConfig = EngineConfig()
    keep: Annotated[
        tuple[Literal["models", "dreamers", "features"], ...],
        about(
            "`models` and `dreamers` of every task, for [diagnosis.md](diagnosis.md); `features`, to compare heads on "
            "([lucid.md](lucid.md))",
            strict=False,
        ),
    ] = ()
    # Keys that the method itself sets, or the preset for it alone: its value, and the upper bound's.
    own_values: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key in self.own_values:
            section, _, name = key.partition(".")
            if section not in SECTIONS or not hasattr(getattr(self, section), name):
                raise ValueError(f"Unknown key '{key}' in own_values.")
        object.__setattr__(self, "options", frozen(self.options))
        object.__setattr__(self, "own_values", frozen(self.own_values))

    def as_dict(self) -> dict[str, Any]:
        """Plain values for YAML and JSON; `from_dict` reads them back."""
        plain = as_plain(self)
        plain["method"] = {"name": plain.pop("method"), **plain.pop("options")}
        if not self.own_values:
            del plain["own_values"]
        return plain

    def published(self) -> dict[str, Any]:
        """The same for files that are given away: without the folder in which a file of weights lies."""
        plain = self.as_dict()
        if self.net.weights is not None:
            plain["net"]["weights"] = Path(self.net.weights).name
        return plain

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Config:
        """From what `as_dict` gave, of this version or an earlier one."""
        method = values.get("method")
        if not isinstance(method, Mapping) or not isinstance(method.get("name"), str):
            raise UserError("'method.name' is missing.")
        options = {key: value for key, value in method.items() if key != "name"}
        rest = {key: value for key, value in values.items() if key not in ("method", "reference")}
        return build(cls, {**rest, "method": method["name"], "options": options})

    def with_settings(self, settings: Settings) -> Config:
        """The same with other values by key, for the run and for the upper bound that it is compared with.

            config.with_settings({"train.lr": 0.05, "train.milestones": [50, 80]})
            config.with_settings(["train.lr=0.05"])

        Raises UserError for a key or a value that cannot be. Options of a method (`method.NAME`) are looked up by name;
        their types and bounds, which the method alone knows, are checked when a learner is made, or a run begins.
        """
        given = settings_by_key(settings)
        changed = copy.deepcopy(self.as_dict())
        known = {name: list(changed[name]) for name in (*SECTIONS, "method")}
        known["method"].remove("name")
        for key, value in given.items():
            section, _, name = key.partition(".")
            if key == "keep":
                changed["keep"] = value
            elif section not in known:
                raise UserError(f"Unknown section {section!r}.{nearest_section(section, known, known)}")
            elif name not in known[section]:
                raise UserError(f"Unknown key '{key}'.{nearest_in_sections(name, section, known)}")
            else:
                changed[section][name] = value
        if "net.weights" in given and "net.weights_sha256" not in given:
            changed["net"]["weights_sha256"] = None  # of the file that was
        own = {key: both for key, both in self.own_values.items() if key not in given}
        return Config.from_dict({**changed, "own_values": as_plain(own)})

    def completed(self, options: type) -> Config:
        """With the usual values of a method's `options` that did not exist when this was written down."""
        return dataclasses.replace(self, options=as_plain(build(options, self.options, "method.")))

    def identity(self) -> dict[str, Any]:
        """What decides the figures. Where the data lies, the device and what is kept besides do not belong to it."""
        plain = self.as_dict()
        plain.pop("own_values", None)
        del plain["keep"], plain["evaluate"]["batch_size"], plain["net"]["weights"]
        del plain["engine"]["capture"], plain["engine"]["compile"]
        if not self.augment.resized_crop:  # which cuts from the whole file, or from the square that memory holds
            del plain["data"]["storage"]
        for section in SECTIONS:
            for key, default in _later_keys(type(getattr(self, section))).items():
                if plain[section].get(key) == default:
                    plain[section].pop(key, None)
        for key, default in LATER_OPTIONS.items():
            if plain["method"].get(key) == default:
                del plain["method"][key]
        return plain

    def flat_identity(self) -> dict[str, Any]:
        """The same by key, such as `train.epochs`."""
        return flat(self.identity())

    def differences(self, other: Config) -> dict[str, tuple[Any, Any]]:
        """Where the identities of two runs differ: the values of both, by key."""
        ours, theirs = self.flat_identity(), other.flat_identity()
        keys = sorted({*ours, *theirs})
        return {key: (ours.get(key), theirs.get(key)) for key in keys if ours.get(key) != theirs.get(key)}

    def training_digest(self) -> str:
        """Short for everything that decides how a network is trained, besides the data and the seed."""
        plain = self.identity()
        deciding = [plain[section] for section in ("method", *TRAINING_SECTIONS)]
        return hashlib.blake2b(json.dumps(deciding, sort_keys=True).encode(), digest_size=8).hexdigest()

    def upper_bound_digest(self) -> str:
        """The same of the upper bound for this run, by which Omega finds it.

        It is trained as this run is, but for what the method has of its own.
        """
        plain, now = self.as_dict(), flat(self.as_dict())
        for key, (own, bound) in self.own_values.items():
            section, _, name = key.partition(".")
            if now[key] == own:  # or else a person has set it since, for both
                plain[section][name] = bound
        return Config.from_dict({**plain, "method": {"name": UPPER_BOUND}}).training_digest()


SECTIONS = ("data", "stream", "augment", "net", "train", "dream", "coreset", "evaluate", "engine")
TRAINING_SECTIONS = ("data", "augment", "net", "train", "engine")  # that decide how a network is trained


def _later_keys(section: type) -> dict[str, Any]:
    """The keys of a section that version 0.1 did not have, with their defaults."""
    marked = {key for key, found in section.__pydantic_fields__.items() if LATER in found.metadata}  # type: ignore[attr-defined]
    return {item.name: as_plain(item.default) for item in dataclasses.fields(section) if item.name in marked}


def check_config(config: object) -> None:
    """A preset's name where a configuration is wanted would be told of far away, or not at all."""
    if not isinstance(config, Config):
        raise UserError(f"`config` is what `configure(...)` gives, such as configure('digits-5'), not {config!r:.60}.")


class FrozenMapping(Mapping[str, Any]):
    """Keys and values that cannot be changed; it is copied and pickled as any other."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)


def frozen(value: Any) -> Any:
    """Plain values that cannot be changed: lists become tuples. `as_plain` is the way back."""
    if isinstance(value, Mapping):
        return FrozenMapping({key: frozen(item) for key, item in value.items()})
    return tuple(frozen(item) for item in value) if isinstance(value, list | tuple) else value


def as_plain(value: Any) -> Any:
    """A dataclass's values, or a mapping's, as JSON and YAML have them: tuples become lists, and so do arrays.

    A number of numpy or torch becomes a plain one.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: as_plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: as_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values by their whole key, such as `train.epochs`."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found.update(flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value})
    return found
