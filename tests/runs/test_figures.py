"""Figures: the matrix is what the model says, and Omega what the upper bound makes of it."""

import math

import numpy as np
import pytest
import torch

import reverie
from reverie.errors import UserError
from reverie.learner.folder import RunFolder
from reverie.runs import figures
from reverie.runs.configure import make_stream
from reverie.runs.figures import finished_result, make_figures
from reverie.runs.predictions import Predictions
from reverie.runs.result import read_result
from reverie.runs.run import run
from tests.support.experiments import few_digits, method_config


def test_the_matrix_is_what_the_model_says(whole):
    made = whole(method_config("base"))
    stream = make_stream(method_config("base"), few_digits())
    result, learner = made.result, reverie.load(made.folder / "model").task_learner
    test = stream.test()
    right = (learner.predict(test).labels[:, 0] == test.labels).numpy()
    task = (test.labels // 2).numpy()
    assert result.accuracy_matrix[2] == pytest.approx([right[task == j].mean() for j in range(3)])
    assert result.accuracy_matrix[0][1:] == [None, None]
    assert result.test_images == np.bincount(task).tolist()
    assert result.metrics.final_accuracy == pytest.approx(right.mean())
    assert result.metrics.accuracy_after[-1] == result.metrics.final_accuracy
    logits = torch.cat(list(learner.logits(test)))
    own = [
        (logits[i, 2 * task[i] : 2 * task[i] + 2].argmax() + 2 * task[i] == test.labels[i]).item()
        for i in range(len(test))
    ]
    assert result.metrics.task_local_accuracy == pytest.approx([np.mean(np.array(own)[task == j]) for j in range(3)])


def test_the_figures_are_made_of_the_predictions_on_disk_alone(whole):
    made = whole(method_config("bic"))
    again = make_figures(RunFolder(made.folder), method_config("bic"), figures.Tested.of(made.result))
    assert vars(again) == {name: getattr(made.result, name) for name in vars(again)}
    assert again.uncorrected_accuracy_after is not None


def test_top_five_counts_when_the_class_is_among_the_first_five(whole):
    made = whole(method_config("base").with_settings({"evaluate.top": 5}))
    metrics = made.result.metrics
    predictions = np.load(made.folder / "tasks" / "03" / "predictions.npz")
    among = (predictions["top"] == predictions["label"][:, None]).any(1)
    assert predictions["top"].shape[1] == 5
    assert metrics.final_accuracy == pytest.approx(among.mean())
    assert math.isclose(metrics.accuracy_after[0], 1.0)  # two classes: always among five


def test_omega_refers_to_the_upper_bound_of_the_same_prefix(finished, tmp_path):
    bound = finished(method_config("joint"))
    (tmp_path / "run").rename(tmp_path / "joint")
    (tmp_path / "upper-bounds").rename(tmp_path / "not yet")
    without = finished(method_config("base"))
    assert without.metrics.omega is None
    assert bound.metrics.omega == pytest.approx(1)
    assert bound.metrics.forgetting is None
    (tmp_path / "not yet").rename(tmp_path / "upper-bounds")
    again = run(method_config("base"), tmp_path / "run")  # finished, but now Omega can be told
    ratios = [a / b for a, b in zip(again.metrics.accuracy_after, bound.metrics.accuracy_after, strict=True)]
    assert again.metrics.omega == pytest.approx(sum(ratios) / 3)
    assert again.metrics.omega_up_to[1] == pytest.approx(sum(ratios[:2]) / 2)
    assert again.upper_bound.accuracy_after == bound.metrics.accuracy_after
    assert read_result(tmp_path / "run" / "result.json") == again
    assert again.replace(metrics=without.metrics, upper_bound=None) == without


def test_a_result_that_was_told_already_is_not_written_again(finished, tmp_path):
    finished(method_config("joint"))
    file = tmp_path / "run" / "result.json"
    stamp = file.stat().st_mtime_ns
    assert finished_result(RunFolder(tmp_path / "run"), method_config("joint")).metrics.omega == pytest.approx(1)
    assert file.stat().st_mtime_ns == stamp


def test_an_upper_bound_that_is_always_wrong_gives_no_omega(finished, tmp_path):
    """There is nothing to divide by."""
    finished(method_config("joint"))
    for entry in (tmp_path / "upper-bounds").iterdir():
        kept = Predictions.from_bytes((entry / "predictions.npz").read_bytes())
        kept.top[:] = -1
        (entry / "predictions.npz").write_bytes(kept.to_bytes())
    (tmp_path / "run").rename(tmp_path / "joint")
    finished(method_config("base"))
    assert run(method_config("base"), tmp_path / "run").metrics.omega is None


def test_a_finished_run_whose_result_is_of_something_else_says_so(finished, tmp_path):
    finished(method_config("base"))
    (tmp_path / "run" / "result.json").write_text('{"schema": 1, "preset": 5}')
    with pytest.raises(UserError, match=r"result.json is damaged: .*Delete it to start the run anew\.$"):
        finished_result(RunFolder(tmp_path / "run"), method_config("base"))
