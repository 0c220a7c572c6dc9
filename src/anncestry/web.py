"""HTTP with limits on the size and the time of an answer."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any

ANSWER_BYTES = 64 << 20
"""Far above any answer to a question about a server's state."""


def host_and_port(address: str) -> tuple[str, int]:
    """The two parts of HOST:PORT, the host as a socket takes it: an IPv6 address without its brackets."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


class Watch:
    """Ends the connections that are made through it when its time is `over`: whatever a server drips, reading ends."""

    def __init__(self, seconds: float) -> None:
        self.over = False
        self._held: socket.socket | None = None
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def __enter__(self) -> Watch:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._drop()

    def of(self, kind: type[HTTPConnection]) -> type[HTTPConnection]:
        """A kind of connection that this watches, from before its TLS on."""
        watch = self

        class Watched(kind):  # type: ignore[misc, valid-type]  # a base that is a variable
            def __setattr__(self, name: str, value: Any) -> None:
                if type(value) is socket.socket:
                    watch._hold(value)
                super().__setattr__(name, value)

        return Watched

    def _hold(self, connection: socket.socket) -> None:
        self._drop()
        self._held = connection.dup()  # the connection's own may be handed on to TLS
        if self.over:
            self._end()

    def _drop(self) -> None:
        if self._held is not None:
            self._held.close()

    def _end(self) -> None:
        self.over = True
        if self._held is not None:
            with suppress(OSError):
                self._held.shutdown(socket.SHUT_RDWR)


def body_of(answer: HTTPResponse, most: int = ANSWER_BYTES) -> bytes:
    """All of an answer's body; OSError if it is longer than `most` bytes, or shorter than it said."""
    body = answer.read(most + 1)
    if len(body) > most:
        raise OSError(f"an answer of more than {most} bytes")
    if answer.length:
        raise OSError(f"an answer that ends {answer.length} bytes too early")
    return body


def call(
    address: str,
    method: str,
    path: str,
    seconds: float,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    context: ssl.SSLContext | None = None,
) -> tuple[int, bytes]:
    """Status and body from host:port, under TLS with a `context`; no proxy is used, and no redirection followed.

    OSError for everything else, TimeoutError if it takes longer than `seconds` in all.
    """
    with Watch(seconds) as watch:
        secured: dict[str, Any] = {} if context is None else {"context": context}
        kind = watch.of(HTTPConnection if context is None else HTTPSConnection)
        connection = kind(address, timeout=seconds, **secured)
        try:
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            found = answer.status, body_of(answer)
        except (OSError, HTTPException) as error:
            if watch.over or isinstance(error, TimeoutError):  # one wait of all that time
                raise TimeoutError(f"no whole answer within {seconds:g} s") from None
            if not isinstance(error, OSError):
                raise OSError(str(error) or type(error).__name__) from None
            raise
        finally:
            connection.close()
        if watch.over:  # an answer without a length just ends then
            raise TimeoutError(f"no whole answer within {seconds:g} s")
        return found
