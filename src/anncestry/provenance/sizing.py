"""What an experiment needs, on paper: memory, disk and time of each cell, from a stated model (docs/plan.md).

Memory and disk are lower bounds, so that what they do not fit into can't be measured there. Times are orders of
magnitude: rates of one machine, scaled by the work; `estimate` goes by records where there are some.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anncestry.cells.absent import Room
from anncestry.cells.matrix import Cell, Matrix
from anncestry.errors import ConfigError
from anncestry.provenance import platform, records

GIB = float(1 << 30)

FLOAT_BYTES = 4
METADATA_BYTES = 6
"""A row's category (1), price (4) and region (1)."""
ID_BYTES = 8
SAMPLE_BYTES = 48
"""A sample as the driver leaves it, without its response."""
ANSWER_BYTES = 12
"""One result of a response: id and distance."""

TRUTH_FLOP_PER_S = 70e9
"""Of one core: float32 matrix product of NumPy's OpenBLAS; docs/plan.md has the command."""
BUILD_CORE_S = 52.0 / 60_000 / (16 * 200) / 784
"""Core-seconds for each row, link × candidate and dimension: Weaviate 1.27.0 took 52 s of CPU for 60,000 × 784 with
M 16, ef_construction 200."""
BUILD_ROWS = 60_000
FLAT_BUILD_SHARE = 0.1
"""Of an index without a graph: an assumption."""
QUERY_S = 5e-3
"""Of one query of one client, whatever the system: an assumption, as in `estimate`."""
FETCH_BYTES_PER_S = 50e6
DISK_BYTES_PER_S = 200e6
"""Assumptions."""
START_S = 10.0


@dataclass(frozen=True)
class Capacity:
    """What a platform has, as `config/platforms.yaml` declares it; None where it doesn't say."""

    memory_gib: float | None
    disk_gib: float | None
    cores: int

    @classmethod
    def of(cls, platform: Mapping[str, Any]) -> Capacity:
        """`capacity`, and what it leaves out from `expect`; one core where nobody says."""
        said = {**platform.get("expect", {}), **platform.get("capacity", {})}
        return cls(said.get("memory_gib"), said.get("disk_gib"), said.get("cores", 1))


def room(name: str, declared: Mapping[str, Any], folder: Path = Path("results/platform")) -> Room:
    """Cores and memory of a platform: as declared, else as its first measurement kept them, else this machine's."""
    said = {**declared.get("expect", {}), **declared.get("capacity", {})}
    if not {"cores", "memory_gib"} <= said.keys():
        kept = folder / f"{name}.json"
        said = {**(records.read_json(kept)["facts"] if kept.exists() else platform.facts()), **said}
    return Room(name, said["cores"], said["memory_gib"])


@dataclass(frozen=True)
class Need:
    """What one cell needs. Data are shared by the cells of a dataset, a load by those that are measured on it."""

    cell: Cell
    memory_bytes: float
    node_bytes: float
    """The largest member's part of it."""
    data_bytes: float
    load_bytes: float
    samples_bytes: float
    data_s: float
    load_s: float
    query_s: float

    @property
    def disk_bytes(self) -> float:
        """While it is measured alone."""
        return self.data_bytes + self.load_bytes + self.samples_bytes

    @property
    def seconds(self) -> float:
        """Measured alone, from nothing."""
        return self.data_s + self.load_s + self.query_s


@dataclass(frozen=True)
class Total:
    """Of all cells: data, loads and samples once each; the memory of the largest, as cells are measured one by one."""

    memory_bytes: float
    disk_bytes: float
    seconds: float


def graph_bytes(rows: int, links: int) -> float:
    """Bytes of the links of an HNSW graph of `rows` nodes with M = `links`.

    On the lowest level 2 M links of 4 bytes and their count; on each of the levels above M, and a node is on
    1 / (M − 1) of them on average (Malkov and Yashunin 2018: levels are geometric with ratio 1 / M).
    """
    lowest, above = 4 * 2 * links + 4, 4 * links + 4
    return rows * (lowest + above / max(1, links - 1))


def index_bytes(index: Mapping[str, Any], rows: int, dim: int) -> float:
    """Bytes in memory of an index over float32 vectors: vectors or codes, links, ids. The least that it can do with."""
    vectors = float(rows * dim * FLOAT_BYTES)
    ids = float(rows * ID_BYTES)
    kind = index["type"]
    if kind in ("hnsw", "dynamic"):
        return vectors + ids + graph_bytes(rows, index.get("M", 16))
    if kind == "ivf_sq8":
        return vectors / FLOAT_BYTES + ids
    if kind == "ivf_pq":
        return float(rows * index.get("m", dim) * index.get("nbits", 8) / 8) + ids
    if kind == "diskann":
        return ids  # vectors and graph are on disk
    return vectors + ids


def needs(matrix: Matrix) -> list[Need]:
    """What each cell needs, in the matrix' order."""
    cores = Capacity.of(matrix.config.platforms[matrix.config.platform]).cores
    return [_need(matrix, cell, cores) for cell in matrix.cells]


def _need(matrix: Matrix, cell: Cell, cores: int) -> Need:
    load, query = matrix.specs[cell.load], matrix.specs[cell.query]
    rows, dim, metric = (load["dataset"][name] for name in ("rows", "dim", "metric"))
    index, topology, workload = load["index"], load["topology"], query["workload"]
    queries = int(matrix.config.datasets[_parent(matrix, cell.dataset)]["queries"])
    depth = int(matrix.specs[cell.truth]["depth"])
    vectors = float((rows + queries) * dim * FLOAT_BYTES)
    copies = int(topology["replicas"])

    # As shipped, as downloaded, and for cosine once more, scaled (for l2 the same file).
    data = vectors * (3 if metric == "cosine" else 2) + rows * METADATA_BYTES
    data += queries * depth * ANSWER_BYTES
    held = copies * index_bytes(index, rows, dim)
    # What was inserted, the index with its vectors, and the copy that a session works on.
    stored = 2 * copies * (vectors + max(index_bytes(index, rows, dim), vectors))
    sent = _sent(workload)

    flop = 2.0 * rows * queries * dim
    links = index.get("M", 16) * index.get("ef_construction", 200)
    build = rows * links * dim * BUILD_CORE_S * max(1.0, math.log(rows) / math.log(BUILD_ROWS))
    build *= 1.0 if index["type"] in ("hnsw", "dynamic", "diskann") else FLAT_BUILD_SHARE
    runs_s = float(workload.get("duration_s", sent * QUERY_S / workload["clients"]))
    theirs = topology["runtime"] == "remote"
    return Need(
        cell,
        memory_bytes=0.0 if theirs else held,
        node_bytes=0.0 if theirs else held / topology["nodes"],
        data_bytes=data,
        load_bytes=0.0 if theirs else stored,
        samples_bytes=workload["runs"] * sent * (SAMPLE_BYTES + workload["k"] * ANSWER_BYTES),
        data_s=vectors / FETCH_BYTES_PER_S + data / DISK_BYTES_PER_S + flop / TRUTH_FLOP_PER_S / cores,
        load_s=START_S + copies * build / cores + stored / 2 / DISK_BYTES_PER_S,
        query_s=workload["runs"] * (START_S + runs_s + stored / 2 / DISK_BYTES_PER_S),
    )


def _parent(matrix: Matrix, dataset: str) -> str:
    return str(matrix.config.datasets[dataset].get("of", dataset))


def _sent(workload: Mapping[str, Any]) -> float:
    """Queries of a run."""
    if "duration_s" in workload:
        rate = workload.get("rate_per_s", workload["clients"] / QUERY_S)
        return float(workload["duration_s"] * rate)
    return float(workload["queries"])


def total(found: Sequence[Need]) -> Total:
    """Of all cells together."""
    data = {need.cell.vectors: need for need in found}.values()
    loads = {need.cell.load: need for need in found}.values()
    return Total(
        max((need.memory_bytes for need in found), default=0.0),
        sum(each.data_bytes for each in data)
        + sum(each.load_bytes for each in loads)
        + sum(each.samples_bytes for each in found),
        sum(each.data_s for each in data) + sum(each.load_s for each in loads) + sum(each.query_s for each in found),
    )


def refuse_unfit(matrix: Matrix, found: Sequence[Need]) -> None:
    """ConfigError that names the cells which can't fit the platform, or the limits of their topology's nodes."""
    name = matrix.config.platform
    where = matrix.config.folder / "platforms.yaml"
    has = Capacity.of(matrix.config.platforms[name])
    if has.memory_gib is None or has.disk_gib is None:
        missing = "memory_gib" if has.memory_gib is None else "disk_gib"
        raise ConfigError(f"{where}: {name}.capacity.{missing} is not declared: there is nothing to fit into")
    unfit: list[str] = []
    for need in found:
        topology = matrix.specs[need.cell.load]["topology"]
        limit_mib = topology.get("limits", {}).get("memory_mib")
        said = []
        if need.memory_bytes > has.memory_gib * GIB:
            said.append(f"{_gib(need.memory_bytes)} of memory")
        elif limit_mib is not None and need.node_bytes > limit_mib * 2**20:
            said.append(f"{_gib(need.node_bytes)} in a node limited to {limit_mib / 1024:g} GiB")
        if need.disk_bytes > has.disk_gib * GIB:
            said.append(f"{_gib(need.disk_bytes)} of disk")
        if said:
            unfit.append(f"{_where(need.cell)} needs {' and '.join(said)}")
    if not unfit and (disk := total(found).disk_bytes) > has.disk_gib * GIB:
        unfit.append(f"all cells together need {_gib(disk)} of disk")
    if unfit:
        raise ConfigError(
            f"platform {name} has {has.memory_gib:g} GiB of memory and {has.disk_gib:g} GiB of disk: "
            + "; ".join(unfit)
        )


def lines(found: Sequence[Need]) -> list[str]:
    """A table for people: each cell as if alone, and the total with what is shared counted once."""
    width = max((len(_where(need.cell)) for need in found), default=0)
    shown = [f"{'cell':<{width}}  {'memory':>10}  {'disk':>10}  {'data':>8}  {'load':>8}  {'queries':>8}"]
    for need in found:
        times = (need.data_s, need.load_s, need.query_s)
        shown.append(
            f"{_where(need.cell):<{width}}  {_gib(need.memory_bytes):>10}  {_gib(need.disk_bytes):>10}  "
            + "  ".join(f"{_hours(seconds):>8}" for seconds in times)
        )
    whole = total(found)
    shown.append(
        f"{f'all {len(found)} cells':<{width}}  {_gib(whole.memory_bytes):>10}  {_gib(whole.disk_bytes):>10}  "
        f"{_hours(whole.seconds):>8} one after another"
    )
    return shown


def _where(cell: Cell) -> str:
    return f"{cell.where}/{cell.workload}"


def _gib(size: float) -> str:
    return f"{size / GIB:.3g} GiB" if size < 1000 * GIB else f"{size / GIB:,.0f} GiB"


def _hours(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
