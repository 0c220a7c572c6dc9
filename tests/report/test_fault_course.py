"""Runs with a fault on the page: a table of what it cost, and latency, failures and recall over their time."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anncestry.features.fault import FEATURE
from anncestry.features.fault.measuring import STEP_S, impact
from anncestry.metrics.latency import over_runs
from anncestry.provenance.records import seal
from anncestry.report.model.cells import Table
from anncestry.report.model.material import Material
from anncestry.report.site import catalogue
from anncestry.report.tables.spec import tables
from tests.builders.fixed_report import lay_out, material_of

MADE_S, MENDED_S, WHOLE_S, END_S = 2.0, 4.0, 5.25, 8.0
LOST = 50


def _run() -> dict[str, Any]:
    """A hundred requests a second of 2 ms; when the fault is made none for a second, then half a second of failures."""
    due_s = np.concatenate([np.arange(0, MADE_S, 0.01), np.arange(3, END_S, 0.01)]) + 0.001
    good = (due_s < 3) | (due_s >= 3.5)
    times = {"kind": "kill", "member": "node2", "made_s": MADE_S, "mended_s": MENDED_S, "whole_s": WHOLE_S}
    return {**times, **impact(due_s, np.full(len(due_s), 2.0), good, times)}


def _recalled() -> list[list[float]]:
    """Recall of each half second: none while nothing was answered, a half until it was mended."""
    steps = [step["from_s"] for step in _run()["steps"] if step["requests"] > step["lost"]]
    return [[at, 0.5 if MADE_S <= at < MENDED_S else 1.0] for at in steps]


def _rewrite(path: Path, **more: Any) -> None:
    record = {name: value for name, value in json.loads(path.read_text()).items() if name != "seal"}
    path.write_text(json.dumps(seal({**record, **more})))


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Material:
    """The fixed records, one cell of which had a fault in each of two runs."""
    monkeypatch.chdir(tmp_path)
    cells = lay_out(tmp_path)
    cell = next(cell for cell in cells if cell.get("workload") == "k10-clients16")
    query, recall = Path(cell["query_path"]), Path(cell["recall_path"])
    runs = [_run(), _run()]
    seen = {name: over_runs([float(run[name]) for run in runs]) for name in ("lost", "silence_s")}
    seen |= {"recovered_s": over_runs([math.nan, 1.5]), "whole_s": over_runs([1.25, 1.25])}
    _rewrite(query, fault={**seen, "runs": runs})
    inputs = json.loads(recall.read_text())["inputs"]
    inputs["query"]["sha256"] = hashlib.sha256(query.read_bytes()).hexdigest()
    fault = {"recall_during": over_runs([0.5, 0.5]), "over_time": [_recalled(), _recalled()]}
    _rewrite(recall, inputs=inputs, fault=fault)
    return material_of(cells)


def _tables(material: Material) -> list[Table]:
    assert FEATURE.table is not None
    return tables(FEATURE.table, material)


def _layers(material: Material) -> dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
    """Of each figure the marks and the points of its one panel."""
    found = {}
    for figure in FEATURE.figures(material):
        (panel,) = figure.panels
        marks, lines = (layer["data"]["values"] for layer in panel.spec["layer"])
        found[figure.name] = (marks, lines)
    return found


def test_the_table_says_what_a_fault_cost(faulty: Material) -> None:
    (table,) = _tables(faulty)
    (row,) = table.rows
    cells = dict(zip((column.label for column in table.columns), row.cells, strict=True))
    assert row.labels[2] == "k10-clients16"
    assert cells["Requests that failed"].value == LOST and cells["Whole again after"].value == 1.25
    assert cells["Longest silence"].value == pytest.approx(1.5, abs=0.02), (
        "nothing was asked, then nothing was answered"
    )
    assert cells["Recall while it lasted"].value == 0.5
    assert all(cell.number_id for cell in row.cells)
    assert cells["Recovered after"].value is None and cells["Recovered after"].text == "not within each run"


def test_latency_failures_and_recall_are_drawn_from_the_fault_on_with_what_happened(faulty: Material) -> None:
    layers = _layers(faulty)
    assert set(layers) == {"fault-latency", "fault-errors", "fault-recall"}
    for marks, lines in layers.values():
        assert {mark["event"]: mark["at_s"] for mark in marks} == {"made": 0.0, "mended": 2.0, "whole again": 3.25}
        assert {line["run"] for line in lines} == {1, 2}
        assert min(line["at_s"] for line in lines) == -MADE_S
        assert max(line["at_s"] for line in lines) == END_S - MADE_S - STEP_S
    latency, errors, recall = (
        {line["at_s"]: line["value"] for line in layers[name][1]}
        for name in ("fault-latency", "fault-errors", "fault-recall")
    )
    assert {round(value, 6) for value in latency.values()} == {2.0}
    assert {at: lost for at, lost in errors.items() if lost} == {1.0: LOST}
    assert {at for at, value in recall.items() if value == 0.5} == {1.5}


def test_a_line_is_interrupted_where_nothing_was_answered(faulty: Material) -> None:
    for name in ("fault-latency", "fault-recall"):
        lines = [line for line in _layers(faulty)[name][1] if line["run"] == 1]
        assert not any(0 <= line["at_s"] < 1.5 for line in lines)
        before, after = ({line["series"] for line in lines if (line["at_s"] < 0) is early} for early in (True, False))
        assert len(before) == len(after) == 1 and before != after


def test_points_lead_to_a_number_of_the_fault(faulty: Material) -> None:
    rows = {row["number_id"]: row["metric"] for row in faulty.rows}
    leads = {name: {rows[line["number_id"]] for line in lines} for name, (_, lines) in _layers(faulty).items()}
    assert leads == {
        "fault-latency": {"fault_silence_s"},
        "fault-errors": {"fault_lost"},
        "fault-recall": {"recall_by_distance"},
    }


def test_pages_without_a_fault_have_neither(faulty: Material) -> None:
    plain = faulty.numbers[~faulty.numbers["metric"].str.startswith("fault_")]
    without = replace(faulty, numbers=plain)
    assert _tables(without) == [] and FEATURE.figures(without) == []
    names = [table.number for _, of_group in catalogue.tables_of(faulty) for table in of_group]
    assert len(names) == len(set(names)) and "T" in names


def test_the_axis_of_failures_has_a_length_and_whole_numbers_even_where_none_failed(faulty: Material) -> None:
    (panel,) = next(figure for figure in FEATURE.figures(faulty) if figure.name == "fault-errors").panels
    y = panel.spec["layer"][1]["encoding"]["y"]
    assert (y["scale"]["domainMin"], y["scale"]["domainMax"]) == (0, max(1, LOST)) and y["axis"]["tickMinStep"] == 1
