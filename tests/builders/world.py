"""A results folder with plausible records of every cell, and pages read as a browser reads them."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd

from anncestry.cells import config
from anncestry.provenance.records import seal
from anncestry.report.model.numbers import tidy
from anncestry.report.published import Published
from tests.toy import ROOT

PUBLISHED = Published.beside(config.load(ROOT / "config"))
DATASETS = {"fashion-mnist-784-euclidean": ("l2", 60000, 784), "random-xs-20-angular": ("cosine", 9000, 20)}
SYSTEMS = {"milvus-2.3.5": ("milvus", "2.3.5", 1.0), "weaviate-1.27.0": ("weaviate", "1.27.0", 0.8)}
FILTER = {"field": "category", "in": [1, 4, 7]}
WORKLOADS: dict[str, dict[str, Any]] = {
    "k10": {"k": 10, "clients": 1, "runs": 3, "queries": 1000, "warmup": 100},
    "k100": {"k": 100, "clients": 1, "runs": 3, "queries": 1000, "warmup": 100},
    "k10-category30": {"k": 10, "clients": 1, "runs": 3, "queries": 1000, "warmup": 100, "filter": FILTER},
    "k100-category30": {"k": 100, "clients": 1, "runs": 3, "queries": 1000, "warmup": 100, "filter": FILTER},
    **{
        f"k10-clients{n}": {"k": 10, "clients": n, "runs": 1, "duration_s": 10, "queries": 1000, "warmup": 100}
        for n in (1, 2, 4, 8, 16)
    },
}
CODE = {"anncestry": "0.1.0", "commit": "9fc61f5" + 33 * "0", "dirty": False}
Edit = Callable[[dict[str, Any]], object]


class World:
    """A results folder under the working directory, with plausible records of every cell."""

    def __init__(self, datasets: dict[str, tuple[str, int, int]] = DATASETS) -> None:
        self.cells: list[dict[str, str]] = []
        for dataset in datasets:
            for rank, system in enumerate(SYSTEMS):
                load = self._path("load", dataset, system, "standalone")
                self.write(load, _load(dataset, datasets[dataset], system, rank))
                for workload in WORKLOADS:
                    cell = {
                        "dataset": dataset,
                        "system": system,
                        "topology": "standalone",
                        "workload": workload,
                        "load_path": load,
                        "query_path": self._path("query", dataset, system, "standalone", workload),
                        "recall_path": self._path("recall", dataset, system, "standalone", workload),
                    }
                    self.cells.append(cell)
                    load_key = json.loads(Path(load).read_text())["key"]
                    self.write(cell["query_path"], _query(cell, load_key, rank))
                    self.write(cell["recall_path"], _recall(cell, rank))

    def cell(self, system: str, workload: str) -> dict[str, str]:
        """The first cell of a system and workload."""
        return next(c for c in self.cells if (c["system"], c["workload"]) == (system, workload))

    def edit(self, path: str, edit: Edit) -> None:
        """Change a record where it lies, and let the recall made from it know its new digest."""
        record = json.loads(Path(path).read_text())
        edit(record)
        self.write(path, record)
        for cell in self.cells:
            if cell["query_path"] == path and Path(cell["recall_path"]).exists():
                recall = json.loads(Path(cell["recall_path"]).read_text())
                recall["inputs"]["query"]["sha256"] = sha256(path)
                self.write(cell["recall_path"], recall)

    def tidy(self) -> pd.DataFrame:
        """The frame of all cells, from the records that exist."""
        return tidy(self.cells)

    @staticmethod
    def _path(stage: str, *names: str) -> str:
        key = hashlib.sha256("/".join((stage, *names)).encode()).hexdigest()[:12]
        safe = [re.sub(r"[^\w.-]", "_", name) for name in names]
        return f"results/{stage}/{'/'.join(safe)}@{key}.json"

    @staticmethod
    def write(path: str, record: dict[str, Any]) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(json.dumps(seal({"key": Path(path).stem.rpartition("@")[2], **record})))


def sha256(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _spec(dataset: str, system: str) -> dict[str, Any]:
    metric, rows, dim = DATASETS.get(dataset, ("l2", 1000, 8))
    engine, version, _ = SYSTEMS[system]
    return {
        "dataset": {"name": dataset, "metric": metric, "rows": rows, "dim": dim},
        "system": {"name": system, "engine": engine, "version": version, "settings": {"cut_off": 40000}},
        "topology": {"name": "standalone", "runtime": "native", "nodes": 1, "shards": 1, "replicas": 1},
        "index": {"type": "hnsw", "M": 16, "ef_construction": 200},
        "load": {"batch_rows": 500},
        "platform": "default",
    }


def _record(stage: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "stage": stage,
        "spec": spec,
        "inputs": {},
        "outputs": {"samples": {"path": "x.samples.parquet", "sha256": "ab" * 32, "bytes": 1}},
        "code": CODE,
        "created": "2026-11-21T05:10:00+00:00",
    }


def _used(seconds: float) -> dict[str, float]:
    return {
        "cpu_avg_pct": 312.5,
        "cpu_peak_pct": 398.0,
        "cpu_s": 3.125 * seconds,
        "rss_avg_mib": 640.0,
        "rss_peak_mib": 911.5,
        "io_read_mib": 0.0,
        "io_write_mib": 512.25,
        "wall_s": seconds,
    }


def _load(dataset: str, facts: tuple[str, int, int], system: str, rank: int) -> dict[str, Any]:
    metric, rows, dim = facts
    raw = rows * dim * 4 / 2**20
    insert, index, ready = rows / 4000 * (1 + 3 * rank), None if rank else rows / 3000, 0.4
    flush = None if rank else rows / 9000
    parts = (
        {"segments": 1.1 * raw, "index": 1.3 * raw, "log": 24.0} if not rank else {"objects": raw, "hnsw": 0.9 * raw}
    )
    gates = [
        {"gate": "row count", "ok": True, "detail": f"{rows} of {rows} rows after the load"},
        {"gate": "settings", "ok": True, "detail": "4 settings read back as asked"},
    ]
    spec = {**_spec(dataset, system), "dataset": {"name": dataset, "metric": metric, "rows": rows, "dim": dim}}
    return {
        **_record("load", spec),
        "valid": True,
        "gates": gates,
        "rows": rows,
        "dim": dim,
        "times": {
            "encode_s": insert / 20,
            "insert_s": insert,
            "flush_s": flush,
            "index_s": index,
            "ready_s": ready,
            "load_s": insert + (flush or 0) + (index or 0) + ready,
            "durable_s": None if rank else insert + flush + index,
        },
        "durability": "no call has it write its buffers" if rank else "Flush before the index is built",
        "resources": {
            "server": {"load": _used(insert + 1), "insert": _used(insert)},
            "client": {"load": _used(insert + 1)},
        },
        "storage": {
            "total_mib": sum(parts.values()) + 1,
            "net_mib": 2.0 * raw,
            "components": parts,
            "raw_mib": raw,
        },
        "server": {"version": SYSTEMS[system][1], "nodes": 1, "shards": 1, "replicas": 1, "settings": {"M": 16}},
        "artifact": {"digest": "69515a0630ce29fd10e101fa442afea8", "version": SYSTEMS[system][1]},
        "platform": {
            "id": "default",
            "cpu_model": "Example CPU @ 3 GHz",
            "cores": 8,
            "memory_gib": 32,
            "kernel": "6.1.0",
        },
        "clients": {"grpcio": "1.78.2"},
        "fairness": {"protocol": "gRPC, one connection a client", "batch": f"{500 - rank} rows an insert"},
    }


def over_runs(value: float, runs: int, spread: float = 0.01) -> dict[str, Any]:
    values = [value * (1 + spread * (run - (runs - 1) / 2)) for run in range(runs)]
    mean = sum(values) / runs
    std = math.sqrt(sum((v - mean) ** 2 for v in values) / (runs - 1)) if runs > 1 else None
    low, high = 0.98 * mean, 1.02 * mean
    return {"value": mean, "std": std, "runs": values, "low": low, "high": high, "interval": "95 %, made up"}


def rounds(runs: int, rank: int, day: int = 21) -> list[dict[str, Any]]:
    """Rounds of one system of several, that of each `rank` in turn."""
    return [{"run": run, "created": f"2026-11-{day}T05:{10 + 5 * run + rank:02}:00+00:00"} for run in range(runs)]


def _query(cell: dict[str, str], load_key: str, rank: int) -> dict[str, Any]:
    asked = WORKLOADS[cell["workload"]]
    runs, clients = asked["runs"], asked["clients"]
    p50 = 1.41 * (1 - 0.25 * rank) * (1 + asked["k"] / 300) * (1 + 0.4 * bool(asked.get("filter"))) * (1 + clients / 9)
    qps = clients * 1000 / p50
    spec = {**_spec(cell["dataset"], cell["system"]), "workload": {"name": cell["workload"], **asked}, "ef_search": 200}
    spec["system"] = {name: spec["system"][name] for name in ("name", "version")}  # the load says the rest
    return {
        **_record("query", spec),
        "load_key": load_key,
        "valid": True,
        "gates": [{"gate": "known rows", "ok": True, "detail": "0 of 3000 answers short"}],
        "summary": {
            "p50_ms": over_runs(p50, runs, 0.01 - 0.02 * rank),
            "p95_ms": over_runs(1.4 * p50, runs, 0.01 - 0.02 * rank),
            "p99_ms": over_runs(2.5 * p50, runs, 0.01 - 0.02 * rank),
            "mean_ms": over_runs(1.05 * p50, runs, 0.01 - 0.02 * rank),
            "qps": over_runs(qps, runs, 0.01 - 0.02 * rank),
            "errors": {"value": 0},
            "timeouts": {"value": 0},
            "samples": {"value": 3000},
            "fail_per_s": over_runs(0.0, runs),
        },
        "server_cpu_us_per_query": over_runs(800 * p50 / clients, runs),
        "selectivity": 0.301 if asked.get("filter") else None,
        "rounds": rounds(runs, rank),
        "resources": {"server": {"query": _used(10.0)}, "client": {"query": _used(10.0)}},
    }


def _recall(cell: dict[str, str], rank: int) -> dict[str, Any]:
    key = Path(cell["query_path"]).stem.rpartition("@")[2]
    return {
        **_record("recall", {"query_key": key, "truth_key": "0123456789ab"}),
        "inputs": {"query": {"path": cell["query_path"], "sha256": sha256(cell["query_path"])}},
        "query_key": key,
        "queries": 1000,
        "recall": {
            "k": WORKLOADS[cell["workload"]]["k"],
            "by_id": over_runs(0.9985 - 0.003 * rank, 3, 0.0),
            "by_distance": over_runs(0.9993, 3, 0.0),
        },
    }


def recorded(shape: tuple[str, int, int], load_key: str, query_path: str) -> tuple[dict[str, Any], ...]:
    """Records of a load of `shape` (metric, rows, dim), of queries of it and of their recall, to be changed."""
    cell = {"dataset": "any", "system": "milvus-2.3.5", "workload": "k10-clients1", "query_path": query_path}
    spec = _spec("any", "milvus-2.3.5")
    load = _load("any", shape, "milvus-2.3.5", 0)
    query = _query(cell, load_key, 0)
    recall = _record("recall", spec) | {
        "inputs": {"query": {"path": query_path, "sha256": ""}},
        "queries": 1000,
        "recall": {"k": 10, "by_id": over_runs(0.99, 3, 0.0), "by_distance": over_runs(0.99, 3, 0.0)},
    }
    return load, query, recall


def made_invalid(record: dict[str, Any]) -> None:
    record["valid"] = False
    record["gates"].append({"gate": "row count", "ok": False, "detail": "25200 of 60000 rows"})


class _Reader(HTMLParser):
    """Collects elements, and refuses what is not well-nested."""

    VOID = frozenset({"meta", "link", "br", "hr", "img", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def unpacked(page: str) -> str:
    """A page with its data and its library as they are once its script has unpacked them."""

    def plain(found: re.Match[str]) -> str:
        content = gzip.decompress(base64.b64decode(found[2])).decode()
        kind = "" if found[1] == "drawing" else f' type="application/json" id="{found[1]}"'
        return f"<script{kind}>{content}</script>"

    return re.sub(r'<script type="application/gzip" id="([\w-]+)">([^<]*)</script>', plain, page)


def ancestry_of(page: str) -> dict[str, Any]:
    """What a page's script knows: `columns`, `records`, and by its id each number with the values of its columns."""
    found = re.search(r'id="data-ancestry">(.*?)</script>', unpacked(page), re.DOTALL)
    assert found
    ancestry: dict[str, Any] = json.loads(found[1])
    lines = zip(*ancestry["values"], strict=True)
    return {**ancestry, "numbers": {line[0]: dict(zip(ancestry["columns"], line, strict=True)) for line in lines}}


def numbers_behind(link: dict[str, str | None]) -> list[str]:
    """The ids of the numbers that a link of class num (its attributes) shows."""
    return (link.get("data-n") or (link["href"] or "").removeprefix("#")).split()


def parsed(page: str) -> list[tuple[str, dict[str, str | None]]]:
    reader = _Reader()
    reader.feed(page)
    reader.close()
    assert not reader.open
    return reader.elements


HOSTILE = "</script><img src=x onerror=\"document.title='owned'\"><!--'&amp;"
