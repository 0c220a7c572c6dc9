"""What is done to the null server, or to the client, and what the figures say of it: the table of docs/validation.md.

python tests/bench/validation.py [SECONDS]      (default: 10, of each run)

Exit status 1 if something that was done does not show.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from anncestry.cells.spec import Disturbance  # noqa: E402
from anncestry.drive import protocol  # noqa: E402
from anncestry.drive.driver import KINDS, Driver, complaints  # noqa: E402
from anncestry.drive.null import NullServer  # noqa: E402
from anncestry.metrics import disturbance, latency  # noqa: E402

RATE_PER_S = 200
REQUESTS = 50


@dataclass(frozen=True)
class Finding:
    """What was `done`, what is `shown` of it in figures and words, and whether that is all of it."""

    driver: str
    done: str
    shown: str
    holds: bool


def _run(
    driver: Driver,
    folder: Path,
    server: NullServer,
    seconds: float,
    rate_per_s: float | None,
    ready: Callable[[], None] = lambda: None,
) -> Any:
    """The figures of an open loop at this rate (None: a closed loop of two clients), and what held the client up.

    `ready` is called right before the clock starts.
    """
    protocol.write_requests(folder, [f"request {i}".encode() for i in range(REQUESTS)])
    rows, more = np.tile(np.arange(REQUESTS), (2, 1)), {"duration_s": seconds}
    if rate_per_s is not None:
        due_ns = (np.arange(int(rate_per_s * seconds)) * (1e9 / rate_per_s)).astype(np.int64)
        rows, more = rows[:1], {"due_ns": due_ns}
    prime = np.zeros((2, 1), int)
    protocol.write_job(
        folder, requests=folder, transport=server.transport, schedule=rows, prime=prime, timeout_s=60.0, **more
    )
    driver.run(folder, server.check_alive, ready=ready)
    outcome = protocol.read_outcome(folder)
    samples = outcome.samples
    found = latency.of_run(latency.Run(samples["due_ns"], samples["latency_ns"], samples["status"], seconds))
    seen = {"others_pct": 0.0, "steal_pct": 0.0, **disturbance.of_client([outcome.facts], rate_per_s is not None)}
    return found, [*complaints([outcome.facts]), *disturbance.above(seen, Disturbance.of().limits)]


def stall(driver: Driver, folder: Path, seconds: float) -> list[Finding]:
    """The server answers nothing for a second: p99 of an open loop tells; that of a closed one does not."""
    plan = {"stall_at": int(RATE_PER_S * seconds / 4), "stall_ms": 1000}
    with NullServer("grpc") as server:
        quiet, _ = _run(driver, folder / "quiet", server, seconds, RATE_PER_S)
    with NullServer("grpc", **plan) as server:
        opened, _ = _run(driver, folder / "open", server, seconds, RATE_PER_S)
    with NullServer("grpc", delay_ms=1, **plan) as server:
        closed, _ = _run(driver, folder / "closed", server, seconds, None)
    # Requests due while it stalls wait for what is left of it: beyond the slowest 1 % is all but that part of a second.
    wanted_ms = 1000 * (1 - seconds / 100)
    return [
        Finding(
            driver.kind,
            f"a stall of 1 s, open loop, {RATE_PER_S} a second for {seconds:g} s",
            f"p99 {opened['p99_ms']:.0f} ms, max {opened['max_ms']:.0f} ms (without the stall p99 "
            f"{quiet['p99_ms']:.1f} ms)",
            opened["p99_ms"] > wanted_ms - 100 and opened["max_ms"] > 950,
        ),
        Finding(
            driver.kind,
            f"the same stall, closed loop, 2 clients for {seconds:g} s",
            f"p99 {closed['p99_ms']:.1f} ms, max {closed['max_ms']:.0f} ms: hidden from p99 by the client's waiting",
            # On a machine so slow that it answers few, the stall is among the slowest 1 %.
            closed["max_ms"] > 900 and (closed["p99_ms"] < opened["p99_ms"] or closed["samples"] < 250),
        ),
    ]


def errors(driver: Driver, folder: Path, seconds: float) -> list[Finding]:
    """Every twentieth request fails: a rate of failures, and no latency of theirs."""
    with NullServer("grpc", error_every=20, delay_ms=1) as server:
        found, _ = _run(driver, folder, server, seconds, RATE_PER_S)
    wanted = RATE_PER_S / 20
    return [
        Finding(
            driver.kind,
            f"5 % errors, open loop, {RATE_PER_S} a second for {seconds:g} s",
            f"{found['fail_per_s']:.2f} fail/s, {found['qps']:.1f} good answers a second, {found['errors']:.0f} errors "
            f"of {found['samples']:.0f} requests",
            abs(found["fail_per_s"] - wanted) <= 2 / seconds and found["errors"] + 1 >= found["samples"] // 20,
        )
    ]


def slow_client(driver: Driver, folder: Path, seconds: float) -> list[Finding]:
    """The client is stopped for 0.7 s in the middle of a run: it says so, and its latency is not better for it."""
    stopped_s = 0.7

    def stop() -> None:
        pids = driver.pids()
        for sent, wait_s in ((signal.SIGSTOP, stopped_s), (signal.SIGCONT, 0.0)):
            for pid in pids:
                os.kill(pid, sent)
            done.wait(wait_s)

    done = threading.Event()
    with NullServer("grpc", delay_ms=1) as server:
        quiet, _ = _run(driver, folder / "quiet", server, seconds, RATE_PER_S)  # its processes are there from now on
        timer = threading.Timer(seconds / 2, stop)
        found, said = _run(driver, folder / "stopped", server, seconds, RATE_PER_S, timer.start)
        timer.join()
    return [
        Finding(
            driver.kind,
            f"the client stopped for {stopped_s:g} s, open loop, {RATE_PER_S} a second for {seconds:g} s",
            f"p99 {found['p99_ms']:.0f} ms (else {quiet['p99_ms']:.1f} ms); flagged: {'; '.join(said) or 'nothing'}",
            bool(said) and found["max_ms"] > 1000 * stopped_s - 100,
        )
    ]


CHECKS: tuple[Callable[[Driver, Path, float], list[Finding]], ...] = (stall, errors, slow_client)


def main() -> int:
    """All of it, with both drivers, as a table; 1 if something does not show."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    print("| driver | disturbance | figures | visible |\n| --- | --- | --- | --- |")
    missed = 0
    for kind in KINDS:
        with Driver(kind) as driver, tempfile.TemporaryDirectory(prefix="anncestry-validation-") as folder:
            for check in CHECKS:
                for found in check(driver, Path(folder) / check.__name__, seconds):
                    shows = "yes" if found.holds else "NO"
                    print(f"| {found.driver} | {found.done} | {found.shown} | {shows} |", flush=True)
                    missed += not found.holds
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
