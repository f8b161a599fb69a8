"""Asking a model: predictions for images of any kind, in their order, and as a person sees them."""

import csv
import io
import json
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from reverie.config.schema import EngineConfig
from reverie.data.decode import decode
from reverie.data.images import MemoryImages
from reverie.data.preprocessing import Preprocessing
from reverie.errors import UserError
from reverie.learner.task_learner import TaskLearner
from reverie.model import inference
from reverie.model.folder import save_model
from reverie.model.inference import Prediction, predict_images, unreadable_lines
from reverie.nets import make_backbone
from reverie.nets.classifier import Classifier


@pytest.fixture
def learner(photo_model):
    return photo_model.task_learner()


def decoded(files: list[Path]) -> torch.Tensor:
    return torch.from_numpy(np.stack([decode(file, 16)[0] for file in files]))


def test_files_and_folders_are_answered_in_order_by_name(learner, photos):
    files = [photos / "cherry" / "3.png", *sorted((photos / "apple").iterdir()), photos / "banana" / "0.jpg"]
    answers = predict_images(learner, [files[0], photos / "apple", str(files[-1])], top=2)
    assert [one.source for one in answers] == [str(file) for file in files]
    assert [one.names[0] for one in answers] == ["cherry", *["apple"] * 12, "banana"]
    expected = learner.predict(decoded(files), top=2)
    torch.testing.assert_close(torch.tensor([one.probabilities for one in answers]), expected.probabilities)


def test_the_size_of_batches_changes_no_prediction_and_progress_counts_images(learner, photos, monkeypatch):
    whole = predict_images(learner, photos)
    monkeypatch.setattr(inference, "images_at_once", lambda size: 5)
    steps: list[tuple[int, int]] = []
    parts = predict_images(learner, photos, progress=lambda done, total: steps.append((done, total)))
    assert [one.names for one in parts] == [one.names for one in whole]
    assert steps == [(5, 36), (10, 36), (15, 36), (20, 36), (25, 36), (30, 36), (35, 36), (36, 36)]


def test_pixels_are_answered_too(learner, photos):
    pixels = decoded(sorted((photos / "banana").iterdir()))
    answers = predict_images(learner, pixels)
    assert [one.source for one in answers] == [str(number) for number in range(12)]
    assert {one.names for one in answers} == {("banana",)}
    assert predict_images(learner, MemoryImages(pixels, torch.zeros(12, dtype=torch.long))) == answers


def test_more_names_than_classes_are_all_of_them(learner, photos):
    (one,) = predict_images(learner, photos / "apple" / "1.png", top=9)
    assert sorted(one.names) == ["apple", "banana", "cherry"]
    assert sum(one.probabilities) == pytest.approx(1)


def test_a_prediction_is_rejected_below_the_threshold_only(learner, photos):
    for one in predict_images(learner, photos, reject=0.9):
        assert one.rejected == (one.probabilities[0] < 0.9)
    assert not any(one.rejected for one in predict_images(learner, photos))
    assert all(one.rejected for one in predict_images(learner, photos, reject=1.1))


def as_kind(kind: str, upright: Image.Image, file: Path) -> None:
    """The same picture in a file of another kind."""
    if kind == "turned by EXIF":
        exif = Image.Exif()
        exif[0x0112] = 6
        upright.transpose(Image.Transpose.ROTATE_90).save(file, exif=exif)
    elif kind == "transparent":
        solid = upright.convert("RGBA")
        solid.paste((9, 9, 9, 0), (0, 0, 4, 4))
        solid.save(file)
    elif kind == "16-bit":
        Image.fromarray(np.asarray(upright.convert("L")).astype(np.uint16) * 257).save(file)
    else:
        upright.convert(kind).save(file)


@pytest.mark.parametrize("kind", ["turned by EXIF", "transparent", "16-bit", "L", "P"])
def test_images_of_any_kind_are_seen_as_a_person_sees_them(learner, photos, tmp_path, kind):
    upright = Image.open(photos / "apple" / "1.png")
    as_kind(kind, upright, tmp_path / "kind.png")
    plain = upright.copy()
    if kind == "transparent":
        plain.paste("white", (0, 0, 4, 4))
    elif kind != "turned by EXIF":
        plain = plain.convert("L" if kind == "16-bit" else kind).convert("RGB")
    plain.save(tmp_path / "plain.png")
    ours, theirs = predict_images(learner, [tmp_path / "kind.png", tmp_path / "plain.png"], top=3)
    assert ours.names == theirs.names
    assert ours.probabilities == pytest.approx(theirs.probabilities, abs=1e-6)


def test_a_model_of_one_channel_sees_colours_as_grey(photo_model, photos, tmp_path):
    grey = Classifier(make_backbone("resnet8", 1), Preprocessing(16, (0.4,), (0.25,)))
    grey.grow(["a", "b"])
    learner = TaskLearner(photo_model.config, grey)
    square = Image.open(photos / "apple" / "1.png").crop((2, 2, 18, 18))
    square.save(tmp_path / "colour.png")
    square.convert("L").save(tmp_path / "grey.png")
    colour, same = predict_images(learner, [tmp_path / "colour.png", tmp_path / "grey.png"])
    assert colour.probabilities == same.probabilities
    pixels = torch.from_numpy(np.asarray(square.convert("L")).copy())[None, None]
    assert colour.probabilities[0] == pytest.approx(float(learner.predict(pixels).probabilities))


def test_a_file_that_is_no_image_has_no_answer_and_the_others_have_theirs(learner, photos):
    whole = (photos / "apple" / "0.jpg").read_bytes()
    (photos / "apple" / "0.jpg").write_bytes(whole[: len(whole) // 2])
    (photos / "apple" / "notes.txt").write_text("no image")
    answers = predict_images(learner, photos / "apple")
    assert {one.source: one.problem for one in answers if not one.names} == {
        str(photos / "apple" / "0.jpg"): "is cut off: its end is missing",
        str(photos / "apple" / "notes.txt"): "is not an image that can be read",
    }
    (photos / "apple" / "list.txt").write_text("no image")
    first, second = unreadable_lines(predict_images(learner, photos / "apple"))
    assert first == f"{photos / 'apple' / '0.jpg'} is cut off: its end is missing; passed over."
    assert second.startswith("2 files passed over, each of which is not an image that can be read: ")
    assert second.endswith("list.txt, " + str(photos / "apple" / "notes.txt") + ".")
    assert sum(one.names == ("apple",) for one in answers) == 11


def test_an_image_too_large_to_open_safely_is_named_with_what_to_do(learner, photos, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    assert {one.problem for one in predict_images(learner, photos)} == {"has more than 200 pixels; scale it down"}


def test_what_is_not_there_is_an_error(learner, tmp_path):
    with pytest.raises(UserError, match=r"no file or folder .*nowhere"):
        predict_images(learner, [tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no files"):
        predict_images(learner, tmp_path / "empty")


def test_no_name_at_all_cannot_be_asked_for(learner, photos):
    with pytest.raises(UserError, match="`top` must be a whole number from 1 to 1,000,000, not 0"):
        predict_images(learner, photos, top=0)


def test_a_prediction_as_plain_values_can_be_written_as_json():
    one = Prediction("a.jpg", ("x", "y"), (0.75, 0.25), True)
    assert json.loads(json.dumps(one.as_dict()))["classes"][1] == {"class": "y", "confidence": 0.25}


def test_a_prediction_that_is_printed_says_what_is_seen_or_why_nothing_is():
    assert str(Prediction("a.jpg", ("x", "y"), (0.75, 0.25))) == "a.jpg: x 75.0 %, y 25.0 %"
    assert str(Prediction("a.jpg", ("x",), (0.2,), rejected=True)) == "a.jpg: none of these; x 20.0 %"
    assert str(Prediction("a.jpg", problem="is not an image")) == "a.jpg is not an image"


# --- the command


def test_predict_prints_a_table(reverie, photo_folder, photos):
    code, out, err = reverie("predict", str(photo_folder), str(photos / "apple" / "1.png"), "--top", "2")
    assert (code, err) == (0, "")
    header, row, second = out.splitlines()
    assert header.split() == ["image", "class", "confidence"]
    assert row.split()[:2] == [str(photos / "apple" / "1.png"), "apple"]
    assert second.split()[0] in ("banana", "cherry")


def test_a_long_name_is_not_cut_off(reverie, photo_folder, photos, tmp_path):
    deep = tmp_path / ("d" * 150) / ("e" * 150)
    deep.mkdir(parents=True)
    (photos / "apple" / "1.png").rename(deep / "1.png")
    _, out, _ = reverie("predict", str(photo_folder), str(deep))
    assert out.splitlines()[1].split()[:2] == [str(deep / "1.png"), "apple"]


def test_predict_as_json_prints_nothing_else_and_names_what_it_passed_over(reverie, photo_folder, photos):
    (photos / "apple" / "0.jpg").write_bytes(b"no image")
    code, out, err = reverie("predict", str(photo_folder), str(photos / "apple"), "--json")
    answers = json.loads(out)
    assert code == 1
    assert "0.jpg is not an image that can be read" in err
    assert len(answers) == 12
    assert answers[0] == {
        "image": str(photos / "apple" / "0.jpg"),
        "classes": [],
        "rejected": False,
        "problem": "is not an image that can be read",
    }
    assert answers[1]["classes"][0]["class"] == "apple"


def test_predict_as_csv_has_a_line_for_each_image_and_rank(reverie, photo_folder, photos):
    awkward = photos / "apple" / 'a, "b".png'
    (photos / "apple" / "1.png").rename(awkward)
    code, out, _ = reverie("predict", str(photo_folder), str(awkward), "--csv", "--top", "3")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 0
    assert [row["image"] for row in rows] == [str(awkward)] * 3
    assert [row["rank"] for row in rows] == ["1", "2", "3"]
    assert rows[0]["class"] == "apple"
    assert sum(float(row["confidence"]) for row in rows) == pytest.approx(1, abs=1e-5)


def test_rejection_needs_a_threshold(reverie, photo_folder, photo_model, photos, tmp_path):
    image = str(photos / "apple" / "1.png")
    assert "none of these" not in reverie("predict", str(photo_folder), image, "--reject")[1]
    assert "none of these (apple?)" in reverie("predict", str(photo_folder), image, "--threshold", "1")[1]
    save_model(photo_model, tmp_path / "without")
    code, _, err = reverie("predict", str(tmp_path / "without"), image, "--reject")
    assert code == 2
    assert "no threshold of its own; say one, such as --threshold 0.7" in err


def test_a_model_trained_as_only_a_gpu_can_is_used_on_a_cpu(reverie, photo_model, photos, tmp_path):
    config = replace(photo_model.config, engine=EngineConfig(capture=True))
    save_model(replace(photo_model, config=config), tmp_path / "from-gpu")
    code, _, err = reverie("predict", "from-gpu", str(photos / "apple"), "--device", "cpu")
    assert (code, err) == (0, "")


def test_warnings_do_not_mix_with_the_predictions(reverie, photo_folder, photos, monkeypatch):
    def warning(folder: Path) -> list[Path]:
        logging.getLogger("reverie").warning("beware")
        return sorted(folder.iterdir())

    monkeypatch.setattr(inference, "files_below", warning)
    _, out, err = reverie("predict", str(photo_folder), str(photos / "apple"), "--json")
    assert json.loads(out)
    assert "beware" in err


# --- lists of files


def test_predict_reads_lists(reverie, photo_folder, photos, monkeypatch):
    table = photos.parent / "some.csv"
    table.write_text("path\nphotos/apple/1.png\nphotos/cherry/3.png\n")
    code, out, _ = reverie("predict", str(photo_folder), str(table), "--json")
    assert (code, [Path(one["image"]).parent.name for one in json.loads(out)]) == (0, ["apple", "cherry"])
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{photos / 'banana' / '1.png'}\n\n{photos / 'apple' / '1.png'}\n"))
    code, out, _ = reverie("predict", str(photo_folder), "-", "--json")
    assert (code, [Path(one["image"]).parent.name for one in json.loads(out)]) == (0, ["banana", "apple"])


def test_predict_says_what_is_missing_from_a_list(reverie, photo_folder, photos, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{photos / 'banana' / '1.png'}\nno.png\nneither.png\n"))
    code, _, err = reverie("predict", str(photo_folder), "-")
    assert (code, "2 of 3 files are missing: no.png, neither.png." in err) == (2, True)
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    code, _, err = reverie("predict", str(photo_folder), "-")
    assert (code, "No paths came in" in err) == (2, True)
