"""Pairs in the matrix: what they expand to, what runs again when one side changes, and what can't be paired."""

from __future__ import annotations

import json
import os
import re
import signal
import time

import psutil
import pyarrow as pa
import pyarrow.compute as compute
import pyarrow.parquet as parquet
import pytest

import tests.toy
from anncestry import workflow
from anncestry.errors import ConfigError
from anncestry.provenance import records
from anncestry.runtimes import control_groups
from tests.toy import Toy

DUET = {"slice_s": 0.05, "discard_ms": 5, "blocks": 10, "first": 3, "most": 3}
TUNED = {"k": 5, "clients": 1, "queries": 20, "warmup": 10, "target_recall": 0.9, "tuning_queries": 30}
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
        **{"duet": 6, "rounds": 1, "pair": 2, "session": 1, "query": 1, "recall": 1},
        **PUBLISH,
    }, "a pair and its control, on three pairs of servers each"
    said = ""
    for _ in range(3):  # what is measured here is short: a machine that stands still spoils it
        done = toy.snakemake("--logger=anncestry", check=False)
        said += done.stderr
        if done.returncode == 0 and is_whole(toy):
            break
        anncestry(toy, "drop", "blobs-l2/red-1.0..*/standalone/k5", "--yes")
    assert done.returncode == 0, said
    assert "Measuring pair 2 of servers: red-1.0..blue-1.0 on blobs-l2, standalone, k5 (" in said
    assert "server" in said and "Building DAG" not in said and "%|" not in said, "no log of Snakemake or of a job"
    return toy


def is_whole(toy):
    """Whether both pairs are valid and have their ratio."""
    paths = (toy.folder / "results" / "pair").rglob("*@*.json")
    return all(pair["valid"] and pair["quantities"]["qps"]["value"] for pair in map(records.read_json, paths))


@pytest.fixture
def toy(measured, tmp_path):
    return measured.copy(tmp_path / "clone", "data", "results", "scratch")


def test_a_measured_pair_has_nothing_to_do(toy):
    assert toy.planned() == {}


def test_a_bumped_side_b_reruns_its_load_and_its_pair_and_neither_the_control_nor_other_cells(toy):
    toy.files["systems"]["blue-1.0"]["version"] = "1.1"
    assert toy.planned() == {"artifact": 1, "load": 1, "record": 1, "duet": 3, "rounds": 1, "pair": 1, **PUBLISH}


def test_a_bumped_side_a_reruns_its_load_its_cells_its_pair_and_the_control(toy):
    toy.files["systems"]["red-1.0"]["version"] = "1.1"
    assert toy.jobs() == {
        **{"artifact": 1, "load": 1, "record": 1, "duet": 6, "rounds": 1, "pair": 2},
        **{"session": 1, "query": 1, "recall": 1},
        **PUBLISH,
    }


def test_other_slices_measure_the_pairs_again_and_load_nothing(toy):
    toy.files["config"]["duet"]["blocks"] = 9
    assert toy.planned() == {"duet": 6, "rounds": 1, "pair": 2, **PUBLISH}


def test_a_bumped_pair_epoch_measures_pairs_only(toy):
    toy.files["epochs"]["pair"]["epoch"] = 2
    assert toy.planned() == {"duet": 6, "rounds": 1, "pair": 2, **PUBLISH}


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
        (lambda toy: toy.block.update(topologies=["cluster-3"]), "has several members there"),
        (lambda toy: toy.block.update(paired=["red-1.0", "bleu-1.0"]), "did you mean 'blue-1.0'"),
        (lambda toy: toy.block.update(rebuilds=2), "rebuilds: unsupported with paired"),
        (lambda toy: toy.files["config"]["duet"].update(slice_s=8), "for 10 s at most"),
        (lambda toy: toy.files["workloads"]["k5"].update(start="cold", warmup=0), "cold is unsupported in pairs"),
        (lambda toy: toy.files["config"]["duet"].update(first=4, most=3), "duet.most: is below duet.first"),
        (
            lambda toy: toy.files["config"]["duet"].update(blocks=3),
            "3 blocks on each of 3 pairs of servers are too few: a pair needs 10",
        ),
    ],
)
def test_what_cannot_be_paired_is_refused_by_name_while_parsing(tmp_path, change, said):
    toy = paired(tmp_path)
    change(toy)
    with pytest.raises(ConfigError, match=said):
        expand(toy)


# What was measured


def anncestry(toy, *words, check=True):
    toy.save()
    done = tests.toy.anncestry(toy.folder, *words)
    assert not check or done.returncode == 0, done.stderr
    return done


def pairs_of(toy):
    """The published records of pairs."""
    return list((toy.folder / "results" / "pair").rglob("*.json"))


def the_pair(toy):
    """The record of the pair that is no control, and where it lies."""
    (path,) = (toy.folder / "results" / "pair").rglob("red-1.0..blue-1.0/*/*.json")
    return path, json.loads(path.read_text())


def test_a_pair_is_published_with_all_that_made_it(toy):
    _, record = the_pair(toy)
    assert record["valid"], [gate for gate in record["gates"] if not gate["ok"]]
    assert [each["started_first"] for each in record["rounds"]] == ["a", "b", "a"], "the order of starts is swapped"
    assert {"qps", "server_cpu_us_per_query", "p50_ms", "p95_ms", "p99_ms"} <= record["quantities"].keys()
    assert all(record["sides"][side]["recall"]["by_id"]["value"] == 1 for side in "ab")
    assert record["contention"]["frozen_cpu_share"] < 0.01
    assert not list((toy.folder / "scratch").glob("paired/*")), "what was published is not kept twice"


def test_the_page_shows_the_pair_and_its_control_and_why_leads_to_slices_and_both_loads(toy):
    (page,) = (toy.folder / "results" / "report").glob("*/index.html")
    text = page.read_text()
    assert 'id="table-J"' in text
    assert "red-1.0 → blue-1.0" in text
    assert "red-1.0 → red-1.0 (control)" in text
    cells = (page.parent / "cells.html").read_text()
    path, record = the_pair(toy)
    assert f'href="#pair-{record["key"]}"' in cells and f'id="pair-{record["key"]}"' in cells, "its gates and spec"
    assert "QPS, b / a</a>" in cells and str(path.relative_to(toy.folder)) in cells
    said = anncestry(toy, "summary").stdout
    assert "in pairs: red-1.0 → blue-1.0 (blobs-l2, standalone, k5)" in said
    assert "CPU a query × " in said
    told = json.loads(anncestry(toy, "summary", "--json").stdout)["pairs"]
    assert {(pair["system"], pair["metric"]) for pair in told} == {
        ("red-1.0..blue-1.0", "pair_qps"),
        ("red-1.0..blue-1.0", "pair_server_cpu_us_per_query"),
    }
    assert all(pair["low"] <= pair["value"] <= pair["high"] and pair["number_id"] for pair in told)
    chain = anncestry(toy, "why", "--system", "red-1.0..blue-1.0", "--metric", "pair_qps").stdout
    assert "slices" in chain
    assert "pair 1 of servers: " in chain
    assert "load_a record" in chain
    assert "load_b record" in chain


def test_verify_makes_every_ratio_again_from_samples_and_slices(toy):
    assert "all published numbers agree" in anncestry(toy, "verify").stdout
    path, record = the_pair(toy)
    record["quantities"]["qps"]["value"] *= 1.01
    path.write_text(json.dumps(records.seal(record)))
    said = anncestry(toy, "verify", check=False).stderr
    assert f"{path.relative_to(toy.folder)}: its quantities are not those that its samples and slices give" in said


def said_of_other(toy, label, edit):
    """What verify says of a pair of which a file was edited, with its record sealed again."""
    path, record = the_pair(toy)
    file = path.parent / record["outputs"][label]["path"]
    parquet.write_table(edit(parquet.read_table(file)), file)
    record["outputs"][label] |= {"sha256": records.sha256_file(file), "bytes": file.stat().st_size}
    path.write_text(json.dumps(records.seal(record)))
    return anncestry(toy, "verify", check=False).stderr


def changed(table, column, change):
    return table.set_column(table.column_names.index(column), column, change(table[column]))


@pytest.mark.parametrize(
    ("edit", "part"),
    [
        (lambda table: changed(table, "cpu_s", lambda cpu_s: compute.multiply(cpu_s, 0.9)), "quantities"),
        (lambda table: changed(table, "other_side_cpu_s", lambda cpu_s: compute.add(cpu_s, 1.0)), "valid"),
        (lambda table: table.filter(compute.less(table["slice"], 6)), "valid"),
    ],
    ids=["quantities", "frozen means frozen", "blocks"],
)
def test_verify_sees_slices_that_were_changed_even_if_the_record_was_sealed_again(toy, edit, part):
    said = said_of_other(toy, "slices", edit)
    assert f"its {part} are not those that its samples and slices give" in said


def test_verify_makes_gates_of_each_side_again_from_its_answers(toy):
    def unknown(table):
        ids = table["ids"].to_pylist()
        ids[0][0] = 540
        return table.set_column(table.column_names.index("ids"), "ids", pa.array(ids, table["ids"].type))

    said = said_of_other(toy, "samples_b", unknown)
    told = r"side b: its gate `known rows` is: 0 of \d+ answers .*; but its samples give: 1 of \d+ .*, which fails"
    assert re.search(told, said)
    assert re.search(r"no longer supported: \d+ numbers: n[0-9a-f]{10}", said)


def test_a_dropped_pair_is_measured_again_and_nothing_else(toy):
    anncestry(toy, "drop", "blobs-l2/red-1.0..blue-1.0/standalone/k5", "--yes")
    assert toy.jobs() == {"duet": 3, "rounds": 1, "pair": 1, **PUBLISH}


def test_a_dropped_load_takes_its_pairs_along(toy):
    anncestry(toy, "drop", "blobs-l2/red-1.0..blue-1.0/standalone/k5", "--load", "--yes")
    assert not pairs_of(toy)
    assert toy.planned() == {
        **{"load": 2, "record": 2, "duet": 6, "rounds": 1, "pair": 2, "session": 1, "query": 1, "recall": 1},
        **PUBLISH,
    }


def test_a_damaged_pair_is_set_aside_and_made_again(toy):
    path, _ = the_pair(toy)
    path.write_text(path.read_text().replace('"valid": true', '"valid": false', 1))
    assert toy.planned() == {"duet": 3, "rounds": 1, "pair": 1, **PUBLISH}
    assert path.with_name(f"{path.name}.damaged").exists()


def test_gc_keeps_what_the_matrix_has_and_removes_a_pair_that_it_has_no_more(toy):
    assert "pair" not in anncestry(toy, "gc", "--results").stdout
    toy.files["config"]["matrix"].pop(0)
    assert "pair of blobs-l2/red-1.0..blue-1.0/standalone" in anncestry(toy, "gc", "--results").stdout


@pytest.mark.long
def test_a_side_that_dies_is_named_and_tried_again_and_one_that_answers_wrongly_makes_its_pair_invalid(tmp_path):
    toy = paired(tmp_path, workloads=["k7"])
    blue = toy.files["systems"]["blue-1.0"]
    toy.files["systems"]["green-1.0"] = {**blue, "settings": {"lie": "unknown-ids"}}
    blue["settings"] = {"lie": "die-on-query"}
    toy.files["config"]["matrix"].append({**toy.block, "paired": ["red-1.0", "green-1.0"]})
    done = toy.snakemake("--keep-going", "--logger=anncestry", check=False)
    said = done.stdout + done.stderr
    assert done.returncode
    assert "is not running any more" in said
    assert "(so far 3 of 3 starts died)" in said, "by the ledger"
    published = {path.parent.parent.name: json.loads(path.read_text()) for path in pairs_of(toy)}
    assert sorted(published) == ["red-1.0..green-1.0", "red-1.0..red-1.0"], "the others go on"
    record = published["red-1.0..green-1.0"]
    assert not record["valid"]
    failed = [gate["gate"] for gate in record["gates"] if not gate["ok"]]
    assert failed
    assert all(name.startswith("b: ") for name in failed), "the side is named"
    blue["settings"] = {}
    toy.snakemake()
    assert len(pairs_of(toy)) == 3


@pytest.mark.long
def test_a_killed_controller_leaves_nothing_frozen_and_the_next_run_goes_on_at_equal_recall(tmp_path):
    toy = paired(tmp_path, workloads=["tuned"])
    toy.files["workloads"]["tuned"] = TUNED
    toy.files["config"]["duet"] |= {"blocks": 100}
    toy.save()
    with toy.running() as run:
        wait_for(lambda: freezing(toy) or run.poll() is not None)
        victim, *_ = freezing(toy)
        os.kill(victim, signal.SIGKILL)
        run.wait(timeout=900)
    toy.files["config"]["duet"] |= {"blocks": 6}
    toy.snakemake()
    published = [json.loads(path.read_text()) for path in pairs_of(toy)]
    assert len(published) == 2
    for side in (record["sides"][name] for record in published for name in "ab"):
        assert (side["tuning"]["target_recall"], side["tuning"]["reached"]) == (0.9, True)
        assert side["ef_search"] == side["tuning"]["ef_search"] == 8, "a flat scan is exact at any effort"
    assert not [group for group in control_groups.groups() if f"{control_groups.PREFIX}{victim}-" in group.name]


def freezing(toy):
    """The processes that cut slices in this toy."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline", "cwd"]):
        words = process.info["cmdline"] or []
        if "duet" in words and process.info["cwd"] == str(toy.folder):
            group = f"{control_groups.PREFIX}{process.pid}-freeze"
            found += [process.pid for path in control_groups.groups() if path.name.startswith(group)]
    return found


def wait_for(condition):
    deadline = time.monotonic() + 900
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
