"""Independent builds of one load: cells of their own, spread apart, and the noise floor that they show."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from anncestry import workflow
from anncestry.metrics.decide import Outcome, Verdict
from anncestry.report.model import noise, numbers
from anncestry.report.model.verdicts import Verdicts
from tests.builders.world import World
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


@pytest.mark.long
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
    assert floors["p50_ms"].relative == pytest.approx(p50["value"].max() / p50["value"].min() - 1)
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
    assert found["p50_ms"].relative == pytest.approx(1.1 / 0.9 - 1)
    assert "3 numbers measured twice" in str(found["p50_ms"])


def test_a_floor_is_the_same_whichever_of_two_is_named_first():
    assert noise.floors(frame({1: 50.0, 2: 100.0})) == noise.floors(frame({1: 100.0, 2: 50.0}))
    floor = noise.Floor(0.35, "between builds")
    assert not floor.hides(100, 70) and not floor.hides(70, 100)
    assert floor.hides(100, 75) and floor.hides(75, 100)
    assert floor.hides(0, 0) and not floor.hides(0, 1) and not floor.hides(-0.1, 0.1)


def test_one_build_or_a_number_that_is_missing_says_nothing_of_noise():
    for values in ({1: 1.0}, {1: 1.0, 2: None}):
        assert noise.floors(frame(values)) == {}


def test_the_speed_of_the_machine_is_told_by_what_the_same_work_cost_the_clients_in_each_round():
    def cell(*costs):
        return {"rounds": [{"cpu_us_per_query": cost} for cost in costs]}

    steady, swinging = cell(50.0, 50.0, 50.0), cell(100.0, 100 * math.exp(0.2))
    assert noise.speed_percent([steady]) == 0
    assert noise.speed_percent([swinging]) == pytest.approx(100 * 0.2 / math.sqrt(2))
    # Three rounds have two degrees of freedom, two rounds one; what differs between cells is no speed of the machine.
    assert noise.speed_percent([steady, swinging]) == pytest.approx(100 * math.sqrt(0.2**2 / 2 / 3))
    for unknown in ([], [cell(50.0)], [cell(None, None)], [{}]):
        assert noise.speed_percent(unknown) is None


# Under the verdicts of a page


def test_no_difference_within_the_floor_of_builds_is_one_and_nothing_is_equivalent_below_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    world = World()
    rows = numbers.rows_of(world.tidy())
    records = {row["record"]: json.loads(Path(row["record"]).read_text()) for row in rows}
    free, same = Verdicts(rows, records), {"p50_ms": noise.Floor(0.9, "between builds")}
    decided = [ids for ids, (a, _, verdict) in free.of_systems.items() if a["metric"] == "p50_ms" and verdict.decided]
    others = [ids for ids, (a, _, verdict) in free.of_systems.items() if a["metric"] == "qps" and verdict.decided]
    assert decided and others
    bound = Verdicts(rows, records, noise=noise.Noise(of_metric=same))
    for ids in decided:
        _, _, verdict = bound.of_systems[ids]
        assert verdict.outcome is Outcome.UNDETERMINED
        assert "but within 90.0 % between builds" in verdict.note
    assert all(bound.of_systems[ids][2].decided for ids in others), "the floor is of one metric"
    a, b, _ = free.of_systems[decided[0]]
    assert free.wins(a, b, lower=True) or free.wins(b, a, lower=True)
    assert not bound.wins(a, b, lower=True) and not bound.wins(b, a, lower=True)
    alike = Verdict(Outcome.EQUIVALENT, low=-0.01, high=0.01, noise="runs")
    floor = noise.Floor(0.06, "between builds")
    assert noise.above(alike, floor, 1.0, 1.0, 0.05).outcome is Outcome.UNDETERMINED
    assert noise.above(alike, floor, 1.0, 1.0, 0.1).outcome is Outcome.EQUIVALENT
