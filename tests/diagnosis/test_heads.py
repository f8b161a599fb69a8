"""Heads and maps compared on kept features: the run itself is found again, and nothing else is trained."""

import shutil

import pytest
import safetensors.torch
import torch

from reverie import compare_heads
from reverie.diagnosis.heads import HEADS, SOURCES
from reverie.engine.observer import Observer
from reverie.errors import Interrupted, UserError
from reverie.model.folder import load_model
from reverie.runs.configure import make_stream
from reverie.runs.kept_features import FEATURES, KeptFeatures
from tests.support.experiments import StopAt, few_digits, method_config, quick_run

KEEP = "keep=[features]"


class StopInStage(Observer):
    def __init__(self, task, stage):
        self.where, self.task = (task, stage), 0

    def task_begins(self, index, count):
        self.task = index + 1

    def stage_begins(self, stage):
        if (self.task, stage.name) == self.where:
            raise Interrupted


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "lucid"
    return folder, quick_run(method_config("lucid").with_settings([KEEP]), folder)


def test_the_run_itself_is_found_again(finished):
    folder, result = finished
    found = compare_heads(folder, sources="both", heads="linear")
    (only,) = found.results
    assert only.accuracies == pytest.approx(result.metrics.accuracy_after)
    assert (found.preset, found.method, found.seed) == ("digits-5", "lucid", 0)
    assert found.run == str(folder)


def test_all_ways_and_all_heads_are_compared(finished):
    found = compare_heads(finished[0])
    assert [(one.source, one.head) for one in found.results] == [
        ("trained", "linear"),
        *((s, h) for s in SOURCES if s != "trained" for h in HEADS),
    ]
    assert all(len(one.accuracies) == 3 for one in found.results)
    _, *others = found.results
    first = {one.accuracies[0] for one in others if one.head == "linear"}
    assert len(first) == 1  # nothing has been moved yet
    header, rows = found.grid()
    assert len(rows) == 16 and header[2:] == ["A_N", "average A"]
    shown = str(found).splitlines()
    assert len(shown) == 17 and shown[-1].startswith("(measured on all images)  prototype")


def test_the_training_head_stands_beside_them_as_the_network_has_it(finished):
    folder, _ = finished
    (only,) = compare_heads(folder, sources="trained").results
    config = method_config("lucid")
    stream = make_stream(config, few_digits())
    learner = load_model(folder / "model").plain_learner(torch.device("cpu"))
    learner.classifier.answer_by(None)
    assert only.accuracies[-1] == pytest.approx(learner.score(stream[:3].test()))


def test_a_run_of_an_earlier_version_does_not_tell_of_its_training_head(finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished[0], folder)
    for file in folder.rglob(FEATURES):
        tensors = {name: value for name, value in safetensors.torch.load_file(file).items() if name != "trained"}
        safetensors.torch.save_file(tensors, file)
    assert "trained" not in {one.source for one in compare_heads(folder, heads="prototype").results}
    with pytest.raises(UserError, match="earlier version"):
        compare_heads(folder, sources=["trained"])


def test_without_fixed_features_it_is_the_run_without_them(finished, tmp_path):
    folder, result = finished
    other = quick_run(method_config("lucid").with_settings([KEEP, "method.fixed=false"]), tmp_path / "other")
    found = compare_heads(folder, sources="both", heads="linear", fixed=False)
    assert found.results[0].accuracies == pytest.approx(other.metrics.accuracy_after)
    assert not found.fixed and not compare_heads(tmp_path / "other", sources="true", heads="prototype").fixed
    asked = compare_heads(tmp_path / "other", sources="both", heads="linear", fixed=True)
    assert asked.fixed and asked.results[0].accuracies == pytest.approx(result.metrics.accuracy_after)


def test_a_run_of_an_earlier_version_has_no_fixed_features(finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished[0], folder)
    for file in folder.rglob(FEATURES):
        tensors = safetensors.torch.load_file(file)
        for name in [
            name for name in tensors if "fixed" in name or name in ("views", "images.labels", "dreams.labels")
        ]:
            del tensors[name]
        if "images.before" not in tensors:
            tensors.pop("images.after", None)
        safetensors.torch.save_file(tensors, file)
    assert not compare_heads(folder, sources="both", heads="linear").fixed
    with pytest.raises(UserError, match="has kept no fixed features: it was made by an earlier version"):
        compare_heads(folder, fixed=True)


def test_options_are_those_of_the_method(finished, tmp_path):
    folder, _ = finished
    settings = {"method.residual": False, "method.head": "gaussian", "method.map": "images", "method.pooled": 0.5}
    other = quick_run(method_config("lucid").with_settings(settings), tmp_path / "other")
    found = compare_heads(folder, sources=["images"], heads=["gaussian"], residual=False, pooled=0.5)
    assert found.results[0].accuracies == pytest.approx(other.metrics.accuracy_after)


def test_true_statistics_are_those_of_all_training_images(finished):
    kept = KeptFeatures.read(finished[0] / "tasks" / "03" / FEATURES)
    assert len(kept.true) == 6 and kept.true.form == "own"
    assert kept.true.counts.tolist() == [48] * 6
    assert kept.images.before.shape == (96, 64) and len(kept.dreams.after) == 1000
    first = KeptFeatures.read(finished[0] / "tasks" / "01" / FEATURES)
    assert first.images is None and first.dreams is None


def test_a_run_that_was_stopped_keeps_the_same(finished, tmp_path):
    config = method_config("lucid").with_settings([KEEP])
    for stop in (StopAt(2, "refine", 1), StopInStage(3, "move statistics"), StopInStage(3, "fit head")):
        with pytest.raises(Interrupted):
            quick_run(config, tmp_path / "run", observer=stop)
    quick_run(config, tmp_path / "run")
    for number in ("01", "02", "03"):
        ours, theirs = (
            safetensors.torch.load_file(folder / "tasks" / number / FEATURES)
            for folder in (tmp_path / "run", finished[0])
        )
        assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_method_without_dreams_is_moved_by_images_alone(tmp_path):
    folder = tmp_path / "lwf"
    quick_run(method_config("lwf").with_settings([KEEP]), folder)
    assert {one.source for one in compare_heads(folder, heads=["prototype"]).results} == {
        "trained",
        "none",
        "images",
        "true",
    }
    with pytest.raises(UserError, match=r"cannot be moved by both: the method 'lwf' has no dreams"):
        compare_heads(folder, sources=["images", "both"])


def test_a_method_without_a_teacher_has_statistics_that_stay_and_true_ones(tmp_path):
    folder = tmp_path / "base"
    quick_run(method_config("base").with_settings([KEEP]), folder)
    assert {one.source for one in compare_heads(folder, heads="prototype").results} == {"trained", "none", "true"}
    with pytest.raises(UserError, match="has no teacher"):
        compare_heads(folder, sources="images")


def test_the_upper_bound_has_nothing_to_move_and_keeps_none(tmp_path):
    folder = tmp_path / "joint"
    quick_run(method_config("joint").with_settings([KEEP]), folder)
    with pytest.raises(UserError, match="has kept no features"):
        compare_heads(folder)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"sources": "dream"}, "'dream' is not. Did you mean 'dreams'?"),
        ({"heads": ["linear", "svm"]}, "`heads` are among linear, gaussian, prototype; 'svm' is not"),
        ({"heads": []}, "one or several names"),
        ({"ridge": -1}, "`ridge` must be a number of at least 0 and at most 1000, not -1"),
        ({"pooled": 1.5}, "`pooled` must be"),
        ({"dream_weight": "much"}, "`dream_weight` must be"),
    ],
)
def test_mistakes_are_told(finished, how, said):
    with pytest.raises(UserError) as error:
        compare_heads(finished[0], **how)
    assert said in str(error.value)


def test_a_folder_that_is_no_run_or_kept_nothing_is_told(finished, tmp_path):
    with pytest.raises(UserError, match="is not a run folder"):
        compare_heads(tmp_path)
    shutil.copy(finished[0] / "config.yaml", tmp_path)
    with pytest.raises(UserError, match=r"has kept no features\. Make another run with the setting keep=\[features\]"):
        compare_heads(tmp_path)


def damage_bytes(file, tensors):
    file.write_bytes(file.read_bytes()[:100])


def damage_labels(file, tensors):
    tensors["test_labels"] += 100
    safetensors.torch.save_file(tensors, file)


def damage_pairs(file, tensors):
    tensors["images.after"] = tensors["images.after"][:-1].clone()
    safetensors.torch.save_file(tensors, file)


def damage_test(file, tensors):
    tensors["test"] = tensors["test"][:, :-1].clone()
    safetensors.torch.save_file(tensors, file)


def damage_fixed(file, tensors):
    tensors["fixed.test"] = tensors["fixed.test"][:, :-1].clone()
    safetensors.torch.save_file(tensors, file)


def damage_fixed_of_dreams(file, tensors):
    tensors["dreams.fixed"] = tensors["dreams.fixed"][:-1].clone()
    safetensors.torch.save_file(tensors, file)


def damage_views(file, tensors):
    tensors["views"] = torch.zeros(())
    safetensors.torch.save_file(tensors, file)


def damage_names(file, tensors):
    del tensors["images.fixed"]
    safetensors.torch.save_file(tensors, file)


@pytest.mark.parametrize(
    "damage",
    [
        damage_bytes,
        damage_labels,
        damage_pairs,
        damage_test,
        damage_fixed,
        damage_fixed_of_dreams,
        damage_views,
        damage_names,
    ],
)
def test_damaged_files_are_told(finished, tmp_path, damage):
    shutil.copytree(finished[0], tmp_path / "run")
    file = tmp_path / "run" / "tasks" / "02" / FEATURES
    damage(file, safetensors.torch.load_file(file))
    with pytest.raises(UserError, match=r"features\.safetensors is damaged"):
        compare_heads(tmp_path / "run")


def test_features_of_another_run_are_told(finished, tmp_path):
    shutil.copytree(finished[0], tmp_path / "run")
    tasks = tmp_path / "run" / "tasks"
    shutil.copy(tasks / "03" / FEATURES, tasks / "02" / FEATURES)
    with pytest.raises(UserError, match="are not those of one run"):
        compare_heads(tmp_path / "run")
