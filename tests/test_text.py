"""How numbers, names and lists are written for people."""

import pytest

from reverie.text import (
    DASH,
    byte_size,
    did_you_mean,
    duration,
    first_line,
    listing,
    markdown_table,
    or_dash,
    percent,
    plural,
    shortened,
)


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [(1, "epoch", "1 epoch"), (2, "epoch", "2 epochs"), (0, "image", "0 images"), (3, "class", "3 classes")],
)
def test_a_noun_goes_with_its_number(number, noun, text):
    assert plural(number, noun) == text


def test_of_a_long_list_the_first_few_are_named():
    assert listing(["a", "b"]) == "'a', 'b'"
    assert listing([*"abcdefgh"]) == "'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'"
    assert listing([*"abcdefghij"]) == "'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h' and 2 more"
    assert listing([*"abc"], most=1, write=str) == "a and 2 more"


def test_what_is_not_known_is_a_dash():
    assert (or_dash(None), or_dash(0), percent(None)) == (DASH, "0", DASH)
    assert percent(0.8644) == "86.4 %"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (1, "1 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (2_400_000, "2.4 MB"),
        (34.4e9, "34.4 GB"),
        (999_700, "1 MB"),
    ],
)
def test_bytes_are_in_the_unit_that_people_would_choose(count, text):
    assert byte_size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (89, "89 s"), (90, "2 min"), (5399, "90 min"), (5400, "1.5 h")]
)
def test_times_are_too(seconds, text):
    assert duration(seconds) == text


class Unspeakable:
    def __repr__(self):
        raise RecursionError


def test_a_value_is_cut_where_it_is_too_long_for_a_message():
    assert shortened("abc") == "'abc'"
    assert shortened("x" * 100) == "'" + "x" * 58 + "…"
    assert len(shortened([*range(1000)])) == 60
    assert shortened(10**5000) == "a very large int"
    assert shortened(Unspeakable()) == "a very large Unspeakable"


def test_an_error_in_short_is_its_first_line_or_its_kind():
    assert first_line(ValueError("\n  too large \nand more")) == "too large"
    assert first_line(KeyboardInterrupt()) == "KeyboardInterrupt"


def test_a_word_that_is_near_is_suggested_whatever_its_case():
    assert did_you_mean("Epoch", ["epochs", "lr"]) == " Did you mean 'epochs'?"
    assert did_you_mean("ABD", ["abd"]) == " Did you mean 'abd'?"
    assert did_you_mean("zzz", ["epochs", "lr"]) == did_you_mean("x", []) == ""


def test_a_table_keeps_its_columns_whatever_stands_in_a_cell():
    table = markdown_table(["name", "a", "b"], [["x|y", "1", "2"]])
    assert table == "| name | a | b |\n|---|---:|---:|\n| x\\|y | 1 | 2 |\n"
    assert markdown_table(["name", "about"], [], numbers=False) == "| name | about |\n|---|---|\n"
