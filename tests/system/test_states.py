"""Where two states differ is found, and said in a few words."""

import pytest
import torch

from reverie.system.states import first_difference

STATE = {"a": torch.arange(3.0), "b": {"c": [1, "x", torch.zeros(2)], "d": None}}


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({**STATE, "a": torch.tensor([0.0, 1.0, 2.0])}, ""),
        ({**STATE, "a": torch.tensor([0.0, 1.0, 2.0000002])}, "a is another tensor"),
        ({**STATE, "a": STATE["a"].double()}, "a is another tensor"),
        ({"a": STATE["a"]}, "b is gone"),
        ({**STATE, "e": 1}, "e is new"),
        ({**STATE, "b": {"c": [1, "y", torch.zeros(2)], "d": None}}, "b.c.1 is another value"),
        ({**STATE, "b": {"c": [1, "x"], "d": None}}, "b.c has 2 parts, and had 3"),
        ({**STATE, "b": {"c": [1, "x", torch.zeros(2)], "d": 0}}, "b.d is another value"),
        ({**STATE, "b": 7}, "b is another value"),
    ],
)
def test_the_first_difference_is_named(other, said):
    assert first_difference(STATE, other) == said


def test_what_is_no_number_equals_itself():
    broken = {"a": torch.tensor([float("nan")])}
    assert first_difference(broken, {"a": torch.tensor([float("nan")])}) == ""
    for other in (0.0, torch.inf):
        assert first_difference(broken, {"a": torch.tensor([other])}) == "a is another tensor"
    assert first_difference({"a": torch.tensor(0.0)}, {"a": torch.tensor(-0.0)}) == "a is another tensor"
