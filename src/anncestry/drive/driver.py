"""The driver: keeps its processes, native or Python, and runs one job after the other on them.

It connects and warms up every client, waits at a barrier (a common future instant), and then starts the clock.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from anncestry import redact
from anncestry.drive.pools import Apart, Elsewhere, InProcess, Native, Pool, Python, once
from anncestry.errors import NothingSent

KINDS = ("native", "python")
QUEUED_MS = 100.0
"""More than this is complained of: see `complaints`."""
_OF_TRANSPORT = {"sdk": "python", "inprocess": "inprocess"}
"""Kinds of transport that go by a driver of their own, whatever was chosen for the others."""


_IN_PROCESS = ("inprocess",)


class Driver:
    """Runs jobs, by the native driver or by the Python one; its processes start when first needed, and are kept.

    `kind` is native or python. What only a Python program can send (transport kinds sdk and inprocess) goes by the
    Python one anyway. `shared` is a folder that other machines see at the same path, for jobs that run on those; `held`
    are options of `namespaces` for clients that search themselves.
    """

    def __init__(self, kind: str = "native", shared: Path | None = None, held: Sequence[str] = ()) -> None:
        assert kind in KINDS, kind
        self.kind = kind
        self._shared = shared
        self._pools: dict[tuple[str, ...], Pool] = {
            ("native",): Native(),
            ("python",): Python(),
            _IN_PROCESS: InProcess(held),
        }

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def pids(self) -> list[int]:
        """Process ids of all clients; but of those that are themselves what is measured, see `libraries`."""
        return [pid for name, pool in [*self._pools.items()] if name != _IN_PROCESS for pid in pool.pids()]

    def libraries(self) -> list[int]:
        """Process ids of the clients that search in their own process: what they use is the system's."""
        return self._pools[_IN_PROCESS].pids()

    def run(
        self,
        folder: Path,
        check: Callable[[], None] = lambda: None,
        hosts: Sequence[str] = (),
        ready: Callable[[], None] = lambda: None,
    ) -> dict[str, Any]:
        """Run the job in `folder`, or those that it names together, and write done.json of each; returns the folder's.

        `hosts` are variables that hold commands which run the clients on other machines (see `pools`).

        ServerError if a client can't connect or dies; NothingSent if no client of a closed loop was let run before the
        loop was over (whatever the server is); requests that fail are samples, not errors.

        `check` is called twice a second meanwhile, and may raise (the server is gone: nobody need wait for timeouts).
        `ready` is called once all clients wait for the clock, right before its start is set. There is no limit for the
        whole: every request has its own.
        """
        jobs = {name: json.loads((folder / name / "job.json").read_text()) for name in _names(folder)}
        transports = {job["transport"]["kind"] for job in jobs.values()}
        kind = next((own for of, own in _OF_TRANSPORT.items() if of in transports), self.kind)
        apart = {job["transport"]["environment"] for job in jobs.values() if "environment" in job["transport"]}
        clients = ("hosts", *hosts) if hosts else ("environment", *apart) if apart else (kind,)
        if clients not in self._pools:
            self._pools[clients] = self._elsewhere(hosts) if hosts else Apart(*apart)
        pool = self._pools[clients]
        self.rest(check, pool)
        pool.ready = ready
        done: dict[str, Any] = redact.body(pool.run(folder.resolve(), jobs, check))
        for facts in (done, *done.get("together", {}).values()):
            for client in facts.get("clients", ()):
                client["errors"] = redact.counts(client["errors"])
        for name, job in jobs.items():
            _refuse_late(job, done.get("together", {}).get(name, done))
        for name, facts in done.get("together", {}).items():
            (folder / name / "done.json").write_text(json.dumps(facts))
        (folder / "done.json").write_text(json.dumps(done))
        return done

    def rest(self, check: Callable[[], None] = lambda: None, busy: Pool | None = None) -> None:
        """End the connections of all clients but the `busy` ones; `check` is called meanwhile, and may raise."""
        for pool in self._pools.values():
            if pool is not busy:
                pool.rest(check)

    def _elsewhere(self, hosts: Sequence[str]) -> Pool:
        assert self._shared is not None, "other machines need a folder that they share with this one"
        return Elsewhere(hosts, self._shared)

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()


def _refuse_late(job: dict[str, Any], facts: dict[str, Any]) -> None:
    if job["loop"] == "closed" and job["duration_s"] and not any(client["samples"] for client in facts["clients"]):
        late_s = (facts["end_ns"] - facts["zero_ns"]) / 1e9
        raise NothingSent(
            f"the clients sent nothing: they were let run {late_s:.1f} s after the clock's zero, when their "
            f"{job['duration_s']:g} s were over"
        )


def _names(folder: Path) -> list[str]:
    """The folders within this one whose jobs are run together; of a single job the folder itself, ""."""
    return json.loads((folder / "job.json").read_text()).get("together") or [""]


def complaints(runs: Sequence[dict[str, Any]]) -> list[str]:
    """Schedules that could not be kept, each as a sentence; `runs` are the facts of outcomes.

    What held up the client itself is the run's disturbance (`metrics.disturbance`).
    """
    found: list[str] = []
    for number, run in enumerate(runs):
        queued_ms = run["queued_p99_ms"]
        if queued_ms > QUEUED_MS or run["unsent"]:
            found.append(
                f"run {number}: the schedule could not be kept: 1 % of the arrivals waited {queued_ms:.0f} ms or more "
                f"for a connection, {run['unsent']} until their time was over"
            )
    return found


def client_facts(runs: Sequence[dict[str, Any]], sent: int) -> dict[str, Any]:
    """What a record says of the client: `runs` are the facts of each run's outcome, `sent` the requests of them all."""
    worst = (
        "rss_peak_mib",
        "lag_p99_ms",
        "lag_max_ms",
        "queued_p99_ms",
        "queued_max_ms",
        "gap_max_ms",
    )
    used_s = [run["cpu_s"] for run in runs]
    return {
        "driver": runs[0]["driver"] if runs else None,
        # None where jobs of other things ran with it in the same process.
        "cpu_us_per_query": 1e6 * sum(used_s) / max(1, sent) if None not in used_s else None,
        **{name: max((run[name] for run in runs if run[name] is not None), default=None) for name in worst},
        **{name: sum(run[name] for run in runs) for name in ("unsent", "reconnects")},
        **{name: sum(run.get(name, 0) for run in runs) for name in ("gc_runs", "gc_pause_us")},
        # None of runs that were made before there was TLS.
        "tls": once(one for run in runs for one in run.get("tls") or ()),
        "complaints": complaints(runs),
        # Clients on other machines: which, how far from the server, how many of the clients (see `pools`).
        **({"hosts": runs[-1]["hosts"]} if runs and "hosts" in runs[-1] else {}),
        # Of a client library that is not the locked one: which, of what version, in what environment.
        **({"library": runs[-1]["library"]} if runs and "library" in runs[-1] else {}),
    }
