"""What was measured on another day: it has its numbers, and nothing is told of their difference by rounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from anncestry.metrics.decide import Outcome
from anncestry.report.compare import changes
from anncestry.report.compare.lines import compare
from anncestry.report.compare.sides import Side, side
from anncestry.report.compare.text import summary
from anncestry.report.model import numbers
from anncestry.report.model.cells import Table
from anncestry.report.model.material import Material
from anncestry.report.model.verdicts import apart
from anncestry.report.tables import effort, glance
from tests.builders.world import World, rounds

MILVUS, WEAVIATE = "milvus-2.3.5", "weaviate-1.27.0"
APART = "measured 24 h apart: pair them (docs/duet.md), or measure both again"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.chdir(tmp_path)
    return World({"random-xs-20-angular": ("cosine", 9000, 20)})


def added(world: World, system: str = WEAVIATE) -> None:
    """The system was measured a day later than all others."""
    for cell in world.cells:
        if cell["system"] == system:
            world.edit(cell["query_path"], lambda record: record.update(rounds=rounds(len(record["rounds"]), 1, 22)))


def material(world: World, *pairs: dict[str, Any]) -> Material:
    frame = world.tidy()
    records = {path: json.loads(Path(path).read_text()) for path in frame["record"].unique()}
    return Material(frame, records | {f"pair {number}": pair for number, pair in enumerate(pairs)})


def at(*times: str) -> dict[str, Any]:
    return {"rounds": [{"created": f"2026-11-{time}:00+00:00"} for time in times]}


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (at("21T05:00", "21T05:10", "21T05:20"), at("21T05:05", "21T05:12", "21T05:30"), ""),
        (at("21T05:00", "21T05:10", "21T05:20"), at("22T07:00", "22T07:10", "22T07:20"), "measured 26 h apart"),
        (at("21T05:00", "21T05:10"), at("21T05:10", "21T05:20"), "measured 10 min apart"),
        (at("21T05:00", "21T05:10"), at("27T05:00", "27T05:10"), "measured 6 days apart"),
        # One was interrupted between two rounds: the night falls on both.
        (at("21T05:00", "22T05:10", "22T05:20"), at("21T05:05", "22T05:15", "22T05:25"), ""),
        # Run 2 failed, and was measured after run 3.
        (at("21T05:00", "21T05:30", "21T05:20"), at("21T05:05", "21T05:15", "21T05:25"), ""),
        # One needed further rounds, a day later.
        (at("21T05:00", "21T05:10"), at("21T05:05", "21T05:15", "22T05:00", "22T05:10"), ""),
        # A record of before rounds had times, and one without rounds.
        ({"rounds": [{}, {}]}, at("21T05:00", "21T05:10"), ""),
        ({}, at("21T05:00", "21T05:10"), ""),
    ],
)
def test_rounds_alternated_if_the_nth_of_both_was_made_before_the_next_of_either(
    a: dict[str, Any], b: dict[str, Any], said: str
) -> None:
    assert apart(a, b) == apart(b, a) == said


def test_a_system_that_was_added_a_day_later_neither_wins_nor_loses_by_speed(world: World) -> None:
    def outcomes() -> dict[str, set[Outcome]]:
        found: dict[str, set[Outcome]] = {}
        for a, _, verdict in material(world).verdicts.of_systems.values():
            if a["runs"] == 3 and a["phase"] == "query":
                found.setdefault(a["metric"], set()).add(verdict.outcome)
        return found

    assert Outcome.LESS in outcomes()["p50_ms"] and Outcome.MORE in outcomes()["qps"], "in turns, it differs"
    added(world)
    assert outcomes() and all(found == {Outcome.UNDETERMINED} for found in outcomes().values())
    (opening,) = glance.tables(material(world))
    p50 = next(number for number, column in enumerate(opening.columns) if column.label.startswith("p50"))
    cells = [row.cells[p50] for row in opening.rows]
    assert not any(cell.best for cell in cells) and {cell.verdict for cell in cells} == {"", "undetermined"}
    assert all(cell.value for cell in cells), "the numbers are shown as before"


def test_the_table_of_differences_says_what_to_do(world: World) -> None:
    added(world)
    (table,) = effort.comparisons(material(world))
    (row,) = (row for row in table.rows if row.labels[2:4] == ("k10", "p50_ms"))
    assert [cell.text for cell in row.cells[1:]] == ["—", "—", f"undetermined: {APART}"]
    assert row.cells[0].text == "+33.3", "without an interval"


def test_a_pair_of_servers_decides_whenever_the_rounds_were_made(world: World) -> None:
    added(world)
    place = {"load": "x", "topology": {"name": "standalone"}}
    sides = {"a": {**place, "system": {"name": MILVUS}}, "b": {**place, "load": "y", "system": {"name": WEAVIATE}}}
    ratio = {"value": 1.5, "log_error": 0.01, "freedom": 4.0, "a": 1000.0, "b": 1500.0}
    pair = {
        **{"stage": "pair", "valid": True, "rounds": [{}] * 6, "quantities": {"qps": ratio}},
        "spec": {"dataset": {"name": "random-xs-20-angular"}, "workload": {"name": "k10"}, "sides": sides},
    }
    found = material(world, pair).verdicts.of_systems.values()
    outcome = {a["metric"]: verdict.outcome for a, _, verdict in found if a["workload"] == "k10"}
    assert (outcome["qps"], outcome["p50_ms"]) == (Outcome.MORE, Outcome.UNDETERMINED)


def a_side(world: World, system: str, kind: str) -> Side:
    frame = world.tidy()
    return side(system, frame[frame["system"] == system], Path("results"), kind=kind)


def test_systems_of_one_experiment_that_were_measured_apart_are_not_told_apart(world: World) -> None:
    def line() -> Any:
        found = compare(a_side(world, MILVUS, "system"), a_side(world, WEAVIATE, "system"))
        assert "not in turns" not in summary(found)
        return next(each for each in found.lines if (each.workload, each.metric) == ("k10", "p50_ms")), summary(found)

    assert line()[0].verdict == "faster"
    added(world)
    told, text = line()
    assert (told.verdict, told.better, told.judged.note) == ("undetermined", "", APART)
    assert f"[1] {APART}" in text


@pytest.mark.parametrize("kind", ["revision", "experiment", ""])
def test_two_revisions_are_judged_and_the_first_lines_say_when_each_was_measured(world: World, kind: str) -> None:
    added(world)
    found = compare(a_side(world, MILVUS, kind), a_side(world, WEAVIATE, kind))
    (told,) = (each for each in found.lines if (each.workload, each.metric) == ("k10", "p50_ms"))
    assert told.verdict == "faster" and told.judged.noise == "runs"
    opening = " ".join(summary(found).split("\n\n")[0].split())
    assert "A was measured 2026-11-21 05:10 to 2026-11-21 05:20, B 2026-11-22 05:11 to 2026-11-22 05:21" in opening
    assert "a change of the machine between the two would look the same" in opening
    assert found.plain()["a"]["measured"] == ("2026-11-21T05:10:00+00:00", "2026-11-21T05:20:00+00:00")


# Two arms


def arms(changed: tuple[int, int], control: tuple[int, int]) -> Table:
    """The medians of two arms, measured on these days, of a system that changed and of its control, which did not."""
    rows, records = [], {}
    for engine, days in (("weaviate", changed), ("milvus", control)):
        for number, (arm, day) in enumerate(zip(("before", "after"), days, strict=True)):
            path = f"{engine} {arm}"
            records[path] = {"rounds": rounds(3, number, day)}
            rows.append(
                {
                    "number_id": path,
                    "record": path,
                    "dataset": "d",
                    "engine": engine,
                    "system": engine,
                    "topology": arm if engine == "weaviate" else "one",
                    "workload": "k10",
                    "k": 10,
                    "clients": 1,
                    "client": "bytes",
                    "phase": "query",
                    "metric": "p50_ms",
                    "unit": "ms",
                    "arm": arm,
                    "filter": "",
                    "rebuild": 2 if engine == "milvus" and number else 1,
                    "runs": 3,
                    "std": 0.01,
                    "reason": "",
                    "value": 3.0 + number if engine == "weaviate" else 2.0,
                }
            )
    (table,) = changes.of_arms(numbers.frame(rows), records=records)
    return table


def test_a_change_that_was_measured_later_needs_a_control_that_was(world: World) -> None:
    def said(changed: tuple[int, int], control: tuple[int, int]) -> str:
        (row,) = (row for row in arms(changed, control).rows if row.labels[1].startswith("weaviate"))
        return row.cells[-1].text

    assert said((21, 21), (21, 21)) == said((21, 22), (21, 22)) == changes.DIFFERS
    assert said((21, 22), (21, 21)) == "undetermined: measured 24 h apart, unlike the control: measure both again"
