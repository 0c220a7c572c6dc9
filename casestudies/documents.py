"""The tables of the other documents, by the axes of their experiments: what they printed, and what was measured here.

Measured is every cell that asks a document's question, on whatever dataset: the table says which. A document's own
figures stand in rows of their own, so that nothing looks like a pair that isn't one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from anncestry.report.charts.storage import IN_BURSTS
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
from anncestry.report.model.quantities import in_process
from anncestry.report.model.records import declared_storage, of_stage, setup
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
Loaded = tuple[str, str]
"""A topology and a system."""


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
    tells: Callable[[Material], Mapping[Loaded, str]] = lambda _: {}
    """What the table says of a load, by its topology and system; it stands before the clients."""


THROUGH = {
    "sdk": ", through its Python client",
    "sdk-go": ", through its Go client",
    "vectordbbench": ", by VectorDBBench's client",
}
_GRPC_VERSION = "1.23.9"
"""The Weaviate of the article on gRPC, which was asked through its Python client."""
GRPC, REST = "grpc", "rest"


class Spoken(NamedTuple):
    """What the records say of a Weaviate: its version and protocol, who inserts, and how else it was set up."""

    version: str
    protocol: str
    loaded_by: str
    setup: str

    @property
    def program(self) -> tuple[str, str]:
        """What is one, whatever the protocol and whoever inserts."""
        return self.version, self.setup


def spoken(material: Material) -> dict[str, Spoken]:
    """Every Weaviate that was loaded, by its name."""
    found = {}
    for record in of_stage(material.records, "load"):
        system, load = record["spec"]["system"], record["spec"].get("load") or {}
        if system.get("engine") == "weaviate":
            of = setup(record)
            rest = repr((sorted(of.settings.items()), record["spec"].get("index")))
            found[str(system["name"])] = Spoken(of.version, str(of.protocol), load.get("client", "bytes"), rest)
    return found


def asks_by_protocol(material: Material) -> Asks:
    """Weaviate by two protocols, where both are there, or beside the document's version through its own library."""
    systems = spoken(material)
    measured = [systems[row["system"]] for row in material.rows if row["system"] in systems]
    asked = {each.program for each in measured if each.protocol == REST}
    by_client = (row["system"] for row in material.by_any_client if row["client"] == "sdk")
    by_library = [systems[name] for name in dict.fromkeys(by_client) if name in systems]
    if any(each.version == _GRPC_VERSION for each in by_library):
        asked |= {each.program for each in by_library}
    return lambda row: row["clients"] == 1 and row["system"] in systems and systems[row["system"]].program in asked


def _place(record: Mapping[str, Any]) -> Loaded:
    """The topology and system of a load's record."""
    return str(record["spec"]["topology"]["name"]), str(record["spec"]["system"]["name"])


def _protocols(material: Material) -> dict[Loaded, str]:
    said, systems = {GRPC: "by gRPC", REST: "by REST and GraphQL"}, spoken(material)
    return {
        place: said[each.protocol] + (", loaded by that client" if each.loaded_by == "sdk" else "")
        for place in map(_place, of_stage(material.records, "load"))
        if (each := systems.get(place[1])) is not None
    }


def _index_type(record: Mapping[str, Any]) -> str:
    return str((record["spec"].get("index") or {}).get("type")).lower()


def _placed(material: Material) -> dict[Loaded, str]:
    """Where an index is: in its clients' processes, or behind storage that somebody else declares."""
    found = {}
    for record in of_stage(material.records, "load"):
        if in_process(record):
            found[_place(record)] = "in its clients' processes"
        elif declared := declared_storage(record["spec"]["topology"]):
            found[_place(record)] = f"storage of {declared}"
    return found


def _on_disk(material: Material) -> Asks:
    """An index on disk, and what stands beside it in the same matrix."""
    disk = {
        str(record["spec"]["dataset"]["name"])
        for record in of_stage(material.records, "load")
        if _index_type(record) == "diskann"
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
        "Loading and queries of one client by protocol, by encoded requests or through the Python client, which the"
        " document's was asked through, and some loaded by that client, too. The document gives the change of latency"
        " as a range, so that it has no row of latencies.",
        ("load_s", "qps", "avg_ms", "p50_ms", "p99_ms"),
        asks_by_protocol,
        libraries=True,
        tells=_protocols,
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
        " that of Milvus; a storage path is what it is on the machine that was measured. What was asked in its clients'"
        " processes is a library, without a server. Of somebody else's server, paths and network cards of its storage"
        " are what its topology declares; nothing reads them back. Memory (PSS, and of it what is in no file) and reads"
        " are those of the server's processes, of a library its clients', each with what it holds of the index; reads"
        f" are what reached storage (/proc/PID/io) by queries, over all runs. {IN_BURSTS}",
        ("qps", "recall_by_id", "p95_ms", "p99_ms", "load_s", "pss_mib", "pss_anon_mib", "read_bytes_per_query"),
        _on_disk,
        libraries=True,
        tells=_placed,
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
    asks, told = document.asks(material), document.tells(material)
    places: dict[tuple[str, str, int, str, str], Row] = {}
    for row in material.by_any_client if document.libraries else material.ordinary:
        if row["metric"] == "qps" and asks(row):
            place = (row["dataset"], row["topology"], row["clients"] or 0, row["system"], row["workload"])
            places[place] = row
    for (dataset, topology, clients, system, workload), row in sorted(places.items(), key=lambda item: item[0]):
        load, cell = (numbers.get((dataset, topology, system, of), {}) for of in ("", workload))
        cells = tuple(_number(metric, load | cell) for metric in document.metrics)
        through = THROUGH.get(row["client"], "")
        how = f"{told[topology, system]}, " if (topology, system) in told else ""
        asked = f"{workload}: K = {row['k']}, {how}{_clients(str(clients))}{through}"
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
