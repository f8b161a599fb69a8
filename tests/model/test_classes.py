"""The classes of a model: since when, under which name; a removed one is gone from the file, the others stay."""

import json
import resource
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from reverie.data.images import MemoryImages
from reverie.data.stream import Task
from reverie.errors import UserError
from reverie.learner import checkpoint as journal
from reverie.learner.task_learner import TaskLearner
from reverie.model import classes
from reverie.model import folder as model_io
from reverie.model.classes import known, newest, parse_renames, remove, rename
from reverie.model.folder import SavedModel
from reverie.nets import make_backbone
from reverie.nets.classifier import Classifier, Preprocessing

FRUIT = ("apple", "banana", "cherry")


@pytest.fixture
def folder(photo_model, tmp_path):
    model_io.save(tmp_path / "model", photo_model)
    return tmp_path / "model"


def logits(model: SavedModel) -> torch.Tensor:
    images = torch.randn(40, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return model.classifier.eval()(images)


# --- what the ledger tells


def test_the_ledger_tells_since_when_each_class_is_known(photo_model):
    first, _, last = known(FRUIT, photo_model.ledger)
    assert (first.name, first.step, first.since, first.images) == ("apple", 1, "2026-01-01T00:00:00+00:00", 12)
    assert (last.name, last.step, last.since) == ("cherry", 2, "2026-02-02T00:00:00+00:00")
    assert newest(FRUIT, photo_model.ledger) == ("cherry",)


def test_a_class_is_followed_through_its_names_and_may_come_back_after_it_was_removed():
    ledger = [
        {"date": "d1", "classes": ["a", "b", "c"], "images": {"a": 1, "b": 2, "c": 3}},
        {"date": "d2", "renamed": {"a": "b", "b": "a"}},
        {"date": "d3", "removed": ["c"]},
        {"date": "d4", "classes": ["c", "e"], "images": {"c": 30, "e": 5}},
        {"date": "d5", "classes": [], "images": {"a": 40}},  # further images of a known class
    ]
    told = {one.name: (one.step, one.since, one.images) for one in known(["b", "a", "c", "e"], ledger)}
    assert told == {"b": (1, "d1", 1), "a": (1, "d1", 42), "c": (4, "d4", 30), "e": (4, "d4", 5)}
    assert newest(["b", "a", "c", "e"], ledger) == ("c", "e")


def test_a_class_of_which_the_ledger_does_not_tell_is_listed_all_the_same():
    (one,) = known(["a"], [])
    assert (one.name, one.step, one.since, one.images) == ("a", 0, None, None)
    assert newest(["a"], []) == ()


# --- rename


def test_names_change_and_nothing_else(photo_model):
    made = rename(photo_model, {"apple": "cherry", "cherry": "apple"})
    assert made.classifier.class_names == ("cherry", "banana", "apple")
    assert photo_model.classifier.class_names == FRUIT
    assert torch.equal(logits(made), logits(photo_model))
    assert made.ledger[:-1] == photo_model.ledger
    assert made.ledger[-1]["renamed"] == {"apple": "cherry", "cherry": "apple"}
    assert made.ledger[-1]["date"][:2] == "20"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"aple": "x"}, "no class 'aple'. Did you mean 'apple'"),
        ({"apple": "banana"}, "there would be 'banana' and 'banana'"),
        ({"apple": "BANANA"}, "there would be 'BANANA' and 'banana'"),
        ({"apple": "x", "banana": "x"}, "there would be 'x' and 'x'"),
        ({"apple": " x"}, "no spaces at its ends"),
        ({"apple": ""}, "not empty"),
    ],
)
def test_names_that_would_not_do_are_refused(photo_model, names, message):
    with pytest.raises(UserError, match=message):
        rename(photo_model, names)


def test_a_class_may_change_its_case(photo_model):
    assert rename(photo_model, {"apple": "Apple"}).classifier.class_names[0] == "Apple"


def test_a_class_renamed_to_its_own_name_changes_nothing(photo_model):
    assert rename(photo_model, {"apple": "apple"}) is photo_model
    both = rename(photo_model, {"apple": "apple", "banana": "plantain"})
    assert both.ledger[-1]["renamed"] == {"banana": "plantain"}


def test_a_name_that_looks_like_another_is_refused(photo_model):
    with pytest.raises(UserError, match="there would be"):
        rename(photo_model, {"apple": "caf\u00e9", "banana": "cafe\u0301"})


def test_renames_are_read_as_typed_even_with_an_equals_sign_in_a_name():
    assert parse_renames(["a=b", "x=1=y=2"], ["a", "x=1"]) == {"a": "b", "x=1": "y=2"}
    with pytest.raises(UserError, match="OLD=NEW"):
        parse_renames(["a"], ["a"])
    with pytest.raises(UserError, match="two new names"):
        parse_renames(["a=b", "a=c"], ["a"])


# --- remove


def test_all_other_weights_stay_to_the_bit_and_so_do_logits_but_for_rounding(photo_model):
    made = remove(photo_model, ["banana"])
    assert made.classifier.class_names == ("apple", "cherry")
    before, after = photo_model.classifier.state_dict(), made.classifier.state_dict()
    assert before.keys() == after.keys()
    for name, value in after.items():
        assert torch.equal(value, before[name][[0, 2]] if name.startswith("head.") else before[name])
    torch.testing.assert_close(logits(made), logits(photo_model)[:, [0, 2]], rtol=1e-5, atol=1e-5)
    assert photo_model.classifier.class_names == FRUIT
    assert made.ledger[-1]["removed"] == ["banana"]


def test_the_removed_row_is_not_in_the_file(photo_model, tmp_path):
    row = photo_model.classifier.head.weight[1].detach().numpy().tobytes()
    for name, model in (("whole", photo_model), ("without", remove(photo_model, ["banana"]))):
        model_io.save(tmp_path / name, model)
        assert (row in (tmp_path / name / "model.safetensors").read_bytes()) == (name == "whole")
    assert load_file(tmp_path / "without" / "model.safetensors")["head.weight"].shape[0] == 2


def test_corrections_and_rows_of_classes_to_come_stay_with_their_classes(photo_model):
    classifier = Classifier(make_backbone("resnet8", 3), Preprocessing(16, (0.4,) * 3, (0.25,) * 3), rows_from_start=6)
    classifier.grow(["a", "b", "c"])
    classifier.correct(1, torch.tensor([2.0, 3.0]), torch.tensor([0.5, 0.25]))
    whole = SavedModel(classifier, photo_model.config, [])
    made = remove(whole, ["b"])
    assert made.classifier.head.rows == 5
    assert torch.equal(made.classifier.head.weight[2:], classifier.head.weight[3:])
    torch.testing.assert_close(logits(made), logits(whole)[:, [0, 2]], rtol=1e-5, atol=1e-5)


def test_a_class_can_be_learned_again(photo_model):
    made = remove(photo_model, ["banana"])
    learner = TaskLearner(made.config, made.classifier)
    pixels = torch.randint(0, 256, (8, 3, 16, 16)).to(torch.uint8)
    learner.learn(Task(2, ["banana"], 2, MemoryImages(pixels, torch.full((8,), 2))))
    assert learner.classifier.class_names == ("apple", "cherry", "banana")


def test_a_model_keeps_at_least_one_class(photo_model):
    with pytest.raises(UserError, match="at least one class"):
        remove(photo_model, FRUIT)
    with pytest.raises(UserError, match="no class 'bananas'"):
        remove(photo_model, ["bananas"])


# --- the command


def test_the_command_lists_what_a_model_knows(reverie, folder):
    code, out, _ = reverie("classes", str(folder))
    assert code == 0
    assert [line.split() for line in out.splitlines()][1] == ["apple", "1", "2026-01-01", "12"]
    listed = json.loads(reverie("classes", str(folder), "--json")[1])
    assert listed[2] == {"name": "cherry", "step": 2, "since": "2026-02-02T00:00:00+00:00", "images": 12}


def test_a_new_folder_leaves_the_old_one_as_it_is(reverie, folder, tmp_path):
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    code, out, _ = reverie("classes", str(folder), "--remove", "banana", "--rename", "apple=banana", "--to", "new")
    assert code == 0
    assert out.splitlines()[-1] == "new"
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    made = model_io.load(tmp_path / "new")
    assert made.classifier.class_names == ("banana", "cherry")
    assert made.lineage == (model_io.digest(folder),)
    again = reverie("classes", str(folder), "--remove", "cherry", "--to", "new")
    assert again[0] == 2
    assert "exists already" in again[2]


def test_without_a_new_folder_the_old_one_is_changed_in_one_move(reverie, folder):
    whole = model_io.digest(folder)
    code, out, _ = reverie("classes", str(folder), "--remove", "cherry")
    assert code == 0
    assert "cherry" not in out
    made = model_io.load(folder)
    assert made.classifier.class_names == ("apple", "banana")
    assert made.lineage == (whole,)
    assert [entry.name for entry in folder.parent.iterdir() if entry.name.startswith(".")] == []


def test_a_mistake_changes_nothing(reverie, folder):
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert reverie("classes", str(folder), "--remove", "cherry", "--rename", "aple=x")[0] == 2
    assert reverie("classes", str(folder), "--to", "elsewhere")[0] == 2
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_of_two_commands_that_change_a_model_at_once_the_second_is_refused(reverie, folder, monkeypatch):
    words, others, real = ["--rename", "apple=pear"], [], classes.rename

    def meanwhile(*given):
        command = [sys.executable, "-m", "reverie", "classes", str(folder), "--remove", "cherry"]
        others.append(subprocess.run(command, capture_output=True, text=True, timeout=100))
        return real(*given)

    with monkeypatch.context() as patched:
        patched.setattr(classes, "rename", meanwhile)
        assert reverie("classes", str(folder), *words)[0] == 0
    assert others[0].returncode == 2
    assert f"Another process is changing {folder}. Repeat the command" in " ".join(others[0].stderr.split())
    assert reverie("classes", str(folder), "--remove", "cherry")[0] == 0  # repeated
    assert model_io.load(folder).classifier.class_names == ("pear", "banana")


def test_a_folder_that_another_command_replaced_before_it_was_locked_is_not_changed(folder, tmp_path, monkeypatch):
    real = journal._is_locked

    def replaced(handle):
        shutil.move(folder, tmp_path / "before")
        shutil.copytree(tmp_path / "before", folder)
        return real(handle)

    monkeypatch.setattr(journal, "_is_locked", replaced)
    with pytest.raises(UserError, match="Another process is changing"), journal.changing(folder):
        raise AssertionError("it was let in")


def test_what_another_program_changed_meanwhile_is_not_overwritten(reverie, folder, monkeypatch):
    real = classes.rename

    def meanwhile(saved, names):
        model_io.save(folder, remove(saved, ["cherry"]), overwrite=True)
        return real(saved, names)

    monkeypatch.setattr(classes, "rename", meanwhile)
    code, _, err = reverie("classes", str(folder), "--rename", "apple=pear")
    assert code == 2 and "was changed by another process, and stays as it is now" in err
    assert model_io.load(folder).classifier.class_names == ("apple", "banana")


def test_a_full_disk_leaves_the_model_as_it_was_and_is_told_so(reverie, folder):
    whole, (soft, hard) = model_io.digest(folder), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        code, _, err = reverie("classes", str(folder), "--rename", "apple=pear")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert code == 2
    assert f"{folder} cannot be changed: File too large. It is as it was. Make room in {folder.parent}" in err
    assert model_io.digest(folder) == whole
    assert [entry.name for entry in folder.parent.iterdir()] == ["model"]
