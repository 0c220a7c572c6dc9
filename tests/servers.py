"""Real servers for tests: artifacts from the user's cache (or made, once), small data, starting and stopping."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from anncestry import user_cache
from anncestry.cells.stage import key_of
from anncestry.datasets.payload import NO_PAYLOAD, Column, Payload
from anncestry.engines import get
from anncestry.engines.base import Engine, Server
from anncestry.progress import Progress
from anncestry.runtimes import artifacts
from tests.once import once

ROOT = Path(__file__).resolve().parents[1]
SYSTEMS: dict[str, Any] = yaml.safe_load((ROOT / "config" / "systems.yaml").read_text())
PARTS: dict[str, Any] = yaml.safe_load((ROOT / "config" / "parts.yaml").read_text())
TOPOLOGIES: dict[str, Any] = yaml.safe_load((ROOT / "config" / "topologies.yaml").read_text())
CACHE = user_cache.folder()
"""Of artifacts, which the tests of this user share."""
STANDALONE = {"runtime": "native", "nodes": 1, "shards": 1, "replicas": 1}
INDEX = {"type": "hnsw", "M": 16, "ef_construction": 200}


@dataclass(frozen=True)
class SmallVectors:
    """Random rows; for cosine of length 1."""

    base: NDArray[np.float32]
    category: NDArray[np.uint8]
    price: NDArray[np.float32]
    region: NDArray[np.uint8]
    metric: str
    payload: Payload = NO_PAYLOAD


def small_vectors(metric: str, rows: int = 2000, dimensions: int = 20) -> SmallVectors:
    random = np.random.default_rng(7)
    base = random.normal(size=(rows, dimensions)).astype(np.float32)
    if metric == "cosine":
        base /= np.linalg.norm(base, axis=1, keepdims=True)
    category = random.integers(0, 10, rows).astype(np.uint8)
    price = random.random(rows).astype(np.float32)
    return SmallVectors(base, category, price, (np.arange(rows) % 256).astype(np.uint8), metric)


KEYWORDS = ("the", "a", "A", 'say "no\\', "it's 50 %_", "dé 😀", "or", "null", "x" * 1024)
"""What a language of conditions, or a column's own rules, could take for something else."""


def small_payload(rows: int = 2000) -> Payload:
    """A column of each kind, and filters on them: matches, ranges with and without their ends, and, or, none."""
    random = np.random.default_rng(8)
    whole = random.choice([-(2**53), -3, 0, 1, 2, 7, 2**53], rows)
    columns = (
        Column("word", "payload_0", "keyword", random.integers(0, len(KEYWORDS), rows).astype(np.int32), KEYWORDS),
        Column("n", "payload_1", "int", whole),
        Column("x", "payload_2", "float", random.random(rows)),
    )
    ends = columns[2].values[:2]
    low, high = float(ends.min()), float(ends.max())
    one: list[dict[str, Any]] = [{"column": 0, "equals": word} for word in KEYWORDS]
    one += [{"column": 1, "equals": int(value)} for value in (-3, 2**53)]
    one += [{"column": 1, "from": -3, "below": 2}, {"column": 1, "from": 2**53}]
    one += [{"column": 2, "above": low, "below": high}, {"column": 2, "from": low, "to": high}]
    every = [{"all": [term], "any": []} for term in one]
    every += [{"all": [one[1], one[11]], "any": []}, {"all": [], "any": [one[3], one[4]]}]
    every += [{"all": [one[14]], "any": [one[0], one[12]]}, {"all": [{"column": 0, "equals": "nobody's"}], "any": []}]
    return Payload(columns, tuple({"field": "payload", **filter} for filter in every), np.arange(len(every)))


MADE = "TESTS_MADE"
"""The variable that names the folder in which all workers of a session, and what they start, keep artifacts."""


@cache
def _made(system: str) -> Path:
    """The artifact of a system, made once a session: it is unpacked anew, and its pins verified, when it is made."""
    shared = os.environ.get(MADE)
    if shared is None:
        shared = tempfile.mkdtemp(prefix="anncestry-")
        atexit.register(shutil.rmtree, shared, ignore_errors=True)
    return once(Path(shared) / system, partial(_make, system))


def _make(system: str, folder: Path) -> None:
    entry = SYSTEMS[system]
    spec = {"system": system, "version": entry["version"], "artifact": entry["artifact"]}
    artifacts.run(spec, folder, CACHE, f"test-{artifacts.digest_of({'spec': str(spec)})[:12]}")


def will_make(*artifacts_: Mapping[str, Any]) -> None:
    """Told of every artifact before it is made; tests/conftest.py refuses what the running test did not state."""


def artifact(system: str, out_dir: Path) -> Path:
    """Folder with the system's artifact, from the cache that the tests of this user share."""
    will_make(SYSTEMS[system]["artifact"])
    shutil.copytree(_made(system), out_dir, copy_function=_linked, dirs_exist_ok=True)
    return out_dir


def _linked(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def parts_of(topology: Mapping[str, Any]) -> list[str]:
    """The names of everything that a topology puts beside a system."""
    wanted, names = list(topology.get("external", {}).values()), []
    while wanted:
        names.append(wanted.pop())
        wanted += PARTS[names[-1]].get("with", [])
    return names


def with_parts(system: str, topology: dict[str, Any], out_dir: Path, entry: dict[str, Any] | None = None) -> Path:
    """The artifact of a system (or of this entry) with everything that the topology puts beside it."""
    names = {name: {of: PARTS[name][of] for of in ("version", "artifact")} for name in parts_of(topology)}
    entry = entry or SYSTEMS[system]
    spec = {"system": system, "version": entry["version"], "artifact": entry["artifact"], "parts": names}
    will_make(entry["artifact"], *(part["artifact"] for part in names.values()))
    artifacts.run(spec, out_dir, CACHE, f"test-{key_of(spec)}")
    return out_dir


@contextmanager
def running(system: str, artifact_dir: Path, data_dir: Path, first_port: int | None = None) -> Iterator[Server]:
    """A server that is stopped in the end."""
    entry = SYSTEMS[system]
    server = get(entry["engine"]).start(artifact_dir, data_dir, entry, STANDALONE, first_port)
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def loaded(
    name: str,
    index: dict[str, Any],
    vectors: SmallVectors,
    folder: Path,
    settings: dict[str, Any],
    load: Mapping[str, Any] = MappingProxyType({}),
) -> Iterator[Server]:
    entry = {**SYSTEMS[name], "settings": settings}
    engine = get(entry["engine"])
    server = engine.start(artifact(name, folder / "artifact"), folder / "data", entry, STANDALONE)
    try:
        with Progress("load", len(vectors.base), "rows") as progress:
            engine.load(server, vectors, index, {"batch_rows": 500, **load}, progress)
        yield server
    finally:
        server.stop()


def ask(
    engine: Engine, server: Server, vectors: SmallVectors, queries: NDArray[np.float32], filter: dict[str, Any] | None
) -> list[tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """Send requests for 10 neighbours as plain bytes and decode the replies."""
    import grpc

    transport = engine.transport(server)
    assert transport["kind"] == "grpc"
    with grpc.insecure_channel(transport["target"], options=[("grpc.enable_http_proxy", 0)]) as channel:
        search = channel.unary_unary(transport["method"])
        requests = engine.encode(server, queries, 10, 200, filter)
        return [engine.decode(search(request, timeout=60), vectors.metric) for request in requests]


def exact(vectors: SmallVectors, queries: NDArray[np.float32]) -> NDArray[np.float64]:
    """(queries, rows) canonical distances."""
    base, asked = vectors.base.astype(np.float64), queries.astype(np.float64)
    if vectors.metric == "cosine":
        return np.asarray(1.0 - asked @ base.T)
    return np.asarray(((asked[:, None, :] - base[None, :, :]) ** 2).sum(axis=2))
