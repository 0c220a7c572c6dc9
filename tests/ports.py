"""Where servers listen: what the kernel says, held against the table of SECURITY.md."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import psutil

SECURITY = Path(__file__).parents[1] / "SECURITY.md"
_LISTEN = "0A"
_LOOPBACK = ("0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F")


def _sockets(pid: int) -> set[str]:
    """Inodes of the sockets that a process has open; of one that ended, none."""
    found = set()
    with suppress(FileNotFoundError, ProcessLookupError):
        for handle in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                found.add(str(handle.readlink()).removeprefix("socket:[").removesuffix("]"))
    return found


def listening(pid: int) -> set[tuple[int, bool]]:
    """(port, whether it is one of loopback only) of each TCP socket that a process or one of its children listens on."""
    pids = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    sockets = set().union(*map(_sockets, pids))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            address, _, port = words[1].partition(":")
            if words[3] == _LISTEN and words[9] in sockets:
                found.add((int(port, 16), address in _LOOPBACK))
    return found


@cache
def table() -> dict[str, tuple[str, str]]:
    """Kind of member → regular expressions of its ports on all interfaces, and on loopback, as SECURITY.md lists them."""
    rows = re.findall(r"^\| `([^`]+)` \| ([^|]*) \| ([^|]*) \|", SECURITY.read_text(), re.MULTILINE)
    return {kind: ("|".join(re.findall(r"`(\w+)`", wide)), "|".join(re.findall(r"`(\w+)`", narrow))) for kind, wide, narrow in rows}


def unlisted(server: Any) -> list[str]:
    """What a native server of ours listens on that its row does not say, each as a sentence."""
    problems = []
    engine = type(server).__module__.split(".")[2]
    for member in server.group:
        names = {int(address.rpartition(":")[2]): name for name, address in member.addresses.items()}
        for port, narrow in sorted(listening(member.handle.pids()[0])):
            name = names.get(port, "?")
            print("LISTENS", engine, member.role, name, port, "loopback" if narrow else "ALL", file=open("/tmp/ports.log", "a"))
    return problems
