"""Tiny-ImageNet and ImageNet from small folders of the official layouts: real JPEG files, and what can be wrong."""

import logging
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from reverie.config.schema import DataConfig
from reverie.data import imagenet
from reverie.data.images import DiskImages, MemoryImages
from reverie.data.sources import read_dataset
from reverie.errors import UserError
from reverie.runs.configure import choose_classes, configure, make_stream
from tests.support.images import WNIDS, write_imagenet, write_jpeg, write_tiny_imagenet


def read_tiny(root, **settings):
    return read_dataset(DataConfig(source="tinyimagenet", **settings), root)


def read_imagenet(root, choose=None, **settings):
    return read_dataset(DataConfig(source="imagenet", **settings), root, None, choose)


def colour(pixels):
    """The label that an image was painted for, seen from its colours."""
    red, green, blue = (pixels[:, channel].double().mean((1, 2)) > 120 for channel in range(3))
    return torch.where(red & green, 3, torch.where(red, 0, torch.where(green, 1, torch.where(blue, 2, -1))))


# --- Tiny-ImageNet


@pytest.mark.parametrize("layout", ["official", "by class", "by class, images"])
def test_tiny_imagenet_is_read_from_each_layout_to_the_same_data(tmp_path, layout):
    write_tiny_imagenet(tmp_path, layout)
    data = read_tiny(tmp_path)
    assert isinstance(data.train, MemoryImages)
    assert data.train.shape == (3, 64, 64)
    assert torch.bincount(data.train.labels).tolist() == [4] * 4
    assert torch.bincount(data.test.labels).tolist() == [3] * 4
    for part in (data.train, data.test):
        assert torch.equal(colour(part.pixels), part.labels)
    assert data.normalisation == ((0.4389, 0.4114, 0.3682), (0.2402, 0.2350, 0.2268))
    write_tiny_imagenet(tmp_path / "other")
    assert read_tiny(tmp_path / "other" / "tiny-imagenet-200").fingerprint() == data.fingerprint()


def test_classes_have_their_first_name_and_no_two_the_same(tmp_path):
    folder = write_tiny_imagenet(tmp_path)
    names = ("goldfish", "crane (n02012849)", "crane (n03126707)", "reel")
    assert read_tiny(tmp_path).class_names == names
    (folder / "words.txt").unlink()
    assert read_tiny(tmp_path).class_names == WNIDS


def test_a_rearranged_copy_needs_no_lists(tmp_path):
    folder = write_tiny_imagenet(tmp_path, "by class")
    before = read_tiny(tmp_path).fingerprint()
    (folder / "wnids.txt").unlink()
    (folder / "val" / "val_annotations.txt").unlink()
    (folder / "val" / "images").mkdir()  # left behind, empty
    assert read_tiny(tmp_path).fingerprint() == before


def test_another_number_of_classes_is_warned_of(tmp_path, caplog):
    write_tiny_imagenet(tmp_path)
    with caplog.at_level(logging.WARNING, "reverie"):
        read_tiny(tmp_path)
    assert "has 4 classes, not 200" in caplog.text


def test_grey_and_cmyk_images_are_converted_and_a_damaged_one_is_skipped_by_name(tmp_path, caplog):
    folder = write_tiny_imagenet(tmp_path) / "train" / WNIDS[1] / "images"
    write_jpeg(folder / "grey.JPEG", 1, 50, 64, 64, "L")
    write_jpeg(folder / "print.JPEG", 1, 51, 64, 64, "CMYK")
    whole = (folder / f"{WNIDS[1]}_0.JPEG").read_bytes()
    (folder / f"{WNIDS[1]}_0.JPEG").write_bytes(whole[: len(whole) // 2])
    with caplog.at_level(logging.INFO, "reverie"):
        data = read_tiny(tmp_path)
    assert torch.bincount(data.train.labels).tolist() == [4, 5, 4, 4]
    assert f"{WNIDS[1]}_0.JPEG is cut off: its end is missing; skipped" in caplog.text
    assert "1 CMYK, 1 grayscale" in caplog.text


def test_a_class_that_is_missing_is_an_error_that_names_it(tmp_path):
    folder = write_tiny_imagenet(tmp_path, "by class")
    shutil.rmtree(folder / "val" / WNIDS[2])
    with pytest.raises(UserError, match=rf"Class {WNIDS[2]} is missing.*val"):
        read_tiny(tmp_path)
    shutil.rmtree(folder / "train" / WNIDS[1] / "images")
    with pytest.raises(UserError, match=rf"Class {WNIDS[1]} has no JPEG files"):
        read_tiny(tmp_path)
    shutil.rmtree(folder / "train" / WNIDS[1])
    with pytest.raises(UserError, match=rf"Class {WNIDS[1]} is missing.*train"):
        read_tiny(tmp_path)


def test_validation_images_and_their_list_must_agree(tmp_path):
    folder = write_tiny_imagenet(tmp_path)
    annotations = folder / "val" / "val_annotations.txt"
    text = annotations.read_text()
    annotations.write_text(text.replace(WNIDS[3], WNIDS[0]))
    with pytest.raises(UserError, match=f"Class {WNIDS[3]} has no images"):
        read_tiny(tmp_path)
    annotations.write_text(text + "val_99.JPEG n01443537\n")
    with pytest.raises(UserError, match="without a known class: 'val_99"):
        read_tiny(tmp_path)
    annotations.write_text(text)
    (folder / "val" / "images" / "val_5.JPEG").unlink()
    with pytest.raises(UserError, match=r"val_5\.JPEG is missing"):
        read_tiny(tmp_path)
    annotations.unlink()
    with pytest.raises(UserError, match=r"val_annotations\.txt is missing"):
        read_tiny(tmp_path)


def test_missing_data_say_where_to_get_them_and_where_to_put_them(tmp_path):
    with pytest.raises(
        UserError, match=r"`download_dataset\(.tinyimagenet., .*http://cs231n\.stanford\.edu/tiny-imagenet"
    ):
        read_tiny(tmp_path)
    with pytest.raises(
        UserError, match=r"image-net\.org/download.*\n?.*imagenet holds train/WNID/\*\.JPEG and val/WNID"
    ):
        read_imagenet(tmp_path)


# --- ImageNet


def test_imagenet_is_listed_and_read_from_disk_when_it_is_needed(tmp_path, monkeypatch):
    write_imagenet(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr("reverie.data.images.decode", None)  # nothing is decoded to begin with
        data = read_imagenet(tmp_path, size=32)
        data.fingerprint()
    assert isinstance(data.train, DiskImages)
    assert read_imagenet(tmp_path).train.shape == (3, 224, 224)
    assert torch.bincount(data.train.labels).tolist() == [6] * 4
    assert torch.bincount(data.test.labels).tolist() == [2] * 4
    assert data.class_names == WNIDS
    for part in (data.train, data.test):
        assert torch.equal(colour(part.read(torch.arange(len(part)))), part.labels)


def test_only_the_classes_of_the_stream_are_opened(tmp_path, monkeypatch):
    write_imagenet(tmp_path)
    opened, look = set(), imagenet.files_below
    monkeypatch.setattr(imagenet, "files_below", lambda folder: opened.add(folder.name) or look(folder))
    settings = ["stream.order=[2, 0, 1]", "stream.classes=2", "stream.split=2", "data.size=32"]
    config = configure("imagenet50-5", "base", settings=settings)
    data = read_imagenet(tmp_path, lambda count: choose_classes(config, count), size=32)
    assert opened == {WNIDS[0], WNIDS[2]}
    stream = make_stream(config, data)
    assert stream.class_names == (WNIDS[2], WNIDS[0])
    for task in stream:
        assert task.images.labels.tolist() == [task.index] * 6
        assert set(colour(task.images.read(torch.arange(6))).tolist()) == {(2, 0)[task.index]}


def test_the_preset_takes_fifty_of_a_thousand_classes_in_icarls_order():
    config = configure("imagenet50-5", "abd")
    order = choose_classes(config, 1000)
    assert len(order) == 50
    assert order[:5] == [54, 7, 894, 512, 126]  # as others print it


def test_the_fingerprint_is_of_names_and_sizes_of_the_classes_used(tmp_path):
    folder = write_imagenet(tmp_path)

    def two(count):
        return [0, 1]

    before = read_imagenet(tmp_path, two).fingerprint()
    shutil.move(folder, tmp_path / "elsewhere")
    folder = tmp_path / "elsewhere"
    write_jpeg(folder / "train" / WNIDS[3] / "another.JPEG", 3, 60, 40, 40)
    assert read_imagenet(folder, two).fingerprint() == before
    assert read_imagenet(folder).fingerprint() != before
    write_jpeg(folder / "train" / WNIDS[1] / f"{WNIDS[1]}_0.JPEG", 1, 61, 30, 30)
    assert read_imagenet(folder, two).fingerprint() != before


def test_a_damaged_file_is_named_once_and_the_next_of_its_class_stands_in(tmp_path, caplog):
    folder = write_imagenet(tmp_path) / "train"
    for number in (2, 5):  # one in the middle, and the last, after which comes the first
        (folder / WNIDS[0] / f"{WNIDS[0]}_{number}.JPEG").write_bytes(b"\xff\xd8\xff\xe0 cut off")
    images = read_imagenet(tmp_path, size=32).train
    with caplog.at_level(logging.WARNING, "reverie"):
        first, again = (images.read(torch.arange(6)) for _ in range(2))
    assert torch.equal(first, again)
    assert torch.equal(first[2], first[3])
    assert torch.equal(first[5], first[0])
    named = [record.message.split("/")[-1].split()[0] for record in caplog.records if "stands in" in record.message]
    assert sorted(named) == [f"{WNIDS[0]}_2.JPEG", f"{WNIDS[0]}_5.JPEG"]
    for file in (folder / WNIDS[0]).iterdir():
        file.write_bytes(b"")
    with pytest.raises(UserError, match="nor can any other image of its class"):
        images.read(torch.tensor([3]))


def test_grey_and_cmyk_files_are_streamed_as_rgb(tmp_path):
    folder = write_imagenet(tmp_path, per_class=1) / "train" / WNIDS[0]
    write_jpeg(folder / "x_grey.JPEG", 0, 50, 64, 48, "L")
    write_jpeg(folder / "y_print.JPEG", 0, 51, 64, 48, "CMYK")
    pixels = read_imagenet(tmp_path, size=32).train.read(torch.arange(3))
    assert torch.equal(pixels[1, 0], pixels[1, 1])
    assert colour(pixels[2:]).tolist() == [0]


def test_a_test_image_is_the_middle_224_of_256(tmp_path):
    rows, columns = np.mgrid[0:300, 0:400]
    smooth = np.stack([rows / 2, columns / 2, (rows + columns) / 4], axis=-1).astype(np.uint8)
    folder = write_imagenet(tmp_path, per_class=1)
    file = next((folder / "val" / WNIDS[0]).iterdir())
    Image.fromarray(smooth).save(file, quality=100)
    seen = read_imagenet(tmp_path).test.read(torch.tensor([0]))[0].permute(1, 2, 0).numpy().astype(int)
    scaled = Image.open(file).resize((341, 256), Image.Resampling.BILINEAR)
    expected = np.asarray(scaled.crop((58, 16, 282, 240))).astype(int)
    assert np.abs(seen - expected).max() <= 3


def test_each_class_must_be_in_train_and_in_val(tmp_path):
    folder = write_imagenet(tmp_path)
    shutil.rmtree(folder / "val" / WNIDS[1])
    with pytest.raises(UserError, match=f"Class {WNIDS[1]} .* is in train/ but not in val/"):
        read_imagenet(tmp_path)
    shutil.rmtree(folder / "train" / WNIDS[1])
    shutil.rmtree(folder / "train" / WNIDS[2])
    with pytest.raises(UserError, match=f"Class {WNIDS[2]} .* is in val/ but not in train/"):
        read_imagenet(tmp_path)


def test_validation_images_that_are_not_sorted_by_class_are_refused(tmp_path):
    folder = write_imagenet(tmp_path)
    for wnid in WNIDS:
        for file in (folder / "val" / wnid).iterdir():
            file.rename(folder / "val" / file.name)
        (folder / "val" / wnid).rmdir()
    with pytest.raises(UserError, match=r"must be sorted by class, as val/WNID/\*\.JPEG"):
        read_imagenet(tmp_path)


def test_imagenet_is_not_put_into_memory(tmp_path):
    write_imagenet(tmp_path)
    with pytest.raises(UserError, match=r"data\.storage=memory"):
        read_imagenet(tmp_path, storage="memory")
