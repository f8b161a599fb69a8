"""Settings as people give them, `{"train.lr": 0.05}` or `["train.lr=0.05"]`: keys, values, and what may be meant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from reverie.config.yaml_files import TooLarge, parse_yaml
from reverie.errors import UserError
from reverie.system.records import nearest_key
from reverie.text import did_you_mean, shortened

Settings = Mapping[str, Any] | Sequence[str]
"""By key, as in `{"train.lr": 0.05}`; or as the command line has them, `["train.lr=0.05"]`."""


def check_settings(settings: Settings) -> Mapping[str, Any] | tuple[str, ...]:
    """Found to be keys and values, or texts; one text alone will do. Raises UserError for anything else."""
    if isinstance(settings, Mapping):
        if strange := [key for key in settings if not isinstance(key, str)]:
            raise UserError(f"The key of a setting is text such as 'train.lr', not {shortened(strange[0])}.")
        return settings
    texts = (settings,) if isinstance(settings, str) else settings
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise UserError(
            "`settings` are keys and values such as {'train.lr': 0.05}, or texts such as ['train.lr=0.05'], "
            f"not {shortened(settings)}."
        )
    return tuple(texts)


def settings_by_key(settings: Settings) -> dict[str, Any]:
    """The values by key, however they are given."""
    checked = check_settings(settings)
    if isinstance(checked, Mapping):
        return {key: plain_value(key, value) for key, value in checked.items()}
    return dict(split_setting(text) for text in checked)


def plain_value(key: str, value: Any) -> Any:
    """As YAML has it: tuples are lists, numbers of numpy and torch are numbers. Objects are refused."""
    try:
        return _plain(value)
    except (TypeError, ValueError, RecursionError):
        raise UserError(
            f"{key} cannot be {shortened(value)}: a setting is a number, text, true, false, null or a list."
        ) from None


def _plain(value: Any) -> Any:
    if hasattr(value, "dtype") and hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, int):
        str(value)  # raises ValueError where it has too many digits to be written
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise TypeError


def parse_setting(text: str) -> dict[str, Any]:
    """`train.epochs=5` as {"train": {"epochs": 5}}."""
    key, parsed = split_setting(text)
    for part in reversed(key.split(".")):
        parsed = {part: parsed}
    found: dict[str, Any] = parsed
    return found


def split_setting(text: str) -> tuple[str, Any]:
    """`train.epochs=5` as ("train.epochs", 5)."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UserError(f"A setting is section.key=value, for example train.epochs=5, not {shortened(text)}.")
    return key.strip(), setting_value(value)


def setting_value(text: str) -> Any:
    """As in YAML; what is not YAML is text."""
    try:
        return parse_yaml(text)
    except TooLarge as error:
        raise UserError(f"A setting's value cannot be read: {error}.") from None
    except (yaml.YAMLError, ValueError):
        return text


# --- what may be meant by a key that there is not


def nearest_section(section: str, known: Mapping[str, Sequence[str]], names: Iterable[str]) -> str:
    """The section that has a key of this name, or one of the `names` that is near."""
    leaf = [f"{name}.{section}" for name, keys in known.items() if section in keys]
    return f" Did you mean {leaf[0]!r}?" if leaf else did_you_mean(section, names)


def nearest_in_sections(key: str, section: str, known: Mapping[str, Sequence[str]]) -> str:
    """A near key of the section, or the same key of another one, or all that the section has."""
    near = did_you_mean(key, known[section], cutoff=0.7)
    elsewhere = [name for name, keys in known.items() if key in keys]
    if not near and elsewhere:
        return f" Did you mean '{elsewhere[0]}.{key}'?"
    return nearest_key(key, known[section], f"{section}.")
