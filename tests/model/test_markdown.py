"""Text of people in Markdown: whatever it holds, a renderer that allows HTML shows it as text, in a cell of its own."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from reverie.model.markdown import plain, table
from tests.support.models import AWKWARD


def cells(markdown: str) -> list[list[str]]:
    """The cells of a table, row by row. Anything but text in one is a failure."""
    rows: list[list[str]] = []
    for token in MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(markdown):
        assert token.type not in ("html_block", "heading_open", "paragraph_open"), token
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline":
            assert {child.type for child in token.children} <= {"text"}
            rows[-1].append("".join(child.content for child in token.children))
    return rows


def as_shown(text: str) -> str:
    """Every space is a space; what cannot be seen, or turns the line around, is named."""
    shown = ""
    for letter in text:
        if letter.isspace():
            shown += " "
        elif unicodedata.category(letter).startswith("C") and letter != "\u200d":
            shown += f"(U+{ord(letter):04X})"
        else:
            shown += letter
    return shown.strip()


@given(st.text(st.characters(), max_size=20))
def test_any_text_is_that_text_in_its_cell_and_nothing_else(text):
    assert cells("\n".join(table(["name", "images"], [[plain(text), "12"]]))) == [
        ["name", "images"],
        [as_shown(text), "12"],
    ]


@pytest.mark.parametrize(
    "text",
    [*AWKWARD, "**bold**", "_em_", "~~gone~~", "# head", "&lt;", "![x](y)", "<b>", "\\|", "a\\", "1. one", "- x"],
)
def test_what_looks_like_markup_is_no_markup(text):
    assert cells("\n".join(table(["name"], [[plain(text)]])))[1] == [as_shown(text)]


@pytest.mark.parametrize("text", ["http://a.org", "https://a.org/b", "www.a.org", "WWW.a.org", "a@b.org", "ftp://a"])
def test_no_address_is_left_of_which_a_renderer_would_make_a_link(text):
    written = plain(text)
    assert cells("\n".join(table(["name"], [[written]])))[1] == [text]
    assert not any(sign in written.lower() for sign in ("://", "www.", "@"))


def test_words_for_people_stay_legible_where_they_hold_nothing_special():
    text = "held-out new images: 80.0 % of 12, wanted 90 % (see docs/model-folder); it's all"
    assert plain(text) == text


def test_a_table_ends_with_an_empty_line_so_that_what_follows_is_no_row():
    lines = table(["a", "b"], [["1", "2"]])
    assert lines == ["| a | b |", "| --- | --- |", "| 1 | 2 |", ""]
