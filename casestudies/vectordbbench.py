"""What VectorDBBench prints of a run: a summary with the peak of queries per second, and its two curves by clients.

Both are of every number of neighbours and every effort that was measured, of the databases that document D3 is about.
A third table sets what its own runners counted beside what was measured here of the same question.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from anncestry.report.counterpart import Asked, Joined
from anncestry.report.model.cells import NO_CELL, Cell, Column, Row, Table, TableRow, with_interval
from anncestry.report.model.equal_recall import defective
from anncestry.report.model.material import Material
from anncestry.report.model.records import of_stage
from anncestry.report.published import DOCUMENTS, Figure, peer_id, printed_text
from anncestry.report.tables.spec import pivot
from casestudies.documents import MEASURED, PRINTED, THROUGH

_SUMMED = "key metrics"
"""How the document's places end that print a summary."""
_SUMMARY = (
    Column("Recall by id", "fraction"),
    Column("p99, one client", "ms"),
    Column("Peak queries per second", "1/s"),
    Column("Clients at the peak"),
    Column("Load", "s"),
    Column("Index build", "s"),
)


def tables(material: Material) -> list[Table]:
    """Tables D3-S and D3-C, if databases of the MySQL protocol were asked by several clients for a fixed time."""
    rows = [row for row in material.ordinary if row["engine"] == "mysql" and not row["filter"]]
    rows = [row for row in rows if row["target_recall"] is None]
    ladder = [row for row in rows if row["duration_s"] is not None]
    if not ladder:
        return []
    return [_summary(rows, material), _by_clients(ladder)]


def _summary(rows: Sequence[Row], material: Material) -> Table:
    loads = pivot((row for row in rows if not row["workload"]), ("dataset", "topology", "system"))
    asked: dict[tuple[str, str, int, str, int, str], list[Row]] = {}
    for row in rows:
        if row["workload"]:
            place = (row["dataset"], row["topology"], row["k"], row["system"], row["ef_search"] or 0, row["effort"])
            asked.setdefault(place, []).append(row)
    body = []
    for (dataset, topology, k, system, _, effort), of in sorted(asked.items()):
        serial = {row["metric"]: row for row in of if row["clients"] == 1 and row["duration_s"] is None}
        load = loads.get((dataset, topology, system), {})
        peak = _peak(row for row in of if row["metric"] == "qps" and row["duration_s"] is not None)
        at = Cell(NO_CELL) if peak is None else Cell(str(peak["clients"]), parents=(peak["number_id"],))
        shown = [with_interval(each) for each in (serial.get("recall_by_id"), serial.get("p99_ms"), peak)]
        times = [with_interval(load.get((name,))) for name in ("load_s", "index_s")]
        labels = (MEASURED, dataset, topology, system, effort or NO_CELL, str(k))
        body.append(TableRow(labels, (*shown, at, *times)))
    return Table(
        "D3-S",
        "Summary with the peak of queries per second",
        "As VectorDBBench prints a run. Recall and p99 are of one client that asked a fixed count of queries. The peak"
        " is the highest rate of all numbers of clients that asked for a fixed time, of those with at most one answer"
        " in a thousand defective, if there is one; its clients stand beside it.",
        ("Source", "Dataset", "Topology", "System", "Effort", "K"),
        _SUMMARY,
        (*body, *_printed(material)),
    )


def _peak(rates: Iterable[Row]) -> Row | None:
    """The highest rate: of rows without defects where there are such, else of those that have a number."""
    return max(rates, key=lambda row: (row["value"] is not None, not defective(row), row["value"] or 0.0), default=None)


def _printed(material: Material) -> Iterator[TableRow]:
    """A row for each summary that the document prints."""
    found: dict[tuple[str, ...], dict[str, Figure]] = {}
    for figure in material.facts.figures if material.facts else ():
        if figure.document == "polardb" and figure.place.endswith(_SUMMED) and "restates" not in figure.detail:
            labels = (figure.dataset, figure.topology, f"{figure.system} {figure.index}")
            found.setdefault(labels, {})[figure.metric] = figure
    source = f"{PRINTED} ({DOCUMENTS['polardb'].partition(':')[0]})"
    for place, of in found.items():
        peak = of.get("qps")
        at = Cell(NO_CELL) if peak is None else Cell(str(peak.clients), source=peak.id)
        recall, p99, rate, load, build = (
            Cell(printed_text(of[name].value), source=of[name].id) if name in of else Cell(NO_CELL)
            for name in ("recall_by_id", "p99_ms", "qps", "load_s", "index_build_s")
        )
        k = str(peak.k) if peak else NO_CELL
        yield TableRow((source, *place, NO_CELL, k), (recall, p99, rate, at, load, build))


def _by_clients(ladder: Sequence[Row]) -> Table:
    systems = sorted({row["system"] for row in ladder})
    metrics = {"qps": ("Queries per second", "1/s"), "p99_ms": ("p99", "ms")}
    places = pivot(ladder, ("dataset", "topology", "k", "clients", "workload"), ("metric", "system"))
    return Table(
        "D3-C",
        "Queries per second and p99 by number of clients",
        "Closed loops of a fixed time, for every number of neighbours that was measured.",
        ("Dataset", "Topology", "K", "Clients", "Workload"),
        tuple(Column(system, unit, label, system) for label, unit in metrics.values() for system in systems),
        tuple(
            TableRow(
                tuple(map(str, place)),
                tuple(with_interval(numbers.get((metric, system))) for metric in metrics for system in systems),
            )
            for place, numbers in sorted(places.items())
        ),
    )


_OWN = "VectorDBBench's own runner: not verifiable"
_IN_TURN = "our driver in turn with it: not verifiable"
_COUNTED = {
    ("query", "qps"): Column("Queries per second", "1/s"),
    ("query", "p99_ms"): Column("p99", "ms"),
    ("query", "mean_ms"): Column("Mean", "ms"),
    ("recall", "recall_by_id"): Column("Recall by id", "fraction"),
}
"""What its runners count, by our names: phase and metric."""
_MACHINE = ("cpu_model", "cores", "memory_gib", "machine")
"""Facts that make one platform."""


def own_runner(material: Material) -> list[Table]:
    """Table D3-V, if what its own runners were asked was measured here, too."""
    if material.facts is None:
        return []
    joined = Joined(material.by_any_client, material.records, material.facts)
    body: list[TableRow] = []
    elsewhere = False
    for told in material.facts.peers:
        theirs = _question(told)
        ours: dict[tuple[str, str, str, str], dict[str, Row]] = {}
        for phase, metric in _COUNTED:
            for row in joined.alike(theirs, phase, metric):
                if _is_limited(joined.asked(row)):
                    continue
                place = (row["topology"], row["system"], row["workload"], row["client"])
                ours.setdefault(place, {})[metric] = row
        if not ours:
            continue
        elsewhere = elsewhere or not _is_of_this_machine(told, material)
        asked = f"K = {told['k']}, ef = {told['ef']}, {told['clients']} client{'' if told['clients'] == '1' else 's'}"
        labels = (_OWN, told["dataset"], told["topology"], f"{told['engine']}-{told['system_version']}", asked)
        counted = [_told(told, told[name] and printed_text(told[name])) for _, name in _COUNTED]
        body.append(TableRow(labels, (*counted, Cell(NO_CELL))))
        if told["qps"]:
            ratio = _told(told, f"{float(told['driver_qps']) / float(told['qps']):.2f}")
            empty = [Cell(NO_CELL)] * (len(_COUNTED) - 1)
            body.append(
                TableRow((_IN_TURN, *labels[1:]), (_told(told, printed_text(told["driver_qps"])), *empty, ratio))
            )
        for (topology, system, workload, client), of in sorted(ours.items()):
            qps = of.get("qps")
            ratio = Cell(NO_CELL)
            if told["qps"] and qps is not None:
                value = qps["value"] / float(told["qps"])
                ratio = Cell(f"{value:.2f}", value, parents=(qps["number_id"],))
            labels = (MEASURED, told["dataset"], topology, system, f"{workload}{THROUGH.get(client, '')}")
            body.append(TableRow(labels, (*(with_interval(of.get(name)) for _, name in _COUNTED), ratio)))
    if not body:
        return []
    columns = (*_COUNTED.values(), Column("Rate over its runner's"))
    return [
        Table(
            "D3-V",
            "As VectorDBBench's own runner counted",
            "VectorDBBench asked the same version of the system for the same queries, with the same index, k, effort"
            " and clients, without limits of processors or memory, by its own client, runner and sums: medians of a few"
            " runs. It keeps no samples, so that its rows can't be verified, and no ratio has an interval. Its rate"
            " counts the time in which its clients"
            " connect. Our driver asked the same server in turn with it, without keeping samples: only that ratio is of"
            " the same minutes. What was measured here, by records, is of another time"
            f"{', and of another machine' if elsewhere else ''}. Each of its numbers leads to when, where and by which"
            " packages it was counted.",
            ("Source", "Dataset", "Topology", "System", "Asked"),
            columns,
            tuple(body),
        )
    ]


def _question(told: Mapping[str, str]) -> Asked:
    """What its runner was asked: no filter, one vector a request. That its server had no limits, `_is_limited` sees to:
    None here is not compared.
    """
    numbers: dict[str, Any] = {name: int(told[name]) for name in ("M", "ef_construction", "ef", "k", "clients")}
    return Asked(
        told["dataset"],
        engine=told["engine"],
        version=".".join(told["system_version"].split(".")[:2]),
        distributed=False,
        nodes=1,
        replicas=1,
        slowed=False,
        index=told["index"],
        quantizer="none",
        nq=1,
        filtered="none",
        timed=bool(told["duration_s"]),
        **numbers,
    )


def _is_limited(asked: Asked) -> bool:
    return asked.cpus is not None or asked.memory_mib is not None


def _told(told: Mapping[str, str], text: str) -> Cell:
    """What a row of a peer says, with its place on the audit page; a dash where it says nothing."""
    return Cell(text, source=peer_id(told)) if text else Cell(NO_CELL)


def _is_of_this_machine(told: Mapping[str, str], material: Material) -> bool:
    here = [record.get("platform") or {} for record in of_stage(material.records, "load")]
    return bool(here) and all(str(facts.get(name)) == told[name] for facts in here for name in _MACHINE)
