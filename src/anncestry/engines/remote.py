"""Credentials and TLS for the calls that engines make themselves (the driver has them for the measured ones)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import grpc

from anncestry.runtimes import tls


class _Details(NamedTuple):
    """What grpc wants of a call: its own type of this is not public."""

    method: str
    timeout: float | None
    metadata: Any
    credentials: Any
    wait_for_ready: Any
    compression: Any


class _Authorize(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """Adds the header `authorization`."""

    def __init__(self, header: str) -> None:
        self._header = header

    def intercept_unary_unary(self, continuation: Callable[[Any, Any], Any], details: Any, request: Any) -> Any:
        """The call, with the header."""
        metadata = [*(details.metadata or ()), ("authorization", self._header)]
        with_header = _Details(
            details.method, details.timeout, metadata, details.credentials, details.wait_for_ready, details.compression
        )
        return continuation(with_header, request)


def open_channel(target: str, options: Any, header: str | None, named: tls.Named | None) -> grpc.Channel:
    """A channel with the header `authorization` on each of its calls if there is one, under TLS if that is `named`."""
    channel = (
        grpc.insecure_channel(target, options=options)
        if named is None
        else grpc.secure_channel(target, grpc.ssl_channel_credentials(tls.roots(named)), options=options)
    )
    return channel if header is None else grpc.intercept_channel(channel, _Authorize(header))
