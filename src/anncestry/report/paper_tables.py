"""Tables XI-XV of the paper: what dimension costs, and what several nodes cost against one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from anncestry.report.audit import Published
from anncestry.report.material import Material
from anncestry.report.printed import printed_text
from anncestry.report.tables import Builder, Cell, Column, Place, Row, Table, TableRow, Text, computed, sample_of
from anncestry.report.welch import differ

LIKE = 1.5
"""Datasets whose numbers of vectors differ by no more than this factor count as of one size."""

_NOT_OURS = (
    " The paper's columns are those of what was run: it had no cluster of Milvus, and prints a second run of its"
    " standalone server in that place."
)
_TEXTS = {
    "XI": Text(
        "Dimension",
        "Median latency and queries per second, one client, K = 10, no filter, by dimension. Only datasets of about"
        f" the same number of vectors (a factor of {LIKE:g} at most within a size) tell what the dimension does; others"
        " differ by their size, too. ± is the sample standard deviation over runs.",
        "The paper timed calls of each vendor's Python client.",
    ),
    "XII": Text(
        "One node and several: median latency",
        "Median latency of one client, K = 10, no filter, on every topology of one node and every one of several that"
        " one system was measured on. The overhead is the change from the one to the other; n.s. marks a change not"
        " larger than noise.",
        "The paper timed calls of each vendor's Python client." + _NOT_OURS,
    ),
    "XIII": Text(
        "One node and several: queries per second, one client",
        "As the table before, answers without error per second of one client in a closed loop.",
        "The paper derived its figure as 1000 / mean latency in milliseconds." + _NOT_OURS,
    ),
    "XIV": Text(
        "One node and several: queries per second, many clients",
        "The same with several clients, of each number that was measured on both sides, in a closed loop of a fixed"
        " time.",
        "The paper ran threads of one Python process as clients." + _NOT_OURS,
    ),
    "XV": Text(
        "One node and several: recall",
        "Recall of the 10 nearest by id, on one node and on several. Repeats ask the same index the same queries: their"
        " spread is not noise, so no difference is called one.",
        "The paper's recall is by id." + _NOT_OURS,
    ),
}


def tables(material: Material) -> list[Table]:
    """Tables XI-XV for what was measured, without those that nothing belongs to.

    Where the matrix compares two arms, XII-XV are those of `arms`, which knows what the control did.
    """
    builder = _Tables(material.ordinary, printed(material.facts), several_nodes(material.rows, material.records))
    built = [builder.dimension()]
    if not any(row["arm"] for row in material.rows):
        built += [builder.nodes("XII"), builder.nodes("XIII"), builder.nodes("XIV"), builder.recall()]
    return [table for table in built if table.rows]


def printed(facts: Published | None) -> dict[tuple[str, ...], str]:
    """What the paper printed in Tables XI-XV: (table, dataset, topology that it ran on, engine, metric, asked) → text.

    What was asked is K, filtered and clients, each as text, empty where it doesn't apply.
    """
    if facts is None:
        return {}
    found: dict[tuple[str, ...], str] = {}
    for figure in facts.figures:
        table = figure.place.removeprefix("Table ")
        if figure.document == "paper" and table in _TEXTS and figure.ran_on:
            asked = (figure.k, figure.filtered, figure.clients)
            key = (table, figure.dataset, figure.ran_on, figure.system, figure.metric, *asked)
            found[key] = printed_text(figure.value)
    return found


def several_nodes(rows: Sequence[Row], records: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """The topologies of several nodes: by the records of their loads, or by name where nothing of it was measured."""
    nodes: dict[str, int] = {}
    for row in rows:
        asked = ((records.get(row["record"]) or {}).get("spec") or {}).get("topology")
        if isinstance(asked, Mapping) and "nodes" in asked:
            nodes[row["topology"]] = int(asked["nodes"])
    named = {row["topology"] for row in rows if "cluster" in row["topology"] or "distributed" in row["topology"]}
    return {name for name, count in nodes.items() if count > 1} | {name for name in named if name not in nodes}


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


class _Tables(Builder):
    """Tables XI-XV."""

    texts = _TEXTS

    def __init__(self, rows: list[Row], published: Mapping[tuple[str, ...], str], several: set[str]) -> None:
        super().__init__(rows, published)
        self._several = several

    def dimension(self) -> Table:
        columns = [Column("Dimensions"), Column("Vectors"), *self._columns("p50", "ms"), *self._columns("QPS", "1/s")]
        known = sizes(self._rows)
        rows = []
        for place, labels, (workload,) in self._variants([(10, False)]):
            dim, count = (
                next((row for row in self._of_systems(place, "", "load", metric) if row and row["value"]), None)
                for metric in ("dim", "rows")
            )
            cells = (
                self._cell(dim),
                self._cell(count),
                *self._compared("XI", place, self._of_systems(place, workload, "query", "p50_ms"), lower=True),
                *self._compared("XI", place, self._of_systems(place, workload, "query", "qps"), lower=False),
            )
            size = known.get(place.dataset, "not counted")
            order = (count["value"] if count else 0.0, dim["value"] if dim else 0.0)
            rows.append((order, TableRow((size, *labels), cells)))
        # Sizes in the order of their smallest; within one, by dimension.
        least: dict[str, float] = {}
        for (count_of, _), row in rows:
            least[row.labels[0]] = min(count_of, least.get(row.labels[0], count_of))
        rows.sort(key=lambda item: (least[item[1].labels[0]], item[0][1], item[1].labels))
        names = ("Size", *self._label_names([(10, False)]))
        return self._table("XI", names, columns, [row for _, row in rows])

    def nodes(self, number: str) -> Table:
        """Table XII, XIII or XIV: one metric on one node and on several."""
        metric, unit, of_change, heading = {
            "XII": ("p50_ms", "ms", "overhead_pct", "Overhead"),
            "XIII": ("qps", "1/s", "change_pct", "Change"),
            "XIV": ("qps", "1/s", "change_pct", "Change"),
        }[number]
        many = number == "XIV"
        rows = []
        for dataset, system, one, several, workload in self._pairs(lambda row: _asked(row, many)):
            places = Place(dataset, one), Place(dataset, several)
            numbers = [self._row(place, system, workload, "query", metric) for place in places]
            change = self._change(numbers, self._printed_for(number, places[1], numbers[1], metric=of_change))
            cells = [self._cell(row, self._printed_for(number, p, row)) for p, row in zip(places, numbers, strict=True)]
            rows.append(TableRow((dataset, workload, system, one, several), (*cells, change)))
        columns = (Column("One node", unit), Column("Several", unit), Column(heading, "%"))
        return self._table(number, _PAIR_LABELS, columns, rows)

    def recall(self) -> Table:
        rows = []
        for dataset, system, one, several, workload in self._pairs(lambda row: _asked(row, False)):
            cells = []
            for place in (Place(dataset, one), Place(dataset, several)):
                row = self._row(place, system, workload, "recall", "recall_by_id")
                cells.append(self._cell(row, self._printed_for("XV", place, row)))
            rows.append(TableRow((dataset, workload, system, one, several), tuple(cells)))
        columns = (Column("One node", "fraction"), Column("Several", "fraction"))
        return self._table("XV", _PAIR_LABELS, columns, rows)

    def _pairs(self, asked: Callable[[Row], bool]) -> list[tuple[str, str, str, str, str]]:
        """(dataset, system, topology of one node, of several, workload) of what both were asked."""
        found: dict[tuple[str, str, str], set[str]] = {}
        clients: dict[str, int] = {}
        for row in self._rows:
            if row["workload"] and row["metric"] == "qps" and asked(row):
                found.setdefault((row["dataset"], row["system"], row["workload"]), set()).add(row["topology"])
                clients[row["workload"]] = row["clients"]
        pairs = [
            (dataset, system, one, several, workload)
            for (dataset, system, workload), topologies in found.items()
            for one in topologies - self._several
            for several in topologies & self._several
        ]
        return sorted(pairs, key=lambda pair: (pair[0], clients[pair[4]], pair[4], *pair[1:4]))

    def _change(self, numbers: Sequence[Row | None], published: str) -> Cell:
        one, several = numbers
        cell = computed(several, one, lambda a, b: 100 * (a / b - 1), "{:+,.1f}", published)
        if cell.value is None or one is None or several is None or differ(sample_of(several), sample_of(one)):
            return cell
        return replace(cell, text=f"{cell.text} n.s.")


_PAIR_LABELS = ("Dataset", "Workload", "System", "One node", "Several nodes")


def _asked(row: Row, many: bool) -> bool:
    """Whether a number is of the 10 nearest without a filter, by one client for a count of queries, or by `many`."""
    if row["k"] != 10 or row["filter"] or row["target_recall"] is not None:
        return False
    return (row["clients"] or 0) > 1 and row["duration_s"] is not None if many else (
        row["clients"] == 1 and row["duration_s"] is None
    )  # fmt: skip
