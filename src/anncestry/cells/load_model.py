"""How a workload puts load on a system: a closed loop, an open loop at a rate, or the search for the highest rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anncestry.errors import ConfigError, Unsupported

ARRIVALS = "poisson"
PRECISION = 0.05
MAX_PROBES = 16
_OPEN_ONLY = ("rate_per_s", "arrivals")
_ARRIVALS_MIN = 20
_NOT_WITH_STREAM = {
    "slo": "a search for a rate is many runs, and each would find other rows",
    "start": "a cold start is measured by itself",
    "fault": "what was in doubt after it would be in doubt for ever",
    "filter": "filtered truth of the moment is not known yet",
    "target_recall": "the effort would be found on other rows than those that are searched",
    "client": "the changes are sent as bytes, and so are the queries",
    "nq": "the truth of the moment is that of requests of one vector",
}

_NOT_ELSEWHERE = {
    "client": "what runs on other machines is the driver, not a Python library",
    "stream": "queries and changes have to be on one clock",
}


def complete(workload: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The workload with the defaults of its kind of load; ConfigError for keys that don't go together.

    A closed loop stays as it is. `where` names file and workload.
    """
    asked = dict(workload)
    if "driver_hosts" in asked:
        for key, why in _NOT_ELSEWHERE.items():
            if key in asked and asked[key] != "bytes":
                raise ConfigError(f"{where}.driver_hosts: {why}: it can't have {key}")
    if asked.get("start") == "cold":
        if asked["warmup"]:
            raise ConfigError(
                f"{where}.warmup: {asked['warmup']} queries before a cold start is measured; say warmup: 0"
            )
        if "slo" in asked or "target_recall" in asked:
            raise ConfigError(f"{where}.start: cold is for one run a start, not for a search that asks many times")
        asked.setdefault("page_cache", "dropped")
    elif "page_cache" in asked:
        raise ConfigError(f"{where}.page_cache: is of a cold start; say start: cold too")
    if "stream" in asked:
        asked["stream"] = _stream(asked, where)
    _batches(asked, where)
    slo = asked.get("slo")
    loop = asked.get("loop", "closed")
    if slo is not None:
        if "rate_per_s" in asked:
            raise ConfigError(f"{where}.rate_per_s: with slo the rate is what is searched for")
        if loop != "open":
            raise ConfigError(f"{where}.slo: needs loop: open (a closed loop slows down with the system)")
        asked["slo"] = {"precision": PRECISION, "max_probes": MAX_PROBES, **slo}
    if loop == "closed":
        given = [key for key in _OPEN_ONLY if key in asked]
        if given:
            raise ConfigError(f"{where}.{given[0]}: is of an open loop; say loop: open too")
        return asked
    if "duration_s" not in asked:
        raise ConfigError(f"{where}: loop: open needs duration_s")
    asked.setdefault("arrivals", ARRIVALS)
    if slo is None:
        if "rate_per_s" not in asked:
            raise ConfigError(f"{where}: loop: open needs rate_per_s, or slo")
        expected = asked["rate_per_s"] * asked["duration_s"]
        if expected < _ARRIVALS_MIN:
            raise ConfigError(
                f"{where}: {asked['rate_per_s']:g} a second for {asked['duration_s']:g} s are about {expected:.0f} "
                f"requests, fewer than {_ARRIVALS_MIN}: there is no percentile of so few"
            )
    return asked


def _batches(asked: Mapping[str, Any], where: str) -> None:
    """ConfigError for requests of several vectors (`nq`) that can't be made of this workload's queries."""
    nq = asked.get("nq", 1)
    if nq == 1:
        return
    if asked.get("client") == "sdk":
        raise Unsupported(
            f"{where}.nq: {nq} vectors a request are unsupported with client: sdk, which is asked one by one"
        )
    if nq > asked["queries"]:
        raise ConfigError(
            f"{where}.nq: {nq} vectors a request, of {asked['queries']} queries: one would be in it twice"
        )
    filter = asked.get("filter") or {}
    if "side" in filter or filter.get("field") == "payload":
        said = "by side" if "side" in filter else "by payload"
        raise ConfigError(f"{where}.nq: a request has one filter for its {nq} vectors; one {said} is each query's own")


def changes_of(workload: Mapping[str, Any]) -> dict[str, int]:
    """How many rows a run of a completed workload inserts and deletes while it searches, whole batches; 0 without."""
    stream = workload.get("stream")
    if stream is None:
        return {"insert": 0, "delete": 0}
    batch = stream["batch_rows"]
    return {
        kind: batch * int(workload["duration_s"] * stream[f"{kind}_per_s"] / batch + 1e-9)
        for kind in ("insert", "delete")
    }


def _stream(asked: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The workload's stream of changes with its defaults; ConfigError for what does not go together with it."""
    if "duration_s" not in asked:
        raise ConfigError(f"{where}: stream needs duration_s: changes come at a rate, for a time")
    for key, said in _NOT_WITH_STREAM.items():
        if asked.get(key, "warm") not in ("warm", "bytes", 1):
            raise ConfigError(f"{where}.stream: does not go with {key}: {said}")
    stream = {"insert_per_s": 0, "delete_per_s": 0, "batch_rows": 1, "clients": 1, **asked["stream"]}
    counts = changes_of({**asked, "stream": stream})
    for kind, rows in counts.items():
        if stream[f"{kind}_per_s"] and not rows:
            raise ConfigError(
                f"{where}.stream.{kind}_per_s: not one batch of {stream['batch_rows']} rows in "
                f"{asked['duration_s']:g} s"
            )
    if not any(counts.values()):
        raise ConfigError(f"{where}.stream: needs insert_per_s, delete_per_s, or both")
    return stream
