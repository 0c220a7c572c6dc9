"""Table J: pairs of systems whose servers ran at once, in turns: ratios, and a verdict on each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from anncestry.metrics.decide import Pair, Sample, Verdict, judge_all, ratio_of
from anncestry.report.model.cells import (
    NO_CELL,
    Cell,
    Column,
    Row,
    Table,
    TableRow,
    arrow,
    is_control,
    text_of,
    with_interval,
)
from anncestry.report.model.material import Material
from anncestry.report.model.noise import above
from anncestry.report.model.quantities import DEPENDS, OF_PAIRS
from anncestry.report.tables.spec import made, pivot

_WORDS = {"qps": ("slower", "faster"), "server_cpu_us_per_query": ("needs less", "needs more")}
_OTHERS_PCT = 10
"""Percent of a core from which on it is worth saying what others made of a ratio."""
_PLACE = ("dataset", "topology", "system", "workload")


def verdicts(material: Material) -> dict[str, Verdict]:
    """Side b against side a of every ratio that is no control's, judged together, by the number's id.

    Both sides are of one build each: no difference counts that is within what builds of one load differ by.
    """
    judged: dict[str, tuple[Row, Pair]] = {}
    beside = []
    one = Sample(1.0, 0.0, 1)
    for row in material.pairs:
        entry = _entry(row, material.records)
        if entry is None:
            continue
        servers = len(material.records[row["record"]]["rounds"])
        pair = Pair(one, one, str(row["metric"]), ratio=ratio_of(entry, servers))
        if is_control(row):
            beside.append(pair)
        else:
            judged[row["number_id"]] = row, pair
    found = judge_all([pair for _, pair in judged.values()], material.rule, beside)
    verdicts = {}
    for (number, (row, _)), verdict in zip(judged.items(), found, strict=True):
        floor = material.noise.floor(str(row["metric"]).removeprefix("pair_"))
        verdicts[number] = above(verdict, floor, 1.0, row["value"], material.rule.margin) if floor else verdict
    return verdicts


def _entry(row: Row, records: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """A ratio as its record has it; None for other rows, and where it has no interval."""
    name = str(row["metric"]).removeprefix("pair_")
    if name not in OF_PAIRS or row["value"] is None or row["low"] is None:
        return None
    return records[row["record"]]["quantities"][name]  # type: ignore[no-any-return]


def tables(material: Material) -> list[Table]:
    """The table of pairs, if there are any."""
    judged = verdicts(material)
    failed = {_controlled(row) for row in material.pairs if is_control(row) and row["low"] and not _holds_one(row)}
    body: list[TableRow] = []
    for place, numbers in sorted(pivot(material.pairs, _PLACE).items(), key=lambda item: _order(item[0])):
        record = _record(list(numbers.values()), material)
        for name, (label, _) in OF_PAIRS.items():
            ratio = numbers.get((f"pair_{name}",))
            if ratio is None:
                continue
            sides = [numbers.get((f"pair_{side}_{name}",)) for side in ("a", "b")]
            cells = (
                *(_side(row) for row in sides),
                with_interval(ratio),
                Cell(_said(name, ratio, judged, _controlled(ratio) in failed), problem=ratio["reason"]),
                Cell(_under(record, name)),
            )
            body.append(TableRow((" · ".join((*place[:2], place[3])), _named(ratio), label), cells))
    return made(
        Table(
            "J",
            "In pairs: two servers at once, in turns",
            "Both servers run on the machine at once, under equal closed loops of clients; every half second one is"
            " frozen and the other goes on, so that both see the same minute. B / A with its 95 % interval, over fresh"
            " pairs of servers, at an equal use of the machine by other programs; the verdict on B is corrected for all"
            " of this table (Holm), and equivalent is what is surely within the declared margin. The sizes of A and B"
            " are those of this contention: absolute numbers are those of rounds. A pair of a system with itself is the"
            " control: its interval should hold 1. Under: how many cores each server had while it ran, what other"
            " programs used, and B / A as it was, with what these took from one side more than from the other.",
            ("Where", "Pair (A → B)", "Quantity"),
            (Column("A"), Column("B"), Column("B / A"), Column("Verdict on B"), Column("Under")),
            tuple(body),
        )
    )


def _order(place: Sequence[Any]) -> tuple[Any, ...]:
    """The pairs of one workload beside each other, with the control first."""
    dataset, topology, system, workload = place
    a, _, b = str(system).partition("..")
    return dataset, topology, workload, a, a != b, b


def _record(rows: Sequence[Row], material: Material) -> Mapping[str, Any]:
    """The valid record of a pair's numbers: of an invalid one nothing is shown."""
    found = (material.records[row["record"]] for row in rows if row["record"] in material.records)
    return next((record for record in found if record["valid"]), {})


def _named(row: Row) -> str:
    return arrow(row["system"]) + (" (control)" if is_control(row) else "")


def _side(row: Row | None) -> Cell:
    if row is None or row["value"] is None:
        return Cell(NO_CELL)
    shown = f"{text_of(row['value'], None, row['unit'])} {row['unit']}"
    return Cell(shown, row["value"], number_id=row["number_id"])


def _controlled(row: Row) -> tuple[str, ...]:
    """What a control is of: the first side, where and what it was asked, the quantity."""
    return str(row["system"]).partition("..")[0], row["topology"], row["workload"], row["metric"]


def _holds_one(row: Row) -> bool:
    return bool(row["low"] <= 1 <= row["high"])


def _said(name: str, ratio: Row, judged: Mapping[str, Verdict], drifted: bool) -> str:
    """The verdict in words; of a control whether its interval holds 1, and what that says of others."""
    if ratio["low"] is None:
        return NO_CELL
    if is_control(ratio):
        return "holds 1" if _holds_one(ratio) else "does not hold 1"
    verdict = judged[ratio["number_id"]]
    less, more = _WORDS.get(name, ("lower", "higher"))
    said = {"lower": less, "higher": more}.get(verdict.outcome.value, verdict.words)
    disagree = DEPENDS in ratio["note"] and name in _WORDS
    notes = [said, *([DEPENDS] if disagree else []), *(["its control does not hold 1"] if drifted else [])]
    return "; ".join(notes)


def _under(record: Mapping[str, Any], name: str) -> str:
    """The contention, once a pair, and the ratio as it was under it, where others used the machine."""
    if not record:
        return NO_CELL
    said, seen, of = [], record["contention"], record["quantities"].get(name) or {}
    as_it_was = of.get("unadjusted") or {"low": None}
    if as_it_was["low"] is not None and of.get("per_core_of_others") and seen["others_pct"] >= _OTHERS_PCT:
        said.append(f"as it was {as_it_was['value']:.3f} ({as_it_was['low']:.3f} … {as_it_was['high']:.3f})")
    if name == "qps":
        cores = seen["server_cores"]
        said.append(f"{cores['a']:.2f} and {cores['b']:.2f} cores, others {seen['others_pct']:.0f} % of one")
        more = seen["others_more_cores"]
        if more["by_a_side"]:
            side = "b" if more["value"] > 0 else "a"
            said.append(f"others used {abs(more['value']):.2f} cores more beside {side} than chance: not corrected")
        said.append(f"{len(record['rounds'])} pairs of servers")
    return "; ".join(said) or NO_CELL
