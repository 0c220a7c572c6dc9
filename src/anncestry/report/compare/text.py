"""A comparison as text for the terminal, and its lines as rows of tables."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from itertools import groupby

from anncestry.metrics.decide import Outcome
from anncestry.report.compare.lines import HEADLINE, Comparison, Line, Number
from anncestry.report.compare.sides import Side
from anncestry.report.model.cells import NO_CELL, Cell, TableRow, marks_in, text_of
from anncestry.report.model.quantities import PHASES, brief

WIDTH_MIN = 100
"""Columns: what is narrower would cut what a reader needs."""
_NAMED = 4
"""Cells that are named where only their number matters."""
_HEAD = ("", "A", "B", "B/A", "B − A, 95 %", "")


def summary(comparison: Comparison, *, everything: bool = False, width: int = WIDTH_MIN) -> str:
    """The comparison as text, ending in a newline: headline metrics, or all of them.

    Names are cut, and sentences wrapped, at `width` columns, but never at fewer than `WIDTH_MIN`.

    What only one side has is counted at the end.
    """
    width = max(width, WIDTH_MIN)
    asked = [line for line in comparison.lines if everything or line.metric in HEADLINE]
    shown = [line for line in asked if not line.missing_in]
    notes: dict[str, int] = {}
    rows = [(line, _columns(line, notes)) for line in shown]
    widths = [max(len(row[place]) for row in (_HEAD, *(row for _, row in rows))) for place in range(5)]
    verdicts = max((len(row[5]) for _, row in rows), default=0)
    # Only the metric's name gives way: a number cut short would be another number.
    spare = width - sum(widths) - verdicts - 2 * len(widths) - 2
    widths[0] = max(8, widths[0] + min(spare, 0))
    several = len({(line.system_a, line.system_b) for line in shown}) > 1
    out = [_cut(f"A  {name_of(comparison.a)}", width), _cut(f"B  {name_of(comparison.b)}", width)]
    out += [*textwrap.wrap(between(comparison), width), ""]
    for (dataset, topology, *systems), of_place in groupby(rows, lambda row: table_of(row[0])):
        pair = f": {' → '.join(name or NO_CELL for name in systems)}" if several else ""
        out.append(_cut(_printable(f"{dataset}, {topology}{pair}"), width))
        above: Sequence[str] = _HEAD[1:]
        for workload, members in groupby(of_place, lambda row: row[0].workload):
            out.append(_aligned((f" {_printable(workload) or 'load'}", *above), widths))
            out += [_aligned((f"  {columns[0]}", *columns[1:]), widths) for _, columns in members]
            above = ("",) * len(above)  # the head stands once for each place
        out.append("")
    paragraphs = [f"[{number}] {words}" for words, number in notes.items()]
    if comparison.differences:
        texts = "; ".join(f"{what} {a} → {b}" for what, a, b in comparison.differences)
        paragraphs.append(_printable(f"also differs: {texts}"))
    paragraphs += _one_sided([line for line in asked if line.missing_in])
    paragraphs += [f"{sign} {words}" for sign, words in signs_of(shown)]
    if further := sorted({line.judged.of for line in shown if line.judged.further is not None}):
        paragraphs.append(f"+9: nine more {' or '.join(further)} would probably determine it")
    for paragraph in paragraphs:
        out += textwrap.wrap(paragraph, width, subsequent_indent="    ")
    out += textwrap.wrap(counted(comparison), width)
    return "\n".join(out) + "\n"


def _one_sided(lines: Sequence[Line]) -> list[str]:
    """What is not in A, and what is not in B: why, how many numbers, and of which cells."""
    found: dict[str, list[Line]] = {}
    for line in lines:
        found.setdefault(_obstacle(line), []).append(line)
    paragraphs = []
    for reason, members in sorted(found.items()):
        cells = dict.fromkeys(f"{line.dataset}/{line.topology}/{line.workload or 'load'}" for line in members)
        named = ", ".join([*list(cells)[:_NAMED], *(["…"] if len(cells) > _NAMED else [])])
        numbers = f"{len(members)} number{'s' * (len(members) != 1)} of {len(cells)} cell{'s' * (len(cells) != 1)}"
        paragraphs.append(_printable(f"only on one side: {numbers}: {reason}: {named}"))
    return paragraphs


def signs_of(lines: Sequence[Line]) -> list[tuple[str, str]]:
    """The signs that stand behind numbers of these lines, with what they mean."""
    return marks_in(number.marks for line in lines for number in (line.a, line.b))


def _columns(line: Line, notes: dict[str, int]) -> tuple[str, ...]:
    """A line's columns; its remark is a footnote, and `notes` numbers those in order of appearance."""
    # A number without known noise says so by its verdict; why is the same for most, and in the files.
    remark = _printable(line.judged.note or _obstacle(line))
    mark = f" [{notes.setdefault(remark, len(notes) + 1)}]" if remark else ""
    values = (_value(number, None, line.unit) for number in (line.a, line.b))
    return _printable(_metric(line)), *values, _ratio(line), _interval(line), f"{_said(line)}{mark}"


def _said(line: Line) -> str:
    """The verdict, with how many more rounds (queries, …) an undetermined one would take as `+9`: a line is short."""
    more = line.judged.further
    return f"{line.verdict} +{more:,}" if more is not None else line.verdict


def _obstacle(line: Line) -> str:
    """Why a line can't be compared; empty if it can."""
    return line.judged.reason if line.judged.outcome is Outcome.NOT_COMPARABLE else ""


def _aligned(texts: Sequence[str], widths: Sequence[int]) -> str:
    name, *numbers = texts[:5]
    width = widths[0] + 2
    shown = name if len(name) <= width else f"{name[: width - 1]}…"
    cells = [number.rjust(wide) for number, wide in zip(numbers, widths[1:], strict=True)]
    return "  ".join([shown.ljust(width), *cells, texts[5]]).rstrip()


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: width - 1]}…"


def _printable(words: str) -> str:
    """Text that can't steer a terminal: control signs, which a name may hold, are written out."""
    return "".join(sign if sign.isprintable() else f"\\x{ord(sign):02x}" for sign in words)


def name_of(side: Side) -> str:
    known = " ".join(filter(None, (side.kind, side.commit[:12])))
    return _printable(f"{side.label} ({known})" if known else side.label)


def between(comparison: Comparison) -> str:
    """That the sides were not measured in turns, and when each was; empty where they were, or where nothing is judged.

    Systems of one experiment are judged where they were (`lines`); two platforms are two machines anyway.
    """
    both = [comparison.measured(letter) for letter in "ab"]
    if comparison.a.kind == comparison.b.kind and comparison.a.kind in ("system", "platform"):
        return ""
    if None in both:
        return ""
    times = [" to ".join(dict.fromkeys(time[:16].replace("T", " ") for time in ends or ())) for ends in both]
    return _printable(
        f"A was measured {times[0]}, B {times[1]} (UTC), and not in turns: a change of the machine between the two"
        " would look the same as a difference of the sides."
    )


def counted(comparison: Comparison) -> str:
    """How often each verdict was given, and how often they err."""
    judged = sum(line.judged.low is not None for line in comparison.lines)
    differ = sum(line.judged.decided for line in comparison.lines)
    counts = ", ".join(f"{verdict} {count}" for verdict, count in comparison.counts().items()) or "nothing to compare"
    return (
        f"{counts}. Of {judged} numbers with a known noise {differ} differ, corrected for all of"
        f" them (Holm); equivalent: within {comparison.rule.words}."
        f" Noise: {_noise(comparison)}."
    )


def _noise(comparison: Comparison) -> str:
    """What counted as noise, in words."""
    noise = comparison.noise
    by_source: dict[str, list[str]] = {}
    for metric in HEADLINE:
        if metric in noise.of_metric:
            floor = noise.of_metric[metric]
            by_source.setdefault(floor.source, []).append(f"{metric} {100 * floor.relative:.1f} %")
    floors = [str(noise.common)] if noise.common else []
    floors += [f"{source}: {', '.join(texts)}" for source, texts in by_source.items()]
    return "; ".join(["the spread of runs (of recall: of queries)", *floors])


def table_of(line: Line) -> tuple[str, str, str, str]:
    """What the lines of one table have in common."""
    return line.dataset, line.topology, line.system_a, line.system_b


def _metric(line: Line) -> str:
    """The metric's name, with the phase where several have one of that name."""
    named = line.phase in ("query", "recall", "storage") or line.metric in {f"{phase}_s" for phase in PHASES}
    return line.metric if named or line.metric in HEADLINE else f"{line.phase} {line.metric}"


def _value(number: Number, std: float | None, unit: str) -> str:
    if number.value is None:
        return brief(number.problem) if not number.problem.startswith("no ") else NO_CELL
    return text_of(number.value, std, unit) + number.marks


def _ratio(line: Line) -> str:
    if line.ratio is None:
        return NO_CELL
    return f"{line.ratio:.2f}" if 0.1 <= line.ratio < 1000 else f"{line.ratio:.2g}"


def _interval(line: Line) -> str:
    """The interval of B - A: in percent of A, or as it is for a fraction, and where A is zero."""
    if line.judged.low is None or line.judged.high is None:
        return NO_CELL
    bounds = [line.judged.low, line.judged.high]
    a, _ = line.judged_values
    if line.unit == "fraction" or not a:
        return " … ".join(_signed(bound, ".4f") for bound in bounds)
    bounds = [100 * bound / a for bound in bounds]
    return " … ".join(_signed(bound, ".1f" if abs(bound) < 100 else ",.0f") for bound in bounds) + " %"


def _signed(value: float, form: str) -> str:
    return f"{value:+{form}}".replace("-", "−")


def row_of(line: Line, id_of: Callable[[str, str, str], str]) -> TableRow:
    """A line as a row (workload, metric, unit): A, B, B / A, the interval of B - A, and the verdict.

    `id_of` gives the id on the page of a number, from its side (a or b), its own id and its record.
    """
    cells, ids = [], []
    for letter, number in (("a", line.a), ("b", line.b)):
        ids.append(id_of(letter, number.number, number.record))
        # The spread of recall over repeats is not the noise that its verdict is about.
        shown = _value(number, None if line.phase == "recall" else number.std, line.unit)
        cells.append(Cell(shown, number_id=ids[-1], problem=number.problem, best=line.better == letter))
    both = tuple(ids) if line.ratio is not None else ()
    cells += [
        Cell(_ratio(line), parents=both),
        Cell(_interval(line), parents=both if line.judged.low is not None else ()),
        Cell(", ".join(filter(None, (line.said, line.judged.note))), problem=_obstacle(line)),
    ]
    return TableRow((line.workload or "load", _metric(line), line.unit), tuple(cells))
