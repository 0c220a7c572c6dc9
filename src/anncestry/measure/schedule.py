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
