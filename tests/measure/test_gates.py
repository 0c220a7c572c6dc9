"""Each way in which published numbers went wrong elsewhere makes a record invalid here, with the reason.

A real server process scans flat and lies on request; the load and query stages measure it as they measure any system.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from anncestry.errors import ConfigError, ServerError, UserError
from anncestry.measure import requests, session
from anncestry.measure.vectors import choose, open_vectors
from anncestry.metrics import defects
from anncestry.provenance import gates, platform, records
from anncestry.runtimes.native import free_ports
from tests.builders.bench import failed, lie_when_queried
from tests.flat.engine import ENGINE as flat
from tests.flat.engine import FlatServer


@pytest.mark.parametrize("dataset", ["blobs-l2", "blobs-cosine"])
def test_an_honest_system_passes_every_gate(bench, dataset):
    honest = bench(dataset=dataset)
    first, filtered, _ = honest.matrix.cells
    record = honest.load(first)
    assert failed(record) == {}
    assert record["times"]["load_s"] > 0
    assert record["storage"]["net_mib"] >= record["storage"]["raw_mib"]
    assert set(record["storage"]["components"]) == {"vectors", "bookkeeping"}
    assert record["resources"]["server"]["load"]["rss_peak_mib"] > 1
    assert set(honest.query(*honest.matrix.cells).values()) == {"ok"}
    for cell in honest.matrix.cells:
        assert failed(honest.record(cell)) == {}
    assert {gate["gate"] for gate in honest.record(filtered)["gates"]} == {
        "row count", "index complete", "settings", "topology", "members alive", "server version", "artifact digest",
        "exact-search oracle", "all rows that match", "rows findable", "no cached answers", "platform",
        "Little's law", "answered", "decodable", "known rows", "distances", "warm-up", "filter applied",
        "filter selectivity", "rows findable, filtered", "nothing else measured", "load",
    }  # fmt: skip
    assert 0.2 < honest.record(filtered)["selectivity"] < 0.4


ORACLE, ALL, FINDABLE = "exact-search oracle", "all rows that match", "rows findable"
LOADS: list[tuple[str, dict[str, str]]] = [
    ("lose-rows", {"row count": "538 of 540 rows", ORACLE: "recall", ALL: "of 1000", FINDABLE: "of the last inserted"}),
    ("fail-rows", {"inserts": "no space left on device", "row count": "", ORACLE: "", ALL: "", FINDABLE: ""}),
    ("index-incomplete", {"index complete": "rows scanned"}),
    ("other-settings", {"settings": "M is 99, asked 16"}),
    ("is-a-cluster", {"topology": "nodes 3, declared 1"}),
    ("other-version", {"server version": "server says 0.0.1, spec 1.0"}),
    ("wrong-metric", {ORACLE: "recall", FINDABLE: "found by their own vector"}),
    ("ignore-filter", {ORACLE: "recall", ALL: "others, under 20 filters"}),
    ("lost-tail", {FINDABLE: "of the last inserted"}),
    ("never-ends", {"stopped cleanly": "did not end when asked to, and was killed after "}),
]
"""What a server does while it is loaded, and all the gates that fail: taken out, they let it pass."""
NOT_UNDER_FILTER = {"rows findable, filtered": "a scan of few rows under it misses"}
QUERIES: list[tuple[str, dict[str, str]]] = [
    ("ignore-filter", {ORACLE: "recall", ALL: "others, under 20", "filter applied": "40 of 40 answers hold rows that"}),
    ("more", {"known rows": "40 of 40 answers hold an id that no row has, or more than 5 rows"}),
    (
        "unknown-ids",
        {ORACLE: "recall", ALL: "others, under 20", "known rows": "40 of 40 answers hold an id that"},
    ),
    ("wrong-metric", {ORACLE: "recall", FINDABLE: "", "distances": "largest relative error"}),
    ("wrong-ids", {ORACLE: "recall", ALL: "others, under 20", FINDABLE: "", "distances": "largest relative error"}),
    ("no-distances", {"distances": "largest relative error inf"}),
    ("narrow-filter", {"filter selectivity": "rows that pass the filter", **NOT_UNDER_FILTER}),
    ("narrow-search-filter", NOT_UNDER_FILTER),
    ("nearly-narrow-search-filter", NOT_UNDER_FILTER),
    ("lost-tail", {FINDABLE: "of the last inserted"}),
    ("other-settings", {"settings": "M is 99, asked 16"}),
    ("is-a-cluster", {"topology": "nodes 3, declared 1"}),
]
"""The same of a server that was loaded well, and of one that does so in the course of its queries, with k = 7 only."""
IN_THE_COURSE: list[tuple[str, dict[str, str]]] = [
    ("refuse", {"answered": "0 of 40 requests answered", "warm-up": "10 warm-up requests failed"}),
    ("garbage", {"answered": "0 of 40", "decodable": "40 of 40 replies can't be decoded, 1% allowed"}),
    ("cold", {"warm-up": "3 warm-up requests failed"}),
    ("lose-later", {"row count": "539 of 540 rows after the queries"}),
    ("merge-later", {"index complete": "after the queries: "}),
    ("wrong-ids-of-seven", {"distances": "largest relative error"}),
]


@pytest.mark.parametrize(("lie", "caught_by"), LOADS, ids=[lie for lie, _ in LOADS])
def test_a_load_that_is_not_what_it_claims_is_invalid(bench, lie, caught_by):
    liar = bench(lie)
    is_caught(liar.load(liar.matrix.cells[0]), caught_by)


def is_caught(record: dict, caught_by: dict[str, str]) -> None:
    """It is invalid by exactly these gates, whose details hold these words."""
    found = failed(record)
    assert found.keys() == caught_by.keys(), found
    assert not record["valid"]
    assert all(word in found[gate] for gate, word in caught_by.items()), found


def test_too_few_rows_for_a_few_queries_lose_no_row_of_a_system_that_never_scans(bench, monkeypatch):
    def oracle(lie: str) -> dict:
        liar = bench(lie)
        return next(gate for gate in liar.load(liar.matrix.cells[0])["gates"] if gate["gate"] == ORACLE)

    assert not oracle("dead-ends-50")["ok"]
    monkeypatch.setattr(FlatServer, "exact_at", property(lambda _: (0.3, 64), lambda *_: None), raising=False)
    few, many = oracle("dead-ends-50"), oracle("dead-ends-5")
    assert few["ok"] and "recall 1.0000" in few["detail"]
    assert "others got too few rows, at most 5% may, without a scan" in few["detail"]
    assert not many["ok"] and not oracle("lose-rows")["ok"]


@pytest.mark.parametrize(
    ("lie", "caught_by"),
    [
        ("lose-rows", {"row count", "exact-search oracle", "all rows that match", "rows findable"}),
        ("hide-one-in-10", {"all rows that match", "rows findable"}),
        ("hide-one-in-40", {"all rows that match"}),
        ("ignore-filter", {"exact-search oracle", "all rows that match"}),
        ("wrong-metric", {"distances"}),
        ("wrong-ids", {"exact-search oracle", "all rows that match", "distances", "rows findable"}),
        ("no-order", {"exact-search oracle", "rows findable"}),
        ("no-distances", {"distances"}),
        ("lost-tail", {"rows findable"}),
    ],
)
def test_nothing_wrong_hides_behind_an_index_of_codes(bench, lie, caught_by):
    """Codes excuse a coarse order: no missing row, not even one in forty, no ignored filter, no other metric."""
    claims = bench(lie, change=declares_codes)
    record = claims.load(claims.matrix.cells[0])
    assert claims.matrix.spec(claims.matrix.cells[0].load, "load")["index"]["quantizer"] == "pq"
    assert set(failed(record)) == caught_by, failed(record)
    assert not record["valid"]


@pytest.mark.parametrize("lie", ["", "coarse"])
def test_an_index_of_codes_is_valid_however_coarse_they_are_and_its_recall_says_so(bench, lie):
    """What makes a record invalid is what its recall would not tell: a coarse order it does tell."""
    claims = bench(lie, change=declares_codes)
    first = claims.matrix.cells[0]
    record = claims.load(first)
    assert failed(record) == {}
    said = {gate["gate"]: gate["detail"] for gate in record["gates"]}
    behind = int(re.search(r"or \((\d+)\) behind rows that their codes put as near", said["rows findable"])[1])
    assert behind == 0 if lie == "" else behind > 40, "one in ten, of 400"
    assert said["all rows that match"].startswith("1000 of 1000 rows returned, and 0 others")
    claims.query(first)
    assert failed(claims.record(first)) == {}


def declares_codes(files: dict) -> None:
    files["systems"]["blue-1.0"]["index"] = {"quantizer": "pq"}


@pytest.mark.parametrize(("lie", "caught_by"), QUERIES, ids=[lie for lie, _ in QUERIES])
def test_a_system_that_answers_wrongly_when_queried_is_invalid(honest_load, monkeypatch, lie, caught_by):
    first, filtered, _ = honest_load.matrix.cells
    lie_when_queried(monkeypatch, lie)
    cell = filtered if "filter" in lie else first
    honest_load.query(cell)
    is_caught(honest_load.record(cell), caught_by)


@pytest.mark.parametrize(("lie", "caught_by"), IN_THE_COURSE, ids=[lie for lie, _ in IN_THE_COURSE])
def test_a_system_that_fails_in_the_course_of_its_queries_is_invalid(bench, lie, caught_by):
    liar = bench(lie)
    seven = liar.matrix.cells[2]
    assert liar.load(seven)["valid"]
    liar.query(seven)
    record = liar.record(seven)
    is_caught(record, caught_by)
    if lie == "refuse":
        assert liar.publish(seven)["summary"]["errors"]["value"] == 40
        assert any("no searches today" in text for text in record["failures"])


def test_a_server_that_fails_half_of_its_requests_at_once_is_no_faster_for_it(bench):
    liar = bench("fails-half")
    seven = liar.matrix.cells[2]
    liar.load(seven)
    liar.query(seven)
    record = liar.publish(seven)
    assert failed(record) == {}, "a failure is the system's result"
    summary, found = record["summary"], record["defects"]
    assert found["failed"] == summary["errors"]["value"] > 10
    assert (
        found["share"]["low"] < found["failed"] / found["answers"] == found["share"]["value"] < found["share"]["high"]
    )
    assert summary["p95_ms"]["value"] is summary["p99_ms"]["value"] is summary["max_ms"]["value"] is None
    assert summary["mean_ms"]["value"] is None and summary["qps"]["value"] > 0


def test_a_server_that_lets_half_of_its_requests_time_out_pays_with_its_percentiles(bench):
    def impatient(files):
        files["workloads"]["k7"]["timeout_s"] = 2.0

    liar = bench("times-out-half", change=impatient)
    seven = liar.matrix.cells[2]
    liar.load(seven)
    liar.query(seven)
    record = liar.publish(seven)
    assert failed(record) == {}, "a failure is the system's result"
    summary, found = record["summary"], record["defects"]
    assert found["failed"] == summary["timeouts"]["value"] > 10 and summary["errors"]["value"] == 0
    assert found["share"]["low"] > defects.MARKED_SHARE, "never bold, no winner"
    assert summary["p95_ms"]["value"] >= 2000 and summary["p99_ms"]["value"] >= 2000, "the wait is in them"
    assert summary["qps"]["value"] < 2 * 40 / (2.0 * found["failed"]), "two clients, who waited for each"


def test_a_server_that_answers_with_nothing_at_times_is_valid_with_a_defect_that_recall_charges(bench):
    liar = bench("empty-at-times")
    seven = liar.matrix.cells[2]
    liar.load(seven)
    liar.query(seven)
    record = liar.publish(seven)
    assert failed(record) == {}
    found = record["defects"]
    empty = found["empty"]
    assert 1 <= empty == found["short"] <= 3 and found["failed"] == found["repeated"] == 0
    assert defects.words(found).endswith(f": {empty} short, {empty} empty, of 40")
    rates = record["summary"]["complete_qps"]["value"], record["summary"]["qps"]["value"]
    assert rates[0] / rates[1] == pytest.approx(1 - empty / 40)


@pytest.mark.parametrize(
    "last",
    [
        {"duration_s": 0.5, "stream": {"delete_per_s": 20}},
        {"warmup": 0, "start": "cold"},
        {"duration_s": 1.5, "fault": {"kind": "pause", "member": "flat", "at_s": 0.3, "for_s": 0.2}},
    ],
    ids=["stream", "cold", "fault"],
)
def test_a_server_is_looked_at_after_its_queries_though_the_last_run_of_the_round_leaves_none(bench, last):
    def change(files):
        files["workloads"]["k5"].update(last)
        files["config"]["matrix"][0]["workloads"] = ["k7", "k5"]

    liar = bench("lose-later", change=change)
    seven, changing = liar.matrix.cells
    liar.load(seven)
    assert set(liar.query(changing, seven).values()) == {"ok"}
    record = liar.record(seven)
    assert failed(record)["row count"] == "539 of 540 rows after the queries"
    when = [gate["detail"] for gate in record["gates"] if gate["gate"] == "members alive"]
    assert any(detail.endswith("after the queries") for detail in when)


@pytest.mark.parametrize("dies", [False, True])
def test_a_server_is_looked_at_after_its_queries_though_a_later_run_on_it_fails(bench, monkeypatch, dies):
    """Where it died, that nobody could ask it is told: what it answered before was judged as any answer."""
    measured, measure = [], session.ServerSession.measure

    def fails_second(self, run) -> None:
        measured.append(run.key)
        if len(measured) == 2:
            if dies:
                self.running.group["flat"].handle.kill()
            raise ServerError("client 1 of the driver failed")
        measure(self, run)

    def change(files) -> None:
        files["workloads"]["k5"]["k"] = 7  # it loses a row in the course of such queries

    monkeypatch.setattr(session.ServerSession, "measure", fails_second)
    liar = bench("lose-later", change=change)
    cells = [cell for cell in liar.matrix.cells if cell.workload in ("k7", "k5")]
    liar.load(cells[0])
    outcome = liar.query(*cells)
    first = next(cell for cell in cells if cell.query == measured[0])
    assert outcome.pop(first.query) == "ok"
    assert ("is not running any more" if dies else "client 1 of the driver failed") in str([*outcome.values()])
    record = liar.record(first)
    if dies:
        (told,) = [gate for gate in record["gates"] if gate["gate"] == "asked after the queries"]
        assert record["valid"] and told["detail"].startswith("not asked: the server died in a later run (k")
    else:
        assert failed(record) == {"row count": "539 of 540 rows after the queries"}


def test_another_program_than_the_one_that_loaded_is_invalid(bench):
    honest = bench()
    cell = honest.matrix.cells[0]
    assert honest.load(cell)["valid"]
    built = Path(cell.artifact_path)
    body = records.read_json(built)
    loaded_with, body["digest"] = body["digest"], "0" * 64
    records.write_json(built, records.seal(body))
    honest.query(cell)
    detail = failed(honest.record(cell))["artifact digest"]
    assert detail == f"sha256 000000000000…, loaded with {loaded_with[:12]}…"


def test_a_filter_that_few_rows_match_wants_all_of_them_and_no_more(bench):
    def change(files):
        narrow = {"field": "price", "from": 10, "below": 14}
        files["workloads"]["k5"] = {**files["workloads"]["k5"], "k": 50, "filter": narrow}

    few = bench(change=change)
    cell = few.matrix.cells[0]
    few.load(cell)
    few.query(cell)
    record = few.record(cell)
    matching = round(record["selectivity"] * 540)
    assert 0 < matching < 50
    assert failed(record) == {}
    few.query(cell, runs=2)
    assert few.publish(cell)["defects"]["share"]["value"] == 0, "all that match is all there is to find"


def test_samples_hold_the_measured_queries_and_warm_up_is_none_of_them(bench):
    import pyarrow.parquet as parquet

    honest = bench()
    first, _, ladder = honest.matrix.cells
    honest.load(first)
    honest.query(first, ladder, runs=2)
    assert honest.publish(first)["valid"]
    samples = parquet.read_table(first.samples_path).to_pandas()
    assert sorted(samples["run"].unique()) == [0, 1]
    asked = [set(samples[samples.run == run]["query"]) for run in (0, 1)]
    assert asked[0] == asked[1]
    assert len(asked[0]) == 40
    orders = [samples[samples.run == run]["query"].tolist() for run in (0, 1)]
    assert orders[0] != orders[1]
    vectors = open_vectors(Path(first.vectors_path), first.vectors)
    choice = choose(vectors, 40, 10, 7)
    assert asked[0] == set(choice.measured.tolist())
    measured = np.asarray(vectors.queries[choice.measured])
    assert len(choice.warmup) == 10
    assert not (choice.warmup[:, None] == measured[None]).all(axis=2).any()
    assert samples["ids"].map(len).eq(5).all()
    clients = parquet.read_table(Path(ladder.run_path(0)).with_name("samples.parquet"))["client"]
    assert clients.unique().to_pylist() == [0, 1]


def test_warm_up_falls_back_to_base_rows_where_queries_are_too_few(bench):
    honest = bench()
    cell = honest.matrix.cells[0]
    vectors = open_vectors(Path(cell.vectors_path), cell.vectors)
    choice = choose(vectors, 60, 10, 7)
    assert len(choice.measured) == 60
    assert len(choice.warmup) == 10
    assert choice.warmup_source.startswith("base rows")


def test_each_round_starts_the_server_anew_and_takes_the_cells_in_an_order_of_its_own(bench):
    def change(files):
        files["workloads"].update({f"k{k}": {**files["workloads"]["k5"], "k": k, "runs": 4} for k in (1, 2, 3, 4)})
        files["config"]["matrix"][0]["workloads"] = ["k1", "k2", "k3", "k4"]

    honest = bench(change=change)
    honest.load(honest.matrix.cells[0])
    honest.query(*honest.matrix.cells, runs=4)
    published = [honest.publish(cell) for cell in honest.matrix.cells]
    orders = {tuple(sorted(range(4), key=lambda cell: published[cell]["windows_s"][number][0])) for number in range(4)}
    assert len(orders) > 1
    for record in published:
        assert [run["run"] for run in record["rounds"]] == [0, 1, 2, 3]
        assert len({tuple(run["start_s"]) for run in record["rounds"]}) == 4
        assert record["windows_s"] == sorted(record["windows_s"])
        assert all(us > 0 for us in record["server_cpu_us_per_query"]["runs"])
        assert record["resources"]["server"]["query"]["pss_mib"] > 1


def test_a_gate_that_fails_in_one_round_makes_the_cell_invalid_and_names_the_run(bench, monkeypatch):
    honest = bench()
    cell = honest.matrix.cells[0]
    honest.load(cell)
    honest.query(cell)
    with monkeypatch.context() as patch:
        lie_when_queried(patch, "unknown-ids")
        honest.query(cell, runs=2)
    honest.query(cell)
    record = honest.publish(cell)
    assert not record["valid"]
    assert failed(record)["known rows"].startswith("run 2: 40 of 40 answers hold an id that no row has")


def test_clients_start_at_offsets_of_their_own():
    rows = requests.schedule({"clients": 4, "duration_s": 1.0}, 100, seed=3, run=0)
    prime = requests.prime(100, 20, 4)
    assert rows.shape == (4, 100)
    assert len({tuple(row) for row in rows}) == 4
    assert all(sorted(row) == list(range(100)) for row in rows)
    assert set(prime.ravel()) == set(range(100, 120))


def test_a_server_that_does_not_come_up_shows_the_end_of_its_log(bench):
    broken = bench("no-start")
    with pytest.raises(ServerError, match="the data folder was written by a newer version"):
        broken.load(broken.matrix.cells[0])


def test_a_server_that_dies_during_the_load_shows_the_end_of_its_log_and_leaves_no_record(bench):
    broken = bench("die-on-load")
    cell = broken.matrix.cells[0]
    with pytest.raises(ServerError, match="out of memory while inserting"):
        broken.load(cell)
    assert not Path(cell.index_path).exists()


def test_a_server_that_dies_during_one_workload_takes_no_other_workload_with_it(bench):
    broken = bench("die-on-query")  # with k = 7 only
    first, filtered, deadly = broken.matrix.cells
    assert broken.load(first)["valid"]
    outcome = broken.query(first, filtered, deadly)
    assert outcome[first.query] == outcome[filtered.query] == "ok"
    assert "segmentation fault in search" in outcome[deadly.query]
    assert failed(broken.record(first)) == failed(broken.record(filtered)) == {}
    assert not Path(deadly.run_path(0)).exists()


def test_the_stored_index_is_the_same_after_a_session(bench):
    honest = bench()
    cell = honest.matrix.cells[0]
    honest.load(cell)
    data = Path(cell.index_path).parent / "data"

    def state():
        return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in data.rglob("*") if path.is_file()}

    before = state()
    honest.query(cell)
    assert state() == before


def test_a_port_in_use_is_named(bench):
    import socket

    honest = bench()
    port = free_ports(1)[0]
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with pytest.raises(UserError, match=f"port {port} is in use"):
            honest.load(honest.matrix.cells[0], first_port=port)


def test_a_changed_artifact_or_vector_file_is_refused_before_it_is_measured(bench):
    honest = bench()
    cell = honest.matrix.cells[0]
    base = Path(cell.vectors_path).parent / "base.npy"
    changed = bytearray(base.read_bytes())
    changed[-1] ^= 1
    base.unlink()
    base.write_bytes(changed)
    with pytest.raises(UserError, match=r"base\.npy: sha256"):
        honest.load(cell)


def test_a_machine_that_is_not_the_declared_platform_is_refused(bench):
    honest = bench()
    cell = honest.matrix.cells[0]
    with pytest.raises(ConfigError, match=r"platform 'default' .* has cores 4096, but this machine"):
        honest.load(cell, platform={"expect": {"cores": 4096}})


def test_one_platform_id_never_mixes_two_machines(bench):
    honest = bench()
    cell = honest.matrix.cells[0]
    honest.load(cell)
    kept = Path("results/platform/default.json")
    body = records.read_json(kept)
    body["facts"]["cpu_model"] = "Zilog Z80"
    records.write_json(kept, records.seal(body))
    with pytest.raises(ConfigError, match="Zilog Z80"):
        honest.query(cell)


def test_two_measurements_never_run_at_once():
    import threading

    order = []

    def measure(name):
        with platform.alone():
            order.append(f"{name} in")
            threading.Event().wait(0.2)
            order.append(f"{name} out")

    threads = [threading.Thread(target=measure, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [step.split()[1] for step in order] == ["in", "out", "in", "out"]


def test_where_no_row_was_sampled_no_row_is_lost():
    gate = gates.findable(590, 0, 600, 0, reference=(595, 0), comparable=True)
    assert gate.ok and "1.000 of 0 of the last inserted" in gate.detail


def test_a_server_that_can_not_be_asked_after_its_queries_vouches_for_none_of_them(bench, monkeypatch):
    def then_cold(files):
        files["workloads"]["k7"] = {"k": 5, "clients": 1, "runs": 1, "queries": 40, "warmup": 0, "start": "cold"}

    honest = bench(change=then_cold)
    first, _, cold = honest.matrix.cells
    honest.load(first)
    probe, asked = flat.probe, []

    def dies_later(server):
        asked.append(server)
        if len(asked) > 1:
            raise ServerError("not running any more")
        return probe(server)

    monkeypatch.setattr(flat, "probe", dies_later)
    with pytest.raises(ServerError, match="asked after its queries: not running any more"):
        honest.query(first, cold)
    assert not Path(first.run_path(0)).exists(), "nor is it a failure of the cold start that came next"
