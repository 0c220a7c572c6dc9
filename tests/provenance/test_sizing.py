"""Planning on paper: what an experiment needs, and what can't fit the declared platform."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from anncestry import cli, workflow
from anncestry.errors import ConfigError
from anncestry.provenance import platform, records, sizing
from tests.toy import ROOT, Toy

GIB = 1 << 30


def needs_of(experiment: str) -> list[sizing.Need]:
    return sizing.needs(workflow.expand(workflow.Choice(ROOT / "config", experiment)))


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toy:
    toy = Toy.make(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANNCESTRY_CONFIG", str(tmp_path / "config"))
    return toy


def test_a_hundred_million_vectors_need_what_their_numbers_take_and_their_links() -> None:
    found = needs_of("milvus-100m")
    assert len(found) == 5
    vectors = 100_000_000 * 768 * 4
    links = 100_000_000 * (60 * 4 + 4 + 124 / 29)
    assert found[0].memory_bytes == pytest.approx(vectors + links + 8e8, rel=1e-6)
    assert found[0].disk_bytes > 4 * vectors
    assert sizing.total(found).disk_bytes < 1.01 * found[0].disk_bytes, "cells share their data and their load"
    assert sizing.total(found).seconds < sum(need.data_s + need.load_s + need.query_s for need in found)


def test_the_papers_whole_matrix_is_planned_cell_by_cell() -> None:
    found = needs_of("paper-matrix")
    assert len(found) == 243
    whole = sizing.total(found)
    largest = max(found, key=lambda need: need.memory_bytes)
    assert largest.cell.dataset == "gist-960-euclidean" and whole.memory_bytes == largest.memory_bytes
    assert sum({need.cell.load: need.load_s for need in found}.values()) < whole.seconds


def test_more_links_dimensions_rows_and_replicas_need_more_and_codes_less() -> None:
    def of(rows: int = 1000, dim: int = 64, **index: object) -> float:
        return sizing.index_bytes({"type": "hnsw", "M": 16, **index}, rows, dim)

    assert of(M=32) > of() and of(dim=65) > of() and of(rows=2000) == pytest.approx(2 * of())
    assert of() > of(type="flat") > of(type="ivf_sq8") > of(type="ivf_pq", m=8) > of(type="diskann")
    assert of(type="diskann", m=32) == of(type="diskann") + 32 * 1000
    assert sizing.graph_bytes(1, 16) == 4 * 32 + 4 + (4 * 16 + 4) / 15


def test_replicas_need_memory_each_and_nodes_share_it(toy: Toy) -> None:
    toy.files["topologies"]["cluster-3"]["replicas"] = 3
    toy.save()
    found = sizing.needs(workflow.expand(workflow.Choice(toy.folder / "config", "default")))
    one, three = (
        next(need for need in found if need.cell.topology == topology) for topology in ("standalone", "cluster-3")
    )
    assert three.memory_bytes == 3 * one.memory_bytes
    assert list(three.node_bytes.values()) == pytest.approx(list(one.node_bytes.values()))


def test_facts_of_a_machine_that_were_changed_are_not_believed(tmp_path: Path) -> None:
    here = sizing.room("default", {}, tmp_path)
    kept = records.seal({"platform": "default", "facts": {**platform.facts(), "cores": 999}})
    (tmp_path / "default.json").write_text(json.dumps(kept))
    assert sizing.room("default", {}, tmp_path).cores == 999
    for broken in ({**kept, "facts": {**kept["facts"], "cores": 1000}}, {**kept, "gacts": {}}, {"platform": "default"}):
        (tmp_path / "default.json").write_text(json.dumps(broken))
        assert sizing.room("default", {}, tmp_path).cores == here.cores


def test_the_command_prints_every_cell_and_the_total_and_starts_nothing(toy: Toy, capsys) -> None:
    assert cli.main(["plan", "--paper"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 1 + 16 + 1 and said[-1].startswith("all 16 cells")
    assert all(re.search(r" GiB +\S+ GiB +\d", line) for line in said[1:])
    assert {path.name for path in toy.folder.iterdir()} == {"config"}


@pytest.mark.parametrize(
    ("capacity", "said"),
    [
        ({"memory_gib": 1e-6, "disk_gib": 1}, "blobs-cosine/blue-1.0/cluster-3/k5 needs .* of memory"),
        ({"memory_gib": 1, "disk_gib": 1e-6}, "blobs-l2/red-1.0/standalone/k5 needs .* of disk"),
    ],
)
def test_what_can_not_fit_the_platform_is_refused_cell_by_cell(toy: Toy, capacity, said: str, capsys) -> None:
    toy.files["platforms"]["default"] = {"capacity": capacity}
    toy.save()
    assert cli.main(["plan", "--fit"]) == 2
    found = capsys.readouterr().err
    assert re.search(said, found) and found.count(" needs ") == 16


def test_cells_that_fit_alone_but_not_together_are_refused(toy: Toy) -> None:
    matrix = workflow.expand(workflow.Choice(toy.folder / "config", "default"))
    found = sizing.needs(matrix)
    whole, largest = sizing.total(found).disk_bytes / GIB, max(need.disk_bytes for need in found) / GIB
    assert largest < whole
    matrix.config.platforms["default"] = {"capacity": {"memory_gib": 1, "disk_gib": (largest + whole) / 2}}
    with pytest.raises(ConfigError, match=r"all cells together need .* of disk"):
        sizing.refuse_unfit(matrix, found)
    matrix.config.platforms["default"] = {"capacity": {"memory_gib": 1, "disk_gib": 1.01 * whole}}
    sizing.refuse_unfit(matrix, found)


def test_a_node_with_too_low_a_limit_is_refused_on_any_platform(toy: Toy) -> None:
    matrix = workflow.expand(workflow.Choice(toy.folder / "config", "default"))
    matrix.config.platforms["default"] = {"capacity": {"disk_gib": 1}, "expect": {"memory_gib": 1}}
    for need in (found := sizing.needs(matrix)):
        topology = matrix.specs[need.cell.load]["topology"]
        if topology["name"] == "standalone":
            topology["limits"] = {"memory_mib": 0.01}
    with pytest.raises(ConfigError, match=r"/standalone/k5 needs \S+ GiB in a node limited to") as raised:
        sizing.refuse_unfit(matrix, found)
    assert "cluster-3" not in str(raised.value)


def test_a_pair_needs_the_memory_of_both_servers_and_loads_nothing_of_its_own(toy: Toy) -> None:
    toy.files["config"]["matrix"].append(
        {
            **{name: toy.block[name][:1] for name in ("datasets", "topologies", "workloads")},
            "paired": ["red-1.0", "blue-1.0"],
        }
    )
    toy.save()
    matrix = workflow.expand(workflow.Choice(toy.folder / "config", "default"))
    of_pairs = {need.cell.system: need for need in sizing.needs(matrix) if need.cell in matrix.pairs}
    by_load = {need.cell.load: need for need in sizing.needs(matrix) if need.cell in matrix.cells}
    pair, control = of_pairs["red-1.0..blue-1.0"], of_pairs["red-1.0..red-1.0"]
    sides = [by_load[load] for load in pair.loads]
    assert pair.memory_bytes == sum(side.memory_bytes for side in sides) == control.memory_bytes > 0
    assert pair.load_bytes == sum(side.load_bytes for side in sides) == 2 * control.load_bytes
    slices_s = 2 * 4 * sizing.START_S
    assert pair.query_s > slices_s, "two starts a pair of servers"
    matrix.config.platforms["default"] = {
        "capacity": {"memory_gib": 1.5 * sides[0].memory_bytes / 2**30, "disk_gib": 1}
    }
    with pytest.raises(ConfigError, match=r"red-1.0..blue-1.0/standalone/k5 needs \S+ GiB of memory"):
        sizing.refuse_unfit(matrix, sizing.needs(matrix))


def test_a_platform_that_does_not_say_what_it_has_is_named(toy: Toy, capsys) -> None:
    assert cli.main(["plan", "--fit"]) == 2
    assert "platforms.yaml: default.capacity.memory_gib is missing: --fit needs it" in capsys.readouterr().err
