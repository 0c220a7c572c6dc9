"""The client's own limit is measured, kept, and said beside every number that comes near it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from anncestry.drive import protocol
from anncestry.drive.driver import Driver
from anncestry.drive.null import NullServer
from anncestry.errors import DataError
from anncestry.measure import ceiling
from anncestry.report.model import numbers


@pytest.fixture(scope="module")
def driver():
    with Driver() as driver:
        yield driver


def cell(folder, driver, transport, clients=1):
    protocol.write_requests(folder, [b"x" * 700] * 10)
    protocol.write_job(
        folder / "job", requests=folder, transport=transport, schedule=np.zeros((clients, 10), int),
        prime=np.zeros((clients, 1), int), timeout_s=5.0,
    )  # fmt: skip
    driver.run(folder / "job")


def test_sizes_fall_into_classes_that_are_not_below_them():
    assert [ceiling.size_class(size) for size in (1, 256, 257, 5000)] == [256, 256, 1024, 16384]


def test_a_cell_gets_the_ceiling_of_its_transport_clients_and_sizes(driver, tmp_path):
    with NullServer("http", reply_bytes=3000) as server:
        cell(tmp_path / "cell", driver, server.transport, clients=2)
    found = ceiling.of_cell(tmp_path / "cell", [tmp_path / "cell" / "job"], "here", driver)
    assert found is not None
    assert (found["transport"], found["clients"], found["request_bytes"], found["reply_bytes"]) == (
        "http",
        2,
        1024,
        4096,
    )
    assert found["qps"] > 100
    assert 0 < found["floor_ms"] < 100
    assert found["cpu_us_per_query"] > 0


def test_a_ceiling_is_measured_once_and_kept_as_a_record(driver, tmp_path):
    spec = ceiling.spec_of("here", "native", "grpc", 1, 100, 100)
    first = ceiling.find(spec, driver, tmp_path)
    (path,) = tmp_path.iterdir()
    assert path.name == f"here-grpc-1@{first['key']}.json"
    assert len(first["runs"]) == 3
    assert first["qps"] == max(run["qps"] for run in first["runs"])
    assert ceiling.find(spec, driver, tmp_path) == first
    # Another platform, or another driver, has another.
    assert ceiling.find({**spec, "platform": "there"}, driver, tmp_path)["key"] != first["key"]


class Starved:
    """A driver whose first jobs end before anything could be asked, as on a machine that has no time for them."""

    def __init__(self, driver, times):
        self._driver, self._times, self.runs = driver, times, 0

    def run(self, folder, check):
        self.runs += 1
        if self.runs <= self._times:
            job = json.loads((folder / "job.json").read_text())
            (folder / "job.json").write_text(json.dumps({**job, "duration_s": 1e-9}))
        self._driver.run(folder, check)


def test_a_run_in_which_a_starved_client_asked_nothing_is_made_again_and_is_no_ceiling(driver):
    spec = ceiling.spec_of("here", "native", "grpc", 1, 100, 100)
    starved = Starved(driver, 2)
    assert all(run["qps"] > 0 for run in ceiling.measure(spec, starved))
    assert starved.runs >= 5
    with pytest.raises(DataError, match="too busy to measure on"):
        ceiling.measure(spec, Starved(driver, 99))


@pytest.mark.parametrize(("qps", "expected"), [(499.0, False), (501.0, True)])
def test_more_than_half_of_the_ceiling_is_client_bound(qps, expected):
    body = {"summary": {"qps": {"value": qps}}, "client": {"ceiling": {"qps": 1000.0}}}
    assert numbers._client_bound(numbers._Record("p", "s", body)) is expected


@pytest.mark.parametrize(("cost", "expected"), [(44.0, False), (46.0, True), (None, False)])
def test_a_client_as_busy_as_at_the_ceiling_is_bound_although_the_machine_was_faster_then(cost, expected):
    """At the ceiling it needs 1,000 x 20 µs a second; here 400 queries at twice the price, nearly as much."""
    ceiling = {"qps": 1000.0, "cpu_us_per_query": 20.0}
    body = {"summary": {"qps": {"value": 400.0}}, "client": {"ceiling": ceiling, "cpu_us_per_query": cost}}
    assert numbers._client_bound(numbers._Record("p", "s", body)) is expected


def test_where_the_ceiling_is_not_known_nothing_is_said():
    body = {"summary": {"qps": {"value": 1.0}}, "client": {"ceiling": None}}
    assert numbers._client_bound(numbers._Record("p", "s", body)) is None
