"""The audit page, audit.html beside the page of results: what was published before, number by number.

Each published number with its place and trace, each finding with what recomputing gives, and our own measurement of
the same thing beside it, with the ratio, where there is one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

import pandas as pd

from anncestry.errors import DataError
from anncestry.provenance.records import replacing
from anncestry.report.audit import COMMIT, DOCUMENTS, REPOSITORY, Figure, Published
from anncestry.report.checks import Recomputed
from anncestry.report.markup import AUDIT_PAGE, Numbers, text
from anncestry.report.numbers import rows_of
from anncestry.report.recompute import CHECKS
from anncestry.report.shell import Records, ancestry, document, pages
from anncestry.report.tables import Row, text_of

NAME = AUDIT_PAGE

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

_OURS = {"storage_mb": "storage_total_mib", "raw_mb": "storage_raw_mib"}
"""Our names of what the paper measured, where they differ."""

_LOAD_PHASE = ("cpu_avg_pct", "cpu_peak_pct")
_BY_TIME = ("Table X", "Table XIV")
"""Tables of runs of a fixed time; the others are of a fixed count of queries."""


def write(df: pd.DataFrame, records: Records, out_dir: Path, *, title: str, facts: Published) -> Path:
    """Write audit.html: the facts of `facts`, with the measurements of the tidy frame `df` beside them."""
    path = out_dir / NAME
    with replacing(path) as temporary:
        temporary.write_text(_document(df, records, title, facts), encoding="utf-8")
    return path


def recomputed(facts: Published) -> dict[str, Recomputed]:
    """By finding: what its checks give, for the findings that have some. DataError for an unknown check."""
    found: dict[str, Recomputed] = {}
    for finding in facts.findings:
        parts = []
        for name in finding["check"].split():
            if name not in CHECKS:
                raise DataError(f"{facts.folder / 'findings.csv'}: {finding['id']}: unknown check {name!r}")
            parts.append(CHECKS[name](facts))
        if parts:
            figures = dict.fromkeys(figure for part in parts for figure in part.figures)
            found[finding["id"]] = Recomputed("; ".join(part.text for part in parts), tuple(figures))
    return found


def _document(df: pd.DataFrame, records: Records, title: str, facts: Published) -> str:
    numbers = Numbers()
    rows = rows_of(df)
    beside = Beside(rows, records)
    again = recomputed(facts)
    sections = [
        (f"findings-{name}", f"Findings: {words}", _findings(facts, name, again)) for name, words in DOCUMENTS.items()
    ]
    sections += [
        (f"numbers-{name}", f"Numbers: {words}", _numbers(facts, name, beside, numbers))
        for name, words in DOCUMENTS.items()
    ]
    shown = [row for row in rows if row["number_id"] in beside.shown]
    return document(
        title=f"What was published before, audited: {title}",
        eyebrow="anncestry: other people's numbers, by the same means as our own",
        opening=_opening(facts, again, beside),
        downloads="Our own numbers",
        files={"CSV": "numbers.csv", "JSON": "numbers.json", "Parquet": "numbers.parquet"},
        pages=pages(published=True),
        here=NAME,
        sections=sections,
        ancestry=ancestry(shown, {path: records[path] for path in {row["record"] for row in shown} & records.keys()}),
    )


def _opening(facts: Published, again: Mapping[str, Recomputed], beside: Beside) -> str:
    traced = [figure for figure in facts.figures if figure.agrees is not None]
    good = sum(bool(figure.agrees) for figure in traced)
    counts = Counter(finding["verdict"] for finding in facts.findings)
    verdicts = "".join(
        f"<dt>{text(name)}</dt><dd>{text(words)}: {counts[name]}</dd>\n"
        for name, words in _VERDICTS.items()
        if counts[name]
    )
    machines = ", ".join(sorted(beside.machines)) or "none"
    return (
        f'<p class="lede">{len(facts.figures)} numbers of {len(DOCUMENTS)} documents. {len(traced)} of them are traced'
        f" to raw results; {good} of these are the raw value, rounded as printed."
        f" Of {len(facts.findings)} findings, {len(again)} are recomputed here from those numbers whenever this page is"
        " made; the others come from reading, and say where.</p>\n"
        f'<p>Raw results and code are those of <span class="name">{text(REPOSITORY)}</span> at'
        f' <span class="mono">{text(COMMIT)}</span>. The lines are those of the documents\' text.'
        f' <a href="index.html">Our own results</a>.</p>\n'
        "<p><b>Ours</b> stands beside a published number where the same was asked of the same system on the same"
        f" topology and dataset. Machines: ours {text(machines)}; the paper's records name none. A ratio therefore"
        " compares machines and versions as well, and is no verdict on either.</p>\n"
        f'<dl class="words">{verdicts}</dl>\n'
    )


def _findings(facts: Published, name: str, again: Mapping[str, Recomputed]) -> str:
    lines = ""
    for finding in facts.findings:
        if finding["document"] != name:
            continue
        made = again.get(finding["id"])
        said = text(made.text) if made else text(finding["found"])
        how = _sources(made.figures) if made else "by reading"
        lines += (
            f'<tr id="{text(finding["id"])}"><th scope="row">{text(finding["place"])}</th>'
            f"<td>{text(finding['claim'])}</td><td>{said}"
            f'<span class="published">{how}</span></td><td>{text(finding["verdict"])}</td></tr>\n'
        )
    head = "".join(f'<th scope="col">{label}</th>' for label in ("Where", "Said", "Recomputed, or read", "Verdict"))
    return _table(head, lines, f"Findings about {DOCUMENTS[name]}", "sheet tight")


def _sources(figures: Sequence[Figure]) -> str:
    if not figures:
        return "recomputed from the raw runs"
    links = ", ".join(f'<a href="#{text(figure.id)}">{text(figure.value)}</a>' for figure in figures)
    if len(figures) <= 8:
        return f"from {links}"
    return f"<details><summary>from {len(figures)} numbers</summary>{links}</details>"


def _numbers(facts: Published, name: str, beside: Beside, numbers: Numbers) -> str:
    parts = ""
    mine = [figure for figure in facts.figures if figure.document == name]
    traced = any(figure.source_file for figure in mine)
    labels = ["Of", "Printed", "Line", *(["Raw value", "Trace"] if traced else []), *(["Ours"] if traced else [])]
    head = "".join(f'<th scope="col">{label}</th>' for label in labels)
    for place, figures in groupby(mine, key=lambda figure: figure.place):
        listed = list(figures)
        lines = "".join(_line(figure, traced, beside, numbers) for figure in listed)
        parts += (
            f"<details><summary>{text(place)}: {len(listed)} numbers</summary>\n"
            f"{_table(head, lines, place, 'sheet tight')}</details>\n"
        )
    return parts


def _line(figure: Figure, traced: bool, beside: Beside, numbers: Numbers) -> str:
    spread = f" ± {figure.std}" if figure.std else ""
    cells = [
        f'<a href="#{text(figure.id)}">{text(figure.value + spread)}</a> {text(figure.unit)}',
        text(figure.line),
    ]
    if traced:
        wrong = figure.agrees is False
        cells.append(f"{text(figure.source_value)}{' ≠' if wrong else ''}" if figure.source_value else "—")
        ran = "" if figure.ran_on in ("", figure.topology) else f", run on {figure.ran_on}"
        cells.append(text(f"{figure.source_file} · {figure.source_key}{ran}") if figure.source_file else "not traced")
        cells.append(beside.of(figure, numbers))
    row = "".join(f"<td>{cell}</td>" for cell in cells)
    return f'<tr id="{text(figure.id)}"><th scope="row">{text(figure.what)}</th>{row}</tr>\n'


def _table(head: str, lines: str, name: str, kind: str) -> str:
    if not lines:
        return ""
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{text(name)}"><table class="{kind}">'
        f'<caption class="hidden">{text(name)}</caption><thead><tr>{head}</tr></thead>\n'
        f"<tbody>{lines}</tbody></table></div>\n"
    )


class Beside:
    """Our measurements, by what was asked; those that were shown are remembered, for their ancestry."""

    def __init__(self, rows: Iterable[Row], records: Records) -> None:
        self._rows: dict[tuple[str, ...], list[Row]] = {}
        self._records = records
        self.shown: set[str] = set()
        self.machines: set[str] = set()
        for row in rows:
            if row["value"] is not None:
                self._rows.setdefault((row["dataset"], row["engine"], row["topology"], row["metric"]), []).append(row)

    def matches(self, figure: Figure) -> list[Row]:
        """What we measured of the same thing: a row a system."""
        metric = _OURS.get(figure.metric, figure.metric)
        where = (figure.dataset, figure.system, figure.ran_on or figure.topology, metric)
        chosen: dict[str, Row] = {}
        for row in sorted(self._rows.get(where, ()), key=lambda row: (row["duration_s"] is None) == _timed(figure)):
            if _same_question(figure, row):
                chosen.setdefault(row["system"], row)
        found = [chosen[system] for system in sorted(chosen)]
        for row in found:
            self.shown.add(row["number_id"])
            self._machine(row)
        return found

    def of(self, figure: Figure, numbers: Numbers) -> str:
        """The same as a line a system, each with its ratio to the published number."""
        parts = []
        for row in self.matches(figure):
            link = numbers.of(row, text_of(row["value"], row["std"], row["unit"]))
            ratio = f", {row['value'] / figure.number:.2f} times" if figure.number else ""
            parts.append(f'{link} <span class="unit">{text(row["system"])}{ratio}</span>')
        return "<br>".join(parts) or "—"

    def _machine(self, row: Row) -> None:
        machine = self._records.get(row["record"], {}).get("platform") or {}
        if machine:
            known = (f"{machine.get('cores')} × {machine.get('cpu_model')}", f"{machine.get('memory_gib')} GiB")
            self.machines.add(", ".join(known))


def _timed(figure: Figure) -> bool:
    return figure.place in _BY_TIME


def _same_question(figure: Figure, row: Row) -> bool:
    if row["phase"] in ("load", "storage") or figure.metric in _LOAD_PHASE:
        return row["phase"] in ("load", "storage")
    asked = {"k": row["k"], "clients": row["clients"]}
    same = all(getattr(figure, name) in ("", str(value)) for name, value in asked.items())
    return same and bool(row["filter"]) == (figure.filtered == "1") and bool(figure.k)
