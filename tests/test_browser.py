"""The pages in a real browser: what a reader sees, clicks and cites. Screenshots are kept (see `browser.SCREENS`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from anncestry.report.page import write_page
from tests.browser import DESKTOP, PHONE, SCREENS, Browser, chromium
from tests.test_report import HOSTILE, PUBLISHED, World

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("profile")) as window:
        yield window
    print(f"\nscreenshots: {SCREENS}")


def _site(folder: Path, world: World | None = None, **names: str) -> Path:
    return write_page((world or World()).tidy(), folder / "site", published=PUBLISHED, **names)


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


def test_a_number_opens_its_ancestry_and_its_address_cites_it(browser: Browser, site: Path) -> None:
    browser.look()
    browser.open(site / "index.html")
    link = browser.all("#table-IV a.num")[0]
    number = (link.get_attribute("data-n") or "").split()[0]
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
        assert browser.js("return document.documentElement.scrollWidth <= innerWidth"), f"{page.name} is too wide"
        assert _contrast(browser, "body") >= 7, page.name
        browser.screenshot(f"{page.stem}-{name}", 3 * size[1])


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
