"""Configurations made of layers, later ones winning, and the presets that are most of them; loads no torch.

The layers: the defaults of `config.py`, the recipe, the preset (with what it says for this recipe, then what the method
is defined with, `Method.usual`, then what the preset says for this method), and the person's own `--set` values.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from reverie.config.schema import RECIPES, SECTIONS, Config, Recipe, check
from reverie.config.typed import as_plain, build, hints_of
from reverie.errors import UserError, did_you_mean, explaining

# What the released code does otherwise, whatever the data set and the method. Values of a data set stand in its preset
# under `recipes`, values of a method in the method's own file (`Method.released`). docs/method.md lists them all.
RELEASED: dict[str, Any] = {"net": {"head": "all"}, "dream": {"life": "carried"}}

WEIGHTS = ("cross_entropy", "distillation", "fine_tuning", "relations")  # of losses, as methods' options call them


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
    options = as_plain(chosen)
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
        raise UserError(f"A setting is section.key=value, for example train.epochs=5, not {text!r}.")
    try:
        parsed = yaml.safe_load(value)
    except (yaml.YAMLError, ValueError):
        parsed = value
    for part in reversed(key.strip().split(".")):
        parsed = {part: parsed}
    return parsed


def setting_keys(settings: Iterable[str]) -> set[str]:
    """`train.epochs` of `train.epochs=5`, and of `train={epochs: 5}`."""
    sections = [(name, keys) for text in settings for name, keys in parse_setting(text).items()]
    return {f"{name}.{key}" for name, keys in sections if isinstance(keys, Mapping) for key in keys}


def preset_names() -> list[str]:
    return sorted(entry.name[:-5] for entry in _preset_folder().iterdir() if entry.name.endswith(".yaml"))


def describe_preset(name: str) -> str:
    """The preset's own one-line description."""
    return str(yaml.safe_load(_preset_folder().joinpath(f"{name}.yaml").read_text("utf-8")).get("about", ""))


def _preset_folder() -> Any:
    return resources.files("reverie.config").joinpath("presets")


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
        text = copy.deepcopy(_parsed(raw))  # the layers take it apart
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        why = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UserError(f"{origin} is not valid YAML{where}: {why}.") from None
    if not isinstance(text, dict):
        raise UserError(f"{origin} must hold sections such as `data:` and `train:`; see `reverie run --help`.")
    return origin, text


@functools.lru_cache(maxsize=64)
def _parsed(raw: bytes) -> Any:
    """Every configuration reads its preset twice, a table's reads the same ones many times."""
    return yaml.load(raw, _EachKeyOnce)


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
    hints = hints_of(Config)
    for section, cls in [*((name, hints[name]) for name in SECTIONS), ("method", options)]:
        for key, hint in hints_of(cls).items():
            yield f"{section}.{key}", hint


def _merge(into: dict[str, Any], layer: Mapping[str, Any]) -> None:
    for key, value in layer.items():
        if isinstance(value, Mapping) and isinstance(into.get(key, {}), dict):
            _merge(into.setdefault(key, {}), value)
        else:
            into[key] = value
