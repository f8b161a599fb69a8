"""Plain values become typed records; what is wrong becomes one sentence: which key, what it must be, what it is."""

import datetime
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from reverie.config.schema import about, settings
from reverie.errors import UserError
from reverie.system import records
from reverie.system.files import json_bytes, write_json
from reverie.system.records import Record, as_record, build, described, parse_record, read_record, schema_of
from tests.support.processes import as_nobody


class Inner(Record):
    number: int = 0
    name: str | None = None


class Outer(Record):
    needed: int
    share: Annotated[float, Field(ge=0, le=1)] = 0.5
    above: Annotated[float, Field(gt=0)] = 1.0
    count: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    kind: Literal["apple", "pear"] = "apple"
    yes: bool = True
    text: str = ""
    one: Inner | None = None
    many: list[Inner] = Field(default_factory=list)
    numbers: list[Annotated[int, Field(ge=0)]] = Field(default_factory=list)
    by_name: dict[str, Annotated[int, Field(ge=0)]] = Field(default_factory=dict)
    inner_by_name: dict[str, Inner] = Field(default_factory=dict)
    either: int | str = 1
    maybe: Annotated[int, Field(ge=1)] | None = None


@settings("part")
class Part:
    count: Annotated[int, about("how many", ge=1, le=9)] = 1
    sizes: tuple[Annotated[int, Field(ge=1)], ...] = ()


@settings("")
class Whole:
    name: str
    part: Part = Part()
    options: Mapping[str, Any] = field(default_factory=dict)


# What may be wrong with a value, whoever has it: what is given, and what is said.
WRONG = [
    ({}, "'needed' is missing."),
    ({"needed": "5"}, "needed must be a whole number, not '5'."),
    ({"needed": 5.0}, "needed must be a whole number, not 5.0."),
    ({"needed": True}, "needed must be a whole number, not True."),
    ({"needed": None}, "needed must be a whole number, not None."),
    ({"needed": 1, "share": 1.5}, "share must be a number from 0 to 1, not 1.5."),
    ({"needed": 1, "share": "half"}, "share must be a number from 0 to 1, not 'half'."),
    ({"needed": 1, "above": 0}, "above must be a number above 0, not 0."),
    ({"needed": 1, "count": 0}, "count must be a whole number from 1 to 1,000,000, not 0."),
    ({"needed": 1, "count": 10**30}, f"count must be a whole number from 1 to 1,000,000, not {10**30}."),
    ({"needed": 1, "kind": "appel"}, "kind must be one of apple, pear, not 'appel'. Did you mean 'apple'?"),
    ({"needed": 1, "yes": 1}, "yes must be true or false, not 1."),
    ({"needed": 1, "text": 5}, "text must be text, not 5."),
    ({"needed": 1, "one": 5}, "one must be keys and values or null, not 5."),
    ({"needed": 1, "one": {"number": "x"}}, "one.number must be a whole number, not 'x'."),
    ({"needed": 1, "one": {"number": None}}, "one.number must be a whole number, not None."),
    ({"needed": 1, "many": [{}, {"number": "x"}]}, "many.1.number must be a whole number, not 'x'."),
    ({"needed": 1, "many": {"number": 1}}, "many must be a list of keys and values, not {'number': 1}."),
    ({"needed": 1, "numbers": [1, -2]}, "numbers must be a list of whole numbers of at least 0, not [1, -2]."),
    ({"needed": 1, "by_name": {"a": -1}}, "by_name.a must be a whole number of at least 0, not -1."),
    ({"needed": 1, "inner_by_name": {"a": {"name": 3}}}, "inner_by_name.a.name must be text or null, not 3."),
    ({"needed": 1, "either": [1]}, "either must be a whole number or text, not [1]."),
    ({"needed": 1, "maybe": 0}, "maybe must be a whole number of at least 1 or null, not 0."),
]


@pytest.mark.parametrize(("values", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_is_wrong_is_one_sentence_with_the_key_what_is_wanted_and_what_it_is(values, message):
    with pytest.raises(UserError) as told:
        as_record(Outer, values)
    assert str(told.value) == message
    with pytest.raises(UserError) as told:
        build(Outer, values)
    assert str(told.value) == message


@pytest.mark.parametrize("values", [5, None, [], "text", True])
def test_what_holds_no_keys_is_said_to_be_that(values):
    with pytest.raises(UserError, match="must be keys and values, not"):
        as_record(Outer, values)
    with pytest.raises(UserError, match="method must hold keys and values, not"):
        build(Part, values, "method.")


def test_a_long_value_is_cut_in_the_message():
    with pytest.raises(UserError) as told:
        build(Outer, {"needed": "x" * 10_000})
    assert len(str(told.value)) < 120


# --- build


def test_lists_become_tuples_and_keys_become_sections():
    made = build(Whole, {"name": "x", "part": {"count": 3, "sizes": [4, 5]}, "options": {"a": [1]}})
    assert made == Whole("x", Part(3, (4, 5)), {"a": [1]})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "x", "prat": {}}, "Unknown key 'prat'. Did you mean 'part'?"),
        ({"name": "x", "zzz": 1}, "Unknown key 'zzz'. There are name, part, options."),
        ({"name": "x", 1: 2}, "Unknown key '1'. There are name, part, options."),
        ({"name": "x", "part": {"cont": 1}}, "Unknown key 'part.cont'. Did you mean 'part.count'?"),
        ({"name": "x", "part": {"count": 10}}, "part.count must be a whole number from 1 to 9, not 10."),
        ({"part": {}}, "'name' is missing."),
        ({"name": "x", "part": 5}, "part must be keys and values, not 5."),
        ({"name": "x", "part": {"sizes": [1, "b"]}}, "part.sizes must be a list of whole numbers of at least 1, not "),
    ],
)
def test_keys_and_values_of_sections_are_looked_at_one_by_one(values, message):
    with pytest.raises(UserError) as told:
        build(Whole, values)
    assert str(told.value).startswith(message)


def test_where_a_key_stands_is_said_before_it():
    with pytest.raises(UserError, match=r"^preset\.part\.count must be"):
        build(Whole, {"name": "x", "part": {"count": 0}}, "preset.")
    with pytest.raises(UserError, match=r"^Unknown key 'preset\.nam'\. Did you mean 'preset\.name'\?$"):
        build(Whole, {"nam": "x"}, "preset.")
    with pytest.raises(UserError, match=r"^'preset\.name' is missing\.$"):
        build(Whole, {}, "preset.")


@pytest.mark.parametrize("endless", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", ["part.count", "options.share", "options.many"])
def test_a_number_that_is_none_is_refused_wherever_it_stands(endless, place):
    section, _, key = place.partition(".")
    value = [1.0, [endless]] if key == "many" else endless
    with pytest.raises(UserError) as told:
        build(Whole, {"name": "x", section: {key: value}})
    assert str(told.value) == f"{place} must be a finite number, not {endless!r}."


def test_a_date_is_text_and_no_number():
    day = datetime.date(2026, 1, 2)  # as YAML reads 2026-01-02
    assert build(Whole, {"name": day}).name == "2026-01-02"
    with pytest.raises(UserError, match=r"part\.count must be a whole number from 1 to 9, not datetime\.date"):
        build(Whole, {"name": "x", "part": {"count": day}})


@pytest.mark.parametrize("value", [Path("x"), b"x", object(), {1, 2}], ids=["path", "bytes", "object", "set"])
def test_what_is_neither_plain_nor_a_date_never_becomes_text(value):
    for values in ({"name": value}, {"name": "x", "options": {"some": [value]}}):
        with pytest.raises(
            UserError, match=r"^(name|options\.some) must be a number, text, true, false, null or a list"
        ):
            build(Whole, values)


def deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (deep(50), "part.count must be a whole number from 1 to 9, not [[["),
        (deep(150), "part.count is nested too deeply."),
        (deep(50_000), "part.count is nested too deeply."),
        (endless(), "part.count is nested too deeply."),
        (10**4000, "part.count must be a whole number from 1 to 9, not 1000"),
        (10**5000, "part.count must be a smaller number."),
        (-(10**5000), "part.count must be a smaller number."),
        ("caf\udce9", "part.count holds bytes that are no text: 'caf\\udce9'."),
        ({1: 2}, "part.count must be a whole number from 1 to 9, not {1: 2}."),
        (b"bytes", "part.count must be a number, text, true, false, null or a list, not b'bytes'."),
        (object(), "part.count must be a number, text, true, false, null or a list, not <object"),
    ],
    ids=["deep", "deeper", "deepest", "endless", "4,000 digits", "5,000 digits", "negative", "surrogate", *"abc"],
)
def test_odd_values_are_refused_by_key(value, message):
    with pytest.raises(UserError) as told:
        build(Whole, {"name": "x", "part": {"count": value}})
    assert str(told.value).startswith(message)


def test_keys_that_are_neither_text_nor_numbers_are_refused():
    with pytest.raises(UserError, match=r"^method holds what is no plain value: "):
        build(Whole, {"name": "x", "options": {(1, 2): 3}}, "method.")


keys = st.integers() | st.text(st.characters(exclude_categories=("C", "Z")), max_size=4)  # a message names them
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates() | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)


@hypothesis.settings(deadline=None)
@given(st.dictionaries(st.sampled_from([*Outer.model_fields, "part", "name"]), anything, max_size=4))
def test_whatever_stands_in_a_file_is_made_or_refused_in_one_line(values):
    for cls in (Outer, Whole):
        try:
            assert isinstance(build(cls, values), cls)
        except UserError as told:
            assert str(told).endswith((".", "?"))
            assert len(str(told).splitlines()) == 1


# --- dataclasses of other packages


@dataclass(frozen=True)
class Lists:
    many: tuple[int, ...] = ()
    pair: tuple[int, str] = (1, "a")
    share: float = 0.5
    name: str | None = None


def test_a_plain_dataclass_will_do_and_each_item_of_a_list_has_its_type():
    assert build(Lists, {"many": [1, 2, 3], "pair": [2, "b"]}) == Lists((1, 2, 3), (2, "b"))
    assert build(Lists, {"share": 1}).share == 1.0
    for values, message in (
        ({"many": [1, "b"]}, "method.many must be a list of whole numbers, not [1, 'b']."),
        ({"pair": ["b", 2]}, "method.pair must be a list of 2, not ['b', 2]."),
        ({"pair": [1, "b", 3]}, "method.pair must be a list of 2, not [1, 'b', 3]."),
        ({"share": "0.5"}, "method.share must be a number, not '0.5'."),
        ({"share": True}, "method.share must be a number, not True."),
        ({"name": 5}, "method.name must be text or null, not 5."),
        ({"nam": "x"}, "Unknown key 'method.nam'. Did you mean 'method.name'?"),
    ):
        with pytest.raises(UserError) as told:
            build(Lists, values, "method.")
        assert str(told.value) == message


# --- settings that are made in Python


def test_a_section_is_checked_however_it_is_made():
    for make in (lambda: Part(0), lambda: Part(count=0), lambda: build(Part, {"count": 0}, "part.")):
        with pytest.raises(UserError, match=r"^part\.count must be a whole number from 1 to 9, not 0\.$"):
            make()
    with pytest.raises(UserError, match=r"Unknown key 'part.cont'. Did you mean 'part.count'\?"):
        Part(cont=1)
    with pytest.raises(UserError, match=r"part.sizes must be a list of whole numbers of at least 1, not \(1, 0\)"):
        Part(1, (1, 0))
    with pytest.raises(UserError, match=r"^'name' is missing"):
        Whole()
    with pytest.raises(UserError, match=r"^part must be a Part, not {'count': 1}"):
        Whole("x", {"count": 1})


def test_a_value_that_is_given_twice_or_too_many_are_a_mistake_in_the_program():
    for make in (lambda: Part(1, count=2), lambda: Part(1, (1,), 3)):
        with pytest.raises(TypeError, match="Part takes count, sizes, each of them once"):
            make()


# --- records


def test_a_record_cannot_be_changed_and_keeps_what_a_later_version_adds():
    made = as_record(Inner, {"number": 3, "added": {"later": [1]}})
    with pytest.raises(ValidationError, match="frozen"):
        made.number = 4
    assert made.as_dict() == {"number": 3, "name": None, "added": {"later": [1]}}
    assert made.replace(name="x").as_dict() == {"number": 3, "name": "x", "added": {"later": [1]}}
    assert made.name is None


def test_replacing_looks_at_the_new_values_as_at_the_first():
    made = Outer(needed=1, one=Inner(number=2))
    assert made.replace(count=5).count == 5
    for changes in ({"count": 0}, {"count": "5"}, {"one": 5}, {"share": math.nan}):
        with pytest.raises(UserError, match=rf"^{next(iter(changes))} must be "):
            made.replace(**changes)
    for name in ("cuont", "schema", "as_dict"):
        with pytest.raises(TypeError, match=f"^Outer has no '{name}'."):
            made.replace(**{name: 5})


def test_no_whole_number_of_a_file_is_larger_than_any_count():
    for values, key in (
        ({"needed": 10**300}, "needed"),
        ({"needed": 1, "many": [{"number": -(10**300)}]}, "many.number"),
        ({"needed": 1, "by_name": {"a": 2**63}}, "by_name.a"),
        ({"needed": 1, "added": {"later": [10**300]}}, "added.later"),
    ):
        with pytest.raises(UserError, match=rf"^{key} must be a smaller number, not .{{1,61}}\.$"):
            as_record(Outer, values)
    assert as_record(Outer, {"needed": 2**63 - 1}).needed == 2**63 - 1


class Named(Record):
    schema_version: Annotated[int, Field(alias="schema", ge=1)] = 1
    pair: Annotated[tuple[int, str], Field(strict=False)] = (1, "a")


def test_a_field_is_written_under_its_name_in_the_file_and_tuples_are_lists():
    assert Named(schema_version=2).as_dict() == {"schema": 2, "pair": [1, "a"]}
    assert as_record(Named, {"schema": 3, "pair": [2, "b"]}) == Named(schema_version=3, pair=(2, "b"))
    assert Named(schema_version=2).replace(schema_version=3).as_dict()["schema"] == 3
    with pytest.raises(UserError, match=r"^schema must be a whole number of at least 1, not 0\.$"):
        as_record(Named, {"schema": 0})


class Sparse(Record):
    sparse: ClassVar[bool] = True
    number: int | None = None
    name: str | None = None
    inner: Inner | None = None


class Holder(Record):
    entries: list[Sparse]


def test_what_is_none_is_left_out_of_a_sparse_record_and_of_no_other():
    made = Holder(entries=[Sparse(number=0), Sparse(name="x", inner=Inner())])
    assert made.as_dict() == {"entries": [{"number": 0}, {"name": "x", "inner": {"number": 0, "name": None}}]}
    assert as_record(Holder, made.as_dict()) == made


def test_what_was_a_dictionary_can_be_asked_as_one_for_one_more_version():
    made = Outer(needed=1, one=Inner(number=2))
    with pytest.warns(DeprecationWarning, match=r"\['one'\] is deprecated: use \.one") as told:
        assert made["one"] == {"number": 2, "name": None}
    assert [one.filename for one in told] == [__file__]  # where it is to be changed
    for name in ("nowhere", "as_dict", "model_fields", "sparse"):  # what Python knows besides was never in it
        with pytest.warns(DeprecationWarning), pytest.raises(KeyError, match=name):
            made[name]


def test_it_has_the_keys_that_its_file_has():
    made, plain = Named(schema_version=2), {"schema": 2, "pair": [1, "a"]}
    with pytest.warns(DeprecationWarning, match=r"\['schema'\] is deprecated: use \.schema_version"):
        assert made["schema"] == 2
    with pytest.warns(DeprecationWarning), pytest.raises(KeyError, match="name"):
        Sparse(number=1)["name"]
    for answer in (
        lambda: made.get("schema") == 2,
        lambda: made.get("nowhere") is None,
        lambda: made.get("nowhere", 5) == 5,
        lambda: "schema" in made,
        lambda: "schema_version" not in made,
        lambda: made.keys() == plain.keys(),
        lambda: [*made.values()] == [*plain.values()],
        lambda: made.items() == plain.items(),
        lambda: [*made] == [*plain],
        lambda: len(made) == 2,
        lambda: dict(made) == plain,
        lambda: {**made} == plain,
    ):
        with pytest.warns(DeprecationWarning, match="is deprecated: use"):
            assert answer()


def test_a_record_is_true_though_nothing_stands_in_it():
    assert bool(Sparse()) and Sparse().as_dict() == {}


no_text = st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF, exclude_categories=())  # bytes, in Python's words
any_text = st.text(st.characters() | no_text, max_size=5)


@hypothesis.settings(deadline=None)
@given(st.lists(any_text, max_size=3), st.dictionaries(any_text, st.integers(0, 9), max_size=3), any_text)
def test_names_survive_the_way_through_a_file_whatever_they_are(names, counts, text):
    made = Outer(needed=1, many=[Inner(name=name) for name in names], by_name=counts, text=text)
    assert parse_record(Outer, json_bytes(made.as_dict())) == made


def test_names_whose_bytes_are_no_text_survive_the_way_through_a_file(tmp_path):
    odd = "ch\udce9rie"
    made = Outer(needed=1, text=odd, by_name={odd: 3}, inner_by_name={odd: Inner(name=odd)}, either=odd)
    write_json(tmp_path / "x.json", made.as_dict())
    again = read_record(Outer, tmp_path / "x.json", "")
    assert again == made
    assert [*again.by_name] == [*again.inner_by_name] == [odd]


# --- files


def test_a_file_is_read_back_as_it_was_written(tmp_path):
    made = Outer(needed=1, many=[Inner(number=2)], numbers=[1, 2], inner_by_name={"a": Inner()})
    write_json(tmp_path / "x.json", made.as_dict())
    assert read_record(Outer, tmp_path / "x.json", "") == made


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is damaged: it is not JSON."),
        (b'{"needed": 1', "is damaged: it is not JSON."),
        (b"\x89PNG\r\n\x1a\n\0\xff", "is damaged: it is not JSON."),
        (b"[" * 100_000, "is damaged: it is not JSON."),
        (b'{"needed": ' + b"9" * 5000 + b"}", "is damaged: it is not JSON."),
        (b"null", "is damaged: it must be keys and values, not None."),
        (b"[1, 2]", "is damaged: it must be keys and values, not [1, 2]."),
        (b'{"share": 0.5}', "is damaged: 'needed' is missing."),
        (b'{"needed": 1, "share": NaN}', "is damaged: share must be a number from 0 to 1, not nan."),
        (b'{"needed": 1, "many": [{"number": 1}, 5]}', "is damaged: many.1 must be keys and values, not 5."),
    ],
    ids=lambda value: repr(value[:20]) if isinstance(value, bytes) else "",
)
def test_a_damaged_or_foreign_file_is_named_with_what_is_wrong_and_what_to_do(tmp_path, content, message):
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(UserError) as told:
        read_record(Outer, tmp_path / "x.json", "Name another.")
    assert str(told.value) == f"{tmp_path / 'x.json'} {message} Name another."


def test_a_file_that_is_missing_or_may_not_be_read_is_said_to_be_that(tmp_path):
    with pytest.raises(UserError, match=r"x\.json cannot be read: No such file or directory\. Name another\.$"):
        read_record(Outer, tmp_path / "x.json", "Name another.")
    with pytest.raises(UserError, match=r" cannot be read: Is a directory\. Name another\.$"):
        read_record(Outer, tmp_path, "Name another.")
    (tmp_path / "x.json").write_text("{}")
    (tmp_path / "x.json").chmod(0)
    with as_nobody(), pytest.raises(UserError, match=r"x\.json cannot be read: Permission denied\. Name another\.$"):
        read_record(Outer, tmp_path / "x.json", "Name another.")


def test_a_file_that_no_record_fills_is_not_even_read(tmp_path, monkeypatch):
    with (tmp_path / "x.json").open("wb") as file:
        file.truncate(records.MOST_BYTES + 1)  # takes no room on the disk

    def refuse(path):
        raise AssertionError("it is read")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(UserError, match=r"x\.json is too large for what it should be\. Name another\.$"):
        read_record(Outer, tmp_path / "x.json", "Name another.")


# --- in words


def test_what_a_value_may_be_is_said_in_words():
    whole = schema_of(Outer)
    told = {name: described(schema, whole) for name, schema in whole["properties"].items()}
    assert told["share"] == "a number from 0 to 1"
    assert told["above"] == "a number above 0"
    assert told["kind"] == "one of apple, pear"
    assert told["one"] == "keys and values or null"
    assert told["numbers"] == "a list of whole numbers of at least 0"
    assert told["maybe"] == "a whole number of at least 1 or null"
    assert described({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, {}) == (
        "a number above 0 and below 1"
    )
    assert json.dumps(whole)  # for editors, too
