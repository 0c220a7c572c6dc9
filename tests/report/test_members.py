"""What each member of a server used: the chart and the table say what was sampled of it, and add up to the server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anncestry.metrics import resources
from anncestry.provenance.records import seal, sha256_file
from anncestry.report.charts import COLOURS, Figure, over_time
from anncestry.report.model.cells import Table
from anncestry.report.model.material import Material
from anncestry.report.tables import usage
from tests.builders.fixed_report import lay_out, material_of

CORES = {"etcd": 0.1, "node1": 1.5, "node2": 0.5, "node10": 0.25}
MIB = {"etcd": 50.0, "node1": 300.0, "node2": 200.0, "node10": 100.0}
START_S, LENGTH_S = 100.0, 6.0


def _samples(*runs: int) -> list[dict[str, Any]]:
    """Of each run: members that keep so many cores busy, hold so much memory and write 1 MiB a second each."""
    rows = []
    for run in runs:
        for n in range(int(LENGTH_S / 0.25) + 3):
            at = START_S + 0.25 * (n - 1)
            used = {f"server/{name}": (CORES[name] * (1 + run) * (at - START_S), MIB[name]) for name in CORES}
            used["server"] = (sum(cpu for cpu, _ in used.values()), sum(MIB.values()))
            used |= {group: (0.0, 30.0) for group in ("client", "host", "steal")}
            rows += [
                {"at_s": at, "group": group, "cpu_s": cpu, "rss_mib": mib, "run": run, "io_read_mib": 0.0}
                | {"io_write_mib": (at - START_S) * (1 if "/" in group else len(CORES))}
                for group, (cpu, mib) in used.items()
            ]
    return rows


def _written(path: str, *runs: int) -> None:
    """The record at `path` as if its server had these members, with samples beside it."""
    record = json.loads(Path(path).read_text())
    file = Path(path).with_name(f"{Path(path).stem}.resources.parquet")
    table = pa.Table.from_pylist(_samples(*runs))
    pq.write_table(table, file)
    window = (START_S, START_S + LENGTH_S)
    record["outputs"] = {"resources": {"path": file.name, "sha256": sha256_file(file)}}
    if record["stage"] == "load":
        record["phases"] = [["insert", *window]]
        record["resources"] = resources.by_group(table, {"load": [window], "insert": [window]})
    else:
        record["windows_s"] = [window for _ in runs]
        record["resources"] = resources.over_runs(table, "query", record["windows_s"])
        record["steadiness"] = {"steady_after_s": {"value": None, "std": None, "runs": [None for _ in runs]}}
    Path(path).write_text(json.dumps(seal({name: value for name, value in record.items() if name != "seal"})))


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory):
    """A load and its queries of 16 clients and of one, of a server of four members; all others as they were."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("members"))
        cells: list[dict[str, Any]] = [{**cell, "recall_path": None} for cell in lay_out(Path())]
        first = next(
            cell for cell in cells if cell["workload"] == "k10-clients16" and Path(cell["query_path"]).exists()
        )
        _written(first["load_path"], 0)
        of_first = [cell for cell in cells if cell["load_path"] == first["load_path"]]
        for cell in of_first:
            if cell["workload"] in ("k10-clients16", "k10-clients8", "k10-clients1"):
                _written(cell["query_path"], 0, 1)
        yield material_of(cells)  # samples are looked for from here


@pytest.fixture(scope="module")
def figures(material: Material) -> dict[str, Figure]:
    return {figure.name: figure for figure in over_time.of_members(material)}


@pytest.fixture(scope="module")
def table(material: Material) -> Table:
    (table,) = usage.of_members(material)
    return table


def _marks(figure: Figure, place: int = 0) -> list[dict[str, Any]]:
    return list(figure.panels[place].spec["data"]["values"])


def test_a_chart_has_a_line_for_each_member_that_says_what_was_sampled_of_it(figures: dict[str, Figure]) -> None:
    marks = _marks(figures["load-members-processor"])
    for member, cores in CORES.items():
        points = [mark for mark in marks if mark["member"] == member]
        assert {round(mark["value"], 6) for mark in points} == {100 * cores}
        assert (points[0]["at_s"], points[-1]["at_s"]) == (0.0, pytest.approx(LENGTH_S))
    memory = _marks(figures["load-members-memory"])
    assert {(mark["member"], mark["value"]) for mark in memory} == set(MIB.items())


def test_queries_are_drawn_of_the_last_run_and_of_the_workloads_with_the_most_clients(
    figures: dict[str, Figure],
) -> None:
    figure = figures["query-members-processor"]
    assert sorted(panel.heading.rpartition(" · ")[2] for panel in figure.panels) == ["k10-clients16", "k10-clients8"]
    assert {(mark["member"], round(mark["value"], 6)) for mark in _marks(figure)} == {
        (member, 200 * cores) for member, cores in CORES.items()
    }


def test_a_mark_leads_to_the_number_of_its_member(material: Material, figures: dict[str, Figure]) -> None:
    metric = {row["number_id"]: row["metric"] for row in material.rows}
    for name, of in (("load-members-memory", "rss_peak_mib"), ("query-members-processor", "cpu_avg_pct")):
        assert {metric[mark["number_id"]] for mark in _marks(figures[name])} == {f"{of}[{member}]" for member in CORES}
        assert all(metric[mark["number_id"]] == f"{of}[{mark['member']}]" for mark in _marks(figures[name]))


def test_members_differ_by_colour_in_the_order_of_their_numbers(figures: dict[str, Figure]) -> None:
    colour = figures["load-members-processor"].panels[0].spec["encoding"]["color"]
    assert colour["scale"]["domain"] == ["etcd", "node1", "node2", "node10"]
    assert colour["scale"]["range"] == list(COLOURS[:4])


def test_members_of_two_servers_of_a_dataset_have_one_axis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cells: list[dict[str, Any]] = [{**cell, "recall_path": None} for cell in lay_out(tmp_path)]
    loads = sorted({cell["load_path"] for cell in cells if cell["dataset"].startswith("sift")})[:2]
    for path, run in zip(loads, (0, 1), strict=True):  # the second keeps twice as many cores busy
        _written(path, run)
    figure = next(figure for figure in over_time.of_members(material_of(cells)) if figure.name.startswith("load-"))
    one, other = (panel.spec["encoding"]["y"]["scale"]["domain"] for panel in figure.panels)
    assert one == other == [0, pytest.approx(2 * 100 * max(CORES.values()))]


def test_the_table_has_a_row_a_member_and_they_add_up_to_the_server(material: Material, table: Table) -> None:
    assert [row.labels[3:] for row in table.rows if row.labels[3] == "load"] == [
        ("load", member) for member in ("etcd", "node1", "node2", "node10")
    ]
    first = table.rows[0].labels
    rows = [row for row in material.rows if [row[name] for name in ("dataset", "topology", "system")] == [*first[:3]]]
    for workload in ("load", "k10-clients16"):
        of = [row.cells for row in table.rows if row.labels[3] == workload]
        for place, metric in ((0, "cpu_avg_pct"), (3, "io_write_mib")):
            whole = next(
                row["value"] for row in rows
                if row["metric"] == metric and (row["workload"] or row["phase"]) == workload
            )  # fmt: skip
            assert sum(cells[place].value or 0 for cells in of) == pytest.approx(whole)


def test_servers_of_one_member_have_neither_chart_nor_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: Table
) -> None:
    assert len({row.labels[:3] for row in table.rows}) == 1
    monkeypatch.chdir(tmp_path)
    whole = material_of(lay_out(tmp_path))
    assert usage.of_members(whole) == [] and over_time.of_members(whole) == []
