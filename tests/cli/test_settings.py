"""`reverie settings` as a person types it: a list, a schema for editors, and the tables of a page."""

import json
from pathlib import Path

from reverie import list_settings
from tests.support.mistakes import assert_mistake
from tests.support.paths import ROOT


def test_every_setting_is_listed_with_its_default_and_what_it_may_be(reverie):
    code, out, _ = reverie("settings")
    assert code == 0
    rows = {tuple(line.split()[:2]) for line in out.splitlines()}
    for info in list_settings():
        assert (info.key, info.method or info.default_text.split()[0]) in rows
    (epochs,) = [line for line in out.splitlines() if line.split()[0] == "train.epochs"]
    assert "a whole number from 1 to 1,000,000" in epochs


def test_the_json_schema_is_json_and_has_bounds(reverie):
    code, out, err = reverie("settings", "--json-schema")
    assert (code, err) == (0, "")
    schema = json.loads(out)
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert {"about", "extends", "train", "method", "methods", "recipes"} <= schema["properties"].keys()
    train = schema["$defs"][schema["properties"]["train"]["$ref"].rpartition("/")[2]]
    epochs = train["properties"]["epochs"]
    assert (epochs["type"], epochs["minimum"], epochs["maximum"]) == ("integer", 1, 1_000_000)
    assert epochs["description"]


def test_the_tables_of_a_page_are_made_anew_and_the_rest_stays(reverie):
    keys, methods = (f"<!-- settings: {name} -->\nold\n<!-- /settings -->\n" for name in ("keys", "methods"))
    Path("page.md").write_text(f"# Mine\n{keys}and\n{methods}")
    assert reverie("settings", "--write", "page.md") == (0, "page.md\n", "")
    text = Path("page.md").read_text()
    assert text.startswith("# Mine\n<!-- settings: keys -->\n| key | default | it is | what it does |\n")
    assert "old" not in text.splitlines()
    assert "| `train.epochs` | " in text
    assert "\n<!-- /settings -->\nand\n<!-- settings: methods -->\n| method | key |" in text
    assert "| `abd` | `method.distillation` | " in text
    reverie("settings", "--write", "page.md")
    assert Path("page.md").read_text() == text


def test_the_page_of_this_project_is_as_the_command_makes_it(reverie):
    page = (ROOT / "docs" / "settings.md").read_text("utf-8")
    Path("settings.md").write_text(page, "utf-8")
    assert reverie("settings", "--write", "settings.md")[0] == 0
    assert Path("settings.md").read_text("utf-8") == page


def test_a_mistake_is_told_and_leaves_the_page_as_it_is(reverie):
    said = "nothing.md cannot be read: No such file or directory. Name the page that holds the tables."
    assert_mistake(reverie, "settings --write nothing.md", said)
    Path("page.md").write_text("no table")
    assert_mistake(reverie, "settings --write page.md", "There is no table in it to renew")
    assert Path("page.md").read_text() == "no table"
    Path("page.md").write_bytes(b"\xff<!-- settings: keys --><!-- /settings -->")
    assert_mistake(reverie, "settings --write page.md", "page.md is no text in UTF-8. Name the page that holds the")


def test_a_section_can_be_asked_for_and_links_of_the_page_are_left_out(reverie):
    code, out, _ = reverie("settings", "train")
    keys = [line.split()[0] for line in out.splitlines()[1:]]
    assert code == 0
    assert keys == [info.key for info in list_settings() if info.key.startswith("train.")]
    assert "](" not in reverie("settings")[1]
    assert_mistake(
        reverie, "settings trian", "There is no section 'trian'. Did you mean 'train'? The sections are data, "
    )
