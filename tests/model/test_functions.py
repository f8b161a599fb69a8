"""Using a model as one call: the same for a model folder and for a learner that is there already."""

import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import reverie
from reverie.errors import UserError
from reverie.model.inference import find_images
from tests.support.images import opened


@pytest.fixture(params=["folder", "text", "learner"])
def model(request, photo_folder):
    """The photo model as people have it."""
    if request.param == "learner":
        return reverie.load(photo_folder, device="cpu")
    return str(photo_folder) if request.param == "text" else photo_folder


@pytest.fixture
def learner(photo_folder):
    return reverie.load(photo_folder, device="cpu")


def test_predictions_are_those_of_the_learner(model, learner, photos):
    found = reverie.predict(model, photos, top=2, device="cpu")
    assert found == learner.predict(photos, top=2)
    assert [one.names[0] for one in found] == ["apple"] * 12 + ["banana"] * 12 + ["cherry"] * 12
    picture = Image.open(photos / "cherry" / "1.png")
    assert reverie.predict(model, picture, device="cpu")[0].names == ("cherry",)
    assert str(found[0]).startswith(f"{photos / 'apple' / '0.jpg'}: apple ")


def test_predictions_are_rejected_by_the_models_own_threshold_or_by_another(model, photos):
    assert not any(one.rejected for one in reverie.predict(model, photos, device="cpu"))
    own = reverie.predict(model, photos, reject=True, device="cpu")
    assert [one.rejected for one in own] == [one.probabilities[0] < 0.6 for one in own]
    assert all(one.rejected for one in reverie.predict(model, photos, reject=1.1, device="cpu"))


def test_probabilities_are_an_array_with_a_row_for_each_image(model, photos):
    found = reverie.predict_proba(model, photos, device="cpu")
    assert found.shape == (36, 3)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-5)
    assert found.argmax(axis=1).tolist() == [0] * 12 + [1] * 12 + [2] * 12
    (photos / "apple" / "notes.txt").write_text("no image")
    with pytest.raises(UserError, match=r"notes\.txt is not an image that can be read"):
        reverie.predict_proba(model, photos, device="cpu")


def test_the_score_is_a_share_for_a_folder_and_for_images_and_labels(model, photos):
    (photos / "apple" / "1.png").rename(photos / "cherry" / "wrong.png")
    files = find_images([photos])
    share = pytest.approx(35 / 36)
    assert reverie.score(model, photos, device="cpu") == share
    pictures, names = [Image.open(file) for file in files], [file.parent.name for file in files]
    assert reverie.score(model, pictures, names, device="cpu") == share
    pairs = [
        (picture, ("apple", "banana", "cherry").index(name)) for picture, name in zip(pictures, names, strict=True)
    ]

    class Photos(torch.utils.data.Dataset):
        classes = ("apple", "banana", "cherry")

        def __len__(self):
            return len(pairs)

        def __getitem__(self, row):
            return pairs[row]

    assert reverie.score(model, Photos(), device="cpu") == share


def test_an_evaluation_is_that_of_the_learner_and_says_which_classes_are_new(model, learner, photos):
    (photos / "apple" / "1.png").rename(photos / "cherry" / "wrong.png")
    found = reverie.evaluate(model, photos, device="cpu")
    assert found.as_dict() == learner.evaluate(photos).as_dict()
    assert found.mistakes() == [("cherry", "apple", 1)] and found.new == {"cherry"}
    assert reverie.evaluate(model, photos, new=["apple"], device="cpu").new == {"apple"}
    pictures = [Image.open(file) for file in find_images([photos / "banana"])]
    labelled = reverie.evaluate(model, (pictures, [1] * 12), names=["apple", "banana"], device="cpu")
    assert labelled.by_class() == {"banana": (12, 1.0)}


def test_dreams_are_a_function_of_model_and_seed_and_are_written_where_asked(model, learner, tmp_path):
    dreams = reverie.dream(model, per_class=2, steps=2, seed=3, device="cpu")
    assert dreams.class_names == ("apple", "banana", "cherry") and dreams.per_class == 2
    assert torch.equal(dreams.pixels, learner.dream(2, steps=2, seed=3).pixels)
    again = reverie.dream(model, tmp_path / "dreams.png", per_class=2, steps=2, seed=3, device="cpu")
    assert torch.equal(again.pixels, dreams.pixels)
    assert np.array_equal(opened((tmp_path / "dreams.png").read_bytes()), opened(dreams.sheet()))


@pytest.mark.parametrize("per_class", [0, -1, 10**9, "8", 2.5])
def test_a_number_of_dreams_that_cannot_be_is_refused(model, per_class):
    with pytest.raises(UserError, match=r"^`per_class` must be a whole number from 1 to 1,000, not "):
        reverie.dream(model, per_class=per_class, steps=1, device="cpu")


@pytest.mark.parametrize("reject", [float("nan"), "x", "0.5", None, [0.5]])
def test_a_threshold_that_is_no_number_is_refused(model, photos, reject):
    with pytest.raises(UserError, match=r"^`reject` must be a number, not "):
        reverie.predict(model, photos, reject=reject, device="cpu")


def test_no_file_is_lost_to_a_picture_of_dreams(photo_folder, tmp_path):
    folder = shutil.copytree(photo_folder, tmp_path / "model")
    (tmp_path / "mine.png").write_bytes(b"dear to somebody")
    (tmp_path / "folder.png").mkdir()
    for out, says in (
        (tmp_path / "mine.png", "mine.png exists already. Choose another `out`, or say `overwrite`"),
        (tmp_path / "dreams.jpg", "The picture is a PNG, so .*dreams.jpg should end in .png"),
        (tmp_path / "folder.png", "is a folder. Name a file: `out`"),
        (folder / "dreams.png", "is inside the model folder"),
    ):
        with pytest.raises(UserError, match=says):
            reverie.dream(folder, out, steps=1, device="cpu")
    assert (tmp_path / "mine.png").read_bytes() == b"dear to somebody"
    reverie.dream(folder, tmp_path / "mine.png", per_class=1, steps=1, overwrite=True, device="cpu")
    assert opened((tmp_path / "mine.png").read_bytes()).size


def test_what_is_no_model_is_said_to_be_none(tmp_path, photos):
    for call in (reverie.predict, reverie.predict_proba, reverie.score, reverie.evaluate):
        with pytest.raises(UserError, match=r"There is no model folder .*nowhere"):
            call(tmp_path / "nowhere", photos)
    with pytest.raises(UserError, match=r"There is no model folder .*nowhere"):
        reverie.dream(tmp_path / "nowhere")


def test_a_score_warns_of_what_does_not_count(model, photos, caplog):
    (photos / "durian").mkdir()
    (photos / "apple" / "broken.png").write_bytes(b"no image")
    reverie.score(model, photos, device="cpu")
    assert "No class of the model, so left aside with the 0 files inside: 'durian'." in caplog.text
    assert "broken.png" in caplog.text


def test_a_model_is_a_folder_a_learner_or_what_was_loaded(learner, photos):
    known = [one.names for one in learner.predict(photos)]
    for same in (learner, learner.saved, learner.task_learner):
        assert [one.names for one in reverie.predict(same, photos, device="cpu")] == known
        assert [one.name for one in reverie.list_classes(same)] == list(learner.classes)
    with pytest.raises(UserError, match="`model` is a model folder, a Learner or what load_model gives, not 5"):
        reverie.predict(5, photos)
    with pytest.raises(UserError, match=r"`model` is a model folder here, not a Learner\. A Learner has rename"):
        reverie.change_classes(learner, remove=["apple"])


def test_a_folder_that_is_nearly_a_model_is_told_apart(tmp_path):
    (tmp_path / "flowers").mkdir()
    (tmp_path / "flowers" / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"There is no model folder .*flower\. Did you mean 'flowers'\?"):
        reverie.list_classes(tmp_path / "flower")
    (tmp_path / "run" / "model").mkdir(parents=True)
    (tmp_path / "run" / "model" / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"run is not a model folder; the run's model is in .*run/model\."):
        reverie.list_classes(tmp_path / "run")


def test_a_learner_and_a_model_are_printed_in_short(learner):
    named = "3 classes: 'apple', 'banana', 'cherry')"
    assert repr(learner) == f"Learner({learner.method!r}, {named}"
    assert repr(learner.saved).startswith("SavedModel(resnet") and repr(learner.saved).endswith(named)
    assert repr(reverie.Learner()) == "Learner('abd', knows nothing yet)"
