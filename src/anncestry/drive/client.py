"""One client of the driver: a process of its own, so that no two clients share an interpreter lock.

Reads commands from standard input (`known ADDRESSES`, `job CLIENT FOLDER`, then `go T0`), answers `ready` and `done
FACTS` on standard output, and ends with its input. Imports nothing but the standard library, `redact`, and the
transport it needs.
"""

from __future__ import annotations

import array
import fcntl
import gc
import json
import os
import platform
import struct
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

from anncestry import redact
from anncestry.drive.transports import TRANSPORTS, CallError, Transport

VERSION = 2
"""Of the protocol."""
OK, ERROR, TIMEOUT = 0, 1, 2
_SAMPLE = struct.Struct("<IHHqqqQQ")
_TICKET = struct.Struct("<Q")
_SPIN_NS = 200_000
_PAUSE_NS = 10_000_000
"""As the native driver's: a server that refuses, or accepts and closes, shall not be asked a million times a second."""
_ERRORS_MAX = 20


def _numbers(kind: str, folder: str, name: str) -> array.array[int]:
    """All numbers of a file, by their type code as `array` has it."""
    values: array.array[int] = array.array(kind)
    with open(os.path.join(folder, name), "rb") as file:  # noqa: PTH118
        values.frombytes(file.read())
    if sys.byteorder == "big":
        values.byteswap()
    return values


def _row(values: array.array[int], rows: int, row: int) -> array.array[int]:
    length = len(values) // rows
    return values[row * length : (row + 1) * length]


def _sleep_until(at_ns: int) -> None:
    """Sleep, and spin for the last moment."""
    wait_ns = at_ns - time.monotonic_ns()
    if wait_ns > _SPIN_NS:
        time.sleep((wait_ns - _SPIN_NS) / 1e9)
    while time.monotonic_ns() < at_ns:
        pass


def _rss_peak_mib() -> float:
    """Of this process. (That of getrusage begins with what whoever started it had.)"""
    with open("/proc/self/status") as file:
        return int(next(line for line in file if line.startswith("VmHWM:")).split()[1]) / 1024


def _lags(lags_ns: array.array[int]) -> dict[str, float]:
    """Nearest-rank p99 and maximum."""
    ordered = sorted(lags_ns) or [0]
    return {"lag_p99_ms": ordered[-(-99 * len(ordered) // 100) - 1] / 1e6, "lag_max_ms": ordered[-1] / 1e6}


def _most(errors: dict[str, int]) -> dict[str, int]:
    """The most frequent kinds, and the rest as one."""
    ordered = sorted(errors.items(), key=lambda each: (-each[1], each[0]))
    others = sum(count for _, count in ordered[_ERRORS_MAX:])
    return dict(ordered[:_ERRORS_MAX]) | ({"other errors": others} if others else {})


class Client:
    """Runs jobs one after the other, each on a connection of its own."""

    transport: Transport | None = None

    def prepare(self, folder: str, client: int) -> None:
        """Connect, prime, and lay everything out in memory: after this only the clock is missing."""
        with open(os.path.join(folder, "job.json")) as file:  # noqa: PTH118
            job = json.load(file)
        if job["version"] != VERSION:
            raise ValueError(f"job.json: version {job['version']}, this client reads {VERSION}")
        self.rest()
        self.folder, self.client = folder, client
        offsets = _numbers("Q", job["requests"], "requests.idx")
        with open(os.path.join(job["requests"], "requests.bin"), "rb") as file:  # noqa: PTH118
            data = memoryview(file.read())
        self.open = job["loop"] == "open"
        rows, row = (1, 0) if self.open else (job["clients"], client)
        schedule = _row(_numbers("I", folder, "schedule.bin"), rows, row)
        prime = _row(_numbers("I", folder, "prime.bin"), job["clients"], client)
        wanted = {index: bytes(data[offsets[index] : offsets[index + 1]]) for index in {*schedule, *prime}}
        self.plan = [(index, wanted[index]) for index in schedule]
        self.due_ns = _numbers("q", folder, "due.bin") if self.open else array.array("q")
        self.timeout_s = job["timeout_s"]
        self.duration_ns = None if job["duration_s"] is None else int(job["duration_s"] * 1e9)
        transport = job["transport"]
        if transport["kind"] not in TRANSPORTS:
            raise ValueError(f"the Python driver has no transport {transport['kind']}")
        if "targets" in transport:
            transport = {**transport, "target": transport["targets"][client % len(transport["targets"])]}
        if "target" in transport:  # or what stands for it
            transport = {**transport, "target": redact.addresses().get(transport["target"], transport["target"])}
        transport["answer_bytes_max"] = job["answer_bytes_max"]
        self.transport = TRANSPORTS[transport["kind"]](transport, self.timeout_s)
        self.prime_errors = 0
        self.answered = False
        for index in prime:
            try:
                self.transport.call(wanted[index], self.timeout_s)
                self.answered = True
            except CallError:
                self.prime_errors += 1
        # Before the barrier: no client shall start late because it tidies up.
        gc.collect()
        gc.freeze()
        gc.disable()

    def rest(self) -> None:
        """End the connection: another client's run comes next."""
        if self.transport is not None:
            self.transport.close()
            self.transport = None

    def _closed(self, zero_ns: int) -> Iterator[tuple[int, bytes, int]]:
        """The requests to be sent and, as each is sent when it is asked for, when they are due."""
        now = time.monotonic_ns
        if self.duration_ns is None:
            for index, request in self.plan:
                yield index, request, now()
            return
        deadline_ns = zero_ns + self.duration_ns
        while True:
            for index, request in self.plan:
                if (due_ns := now()) >= deadline_ns:
                    return
                yield index, request, due_ns

    def _arrivals(self, zero_ns: int) -> Iterator[tuple[int, bytes, int]]:
        """The arrivals that this client takes, each when it is due. A file holds the number of the next one."""
        ticket = os.open(os.path.join(self.folder, "next.bin"), os.O_RDWR)  # noqa: PTH118
        try:
            while True:
                fcntl.flock(ticket, fcntl.LOCK_EX)
                (number,) = _TICKET.unpack(os.pread(ticket, _TICKET.size, 0))
                os.pwrite(ticket, _TICKET.pack(number + 1), 0)
                fcntl.flock(ticket, fcntl.LOCK_UN)
                if number >= len(self.due_ns):
                    return
                due_ns = zero_ns + self.due_ns[number]
                _sleep_until(due_ns)
                yield *self.plan[number % len(self.plan)], due_ns
        finally:
            os.close(ticket)

    def run(self, zero_ns: int) -> dict[str, Any]:
        """Send requests from `zero_ns` (CLOCK_MONOTONIC) on, each as soon as it may be sent."""
        assert self.transport is not None
        now, call = time.monotonic_ns, self.transport.call
        samples: list[tuple[int, int, int, int, int, Any]] = []
        lags_ns = array.array("q")
        errors: dict[str, int] = {}
        timeout_ns, unsent, answered = int(self.timeout_s * 1e9), 0, self.answered
        _sleep_until(zero_ns)
        free_ns = zero_ns  # who is let run late has lost that time
        cpu_ns = time.process_time_ns()
        for index, request, due_ns in self._arrivals(zero_ns) if self.open else self._closed(zero_ns):
            start_ns = now()
            lags_ns.append(start_ns - max(due_ns, free_ns) if self.open else start_ns - free_ns)
            left_ns = due_ns + timeout_ns - start_ns
            response: Any = None
            if left_ns <= 0:
                end_ns, status, text = start_ns, TIMEOUT, "never sent: no client was free until its time was over"
                unsent += 1
            else:
                try:
                    response = call(request, left_ns / 1e9)
                    end_ns, status, text, answered = now(), OK, "", True
                    if end_ns - due_ns > timeout_ns:  # a library, or HTTP, may give an answer more time than it has
                        response, status, text = None, TIMEOUT, "answered after its time was over"
                except CallError as error:
                    if error.lost and not answered:  # its pause is part of it: nobody was idle
                        _sleep_until(min(now() + _PAUSE_NS, due_ns + timeout_ns))
                    answered = not error.lost and not error.timeout
                    end_ns, status, text = now(), TIMEOUT if error.timeout else ERROR, redact.short(str(error))
            if text:
                errors[text] = errors.get(text, 0) + 1
            samples.append((index, status, due_ns - zero_ns, start_ns - zero_ns, end_ns - due_ns, response))
            free_ns = end_ns
        cpu_ns = time.process_time_ns() - cpu_ns
        ended_ns = now()
        gc.enable()
        gc.unfreeze()
        self._write(samples)
        return {
            "driver": {"kind": "python", "python": platform.python_version()},
            "gc_runs": 0,  # it is off while the clock runs
            "gc_pause_us": 0.0,
            "samples": len(samples),
            "end_ns": ended_ns,
            "cpu_s": cpu_ns / 1e9,
            "rss_peak_mib": _rss_peak_mib(),
            "prime_errors": self.prime_errors,
            "errors": _most(errors),
            "unsent": unsent,
            "reconnects": self.transport.reconnects,
            "tls": self.transport.secured,
            **({} if self.transport.library is None else {"library": self.transport.library}),
            **_lags(lags_ns),
        }

    def _write(self, samples: list[tuple[int, int, int, int, int, Any]]) -> None:
        assert self.transport is not None
        offset = 0
        base = os.path.join(self.folder, "{}")  # noqa: PTH118
        with (
            open(base.format(f"samples.{self.client}.bin"), "wb") as table,
            open(base.format(f"responses.{self.client}.bin"), "wb") as bodies,
        ):
            for index, status, due_ns, start_ns, latency_ns, response in samples:
                body = b"" if response is None else self.transport.pack(response)
                table.write(_SAMPLE.pack(index, self.client, status, due_ns, start_ns, latency_ns, offset, len(body)))
                bodies.write(body)
                offset += len(body)


def main() -> None:
    """Serve commands until standard input ends."""
    client = Client()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a library may print: its words are no answers
    warnings.showwarning = lambda *_, **__: None  # libraries warn their developers, also when their process ends
    for line in sys.stdin:
        word, _, rest = line.strip().partition(" ")
        if word == "known":
            redact.restore(json.loads(rest))
            continue
        try:
            if word == "job":
                number, _, folder = rest.partition(" ")
                client.prepare(folder, int(number))
                answer = "ready"
            else:
                answer = "done " + json.dumps(client.run(int(rest)))
        except Exception as error:
            answer = "failed " + json.dumps(f"{type(error).__name__}: {error}")
        print(answer, file=answers, flush=True)


if __name__ == "__main__":
    main()
