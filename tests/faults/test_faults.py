"""When something goes wrong: a clear sentence, exit ≠ 0, nothing lost, and the next run does only what is missing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from anncestry import workflow
from tests.toy import Toy, anncestry

pytestmark = pytest.mark.faults

FINISH = {"table": 1, "report": 1, "all": 1}


@pytest.fixture
def toy(tmp_path):
    """One dataset, two systems, standalone, two workloads."""
    toy = Toy.make(tmp_path / "toy")
    toy.block["datasets"] = ["blobs-l2"]
    toy.block["topologies"] = ["standalone"]
    return toy


def fails(toy: Toy, *words: str, arguments: tuple[str, ...] = ()) -> str:
    done = toy.snakemake(*arguments, check=False)
    text = done.stdout + done.stderr
    assert done.returncode != 0, text
    for word in words:
        assert word in text, text
    return text


def download_fails(toy: Toy, *words: str) -> None:
    """The command of the rule is refused in one sentence with these words, and leaves no record."""
    toy.save()
    cell, *_ = workflow.expand(workflow.Choice(toy.folder / "config", "default")).cells
    done = anncestry(toy.folder, "download", cell.download)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    for word in ("anncestry download: ", *words):
        assert word in done.stderr, done.stderr
    assert not list((toy.folder / "data").rglob("record.json"))


def present(toy: Toy, stage: str, system: str) -> list[Path]:
    return sorted((toy.folder / "results" / stage).rglob(f"*/{system}/**/*@*.json"))


def test_a_killed_or_hanging_server_costs_its_own_cells_only_and_once_mended_exactly_those_are_measured(
    toy, monkeypatch
):
    monkeypatch.setenv("FLAT_PROBE_S", "30")  # what hangs is given up sooner
    systems = toy.files["systems"]
    for wrong in ("killed-at-start", "killed-on-load", "killed-on-query", "hangs"):
        (toy.folder / wrong).write_text(wrong)
        systems[wrong] = {**systems["red-1.0"], "settings": {"lie": f"@{toy.folder / wrong}"}}
    toy.files["workloads"]["k7"]["timeout_s"] = 1
    toy.block.update(systems=["red-1.0", *systems.keys() - {"red-1.0", "blue-1.0"}], workloads=["k7"])
    text = fails(toy, "killed-at-start", "killed-on-load", "k7 on killed-on-query", "flat: Probe: DEADLINE_EXCEEDED",
                 arguments=("--keep-going",))  # fmt: skip
    assert "Traceback" not in text
    assert not toy.at_work()
    assert {path.parts[-3] for path in (toy.folder / "results" / "query").rglob("k7@*.json")} == {"red-1.0"}
    # Two loads that never were, and the sessions of two that are good.
    assert toy.jobs() == {"load": 2, "record": 2, "session": 4, "query": 4, "recall": 4, **FINISH}
    for name in systems.keys() - {"red-1.0", "blue-1.0"}:
        (toy.folder / name).write_text("")
    whole = {path: path.read_bytes() for path in present(toy, "query", "red-1.0")}
    toy.snakemake("--until", "recall", "--keep-going")
    assert all(len(present(toy, "recall", name)) == 1 for name in systems.keys() - {"blue-1.0"})
    assert whole == {path: path.read_bytes() for path in whole}, "what was whole was left alone"


@pytest.fixture(scope="module")
def dying(tmp_path_factory):
    """One sound system beside three whose servers die: when loading, in one of two workloads, before they are up.

    Run once, with --keep-going; the toy and all that was printed.
    """
    toy = Toy.make(tmp_path_factory.mktemp("dying"))
    red = toy.files["systems"]["red-1.0"]
    for lie in ("die-on-load", "die-on-query", "no-start"):
        toy.files["systems"][lie] = {**red, "settings": {"lie": lie}}
    toy.block.update(
        datasets=["blobs-l2"],
        systems=["red-1.0", "die-on-load", "die-on-query", "no-start"],
        topologies=["standalone"],
        workloads=["k5", "k7"],
    )
    return toy, fails(toy, "anncestry load: flat", arguments=("--keep-going",))


def test_a_server_that_dies_during_the_load_costs_its_own_cells_only(dying):
    toy, text = dying
    assert "out of memory while inserting, the end" in text
    assert len(present(toy, "recall", "red-1.0")) == 2
    assert present(toy, "load", "die-on-load") == present(toy, "query", "die-on-load") == []


def test_a_server_that_does_not_come_up_shows_its_log(dying):
    toy, text = dying
    assert "the data folder was written by a newer version" in text
    assert present(toy, "load", "no-start") == []


def test_a_server_that_dies_during_a_query_run_costs_that_workload_only(dying):
    toy, text = dying  # k7 asks by two clients, of which this server dies
    for words in ("segmentation fault in search, the end", "k7 on die-on-query, blobs-l2"):
        assert words in text
    assert {path.name.split("@")[0] for path in present(toy, "recall", "die-on-query")} == {"k5"}


def test_what_a_dying_server_cost_is_tried_again_and_nothing_else(dying):
    toy, _ = dying
    missing = {"load": 2, "record": 2, "session": 5, "query": 5, "recall": 5, **FINISH}
    assert toy.planned() == missing, "a failed session is tried again, not taken for a complete one"


def test_an_invalid_record_is_on_the_page_with_its_reason_and_is_no_number_anywhere(toy):
    toy.files["systems"]["blue-1.0"]["settings"] = {"lie": "lose-rows"}
    toy.block["workloads"] = ["k7"]
    toy.snakemake()
    (table,) = (toy.folder / "results" / "table").glob("*/numbers.json")
    numbers = json.loads(table.read_text())
    of_blue = [row for row in numbers if row["system"] == "blue-1.0"]
    assert len(of_blue) > 50
    assert {row["value"] for row in of_blue} == {None}
    assert any("538 of 540 rows" in row["reason"] for row in of_blue)
    assert all(row["value"] is not None for row in numbers if row["system"] == "red-1.0" and row["metric"] == "p50_ms")
    page = (toy.folder / "reports" / "default" / "index.html").read_text()
    assert "538 of 540 rows" in page
    assert toy.planned() == {}


def test_a_dataset_of_another_content_than_pinned_is_refused(toy):
    toy.files["datasets"]["blobs-l2"]["content"] = {"base": "0" * 64, "queries": "1" * 64}
    download_fails(toy, "blobs-l2", "0000")


def test_no_network_is_said_with_every_source_that_was_tried(toy):
    toy.files["datasets"]["blobs-l2"]["sources"] = [
        {"kind": "url", "format": "hdf5", "url": "http://127.0.0.1:9/one.hdf5"},
        {"kind": "url", "format": "hdf5", "url": "http://127.0.0.1:9/two.hdf5"},
    ]
    download_fails(toy, "blobs-l2", "one.hdf5", "two.hdf5")


def test_a_truncated_file_is_refused_by_name_and_its_repair_is_enough(toy, tmp_path):
    rows = np.random.RandomState(1).rand(600, 8).astype("<f4")
    whole = b"".join(np.int32(8).tobytes() + row.tobytes() for row in rows)
    base, queries = tmp_path / "base.fvecs", tmp_path / "queries.fvecs"
    base.write_bytes(whole[: 540 * 36 - 5])
    queries.write_bytes(whole[540 * 36 :])
    source = {"kind": "file", "format": "fvecs", "base": str(base), "queries": str(queries)}
    toy.files["datasets"]["blobs-l2"]["sources"] = [source]
    fails(toy, "base.fvecs")
    base.write_bytes(whole[: 540 * 36])
    toy.one_cell()
    toy.snakemake("--until", "normalize", "--keep-going")
    left = toy.planned()
    assert "truth" in left and not left.keys() & {"download", "normalize"}


def test_a_vector_that_is_no_number_is_refused_by_file_and_row(toy, tmp_path):
    rows = np.random.RandomState(1).rand(540, 8).astype("f4")
    rows[77, 3] = np.nan
    np.save(tmp_path / "base.npy", rows)
    np.save(tmp_path / "queries.npy", np.random.RandomState(2).rand(60, 8).astype("f4"))
    source = {
        "kind": "file",
        "format": "npy",
        "base": str(tmp_path / "base.npy"),
        "queries": str(tmp_path / "queries.npy"),
    }
    toy.files["datasets"]["blobs-l2"]["sources"] = [source]
    download_fails(toy, "base.npy", "77")


def test_bad_config_is_one_sentence_before_anything_runs(toy):
    toy.block["workloads"].append("k55")
    text = fails(toy, "unknown workload 'k55'", "did you mean 'k5'")
    assert "Traceback" not in text
    assert not (toy.folder / "data").exists()


def test_an_unknown_config_key_on_the_command_line_is_refused(toy):
    done = toy.snakemake("-n", check=False, config=("dataset=x",))
    assert done.returncode != 0
    assert "--config dataset=…: unknown key" in done.stdout + done.stderr
