"""A disk that is full, read-only or gone, and a clock that jumps: said in a sentence; nothing half passes for whole."""

from __future__ import annotations

import ctypes
import json
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from anncestry import workflow
from anncestry.errors import of_machine
from tests.toy import ROOT, Toy

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One cell, measured to the end, with what its stages were made from."""
    toy = Toy.make(tmp_path_factory.mktemp("finished") / "toy")
    toy.one_cell()
    toy.block["workloads"] = ["k7"]
    toy.snakemake()
    return toy


def stage(toy: Toy, *words: str, limit_bytes: int | None = None, environment: dict[str, str] | None = None):
    """One command of a rule; with `limit_bytes` no file that it or its server writes can grow beyond."""

    def limit() -> None:
        if limit_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))
        ctypes.CDLL(None).prctl(24, 1, 0, 0, 0)  # PR_CAPBSET_DROP, CAP_DAC_OVERRIDE: root, too, is held by modes

    return subprocess.run(
        [sys.executable, "-m", "anncestry", *words],
        cwd=toy.folder,
        env={**toy.environment(), "ANNCESTRY_CONFIG": str(toy.folder / "config"), **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limit,
        timeout=300,
    )


def the_cell(toy: Toy):
    return workflow.expand(workflow.Choice(toy.folder / "config", "default")).cells[0]


STAGES = {
    "download": (lambda c: (c.download, c.download_path), 4096),
    "normalize": (lambda c: (c.vectors, c.vectors_path), 1024),
    "truth": (lambda c: (c.truth, c.truth_path), 4096),
    "load": (lambda c: (c.load, c.index_path), 2048),
    "recall": (lambda c: (c.recall, c.recall_path), 256),
}


@pytest.mark.parametrize("name", STAGES)
def test_a_full_disk_is_said_in_one_sentence_and_leaves_nothing_half(finished, tmp_path, name):
    toy = finished.copy(tmp_path / "toy", "data", "scratch", "results")
    where, limit_bytes = STAGES[name]
    key, record = where(the_cell(toy))
    path = toy.folder / record
    whole = json.loads(path.read_text())["outputs"]
    path.unlink()
    full = stage(toy, name, key, limit_bytes=limit_bytes)
    assert full.returncode == 2, full.stderr
    assert "Traceback" not in full.stderr
    assert re.search(rf"anncestry {name}: .*(larger than|is the disk full|disk full|flat: )", full.stderr), full.stderr
    assert not path.exists()
    assert not [file for file in path.parent.rglob(".*") if file.is_file()], "no temporary file is left"
    done = stage(toy, name, key)
    assert done.returncode == 0, done.stderr
    if name != "load":
        assert json.loads(path.read_text())["outputs"] == whole
    assert not toy.at_work()


def test_a_folder_that_may_not_be_written_is_named(finished, tmp_path):
    toy = finished.copy(tmp_path / "toy", "data", "scratch", "results")
    cell = the_cell(toy)
    path = toy.folder / cell.recall_path
    path.unlink()
    path.parent.chmod(0o555)
    refused = stage(toy, "recall", cell.recall)
    path.parent.chmod(0o755)
    assert refused.returncode == 2, refused.stderr
    assert "Traceback" not in refused.stderr
    assert "no permission" in refused.stderr and cell.recall_path.rpartition("/")[0] in refused.stderr


def test_vanished_data_is_made_again_and_nothing_else(finished, tmp_path):
    toy = finished.copy(tmp_path / "toy", "data", "results")
    cell = the_cell(toy)
    (toy.folder / cell.recall_path).unlink()
    shutil.rmtree(toy.folder / "data")
    gone = stage(toy, "recall", cell.recall)
    assert gone.returncode == 2 and "Traceback" not in gone.stderr
    assert "data/" in gone.stderr and "missing" in gone.stderr
    jobs = toy.jobs()
    assert jobs.keys() - {"table", "report"} == {"download", "normalize", "truth", "recall", "all"}, jobs


def test_a_clock_that_jumps_changes_no_duration_and_runs_nothing_again(finished, tmp_path):
    toy = finished.copy(tmp_path / "toy", "data", "scratch", "results")
    jumps = tmp_path / "jumps"
    jumps.mkdir()
    (jumps / "sitecustomize.py").write_text(
        "import itertools, sys, time\n"
        "real, hours = time.time, itertools.cycle((0, 7, -5, 30, -100))\n"
        "def jumping():\n"  # gRPC hands deadlines to its C core, whose clock does not jump here
        "    ours = not sys._getframe(1).f_globals['__name__'].startswith('grpc')\n"
        "    return real() + 3600 * (next(hours) if ours else 0)\n"
        "time.time = jumping\n"
    )
    cell = the_cell(toy)
    (toy.folder / cell.index_path).unlink()
    path = os.pathsep.join([str(jumps), str(ROOT)])
    done = stage(toy, "load", cell.load, environment={"PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    record = json.loads((toy.folder / cell.index_path).read_text())
    assert all(0 <= seconds < 600 for seconds in record["times"].values() if seconds is not None), record["times"]
    assert 0 < record["server"]["up_s"] < 600 and record["valid"], record["gates"]
    for number, file in enumerate(sorted(toy.folder.rglob("*@*/*"))):
        os.utime(file, (1e9 + 1e6 * number, 2e9 - 1e6 * number))
    assert toy.jobs() == {}


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(28, "No space left on device", "data/x.npy"), r"data/x\.npy: the disk is full"),
        (OSError(122, "Disk quota exceeded"), "quota is used up"),
        (OSError(30, "Read-only file system", "results"), "results: the file system is read-only"),
        (OSError("4320 requested and 16 written"), "only 16 of 4320 numbers could be written: is the disk full"),
    ],
)
def test_what_the_machine_refuses_is_one_sentence(error, sentence):
    assert re.search(sentence, of_machine(error) or "")


def test_what_is_no_fault_of_the_machine_keeps_its_traceback():
    assert of_machine(ConnectionResetError(104, "Connection reset by peer")) is None


def test_every_row_of_the_table_of_faults_names_a_test_that_there_is():
    rows = [line for line in (ROOT / "docs" / "faults.md").read_text().splitlines() if line.startswith("| ")][2:]
    assert len(rows) > 20
    named = 0
    for row in rows:
        cell = row.strip("|").split("|")[-1].strip()
        found = re.fullmatch(r"`(test_\w+\.py)::(test_\w+)`", cell)
        assert found or cell == "the same", row
        if found:
            named += 1
            assert f"def {found[2]}(" in (ROOT / "tests" / Path(found[1])).read_text(), row
    assert named > 20
