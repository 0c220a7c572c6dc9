"""Recall counts what was found, once, out of what there was to find."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from anncestry.datasets.truth import nearest
from anncestry.metrics import latency
from anncestry.metrics.recall import (
    ABS_EPS,
    exact_distances,
    ndcg,
    recall_by_distance,
    recall_by_id,
    reciprocal_rank,
)

NONE = -1
INF = np.inf


def ids(*rows: list[int]) -> NDArray[np.int64]:
    return np.array(rows, dtype=np.int64)


def distances(*rows: list[float]) -> NDArray[np.float64]:
    return np.array(rows, dtype=np.float64)


def test_recall_by_id_is_the_share_of_true_neighbors_returned_in_any_order() -> None:
    recalls = recall_by_id(ids([3, 1, 2], [9, 8, 1], [7, 8, 9]), ids([1, 2, 3], [1, 2, 3], [1, 2, 3]), k=3)
    np.testing.assert_allclose(recalls, [1, 1 / 3, 0])


def test_only_the_first_k_of_answer_and_truth_count() -> None:
    returned, truth = ids([5, 6, 1, 2]), ids([1, 2, 5, 6])
    np.testing.assert_allclose(recall_by_id(returned, truth, k=2), [0])
    np.testing.assert_allclose(recall_by_id(returned, truth, k=4), [1])
    np.testing.assert_allclose(recall_by_distance(returned, distances([3, 4, 1, 2]), distances([1, 2, 3, 4]), k=2), [0])


def test_a_neighbor_of_another_query_is_no_hit() -> None:
    np.testing.assert_allclose(recall_by_id(ids([3, 4], [1, 2]), ids([1, 2], [3, 4]), k=2), [0, 0])


def test_an_id_returned_twice_counts_once() -> None:
    returned, truth = ids([1, 1, 1, 2]), ids([1, 2, 3, 4])
    np.testing.assert_allclose(recall_by_id(returned, truth, k=4), [0.5])
    by_distance = recall_by_distance(returned, distances([0, 0, 0, 1]), distances([0, 1, 2, 3]), k=4)
    np.testing.assert_allclose(by_distance, [0.5])


def test_padding_is_no_hit_though_the_truth_is_padded_too() -> None:
    np.testing.assert_allclose(recall_by_id(ids([1, NONE, NONE]), ids([1, 2, NONE]), k=3), [0.5])
    by_distance = recall_by_distance(ids([1, NONE, NONE]), distances([0, INF, INF]), distances([0, 1, INF]), k=3)
    np.testing.assert_allclose(by_distance, [0.5])


def test_returning_all_matches_is_recall_1_when_fewer_than_k_match() -> None:
    truth_ids, truth = ids([4, 7, NONE, NONE]), distances([1, 2, INF, INF])
    returned = ids([7, 4, NONE, NONE])
    np.testing.assert_allclose(recall_by_id(returned, truth_ids, k=4), [1])
    np.testing.assert_allclose(recall_by_distance(returned, distances([2, 1, INF, INF]), truth, k=4), [1])


def test_a_query_that_nothing_matches_is_nan() -> None:
    truth_ids, truth = ids([NONE, NONE], [1, 2]), distances([INF, INF], [1, 2])
    returned, returned_distances = ids([5, NONE], [1, 9]), distances([1, INF], [1, 9])
    for recalls in (
        recall_by_id(returned, truth_ids, k=2),
        recall_by_distance(returned, returned_distances, truth, k=2),
    ):
        assert np.isnan(recalls[0]) and recalls[1] == 0.5


def test_a_tied_row_is_a_hit_by_distance_and_a_miss_by_id() -> None:
    returned, truth_ids = ids([1, 9]), ids([1, 2])
    np.testing.assert_allclose(recall_by_id(returned, truth_ids, k=2), [0.5])
    np.testing.assert_allclose(recall_by_distance(returned, distances([1, 4]), distances([1, 4]), k=2), [1])


def test_eps_forgives_float32_rounding_and_no_more() -> None:
    truth = distances([0.5, 1.0])
    for excess, hit in ((5e-7, 1.0), (2e-6, 0.5)):
        recall = recall_by_distance(ids([1, 9]), distances([0.5, 1 + excess]), truth, k=2)
        np.testing.assert_allclose(recall, [hit])
    near = distances([-2e-8, 4e-8])  # duplicates under cosine: rounding of unit vectors is all there is
    got = recall_by_distance(ids([1, 9]), near, distances([-2e-8, 1e-8]), k=2, abs_eps=ABS_EPS["cosine"])
    np.testing.assert_allclose(got, [1])
    np.testing.assert_allclose(recall_by_distance(ids([1, 9]), near, distances([-2e-8, 1e-8]), k=2), [0.5])


def test_recall_by_distance_never_exceeds_1() -> None:
    recall = recall_by_distance(ids([1, 2, 3]), distances([1, 1, 1]), distances([1, 1, INF]), k=3)
    np.testing.assert_allclose(recall, [1])


def test_an_id_that_no_row_has_is_a_miss_and_no_crash() -> None:
    returned = ids([2**62, 1, -5])
    np.testing.assert_allclose(recall_by_id(returned, ids([1, 2, 3]), k=3), [1 / 3])
    base = np.eye(4, dtype=np.float32)
    np.testing.assert_array_equal(exact_distances(base, base[:1], returned, "l2"), [[INF, 2, INF]])


def test_a_row_that_the_filter_excludes_is_a_miss_however_near() -> None:
    base = np.array([[0], [1], [2], [3]], dtype=np.float32)
    query = np.array([[0]], dtype=np.float32)
    matches = np.array([False, False, True, True])
    returned = ids([0, 2])  # 0 is the nearest of all, but must not be returned
    truth = distances([4, 9])
    unfiltered = exact_distances(base, query, returned, "l2")
    assert recall_by_distance(returned, unfiltered, truth, k=2)[0] == 1, "the trap: nearer than the true neighbours"
    filtered = np.where(matches[returned], unfiltered, INF)
    assert recall_by_distance(returned, filtered, truth, k=2)[0] == 0.5


def test_exact_distances_are_squared_euclidean_and_one_minus_inner_product() -> None:
    random = np.random.default_rng(3)
    base = random.normal(size=(5000, 9)).astype(np.float32)
    queries = random.normal(size=(60, 9)).astype(np.float32)
    returned = random.integers(0, 5000, size=(60, 50))
    rows, wanted = base[returned].astype(float), queries[:, np.newaxis].astype(float)
    np.testing.assert_allclose(exact_distances(base, queries, returned, "l2"), ((rows - wanted) ** 2).sum(2))
    np.testing.assert_allclose(exact_distances(base, queries, returned, "cosine"), 1 - (rows * wanted).sum(2))


def test_exact_distances_of_a_memory_map_equal_those_of_the_truth_bit_for_bit(tmp_path: Path) -> None:
    base = np.random.default_rng(4).normal(size=(3000, 333)).astype(np.float32)
    np.save(tmp_path / "base.npy", base)
    found = nearest(tmp_path / "base.npy", base[:20], "l2", 10, np.ones(3000, dtype=bool))
    mapped = np.load(tmp_path / "base.npy", mmap_mode="r")
    np.testing.assert_array_equal(exact_distances(mapped, base[:20], found.ids, "l2"), found.distances)


@pytest.mark.parametrize("metric", ["l2", "cosine"])
def test_distances_are_summed_in_one_order_so_that_every_machine_gets_the_same_bits(metric: str) -> None:
    base = np.random.default_rng(4).normal(size=(40, 333)).astype(np.float32)

    def one_by_one(row: list[float], query: list[float]) -> float:
        total = 0.0
        for left, right in zip(row, query, strict=True):
            total += (left - right) * (left - right) if metric == "l2" else left * right
        return total if metric == "l2" else 1 - total

    expected = [one_by_one(row, base[0].tolist()) for row in base.tolist()]
    every = np.arange(40)[np.newaxis]
    np.testing.assert_array_equal(exact_distances(base, base[:1], every, metric)[0], expected)
    alone = [exact_distances(base, base[:1], every[:, i : i + 1], metric)[0, 0] for i in range(40)]
    np.testing.assert_array_equal(alone, expected)


@pytest.mark.parametrize(
    ("returned", "truth", "k", "because"),
    [
        (ids([1]), ids([1, 2]), 3, "fewer than k = 3"),
        (ids([1]), ids([1, 2], [1, 2]), 1, "answers to 1 queries, but the truth of 2"),
        (ids([1]), ids([1, 2]), 0, "k is 0"),
    ],
)
def test_truth_that_does_not_fit_is_refused(
    returned: NDArray[np.int64], truth: NDArray[np.int64], k: int, because: str
) -> None:
    with pytest.raises(ValueError, match=because):
        recall_by_id(returned, truth, k)
    with pytest.raises(ValueError, match=because):
        recall_by_distance(returned, returned.astype(float), truth.astype(float), k)


# Traps that published numbers fell into


@pytest.fixture(scope="module")
def lengths_differ(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, NDArray[np.float32], NDArray[np.float32]]:
    """Vectors whose lengths differ widely, as those of GloVe, so that the metrics disagree; raw and of length 1."""
    random = np.random.default_rng(5)
    raw = random.normal(size=(4000, 16)) * random.lognormal(sigma=1, size=(4000, 1))
    unit = (raw / np.linalg.norm(raw, axis=1, keepdims=True)).astype(np.float32)
    path = tmp_path_factory.mktemp("vectors") / "base.npy"
    np.save(path, unit)
    return path, raw.astype(np.float32), unit


def test_a_wrong_metric_gives_a_wrong_recall(
    lengths_differ: tuple[Path, NDArray[np.float32], NDArray[np.float32]], tmp_path: Path
) -> None:
    path, raw, unit = lengths_differ
    every = np.ones(len(raw), dtype=bool)
    np.save(tmp_path / "raw.npy", raw)
    truth = nearest(path, unit[:50], "cosine", 10, every)
    right = nearest(path, unit[:50], "l2", 10, every)  # on unit vectors l2 orders as cosine does
    assert recall_by_id(right.ids, truth.ids, 10).mean() == 1
    for wrong in (
        nearest(tmp_path / "raw.npy", raw[:50], "l2", 10, every),
        nearest(tmp_path / "raw.npy", raw[:50], "cosine", 10, every),  # raw inner product
    ):
        assert recall_by_id(wrong.ids, truth.ids, 10).mean() < 0.7
        exact = exact_distances(unit, unit[:50], wrong.ids, "cosine")
        assert recall_by_distance(wrong.ids, exact, truth.distances, 10).mean() < 0.7


def test_a_prefix_scored_against_the_truth_of_all_rows_has_a_ceiling(
    lengths_differ: tuple[Path, NDArray[np.float32], NDArray[np.float32]], tmp_path: Path
) -> None:
    path, _, unit = lengths_differ
    np.save(tmp_path / "prefix.npy", unit[:800])
    of_all = nearest(path, unit[-100:], "cosine", 10, np.ones(len(unit), dtype=bool))
    of_prefix = nearest(tmp_path / "prefix.npy", unit[-100:], "cosine", 10, np.ones(800, dtype=bool))
    perfect_answers = of_prefix.ids
    assert recall_by_id(perfect_answers, of_prefix.ids, 10).mean() == 1
    assert abs(recall_by_id(perfect_answers, of_all.ids, 10).mean() - 0.2) < 0.05


# How the peers' recall goes wrong (each named in the test), and that ours does not


def test_vectordbbench_divides_by_k_where_there_are_fewer_true_neighbours() -> None:
    """`len(hits) / k`: who returns both of two matches gets 0.2 at k = 10."""
    truth_ids = np.full((1, 10), NONE)
    truth_ids[0, :2] = [4, 7]
    assert recall_by_id(truth_ids, truth_ids, 10)[0] == 1


def test_qdrant_s_benchmark_scores_an_empty_truth_as_1() -> None:
    nothing = np.full((1, 10), NONE)
    assert np.isnan(recall_by_id(nothing, nothing, 10)[0])


def test_duplicates_asked_about_at_ann_benchmarks_count_once_by_distance_too() -> None:
    """Issues 519 and 367: counted by distance alone, the nearest row returned k times would be recall 1."""
    returned = ids([5] * 10)
    truth = distances([0.5 + i for i in range(10)])
    assert recall_by_distance(returned, distances([0.5] * 10), truth, 10)[0] == pytest.approx(0.1)


def test_a_system_that_reports_distances_of_0_gains_nothing() -> None:
    """Distances are computed anew from the returned ids."""
    base = np.array([[0], [1], [50]], dtype=np.float32)
    exact = exact_distances(base, base[:1], ids([2, 2]), "l2")
    assert recall_by_distance(ids([2, 2]), exact, distances([0, 1]), 2)[0] == 0


def test_the_paper_s_prefixes_scored_against_the_whole_truth_would_stop_at_their_share() -> None:
    whole_truth = ids(list(range(10)))
    best_possible = ids([i if i < 2 else NONE for i in range(10)])  # only two of the true ten are in the prefix
    assert recall_by_id(best_possible, whole_truth, 10)[0] == pytest.approx(0.2)


def test_ties_as_big_ann_counts_them_are_hits_whichever_of_them_is_returned() -> None:
    truth, truth_ids = distances([1, 2, 2]), ids([0, 1, 2])
    assert recall_by_distance(ids([0, 8, 9]), distances([1, 2, 2]), truth, 3)[0] == 1
    assert recall_by_id(ids([0, 8, 9]), truth_ids, 3)[0] == pytest.approx(1 / 3)


def test_a_mean_of_099_may_hide_queries_that_found_nothing() -> None:
    """Few look at the distribution: Milvus' filtered searches and Weaviate's acorn return nothing for some queries."""
    truth = np.tile(np.arange(10), (200, 1))
    returned = truth.copy()
    returned[:2] = NONE
    recalls = recall_by_id(returned, truth, 10)
    assert recalls.mean() == 0.99 and (recalls == 0).mean() == 0.01


# nDCG and MRR


def test_ndcg_is_1_for_the_truth_in_order_and_for_any_order_of_all_of_it() -> None:
    truth = distances([1, 2, 3])
    assert ndcg(ids([1, 2, 3]), distances([1, 2, 3]), truth, 3)[0] == pytest.approx(1)
    assert ndcg(ids([3, 1, 2]), distances([3, 1, 2]), truth, 3)[0] == pytest.approx(1), "relevance is binary"


def test_ndcg_charges_a_miss_in_front_more_than_one_at_the_end() -> None:
    truth = distances([1, 2, 3])
    ideal = 1 + 1 / np.log2(3) + 1 / 2
    first = ndcg(ids([9, 1, 2]), distances([9, 1, 2]), truth, 3)[0]
    last = ndcg(ids([1, 2, 9]), distances([1, 2, 9]), truth, 3)[0]
    assert first == pytest.approx((1 / np.log2(3) + 1 / 2) / ideal)
    assert last == pytest.approx((1 + 1 / np.log2(3)) / ideal)


def test_ndcg_knows_few_matches_repeats_and_nothing_to_find() -> None:
    few = distances([1, INF, INF])
    assert ndcg(ids([1, NONE, NONE]), distances([1, INF, INF]), few, 3)[0] == pytest.approx(1)
    assert ndcg(ids([1, 1, 1]), distances([1, 1, 1]), distances([1, 2, 3]), 3)[0] < 0.5
    assert np.isnan(ndcg(ids([1]), distances([1]), distances([INF, INF]), 2)[0])
    tied = ndcg(ids([1, 2, 3]), distances([1, 1, 1]), distances([1, 1, INF]), 3)[0]
    assert tied == pytest.approx(1), "never above"


def test_mrr_is_one_over_the_rank_of_the_nearest() -> None:
    truth = distances([1, 2, 3], [1, 2, 3], [1, 2, 3], [INF, INF, INF])
    returned = ids([1, 2, 3], [2, 3, 1], [2, 3, 4], [1, 2, 3])
    found = reciprocal_rank(returned, distances([1, 2, 3], [2, 3, 1], [2, 3, 4], [1, 2, 3]), truth, 3)
    np.testing.assert_allclose(found, [1, 1 / 3, 0, np.nan])
    assert reciprocal_rank(ids([8, 1]), distances([1, 1]), distances([1, 2]), 2)[0] == 1, "a tie with the nearest"


def test_a_quantile_of_counted_values_is_that_of_the_values() -> None:
    random = np.random.default_rng(0)
    for n in (1, 2, 3, 7, 20, 99, 100, 101, 1000):
        values = random.integers(0, 6, n) / 10
        distinct, counts = np.unique(values, return_counts=True)
        for q in (0.0, 0.01, 0.05, 0.29, 0.5, 0.95, 0.99, 1.0):
            quantile = np.quantile(values, q, method="inverted_cdf")
            assert latency.quantile_of_counts(distinct, counts, q) == quantile, (n, q)
            assert latency.quantile(np.sort(values), q) == quantile, (n, q)
    assert np.isnan(latency.quantile_of_counts([], [], 0.5))
