"""A comparison as text for the terminal, as CSV and JSON of all its lines, and as a self-contained page."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd

from anncestry.provenance.records import replacing, write_json
from anncestry.report import shell
from anncestry.report.absence import brief
from anncestry.report.compare import Comparison
from anncestry.report.compare_sides import Side
from anncestry.report.compare_verdict import HEADLINE, NOT_COMPARABLE, UNKNOWN, Line
from anncestry.report.markup import Numbers, Sheet
from anncestry.report.numbers import inert, rows_of
from anncestry.report.quantities import PHASES
from anncestry.report.tables import NO_CELL, Cell, Column, Row, Table, TableRow, text_of

_WIDTH = 100
_CONFIDENCE = 0.95


# The terminal


def summary(comparison: Comparison, *, everything: bool = False) -> str:
    """The comparison as text of at most 100 columns, ending in a newline: headline metrics, or all of them."""
    shown = [line for line in comparison.lines if everything or line.metric in HEADLINE]
    notes = _Footnotes()
    rows = [(line, _columns(line, notes)) for line in shown]
    widths = [max((len(row[place]) for _, row in rows), default=0) for place in range(5)]
    head = ("", "A", "B", "B/A", "B − A, 95 %", "")
    widths = [max(width, len(name)) for width, name in zip(widths, head[:5], strict=True)]
    verdicts = max((len(row[5]) for _, row in rows), default=0)
    # Only the metric's name gives way: a number cut short would be another number.
    spare = _WIDTH - sum(widths) - verdicts - 2 * len(widths) - 2
    widths[0] = max(8, widths[0] + min(spare, 0))
    several = len({(line.system_a, line.system_b) for line in shown}) > 1
    out = [_cut(f"A  {_name(comparison.a)}"), _cut(f"B  {_name(comparison.b)}"), ""]
    for (dataset, topology, *systems), of_place in groupby(
        rows, lambda row: (row[0].dataset, row[0].topology, row[0].system_a, row[0].system_b)
    ):
        place = f"{dataset}, {topology}"
        if several:
            place += f": {' → '.join(name or NO_CELL for name in systems)}"
        out.append(_cut(_printable(place)))
        above: Sequence[str] = head[1:]
        for workload, members in groupby(of_place, lambda row: row[0].workload):
            out.append(_aligned((f" {_printable(workload) or 'load'}", *above), widths))
            out += [_aligned((f"  {columns[0]}", *columns[1:]), widths) for _, columns in members]
            above = ("",) * len(above)  # said once for each place
        out.append("")
    for number, words in notes:
        out += textwrap.wrap(f"[{number}] {words}", _WIDTH, subsequent_indent="    ")
    if comparison.differences:
        said = "; ".join(f"{what} {a} → {b}" for what, a, b in comparison.differences)
        out += textwrap.wrap(_printable(f"also differs: {said}"), _WIDTH, subsequent_indent="    ")
    out += textwrap.wrap(_counted(comparison), _WIDTH)
    return "\n".join(out) + "\n"


class _Footnotes:
    """Reasons, numbered in order of appearance, each once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def mark(self, words: str) -> str:
        return f"[{self._numbers.setdefault(_printable(words), len(self._numbers) + 1)}]"

    def __iter__(self) -> Any:
        return ((number, words) for words, number in self._numbers.items())


def _columns(line: Line, notes: _Footnotes) -> tuple[str, ...]:
    # A number without known noise says so by its verdict; why is the same for most, and in the files.
    remark = line.note or (line.reason if line.verdict == NOT_COMPARABLE else "")
    return (
        _printable(_metric(line)),
        _value(line.a, None, line.unit, line.problem_a),
        _value(line.b, None, line.unit, line.problem_b),
        _ratio(line),
        _interval(line),
        f"{line.verdict} {notes.mark(remark)}" if remark else line.verdict,
    )


def _aligned(texts: Sequence[str], widths: Sequence[int]) -> str:
    name, *numbers = texts[:5]
    width = widths[0] + 2
    shown = name if len(name) <= width else f"{name[: width - 1]}…"
    cells = [number.rjust(wide) for number, wide in zip(numbers, widths[1:], strict=True)]
    return "  ".join([shown.ljust(width), *cells, texts[5]]).rstrip()


def _cut(line: str) -> str:
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 1]}…"


def _printable(words: str) -> str:
    """Text that can't steer a terminal: control signs, which a name may hold, are written out."""
    return "".join(sign if sign.isprintable() else f"\\x{ord(sign):02x}" for sign in words)


def _name(side: Side) -> str:
    known = " ".join(filter(None, (side.kind, side.commit[:12])))
    return _printable(f"{side.label} ({known})" if known else side.label)


def _counted(comparison: Comparison) -> str:
    """How often which verdict was given, and of how many differences so many would be told by chance alone."""
    judged = sum(line.low is not None for line in comparison.lines)
    differ = sum(line.decided for line in comparison.lines)
    counts = ", ".join(f"{verdict} {count}" for verdict, count in comparison.counts().items()) or "nothing to compare"
    chance = (1 - _CONFIDENCE) * judged
    digits = 1 if chance < 1 else 0
    return (
        f"{counts}. Of {judged} numbers with a known noise {differ} differ; about {chance:.{digits}f} would by"
        f" chance alone. Noise: {_noise(comparison)}."
    )


def _noise(comparison: Comparison) -> str:
    """What was taken for noise, in words."""
    noise = comparison.noise
    by_source: dict[str, list[str]] = {}
    for metric in HEADLINE:
        if metric in noise.of_metric:
            floor = noise.of_metric[metric]
            by_source.setdefault(floor.source, []).append(f"{metric} {100 * floor.relative:.1f} %")
    floors = [str(noise.common)] if noise.common else []
    floors += [f"{source}: {', '.join(said)}" for source, said in by_source.items()]
    return "; ".join(["the spread of runs (of recall: of queries)", *floors])


# What both kinds of tables show


def _metric(line: Line) -> str:
    """The metric's name, with the phase where several have one of that name."""
    named = line.phase in ("query", "recall", "storage") or line.metric in {f"{phase}_s" for phase in PHASES}
    return line.metric if named or line.metric in HEADLINE else f"{line.phase} {line.metric}"


def _value(value: float | None, std: float | None, unit: str, problem: str) -> str:
    if value is None:
        return brief(problem) if not problem.startswith("no ") else NO_CELL
    return text_of(value, std, unit)


def _ratio(line: Line) -> str:
    if line.ratio is None:
        return NO_CELL
    return f"{line.ratio:.2f}" if 0.1 <= line.ratio < 1000 else f"{line.ratio:.2g}"


def _interval(line: Line) -> str:
    """The interval of B - A: in percent of A, or as it is for a fraction, and where A is zero."""
    if line.low is None or line.high is None:
        return NO_CELL
    if line.unit == "fraction" or not line.a:
        return f"{_signed(line.low, '.4f')} … {_signed(line.high, '.4f')}"
    bounds = [100 * bound / line.a for bound in (line.low, line.high)]
    return " … ".join(_signed(bound, ".1f" if abs(bound) < 100 else ",.0f") for bound in bounds) + " %"


def _signed(value: float, form: str) -> str:
    return f"{value:+{form}}".replace("-", "−")


# Files


def write(comparison: Comparison, out_dir: Path) -> Path:
    """Write comparison.csv and comparison.json (every line, unrounded), and index.html; returns the page's path."""
    rows = [asdict(line) for line in comparison.lines]
    with replacing(out_dir / "comparison.csv") as temporary:
        frame = pd.DataFrame(rows, columns=[field.name for field in fields(Line)], dtype=object)
        inert(frame).to_csv(temporary, index=False, lineterminator="\n")
    sides = {
        letter: {"label": side.label, "kind": side.kind, "commit": side.commit} for letter, side in _sides(comparison)
    }
    differences = [{"what": what, "a": a, "b": b} for what, a, b in comparison.differences]
    write_json(out_dir / "comparison.json", {**sides, "differences": differences, "lines": rows})
    ids = _Ids(comparison)
    headline = [line for line in comparison.lines if line.metric in HEADLINE]
    others = [line for line in comparison.lines if line.metric not in HEADLINE]
    return shell.write(
        out_dir / "index.html",
        "compare.html",
        title=f"{comparison.b.label} against {comparison.a.label}",
        ancestry=ids.ancestry(),
        numbers=Numbers(),
        colours={},
        a=_name(comparison.a),
        b=_name(comparison.b),
        counted=_counted(comparison),
        tables=_tables(headline, ids, ""),
        reasons=_reasons(comparison.lines),
        differences=Sheet(("Fact", "A", "B"), comparison.differences, "Differences", "tight"),
        more=_tables(others, ids, "more-"),
    )


def _sides(comparison: Comparison) -> tuple[tuple[str, Side], tuple[str, Side]]:
    return ("a", comparison.a), ("b", comparison.b)


class _Ids:
    """Names of numbers and records on one page, though both sides may use a name for two things.

    A number that was measured again under the same key has one id and one path in both revisions.
    """

    def __init__(self, comparison: Comparison) -> None:
        self._rows = {letter: rows_of(side.numbers) for letter, side in _sides(comparison)}
        self._sides = dict(_sides(comparison))
        digests: dict[str, set[str]] = {}
        for rows in self._rows.values():
            for row in rows:
                digests.setdefault(row["record"], set()).add(row["record_sha256"])
        self._two = {path for path, found in digests.items() if len(found) > 1}

    def of(self, letter: str, number: str, record: str) -> str:
        """The id on this page of a side's number."""
        return f"{number}-{letter}" if number and record in self._two else number

    def ancestry(self) -> dict[str, Any]:
        """What the page's script shows of a number, those of both sides."""
        rows: dict[str, Row] = {}
        records: dict[str, Mapping[str, Any]] = {}
        for letter, of_side in self._rows.items():
            side = self._sides[letter]
            for row in of_side:
                number = self.of(letter, row["number_id"], row["record"])
                path = f"{row['record']} ({letter.upper()})" if row["record"] in self._two else row["record"]
                rows.setdefault(number, {**row, "number_id": number, "record": path})
                if row["record"] in side.records:
                    records[path] = {**side.records[row["record"]], "sha256": row["record_sha256"]}
        return shell.ancestry(list(rows.values()), records)


def _tables(lines: Iterable[Line], ids: _Ids, prefix: str) -> list[Table]:
    """One table a dataset, topology and pair of systems."""
    built = []
    places = groupby(lines, lambda line: (line.dataset, line.topology, line.system_a, line.system_b))
    for number, ((dataset, topology, *systems), members) in enumerate(places, start=1):
        a, b = (name or NO_CELL for name in systems)
        columns = (Column(f"A: {a}"), Column(f"B: {b}"), Column("B / A"), Column("B − A, 95 %"), Column("Verdict of B"))
        built.append(
            Table(
                f"{prefix}{number}",
                f"{dataset}, {topology}",
                f"{b} (B) against {a} (A).",
                ("Workload", "Metric", "Unit"),
                columns,
                tuple(row_of(line, ids.of) for line in members),
            )
        )
    return built


def row_of(line: Line, id_of: Callable[[str, str, str], str]) -> TableRow:
    """A line as a row (workload, metric, unit): A, B, B / A, the interval of B - A, and the verdict.

    `id_of` gives the id on the page of a number, from its side (a or b), its own id and its record.
    """
    a, b = id_of("a", line.number_a, line.record_a), id_of("b", line.number_b, line.record_b)
    both = (a, b) if line.ratio is not None else ()
    said = f"{line.verdict}, {line.note}" if line.note else line.verdict
    # The spread of recall over repeats is not the noise that its verdict is about.
    std_a, std_b = (None, None) if line.phase == "recall" else (line.std_a, line.std_b)
    cells = (
        Cell(
            _value(line.a, std_a, line.unit, line.problem_a),
            number_id=a,
            problem=line.problem_a,
            best=line.better == "a",
        ),
        Cell(
            _value(line.b, std_b, line.unit, line.problem_b),
            number_id=b,
            problem=line.problem_b,
            best=line.better == "b",
        ),
        Cell(_ratio(line), parents=both),
        Cell(_interval(line), parents=both if line.low is not None else ()),
        Cell(said, problem=line.reason if line.verdict == NOT_COMPARABLE else ""),
    )
    return TableRow((line.workload or "load", _metric(line), line.unit), cells)


def _reasons(lines: Iterable[Line]) -> Sheet:
    """Each reason once, with the cells and stages that it concerns."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for line in lines:
        if line.verdict in (NOT_COMPARABLE, UNKNOWN):
            where = f"{line.dataset}, {line.topology}, {line.workload or 'load'}"
            found.setdefault((line.verdict, line.reason), {})[where] = None
    ordered = sorted(found.items(), key=lambda item: item[0])
    rows = [(verdict, reason, "; ".join(places)) for (verdict, reason), places in ordered]
    return Sheet(("Verdict", "Reason", "Where"), rows, "Reasons")
