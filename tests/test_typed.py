"""Plain values become instances of dataclasses, each checked against its type."""

import pytest

from reverie.errors import UserError
from reverie.experiment import configure


def test_a_choice_is_named_by_its_values():
    with pytest.raises(UserError, match="must be one of fp32, tf32, bf16 or null, not 'fp16'"):
        configure("digits-5", "abd", settings=["engine.precision=fp16"])
