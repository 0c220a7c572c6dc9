"""Freezing a whole server, and letting it go on: for pairs, of whose two servers one runs at a time.

By the freezer of control groups where a group can be made (v2, in which a frozen process can still be killed, before
v1), else by SIGSTOP to the whole tree of processes; containers by their engine's pause. All instants are nanoseconds of
`time.monotonic_ns`, the clock of the driver's samples.
"""

from __future__ import annotations

import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from anncestry.errors import ServerError
from anncestry.runtimes import control_groups
from anncestry.runtimes.base import Group, Handle

WITHIN_S = 2.0
"""A side that takes longer to freeze freezes badly."""
NAMED = "freeze"
"""In the names of our groups: anncestry-PID-freeze-…"""
_POLL_S = 0.0005
_REMOVE_S = 5.0


@dataclass(frozen=True)
class Instants:
    """When something was asked for, and when it was done."""

    asked_ns: int
    done_ns: int


class _Part(ABC):
    """One member of a side."""

    by: str
    """What freezes it."""

    @abstractmethod
    def begin(self, frozen: bool) -> None:
        """Ask for it to be frozen, or to go on."""

    @abstractmethod
    def awaited(self, frozen: bool) -> str:
        """What is not so yet; empty once it is."""

    def give_back(self) -> None:  # noqa: B027 - most have nothing to undo
        """Undo what was done to be able to freeze it. It is thawed by now."""


class Side:
    """One server, with all its members and what they started.

    A context manager: on exit the server is thawed and as it was before.
    """

    def __init__(self, group: Group) -> None:
        self._parts: list[_Part] = []
        try:
            for member in group:
                self._parts.append(_part(member.handle))
        except BaseException:
            self._give_back()
            raise

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.thaw()
        finally:
            self._give_back()

    @property
    def by(self) -> str:
        return ", ".join(dict.fromkeys(part.by for part in self._parts))

    def freeze(self, within_s: float = WITHIN_S) -> Instants:
        """Freeze all of it. ServerError, and it is thawed again, if a process is not frozen `within_s` seconds."""
        return self._turn(True, within_s)

    def thaw(self, within_s: float = WITHIN_S) -> Instants:
        """Let all of it go on."""
        return self._turn(False, within_s)

    def _turn(self, frozen: bool, within_s: float) -> Instants:
        asked_ns = time.monotonic_ns()
        deadline_ns = asked_ns + int(within_s * 1e9)
        for part in self._parts:
            part.begin(frozen)
        for part in self._parts:
            while problem := part.awaited(frozen):
                if time.monotonic_ns() > deadline_ns:
                    if frozen:
                        with suppress(ServerError):
                            self._turn(False, within_s)
                    what = "freeze" if frozen else "thaw"
                    raise ServerError(f"the server does not {what} within {within_s:g} s ({part.by}): {problem}")
                time.sleep(_POLL_S)
        return Instants(asked_ns, time.monotonic_ns())

    def _give_back(self) -> None:
        for part in self._parts:
            part.give_back()
        self._parts = []


def _part(handle: Handle) -> _Part:
    # A container's processes are its engine's: their groups are not ours to change.
    if type(handle).__module__.rpartition(".")[2] != "native":
        return _Paused(handle)
    for make in (_group_v2, _group_v1):
        with suppress(OSError):
            if (part := make(handle.pids())) is not None:
                return part
    return _Stopped(handle.pids())


class _Paused(_Part):
    """A member that its runtime pauses: a container."""

    by = "pause of the container engine"

    def __init__(self, handle: Handle) -> None:
        self._handle, self._is_paused = handle, False

    def begin(self, frozen: bool) -> None:
        if frozen != self._is_paused:
            (self._handle.pause if frozen else self._handle.resume)()
            self._is_paused = frozen

    def awaited(self, frozen: bool) -> str:
        return ""


class _Grouped(_Part):
    """The processes in a control group with a freezer; a group that was `made` for them is removed in the end."""

    def __init__(self, folder: Path, by: str, back: Path | None) -> None:
        self._folder, self.by, self._back = folder, by, back
        self._v2 = (folder / "cgroup.freeze").exists()

    def begin(self, frozen: bool) -> None:
        _write(self._folder, frozen)

    def awaited(self, frozen: bool) -> str:
        try:
            if self._v2:
                lines = dict(line.split() for line in (self._folder / "cgroup.events").read_text().splitlines())
                reached = lines["frozen"] == str(int(frozen)) or lines["populated"] == "0"
            else:
                reached = (self._folder / "freezer.state").read_text().strip() == ("FROZEN" if frozen else "THAWED")
        except OSError:
            return ""  # it is gone with its processes
        return "" if reached else _states(map(int, (self._folder / "cgroup.procs").read_text().split()))

    def give_back(self) -> None:
        if self._back is not None:
            remove(self._folder, self._back)


class _Stopped(_Part):
    """Processes with all that they start, stopped by signals."""

    by = "SIGSTOP"

    def __init__(self, mains: Sequence[int]) -> None:
        self._mains = list(mains)
        self._known: set[int] = set()

    def begin(self, frozen: bool) -> None:
        for pid in [*self._mains, *self._known]:
            _signal(pid, signal.SIGSTOP if frozen else signal.SIGCONT)

    def awaited(self, frozen: bool) -> str:
        """A child that was started meanwhile is found from its parent, and stopped as well."""
        tree = set(_tree(self._mains))
        for pid in tree - self._known if frozen else ():
            _signal(pid, signal.SIGSTOP)
        self._known |= tree
        moving = [pid for pid in tree if any((state == "T") != frozen for state in _threads(pid))]
        return _states(moving)


def _tree(mains: Sequence[int]) -> Iterator[int]:
    for pid in mains:
        with suppress(psutil.Error):
            yield pid
            yield from (child.pid for child in psutil.Process(pid).children(recursive=True))


def _threads(pid: int) -> Iterator[str]:
    """The state of each thread of a process that has not ended."""
    for file in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):
            state = file.read_text(errors="replace").rpartition(")")[2].split()[0]
            if state not in "ZX":
                yield state


def _states(pids: Iterator[int] | Sequence[int]) -> str:
    """The processes that are not as they were asked to be, for people."""
    found = []
    for pid in pids:
        with suppress(psutil.Error):
            found.append(f"{psutil.Process(pid).name()} (pid {pid}) is {'/'.join(sorted(set(_threads(pid))))}")
    return "; ".join(found)


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _group_v2(mains: Sequence[int]) -> _Grouped | None:
    """By cgroup v2: the group that limits the processes, or one that is made for them."""
    (place,) = {control_groups.of_process(pid).get("") for pid in mains}
    if place is None:
        return None
    by = "cgroup v2 cgroup.freeze"
    if place.name.startswith(control_groups.PREFIX):
        return _Grouped(place, by, None) if (place / "cgroup.freeze").exists() else None
    root = next(folder for folder in reversed([place, *place.parents]) if (folder / "cgroup.procs").exists())
    return _moved(mains, root, place, by)


def _group_v1(mains: Sequence[int]) -> _Grouped | None:
    """By the freezer of cgroup v1."""
    (place,) = {control_groups.of_process(pid).get("freezer") for pid in mains}
    if place is None:
        return None
    root = next(folder for folder in reversed([place, *place.parents]) if (folder / "cgroup.procs").exists())
    return _moved(mains, root, place, "cgroup v1 freezer")


def _moved(mains: Sequence[int], root: Path, back: Path, by: str) -> _Grouped | None:
    """The processes, moved to a group below `root` that is made for them."""
    folder = root / f"{control_groups.PREFIX}{os.getpid()}-{NAMED}-{mains[0]}"
    folder.mkdir()
    if not any((folder / name).exists() for name in ("cgroup.freeze", "freezer.state")):
        folder.rmdir()
        return None
    try:
        moved: set[int] = set()
        while new := set(_tree(mains)) - moved:  # those started meanwhile by one that was not moved yet
            for pid in new:
                with suppress(ProcessLookupError):
                    (folder / "cgroup.procs").write_text(str(pid))
            moved |= new
    except OSError:
        remove(folder, back)
        raise
    return _Grouped(folder, by, back)


def _write(folder: Path, frozen: bool) -> None:
    """Ask for a group to be frozen, or thawed."""
    with suppress(FileNotFoundError):
        if (folder / "cgroup.freeze").exists():
            (folder / "cgroup.freeze").write_text(str(int(frozen)))
        else:
            (folder / "freezer.state").write_text("FROZEN" if frozen else "THAWED")


def remove(folder: Path, back: Path | None = None) -> None:
    """Thaw a group of ours, move what is in it `back` (None: wait for its end), and remove it.

    OSError if it can't be removed.
    """
    thaw_group(folder)
    deadline = time.monotonic() + _REMOVE_S
    while folder.exists():
        with suppress(OSError):
            for pid in (folder / "cgroup.procs").read_text().split():
                with suppress(ProcessLookupError):
                    if back is not None:
                        (back / "cgroup.procs").write_text(pid)
        try:
            folder.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def thaw_group(folder: Path) -> None:
    """Let what is in a group go on."""
    _write(folder, False)


def frozen_groups() -> list[Path]:
    """The groups that were made to freeze servers of runs that have ended."""
    found = []
    for folder in control_groups.groups():
        pid, _, name = folder.name.removeprefix(control_groups.PREFIX).partition("-")
        if name.startswith(f"{NAMED}-") and pid.isdigit() and not psutil.pid_exists(int(pid)):
            found.append(folder)
    return found
