"""What an image must be before a classifier sees it: written down and read back, normalised and back."""

import json

import pytest
import torch

from reverie.data.images import MemoryImages
from reverie.data.preprocessing import ImageStatistics, Normaliser, Preprocessing, pixel_statistics
from reverie.errors import UserError

COLOUR = Preprocessing(32, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
GREY = Preprocessing(8, (0.5,), (0.25,), ImageStatistics((0.4,), (0.2,)))


def pixels(count=16, side=9, channels=3):
    rng = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, channels, side, side), generator=rng).to(torch.uint8)


# --- numbers


def test_normalising_takes_off_the_mean_and_divides_by_the_deviation():
    out = Normaliser.of(COLOUR)(pixels())
    for channel, (mean, deviation) in enumerate(zip(COLOUR.mean, COLOUR.deviation, strict=True)):
        torch.testing.assert_close(out[:, channel], (pixels()[:, channel] / 255 - mean) / deviation)


def test_normalising_and_back_gives_the_same_pixels():
    normalise = Normaliser((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    assert torch.equal(normalise.to_pixels(normalise(pixels())), pixels())
    torch.testing.assert_close(normalise.to_unit(normalise(pixels())), pixels() / 255)


def test_what_lies_outside_of_the_pixels_is_cut_off_for_people():
    assert Normaliser((0.0,), (1.0,)).to_pixels(torch.tensor([-3.0, 0.5, 7.0])).flatten().tolist() == [0, 128, 255]


# --- statistics


def test_statistics_of_images_are_their_mean_and_deviation_by_channel():
    mean, deviation = pixel_statistics(MemoryImages(pixels(300), torch.zeros(300).long()))
    by_channel = (pixels(300).double() / 255).transpose(0, 1).flatten(1)
    assert mean == pytest.approx(by_channel.mean(dim=1).tolist(), abs=1e-6)
    assert deviation == pytest.approx(by_channel.std(dim=1, unbiased=False).tolist(), abs=1e-6)


def test_images_that_are_all_alike_can_still_be_divided_by_their_deviation():
    flat = MemoryImages(torch.full((4, 1, 5, 5), 255, dtype=torch.uint8), torch.zeros(4).long())
    assert pixel_statistics(flat) == ((1.0,), (0.001,))


def test_of_very_many_images_a_few_thousand_spread_over_the_set_are_read():
    class Counted(MemoryImages):
        def read(self, index, draws=None):
            asked.extend(index.tolist())
            return super().read(index, draws)

    asked = []
    pixel_statistics(Counted(torch.zeros(20_000, 1, 2, 2, dtype=torch.uint8), torch.zeros(20_000).long()))
    assert len(asked) == 5000
    assert (asked[0], asked[-1]) == (0, 19_999)


def test_natural_images_have_the_statistics_of_imagenet_in_colour_and_in_grey():
    assert ImageStatistics.natural(3).mean == (0.485, 0.456, 0.406)
    assert ImageStatistics.natural(1).mean == pytest.approx([(0.485 + 0.456 + 0.406) / 3])
    assert len(ImageStatistics.natural(1).deviation) == 1


# --- on disk


@pytest.mark.parametrize("made", [COLOUR, GREY])
def test_preprocessing_is_read_back_as_it_was_written(made):
    assert Preprocessing.from_dict(json.loads(json.dumps(made.as_dict()))) == made
    assert ("images" in made.as_dict()) is (made.images is not None)


def test_what_is_not_known_is_left_out_of_the_file():
    assert Preprocessing(8, (0.3,), (0.4,)).as_dict() == {"size": 8, "mean": [0.3], "deviation": [0.4]}


def test_without_normalisation_pixels_are_between_0_and_1_and_their_statistics_are_kept():
    plain = COLOUR.without_normalisation()
    assert (plain.size, plain.mean, plain.deviation) == (32, (0.0,) * 3, (1.0,) * 3)
    assert plain.images == ImageStatistics(COLOUR.mean, COLOUR.deviation)
    assert GREY.without_normalisation().images == GREY.images


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"size": 8, "mean": [0.5]}, "'preprocessing.deviation' is missing"),
        ({"size": 0, "mean": [0.5], "deviation": [1]}, "preprocessing.size must be a whole number from 1 to 16,384, "),
        ({"size": 8.5, "mean": [0.5], "deviation": [1]}, "preprocessing.size must be a whole number .* not 8.5"),
        ({"size": 8, "mean": 0.5, "deviation": [1]}, "preprocessing.mean must be a list of numbers, not 0.5"),
        ({"size": 8, "mean": ["a"], "deviation": [1]}, "preprocessing.mean must be a list of numbers, not .'a'."),
        ({"size": 8, "mean": [0.5], "deviation": [0]}, "preprocessing.deviation must be a list of numbers above 0"),
        ({"size": 8, "mean": [], "deviation": []}, "preprocessing.mean must be a list of numbers"),
        ({"size": 8, "mean": [0.5, 0.5], "deviation": [1]}, "must have a mean and a deviation for each channel"),
        ({"size": 8, "mean": [0.5], "deviation": [1], "crop": 2}, "Unknown key 'preprocessing.crop'"),
    ],
)
def test_what_is_no_preprocessing_is_refused_with_the_key(values, message):
    with pytest.raises(UserError, match=message):
        Preprocessing.from_dict(values)


def test_one_that_is_made_in_python_is_checked_alike():
    with pytest.raises(UserError, match=r"preprocessing.size must be a whole number from 1 to 16,384, not 0"):
        Preprocessing(0, (0.5,), (0.25,))
