"""Vector sets of Redis: refusals, bytes, and the real server: loaded, asked, and started on what it stored."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from anncestry import engines
from anncestry.datasets.metadata import matches
from anncestry.drive.client import OK
from anncestry.drive.driver import Driver
from anncestry.engines import resp
from anncestry.engines.base import DecodeError
from anncestry.engines.vectorset.engine import VectorsetServer, condition
from anncestry.errors import ConfigError, Unsupported
from anncestry.measure.oracle import Oracle
from anncestry.progress import Progress
from tests.builders.configs import refused
from tests.servers import INDEX, STANDALONE, SYSTEMS, artifact, exact, running, small_vectors
from tests.toy import Toy

NAME = "vectorset-8.2.3"
ENGINE, OFFERS = engines.get("vectorset"), engines.offers_of("vectorset")
FILTERS: list[dict[str, Any]] = [
    {"field": "category", "in": [1, 4, 7]},
    {"field": "price", "below": 300.3},
    {"field": "price", "from": 200.2, "below": 500},
    {"field": "region", "from": 3, "below": 90},
]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"topology": {**STANDALONE, "nodes": 3}}, "one server, which holds its set in memory: nodes is 1, not 3"),
        ({"index": {"type": "flat"}}, "flat is unsupported by vectorset; supported: hnsw"),
        ({"index": {**INDEX, "quantizer": "sq"}}, "it quantizes none of that type"),
        ({"system": {"settings": {"appendfsync": 1}}}, "unknown key 'appendfsync'; known: filter_ef"),
        ({"system": {"settings": {"filter_ef": 0}}}, r"settings\.filter_ef: 0 is not"),
        ({"system": {"version": "8.0.1"}}, r"8\.0\.1 is older than 8\.2\.0"),
        ({"workload": {"k": 10, "filter": {"field": "id", "from": 5}}}, "id is unsupported by vectorset"),
        ({"workload": {"k": 10, "nq": 4}}, "4 vectors a request are unsupported by engine vectorset"),
    ],
)
def test_what_vector_sets_can_not_do_is_refused_by_name(changes: dict[str, Any], complaint: str) -> None:
    asked: dict[str, Any] = {"topology": STANDALONE, "index": INDEX, "workload": None, **changes}
    asked["system"] = {"version": "8.2.3", **changes.get("system", {})}
    with pytest.raises(ConfigError, match=complaint):
        OFFERS.check(**asked)


def test_a_dataset_of_another_metric_is_refused_while_the_workflow_is_parsed(tmp_path: Path) -> None:
    OFFERS.check_metric("cosine")
    with pytest.raises(Unsupported, match="metric: l2 is unsupported by vectorset; supported: cosine"):
        OFFERS.check_metric("l2")
    toy = Toy.make(tmp_path)
    toy.files["systems"]["blue-1.0"] = {"engine": "vectorset", "version": "8.2.3", "artifact": {"kind": "none"}}
    toy.block.update(datasets=["blobs-l2"], systems=["blue-1.0"])
    refused(toy, "blobs-l2: metric: l2 is unsupported by vectorset")


def test_filters_are_in_its_language_without_exponents() -> None:
    assert condition({"field": "category", "in": [1, 4]}) == ".category in [1, 4]"
    said = condition({"field": "price", "from": 1e-7, "below": 0.5})
    low = said.removeprefix(".price >= ").removesuffix(" and .price < 0.5")
    assert "e" not in low and float(low) == float(np.float32(1e-7))


def test_scores_become_canonical_distances() -> None:
    ids, far = ENGINE.decode(b"*4\r\n$1\r\n5\r\n$1\r\n1\r\n$13\r\n1099511627776\r\n$4\r\n0.25\r\n", "cosine")
    assert (ids.dtype, ids.tolist(), far.tolist()) == (np.int64, [5, 2**40], [0.0, 1.5])
    for reply in (b"", b"*1\r\n:1\r\n", b"+OK\r\n", b"*2\r\n$1\r\nx\r\n$1\r\n1\r\n", b"*2\r\n$1\r\n1\r\n$3\r\nnan\r\n"):
        with pytest.raises(DecodeError):
            ENGINE.decode(reply, "cosine")


@pytest.mark.servers
def test_a_vector_set_is_loaded_asked_and_read_back_and_keeps_its_graph(tmp_path: Path) -> None:
    vectors = small_vectors("cosine")
    vectors = replace(vectors, price=vectors.price * np.float32(1000))
    folder, data = artifact(NAME, tmp_path / "artifact"), tmp_path / "data"
    queries = small_vectors("cosine", rows=50).base[::-1]
    far = exact(vectors, queries)
    asked = SimpleNamespace(**vars(vectors), queries=vectors.base[:200] + np.float32(0.01))
    with running(NAME, folder, data) as server:
        with Progress("load", len(vectors.base), "rows") as progress:
            result = ENGINE.load(server, vectors, INDEX, {"batch_rows": 300}, progress)
        assert (result.rows_sent, result.rows_acknowledged) == (2000, 2000), result.first_error
        assert isinstance(server, VectorsetServer) and result.durable_at_s is not None
        stored = json.loads(server.ask(resp.command("VGETATTR", "anncestry", 17)))
        assert stored == {"category": vectors.category[17], "price": vectors.price[17], "region": vectors.region[17]}
        with Driver() as driver:
            oracle = Oracle(ENGINE, server, driver, tmp_path / "asked", vectors)
            for filter in [None, *FILTERS]:
                passes = matches(filter, vectors.category, vectors.price, region=vectors.region)
                assert ENGINE.count(server, filter) == passes.sum()
                for scan in (False, True):
                    ENGINE.exact_filters(server, scan)
                    answers = oracle.ask(queries, 10, 200, filter)
                    assert (answers.status == OK).all() and passes[answers.ids].all(), answers.errors
                    told = np.take_along_axis(far, answers.ids, axis=1)
                    np.testing.assert_allclose(answers.distances, told, atol=1e-5)
                    tenth = np.sort(np.where(passes, far, np.inf), axis=1)[:, 9:10] + 1e-6
                    assert (told <= tenth).mean() >= (1.0 if scan and filter is not None else 0.95)
                ENGINE.exact_filters(server, False)
            gates = Oracle(ENGINE, server, driver, tmp_path / "gates", asked).check()  # type: ignore[arg-type]
        assert all(gate.ok for gate in gates), [gate.detail for gate in gates if not gate.ok]
        before = ENGINE.probe(server)
        next(iter(server.group)).handle.kill()
    parts = {part.name: sum(path.stat().st_size for path in part.paths) for part in ENGINE.data_components(data)[:2]}
    assert parts["rows and graph"] > vectors.base.nbytes > 1000 > parts["log"], parts
    with running(NAME, folder, data) as server:
        ENGINE.open(server, INDEX)
        probe = ENGINE.probe(server)
        wanted = ENGINE.asked_settings(SYSTEMS[NAME], INDEX, "cosine", 200)
        assert (probe.version, probe.rows, probe.index_complete) == ("8.2.3", 2000, True), probe.index_detail
        assert {name: probe.settings.get(name) for name in wanted} == wanted and probe.settings == before.settings
