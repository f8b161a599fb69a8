"""How often a model is right: figures that agree with a count by hand, and nothing silently merged."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest
import torch

from reverie.data.decode import decode
from reverie.data.images import MemoryImages
from reverie.errors import UserError
from reverie.model import evaluation
from reverie.model.evaluation import evaluate_images
from reverie.model.inference import predict_images


@pytest.fixture
def learner(photo_model):
    return photo_model.task_learner()


def decoded(files: list[Path]) -> torch.Tensor:
    return torch.from_numpy(np.stack([decode(file, 16)[0] for file in files]))


def test_figures_agree_with_a_count_by_hand(learner, photos):
    """Some images lie in the wrong folder, so that there are mistakes to count."""
    for number in (1, 3, 5):
        (photos / "apple" / f"{number}.png").rename(photos / "cherry" / f"from-apple-{number}.png")
    (photos / "banana" / "1.png").rename(photos / "apple" / "from-banana.png")
    made = evaluate_images(learner, photos)
    counts: dict[tuple[str, str], int] = {}
    for folder in photos.iterdir():
        for one in predict_images(learner, folder):
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
    assert evaluate_images(learner, photos, new=["apple"]).new == {"apple"}
    alone = evaluate_images(learner, photos, new=())
    assert (alone.old_accuracy, alone.new_accuracy) == (None, None)


def test_labelled_images_are_judged_like_folders(learner, photos):
    files = [file for name in ("apple", "banana", "cherry") for file in sorted((photos / name).iterdir())]
    images = MemoryImages(decoded(files), torch.arange(3).repeat_interleave(12))
    assert evaluate_images(learner, images).as_dict() == evaluate_images(learner, photos).as_dict()


def test_classes_the_model_does_not_know_are_named_and_never_merged(learner, photos):
    (photos / "banana").rename(photos / "Banana")
    (photos / "durian").mkdir()
    made = evaluate_images(learner, photos)
    assert made.unknown == {"Banana": 12, "durian": 0}
    assert made.images == 24
    assert "banana" not in made.by_class()


def test_a_folder_without_any_known_class_is_an_error(learner, photos, tmp_path):
    with pytest.raises(UserError, match=r"no folder .*nowhere"):
        evaluate_images(learner, tmp_path / "nowhere")
    with pytest.raises(UserError, match="bears the name of a class"):
        evaluate_images(learner, photos / "apple")
    photos.rename(tmp_path / "test")
    (tmp_path / "all").mkdir()
    (tmp_path / "test").rename(tmp_path / "all" / "test")
    with pytest.raises(UserError, match=r"Did you mean .*all/test\?"):
        evaluate_images(learner, tmp_path / "all")


def test_files_that_cannot_be_read_are_named_and_not_counted(learner, photos):
    (photos / "apple" / "0.jpg").write_bytes(b"no image")
    made = evaluate_images(learner, photos)
    assert made.unreadable == {str(photos / "apple" / "0.jpg"): "is not an image that can be read"}
    assert made.by_class()["apple"][0] == 11
    for file in photos.rglob("*.*"):
        file.write_bytes(b"no image")
    with pytest.raises(UserError, match="no image that can be read"):
        evaluate_images(learner, photos)


def test_an_evaluation_that_is_printed_shows_the_figures_and_then_every_class(learner, photos):
    (photos / "apple" / "1.png").rename(photos / "cherry" / "wrong.png")
    shown = str(evaluate_images(learner, photos)).splitlines()
    assert shown[0] == "97.2 % of 36 images are named rightly"
    assert shown[1] == "old classes 100.0 %, new classes (of the last step) 92.3 %"
    assert shown[2].startswith("expected calibration error ") and shown[2].endswith(" % (15 bins)")
    assert shown[3:] == [
        "  apple: 100.0 % of 11",
        "  banana: 100.0 % of 12",
        "  cherry: 92.3 % of 13",
        "  cherry taken for apple: 1",
    ]
    assert "new classes" not in str(evaluate_images(learner, photos, new=()))


def test_a_class_that_the_model_does_not_know_cannot_be_new(learner, photos):
    with pytest.raises(UserError, match=r"does not know 'aple'\. Did you mean 'apple'"):
        evaluate_images(learner, photos, new=["aple"])


# --- the command


def test_evaluate_prints_figures_by_class_and_mistakes(reverie, photo_folder, photos):
    (photos / "apple" / "1.png").rename(photos / "cherry" / "wrong.png")
    for name in ("durian", "elder", *"fghijklm"):
        (photos / name).mkdir()
    code, out, err = reverie("evaluate", str(photo_folder), str(photos))
    assert code == 0
    assert "97.2 % of 36 images are named rightly" in out
    assert "old classes 100.0 %, new classes (of the last step) 92.3 %" in out
    assert [line.split() for line in out.splitlines() if line.strip().startswith("cherry")] == [
        ["cherry", "new", "13", "92.3", "%"],
        ["cherry", "apple", "1"],
    ]
    assert "No class of the model, so left aside with the 0 files inside: 'durian', 'elder', 'f'" in err
    assert "'k' and 2 more." in err


def test_evaluate_as_json_prints_nothing_else(reverie, photo_folder, photos):
    code, out, err = reverie("evaluate", str(photo_folder), str(photos), "--json")
    made = json.loads(out)
    assert (code, err) == (0, "")
    assert made["accuracy"] == 1
    assert [one["class"] for one in made["classes"]] == ["apple", "banana", "cherry"]


def test_warnings_do_not_mix_with_the_figures(reverie, photo_folder, photos, monkeypatch):
    def warning(folder: Path) -> list[Path]:
        logging.getLogger("reverie").warning("beware")
        return sorted(folder.iterdir())

    monkeypatch.setattr(evaluation, "files_below", warning)
    _, out, err = reverie("evaluate", str(photo_folder), str(photos), "--json")
    assert json.loads(out)
    assert "beware" in err


def test_printed_it_says_what_was_mistaken_and_what_was_left_aside(learner, photos):
    (photos / "apple" / "1.png").rename(photos / "cherry" / "wrong.png")
    (photos / "durian").mkdir()
    (photos / "durian" / "a.png").write_bytes(b"never read")
    (photos / "apple" / "broken.png").write_bytes(b"no image")
    shown = str(evaluate_images(learner, photos)).splitlines()
    assert "  cherry taken for apple: 1" in shown
    assert "No class of the model, so left aside with the 1 file inside: 'durian'." in shown
    assert shown[-1].startswith(f"{photos / 'apple' / 'broken.png'} ")
    assert shown[-1].endswith("; passed over.")


def test_of_many_things_left_aside_the_first_are_named():
    assert evaluation.first_few([str(number) for number in range(12)])[-2:] == ["9", "… and 2 more"]
    assert evaluation.first_few(["a"]) == ["a"]


def test_a_list_is_evaluated_as_the_folder_is(learner, photos):
    table = photos.parent / "check.csv"
    lines = [f"photos/{file.relative_to(photos)},{file.parent.name}" for file in sorted(photos.rglob("*.*g"))]
    table.write_text("\n".join(["path,label", *lines]))
    assert evaluate_images(learner, table).as_dict() == evaluate_images(learner, photos).as_dict()
    table.write_text("path,label\nphotos/apple/1.png,durian\n")
    with pytest.raises(UserError, match=r"No label in .*check\.csv bears the name of a class"):
        evaluate_images(learner, table)
