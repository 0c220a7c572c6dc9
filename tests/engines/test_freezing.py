"""Who may be frozen while another system is asked, how long, and that it answers as before (docs/duet.md)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from anncestry.engines import get, offers_of
from anncestry.engines.base import Engine, Server
from anncestry.errors import Unsupported
from anncestry.runtimes.freeze import Side
from tests.builders.frozen import TRIED, answers_as_before_in_turns, asked
from tests.servers import INDEX, ROOT, STANDALONE, SYSTEMS, SmallVectors, loaded, small_vectors

TOPOLOGIES: dict[str, Any] = yaml.safe_load((ROOT / "config" / "topologies.yaml").read_text())
CLUSTER = {**STANDALONE, "nodes": 3, "shards": 3}


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
def at_work(name: str, folder: Path) -> Iterator[tuple[Engine, Server, SmallVectors]]:
    """A system that is loaded; in the end all rows are still there."""
    vectors, engine = small_vectors("cosine"), get(SYSTEMS[name]["engine"])
    with loaded(name, INDEX, vectors, folder, SYSTEMS[name].get("settings", {})) as server:
        engine.apply(server, 200)
        yield engine, server, vectors
        assert engine.probe(server).rows == len(vectors.base)


@pytest.mark.servers
@pytest.mark.parametrize("name", ["mariadb-11.8.6", "seekdb-1.4.0", "vectorset-8.2.3"])
def test_a_system_that_stands_still_in_turns_answers_as_before(name: str, tmp_path: Path) -> None:
    """The others do so with the rows that test_zero_vectors.py loads."""
    with at_work(name, tmp_path) as (engine, server, vectors):
        answers_as_before_in_turns(engine, server, vectors, tmp_path)


@pytest.mark.servers
@pytest.mark.long
@pytest.mark.parametrize("name", TRIED)
def test_a_system_that_stood_still_for_as_long_as_it_may_answers_as_before(name: str, tmp_path: Path) -> None:
    with at_work(name, tmp_path) as (engine, server, vectors):
        with Side(server.group) as side:
            side.freeze()
            time.sleep(TRIED[name])
            side.thaw()
        assert asked(engine, server, vectors, tmp_path / "after", 2.0) > 0.95
