"""What a system makes of zero vectors under cosine is what it offers: tried on each, with a fifth of the rows zero."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anncestry.drive import protocol
from anncestry.drive.client import OK
from anncestry.drive.driver import Driver
from anncestry.engines import get, offers_of
from anncestry.engines.base import DecodeError, Engine, Server
from anncestry.errors import Unsupported
from tests.builders.frozen import TRIED, answers_as_before_in_turns
from tests.servers import INDEX, SYSTEMS, SmallVectors, loaded, small_vectors

IN_PROCESS = ("hnswlib", "faiss", "usearch", "diskann")
DISKANN = {"type": "diskann", "max_degree": 20, "build_list": 80, "m": 10}
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    *((name, INDEX, {}) for name in ("milvus-2.3.5", "weaviate-1.27.0", "pgvector-0.8.5", "mariadb-11.8.6")),
    *(("seekdb-1.4.0", INDEX, {"cosine_by": by}) for by in ("cosine", "inner_product")),
    *((name, INDEX, {}) for name in ("chroma-1.5.9", "redis-7.4.1", "hnswlib-0.8.0-library", "faiss-1.15.1-library")),
    *((name, INDEX, {}) for name in ("usearch-2.26.6-library", "lancedb-0.40.0-library")),
    ("qdrant-edge-0.9.0-graph-library", INDEX, {}),
    ("duckdb-1.5.5-library", INDEX, {"scan_filtered": 1}),  # else a filter leaves fewer rows, zero or not
    ("opensearch-3.5.0", INDEX, {}),
    ("diskann-0.7.0-library", DISKANN, {}),
]
KEPT = {
    "milvus-2.3.5",
    "weaviate-1.27.0",
    "pgvector-0.8.5",
    "chroma-1.5.9",
    "redis-7.4.1",
    "opensearch-3.5.0",
    "hnswlib-0.8.0-library",
    "faiss-1.15.1-library",
    "usearch-2.26.6-library",
    "lancedb-0.40.0-library",
    "duckdb-1.5.5-library",
    "qdrant-edge-0.9.0-graph-library",
}
WINDOW = {"field": "price", "from": 0.2, "below": 0.25}


def offered(name: str, settings: dict[str, Any]) -> bool:
    try:
        offers_of(SYSTEMS[name]["engine"]).check_zero_vectors({**SYSTEMS[name], "settings": settings})
    except Unsupported as error:
        assert "zero_vectors: keep: unsupported by" in str(error) and "use zero_vectors: leave_out" in str(error)
        return False
    return True


def settings_of(name: str, more: dict[str, Any]) -> dict[str, Any]:
    return {**SYSTEMS[name].get("settings", {}), **more}


@pytest.mark.parametrize(("name", "index", "more"), CASES, ids=str)
def test_who_offers_to_keep_zero_vectors(name: str, index: dict[str, Any], more: dict[str, Any]) -> None:
    assert offered(name, settings_of(name, more)) == (name in KEPT or more.get("cosine_by") == "inner_product")


@dataclass(frozen=True)
class Loaded:
    """A system that was loaded, a fifth of the rows zero."""

    name: str
    engine: Engine
    server: Server
    vectors: SmallVectors
    settings: dict[str, Any]


def name_of(case: tuple[str, dict[str, Any], dict[str, Any]]) -> str:
    return "-".join([case[0], *map(str, case[2].values())])


@pytest.fixture(scope="module", params=CASES, ids=name_of)
def at_work(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    name, index, more = request.param
    whole = small_vectors("cosine")
    base = whole.base.copy()
    base[::5] = 0
    vectors, settings = replace(whole, base=base), settings_of(name, more)
    engine = get(SYSTEMS[name]["engine"])
    with loaded(name, index, vectors, tmp_path_factory.mktemp("at-work"), settings) as server:
        assert engine.probe(server).rows == len(base)
        engine.apply(server, 200)
        yield Loaded(name, engine, server, vectors, settings)


@pytest.mark.servers
def test_a_system_keeps_zero_vectors_as_it_offers(at_work: Loaded, tmp_path: Path) -> None:
    filters = [None] if SYSTEMS[at_work.name]["engine"] in IN_PROCESS else [None, WINDOW]
    found = [kept(at_work.engine, at_work.server, at_work.vectors, filter, tmp_path) for filter in filters]
    assert all(found) == offered(at_work.name, at_work.settings), found


@pytest.mark.servers
@pytest.mark.parametrize(
    "at_work", [case for case in CASES if case[0] in KEPT & TRIED.keys()], ids=name_of, indirect=True
)
def test_a_system_that_stands_still_in_turns_answers_as_before(at_work: Loaded, tmp_path: Path) -> None:
    """The others do so in test_freezing.py, with no zero vectors."""
    answers_as_before_in_turns(at_work.engine, at_work.server, at_work.vectors, tmp_path)


def kept(engine: Engine, server: Server, vectors: SmallVectors, filter: dict[str, float] | None, folder: Path) -> bool:
    """Whether told distances are right, those of zero rows and of a zero query 1, and no other row is lost for them."""
    base, random = vectors.base.astype(np.float64), np.random.default_rng(3)
    queries = np.concatenate([random.normal(size=(10, base.shape[1])), np.zeros((1, base.shape[1]))])
    queries[:10] /= np.linalg.norm(queries[:10], axis=1, keepdims=True)
    exact, k, zero, hits = 1 - queries @ base.T, 10, np.zeros(len(base), bool), 0
    if filter is not None:  # all that pass are asked for: zero rows are among them, which a graph need not find
        passing = (vectors.price >= np.float32(filter["from"])) & (vectors.price < np.float32(filter["below"]))
        exact, k, zero = np.where(passing, exact, np.inf), int(passing.sum()), passing & ~base.any(axis=1)
    requests = engine.encode(server, queries.astype(np.float32), k, 200, filter)
    for response, distances in zip(responses(engine, server, requests, folder / str(k)), exact, strict=True):
        try:
            ids, told = engine.decode(response, "cosine")
        except DecodeError:
            return False
        found = np.unique(ids[~zero[ids]])
        hits += (distances[found] <= np.sort(distances)[k - 1] + 1e-6).sum()
        if not np.allclose(told, distances[ids], atol=1e-3):
            return False
    return bool(hits >= 0.95 * (k - zero.sum()) * len(queries))  # threads build a graph: it may miss a row


def responses(engine: Engine, server: Server, requests: list[bytes], folder: Path) -> list[bytes]:
    protocol.write_requests(folder, requests)
    protocol.write_job(
        folder / "job", requests=folder, transport=engine.transport(server), schedule=np.arange(len(requests))[None],
        prime=np.empty((1, 0), int), timeout_s=300.0,
    )  # fmt: skip
    with Driver() as driver:
        driver.run(folder / "job")
    outcome = protocol.read_outcome(folder / "job")
    assert (outcome.samples["status"] == OK).all(), outcome.facts["clients"][0]["errors"]
    return outcome.responses
