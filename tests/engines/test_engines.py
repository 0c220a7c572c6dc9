"""Every engine refuses what it can't do, speaks its protocol exactly, and measures what was loaded."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anncestry import engines
from anncestry.datasets.metadata import matches
from anncestry.drive import protocol
from anncestry.drive.client import OK
from anncestry.drive.driver import Driver
from anncestry.engines.base import Batch, DecodeError, Engine, LoadResult, Server
from anncestry.engines.milvus import serve as milvus_serve
from anncestry.engines.offers import filter_bounds
from anncestry.errors import ConfigError, ServerError, Unsupported, UserError
from anncestry.measure import requests as clients
from anncestry.measure.oracle import Oracle
from anncestry.measure.vectors import Filtering
from anncestry.progress import Progress
from anncestry.runtimes.native import free_ports
from tests import needs
from tests.servers import (
    INDEX,
    STANDALONE,
    SYSTEMS,
    SmallVectors,
    artifact,
    ask,
    exact,
    running,
    small_payload,
    small_vectors,
)
from tests.waiting import until

ENGINES = ("milvus", "weaviate")
VERSIONS = {"milvus": {"version": "2.3.5"}, "weaviate": {"version": "1.27.0"}}
LOADED = [
    name
    for name, entry in SYSTEMS.items()
    if entry.get("engine") in ENGINES and entry.get("artifact") != {"kind": "none"}  # listed, where it can't be run
]
"""Systems that are loaded; the others open what one of these has loaded. (Engines of other kinds have test files of
their own; 1.23.9 takes minutes to build, and is run by its experiment.)"""
K = 10


# Refusals, while a workflow is parsed.


def test_an_unknown_engine_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'valkey'; known: .*milvus, .*weaviate"):
        engines.offers_of("valkey")
    with pytest.raises(ConfigError, match=r"'valkey'; known: "):
        engines.get("valkey")
    with pytest.raises(ConfigError, match=r"no module 'nowhere\.engine'"):
        engines.offers_of("nowhere.engine")
    with pytest.raises(ConfigError, match=r"anncestry\.errors has no OFFERS"):
        engines.offers_of("anncestry.errors")
    with pytest.raises(ConfigError, match=r"anncestry\.errors has no ENGINE"):
        engines.get("anncestry.errors")


def test_an_engine_may_be_a_module_from_elsewhere() -> None:
    assert engines.get("anncestry.engines.milvus") is engines.get("milvus")
    assert engines.offers_of("anncestry.engines.milvus") is engines.offers_of("milvus")


def test_checking_imports_no_client() -> None:
    program = (
        "import sys; from anncestry import engines\n"
        f"for name in {ENGINES}: engines.offers_of(name).check("
        f"{VERSIONS}[name], {STANDALONE}, {INDEX}, {{'k': 10, 'ef_search': 100}})\n"
        "for name in engines.known(): engines.offers_of(name)\n"
        "clients = {'grpc', 'pymilvus', 'pymysql', 'psycopg', 'weaviate', 'faiss', 'hnswlib', 'diskannpy', "
        "'usearch', 'qdrant_edge', 'lancedb', 'duckdb'}\n"
        "assert not clients & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"index": {**INDEX, "type": "diskann"}}, "diskann"),
        ({"index": {**INDEX, "M": 1}}, r"index\.M"),
        ({"index": {**INDEX, "ef_construction": 0}}, r"index\.ef_construction"),
        ({"index": {**INDEX, "nlist": 8}}, "nlist"),
        ({"index": {"type": "hnsw"}}, r"index\.M"),
        ({"topology": {**STANDALONE, "nodes": 3}}, "nodes"),
        ({"topology": {**STANDALONE, "runtime": "podman"}}, "podman"),
        ({"workload": {"k": 100, "ef_search": 64}}, "ef_search: 64 is less than k: 100"),
        ({"workload": {"k": 0}}, "k for"),
        ({"workload": {"k": 10, "filter": {"field": "colour", "in": [1]}}}, "colour"),
        ({"workload": {"k": 10, "filter": {"field": "category", "in": []}}}, "list of categories"),
        ({"workload": {"k": 10, "filter": {"field": "category", "below": 3}}}, "below"),
        ({"workload": {"k": 10, "filter": {"field": "price"}}}, "filter on price: lacks 'below'"),
        ({"workload": {"k": 10, "filter": {"field": "price", "below": "x"}}}, "below must be a number, not 'x'"),
        ({"system": {"settings": {"flatSearchCutof": 1}}}, "flatSearchCutof"),
    ],
)
def test_what_an_engine_can_not_do_is_refused_by_name(engine: str, changes: dict[str, Any], complaint: str) -> None:
    asked: dict[str, Any] = {"system": {}, "topology": STANDALONE, "index": INDEX, "workload": None, **changes}
    asked["system"] = {**VERSIONS[engine], **asked["system"]}
    with pytest.raises(ConfigError, match=complaint):
        engines.offers_of(engine).check(**asked)


@pytest.mark.parametrize(
    ("engine", "version", "complaint"),
    [
        ("milvus", "2.2.4", r"milvus 2\.2\.4 is older than 2\.2\.16; supported: from 2\.2\.16 on, below 2\.4\.0"),
        ("milvus", "2.4.0", r"milvus 2\.4\.0 is not less than 2\.4\.0"),
        ("weaviate", "1.23.7", r"weaviate 1\.23\.7 is older than 1\.23\.9; supported: from 1\.23\.9 on, below 1\.36"),
        ("weaviate", "1.36.0", r"weaviate 1\.36\.0 is not less than 1\.36\.0"),
        ("weaviate", "1.35", r"version: '1\.35' is not three numbers"),
        ("milvus", "v2.3.5", r"version: 'v2\.3\.5' is not three numbers"),
    ],
)
def test_a_version_that_was_not_tried_is_refused_with_those_that_were(
    engine: str, version: str, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        engines.offers_of(engine).check({"engine": engine, "version": version}, STANDALONE, INDEX, None)


def test_a_setting_that_an_early_milvus_can_not_say_is_refused() -> None:
    milvus, settings = engines.offers_of("milvus"), {"common.gracefulTime": 1}
    milvus.check({"version": "2.3.5", "settings": settings}, STANDALONE, INDEX, None)
    with pytest.raises(ConfigError, match=r"milvus 2\.2\.16 can't say what common\.gracefulTime is in effect"):
        milvus.check({"version": "2.2.16", "settings": settings}, STANDALONE, INDEX, None)


@pytest.mark.parametrize(
    ("new", "old", "complaint"),
    [
        ("weaviate-1.27.0", "weaviate-1.29.0", r"1\.27\.0 is no upgrade of 1\.29\.0"),
        ("milvus-2.2.16", "milvus-2.3.5", r"2\.2\.16 is no upgrade of 2\.3\.5"),
        ("milvus-2.3.5", "milvus-2.3.5", r"2\.3\.5 is no upgrade of 2\.3\.5"),
        ("weaviate-1.35.2", "milvus-2.3.5", "weaviate can't open the data of milvus"),
    ],
)
def test_data_that_a_version_can_not_open_is_refused(new: str, old: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        engines.offers_of(SYSTEMS[new]["engine"]).check_upgrade(SYSTEMS[new], SYSTEMS[old])


def test_weaviate_keeps_the_settings_of_a_collection_and_so_others_are_refused() -> None:
    older, newer = SYSTEMS["weaviate-1.27.0"], SYSTEMS["weaviate-1.35.2"]
    engines.offers_of("weaviate").check_upgrade(newer, older)
    changed = {**newer, "settings": {**newer["settings"], "filterStrategy": "acorn"}}
    with pytest.raises(ConfigError, match=r"settings\.filterStrategy: 'acorn', but 'sweeping' of the older system"):
        engines.offers_of("weaviate").check_upgrade(changed, older)


@pytest.mark.parametrize(
    ("engine", "settings", "complaint"),
    [
        ("weaviate", {"filterStrategy": "magic"}, "magic"),
        ("milvus", {"proxy.port": 1}, r"proxy\.port is set by anncestry"),
        ("milvus", {"etcd.rootPath": "x"}, r"etcd\.rootPath is set by anncestry"),
        ("milvus", {"dataCoord.segment": {"maxSize": 1}}, "one value"),
    ],
)
def test_settings_that_can_not_be_are_refused(engine: str, settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        engines.offers_of(engine).check({**VERSIONS[engine], "settings": settings}, STANDALONE, INDEX, None)


@pytest.mark.parametrize("name", LOADED)
def test_the_systems_of_the_config_are_possible(name: str) -> None:
    system = SYSTEMS[name]
    workload = {"k": 100, "ef_search": 200, "filter": {"field": "price", "below": 2}}
    engines.offers_of(system["engine"]).check(system, STANDALONE, INDEX, workload)
    assert engines.get(system["engine"]).fairness(system, INDEX, STANDALONE)


def test_bounds_of_a_filter_are_read() -> None:
    assert filter_bounds({"field": "category", "in": [3, 1]}).values == (3, 1)
    bounds = filter_bounds({"field": "price", "from": 2, "below": 3.5})
    assert (bounds.low, bounds.high) == (2, 3.5)


def test_failed_rows_are_counted_and_the_first_reason_kept() -> None:
    result = LoadResult()
    result.acknowledge(500, 0, None)
    result.acknowledge(500, 3, "vector lengths don't match")
    result.acknowledge(20, 20, "later")
    with result.phase("insert"):
        pass
    assert (result.rows_sent, result.rows_acknowledged, result.insert_errors) == (1020, 997, 23)
    assert (result.batches, result.first_error) == (3, "vector lengths don't match")
    assert result.seconds("insert") is not None and result.seconds("flush") is None
    assert result.phases[0].start_s <= result.phases[0].end_s <= time.monotonic()


# Bytes, without servers.


def test_milvus_requests_carry_the_vector_and_the_search() -> None:
    from pymilvus.grpc_gen import common_pb2, milvus_pb2

    from anncestry.engines.milvus.wire import expression, search_request

    query = np.arange(5, dtype=np.float32)
    expr = expression({"field": "price", "from": 0.2, "below": 0.7})
    sent = milvus_pb2.SearchRequest.FromString(
        search_request(query[None], 7, {"ef": 42}, "IP", expr).SerializeToString()
    )
    group = common_pb2.PlaceholderGroup.FromString(sent.placeholder_group)
    assert np.frombuffer(group.placeholders[0].values[0], "<f4").tolist() == query.tolist()
    params = {pair.key: pair.value for pair in sent.search_params}
    assert (params["topk"], params["params"], params["metric_type"]) == ("7", '{"ef": 42}', "IP")
    assert list(sent.output_fields) == []
    assert sent.dsl == f"price >= {float(np.float32(0.2))!r} && price < {float(np.float32(0.7))!r}"
    assert expression({"field": "category", "in": [1, 4]}) == "category in [1, 4]"
    assert expression(None) == ""


def test_milvus_replies_become_canonical_distances() -> None:
    from pymilvus.grpc_gen import milvus_pb2, schema_pb2

    ids = schema_pb2.IDs(int_id=schema_pb2.LongArray(data=[5, 2**40]))
    results = schema_pb2.SearchResultData(ids=ids, scores=[0.75, 0.5], topks=[2])
    reply = milvus_pb2.SearchResults(results=results).SerializeToString()
    decode = engines.get("milvus").decode
    found, distances = decode(reply, "cosine")
    assert (found.dtype, found.tolist(), distances.tolist()) == (np.int64, [5, 2**40], [0.25, 0.5])
    assert decode(reply, "l2")[1].tolist() == [0.75, 0.5]


def test_an_error_inside_a_milvus_reply_is_no_answer() -> None:
    from pymilvus.grpc_gen import common_pb2, milvus_pb2

    decode = engines.get("milvus").decode
    for status in (
        common_pb2.Status(code=65535, reason="not loaded"),
        common_pb2.Status(error_code=1, reason="not loaded"),
    ):
        with pytest.raises(DecodeError, match="not loaded"):
            decode(milvus_pb2.SearchResults(status=status).SerializeToString(), "l2")
    with pytest.raises(DecodeError, match="not a Milvus search reply"):
        decode(b"\xff\xff\xff", "l2")


def test_a_milvus_insertion_holds_the_rows_exactly() -> None:
    from anncestry.engines.milvus.wire import insert_request

    vectors = small_vectors("l2", rows=30, dimensions=3)
    request = insert_request(Batch(100, vectors.base, vectors.category, vectors.price, vectors.region))
    fields = {field.field_name: field for field in request.fields_data}
    assert list(fields["id"].scalars.long_data.data) == list(range(100, 130))
    assert list(fields["category"].scalars.long_data.data) == vectors.category.tolist()
    assert np.array(fields["price"].scalars.float_data.data, np.float32).tolist() == vectors.price.tolist()
    assert list(fields["region"].scalars.long_data.data) == vectors.region.tolist()
    sent = np.array(fields["vector"].vectors.float_vector.data, np.float32).reshape(30, 3)
    assert (sent == vectors.base).all()
    assert (request.num_rows, fields["vector"].vectors.dim) == (30, 3)


def test_weaviate_requests_carry_the_vector_and_the_filter() -> None:
    from weaviate.proto.v1 import base_pb2, search_get_pb2

    from anncestry.engines.weaviate.wire import filters, search_request

    query = np.arange(5, dtype=np.float32)
    where = filters({"field": "price", "from": 0.2, "below": 0.7})
    sent = search_get_pb2.SearchRequest.FromString(search_request(query, 7, where).SerializeToString())
    assert np.frombuffer(sent.near_vector.vector_bytes, "<f4").tolist() == query.tolist()
    assert sent.limit == 7
    assert (sent.metadata.uuid, sent.metadata.distance, sent.metadata.vector) == (True, True, False)
    assert [term.value_number for term in sent.filters.filters] == [float(np.float32(0.2)), float(np.float32(0.7))]
    one = filters({"field": "category", "in": [1, 4]})
    assert one.operator == base_pb2.Filters.OPERATOR_CONTAINS_ANY
    assert list(one.value_int_array.values) == [1, 4]


def test_weaviate_replies_become_canonical_distances() -> None:
    from weaviate.proto.v1 import search_get_pb2

    from anncestry.engines.weaviate.wire import uuid_of

    def reply(row_id: str) -> bytes:
        metadata = search_get_pb2.MetadataResult(id=row_id, distance=-0.75, distance_present=True)
        return bytes(
            search_get_pb2.SearchReply(results=[search_get_pb2.SearchResult(metadata=metadata)]).SerializeToString()
        )

    decode = engines.get("weaviate").decode
    found, distances = decode(reply(uuid_of(2**40)), "cosine")
    assert (found.dtype, found.tolist(), distances.tolist()) == (np.int64, [2**40], [0.25])
    assert decode(reply(uuid_of(0)), "l2")[0].tolist() == [0]
    assert decode(b"", "l2")[0].shape == (0,)
    with pytest.raises(DecodeError, match="not loaded"):
        decode(reply("00000000-0000-0000-0000-000000000001"), "l2")
    with pytest.raises(DecodeError, match="not a Weaviate search reply"):
        decode(b"\xff\xff\xff", "l2")


def test_a_weaviate_insertion_holds_the_rows_exactly() -> None:
    from anncestry.engines.weaviate.wire import batch_request, uuid_of

    vectors = small_vectors("l2", rows=30, dimensions=3)
    request = batch_request(Batch(100, vectors.base, vectors.category, vectors.price, vectors.region))
    assert [item.uuid for item in request.objects] == [uuid_of(row) for row in range(100, 130)]
    sent = np.array([np.frombuffer(item.vector_bytes, "<f4") for item in request.objects])
    assert (sent == vectors.base).all()
    properties = [dict(item.properties.non_ref_properties) for item in request.objects]
    assert [p["category"] for p in properties] == vectors.category.tolist()
    assert [p["price"] for p in properties] == vectors.price.tolist()
    assert [p["region"] for p in properties] == vectors.region.tolist()


def test_a_setting_that_milvus_does_not_have_is_refused_not_ignored() -> None:
    from anncestry.engines.milvus.program import merge, read_config

    config = read_config("a:\n  b: {{ b(int): 3 }}\n  path: {{ there }}\n")
    assert config == {"a": {"b": 3, "path": None}}
    merge(config, {"a.b": 4})
    assert config["a"]["b"] == 4
    with pytest.raises(ConfigError, match=r"no a\.bb"):
        merge(config, {"a.bb": 4})


@pytest.mark.parametrize("engine", ENGINES)
def test_the_parts_of_a_data_folder_are_all_of_it(engine: str, tmp_path: Path) -> None:
    for name in ("data/index_files/1/f", "data/bench/s/lsm/objects/f", "logs/server.log", "data/else/f", "odd"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    parts = engines.get(engine).data_components(tmp_path)
    owners = {
        file: [part.name for part in parts if any(file.is_relative_to(path) for path in part.paths)]
        for file in tmp_path.rglob("*")
        if file.is_file()
    }
    assert all(len(names) == 1 for names in owners.values()), owners
    assert owners[tmp_path / "odd"] == ["other"]
    assert any(part.net and part.paths for part in parts)


@pytest.fixture
def shared_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Milvus' two, elsewhere, for a user who can't have them for himself."""
    folders = tmp_path / "run", tmp_path / "tmp"
    monkeypatch.setattr(milvus_serve, "_RUNTIME_DIRS", folders)
    monkeypatch.setattr(milvus_serve.namespaces, "refused", lambda *_: "Operation not permitted")
    return folders


def test_milvus_says_which_folder_it_can_not_write_to(shared_folders, monkeypatch: pytest.MonkeyPatch) -> None:
    assert milvus_serve.runtime_folders() == []
    monkeypatch.setattr(milvus_serve.os, "access", lambda *_: False)
    with pytest.raises(UserError, match=rf"this user can write to neither: have {shared_folders[1]} removed"):
        milvus_serve.runtime_folders()


@pytest.mark.parametrize("way", ["open to all", "a link", pytest.param("another user's", marks=pytest.mark.root)])
def test_milvus_refuses_folders_in_which_another_user_could_lead_it_astray(shared_folders, way: str) -> None:
    """Finding 7: a /tmp/milvus of another user, open to all, with a link for its pid file, was used."""
    folder = shared_folders[1]
    if way == "a link":
        folder.symlink_to("/etc")
    else:
        folder.mkdir(mode=0o700)
        folder.chmod(0o777 if way == "open to all" else 0o700)
        os.chown(folder, *((-1, -1) if way == "open to all" else (12345, 12345)))
    with pytest.raises(UserError, match=rf"{folder}: milvus writes there, and so can another user: have it removed"):
        milvus_serve.runtime_folders()


def test_milvus_leaves_nothing_outside_of_its_folder_and_takes_away_nothing_of_others(shared_folders) -> None:
    """Finding 7: the pid file of whichever Milvus was unlinked, another user's running one's, too."""
    mine, shared = shared_folders
    for folder in shared_folders:
        folder.mkdir()
        (folder / "server_id_77").touch()
    for name in ("standalone.pid", "embedded.pid", "querynode-1234.pid"):
        (mine / name).write_text("77\n")
        (shared / name).write_text("78")
    (shared / "server_id_78").touch()
    milvus_serve.tidy_runtime_dirs(77)
    milvus_serve.remove_runtime_dirs()
    assert not mine.exists()
    left = ["embedded.pid", "querynode-1234.pid", "server_id_78", "standalone.pid"]
    assert sorted(path.name for path in shared.iterdir()) == left


# Real servers.


NAMES = [name for name in LOADED if name != "weaviate-1.23.9"]
BY_COSINE = {"milvus-2.3.5", "weaviate-1.27.0"}
"""Who is also loaded for cosine by `make test`; the other versions by `make test-long`."""
THEIRS = Path("/tmp/milvus")
"""Where Milvus, of whatever user, keeps its pid files."""
PLANTED = {"standalone.pid", "embedded.pid"}


@pytest.fixture(scope="module", params=NAMES)
def system(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A system and the folder with its artifact."""
    name: str = request.param
    return name, artifact(name, tmp_path_factory.mktemp("artifact"))


@contextmanager
def folder_of_another_user(precious: Path) -> Iterator[None]:
    """Milvus' fixed folder with links to what is precious, as another user may have left it; where we may plant it."""
    if needs.rights():
        yield
        return
    precious.write_text("precious")
    THEIRS.mkdir(exist_ok=True)
    try:
        for pid_file in PLANTED:
            (THEIRS / pid_file).symlink_to(precious)
        os.chown(THEIRS, 12345, 12345)
        yield
    finally:
        shutil.rmtree(THEIRS)


@pytest.fixture(scope="module")
def loaded(
    request: pytest.FixtureRequest, system: tuple[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, LoadResult, SmallVectors, Path]]:
    """A running server that was loaded, how that went, with what, and its data folder."""
    name, artifact_dir = system
    data_dir = tmp_path_factory.mktemp("data")
    vectors = replace(small_vectors(request.param), payload=small_payload())
    engine = engines.get(SYSTEMS[name]["engine"])
    is_milvus = SYSTEMS[name]["engine"] == "milvus"
    planted = folder_of_another_user(data_dir.with_name(f"{data_dir.name}-precious")) if is_milvus else nullcontext()
    with planted, running(name, artifact_dir, data_dir) as server:
        with Progress("load", len(vectors.base), "rows") as progress:
            result = engine.load(server, vectors, INDEX, {"batch_rows": 300}, progress)
        engine.apply(server, 200)
        yield server, result, vectors, data_dir


def loaded_as(*pairs: tuple[str, str]) -> pytest.MarkDecorator:
    """Each of these systems is loaded once for its metric."""
    marked = [
        pytest.param(name, metric, marks=[] if metric == "l2" or name in BY_COSINE else pytest.mark.long)
        for name, metric in pairs
    ]
    return pytest.mark.parametrize(("system", "loaded"), marked, indirect=True)


by_either_metric = loaded_as(*((name, metric) for name in NAMES for metric in ("l2", "cosine")))


def engine_of(system: tuple[str, Path]) -> Engine:
    return engines.get(SYSTEMS[system[0]]["engine"])


def check(system: tuple[str, Path], workload: dict[str, Any]) -> None:
    described = SYSTEMS[system[0]]
    engines.offers_of(described["engine"]).check(described, STANDALONE, INDEX, workload)


@pytest.mark.servers
@by_either_metric
@pytest.mark.parametrize(
    "filter",
    [
        None,
        {"field": "category", "in": [1, 4, 7]},
        {"field": "price", "below": 347.12},
        {"field": "price", "from": 100.5, "below": 347.12},
        {"field": "id", "from": 1234},
    ],
)
def test_the_server_counts_what_passes_a_filter_as_we_do(
    system: tuple[str, Path], loaded: tuple[Server, LoadResult, SmallVectors, Path], filter: dict[str, Any] | None
) -> None:
    server, _, vectors, _ = loaded
    assert engine_of(system).count(server, filter) == matches(filter, vectors.category, vectors.price).sum()


@pytest.mark.servers
@by_either_metric
def test_conditions_of_queries_are_counted_and_answered_as_we_read_them(
    system: tuple[str, Path], loaded: tuple[Server, LoadResult, SmallVectors, Path]
) -> None:
    server, _, vectors, _ = loaded
    queries = small_vectors(vectors.metric, rows=8).base[::-1]
    distances = exact(vectors, queries)
    found = wanted = 0
    for filter in vectors.payload.filters:
        assert filter is not None
        passes = vectors.payload.passes(filter)
        assert engine_of(system).count(server, filter) == passes.sum(), filter
        for row, (ids, _) in enumerate(ask(engine_of(system), server, vectors, queries, dict(filter))):
            assert passes[ids].all(), filter
            nearest = np.flatnonzero(passes)[np.argsort(distances[row, passes])[:K]]
            found, wanted = found + len(set(ids.tolist()) & set(nearest.tolist())), wanted + len(nearest)
    assert found / wanted > 0.95  # filters cut links of the graph


@pytest.mark.servers
@by_either_metric
def test_a_load_acknowledges_every_row(
    system: tuple[str, Path], loaded: tuple[Server, LoadResult, SmallVectors, Path]
) -> None:
    _, result, vectors, _ = loaded
    rows = len(vectors.base)
    assert (result.rows_sent, result.rows_acknowledged, result.insert_errors) == (rows, rows, 0)
    assert result.batches == 7
    for before, after in zip(result.phases, result.phases[1:], strict=False):
        assert before.end_s <= after.start_s
    assert result.seconds("insert") and result.seconds("index") is not None and result.seconds("ready") is not None
    assert result.encode_s
    if system[0].startswith("milvus"):  # which stores the index before it loads it for searching
        assert result.durable_at_s is not None
        assert result.phases[-2].end_s <= result.durable_at_s <= result.phases[-1].start_s
    else:
        assert (result.durable_at_s, result.durability[:7]) == (None, "no call")


@pytest.mark.servers
@by_either_metric
def test_the_server_says_what_was_asked_of_it(
    system: tuple[str, Path], loaded: tuple[Server, LoadResult, SmallVectors, Path]
) -> None:
    server, _, vectors, _ = loaded
    engine, entry = engine_of(system), SYSTEMS[system[0]]
    probe = engine.probe(server)
    assert (probe.version, probe.rows) == (entry["version"], len(vectors.base))
    assert probe.index_complete, probe.index_detail
    asked = engine.asked_settings(entry, INDEX, vectors.metric, 200)
    assert {name: probe.settings.get(name) for name in asked} == asked
    assert (probe.nodes, probe.shards, probe.replicas) == (1, 1, 1)


@pytest.mark.servers
@by_either_metric
@pytest.mark.parametrize(
    "filter",
    [
        None,
        {"field": "category", "in": [1, 4, 7]},
        {"field": "price", "below": 0.3},
        {"field": "price", "from": 0.2, "below": 0.5},
    ],
)
def test_searches_find_the_nearest_rows_that_match(
    system: tuple[str, Path], loaded: tuple[Server, LoadResult, SmallVectors, Path], filter: dict[str, Any] | None
) -> None:
    server, _, vectors, _ = loaded
    queries = small_vectors(vectors.metric, rows=50).base[::-1]
    matches = np.ones(len(vectors.base), bool)
    if filter is not None and filter["field"] == "category":
        matches = np.isin(vectors.category, filter["in"])
    elif filter is not None:
        matches = (vectors.price >= filter.get("from", 0)) & (vectors.price < filter["below"])
    distances = exact(vectors, queries)
    found = 0
    answers = ask(engine_of(system), server, vectors, queries, filter)
    for row, (ids, told) in enumerate(answers):
        assert len(ids) == K and matches[ids].all()
        assert (np.diff(told) >= 0).all()
        np.testing.assert_allclose(told, distances[row, ids], rtol=1e-4, atol=2e-6)
        nearest = np.argsort(np.where(matches, distances[row], np.inf))[:K]
        found += len(set(ids.tolist()) & set(nearest.tolist()))
    assert found / (K * len(queries)) > 0.95  # threads build the graph: it differs from build to build


@pytest.mark.servers
@by_either_metric
def test_every_client_library_finds_what_the_bytes_find(
    system: tuple[str, Path], loaded: tuple[Server, LoadResult, SmallVectors, Path], tmp_path: Path
) -> None:
    server, _, vectors, _ = loaded
    engine = engine_of(system)
    libraries = engines.offers_of(SYSTEMS[system[0]]["engine"]).libraries
    if system[0] == "milvus-2.1.0":
        for client in libraries:
            with pytest.raises(Unsupported, match=rf"client: {client} is unsupported by milvus 2\.1\.0"):
                check(system, {"k": K, "client": client})
        return
    queries = vectors.base[:20] + np.float32(0.01)
    filters = (None, {"field": "category", "in": [1, 4, 7]}, {"field": "price", "below": 347.12},
               {"field": "id", "from": 990})  # fmt: skip
    with Driver() as driver:
        for number, filter in enumerate(filters):
            filtering = Filtering.of(filter, vectors, np.zeros(len(queries), np.uint8))  # type: ignore[arg-type]
            found = {}
            for client in ("bytes", *libraries):
                work = {"k": K, "client": client}
                try:
                    check(system, {**work, "filter": filter})
                except Unsupported as refusal:
                    assert client == "vectordbbench" and "without a filter" in str(refusal)
                    continue
                folder = tmp_path / f"{client}{number}"
                protocol.write_requests(folder, clients.requests(engine, server, queries, work, 200, filtering))
                protocol.write_job(
                    folder, requests=folder, transport=clients.transport(engine, server, work, 200, filtering),
                    timeout_s=60.0, schedule=np.arange(len(queries))[None], prime=np.zeros((1, 1), int),
                )  # fmt: skip
                driver.run(folder)
                outcome = protocol.read_outcome(folder)
                assert (outcome.samples["status"] == OK).all(), outcome.facts["clients"][0]["errors"]
                found[client] = [clients.decoder(engine, work)(reply, vectors.metric) for reply in outcome.responses]
                kind = {"bytes": "native", "sdk-go": "go"}.get(client, "python")
                assert outcome.facts["driver"]["kind"] == kind
                assert ("library" in outcome.facts) == (client in ("sdk-go", "vectordbbench"))
            # An approximate search with a filter may leave out a row at times, whoever asks.
            for client in found.keys() - {"bytes"}:
                shared = 0
                for (ids, distances), (their_ids, their_distances) in zip(found["bytes"], found[client], strict=True):
                    assert len(ids) == len(their_ids) == K, (client, filter)
                    _, ours, theirs = np.intersect1d(ids, their_ids, return_indices=True)
                    assert their_distances[theirs] == pytest.approx(distances[ours], abs=1e-5)
                    shared += len(ours)
                assert shared >= 0.95 * K * len(queries), (client, filter)


@pytest.mark.servers
@by_either_metric
@pytest.mark.parametrize("filter", [None, {"field": "category", "in": [1, 4, 7]}])
def test_each_vector_of_a_request_gets_what_it_gets_alone_where_a_system_takes_several(
    system: tuple[str, Path], loaded: tuple[Server, LoadResult, SmallVectors, Path], filter: dict[str, Any] | None,
    tmp_path: Path,
) -> None:  # fmt: skip
    server, _, vectors, _ = loaded
    engine, work = engine_of(system), {"k": K, "nq": 6}
    if SYSTEMS[system[0]]["engine"] != "milvus":
        with pytest.raises(Unsupported, match="nq: 6 vectors a request are unsupported by engine"):
            check(system, work)
        return
    queries = vectors.base[:20] + np.float32(0.01)
    members = clients.cut(len(queries), 6)
    filtering = Filtering.of(filter, vectors, np.zeros(len(queries), np.uint8))  # type: ignore[arg-type]
    requests = clients.requests(engine, server, queries, work, 200, filtering, members)
    with Driver() as driver:
        together = Oracle(engine, server, driver, tmp_path, vectors).send(requests, K, nq=6)
        alone = Oracle(engine, server, driver, tmp_path / "alone", vectors).ask(queries, K, 200, filter)
    assert (together.status == OK).all() and (together.size == K).all(), together.errors
    assert together.ids.shape == (24, K)
    far = exact(vectors, queries)
    shared = 0
    for row, query in enumerate(members.reshape(-1)):
        np.testing.assert_allclose(together.distances[row], far[query, together.ids[row]], rtol=1e-4, atol=2e-6)
        shared += len(set(together.ids[row]) & set(alone.ids[query]))
    assert shared >= 0.95 * K * members.size


@pytest.mark.servers
@loaded_as(("weaviate-1.27.0", "l2"))
def test_vectors_of_another_length_are_refused_and_counted(
    loaded: tuple[Server, LoadResult, SmallVectors, Path],
) -> None:
    """Weaviate refuses single rows; the graph gets its length from the first. (Milvus' schema holds the length.)"""
    from anncestry.engines.weaviate.serve import channel
    from anncestry.engines.weaviate.wire import InsertReply, batch_request

    server, *_ = loaded
    longer = small_vectors("l2", rows=5, dimensions=21)
    request = batch_request(Batch(5000, longer.base, longer.category, longer.price, longer.region))
    with channel(server) as connection:
        insert = connection.unary_unary("/weaviate.v1.Weaviate/BatchObjects")
        reply = InsertReply.FromString(insert(request.SerializeToString(), timeout=60))
    assert len(reply.errors) == 5


@pytest.mark.servers
@pytest.mark.root
@loaded_as(*((name, "l2") for name in NAMES if SYSTEMS[name]["engine"] == "milvus"))
def test_two_milvus_of_two_users_do_not_meet(loaded: tuple[Server, LoadResult, SmallVectors, Path]) -> None:
    """Finding 7: what another user had put into Milvus' fixed folder kept ours from starting, or was overwritten."""
    server, *_ = loaded
    ours = {f"server_id_{pid}" for pid in server.group.pids()}
    assert ours and server.group.alive()
    server.stop()
    assert [(THEIRS / name).read_text() for name in PLANTED] == ["precious"] * len(PLANTED)
    # A Milvus of another test beside this one may have put its own there.
    assert {path.name for path in THEIRS.iterdir()} & (PLANTED | ours) == PLANTED
    assert not ours & {path.name for path in Path("/run/milvus").glob("*")}


@pytest.mark.servers
@loaded_as(*((name, "l2") for name in NAMES))
def test_a_stored_folder_is_searchable_again_on_other_ports_and_a_killed_server_noticed_with_the_end_of_its_log(
    system: tuple[str, Path], loaded: tuple[Server, LoadResult, SmallVectors, Path], tmp_path: Path
) -> None:
    """The last that uses what was loaded: its server is stopped."""
    name, artifact_dir = system
    engine = engine_of(system)
    first, _, vectors, data_dir = loaded
    first.stop()
    assert not first.group.alive()
    subprocess.run(["cp", "-a", data_dir, tmp_path / "data"], check=True)  # what is killed here stays apart
    with running(name, artifact_dir, tmp_path / "data", first_port=free_ports(16)[0]) as server:
        engine.open(server, INDEX)
        engine.apply(server, 200)
        assert server.endpoint != first.endpoint
        probe = engine.probe(server)
        assert probe.rows == len(vectors.base) and probe.index_complete, probe.index_detail
        answers = ask(engine, server, vectors, vectors.base[-200:], None)
        assert np.mean([ids[0] == 1800 + row for row, (ids, _) in enumerate(answers)]) > 0.95
        server.check_alive()
        (pid,) = server.group.pids()
        os.kill(pid, signal.SIGKILL)
        until(lambda: not server.group.alive(), "the server to be gone")
        with pytest.raises(ServerError, match="not running any more") as caught:
            server.check_alive()
        assert caught.value.log_tail
        assert server.stop().signal is None


@pytest.mark.servers
def test_a_port_in_use_is_named_before_anything_starts(system: tuple[str, Path], tmp_path: Path) -> None:
    import socket

    name, artifact_dir = system
    first = free_ports(16)[0]
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", first + 2))
        listener.listen()
        with (
            pytest.raises(UserError, match=f"port {first + 2} is in use"),
            running(name, artifact_dir, tmp_path, first),
        ):
            pass


@pytest.mark.servers
def test_a_server_that_can_not_start_shows_the_end_of_its_log(system: tuple[str, Path], tmp_path: Path) -> None:
    name, artifact_dir = system
    broken = tmp_path / "artifact"
    for file in artifact_dir.rglob("*"):
        if file.is_file():
            target = broken / file.relative_to(artifact_dir)
            target.parent.mkdir(parents=True, exist_ok=True)
            if file.name in ("milvus", "weaviate-server", "embd-milvus.so"):
                target.write_text("#!/bin/sh\necho no memory left\nexit 1\n")
                target.chmod(0o755)
            else:
                target.symlink_to(file)
    said = "invalid ELF header|file too short" if name == "milvus-2.1.0" else "no memory left"
    with pytest.raises(ServerError, match=said), running(name, broken, tmp_path / "data"):
        pass


def test_fewer_rows_than_milvus_indexes_are_refused() -> None:

    from anncestry.engines.milvus.serve import MilvusServer

    few = replace(small_vectors("l2"), base=small_vectors("l2").base[:1000])
    server = MilvusServer.__new__(MilvusServer)
    server.rpc = None  # type: ignore[assignment]
    with pytest.raises(UserError, match="1024 rows; these are 1000"), Progress("load", None) as progress:
        engines.get("milvus").load(server, few, INDEX, {"batch_rows": 500}, progress)
