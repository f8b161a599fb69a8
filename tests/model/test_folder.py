"""The model folder: everything in it, no code run by loading it, damage noticed, written whole or not at all."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import reverie
from reverie.errors import UserError
from reverie.learner.ledger import LedgerEntry
from reverie.learner.task_learner import TaskLearner
from reverie.model import folder as model_folder
from reverie.model.folder import load_model, model_digest, read_model, save_model
from reverie.model.saved import SavedModel
from tests.support.models import AWKWARD, REPORT, awkward_model, rewrite_config, rewrite_file
from tests.support.paths import ROOT
from tests.support.processes import as_nobody


@pytest.fixture
def folder(digits_folder, tmp_path) -> Path:
    """A model of two digits, to be changed."""
    return shutil.copytree(digits_folder, tmp_path / "model")


@pytest.fixture
def awkward(awkward_folder, tmp_path) -> Path:
    """Classes with awkward names, and every file that there can be; to be changed."""
    return shutil.copytree(awkward_folder, tmp_path / "model")


@pytest.fixture
def saved() -> SavedModel:
    return awkward_model()


def config_of(folder: Path) -> dict:
    return json.loads((folder / "config.json").read_text())


# --- what is in it


def test_it_holds_weights_settings_a_card_and_the_ledger(digits_folder, tiny_stream):
    assert sorted(file.name for file in digits_folder.iterdir()) == [
        "README.md",
        "config.json",
        "ledger.json",
        "model.safetensors",
    ]
    settings = config_of(digits_folder)
    assert settings["schema"] == 2
    assert settings["architecture"] == {"family": "reverie", "name": "resnet8", "options": {}}
    assert settings["classes"] == list(tiny_stream[0].names)
    assert settings["preprocessing"] == {"size": 8, "mean": [0.305], "deviation": [0.376]}
    assert settings["files"].keys() == {"README.md", "ledger.json", "model.safetensors"}
    assert settings["files"]["ledger.json"]["bytes"] == (digits_folder / "ledger.json").stat().st_size
    assert "head.weight" in load_file(digits_folder / "model.safetensors")


def test_a_model_that_was_read_is_at_rest(digits_folder):
    """Not to be fooled by a batch, and not to be changed by it."""
    assert not any(module.training for module in load_model(digits_folder).classifier.modules())


def test_the_ledger_counts_what_was_kept_by_kind_and_no_images(digits_folder):
    (entry,) = json.loads((digits_folder / "ledger.json").read_text())
    weights = load_file(digits_folder / "model.safetensors")
    assert sum(entry["kept"].values()) == sum(value.nbytes for value in weights.values())
    statistics = [value.nbytes for name, value in weights.items() if "running" in name or "num_batches" in name]
    assert entry["kept"]["statistics"] == sum(statistics)
    assert (entry["keeps"], entry["kept_bytes"], entry["images_kept"]) == ("nothing", 0, 0)
    assert entry["not_kept"] == ["images", "file names", "dreams", "dreamer", "teacher"]
    assert "0 images" in (digits_folder / "README.md").read_text()


def test_images_that_a_method_keeps_are_counted(tiny, tiny_stream):
    learner = TaskLearner.for_stream(tiny("rehearsal", "train.epochs=1", "coreset.size=9"), tiny_stream)
    learner.learn(tiny_stream[0])
    assert learner.ledger[0].images_kept == 9
    assert learner.ledger[0].kept["a coreset"] == 9 * (8 * 8 + 8)
    assert "images" not in learner.ledger[0].not_kept


def test_everything_comes_back(saved, tmp_path):
    save_model(saved, tmp_path / "model")
    again = load_model(tmp_path / "model")
    assert again.classifier.class_names == AWKWARD
    assert again.classifier.preprocessing == saved.classifier.preprocessing
    for name, value in saved.classifier.state_dict().items():
        assert torch.equal(value, again.classifier.state_dict()[name])
    for field in ("config", "ledger", "lineage", "rejection", "acceptance"):
        assert getattr(again, field) == getattr(saved, field)


def test_what_another_version_or_a_person_added_to_the_ledger_stays_in_it(awkward, tmp_path):
    ledger = json.loads((awkward / "ledger.json").read_text())
    ledger[0]["photographer"] = "Ada"
    rewrite_file(awkward, "ledger.json", json.dumps(ledger).encode())
    save_model(load_model(awkward), tmp_path / "again")
    assert json.loads((tmp_path / "again" / "ledger.json").read_text())[0]["photographer"] == "Ada"


def test_the_digest_names_the_model_and_no_other(saved, tmp_path):
    for name in ("a", "b"):
        save_model(saved, tmp_path / name)
    with torch.no_grad():
        saved.classifier.head.bias[0] += 1
    save_model(saved, tmp_path / "c")
    a, b, c = (model_digest(tmp_path / name) for name in "abc")
    assert a == b != c
    assert re.fullmatch(r"[0-9a-f]{64}", a)


@pytest.mark.parametrize(("after", "read"), [("model.safetensors", 1), ("acceptance.json", 0)])
def test_a_model_that_is_replaced_while_it_is_read_is_read_whole_and_named_by_what_was_read(
    saved, tmp_path, monkeypatch, caplog, after, read
):
    place, models = tmp_path / "model", [saved, replace(saved, ledger=[LedgerEntry(classes=[], images_seen=7)])]
    digests = [save_model(model, folder) for folder, model in zip((place, tmp_path / "next"), models, strict=True)]
    assert digests == [model_digest(folder) for folder in (place, tmp_path / "next")]
    real = model_folder._unchanged

    def replaced_after(folder, name, wanted):
        raw = real(folder, name, wanted)
        if name == after and (tmp_path / "next").exists():
            place.rename(tmp_path / "before")
            (tmp_path / "next").rename(place)
        return raw

    monkeypatch.setattr(model_folder, "_unchanged", replaced_after)
    learner = reverie.load(place, device="cpu")
    assert learner.saved.ledger == models[read].ledger
    learner.rename({"a|b": "c"})
    assert learner.saved.lineage == (*saved.lineage, digests[read])
    assert not caplog.records  # nobody has written in the card


def test_the_page_about_the_folder_explains_every_field(digits_folder):
    page = (ROOT / "docs" / "model-folder.md").read_text("utf-8")
    settings, report = config_of(digits_folder), REPORT.as_dict()
    (entry,) = json.loads((digits_folder / "ledger.json").read_text())
    for name in (*settings, *settings["architecture"], *settings["preprocessing"], *entry, *report, *report["after"]):
        assert f"`{name}`" in page, name
    for name in LedgerEntry.model_fields:
        assert f"`{name}`" in page, name


# --- what is refused


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "ledger.json", "acceptance.json"])
@pytest.mark.parametrize("how", ["halved", "emptied", "one bit", "gone"])
def test_a_folder_that_is_not_as_it_was_written_is_refused_and_the_file_is_named(awkward, file, how):
    path = awkward / file
    content = bytearray(path.read_bytes())
    if how == "one bit":
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    elif how == "gone":
        path.unlink()
    else:
        path.write_bytes(content[: len(content) // 2 if how == "halved" else 0])
    with pytest.raises(UserError, match=re.escape(file)) as refused:
        load_model(awkward)
    assert len(str(refused.value).splitlines()) == 1


def test_a_class_renamed_by_hand_is_noticed(awkward):
    settings = config_of(awkward)
    (awkward / "config.json").write_text(json.dumps({**settings, "classes": ["x", *AWKWARD[1:]]}))
    with pytest.raises(UserError, match=r"config\.json has been changed"):
        load_model(awkward)


def test_a_card_that_somebody_wrote_in_is_said_and_no_hindrance(folder, caplog):
    with (folder / "README.md").open("a") as card:
        card.write("\nOur own remarks.\n")
    reverie.load(folder)
    assert "README.md is not as reverie wrote it" in caplog.text


def test_a_card_that_somebody_wrote_in_is_never_overwritten(folder, tmp_path):
    saved = load_model(folder)
    with (folder / "README.md").open("a") as card:
        card.write("\nOur own remarks.\n")
    with pytest.raises(UserError, match=r"Somebody wrote in .*README\.md"):
        save_model(saved, folder, overwrite=True)
    assert (folder / "README.md").read_text().endswith("Our own remarks.\n")
    load_model(folder)
    (folder / "README.md").rename(tmp_path / "remarks.md")
    save_model(saved, folder, overwrite=True)
    assert (folder / "README.md").is_file()
    (folder / "README.md").unlink()
    reverie.load(folder)


def test_a_configuration_of_another_version_is_no_riddle(awkward):
    settings = config_of(awkward)
    settings |= {"reverie": "0.9", "training": {**settings["training"], "magic": 1}}
    rewrite_config(awkward, settings)
    with pytest.raises(UserError, match=r"'magic'.* written by reverie 0\.9; this is"):
        load_model(awkward)


def test_tensors_that_share_memory_are_written_and_read(saved, tmp_path):
    saved.classifier.register_buffer("factor", saved.classifier.head.bias.detach())
    saved.classifier.register_buffer("shift", saved.classifier.factor)
    save_model(saved, tmp_path / "model")
    assert torch.equal(load_model(tmp_path / "model").classifier.shift, saved.classifier.head.bias)


def test_the_layout_of_the_json_is_nobodys_business(folder):
    settings = config_of(folder)
    before = model_digest(folder)
    (folder / "config.json").write_text(json.dumps(dict(reversed(settings.items())), indent=4))
    reverie.load(folder)
    assert model_digest(folder) == before


def test_another_folder_and_a_newer_one_are_refused(folder, tmp_path):
    with pytest.raises(UserError, match="not a model folder"):
        reverie.load(tmp_path)
    with pytest.raises(UserError, match="There is no model folder"):
        reverie.load(tmp_path / "nowhere")
    (folder / "config.json").write_text(json.dumps({**config_of(folder), "schema": 99, "reverie": "7.0"}))
    with pytest.raises(UserError, match=r"newer reverie \(7\.0\); this is .* upgrade"):
        reverie.load(folder)


# --- the wrong shape under the right digest

DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x04 a pickle",
        b"",
        b"null",
        b"{}",
        b'""',
        b'{"a": 1}',
        b"[1]",
        b"[null]",
        b"[[]]",
        b'[{"task": "one"}]',
        b'[{"images_seen": -1}]',
        b'[{"images_seen": 1e9}]',
        b'[{"classes": "a"}]',
        b'[{"classes": [1, 2]}]',
        b'[{"images": {"a": null}}]',
        b'[{"images": {"a": -1}}]',
        b'[{"renamed": {"a": 5}}]',
        b'[{"kept": [1]}]',
        b'[{"date": 5}]',
        b"\xff\xfe\x00",
        DEEP,
        b"[" * 100_000,
        b"[" + b"9" * 5000 + b"]",
    ],
    ids=lambda content: content[:24].decode("latin-1"),
)
def test_a_ledger_of_the_wrong_shape_is_refused_by_name_in_one_sentence(awkward, content):
    rewrite_file(awkward, "ledger.json", content)
    with pytest.raises(UserError, match=r"ledger\.json is not what reverie writes") as refused:
        load_model(awkward)
    assert len(str(refused.value).splitlines()) == 1 and len(str(refused.value)) < 500


@pytest.mark.parametrize(
    "changes",
    [
        {"images": 5},
        {"new": {"images": -1, "accuracy": 0.5, "by_class": []}},
        {"new": {"images": 4, "accuracy": 1.5, "by_class": []}},
        {"new": []},
        {"verdict": "perhaps"},
        {"verdict": None},
        {"reasons": "none"},
        {"calibration": [1]},
        {"calibration_bins": 1e9},
        {"after": None},
        {"after": {"parameters": "many"}},
        {"batch": -1},
    ],
    ids=str,
)
def test_a_report_of_the_wrong_shape_is_warned_of_and_left_aside(awkward, caplog, changes):
    wrong = {**REPORT.as_dict(), **changes}
    if "images" in changes:
        wrong = {"verdict": "accept", "stars": 5}  # as another version may have written it
    rewrite_file(awkward, "acceptance.json", json.dumps(wrong).encode())
    again = load_model(awkward)
    assert again.acceptance is None and again.classifier.class_names == AWKWARD
    (warning,) = caplog.messages
    assert "acceptance.json is left aside: " in warning and len(warning.splitlines()) == 1


@pytest.mark.parametrize("content", [b"", b"null", b"[1]", b"{}", b"\xff", DEEP, b"[" * 100_000, b"9" * 5000])
def test_a_report_that_is_none_is_warned_of_and_left_aside(awkward, caplog, content):
    rewrite_file(awkward, "acceptance.json", content)
    assert load_model(awkward).acceptance is None
    assert "acceptance.json is left aside" in caplog.text


def test_a_report_without_any_class_does_not_stop_a_model_from_being_saved_again(awkward, tmp_path):
    none = {**REPORT.as_dict(), "new": {"images": 0, "accuracy": 0.0, "by_class": []}}
    rewrite_file(awkward, "acceptance.json", json.dumps(none).encode())
    save_model(load_model(awkward), tmp_path / "again")
    assert load_model(tmp_path / "again").acceptance.new.by_class == []


def test_weights_that_are_none_are_refused(awkward):
    rewrite_file(awkward, "model.safetensors", b"\x80\x04 a pickle")
    with pytest.raises(UserError, match=r"model\.safetensors is not what reverie writes"):
        load_model(awkward)


BIG = int(1e9)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"head_rows": 10**15}, "is not what reverie writes"),  # before room is made for them
        ({"architecture": {"family": "reverie", "name": "resnet14", "options": {}}}, "is not what reverie writes"),
        ({"classes": ["twice", "twice"]}, "is not what reverie writes"),
        ({"files": {}}, "does not list model.safetensors"),
        *(
            ({key: value}, "is not what reverie writes")
            for key, values in {
                "schema": (-1, 0, None, "two", 1.5, [], float("inf")),
                "head_rows": (-1, 0, None, BIG, 1e9, 10**6, "9"),
                "classes": ([], None, "abc", [1, 2], [None], {"0": "a"}, ["a"] * 9),
                "architecture": (None, [], {}, {"family": 1, "name": 2}, {"family": "reverie", "name": None}),
                "preprocessing": (None, {}, []),
                "rejection": (-2, 1.5, "0.5", []),
                "lineage": (None, "abc", [1], {"a": 1}),
                "training": (None, [], "abd"),
                "files": (None, [], {"model.safetensors": 5}, {"model.safetensors": {"bytes": -1, "sha256": "a"}}),
                "reverie": (None, 5, []),
            }.items()
            for value in values
        ),
        *(
            ({"preprocessing": {"size": 8, "mean": [0.5], "deviation": [0.25], **change}}, "is not what reverie writes")
            for change in (
                *({"size": size} for size in (-1, 0, None, BIG, 1e9, "8")),
                *({"mean": mean} for mean in ([], None, 0.5, ["a"], [0.5] * 2, [0.5] * 17)),
                *({"deviation": deviation} for deviation in ([0], [-1], [])),
                *({"images": images} for images in (5, {}, {"mean": [0.5], "deviation": [0]})),
                {"colour": True},
            )
        ),
        *(
            ({"architecture": {"family": family, "name": name, "options": options}}, "is not what reverie writes")
            for family, name, options in (
                *(("reverie", "resnet8", {"size": size}) for size in (-1, 0, None, BIG, 10**30, 1e9, "8")),
                ("reverie", "resnet8", {"weights": 5}),
                ("reverie", "resnet99", {}),
                ("nobody", "resnet8", {}),
            )
        ),
    ],
    ids=str,
)
def test_settings_of_the_wrong_shape_or_that_do_not_fit_the_rest_are_refused_by_name(awkward, changes, why):
    rewrite_config(awkward, {**config_of(awkward), **changes})
    with pytest.raises(UserError, match=rf"config\.json {why}") as refused:
        load_model(awkward)
    assert len(str(refused.value).splitlines()) == 1 and len(str(refused.value)) < 500


@pytest.mark.parametrize(
    "training",
    [
        {},
        {"preset": "x"},
        {"method": 5},
        {"method": {"name": None}},
        {"seed": "1"},
        {"seed": None},
        {"keep": 5},
        {"own_values": {"train.lr": 1}},
        {"train": {"epochs": 0}},
        {"train": {"epochs": 1e9}},
        {"train": {"batch_size": None}},
        {"train": None},
        {"net": {"name": 5}},
        {"data": {"size": -1}},
        {"data": {"size": 0}},
        {"magic": 1},
    ],
    ids=str,
)
def test_a_training_configuration_of_the_wrong_shape_is_refused_by_name(awkward, training):
    settings = config_of(awkward)
    known = settings["training"] if training not in ({}, {"preset": "x"}) else {}
    merged = {
        key: {**known[key], **value} if isinstance(value, dict) and key in known else value
        for key, value in training.items()
    }
    rewrite_config(awkward, {**settings, "training": {**known, **merged}})
    with pytest.raises(UserError, match=r"config\.json was written by reverie .*; this is ") as refused:
        load_model(awkward)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("content", [b"", b"null", b"[]", b"5", b"{}", b"\xff", DEEP, b"[" * 100_000, b"9" * 5000])
def test_a_file_of_settings_that_holds_none_is_refused_by_name(awkward, content):
    (awkward / "config.json").write_bytes(content)
    for read in (load_model, model_digest):
        with pytest.raises(UserError, match=r"config\.json is not what reverie writes"):
            read(awkward)


# --- older folders, and older names


def test_folders_of_the_first_schema_are_still_read(folder):
    settings = config_of(folder)
    for key in ("architecture", "files", "digest", "lineage", "rejection"):
        del settings[key]
    settings |= {"schema": 1, "net": settings["training"]["net"]["name"], "run": settings.pop("training")}
    (folder / "config.json").write_text(json.dumps(settings))
    again = load_model(folder)
    assert (again.lineage, again.rejection, again.acceptance) == ((), None, None)
    first = model_digest(folder)
    assert read_model(folder)[1] == first
    raw = ((folder / name).read_bytes() for name in ("config.json", "model.safetensors", "ledger.json"))
    assert first == model_folder._sha256("".join(map(model_folder._sha256, raw)).encode())
    weights = load_file(folder / "model.safetensors")
    weights["head.bias"] += 1
    save_file(weights, folder / "model.safetensors")
    assert model_digest(folder) != first
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match="damaged"):
        load_model(folder)


def test_the_functions_are_found_under_their_names_of_version_0_1_with_a_warning(digits_folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sys.modules.pop("reverie.model_io", None)
    with pytest.warns(DeprecationWarning, match=r"reverie\.model_io is now reverie\.model\.folder") as told:
        from reverie import model_io
    assert told[0].filename == __file__
    assert model_io.load(digits_folder).classifier.class_names == load_model(digits_folder).classifier.class_names
    assert model_io.digest(digits_folder) == model_digest(digits_folder)


def test_a_ledger_that_is_read_like_a_dictionary_as_in_version_0_1_warns(digits_folder):
    entry = load_model(digits_folder).ledger[0]
    with pytest.warns(DeprecationWarning, match=r"use \.classes"):
        assert entry["classes"] == entry.classes


# --- nothing is lost


def test_nothing_is_overwritten_unless_asked_for(folder):
    learner = reverie.load(folder).task_learner
    with pytest.raises(UserError, match="exists already"):
        save_model(learner, folder)
    save_model(learner, folder, overwrite=True)
    assert [entry.name for entry in folder.parent.iterdir() if entry.name.startswith(".")] == []


@pytest.mark.parametrize("theirs", ["thesis.tex", ".git", "photos"])
def test_what_is_not_a_model_folder_is_never_overwritten(saved, folder, theirs):
    (folder / theirs).mkdir()
    with pytest.raises(UserError, match=re.escape(theirs)):
        save_model(saved, folder, overwrite=True)
    assert (folder / theirs).is_dir()


def test_a_model_with_all_rows_from_the_start_is_the_same_after_loading(tiny, tiny_stream, tmp_path):
    config = tiny("base", "train.epochs=1", recipe="released")
    learner = TaskLearner.fresh(config, tiny_stream.preprocessing(), classes=10)
    learner.learn(tiny_stream[0])
    save_model(learner, tmp_path / "model")
    again = reverie.load(tmp_path / "model").task_learner
    assert again.classifier.head.rows == 10
    test = tiny_stream[:1].test()
    assert torch.equal(learner.predict(test).probabilities, again.predict(test).probabilities)


# --- whole, or not at all


def left_in(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


@contextmanager
def without_rights(folder: Path, rights: int) -> Iterator[None]:
    """As nobody, where the tests are run by root, whom nothing hinders."""
    folder.chmod(rights)
    with as_nobody():
        yield
    folder.chmod(0o700)


def test_without_permission_to_write_it_says_so(saved, tmp_path):
    with (
        without_rights(tmp_path, 0o500),
        pytest.raises(UserError, match=r"model cannot be written: Permission denied.*choose a place"),
    ):
        save_model(saved, tmp_path / "model")
    assert left_in(tmp_path) == []


def test_without_permission_to_read_it_says_so(folder):
    refused = pytest.raises(UserError, match=r"config\.json cannot be read: Permission denied\. Change its permissions")
    with without_rights(folder, 0o000), refused:
        load_model(folder)


def test_a_file_that_cannot_grow_leaves_nothing_behind(saved, tmp_path):
    save_model(saved, tmp_path / "old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(UserError, match=r"written: File too large\. Nothing was left there\. Make room, or choose"):
            save_model(saved, tmp_path / "model", overwrite=True)
        said = rf"old cannot be changed: File too large\. It is as it was\. Make room in {tmp_path}, or choose"
        with pytest.raises(UserError, match=said):
            save_model(saved, tmp_path / "old", overwrite=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert left_in(tmp_path) == ["old"]
    load_model(tmp_path / "old")


def test_a_full_disk_leaves_nothing_behind(saved, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount a small disk")
    try:
        with pytest.raises(UserError, match=r"model cannot be written: No space left on device"):
            save_model(saved, disk / "model")
        assert left_in(disk) == []
        subprocess.run(["mount", "-o", "remount,size=20m", disk], check=True)
        save_model(saved, disk / "model")
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        said = rf"model cannot be changed: Read-only file system\. It is as it was\. Make room in {disk}, or"
        with pytest.raises(UserError, match=said):
            save_model(saved, disk / "model", overwrite=True)
    finally:
        subprocess.run(["umount", disk], check=True)


WRITER = """
import sys
from pathlib import Path
from reverie.learner.ledger import LedgerEntry
from reverie.model.folder import load_model, save_model

saved, root = load_model(Path(sys.argv[1])), Path(sys.argv[2])
number = 0
while True:
    number += 1
    saved.ledger = [LedgerEntry(classes=[], images_seen=number)]
    save_model(saved, root / f"new-{number}")
    save_model(saved, root / "same", overwrite=True)
    print("made", flush=True)
"""


def test_killed_at_any_moment_there_is_a_whole_folder_or_none(awkward_folder, tmp_path):
    """Two processes side by side, killed at different moments."""
    roots = [tmp_path / f"killed-{number}" for number in range(2)]
    processes = []
    for root in roots:
        root.mkdir()
        command = [sys.executable, "-c", WRITER, str(awkward_folder), str(root)]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    for number, (root, process) in enumerate(zip(roots, processes, strict=True)):
        assert process.stdout is not None
        assert process.stdout.readline() == "made\n"
        time.sleep(0.1 + 0.037 * number)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=20)
        made = [entry for entry in root.iterdir() if not entry.name.startswith(".reverie-")]
        assert root / "same" in made
        for folder in made:
            assert load_model(folder).classifier.class_names == AWKWARD


def test_ctrl_c_while_writing_leaves_nothing_behind(saved, tmp_path, monkeypatch):
    real = os.fsync

    def interrupt(handle):
        real(handle)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_model(saved, tmp_path / "model")
    assert left_in(tmp_path) == []
