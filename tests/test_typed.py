"""Plain values become instances of dataclasses, each checked against its type."""

from dataclasses import dataclass

import pytest

from reverie.errors import UserError
from reverie.experiment import configure
from reverie.methods import find_method
from reverie.typed import build


def test_a_choice_is_named_by_its_values():
    with pytest.raises(UserError, match="must be one of fp32, tf32, bf16 or null, not 'fp16'"):
        configure("digits-5", "abd", settings=["engine.precision=fp16"])


def test_a_methods_own_options_are_typed():
    @dataclass(frozen=True)
    class Options:
        sizes: tuple[int, ...] = (1, 2)
        name: str | None = None

    def find(name):
        return SimpleNamespace(Options=Options, released={}, usual={}) if name == "x" else find_method(name)

    made = layering.load("digits-5", method="x", find=find, settings=["method.sizes=[3]"])
    assert made.options == {"sizes": [3], "name": None}
    assert build(Options, made.options).sizes == (3,)
    assert {field.name for field in fields(Options)} == set(made.options)
