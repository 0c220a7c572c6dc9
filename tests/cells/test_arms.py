"""Two arms, before and after a change, each with the control measured along: what makes a pair, and in which order."""

from __future__ import annotations

from typing import Any

import pytest

from anncestry import workflow
from anncestry.cells import plan
from anncestry.errors import ConfigError
from anncestry.report.compare import changes
from anncestry.report.model import numbers
from anncestry.report.model.cells import Table
from tests.toy import ROOT, Toy

ARMS = ["one", "three"]


def block(system: str, topology: str, arm: str | None = None) -> dict[str, Any]:
    found = {"datasets": ["blobs-l2"], "systems": [system], "topologies": [topology], "workloads": ["k5"]}
    return found if arm is None else {"arm": arm, **found}


@pytest.fixture
def toy(tmp_path) -> Toy:
    """Red on one node and on three, blue on one in both arms."""
    toy = Toy.make(tmp_path / "toy")
    toy.files["config"]["arms"] = ARMS
    toy.files["config"]["matrix"] = [
        block("red-1.0", "standalone", "one"),
        block("red-1.0", "cluster-3", "three"),
        block("blue-1.0", "standalone"),
    ]
    toy.files["workloads"]["k5"]["runs"] = 4
    toy.save()
    return toy


def expand(toy: Toy):
    toy.save()
    return workflow.expand(workflow.Choice(toy.folder / "config", "default"))


def test_the_control_is_built_and_measured_once_in_each_arm(toy):
    cells = {(cell.system, cell.topology, cell.arm): cell for cell in expand(toy).cells}
    assert sorted(cells) == [
        ("blue-1.0", "standalone", "one"),
        ("blue-1.0", "standalone", "three"),
        ("red-1.0", "cluster-3", "three"),
        ("red-1.0", "standalone", "one"),
    ]
    assert len({cell.load for cell in cells.values()}) == len({cell.query for cell in cells.values()}) == 4
    assert len({cell.artifact for cell in cells.values() if cell.system == "blue-1.0"}) == 1


def test_what_was_measured_for_other_ends_is_no_half_of_a_comparison(toy):
    compared = {cell.load for cell in expand(toy).cells}
    del toy.files["config"]["arms"]
    for part in toy.files["config"]["matrix"]:
        part.pop("arm", None)
    assert not compared & {cell.load for cell in expand(toy).cells}


def test_arms_take_turns_in_being_first_and_each_has_its_control_beside_it(toy):
    sessions = sorted(plan.make(expand(toy)).sessions.values(), key=lambda session: session.place)
    order = [session.cells[0].arm for session in sessions]
    one, three = ["one"] * 2, ["three"] * 2
    assert order == [*one, *three, *three, *one] * 2
    for at in range(0, len(sessions), 2):
        assert {session.cells[0].system for session in sessions[at : at + 2]} == {"red-1.0", "blue-1.0"}


@pytest.mark.parametrize(
    ("matrix", "complaint"),
    [
        ([block("red-1.0", "standalone", "one"), block("red-1.0", "cluster-3", "three")], "arms need a control"),
        ([block("red-1.0", "standalone", "one"), block("blue-1.0", "standalone")], "no counterpart in arm three"),
        ([block("red-1.0", "standalone", "two"), block("blue-1.0", "standalone")], "unknown arm 'two'"),
        ([block("blue-1.0", "standalone")], "no block of the matrix names arm 'one'"),
        (
            [block("red-1.0", at, "one") for at in ("standalone", "cluster-3")] + [block("blue-1.0", "standalone")],
            "holds two systems of one engine",
        ),
        (
            [block("red-1.0", "standalone", "one"), block("red-1.0", "standalone")],
            "is in the control and in arm one",
        ),
        ([{**block("red-1.0", "standalone", "one"), "rebuilds": 2}, block("blue-1.0", "standalone")], "rebuilds"),
    ],
)  # fmt: skip
def test_arms_that_can_not_be_compared_are_refused(toy, matrix, complaint):
    toy.files["config"]["matrix"] = matrix
    with pytest.raises(ConfigError, match=complaint):
        expand(toy)


def test_an_arm_without_arms_is_refused(toy):
    del toy.files["config"]["arms"]
    with pytest.raises(ConfigError, match="none is declared; add arms"):
        expand(toy)


@pytest.mark.parametrize("experiment", ["section-v", "section-v-small"])
def test_section_v_holds_one_node_against_three_beside_an_untouched_milvus(experiment):
    cells = workflow.expand(workflow.Choice(ROOT / "config", experiment)).cells
    assert {(cell.arm, cell.system, cell.topology) for cell in cells} == {
        ("standalone", "weaviate-1.27.0", "standalone-8gb"),
        ("cluster", "weaviate-1.27.0", "cluster-3-4gb"),
        ("standalone", "milvus-2.3.5", "standalone-8gb"),
        ("cluster", "milvus-2.3.5", "standalone-8gb"),
    }


# What the page says of them


def row(arm: str, value: float, *, engine: str, std: float = 0.01, clients: int = 1, **more: Any) -> dict[str, Any]:
    changed = engine == "weaviate"
    return {
        "number_id": f"n{engine}{arm}{clients}", "dataset": "d", "engine": engine, "system": f"{engine}-1",
        "topology": arm if changed else "one", "workload": f"k10-{clients}", "k": 10, "filter": "", "clients": clients,
        "client": "bytes", "duration_s": None, "phase": "query", "metric": "p50_ms", "unit": "ms", "arm": arm,
        "rebuild": 1 if changed or arm == "before" else 2, "value": value, "std": std, "runs": 3, "reason": "",
        "low": None, "high": None, **more,
    }  # fmt: skip


def table_xii(changed: tuple[float, float], control: tuple[float, float]) -> Table:
    rows = [row(arm, value, engine=engine) for engine, values in (("weaviate", changed), ("milvus", control))
            for arm, value in zip(("before", "after"), values, strict=True)]  # fmt: skip
    (table,) = changes.of_arms(numbers.frame(rows))
    assert table.number == "XII" and [column.label for column in table.columns[:2]] == ["before", "after"]
    return table


@pytest.mark.parametrize(
    ("changed", "control", "verdicts"),
    [
        ((3.0, 4.0), (2.0, 2.0), [changes.DIFFERS, "equivalent"]),
        ((3.0, 3.0), (2.0, 2.0), ["equivalent", "equivalent"]),
        ((3.0, 4.0), (2.0, 2.4), [changes.DIFFERS, changes.DRIFTED]),
        ((3.0, 3.6), (2.0, 2.4), [changes.WITHIN_DRIFT, changes.DRIFTED]),
    ],
)
def test_a_change_is_one_only_beyond_what_the_control_did(changed, control, verdicts):
    table = table_xii(changed, control)
    assert [found.cells[-1].text for found in table.rows] == verdicts
    assert ("THE CONTROL DRIFTED (milvus-1 (control) on d)" in table.caption) == (changes.DRIFTED in verdicts)


def test_what_the_control_did_is_taken_out_of_the_change():
    first, control = table_xii((3.0, 4.5), (2.0, 2.4)).rows
    assert first.cells[2].value == pytest.approx(50) and first.cells[3].value == pytest.approx(25)
    assert set(first.cells[3].parents) == {"nweaviatebefore1", "nweaviateafter1", "nmilvusbefore1", "nmilvusafter1"}
    assert control.labels == ("d", "milvus-1 (control)")


def test_a_change_is_held_against_the_control_of_its_own_workload():
    def of(workload: str, changed: tuple[float, float], control: tuple[float, float]) -> list[dict[str, Any]]:
        return [
            row(arm, value, engine=engine, workload=workload, number_id=f"{engine}{arm}{workload}")
            for engine, values in (("weaviate", changed), ("milvus", control))
            for arm, value in zip(("before", "after"), values, strict=True)
        ]

    rows = [*of("k10", (3.0, 3.6), (2.0, 2.0)), *of("k10-sweep", (3.0, 3.6), (2.0, 2.4))]
    (table,) = changes.of_arms(numbers.frame(rows))
    assert table.labels[-1] == "Workload"
    said = {found.labels[-1]: found.cells[-1].text for found in table.rows if "control" not in found.labels[1]}
    assert said == {"k10": changes.DIFFERS, "k10-sweep": changes.WITHIN_DRIFT}


def test_every_number_of_neighbours_has_tables_and_panels_of_its_own():
    rows = [
        row(arm, value, engine=engine, k=k, workload=f"k{k}", number_id=f"{engine}{arm}{k}")
        for k, factor in ((10, 1), (100, 2))
        for engine, values in (("weaviate", (3.0, 4.0)), ("milvus", (2.0, 2.0)))
        for arm, value in zip(("before", "after"), (factor * value for value in values), strict=True)
    ]
    frame = numbers.frame(rows)
    first, other = changes.of_arms(frame)
    assert (first.number, other.number) == ("XII", "XII-100")
    assert first.title.endswith("K = 10") and other.title.endswith("K = 100")
    assert [cells[0].value for cells in (first.rows[0].cells, other.rows[0].cells)] == [3.0, 6.0]
    assert [found.cells[-1].text for found in other.rows] == [changes.DIFFERS, "equivalent"]
    (figure,) = changes.figures(frame)
    assert [panel.heading for panel in figure.panels] == ["Median latency, k = 10, d", "Median latency, k = 100, d"]
    assert {"XII", "XII-100"} <= set(figure.tables)


def test_two_runs_a_side_show_no_difference():
    rows = [row(arm, value, engine="weaviate", runs=2) for arm, value in (("before", 3.0), ("after", 4.0))]
    rows += [row(arm, 2.0, engine="milvus", runs=2) for arm in ("before", "after")]
    (table,) = changes.of_arms(numbers.frame(rows))
    assert [found.cells[-1].text for found in table.rows] == [changes.TOO_FEW] * 2


def test_numbers_without_arms_make_no_such_table():
    assert changes.of_arms(numbers.frame([row("", 3.0, engine="weaviate")])) == []
    assert changes.figures(numbers.frame([row("", 3.0, engine="weaviate")])) == []


@pytest.mark.long
def test_an_experiment_of_two_arms_ends_in_a_page_that_tells_them_apart(toy):
    toy.files["workloads"]["k10"] = {**toy.files["workloads"]["k5"], "k": 10, "runs": 1}
    for part in toy.files["config"]["matrix"]:
        part["workloads"] = ["k10"]
    toy.snakemake()
    page = (toy.folder / "reports" / "default" / "index.html").read_text()
    for number in ("XII", "XIII", "XV"):
        assert f"Table {number}" in page
    assert "blue-1.0 (control)" in page and "One and three" in page
    assert toy.jobs() == {}
