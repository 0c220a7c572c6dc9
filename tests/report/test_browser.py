"""The pages in a real browser: what a reader sees, clicks and cites. Screenshots are kept (see `browser.SCREENS`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from anncestry.report.model.numbers import tidy
from anncestry.report.site.page import write_page
from casestudies import STUDIES
from tests.browser import DESKTOP, PHONE, SCREENS, Browser, chromium
from tests.builders.fixed_report import lay_out
from tests.builders.world import HOSTILE, PUBLISHED, World, ancestry_of

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("profile")) as window:
        yield window
    print(f"\nscreenshots: {SCREENS}")


def _site(folder: Path, world: World | None = None, **names: str) -> Path:
    return write_page((world or World()).tidy(), folder / "site", facts=PUBLISHED, studies=STUDIES, **names)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The pages of 36 cells."""
    folder = tmp_path_factory.mktemp("world")
    here = Path.cwd()
    os.chdir(folder)
    try:
        yield _site(folder, title="Two databases").parent
    finally:
        os.chdir(here)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A page whose names are markup that would run if it were taken for markup."""
    folder = tmp_path_factory.mktemp("hostile")
    here = Path.cwd()
    os.chdir(folder)
    try:
        world = World({HOSTILE: ("l2", 1000, 8)})
        cell = world.cell("milvus-2.3.5", "k10")
        world.edit(cell["load_path"], lambda record: record["fairness"].update({HOSTILE: HOSTILE}))
        world.edit(
            world.cell("weaviate-1.27.0", "k10")["query_path"],
            lambda record: record["gates"].append({"gate": HOSTILE, "ok": False, "detail": HOSTILE}),
        )
        yield _site(folder, world, title=HOSTILE).parent
    finally:
        os.chdir(here)


def test_every_page_opens_from_its_file_without_a_word_on_the_console(browser: Browser, site: Path) -> None:
    browser.look()
    for page in sorted(site.glob("*.html")):
        browser.open(page)
        assert browser.console() == [], page.name


def test_every_chart_is_drawn(browser: Browser, site: Path) -> None:
    browser.look()
    browser.open(site / "index.html")
    charts = browser.js("return document.querySelectorAll('[data-chart]').length")
    marks = browser.js(
        "return [...document.querySelectorAll('[data-chart]')].map((chart) => chart.querySelectorAll("
        "'svg [class*=mark-] :is(path, text, line)').length)"
    )
    assert charts >= 10
    assert len(marks) == charts and min(marks) > 0, marks


def test_a_folded_chart_is_drawn_in_its_width_when_it_is_opened(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    world = World()
    for cell in world.cells:
        histogram = {"upper_ns": [1_000_000, 2_000_000], "counts": [900, 100]}
        world.edit(cell["query_path"], lambda record, histogram=histogram: record.update(histogram=histogram))
    browser.look()
    browser.open(_site(tmp_path, world, title="Distributions"))
    drawn = (
        "return [...document.querySelectorAll('[aria-labelledby=figure-ecdf-100] svg.marks')].map((s) => s.clientWidth)"
    )
    assert browser.js(drawn) == []
    browser.click(browser.one("[aria-labelledby=figure-ecdf-100] summary"))
    browser.until(lambda: len(browser.js(drawn)) == 2, "both datasets' distributions")
    assert min(browser.js(drawn)) > 300 and browser.console() == []


def test_a_number_opens_its_ancestry_and_its_address_cites_it(browser: Browser, site: Path) -> None:
    browser.look()
    browser.open(site / "index.html")
    link = browser.all("#table-IV a.num")[0]
    number = (link.get_attribute("href") or "").rpartition("#")[2]
    browser.click(link)
    card = browser.one("#why")
    browser.until(card.is_displayed, "the card of the number")
    assert f"anncestry why {number}" in card.text and "results/query/" in card.text and "sha256" in card.text
    assert browser.driver.current_url.endswith(f"#{number}")
    browser.screenshot("number")
    cited = browser.driver.current_url.rpartition("#")[2]
    browser.open(site / "index.html", f"#{cited}")
    browser.until(lambda: browser.one("#why").is_displayed(), "the card of the number in the address")
    assert f"anncestry why {number}" in browser.one("#why").text


def test_the_card_is_reached_and_left_by_the_keyboard(browser: Browser, site: Path) -> None:
    browser.look()
    browser.open(site / "index.html")
    link = browser.all("#table-IV a.num")[0]
    browser.js("arguments[0].focus()", link)
    link.send_keys("\ue007")
    browser.until(lambda: browser.one("#why").is_displayed(), "the card")
    assert browser.driver.switch_to.active_element.get_attribute("aria-label") == "Close"
    browser.driver.switch_to.active_element.send_keys("\ue00c")
    browser.until(lambda: not browser.one("#why").is_displayed(), "the card closed by Escape")


def test_a_mark_of_a_chart_opens_its_ancestry(browser: Browser, site: Path) -> None:
    browser.look()
    browser.open(site / "index.html")
    mark = browser.all("[data-chart] .mark-symbol path, [data-chart] .mark-rect path")[0]
    browser.click(mark)
    browser.until(lambda: browser.one("#why").is_displayed(), "the card of the mark")
    assert "anncestry why n" in browser.one("#why").text


MILVUS, WEAVIATE, FASHION = "milvus-2.3.5", "weaviate-1.27.0", "fashion-mnist-784-euclidean"


def _box(browser: Browser, dimension: str, value: str) -> None:
    """Click on the box of a value in the filter."""
    part = browser.one(f'#filter details[data-of="{dimension}"]')
    if part.get_attribute("open") is None:
        part.find_element("css selector", "summary").click()
    part.find_element("css selector", f'input[value="{value}"]').click()
    part.find_element("css selector", "summary").send_keys("\ue00c")
    browser.drawn()


def test_a_filter_leaves_what_was_chosen_in_tables_and_charts_and_in_the_address(browser: Browser, site: Path) -> None:
    browser.look()
    browser.open(site / "index.html")
    panels, rows = len(browser.all(".panel")), len(browser.all("#table-IV tbody tr"))
    headings = [cell.text for cell in browser.all("#table-IV thead th")]
    assert sum(WEAVIATE in text for text in headings) and sum(MILVUS in text for text in headings)
    _box(browser, "system", MILVUS)
    assert "Showing 18 of 36 cells" in browser.one("#filter [role=status]").text
    shown = [cell.text for cell in browser.all("#table-IV thead th")]
    assert not any(WEAVIATE in text for text in shown) and any(MILVUS in text for text in shown)
    assert not any(WEAVIATE in mark.text for mark in browser.all("figure svg"))
    _box(browser, "dataset", FASHION)
    assert 0 < len(browser.all("#table-IV tbody tr")) < rows
    assert 0 < len(browser.all(".panel")) < panels
    numbers = browser.js(
        "return [...document.querySelectorAll('main td:not(.out) a.num')].filter((link) => link.offsetParent)"
        ".flatMap((link) => (link.dataset.n || link.hash.slice(1)).split(' '))"
    )
    known = ancestry_of((site / "index.html").read_text())["numbers"]
    systems, datasets = ([*{known[number][name] for number in numbers}] for name in ("system", "dataset"))
    assert (systems, datasets) == ([MILVUS], [FASHION])
    browser.screenshot("filtered")
    address = browser.driver.current_url
    assert f"system={MILVUS}" in address and f"dataset={FASHION}" in address
    seen = [part.text for part in browser.all("main h3, main h4, main table")]
    browser.open(site / "index.html", "?" + address.partition("?")[2])
    assert [part.text for part in browser.all("main h3, main h4, main table")] == seen, (
        "the address leads to the same view"
    )
    assert browser.one("#filter a").get_attribute("href") == address
    browser.click(browser.one("#filter button"))
    browser.drawn()
    assert len(browser.all(".panel")) == panels and "?" not in browser.driver.current_url
    assert browser.console() == []


def test_a_view_goes_along_to_the_other_pages(browser: Browser, site: Path) -> None:
    browser.look()
    for page in sorted(site.glob("*.html")):
        browser.open(page, f"?system={MILVUS}")
        links = browser.all("nav.pages a")
        assert [link.get_attribute("aria-current") for link in links].count("page") == 1
        files = {(link.get_attribute("href") or "").rpartition("/")[2] for link in links}
        assert files == {f"{other.name}?system={MILVUS}" for other in site.glob("*.html")}, page.name


def test_the_filter_is_worked_by_the_keyboard(browser: Browser, site: Path) -> None:
    browser.look()
    browser.open(site / "index.html")
    summary = browser.one('#filter details[data-of="system"] summary')
    browser.js("arguments[0].focus()", summary)
    for keys in ("\ue007", "\ue004", " ", "\ue00c"):  # open, to the first box, choose it, close
        browser.driver.switch_to.active_element.send_keys(keys)
    browser.until(lambda: MILVUS in browser.driver.current_url, "the choice in the address")
    assert browser.driver.switch_to.active_element == summary
    assert browser.one('#filter details[data-of="system"]').get_attribute("open") is None


def test_a_heading_sorts_its_column_and_says_so(browser: Browser, site: Path) -> None:
    browser.look()
    browser.open(site / "index.html")

    def values() -> list[float]:
        return [float(cell.get_attribute("data-v") or "nan") for cell in browser.all("#table-II tbody td:nth-child(2)")]

    before = values()
    place = "#table-II thead tr:last-child th:nth-child(1) button"
    assert before and before != sorted(before), "a column that isn't sorted by itself"
    button = browser.one(place)
    browser.js("arguments[0].focus()", button)
    heading = button.find_element("xpath", "..")
    for state, order in (("ascending", sorted(before)), ("descending", sorted(before, reverse=True)), (None, before)):
        browser.driver.switch_to.active_element.send_keys("\ue007")
        assert heading.get_attribute("aria-sort") == state
        assert values() == order


_UNTOLD = """
const found = [];
const say = (what, element) => found.push(`${what}: ${element.outerHTML.slice(0, 160)}`);
const all = (selector) => [...document.querySelectorAll(selector)];
const by = (element) => document.getElementById(element.getAttribute("aria-labelledby"))?.textContent;
const name = (element) => (element.getAttribute("aria-label") || by(element) || element.textContent).trim();
for (const table of all("table")) {
  if (!table.caption?.textContent.trim()) say("a table without a caption", table);
  if (!table.querySelector("th")) say("a table without headings", table);
}
for (const heading of all("th")) if (!heading.scope) say("a heading that says not what it is of", heading);
for (const box of all("input, select, textarea")) if (!name(box.labels[0] ?? box)) say("a box without a label", box);
for (const control of all("a[href], button, summary")) if (!name(control)) say("a control without a name", control);
for (const control of all("[role=img] :is(a, button, summary, input)")) say("a control within a picture", control);
for (const chart of all("[data-chart]")) {
  const drawn = chart.querySelector("svg.marks");
  if (drawn.getAttribute("role") !== "img" || name(drawn) !== name(chart) || name(drawn).length < 10) {
    say("a picture without words", drawn);
  }
}
for (const picture of all("figure")) if (!by(picture)) say("a figure without a title", picture);
for (const place of all("nav, [role=region], [role=group], [role=dialog]")) {
  if (!place.getAttribute("aria-label") && !by(place)) say("a place without a name", place);
}
for (const element of all("main *, nav *")) {
  const wide = element.scrollWidth > element.clientWidth + 1;
  const scrolls = /auto|scroll/.test(getComputedStyle(element).overflowX);
  if (wide && scrolls && element.tabIndex < 0) say("what the keyboard can't scroll", element);
  if (element.tabIndex > 0) say("an order of its own", element);
}
let level = 0;
for (const heading of all("h1, h2, h3, h4, h5")) {
  if (Number(heading.tagName[1]) > level + 1) say("a level of headings that was left out", heading);
  level = Number(heading.tagName[1]);
}
const ids = all("[id]").map((element) => element.id);
for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) found.push(`an id that is there twice: ${id}`);
if (!document.documentElement.lang || all("main").length !== 1 || all("h1").length !== 1) found.push("the page itself");
return found;
"""
"""What a page does not tell those who can't see it, or who have no mouse."""


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_a_screen_reader_is_told_what_everything_is(browser: Browser, site: Path, size: tuple[int, int]) -> None:
    browser.look(size)
    for page in sorted(site.glob("*.html")):
        browser.open(page)
        assert browser.js(_UNTOLD) == [], page.name


def test_a_chart_is_saved_by_the_keyboard(browser: Browser, site: Path) -> None:
    browser.look()
    browser.open(site / "index.html")
    chart = browser.all("[data-chart]")[0]
    menu = chart.find_element("css selector", "summary")
    browser.js("arguments[0].focus()", menu)
    assert browser.driver.switch_to.active_element == menu
    menu.send_keys("\ue007")
    browser.until(lambda: browser.all(".vega-actions a"), "the menu of the chart")
    assert [link.text for link in browser.all(".vega-actions a")] == ["Save as SVG", "Save as PNG"]


def test_hostile_names_stay_text_on_every_page(browser: Browser, hostile: Path) -> None:
    browser.look()
    for page in sorted(hostile.glob("*.html")):
        browser.open(page)
        assert browser.console() == [], page.name
        assert HOSTILE in browser.driver.title, page.name
        assert browser.js("return document.querySelectorAll('img, [onerror]').length") == 0, page.name
    browser.open(hostile / "index.html")
    browser.click(browser.all("#table-IV a.num")[0])
    assert HOSTILE in browser.one("#why").text
    assert HOSTILE in browser.driver.title
    assert HOSTILE in browser.one("#table-IV").text
    browser.screenshot("hostile")


@pytest.mark.parametrize(
    ("name", "size", "dark"),
    [("light", DESKTOP, False), ("dark", DESKTOP, True), ("phone", PHONE, False), ("phone-dark", PHONE, True)],
)
def test_nothing_runs_over_the_edge_and_ink_stands_out(
    browser: Browser, site: Path, name: str, size: tuple[int, int], dark: bool
) -> None:
    browser.look(size, dark=dark)
    for page in sorted(site.glob("*.html")):
        browser.open(page)
        assert browser.js("return document.documentElement.scrollWidth") <= size[0], f"{page.name} is too wide"
        assert _contrast(browser, "body") >= 7, page.name
        browser.screenshot(f"{page.stem}-{name}", 3 * size[1])


def test_tables_of_an_early_page_need_no_scrolling(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where most is not measured yet, its words take lines, and no width from the numbers."""
    monkeypatch.chdir(tmp_path)
    cells = lay_out(tmp_path)
    for cell in cells:
        if cell["system"].startswith("milvus"):
            Path(cell["query_path"]).unlink(missing_ok=True)
    page = write_page(tidy(cells), tmp_path / "site", facts=PUBLISHED, studies=STUDIES, title="Early")
    browser.look()
    browser.open(page)
    cut = browser.js(
        "return ['G', 'VI.B'].filter((name) => document.getElementById('table-' + name))"
        ".map((name) => [name, document.getElementById('table-' + name).parentElement])"
        ".map(([name, box]) => [name, box.scrollWidth - box.clientWidth])"
    )
    browser.screenshot("early", 2000)
    assert dict(cut) == {"G": 0, "VI.B": 0}


def _contrast(browser: Browser, selector: str) -> float:
    """WCAG's contrast ratio of an element's text to the ground of the page."""

    def luminance(colour: str) -> float:
        parts = [float(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
        red, green, blue = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    ink, ground = browser.js(
        "const of = (element) => getComputedStyle(element);"
        "return [of(document.querySelector(arguments[0])).color, of(document.body).backgroundColor]",
        selector,
    )
    light, dark = sorted((luminance(ink), luminance(ground)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_on_paper_there_are_no_controls(browser: Browser, site: Path) -> None:
    browser.look(media="print")
    browser.open(site / "index.html")
    assert browser.all("nav, .downloads, .skip, summary.vega-actions, .chart details") == []
    assert browser.all("#table-IV td")
    browser.look()
