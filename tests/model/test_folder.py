"""The model folder: everything in it, no code run by loading it, damage noticed, written whole or not at all."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from markdown_it import MarkdownIt
from safetensors.torch import load_file, save_file

import reverie
from reverie.errors import UserError
from reverie.learner.task_learner import TaskLearner
from reverie.model import folder as model_io
from reverie.model.folder import SavedModel
from reverie.nets import make_backbone
from reverie.nets.classifier import Classifier, Preprocessing
from reverie.runs.configure import preprocessing

AWKWARD = [
    "a|b",
    "`code`",
    "<script>alert(1)</script>",
    "🍎👩‍🌾",
    "../up/down",
    "two\nlines",
    " spaces ",
    "[x](y)",
    "ch\udce9rie",
]
REPORT = {
    "verdict": "look closer",
    "reasons": ["new class below 50%: a|b"],
    "rule": "a rule",
    "new": {"images": 4, "accuracy": 0.5, "by_class": [{"name": "a|b", "images": 4, "share": 0.5}]},
    "dreams": None,
    "check": None,
    "check_accuracy": None,
    "calibration": [{"on": "held-out new images", "before": None, "after": 0.1, "note": ""}],
    "calibration_bins": 15,
    "before": None,
    "after": {"parameters": 10, "bytes": 40, "image_ms": 1.0, "batch_ms": 2.0},
    "batch": 32,
    "device": "cpu",
}


@pytest.fixture
def folder(tiny, tiny_stream, tmp_path):
    learner = TaskLearner.fresh(tiny("base", "train.epochs=1"), preprocessing(tiny_stream))
    learner.learn(tiny_stream[0])
    learner.save(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def saved(tiny):
    """A model of classes with awkward names, with all that a folder can hold."""
    classifier = Classifier(make_backbone("resnet8", 1), Preprocessing(8, (0.5,), (0.25,)))
    classifier.grow(AWKWARD)
    entry = {
        "task": 1,
        "date": "2026-03-01T12:00:00+00:00",
        "source": "photos | <b>2025</b>",
        "classes": AWKWARD,
        "images_seen": 1200,
        "held_out": {"a|b": 300},
        "fingerprint": "0f" * 16,
        "kept": {"weights": 311_000, "statistics": 2_000},
        "images_kept": 0,
        "not_kept": ["images", "file names"],
    }
    config = tiny("abd", "net.name=resnet8")
    return SavedModel(classifier.eval(), config, [entry], ("ab" * 32,), 0.6, REPORT)


def change(file: Path, **values) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def rewrite(folder: Path, name: str, content: bytes) -> None:
    """As somebody would who knows of the digests: the file, its size and digest, and the digest of them all."""
    (folder / name).write_bytes(content)
    settings = json.loads((folder / "config.json").read_text())
    settings["files"][name] = {"bytes": len(content), "sha256": model_io._sha256(content)}
    del settings["digest"]
    (folder / "config.json").write_text(json.dumps({**settings, "digest": model_io._digest(settings)}))


# --- what is in it


def test_it_holds_weights_settings_a_card_and_the_ledger(folder, tiny_stream):
    assert sorted(file.name for file in folder.iterdir()) == [
        "README.md",
        "config.json",
        "ledger.json",
        "model.safetensors",
    ]
    settings = json.loads((folder / "config.json").read_text())
    assert settings["schema"] == 2
    assert settings["architecture"] == {"family": "reverie", "name": "resnet8", "options": {}}
    assert settings["classes"] == list(tiny_stream[0].names)
    assert settings["preprocessing"] == {"size": 8, "mean": [0.305], "deviation": [0.376]}
    assert settings["files"].keys() == {"README.md", "ledger.json", "model.safetensors"}
    assert settings["files"]["ledger.json"]["bytes"] == (folder / "ledger.json").stat().st_size
    assert "head.weight" in load_file(folder / "model.safetensors")


def test_a_model_that_was_read_is_at_rest(folder):
    """Not to be fooled by a batch, and not to be changed by it."""
    assert not any(module.training for module in model_io.load(folder).classifier.modules())


def test_the_ledger_counts_what_was_kept_by_kind_and_no_images(folder):
    (entry,) = json.loads((folder / "ledger.json").read_text())
    weights = load_file(folder / "model.safetensors")
    assert sum(entry["kept"].values()) == sum(value.nbytes for value in weights.values())
    statistics = [value.nbytes for name, value in weights.items() if "running" in name or "num_batches" in name]
    assert entry["kept"]["statistics"] == sum(statistics)
    assert (entry["keeps"], entry["kept_bytes"], entry["images_kept"]) == ("nothing", 0, 0)
    assert entry["not_kept"] == ["images", "file names", "dreams", "dreamer", "teacher"]
    assert "0 images" in (folder / "README.md").read_text()


def test_images_that_a_method_keeps_are_counted(tiny, tiny_stream):
    learner = TaskLearner.fresh(tiny("rehearsal", "train.epochs=1", "coreset.size=9"), preprocessing(tiny_stream))
    learner.learn(tiny_stream[0])
    assert learner.ledger[0]["images_kept"] == 9
    assert learner.ledger[0]["kept"]["a coreset"] == 9 * (8 * 8 + 8)
    assert "images" not in learner.ledger[0]["not_kept"]


def test_everything_comes_back(saved, tmp_path):
    model_io.save(tmp_path / "model", saved)
    again = model_io.load(tmp_path / "model")
    assert again.classifier.class_names == tuple(AWKWARD)
    assert again.classifier.preprocessing == saved.classifier.preprocessing
    for name, value in saved.classifier.state_dict().items():
        assert torch.equal(value, again.classifier.state_dict()[name])
    for field in ("config", "ledger", "lineage", "rejection", "acceptance"):
        assert getattr(again, field) == getattr(saved, field)


def test_the_digest_names_the_model_and_no_other(saved, tmp_path):
    for name in ("a", "b"):
        model_io.save(tmp_path / name, saved)
    with torch.no_grad():
        saved.classifier.head.bias[0] += 1
    model_io.save(tmp_path / "c", saved)
    a, b, c = (model_io.digest(tmp_path / name) for name in "abc")
    assert a == b != c
    assert re.fullmatch(r"[0-9a-f]{64}", a)


@pytest.mark.parametrize(("after", "read"), [("model.safetensors", 1), ("acceptance.json", 0)])
def test_a_model_that_is_replaced_while_it_is_read_is_read_whole_and_named_by_what_was_read(
    saved, tmp_path, monkeypatch, caplog, after, read
):
    place, models = tmp_path / "model", [saved, replace(saved, ledger=[{"classes": [], "images_seen": 7}])]
    digests = [model_io.save(folder, model) for folder, model in zip((place, tmp_path / "next"), models, strict=True)]
    assert digests == [model_io.digest(folder) for folder in (place, tmp_path / "next")]
    real = model_io._unchanged

    def replaced_after(folder, name, wanted):
        raw = real(folder, name, wanted)
        if name == after and (tmp_path / "next").exists():
            place.rename(tmp_path / "before")
            (tmp_path / "next").rename(place)
        return raw

    monkeypatch.setattr(model_io, "_unchanged", replaced_after)
    learner = reverie.load(place, device="cpu")
    assert learner.saved.ledger == models[read].ledger
    learner.rename({"a|b": "c"})
    assert learner.saved.lineage == (*saved.lineage, digests[read])
    assert not caplog.records  # nobody has written in the card


def test_the_page_about_the_folder_explains_every_field(saved, folder):
    page = (Path(__file__).parents[2] / "docs" / "model-folder.md").read_text("utf-8")
    settings = json.loads((folder / "config.json").read_text())
    (entry,) = json.loads((folder / "ledger.json").read_text())
    for name in (*settings, *settings["architecture"], *settings["preprocessing"], *entry, *REPORT, *REPORT["after"]):
        assert f"`{name}`" in page, name


# --- the card


def test_the_card_begins_as_the_hub_expects(folder):
    import yaml

    _, front, _ = (folder / "README.md").read_text().split("---\n", 2)
    values = yaml.safe_load(front)
    assert (values["library_name"], values["pipeline_tag"]) == ("reverie", "image-classification")
    assert all(isinstance(tag, str) for tag in values["tags"])


def test_names_cannot_break_the_card(saved, tmp_path):
    """Rendered with HTML allowed, every name is text in a cell of its own, and nothing else is there."""
    model_io.save(tmp_path / "model", saved)
    text = (tmp_path / "model" / "README.md").read_text().split("---\n", 2)[2]
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(text)
    inline = [token for token in tokens if token.type == "inline"]
    kinds = {child.type for token in inline for child in token.children} | {token.type for token in tokens}
    assert not kinds & {"html_inline", "html_block", "link_open", "image", "em_open"}
    rows = [[]]
    for token in tokens:
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline":
            rows[-1].append("".join(child.content for child in token.children))
    (step,) = [row for row in rows if row and row[0] == "1"]
    assert step[1:3] == ["2026-03-01", "photos | <b>2025</b>"]
    shown = step[3]
    for name in ("a|b", "`code`", "<script>alert(1)</script>", "🍎👩‍🌾", "../up/down", "[x](y)", "ch(U+DCE9)rie"):
        assert name in shown
    assert step[4:8] == [
        "1,200 and 300 held out",
        "0f" * 16,
        "weights 311,000 bytes; statistics 2,000 bytes; 0 images",
        "images, file names",
    ]
    assert ["a|b", "50.0 % of 4"] in [row[:2] for row in rows]
    assert "Verdict: look closer" in text
    assert "confidence below 0.600" in text


def test_a_thousand_classes_do_not_fill_the_card(saved, tmp_path):
    names = [f"class {number}" for number in range(1000)]
    saved.ledger = [{"classes": names, "images_seen": 5}]
    model_io.save(tmp_path / "model", saved)
    assert "class 29 and 970 more" in (tmp_path / "model" / "README.md").read_text()


def test_entries_of_other_deeds_and_older_ledgers_stand_in_the_card_too(saved, tmp_path):
    old = {"task": 1, "classes": ["0"], "images_seen": 5, "keeps": "nothing", "kept_bytes": 0}
    removed = {"date": "2026-01-01T00:00:00+00:00", "action": "remove", "removed": ["b"]}
    renamed = {"date": "2026-01-02T00:00:00+00:00", "action": "rename", "renamed": {"c": "d"}}
    saved.ledger = [old, removed, renamed]
    model_io.save(tmp_path / "model", saved)
    card = (tmp_path / "model" / "README.md").read_text()
    assert "| 1 | – | – | 0 | 5 | – | nothing (0 bytes) | – |" in card
    assert "| 2 | 2026-01-01 | – | remove: b | – | – | – | – |" in card
    assert "| 3 | 2026-01-02 | – | rename: c → d | – | – | – | – |" in card


# --- what is refused


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "ledger.json", "acceptance.json"])
@pytest.mark.parametrize("how", ["halved", "emptied", "one bit", "gone"])
def test_a_folder_that_is_not_as_it_was_written_is_refused_and_the_file_is_named(saved, tmp_path, file, how):
    model_io.save(tmp_path / "model", saved)
    path = tmp_path / "model" / file
    content = bytearray(path.read_bytes())
    if how == "one bit":
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    elif how == "gone":
        path.unlink()
    else:
        path.write_bytes(content[: len(content) // 2 if how == "halved" else 0])
    with pytest.raises(UserError, match=re.escape(file)) as refused:
        model_io.load(tmp_path / "model")
    assert len(str(refused.value).splitlines()) == 1


def test_a_class_renamed_by_hand_is_noticed(saved, tmp_path):
    model_io.save(tmp_path / "model", saved)
    change(tmp_path / "model" / "config.json", classes=["x", *AWKWARD[1:]])
    with pytest.raises(UserError, match=r"config\.json has been changed"):
        model_io.load(tmp_path / "model")


def test_a_card_that_somebody_wrote_in_is_said_and_no_hindrance(folder, caplog):
    with (folder / "README.md").open("a") as card:
        card.write("\nOur own remarks.\n")
    reverie.load(folder)
    assert "README.md is not as reverie wrote it" in caplog.text


def test_a_card_that_somebody_wrote_in_is_never_overwritten(folder, tmp_path):
    saved = model_io.load(folder)
    with (folder / "README.md").open("a") as card:
        card.write("\nOur own remarks.\n")
    with pytest.raises(UserError, match=r"Somebody wrote in .*README\.md"):
        model_io.save(folder, saved, overwrite=True)
    assert (folder / "README.md").read_text().endswith("Our own remarks.\n")
    model_io.load(folder)
    (folder / "README.md").rename(tmp_path / "remarks.md")
    model_io.save(folder, saved, overwrite=True)
    assert (folder / "README.md").is_file()
    (folder / "README.md").unlink()
    reverie.load(folder)


def test_a_report_or_a_configuration_of_another_version_is_no_riddle(saved, tmp_path):
    """The report is not needed for anything; the configuration is."""
    saved.acceptance = {"verdict": "accept", "stars": 5}
    model_io.save(tmp_path / "model", saved)
    assert "See `acceptance.json`" in (tmp_path / "model" / "README.md").read_text()
    assert model_io.load(tmp_path / "model").acceptance == saved.acceptance
    settings = json.loads((tmp_path / "model" / "config.json").read_text())
    settings |= {"reverie": "0.9", "training": {**settings["training"], "magic": 1}}
    del settings["digest"]
    (tmp_path / "model" / "config.json").write_text(json.dumps({**settings, "digest": model_io._digest(settings)}))
    with pytest.raises(UserError, match=r"'magic'.* written by reverie 0\.9; this is"):
        model_io.load(tmp_path / "model")


def test_tensors_that_share_memory_are_written_and_read(saved, tmp_path):
    saved.classifier.register_buffer("factor", saved.classifier.head.bias.detach())
    saved.classifier.register_buffer("shift", saved.classifier.factor)
    model_io.save(tmp_path / "model", saved)
    assert torch.equal(model_io.load(tmp_path / "model").classifier.shift, saved.classifier.head.bias)


def test_the_layout_of_the_json_is_nobodys_business(folder):
    settings = json.loads((folder / "config.json").read_text())
    before = model_io.digest(folder)
    (folder / "config.json").write_text(json.dumps(dict(reversed(settings.items())), indent=4))
    reverie.load(folder)
    assert model_io.digest(folder) == before


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("model.safetensors", b"\x80\x04 a pickle", "model.safetensors is not what reverie writes"),
        ("ledger.json", b'{"a": 1}', "ledger.json is not what reverie writes"),
        ("ledger.json", b"[1]", "ledger.json is not what reverie writes"),
        ("ledger.json", b"[" * 100_000, "ledger.json is not what reverie writes"),
        ("acceptance.json", b"[1]", "acceptance.json is not what reverie writes"),
    ],
)
def test_files_of_the_right_digest_and_the_wrong_content_are_refused(saved, tmp_path, name, content, why):
    model_io.save(tmp_path / "model", saved)
    rewrite(tmp_path / "model", name, content)
    with pytest.raises(UserError, match=why):
        model_io.load(tmp_path / "model")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"head_rows": 10**15}, "is not what reverie writes"),  # before room is made for them
        ({"architecture": {"family": "reverie", "name": "resnet14", "options": {}}}, "is not what reverie writes"),
        ({"classes": ["twice", "twice"]}, "is not what reverie writes"),
        ({"files": {}}, "does not list model.safetensors"),
    ],
)
def test_settings_that_do_not_fit_the_rest_are_refused(saved, tmp_path, changes, why):
    model_io.save(tmp_path / "model", saved)
    settings = {**json.loads((tmp_path / "model" / "config.json").read_text()), **changes}
    del settings["digest"]
    (tmp_path / "model" / "config.json").write_text(json.dumps({**settings, "digest": model_io._digest(settings)}))
    with pytest.raises(UserError, match=rf"config\.json {why}"):
        model_io.load(tmp_path / "model")


def test_another_folder_and_a_newer_one_are_refused(folder, tmp_path):
    with pytest.raises(UserError, match="not a model folder"):
        reverie.load(tmp_path)
    with pytest.raises(UserError, match="not a model folder"):
        reverie.load(tmp_path / "nowhere")
    change(folder / "config.json", schema=99, reverie="7.0")
    with pytest.raises(UserError, match=r"newer reverie \(7\.0\); this is .* upgrade"):
        reverie.load(folder)


def test_folders_of_the_first_schema_are_still_read(folder):
    settings = json.loads((folder / "config.json").read_text())
    for key in ("architecture", "files", "digest", "lineage", "rejection"):
        del settings[key]
    settings |= {"schema": 1, "net": settings["training"]["net"]["name"], "run": settings.pop("training")}
    (folder / "config.json").write_text(json.dumps(settings))
    again = model_io.load(folder)
    assert (again.lineage, again.rejection, again.acceptance) == ((), None, None)
    first = model_io.digest(folder)
    assert model_io.read(folder)[1] == first
    raw = ((folder / name).read_bytes() for name in ("config.json", "model.safetensors", "ledger.json"))
    assert first == model_io._sha256("".join(map(model_io._sha256, raw)).encode())
    weights = load_file(folder / "model.safetensors")
    weights["head.bias"] += 1
    save_file(weights, folder / "model.safetensors")
    assert model_io.digest(folder) != first
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match="damaged"):
        model_io.load(folder)


# --- nothing is lost


def test_nothing_is_overwritten_unless_asked_for(folder):
    learner = reverie.load(folder).task_learner
    with pytest.raises(UserError, match="exists already"):
        learner.save(folder)
    learner.save(folder, overwrite=True)
    assert [entry.name for entry in folder.parent.iterdir() if entry.name.startswith(".")] == []


@pytest.mark.parametrize("theirs", ["thesis.tex", ".git", "photos"])
def test_what_is_not_a_model_folder_is_never_overwritten(saved, folder, theirs):
    (folder / theirs).mkdir()
    with pytest.raises(UserError, match=re.escape(theirs)):
        model_io.save(folder, saved, overwrite=True)
    assert (folder / theirs).is_dir()


def test_a_model_with_all_rows_from_the_start_is_the_same_after_loading(tiny, tiny_stream, tmp_path):
    learner = TaskLearner.fresh(
        tiny("base", "train.epochs=1", recipe="released"), preprocessing(tiny_stream), classes=10
    )
    learner.learn(tiny_stream[0])
    learner.save(tmp_path / "model")
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
    if os.geteuid() == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(os.getuid())
        folder.chmod(0o700)


def test_without_permission_to_write_it_says_so(saved, tmp_path):
    with (
        without_rights(tmp_path, 0o500),
        pytest.raises(UserError, match=r"model cannot be written: Permission denied.*choose a place"),
    ):
        model_io.save(tmp_path / "model", saved)
    assert left_in(tmp_path) == []


def test_without_permission_to_read_it_says_so(folder):
    refused = pytest.raises(UserError, match=r"config\.json cannot be read: Permission denied\. Change its permissions")
    with without_rights(folder, 0o000), refused:
        model_io.load(folder)


def test_a_file_that_cannot_grow_leaves_nothing_behind(saved, tmp_path):
    model_io.save(tmp_path / "old", saved)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(UserError, match=r"written: File too large\. Nothing was left there\. Make room, or choose"):
            model_io.save(tmp_path / "model", saved, overwrite=True)
        said = rf"old cannot be changed: File too large\. It is as it was\. Make room in {tmp_path}, or choose"
        with pytest.raises(UserError, match=said):
            model_io.save(tmp_path / "old", saved, overwrite=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert left_in(tmp_path) == ["old"]
    model_io.load(tmp_path / "old")


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
            model_io.save(disk / "model", saved)
        assert left_in(disk) == []
        subprocess.run(["mount", "-o", "remount,size=20m", disk], check=True)
        model_io.save(disk / "model", saved)
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        said = rf"model cannot be changed: Read-only file system\. It is as it was\. Make room in {disk}, or"
        with pytest.raises(UserError, match=said):
            model_io.save(disk / "model", saved, overwrite=True)
    finally:
        subprocess.run(["umount", disk], check=True)


WRITER = """
import sys, torch
from pathlib import Path
from reverie.model import folder as model_io

saved, root = model_io.load(Path(sys.argv[1])), Path(sys.argv[2])
number = 0
while True:
    number += 1
    saved.ledger = [{"classes": [], "images_seen": number}]
    model_io.save(root / f"new-{number}", saved)
    model_io.save(root / "same", saved, overwrite=True)
    print("made", flush=True)
"""


def test_killed_at_any_moment_there_is_a_whole_folder_or_none(saved, tmp_path):
    model_io.save(tmp_path / "saved", saved)
    command = [sys.executable, "-c", WRITER, str(tmp_path / "saved")]
    for number in range(2):
        root = tmp_path / f"killed-{number}"
        root.mkdir()
        process = subprocess.Popen([*command, str(root)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "made\n"
        time.sleep(0.1 + 0.037 * number)
        process.send_signal(signal.SIGKILL)
        process.wait(20)
        made = [entry for entry in root.iterdir() if not entry.name.startswith(".reverie-")]
        assert root / "same" in made
        for folder in made:
            assert model_io.load(folder).classifier.class_names == tuple(AWKWARD)


def test_ctrl_c_while_writing_leaves_nothing_behind(saved, tmp_path, monkeypatch):
    real = os.fsync

    def interrupt(handle):
        real(handle)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        model_io.save(tmp_path / "model", replace(saved))
    assert left_in(tmp_path) == []
