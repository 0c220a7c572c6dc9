"""Freezing a whole server: nothing of it runs, all of it goes on, and nothing stays frozen behind a killed run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from anncestry.errors import ServerError
from anncestry.runtimes import freeze, leftovers
from anncestry.runtimes.base import Group, Handle, Member
from anncestry.runtimes.native import NativeProcess, clean_environment

BUSY = """
import os, sys, time
children = [os.fork() for _ in range(2)]
while True:
    if 0 not in children and len(sys.argv) > 1:
        time.sleep(0.01)
        if os.fork() == 0:  # one that comes and goes, all the time
            sum(range(20_000))
            os._exit(0)
        os.waitpid(-1, os.WNOHANG)
    else:
        sum(range(1000))
"""
WAYS = [freeze._group_v2, freeze._group_v1, freeze._Stopped]


@pytest.fixture
def server(tmp_path):
    started = []

    def start(*arguments):
        argv = [Path(sys.executable), "-c", BUSY, *arguments]
        started.append(NativeProcess("busy", argv, clean_environment(), tmp_path, tmp_path / "busy.log"))
        deadline = time.monotonic() + 20
        while len(list(freeze._tree(started[-1].pids()))) < 4 and time.monotonic() < deadline:
            time.sleep(0.01)
        group = Group()
        group.add(Member("node1", "node", started[-1]))
        return group

    yield start
    for process in started:
        process.stop(0)


def side_by(way, group):
    """A side that is frozen in one way; none where this machine has it not."""
    try:
        part = way(group.pids())
    except OSError:
        part = None
    if part is None:
        return None
    side = freeze.Side.__new__(freeze.Side)
    side._parts = [part]
    return side


def used_s(group):
    """CPU seconds of all that lives of a server."""
    total = 0.0
    for pid in freeze._tree(group.pids()):
        with suppress(psutil.Error):
            times = psutil.Process(pid).cpu_times()
            total += times.user + times.system
    return total


@pytest.mark.parametrize("way", WAYS)
def test_what_is_frozen_uses_no_processor_and_goes_on_afterwards(server, way):
    group = server()
    side = side_by(way, group) or freeze.Side(group)
    with side:
        for _ in range(3):
            stopped = side.freeze()
            assert stopped.asked_ns < stopped.done_ns
            before = used_s(group)
            time.sleep(0.1)
            assert used_s(group) == before
            side.thaw()
            deadline = time.monotonic() + 20
            while used_s(group) == before and time.monotonic() < deadline:
                time.sleep(0.02)
            assert used_s(group) > before


@pytest.mark.parametrize("way", WAYS)
def test_children_that_are_started_meanwhile_are_frozen_as_well(server, way):
    group = server("children")
    side = side_by(way, group) or freeze.Side(group)
    with side:
        for _ in range(5):
            side.freeze()
            before = {pid for pid in freeze._tree(group.pids())}
            total = used_s(group)
            time.sleep(0.05)
            assert {pid for pid in freeze._tree(group.pids())} == before
            assert used_s(group) == total
            side.thaw()
            time.sleep(0.02)


def test_a_server_is_as_it_was_after_the_block(server):
    group = server()
    before = Path(f"/proc/{group.pids()[0]}/cgroup").read_text()
    with freeze.Side(group) as side:
        side.freeze()
    assert Path(f"/proc/{group.pids()[0]}/cgroup").read_text() == before
    assert not [folder for folder in freeze.control_groups.groups() if f"-freeze-{group.pids()[0]}" in folder.name]
    assert group.alive()


def test_a_server_that_is_killed_while_frozen_ends(server):
    group = server()
    with freeze.Side(group) as side:
        side.freeze()
        os.killpg(group.pids()[0], signal.SIGKILL)
    deadline = time.monotonic() + 20
    while group.alive() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not group.alive()


class _Stubborn(Handle):
    """A member that never does as it is asked."""

    name = "stubborn"

    def alive(self):
        return True

    def check_alive(self):
        pass

    def stop(self, term_wait_s):
        raise NotImplementedError

    def pause(self):
        self.paused = True

    def resume(self):
        self.paused = False


def test_a_side_that_freezes_badly_is_thawed_and_named(server, monkeypatch):
    group = server()
    with freeze.Side(group) as side:
        (part,) = side._parts
        real = part.awaited
        monkeypatch.setattr(part, "awaited", lambda frozen: "python (pid 7) is D" if frozen else real(frozen))
        with pytest.raises(ServerError, match=r"does not freeze within 0.1 s .*python \(pid 7\) is D"):
            side.freeze(within_s=0.1)
        before = used_s(group)
        deadline = time.monotonic() + 20
        while used_s(group) == before and time.monotonic() < deadline:
            time.sleep(0.02)
        assert used_s(group) > before, "it was thawed again"


def test_another_runtime_pauses_its_members_by_itself():
    group, handle = Group(), _Stubborn()
    group.add(Member("node1", "node", handle))
    with freeze.Side(group) as side:
        side.freeze()
        assert handle.paused
        assert "container engine" in side.by
    assert not handle.paused


CONTROLLER = """
import sys, time
from pathlib import Path
from anncestry.runtimes import freeze
from anncestry.runtimes.base import Group, Member
from anncestry.runtimes.native import NativeProcess, clean_environment
here = Path(sys.argv[1])
argv = [Path(sys.executable), "-c", {busy!r}]
process = NativeProcess("busy", argv, clean_environment(), here, here / "busy.log")
group = Group()
group.add(Member("node1", "node", process))
time.sleep(0.5)
side = freeze.Side(group)
{way}
side.freeze()
print(*freeze._tree(group.pids()), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("way", ["_group_v2", "_group_v1", "_Stopped"])
def test_a_killed_controller_leaves_no_frozen_server_to_the_next_run(tmp_path, way):
    made = f"""
side._give_back()
try:
    part = freeze.{way}(group.pids())
except OSError:
    part = None
side._parts = [part or freeze._Stopped(group.pids())]
"""
    program = CONTROLLER.format(busy=BUSY, way=made)
    controller = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    pids = [int(pid) for pid in controller.stdout.readline().split()]
    assert len(pids) >= 3
    controller.kill()
    controller.wait()
    leftovers.end_frozen()
    deadline = time.monotonic() + 20
    while any(map(_lives, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in pids if _lives(pid)]
    assert not freeze.frozen_groups()


def _lives(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
