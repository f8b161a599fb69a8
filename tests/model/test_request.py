"""What a person asks of a step, and what is refused before anything is read."""

from pathlib import Path

import pytest

from reverie.errors import UserError
from reverie.model.request import LearnRequest, method_to_begin_with, starting_weights


def test_a_budget_and_a_schedule_exclude_each_other():
    with pytest.raises(UserError, match=r"so does train\.epochs=3"):
        LearnRequest(settings=("train.epochs=3",), budget=60)


def test_a_persons_words_become_a_request():
    asked = LearnRequest.of("lwf", 3, {"train.lr": 0.05}, "weights.pth", "2min", "skip")
    assert asked == LearnRequest("lwf", 3, ("train.lr=0.05",), Path("weights.pth"), 120.0, "skip")
    assert LearnRequest.of("abd", 0, ["train.lr=0.05"], None, 90, "error").budget == 90.0


@pytest.mark.parametrize("method", ["bic", "joint", "dgr"])
def test_a_method_that_needs_more_than_a_model_is_refused(method):
    with pytest.raises(UserError, match=rf"The method '{method}' keeps .* Choose another `method`, one of .*lucid"):
        LearnRequest(method)


@pytest.mark.parametrize("setting", ["stream.split=5", "coreset.size=3", "keep=[models]", "net.head=all"])
def test_what_is_for_experiments_is_refused(setting):
    with pytest.raises(UserError, match="is for experiments"):
        LearnRequest(settings=(setting,))


def test_a_network_that_begins_with_weights_rests_unless_told_otherwise():
    assert [method_to_begin_with(starts) for starts in (False, True)] == ["abd", "ranpac"]


def test_without_a_wish_for_pretrained_weights_everything_stays_as_asked():
    assert starting_weights(("data.size=32",), None, False) == (("data.size=32",), None)
    assert starting_weights((), "weights.pth", False) == ((), Path("weights.pth"))
