"""Cells that a system lacks, or that a platform has no room for, are listed with their reason where that is asked."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from anncestry import cli, engines, workflow
from anncestry.cells import config
from anncestry.cells.blocks import Absent, Room, beyond, sentence
from anncestry.cells.expand import expand as expand_matrix
from anncestry.cells.spec import Topology, read, schema
from anncestry.errors import Unsupported
from anncestry.provenance import platform, sizing
from anncestry.report.site import downloads
from anncestry.report.site.page import write_page
from anncestry.report.tables import spec
from tests.builders.configs import expand, refused
from tests.builders.world import World
from tests.servers import INDEX, STANDALONE, SYSTEMS
from tests.toy import ROOT, Toy

SMALL = {"capacity": {"cores": 2, "memory_gib": 8}}


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    """One dataset; a workload that visits lists, of which a graph has none; a topology of 32 CPUs; a small platform."""
    toy = Toy.make(tmp_path)
    toy.files["workloads"]["k5-lists"] = {**toy.files["workloads"]["k5"], "nprobe": 4}
    toy.files["topologies"]["large"] = {**toy.files["topologies"]["standalone"], "limits": {"cpus": 32}}
    toy.files["platforms"]["default"] = SMALL
    toy.block.update(datasets=["blobs-l2"], topologies=["standalone", "large"], workloads=["k5", "k5-lists"])
    toy.block["unsupported"] = "listed"
    return toy


def names(toy: Toy) -> tuple[set[tuple[str, ...]], dict[tuple[str, ...], str]]:
    """(system, topology, workload) of what would be measured; the same of what is listed, with its state."""
    found = expand(toy)
    return (
        {(cell.system, cell.topology, cell.workload) for cell in found.cells},
        {cell.names[1:4]: cell.state for cell in found.absent},
    )


# In the matrix.


def test_what_a_system_lacks_and_what_the_platform_has_no_room_for_is_listed_and_the_rest_measured(toy: Toy) -> None:
    measured, listed = names(toy)
    assert measured == {("red-1.0", "standalone", "k5"), ("blue-1.0", "standalone", "k5")}
    assert listed == {
        (system, *cell): state
        for system in ("red-1.0", "blue-1.0")
        for cell, state in {
            ("large", "k5"): "not measurable here",
            ("large", "k5-lists"): "unsupported",
            ("standalone", "k5-lists"): "unsupported",
        }.items()
    }


def test_where_it_is_not_asked_what_a_system_lacks_is_refused_and_large_limits_are_measured(toy: Toy) -> None:
    toy.block["unsupported"] = "refused"
    refused(toy, "k5-lists.nprobe: unsupported by an index of type hnsw: its effort is ef_search")
    del toy.block["unsupported"]
    toy.block["workloads"] = ["k5"]
    measured, listed = names(toy)
    assert len(measured) == 4 and not listed


def test_only_what_is_lacking_is_listed_a_mistake_stays_a_refusal(toy: Toy) -> None:
    toy.files["workloads"]["k5"]["k"] = 541
    refused(toy, "workloads.yaml: k5.k: 541 exceeds the 540 rows")
    toy.files["workloads"]["k5"]["k"] = 5
    toy.block["unsupported"] = "hidden"
    refused(toy, "config.yaml: matrix.0.unsupported", "'hidden'")


def test_what_another_block_wants_measured_is_measured(toy: Toy) -> None:
    block = {name: list(value) for name, value in toy.block.items() if name != "unsupported"}
    toy.files["config"]["matrix"].append({**block, "topologies": ["large"], "workloads": ["k5"]})
    measured, listed = names(toy)
    assert ("red-1.0", "large", "k5") in measured and ("red-1.0", "large", "k5") not in listed
    toy.files["config"]["matrix"][1]["workloads"] = ["k5-lists"]
    refused(toy, "k5-lists.nprobe: unsupported")


def test_the_key_of_a_table_changes_only_with_what_it_lists(toy: Toy) -> None:
    toy.block.update(topologies=["standalone"], workloads=["k5"])
    listing = expand(toy)
    del toy.block["unsupported"]
    assert expand(toy).table == listing.table
    assert "absent" not in listing.specs[listing.table]
    toy.block.update(unsupported="listed", topologies=["standalone", "large"])
    more = expand(toy)
    assert [cell.load for cell in more.cells] == [cell.load for cell in listing.cells] and more.table != listing.table
    assert {cell["reason"] for cell in more.specs[more.table]["absent"]} == {
        "limits.cpus: wants 32 cores, platform default has 2"
    }


def test_a_reason_names_no_folder_of_this_machine_so_that_keys_are_the_same_elsewhere(toy: Toy, tmp_path: Path) -> None:
    here = expand(toy)
    elsewhere = toy.copy(tmp_path / "elsewhere")
    assert here.absent == expand(elsewhere).absent and here.table == expand(elsewhere).table
    assert {cell.reason for cell in here.absent if cell.state == "unsupported"} == {
        "workloads.yaml: k5-lists.nprobe: unsupported by an index of type hnsw: its effort is ef_search"
    }


def test_a_refusal_of_an_engine_stays_one_of_what_is_lacking_when_its_system_is_named() -> None:
    asked = config.load(ROOT / "config", "milvus-2.2-report")
    assert len(expand_matrix(asked, engines.offers_of, lambda: Room("default", 64, 512)).cells) == 21
    blocks = [replace(block, unsupported="refused") for block in asked.matrix]
    asked = replace(asked, index={"type": "flat"}, matrix=blocks)
    with pytest.raises(Unsupported, match=r"milvus-2\.1\.0.*: index\.type: flat is unsupported by milvus 2\.1\.0"):
        expand_matrix(asked, engines.offers_of, lambda: Room("default", 64, 512))


@pytest.mark.parametrize(
    ("system", "topology", "workload"),
    [
        ("mariadb-11.8.6", {"nodes": 3}, {}),
        ("pgvector-0.8.5", {"runtime": "docker"}, {}),
        ("weaviate-1.27.0", {"external": {"etcd": "etcd-3.5.35"}}, {}),
        ("faiss-1.15.1-library", {"limits": {"cpus": 1}}, {}),
        ("faiss-1.15.1-library", {}, {"filter": {"field": "category", "in": [1]}}),
        ("mariadb-11.8.6", {}, {"nq": 10}),
        ("mariadb-11.8.6", {}, {"stream": {"insert_per_s": 10}}),
        ("mariadb-11.8.6", {}, {"client": "sdk"}),
    ],
)
def test_index_topology_request_and_protocol_that_a_system_lacks_can_be_listed(
    system: str, topology: dict, workload: dict
) -> None:
    entry = {**SYSTEMS[SYSTEMS[system].get("of", system)], **SYSTEMS[system]}
    with pytest.raises(Unsupported):
        engines.offers_of(entry["engine"]).check(entry, {**STANDALONE, **topology}, INDEX, {"k": 10, **workload})
    engines.offers_of(entry["engine"]).check(entry, STANDALONE, INDEX, {"k": 10})


@pytest.mark.parametrize(
    ("topology", "said"),
    [
        ({"runtime": "native"}, ""),
        ({"limits": {"cpus": 2, "memory_mib": 8192}}, ""),
        ({"limits": {"cpus": 2.5}}, "limits.cpus: wants 2.5 cores, platform here has 2"),
        ({"limits": {"memory_mib": 16384}}, "limits.memory_mib: wants 16 GiB, platform here has 8 GiB"),
        (
            {"limits": {"cpus": 1}, "external_limits": {"etcd": {"cpus": 4}}},
            "external_limits.etcd.cpus: wants 4 cores, platform here has 2",
        ),
        (
            {"role_limits": {"querynode": {"cpus": 8}}},
            "role_limits.querynode.cpus: wants 8 cores, platform here has 2",
        ),
    ],
)
def test_a_limit_above_what_the_platform_has_is_its_reason(topology: dict, said: str) -> None:
    assert beyond(read(Topology, schema("topologies")["additionalProperties"], topology), Room("here", 2, 8)) == said


def test_room_is_as_declared_then_as_first_measured_then_this_machines(tmp_path: Path) -> None:
    both = {"capacity": {"cores": 64, "memory_gib": 512}, "expect": {"cores": 32, "memory_gib": 256}}
    assert sizing.room("lab", both, tmp_path) == Room("lab", 64, 512)
    found = platform.facts()
    assert sizing.room("lab", {}, tmp_path) == Room("lab", found["cores"], found["memory_gib"])
    (tmp_path / "lab.json").write_text(
        json.dumps({"platform": "lab", "facts": {**found, "cores": 48, "memory_gib": 96}})
    )
    assert sizing.room("lab", {"expect": {"cores": 32}}, tmp_path) == Room("lab", 32, 96)


# In the report.


LISTED = [
    Absent("blobs", "milvus-2.3.5", "large", "k10", "", "not measurable here", "limits.cpus: wants 32 cores"),
    Absent("blobs", "weaviate-1.27.0", "standalone", "k10", "", "unsupported", "it lacks <b>lists</b> | of any kind"),
]


def test_the_table_of_them_says_each_ones_reason_and_can_be_downloaded() -> None:
    (table,) = spec.of_absent(LISTED)
    assert downloads.as_markdown(table).splitlines()[-4:] == [
        "| Dataset | System | Topology | Workload | State | Why |",
        "| --- | --- | --- | --- | --- | --: |",
        "| blobs | milvus-2.3.5 | large | k10 | not measurable here | limits.cpus: wants 32 cores |",
        r"| blobs | weaviate-1.27.0 | standalone | k10 | unsupported | it lacks \<b\>lists\</b\> \| of any kind |",
    ]
    assert spec.of_absent([]) == []
    assert sentence(LISTED) == "2 cells are listed instead of measured: 1 unsupported, 1 not measurable here"
    assert sentence(LISTED[:1]) == "1 cell is listed instead of measured: 1 not measurable here" and sentence([]) == ""


def test_the_pages_list_them_beside_what_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    world = World({"blobs": ("l2", 1000, 8)})
    write_page(world.tidy(), Path("without"), title="T")
    write_page(world.tidy(), Path("with"), title="T", absent=LISTED)
    index, cells = (Path("with", name).read_text() for name in ("index.html", "cells.html"))
    count = len(world.cells)
    assert f"{count + 2} cells: {count} valid, 0 invalid, 0 not measured, 1 unsupported, 1 not measurable here" in cells
    assert f"{count} cells: {count} valid, 0 invalid, 0 not measured." in Path("without", "cells.html").read_text()
    (row,) = re.findall(r"<tr data-cell[^>]*>(?:(?!</tr>).)*wants 32 cores.*?</tr>", cells)
    assert re.sub(r"<[^>]+>", "|", row).replace("||", "|") == (
        "|blobs|milvus-2.3.5|large|k10|not measurable here|limits.cpus: wants 32 cores|—|—||—|"
    )
    assert '<a href="#absent">2 cells are listed instead of measured: 1 unsupported, 1 not measurable here</a>' in index
    assert "it lacks &lt;b&gt;lists&lt;/b&gt;" in index and "<b>lists" not in index + cells
    assert "Every cell that can be was measured" in index
    assert "#absent" not in Path("without", "index.html").read_text()
    assert json.loads(Path("with", "tables", "U.json").read_text())["rows"][0]["labels"][-1] == "not measurable here"
    for file in Path("without").glob("numbers.*"):
        assert file.read_bytes() == Path("with", file.name).read_bytes(), "what is listed is no number"


def test_an_experiment_of_which_nothing_can_be_measured_has_a_report_that_says_so_and_verifies(
    toy: Toy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    toy.block["topologies"] = ["large"]
    found = expand(toy)
    monkeypatch.chdir(toy.folder)
    monkeypatch.setenv("ANNCESTRY_CONFIG", str(toy.folder / "config"))
    for command in (["table", found.table], ["report", found.report], ["summary"], ["plan"], ["cells"], ["verify"]):
        assert cli.main(command) == 0, capsys.readouterr().err
    said = capsys.readouterr().out
    assert said.count("4 cells are listed instead of measured: 2 unsupported, 2 not measurable here") == 2
    assert "not measurable here  blobs-l2/red-1.0/large/k5: limits.cpus: wants 32 cores, platform default has 2" in said
    assert "Nothing of what was asked can be measured here" in Path("reports/default/index.html").read_text()
    for command in (["plan"], ["plan", "--paper"], ["summary"]):
        assert cli.main([*command, "--json"]) == 0
        listed = [(each["state"], each["workload"]) for each in json.loads(capsys.readouterr().out)["absent"]]
        assert sorted(listed) == 2 * [("not measurable here", "k5")] + 2 * [("unsupported", "k5-lists")], command
    page = Path(found.report_path).with_name("cells.html")
    page.write_text(page.read_text().replace("wants 32 cores", "wants 64 cores"))
    assert cli.main(["verify"]) == 2, "a reason is held against the matrix, too"


def test_snakemake_measures_the_others_only(toy: Toy) -> None:
    jobs = toy.jobs()
    assert jobs["load"] == jobs["query"] == jobs["recall"] == 2
    toy.block.update(topologies=["standalone"], workloads=["k5"])
    assert toy.jobs() == jobs


@pytest.mark.parametrize(
    ("experiment", "state", "cells"),
    [
        ("indexes", "unsupported", 12),
        ("milvus-2.2-report", "not measurable here", 21),
        ("milvus-2.2-cluster", "not measurable here", 7),
    ],
)
def test_the_documents_experiments_list_what_can_not_be_measured(experiment: str, state: str, cells: int) -> None:
    absent = workflow.expand(workflow.Choice(ROOT / "config", experiment)).absent
    assert [cell.state for cell in absent] == [state] * cells
