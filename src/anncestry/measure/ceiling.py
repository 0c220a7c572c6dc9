"""The client's ceiling: what the driver does when the server costs nothing, so that no cell takes it for the server's.

Measured against the null server, which answers canned replies of about the cell's size over the same transport to the
same number of clients, on the same machine and cores. Once for each platform, driver, transport, number of clients and
size class, in about a second, when a session first needs it; kept as a record.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from anncestry.cells.stage import STAGES, key_of
from anncestry.drive import build, protocol
from anncestry.drive.client import OK
from anncestry.drive.driver import Driver
from anncestry.drive.null import NullServer
from anncestry.errors import Damaged, DataError, NothingSent
from anncestry.provenance import records

TRANSPORTS = ("grpc", "http", "mysql", "postgres", "redis")
_EPOCH = 1
_RUNS = 3
_RUN_S = 0.3
_CLIENTS_PER_S = 5000
"""A run is longer if its clients are more: each shall ask several times."""
_PRIME, _PRIME_IN_ALL = 50, 20_000
_REQUESTS = 64
_SMALLEST, _STEP = 256, 4


def size_class(size: float) -> int:
    """The smallest of 256 B, 1 KiB, 4 KiB, 16 KiB, … that is not below `size`."""
    upper = _SMALLEST
    while upper < size:
        upper *= _STEP
    return upper


def spec_of(
    platform: str, kind: str, transport: str, clients: int, request: float, reply: float, encrypted: bool = False
) -> dict[str, Any]:
    """What decides on a ceiling: `kind` is the driver's; `request` and `reply` are mean sizes in bytes."""
    return {
        **({"tls": True} if encrypted else {}),
        "stage": "ceiling",
        "epoch": _EPOCH,
        "platform": platform,
        "driver": {"kind": kind, "sources": build.digest() if kind == "native" else None},
        "transport": transport,
        "clients": clients,
        "request_bytes": size_class(request),
        "reply_bytes": size_class(reply),
    }


def find(spec: Mapping[str, Any], driver: Driver, folder: Path = STAGES["ceiling"].folder) -> dict[str, Any]:
    """The record of this ceiling, measured by `driver` if there is none yet; hold the machine while calling.

    `qps` is the highest rate of the runs; `floor_ms` the median latency and `cpu_us_per_query` the driver's CPU there.
    """
    key = key_of(spec)
    path = folder / Path(STAGES["ceiling"].output.format(**spec, key=key)).name
    if path.exists():
        try:
            return records.read_record(path, stage="ceiling", key=key)
        except Damaged as error:
            records.set_aside(path)
            print(f"{error}: set aside, and measured again", file=sys.stderr, flush=True)
    runs = measure(spec, driver)
    best = max(runs, key=lambda run: run["qps"])
    return records.write_record(path, stage="ceiling", key=key, spec=spec, body={**best, "runs": runs})


def measure(spec: Mapping[str, Any], driver: Driver) -> list[dict[str, float]]:
    """Rate (1/s), latency floor (ms) and CPU (µs a query) of some short runs of `driver` against the null server."""
    clients = spec["clients"]
    run_s = max(_RUN_S, clients / _CLIENTS_PER_S)
    runs: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="anncestry-ceiling-") as temporary, ExitStack() as stack:
        folder = Path(temporary)
        files: dict[str, Any] = {}
        trusted: dict[str, Any] = {}
        if spec.get("tls"):
            from anncestry.drive.certificates import make_certificates  # a tenth of a second of every session else

            encryption = make_certificates(folder)
            files, trusted = encryption.files, encryption.trusted
        server = stack.enter_context(NullServer(spec["transport"], reply_bytes=spec["reply_bytes"], **files))
        protocol.write_requests(folder, [bytes([i]) * spec["request_bytes"] for i in range(_REQUESTS)])
        rows = np.tile(np.arange(_REQUESTS), (clients, 1))
        for number in range(3 * _RUNS):
            protocol.write_job(
                folder / str(number),
                requests=folder,
                transport={**server.transport, **trusted},
                schedule=rows,
                prime=np.resize(rows, (clients, max(1, min(_PRIME, _PRIME_IN_ALL // clients)))),
                timeout_s=10.0,
                duration_s=run_s,
            )
            try:
                driver.run(folder / str(number), server.check_alive)
            except NothingSent:
                continue
            outcome = protocol.read_outcome(folder / str(number))
            good = outcome.samples[outcome.samples["status"] == OK]
            latency_ns = good["latency_ns"]
            within = int((good["start_ns"] + latency_ns <= run_s * 1e9).sum())
            if not within:
                continue  # the machine had no time for these clients: says nothing of them
            runs.append(
                {
                    "qps": within / run_s,
                    "floor_ms": float(np.quantile(latency_ns, 0.5, method="inverted_cdf")) / 1e6,
                    "cpu_us_per_query": 1e6 * outcome.facts["cpu_s"] / max(1, len(latency_ns)),
                }
            )
            if len(runs) == _RUNS:
                return runs
    if not runs:
        raise DataError(
            f"{clients} clients got no answer from a server that costs nothing in {3 * _RUNS} runs of {run_s} s: "
            "this machine is too busy to measure on"
        )
    return runs


def of_cell(folder: Path, run_folders: Sequence[Path], platform: str, driver: Driver) -> dict[str, Any] | None:
    """What a cell's record says of its ceiling; None where the client is not ours (kind sdk) or nothing came back.

    `folder` holds the cell's requests, `run_folders` the jobs of its runs and what they left.
    """
    jobs = [records.read_json(run / "job.json") for run in run_folders]
    if not jobs or jobs[0]["transport"]["kind"] not in TRANSPORTS:
        return None
    clients, transport = jobs[0]["clients"], jobs[0]["transport"]["kind"]
    encrypted = jobs[0]["transport"].get("tls") is not None
    samples = [
        np.fromfile(file, dtype=protocol.SAMPLE) for run in run_folders for file in sorted(run.glob("samples.*.bin"))
    ]
    good = np.concatenate([np.empty(0, protocol.SAMPLE), *samples])
    good = good[good["status"] == OK]
    if not len(good):
        return None
    offsets = np.fromfile(folder / "requests.idx", dtype="<u8")
    request = (int(offsets[-1]) - int(offsets[0])) / max(1, len(offsets) - 1)
    reply = float(good["size"].mean())
    record = find(spec_of(platform, driver.kind, transport, clients, request, reply, encrypted), driver)
    return {
        "record": record["key"],
        "transport": transport,
        **{name: record["spec"][name] for name in ("clients", "request_bytes", "reply_bytes")},
        **{name: record[name] for name in ("qps", "floor_ms", "cpu_us_per_query", "runs")},
    }
