"""What is known of any two numbers of a page: bold, Table C, marks and headlines all ask here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from itertools import combinations, pairwise
from statistics import mean, stdev
from typing import Any

from anncestry.cells.features import at
from anncestry.cells.spec import Config
from anncestry.metrics import robust
from anncestry.metrics.decide import Evidence, Outcome, Pair, Rule, Sample, Share, Verdict, judge, judge_all, ratio_of
from anncestry.metrics.defects import MARKED_SHARE, percent
from anncestry.metrics.duet import Ratio
from anncestry.report.model.cells import Row, sample_of
from anncestry.report.model.noise import Noise, above
from anncestry.report.model.quantities import HIGHEST_RATE, lower_limit, too_few

COMPARED = {
    "p50_ms": True,
    "p95_ms": True,
    "p99_ms": True,
    "qps": False,
    "server_cpu_us_per_query": True,
    "server_cpu_us_per_row": True,
    "load_s": True,
    "storage_total_mib": True,
    "storage_net_mib": True,
}
"""Metrics in which systems are compared, and whether lower is better: one family of comparisons."""
WINS = "wins"
"""The word for a number that is surely better than each other, at no less recall."""
RECALL = "recall_by_distance"
WORST = "recall_worst1"
AGAIN = "pair them (docs/duet.md), or measure both again"
"""What to do where two numbers can't be judged because their rounds did not alternate."""


def rule_of(config: Config) -> Rule:
    """By which an experiment's config decides."""
    return Rule(**config.decide.rule)


class Paired:
    """The ratios of systems that were measured in pairs, from the records of these, and which pairs those are."""

    def __init__(self, records: Iterable[Mapping[str, Any]]) -> None:
        self._found: dict[tuple[str, ...], Mapping[str, Any]] = {}
        self._others: list[Mapping[str, Any]] = []
        """Controls, pairs of two topologies, and those at efforts of their own: rounds were asked at another."""
        for record in records:
            spec = record["spec"]
            if record["stage"] != "pair" or not record["valid"]:
                continue
            a, b = (spec["sides"][side] for side in ("a", "b"))
            own_effort = any("own_effort" in side for side in (a, b))
            if a["load"] != b["load"] and a["topology"] == b["topology"] and not own_effort:
                names = spec["dataset"]["name"], a["topology"]["name"], spec["workload"]["name"]
                self._found[*names, a["system"]["name"], b["system"]["name"]] = record
            else:
                self._others.append(record)

    def ratio(self, cell: Sequence[str], a: str, b: str, metric: str) -> Ratio | None:
        """b over a in a `cell` (dataset, topology, workload); None where they were not paired."""
        for first, second, sign in ((a, b, 1), (b, a, -1)):
            record = self._found.get((*cell, first, second))
            if record is not None:
                return _ratio(record, metric, sign)
        return None

    def beside(self, metrics: Iterable[str]) -> list[Pair]:
        """Of the pairs that are no verdict on two systems what says how much ratios vary: of controls, above all."""
        found = ((metric, _ratio(record, metric)) for metric in metrics for record in self._others)
        return [Pair(_NOTHING, _NOTHING, metric, ratio=ratio) for metric, ratio in found if ratio is not None]


_NOTHING = Sample(1.0, 0.0, 1)


def _ratio(record: Mapping[str, Any], metric: str, sign: int = 1) -> Ratio | None:
    """A pair's ratio of a metric, or (`sign` -1) its inverse; None where it has none, or no interval."""
    facts = at(record, ("quantities", metric)) or {"value": None}
    known = facts["value"] and facts["log_error"] is not None and not too_few(record, metric)
    return ratio_of(facts, len(record["rounds"]), sign) if known else None


class Verdicts:
    """Of the numbers `rows` (the first builds), with the records behind them by path.

    No difference within the floor of its metric (`noise`) counts, unless both sides are judged by several builds.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        records: Mapping[str, Mapping[str, Any]],
        rule: Rule | None = None,
        noise: Noise | None = None,
    ) -> None:
        self.rule, self.noise = rule or Rule(), noise or Noise()
        self._records = records
        self._rows = rows
        self._paired = Paired(records.values())
        self._apart: dict[tuple[str, str], str] = {}
        self._recalls = {_cell(row): row for row in rows if row["metric"] == RECALL}

    def evidence(self, row: Row) -> Evidence:
        """What a number rests on: its queries, its builds where there are several, else its runs."""
        record = self._records.get(row["record"]) or {}
        if row["phase"] == "recall":
            return of_queries(row, record)
        return of_builds(row) if built(row) else of_runs(row, record)

    def pair(self, a: Row, b: Row) -> Pair:
        """Two numbers of one experiment, as what `decide` judges."""
        several = built(a, b)
        if several or a["phase"] == "recall":
            first, second = self.evidence(a), self.evidence(b)
        else:
            first, second = (of_runs(row, self._records.get(row["record"]) or {}) for row in (a, b))
        of = "builds" if several or not a["workload"] else "rounds"
        unknown = self.out_of_turn(a, b)
        return Pair(first, second, a["metric"], not several, unknown, of, self._ratio(a, b))

    def _ratio(self, a: Row, b: Row) -> Ratio | None:
        """b over a, where the two were measured in pairs."""
        place, elsewhere = _cell(a), _cell(b)
        if (place[:2], place[3]) != (elsewhere[:2], elsewhere[3]):
            return None
        return self._paired.ratio((*place[:2], place[3]), place[2], elsewhere[2], a["metric"])

    def out_of_turn(self, a: Row, b: Row) -> str:
        """Why nothing is told of two numbers by their rounds (see `apart`); empty if it is, or their pair tells it.

        Of several builds the rounds of the first ones stand for all.
        """
        if a["phase"] != "query" or self._ratio(a, b) is not None:
            return ""
        paths = a["record"], b["record"]
        if paths not in self._apart:
            self._apart[paths] = apart(*(self._records.get(path) or {} for path in paths))
        return self._apart[paths] and f"{self._apart[paths]}: {AGAIN}"

    def beside(self, metrics: Iterable[str]) -> list[Pair]:
        """What says how much ratios of these metrics vary, beside those that are judged (see `Paired.beside`)."""
        return self._paired.beside(metrics)

    def all(self, pairs: Sequence[tuple[Row, Row]]) -> list[Verdict]:
        """The second of each pair against the first, at a level that holds for all of these together."""
        asked = [self.pair(*pair) for pair in pairs]
        judged = judge_all(asked, self.rule, self.beside(COMPARED))
        return [
            limited(self.floored(verdict, a, b, of.ratio), self._limit(a), self._limit(b))
            for verdict, (a, b), of in zip(judged, pairs, asked, strict=True)
        ]

    def _limit(self, row: Row) -> str:
        """Of whom, and why, the queries per second at a highest rate are only a lower limit; empty if they are none."""
        found = self._recalls.get(_cell(row)) if row["metric"] == "qps" else None
        words = lower_limit(self._records.get(found["record"]) or {}) if found is not None else ""
        return f"{row['system']}: {words}" if words else ""

    def floored(self, verdict: Verdict, a: Row, b: Row, ratio: Ratio | None = None) -> Verdict:
        """A verdict on two numbers, by what differs between builds as well; `ratio` is that of their pair, if any.

        The two of a pair are of one build each, however often either was built for its rounds.
        """
        floor = self.noise.floor(a["metric"])
        if floor is None or a["value"] is None or b["value"] is None:
            return verdict
        if ratio is not None and ratio.log is not None:
            return above(verdict, floor, 1.0, math.exp(ratio.log), self.rule.margin)
        return verdict if built(a, b) else above(verdict, floor, a["value"], b["value"], self.rule.margin)

    @cached_property
    def _own_rates(self) -> set[str]:
        """The workloads in which each system was asked at its own highest rate."""
        return {row["workload"] for row in self._rows if row["metric"] == HIGHEST_RATE}

    def is_common(self, row: Row) -> bool:
        """Whether a number answers the same question as another system's: latencies and costs at own rates do not."""
        return row["metric"] == "qps" or row["phase"] != "query" or row["workload"] not in self._own_rates

    @cached_property
    def of_systems(self) -> dict[tuple[str, str], tuple[Row, Row, Verdict]]:
        """Of every two systems in every metric that is COMPARED, by the ids of the two numbers: judged together."""
        groups: dict[tuple[str, ...], list[Row]] = {}
        for row in self._rows:
            if row["metric"] in COMPARED and row["value"] is not None and self.is_common(row):
                place = (row["dataset"], row["topology"], row["workload"], row["metric"])
                groups.setdefault(place, []).append(row)
        pairs = [
            pair
            for _, group in sorted(groups.items())
            for pair in combinations(sorted(group, key=lambda row: str(row["system"])), 2)
        ]
        return {
            (a["number_id"], b["number_id"]): (a, b, verdict)
            for (a, b), verdict in zip(pairs, self.all(pairs), strict=True)
        }

    def best(self, rows: Sequence[Row | None], *, lower: bool) -> int | None:
        """The place of the number that is better than each other, with no less recall; None where none is, or alone."""
        place, word = self.leader(rows, lower=lower) or (None, "")
        return place if word == WINS else None

    def leader(self, rows: Sequence[Row | None], *, lower: bool) -> tuple[int, str] | None:
        """The place of the best number, and what is known of it: it wins, or is equivalent, or that is undetermined.

        Equivalent: to each other that it does not beat. None where fewer than two are judged.
        """
        numbers = [(place, row) for place, row in enumerate(rows) if row is not None and row["value"] is not None]
        if len(numbers) < 2:
            return None
        place, best = (min if lower else max)(numbers, key=lambda item: float(item[1]["value"]))
        others = [row for other, row in numbers if other != place]
        found = [self.of_two(best, row) for row in others]
        if None in found:
            return None
        level = [
            judged[2].outcome
            for judged, row in zip(found, others, strict=True)
            if judged is not None and not self.wins(best, row, lower=lower)
        ]
        if not level:
            return place, WINS
        same = all(outcome is Outcome.EQUIVALENT for outcome in level)
        return place, (Outcome.EQUIVALENT if same else Outcome.UNDETERMINED).value

    def of_two(self, a: Row, b: Row) -> tuple[Row, Row, Verdict] | None:
        """What `of_systems` has of two numbers, in its order; None where it compares other ones only."""
        ids = a["number_id"], b["number_id"]
        return self.of_systems.get(ids) or self.of_systems.get(ids[::-1])

    def wins(self, best: Row, other: Row, *, lower: bool) -> bool:
        """Whether a number is better than another, and neither bought by recall nor by answers that are none."""
        found = self.of_two(best, other)
        if found is None or not found[2].decided:
            return False
        a, _, verdict = found
        less = (verdict.outcome is Outcome.LESS) == (a["number_id"] == other["number_id"])
        return less == lower and not self.obstacle(best, other)

    def obstacle(self, best: Row, other: Row) -> str:
        """Why a better number wins nothing against another: answers with a defect, or less recall. Empty if it may."""
        if not best["workload"]:
            return ""
        if (best["defect_share"] or 0.0) > MARKED_SHARE:
            return f"with {percent(best['defect_share'])} of answers defective"
        mine, theirs = (self._recalls.get(_cell(row)) for row in (best, other))
        if mine is None or theirs is None or mine["value"] is None or theirs["value"] is None:
            return "recall is not known"
        less = less_recall(self.evidence(mine), self.evidence(theirs), self.rule)
        return f"with recall {mine['value']:.4f} against {theirs['value']:.4f}" if less else ""


def less_recall(mine: Evidence, theirs: Evidence, rule: Rule) -> bool:
    """Whether a recall is less than another's, and not surely by less than the margin: then it wins nothing."""
    if mine.mean >= theirs.mean:
        return False
    found = judge(theirs, mine, rule=rule)
    return (mine.mean - theirs.mean if found.low is None else found.low) <= -rule.recall_margin


def apart(a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    """How far apart two query records were measured, in words; empty if their rounds alternated, or don't say when.

    They alternated if the nth of both was made before the next of either: what the machine did then meets both sides.
    Else it may be in the differences of all rounds alike, and so in no variance. (By time, not by number: a run that
    failed is measured again after the later ones.)
    """
    made = [[one.get("created") for one in record.get("rounds") or ()] for record in (a, b)]
    common = min(map(len, made))
    if not all(all(times[:common]) for times in made):
        return ""
    rounds = list(zip(*(sorted(map(datetime.fromisoformat, times[:common])) for times in made), strict=True))
    if all(max(these) < min(following) for these, following in pairwise(rounds)):
        return ""
    return f"measured {_span(max(abs((one - other).total_seconds()) for one, other in rounds))} apart"


def _span(seconds: float) -> str:
    for unit, size, most in (("s", 1, 120), ("min", 60, 120), ("h", 3600, 72)):
        if seconds < most * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} days"


def limited(verdict: Verdict, a: str, b: str) -> Verdict:
    """A verdict on two rates; `a` and `b` say of whom, and why, a rate is only a lower limit, empty if it is none.

    A lower limit above the other's rate is a win, as the true rate is no lower. Nothing else can be told of it.
    """
    words = "; ".join(filter(None, (a, b)))
    if not words or verdict.outcome in (Outcome.NOT_COMPARABLE, Outcome.SAME_RECORD):
        return verdict
    if verdict.decided and not (a if verdict.outcome is Outcome.MORE else b):
        return replace(verdict, note="; ".join(filter(None, (verdict.note, f"{words}: it is at least that"))))
    why = f"{words}: it may be higher, so nothing is told"
    return Verdict(Outcome.UNDETERMINED, noise=verdict.noise, reason=why, note=why)


def built(*rows: Row) -> bool:
    """Whether each of these numbers was measured on several builds."""
    return all((row["rebuilds"] or 0) > 1 and row["rebuild_std"] is not None for row in rows)


def of_builds(row: Row) -> Sample:
    """A number over the builds that it was measured on."""
    return Sample(row["rebuild_mean"], row["rebuild_std"], row["rebuilds"])


def judged_values(a: Row, b: Row) -> tuple[float, float]:
    """What a verdict holds against each other: the means over builds where both have several, else the numbers."""
    of = "rebuild_mean" if built(a, b) else "value"
    return float(a[of]), float(b[of])


def gain(a: Row, b: Row, found: Verdict) -> tuple[float, tuple[float, float] | None]:
    """B / A and its 95 % interval, of what a verdict on B against A rests on: their pair, or the rounds that both have.

    Without an interval, of the numbers themselves.
    """
    base, other = judged_values(a, b)
    if found.low is None or found.high is None or found.low <= -base:
        return other / base, None
    low, high = 1 + found.low / base, 1 + found.high / base
    return math.sqrt(low * high), (low, high)


def of_runs(row: Row, record: Mapping[str, Any]) -> Sample:
    """A number over its runs, with the value of each round where the record has them."""
    sample = sample_of(row)
    entry = at(record, ("summary", row["metric"])) or record.get(row["metric"])
    values = entry.get("runs") if isinstance(entry, Mapping) and row["phase"] == "query" else None
    if sample.runs < 2 or not values or len(values) != sample.runs or any(value is None for value in values):
        return sample
    # A number that is no mean of its runs (of pooled samples, over windows of other lengths) is no sum of pairs.
    same = math.isclose(mean(values), sample.mean, rel_tol=0.01) and math.isclose(
        stdev(values), sample.std, rel_tol=0.01
    )
    return Sample(sample.mean, sample.std, sample.runs, tuple(map(float, values))) if same else sample


def of_queries(row: Row, record: Mapping[str, Any]) -> Share:
    """A number of recall by the queries that were asked; that of the worst of them by these alone, as if drawn."""
    queries = int(record.get("queries") or 0)
    if row["metric"] == WORST:
        return Share(row["value"], robust.worst_count(queries) if queries else 0)
    return Share(row["value"], queries, by_query(record, row["metric"]))


def by_query(record: Mapping[str, Any], metric: str) -> dict[int, float]:
    """Recall of each query by its row, or whether it is at least δ; empty for records that have only the mean."""
    found = record.get("by_query") or {}
    delta = next((delta for delta in robust.DELTAS if robust.name_of(delta) == metric), None)
    if delta is not None:
        values = robust.reached(found.get("by_distance") or (), delta).astype(float).tolist()
    else:
        values = found.get(metric.removeprefix("recall_")) or ()
    return dict(zip(found["query"], values, strict=True)) if values else {}


def _cell(row: Row) -> tuple[str, str, str, str]:
    return row["dataset"], row["topology"], row["system"], row["workload"]
