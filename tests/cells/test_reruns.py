"""Only what changed runs again: exact job counts for every row of the rerun table, on a toy matrix of 8 cells.

The toy matrix is measured once for real, on servers that scan flat; every test then works on a copy of it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from anncestry import workflow
from anncestry.cells.matrix import Cell
from tests.toy import ROOT, Toy, parse_jobs

EVERYTHING = {
    "artifact": 2,
    "download": 2,
    "normalize": 2,
    "truth": 4,
    "load": 4,
    "record": 4,
    "session": 8,
    "query": 8,
    "recall": 8,
    "table": 1,
    "report": 1,
    "all": 1,
}
PUBLISH = {"table": 1, "report": 1, "all": 1}
ONE_SYSTEM = {"load": 2, "record": 2, "session": 4, "query": 4, "recall": 4, **PUBLISH}
ALL_PARTS = ("data", "results", "scratch")


@pytest.fixture(scope="session")
def measured(tmp_path_factory):
    toy = Toy.make(tmp_path_factory.mktemp("toy"))
    toy.files["systems"]["blue-1.0"]["engine"] = "tests:flat"  # the same engine by another name, so that there are two
    toy.block["topologies"] = ["standalone"]
    done = toy.snakemake()
    assert parse_jobs(done.stdout + done.stderr) == EVERYTHING
    return toy


@pytest.fixture
def toy(measured, tmp_path):
    return measured.copy(tmp_path / "clone", *ALL_PARTS)


def test_a_second_run_has_nothing_to_do(toy):
    assert toy.jobs() == {}


def test_sessions_leave_nothing_behind(measured):
    assert sorted(path.name for path in (measured.folder / "scratch").iterdir()) == ["artifact", "index", "measured"]
    assert not list((measured.folder / "scratch" / "measured").iterdir())


def test_a_version_bump_runs_that_system_only(toy):
    toy.files["systems"]["blue-1.0"]["version"] = "1.1"
    assert toy.planned() == {"artifact": 1, **ONE_SYSTEM}


def test_a_changed_setting_runs_that_system_only_and_fetches_nothing(toy):
    toy.files["systems"]["blue-1.0"]["settings"] = {"lie": "no"}
    assert toy.planned() == ONE_SYSTEM


def test_a_changed_dataset_digest_runs_that_dataset_only(toy):
    toy.files["datasets"]["blobs-l2"]["content"] = {"base": "0" * 64, "queries": "1" * 64}
    assert toy.planned() == {"download": 1, "normalize": 1, "truth": 2, **ONE_SYSTEM}


def test_an_added_workload_runs_that_workload_only_on_the_stored_indexes(toy):
    toy.block["workloads"].append("k7")
    assert toy.planned() == {"session": 4, "query": 4, "recall": 4, **PUBLISH}


def test_a_removed_workload_only_publishes_anew(toy):
    toy.block["workloads"].pop()
    assert toy.planned() == PUBLISH


def test_a_bumped_query_epoch_measures_every_cell_again_and_loads_nothing(toy):
    toy.files["epochs"]["query"]["epoch"] = 2
    assert toy.planned() == {"session": 8, "query": 8, "recall": 8, **PUBLISH}


def test_a_bumped_recall_epoch_recomputes_recall_only(toy):
    toy.files["epochs"]["recall"]["epoch"] = 2
    assert toy.planned() == {"recall": 8, **PUBLISH}


def test_a_bumped_epoch_of_an_engine_loads_and_measures_its_systems_only(toy):
    toy.files["epochs"]["engines"] = {"tests:flat": {"epoch": 1}, "tests.flat": {"epoch": 1}}
    assert toy.planned() == {}
    toy.files["epochs"]["engines"]["tests:flat"]["epoch"] = 2
    assert toy.planned() == ONE_SYSTEM


def test_a_tampered_result_is_not_laundered_into_a_new_report(toy):
    victim = next((toy.folder / "results" / "query").rglob("*.json"))
    victim.write_text(victim.read_text().replace("p50_ms", "p50_ns"))
    assert toy.planned() == {"session": 2, "query": 1, "recall": 1, **PUBLISH}
    assert "p50_ns" in victim.with_name(f"{victim.name}.damaged").read_text(), "it is kept, under another name"


def test_touched_config_runs_nothing(toy):
    later = time.time() + 60
    for path in (toy.folder / "config").iterdir():
        os.utime(path, (later, later))
    assert toy.jobs() == {}


def test_a_deleted_cell_is_measured_again_alone(toy):
    victim = next((toy.folder / "results" / "query").rglob("k5@*.json"))
    key = victim.stem.split("@")[1]
    for path in victim.parent.glob(f"*{key}*"):
        path.unlink()
    assert toy.planned() == {"session": 2, "query": 1, "all": 1}


def test_a_fresh_clone_with_pulled_results_has_nothing_to_do(measured, tmp_path):
    assert measured.copy(tmp_path / "results", "results").jobs() == {}
    assert measured.copy(tmp_path / "both", "data", "results").planned() == {}


def test_a_fresh_clone_with_data_then_a_bump_runs_that_system_only(measured, tmp_path):
    toy = measured.copy(tmp_path / "clone", "data", "results")
    toy.files["systems"]["blue-1.0"]["version"] = "1.1"
    assert toy.planned() == {"artifact": 1, **ONE_SYSTEM}


def test_a_fresh_clone_with_results_only_then_a_bump_gets_the_data_it_needs(measured, tmp_path):
    toy = measured.copy(tmp_path / "clone", "results")
    toy.files["systems"]["blue-1.0"]["version"] = "1.1"
    assert toy.planned() == {"artifact": 1, "download": 2, "normalize": 2, "truth": 4, **ONE_SYSTEM}


def test_a_fresh_clone_with_an_added_workload_loads_again_but_publishes_no_new_load_time(measured, tmp_path):
    toy = measured.copy(tmp_path / "clone", "data", "results")
    toy.block["workloads"].append("k7")
    assert toy.planned() == {"artifact": 2, "load": 4, "session": 4, "query": 4, "recall": 4, **PUBLISH}


def test_a_clone_whose_results_were_not_pulled_is_refused(measured, tmp_path):
    toy = measured.copy(tmp_path / "clone")
    (toy.folder / ".dvc").mkdir()
    (toy.folder / ".dvc" / "config").write_text(
        "[core]\n    remote = team\n['remote \"team\"']\n    url = s3://bench\n"
    )
    (toy.folder / "results.dvc").write_text(f"outs:\n- md5: {'0' * 32}.dir\n  nfiles: 3\n  path: results\n")
    done = toy.snakemake("-n", check=False)
    assert done.returncode != 0
    assert "dvc pull" in done.stdout + done.stderr


def test_a_prefix_beside_its_parent_shares_the_download_and_has_the_rest_of_its_own(toy):
    toy.files["datasets"]["short"] = {"of": "blobs-l2", "prefix": 300}
    toy.block["datasets"] = ["blobs-l2", "short"]
    assert toy.planned() == {"normalize": 1, "truth": 2, **ONE_SYSTEM}
    toy.block["systems"], toy.block["workloads"] = ["red-1.0"], ["k5"]
    toy.snakemake()
    assert toy.planned() == {}


def unpublish(toy: Toy, workload: str = "k5", runs: tuple[int, ...] = (0, 1)) -> Cell:
    """Take one cell's measurement out of the results, and measure `runs` of it again without publishing them."""
    matrix = workflow.expand(workflow.Choice(toy.folder / "config", "default"))
    cell = next(cell for cell in matrix.cells if cell.workload == workload)
    for path in (toy.folder / cell.query_path).parent.glob(f"*{cell.query}*"):
        path.unlink()
    measure(toy, cell, *runs)
    return cell


def measure(toy: Toy, cell: Cell, *runs: int) -> None:
    for run in runs:
        subprocess.run(
            [sys.executable, "-m", "anncestry", "session", f"{run:012d}", str(run), cell.query],
            cwd=toy.folder, check=True, capture_output=True,
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "ANNCESTRY_CONFIG": str(toy.folder / "config")},
        )  # fmt: skip


def test_a_measured_cell_is_published_by_the_next_run_without_being_measured_again(toy):
    cell = unpublish(toy)
    assert toy.planned() == {"query": 1, "all": 1}
    assert all((toy.folder / cell.run_path(number)).exists() for number in (0, 1))
    toy.snakemake()
    assert toy.planned() == {}
    assert not (toy.folder / cell.measured_path).exists()


def test_answers_are_scored_by_the_process_that_keeps_them(toy):
    cell = unpublish(toy)
    published = toy.folder / cell.recall_path
    before = json.loads(published.read_text())
    published.unlink()
    done = by_hand(toy, "query", cell.query)
    assert done.returncode == 0, done.stderr
    scored = toy.folder / "scratch" / "session" / cell.recall / "recall.json"
    assert json.loads(scored.read_text()).keys() == before.keys()
    made = scored.stat().st_ino
    assert toy.planned() == {"recall": 1, "all": 1}
    toy.snakemake()
    assert published.stat().st_ino == made, "it was moved to its place, not made again"


def test_of_a_cell_that_was_interrupted_only_the_missing_round_is_measured(toy):
    cell = unpublish(toy, runs=(0,))
    kept = (toy.folder / cell.run_path(0)).read_bytes()
    assert toy.planned() == {"session": 1, "query": 1, "all": 1}
    toy.snakemake()
    (published,) = (toy.folder / cell.query_path).parent.glob(f"*@{cell.query}.json")
    assert json.loads(published.read_text())["rounds"][0]["created"] == json.loads(kept)["created"]


def test_runs_on_two_builds_of_an_index_are_not_put_together(toy):
    cell = unpublish(toy, runs=(0,))
    shutil.rmtree((toy.folder / cell.index_path).parent)
    done = toy.snakemake(check=False)
    assert done.returncode != 0
    assert "run 1 is dropped, and the next call of the workflow measures it anew" in done.stdout + done.stderr
    assert toy.planned() == {"session": 1, "query": 1, "all": 1}
    toy.snakemake()
    assert toy.planned() == {}


def test_rounds_interleave_the_runs_of_all_systems(toy):
    """Loads first, then run 1 of everything, then run 2 of everything, whatever the order of the systems."""
    toy.files["epochs"]["load"]["epoch"] = 2
    toy.block["datasets"] = ["blobs-l2"]
    toy.block["workloads"] = ["k5"]
    toy.snakemake("--until", "query", "--keep-going")
    rounds: dict[int, list[str]] = {}
    loads: list[str] = []
    matrix = workflow.expand(workflow.Choice(toy.folder / "config", "default"))
    for cell in matrix.cells:
        loads.append(json.loads((toy.folder / cell.load_path).read_text())["created"])
        record = json.loads((toy.folder / cell.query_path).read_text())
        for run in record["rounds"]:
            rounds.setdefault(run["run"], []).append(run["created"])
        assert len({run["session"]["key"] for run in record["rounds"]}) == 2, "each run has a server of its own"
    assert max(loads) <= min(rounds[0])
    assert max(rounds[0]) <= min(rounds[1])


def test_another_matrix_leaves_the_files_of_cells_that_did_not_change_untouched(toy):
    def state() -> dict[str, tuple[int, bytes]]:
        return {
            str(path): (path.stat().st_mtime_ns, path.read_bytes())
            for path in (toy.folder / "results").rglob("*")
            if path.is_file() and "red-1.0" in str(path)
        }

    before = state()
    toy.files["systems"]["blue-1.0"]["settings"] = {"lie": "no"}
    toy.block["datasets"] = ["blobs-l2"]
    toy.snakemake()
    assert len(before) > 20
    assert state() == before
    assert toy.planned() == {}


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """A copy of this program, which tests edit; what Python compiles of it is kept from test to test."""
    code = tmp_path_factory.mktemp("program")
    for part in ("src", "casestudies", "workflow", "profiles", "tests", "config"):
        shutil.copytree(ROOT / part, code / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "Snakefile", code)
    return code


@pytest.fixture
def edited(program, toy):
    """Changes one of its files and says which jobs it would run then; in the end its files are as they were."""
    epochs = program / "config/epochs.yaml"
    before = {epochs: epochs.read_text()}

    def edit(name: str, change: Callable[[str], str] = lambda text: f"{text}\n# a remark\n") -> dict[str, int]:
        file = program / name
        before[file] = file.read_text()
        file.write_text(change(before[file]))
        assert file.read_text() != before[file]
        done = subprocess.run(
            [sys.executable, "-m", "snakemake", "-n", "--snakefile", str(program / "Snakefile"), "--cores", "8",
             "--directory", str(toy.folder), "all", "--config", f"config_dir={toy.folder / 'config'}"],
            capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONPATH": f"{program / 'src'}:{program}"},
        )  # fmt: skip
        return parse_jobs(done.stdout + done.stderr)

    yield edit
    for file, text in before.items():
        file.write_text(text)


def test_edited_report_code_draws_the_page_again_only(edited):
    assert edited("src/anncestry/report/site/page.py") == {"report": 1, "all": 1}


def test_edited_table_code_gathers_and_draws_again_only(edited):
    assert edited("src/anncestry/report/model/numbers.py") == PUBLISH


def test_a_cosmetic_edit_of_the_query_rule_runs_nothing(edited):
    was, is_ = "Publishing {wildcards", "Holding {wildcards"
    assert edited("workflow/rules/query.smk", lambda text: text.replace(was, is_)) == {}


def test_edited_measuring_code_runs_nothing_but_its_epoch_guard_speaks(edited, program, toy):
    assert edited("src/anncestry/measure/session.py") == {}

    def guard(*arguments: str, code: Path = program) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "anncestry", "epochs", *arguments],
            capture_output=True, text=True, check=False, cwd=toy.folder,
            env={**os.environ, "PYTHONPATH": str(code / "src"), "ANNCESTRY_CONFIG": str(program / "config")},
        )  # fmt: skip

    before = yaml.safe_load((program / "config/epochs.yaml").read_text())
    assert guard("--attest", "--why", "as this test finds them", code=ROOT).returncode == 0
    spoke = guard()
    assert spoke.returncode == 2
    assert "measuring code of query, pair changed under the same epoch" in spoke.stderr
    assert guard("--bump").returncode == 0
    assert guard().returncode == 0
    after = yaml.safe_load((program / "config/epochs.yaml").read_text())
    for kind in ("engines", "features"):
        had, has = ({name: of["epoch"] for name, of in epochs.pop(kind).items()} for epochs in (before, after))
        assert had == has
    del after["attestations"]
    assert {stage for stage in after if after[stage]["epoch"] != before[stage]["epoch"]} == {"query", "pair"}


def by_need(toy: Toy, **rounds: float) -> None:
    """One cell of a system, whose workload says nothing of its runs."""
    toy.one_cell()
    toy.files["workloads"]["k5"].pop("runs", None)
    toy.files["config"]["rounds"] = {"first": 2, "most": 4, "interval_percent": 10, "minutes": 60, **rounds}


NEEDED = {"session": 2, "rounds": 1, "query": 1, "recall": 1, **PUBLISH}


def needed(toy: Toy) -> dict[str, Any]:
    (cell,) = workflow.expand(workflow.Choice(toy.folder / "config", "default")).cells
    record: dict[str, Any] = json.loads((toy.folder / cell.query_path).read_text())
    return record


def test_a_cell_is_measured_in_as_many_rounds_as_it_needs(toy):
    by_need(toy, interval_percent=1e-9)
    assert toy.planned() == NEEDED
    toy.snakemake()
    assert toy.planned() == {}
    wide = needed(toy)
    assert len(wide["rounds"]) == 4 and wide["need"]["state"] == "most rounds"
    assert len({run["session"]["key"] for run in wide["rounds"]}) == 4, "each round has a server of its own"
    assert len(wide["need"]["half_width_percent"]) == 3 and "stopped" not in wide["need"]
    done = by_hand(toy, "verify")
    assert done.returncode == 0, done.stdout + done.stderr

    by_need(toy, interval_percent=1e100)  # two rounds of a busy machine may differ by anything
    assert toy.planned() == NEEDED, "another rule is another key"
    toy.snakemake()
    assert needed(toy)["need"]["state"] == "narrow" and len(needed(toy)["rounds"]) == 2

    by_need(toy, interval_percent=1e-9, most=5, minutes=0)
    toy.snakemake()
    assert needed(toy)["need"]["stopped"] == "the 0 minutes for further rounds were over"
    assert toy.planned() == {}, "time is in no key"
    toy.files["config"]["rounds"]["minutes"] = 60
    assert toy.planned() == {}


def by_hand(toy: Toy, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**toy.environment(), "ANNCESTRY_CONFIG": str(toy.folder / "config")}
    environment["PYTHONPATH"] += f"{os.pathsep}{ROOT / 'src'}"
    return subprocess.run(
        [sys.executable, "-m", "anncestry", *arguments],
        capture_output=True, text=True, check=False, cwd=toy.folder, env=environment,
    )  # fmt: skip


def test_the_command_of_a_rule_works_on_the_files_that_it_is_given(toy, tmp_path):
    cell = workflow.expand(workflow.Choice(toy.folder / "config", "default")).cells[0]
    query, out = toy.folder / cell.query_path, tmp_path / "other" / "recall.json"
    shutil.copytree(query.parent, tmp_path / "moved")
    shutil.rmtree(query.parent)
    moved = tmp_path / "moved" / query.name
    done = by_hand(toy, "recall", cell.recall, "--query", str(moved), "--out", str(out))
    assert done.returncode == 0, done.stderr
    again, published = (json.loads(path.read_text()) for path in (out, toy.folder / cell.recall_path))
    own = ("inputs", "created", "code", "seal")
    assert {**again, **dict.fromkeys(own)} == {**published, **dict.fromkeys(own)}


def test_a_command_empties_no_folder_but_its_own(toy, tmp_path):
    cell = workflow.expand(workflow.Choice(toy.folder / "config", "default")).cells[0]
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "mine.txt").write_text("mine")
    done = by_hand(toy, "normalize", cell.vectors, "--out", str(tmp_path / "letters" / "record.json"))
    assert done.returncode == 2 and "letters is not empty" in done.stderr
    assert (tmp_path / "letters" / "mine.txt").read_text() == "mine"


def test_a_key_of_another_matrix_is_refused(toy):
    done = toy.snakemake("results/recall/blobs-l2/red-1.0/standalone/k5@0123456789ab.json", check=False)
    assert done.returncode != 0
    assert "not in the current matrix" in done.stdout + done.stderr
