"""Sheets of dreams: real PNG files with something on them."""

import torch

from reverie.learner.dream_sheet import COLUMNS, ROWS, TILE, _drawable, _font, draw_sheet
from reverie.learner.gallery import surest
from tests.support.dreams import dreamer
from tests.support.images import opened


def test_a_sheet_has_a_row_of_dreams_for_each_old_class():
    made = dreamer(classes=3)
    pixels = opened(surest(made, COLUMNS).sheet(confidences=False))
    assert pixels.shape[0] == 3 * (TILE + 2) + 16
    assert pixels.shape[1] > COLUMNS * TILE


def test_a_class_without_dreams_has_an_empty_row():
    made = dreamer(classes=2)
    with torch.no_grad():
        made.teacher.head.weight.zero_()
        made.teacher.head.bias.copy_(torch.tensor([5.0, 0.0]))
    pixels = opened(surest(made, COLUMNS).sheet(confidences=False))
    right = pixels[:, -COLUMNS * 50 :]
    assert right[8:56].min() < 200
    assert right[60:].min() == 255


def test_more_classes_than_a_person_looks_at_are_not_drawn():
    nothing = (torch.empty(0, 1, 8, 8, dtype=torch.uint8), torch.empty(0))
    many = [str(label) for label in range(ROWS + 50)]
    pixels = opened(draw_sheet(many, [nothing] * ROWS, columns=1, size=8))
    assert pixels.shape[0] == ROWS * (TILE + 2) + 16


def test_names_are_drawn_in_their_own_letters_or_as_numbers():
    font = _font(14)
    assert _drawable("straße Ünïcödé ёж", 3, font) == "straße Ünïcödé ёж"
    assert _drawable("日本語", 3, font) == "class 3"
    assert _drawable("two\nlines\tand a tab", 3, font) == "two lines and a tab"
