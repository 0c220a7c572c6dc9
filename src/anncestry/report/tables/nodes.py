"""Tables XI-XV of the paper: by dimension, and on one node and on several."""

from __future__ import annotations

from collections.abc import Sequence

from anncestry.report.model.cells import Column, Row, Table, TableRow, is_serial
from anncestry.report.model.material import Material
from anncestry.report.tables.blocks import Blocks, Place
from anncestry.report.tables.spec import of_k
from anncestry.report.tables.standard import single_sizes, timed_sizes
from anncestry.report.tables.texts import LIKE


def tables(material: Material) -> list[Table]:
    """Tables XI-XV for each number of neighbours that was measured, without those that nothing belongs to.

    Where the matrix compares two arms, XII-XV are those of `compare.changes`, which knows what the control did.
    """
    builder = _Tables(material.ordinary, material)
    single = single_sizes(builder.rows)
    built = [builder.dimension(k) for k in single]
    if not any(row["arm"] for row in material.rows):
        built += [
            *(builder.nodes("XII", k, "query", "p50_ms", "ms", "Overhead") for k in single),
            *(builder.nodes("XIII", k, "query", "qps", "1/s", "Change") for k in single),
            *(builder.nodes("XIV", k, "query", "qps", "1/s", "Change") for k in timed_sizes(builder.rows)),
            *(builder.nodes("XV", k, "recall", "recall_by_id", "fraction") for k in single),
        ]
    return [table for table in built if table.rows]


def sizes(rows: Sequence[Row]) -> dict[str, str]:
    """Dataset → the size that it is of, in words: sizes are runs of counts of which none is over LIKE times the first.

    Datasets whose rows nobody counted are left out.
    """
    counts = {row["dataset"]: int(row["value"]) for row in rows if row["metric"] == "rows" and row["value"] is not None}
    found: dict[str, str] = {}
    waiting = sorted(counts, key=lambda name: (counts[name], name))
    while waiting:
        first = counts[waiting[0]]
        alike = [name for name in waiting if counts[name] <= LIKE * first]
        ends = dict.fromkeys((_short(first), _short(counts[alike[-1]])))
        found |= dict.fromkeys(alike, " to ".join(ends))
        waiting = waiting[len(alike) :]
    return found


def _short(count: int) -> str:
    """A count of vectors in thousands or millions, with at most three digits that count."""
    for unit, size in ((" M", 1_000_000), (" k", 1_000)):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return str(count)


class _Tables(Blocks):
    def dimension(self, k: int) -> Table:
        number, kinds = of_k("XI", k), [(k, False)]
        blocks = [
            self._block(number, "p50", "ms", "query", "p50_ms", lower=True),
            self._block(number, "QPS", "1/s", "query", "qps", lower=False),
        ]
        known = sizes(self.rows)
        rows = []
        least: dict[str, float] = {}
        for place, labels, workloads in self._variants(kinds):
            counted = [
                next((row for row in self._of_systems(place, "", "load", metric) if row and row["value"]), None)
                for metric in ("dim", "rows")
            ]
            dim, count = (row["value"] if row else 0.0 for row in counted)
            size = known.get(place.dataset, "not counted")
            least[size] = min(count, least.get(size, count))
            cells = (*map(self._cell, counted), *(cell for _, of in blocks for cell in of(place, workloads)))
            rows.append((dim, TableRow((size, *labels), cells)))
        # Sizes in the order of their smallest; within one, by dimension.
        rows.sort(key=lambda item: (least[item[1].labels[0]], item[0], item[1].labels))
        columns = [Column("Dimensions"), Column("Vectors"), *(column for of_block, _ in blocks for column in of_block)]
        return self._table(number, ("Size", *self._label_names(kinds)), columns, [row for _, row in rows])

    def nodes(self, numeral: str, k: int, phase: str, metric: str, unit: str, heading: str = "") -> Table:
        """Table XII, XIII, XIV or XV: a metric on one node and on several, and its change if that has a heading."""
        number = of_k(numeral, k)
        rows = []
        for dataset, system, *topologies, workload in self._pairs(k, many=numeral == "XIV"):
            one, several = (
                self._row(Place(dataset, topology), system, workload, phase, metric) for topology in topologies
            )
            cells = [self._beside(number, one), self._beside(number, several)]
            if heading:
                cells.append(self._change(number, several, one))
            rows.append(TableRow((dataset, workload, system, *topologies), tuple(cells)))
        rows = self._marked(rows) if heading else rows
        columns = [Column("One node", unit), Column("Several", unit), *([Column(heading, "%")] if heading else [])]
        return self._table(number, ("Dataset", "Workload", "System", "One node", "Several nodes"), columns, rows)

    def _pairs(self, k: int, many: bool) -> list[tuple[str, str, str, str, str]]:
        """(dataset, system, topology of one node, of several, workload) of what both were asked."""
        found: dict[tuple[str, str, str], set[str]] = {}
        clients: dict[str, int] = {}
        for row in self.rows:
            if row["workload"] and row["metric"] == "qps" and _asked(row, k, many):
                found.setdefault((row["dataset"], row["system"], row["workload"]), set()).add(row["topology"])
                clients[row["workload"]] = row["clients"]
        pairs = [
            (dataset, system, one, several, workload)
            for (dataset, system, workload), topologies in found.items()
            for one in topologies - self._several
            for several in topologies & self._several
        ]
        return sorted(pairs, key=lambda pair: (pair[0], clients[pair[4]], pair[4], *pair[1:4]))


def _asked(row: Row, k: int, many: bool) -> bool:
    """Whether a number is of the `k` nearest without a filter, by one client for a count of queries, or by `many`."""
    if row["k"] != k or row["filter"] or row["target_recall"] is not None:
        return False
    return (row["clients"] or 0) > 1 and row["duration_s"] is not None if many else is_serial(row)
