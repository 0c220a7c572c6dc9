"""What requests of several vectors were, beside their summary, which counts requests."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from anncestry.measure.runs import Measuring, Published
from anncestry.metrics.latency import over_runs


class Batch(Measuring):
    """Requests of a run, each of several vectors."""

    @classmethod
    def summarise(cls, published: Published) -> Mapping[str, Any]:
        """Rates of requests and vectors, and how long the client took to encode a request, before the clock.

        `encode_share`: what share that would be of a request's time, its mean latency, for a client that encodes each
        request while it waits.
        """
        encode_us = [run["client"]["encode_us_per_request"] for run in published.runs]
        waited_us = [value and 1e3 * value for value in published.summary["mean_ms"]["runs"]]
        shares = [
            encode / (encode + waited) if waited else math.nan
            for encode, waited in zip(encode_us, waited_us, strict=True)
        ]
        encoding = {"encode_us_per_request": over_runs(encode_us), "encode_share": over_runs(shares)}
        return {"batch": {**_rates(published), **encoding}}

    @classmethod
    def again(cls, published: Published) -> Iterator[tuple[str, Any, Any]]:
        for name, value in _rates(published).items():
            yield f"{name} of its requests does not match its samples", published.stored["batch"].get(name), value


MEASURING = Batch


def _rates(published: Published) -> dict[str, Any]:
    nq, qps = published.workload["nq"], published.summary["qps"]
    return {"nq": nq, "requests_per_s": qps, "vectors_per_s": vectors_per_s(nq, qps)}


def vectors_per_s(nq: int, requests_per_s: Mapping[str, Any]) -> dict[str, Any]:
    """The rate of the vectors of requests of `nq`: that of the requests, with its runs and its interval, times nq."""

    def times(value: Any) -> Any:
        return None if value is None else nq * value

    scaled = {name: times(requests_per_s[name]) for name in ("value", "std", "low", "high") if name in requests_per_s}
    return {**requests_per_s, **scaled, "runs": [times(value) for value in requests_per_s["runs"]]}
