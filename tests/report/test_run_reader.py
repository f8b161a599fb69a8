"""What a run's folder tells, and what it says is missing when something is."""

import json
import random
import shutil

import numpy as np
import pytest

from reverie.errors import Interrupted
from reverie.report.html import page_body
from reverie.report.page import make_page
from reverie.report.run_reader import RunView, runs_in
from reverie.runs.run import run as run_config
from tests.support.experiments import StopBeforeTask


@pytest.fixture
def run(small_table, tmp_path):
    """A copy of a finished run, and of the upper bounds beside it."""
    for name in ("abd-seed0", "upper-bounds"):
        shutil.copytree(small_table / name, tmp_path / name)
    return tmp_path / "abd-seed0"


def test_a_finished_run_tells_what_its_result_says(run):
    result = json.loads((run / "result.json").read_text())
    found = RunView.of(run)
    assert (found.missing, found.state, found.finished) == ([], "finished", True)
    assert found.title == "ABD on digits-5, seed 0"
    assert found.result.as_dict() == result
    assert found.matrix == result["accuracy_matrix"]
    assert found.tasks == 3
    assert [sheet.task for sheet in found.sheets] == [2, 3]
    assert found.dreams[3].classes == 4
    losses = found.losses()
    assert {phase: [*by_task] for phase, by_task in losses.items()} == {"learn": [1, 2, 3], "dream": [2, 3]}
    assert losses["learn"][2][0].epoch == 1
    assert set(losses["learn"][2][0].losses) == {"local_cross_entropy", "fine_tuning", "distillation"}


def test_omega_is_found_when_the_upper_bound_was_trained_later_and_the_run_stays_as_it_is(run):
    file = run / "result.json"
    result = json.loads(file.read_text())
    alone = {**result, "upper_bound": None, "metrics": {**result["metrics"], "omega": None, "omega_up_to": None}}
    file.write_text(json.dumps(alone))
    found = RunView.of(run)
    assert found.result.metrics.omega == result["metrics"]["omega"]
    assert json.loads(file.read_text()) == alone
    shutil.rmtree(run.parent / "upper-bounds")
    found = RunView.of(run)
    assert found.result.metrics.omega is None
    assert found.missing == ["Omega needs the upper bound, which has not been trained beside this run."]


def test_a_run_that_was_stopped_shows_the_tasks_it_has_learned(tiny, tmp_path, small_table):
    config = tiny("abd", "stream.take=3", "train.epochs=1")
    with pytest.raises(Interrupted):
        run_config(config, tmp_path / "run", device="cpu", observer=StopBeforeTask(2))
    found = RunView.of(tmp_path / "run")
    whole = RunView.of(small_table / "abd-seed0")
    assert not found.finished
    assert found.state == "2 of 3 tasks learned"
    assert found.missing == ["The run is not finished: 2 of 3 tasks learned. Omega and the ledger come with the end."]
    assert found.matrix == [row[:2] for row in whole.matrix[:2]]
    assert found.accuracy_after == whole.accuracy_after[:2]
    assert len(found.seconds) == 2
    assert found.config == config


def unfinished(run):
    (run / "result.json").unlink()


def cut_result(run):
    file = run / "result.json"
    file.write_bytes(file.read_bytes()[:500])


def newer_result(run):
    file = run / "result.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "schema": 99}))


def poor_result(run):
    (run / "result.json").write_text('{"schema": 1, "method": "abd"}')


def broken_lines(run):
    with (run / "events.jsonl").open("ab") as file:
        file.write(b'{"event": "epo\n[1]\n{"event": "epoch", "task": 3}\n')
        file.write(b'{"event": "epoch", "task": 3, "phase": "learn", "epoch": 1, "losses": {"a": NaN}}\n')


def odd_values(run):
    with (run / "events.jsonl").open("ab") as file:
        file.write(b'{"event": "epoch", "task": null, "phase": "learn", "epoch": 1, "losses": {}}\n')
        file.write(b'{"event": "task ends", "task": "1", "accuracy": 0.5}\n{"event": [1]}\n')
        file.write(b'{"event": "somebody\'s own", "at": 1e20}\n')


def odd_summaries(run):
    """Of phases that dream, and nothing that a person could be told."""
    with (run / "events.jsonl").open("a") as file:
        for number, odd in enumerate(("x", None, [1], {"a": 1}, -1, "<b>", 10**30), start=1):
            for name in ("classes", "covered", "confidence"):
                summary = {"classes": 4, "covered": 4, "confidence": 0.5, name: odd}
                event = {"event": "phase ends", "task": number % 3 + 1, "phase": "dream", "summary": summary}
                file.write(json.dumps(event) + "\n")


def half_a_line(run):
    with (run / "events.jsonl").open("ab") as file:
        file.write(b'{"event": "epo')


def no_events(run):
    (run / "events.jsonl").unlink()


def bare(run):
    unfinished(run)
    no_events(run)


def no_config(run):
    (run / "config.yaml").write_text(": :\n-")


def no_predictions(run):
    unfinished(run)
    (run / "tasks" / "02" / "predictions.npz").write_bytes(b"PK")


def broken_sheet(run):
    file = run / "tasks" / "03" / "dreams.png"
    file.write_bytes(file.read_bytes()[:200])


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (unfinished, ["not finished: 3 of 3 tasks learned"]),
        (cut_result, ["result.json is damaged", "not finished: 3 of 3 tasks learned"]),
        (newer_result, ["result.json is damaged or from another version", "not finished"]),
        (poor_result, ["result.json is damaged", "not finished"]),
        (broken_lines, ["4 lines of events.jsonl are damaged"]),
        (odd_values, ["3 lines of events.jsonl are damaged"]),
        (odd_summaries, ["3 lines of events.jsonl are damaged"]),
        (half_a_line, []),  # the process was killed while it wrote, or is writing now
        (no_events, ["no events in events.jsonl"]),
        (bare, ["no events in events.jsonl", "not finished: 3 tasks learned"]),
        (no_config, ["config.yaml is damaged or missing"]),
        (no_predictions, ["predictions after task 2 are missing", "not finished"]),
        (broken_sheet, ["tasks/03/dreams.png is damaged"]),
    ],
)
def test_whatever_is_damaged_is_named_and_the_rest_is_there(run, small_table, damage, said):
    whole = RunView.of(small_table / "abd-seed0")
    damage(run)
    found = RunView.of(run)
    assert len(found.missing) == len(said)
    for line, words in zip(found.missing, said, strict=True):
        assert words in line
    assert found.title == whole.title
    assert np.allclose(found.accuracy_after, whole.accuracy_after)
    assert len(found.sheets) == (1 if damage is broken_sheet else 2)
    assert "A row for each class." in page_body(make_page([run]))["html"]


@pytest.mark.parametrize(
    "name", ["result.json", "events.jsonl", "config.yaml", "tasks/02/predictions.npz", "tasks/03/dreams.png"]
)
def test_no_damage_to_a_file_keeps_the_page_from_being_made(run, name):
    rng = random.Random(name)
    if name.endswith("npz"):  # which is only looked at while there is no result
        (run / "result.json").unlink()
    whole = (run / name).read_bytes()
    for number in range(12):
        content, at = bytearray(whole), rng.randrange(len(whole))
        if number % 3 == 0:
            del content[at:]
        elif number % 3 == 1:
            del content[at : at + rng.randint(1, 60)]
        else:
            content[at] = rng.randrange(256)
        (run / name).write_bytes(content)
        assert "article" in page_body(make_page([run]))["html"]
        assert "article" in page_body(make_page([run.parent]))["html"]


def test_a_folder_that_is_gone_or_holds_nothing_is_no_mistake(tmp_path):
    assert RunView.of(tmp_path / "gone").missing == ["The run is not there (any more)."]
    (tmp_path / "empty").mkdir()
    found = RunView.of(tmp_path / "empty")
    assert found.title == "empty"
    assert any("not finished: 0 tasks learned" in line for line in found.missing)


def test_a_result_file_alone_will_do(run, tmp_path):
    (tmp_path / "results").mkdir()
    shutil.copy(run / "result.json", tmp_path / "results" / "mine.json")
    (tmp_path / "results" / "table.json").write_text("{}")
    assert runs_in(tmp_path / "results") == [tmp_path / "results" / "mine.json"]
    found = RunView.of(tmp_path / "results" / "mine.json")
    assert (found.name, found.finished, found.tasks) == ("mine", True, 3)
    assert (found.alone, found.missing) == (True, [])
    (tmp_path / "results" / "mine.json").write_text("{}")
    assert "mine.json is damaged" in RunView.of(tmp_path / "results" / "mine.json").missing[0]


def test_a_method_that_is_not_installed_here_goes_by_its_name(run):
    file = run / "result.json"
    file.write_text(file.read_text().replace('"method": "abd"', '"method": "magic"'))
    assert RunView.of(run).title == "magic on digits-5, seed 0"
