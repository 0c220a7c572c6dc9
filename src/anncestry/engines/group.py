"""A system as a group of members: what its servers have in common, whichever runtime started them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from anncestry.errors import UserError
from anncestry.runtimes.base import Ending, Group
from anncestry.runtimes.native import await_listening

_LISTENING_TIMEOUT_S = 300.0


class GroupServer(ABC):
    """The part of `Server` that needs no knowledge of the system. The first member is the one that is asked."""

    def __init__(self, group: Group, topology: Mapping[str, Any]) -> None:
        self.group = group
        self.topology = topology
        self.start_s = 0.0
        self.repeated: str = ""
        """Why the start was made a second time, where the first one's members died before it ever answered."""
        self.mark: str | None = None
        """What marks the collection, on a server that holds others'."""
        self.own_credentials: dict[str, str] | None = None
        """Those that we made, of a server of our own."""
        self.exact_at: tuple[float, int] | None = None
        """Share of rows that a filter passes, and effort, at which a search is exact, of a system that never scans."""

    def repeats(self) -> dict[str, str]:
        """For a record: why this server was started twice; nothing for one that was started once, as almost all are."""
        return {"start_repeated": self.repeated} if self.repeated else {}

    def pids(self) -> list[int]:
        """Main processes of all members."""
        return self.group.pids()

    def pids_by_member(self) -> dict[str, list[int]]:
        """The same by name of the member."""
        return self.group.pids_by_member()

    def alive(self) -> bool:
        """Whether all members run."""
        return self.group.alive()

    def check_alive(self) -> None:
        """ServerError with the end of its log for the first member that doesn't."""
        self.group.check_alive()

    def check_members(self) -> None:
        """ServerError also if the system itself misses a member. (One that is alone can't.)"""
        self.group.check_alive()

    def members(self) -> dict[str, dict[str, Any]]:
        """Role, limits and use of each member, by name."""
        return self.group.facts()

    def charged(self) -> dict[str, float]:
        """Memory that the control groups of all members charge now (MiB); empty where one of them has none."""
        accounts = [member.handle.usage() for member in self.group]
        if not accounts or not all("memory_mib" in account for account in accounts):
            return {}
        names = {
            "charged_mib": "memory_mib",
            "charged_anon_mib": "memory_anon_mib",
            "charged_cache_mib": "memory_cache_mib",
        }
        return {ours: sum(account[theirs] for account in accounts) for ours, theirs in names.items()}

    def counters(self) -> dict[str, dict[str, float]]:
        """Running totals that members keep, by name: "searches" answered, where the system counts them."""
        return {}

    def crash(self) -> None:
        """SIGKILL to the one member that there is, which is started again on its data at once; until it listens."""
        (member,) = self.group
        member.handle.kill()
        member.handle.restart()
        await_listening(member.handle, self.endpoint, _LISTENING_TIMEOUT_S)

    def drop(self) -> None:
        """Remove the collection that bears our mark from a server that others run; UserError where it can't be."""
        raise UserError("nothing is dropped from a server of one's own: its data lies in a folder")

    @property
    @abstractmethod
    def endpoint(self) -> str:
        """host:port of the interface that queries use."""

    @property
    def endpoints(self) -> list[str]:
        """host:port of every interface that queries may use, that of `endpoint` first."""
        return [self.endpoint]

    def stop(self) -> Ending:
        """Stop all members."""
        return self.group.stop()

    @property
    def credentials(self) -> dict[str, str] | None:
        """Name and scheme of the credentials that every call must carry, if any."""
        return self.own_credentials or getattr(next(iter(self.group)).handle, "named", None)

    @property
    def tls(self) -> dict[str, Any] | None:
        """How every connection is encrypted (runtimes/tls.py); None where it isn't."""
        return getattr(next(iter(self.group)).handle, "tls", None)

    def grpc_transport(self, method: str) -> dict[str, Any]:
        """A gRPC transport to the first entry, or with `entry: all` to every one, each client another in turn."""
        found: dict[str, Any] = {"kind": "grpc", "target": self.endpoint, "method": method}
        if self.credentials is not None:
            found["authorization"] = self.credentials
        if self.tls is not None:
            found["tls"] = self.tls
        if self.topology.get("entry") == "all":
            found["targets"] = self.endpoints
        return found


def as_group(server: object) -> GroupServer:
    """The server as what it must be."""
    if not isinstance(server, GroupServer):
        raise TypeError(f"not a server of members: {server!r}")
    return server
