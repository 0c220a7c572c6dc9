"""The job folder: what the driver is given, and what it leaves.

Given
  job.json        transport {kind, target, method; targets if client i takes the (i mod n)-th of them}; clients;
                  count or duration_s; timeout_s
  requests.bin    request bytes, one after the other; requests.idx their n+1 offsets (uint64)
  schedule.bin    uint32, clients × length: the requests that each client sends, in order (over again, if by time)
  prime.bin       uint32, clients × length: requests sent by each client before the clock starts, in no sample
Left
  samples.C.bin   one SAMPLE for each request of client C; responses.C.bin the response bytes they point into
  done.json       the clock's zero (CLOCK_MONOTONIC), CPU and memory of each client, error texts

All numbers are little-endian. The layout needs nothing but a standard library, so that a driver in another language
can take the place of this one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anncestry.drive.client import ERROR, OK, TIMEOUT
from anncestry.errors import DataError

__all__ = ["ERROR", "OK", "SAMPLE", "TIMEOUT", "Outcome", "read_outcome", "write_job", "write_requests"]

SAMPLE = np.dtype(
    [
        ("query", "<u4"),
        ("client", "<u2"),
        ("status", "<u2"),
        ("due_ns", "<i8"),
        ("start_ns", "<i8"),
        ("latency_ns", "<i8"),
        ("offset", "<u8"),
        ("size", "<u8"),
    ]
)
"""A sample: times relative to the clock's zero; latency from due to the response's last byte; 48 bytes, packed."""


@dataclass(frozen=True)
class Outcome:
    """What a run left: samples of all clients ordered by client and time, their responses, and the driver's facts."""

    samples: np.ndarray
    responses: list[bytes]
    facts: dict[str, Any]


def write_requests(folder: Path, requests: Iterable[bytes]) -> int:
    """Write the requests of a workload, to be shared by its runs; returns how many."""
    folder.mkdir(parents=True, exist_ok=True)
    offsets = [0]
    with open(folder / "requests.bin", "wb") as file:
        for request in requests:
            file.write(request)
            offsets.append(offsets[-1] + len(request))
    np.asarray(offsets, dtype="<u8").tofile(folder / "requests.idx")
    return len(offsets) - 1


def write_job(
    folder: Path,
    *,
    requests: Path,
    transport: dict[str, Any],
    schedule: np.ndarray,
    prime: np.ndarray,
    timeout_s: float,
    duration_s: float | None = None,
) -> None:
    """Write a job for `driver`: `schedule` and `prime` are uint32 (clients, length) indices into the requests.

    Without `duration_s` every client sends its row once; with it, each goes round its row until the time is over.
    """
    folder.mkdir(parents=True, exist_ok=True)
    schedule.astype("<u4").tofile(folder / "schedule.bin")
    prime.astype("<u4").tofile(folder / "prime.bin")
    job = {
        "transport": transport,
        "requests": str(requests.resolve()),
        "clients": int(schedule.shape[0]),
        "duration_s": duration_s,
        "timeout_s": timeout_s,
    }
    (folder / "job.json").write_text(json.dumps(job))


def read_outcome(folder: Path) -> Outcome:
    """Read what the driver left in a job folder; DataError if it is not whole."""
    try:
        facts = json.loads((folder / "done.json").read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise DataError(f"{folder / 'done.json'}: the driver did not finish ({error})") from None
    samples: list[np.ndarray] = []
    responses: list[bytes] = []
    for client in range(len(facts["clients"])):
        part = np.fromfile(folder / f"samples.{client}.bin", dtype=SAMPLE)
        if len(part) != facts["clients"][client]["samples"]:
            raise DataError(f"{folder / f'samples.{client}.bin'}: {len(part)} samples, the driver counted otherwise")
        data = (folder / f"responses.{client}.bin").read_bytes()
        samples.append(part)
        responses += _slices(data, part["offset"].tolist(), part["size"].tolist())
    return Outcome(np.concatenate(samples) if samples else np.empty(0, SAMPLE), responses, facts)


def _slices(data: bytes, offsets: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
    return [data[offset : offset + size] for offset, size in zip(offsets, sizes, strict=True)]
