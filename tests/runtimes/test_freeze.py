"""A server is frozen whole, cheaply, whatever it is doing; and whoever dies with it frozen leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import psutil
import pytest

from anncestry.errors import ServerError, UserError
from anncestry.metrics.processes import Tree, Used
from anncestry.runtimes import control_groups, freeze, leftovers
from anncestry.runtimes.base import Limits, Member
from anncestry.runtimes.freeze import Side
from anncestry.runtimes.native import NativeProcess, clean_environment
from anncestry.runtimes.remote import RemoteHandle
from tests.waiting import until

SHELL = Path("/bin/sh")
FORKS = "for i in 1 2 3; do (while :; do /bin/true; x=$(echo a | cat); done) & done; wait"
THREADS = """
import hashlib, threading
def burn():
    while True:
        hashlib.sha256(bytes(1 << 16))  # without Python's lock
for _ in range(40):
    threading.Thread(target=burn).start()
"""
VFORK = "import ctypes; library = ctypes.PyDLL(None); library.vfork() or library.sleep(600)"
"""The parent is in state D until its child ends."""


@pytest.fixture(params=["best", "version 1", "signals"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """What of the control groups a run may use: all that there is, version 1 alone where it is, nothing."""
    if request.param == "best":
        return control_groups.ROOT
    only = tmp_path / "groups"
    only.mkdir()
    if request.param == "version 1" and (control_groups.ROOT / "freezer").is_dir():
        (only / "freezer").symlink_to(control_groups.ROOT / "freezer")
    return only


@contextmanager
def member(tmp_path: Path, *argv: str, limits: Limits | None = None) -> Iterator[Member]:
    program = [SHELL, "-c", FORKS] if not argv else [sys.executable, "-c", *argv]
    process = NativeProcess("toy", program, clean_environment(), tmp_path, tmp_path / "log", limits or Limits())
    runs = {
        (): lambda: len(session(process.pid)) > 3,
        (THREADS,): lambda: psutil.Process(process.pid).num_threads() > 40,
    }.get(argv, lambda: psutil.Process(process.pid).cmdline()[1:2] == ["-c"])
    try:
        until(runs)
        yield Member("node1", "node", process)
    finally:
        process.stop(0)
        until(lambda: not session(process.pid))


def session(pid: int) -> list[int]:
    """What lives of the session of this process."""
    found = []
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):
            if os.getsid(process.pid) == pid and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return sorted(found)


def changed(main: int, pids: list[int], used: list[int]) -> bool:
    """Whether a process began or ended, or the main one used CPU time."""
    return session(main) != pids or clocks([main])[0] > used[pids.index(main)]


def frozen_leftovers(here: Path) -> list[int]:
    return [one.pid for one in leftovers.find(here) if one.frozen and one.pid is not None]


def clocks(pids: list[int]) -> list[int]:
    """CPU time of these processes, in nanoseconds."""
    return [time.clock_gettime_ns(~pid << 3 | 2) for pid in pids]


def at_rest(pids: list[int]) -> list[int]:
    """Their CPU time, once it stands still."""
    used: list[int] = []

    def stands_still() -> bool:
        before, used[:] = list(used), clocks(pids)
        return before == used

    until(stands_still)
    return used


@pytest.mark.parametrize("argv", [(), (THREADS,)], ids=["forks", "threads"])
def test_nothing_of_a_frozen_server_runs_and_all_of_it_goes_on(root: Path, tmp_path: Path, argv: tuple[str]) -> None:
    with member(tmp_path, *argv) as one, Side([one], root) as side:
        main = one.handle.pids()[0]
        for _ in range(10):
            instants = side.freeze()
            assert instants.asked_ns <= instants.done_ns <= time.monotonic_ns()
            before = session(main)
            used = at_rest(before)  # the last thread takes a moment to leave its core
            time.sleep(0.05)
            assert session(main) == before
            assert clocks(before) == used
            side.thaw()
            until(partial(changed, main, before, used))


def test_processor_time_is_exact_while_frozen(tmp_path: Path) -> None:
    with member(tmp_path) as one, Side([one]) as side:
        tree, mains = Tree(), {pid: "node1" for pid in one.handle.pids()}

        def both() -> tuple[float | None, float]:
            side.freeze()
            time.sleep(0.05)  # the last thread takes a moment to leave its core
            found = side.cpu_s(), sum(tree.read(mains, set(), seek=True).values(), Used()).cpu_s
            assert side.cpu_s() == pytest.approx(found[0], abs=2e-3)
            side.thaw()
            return found

        first = both()
        while (second := both())[1] < first[1] + 0.5:
            time.sleep(0.5)
    if first[0] is not None and second[0] is not None:  # a group of version 2 accounts
        # The tree's account of processes that come and go is in ticks of 10 ms each.
        assert second[0] - first[0] == pytest.approx(second[1] - first[1], rel=0.5)


def test_processes_get_their_own_groups_back(root: Path, tmp_path: Path) -> None:
    def groups(pid: int) -> str:
        return Path(f"/proc/{pid}/cgroup").read_text()

    with member(tmp_path) as one:
        main = one.handle.pids()[0]
        before = groups(main)
        with Side([one], root) as side:
            side.freeze()
            assert freeze.is_frozen(main)
        assert groups(main) == before and not freeze.is_frozen(main)
        assert [
            group for group in control_groups.groups() if "-freeze-" in group.name and str(os.getpid()) in group.name
        ] == []


def test_a_limited_server_keeps_its_limits(tmp_path: Path) -> None:
    with member(tmp_path, limits=Limits(memory_mib=256)) as one:
        with Side([one]) as side:
            side.freeze()
        assert one.handle.limits()["memory_mib"]["by"] and one.handle.usage().get("memory_mib", 1) > 0


def test_what_does_not_stand_still_is_named_and_all_is_thawed(tmp_path: Path) -> None:
    """A thread in state D hears no signal; the other member of the server, frozen by then, goes on."""
    nothing = tmp_path / "groups"
    nothing.mkdir()
    with member(tmp_path, THREADS) as well, member(tmp_path, VFORK) as badly:
        side = Side([well, badly], nothing)
        assert side.by == ("SIGSTOP",)
        (waiting,) = badly.handle.pids()
        until(lambda: psutil.Process(waiting).status() == psutil.STATUS_DISK_SLEEP)
        said = rf"toy: not frozen within {freeze.WITHIN_S:g} s: python\S* \(pid \d+, .* is in state D"
        with pytest.raises(ServerError, match=said):
            side.freeze()
        main = well.handle.pids()[0]
        assert not freeze.is_frozen(main)
        used = clocks([main])
        until(lambda: clocks([main]) > used)


def test_a_server_that_somebody_else_runs_is_not_frozen() -> None:
    theirs = RemoteHandle("theirs", "HOST:1", {"runtime": "remote", "tls": "none", "endpoints": {}}, "")
    with pytest.raises(UserError, match="remote server"), Side([Member("node1", "node", theirs)]) as side:
        side.freeze()


CONTROLLER = """
    import os, sys, time
    from pathlib import Path
    import psutil
    from anncestry.runtimes.base import Member
    from anncestry.runtimes.freeze import Side
    from anncestry.runtimes.native import NativeProcess, clean_environment
    folder, root = map(Path, sys.argv[1:3])
    program = [Path("/bin/sh"), "-c", sys.argv[3]]
    process = NativeProcess("toy", program, clean_environment(), folder, folder / "log")
    def is_of_it(pid):
        try:
            return os.getsid(pid) == process.pid
        except OSError:
            return False
    while sum(map(is_of_it, psutil.pids())) < int(sys.argv[4]):
        time.sleep(0.02)
    side = Side([Member("node1", "node", process)], root)
    side.freeze()
    print(process.pid, flush=True)
    time.sleep(600)
"""


@contextmanager
def killed(script: str, folder: Path, root: Path, program: str, processes: int) -> Iterator[tuple[int, int]]:
    """Ids of a controller that is killed in the end, and of its server's main process; that has so many at least."""
    command = [sys.executable, "-c", textwrap.dedent(script), folder, root, program, str(processes)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as controller:
        assert controller.stdout is not None
        try:
            yield controller.pid, int(controller.stdout.readline())
        finally:
            controller.send_signal(signal.SIGKILL)


def test_whatever_kills_the_controller_leaves_no_frozen_server_to_the_next_run(root: Path, tmp_path: Path) -> None:
    with killed(CONTROLLER, tmp_path, root, FORKS, 4) as (controller, main):
        frozen = session(main)
        assert len(frozen) > 3 and not set(frozen_leftovers(tmp_path)) & set(frozen), "its run goes on"
    leftovers.end_frozen()  # by this or by a pair of another test, which ends whatever is frozen as well
    until(lambda: not session(main))
    assert leftovers.clean([one for one in leftovers.find(tmp_path) if f"-{controller}-freeze" in one.name]) == []
    assert not [group for group in control_groups.groups() if f"-{controller}-freeze" in group.name]


def test_leftovers_are_ended_though_they_are_frozen_and_what_runs_is_left_to_the_user(
    root: Path, tmp_path: Path
) -> None:
    """`leftovers` names the children of a killed controller; `end_frozen` touches only what is frozen."""
    script = CONTROLLER.replace("side.freeze()", "side.freeze(); side.thaw()")
    with killed(script, tmp_path, root, "sleep 600 & sleep 600 & wait", 3) as (controller, main):
        assert len(session(main)) == 3
    until(lambda: main not in session(main))
    left = session(main)
    assert len(left) == 2
    os.kill(left[0], signal.SIGSTOP)
    until(lambda: left[0] not in session(main) or left[0] in frozen_leftovers(tmp_path))
    leftovers.end_frozen()  # by this or by a run of another test
    until(lambda: session(main) == left[1:])
    assert leftovers.clean([one for one in leftovers.find(tmp_path) if one.pid in left]) == []
    until(lambda: not session(main))
    leftovers.clean([one for one in leftovers.find(tmp_path) if f"-{controller}-freeze" in one.name])
