"""What server and client used over runs of queries: the chart says what the samples say, and where it was steady."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anncestry.errors import DataError
from anncestry.provenance.records import sha256_file
from anncestry.report.charts import over_time
from anncestry.report.model.material import Material
from anncestry.report.tables import usage
from tests.builders.fixed_report import lay_out, material_of

CPU = {"server": 2.0, "client": 0.25}
RUN_S = 6.0
STARTS_S = (100.0, 500.0)


def _sampled(path: Path, run_s: float = RUN_S) -> dict[str, Any]:
    """Two runs: the server keeps two cores busy and the client a quarter of one; the server grows by 10 MiB a second.

    The first is steady after two seconds, the second never.
    """
    rows = []
    for run, start in enumerate(STARTS_S):
        for group, cores in CPU.items():
            for n in range(int(run_s / 0.25) + 3):
                at = start - 0.25 + 0.25 * n
                memory = 10 * (at - start) + 100 if group == "server" else 30.0
                rows.append({"at_s": at, "group": group, "cpu_s": cores * (at - start), "rss_mib": memory, "run": run})
    file = path.with_name(f"{path.stem}.resources.parquet")
    nothing = {"io_read_mib": 0.0, "io_write_mib": 0.0}
    pq.write_table(pa.Table.from_pylist([{**row, **nothing} for row in rows]), file)
    return {
        "outputs": {"resources": {"path": file.name, "sha256": sha256_file(file)}},
        "windows_s": [[start, start + run_s] for start in STARTS_S],
        "steadiness": {"steady_after_s": {"value": None, "std": None, "runs": [2.0, None]}},
    }


@pytest.fixture
def whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Material:
    monkeypatch.chdir(tmp_path)
    return material_of(lay_out(tmp_path))


def _with(whole: Material, workloads: tuple[str, ...], **more: Any) -> Material:
    """The material with samples beside the records of these workloads, of one system, dataset and topology."""
    first = next(row for row in whole.rows if row["metric"] == "cpu_avg_pct" and row["phase"] == "query")
    names = ("dataset", "system", "topology")
    records = dict(whole.records)
    for row in whole.rows:
        here = all(row[name] == first[name] for name in names) and row["workload"] in workloads
        if here and row["metric"] == "cpu_avg_pct" and row["value"] is not None:
            records[row["record"]] = {**records[row["record"]], **_sampled(Path(row["record"])), **more}
    return replace(whole, records=records)


def _lines(whole: Material) -> list[dict[str, Any]]:
    (panel,) = over_time.of_queries(whole)[0].panels
    # Where nothing was steady there is one layer only, and its data are those of the chart.
    return list((panel.spec.get("data") or panel.spec["layer"][0]["data"])["values"])


def test_each_run_has_a_line_of_server_and_client_that_says_what_was_sampled(whole: Material) -> None:
    lines = _lines(_with(whole, ("k10-clients16",)))
    for group, cores in CPU.items():
        for run in (1, 2):
            points = [mark for mark in lines if (mark["group"], mark["run"]) == (group, run)]
            assert {round(mark["value"], 6) for mark in points} == {100 * cores}
            assert (points[0]["at_s"], points[-1]["at_s"]) == (0.0, pytest.approx(RUN_S))
            assert len({mark["at_s"] for mark in points}) <= over_time.RUN_POINTS + 1


def test_marks_lead_to_the_number_of_their_group(whole: Material) -> None:
    marks = {mark["group"]: mark["number_id"] for mark in _lines(_with(whole, ("k10-clients16",)))}
    rows = {row["number_id"]: row for row in whole.rows}
    assert {group: rows[name]["metric"] for group, name in marks.items()} == {
        "server": "cpu_avg_pct",
        "client": "client_cpu_avg_pct",
    }


def test_only_what_was_steady_is_drawn_in_full_and_its_beginning_is_marked(whole: Material) -> None:
    material = _with(whole, ("k10-clients16",))
    lines = _lines(material)
    assert {mark["opacity"] for mark in lines if mark["run"] == 2} == {over_time.PALE}
    steady = [mark["at_s"] for mark in lines if mark["run"] == 1 and mark["opacity"] == 1]
    unsteady = [mark["at_s"] for mark in lines if mark["run"] == 1 and mark["opacity"] < 1]
    assert (min(steady), max(unsteady), max(steady)) == (2.0, 2.0, RUN_S)
    (panel,) = over_time.of_queries(material)[0].panels
    assert [(mark["run"], mark["at_s"]) for mark in panel.spec["layer"][1]["data"]["values"]] == [(1, 2.0)]


def test_a_search_for_a_rate_is_never_called_steady(whole: Material) -> None:
    lines = _lines(_with(whole, ("k10-clients16",), probes=[]))
    assert {mark["opacity"] for mark in lines} == {over_time.PALE}


def test_memory_is_drawn_beside(whole: Material) -> None:
    figures = over_time.of_queries(_with(whole, ("k10-clients16",)))
    assert [figure.name for figure in figures] == ["query-processor", "query-memory"]
    marks = figures[1].panels[0].spec["layer"][0]["data"]["values"]
    assert max(mark["value"] for mark in marks) == pytest.approx(100 + 10 * RUN_S)


def test_the_same_workload_on_two_topologies_has_one_axis_of_time_and_of_value(whole: Material) -> None:
    records = dict(whole.records)
    lengths_s = {"standalone": RUN_S, "cluster-3": 2 * RUN_S}
    for row in whole.rows:
        asked = (row["dataset"], row["workload"], row["phase"]) == ("sift-128-euclidean", "k10-clients16", "query")
        if asked and row["metric"] == "cpu_avg_pct" and row["value"] is not None:
            sampled = _sampled(Path(row["record"]), lengths_s[row["topology"]])
            records[row["record"]] = {**records[row["record"]], **sampled}
    for figure in over_time.of_queries(replace(whole, records=records)):
        assert len(figure.panels) == 2
        one, several = (panel.spec["layer"][0]["encoding"] for panel in figure.panels)
        assert one["x"]["scale"]["domain"] == several["x"]["scale"]["domain"] == [0, pytest.approx(2 * RUN_S)]
        assert one["y"]["scale"]["domain"] == several["y"]["scale"]["domain"]


def test_of_many_workloads_those_with_the_most_clients_are_drawn(whole: Material) -> None:
    (figure, _) = over_time.of_queries(_with(whole, ("k10", "k10-clients1", "k10-clients4", "k10-clients8")))
    assert [panel.heading.rpartition(" · ")[2] for panel in figure.panels] == ["k10-clients8", "k10-clients4"]


def test_what_is_too_short_or_not_here_is_left_out(whole: Material) -> None:
    assert over_time.of_queries(whole) == []
    material = _with(whole, ("k10-clients16",))
    path = next(path for path, record in material.records.items() if "windows_s" in record)
    short = {**material.records[path], "windows_s": [[100.0, 100.0 + 0.9 * over_time.SHORTEST_S], [500.0, 506.0]]}
    assert over_time.run_courses(Path(path), short) == []
    file = Path(path).with_name(f"{Path(path).stem}.resources.parquet")
    file.write_bytes(file.read_bytes() + b"x")
    with pytest.raises(DataError, match="not the samples"):
        over_time.run_courses(Path(path), material.records[path])
    file.unlink()
    assert over_time.of_queries(material) == []


def test_the_table_has_every_workload(whole: Material) -> None:
    (table,) = usage.during_queries(whole)
    asked = {(row["dataset"], row["topology"], row["workload"]) for row in whole.rows if row["phase"] == "query"}
    assert {row.labels for row in table.rows} == asked
    assert {column.group for column in table.columns} == {
        "Server, CPU a query", "Client, CPU a query", "Server, PSS", "Server, anonymous",
        "Server, processor", "Client, processor", "Server, memory", "Client, memory",
    }  # fmt: skip
