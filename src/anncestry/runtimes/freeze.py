"""Freezing a server whole, for half a second, while another one is asked: cheap, and never for good.

Of native members by a control group where one can be had: that of version 2 (also beside version 1), which lets a
frozen process be killed and accounts its CPU time; else the freezer of version 1, in which a killed process dies once
it is thawed. A group holds what its processes start. Elsewhere SIGSTOP to the whole tree, looked at again until no
thread runs and nothing new is there. A container's engine pauses it.

Instants are of `time.monotonic_ns` (CLOCK_MONOTONIC), the clock of the driver's samples.
"""

from __future__ import annotations

import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import NamedTuple

import psutil

from anncestry.errors import ServerError
from anncestry.runtimes import control_groups
from anncestry.runtimes.base import Handle, Member
from anncestry.runtimes.control_groups import PREFIX, ROOT
from anncestry.runtimes.native import NativeProcess

WITHIN_S = 2.0
"""How long a server may take to stand still."""
PROC = Path("/proc")
NAMED = "-freeze-"
"""In the names of the groups that are made to freeze servers."""
_POLL_S = 0.0005
_LATE_POLL_S = 0.005
_STOPPED = "TtZXx"  # by a signal or a tracer; ended
_FROZEN = ("cgroup.freeze", "freezer.state")
_numbers = count(1)


class Instants(NamedTuple):
    """When it was asked, and when the last member had done so (ns of `time.monotonic_ns`)."""

    asked_ns: int
    done_ns: int


class Side:
    """A server that is frozen and thawed as a whole; leaving the block thaws it and gives its groups back.

    UserError for a member that can't be frozen (of a server that somebody else runs).
    """

    def __init__(self, members: Iterable[Member], root: Path = ROOT) -> None:
        self._parts: list[_Part] = []
        try:
            for member in members:
                self._parts.append(_part(member.handle, root))
        except BaseException:
            self.close()
            raise
        self.by = tuple(dict.fromkeys(part.by for part in self._parts))
        """How its members are frozen, for a record."""

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def freeze(self, within_s: float = WITHIN_S) -> Instants:
        """Nothing of it runs on return. ServerError names what does not stand still; then it is thawed again."""
        asked_ns, waited_s = time.monotonic_ns(), 0.0
        try:
            for part in self._parts:
                part.ask()
            for part in self._parts:
                while running := part.running():
                    if waited_s > within_s:
                        raise ServerError(f"{part.name}: not frozen within {within_s:g} s: {running} ({part.by})")
                    slept_s = time.monotonic()
                    time.sleep(_POLL_S)
                    # Where this program got no core, the server may have had none to stand still on either.
                    waited_s += min(time.monotonic() - slept_s, _LATE_POLL_S)
        except BaseException:
            self.thaw()
            raise
        return Instants(asked_ns, time.monotonic_ns())

    def thaw(self) -> Instants:
        """It runs again; nothing happens to one that does."""
        asked_ns = time.monotonic_ns()
        _each(part.thaw for part in self._parts)
        return Instants(asked_ns, time.monotonic_ns())

    def cpu_s(self) -> float | None:
        """CPU seconds used so far, also by processes that ended, exact while it is frozen; differences count.

        None where no control group accounts: `metrics.processes.Tree` then reads the trees.
        """
        each = [part.cpu_s() for part in self._parts]
        known = [one for one in each if one is not None]
        return sum(known) if len(known) == len(each) else None

    def close(self) -> None:
        """Thaw, and put processes back where they were. Safe to call again."""
        _each(part.close for part in self._parts)


def _each(actions: Iterable[Callable[[], None]]) -> None:
    """All of them, whatever happens; then the first error."""
    errors = []
    for action in actions:
        try:
            action()
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]


def release(pid: int) -> None:
    """Let a process of ours go on, however it was frozen: one that is frozen does not hear a signal."""
    for folder in control_groups.of_process(pid).values():
        if folder.name.startswith(PREFIX):
            _write_state(folder, False)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def is_frozen(pid: int) -> bool:
    """Whether a process is stopped, or in a group of ours that is frozen."""
    for folder in control_groups.of_process(pid).values():
        states = [_read(folder / name) for name in _FROZEN]
        if folder.name.startswith(PREFIX) and any(state not in ("", "0", "THAWED") for state in states):
            return True
    states = [state for _, state in _threads(pid)]
    return bool(states) and all(state in "Tt" for state in states)


class _Part(ABC):
    """One member."""

    by: str

    def __init__(self, handle: Handle) -> None:
        self._handle, self.name = handle, handle.name

    @abstractmethod
    def ask(self) -> None:
        """Begin to freeze it."""

    def running(self) -> str:
        """What of it runs still, "" for nothing."""
        return ""

    @abstractmethod
    def thaw(self) -> None: ...

    def cpu_s(self) -> float | None:
        return self._handle.usage().get("cpu_s")

    def close(self) -> None:
        """Thaw, and give back what was taken."""
        self.thaw()


def _part(handle: Handle, root: Path) -> _Part:
    if not isinstance(handle, NativeProcess):
        return _Paused(handle)
    for parent, name in _places(handle.pid, root):
        with suppress(OSError):
            return _Grouped(handle, parent, name)
    return _Stopped(handle)


class _Paused(_Part):
    by = "pause of the container engine"

    def __init__(self, handle: Handle) -> None:
        super().__init__(handle)
        self._paused = False

    def ask(self) -> None:
        self._handle.pause()
        self._paused = True

    def thaw(self) -> None:
        if self._paused:
            self._handle.resume()
            self._paused = False


def _places(pid: int, root: Path) -> Iterator[tuple[Path, str]]:
    """Folders in which a group can freeze a process, best first, and the file that freezes it."""
    two = root if (root / "cgroup.controllers").exists() else root / "unified"
    own = control_groups.of_process(pid, root).get("")
    if own is not None and own.name.startswith(f"{PREFIX}{os.getpid()}-"):
        yield own, "cgroup.freeze"  # that of its limits
    elif (two / "cgroup.procs").exists():
        for parent in (own, *control_groups.parents_v2(two)):
            if parent is not None:
                yield parent / f"{PREFIX}{os.getpid()}{NAMED}{next(_numbers)}", "cgroup.freeze"
    if (root / "freezer" / "cgroup.procs").exists():
        yield root / "freezer" / f"{PREFIX}{os.getpid()}{NAMED}{next(_numbers)}", "freezer.state"


class _Grouped(_Part):
    """By a control group. OSError where it can't be had."""

    def __init__(self, handle: NativeProcess, folder: Path, file: str) -> None:
        super().__init__(handle)
        self._folder, self._back, self._made = folder, Path(), not folder.is_dir()
        self._two = file == "cgroup.freeze"
        self.by = f"control group (version {2 if self._two else 1}), {file}"
        if not self._made:
            return
        controller = "" if self._two else "freezer"
        folder.mkdir()
        try:
            if not (folder / file).exists():
                raise OSError(f"{folder}: no {file}")
            self._back = control_groups.of_process(handle.pid)[controller]
            _move(handle.pid, folder)
        except (OSError, KeyError) as error:
            self.close()
            raise OSError(f"{folder}: {error}") from None

    def ask(self) -> None:
        _write_state(self._folder, True, strict=True)

    def running(self) -> str:
        if self._two:
            frozen = "frozen 1" in (self._folder / "cgroup.events").read_text()
        else:
            self.ask()  # again: version 1 does not see by itself that the last process has frozen
            frozen = (self._folder / "freezer.state").read_text().strip() == "FROZEN"
        if frozen:
            return ""
        # Who sleeps or is stopped freezes as soon as it is asked: what keeps a group is a call that can't be left.
        return str(_busy(_pids(self._folder), "SITtZXx") or "a process that leaves no call of the kernel's")

    def thaw(self) -> None:
        if self._folder.is_dir():
            _write_state(self._folder, False, strict=True)

    def cpu_s(self) -> float | None:
        if not self._two:
            return super().cpu_s()
        used = control_groups.usage({"": self._folder}).get("cpu_s")
        return None if used is None else float(used)

    def close(self) -> None:
        super().close()
        deadline = time.monotonic() + WITHIN_S
        while self._made and self._folder.is_dir():  # that of a limit goes with its process
            for pid in _pids(self._folder):
                with suppress(OSError):
                    (self._back / "cgroup.procs").write_text(str(pid))
            try:
                self._folder.rmdir()
            except OSError as error:
                if time.monotonic() > deadline:
                    raise ServerError(f"{self._folder}: can't be removed: {error.strerror}") from None
                time.sleep(_POLL_S)


class _Stopped(_Part):
    """By SIGSTOP to each process of a tree."""

    by = "SIGSTOP"

    def __init__(self, handle: NativeProcess) -> None:
        super().__init__(handle)
        self._main = handle.pid
        self._known = {one.pid: one for one in _tree(self._main)}
        """All that were seen, also those whose parent has ended since."""
        self._asked: set[int] = set()

    def ask(self) -> None:
        self._asked = set()
        self._stop_new()

    def _stop_new(self) -> bool:
        """Stop what is new in the tree; whether there was anything."""
        self._known = {pid: one for pid, one in self._known.items() if one.is_running()}
        parents, new = [self._main, *self._known], False
        seen = set(parents)
        while parents:
            pid = parents.pop()
            if pid not in self._asked:
                with suppress(ProcessLookupError, psutil.Error):
                    self._known[pid] = psutil.Process(pid)
                    os.kill(pid, signal.SIGSTOP)
                    new = True
                self._asked.add(pid)
            for child in _children(pid):
                if child not in seen:
                    seen.add(child)
                    parents.append(child)
        return new

    def running(self) -> str:
        # First those that are known: only what is stopped starts no others.
        busy = _busy(self._known, _STOPPED)
        if busy is None:
            return "it starts new processes" if self._stop_new() else ""
        if busy.state == "D":  # perhaps it waits (vfork) until its child, which is stopped, has become a program
            for number in (signal.SIGCONT, signal.SIGSTOP):
                for child in _children(busy.pid):
                    with suppress(ProcessLookupError):
                        os.kill(child, number)
                time.sleep(_POLL_S)
        return str(busy)

    def thaw(self) -> None:
        for pid, process in self._known.items():
            with suppress(ProcessLookupError, psutil.Error):
                if process.is_running():
                    os.kill(pid, signal.SIGCONT)
        self._asked = set()


def _write_state(folder: Path, frozen: bool, strict: bool = False) -> None:
    """Freeze or thaw a group, of either version; OSError only if `strict`."""
    two = (folder / "cgroup.freeze").exists()
    with suppress(*(() if strict else (OSError,))):
        if two:
            (folder / "cgroup.freeze").write_text("1" if frozen else "0")
        elif strict or (folder / "freezer.state").exists():
            (folder / "freezer.state").write_text("FROZEN" if frozen else "THAWED")


def _tree(main: int) -> list[psutil.Process]:
    """A process and all that it started; by its session also those whose parent has ended. Reads all of /proc."""
    process = psutil.Process(main)
    found = {one.pid: one for one in (process, *process.children(recursive=True))}
    for pid in psutil.pids():
        with suppress(OSError, psutil.Error):
            if pid not in found and os.getsid(pid) == main:
                found[pid] = psutil.Process(pid)
    return [one for one in found.values() if set("".join(state for _, state in _threads(one.pid))) - set("ZXx")]


def _move(main: int, folder: Path) -> None:
    """A tree into a group; what is outside may start others there, so once more until nothing is. OSError if not."""
    deadline = time.monotonic() + WITHIN_S
    with suppress(psutil.NoSuchProcess):
        while outside := {one.pid for one in _tree(main)} - set(_pids(folder)):
            if time.monotonic() > deadline:
                raise OSError(f"processes {sorted(outside)} don't enter it")
            for pid in outside:
                with suppress(ProcessLookupError):
                    (folder / "cgroup.procs").write_text(str(pid))
        return
    raise OSError(f"pid {main} has ended")


def _read(path: Path) -> str:
    """The text of a file, "" where there is none (any more)."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _pids(folder: Path) -> list[int]:
    return [int(pid) for pid in _read(folder / "cgroup.procs").split()]


def _children(pid: int) -> list[int]:
    """Of all its threads; complete where these don't run (proc(5))."""
    found: list[int] = []
    try:
        for task in (PROC / str(pid) / "task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                found += map(int, (task / "children").read_text().split())
    except OSError:
        pass
    return found


def _threads(pid: int) -> Iterator[tuple[int, str]]:
    """Each thread of a process, and its state."""
    with suppress(OSError):
        for task in (PROC / str(pid) / "task").iterdir():
            with suppress(OSError):
                yield int(task.name), (task / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]


class _Busy(NamedTuple):
    """A thread that is not frozen."""

    pid: int
    thread: int
    state: str

    def __str__(self) -> str:
        name = _read(PROC / str(self.pid) / "comm") or "?"
        return f"{name} (pid {self.pid}, thread {self.thread}) is in state {self.state}"


def _busy(pids: Iterable[int], still: str) -> _Busy | None:
    """The first thread of these processes that is in no state of `still`."""
    for pid in pids:
        for thread, state in _threads(pid):
            frozen = state == "D" and _read(PROC / str(pid) / "task" / str(thread) / "wchan") == "__refrigerator"
            if state not in still and not frozen:
                return _Busy(pid, thread, state)
    return None
