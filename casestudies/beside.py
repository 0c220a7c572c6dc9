"""Measured beside published: each figure of others that something here was measured for, with ratio and verdict.

What stands beside what: one dataset, engine, number of nodes and question. Everything else that differs is said. A
figure that has nothing beside it says why: by document on the page, one by one in published.csv and on the audit page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from anncestry.metrics.decide import MIN_RUNS, Rule, judge
from anncestry.report import counterpart
from anncestry.report.charts import colours
from anncestry.report.model.cells import Cell, Column, Row, Table, TableRow, sample_of, with_interval
from anncestry.report.model.material import Material
from anncestry.report.model.records import flat, merged, of_stage
from anncestry.report.published import DOCUMENTS, Figure, Published, printed_text
from anncestry.report.site import downloads, shell
from anncestry.report.site.shell import Numbers
from casestudies.checks import paper_sample

PAGE = "published.html"
FILE = "published.csv"
_ASKED = ("dataset", "system", "version", "topology", "index", "k", "filtered", "clients", "detail", "ran_on")
_SHOWN = ("id", "document", "place", "line", "metric", "value", "std", "unit", *_ASKED)
"""Columns of published.csv that are those of config/published/numbers.csv."""

PARTS_MISSING = "one of the numbers that it is derived from wasn't measured here"
NO_NOISE = "noise unknown"
EXACT, OTHER = "the same", "another number"
INSIDE, OUTSIDE = "inside our interval", "outside our interval"
_COLUMNS = ("Published", "Measured", "Measured / published", "Measured is", "Beside the platform differs")


@dataclass(frozen=True)
class Counterpart:
    """What was measured for a published figure: a row of ours, or a number made from several."""

    topology: str
    system: str
    workload: str
    value: float
    cell: Cell
    row: Row | None = None
    declared: str = ""
    """In words, what of the question is declared of somebody else's server, and not read back."""

    @property
    def ids(self) -> tuple[str, ...]:
        """Of the number, or of those that it is made from."""
        return self.cell.parents or (self.cell.number_id,)


class Joint(NamedTuple):
    """A published figure, what was measured of the same, and where that is nothing, why: one of both is empty."""

    figure: Figure
    found: Sequence[Counterpart]
    why_not: str

    @property
    def ids(self) -> list[str]:
        """Of all that was measured of the same, each once."""
        return list(dict.fromkeys(name for each in self.found for name in each.ids))

    @property
    def declared(self) -> str:
        """In words, what of the question is only declared where it was measured."""
        return "; ".join(dict.fromkeys(each.declared for each in self.found if each.declared))


def joints(material: Material, facts: Published) -> list[Joint]:
    """Every published figure, in the order of the documents."""
    finder = _Finder(material, facts)
    return [finder.joint(figure) for figure in facts.figures]


def tables(material: Material) -> list[Table]:
    """The table of counterparts, and what the documents and we say of the machines; none without a counterpart."""
    if material.facts is None:
        return []
    finder = _Finder(material, material.facts)
    body = []
    for figure in material.facts.figures:
        for found in finder.joint(figure).found:
            document = DOCUMENTS[figure.document].partition(":")[0]
            labels = (document, figure.place, _asked(figure), found.topology, found.system, found.workload)
            spread = f" ± {figure.std}" if figure.std else ""
            ratio = found.value / counterpart.number(figure) if figure.number else None
            cells = (
                Cell(printed_text(figure.value) + spread, source=figure.id),
                found.cell,
                Cell("—") if ratio is None else Cell(f"{ratio:.3g}", ratio, parents=found.ids),
                Cell(verdict(figure, found, material.rule)),
                Cell(finder.differences(figure, found)),
            )
            body.append(TableRow(labels, cells))
    if not body:
        return []
    return [
        Table(
            "B",
            "Measured beside published",
            "Every figure of the documents that was measured here on the same dataset, engine, number of nodes and"
            " question, in the unit of the document. The machines are never the same (the table below says what is"
            " known of them), so no ratio tells a database's doing alone. Higher, lower, equivalent, undetermined: by"
            " the runs of both sides; where the document gives no spread, whether its figure is inside"
            " of our own interval. The limits of memory that the paper states are no condition: its own files"
            " contradict them (finding f068). Of somebody else's server, paths and network cards of its storage are"
            " what its topology declares; the last column says where.",
            ("Document", "Place", "Figure", "Topology", "System", "Workload"),
            tuple(map(Column, _COLUMNS)),
            tuple(body),
        ),
        _platforms(material),
    ]


def reasons(every: Sequence[Joint]) -> list[tuple[str, int, list[tuple[str, int]]]]:
    """By document: its title, how many of its figures are joined, and how many are not for each reason."""
    found: dict[str, Counter[str]] = {name: Counter() for name in DOCUMENTS}
    for joint in every:
        found[joint.figure.document][joint.why_not] += 1
    return [
        (DOCUMENTS[name], counts[""], [(words, count) for words, count in counts.most_common() if words])
        for name, counts in found.items()
    ]


def write_reasons(every: Sequence[Joint], path: Path) -> None:
    """Write published.csv: each figure with what it is of, and the ids of our numbers or why there are none.

    `declared` is what of the question those who run a server of theirs declared of it.
    """
    lines = (
        [*(getattr(joint.figure, name) for name in _SHOWN), " ".join(joint.ids), joint.declared, joint.why_not]
        for joint in every
    )
    downloads.write_csv(path, (*_SHOWN, "numbers", "declared", "why_not"), lines)


def ancestry(material: Material, ids: Set[str]) -> dict[str, Any]:
    """What a page's script shows of the numbers of these ids."""
    shown = [row for row in material.all_rows if row["number_id"] in ids]
    behind = {row["record"] for row in shown} & material.records.keys()
    return shell.ancestry(shown, {path: material.records[path] for path in behind})


def write(material: Material, facts: Published, built: Sequence[Table], out_dir: Path, title: str) -> Path:
    """Write published.html, which shows these tables of `tables`, and published.csv beside it; returns its path."""
    every = joints(material, facts)
    write_reasons(every, out_dir / FILE)
    cells = [cell for content in built for row in content.rows for cell in row.cells]
    ids = {name for cell in cells for name in (*cell.parents, cell.number_id) if name}
    lines = [row for content in built for row in content.rows if len(row.cells) > 1]
    machine = merged(dict(flat(record.get("platform"))) for record in of_stage(material.records, "load"))
    return shell.write(
        out_dir / PAGE,
        Path(__file__).parent / "templates" / PAGE,
        title=title,
        pages=material.pages,
        ancestry=ancestry(material, ids),
        numbers=Numbers(),
        colours=colours(material.first["system"]),
        tables=built,
        table_files=downloads.names,
        figures=len(facts.figures),
        file=FILE,
        reasons=reasons(every),
        covered=len({cell.source for row in lines for cell in row.cells if cell.source}),
        verdicts=sorted(Counter(row.cells[3].text for row in lines).items()),
        machine=" × ".join(filter(None, (machine.get("cores", ""), machine.get("cpu_model", "")))),
    )


def _asked(figure: Figure) -> str:
    said = [figure.dataset, *([figure.topology] if figure.document == "diskann" else []), figure.metric]
    said += [f"K = {figure.k}"] if figure.k else []
    said += ["filtered"] if figure.filtered == "1" else []
    said += [f"{figure.clients} client{'' if figure.clients == '1' else 's'}"] if figure.clients else []
    return ", ".join(said)


def verdict(figure: Figure, found: Counterpart, rule: Rule | None = None) -> str:
    """What the measured number is against the published one, as far as the noise of both is known."""
    row = found.row
    if row is None:
        return NO_NOISE
    if row["unit"] in ("vectors", "dimensions"):
        return EXACT if row["value"] == figure.number else OTHER
    published = counterpart.number(figure)
    if figure.std and row["std"] is not None:
        judged = judge(paper_sample(published, figure.std), sample_of(row), rule=rule)
        return judged.outcome.value if judged.low is not None else NO_NOISE
    if row["low"] is None or row["high"] is None or (row["runs"] or 0) < MIN_RUNS:
        return NO_NOISE
    inside = row["low"] <= published <= row["high"]
    return f"{INSIDE if inside else OUTSIDE}: {_direction(found.value, published)}"


def _direction(measured: float, published: float) -> str:
    return "equal" if measured == published else "higher" if measured > published else "lower"


class _Finder:
    """Our numbers by what a published figure is of."""

    def __init__(self, material: Material, facts: Published) -> None:
        self._joined = counterpart.Joined(material.by_any_client, material.records, facts)
        specs = {record["spec"]["system"]["name"]: record["spec"] for record in of_stage(material.records, "load")}
        self._versions = {str(name): str(spec["system"].get("version", "")) for name, spec in specs.items()}

    def joint(self, figure: Figure) -> Joint:
        """A figure with what was measured of the same, or why there is none."""
        if reason := counterpart.never(figure):
            return Joint(figure, (), reason)
        found = self._counterparts(figure)
        return Joint(figure, found, "" if found else self._why_none(figure))

    def _counterparts(self, figure: Figure) -> list[Counterpart]:
        if figure.metric in counterpart.DERIVED:
            return self._derived(figure)
        found = [
            Counterpart(
                row["topology"],
                row["system"],
                row["workload"],
                row["value"],
                with_interval(row),
                row,
                self._joined.declared(figure, row),
            )
            for row in self._joined.rows(figure)
        ]
        if figure.metric in ("rows", "dim", "raw_mb"):  # of a dataset: any system that counted it will do
            return found[:1]
        return found

    def _why_none(self, figure: Figure) -> str:
        if figure.metric in counterpart.DERIVED:
            return PARTS_MISSING if counterpart.parts(figure) else counterpart.MADE
        return self._joined.why_none(figure)

    def _derived(self, figure: Figure) -> list[Counterpart]:
        """A ratio or a change: made from the two numbers that it is of."""
        of = counterpart.parts(figure)
        if of is None:
            return []
        alike = _ALIKE.get(figure.place, ("system", "workload"))
        made = []
        for a, b in product(*map(self._joined.rows, of)):
            if not b["value"] or any(a[name] != b[name] for name in alike):
                continue
            ratio = a["value"] / b["value"]
            value = ratio if figure.metric == "load_ratio" else 100 * (ratio - 1)
            shown = f"{value:.2f}" if figure.metric == "load_ratio" else f"{value:+.1f}".replace("-", "−")
            cell = Cell(shown, value, parents=(a["number_id"], b["number_id"]))
            systems = dict.fromkeys((a["system"], b["system"]))
            topologies = dict.fromkeys((a["topology"], b["topology"]))
            made.append(Counterpart(" / ".join(topologies), " / ".join(systems), a["workload"], value, cell))
        return made

    def differences(self, figure: Figure, found: Counterpart) -> str:
        """What is known to differ, apart from the machine."""
        said = [f"storage here: {found.declared}"] if found.declared else []
        row = found.row
        version = self._versions.get(found.system, "")
        if figure.version and version and figure.version != version:
            said.append(f"version {figure.version} there")
        if row is not None and row["phase"] == "query" and row["client"] == "bytes":
            said.append("asked through a client library there")
        if row is not None and row["phase"] == "query" and self._joined.states_no_clients(figure):
            said.append(f"how many clients is not stated there, {int(row['clients'])} here")
        if figure.document == "paper":
            metric = "filtered" if figure.filtered == "1" else figure.metric
            said += _OF_PAPER.get((metric, figure.system), _OF_PAPER.get((metric, ""), []))
            if figure.dataset.startswith("deep-image-96-"):
                said.append("L2 in its Table I, but asked by cosine there, too (finding f051)")
            if figure.topology == "standalone" and figure.ran_on.startswith("cluster"):
                said.append("printed as standalone")
        cpus = None if row is None else self._joined.asked(row).cpus
        if cpus and "cpu=" not in figure.detail:
            said.append(f"a node limited to {cpus:g} cores here")
        if figure.index and row is not None and figure.document != "paper" and figure.detail:
            said.append(f"there {figure.index}, {figure.detail}")
        return "; ".join(said) or "nothing that is known"


_ALIKE = {
    "Table II": ("topology",),
    "Table VII": ("topology", "system", "client", "k", "clients", "ef_search"),
}
"""What two numbers have in common whose ratio stands at a place; at others, the system and the workload."""

_LIBRARY = "through a client library that encodes meanwhile"
_OF_PAPER = {
    ("load_s", "milvus"): ["the time there ends before the index is loaded", f"1,000 rows a batch there, {_LIBRARY}"],
    ("load_s", ""): [f"50 to 200 rows a batch there, by dimensions, {_LIBRARY}"],
    ("load_ratio", ""): [
        "Milvus' time there ends before the index is loaded",
        f"1,000 rows a batch there, and 50 to 200 by dimensions, {_LIBRARY}",
    ],
    ("cpu_avg_pct", ""): ["of the Python client there"],
    ("cpu_peak_pct", ""): ["of the Python client there"],
    ("peak_mem_mb", ""): ["of the Python client there"],
    ("storage_mb", "milvus"): ["a volume with logs and earlier runs there"],
    ("storage_mb", ""): ["MB there"],
    ("filtered", ""): ["most filtered queries carried no filter there"],
}
"""What the audit found of the paper's figures, by metric and engine."""


def _platforms(material: Material) -> Table:
    """What is known of the machines, ours and theirs."""
    ours: dict[str, dict[str, None]] = {}
    for record in of_stage(material.records, "load"):
        for name, value in (record.get("platform") or {}).items():
            if isinstance(value, str | int | float) and not isinstance(value, bool):
                ours.setdefault(str(name), {})[str(value)] = None
    body = [TableRow(("This page",), (Cell("; ".join(f"{name} {' / '.join(of)}" for name, of in ours.items())),))]
    for document, title in DOCUMENTS.items():
        said = [
            f"{figure.metric.removeprefix('spec_')} {figure.value} {figure.unit}".strip()
            for figure in (material.facts.figures if material.facts else ())
            if figure.document == document and figure.metric.startswith("spec_")
        ]
        words = "; ".join(dict.fromkeys(said)) or "states neither processor nor memory of the machine"
        body.append(TableRow((title.partition(":")[0],), (Cell(words),)))
    return Table(
        "M",
        "Machines, ours and theirs",
        "What the records say of this machine, and what the documents state of theirs in numbers.",
        ("Where",),
        (Column("Machine"),),
        tuple(body),
    )
