"""The transports of the Python client: each connects, and gives a function from request bytes to response bytes.

Imports nothing but the standard library and, when asked for, the transport's own library.
"""

from __future__ import annotations

import http.client
import importlib
import importlib.util
import socket
import ssl
import struct
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from anncestry import redact
from anncestry.errors import UserError
from anncestry.runtimes import tls
from anncestry.runtimes.credentials import authorization, read
from anncestry.web import body_of, host_and_port

_CONNECT_S = 10.0
_DEADLINE = 0.99
"""Of the time that a request has: what a server calls a deadline from then on is that."""

Call = Callable[[bytes, float], Any]
"""Request and seconds that are left for it → response."""


class CallError(Exception):
    """A request that failed: its deadline passed (`timeout`), its connection was `lost` or refused, or else."""

    def __init__(self, text: str, timeout: bool, lost: bool = False) -> None:
        super().__init__(text)
        self.timeout = timeout
        self.lost = lost


class Transport(ABC):
    """A connection. `pack` turns what `call` returned into response bytes, after the clock."""

    reconnects = 0
    secured: dict[str, Any] | None = None
    """What TLS came to: protocol, cipher, certificate_sha256; None where nothing is encrypted."""
    library: dict[str, str] | None = None
    """The client library, where it is not the locked one: package, version, environment."""

    @abstractmethod
    def __init__(self, transport: dict[str, Any], timeout_s: float) -> None:
        """Connect, within `timeout_s`; CallError if that fails."""

    @abstractmethod
    def call(self, request: bytes, timeout_s: float) -> Any:
        """Send one request and wait for its answer; CallError if it fails."""

    def pack(self, response: Any) -> bytes:
        return response  # type: ignore[no-any-return]

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""


def _said(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: facts[name] for name in ("protocol", "cipher", "certificate_sha256")}


class Grpc(Transport):
    """Unary calls of raw bytes. One channel a client; the deadline is the only option that a request carries."""

    def __init__(self, transport: dict[str, Any], timeout_s: float) -> None:
        import grpc

        self._grpc = grpc
        options = [
            ("grpc.max_receive_message_length", transport["answer_bytes_max"]),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_http_proxy", 0),
            ("grpc.enable_retries", 0),  # else it sends again by itself what a server says it did not take
        ]
        named = transport.get("tls")
        if named is None:
            self._channel = grpc.insecure_channel(transport["target"], options=options)
        else:
            # The library does not tell what it agreed on, nor in a sentence why not: a connection before its own does.
            try:
                self.secured = _said(tls.asked(transport["target"], named, ("h2",)))
                roots = tls.roots(named)
            except UserError as error:
                raise CallError(f"no connection to {transport['target']}: {error}", timeout=False) from None
            credentials = grpc.ssl_channel_credentials(roots)
            self._channel = grpc.secure_channel(transport["target"], credentials, options=options)
        try:
            grpc.channel_ready_future(self._channel).result(timeout=min(timeout_s, _CONNECT_S))
        except grpc.FutureTimeoutError:
            self._channel.close()
            raise CallError(f"no connection to {transport['target']}", timeout=True) from None
        self._method = self._channel.unary_unary(transport["method"])
        header = authorization(transport.get("authorization"))
        self._metadata = None if header is None else (("authorization", header),)
        self._lost = False
        self._channel.subscribe(self._on_state)

    def _on_state(self, state: Any) -> None:
        if state is not self._grpc.ChannelConnectivity.READY:
            self._lost = True
        elif self._lost:
            self._lost = False
            self.reconnects += 1

    def call(self, request: bytes, timeout_s: float) -> bytes:
        started = time.monotonic()
        try:
            return self._method(request, timeout=timeout_s, metadata=self._metadata)  # type: ignore[no-any-return]
        except self._grpc.RpcError as error:
            code = error.code()
            # A server that says so long before has failed fast.
            waited = time.monotonic() - started >= _DEADLINE * timeout_s
            late = waited and code == self._grpc.StatusCode.DEADLINE_EXCEEDED
            lost = code == self._grpc.StatusCode.UNAVAILABLE
            raise CallError(f"{code.name}: {error.details()}", late, lost) from None

    def close(self) -> None:
        self._channel.close()


class Http(Transport):
    """HTTP/1.1, one connection kept alive; request and response are bodies."""

    def __init__(self, transport: dict[str, Any], timeout_s: float) -> None:
        self._host, self._port = host_and_port(transport["target"])
        self._method, self._path = transport["method"], transport["path"]
        self._headers = dict(transport.get("headers") or {})
        header = authorization(transport.get("authorization"))
        if header is not None:
            self._headers["Authorization"] = header
        self._connection: http.client.HTTPConnection | None = None
        self._largest = transport["answer_bytes_max"]
        named = transport.get("tls")
        self._tls = None if named is None else tls.context(named, ("http/1.1",))
        self._connect(min(timeout_s, _CONNECT_S))

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        connection = (
            http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
            if self._tls is None
            else http.client.HTTPSConnection(self._host, self._port, timeout=timeout_s, context=self._tls)
        )
        try:
            connection.connect()
        except OSError as error:
            why = f"TLS: {tls.refusal(error)}" if isinstance(error, ssl.SSLError) else str(error)
            timeout = isinstance(error, TimeoutError)
            raise CallError(f"no connection to {self._host}:{self._port}: {why}", timeout, lost=True) from None
        if isinstance(connection.sock, ssl.SSLSocket):
            self.secured = _said(tls.facts(connection.sock))
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        return connection

    def call(self, request: bytes, timeout_s: float) -> bytes:
        connection = self._connection
        if connection is None:
            connection = self._connect(timeout_s)
            self.reconnects += 1
        connection.sock.settimeout(timeout_s)
        try:
            connection.request(self._method, self._path, request, self._headers)
            response = connection.getresponse()
            body = body_of(response, self._largest)
        except TimeoutError:
            self.close()
            raise CallError("timeout", timeout=True) from None
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise CallError(f"{type(error).__name__}: {error}", timeout=False, lost=True) from None
        if response.will_close:
            self.close()
        if response.status >= 400:
            raise CallError(
                f"HTTP {response.status}: {redact.short(body.decode(errors='replace'), 200)}", timeout=False
            )
        return body

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _from_file(path: str) -> Any:
    """A module that is a file by itself, of no package."""
    spec = importlib.util.spec_from_file_location("inprocess", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Sdk(Transport):
    """A database's own client library, for what a Python program sees.

    `module` has `connect(target, options, timeout_s)`, which returns a function from request bytes (the number of a
    filter, uint32, and the query, float32) to ids and distances as the library has them, and one that ends the client.
    A response is, little-endian, their number n (uint32), n ids (int64), n distances (float64).

    With `authorization` the options also hold `login`, what its variable holds; with `tls` `ca_file`, the file of the
    CAs that are trusted.

    With `environment`, `module` is a file: it runs among that environment's packages (see `driver`), one of which is
    `package`, whose version is told. With `paths`, which then go first on the path, it is a file with a library that
    searches right here.
    """

    def __init__(self, transport: dict[str, Any], timeout_s: float) -> None:
        if "paths" in transport:
            sys.path[:0] = [path for path in transport["paths"] if path not in sys.path]
            module = _from_file(transport["module"])
        elif "environment" in transport:
            module = _from_file(transport["module"])
            name = transport["package"]
            self.library = {"package": name, "version": version(name), "environment": transport["environment"]}
        else:
            module = importlib.import_module(transport["module"])
        options = dict(transport["options"])
        try:
            if "authorization" in transport:
                options["login"] = read(transport["authorization"]["env"], "the credentials")
            if (named := transport.get("tls")) is not None:  # of which no library tells what it agreed on
                self.secured = _said(tls.asked(transport["target"], named, ("h2",)))
                options["ca_file"] = str(tls.roots_file(named))
        except UserError as error:
            raise CallError(f"no connection to {transport['target']}: {error}", timeout=False) from None
        self._search, self._close = module.connect(transport["target"], options, timeout_s)

    def call(self, request: bytes, timeout_s: float) -> Any:
        started = time.monotonic()
        try:
            return self._search(request)
        except Exception as error:
            late = time.monotonic() - started >= timeout_s
            raise CallError(f"{type(error).__name__}: {error}", late) from None

    def close(self) -> None:
        self._close()

    def pack(self, response: Any) -> bytes:
        ids, distances = response
        return struct.pack(f"<I{len(ids)}q{len(ids)}d", len(ids), *ids, *distances)


def unpack(response: bytes) -> tuple[Any, Any]:
    """What `Sdk` packed: ids (int64) and distances (float64), as arrays."""
    import numpy as np

    (count,) = struct.unpack_from("<I", response)
    return np.frombuffer(response, "<i8", count, 4), np.frombuffer(response, "<f8", count, 4 + 8 * count)


TRANSPORTS: dict[str, type[Transport]] = {"grpc": Grpc, "http": Http, "sdk": Sdk, "inprocess": Sdk}
