"""The benchmark: what it measures, and the files it writes."""

import json

import pytest
import torch

from reverie.errors import UserError
from reverie.methods import method_names
from reverie.runs import bench
from reverie.runs import configure as experiment

CPU = torch.device("cpu")
TINY = ["train.batch_size=8", "dream.batch_size=4", "dream.width=8", "dream.noise=8"]


def test_every_phase_of_every_task_asked_for_is_timed():
    said = []
    made = bench.measure("digits-5", ["base", "abd"], [1, 3], ["fp32"], 5, CPU, TINY, lambda *what: said.append(what))
    assert [(m.method, m.task, m.phase) for m in made] == [
        ("base", 1, "learn"),
        ("base", 3, "learn"),
        ("abd", 1, "learn"),
        ("abd", 3, "dream"),
        ("abd", 3, "learn"),
    ]
    assert [what for what, step in said if not step] == [
        f"{method}, task {task}, eager fp32" for method in ("base", "abd") for task in (1, 3)
    ]
    assert said[-1] == ("abd, task 3, eager fp32", "learn, step 15 of 15")
    for measured in made:
        rows = 4 if measured.phase == "dream" else 8
        assert measured.milliseconds > 0
        assert measured.images_per_second == pytest.approx(1000 * rows / measured.milliseconds, rel=0.01)
        assert measured.peak_memory_bytes is None


def test_without_a_word_the_second_task_and_the_last_are_timed():
    made = bench.measure("digits-5", ["base"], None, ["fp32"], 2, CPU, TINY)
    assert [item.task for item in made] == [2, 5]
    made = bench.measure("digits-5", ["base"], None, ["fp32"], 2, CPU, [*TINY, "stream.take=1"])
    assert [item.task for item in made] == [1]


def test_all_methods_are_timed_by_one_word():
    made = bench.measure("digits-5", ["all"], [1], ["fp32"], 2, CPU, TINY)
    assert [*dict.fromkeys(m.method for m in made)] == method_names()


def test_a_method_with_a_coreset_is_timed_with_one():
    made = bench.measure("digits-5", ["rehearsal", "bic"], [3], ["fp32"], 2, CPU, TINY)
    assert [(m.method, m.phase) for m in made] == [("rehearsal", "learn"), ("bic", "learn"), ("bic", "correct")]


def test_the_clock_counts_steps_after_warming_up_and_takes_the_median(monkeypatch):
    now = iter([0.0, 1.0, 2.0, 30.0, 31.0, 32.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(now))
    clock = bench._Clock(10, CPU)
    for done in range(1, bench.WARM_UP + 11):
        clock.step_ends(done, dict)
    assert len(clock.times) == 6
    assert clock.seconds_a_step == 0.5


def test_noise_has_the_shape_of_the_data_set():
    data = bench.noise(experiment.configure("cifar100-10", "base"))
    assert data.train.shape == (3, 32, 32)
    assert len(data.train) == 50_000
    assert len(data.class_names) == 100
    for source in ("folder", "imagenet"):
        with pytest.raises(UserError, match=f"cifar100, tinyimagenet, not of '{source}'"):
            bench.noise(experiment.configure("digits-5", "base", settings=[f"data.source={source}"]))


def test_a_task_that_is_not_there_is_a_mistake():
    with pytest.raises(UserError, match="tasks 1 to 5"):
        bench.measure("digits-5", ["base"], [6], ["fp32"], 5, CPU)


def test_the_table_compares_the_last_mode_with_the_first():
    def measured(mode, milliseconds):
        return bench.Measurement("abd", 2, "learn", mode, milliseconds, 1000.0, 2**21, 1.5)

    header, rows = bench.rows([measured("eager fp32", 20.0), measured("fast path", 4.0)], ["fp32", "fast"])
    assert rows == [["abd", "learn", "2", "20.00", "4.00", "5.0", "1,000", "2"]]
    assert len(header) == len(rows[0])
    made = bench.as_json([measured("fast path", 4.0)], "cifar100-10", 100, "reverie bench", {"gpu": "one"})
    assert json.loads(json.dumps(made))["measurements"][0]["milliseconds"] == 4.0
