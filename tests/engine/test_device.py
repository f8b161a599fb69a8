"""The device by name: found, or an error that says what to do."""

import pytest
import torch

from reverie.engine.device import find_device, synchronise
from reverie.errors import UserError


def test_a_device_has_its_name_and_auto_is_the_best_there_is():
    assert find_device("cpu").type == "cpu"
    assert find_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gpu", r"^The device 'gpu' is unknown; use auto, cpu, cuda or cuda:1\.$"),
        ("tpu:3", r"^The device 'tpu:3' is unknown; use auto, cpu, cuda or cuda:1\.$"),
        ("", r"^The device '' is unknown; use auto"),
        ("x" * 500, r"^The device 'x+… is unknown"),
        ("mps", r"^reverie runs on cpu and cuda, not on mps\.$"),
    ],
)
def test_a_device_that_nobody_has_is_an_error(name, message):
    with pytest.raises(UserError, match=message):
        find_device(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this is about a machine without a GPU")
def test_a_gpu_that_is_not_there_is_an_error_that_says_what_to_do():
    with pytest.raises(UserError, match=r"^The device cuda was asked for, .* Try cpu\.$"):
        find_device("cuda")


def test_a_gpu_beyond_the_last_is_an_error_that_says_how_many_there_are(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UserError, match=r"^The device cuda:3 was asked for, but torch finds 1 GPU;"):
        find_device("cuda:3")


def test_nobody_waits_for_a_cpu():
    synchronise(torch.device("cpu"))
