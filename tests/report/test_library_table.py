"""What a server costs over a library: ratios with intervals, and only of the same index and ef."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anncestry.metrics.decide import Sample, ratio_interval
from anncestry.report.model.cells import Row, Table
from anncestry.report.model.material import Material
from anncestry.report.model.numbers import frame, rows_of
from anncestry.report.tables import usage
from tests.builders.fixed_report import lay_out, material_of

SERVER, OTHER = "milvus-2.3.5", "weaviate-1.27.0"
NAME = "hnswlib-0.8.0-library"


@pytest.fixture
def whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Material:
    monkeypatch.chdir(tmp_path)
    return material_of(lay_out(tmp_path))


def _beside(whole: Material, name: str = NAME, role: str = "library", **index: Any) -> Material:
    """The material with one of its servers as a library called `name`; its loads' index changed by `index`."""
    # A library has one topology: it is no cluster.
    rows = [row for row in rows_of(whole.numbers) if row["system"] != OTHER or row["topology"] == "standalone"]
    records = json.loads(json.dumps(whole.records))
    for path in {row["record"] for row in rows if row["system"] == OTHER and row["record"] in records}:
        if records[path]["stage"] == "load":
            records[path]["spec"]["index"].update(index)
            records[path]["server"]["members"] = {"it": {"role": role}}
    renamed = frame([{**row, "system": name if row["system"] == OTHER else row["system"]} for row in rows])
    return replace(whole, numbers=renamed, records=records)


def _number(material: Material, system: str, labels: tuple[str, ...], metric: str) -> Row:
    dataset, topology, workload, *_ = labels
    place = {"dataset": dataset, "topology": topology, "workload": workload, "system": system, "metric": metric}
    return next(row for row in material.rows if all(row[name] == value for name, value in place.items()))


def _table(material: Material) -> Table:
    (table,) = usage.over_libraries(material)
    return table


def test_there_is_no_table_without_a_library(whole: Material) -> None:
    assert usage.over_libraries(whole) == []


def test_a_library_is_known_by_its_record_whatever_its_name(whole: Material) -> None:
    assert {row.labels[3:] for row in _table(_beside(whole, name="faiss-1.15.1-flat")).rows} == {
        (SERVER, "faiss-1.15.1-flat")
    }
    assert usage.over_libraries(_beside(whole, name="my-library", role="server")) == []


def test_each_ratio_is_that_of_the_two_numbers_it_names_and_lies_in_its_interval(whole: Material) -> None:
    material = _beside(whole)
    row = next(row for row in _table(material).rows if row.labels[2] == "k10")
    assert row.labels[3:] == (SERVER, NAME)
    for cell, metric in zip(row.cells, ("qps", "p50_ms", "p99_ms"), strict=False):
        ours, theirs = (_number(material, system, row.labels, metric) for system in (SERVER, NAME))
        assert cell.value == pytest.approx(ours["value"] / theirs["value"])
        assert cell.parents == (ours["number_id"], theirs["number_id"])
        value, low, high = map(float, re.findall(r"[\d.]+", cell.text))
        assert low < value < high


@pytest.mark.parametrize("index", [{"M": 32}, {"ef_construction": 77}])
def test_another_index_is_never_set_against_a_server(whole: Material, index: dict[str, int]) -> None:
    for row in _table(_beside(whole, **index)).rows:
        assert {(cell.text, cell.value) for cell in row.cells[:3]} == {(usage.OTHER_INDEX, None)}


def test_the_interval_of_a_ratio_has_its_coverage() -> None:
    rng = np.random.default_rng(7)
    held = 0
    for _ in range(2000):
        a, b = rng.normal(30, 1.5, 5), rng.normal(10, 0.5, 5)
        low, high = ratio_interval(*(Sample(float(v.mean()), float(v.std(ddof=1)), 5) for v in (a, b)))
        held += low <= 3.0 <= high
    assert 0.935 <= held / 2000 <= 0.97


def test_a_ratio_without_noise_or_of_nothing_has_no_interval() -> None:
    assert ratio_interval(Sample(2, 0.1, 2), Sample(1, 0.1, 5)) is None
    assert ratio_interval(Sample(0, 0.1, 5), Sample(1, 0.1, 5)) is None
