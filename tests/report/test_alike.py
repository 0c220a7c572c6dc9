"""What stands side by side was asked alike: the same effort, workload, limits and loop; or the page says not."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from anncestry.metrics.decide import Outcome, Rule, Verdict
from anncestry.metrics.duet import Ratio
from anncestry.report.model.cells import NO_CELL, Table, text_of
from anncestry.report.model.highlights import highlights
from anncestry.report.model.material import Material
from anncestry.report.model.noise import Floor, Noise
from anncestry.report.model.verdicts import Verdicts
from anncestry.report.site import page
from anncestry.report.tables import effort, everyone, glance, spec
from anncestry.report.tables.spec import OTHER_EFFORT
from anncestry.report.tables.standard import tables
from tests.builders.world import World

MILVUS, WEAVIATE = "milvus-2.3.5", "weaviate-1.27.0"
Record = dict[str, Any]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.chdir(tmp_path)
    return World({"random-xs-20-angular": ("cosine", 9000, 20)})


def material_of(world: World) -> Material:
    df = world.tidy()
    paths = [path for path in df["record"].unique() if Path(path).exists()]
    return Material(df, {path: json.loads(Path(path).read_text()) for path in paths})


def edited(world: World, workload: str, edit: Callable[[Record], object]) -> Material:
    """The material once the query records of a workload are edited, those of all systems."""
    for cell in world.cells:
        if cell["workload"] == workload:
            world.edit(cell["query_path"], edit)
    return material_of(world)


def table(built: list[Table], number: str) -> Table:
    return next(each for each in built if each.number == number)


def test_what_a_filter_costs_is_told_of_queries_of_the_same_effort_only(world: World) -> None:
    of_filter = table(tables(material_of(world)), "VII").rows
    assert all(len(row.cells[2].parents) == 2 for row in of_filter)
    of_filter = table(tables(edited(world, "k10-category30", lambda record: record.update(ef_search=64))), "VII").rows
    (cost,) = {(row.cells[0].text, row.cells[2].text) for row in of_filter if row.labels[-3] == "10"}
    assert cost == (OTHER_EFFORT, NO_CELL)
    assert all(row.cells[2].parents for row in of_filter if row.labels[-3] == "100")


def test_a_cold_start_is_in_its_own_table_and_in_none_of_ordinary_loops(world: World) -> None:
    def cold(record: Record) -> None:
        record["cold"] = {"searchable_s": 2.5, "first_ms": 9.0, "resident_share": 0.1}

    before = {each.number for each in tables(material_of(world))}
    material = edited(world, "k10", cold)
    shown = tables(material)
    assert {"IV", "VI", "VIII"} <= before and "IV" not in {each.number for each in shown}
    of = {row["number_id"]: row["workload"] for row in material.rows}
    assert "k10" not in {of.get(cell.number_id) for each in shown for row in each.rows for cell in row.cells}
    (own,) = spec.of_features(material)
    assert (own.number, [row.labels[2:] for row in own.rows]) == ("CS", [("k10", MILVUS), ("k10", WEAVIATE)])
    assert own.rows[0].cells[0].text == "2.50"


@pytest.fixture
def two_of_sixteen(world: World) -> Material:
    """A second workload of sixteen clients, which has more answers in a second, at a lower effort."""

    def second(record: Record) -> None:
        record["spec"]["workload"]["clients"] = 16
        record["ef_search"] = 64
        entry = record["summary"]["qps"]
        entry.update({name: entry[name] * 10 for name in ("value", "low", "high")})

    for cell in world.cells:
        world.edit(cell["query_path"], lambda record: record.update(ef_search=200))
    return edited(world, "k10-clients8", second)


def test_at_a_glance_all_systems_have_the_same_workload_of_the_greatest_effort(two_of_sixteen: Material) -> None:
    shown = highlights(two_of_sixteen.first_rows, {})
    assert [item.qps["workload"] for item in shown if item.qps] == ["k10-clients16"] * 2


def test_a_system_without_the_workload_of_the_others_shows_none_at_a_glance(world: World) -> None:
    world.cells = [cell for cell in world.cells if (cell["system"], cell["workload"]) != (WEAVIATE, "k10")]
    shown = {item.system: item.p50 for item in highlights(material_of(world).first_rows, {})}
    assert shown[MILVUS] and shown[MILVUS]["workload"] == "k10" and shown[WEAVIATE] is None


def test_workloads_of_different_clients_need_no_effort(world: World) -> None:
    assert "Effort" not in table(tables(material_of(world)), "X").labels


def test_workloads_of_one_number_of_clients_have_a_row_for_each_effort(two_of_sixteen: Material) -> None:
    by_effort = table(tables(two_of_sixteen), "X")
    place = by_effort.labels.index("Effort")
    assert [row.labels[place] for row in by_effort.rows] == ["ef 64", "ef 64", "ef 200", "ef 200"]
    sixteen = next(rank for rank, column in enumerate(by_effort.columns) if column.label == "16")
    assert len({row.cells[sixteen].number_id for row in by_effort.rows}) == 4


def test_nothing_wins_where_neither_recall_is_known(world: World) -> None:
    assert any(cell.best for row in table(tables(material_of(world)), "IV").rows for cell in row.cells)
    for system in (MILVUS, WEAVIATE):
        Path(world.cell(system, "k10")["recall_path"]).unlink()
    assert not any(cell.best for row in table(tables(material_of(world)), "IV").rows for cell in row.cells)


def test_a_valid_cell_of_which_too_many_answers_failed_is_no_invalid_one(world: World) -> None:
    def failed(record: Record) -> None:
        record["summary"]["errors"] = {"value": 600}
        record["summary"]["p50_ms"] = {"value": None, "std": None, "runs": [None] * 3, "low": None, "high": None}

    material = edited(world, "k10", failed)
    assert material_of(world).numbers.query("workload == 'k10' and metric == 'p50_ms'")["value"].isna().all()
    assert not any(item.cells["invalid"] for item in highlights(material.first_rows, {}))
    states = page._summary(material)["states"]
    assert (len(states["valid"]), states["invalid"], states["missing"]) == (len(world.cells), [], [])


def test_memory_that_counts_shared_pages_once_a_process_is_called_so(world: World) -> None:
    (shown,) = glance.tables(material_of(world))
    place = next(rank for rank, column in enumerate(shown.columns) if column.label == "Memory")
    assert {row.cells[place].text for row in shown.rows} == {"912 (RSS)"}


def test_a_filter_of_many_clients_is_not_shown_as_that_of_one(world: World) -> None:
    def tuned(record: Record) -> None:
        record["spec"]["workload"]["target_recall"] = 0.95

    def many(record: Record) -> None:
        record["spec"]["workload"] |= {"k": 10, "clients": 8}

    edited(world, "k100-category30", many)
    (shown,) = everyone.at_one_recall(edited(world, "k10", tuned))
    place = next(rank for rank, column in enumerate(shown.columns) if "category" in column.label)
    one = {world.cell(system, "k10-category30")["query_path"] for system in (MILVUS, WEAVIATE)}
    of = {row["number_id"]: row["record"] for row in material_of(world).rows}
    assert {of[row.cells[place].number_id] for row in shown.rows} == one


# Verdicts

FASTER = Verdict(Outcome.LESS, -0.3, -0.1, "rounds", p=0.001, p_apart=0.9)


def row(value: float, mean: float | None = None) -> dict[str, Any]:
    builds = {"rebuilds": 3 if mean else 1, "rebuild_std": 0.1 if mean else None, "rebuild_mean": mean}
    return {"metric": "p50_ms", "value": value, "workload": "k10", **builds}


@pytest.mark.parametrize(("ratio", "decided"), [(1.05, False), (0.96, False), (1.15, True), (0.85, True)])
@pytest.mark.parametrize("mean", [None, 10.0])
def test_what_a_pair_shows_is_held_against_the_floor_of_builds_by_its_own_ratio(
    ratio: float, decided: bool, mean: float | None
) -> None:
    verdicts = Verdicts([], {}, noise=Noise(of_metric={"p50_ms": Floor(0.12, "between builds")}))
    # By their rounds the two differ by 20 % or by nothing, which says nothing of the pair.
    for other in (8.0, 10.0):
        found = verdicts.floored(FASTER, row(10.0, mean), row(other, mean), Ratio(math.log(ratio), 0.01, 5.0, 6))
        assert found.decided == decided


def test_a_difference_of_builds_is_told_of_their_means_and_not_of_the_first_ones() -> None:
    common = {"dataset": "d", "topology": "t", "number_id": "n", "unit": "ms"}
    a, b = ({**row(10.0, mean), **common, "system": name} for name, mean in (("a", 12.0), ("b", 10.0)))
    found = replace(FASTER, low=12 / 1.25 - 12, high=12 / 1.152 - 12)
    stub: Any = SimpleNamespace(
        of_systems={("a", "b"): (a, b, found)},
        rule=Rule(),
        noise=Noise(),
        obstacle=lambda best, other: "",
        out_of_turn=lambda a, b: "",
    )
    (shown,) = effort.comparisons(SimpleNamespace(verdicts=stub))  # type: ignore[arg-type]
    assert shown.rows[0].cells[0].text == "+20.0 (+15.2 to +25.0)"


@pytest.mark.parametrize(("value", "text"), [(0.00003, "0.00003"), (0.9993, "0.9993"), (0.0, "0.0000")])
def test_a_share_that_is_there_is_not_printed_as_zero(value: float, text: str) -> None:
    assert text_of(value, None, "fraction") == text
