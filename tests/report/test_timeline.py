"""What a server used over a load: the chart says what the samples say, and only those that the record was made with."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anncestry.errors import DataError
from anncestry.provenance.records import sha256_file
from anncestry.report.charts import over_time
from tests.builders.fixed_report import lay_out, material_of

INSERT_S, INDEX_S = 8.0, 2.0


def _sampled(folder: Path) -> dict:
    """A load of 10 s from 100 s on: 50 % of a core while inserting, 200 % while indexing, 1 MiB more a second."""
    at = [99.0 + 0.5 * n for n in range(25)]
    cpu = [0.5 * min(max(t - 100, 0), INSERT_S) + 2 * min(max(t - 100 - INSERT_S, 0), INDEX_S) for t in at]
    file = folder / "load.resources.parquet"
    columns = {"at_s": at, "cpu_s": cpu, "rss_mib": [t - 99 for t in at], "io_read_mib": [0.0] * 25}
    table = pa.table({**columns, "io_write_mib": [0.0] * 25, "group": ["server"] * 25})
    pq.write_table(pa.concat_tables([table, table.set_column(5, "group", pa.array(["client"] * 25))]), file)
    return {
        "outputs": {"resources": {"path": file.name, "sha256": sha256_file(file)}},
        "phases": [["insert", 100.0, 100.0 + INSERT_S], ["index", 100.0 + INSERT_S, 110.0]],
    }


def test_each_point_is_of_the_time_since_the_one_before(tmp_path: Path) -> None:
    points = over_time.load_points(tmp_path / "load.json", _sampled(tmp_path))
    assert len(points) <= over_time.LOAD_POINTS + 1
    assert (points[0]["at_s"], points[-1]["at_s"]) == (0.0, pytest.approx(INSERT_S + INDEX_S))
    for before, point in pairwise(points):
        assert point["rss_peak_mib"] == pytest.approx(1 + point["at_s"])
        if point["at_s"] <= INSERT_S or before["at_s"] >= INSERT_S:
            assert point["cpu_avg_pct"] == pytest.approx(50 if point["at_s"] <= INSERT_S else 200)


def test_samples_of_another_load_are_refused_and_those_that_are_not_here_left_out(tmp_path: Path) -> None:
    record = _sampled(tmp_path)
    file = tmp_path / "load.resources.parquet"
    file.write_bytes(file.read_bytes() + b"x")
    with pytest.raises(DataError, match=r"load\.resources\.parquet: not the samples"):
        over_time.load_points(tmp_path / "load.json", record)
    file.unlink()
    assert over_time.load_points(tmp_path / "load.json", record) == []


def test_a_chart_has_the_lines_of_its_systems_and_where_their_phases_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    whole = material_of(lay_out(tmp_path))
    assert over_time.of_loads(whole) == []
    chosen = {
        row["record"]: row["number_id"]
        for row in whole.rows
        if row["metric"] == "cpu_avg_pct" and row["phase"] == "load" and row["value"] is not None
    }
    path = next(iter(chosen))
    sampled = _sampled(Path(path).parent)
    figures = over_time.of_loads(replace(whole, records={**whole.records, path: {**whole.records[path], **sampled}}))
    assert [figure.name for figure in figures] == ["load-processor", "load-memory"]
    (panel,) = figures[0].panels
    rules, lines, *_ = (layer["data"]["values"] for layer in panel.spec["layer"])
    assert [(mark["phase"], mark["at_s"]) for mark in rules] == [("insert", 0.0), ("index", INSERT_S)]
    assert {mark["number_id"] for mark in lines + rules} == {chosen[path]}
    assert max(mark["value"] for mark in lines) == pytest.approx(200)
