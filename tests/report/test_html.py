"""The page as a file: one that needs nothing else, and in which names are only ever names."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from reverie.report import html as markup
from reverie.report import page as report
from reverie.report.blocks import Table
from tests.conftest import COMMAND, ODD


class Reader(HTMLParser):
    """Tags with their attributes, and the text outside scripts and styles."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.text, self._inside = [], [], ""
        self.scripts = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self._inside = tag

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        (self.scripts if self._inside in ("script", "style") else self.text).append(data)

    def all(self, name):
        return [attributes for tag, attributes in self.tags if tag == name]


def test_the_page_needs_nothing_else(small_table):
    page = markup.whole_page(report.make([small_table]))
    reader = Reader(page)
    for tag, attributes in reader.tags:
        for key in ("src", "href"):
            assert attributes.get(key, "data:").startswith(("data:", "#")), (tag, attributes)
    policy = next(a["content"] for a in reader.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")
    assert re.search(r"script-src 'sha256-[\w+/=]+'$", policy)  # no other script would run, wherever it came from
    assert "connect-src" not in policy
    assert "connect-src 'self'" in markup.whole_page(report.make([small_table]), watching=True)
    assert "@import" not in page
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", page)


def test_every_figure_has_a_place_its_data_and_a_table_of_its_values(small_table):
    reader = Reader(markup.whole_page(report.make([small_table, small_table / "abd-seed0"])))
    data = json.loads(next(text for text in reader.scripts if text.startswith('{"watching"')))
    places = [attributes["data-figure"] for attributes in reader.all("div") if "data-figure" in attributes]
    assert places == list(data["figures"])
    assert len(places) > 12
    tables = {attributes["id"] for attributes in reader.all("table")}
    assert {f"{place}-table" for place in places} <= tables
    names = [attributes["id"] for _, attributes in reader.tags if "id" in attributes]
    assert len(names) == len(set(names))


def test_text_and_tables_are_there_without_the_script(small_table):
    text = " ".join(Reader(markup.whole_page(report.make([small_table / "abd-seed0"]))).text)
    for words in ("ABD on digits-5, seed 0", "Accuracy matrix", "after task", "nothing (0 bytes)", "name: abd"):
        assert words in text
    assert "Their values stand below each" in text


def test_names_stay_names(odd_run):
    page = markup.whole_page(report.make([odd_run, odd_run]))
    reader = Reader(page)
    text = " ".join(reader.text)
    for name in (*ODD, COMMAND):
        assert name in text
    assert all(image["src"].startswith("data:image/") for image in reader.all("img"))
    assert not [key for _, attributes in reader.tags for key in attributes if key.startswith("on")]
    assert len(reader.all("script")) == 2
    assert page.count("</script>") == 2


def test_numbers_carry_the_value_they_are_sorted_by():
    row = ["97.0 ± 0.3", "2.4 MB", "92 kB", "1,024", "-1.2", "1e+03", "–", "agrees", "3 of 5"]
    html = markup._table("t", Table(["x"] * len(row), [row]))
    cells = [attributes.get("data-value") for attributes in Reader(html).all("td")]
    assert [cell and float(cell) for cell in cells] == [97.0, 2.4e6, 92e3, 1024, -1.2, 1000, None, None, None]


@pytest.mark.parametrize("shape", [(400, 400, 3), (17_000, 20, 3)])
def test_a_large_sheet_is_packed(tmp_path, shape):
    noise = np.random.default_rng(0).integers(0, 255, shape, dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "large.png")
    png = (tmp_path / "large.png").read_bytes()
    assert len(png) > markup.LARGE_PICTURE
    assert markup._embedded_picture(png).startswith("data:image/webp;base64,")
    assert len(markup._embedded_picture(png)) < len(png)
    Image.fromarray(noise[:20, :20]).save(tmp_path / "small.png")
    assert markup._embedded_picture((tmp_path / "small.png").read_bytes()).startswith("data:image/png;base64,")


def test_the_version_changes_with_what_is_shown(small_table):
    first, again, other = (
        markup.body(report.make([small_table / name]))["version"] for name in ("abd-seed0", "abd-seed0", "base-seed0")
    )
    assert first == again != other
