"""Cold starts as a workload of their own, and whether runs are steady."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import psutil
import pytest

from anncestry.features.cold import measuring as page_cache
from anncestry.metrics import latency
from anncestry.runtimes import artifacts
from tests.builders.bench import Bench, failed, scored
from tests.servers import CACHE, SYSTEMS
from tests.toy import Toy


def run_of(waited_ms: np.ndarray) -> latency.Run:
    ends = np.cumsum(waited_ms * 1e6).astype(np.int64)
    starts = np.concatenate([[0], ends[:-1]])
    return latency.Run(starts, ends - starts, np.zeros(len(starts), np.uint8), None)


def noisy(count: int, seed: int = 1) -> np.ndarray:
    return np.random.RandomState(seed).gamma(50, 0.02, count)  # about 1 ms, 14 % of deviation


def test_a_slow_beginning_ends_where_the_latency_settles():
    waited = noisy(1000)
    waited[:100] *= np.linspace(5, 1, 100)
    found = latency.steadiness(run_of(waited))
    settled_at = np.cumsum(waited)[99] / 1e3
    assert 0.5 * settled_at < found["steady_after_s"] < 1.3 * settled_at
    assert found["drift"] < -0.05


def test_a_run_that_is_steady_from_the_start_says_about_zero_and_no_drift():
    found = latency.steadiness(run_of(noisy(2000)))
    assert found["steady_after_s"] < 0.5
    assert abs(found["drift"]) < 0.05


def test_single_outliers_are_no_trend():
    waited = noisy(2000)
    waited[[3, 700, 1900]] = 500.0
    assert abs(latency.steadiness(run_of(waited))["drift"]) < 0.05


def test_a_run_that_only_ever_gets_slower_does_not_settle():
    found = latency.steadiness(run_of(noisy(1000) * np.linspace(1, 10, 1000)))
    assert math.isnan(found["steady_after_s"])
    assert found["drift"] > 2


def test_too_short_a_run_says_nothing():
    assert all(math.isnan(value) for value in latency.steadiness(run_of(noisy(39))).values())


def test_pages_that_were_just_written_are_resident_and_their_share_is_that_of_the_files(tmp_path):
    assert page_cache.resident(tmp_path) == 0.0
    (tmp_path / "empty").touch()
    (tmp_path / "file").write_bytes(b"x" * 100_000)
    assert page_cache.resident(tmp_path) == 1.0
    page_cache.drop(tmp_path)
    in_memory = {part.mountpoint for part in psutil.disk_partitions(all=True) if part.fstype in ("tmpfs", "ramfs")}
    assert page_cache.resident(tmp_path) < 1.0 or any(tmp_path.is_relative_to(place) for place in in_memory)
    assert (tmp_path / "file").read_bytes() == b"x" * 100_000


def test_a_cold_start_has_a_server_of_its_own_and_is_judged_like_any_other(bench):
    def change(files):
        files["workloads"]["k5-cold"] = {
            "k": 5, "clients": 1, "runs": 2, "queries": 40, "warmup": 0, "start": "cold",
        }  # fmt: skip
        files["config"]["matrix"][0]["workloads"] = ["k5-cold", "k5"]

    honest = bench(change=change)
    cold, warm = honest.matrix.cells
    honest.load(cold)
    assert set(honest.query(cold, warm, runs=2).values()) == {"ok"}
    record = honest.publish(cold)
    assert failed(record) == {}
    assert record["cold"]["page_cache"] == "dropped"
    assert 0.0 <= record["cold"]["resident_share"] <= 1.0
    assert record["cold"]["searchable_s"]["value"] > 0
    assert len(record["cold"]["first_ms"]["runs"]) == 2
    for run in record["rounds"]:
        assert len(run["start_s"]) == 2, "one server for the others, one for the cold start"
    other = honest.publish(warm)
    assert "cold" not in other
    assert other["windows_s"][0][1] < record["windows_s"][0][0], "cold starts come last"
    assert other["steadiness"]["drift"]["value"] is not None


@pytest.mark.servers
def test_a_database_with_a_password_of_each_start_and_statements_of_each_server_starts_cold(tmp_path, monkeypatch):
    """The driver runs since before: it learns the new server's password, and the server the requests' statements."""
    monkeypatch.chdir(tmp_path)
    (system,) = (name for name, entry in SYSTEMS.items() if entry.get("engine") == "pgvector")
    toy = Toy.make(tmp_path)
    toy.files["systems"] = {system: SYSTEMS[system]}
    cold = {"k": 5, "clients": 1, "runs": 1, "queries": 40, "ef_search": 100, "warmup": 0, "start": "cold"}
    toy.files["workloads"] = {"k5-cold": cold, "k5": {**cold, "start": "warm"}}
    toy.files["config"]["matrix"] = [
        {"datasets": ["blobs-l2"], "systems": [system], "topologies": ["standalone"], "workloads": ["k5-cold", "k5"]}
    ]
    place = Bench(tmp_path, toy)
    cold, warm = place.matrix.cells
    artifacts.run(place.matrix.spec(cold.artifact, "artifact"), Path(cold.artifact_path).parent, CACHE, cold.artifact)
    place.prepare()
    assert place.load(cold)["valid"]
    assert set(place.query(cold, warm).values()) == {"ok"}
    for cell in (cold, warm):
        published, body = scored(place, cell)
        assert failed(published) == {}
        assert body["recall"]["by_distance"]["value"] > 0.9


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"start": "cold"}, ["k5.warmup", "use warmup: 0"]),
        ({"page_cache": "kept"}, ["k5.page_cache", "start: cold"]),
        ({"start": "cold", "warmup": 0, "loop": "open", "duration_s": 1, "slo": {"p99_ms": 1}}, ["k5.start", "cold"]),
        ({"start": "lukewarm"}, ["k5.start"]),
        (
            {
                "start": "cold",
                "warmup": 0,
                "duration_s": 3,
                "fault": {"kind": "kill", "member": "a", "at_s": 1, "for_s": 1},
            },
            ["k5.start", "unsupported with fault"],
        ),
    ],
)
def test_an_impossible_cold_start_is_refused_by_name(tmp_path, changes, words):
    from tests.builders.configs import refused

    toy = Toy.make(tmp_path)
    toy.files["workloads"]["k5"] = {**toy.files["workloads"]["k5"], **changes}
    refused(toy, *words)
