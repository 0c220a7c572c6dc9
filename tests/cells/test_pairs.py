"""Pairs in the matrix: what they expand to, what runs again when one side changes, and what can't be paired."""

from __future__ import annotations

import pytest

from anncestry import workflow
from anncestry.errors import ConfigError
from tests.toy import Toy

DUET = {"slice_s": 0.1, "discard_ms": 10, "blocks": 2, "first": 2, "most": 2}
PUBLISH = {"table": 1, "report": 1, "all": 1}


def paired(folder, *sides, **block):
    """The toy, with a matrix of one pair."""
    toy = Toy.make(folder)
    toy.files["config"]["duet"] = dict(DUET)
    toy.files["config"]["rounds"] = {"minutes": 0}
    asked = {"datasets": ["blobs-l2"], "topologies": ["standalone"], "workloads": ["k5"], **block}
    toy.files["config"]["matrix"] = [{"paired": list(sides or ("red-1.0", "blue-1.0")), **asked}]
    return toy


def expand(toy):
    toy.save()
    return workflow.expand(workflow.Choice(toy.folder / "config", "default"))


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    toy = paired(tmp_path_factory.mktemp("pairs"))
    toy.files["config"]["matrix"].append(
        {"datasets": ["blobs-l2"], "systems": ["red-1.0"], "topologies": ["standalone"], "workloads": ["k7"]}
    )
    assert toy.jobs() == {
        **{"artifact": 2, "download": 1, "normalize": 1, "truth": 1, "load": 2, "record": 2},
        **{"duet": 4, "rounds": 1, "pair": 2, "session": 1, "query": 1, "recall": 1},
        **PUBLISH,
    }, "a pair and its control, on two pairs of servers each"
    toy.snakemake()
    return toy


@pytest.fixture
def toy(measured, tmp_path):
    return measured.copy(tmp_path / "clone", "data", "results", "scratch")


def test_a_measured_pair_has_nothing_to_do(toy):
    assert toy.jobs() == {}


def test_a_bumped_side_b_reruns_its_load_and_its_pair_and_neither_the_control_nor_other_cells(toy):
    toy.files["systems"]["blue-1.0"]["version"] = "1.1"
    assert toy.jobs() == {"artifact": 1, "load": 1, "record": 1, "duet": 2, "rounds": 1, "pair": 1, **PUBLISH}


def test_a_bumped_side_a_reruns_its_load_its_cells_its_pair_and_the_control(toy):
    toy.files["systems"]["red-1.0"]["version"] = "1.1"
    assert toy.jobs() == {
        **{"artifact": 1, "load": 1, "record": 1, "duet": 4, "rounds": 1, "pair": 2},
        **{"session": 1, "query": 1, "recall": 1},
        **PUBLISH,
    }


def test_other_slices_measure_the_pairs_again_and_load_nothing(toy):
    toy.files["config"]["duet"]["blocks"] = 3
    assert toy.jobs() == {"duet": 4, "rounds": 1, "pair": 2, **PUBLISH}


def test_a_bumped_pair_epoch_measures_pairs_only(toy):
    toy.files["epochs"]["pair"]["epoch"] = 2
    assert toy.jobs() == {"duet": 4, "rounds": 1, "pair": 2, **PUBLISH}


def test_two_pairs_of_one_first_side_share_its_control(tmp_path):
    toy = paired(tmp_path)
    toy.files["systems"]["green-1.0"] = {**toy.files["systems"]["blue-1.0"], "settings": {"journal": "x"}}
    toy.files["config"]["matrix"].append({**toy.block, "paired": ["red-1.0", "green-1.0"]})
    names = [pair.system for pair in expand(toy).pairs]
    assert names == ["red-1.0..red-1.0", "red-1.0..blue-1.0", "red-1.0..green-1.0"]


def test_builds_of_one_load_and_topologies_can_be_paired(tmp_path):
    toy = paired(tmp_path, "red-1.0", {"system": "red-1.0", "build": 2})
    control, pair = expand(toy).pairs
    assert (control.system, pair.system) == ("red-1.0..red-1.0", "red-1.0..red-1.0~2")
    assert control.is_control and not pair.is_control
    toy.files["topologies"]["other"] = {**toy.files["topologies"]["standalone"], "limits": {"cpus": 1}}
    toy.block["paired"] = ["red-1.0", {"system": "red-1.0", "topology": "other"}]
    assert [pair.topology for pair in expand(toy).pairs] == ["standalone", "standalone..other"]


def test_a_side_may_have_an_effort_of_its_own(tmp_path):
    toy = paired(tmp_path, "red-1.0", {"system": "red-1.0", "effort": 64})
    matrix = expand(toy)
    control, pair = matrix.pairs
    assert (pair.system, pair.is_control) == ("red-1.0..red-1.0~effort64", False)
    sides = matrix.spec(pair.pair, "pair")["sides"]
    assert [sides[side]["effort"] for side in "ab"] == [{"ef_search": 50}, {"ef_search": 64}]
    assert matrix.spec(control.pair, "pair")["workload"]["ef_search"] == 50


def test_runs_and_duration_of_a_workload_change_no_pair(tmp_path):
    toy = paired(tmp_path)
    before = [pair.pair for pair in expand(toy).pairs]
    toy.files["workloads"]["k5"]["runs"] = 5
    assert [pair.pair for pair in expand(toy).pairs] == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda toy: toy.block.update(systems=["red-1.0"]), "needs either systems or paired"),
        (lambda toy: toy.block.pop("paired"), "needs either systems or paired"),
        (lambda toy: toy.block.update(topologies=["cluster-3"]), "pairs need servers of one member"),
        (lambda toy: toy.block.update(paired=["red-1.0", "bleu-1.0"]), "did you mean 'blue-1.0'"),
        (lambda toy: toy.block.update(rebuilds=2), "rebuilds: unsupported with paired"),
        (lambda toy: toy.files["config"]["duet"].update(slice_s=8), "may be frozen for 10 s"),
        (lambda toy: toy.files["workloads"]["k5"].update(start="cold", warmup=0), "cold is unsupported in pairs"),
        (lambda toy: toy.files["config"]["duet"].update(first=3, most=2), "duet.most: is below duet.first"),
    ],
)
def test_what_cannot_be_paired_is_refused_by_name_while_parsing(tmp_path, change, said):
    toy = paired(tmp_path)
    change(toy)
    with pytest.raises(ConfigError, match=said):
        expand(toy)
