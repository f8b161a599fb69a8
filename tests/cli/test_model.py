"""The verbs for model folders, as a person types them."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from reverie import load
from reverie.errors import Interrupted
from reverie.model.folder import save_model
from reverie.model.job import _Job
from reverie.nets.backbone import Architecture
from reverie.nets.external import build_network
from reverie.nets.statistics import batchnorm_layers
from tests.support.images import write_digits
from tests.support.mistakes import PYTHON, assert_mistake


@pytest.fixture
def files(tmp_path):
    """A trained network's weights, such as it would be after training, and the names of its classes."""
    network = build_network(Architecture.parse("timm/test_resnet"), 3, 2).train()
    for layer in batchnorm_layers(network):
        layer.momentum = 1.0
    network(torch.randn(8, 3, 16, 16))
    torch.save(network.state_dict(), tmp_path / "weights.pth")
    (tmp_path / "names.txt").write_text("apple\npear\n")
    return ["test_resnet", "weights.pth", "--classes", "names.txt", "--to", "mine", "--size", "16"]


@pytest.fixture
def model(tmp_path, photo_model, photos):
    """A model folder, images of its classes, and some things in the way."""
    save_model(photo_model, tmp_path / "model")
    (tmp_path / "folder").mkdir()
    for name in ("file.png", "file.onnx"):
        (tmp_path / name).write_text("something else")
    (tmp_path / "link").symlink_to("nowhere")


# --- adopt


def test_adopt_says_what_it_took_the_model_for_and_whether_it_can_be_dreamed_from(reverie, files, tmp_path):
    code, out, _ = reverie("adopt", *files)
    assert code == 0
    assert "timm/test_resnet" in out
    assert "2 classes" in out
    assert "16×16 pixels, less 0.5, 0.5, 0.5, divided by 0.5, 0.5, 0.5" in out
    assert "if that is not how it was trained, say --size, --mean and --std." in out
    assert not PYTHON.findall(out)
    assert "15 layers remember" in out
    assert out.splitlines()[-1] == "mine"
    assert load(tmp_path / "mine").task_learner.classifier.class_names == ("apple", "pear")
    (entry,) = json.loads((tmp_path / "mine" / "ledger.json").read_text())
    assert entry["preflight"]["layers"] == 15
    assert entry["source"] == "weights.pth"
    assert_mistake(reverie, ["adopt", *files], "mine exists already. Choose another folder, so that nothing is lost.")


def test_adopt_without_check_and_with_numbers_of_ones_own(reverie, files, tmp_path):
    code, out, _ = reverie("adopt", *files, "--mean", "0.3,0.3,0.3", "--std", "0.2,0.2,0.2", "--no-check")
    assert code == 0
    assert "remember" not in out
    assert load(tmp_path / "mine").task_learner.classifier.preprocessing.deviation == (0.2, 0.2, 0.2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--mean a,b", "--mean wants a number a channel"),
        ("--std a,b", "--std wants a number a channel"),
        ("--mean 0.5", "--mean and --std belong together: give both, or neither."),
        ("--mean 0.5,0.5,0.5 --std 0,0,0", "no std may be 0 or less"),
        ("--size 4", "Invalid value for '--size'"),
        ("--family torchvision", "torchvision has no network 'test_resnet'"),
        ("--family nobody", "Invalid value for '--family'"),
        (
            "--classes nowhere.txt",
            "nowhere.txt cannot be read: No such file or directory. Choose another file of class",
        ),
        ("--device abacus", "The device 'abacus' is unknown"),
    ],
)
def test_a_mistake_in_adopt_ends_in_a_message_and_leaves_nothing_behind(reverie, files, words, message):
    assert_mistake(reverie, ["adopt", *files, *words.split()], message)


def test_a_network_and_weights_that_are_not_there_are_mistakes(reverie, files):
    assert_mistake(reverie, ["adopt", "nonet", *files[1:]], "timm has no network 'nonet', nor has torchvision.")
    assert_mistake(reverie, ["adopt", files[0], "nothing.pth", *files[2:]], "nothing.pth cannot be read: No such file")


# --- learn


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


def test_a_model_is_extended_by_its_own_method_and_advice_is_told_in_flags(tmp_path, reverie):
    for folder, digits in (("first", (0, 1)), ("second", (2, 3))):
        write_digits(tmp_path / folder, digits, 10)
    quick = ["--set", "train.epochs=1", "--device", "cpu"]
    assert reverie("learn", "first", "--to", "one", "--method", "lwf", *quick)[0] == 0
    code, out, _ = reverie("learn", "second", "--from", "one", "--to", "two", *quick)
    assert (code, "method lwf: 1 epoch" in out) == (0, True)
    assert "neither dreams nor check images tell how the old classes fare; give some to --check" in out
    code, _, err = reverie("learn", "second", "--from", "one", "--to", "three", "--method", "ldc", *quick)
    assert (code, "Begin a model with it, or choose another --method to extend this one." in err) == (2, True)


def write_large_images(folder):
    rng = np.random.default_rng(0)
    for name in ("apple", "pear"):
        (folder / name).mkdir(parents=True)
        for number in range(4):
            Image.fromarray(rng.integers(0, 256, (128, 128, 3), dtype=np.uint8)).save(folder / name / f"{number}.png")


def test_what_learn_decides_is_told_in_flags(reverie, tmp_path, monkeypatch):
    def stop(*args):
        raise Interrupted

    monkeypatch.setattr(_Job, "_learn", stop)
    write_large_images(tmp_path / "large")
    code, out, err = reverie("learn", "large", "--to", "new", "--device", "cpu")
    assert (code, err.startswith("reverie: stopped; everything so far is saved.")) == (130, True)
    assert "without a GPU this may take hours; --budget 30min would make it fit\n" in out
    assert "are these photographs? A network with ImageNet weights knows far more" in out
    assert "takes seconds: --pretrained\n" in out


def test_where_the_model_was_whole_already_it_is_told_how_to_look_at_further_images(reverie, tmp_path, monkeypatch):
    write_digits(tmp_path / "photos", (0, 1), 10)
    words = ["learn", "photos", "--to", "new", "--method", "base", "--set", "train.epochs=1", "--device", "cpu"]
    real = Path.unlink

    def killed(file, **how):
        if file.name == "job.json":
            raise Interrupted
        real(file, **how)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", killed)
        assert reverie(*words)[0] == 130
    code, out, _ = reverie(*words, "--check", "photos")
    assert code == 0
    assert "new was whole when the command was killed" in out
    assert "photos was not asked for then, and not looked at; `reverie evaluate` does\n" in out


LEARN_MISTAKES = {
    "learn photos": "Missing option '--to'",
    "learn nowhere --to new": "There is no folder nowhere. Give a folder with one sub-folder of images a class.",
    "learn photos --to model": "model exists already, and stays as it is. Choose another --to.",
    "learn photos --to link": "link is a link that leads nowhere. Remove it, or choose another --to.",
    "learn photos --to /dev/null/x": "Not a directory. Make room, or choose a --to where you may write.",
    "learn photos --to new --from folder": "folder is not a model folder: it has no config.json.",
    "learn photos --to new --from model": "Say --on-known-class refine to learn from these images as further examples, "
    "--on-known-class skip to leave them out",
    "learn photos --to new --from model --on-known-class maybe": "Invalid value for '--on-known-class'",
    "learn photos --to new --budget soon": "--budget is a time such as 90s, 10min or 1h, not 'soon'.",
    "learn photos --to new --check nowhere": "There is no folder nowhere to check the model on.",
    "learn photos --to new --method abdd": "Did you mean 'abd'? `reverie methods` names them.",
    "learn photos --to new --backbone torchvision/resnet19": "torchvision has no network 'resnet19'",
    "learn photos --to new --weights file.png": "--weights are for the network of a first model, named by --backbone:",
    "learn photos --to new --seed x": "Invalid value for '--seed'",
    "learn photos --to new --set train.epoch=1": "Did you mean 'train.epochs'?",
    "learn photos --to new --device abacus": "The device 'abacus' is unknown",
    "learn photos --to new --checkpoint-every -1": "Invalid value for '--checkpoint-every'",
}


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize("words", LEARN_MISTAKES)
def test_a_mistake_in_learn_ends_in_a_message_and_leaves_nothing_behind(reverie, words):
    assert_mistake(reverie, words, LEARN_MISTAKES[words])


# --- using a model

MISTAKES = {
    "predict folder photos": "folder is not a model folder: it has no config.json.",
    "predict model nothing.jpg": "There is no file or folder nothing.jpg.",
    "predict model photos --top 0": "Invalid value for '--top'",
    "predict model photos --reject": "This model has no threshold of its own; say one, such as --threshold 0.7.",
    "predict model photos --threshold 2": "Invalid value for '--threshold'",
    "predict model photos --json --csv": "--json and --csv exclude each other.",
    "predict model photos --device abacus": "The device 'abacus' is unknown",
    "evaluate folder photos": "folder is not a model folder: it has no config.json.",
    "evaluate model nowhere": "There is no folder nowhere. Give one with a folder of images for each class.",
    "evaluate model photos --device abacus": "The device 'abacus' is unknown",
    "dream folder": "folder is not a model folder: it has no config.json.",
    "dream model --out file.png": "file.png exists already. Choose another --out, or say --overwrite.",
    "dream model --out folder": "folder is a folder. Name a file: --out.",
    "dream model --out model/dreams.png": "is inside the model folder model, which is left as it is. Choose",
    "dream model --out /dev/null/x.png": "/dev/null cannot be written: Not a directory. Choose another --out.",
    "dream model --per-class 0": "Invalid value for '--per-class'",
    "dream model --per-class 100000000": "Invalid value for '--per-class'",
    "dream model --out loop/x.png": "loop/x.png cannot be written: Too many levels of symbolic links. Choose another",
    "dream loop": "loop cannot be read: Too many levels of symbolic links. Choose another model.",
    "export model --to torch --out loop": "loop cannot be written: Too many levels of symbolic links. Choose another",
    "learn loop --to new": "loop cannot be read: Too many levels of symbolic links. Choose another folder.",
    "dream model --steps 0": "Invalid value for '--steps'",
    "dream model --seed x": "Invalid value for '--seed'",
    "dream model --device abacus": "The device 'abacus' is unknown",
    "classes folder": "folder is not a model folder: it has no config.json.",
    "classes model --rename apple": "--rename wants OLD=NEW, not 'apple'.",
    "classes model --rename pear=plum": "knows no class 'pear'. `reverie classes MODEL` names what it knows.",
    "classes model --remove pear": "knows no class 'pear'. `reverie classes MODEL` names what it knows.",
    "classes model --to new": "There is nothing to write into --to: no class gets another name, and none is removed.",
    "classes model --remove apple --to folder": "folder exists already, and stays as it is. Choose another --to.",
    "export folder --to onnx": "folder is not a model folder: it has no config.json.",
    "export model": "Missing option '--to'",
    "export model --to paper": "'paper' is not one of 'onnx', 'torch'.",
    "export model --to onnx --out new.pt2": "With --to onnx, new.pt2 should end in .onnx.",
    "export model --to onnx --out file.onnx": "file.onnx exists already. Choose another --out, or say --overwrite.",
    "export model --to torch --out model/new.pt2": "is inside the model folder model, which is left as it is.",
}


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_in_using_a_model_ends_in_a_message_and_leaves_nothing_behind(reverie, words):
    Path("loop").symlink_to("loop")
    assert_mistake(reverie, words, MISTAKES[words])


@pytest.mark.usefixtures("model")
def test_without_a_package_for_export_the_other_format_is_named_by_its_flag(reverie, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert_mistake(reverie, "export model --to onnx", "--to torch needs neither.")
