"""Two arms, before and after a change, each with the control measured along: what makes a pair, and in which order."""

from __future__ import annotations

from typing import Any

import pytest

from anncestry import workflow
from anncestry.cells import plan
from anncestry.errors import ConfigError
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
        ([block("red-1.0", "standalone", "one"), block("red-1.0", "cluster-3", "three")], "without a control"),
        ([block("red-1.0", "standalone", "one"), block("blue-1.0", "standalone")], "no counterpart in arm three"),
        ([block("red-1.0", "standalone", "two"), block("blue-1.0", "standalone")], "unknown arm 'two'"),
        ([block("blue-1.0", "standalone")], "no block of the matrix is of arm 'one'"),
        (
            [block("red-1.0", at, "one") for at in ("standalone", "cluster-3")] + [block("blue-1.0", "standalone")],
            "are of one engine in one arm",
        ),
        (
            [block("red-1.0", "standalone", "one"), block("red-1.0", "standalone")],
            "is the control, and in arm one, too",
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
    with pytest.raises(ConfigError, match="there are none: say arms"):
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
