"""Ways to publish what was not measured, each tried by a server, a client or a file (docs/gates.md, "Attacks").

That table names what catches each attack, in which test, and what nothing here can catch.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from anncestry import verify
from anncestry.errors import Damaged, DataError
from anncestry.measure import judge, recall, reference, samples
from anncestry.provenance import gates, records
from tests.builders.bench import failed, reseal, resealed, scored
from tests.flat.engine import ENGINE as flat
from tests.toy import ROOT


def test_every_attack_of_the_docs_names_tests_that_are_there():
    section = (ROOT / "docs/gates.md").read_text().partition("### Attacks\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:-1] for line in section.splitlines() if line.startswith("| ")][2:]
    assert len(rows) >= 20
    for attack, _, named in rows:
        tests = re.findall(r"`(?:([\w/]+\.py)::)?(test_\w+)`", named)
        assert tests, f"{attack}: no test"
        for file, test in tests:
            path = ROOT / (file if file.startswith("tests/") else f"tests/measure/{file or 'test_attacks.py'}")
            assert f"\ndef {test}(" in path.read_text(), f"{attack}: {path} has no {test}"


def moved(cell, part: str) -> Path:
    """Have all numbers in a part of a cell's vectors be others, with everything sealed again; returns their record."""
    vectors = Path(cell.vectors_path)
    file = vectors.with_name(f"{part}.npy")
    np.save(file, np.load(file) + 1)
    record = records.read_record(vectors)
    output = {**record["outputs"][part], "sha256": records.sha256_file(file)}
    reseal(vectors, outputs={**record["outputs"], part: output})
    return vectors


def test_a_truth_of_other_vectors_is_not_what_answers_are_scored_by(honest):
    cell = honest.matrix.cells[0]
    scored(honest, cell)
    vectors = moved(cell, "base")
    with pytest.raises(Damaged, match="is the truth of other vectors than those of"):
        recall.verify_truth(Path(cell.truth_path), cell.truth, vectors)
    said = " ".join(problem.sentence for problem in verify.verify(honest.matrix, partial=True).problems)
    assert "is the truth of other vectors" in said


def test_rows_that_a_dataset_leaves_out_are_no_rows_that_are_missing():
    told = {
        "spec": {"dataset": {"rows": 1000, "dim": 8}}, "rows": 990, "dim": 8, "phases": [["insert", 0.0, 1.0]],
        "inputs": {"vectors": {"path": "not/here.json"}},
    }  # fmt: skip

    def rows(fewer: bool, **changed: int) -> tuple[object, object]:
        return next((was, is_) for said, was, is_ in verify._load("x", {**told, **changed}, fewer) if "rows is" in said)

    assert rows(True) == (990, 990) and rows(False) == (990, 1000) and rows(True, rows=1001) == (1001, 1000)


def test_rows_that_are_lost_but_counted_are_missed_by_searches_for_all_rows(bench):
    liar = bench("hide-one-in-100")
    record = liar.load(liar.matrix.cells[0])
    assert "row count" not in failed(record)
    assert "of 1000 rows returned" in failed(record)["all rows that match"]


@pytest.fixture
def with_reference(monkeypatch, tmp_path_factory):
    """The toy claims an HNSW index, which is held against a reference; none is in the cache."""
    folder = tmp_path_factory.mktemp("reference")
    monkeypatch.setattr(reference, "user_cache", SimpleNamespace(folder=lambda *parts: folder))
    monkeypatch.setattr(flat, "plain_hnsw", True)


def hard(files: dict) -> None:
    """A graph of few links over many dimensions, which finds little at a small ef."""
    files["config"]["index"].update(M=2, ef_construction=8)
    files["datasets"]["blobs-l2"].update(dim=32)


def test_rows_that_the_index_lost_are_searched_for_by_their_own_vectors(bench, with_reference):
    liar = bench("lost-from-index")
    record = liar.load(liar.matrix.cells[0])
    assert set(failed(record)) == {"rows findable"}
    assert "the reference index finds 1.000" in failed(record)["rows findable"]


def test_rows_that_the_reference_misses_as_well_are_forgiven(bench, with_reference):
    counts = 294, 291, 300, 300  # .975 of them
    assert gates.findable(*counts, reference=(293, 291), comparable=True).ok
    assert not gates.findable(*counts, reference=(300, 299), comparable=True).ok
    assert gates.findable(*counts).ok, "no reference tells whether the dataset is a hard one"


def caught_share(true_share: float, looks: int, **more) -> float:
    """Probability that one of several looks at 600 rows calls an index lossy that finds this share of all rows."""
    lost = 1 - true_share
    fails = [not gates.findable(300 - i // 2, 300 - (i + 1) // 2, 300, 300, **more).ok for i in range(60)]
    fine = sum(math.comb(600, i) * lost**i * (1 - lost) ** (600 - i) for i in range(60) if not fails[i])
    return 1 - fine**looks


def test_a_sound_index_hardly_ever_fails_by_the_chance_of_which_rows_are_looked_at_and_a_lossy_one_nearly_always():
    assert caught_share(0.995, looks=4, comparable=True) < 0.01
    assert caught_share(0.97, looks=1, comparable=True) > 0.95
    assert caught_share(0.97, looks=4) < 0.01
    assert caught_share(0.93, looks=1) > 0.95


def test_a_graph_that_falls_apart_under_a_filter_is_a_defect_and_no_other_question(bench):
    liar = bench("graph-falls-apart")
    _, filtered, _ = liar.matrix.cells
    liar.load(filtered)
    liar.query(filtered, runs=2)
    record = liar.record(filtered)
    assert failed(record) == {}
    detail = next(gate["detail"] for gate in record["gates"] if gate["gate"] == "rows findable, filtered")
    found, missed = map(int, re.match(r"(\d+) of 200 .* of the other (\d+), a scan .* misses 0$", detail).groups())
    assert found + missed == 200 and missed > 10
    assert scored(liar, filtered)[1]["recall"]["by_id"]["value"] < 0.95, "its recall is charged"


@pytest.mark.parametrize(("lie", "valid"), [("", True), ("graph-falls-apart", True), ("narrow-search-filter", False)])
def test_of_an_engine_that_can_not_be_asked_by_two_filters_nine_in_ten_rows_must_be_found(
    bench, monkeypatch, lie, valid
):
    monkeypatch.setattr(flat, "narrows", False)
    liar = bench(lie)
    _, filtered, _ = liar.matrix.cells
    assert liar.load(filtered)["valid"]
    liar.query(filtered)
    assert ("rows findable, filtered" not in failed(liar.record(filtered))) == valid


def test_a_shard_that_is_silent_while_queries_are_measured_costs_more_recall_than_a_graph_does(bench, with_reference):
    liar = bench("silent-shard")
    five, _, seven = liar.matrix.cells
    assert liar.load(five)["valid"]
    liar.query(five, seven)
    assert failed(liar.record(five)) == {}
    assert set(failed(liar.record(seven))) == {"reference recall"}


def test_a_comparison_with_the_reference_is_held_against_the_answers(bench, with_reference):
    liar = bench("silent-shard")
    seven = liar.matrix.cells[2]
    liar.load(seven)
    liar.query(seven)
    published, _ = scored(liar, seven)
    assert verify.verify(liar.matrix, partial=True).problems == []
    (of_reference,) = [gate for gate in published["gates"] if not gate["ok"]]
    others = [gate for gate in published["gates"] if gate["ok"]]
    better = {**of_reference, "detail": re.sub(r"recall \S+", "recall 0.9900", of_reference["detail"])}
    worse = {**of_reference, "detail": re.sub(r"has \S+,", "has 0.5000,", of_reference["detail"])}
    for forged in ([of_reference], [better], [worse], []):
        reseal(Path(seven.query_path), gates=[*others, *({**gate, "ok": True} for gate in forged)], valid=True)
        assert "its gate `reference recall` is: " in said_by_verify(liar), forged


def test_a_search_effort_that_is_ignored_changes_no_answer(bench, with_reference):
    liar = bench(change=hard)  # a flat scan, whatever it says
    record = liar.load(liar.matrix.cells[0])
    assert set(failed(record)) == {"ef is felt"}
    said = "0 of 100 answers about points between rows change between ef 10 and 400; of the reference's "
    assert failed(record)["ef is felt"].startswith(said)


def test_the_reference_is_built_once_whatever_asks_for_it(bench, with_reference, capfd):
    liar = bench(change=hard)
    cell = liar.matrix.cells[0]
    liar.load(cell)
    liar.query(cell)
    said = {gate["gate"]: gate["detail"] for gate in liar.record(cell)["gates"]}
    assert "of the reference's" in said["ef is felt"] and "the reference index has" in said["reference recall"]
    assert capfd.readouterr().err.count("reference: building") == 1


def test_an_honest_system_is_as_good_as_the_reference(bench, with_reference):
    honest = bench()
    cell = honest.matrix.cells[0]
    honest.load(cell)
    honest.query(cell)
    record = honest.record(cell)
    assert failed(record) == {}
    assert "reference recall" in {gate["gate"] for gate in record["gates"]}


def test_answers_from_a_cache_are_told_from_new_ones(bench):
    liar = bench("caches-answers")
    record = liar.load(liar.matrix.cells[0])
    assert set(failed(record)) == {"no cached answers"}


def test_each_round_looks_at_other_rows(honest):
    cell = honest.matrix.cells[0]
    said = [{gate["gate"]: gate["detail"] for gate in honest.record(cell, run)["gates"]} for run in (0, 1)]
    assert said[0]["exact-search oracle"] != said[1]["exact-search oracle"], "another filter, of another selectivity"


def test_latencies_divided_by_ten_contradict_the_rate(honest):
    cell = honest.matrix.cells[2]
    published, _ = scored(honest, cell)
    assert failed(published) == {}
    assert verify.verify(honest.matrix, partial=True).problems == []
    samples = Path(cell.samples_path)
    table = parquet.read_table(samples)
    tenth = pa.array([value // 10 for value in table["latency_ns"].to_pylist()])
    parquet.write_table(table.set_column(table.column_names.index("latency_ns"), "latency_ns", tenth), samples)
    reseal(Path(cell.query_path), outputs=resealed(published, samples))
    assert re.search(
        r"its samples give: rate × latency is 0\.\d\d requests in flight, of 2 clients", said_by_verify(honest)
    )


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ("gates", f"its gate `{gates.LITTLE}` is: missing; but its samples give: rate × latency"),
        ("defects", "its defects do not match its samples"),
        ("summary", "qps is None, but the samples give"),
        ("server_cpu_us_per_query", "its server_cpu_us_per_query does not match"),
        ("disturbance", "has no part `disturbance`, which every record of this stage has"),
        ("attempts", "has no part `attempts`, which every record of this stage has"),
    ],
)
def test_what_is_taken_out_of_a_sealed_record_is_missed(honest, part, said):
    cell = honest.matrix.cells[2]
    published, _ = scored(honest, cell)
    body = records.read_json(Path(cell.query_path))
    if part == "gates":
        body["gates"] = [gate for gate in published["gates"] if gate["gate"] != gates.LITTLE]
    elif part == "summary":
        del body["summary"]["qps"]
    else:
        del body[part]
    records.write_json(Path(cell.query_path), records.seal(body))
    assert said in said_by_verify(honest)


@pytest.mark.parametrize(
    ("gate", "said", "true"),
    [
        ("answered", "39 of 40 requests answered", "40 of 40 requests answered"),
        ("filter applied", "1 of 40 answers hold rows that violate", "0 of 40 answers hold rows that violate"),
    ],
)
def test_a_gate_that_says_other_than_the_samples_is_told(honest, gate, said, true):
    cell = honest.matrix.cells[1]
    published, _ = scored(honest, cell)
    assert verify.verify(honest.matrix, partial=True).problems == []
    judged = [
        {**each, "detail": each["detail"].replace(true, said)} if each["gate"] == gate else each
        for each in published["gates"]
    ]
    assert judged != published["gates"]
    reseal(Path(cell.query_path), gates=judged)
    assert re.search(rf"its gate `{gate}` is: {said}.*; but its samples give: {true}", said_by_verify(honest))


def test_a_target_that_no_effort_surely_reached_is_not_reached_however_the_record_calls_it(honest):
    cell = honest.matrix.cells[0]
    workload = {**honest.matrix.spec(cell.query, "query")["workload"], "target_recall": 0.95}
    tried = {"ef_search": 20, "recall": 0.96, "low": 0.94}
    tuning = {"ef_search": 20, "target_recall": 0.9, "reached": True, "queries": 50, "curve": [tried]}
    path = Path(cell.run_path(0)).with_name("samples.parquet")
    told = {"tuning": tuning, "selectivity": None, "counters": {}}
    (of_run,) = judge.gates_again(workload, path, samples.by_run(path, workload), [told])
    assert [gate.gate for gate in of_run if not gate.ok] == ["recall target"]
    tuning["curve"] = [{**tried, "low": 0.95}]
    (of_run,) = judge.gates_again(workload, path, samples.by_run(path, workload), [told])
    assert all(gate.ok for gate in of_run)


def test_samples_without_their_defects_are_refused(bench):
    liar = bench("empty-at-times")
    cell = liar.matrix.cells[2]
    liar.load(cell)
    liar.query(cell)
    published, _ = scored(liar, cell)
    samples = Path(cell.samples_path)
    parquet.write_table(parquet.read_table(samples).drop_columns(["defect"]), samples)
    reseal(Path(cell.query_path), outputs=resealed(published, samples), defects=None)
    assert "its samples don't say which answers have a defect" in said_by_verify(liar)


def test_defects_that_are_edited_are_refused_with_the_place(bench):
    liar = bench("empty-at-times")
    cell = liar.matrix.cells[2]
    liar.load(cell)
    liar.query(cell)
    published, _ = scored(liar, cell)
    assert published["defects"]["share"]["value"] > 0
    assert verify.verify(liar.matrix, partial=True).problems == []
    none = {**published["defects"], "short": 0, "empty": 0, "share": {**published["defects"]["share"], "value": 0.0}}
    reseal(Path(cell.query_path), defects=none)
    assert f"{cell.query_path}: its defects do not match its samples" in said_by_verify(liar)

    samples = Path(cell.samples_path)
    table = parquet.read_table(samples)
    place = table.column_names.index("defect")
    parquet.write_table(table.set_column(place, "defect", pa.array([0] * len(table), table["defect"].type)), samples)
    reseal(Path(cell.query_path), outputs=resealed(published, samples))
    said = said_by_verify(liar)
    assert re.search(rf"{samples}: \d answers do not have the defects that their column `defect` says", said)


def said_by_verify(bench) -> str:
    return " ".join(problem.sentence for problem in verify.verify(bench.matrix, partial=True).problems)


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ({"platform": {"cpu_model": "Zilog Z80"}}, "cpu_model: "),
        ({"artifact": {"digest": "0" * 64}}, "artifact: "),
        ({"client": {"driver": {"kind": "native", "sources": "0" * 64}}}, "driver: "),
        ({"clients": {"grpcio": "0.1"}}, "client libraries: "),
    ],
    ids=["machine", "artifact", "driver", "libraries"],
)
def test_a_run_of_another_origin_is_not_put_together_with_others(honest, part, name):
    cell = honest.matrix.cells[0]
    first = Path(cell.run_path(0))
    record = records.read_json(first)
    for key, changed in part.items():
        if key == "client":
            changed = {"jobs": [{**record["client"]["jobs"][0], **changed}]}
        record[key] = {**record[key], **changed}
    reseal(first, **record)
    with pytest.raises(DataError, match=rf"were not measured .* on one machine \({name}"):
        honest.publish(cell)
    assert not first.exists(), "it is measured again"
    honest.query(cell, runs=2)
    assert honest.publish(cell)["valid"]


def test_which_build_is_the_newest_is_not_told_by_a_clock_that_was_set_back(honest):
    cell = honest.matrix.cells[0]
    old, new = Path(cell.run_path(0)), Path(cell.run_path(1))
    record = records.read_json(old)
    index = {**record["inputs"]["index"], "sha256": "0" * 64}
    reseal(old, inputs={**record["inputs"], "index": index}, created="2099-01-01T00:00:00+00:00")
    with pytest.raises(DataError, match=r"build of the index: .* run 1 is dropped"):
        honest.publish(cell)
    assert new.exists()


def test_vectors_that_the_source_has_changed_are_not_those_that_were_measured(honest):
    cell = honest.matrix.cells[0]
    published, _ = scored(honest, cell)
    assert published["valid"]
    vectors = moved(cell, "queries")
    said = "was made from other vectors than .* has now: the dataset's source has changed"
    with pytest.raises(DataError, match=said):
        honest.query(cell, runs=1)
    with pytest.raises(DataError, match=said):
        honest.publish(cell)
    spec = honest.matrix.spec(cell.recall, "recall")
    where = Path(cell.query_path), Path(cell.truth_path), vectors, Path("out.json")
    with pytest.raises(DataError, match=said):
        recall.run(spec, cell.recall, *where)
