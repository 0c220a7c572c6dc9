"""Remote servers, at endpoints from environment variables; anncestry does not start, stop or inspect them.

A server holds one collection of anncestry's, with a mark. anncestry never touches a collection without the mark.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anncestry import redact
from anncestry.errors import ServerError, UserError
from anncestry.provenance.records import read_json, write_json
from anncestry.runtimes import tls
from anncestry.runtimes.base import Ending, Handle
from anncestry.web import host_and_port

MARK = "made by anncestry, load"
_CONNECT_S = 5.0
_KEPT = "remote.json"


def endpoint(topology: Mapping[str, Any], interface: str) -> str | None:
    """host:port of an interface, from the variable that the topology names; None where it names none."""
    variable = topology["endpoints"].get(interface)
    if variable is None:
        return None
    value = os.environ.get(variable, "").strip()
    if not value:
        raise UserError(f"the environment variable {variable} is not set: it holds the endpoint {interface}, HOST:PORT")
    encrypted = tls.named(topology) is not None
    scheme, stands, rest = value.rpartition("://")
    host, _, port = rest.rstrip("/").rpartition(":")
    if not host or not port.isdigit() or "/" in host or (stands and scheme not in ("http", "https")):
        raise UserError(f"the environment variable {variable}, the endpoint {interface}, is not HOST:PORT")
    if stands and (scheme == "https") != encrypted:
        how = (
            "is plain http, where the topology asks for TLS (nothing is encrypted only with tls: none)"
            if encrypted
            else "is https, where tls: none of the topology says that nothing is encrypted"
        )
        raise UserError(f"the environment variable {variable}, the endpoint {interface}, {how}")
    redact.address(variable, f"{host}:{port}")
    return f"{host}:{port}"


def was_loaded(data_dir: Path) -> bool:
    """Whether a load of before keeps its files in `data_dir`."""
    return (data_dir / _KEPT).exists()


def mark_of(data_dir: Path) -> tuple[str, bool]:
    """What marks the collection of the load that keeps its files in `data_dir`, and whether it is a load of before."""
    path = data_dir / _KEPT
    if path.exists():
        return str(read_json(path)["mark"]), True
    mark = f"{MARK} {secrets.token_hex(8)}"
    keep_mark(data_dir, mark)
    return mark, False


def keep_mark(data_dir: Path, mark: str) -> None:
    """Let `data_dir` be that of the load whose collection bears `mark`."""
    data_dir.mkdir(parents=True, exist_ok=True)
    write_json(data_dir / _KEPT, {"mark": mark})


def may_replace(where: str, collection: str, found: str | None) -> bool:
    """Whether a collection with the description `found` (None: there is none) is to be dropped before ours is made.

    UserError if it is not ours.
    """
    if found is not None and not found.startswith(MARK):
        raise UserError(
            f"{where} has a collection {collection} that anncestry did not make: remove it, or choose another endpoint"
        )
    return found is not None


class OtherMark(ServerError):
    """The collection is not that of a load: it bears the mark `found`, "" for none; None: there is no collection."""

    def __init__(self, sentence: str, found: str | None) -> None:
        super().__init__(sentence)
        self.found = found


def check_mark(where: str, collection: str, found: str | None, mark: str) -> None:
    """OtherMark unless the collection is the one that this load left there."""
    if found != mark:
        what = "is gone" if found is None else "is of another load" if found.startswith(MARK) else "is not ours"
        sentence = f"{where}: the collection {collection} {what}: an endpoint holds one load at a time; load again"
        raise OtherMark(sentence, found)


class RemoteHandle(Handle):
    """A remote member: of it, only its endpoint is known here."""

    no_fault = "faults can't be injected into a remote server"

    def __init__(self, name: str, address: str, topology: Mapping[str, Any], scheme: str) -> None:
        self.name = name
        self._address = address
        self._variables = sorted(topology["endpoints"].values())
        credentials = topology.get("credentials")
        self.named = None if credentials is None else {"env": credentials, "scheme": scheme}
        self.tls = tls.named(topology)
        self._topology = topology
        self._secured: dict[str, Any] = {}

    def secure(
        self,
        addresses: Mapping[str, str],
        protocols: Mapping[str, Sequence[str]],
        begin: tls.Begin | None = None,
    ) -> None:
        """Learn what TLS comes to at each interface, before anything is said there but what asks for it (`begin`).

        `protocols` are what is to be spoken under it (ALPN), by interface. ServerError names the variable of an
        endpoint whose certificate is refused, or that has no TLS.
        """
        for interface, address in addresses.items():
            try:
                self.secured(interface, tls.asked(address, self.tls, protocols.get(interface, ()), begin))
            except ServerError as error:
                raise self.insecure(interface, error.args[0]) from None

    def secured(self, interface: str, facts: Mapping[str, Any]) -> None:
        """Keep what a connection to it came to, for the record."""
        self._secured[interface] = dict(facts)

    def insecure(self, interface: str, why: str) -> ServerError:
        """An error that says of which endpoint that is."""
        return ServerError(f"{self.name}: the endpoint of {self._topology['endpoints'][interface]}: {why}")

    def alive(self) -> bool:
        """Whether it takes connections."""
        try:
            socket.create_connection(host_and_port(self._address), timeout=_CONNECT_S).close()
        except OSError:
            return False
        return True

    def check_alive(self) -> None:
        """ServerError if it takes no connection."""
        if not self.alive():
            raise ServerError(f"{self.name}: the endpoint of {', '.join(self._variables)} takes no connection")

    def facts(self) -> dict[str, Any]:
        """Names of the variables, never what they hold."""
        return {"endpoint_variables": self._variables, "run_by": "somebody else", "tls": dict(self._secured)}

    def stop(self, term_wait_s: float) -> Ending:
        """Left as it is."""
        return Ending(None, 0, 0.0)
