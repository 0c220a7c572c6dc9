"""A client library of another version than the locked one: pinned, made once, used for what it knows."""

from __future__ import annotations

import hashlib
import re
import zipfile
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from anncestry import engines, workflow
from anncestry.drive import build, protocol
from anncestry.drive.client import OK
from anncestry.drive.driver import Driver, client_facts
from anncestry.drive.transports import unpack
from anncestry.engines import offers
from anncestry.errors import ConfigError, DataError, Unsupported
from anncestry.measure import requests as clients
from anncestry.measure.vectors import Filtering
from tests.servers import INDEX, ROOT, STANDALONE, loaded, small_vectors

NAME = "weaviate-client-4.4.4"
BEFORE_GRPC = "weaviate-client-3.26.7"
REST = {"settings": {"protocol": "rest"}}
PINNED = ROOT / "envs" / f"{NAME}.txt"
SDK = {"k": 10, "ef_search": 100, "client": "sdk"}


def test_the_old_client_is_taken_where_it_knows_the_server_and_the_others_are_refused_by_name() -> None:
    weaviate = engines.offers_of("weaviate")
    of = {server: weaviate.client_env({"version": server}, SDK) for server in ("1.23.9", "1.27.0", "1.35.2")}
    digest = hashlib.sha256(PINNED.read_bytes()).hexdigest()
    own = {name: version(name) for name in ("weaviate-client", "grpcio", "protobuf")}
    assert of == {"1.23.9": {"name": NAME, "sha256": digest}, "1.27.0": own, "1.35.2": own}
    assert weaviate.client_env({"version": "1.27.0"}, {**SDK, "client": "bytes"}) is None
    weaviate.check({"version": "1.23.9"}, STANDALONE, INDEX, SDK)
    for server in ("1.24.0", "1.26.14"):
        said = rf"client: sdk is unsupported by weaviate {re.escape(server)}: .*from 1\.27\.0 on, .*below 1\.24\.0"
        with pytest.raises(Unsupported, match=said):
            weaviate.check({"version": server}, STANDALONE, INDEX, SDK)


def test_what_a_library_asks_or_inserts_has_that_library_in_its_key_and_nothing_else_has() -> None:
    matrix = workflow.expand(workflow.Choice(ROOT / "config", "weaviate-grpc-client-laptop"))
    for cell in matrix.cells:
        spec = matrix.spec(cell.query, "query")
        name = BEFORE_GRPC if "-rest" in spec["system"]["name"] else NAME
        own = {name: version(name) for name in ("weaviate-client", "grpcio", "protobuf")}
        library = build.identity(name) if spec["system"]["version"] == "1.23.9" else own
        load = matrix.spec(cell.load, "load")["load"]
        for part in (spec["workload"], load):
            told = spec.get("client_env") if part is not load else load.get("client_env")
            assert told == (library if part.get("client") == "sdk" else None)


@pytest.mark.parametrize("package", ["pymilvus", "weaviate-client", "grpcio", "protobuf"])
def test_another_version_of_a_locked_library_measures_its_cells_again_and_no_others(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keys() -> dict[bool, set[str]]:
        """By whether the package is part of how the cell is asked."""
        matrix = workflow.expand(workflow.Choice(ROOT / "config", "paper-sdk"))
        found: dict[bool, set[str]] = {True: set(), False: set()}
        for cell in matrix.cells:
            spec = matrix.spec(cell.query, "query")
            library = engines.offers_of(spec["system"]["name"].split("-")[0]).sdk
            asks = spec["workload"].get("client") == "sdk" and package in (library, "grpcio", "protobuf")
            found[asks].add(cell.query)
        return found

    before = keys()
    monkeypatch.setattr(offers, "version", lambda name: "99.0" if name == package else version(name))
    after = keys()
    assert before[True] and before[False]
    assert after[False] == before[False] and after[True].isdisjoint(before[True])


def test_an_environment_without_requirements_is_refused_by_their_name() -> None:
    with pytest.raises(ConfigError, match=r"envs/weaviate-client-1\.2\.3\.txt: No such file"):
        build.identity("weaviate-client-1.2.3")


@pytest.fixture(scope="module")
def pinned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of requirements (tiny.txt, wrong.txt) of one small package, which pip finds in a folder beside it."""
    folder = tmp_path_factory.mktemp("tiny")
    wheel = folder / "wheels" / "tinyclient-4.4.4-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("tinyclient.py", "def answer(text):\n    return len(text)\n")
        for name, text in (
            ("METADATA", "Metadata-Version: 2.1\nName: tinyclient\nVersion: 4.4.4\n"),
            ("WHEEL", "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"),
            ("RECORD", ""),
        ):
            file.writestr(f"tinyclient-4.4.4.dist-info/{name}", text)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (folder / "tiny.txt").write_text(f"tinyclient==4.4.4 --hash=sha256:{digest}\n")
    (folder / "wrong.txt").write_text(f"tinyclient==4.4.4 --hash=sha256:{'0' * 64}\n")
    return folder


@pytest.fixture
def tiny(pinned: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That folder, in the place of envs/, with a cache of its own."""
    monkeypatch.setattr(build, "ENVIRONMENTS", pinned)
    monkeypatch.setenv("XDG_CACHE_HOME", str(pinned / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(pinned / "wheels"))
    return pinned


def test_an_environment_is_made_once_and_again_where_it_is_damaged(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = build.interpreter("tiny")
    manifest = python.parents[2] / "manifest.json"
    made = manifest.stat().st_mtime_ns
    assert build.interpreter("tiny") == python
    assert manifest.stat().st_mtime_ns == made
    (module,) = python.parents[1].rglob("tinyclient.py")
    sound = module.read_text()
    module.write_text("def answer(text):\n    return 0\n")
    assert build.interpreter("tiny") == python
    assert module.read_text() == sound
    monkeypatch.setenv("PIP_FIND_LINKS", str(tiny / "nothing"))
    assert build.interpreter("tiny") == python, "whole: nothing is fetched"


def test_a_package_of_another_content_is_refused_and_no_environment_kept(tiny: Path) -> None:
    with pytest.raises(DataError, match=r"envs/wrong\.txt: can't make its environment: .* not match its hash"):
        build.interpreter("wrong")
    assert not list((tiny / "cache").glob("anncestry/built/wrong-*/manifest.json"))


def test_the_clients_run_among_the_packages_of_their_environment_alone_and_say_which(
    tiny: Path, tmp_path: Path
) -> None:
    module = tmp_path / "library.py"
    module.write_text(
        "import importlib.util, tinyclient\n"
        "def connect(target, options, timeout_s):\n"
        "    seen = importlib.util.find_spec('numpy') is not None\n"
        "    return lambda request: ([tinyclient.answer(target)], [float(seen)]), lambda: None\n"
    )
    transport = {
        "kind": "sdk", "environment": "tiny", "package": "tinyclient", "module": str(module), "target": "seven77",
        "options": {},
    }  # fmt: skip
    protocol.write_requests(tmp_path, [b"query"])
    protocol.write_job(
        tmp_path, requests=tmp_path, transport=transport, timeout_s=60.0, schedule=np.zeros((2, 3), int),
        prime=np.zeros((2, 1), int),
    )  # fmt: skip
    with Driver() as driver:
        driver.run(tmp_path)
        assert len(driver.pids()) == 2
    outcome = protocol.read_outcome(tmp_path)
    assert [[part.tolist() for part in unpack(reply)] for reply in outcome.responses] == [[[7], [0.0]]] * 6
    library = {"package": "tinyclient", "version": "4.4.4", "environment": "tiny"}
    assert client_facts([outcome.facts], 6)["library"] == library


@pytest.mark.servers
@pytest.mark.parametrize(
    ("library", "settings", "load"), [(NAME, {}, {}), (BEFORE_GRPC, REST["settings"], {"client": "sdk"})]
)
def test_the_old_client_finds_what_the_bytes_find(
    tmp_path: Path, library: str, settings: dict[str, str], load: dict[str, str]
) -> None:
    # In 1.27.0, which it knows too: 1.23.9 takes minutes to build (docs/driver.md).
    vectors, engine = small_vectors("cosine", rows=1200), engines.get("weaviate")
    queries = vectors.base[:20]
    filters = (None, {"field": "category", "in": [1, 4]}, {"field": "price", "from": 0.1, "below": 0.5},
               {"field": "id", "from": 990})  # fmt: skip
    with loaded("weaviate-1.27.0", INDEX, vectors, tmp_path, settings, load) as server, Driver() as driver:
        assert engine.probe(server).rows == len(vectors.base)
        engine.apply(server, 400)
        server.system = {"version": "1.23.9", "settings": settings}
        for number, filter in enumerate(filters):
            filtering = Filtering.of(filter, vectors, np.zeros(len(queries), np.uint8))  # type: ignore[arg-type]
            found = {}
            for client in ("bytes", "sdk"):
                work, folder = {"k": 10, "client": client}, tmp_path / f"{client}{number}"
                protocol.write_requests(folder, clients.requests(engine, server, queries, work, 400, filtering))
                protocol.write_job(
                    folder, requests=folder, transport=clients.transport(engine, server, work, 400, filtering),
                    timeout_s=60.0, schedule=np.arange(len(queries))[None], prime=np.zeros((1, 1), int),
                )  # fmt: skip
                driver.run(folder)
                outcome = protocol.read_outcome(folder)
                assert (outcome.samples["status"] == OK).all(), outcome.facts["clients"][0]["errors"]
                found[client] = [clients.decoder(engine, work)(reply, "cosine") for reply in outcome.responses]
            assert outcome.facts["library"]["environment"] == library
            for (ids, distances), (their_ids, their_distances) in zip(found["bytes"], found["sdk"], strict=True):
                assert len(ids) == 10
                assert their_ids.tolist() == ids.tolist()
                assert their_distances == pytest.approx(distances, abs=1e-6)
