"""Where servers listen: what the kernel says, held against the table of SECURITY.md."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache
from pathlib import Path

import psutil

from anncestry import engines
from anncestry.engines.base import Server

SECURITY = Path(__file__).parents[1] / "SECURITY.md"
_LISTEN = "0A"
WHERE = ("all interfaces", "loopback", "an address")
"""The columns of SECURITY.md."""
_LOOPBACK = ("0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F")


def _sockets(pid: int) -> set[str]:
    """Inodes of the sockets that a process has open; of one that ended, none."""
    found = set()
    with suppress(FileNotFoundError, ProcessLookupError):
        for handle in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                found.add(str(handle.readlink()).removeprefix("socket:[").removesuffix("]"))
    return found


def _lines(pid: int, table: str) -> list[str]:
    """The sockets of a process' network; none of one that ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
    return []


def listening(pid: int) -> set[tuple[int, str]]:
    """(port, where: a kind of `WHERE`) of each TCP socket that a process or one of its children listens on."""
    pids = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    sockets = set().union(*map(_sockets, pids))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in _lines(pid, table):
            words = line.split()
            address, _, port = words[1].partition(":")
            if words[3] == _LISTEN and words[9] in sockets:
                where = WHERE[1] if address in _LOOPBACK else WHERE[2] if address.strip("0") else WHERE[0]
                found.add((int(port, 16), where))
    return found


@cache
def table() -> dict[str, dict[str, str]]:
    """Program → where → a regular expression of its ports there, as SECURITY.md lists them."""
    rows = re.findall(r"^\| `(\w+)` \|([^|]*)\|([^|]*)\|([^|]*)\|", SECURITY.read_text(), re.MULTILINE)
    joined = {kind: ["|".join(re.findall(r"`([^`]+)`", ports)) for ports in columns] for kind, *columns in rows}
    return {kind: dict(zip(WHERE, columns, strict=True)) for kind, columns in joined.items()}


def unlisted(server: Server) -> list[str]:
    """What a native server of ours listens on that SECURITY.md does not say, each as a sentence."""
    problems = []
    for member in server.group:
        title = re.match("[a-z]+", member.handle.name)
        kind = "library" if member.role == "library" or title is None else title[0]
        if kind in engines.known() and "native" not in engines.offers_of(kind).runtimes:
            continue  # a stand-in: nobody but a test starts it as a process
        names = {int(address.rpartition(":")[2]): name for name, address in member.addresses.items()}
        for port, where in sorted(listening(member.handle.pids()[0])):
            name = names.get(port, "?")
            if not re.fullmatch(table()[kind][where], name):
                problems.append(f"{kind} listens on port {name} of {where}, which SECURITY.md does not list")
    return problems
