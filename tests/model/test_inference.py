"""Asking a model: answers to images of any kind, figures that agree with a count by hand, nothing silently merged."""

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
from reverie.errors import UserError
from reverie.learner.task_learner import TaskLearner
from reverie.model import folder as model_io
from reverie.model import inference as answer
from reverie.model.inference import Answer, evaluate, predict
from reverie.nets import make_backbone
from reverie.nets.classifier import Classifier, Preprocessing


@pytest.fixture
def learner(photo_model):
    made = TaskLearner(photo_model.config, photo_model.classifier)
    made.ledger = photo_model.ledger
    return made


@pytest.fixture
def model(photo_model, tmp_path) -> Path:
    """The model as a folder."""
    model_io.save(tmp_path / "model", replace(photo_model, rejection=0.6))
    return tmp_path / "model"


def decoded(files: list[Path]) -> torch.Tensor:
    return torch.from_numpy(np.stack([decode(file, 16)[0] for file in files]))


# --- predict


def test_files_and_folders_are_answered_in_order_by_name(learner, photos):
    files = [photos / "cherry" / "3.png", *sorted((photos / "apple").iterdir()), photos / "banana" / "0.jpg"]
    answers = predict(learner, [files[0], photos / "apple", str(files[-1])], top=2)
    assert [one.source for one in answers] == [str(file) for file in files]
    assert [one.names[0] for one in answers] == ["cherry", *["apple"] * 12, "banana"]
    expected = learner.predict(decoded(files), top=2)
    torch.testing.assert_close(torch.tensor([one.probabilities for one in answers]), expected.probabilities)


def test_the_size_of_batches_changes_no_answer_and_progress_counts_images(learner, photos, monkeypatch):
    whole = predict(learner, photos)
    monkeypatch.setattr(answer, "images_at_once", lambda size: 5)
    steps: list[tuple[int, int]] = []
    parts = predict(learner, photos, progress=lambda done, total: steps.append((done, total)))
    assert [one.names for one in parts] == [one.names for one in whole]
    assert steps == [(5, 36), (10, 36), (15, 36), (20, 36), (25, 36), (30, 36), (35, 36), (36, 36)]


def test_pixels_are_answered_too(learner, photos):
    pixels = decoded(sorted((photos / "banana").iterdir()))
    answers = predict(learner, pixels)
    assert [one.source for one in answers] == [str(number) for number in range(12)]
    assert {one.names for one in answers} == {("banana",)}
    assert predict(learner, MemoryImages(pixels, torch.zeros(12, dtype=torch.long))) == answers


def test_more_names_than_classes_are_all_of_them(learner, photos):
    (one,) = predict(learner, photos / "apple" / "1.png", top=9)
    assert sorted(one.names) == ["apple", "banana", "cherry"]
    assert sum(one.probabilities) == pytest.approx(1)


def test_an_answer_is_rejected_below_the_threshold_only(learner, photos):
    for one in predict(learner, photos, reject=0.9):
        assert one.rejected == (one.probabilities[0] < 0.9)
    assert not any(one.rejected for one in predict(learner, photos))
    assert all(one.rejected for one in predict(learner, photos, reject=1.1))


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
    ours, theirs = predict(learner, [tmp_path / "kind.png", tmp_path / "plain.png"], top=3)
    assert ours.names == theirs.names
    assert ours.probabilities == pytest.approx(theirs.probabilities, abs=1e-6)


def test_a_model_of_one_channel_sees_colours_as_grey(photo_model, photos, tmp_path):
    grey = Classifier(make_backbone("resnet8", 1), Preprocessing(16, (0.4,), (0.25,)))
    grey.grow(["a", "b"])
    learner = TaskLearner(photo_model.config, grey)
    square = Image.open(photos / "apple" / "1.png").crop((2, 2, 18, 18))
    square.save(tmp_path / "colour.png")
    square.convert("L").save(tmp_path / "grey.png")
    colour, same = predict(learner, [tmp_path / "colour.png", tmp_path / "grey.png"])
    assert colour.probabilities == same.probabilities
    pixels = torch.from_numpy(np.asarray(square.convert("L")).copy())[None, None]
    assert colour.probabilities[0] == pytest.approx(float(learner.predict(pixels).probabilities))


def test_a_file_that_is_no_image_has_no_answer_and_the_others_have_theirs(learner, photos):
    whole = (photos / "apple" / "0.jpg").read_bytes()
    (photos / "apple" / "0.jpg").write_bytes(whole[: len(whole) // 2])
    (photos / "apple" / "notes.txt").write_text("no image")
    answers = predict(learner, photos / "apple")
    assert {one.source: one.problem for one in answers if not one.names} == {
        str(photos / "apple" / name): "is not an image that can be read" for name in ("0.jpg", "notes.txt")
    }
    assert sum(one.names == ("apple",) for one in answers) == 11


def test_an_image_too_large_to_open_safely_is_named_with_what_to_do(learner, photos, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    assert {one.problem for one in predict(learner, photos)} == {"has more than 200 pixels; scale it down"}


def test_what_is_not_there_is_an_error(learner, tmp_path):
    with pytest.raises(UserError, match=r"no file or folder .*nowhere"):
        predict(learner, [tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no files"):
        predict(learner, tmp_path / "empty")


# --- evaluate


def test_figures_agree_with_a_count_by_hand(learner, photos):
    """Some images lie in the wrong folder, so that there are mistakes to count."""
    for number in (1, 3, 5):
        (photos / "apple" / f"{number}.png").rename(photos / "cherry" / f"from-apple-{number}.png")
    (photos / "banana" / "1.png").rename(photos / "apple" / "from-banana.png")
    made = evaluate(learner, photos)
    counts: dict[tuple[str, str], int] = {}
    for folder in photos.iterdir():
        for one in predict(learner, folder):
            counts[folder.name, one.names[0]] = counts.get((folder.name, one.names[0]), 0) + 1
    total = sum(counts.values())
    assert made.images == total == 36
    assert made.accuracy == sum(count for (a, b), count in counts.items() if a == b) / total
    for name in ("apple", "banana", "cherry"):
        images = sum(count for (a, _), count in counts.items() if a == name)
        assert made.by_class()[name] == (images, counts[name, name] / images)
    assert made.mistakes() == sorted(
        ((a, b, count) for (a, b), count in counts.items() if a != b), key=lambda pair: -pair[2]
    )
    assert made.mistakes()[0] == ("cherry", "apple", 3)
    right_old = sum(count for (a, b), count in counts.items() if a == b != "cherry")
    assert made.new == {"cherry"}
    assert made.old_accuracy == right_old / sum(count for (a, _), count in counts.items() if a != "cherry")
    assert made.new_accuracy == made.by_class()["cherry"][1]


def test_which_classes_are_new_can_be_said(learner, photos):
    assert evaluate(learner, photos, new=["apple"]).new == {"apple"}
    alone = evaluate(learner, photos, new=())
    assert (alone.old_accuracy, alone.new_accuracy) == (None, None)


def test_labelled_images_are_judged_like_folders(learner, photos):
    files = [file for name in ("apple", "banana", "cherry") for file in sorted((photos / name).iterdir())]
    images = MemoryImages(decoded(files), torch.arange(3).repeat_interleave(12))
    assert evaluate(learner, images).as_dict() == evaluate(learner, photos).as_dict()


def test_classes_the_model_does_not_know_are_named_and_never_merged(learner, photos):
    (photos / "banana").rename(photos / "Banana")
    (photos / "durian").mkdir()
    made = evaluate(learner, photos)
    assert made.unknown == {"Banana": 12, "durian": 0}
    assert made.images == 24
    assert "banana" not in made.by_class()


def test_a_folder_without_any_known_class_is_an_error(learner, photos, tmp_path):
    with pytest.raises(UserError, match=r"no folder .*nowhere"):
        evaluate(learner, tmp_path / "nowhere")
    with pytest.raises(UserError, match="bears the name of a class"):
        evaluate(learner, photos / "apple")
    photos.rename(tmp_path / "test")
    (tmp_path / "all").mkdir()
    (tmp_path / "test").rename(tmp_path / "all" / "test")
    with pytest.raises(UserError, match=r"Did you mean .*all/test\?"):
        evaluate(learner, tmp_path / "all")


def test_files_that_cannot_be_read_are_named_and_not_counted(learner, photos):
    (photos / "apple" / "0.jpg").write_bytes(b"no image")
    made = evaluate(learner, photos)
    assert made.unreadable == {str(photos / "apple" / "0.jpg"): "is not an image that can be read"}
    assert made.by_class()["apple"][0] == 11
    for file in photos.rglob("*.*"):
        file.write_bytes(b"no image")
    with pytest.raises(UserError, match="no image that can be read"):
        evaluate(learner, photos)


# --- the commands


def test_predict_prints_a_table(reverie, model, photos):
    code, out, err = reverie("predict", str(model), str(photos / "apple" / "1.png"), "--top", "2")
    assert (code, err) == (0, "")
    header, row, second = out.splitlines()
    assert header.split() == ["image", "class", "confidence"]
    assert row.split()[:2] == [str(photos / "apple" / "1.png"), "apple"]
    assert second.split()[0] in ("banana", "cherry")


def test_a_long_name_is_not_cut_off(reverie, model, photos, tmp_path):
    deep = tmp_path / ("d" * 150) / ("e" * 150)
    deep.mkdir(parents=True)
    (photos / "apple" / "1.png").rename(deep / "1.png")
    _, out, _ = reverie("predict", str(model), str(deep))
    assert out.splitlines()[1].split()[:2] == [str(deep / "1.png"), "apple"]


def test_predict_as_json_prints_nothing_else_and_names_what_it_passed_over(reverie, model, photos):
    (photos / "apple" / "0.jpg").write_bytes(b"no image")
    code, out, err = reverie("predict", str(model), str(photos / "apple"), "--json")
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


def test_predict_as_csv_has_a_line_for_each_image_and_rank(reverie, model, photos):
    awkward = photos / "apple" / 'a, "b".png'
    (photos / "apple" / "1.png").rename(awkward)
    code, out, _ = reverie("predict", str(model), str(awkward), "--csv", "--top", "3")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 0
    assert [row["image"] for row in rows] == [str(awkward)] * 3
    assert [row["rank"] for row in rows] == ["1", "2", "3"]
    assert rows[0]["class"] == "apple"
    assert sum(float(row["confidence"]) for row in rows) == pytest.approx(1, abs=1e-5)


def test_rejection_needs_a_threshold(reverie, model, photo_model, photos, tmp_path):
    image = str(photos / "apple" / "1.png")
    assert "none of these" not in reverie("predict", str(model), image, "--reject")[1]
    assert "none of these (apple?)" in reverie("predict", str(model), image, "--threshold", "1")[1]
    model_io.save(tmp_path / "without", photo_model)
    code, _, err = reverie("predict", str(tmp_path / "without"), image, "--reject")
    assert code == 2
    assert "no threshold of its own. Choose one: --threshold 0.7" in err


def test_a_model_trained_as_only_a_gpu_can_is_used_on_a_cpu(reverie, photo_model, photos, tmp_path):
    config = replace(photo_model.config, engine=EngineConfig(capture=True))
    model_io.save(tmp_path / "from-gpu", replace(photo_model, config=config))
    code, _, err = reverie("predict", "from-gpu", str(photos / "apple"), "--device", "cpu")
    assert (code, err) == (0, "")


def test_evaluate_prints_figures_by_class_and_mistakes(reverie, model, photos):
    (photos / "apple" / "1.png").rename(photos / "cherry" / "wrong.png")
    for name in ("durian", "elder", *"fghijklm"):
        (photos / name).mkdir()
    code, out, err = reverie("evaluate", str(model), str(photos))
    assert code == 0
    assert "97.2 % of 36 images are named rightly" in out
    assert "old classes 100.0 %, new classes (of the last step) 92.3 %" in out
    assert [line.split() for line in out.splitlines() if line.strip().startswith("cherry")] == [
        ["cherry", "new", "13", "92.3", "%"],
        ["cherry", "apple", "1"],
    ]
    assert "No class of the model, so left aside with the 0 files inside: 'durian', 'elder', 'f'" in err
    assert "'k' and 2 more." in err


def test_evaluate_as_json_prints_nothing_else(reverie, model, photos):
    code, out, err = reverie("evaluate", str(model), str(photos), "--json")
    made = json.loads(out)
    assert (code, err) == (0, "")
    assert made["accuracy"] == 1
    assert [one["class"] for one in made["classes"]] == ["apple", "banana", "cherry"]


def test_an_answer_as_plain_values_can_be_written_as_json():
    one = Answer("a.jpg", ("x", "y"), (0.75, 0.25), True)
    assert json.loads(json.dumps(one.as_dict()))["classes"][1] == {"class": "y", "confidence": 0.25}


def test_warnings_do_not_mix_with_the_answers(reverie, model, photos, monkeypatch):
    def warning(folder: Path) -> list[Path]:
        logging.getLogger("reverie").warning("beware")
        return sorted(folder.iterdir())

    monkeypatch.setattr(answer, "files_below", warning)
    for words in (["predict", str(model), str(photos / "apple")], ["evaluate", str(model), str(photos)]):
        _, out, err = reverie(*words, "--json")
        assert json.loads(out)
        assert "beware" in err
