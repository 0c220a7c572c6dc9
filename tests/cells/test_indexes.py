"""A system's index is its own: built, searched and read back by its type; what a system lacks is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from anncestry import engines
from anncestry.cells.indexes import EFFORT, QUANTIZERS, asked_effort, check_fits, effort_of, is_lossy, least_effort
from anncestry.errors import ConfigError, Unsupported
from anncestry.measure import oracle
from anncestry.provenance import gates
from tests.builders.configs import expand
from tests.servers import INDEX, ROOT, STANDALONE, SYSTEMS, ask, exact, loaded, small_vectors
from tests.toy import Toy

REMOTE = {"runtime": "remote", "nodes": 1, "shards": 1, "replicas": 1, "endpoints": {"proxy": "MILVUS"}}
SCANN = {"type": "scann", "nlist": 64, "reorder_k": 100}


def check(engine: str, version: str, index: dict[str, Any], topology: dict[str, Any] = STANDALONE, **more: Any) -> None:
    workload = more.pop("workload", None)
    engines.offers_of(engine).check({"engine": engine, "version": version, **more}, topology, index, workload)


@pytest.mark.parametrize(
    ("engine", "version", "index", "said"),
    [
        ("milvus", "2.3.5", {"type": "diskann"}, "diskann is unsupported by the wheel of milvus 2.3.5: DISKANN is not"),
        (
            "milvus",
            "2.3.5",
            {"type": "gpu_cagra"},
            "gpu_cagra is unsupported: it needs a GPU, and no package",
        ),
        ("milvus", "2.2.16", SCANN, r"scann is unsupported by milvus 2\.2\.16; it came with 2\.3\.0"),
        ("milvus", "2.3.5", {**INDEX, "threshold": 9, "type": "dynamic"}, "dynamic is unsupported"),
        ("weaviate", "1.27.0", {"type": "ivf_flat", "nlist": 8}, "ivf_flat is unsupported by weaviate 1.27.0"),
        ("weaviate", "1.27.0", {**INDEX, "quantizer": "rq8"}, r"rq8 is unsupported by weaviate 1\.27\.0; it came with"),
        ("weaviate", "1.32.0", {**INDEX, "quantizer": "rq1"}, r"rq1 is unsupported by weaviate 1\.32\.0; it came with"),
        ("weaviate", "1.27.0", {"type": "flat", "quantizer": "pq"}, "pq of flat is unsupported by weaviate 1.27.0"),
    ],
)
def test_what_a_system_lacks_is_unsupported_by_name(
    engine: str, version: str, index: dict[str, Any], said: str
) -> None:
    with pytest.raises(Unsupported, match=said):
        check(engine, version, index)


@pytest.mark.parametrize(
    ("engine", "index", "said"),
    [
        ("milvus", {"type": "hnws"}, "unknown type 'hnws'"),
        ("milvus", {"type": "ivf_flat"}, r"index\.nlist for milvus"),
        ("milvus", {"type": "ivf_flat", "nlist": 0}, r"index\.nlist for milvus 2\.3\.5: 0 is not"),
        ("milvus", {"type": "flat", "M": 16}, "unknown key 'M'"),
        ("weaviate", {**INDEX, "quantizer": "zip"}, "unknown 'zip'"),
        ("weaviate", {**INDEX, "rescore_limit": 10}, "rescore_limit: is of a quantizer, and there is none"),
        ("weaviate", {**INDEX, "type": "dynamic", "threshold": 9}, "dynamic needs settings: {asyncIndexing: true}"),
    ],
)
def test_a_wrong_parameter_of_an_index_is_refused_by_name(engine: str, index: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refusal:
        check(engine, {"milvus": "2.3.5", "weaviate": "1.27.0"}[engine], index)
    assert not isinstance(refusal.value, Unsupported)


def test_diskann_is_for_a_server_that_somebody_else_runs() -> None:
    check("milvus", "2.3.5", {"type": "diskann"}, REMOTE, workload={"k": 10, "search_list": 100})
    with pytest.raises(ConfigError, match="search_list: 5 is less than k: 10"):
        check("milvus", "2.3.5", {"type": "diskann"}, REMOTE, workload={"k": 10, "search_list": 5})


def test_a_dynamic_index_of_a_server_that_somebody_else_runs_is_refused_as_nobody_sees_what_it_is() -> None:
    index = {**INDEX, "type": "dynamic", "threshold": 9}
    remote = {**REMOTE, "endpoints": {"http": "HTTP", "grpc": "GRPC"}}
    system = {"version": "1.27.0", "settings": {"asyncIndexing": True}}
    engines.offers_of("weaviate").check(system, STANDALONE, index, None)
    with pytest.raises(Unsupported, match="dynamic is unsupported of a weaviate that somebody else runs"):
        engines.offers_of("weaviate").check(system, remote, index, None)


def test_settings_of_a_graph_are_refused_of_a_flat_index() -> None:
    check("weaviate", "1.27.0", {"type": "flat"})
    with pytest.raises(ConfigError, match=r"settings\.flatSearchCutoff: is of an index with a graph"):
        check("weaviate", "1.27.0", {"type": "flat"}, settings={"flatSearchCutoff": 1})


def test_fewer_candidates_than_results_can_not_be_ranked_again() -> None:
    check("milvus", "2.3.5", SCANN, workload={"k": 100, "nprobe": 8})
    with pytest.raises(ConfigError, match=r"index\.reorder_k: 100 is less than k: 101"):
        check("milvus", "2.3.5", SCANN, workload={"k": 101, "nprobe": 8})


def built_by(system: dict[str, Any]) -> dict[str, Any]:
    """Its own index; without a type, what it changes of the experiment's."""
    return system["index"] if "type" in system["index"] else {**INDEX, **system["index"]}


def topology_of(system: dict[str, Any]) -> dict[str, Any]:
    if system["artifact"]["kind"] != "none":
        return STANDALONE
    endpoint = {"mysql": "mysql", "milvus": "proxy", "elasticsearch": "http", "qdrant": "grpc"}[system["engine"]]
    return {**STANDALONE, "runtime": "remote", "endpoints": {endpoint: "P"}, "credentials": "P_PASSWORD"}


KINDS: dict[str, dict[str, Any]] = {
    "hnsw": INDEX,
    **{f"hnsw, {name}": {**INDEX, "quantizer": name} for name in QUANTIZERS},
    "flat": {"type": "flat"},
    "flat, bq": {"type": "flat", "quantizer": "bq"},
    "ivf_flat": {"type": "ivf_flat", "nlist": 64},
    "ivf_sq8": {"type": "ivf_sq8", "nlist": 64},
    "ivf_pq": {"type": "ivf_pq", "nlist": 64, "m": 4},
    "scann": SCANN,
    "diskann": {"type": "diskann"},
    "dynamic": {**INDEX, "type": "dynamic", "threshold": 5000},
}
ASKED = [
    "milvus-2.2.16", "milvus-2.3.5", "weaviate-1.23.9", "weaviate-1.27.0", "weaviate-1.35.2", "pgvector-0.8.5",
    "seekdb-1.4.0", "mariadb-11.8.6", "polardb-8.0.2", "chroma-1.5.9", "redis-7.4.1", "vectorset-8.2.3",
    "opensearch-3.5.0", "elasticsearch-8.17.0", "qdrant-1.15.1",
    "faiss-1.15.1-library", "hnswlib-0.8.0-library", "usearch-2.26.6-library", "diskann-0.7.0-library",
    "qdrant-edge-0.9.0-graph-library", "lancedb-0.40.0-library", "duckdb-1.5.5-library",
]  # fmt: skip


def verdict(name: str, index: dict[str, Any]) -> str:
    """Whether a system has this index: asked of its engine, which must refuse by name what it lacks."""
    system = dict(SYSTEMS[name])
    if index["type"] == "dynamic":
        system["settings"] = {**system.get("settings", {}), "asyncIndexing": True}
    if index["type"] == "flat" and system["engine"] == "weaviate":
        system["settings"] = {}
    if (index["type"], system["engine"]) == ("diskann", "diskann"):
        index = {**index, "max_degree": 64, "build_list": 100, "m": 16}
    offers = engines.offers_of(system["engine"])
    try:
        offers.check(system, topology_of(system), index, None)
    except Unsupported as refusal:
        named = [index["type"], index.get("quantizer")]
        assert any(str(what) in str(refusal) for what in named) and "unsupported by" in str(refusal), refusal
        if system["engine"] != "milvus":
            return "–"
        try:
            offers.check(system, REMOTE, index, None)
        except Unsupported:
            return "–"
        return "remote"
    return "yes"


def test_the_table_of_the_docs_says_what_every_system_has_of_every_type() -> None:
    table = [f"| | {' | '.join(name.removesuffix('-library') for name in ASKED)} |", "|" + " --- |" * (len(ASKED) + 1)]
    table += [f"| {kind} | {' | '.join(verdict(name, index) for name in ASKED)} |" for kind, index in KINDS.items()]
    text = (ROOT / "docs" / "indexes.md").read_text()
    assert "\n".join(table) in text, "docs/indexes.md should say:\n" + "\n".join(table)
    assert {entry["engine"] for entry in SYSTEMS.values() if "engine" in entry} == {SYSTEMS[n]["engine"] for n in ASKED}


def test_every_system_of_the_config_with_an_index_is_possible_or_lacks_it_by_name() -> None:
    lacking = set()
    for name, entry in SYSTEMS.items():
        if "index" in entry:
            full = {**SYSTEMS.get(entry.get("of", ""), {}), **entry}
            try:
                engines.offers_of(full["engine"]).check(full, topology_of(full), built_by(full), None)
                assert engines.get(full["engine"]).fairness(full, built_by(full), topology_of(full))
            except Unsupported:
                lacking.add(name)
    experiment = yaml.safe_load((ROOT / "config" / "experiments" / "indexes.yaml").read_text())
    listed = [set(block["systems"]) for block in experiment["matrix"] if block.get("unsupported") == "listed"]
    assert listed == [lacking], "each of them is listed in the report of types of index"


# The search effort.


def test_each_type_of_index_takes_its_own_effort() -> None:
    defaults = {"ef_search": 200, "nprobe": 8, "search_list": 100}
    taken = {kind: asked_effort({"type": kind}, {"k": 10}, defaults, "w") for kind in EFFORT}
    assert taken["hnsw"] == taken["dynamic"] == {"ef_search": 200}
    assert taken["ivf_pq"] == taken["scann"] == {"nprobe": 8}
    assert taken["diskann"] == {"search_list": 100}
    assert taken["flat"] == {}
    both = {"k": 10, "ef_search": 64, "nprobe": 3}
    assert asked_effort({"type": "ivf_flat"}, both, defaults, "w") == {"nprobe": 3}
    assert [effort_of(effort) for effort in taken.values()][:3] == [200, 0, 8]
    assert (least_effort({"type": "hnsw"}, 10), least_effort({"type": "ivf_flat"}, 10)) == (10, 1)


@pytest.mark.parametrize(
    ("kind", "workload", "said"),
    [
        (
            "ivf_flat",
            {"ef_search": 64},
            r"w\.ef_search: unsupported by an index of type ivf_flat: its effort is nprobe",
        ),
        ("flat", {"ef_search": 64}, "of type flat: it has no search effort"),
        ("flat", {"target_recall": 0.9}, r"w\.target_recall: unsupported by an index of type flat"),
    ],
)
def test_an_effort_of_another_type_is_refused(kind: str, workload: dict[str, Any], said: str) -> None:
    with pytest.raises(Unsupported, match=said):
        asked_effort({"type": kind}, workload, {"ef_search": 200}, "w")


@pytest.mark.parametrize(
    ("index", "said"),
    [
        ({"type": "ivf_pq", "m": 7}, r"here: index\.m: 7 does not divide the 20 dimensions"),
        ({"type": "hnsw", "segments": 3}, r"index\.segments: 3 does not divide"),
    ],
)
def test_vectors_that_can_not_be_cut_into_the_parts_are_refused(index: dict[str, Any], said: str) -> None:
    check_fits({**index, "m": 10, "segments": 5}, 20, "here")
    with pytest.raises(ConfigError, match=said):
        check_fits(index, 20, "here")
    with pytest.raises(ConfigError, match="an even number of dimensions, not 25"):
        check_fits({"type": "scann"}, 25, "here")


# In the matrix.


def test_a_systems_index_is_part_of_its_load_and_leaves_the_others_as_they_were(tmp_path: Path) -> None:
    toy = Toy.make(tmp_path)
    before = {cell.system: cell.load for cell in expand(toy).cells}
    toy.files["systems"]["blue-1.0"]["index"] = {"type": "ivf_flat", "nlist": 32, "M": 4}
    toy.files["config"]["nprobe"] = 5
    matrix = expand(toy)
    cells = {cell.system: cell for cell in matrix.cells}
    assert cells["red-1.0"].load == before["red-1.0"]
    assert cells["blue-1.0"].load != before["blue-1.0"]
    assert matrix.specs[cells["blue-1.0"].load]["index"]["nlist"] == 32
    asked = matrix.specs[cells["blue-1.0"].query]["workload"]
    assert asked["nprobe"] == 5
    assert "ef_search" not in asked
    assert matrix.specs[cells["red-1.0"].query]["workload"]["ef_search"] == 50


def test_a_sweep_of_lists_visited_makes_a_workload_of_each(tmp_path: Path) -> None:
    toy = Toy.make(tmp_path)
    for system in toy.files["systems"].values():
        system["index"] = {"type": "ivf_flat", "nlist": 32, "M": 4}
    toy.files["workloads"]["k5"]["nprobe"] = [1, 4]
    toy.block["workloads"] = ["k5"]
    assert {cell.workload for cell in expand(toy).cells} == {"k5-nprobe1", "k5-nprobe4"}


def test_an_upgrade_keeps_the_index_of_what_it_opens(tmp_path: Path) -> None:
    toy = Toy.make(tmp_path)
    toy.files["systems"]["blue-2.0"] = {
        **toy.files["systems"]["blue-1.0"],
        "version": "2.0",
        "load": {"upgrade_from": "blue-1.0"},
        "index": {"type": "flat", "M": 4},
    }
    toy.block["systems"] = ["blue-2.0"]
    with pytest.raises(ConfigError, match=r"blue-2\.0\.index: differs from the index of blue-1\.0"):
        expand(toy)


# Requests and what is read back, without servers.


def test_milvus_is_asked_by_the_parameters_of_the_type() -> None:
    from anncestry.engines.milvus import search_params
    from anncestry.engines.milvus.wire import index_params

    assert search_params({"type": "hnsw"}, 64) == {"ef": 64}
    assert search_params({"type": "flat"}, 0) == {}
    assert search_params({"type": "ivf_sq8", "nlist": 64}, 8) == {"nprobe": 8}
    assert search_params(SCANN, 8) == {"nprobe": 8, "reorder_k": 100}
    assert search_params({"type": "diskann"}, 100) == {"search_list": 100}
    built = index_params({"type": "ivf_pq", "nlist": 64, "m": 10, "nbits": 8}, "cosine")
    assert (built["index_type"], built["metric_type"]) == ("IVF_PQ", "IP")
    assert json.loads(built["params"]) == {"nlist": 64, "m": 10, "nbits": 8}
    assert json.loads(index_params(INDEX, "l2")["params"]) == {"M": 16, "efConstruction": 200}


def test_a_quantizer_that_weaviate_ignored_fails_the_settings_gate() -> None:
    from anncestry.engines import weaviate as offers

    index = {**INDEX, "quantizer": "rq8"}
    assert offers.index_config({}, index, "l2")["rq"] == {"enabled": True, "bits": 8}
    told = {"maxConnections": 16, "efConstruction": 200, "ef": 64, "distance": "l2-squared"}
    said = {"vectorIndexType": "hnsw", "vectorIndexConfig": told}
    asked = offers.asked_index({}, index, 64)
    ignored = gates.settings(asked, offers.read_back(said, [{"compressed": False}]))
    assert not ignored.ok
    assert "quantizer is None, asked 'rq8'" in ignored.detail
    said["vectorIndexConfig"] = {**told, "rq": {"enabled": True, "bits": 8}}
    assert gates.settings(asked, offers.read_back(said, [{"compressed": True}])).ok
    untrained = gates.settings(asked, offers.read_back(said, [{"compressed": True}, {"compressed": False}]))
    assert "compressed is False, asked True" in untrained.detail
    said["vectorIndexConfig"] = {**told, "rq": {"enabled": True, "bits": 1}}
    assert "quantizer is 'rq1', asked 'rq8'" in gates.settings(asked, offers.read_back(said, [])).detail


def test_a_quantizer_that_learns_is_not_given_at_creation() -> None:
    from anncestry.engines import weaviate as offers

    index = {**INDEX, "quantizer": "pq", "segments": 5, "training_limit": 1000}
    assert "pq" not in offers.index_config({}, index, "l2")
    assert offers.quantizer_config(index) == {"pq": {"enabled": True, "segments": 5, "trainingLimit": 1000}}
    assert offers.quantizer_config(INDEX) == {}


def test_rows_indexed_in_the_background_are_asked_for_once_each() -> None:
    from anncestry.engines.weaviate.state import windows

    price = np.float32([5, 1, 1, 2, 9, 2, 2, 7])
    found = windows(price, 2)
    assert [rows for _, rows in found] == [2, 3, 1, 2]
    for column in (price, np.random.RandomState(1).rand(5000).astype(np.float32), np.ones(50, np.float32)):
        found = windows(column, 700)
        passed = [(column >= w["from"]) & (column < w.get("below", np.inf)) for w, _ in found]
        assert [int(rows.sum()) for rows in passed] == [rows for _, rows in found]
        assert (np.sum(passed, axis=0) == 1).all()


def test_what_a_dynamic_index_is_is_read_from_its_shards_and_no_mixture_is_measured(tmp_path: Path) -> None:
    from anncestry.engines.weaviate import state

    assert state.index_form(tmp_path) == state.FLAT
    (tmp_path / "main.hnsw.commitlog.d").mkdir()
    (tmp_path / "index.db").write_bytes(b"\0dynamic\0\0")
    assert state.index_form(tmp_path) == state.BECOMING
    (tmp_path / "index.db").write_bytes(b"\0dynamic\0upgraded\x01\0")
    assert state.index_form(tmp_path) == state.GRAPH

    def settled(rows: int, *forms: str) -> bool:
        return state.settled({("node1", f"s{n}"): form for n, form in enumerate(forms)}, rows, 100)[0]

    assert settled(90, state.FLAT) and settled(101, state.GRAPH) and settled(150, state.FLAT, state.FLAT)
    assert not settled(101, state.FLAT) and not settled(101, state.BECOMING) and not settled(1000)
    assert not settled(150, state.FLAT, state.GRAPH) and settled(150, state.GRAPH, state.GRAPH)


# Gates of an index that holds codes.


def test_an_index_of_codes_may_estimate_distances_but_not_in_another_metric() -> None:
    assert is_lossy({"type": "ivf_pq"}) and is_lossy({**INDEX, "quantizer": "sq"}) and not is_lossy(INDEX)
    assert gates.estimates(0.03, 1000).ok
    assert not gates.estimates(0.6, 1000).ok
    assert not gates.distances(0.03, 1000).ok
    assert not gates.oracle(0.97, 100, 0.02).ok


def test_the_oracle_of_codes_asks_for_an_order_not_for_a_good_one() -> None:
    def judged(**changed: int) -> bool:
        found = {"nearer": 100, "returned": 5000, "wanted": 5000, "queries": 100, **changed}
        return gates.oracle_of_codes(0.6, selectivity=0.02, **found).ok

    assert judged() and judged(nearer=95)
    assert not judged(nearer=94)
    assert not judged(returned=4999), "a row short, or one that does not pass the filter"
    assert not gates.complete(1000, 1000, 1, 20).ok and not gates.complete(999, 1000, 0, 20).ok
    assert gates.complete(994, 1000, 0, 20, scans=False).ok, "a system that never scans may leave some out"
    assert not gates.complete(994, 1000, 1, 20, scans=False).ok and not gates.complete(800, 1000, 0, 20, False).ok

    random = np.random.RandomState(1)
    distances = random.rand(400, 250)
    chance = np.mean([oracle.nearer_than_chance(row[:50], row[50:]) for row in distances])
    assert 0.01 < chance < 0.1, "of answers in no order one in twenty passes"
    distances[:, :50] -= 0.25  # as coarse as it gets
    assert all(oracle.nearer_than_chance(row[:50], row[50:]) for row in distances)
    assert not oracle.nearer_than_chance(1 + distances[0, :50], distances[0, 50:]), "the farthest"
    assert not oracle.nearer_than_chance(np.array([]), distances[0])
    assert oracle.nearer_than_chance(distances[0], np.array([])), "all there are"
    assert not oracle.nearer_than_chance(np.ones(50), np.ones(200)), "all alike"


# Real servers.


@pytest.mark.servers
@pytest.mark.parametrize(
    ("name", "index", "settings", "effort", "least"),
    [
        ("milvus-2.3.5", {"type": "ivf_pq", "nlist": 16, "m": 10}, {}, 16, 0.5),
        ("milvus-2.3.5", {"type": "scann", "nlist": 16, "reorder_k": 200}, {}, 16, 0.9),
        ("weaviate-1.27.0", {"type": "flat"}, {}, 0, 1.0),
        ("weaviate-1.27.0", {**INDEX, "quantizer": "sq", "rescore_limit": 50}, {}, 100, 0.9),
    ],
)
def test_an_index_is_built_read_back_and_searched(
    name: str, index: dict[str, Any], settings: dict[str, Any], effort: int, least: float, tmp_path: Path
) -> None:
    vectors = small_vectors("l2")
    engine = engines.get(SYSTEMS[name]["engine"])
    with loaded(name, index, vectors, tmp_path, settings) as server:
        engine.apply(server, effort)
        probe = engine.probe(server)
        asked = engine.asked_settings({**SYSTEMS[name], "settings": settings}, index, "l2", effort)
        assert gates.settings(asked, probe.settings).ok, gates.settings(asked, probe.settings).detail
        assert probe.index_complete, probe.index_detail
        queries = vectors.base[:50] + np.float32(0.01)
        truth = np.argsort(exact(vectors, queries), axis=1)[:, :10]
        found = ask(engine, server, vectors, queries, None)
        assert np.mean([len({*ids} & {*near}) / 10 for (ids, _), near in zip(found, truth, strict=True)]) >= least


@pytest.mark.servers
def test_a_dynamic_index_is_loaded_once_it_is_a_graph_that_holds_every_row(tmp_path: Path) -> None:
    """An empty queue says neither: what a worker has in hand is in no queue, and the graph comes afterwards."""
    from anncestry.engines.weaviate import serve, state

    index, vectors = {**INDEX, "type": "dynamic", "threshold": 1000}, small_vectors("l2", rows=2200)
    settings, engine = {"asyncIndexing": True, "flatSearchCutoff": 0}, engines.get("weaviate")
    with loaded("weaviate-1.27.0", index, vectors, tmp_path, settings) as server:
        probe = engine.probe(server)
        assert probe.index_complete and "on node1 is a graph, of 2200 rows, threshold 1000" in probe.index_detail
        assert probe.settings["flatSearchCutoff"] == 0, "it was raised meanwhile, and is as asked again"
        engine.exact_filters(server, True)
        with serve.channel(server) as connection:
            search = connection.unary_unary(engine.transport(server)["method"])
            for window, rows in state.windows(vectors.price):
                (request,) = engine.encode(server, vectors.base[:1], rows, 0, window)
                assert len(set(engine.decode(search(request, timeout=60), "l2")[0].tolist())) == rows


@pytest.mark.long
@pytest.mark.servers
def test_a_quantizer_that_a_version_ignores_in_silence_is_seen_by_the_gate(tmp_path: Path) -> None:
    index, vectors = {**INDEX, "quantizer": "rq8"}, small_vectors("l2", rows=1200)
    engine = engines.get("weaviate")
    with loaded("weaviate-1.27.0", index, vectors, tmp_path, {}) as server:
        gate = gates.settings(engine.asked_settings({}, index, "l2", None), engine.probe(server).settings)
    assert not gate.ok
    assert "quantizer is None, asked 'rq8'" in gate.detail


def test_the_experiment_of_indexes_names_systems_of_every_type() -> None:
    experiment = yaml.safe_load((ROOT / "config" / "experiments" / "indexes.yaml").read_text())
    named = [name for block in experiment["matrix"] if "unsupported" not in block for name in block["systems"]]
    types = {SYSTEMS[name].get("index", {"type": "hnsw"})["type"] for name in named}
    quantizers = {SYSTEMS[name].get("index", {}).get("quantizer") for name in named}
    assert types == set(EFFORT) - {"diskann"}
    assert quantizers >= {"pq", "sq", "bq", "rq8"}
