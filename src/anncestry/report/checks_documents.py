"""What the other documents say, made again from their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from anncestry.report.audit import Figure, Published
from anncestry.report.checks import Check, Recomputed, both, into, percent, span

CHECKS: dict[str, Check] = {}
_check = into(CHECKS)


@_check
def _milvus22_gains(facts: Published) -> Recomputed:
    found, used = [], []
    for place in ("cluster", "standalone"):
        old, new = (
            facts.one(f"2.2.0 vs 2.1.0: {place}", "milvus-2.2", version=v, metric="qps") for v in ("2.1.0", "2.2.0")
        )
        found.append(f"{place} {percent(old.number, new.number):+.1f} %")
        used += [old, new]
    return Recomputed("; ".join(found), tuple(used))


def _scale(facts: Published, place: str, sizes: Sequence[float]) -> Recomputed:
    figures = facts.all(place, "milvus-2.2", metric="qps")
    first, last = figures[0].number, figures[-1].number
    factor, ideal = last / first, sizes[-1] / sizes[0]
    each = ", ".join(f"{figure.number / size:,.0f}" for figure, size in zip(figures, sizes, strict=True))
    return Recomputed(
        f"{factor:.2f} times for {ideal:.0f} times ({factor / ideal:.0%}); per unit {each}", tuple(figures)
    )


@_check
def _milvus22_cores(facts: Published) -> Recomputed:
    return _scale(facts, "2.2.0 scale-up (CPU cores)", (8, 12, 16, 32))


@_check
def _milvus22_replicas(facts: Published) -> Recomputed:
    return _scale(facts, "2.2.0 scale-out (replicas)", (1, 2, 4, 8))


@_check
def _milvus22_clients(facts: Published) -> Recomputed:
    figures = [
        f
        for place in ("2.2.0 scale-up (CPU cores)", "2.2.0 scale-out (replicas)")
        for f in facts.all(place, "milvus-2.2", metric="qps")
    ]
    return Recomputed(f"clients by row: {', '.join(figure.clients for figure in figures)}", tuple(figures))


@_check
def _milvus22_little(facts: Published) -> Recomputed:
    used, found = [], []
    for place in ("2.2.0 scale-up (CPU cores)", "2.2.0 scale-out (replicas)"):
        qps, p50 = (facts.all(place, "milvus-2.2", metric=metric) for metric in ("qps", "p50_ms"))
        for rate, median in zip(qps, p50, strict=True):
            found.append(f"{1e3 * int(rate.clients) / rate.number:.0f}/{median.number:.0f}")
            used += [rate, median]
    return Recomputed(f"clients / QPS against the printed median, ms: {', '.join(dict.fromkeys(found))}", tuple(used))


@_check
def _grpc_ingestion(facts: Published) -> Recomputed:
    rest, grpc = facts.all("text Data ingestion", "weaviate-grpc", metric="load_s")
    saved = (rest.number - grpc.number) * 100 / 3600
    return Recomputed(
        f"{grpc.number:.0f} / {rest.number:.0f} s = {grpc.number / rest.number:.3f}; for 100 times the objects "
        f"{saved:.1f} h are saved",
        (rest, grpc),
    )


@_check
def _grpc_throughput(facts: Published) -> Recomputed:
    less = facts.all("text Queries", "weaviate-grpc", metric="change_pct")
    gain = facts.one("text Queries", "weaviate-grpc", metric="ratio")
    times = ", ".join(
        f"{-figure.number:.0f} % less time is {1 / (1 + figure.number / 100):.2f} times" for figure in less
    )
    return Recomputed(f"{times}; {gain.number} times is {100 * (1 - 1 / gain.number):.1f} % less", (*less, gain))


_POLARDB = ("Cohere 768D 1M: concurrency", "Cohere 768D 10M: concurrency", "OpenAI 1536D 5M: concurrency")


@_check
def _polardb_little(facts: Published) -> Recomputed:
    worst, used = 0.0, []
    for place in _POLARDB:
        for rate, mean in zip(
            facts.all(place, "polardb", metric="qps"), facts.all(place, "polardb", metric="avg_ms"), strict=True
        ):
            worst = max(worst, abs(percent(mean.number, 1e3 * int(rate.clients) / rate.number)))
            used += [rate, mean]
    return Recomputed(f"clients / QPS is the printed mean within {worst:.2f} % in {len(used) // 2} rows", tuple(used))


@_check
def _polardb_scaling(facts: Published) -> Recomputed:
    found, used = [], []
    for place in _POLARDB:
        rates = facts.all(place, "polardb", metric="qps")
        last = percent(rates[-2].number, rates[-1].number)
        found.append(
            f"{rates[0].dataset} {rates[-1].number / rates[0].number:.2f} times, {last:+.1f} % in the last step"
        )
        used += rates
    return Recomputed(f"from 20 to 100 clients: {'; '.join(found)}", tuple(used))


@_check
def _polardb_peak(facts: Published) -> Recomputed:
    found = []
    for place in _POLARDB:
        rates = facts.all(place, "polardb", metric="qps")
        found.append(max(rates, key=lambda figure: figure.number))
    levels = ", ".join(f"{figure.dataset} at {figure.clients}" for figure in found)
    return Recomputed(f"the highest is that of the most clients tried: {levels}", tuple(found))


@_check
def _polardb_summary(facts: Published) -> Recomputed:
    again = facts.all("Summary and comparison", "polardb")
    detail = [f for f in facts.figures if f.document == "polardb" and f.place != "Summary and comparison"]
    known = {(f.dataset, f.metric, f.number) for f in detail}
    same = [f for f in again if (f.dataset, f.metric, f.number) in known]
    return Recomputed(
        f"{len(same)} of {len(again)} cells of the summary stand elsewhere with the same value", tuple(again)
    )


_DISKANN = {
    "1M": "Dataset: 768D1M — 1 Million Vectors",
    "10M": "Dataset: 768D10M — 10 Million Vectors",
    "100M": "Dataset: 768D10M — 100 Million Vectors",
}
_LOCAL, _ONE_PATH, _FOUR_PATHS, _TWO_NICS = (
    "local DRAM",
    "remote NVMe-oF 1-path 1-NIC",
    "remote NVMe-oF 4-path 1-NIC",
    "remote NVMe-oF 4-path 2-NIC",
)


def _diskann(facts: Published, size: str, topology: str, metric: str) -> Figure:
    return facts.one(_DISKANN[size], "diskann", topology=topology, metric=metric)


def _diskann_change(facts: Published, a: str, b: str, sizes: Sequence[str], metric: str = "qps") -> Recomputed:
    pairs = {size: (_diskann(facts, size, a, metric), _diskann(facts, size, b, metric)) for size in sizes}
    shown = ", ".join(
        f"{size} {one.number:g} to {two.number:g}: {percent(one.number, two.number):+.2f} %"
        for size, (one, two) in pairs.items()
    )
    return Recomputed(shown, both(pairs))


@_check
def _diskann_1m(facts: Published) -> Recomputed:
    return _diskann_change(facts, _LOCAL, _FOUR_PATHS, ["1M"])


@_check
def _diskann_10m(facts: Published) -> Recomputed:
    return _diskann_change(facts, _LOCAL, _FOUR_PATHS, ["10M"])


@_check
def _diskann_100m(facts: Published) -> Recomputed:
    return _diskann_change(facts, _LOCAL, _FOUR_PATHS, ["100M"])


@_check
def _diskann_p95(facts: Published) -> Recomputed:
    return _diskann_change(facts, _LOCAL, _FOUR_PATHS, ["1M", "10M"], "p95_ms")


@_check
def _diskann_paths(facts: Published) -> Recomputed:
    one, four = (_diskann(facts, "100M", topology, "p95_ms") for topology in (_ONE_PATH, _FOUR_PATHS))
    return Recomputed(f"{one.number:,g} / {four.number:g} = {one.number / four.number:.1f}", (one, four))


@_check
def _diskann_nics(facts: Published) -> Recomputed:
    return _diskann_change(facts, _FOUR_PATHS, _TWO_NICS, ["1M", "10M", "100M"])


@_check
def _diskann_recall_10m(facts: Published) -> Recomputed:
    return _diskann_change(facts, _LOCAL, _FOUR_PATHS, ["10M"], "recall_by_id")


@_check
def _diskann_recall_100m(facts: Published) -> Recomputed:
    table = _diskann(facts, "100M", _LOCAL, "recall_by_id")
    said = facts.one("text Observations", "diskann", metric="recall_by_id", topology=_LOCAL)
    others = [_diskann(facts, "100M", topology, "recall_by_id") for topology in (_ONE_PATH, _FOUR_PATHS, _TWO_NICS)]
    return Recomputed(
        f"HNSW is {table.value} in the table, {said.value} in the text; DiskANN "
        f"{span((f.number for f in others), '.4f')}, above the one and below the other",
        (table, said, *others),
    )


@_check
def _diskann_recalls_10m(facts: Published) -> Recomputed:
    figures = [_diskann(facts, "10M", topology, "recall_by_id") for topology in (_ONE_PATH, _FOUR_PATHS, _TWO_NICS)]
    return Recomputed(", ".join(f"{figure.topology} {figure.value}" for figure in figures), tuple(figures))


@_check
def _diskann_drop(facts: Published) -> Recomputed:
    rates = [_diskann(facts, size, _LOCAL, "qps") for size in _DISKANN]
    steps = " and ".join(f"{a.number / b.number:.1f}" for a, b in pairwise(rates))
    return Recomputed(f"QPS of HNSW falls {steps} times for ten times the rows each", tuple(rates))


@_check
def _diskann_memory(facts: Published) -> Recomputed:
    raw, links = 100e6 * 768 * 4, 100e6 * 2 * 30 * 4
    return Recomputed(
        f"{raw / 1e9:.0f} GB of vectors and {links / 1e9:.0f} GB of links, {(raw + links) / 1e9:.0f} GB", ()
    )


@_check
def _diskann_same_tail(facts: Published) -> Recomputed:
    figures = [
        _diskann(facts, "1M", topology, metric)
        for topology in (_ONE_PATH, _FOUR_PATHS)
        for metric in ("p95_ms", "p99_ms")
    ]
    one, four = (_diskann(facts, "1M", topology, "qps") for topology in (_ONE_PATH, _FOUR_PATHS))
    return Recomputed(
        f"p95/p99 {figures[0].value}/{figures[1].value} and {figures[2].value}/{figures[3].value} ms, while QPS is "
        f"{four.number / one.number:.2f} times",
        (*figures, one, four),
    )
