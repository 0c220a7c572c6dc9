"""A fault in one member while queries run: when it was made and mended, and what of it the clients saw.

    fault = Fault(server, {"kind": "partition", "member": "node3", "at_s": 3, "for_s": 4})
    done = driver.run(folder, check=fault.check)
    fault.end(timeout_s=60)
    impact(samples, done["zero_ns"], fault)

It acts when the driver calls `check`, in the thread that started the servers: the kernel ties a native process to it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncestry.drive.protocol import OK
from anncestry.engines.group import GroupServer
from anncestry.errors import ConfigError, ServerError

KINDS = {"kill": ("kill", "restart"), "pause": ("pause", "resume"), "partition": ("cut_off", "reconnect")}
"""Kind → how it is made and mended, by name of the methods of `runtimes.base.Handle`."""
_STEP_S = 0.5
_POLL_S = 0.2


def check(fault: Mapping[str, Any], topology: Mapping[str, Any], duration_s: float | None) -> None:
    """ConfigError for a fault that this topology can't have, or that doesn't fit into a run."""
    if fault["kind"] not in KINDS:
        raise ConfigError(f"fault.kind: {fault['kind']!r} is none of {', '.join(KINDS)}")
    if topology["runtime"] == "remote":
        raise ConfigError("fault: a server that somebody else runs (runtime remote) is left in peace")
    if fault["kind"] == "partition" and topology["runtime"] != "docker":
        raise ConfigError("fault.kind: partition needs runtime docker: processes share the network of the machine")
    if duration_s is None:
        raise ConfigError("fault: only a run of fixed time (duration_s) can have one")
    if fault["at_s"] + fault["for_s"] >= duration_s:
        raise ConfigError(f"fault: ends at {fault['at_s'] + fault['for_s']} s, the run at {duration_s} s")


class Fault:
    """One fault of one member. Times are of `time.monotonic`, None until it has happened."""

    def __init__(self, server: GroupServer, fault: Mapping[str, Any]) -> None:
        self._server, self._member = server, server.group[fault["member"]]
        self._make, self._mend = (getattr(self._member.handle, name) for name in KINDS[fault["kind"]])
        self._at_s, self._for_s = float(fault["at_s"]), float(fault["for_s"])
        self._from: float | None = None
        self.made_s: float | None = None
        self.mended_s: float | None = None
        self.whole_s: float | None = None
        """When, after it was mended, every member missed none of the others again."""

    def check(self) -> None:
        """Make or mend it when it is time to; ServerError if a member is gone that should be there."""
        now = time.monotonic()
        if self._from is None:
            self._from = now
        if self.made_s is None and now - self._from >= self._at_s:
            self.made_s = time.monotonic()
            self._make()
        elif self.made_s is not None and self.mended_s is None and now - self.made_s >= self._for_s:
            self._mend()
            self.mended_s = time.monotonic()
        for member in self._server.group:
            if member.name != self._member.name:
                member.handle.check_alive()

    def end(self, timeout_s: float) -> None:
        """Mend it if that is still to be done, and wait until the system is whole; ServerError if it is not in time."""
        if self.made_s is not None and self.mended_s is None:
            self._mend()
            self.mended_s = time.monotonic()
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self._server.check_members()
            except ServerError as error:
                if time.monotonic() > deadline:
                    raise ServerError(
                        f"after its fault, the system is not whole within {timeout_s:.0f} s: {error.args[0]}",
                        error.log_tail,
                    ) from None
                time.sleep(_POLL_S)
            else:
                self.whole_s = time.monotonic()
                return


@dataclass(frozen=True)
class Impact:
    """What the clients saw. All times in seconds from the clock's zero or, where it says so, from the fault.

    `lost` requests failed, of `requests`; the first and last of them was due so long after the fault was made, None
    if none failed. `silence_s`: the longest time within which no request was answered. `recovered_s`: how long after
    the fault was made every request was good from then on, answered no slower than twice the p99 of before; None if
    that did not come in this run. `steps`: a row for each half second.
    """

    made_s: float
    mended_s: float | None
    requests: int
    lost: int
    first_lost_s: float | None
    last_lost_s: float | None
    silence_s: float
    p99_before_ms: float | None
    recovered_s: float | None
    steps: list[dict[str, Any]]

    def facts(self) -> dict[str, Any]:
        """For a record."""
        return asdict(self)


def impact(
    samples: NDArray[Any], status: NDArray[np.integer[Any]], zero_ns: int, fault: Fault, recall: NDArray[Any] | None
) -> Impact:
    """What a run's samples (n,), their `status` (n,) after decoding, and perhaps `recall` (n,) say of its fault."""
    assert fault.made_s is not None
    made_s = fault.made_s - zero_ns / 1e9
    due_s = samples["due_ns"] / 1e9
    end_s = due_s + samples["latency_ns"] / 1e9
    latency_ms = samples["latency_ns"] / 1e6
    good = status == OK
    lost = np.sort(due_s[~good]) - made_s
    before = good & (end_s <= made_s)
    p99_ms = float(np.percentile(latency_ms[before], 99, method="higher")) if before.any() else None
    answered = np.sort(end_s[good])
    edges = np.concatenate([[0.0], answered, [float(end_s.max(initial=0.0))]])
    return Impact(
        made_s=made_s,
        mended_s=None if fault.mended_s is None else fault.mended_s - zero_ns / 1e9,
        requests=len(samples),
        lost=int((~good).sum()),
        first_lost_s=float(lost[0]) if len(lost) else None,
        last_lost_s=float(lost[-1]) if len(lost) else None,
        silence_s=float(np.diff(edges).max()),
        p99_before_ms=p99_ms,
        recovered_s=_recovered_s(due_s, end_s, latency_ms, good, made_s, p99_ms),
        steps=_steps(due_s, latency_ms, good, recall),
    )


def _recovered_s(
    due_s: NDArray[Any],
    end_s: NDArray[Any],
    latency_ms: NDArray[Any],
    good: NDArray[np.bool_],
    made_s: float,
    p99_ms: float | None,
) -> float | None:
    """End of the last half second after the fault that held a failure or a median above twice the p99 of before."""
    if p99_ms is None:
        return None
    bad = due_s[~good & (end_s > made_s)]
    last = float(end_s[~good & (end_s > made_s)].max()) if len(bad) else made_s
    for start in np.arange(made_s, float(due_s.max()), _STEP_S):
        inside = good & (due_s >= start) & (due_s < start + _STEP_S)
        if not inside.any() or float(np.median(latency_ms[inside])) > 2 * p99_ms:
            last = max(last, start + _STEP_S)
    return None if last >= float(end_s.max()) else last - made_s


def _steps(
    due_s: NDArray[Any], latency_ms: NDArray[Any], good: NDArray[np.bool_], recall: NDArray[Any] | None
) -> list[dict[str, Any]]:
    rows = []
    for number in range(int(due_s.max(initial=0.0) / _STEP_S) + 1):
        inside = (due_s >= number * _STEP_S) & (due_s < (number + 1) * _STEP_S)
        fine = inside & good
        rows.append(
            {
                "from_s": number * _STEP_S,
                "requests": int(inside.sum()),
                "lost": int((inside & ~good).sum()),
                "p50_ms": float(np.median(latency_ms[fine])) if fine.any() else None,
                "max_ms": float(latency_ms[fine].max()) if fine.any() else None,
                "recall": float(recall[fine].mean()) if recall is not None and fine.any() else None,
            }
        )
    return rows
