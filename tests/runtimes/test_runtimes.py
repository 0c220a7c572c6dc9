"""Native processes start with what they are given, are watched, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from anncestry.errors import ServerError, UserError
from anncestry.provenance import gates
from anncestry.runtimes import control_groups, docker
from anncestry.runtimes.base import Ending, Group, Handle, Member
from anncestry.runtimes.native import NativeProcess, claim_ports, clean_environment, free_ports
from tests.waiting import until

SHELL = Path("/bin/sh")
PATIENCE_S = 120
"""For a process that is asked to end: a busy machine may take some."""


def start(tmp_path: Path, script: str, **env: str) -> NativeProcess:
    return NativeProcess("toy", [SHELL, "-c", script], clean_environment(env), tmp_path, tmp_path / "log")


def test_free_ports_are_adjacent_and_can_be_bound() -> None:
    ports = free_ports(12)
    assert ports == list(range(ports[0], ports[0] + 12))
    with socket.socket() as probe:
        probe.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # as servers do: a test beside this one may have ended
        probe.bind(("127.0.0.1", ports[5]))


def test_a_claimed_port_in_use_is_named() -> None:
    ports = free_ports(3)
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", ports[1]))
        listener.listen()
        with pytest.raises(UserError, match=f"port {ports[1]} is in use"):
            claim_ports(ports[0], 3)
    assert claim_ports(ports[0], 3) == ports


def test_a_claim_beyond_the_last_port_is_refused() -> None:
    with pytest.raises(UserError, match="first_port"):
        claim_ports(65_530, 12)


def test_a_server_sees_no_proxies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("http_proxy", "http://nowhere.invalid")
    monkeypatch.setenv("HTTPS_PROXY", "http://nowhere.invalid")
    process = start(tmp_path, "env", LD_LIBRARY_PATH="/some/where", TOY="1 = 2")
    until(lambda: not process.alive())
    process.stop(1)
    seen = (tmp_path / "log").read_text()
    assert "proxy" not in seen.lower()
    assert "LD_LIBRARY_PATH=/some/where\n" in seen
    assert "TOY=1 = 2\n" in seen


def test_a_server_that_exits_at_start_shows_the_end_of_its_log(tmp_path: Path) -> None:
    process = start(tmp_path, "for i in $(seq 30); do echo line $i; done; echo the reason >&2; exit 3")
    until(lambda: not process.alive())
    with pytest.raises(ServerError) as caught:
        process.check_alive()
    assert "the reason" in str(caught.value)
    assert "line 30" in str(caught.value)
    assert "line 15\n" not in str(caught.value)
    ending = process.stop(1)
    assert (ending.signal, ending.returncode) == (None, 3)


def test_a_program_that_is_not_there_is_named_in_the_log(tmp_path: Path) -> None:
    process = NativeProcess("toy", [tmp_path / "missing"], clean_environment(), tmp_path, tmp_path / "log")
    until(lambda: not process.alive())
    process.stop(1)
    assert "missing: No such file" in process.log_tail()


def test_a_server_that_ends_on_sigterm_is_not_killed(tmp_path: Path) -> None:
    process = start(tmp_path, "trap 'exit 0' TERM; echo up; while true; do sleep 0.02; done")
    until(lambda: "up" in process.log_tail())
    ending = process.stop(PATIENCE_S)
    assert (ending.signal, ending.returncode, ending.clean) == ("SIGTERM", 0, True)
    assert process.stop(PATIENCE_S) == ending


@pytest.mark.parametrize(("status", "clean"), [(0, True), (143, True), (1, False), (2, False), (101, False)])
def test_a_server_that_crashes_while_it_stops_did_not_end_as_it_was_asked_to(
    tmp_path: Path, status: int, clean: bool
) -> None:
    process = start(tmp_path, f"trap 'exit {status}' TERM; echo up; while true; do sleep 0.02; done")
    until(lambda: "up" in process.log_tail())
    ending = process.stop(PATIENCE_S)
    assert (ending.signal, ending.returncode, ending.clean) == ("SIGTERM", status, clean)


def test_a_start_is_not_judged_by_what_an_earlier_server_wrote_into_the_same_log(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("bind: address already in use\n")
    process = start(tmp_path, "echo mine; exit 3")
    until(lambda: not process.alive())
    assert process.log_tail() == "mine"
    process.stop(0)


@pytest.mark.parametrize("beside", [True, False])
def test_a_signal_while_a_server_is_stopped_keeps_none_of_its_members_running(beside: bool) -> None:
    """As Ctrl-C in the seconds in which a first member still ends: the others are stopped, then it is heeded.

    Also with a thread `beside` that takes signals, and this process is as it was: what it starts hears them.
    """
    group, stopped = Group(), []

    class Slow(Handle):
        def __init__(self, name: str, is_signalled: bool) -> None:
            self.name, self._is_signalled = name, is_signalled

        def alive(self) -> bool:
            return self.name not in stopped

        def check_alive(self) -> None:
            assert self.alive()

        def stop(self, term_wait_s: float) -> Ending:
            if self._is_signalled:
                os.kill(os.getpid(), signal.SIGHUP)
                time.sleep(0.3)
            stopped.append(self.name)
            return Ending("SIGTERM", 0, 0.0)

    def heed(*_: object) -> None:
        raise SystemExit(143)

    over = threading.Event()
    if beside:
        threading.Thread(target=over.wait).start()
    before = signal.signal(signal.SIGHUP, heed)
    try:
        group.add(Member("etcd", "etcd", Slow("etcd", False)))
        group.add(Member("node", "node", Slow("node", True)))
        with pytest.raises(SystemExit):
            group.stop()
        assert signal.getsignal(signal.SIGHUP) is heed
    finally:
        over.set()
        signal.signal(signal.SIGHUP, before)
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, []) & {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    assert stopped == ["node", "etcd"] and group.stop().clean


def test_the_whole_group_is_gone_after_a_stop(tmp_path: Path) -> None:
    process = start(tmp_path, "trap '' TERM; (trap '' TERM; while true; do sleep 9; done) & echo up; wait")
    until(lambda: "up" in process.log_tail())
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    ending = process.stop(0.2)
    assert (ending.signal, ending.clean) == ("SIGKILL", False)
    assert not psutil.pid_exists(process.pid)
    until(lambda: not any(child.is_running() and child.status() != "zombie" for child in children))


def test_orphans_of_a_server_that_died_are_stopped_too(tmp_path: Path) -> None:
    process = start(tmp_path, "(sleep 60; true) & echo $!; exit 1")
    until(lambda: not process.alive())
    orphan = psutil.Process(int(process.log_tail()))
    assert orphan.is_running()
    process.stop(1)
    until(lambda: not orphan.is_running() or orphan.status() == "zombie")


def test_a_server_dies_with_a_harness_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from anncestry.runtimes.native import *;"
        "p = NativeProcess('toy', ['/bin/sleep', '60'], clean_environment(), Path('.'), Path('log'));"
        "print(p.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as harness:
        assert harness.stdout is not None
        server = psutil.Process(int(harness.stdout.readline()))
        until(lambda: server.name() == "sleep")
        harness.kill()
    until(lambda: not server.is_running() or server.status() == "zombie")


def test_the_exec_wrapper_refuses_when_its_parent_is_gone(tmp_path: Path) -> None:
    wrapper = Path(sys.modules[NativeProcess.__module__].__file__ or "").with_name("namespaces.py")
    command = [sys.executable, "-I", "-S", str(wrapper), f"--tie={os.getppid()}", "--", "/bin/true"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "gone" in done.stderr


def test_a_process_can_be_frozen_killed_and_started_again(tmp_path: Path) -> None:
    process = NativeProcess("sleeper", ["/bin/sleep", "60"], clean_environment(), tmp_path, tmp_path / "log")
    try:
        until(lambda: psutil.Process(process.pid).name() == "sleep")
        process.pause()
        until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
        assert process.alive()
        process.resume()
        until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_SLEEPING)
        first = process.pid
        process.kill()
        assert not process.alive()
        process.restart()
        assert process.alive() and process.pid != first
        process.pause()
        assert process.stop(PATIENCE_S).signal == "SIGTERM", "one that is frozen still hears it"
        with pytest.raises(UserError, match="runtime docker can"):
            process.cut_off()
    finally:
        process.stop(0)


def test_an_engine_that_is_not_reachable_is_said_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    with pytest.raises(UserError, match=rf"no container engine answers.*{tmp_path}/nobody\.sock") as error:
        docker.connect()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("script", ["trap 'kill -SEGV $$' TERM; echo up; while true; do sleep 0.02; done", "exit 3"])
def test_a_server_that_crashes_while_it_stops_or_ended_before_did_not_stop_cleanly(tmp_path: Path, script: str) -> None:
    process = start(tmp_path, script)
    until(lambda: "up" in process.log_tail() or not process.alive())
    ending = process.stop(PATIENCE_S)
    assert not ending.clean
    gate = gates.stopped(ending.clean, ending.signal, ending.seconds, ending.returncode)
    assert not gate.ok and f"ended by itself ({'with 3' if script == 'exit 3' else 'by signal 11'})" in gate.detail


def test_groups_of_ours_are_told_from_units_that_somebody_called_like_them(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").touch()
    ours = ("anncestry-12-0-node1", "anncestry-12-freeze-3")
    for name in (*ours, "anncestry-nightly.service", "anncestry-20261128.scope", "anncestry-7-nightly.service"):
        (tmp_path / name).mkdir()
    assert [folder.name for folder in control_groups.groups(tmp_path)] == list(ours)
