"""Members as processes of this machine: free ports, a clean environment, start, watch, stop."""

from __future__ import annotations

import errno
import os
import random
import re
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from anncestry import web
from anncestry.errors import ServerError, UserError
from anncestry.provenance.running import owner
from anncestry.runtimes import tls
from anncestry.runtimes.base import (
    NO_LIMITS,
    POLL_S,
    Ending,
    Handle,
    Limits,
    Program,
    Runner,
    end,
    is_clean,
    log_tail,
)
from anncestry.runtimes.control_groups import enclose
from anncestry.runtimes.namespaces import wrapped
from anncestry.web import host_and_port

MARK = "ANNCESTRY_SERVER_OF"
"""In the environment of every process started here: the `owner` that started it."""
_LOADER_VARIABLES = ("LD_LIBRARY_PATH", "LD_PRELOAD")
_PASSED = frozenset({"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR"})
_LOWEST_PORT = 10_000


def is_passed(name: str) -> bool:
    """Whether programs that are started here get this variable as the user has it."""
    return name in _PASSED or name.startswith("LC_")


def clean_environment(overrides: Mapping[str, str] | None = None) -> dict[str, str]:
    """Of this process' environment only what says who and where one is, then `overrides`.

    Servers read their settings from the environment, Milvus from variables of nearly any name: what a user has set
    for other purposes must not change what is measured. Proxy variables would keep a server from loopback.
    """
    environment = {name: value for name, value in os.environ.items() if is_passed(name)}
    environment.update(overrides or {})
    return environment


def _ephemeral_ports() -> range:
    """The ports that the kernel gives to outgoing connections."""
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except (OSError, ValueError):
        return range(32_768, 61_000)
    return range(int(low), int(high) + 1)


def _first_in_use(ports: range) -> int | None:
    """The first of `ports` that can't be bound on all interfaces (servers here often bind all), None if all can."""
    with ExitStack() as stack:
        for port in ports:
            probe = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            # As servers do: a port in TIME_WAIT may be taken again, one that somebody listens on may not.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError as error:
                if error.errno in (errno.EADDRINUSE, errno.EACCES):
                    return port
                raise
    return None


def free_ports(n: int) -> list[int]:
    """`n` adjacent TCP ports that nobody uses now.

    They lie below the ephemeral range: a server's own outgoing connections, made while it starts, can't take one.
    Another program still can before the server binds it, so a start on such ports may have to be tried again.
    """
    ephemeral = _ephemeral_ports()
    top = ephemeral.start if ephemeral.start - _LOWEST_PORT >= 1000 + n else 65_536
    for _ in range(200):
        first = random.SystemRandom().randrange(_LOWEST_PORT, top - n)
        if _first_in_use(range(first, first + n)) is None:
            return list(range(first, first + n))
    raise UserError(f"no {n} adjacent free TCP ports found between {_LOWEST_PORT} and {top}")


def claim_ports(first_port: int, n: int) -> list[int]:
    """The `n` ports from `first_port` on; UserError names the first that is in use."""
    if not 1 <= first_port <= 65_536 - n:
        raise UserError(f"first_port: {first_port} and the {n - 1} ports after it are not all TCP ports")
    taken = _first_in_use(range(first_port, first_port + n))
    if taken is not None:
        raise UserError(f"port {taken} is in use (the ports {first_port}–{first_port + n - 1} are configured)")
    return list(range(first_port, first_port + n))


def http_get(address: str, path: str, timeout_s: float, named: tls.Named | None = None) -> bytes:
    """Body of a successful GET from host:port, all of it in `timeout_s`, without any proxy, under TLS if `named`.

    OSError for everything else.
    """
    status, body = web.call(address, "GET", path, timeout_s, context=None if named is None else tls.context(named))
    if not 200 <= status < 300:
        raise OSError(f"HTTP {status}")
    return body


def await_listening(process: Handle, address: str, timeout_s: float) -> None:
    """Wait until somebody takes connections at host:port; ServerError if the process ends before that."""
    host, port = host_and_port(address)
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            socket.create_connection((host, port), timeout=1.0).close()
        except OSError:
            pass
        else:
            return
        process.check_alive()
        if time.monotonic() > deadline:
            raise ServerError(f"{process.name}: port {port} is not open within {timeout_s:.0f} s", process.log_tail())
        time.sleep(POLL_S)


class NativeProcess(Handle):
    """One process with everything it starts: an own session, killed by the kernel if this process dies.

    The kernel ties it to the *thread* that makes it: start servers from a thread that lives on.
    Processes share this machine's loopback, so that none can be cut off.
    """

    no_fault = "a process can't be cut off the network; runtime docker can"
    log_path: Path

    def __init__(
        self,
        name: str,
        argv: Sequence[str | Path],
        env: Mapping[str, str],
        cwd: Path,
        log_path: Path,
        limits: Limits = NO_LIMITS,
        apart: Sequence[str] = (),
        pinned: Counter[int] | None = None,
    ) -> None:
        """Start `argv` (an absolute path first) with exactly `env`, appending both outputs to `log_path`.

        Held by `limits` from its first instruction on (see `enclose`, also of `pinned`), without capabilities, and set
        `apart` by more options of `namespaces.wrapped`. Its environment says whose it is (see `leftovers`).
        """
        self.name, self.log_path, self._cwd = name, log_path, cwd
        self._ending: Ending | None = None
        self._enclosure = enclose(re.sub(r"[^a-z0-9.]+", "-", name.lower()), limits, pinned=pinned)
        loader = [f"{variable}={env[variable]}" for variable in _LOADER_VARIABLES if variable in env]
        options = [f"--tie={os.getpid()}", *self._enclosure.arguments(), *apart, "--powerless", *loader]
        self._command = wrapped(options, argv)
        self._env = {variable: value for variable, value in env.items() if variable not in _LOADER_VARIABLES}
        self._env[MARK] = owner(os.getpid())
        try:
            log_path.parent.mkdir(parents=True, exist_ok=True)
            # A log goes with its data folder: what earlier servers wrote into it says nothing of this one.
            self._log_from = log_path.stat().st_size if log_path.exists() else 0
            self._popen = self._spawn()
        except BaseException:
            self._enclosure.remove()
            raise

    def _spawn(self) -> subprocess.Popen[bytes]:
        with open(self.log_path, "ab") as log:
            return subprocess.Popen(
                self._command,
                env=self._env,
                cwd=self._cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Process id, also the id of its group."""
        return self._popen.pid

    def pids(self) -> list[int]:
        return [self.pid]

    def log_tail(self, n: int = 15) -> str:
        return log_tail(self.log_path, n, self._log_from)

    def limits(self) -> dict[str, Any]:
        return self._enclosure.limits()

    def usage(self) -> dict[str, Any]:
        return self._enclosure.usage()

    def alive(self) -> bool:
        """Whether it runs. Looks without reaping, so that its group id stays its own until `stop`."""
        if self._popen.returncode is not None:
            return False
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None

    def check_alive(self) -> None:
        if not self.alive():
            killed = self._enclosure.killed()
            why = f": killed {killed}" if killed else ""
            raise ServerError(f"{self.name} (pid {self.pid}) is not running any more{why}", self.log_tail())

    def stop(self, term_wait_s: float) -> Ending:
        """SIGTERM, up to `term_wait_s` seconds of patience, then SIGKILL to all of its group; reaped on return.

        Calling it again returns the same.
        """
        if self._ending is None:
            started = time.monotonic()
            # One that is paused would not hear the first signal.
            sent, clean = end(self.alive, lambda name: self._signal(signal.Signals[name], signal.SIGCONT), term_wait_s)
            self._signal(signal.SIGKILL)
            returncode, killed = self._popen.wait(), self._enclosure.usage().get("oom_kills")
            self._enclosure.remove()
            clean = is_clean(clean, sent, returncode, term_wait_s, bool(killed))
            self._ending = Ending(sent, returncode, time.monotonic() - started, clean)
        return self._ending

    # Faults

    def pause(self) -> None:
        """SIGSTOP to all of its group."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL to all of its group."""
        self._signal(signal.SIGKILL)
        while self.alive():
            time.sleep(POLL_S)

    def restart(self) -> None:
        """The same program with the same environment once more."""
        self._popen.wait()
        self._popen = self._spawn()

    def _signal(self, *numbers: signal.Signals) -> None:
        for number in numbers:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)


class NativeRunner(Runner):
    """Members as processes, on loopback."""

    listen = "127.0.0.1"
    apart = False

    def __init__(self) -> None:
        self._pinned: Counter[int] = Counter()

    def host(self, member: str) -> str:
        return self.listen

    def reached(self, member: str, port: int) -> str:
        return f"{self.listen}:{port}"

    def run(self, program: Program) -> NativeProcess:
        return NativeProcess(
            *(program.title, program.argv, program.env, program.cwd, program.log_path, program.limits, program.apart),
            pinned=self._pinned,
        )

    def close(self) -> None:
        """Nothing was taken."""
