"""The benchmark: what it measures, and the files it writes."""

import json
from functools import partial

import pytest

from reverie.errors import UserError
from reverie.methods import find_method, method_names
from reverie.runs.bench import WARM_UP, Measurement, SpeedReport, _Clock, measure_speed, noise_dataset
from reverie.runs.configure import configure
from reverie.system.provenance import Environment
from reverie.system.records import as_record
from tests.support.experiments import CPU

TINY = ["train.batch_size=8", "dream.batch_size=4", "dream.width=8", "dream.noise=8"]
measure = partial(measure_speed, "digits-5", modes=["fp32"], settings=TINY, device="cpu")


def test_every_phase_of_every_task_asked_for_is_timed():
    said = []
    report = measure(["base", "abd"], tasks=[1, 3], steps=5, report=lambda *what: said.append(what), command="bench")
    assert (report.preset, report.steps, report.command) == ("digits-5", 5, "bench")
    assert report.environment.device == "cpu"
    assert [(m.method, m.task, m.phase) for m in report.measurements] == [
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
    for measured in report.measurements:
        rows = 4 if measured.phase == "dream" else 8
        assert measured.milliseconds > 0
        assert measured.images_per_second == pytest.approx(1000 * rows / measured.milliseconds, rel=0.01)
        assert measured.peak_memory_bytes is None


def test_without_a_word_the_second_task_and_the_last_are_timed():
    assert [item.task for item in measure(["base"], steps=2).measurements] == [2, 5]
    one = measure(["base"], steps=2, settings=[*TINY, "stream.take=1"])
    assert [item.task for item in one.measurements] == [1]


def test_all_methods_are_timed_by_one_word(caplog):
    made = measure(["all"], tasks=[1], steps=2).measurements
    train = [name for name in method_names() if find_method(name).trains_network]
    assert [*dict.fromkeys(m.method for m in made)] == train
    assert caplog.messages == ["ranpac trains nothing in task 1, so there is no step to time."]


def test_where_nothing_is_trained_that_is_said(caplog):
    made = measure(["acil"], tasks=[1, 2], steps=2).measurements
    assert [(m.method, m.task) for m in made] == [("acil", 1)]
    assert caplog.messages == ["acil trains nothing in task 2, so there is no step to time."]


def test_a_method_with_a_coreset_is_timed_with_one():
    made = measure(["rehearsal", "bic"], tasks=[3], steps=2).measurements
    assert [(m.method, m.phase) for m in made] == [("rehearsal", "learn"), ("bic", "learn"), ("bic", "correct")]


def test_the_clock_counts_steps_after_warming_up_and_takes_the_median(monkeypatch):
    now = iter([0.0, 1.0, 2.0, 30.0, 31.0, 32.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(now))
    clock = _Clock(10, CPU)
    for done in range(1, WARM_UP + 11):
        clock.step_ends(done, dict)
    assert len(clock.times) == 6
    assert clock.seconds_a_step == 0.5


def test_noise_has_the_shape_of_the_data_set():
    data = noise_dataset(configure("cifar100-10", "base"))
    assert data.train.shape == (3, 32, 32)
    assert len(data.train) == 50_000
    assert len(data.class_names) == 100
    for source in ("folder", "imagenet"):
        with pytest.raises(UserError, match=f"cifar100, tinyimagenet are known, not that of '{source}'"):
            noise_dataset(configure("digits-5", "base", settings=[f"data.source={source}"]))


def test_a_task_or_a_mode_that_is_not_there_is_a_mistake():
    with pytest.raises(UserError, match="tasks 1 to 5, not 6"):
        measure(["base"], tasks=[6])
    with pytest.raises(UserError, match=r"`modes` takes .*, not 'capture'. Did you mean 'captured'\?"):
        measure(["base"], modes=["capture"])


def measured(mode, milliseconds):
    return Measurement(
        method="abd",
        task=2,
        phase="learn",
        mode=mode,
        milliseconds=milliseconds,
        images_per_second=1000.0,
        peak_memory_bytes=2**21,
        setup_seconds=1.5,
    )


def test_the_table_compares_the_last_mode_with_the_first():
    made = [measured("eager fp32", 20.0), measured("fast path", 4.0)]
    report = SpeedReport(preset="cifar100-10", steps=100, environment=Environment(gpu="one"), measurements=made)
    header, rows = report.table()
    assert rows == [["abd", "learn", "2", "20.00", "4.00", "5.0", "1,000", "2"]]
    assert len(header) == len(rows[0])
    assert "| abd | learn | 2 | 20.00 | 4.00 | 5.0 | 1,000 | 2 |" in " ".join(str(report).split())


def test_the_report_is_json_and_back():
    made = SpeedReport(
        preset="cifar100-10",
        steps=100,
        command="reverie bench",
        environment=Environment(gpu="one"),
        measurements=[measured("fast path", 4.0)],
    )
    plain = json.loads(json.dumps(made.as_dict()))
    assert plain["schema"] == 1
    assert plain["environment"] == {"gpu": "one"}
    assert plain["measurements"][0]["milliseconds"] == 4.0
    assert as_record(SpeedReport, plain) == made


def test_names_may_be_a_text_and_too_few_steps_are_told_by_name():
    assert {one.method for one in measure("base,lwf", tasks=[1]).measurements} == {"base", "lwf"}
    with pytest.raises(UserError, match="`steps` must be a whole number from 1 to 1,000,000, not 0"):
        measure_speed("digits-5", "base", steps=0)
