"""Rows are inserted and deleted while queries run, and recall is scored against what was there at each moment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from anncestry import cli, verify
from anncestry.drive.client import OK
from anncestry.features.stream import measuring as stream
from anncestry.measure.vectors import open_vectors
from anncestry.provenance import records
from anncestry.runtimes import artifacts
from tests.builders.bench import Bench, failed, reseal, scored
from tests.builders.configs import refused
from tests.servers import CACHE, SYSTEMS
from tests.toy import DATASET, Toy

STREAM = {
    "k": 5, "clients": 2, "runs": 2, "duration_s": 3.0, "queries": 20, "warmup": 5,
    "stream": {"insert_per_s": 10, "delete_per_s": 20, "batch_rows": 3},
}  # fmt: skip


def streaming(files: dict[str, Any]) -> None:
    files["workloads"]["k5-stream"] = STREAM
    files["config"]["matrix"][0]["workloads"] = ["k5-stream", "k5"]


def test_a_stream_changes_rows_while_queries_run_and_the_next_runs_start_from_the_loaded_index(bench):
    honest = bench(change=streaming)
    changing, still = honest.matrix.cells
    honest.load(changing)
    assert set(honest.query(changing, still, runs=2).values()) == {"ok"}
    record = honest.publish(changing)
    assert failed(record) == {}
    said = {gate["gate"]: gate["detail"] for gate in record["gates"]}
    assert said["rows after the stream"].startswith("510 rows, 510 by the acknowledgements")
    assert [run["rows_after"] for run in record["stream"]["runs"]] == [510, 510]
    kinds = record["stream"]["kinds"]
    assert record["stream"]["failed"]["value"] == 0
    other = honest.publish(still)
    assert failed(other) == {} and "stream" not in other
    assert other["windows_s"][0][1] < record["windows_s"][0][0], "what changes the rows comes last in its round"

    writes = parquet.read_table(Path(changing.query_path).with_name(record["outputs"]["writes"]["path"])).to_pandas()
    vectors = open_vectors(Path(changing.vectors_path), changing.vectors)
    asked = set(parquet.read_table(changing.samples_path)["query"].to_pylist())
    # Those that are answered when the clock has stopped don't count: how many depends on the machine.
    within = writes[(writes.status == OK) & (writes.due_ns + writes.latency_ns <= 3e9)]
    for kind, due in (("insert", 10), ("delete", 20)):
        in_time = within[within.kind == kind].ids.map(len).sum() / 2 / 3
        assert kinds[kind]["rows_per_s"]["value"] == pytest.approx(in_time) and 0 < in_time <= due
    orders = []
    for number, run in writes.groupby("run"):
        inserted, deleted = (run[run.kind == kind] for kind in ("insert", "delete"))
        assert np.concatenate(inserted["ids"].tolist()).tolist() == list(range(540, 570))
        source = np.concatenate(inserted["from_query"].tolist())
        assert len(set(source)) == 30 and not set(source) & asked, "no row is inserted that is asked for"
        gone = np.concatenate(deleted["ids"].tolist())
        assert len(set(gone)) == 60 and gone.max() < len(vectors.base)
        assert np.allclose(np.diff(inserted["due_ns"]), 0.3e9), f"run {number}: a constant rate"
        orders.append((source.tolist(), gone.tolist()))
    assert orders[0] != orders[1], "each run changes other rows, in another order"


def test_a_system_that_searches_exactly_has_recall_1_at_every_moment_of_a_stream(bench):
    honest = bench(change=streaming)
    cell, _ = honest.matrix.cells
    honest.load(cell)
    honest.query(cell, runs=2)
    _, body = scored(honest, cell)
    assert body["recall"]["by_id"]["value"] == 1.0 and body["recall"]["by_distance"]["value"] == 1.0
    assert body["stream"]["fresh_wanted"] > 10, "rows that came meanwhile were among the nearest"
    assert body["stream"]["fresh_recall"]["value"] == 1.0 and body["stream"]["stale_share"]["value"] == 0.0
    assert {"samples", "writes"} <= set(body["inputs"])
    assert said_by_verify(honest) == []


def said_by_verify(bench: Bench) -> list[str]:
    return [problem.sentence for problem in verify.verify(bench.matrix, partial=True).problems]


@pytest.mark.parametrize(
    ("lie", "gate"),
    [("forget-inserts", "rows after the stream"), ("keep-deleted", "rows after the stream")],
)
def test_what_is_acknowledged_and_not_done_is_found_by_count_and_by_recall(bench, monkeypatch, lie, gate):
    liar = bench(change=streaming)
    cell, _ = liar.matrix.cells
    liar.load(cell)
    from tests.flat.engine import ENGINE as flat

    start = flat.start
    monkeypatch.setattr(
        flat, "start", lambda a, d, system, t, first_port=None: start(a, d, {"settings": {"lie": lie}}, t, first_port)
    )
    liar.query(cell, runs=2)
    published, body = scored(liar, cell)
    assert gate in failed(published)
    assert not [each for each in said_by_verify(liar) if "its gate" in each]
    held = [{**each, "ok": True} for each in published["gates"]]
    reseal(Path(cell.query_path), gates=held, valid=True)
    assert any(
        f"its gate `{gate}` is not what the samples of the changes give: " in each for each in said_by_verify(liar)
    )
    assert body["recall"]["by_id"]["value"] < 0.99
    if lie == "forget-inserts":
        assert body["stream"]["fresh_recall"]["value"] == 0.0
    else:
        assert body["stream"]["stale_share"]["value"] > 0.1


def writes_of(*rows: tuple[str, list[int], int, float, int]) -> pa.Table:
    """Kind, ids, run, latency in ms and status of each change."""
    kind, ids, run, latency_ms, status = zip(*rows, strict=True)
    return pa.table(
        {
            "run": pa.array(run, pa.uint8()),
            "kind": pa.array(kind, pa.string()),
            "request": pa.array(range(len(rows)), pa.uint32()),
            "due_ns": pa.array(range(len(rows)), pa.int64()),
            "start_ns": pa.array(range(len(rows)), pa.int64()),
            "latency_ns": pa.array([int(ms * 1e6) for ms in latency_ms], pa.int64()),
            "status": pa.array(status, pa.uint8()),
            "ids": pa.array(ids, pa.list_(pa.int64())),
            "from_query": pa.array([[]] * len(rows), pa.list_(pa.int64())),
        }
    )


def test_a_rate_that_is_not_kept_is_said_and_rows_in_doubt_widen_what_may_be_counted():
    late = writes_of(*[("insert", [9 + i], 0, 1500.0, 0) for i in range(3)], ("insert", [5], 0, 1.0, 0))
    told = stream.summary(late, 2.0)
    assert not told["kept"] and "25.0 % of the changes" in told["detail"] and "not kept" in told["detail"]
    assert told["kinds"]["insert"]["rows_per_s"]["value"] == 2.0, "all four came within the two seconds of the clock"
    after = stream.summary(late, 1.0)
    assert after["kinds"]["insert"]["rows_per_s"]["value"] == 1.0, "three were acknowledged when the clock had stopped"
    doubt = writes_of(("insert", [9, 10], 0, 1.0, 0), ("insert", [11, 12], 0, 1.0, 2), ("delete", [1], 0, 1.0, 1))
    for counted, fine in ((10, False), (11, True), (14, True), (15, False)):
        judged = stream.judge(doubt, 10, counted, 1.0)
        assert judged[0].ok == fine, judged[0].detail
    nothing = stream.judge(doubt, 10, 12, 1.0)[1]
    assert not nothing.ok and "not one delete acknowledged" in nothing.detail


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"duration_s": None}, ["k5", "stream needs duration_s"]),
        ({"filter": {"field": "category", "in": [1]}}, ["k5.stream", "filter"]),
        ({"start": "cold", "warmup": 0}, ["k5.stream", "start"]),
        ({"loop": "open", "slo": {"p99_ms": 5}}, ["k5.stream", "slo"]),
        ({"stream": {}}, ["k5.stream", "needs insert_per_s"]),
        (
            {"stream": {"insert_per_s": 1, "batch_rows": 50}},
            ["k5.stream.insert_per_s", "too low for one batch of 50 rows"],
        ),
        (
            {"stream": {"insert_per_s": 60}},
            ["k5.stream.insert_per_s", "180 rows to insert, 20 queries and 5"],
        ),
        ({"stream": {"delete_per_s": 300}}, ["k5.stream.delete_per_s", "exceed half of the"]),
        ({"stream": {"update_per_s": 3}}, ["k5.stream", "update_per_s"]),
    ],
)
def test_an_impossible_stream_is_refused_by_name(tmp_path, changes, words):
    toy = Toy.make(tmp_path)
    asked = {**STREAM, **changes}
    toy.files["workloads"]["k5"] = {key: value for key, value in asked.items() if value is not None}
    refused(toy, *words)


def test_an_engine_that_cannot_be_changed_meanwhile_or_a_server_of_somebody_else_refuses_a_stream():
    from anncestry.engines.offers import Offers
    from anncestry.errors import ConfigError

    with pytest.raises(ConfigError, match="stream: engine other can't be written to"):
        Offers(name="other").check_search(STREAM)
    offers = Offers(name="other", stream=True)
    offers.check_search(STREAM)
    with pytest.raises(ConfigError, match="runtime remote"):
        offers.check_workload({}, {"runtime": "remote"}, {}, STREAM)


def test_a_stream_is_published_shown_and_verified_and_a_changed_write_is_found(tmp_path, monkeypatch, capfd):
    toy = Toy.make(tmp_path)
    toy.one_cell()
    streaming(toy.files)
    toy.snakemake()
    (table,) = (tmp_path / "results" / "table").glob("*/numbers.json")
    rows = {(row["workload"], row["metric"]): row for row in json.loads(table.read_text())}
    assert 0 < rows["k5-stream", "stream_insert_rows_per_s"]["value"] <= 10
    assert rows["k5-stream", "stream_fresh_recall"]["value"] == 1.0
    assert ("k5", "stream_on_time") not in rows
    (page,) = (tmp_path / "reports").rglob("index.html")
    assert "Searching while rows come and go" in page.read_text()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANNCESTRY_CONFIG", str(tmp_path / "config"))

    def verify() -> tuple[int, str]:
        status = cli.main(["verify"])
        return status, "".join(capfd.readouterr())

    assert verify()[0] == 0
    (writes,) = (tmp_path / "results" / "query").rglob("*.writes.parquet")
    changed = parquet.read_table(writes)
    late = pa.array(changed["latency_ns"].to_numpy() + 1)
    parquet.write_table(changed.set_column(changed.schema.get_field_index("latency_ns"), "latency_ns", late), writes)
    found = verify()
    assert found[0] != 0 and "writes.parquet" in found[1]
    # The same with the record's digest mended: what the record says is not what the samples say.
    (record,) = writes.parent.glob("k5-stream@*.json")
    body = records.read_json(record)
    body["outputs"]["writes"] |= {"sha256": records.sha256_file(writes), "bytes": writes.stat().st_size}
    records.write_json(record, records.seal(body))
    assert "of its stream is" in verify()[1]


@pytest.mark.servers
@pytest.mark.parametrize("system", ["milvus-2.3.5", "weaviate-1.27.0"])
def test_a_real_database_is_written_to_while_it_is_searched(tmp_path, monkeypatch, system):
    monkeypatch.chdir(tmp_path)
    toy = Toy.make(tmp_path)
    source = {"kind": "synthetic", "generator": "ann-benchmarks-random", "samples": 5000, "centers": 6, "seed": 1}
    toy.files["datasets"] = {"blobs-l2": {**DATASET, "rows": 4500, "queries": 500, "dim": 16, "sources": [source]}}
    toy.files["systems"] = {system: SYSTEMS[system]}
    toy.files["workloads"]["k10-stream"] = {
        "k": 10, "clients": 2, "runs": 1, "duration_s": 4, "queries": 200, "warmup": 20, "ef_search": 200,
        "stream": {"insert_per_s": 50, "delete_per_s": 50, "batch_rows": 5},
    }  # fmt: skip
    toy.files["config"]["matrix"] = [
        {"datasets": ["blobs-l2"], "systems": [system], "topologies": ["standalone"], "workloads": ["k10-stream"]}
    ]
    place = Bench(tmp_path, toy)
    (cell,) = place.matrix.cells
    spec = place.matrix.spec(cell.artifact, "artifact")
    artifacts.run(spec, Path(cell.artifact_path).parent, CACHE, cell.artifact)
    place.prepare()
    assert place.load(cell)["valid"]
    assert set(place.query(cell).values()) == {"ok"}
    published, body = scored(place, cell)
    assert failed(published) == {}
    said = {gate["gate"]: gate["detail"] for gate in published["gates"]}
    assert said["rows after the stream"].startswith("4500 rows, 4500 by the acknowledgements")
    kinds = published["stream"]["kinds"]
    # The last ones may be answered when the clock has stopped.
    assert all(0 < kinds[kind]["rows_per_s"]["value"] <= 50 for kind in ("insert", "delete"))
    assert published["failures"] == {}
    assert body["stream"]["fresh_wanted"] > 0
    assert body["recall"]["by_distance"]["value"] > 0.9
