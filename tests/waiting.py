"""Waiting for what has to come true, as long as a busy machine may need."""

from __future__ import annotations

import time
from collections.abc import Callable

_MOST_S = 600


def until(true: Callable[[], object], what: str = "what has to come true", seconds: float = _MOST_S) -> None:
    """Return as soon as it is true; AssertionError if it does not come."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.02)
