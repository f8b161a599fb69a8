"""What a phase says of itself: its length, its parameters, and its learning rate by epoch."""

import pytest
import torch
from torch import nn

from reverie.data.feed import NoData
from reverie.engine.phase import SGD, Phase, StepSchedule


def phase(**changes) -> Phase:
    feed = NoData(torch.device("cpu"), steps_per_epoch=10)
    settings = {"name": "learn", "feed": feed, "losses": dict, "optimizer": SGD(0.1), "moves": {"net": nn.Linear(2, 3)}}
    return Phase(**{**settings, **changes})


def test_a_learning_rate_falls_at_each_milestone():
    schedule = StepSchedule((2, 3, 3), 0.5)
    assert [schedule.factor(epoch) for epoch in range(5)] == [1, 1, 0.5, 0.125, 0.125]
    assert StepSchedule().factor(1000) == 1


def test_a_phase_is_as_long_as_its_epochs_or_its_steps():
    assert phase(epochs=3).total_steps == 30
    assert phase(steps=7).total_steps == 7


@pytest.mark.parametrize("length", [{}, {"epochs": 3, "steps": 4}])
def test_a_phase_must_have_one_length(length):
    with pytest.raises(ValueError, match="'learn' must have a length, in epochs or in steps"):
        _ = phase(**length).total_steps


def test_every_parameter_that_moves_is_trained_unless_some_are_named():
    one, other = nn.Linear(2, 3), nn.Linear(3, 1)
    both = phase(moves={"one": one, "other": other})
    assert [*map(id, both.trainable())] == [*map(id, (*one.parameters(), *other.parameters()))]
    assert phase(moves={"one": one}, parameters=[one.bias]).trainable() == [one.bias]
