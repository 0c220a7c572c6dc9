"""Two sides set against each other, number by number: what belongs together, what can't be compared and why."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from anncestry.cells import features
from anncestry.cells.features import Metric, at
from anncestry.errors import DataError
from anncestry.metrics.decide import MIN_RUNS, Outcome, Pair, Rule, Sample, Share, Verdict, judge_all
from anncestry.metrics.defects import MARKED_SHARE
from anncestry.provenance.platform import IDENTITY
from anncestry.report.compare.sides import Body, Side, listed, quoted_input
from anncestry.report.model.cells import Row, marks
from anncestry.report.model.derived import COST as COST_OF_MILLION
from anncestry.report.model.noise import Noise, above, between_pairs
from anncestry.report.model.numbers import rows_of
from anncestry.report.model.quantities import (
    ABSENT,
    HARDEST,
    HIGHEST_RATE,
    PHASES,
    SERVER_CPU,
    is_absent,
    is_missing,
    lower_limit,
    stage_of,
)
from anncestry.report.model.verdicts import (
    AGAIN,
    Paired,
    apart,
    built,
    less_recall,
    limited,
    of_builds,
    of_queries,
    of_runs,
)

HEADLINE = (
    *("load_s", "server_cpu_us_per_row", "p50_ms", "p95_ms", "p99_ms", "qps", "server_cpu_us_per_query"),
    *("recall_by_distance", "storage_total_mib", "storage_net_mib"),
)
_CHAIN = ("load", "query", "recall")
_KEY = ("dataset", "topology", "workload", "phase", "metric")

# Means over runs are rounded: runs that agree have a spread of this order, and it says nothing of noise.
_ROUNDING = 1e-12

_IN_PAIRS = "both servers at once, in turns (docs/duet.md): the verdict is of their pairs, not of the rounds shown"
_OF_CODE = {"code", "uncommitted code"}
"""Facts that any commit changes: of what measures, the epoch counts."""


@dataclass(frozen=True)
class Words:
    """What B is called where its value is less than A's, and where it is more; `better` is -1 for less, 0 neither."""

    less: str
    more: str
    better: int


TIME = Words("faster", "slower", -1)
RATE = Words("slower", "faster", +1)
RECALL = Words("worse", "better", +1)
SIZE = Words("smaller", "larger", -1)
FAILURES = Words("fewer", "more", -1)
COST = Words("less", "more", -1)
BETTER = Words("lower", "higher", +1)
AMOUNT = Words("lower", "higher", 0)  # being busy is neither good nor bad


_SCORES = {*HARDEST, "ndcg", "mrr"}
"""Recall by other names: more is better, and a share of it is no noise that anybody means by so many percent."""


def words_of(metric: str) -> Words:
    """The words for a metric of the tidy table; those of a feature's by what the feature declares."""
    if (declared := features.declared(metric)) is not None:
        return _of_declared(declared)
    if metric in _SCORES or (metric.startswith("recall_") and metric != "recall_zero_share"):
        return RECALL
    if metric.startswith("storage_"):
        return SIZE
    if metric in ("qps", "rows_per_s"):
        return RATE
    if metric in ("errors", "timeouts", "fail_per_s", "defect_share"):
        return FAILURES
    if metric in SERVER_CPU:
        return COST
    if metric.endswith("_ms") or metric in {f"{phase}_s" for phase in (*PHASES, "load", "durable", "upgrade")}:
        return TIME
    return AMOUNT


def _of_declared(metric: Metric) -> Words:
    if not metric.better:
        return AMOUNT
    if metric.better > 0:
        return RATE if metric.unit.endswith("/s") else RECALL if metric.unit == "fraction" else BETTER
    return TIME if metric.unit in ("s", "ms", "µs") else COST if metric.unit == "fraction" else FAILURES


@dataclass(frozen=True)
class Number:
    """A side's number: None or empty where it is not there, and then why (`problem`)."""

    problem: str = ""
    value: float | None = None
    std: float | None = None
    runs: int | None = None
    number: str = ""
    record: str = ""
    record_sha256: str = ""
    marks: str = ""
    """What stands behind it: a client's limit, a disturbance, defective answers."""
    defect_share: float = 0.0
    """Of the answers of its cell."""
    limit: str = ""
    """Why it is only a lower limit, not the number itself."""

    @classmethod
    def of(cls, row: Row | None, problem: str, limit: str = "") -> Number:
        """That of a row of the tidy frame, of whose columns it has some."""
        if row is None:
            return cls(problem)
        measured = (row["value"], row["std"], row["runs"])
        place = (row["number_id"], row["record"], row["record_sha256"])
        return cls(problem, *measured, *place, marks(row), row["defect_share"] or 0.0, limit)


@dataclass(frozen=True)
class Line:
    """One number of both sides, in `unit`. A system is empty where its side has none to set against the other's."""

    dataset: str
    topology: str
    workload: str
    system_a: str
    system_b: str
    phase: str
    metric: str
    unit: str
    a: Number
    b: Number
    judged: Verdict
    less_recall: bool = False
    """Of a query's speed and cost: whether the better side has less recall than a winner may, or that isn't known."""
    means: tuple[float, float] | None = None
    """Over builds, where both sides have several: then these are what is judged, and not the first ones."""

    @property
    def words(self) -> Words:
        return words_of(self.metric)

    @property
    def verdict(self) -> str:
        """Of B against A, in the words for this metric."""
        words = {Outcome.LESS: self.words.less, Outcome.MORE: self.words.more}
        return words.get(self.judged.outcome, self.judged.outcome.value)

    @property
    def said(self) -> str:
        """The verdict; of an undetermined one also what would probably determine it."""
        return self.judged.words if self.judged.outcome is Outcome.UNDETERMINED else self.verdict

    @property
    def ratio(self) -> float | None:
        """B / A; None for what can't be compared."""
        a, b = self.judged_values
        if self.judged.outcome is Outcome.NOT_COMPARABLE or not a or b is None:
            return None
        return float(b) / float(a)

    @property
    def judged_values(self) -> tuple[float | None, float | None]:
        """What the verdict holds against each other."""
        return self.means or (self.a.value, self.b.value)

    @property
    def missing_in(self) -> str:
        """The sides (A, B) that have no such number: none was measured, or there is no such cell."""
        sides = (("A", self.a), ("B", self.b))
        return "".join(letter for letter, each in sides if not each.record or is_missing(each.problem))

    @property
    def measured_twice(self) -> bool:
        """Whether both sides measured one and the same thing: under one key, but not in one record."""
        once = self.judged.outcome in (Outcome.NOT_COMPARABLE, Outcome.SAME_RECORD)
        return bool(self.a.number) and self.a.number == self.b.number and not once

    @property
    def ahead(self) -> str:
        """`a` or `b`, whichever's number is better by more than noise; empty if neither is."""
        if not self.judged.decided or not self.words.better:
            return ""
        return "b" if (self.judged.outcome is Outcome.MORE) == (self.words.better > 0) else "a"

    @property
    def better(self) -> str:
        """The side that is ahead; empty where that is bought by recall, or by more defective answers than may be."""
        best = {"a": self.a, "b": self.b}.get(self.ahead)
        won = best is not None and not self.less_recall and best.defect_share <= MARKED_SHARE
        return self.ahead if won else ""

    def columns(self) -> dict[str, Any]:
        """The line as a row of comparison.csv, unrounded."""
        values = vars(self) | vars(self.judged) | {"verdict": self.verdict, "ratio": self.ratio}
        for side, number in (("a", self.a), ("b", self.b)):
            values |= {f"{name}_{side}": value for name, value in vars(number).items()} | {side: number.value}
        return {name: values[name] for name in COLUMNS}


COLUMNS = (
    *("dataset", "topology", "workload", "system_a", "system_b", "phase", "metric", "unit"),
    *("a", "b", "std_a", "std_b", "runs_a", "runs_b", "ratio", "low", "high", "verdict", "further", "of"),
    *("p", "p_apart", "noise", "reason", "note"),
    *("problem_a", "problem_b", "number_a", "number_b"),
    *("record_a", "record_b", "record_sha256_a", "record_sha256_b"),
)
"""Of comparison.csv and comparison.json."""


@dataclass(frozen=True)
class Comparison:
    """All lines, and what else differs between the sides as (what, A's, B's): possible causes, not obstacles.

    `noise` is what counted as noise beside the spread of runs.
    """

    a: Side
    b: Side
    lines: tuple[Line, ...]
    differences: tuple[tuple[str, str, str], ...]
    noise: Noise
    rule: Rule

    def plain(self) -> dict[str, Any]:
        """All of it as JSON takes it, numbers unrounded: the sides, what else differs, and the lines."""
        sides = {"a": self.a, "b": self.b}
        return {
            **{
                name: {"label": side.label, "kind": side.kind, "commit": side.commit, "measured": self.measured(name)}
                for name, side in sides.items()
            },
            "differences": [{"what": what, "a": a, "b": b} for what, a, b in self.differences],
            "lines": [line.columns() for line in self.lines],
        }

    def measured(self, letter: str) -> tuple[str, str] | None:
        """When the first and the last of a side's numbers were measured that have a verdict by runs or builds."""
        judged = [line for line in self.lines if line.judged.low is not None and line.phase != "recall"]
        paths = {getattr(line, letter).record for line in judged}
        records = {"a": self.a, "b": self.b}[letter].records
        times = [time for path in paths & records.keys() for time in _times(records[path])]
        return (min(times), max(times)) if times else None

    def counts(self) -> dict[str, int]:
        """How often each verdict was given, most frequent first."""
        verdicts = pd.Series([line.verdict for line in self.lines], dtype="str")
        return {str(verdict): int(count) for verdict, count in verdicts.value_counts(sort=True).items()}


def _times(record: Body) -> list[str]:
    """When a record's rounds were measured, or its load."""
    rounds = [str(one["created"]) for one in record.get("rounds") or () if one.get("created")]
    return rounds or [str(record["created"])]


def compare(a: Side, b: Side, noise: Noise | None = None, rule: Rule | None = None) -> Comparison:
    """Set every number of `b` against that of `a` with the same dataset, topology, workload, phase and metric.

    A difference counts if it is larger than the spread of runs tells, and larger than the `noise` of its metric: what
    is given, and what is found between numbers that both sides measured under one key, nothing known being different.
    Those are the evidence for the noise, and judged by their runs and what is given alone.

    Numbers that neither side is meant to have (a phase that both lack, a filter that neither was asked) are left out.

    Systems are paired by name; else, one system a side, whatever their names; else those of one engine, if each side
    has one left (an upgrade). DataError where a side's records lack one that its numbers name.
    """
    named = [(f"{letter} ({side.label})", side, rows_of(side.numbers)) for letter, side in (("A", a), ("B", b))]
    found: list[tuple[Line, Pair | None, bool]] = []
    differences: dict[tuple[str, str, str], None] = {}
    for systems in _paired(*({row["system"]: row["engine"] for row in rows} for *_, rows in named)):
        halves = (_Half(*of_side, system) for of_side, system in zip(named, systems, strict=True))
        pair = _Systems(*halves, across=a.kind if a.kind == b.kind else "")
        unlike = list(pair.differences())
        found += ((*line, {what for what, *_ in unlike} <= _OF_CODE) for line in pair.lines())
        differences.update(dict.fromkeys(unlike))
    rule = rule or Rule()
    beside = Paired([*a.records.values(), *b.records.values()]).beside({line.metric: None for line, *_ in found})
    lines = _judged_together(found, rule, beside)
    twice = [line for line, (*_, alike) in zip(lines, found, strict=True) if alike and line.measured_twice]
    given = noise or Noise()
    known = given.with_measured(between_pairs((line.metric, line.a.value or 0, line.b.value or 0) for line in twice))
    judged = [
        (_limited(_floored(line, pair, given if line.measured_twice else known, rule)), pair)
        for line, (_, pair, _) in zip(lines, found, strict=True)
    ]
    return Comparison(a, b, tuple(sorted(_with_recall(judged, rule), key=_order)), tuple(differences), known, rule)


def _judged_together(found: Sequence[tuple[Line, Pair | None, bool]], rule: Rule, beside: Sequence[Pair]) -> list[Line]:
    """The lines with their verdicts: those of the headline metrics are corrected together, and all others together."""
    lines = [line for line, *_ in found]
    for headline in (True, False):
        family = [
            (place, pair)
            for place, (line, pair, _) in enumerate(found)
            if pair is not None and (line.metric in HEADLINE) == headline
        ]
        for (place, pair), verdict in zip(family, judge_all([pair for _, pair in family], rule, beside), strict=True):
            note = _IN_PAIRS if pair.ratio is not None else verdict.note
            lines[place] = replace(lines[place], judged=replace(verdict, note=note))
    return lines


def _floored(line: Line, pair: Pair | None, noise: Noise, rule: Rule) -> Line:
    """The line, judged by the floor of its metric as well: of a `pair` of servers, its ratio."""
    # A share of a recall, or of a count of failures, is no noise that anybody means by so many percent.
    common = line.words not in (RECALL, FAILURES)
    floor = noise.floor(line.metric, common=common)
    if line.means:  # what differs between builds is in the verdict
        floor = noise.common if common else None
    a, b = line.judged_values
    if floor is None or a is None or b is None:
        return line
    ratio = None if pair is None or pair.ratio is None else pair.ratio.log
    margin = rule.margin
    if pair is not None and isinstance(pair.a, Share) and a:
        margin = rule.recall_margin / abs(a)
    values = (a, b) if ratio is None else (1.0, math.exp(ratio))
    return replace(line, judged=above(line.judged, floor, *values, margin))


def _limited(line: Line) -> Line:
    """The line, judged by what of its numbers is only a lower limit as well."""
    return replace(line, judged=limited(line.judged, line.a.limit, line.b.limit))


_Judged = tuple[Line, Pair | None]
"""A line, and what its verdict is of; None where nothing was judged."""


def _with_recall(lines: Iterable[_Judged], rule: Rule) -> Iterator[Line]:
    """The lines, where a query's speed or cost differs with what its recall says of that."""
    of_cell: dict[tuple[str, ...], list[_Judged]] = {}
    for line, pair in lines:
        cell = (line.dataset, line.topology, line.workload, line.system_a, line.system_b)
        of_cell.setdefault(cell, []).append((line, pair))
    for (_, _, workload, *_), members in of_cell.items():
        # By distance: one of several rows that are as far is as good as another.
        known = {line.metric: (line, pair) for line, pair in members if None not in (line.a.value, line.b.value)}
        recall = known.get("recall_by_distance", known.get("recall_by_id"))
        for line, _ in members:
            if not (workload and line.ahead and line.words in (TIME, RATE, COST)):
                yield line
                continue
            less, said = _of_recall(line.ahead, recall, rule)
            note = "; ".join(filter(None, (line.judged.note, said)))
            yield replace(line, judged=replace(line.judged, note=note), less_recall=less)


def _of_recall(ahead: str, recall: _Judged | None, rule: Rule) -> tuple[bool, str]:
    """Whether the side that is `ahead` has too little recall to win, by the rule of a page; and what to say of it."""
    if recall is None or recall[0].judged.outcome is Outcome.NOT_COMPARABLE:
        return True, "recall is not known" if recall is None else "recalls are not comparable"
    line, pair = recall
    mine, theirs = ("a", "b") if ahead == "a" else ("b", "a")
    less = pair is not None and less_recall(getattr(pair, mine), getattr(pair, theirs), rule)
    said = f"with {line.verdict} recall: {line.a.value:.4f} against {line.b.value:.4f}"
    return less, said if less or line.judged.decided else ""


def _order(line: Line) -> tuple[Any, ...]:
    rank = HEADLINE.index(line.metric) if line.metric in HEADLINE else len(HEADLINE)
    # Every second part is a number: clients2 comes before clients16.
    parts = re.split(r"([0-9]+)", line.workload)
    workload = [int(part) if place % 2 else part for place, part in enumerate(parts)]
    return line.dataset, line.topology, line.system_a, line.system_b, workload, rank, line.phase, line.metric


def _paired(a: Mapping[str, str], b: Mapping[str, str]) -> list[tuple[str, str]]:
    """Pairs of systems from name → engine of both sides; a system without a partner is paired with an empty name."""
    if len(a) == len(b) == 1:
        return [(next(iter(a)), next(iter(b)))]
    pairs = [(name, name) for name in a if name in b]
    left, right = ([name for name in side if name not in other] for side, other in ((a, b), (b, a)))
    for name in left:
        rivals = [other for other in left if a[other] == a[name]]
        heirs = [other for other in right if b[other] == a[name]]
        pairs.append((name, heirs[0] if a[name] and len(rivals) == len(heirs) == 1 else ""))
    taken = {heir for _, heir in pairs}
    return [*pairs, *(("", name) for name in right if name not in taken)]


class _Half:
    """A system of one side: its rows by key (_KEY), and its records. A `cell` is (dataset, topology, workload)."""

    def __init__(self, name: str, side: Side, rows: Iterable[Row], system: str) -> None:
        self.name, self.system, self.records = name, system, side.records
        self.rows = {tuple(row[name] for name in _KEY): row for row in rows if row["system"] == system}
        self.cells = {key[:3] for key in self.rows}
        self._paths = {
            (stage_of(row["phase"]), *key[:3]): row["record"] for key, row in self.rows.items() if row["record_sha256"]
        }

    def record(self, stage: str, cell: tuple[str, ...]) -> Body:
        """The record of a stage."""
        path = self._paths.get((stage, *cell[:2], "" if stage == "load" else cell[2]), "")
        if path not in self.records:
            what = path or f"{stage} of {listed((self.system, *cell))}"
            raise DataError(f"{self.name}: {what}: not among the records")
        return self.records[path]

    def limit(self, key: tuple[str, ...]) -> str:
        """Of whom, and why, a rate is only a lower limit; empty for one that is not, and for what is no rate."""
        if key[4] not in ("qps", HIGHEST_RATE):
            return ""
        words = lower_limit(self.records.get(self._paths.get(("recall", *key[:3]), ""), {}))
        return f"{self.name}: {words}" if words else ""

    def problem(self, key: tuple[str, ...], other: str) -> str:
        """Why it has no such number, to set against that of the system `other`; empty if it has."""
        row = self.rows.get(key)
        if row is not None:
            if row["value"] is not None:
                return ""
            reason = str(row["reason"])
            return reason if is_absent(reason) or is_missing(reason) else f"invalid: {reason}"
        if not self.system:
            return f"no system to set against {other}"
        return "no such number" if key[:3] in self.cells else "no such cell"


class _Systems:
    """A system of either side, set against each other."""

    def __init__(self, a: _Half, b: _Half, *, across: str) -> None:
        self._halves = (a, b)
        self._across_platforms = across == "platform"
        self._of_one_experiment = across == "system"
        self._pairs = Paired([*a.records.values(), *b.records.values()])
        self._obstacles: dict[tuple[str, ...], str] = {}

    def lines(self) -> Iterator[tuple[Line, Pair | None]]:
        """A line for each number that a side has or should have, and what is still to be judged of it."""
        first, second = self._halves
        for key in dict.fromkeys((*first.rows, *second.rows)):
            rows = [half.rows.get(key) for half in self._halves]
            problems = [first.problem(key, second.system), second.problem(key, first.system)]
            if set(problems) <= ABSENT:  # such as the selectivity where no filter was asked
                continue
            unit = next(row["unit"] for row in rows if row is not None)
            a, b = map(Number.of, rows, problems, (half.limit(key) for half in self._halves))
            dataset, topology, workload, phase, metric = key
            said = self._judged(key, rows, problems)
            judged, pair = (said, None) if isinstance(said, Verdict) else (Verdict(Outcome.UNDETERMINED), said)
            line = Line(dataset, topology, workload, first.system, second.system, phase, metric, unit, a, b, judged)
            if pair is not None and pair.of == "builds":
                line = replace(line, means=(pair.a.mean, pair.b.mean))
            yield line, pair

    def differences(self) -> Iterator[tuple[str, str, str]]:
        """What else differs between the loads of the two systems."""
        loads = dict.fromkeys(key for half in self._halves for key in half.rows if key[-1] == "load_s")
        for key in loads:
            rows = [half.rows.get(key) for half in self._halves]
            if any(row is None or not row["record_sha256"] for row in rows):
                continue
            first, second = map(_facts, self._records("load", key[:3]))
            for what in dict.fromkeys((*first, *second)):
                if first.get(what) != second.get(what):
                    yield what, first.get(what, "–"), second.get(what, "–")

    def _records(self, stage: str, cell: tuple[str, ...]) -> list[Body]:
        return [half.record(stage, cell) for half in self._halves]

    def _judged(self, key: tuple[str, ...], rows: Sequence[Row | None], problems: Sequence[str]) -> Verdict | Pair:
        a, b = rows
        names = [half.name for half in self._halves]
        reason = "; ".join(f"{name}: {problem}" for name, problem in zip(names, problems, strict=True) if problem)
        if a is None or b is None or reason:
            return Verdict(Outcome.NOT_COMPARABLE, reason=reason)
        if a["record_sha256"] == b["record_sha256"]:
            return Verdict(Outcome.SAME_RECORD)
        if obstacle := self.obstacle(stage_of(key[3]), key[:3]):
            return Verdict(Outcome.NOT_COMPARABLE, reason=obstacle)
        stage = stage_of(key[3])
        records = self._records(stage, key[:3]) if stage != "load" else [{}, {}]
        samples = [_sample(row, record) for row, record in zip((a, b), records, strict=True)]
        if key[3] == "query" and key[4] != "qps" and any("slo" in record["spec"]["workload"] for record in records):
            return Verdict(Outcome.NOT_COMPARABLE, reason="each side at its own highest rate")
        metric = "server_cpu_us_per_query" if key[4] == COST_OF_MILLION else key[4]
        ratio = self._pairs.ratio(key[:3], a["system"], b["system"], metric) if key[3] == "query" else None
        if ratio is not None:
            return Pair(samples[0], samples[1], key[4], ratio=ratio)
        if key[4] == "defect_share":
            return Pair(_share(a, records[0]), _share(b, records[1]), key[4])
        # Recall is of queries, whose answers in all runs are one observation. What features declare is of runs: such as
        # the rate that a search found, or the recall of rows that came meanwhile.
        of_runs_only = stage != "recall" or a["unit"] != "fraction" or features.declared(key[4]) is not None
        # Rounds of two experiments are no pairs, and what a load measured has no rounds.
        of_rounds = of_runs_only and stage != "load" and self._of_one_experiment
        if of_rounds and (how_far := apart(*self._records("query", key[:3]))):
            why = f"{how_far}: {AGAIN}"
            return Verdict(Outcome.UNDETERMINED, reason=why, note=why)
        if stage != "recall" and built(a, b):
            return Pair(of_builds(a), of_builds(b), key[4], of="builds")
        few = [f"{n}: {_runs_text(r)}" for n, r, s in zip(names, (a, b), samples, strict=True) if s.runs < 2]
        if few and of_runs_only:  # two may be enough, where `decide` knows how much others vary
            return Pair(samples[0], samples[1], unknown=f"{'; '.join(few)}: at least {MIN_RUNS} runs are needed")
        if of_runs_only:
            return Pair(samples[0], samples[1], key[4], paired=self._of_one_experiment)
        first, second = (of_queries(row, record) for row, record in zip((a, b), records, strict=True))
        return Pair(first, second, key[4])

    def obstacle(self, stage: str, cell: tuple[str, ...]) -> str:
        """Why numbers of this stage can't be compared, whatever they are; empty if they can."""
        if (stage, *cell) not in self._obstacles:
            self._obstacles[stage, *cell] = "; ".join(dict.fromkeys(self._all_obstacles(stage, cell)))
        return self._obstacles[stage, *cell]

    def _all_obstacles(self, stage: str, cell: tuple[str, ...]) -> Iterator[str]:
        chain = {name: self._records(name, cell) for name in _CHAIN[: _CHAIN.index(stage) + 1]}
        for name, (a, b) in chain.items():
            if not self._across_platforms:
                yield from _other_platform(a, b)
            epochs = [record["spec"].get("epoch") for record in (a, b)]
            if epochs[0] != epochs[1]:
                yield f"other epoch of {name}: {epochs[0]} against {epochs[1]}"
        a, b = chain["load"]
        engines = [record["spec"].get("system", {}).get("engine") for record in (a, b)]
        epochs = [record["spec"].get("engine_epoch", 1) for record in (a, b)]
        if engines[0] == engines[1] and epochs[0] != epochs[1]:
            yield f"other epoch of engine {engines[0]}: {epochs[0]} against {epochs[1]}"
        epochs = [record["spec"].get("upgrade_epoch", 1) for record in (a, b) if "upgrade_of" in record["spec"]]
        if len(set(epochs)) > 1:
            yield f"other epoch of upgrades: {epochs[0]} against {epochs[1]}"
        yield from _other("dataset", a["spec"]["dataset"], b["spec"]["dataset"])
        yield from _other("topology", a["spec"]["topology"], b["spec"]["topology"])
        yield from self._other_content("vectors", "dataset", ("base", "queries", "category", "price"), a, b)
        if "query" in chain:
            # The seed chooses the warm-up queries and the order of the runs.
            a, b = ({**record["spec"]["workload"], "seed": record["spec"].get("seed")} for record in chain["query"])
            yield from _other("workload", a, b)
        if "recall" in chain:
            # Distances may differ in their last digit from machine to machine; what counts is who the nearest are.
            yield from self._other_content("truth", "truth", ("ids",), *chain["recall"])

    def _other_content(self, label: str, what: str, files: Sequence[str], a: Body, b: Body) -> Iterator[str]:
        """Whether an input is another: by its files' digests where its records are at hand, else by its key.

        Where the content is not pinned by the config (a made dataset), one key may stand for two contents: then the
        identities that the records quote differ.
        """
        quoted = [quoted_input(record, label) for record in (a, b)]
        digests = []
        for half, entry in zip(self._halves, quoted, strict=True):
            outputs = half.records.get(entry.get("path", ""), {}).get("outputs") or {}
            digests.append({name: outputs[name]["sha256"] for name in files if name in outputs})
        keys = [record["spec"].get(label) for record in (a, b)]
        identities = [entry.get("identity") for entry in quoted]
        if all(digests):
            changed = [name for name in files if digests[0].get(name) != digests[1].get(name)]
            if changed:
                yield f"other {what}: the digest of {', '.join(changed)} differs"
        elif keys[0] != keys[1]:
            yield f"other {what}: {label} {keys[0]} against {keys[1]}"
        elif all(identities) and identities[0] != identities[1]:
            yield f"other {what}: another content behind {label} {keys[0]}"


class Neighbours:
    """One system as two sides know it: what keeps its numbers apart, and what else differs."""

    def __init__(self, a: Side, b: Side, system: str) -> None:
        halves = [
            _Half(side.label, side, rows_of(side.numbers[side.numbers["system"] == system]), system) for side in (a, b)
        ]
        self._systems = _Systems(*halves, across="")
        self._facts = tuple(self._systems.differences())

    def obstacle(self, row: Row) -> str:
        """Why the number of a row can't be set against that of the other side, which has one; empty if it can."""
        return self._systems.obstacle(stage_of(row["phase"]), (row["dataset"], row["topology"], row["workload"]))

    def facts(self) -> tuple[tuple[str, str, str], ...]:
        """What else differs between the loads, as (what, a's, b's): possible causes."""
        return self._facts


def _other_platform(a: Body, b: Body) -> Iterator[str]:
    """Another declared platform, or another machine under one name."""
    names = [record["spec"].get("platform") for record in (a, b)]
    if names[0] != names[1]:
        yield f"other platform: {names[0]} against {names[1]}"
    # A stage that measures nothing on a machine (recall) holds no facts of one.
    elif all("platform" in record for record in (a, b)):
        machines = [{fact: (record.get("platform") or {}).get(fact) for fact in IDENTITY} for record in (a, b)]
        yield from _other(f"machine behind platform {names[0]}", *machines)


def _other(what: str, a: Body, b: Body) -> Iterator[str]:
    """What differs in content behind the same name."""
    changed = [
        f"{name} {_as_text(a.get(name))} against {_as_text(b.get(name))}"
        for name in dict.fromkeys((*a, *b))
        if name != "name" and a.get(name) != b.get(name)
    ]
    if changed:
        yield f"other {what}: {', '.join(changed)}"


def _facts(load: Body) -> dict[str, str]:
    """What a reader would look at for the cause of a difference."""
    spec, machine, code = load["spec"], load.get("platform") or {}, load.get("code") or {}
    facts = {
        "system": spec["system"]["name"],
        **{f"setting {name}": value for name, value in (spec["system"].get("settings") or {}).items()},
        **{f"index {name}": value for name, value in (spec.get("index") or {}).items()},
        **{f"load {name}": value for name, value in (spec.get("load") or {}).items()},
        "artifact": (load.get("artifact") or {}).get("digest", "")[:12] or None,
        **{f"client {name}": value for name, value in (load.get("clients") or {}).items()},
        "platform": spec.get("platform"),
        **{name: machine.get(name) for name in (*IDENTITY, "kernel", "os")},
        "code": code.get("commit"),
        "uncommitted code": code.get("diff_sha256"),
    }
    return {name: _as_text(value) for name, value in facts.items() if value is not None}


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _sample(row: Row, record: Body) -> Sample:
    """A number over its runs. What has no spread (one run, or a total over runs) counts as measured once."""
    sample = of_runs(row, record)
    return sample if sample.std > _ROUNDING * abs(sample.mean) else replace(sample, std=0.0)


def _share(row: Row, record: Body) -> Share:
    """A share of answers: of as many observations as different queries were asked, as its own interval."""
    work, asked = record["spec"]["workload"], at(record, ("summary", "samples", "value"))
    return Share(row["value"], min(int(work["queries"]), int(asked or 0)))


def _runs_text(row: Row) -> str:
    runs = row["runs"]
    if runs is None:
        return "measured in passing"
    return "one run" if runs == 1 else f"{runs} runs" if runs < MIN_RUNS else "a total over runs"
