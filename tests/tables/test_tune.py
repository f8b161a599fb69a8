"""Tuning: folds of the training images of the first half of the tasks, and never a test image."""

import contextlib
import json
from dataclasses import replace

import pytest
import torch

from reverie.data import sources
from reverie.errors import UserError
from reverie.runs import configure as experiment
from reverie.runs import run as runs
from reverie.runs.run import RunObserver
from reverie.tables import tune
from reverie.tables.tune import Point, Tuning
from tests.conftest import TINY

QUICK = [*TINY, "train.epochs=1"]


class OutOfReach:
    """Test images that nobody may look at."""

    def __getattr__(self, name):
        raise AssertionError(f"somebody reached for the test images: {name}")


@pytest.fixture
def digits(tiny):
    config = tiny("base")
    dataset = sources.read(config.data, None)
    return config, dataset


@pytest.fixture
def guarded(monkeypatch):
    """Whatever is read has test images that cannot be touched."""
    read = sources.read

    def reading(*args, **how):
        dataset = read(*args, **how)
        object.__setattr__(dataset, "test", OutOfReach())
        return dataset

    monkeypatch.setattr(sources, "read", reading)


def content(image):
    return image.numpy().tobytes()


@contextlib.contextmanager
def silently(label):
    yield RunObserver()


def search(out, *grid, method="base", folds=3, settings=()):
    tuning = Tuning("digits-5", method, grid, folds, settings=[*QUICK, *settings])
    return tune.search(tuning, out, None, "cpu", silently, "reverie tune")


def test_folds_are_even_in_every_class_and_the_same_each_time():
    labels = torch.tensor([0] * 10 + [1] * 7 + [2] * 3)[torch.randperm(20)]
    number = tune.fold_numbers(labels, 3, seed=5)
    assert torch.equal(number, tune.fold_numbers(labels, 3, seed=5))
    assert not torch.equal(number, tune.fold_numbers(labels, 3, seed=6))
    for label in range(3):
        counts = torch.bincount(number[labels == label], minlength=3)
        assert counts.max() - counts.min() <= 1


def test_a_fold_is_training_images_of_the_first_half_and_each_is_judged_once(digits):
    config, dataset = digits
    classes, tasks = tune.first_half(config, dataset)
    assert (len(classes), tasks) == (4, 2)
    assert classes == experiment.make_stream(config, dataset).classes[:4]
    object.__setattr__(dataset, "test", OutOfReach())
    wanted = dataset.train.pixels[torch.isin(dataset.train.labels, torch.tensor(classes))]
    every, judged = sorted(map(content, wanted)), []
    for fold in range(3):
        part = tune.fold_of(dataset, classes, fold, 3, seed=0)
        assert {*part.train.labels.tolist()} == {*part.test.labels.tolist()} == {*classes}
        assert sorted(map(content, torch.cat([part.train.pixels, part.test.pixels]))) == every
        judged += map(content, part.test.pixels)
    assert sorted(judged) == every


def test_every_fold_is_a_data_set_of_its_own(digits):
    _, dataset = digits
    known_by_content = replace(dataset, content="abc")  # as folders of images are
    folds = [tune.fold_of(known_by_content, [0, 1], fold, 3, 0) for fold in range(3)]
    assert len({part.fingerprint() for part in folds}) == 3


def test_a_point_that_diverged_on_one_fold_is_worse_than_any_other():
    assert Point(("a=1",), (0.9, None, 0.9)).mean < Point(("a=2",), (0.01, 0.0, 0.01)).mean


def test_tuning_never_touches_the_test_images(tmp_path, guarded, monkeypatch):
    handed = []
    execute = runs.execute
    monkeypatch.setattr(runs, "execute", lambda *args, **how: handed.append(how["dataset"]) or execute(*args, **how))
    points = search(tmp_path, "train.lr=0.1,0.001", folds=2)
    assert len(handed) == 4
    assert all(type(part.test) is type(part.train) for part in handed)
    assert points[0].mean > points[1].mean
    written = json.loads((tmp_path / "tune.json").read_text())
    assert written["chosen"] == list(points[0].settings)
    assert (written["tasks"], len(written["classes"]), written["folds"]) == (2, 4, 2)
    assert "points ahead of" in written["by"]
    assert written["environment"]["device"] == "cpu"
    config = experiment.configure("digits-5", "base", settings=[*QUICK, "train.lr=0.1"])
    folder = f"{experiment.folder_name(config, [*QUICK, 'train.lr=0.1'])}-fold1of2"
    result = json.loads((tmp_path / folder / "result.json").read_text())
    assert result["task_sizes"] == [2, 2]
    assert sum(result["test_images"]) == len(handed[0].test)


def test_a_search_that_is_called_again_trains_nothing(tmp_path, monkeypatch):
    first = search(tmp_path, "method.distillation=0.5,2", method="lwf", folds=2)
    folders = tmp_path.glob("*fold2of2")
    shared = [json.loads((folder / "result.json").read_text())["first_task"] for folder in folders]
    assert [found["trained_by"]["method"] for found in shared if found] == ["lwf"]  # of the same fold
    monkeypatch.setattr(runs._Run, "go", lambda self: pytest.fail("trained again"))
    assert search(tmp_path, "method.distillation=0.5,2", method="lwf", folds=2) == first


def test_another_number_of_folds_is_another_search(tmp_path):
    two = search(tmp_path, "train.lr=0.1", folds=2)
    (tmp_path / "tune.json").unlink()
    three = search(tmp_path, "train.lr=0.1", folds=3)
    alone = search(tmp_path / "alone", "train.lr=0.1", folds=3)
    assert [point.accuracies for point in three] == [point.accuracies for point in alone]
    assert len(two[0].accuracies) == 2


def test_what_another_search_found_is_not_lost(tmp_path):
    search(tmp_path, "train.lr=0.1", folds=2)
    written = (tmp_path / "tune.json").read_text()
    runs_made = len([*tmp_path.glob("*fold?of2")])
    for grid, settings, why in (
        (["train.lr=0.2"], [], "grid"),
        (["train.lr=0.1"], ["train.momentum=0.5"], "settings"),
    ):
        with pytest.raises(UserError, match=rf"another search \({why}\)"):
            search(tmp_path, *grid, folds=2, settings=settings)
    assert (tmp_path / "tune.json").read_text() == written
    assert len([*tmp_path.glob("*fold?of2")]) == runs_made
    assert len(search(tmp_path, "train.lr=0.1,0.2", folds=2)) == 2  # which has it all
    (tmp_path / "tune.json").write_text("[]")
    with pytest.raises(UserError, match="not what a search wrote"):
        search(tmp_path, "train.lr=0.1", folds=2)


def test_runs_of_the_same_point_with_other_settings_for_all_lie_beside_each_other(tmp_path):
    for momentum in ("0.5", "0.6"):
        search(tmp_path, "train.lr=0.1", folds=2, settings=[f"train.momentum={momentum}"])
        (tmp_path / "tune.json").unlink()
    assert len([*tmp_path.glob("*fold?of2")]) == 4


def test_a_point_that_diverges_comes_last(tmp_path):
    points = search(tmp_path, "train.lr=1e30,0.1", folds=2)
    assert [str(point) for point in points][1] == "diverged"
    assert points[0].settings == ("train.lr=0.1",)
    assert tune.choice(points).startswith("chosen: train.lr=0.1 with")


def test_the_choice_says_by_how_much():
    points = [Point(("a=1",), (0.5, 0.52, 0.54)), Point(("a=2",), (0.5, 0.5, 0.5))]
    assert tune.choice(points) == "chosen: a=1 with 52.0 ± 2.0 %, 2.0 points ahead of a=2"
    points = [Point(("a=1",), (0.5, 0.5)), Point(("a=2",), (0.4, 0.6))]
    assert tune.choice(points) == "chosen: a=1 with 50.0 ± 0.0 %; a=2 is as good"


def test_axes():
    assert tune.parse_axis("train.lr=0.1, 5e-2") == ["train.lr=0.1", "train.lr=5e-2"]
    assert tune.parse_axis("train.milestones=[1,2],[3]") == ["train.milestones=[1,2]", "train.milestones=[3]"]
    for wrong in ("train.lr", "=1", "train.lr=1,,2"):
        with pytest.raises(UserError, match="--grid wants"):
            tune.parse_axis(wrong)


@pytest.mark.parametrize(
    ("grid", "settings", "folds", "message"),
    [
        ([], [], 3, "Say what to try"),
        (["train.lr=0.1"], [], 1, "--folds must be 2"),
        (["train.lr=0.1"], ["stream.take=3"], 3, "needs four"),
        (["stream.split=5,2"], [], 3, "stream.split decides what is judged, so it cannot be tuned"),
        (["evaluate={top: 1},{top: 5}"], [], 3, "evaluate decides what is judged, so it cannot be tuned"),
        (["train.lrr=1"], [], 3, "Did you mean 'train.lr'"),
        (["train.lr=0.1,0.2", "train.lr=0.3"], [], 3, "train.lr is given twice"),
        (["train.lr=0.1,0.2"], ["train={lr: 0.3}"], 3, "train.lr is both set and tried"),
        (["coreset.size=10,20"], [], 3, "coreset.size=10 or coreset.size=20 .* 'base' does not use that setting"),
        (["train.lr=0.1,0.10"], [], 3, "the values are equal"),
        (["train.lr=0.1"], [], 500, "fewer than 500 training images"),
    ],
)
def test_mistakes(tmp_path, grid, settings, folds, message):
    with pytest.raises(UserError, match=message):
        search(tmp_path, *grid, folds=folds, settings=settings)
    assert list(tmp_path.iterdir()) == []
