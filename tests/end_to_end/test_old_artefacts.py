"""What version 0.1 wrote is read, and gone on with where it stopped (tests/artefacts/README.md)."""

import hashlib
import json
import shutil
import tarfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import reverie
from reverie.engine.observer import Observer
from reverie.errors import Interrupted
from reverie.learner.folder import RunFolder
from reverie.model.folder import load_model, model_digest
from reverie.runs.configure import load_dataset, make_stream
from reverie.runs.result import read_result
from reverie.runs.run import run
from reverie.system.files import state_bytes
from tests.support.experiments import StopAt, beginnings_of
from tests.support.images import write_digits
from tests.support.models import QUICK_STEP
from tests.support.paths import ROOT

SETTINGS = (
    "train.epochs=2",
    "train.milestones=[1]",
    "train.batch_size=16",
    "dream.steps=8",
    "dream.width=8",
    "stream.take=3",
)
TABLE = ("table", "digits-5", "--methods", "base,abd", "--seeds", "0", "--out", "table", "--device", "cpu")


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """As version 0.1 left it. Not to be changed."""
    folder = tmp_path_factory.mktemp("version") / "0.1"
    safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    shutil.unpack_archive(ROOT / "tests" / "artefacts" / "0.1.tar.xz", folder, **safely)
    return folder


@pytest.fixture
def old(unpacked, tmp_path):
    """A copy of it, which may be changed, with the images that were learned from."""
    shutil.copytree(unpacked, tmp_path, dirs_exist_ok=True)
    write_digits(tmp_path / "first", (0, 1, 2), 20)
    write_digits(tmp_path / "second", (3, 4), 20)
    return tmp_path


def run_of(old, method):
    (folder,) = (old / "table").glob(f"digits-5-{method}-*")
    return folder


def content(folder):
    return {file.relative_to(folder): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def assert_as_expected(old, name, weights):
    """To the last bit on the kind of CPU that made them; another one rounds otherwise."""
    expected = json.loads((old / f"expected-{name}.json").read_text())
    if hashlib.sha256(weights.read_bytes()).hexdigest() != expected["weights_sha256"]:
        ours, theirs = load_file(weights), load_file(old / f"expected-{name}.safetensors")
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            torch.testing.assert_close(ours[key], value, rtol=0.01, atol=0.01)
    return expected


# --- runs and tables


def test_a_table_goes_on_and_no_finished_run_is_repeated(old, reverie):
    finished = {method: content(run_of(old, method)) for method in ("joint", "base")}
    bounds = content(old / "table" / "upper-bounds")
    code, out, err = reverie(*TABLE, *(word for setting in SETTINGS for word in ("--set", setting)))
    assert code == 0, err
    assert "ABD" in out
    assert {method: content(run_of(old, method)) for method in finished} == finished
    assert content(old / "table" / "upper-bounds") == bounds
    abd = run_of(old, "abd")
    assert beginnings_of(abd)[-4:] == [(2, "learn", 0), (2, "learn", 7), (3, "dream", 0), (3, "learn", 0)]
    result = read_result(abd / "result.json")
    before, now = (session.environment for session in result.sessions)
    assert (before.reverie, before.commit[:7]) == ("0.1.0", "8b6da83")
    assert now.commit != before.commit
    expected = assert_as_expected(old, "abd", abd / "model" / "model.safetensors")
    for ours, theirs in zip(result.accuracy_matrix, expected["accuracy_matrix"], strict=True):
        assert ours == [None if value is None else pytest.approx(value, abs=0.05) for value in theirs]
    assert set(result.upper_bound.networks) == {path.name for path in (old / "table" / "upper-bounds").iterdir()}
    assert result.upper_bound.accuracy_after == read_result(run_of(old, "joint") / "result.json").metrics.accuracy_after
    assert 0 < result.metrics.omega < 1


def test_finished_runs_are_found_finished(old):
    for method in ("joint", "base"):
        folder = run_of(old, method)
        before = content(folder)
        config = reverie.configure("digits-5", method, settings=SETTINGS)
        result = run(config, folder)
        assert result.configuration() == config
        assert content(folder) == before
        assert result.as_dict() == json.loads((folder / "result.json").read_text())


def test_a_run_that_is_added_finds_the_old_upper_bound(old):
    config = reverie.configure("digits-5", "lwf", settings=SETTINGS)
    result = reverie.run(config, old / "table" / "lwf", device="cpu")
    joint = read_result(run_of(old, "joint") / "result.json")
    assert result.upper_bound.accuracy_after == joint.metrics.accuracy_after
    assert result.metrics.omega is not None


def test_result_files_are_read(old):
    (old / "results").mkdir()
    for method in ("joint", "base"):
        shutil.copy(run_of(old, method) / "result.json", old / "results" / f"{method}-seed0.json")
    results = reverie.load_results(old / "results")
    assert {result.method for result in results} == {"joint", "base"}
    assert "Base" in reverie.results_table(old / "results")


def test_finished_and_interrupted_runs_are_reported(old):
    page = reverie.write_report(old / "table", old / "page.html").read_text("utf-8")
    for title in ("Upper Bound", "Base", "ABD"):
        assert title in page
    alone = reverie.write_report(run_of(old, "abd"), old / "abd.html").read_text("utf-8")
    assert "task 2" in alone


def test_the_model_of_a_finished_run_predicts_what_its_result_says(old):
    folder = run_of(old, "base")
    result = read_result(folder / "result.json")
    stream = make_stream(result.configuration(), load_dataset(result.configuration()))
    learner = load_model(folder / "model").task_learner()
    assert learner.classifier.class_names == tuple(result.class_names)
    assert learner.score(stream.test()) == pytest.approx(result.metrics.final_accuracy, abs=0.05)
    assert [entry.task for entry in learner.ledger] == [1, 2, 3]


def write_in_parts(file, size):
    """As version 0.1 wrote a state of more than 12 MiB: in parts beside a file that names them."""
    whole = file.read_bytes()
    begins = range(0, len(whole), size)
    parts = {f"{file.name}.0a1b2c3d-{n}": whole[at : at + size] for n, at in enumerate(begins, start=1)}
    for name, part in parts.items():
        file.with_name(name).write_bytes(part)
    file.write_bytes(state_bytes({"parts": [*parts], "digest": hashlib.sha256(whole).hexdigest()}))


def test_a_checkpoint_in_parts_is_read_and_its_parts_go_with_it(old):
    folder = RunFolder(run_of(old, "abd"))
    for file in (folder.resting, folder.moving):
        write_in_parts(file, 100_000)
    assert len([*folder.resting.parent.iterdir()]) > 12
    config = reverie.configure("digits-5", "abd", settings=SETTINGS)
    with pytest.raises(Interrupted):
        run(config, folder.path, device="cpu", observer=StopAt(2, "learn", 8), checkpoint_seconds=0)
    assert beginnings_of(folder.path)[-1] == (2, "learn", 7)
    assert [*folder.moving.parent.glob("moving.pt*")] == [folder.moving]
    with pytest.raises(Interrupted):
        run(config, folder.path, device="cpu", observer=StopAt(3, "dream", 1), checkpoint_seconds=0)
    assert sorted(file.name for file in folder.resting.parent.iterdir()) == ["moving.pt", "resting.pt"]


# --- models and jobs


def test_a_model_predicts_and_tells_its_history(old):
    predictions = reverie.predict(old / "model", old / "first", device="cpu")
    assert len(predictions) == 60
    right = [Path(found.source).parent.name == found.names[0] for found in predictions]
    assert sum(right) / len(right) > 0.6
    assert reverie.score(old / "model", old / "first", device="cpu") == sum(right) / len(right)
    assert [history.name for history in reverie.list_classes(old / "model")] == ["0", "1", "2"]
    assert load_model(old / "model").acceptance.verdict == "look closer"


def test_a_model_is_renamed_and_extended(old):
    before = content(old / "model")
    reverie.change_classes(old / "model", rename={"0": "zero"}, to=old / "renamed")
    assert reverie.load(old / "renamed").classes == ("zero", "1", "2")
    reverie.learn_folder(old / "second", old / "extended", old=old / "renamed", settings=QUICK_STEP, device="cpu")
    assert reverie.load(old / "extended").classes == ("zero", "1", "2", "3", "4")
    assert [entry.action for entry in load_model(old / "extended").ledger] == [None, "renamed", None]
    assert content(old / "model") == before


def test_an_interrupted_job_goes_on_where_it_was_and_does_not_begin_anew(old):
    class Begun(Observer):
        phases = ()

        def phase_begins(self, phase, done):
            self.phases += ((phase.name, done, phase.total_steps),)

    begun = Begun()
    reverie.learn_folder(
        old / "second", old / "model-2", old=old / "model", settings=QUICK_STEP, device="cpu", observer=begun
    )
    assert begun.phases[0] == ("dream", 3, 6)
    assert [phase[:2] for phase in begun.phases[1:]] == [("learn", 0)]
    assert_as_expected(old, "model-2", old / "model-2" / "model.safetensors")
    made = load_model(old / "model-2")
    assert made.classifier.class_names == ("0", "1", "2", "3", "4")
    assert made.lineage == (model_digest(old / "model"),)
    assert not (old / ".model-2.learning").exists()


def test_an_interrupted_job_is_not_taken_for_another(old):
    before = content(old / ".model-2.learning")
    with pytest.raises(reverie.UserError, match=r"A job for .*model-2 was begun and not ended, with other values of"):
        reverie.learn_folder(
            old / "second", old / "model-2", old=old / "model", settings=QUICK_STEP, seed=1, device="cpu"
        )
    assert content(old / ".model-2.learning") == before
