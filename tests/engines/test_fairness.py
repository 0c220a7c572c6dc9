"""The fairness sheet of the docs: every system has its row, every engine its facts, and the page is current."""

from __future__ import annotations

import re
import runpy

import pytest

from anncestry.cells import config
from tests.servers import ROOT

SHEET = runpy.run_path(str(ROOT / "tools" / "pages" / "fairness.py"))
PAGE = SHEET["PAGE"].read_text()
CONFIG = config.load(ROOT / "config")


def rows_of(heading: str) -> list[list[str]]:
    """The cells of the table below a heading, by row."""
    section = re.split(r"^#+ ", PAGE.split(f"# {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def test_the_page_is_current():
    assert SHEET["page"]() == PAGE, "run `make references`"


def test_every_system_has_its_row():
    assert [row[0] for row in rows_of("Every system")] == list(CONFIG.systems)
    assert all(all(row) for row in rows_of("Every system"))


@pytest.mark.parametrize("family", sorted({SHEET["family"](system) for system in CONFIG.systems.values()}))
def test_every_engine_says_why_it_was_left_as_it_is_and_what_its_documentation_advises(family):
    known = SHEET["facts"]().get(family, {})
    assert sorted(known) == sorted(SHEET["PARTS"]), f"docs/fairness.yaml: {family}: needs why, advice and source"
    assert all(len(text) > 10 for text in known.values())
    source = known["source"]
    assert source.startswith("https://") or (ROOT / source).exists()


def test_facts_are_of_engines_that_there_are():
    assert set(SHEET["facts"]()) == {SHEET["family"](system) for system in CONFIG.systems.values()}


def test_durability_and_consistency_of_all_stand_side_by_side():
    rows = rows_of("Acknowledged writes, side by side")
    families = {SHEET["family"](CONFIG.systems[row[0]]) for row in rows}
    assert families == {SHEET["family"](system) for system in CONFIG.systems.values()}
    assert all(durable and seen for _, durable, seen in rows)
    assert "fsync" in next(durable for name, durable, _ in rows if name == "pgvector-0.8.5")


def test_what_was_set_is_what_the_config_sets():
    name = "mariadb-11.8.6"
    said = next(row for row in rows_of("Every system") if row[0] == name)[3]
    settings = CONFIG.systems[name].settings
    assert all(f"{key}={value}" in said for key, value in settings.items()) and len(settings) > 1
