"""Progress that one sees: a bar with an estimate, redrawn on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time

from tqdm import tqdm

_LINE_EVERY_S = 5.0


class Progress:
    """How far a job is.

    Arguments: `label` what runs; `total` amount of work (None: unknown); `unit` its name ("B" prints KiB, MiB, …).
    Thread-safe enough for one writer. Several jobs may print at once, so elsewhere than on a terminal
    whole lines are printed, at most one every few seconds, and one at the end.
    """

    def __init__(self, label: str, total: float | None, unit: str = "it") -> None:
        self.label, self.total, self.unit = label, total, unit
        self.done = 0.0
        self.started = time.monotonic()
        self._tty = sys.stderr.isatty()
        self._every_s = 0.2 if self._tty else _LINE_EVERY_S
        self._printed = self.started

    def add(self, amount: float) -> None:
        """Add to the amount that is done."""
        self.at(self.done + amount)

    def at(self, amount: float) -> None:
        """Set the amount that is done altogether."""
        self.done = amount
        now = time.monotonic()
        if now - self._printed >= self._every_s:
            self._printed = now
            self._print(now)

    def _print(self, now: float, end: bool = False) -> None:
        meter = tqdm.format_meter(
            n=self.done,
            total=self.total or 0,
            elapsed=now - self.started,
            prefix=self.label,
            unit=self.unit,
            unit_scale=True,
            unit_divisor=1024 if self.unit == "B" else 1000,
            ncols=100,
        )
        if self._tty:
            sys.stderr.write("\r" + meter + ("\n" if end else ""))
        else:
            sys.stderr.write(meter + "\n")
        sys.stderr.flush()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._print(time.monotonic(), end=True)
