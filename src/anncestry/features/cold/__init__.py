"""Cold starts (a workload's `start: cold`): each run on a server that has answered nothing before."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

from anncestry.cells.features import Feature, Metric, TableSpec
from anncestry.errors import ConfigError


class Cold(Feature):
    keys = ("start", "page_cache")
    own_server = True
    apart = ("searchable_s",)
    metrics = (
        Metric("query", "searchable_s", "s", ("cold", "searchable_s"), -1),
        Metric("query", "first_ms", "ms", ("cold", "first_ms"), -1),
        Metric("query", "resident_share", "fraction", ("cold", "resident_share")),
    )

    table = TableSpec(
        "CS",
        "After a start",
        "Each run starts the server on a fresh copy of its data, whose pages were dropped from the page cache unless"
        " the workload keeps them, and asks without a warm-up. Searchable: from the start of the process to the first"
        " search that succeeds. Resident: the share of the copy that the page cache held at the start.",
        {
            "searchable_s": ("Searchable after", "s"),
            "first_ms": ("First query", "ms"),
            "p50_ms": ("p50", "ms"),
            "p99_ms": ("p99", "ms"),
            "recall_by_distance": ("Recall by distance", "fraction"),
            "resident_share": ("Resident", "fraction"),
        },
        having="searchable_s",
    )
    rank = 4

    def is_in(self, workload: Mapping[str, Any]) -> bool:
        return workload.get("start") == "cold"

    def complete(self, workload: MutableMapping[str, Any], where: str) -> None:
        if not self.is_in(workload):
            if "page_cache" in workload:
                raise ConfigError(f"{where}.page_cache: needs start: cold")
            return
        if workload["warmup"]:
            raise ConfigError(f"{where}.warmup: a cold start has no warm-up; use warmup: 0, not {workload['warmup']}")
        if "slo" in workload or "target_recall" in workload:
            raise ConfigError(f"{where}.start: cold is unsupported with slo and target_recall, which repeat runs")
        if workload.get("fault") is not None:
            raise ConfigError(f"{where}.start: cold is unsupported with fault, after which nothing can be judged")
        workload.setdefault("page_cache", "dropped")


FEATURE = Cold()
