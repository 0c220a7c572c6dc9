"""What is asked when: the order of requests, and for an open loop the instants at which they are due."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_PRIME_MIN = 5


def schedule(
    workload: Mapping[str, Any], measured: int, warmup: int, seed: int, run: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """What each client sends, and what it primes with: indices (clients, length) into the requests.

    Requests 0 … measured-1 are the measured queries, those after them the warm-up. Every run has a seeded order of its
    own. By count, the clients share the queries between them; by time, each goes round all of them from its own
    seeded offset.
    """
    clients = workload["clients"]
    random = np.random.RandomState([seed % 2**32, run])
    order = random.permutation(measured)
    if workload.get("duration_s") is None:
        each = -(-measured // clients)
        rows = np.resize(order, (clients, each))
    else:
        rows = np.stack([np.roll(order, -int(random.randint(measured))) for _ in range(clients)])
    return rows, prime(measured, warmup, clients)


def prime(measured: int, warmup: int, clients: int) -> NDArray[np.int64]:
    """What each client sends before the clock starts: its share of the warm-up queries, (clients, length)."""
    if not warmup:
        return np.empty((clients, 0), np.int64)
    share = max(-(-warmup // clients), min(_PRIME_MIN, warmup))
    return measured + np.resize(np.arange(warmup), (clients, share))


def arrivals(rate_per_s: float, duration_s: float, kind: str, seed: int, run: int, probe: int = 0) -> NDArray[np.int64]:
    """Due times of an open loop, nanoseconds from the clock's zero, ascending, all before `duration_s`.

    `constant`: one every 1/rate. `poisson`: exponential gaps of that mean, as many independent users make them; their
    number varies by its square root. Seeded: the same run asks at the same instants, of every system.
    """
    if kind == "constant":
        due_s = np.arange(int(np.floor(rate_per_s * duration_s))) / rate_per_s
    else:
        random = np.random.RandomState([seed % 2**32, run, probe, 1])
        expected = rate_per_s * duration_s
        gaps = random.exponential(1 / rate_per_s, int(expected + 10 * np.sqrt(expected) + 10))
        due_s = np.cumsum(gaps)
    due_s = due_s[due_s < duration_s]
    return (due_s * 1e9).astype(np.int64)


def order(measured: int, seed: int, run: int) -> NDArray[np.int64]:
    """The order in which an open loop goes round the measured queries, (1, measured)."""
    return np.random.RandomState([seed % 2**32, run]).permutation(measured)[None, :]
