"""Models that plain PyTorch trained: adopted, saved, loaded, extended, with the same answers all along."""

import hashlib
import json
from pathlib import Path

import onnxruntime
import pytest
import torch
from torch import nn

import reverie
from reverie.config.schema import Config, DataConfig, DreamConfig, TrainConfig
from reverie.data import sources
from reverie.data.images import MemoryImages
from reverie.data.stream import Task
from reverie.errors import UserError
from reverie.learner.task_learner import TaskLearner
from reverie.model import folder as model_io
from reverie.model.adoption import adopt_file, read_names
from reverie.model.export import export

MEAN, STD = (0.3,) * 3, (0.37,) * 3
NAMES = ["zero", "one", "two"]
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def digits(part: str, *classes: int) -> MemoryImages:
    """In colour, 16 pixels a side, with labels from 0."""
    images = getattr(sources.read(DataConfig(source="digits", size=16), Path("data")), part)
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


@pytest.fixture(scope="module")
def trained() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {"resnet18": train(resnet18(), 3), "timm/test_resnet": train(timm_resnet(), 8)}


@pytest.fixture
def weights(trained, tmp_path):
    """Files as people have them: weights of a network that ran in DataParallel, and the names of the classes."""

    def write(name: str) -> Path:
        wrapped = {f"module.{key}": value for key, value in trained[name].state_dict().items()}
        torch.save({"epoch": 3, "state_dict": wrapped}, tmp_path / "weights.pth")
        (tmp_path / "names.txt").write_text("\n".join(NAMES) + "\n")
        return tmp_path / "weights.pth"

    return write


def right(learner: TaskLearner, images: MemoryImages, first: int = 0) -> float:
    return float((learner.predict(images).labels[:, 0] == images.labels + first).float().mean())


@pytest.mark.parametrize("name", ["resnet18", "timm/test_resnet"])
def test_a_model_from_a_file_learns_more_without_old_images_and_is_served_by_others(name, trained, weights, tmp_path):
    learner = adopt_file(name, weights(name), NAMES, size=16, mean=MEAN, std=STD)
    test = digits("test", 0, 1, 2)
    with torch.no_grad():
        theirs = trained[name](normalised(test))
    torch.testing.assert_close(torch.cat(list(learner.logits(test))), theirs, rtol=1e-4, atol=1e-4)
    learner.save(tmp_path / "model")
    again = reverie.load(tmp_path / "model").task_learner
    assert torch.equal(torch.cat(list(again.logits(test))), torch.cat(list(learner.logits(test))))
    assert again.classifier.class_names == tuple(NAMES)

    before = right(again, test)
    train = TrainConfig(epochs=4, milestones=(3,), lr=0.02, batch_size=32)
    config = Config("test", "abd", train=train, dream=DreamConfig(steps=40, width=32, noise=100))
    extended = TaskLearner(config, again.classifier)
    new = digits("train", 3, 4)
    extended.learn(Task(1, ["three", "four"], 3, MemoryImages(new.pixels, new.labels + 3)))
    assert before > 0.9
    assert right(extended, test) > 0.4  # fine-tuning has forgotten them all by now
    assert right(extended, digits("test", 3, 4), first=3) > 0.6

    extended.save(tmp_path / "extended")
    export(model_io.load(tmp_path / "extended"), "onnx", tmp_path / "extended.onnx")
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
    learner = reverie.adopt(Own(), NAMES, [0.5], [0.5], 8)
    learner.save(tmp_path / "model")
    (entry,) = json.loads((tmp_path / "model" / "ledger.json").read_text())
    assert (entry["action"], entry["source"], entry["images_seen"], entry["classes"]) == ("adopted", "Own", 0, NAMES)


def test_a_file_can_be_known_again_and_the_card_claims_no_teaching(tmp_path):
    from torchvision.models import mnasnet0_5

    torch.save(mnasnet0_5(num_classes=3).state_dict(), tmp_path / "w.pth")
    adopted = adopt_file("mnasnet0_5", tmp_path / "w.pth", NAMES, size=32)
    assert adopted.ledger[0]["fingerprint"] == hashlib.sha256((tmp_path / "w.pth").read_bytes()).hexdigest()
    adopted.save(tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text("utf-8")
    assert "adopted as somebody else trained it, and taught nothing since" in card
    assert "learned last" not in card
    again = model_io.load(tmp_path / "model").classifier.state_dict()
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
    learner = adopt_file("googlenet", tmp_path / "w.pth", NAMES, size=64)
    learner.save(tmp_path / "model")
    pixels = torch.rand(4, 3, 64, 64)
    mean, deviation = (torch.tensor(numbers).view(3, 1, 1) for numbers in IMAGENET)
    with torch.no_grad():
        expected = theirs((pixels - mean) / deviation)
        assert expected.std(0).min() > 1e-2
        for classifier in (learner.classifier, model_io.load(tmp_path / "model").classifier):
            answers = classifier((pixels - 0.5) / 0.5)
            torch.testing.assert_close(answers, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"classes": NAMES[:2]}, "are for 3 classes, but there are 2 class names"),
        ({"mean": (0.5,)}, "Mean and std belong together"),
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
def test_what_does_not_fit_is_refused(weights, settings, message):
    facts = {"name": "resnet18", "classes": NAMES, "file": weights("resnet18"), "size": 16}
    with pytest.raises(UserError, match=message):
        adopt_file(**{**facts, **settings})


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
            read_names(tmp_path / "names.txt")
    else:
        assert read_names(tmp_path / "names.txt") == names


def test_a_missing_file_of_names_is_an_error(tmp_path):
    with pytest.raises(UserError, match="cannot be read: No such file"):
        read_names(tmp_path / "names.txt")
