"""Requests of several vectors (a workload's `nq`)."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from anncestry.cells.features import Body, Feature, Metric, TableSpec, at
from anncestry.errors import ConfigError, Unsupported


class Batch(Feature):
    keys = ("nq",)
    metrics = (
        Metric("query", "requests_per_s", "requests/s", ("batch", "requests_per_s"), +1),
        Metric("query", "vectors_per_s", "vectors/s", ("batch", "vectors_per_s"), +1),
        Metric("query", "encode_us_per_request", "µs", ("batch", "encode_us_per_request")),
        Metric("query", "encode_share", "fraction", ("batch", "encode_share")),
    )
    table = TableSpec(
        "NQ",
        "Several vectors a request",
        "A request holds nq query vectors and gets the nearest of each. Latency and errors are those of requests, and"
        " so are queries per second wherever else they stand; recall is that of vectors. The queries are cut into"
        " batches in their order, which is a circle: no batch is padded. Encoding was done before the clock started:"
        " its share is what it would be of a request's time for a client that encodes each before it sends it.",
        {
            "requests_per_s": ("Requests", "requests/s"),
            "vectors_per_s": ("Vectors", "vectors/s"),
            "p50_ms": ("p50 of a request", "ms"),
            "p99_ms": ("p99 of a request", "ms"),
            "recall_by_id": ("Recall of a vector", "fraction"),
            "client_cpu_us_per_query": ("Client CPU a request", "µs"),
            "encode_us_per_request": ("Encoding a request", "µs"),
            "encode_share": ("Encoding, of encoding and waiting", "fraction"),
        },
        having="vectors_per_s",
        by=("dataset", "topology", "system", "workload", "nq"),
        order=lambda place: (*place[:3], place[4], place[3]),
        all_clients=True,
    )
    rank = 2

    def complete(self, workload: MutableMapping[str, Any], where: str) -> None:
        nq = workload["nq"]
        if nq == 1:
            return
        if workload.get("client", "bytes") != "bytes":
            raise Unsupported(
                f"{where}.nq: {nq} vectors a request are unsupported with client: {workload['client']}, which is asked "
                "one by one"
            )
        if nq > workload["queries"]:
            raise ConfigError(
                f"{where}.nq: {nq} vectors a request exceed the {workload['queries']} queries of the workload"
            )
        filter = workload.get("filter") or {}
        if "side" in filter or filter.get("field") == "payload":
            by = "by side" if "side" in filter else "by payload"
            raise ConfigError(
                f"{where}.nq: unsupported with a filter {by}, which differs between the {nq} queries of a request"
            )

    def note(self, metric: Metric, body: Body) -> str:
        nq = at(body, ("batch", "nq")) or 1
        return f"requests a second, of {nq} vectors each" if metric.name == "qps" and nq > 1 else ""


FEATURE = Batch()
