"""From the download to the page and its verification, each step under the limit: `make test-scale` (minutes).

The tests of every change stop at what reads the base (test_scale.py), and take more answers than memory holds to the
page on a small dataset (test_samples.py): a flat scan of millions of rows for every query is too dear there.
"""

from __future__ import annotations

from pathlib import Path

from anncestry.provenance import records
from tests.scale import LIMIT_MIB, ROWS, Bench

ANSWERS = 200_000


def test_a_dataset_larger_than_memory_is_loaded_asked_scored_tabled_shown_and_verified(tmp_path: Path) -> None:
    """By a real server, which holds every row: that is outside of the limit, all that is ours within."""
    bench = Bench.make(tmp_path, ROWS, LIMIT_MIB)
    costs = {**bench.prepare(), **bench.measure(ANSWERS)}
    for name, cost in costs.items():
        print(f"{name}: {cost.cpu_s:.1f} s of CPU, {cost.heap_mib} MiB")
    assert all(cost.heap_mib < LIMIT_MIB for cost in costs.values()), costs
    load = records.read_record(tmp_path / bench.cell.load_path, stage="load")
    query = records.read_record(tmp_path / bench.cell.query_path, stage="query")
    assert load["valid"] and query["valid"], (load["gates"], query["gates"])
    assert load["rows"] == ROWS and query["summary"]["samples"]["value"] == ANSWERS
    recall = records.read_record(tmp_path / bench.cell.recall_path, stage="recall")
    assert recall["recall"]["by_distance"]["value"] == 1.0, "a flat scan finds all"
