"""A member killed, paused or cut off, or paths to the storage lost, while queries run (a workload's `fault`)."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from anncestry.cells.features import Feature, Metric, TableSpec


class Fault(Feature):
    keys = ("fault",)
    spends_server = True
    apart = ("fault_lost",)
    metrics = (
        Metric("query", "fault_lost", "queries", ("fault", "lost"), -1),
        *(
            Metric("query", f"fault_{name}", "s", ("fault", name), -1)
            for name in ("silence_s", "recovered_s", "whole_s")
        ),
        Metric("recall", "fault_recall_during", "fraction", ("fault", "recall_during"), +1),
    )
    absent = MappingProxyType(
        {
            "fault_recovered_s": "not within each run",
            "fault_whole_s": "not within each run",
            "fault_recall_during": "no answer in a run",
        }
    )
    table = TableSpec(
        "T",
        "Under a fault",
        "A member of the system is killed, frozen or cut off during each run, and started, woken or joined again some"
        " seconds later; or its storage path keeps only a share of its bandwidth meanwhile. Longest silence: the"
        " longest time without an answer. Recovered: from the fault until every request was good from then on, and the"
        " median of each half second within twice the p99 of before; none if that was not within the run. Whole again:"
        " from the mending until no member missed another. Recall is of what was answered, by distance: loss that no"
        " error tells.",
        {
            "fault_lost": ("Requests that failed", "queries"),
            "fault_silence_s": ("Longest silence", "s"),
            "fault_recovered_s": ("Recovered after", "s"),
            "fault_whole_s": ("Whole again after", "s"),
            "fault_recall_during": ("Recall while it lasted", "fraction"),
            "recall_by_distance": ("Recall of the whole run", "fraction"),
        },
        having="fault_lost",
    )
    rank = 3

    def figures(self, material: Any) -> list[Any]:
        from anncestry.features.fault import figures  # draws with Altair: imported only for a page

        return list(figures.figures(material, self.table.shown if self.table else ()))


FEATURE = Fault()
