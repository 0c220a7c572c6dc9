"""The driver: keeps client processes, and runs a job on as many of them as it asks for.

Connect and prime every client, then a barrier (all are told the same future instant), then the clock.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from anncestry.errors import ServerError

_CHECK_S = 0.5
_LEAD_NS = 30_000_000
"""From the barrier to the clock's zero: long enough for the word to reach every client before it."""


class Driver:
    """A pool of client processes, started when first needed and kept, so that no run pays for starting them."""

    def __init__(self) -> None:
        self._clients: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Driver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self) -> subprocess.Popen[str]:
        environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        return subprocess.Popen(
            [sys.executable, "-c", "from anncestry.drive.client import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )

    def pids(self) -> list[int]:
        """Process ids of all clients."""
        return [client.pid for client in self._clients]

    def run(self, folder: Path, check: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Run the job in `folder` and write its done.json; returns its content.

        ServerError if a client can't connect or dies; requests that fail are samples, not errors. `check` is called
        twice a second meanwhile, and may raise (the server is gone: nobody need wait for timeouts). There is no limit
        for the whole: every request has its own.
        """
        job = json.loads((folder / "job.json").read_text())
        (folder / "next.bin").write_bytes(bytes(8))
        while len(self._clients) < job["clients"]:
            self._clients.append(self._start())
        clients = self._clients[: job["clients"]]
        for number, client in enumerate(clients):
            self._tell(client, f"job {number} {folder.resolve()}")
        self._answers(clients, "ready", check)
        zero_ns = time.monotonic_ns() + _LEAD_NS
        for client in clients:
            self._tell(client, f"go {zero_ns}")
        parts = [json.loads(text) for text in self._answers(clients, "done", check)]
        done = {
            "zero_ns": zero_ns,
            "end_ns": max(part["end_ns"] for part in parts),
            "driver": {"kind": "python"},
            **{
                name: sum(part.pop(name) for part in parts)
                for name in ("cpu_s", "rss_peak_mib", "unsent", "reconnects")
            },
            # The worst client's: no client shall hide behind the others.
            **{name: max(part.pop(name) for part in parts) for name in ("lag_p99_ms", "lag_max_ms")},
            "gc_pause_max_ms": 0.0,
            "gap_max_ms": None,
            "clients": [{name: part[name] for name in ("samples", "prime_errors", "errors")} for part in parts],
        }
        (folder / "done.json").write_text(json.dumps(done))
        return done

    @staticmethod
    def _tell(client: subprocess.Popen[str], line: str) -> None:
        assert client.stdin is not None
        try:
            client.stdin.write(line + "\n")
            client.stdin.flush()
        except BrokenPipeError:
            raise ServerError(f"a client of the driver died (exit {client.poll()})") from None

    def _answers(self, clients: list[subprocess.Popen[str]], word: str, check: Callable[[], None]) -> list[str]:
        """One line from every client, in their order; each must start with `word`."""
        answers: dict[int, str] = {}
        with selectors.DefaultSelector() as selector:
            for number, client in enumerate(clients):
                assert client.stdout is not None
                selector.register(client.stdout, selectors.EVENT_READ, number)
            while len(answers) < len(clients):
                events = selector.select(timeout=_CHECK_S)
                try:
                    if not events:
                        check()
                except ServerError:
                    self.close()
                    raise
                for event, _ in events:
                    line = event.fileobj.readline()  # type: ignore[union-attr]
                    selector.unregister(event.fileobj)
                    first, _, rest = line.strip().partition(" ")
                    if first != word:
                        self.close()
                        reason = json.loads(rest) if first == "failed" else "it died"
                        raise ServerError(f"client {event.data} of the driver failed: {reason}")
                    answers[event.data] = rest
        return [answers[number] for number in range(len(clients))]

    def close(self) -> None:
        """End all clients: their input ends, and whoever does not heed that is killed by pid."""
        for client in self._clients:
            if client.stdin:
                try:
                    client.stdin.close()
                except BrokenPipeError:
                    pass
        for client in self._clients:
            try:
                client.wait(timeout=1)
            except subprocess.TimeoutExpired:
                client.kill()
                client.wait()
            if client.stdout:
                client.stdout.close()
        self._clients = []


def client_facts(runs: Sequence[dict[str, Any]], sent: int) -> dict[str, Any]:
    """What a record says of the client: `runs` are the facts of each run's outcome, `sent` the requests of them all."""
    worst = (
        "rss_peak_mib",
        "lag_p99_ms",
        "lag_max_ms",
        "queued_p99_ms",
        "queued_max_ms",
        "gc_pause_max_ms",
        "gap_max_ms",
    )
    return {
        "driver": runs[0]["driver"] if runs else None,
        "cpu_us_per_query": 1e6 * sum(run["cpu_s"] for run in runs) / max(1, sent),
        **{name: max((run[name] for run in runs if run[name] is not None), default=None) for name in worst},
        **{name: sum(run[name] for run in runs) for name in ("unsent", "reconnects")},
    }
