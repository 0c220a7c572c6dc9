"""Starting a system natively: ports for all of its members, a start that is tried again where one was snatched."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from anncestry.engines.base import wait_for
from anncestry.engines.group import GroupServer
from anncestry.errors import ServerError, UserError
from anncestry.runtimes.base import Group, Runner
from anncestry.runtimes.native import NativeRunner, claim_ports, free_ports

HOST = "127.0.0.1"
CHANNEL_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", 256 << 20),
)
"""Of gRPC channels: straight to the server, messages of any size to it, answers of any sensible one from it."""

_START_TIMEOUT_S = 120.0
_ATTEMPTS = 3
_LOG_LINES = 400

S = TypeVar("S", bound=GroupServer)


def start_native(
    name: str,
    launch: Callable[[Group, Mapping[str, int], Runner], S],
    answers: Callable[[S], bool | None],
    port_names: Sequence[str],
    first_port: int | None,
    kept_first_port: int | None = None,
    runner_of: Callable[[], Runner] = NativeRunner,
    passing: Sequence[str] = (),
) -> S:
    """`launch` a server, its members into the given group, on ports of these names, and wait until it `answers`.

    The ports are adjacent, in this order. They begin at `first_port` (UserError if one is in use); without it, at
    `kept_first_port` if all are free there; else anywhere, and a start that finds one of them snatched meanwhile is
    repeated on others. ServerError with the end of its log if a member dies or nothing answers within two minutes:
    then nothing of it is left.

    A start of which a member dies before anything answered, with one of the texts `passing` in its log, is repeated
    once, on the same ports: the system fell over what passes. The server then says so (`repeated`), for its record.
    """
    repeated, at_kept = "", 1
    for attempt in range(1, _ATTEMPTS + 1):
        numbers = _ports(len(port_names), first_port, kept_first_port if attempt == at_kept else None)
        started = time.monotonic()
        runner = runner_of()
        group = Group()
        try:
            server = launch(group, dict(zip(port_names, numbers, strict=True)), runner)
            wait_for(f"{name}: a first answer", partial(answers, server), server, _START_TIMEOUT_S, patient=True)
        except ServerError as error:
            dead = group.dead()
            group.stop()
            runner.close()
            log = group.log_tail(_LOG_LINES)
            snatched = "address already in use" in log.lower()
            fell_over = next((text for text in passing if text in log), None)
            if dead and fell_over and not repeated and attempt < _ATTEMPTS:
                repeated = f"{', '.join(dead)} died before anything answered: {fell_over}"
                print(f"{name}: {repeated}; started again", file=sys.stderr, flush=True)
                kept_first_port, at_kept = numbers[0], attempt + 1
                continue
            if snatched and first_port is None and attempt < _ATTEMPTS:
                continue
            raise ServerError(f"start failed: {error.args[0]}", error.log_tail or group.log_tail()) from None
        except BaseException:
            group.stop()
            runner.close()
            raise
        server.start_s = time.monotonic() - started
        server.repeated = repeated
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
