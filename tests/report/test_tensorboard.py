"""A run for TensorBoard: the same figures as in its events, each once, also after an interruption."""

import json
import sys

import pytest

from reverie.engine.observer import Observers
from reverie.errors import Interrupted, UserError
from reverie.report.tensorboard import FOLDER, tensorboard_log
from reverie.runs.run import run
from tests.support.experiments import StopBeforeTask


def events_of(folder, kind):
    lines = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [event for event in lines if event["event"] == kind]


def logged(folder):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="no tensorboard here")
    accumulator = reader.EventAccumulator(str(folder / FOLDER))
    accumulator.Reload()
    scalars = accumulator.Tags()["scalars"]
    return {tag: [(e.step, e.value) for e in accumulator.Scalars(tag)] for tag in scalars}, accumulator


def test_losses_accuracies_and_dreams_are_logged_once_however_often_the_run_was_stopped(tiny, tmp_path):
    pytest.importorskip("tensorboard", reason="no tensorboard here")
    config, folder = tiny("abd", "stream.take=3"), tmp_path / "run"
    for stop in (1, 2):
        with pytest.raises(Interrupted), tensorboard_log(folder) as log:
            run(config, folder, device="cpu", observer=Observers(log, StopBeforeTask(stop)))
    with tensorboard_log(folder) as log:
        run(config, folder, device="cpu", observer=log)
    scalars, accumulator = logged(folder)
    epochs = [event for event in events_of(folder, "epoch") if event["phase"] == "learn"]
    learned = [
        (number, pytest.approx(event["losses"]["distillation"], rel=1e-5))
        for number, event in enumerate(epochs, 1)
        if "distillation" in event["losses"]
    ]
    assert scalars["learn/distillation"] == learned
    assert scalars["learn/learning_rate"] == [(n, pytest.approx(e["lr"])) for n, e in enumerate(epochs, 1)]
    accuracies = [(e["task"], pytest.approx(e["accuracy"])) for e in events_of(folder, "task ends")]
    assert scalars["accuracy/all_classes_seen"] == accuracies
    assert [step for step, _ in scalars["dream/confidence"]] == [2, 3]
    assert [image.step for image in accumulator.Images("dreams")] == [2, 3]


def test_a_first_task_that_another_run_has_trained_is_logged_too(tiny, tmp_path):
    pytest.importorskip("tensorboard", reason="no tensorboard here")
    for method in ("base", "lwf"):
        config, folder = tiny(method, "stream.take=2"), tmp_path / method
        with tensorboard_log(folder) as log:
            run(config, folder, device="cpu", observer=log, share_first_task=True)
    assert json.loads((folder / "result.json").read_text())["first_task"]["trained_by"]["method"] == "base"
    epochs = events_of(folder, "epoch")
    learned = [(n, pytest.approx(e["losses"]["cross_entropy"], rel=1e-5)) for n, e in enumerate(epochs, 1)]
    assert logged(folder)[0]["learn/cross_entropy"] == learned


def test_a_run_that_was_finished_without_is_written_for_tensorboard_later(tiny, tmp_path):
    pytest.importorskip("tensorboard", reason="no tensorboard here")
    config, folder = tiny("base", "stream.take=2"), tmp_path / "run"
    run(config, folder, device="cpu")
    with tensorboard_log(folder) as log:
        run(config, folder, device="cpu", observer=log)
    assert len(logged(folder)[0]["accuracy/all_classes_seen"]) == 2


def test_a_run_that_cannot_begin_leaves_nothing(tiny, tmp_path):
    pytest.importorskip("tensorboard", reason="no tensorboard here")
    with pytest.raises(UserError), tensorboard_log(tmp_path / "run") as log:
        run(tiny("base"), tmp_path / "run", device="abacus", observer=log)
    assert list(tmp_path.iterdir()) == []


def test_without_the_package_it_is_said_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError, match=r"pip install 'reverie\[tensorboard\]'"), tensorboard_log(tmp_path / "run"):
        pass
