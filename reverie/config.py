"""The typed configuration of a run. Presets are instances of it; reading one loads no torch.

A configuration is built from layers, later ones winning: the defaults below, the recipe, the preset (with what it says
for this recipe, then what the method is defined with, `Method.usual`, then what the preset says for this method), and
the person's own `--set` values.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml

from reverie.errors import UserError, did_you_mean, explaining

Recipe = Literal["paper", "released"]
RECIPES: tuple[Recipe, ...] = get_args(Recipe)
ADOPTED = "adopted"  # the preset of a network that somebody else trained

# What the released code does otherwise, whatever the data set and the method. Values of a data set stand in its preset
# under `recipes`, values of a method in the method's own file (`Method.released`). docs/method.md lists them all.
RELEASED: dict[str, Any] = {"net": {"head": "all"}, "dream": {"life": "carried"}}

WEIGHTS = ("cross_entropy", "distillation", "fine_tuning", "relations")  # of losses, as methods' options call them


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

    precision: Literal["fp32", "tf32", "bf16"] | None = None  # bf16: networks in mixed precision, all else in single
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
        plain = _plain(dataclasses.asdict(self))
        plain["method"] = {"name": plain.pop("method"), **plain.pop("options")}
        return plain

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Config:
        method = dict(values["method"])
        return build(cls, {**values, "method": method.pop("name"), "options": method})

    def completed(self, options: type) -> Config:
        """With the usual values of a method's `options` that did not exist when this was written down."""
        chosen = build(options, self.options, "method.")
        return dataclasses.replace(self, options=_plain(dataclasses.asdict(chosen)))

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


def load(
    preset: str,
    *,
    method: str,
    find: Callable[[str], Any],
    seed: int = 0,
    recipe: Recipe = "paper",
    settings: Sequence[str] = (),
    with_options: bool = True,
) -> Config:
    """The configuration of one run. `find` gives the class behind a method's name, for what it says of itself.

    Without options, what the layers say of the method itself is left out: it was meant for another method.
    """
    name, chain = _preset_chain(preset)
    return compose(name, chain, method, find, seed, recipe, settings, with_options)


def compose(
    name: str,
    chain: Sequence[tuple[str, dict[str, Any]]],
    method: str,
    find: Callable[[str], Any],
    seed: int = 0,
    recipe: Recipe = "paper",
    settings: Sequence[str] = (),
    with_options: bool = True,
) -> Config:
    """The configuration called `name`, of layers that need not be presets: where each is from, and what it says."""
    found = find(method)
    layers: list[tuple[str, dict[str, Any]]] = []
    of_method: list[Any] = []  # what files before said for this method alone
    if recipe == "released":
        layers.append(("the released recipe", {**RELEASED, "method": dict(found.released)}))
    for origin, text in chain:
        recipes, methods = _blocks(text, "recipes", origin), _blocks(text, "methods", origin)
        if with_options:
            _check_blocks(recipes, methods, find, method, origin)
        layers.append((origin, text))
        layers.append((f"recipes.{recipe} of {origin}", recipes.get(recipe, {})))
        layers.append((f"the method {method}", _without(found.usual, of_method)))
        layers.append((f"methods.{method} of {origin}", methods.get(method, {})))
        of_method.append(methods.get(method, {}))
    layers += [("--set", parse_setting(setting)) for setting in settings]
    merged: dict[str, Any] = {}
    for origin, layer in layers:
        if not with_options and isinstance(layer, dict):
            layer.pop("method", None)
        _refuse_unknown_keys(layer, found.Options, method, origin)
        _merge(merged, layer)
    chosen = build(found.Options, merged.pop("method", {}), "method.")
    options = _plain(dataclasses.asdict(chosen))
    _check_options(options)
    header = {"preset": name, "method": method, "recipe": recipe, "seed": seed}
    return build(Config, {**merged, **header, "options": options}, "")


def _check_options(options: Mapping[str, Any]) -> None:
    """What holds whichever method's they are; the rest, its own class checks."""
    for name, value in options.items():
        if isinstance(value, int | float) and name == "temperature":
            check(value > 0, f"method.{name}", value, "above 0")
        elif isinstance(value, int | float) and name in WEIGHTS:
            check(value >= 0, f"method.{name}", value, "0 or more")


def _without(sections: Mapping[str, Mapping[str, Any]], said: Sequence[Any]) -> dict[str, Any]:
    """`sections` but for the keys that something in `said` sets."""
    taken = {(name, key) for layer in said for name, keys in dict(layer).items() for key in dict(keys)}
    return {
        name: {key: value for key, value in keys.items() if (name, key) not in taken} for name, keys in sections.items()
    }


def parse_setting(text: str) -> dict[str, Any]:
    """`train.epochs=5` as {"train": {"epochs": 5}}."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UserError(f"--set wants section.key=value, for example train.epochs=5, not {text!r}.")
    try:
        parsed = yaml.safe_load(value)
    except (yaml.YAMLError, ValueError):
        parsed = value
    for part in reversed(key.strip().split(".")):
        parsed = {part: parsed}
    return parsed


def preset_names() -> list[str]:
    return sorted(entry.name[:-5] for entry in _preset_folder().iterdir() if entry.name.endswith(".yaml"))


def describe_preset(name: str) -> str:
    """The preset's own one-line description."""
    return str(yaml.safe_load(_preset_folder().joinpath(f"{name}.yaml").read_text("utf-8")).get("about", ""))


def _preset_folder() -> Any:
    return resources.files("reverie").joinpath("presets")


def _preset_chain(preset: str) -> tuple[str, list[tuple[str, dict[str, Any]]]]:
    """The preset and all that it extends, the most general first."""
    chain: list[tuple[str, dict[str, Any]]] = []
    seen: set[str] = set()
    wanted: str | None = preset
    while wanted is not None:
        place = str(Path(wanted).resolve()) if Path(wanted).is_file() else wanted
        if place in seen:
            raise UserError(f"{chain[-1][0]} extends itself, by way of {', '.join(sorted(seen))}.")
        seen.add(place)
        origin, text = _read_preset(wanted)
        text.pop("about", None)
        wanted = text.pop("extends", None)
        if not isinstance(wanted, str | None):
            raise UserError(f"'extends' in {origin} must be one preset's name or one YAML file, not {wanted!r}.")
        chain.append((origin, text))
        wanted = _beside(origin, wanted)
    return preset if preset in preset_names() else Path(preset).stem, chain[::-1]


def _beside(file: str, extended: str | None) -> str | None:
    """What a file extends: a preset that comes with reverie, or a file that is named as seen from there."""
    if extended is None or extended in preset_names():
        return extended
    there = Path(file).parent / extended
    return str(there) if there.is_file() else extended


@explaining("read", "Change its permissions, or choose another preset.")
def _read_preset(preset: str) -> tuple[str, dict[str, Any]]:
    if preset in preset_names():
        raw, origin = _preset_folder().joinpath(f"{preset}.yaml").read_bytes(), f"preset {preset}"
    elif Path(preset).is_file():
        raw, origin = Path(preset).read_bytes(), preset
    elif Path(preset).suffix in (".yaml", ".yml"):
        raise UserError(f"There is no file {preset}.")
    else:
        hint = did_you_mean(preset, preset_names())
        raise UserError(f"There is no preset {preset!r}.{hint} `reverie presets` lists them; a YAML file will do, too.")
    try:
        text = yaml.load(raw, _EachKeyOnce)
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        why = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UserError(f"{origin} is not valid YAML{where}: {why}.") from None
    if not isinstance(text, dict):
        raise UserError(f"{origin} must hold sections such as `data:` and `train:`; see `reverie run --help`.")
    return origin, text


class _EachKeyOnce(yaml.SafeLoader):
    """Safe loading that refuses a key given twice, of which YAML would silently take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        for place, (key, _) in enumerate(node.value):
            if key.value in keys[:place]:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is given twice", key.start_mark)
        return super().construct_mapping(node, deep)


def _blocks(text: dict[str, Any], kind: str, origin: str) -> Mapping[Any, Any]:
    """What a preset says for some recipes or methods only, by name."""
    blocks = text.pop(kind, {})
    if not isinstance(blocks, Mapping):
        raise UserError(f"{kind!r} in {origin} must hold sections by name, such as `NAME: {{train: {{epochs: 5}}}}`.")
    return blocks


def _check_blocks(
    recipes: Mapping[Any, Any], methods: Mapping[Any, Any], find: Callable[[str], Any], method: str, origin: str
) -> None:
    """Also those that are not for this run, since nobody would notice what is misspelt there."""
    for name, layer in recipes.items():
        if name not in RECIPES:
            raise UserError(f"Unknown recipe {name!r} in {origin}.{did_you_mean(str(name), RECIPES)}")
        _refuse_unknown_keys(layer, find(method).Options, method, f"recipes.{name} of {origin}")
    for name, layer in methods.items():
        try:
            options = find(str(name)).Options
        except UserError as error:
            raise UserError(f"'methods' in {origin}: {error}") from None
        _refuse_unknown_keys(layer, options, name, f"methods.{name} of {origin}")


def _refuse_unknown_keys(layer: Any, options: type, method: str, origin: str) -> None:
    if not isinstance(layer, Mapping):
        raise UserError(f"{origin} must hold sections such as `train: {{epochs: 5}}`, not {layer!r}.")
    known = dict(_known_keys(options))
    for key, value in layer.items():
        if key not in (*SECTIONS, "method", "keep"):
            leaf = [name for name in known if name.endswith(f".{key}")]
            hint = f" Did you mean {leaf[0]!r}?" if leaf else did_you_mean(str(key), [*SECTIONS, "method", "keep"])
            raise UserError(f"Unknown section {key!r} in {origin}.{hint}")
        if key == "keep":
            continue
        if not isinstance(value, Mapping):
            raise UserError(f"{key!r} in {origin} is a section: set one of its keys, such as {key}.KEY=VALUE.")
        for inner in value:
            if f"{key}.{inner}" not in known:
                hint = did_you_mean(f"{key}.{inner}", [*known])
                owner = f" The method {method!r} has no such option." if key == "method" else ""
                raise UserError(f"Unknown key '{key}.{inner}' in {origin}.{owner}{hint}")


def _known_keys(options: type) -> Iterator[tuple[str, Any]]:
    hints = typing.get_type_hints(Config)
    for section, cls in [*((name, hints[name]) for name in SECTIONS), ("method", options)]:
        for key, hint in typing.get_type_hints(cls).items():
            yield f"{section}.{key}", hint


def _merge(into: dict[str, Any], layer: Mapping[str, Any]) -> None:
    for key, value in layer.items():
        if isinstance(value, Mapping) and isinstance(into.get(key, {}), dict):
            _merge(into.setdefault(key, {}), value)
        else:
            into[key] = value


def build(cls: type, values: Mapping[str, Any], where: str = "") -> Any:
    """An instance of a configuration class from plain values, each checked against its type."""
    hints = typing.get_type_hints(cls)
    unknown = [key for key in values if key not in hints]
    if unknown:
        raise UserError(f"Unknown key '{where}{unknown[0]}'.{did_you_mean(unknown[0], hints)}")
    return cls(**{key: _convert(value, hints[key], f"{where}{key}") for key, value in values.items()})


def _convert(value: Any, hint: Any, where: str) -> Any:
    """`value` as the type that `hint` asks for, or an error that names the key."""
    origin = get_origin(hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if not isinstance(value, Mapping):
            raise UserError(f"{where} must hold keys and values, not {value!r}.")
        return build(hint, value, f"{where}.")
    if origin in (types.UnionType, typing.Union):
        for choice in get_args(hint):
            try:
                return _convert(value, choice, where)
            except UserError:
                continue
        raise UserError(f"{where} must be {_name(hint)}, not {value!r}.")
    if origin is Literal:
        if value in get_args(hint) and type(value) in {type(choice) for choice in get_args(hint)}:
            return value
        choices = ", ".join(map(str, get_args(hint)))
        raise UserError(
            f"{where} must be one of {choices}, not {value!r}.{did_you_mean(str(value), map(str, get_args(hint)))}"
        )
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise UserError(f"{where} must be a list, not {value!r}.")
        return tuple(_convert(item, get_args(hint)[0], where) for item in value)
    if origin is not None or hint is Any:  # Mapping[str, Any]: the method's options, checked by the method's own type
        return value
    if hint is float and isinstance(value, int | str) and not isinstance(value, bool):
        with suppress(ValueError, OverflowError):
            value = float(value)  # YAML reads 1e-3 as text
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{where} must be a finite number, not {value!r}.")
    right = value is None if hint is types.NoneType else isinstance(value, hint)
    if not right or (hint is int and isinstance(value, bool)):
        raise UserError(f"{where} must be {_name(hint)}, not {value!r}.")
    return value


def _name(hint: Any) -> str:
    if get_origin(hint) in (types.UnionType, typing.Union):
        return " or ".join(_name(choice) for choice in get_args(hint))
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, get_args(hint)))}"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text", types.NoneType: "null"}
    return words.get(hint, "a list" if get_origin(hint) is tuple else str(hint))


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat.update(_flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value})
    return flat


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
