"""Pictures: real PNG files with something on them."""

import io

import numpy as np
import torch
from PIL import Image

from reverie.learner import dream_sheet as pictures
from reverie.learner.gallery import surest
from tests.methods.test_dreamer import dreamer


def opened(content: bytes) -> np.ndarray:
    image = Image.open(io.BytesIO(content))
    assert image.format == "PNG"
    return np.asarray(image.convert("RGB"))


def test_a_sheet_has_a_row_of_dreams_for_each_old_class():
    made = dreamer(classes=3)
    pixels = opened(pictures.dream_sheet(surest(made, pictures.SHEET_COLUMNS)))
    tile = 48
    assert pixels.shape[0] == 3 * (tile + 2) + 16
    assert pixels.shape[1] > pictures.SHEET_COLUMNS * tile


def test_a_class_without_dreams_has_an_empty_row():
    made = dreamer(classes=2)
    with torch.no_grad():
        made.teacher.head.weight.zero_()
        made.teacher.head.bias.copy_(torch.tensor([5.0, 0.0]))
    pixels = opened(pictures.dream_sheet(surest(made, pictures.SHEET_COLUMNS)))
    right = pixels[:, -pictures.SHEET_COLUMNS * 50 :]
    assert right[8:56].min() < 200
    assert right[60:].min() == 255


def test_the_plot_draws_every_curve():
    few = opened(pictures.accuracy_plot({"a": [[1.0, 0.5]]}, "title"))
    many = opened(pictures.accuracy_plot({"a": [[1.0, 0.5], [0.9, 0.4]], "b": [[1.0, 0.1]]}, "title"))
    assert few.shape[0] > 300
    colour = np.array([int(pictures.COLOURS[1][i : i + 2], 16) for i in (1, 3, 5)])
    assert (np.abs(many.astype(int) - colour).sum(2) < 10).sum() > 50
    assert (np.abs(few.astype(int) - colour).sum(2) < 10).sum() == 0


def test_names_are_drawn_in_their_own_letters_or_as_numbers():
    font = pictures._font(14)
    assert pictures._drawable("straße Ünïcödé ёж", 3, font) == "straße Ünïcödé ёж"
    assert pictures._drawable("日本語", 3, font) == "class 3"
    assert pictures._drawable("two\nlines\tand a tab", 3, font) == "two lines and a tab"
