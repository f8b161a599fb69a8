"""The pre-flight: a model that remembers passes, one that does not is doubted, in words and as data."""

import json
from dataclasses import replace

import pytest
import torch

from reverie.data.preprocessing import Preprocessing
from reverie.model.folder import load_model
from reverie.model.preflight import Preflight, run_preflight
from reverie.nets import make_backbone
from reverie.nets.classifier import Classifier

GOOD = Preflight(20, True, 60, 100, 10, 9, 10.0, 0.9, 0.5, 20.0)


def test_a_trained_classifier_can_be_dreamed_from_and_is_left_as_it_is(world):
    classifier = load_model(world / "old").classifier
    before = {name: value.clone() for name, value in classifier.state_dict().items()}
    found = run_preflight(classifier)
    assert found.layers == 7
    assert found.passed, found.lines()
    assert found.gap < found.gap_of_noise / 2
    assert all(torch.equal(value, before[name]) for name, value in classifier.state_dict().items())
    assert classifier.head.weight.requires_grad


def test_what_is_found_depends_on_no_random_number_but_the_seeds(world):
    classifier = load_model(world / "old").classifier
    torch.manual_seed(1)
    found = run_preflight(classifier, steps=3)
    torch.manual_seed(2)
    assert run_preflight(classifier, steps=3) == found
    assert run_preflight(classifier, steps=3, seed=1) != found


def test_a_network_that_was_never_trained_is_doubted():
    classifier = Classifier(make_backbone("resnet8", 1), Preprocessing(8, (0.3,), (0.4,)))
    classifier.grow(["a", "b"])
    found = run_preflight(classifier, steps=1)
    assert not found.passed
    assert "never trained" in found.lines()[2]


def test_what_was_found_is_said_in_words_and_can_be_written_down():
    assert GOOD.lines()[-1] == "This model can be dreamed from."
    assert "9 of 10 classes" in GOOD.lines()[1]
    assert json.loads(json.dumps(GOOD.as_dict()))["passed"] is True


@pytest.mark.parametrize(
    ("change", "doubt"),
    [
        ({"shown": 4}, "only 4 of its 10 classes"),
        ({"confidence": 0.3}, "not sure of what it sees"),
        ({"gap": 15.0}, "hardly more like training images than noise"),
    ],
)
def test_each_doubt_is_named(change, doubt):
    found = replace(GOOD, **change)
    assert not found.passed
    assert len(found.doubts) == 1
    assert doubt in found.lines()[2]


def test_many_classes_are_not_expected_in_few_dreams():
    many = replace(GOOD, classes=1000, dreams=400, shown=200, possible=1000 * (1 - 0.999**400))
    assert many.passed
