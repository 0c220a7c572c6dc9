"""The audit page, audit.html beside the page of results: what was published before, number by number.

Each published number with its place and trace, each finding with what recomputing gives, and our own measurement of
the same thing beside it, with the ratio, or why there is none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from anncestry.report.counterpart import number
from anncestry.report.model.cells import Table, text_of
from anncestry.report.model.material import Material
from anncestry.report.published import COMMIT, DOCUMENTS, REPOSITORY, Figure, Published, peer_id
from anncestry.report.site import shell
from anncestry.report.site.shell import AUDIT_PAGE, Numbers
from casestudies.beside import Counterpart, Joint, ancestry, joints
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
    every = joints(material, facts)
    findings = recomputed(facts)
    documents = [_document(facts, name, findings, every) for name in DOCUMENTS]
    found = [each for joint in every for each in joint.found]
    traced = [figure for figure in facts.figures if figure.agrees is not None]
    counts = Counter(finding["verdict"] for finding in facts.findings)
    return shell.write(
        out_dir / AUDIT_PAGE,
        Path(__file__).parent / "templates" / AUDIT_PAGE,
        title=title,
        pages=material.pages,
        ancestry=ancestry(material, {name for joint in every for name in joint.ids}),
        numbers=Numbers(),
        documents=documents,
        peers=[(peer_id(told), told) for told in facts.peers],
        figures=len(facts.figures),
        traced=len(traced),
        agreeing=sum(bool(figure.agrees) for figure in traced),
        findings=len(facts.findings),
        recomputed=len(findings),
        repository=REPOSITORY,
        commit=COMMIT,
        machines=", ".join(sorted(_machines(material, found))) or "none",
        verdicts=[(name, words, counts[name]) for name, words in _VERDICTS.items() if counts[name]],
    )


class _Ours(NamedTuple):
    """Our measurement of what a published number is of, as text, and its ratio to it: empty if that is zero."""

    found: Counterpart
    shown: str
    ratio: str


class _Number(NamedTuple):
    """A published number, our measurements of the same, and where there is none, why."""

    figure: Figure
    ours: list[_Ours]
    why_not: str


class _Document(NamedTuple):
    """What the page shows of a document: its findings, each with what recomputing gave; its numbers, by their place.

    `traced`: raw values are known of some of its numbers.
    """

    name: str
    words: str
    findings: list[tuple[Mapping[str, str], Recomputed | None]]
    places: list[tuple[str, list[_Number]]]
    traced: bool


def _document(facts: Published, name: str, findings: Mapping[str, Recomputed], every: Sequence[Joint]) -> _Document:
    of_document = [joint for joint in every if joint.figure.document == name]
    return _Document(
        name,
        DOCUMENTS[name],
        [(finding, findings.get(finding["id"])) for finding in facts.findings if finding["document"] == name],
        [
            (place, [_Number(joint.figure, _ours(joint), joint.why_not) for joint in of_place])
            for place, of_place in groupby(of_document, key=lambda joint: joint.figure.place)
        ],
        any(joint.figure.source_file for joint in of_document),
    )


def _ours(joint: Joint) -> list[_Ours]:
    ours = []
    for found in sorted(joint.found, key=lambda found: (found.system, found.topology, found.workload)):
        row = found.row
        shown = found.cell.text if row is None else text_of(row["value"], row["std"], row["unit"])
        ratio = f"{found.value / number(joint.figure):.2f}" if joint.figure.number else ""
        ours.append(_Ours(found, shown, ratio))
    return ours


def _machines(material: Material, found: Sequence[Counterpart]) -> set[str]:
    """The machines that these numbers were measured on, in words."""
    machines = set()
    for row in (each.row for each in found):
        if row is not None and (machine := material.records.get(row["record"], {}).get("platform")):
            cpu = f"{machine.get('cores')} × {machine.get('cpu_model')}"
            machines.add(f"{cpu}, {machine.get('memory_gib')} GiB")
    return machines
