"""A system that is frozen and thawed while it is asked: whether it answers as before (docs/duet.md)."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np

from anncestry.drive import protocol
from anncestry.drive.client import OK
from anncestry.drive.driver import Driver
from anncestry.engines.base import Engine, Server
from anncestry.runtimes.freeze import Side
from tests.servers import SmallVectors, exact

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
"""Systems, and for how many seconds each may be frozen."""


def answers_as_before_in_turns(engine: Engine, server: Server, vectors: SmallVectors, folder: Path) -> None:
    """Ten freezes of half a second under load: no request fails, every answer is decoded, recall is what it was."""
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
        recall = asked(engine, server, vectors, folder / "turns", 6.0, thread)
    assert len(done) == 10
    assert recall > 0.95 and asked(engine, server, vectors, folder / "after", 1.0) > 0.95
    assert engine.probe(server).rows == len(vectors.base)


def asked(
    engine: Engine,
    server: Server,
    vectors: SmallVectors,
    folder: Path,
    duration_s: float,
    beside: threading.Thread | None = None,
) -> float:
    """The recall of answers to two clients meanwhile, by cosine; all of them must be whole."""
    queries = np.random.default_rng(3).normal(size=(100, vectors.base.shape[1])).astype(np.float32)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    distances = exact(vectors, queries)
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
