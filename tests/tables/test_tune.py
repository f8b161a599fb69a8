"""Tuning: folds of the training images of the first half of the tasks, and never a test image."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from reverie import configure, tune_settings
from reverie.data.sources import read_dataset
from reverie.engine.observer import Observer
from reverie.errors import UserError
from reverie.runs import configure as runs_configure
from reverie.runs.configure import folder_name, load_dataset, make_stream
from reverie.runs.result import read_result
from reverie.runs.run import _Run, run
from reverie.tables import tune
from reverie.tables.tune import Point, Tuning, first_half, fold_numbers, fold_of, parse_axis
from tests.support.experiments import TINY

QUICK = [*TINY, "train.epochs=1"]


class OutOfReach:
    """Test images that nobody may look at."""

    def __getattr__(self, name):
        raise AssertionError(f"somebody reached for the test images: {name}")


@pytest.fixture
def digits(tiny):
    config = tiny("base")
    return config, load_dataset(config)


@pytest.fixture
def guarded(monkeypatch):
    """Whatever is read has test images that cannot be touched."""

    def reading(*args):
        dataset = read_dataset(*args)
        object.__setattr__(dataset, "test", OutOfReach())
        return dataset

    monkeypatch.setattr(runs_configure, "read_dataset", reading)


def content(image):
    return image.numpy().tobytes()


def search(out, *grid, method="base", folds=3, settings=()):
    return tune_settings(
        "digits-5",
        grid,
        method,
        folds=folds,
        settings=[*QUICK, *settings],
        out=out,
        device="cpu",
        command="reverie tune",
    )


def test_folds_are_even_in_every_class_and_the_same_each_time():
    labels = torch.tensor([0] * 10 + [1] * 7 + [2] * 3)[torch.randperm(20)]
    number = fold_numbers(labels, 3, seed=5)
    assert torch.equal(number, fold_numbers(labels, 3, seed=5))
    assert not torch.equal(number, fold_numbers(labels, 3, seed=6))
    for label in range(3):
        counts = torch.bincount(number[labels == label], minlength=3)
        assert counts.max() - counts.min() <= 1


def test_a_fold_is_training_images_of_the_first_half_and_each_is_judged_once(digits):
    config, dataset = digits
    classes, tasks = first_half(config, dataset)
    assert (len(classes), tasks) == (4, 2)
    assert classes == make_stream(config, dataset).classes[:4]
    object.__setattr__(dataset, "test", OutOfReach())
    wanted = dataset.train.pixels[torch.isin(dataset.train.labels, torch.tensor(classes))]
    every, judged = sorted(map(content, wanted)), []
    for fold in range(3):
        part = fold_of(dataset, classes, fold, 3, seed=0)
        assert {*part.train.labels.tolist()} == {*part.test.labels.tolist()} == {*classes}
        assert sorted(map(content, torch.cat([part.train.pixels, part.test.pixels]))) == every
        judged += map(content, part.test.pixels)
    assert sorted(judged) == every


def test_every_fold_is_a_data_set_of_its_own(digits):
    _, dataset = digits
    known_by_content = replace(dataset, content="abc")  # as folders of images are
    folds = [fold_of(known_by_content, [0, 1], fold, 3, 0) for fold in range(3)]
    assert len({part.fingerprint() for part in folds}) == 3


def test_a_point_that_diverged_on_one_fold_is_worse_than_any_other():
    assert Point(("a=1",), (0.9, None, 0.9)).mean < Point(("a=2",), (0.01, 0.0, 0.01)).mean


def test_tuning_never_touches_the_test_images(tmp_path, guarded, monkeypatch):
    handed = []
    monkeypatch.setattr(tune, "run", lambda *args, **how: handed.append(how["dataset"]) or run(*args, **how))
    tuning = search(tmp_path, "train.lr=0.1,0.001", folds=2)
    assert len(handed) == 4
    assert all(type(part.test) is type(part.train) for part in handed)
    first, second = tuning.points
    assert first.mean > second.mean
    written = json.loads((tmp_path / "tune.json").read_text())
    assert written == tuning.as_dict()
    assert written["chosen"] == list(first.settings)
    assert (written["tasks"], len(written["classes"]), written["folds"]) == (2, 4, 2)
    assert "points ahead of" in written["by"]
    assert written["environment"]["device"] == "cpu"
    config = configure("digits-5", "base", settings=[*QUICK, "train.lr=0.1"])
    folder = f"{folder_name(config, [*QUICK, 'train.lr=0.1'])}-fold1of2"
    result = read_result(tmp_path / folder / "result.json")
    assert result.task_sizes == [2, 2]
    assert sum(result.test_images) == len(handed[0].test)


def test_a_grid_by_key_is_searched_and_what_was_chosen_can_be_configured(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = []

    class Telling(Observer):
        def task_ends(self, index, accuracy):
            told.append(accuracy)

    tuning = tune_settings(
        "digits-5",
        {"train.milestones": [[1], []], "train.lr": [0.05]},
        "base",
        folds=2,
        settings={"data.size": 8, "train.epochs": 1, "train.batch_size": 16},
        device="cpu",
        observer=Telling(),
    )
    assert len(told) == 2 * 2 * 2  # points, folds, tasks
    assert tuning.file == Path("runs/tune-digits-5-base/tune.json")
    assert {point.settings for point in tuning.points} == {
        ("train.milestones=[1]", "train.lr=0.05"),
        ("train.milestones=[]", "train.lr=0.05"),
    }
    config = configure("digits-5", "base", settings=tuning.chosen)
    assert f"train.milestones={list(config.train.milestones)}" == tuning.points[0].settings[0]
    assert config.train.lr == 0.05
    assert str(tuning).splitlines()[2] == f"| {', '.join(tuning.points[0].settings)} | {tuning.points[0]} |"
    assert str(tuning).splitlines()[-1] == tuning.choice()


@pytest.mark.parametrize(
    ("settings", "chosen"),
    [
        (["train.lr=0.1", "method.distillation=2"], {"train.lr": 0.1, "method.distillation": 2}),
        (["train={lr: 0.1, momentum: 0.5}"], {"train.lr": 0.1, "train.momentum": 0.5}),
        (["train.milestones=[1, 2]", "keep=[models]"], {"train.milestones": [1, 2], "keep": ["models"]}),
    ],
)
def test_what_was_chosen_is_given_by_key_however_it_was_written(settings, chosen):
    tuning = Tuning([Point(tuple(settings), (0.5,))], None, None)
    assert tuning.chosen == chosen
    assert configure("digits-5", "lwf", settings=tuning.chosen) == configure("digits-5", "lwf", settings=settings)


def test_a_search_that_is_called_again_trains_nothing(tmp_path, monkeypatch):
    first = search(tmp_path, "method.distillation=0.5,2", method="lwf", folds=2)
    shared = [read_result(folder / "result.json").first_task for folder in tmp_path.glob("*fold2of2")]
    assert [found.trained_by.method for found in shared if found] == ["lwf"]  # of the same fold
    monkeypatch.setattr(_Run, "go", lambda self: pytest.fail("trained again"))
    assert search(tmp_path, "method.distillation=0.5,2", method="lwf", folds=2).points == first.points


def test_another_number_of_folds_is_another_search(tmp_path):
    two = search(tmp_path, "train.lr=0.1", folds=2)
    (tmp_path / "tune.json").unlink()
    three = search(tmp_path, "train.lr=0.1", folds=3)
    alone = search(tmp_path / "alone", "train.lr=0.1", folds=3)
    assert [point.accuracies for point in three.points] == [point.accuracies for point in alone.points]
    assert len(two.points[0].accuracies) == 2


def test_what_another_search_found_is_not_lost(tmp_path):
    search(tmp_path, "train.lr=0.1", folds=2)
    written = (tmp_path / "tune.json").read_text()
    runs_made = len([*tmp_path.glob("*fold?of2")])
    for grid, settings, why in (
        (["train.lr=0.2"], [], "grid"),
        (["train.lr=0.1"], ["train.momentum=0.5"], "settings"),
    ):
        with pytest.raises(UserError, match=rf"another search \({why}\). Choose another `out`"):
            search(tmp_path, *grid, folds=2, settings=settings)
    assert (tmp_path / "tune.json").read_text() == written
    assert len([*tmp_path.glob("*fold?of2")]) == runs_made
    assert len(search(tmp_path, "train.lr=0.1,0.2", folds=2).points) == 2  # which has it all
    (tmp_path / "tune.json").write_text("[]")
    with pytest.raises(UserError, match=r"tune\.json is damaged: .* Choose another `out`"):
        search(tmp_path, "train.lr=0.1", folds=2)


def test_runs_of_the_same_point_with_other_settings_for_all_lie_beside_each_other(tmp_path):
    for momentum in ("0.5", "0.6"):
        search(tmp_path, "train.lr=0.1", folds=2, settings=[f"train.momentum={momentum}"])
        (tmp_path / "tune.json").unlink()
    assert len([*tmp_path.glob("*fold?of2")]) == 4


def test_a_point_that_diverges_comes_last(tmp_path):
    tuning = search(tmp_path, "train.lr=1000,0.1", folds=2)
    assert [str(point) for point in tuning.points][1] == "diverged"
    assert tuning.points[0].settings == ("train.lr=0.1",)
    assert tuning.choice().startswith("chosen: train.lr=0.1 with")
    assert tuning.chosen == {"train.lr": 0.1}


def test_where_every_point_diverged_nothing_is_chosen():
    tuning = Tuning([Point(("train.lr=1e30",), (None, 0.5))], None, None)
    assert tuning.chosen is None
    assert tuning.choice() == "Every point diverged; nothing is chosen."


def test_the_choice_says_by_how_much():
    ahead = Tuning([Point(("a=1",), (0.5, 0.52, 0.54)), Point(("a=2",), (0.49, 0.49, 0.49))], None, None)
    assert ahead.choice() == "chosen: a=1 with 52.0 ± 2.0 %, 3.0 points ahead of a=2"
    as_good = Tuning([Point(("a=1",), (0.5, 0.5)), Point(("a=2",), (0.4, 0.6))], None, None)
    assert as_good.choice() == "chosen: a=1 with 50.0 ± 0.0 %; a=2 is as good"


def test_a_lead_smaller_than_the_spread_over_folds_is_said_to_be_none():
    close = Tuning([Point(("a=1",), (0.50, 0.52)), Point(("a=2",), (0.49, 0.51))], None, None)
    said = "chosen: a=1 with 51.0 ± 1.4 %; that is no lead: a=2 is 1.0 points behind, and the folds of one of them"
    assert close.choice() == f"{said} spread by 1.4"
    assert close.choice() in str(close)


def test_axes():
    assert parse_axis("train.lr=0.1, 5e-2") == ["train.lr=0.1", "train.lr=5e-2"]
    assert parse_axis("train.milestones=[1,2],[3]") == ["train.milestones=[1,2]", "train.milestones=[3]"]
    for wrong in ("train.lr", "=1", "train.lr=1,,2"):
        with pytest.raises(UserError, match="`grid` wants"):
            parse_axis(wrong)


@pytest.mark.parametrize(
    ("grid", "settings", "folds", "message"),
    [
        ([], [], 3, "Say what to try, for example `grid`"),
        (["train.lr=0.1"], [], 1, "`folds` must be a whole number from 2 to 1,000, not 1"),
        (["train.lr=0.1"], [], 10**9, "`folds` must be a whole number from 2 to 1,000"),
        (["train.lr=0.1"], [], "3", "`folds` must be a whole number"),
        (["train.lr=0.1"], ["stream.take=3"], 3, "needs four"),
        (["stream.split=5,2"], [], 3, "stream.split decides what is judged, so it cannot be tuned"),
        (["evaluate={top: 1},{top: 5}"], [], 3, "evaluate decides what is judged, so it cannot be tuned"),
        (["train.lrr=1"], [], 3, "Did you mean 'train.lr'"),
        (["train.lr=0.1,0.2", "train.lr=0.3"], [], 3, "train.lr is given twice in `grid`"),
        (["train.lr=0.1,0.2"], ["train={lr: 0.3}"], 3, "train.lr is both set and tried: .* `settings` or of `grid`"),
        (["coreset.size=10,20"], [], 3, "coreset.size=10 or coreset.size=20 .* 'base' does not use that setting"),
        (["train.lr=0.1,0.10"], [], 3, "the values are equal"),
        (["train.lr=0.1"], [], 500, "fewer than 500 training images"),
    ],
)
def test_mistakes(tmp_path, grid, settings, folds, message):
    with pytest.raises(UserError, match=message):
        search(tmp_path, *grid, folds=folds, settings=settings)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("values", [0.1, "0.1,0.2", None])
def test_a_grid_by_key_wants_a_list_for_each_key(values, tmp_path):
    with pytest.raises(UserError, match=r"`grid` has a list of values for each key, such as .*; train.lr has "):
        tune_settings("digits-5", {"train.lr": values}, "base", out=tmp_path / "out")
    with pytest.raises(UserError, match=r"train.lr cannot be <object"):
        tune_settings("digits-5", {"train.lr": [0.1, object()]}, "base", out=tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
