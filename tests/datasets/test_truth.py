"""The ground truth is exact: against brute force in float64, with ties, filters, few matches and hostile numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from anncestry.datasets import download, metadata, normalize, truth
from anncestry.datasets.truth import Neighbors, nearest
from anncestry.errors import ConfigError, DataError
from anncestry.measure.recall import Truth
from anncestry.measure.vectors import choose, open_vectors
from anncestry.provenance.records import verify_outputs
from tests.builders.neighbours import brute_force

DEPTH = 10
Floats = NDArray[np.float32]


def find(
    folder: Path,
    base: Floats,
    queries: Floats,
    metric: str,
    depth: int = DEPTH,
    passes: NDArray[np.bool_] | None = None,
    rows_per_chunk: int = 300,
) -> Neighbors:
    np.save(folder / "base.npy", base)
    every = np.ones(len(base), dtype=np.bool_)
    chunk_bytes = rows_per_chunk * base.shape[1] * 4
    return nearest(
        folder / "base.npy", queries, metric, depth, every if passes is None else passes, chunk_bytes=chunk_bytes
    )


def made_up(rows: int, dim: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).normal(size=(rows, dim)).astype(np.float32)


def unit(vectors: Floats) -> Floats:
    scaled: Floats = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return scaled


@pytest.mark.parametrize("metric", ["l2", "cosine"])
@pytest.mark.parametrize("queries", [3, 40])  # faiss computes few and many queries differently
@pytest.mark.parametrize("rows_per_chunk", [7, 300, 10**6])
def test_neighbors_equal_brute_force_whatever_the_chunks(
    metric: str, queries: int, rows_per_chunk: int, tmp_path: Path
) -> None:
    base, asked = unit(made_up(1000, 24)), unit(made_up(queries, 24, seed=1))
    found = find(tmp_path, base, asked, metric, rows_per_chunk=rows_per_chunk)
    ids, distances = brute_force(base, asked, metric, DEPTH)
    np.testing.assert_array_equal(found.ids, ids)
    np.testing.assert_allclose(found.distances, distances, rtol=1e-12, atol=1e-14)


def test_integer_data_with_many_ties_is_ordered_by_distance_and_then_id(tmp_path: Path) -> None:
    """As SIFT: bytes in few dimensions, so that equal distances abound, also across the end of the list."""
    base = np.random.default_rng(2).integers(0, 4, size=(2000, 6)).astype(np.float32)
    asked = base[:50] + np.float32(0)
    ids, distances = brute_force(base, asked, "l2", DEPTH + 1)
    ties = int((distances[:, DEPTH - 1] == distances[:, DEPTH]).sum())
    assert ties > 10, "the data must have the ties that this test is about"
    found = find(tmp_path, base, asked, "l2")
    np.testing.assert_array_equal(found.ids, ids[:, :DEPTH])
    np.testing.assert_array_equal(found.distances, distances[:, :DEPTH])
    assert found.tied(DEPTH).sum() == ties
    np.testing.assert_array_equal(found.tied(3), distances[:, 2] == distances[:, 3])


@pytest.mark.parametrize("metric", ["l2", "cosine"])
def test_a_tie_far_wider_than_the_candidates_ends_with_the_lowest_ids(metric: str, tmp_path: Path) -> None:
    base = np.tile(unit(made_up(1, 8)), (1000, 1))
    asked = unit(made_up(5, 8, seed=1))
    found = find(tmp_path, base, asked, metric)
    np.testing.assert_array_equal(found.ids, np.tile(np.arange(DEPTH), (5, 1)))
    assert found.tied(DEPTH).all() and found.scanned_queries == 5


@pytest.mark.parametrize(("offset", "spread"), [(1e3, 1e-2), (1e4, 2e-3), (1e6, 0.2)])
def test_rows_that_float32_cannot_order_are_ordered_exactly(offset: float, spread: float, tmp_path: Path) -> None:
    """Far from the origin ‖q‖² + ‖x‖² − 2qx loses the distance's digits: in float32, and further out in float64."""
    base = (offset + spread * made_up(3000, 16)).astype(np.float32)
    asked = base[:40] + np.float32(0)
    ids, distances = brute_force(base, asked, "l2", DEPTH)
    found = find(tmp_path, base, asked, "l2")
    assert found.scanned_queries == 40
    np.testing.assert_array_equal(found.ids, ids)
    np.testing.assert_allclose(found.distances, distances, rtol=1e-12)


@pytest.mark.parametrize("scale", [1e19, 1e37, 1e-22, 1e-38])
def test_numbers_whose_squares_leave_float32_are_searched_exactly(scale: float, tmp_path: Path) -> None:
    base = (made_up(800, 5).astype(np.float64) * scale).astype(np.float32)
    ids, _ = brute_force(base, base[:30], "l2", DEPTH)
    np.testing.assert_array_equal(find(tmp_path, base, base[:30], "l2").ids, ids)
    few = base[: DEPTH + 3]  # all rows are candidates, so nothing but the overflow can go wrong
    ids, _ = brute_force(few, few[:3], "l2", DEPTH)
    np.testing.assert_array_equal(find(tmp_path, few, few[:3], "l2").ids, ids)


def test_only_rows_that_pass_the_filter_are_found(tmp_path: Path) -> None:
    base, asked = made_up(2000, 12), made_up(25, 12, seed=1)
    passes = np.random.default_rng(3).random(2000) < 0.3
    found = find(tmp_path, base, asked, "l2", passes=passes)
    assert passes[found.ids].all()
    np.testing.assert_array_equal(found.ids, brute_force(base, asked, "l2", DEPTH, passes)[0])


@pytest.mark.parametrize("matching", [0, 1, DEPTH - 1, DEPTH])
def test_fewer_matches_than_asked_are_padded(matching: int, tmp_path: Path) -> None:
    base, asked = made_up(900, 12), made_up(4, 12, seed=1)
    passes = np.zeros(900, dtype=bool)
    passes[np.arange(matching) * 90] = True
    found = find(tmp_path, base, asked, "l2", passes=passes)
    np.testing.assert_array_equal(found.ids, brute_force(base, asked, "l2", DEPTH, passes)[0])
    assert (found.ids[:, matching:] == -1).all() and np.isinf(found.distances[:, matching:]).all()
    assert not found.tied(DEPTH).any(), "padding is not a tie"


# The stage


def made_dataset(
    folder: Path,
    base: Floats,
    queries: Floats,
    metric: str,
    prefix: int | None = None,
    **truth_members: NDArray[Any],
) -> Path:
    """Send arrays through download and normalize; returns the folder of vectors."""
    with h5py.File(folder / "made.hdf5", "w") as file:
        file["train"], file["test"] = base, queries
        for name, values in truth_members.items():
            file[name] = values
    spec = {
        "name": "made",
        "rows": len(base),
        "queries": len(queries),
        "dim": base.shape[1],
        "metric": metric,
        "content": {},
        "sources": [{"kind": "file", "path": str(folder / "made.hdf5"), "format": "hdf5"}],
    }
    download.run(spec, folder / "download", folder / "cache", key="d")
    asked = {"metric": metric, "prefix": prefix, "seed": 7, "zero_vectors": "keep"}
    normalize.run(asked, folder / "download", folder / "vectors", key="n")
    return folder / "vectors"


def spec_of(metric: str, depth: int = DEPTH, filter: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {"metric": metric, "filter": filter, "depth": depth}


def test_the_stage_records_matches_selectivity_ties_and_what_it_was_made_from(tmp_path: Path) -> None:
    base, queries = made_up(500, 8), made_up(20, 8, seed=1)
    vectors = made_dataset(tmp_path, base, queries, "l2")
    filter = {"field": "category", "in": [1, 4, 7]}
    record = truth.run(spec_of("l2", depth=100, filter=filter), vectors, tmp_path / "truth", key="t")
    passes = np.isin(metadata.category(500, 7), [1, 4, 7])
    assert record["matches"] == passes.sum() and record["selectivity"] == passes.sum() / 500
    assert record["ties"] == {"10": 0, "100": 0} and record["shipped"] is None
    assert record["key"] == "t" and record["inputs"]["vectors"]["sha256"]
    files = verify_outputs(tmp_path / "truth" / "record.json", record)
    ids, distances = np.load(files["ids"]), np.load(files["distances"])
    assert (ids.dtype, distances.dtype) == (np.int64, np.float64)
    np.testing.assert_array_equal(ids, brute_force(base, queries, "l2", 100, passes)[0])


def test_only_the_queries_that_workloads_ask_have_a_truth(tmp_path: Path) -> None:
    base, queries = made_up(400, 8), made_up(30, 8, seed=1)
    vectors = made_dataset(tmp_path, base, queries, "l2", **shipped_truth(base, queries, "l2"))
    own = {"field": "region", "side": "same", "halvings": 1}
    for filter in (None, own):
        whole = truth.run(spec_of("l2", filter=filter), vectors, tmp_path / "whole", key="w")
        record = truth.run(
            {**spec_of("l2", filter=filter), "vectors": "n", "queries": 10, "seed": 7}, vectors, tmp_path / "t", key="t"
        )
        rows = np.load(tmp_path / "t" / "queries.npy")
        chosen = choose(open_vectors(vectors / "record.json", "n"), 10, 5, seed=7).measured
        np.testing.assert_array_equal(rows, chosen)
        assert set(truth.rows_asked(30, 4, 7)) < set(rows), "a workload that asks fewer asks some of them"
        for name in ("ids", "distances"):
            every, some = (np.load(tmp_path / folder / f"{name}.npy") for folder in ("whole", "t"))
            np.testing.assert_array_equal(some, every[rows])
        assert (record["shipped"] is None) == (whole["shipped"] is None) == (filter is not None)
    found = Truth.read(tmp_path / "t" / "record.json", vectors / "record.json")
    np.testing.assert_array_equal(found.of(rows[[3, 1]])[0], found.ids[[3, 1]])
    other = np.setdiff1d(np.arange(30), rows)[:1]
    with pytest.raises(DataError, match=f"has no neighbours of query {other[0]}, which was asked"):
        found.of(other)


def test_a_prefix_has_a_truth_of_its_own(tmp_path: Path) -> None:
    base, queries = made_up(500, 8), made_up(20, 8, seed=1)
    vectors = made_dataset(tmp_path, base, queries, "l2", prefix=100)
    truth.run(spec_of("l2"), vectors, tmp_path / "truth", key="t")
    np.testing.assert_array_equal(
        np.load(tmp_path / "truth" / "ids.npy"), brute_force(base[:100], queries, "l2", DEPTH)[0]
    )


def test_zero_vectors_under_cosine_are_at_distance_1_from_everything(tmp_path: Path) -> None:
    base, queries = made_up(300, 8), made_up(5, 8, seed=1)
    base[[3, 200]] = 0
    queries[2] = 0
    vectors = made_dataset(tmp_path, base, queries, "cosine")
    record = truth.run(spec_of("cosine", depth=300), vectors, tmp_path / "truth", key="t")
    ids, distances = np.load(tmp_path / "truth" / "ids.npy"), np.load(tmp_path / "truth" / "distances.npy")
    assert (distances[2] == 1).all(), "a zero query is as far from every row"
    np.testing.assert_array_equal(ids[2], np.arange(300))
    assert (distances[np.isin(ids, [3, 200])] == 1).all()
    assert record["ties"]["10"] == 1


def test_vectors_made_for_another_metric_are_refused(tmp_path: Path) -> None:
    vectors = made_dataset(tmp_path, made_up(50, 4), made_up(2, 4), "l2")
    with pytest.raises(DataError, match="the vectors are for l2, not for cosine"):
        truth.run(spec_of("cosine"), vectors, tmp_path / "truth", key="t")


def test_a_depth_beyond_the_rows_is_refused(tmp_path: Path) -> None:
    vectors = made_dataset(tmp_path, made_up(50, 4), made_up(2, 4), "l2", prefix=20)
    with pytest.raises(DataError, match="20 rows, fewer than the depth of 21"):
        truth.run(spec_of("l2", depth=21), vectors, tmp_path / "truth", key="t")


@pytest.mark.parametrize(
    ("filter", "because"),
    [
        ({"field": "colour", "in": [1]}, "unknown field 'colour'"),
        ({"field": "category", "below": 3}, "unknown operator 'below'"),
        ({"field": "category"}, "lacks 'in'"),
        ({"field": "category", "in": []}, "must be a list"),
        ({"field": "category", "in": [10]}, "10 is not a category"),
        ({"field": "price", "from": 10}, "lacks 'below'"),
        ({"field": "price", "below": "cheap"}, "must be a number"),
    ],
)
def test_a_filter_that_means_nothing_is_refused_by_name(filter: dict[str, Any], because: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=because):
        truth.run(spec_of("l2", filter=filter), tmp_path / "vectors", tmp_path / "truth", key="t")


def test_vectors_changed_since_their_record_are_refused(tmp_path: Path) -> None:
    vectors = made_dataset(tmp_path, made_up(50, 4), made_up(2, 4), "cosine")
    data = bytearray((vectors / "base.npy").read_bytes())
    data[-1] ^= 1
    (vectors / "base.npy").write_bytes(data)
    with pytest.raises(DataError, match=r"base\.npy: sha256"):
        truth.run(spec_of("cosine"), vectors, tmp_path / "truth", key="t")
    assert not (tmp_path / "truth" / "record.json").exists()


# Truth that came with the source


def shipped_truth(base: Floats, queries: Floats, metric: str) -> dict[str, NDArray[Any]]:
    """As ANN-Benchmarks ships it: int32 ids, float32 distances, Euclidean not squared."""
    scaled = (base, queries) if metric == "l2" else (unit(base), unit(queries))
    ids, distances = brute_force(*scaled, metric, 20)
    stated = np.sqrt(distances) if metric == "l2" else distances
    return {"neighbors": ids.astype(np.int32), "distances": stated.astype(np.float32)}


@pytest.mark.parametrize("metric", ["l2", "cosine"])
def test_agreement_with_the_sources_own_truth_is_recorded(metric: str, tmp_path: Path) -> None:
    base, queries = made_up(400, 8), made_up(30, 8, seed=1)
    vectors = made_dataset(tmp_path, base, queries, metric, **shipped_truth(base, queries, metric))
    record = truth.run(spec_of(metric), vectors, tmp_path / "truth", key="t")
    assert record["shipped"]["agreement"] == 1.0 and record["shipped"]["ranks"] == DEPTH
    assert record["shipped"]["compared_distances"] and record["shipped"]["ids_that_differ_by_ties"] == 0


def test_another_choice_among_tied_rows_is_no_disagreement(tmp_path: Path) -> None:
    base = np.zeros((40, 2), dtype=np.float32)
    base[:5, 0] = 1
    queries = np.ones((1, 2), dtype=np.float32)
    theirs = {
        "neighbors": np.array([[0, 1, 2, 3, 4, 30, 31, 32, 33, 34]], dtype=np.int32),
        "distances": np.sqrt(np.array([[1] * 5 + [2] * 5], dtype=np.float32)),
    }
    vectors = made_dataset(tmp_path, base, queries, "l2", **theirs)
    record = truth.run(spec_of("l2"), vectors, tmp_path / "truth", key="t")
    assert record["shipped"]["agreement"] == 1.0 and record["shipped"]["ids_that_differ_by_ties"] == 5


@pytest.mark.parametrize("damage", ["ids", "distances", "metric"])
def test_a_real_disagreement_names_the_first_query(damage: str, tmp_path: Path) -> None:
    base, queries = made_up(400, 8), made_up(30, 8, seed=1)
    theirs = shipped_truth(base, queries, "cosine" if damage == "metric" else "l2")
    first = 0
    if damage == "ids":
        first = 11
        far = brute_force(base, queries, "l2", 400)[0][first, -1]
        theirs["neighbors"][first, 4] = far
    elif damage == "distances":
        first = 12
        theirs["distances"][first, 4] *= 1.001
    vectors = made_dataset(tmp_path, base, queries, "l2", **theirs)
    with pytest.raises(DataError, match=rf"disagrees with the exact one .* first being query {first}; if its entry"):
        truth.run(spec_of("l2"), vectors, tmp_path / "truth", key="t")


def test_ids_alone_are_compared_where_the_source_ships_no_distances(tmp_path: Path) -> None:
    base, queries = made_up(400, 8), made_up(30, 8, seed=1)
    theirs = {"neighbors": shipped_truth(base, queries, "l2")["neighbors"]}
    vectors = made_dataset(tmp_path, base, queries, "l2", **theirs)
    record = truth.run(spec_of("l2"), vectors, tmp_path / "truth", key="t")
    assert record["shipped"]["agreement"] == 1.0 and not record["shipped"]["compared_distances"]
    theirs["neighbors"][5] = theirs["neighbors"][5, 0]  # one id, over and over: the others are missing
    vectors = made_dataset(tmp_path, base, queries, "l2", **theirs)
    with pytest.raises(DataError, match=r"first being query 5; if its entry"):
        truth.run(spec_of("l2"), vectors, tmp_path / "truth", key="t")


@pytest.mark.parametrize("why", ["prefix", "filter"])
def test_the_sources_truth_says_nothing_about_a_prefix_or_a_filter(why: str, tmp_path: Path) -> None:
    base, queries = made_up(400, 8), made_up(30, 8, seed=1)
    prefix = 100 if why == "prefix" else None
    vectors = made_dataset(tmp_path, base, queries, "l2", prefix, **shipped_truth(base, queries, "l2"))
    filter = {"field": "price", "below": 500.0} if why == "filter" else None
    record = truth.run(spec_of("l2", filter=filter), vectors, tmp_path / "truth", key="t")
    assert record["shipped"] is None


def test_zero_queries_have_no_say_in_the_agreement_under_cosine(tmp_path: Path) -> None:
    base, queries = made_up(400, 8), made_up(30, 8, seed=1)
    queries[4] = 0
    theirs = shipped_truth(base, queries + (queries == 0), "cosine")
    theirs["distances"][4] = np.nan
    vectors = made_dataset(tmp_path, base, queries, "cosine", **theirs)
    record = truth.run(spec_of("cosine"), vectors, tmp_path / "truth", key="t")
    assert record["shipped"]["undefined_queries"] == 1 and record["shipped"]["agreement"] == 1.0
    json.dumps(record, allow_nan=False)
