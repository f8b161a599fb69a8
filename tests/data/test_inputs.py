"""Inputs: a folder, arrays or a torch Dataset become one kind of data set, with images held out."""

import numpy as np
import pytest
import torch
from PIL import Image

from reverie.config.schema import DataConfig
from reverie.data.images import MemoryImages
from reverie.data.inputs import as_inputs, as_pixels, in_channels
from reverie.errors import UserError

RGB = np.random.default_rng(0).integers(0, 256, (12, 10, 9, 3), dtype=np.uint8)


def read(inputs, size=8):
    return inputs.read(DataConfig(), size, inputs.names)


def test_what_is_held_out_is_not_looked_at(photos):
    """It would decide how the others are learned."""
    inputs = as_inputs(photos)
    held_out = inputs.read(DataConfig(storage="stream"), 8, inputs.names).test.files
    for file in held_out:
        Image.new("RGB", (900, 900)).save(file)
    assert as_inputs(photos).look()[0] < 900 and len(held_out) == 6
    for file in photos.rglob("*.*g"):
        if file not in held_out:
            file.write_text("broken")
    with pytest.raises(UserError, match="No file"):
        as_inputs(photos).look()
    for file in photos.rglob("*.*g"):
        file.unlink()
    with pytest.raises(UserError, match="There are no images in"):
        as_inputs(photos).look()
    for folder in photos.iterdir():
        Image.new("RGB", (9, 9)).save(folder / "only.png")
    with pytest.raises(UserError, match=r"There is only one image of each class in .* held out"):
        as_inputs(photos).look()


def test_a_folder_names_its_classes_and_is_looked_at(photos):
    inputs = as_inputs(photos)
    assert inputs.names == ("apple", "banana", "cherry")
    assert inputs.source == "photos"
    assert inputs.look() == (20, True)
    dataset = read(inputs)
    assert dataset.train.shape == (3, 8, 8)
    assert len(dataset.train) + len(dataset.test) == 36
    only = inputs.read(DataConfig(), 8, {"cherry"})
    assert only.class_names == ("cherry",) and len(only.train) + len(only.test) == 12


def test_grey_images_are_known_as_such(tmp_path):
    for number in range(3):
        (tmp_path / "one").mkdir(exist_ok=True)
        Image.fromarray(RGB[number, :, :, 0]).save(tmp_path / "one" / f"{number}.jpg")
    assert as_inputs(tmp_path).look() == (9, False)


def test_a_grey_folder_is_grey_in_whatever_files(tmp_path):
    (tmp_path / "one").mkdir()
    for number, values in enumerate(RGB[:9, :, :, 0]):
        grey = Image.fromarray(values * np.uint16(257)) if number % 3 == 2 else Image.fromarray(values)
        (grey.convert("RGB") if number % 3 == 1 else grey).save(tmp_path / "one" / f"{number}.png")
    assert as_inputs(tmp_path).look() == (9, False)
    for number in range(3):
        Image.fromarray(RGB[number]).save(tmp_path / "one" / f"colour{number}.png")
    assert as_inputs(tmp_path).look() == (9, True)


def test_a_folder_without_any_image_is_refused(tmp_path):
    (tmp_path / "one").mkdir()
    for number in range(2):
        (tmp_path / "one" / f"{number}.png").write_text("no image")
    with pytest.raises(UserError, match=r"No file in .* as an image; the last, .*/1\.png is not an image that"):
        as_inputs(tmp_path).look()


@pytest.mark.parametrize(
    "images",
    [
        RGB,
        torch.from_numpy(RGB),
        torch.from_numpy(RGB).permute(0, 3, 1, 2),
        torch.from_numpy(RGB).permute(0, 3, 1, 2) / 255,
        RGB.astype(np.float64) / 255,
    ],
    ids=["array", "tensor", "channels first", "float", "float array"],
)
def test_arrays_of_every_kind_are_the_same_images(images):
    labels = ["cat", "dog"] * 6
    found, expected = read(as_inputs((images, labels))), read(as_inputs((RGB, labels)))
    assert found.class_names == ("cat", "dog")
    assert found.fingerprint() == expected.fingerprint()
    assert len(found.test) == 2


def test_the_same_images_are_held_out_in_whatever_order_they_come():
    labels = np.array([0, 1] * 6)
    turned = read(as_inputs((RGB[::-1], labels[::-1]), ["cat", "dog"]))
    straight = read(as_inputs((RGB, labels), ["cat", "dog"]))
    assert {p.numpy().tobytes() for p in turned.test.pixels} == {p.numpy().tobytes() for p in straight.test.pixels}


def test_numbers_point_into_the_names_and_names_without_images_are_left_out():
    inputs = as_inputs((RGB, [0, 2] * 6), ["cat", "cow", "dog"])
    assert inputs.names == ("cat", "dog")
    assert sorted(read(inputs).train.labels.unique().tolist()) == [0, 1]


class Pets(torch.utils.data.Dataset):
    classes = ("cat", "dog")

    def __len__(self):
        return 12

    def __getitem__(self, i):
        return Image.fromarray(RGB[i]), i % 2


def test_a_torch_dataset_of_pictures_is_the_same_again():
    assert read(as_inputs(Pets())).fingerprint() == read(as_inputs((RGB, ["cat", "dog"] * 6))).fingerprint()


def test_a_part_of_a_dataset_has_its_names():
    part = torch.utils.data.Subset(torch.utils.data.Subset(Pets(), range(10)), range(8))
    assert as_inputs(part).names == ("cat", "dog")


def test_names_may_be_mapped():
    assert as_inputs((RGB, [0, 1] * 6), {0: "cat", 1: "dog"}).names == ("cat", "dog")


def test_images_of_another_shape_keep_their_middle():
    wide = np.zeros((2, 8, 24, 3), np.uint8)
    wide[:, :, 8:16] = 200
    dataset = read(as_inputs((wide, ["a", "a"])))
    assert (dataset.train.pixels == 200).all()


@pytest.mark.parametrize(
    ("what", "names", "says"),
    [
        ((RGB, [0]), None, "12 images, but 1 labels"),
        ((RGB[:0], []), None, "no images"),
        ((RGB, [0, 5] * 6), ["a", "b"], "from 0 to 1, one for each name, not 5"),
        ((RGB.astype(np.int32), [0] * 12), None, "not torch.int32"),
        ((RGB.astype(np.float32), [0] * 12), None, "go from 0 to 1"),
        ((RGB[..., :2], [0] * 12), None, "one channel or three"),
        ((RGB[0, 0], [0] * 10), None, "three dimensions"),
        (3, None, "not int"),
    ],
)
def test_what_cannot_be_learned_from_is_refused_with_a_reason(what, names, says):
    with pytest.raises(UserError, match=says):
        as_inputs(what, names)


def test_names_are_for_arrays_only(photos):
    with pytest.raises(UserError, match="leave `names` out"):
        as_inputs(photos, ["a", "b", "c"])


def test_a_class_with_one_image_in_memory_is_refused():
    with pytest.raises(UserError, match=r"'b' has 1 image: one"):
        read(as_inputs((RGB[:3], ["a", "a", "b"])))


def test_colours_become_the_grey_that_pillow_makes_of_them():
    pixels = as_pixels(RGB)
    grey = in_channels(MemoryImages(pixels, torch.zeros(12, dtype=torch.long)), 1)
    expected = np.stack([np.asarray(Image.fromarray(image).convert("L")) for image in RGB])
    assert torch.equal(grey.pixels[:, 0], torch.from_numpy(expected))


def test_copies_in_memory_are_never_parted():
    images = np.concatenate([RGB[:3]] * 4)
    data = read(as_inputs((images, ["a"] * 12)))
    learned, held = ({pixels.numpy().tobytes() for pixels in part.pixels} for part in (data.train, data.test))
    assert (len(learned), len(held), learned & held) == (2, 1, set())
