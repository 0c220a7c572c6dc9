"""Weaviate by REST and GraphQL: the same rows, questions and answers as by gRPC, on other bytes."""

from __future__ import annotations

import http.client
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anncestry import engines, workflow
from anncestry.cells.config import Config
from anncestry.engines.base import Batch, DecodeError
from anncestry.engines.weaviate import wire
from anncestry.engines.weaviate.wire import uuid_of
from anncestry.errors import ConfigError, ServerError, Unsupported
from tests.servers import INDEX, ROOT, STANDALONE, loaded, small_vectors

REST = {"protocol": "rest"}


def test_a_vector_is_written_as_the_shortest_decimals_of_the_same_float32() -> None:
    vector = np.random.default_rng(3).normal(size=2000).astype(np.float32) * np.float32(1e-3)
    vector[:4] = [0.1, 1e-30, 3.4e38, -7.0]
    text = wire.vector_text(vector)
    assert text.startswith("[0.1,1e-30,3.4e+38,-7.0,")
    assert (np.array(json.loads(text), np.float32) == vector).all()


def test_a_search_by_graphql_carries_vector_filter_and_consistency() -> None:
    query = np.array([0.5, 2.0], np.float32)
    body = json.loads(wire.json_search(query, 7, '{path:["price"]}', "quorum"))
    assert body["query"] == (
        "{Get{Bench(limit:7,nearVector:{vector:[0.5,2.0]},"
        'where:{path:["price"]},consistencyLevel:QUORUM){_additional{id distance}}}}'
    )
    assert "where" not in json.loads(wire.json_search(query, 7, None))["query"]


def reply(**more: Any) -> bytes:
    hit = {"_additional": {"id": uuid_of(2**40), "distance": -0.75, **more}}
    return json.dumps({"data": {"Get": {"Bench": [hit]}}}).encode()


def test_graphql_replies_become_canonical_distances() -> None:
    decode = engines.get("weaviate").decode
    ids, distances = decode(reply(), "cosine")
    assert (ids.dtype, ids.tolist(), distances.tolist()) == (np.int64, [2**40], [0.25])
    assert decode(reply(distance=3.5), "l2")[1].tolist() == [3.5]
    assert decode(b'{"data":{"Get":{"Bench":[]}}}', "l2")[0].shape == (0,)


@pytest.mark.parametrize(
    ("response", "said"),
    [
        (b'{"errors":[{"message":"vector lengths do not match"}]}', "GraphQL: vector lengths do not match"),
        (b'{"data":null}', "not a GraphQL search reply"),
        (b'{"data":{"Get":{"Bench":[{"_additional":{}}]}}}', "not a GraphQL search reply"),
        (b'{"data"', "not a GraphQL search reply"),
        (reply(id="00000000-0000-0000-0000-000000000001"), "an id that was not loaded"),
    ],
)
def test_a_graphql_reply_that_is_no_answer_is_a_failed_request(response: bytes, said: str) -> None:
    with pytest.raises(DecodeError, match=said):
        engines.get("weaviate").decode(response, "l2")


def test_an_insertion_by_rest_holds_the_rows_exactly() -> None:
    vectors = small_vectors("l2", rows=30, dimensions=3)
    body = wire.json_batch(Batch(100, vectors.base, vectors.category, vectors.price, vectors.region))
    objects = json.loads(body)["objects"]
    assert [item["id"] for item in objects] == [uuid_of(row) for row in range(100, 130)]
    assert (np.array([item["vector"] for item in objects], np.float32) == vectors.base).all()
    assert [item["properties"]["category"] for item in objects] == vectors.category.tolist()
    prices = [item["properties"]["price"] for item in objects]
    assert prices == vectors.price.tolist(), "float64: 0.1, for one, is less than the float32 nearest to it"
    asked = [wire.where({"field": "price", "from": price}) for price in vectors.price.tolist()]
    assert [float(re.search(r"valueNumber:([^}]+)}", text)[1]) for text in asked] == prices  # type: ignore[index]


def test_rows_that_rest_refuses_are_counted_by_their_place() -> None:
    good = {"id": "a", "result": {"status": "SUCCESS"}}
    bad = {"id": "b", "result": {"status": "FAILED", "errors": {"error": [{"message": "no space"}]}}}
    assert wire.refused(json.dumps([good, bad, good]).encode(), 3) == {1: "no space"}
    with pytest.raises(ServerError, match="a batch of 3 rows was answered for 1"):
        wire.refused(json.dumps([good]).encode(), 3)
    with pytest.raises(ServerError, match="not a batch reply: <html>"):
        wire.refused(b"<html>", 3)


@pytest.mark.parametrize(
    ("version", "settings", "topology", "workload", "said"),
    [
        ("1.27.0", {"protocol": "soap"}, {}, None, r"settings\.protocol: 'soap' is none of grpc, rest"),
        ("1.27.0", REST, {"credentials": "KEY"}, None, "rest carries no credentials"),
        ("1.26.14", {}, {}, {"k": 10, "client": "sdk"}, r"sdk is unsupported by weaviate 1\.26\.14.*from 1\.27\.0"),
        ("1.23.9", {"filterStrategy": "sweeping"}, {}, None, r"filterStrategy: unsupported by weaviate 1\.23\.9"),
    ],
)
def test_a_protocol_that_can_not_be_is_refused(
    version: str, settings: dict[str, Any], topology: dict[str, Any], workload: dict[str, Any] | None, said: str
) -> None:
    place = {**STANDALONE, **topology}
    if "credentials" in topology:
        place |= {"runtime": "remote", "endpoints": {"http": "W_HTTP", "grpc": "W_GRPC"}}
    with pytest.raises(ConfigError, match=said):
        engines.offers_of("weaviate").check({"version": version, "settings": settings}, place, INDEX, workload)


@pytest.mark.parametrize(
    ("version", "topology", "index", "workload", "said"),
    [
        ("2.1.3", {}, INDEX, None, r"version: milvus 2\.1\.3 is older than 2\.2\.16"),
        ("2.1.0", {"runtime": "docker"}, INDEX, None, r"topology: unsupported by milvus 2\.1\.0: a library"),
        ("2.1.0", {"roles": {"querynode": 2}}, INDEX, None, r"topology: unsupported by milvus 2\.1\.0: a library"),
        ("2.1.0", {}, {"type": "flat"}, None, r"index\.type: flat is unsupported by milvus 2\.1\.0; supported: hnsw"),
        ("2.1.0", {}, INDEX, {"k": 10, "client": "sdk"}, r"client: sdk is unsupported by milvus 2\.1\.0"),
        ("2.1.0", {}, INDEX, {"k": 10, "stream": {}}, r"stream is unsupported by milvus 2\.1\.0"),
    ],
)
def test_what_milvus_2_1_lacks_is_refused_by_name(
    version: str, topology: dict[str, Any], index: dict[str, Any], workload: dict[str, Any] | None, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        engines.offers_of("milvus").check({"version": version}, {**STANDALONE, **topology}, index, workload)


def test_what_milvus_2_1_stored_is_not_opened_by_a_later_one() -> None:
    with pytest.raises(Unsupported, match=r"upgrade_from: milvus 2\.1\.0: what it stored needs a tool"):
        engines.offers_of("milvus").check_upgrade({"version": "2.2.16"}, {"version": "2.1.0"})


@pytest.mark.parametrize(
    ("experiment", "cells"),
    [
        ("indexes", 36),
        ("weaviate-grpc", 48),
        ("weaviate-grpc-laptop", 24),
        ("weaviate-grpc-client", 108),
        ("weaviate-grpc-client-laptop", 54),
        ("milvus-2.2-report", 21),
        ("milvus-2.2-report-laptop", 23),
        ("milvus-2.2-cluster", 7),
        ("milvus-2.2-cluster-laptop", 12),
    ],
)
def test_the_experiments_of_the_documents_can_be_asked_for(experiment: str, cells: int) -> None:
    matrix = workflow.expand(workflow.Choice(ROOT / "config", experiment))
    assert isinstance(matrix.config, Config)
    assert len(matrix.cells) + len(matrix.absent) == cells, "how many are measurable depends on the machine"


@pytest.mark.servers
def test_rows_and_answers_by_rest_are_those_by_grpc(tmp_path: Path) -> None:
    vectors, engine = small_vectors("cosine", rows=1200), engines.get("weaviate")
    queries = vectors.base[:20]
    with loaded("weaviate-1.27.0", INDEX, vectors, tmp_path, REST) as server:
        engine.apply(server, 400)
        assert engine.probe(server).rows == 1200
        transport = engine.transport(server)
        assert (transport["kind"], transport["path"]) == ("http", "/v1/graphql")
        edges = np.sort(vectors.price)[[200, 400]].tolist()  # prices of rows: one passes, the other does not
        of_price = (vectors.price >= np.float32(edges[0])) & (vectors.price < np.float32(edges[1]))
        for filter, passes in (
            (None, np.ones(1200, bool)),
            ({"field": "category", "in": [1, 4]}, np.isin(vectors.category, [1, 4])),
            ({"field": "price", "from": edges[0], "below": edges[1]}, of_price),
        ):
            assert engine.count(server, filter) == passes.sum()
            link = http.client.HTTPConnection(transport["target"], timeout=60)
            answers = []
            for body in engine.encode(server, queries, 10, 400, filter):
                link.request(transport["method"], transport["path"], body, transport["headers"])
                answers.append(engine.decode(link.getresponse().read(), "cosine"))
            link.close()
            far = 1.0 - queries.astype(np.float64) @ vectors.base.astype(np.float64).T
            far[:, ~passes] = np.inf
            truth = np.argsort(far, axis=1)[:, :10]
            for (ids, distances), near, row in zip(answers, truth, far, strict=True):
                assert set(ids) == set(near)
                assert np.allclose(distances, row[ids], atol=1e-5)
