"""What tests with real servers leave on this machine: to be nothing, asked once all of them are over."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from anncestry.errors import UserError
from anncestry.runtimes import control_groups, docker

WAIT_S = float(os.environ.get("TESTS_REMAINS_WAIT_S", "60"))
"""What was told to end may take this long."""


def _engine() -> list[docker.Remnant]:
    """Containers and networks of ours; none where no engine answers."""
    try:
        return docker.remnants(docker.connect())
    except UserError:
        return []


@dataclass(frozen=True)
class Before:
    """How it was: what is older than this is not of these tests."""

    at_s: float = field(default_factory=time.time)
    engine: frozenset[str] = field(default_factory=lambda: frozenset(found.id for found in _engine()))

    def remains(self, folder: Path) -> list[str]:
        """Processes at work in `folder`; groups, containers and networks of this process and of those that ended.

        What others measure on this machine at the same time is theirs.
        """
        groups = [group for group in control_groups.groups() if self._is_left(group)]
        things = [found for found in _engine() if found.id not in self.engine and not _at_work(found.owner)]
        return [
            *_processes(folder),
            *(f"control group {group}" for group in groups),
            *(f"{found.kind} {found.name}" for found in things),
        ]

    def lasting(self, folder: Path) -> list[str]:
        """What of it is still there after some seconds."""
        deadline = time.monotonic() + WAIT_S
        while (found := self.remains(folder)) and time.monotonic() < deadline:
            time.sleep(0.5)
        return found

    def _is_left(self, group: Path) -> bool:
        pid = group.name.removeprefix(control_groups.PREFIX).split("-")[0]
        try:
            return group.stat().st_ctime >= self.at_s - 1 and not _at_work(pid)
        except OSError:
            return False  # gone meanwhile


def _at_work(owner: str) -> bool:
    """Whether another process than this one owns it, and runs."""
    pid = owner.partition(":")[0]
    return pid.isdigit() and int(pid) != os.getpid() and psutil.pid_exists(int(pid))


def _processes(folder: Path) -> list[str]:
    here = psutil.Process()
    ours = {here.pid, *(parent.pid for parent in here.parents())}
    found = []
    for process in psutil.process_iter(["cmdline", "cwd", "status"]):
        words = [*(process.info["cmdline"] or []), process.info["cwd"] or ""]
        ended = process.info["status"] == psutil.STATUS_ZOMBIE
        if process.pid not in ours and not ended and any(f"{folder}/" in f"{word}/" for word in words):
            found.append(f"process {process.pid}: {' '.join(words)[:200]}")
    return found
