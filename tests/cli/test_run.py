"""`reverie run` as a person types it."""

import json
from pathlib import Path

import pytest
import torch

from tests.support.experiments import TINY
from tests.support.images import write_imagenet, write_tiny_imagenet
from tests.support.mistakes import assert_mistake

QUICK = [word for setting in [*TINY, "train.epochs=1", "stream.take=2"] for word in ("--set", setting)]


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


def test_the_result_as_json_and_nothing_else(reverie, tmp_path):
    code, out, err = reverie("run", "digits-5", "-m", "base", *QUICK, "--out", "one", "--json")
    assert code == 0
    assert json.loads(out) == {"folder": "one", **json.loads((tmp_path / "one" / "result.json").read_text())}
    assert "task 2/2 learned" in err


def test_a_first_own_experiment_is_five_lines(reverie, tmp_path, photos):
    (tmp_path / "mine.yaml").write_text(
        "extends: digits-5\ndata: {source: folder, size: 16}\nstream: {split: 3}\n"
        "train: {epochs: 1, batch_size: 8}\ndream: {steps: 2, width: 8}\n"
    )
    code, out, _ = reverie("run", "mine.yaml", "--data", str(photos))
    assert code == 0
    assert "task 3/3 learned" in out
    assert (tmp_path / "runs" / "mine-abd-paper-seed0" / "result.json").is_file()


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


def test_a_log_for_tensorboard_is_written_beside_the_run(reverie, tmp_path):
    pytest.importorskip("tensorboard", reason="no tensorboard here")
    code, _, _ = reverie("run", "digits-5", "-m", "base", *QUICK, "--out", "one", "--tensorboard")
    assert code == 0
    assert [*(tmp_path / "one" / "tensorboard").glob("events.*")]


# --- mistakes

MISTAKES = {
    "run": "Missing argument 'PRESET'",
    "run digit-5": "There is no preset 'digit-5'. Did you mean 'digits-5'? `reverie presets` names them; a YAML file",
    "run nothing.yaml": "There is no file nothing.yaml",
    "run digits-5 --method ABD": "There is no method 'ABD'. Did you mean 'abd'? `reverie methods` names them.",
    "run digits-5 --seed x": "Invalid value for '--seed'",
    "run digits-5 --recipe secret": "'secret' is not one of 'paper', 'rel",
    "run digits-5 --device abacus": "The device 'abacus' is unknown; use auto, cpu, cuda or cuda:1.",
    "run digits-5 --checkpoint-every -1": "Invalid value for '--checkpoint-every'",
    "run digits-5 --out /proc/x": "/proc/x cannot be written: No such file or directory. Choose another --out.",
    "run cifar100-10 --data it's": "`reverie data get cifar100 --data it's` downloads it",
    "run imagenet50-5 --data nowhere": "unpack it so that nowhere/imagenet holds train/WNID/*.JPEG",
    "run digits-5 --set data.source=folder --data nowhere": "There is no folder nowhere",
    # settings that cannot be: unknown, malformed, out of bounds, of another data set, network or device
    "run digits-5 --set train.epoch=3": "Unknown key 'train.epoch' in the settings. Did you mean 'train.epochs'?",
    "run digits-5 --set train.epochs": "A setting is section.key=value, for example train.epochs=5, not 'train.epochs'",
    "run digits-5 --set train.epochs=0": "train.epochs must be a whole number from 1 to 1,000,000, not 0.",
    "run digits-5 --set data.source=mnist": "data.source 'mnist' is unknown. `reverie data list` names what there is.",
    "run digits-5 --set net.name=resnet33": "Did you mean 'resnet32'?",
    "run digits-5 --set stream.split=3": "10 classes cannot be cut into 3 equal tasks",
    "run digits-5 --set stream.order=backwards": "stream.order 'backwards' is unknown",
    "run digits-5 --set stream.take=9": "stream.take asks for 9 tasks; there are 5",
    "run digits-5 --set engine.capture=true --device cpu": "engine.capture needs a GPU",
    "run digits-5 --set engine.precision=tf32 --device cpu": "engine.precision=tf32 needs a GPU",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_told_in_a_line_or_two_and_leaves_nothing(reverie, words):
    assert_mistake(reverie, words, MISTAKES[words])


def test_a_folder_that_is_something_else_stays_as_it_is(reverie, photos):
    Path("file").write_text("something else")
    assert_mistake(reverie, "run digits-5 --out file", "file is a file. Choose another --out.")
    assert_mistake(
        reverie, "run digits-5 --out photos", "photos is not empty and not a run folder. Choose another --out"
    )
    assert_mistake(reverie, "run file", "file must hold sections such as `data:` and `train:` (docs/settings.md).")


@pytest.mark.parametrize("place", ["loop", "loop/below"])
def test_a_folder_that_is_a_link_to_itself_is_a_mistake(reverie, place):
    Path("loop").symlink_to("loop")
    told = f"{place} cannot be read: Too many levels of symbolic links. Choose another --out."
    assert_mistake(reverie, f"run digits-5 --out {place}", told)


def test_a_class_without_images_and_an_unreadable_folder_are_mistakes_too(reverie, photos):
    folder = ["run", "digits-5", "--set", "data.source=folder", "--data", str(photos)]
    (photos / "durian").mkdir()
    assert_mistake(reverie, folder, "'durian'")
    (photos / "durian").rmdir()
    for file in (photos / "apple").iterdir():
        file.write_bytes(b"broken")
    code, _, err = reverie(*folder)
    assert (code, "'apple'" in err) == (2, True)


def test_a_folder_that_may_not_be_read_is_a_mistake(reverie, photos, monkeypatch):
    real = Path.is_dir

    def refuse(path):
        if path.parent == photos:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(Path, "is_dir", refuse)
    words = ["run", "digits-5", "--set", "data.source=folder", "--data", str(photos)]
    assert_mistake(reverie, words, "cannot be read: Permission denied. Change its permissions")


def test_a_run_folder_that_may_not_be_written_is_a_mistake(reverie, monkeypatch):
    real = Path.mkdir

    def refuse(path, *args, **how):
        if path.name == "out":
            raise OSError(30, "Read-only file system", str(path))
        real(path, *args, **how)

    monkeypatch.setattr(Path, "mkdir", refuse)
    code, _, err = reverie("run", "digits-5", "--out", "out")
    assert (code, err) == (2, "reverie: out cannot be written: Read-only file system. Choose another --out.\n")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this is about a machine without a GPU")
def test_a_gpu_that_is_not_there_is_a_mistake(reverie):
    assert_mistake(reverie, "run digits-5 --device cuda", "there is no GPU here that torch can use. Try cpu.")


def test_another_configuration_in_the_same_folder_is_refused_with_the_difference(reverie):
    reverie("run", "digits-5", "--method", "base", "--out", "here", *QUICK)
    code, _, err = reverie("run", "digits-5", "--method", "base", "--out", "here", *QUICK, "--set", "train.lr=0.01")
    assert code == 2
    assert "train.lr: 0.1 in the folder, 0.01 asked for" in err
    assert err.endswith("Choose another --out.\n")
