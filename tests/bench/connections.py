"""What many connections cost the native driver: the null server at 100 to 10,000 clients.

python tests/bench/connections.py [ROUNDS]      (default: 5)

In turn, round by round, 1,100 clients twice: so the table shows by how much equal runs differ. Ratios are within a
round and to the mean of those two, so whatever else the machine does meets both sides. The goals stand below.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from anncestry.drive import protocol  # noqa: E402
from anncestry.drive.client import OK  # noqa: E402
from anncestry.drive.driver import Driver  # noqa: E402
from anncestry.drive.null import NullServer  # noqa: E402
from anncestry.progress import Progress  # noqa: E402

CLIENTS = {"100": 100, "1,100": 1100, "1,100 again": 1100, "1,200": 1200, "5,000": 5000, "10,000": 10_000}
BASE = ("1,100", "1,100 again")
SECONDS = 2.0
REQUEST_BYTES, REPLY_BYTES = 600, 400
EQUAL_PCT = 10.0
"""The median ratio of 1,200 to 1,100 clients shall be nearer to 1 than this."""


@dataclass(frozen=True)
class Figure:
    qps: float
    p99_ms: float
    cpu_us: float
    gc_runs: int
    gap_max_ms: float
    rss_peak_mib: float


def measured(driver: Driver, server: NullServer, folder: Path, clients: int, seconds: float = SECONDS) -> Figure:
    """One run of a closed loop: the rate of answers within the window, and what the driver says of itself."""
    protocol.write_requests(folder, [b"x" * REQUEST_BYTES] * 10)
    rows = np.zeros((clients, 1), int)
    protocol.write_job(
        folder, requests=folder, transport=server.transport, schedule=rows, prime=rows.repeat(2, axis=1),
        timeout_s=30.0, duration_s=seconds,
    )  # fmt: skip
    driver.run(folder, server.check_alive)
    left = protocol.open_outcome(folder)
    assert (left.column("status") == OK).all()
    latency_ns = left.column("latency_ns")
    within = int((left.column("start_ns") + latency_ns <= seconds * 1e9).sum())
    facts = left.facts
    return Figure(
        within / seconds,
        float(np.quantile(latency_ns, 0.99, method="inverted_cdf")) / 1e6,
        1e6 * facts["cpu_s"] / max(1, len(latency_ns)),
        facts["gc_runs"],
        facts["gap_max_ms"],
        facts["rss_peak_mib"],
    )


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    found: dict[str, list[Figure]] = {name: [] for name in CLIENTS}
    with Progress("connections", rounds * len(CLIENTS), "run") as progress:
        for number in range(rounds):
            names = list(CLIENTS)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                with (
                    tempfile.TemporaryDirectory() as folder,
                    NullServer("grpc", reply_bytes=REPLY_BYTES) as server,
                    Driver("native") as driver,
                ):
                    found[name].append(measured(driver, server, Path(folder), CLIENTS[name]))
                progress.add(1)
    print(f"\nnative driver on the null server, gRPC; medians of {rounds} rounds of {SECONDS} s, in turn")
    print(f"{'clients':12}{'QPS':>9}{'of 1,100':>10}{'(least – most)':>18}{'p99 ms':>9}{'CPU µs':>8}", end="")
    print(f"{'collections':>13}{'gap ms':>8}{'RSS MiB':>9}")
    ratios = {}
    for name, figures in found.items():
        bases = [sum(base.qps for base in pair) / 2 for pair in zip(*(found[each] for each in BASE), strict=True)]
        ratio = [one.qps / base for one, base in zip(figures, bases, strict=True)]
        ratios[name] = statistics.median(ratio)
        middle = {
            what: statistics.median(getattr(one, what) for one in figures) for what in ("qps", "p99_ms", "cpu_us")
        }
        worst = {what: max(getattr(one, what) for one in figures) for what in ("gc_runs", "gap_max_ms", "rss_peak_mib")}
        print(
            f"{name:12}{middle['qps']:9.0f}{ratios[name]:10.2f}{f'({min(ratio):.2f} – {max(ratio):.2f})':>18}"
            f"{middle['p99_ms']:9.1f}{middle['cpu_us']:8.1f}{worst['gc_runs']:13}{worst['gap_max_ms']:8.0f}"
            f"{worst['rss_peak_mib']:9.0f}"
        )
    collected = sum(one.gc_runs for figures in found.values() for one in figures)
    apart_pct = 100 * abs(ratios["1,200"] - 1)
    print(f"  collections while the clock ran: {collected}   goal 0: {'met' if not collected else 'MISSED'}")
    print(
        f"  QPS at 1,200 clients / at 1,100: {ratios['1,200']:.2f}   goal within {EQUAL_PCT:.0f} % of 1: "
        f"{'met' if apart_pct <= EQUAL_PCT else 'MISSED'}"
    )


if __name__ == "__main__":
    main()
