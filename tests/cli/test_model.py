"""The verbs for model folders, as a person types them."""

import json

import pytest
import torch

from reverie import load
from reverie.nets.backbone import Architecture
from reverie.nets.external import build
from reverie.nets.statistics import batchnorm_layers
from tests.conftest import write_digits


@pytest.fixture
def files(tmp_path):
    """A trained network's weights, such as it would be after training, and the names of its classes."""
    network = build(Architecture.parse("timm/test_resnet"), 3, 2).train()
    for layer in batchnorm_layers(network):
        layer.momentum = 1.0
    network(torch.randn(8, 3, 16, 16))
    torch.save(network.state_dict(), tmp_path / "weights.pth")
    (tmp_path / "names.txt").write_text("apple\npear\n")
    return ["test_resnet", "weights.pth", "--classes", "names.txt", "--to", "mine", "--size", "16"]


def test_adopt_says_what_it_took_the_model_for_and_whether_it_can_be_dreamed_from(reverie, files, tmp_path):
    code, out, _ = reverie("adopt", *files)
    assert code == 0
    assert "timm/test_resnet" in out
    assert "2 classes" in out
    assert "16×16 pixels, less 0.5, 0.5, 0.5, divided by 0.5, 0.5, 0.5" in out
    assert "15 layers remember" in out
    assert out.splitlines()[-1] == "mine"
    assert load(tmp_path / "mine").task_learner.classifier.class_names == ("apple", "pear")
    (entry,) = json.loads((tmp_path / "mine" / "ledger.json").read_text())
    assert entry["preflight"]["layers"] == 15
    assert entry["source"] == "weights.pth"
    code, _, err = reverie("adopt", *files)
    assert code == 2
    assert "exists already" in err


def test_adopt_without_check_and_with_numbers_of_ones_own(reverie, files, tmp_path):
    code, out, _ = reverie("adopt", *files, "--mean", "0.3,0.3,0.3", "--std", "0.2,0.2,0.2", "--no-check")
    assert code == 0
    assert "remember" not in out
    assert load(tmp_path / "mine").task_learner.classifier.preprocessing.deviation == (0.2, 0.2, 0.2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--mean", "a,b"], "--mean wants a number a channel"),
        (["--mean", "0.5"], "belong together"),
        (["--family", "torchvision"], "torchvision has no network 'test_resnet'"),
        (["--classes", "nowhere.txt"], "nowhere.txt cannot be read"),
    ],
)
def test_a_mistake_in_adopt_ends_in_a_message_and_leaves_nothing_behind(reverie, files, tmp_path, words, message):
    code, _, err = reverie("adopt", *files, *words)
    assert code == 2
    assert message in err
    assert not (tmp_path / "mine").exists()


def test_the_report_of_learn_as_json_and_nothing_else(tmp_path, reverie):
    write_digits(tmp_path / "photos", (0, 1), 10)
    words = ["learn", "photos", "--to", "model", "--set", "train.epochs=1", "--device", "cpu", "--json"]
    code, out, err = reverie(*words)
    told = json.loads(out)
    assert code == 0
    assert told["folder"] == "model"
    assert told["new"]["images"] == 4
    assert "too few held-out images of 0, 1 to judge them" in told["reasons"]
    assert "2 new classes" in err
