"""Libraries beside servers: searched in the clients' own processes, by the same driver, into the same samples."""

from __future__ import annotations

import os
import signal
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

from anncestry import engines
from anncestry.datasets import metadata
from anncestry.drive import protocol
from anncestry.drive.client import OK
from anncestry.drive.driver import Driver
from anncestry.engines.base import DecodeError, Server
from anncestry.errors import ConfigError, DataError, ServerError
from anncestry.measure import ceiling
from anncestry.measure.oracle import Oracle, over_codes
from anncestry.measure.server import System
from anncestry.measure.vectors import Vectors
from anncestry.progress import Progress
from anncestry.runtimes import artifacts
from tests.needs import is_of_one_python
from tests.servers import INDEX, STANDALONE, SYSTEMS, SmallVectors, artifact, exact, running, small_vectors

GRAPHS = {"hnswlib": "hnswlib-0.8.0-library", "faiss": "faiss-1.15.1-library", "usearch": "usearch-2.26.6-library"}
DATABASES = {
    "qdrant_edge": "qdrant-edge-0.9.0-graph-library",
    "lancedb": "lancedb-0.40.0-library",
    "duckdb": "duckdb-1.5.5-library",
}
"""Those that store metadata, and filter by it."""
LIBRARIES = {**GRAPHS, "diskann": "diskann-0.7.0-library", **DATABASES}
INDEXES = {LIBRARIES["diskann"]: {"type": "diskann", "max_degree": 20, "build_list": 80, "m": 10}}
"""Of those that build another one than INDEX."""
K = 10


# Refusals, while a workflow is parsed.


@pytest.mark.parametrize("engine", LIBRARIES)
@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"topology": {**STANDALONE, "nodes": 3}}, "in one process: nodes is 1, not 3"),
        ({"topology": {**STANDALONE, "runtime": "docker"}}, "does not support runtime 'docker'"),
        ({"topology": {**STANDALONE, "limits": {"cpus": 1}}}, "is a library, in its clients' processes"),
        ({"system": {"settings": {"threads": 2}}}, "unknown key 'threads'"),
        ({"system": {"settings": {"build_threads": 0}}}, r"settings\.build_threads|unknown key 'build_threads'"),
        ({"system": {"version": "9.9.9"}}, "9.9.9 is not less than"),
        ({"workload": {"k": 100, "ef_search": 64}}, "ef_search: 64 is less than k: 100"),
        ({"workload": {"k": 10, "client": "sdk"}}, "can't be asked through sdk"),
        ({"workload": {"k": 10, "filter": {"field": "payload"}}}, r"filter.*: \w+ is"),
        ({"workload": {"k": 10, "start": "cold"}}, "load the index before the clock starts"),
        ({"workload": {"k": 10, "fault": {"kind": "kill", "member": "library"}}}, "no server that could have one"),
    ],
)
def test_what_a_library_can_not_do_is_refused_by_name(engine: str, changes: dict[str, Any], complaint: str) -> None:
    index = INDEXES.get(LIBRARIES[engine], INDEX)
    asked: dict[str, Any] = {"topology": STANDALONE, "index": index, "workload": None, **changes}
    asked["system"] = {"version": SYSTEMS[LIBRARIES[engine]]["version"], **changes.get("system", {})}
    with pytest.raises(ConfigError, match=complaint):
        engines.offers_of(engine).check(**asked)


@pytest.mark.parametrize("engine", GRAPHS)
@pytest.mark.parametrize(
    ("index", "complaint"), [({**INDEX, "type": "diskann"}, "diskann"), ({**INDEX, "M": 1}, r"index\.M")]
)
def test_an_index_that_a_library_can_not_build_is_refused_by_name(
    engine: str, index: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        engines.offers_of(engine).check({"version": SYSTEMS[LIBRARIES[engine]]["version"]}, STANDALONE, index, None)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"index": INDEX}, "hnsw is unsupported by diskann"),
        ({"index": {"type": "diskann", "max_degree": 30}}, r"index\.build_list"),
        ({"index": {"type": "diskann", "max_degree": 64, "build_list": 32, "m": 8}}, "32 is less than max_degree: 64"),
        ({"system": {"settings": {"beam_width": 0}}}, r"settings\.beam_width"),
        ({"workload": {"k": 20, "search_list": 10}}, "search_list: 10 is less than k: 20"),
    ],
)
def test_what_a_graph_on_disk_can_not_be_is_refused(changes: dict[str, Any], complaint: str) -> None:
    name = LIBRARIES["diskann"]
    asked: dict[str, Any] = {"topology": STANDALONE, "index": INDEXES[name], "workload": None, **changes}
    asked["system"] = {"version": SYSTEMS[name]["version"], **changes.get("system", {})}
    with pytest.raises(ConfigError, match=complaint):
        engines.offers_of("diskann").check(**asked)


@pytest.mark.parametrize("name", LIBRARIES.values())
def test_whoever_reads_of_a_library_is_told_that_it_is_one(name: str) -> None:
    entry = SYSTEMS[name]
    index = INDEXES.get(name, INDEX)
    engines.offers_of(entry["engine"]).check(entry, STANDALONE, index, {"k": 10, "ef_search": 100})
    assert name.endswith("-library")  # the name stands in every table
    what = engines.get(entry["engine"]).fairness(entry, index, STANDALONE)["what it is"]
    assert what.startswith("a library, not a server")


def test_a_flat_index_has_nothing_to_choose() -> None:
    offers, version = engines.offers_of("faiss"), {"version": "1.15.1"}
    offers.check(version, STANDALONE, {"type": "flat"}, None)
    assert engines.get("faiss").asked_settings(version, {"type": "flat"}, "l2", None) == {
        "index_type": "flat",
        "metric": "l2",
    }
    with pytest.raises(ConfigError, match="index: unknown key 'M'"):
        offers.check(version, STANDALONE, {"type": "flat", "M": 16}, None)


def test_a_package_of_another_digest_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "pybind11-2.13.6-py3-none-any.whl", "w") as wheel:
        about = {"METADATA": "Metadata-Version: 2.1\nName: pybind11\nVersion: 2.13.6\n", "WHEEL": "Tag: py3-none-any\n"}
        for name, text in {**about, "RECORD": ""}.items():
            wheel.writestr(f"pybind11-2.13.6.dist-info/{name}", text)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    pinned = {"kind": "python", "package": "pybind11", "sha256": "0" * 64}
    spec = {"system": "other", "version": "2.13.6", "artifact": pinned}
    with pytest.raises(DataError, match=r"other: can't get pybind11 2\.13\.6: its sha256 is not the pinned 000000"):
        artifacts.run(spec, tmp_path / "out", tmp_path / "cache", "key")


# Built and searched.


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((name, metric), marks=pytest.mark.makes(name))
        for name in LIBRARIES.values()
        for metric in ("l2", "cosine")
    ],
    ids="-".join,
)
def loaded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Server, SmallVectors]]:
    """A library's name, the process that has built an index, and the vectors in it."""
    name, metric = request.param
    entry, vectors = SYSTEMS[name], small_vectors(metric)
    folder = artifact(name, tmp_path_factory.mktemp("artifact"))
    of_one_python = any(folder.rglob("*.cpython-*.so")) and "source" not in entry["artifact"]
    assert is_of_one_python(entry["artifact"]) == of_one_python, "who may use it is known before it is made"
    with running(name, folder, tmp_path_factory.mktemp("data")) as server:
        with Progress("load", len(vectors.base), "rows") as progress:
            result = engines.get(entry["engine"]).load(
                server, vectors, INDEXES.get(name, INDEX), {"batch_rows": 300}, progress
            )
        assert (result.rows_sent, result.rows_acknowledged, result.batches) == (2000, 2000, 7)
        assert [phase.name for phase in result.phases] == ["insert", "index", "ready"]
        yield name, server, vectors


def test_the_stored_index_says_what_was_asked_of_it(loaded: tuple[str, Server, SmallVectors]) -> None:
    name, server, vectors = loaded
    engine, entry = engines.get(SYSTEMS[name]["engine"]), SYSTEMS[name]
    probe = engine.probe(server)
    asked = engine.asked_settings(entry, INDEXES.get(name, INDEX), vectors.metric, 200)
    assert (probe.version, probe.rows, probe.index_complete) == (entry["version"], 2000, True)
    assert {key: probe.settings[key] for key in asked} == asked
    assert engine.count(server, {"field": "category", "in": [1, 4]}) == np.isin(vectors.category, [1, 4]).sum()
    assert engine.count(server, None) == 2000


def test_two_clients_find_the_nearest_rows_each_in_a_process_of_its_own(
    loaded: tuple[str, Server, SmallVectors], tmp_path: Path
) -> None:
    name, server, vectors = loaded
    engine = engines.get(SYSTEMS[name]["engine"])
    queries = small_vectors(vectors.metric, rows=50).base + np.float32(0.01)
    far = exact(vectors, queries)
    protocol.write_requests(tmp_path, engine.encode(server, queries, K, 200, None))
    rows = np.tile(np.arange(50), (2, 1))
    protocol.write_job(
        tmp_path, requests=tmp_path, transport=engine.transport(server), schedule=rows, prime=rows[:, :3], timeout_s=60
    )
    with Driver() as driver:
        done = driver.run(tmp_path, server.check_alive)
        assert done["cpu_s"] is None, "it is the library's"
        holders = driver.libraries()
        assert len(set(holders)) == 2 and not set(holders) & {os.getpid(), *server.group.pids()}
        assert driver.pids() == []  # what they use is the system's, not the client's
        if (name, vectors.metric) == (LIBRARIES["faiss"], "l2"):  # of the driver's clients, whatever the library
            driver.run(tmp_path, server.check_alive)
            assert not set(holders) & set(driver.libraries())  # the next job finds no index in memory
            holders = driver.libraries()
    assert not any(psutil.pid_exists(pid) for pid in holders)
    outcome = protocol.read_outcome(tmp_path)
    assert (outcome.samples["status"] == OK).all(), done["clients"]
    assert (outcome.samples["latency_ns"] > 0).all()
    hits = 0
    for sample, response in zip(outcome.samples, outcome.responses, strict=True):
        ids, told = engine.decode(response, vectors.metric)
        assert len(ids) == K and (np.diff(told) >= 0).all()
        np.testing.assert_allclose(told, far[sample["query"], ids], rtol=1e-4, atol=2e-6)
        hits += len(set(ids.tolist()) & set(np.argsort(far[sample["query"]])[:K].tolist()))
    assert hits / (2 * 50 * K) > 0.95  # threads build the graph: it differs from build to build
    assert ceiling.of_cell(tmp_path, [tmp_path], "here", Driver()) is None  # nothing to be bound by: no wire


def test_while_clients_search_the_process_that_built_is_not_counted(loaded: tuple[str, Server, SmallVectors]) -> None:
    _, server, _ = loaded
    system: Any = SimpleNamespace(server=server, path=None)
    clients = [1234, 1235]
    assert System.sampler(system, libraries=lambda: clients)._groups["server"]() == clients
    assert System.sampler(system)._groups["server"]() == server.group.pids()


def test_the_oracle_is_exact_under_a_filter_whatever_a_search_under_it_finds(
    loaded: tuple[str, Server, SmallVectors], tmp_path: Path
) -> None:
    name, server, vectors = loaded
    engine = engines.get(SYSTEMS[name]["engine"])
    queries = vectors.base[:20] + np.float32(0.01)
    wanted = {"field": "price", "from": 0.1, "below": 0.2}
    passes = np.flatnonzero((vectors.price >= np.float32(0.1)) & (vectors.price < np.float32(0.2)))
    half = np.flatnonzero(vectors.region < 128)
    with Driver() as driver:
        oracle = Oracle(engine, server, driver, tmp_path, vectors)
        engine.exact_filters(server, True)
        answers = oracle.ask(queries, K, 400, wanted)
        engine.exact_filters(server, False)
        found = oracle.ask(queries, K, 400, {"field": "region", "below": 128}).ids
    far = exact(vectors, queries)
    assert (answers.ids == passes[np.argsort(far[:, passes], axis=1, kind="stable")[:, :K]]).all()
    assert np.isin(found[found != -1], half).all()
    true = half[np.argsort(far[:, half], axis=1)[:, :K]]
    if SYSTEMS[name]["engine"] == "duckdb":  # of the nearest rows those that pass, no more
        nearest = np.argsort(far, axis=1)[:, :K]
        assert ((found != -1).sum(axis=1) == np.isin(nearest, half).sum(axis=1)).all()
    else:
        assert np.mean([np.isin(mine, best).mean() for mine, best in zip(found, true, strict=True)]) > 0.95


def test_an_answer_that_is_none_is_told_apart() -> None:
    with pytest.raises(DecodeError, match="not what a library's client leaves"):
        engines.get("faiss").decode(b"\xff\xff\xff\xff", "l2")


def test_a_library_that_dies_while_it_builds_is_named_with_its_log(tmp_path: Path) -> None:
    name = LIBRARIES["faiss"]
    with running(name, artifact(name, tmp_path / "artifact"), tmp_path / "data") as server:
        (pid,) = server.group.pids()
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 300
        while server.group.alive() and time.monotonic() < deadline:
            time.sleep(0.01)
        with pytest.raises(ServerError, match=r"faiss 1\.15\.1 \(pid \d+\) is not running"):
            engines.get("faiss").probe(server)
        assert server.stop().signal is None


def test_a_missing_index_is_an_error_of_the_run_not_a_hang(tmp_path: Path) -> None:
    name = LIBRARIES["faiss"]
    engine = engines.get("faiss")
    with running(name, artifact(name, tmp_path / "artifact"), tmp_path / "data") as server:
        with pytest.raises(ServerError, match="try_it: FileNotFoundError"):
            engine.open(server, INDEX)
        protocol.write_requests(tmp_path, [b"\0" * 32])
        one = np.zeros((1, 1), int)
        protocol.write_job(
            tmp_path, requests=tmp_path, transport=engine.transport(server), schedule=one, prime=one, timeout_s=9
        )
        with Driver() as driver, pytest.raises(ServerError, match="client 0 of the driver failed: FileNotFoundError"):
            driver.run(tmp_path)


INVERTED: dict[str, dict[str, Any]] = {
    "ivf_flat": {"type": "ivf_flat", "nlist": 16},
    "ivf_sq8": {"type": "ivf_sq8", "nlist": 16},
    "ivf_pq": {"type": "ivf_pq", "nlist": 16, "m": 20, "nbits": 4},
}


def test_inverted_files_of_faiss_are_built_searched_and_read_back_by_type(tmp_path: Path) -> None:
    """With all lists visited an inverted file of vectors is exact; codes are as good as their gates say."""
    name = LIBRARIES["faiss"]
    engine, offers = engines.get("faiss"), engines.offers_of("faiss")
    entry, small = SYSTEMS[name], small_vectors("cosine")
    folder = artifact(name, tmp_path / "artifact")
    queries = small.base[:40] + np.float32(0.01)
    columns = [metadata.category(2000, 1), metadata.price(2000, 1), small.region, np.zeros(40, np.uint8)]
    vectors = Vectors(small.base, queries / np.linalg.norm(queries, axis=1, keepdims=True), *columns, "cosine", {})
    true = np.argsort(exact(small, queries), axis=1)[:, :K]
    recall: dict[tuple[str, int], float] = {}
    judged: dict[str, str] = {}
    for kind, index in INVERTED.items():
        place = tmp_path / kind
        offers.check(entry, STANDALONE, index, {"k": K, "nprobe": 4})
        with running(name, folder, place / "data") as server, Driver() as driver:
            with Progress("load", len(vectors.base), "rows") as progress:
                engine.load(server, vectors, index, {"batch_rows": 300}, progress)
            probe, asked = engine.probe(server), engine.asked_settings(entry, index, "cosine", None)
            assert probe.rows == 2000 and {key: probe.settings[key] for key in asked} == asked
            assert asked["nlist"] == 16 and asked["index_type"] == kind
            for nprobe in (1, 16) if kind == "ivf_flat" else (16,):
                answers = Oracle(engine, server, driver, place / "work", vectors).ask(queries, K, nprobe)
                pairs = zip(answers.ids, true, strict=True)
                recall[kind, nprobe] = float(np.mean([len(set(a) & set(b)) / K for a, b in pairs]))
            if kind == "ivf_pq":
                lossy = over_codes(engine, index)
                checked = Oracle(engine, server, driver, place / "work", vectors, lossy).check()
                assert all(gate.ok for gate in checked), checked
                judged = {gate.gate: gate.detail for gate in checked}
    assert recall["ivf_flat", 16] == 1.0 and recall["ivf_sq8", 16] > 0.95 and 0.3 < recall["ivf_pq", 16] < 0.9
    assert judged["all rows that match"].startswith("1000 of 1000"), (
        "however coarse: it is valid, and its recall is told"
    )
    assert recall["ivf_flat", 1] < 0.9
    with pytest.raises(ConfigError, match=r"index\.type: scann is unsupported by faiss"):
        offers.check(entry, STANDALONE, {"type": "scann", "nlist": 8}, None)
