"""The table of storage paths: what loading and searching cost on each, and how much was read and written there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from anncestry.report.more_tables import with_interval
from anncestry.report.numbers import rows_of
from anncestry.report.tables import Column, Table, TableRow

_OF_LOADS = {
    ("load", "load_s"): ("Load", "s"),
    ("storage", "storage_net_mib"): ("Vectors and index", "MiB"),
    ("load", "io_write_mib"): ("Written by it while loading", "MiB"),
    ("load", "device_io_write_mib"): ("Written to the device while loading", "MiB"),
}
_OF_CELLS = {
    ("query", "qps"): ("Queries per second", "1/s"),
    ("query", "p95_ms"): ("p95", "ms"),
    ("query", "p99_ms"): ("p99", "ms"),
    ("recall", "recall_by_id"): ("Recall by id", "fraction"),
    ("query", "io_read_mib"): ("Read by it while asked", "MiB"),
    ("query", "device_io_read_mib"): ("Read from the device while asked", "MiB"),
    ("query", "device_io_reads"): ("Reads that the device served", "requests"),
}


def tables(df: pd.DataFrame, records: Mapping[str, Mapping[str, Any]]) -> list[Table]:
    """The table, if the tidy frame `df` has a topology with a storage path; `records` are by path."""
    rows = rows_of(df)
    paths = {
        (str(row["dataset"]), str(row["topology"]), str(row["system"])): described(record["storage_path"])
        for row in rows
        if (record := records.get(row["record"] or "")) is not None and "storage_path" in record
    }
    places = sorted(
        {
            tuple(str(row[name]) for name in ("dataset", "topology", "system", "workload"))
            for row in rows
            if row["metric"] == "qps" and (str(row["dataset"]), str(row["topology"]), str(row["system"])) in paths
        }
    )
    found = {
        (*(str(row[name]) for name in ("dataset", "topology", "system", "workload", "phase", "metric")),): row
        for row in rows
    }
    body = []
    for place in places:
        cells = [with_interval(found.get((*place[:3], "", *metric))) for metric in _OF_LOADS]
        cells += [with_interval(found.get((*place, *metric))) for metric in _OF_CELLS]
        body.append(TableRow((place[0], place[1], paths[place[0], place[1], place[2]], *place[2:]), tuple(cells)))
    table = Table(
        "Y",
        "Storage paths",
        "What a system keeps lies on the storage path of its topology. Read and written by it: what its processes'"
        " accounts (/proc/PID/io) say reached storage, on whatever device; of a library, its clients'. Of the device:"
        " /proc/diskstats of the block device below the path, by whatever program; not recorded where the path has no"
        " such device (memory) or this machine doesn't show it: then nothing can be told, which is not zero.",
        ("Dataset", "Topology", "Storage path", "System", "Workload"),
        tuple(Column(label, unit) for label, unit in (*_OF_LOADS.values(), *_OF_CELLS.values())),
        tuple(body),
    )
    return [table] if body else []


def described(facts: Mapping[str, Any]) -> str:
    """A storage path in words: its name, file system, device, transport, paths."""
    said = [str(facts["filesystem"] or "unknown file system")]
    if facts["device"] is not None:
        said.append(f"device {facts['device']}")
    said += [str(facts[name]) for name in ("transport", "model") if facts[name] is not None]
    if facts["rotational"] is not None:
        said.append("rotating" if facts["rotational"] else "not rotating")
    if facts["paths"] is not None:
        said.append(f"{facts['paths']} path{'' if facts['paths'] == 1 else 's'}")
    if facts["same_device_as"]:
        said.append(f"same device as {', '.join(facts['same_device_as'])}")
    return f"{facts['name']}: {', '.join(said)}"
