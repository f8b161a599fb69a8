"""The model folder: everything in it, no code run by loading it, damage noticed."""

import json

import pytest
import torch
from safetensors.torch import load_file

import reverie
from reverie.errors import UserError
from reverie.learner import TaskLearner
from reverie.runs import _preprocessing


@pytest.fixture
def folder(tiny, tiny_stream, tmp_path):
    learner = TaskLearner.fresh(tiny("base", "train.epochs=1"), _preprocessing(tiny_stream))
    learner.learn(tiny_stream[0])
    learner.save(tmp_path / "model")
    return tmp_path / "model"


def test_it_holds_weights_settings_a_card_and_the_ledger(folder, tiny_stream):
    assert sorted(file.name for file in folder.iterdir()) == [
        "README.md",
        "config.json",
        "ledger.json",
        "model.safetensors",
    ]
    settings = json.loads((folder / "config.json").read_text())
    assert settings["classes"] == list(tiny_stream[0].names)
    assert settings["preprocessing"] == {"size": 8, "mean": [0.305], "deviation": [0.376]}
    assert "head.weight" in load_file(folder / "model.safetensors")
    card = (folder / "README.md").read_text()
    assert "nothing (0 bytes)" in card
    assert "reverie.load" in card


def test_nothing_is_overwritten(folder):
    learner = reverie.load(folder)
    with pytest.raises(UserError, match="exists already"):
        learner.save(folder)
    learner.save(folder, overwrite=True)
    assert [entry.name for entry in folder.parent.iterdir() if entry.name.startswith(".")] == []


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "ledger.json"])
def test_a_damaged_folder_is_an_error(folder, file):
    content = (folder / file).read_bytes()
    (folder / file).write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match="damaged"):
        reverie.load(folder)


def test_weights_that_do_not_fit_are_an_error(folder):
    settings = json.loads((folder / "config.json").read_text())
    settings["net"] = "resnet14"
    (folder / "config.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match="damaged"):
        reverie.load(folder)


def test_another_folder_and_a_newer_one_are_errors(folder, tmp_path):
    with pytest.raises(UserError, match="not a model folder"):
        reverie.load(tmp_path)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "schema": 99}))
    with pytest.raises(UserError, match="newer reverie"):
        reverie.load(folder)


def test_a_model_trained_with_all_rows_from_the_start_is_the_same_after_loading(tiny, tiny_stream, tmp_path):
    learner = TaskLearner.fresh(
        tiny("base", "train.epochs=1", recipe="released"), _preprocessing(tiny_stream), classes=10
    )
    learner.learn(tiny_stream[0])
    learner.save(tmp_path / "model")
    again = reverie.load(tmp_path / "model")
    assert again.classifier.head.rows == 10
    test = tiny_stream[:1].test()
    assert torch.equal(learner.predict(test).probabilities, again.predict(test).probabilities)
