"""A dataset much larger than memory goes through every stage that reads it, under a limit that kills what goes beyond.

Here it is 1 M × 96 (366 MiB) under 400 MiB, page cache included where a control group holds it: nothing could be held
twice, nor as float64. `make test-scale` is 5 M × 96 (1.8 GiB) under 1 GiB.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from anncestry.datasets import truth
from anncestry.provenance import records
from tests.scale import LIMIT_MIB, ROWS, Bench


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Downloaded, normalised, its truth in three shards and gathered: each within the limit."""
    bench = Bench.make(tmp_path_factory.mktemp("scale"), ROWS, LIMIT_MIB)
    costs = bench.prepare()
    assert all(cost.heap_mib < LIMIT_MIB for cost in costs.values()), costs
    return bench


def test_the_truth_of_a_dataset_larger_than_memory_is_that_of_a_search_of_the_whole(prepared: Bench) -> None:
    folder = (prepared.folder / prepared.cell.truth_path).parent
    assert len(prepared.matrix.truth_parts(prepared.cell)) == 3
    vectors = (prepared.folder / prepared.cell.vectors_path).parent
    queries = np.load(vectors / "queries.npy")[:3]
    whole = truth.nearest(vectors / "base.npy", queries, "cosine", 100, np.ones(prepared.rows, bool))
    np.testing.assert_array_equal(np.load(folder / "ids.npy")[:3], whole.ids)
    np.testing.assert_array_equal(np.load(folder / "distances.npy")[:3], whole.distances)


def test_every_row_reaches_a_server_within_the_limit(prepared: Bench) -> None:
    cost = prepared.run("load-rows", prepared.cell.vectors_path, prepared.cell.vectors)
    assert cost.heap_mib < LIMIT_MIB / 2, "a load holds some batches, never the base"


def test_recall_holds_a_part_of_the_answers_at_a_time(prepared: Bench) -> None:
    """As ids alone the answers are small; what recall makes of them together would not fit."""
    prepared.score(prepared.answers(300_000))
    found = json.loads((prepared.folder / "recall.json").read_text())
    assert (found["samples"], found["queries"]) == (300_000, 100)
    assert 0.89 < found["recall"]["by_id"]["value"] < 0.91, "a tenth was missed"
    assert found["recall"]["by_id"]["value"] == found["recall"]["by_distance"]["value"]


def test_the_limit_is_a_hard_one(prepared: Bench) -> None:
    """What holds the base twice in memory is killed, or told that there is no more."""
    with pytest.raises(AssertionError, match=r"ended with -9|MemoryError|Unable to allocate"):
        prepared.run("hold-twice", prepared.cell.vectors_path)
    assert records.read_record(prepared.folder / prepared.cell.vectors_path, stage="normalize")["rows"] == ROWS
