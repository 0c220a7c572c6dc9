"""The tables of the other documents, by the axes of their experiments: what they printed, and what was measured here.

Measured is every cell that asks a document's question, on whatever dataset: the table says which. A document's own
figures stand in rows of their own, so that nothing looks like a pair that isn't one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from anncestry.report.counterpart import METRICS
from anncestry.report.model.cells import (
    NO_CELL,
    Cell,
    Column,
    Row,
    Table,
    TableRow,
    computed,
    text_of,
    with_interval,
)
from anncestry.report.model.material import Material
from anncestry.report.published import DOCUMENTS, Figure, printed_text
from anncestry.report.tables.spec import pivot

MEASURED, PRINTED = "measured here", "the document"


_COLUMNS = {
    "qps": Column("Queries per second", "1/s"),
    "avg_ms": Column("Mean", "ms"),
    "p50_ms": Column("p50", "ms"),
    "p95_ms": Column("p95", "ms"),
    "p99_ms": Column("p99", "ms"),
    "fail_per_s": Column("Failed", "1/s"),
    "recall_by_id": Column("Recall by id", "fraction"),
    "load_s": Column("Load", "s"),
    "index_build_s": Column("Index build", "s"),
    "pss_mib": Column("Memory (PSS)", "MiB"),
    "pss_anon_mib": Column("Memory in no file", "MiB"),
    "read_bytes_per_query": Column("Read a query", "bytes"),
}
"""Columns by what the documents call the metric; `_OURS` says what it is called here."""

_OURS = METRICS | {name: ("query", name) for name in ("pss_mib", "pss_anon_mib")}

Asks = Callable[[Row], bool]


@dataclass(frozen=True)
class Document:
    """One table: the id of its document, its title and caption, its metrics, and which cells ask its question."""

    name: str
    number: str
    title: str
    caption: str
    metrics: tuple[str, ...]
    asks: Callable[[Material], Asks]
    """Which rows ask the question, given what there is."""
    libraries: bool = False
    """Whether what was asked through the database's own library asks it, too."""


THROUGH = {
    "sdk": ", through its Python client",
    "sdk-go": ", through its Go client",
    "vectordbbench": ", by VectorDBBench's client",
}
_GRPC_SYSTEM = "weaviate-1.23.9"
"""The Weaviate of the article on gRPC, which was asked through its Python client."""


def asks_by_protocol(material: Material) -> Asks:
    """Weaviate by two protocols, where both are there, or beside the document's version through its own library."""
    asked = {_program(r["system"]) for r in material.rows if r["system"].endswith("-rest")}
    by_library = {row["system"] for row in material.by_any_client if row["client"] == "sdk"}
    if _GRPC_SYSTEM in by_library:
        asked |= {_program(system) for system in by_library}
    return lambda row: row["engine"] == "weaviate" and row["clients"] == 1 and _program(row["system"]) in asked


def _program(system: str) -> str:
    """A system without what its name says of the protocol, or of who inserts."""
    return system.removesuffix("-rest").removesuffix("-import")


def _on_disk(material: Material) -> Asks:
    """An index on disk, and what stands beside it in the same matrix."""
    disk = {
        str(record["spec"]["dataset"]["name"])
        for record in material.records.values()
        if record["stage"] == "load" and "diskann" in json.dumps(record["spec"]).lower()
    }
    engines = ("milvus", "diskann", "hnswlib", "faiss")
    return lambda row: row["engine"] in engines and row["dataset"] in disk and bool(row["k"]) and not row["filter"]


_ALL = (
    Document(
        "milvus-2.2",
        "D1",
        "Milvus 2.2: concurrency, scale-up and scale-out",
        "The one nearest, by version, topology and number of clients, in closed loops of a fixed time. The document ran"
        " SIFT on Kubernetes.",
        ("qps", "p50_ms", "p99_ms", "fail_per_s"),
        lambda _: lambda row: row["engine"] == "milvus" and row["k"] == 1 and row["duration_s"] is not None,
        libraries=True,
    ),
    Document(
        "weaviate-grpc",
        "D2",
        "Weaviate by gRPC and by REST",
        "Loading and queries of one client by protocol; systems called -rest ask by REST and GraphQL, the others by"
        " gRPC, by encoded requests or through the Python client, which the document's was asked through. Those called"
        " -import are loaded by that client, too. The document gives the change of latency as a range, so that it has"
        " no row of latencies.",
        ("load_s", "qps", "avg_ms", "p50_ms", "p99_ms"),
        asks_by_protocol,
        libraries=True,
    ),
    Document(
        "polardb",
        "D3",
        "Databases of the MySQL protocol by number of clients",
        "Recall, latency and throughput by clients. The document is about PolarDB, a service in a cloud: systems of"
        " another name are other databases of its protocol.",
        ("recall_by_id", "qps", "avg_ms", "p95_ms", "p99_ms", "index_build_s"),
        lambda _: lambda row: row["engine"] == "mysql" and not row["filter"],
    ),
    Document(
        "diskann",
        "D4",
        "An index on disk beside one in memory",
        "DiskANN and HNSW by dataset and storage. The document's disks are behind NVMe over fabrics and its DiskANN is"
        " that of Milvus; a storage path is what it is on the machine that was measured, and systems called -library"
        " are the DiskANN library itself in its clients' processes, without a server. Memory (PSS, and of it what is in"
        " no file) and reads"
        " are those of the server's processes, of a library its clients', each with what it holds of the index; reads"
        " are what reached storage (/proc/PID/io) by queries, over all runs.",
        ("qps", "recall_by_id", "p95_ms", "p99_ms", "load_s", "pss_mib", "pss_anon_mib", "read_bytes_per_query"),
        _on_disk,
        libraries=True,
    ),
)


def tables(material: Material) -> list[Table]:
    """The tables of the documents whose question was asked of something here."""
    found = [(document, list(_measured(document, material))) for document in _ALL]
    return [
        Table(
            document.number,
            document.title,
            document.caption,
            ("Source", "Dataset", "Topology", "System", "Asked"),
            tuple(_COLUMNS[metric] for metric in document.metrics),
            (*rows, *_printed(document, material)),
        )
        for document, rows in found
        if rows
    ]


def _measured(document: Document, material: Material) -> Iterator[TableRow]:
    """A row a cell that asks the question, whether it has numbers or not."""
    numbers = pivot(material.by_any_client, ("dataset", "topology", "system", "workload"), ("phase", "metric"))
    asks = document.asks(material)
    places: dict[tuple[str, str, int, str, str], Row] = {}
    for row in material.by_any_client if document.libraries else material.ordinary:
        if row["metric"] == "qps" and asks(row):
            place = (row["dataset"], row["topology"], row["clients"] or 0, row["system"], row["workload"])
            places[place] = row
    for (dataset, topology, clients, system, workload), row in sorted(places.items(), key=lambda item: item[0]):
        load, cell = (numbers.get((dataset, topology, system, of), {}) for of in ("", workload))
        cells = tuple(_number(metric, load | cell) for metric in document.metrics)
        through = THROUGH.get(row["client"], "")
        asked = f"{workload}: K = {row['k']}, {_clients(str(clients))}{through}"
        yield TableRow((MEASURED, dataset, topology, system, asked), cells)


def _number(metric: str, of: Mapping[tuple[object, ...], Row]) -> Cell:
    """A number of a cell; bytes read a query are made from two, each a total over all runs."""
    if metric != "read_bytes_per_query":
        return with_interval(of.get(_OURS[metric]))
    read, asked = of.get(("query", "io_read_mib")), of.get(("query", "samples"))
    if read is None or read["value"] is None:
        return with_interval(read)
    made = computed(read, asked, lambda mib, queries: mib * (1 << 20) / queries, "{}")
    return made if made.value is None else replace(made, text=text_of(made.value, None, "bytes"))


def _printed(document: Document, material: Material) -> Iterator[TableRow]:
    """A row for each configuration that the document has figures of."""
    places: dict[tuple[str, str, str, str], dict[str, Figure]] = {}
    for figure in material.facts.figures if material.facts else ():
        wanted = (
            figure.document == document.name and figure.metric in document.metrics and "restates" not in figure.detail
        )
        if wanted and figure.dataset and (figure.system or figure.version):
            system = " ".join(filter(None, (figure.system, figure.version, figure.index)))
            k = f"K = {figure.k}" if figure.k else ""
            asked = ", ".join(filter(None, (figure.place, k, _clients(figure.clients))))
            # How a number is printed is no part of what was asked.
            detail = "; ".join(part for part in figure.detail.split("; ") if part and "printed" not in part)
            place = (figure.dataset, figure.topology, system, f"{asked}; {detail}" if detail else asked)
            places.setdefault(place, {})[figure.metric] = figure
    for place, of in places.items():
        cells = (
            Cell(printed_text(of[metric].value), source=of[metric].id) if metric in of else Cell(NO_CELL)
            for metric in document.metrics
        )
        yield TableRow((f"{PRINTED} ({DOCUMENTS[document.name].partition(':')[0]})", *place), tuple(cells))


def _clients(count: str) -> str:
    return f"{count} client{'' if count == '1' else 's'}" if count else ""
