"""Requests of several vectors: each vector gets its own answer, latency is the request's, and mix-ups are caught."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from anncestry import cli
from anncestry.drive.client import ERROR, OK
from anncestry.engines import offers_of
from anncestry.engines.base import DecodeError
from anncestry.errors import DataError, Unsupported
from anncestry.features.batch.measuring import vectors_per_s
from anncestry.measure import requests
from anncestry.measure import samples as raw
from anncestry.provenance import records
from tests.builders.bench import failed, scored
from tests.builders.configs import refused
from tests.toy import Toy

BATCH = {"k": 7, "nq": 3, "clients": 2, "runs": 1, "queries": 20, "warmup": 4}


def of_three(files: dict[str, Any]) -> None:
    files["workloads"]["k7-nq"] = BATCH
    files["config"]["matrix"][0]["workloads"] = ["k7-nq", "k7"]


def test_batches_go_round_in_a_circle_so_that_none_is_padded_and_no_vector_is_left_out():
    assert requests.cut(7, 3).tolist() == [[0, 1, 2], [3, 4, 5], [6, 0, 1]]
    assert requests.cut(6, 3).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert requests.cut_both(5, 2, 4).tolist() == [[0, 1, 2, 3], [4, 0, 1, 2], [5, 6, 5, 6]]
    assert requests.cut_both(3, 0, 1).tolist() == [[0], [1], [2]]


def test_a_response_that_does_not_hold_an_answer_for_each_vector_is_a_failed_request():
    def read(response: bytes, metric: str) -> list[Any]:
        if response == b"bad":
            raise DecodeError("not a reply")
        return [(np.array([number]), np.array([0.5])) for number in response]

    status = np.array([OK, OK, ERROR, OK], np.uint8)
    found = requests.decode(read, [b"\x04\x02", b"\x07", b"", b"bad"], status, 1, "l2", 2)
    assert found.ids.ravel().tolist() == [4, 2, -1, -1, -1, -1, -1, -1]
    assert found.status.tolist() == [OK, OK] + [ERROR] * 6
    assert found.errors == {"answers to 1 vectors, 2 were asked": 1, "not a reply": 1}


def test_milvus_tells_the_rows_of_each_vector_apart_by_its_own_counts():
    from pymilvus.grpc_gen import milvus_pb2

    from anncestry.engines.milvus.wire import decode_batch, search_request

    request = search_request(np.arange(6, dtype=np.float32).reshape(3, 2), 2, {"ef": 8}, "L2", "")
    assert request.nq == 3
    reply = milvus_pb2.SearchResults()
    reply.results.num_queries, reply.results.top_k = 3, 2
    reply.results.topks.extend([2, 0, 1])
    reply.results.ids.int_id.data.extend([5, 6, 9])
    reply.results.scores.extend([0.1, 0.2, 0.3])
    found = decode_batch(reply.SerializeToString(), "l2")
    assert [ids.tolist() for ids, _ in found] == [[5, 6], [], [9]]
    del reply.results.topks[:]
    with pytest.raises(DecodeError, match="3 ids of 3 vectors, but 0 numbers"):
        decode_batch(reply.SerializeToString(), "l2")


def test_every_vector_of_a_request_is_recorded_and_scored_and_its_latency_is_the_requests(bench):
    honest = bench(change=of_three)
    batch, single = honest.matrix.cells
    honest.load(batch)
    assert set(honest.query(batch, single).values()) == {"ok"}
    record, body = scored(honest, batch)
    assert failed(record) == {}
    samples = parquet.read_table(batch.samples_path)
    assert len(samples) == 8, "seven requests of 20 queries, shared between two clients: four each"
    assert record["summary"]["samples"]["value"] == 8
    asked = {tuple(rows) for rows in samples["queries"].to_pylist()}
    assert len(asked) == 7 and all(len(rows) == 3 for rows in asked)
    assert len({row for rows in asked for row in rows}) == 20, "every query was asked"
    assert samples["sizes"].to_pylist() == [[7, 7, 7]] * 8
    assert all(len(ids) == 21 for ids in samples["ids"].to_pylist())
    assert body["recall"]["by_id"]["value"] == 1.0
    assert (body["samples"], body["vectors"], body["queries"]) == (8, 24, 20)
    rates = record["batch"]
    assert rates["vectors_per_s"]["value"] == 3 * rates["requests_per_s"]["value"]
    assert rates["requests_per_s"] == record["summary"]["qps"]
    assert 0 < rates["encode_share"]["value"] < 1
    said = [gate["detail"] for gate in record["gates"] if gate["gate"] == "exact-search oracle"]
    assert len(said) == 2 and said[1].startswith("in requests of 3 vectors: recall 1.0000 over 60 queries")

    plain = honest.publish(single)
    assert "batch" not in plain and "queries" not in parquet.read_schema(single.samples_path).names
    assert [gate["gate"] for gate in plain["gates"]].count("exact-search oracle") == 1
    # What each vector got is what it gets alone.
    alone = parquet.read_table(single.samples_path)
    own = dict(zip(alone["query"].to_pylist(), alone["ids"].to_pylist(), strict=True))
    _, queries, ids = raw.answers_of(samples, 7, 3)
    shared = [row for row, query in enumerate(queries.tolist()) if query in own]
    assert shared and all(ids[row].tolist() == own[queries[row]] for row in shared)


def test_a_filter_is_that_of_every_vector_of_the_request(bench):
    def filtered(files: dict[str, Any]) -> None:
        of_three(files)
        files["workloads"]["k7-nq"] = {**BATCH, "filter": {"field": "category", "in": [1, 4, 7]}}
        files["config"]["matrix"][0]["workloads"] = ["k7-nq"]

    honest = bench(change=filtered)
    (cell,) = honest.matrix.cells
    honest.load(cell)
    honest.query(cell)
    record, body = scored(honest, cell)
    assert failed(record) == {} and body["recall"]["by_id"]["value"] == 1.0
    assert next(g for g in record["gates"] if g["gate"] == "filter applied")["detail"].startswith("0 of 24 answers")


@pytest.mark.parametrize(
    ("lie", "gates"),
    [
        ("mixed-batch", {"exact-search oracle", "distances"}),
        ("mixed-batch-late", {"distances"}),
        ("short-batch", {"exact-search oracle", "answered", "decodable"}),
    ],
)
def test_answers_of_one_vector_given_to_another_are_caught(bench, lie, gates):
    liar = bench(lie, change=of_three)
    batch, single = liar.matrix.cells
    liar.load(batch)
    liar.query(batch, single)
    assert set(failed(liar.record(batch))) == gates
    assert failed(liar.record(single)) == {}, "requests of one vector are right"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"nq": 0}, ["k5.nq"]),
        ({"nq": [2, "many"]}, ["k5.nq"]),
        ({"nq": 41}, ["k5.nq", "41 vectors a request exceed the 40 queries"]),
        ({"nq": 2, "client": "sdk"}, ["k5.nq", "unsupported with client: sdk"]),
        (
            {"nq": 2, "filter": {"field": "region", "side": "same", "halvings": 1}},
            ["k5.nq", "unsupported with a filter by side"],
        ),
        ({"nq": 2, "duration_s": 1, "stream": {"delete_per_s": 5}}, ["k5.stream", "unsupported with nq"]),
    ],
)
def test_an_impossible_batch_is_refused_by_name(tmp_path, changes, words):
    toy = Toy.make(tmp_path)
    toy.files["workloads"]["k5"].update(changes)
    refused(toy, *words)


@pytest.mark.parametrize("engine", ["weaviate", "pgvector", "mysql", "hnswlib", "faiss"])
def test_a_system_that_is_asked_for_one_vector_at_a_time_says_so_while_parsing(engine):
    work = {"k": 5, "nq": 2}
    with pytest.raises(Unsupported, match=f"nq: 2 vectors a request are unsupported by engine {engine}"):
        offers_of(engine).check_search(work)
    offers_of(engine).check_search({**work, "nq": 1})
    offers_of("milvus").check_search(work)


def test_samples_whose_sizes_do_not_fit_their_ids_are_no_answers():
    table = {"query": [1], "queries": [[1, 2]], "sizes": [[1, 2]], "ids": [[4, 5]]}
    with pytest.raises(DataError, match="not as many as those of its vectors"):
        raw.answers_of(pa.table(table), 2, 2)
    with pytest.raises(DataError, match="not of 3 vectors"):
        raw.answers_of(pa.table(table), 2, 3)


def test_rates_of_vectors_are_those_of_requests_times_nq_with_their_interval():
    rate = {"value": 10.0, "std": 1.0, "runs": [9.0, 11.0, None], "low": 8.0, "high": 12.0, "interval": "95 %"}
    said = vectors_per_s(4, rate)
    assert said == {
        "value": 40.0,
        "std": 4.0,
        "runs": [36.0, 44.0, None],
        "low": 32.0,
        "high": 48.0,
        "interval": "95 %",
    }


def test_a_sweep_of_nq_is_published_shown_and_verified_and_a_changed_answer_is_found(tmp_path, monkeypatch, capfd):
    toy = Toy.make(tmp_path)
    toy.one_cell()
    toy.files["workloads"]["k5"].update(nq=[1, 4], runs=1)
    toy.snakemake()
    (table,) = (tmp_path / "results" / "table").glob("*/numbers.json")
    rows = {(row["workload"], row["metric"]): row for row in json.loads(table.read_text())}
    for nq in (1, 4):
        requests, vectors = (rows[f"k5-nq{nq}", f"{name}_per_s"] for name in ("requests", "vectors"))
        assert (requests["unit"], vectors["unit"]) == ("requests/s", "vectors/s")
        assert vectors["value"] == pytest.approx(nq * requests["value"])
        assert vectors["nq"] == nq
    assert rows["k5-nq4", "qps"]["note"].startswith("requests a second, of 4 vectors each")
    (page,) = (tmp_path / "reports").rglob("index.html")
    shown = page.read_text()
    assert "Several vectors a request" in shown and "k5-nq4" in shown

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANNCESTRY_CONFIG", str(tmp_path / "config"))

    def verify() -> tuple[int, str]:
        status = cli.main(["verify"])
        return status, "".join(capfd.readouterr())

    assert verify()[0] == 0
    (record,) = (tmp_path / "results" / "query").rglob("k5-nq4@*.json")
    body = records.read_json(record)
    body["batch"]["vectors_per_s"]["value"] += 1
    records.write_json(record, records.seal(body))
    status, said = verify()
    assert status != 0 and "vectors_per_s of its requests does not match its samples" in said
