"""The job folder: what the driver is given, and what it leaves.

Given
  job.json        version; transport (below); clients; loop: closed or open; duration_s (null: by count); timeout_s;
                  answer_bytes_max: more than a server may send for one request, or before the first
  requests.bin    request bytes, one after the other; requests.idx their n+1 offsets (uint64)
  schedule.bin    uint32. Closed loop: clients × length, the requests that each client sends, in order (over again, if
                  by time). Open loop: one row for all, arrival i is request i modulo its length
  due.bin         open loop only: int64, the arrivals' due times in nanoseconds from the clock's zero, ascending
  prime.bin       uint32, clients × length: requests sent by each client before the clock starts, in no sample
Left
  samples.C.bin   one SAMPLE for each request of client C; responses.C.bin the response bytes they point into
  done.json       the clock's zero (CLOCK_MONOTONIC) and the driver's facts (below)

Several jobs on one clock: a folder whose job.json holds version and `together`, the names of folders within it, each a
whole job. All clients of all of them connect and prime, and then start at the same zero. Each job has files and facts
of its own in its folder; the outer done.json holds zero_ns, end_ns and `together`, the facts by name. The native
driver is one process for all of them: rss_peak_mib and pauses are then those of the process, in each alike, and cpu_s,
of which nobody knows which job it was for, is null.

Transports, by `kind`; `target` is host:port, `targets` where client i takes the (i modulo n)-th of several; instead of
somebody else's address, what stands for it (see `redact`), which the driver is told by its standard input
  grpc            `method`: unary; request and response are the messages' bytes. `authorization`: {env, scheme}, the
                  variable that holds the credentials, and how they become that header: bearer, apikey or base64
  http            `method`, `path`, `headers`, `authorization`: HTTP/1.1, kept alive; request and response are bodies;
                  status ≥ 400 fails
  mysql           `user`, `password_env`, `database`, `init` (statements): a request is a COM_QUERY's text, or a whole
                  packet with its header if `raw`; a response the packets that answer it, with their headers
  postgres        `user`, `password_env`, `database`, `init` (statements), `prepare` (statements, named s0, s1, …):
                  a request is a query's text, or with `raw` messages up to Sync; a response those up to ReadyForQuery
  redis           `user`, `password_env` (AUTH): RESP 2; a request is what ECHO returns, or with `raw` one whole
                  command; a response the value that answers it, as it is sent
  sdk             `module`, `options`, `authorization`: a Python client library; see `transports.Sdk`. With
                  `environment` a file, for that environment's Python (`envs/NAME.txt`), and `package`: whose version
                  `library` tells; or no module, where the environment is a program (`envs/NAME/`) that takes the same
                  words as `client`
  inprocess       `module` (a file), `paths`, `target`, `options`: a library that each client loads and searches itself

Under TLS where `tls` is given: {ca_file}, a file (PEM) of the CAs that are trusted, null for the
system's. A certificate is always verified, for the host of the target; mysql and postgres are asked for TLS first, and
refused if they have none.

Closed loop: a client sends its next request when the last is answered; `due_ns` is when it does. Open loop: clients
are connections that take the arrivals in order, each when it is free, and send it when it is due: what an arrival
waits for a connection is part of its latency. A request's time is over `timeout_s` after it was due; one that no
connection was free for until then is a TIMEOUT that was never sent (`unsent` counts them): late is never left out.
No request is sent twice; after a lost connection the next request connects anew.

Facts in done.json
  zero_ns, end_ns                 CLOCK_MONOTONIC
  driver                          kind, and what it was built from
  cpu_s                           of all clients, while the clock ran; None where they are the library that is measured
  rss_peak_mib                    of all clients, since their processes began
  lag_p99_ms, lag_max_ms          how long after it could have, being due and a connection free, a request was sent
  queued_p99_ms, queued_max_ms    open loop: how long after it was due, for whatever reason
  unsent, reconnects
  tls                             what the clients' connections came to, each kind once: protocol, cipher,
                                  certificate_sha256; empty where nothing is encrypted
  gc_runs, gc_pause_us            collections of garbage that ended while the clock ran, and their pauses in sum
  gap_max_ms                      the longest time that the driver was not scheduled, from the clock's zero on: as a
                                  thread of it saw that sleeps and wakes, not those that send
  library                         of a transport with `environment` only: package, version, environment
  clients                         each: samples, prime_errors, errors (text → count)

All numbers are little-endian. The layout needs nothing but a standard library, so that a driver in another language
can take the place of this one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anncestry import large, redact
from anncestry.drive.client import VERSION
from anncestry.errors import DataError

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

ANSWER_BYTES_MAX = 256 << 20
_PLACES = ("target", "targets")

PART_ROWS = 1 << 16
PART_BYTES = 32 << 20
"""How many samples, and of how many bytes of responses, are read at a time."""


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
    due_ns: np.ndarray | None = None,
    answer_bytes_max: int = ANSWER_BYTES_MAX,
) -> None:
    """Write a job for `driver`: `schedule` and `prime` are uint32 (clients, length) indices into the requests.

    Closed loop: without `duration_s` every client sends its row once; with it, each goes round its row until the time
    is over. Open loop: `due_ns` (int64, ascending) are the arrivals that all clients share, and `schedule` is one row,
    (length,) or (1, length), gone round by them; the number of clients is that of the rows of `prime`.
    """
    for variable in (transport.get("password_env"), (transport.get("authorization") or {}).get("env")):
        redact.secret(variable or "", os.environ.get(variable or "", ""))
    folder.mkdir(parents=True, exist_ok=True)
    if due_ns is not None:
        assert duration_s is None, "the arrivals say how long an open loop is"
        assert schedule.ndim == 1 or len(schedule) == 1, "one schedule for all clients"
        assert (np.diff(due_ns) >= 0).all(), "arrivals in ascending order"
        due_ns.astype("<i8").tofile(folder / "due.bin")
    else:
        assert len(schedule) == len(prime)
    schedule.astype("<u4").tofile(folder / "schedule.bin")
    prime.astype("<u4").tofile(folder / "prime.bin")
    job = {
        "version": VERSION,
        "transport": {**transport, **redact.body({name: transport[name] for name in _PLACES if name in transport})},
        "requests": str(requests.resolve()),
        "clients": len(prime),
        "loop": "closed" if due_ns is None else "open",
        "duration_s": duration_s,
        "timeout_s": timeout_s,
        "answer_bytes_max": answer_bytes_max,
    }
    (folder / "job.json").write_text(json.dumps(job))


def bytes_max(results: int) -> int:
    """What an answer of so many results can't be longer than: as JSON, with a vector of thousands of numbers each."""
    return min((1 << 20) + results * (64 << 10), 2**31 - 1)


def write_together(folder: Path, names: Sequence[str]) -> None:
    """Say that the jobs in these folders within `folder`, written by `write_job`, are run together, on one clock."""
    (folder / "job.json").write_text(json.dumps({"version": VERSION, "together": list(names)}))


@dataclass(frozen=True)
class Left:
    """What a run left, on disk: how many samples by client, and the driver's facts. None of it is held in memory."""

    folder: Path
    counts: list[int]
    facts: dict[str, Any]

    def __len__(self) -> int:
        return sum(self.counts)

    def samples(self) -> Iterator[np.ndarray]:
        """The samples in order of client and time, some at a time."""
        for client in range(len(self.counts)):
            mapped = _samples(self.folder, client, self.counts[client])
            for part in large.parts(len(mapped), PART_ROWS):
                yield mapped[part]

    def column(self, name: str) -> np.ndarray:
        """One field of all samples, (n,); see `large`."""
        found = large.Growing(SAMPLE[name])
        for samples in self.samples():
            found.append(samples[name])
        return found.array()

    def parts(self) -> Iterator[tuple[np.ndarray, list[bytes]]]:
        """Samples and their responses, some at a time: up to PART_ROWS of about PART_BYTES; at least once.

        DataError if a file ends before a response does.
        """
        held: list[np.ndarray] = []
        responses: list[bytes] = []
        size = 0
        for client in range(len(self.counts)):
            data = _map(self.folder / f"responses.{client}.bin")
            mapped = _samples(self.folder, client, self.counts[client])
            for part in large.parts(len(mapped), PART_ROWS):
                samples = mapped[part]
                while len(samples):
                    rows = min(PART_ROWS - len(responses), len(samples))
                    sizes = np.cumsum(samples["size"][:rows], dtype=np.float64)
                    rows = max(1, int(np.searchsorted(sizes, PART_BYTES - size, "right")))
                    here, samples = samples[:rows], samples[rows:]
                    responses += self._slices(client, data, here)
                    held.append(here.copy())  # else the file of each client stays open: users have 1,024
                    size += int(sizes[rows - 1])
                    if len(responses) >= PART_ROWS or size >= PART_BYTES:
                        yield np.concatenate(held), responses
                        held, responses, size = [], [], 0
        if held or not len(self):
            yield np.concatenate(held) if held else np.empty(0, SAMPLE), responses

    def _slices(self, client: int, data: np.ndarray, samples: np.ndarray) -> list[bytes]:
        sizes, offsets = samples["size"], samples["offset"]
        if bool(((sizes > len(data)) | (offsets > len(data) - sizes.clip(max=len(data)))).any()):
            path = self.folder / f"responses.{client}.bin"
            raise DataError(f"{path}: ends before the last response of samples.{client}.bin")
        view = memoryview(data)  # type: ignore[arg-type]  # an array is a buffer
        return [
            bytes(view[offset : offset + size]) for offset, size in zip(offsets.tolist(), sizes.tolist(), strict=True)
        ]


def open_outcome(folder: Path) -> Left:
    """What the driver left in a job folder, to be read part by part; DataError if it is not whole."""
    try:
        facts = json.loads((folder / "done.json").read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{folder / 'done.json'}: the driver did not finish ({error})") from None
    left = Left(folder, _counts(folder / "done.json", facts), facts)
    queued = large.Growing(np.int64)
    for client in range(len(left.counts)):
        _map(folder / f"responses.{client}.bin")  # there, at least
    for samples in left.samples():
        queued.append(samples["start_ns"] - samples["due_ns"])
    (queued_ns,) = large.sorted_by(queued.array())
    for name, place in (("queued_p99_ms", large.rank(len(queued_ns), 0.99)), ("queued_max_ms", -1)):
        facts[name] = float(queued_ns[place] / 1e6) if len(queued_ns) else 0.0
    return left


def read_outcome(folder: Path) -> Outcome:
    """What the driver left in a job folder, all of it; DataError if it is not whole."""
    left = open_outcome(folder)
    parts = list(left.parts())
    return Outcome(
        np.concatenate([samples for samples, _ in parts]),
        [response for _, responses in parts for response in responses],
        left.facts,
    )


def _counts(path: Path, facts: object) -> list[int]:
    """How many samples each client took, by the driver's facts; DataError where they don't say."""
    try:
        counts = [each["samples"] for each in facts["clients"]]  # type: ignore[index]  # what it is, is tried
    except (KeyError, TypeError):
        counts = [-1]
    if not isinstance(facts, dict) or not all(type(count) is int and count >= 0 for count in counts):
        raise DataError(f"{path}: damaged: it has no counts of samples by client")
    return counts


def _samples(folder: Path, client: int, count: int) -> np.ndarray:
    path = folder / f"samples.{client}.bin"
    raw = _map(path)
    if len(raw) != count * SAMPLE.itemsize:
        found = len(raw) / SAMPLE.itemsize
        raise DataError(f"{path}: {found:g} samples, but the driver counted {count}")
    return raw.view(SAMPLE)


def _map(path: Path) -> np.ndarray:
    """The bytes of a file, mapped: the kernel may drop what was looked at."""
    try:
        if not path.stat().st_size:
            return np.empty(0, np.uint8)
        return np.asarray(np.memmap(path, np.uint8, "r"))
    except FileNotFoundError:
        raise DataError(f"{path}: missing, although the driver finished") from None
