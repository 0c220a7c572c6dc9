"""Independent builds of one load: cells of their own, spread apart, and the noise floor that they show."""

from __future__ import annotations

import os
import subprocess
import sys

import pandas as pd
import pytest

from anncestry import workflow
from anncestry.report.model import noise, numbers
from tests.toy import ROOT, Toy


@pytest.fixture
def toy(tmp_path):
    """One cell, built three times."""
    toy = Toy.make(tmp_path / "toy")
    toy.one_cell()
    toy.block["rebuilds"] = 3
    toy.save()
    return toy


def expand(toy: Toy):
    return workflow.expand(workflow.Choice(toy.folder / "config", "default"))


def test_rebuilds_are_loads_and_cells_of_their_own_and_the_first_keeps_its_keys(toy):
    built = expand(toy).cells
    assert [cell.rebuild for cell in built] == [1, 2, 3]
    for key in ("load", "query", "recall"):
        assert len({getattr(cell, key) for cell in built}) == 3
    for key in ("vectors", "truth", "artifact"):
        assert len({getattr(cell, key) for cell in built}) == 1
    del toy.block["rebuilds"]
    toy.save()
    (alone,) = expand(toy).cells
    assert alone == built[0]


def test_an_experiment_with_rebuilds_shows_their_spread_and_leaves_a_floor_for_compare(toy):
    assert toy.jobs() == {
        "artifact": 1, "download": 1, "normalize": 1, "truth": 1, "load": 3, "record": 3, "session": 6, "query": 3,
        "recall": 3, "table": 1, "report": 1, "all": 1,
    }  # fmt: skip
    toy.snakemake()
    matrix = expand(toy)
    frame = numbers.read((toy.folder / matrix.table_path).parent)
    p50 = frame[frame["metric"] == "p50_ms"]
    assert p50["rebuild"].tolist() == [1, 2, 3]
    assert set(p50["rebuilds"]) == {3}
    assert p50["rebuild_mean"].iloc[0] == pytest.approx(p50["value"].mean())
    assert p50["rebuild_std"].iloc[0] == pytest.approx(p50["value"].std(ddof=1))
    floors = noise.measured(toy.folder / "results", "default")
    assert floors["p50_ms"].relative == pytest.approx(
        max(abs(b / a - 1) for i, a in enumerate(p50["value"]) for b in p50["value"].iloc[i + 1 :])
    )
    assert floors["recall_by_id"].relative == 0.0
    assert noise.measured(toy.folder / "results", "another machine") == {}
    page = (toy.folder / "reports" / "default" / "index.html").read_text()
    assert str(p50["number_id"].iloc[0]) in page
    assert toy.jobs() == {}
    done = subprocess.run(
        [sys.executable, "-m", "anncestry", "verify"], cwd=toy.folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "ANNCESTRY_CONFIG": str(toy.folder / "config")},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def frame(values: dict[int, float | None], metric: str = "p50_ms") -> pd.DataFrame:
    row = {"dataset": "d", "system": "s", "topology": "t", "workload": "w", "phase": "query", "metric": metric}
    return pd.DataFrame([{**row, "rebuild": rebuild, "value": value} for rebuild, value in values.items()])


def test_a_floor_is_the_largest_difference_of_any_two_builds():
    found = noise.floors(frame({1: 1.0, 2: 1.1, 3: 0.9}))
    assert found["p50_ms"].relative == pytest.approx(1 - 0.9 / 1.1)
    assert "3 numbers measured twice" in str(found["p50_ms"])


def test_one_build_or_a_number_that_is_missing_says_nothing_of_noise():
    for values in ({1: 1.0}, {1: 1.0, 2: None}):
        assert noise.floors(frame(values)) == {}
