"""The driver sends what it is given, when it should, and hides nothing of what came back."""

from __future__ import annotations

import os
import threading
import time
from concurrent import futures
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest

from anncestry.drive import pools, protocol
from anncestry.drive.client import ERROR, OK, TIMEOUT
from anncestry.drive.driver import KINDS, Driver
from anncestry.errors import ServerError


class Echo:
    """A server that answers a request with its own bytes, and can be made slow or broken for some of them."""

    def __init__(self):
        self.seen: list[bytes] = []
        self.times: list[tuple[float, str]] = []
        self.headers: list[dict[str, str]] = []
        self.credentials: dict[str, str] | None = None
        self.slow: dict[bytes, float] = {}
        self.broken: set[bytes] = set()
        self.lock = threading.Lock()
        self.server = grpc.server(futures.ThreadPoolExecutor(16))
        handler = grpc.unary_unary_rpc_method_handler(self.answer)
        self.server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("echo.Echo", {"Say": handler})])
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()

    def answer(self, request, context):
        with self.lock:
            self.seen.append(request)
            self.times.append((time.monotonic(), context.peer()))
            self.headers.append(dict(context.invocation_metadata()))
        time.sleep(self.slow.get(request, 0))
        if request in self.broken:
            context.abort(grpc.StatusCode.INTERNAL, "the disk is on fire")
        return b"re: " + request

    @property
    def transport(self):
        found = {"kind": "grpc", "target": f"127.0.0.1:{self.port}", "method": "/echo.Echo/Say"}
        return found if self.credentials is None else {**found, "authorization": self.credentials}


@pytest.fixture
def echo():
    echo = Echo()
    yield echo
    echo.server.stop(None)


@pytest.fixture(scope="module", params=KINDS)
def driver(request):
    with Driver(request.param) as driver:
        yield driver
    assert driver.pids() == []


def drive(driver, echo, folder, schedule, prime=None, requests=10, **more):
    folder.mkdir(parents=True, exist_ok=True)
    protocol.write_requests(folder, [f"request {i}".encode() for i in range(requests)])
    schedule = np.asarray(schedule)
    prime = np.empty((len(schedule), 0), int) if prime is None else np.asarray(prime)
    protocol.write_job(
        folder, requests=folder, transport=echo.transport, schedule=schedule, prime=prime,
        **{"timeout_s": 10.0, **more},
    )  # fmt: skip
    driver.run(folder)
    return protocol.read_outcome(folder)


def test_every_request_is_sent_once_in_order_and_its_answer_kept(driver, echo, tmp_path):
    outcome = drive(driver, echo, tmp_path, [[3, 1, 2, 1]])
    assert outcome.samples["query"].tolist() == [3, 1, 2, 1]
    assert outcome.responses == [b"re: request 3", b"re: request 1", b"re: request 2", b"re: request 1"]
    assert echo.seen == [b"request 3", b"request 1", b"request 2", b"request 1"]
    assert (outcome.samples["status"] == OK).all()
    assert (outcome.samples["latency_ns"] > 0).all()
    ends = outcome.samples["start_ns"] + outcome.samples["latency_ns"]
    assert (outcome.samples["start_ns"][1:] >= ends[:-1]).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("scheme", "sent"), [("bearer", "Bearer user:secret"), ("base64", "dXNlcjpzZWNyZXQ=")])
def test_credentials_travel_with_every_request_and_stand_in_no_file(kind, scheme, sent, echo, tmp_path, monkeypatch):
    monkeypatch.setenv("TEST_DRIVER_KEY", "user:secret")
    echo.credentials = {"env": "TEST_DRIVER_KEY", "scheme": scheme}
    with Driver(kind) as driver:
        outcome = drive(driver, echo, tmp_path, [[1, 2, 3]], prime=[[4]])
    assert (outcome.samples["status"] == OK).all()
    assert [headers.get("authorization") for headers in echo.headers] == [sent] * 4
    for path in tmp_path.iterdir():
        assert b"secret" not in path.read_bytes() and sent.encode() not in path.read_bytes()


def test_priming_reaches_the_server_before_the_clock_and_is_in_no_sample(driver, echo, tmp_path):
    outcome = drive(driver, echo, tmp_path, [[1, 2]], prime=[[7, 8, 9]])
    assert echo.seen[:3] == [b"request 7", b"request 8", b"request 9"]
    assert outcome.samples["query"].tolist() == [1, 2]
    zero_s = outcome.facts["zero_ns"] / 1e9
    assert [at < zero_s for at, _ in echo.times] == [True] * 3 + [False] * 2


def test_failures_and_timeouts_are_samples_not_gaps(driver, echo, tmp_path):
    echo.broken.add(b"request 1")
    echo.slow[b"request 2"] = 6.0
    outcome = drive(driver, echo, tmp_path, [[0, 1, 2, 3]], timeout_s=2.0)
    status, waited_ns = outcome.samples["status"], outcome.samples["latency_ns"]
    assert waited_ns[2] >= 1.99e9
    # A machine that stands still makes others as slow.
    usual = zip(status.tolist(), [OK, ERROR, TIMEOUT, OK], waited_ns >= 1.99e9, strict=True)
    assert all(seen == wanted or (slow and seen == TIMEOUT) for seen, wanted, slow in usual)
    texts = outcome.facts["clients"][0]["errors"]
    assert texts.get("INTERNAL: the disk is on fire", 0) == (status == ERROR).sum()
    assert any(text.startswith("DEADLINE_EXCEEDED") for text in texts)


def test_failed_priming_is_counted(driver, echo, tmp_path):
    echo.broken.add(b"request 5")
    outcome = drive(driver, echo, tmp_path, [[0]], prime=[[5, 5, 6]])
    assert outcome.facts["clients"][0]["prime_errors"] == 2


def test_a_run_by_time_goes_round_until_the_time_is_over_and_keeps_the_request_under_way(driver, echo, tmp_path):
    for i in range(10):
        echo.slow[f"request {i}".encode()] = 0.02
    outcome = drive(driver, echo, tmp_path, [[0, 1, 2], [1, 2, 0]], duration_s=2.0)
    starts = outcome.samples["start_ns"]
    assert starts.max() < 2e9
    assert (starts + outcome.samples["latency_ns"]).max() > 1.95e9
    for client, first in ((0, [0, 1, 2, 0]), (1, [1, 2, 0, 1])):
        mine = outcome.samples["query"][outcome.samples["client"] == client]
        assert len(mine) > 4
        assert mine[:4].tolist() == first


def test_all_clients_connect_and_prime_first_then_start_together_on_connections_of_their_own(driver, echo, tmp_path):
    outcome = drive(driver, echo, tmp_path, [[0] * 20] * 4, prime=[[9]] * 4)
    zero_s = outcome.facts["zero_ns"] / 1e9
    assert sum(at < zero_s for at, _ in echo.times) == 4
    assert len({peer for _, peer in echo.times}) == 4
    first = [outcome.samples["start_ns"][outcome.samples["client"] == c].min() for c in range(4)]
    assert min(first) >= 0


def test_the_clients_are_kept_for_the_next_run(driver, echo, tmp_path):
    drive(driver, echo, tmp_path / "a", [[0]] * 2)
    before = driver.pids()
    drive(driver, echo, tmp_path / "b", [[0]] * 2)
    assert driver.pids() == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_is_not_there_is_an_error_not_a_run_of_zeros(kind, tmp_path):
    gone = Echo()
    gone.server.stop(None).wait()
    with Driver(kind) as driver, pytest.raises(ServerError, match="client 0 of the driver failed"):
        drive(driver, gone, tmp_path, [[0]], timeout_s=0.5)


@pytest.mark.parametrize(("kind", "processes"), [("native", 1), ("python", 3)])
def test_closing_the_driver_leaves_no_process(kind, processes, echo, tmp_path):
    driver = Driver(kind)
    drive(driver, echo, tmp_path, [[0]] * 3)
    pids = driver.pids()
    assert len(pids) == processes
    driver.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_a_run_that_did_not_finish_is_not_read(tmp_path):
    with pytest.raises(Exception, match=r"done\.json: the driver did not finish"):
        protocol.read_outcome(tmp_path)


def test_truncated_samples_are_refused_by_name(driver, echo, tmp_path):
    drive(driver, echo, tmp_path, [[0, 1, 2]])
    path = tmp_path / "samples.0.bin"
    path.write_bytes(path.read_bytes()[:-48])
    with pytest.raises(Exception, match=r"samples\.0\.bin: 2 samples"):
        protocol.read_outcome(tmp_path)


def test_clients_that_are_let_run_when_their_time_is_over_are_no_measurement_of_nothing(
    driver, echo, tmp_path, monkeypatch
):
    monkeypatch.setattr("anncestry.drive.pools.LEAD_NS", -5_000_000_000)
    with pytest.raises(
        ServerError, match=r"sent nothing: they were let run (?:[5-9]|\d\d+)\.\d s after .* their 0\.5 s were over"
    ):
        drive(driver, echo, tmp_path, [[1, 2]], duration_s=0.5)
    assert len(drive(driver, echo, tmp_path / "counted", [[1, 2]]).samples) == 2, "a count of requests is sent late"


def test_a_client_that_is_the_system_has_no_more_of_the_users_environment_than_its_builder(monkeypatch):
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    assert "MALLOC_ARENA_MAX" not in pools.InProcess()._own_environment()
    assert pools.Python()._own_environment()["MALLOC_ARENA_MAX"] == "1", "one that only asks has all of it"


def test_the_native_driver_waits_for_commands_in_no_system_call(echo, tmp_path):
    """Go would stand still for a minute now and then: see main.go."""
    with Driver("native") as driver:
        drive(driver, echo, tmp_path, [[1]])
        (pid,) = driver.pids()
        said = Path(f"/proc/{pid}/fdinfo/0").read_text().split()
        assert int(said[said.index("flags:") + 1], 8) & os.O_NONBLOCK


def test_several_jobs_run_on_one_clock_each_with_files_and_facts_of_its_own(driver, echo, tmp_path):
    for name, said in (("search", "find"), ("write", "put")):
        protocol.write_requests(tmp_path / name, [f"{said} {i}".encode() for i in range(10)])
    searches = {"schedule": np.tile(np.arange(10), (2, 1)), "prime": np.full((2, 1), 9), "duration_s": 2.0}
    due_ns = np.arange(0, 2_000_000_000, 200_000_000)
    writes = {"schedule": np.arange(10), "prime": np.empty((1, 0), int), "due_ns": due_ns}
    for name, job in (("search", searches), ("write", writes)):
        protocol.write_job(
            tmp_path / "job" / name, requests=tmp_path / name, transport=echo.transport, timeout_s=60.0, **job
        )
    protocol.write_together(tmp_path / "job", ["search", "write"])
    done = driver.run(tmp_path / "job")
    search, write = (protocol.read_outcome(tmp_path / "job" / name) for name in ("search", "write"))
    assert {search.facts["zero_ns"], write.facts["zero_ns"]} == {done["zero_ns"]}
    assert done["end_ns"] == max(search.facts["end_ns"], write.facts["end_ns"])
    assert write.responses == [f"re: put {i}".encode() for i in range(10)]
    assert write.samples["due_ns"].tolist() == due_ns.tolist()
    assert len(search.samples) > 20 and set(search.samples["client"]) == {0, 1}
    assert all(response.startswith(b"re: find") for response in search.responses)
    between = [request for request in echo.seen if request.startswith(b"find")]
    assert len(between) == len(search.samples) + 2, "what primed is in no sample"
    first, last = echo.seen.index(b"put 0"), echo.seen.index(b"put 9")
    assert sum(request.startswith(b"find") for request in echo.seen[first:last]) > 10, "searches go on meanwhile"
    # The folder's next job is run alone again.
    outcome = drive(driver, echo, tmp_path / "alone", [[3, 1]])
    assert outcome.samples["query"].tolist() == [3, 1]
