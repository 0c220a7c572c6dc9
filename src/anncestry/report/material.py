"""What the tables and figures of a page are made from: the tidy frame, the records behind it, what others published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from anncestry.cells.absent import Absent
from anncestry.report.audit import Published
from anncestry.report.numbers import by_bytes, first_builds, rows_of
from anncestry.report.tables import Row

_SPECIAL = frozenset({"rate_per_s", "max_rate_per_s", "searchable_s", "fault_lost"})
"""Metrics that only workloads have that can't stand beside others."""


@dataclass(frozen=True)
class Material:
    """`numbers` is the whole tidy frame, `records` are those that it names, by path, each with its `sha256`.

    `paper` is the CSV of the paper's own figures, in a folder of published facts; None: nothing is set beside ours.
    `absent` are cells that are listed instead of measured: no row of `numbers` is of one.
    """

    numbers: pd.DataFrame
    records: Mapping[str, Mapping[str, Any]]
    paper: Path | None = None
    absent: Sequence[Absent] = ()

    @cached_property
    def first(self) -> pd.DataFrame:
        """The rows of the first build of each load, by bytes and through the databases' own libraries."""
        return first_builds(self.numbers)

    @cached_property
    def plain(self) -> pd.DataFrame:
        """Of these, the rows of requests that were encoded before: what all tables are of that don't say otherwise."""
        return by_bytes(self.first)

    @cached_property
    def rows(self) -> list[Row]:
        """`plain`, as plain values."""
        return rows_of(self.plain)

    @cached_property
    def facts(self) -> Published | None:
        """What others published."""
        return Published(self.paper.parent) if self.paper else None

    @cached_property
    def ordinary(self) -> list[Row]:
        """`rows` without workloads that are no plain closed loop: open loops, cold starts, rates, faults."""
        return _ordinary(self.rows)

    @cached_property
    def by_any_client(self) -> list[Row]:
        """The same, with what was asked through the databases' own libraries."""
        return _ordinary(rows_of(self.first[self.first["nq"].fillna(1) == 1]))


def _ordinary(rows: list[Row]) -> list[Row]:
    special = {row["workload"] for row in rows if row["workload"] and row["metric"] in _SPECIAL}
    return [row for row in rows if row["workload"] not in special]
