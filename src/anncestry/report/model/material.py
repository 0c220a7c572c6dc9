"""What the tables and figures of a page are made from: the tidy frame, the records behind it, what others published."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pandas as pd

from anncestry.cells import features
from anncestry.cells.blocks import Absent
from anncestry.cells.features import Feature, at
from anncestry.metrics.decide import Rule
from anncestry.report.model.cells import Row, in_order
from anncestry.report.model.noise import Noise, floors
from anncestry.report.model.numbers import PAIRED, by_bytes, first_builds, is_plain, rows_of
from anncestry.report.model.quantities import not_ordinary
from anncestry.report.model.verdicts import Verdicts
from anncestry.report.published import Published


@dataclass(frozen=True)
class Material:
    """`numbers` is the whole tidy frame, `records` are those that it names, by path, each with its `sha256`.

    `facts` are what others published; None: nothing is set beside ours.
    `absent` are cells that are listed instead of measured: no row of `numbers` is of one.
    """

    numbers: pd.DataFrame
    records: Mapping[str, Mapping[str, Any]]
    facts: Published | None = None
    absent: Sequence[Absent] = ()
    pages: Mapping[str, str] = field(default_factory=dict)
    rule: Rule = field(default_factory=Rule)

    @cached_property
    def first(self) -> pd.DataFrame:
        """The rows of the first build of each load, by bytes and through the databases' own libraries."""
        return first_builds(self.numbers)

    @cached_property
    def plain(self) -> pd.DataFrame:
        """Of these, the rows of requests that were encoded before: what all tables are of that don't say otherwise."""
        return by_bytes(self.first)

    @cached_property
    def all_rows(self) -> list[Row]:
        """`numbers`, as plain values."""
        return rows_of(self.numbers)

    @cached_property
    def first_rows(self) -> list[Row]:
        """`first`, as plain values."""
        return [row for row in self.all_rows if row["rebuild"] in (1, None) and row["phase"] != PAIRED]

    @cached_property
    def pairs(self) -> list[Row]:
        """The rows of pairs: of two systems each."""
        return [row for row in self.all_rows if row["phase"] == PAIRED]

    @cached_property
    def rows(self) -> list[Row]:
        """`plain`, as plain values."""
        return [row for row in self.first_rows if is_plain(row)]

    @cached_property
    def nodes(self) -> Mapping[str, int]:
        """How many members each topology has, as its loads say; 1 where none says it."""
        found = dict.fromkeys((row["topology"] for row in self.all_rows), 1)
        for record in self.records.values():
            asked = at(record, ("spec", "topology"))
            if isinstance(asked, Mapping) and {"name", "nodes"} <= asked.keys():  # those of queries have a name alone
                found[asked["name"]] = int(asked["nodes"])
        return found

    def places(self, rows: Iterable[Row]) -> list[tuple[str, str]]:
        """The datasets and topologies of these rows: of a dataset, those of one node first, clusters by their size."""
        return in_order({(row["dataset"], row["topology"]) for row in rows}, self.nodes)

    @cached_property
    def noise(self) -> Noise:
        """What differs between builds of one load, where several were measured."""
        return Noise().with_measured(floors(by_bytes(self.numbers)))

    @cached_property
    def verdicts(self) -> Verdicts:
        """What is known of any two of `first_rows`."""
        return Verdicts(self.first_rows, self.records, self.rule, self.noise)

    @cached_property
    def features(self) -> list[Feature]:
        """The features of this package, and those from elsewhere that a workload of the records has."""
        workloads = (at(record, ("spec", "workload")) or {} for record in self.records.values())
        return features.among({key for workload in workloads for key in workload})

    @cached_property
    def ordinary(self) -> list[Row]:
        """`rows` without workloads that are no plain closed loop: open loops, cold starts, streams, faults."""
        return _ordinary(self.rows)

    @cached_property
    def by_any_client(self) -> list[Row]:
        """The same, with what was asked through the databases' own libraries."""
        return _ordinary([row for row in self.first_rows if row["nq"] in (1, None)])


def _ordinary(rows: list[Row]) -> list[Row]:
    special = not_ordinary(rows)
    return [row for row in rows if row["workload"] not in special]
