"""Leftovers of killed runs on this machine: list them, and remove them on request.

The kernel ends a server with the one that started it, so that there is rarely anything: a child that a server started
by itself, a control group, the copy of the data that a session worked on. Containers and their networks outlive a
run that was killed; so does what it had frozen (`freeze`), as that hears no signal.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from anncestry.cells.stage import STAGES
from anncestry.errors import ServerError, UserError
from anncestry.provenance.running import owner_alive
from anncestry.runtimes import control_groups, docker, freeze, throttle
from anncestry.runtimes.native import MARK

_TERM_WAIT_S = 10.0
_KINDS = ("process", "container", "network", "storage mount", "control group", "data copy")


@dataclass(frozen=True)
class Leftover:
    """One thing: its kind (one of _KINDS), what it is, for people, how it is removed, and whether it stands still; of a
    process its pid."""

    kind: str
    name: str
    remove: Callable[[], None]
    pid: int | None = None
    frozen: bool = False


def find(here: Path) -> list[Leftover]:
    """Everything of ours on this machine whose run has ended, and session folders below `here` that nobody works on."""
    return [*_processes(), *_containers(), *_mounts(), *_groups(), *_copies(here)]


def clean(found: list[Leftover]) -> list[str]:
    """Remove what was found; returns what could not be, each with its reason.

    A process is asked to end and given ten seconds; it is never killed, and its data may need them.
    """
    problems = []
    for leftover in sorted(found, key=lambda one: _KINDS.index(one.kind)):
        try:
            leftover.remove()
        except (OSError, UserError) as error:
            problems.append(f"{leftover.name}: {error}")
    return problems


def end_frozen() -> list[str]:
    """End what runs that have ended left frozen, before a run starts servers: memory, ports; their names.

    ServerError for what can't be ended.
    """
    frozen = [leftover for leftover in (*_processes(), *_containers()) if leftover.frozen]
    if problems := clean(frozen):
        raise ServerError("; ".join(problems))
    for folder in _ended_groups():
        if freeze.NAMED in folder.name:
            with suppress(OSError):  # what is in it was not frozen: `leftovers` names it
                folder.rmdir()
    return [leftover.name for leftover in frozen]


def _processes() -> Iterator[Leftover]:
    # Some programs (PostgreSQL's) write their titles over their environment: their group says whose they are.
    grouped = {pid for folder in _ended_groups() for pid in _members(folder)}
    for process in psutil.process_iter(["pid", "cmdline", "uids"]):
        try:
            mark = process.environ().get(MARK)
        except (psutil.Error, OSError):
            mark = None
        if process.pid in grouped or (mark is not None and not owner_alive(mark)):
            name = f"{' '.join(process.info['cmdline'] or ['?'])[:100]} (pid {process.pid})"
            frozen = freeze.is_frozen(process.pid)
            yield Leftover("process", name, partial(_end, process.pid), process.pid, frozen)


def _members(group: Path) -> list[int]:
    """Process ids; none of a group that somebody removes at this moment."""
    try:
        return list(map(int, (group / "cgroup.procs").read_text().split()))
    except OSError:
        return []


def _containers() -> Iterator[Leftover]:
    """What the engine holds of runs that have ended; nothing where none answers, as nothing can run there."""
    try:
        client = docker.connect()
    except UserError:
        return
    try:
        found = docker.remnants(client)
    except OSError:  # its errors are of this kind, too
        return
    for remnant in found:
        if remnant.used is False:
            yield Leftover(remnant.kind, remnant.name, remnant.remove, frozen=remnant.paused)


def _mounts() -> Iterator[Leftover]:
    """File systems that throttled: their devices and what lies on them go with them."""
    for one in throttle.ended():
        where = f" on {', '.join(map(str, one.mounts))}" if one.mounts else ""
        yield Leftover("storage mount", f"{one.device}{where}", one.remove)


def _groups() -> Iterator[Leftover]:
    for folder in _ended_groups():
        yield Leftover("control group", str(folder), partial(control_groups.remove, folder))


def _ended_groups() -> Iterator[Path]:
    """Control groups of ours whose maker has ended."""
    for folder in control_groups.groups():
        pid = folder.name.removeprefix(control_groups.PREFIX).split("-")[0]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            yield folder


def _copies(here: Path) -> Iterator[Leftover]:
    """`serve` folders of sessions: their data is in use while a process works in it."""
    used = set()
    for process in psutil.process_iter(["cwd"]):
        if process.info["cwd"]:
            used.add(Path(process.info["cwd"]))
    copies = [*(here / STAGES["session"].folder).glob("*/serve"), *(here / STAGES["duet"].folder).glob("*/[ab]/serve")]
    for folder in sorted(copies):
        inside = folder.resolve()
        if not any(path.is_relative_to(inside) for path in used):
            yield Leftover("data copy", str(folder), partial(shutil.rmtree, folder))


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):  # it ended, and was reaped, between the two questions
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _end(pid: int) -> None:
    """Ask a process to end, and wait until it has; UserError if it does not."""
    try:
        process = psutil.Process(pid)
        os.kill(pid, signal.SIGTERM)
    except (ProcessLookupError, psutil.NoSuchProcess):  # it ended with another one
        return
    freeze.release(pid)
    deadline = time.monotonic() + _TERM_WAIT_S
    while _lives(process):
        if time.monotonic() > deadline:
            raise UserError(f"ignores SIGTERM; end it by its pid {pid}")
        time.sleep(0.05)
