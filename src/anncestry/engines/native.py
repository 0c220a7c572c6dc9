"""What engines share whose server is one process of this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from anncestry.engines.base import wait_for
from anncestry.errors import ServerError, UserError
from anncestry.runtimes.native import Ending, NativeProcess, claim_ports, free_ports

HOST = "127.0.0.1"
CHANNEL_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
)
"""Of gRPC channels: straight to the server, messages of any size."""

_START_TIMEOUT_S = 120.0
_ATTEMPTS = 3


class NativeServer:
    """A system in one process, with its ports by name."""

    def __init__(self, process: NativeProcess, ports: Mapping[str, int]) -> None:
        self.process = process
        self.ports = ports
        self.start_s = 0.0

    def pids(self) -> list[int]:
        """The one process."""
        return [self.process.pid]

    def alive(self) -> bool:
        """Whether it runs."""
        return self.process.alive()

    def check_alive(self) -> None:
        """ServerError with the end of the log if it doesn't."""
        self.process.check_alive()

    @property
    def endpoint(self) -> str:
        """host:port of the interface that queries use."""
        raise NotImplementedError

    def stop(self) -> Ending:
        """Stop it."""
        raise NotImplementedError


S = TypeVar("S", bound=NativeServer)


def start_native(
    launch: Callable[[Mapping[str, int]], S],
    answers: Callable[[S], bool | None],
    port_names: Sequence[str],
    first_port: int | None,
    kept_first_port: int | None = None,
) -> S:
    """`launch` a server on ports of these names (adjacent, in this order) and wait until it `answers`.

    The ports begin at `first_port` (UserError if one is in use); without it, at `kept_first_port` if all are free
    there; else anywhere, and a start that finds one of them snatched meanwhile is repeated on others.
    ServerError with the end of its log if the server dies or doesn't answer within two minutes.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        numbers = _ports(len(port_names), first_port, kept_first_port if attempt == 1 else None)
        started = time.monotonic()
        server = launch(dict(zip(port_names, numbers, strict=True)))
        try:
            first_answer = f"{server.process.name}: a first answer"
            wait_for(first_answer, partial(answers, server), server, _START_TIMEOUT_S, patient=True)
        except ServerError as error:
            server.stop()
            snatched = "address already in use" in server.process.log_tail(200)
            if snatched and first_port is None and attempt < _ATTEMPTS:
                continue
            raise ServerError(f"start failed: {error.args[0]}", server.process.log_tail()) from None
        except BaseException:
            server.stop()
            raise
        server.start_s = time.monotonic() - started
        return server
    raise AssertionError("not reached")


def _ports(n: int, first_port: int | None, kept_first_port: int | None) -> list[int]:
    if first_port is not None:
        return claim_ports(first_port, n)
    if kept_first_port is not None:
        try:
            return claim_ports(kept_first_port, n)
        except UserError:
            pass
    return free_ports(n)
