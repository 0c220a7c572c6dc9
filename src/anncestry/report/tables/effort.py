"""Tables beyond those of the paper: equal recall, its price, fronts, filters by selectivity, real differences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from anncestry.cells.features import Place
from anncestry.metrics.decide import IN_PAIRS, Outcome, Verdict
from anncestry.metrics.defects import percent
from anncestry.report.model import equal_recall
from anncestry.report.model.cells import NO_CELL, Cell, Column, Row, Table, TableRow, is_serial, text_of, with_interval
from anncestry.report.model.derived import COST
from anncestry.report.model.equal_recall import AtTarget, Sweep
from anncestry.report.model.material import Material
from anncestry.report.model.verdicts import COMPARED, Verdicts, gain, judged_values
from anncestry.report.tables.spec import made, pivot


def tables(material: Material) -> list[Table]:
    """Tables E, Q, P and F, without those that nothing belongs to."""
    rows = material.ordinary
    return [table for table in (_equal(rows), _price(rows), _fronts(rows), _filters(rows)) if table.rows]


def comparisons(material: Material) -> list[Table]:
    """Table C, if anything is compared."""
    return made(_comparisons(material.verdicts))


# Equal recall


_Swept = tuple[str, str, str, tuple[object, ...]]
"""Dataset, topology, system and question of a sweep."""


def _sweeps(rows: Sequence[Row], metric: str) -> dict[_Swept, Sweep]:
    return {(s.dataset, s.topology, s.system, s.question): s for s in equal_recall.sweeps(rows, metric)}


def _equal(rows: Sequence[Row]) -> Table:
    return _at_recall(
        rows,
        {"qps": ("Queries per second", "1/s", False), "p99_ms": ("p99", "ms", True)},
        "E",
        "Cost of a recall",
        "What recall (by distance) of a target costs. Between neighbours: linear between the two points of a system's"
        " front (see Table P) that have the target between them, never beyond its ends; in brackets the least and most"
        " that the 95 % intervals of both points' recalls and costs allow. Measured: at the smallest search effort"
        " whose recall on held-out queries, which are not reported, surely reached the target; the recall is that of"
        " the measured queries.",
    )


def _price(rows: Sequence[Row]) -> Table:
    return _at_recall(
        rows,
        {COST: ("Million queries", "CPU-s", True)},
        "Q",
        "What a million queries cost",
        "CPU-seconds of the server (of a library: of its clients) for a million answered queries at a recall (by"
        " distance), found as in Table E: processor time depends less than its speed on what else a machine does."
        " Measured: in brackets the 95 % interval over runs, by Student's t of the logarithms; one run has none.",
    )


def _at_recall(
    rows: Sequence[Row], costs: Mapping[str, tuple[str, str, bool]], number: str, title: str, caption: str
) -> Table:
    """A table of `costs` (metric → label, unit, whether less is better) at target recalls, a column a system."""
    sweeps = {metric: _sweeps(rows, metric) for metric in costs}
    tuned = pivot(
        (row for row in rows if row["target_recall"] is not None),
        ("dataset", "topology", "workload"),
        ("system", "metric"),
    )
    places = {place for of in sweeps.values() for place in of}
    systems = sorted({place[2] for place in places} | {system for of in tuned.values() for system, _ in of})
    columns = [Column(system, unit, f"{label} ", system) for label, unit, _ in costs.values() for system in systems]
    body = []
    for dataset, topology, question in sorted({(place[0], place[1], place[3]) for place in places}, key=str):
        for target in equal_recall.TARGETS:
            cells = tuple(
                _interpolated(sweeps[metric].get((dataset, topology, system, question)), target, unit, lower)
                for metric, (_, unit, lower) in costs.items()
                for system in systems
            )
            labels = (dataset, topology, _asked(question), f"{target:g}", "between neighbours of the sweep")
            body.append(TableRow(labels, cells))
    for (dataset, topology, _), numbers in sorted(tuned.items()):
        cells = tuple(_tuned(numbers, system, metric) for metric in costs for system in systems)
        first = next(iter(numbers.values()))
        asked = _asked((first["k"], first["clients"], first["duration_s"], first["filter"]))
        labels = (dataset, topology, asked, f"{first['target_recall']:g}", "measured, effort from other queries")
        body.append(TableRow(labels, cells))
    body.sort(key=lambda row: row.labels)
    return Table(
        number,
        title,
        caption,
        ("Dataset", "Topology", "Asked", "Target recall", "How"),
        tuple(columns),
        tuple(body),
    )


def _interpolated(sweep: Sweep | None, target: float, unit: str, lower: bool) -> Cell:
    if sweep is None:
        return Cell(NO_CELL)
    at: AtTarget = equal_recall.at_target(sweep.points, target, lower=lower)
    parents = tuple(row["number_id"] for row in at.parents)
    if at.value is None:
        return Cell(at.why, parents=parents, problem=at.why)
    shown = text_of(at.value, None, unit)
    if at.low is not None and at.high is not None:
        shown += f" ({text_of(at.low, None, unit)} to {text_of(at.high, None, unit)})"
    return Cell(shown, at.value, parents=parents)


def _tuned(numbers: Mapping[Place, Row], system: str, metric: str) -> Cell:
    cell = with_interval(numbers.get((system, metric)))
    recall = numbers.get((system, equal_recall.RECALL))
    if cell.value is None or recall is None or recall["value"] is None:
        return cell
    if equal_recall.defective(recall):
        return Cell(f"{percent(recall['defect_share'])} of answers defective", number_id=cell.number_id)
    said = f"{cell.text}; {recall['effort']}, recall {text_of(recall['value'], None, 'fraction')}"
    return Cell(said, cell.value, cell.std, cell.number_id)


def _fronts(rows: Sequence[Row]) -> Table:
    body = []
    by_p99 = _sweeps(rows, "p99_ms")
    for place, sweep in _sweeps(rows, "qps").items():
        other = by_p99[place].points if place in by_p99 else ()
        fronts = {"QPS": equal_recall.front(sweep.points, lower=False), "p99": equal_recall.front(other, lower=True)}
        p99 = {point.cost["workload"]: point.cost for point in other}
        for point in sweep.points:
            workload = point.cost["workload"]  # several may ask at one effort
            on = [name for name, of in fronts.items() if any(one.cost["workload"] == workload for one in of)]
            numbers = map(with_interval, (point.recall, point.cost, p99.get(workload)))
            labels = (sweep.dataset, sweep.topology, _asked(sweep.question), sweep.system, point.effort)
            off = "defective answers" if equal_recall.defective(point.cost) else "dominated"
            body.append(TableRow(labels, (*numbers, Cell(" and ".join(on) or off))))
    return Table(
        "P",
        "Recall and speed by search effort",
        "One row a cell, with 95 % intervals. On the front: no other effort of the same system has as much recall (by"
        " distance) and a better cost; dominated points are pale in the chart.",
        ("Dataset", "Topology", "Asked", "System", "Effort"),
        (
            Column("Recall by distance", "fraction"),
            Column("Queries per second", "1/s"),
            Column("p99", "ms"),
            Column("On the front of"),
        ),
        tuple(body),
    )


def _asked(question: Sequence[object]) -> str:
    k, clients, duration_s, filter = question
    said = [f"K = {k}", f"{clients} client{'' if clients == 1 else 's'}"]
    if duration_s:
        said.append(f"{duration_s:g} s")
    return ", ".join([*said, *([str(filter)] if filter else [])])


# Filters


def kind_of(filter: str) -> str:
    """How a filter goes with a query's position, from its words in the tidy frame."""
    if not filter.startswith("region"):
        return "independent"
    return "near the query" if filter.endswith(", near the query") else "far from the query"


def _filters(rows: Sequence[Row]) -> Table:
    """Recall and latency by selectivity, if there are at least two selectivities."""
    asked = [row for row in rows if row["filter"] and is_serial(row)]
    systems = sorted({row["system"] for row in asked})
    metrics = {
        "recall_by_id": ("Recall by id", "fraction"),
        "recall_zero_share": ("Answers with recall 0", "fraction"),
        "p50_ms": ("p50", "ms"),
    }
    columns = [Column(system, unit, label, system) for label, unit in metrics.values() for system in systems]
    questions = pivot(asked, ("dataset", "topology", "k", "filter", "workload"), ("metric", "system"))
    body = []
    for (dataset, topology, k, filter, _), numbers in sorted(questions.items()):
        shares = [row["value"] for (metric, _), row in numbers.items() if metric == "selectivity"]
        share = next((value for value in shares if value is not None), None)
        cells = tuple(with_interval(numbers.get((metric, system))) for metric in metrics for system in systems)
        words = "?" if share is None else f"{100 * share:.3g} %"
        body.append((share or 0.0, TableRow((dataset, topology, str(k), kind_of(filter), words), cells)))
    body.sort(key=lambda item: (*item[1].labels[:4], item[0]))
    asked_by: dict[tuple[str, ...], set[float]] = {}
    for share, row in body:
        asked_by.setdefault(row.labels[:4], set()).add(share)
    enough = any(len(shares) > 1 for shares in asked_by.values())
    return Table(
        "F",
        "Filters by selectivity",
        "Share of rows that pass, as the server itself counts them. Independent: the filter has nothing to do with"
        " position. Near and far: rows on the query's own side of a number of splits of space, or on the other side of"
        " all of them. Recall is against the exact neighbours among the rows that pass; answers with recall 0 found"
        " none of them. 95 % intervals in brackets.",
        ("Dataset", "Topology", "K", "Filter", "Selectivity"),
        tuple(columns),
        tuple(row for _, row in body) if enough else (),
    )


# Differences


_EVERY_PAIR_OF = 6
"""Systems up to which Table C has every pair: fifteen have 105 in each number, which nobody reads."""


def shown(verdicts: Verdicts) -> Iterator[tuple[Row, Row, Verdict]]:
    """Which of the pairs that were judged stand in Table C: of many systems, the best beside each of the others."""
    numbers: dict[tuple[str, ...], list[tuple[Row, Row, Verdict]]] = {}
    for a, b, found in verdicts.of_systems.values():
        numbers.setdefault((a["metric"], a["dataset"], a["topology"], a["workload"]), []).append((a, b, found))
    for (metric, *_), pairs in numbers.items():
        values = {row["number_id"]: row["value"] for *both, _ in pairs for row in both}
        best = (min if COMPARED[metric] else max)(values, key=lambda number: values[number])
        for a, b, found in pairs:
            if len(values) <= _EVERY_PAIR_OF or best in (a["number_id"], b["number_id"]):
                yield a, b, found


def _comparisons(verdicts: Verdicts) -> Table:
    """Pairs of systems whose noise is known, by every metric in which systems are compared; and why others have none
    that were measured apart."""
    body = []
    for a, b, found in shown(verdicts):
        both = (a["number_id"], b["number_id"])
        labels = (a["dataset"], a["topology"], a["workload"], a["metric"], f"{a['system']} against {b['system']}")
        base, other = judged_values(a, b)
        if base <= 0 or other <= 0:
            continue  # nothing is so many percent of nothing
        if why := verdicts.out_of_turn(a, b):
            as_it_is = Cell(f"{100 * (base / other - 1):+.1f}".replace("-", "−"), parents=both, value=base / other)
            said = Cell(f"{found.outcome.value}: {why}")
            body.append(TableRow(labels, (as_it_is, Cell(NO_CELL), Cell(NO_CELL), said)))
            continue
        if found.low is None or found.high is None or found.p is None or found.p_apart is None:
            continue
        # The verdict is on B against A; the table says A against B.
        in_pairs = found.noise.startswith(IN_PAIRS)
        times, ends = gain(a, b, found)
        apart = 1 / times - 1
        change = f"{100 * apart:+.1f}"
        if ends:
            change += f" ({100 * (1 / ends[1] - 1):+.1f} to {100 * (1 / ends[0] - 1):+.1f})"
        cells = (
            Cell(change.replace("-", "−"), parents=both, value=1 + apart),
            Cell(f"{found.p:.2g}", parents=both),
            Cell(f"{found.p_apart:.2g}", parents=both),
            Cell(_said(a, b, found, verdicts) + (" (in pairs)" if in_pairs else "")),
        )
        body.append(TableRow(labels, cells))
    return Table(
        "C",
        "Which differences are real",
        "Every pair of systems in every number whose noise is known; where many systems have it, the best beside each"
        " of the others. The difference has its own 95 % interval, on the log scale: of pairs of"
        " rounds; of builds where several were measured; of pairs of servers (Table J) where both were measured in"
        " pairs, and then of these alone. Rounds that did not alternate, as one system was measured later, tell"
        " nothing: what the machine did between the two would be in all of their differences. All rounds ask the same"
        " queries: verdicts on latencies hold for these, not for others."
        " p says how well it goes with no difference, p beyond with one beyond the declared margin of equivalence,"
        f" {100 * verdicts.rule.margin:g} %: both by Student's t or, where many"
        " comparisons of one metric say what noise they have in common, with variances that draw on these; corrected by"
        " Holm's method for every pair in every number."
        f" Equivalent: p beyond is at most {verdicts.rule.level:g}. Differs: p is. Undetermined: neither, with the"
        " further rounds that would probably determine it. No system wins by less recall or with defective answers. "
        + (
            "No difference counts that is within what builds of one load differ by (Noise between builds)."
            if verdicts.noise.of_metric
            else "Each load was built once: what another build would change is in no verdict."
        ),
        ("Dataset", "Topology", "Workload", "Metric", "Systems"),
        (Column("Difference", "%"), Column("p"), Column("p beyond"), Column("Verdict")),
        tuple(body),
    )


def _said(a: Row, b: Row, found: Verdict, verdicts: Verdicts) -> str:
    if not found.decided:
        return found.words
    lower = COMPARED[a["metric"]]
    best, other = (b, a) if (found.outcome is Outcome.LESS) == lower else (a, b)
    what = "is faster" if best["unit"] in ("ms", "s", "1/s") else "needs less"
    obstacle = verdicts.obstacle(best, other)
    return f"{best['system']} {what}" + (f", {obstacle}" if obstacle else "")
