"""Real folders of real image files, with what people leave in them."""

import logging
import os
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from reverie.data.folder import read_folder, split_files
from reverie.errors import UserError


def labels_of(images):
    return torch.bincount(images.labels).tolist()


def test_one_folder_is_split_by_class_and_always_the_same_way(photos, tmp_path):
    first = read_folder(photos, size=16)
    moved = tmp_path / "elsewhere" / "pictures"
    shutil.copytree(photos, moved)
    again = read_folder(moved, size=16)
    assert first.class_names == ("apple", "banana", "cherry")
    assert labels_of(first.train) == [10, 10, 10]
    assert labels_of(first.test) == [2, 2, 2]
    assert first.fingerprint() == again.fingerprint()


def test_adding_images_keeps_most_of_the_split(photos):
    before = read_folder(photos, size=8, storage="stream").test.files
    for number in range(12, 18):
        Image.new("RGB", (20, 20)).save(photos / "apple" / f"{number}.png")
    after = read_folder(photos, size=8, storage="stream").test.files
    assert len(set(before) & set(after)) >= len(before) - 2


@pytest.mark.parametrize("name", ["train", "test", "val"])
def test_a_class_may_be_called_train(photos, name):
    shutil.copytree(photos / "banana", photos / name)
    data = read_folder(photos, size=16)
    assert sorted(data.class_names) == sorted(["apple", "banana", "cherry", name])


def test_train_and_test_folders_are_taken_as_they_are(photos, tmp_path):
    root = tmp_path / "split"
    shutil.copytree(photos, root / "train")
    shutil.copytree(photos, root / "test")
    (root / "test" / "apple" / "0.jpg").unlink()
    data = read_folder(root, size=16)
    assert labels_of(data.train) == [12, 12, 12]
    assert labels_of(data.test) == [11, 12, 12]


def test_a_class_that_is_missing_from_test_is_an_error(photos, tmp_path):
    root = tmp_path / "split"
    shutil.copytree(photos, root / "train")
    shutil.copytree(photos, root / "val")
    shutil.rmtree(root / "val" / "banana")
    with pytest.raises(UserError, match=r"'banana'.*train/ but not in val/"):
        read_folder(root, size=16)


def test_odd_images_are_converted_and_it_is_said_once(photos, caplog):
    folder = photos / "apple"
    Image.new("L", (40, 20), 200).save(folder / "grey.png")
    Image.new("RGBA", (20, 20), (255, 0, 0, 0)).save(folder / "clear.png")
    Image.fromarray(np.full((20, 20), 40000, np.uint16)).save(folder / "deep.png")
    Image.new("P", (20, 20), 3).save(folder / "palette.gif")
    Image.new("CMYK", (20, 20), (0, 0, 0, 0)).save(folder / "print.jpg")
    Image.new("1", (20, 20), 1).save(folder / "bits.png")
    with caplog.at_level(logging.INFO, "reverie"):
        data = read_folder(photos, size=16, holdout=0.1)
    assert len(data.train) + len(data.test) == 42
    said = [record.message for record in caplog.records if record.levelno == logging.INFO]
    assert len(said) == 1
    for kind in ("2 grayscale", "1 transparency", "1 16-bit", "42 another size"):
        assert kind in said[0]


def test_files_that_are_no_images_are_skipped_by_name(photos, caplog):
    (photos / "apple" / "notes.txt").write_text("not an image")
    whole = (photos / "banana" / "0.jpg").read_bytes()
    (photos / "banana" / "0.jpg").write_bytes(whole[: len(whole) // 2])
    (photos / "cherry" / "empty.png").write_bytes(b"")
    (photos / "cherry" / ".DS_Store").write_bytes(b"hidden files are nobody's business")
    (photos / "__MACOSX" / "apple").mkdir(parents=True)  # as an archive made on a Mac unpacks elsewhere
    (photos / "__MACOSX" / "apple" / "._0.png").write_bytes(b"where a Mac keeps notes on a file")
    with caplog.at_level(logging.WARNING, "reverie"):
        data = read_folder(photos, size=16)
    text = "\n".join(record.message for record in caplog.records)
    assert all(name in text for name in ("notes.txt", "0.jpg", "empty.png"))
    assert ".DS_Store" not in text
    assert len(data.train) + len(data.test) == 35


def test_a_class_whose_images_cannot_be_read_is_an_error(photos):
    for file in (photos / "banana").iterdir():
        file.write_text("broken")
    with pytest.raises(UserError, match=r"Class 'banana'.*no images that can be read"):
        read_folder(photos, size=16)


def test_an_empty_class_a_missing_folder_and_a_flat_folder_are_errors(photos, tmp_path):
    (photos / "durian").mkdir()
    with pytest.raises(UserError, match=r"'durian'.*no images"):
        read_folder(photos, size=16)
    with pytest.raises(UserError, match="There is no folder"):
        read_folder(tmp_path / "nowhere", size=16)
    with pytest.raises(UserError, match="no sub-folders"):
        read_folder(photos / "apple", size=16)


def test_a_folder_that_may_not_be_read_is_an_error(photos, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(type(photos), "iterdir", refuse)
    with pytest.raises(UserError, match="photos cannot be read: Permission denied"):
        read_folder(photos, size=16)


def test_a_class_that_may_not_be_read_is_not_called_empty(photos, monkeypatch):
    real = os.scandir

    def refuse(path):
        if str(path).endswith("deep"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    (photos / "banana" / "deep").mkdir()
    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(UserError, match=r"banana/deep cannot be read: Permission denied\. Change its permissions"):
        read_folder(photos, size=16)


@pytest.mark.parametrize("names", [["test"], ["val"], ["test", "val"]])
def test_a_folder_of_test_images_alone_is_an_error(photos, tmp_path, names):
    for name in names:
        shutil.copytree(photos, tmp_path / "split" / name)
    with pytest.raises(UserError, match=f"split has {names[0]}/ but no train/"):
        read_folder(tmp_path / "split", size=16)


def test_a_class_may_be_called_test(photos):
    (photos / "apple").rename(photos / "test")
    assert read_folder(photos, size=16).class_names == ("banana", "cherry", "test")


def test_names_need_not_be_text(photos, caplog):
    """A file system takes any bytes for a name; the split and the fingerprint must, too."""
    shutil.copy(photos / "banana" / "0.jpg", photos / "banana" / os.fsdecode(b"\xff1.jpg"))
    (photos / "banana" / os.fsdecode(b"\xff1.txt")).write_text("no image")
    (photos / "cherry").rename(photos / os.fsdecode(b"ch\xe9rie"))
    with caplog.at_level(logging.WARNING, "reverie"):
        data = read_folder(photos, size=16)
    assert (len(data.train) + len(data.test), data.class_names[2]) == (37, "ch\udce9rie")
    assert data.fingerprint() == read_folder(photos, size=16, storage="stream").fingerprint()
    assert r"\xff1.txt is not an image" in caplog.text


def test_the_fingerprint_is_of_the_images_however_they_are_stored(photos):
    memory, stream = (read_folder(photos, size=16, storage=storage) for storage in ("memory", "stream"))
    assert memory.fingerprint() == stream.fingerprint()
    file = photos / "apple" / "1.png"
    Image.open(file).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(file)
    for storage in ("memory", "stream"):
        assert read_folder(photos, size=16, storage=storage).fingerprint() != memory.fingerprint()
    Image.open(file).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(file)
    assert read_folder(photos, size=16).fingerprint() == memory.fingerprint()


def test_a_large_folder_stays_on_disk(photos, monkeypatch):
    from reverie.data import folder
    from reverie.data.images import DiskImages, MemoryImages

    assert isinstance(read_folder(photos, size=16).train, MemoryImages)
    monkeypatch.setattr(folder, "MEMORY_LIMIT", 1000)
    assert isinstance(read_folder(photos, size=16).train, DiskImages)


def test_progress_is_told_to_the_last_file(photos):
    calls = []
    read_folder(photos, size=8, progress=lambda done, total: calls.append((done, total)))
    assert calls[-1] == (36, 36)


@pytest.mark.parametrize("part", ["train", "test"])
def test_classes_beside_a_part_are_not_swallowed(photos, part):
    """Is it the training images, or a class? Whoever put it there must say."""
    shutil.copytree(photos, photos / part)
    with pytest.raises(UserError, match=rf"photos has {part}/, which holds folders, and 'apple' beside it"):
        read_folder(photos, size=16)


def test_images_beside_the_parts_that_have_no_class_are_left_aside_aloud(photos, tmp_path, caplog):
    root = tmp_path / "contest"
    shutil.copytree(photos, root / "train")
    shutil.copytree(photos / "apple", root / "test")
    assert labels_of(read_folder(root, size=16).train) == [10, 10, 10]
    assert "contest/test is left aside" in caplog.text
    shutil.rmtree(root / "test")
    shutil.copytree(photos, root / "test")
    shutil.copytree(photos, root / "val")
    assert labels_of(read_folder(root, size=16).train) == [12, 12, 12]
    assert "contest/val is left aside" in caplog.text


def test_parts_with_capitals_are_not_taken_for_classes(photos, tmp_path):
    for part in ("Train", "Test"):
        shutil.copytree(photos, tmp_path / "set" / part)
    with pytest.raises(UserError, match=r"Test holds folders: rename it to 'test', if these are classes"):
        read_folder(tmp_path / "set", size=16)


def test_what_lies_in_hidden_folders_is_nobodys_business(photos):
    shutil.copytree(photos / "banana", photos / "apple" / ".ipynb_checkpoints")
    shutil.copytree(photos / "banana", photos / "apple" / "more" / "__MACOSX")
    data = read_folder(photos, size=16)
    assert len(data.train) + len(data.test) == 36


def test_a_folder_one_level_too_high_is_refused_and_the_right_one_is_named(photos, tmp_path):
    shutil.move(photos, tmp_path / "data" / "new")
    (tmp_path / "data" / "new" / "notes.txt").write_text("bought on Friday")
    with pytest.raises(
        UserError,
        match=r"'apple', 'banana', 'cherry'\. .* give .*/data/new instead; if 'new' is a class, put one",
    ):
        read_folder(tmp_path / "data", size=8)
    assert len(read_folder(tmp_path / "data" / "new", size=8).class_names) == 3
    Image.new("RGB", (8, 8)).save(tmp_path / "data" / "new" / "one.png")  # images and folders: a class
    assert read_folder(tmp_path / "data", size=8).class_names == ("new",)


def test_classes_that_hold_folders_alone_are_warned_of(photos, tmp_path, caplog):
    shutil.copytree(photos, tmp_path / "data" / "2024")
    shutil.copytree(photos, tmp_path / "data" / "2025" / "images")  # one folder inside, as of Tiny-ImageNet
    shutil.copytree(photos / "apple", tmp_path / "data" / "apple")
    assert read_folder(tmp_path / "data", size=8).class_names == ("2024", "2025", "apple")
    warning = caplog.records[0].getMessage()
    assert "data there are folders alone ('apple', 'banana', 'cherry') in '2024'; they count as one class" in warning
    caplog.clear()
    shutil.copytree(photos, tmp_path / "data" / "2026")
    read_folder(tmp_path / "data", size=8)
    assert "in '2024', and so in '2026'; they count as one class" in caplog.text


def test_what_cannot_be_read_takes_no_part_in_the_split(photos):
    """Three images and what a file manager left beside them: one of the three is held out."""
    for file in sorted((photos / "apple").iterdir())[3:]:
        file.unlink()
    (photos / "apple" / "Thumbs.db").write_bytes(b"no image")
    for number in range(30):
        (photos / "banana" / f"{number}.txt").write_text("no image")
    data = read_folder(photos, size=16)
    assert (labels_of(data.train), labels_of(data.test)) == ([2, 10, 10], [1, 2, 2])
    for file in sorted((photos / "apple").glob("*.*g"))[1:]:
        file.write_text("broken")
    with pytest.raises(UserError, match=r"'apple'.*a single image that can be read"):
        read_folder(photos, size=16)


# --- the same picture twice


def test_copies_of_a_picture_are_never_parted_and_are_counted(photos, caplog):
    """Twelve pictures, two of which are there five times: as names go, copies would be on both sides."""
    before = read_folder(photos, size=16, storage="stream")
    for number in range(4):
        for name in ("2.jpg", "3.png"):
            shutil.copy(photos / "apple" / name, photos / "apple" / f"copy {number} of {name}")
    parted = split_files("apple", sorted((photos / "apple").iterdir()), 0.2)
    assert all(any(file.name.endswith("2.jpg") for file in part) for part in parted)  # so that it can fail
    data = read_folder(photos, size=16, storage="stream")
    for name in ("2.jpg", "3.png"):
        sides = [
            sum(file.parent.name == "apple" and file.name.endswith(name) for file in part.files)
            for part in (data.train, data.test)
        ]
        assert sorted(sides)[0] == 0
    assert [f for f in data.test.files if "apple" not in f.parts] == [
        f for f in before.test.files if "apple" not in f.parts
    ]
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("8 files show the same picture as another of the same class: ")
    assert said.endswith("Copies are never parted when images are held out.")


def test_a_picture_in_two_classes_is_warned_of_by_name(photos, caplog):
    shutil.copy(photos / "apple" / "1.png", photos / "banana" / "perhaps.png")
    read_folder(photos, size=16)
    said = caplog.records[0].getMessage()
    assert said.startswith("The same picture is in more than one class, which contradict each other: ")
    assert all(str(photos / name) in said for name in ("apple/1.png", "banana/perhaps.png"))
    for number in range(3, 11, 2):
        shutil.copy(photos / "apple" / f"{number}.png", photos / "banana" / f"perhaps {number}.png")
    caplog.clear()
    read_folder(photos, size=16)
    assert caplog.records[0].getMessage().startswith("5 pictures are in more than one class")
    assert " and 2 more. Leave each in the class that it shows." in caplog.text


def test_a_picture_to_learn_from_and_to_test_on_is_warned_of(photos, tmp_path, caplog):
    root = tmp_path / "split"
    shutil.copytree(photos, root / "train")
    shutil.copytree(photos, root / "test")
    for file in (root / "test").rglob("*.png"):
        file.unlink()
    read_folder(root, size=16)
    assert f"Of the pictures held out, 18 are learned from, too: {root / 'test' / 'apple' / '0.jpg'}" in caplog.text


def test_a_class_of_one_picture_many_times_is_still_split(photos, caplog):
    for file in [*(photos / "apple").iterdir()][1:]:
        file.unlink()
    (only,) = (photos / "apple").iterdir()
    for number in range(4):
        shutil.copy(only, only.with_stem(f"again{number}"))
    data = read_folder(photos, size=16)
    assert (labels_of(data.train)[0], labels_of(data.test)[0]) == (4, 1)
    assert "Of the pictures held out, 1 is learned from, too" in caplog.text
