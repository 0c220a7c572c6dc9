"""Who may be frozen while another system is asked, how long, and that it answers as before (docs/duet.md)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from anncestry.drive import protocol
from anncestry.drive.client import OK
from anncestry.drive.driver import Driver
from anncestry.engines import get, offers_of
from anncestry.engines.base import Engine, Server
from anncestry.errors import Unsupported
from anncestry.runtimes.freeze import Side
from tests.servers import INDEX, ROOT, STANDALONE, SYSTEMS, exact, loaded, small_vectors

TOPOLOGIES: dict[str, Any] = yaml.safe_load((ROOT / "config" / "topologies.yaml").read_text())
CLUSTER = {**STANDALONE, "nodes": 3, "shards": 3}
TRIED = {
    "weaviate-1.27.0": 40.0,
    "milvus-2.3.5": 15.0,
    "pgvector-0.8.5": 40.0,
    "mariadb-11.8.6": 40.0,
    "seekdb-1.4.0": 15.0,
    "chroma-1.5.9": 40.0,
    "redis-7.4.1": 40.0,
    "vectorset-8.2.3": 40.0,
    "opensearch-3.5.0": 40.0,
}


def refusal(name: str, topology: dict[str, Any], slice_s: float = 0.5) -> str:
    try:
        offers_of(SYSTEMS[name]["engine"]).check_pair(SYSTEMS[name], topology, slice_s)
    except Unsupported as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", TRIED)
def test_two_slices_may_be_as_long_as_was_tried(name: str) -> None:
    assert refusal(name, STANDALONE) == refusal(name, STANDALONE, TRIED[name] / 2) == ""
    said = refusal(name, STANDALONE, TRIED[name])
    assert said.startswith(f"duet.slice_s: {TRIED[name]:g} s are too long for {name.partition('-')[0]}")


@pytest.mark.parametrize(
    ("name", "topology", "why"),
    [
        ("weaviate-1.27.0", CLUSTER, "weaviate, which elects its leaders anew"),
        ("milvus-2.3.5", TOPOLOGIES["standalone-external"], "milvus, which has several members there"),
        ("pgvector-0.8.5", {**STANDALONE, "runtime": "remote"}, "pgvector, which somebody else runs there"),
        ("polardb-8.0.2", STANDALONE, "polardb, which was never tried frozen"),
        ("hnswlib-0.8.0-library", STANDALONE, "hnswlib, which is a library"),
    ],
    ids=str,
)
def test_who_may_not_be_frozen_is_refused_by_name(name: str, topology: dict[str, Any], why: str) -> None:
    assert f"paired: unsupported by {why}" in refusal(name, topology)


@contextmanager
def at_work(name: str, folder: Path) -> Iterator[tuple[Engine, Server]]:
    """A system that is loaded; in the end all rows are still there."""
    vectors, engine = small_vectors("cosine"), get(SYSTEMS[name]["engine"])
    with loaded(name, INDEX, vectors, folder, SYSTEMS[name].get("settings", {})) as server:
        engine.apply(server, 200)
        yield engine, server
        assert engine.probe(server).rows == len(vectors.base)


@pytest.mark.servers
@pytest.mark.parametrize("name", TRIED)
def test_a_system_that_stands_still_in_turns_answers_as_before(name: str, tmp_path: Path) -> None:
    """Ten freezes of half a second under load: no request fails, every answer is decoded, recall is what it was."""
    with at_work(name, tmp_path) as (engine, server):
        with Side(server.group) as side:
            done = []

            def turns() -> None:
                for turn in range(10):
                    side.freeze(within_s=600)
                    time.sleep(0.5)
                    side.thaw()
                    time.sleep(0.1)
                    done.append(turn)

            thread = threading.Thread(target=turns)
            recall = asked(engine, server, tmp_path / "turns", 6.0, thread)
        assert len(done) == 10
        assert recall > 0.95 and asked(engine, server, tmp_path / "after", 1.0) > 0.95


@pytest.mark.servers
@pytest.mark.long
@pytest.mark.parametrize("name", TRIED)
def test_a_system_that_stood_still_for_as_long_as_it_may_answers_as_before(name: str, tmp_path: Path) -> None:
    with at_work(name, tmp_path) as (engine, server):
        with Side(server.group) as side:
            side.freeze()
            time.sleep(TRIED[name])
            side.thaw()
        assert asked(engine, server, tmp_path / "after", 2.0) > 0.95


def asked(
    engine: Engine, server: Server, folder: Path, duration_s: float, beside: threading.Thread | None = None
) -> float:
    """The recall of answers to two clients meanwhile; all of them must be whole."""
    queries = np.random.default_rng(3).normal(size=(100, 20)).astype(np.float32)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    distances = exact(small_vectors("cosine"), queries)
    tenth = np.sort(distances, axis=1)[:, 9] + 1e-6
    protocol.write_requests(folder, engine.encode(server, queries, 10, 200, None))
    protocol.write_job(
        folder / "job", requests=folder, transport=engine.transport(server), schedule=np.tile(np.arange(100), (2, 1)),
        prime=np.empty((2, 0), int), timeout_s=300.0, duration_s=duration_s,
    )  # fmt: skip
    with Driver() as driver:
        driver.run(folder / "job", ready=(lambda: None) if beside is None else beside.start)
    if beside is not None:
        beside.join()
    outcome = protocol.read_outcome(folder / "job")
    assert (outcome.samples["status"] == OK).all() and outcome.facts["reconnects"] == 0
    found = [engine.decode(response, "cosine")[0] for response in outcome.responses]
    assert all(len(ids) == 10 for ids in found)
    rows = zip(outcome.samples["query"], found, strict=True)
    return float(np.mean([distances[query, ids] <= tenth[query] for query, ids in rows]))
