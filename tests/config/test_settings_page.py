"""docs/settings.md has every key with its default, and no other; what it says of files and exit codes is so."""

import dataclasses
import re
from pathlib import Path

import pytest

import reverie
from reverie.config.schema import SECTIONS, Config
from reverie.config.yaml_files import parse_yaml
from reverie.methods import find_method, method_names
from reverie.runs.configure import configure
from reverie.runs.settings import renewed_settings

PAGE = (Path(reverie.__file__).parents[1] / "docs" / "settings.md").read_text("utf-8")
ROWS = re.findall(r"^\| (?:`([\w-]+)` \| )?`([\w.]+)` \| `([^`]*)` \|", PAGE, re.MULTILINE)


def plain(values):
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def test_every_key_stands_there_with_its_default():
    usual = Config("any", "any")
    ours = {f"{section}.{name}": value for section in SECTIONS for name, value in vars(getattr(usual, section)).items()}
    told = {key: parse_yaml(text) for method, key, text in ROWS if not method}
    assert told == plain(ours | {"keep": usual.keep})


def test_every_option_of_every_method_stands_there_with_its_default():
    ours = {
        (name, f"method.{option.name}"): option.default
        for name in method_names()
        for option in dataclasses.fields(find_method(name).Options)
    }
    assert {(method, key): parse_yaml(text) for method, key, text in ROWS if method} == ours


def test_its_tables_are_those_that_are_made_of_the_configuration():
    """`reverie.runs.settings.renew_settings_page` makes them anew."""
    assert renewed_settings(PAGE) == PAGE


@pytest.mark.parametrize(
    ("method", "recipe", "key", "value"),
    [
        ("abd", "paper", "train.epochs", 100),
        ("abd", "released", "dream.steps", 2000),
        ("lwf", "paper", "method.temperature", 4),
        ("lwf-coreset", "paper", "method.temperature", 2),
    ],
)
def test_the_file_that_it_shows_does_what_it_says(tmp_path, method, recipe, key, value):
    shown = re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "mine.yaml").write_text(shown[1], "utf-8")
    made = configure(str(tmp_path / "mine.yaml"), method, recipe=recipe)
    assert made.flat_identity()[key] == value
