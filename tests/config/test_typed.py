"""Plain values become instances of dataclasses, each checked against its type."""

from dataclasses import dataclass

import pytest

from reverie.config.typed import build
from reverie.errors import UserError
from reverie.runs.configure import configure


def test_a_choice_is_named_by_its_values():
    with pytest.raises(UserError, match="must be one of fp32, tf32, bf16 or null, not 'fp16'"):
        configure("digits-5", "abd", settings=["engine.precision=fp16"])


@dataclass
class Lists:
    many: tuple[int, ...] = ()
    pair: tuple[int, str] = (1, "a")


def test_each_item_of_a_list_has_its_type():
    assert build(Lists, {"many": [1, 2, 3], "pair": [2, "b"]}) == Lists((1, 2, 3), (2, "b"))
    for wrong in ({"many": [1, "b"]}, {"pair": ["b", 2]}):
        with pytest.raises(UserError, match="must be a whole number, not 'b'"):
            build(Lists, wrong)
    with pytest.raises(UserError, match="pair must be a list of 2, not"):
        build(Lists, {"pair": [1, "b", 3]})
