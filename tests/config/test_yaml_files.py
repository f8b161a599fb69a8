"""YAML as people write it, and files that were made to do harm."""

import math
import time
from contextlib import suppress
from itertools import pairwise

import hypothesis
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from reverie.config.layers import parse_setting
from reverie.config.yaml_files import MOST_BYTES, TooLarge, parse_yaml
from reverie.errors import UserError
from reverie.runs.configure import configure

# Every line stands for nine times what the line before stands for.
LINES = "abcdefghijkl"
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{this}: &{this} [{', '.join([f'*{before}'] * 9)}]\n" for before, this in pairwise(LINES)
)
ALIASES = {
    "an alias bomb": BOMB,
    "a bomb of merged keys": "a0: &a0 {k: 1}\n"
    + "".join(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}\n" for i in range(1, 40)),
    "a list in itself": "a: &a [*a]",
    "keys and values in themselves": "a: &a {b: *a}",
    "a list in a list in itself": "a: &a [&b [*a, *b]]",
}
DEEP = {
    "deep lists": "a: " + "[" * 1000,
    "deep keys": "a: " + "{b: " * 1000,
    "deep indentation": "".join(" " * depth + "a:\n" for depth in range(600)),
}


@pytest.mark.parametrize("text", ALIASES.values(), ids=ALIASES)
def test_aliases_that_would_grow_without_bound_or_never_end_are_refused_at_once(tmp_path, text):
    began = time.process_time()
    with pytest.raises(TooLarge, match="it holds more than 20,000 values"):
        parse_yaml(text)
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(UserError, match=r"mine\.yaml is not valid YAML: it holds more than 20,000 values\.$"):
        configure(str(tmp_path / "mine.yaml"))
    assert time.process_time() - began < 1  # some thousandths, in truth


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP)
def test_what_is_nested_too_deeply_is_refused(tmp_path, text):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(UserError, match=r"mine\.yaml is not valid YAML: it is nested too deeply\.$"):
        configure(str(tmp_path / "mine.yaml"))


def test_a_file_that_is_too_large_is_not_even_looked_at(tmp_path):
    (tmp_path / "mine.yaml").write_bytes(b"# " + b"x" * MOST_BYTES)
    with pytest.raises(UserError, match=r"mine\.yaml is not valid YAML: it is larger than 200 kB\.$"):
        configure(str(tmp_path / "mine.yaml"))


def test_a_document_may_hold_so_many_values_and_no_more(monkeypatch):
    monkeypatch.setattr("reverie.config.yaml_files.MOST_VALUES", 9)
    assert parse_yaml("a: &x [1, 2]\nb: *x\n") == {"a": [1, 2], "b": [1, 2]}  # with both keys, and itself: nine
    with pytest.raises(TooLarge, match="more than 9 values"):
        parse_yaml("a: &x [1, 2]\nb: *x\nc:\n")


def test_a_setting_that_would_do_harm_is_refused_alike():
    for value in ("[" * 1000, "&a [*a]", BOMB):
        with pytest.raises(UserError, match=r"A setting's value cannot be read: it (holds more|is nested)"):
            configure("digits-5", settings=[f"train.epochs={value}"])


def test_aliases_stand_for_what_they_name():
    assert parse_yaml("a: &x {b: 1}\nc: *x\nd: [*x, *x]\n") == {"a": {"b": 1}, "c": {"b": 1}, "d": [{"b": 1}, {"b": 1}]}
    assert parse_yaml("a: &x {b: 1, c: 2}\nd: {<<: *x, c: 3}\n")["d"] == {"b": 1, "c": 3}


def test_a_preset_may_use_aliases(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "extends: digits-5\n"
        "methods:\n"
        "  lwf: &few {train: {epochs: 3, milestones: [1]}}\n"
        "  abd: *few\n"
    )  # fmt: skip
    for method in ("lwf", "abd"):
        assert configure(str(tmp_path / "mine.yaml"), method).train.epochs == 3
    assert configure(str(tmp_path / "mine.yaml"), "base").train.epochs == 20


@pytest.mark.parametrize("text", ["a: 1\nb: 2\na: 3", "{a: 1, a: 1}", "x: {y: [{a: 1, b: 2, a: 1}]}", "1: a\n1: b"])
def test_a_key_that_is_given_twice_is_refused(text):
    with pytest.raises(yaml.YAMLError, match="is given twice"):
        parse_yaml(text)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1e-3", 1e-3),
        ("1e3", 1e3),
        ("1E+3", 1e3),
        ("-2.5e-4", -2.5e-4),
        ("5.e2", 500.0),
        (".5e3", 500.0),
        ("+.5e-3", 5e-4),
        ("1_000e3", 1e6),
        ("0.001", 1e-3),
        ("1e400", math.inf),
    ],
)
def test_numbers_with_an_exponent_are_numbers(text, number):
    assert parse_yaml(text) == number
    assert parse_setting(f"train.lr={text}") == {"train": {"lr": number}}


@pytest.mark.parametrize("text", ["e3", "1e", "1e3x", "abc1e3", ".e3", "1e3.5", "--1e3"])
def test_what_only_looks_like_one_is_text(text):
    assert parse_yaml(text) == text


def test_what_we_have_written_ourselves_is_read_as_it_was_though_a_digest_looks_like_a_number():
    digests = {"reference": "12345e7890123456", "fingerprint": "1234567890123456", "other": "0e1"}
    numbers = {"lr": 1e-3, "decay": 1e-5, "large": 1e22}
    written = yaml.safe_dump({**digests, **numbers})
    assert parse_yaml(written, exponents=False) == {**digests, **numbers}


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.system ['true']",
        "!!python/name:os.system",
        "!!bool x",
        "!!int ''",
        "!!float ''",
        "!!set [1]",
        "!!timestamp x",
        "!!omap {a: 1}",
        "? [1, 2]\n: 3",
        "*nobody",
        "a: 1\n---\nb: 2",
        "\ta: 1",
        "[1",
    ],
)
def test_what_is_no_plain_yaml_is_an_error_of_yaml(text):
    with pytest.raises(yaml.YAMLError):
        parse_yaml(text)


@pytest.mark.parametrize("text", ["9" * 5000, "2026-13-45", "!!int x", "2026-01-01 99:99:99"])
def test_numbers_and_dates_that_are_none_are_errors_of_value(text):
    with pytest.raises(ValueError, match=r"."):
        parse_yaml(text)


def test_an_empty_file_holds_nothing():
    assert parse_yaml("") is parse_yaml("# only a remark\n") is None


words = st.text(st.characters(codec="utf-8", exclude_categories=("C",)), max_size=8)
numbers = st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False)
plain_values = st.recursive(
    st.none() | st.booleans() | numbers | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=10,
)


@hypothesis.settings(deadline=None)
@given(plain_values)
def test_plain_values_come_back_as_they_were_written(value):
    assert parse_yaml(yaml.safe_dump(value, allow_unicode=True), exponents=False) == value


@hypothesis.settings(deadline=None)
@given(st.text(max_size=40) | st.text("[]{},:&*!<>-?|'\"ab1 \n#%e.", max_size=40))
def test_whatever_a_person_types_is_a_value_or_an_error_that_is_explained(text):
    with suppress(yaml.YAMLError, ValueError):
        parse_yaml(text)
    assert "train" in parse_setting(f"train.epochs={text}")
