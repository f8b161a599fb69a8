"""Every setting: the list, the page that is made of it, and the schema by which an editor checks a file."""

from dataclasses import fields

import pytest
import yaml

from reverie.config.schema import SECTIONS, Config
from reverie.errors import UserError
from reverie.methods import find_method, method_names
from reverie.runs.configure import configure
from reverie.runs.settings import list_settings, renew_settings_page, renewed_settings, settings_schema, settings_tables
from tests.support.paths import ROOT

PRESETS = sorted((ROOT / "reverie" / "config" / "presets").glob("*.yaml"))
PAGE = ROOT / "docs" / "settings.md"
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}


# --- the list and the page


def test_every_key_of_the_configuration_is_listed_with_its_default():
    usual = Config("any", "any").as_dict()
    listed = {info.key: info.default for info in list_settings() if not info.method}
    expected = {f"{section}.{name}": value for section in SECTIONS for name, value in usual[section].items()}
    assert listed == expected | {"keep": []}
    assert all(info.about and info.allowed for info in list_settings() if not info.method)


def test_every_option_of_every_method_is_listed_with_its_default():
    listed = {(info.method, info.key): info.default for info in list_settings() if info.method}
    assert listed == {
        (name, f"method.{option.name}"): option.default
        for name in method_names()
        for option in fields(find_method(name).Options)
    }


def test_the_default_of_every_setting_can_be_set_as_it_is_written():
    """So that a line of the table can be copied to the command line."""
    for info in list_settings():
        made = configure("digits-5", info.method or "abd", settings=[f"{info.key}={info.default_text}"]).as_dict()
        section, _, name = info.key.partition(".")
        assert (made[section][name] if name else made[section]) == info.default, info


def test_the_page_of_settings_is_as_it_would_be_made_now():
    text = PAGE.read_text("utf-8")
    assert renewed_settings(text) == text


def test_the_tables_of_a_page_are_made_anew_and_the_rest_is_left_alone(tmp_path):
    page, end = tmp_path / "page.md", "<!-- /settings -->\n"
    others = f"<!-- settings: of others -->\nkept\n{end}<!-- settings: other -->\nkept\n{end}after\n"
    page.write_text(f"before\n<!-- settings: keys -->\nworn out\n{end}<!-- settings: methods -->\n{end}{others}")
    renew_settings_page(page)
    tables = settings_tables()
    assert page.read_text() == (
        f"before\n<!-- settings: keys -->\n{tables['keys']}{end}"
        f"<!-- settings: methods -->\n{tables['methods']}{end}{others}"
    )


def test_a_page_without_a_place_for_tables_is_refused_and_left_alone(tmp_path):
    (tmp_path / "page.md").write_text("nothing to renew")
    with pytest.raises(UserError, match="There is no table in it to renew: mark the place with <!-- settings"):
        renew_settings_page(tmp_path / "page.md")
    assert (tmp_path / "page.md").read_text() == "nothing to renew"
    with pytest.raises(UserError, match=r"nowhere.md cannot be read: No such file .* Name the page"):
        renew_settings_page(tmp_path / "nowhere.md")


# --- the schema of a preset file


def faults(value, schema, whole, where="it"):
    """What is wrong with a value, by the words of JSON schema that ours uses."""
    while "$ref" in schema:
        schema = whole["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    if "anyOf" in schema:
        found = [faults(value, choice, whole, where) for choice in schema["anyOf"]]
        return [] if [] in found else found[0]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{where} is none of {schema['enum']}"]
    if not is_of_type(value, schema.get("type")):
        return [f"{where} is no {schema['type']}"]
    if isinstance(value, dict):
        known, closed = schema.get("properties", {}), schema.get("additionalProperties") is False
        found = [f"{where}.{key} is unknown" for key in value if key not in known and closed]
        for key in known.keys() & value.keys():
            found += faults(value[key], known[key], whole, f"{where}.{key}")
        return found
    if isinstance(value, list):
        return [fault for item in value for fault in faults(item, schema.get("items", {}), whole, where)]
    beyond = {
        "minimum": lambda bound: value < bound,
        "maximum": lambda bound: value > bound,
        "exclusiveMinimum": lambda bound: value <= bound,
        "exclusiveMaximum": lambda bound: value >= bound,
    }
    return [f"{where} is beyond its {name}" for name, is_so in beyond.items() if name in schema and is_so(schema[name])]


def is_of_type(value, kind):
    if kind in ("integer", "number"):
        return isinstance(value, int if kind == "integer" else int | float) and not isinstance(value, bool)
    return kind is None or isinstance(value, TYPES[kind])


def words_of(schema):
    """Every key word and every reference in it."""
    if isinstance(schema, dict):
        for key, value in schema.items():
            yield (key, value)
            yield from words_of(value)
    elif isinstance(schema, list):
        for item in schema:
            yield from words_of(item)


def test_every_reference_of_the_schema_leads_somewhere():
    schema = settings_schema()
    references = {value for key, value in words_of(schema) if key == "$ref"}
    assert references
    assert references <= {f"#/$defs/{name}" for name in schema["$defs"]}


@pytest.mark.parametrize("file", PRESETS, ids=lambda file: file.stem)
def test_the_schema_accepts_the_presets_of_the_package(file):
    schema = settings_schema()
    assert faults(yaml.safe_load(file.read_text("utf-8")), schema, schema) == []


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ({"train": {"epoch": 5}}, "it.train.epoch is unknown"),
        ({"trian": {}}, "it.trian is unknown"),
        ({"train": {"epochs": 0}}, "it.train.epochs is beyond its minimum"),
        ({"train": {"epochs": "5"}}, "it.train.epochs is no integer"),
        ({"train": {"milestones": [1, "2"]}}, "it.train.milestones is no integer"),
        ({"net": {"head": "shrink"}}, "it.net.head is none of ['grow', 'all']"),
        ({"keep": ["everything"]}, "it.keep is none of ['models', 'dreamers', 'features']"),
        ({"recipes": {"papre": {}}}, "it.recipes.papre is unknown"),
        ({"methods": {"abd": {"method": {"fine_tunning": 1.0}}}}, "it.methods.abd.method.fine_tunning is unknown"),
        ({"methods": {"lwf": {"method": {"fine_tuning": 1.0}}}}, "it.methods.lwf.method.fine_tuning is unknown"),
    ],
)
def test_the_schema_refuses_what_the_program_would_refuse(tmp_path, content, fault):
    schema, file = settings_schema(), tmp_path / "mine.yaml"
    assert faults(content, schema, schema) == [fault]
    file.write_text(yaml.safe_dump({"extends": "digits-5"} | content))
    with pytest.raises(UserError):
        for method in ("abd", "lwf"):
            configure(str(file), method)
