"""More answers than memory holds: from what the driver left to the page and its verification, part by part.

What does not fit is in files, and the numbers are the very same.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest

from anncestry import large
from anncestry.drive import protocol
from anncestry.metrics import latency
from anncestry.provenance import records
from tests.scale import Bench
from tests.toy import Toy

ANSWERS = int(os.environ.get("ANNCESTRY_SCALE_ANSWERS", 600_000))
LIMIT_MIB = int(os.environ.get("ANNCESTRY_SCALE_ANSWERS_MIB", 300))


@pytest.fixture
def little_memory(monkeypatch):
    """Arrays of more than 2 kB are files, and of no more than 700 elements sorted at once."""
    monkeypatch.setattr(large, "FILE_BYTES", 2000)
    monkeypatch.setattr(large, "ROWS", 700)


def runs(duration_s: float | None, n: int = 30_011, queries: int = 1000) -> list[latency.Run]:
    random = np.random.RandomState(1)
    found = []
    for _ in range(3):
        due_ns = np.sort(random.randint(0, 10_000_000_000, n))
        due_ns = due_ns[np.lexsort((due_ns, random.randint(0, 4, n)))]
        waited_ns = random.randint(100_000, 3_000_000, n) + 40 * random.randint(0, 1000, n) ** 2
        waited_ns[random.randint(0, 3, n) == 0] = 1_000_000
        status = np.array([0, 0, 0, 0, 0, 0, 0, 0, 1, 2], np.uint8)[random.randint(0, 10, n)]
        query = 3 * random.randint(0, queries, n).astype(np.uint32)
        found.append(latency.Run(due_ns, waited_ns, status, duration_s, query))
    return found


def statistics(of: list[latency.Run]) -> list:
    return [latency.summarise(of), latency.histogram(of), [latency.steadiness(run) for run in of]]


def digest(found: list) -> str:
    """Of numbers to 12 digits: the last ones differ by the processor, whose kernel of BLAS adds in another order."""
    short = json.loads(json.dumps(found), parse_float=lambda text: float(f"{float(text):.12g}"))
    return hashlib.sha256(json.dumps(short).encode()).hexdigest()[:16]


@pytest.mark.parametrize(("duration_s", "expected"), [(9.0, "c7ffc29f63a69db6"), (None, "7cb1a3803823970a")])
def test_statistics_in_parts_are_those_of_the_whole_to_the_last_bit(duration_s, expected, monkeypatch):
    """Pinned is what it gives with every sample in memory."""
    whole = statistics(runs(duration_s))
    assert digest(whole) == expected
    monkeypatch.setattr(large, "FILE_BYTES", 2000)
    monkeypatch.setattr(large, "ROWS", 700)
    assert statistics(runs(duration_s)) == whole


@pytest.mark.parametrize("values", [3, 50, 10**12])
def test_sorting_in_parts_is_stable_however_often_values_repeat(values, little_memory):
    random = np.random.RandomState(values % 1000)
    key = random.randint(0, values, 20_000)
    key[:5000] = 1
    found, place = large.sorted_by(key, np.arange(len(key)))
    order = np.argsort(key, kind="stable")
    np.testing.assert_array_equal(place, order)
    np.testing.assert_array_equal(found, key[order])
    assert isinstance(found.base, np.memmap), "larger than what may be in memory"
    assert large.median(key) == np.median(key) and large.median(key[:-1]) == np.median(key[:-1])


def test_an_array_that_grows_is_a_file_once_it_is_large_and_leaves_no_name(little_memory, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("scratch").mkdir()
    growing = large.Growing(np.int64)
    for start in range(0, 1000, 30):
        growing.append(np.arange(start, min(start + 30, 1000)))
    found = growing.array()
    np.testing.assert_array_equal(found, np.arange(1000))
    assert isinstance(found.base, np.memmap) and not list(Path("scratch").iterdir())


def test_what_a_driver_left_is_read_in_parts_with_every_response_beside_its_sample(tmp_path, monkeypatch):
    """Three clients, whose files the parts neither repeat nor leave out."""
    counts, facts = [1000, 0, 2500], {"clients": [{"samples": n, "errors": {}} for n in (1000, 0, 2500)]}
    (tmp_path / "done.json").write_text(json.dumps(facts))
    whole = []
    for client, count in enumerate(counts):
        samples, bodies = np.zeros(count, protocol.SAMPLE), [b"x" * (i % 7) + bytes([client]) for i in range(count)]
        samples["query"], samples["client"] = np.arange(count), client
        samples["size"] = [len(body) for body in bodies]
        samples["offset"] = np.cumsum(samples["size"]) - samples["size"]
        samples["start_ns"] = samples["due_ns"] + np.arange(count)
        samples.tofile(tmp_path / f"samples.{client}.bin")
        (tmp_path / f"responses.{client}.bin").write_bytes(b"".join(bodies))
        whole += bodies
    at_once = protocol.read_outcome(tmp_path)
    assert at_once.responses == whole and at_once.facts["queued_max_ms"] == 2499 / 1e6
    for rows, size in ((300, 1 << 20), (1 << 17, 500)):
        monkeypatch.setattr(protocol, "PART_ROWS", rows)
        monkeypatch.setattr(protocol, "PART_BYTES", size)
        left = protocol.open_outcome(tmp_path)
        parts = list(left.parts())
        assert len(parts) > 10 and all(len(samples) == len(responses) <= rows for samples, responses in parts)
        assert [response for _, responses in parts for response in responses] == whole
        np.testing.assert_array_equal(np.concatenate([samples for samples, _ in parts]), at_once.samples)
        assert left.facts == at_once.facts


def test_more_answers_than_memory_holds_are_kept_published_scored_and_verified(tmp_path):
    """Each step in a process under a limit, in which answers, or their latencies alone, do not fit at once."""
    toy = Toy.make(tmp_path)
    toy.one_cell()
    toy.files["workloads"]["k5"]["runs"] = 1
    toy.save()
    bench = Bench(tmp_path, toy.files["datasets"]["blobs-l2"]["rows"], LIMIT_MIB)
    bench.prepare()
    costs = bench.measure(ANSWERS)
    print({name: (round(cost.cpu_s, 1), round(cost.wall_s, 1), cost.heap_mib) for name, cost in costs.items()})
    assert all(cost.heap_mib < LIMIT_MIB for cost in costs.values()), costs
    query = records.read_record(tmp_path / bench.cell.query_path)
    assert query["valid"], query["gates"]
    assert query["summary"]["samples"]["value"] == ANSWERS == sum(query["histogram"]["counts"])
    assert parquet.ParquetFile(tmp_path / bench.cell.samples_path).metadata.num_rows == ANSWERS
    found = records.read_record(tmp_path / bench.cell.recall_path)
    assert (found["samples"], found["recall"]["by_id"]["value"]) == (ANSWERS, 1.0)
