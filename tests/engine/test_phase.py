"""What a phase says of itself: its length, its parameters, and its learning rate by epoch."""

import warnings
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, MultiStepLR, SequentialLR

from reverie.data.feed import NoData
from reverie.engine.phase import SGD, CosineSchedule, Phase, Schedule, StepSchedule, Warmup


def phase(**changes) -> Phase:
    feed = NoData(torch.device("cpu"), steps_per_epoch=10)
    settings = {"name": "learn", "feed": feed, "losses": dict, "optimizer": SGD(0.1), "moves": {"net": nn.Linear(2, 3)}}
    return Phase(**{**settings, **changes})


def test_a_learning_rate_falls_at_each_milestone():
    schedule = StepSchedule((2, 3, 3), 0.5)
    assert [schedule.factor(epoch) for epoch in range(5)] == [1, 1, 0.5, 0.125, 0.125]
    assert StepSchedule().factor(1000) == 1


def by_torch(epochs: int, make: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]) -> list[float]:
    """The learning rates of the epochs, from 1, by a scheduler of torch."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler, rates = make(optimizer), []
    with warnings.catch_warnings(
        action="ignore"
    ):  # SequentialLR gives torch's own schedulers an epoch, which they deprecate
        for _ in range(epochs):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
    return rates


def factors(schedule: Schedule, epochs: int) -> list[float]:
    return [schedule.factor(epoch) for epoch in range(epochs)]


@given(st.integers(1, 60), st.integers(0, 20), st.lists(st.integers(0, 60), max_size=4), st.floats(0.1, 2))
def test_schedules_are_those_of_torch(epochs, warmup, milestones, gamma):
    total = warmup + epochs

    def warmed(then):
        if not warmup:
            return then

        def make(optimizer):
            rising = LinearLR(optimizer, start_factor=1 / (warmup + 1), total_iters=warmup)
            return SequentialLR(optimizer, [rising, then(optimizer)], milestones=[warmup])

        return make

    for ours, theirs in (
        (CosineSchedule(epochs), lambda optimizer: CosineAnnealingLR(optimizer, epochs)),
        (StepSchedule(tuple(milestones), gamma), lambda optimizer: MultiStepLR(optimizer, milestones, gamma)),
    ):
        if isinstance(ours, StepSchedule) and 0 in milestones:
            continue  # torch leaves out what would happen before its first step
        schedule = Warmup(warmup, ours) if warmup else ours
        assert factors(schedule, total) == pytest.approx(by_torch(total, warmed(theirs)), rel=1e-6, abs=1e-9)


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
