"""The site of the documentation: it names every page, and every page begins with what it is for."""

from __future__ import annotations

import os
import re
import runpy
from itertools import pairwise
from pathlib import Path

import pytest

from anncestry import engines
from anncestry.engines.mysql import DIALECTS
from tests.bench import duet, guarded

ROOT = Path(__file__).resolve().parents[1]
BUILD = runpy.run_path(str(ROOT / "tools" / "pages" / "build.py"))
NAV: list[str] = BUILD["nav"]()
MEASURED = runpy.run_path(str(ROOT / "tools" / "pages" / "measured.py"))
RECORDS = runpy.run_path(str(ROOT / "tools" / "pages" / "records.py"))
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_LONGEST_PURPOSE_WORDS = 30


def _pages() -> list[str]:
    """All pages that people read, as paths from the root of the repository."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "config").rglob("*.md")]
    found += [*(ROOT / "evidence").glob("*.md"), *(ROOT / "reports").glob("*.md")]
    return sorted(str(path.relative_to(ROOT)) for path in found)


def test_the_site_names_every_page_once():
    assert sorted(NAV) == _pages(), "`nav` of tools/pages/mkdocs.yml should name each page once"


def test_links_lead_from_the_first_page_to_every_page():
    reached, ahead = {"README.md"}, ["README.md"]
    while ahead:
        page = ahead.pop()
        for target in _LINK.findall((ROOT / page).read_text()):
            linked = os.path.normpath(Path(page).parent / target.partition("#")[0])
            if linked in NAV and linked not in reached:
                reached.add(linked)
                ahead.append(linked)
    assert sorted(reached) == _pages()
    index = {os.path.normpath(Path("docs") / link) for link in _LINK.findall((ROOT / "docs/README.md").read_text())}
    assert {page for page in NAV if page.startswith("docs/")} - index == {"docs/README.md"}, "it lists all pages"


@pytest.mark.parametrize("page", [page for page in _pages() if page != "README.md"])
def test_a_page_begins_with_one_sentence_of_what_it_is_for(page):
    title, purpose = (ROOT / page).read_text().split("\n\n")[:2]
    assert title.startswith("# ") and "\n" not in title
    words = " ".join(purpose.split())
    assert re.fullmatch(r"This page (shows|says|lists|explains|defines|leads) [^.]*\.", words), f"{page}: {words}"
    assert len(words.split()) <= _LONGEST_PURPOSE_WORDS


@pytest.mark.parametrize("page", [page for page in _pages() if page != "CHANGELOG.md"])
def test_a_page_says_where_its_measured_figures_are_from(page):
    assert list(MEASURED["faults"]((ROOT / page).read_text())) == [], "tools/pages/measured.py says what is missing"


TABLE = "| system | p50, ms | id |\n| --- | --- | --- |\n| a | 1.2 | `n0123456789` |"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("It took 12 minutes.", "'12 minutes' is a measured figure"),
        ("## Head\n- It answers\n  1,007 QPS.", "'1,007 QPS' is a measured figure"),
        ("Throughput: 422 ± 106", "'± 1' is a measured figure"),
        ("    p50  1.61 ms", "'1.61 ms' is a measured figure"),
        ("A ratio of 1.04 (0.9 – 1.1).", "'(0.9 – 1.1)' is a measured figure"),
        ("Rows were accepted again after 7 to 40 s.", "'40 s' is a measured figure"),
        ("It took a rest of 12\nseconds, in 1 hour.", "'12\\nseconds' is a measured figure"),
        ("With recall .89 and .84, it", "'.89' is a measured figure"),
        ("Recall is 0.952 there.", "'0.952' is a measured figure"),
        ("All eight have recall 1.000.", "'1.000' is a measured figure"),
        ("In 7.6 % of the searches", "'7.6 %' is a measured figure"),
        ("It needs 1.6 times as long", "'1.6 times' is a measured figure"),
        ("this a factor of 8", "'factor of 8' is a measured figure"),
        ("| | recall |\n| --- | --- |\n| a | 1 of 3 |", "'| a | 1 of 3 |' is a measured figure"),
        ("- One\n\n    <!-- not measured: a limit -->\n\n    It waits 12 ms.", ""),
        (TABLE, "'| a | 1.2 | `n0123456789` |' is a measured figure"),
        ("<!-- measured: make bench; 2026-11-25; 28776f8 -->\n\nTwo.\n\nIt took 12 minutes.", "'12 minutes' is a"),
        ("<!-- measured: make bench; yesterday; 28776f8 -->\n\nIt took 12 minutes.", "is not COMMAND; DATE; COMMIT"),
        ("<!-- measured: docs/none.csv -->\n\nIt took 12 minutes.", "is no kept file"),
        (f"<!-- evidence: numbers smoke -->\n\n{TABLE}\n| b | 1.3 | |", "'| b | 1.3 | |' has no id"),
        (f"<!-- evidence: numbers smoke -->\n\n{TABLE}", ""),
        (f"<!-- evidence: numbers default -->\n\n{TABLE}", "is no kind of block of an experiment whose results ship"),
        (f"<!-- evidence: figures smoke -->\n\n{TABLE}", "is no kind of block of an experiment whose results ship"),
        ("<!-- measured: make bench; 2026-11-25; 28776f8 -->\n\nIt took 12 minutes.", ""),
        ("<!-- here since: command not recorded; 2026-11-25; 28776f8 -->\n\nIt took 12 minutes.", ""),
        ("<!-- not measured: a limit -->\n\nIt waits 12 ms.", ""),
        ("At most 5 %, up to 40 s, less\nthan 4 ms, ≤ .001, within 2 s, every 0.25 s, the worst 1 % of queries.", ""),
        ("With ef 200, a level of its one-sided 95 % interval and 95 % intervals, 0.1 % to 90 % of the rows pass.", ""),
        ("Version 1.27.0, PDDL 1.0, 60,000 × 784, images of 64 MiB, 100 times k, [0.95.2](a-0.95.md), 12 rows.", ""),
        ("Numbers of 3 systems beyond ±2^24, `timeout: 5 ms`.\n\n```python\nwait = 5  # 5 ms\n```", ""),
    ],
)
def test_what_counts_as_a_measured_figure_and_as_its_source(text, said):
    found = list(MEASURED["faults"](text))
    assert len(found) == bool(said) and all(said in each for each in found), found


def test_a_folder_of_pages_holds_each_page_and_what_it_links(tmp_path):
    BUILD["copy"](tmp_path / "pages")
    for page in NAV:
        assert (tmp_path / "pages" / page).read_bytes() == (ROOT / page).read_bytes()
        for target in _LINK.findall((ROOT / page).read_text()):
            if not re.match(r"[a-z]+:|#", target):
                linked = (tmp_path / "pages" / page).parent / target.partition("#")[0]
                assert linked.is_file(), f"{page}: {target}"


def test_the_page_of_records_is_current_and_has_each_stage():
    assert RECORDS["PAGE"].read_text() == RECORDS["page"](), "run `make references`"
    stages = RECORDS["yaml"].safe_load(RECORDS["SCHEMA"].read_text())["properties"]["stage"]["enum"]
    assert sorted(RECORDS["STAGES"]) == sorted(stages)


def test_each_key_of_a_record_has_a_meaning():
    rows = re.findall(r"^\| `(.*?)` \| .* \|(.*)\|$", RECORDS["page"](), re.MULTILINE)
    assert len(rows) > 100
    assert not [key for key, meaning in rows if not meaning.strip()]


@pytest.mark.parametrize("page", _pages())
def test_a_list_begins_after_an_empty_line_as_the_site_needs(page):
    lines = re.sub(r"^ *```.*?^ *```$", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL).splitlines()
    item = re.compile(r" *(- |\d+\. )")
    wrong = [
        line
        for before, line in pairwise(lines)
        if item.match(line) and before.strip() and not (item.match(before) or re.match(r"  |#", before))
    ]
    assert wrong == []


def test_the_page_of_experiments_names_each_of_them():
    named = set(re.findall(r"`([a-z0-9.-]+)`", (ROOT / "docs" / "experiments.md").read_text()))
    assert {path.stem for path in (ROOT / "config" / "experiments").glob("*.yaml")} <= named


def test_what_is_said_of_pairs_is_written_from_what_the_bench_measured():
    assert (ROOT / "docs" / "duet.md").read_text().endswith(duet.section(duet.LINES.read())), (
        "run `make bench-duet TURNS=0`"
    )


def test_the_table_of_planted_regressions_is_of_the_kept_guards() -> None:
    table = "\n".join(guarded.table(guarded.LINES.read()))
    assert table in (ROOT / "docs" / "guard.md").read_text(), "run `make bench-guard TURNS=0`"


def test_the_versions_that_each_engine_takes_are_as_the_page_of_upgrades_says():
    text = (ROOT / "docs" / "upgrading.md").read_text()
    offers = {name: engines.offers_of(name) for name in engines.known()}
    taken = {name: of.versions for name, of in offers.items() if not of.in_process and name != "mysql"}
    for name, bounds in (taken | {name: dialect.versions for name, dialect in DIALECTS.items()}).items():
        row = re.search(rf"^\| {name} \| (\S+).*? \| (\S+) \|", text, re.M)
        assert row and row.groups() == tuple(".".join(map(str, version)) for version in bounds), name
