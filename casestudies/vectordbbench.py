"""VectorDBBench beside what was measured here: its summaries of PolarDB, and what its own runners counted.

Table PK sums up every system; the rows of databases of the MySQL protocol stand here again, beside the document's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from anncestry.report.counterpart import Asked, Joined
from anncestry.report.model.cells import NO_CELL, Cell, Column, Row, Table, TableRow, with_interval
from anncestry.report.model.material import Material
from anncestry.report.model.records import of_stage
from anncestry.report.published import DOCUMENTS, Figure, peer_id, printed_text
from anncestry.report.tables import peaks
from casestudies.documents import MEASURED, PRINTED, THROUGH

_SUMMED = "key metrics"
"""How the document's places end that print a summary."""


def tables(material: Material) -> list[Table]:
    """Table D3-S, if databases of the MySQL protocol were asked by several numbers of clients."""
    ours = peaks.lines([row for row in material.ordinary if row["engine"] == "mysql"], material)
    if not ours:
        return []
    return [
        Table(
            "D3-S",
            "Databases of the MySQL protocol, summed up as the document does",
            f"Rows of Table PK, and the document's key metrics. {peaks.CAPTION}",
            ("Source", *peaks.LABELS),
            peaks.COLUMNS,
            (*(TableRow((MEASURED, *row.labels), row.cells) for row in ours), *_printed(material)),
        )
    ]


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
    adapted: dict[str, str] = {}
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
        adapted[told["engine"]] = told["adapted"]
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
    changes = "; ".join(f"of {engine}, {change}" for engine, change in adapted.items())
    return [
        Table(
            "D3-V",
            "As VectorDBBench's own runner counted",
            "VectorDBBench asked the same version of the system for the same queries, with the same index, k, effort"
            " and clients, without limits of processors or memory, by its own client, runner and sums: medians of a few"
            " runs. It keeps no samples, so that its rows can't be verified, and no ratio has an interval. Its rate"
            f" counts the time in which its clients connect. What was changed in its client: {changes}. Our driver"
            " asked the same server in turn with it, without keeping samples: only that ratio is of the same minutes."
            " What was measured here, by records, is of another time"
            f"{', and of another machine' if elsewhere else ''}. Each of its numbers leads to when, where and by which"
            " packages it was counted.",
            ("Source", "Dataset", "Topology", "System", "Asked"),
            columns,
            tuple(body),
        )
    ]


def _question(told: Mapping[str, str]) -> Asked:
    """What its runner was asked: no filter, one vector a request. That its server had no limits, `_is_limited` sees to:
    None here is not compared: nor is the ef_construction of an index that has none.
    """
    names = ("M", "ef_construction", "ef", "k", "clients")
    numbers: dict[str, Any] = {name: int(told[name]) if told[name] else None for name in names}
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
