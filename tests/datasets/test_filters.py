"""Filters have the selectivity that was asked, go with position where that was asked, and are judged query by query."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from anncestry.cells import config
from anncestry.datasets import metadata
from anncestry.datasets.metadata import HALVINGS, REGIONS, regions
from anncestry.datasets.payload import NO_PAYLOAD
from anncestry.datasets.truth import Problem
from anncestry.errors import ConfigError
from anncestry.measure.requests import Answers, impossible
from anncestry.measure.vectors import Filtering
from anncestry.metrics import defects
from tests.builders.bench import failed
from tests.builders.neighbours import brute_force


def clustered(rows: int, dim: int = 12, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    centers = random.normal(size=(20, dim)) * 4
    return (centers[random.integers(0, 20, rows)] + random.normal(size=(rows, dim))).astype(np.float32)


@pytest.fixture(scope="module")
def placed(tmp_path_factory):
    """Rows, queries, and their regions."""
    base, queries = clustered(5000), clustered(200, seed=0)
    path = tmp_path_factory.mktemp("regions") / "base.npy"
    np.save(path, base)
    return path, base, queries, *regions(path, queries, seed=7)


# Regions


def test_all_regions_hold_equally_many_rows(placed):
    _, base, _, region, _ = placed
    counts = np.bincount(region, minlength=REGIONS)
    assert counts.min() >= len(base) // REGIONS and counts.max() <= len(base) // REGIONS + 1


@pytest.mark.parametrize("rows", [1, 2, 100, 300, 540])
def test_fewer_or_hardly_more_rows_than_regions_are_no_problem(tmp_path: Path, rows):
    base = clustered(rows)
    np.save(tmp_path / "base.npy", base)
    region, of_queries = regions(tmp_path / "base.npy", base[:1], seed=7)
    assert np.bincount(region).max() <= -(-rows // REGIONS) + 1
    assert len(of_queries) == 1


def test_rows_that_are_all_equal_are_split_by_their_number(tmp_path: Path):
    np.save(tmp_path / "base.npy", np.ones((1000, 4), np.float32))
    region, _ = regions(tmp_path / "base.npy", np.ones((3, 4), np.float32), seed=7)
    assert np.bincount(region, minlength=REGIONS).min() >= 3


def test_a_query_that_is_a_row_lies_in_the_region_of_the_row(tmp_path: Path):
    base = clustered(3000)
    np.save(tmp_path / "base.npy", base)
    region, of_queries = regions(tmp_path / "base.npy", base[:500], seed=7)
    assert (region[:500] == of_queries).mean() > 0.99


def test_regions_are_the_same_whatever_the_chunks_they_are_read_in(placed, monkeypatch):
    path, _, queries, region, of_queries = placed
    monkeypatch.setattr("anncestry.datasets.metadata._CHUNK_BYTES", 5000)
    again, queries_again = regions(path, queries, seed=7)
    np.testing.assert_array_equal(again, region)
    np.testing.assert_array_equal(queries_again, of_queries)


def test_near_rows_are_nearer_than_those_of_any_filter_as_narrow_and_far_rows_farther(placed):
    _, base, queries, region, of_queries = placed
    price = metadata.price(len(base), 7)

    def mean_distance(filter) -> float:
        asked = metadata.resolve(filter, price, of_queries)
        far = []
        for number, one in enumerate(asked.distinct):
            passes = metadata.matches(one, np.zeros(len(base), np.uint8), price, region)
            for query in queries[asked.of == number]:
                far.append(np.square(base[passes] - query).sum(axis=1).mean())
        return float(np.mean(far))

    near = mean_distance({"field": "region", "side": "same", "halvings": 3})
    anywhere = mean_distance({"field": "price", "share": 0.125})
    opposite = mean_distance({"field": "region", "side": "opposite", "halvings": 3})
    assert near < 0.8 * anywhere < anywhere < 0.95 * opposite


# Selectivity


@pytest.mark.parametrize("share", [0.001, 0.01, 0.05, 0.1, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("rows", [1000, 9000, 60000])
def test_the_share_of_rows_that_pass_is_the_share_that_was_asked(share, rows):
    price = metadata.price(rows, 20261121)
    asked = metadata.resolve({"field": "price", "share": share}, price, np.zeros(5, np.uint8))
    assert len(asked.distinct) == 1 and (asked.of == 0).all()
    passes = metadata.matches(asked.distinct[0], np.zeros(rows, np.uint8), price)
    assert abs(int(passes.sum()) - round(share * rows)) <= 1, "but for rows of that very price"


@pytest.mark.parametrize("halvings", range(1, HALVINGS + 1))
@pytest.mark.parametrize("side", metadata.SIDES)
def test_each_halving_halves_what_passes_and_both_sides_are_as_wide(placed, halvings, side):
    _, base, _, region, of_queries = placed
    asked = metadata.resolve({"field": "region", "side": side, "halvings": halvings}, np.zeros(1), of_queries)
    for one in asked.distinct:
        passes = metadata.matches(one, np.zeros(len(base), np.uint8), np.zeros(len(base), np.float32), region)
        assert abs(int(passes.sum()) - len(base) / 2**halvings) <= 2 ** (HALVINGS - halvings)


def test_the_same_side_holds_the_query_and_the_opposite_side_agrees_in_no_split():
    every = np.arange(REGIONS)
    for halvings in range(1, HALVINGS + 1):
        same = metadata.resolve({"field": "region", "side": "same", "halvings": halvings}, np.zeros(1), every)
        opposite = metadata.resolve({"field": "region", "side": "opposite", "halvings": halvings}, np.zeros(1), every)
        for query in (0, 1, 100, 255):
            here, there = same.distinct[same.of[query]], opposite.distinct[opposite.of[query]]
            assert here["from"] <= query < here["below"]
            for other in range(there["from"], there["below"]):
                assert (other >> (HALVINGS - halvings)) ^ (query >> (HALVINGS - halvings)) == 2**halvings - 1


@pytest.mark.parametrize(
    ("filter", "because"),
    [
        ({"field": "price", "share": 0}, "between 0 and 1"),
        ({"field": "price", "share": 0.5, "below": 3}, "unknown operator 'below'"),
        ({"field": "region", "side": "left", "halvings": 3}, "same or opposite"),
        ({"field": "region", "side": "same", "halvings": 9}, "from 1 to 8"),
        ({"field": "region", "side": "same"}, "lacks 'halvings'"),
        ({"field": "region", "from": 3}, "lacks 'below'"),
    ],
)
def test_a_filter_that_means_nothing_is_refused(filter, because):
    with pytest.raises(ConfigError, match=because):
        metadata.check_filter(filter)


def test_a_filter_that_is_not_resolved_yet_passes_no_row_by_mistake():
    with pytest.raises(ConfigError, match="not resolved"):
        metadata.matches({"field": "price", "share": 0.5}, np.zeros(3, np.uint8), np.zeros(3, np.float32))


# Truth and judgement, query by query


def test_the_truth_of_each_query_is_among_the_rows_that_its_own_filter_passes(placed):
    path, base, queries, region, of_queries = placed
    columns = (np.zeros(len(base), np.uint8), np.zeros(len(base), np.float32), region)
    asked = metadata.resolve({"field": "region", "side": "opposite", "halvings": 4}, columns[1], of_queries)
    assert len(asked.distinct) > 4
    problem = Problem({"base": path}, "l2", 10, len(base), queries, asked, columns)
    found, matching = problem.solve(range(len(base)), "truth")
    for query in range(0, len(queries), 7):
        passes = metadata.matches(asked.distinct[asked.of[query]], *columns)
        assert matching[query] == passes.sum()
        ids, _ = brute_force(base, queries[query : query + 1], "l2", 10, passes)
        np.testing.assert_array_equal(found.ids[query], ids[0])


def answers(ids: np.ndarray) -> Answers:
    size = (ids >= 0).sum(axis=1)
    return Answers(ids, np.zeros(ids.shape), size, np.zeros(len(ids), np.uint8), {})


def test_a_row_that_another_query_s_filter_passes_is_a_violation(placed):
    _, base, _, region, _ = placed

    class Rows:
        pass

    rows = Rows()
    rows.base, rows.region, rows.payload = base, region, NO_PAYLOAD
    rows.category, rows.price = np.zeros(len(base), np.uint8), np.zeros(len(base), np.float32)
    low, high = np.flatnonzero(region < 128)[:2], np.flatnonzero(region >= 128)[:2]
    filters = Filtering.of({"field": "region", "side": "same", "halvings": 1}, rows, np.array([3, 200], np.uint8))
    right, swapped = np.stack([low, high]), np.stack([high, low])
    assert filters.violating(np.array([0, 1]), right).tolist() == [False, False]
    assert filters.violating(np.array([0, 1]), swapped).tolist() == [True, True]
    assert filters.violating(np.array([1, 0]), swapped).tolist() == [False, False]
    assert filters.violating(np.array([0, 1]), np.array([[-1, low[0]], [10**9, high[0]]])).tolist() == [False, True]


NEAR = {"k": 5, "clients": 1, "runs": 2, "queries": 40, "warmup": 10}


def with_filter(filter, **more):
    def change(files):
        files["workloads"] = {"asked": {**NEAR, "filter": filter, **more}}
        files["config"]["matrix"][0]["workloads"] = ["asked"]

    return change


@pytest.mark.parametrize("dataset", ["blobs-l2", "blobs-cosine"])
@pytest.mark.parametrize(
    ("filter", "share"),
    [
        ({"field": "region", "side": "same", "halvings": 2}, 0.25),
        ({"field": "region", "side": "opposite", "halvings": 5}, 1 / 32),
        ({"field": "price", "share": 0.01}, 5 / 540),
    ],
)
def test_filters_by_position_pass_every_gate_of_an_honest_system_and_their_recall_is_1(bench, dataset, filter, share):
    from anncestry.datasets import truth
    from anncestry.measure import recall

    honest = bench("", dataset, with_filter(filter))
    (cell,) = honest.matrix.cells
    honest.load(cell)
    assert set(honest.query(cell, runs=2).values()) == {"ok"}
    record = honest.publish(cell)
    assert failed(record) == {}
    assert record["selectivity"] == pytest.approx(share, rel=0.02)
    truth.run(
        honest.matrix.spec(cell.truth, "truth"),
        Path(cell.vectors_path).parent,
        Path(cell.truth_path).parent,
        cell.truth,
    )
    samples = Path(cell.samples_path)
    scored = recall.score(record, samples, Path(cell.truth_path), Path(cell.vectors_path))
    for rule in ("by_id", "by_distance", "ndcg", "mrr"):
        assert scored["recall"][rule]["value"] == 1
        assert 0.9 < scored["recall"][rule]["low"] < scored["recall"][rule]["high"] == 1, "others were not asked"
    assert scored["distribution"]["zero_share"] == 0 and scored["distribution"]["p5"] == 1


@pytest.mark.parametrize(
    ("lie", "gate"), [("ignore-filter", "filter applied"), ("narrow-filter", "filter selectivity")]
)
def test_a_filter_by_position_that_is_not_what_was_asked_is_seen(bench, lie, gate):
    lying = bench(lie, "blobs-l2", with_filter({"field": "region", "side": "opposite", "halvings": 3}))
    (cell,) = lying.matrix.cells
    lying.load(cell)
    lying.query(cell, runs=2)
    assert gate in failed(lying.publish(cell))


@pytest.mark.parametrize(("lie", "kinds"), [("fewer", {"short"}), ("duplicate", {"short", "repeated"})])
def test_short_and_repeating_answers_fail_no_gate_of_a_run_and_their_share_is_a_defect(bench, lie, kinds):
    lying = bench(lie, "blobs-l2", with_filter({"field": "price", "share": 0.5}))
    (cell,) = lying.matrix.cells
    lying.load(cell)
    lying.query(cell, runs=2)
    record = lying.publish(cell)
    assert not failed(record).keys() & {"known rows", "decodable", "filter applied", "answered", "distances"}
    found = record["defects"]
    assert {name for name, count in found.items() if name not in ("answers", "share") and count} == kinds
    assert found["answers"] == found["short"] == 80, "all answers of two runs"
    assert found["share"]["value"] == 1 and 0.9 < found["share"]["low"] < 1 == found["share"]["high"]
    assert record["summary"]["complete_qps"]["value"] == 0 < record["summary"]["qps"]["value"]


def test_an_id_that_no_row_has_and_more_than_k_rows_are_impossible():
    found = answers(np.array([[1, 2, 3], [1, 2, -1], [1, 1, 2], [1, 2, 999]]))
    assert impossible(found, 1000) == 0
    assert impossible(found, 100) == 1
    too_many = Answers(found.ids[:1], np.zeros((1, 3)), np.array([4]), np.zeros(1, np.uint8), {})
    assert impossible(too_many, 100) == 1


def test_an_answer_is_short_empty_repeating_or_violating_by_what_there_is_to_find():
    ids = np.array([[1, 2, 3], [1, 2, -1], [1, 1, 2], [-1, -1, -1], [-1, -1, -1], [1, 2, 3]])
    wanted = np.array([3, 3, 2, 3, 0, 2])
    bits = defects.of_answers(ids, wanted, np.array([0, 0, 0, 0, 0, 1], bool)).tolist()
    short, empty, repeated, violating = defects.BITS.values()
    assert bits == [0, short, repeated, short | empty, 0, violating], "where nothing passes, nothing is missing"


# Config


def test_a_list_in_a_workload_is_a_workload_for_each_and_a_matrix_that_names_it_names_all():
    workloads = {"a": {"k": 1, "ef_search": [16, 32], "filter": {"field": "price", "share": [0.1, 0.5]}}, "b": {"k": 2}}
    expanded, names = config.sweep(workloads, "workloads.yaml")
    assert list(expanded) == ["a-ef16-share0.1", "a-ef16-share0.5", "a-ef32-share0.1", "a-ef32-share0.5", "b"]
    assert expanded["a-ef32-share0.1"] == {"k": 1, "ef_search": 32, "filter": {"field": "price", "share": 0.1}}
    assert config.name_all(["b", "a", "c"], names) == ["b", *names["a"], "c"]


def test_a_variant_that_takes_the_name_of_another_workload_is_refused():
    with pytest.raises(ConfigError, match="a-ef16 has the name of another"):
        config.sweep({"a": {"ef_search": [16]}, "a-ef16": {"k": 1}}, "workloads.yaml")


def test_systems_that_differ_in_settings_share_what_they_run(bench):
    def change(files):
        files["systems"]["green-1.0"] = {"of": "blue-1.0", "settings": {}}
        files["config"]["matrix"][0]["systems"] = ["blue-1.0", "green-1.0"]
        files["config"]["matrix"][0]["workloads"] = ["k5"]

    blue, green = bench("", "blobs-l2", change).matrix.cells
    assert blue.artifact == green.artifact and blue.artifact_path == green.artifact_path
    assert blue.load != green.load
