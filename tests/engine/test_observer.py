"""One observer for everything, and several as one: no call is forgotten, however many are added."""

import inspect

import pytest

import reverie
from reverie.engine.observer import Observer, Observers
from reverie.errors import UserError

CALLS = [name for name, _ in inspect.getmembers(Observer, inspect.isfunction) if not name.startswith("_")]


class Logging(Observer):
    """Writes down every call that there is."""

    def __init__(self, log: list, name: str) -> None:
        for call in CALLS:
            setattr(self, call, lambda *args, call=call: log.append((name, call, args)))


def arguments(call: str) -> list[object]:
    """One of its own for each, so that two that were swapped would show."""
    return [object() for _ in list(inspect.signature(getattr(Observer, call)).parameters)[1:]]


def test_there_are_calls_for_a_phase_a_run_a_learn_and_a_table():
    assert {"reading", "decided", "task_begins", "phase_ready", "step_ends", "table_waits", "run_fails"} <= {*CALLS}
    assert len(CALLS) >= 16


@pytest.mark.parametrize("call", CALLS)
def test_a_call_to_several_is_a_call_to_each_in_order_with_the_same_arguments(call):
    log: list = []
    several = Observers(Logging(log, "first"), None, Logging(log, "second"))
    given = arguments(call)
    getattr(several, call)(*given)
    assert log == [("first", call, tuple(given)), ("second", call, tuple(given))]


@pytest.mark.parametrize("call", CALLS)
def test_a_call_to_several_takes_what_a_call_to_one_takes(call):
    assert inspect.signature(getattr(Observers, call)) == inspect.signature(getattr(Observer, call))


@pytest.mark.parametrize("call", CALLS)
def test_an_observer_that_overrides_nothing_sees_everything_and_does_nothing(call):
    assert getattr(Observer(), call)(*arguments(call)) is None
    assert getattr(Observers(), call)(*arguments(call)) is None


class Knowing(Observer):
    def __init__(self, snapshot):
        self.snapshot = snapshot

    def snapshot_for(self, number, phase):
        return self.snapshot


def test_the_snapshot_is_that_of_the_first_who_knows_the_phase():
    first, second = {"done": 1}, {"done": 2}
    assert Observers(Observer(), Knowing(first), Knowing(second)).snapshot_for(0, None) is first
    assert Observers(Knowing(None), Knowing(second)).snapshot_for(0, None) is second
    assert Observers(Knowing({}), Knowing(second)).snapshot_for(0, None) == {}  # which is not none


def test_what_one_of_them_raises_ends_the_work_and_the_next_is_not_asked():
    class Stopping(Observer):
        def step_ends(self, done, snapshot):
            raise KeyboardInterrupt

    log: list = []
    with pytest.raises(KeyboardInterrupt):
        Observers(Stopping(), Logging(log, "next")).step_ends(1, dict)
    assert log == []


def test_both_are_public():
    assert (reverie.Observer, reverie.Observers) == (Observer, Observers)


def test_a_class_in_the_place_of_an_observer_is_a_mistake_at_once():
    with pytest.raises(UserError, match=r"^`observer` is a class; make one of it: Knowing\(\)\.$"):
        Observers(Knowing)
