"""The audit page, audit.html beside the page of results: what was published before, number by number.

Each published number with its place and trace, each finding with what recomputing gives, and our own measurement of
the same thing beside it, with the ratio, where there is one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from anncestry.report.counterpart import METRICS, Joined, never, number
from anncestry.report.model.cells import Row, Table, text_of
from anncestry.report.model.material import Material
from anncestry.report.published import COMMIT, DOCUMENTS, REPOSITORY, Figure, Published
from anncestry.report.site import shell
from anncestry.report.site.shell import AUDIT_PAGE, Numbers
from casestudies.beside import ancestry
from casestudies.checks import Recomputed, recomputed

_VERDICTS = {
    "ok": "holds",
    "inconsistent": "contradicts another figure of the same document",
    "false": "does not hold",
    "unsupported": "can't be told from what was measured",
    "imprecise": "holds in part, or under another name",
    "mislabelled": "stands under the wrong name or mark",
    "rounding": "is not the raw value, rounded",
    "misattributed": "was measured of something else",
    "method": "was done otherwise than written, or can't be compared",
    "cause": "has another likely cause",
    "untraceable": "can't be traced",
    "typo": "is a slip of the pen",
    "note": "worth knowing",
}


def write(material: Material, facts: Published, tables: Sequence[Table], out_dir: Path, title: str) -> Path:
    """Write audit.html: the published `facts`, with our measurements beside them; it shows none of the tables."""
    beside = Beside(material, facts)
    findings = recomputed(facts)
    documents = [_document(facts, name, findings, beside) for name in DOCUMENTS]
    traced = [figure for figure in facts.figures if figure.agrees is not None]
    counts = Counter(finding["verdict"] for finding in facts.findings)
    return shell.write(
        out_dir / AUDIT_PAGE,
        Path(__file__).parent / "templates" / AUDIT_PAGE,
        title=title,
        pages=material.pages,
        ancestry=ancestry(material, beside.shown),
        numbers=Numbers(),
        documents=documents,
        figures=len(facts.figures),
        traced=len(traced),
        agreeing=sum(bool(figure.agrees) for figure in traced),
        findings=len(facts.findings),
        recomputed=len(findings),
        repository=REPOSITORY,
        commit=COMMIT,
        machines=", ".join(sorted(beside.machines)) or "none",
        verdicts=[(name, words, counts[name]) for name, words in _VERDICTS.items() if counts[name]],
    )


class _Ours(NamedTuple):
    """Our measurement of what a published number is of, as text, and its ratio to it: empty if that is zero."""

    row: Row
    shown: str
    ratio: str


class _Document(NamedTuple):
    """What the page shows of a document: its findings, each with what recomputing gave; its numbers, by their place.

    `traced`: raw values are known of some of its numbers.
    """

    name: str
    words: str
    findings: list[tuple[Mapping[str, str], Recomputed | None]]
    places: list[tuple[str, list[tuple[Figure, list[_Ours]]]]]
    traced: bool


def _document(facts: Published, name: str, findings: Mapping[str, Recomputed], beside: Beside) -> _Document:
    figures = [figure for figure in facts.figures if figure.document == name]
    traced = any(figure.source_file for figure in figures)
    return _Document(
        name,
        DOCUMENTS[name],
        [(finding, findings.get(finding["id"])) for finding in facts.findings if finding["document"] == name],
        [
            (place, [(figure, beside.of(figure) if traced else []) for figure in of_place])
            for place, of_place in groupby(figures, key=lambda figure: figure.place)
        ],
        traced,
    )


class Beside:
    """Our measurements beside published numbers; those that were shown are remembered, for their ancestry."""

    def __init__(self, material: Material, facts: Published) -> None:
        self._joined = Joined(material.by_any_client, material.records, facts)
        self._records = material.records
        self.shown: set[str] = set()
        self.machines: set[str] = set()

    def of(self, figure: Figure) -> list[_Ours]:
        """What we measured of the same thing, each with its ratio to the published number."""
        if never(figure) or figure.metric not in METRICS:
            return []
        found = []
        for row in sorted(self._joined.rows(figure), key=lambda row: (row["system"], row["topology"], row["workload"])):
            self.shown.add(row["number_id"])
            if machine := self._records.get(row["record"], {}).get("platform"):
                cpu = f"{machine.get('cores')} × {machine.get('cpu_model')}"
                self.machines.add(f"{cpu}, {machine.get('memory_gib')} GiB")
            ratio = f"{row['value'] / number(figure):.2f}" if figure.number else ""
            found.append(_Ours(row, text_of(row["value"], row["std"], row["unit"]), ratio))
        return found
