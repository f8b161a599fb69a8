"""The page in a real browser: everything is drawn, nothing is fetched, and it can be pointed at, sorted and saved."""

import json
import shutil
import threading

import pytest
from PIL import Image

from reverie.report.page import write_report
from reverie.report.run_reader import RunView
from reverie.report.server import ReportServer
from tests.support.browser import NAMES, Browser, find_browser

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    program = find_browser()
    if program is None:
        pytest.skip(f"no browser here ({', '.join(NAMES)}): the page was not looked at")
    made = Browser(program, tmp_path_factory.mktemp("profile"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def table_page(small_table, tmp_path_factory):
    file = tmp_path_factory.mktemp("pages") / "table.html"
    write_report([small_table], file)
    return file.as_uri()


@pytest.fixture(scope="module")
def run_page(small_table, tmp_path_factory):
    file = tmp_path_factory.mktemp("pages") / "run.html"
    write_report([small_table / "abd-seed0"], file)
    return file.as_uri()


MARKS = """Object.fromEntries([...document.querySelectorAll("figure")].map((figure) => [
    figure.querySelector("h3").textContent,
    [figure.querySelectorAll("svg .mark").length, figure.querySelectorAll("svg .curve").length],
]))"""


def figure(title):
    return f"[...document.querySelectorAll('figure')].find((f) => f.querySelector('h3').textContent === {title!r})"


def test_a_table_is_drawn_whole_with_no_complaint_and_no_request(browser, table_page):
    page = browser.open(table_page)
    marks = page.ask(MARKS)
    assert marks.pop("A_N by method") == [3, 0]
    assert marks.pop("Omega by method") == [2, 0]  # one of the seeds of Base has no upper bound
    assert marks.pop("Accuracy by task") == [9, 3]  # three methods, three tasks
    assert marks.pop("Omega by task") == [6, 2]
    assert marks.pop("Accuracy against cost") == [3, 0]
    assert marks.pop("Time a batch") == [3, 0]
    assert list(marks.values()) == [[6, 0]] * 3  # the matrix of each method: three tasks make six cells
    bands = page.ask(f"{figure('Accuracy by task')}.querySelectorAll('.band').length")
    assert bands == 1  # one method has several seeds
    assert page.complaints() == []
    assert page.requests()[0] == table_page
    assert all(address.startswith("data:") for address in page.requests()[1:])


def test_a_run_is_drawn_whole(browser, run_page, small_table):
    page = browser.open(run_page)
    result = RunView.of(small_table / "abd-seed0").result
    marks = page.ask(MARKS)
    assert marks["Accuracy matrix"] == [6, 0]
    assert marks["Accuracy and Omega by task"] == [9, 3]
    assert marks["Forgetting by task"] == [2, 0]
    assert marks["Seconds by task and part"] == [3 * len(result.seconds.by_part), 0]
    assert marks["Phase “learn”"] == [0, 3]  # the first task's loss has but one point
    assert marks["Phase “dream”"] == [0, 4]
    assert page.ask("[...document.querySelectorAll('.picture img')].every((i) => i.complete && i.naturalWidth > 100)")
    assert page.complaints() == []


def test_marks_of_different_methods_differ_in_shape_and_dash_not_in_colour_alone(browser, table_page):
    page = browser.open(table_page)
    curves = f"[...{figure('Accuracy by task')}.querySelectorAll('.curve')]"
    assert len(set(page.ask(f"{curves}.map((c) => c.getAttribute('stroke-dasharray') || 'none')"))) == 3
    assert len(set(page.ask(f"{curves}.map((c) => getComputedStyle(c).stroke)"))) == 3
    shapes = page.ask(
        f"[...{figure('Accuracy by task')}.querySelectorAll('.mark')]"
        ".map((m) => m.getAttribute('d').replace(/[-0-9. ]+/g, ''))"
    )
    assert len({tuple(shapes[3 * n : 3 * n + 3]) for n in range(3)}) >= 2
    for style in range(16):  # more methods than there are colours
        for other in range(style):
            same = page.ask(f"colour({style}) === colour({other}) && shape({style}, 0, 0) === shape({other}, 0, 0)")
            assert not same, (style, other)


def test_pointing_at_a_mark_shows_its_value(browser, table_page, small_table):
    page = browser.open(table_page)
    assert page.ask("tip.hidden")
    cell = f"{figure('Accuracy by task')}.querySelectorAll('.mark')[8]"  # the last method's last task
    page.move(*page.middle(cell))
    accuracy = 100 * RunView.of(small_table / "abd-seed0").accuracy_after[2]
    shown = page.ask("tip.hidden ? null : tip.textContent")
    assert shown.startswith("ABD")
    assert "tasks learned: 3" in shown
    assert f"accuracy (%): {accuracy:.4g}" in shown
    assert page.ask(f"{figure('Accuracy by task')}.querySelector('.ring').getAttribute('visibility')") == "visible"
    page.move(2, 2)
    assert page.ask("tip.hidden")


def test_a_click_on_a_heading_sorts_and_another_turns_the_order(browser, table_page):
    page = browser.open(table_page)
    column = "[...document.querySelector('table').tBodies[0].rows].map((row) => row.cells[2].textContent)"
    before = page.ask(column)
    button = "document.querySelector('table').querySelectorAll('th button')[2]"
    page.click(*page.middle(button))
    values = [float(text.split()[0]) for text in page.ask(column)]
    assert values == sorted(values)
    assert page.ask(f"{button}.parentElement.getAttribute('aria-sort')") == "ascending"
    page.click(*page.middle(button))
    values = [float(text.split()[0]) for text in page.ask(column)]
    assert values == sorted(values, reverse=True)
    assert sorted(page.ask(column)) == sorted(before)


def test_what_is_not_known_is_sorted_to_the_end_either_way(browser, table_page):
    page = browser.open(table_page)
    last = "document.querySelector('table').rows[3].cells[5].textContent"
    for order in ("ascending", "descending"):
        page.ask(f"sort(document.querySelector('table'), 5, '{order}')")
        assert page.ask(last) == "–"


@pytest.mark.parametrize("width", [390, 320, 768])
def test_a_narrow_page_does_not_scroll_sideways(browser, table_page, run_page, width):
    for address in (table_page, run_page):
        page = browser.open(address, width=width, height=800)
        page.ask("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        assert page.ask("document.documentElement.scrollWidth") == width
        assert page.ask("document.querySelector('.plot svg').getBoundingClientRect().right") <= width
        assert page.complaints() == []


def test_figures_are_drawn_anew_for_another_width(browser, table_page):
    page = browser.open(table_page)
    before = page.ask("document.querySelector('.plot svg').getAttribute('width')")
    page.call("Emulation.setDeviceMetricsOverride", width=500, height=800, deviceScaleFactor=1, mobile=False)
    page.wait(f"document.querySelector('.plot svg').getAttribute('width') !== '{before}'")


def test_it_follows_the_readers_light_and_prints_on_white(browser, table_page):
    ground = "getComputedStyle(document.body).backgroundColor"
    light, dark = (browser.open(table_page, dark=wanted) for wanted in (False, True))
    assert light.ask(ground) == "rgb(255, 255, 255)"
    assert dark.ask(ground) == "rgb(22, 23, 26)"
    dark.call("Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert dark.ask(ground) == "rgb(255, 255, 255)"
    assert dark.ask("getComputedStyle(document.querySelector('.save')).display") == "none"
    assert light.printed().startswith(b"%PDF")


@pytest.mark.parametrize("kind", ["SVG", "PNG"])
def test_a_figure_is_saved_as_a_picture_that_stands_alone(browser, table_page, tmp_path, kind):
    page = browser.open(table_page)
    browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path), eventsEnabled=True)
    button = (
        f"[...{figure('Accuracy by task')}.querySelectorAll('.save button')].find((b) => b.textContent === '{kind}')"
    )
    page.click(*page.middle(button))
    file = tmp_path / f"accuracy-by-task.{kind.lower()}"
    for _ in range(200):
        if file.is_file():
            break
        page.ask("new Promise((done) => setTimeout(done, 50))")
    content = file.read_bytes()
    if kind == "PNG":
        with Image.open(file) as image:
            assert image.size[0] == 2 * int(page.ask("document.querySelector('.plot svg').getAttribute('width')"))
            assert len(image.convert("RGB").getcolors(1 << 20)) > 20
    else:
        assert content.startswith(b"<svg")
        assert b"var(" not in content
        assert b"class=" not in content
        assert content.count(b"<path") > 12
    assert page.complaints() == []


def test_names_do_nothing_but_stand_there(browser, odd_run, tmp_path):
    write_report([odd_run, odd_run], tmp_path / "page.html")
    page = browser.open((tmp_path / "page.html").as_uri())
    assert page.ask("typeof hacked") == "undefined"
    assert page.ask("document.querySelector('h1 + p').textContent")
    assert page.complaints() == []
    assert all(address.startswith("data:") for address in page.requests()[1:])


def test_without_scripts_the_values_are_there_to_read(browser, run_page):
    page = browser.open("about:blank")
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    page.call("Page.navigate", url=run_page)
    page.wait("document.readyState === 'complete' && document.querySelector('article') !== null")
    assert page.ask("document.querySelectorAll('.plot svg').length") == 0
    assert page.ask("document.querySelectorAll('figure table').length") > 4
    assert page.ask("getComputedStyle(document.querySelector('.plot')).display") == "none"


def test_a_watched_page_renews_itself_and_outlives_its_server(browser, small_table, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(small_table / "abd-seed0", run)
    result = (run / "result.json").read_bytes()
    (run / "result.json").unlink()
    with ReportServer([run], 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = browser.open(server.address)
        assert "not finished" in page.ask("document.querySelector('.missing').textContent")
        page.ask("document.querySelector('figure details').open = true; scrollTo(0, 300)")
        (run / "result.json").write_bytes(result)
        page.wait(
            "document.querySelector('h1 + p').textContent.endsWith('finished') && !document.querySelector('.missing')"
        )
        assert page.ask("document.querySelector('figure details').open")
        assert page.ask(MARKS)["Accuracy matrix"] == [6, 0]
        shutil.rmtree(run)
        page.wait("(document.querySelector('.missing')?.textContent ?? '').includes('not there')")
        assert page.complaints() == []
        server.shutdown()
    page.wait("document.getElementById('news').textContent.includes('does not answer')")
    assert json.loads(page.ask("JSON.stringify(facts.watching)")) is True
