"""scikit-learn's digits: all of them, none of them twice, and whichever way they are read."""

import pytest
import torch

from reverie.config.schema import DataConfig
from reverie.data import digits
from reverie.data.digits import read_digits
from reverie.errors import UserError


def test_digits_come_with_the_library():
    data = read_digits(DataConfig())
    assert data.train.shape == (1, 8, 8)
    assert len(data.train) + len(data.test) == 1797
    assert torch.bincount(data.test.labels).min() >= 34
    assert data.class_names == tuple("0123456789")
    assert data.train.pixels.max() == 255
    mean, deviation = data.normalisation
    pixels = data.train.pixels.float() / 255
    assert abs(pixels.mean() - mean[0]) < 0.02
    assert abs(pixels.std() - deviation[0]) < 0.02


def test_no_digit_is_in_both_parts():
    data = read_digits(DataConfig())
    train = {bytes(image.numpy().tobytes()) for image in data.train.pixels}
    test = {bytes(image.numpy().tobytes()) for image in data.test.pixels}
    assert not train & test


def test_digits_are_those_that_the_library_gives_if_asked(monkeypatch):
    ours = read_digits(DataConfig())
    monkeypatch.setattr(digits, "FILE", "nowhere")
    theirs = read_digits(DataConfig())
    for part in ("train", "test"):
        assert torch.equal(getattr(ours, part).pixels, getattr(theirs, part).pixels)
        assert torch.equal(getattr(ours, part).labels, getattr(theirs, part).labels)


def test_digits_can_be_enlarged():
    assert read_digits(DataConfig(size=16)).train.shape == (1, 16, 16)


def test_digits_that_no_memory_would_hold_are_refused_before_they_are_made():
    with pytest.raises(UserError, match=r"1,797 images of 4096 pixels a side would take 30.1 GB of memory\. Choose a"):
        read_digits(DataConfig(size=4096))
