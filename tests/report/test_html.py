"""The page as a file: one that needs nothing else, and in which names are only ever names."""

import io
import json
import re
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pytest
from jinja2 import UndefinedError
from PIL import Image

from reverie.report.blocks import Chapter, Chart, Page, Part, Picture, TableBlock, TextBlock
from reverie.report.html import LARGE_PICTURE, page_body, whole_page
from reverie.report.page import make_page
from tests.support.odd_names import COMMAND, ODD


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

    def policy(self):
        (found,) = [meta["content"] for meta in self.all("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
        return found

    def data(self):
        return next(json.loads(text) for text in self.scripts if text.startswith('{"watching"'))


def page_of(*blocks):
    return Page("title", [Chapter("chapter", "", [], [], [Part("part", blocks)])])


def png_of(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="PNG")
    return file.getvalue()


def test_the_page_needs_nothing_else(small_table):
    page = whole_page(make_page([small_table]))
    reader = Reader(page)
    for tag, attributes in reader.tags:
        for key in ("src", "href"):
            assert attributes.get(key, "data:").startswith(("data:", "#")), (tag, attributes)
    policy = reader.policy()
    assert policy.startswith("default-src 'none'")
    assert re.search(r"script-src 'sha256-[\w+/=]+'$", policy)  # no other script would run, wherever it came from
    assert "connect-src" not in policy
    watched = Reader(whole_page(make_page([small_table]), watching=True))
    assert watched.policy() == f"{policy}; connect-src 'self'"
    assert "@import" not in page
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", page)


def test_every_figure_has_a_place_its_data_and_a_table_of_its_values(small_table):
    reader = Reader(whole_page(make_page([small_table, small_table / "abd-seed0"])))
    data = reader.data()
    places = [attributes["data-figure"] for attributes in reader.all("div") if "data-figure" in attributes]
    assert places == list(data["figures"])
    assert len(places) > 12
    tables = {attributes["id"] for attributes in reader.all("table")}
    assert {f"{place}-table" for place in places} <= tables
    names = [attributes["id"] for _, attributes in reader.tags if "id" in attributes]
    assert len(names) == len(set(names))


def test_text_and_tables_are_there_without_the_script(small_table):
    text = " ".join(Reader(whole_page(make_page([small_table / "abd-seed0"]))).text)
    for words in ("ABD on digits-5, seed 0", "Accuracy matrix", "after task", "nothing (0 bytes)", "name: abd"):
        assert words in text
    assert "Their values stand below each" in text


def test_names_stay_names(odd_run):
    page = whole_page(make_page([odd_run, odd_run]))
    reader = Reader(page)
    text = " ".join(reader.text)
    for name in (*ODD, COMMAND):
        assert name in text
    assert all(image["src"].startswith("data:image/") for image in reader.all("img"))
    assert not [key for _, attributes in reader.tags for key in attributes if key.startswith("on")]
    assert len(reader.all("script")) == 2
    assert page.count("</script>") == 2


HARMFUL = (*ODD, COMMAND, "</title><script>hacked=1</script>", "' onload='hacked=1", "<!-- {# {% raw %}", "&lt;b&gt;")


@pytest.mark.parametrize("name", HARMFUL)
def test_a_name_is_shown_as_it_is_wherever_it_stands(name):
    table = TableBlock([f"header {name}"], [[f"cell {name}"]])
    drawing = {"kind": "bars", "categories": [f"category {name}"]}
    chart = Chart(f"chart {name}", f"about chart {name}", drawing, table)
    picture = Picture(f"picture {name}", f"about picture {name}", png_of(np.zeros((4, 4, 3), np.uint8)))
    text = TextBlock(f"text {name}", f"content {name}")
    part = Part(f"heading {name}", [chart, table, picture, text], f"about part {name}")
    tiles, missing = [(f"tile {name}", f"value {name}")], [f"missing {name}"]
    chapter = Chapter(f"chapter {name}", f"about chapter {name}", tiles, missing, [part])
    page = Page(f"page {name}", [chapter, Chapter("other", "", [], [], [])])
    reader = Reader(whole_page(page))
    shown = ["page", "chapter", "about chapter", "tile", "value", "missing", "heading", "about part", "chart"]
    shown += ["about chart", "header", "cell", "picture", "about picture", "text", "content"]
    text = "".join(reader.text)
    assert [words for words in shown if f"{words} {name}" not in text] == []
    assert reader.all("img")[0]["alt"] == f"picture {name}. about picture {name}"
    data = reader.data()
    assert data["title"] == page.title
    assert data["figures"] == {"block-1": {"title": chart.title, **drawing}}
    assert len(reader.all("script")) == 2
    assert len(reader.all("img")) == 1
    assert not [key for _, attributes in reader.tags for key in attributes if key.startswith("on")]


@pytest.mark.parametrize("missing", ["title", "about", "tiles", "missing"])
def test_a_template_that_names_what_is_not_there_is_an_error_and_no_gap_in_the_page(missing):
    facts = {"title": "chapter", "about": "", "tiles": [], "missing": [], "parts": []}
    whole = SimpleNamespace(**facts)
    assert "<h1>chapter</h1>" in page_body(Page("title", [whole]))["html"]
    delattr(whole, missing)
    with pytest.raises(UndefinedError, match=f"has no attribute '{missing}'"):
        page_body(Page("title", [whole]))


def test_a_chart_of_what_is_no_number_is_an_error_and_no_page_that_cannot_be_read():
    chart = Chart("chart", "", {"kind": "bars", "values": [float("nan")]}, TableBlock([], []))
    with pytest.raises(ValueError, match="not JSON compliant"):
        whole_page(page_of(chart))


def test_numbers_carry_the_value_they_are_sorted_by():
    row = ["97.0 ± 0.3", "2.4 MB", "92 kB", "1,024", "-1.2", "1e+03", "–", "agrees", "3 of 5"]
    html = page_body(page_of(TableBlock(["x"] * len(row), [row])))["html"]
    cells = [attributes.get("data-value") for attributes in Reader(html).all("td")]
    assert [cell and float(cell) for cell in cells] == [97.0, 2.4e6, 92e3, 1024, -1.2, 1000, None, None, None]


@pytest.mark.parametrize("shape", [(400, 400, 3), (17_000, 20, 3)])
def test_a_large_sheet_is_packed(shape):
    noise = np.random.default_rng(0).integers(0, 255, shape, dtype=np.uint8)
    large, small = png_of(noise), png_of(noise[:20, :20])
    assert len(large) > LARGE_PICTURE
    html = page_body(page_of(Picture("large", "", large), Picture("small", "", small)))["html"]
    packed, plain = (image["src"] for image in Reader(html).all("img"))
    assert packed.startswith("data:image/webp;base64,")
    assert len(packed) < len(large)
    assert plain.startswith("data:image/png;base64,")


def test_the_version_changes_with_what_is_shown(small_table):
    first, again, other = (
        page_body(make_page([small_table / name]))["version"] for name in ("abd-seed0", "abd-seed0", "base-seed0")
    )
    assert first == again != other
