"""Rows that a database's own Python library inserts: the same rows arrive, and what it can't do is said by name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from anncestry.datasets.payload import Column
from anncestry.drive.driver import Driver
from anncestry.engines import get, milvus, offers_of, sdk_rows, weaviate
from anncestry.engines.base import Engine, LoadResult, Server, batch
from anncestry.errors import ServerError, Unsupported
from anncestry.measure.oracle import Oracle
from anncestry.progress import Progress
from anncestry.runtimes.native import free_ports
from tests.builders.configs import refused
from tests.servers import INDEX, STANDALONE, SYSTEMS, SmallVectors, artifact, running, small_vectors
from tests.toy import Toy

NAME, MILVUS = "weaviate-1.27.0", "milvus-2.3.5"
BY_LIBRARY = {"batch_rows": {"least": 50, "most": 200, "values": 2700}, "client": "sdk"}  # 135 rows of 20 dimensions
SDK, PYMILVUS = (Path(module.__file__).with_name("sdk.py") for module in (weaviate, milvus))


@dataclass(frozen=True)
class Loaded:
    """A server that the library has loaded, and how that went."""

    system: str
    engine: Engine
    server: Server
    vectors: SmallVectors
    result: LoadResult


@pytest.fixture(scope="module", params=[NAME, MILVUS, "milvus-2.2.16"])
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    name, folder = request.param, tmp_path_factory.mktemp("loaded")
    engine, vectors = get(SYSTEMS[name]["engine"]), small_vectors("cosine")
    with running(name, artifact(name, folder / "artifact"), folder / "data") as server:
        with Progress("load", len(vectors.base), "row") as progress:
            result = engine.load(server, vectors, INDEX, BY_LIBRARY, progress)
        yield Loaded(name, engine, server, vectors, result)


@pytest.mark.servers
def test_the_rows_that_the_library_inserts_are_those_that_were_given(loaded: Loaded, tmp_path: Path) -> None:
    engine, server, vectors, result = loaded.engine, loaded.server, loaded.vectors, loaded.result
    rows = len(vectors.base)
    assert (result.rows_sent, result.rows_acknowledged, result.insert_errors) == (rows, rows, 0)
    assert result.sizes == {135: rows // 135, rows % 135: 1}
    library = "weaviate-client 4." if loaded.system == NAME else "pymilvus 3."
    assert result.library is not None and result.library.startswith(library)
    assert engine.probe(server).rows == rows
    with Driver() as driver:
        found = Oracle(engine, server, driver, tmp_path, vectors).ask(vectors.base[:100], 1, 64)
    assert (found.ids[:, 0] == range(100)).mean() > 0.95
    of_two = {"field": "category", "in": [int(vectors.category[0])]}
    assert engine.count(server, of_two) == int((vectors.category == vectors.category[0]).sum())


# From here on the servers hold more rows than they were loaded with.


@pytest.mark.servers
@pytest.mark.parametrize("loaded", [NAME], indirect=True)
def test_rows_that_the_server_refuses_are_counted_with_its_reason(loaded: Loaded) -> None:
    server = loaded.server
    http = int(next(iter(server.group)).addresses["http"].rpartition(":")[2])
    options = {"collection": "Bench", "http": http, "uuid_prefix": "a77ce570-0000-4000-8000-", "timeout_s": 300.0}
    first = batch(loaded.vectors, 0, 3)
    shorter = replace(first, first=5000, base=first.base[:, :7])
    with sdk_rows.inserter(sys.executable, SDK, "weaviate-client", server.endpoint, options, 300.0) as (_, insert):
        refusals = insert(range(5000, 5003), sdk_rows.request(shorter))
        assert set(refusals) == {0, 1, 2} and "vector with length 7" in refusals[0]
        assert insert(range(6000, 6003), sdk_rows.request(replace(first, first=6000))) == {}


@pytest.mark.servers
@pytest.mark.parametrize("loaded", [MILVUS], indirect=True)
def test_pymilvus_sends_a_batch_that_is_refused_once_and_the_reason_is_told(loaded: Loaded) -> None:
    """Milvus takes or refuses a batch as a whole, and a load ends with one that is refused."""
    server, options, first = loaded.server, {"collection": "Bench", "timeout_s": 20.0}, batch(loaded.vectors, 0, 3)
    column = Column("x", "payload_0", "int", first.region)
    for wrong, said in (
        (replace(first, first=5000, base=first.base[:, :7]), r"pymilvus: .* 0 retry times, .*length\(21\)"),
        (replace(first, first=5000, payload=[(column, [1, 2, 3])]), "payload_0"),
    ):
        with (
            sdk_rows.inserter(sys.executable, PYMILVUS, "pymilvus", server.endpoint, options, 20.0) as (_, insert),
            pytest.raises(ServerError, match=said),
        ):
            insert(range(5000, 5003), sdk_rows.request(wrong))
    with sdk_rows.inserter(sys.executable, PYMILVUS, "pymilvus", server.endpoint, options, 20.0) as (_, insert):
        assert insert(range(6000, 6003), sdk_rows.request(replace(first, first=6000))) == {}
    assert loaded.engine.count(server, {"field": "id", "from": 5000}) == 3


def test_a_server_that_does_not_answer_is_told_by_the_library_s_own_words() -> None:
    http, grpc = free_ports(2)
    options = {"collection": "Bench", "http": http, "uuid_prefix": "a77ce570-0000-4000-8000-", "timeout_s": 2.0}
    with (
        pytest.raises(ServerError, match=r"^weaviate-client: Weaviate\w+Error: "),
        sdk_rows.inserter(sys.executable, SDK, "weaviate-client", f"127.0.0.1:{grpc}", options, 300.0),
    ):
        pass


def test_a_library_that_is_not_installed_is_told(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text("import nobody_wrote_this")
    with (
        pytest.raises(ServerError, match="nobody_wrote_this"),
        sdk_rows.inserter(sys.executable, module, "nothing", "127.0.0.1:1", {}, 300.0),
    ):
        pass


@pytest.mark.parametrize(
    ("engine", "system", "topology", "said"),
    [
        ("milvus", {"version": "2.1.0"}, {}, r"load.client: sdk is unsupported by milvus 2\.1\.0: the later client"),
        ("milvus", {}, {"runtime": "remote"}, "unsupported on a remote server"),
        ("pgvector", {}, {}, "load.client: sdk is unsupported by pgvector"),
        ("weaviate", {}, {"consistency": "quorum"}, "unsupported with a consistency"),
        ("weaviate", {}, {"runtime": "remote"}, "unsupported on a remote server"),
        ("weaviate", {"version": "1.25.0"}, {}, "client: sdk is unsupported by weaviate 1.25.0"),
    ],
)
def test_what_can_not_be_loaded_by_a_library_is_refused_by_name(
    engine: str, system: dict[str, Any], topology: dict[str, Any], said: str
) -> None:
    offers, asked = offers_of(engine), {**SYSTEMS[NAME], **system}
    with pytest.raises(Unsupported, match=said):
        offers.check_load_by_library(asked, {**STANDALONE, **topology})
        offers.load_env(asked)


def test_an_old_server_is_loaded_by_the_client_of_its_time_whose_environment_is_in_the_key() -> None:
    told = offers_of("weaviate").load_env(SYSTEMS["weaviate-1.23.9"])
    assert told["client_env"]["name"] == "weaviate-client-4.4.4" and len(told["client_env"]["sha256"]) == 64
    own = {name: version(name) for name in ("weaviate-client", "grpcio", "protobuf")}
    assert offers_of("weaviate").load_env(SYSTEMS[NAME]) == {"client_env": own}


@pytest.mark.parametrize("more", [{"kill": {"after_share": 0.5}}, {"upgrade_from": "blue-1.0"}])
def test_a_library_inserts_into_no_load_of_another_kind(tmp_path: Path, more: dict[str, Any]) -> None:
    toy = Toy.make(tmp_path)
    toy.files["systems"]["by-library"] = {"of": "red-1.0", "version": "1.1", "load": {"client": "sdk", **more}}
    toy.block["systems"] = ["by-library"]
    refused(toy, "by-library.load.client: sdk: unsupported with an upgrade or a kill")
