"""What runs share: the upper bounds, trained once, found by every run that they belong to, and by no other."""

import shutil
from dataclasses import replace
from importlib.metadata import EntryPoint

import pytest

import reverie
from reverie.methods.base import Keeps, Method
from reverie.methods.losses import cross_entropy
from reverie.runs.configure import configure
from reverie.runs.predictions import Predictions
from reverie.runs.run import run
from reverie.runs.shared import UpperBounds
from reverie.system import plugins
from tests.support.experiments import quick_run, tiny_config

TWO = ("stream.take=2", "train.epochs=1")
PHOTOS = ["data.source=folder", "data.size=8", "train.epochs=1", "dream.steps=4", "dream.width=8"]


def bounds(folder):
    return sorted(path for path in (folder / "upper-bounds").iterdir() if path.is_dir())


@pytest.fixture
def bound(finished, tmp_path):
    """The result of an upper bound of two tasks, in `joint`; what it shares lies beside it."""
    result = finished(tiny_config("joint", *TWO))
    (tmp_path / "run").rename(tmp_path / "joint")
    return result


def omega_of(method, folder, *settings, seed=0):
    return quick_run(tiny_config(method, *TWO, *settings, seed=seed), folder).metrics.omega


def test_a_run_beside_an_upper_bound_has_an_omega(bound, tmp_path):
    assert omega_of("lwf", tmp_path / "lwf") is not None


def test_what_is_known_of_an_upper_bound_says_where_it_comes_from(bound, tmp_path):
    assert [path.name for path in bounds(tmp_path)] == sorted(bound.upper_bound.networks)
    for key, accuracy, classes in zip(bound.upper_bound.networks, bound.metrics.accuracy_after, (2, 4), strict=True):
        entry, predictions = UpperBounds(tmp_path / "joint").find(key)
        assert entry.accuracy == accuracy == predictions.accuracy()
        assert entry.classes == bound.class_order[:classes]
        assert (entry.preset, entry.seed, entry.schema_version) == ("digits-5", 0, 1)
        assert entry.seconds.keys() == {"learn", "end", "evaluate"}
        assert entry.sessions[0].command == "reverie run x"
        assert predictions.local is None  # another split has other tasks


def test_the_upper_bound_is_measured_by_its_own_networks(bound, tmp_path):
    """The last of which it trains although one is there, that may have come out otherwise."""
    for entry in bounds(tmp_path):
        kept = Predictions.from_bytes((entry / "predictions.npz").read_bytes())
        if kept.label.max() == 3:
            kept.top[: len(kept.top) // 2] = -1  # another training, which was wrong there
            (entry / "predictions.npz").write_bytes(kept.to_bytes())
    again = quick_run(tiny_config("joint", *TWO), tmp_path / "again")
    assert again.metrics.omega == 1
    assert again.upper_bound.accuracy_after == again.metrics.accuracy_after


class Untaught(Method):
    """Is handed all tasks so far, as the upper bound is, and learns nothing from them."""

    keeps = Keeps.EVERYTHING

    def first_losses(self, batch):
        return {"cross_entropy": 0 * cross_entropy(self.classifier(batch.images), batch.labels)}


def test_another_method_that_keeps_everything_is_not_the_upper_bound(finished, tmp_path, monkeypatch):
    entry = EntryPoint("untaught", f"{__name__}:Untaught", "reverie.methods")
    monkeypatch.setattr(plugins, "entry_points", lambda group: [entry])
    config = tiny_config("untaught", *TWO)
    alone = quick_run(config, tmp_path / "untaught")
    assert alone.metrics.omega is None
    assert not (tmp_path / "upper-bounds").exists()
    bound = finished(tiny_config("joint", *TWO))
    again = quick_run(config, tmp_path / "untaught")
    assert again.metrics.accuracy_after == alone.metrics.accuracy_after
    assert max(again.metrics.accuracy_after) < min(bound.metrics.accuracy_after)
    assert again.metrics.omega < 1
    assert again.metrics.forgetting is None  # a fresh network each time


def test_the_upper_bound_is_trained_once_and_found_by_other_splits(bound, tmp_path):
    """The prefix of four classes is the same in two tasks of two and in one of four."""
    assert len(bounds(tmp_path)) == 2
    longer = quick_run(tiny_config("joint", "train.epochs=1", "stream.split=4+3x2"), tmp_path / "four")
    events = (tmp_path / "four" / "events.jsonl").read_text()
    assert events.count('"found"') == 1
    assert len(bounds(tmp_path)) == 5
    assert longer.metrics.accuracy_after[0] == bound.metrics.accuracy_after[1]


def test_another_seed_or_schedule_has_its_own_upper_bound(bound, tmp_path):
    assert omega_of("base", tmp_path / "a", seed=1) is None
    assert omega_of("base", tmp_path / "b", "train.milestones=[1]") is None


@pytest.mark.parametrize("method", ["base", "dgr"])
def test_a_run_whose_settings_were_changed_in_python_finds_the_upper_bound_that_was_trained_so(bound, tmp_path, method):
    """By whatever means they were changed: each has the upper bound of its own learning rate."""
    small = ("method.width=2", "method.noise=8") if method == "dgr" else ()
    usual = tiny_config(method, *TWO, *small)
    other_rate = replace(usual, train=replace(usual.train, lr=0.05))
    assert quick_run(other_rate, tmp_path / "replaced").metrics.omega is None
    quick_run(tiny_config("joint", *TWO).with_settings({"train.lr": 0.05}), tmp_path / "joint-0.05")
    assert quick_run(usual.with_settings({"train.lr": 0.05}), tmp_path / "with-settings").metrics.omega is not None
    assert quick_run(other_rate, tmp_path / "replaced").metrics.omega is not None  # now it is there
    assert quick_run(usual, tmp_path / "usual").upper_bound.accuracy_after == bound.metrics.accuracy_after


def test_what_a_method_has_of_its_own_is_not_the_upper_bounds_until_a_person_sets_it_for_both(bound, tmp_path):
    """DGR learns without weight decay; its upper bound does not."""
    usual = tiny_config("dgr", *TWO, "method.width=2", "method.noise=8")
    assert usual.train.weight_decay == 0 < tiny_config("joint", *TWO).train.weight_decay
    assert quick_run(usual, tmp_path / "usual").metrics.omega is not None
    decaying = replace(usual, train=replace(usual.train, weight_decay=0.01))
    assert quick_run(decaying, tmp_path / "decaying").metrics.omega is None


def test_a_deleted_upper_bound_is_trained_again_to_the_same_figure(bound, tmp_path):
    shutil.rmtree(tmp_path / "upper-bounds")
    again = quick_run(tiny_config("joint", *TWO), tmp_path / "again")
    assert again.metrics == bound.metrics
    assert len(bounds(tmp_path)) == 2


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("entry.json", b"{"),
        ("entry.json", b'{"schema": 1, "seconds": 5}'),
        ("entry.json", None),
        ("predictions.npz", b"PK"),
        ("predictions.npz", b""),
    ],
)
def test_a_damaged_upper_bound_costs_no_run_and_is_warned_of(bound, tmp_path, caplog, file, content):
    for entry in bounds(tmp_path):
        if content is None:
            (entry / file).unlink()
        else:
            (entry / file).write_bytes(content)
    assert omega_of("base", tmp_path / "base") is None
    assert "is damaged and not used" in caplog.text


def test_a_damaged_upper_bound_is_made_again_by_a_run_of_its_own(bound, finished, tmp_path):
    for entry, file in zip(bounds(tmp_path), ("entry.json", "predictions.npz"), strict=True):
        (entry / file).write_bytes(b"")
    again = quick_run(tiny_config("joint", *TWO), tmp_path / "again")
    assert again.metrics == bound.metrics
    finished(tiny_config("base", *TWO))
    assert omega_of("base", tmp_path / "run") is not None


def test_splits_that_normalise_differently_have_their_own_upper_bounds(tmp_path, photos):
    def of(method, split, name):
        config = configure("digits-5", method, settings=[*PHOTOS, "stream.order=natural", f"stream.split={split}"])
        return run(config, tmp_path / name, data=photos).metrics.omega

    of("joint", [1, 1, 1], "joint-111")
    assert of("base", [1, 2], "base-12") is not None  # the same first task
    assert of("base", [2, 1], "base-21") is None
    of("joint", [2, 1], "joint-21")
    assert of("base", [2, 1], "base-21") is not None


def test_a_method_that_does_not_normalise_has_the_upper_bound_of_those_that_do(tmp_path, photos):
    for method in ("joint", "dgr"):
        config = configure("digits-5", method, settings=[*PHOTOS, "stream.split=3"])
        result = run(config, tmp_path / method, data=photos)
        shape = reverie.load(tmp_path / method / "model").task_learner.classifier.preprocessing
        assert (shape.mean == (0, 0, 0)) == (shape.deviation == (1, 1, 1)) == (method == "dgr")
    assert result.metrics.omega is not None
