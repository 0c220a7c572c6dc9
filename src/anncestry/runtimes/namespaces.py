"""Namespaces: what a measurement's servers open, and what they write to fixed places, is theirs alone.

Some servers listen on all interfaces whatever they are told, and most have no password. A measurement of native servers
therefore runs, clients and all, in a network namespace of its own: its loopback is no other's, and nothing else leads
there. This needs root, or a kernel that lets users have namespaces; where it can't be had, the servers listen on the
machine's own network, as SECURITY.md lists, and the measurement says so.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

NETWORK = "ANNCESTRY_NETWORK"
"""In the environment of a measurement: "own", or "host" and why. A user who sets it to "host" gets that."""
_EXEC = Path(__file__).with_name("_exec.py")
_PROBE_S = 60


def wrapped(options: Sequence[str], command: Sequence[str | Path]) -> list[str]:
    """The command that becomes `command` after what `_exec.py` does for `options`."""
    return [sys.executable, "-I", "-S", str(_EXEC), *options, "--", *map(str, command)]


@cache
def refused(*options: str, trial: tuple[str | Path, ...] = (sys.executable, "-I", "-S", "-c", "pass")) -> str:
    """Why this user can't have a program set apart by these options here, as a `trial` showed; "" if he can."""
    command = wrapped(options, trial)
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_S, cwd="/", check=False)
    return "" if done.returncode == 0 else done.stderr.strip().rpartition(": ")[2] or "no reason is given"


def network() -> str:
    """Whose network this process' servers are on: "own" (of this measurement), or "host", with why it isn't."""
    return os.environ.get(NETWORK) or "host"


def enter(arguments: Sequence[str]) -> None:
    """Start this program (`anncestry ARGUMENTS`) again in a network of its own, unless it is there or can't be."""
    if os.environ.get(NETWORK):
        return
    if why := refused("--network"):
        print(
            f"the servers listen on this machine's own network, where other users reach them ({why}): SECURITY.md "
            "names their ports",
            file=sys.stderr,
            flush=True,
        )
        os.environ[NETWORK] = f"host ({why})"
        return
    os.environ[NETWORK] = "own"
    sys.stdout.flush()
    command = wrapped(["--network"], [sys.executable, "-m", "anncestry", *arguments])
    os.execve(command[0], command, os.environ)
