"""What a server does wrong is in the samples, whichever driver asked and by whichever transport."""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from anncestry.cells.spec import Disturbance
from anncestry.drive import pools, protocol
from anncestry.drive.client import ERROR, OK, TIMEOUT
from anncestry.drive.driver import KINDS, Driver, client_facts, complaints
from anncestry.drive.null import NullServer
from anncestry.errors import ServerError
from anncestry.metrics import disturbance, latency
from tests.waiting import until

WAYS = [
    ("native", "grpc"),
    ("native", "http"),
    ("native", "mysql"),
    ("native", "postgres"),
    ("native", "redis"),
    ("python", "grpc"),
    ("python", "http"),
]


@pytest.fixture(scope="module")
def drivers():
    with Driver("native") as native, Driver("python") as python:
        yield {"native": native, "python": python}


@pytest.fixture(params=WAYS, ids=["-".join(way) for way in WAYS])
def way(request, drivers):
    return drivers[request.param[0]], request.param[1]


def job(folder, server, *, clients=1, count=40, prime=1, requests=None, **more):
    requests = requests or [f"request {i}".encode() for i in range(40)]
    protocol.write_requests(folder, requests)
    schedule = np.resize(np.arange(len(requests)), (1 if "due_ns" in more else clients, count))
    protocol.write_job(
        folder, requests=folder, transport={**server.transport, **more.pop("transport", {})}, schedule=schedule,
        prime=np.zeros((clients, prime), int), **{"timeout_s": 60.0, **more},
    )  # fmt: skip


def run(driver, folder, server, **more):
    job(folder, server, **more)
    driver.run(folder, server.check_alive)
    return protocol.read_outcome(folder)


def of_run(outcome, duration_s=None):
    samples = outcome.samples
    return latency.of_run(latency.Run(samples["due_ns"], samples["latency_ns"], samples["status"], duration_s))


def steady(per_s, seconds):
    return (np.arange(int(per_s * seconds)) * (1e9 / per_s)).astype(np.int64)


def answers(outcome, kind):
    """What the echo returned: packets of MySQL, messages of PostgreSQL and texts of Redis wrap it."""
    if kind not in ("mysql", "postgres", "redis"):
        return outcome.responses
    return [response[response.index(b"re: ") : response.index(b"re: ") + 4 + 9] for response in outcome.responses]


def test_a_request_is_answered_by_its_own_answer(way, tmp_path):
    driver, kind = way
    requests = [f"request {i % 10}".encode() for i in range(10)]
    with NullServer(kind, echo=True) as server:
        outcome = run(driver, tmp_path, server, clients=3, count=30, requests=requests)
    assert (outcome.samples["status"] == OK).all(), outcome.facts
    assert answers(outcome, kind) == [b"re: request %d" % query for query in outcome.samples["query"]]
    assert [client["prime_errors"] for client in outcome.facts["clients"]] == [0, 0, 0]


def test_replies_of_more_than_4_mib_and_requests_of_1_mib_arrive_whole(way, tmp_path):
    driver, kind = way
    big = os.urandom(1 << 20).replace(b"re: ", b"----")
    with NullServer(kind, reply_bytes=5_000_000) as server:
        outcome = run(driver, tmp_path / "reply", server, count=4)
    assert (outcome.samples["status"] == OK).all(), outcome.facts
    assert all(response.count(b"x") == 5_000_000 for response in outcome.responses)
    with NullServer(kind, echo=True) as server:
        outcome = run(driver, tmp_path / "request", server, count=3, requests=[big])
    assert all(big in response for response in outcome.responses)


def test_five_per_cent_errors_show_as_failures_a_second_and_are_no_latency(way, tmp_path):
    driver, kind = way
    with NullServer(kind, error_every=20, delay_ms=1) as server:
        outcome = run(driver, tmp_path, server, clients=2, count=100, prime=0)
    assert (outcome.samples["status"] == ERROR).sum() == 10
    found = of_run(outcome)
    assert found["errors"] == 10
    assert found["fail_per_s"] == pytest.approx(found["qps"] / 19, rel=1e-6)
    texts = [text for client in outcome.facts["clients"] for text in client["errors"]]
    assert all("the disk is on fire" in text for text in texts)
    assert texts


def test_a_timeout_is_a_sample_with_the_time_it_waited_and_the_next_request_is_well(way, tmp_path):
    driver, kind = way
    # The slow one is the 6th: five after the one that primed. A machine that stands still makes others as slow.
    with NullServer(kind, slow_every=6, slow_ms=600_000) as server:
        outcome = run(driver, tmp_path, server, count=6, timeout_s=3.0)
    status, waited_ns = outcome.samples["status"], outcome.samples["latency_ns"]
    assert status[4] == TIMEOUT
    assert 2.99e9 <= waited_ns[4] < 600e9
    assert (status[waited_ns < 2.99e9] == OK).all() and len(status) == 6
    assert outcome.samples["size"][4] == 0


def test_a_server_that_says_at_once_that_a_deadline_was_exceeded_has_failed_fast(drivers, tmp_path):
    for kind in KINDS:
        with NullServer("grpc", error_every=2, error_code=4) as server:
            outcome = run(drivers[kind], tmp_path / kind, server, count=40, prime=0)
        assert (outcome.samples["status"] == ERROR).sum() == 20 and (outcome.samples["status"] == OK).sum() == 20
        found = of_run(outcome)
        assert not np.isfinite(found["p95_ms"]) and found["errors"] == 20 and found["timeouts"] == 0


def test_a_lost_connection_costs_its_request_and_no_other_and_is_never_sent_again(way, tmp_path):
    driver, kind = way
    with NullServer(kind, echo=True, drop_every=10) as server:
        outcome = run(driver, tmp_path, server, count=40, prime=0)
    assert len(outcome.samples) == 40
    if (driver.kind, kind) == ("python", "grpc"):  # gRPC's own backoff fails some more before it connects anew
        assert (outcome.samples["status"] == ERROR).sum() >= 4
        return
    failed = np.flatnonzero(outcome.samples["status"] == ERROR).tolist()
    assert failed == [9, 19, 29, 39]
    assert outcome.facts["reconnects"] == 3


@pytest.mark.parametrize(
    "way", [way for way in WAYS if way[1] not in ("mysql", "postgres", "redis")], ids="-".join, indirect=True
)
def test_a_server_that_closes_connections_after_answering_costs_no_request(way, tmp_path):
    """(MySQL, PostgreSQL and Redis have no way to say that it is about to.)"""
    driver, kind = way
    with NullServer(kind, echo=True, leave_every=10) as server:
        outcome = run(driver, tmp_path, server, count=40, prime=0)
    assert (outcome.samples["status"] == OK).all(), outcome.facts
    # Python's gRPC connects anew by itself, and tells only of changes that last long enough to be seen.
    assert outcome.facts["reconnects"] >= (0 if (driver.kind, kind) == ("python", "grpc") else 3)


def test_a_server_that_dies_ends_the_run_with_a_sentence(way, tmp_path):
    driver, kind = way
    with NullServer(kind, die_at=30) as server, pytest.raises(ServerError, match=r"null server ended|of the driver"):
        run(driver, tmp_path, server, clients=2, count=20, duration_s=30.0)


def test_a_dead_server_is_not_asked_a_million_times_a_second(way, tmp_path):
    driver, kind = way
    with NullServer(kind, die_at=30) as server:
        job(tmp_path, server, count=80)
        driver.run(tmp_path)
    samples = protocol.read_outcome(tmp_path).samples
    failed = samples[samples["status"] != OK]
    assert len(failed) > 50
    # The first one lost a connection that had answered.
    assert (failed["latency_ns"][1:] >= 9e6).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_accepts_and_closes_is_asked_after_pauses_that_are_part_of_the_failed_requests(
    kind, drivers, tmp_path
):
    """As behind a port that a container engine publishes, while the program restarts. A pause in no sample would break
    Little's law, though nobody was idle."""
    closing = socket.create_server(("127.0.0.1", 0))

    def close() -> None:
        with suppress(OSError):
            # Those of the start are there until they are asked: a run begins once all of its clients are connected.
            for first in [closing.accept()[0] for _ in range(2)]:
                first.recv(1)
                first.close()
            while True:
                closing.accept()[0].close()

    threading.Thread(target=close, daemon=True).start()
    with NullServer("http") as server, closing:
        target = f"127.0.0.1:{closing.getsockname()[1]}"
        refusing = SimpleNamespace(transport={**server.transport, "target": target})
        job(tmp_path, refusing, clients=2, prime=0, count=20)
        drivers[kind].run(tmp_path)
    samples = protocol.read_outcome(tmp_path).samples
    assert len(samples) == 40 and (samples["status"] == ERROR).all()
    assert (samples["latency_ns"] >= 9e6).all()


def test_clients_of_python_end_where_fewer_or_others_are_asked(tmp_path):
    with NullServer("grpc", echo=True) as server, Driver("python") as driver:
        run(driver, tmp_path / "three", server, clients=3, count=2)
        assert len(three := set(driver.pids())) == 3
        run(driver, tmp_path / "one", server, clients=1, count=2)
        (left,) = driver.pids()
        assert not any(psutil.pid_exists(pid) for pid in three - {left})


@pytest.mark.parametrize("kind", KINDS)
def test_a_stall_of_one_second_shows_in_the_open_loop_p99_but_hardly_in_the_closed_one(kind, drivers, tmp_path):
    with NullServer("grpc", stall_at=100, stall_ms=1000) as server:
        opened = run(drivers[kind], tmp_path / "open", server, clients=2, prime=1, due_ns=steady(200, 3))
    assert len(opened.samples) == 600
    assert of_run(opened)["p99_ms"] > 900
    with NullServer("grpc", stall_at=100, stall_ms=1000, delay_ms=1) as server:
        closed = run(drivers[kind], tmp_path / "closed", server, clients=2, prime=1, count=40, duration_s=3.0)
    # Each client waited through it once, and through three more of a machine that stands still at the most.
    slow = [int((outcome.samples["latency_ns"] > 900e6).sum()) for outcome in (closed, opened)]
    assert slow[0] <= 8 < slow[1]


@pytest.mark.parametrize("kind", KINDS)
def test_an_open_loop_sends_each_arrival_once_in_order_and_counts_latency_from_when_it_was_due(kind, drivers, tmp_path):
    due = steady(300, 1)
    with NullServer("grpc", echo=True, delay_ms=20) as server:
        outcome = run(drivers[kind], tmp_path, server, clients=3, due_ns=due)
    samples = np.sort(outcome.samples, order="due_ns")
    assert (samples["due_ns"] == due).all()
    assert (samples["query"] == np.arange(300) % 40).all()
    assert (samples["start_ns"] >= samples["due_ns"]).all()
    assert (samples["latency_ns"] >= 20e6).all()
    assert len(set(outcome.samples["client"])) > 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_rate_that_the_connections_cannot_carry_is_reported_and_every_arrival_is_there(kind, drivers, tmp_path):
    # Two connections at 10 ms a request carry 200 a second.
    with NullServer("grpc", delay_ms=10) as server:
        outcome = run(drivers[kind], tmp_path, server, clients=2, due_ns=steady(400, 1))
    assert len(outcome.samples) == 400
    assert outcome.facts["queued_max_ms"] > 500
    assert outcome.samples["latency_ns"].max() > 500e6
    assert any("could not be kept" in text for text in complaints([outcome.facts]))
    # It was not the driver who was late: whenever a connection was free, it sent.
    assert outcome.facts["lag_p99_ms"] < outcome.facts["queued_p99_ms"] / 2


@pytest.mark.parametrize("kind", KINDS)
def test_arrivals_whose_time_is_over_before_a_connection_is_free_are_timeouts_that_were_never_sent(
    kind, drivers, tmp_path
):
    # A burst of 50 for one connection that takes 0.4 s each: within 2 s, five of them can be sent.
    with NullServer("grpc", delay_ms=400) as server:
        outcome = run(drivers[kind], tmp_path, server, clients=1, due_ns=np.zeros(50, np.int64), timeout_s=2.0)
    late = outcome.samples["status"] == TIMEOUT
    assert len(outcome.samples) == 50
    assert 44 <= outcome.facts["unsent"] <= late.sum() <= 50
    assert (outcome.samples["latency_ns"][late] >= 1.99e9).all()


def held_up(outcome) -> list[str]:
    """What disturbed the client, by the default limits."""
    seen = {"others_pct": 0.0, "steal_pct": 0.0, **disturbance.of_client([outcome.facts], is_open=True)}
    return disturbance.above(seen, Disturbance.of().limits)


def test_a_driver_that_was_not_let_run_is_flagged(tmp_path):
    with Driver("native") as driver, NullServer("grpc", delay_ms=1) as server:
        quiet = run(driver, tmp_path / "quiet", server, count=40)
        job(tmp_path / "stopped", server, count=40, timeout_s=600.0)
        (pid,) = driver.pids()

        def stop():
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.7)
            os.kill(pid, signal.SIGCONT)
            os.kill(server.pid, signal.SIGCONT)

        thread = threading.Thread(target=stop)

        def ready():
            os.kill(server.pid, signal.SIGSTOP)  # the run does not end before its driver was stopped
            thread.start()

        driver.run(tmp_path / "stopped", ready=ready)
        thread.join()
    stopped = protocol.read_outcome(tmp_path / "stopped")
    assert stopped.facts["gap_max_ms"] > 400
    assert any("was not let run" in text for text in held_up(stopped))
    assert any("was not let run" in text for text in held_up(quiet)) == (
        quiet.facts["gap_max_ms"] > Disturbance.of().gap_ms
    )


@pytest.mark.parametrize("kind", ["native", "python"])
def test_clients_that_are_let_run_after_the_clocks_zero_are_flagged(kind, drivers, tmp_path, monkeypatch):
    with NullServer("grpc", delay_ms=1) as server:
        in_time = run(drivers[kind], tmp_path / "in_time", server, count=400)
        monkeypatch.setattr("anncestry.drive.pools.LEAD_NS", -600_000_000)
        late = run(drivers[kind], tmp_path / "late", server, count=400)
    assert any("was not let run" in text for text in held_up(late)), "its answers are divided by time that it lost"
    lost_ms = {
        name: disturbance.of_client([of.facts], is_open=False)["gap_max_ms"]
        for name, of in (("late", late), ("in time", in_time))
    }
    assert lost_ms["late"] >= 600
    flagged = any("was not let run" in text for text in held_up(in_time))
    assert flagged == (lost_ms["in time"] > Disturbance.of().gap_ms)


def test_a_hundred_clients_take_less_than_a_gibibyte(drivers, tmp_path):
    with NullServer("grpc", reply_bytes=2000) as server:
        outcome = run(drivers["native"], tmp_path, server, clients=100, count=40)
    assert len(set(outcome.samples["client"])) == 100
    assert (outcome.samples["status"] == OK).all()
    assert outcome.facts["rss_peak_mib"] < 1024


@pytest.fixture
def ordinary_limit():
    """As many open files as a system grants its users, unless they ask for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_many_connections_cause_no_collection_and_take_no_more_memory_or_files(drivers, tmp_path, ordinary_limit):
    with NullServer("grpc", reply_bytes=400) as server:
        outcome = run(drivers["native"], tmp_path, server, clients=1200, count=1)
    assert len(set(outcome.samples["client"])) == 1200
    assert (outcome.samples["status"] == OK).all()
    assert outcome.facts["gc_runs"] == 0
    assert outcome.facts["rss_peak_mib"] < 512


def test_long_requests_leave_no_garbage(drivers, tmp_path):
    with NullServer("grpc") as server:
        outcome = run(drivers["native"], tmp_path, server, requests=[b"x" * 8_000_000], count=100)
    assert (outcome.samples["status"] == OK).all() and outcome.facts["gc_runs"] == 0


def test_a_collection_while_the_clock_runs_is_counted_and_disturbs_the_run(tmp_path):
    # Requests that wait to be sent side by side, and are together more than a run may take: of a driver that has no
    # memory left from runs before.
    with Driver("native") as driver, NullServer("http") as server:
        outcome = run(driver, tmp_path, server, clients=5, count=3, prime=0, requests=[b"x" * 150_000_000])
    assert outcome.facts["gc_runs"] > 0
    assert any("collected garbage" in text for text in held_up(outcome))


def test_what_does_not_fit_into_memory_is_spilled_and_whole(drivers, tmp_path):
    with Driver("native") as driver, NullServer("http", reply_bytes=20_000_000) as server:
        outcome = run(driver, tmp_path, server, count=40)
    assert outcome.facts["spilled_mib"] > 100
    assert outcome.facts["rss_peak_mib"] < 1024
    assert all(response == b"x" * 20_000_000 for response in outcome.responses)


def test_chunked_bodies_are_put_together(drivers, tmp_path):
    for kind in KINDS:
        with NullServer("http", echo=True, chunked=True) as server:
            outcome = run(drivers[kind], tmp_path / kind, server, count=20)
        assert outcome.responses == [b"re: request %d" % query for query in outcome.samples["query"]]


def test_a_reset_stream_fails_alone(drivers, tmp_path):
    with NullServer("grpc", echo=True, reset_every=10) as server:
        outcome = run(drivers["native"], tmp_path, server, count=40, prime=0)
    assert np.flatnonzero(outcome.samples["status"]).tolist() == [9, 19, 29, 39]
    assert outcome.facts["reconnects"] == 0


def test_mysql_values_of_more_than_16_mib_come_in_several_packets_and_are_one(tmp_path):
    for size in ((1 << 24) - 2, 1 << 24, 20_000_000):
        with NullServer("mysql", reply_bytes=size) as server, Driver("native") as driver:
            outcome = run(driver, tmp_path / str(size), server, count=3)
        assert (outcome.samples["status"] == OK).all(), outcome.facts
        assert all(response.count(b"x") == size for response in outcome.responses)


def test_mysql_logs_in_with_a_password_from_the_environment_and_runs_prepared_statements(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_OF_TEST", "correct horse")
    execute = b"\x0a\x00\x00\x00\x17" + (0).to_bytes(4, "little") + b"\x00\x01\x00\x00\x00"
    with NullServer("mysql", echo=True, password_env="SECRET_OF_TEST") as server, Driver("native") as driver:
        more = {"user": "root", "password_env": "SECRET_OF_TEST", "prepare": ["SELECT 1"], "raw": True}
        outcome = run(driver, tmp_path, server, count=5, requests=[execute], transport=more)
        assert (outcome.samples["status"] == OK).all(), outcome.facts
        # Statement 0 of the job is statement 7 of the server.
        assert all(b"re: \x07\x00\x00\x00" in response for response in outcome.responses)
        monkeypatch.setenv("SECRET_OF_TEST", "wrong")
    with (
        NullServer("mysql", password_env="SECRET_OF_TEST", environment={"SECRET_OF_TEST": "other"}) as server,
        Driver("native") as driver,
        pytest.raises(ServerError, match=r"MySQL error 1045: Access denied"),
    ):
        run(driver, tmp_path, server, count=5, transport={"password_env": "SECRET_OF_TEST"})
    assert "correct horse" not in (tmp_path / "job.json").read_text()


def test_a_driver_that_runs_already_logs_in_with_the_password_of_a_server_that_comes_later(tmp_path, monkeypatch):
    with Driver("native") as driver:
        for number in range(2):
            variable = f"SECRET_OF_TEST_{number}"
            monkeypatch.setenv(variable, f"correct horse {number}")
            with NullServer("redis", echo=True, password_env=variable) as server:
                more = {"user": "default", "password_env": variable}
                outcome = run(driver, tmp_path / str(number), server, count=5, transport=more)
            assert (outcome.samples["status"] == OK).all(), outcome.facts


def test_postgres_runs_what_it_prepared_with_binary_parameters(tmp_path):
    def message(kind, body):
        return kind + (len(body) + 4).to_bytes(4, "big") + body

    bind = b"\0s0\0\0\1\0\1\0\1\0\0\0\5hello\0\1\0\1"
    request = message(b"B", bind) + message(b"E", b"\0\0\0\0\0") + message(b"S", b"")
    with NullServer("postgres", echo=True, error_every=4) as server, Driver("native") as driver:
        more = {"user": "root", "prepare": ["SELECT $1"], "raw": True}
        outcome = run(driver, tmp_path, server, count=8, prime=0, requests=[request], transport=more)
    good = [b"re: " + bind in response and response.endswith(b"Z\0\0\0\5I") for response in outcome.responses]
    assert good == [True, True, True, False] * 2
    assert outcome.facts["clients"][0]["errors"] == {"PostgreSQL ERROR 58030: the disk is on fire": 2}
    assert outcome.facts["reconnects"] == 0


def test_redis_logs_in_with_a_password_and_sends_whole_commands(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_OF_TEST", "correct horse")
    request = b"*2\r\n$3\r\nGET\r\n$2\r\n\r\n\r\n"
    more = {"user": "default", "password_env": "SECRET_OF_TEST", "raw": True}
    with NullServer("redis", echo=True, error_every=4, password_env="SECRET_OF_TEST") as server:
        with Driver("native") as driver:
            outcome = run(driver, tmp_path, server, count=8, prime=0, requests=[request], transport=more)
        with Driver("native") as driver:
            unknown = run(driver, tmp_path / "none", server, count=1, prime=0)
        monkeypatch.setenv("SECRET_OF_TEST", "wrong")
        with Driver("native") as driver, pytest.raises(ServerError, match=r"no connection to .*Redis: WRONGPASS"):
            run(driver, tmp_path / "wrong", server, count=1, transport=more)
    assert unknown.facts["clients"][0]["errors"] == {"Redis: NOAUTH Authentication required.": 1}
    assert outcome.responses == ([b"$6\r\nre: \r\n\r\n"] * 3 + [b""]) * 2
    assert outcome.facts["clients"][0]["errors"] == {"Redis: ERR the disk is on fire": 2}
    assert outcome.facts["reconnects"] == 0
    assert "correct horse" not in (tmp_path / "job.json").read_text()


def test_a_record_says_which_driver_it_was_and_what_it_was_built_from(drivers, tmp_path):
    with NullServer("grpc") as server:
        facts = [run(drivers[kind], tmp_path / kind, server, count=50).facts for kind in KINDS]
    native, python = (client_facts([fact], 50) for fact in facts)
    assert native["driver"]["kind"] == "native"
    assert len(native["driver"]["sources"]) == 64
    assert native["driver"]["go"]
    assert python["driver"]["kind"] == "python"
    assert native["cpu_us_per_query"] > 0 and python["cpu_us_per_query"] > 0


@pytest.mark.parametrize("kind", KINDS)
def test_the_memory_of_who_starts_a_driver_is_not_taken_for_its_own(kind, tmp_path):
    """getrusage's maximum is handed on to a program that is started; nobody's client needs what a harness once had."""
    held = bytearray(b"x") * (900 << 20)
    with Driver(kind) as driver, NullServer("http") as server:
        outcome = run(driver, tmp_path, server, count=10)
    assert 1 < outcome.facts["rss_peak_mib"] < 512 < len(held) >> 20


def test_clients_of_another_kind_leave_no_connection_to_the_next_run(tmp_path):
    def connected(pid, server):
        port = int(server.transport["target"].rpartition(":")[2])
        return [one for one in psutil.Process(pid).net_connections() if one.raddr and one.raddr.port == port]

    with Driver("native") as driver, NullServer("http") as server:
        run(driver, tmp_path / "first", server, clients=2)
        (native,) = driver.pids()
        assert connected(native, server), "its connections stay until somebody else asks"
        driver.kind = "python"
        run(driver, tmp_path / "second", server, clients=2)
        assert not connected(native, server)
        driver.kind = "native"
        run(driver, tmp_path / "third", server, clients=2)
        assert not any(connected(pid, server) for pid in driver.pids() if pid != native)


def test_a_driver_that_was_killed_between_two_runs_fails_one_run_with_the_reason_and_no_other(tmp_path):
    with Driver("native") as driver, NullServer("http") as server:
        run(driver, tmp_path / "first", server)
        (pid,) = driver.pids()
        os.kill(pid, signal.SIGKILL)
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        with pytest.raises(
            ServerError, match=r"the native driver failed: it died \(by signal 9, which the kernel sends"
        ):
            run(driver, tmp_path / "second", server)
        assert (run(driver, tmp_path / "third", server).samples["status"] == OK).all()


def test_a_driver_that_does_not_answer_holds_up_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(pools, "_REST_S", 0.6)
    with Driver("native") as driver, NullServer("http") as server:
        run(driver, tmp_path / "first", server)
        (pid,) = driver.pids()
        os.kill(pid, signal.SIGSTOP)
        until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
        driver.kind = "python"
        assert (run(driver, tmp_path / "second", server).samples["status"] == OK).all()
        assert pid not in driver.pids() and not psutil.pid_exists(pid)


def test_what_a_client_of_python_printed_is_shown_only_if_it_died(tmp_path, capfd):
    pool = pools.Python()
    pool._start([sys.executable, "-c", "import sys; print('out of luck', file=sys.stderr); sys.exit(3)"])
    (process,) = pool._processes
    process.wait(60)
    assert pool._death(process) == "it died (exit 3): out of luck"
    pool.close()
    assert "out of luck" not in capfd.readouterr().err
