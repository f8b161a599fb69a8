"""The classes of a model: since when, under which name; a removed one is gone from the file, the others stay."""

import json
import resource
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from reverie.data.images import MemoryImages
from reverie.data.preprocessing import Preprocessing
from reverie.data.stream import Task
from reverie.errors import UserError
from reverie.learner.ledger import LedgerEntry
from reverie.learner.task_learner import TaskLearner
from reverie.model import classes
from reverie.model.classes import (
    ClassHistory,
    change_classes,
    change_model,
    class_histories,
    list_classes,
    newest_classes,
    parse_renames,
    remove_classes,
    rename_classes,
)
from reverie.model.folder import load_model, model_digest, save_model
from reverie.model.saved import SavedModel
from reverie.nets import make_backbone
from reverie.nets.classifier import Classifier
from reverie.system import locks

FRUIT = ("apple", "banana", "cherry")


@pytest.fixture
def folder(photo_folder, tmp_path):
    """To be changed."""
    return shutil.copytree(photo_folder, tmp_path / "model")


def left_beside(folder):
    """Locks, and what was not yet whole."""
    return sorted(entry.name for entry in folder.parent.iterdir() if entry.name.startswith("."))


def logits(model: SavedModel) -> torch.Tensor:
    images = torch.randn(40, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return model.classifier.eval()(images)


# --- what the ledger tells


def test_the_ledger_tells_since_when_each_class_is_known(photo_model):
    first, _, last = class_histories(FRUIT, photo_model.ledger)
    assert (first.name, first.step, first.since, first.images) == ("apple", 1, "2026-01-01T00:00:00+00:00", 12)
    assert (last.name, last.step, last.since) == ("cherry", 2, "2026-02-02T00:00:00+00:00")
    assert newest_classes(FRUIT, photo_model.ledger) == ("cherry",)


def test_a_class_is_followed_through_its_names_and_may_come_back_after_it_was_removed():
    ledger = [
        LedgerEntry(date="d1", classes=["a", "b", "c"], images={"a": 1, "b": 2, "c": 3}),
        LedgerEntry(date="d2", renamed={"a": "b", "b": "a"}),
        LedgerEntry(date="d3", removed=["c"]),
        LedgerEntry(date="d4", classes=["c", "e"], images={"c": 30, "e": 5}),
        LedgerEntry(date="d5", classes=[], images={"a": 40}),  # further images of a known class
    ]
    told = {one.name: (one.step, one.since, one.images) for one in class_histories(["b", "a", "c", "e"], ledger)}
    assert told == {"b": (1, "d1", 1), "a": (1, "d1", 42), "c": (4, "d4", 30), "e": (4, "d4", 5)}
    assert newest_classes(["b", "a", "c", "e"], ledger) == ("c", "e")


def test_a_class_of_which_the_ledger_does_not_tell_is_listed_all_the_same():
    (one,) = class_histories(["a"], [])
    assert (one.name, one.step, one.since, one.images) == ("a", 0, None, None)
    assert newest_classes(["a"], []) == ()


# --- rename


def test_names_change_and_nothing_else(photo_model):
    made = rename_classes(photo_model, {"apple": "cherry", "cherry": "apple"})
    assert made.classifier.class_names == ("cherry", "banana", "apple")
    assert photo_model.classifier.class_names == FRUIT
    assert torch.equal(logits(made), logits(photo_model))
    assert made.ledger[:-1] == photo_model.ledger
    assert made.ledger[-1].renamed == {"apple": "cherry", "cherry": "apple"}
    assert made.ledger[-1].date[:2] == "20"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"aple": "x"}, "no class 'aple'. Did you mean 'apple'"),
        ({"apple": "banana"}, "there would be 'banana' and 'banana'"),
        ({"apple": "BANANA"}, "there would be 'BANANA' and 'banana'"),
        ({"apple": "x", "banana": "x"}, "there would be 'x' and 'x'"),
        ({"apple": " x"}, "no spaces at its ends"),
        ({"apple": ""}, "not empty"),
        ({"apple": 5}, "cannot be named 5: a name is text"),
        ({0: "x"}, "no class 0. `list_classes"),
    ],
)
def test_names_that_would_not_do_are_refused(photo_model, names, message):
    with pytest.raises(UserError, match=message):
        rename_classes(photo_model, names)


def test_a_class_may_change_its_case(photo_model):
    assert rename_classes(photo_model, {"apple": "Apple"}).classifier.class_names[0] == "Apple"


def test_a_class_renamed_to_its_own_name_changes_nothing(photo_model):
    assert rename_classes(photo_model, {"apple": "apple"}) is photo_model
    both = rename_classes(photo_model, {"apple": "apple", "banana": "plantain"})
    assert both.ledger[-1].renamed == {"banana": "plantain"}


def test_a_name_that_looks_like_another_is_refused(photo_model):
    with pytest.raises(UserError, match="there would be"):
        rename_classes(photo_model, {"apple": "caf\u00e9", "banana": "cafe\u0301"})


def test_renames_are_read_as_typed_even_with_an_equals_sign_in_a_name():
    assert parse_renames(["a=b", "x=1=y=2"], ["a", "x=1"]) == {"a": "b", "x=1": "y=2"}
    with pytest.raises(UserError, match="OLD=NEW"):
        parse_renames(["a"], ["a"])
    with pytest.raises(UserError, match="two new names"):
        parse_renames(["a=b", "a=c"], ["a"])


# --- remove


def test_all_other_weights_stay_to_the_bit_and_so_do_logits_but_for_rounding(photo_model):
    made = remove_classes(photo_model, ["banana"])
    assert made.classifier.class_names == ("apple", "cherry")
    before, after = photo_model.classifier.state_dict(), made.classifier.state_dict()
    assert before.keys() == after.keys()
    for name, value in after.items():
        assert torch.equal(value, before[name][[0, 2]] if name.startswith("head.") else before[name])
    torch.testing.assert_close(logits(made), logits(photo_model)[:, [0, 2]], rtol=1e-5, atol=1e-5)
    assert photo_model.classifier.class_names == FRUIT
    assert made.ledger[-1].removed == ["banana"]


def test_the_removed_row_is_not_in_the_file(photo_model, tmp_path):
    row = photo_model.classifier.head.weight[1].detach().numpy().tobytes()
    for name, model in (("whole", photo_model), ("without", remove_classes(photo_model, ["banana"]))):
        save_model(model, tmp_path / name)
        assert (row in (tmp_path / name / "model.safetensors").read_bytes()) == (name == "whole")
    assert load_file(tmp_path / "without" / "model.safetensors")["head.weight"].shape[0] == 2


def test_corrections_and_rows_of_classes_to_come_stay_with_their_classes(photo_model):
    classifier = Classifier(make_backbone("resnet8", 3), Preprocessing(16, (0.4,) * 3, (0.25,) * 3), rows_from_start=6)
    classifier.grow(["a", "b", "c"])
    classifier.correct(1, torch.tensor([2.0, 3.0]), torch.tensor([0.5, 0.25]))
    whole = SavedModel(classifier, photo_model.config, [])
    made = remove_classes(whole, ["b"])
    assert made.classifier.head.rows == 5
    assert torch.equal(made.classifier.head.weight[2:], classifier.head.weight[3:])
    torch.testing.assert_close(logits(made), logits(whole)[:, [0, 2]], rtol=1e-5, atol=1e-5)


def test_a_class_can_be_learned_again(photo_model):
    made = remove_classes(photo_model, ["banana"])
    learner = TaskLearner(made.config, made.classifier)
    pixels = torch.randint(0, 256, (8, 3, 16, 16)).to(torch.uint8)
    learner.learn(Task(2, ["banana"], 2, MemoryImages(pixels, torch.full((8,), 2))))
    assert learner.classifier.class_names == ("apple", "cherry", "banana")


def test_a_model_keeps_at_least_one_class(photo_model):
    with pytest.raises(UserError, match="at least one class"):
        remove_classes(photo_model, FRUIT)
    with pytest.raises(UserError, match="no class 'bananas'"):
        remove_classes(photo_model, ["bananas"])


# --- a folder


def content(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_what_the_model_in_a_folder_knows_is_listed(folder):
    assert list_classes(str(folder)) == [
        ClassHistory("apple", 1, "2026-01-01T00:00:00+00:00", 12),
        ClassHistory("banana", 1, "2026-01-01T00:00:00+00:00", 12),
        ClassHistory("cherry", 2, "2026-02-02T00:00:00+00:00", 12),
    ]
    with pytest.raises(UserError, match="not a model folder"):
        list_classes(folder.parent)


@pytest.mark.parametrize("rename", [{"cherry": "sweet cherry"}, ["cherry=sweet cherry"]])
def test_classes_of_a_folder_are_removed_and_renamed_in_its_place(folder, rename):
    before = model_digest(folder)
    known = change_classes(folder, rename=rename, remove=["banana"])
    assert [(one.name, one.step, one.images) for one in known] == [("apple", 1, 12), ("sweet cherry", 2, 12)]
    assert list_classes(folder) == known
    made = load_model(folder)
    assert made.lineage == (before,) and made.rejection == 0.6
    assert [entry.action for entry in made.ledger] == [None, None, "removed", "renamed"]
    assert left_beside(folder) == []


def test_a_removed_class_gives_its_name_away_in_the_same_call(folder):
    known = change_classes(folder, rename={"apple": "banana"}, remove="banana")
    assert [one.name for one in known] == ["banana", "cherry"]


def test_a_new_folder_takes_the_result_and_the_old_one_stays(folder, tmp_path):
    before = content(folder)
    known = change_classes(folder, remove=["banana"], to=tmp_path / "new")
    assert [one.name for one in known] == ["apple", "cherry"] and list_classes(tmp_path / "new") == known
    assert load_model(tmp_path / "new").lineage == (model_digest(folder),)
    assert content(folder) == before
    with pytest.raises(UserError, match="new exists already"):
        change_classes(folder, remove=["banana"], to=tmp_path / "new")


def test_a_change_that_is_none_writes_nothing(folder, tmp_path):
    before = content(folder)
    assert change_classes(folder, rename={"apple": "apple"}) == list_classes(folder)
    with pytest.raises(UserError, match="nothing to write into `to`"):
        change_classes(folder, to=tmp_path / "new")
    assert content(folder) == before and not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rename": {"aple": "x"}}, "knows no class 'aple'. Did you mean 'apple'"),
        ({"rename": ["apple"]}, "`rename` wants OLD=NEW, not 'apple'"),
        ({"remove": ["cherry"], "rename": {"cherry": "x"}}, "knows no class 'cherry'"),
        ({"remove": FRUIT}, "at least one class"),
        ({"remove": [0]}, "knows no class 0"),
    ],
)
def test_a_mistake_leaves_the_folder_as_it_was(folder, changes, message):
    before = content(folder)
    with pytest.raises(UserError, match=message):
        change_classes(folder, **changes)
    assert content(folder) == before and left_beside(folder) == []


def test_a_folder_that_is_none_is_named_and_nothing_is_left_beside_it(tmp_path):
    with pytest.raises(UserError, match=r"There is no model folder .*nowhere"):
        change_classes(tmp_path / "nowhere", remove=["a"])
    assert not [*tmp_path.iterdir()]


# --- several processes

CHANGING = """
import sys
from pathlib import Path
from reverie.model.classes import change_model, rename_classes

def rename(old, new):
    def make(saved):
        print("inside", flush=True)
        sys.stdin.readline()
        return rename_classes(saved, {old: new})
    change_model(Path(sys.argv[1]), make)

rename("apple", "pear")
print("changed", flush=True)
rename("pear", "plum")
"""


def test_of_two_processes_that_change_a_model_at_once_the_second_is_refused_and_a_killed_one_is_in_nobodys_way(
    reverie, folder
):
    command = [sys.executable, "-c", CHANGING, str(folder)]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "inside\n"
        assert left_beside(folder) == [".model.lock"]  # while it lasts
        code, _, err = reverie("classes", str(folder), "--remove", "cherry")
        assert code == 2
        assert f"Another process is changing {folder}. Repeat the command" in " ".join(err.split())
        other.stdin.write("\n")
        other.stdin.flush()
        assert other.stdout.readline() == "changed\n"
        assert other.stdout.readline() == "inside\n"
        other.send_signal(signal.SIGKILL)
    finally:
        other.kill()
        other.communicate(timeout=60)
    assert reverie("classes", str(folder), "--remove", "cherry")[0] == 0  # repeated
    assert load_model(folder).classifier.class_names == ("pear", "banana")
    assert left_beside(folder) == []


def test_what_another_process_put_there_before_the_lock_was_got_is_what_is_changed(folder, monkeypatch):
    real = locks.try_lock

    def replaced_before(file):
        save_model(remove_classes(load_model(folder), ["cherry"]), folder, overwrite=True)
        return real(file)

    monkeypatch.setattr(locks, "try_lock", replaced_before)
    known = change_classes(folder, rename={"apple": "pear"})
    assert [one.name for one in known] == ["pear", "banana"]
    assert [entry.action for entry in load_model(folder).ledger[-2:]] == ["removed", "renamed"]


def test_what_a_program_that_asks_for_no_lock_changed_meanwhile_is_not_overwritten(reverie, folder, monkeypatch):
    real = classes.rename_classes

    def meanwhile(saved, names):
        save_model(remove_classes(saved, ["cherry"]), folder, overwrite=True)
        return real(saved, names)

    monkeypatch.setattr(classes, "rename_classes", meanwhile)
    code, _, err = reverie("classes", str(folder), "--rename", "apple=pear")
    assert code == 2 and "was changed by another process, and stays as it is now" in err
    assert load_model(folder).classifier.class_names == ("apple", "banana")


def test_any_change_to_a_model_is_made_in_its_place_and_in_its_lineage(folder):
    before = model_digest(folder)
    made, is_changed = change_model(folder, lambda saved: replace(saved, rejection=0.25))
    assert is_changed and made.rejection == load_model(folder).rejection == 0.25
    assert load_model(folder).lineage == (before,)
    assert change_model(folder, lambda saved: saved)[1] is False


# --- the command


def test_the_command_lists_what_a_model_knows(reverie, folder):
    code, out, _ = reverie("classes", str(folder))
    assert code == 0
    assert [line.split() for line in out.splitlines()][1] == ["apple", "1", "2026-01-01", "12"]
    listed = json.loads(reverie("classes", str(folder), "--json")[1])
    assert listed[2] == {"name": "cherry", "step": 2, "since": "2026-02-02T00:00:00+00:00", "images": 12}


def test_the_command_leaves_the_old_folder_as_it_is_where_there_is_a_new_one(reverie, folder, tmp_path):
    before = content(folder)
    code, out, _ = reverie("classes", str(folder), "--remove", "banana", "--rename", "apple=banana", "--to", "new")
    assert code == 0
    assert out.splitlines()[-1] == "new"
    assert content(folder) == before
    made = load_model(tmp_path / "new")
    assert made.classifier.class_names == ("banana", "cherry")
    assert made.lineage == (model_digest(folder),)
    again = reverie("classes", str(folder), "--remove", "cherry", "--to", "new")
    assert again[0] == 2
    assert "exists already" in again[2]


def test_without_a_new_folder_the_old_one_is_changed_in_one_move(reverie, folder):
    whole = model_digest(folder)
    code, out, _ = reverie("classes", str(folder), "--remove", "cherry")
    assert code == 0
    assert "cherry" not in out
    made = load_model(folder)
    assert made.classifier.class_names == ("apple", "banana")
    assert made.lineage == (whole,)
    assert left_beside(folder) == []


def test_a_mistake_in_the_command_changes_nothing(reverie, folder):
    before = content(folder)
    assert reverie("classes", str(folder), "--remove", "cherry", "--rename", "aple=x")[0] == 2
    assert reverie("classes", str(folder), "--to", "elsewhere")[0] == 2
    assert content(folder) == before


def test_a_full_disk_leaves_the_model_as_it_was_and_is_told_so(reverie, folder):
    whole, (soft, hard) = model_digest(folder), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        code, _, err = reverie("classes", str(folder), "--rename", "apple=pear")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert code == 2
    assert f"{folder} cannot be changed: File too large. It is as it was. Make room in {folder.parent}" in err
    assert model_digest(folder) == whole
    assert [entry.name for entry in folder.parent.iterdir()] == ["model"]
