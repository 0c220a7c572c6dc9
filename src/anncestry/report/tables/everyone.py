"""Tables of all systems at one recall: what each gives and needs there, and how it treats hard queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from anncestry.cells.features import Place, TableSpec
from anncestry.metrics import robust
from anncestry.report.model.cells import NO_CELL, Cell, Column, Row, Table, TableRow, headline, is_serial
from anncestry.report.model.equal_recall import RECALL
from anncestry.report.model.material import Material
from anncestry.report.model.quantities import brief
from anncestry.report.model.verdicts import COMPARED, WORST, Verdicts
from anncestry.report.tables import spec
from anncestry.report.tables.spec import made, pivot

_SYSTEMS_MIN = 2

_RUNNING: tuple[tuple[str, str, str], ...] = (
    ("qps", "Queries per second", "1/s"),
    ("p99_ms", "p99", "ms"),
    ("server_cpu_us_per_query", "CPU a query", "µs"),
)
"""Of each number of clients: metric, label, unit."""
_MEMORY = ("pss_mib", "rss_peak_mib")
_LOADED = (("storage_total_mib", "Disk", "MiB"), ("load_s", "Load", "s"))


hardest = partial(
    spec.tables,
    TableSpec(
        "H",
        "The hardest queries",
        "Recall (by distance) of all queries, and what its mean hides. Queries with at least δ: the share of queries of"
        " which the mean recall of their answers is δ or more, which is Robustness-δ@K (Wang and others, Towards"
        " Robustness; by distance, so that a tie is no miss), with Wilson's interval. The worst: the mean recall of"
        " the hundredth of queries with the least; its interval assumes nothing of how recalls are distributed, and is"
        " therefore wide where few queries were asked.",
        {
            RECALL: ("Recall", "fraction"),
            **{robust.name_of(delta): (f"Queries with at least {delta:g}", "fraction") for delta in robust.DELTAS},
            WORST: ("Recall of the worst 1 %", "fraction"),
        },
        by=("dataset", "topology", "workload", "filter", "system"),
        having=robust.name_of(robust.DELTAS[0]),
    ),
)
"""Table H: Robustness-δ@K, and the recall of the worst 1 % of queries."""


def at_one_recall(material: Material) -> list[Table]:
    """Table EQ, of the cells that were tuned for a recall, where at least two systems were."""
    rows = material.ordinary
    tuned = [row for row in rows if row["target_recall"] is not None and not row["filter"]]
    if len({row["system"] for row in tuned}) < _SYSTEMS_MIN:
        return []
    narrowed = [row for row in rows if row["filter"] and is_serial(row) and row["target_recall"] is None]
    filters = sorted({row["filter"] for row in narrowed}, key=_share)
    clients = sorted({row["clients"] for row in tuned})
    loads = pivot((row for row in rows if not row["workload"]), ("dataset", "topology", "system"))
    filtered = pivot(narrowed, ("dataset", "topology", "system", "k"), ("filter", "metric"))
    groups = pivot(tuned, ("dataset", "topology", "k", "target_recall"), ("system", "clients", "metric"))
    columns = [
        *(Column(f"{label}, {_clients(n)}", unit) for n in clients for _, label, unit in _RUNNING),
        Column("Memory", "MiB"),
        *(Column(label, unit) for _, label, unit in _LOADED),
        *(Column(f"{words}: {label}", unit) for words in filters for label, unit in (("QPS", "1/s"), ("recall", ""))),
        Column(f"Queries per second, {_clients(clients[0])}: surely more than"),
    ]
    body = []
    for (dataset, topology, k, target), numbers in sorted(groups.items(), key=str):
        systems = sorted({str(system) for system, _, _ in numbers})
        best = _Best(material.verdicts, systems)
        for system in systems:
            of_load = loads.get((dataset, topology, system), {})
            of_filter = filtered.get((dataset, topology, system, k), {})
            memory = [numbers.get((system, clients[-1], name)) for name in _MEMORY]
            cells = [
                *(best.cell(numbers, system, (n, metric)) for n in clients for metric, _, _ in _RUNNING),
                _memory(memory),
                *(
                    best.of([loads.get((dataset, topology, each), {}).get((name,)) for each in systems], system, name)
                    if (name,) in of_load
                    else Cell(NO_CELL)
                    for name, _, _ in _LOADED
                ),
                *(_cell(of_filter.get((words, name))) for words in filters for name in ("qps", RECALL)),
                _won(material.verdicts, [numbers.get((each, clients[0], "qps")) for each in systems], system),
            ]
            body.append(TableRow((str(dataset), str(topology), f"{target:g}", f"K = {k}", system), tuple(cells)))
    return made(
        Table(
            "EQ",
            "Every system at one recall",
            "Each system at the smallest effort of a search whose recall (by distance) on held-out queries surely"
            " reached the target; under filters, at the experiment's effort, with the recall that this gives. Processor"
            " time and memory (PSS, or RSS where that is not known, under the most clients) are the server's, of a"
            " library those of its clients. Bold: surely better than each other number there, at no less recall. The"
            " last column names the systems that are surely slower (Table C), and those of which that is not known.",
            ("Dataset", "Topology", "Target recall", "Asked", "System"),
            tuple(columns),
            tuple(body),
        )
    )


class _Best:
    """Cells of a column, of which the one that surely beats each other system is bold."""

    def __init__(self, verdicts: Verdicts, systems: Sequence[str]) -> None:
        self._verdicts, self._systems = verdicts, systems

    def cell(self, numbers: Mapping[Place, Row], system: str, of: tuple[int, str]) -> Cell:
        return self.of([numbers.get((each, *of)) for each in self._systems], system, of[1])

    def of(self, rows: Sequence[Row | None], system: str, metric: str) -> Cell:
        place = self._systems.index(system)
        best = self._verdicts.best(rows, lower=COMPARED[metric])
        return _cell(rows[place], best=best == place)


def _cell(row: Row | None, *, best: bool = False) -> Cell:
    if row is None:
        return Cell(NO_CELL)
    if row["value"] is None:
        return Cell(brief(row["reason"]), number_id=row["number_id"], problem=row["reason"])
    return Cell(headline(row), row["value"], row["std"], row["number_id"], best=best)


def _memory(rows: Sequence[Row | None]) -> Cell:
    """The first that is known of the rows of `_MEMORY`."""
    known = next((row for row in rows if row is not None and row["value"] is not None), rows[0])
    cell = _cell(known)
    return replace(cell, text=f"{cell.text} (RSS)") if known is not None and known["metric"] != _MEMORY[0] else cell


def _won(verdicts: Verdicts, rows: Sequence[Row | None], system: str) -> Cell:
    """Which systems this one surely beats, and against which nothing is known."""
    known = {str(row["system"]): row for row in rows if row is not None and row["value"] is not None}
    mine = known.pop(system, None)
    if mine is None or not known:
        return Cell(NO_CELL)
    beaten = [name for name, row in known.items() if verdicts.wins(mine, row, lower=False)]
    lost = [name for name, row in known.items() if verdicts.wins(row, mine, lower=False)]
    open_ = [name for name in known if name not in (*beaten, *lost)]
    said = [", ".join(beaten) or "none"]
    if open_:
        said.append(f"not decided: {', '.join(open_)}")
    return Cell("; ".join(said), parents=(mine["number_id"], *(row["number_id"] for row in known.values())))


def _share(filter: str) -> tuple[float, str]:
    """What filters go by: the share that passes, where their words say it."""
    words = filter.replace("%", " ").split()
    found = next((float(word) for word in words if word.replace(".", "", 1).isdigit()), 100.0)
    return found, filter


def _clients(count: int) -> str:
    return f"{count} client{'' if count == 1 else 's'}"
