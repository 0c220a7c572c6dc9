"""One client of the driver: a process of its own, so that no two clients share an interpreter lock.

Reads commands from standard input (`job FOLDER CLIENT`, then `go T0`), answers `ready` and `done FACTS` on standard
output, and ends with its input. Imports nothing but the standard library and the transport it needs.
"""

from __future__ import annotations

import array
import gc
import json
import os
import resource
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

OK, ERROR, TIMEOUT = 0, 1, 2
_SAMPLE = struct.Struct("<IHHqqqQQ")
_SPIN_NS = 200_000
_CONNECT_S = 10.0

Call = Callable[[bytes], bytes]


class CallError(Exception):
    """A request that failed: `timeout` tells a passed deadline from any other failure."""

    def __init__(self, text: str, timeout: bool) -> None:
        super().__init__(text)
        self.timeout = timeout


def _grpc(transport: dict[str, Any], timeout_s: float) -> Call:
    """A unary call of raw bytes. One channel a client; the deadline is the only option that a request carries."""
    import grpc

    channel = grpc.insecure_channel(
        transport["target"],
        options=[
            ("grpc.max_receive_message_length", -1),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_http_proxy", 0),
        ],
    )
    try:
        grpc.channel_ready_future(channel).result(timeout=min(timeout_s, _CONNECT_S))
    except grpc.FutureTimeoutError:
        raise CallError(f"no connection to {transport['target']}", timeout=True) from None
    method = channel.unary_unary(transport["method"])

    def call(request: bytes) -> bytes:
        try:
            return method(request, timeout=timeout_s)  # type: ignore[no-any-return]
        except grpc.RpcError as error:
            code = error.code()
            raise CallError(f"{code.name}: {error.details()}", code == grpc.StatusCode.DEADLINE_EXCEEDED) from None

    return call


TRANSPORTS: dict[str, Callable[[dict[str, Any], float], Call]] = {"grpc": _grpc}


def _indices(path: str, clients: int, client: int) -> array.array[int]:
    """Row `client` of a uint32 matrix with `clients` rows."""
    values = array.array("I")
    with open(path, "rb") as file:
        values.frombytes(file.read())
    if sys.byteorder == "big":
        values.byteswap()
    length = len(values) // clients
    return values[client * length : (client + 1) * length]


def _requests(folder: str) -> tuple[memoryview, array.array[int]]:
    offsets = array.array("Q")
    with open(os.path.join(folder, "requests.idx"), "rb") as file:  # noqa: PTH118
        offsets.frombytes(file.read())
    if sys.byteorder == "big":
        offsets.byteswap()
    with open(os.path.join(folder, "requests.bin"), "rb") as file:  # noqa: PTH118
        return memoryview(file.read()), offsets


class Client:
    """Runs jobs one after the other, each on a connection of its own."""

    def prepare(self, folder: str, client: int) -> None:
        """Connect, prime, and lay everything out in memory: after this only the clock is missing."""
        with open(os.path.join(folder, "job.json")) as file:  # noqa: PTH118
            job = json.load(file)
        self.folder, self.client = folder, client
        data, offsets = _requests(job["requests"])
        schedule = _indices(os.path.join(folder, "schedule.bin"), job["clients"], client)  # noqa: PTH118
        prime = _indices(os.path.join(folder, "prime.bin"), job["clients"], client)  # noqa: PTH118
        wanted = {index: bytes(data[offsets[index] : offsets[index + 1]]) for index in {*schedule, *prime}}
        self.plan = [(index, wanted[index]) for index in schedule]
        self.duration_ns = None if job["duration_s"] is None else int(job["duration_s"] * 1e9)
        transport = job["transport"]
        if "targets" in transport:
            transport = {**transport, "target": transport["targets"][client % len(transport["targets"])]}
        self.call = TRANSPORTS[transport["kind"]](transport, job["timeout_s"])
        self.prime_errors = 0
        for index in prime:
            try:
                self.call(wanted[index])
            except CallError:
                self.prime_errors += 1
        # Before the barrier: no client shall start late because it tidies up.
        gc.collect()
        gc.freeze()
        gc.disable()

    def run(self, zero_ns: int) -> dict[str, Any]:
        """Send requests from `zero_ns` (CLOCK_MONOTONIC) on, each as soon as the one before is answered."""
        now, call = time.monotonic_ns, self.call
        samples: list[tuple[int, int, int, int, bytes]] = []
        errors: dict[str, int] = {}
        plan, deadline_ns = self.plan, None if self.duration_ns is None else zero_ns + self.duration_ns
        time.sleep(max(0, zero_ns - now() - _SPIN_NS) / 1e9)
        while now() < zero_ns:
            pass
        cpu_ns = time.process_time_ns()
        over = False
        while not over:
            for index, request in plan:
                start_ns = now()
                if deadline_ns is not None and start_ns >= deadline_ns:
                    over = True
                    break
                try:
                    response = call(request)
                    end_ns, status = now(), OK
                except CallError as error:
                    end_ns, status, response = now(), TIMEOUT if error.timeout else ERROR, b""
                    text = str(error)[:300]
                    errors[text] = errors.get(text, 0) + 1
                samples.append((index, status, start_ns - zero_ns, end_ns - start_ns, response))
            if deadline_ns is None:
                over = True
        cpu_ns = time.process_time_ns() - cpu_ns
        ended_ns = now()
        gc.enable()
        gc.unfreeze()
        self._write(samples)
        return {
            "samples": len(samples),
            "end_ns": ended_ns,
            "cpu_s": cpu_ns / 1e9,
            "rss_peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "prime_errors": self.prime_errors,
            "errors": dict(sorted(errors.items())[:20]),
        }

    def _write(self, samples: list[tuple[int, int, int, int, bytes]]) -> None:
        offset = 0
        base = os.path.join(self.folder, "{}")  # noqa: PTH118
        with (
            open(base.format(f"samples.{self.client}.bin"), "wb") as table,
            open(base.format(f"responses.{self.client}.bin"), "wb") as bodies,
        ):
            for index, status, start_ns, latency_ns, response in samples:
                table.write(
                    _SAMPLE.pack(index, self.client, status, start_ns, start_ns, latency_ns, offset, len(response))
                )
                bodies.write(response)
                offset += len(response)


def main() -> None:
    """Serve commands until standard input ends."""
    client = Client()
    for line in sys.stdin:
        word, _, rest = line.strip().partition(" ")
        try:
            if word == "job":
                number, _, folder = rest.partition(" ")
                client.prepare(folder, int(number))
                answer = "ready"
            else:
                answer = "done " + json.dumps(client.run(int(rest)))
        except Exception as error:
            answer = "failed " + json.dumps(f"{type(error).__name__}: {error}")
        print(answer, flush=True)


if __name__ == "__main__":
    main()
