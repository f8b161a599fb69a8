"""The command as a person types it: help that teaches, mistakes that end in a message and exit code 2."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from reverie import load
from reverie.data.sources import ARCHIVES
from tests.conftest import TINY
from tests.data.test_imagenet import write_imagenet, write_tiny_imagenet

VERBS = [
    [],
    ["run"],
    ["demo"],
    ["learn"],
    ["table"],
    ["tune"],
    ["presets"],
    ["methods"],
    ["bench"],
    ["predict"],
    ["evaluate"],
    ["dream"],
    ["classes"],
    ["export"],
    ["adopt"],
    ["diagnose"],
    ["results"],
    ["report"],
    ["watch"],
    ["data"],
    ["data", "list"],
    ["data", "get"],
    ["data", "check"],
]
QUICK = [word for setting in [*TINY, "train.epochs=1", "stream.take=2"] for word in ("--set", setting)]


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_help_teaches_with_an_example(reverie, verb):
    code, out, _ = reverie(*verb, "--help")
    assert code == 0
    assert "Usage" in out
    if verb and verb != ["data"]:
        assert "Example: reverie" in out


def test_the_benchmark_says_what_is_measured_unless_told(reverie):
    assert "[default: cifar100-10]" in reverie("bench", "--help")[1]


def test_help_and_import_load_no_torch():
    program = (
        "import sys; sys.argv = ['reverie', *sys.argv[1:]]\n"
        "import reverie, reverie.cli\n"
        "try: reverie.cli.main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'torchvision', 'sklearn', 'matplotlib', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    for words in (["--help"], ["run", "--help"], ["data", "get", "--help"], ["presets"], ["--version"]):
        subprocess.run([sys.executable, "-c", program, *words], check=True, capture_output=True, timeout=60)


def test_python_m_reverie_is_the_command():
    done = subprocess.run([sys.executable, "-m", "reverie", "--version"], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("reverie 0.")


def test_lists(reverie):
    assert "cifar100-10" in reverie("presets")[1]
    methods = reverie("methods")[1]
    assert all(name in methods for name in ("abd", "joint", "lwf-synthetic"))
    assert "everything" in methods
    sources = reverie("data", "list")[1]
    assert "always there" in sources
    assert "missing; reverie data get tinyimagenet" in sources
    assert "missing; https://image-net.org" in sources


def test_a_run_prints_its_figures_and_a_hint_about_omega(reverie, tmp_path):
    code, out, _ = reverie("run", "digits-5", "--method", "base", *QUICK)
    assert code == 0
    assert "task 2/2 learned" in out
    assert "Omega needs the upper bound" in out
    (folder,) = (tmp_path / "runs").glob("digits-5-base-paper-data.size=8,*-seed0")
    result = json.loads((folder / "result.json").read_text())
    assert result["sessions"][0]["command"].startswith("reverie run digits-5 --method base")
    assert f"{100 * result['metrics']['final_accuracy']:.1f}" in out
    again = reverie("run", "digits-5", "--method", "base", *QUICK)
    assert again[0] == 0
    assert "learned" not in again[1]


def test_recipe_seed_and_folder_are_taken_from_the_command_line(reverie, tmp_path):
    words = ["--method", "lwf", "--seed", "3", "--recipe", "released", "--out", "here", "--device", "cpu"]
    code, _, _ = reverie("run", "digits-5", *words, *QUICK)
    result = json.loads((tmp_path / "here" / "result.json").read_text())
    assert code == 0
    assert (result["method"], result["seed"], result["recipe"]) == ("lwf", 3, "released")


def test_a_first_own_experiment_is_five_lines(reverie, tmp_path, photos):
    (tmp_path / "mine.yaml").write_text(
        "extends: digits-5\ndata: {source: folder, size: 16}\nstream: {split: 3}\n"
        "train: {epochs: 1, batch_size: 8}\ndream: {steps: 2, width: 8}\n"
    )
    code, out, _ = reverie("run", "mine.yaml", "--data", str(photos))
    assert code == 0
    assert "task 3/3 learned" in out
    assert (tmp_path / "runs" / "mine-abd-paper-seed0" / "result.json").is_file()


def test_the_benchmark_prints_a_table_and_writes_a_file(reverie, tmp_path):
    words = ["--methods", "base", "--tasks", "1", "--steps", "5", "--device", "cpu", "--out", "speed.json"]
    code, out, err = reverie("bench", "digits-5", *words)
    assert code == 0
    assert "eager fp32, ms" in out
    assert err == "base, task 1, eager fp32\n"  # what is measured now
    written = json.loads((tmp_path / "speed.json").read_text())
    assert written["environment"]["device"] == "cpu"
    assert written["command"].startswith("reverie bench digits-5")
    assert written["measurements"][0]["phase"] == "learn"
    code, _, err = reverie("bench", "digits-5", *words)
    assert (code, "speed.json exists already. Choose another --out, or say --overwrite." in err) == (2, True)


def test_tuning_says_what_it_chose_and_by_how_much(reverie, tmp_path):
    words = ["--method", "base", "--grid", "train.lr=0.001,0.1", "--folds", "2", *QUICK, "--set", "stream.take=4"]
    code, out, _ = reverie("tune", "digits-5", *words)
    assert code == 0
    assert "chosen: train.lr=0.1 with" in out
    assert "points ahead of train.lr=0.001" in out
    assert (tmp_path / "runs" / "tune-digits-5-base" / "tune.json").is_file()


def test_a_search_that_chose_nothing_ends_as_a_run_that_diverged(reverie):
    words = ["--method", "base", "--grid", "train.lr=1e30", "--folds", "2", *QUICK, "--set", "stream.take=4"]
    code, out, _ = reverie("tune", "digits-5", *words)
    assert code == 1
    assert "Every point diverged; nothing is chosen." in out


def test_help_shows_the_markers_that_a_file_must_hold(reverie):
    assert "<!-- results: NAME -->" in " ".join(reverie("results", "--help")[1].replace("│", " ").split())


def test_results_are_shown_as_tables_and_written_into_a_text(reverie, tmp_path):
    code, _, _ = reverie("run", "digits-5", "-m", "base", *QUICK, "--out", "one")
    folder = tmp_path / "results" / "digits-5"
    folder.mkdir(parents=True)
    (tmp_path / "one" / "result.json").rename(folder / "base.json")
    (tmp_path / "results" / "figures" / "of-something").mkdir(parents=True)  # holds no result files
    code, out, _ = reverie("results")
    assert code == 0
    assert "| Base, " in out  # the settings that were changed stand behind it
    (tmp_path / "page.md").write_text("<!-- results: digits-5 -->\n<!-- /results -->\n")
    assert reverie("results", "--write", "page.md")[0] == 0
    assert "| Base" in (tmp_path / "page.md").read_text()
    code, _, err = reverie("results", "--write", "nothing.md")
    assert code == 2
    assert "nothing.md cannot be read" in err
    assert reverie("results", "results/figures")[0] == 2


def test_json_is_printed_and_nothing_else(reverie, tmp_path, monkeypatch):
    def printed(*words):
        code, out, _ = reverie(*words, "--json")
        assert code == 0
        return json.loads(out)

    run = printed("run", "digits-5", "-m", "base", *QUICK, "--out", "one")
    stored = json.loads((tmp_path / "one" / "result.json").read_text())
    assert run == {"folder": "one", **stored}
    (tmp_path / "results" / "digits-5").mkdir(parents=True)
    (tmp_path / "results" / "digits-5" / "base.json").write_text(json.dumps(stored))
    (row,) = printed("results")["digits-5"]
    assert row["final_accuracy"] == pytest.approx(100 * stored["metrics"]["final_accuracy"])
    speed = printed("bench", "digits-5", "--methods", "base", "--tasks", "1", "--steps", "5", "--device", "cpu")
    assert speed["measurements"][0]["milliseconds"] > 0
    words = ["--method", "base", "--grid", "train.lr=0.001,0.1", "--folds", "2", *QUICK, "--set", "stream.take=4"]
    assert printed("tune", "digits-5", *words)["chosen"] == ["train.lr=0.1"]
    words = ["--methods", "base", "--seeds", "0", "--no-upper-bound", "--device", "cpu", *QUICK, "--out", "many"]
    table = printed("table", "digits-5", *words)
    assert (table["rows"][0]["method"], table["failed"]) == ("base", [])
    assert table["files"] == [f"many/table.{kind}" for kind in ("md", "csv", "tex", "json")]
    (tmp_path / "quick.yaml").write_text(
        "extends: digits-5\ndata: {size: 8}\nstream: {take: 2}\ntrain: {epochs: 1, batch_size: 32}\n"
        "dream: {steps: 2, width: 8}\n"
    )
    monkeypatch.setattr("reverie.cli.demo.PRESET", "quick.yaml")
    demo = printed("demo", "--device", "cpu")
    assert [row["method"] for row in demo["rows"]] == ["joint", "base", "lwf", "deepinversion", "abd"]
    assert demo["files"][-1] == "runs/demo/page.html"
    assert "quick" in (tmp_path / "runs" / "demo" / "page.html").read_text("utf-8")


def test_data_that_come_with_reverie_can_be_checked_too(reverie):
    code, out, _ = reverie("data", "check", "digits")
    assert code == 0
    counts = [list(map(int, line.split()[1:])) for line in out.splitlines() if line.split()[0] in map(str, range(10))]
    assert (len(counts), sum(map(sum, counts))) == (10, 1797)


def test_data_check_reads_a_folder_and_counts_its_images(reverie, photos):
    (photos / "apple" / "note.txt").write_text("no image")
    code, out, _ = reverie("data", "check", str(photos))
    assert code == 0
    assert "note.txt" in out
    assert "banana" in out


def test_data_check_counts_the_images_of_tiny_imagenet_and_imagenet(reverie, tmp_path, monkeypatch):
    write_tiny_imagenet(tmp_path / "data")
    write_imagenet(tmp_path / "data")
    code, out, err = reverie("data", "check", "tinyimagenet")  # cut down, as a run takes it
    assert code == 0
    assert "tiny-imagenet-200 is not as published: it has 28 of 110,000 images." in err
    assert "has 4 classes, not 200" in out
    assert ["goldfish", "4", "3"] in [line.split() for line in out.splitlines()]
    monkeypatch.setitem(ARCHIVES, "tinyimagenet", replace(ARCHIVES["tinyimagenet"], images=28))
    for name, row in (("tinyimagenet", ["goldfish", "4", "3"]), ("imagenet", ["n01443537", "6", "2"])):
        code, out, _ = reverie("data", "check", name)
        assert code == 0
        assert row in [line.split() for line in out.splitlines()]
    assert [line.split()[-1] for line in reverie("data", "list")[1].splitlines()].count("found") == 2


SMALL = ["data.size=16", "net.name=resnet8", "stream.split=2", "train.epochs=1", "train.batch_size=4", "dream.noise=8"]
SMALL += ["dream.steps=2", "dream.width=8", "dream.batch_size=4"]


@pytest.mark.parametrize(
    ("preset", "write", "settings"),
    [
        ("tinyimagenet-20", write_tiny_imagenet, []),
        ("imagenet50-5", write_imagenet, ["stream.order=[2, 0, 3, 1]", "stream.classes=4"]),
    ],
)
def test_two_tasks_are_run_from_the_folders_of_each_large_data_set(reverie, tmp_path, preset, write, settings):
    write(tmp_path / "data")
    words = [word for setting in [*SMALL, *settings] for word in ("--set", setting)]
    code, _, err = reverie("run", preset, "--out", "run", "--device", "cpu", *words)
    assert (code, err) == (0, "")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["task_sizes"] == [2, 2]
    assert len(result["metrics"]["accuracy_after"]) == 2
    if preset == "imagenet50-5":
        assert result["class_order"] == [2, 0, 3, 1]
        assert result["metrics"]["accuracy_after"] == [1.0, 1.0]  # four classes, top-5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "digit-5"], "Did you mean 'digits-5'"),
        (["table", "digits-5", "--methods", " , "], "--methods wants one or several names"),
        (["bench", "digits-5", "--methods", ""], "--methods wants one or several names"),
        (["bench", "digits-5", "--modes", "slow", "--device", "cpu"], "--modes takes fp32, tf32, captured, fast"),
        (["run", "nothing.yaml"], "There is no file nothing.yaml"),
        (["run", "digits-5", "--method", "abdd"], "Did you mean 'abd'"),
        (["run", "digits-5", "--set", "train.epoch=3"], "Did you mean 'train.epochs'"),
        (["run", "digits-5", "--set", "train.epochs"], "section.key=value"),
        (["run", "digits-5", "--recipe", "secret"], "secret"),
        (["run", "digits-5", "--seed", "x"], "--seed"),
        (["run", "digits-5", "--device", "abacus"], "abacus"),
        (["run", "cifar100-10", "--data", "nowhere"], "reverie data get cifar100 --data nowhere"),
        (["run", "digits-5", "--set", "data.source=folder", "--data", "nowhere"], "There is no folder nowhere"),
        (["run", "digits-5", "--set", "net.name=resnet33"], "Did you mean 'resnet32'"),
        (["run", "digits-5", "--set", "stream.split=3"], "cannot be cut into 3 equal tasks"),
        (["run", "digits-5", "--set", "stream.order=backwards"], "stream.order"),
        (["run"], "Missing argument"),
        (["demo", "--seeds", "a,b"], "--seeds wants numbers"),
        (["data", "get", "mnist"], "it knows cifar10, cifar100"),
        (["data", "check", "cifar100"], "reverie data get cifar100"),
        (["data", "check", "nowhere"], "There is no folder nowhere"),
        (["dance"], "dance"),
        (["bench", "--tasks", "two"], "--tasks wants numbers"),
        (["bench", "digits-5", "--tasks", "9"], "tasks 1 to 5"),
        (["bench", "--methods", "abdd"], "Did you mean 'abd'"),
        (["results"], "There is no folder results"),
        (["table"], "Say which preset"),
        (["table", "digits-5", "--methods", "abdd"], "Did you mean 'abd'"),
        (["table", "digits-5", "--seeds", "x"], "--seeds wants numbers"),
        (["table", "digits-5", "--set", "train.epoch=1"], "Did you mean 'train.epochs'"),
        (["table", "digits-5", "--device", "abacus"], "abacus"),
        (["table", "--paper", "everything"], "there are data-free, replay"),
        (["table", "digits-5", "--paper", "data-free"], "has no preset 'digits-5'"),
        (["tune", "digits-5"], "Missing option '--grid'"),
        (["tune", "digits-5", "--grid", "train.lr"], "--grid wants"),
        (["run", "digits-5", "--set", "engine.capture=true", "--device", "cpu"], "engine.capture needs a GPU"),
        (["run", "digits-5", "--set", "engine.precision=tf32", "--device", "cpu"], "tf32 needs a GPU"),
        (["run", "digits-5", "--set", "train.epochs.x=5"], "train.epochs must be a whole number"),
        (["run", "digits-5", "--set", "stream.take=9"], "stream.take asks for 9 tasks; there are 5"),
        (["run", "digits-5", "--method", "ABD"], "Did you mean 'abd'"),
        (["run", "digits-5", "--out", "/proc/x"], "/proc/x cannot be written: No such file or directory. Choose"),
        (["run", "digits-5", "--out", "/dev/null/x"], "/dev/null/x cannot be written: Not a directory. Choose another"),
        (["table", "digits-5", "--out", "/dev/null/x"], "cannot be written: Not a directory. Choose another"),
        (
            ["bench", "digits-5", "--out", "/dev/null/x.json"],
            "/dev/null cannot be written: Not a directory. Choose another",
        ),
        (["run", "digits-5", "--checkpoint-every", "-1"], "--checkpoint-every"),
        (["demo", "--out", "/dev/null"], "/dev/null/joint-seed0 cannot be written: Not a directory. Choose another"),
        (
            ["data", "get", "cifar100", "--data", "/dev/null"],
            "/dev/null cannot be written: File exists. Choose another",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_told_in_a_line_or_two_with_exit_code_2_and_leaves_nothing(reverie, tmp_path, words, message):
    code, out, err = reverie(*words)
    assert code == 2
    assert message in err
    assert "Traceback" not in out + err
    if err.startswith("reverie: "):
        assert len(err.strip().splitlines()) <= 2
    assert list(tmp_path.iterdir()) == []


def test_a_class_without_images_and_an_unreadable_folder_are_mistakes_too(reverie, photos):
    (photos / "durian").mkdir()
    folder = ["--set", "data.source=folder", "--data", str(photos)]
    code, _, err = reverie("run", "digits-5", *folder)
    assert (code, "'durian'" in err) == (2, True)
    (photos / "durian").rmdir()
    for file in (photos / "apple").iterdir():
        file.write_bytes(b"broken")
    code, _, err = reverie("run", "digits-5", *folder)
    assert (code, "'apple'" in err) == (2, True)


@pytest.mark.parametrize("words", [["run", "digits-5", "--set", "data.source=folder", "--data"], ["data", "check"]])
def test_a_folder_that_may_not_be_read_is_a_mistake(reverie, photos, words, monkeypatch):
    real = Path.is_dir

    def refuse(path):
        if path.parent == photos:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(Path, "is_dir", refuse)
    code, _, err = reverie(*words, str(photos))
    assert code == 2
    assert "cannot be read: Permission denied. Change its permissions" in err


def test_a_run_folder_that_may_not_be_written_is_a_mistake(reverie, monkeypatch):
    real = Path.mkdir

    def refuse(path, *args, **how):
        if path.name == "out":
            raise OSError(30, "Read-only file system", str(path))
        real(path, *args, **how)

    monkeypatch.setattr(Path, "mkdir", refuse)
    code, _, err = reverie("run", "digits-5", "--out", "out")
    assert (code, err) == (2, "reverie: out cannot be written: Read-only file system. Choose another --out.\n")


@pytest.mark.parametrize("name", ["o[/b]x", "[red]", ":cat:"])
def test_names_are_shown_as_they_are(reverie, photos, name):
    code, out, _ = reverie("run", "digits-5", "--method", "base", "--out", name, *QUICK)
    assert code == 0
    assert out.endswith(f"\n{name}/result.json\n")
    fruit = name.replace("/", "")
    (photos / "apple").rename(photos / fruit)
    (photos / fruit / "[i].txt").write_text("no image")
    code, out, _ = reverie("data", "check", str(photos))
    assert code == 0
    assert f"\n {fruit} " in out
    assert f"{fruit}/[i].txt is not an image" in out


def test_names_need_not_be_text(reverie, tmp_path, photos):
    odd = os.fsdecode(b"\xff")
    for file in (photos / "apple" / "0.jpg", photos / "apple", photos):
        file.rename(file.parent / f"{odd}{file.suffix}")
    photos = tmp_path / odd
    code, out, _ = reverie("data", "check", str(photos))
    assert code == 0
    assert r"\udcff " in out
    settings = ["--set", "data.source=folder", "--set", "stream.split=3", "--set", "stream.order=[2, 0, 1]"]
    code, _, _ = reverie("run", "digits-5", "--data", str(photos), "--out", "run", *QUICK, *settings)
    assert code == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert odd in result["class_names"]
    assert odd in result["sessions"][0]["command"]
    assert load(tmp_path / "run" / "model").classes == tuple(result["class_names"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="this is about a machine without a GPU")
def test_a_gpu_that_is_not_there_is_a_mistake(reverie, tmp_path):
    code, _, err = reverie("run", "digits-5", "--device", "cuda")
    assert (code, "there is no GPU here that torch can use. Try cpu." in err) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_another_configuration_in_the_same_folder_is_refused_with_the_difference(reverie):
    reverie("run", "digits-5", "--method", "base", "--out", "here", *QUICK)
    code, _, err = reverie("run", "digits-5", "--method", "base", "--out", "here", *QUICK, "--set", "train.lr=0.01")
    assert code == 2
    assert "train.lr: 0.1 in the folder, 0.01 asked for" in err


def test_a_full_disk_is_told_without_a_traceback(reverie, monkeypatch):
    import errno
    import os

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    code, _, err = reverie("run", "digits-5", "--method", "base", *QUICK)
    assert code == 1
    assert "No space left on device" in err


def test_training_that_diverges_says_what_to_lower(reverie):
    code, _, err = reverie("run", "digits-5", "--method", "base", *QUICK, "--set", "train.lr=1e30")
    assert code == 1
    assert "train.lr" in err
