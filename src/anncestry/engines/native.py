"""How servers are started on free ports, and how remote ones are taken over."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from anncestry.drive import pools
from anncestry.engines.base import Server, wait_for
from anncestry.errors import ServerError, UserError
from anncestry.provenance.records import read_json, write_json
from anncestry.runtimes import namespaces, remote
from anncestry.runtimes.base import Group, Limits, Member, Runner
from anncestry.runtimes.native import NativeRunner, claim_ports, free_ports

HOST = "127.0.0.1"
_START_TIMEOUT_S = 120.0
_ATTEMPTS = 3
_LOG_LINES = 400

S = TypeVar("S", bound=Server)


def runner_for(topology: Mapping[str, Any], artifacts: Sequence[Path]) -> Runner:
    """The runtime that `topology` names, ready to start the programs of these artifact folders."""
    if topology["runtime"] == "docker":
        from anncestry.runtimes.docker import pod_for  # a tenth of a second, and native servers don't need it

        return pod_for(topology, artifacts)
    return NativeRunner()


def address_for_others() -> str | None:
    """Where clients on other machines reach a native server, if the user said it; never in a network of its own."""
    return None if namespaces.network() == "own" else os.environ.get(pools.ADDRESS, "").strip() or None


def start_native(
    name: str,
    launch: Callable[[Group, Mapping[str, int], Runner], S],
    answers: Callable[[S], bool | None],
    port_names: Sequence[str],
    first_port: int | None,
    kept: Path | None = None,
    runner_of: Callable[[], Runner] = NativeRunner,
    passing: Sequence[str] = (),
) -> S:
    """`launch` a server, its members into the given group, on ports of these names, and wait until it `answers`.

    The ports are adjacent, in this order. They begin at `first_port` (UserError if one is in use); without it, where
    they began at the last start, which the file `kept` holds, if all are free there; else anywhere, and a start that
    finds one of them snatched meanwhile is repeated on others, at most twice. ServerError with the end of its log if a
    member dies or nothing answers within two minutes: then nothing of it is left.

    A start of which a member dies before anything answered, with one of the texts `passing` in its log, is repeated
    once, on the same ports: the system fell over what passes. The server says of either (`repeated`), for its record.
    """
    repeated: list[str] = []
    began_s: float | None = None
    passed, at_kept = False, 1
    kept_first_port = min(read_json(kept).values()) if kept is not None and kept.exists() else None
    for attempt in range(1, _ATTEMPTS + 1):
        numbers = _ports(len(port_names), first_port, kept_first_port if attempt == at_kept else None)
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_json(kept, {"first_port": numbers[0]})
        runner, group = runner_of(), Group()
        started = time.monotonic()
        began_s = started if began_s is None else began_s
        try:
            server = launch(group, dict(zip(port_names, numbers, strict=True)), runner)
            wait_for(f"{name}: a first answer", partial(answers, server), server, _START_TIMEOUT_S, patient=True)
        except ServerError as error:
            dead = group.dead()
            group.stop()
            runner.close()
            log = group.log_tail(_LOG_LINES)
            snatched = "address already in use" in f"{error.args[0]}\n{log}".lower()
            fell_over = next((text for text in passing if text in log), None)
            if dead and fell_over and not passed and attempt < _ATTEMPTS:
                repeated.append(f"{', '.join(dead)} died before anything answered: {fell_over}")
                print(f"{name}: {repeated[-1]}; started again", file=sys.stderr, flush=True)
                passed, kept_first_port, at_kept = True, numbers[0], attempt + 1
                continue
            if snatched and first_port is None and attempt < _ATTEMPTS:
                repeated.append("another program had taken a port")
                continue
            raise ServerError(f"start failed: {error.args[0]}", error.log_tail or group.log_tail()) from None
        except BaseException:
            group.stop()
            runner.close()
            raise
        server.start_s, server.began_s = time.monotonic() - started, began_s
        server.repeated = "; ".join(repeated)
        return server
    raise AssertionError("not reached")


def start_alone(
    title: str,
    program: Path,
    told: Callable[[str, Mapping[str, int]], tuple[Sequence[str], Mapping[str, str]]],
    folder: Path,
    topology: Mapping[str, Any],
    server_of: Callable[[Group], S],
    answers: Callable[[S], bool | None],
    port_names: Sequence[str],
    first_port: int | None,
    term_wait_s: float,
) -> S:
    """A server of one member: an artifact's `program`, run in `folder`, as `start_native` starts it.

    `told`: its arguments and environment, from the address that it listens on and its ports by their names.
    """

    def launch(group: Group, ports: Mapping[str, int], runner: Runner) -> S:
        folder.mkdir(parents=True, exist_ok=True)
        arguments, environment = told(runner.listen, ports)
        log = folder / "logs" / f"{program.name}.log"
        argv: list[str | Path] = [program, *arguments]
        limits, numbers = Limits.of(topology), list(ports.values())
        handle = runner.start("node1", title, argv, environment, folder, log, limits, numbers)
        addresses = {interface: runner.reached("node1", port) for interface, port in ports.items()}
        group.add(Member("node1", "node", handle, addresses, term_wait_s))
        return server_of(group)

    kept, runner_of = folder / "ports.json", partial(runner_for, topology, [program.parent])
    return start_native(title, launch, answers, port_names, first_port, kept, runner_of)


def _ports(n: int, first_port: int | None, kept_first_port: int | None) -> list[int]:
    if first_port is not None:
        return claim_ports(first_port, n)
    if kept_first_port is not None:
        try:
            return claim_ports(kept_first_port, n)
        except UserError:
            pass
    return free_ports(n)


def take_remote(
    server_of: Callable[[Group], S],
    where: str,
    data_dir: Path,
    topology: Mapping[str, Any],
    interfaces: Sequence[str],
    scheme: str,
) -> S:
    """A server that somebody else runs, with those of `interfaces` that the topology has, the first of them the main.

    What the server holds under our name must be ours: else UserError, or, if `data_dir` is of a load of before and its
    collection is not there, ServerError.
    """
    endpoints = {interface: remote.endpoint(topology, interface) for interface in interfaces}
    addresses = {interface: address for interface, address in endpoints.items() if address is not None}
    group = Group()
    handle = remote.RemoteHandle(where, addresses[interfaces[0]], topology, scheme)
    group.add(Member("remote", "remote", handle, addresses))
    server = server_of(group)
    server.where = where
    server.mark, loaded = remote.mark_of(data_dir)
    server.check_alive()
    server.secure(handle, addresses)
    mark = server.found_mark()
    if loaded:
        remote.check_mark(where, server.collection, mark, server.mark)
    else:
        remote.may_replace(where, server.collection, mark)
    return server
