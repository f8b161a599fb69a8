"""Dreams for a person to look at: the surest of each class, the same each time, from a model that is left alone."""

import io

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from reverie.data.preprocessing import Normaliser, Preprocessing
from reverie.engine.observer import Observer
from reverie.errors import UserError
from reverie.learner.gallery import dream_of, surest
from reverie.learner.task_learner import TaskLearner
from reverie.model.folder import save_model
from reverie.nets.backbone import Backbone
from reverie.nets.classifier import Classifier
from tests.support.dreams import dreamer


@pytest.fixture
def learner(photo_model):
    return TaskLearner(photo_model.config, photo_model.classifier)


def test_the_surest_dreams_of_each_class_are_those_of_the_whole_gallery():
    made = dreamer(classes=3)
    dreams = surest(made, per_class=4)
    images, labels, confidence = (torch.cat(part) for part in zip(*made.gallery(500), strict=True))
    shape = made.teacher.preprocessing
    pixels = Normaliser(shape.mean, shape.deviation).to_pixels(images)
    for label in range(3):
        ranked = sorted((labels == label).nonzero().flatten().tolist(), key=lambda i: -float(confidence[i]))[:4]
        assert torch.equal(dreams.of(label)[0], pixels[ranked])
        assert torch.equal(dreams.of(label)[1], confidence[ranked])


def test_dreams_are_a_function_of_model_and_seed_and_the_model_is_left_alone(learner):
    before = {name: value.clone() for name, value in learner.classifier.state_dict().items()}
    first, again, other = (dream_of(learner, 3, steps=4, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.pixels, again.pixels)
    assert torch.equal(first.confidence, again.confidence)
    assert not torch.equal(first.pixels[:1], other.pixels[:1])
    assert all(torch.equal(value, before[name]) for name, value in learner.classifier.state_dict().items())
    assert not learner.classifier.training
    assert torch.bincount(first.labels).max() <= 3
    assert first.class_names == ("apple", "banana", "cherry")


def test_more_steps_make_the_model_surer(learner):
    few, many = (dream_of(learner, 8, steps=steps) for steps in (1, 40))
    assert many.confidence.mean() > few.confidence.mean()


def test_the_observer_follows_every_step(learner):
    class Steps(Observer):
        done = 0

        def step_ends(self, done, snapshot):
            self.done = done

    following = Steps()
    dream_of(learner, 2, steps=7, observer=following)
    assert following.done == 7


def test_the_sheet_has_a_row_for_each_class_and_says_where_nothing_was_dreamed():
    made = dreamer(classes=2)
    with torch.no_grad():
        made.teacher.head.weight.zero_()
        made.teacher.head.bias.copy_(torch.tensor([5.0, 0.0]))
    dreams = surest(made, per_class=3)
    assert dreams.missing == ("1",)
    image = Image.open(io.BytesIO(dreams.sheet()))
    assert image.format == "PNG"
    first, second = np.asarray(image.convert("L"))[8:-8].reshape(2, -1, image.width)[:, :48, 30:]
    assert first.std() > 30
    assert 0 < (second < 200).mean() < 0.1  # words, no pictures


def test_a_network_that_remembers_no_statistics_cannot_be_dreamed_from(photo_model):
    class Plain(Backbone):
        feature_dim = 4

        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, images):
            return self.conv(images).mean(dim=(2, 3))

    classifier = Classifier(Plain(), Preprocessing(16, (0.4,) * 3, (0.25,) * 3))
    classifier.grow(["a", "b"])
    with pytest.raises(UserError, match="BatchNorm"):
        dream_of(TaskLearner(photo_model.config, classifier), steps=1)


def test_the_command_writes_the_sheet(reverie, photo_model, tmp_path):
    save_model(photo_model, tmp_path / "model")
    code, out, _ = reverie("dream", "model", "--out", "there/d.png", "--per-class", "2", "--steps", "3")
    assert code == 0
    assert out.splitlines()[-1] == "there/d.png"
    assert "of 3 old classes" in out
    with Image.open(tmp_path / "there" / "d.png") as image:
        assert image.format == "PNG"
    code, _, err = reverie("dream", "model", "--out", "there", "--steps", "3")
    assert code == 2
    assert "is a folder" in err


def test_no_file_is_lost_to_the_sheet_and_its_name_is_true(reverie, photo_model, tmp_path):
    save_model(photo_model, tmp_path / "model")
    (tmp_path / "holiday.png").write_bytes(b"dear to somebody")
    (tmp_path / "link.png").symlink_to("model/config.json")
    before = {file.name: file.read_bytes() for file in (tmp_path / "model").iterdir()}
    for out, message in (
        ("holiday.png", "holiday.png exists already. Choose another --out, or say --overwrite."),
        ("dreams.jpg", "The picture is a PNG, so dreams.jpg should end in .png."),
        ("model/new.png", "model/new.png is inside the model folder model"),
        ("link.png", "link.png is inside the model folder model"),
    ):
        code, _, err = reverie("dream", "model", "--out", out, "--steps", "3")
        assert (code, message in err) == (2, True)
    assert (tmp_path / "holiday.png").read_bytes() == b"dear to somebody"
    assert reverie("dream", "no-model", "--out", "new/dreams.png")[0] == 2
    assert not (tmp_path / "new").exists()
    code, _, err = reverie("dream", "model", "--out", "link.png", "--steps", "3", "--overwrite")
    assert (code, "inside the model folder" in err) == (2, True)
    assert {file.name: file.read_bytes() for file in (tmp_path / "model").iterdir()} == before
    code, *_ = reverie("dream", "model", "--out", "holiday.png", "--steps", "3", "--overwrite")
    assert code == 0
    with Image.open(tmp_path / "holiday.png") as image:
        assert image.format == "PNG"


def test_at_least_one_dream_and_one_step_are_wanted(learner):
    for wrong in ({"per_class": 0}, {"steps": 0}):
        with pytest.raises(UserError, match=f"`{next(iter(wrong))}` must be a whole number from 1 to [0-9,]+, not 0"):
            dream_of(learner, **wrong)
