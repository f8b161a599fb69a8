"""Checkpoints: what survives a crash, and that no file in their place does harm."""

import copy
import re
import shutil
from pathlib import Path

import pytest
import torch

from reverie.data.stream import Task
from reverie.engine.observer import Observer, Observers
from reverie.errors import Interrupted, UserError
from reverie.learner.checkpoint import Recorder, fits
from reverie.learner.events import EpochEnds, Event, PhaseBegins, PhaseEnds
from reverie.learner.folder import RunFolder
from reverie.learner.session import Session
from reverie.learner.task_learner import TaskLearner
from reverie.runs.configure import load_dataset, make_stream
from reverie.system.files import read_state, write_state
from tests.support.experiments import CPU, StopAt, tiny_config

CONFIG = tiny_config("abd")
STREAM = make_stream(CONFIG, load_dataset(CONFIG))[:2]


def learn(folder: Path, stop: Observer | None = None, every: float = 0.0) -> TaskLearner:
    """Two small tasks, from the last checkpoint in the folder."""
    recorder = Recorder(RunFolder(folder), every, CPU)
    recorder.tasks = len(STREAM)
    learner, checkpoint = TaskLearner.for_stream(CONFIG, STREAM), recorder.recover()
    recorder.sessions.append(Session(command=f"session {len(recorder.sessions) + 1}"))
    for task in [*STREAM][checkpoint.task if checkpoint else 0 :]:
        recorder.begin_task(task.index)
        observers = Observers(recorder, stop)
        observers.task_begins(task.index, 2)
        if checkpoint is not None and checkpoint.phase is None:
            learner.load_state_dict(checkpoint.state)
            checkpoint = None
        elif checkpoint is not None:
            learner.prepare(checkpoint.state, known=task.first_label)
        few = Task(task.index, task.names, task.first_label, task.images.select(torch.arange(0, task.size, 6)))
        learner.learn(few, observers, checkpoint)
        checkpoint, recorder.task = None, task.index + 1
        recorder.save_resting(None, learner.state_dict())
    return learner


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A learner that nobody stopped."""
    return learn(tmp_path_factory.mktemp("straight"), every=1e9)


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory):
    """The folder of one that was stopped after three steps of its second task's learning. Not to be changed."""
    folder = tmp_path_factory.mktemp("stopped")
    with pytest.raises(Interrupted):
        learn(folder, StopAt(2, "learn", 3))
    return folder


@pytest.fixture
def stopped(stopped_once, tmp_path):
    """A copy of it, which may be changed."""
    return RunFolder(shutil.copytree(stopped_once, tmp_path / "run"))


def recover(folder: RunFolder):
    return Recorder(folder, 30.0, CPU).recover()


def assert_same(ours: TaskLearner, theirs: TaskLearner) -> None:
    assert ours.ledger == theirs.ledger
    for name, value in theirs.classifier.state_dict().items():
        assert torch.equal(ours.classifier.state_dict()[name], value), name


# --- going on


def test_a_learner_goes_on_from_inside_a_phase_and_ends_the_same(stopped, straight):
    assert_same(learn(stopped.path), straight)
    begun = [event for event in stopped.events.read() if isinstance(event, PhaseBegins)]
    assert [(event.task, event.phase, event.done) for event in begun] == [
        (1, "learn", 0),
        (2, "dream", 0),
        (2, "learn", 0),
        (2, "learn", 3),
    ]


def test_a_checkpoint_says_how_far_it_is_and_what_was_told_until_then(stopped):
    recorder = Recorder(stopped, 30.0, CPU)
    checkpoint = recorder.recover()
    assert (checkpoint.task, checkpoint.phase) == (1, 1)
    assert checkpoint.snapshot["done"] == 3
    assert checkpoint.state.classes == list(STREAM.class_names)
    assert [session.command for session in recorder.sessions] == ["session 1"]
    assert [parts.keys() for parts in recorder.seconds] == [{"learn", "end"}, {"dream", "learn"}]
    assert [type(event) for event in stopped.events.read()[:3]] == [PhaseBegins, EpochEnds, EpochEnds]
    assert type(stopped.events.read()[3]) is PhaseEnds


def test_the_time_of_every_session_counts(stopped):
    recorder = Recorder(stopped, 30.0, CPU)
    recorder.recover()
    before = recorder.seconds[1]["learn"]
    recorder.begin_task(1)
    assert recorder.seconds[1]["learn"] == before > 0
    recorder.add_seconds("learn", 2.0)
    recorder.add_seconds("evaluate", 1.0)
    assert recorder.seconds[1]["learn"] == before + 2
    assert recorder.seconds[1]["evaluate"] == 1
    recorder.begin_task(2)
    assert recorder.seconds[2] == {}


def test_without_a_checkpoint_nothing_is_recovered_and_nothing_stays_told(tmp_path):
    folder = RunFolder(tmp_path)
    folder.events.write(Event(event="of a run that was killed before its first checkpoint"))
    assert recover(folder) is None
    assert folder.events.read() == []


def test_a_checkpoint_inside_another_phase_is_passed_over_and_later_events_are_taken_back(stopped):
    resting, moving = read_state(stopped.resting), read_state(stopped.moving)
    for place in ({"task": 0}, {"phase": 0}):
        write_state(stopped.moving, moving | {"seconds": moving["seconds"][: place.get("task", 1) + 1]} | place)
        checkpoint = recover(stopped)
        assert (checkpoint.task, checkpoint.phase, checkpoint.snapshot) == (1, 1, None)
        assert stopped.events.file.stat().st_size == resting["events"]


def test_the_first_wish_to_stop_ends_with_a_checkpoint_and_the_second_at_once(tmp_path):
    recorder, written = Recorder(RunFolder(tmp_path), 1e9, CPU), tmp_path / "checkpoint" / "moving.pt"
    recorder.begin_task(0)
    recorder.step_ends(1, dict)
    assert not written.exists()
    recorder.request_stop()
    with pytest.raises(Interrupted):
        recorder.step_ends(2, lambda: {"done": 2})
    assert read_state(written)["snapshot"] == {"done": 2}
    with pytest.raises(KeyboardInterrupt):
        recorder.request_stop()


def test_a_new_phase_takes_the_checkpoint_inside_the_old_one_away(stopped):
    recorder = Recorder(stopped, 30.0, CPU)
    recorder.recover()
    recorder.phase_ready(0, TaskLearner.for_stream(CONFIG, STREAM).state_dict)
    assert not stopped.moving.exists()
    assert read_state(stopped.resting)["phase"] == 0


# --- files that are not what they should be


def without(key):
    return lambda state: {name: value for name, value in state.items() if name != key}


def other(**values):
    return lambda state: state | values


def zeros(state):
    """The same in shape of its own: other people's tensors."""
    if isinstance(state, torch.Tensor):
        return torch.zeros(3)
    if isinstance(state, dict):
        return {name: zeros(value) for name, value in state.items()}
    return [zeros(value) for value in state] if isinstance(state, list) else state


class Harmful:
    def __reduce__(self):
        return (print, ("this runs",))


IN_BOTH = {
    "no mapping": (lambda state: 5, "it is cut off, or was changed"),
    "a list": (lambda state: [state], "it is cut off, or was changed"),
    "code": (lambda state: {"task": Harmful()}, "it holds what reverie does not write"),
    "nothing": (lambda state: {}, "'task' is missing"),
    "no seconds": (without("seconds"), "'seconds' is missing"),
    "negative task": (other(task=-1), "task must be a whole number from 0 to 1,000,000, not -1"),
    "task as text": (other(task="1"), "task must be a whole number from 0 to 1,000,000, not '1'"),
    "a task that cannot be": (other(task=100_000_000), "task must be a whole number from 0 to 1,000,000"),
    "another task": (other(task=7), "it has the seconds of 2 tasks, not of 8"),
    "phase as truth": (other(phase=True), "phase must be a whole number from 0 to 1,000,000"),
    "negative seconds": (other(seconds=[{}, {"learn": -1.0}]), "seconds"),
    "seconds of no task": (other(seconds=[]), "it has the seconds of 0 tasks, not of 2"),
    "sessions as text": (other(sessions="two"), "sessions"),
    "a session as a number": (other(sessions=[5]), "sessions.0"),
    "negative events": (other(events=-5), "events must be a whole number of at least 0, not -5"),
    "keys that are no text": (lambda state: state | {5: 6}, "it must be keys and values"),
    "parts that are none": (lambda state: {"parts": 5, "digest": ""}, ""),
    "parts of numbers": (lambda state: {"parts": [5], "digest": ""}, ""),
    "parts that are gone": (lambda state: {"parts": ["gone"], "digest": ""}, "No such file"),
    "parts elsewhere": (lambda state: {"parts": ["../events.jsonl"], "digest": ""}, "../events.jsonl"),
    "parts of something else": (lambda state: {"parts": ["resting.pt"], "digest": ""}, "do not belong together"),
}
RESTING = {
    "no learner": (other(learner=5), "learner must be keys and values, not 5"),
    "numbers for names": (lambda state: state | {"learner": state["learner"] | {"classes": [1]}}, "learner.classes"),
    "no network": (lambda state: state | {"learner": without("classifier")(state["learner"])}, "'learner.classifier'"),
}


@pytest.mark.parametrize(("change", "said"), (IN_BOTH | RESTING).values(), ids=IN_BOTH | RESTING)
def test_a_forged_checkpoint_between_phases_is_an_error_of_one_sentence(stopped, capsys, change, said):
    torch.save(change(read_state(stopped.resting)), stopped.resting)
    with pytest.raises(UserError) as refusal:
        recover(stopped)
    message = str(refusal.value)
    assert message.startswith(f"The checkpoint {stopped.resting} is damaged (")
    assert said in message
    assert message.endswith("). Delete its folder to start the run anew.")
    assert "\n" not in message
    assert "this runs" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "said"),
    (IN_BOTH | {"no snapshot": (other(snapshot=5), "snapshot must be keys and values, not 5")}).values(),
    ids=[*IN_BOTH, "no snapshot"],
)
def test_a_forged_checkpoint_inside_a_phase_costs_the_phase_only(stopped, caplog, capsys, change, said):
    torch.save(change(read_state(stopped.moving)), stopped.moving)
    checkpoint = recover(stopped)
    assert (checkpoint.task, checkpoint.phase, checkpoint.snapshot) == (1, 1, None)
    assert re.search(rf"moving\.pt is damaged \(.*{re.escape(said)}.*\): its phase begins anew", caplog.text)
    assert "this runs" not in capsys.readouterr().out


def other_optimizer(change):
    """The same snapshot with another state of its optimizer."""

    def changed(snapshot):
        optimizer = copy.deepcopy(snapshot["optimizer"])
        change(optimizer)
        return snapshot | {"optimizer": optimizer}

    return changed


OPTIMIZERS = {
    "no optimizer": lambda snapshot: snapshot | {"optimizer": {}},
    "an optimizer of text": lambda snapshot: snapshot | {"optimizer": "SGD"},
    "no groups": other_optimizer(lambda state: state.update(param_groups=[])),
    "two groups": other_optimizer(lambda state: state["param_groups"].append(state["param_groups"][0])),
    "a parameter less": other_optimizer(lambda state: state["param_groups"][0]["params"].pop()),
    "another momentum": other_optimizer(lambda state: state["param_groups"][0].update(momentum=0.1)),
    "no weight decay": other_optimizer(lambda state: state["param_groups"][0].pop("weight_decay")),
    "another shape": other_optimizer(lambda state: state["state"].update({0: {"momentum_buffer": torch.zeros(3)}})),
    "no tensor": other_optimizer(lambda state: state["state"].update({0: {"momentum_buffer": "x"}})),
    "Adam's": other_optimizer(lambda state: state["state"].update({0: {"step": 1, "exp_avg": torch.zeros(3)}})),
    "a parameter more": other_optimizer(lambda state: state["state"].update({999: state["state"][0]})),
}


@pytest.mark.parametrize(
    "change",
    [
        *OPTIMIZERS.values(),
        lambda snapshot: {},
        zeros,
        lambda snapshot: snapshot | {"moves": {}},
        lambda snapshot: snapshot | {"moves": {"classifier": 5}},
        lambda snapshot: snapshot | {"done": 10**6},
        lambda snapshot: snapshot | {"done": -1},
        lambda snapshot: snapshot | {"done": "3"},
    ],
    ids=[
        *OPTIMIZERS,
        "empty",
        "other people's",
        "of nothing",
        "of a number",
        "beyond the end",
        "before the beginning",
        "as text",
    ],
)
def test_a_snapshot_of_something_else_costs_the_phase_only(stopped, straight, caplog, change):
    moving = read_state(stopped.moving)
    write_state(stopped.moving, moving | {"snapshot": change(moving["snapshot"])})
    assert_same(learn(stopped.path), straight)
    assert "The checkpoint inside the phase learn is not of this phase, which begins anew." in caplog.text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (zeros, r"is not of this network and method \(Error\(s\) in loading state_dict for Classifier\)"),
        (other(classifier={}), r"is not of this network and method \(Error\(s\) in loading state_dict"),
        (other(method={"mine": 1}), "is not of this network and method"),
        (other(ledger=[{"task": "x"}]), "is not of this network and method .task must be a whole number"),
        (other(classes=["a"]), "The checkpoint knows 1 class, not 2"),
    ],
    ids=["other people's tensors", "no tensors", "another method", "another ledger", "fewer classes"],
)
def test_a_state_of_something_else_is_an_error_of_one_sentence(stopped, change, said):
    resting = read_state(stopped.resting)
    write_state(stopped.resting, resting | {"learner": change(resting["learner"])})
    with pytest.raises(UserError, match=said) as refusal:
        learn(stopped.path)
    assert str(refusal.value).endswith("Delete it to begin anew.")
    assert "\n" not in str(refusal.value)


def test_a_checkpoint_of_a_phase_that_the_method_does_not_have_is_no_task_learned(stopped):
    stopped.moving.unlink()
    write_state(stopped.resting, read_state(stopped.resting) | {"phase": 5})
    with pytest.raises(UserError, match=r"The checkpoint is of phase 6; there are 2\. Delete it to begin anew\."):
        learn(stopped.path)


def test_a_snapshot_fits_the_phase_it_was_taken_of_and_no_other(stopped):
    snapshot, seen = read_state(stopped.moving)["snapshot"], []

    class Phases(Observer):
        def phase_begins(self, phase, done):
            seen.append((phase.name, fits(snapshot, phase)))

    learn(stopped.path.parent / "again", Phases(), every=1e9)
    assert seen == [("learn", False), ("dream", False), ("learn", True)]
