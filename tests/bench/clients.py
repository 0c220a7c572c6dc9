"""What each client costs and shows on the same server: the driver, native and Python, the database's SDK, and h2load.

python tests/bench/clients.py [SYSTEM …]      (default: milvus-2.3.5 weaviate-1.27.0)

In turn, round by round, on one server with one index; medians over rounds. h2load (Debian: nghttp2-client) repeats one
request, so everybody is also measured on one request. The goals are printed beside the figures.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from anncestry.drive import protocol  # noqa: E402
from anncestry.drive.client import OK  # noqa: E402
from anncestry.drive.driver import Driver  # noqa: E402
from anncestry.engines import get  # noqa: E402
from anncestry.measure import requests as asking  # noqa: E402
from anncestry.progress import Progress  # noqa: E402
from tests.servers import INDEX, SYSTEMS, artifact, running, small_vectors  # noqa: E402

ROWS, DIMENSIONS, QUERIES, K, EF = 20_000, 128, 1000, 10, 100
ROUNDS = int(os.environ.get("ROUNDS", "5"))
SECONDS = 1.5
CLIENTS = (1, 16)


@dataclass(frozen=True)
class Figure:
    qps: float
    mean_ms: float
    p50_ms: float
    p99_ms: float
    cpu_us: float


def driven(
    driver: Driver, folder: Path, transport: Mapping[str, Any], queries: int, clients: int, seconds: float = SECONDS
) -> Figure:
    """One run of our own driver, on the first so many of the requests, of which each client begins with another."""
    order = np.arange(queries)
    rows = np.stack([np.roll(order, -client * queries // clients) for client in range(clients)])
    protocol.write_job(
        folder, requests=folder.parent, transport=dict(transport), schedule=rows, prime=rows[:, :20], timeout_s=30.0,
        duration_s=seconds,
    )  # fmt: skip
    driver.run(folder)
    outcome = protocol.read_outcome(folder)
    assert (outcome.samples["status"] == OK).all(), outcome.facts["clients"][0]["errors"]
    return figure(outcome.samples["latency_ns"] / 1e6, seconds, outcome.facts["cpu_s"])


def figure(latency_ms: Any, seconds: float, cpu_s: float) -> Figure:
    p50, p99 = np.quantile(latency_ms, [0.5, 0.99], method="inverted_cdf")
    return Figure(
        len(latency_ms) / seconds, float(np.mean(latency_ms)), float(p50), float(p99), 1e6 * cpu_s / len(latency_ms)
    )


def h2load(folder: Path, transport: Mapping[str, Any], request: bytes, clients: int) -> Figure:
    """One run of h2load: its own count of time and requests, its CPU as the system counts it."""
    body, log = folder / "h2load.body", folder / "h2load.log"
    body.write_bytes(b"\0" + len(request).to_bytes(4, "big") + request)
    log.unlink(missing_ok=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [
            "h2load", "-c", str(clients), "-m", "1", "-t", "1", "-D", f"{1000 * SECONDS:.0f}ms",
            "--warm-up-time", "200ms", "-d", str(body), "--log-file", str(log),
            # The driver's headers: a deadline, too, makes work for the server.
            "-H", "te: trailers", "-H", "content-type: application/grpc", "-H", "grpc-timeout: 30000m",
            f"http://{transport['target']}{transport['method']}",
        ],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    rows = np.loadtxt(log, usecols=(1, 2), dtype=np.int64)
    assert (rows[:, 0] == 200).all(), done.stdout
    found = re.search(r"finished in ([\d.]+)(m?s), ([\d.]+) req/s", done.stdout)
    assert found, done.stdout
    told = figure(rows[:, 1] / 1e3, SECONDS, 0.0)
    # The log has the measured requests only, the CPU that of the warm-up, too.
    return Figure(
        float(found[3]), told.mean_ms, told.p50_ms, told.p99_ms, 1e6 * cpu_s / (len(rows) * (SECONDS + 0.2) / SECONDS)
    )


Found = dict[tuple[str, int], list[Figure]]
"""The figures of every round, by the client's name and the number of clients."""


def bench(system: str, folder: Path) -> Found:
    """All clients, in turn, on one server."""
    engine = get(SYSTEMS[system]["engine"])
    vectors = small_vectors("l2", ROWS, DIMENSIONS)
    queries = np.random.default_rng(8).normal(size=(QUERIES, DIMENSIONS)).astype(np.float32)
    work = {"k": K, "ef_search": EF}
    found: Found = {}
    with running(system, artifact(system, folder / "artifact"), folder / "data") as server:
        with Progress(f"{system}: load", ROWS, "row") as progress:
            engine.load(server, vectors, INDEX, {"batch_rows": 500}, progress)
        engine.apply(server, EF)
        by_sdk = {**work, "client": "sdk"}
        requests = asking.requests(engine, server, queries, work, EF, None)
        wire, sdk = (asking.transport(engine, server, how, EF, None) for how in (work, by_sdk))
        raw = folder / "bytes"
        protocol.write_requests(raw, requests)
        plain = folder / "vectors"
        protocol.write_requests(plain, asking.requests(engine, server, queries, by_sdk, EF, None))
        with Driver("native") as native, Driver("python") as python:

            def job(driver: Driver, where: Path, how: Mapping[str, Any], queries: int) -> Callable[[int], Figure]:
                return lambda clients: driven(driver, where / "job", how, queries, clients)

            ways: dict[str, Callable[[int], Figure]] = {
                "native driver, one request": job(native, raw, wire, 1),
                "native driver": job(native, raw, wire, QUERIES),
                "Python driver": job(python, raw, wire, QUERIES),
                "SDK": job(python, plain, sdk, QUERIES),
            }
            if shutil.which("h2load"):
                ways["h2load, one request"] = lambda clients: h2load(folder, wire, requests[0], clients)
            with Progress(f"{system}: clients", ROUNDS * len(ways) * len(CLIENTS), "run") as progress:
                for number in range(ROUNDS):
                    for clients in CLIENTS:
                        names = list(ways)
                        for name in names[number % len(names) :] + names[: number % len(names)]:
                            found.setdefault((name, clients), []).append(ways[name](clients))
                            progress.add(1)
    return found


def median(figures: Sequence[Figure]) -> Figure:
    return Figure(*(statistics.median(getattr(f, name) for f in figures) for name in Figure.__dataclass_fields__))


def show(system: str, found: Found) -> None:
    """The figures and the goals."""
    print(f"\n{system}: {ROWS:,} × {DIMENSIONS}, k={K}, ef={EF}; medians of {ROUNDS} rounds of {SECONDS} s, in turn")
    print(f"{'client':30}{'clients':>8}{'QPS':>9}{'mean ms':>9}{'p50 ms':>9}{'p99 ms':>9}{'CPU µs/query':>14}")
    for (name, clients), figures in sorted(found.items(), key=lambda item: item[0][1]):
        f = median(figures)
        print(f"{name:30}{clients:8}{f.qps:9.0f}{f.mean_ms:9.3f}{f.p50_ms:9.3f}{f.p99_ms:9.3f}{f.cpu_us:14.1f}")

    def ratio(metric: str, ours: str, other: str, clients: int) -> float:
        """Median over rounds of the ratio within a round: what passes over the machine meets both."""
        pairs = zip(found[ours, clients], found[other, clients], strict=True)
        return statistics.median(getattr(a, metric) / getattr(b, metric) for a, b in pairs)

    one, h2 = "native driver, one request", "h2load, one request"
    goals = [("CPU a query, native driver / SDK, 1 client", ratio("cpu_us", "native driver", "SDK", 1), "≤", 0.5)]
    if (h2, 1) in found:
        goals += [
            ("mean latency, native driver / h2load, one request, 1 client", ratio("mean_ms", one, h2, 1), "≤", 1.10),
            ("median latency, the same", ratio("p50_ms", one, h2, 1), "", 0.0),
            ("CPU a query, the same", ratio("cpu_us", one, h2, 1), "", 0.0),
            ("QPS, native driver / h2load, one request, 16 clients", ratio("qps", one, h2, 16), "≥", 0.8),
        ]
    for what, value, sign, goal in goals:
        met = "" if not sign else ("met" if (value <= goal if sign == "≤" else value >= goal) else "MISSED")
        print(f"  {what}: {value:.2f}" + (f"   goal {sign} {goal}: {met}" if sign else ""))


def main() -> None:
    if not shutil.which("h2load"):
        if os.geteuid() == 0 and shutil.which("apt-get"):
            subprocess.run(
                ["apt-get", "install", "-y", "-qq", "nghttp2-client"], check=False, stdout=subprocess.DEVNULL
            )
        if not shutil.which("h2load"):
            print("no h2load: install Debian's nghttp2-client to compare with it", file=sys.stderr)
    for system in sys.argv[1:] or ["milvus-2.3.5", "weaviate-1.27.0"]:
        with tempfile.TemporaryDirectory() as folder:
            show(system, bench(system, Path(folder)))


if __name__ == "__main__":
    main()
