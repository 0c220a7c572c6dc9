"""What the documents ask for, row by row: each has a status, a reason where it doesn't work, and what shows it."""

from __future__ import annotations

import pytest

from anncestry.report.published import DOCUMENTS
from casestudies import rows
from tests.toy import ROOT

TABLE = rows.rows()


def test_the_page_is_made_of_the_table() -> None:
    text = rows.PAGE.read_text(encoding="utf-8")
    assert rows.page(text) == text, "python -m casestudies.rows writes it"


def test_every_document_has_rows_and_no_row_stands_twice() -> None:
    assert {row["document"] for row in TABLE} == set(DOCUMENTS)
    assert len({(row["document"], row["row"]) for row in TABLE}) == len(TABLE)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row['document']}: {row['row']}")
def test_a_row_says_what_shows_it_or_why_it_is_not_there(row: dict[str, str]) -> None:
    assert row["status"] in rows.STATUSES
    assert row["shown_by"] if row["status"] in ("works", "stand-in", "remote only") else row["reason"]
    for each in filter(None, row["shown_by"].split("; ")):
        kind, _, name = each.partition(" ")
        if kind == "experiment":
            assert name == "default" or (ROOT / f"config/experiments/{name}.yaml").exists()
        elif kind == "test":
            assert (ROOT / name).exists()
        else:
            assert kind == "table" and name.isupper()
