"""One file that is served without reverie: the same probabilities, any number of images, everything needed inside."""

import copy
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
import torchvision
from PIL import Image
from torch import nn

from reverie.data.preprocessing import Preprocessing
from reverie.errors import UserError
from reverie.model import export as exporting
from reverie.model.export import Exported, Served, export_model, facts
from reverie.model.folder import save_model
from reverie.model.inference import predict_images
from reverie.model.saved import SavedModel
from reverie.nets import make_backbone
from reverie.nets.backbone import Backbone
from reverie.nets.classifier import Classifier
from reverie.nets.fixed_features import COUNT, make_filters
from reverie.nets.heads import OWN_HEADS, AnsweringHead, FixedLinearAnswer
from reverie.nets.statistics import set_batchnorm_momentum
from tests.support.models import pixel_learner
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "serving.md"
AT_32 = Preprocessing(32, (0.4, 0.5, 0.6), (0.2, 0.25, 0.3))


class Torchvision(Backbone):
    """A network of torchvision without its last layer."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.body = getattr(torchvision.models, name)(weights=None)
        holder, key = (self.body, "fc") if hasattr(self.body, "fc") else (self.body.classifier, "3")
        self.feature_dim = getattr(holder, key).in_features
        setattr(holder, key, nn.Identity())

    def forward(self, images):
        return self.body(images)


def used(backbone: Backbone, shape: Preprocessing) -> Classifier:
    """A classifier whose layers have seen something, so that its answers differ; with corrections of its logits."""
    classifier = Classifier(backbone, shape)
    classifier.grow(["tulip", "rose, red", "лилия"])
    set_batchnorm_momentum(classifier, 1.0)
    with torch.no_grad():
        classifier.train()(torch.randn(16, shape.channels, shape.size, shape.size))
        classifier.correct(1, 0.5, 2.0)
    return classifier.eval()


def photos_as_pixels(photos: Path, size: int) -> torch.Tensor:
    files = sorted(photos.rglob("*.*"))
    return torch.from_numpy(np.stack([np.asarray(Image.open(file).resize((size, size))) for file in files]))


def by_hand(classifier: Classifier, pixels: torch.Tensor) -> np.ndarray:
    """What PyTorch makes of the pixels, step by step."""
    shape = classifier.preprocessing
    mean, deviation = (torch.tensor(values).view(-1, 1, 1) for values in (shape.mean, shape.deviation))
    with torch.no_grad():
        features = classifier.backbone((pixels.permute(0, 3, 1, 2) / 255 - mean) / deviation)
        logits = features @ classifier.head.weight.T + classifier.head.bias
        logits[:, 1:] = 0.5 * logits[:, 1:] + 2.0  # as `used` corrects them
        return logits.softmax(dim=1).numpy()


def says_nothing_of_this_machine(file: Path) -> bool:
    content = file.read_bytes()
    return str(Path(exporting.__file__).parents[1]).encode() not in content and b"site-packages" not in content


@pytest.mark.parametrize("name", ["resnet18", pytest.param("mobilenet_v3_small", marks=pytest.mark.long)])
def test_onnxruntime_gives_the_same_probabilities_of_real_images(name, photo_model, photos, tmp_path):
    model = SavedModel(used(Torchvision(name), AT_32), photo_model.config, [], rejection=0.625)
    made = export_model(model, "onnx", tmp_path / "model.onnx")
    assert made.difference < 1e-4
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    pixels = photos_as_pixels(photos, 32)
    expected = by_hand(model.classifier, pixels)
    assert expected.std(axis=0).max() > 0.01  # or there would be nothing to compare
    for count in (1, 2, 36):
        (answers,) = session.run(["probabilities"], {"pixels": pixels[:count].numpy()})
        np.testing.assert_allclose(answers, expected[:count], atol=1e-4)
    assert session.get_modelmeta().custom_metadata_map == facts(model)
    assert says_nothing_of_this_machine(tmp_path / "model.onnx")


def test_torch_gives_the_same_probabilities_of_real_images(photo_model, photos, tmp_path):
    model = SavedModel(used(Torchvision("resnet18"), AT_32), photo_model.config, [])
    assert export_model(model, "torch", tmp_path / "model.pt2").difference < 1e-5
    extra = {"reverie.json": ""}
    program = torch.export.load(tmp_path / "model.pt2", extra_files=extra).module()
    pixels = photos_as_pixels(photos, 32)
    for count in (1, 2, 36):
        answers = program(pixels[:count]).detach().numpy()
        np.testing.assert_allclose(answers, by_hand(model.classifier, pixels)[:count], atol=1e-4)
    assert json.loads(extra["reverie.json"]) == facts(model)
    assert says_nothing_of_this_machine(tmp_path / "model.pt2")


@pytest.mark.parametrize("size", [8, 40])
def test_a_head_that_looks_at_the_image_itself_is_exported_with_it(size, photo_model, photos, tmp_path):
    """Of 40 pixels its fixed features take each other one: averages of a pixel and a quarter."""
    shape = Preprocessing(size, AT_32.mean, AT_32.deviation)
    classifier = used(Torchvision("resnet18"), shape)
    width, generator = classifier.backbone.feature_dim, torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    classifier.answer_by(
        FixedLinearAnswer(
            weight=draw(3, width),
            bias=draw(3),
            evidence=draw(3, COUNT),
            offset=draw(3),
            filters=make_filters(3),
            foretold=0.01 * draw(width, COUNT),
            middle=draw(width + COUNT),
        )
    )
    model = SavedModel(classifier, photo_model.config, [])
    pixels = photos_as_pixels(photos, size)[:5]
    mean, deviation = (torch.tensor(values).view(-1, 1, 1) for values in (shape.mean, shape.deviation))
    with torch.no_grad():
        expected = classifier.answer((pixels.permute(0, 3, 1, 2) / 255 - mean) / deviation).softmax(dim=1).numpy()
    assert export_model(model, "onnx", tmp_path / "model.onnx").difference < 1e-3
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (answers,) = session.run(["probabilities"], {"pixels": pixels.numpy()})
    np.testing.assert_allclose(answers, expected, atol=1e-3)
    assert export_model(model, "torch", tmp_path / "model.pt2").difference < 1e-5


def test_the_facts_in_the_file_are_all_that_serving_it_takes(photo_model):
    stated = facts(SavedModel(used(make_backbone("resnet8", 3), AT_32), photo_model.config, [], rejection=0.625))
    assert json.loads(stated["classes"]) == ["tulip", "rose, red", "лилия"]
    assert (stated["size"], stated["mode"], stated["rejection"]) == ("32", "RGB", "0.625")
    assert stated["input"] == "uint8 [images, 32, 32, 3], pixels from 0 to 255"
    assert "rejection" not in facts(photo_model)


@pytest.mark.parametrize("to", ["onnx", "torch"])
def test_a_class_whose_name_is_no_text_is_served_all_the_same(photo_model, tmp_path, to):
    """As Python gives the names of folders whose bytes are not UTF-8."""
    classifier = pixel_learner(3).classifier
    classifier.class_names = ("tulip", "in\udcffvalid", "лилия")
    model = SavedModel(classifier, photo_model.config, [])
    export_model(model, to, tmp_path / "file")
    assert json.loads(facts(model)["classes"]) == list(classifier.class_names)


# --- what can go wrong


def test_a_format_that_is_unknown_is_refused(photo_model, tmp_path):
    with pytest.raises(UserError, match="onnx or torch, not 'tflite'"):
        export_model(photo_model, "tflite", tmp_path / "model.tflite")


def test_an_exporter_that_fails_is_reported_with_the_versions(photo_model, tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("Cannot translate %mean\nwith a long tail")

    monkeypatch.setattr(torch.onnx, "export", fail)
    with pytest.raises(UserError, match=r'torch 2.*onnxscript .*: Cannot translate %mean Newer .* `to="torch"`'):
        export_model(photo_model, "onnx", tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


def test_a_file_that_answers_otherwise_is_not_written(photo_model, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "_difference", lambda *_: 0.25)
    with pytest.raises(UserError, match=r"off by 0\.25"):
        export_model(photo_model, "torch", tmp_path / "model.pt2")
    monkeypatch.setattr(exporting, "_difference", lambda *_: float("nan"))
    with pytest.raises(UserError, match="was not written"):
        export_model(photo_model, "torch", tmp_path / "model.pt2")
    assert list(tmp_path.iterdir()) == []


def without(monkeypatch, *packages: str) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in packages else there(name))


def test_without_the_packages_for_onnx_the_message_says_what_to_install(photo_model, tmp_path, monkeypatch):
    without(monkeypatch, "onnxscript")
    with pytest.raises(UserError, match=r"needs onnxscript: pip install 'reverie\[export\]'"):
        export_model(photo_model, "onnx", tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_without_onnxruntime_the_file_is_written_and_said_to_be_unchecked(reverie, photo_model, tmp_path, monkeypatch):
    without(monkeypatch, "onnxruntime")
    save_model(photo_model, tmp_path / "flowers")
    code, out, _ = reverie("export", "flowers", "--to", "onnx")
    assert code == 0
    assert "not compared with PyTorch" in out
    assert (tmp_path / "flowers.onnx").is_file()


def test_a_network_that_cannot_be_traced_is_refused_with_the_reason(photo_model, tmp_path):
    class Wayward(Backbone):
        feature_dim = 3

        def forward(self, images):
            return images.mean(dim=(2, 3)) if float(images.sum()) > 0 else images.amax(dim=(2, 3))

    classifier = Classifier(Wayward(), AT_32)
    classifier.grow(["a", "b"])
    with pytest.raises(
        UserError, match=r"torch\.export cannot follow this network: .* if float\(images\.sum\(\)\) > 0"
    ):
        export_model(SavedModel(classifier, photo_model.config, []), "torch", tmp_path / "model.pt2")
    assert list(tmp_path.iterdir()) == []


def test_what_torch_found_is_passed_on(photo_model, tmp_path, monkeypatch):
    class Distances(AnsweringHead):
        name, by_class = "distances", ("places",)

        def scores(self, features):
            return -torch.cdist(features, self.places)

    monkeypatch.setitem(OWN_HEADS, "distances", Distances)
    saved = SavedModel(copy.deepcopy(photo_model.classifier), photo_model.config, [])
    rows, size = saved.classifier.seen, saved.classifier.backbone.feature_dim
    saved.classifier.answer_by(Distances(places=torch.randn(rows, size)))
    with pytest.raises(UserError, match=r"Constraints violated \(images\)! Not all values of images = .* <= 25"):
        export_model(saved, "torch", tmp_path / "model.pt2")


def test_the_model_itself_is_left_as_it_is(photo_model):
    served = Served(photo_model.classifier)
    assert all(parameter.requires_grad for parameter in photo_model.classifier.parameters())
    assert not any(parameter.requires_grad for parameter in served.parameters())


# --- as a person does it


def test_a_folder_is_exported_to_a_file_that_bears_its_name_and_what_was_done_is_said(
    photo_folder, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(photo_folder, tmp_path / "flowers")
    made = export_model("flowers", "torch")
    assert made.file == Path("flowers.pt2") and (tmp_path / "flowers.pt2").is_file()
    takes = re.escape("takes uint8 [images, 16, 16, 3], pixels from 0 to 255")
    assert re.fullmatch(rf"flowers\.pt2: {takes}; probabilities differ from PyTorch's by \d[\de.-]* at most", str(made))
    before = made.file.read_bytes()
    with pytest.raises(UserError, match=r"flowers\.pt2 exists already\. Choose another `out`, or say `overwrite`"):
        export_model(tmp_path / "flowers", "torch")
    with pytest.raises(UserError, match=r'With `to="torch"`, flowers\.onnx should end in \.pt2'):
        export_model(tmp_path / "flowers", "torch", "flowers.onnx")
    with pytest.raises(UserError, match="is inside the model folder"):
        export_model(tmp_path / "flowers", "torch", tmp_path / "flowers" / "new.pt2")
    assert made.file.read_bytes() == before
    with pytest.raises(UserError, match=r"There is no model folder .*nowhere"):
        export_model("nowhere", "torch")


def test_what_could_not_be_compared_is_not_said_to_agree():
    assert str(Exported(Path("a.onnx"), "pixels", None)) == (
        "a.onnx: takes pixels; not compared with PyTorch, since onnxruntime is not installed"
    )
    assert str(Exported(Path("a.onnx"), "pixels", 0.00001234)).endswith("differ from PyTorch's by 1e-05 at most")


def test_no_file_is_lost_to_an_export(reverie, photo_model, tmp_path):
    save_model(photo_model, tmp_path / "flowers")
    before = {file.name: file.read_bytes() for file in (tmp_path / "flowers").iterdir()}
    words = ["export", "flowers", "--to", "torch", "--out"]
    for target in ("flowers/model.safetensors", "flowers/new.pt2"):
        for more in ((), ("--overwrite",)):
            code, _, err = reverie(*words, target, *more)
            assert (code, f"{target} is inside the model folder flowers" in err) == (2, True)
    assert {file.name: file.read_bytes() for file in (tmp_path / "flowers").iterdir()} == before
    code, _, err = reverie(*words, "flowers.onnx")  # a name that would not be true
    assert (code, "With --to torch, flowers.onnx should end in .pt2." in err) == (2, True)
    (tmp_path / "thesis.pt2").write_bytes(b"years of work")
    code, _, err = reverie(*words, "thesis.pt2")
    assert (code, "thesis.pt2 exists already" in err) == (2, True)
    assert (tmp_path / "thesis.pt2").read_bytes() == b"years of work"
    code, *_ = reverie(*words, "thesis.pt2", "--overwrite")
    assert code == 0
    torch.export.load(tmp_path / "thesis.pt2")


def awkward(photos: Path) -> list[Path]:
    """Photographs as they come: of all sizes and kinds."""
    picture = Image.open(photos / "apple" / "1.png")
    exif = Image.Exif()
    exif[0x0112] = 8
    picture.resize((90, 31)).save(photos / "turned.jpg", exif=exif)
    solid = picture.resize((13, 50)).convert("RGBA")
    solid.putalpha(picture.resize((13, 50)).convert("L"))
    solid.save(photos / "transparent.png")
    picture.convert("L").save(photos / "grey.png")
    picture.convert("P").save(photos / "palette.gif")
    picture.convert("CMYK").save(photos / "print.jpg")
    picture.resize((16, 16)).save(photos / "exact.png")
    return sorted(photos.rglob("*.*"))


@pytest.mark.parametrize("channels", [3, 1])
def test_the_script_on_the_page_gives_the_predictions_of_reverie(reverie, photo_model, photos, tmp_path, channels):
    model = replace(photo_model, ledger=[])
    if channels == 1:
        shape = Preprocessing(16, (0.4,), (0.25,))
        model = replace(model, classifier=used(make_backbone("resnet8", 1), shape))
    save_model(model, tmp_path / "flowers")
    code, out, _ = reverie("export", "flowers", "--to", "onnx", "--out", "served/flowers.onnx")
    assert code == 0
    assert re.search(r"probabilities differ from PyTorch's by \d[\de.-]* at most", out)
    found = re.search(r"<!-- script -->\n```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert found is not None
    assert len(found[1].split("\n")) <= 14  # twelve, a blank one, and the end of the last
    (tmp_path / "serve.py").write_text(found[1])
    files = awkward(photos)
    script = subprocess.run(
        [sys.executable, "-I", "serve.py", "served/flowers.onnx", *map(str, files)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={"PYTHONIOENCODING": "utf-8"},
        check=True,
    )
    found = predict_images(model.task_learner(), files)
    expected = [f"{one.source} {one.names[0]} {one.probabilities[0]:.3f}" for one in found]
    assert script.stdout.splitlines() == expected
