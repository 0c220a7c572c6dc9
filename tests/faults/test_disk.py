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
import tarfile
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anncestry import workflow
from anncestry.errors import of_machine
from tests.toy import ROOT, Toy

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def finished(finished_place):
    return finished_place


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
        timeout=900,
    )


def the_cell(toy: Toy):
    return workflow.expand(workflow.Choice(toy.folder / "config", "default")).cells[0]


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    """A disk of its own, small enough to be filled."""
    assert os.geteuid() == 0, "NOT TESTED: full disks. A disk of a test's own takes root to mount"
    place = tmp_path_factory.mktemp("disk")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=48m", "anncestry", str(place)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"NOT TESTED: full disks. {done.stderr}"
    yield place / "toys"
    subprocess.run(["umount", str(place)], check=True)


@pytest.fixture(scope="module")
def measured(finished, tmp_path_factory):
    """Its first cell's sessions over, nothing of them kept yet."""
    toy = finished.copy(tmp_path_factory.mktemp("measured") / "toy", "data", "scratch", "results")
    cell = the_cell(toy)
    (toy.folder / cell.query_path).unlink()
    for run in ("0", "1"):
        done = stage(toy, "session", run.zfill(12), run, cell.query)
        assert done.returncode == 0, done.stderr
    return toy


@pytest.fixture
def room(disk):
    """The disk, empty."""
    disk.mkdir()
    yield disk
    shutil.rmtree(disk)
    (disk.parent / "filler").unlink(missing_ok=True)


def fill(disk: Path, room_kib: int) -> Path:
    """Fill a disk but for so much; returns the file that does."""
    filler, free = disk.parent / "filler", os.statvfs(disk)
    with open(filler, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - (room_kib << 10))
    return filler


SESSION = "0123456789ab"
STAGES = {
    # words of the command; the record (or last file) that it leaves; KiB that are free
    "artifact": (lambda c, m: ([c.artifact], c.artifact_path), 0),
    "download": (lambda c, m: ([c.download], c.download_path), 4),
    "normalize": (lambda c, m: ([c.vectors], c.vectors_path), 8),
    "truth": (lambda c, m: ([c.truth], c.truth_path), 4),
    "load": (lambda c, m: ([c.load], c.index_path), 8),  # of which the ledger takes 4
    "session": (lambda c, m: ([SESSION, "0", c.query], f"scratch/session/{SESSION}/session.json"), 4),
    "session-driven": (lambda c, m: ([SESSION, "0", c.query], f"scratch/session/{SESSION}/session.json"), 64),
    "duet": (lambda c, m: ([SESSION, "0", m.pairs[0].pair], f"scratch/duet/{SESSION}/session.json"), 4),
    "duet-driven": (lambda c, m: ([SESSION, "0", m.pairs[0].pair], f"scratch/duet/{SESSION}/session.json"), 64),
    "query": (lambda c, m: ([c.query], c.query_path), 4),
    "recall": (lambda c, m: ([c.recall], c.recall_path), 0),
    "table": (lambda c, m: ([Path(m.table_path).parent.name.rpartition("@")[2]], m.table_path), 4),
    "report": (lambda c, m: ([Path(m.report_path).parent.name.rpartition("@")[2]], m.report_path), 64),
}


@pytest.mark.parametrize("name", STAGES)
def test_a_full_disk_is_said_in_one_sentence_and_leaves_nothing_half(finished, measured, room, name):
    command = name.partition("-")[0]
    toy = (measured if command == "query" else finished).copy(room / name, "data", "scratch", "results")
    if command == "duet":
        toy.files["config"]["duet"] = {"slice_s": 0.05, "discard_ms": 5, "blocks": 8, "first": 2, "most": 2}
        pair = {name: toy.block[name] for name in ("datasets", "topologies", "workloads")}
        toy.files["config"]["matrix"].append({**pair, "paired": ["red-1.0", "red-1.0"]})
        toy.save()
    matrix = workflow.expand(workflow.Choice(toy.folder / "config", "default"))
    where, room_kib = STAGES[name]
    words, record = where(matrix.cells[0], matrix)
    path = toy.folder / record
    folder = path.parent
    whole = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    if command in ("query", "recall"):  # others' records are beside it
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    # What these two keep between runs would otherwise be on another disk.
    kept = {"XDG_CACHE_HOME": str(room / "cache")} if command in ("artifact", "download") else {}
    filler = fill(room, room_kib)
    full = stage(toy, command, *words, environment=kept)
    assert full.returncode == 2, full.stderr
    assert "Traceback" not in full.stderr
    said = [line for line in full.stderr.splitlines() if line.startswith(f"anncestry {command}: ")]
    assert len(said) == 1 and re.search("disk full|disk is full|o space left on device", full.stderr), full.stderr
    assert not path.exists()
    assert not [file for file in folder.rglob(".*") if file.is_file()], "a temporary file is left"
    if command in ("download", "normalize", "truth", "recall", "table"):
        for file in folder.rglob("*"):
            assert file.read_bytes() == whole[file], f"{file.name} is half"
    assert not toy.at_work()
    filler.unlink()
    done = stage(toy, command, *words, environment=kept)
    assert done.returncode == 0, done.stderr
    if command in ("download", "normalize", "truth", "table"):
        again = {file for file in folder.rglob("*") if file.is_file()}
        assert again == whole.keys()
        assert all(file.name == "record.json" or file.read_bytes() == whole[file] for file in again)
    assert path.exists()


ROWS, DIM, ASKED = 20_000, 64, 50
VECTORS = np.tile(np.arange(ROWS, dtype=np.float32)[:, None] % 8, (1, DIM))  # 5 MB that pack to a few kB


def publish_parquet(folder: Path) -> dict[str, Any]:
    for name, vectors in (("train.parquet", VECTORS), ("test.parquet", VECTORS[:ASKED])):
        pq.write_table(pa.table({"id": np.arange(len(vectors)), "emb": list(vectors)}), folder / name)
    return {"kind": "parquet", "base": ["train.parquet"], "queries": "test.parquet"}


def publish_tar(folder: Path) -> dict[str, Any]:
    with tarfile.open(folder / "set.tgz", "w:gz") as tar:
        for name, vectors in (("queries.npy", VECTORS[:ASKED]), ("base.npy", VECTORS)):
            np.save(folder / name, vectors)
            tar.add(folder / name, name)
            (folder / name).unlink()
    return {"kind": "archive", "format": "npy", "base": "base.npy", "queries": "queries.npy"}


@pytest.mark.parametrize(("publish", "address"), [(publish_parquet, ""), (publish_tar, "/set.tgz")])
def test_a_disk_that_fills_while_a_published_set_is_unpacked_is_said_and_the_set_is_not_fetched_again(
    publish: Callable[[Path], dict[str, Any]], address: str, room: Path, tmp_path: Path
) -> None:
    """Placing Parquet was killed by a signal; an archive was called damaged, and deleted."""
    published = tmp_path / "published"
    published.mkdir()
    source = publish(published)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(published))) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        toy = Toy.make(room / "toy")
        source = {**source, "url": f"http://127.0.0.1:{server.server_port}{address}"}
        toy.files["datasets"]["blobs-l2"] |= {"rows": ROWS, "queries": ASKED, "dim": DIM, "sources": [source]}
        toy.one_cell()
        toy.save()
        cell = the_cell(toy)
        cache = {"XDG_CACHE_HOME": str(room / "cache"), "no_proxy": "*"}
        filler = fill(room, 3000)
        full = stage(toy, "download", cell.download, environment=cache)
        server.shutdown()
    assert full.returncode == 2 and "Traceback" not in full.stderr, full.stderr
    said = [line for line in full.stderr.splitlines() if line.startswith("anncestry download: ")]
    assert len(said) == 1 and "the disk is full: make room" in said[0] and "damaged" not in full.stderr, full.stderr
    assert not (toy.folder / cell.download_path).exists()
    assert not [file for file in room.rglob(".*") if file.is_file()], "a temporary file is left"
    filler.unlink()
    done = stage(toy, "download", cell.download, environment=cache)  # from nobody: what was fetched is still there
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load((toy.folder / cell.download_path).parent / "base.npy"), VECTORS)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.mark.parametrize("name", ["download", "load"])
def test_a_file_that_cannot_grow_any_further_is_said_in_one_sentence(finished, tmp_path, name):
    toy = finished.copy(tmp_path / "toy", "data", "scratch", "results")
    (key,), record = STAGES[name][0](the_cell(toy), None)
    (toy.folder / record).unlink()
    full = stage(toy, name, key, limit_bytes=2048)
    assert full.returncode == 2 and "Traceback" not in full.stderr, full.stderr
    assert re.search(rf"anncestry {name}: .*(larger than|could be written|flat: )", full.stderr), full.stderr
    assert not (toy.folder / record).exists()


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


@pytest.mark.parametrize("command", ["normalize", "load"])
def test_a_file_system_that_became_read_only_is_said_in_one_sentence(finished, room, command):
    toy = finished.copy(room / command, "data", "scratch", "results")
    (key,), record = STAGES[command][0](the_cell(toy), None)
    path = toy.folder / record
    path.unlink()
    place = str(room.parent)
    subprocess.run(["mount", "-o", "remount,ro", place], check=True)
    try:
        refused = stage(toy, command, key)
    finally:
        subprocess.run(["mount", "-o", "remount,rw", place], check=True)
    assert refused.returncode == 2 and "Traceback" not in refused.stderr, refused.stderr
    said = [line for line in refused.stderr.splitlines() if line.startswith(f"anncestry {command}: ")]
    assert len(said) == 1 and "the file system is read-only" in said[0], refused.stderr
    assert not path.exists() and not toy.at_work()
    done = stage(toy, command, key)
    assert done.returncode == 0 and path.exists(), done.stderr


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


@pytest.fixture(scope="module")
def jumping(tmp_path_factory):
    """The environment of processes whose clock jumps by hours, five times a second, to times that are all wrong."""
    library = tmp_path_factory.mktemp("clock") / "jumping.so"
    source = ROOT / "tests" / "fixtures" / "jumping_clock.c"
    subprocess.run(["g++", "-x", "c", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return {"LD_PRELOAD": str(library)}


def test_a_clock_that_jumps_changes_no_duration_and_runs_nothing_again(tmp_path, jumping, monkeypatch):
    toy = Toy.make(tmp_path / "toy")
    toy.one_cell()
    toy.block["workloads"] = ["k7"]
    monkeypatch.setenv("LD_PRELOAD", jumping["LD_PRELOAD"])
    toy.snakemake()
    assert toy.jobs() == {}
    monkeypatch.delenv("LD_PRELOAD")
    assert toy.jobs() == {}
    written = [json.loads(path.read_text()) for path in toy.folder.rglob("*.json") if "@" in str(path)]
    dates = [datetime.fromisoformat(record["created"]) for record in written if "created" in record]
    assert len(dates) > 6
    assert all(abs(datetime.now(UTC) - date) > timedelta(hours=4) for date in dates), "a clock did not jump"
    cell = the_cell(toy)
    loaded, query = (json.loads((toy.folder / path).read_text()) for path in (cell.load_path, cell.query_path))
    assert all(0 <= seconds < 600 for seconds in loaded["times"].values() if seconds is not None), loaded["times"]
    assert 0 < loaded["server"]["up_s"] < 600 and loaded["valid"], loaded["gates"]
    (start_s, end_s), *_ = query["windows_s"]
    assert 0 < end_s - start_s < 600 and query["valid"], query["gates"]
    assert all(0 < value < 60_000 for value in query["summary"]["p50_ms"]["runs"])
    for number, file in enumerate(sorted(toy.folder.rglob("*@*/*"))):
        os.utime(file, (1e9 + 1e6 * number, 2e9 - 1e6 * number))
    assert toy.jobs() == {}
    checked = stage(toy, "verify")
    assert checked.returncode == 0, checked.stderr


def test_a_full_folder_for_temporary_files_is_said_in_one_sentence(finished, room, tmp_path):
    """Finding 14: a full TMPDIR. Verification draws the page again there."""
    toy = finished.copy(tmp_path / "toy", "data", "results")
    fill(room, 64)
    full = stage(toy, "verify", environment={"TMPDIR": str(room)})
    assert full.returncode == 2 and "Traceback" not in full.stderr, full.stderr
    (said,) = [line for line in full.stderr.splitlines() if line.startswith("anncestry verify: ")]
    assert "the disk is full" in said


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(28, "No space left on device", "data/x.npy"), r"data/x\.npy: the disk is full"),
        (OSError(122, "Disk quota exceeded"), "quota is used up"),
        (OSError(30, "Read-only file system", "results"), "results: the file system is read-only"),
        (FileNotFoundError(2, "No usable temporary directory found in ['/tmp']"), "no folder for temporary files"),
        (IsADirectoryError(21, "Is a directory", "x.json"), r"x\.json: a folder, where a file should be"),
        (OSError("4320 requested and 16 written"), "only 16 of 4320 numbers could be written: is the disk full"),
    ],
)
def test_what_the_machine_refuses_is_one_sentence(error, sentence):
    assert re.search(sentence, of_machine(error) or "")


def test_what_is_no_fault_of_the_machine_keeps_its_traceback():
    assert of_machine(ConnectionResetError(104, "Connection reset by peer")) is None
