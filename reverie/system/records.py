"""Records: what stands in a file or in settings, typed and bounded; and the sentence for what is not as it should be.

`Record` is the base of everything that is read back from disk. `build` makes an instance of any typed class from plain
values, as YAML and JSON have them; a wrong value becomes one sentence: which key, what it must be, and what it is.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import json
import math
import warnings
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    model_serializer,
)

from reverie.errors import UserError, explaining
from reverie.text import did_you_mean, shortened

Made = TypeVar("Made")
RecordType = TypeVar("RecordType", bound="Record")
Schema = Mapping[str, Any]  # as JSON schema has it
MOST_BYTES = 256 << 20  # of a file that is read as a record; ours are far smaller
DATES = datetime.date | datetime.time  # a moment is a date, too
LARGEST = 2**63 - 1  # of whole numbers, whatever they count
MOST_DEPTH = 100  # of lists and dictionaries inside each other


class Record(BaseModel):
    """Fields with types and bounds, which cannot be changed; `replace` makes another, and looks at it as at the first.

    What a later version adds to a file, or a person, is kept as it is.
    """

    model_config = ConfigDict(
        strict=True, frozen=True, extra="allow", allow_inf_nan=False, populate_by_name=True, protected_namespaces=()
    )
    sparse: ClassVar[bool] = False  # true: what is none is left out of the file

    def replace(self, **changes: Any) -> Self:
        """The same with other values for some fields. Raises UserError for a value that cannot be."""
        known = {name: getattr(self, name) for name in type(self).model_fields} | (self.model_extra or {})
        for name in changes:
            if name not in known:
                raise TypeError(f"{type(self).__name__} has no {name!r}.{nearest_key(name, known)}")
        values = {**known, **changes}
        try:
            return type(self)(**values)
        except ValidationError as error:
            raise UserError(sentence(error, type(self), values)) from None

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `as_record` reads them back."""
        plain: dict[str, Any] = _lists(self.model_dump(by_alias=True))  # its JSON mode spoils keys that are no text
        return plain

    @model_serializer(mode="wrap")
    def _without_none(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        plain: dict[str, Any] = serialize(self)
        return {name: value for name, value in plain.items() if value is not None} if self.sparse else plain

    # --- results and ledgers were dictionaries in 0.1; all of this goes away with the next version

    def __getitem__(self, name: str) -> Any:
        return self._as_dictionary(f"[{name!r}]", f".{self._field(name)}")[name]

    def __contains__(self, name: object) -> bool:
        return name in self._as_dictionary(f"{name!r} in", ".as_dict()")

    def __iter__(self) -> Iterator[str]:  # type: ignore[override]  # pydantic's has pairs
        return iter(self._as_dictionary("a loop over it", ".as_dict()"))

    def __len__(self) -> int:
        return len(self._as_dictionary("len()", ".as_dict()"))

    def __bool__(self) -> bool:
        return True  # however many names it has

    def get(self, name: str, default: Any = None) -> Any:
        return self._as_dictionary(f".get({name!r})", f".{self._field(name)}").get(name, default)

    def keys(self) -> KeysView[str]:
        return self._as_dictionary(".keys()", ".as_dict()").keys()

    def values(self) -> ValuesView[Any]:
        return self._as_dictionary(".values()", ".as_dict()").values()

    def items(self) -> ItemsView[str, Any]:
        return self._as_dictionary(".items()", ".as_dict()").items()

    def _as_dictionary(self, asked: str, better: str) -> dict[str, Any]:
        warnings.warn(f"{asked} is deprecated: use {better}", DeprecationWarning, stacklevel=3)
        return self.as_dict()

    def _field(self, name: str) -> str:
        """What Python calls what a file calls `name`."""
        fields = type(self).model_fields.items()
        return next((field for field, about in fields if about.alias == name), name)


@functools.cache
def adapter(cls: type) -> TypeAdapter[Any]:
    """What validates instances of a class. To make one takes longer than to use it."""
    return TypeAdapter(cls)


@functools.cache
def schema_of(cls: type) -> Schema:
    """The JSON schema of a typed class."""
    return adapter(cls).json_schema()


def build(cls: type[Made], values: Mapping[str, Any], where: str = "") -> Made:
    """An instance of a dataclass or a Record from plain values. `where` stands before each key in a message."""
    if not isinstance(values, Mapping):
        raise UserError(f"{where.rstrip('.') or 'It'} must hold keys and values, not {shortened(values)}.")
    if dataclasses.is_dataclass(cls):
        known = [field.name for field in dataclasses.fields(cls)]
        for key in values:
            if key not in known:
                raise UserError(f"Unknown key '{where}{key}'.{nearest_key(str(key), known, where)}")
    _refuse_what_json_lacks(values, where)
    try:
        raw = json.dumps(_lists(values), default=_date_text)
    except TypeError:  # keys that are neither text nor numbers
        raise UserError(f"{where.rstrip('.') or 'It'} holds what is no plain value: {shortened(values)}.") from None
    try:
        made: Made = adapter(cast(Any, cls)).validate_json(raw, strict=True)
    except ValidationError as error:
        raise UserError(sentence(error, cls, values, where)) from None
    return made


def read_record(cls: type[RecordType], file: Path, advice: str) -> RecordType:
    """From a JSON file. `advice` tells the person what to do if the file is not what it should be."""
    with explaining("read", advice, file):
        if file.stat().st_size > MOST_BYTES:
            raise UserError(f"{file} is too large for what it should be. {advice}")
        raw = file.read_bytes()
    try:
        return parse_record(cls, raw)
    except UserError as error:
        raise UserError(f"{file} is damaged: {error} {advice}") from None


def parse_record(cls: type[RecordType], raw: bytes | str) -> RecordType:
    """From JSON; the message of the error says what is wrong with it, and not where it comes from."""
    try:
        values = json.loads(raw)
    except (ValueError, RecursionError):
        raise UserError("it is not JSON.") from None
    return as_record(cls, values)


def as_record(cls: type[RecordType], values: Any) -> RecordType:
    """From plain values, as JSON has them."""
    if _depth(values) > MOST_DEPTH:
        raise UserError("it is nested too deeply.")
    try:
        made = cls.model_validate(values)
    except ValidationError as error:
        raise UserError(sentence(error, cls, values)) from None
    for key, leaf in _leaves(values, ""):
        if isinstance(leaf, int) and abs(leaf) > LARGEST:
            raise UserError(f"{key} must be a smaller number, not {shortened(leaf)}.")
    return made


def _depth(values: Any) -> int:
    """How many lists and dictionaries lie inside each other; counted no further than matters."""
    depth, level = 0, [values]
    while level and depth <= MOST_DEPTH:
        level = [
            item
            for value in level
            if isinstance(value, Mapping | list | tuple)
            for item in (value.values() if isinstance(value, Mapping) else value)
        ]
        depth += 1
    return depth


def _lists(value: Any) -> Any:
    """As JSON has it: a tuple is a list."""
    if isinstance(value, Mapping):
        return {key: _lists(item) for key, item in value.items()}
    return [_lists(item) for item in value] if isinstance(value, list | tuple) else value


# --- from a validation error to a sentence

BOOLEANS = {True: "true (as yes and on are read, too)", False: "false (as no and off are read, too)"}  # in YAML


def sentence(error: ValidationError, cls: type, values: Any = None, where: str = "") -> str:
    """The first thing that is wrong: which key, what it must be, what it is."""
    first = error.errors(include_url=False)[0]
    schema, path = _locate(schema_of(cls), first["loc"])
    key = where + ".".join(map(str, path))
    if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        above, _ = _locate(schema_of(cls), first["loc"][:-1])
        inner = where + "".join(f"{part}." for part in first["loc"][:-1])
        unknown = str(first["loc"][-1])
        known = _without_null(above, schema_of(cls)).get("properties", {})
        return f"Unknown key '{inner}{unknown}'.{nearest_key(unknown, known, inner)}"
    if first["type"] in ("missing", "missing_argument"):
        return f"'{where}{'.'.join(map(str, first['loc']))}' is missing."
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    if first["type"] == "dataclass_exact_type":
        return f"{key} must be a {first['ctx']['class_name']}, not {shortened(first['input'])}."
    value = _at(values, path) if values is not None else first["input"]
    wanted = described(schema, schema_of(cls))
    key = key or "it"
    hint = did_you_mean(str(value), map(str, schema.get("enum", ())))
    is_word = isinstance(value, bool) and "enum" in schema  # that YAML takes for a boolean
    return f"{key} must be {wanted}, not {BOOLEANS[value] if is_word else shortened(value)}.{hint}"


def nearest_key(unknown: str, known: Iterable[str], where: str = "") -> str:
    """Which key may be meant; or, where none is near, which there are."""
    names = [*known]
    near = did_you_mean(unknown, names, cutoff=0.7)
    if near:
        return near.replace("mean '", f"mean '{where}")
    return f" There are {', '.join(names)}." if names else ""


def described(schema: Schema, whole: Schema) -> str:
    """What a value may be, in words: a whole number from 1 to 100, or null."""
    schema = _resolved(schema, whole)
    if "anyOf" in schema:
        choices = [described(choice, whole) for choice in schema["anyOf"]]
        return " or ".join(dict.fromkeys(choices))
    if "enum" in schema:
        return f"one of {', '.join(map(str, schema['enum']))}"
    if "const" in schema:
        return str(schema["const"])
    kind = schema.get("type")
    if kind in ("integer", "number"):
        return f"a {'whole ' if kind == 'integer' else ''}number{_bounds(schema)}"
    if kind == "array":
        if "prefixItems" in schema:
            return f"a list of {len(schema['prefixItems'])}"
        items = schema.get("items")
        inner = f" of {_many(described(items, whole))}" if isinstance(items, Mapping) and items else ""
        return f"a list{inner}"
    words = {"boolean": "true or false", "string": "text", "null": "null", "object": "keys and values"}
    return words.get(str(kind), "another value")


def _many(item: str) -> str:
    """a whole number from 1 to 9 -> whole numbers from 1 to 9."""
    return item.removeprefix("a ").replace("number", "numbers", 1) if item.startswith("a ") else item


def _bounds(schema: Schema) -> str:
    """from 1 to 9, above 0 and at most 1, of at least 1."""
    names = {"minimum": "of at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    found = {name: _number(schema[name]) for name in names if schema.get(name) is not None}
    if {"minimum", "maximum"} <= found.keys():
        return f" from {found['minimum']} to {found['maximum']}"
    parts = [f"{names[name]} {value}" for name, value in found.items()]
    return f" {' and '.join(parts)}" if parts else ""


def _number(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else f"{value:g}"


def _resolved(schema: Schema, whole: Schema) -> Schema:
    while "$ref" in schema:
        schema = whole["$defs"][schema["$ref"].rpartition("/")[2]]
    return schema


def _locate(schema: Schema, loc: Iterable[str | int]) -> tuple[Schema, list[str | int]]:
    """The part of a schema that an error speaks of, and the way to it: what pydantic adds for unions is left out."""
    whole, path = schema, list[str | int]()
    for part in loc:
        inner = _inside(_without_null(schema, whole), part, whole)
        if inner is None:
            break
        schema = inner
        path.append(part)
    return _resolved(schema, whole), path


def _inside(schema: Schema, part: str | int, whole: Schema) -> Schema | None:
    """Of one part of a value, by key or by number. None where a message is about the whole: a list of numbers."""
    if isinstance(part, int):
        items = _resolved(schema.get("items", {}), whole)
        return items if "properties" in items else None
    of_any_key = schema.get("additionalProperties")
    found: Schema | None = schema.get("properties", {}).get(part)
    return of_any_key if found is None and isinstance(of_any_key, Mapping) else found


def _without_null(schema: Schema, whole: Schema) -> Schema:
    """Where null is the only other choice."""
    schema = _resolved(schema, whole)
    choices = [choice for choice in schema.get("anyOf", ()) if choice.get("type") != "null"]
    return _resolved(choices[0], whole) if len(choices) == 1 else schema


def _at(values: Any, path: Iterable[str | int]) -> Any:
    for part in path:
        if isinstance(values, Mapping):
            values = values.get(part)
        else:
            values = values[part] if isinstance(part, int) else getattr(values, part, values)
    return values


def _refuse_what_json_lacks(value: Any, where: str) -> None:
    """No key of ours takes it, and the person is told which has it."""
    refuse_too_large(value, where)
    for key, leaf in _leaves(value, where):
        if isinstance(leaf, float) and not math.isfinite(leaf):
            raise UserError(f"{key} must be a finite number, not {leaf!r}.")
        if isinstance(leaf, str) and not leaf.isascii() and any("\ud800" <= letter <= "\udfff" for letter in leaf):
            raise UserError(f"{key} holds bytes that are no text: {shortened(leaf)}.")
        if not (leaf is None or isinstance(leaf, str | bool | int | float | DATES)):
            raise UserError(f"{key} must be a number, text, true, false, null or a list, not {shortened(leaf)}.")


def refuse_too_large(value: Any, where: str) -> None:
    """Numbers that Python does not write, and lists inside lists without end."""
    for key, leaf in _leaves(value, where):
        if isinstance(leaf, int) and leaf.bit_length() > 14_000:  # Python writes no more than 4300 digits
            raise UserError(f"{key} must be a smaller number.")


def _leaves(value: Any, where: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Every value that holds no others, with its key."""
    if depth > MOST_DEPTH:
        raise UserError(f"{where.rstrip('.') or 'It'} is nested too deeply.")
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _leaves(item, f"{where}{name}.", depth + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item, where, depth + 1)
    else:
        yield where.rstrip(".") or "It", value


def _date_text(value: Any) -> str:
    """A date, as YAML has them, is text here."""
    assert isinstance(value, DATES)
    return str(value)
