"""Gains: a number against another that was asked the same but for one thing, and a document's claim beside ours.

Ours have the verdict on their two numbers. A claim stands with its words and place and, beside it, our gain, if our two
numbers were asked what its two were, else why not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from anncestry.metrics.decide import Outcome, Verdict
from anncestry.report.compare.lines import words_of
from anncestry.report.counterpart import NO_DATASET, NO_K, Joined
from anncestry.report.model.cells import (
    NO_CELL,
    Cell,
    Column,
    Row,
    Table,
    TableRow,
    three_digits,
    with_interval,
)
from anncestry.report.model.material import Material
from anncestry.report.model.records import of_stage
from anncestry.report.model.verdicts import Verdicts, gain
from anncestry.report.published import DOCUMENTS, Figure, Published, printed_text
from anncestry.report.tables.spec import made
from casestudies.documents import MEASURED, PRINTED

NOT_ALIKE = "both were measured here, but not alike"
QUANTITIES = {
    "qps": "queries per second (1/s)",
    "mean_ms": "mean (ms)",
    "p95_ms": "p95 (ms)",
    "load_s": "load (s)",
}


@dataclass(frozen=True)
class Form:
    """How a gain is told: what is made of the number above over the one below, its digits and its unit."""

    of: Callable[[float], float]
    digits: Callable[[float], str]
    unit: str

    def text(self, ratio: float, ends: tuple[float, float] | None = None) -> str:
        """The gain, and between which two it lies."""
        said = f"{self.digits(self.of(ratio))} {self.unit}"
        if ends is not None:
            said += " ({} to {})".format(*map(self.digits, sorted(map(self.of, ends))))
        return said.replace("-", "−")


CHANGE = Form(lambda ratio: 100 * (ratio - 1), "{:+,.1f}".format, "%")
TIMES = Form(lambda ratio: ratio, three_digits, "×")
TIMES_LESS = Form(lambda ratio: 1 / ratio, three_digits, "×")
"""Of latencies: how many times as long the one below took."""


@dataclass(frozen=True)
class Gain:
    """Two numbers of ours; `labels` as `table` has them, behind the source. `why` they can't be compared, if so."""

    labels: tuple[str, ...]
    below: Row
    above: Row
    form: Form
    why: str = ""


Two = tuple[tuple[str, Figure], tuple[str, Figure]]
"""The figures below and above, each with what it is called."""


@dataclass(frozen=True)
class Claim:
    """What a document says of two numbers: in its `words`, at the place of `figure`.

    `two`: the numbers and what they are called, where it prints them; else `gain` is what it prints.
    """

    labels: tuple[str, ...]
    words: str
    figure: Figure
    form: Form
    two: Two | None = None
    gain: str = ""


Place = tuple[str, str, str]
"""A dataset, a topology and a system, by their names."""


def place_of(row: Row) -> Place:
    return row["dataset"], row["topology"], row["system"]


def loads(material: Material) -> dict[Place, Mapping[str, Any]]:
    """The records of all loads, by what they are of."""
    found = {}
    for record in of_stage(material.records, "load"):
        dataset, topology, system = (str(record["spec"][name]["name"]) for name in ("dataset", "topology", "system"))
        found[dataset, topology, system] = record
    return found


def source_of(document: str) -> str:
    """What the rows of a document call their source."""
    return f"{PRINTED} ({DOCUMENTS[document].partition(':')[0]})"


class Beside:
    """Pairs of numbers, published and ours, by what both were asked of."""

    def __init__(self, material: Material) -> None:
        self.facts = material.facts
        self._joined = Joined(material.by_any_client, material.records, material.facts) if material.facts else None
        self._printed: dict[tuple[str, str], tuple[str, Figure]] = {}

    def ours(self, two: Two, printed: str, of: Callable[[Row, Row], str]) -> Cell:
        """Our gains for a published one, that is `printed`, or why there is none.

        `two`: its figures, each with its name; `of`: the gain from one number of ours to another, empty if they are
        not asked alike.
        """
        assert self._joined is not None
        for name, figure in two:
            if reason := self._joined.why_none(figure):
                return Cell(f"{name}: {reason}")
        pairs = [(a, b) for a, b in product(*(self._joined.rows(figure) for _, figure in two)) if of(a, b)]
        if not pairs:
            return Cell(NOT_ALIKE)
        self._printed |= {(a["number_id"], b["number_id"]): (printed, two[1][1]) for a, b in pairs}
        words = "; ".join(of(a, b) for a, b in pairs)
        return Cell(words, parents=tuple(row["number_id"] for a, b in pairs for row in (b, a)))

    def theirs(self, below: Row, above: Row) -> Cell:
        """The published gain beside ours, of those that `ours` has found."""
        found = self._printed.get((below["number_id"], above["number_id"]))
        return Cell(NO_CELL) if found is None else Cell(found[0], source=found[1].id)


_VERDICT = (
    " Gain: of the numbers below and above, with its 95 % interval where their noise is known; there is none where the"
    " two were not measured in turns. Verdict: that of Table C, or judged like it. Claimed: the document's words, with"
    " their place. Beside it: the other side's gain, if both numbers were asked the same, else why not; the machines"
    " are never the same."
)


def table(
    material: Material,
    head: Table,
    gains: Sequence[Gain],
    claims: Callable[[Published], Sequence[Claim]],
) -> list[Table]:
    """The table of gains of ours, then of the claims; none without one of ours.

    `head`: its number, title, caption, labels behind the source, and the columns of the number below and above.
    """
    if not gains:
        return []
    told = list(_told(gains, material.verdicts))
    known = {(each.below["number_id"], each.above["number_id"]): of for each, (of, _) in zip(gains, told, strict=True)}
    beside = Beside(material)
    theirs = [_claimed(claim, beside, known) for claim in claims(material.facts)] if material.facts else []
    ours = [
        TableRow(
            (MEASURED, *each.labels),
            (
                with_interval(each.below),
                with_interval(each.above),
                *cells,
                Cell(NO_CELL),
                beside.theirs(each.below, each.above),
            ),
        )
        for each, cells in zip(gains, told, strict=True)
    ]
    columns = (*head.columns, Column("Gain"), Column("Verdict"), Column("Claimed"), Column("Beside it"))
    return made(
        Table(
            head.number,
            head.title,
            head.caption + _VERDICT,
            ("Source", *head.labels),
            columns,
            (*ours, *theirs),
        )
    )


def _told(gains: Sequence[Gain], known: Verdicts) -> Iterator[tuple[Cell, Cell]]:
    """Each gain and its verdict: the page's where it has one, else one at a level that holds for all others here."""
    whys = [each.why or known.out_of_turn(each.below, each.above) for each in gains]
    there = [
        bool(each.below["value"] and each.above["value"]) and not why for each, why in zip(gains, whys, strict=True)
    ]
    compared = [each for each, shown in zip(gains, there, strict=True) if shown]
    page = [known.of_two(each.below, each.above) for each in compared]
    others = [each for each, found in zip(compared, page, strict=True) if found is None]
    own = iter(known.all([(each.below, each.above) for each in others]))
    judged = (found or (each.below, each.above, next(own)) for each, found in zip(compared, page, strict=True))
    for each, why, shown in zip(gains, whys, there, strict=True):
        yield _cells(each, known, *next(judged)) if shown else (Cell(why or NO_CELL, problem=why), Cell(NO_CELL))


def _cells(of: Gain, known: Verdicts, a: Row, b: Row, verdict: Verdict) -> tuple[Cell, Cell]:
    """A gain and its verdict, which is on `b` against `a`: the numbers above and below, or the reverse."""
    ratio, ends = gain(a, b, verdict)
    if b["number_id"] == of.below["number_id"]:
        ratio, ends = 1 / ratio, ends and (1 / ends[1], 1 / ends[0])
    parents = (of.above["number_id"], of.below["number_id"])
    shown = Cell(of.form.text(ratio, ends), of.form.of(ratio), parents=parents)
    if not verdict.decided:
        return shown, Cell(": ".join(filter(None, (verdict.words, verdict.reason))))
    more = (verdict.outcome is Outcome.MORE) == (b["number_id"] == of.above["number_id"])
    words = words_of(of.above["metric"])
    better, other = (of.above, of.below) if more == (words.better > 0) else (of.below, of.above)
    noise = f"{words.more if more else words.less} (beyond the noise of {verdict.noise})"
    return shown, Cell(", ".join(filter(None, (noise, known.obstacle(better, other)))))


def _claimed(claim: Claim, beside: Beside, known: dict[tuple[str, str], Cell]) -> TableRow:
    figure = claim.figure
    place = figure.place.removeprefix("text ")
    words = Cell(f"{claim.words} ({place}, line {figure.line})", source=figure.id)
    if claim.two is None:
        reasons = (NO_DATASET if not figure.dataset else "", NO_K if not figure.k else "")
        of = (Cell(NO_CELL), Cell(NO_CELL), Cell(claim.gain, source=figure.id))
        found = Cell("; ".join(filter(None, reasons)))
    else:
        (_, below), (_, above) = claim.two
        # Of a number that is at least so large, the change to another is at most so large.
        bound = "at most " if _is_bound(below) else ""
        printed = bound + claim.form.text(above.number / below.number)
        of = (_printed(below), _printed(above), Cell(printed, source=above.id))

        def ours(a: Row, b: Row) -> str:
            cell = known.get((a["number_id"], b["number_id"]))
            return "" if cell is None else cell.text

        found = beside.ours(claim.two, printed, ours)
    return TableRow((source_of(figure.document), *claim.labels), (*of, Cell(NO_CELL), words, found))


def _is_bound(figure: Figure) -> bool:
    return "bound=lower" in figure.detail


def _printed(figure: Figure) -> Cell:
    return Cell(("at least " if _is_bound(figure) else "") + printed_text(figure.value), source=figure.id)
