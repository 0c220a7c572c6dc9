"""Latency distributions for download, in the columns of HdrHistogram's percentile output, one table for all cells."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from anncestry.provenance.records import replacing
from anncestry.report.numbers import rows_of
from anncestry.report.tables import Row

COLUMNS = ("dataset", "system", "topology", "workload", "value_ms", "percentile", "total_count", "1/(1-percentile)")

_Records = Mapping[str, Mapping[str, Any]]


def there(df: pd.DataFrame, records: _Records) -> bool:
    """Whether any valid cell has a distribution."""
    return next(_cells(df, records), None) is not None


def write(df: pd.DataFrame, records: _Records, out_dir: Path) -> None:
    """Write latencies.csv, if there is anything: each bucket's upper end, the share and number of samples up to it."""
    if not there(df, records):
        return
    with replacing(out_dir / "latencies.csv") as temporary, open(temporary, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row, histogram in _cells(df, records):
            place = [row[name] for name in COLUMNS[:4]]
            total, below = sum(histogram["counts"]), 0
            for upper_ns, count in zip(histogram["upper_ns"], histogram["counts"], strict=True):
                below += count
                inverse = total / (total - below) if below < total else "inf"
                writer.writerow([*place, upper_ns / 1e6, below / total, below, inverse])


def _cells(df: pd.DataFrame, records: _Records) -> Iterator[tuple[Row, Mapping[str, Any]]]:
    chosen = df[(df["metric"] == "p50_ms") & df["value"].notna()]
    for row in rows_of(chosen):
        histogram = (records.get(row["record"]) or {}).get("histogram")
        if histogram and histogram["counts"]:
            yield row, histogram
