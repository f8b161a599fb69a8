"""Configurations made of layers, later ones winning, and the presets that are most of them; loads no torch.

The layers: the defaults of `schema.py`, the recipe, the preset (with what it says for this recipe, then what the method
is defined with, `Method.usual`, then what the preset says for this method), and the person's own settings.
"""

from __future__ import annotations

import copy
import dataclasses
import errno
import functools
import json
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from reverie.config.choices import RECIPES, Recipe
from reverie.config.schema import SECTIONS, TRAINING_SECTIONS, Config, as_plain, flat
from reverie.config.setting_values import (
    Settings,
    check_settings,
    nearest_in_sections,
    nearest_section,
    parse_setting,
    plain_value,
    setting_value,
)
from reverie.config.yaml_files import parse_yaml
from reverie.errors import UserError, explaining
from reverie.system.records import build
from reverie.text import did_you_mean, shortened

# What the released code does otherwise, whatever the data set and the method. Values of a data set stand in its preset
# under `recipes`, values of a method in the method's own file (`Method.released`). docs/method.md lists them all.
RELEASED: dict[str, Any] = {"net": {"head": "all"}, "dream": {"life": "carried"}}

Layer = tuple[str, dict[str, Any]]  # where it is from, and what it says, by section
FindMethod = Callable[[str], Any]  # gives the class behind a method's name, for what it says of itself
NAMED_SECTIONS = (*SECTIONS, "method", "keep")
LONGEST_PATH = 4096  # letters


def load_preset(
    preset: str | Path,
    *,
    method: str,
    find: FindMethod,
    seed: int = 0,
    recipe: Recipe = "paper",
    settings: Settings = (),
    with_options: bool = True,
) -> Config:
    """The configuration of one run, from the name of a preset or a YAML file.

    Without options, what the layers say of the method itself is left out: it was meant for another method.
    """
    if not isinstance(preset, str | Path) or len(str(preset)) > LONGEST_PATH:
        raise UserError(f"`preset` is a preset's name or a YAML file, not {shortened(preset)}.")
    name, chain = _preset_chain(str(preset))
    return compose(name, chain, method, find, seed, recipe, settings, with_options)


def compose(
    name: str,
    chain: Sequence[Layer],
    method: str,
    find: FindMethod,
    seed: int = 0,
    recipe: Recipe = "paper",
    settings: Settings = (),
    with_options: bool = True,
) -> Config:
    """The configuration called `name`, of layers that need not be presets."""
    found = find(method)
    merged: dict[str, Any] = {}
    for origin, layer in _all_layers(chain, method, find, recipe, setting_texts(settings), with_options):
        if not with_options:
            layer = {key: value for key, value in layer.items() if key != "method"}
        _refuse_unknown_keys(layer, found.Options, method, origin)
        _merge(merged, layer)
    options = as_plain(build(found.Options, merged.pop("method", {}), "method."))
    header = {"preset": name, "method": method, "recipe": recipe, "seed": seed}
    return build(Config, {**merged, **header, "options": options})


def values_of_its_own(chosen: Config, upper_bound: Config) -> dict[str, tuple[Any, Any]]:
    """Where a method trains otherwise than the upper bound for it, by key: its value, and the upper bound's."""
    ours, theirs = flat(chosen.as_dict()), flat(upper_bound.as_dict())
    keys = [key for key in ours if key.partition(".")[0] in TRAINING_SECTIONS and ours[key] != theirs[key]]
    return {key: (ours[key], theirs[key]) for key in keys}


def _all_layers(
    chain: Sequence[Layer],
    method: str,
    find: FindMethod,
    recipe: Recipe,
    settings: Iterable[str],
    with_options: bool,
) -> list[Layer]:
    found = find(method)
    layers: list[Layer] = []
    of_method: list[Any] = []  # what files before said for this method alone
    if recipe == "released":
        layers.append(("the released recipe", {**RELEASED, "method": dict(found.released)}))
    for origin, text in chain:
        recipes, methods = (_blocks(text, kind, origin) for kind in ("recipes", "methods"))
        if with_options:
            _check_blocks(recipes, methods, find, method, origin)
        rest = {key: value for key, value in text.items() if key not in ("recipes", "methods")}
        layers.append((origin, rest))
        layers.append((f"recipes.{recipe} of {origin}", _section(recipes.get(recipe, {}), origin)))
        layers.append((f"the method {method}", _without(found.usual, of_method)))
        layers.append((f"methods.{method} of {origin}", _section(methods.get(method, {}), origin)))
        of_method.append(methods.get(method, {}))
    return layers + [("the settings", parse_setting(setting)) for setting in settings]


def _without(sections: Mapping[str, Mapping[str, Any]], layers: Sequence[Any]) -> dict[str, Any]:
    """`sections` but for the keys that one of the `layers` sets."""
    taken = {(name, key) for layer in layers for name, keys in dict(layer).items() for key in dict(keys)}
    return {
        name: {key: value for key, value in keys.items() if (name, key) not in taken} for name, keys in sections.items()
    }


# --- settings


def setting_texts(settings: Settings) -> tuple[str, ...]:
    """Settings as the command line has them: `train.epochs=5`."""
    checked = check_settings(settings)
    if not isinstance(checked, Mapping):
        return checked
    return tuple(f"{key}={_value_text(key, value)}" for key, value in checked.items())


def _value_text(key: str, value: Any) -> str:
    plain = plain_value(key, value)
    if isinstance(plain, str) and setting_value(plain) == plain:
        return plain
    return json.dumps(plain, ensure_ascii=False)


def setting_keys(settings: Settings) -> set[str]:
    """`train.epochs` of `train.epochs=5`, and of `train={epochs: 5}`."""
    sections = [(name, keys) for text in setting_texts(settings) for name, keys in parse_setting(text).items()]
    return {f"{name}.{key}" for name, keys in sections if isinstance(keys, Mapping) for key in keys}


def settings_by_section(settings: Settings) -> dict[str, dict[str, Any]]:
    """What a person has set, by section and key."""
    found: dict[str, dict[str, Any]] = {}
    for text in setting_texts(settings):
        for section, values in parse_setting(text).items():
            if isinstance(values, Mapping):
                found.setdefault(section, {}).update(values)
    return found


# --- presets


@dataclass(frozen=True)
class PresetInfo:
    name: str
    about: str


def list_presets() -> list[PresetInfo]:
    """The experiments that come with reverie."""
    return [PresetInfo(name, describe_preset(name)) for name in preset_names()]


def preset_names() -> list[str]:
    return sorted(entry.name[:-5] for entry in _preset_folder().iterdir() if entry.name.endswith(".yaml"))


def describe_preset(name: str) -> str:
    """The preset's own one-line description."""
    return str(_parsed(_preset_folder().joinpath(f"{name}.yaml").read_bytes()).get("about", ""))


def _preset_folder() -> Any:
    return resources.files("reverie.config").joinpath("presets")


def _preset_chain(preset: str) -> tuple[str, list[Layer]]:
    """The preset and all that it extends, the most general first."""
    chain: list[Layer] = []
    seen: set[str] = set()
    wanted: str | None = preset
    while wanted is not None:
        place = str(Path(wanted).resolve()) if _is_file(wanted) else wanted
        if place in seen:
            raise UserError(f"{chain[-1][0]} extends itself, by way of {', '.join(sorted(seen))}.")
        seen.add(place)
        origin, text = _read_preset(wanted)
        text.pop("about", None)
        wanted = text.pop("extends", None)
        if not isinstance(wanted, str | None):
            raise UserError(
                f"'extends' in {origin} must be one preset's name or one YAML file, not {shortened(wanted)}."
            )
        chain.append((origin, text))
        wanted = _extended_file(origin, wanted)
    stem = Path(preset).stem.encode("utf-8", "backslashreplace").decode()  # whose bytes may be no text
    return preset if preset in preset_names() else stem, chain[::-1]


def _extended_file(file: str, extended: str | None) -> str | None:
    """What a file extends: a preset that comes with reverie, or a file that is named as seen from there."""
    if extended is None or extended in preset_names():
        return extended
    there = Path(file).parent / extended
    return str(there) if _is_file(there) else extended


def _is_file(place: Path | str) -> bool:
    """A name that is too long for any file is none."""
    try:
        return Path(place).is_file()
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        return False


@explaining("read", "Change its permissions, or choose another preset.")
def _read_preset(preset: str) -> tuple[str, dict[str, Any]]:
    if preset in preset_names():
        raw, origin = _preset_folder().joinpath(f"{preset}.yaml").read_bytes(), f"preset {preset}"
    elif _is_file(preset):
        raw, origin = Path(preset).read_bytes(), preset
    elif Path(preset).suffix in (".yaml", ".yml"):
        raise UserError(f"There is no file {preset}.")
    else:
        hint = did_you_mean(preset, preset_names())
        raise UserError(f"There is no preset {preset!r}.{hint} `list_presets()` names them; a YAML file will do, too.")
    try:
        text = copy.deepcopy(_parsed(raw))  # the layers take it apart
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        why = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UserError(f"{origin} is not valid YAML{where}: {why}.") from None
    if not isinstance(text, dict):
        raise UserError(f"{origin} must hold sections such as `data:` and `train:` (docs/settings.md).")
    return origin, text


@functools.lru_cache(maxsize=64)
def _parsed(raw: bytes) -> Any:
    """Every configuration reads its preset twice, a table's reads the same ones many times."""
    return parse_yaml(raw)


def _blocks(text: Mapping[str, Any], kind: str, origin: str) -> Mapping[Any, Any]:
    """What a preset says for some recipes or methods only, by name."""
    blocks = text.get(kind, {})
    if not isinstance(blocks, Mapping):
        raise UserError(f"{kind!r} in {origin} must hold sections by name, such as `NAME: {{train: {{epochs: 5}}}}`.")
    return blocks


def _section(layer: Any, origin: str) -> dict[str, Any]:
    if not isinstance(layer, Mapping):
        raise UserError(f"{origin} must hold sections such as `train: {{epochs: 5}}`, not {shortened(layer)}.")
    return dict(layer)


def _check_blocks(
    recipes: Mapping[Any, Any], methods: Mapping[Any, Any], find: FindMethod, method: str, origin: str
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
        _refuse_unknown_keys(layer, options, str(name), f"methods.{name} of {origin}")


def _refuse_unknown_keys(layer: Any, options: type, method: str, origin: str) -> None:
    known = known_keys(options)
    for section, values in _section(layer, origin).items():
        if section not in NAMED_SECTIONS:
            hint = nearest_section(str(section), known, NAMED_SECTIONS)
            raise UserError(f"Unknown section {str(section)!r} in {origin}.{hint}")
        if section == "keep":
            continue
        if not isinstance(values, Mapping):
            raise UserError(f"{section!r} in {origin} is a section: set one of its keys, such as {section}.KEY=VALUE.")
        for key in values:
            if key not in known[section]:
                owner = f" The method {method!r} has no such option." if section == "method" else ""
                hint = nearest_in_sections(str(key), section, known)
                raise UserError(f"Unknown key '{section}.{key}' in {origin}.{owner}{hint}")


def known_keys(options: type) -> dict[str, list[str]]:
    """The keys of every section, and of `method`, whose options they are."""
    types = typing.get_type_hints(Config)
    sections = {name: types[name] for name in SECTIONS} | {"method": options}
    return {name: [field.name for field in dataclasses.fields(section)] for name, section in sections.items()}


def _merge(into: dict[str, Any], layer: Mapping[str, Any]) -> None:
    for key, value in layer.items():
        if isinstance(value, Mapping) and isinstance(into.get(key, {}), dict):
            _merge(into.setdefault(key, {}), value)
        else:
            into[key] = value
