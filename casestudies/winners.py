"""Table XVI of the paper, derived: who wins by which criterion, where the difference can't be noise.

A criterion is a question with one answer for each dataset and topology on which at least two systems were asked it.
Searches that were tuned for a recall are compared with those that were tuned for the same one, by all but their recall.
A system wins such a comparison if its difference to each other system is larger than noise: by the page's verdict on
two numbers (Table C), and for what that does not compare at a level that is corrected for all comparisons which are
judged here (Holm 1979). It wins the criterion if it wins a comparison and no other does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import median
from typing import Any

import numpy as np

from anncestry.metrics.decide import MIN_RUNS, Outcome, Pair, Sample, Share, Verdict, judge_all
from anncestry.report.model.cells import NO_CELL, Cell, Column, Row, Table, TableRow, sample_of
from anncestry.report.model.equal_recall import defective
from anncestry.report.model.highlights import headline_k
from anncestry.report.model.material import Material
from anncestry.report.model.quantities import brief
from anncestry.report.model.verdicts import Verdicts, built, of_builds
from anncestry.report.tables.spec import PAPER_K, of_k

_ONCE = Sample(0.0, 0.0, 0)
"""Of what was measured once: nothing to compare."""
WINNER, EQUIVALENT, MIXED, TIED = "Winner", "Equivalent", "Mixed", "Tied"
UNDETERMINED, UNJUDGED = "Undetermined", "not judged"
_NO_SYSTEM = (EQUIVALENT, TIED, UNDETERMINED)
_PAPER_SYSTEMS = ("milvus 2.3", "weaviate 1.27")
"""What the paper compared: engine and version."""


@dataclass(frozen=True)
class Entry:
    """A system's answer: its value, the ids of the numbers it comes from, and what `judge_all` compares.

    `judged_by` None: it is a number of the page, whose verdict on it holds here, too. `row` is the number itself, where
    what it wins depends on its recall. What is `defective` wins nothing.
    """

    value: float
    ids: tuple[str, ...]
    judged_by: Sample | Share | None = _ONCE
    row: Row | None = None
    defective: bool = False


@dataclass(frozen=True)
class Decision:
    """The winner of a comparison: a system, EQUIVALENT, TIED, or UNDETERMINED and then what lacks: words, or how many
    of what more (None: many). `ahead`: of TIED, the systems that are equivalent and surely better than the others."""

    winner: str
    lacks: tuple[str | tuple[int | None, str], ...] = ()
    ahead: tuple[str, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """The answers of the systems of one dataset and topology, by system; `target`: the recall they were tuned for."""

    entries: Mapping[str, Entry]
    lower: bool
    target: float | None = None

    def pairs(self) -> list[tuple[str, str]]:
        """Every pair of systems."""
        return list(combinations(sorted(self.entries), 2))

    def best(self) -> str:
        """The system with the better value than any other."""
        return (min if self.lower else max)(sorted(self.entries), key=lambda system: self.entries[system].value)


_Place = tuple[float, str, str, str]
"""Target recall (0: not tuned), dataset, topology, workload (empty: of several)."""


def _place(row: Row, workload: str = "") -> _Place:
    return row["target_recall"] or 0.0, row["dataset"], row["topology"], workload


def _comparisons(places: Mapping[_Place, Mapping[str, Entry]], lower: bool) -> list[Comparison]:
    """A comparison for each place of which at least two systems have an answer."""
    found = sorted(places.items(), key=lambda item: item[0])
    return [Comparison(entries, lower, place[0] or None) for place, entries in found if len(entries) > 1]


class _Numbers:
    """The numbers at hand, and the number of neighbours that those of queries are of."""

    def __init__(self, material: Material, k: int) -> None:
        self.rows = material.ordinary
        self.records = material.records
        self.verdicts = material.verdicts
        self.k = k
        self.known = [row for row in self.rows if row["value"] is not None and self.verdicts.is_common(row)]
        dims, counts = (
            {row["dataset"]: row["value"] for row in self.known if row["metric"] == metric}
            for metric in ("dim", "rows")
        )
        self.sizes = {name: (dims[name], counts[name]) for name in dims.keys() & counts.keys()}

    def by_builds(self, row: Row) -> Entry:
        """What was measured once a build: its noise is that between builds, if there are several."""
        if built(row):
            return Entry(row["rebuild_mean"], (row["number_id"],), None)
        return Entry(row["value"], (row["number_id"],))

    def by_runs(self, row: Row) -> Entry:
        """What was measured in several runs."""
        return Entry(row["value"], (row["number_id"],), None, row)

    def by_queries(self, row: Row) -> Entry:
        """A recall: repeats ask one index the same queries, so its noise is that of the choice of queries."""
        return Entry(row["value"], (row["number_id"],), self.verdicts.evidence(row), defective=defective(row))

    def by_pairs(self, row: Row) -> Entry:
        """What is the highest of all runs: its noise is that between builds, or between pairs of servers."""
        if built(row):
            return Entry(row["rebuild_mean"], (row["number_id"],), of_builds(row), row)
        return Entry(row["value"], (row["number_id"],), row=row)

    def by_spread(self, row: Row) -> Entry:
        """How far runs are from their median, as a share of it (compared by Brown and Forsythe's test, 1974)."""
        body: Mapping[str, Any] = self.records.get(row["record"]) or {}
        runs = [float(v) for v in (body.get("summary") or {}).get(row["metric"], {}).get("runs", ()) if v is not None]
        if len(runs) < MIN_RUNS:
            return Entry(0.0, (row["number_id"],))
        middle = median(runs)
        away = np.abs(np.array(runs) / middle - 1)
        mean = float(away.mean())
        sample = Sample(mean, float(away.std(ddof=1)), len(runs))
        return Entry(mean, (row["number_id"],), sample, defective=defective(row))


Find = Callable[[_Numbers], list[Comparison]]


def _each(
    metric: str,
    entry: Callable[[_Numbers, Row], Entry],
    of: Callable[[_Numbers, Row], bool] = lambda n, row: True,
    *,
    lower: bool = True,
) -> Find:
    """A comparison for each dataset, topology and workload, of rows of this metric that are `of` the criterion."""

    def find(n: _Numbers) -> list[Comparison]:
        places: dict[_Place, dict[str, Entry]] = {}
        for row in n.known:
            if row["metric"] == metric and of(n, row):
                places.setdefault(_place(row, row["workload"]), {})[row["system"]] = entry(n, row)
        return _comparisons(places, lower)

    return find


def _single(n: _Numbers, row: Row, *, filtered: bool = False) -> bool:
    asked = (row["k"], row["clients"], bool(row["filter"]))
    return asked == (n.k, 1, filtered) and row["duration_s"] is None


def _timed(n: _Numbers, row: Row) -> bool:
    return row["k"] == n.k and not row["filter"] and row["duration_s"] is not None


def _sized(where: Callable[[float, float], bool]) -> Callable[[_Numbers, Row], bool]:
    """Of one client, and of datasets whose dimension and number of vectors are known, and fit."""
    return lambda n, row: _single(n, row) and row["dataset"] in n.sizes and where(*n.sizes[row["dataset"]])


def _recall(where: Callable[[float, float], bool], *, tuned: bool = False) -> Find:
    """Recall, where no search was tuned for one: what was tuned for the same recall has it, by design."""

    def of(n: _Numbers, row: Row) -> bool:
        return (row["target_recall"] is not None) == tuned and _sized(where)(n, row)

    return _each("recall_by_distance", _Numbers.by_queries, of, lower=False)


def _standard(dim: float, count: float) -> bool:
    return dim <= 500


def _high(dim: float, count: float) -> bool:
    return dim > 500


def _stability(n: _Numbers) -> list[Comparison]:
    """Queries per second of 16 clients as a share of those of 8: whether more clients cost throughput."""
    found: dict[tuple[_Place, str, int], dict[int, Row]] = {}
    for row in n.known:
        if row["metric"] == "qps" and _timed(n, row) and row["value"]:
            # A search that was tuned may have another effort for each number of clients.
            effort = row["ef_search"] if row["target_recall"] is None else None
            found.setdefault((_place(row), row["system"], effort or 0), {})[row["clients"]] = row
    places: dict[_Place, dict[str, Entry]] = {}
    # Of several search efforts the greatest: it comes last.
    for (place, system, _), of in sorted(found.items(), key=lambda item: item[0]):
        if 8 in of and 16 in of:
            places.setdefault(place, {})[system] = _share(of[16], of[8])
    return _comparisons(places, lower=False)


def _share(many: Row, few: Row) -> Entry:
    """The ratio of two numbers, with its first-order error, as if of as many runs as the fewer of both."""
    ratio = many["value"] / few["value"]
    samples = [sample_of(row) for row in (many, few) if row["std"] is not None]
    error = sum((sample.std / sample.mean) ** 2 / sample.runs for sample in samples) ** 0.5
    count = min(sample.runs for sample in samples) if len(samples) == 2 else 0
    sample = Sample(ratio, ratio * error * count**0.5, count)
    return Entry(ratio, (many["number_id"], few["number_id"]), sample, defective=defective(many) or defective(few))


CRITERIA: Mapping[str, Find | None] = {
    "Data loading speed": _each("load_s", _Numbers.by_builds),
    "Low-dim latency (<200D)": _each("p50_ms", _Numbers.by_runs, _sized(lambda dim, count: dim < 200)),
    "High-dim latency (>500D)": _each("p50_ms", _Numbers.by_runs, _sized(_high)),
    "Small-dataset latency (<100K)": _each("p50_ms", _Numbers.by_runs, _sized(lambda dim, count: count < 100_000)),
    "Large-scale latency (>2M)": _each("p50_ms", _Numbers.by_runs, _sized(lambda dim, count: count > 2_000_000)),
    "Filtered latency": _each("p50_ms", _Numbers.by_runs, lambda n, row: _single(n, row, filtered=True)),
    "Recall@10 (standard)": _recall(_standard),
    "Recall@10 (high-dim)": _recall(_high),
    "QPS, one client": _each("qps", _Numbers.by_runs, _single, lower=False),
    "Concurrent QPS (4–8 clients)": _each(
        "qps", _Numbers.by_runs, lambda n, row: _timed(n, row) and 4 <= row["clients"] <= 8, lower=False
    ),
    "CPU a query (4–8 clients)": _each(
        "server_cpu_us_per_query", _Numbers.by_runs, lambda n, row: _timed(n, row) and 4 <= row["clients"] <= 8
    ),
    "Memory (4–8 clients)": _each(
        "pss_mib", _Numbers.by_pairs, lambda n, row: _timed(n, row) and 4 <= row["clients"] <= 8
    ),
    "Concurrent stability (16 clients)": _stability,
    "Storage efficiency": _each("storage_total_mib", _Numbers.by_builds),
    "Deployment simplicity": None,
    "Latency variance": _each("p50_ms", _Numbers.by_spread, _single),
}
"""The rows of the table, by their names in the paper, which has none of one client's throughput, processor time,
memory or filters; None: nothing measured."""
OF_DATA = frozenset({"Data loading speed", "Storage efficiency", "Deployment simplicity"})
"""Criteria that are not of queries, and so of no number of neighbours."""
_AIMED = {
    "Recall@10 (standard)": _recall(_standard, tuned=True),
    "Recall@10 (high-dim)": _recall(_high, tuned=True),
}
"""The criteria of recall, with what they do not compare: searches that were tuned for one."""
USES = {
    "Short answers, small sets": ("Small-dataset latency (<100K)",),
    "Short answers, large sets": ("Large-scale latency (>2M)",),
    "Short answers, low dimensions": ("Low-dim latency (<200D)",),
    "Short answers, high dimensions": ("High-dim latency (>500D)",),
    "Predictable answers": ("Latency variance",),
    "Most queries, one client": ("QPS, one client",),
    "Most queries, several clients": ("Concurrent QPS (4–8 clients)",),
    "Stable under many clients": ("Concurrent stability (16 clients)",),
    "Fewest resources": ("CPU a query (4–8 clients)", "Memory (4–8 clients)"),
    "Filters": ("Filtered latency",),
    "Recall": tuple(_AIMED),
    "Loading": ("Data loading speed",),
    "Little storage": ("Storage efficiency",),
    "Simple to operate": ("Deployment simplicity",),
}
"""What one may want of a database → the criteria that speak of it: the paper's uses, and resources, filters, recall."""

Found = Mapping[int, Mapping[str, Sequence[Comparison]]]
"""Number of neighbours → criterion → its comparisons; those OF_DATA are with the headline's number."""


def tables(material: Material) -> list[Table]:
    """Table XVI for each number of neighbours, and Table VI.B of them all, if any criterion compares two systems."""
    headline = headline_k(material.ordinary)
    asked = {row["k"] for row in material.ordinary if row["k"] is not None}
    found: dict[int, dict[str, list[Comparison]]] = {}
    for k in sorted(asked | {headline}):
        n = _Numbers(material, k)
        criteria = {name: find for name, find in CRITERIA.items() if k == headline or name not in OF_DATA}
        found[k] = {name: find(n) if find else [] for name, find in criteria.items()}
    every = [comparison for of_size in found.values() for some in of_size.values() for comparison in some]
    if not every:
        return []
    verdicts = decide(every, material.verdicts)
    built = [_head_to_head(material, k, headline, found[k], verdicts) for k in found if any(found[k].values())]
    return [*built, _by_use(material, found, headline, verdicts)]


def _by_target(comparisons: Sequence[Comparison], *, always: bool) -> list[tuple[float | None, list[Comparison]]]:
    """The comparisons by the recall that searches were tuned for, those of no such search first.

    `always`: one of none at least.
    """
    targets = sorted({comparison.target or 0.0 for comparison in comparisons})
    found = [(target or None, [c for c in comparisons if c.target == (target or None)]) for target in targets]
    return found or ([(None, [])] if always else [])


def _head_to_head(
    material: Material,
    k: int,
    headline: int,
    found: Mapping[str, Sequence[Comparison]],
    verdicts: Mapping[int, Decision],
) -> Table:
    """Table XVI for `k` neighbours. That for the headline's number has every criterion, others those that compare."""
    systems = sorted({row["system"] for row in material.ordinary})
    printed = _printed(material) if k == PAPER_K else {}
    body = []
    for name, of_criterion in found.items():
        for target, comparisons in _by_target(of_criterion, always=k == headline):
            ids = tuple(i for c in comparisons for e in c.entries.values() for i in e.ids)
            cells = [Cell(str(len(comparisons)), parents=ids) if comparisons else Cell("none")]
            for system in systems:
                if CRITERIA[name] is None:
                    cell = _NOTHING_MEASURED
                elif comparisons:
                    cell = _cell(system, comparisons, verdicts, material.ordinary)
                else:
                    cell = Cell(_nothing((name,), k, material))
                cells.append(replace(cell, published="" if target else printed.get((name, system), "")))
            body.append(TableRow((_named(name, k, target),), tuple(cells)))
    how = _HOW if k == headline else _AS.format(of_k("XVI", headline))
    return Table(
        of_k("XVI", k),
        "Head to head" + ("" if k == headline else f", K = {k}"),
        f"Of queries for the {k} nearest. {how}{_tuned(body)}",
        ("Criterion",),
        (Column("Comparisons"), *(Column(system, "", "Verdict", system) for system in systems)),
        tuple(body),
        "The paper's verdicts are the authors'; no test stands behind them."
        if any(cell.published for row in body for cell in row.cells)
        else "",
    )


_HOW = (
    "Derived from the numbers of this page, criterion by criterion of the paper. A system wins a comparison"
    " (one dataset, topology and workload) if it differs from each other system: by the verdict of Table C"
    " where it has one, else at one in twenty, corrected by Holm's method for all other comparisons of this table and"
    " of those for other K; and if, in what is of queries, it has no less recall and at"
    " most one answer in a thousand defective; it wins the criterion if it wins some comparisons and no other"
    " system wins any. Mixed: another wins some, too. Equivalent: surely within the margin; tied: with one or"
    " more that are equivalent, surely better than the others. Undetermined: neither is shown. Noise is that"
    " between runs; for recall (by distance), that of the choice of queries; for loading and storage, that"
    " between independent builds. Stability is the throughput of many clients as a share of"
    " that of half as many."
)
_AS = "Derived as Table {}, which has what is not of queries; criteria that compare nothing here are left out."


_AT = ", at recall ≥ "


def _named(criterion: str, k: int, target: float | None) -> str:
    return criterion.replace("Recall@10", f"Recall@{k}") + (f"{_AT}{target:g}" if target else "")


def _tuned(rows: Sequence[TableRow]) -> str:
    """What the rows say that name a recall; empty if there are none."""
    if not any(_AT in row.labels[0] for row in rows):
        return ""
    return (
        " At recall ≥: each search was tuned on other queries, so that its recall (by distance) surely reaches the"
        " number; such searches are compared with each other alone."
    )


def _nothing(names: Sequence[str], k: int, material: Material) -> str:
    """Why these criteria compare nothing: no two systems were asked it, or their recall is what searches aimed at."""
    aimed = any(_AIMED[name](_Numbers(material, k)) for name in names if name in _AIMED)
    return "tuned for, not compared" if aimed else "nothing to compare"


def _by_use(material: Material, found: Found, headline: int, verdicts: Mapping[int, Decision]) -> Table:
    """What the verdicts say to somebody who chooses, as the paper's section VI.B does."""
    rows = []
    for use, names in USES.items():
        for k in found:
            of_use = [comparison for name in names for comparison in found[k].get(name, ())]
            for target, comparisons in _by_target(of_use, always=k == headline):
                said = "" if comparisons else _nothing(names, k, material)
                rows.append(_use(use, names, k, target, comparisons, verdicts, said))
    return Table(
        "VI.B",
        "What to use",
        "What the verdicts of Table XVI say by use and number of neighbours (K), under the number of the paper's"
        " section. A system is named where it wins a comparison of that use and no other system wins any, never with"
        " more than one answer in a thousand defective; the last column says what the undetermined comparisons lack."
        " What one needs most is for the reader to say. It holds for what was measured here: these versions, settings,"
        f" datasets and this machine.{_tuned(rows)}",
        ("Use", "K", "Criteria"),
        (Column("Choose"), Column("Comparisons"), Column("What would determine the others")),
        tuple(rows),
    )


def _use(
    use: str,
    names: Sequence[str],
    k: int,
    target: float | None,
    comparisons: Sequence[Comparison],
    verdicts: Mapping[int, Decision],
    said: str,
) -> TableRow:
    """`said`: why nothing is compared, where nothing is."""
    decisions = [verdicts[id(comparison)] for comparison in comparisons]
    won = Counter(decision.winner for decision in decisions)
    winners = sorted(won.keys() - {*_NO_SYSTEM})
    said = said or _choice(comparisons, decisions, winners)
    counts = [f"{system} wins {won[system]}" for system in winners]
    counts += [f"{won[outcome]} {outcome.lower()}" for outcome in _NO_SYSTEM if won[outcome]]
    ids = tuple(i for c in comparisons for e in c.entries.values() for i in e.ids)
    rests = f"of {len(comparisons)}: {', '.join(counts)}" if comparisons else NO_CELL
    choice = Cell(said, best=winners == [said]) if any(CRITERIA[name] for name in names) else _NOTHING_MEASURED
    labels = (_named(use, k, target), NO_CELL if OF_DATA.issuperset(names) else str(k))
    return TableRow(
        (*labels, _named("; ".join(names), k, target)),
        (choice, Cell(rests, parents=ids), Cell(_lacking(decisions))),
    )


def _choice(comparisons: Sequence[Comparison], decisions: Sequence[Decision], winners: Sequence[str]) -> str:
    """The one system that wins some comparisons while none is ahead of it in another; else in words what is known."""
    ahead = [
        {decision.winner} if decision.winner not in _NO_SYSTEM else {*(decision.ahead or comparison.entries)}
        for comparison, decision in zip(comparisons, decisions, strict=True)
        if decision.winner != UNDETERMINED
    ]
    best = set.intersection(*ahead) if ahead else set()
    if winners:
        return winners[0] if len(winners) == 1 and winners[0] in best else "it depends"
    if len(ahead) < len(comparisons):
        return UNDETERMINED
    every = {system for comparison in comparisons for system in comparison.entries}
    return "any of them" if best == every else " or ".join(sorted(best)) or "it depends"


def _lacking(decisions: Sequence[Decision]) -> str:
    """What the undetermined comparisons lack: the most further rounds (or queries, …) of any, and other reasons."""
    lacks = [each for decision in decisions for each in decision.lacks]
    counted: dict[str, list[int | None]] = {}
    for each in lacks:
        if isinstance(each, tuple):
            counted.setdefault(each[1], []).append(each[0])
    said = []
    for of, counts in sorted(counted.items()):
        known = [count for count in counts if count is not None]
        most = [f"up to {max(known):,}"] if known else []
        said.append(f"more {of}: {' or '.join([*most, *(['many'] if len(known) < len(counts) else [])])}")
    said += [f"{words} ({n} ×)" for words, n in Counter(each for each in lacks if isinstance(each, str)).items()]
    return "; ".join(said) or NO_CELL


def _own(a: Entry, b: Entry, quantity: str, known: Verdicts) -> Pair:
    """Two answers that are judged here: by rounds where both have rounds, by pairs of servers where these ran."""
    ratio = known.pair(a.row, b.row).ratio if a.row and b.row else None
    return Pair(a.judged_by or _ONCE, b.judged_by or _ONCE, quantity, paired=True, ratio=ratio)


def _judged(both: Sequence[tuple[Entry, Entry, str]], known: Verdicts) -> Iterator[Verdict]:
    """The second of each two against the first: as the page has it, else at a level that holds for all others."""
    page = [
        known.of_systems.get((a.ids[0], b.ids[0])) if a.judged_by is None and b.judged_by is None else None
        for a, b, _ in both
    ]
    others = [each for each, found in zip(both, page, strict=True) if found is None]
    pairs = [_own(*each, known) for each in others]
    verdicts = judge_all(pairs, known.rule, known.beside({quantity for _, _, quantity in others}))
    own = (
        known.floored(verdict, a.row, b.row, pair.ratio) if a.row and b.row else verdict
        for verdict, pair, (a, b, _) in zip(verdicts, pairs, others, strict=True)
    )
    return (found[2] if found is not None else next(own) for found in page)


def decide(comparisons: Sequence[Comparison], known: Verdicts) -> dict[int, Decision]:
    """What each comparison comes to, by its id()."""
    both = [(c.entries[a], c.entries[b], _quantity(c, a)) for c in comparisons for a, b in c.pairs()]
    judged = _judged(both, known)
    verdicts = {}
    for comparison in comparisons:
        best = comparison.best()
        against = []
        for pair in comparison.pairs():
            found = next(judged)
            if best in pair:
                other = pair[pair[0] == best]
                less = pair[1] if comparison.lower else pair[0]  # the better one, if the second is surely less
                better = less if found.outcome is Outcome.LESS else pair[pair[0] == less]
                obstacle = _obstacle(comparison.entries[best], comparison.entries[other], found, known)
                if found.decided and better != best:
                    obstacle = "rounds and pairs of servers disagree"
                against.append((other, found, obstacle))
        verdicts[id(comparison)] = _decision(best, against)
    return verdicts


def _obstacle(best: Entry, other: Entry, found: Verdict, known: Verdicts) -> str:
    """Why the better answer wins nothing; empty if it may, or if more rounds would tell."""
    if not found.decided:
        unknown = found.outcome in (Outcome.UNDETERMINED, Outcome.EQUAL) and not found.of
        return "measured once: needs several builds" if unknown and _ONCE in (best.judged_by, other.judged_by) else ""
    if best.defective:
        return "the best has defective answers"
    bought = best.row is not None and other.row is not None and known.obstacle(best.row, other.row)
    return "the best has less recall, or defective answers" if bought else ""


def _decision(best: str, against: Sequence[tuple[str, Verdict, str]]) -> Decision:
    """Of the verdicts on the best system and each other, with what is in the way of a win."""
    if all(found.decided and not obstacle for _, found, obstacle in against):
        return Decision(best)
    lacks: list[str | tuple[int | None, str]] = []
    for _, found, obstacle in against:
        if obstacle:
            lacks.append(obstacle)
        elif found.outcome in (Outcome.UNDETERMINED, Outcome.EQUAL):
            lacks.append((found.further, found.of) if found.of else found.reason)
    if lacks:
        return Decision(UNDETERMINED, tuple(lacks))
    tied = [other for other, found, _ in against if not found.decided]
    return Decision(EQUIVALENT) if len(tied) == len(against) else Decision(TIED, ahead=(best, *tied))


def _quantity(comparison: Comparison, system: str) -> str:
    """What has its noise in common with others: a metric; what is made from several numbers, only with itself."""
    row = comparison.entries[system].row
    return str(id(comparison)) if row is None else str(row["metric"])


_NOTHING_MEASURED = Cell(UNJUDGED, problem="a judgement, nothing that is measured")


def _cell(
    system: str, comparisons: Sequence[Comparison], verdicts: Mapping[int, Decision], rows: Sequence[Row]
) -> Cell:
    mine = [comparison for comparison in comparisons if system in comparison.entries]
    if not mine:
        # Where this system has no number at all, its load says why.
        loads = [row for row in rows if row["system"] == system and row["metric"] == "load_s"]
        reason = next((row["reason"] for row in loads if row["value"] is None), "")
        return Cell(brief(reason) if reason else NO_CELL, problem=reason)
    ids = tuple(i for comparison in mine for i in comparison.entries[system].ids)
    decisions = [verdicts[id(comparison)] for comparison in mine]
    won = [decision.winner for decision in decisions]
    wins = won.count(system)
    losses = sum(
        system not in (decision.ahead or (system,)) or decision.winner not in (system, *_NO_SYSTEM)
        for decision in decisions
    )
    others = any(verdicts[id(comparison)].winner not in (system, *_NO_SYSTEM) for comparison in comparisons)
    if wins and (losses or others):
        said = f"{MIXED} ({wins} of {len(mine)})"
    elif wins:
        said = f"{WINNER} ({wins} of {len(mine)})"
    elif losses:
        said = NO_CELL
    else:
        said = UNDETERMINED if UNDETERMINED in won else TIED if TIED in won else EQUIVALENT
    return Cell(said, best=bool(wins and not losses and not others), parents=ids)


def _printed(material: Material) -> dict[tuple[str, str], str]:
    """The paper's verdicts, by criterion and our system; none where others than its two systems are compared."""
    ours: dict[str, set[str]] = {}
    for record in material.records.values():
        if record["stage"] == "load":
            system = record["spec"]["system"]
            ours.setdefault(f"{system['engine']} {'.'.join(str(system['version']).split('.')[:2])}", set()).add(
                str(system["name"])
            )
    there = {name for names in ours.values() for name in names}
    if len(there) != len(_PAPER_SYSTEMS) or ours.keys() != set(_PAPER_SYSTEMS):
        return {}
    found = {}
    for figure in material.facts.figures if material.facts else ():
        if figure.document == "paper" and figure.metric == "verdict_code":
            said = dict(part.partition("=")[::2] for part in figure.detail.split("; ") if "=" in part)
            (system,) = next(ours[name] for name in _PAPER_SYSTEMS if name.startswith(f"{figure.system} "))
            found[said.get("criterion", ""), system] = said.get("label", "")
    return found
