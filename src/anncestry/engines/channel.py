"""gRPC for the calls that engines make themselves, with credentials and TLS (the driver has them for measured ones)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from anncestry.errors import ServerError
from anncestry.runtimes import tls

CHANNEL_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", 256 << 20),
)
"""Of gRPC channels: straight to the server, messages of any size to it, answers of any sensible one from it."""


class _Authorize(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """Adds the header `authorization`."""

    def __init__(self, header: str) -> None:
        self._header = header

    def intercept_unary_unary(self, continuation: Callable[[Any, Any], Any], details: Any, request: Any) -> Any:
        metadata = [*(details.metadata or ()), ("authorization", self._header)]
        return continuation(details._replace(metadata=metadata), request)


def open_channel(target: str, options: Any, header: str | None, named: tls.Named | None) -> grpc.Channel:
    """A channel with the header `authorization` on each of its calls if there is one, under TLS if that is `named`."""
    channel = (
        grpc.insecure_channel(target, options=options)
        if named is None
        else grpc.secure_channel(target, grpc.ssl_channel_credentials(tls.roots(named)), options=options)
    )
    return channel if header is None else grpc.intercept_channel(channel, _Authorize(header))


def call(channel: grpc.Channel, method: str, request: Any, reply: type[Any], timeout_s: float, what: str) -> Any:
    """The answer, a `reply`, to the message `request` to `method` (/SERVICE/NAME); ServerError names `what` failed.

    A message, or the bytes of one.
    """
    encode = None if isinstance(request, bytes) else type(request).SerializeToString
    invoke = channel.unary_unary(method, request_serializer=encode, response_deserializer=reply.FromString)
    try:
        return invoke(request, timeout=timeout_s)
    except grpc.RpcError as error:
        raise ServerError(f"{what}: {error.code().name}: {error.details()}") from None
