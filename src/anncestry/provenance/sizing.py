"""What an experiment needs, on paper: memory, disk and time of each cell, from a stated model (docs/plan.md).

Memory and disk are lower bounds: a machine with less can't measure the cell. Times are orders of
magnitude: rates of one machine, scaled by the work; `estimate` goes by records where there are some.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anncestry.cells.blocks import Room
from anncestry.cells.matrix import Cell, Matrix, Pair
from anncestry.cells.spec import node_limits
from anncestry.cells.stage import STAGES
from anncestry.errors import ConfigError, Damaged
from anncestry.provenance import platform

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
SLICES_A_BLOCK = 8
"""Of a pair (docs/duet.md); each side is asked in half of them."""


def _declared(platform: Mapping[str, Any]) -> dict[str, Any]:
    """What `config/platforms.yaml` says that a platform has: `capacity`, and what it leaves out from `expect`."""
    return {**platform.get("expect", {}), **platform.get("capacity", {})}


def room(name: str, declared: Mapping[str, Any], folder: Path = STAGES["platform"].folder) -> Room:
    """Cores and memory of a platform: as declared, else as its first measurement kept them, else this machine's.

    What was kept and is damaged says nothing: the next measurement sets it aside, and `verify` names it.
    """
    facts = _declared(declared)
    if not {"cores", "memory_gib"} <= facts.keys():
        kept = folder / f"{name}.json"
        known = platform.facts()
        if kept.exists():
            with suppress(Damaged):
                known = {**known, **platform.all_kept(kept, name)}
        facts = {**known, **facts}
    return Room(name, facts["cores"], facts["memory_gib"])


@dataclass(frozen=True)
class Need:
    """What one cell needs. Data are shared by the cells of a dataset, a load by those that are measured on it."""

    cell: Cell | Pair
    vectors: str
    """Key of its data."""
    memory_bytes: float
    """Of a pair: of both servers at once."""
    node_bytes: Mapping[str, float]
    """The largest member's part of it, by load."""
    data_bytes: float
    loads: Mapping[str, tuple[float, float]]
    """Bytes on disk and seconds, by load: a pair has two."""
    samples_bytes: float
    data_s: float
    query_s: float

    def plain(self) -> dict[str, Any]:
        """The cell and what it needs as if alone, in bytes and seconds."""
        names = ("dataset", "system", "topology", "workload")
        needs = ("memory_bytes", "disk_bytes", "data_s", "load_s", "query_s")
        return {name: getattr(self.cell, name) for name in names} | {name: getattr(self, name) for name in needs}

    @property
    def load_bytes(self) -> float:
        return sum(stored for stored, _ in self.loads.values())

    @property
    def load_s(self) -> float:
        return sum(seconds for _, seconds in self.loads.values())

    @property
    def disk_bytes(self) -> float:
        return self.data_bytes + self.load_bytes + self.samples_bytes


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
        return ids + float(rows * index.get("m", 0))  # codes; vectors and graph are on disk
    return vectors + ids


def needs(matrix: Matrix) -> list[Need]:
    cores = _declared(matrix.config.platforms[matrix.config.platform]).get("cores", 1)
    of_cells = [_need(matrix, cell, matrix.specs[cell.query]["workload"], cores) for cell in matrix.cells]
    return of_cells + [_of_pair(matrix, pair, cores) for pair in matrix.pairs]


def _of_pair(matrix: Matrix, pair: Pair, cores: int) -> Need:
    """Both servers are up at once, each on a copy of its load; both are asked for half of the slices."""
    spec = matrix.specs[pair.pair]
    half_s = SLICES_A_BLOCK * spec["slices"]["blocks"] * spec["slices"]["slice_s"] / 2
    workload = {**spec["workload"], "duration_s": half_s}
    a, b = sides = [_need(matrix, side, workload, cores) for side in pair.sides]
    return Need(
        pair,
        pair.a.vectors,
        memory_bytes=a.memory_bytes + b.memory_bytes,
        node_bytes={**a.node_bytes, **b.node_bytes},
        data_bytes=max(a.data_bytes, b.data_bytes),
        loads={**a.loads, **b.loads},
        samples_bytes=a.samples_bytes + b.samples_bytes,
        data_s=max(a.data_s, b.data_s),
        query_s=sum(side.query_s for side in sides),
    )


def _need(matrix: Matrix, cell: Cell, workload: Mapping[str, Any], cores: int) -> Need:
    load = matrix.specs[cell.load]
    rows, dim, metric = (load["dataset"][name] for name in ("rows", "dim", "metric"))
    index, topology = load["index"], load["topology"]
    queries = matrix.config.datasets[cell.dataset].queries
    truth = matrix.specs[cell.truth]
    depth, asked = int(truth["depth"]), int(truth.get("queries", queries))
    vectors = float((rows + queries) * dim * FLOAT_BYTES)
    copies = int(topology["replicas"])

    # As shipped, as downloaded, and for cosine once more, scaled (for l2 the same file).
    data = vectors * (3 if metric == "cosine" else 2) + rows * METADATA_BYTES
    data += asked * depth * ANSWER_BYTES
    held = copies * index_bytes(index, rows, dim)
    # What was inserted, the index with its vectors, and the copy that a session works on.
    stored = 2 * copies * (vectors + max(index_bytes(index, rows, dim), vectors))
    sent = _sent(workload)

    flop = 2.0 * rows * asked * dim
    links = index.get("M", 16) * index.get("ef_construction", 200)
    build = rows * links * dim * BUILD_CORE_S * max(1.0, math.log(rows) / math.log(BUILD_ROWS))
    build *= 1.0 if index["type"] in ("hnsw", "dynamic", "diskann") else FLAT_BUILD_SHARE
    runs = int(workload["runs"] if "runs" in workload else workload["rounds"]["most"])
    runs_s = float(workload.get("duration_s", sent * QUERY_S / workload["clients"]))
    theirs = topology["runtime"] == "remote"
    return Need(
        cell,
        cell.vectors,
        memory_bytes=0.0 if theirs else held,
        node_bytes={cell.load: 0.0 if theirs else held / topology["nodes"]},
        data_bytes=data,
        loads={
            cell.load: (0.0 if theirs else stored, START_S + copies * build / cores + stored / 2 / DISK_BYTES_PER_S)
        },
        samples_bytes=runs * sent * (SAMPLE_BYTES + workload["k"] * ANSWER_BYTES),
        data_s=vectors / FETCH_BYTES_PER_S + data / DISK_BYTES_PER_S + flop / TRUTH_FLOP_PER_S / cores,
        query_s=runs * (START_S + runs_s + stored / 2 / DISK_BYTES_PER_S),
    )


def _sent(workload: Mapping[str, Any]) -> float:
    if "duration_s" in workload:
        rate = workload.get("rate_per_s", workload["clients"] / QUERY_S)
        return float(workload["duration_s"] * rate)
    return float(workload["queries"])


def total(needs: Sequence[Need]) -> Total:
    data = {need.vectors: need for need in needs}.values()
    loads = {load: needed for need in needs for load, needed in need.loads.items()}.values()
    sizes = (*(each.data_bytes for each in data), *(stored for stored, _ in loads))
    times = (*(each.data_s for each in data), *(seconds for _, seconds in loads))
    return Total(
        max((need.memory_bytes for need in needs), default=0.0),
        sum(sizes) + sum(need.samples_bytes for need in needs),
        sum(times) + sum(need.query_s for need in needs),
    )


def refuse_unfit(matrix: Matrix, needs: Sequence[Need]) -> None:
    """ConfigError that names the cells which can't fit the platform, or the limits of their topology's nodes."""
    name = matrix.config.platform
    where = matrix.config.folder / "platforms.yaml"
    has = _declared(matrix.config.platforms[name])
    if missing := next((part for part in ("memory_gib", "disk_gib") if part not in has), None):
        raise ConfigError(f"{where}: {name}.capacity.{missing} is missing: --fit needs it")
    memory_gib, disk_gib = has["memory_gib"], has["disk_gib"]
    unfit: list[str] = []
    for need in needs:
        limits_mib: dict[str, Any] = {
            load: node_limits(matrix.specs[load]["topology"]).get("memory_mib") for load in need.loads
        }
        parts = []
        if need.memory_bytes > memory_gib * GIB:
            parts.append(f"{_gib(need.memory_bytes)} of memory")
        else:
            parts += [
                f"{_gib(held)} in a node limited to {limits_mib[load] / 1024:g} GiB"
                for load, held in need.node_bytes.items()
                if limits_mib[load] is not None and held > limits_mib[load] * 2**20
            ]
        if need.disk_bytes > disk_gib * GIB:
            parts.append(f"{_gib(need.disk_bytes)} of disk")
        if parts:
            unfit.append(f"{_where(need.cell)} needs {' and '.join(parts)}")
    if not unfit and (disk := total(needs).disk_bytes) > disk_gib * GIB:
        unfit.append(f"all cells together need {_gib(disk)} of disk")
    if unfit:
        raise ConfigError(
            f"platform {name} has {memory_gib:g} GiB of memory and {disk_gib:g} GiB of disk: " + "; ".join(unfit)
        )


def lines(needs: Sequence[Need]) -> list[str]:
    """A table for people: each cell as if alone, and the total with what is shared counted once."""
    width = max((len(_where(need.cell)) for need in needs), default=0)
    shown = [f"{'cell':<{width}}  {'memory':>10}  {'disk':>10}  {'data':>8}  {'load':>8}  {'queries':>8}"]
    for need in needs:
        times = (need.data_s, need.load_s, need.query_s)
        shown.append(
            f"{_where(need.cell):<{width}}  {_gib(need.memory_bytes):>10}  {_gib(need.disk_bytes):>10}  "
            + "  ".join(f"{_hours(seconds):>8}" for seconds in times)
        )
    whole = total(needs)
    shown.append(
        f"{f'all {len(needs)} cells':<{width}}  {_gib(whole.memory_bytes):>10}  {_gib(whole.disk_bytes):>10}  "
        f"{_hours(whole.seconds):>8} one after another"
    )
    return shown


def _where(cell: Cell | Pair) -> str:
    return f"{cell.where}/{cell.workload}"


def _gib(size: float) -> str:
    return f"{size / GIB:.3g} GiB" if size < 1000 * GIB else f"{size / GIB:,.0f} GiB"


def _hours(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
