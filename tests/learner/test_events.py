"""Events: written as they happen, typed when they are read, and no file of theirs keeps anybody waiting."""

import json

import pytest

from reverie.errors import UserError
from reverie.learner.events import (
    KINDS,
    MOST_LINE,
    EpochEnds,
    Event,
    EventLog,
    PhaseBegins,
    PhaseEnds,
    RunBegins,
    RunEnds,
    StageBegins,
    StageEnds,
    TaskEnds,
    UpperBoundFound,
    parse_event,
)
from reverie.system.provenance import Environment

EVENTS = [
    RunBegins(event="run begins", command="reverie run", started="2026-01-01", environment=Environment(torch="2.6")),
    PhaseBegins(task=1, tasks=3, phase="learn", steps=34),
    EpochEnds(task=1, tasks=3, phase="learn", epoch=1, lr=0.1, losses={"cross_entropy": 0.5}),
    PhaseEnds(task=1, phase="learn", summary={"setup_seconds": 0.0}),
    StageBegins(task=1, tasks=3, stage="fit head"),
    StageEnds(task=1, stage="fit head", figures={"temperature": 0.5}),
    TaskEnds(task=1, accuracy=0.5, seconds={"learn": 2.0}, peak_memory_bytes=10**9),
    RunBegins(event="goes on"),
    UpperBoundFound(task=2, upper_bound="abc"),
    RunEnds(metrics={"omega": None}),
]


@pytest.fixture
def log(tmp_path):
    return EventLog(tmp_path / "events.jsonl")


def line(**values):
    return json.dumps(values).encode() + b"\n"


def test_what_was_written_is_read_back_typed_with_the_time_of_day(log):
    for event in EVENTS:
        log.write(event)
    found = log.read()
    assert [type(event) for event in found] == [type(event) for event in EVENTS]
    assert [event.replace(at=None) for event in found] == EVENTS
    assert all(event.at > 1.7e9 for event in found)
    assert {event.event for event in EVENTS} == {*KINDS}


def test_an_event_is_a_line_of_json_with_what_is_none_left_out(log):
    log.write(PhaseBegins(task=1, phase="learn", steps=34))
    values = json.loads(log.file.read_text())
    assert list(values) == ["event", "at", "task", "phase", "done", "steps"]
    assert log.file.read_bytes().endswith(b"\n")


def test_names_in_any_letters_are_written_and_read(log):
    odd = "蝶 \udcff \u2028 \x85"
    log.write(EpochEnds(task=1, phase=odd, epoch=1, losses={odd: 1.0}))
    log.write(RunEnds())
    read = log.read()
    assert [event.event for event in read] == ["epoch", "run ends"]
    assert read[0].phase.startswith("蝶 ")


def test_there_are_no_events_where_there_is_no_file(log):
    assert log.read() == []
    assert log.sync() == 0
    log.cut(5)
    assert not log.file.exists()


def test_an_event_of_an_unknown_kind_is_kept_with_all_it_says(log):
    log.file.write_bytes(line(event="moon rises", at=5.0, phase=["full"], task=0))
    (event,) = log.read()
    assert type(event) is Event
    assert event.as_dict() == {"event": "moon rises", "at": 5.0, "phase": ["full"], "task": 0}


def test_what_a_later_version_adds_to_a_known_kind_is_kept(log):
    log.file.write_bytes(line(event="task ends", task=1, accuracy=0.5, joules=7))
    assert log.read()[0].as_dict()["joules"] == 7


BROKEN = {
    "no JSON": b'{"event": "epoch"\n',
    "no object": b"[1, 2]\n",
    "no text": b"\xff\xfe\n",
    "no kind": line(task=1),
    "a kind that is no text": line(event=5),
    "a missing value": line(event="epoch", task=1),
    "a value of another type": line(event="task ends", task="1", accuracy=0.5),
    "a task that cannot be": line(event="task ends", task=100_000_000, accuracy=0.5),
    "task 0": line(event="task ends", task=0, accuracy=0.5),
    "a negative step": line(event="phase begins", task=1, phase="learn", done=-1, steps=5),
    "no number": b'{"event": "task ends", "task": 1, "accuracy": NaN}\n',
    "deep": b'{"event": ' + b"[" * 200_000 + b"]" * 200_000 + b"}\n",
    "deep keys": b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"\n",
    "a long number": b'{"event": "epoch", "task": ' + b"1" * 10_000 + b"}\n",
    "a long line": line(event="x" * (MOST_LINE + 1)),
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_a_damaged_line_is_counted_and_the_others_are_read(log, broken):
    log.write(EVENTS[1])
    with log.file.open("ab") as file:
        file.write(broken)
    log.write(EVENTS[2])
    found: list[str] = []
    assert [event.event for event in log.read(broken=found)] == ["phase begins", "epoch"]
    assert len(found) == 1
    with pytest.raises(UserError) as refusal:
        log.read()
    assert str(refusal.value).startswith(f"{log.file} is damaged: ")
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 400


def test_a_line_that_is_still_being_written_is_left_out(log):
    log.write(EVENTS[1])
    with log.file.open("ab") as file:
        file.write(b'{"event": "epo')
    found: list[str] = []
    assert len(log.read(broken=found)) == len(log.read()) == 1
    assert found == []


def test_the_end_of_a_long_file_is_read_without_the_half_line_it_begins_with(log):
    for event in EVENTS * 50:
        log.write(event)
    tail = log.read(last=300)
    assert 0 < len(tail) < 6
    assert tail == log.read()[-len(tail) :]
    assert log.read(last=10**9) == log.read()


def test_what_was_written_after_a_checkpoint_is_taken_back(log):
    log.write(EVENTS[0])
    size = log.sync()
    assert size == log.file.stat().st_size
    log.write(EVENTS[1])
    log.cut(size)
    assert len(log.read()) == 1
    log.cut(size - 3)  # the power failed before the last line was on the disk
    assert log.file.read_bytes() == b""


def test_a_whole_file_is_not_cut_where_the_checkpoint_knows_of_more(log):
    log.write(EVENTS[0])
    log.cut(10**12)
    assert len(log.read()) == 1


def test_one_line_is_parsed_as_the_file_is():
    assert parse_event(line(event="found", task=2, upper_bound="abc")) == EVENTS[8]
    with pytest.raises(UserError, match=r"task must be a whole number from 1 to 1,000,000, not 100000000"):
        parse_event(line(event="found", task=100_000_000, upper_bound="abc"))
