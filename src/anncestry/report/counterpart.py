"""What a number was asked of, published or ours: the one join of both, and why a figure has nothing beside it.

A figure stands beside a number of the same question. No name of ours takes part: a dataset is known by what the
documents call it, which its entry in config/datasets.yaml says (`published_as`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from anncestry.cells.spec import node_limits
from anncestry.report.model.cells import Row
from anncestry.report.model.records import declared_storage, protocol
from anncestry.report.published import Figure, Published

METRICS = {
    "rows": ("load", "rows"),
    "dim": ("load", "dim"),
    "load_s": ("load", "load_s"),
    "index_build_s": ("index", "index_s"),
    "cpu_avg_pct": ("load", "cpu_avg_pct"),
    "cpu_peak_pct": ("load", "cpu_peak_pct"),
    "peak_mem_mb": ("load", "rss_peak_mib"),
    "raw_mb": ("storage", "storage_raw_mib"),
    "storage_mb": ("storage", "storage_total_mib"),
    "p50_ms": ("query", "p50_ms"),
    "p95_ms": ("query", "p95_ms"),
    "p99_ms": ("query", "p99_ms"),
    "avg_ms": ("query", "mean_ms"),
    "qps": ("query", "qps"),
    "fail_per_s": ("query", "fail_per_s"),
    "recall_by_id": ("recall", "recall_by_id"),
}
"""What a published metric is called here: phase and name."""

DERIVED = {"load_ratio": "×", "overhead_pct": "%", "change_pct": "%"}
"""Ratios and changes that are made again from the two numbers that they are of, and their units."""

BY_TIME = ("Table X", "Table XIV")
"""Tables of the paper of runs of a fixed time; the others are of a fixed count of queries."""

RESTATES, BOUND = "it restates another figure", "it is a bound, no number"
SETTING, OF_MACHINE = "it is a setting of theirs", "it is of their machine"
VERDICT, MADE = "it is a verdict", "it is derived from other figures"
NO_DATASET, NO_K, NOT_IN_CONFIG = "it names no dataset", "it doesn't say k", "its dataset isn't in config"
NOT_MEASURED = "nothing was measured of it here"
OF_WHOLE = "it was scored by the neighbours in the whole dataset, and is no recall"
OF_BOTH = "it is one number for two systems"
NO_MILVUS_CLUSTER = "the paper had no cluster of Milvus, whatever its columns are called"

_OF_DATASET = ("rows", "dim", "raw_mb")
_PREFIXES = ("deep-image-96-angular-2m", "deep-image-96-angular-5m")
_DECIMAL_MB = 1e6 / (1 << 20)
_PARAMETERS = {"ef": ("ef", "efSearch", "search_list"), "M": ("M",), "ef_construction": ("efConstruction",)}


@dataclass(frozen=True)
class Asked:
    """What a number was asked of; None where it isn't known or doesn't apply.

    `dataset` is our name; `distance` l2 or cosine; `version` major.minor; `ef` the candidates of HNSW, or DiskANN's
    search list; `distributed`: each part of the system is a process of its own; `slowed`: its storage path had limits;
    `paths`, `nics`: paths and network cards between it and the disks of an index on disk; `protocol`: grpc or rest, of
    a system that has both; `nq`: vectors a request; `clients` 0: any number of clients. `declared` says in words which
    of these its topology only declares; it is no condition.
    """

    dataset: str
    distance: str | None = None
    engine: str | None = None
    version: str | None = None
    distributed: bool | None = None
    nodes: int | None = None
    replicas: int | None = None
    cpus: float | None = None
    memory_mib: float | None = None
    slowed: bool | None = None
    protocol: str | None = None
    index: str | None = None
    paths: int | None = None
    nics: int | None = None
    quantizer: str | None = None
    M: int | None = None
    ef_construction: int | None = None
    ef: int | None = None
    k: int | None = None
    nq: int | None = None
    filtered: str | None = None
    clients: int | None = None
    timed: bool | None = None
    declared: str = ""


class _Field(NamedTuple):
    """A condition, and how a sentence calls it."""

    name: str
    words: str
    shown: Callable[[Any], str] = str


def _none_or(unit: str, scale: float = 1) -> Callable[[Any], str]:
    return lambda value: "none" if value is None else f"{value / scale:g}{unit}"


_FIELDS = (
    _Field("distance", "distance", lambda value: {"l2": "L2"}.get(value, value)),
    _Field("engine", "system"),
    _Field("version", "version"),
    _Field("distributed", "system", lambda value: "distributed" if value else "in one process"),
    _Field("nodes", "number of nodes"),
    _Field("replicas", "number of replicas"),
    _Field("cpus", "limits", _none_or(" cores")),
    _Field("memory_mib", "limits", _none_or(" GB", 1024)),
    _Field("slowed", "storage path", lambda value: "limited" if value else "not limited"),
    _Field("protocol", "protocol"),
    _Field("index", "index", lambda value: str(value).upper()),
    _Field("paths", "number of paths to storage"),
    _Field("nics", "number of network cards to storage"),
    _Field("quantizer", "quantizer"),
    _Field("M", "M"),
    _Field("ef_construction", "ef_construction"),
    _Field("ef", "ef or search list"),
    _Field("k", "k"),
    _Field("nq", "number of vectors a request"),
    _Field("filtered", "filter"),
    _Field("timed", "end of a run", lambda value: "a fixed time" if value else "a fixed count of queries"),
    _Field("clients", "number of clients"),
)
"""In the order in which they are compared: the first that differs is the reason."""


def never(figure: Figure) -> str:
    """Why nothing can stand beside this figure whatever is measured; empty if something can."""
    reasons = (
        ("restates" in figure.detail, RESTATES),
        ("bound=" in figure.detail, BOUND),
        (figure.metric.startswith("cfg_"), SETTING),
        (figure.metric.startswith("spec_"), OF_MACHINE),
        (figure.metric == "verdict_code", VERDICT),
        (figure.metric not in METRICS and (figure.metric not in DERIVED or not figure.dataset), MADE),
        (not figure.dataset, NO_DATASET),
        (METRICS.get(figure.metric, ("",))[0] in ("query", "recall") and not figure.k, NO_K),
        ("+" in figure.system, OF_BOTH),
        (
            figure.document == "paper" and figure.system == "milvus" and figure.ran_on.startswith("cluster"),
            NO_MILVUS_CLUSTER,
        ),
        (figure.document == "paper" and figure.metric == "recall_by_id" and figure.dataset in _PREFIXES, OF_WHOLE),
    )
    return next((reason for holds, reason in reasons if holds), "")


def of_figure(figure: Figure, dataset: str) -> Asked:
    """What a figure with a metric of METRICS was asked of; `dataset` is our name of its dataset."""
    phase, _ = METRICS[figure.metric]
    if figure.metric in _OF_DATASET:  # any system that counted it will do
        return Asked(dataset)
    said = dict(part.split("=", 1) for part in figure.detail.split("; ") if "=" in part)
    said = {name.removeprefix("queryNode "): value for name, value in said.items()}
    numbers: dict[str, Any] = {
        name: next((int(said[word]) for word in words if said.get(word, "").isdigit()), None)
        for name, words in _PARAMETERS.items()
    }
    if phase not in ("query", "recall"):
        numbers["ef"] = None
    if "paths" in said:  # without them the cards lead to no storage
        numbers |= {name: int(said[name]) for name in ("paths", "nics")}
    nodes, replicas = _nodes(figure, said)
    return Asked(
        dataset,
        distance=_distance(figure),
        engine=figure.system.partition(" ")[0].lower() or None,
        version=_minor(figure.version),
        distributed=(figure.ran_on or figure.topology).startswith("cluster"),
        nodes=nodes,
        replicas=replicas,
        cpus=float(said["cpu"]) if "cpu" in said else None,
        memory_mib=1024 * float(said["mem"].removesuffix("Gi")) if "mem" in said else None,
        slowed=False,
        protocol=said.get("protocol"),
        index=figure.index.partition("_")[0].lower() or None,
        quantizer=_quantizer(figure),
        **numbers,
        **(_question(figure, int(said.get("nq", 1))) if phase in ("query", "recall") else {}),
    )


def number(figure: Figure) -> float:
    """A figure in the unit of its counterpart: of the MB that were printed, those of 10^6 bytes are fewer MiB."""
    return figure.number * (_DECIMAL_MB if "MB=10^6 bytes" in figure.detail else 1.0)


def _distance(figure: Figure) -> str | None:
    """As the document states it; of the paper as its code asked, which is what its names of datasets say.

    (Its Table I calls Deep-Image L2, but it ran the angular file by inner product: finding f051.) Rankings by another
    distance agree for vectors of one length only, which no document says of its own.
    """
    if figure.document == "paper":
        return "l2" if figure.dataset.endswith("-euclidean") else "cosine"
    return "cosine" if figure.document == "diskann" else None


def _quantizer(figure: Figure) -> str | None:
    """That of a graph in memory, by its name in the document; the paper has none."""
    name, _, kind = figure.index.lower().partition("_")
    if name == "hnsw" or (not name and figure.document == "paper"):
        return {"": "none", "flat": "none"}.get(kind, kind)
    return None


def _nodes(figure: Figure, said: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Nodes that hold and search data, and replicas; the Milvus report's replicas are of its query node.

    Only the paper has a cluster of so many nodes, with a replication factor of 1 (III.C, figure pb311db499a).
    """
    if "replicas" in said:
        return int(said["replicas"]), int(said["replicas"])
    several = re.match(r"cluster-(\d+)", figure.ran_on or figure.topology)
    if several:
        return int(several[1]), 1
    return None if figure.topology.startswith("cluster") else 1, None


def _question(figure: Figure, nq: int) -> dict[str, Any]:
    k = int(figure.k) if figure.k else None
    asked: dict[str, Any] = {"k": k, "nq": nq, "filtered": "category" if figure.filtered == "1" else "none"}
    if figure.metric == "recall_by_id":  # whoever asks: recall is of the answers
        return {**asked, "clients": 1, "timed": False}
    if figure.document == "diskann" and figure.metric.endswith("_ms"):
        return {**asked, "clients": 1, "timed": False}  # VectorDBBench's latencies are of its serial search
    if figure.document != "paper" and not figure.clients:
        return {**asked, "timed": True}
    clients = int(figure.clients or 1)
    # One client of VectorDBBench asks each query once, as one of the paper does.
    counted = figure.document in ("paper", "polardb")
    return {**asked, "clients": clients, "timed": clients > 1 or figure.place in BY_TIME or not counted}


def of_row(
    row: Row, load: Mapping[str, Any], query: Mapping[str, Any], storage_path: Mapping[str, Any] | None = None
) -> Asked:
    """What a row of the tidy table was asked of; `load` and `query` are the specs of their records, or empty.

    `storage_path` is what a record says of it; None where it says nothing, as of a remote server's. Of that, and of the
    network cards, which no record knows, its topology may declare how many there are.
    """
    data, system, topology, index = (load.get(name) or {} for name in ("dataset", "system", "topology", "index"))
    limits = node_limits(topology)
    nodes = topology.get("nodes")
    declared = topology.get("declared_storage") or {}
    ef = query.get("ef_search", row["ef_search"])
    return Asked(
        row["dataset"],
        distance=data.get("metric"),
        engine=(system.get("settings") or {}).get("dialect", row["engine"]),
        version=_minor(str(system.get("version", ""))),
        distributed=(nodes or 1) > 1 or "log" in (topology.get("external") or {}),
        nodes=nodes,
        replicas=topology.get("replicas"),
        cpus=limits.get("cpus"),
        memory_mib=limits.get("memory_mib"),
        slowed=bool(topology.get("storage_limits")),
        protocol=protocol(row["engine"], system.get("settings")),
        index=str(index["type"]).lower() if "type" in index else None,
        paths=(storage_path or declared).get("paths"),
        nics=declared.get("nics"),
        quantizer=str(index.get("quantizer", "none")) if "type" in index else None,
        M=index.get("M"),
        ef_construction=index.get("ef_construction"),
        ef=None if ef is None else int(ef),
        k=None if row["k"] is None else int(row["k"]),
        nq=None if row["k"] is None else int(row.get("nq") or 1),
        filtered=found[0] if (found := re.match(r"\w+", str(row["filter"]))) else "none",
        clients=None if row["clients"] is None else int(row["clients"]),
        timed=row["duration_s"] is not None,
        declared=declared_storage(topology),
    )


def _minor(version: str) -> str | None:
    """Major and minor of a version; what is left of it is a difference that is said, and no condition."""
    found = re.match(r"\d+\.\d+", version)
    return found[0] if found else None


def differing(theirs: Asked, ours: Asked) -> int:
    """The position of the first condition that differs, as many as there are if none does."""
    for position, name in enumerate(field.name for field in _FIELDS):
        wanted, have = getattr(theirs, name), getattr(ours, name)
        if wanted is not None and wanted != have:
            return position
    return len(_FIELDS)


def same(theirs: Asked, ours: Asked) -> bool:
    """Whether both are of one dataset and every condition that is known of theirs holds of ours."""
    return theirs.dataset == ours.dataset and differing(theirs, ours) == len(_FIELDS)


def why_not(theirs: Asked, ours: Iterable[Asked]) -> str:
    """Why none of our numbers of the same metric stands beside a figure, by the nearest; empty if one does."""
    near = max(
        (each for each in ours if each.dataset == theirs.dataset),
        key=lambda each: differing(theirs, each),
        default=None,
    )
    if near is None:
        return NOT_MEASURED
    position = differing(theirs, near)
    if position == len(_FIELDS):
        return ""
    name, words, shown = _FIELDS[position]
    verb = "were" if words == "limits" else "was"
    wanted, have = getattr(theirs, name), getattr(near, name)
    return (
        f"its {words} {verb} {shown(wanted)}, ours {'not known' if have is None and words != 'limits' else shown(have)}"
    )


def parts(figure: Figure) -> tuple[Figure, Figure] | None:
    """The figures that a ratio or change is of, the one that is divided first; None if it doesn't say which."""
    if figure.metric == "load_ratio":
        above, below = (replace(figure, metric="load_s", system=name) for name in figure.system.split("/"))
        return above, below
    if figure.place == "Table VII":
        above, below = (replace(figure, metric="p50_ms", filtered=asked) for asked in ("1", "0"))
        return above, below
    if figure.place in ("Table XII", "Table XIII", "Table XIV"):
        above = replace(figure, metric="p50_ms" if figure.place == "Table XII" else "qps")
        return above, replace(above, ran_on="standalone")
    return None


class Joined:
    """Rows of ours and published figures, by what both were asked of."""

    def __init__(self, rows: Sequence[Row], records: Mapping[str, Mapping[str, Any]], facts: Published) -> None:
        """`rows` of the tidy table; their `records` by path: a row without one has no known conditions."""
        self._facts = facts
        loads = {
            _load_of(row): (records.get(row["record"]) or {}).get("spec") or {}
            for row in rows
            if row["phase"] == "load"
        }
        # A load that was killed meanwhile holds a restart, which nobody else's does.
        killed = {place for place, spec in loads.items() if (spec.get("load") or {}).get("kill")}
        known = [row for row in rows if row["target_recall"] is None and _load_of(row) not in killed]
        self._by_metric: dict[tuple[str, str, str], list[Row]] = {}
        for row in known:
            if row["value"] is not None:
                self._by_metric.setdefault((row["dataset"], row["phase"], row["metric"]), []).append(row)
        specs = {row["record"]: (records.get(row["record"]) or {}).get("spec") or {} for row in known}
        # The path of a recall is that of its queries, which bear its key.
        storage = {row["key"]: path for row in known if (path := records.get(row["record"], {}).get("storage_path"))}
        queries = {row["key"]: specs[row["record"]] for row in known if row["phase"] == "query"}
        self._asked: dict[str, Asked] = {}
        for row in known:
            spec = specs[row["record"]]
            key = spec.get("query_key", row["key"])
            query = queries.get(key, {})
            self._asked[row["number_id"]] = of_row(row, loads.get(_load_of(row)) or query, query, storage.get(key))

    def rows(self, figure: Figure) -> list[Row]:
        """Ours of the same metric and question as a figure with a metric of METRICS."""
        found = []
        for dataset in self._facts.ours(figure.dataset):
            theirs = of_figure(figure, dataset)
            found += [row for row in self._of(figure, dataset) if same(theirs, self._asked[row["number_id"]])]
        return found

    def alike(self, theirs: Asked, phase: str, metric: str) -> list[Row]:
        """Ours of a metric that were asked the same."""
        ours = self._by_metric.get((theirs.dataset, phase, metric), [])
        return [row for row in ours if same(theirs, self._asked[row["number_id"]])]

    def asked(self, row: Row) -> Asked:
        """What one of the rows was asked of."""
        return self._asked[row["number_id"]]

    def declared(self, figure: Figure, row: Row) -> str:
        """In words, which conditions of a figure one of the rows meets by declaration only; empty if it meets all."""
        of_paths = of_figure(figure, row["dataset"]).paths is not None
        return self.asked(row).declared if of_paths else ""

    def states_no_clients(self, figure: Figure) -> bool:
        """Whether a document leaves open how many clients a figure of queries is of."""
        names = self._facts.ours(figure.dataset)
        return figure.metric in METRICS and bool(names) and of_figure(figure, names[0]).clients is None

    def why_none(self, figure: Figure) -> str:
        """Why `rows` has none: by the nearest of ours; empty if it has some."""
        names = self._facts.ours(figure.dataset)
        reasons = [
            why_not(of_figure(figure, name), [self._asked[row["number_id"]] for row in self._of(figure, name)])
            for name in names
        ]
        if not reasons or "" in reasons:
            return "" if reasons else NOT_IN_CONFIG
        return next((reason for reason in reasons if reason != NOT_MEASURED), NOT_MEASURED)

    def printed(self, place: str, row: Row | None) -> Figure | None:
        """What the paper printed at a place of the same question as a row of ours."""
        if row is None or row["number_id"] not in self._asked:
            return None
        return next((figure for figure in self._at(place, row) if self._beside(figure, row)), None)

    def printed_ratio(self, place: str, above: Row | None, below: Row | None) -> Figure | None:
        """The ratio or change that the paper printed at a place of what these two rows are of."""
        if above is None or below is None:
            return None
        for figure in self._at(place, above):
            of = parts(figure) if figure.metric in DERIVED else None
            if of and self._beside(of[0], above) and self._beside(of[1], below):
                return figure
        return None

    def _of(self, figure: Figure, dataset: str) -> Sequence[Row]:
        return self._by_metric.get((dataset, *METRICS[figure.metric]), ())

    def _at(self, place: str, row: Row) -> Sequence[Figure]:
        return self._places.get((place, row["dataset"]), ())

    def _beside(self, figure: Figure, row: Row) -> bool:
        if METRICS.get(figure.metric) != (row["phase"], row["metric"]) or row["number_id"] not in self._asked:
            return False
        return same(of_figure(figure, row["dataset"]), self._asked[row["number_id"]])

    @cached_property
    def _places(self) -> Mapping[tuple[str, str], Sequence[Figure]]:
        """Place in the paper and our name of a dataset → the figures there that something may stand beside."""
        found: dict[tuple[str, str], list[Figure]] = {}
        for figure in self._facts.figures:
            if figure.document == "paper" and not never(figure):
                for name in self._facts.ours(figure.dataset):
                    found.setdefault((figure.place, name), []).append(figure)
        return found


def _load_of(row: Row) -> tuple[Any, ...]:
    """What says which load a row is of."""
    return tuple(row[name] for name in ("dataset", "system", "topology", "rebuild", "arm"))
