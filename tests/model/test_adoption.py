"""Models that plain PyTorch trained: adopted, saved, loaded, extended, with the same answers all along."""

import hashlib
import io
import json
import re
from pathlib import Path

import onnxruntime
import pytest
import torch
from rich.console import Console
from torch import nn

import reverie
from reverie.config.schema import Config, DataConfig, DreamConfig, TrainConfig
from reverie.data.digits import read_digits
from reverie.data.images import MemoryImages
from reverie.data.stream import Task
from reverie.errors import UserError
from reverie.learner.task_learner import TaskLearner
from reverie.model.adoption import adopted_learner, read_class_names
from reverie.model.export import export_model
from reverie.model.folder import load_model, save_model

MEAN, STD = (0.3,) * 3, (0.37,) * 3
NAMES = ["zero", "one", "two"]
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def digits(part: str, *classes: int) -> MemoryImages:
    """In colour, 16 pixels a side, with labels from 0."""
    images = getattr(read_digits(DataConfig(source="digits", size=16)), part)
    chosen = images.select(torch.isin(images.labels, torch.tensor(classes)).nonzero().flatten())
    labels = torch.tensor([classes.index(label) for label in chosen.labels.tolist()])
    return MemoryImages(chosen.pixels.expand(-1, 3, -1, -1).contiguous(), labels)


def normalised(images: MemoryImages) -> torch.Tensor:
    return (images.pixels.float() / 255 - 0.3) / 0.37


def train(module: nn.Module, epochs: int) -> nn.Module:
    """As anybody would, without reverie."""
    images, labels = normalised(digits("train", 0, 1, 2)), digits("train", 0, 1, 2).labels
    optimizer = torch.optim.Adam(module.parameters(), 1e-3)
    module.train()
    for _ in range(epochs):
        for index in torch.randperm(len(images)).split(32)[:-1]:
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(images[index]), labels[index]).backward()
            optimizer.step()
    return module.eval()


def resnet18() -> nn.Module:
    from torchvision.models import resnet18

    return resnet18(num_classes=3)


def timm_resnet() -> nn.Module:
    import timm

    return timm.create_model("test_resnet", num_classes=3)


MADE = {"resnet18": (resnet18, 3), "timm/test_resnet": (timm_resnet, 8)}  # and the epochs that each needs


def write_weights(module: nn.Module, folder: Path) -> Path:
    """Files as people have them: weights of a network that ran in DataParallel, and the names of the classes."""
    wrapped = {f"module.{key}": value for key, value in module.state_dict().items()}
    torch.save({"epoch": 3, "state_dict": wrapped}, folder / "weights.pth")
    (folder / "names.txt").write_text("\n".join(NAMES) + "\n")
    return folder / "weights.pth"


def right(learner: TaskLearner, images: MemoryImages, first: int = 0) -> float:
    return float((learner.predict(images).labels[:, 0] == images.labels + first).float().mean())


@pytest.mark.parametrize("name", MADE)
def test_a_model_from_a_file_learns_more_without_old_images_and_is_served_by_others(name, tmp_path):
    make, epochs = MADE[name]
    network = train(make(), epochs)
    learner = adopted_learner(name, write_weights(network, tmp_path), NAMES, size=16, mean=MEAN, std=STD)
    test = digits("test", 0, 1, 2)
    with torch.no_grad():
        theirs = network(normalised(test))
    torch.testing.assert_close(torch.cat(list(learner.logits(test))), theirs, rtol=1e-4, atol=1e-4)
    save_model(learner, tmp_path / "model")
    again = reverie.load(tmp_path / "model").task_learner
    assert torch.equal(torch.cat(list(again.logits(test))), torch.cat(list(learner.logits(test))))
    assert again.classifier.class_names == tuple(NAMES)

    before = right(again, test)
    schedule = TrainConfig(epochs=4, milestones=(3,), lr=0.02, batch_size=32)
    config = Config("test", "abd", train=schedule, dream=DreamConfig(steps=40, width=32, noise=100))
    extended = TaskLearner(config, again.classifier)
    new = digits("train", 3, 4)
    extended.learn(Task(1, ["three", "four"], 3, MemoryImages(new.pixels, new.labels + 3)))
    assert before > 0.9
    assert right(extended, test) > 0.4  # fine-tuning has forgotten them all by now
    assert right(extended, digits("test", 3, 4), first=3) > 0.6

    save_model(extended, tmp_path / "extended")
    export_model(tmp_path / "extended", "onnx", tmp_path / "extended.onnx")
    served = onnxruntime.InferenceSession(tmp_path / "extended.onnx")
    shown = digits("test", 0, 1, 2, 3, 4).pixels
    (answers,) = served.run(None, {"pixels": shown.permute(0, 2, 3, 1).numpy()})
    ours = torch.cat(list(extended.logits(shown))).softmax(dim=1)
    torch.testing.assert_close(torch.from_numpy(answers), ours, rtol=0, atol=1e-4)
    assert json.loads(served.get_modelmeta().custom_metadata_map["classes"]) == [*NAMES, "three", "four"]


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2))
        self.out = nn.Linear(6 * 36, 3, bias=False)

    def forward(self, x):
        return self.out(self.body(x))


def test_a_module_of_ones_own_is_loaded_again_with_its_builder_and_not_without(tmp_path):
    module = Own().eval()
    learner = reverie.adopt(module, classes=NAMES, mean=[0.5], std=[0.5], size=8)
    learner.save(tmp_path / "model")
    with pytest.raises(UserError, match=r"network of your own \(Own\), and loading runs no code"):
        reverie.load(tmp_path / "model")
    pixels = torch.randint(0, 256, (5, 1, 8, 8)).to(torch.uint8)
    again = reverie.load(tmp_path / "model", build=Own).task_learner
    logits = torch.cat(list(again.logits(pixels)))
    torch.testing.assert_close(logits, module((pixels / 255 - 0.5) / 0.5))
    assert again.classifier.preprocessing == learner.saved.classifier.preprocessing
    assert again.classifier.preprocessing.images is not None


def test_the_ledger_says_that_the_model_was_adopted_and_that_no_image_was_seen(tmp_path):
    learner = reverie.adopt(Own(), classes=NAMES, mean=[0.5], std=[0.5], size=8)
    learner.save(tmp_path / "model")
    (entry,) = json.loads((tmp_path / "model" / "ledger.json").read_text())
    assert (entry["action"], entry["source"], entry["images_seen"], entry["classes"]) == ("adopted", "Own", 0, NAMES)


def test_a_file_can_be_known_again_and_the_card_claims_no_teaching(tmp_path):
    from torchvision.models import mnasnet0_5

    torch.save(mnasnet0_5(num_classes=3).state_dict(), tmp_path / "w.pth")
    adopted = adopted_learner("mnasnet0_5", tmp_path / "w.pth", NAMES, size=32)
    assert adopted.ledger[0].fingerprint == hashlib.sha256((tmp_path / "w.pth").read_bytes()).hexdigest()
    save_model(adopted, tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text("utf-8")
    assert "adopted as somebody else trained it, and taught nothing since" in card
    assert "learned last" not in card
    again = load_model(tmp_path / "model").classifier.state_dict()
    assert all(torch.equal(value, again[name]) for name, value in adopted.classifier.state_dict().items())


@pytest.mark.parametrize("further_heads", [True, False])
def test_a_network_that_normalises_anew_and_may_have_further_heads_answers_as_it_did(further_heads, tmp_path):
    """As torchvision builds GoogLeNet for its own weights: it is shown what ImageNet's numbers normalise."""
    from torchvision.models import googlenet

    theirs = googlenet(num_classes=3, aux_logits=further_heads, transform_input=True, init_weights=False).eval()
    for layer in theirs.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight)  # larger than usual: no image looks like another to it
    torch.save(theirs.state_dict(), tmp_path / "w.pth")
    learner = adopted_learner("googlenet", tmp_path / "w.pth", NAMES, size=64)
    save_model(learner, tmp_path / "model")
    pixels = torch.rand(4, 3, 64, 64)
    mean, deviation = (torch.tensor(numbers).view(3, 1, 1) for numbers in IMAGENET)
    with torch.no_grad():
        expected = theirs((pixels - mean) / deviation)
        assert expected.std(0).min() > 1e-2
        for classifier in (learner.classifier, load_model(tmp_path / "model").classifier):
            answers = classifier((pixels - 0.5) / 0.5)
            torch.testing.assert_close(answers, expected, atol=1e-5, rtol=1e-4)


@pytest.fixture(scope="module")
def resnet18_file(tmp_path_factory) -> Path:
    """Weights of three classes, untrained."""
    return write_weights(resnet18(), tmp_path_factory.mktemp("adoption"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"classes": NAMES[:2]}, "are for 3 classes, but there are 2 class names"),
        ({"mean": (0.5,)}, "`mean` and `std` belong together"),
        (
            {"mean": (0.5,), "std": (0.5,)},
            r"conv1.weight is \[64, 3, 7, 7\] there, and \[64, 1, 7, 7\] in this network",
        ),
        ({"name": "resnet34"}, "are not of this network"),
        ({"name": "resnet8"}, "timm has no network 'resnet8', nor has torchvision"),
        ({"name": "reverie/resnet8"}, "adopted from torchvision and timm"),
        ({"name": "torchvision/resnet10t", "family": "timm"}, "are not of this network"),
    ],
)
def test_what_does_not_fit_is_refused(resnet18_file, settings, message):
    facts = {"name": "resnet18", "classes": NAMES, "file": resnet18_file, "size": 16}
    with pytest.raises(UserError, match=message):
        adopted_learner(**{**facts, **settings})


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ("zero\none \n two\n\n", NAMES),
        (json.dumps(NAMES), NAMES),
        (json.dumps({str(label): NAMES[label] for label in (2, 0, 1)}), NAMES),
        ("\ufeffä b\n🙂\n", ["ä b", "🙂"]),
        ("a\n\nb\n", None),
        ("[1, 2]", None),
        ("[broken", None),
        ('{"1": "one"}', None),
        ("", None),
    ],
)
def test_names_are_read_from_lines_or_json(tmp_path, content, names):
    (tmp_path / "names.txt").write_text(content, encoding="utf-8")
    if names is None:
        with pytest.raises(UserError, match=r"names\.txt|mapping of class names"):
            read_class_names(tmp_path / "names.txt")
    else:
        assert read_class_names(tmp_path / "names.txt") == names


def test_a_missing_file_of_names_is_an_error(tmp_path):
    with pytest.raises(UserError, match="cannot be read: No such file"):
        read_class_names(tmp_path / "names.txt")


# --- in one call


@pytest.fixture(scope="module")
def timm_file(tmp_path_factory) -> Path:
    """Weights of a network whose layers have seen something, untrained."""
    torch.manual_seed(0)
    network = timm_resnet().train()
    network(torch.randn(32, 3, 16, 16))
    return write_weights(network, tmp_path_factory.mktemp("adoption"))


@pytest.mark.usefixtures("no_command_yet")
def test_a_file_of_weights_becomes_a_model_folder_and_what_was_taken_in_is_said(timm_file, tmp_path, capsys):
    shown = io.StringIO()
    adopted = reverie.adopt_weights(
        "test_resnet",
        timm_file,
        str(tmp_path / "mine"),
        classes=timm_file.with_name("names.txt"),
        size=16,
        device="cpu",
        progress=Console(file=shown, force_terminal=True, width=200),
    )
    assert "mine dream epoch" in shown.getvalue() and capsys.readouterr() == ("", "")
    saved = load_model(tmp_path / "mine")
    assert saved.classifier.class_names == adopted.classifier.class_names == tuple(NAMES)
    taken, *checked = str(adopted).splitlines()
    assert re.match(
        r"timm/test_resnet: [\d,]+ parameters, 3 classes\. It takes images of 16×16 pixels, less 0\.5, ", taken
    )
    assert "give `size`, `mean` and `std`" in taken
    assert checked == adopted.preflight.lines()
    (entry,) = saved.ledger
    assert entry.preflight == adopted.preflight.as_dict()
    assert entry.fingerprint == hashlib.sha256(timm_file.read_bytes()).hexdigest()


def test_without_a_check_nothing_is_dreamed_and_nothing_is_said_of_it(timm_file, tmp_path):
    given = {"classes": NAMES, "family": "timm", "size": 16, "mean": MEAN, "std": STD, "check": False}
    adopted = reverie.adopt_weights("test_resnet", timm_file, tmp_path / "mine", **given, device="cpu")
    assert adopted.preflight is None and len(str(adopted).splitlines()) == 1
    assert "less 0.3, 0.3, 0.3, divided by 0.37, 0.37, 0.37;" in str(adopted)
    assert load_model(tmp_path / "mine").ledger[0].preflight is None


def test_a_folder_that_is_there_is_never_taken_for_an_adopted_model(timm_file, tmp_path):
    (tmp_path / "mine").mkdir()
    with pytest.raises(UserError, match="mine exists already"):
        reverie.adopt_weights("test_resnet", timm_file, tmp_path / "mine", classes=NAMES)
    with pytest.raises(UserError, match="are for 3 classes, but there are 2 class names"):
        reverie.adopt_weights("test_resnet", timm_file, tmp_path / "other", classes=NAMES[:2], size=16)
    assert [entry.name for entry in tmp_path.iterdir()] == ["mine"]
