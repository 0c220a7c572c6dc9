"""Write the last sections of docs/documents.md: which experiments ran (`ledger`), and what each document asks for.

`python -m casestudies.rows` makes it from config/published/rows.csv; a test fails if it is out of date. `shown_by`
lists an experiment, a table of the page, or a file of tests for each row.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping
from itertools import groupby

from anncestry.home import HOME, PUBLISHED
from anncestry.report.published import DOCUMENTS
from casestudies import ledger

PAGE = HOME / "docs" / "documents.md"
HEADING = "## Row by row\n"
STATUSES = {
    "works": "runs by our config, here or where its data can be had",
    "stand-in": "runs against a labelled stand-in",
    "remote only": "needs an endpoint of a service (`runtime: remote`)",
    "not here": "can't run on such a machine",
    "not yet": "isn't written yet",
}


def rows() -> list[Mapping[str, str]]:
    """The table, in its order."""
    with open(PUBLISHED / "rows.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def page(text: str) -> str:
    """The page with its sections made again."""
    before = text.partition(ledger.HEADING)[0].partition(HEADING)[0]
    return before + ledger.section(ledger.lines()) + "\n" + section(rows())


def section(table: list[Mapping[str, str]]) -> str:
    """The section as Markdown."""
    counts = Counter(row["status"] for row in table)
    said = [
        HEADING,
        f"Of {len(table)} things that the documents ask for: "
        + ", ".join(f"{counts[name]} {name}" for name in STATUSES if counts[name])
        + ". `python -m casestudies.rows` writes this section from `config/published/rows.csv`.\n",
        *(f"- **{name}**: {words}" for name, words in STATUSES.items() if counts[name]),
    ]
    for document, of in groupby(table, key=lambda row: row["document"]):
        said += [f"\n### {DOCUMENTS[document]}\n", "| what | status | note | shown by |", "| --- | --- | --- | --- |"]
        said += [f"| {row['row']} | {row['status']} | {row['reason']} | {_shown(row['shown_by'])} |" for row in of]
    return "\n".join(said) + "\n"


def _shown(by: str) -> str:
    words = []
    for each in filter(None, by.split("; ")):
        kind, _, name = each.partition(" ")
        words.append(f"Table {name}" if kind == "table" else f"`{name}`")
    return ", ".join(words)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
