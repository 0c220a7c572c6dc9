"""Write the last sections of docs/documents.md: which experiments ran (`ledger`), and what each document asks for.

`python -m casestudies.rows` (make references) makes it from config/published/rows.csv; a test fails if it is out of
date. `shown_by` lists experiments, tables of the page, and tests (`FILE::NAME`) for each row; of an experiment that the
ledger lacks, the page says that it never ran whole.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Collection, Mapping
from itertools import groupby

from anncestry.home import HOME, PUBLISHED
from anncestry.report.published import DOCUMENTS
from casestudies import ledger

PAGE = HOME / "docs" / "documents.md"
HEADING = "## Row by row\n"
STATUSES = {
    "works": "runs by our config: here, or on a machine that reaches its data and has the cores, memory and time that"
    " it asks for",
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
    ran = {line["experiment"] for line in ledger.lines()}
    said = [
        HEADING,
        f"Of {len(table)} things that the documents ask for: "
        + ", ".join(f"{counts[name]} {name}" for name in STATUSES if counts[name])
        + ". `python -m casestudies.rows` writes this section from `config/published/rows.csv`.\n",
        *(f"- **{name}**: {words}" for name, words in STATUSES.items() if counts[name]),
        _unseen(table, ran),
    ]
    for document, of in groupby(table, key=lambda row: row["document"]):
        said += [f"\n### {DOCUMENTS[document]}\n", "<!-- not measured: what the document asks for, and settings -->\n"]
        said += ["| what | status | note | shown by |", "| --- | --- | --- | --- |"]
        said += [f"| {row['row']} | {row['status']} | {row['reason']} | {_shown(row['shown_by'], ran)} |" for row in of]
    return "\n".join(said) + "\n"


def never_ran(row: Mapping[str, str], ran: Collection[str]) -> bool:
    """Whether a row that is to work is shown by experiments alone, of which none ran whole here."""
    shown = [each.partition(" ") for each in row["shown_by"].split("; ") if each]
    unseen = bool(shown) and all(kind == "experiment" and name not in ran for kind, _, name in shown)
    return unseen and row["status"] in ("works", "stand-in")


def _unseen(table: list[Mapping[str, str]], ran: Collection[str]) -> str:
    """What the statuses rest on where nothing was seen to run, in words."""
    counts = Counter(row["status"] for row in table if never_ran(row, ran))
    said = " and ".join(f"{counts[name]} *{name}*" for name in STATUSES if counts[name])
    return (
        f"\nOf these, {said} rest only on experiments that never ran whole here. The last column marks each."
        if said
        else ""
    )


def _shown(by: str, ran: Collection[str]) -> str:
    words = []
    for each in filter(None, by.split("; ")):
        kind, _, name = each.partition(" ")
        never = " (never run whole)" if kind == "experiment" and name not in ran else ""
        words.append(f"Table {name}" if kind == "table" else f"`{name}`{never}")
    return ", ".join(words)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
