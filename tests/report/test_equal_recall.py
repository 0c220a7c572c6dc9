"""Comparison at equal recall: tuned on queries that are not reported, interpolated between neighbours, never beyond."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from anncestry.cells.expand import tuning_least
from anncestry.engines import offers_of
from anncestry.errors import ConfigError, DataError
from anncestry.measure import tune
from anncestry.measure.tune import Tried, Tuned
from anncestry.measure.vectors import choose, held_out, open_vectors
from anncestry.report.model.equal_recall import Point, at_target, front
from tests.builders.bench import failed

# Tuning


def curve(ef_search: int) -> Tried:
    recall = 1 - 1 / (1 + ef_search / 10)
    return Tried(ef_search, recall, recall - 0.01)


@pytest.mark.parametrize("target", [0.5, 0.8, 0.95, 0.98])
def test_the_effort_found_is_the_smallest_that_surely_reaches_the_target(target):
    asked = []

    def ask(ef_search: int) -> Tried:
        asked.append(ef_search)
        return curve(ef_search)

    found, reached = tune.search(ask, target, lowest=10)
    assert reached and curve(found).low >= target
    assert found == 10 or curve(int(found * 0.93) - 1).low < target
    assert len(asked) == len(set(asked)) <= 16, "no effort is asked twice, and few are"


def test_no_effort_is_tried_that_the_engine_does_not_take():
    tried = []

    def ask(ef: int) -> Tried:
        tried.append(ef)
        return Tried(ef, 0.5, 0.4)

    assert tune.search(ask, 0.95, lowest=10, highest=offers_of("pgvector").most_effort({"type": "hnsw"})) == (10, False)
    assert max(tried) == 1000
    assert offers_of("faiss").most_effort({"type": "ivf_flat", "nlist": 64}) == 64


def test_the_smallest_effort_is_taken_where_it_is_enough():
    assert tune.search(curve, 0.3, lowest=10) == (10, True)


def test_a_target_that_can_not_be_reached_ends_with_the_best_and_says_so():
    found, reached = tune.search(lambda ef: Tried(ef, min(0.93, ef / 100), min(0.92, ef / 100)), 0.95, lowest=10)
    assert not reached and min(0.93, found / 100) == 0.93
    tuned = Tuned(160, 0.95, False, 400, (Tried(160, 0.93, 0.92),))
    gate = tuned.gate()
    assert not gate.ok
    assert gate.detail.startswith("target 0.95 not reached, the best was recall 0.9300")


def test_answers_that_are_all_whole_show_no_more_than_their_number_does():
    """Of 20 queries without a miss, 14 % of all may find nothing: p = 0.86 ** 20 = 5 %."""
    assert tune.surely(np.ones(20)) == pytest.approx(0.881, abs=1e-3)
    assert tune.surely(np.ones(400)) == pytest.approx(0.9933, abs=1e-4)
    assert tune.surely(np.ones(1)) == 0
    some = np.array([1.0] * 90 + [0.9] * 10)
    assert tune.surely(some) == pytest.approx(some.mean() - 1.645 * some.std(ddof=1) / 10, abs=1e-4)
    assert [tuning_least(target) for target in (0.5, 0.9, 0.95, 0.99)] == [3, 25, 52, 268]
    assert tune.surely(np.ones(268)) >= 0.99 > tune.surely(np.ones(267))


def test_queries_that_were_left_out_leave_no_fewer_to_tune_on_than_asked():
    from types import SimpleNamespace

    vectors = SimpleNamespace(queries=np.ones((590, 1), np.float32))
    assert len(held_out(vectors, 500, 40, 50, seed=3)) == 50
    with pytest.raises(DataError, match=r"590 queries .* leave 40 of the 50 held-out ones after 500"):
        held_out(vectors, 500, 50, 50, seed=3)


def test_the_redis_fork_calibrates_on_the_queries_it_reports_and_ours_on_others():
    from types import SimpleNamespace

    queries = np.arange(1000, dtype=np.float32)[:, None]
    vectors = SimpleNamespace(queries=queries, query_region=np.zeros(1000, np.uint8))
    choice = choose(vectors, 500, 100, seed=3)
    kept = held_out(vectors, 500, 100, 400, seed=3)
    reported = set(choice.measured.tolist()) | set(choice.warmup[:, 0].astype(int).tolist())
    assert len(reported) == 600 and len(set(kept.tolist())) == 400
    assert reported.isdisjoint(kept.tolist())


TUNED = {"k": 5, "clients": 1, "runs": 2, "queries": 20, "warmup": 10, "tuning_queries": 30, "target_recall": 0.9}


def with_target(**more):
    def change(files):
        files["workloads"] = {"asked": {**TUNED, **more}}
        files["config"]["matrix"][0]["workloads"] = ["asked"]

    return change


@pytest.mark.parametrize("filter", [None, {"field": "region", "side": "opposite", "halvings": 2}])
def test_a_tuned_cell_records_how_its_effort_was_found_and_measures_other_queries(bench, filter):
    import pyarrow.parquet as parquet

    honest = bench("", "blobs-l2", with_target(**({"filter": filter} if filter else {})))
    (cell,) = honest.matrix.cells
    honest.load(cell)
    assert set(honest.query(cell, runs=2).values()) == {"ok"}
    record = honest.publish(cell)
    assert failed(record) == {}
    tuning = record["tuning"]
    assert (tuning["target_recall"], tuning["reached"], tuning["queries"]) == (0.9, True, 30)
    assert record["ef_search"] == tuning["ef_search"] == 8, "a flat scan is exact at any effort"
    assert [tried["ef_search"] for tried in tuning["curve"]] == [8] and tuning["curve"][0]["recall"] == 1
    samples = Path(cell.samples_path)
    measured = set(parquet.read_table(samples)["query"].to_pylist())
    vectors = open_vectors(honest.place(cell).vectors, cell.vectors)
    assert len(measured) == 20
    assert measured.isdisjoint(held_out(vectors, 20, 10, 30, record["spec"]["seed"]).tolist())


def test_cells_that_differ_in_clients_and_targets_only_are_tuned_on_one_another_s_answers(bench, capsys):
    """The server is asked once at each effort, and both numbers of clients are measured at the same one."""

    def change(files):
        both = {"target_recall": [0.85, 0.9]}
        files["workloads"] = {"one": {**TUNED, **both}, "two": {**TUNED, **both, "clients": 2}, "k3": {**TUNED, "k": 3}}
        files["config"]["matrix"][0]["workloads"] = ["one", "two", "k3"]

    honest = bench("", "blobs-l2", change)
    cells = honest.matrix.cells
    assert len(cells) == 5
    honest.load(cells[0])
    assert set(honest.query(*cells).values()) == {"ok"}
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("tune ")]
    assert len(said) == 2, "k = 5 once for four cells; k = 3 is another question"
    curves = [honest.record(cell)["tuning"]["curve"] for cell in cells]
    assert all(len(curve) == 1 for curve in curves)


def test_a_system_that_never_reaches_the_target_has_no_number_and_the_reason(bench):
    lying = bench("fewer", "blobs-l2", with_target())
    (cell,) = lying.matrix.cells
    lying.load(cell)
    lying.query(cell, runs=2)
    assert "not reached, the best was recall 0.8000" in failed(lying.publish(cell))["recall target"]


@pytest.mark.parametrize(
    ("more", "because"),
    [
        ({"ef_search": 50}, "both target_recall and ef_search"),
        ({"tuning_queries": 31}, "queries of dataset blobs-l2; tuning needs"),
        ({"target_recall": 1.5}, "target_recall"),
        ({"target_recall": 0.95}, "even if all 30 find everything, they don't show a recall of 0.95; take at least 52"),
        ({"target_recall": 1.0}, "don't show a recall of 1; take at least inf"),
    ],
)
def test_an_impossible_target_is_refused_while_parsing(bench, more, because):
    with pytest.raises(ConfigError, match=because):
        bench("", "blobs-l2", with_target(**more))


def test_queries_to_tune_on_without_a_target_are_refused(bench):
    def change(files):
        files["workloads"]["k5"]["tuning_queries"] = 30
        files["config"]["matrix"][0]["workloads"] = ["k5"]

    with pytest.raises(ConfigError, match="tuning_queries: needs target_recall"):
        bench("", "blobs-l2", change)


def test_an_effort_is_found_once_for_a_build_of_the_index(tmp_path):
    made = []

    def find() -> Tuned:
        made.append(1)
        return Tuned(32, 0.9, True, 400, (curve(32),))

    first = tune.once(tmp_path / "tuning.json", "a" * 64, find)
    assert tune.once(tmp_path / "tuning.json", "a" * 64, find) == first and len(made) == 1
    tune.once(tmp_path / "tuning.json", "b" * 64, find)
    assert len(made) == 2, "another build is tuned anew"


# Fronts and interpolation


def point(ef: int, recall: float, cost: float, width: float = 0.0, defects: float | None = None) -> Point:
    def row(value: float, by: float) -> dict:
        ends = {"low": value - by, "high": value + by}
        return {"value": value, **ends, "number_id": f"n{ef}", "defect_share": defects, "effort": f"ef {ef}"}

    return Point(ef, row(recall, 0.1 * width), row(cost, 100 * width))


SWEEP = [point(16, 0.80, 2000), point(32, 0.90, 1500), point(48, 0.89, 1400), point(64, 0.98, 1000)]


def test_a_point_that_another_beats_in_both_is_not_on_the_front():
    assert [p.ef_search for p in front(SWEEP, lower=False)] == [16, 32, 64]
    by_latency = [point(16, 0.8, 1.0), point(32, 0.9, 1.2), point(48, 0.9, 1.1), point(64, 0.98, 2.0)]
    assert [p.ef_search for p in front(by_latency, lower=True)] == [16, 48, 64]


def test_a_point_of_which_too_many_answers_have_a_defect_is_no_point_at_equal_recall():
    points = [point(16, 0.8, 2000), point(32, 0.9, 1500, defects=0.002), point(64, 0.98, 1000, defects=0.001)]
    assert [p.ef_search for p in front(points, lower=False)] == [16, 64]
    none = at_target([point(16, 0.8, 2000, defects=1.0)], 0.7, lower=False)
    assert none.value is None and none.why == "more than 0.1 % of answers defective at every search effort"


def test_two_points_that_are_equal_are_both_on_the_front():
    assert len(front([point(16, 0.9, 10), point(32, 0.9, 10)], lower=False)) == 2


def test_a_target_between_two_points_costs_what_lies_between_them():
    at = at_target(SWEEP, 0.94, lower=False)
    assert at.value == pytest.approx(1250) and len(at.parents) == 4
    assert at_target(SWEEP, 0.90, lower=False).value == 1500


def test_nothing_is_said_beyond_the_ends_of_a_sweep():
    above = at_target(SWEEP, 0.99, lower=False)
    assert above.value is None and above.why == "target not reached, best was 0.9800"
    below = at_target(SWEEP, 0.5, lower=False)
    assert below.value is None and "smallest effort asked, ef 16, already has 0.8000" in below.why
    assert at_target([], 0.5, lower=False).value is None


def test_an_effort_that_another_beats_is_not_forgotten_as_the_smallest_that_was_asked():
    beaten = point(16, 0.8, 900)
    said = at_target([beaten, *SWEEP[1:]], 0.5, lower=False).why
    assert said == "the least recall of the front, at ef 32, is 0.9000"


def test_the_uncertainty_of_both_neighbours_is_that_of_what_lies_between():
    exact = at_target(SWEEP, 0.94, lower=False)
    assert exact.low == exact.high == exact.value
    vague = [point(16, 0.80, 2000), point(32, 0.90, 1500, 0.2), point(64, 0.98, 1000, 0.2)]
    at = at_target(vague, 0.94, lower=False)
    # A recall of 0.90 ± 0.02 and 0.98 ± 0.02, costs ± 20: the target lies 25 % to 80 % of the way.
    assert at.low < 1250 - 20 and at.high > 1250 + 20
    assert 980 <= at.low <= at.value <= at.high <= 1520


def test_a_cost_without_an_interval_gives_a_value_without_one():
    def bare(p: Point) -> Point:
        return Point(p.ef_search, {**p.recall, "low": None, "high": None}, p.cost)

    at = at_target([bare(SWEEP[1]), SWEEP[3]], 0.94, lower=False)
    assert at.value == pytest.approx(1250) and at.low is None
