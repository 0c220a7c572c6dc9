"""Table XVI of the paper, derived: who wins by which criterion, where the difference can't be noise.

A criterion is a question with one answer for each dataset and topology on which at least two systems were asked it.
A system wins such a comparison if its difference to each other system is larger than noise, at a level that is
corrected for all comparisons of the table (Holm 1979). It wins the criterion if it wins a comparison and no other does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Any

import numpy as np

from anncestry.metrics import stats
from anncestry.report.absence import brief
from anncestry.report.material import Material
from anncestry.report.proportion import proportion_interval
from anncestry.report.tables import NO_CELL, Cell, Column, Row, Table, TableRow
from anncestry.report.welch import MIN_RUNS

LEVEL = 0.05
_SMALLEST_P = 1e-9
WINNER, TIE, MIXED, UNDECIDED, UNJUDGED = "Winner", "Tie", "Mixed", "Undecided", "not judged"


@dataclass(frozen=True)
class Entry:
    """A system's answer: its value, the numbers it comes from, and what tells its noise.

    `runs` are values whose mean is compared by Welch's test; `mean`, `std`, `count` the same where only they are known;
    `queries` the number of queries that a recall is the mean of.
    """

    value: float
    ids: tuple[str, ...]
    mean: float = 0.0
    std: float = 0.0
    count: int = 0
    queries: int = 0


@dataclass(frozen=True)
class Comparison:
    """The answers of the systems of one dataset and topology, by system."""

    entries: Mapping[str, Entry]
    lower: bool

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Every pair of systems."""
        yield from combinations(sorted(self.entries), 2)

    def p(self, pair: tuple[str, str]) -> float | None:
        """p of "no difference"; None where noise is not known."""
        a, b = (self.entries[system] for system in pair)
        if a.queries and b.queries:
            return _recall_p(a, b)
        if min(a.count, b.count) < MIN_RUNS:
            return None
        return stats.welch_p(a.mean, a.std, a.count, b.mean, b.std, b.count)

    def best(self) -> str:
        """The system with the better value than any other."""
        return (min if self.lower else max)(sorted(self.entries), key=lambda system: self.entries[system].value)


def _recall_p(a: Entry, b: Entry) -> float:
    """The level at which the interval of the difference of two recalls begins to hold zero."""
    low, high = _SMALLEST_P, 1.0
    for _ in range(40):
        middle = (low * high) ** 0.5
        least, most = proportion_interval(a.value, a.queries, b.value, b.queries, 1 - middle)
        low, high = (low, middle) if least > 0 or most < 0 else (middle, high)
    return high


@dataclass(frozen=True)
class Criterion:
    """A row of the table: its name in the paper, and what it compares; None: nothing that is measured."""

    name: str
    find: Callable[[_Numbers], list[Comparison]] | None


class _Numbers:
    """The numbers at hand."""

    def __init__(self, material: Material) -> None:
        self.rows = material.ordinary
        self.records = material.records
        known = [row for row in self.rows if row["value"] is not None]
        self.dims = {row["dataset"]: row["value"] for row in known if row["metric"] == "dim"}
        self.counts = {row["dataset"]: row["value"] for row in known if row["metric"] == "rows"}

    def compared(self, wanted: Callable[[Row], bool], lower: bool, entry: Callable[[Row], Entry]) -> list[Comparison]:
        """A comparison for each dataset, topology and workload of which at least two systems have a number."""
        places: dict[tuple[str, str, str], dict[str, Entry]] = {}
        for row in self.rows:
            if row["value"] is not None and wanted(row):
                place = (row["dataset"], row["topology"], row["workload"])
                places.setdefault(place, {})[row["system"]] = entry(row)
        return [Comparison(entries, lower) for _, entries in sorted(places.items()) if len(entries) > 1]

    def by_builds(self, row: Row) -> Entry:
        """What was measured once a build: its noise is that between builds, if there are several."""
        if (row["rebuilds"] or 0) >= MIN_RUNS and row["rebuild_std"] is not None:
            spread = (row["rebuild_mean"], row["rebuild_std"], row["rebuilds"])
            return Entry(row["rebuild_mean"], (row["number_id"],), *spread)
        return Entry(row["value"], (row["number_id"],))

    def by_runs(self, row: Row) -> Entry:
        """What was measured in several runs."""
        count = row["runs"] or 0 if row["std"] is not None else 0
        return Entry(row["value"], (row["number_id"],), row["value"], row["std"] or 0.0, count)

    def by_queries(self, row: Row) -> Entry:
        """A recall: repeats ask one index the same queries, so its noise is that of the choice of queries."""
        queries = int((self.records.get(row["record"]) or {}).get("queries") or 0)
        return Entry(row["value"], (row["number_id"],), queries=queries)

    def by_spread(self, row: Row) -> Entry:
        """How far runs are from their median, as a share of it (compared by Brown and Forsythe's test, 1974)."""
        body: Mapping[str, Any] = self.records.get(row["record"]) or {}
        runs = [float(v) for v in (body.get("summary") or {}).get(row["metric"], {}).get("runs", ()) if v is not None]
        if len(runs) < MIN_RUNS:
            return Entry(0.0, (row["number_id"],))
        middle = median(runs)
        away = np.abs(np.array(runs) / middle - 1)
        return Entry(float(away.mean()), (row["number_id"],), float(away.mean()), float(away.std(ddof=1)), len(runs))


def _single(row: Row) -> bool:
    asked = (row["k"], row["clients"], row["filter"])
    return asked == (10, 1, "") and row["duration_s"] is None and row["target_recall"] is None


def _latency(where: Callable[[float, float], bool]) -> Callable[[_Numbers], list[Comparison]]:
    """Median latencies of one client, of datasets whose dimension and number of vectors fit."""

    def find(n: _Numbers) -> list[Comparison]:
        def wanted(row: Row) -> bool:
            known = row["dataset"] in n.dims and row["dataset"] in n.counts
            fits = known and where(n.dims[row["dataset"]], n.counts[row["dataset"]])
            return fits and row["metric"] == "p50_ms" and _single(row)

        return n.compared(wanted, True, n.by_runs)

    return find


def _recall(where: Callable[[float], bool]) -> Callable[[_Numbers], list[Comparison]]:
    def find(n: _Numbers) -> list[Comparison]:
        def wanted(row: Row) -> bool:
            fits = row["dataset"] in n.dims and where(n.dims[row["dataset"]])
            return fits and row["metric"] == "recall_by_id" and _single(row)

        return n.compared(wanted, False, n.by_queries)

    return find


def _timed(n: _Numbers, least: int, most: int) -> list[Comparison]:
    def wanted(row: Row) -> bool:
        asked = row["metric"] == "qps" and row["k"] == 10 and not row["filter"] and row["duration_s"] is not None
        return asked and least <= row["clients"] <= most

    return n.compared(wanted, False, n.by_runs)


def _stability(n: _Numbers) -> list[Comparison]:
    """Queries per second of 16 clients as a share of those of 8: whether more clients cost throughput."""
    of_place: dict[tuple[str, str], dict[str, dict[int, Entry]]] = {}
    for row in n.rows:
        asked = row["metric"] == "qps" and row["k"] == 10 and not row["filter"] and row["duration_s"] is not None
        if asked and row["clients"] in (8, 16) and row["value"]:
            systems = of_place.setdefault((row["dataset"], row["topology"]), {})
            systems.setdefault(row["system"], {})[row["clients"]] = n.by_runs(row)
    found = []
    for _, systems in sorted(of_place.items()):
        entries = {}
        for system, of in systems.items():
            if len(of) == 2:
                ratio = of[16].value / of[8].value
                # First-order error of a ratio of independent means, as if of as many runs as the fewer of both.
                count = min(of[8].count, of[16].count)
                error = sum((e.std / e.value) ** 2 / e.count for e in of.values() if e.count) ** 0.5
                std = ratio * error * count**0.5
                entries[system] = Entry(ratio, (*of[16].ids, *of[8].ids), ratio, std, count)
        if len(entries) > 1:
            found.append(Comparison(entries, False))
    return found


CRITERIA = (
    Criterion("Data loading speed", lambda n: n.compared(lambda r: r["metric"] == "load_s", True, n.by_builds)),
    Criterion("Low-dim latency (<200D)", _latency(lambda dim, count: dim < 200)),
    Criterion("High-dim latency (>500D)", _latency(lambda dim, count: dim > 500)),
    Criterion("Small-dataset latency (<100K)", _latency(lambda dim, count: count < 100_000)),
    Criterion("Large-scale latency (>2M)", _latency(lambda dim, count: count > 2_000_000)),
    Criterion("Recall@10 (standard)", _recall(lambda dim: dim <= 500)),
    Criterion("Recall@10 (high-dim)", _recall(lambda dim: dim > 500)),
    Criterion("Concurrent QPS (4–8 clients)", lambda n: _timed(n, 4, 8)),
    Criterion("Concurrent stability (16 clients)", _stability),
    Criterion(
        "Storage efficiency", lambda n: n.compared(lambda r: r["metric"] == "storage_total_mib", True, n.by_builds)
    ),
    Criterion("Deployment simplicity", None),
    Criterion(
        "Latency variance", lambda n: n.compared(lambda r: _single(r) and r["metric"] == "p50_ms", True, n.by_spread)
    ),
)


def tables(material: Material) -> list[Table]:
    """Table XVI, if any criterion compares two systems."""
    n = _Numbers(material)
    found = [(criterion, criterion.find(n) if criterion.find else []) for criterion in CRITERIA]
    if not any(comparisons for _, comparisons in found):
        return []
    verdicts = decide([comparison for _, comparisons in found for comparison in comparisons])
    systems = sorted({row["system"] for row in n.rows})
    engines = {row["system"]: row["engine"] for row in n.rows}
    printed = _printed(material)
    body = []
    for criterion, comparisons in found:
        won = [verdicts[id(comparison)] for comparison in comparisons]
        ids = tuple(i for c in comparisons for e in c.entries.values() for i in e.ids)
        count = Cell(str(len(comparisons)), parents=ids) if comparisons else Cell("none")
        cells = [
            _cell(system, comparisons, won, n, criterion, printed.get((criterion.name, engines[system]), ""))
            for system in systems
        ]
        body.append(TableRow((criterion.name,), (count, *cells)))
    columns = (Column("Comparisons"), *(Column(system, "", "Verdict", system) for system in systems))
    return [
        Table(
            "XVI",
            "Head to head",
            "Derived from the numbers of this page, criterion by criterion of the paper. A system wins a comparison"
            " (one dataset, topology and workload) if it differs from each other system by more than noise, at one in"
            " twenty, corrected by Holm's method for all comparisons of this table; it wins the criterion if it wins"
            " some comparisons and no other system wins any. Mixed: each wins some. Tie: noise is known, and no"
            " difference is larger. Undecided: noise is unknown, as of what was measured once. Noise is that between"
            " runs; for recall, that of the choice of queries; for loading and storage, that between independent"
            " builds. Stability is the throughput of many clients as a share of that of half as many.",
            ("Criterion",),
            columns,
            tuple(body),
            "The paper's verdicts are the authors'; no test stands behind them."
            if any(cell.published for row in body for cell in row.cells)
            else "",
        )
    ]


def decide(comparisons: Sequence[Comparison]) -> dict[int, str]:
    """The winner of each comparison by its id(): a system, TIE, or UNDECIDED where noise isn't known."""
    asked = [(comparison, pair, comparison.p(pair)) for comparison in comparisons for pair in comparison.pairs()]
    known = [(comparison, pair, p) for comparison, pair, p in asked if p is not None]
    corrected = stats.holm([p for _, _, p in known])
    sure = {(id(c), pair) for (c, pair, _), p in zip(known, corrected, strict=True) if p <= LEVEL}
    unknown = {(id(c), pair) for c, pair, p in asked if p is None}
    verdicts = {}
    for comparison in comparisons:
        best = comparison.best()
        against = [pair for pair in comparison.pairs() if best in pair]
        if all((id(comparison), pair) in sure for pair in against):
            verdicts[id(comparison)] = best
        else:
            undecided = any((id(comparison), pair) in unknown for pair in against)
            verdicts[id(comparison)] = UNDECIDED if undecided else TIE
    return verdicts


def _cell(
    system: str, comparisons: Sequence[Comparison], won: Sequence[str], n: _Numbers, criterion: Criterion, printed: str
) -> Cell:
    if criterion.find is None:
        return Cell(UNJUDGED, published=printed, problem="a judgement, nothing that is measured")
    mine = [(c, winner) for c, winner in zip(comparisons, won, strict=True) if system in c.entries]
    if not comparisons:
        return Cell("nothing to compare", published=printed)
    if not mine:
        # Where this system has no number at all, its load says why.
        loads = [row for row in n.rows if row["system"] == system and row["metric"] == "load_s"]
        reason = next((row["reason"] for row in loads if row["value"] is None), "")
        return Cell(brief(reason) if reason else NO_CELL, published=printed, problem=reason)
    ids = tuple(i for comparison, _ in mine for i in comparison.entries[system].ids)
    wins = sum(winner == system for _, winner in mine)
    losses = sum(winner not in (system, TIE, UNDECIDED) for _, winner in mine)
    if wins and losses:
        said = f"{MIXED} ({wins} of {len(mine)})"
    elif wins:
        said = f"{WINNER} ({wins} of {len(mine)})"
    elif losses:
        said = NO_CELL
    else:
        said = UNDECIDED if any(winner == UNDECIDED for _, winner in mine) else TIE
    return Cell(said, published=printed, best=bool(wins and not losses), parents=ids)


def _printed(material: Material) -> dict[tuple[str, str], str]:
    """The paper's verdicts, by criterion and engine."""
    found = {}
    for figure in material.facts.figures if material.facts else ():
        if figure.document == "paper" and figure.metric == "verdict_code":
            said = dict(part.partition("=")[::2] for part in figure.detail.split("; ") if "=" in part)
            found[said.get("criterion", ""), figure.system] = said.get("label", "")
    return found
