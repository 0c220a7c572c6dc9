"""Is a new engine measured rightly? A small matrix on it, as it is, and with lies put between it and its measurement.

As it is, every record must be valid, with the recall of its kind of index. With each lie, the load or a query must be
caught: invalid by a gate, failed, or valid with defective answers that its page shows. A lie that passes means that a
method of the engine says less than it should: `probe` no settings, `count` another filter than `encode`, and so on.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from anncestry import engines, guard, workflow
from anncestry.cells.matrix import Cell, Matrix
from anncestry.engines.base import Batch, EngineOf
from anncestry.engines.offers import Offers
from anncestry.errors import Unsupported, UserError
from anncestry.home import EPOCHS, HOME
from anncestry.provenance import running
from anncestry.provenance.attempts import Ledger
from anncestry.provenance.gates import ORACLE

NAME = "engine-check"
_PACKAGE = "anncestry_lies"
_HONEST = "honest"
_RECALL_MIN = 0.9
_K = 5
_TOPOLOGY = {"runtime": "native", "nodes": 1, "shards": 1, "replicas": 1}
_HNSW = {"type": "hnsw", "M": 16, "ef_construction": 100}
_WORKLOAD = {"k": _K, "clients": 1, "runs": 1, "queries": 40, "warmup": 10}
_WORKLOADS: Mapping[str, Mapping[str, Any]] = {
    "k5": _WORKLOAD,
    "k5-category": {**_WORKLOAD, "filter": {"field": "category", "in": [1, 4, 7]}},
    "k5-price": {**_WORKLOAD, "filter": {"field": "price", "share": 0.3}},
    "k5-clients4": {**_WORKLOAD, "clients": 4},
}

_DEFECTS = "defects of answers"
_TRIES_THAT_FAIL = ("a load that failed", "a query that failed")

Lie = Callable[[Any], Mapping[str, Callable[..., Any]]]


def _fewer_rows(engine: Any) -> Mapping[str, Callable[..., Any]]:
    def encode_insert(server: Any, rows: Batch) -> Any:
        kept = slice(0, len(rows.base) - 1)
        payload = [(column, list(values)[kept]) for column, values in rows.payload]
        parts = {name: getattr(rows, name)[kept] for name in ("base", "category", "price", "region")}
        return engine.encode_insert(server, replace(rows, **parts, payload=payload))

    return {"encode_insert": encode_insert}


def _no_filter(engine: Any) -> Mapping[str, Callable[..., Any]]:
    def encode(server: Any, queries: Any, k: int, ef_search: int, filter: Any) -> Any:
        return engine.encode(server, queries, k, ef_search, None)

    return {"encode": encode}


def _decoded(change: Callable[[Any, Any], tuple[Any, Any]]) -> Lie:
    def lie(engine: Any) -> Mapping[str, Callable[..., Any]]:
        return {"decode": lambda response, metric: change(*engine.decode(response, metric))}

    return lie


def _probed(**said: Any) -> Lie:
    def lie(engine: Any) -> Mapping[str, Callable[..., Any]]:
        return {"probe": lambda server: replace(engine.probe(server), **said)}

    return lie


def _other_settings(engine: Any) -> Mapping[str, Callable[..., Any]]:
    def probe(server: Any) -> Any:
        said = engine.probe(server)
        return replace(said, settings=dict.fromkeys(said.settings, "another"))

    return {"probe": probe}


def _repeat(ids: Any, distances: Any) -> tuple[Any, Any]:
    ids = np.array(ids)
    ids[1:2] = ids[:1]
    return ids, distances


LIES: Mapping[str, tuple[str, Lie, tuple[str, ...]]] = {
    "fewer-rows": ("the last row of each batch is not inserted", _fewer_rows, ("row count", "inserts")),
    "no-filter": ("filters are not sent", _no_filter, ("filter applied", ORACLE)),
    "other-rows": (
        "answers name the row after the one that was found",
        _decoded(lambda i, d: (np.array(i) + 1, d)),
        ("distances", "known rows", ORACLE),
    ),
    "other-distances": (
        "distances are 5 % and 0.01 too large",
        _decoded(lambda i, d: (i, np.array(d) * 1.05 + 0.01)),
        ("distances", ORACLE),
    ),
    "short": (
        "half of each answer is missing",
        _decoded(lambda i, d: (i[: len(i) // 2], d[: len(d) // 2])),
        (_DEFECTS, ORACLE),
    ),
    "repeats": ("an answer holds its first row twice", _decoded(_repeat), (_DEFECTS, ORACLE)),
    "other-version": ("the server says another version", _probed(version="0.0.0-another"), ("server version",)),
    "other-settings": ("every setting is read back as another one", _other_settings, ("settings",)),
    "index-incomplete": ("the index is not complete", _probed(index_complete=False), ("index complete",)),
    "a-cluster": ("three nodes hold the data", _probed(nodes=3), ("topology",)),
}
"""Name → what is wrong, the methods that replace the engine's own, and what can catch it, beside a try that fails."""


def engine_with(path: str, name: str) -> tuple[Offers, EngineOf[Any]]:
    """OFFERS and ENGINE of the engine at `path`, whose methods lie as `name` says."""
    engine = engines.get(path)
    lying = copy.copy(engine)
    for method, function in LIES[name][1](engine).items():
        object.__setattr__(lying, method, function)
    return engines.offers_of(path), lying


@dataclass(frozen=True)
class Finding:
    """One system of the check: what is wrong with it, whether it came out as it should, and by what."""

    name: str
    wrong: str
    passed: bool
    by: str


def check(
    engine: str, system: Mapping[str, Any], metric: str, folder: Path, cores: int, lies: Sequence[str] = tuple(LIES)
) -> list[Finding]:
    """Measure the engine of that name or path in `folder`, as it is and with each of the `lies`.

    `system`: version, artifact and settings, as an entry of systems.yaml has them. An engine that offers no filter is
    asked without, and can't lie about one. UserError if the workflow can't begin.
    """
    offers = engines.offers_of(engine)
    if metric not in offers.metrics:
        raise UserError(f"--metric {metric}: {engine} searches by {', '.join(offers.metrics)} only")
    if not _asks(offers, system, "k5-category"):
        lies = [name for name in lies if name != "no-filter"]
    choice = _prepare(engine, offers, system, metric, folder, lies)
    matrix = workflow.expand(choice)  # what the engine refuses is said before anything runs
    command = [sys.executable, "-m", "snakemake", "-s", str(HOME / "Snakefile"), "--cores", str(cores), "--keep-going"]
    targets = [*{cell.load_path for cell in matrix.loaded}, *(cell.recall_path for cell in matrix.cells)]
    running.run_whole(
        [*command, "--config", f"experiment={choice.experiment}", f"config_dir={choice.folder}", "--", *targets],
        cwd=folder,
        stdout=2,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder.resolve()), *sys.path])},
    )
    if not any((folder / cell.load_path).exists() for cell in matrix.cells if cell.system == _HONEST):
        raise UserError(f"{engine}: could not be loaded even as it is: see above, and {folder / 'logs' / 'load'}")
    return [_honest(matrix, folder), *(_caught(matrix, folder, name) for name in lies)]


def _asks(offers: Offers, system: Mapping[str, Any], workload: str) -> bool:
    """Whether a workload has no filter, or one that the engine can be asked with."""
    asked = _WORKLOADS[workload]
    if "filter" in asked:
        try:
            offers.check_workload(system, _TOPOLOGY, _HNSW, asked)
        except Unsupported:
            return False
    return True


def _prepare(
    engine: str, offers: Offers, system: Mapping[str, Any], metric: str, folder: Path, lies: Sequence[str]
) -> workflow.Choice:
    guard.refuse_foreign(folder)
    made = folder / "config" / guard.MADE
    if running.at_work(folder):
        raise UserError(f"--folder {folder}: a run is at work there: wait for its end, or choose another folder")
    if made.exists() and not (folder / _PACKAGE).is_dir():
        raise UserError(f"--folder {folder}: another command's results there would be lost; choose another folder")
    if made.exists():
        # The keys of an engine from elsewhere don't hold its code, which its author changes between two checks.
        for name in ("results", "scratch"):
            shutil.rmtree(folder / name, ignore_errors=True)
    package = folder / _PACKAGE
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").touch()
    for name in lies:
        module = package / f"{_module(name)}.py"
        module.write_text(
            f'"""Written by anncestry engine-check: {LIES[name][0]}."""\n\n'
            "from anncestry.engine_check import engine_with\n\n"
            f"OFFERS, ENGINE = engine_with({engine!r}, {name!r})\n"
        )
    sys.path.insert(0, str(folder.resolve()))
    systems = {_HONEST: {"engine": engine, **system}}
    systems |= {name: {"engine": f"{_PACKAGE}.{_module(name)}", **system} for name in lies}
    synthetic = {"kind": "synthetic", "generator": "ann-benchmarks-random", "samples": 1200, "centers": 6, "seed": 1}
    dataset = {"metric": metric, "rows": 1080, "queries": 120, "dim": 8, "content": {}, "licence": "synthetic"}
    block = {"datasets": ["blobs"], "topologies": ["standalone"]}
    offered = [name for name in _WORKLOADS if _asks(offers, system, name)]
    honest = {**block, "systems": [_HONEST], "workloads": offered}
    lying = {**block, "systems": [*lies], "workloads": [name for name in ("k5", "k5-category") if name in offered]}
    files = {
        "config": {
            "title": f"Check of {engine}",
            "platform": "default",
            "seed": 7,
            "index": _HNSW,
            "ef_search": 100,
            "load": {"batch_rows": 200},
            "disturbance": {"repeats": 0},
            "matrix": [honest, lying] if lies else [honest],
        },
        "datasets": {"blobs": {**dataset, "sources": [synthetic]}},
        "systems": systems,
        "topologies": {"standalone": _TOPOLOGY},
        "workloads": dict(_WORKLOADS),
        "platforms": {"default": {}},
        "epochs": yaml.safe_load(EPOCHS.read_text()),
    }
    config = folder / "config"
    config.mkdir(exist_ok=True)
    made.touch()
    for name, body in files.items():
        (config / f"{name}.yaml").write_text(yaml.safe_dump(body, sort_keys=False))
    return workflow.Choice(config.resolve(), "default")


def _module(lie: str) -> str:
    return lie.replace("-", "_")


def _honest(matrix: Matrix, folder: Path) -> Finding:
    problems: list[str] = []
    for cell in (cell for cell in matrix.cells if cell.system == _HONEST):
        for body in _records(cell, folder):
            problems += [f"{cell.workload}: {gate}: {detail}" for gate, detail in _failed(body)]
        scored = _read(folder / cell.recall_path)
        recall = None if scored is None else scored["recall"]["by_distance"]["value"]
        if recall is None:
            problems.append(f"{cell.workload}: was not measured; see {folder / 'logs'}")
        elif recall < _RECALL_MIN:
            problems.append(f"{cell.workload}: recall {recall:.3f}, below {_RECALL_MIN}")
    said = "; ".join(dict.fromkeys(problems))
    return Finding(_HONEST, "nothing", not problems, said or f"every gate holds, recall of {_RECALL_MIN} or more")


def _caught(matrix: Matrix, folder: Path, lie: str) -> Finding:
    wrong, _, caught_by = LIES[lie]
    by: list[str] = []
    for cell in (cell for cell in matrix.cells if cell.system == lie):
        bodies = _records(cell, folder)
        by += [gate for body in bodies for gate, _ in _failed(body)]
        # What has no record must have been tried: a run that was cut short has caught nothing.
        for path, query, what in ((cell.load_path, "", "a load"), (cell.query_path, cell.query, "a query")):
            if not (folder / path).exists():
                ledger = Ledger(folder / Ledger.of(matrix.specs[cell.load], cell.load).path)
                if ledger.failure(query):
                    by.append(f"{what} that failed")
                break
        defects = bodies[-1].get("defects") if bodies else None
        if defects and defects["share"]["value"] > 0:
            by.append(_DEFECTS)
    caught = any(each in (*caught_by, *_TRIES_THAT_FAIL) for each in by)
    return Finding(lie, wrong, caught, ", ".join(dict.fromkeys(by)) or "nothing")


def _records(cell: Cell, folder: Path) -> list[dict[str, Any]]:
    """Its load's and its query's record, as far as they are there."""
    return [body for path in (cell.load_path, cell.query_path) if (body := _read(folder / path)) is not None]


def _read(path: Path) -> dict[str, Any] | None:
    try:
        body: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    return body


def _failed(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(gate["gate"], gate["detail"]) for gate in record["gates"] if not gate["ok"]]
