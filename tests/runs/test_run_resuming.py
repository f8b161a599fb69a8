"""A run that was stopped, killed or moved goes on, and ends with the very same figures to the last bit."""

import json
import shutil

import pytest
import torch

from reverie.engine.observer import Observer, Observers
from reverie.errors import Interrupted, UserError
from reverie.runs.configure import configure
from reverie.runs.run import _Run, run
from reverie.system.files import SCRATCH, read_state, write_state
from tests.support.experiments import (
    CoresetWatch,
    CtrlC,
    StopAt,
    StopBeforeTask,
    assert_same_run,
    beginnings_of,
    figures_of,
    method_config,
    quick_run,
    tiny_config,
)

PHOTOS = ["data.source=folder", "stream.split=3", "data.size=8", "train.epochs=2", "dream.steps=4", "dream.width=8"]


@pytest.mark.parametrize(
    ("method", "recipe", "stops"),
    [
        (
            "abd",
            "paper",
            [
                CtrlC(1, "learn", 3),
                CtrlC(2, "dream", 4),
                CtrlC(2, "dream", 6),  # its last step
                StopAt(2, "learn", 8),
                CtrlC(2, "learn", 1),
                CtrlC(2, "learn", 5),
                CtrlC(3, "dream", 5),
                CtrlC(3, "learn", 6),  # the last of its first epoch
                CtrlC(3, "learn", 10),
            ],
        ),
        ("base", "released", [CtrlC(1, "learn", 3), CtrlC(2, "learn", 5)]),
        ("lwf", "paper", [CtrlC(2, "learn", 11)]),
        ("joint", "paper", [CtrlC(2, "learn", 5)]),
        ("deepinversion", "released", [CtrlC(3, "dream", 3)]),
        (
            "dgr",
            "paper",
            [CtrlC(1, "vae", 3), StopAt(2, "vae", 8), CtrlC(3, "learn", 7), CtrlC(3, "vae", 1), CtrlC(3, "vae", 8)],
        ),
        (
            "r-dfcil",
            "paper",
            [StopAt(2, "refine", 4), CtrlC(3, "dream", 3), CtrlC(3, "represent", 5), CtrlC(3, "refine", 1)],
        ),
        ("r-dfcil", "released", [CtrlC(3, "represent", 6), CtrlC(3, "refine", 4)]),
        ("lucid", "paper", [CtrlC(2, "represent", 3), StopAt(3, "represent", 2), CtrlC(3, "refine", 1)]),
        ("lwf-coreset", "paper", [CtrlC(3, "learn", 4)]),
        ("e2e", "paper", [CtrlC(3, "learn", 4), StopAt(3, "balance", 1), CtrlC(3, "balance", 1)]),
        ("bic", "paper", [CtrlC(3, "learn", 8), CtrlC(3, "correct", 1)]),
    ],
)
def test_a_run_stopped_anywhere_and_again_ends_as_if_it_had_not_been(whole, tmp_path, method, recipe, stops):
    """Inside phases, with a checkpoint of that very step or with none; and between the last task and the result."""
    config, folder, watch = method_config(method, recipe), tmp_path / "run", CoresetWatch()
    for stop in stops:
        with pytest.raises(Interrupted):
            quick_run(config, folder, observer=Observers(watch, stop), checkpoint_seconds=1e9)
    with pytest.MonkeyPatch.context() as patched, pytest.raises(Interrupted):
        patched.setattr(_Run, "_finish", _interrupt)
        quick_run(config, folder, observer=watch)
    again, straight = quick_run(config, folder), whole(config)
    assert figures_of(again) == figures_of(straight.result)
    assert_same_run(straight.folder, folder)
    assert len(again.sessions) == len(stops) + 2
    gone_on = [place for place in beginnings_of(folder) if place[2]]
    assert gone_on == [(*stop.where, stop.step) for stop in stops if isinstance(stop, CtrlC)]
    assert_same_coresets(straight.coresets, watch.kept)


def test_a_run_that_draws_new_images_towards_old_classes_draws_the_same_again(whole, tmp_path):
    config = method_config("lucid").with_settings(
        ["dream.source=images", "train.rotations=one", "method.stillness=0.1"]
    )
    folder, stops = tmp_path / "run", [CtrlC(2, "represent", 3), StopAt(3, "represent", 2), CtrlC(3, "refine", 1)]
    for stop in stops:
        with pytest.raises(Interrupted):
            quick_run(config, folder, observer=stop, checkpoint_seconds=1e9)
    again, straight = quick_run(config, folder), whole(config)
    assert figures_of(again) == figures_of(straight.result)
    assert_same_run(straight.folder, folder)
    assert not [*folder.rglob("dreams.png")]  # they would show new images


ALL_AT_ONCE = {
    "train.optimizer": "adamw",
    "train.schedule": "cosine",
    "train.warmup": 1,
    "train.lr": 0.01,
    "train.clip": 1.0,
    "train.label_smoothing": 0.1,
    "train.average": 0.9,
    "train.mixup": 0.4,
    "train.rotations": "all",
    "train.epochs": 3,
    "augment.cutout": 2,
    "augment.trivial": True,
}


@pytest.mark.parametrize(
    ("method", "stops"),
    [
        ("base", [CtrlC(1, "learn", 3), CtrlC(2, "learn", 18)]),  # the last step: what is averaged is not settled yet
        ("abd", [CtrlC(2, "learn", 7)]),
        ("r-dfcil", [CtrlC(2, "represent", 5), CtrlC(3, "refine", 4)]),
        ("lwf-coreset", [CtrlC(2, "learn", 5)]),
        ("dgr", [CtrlC(2, "learn", 5), CtrlC(2, "vae", 4)]),
    ],
)
def test_so_does_one_with_all_that_the_settings_add_to_a_phase(tmp_path, method, stops):
    config = method_config(method).with_settings(ALL_AT_ONCE)
    for stop in stops:
        with pytest.raises(Interrupted):
            quick_run(config, tmp_path / "run", observer=stop, checkpoint_seconds=1e9)
    again, straight = quick_run(config, tmp_path / "run"), quick_run(config, tmp_path / "straight")
    assert figures_of(again) == figures_of(straight)
    assert_same_run(tmp_path / "straight", tmp_path / "run")
    gone_on = [place for place in beginnings_of(tmp_path / "run") if place[2]]
    assert gone_on == [(*stop.where, stop.step) for stop in stops]


def _interrupt(*args):
    raise Interrupted


def assert_same_coresets(ours, theirs):
    assert ours.keys() == theirs.keys()
    for place, kept in ours.items():
        assert (kept is None) == (theirs[place] is None)
        if kept is not None:
            assert torch.equal(kept["pixels"], theirs[place]["pixels"])
            assert torch.equal(kept["labels"], theirs[place]["labels"])


def test_a_coreset_is_seen_where_one_is_kept(whole):
    """So that the comparison above compares something."""
    assert all(len(kept["pixels"]) == 40 for (task, _), kept in whole(method_config("bic")).coresets.items() if task)
    assert not any(whole(method_config("abd")).coresets.values())


def test_a_run_goes_on_wherever_its_folder_is_taken_between_tasks_and_inside_one(whole, tmp_path):
    """With a generator that is carried from task to task, as the released recipe has it."""
    config, here = method_config("abd", "released"), tmp_path / "begun" / "run"
    for number, stop in enumerate((CtrlC(2, "dream", 6), StopBeforeTask(2), CtrlC(3, "learn", 7))):
        with pytest.raises(Interrupted):
            quick_run(config, here, observer=stop)
        there = shutil.copytree(here, tmp_path / str(number) / "run")
        shutil.rmtree(here)
        here = there
    quick_run(config, here)
    assert_same_run(whole(config).folder, here)
    assert not (here / "checkpoint").exists()


def test_a_network_without_batchnorm_goes_on_inside_any_phase(whole, tmp_path):
    """Its teacher is copied before the statistics it has noted are read in."""
    config = tiny_config("abd", "stream.take=2", "net.name=timm/test_vit", "data.size=16", "train.epochs=1")
    for phase in ("dream", "learn"):
        with pytest.raises(Interrupted):
            quick_run(config, tmp_path / "run", observer=CtrlC(2, phase, 3))
    assert figures_of(quick_run(config, tmp_path / "run")) == figures_of(whole(config).result)
    assert_same_run(whole(config).folder, tmp_path / "run")


@pytest.mark.parametrize("left", [-40, 0])
def test_events_that_went_with_a_power_cut_keep_no_run_from_its_end(whole, stopped, left):
    """Half a line is left of the last that the checkpoint knows of, or nothing at all."""
    config, events = method_config("abd"), stopped / "events.jsonl"
    events.write_bytes(events.read_bytes()[:left])
    assert figures_of(quick_run(config, stopped)) == figures_of(whole(config).result)
    assert all(json.loads(line) for line in events.read_text().splitlines())


def test_events_that_were_damaged_keep_no_run_from_its_end(whole, stopped):
    """Of a task that the run has not, and a summary that says nothing; in place of one that went."""
    config, events, checkpoint = method_config("abd"), stopped / "events.jsonl", stopped / "checkpoint"
    odd = [
        {"event": "phase begins", "task": 99, "phase": "learn", "steps": 5},
        {"event": "phase ends", "task": 99, "phase": "learn", "summary": {}},
        *(
            {"event": "phase ends", "task": 1, "phase": "learn", "summary": {"setup_seconds": x}}
            for x in ("x", [1], -1)
        ),
    ]
    before = "".join(json.dumps(event) + "\n" for event in odd).encode()
    events.write_bytes(events.read_bytes() + before)
    for file in checkpoint.iterdir():
        state = read_state(file)
        write_state(file, state | {"events": events.stat().st_size})
    result = quick_run(config, stopped)
    assert figures_of(result) == figures_of(whole(config).result)
    assert len(result.phases) == 3
    assert result.phases[0]["learn"].setup_seconds >= 0


@pytest.mark.parametrize("removed", [0, -1])
@pytest.mark.parametrize("recipe", ["paper", "released"])
@pytest.mark.parametrize("stop", [StopBeforeTask(2), CtrlC(2, "learn", 3)], ids=["between", "inside"])
def test_a_checkpoint_without_one_of_its_classes_is_refused_in_a_sentence(tmp_path, stop, recipe, removed):
    config = method_config("base", recipe=recipe)
    with pytest.raises(Interrupted):
        quick_run(config, tmp_path / "run", observer=stop)
    file = tmp_path / "run" / "checkpoint" / "resting.pt"
    state = read_state(file)
    del state["learner"]["classes"][removed]
    write_state(file, state)
    with pytest.raises(
        UserError, match=r"resting\.pt is damaged \(its classes are not those that were learned\)\. Delete"
    ):
        quick_run(config, tmp_path / "run")


def test_what_was_trained_after_the_last_checkpoint_is_told_once(stopped, whole):
    with (stopped / "events.jsonl").open("a") as events:
        events.write('{"event": "epoch", "task": 3, "phase": "learn", "epoch": 2, "losses": {}}\n{"event": "ep')
    quick_run(method_config("abd"), stopped)
    assert_same_run(whole(method_config("abd")).folder, stopped)


class Told(Observer):
    def __init__(self):
        self.lines = []

    def decided(self, line):
        self.lines.append(line)


def test_every_session_that_left_something_is_told(stopped):
    with pytest.raises(Interrupted):
        quick_run(method_config("abd"), stopped, observer=CtrlC(3, "learn", 9), command="again")
    told = Told()
    result = quick_run(method_config("abd"), stopped, command="finished", observer=told)
    assert told.lines == ["goes on from the last checkpoint: task 3 of 3, phase 2, step 9"]
    assert [session.command for session in result.sessions] == ["stopped", "again", "finished"]


@pytest.mark.parametrize("harm", ["dust", "another task", "another phase"])
def test_a_checkpoint_inside_a_phase_that_cannot_be_used_costs_its_phase_only(whole, stopped, caplog, harm):
    moving = stopped / "checkpoint" / "moving.pt"
    if harm == "dust":
        moving.write_bytes(b"dust")
    else:
        place = {"task": 1} if harm == "another task" else {"phase": 0}
        write_state(moving, read_state(moving) | place)
    quick_run(method_config("abd"), stopped)
    assert ("moving.pt is damaged (it is cut off, or was changed)" in caplog.text) == (harm == "dust")
    assert [place for place in beginnings_of(stopped) if place[2]] == []
    assert_same_run(whole(method_config("abd")).folder, stopped)


def test_a_damaged_checkpoint_between_phases_is_an_error_that_says_what_to_do(stopped):
    (stopped / "checkpoint" / "resting.pt").write_bytes(b"dust")
    with pytest.raises(UserError, match=r"resting.pt is damaged \(it is cut off, or was changed\)\. Delete its folder"):
        quick_run(method_config("abd"), stopped)


def test_what_a_killed_process_was_writing_is_cleared_away(stopped, tmp_path):
    (stopped / "checkpoint" / f"{SCRATCH}moving.pt-abc").write_bytes(b"half of it")
    (stopped / "tasks" / f"{SCRATCH}model-xyz" / f"{SCRATCH}deeper").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "thesis.txt").write_text("years of work")
    (stopped / f"{SCRATCH}link").symlink_to(tmp_path / "elsewhere")
    (stopped / ".git").mkdir()
    quick_run(method_config("abd"), stopped)
    assert sorted(e.name for e in stopped.rglob(".*")) == [".git", ".lock"]
    assert (tmp_path / "elsewhere" / "thesis.txt").is_file()


# --- a person's own images


def test_other_data_in_the_middle_of_a_run_are_refused(tmp_path, photos):
    config = configure("digits-5", "base", settings=PHOTOS)
    with pytest.raises(Interrupted):
        run(config, tmp_path / "run", data=photos, observer=CtrlC(1, "learn", 1))
    (photos / "apple" / "1.png").unlink()
    with pytest.raises(UserError, match="the data are not the same"):
        run(config, tmp_path / "run", data=photos)


def test_a_run_goes_on_with_the_other_storage(tmp_path, photos):
    memory, stream = (
        configure("digits-5", "base", settings=[*PHOTOS, f"data.storage={kind}"]) for kind in ("memory", "stream")
    )
    with pytest.raises(Interrupted):
        run(memory, tmp_path / "a" / "run", data=photos, observer=CtrlC(2, "learn", 1))
    result = run(stream, tmp_path / "a" / "run", data=photos)
    assert result.metrics == run(memory, tmp_path / "b" / "run", data=photos).metrics


def test_an_image_that_vanishes_from_a_streamed_run_is_named(tmp_path, photos):
    config = configure("digits-5", "base", settings=[*PHOTOS, "data.storage=stream", "stream.order=natural"])
    file, aside = photos / "cherry" / "0.jpg", tmp_path / "aside.jpg"

    class Vanish(Observer):
        def task_begins(self, index, count):
            if index == 1:
                file.rename(aside)

    with pytest.raises(UserError, match=r"cherry/0.jpg could be read when the run began"):
        run(config, tmp_path / "run", data=photos, observer=Vanish())
    aside.rename(file)
    assert len(run(config, tmp_path / "run", data=photos).sessions) == 2
