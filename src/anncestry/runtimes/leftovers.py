"""Leftovers of killed runs on this machine: list them, and remove them on request.

The kernel ends a server with the one that started it, so that there is rarely anything: a child that a server started
by itself, a control group, the copy of the data that a session worked on. Containers and their networks outlive a
run that was killed, and so does a server that was frozen when its run was killed.
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
from anncestry.errors import UserError
from anncestry.provenance.running import owner_alive
from anncestry.runtimes import control_groups, docker, freeze
from anncestry.runtimes.native import MARK

_TERM_WAIT_S = 10.0
_KINDS = ("process", "container", "network", "control group", "data copy")


@dataclass(frozen=True)
class Leftover:
    """One thing: its kind (one of _KINDS), what it is, for people, and how it is removed; of a process its pid."""

    kind: str
    name: str
    remove: Callable[[], None]
    pid: int | None = None


def find(here: Path) -> list[Leftover]:
    """Everything of ours on this machine whose run has ended, and session folders below `here` that nobody works on."""
    return [*_processes(), *_containers(), *_groups(), *_copies(here)]


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


def _processes() -> Iterator[Leftover]:
    for process in psutil.process_iter(["pid", "cmdline", "uids"]):
        try:
            mark = process.environ().get(MARK)
        except (psutil.Error, OSError):
            continue
        if mark is not None and not owner_alive(mark):
            command = " ".join(process.info["cmdline"] or ["?"])
            yield Leftover("process", f"{command[:100]} (pid {process.pid})", partial(_end, process.pid), process.pid)


def _containers() -> Iterator[Leftover]:
    """What the engine holds of runs that have ended; nothing where none answers, as nothing can run there."""
    try:
        client = docker.connect()
    except UserError:
        return
    for remnant in docker.remnants(client):
        if remnant.used is False:
            yield Leftover(remnant.kind, remnant.name, remnant.remove)


def _groups() -> Iterator[Leftover]:
    frozen = freeze.frozen_groups()
    for folder in control_groups.groups():
        pid = folder.name.removeprefix(control_groups.PREFIX).split("-")[0]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            remove = partial(_remove_frozen, folder) if folder in frozen else folder.rmdir
            yield Leftover("control group", str(folder), remove)


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


def end_frozen() -> None:
    """End the servers that runs which were killed left frozen: they hold memory and ports, and hear no signal."""
    for folder in freeze.frozen_groups():
        _remove_frozen(folder)
    for leftover in _processes():
        with suppress(psutil.Error, UserError):
            if leftover.pid is not None and psutil.Process(leftover.pid).status() == psutil.STATUS_STOPPED:
                leftover.remove()


def _remove_frozen(folder: Path) -> None:
    """End what is in the group of a frozen server, and remove the group.

    The kernel killed its processes with their run; frozen by v1, they end once they are thawed. What they had started
    by themselves is asked to.
    """
    pids = [int(pid) for pid in (folder / "cgroup.procs").read_text().split()]
    freeze.thaw_group(folder)
    for pid in pids:
        with suppress(psutil.Error, ProcessLookupError):
            _end(pid)
    freeze.remove(folder)


def _end(pid: int) -> None:
    """Ask a process to end, and wait until it has; UserError if it does not."""
    process = psutil.Process(pid)
    os.kill(pid, signal.SIGTERM)
    os.kill(pid, signal.SIGCONT)  # one that is stopped hears nothing
    deadline = time.monotonic() + _TERM_WAIT_S
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline:
            raise UserError(f"ignores SIGTERM; end it by its pid {pid}")
        time.sleep(0.05)
