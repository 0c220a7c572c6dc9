"""Finding 5: records that were promised are there after a power cut, whole. The cut is simulated, the disk real.

An ext4 of a test's own is shut down without what is in memory (EXT4's own ioctl for that), then mounted again, which
replays its journal: as after a power cut. That something is lost where the program does not wait for the disk shows
that this tells the one from the other.

The disk is mounted in a namespace of its own. A namespace that another test makes meanwhile would else hold the first
mount, the second one would find the file system still shut down, and every read would fail.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from anncestry.errors import DataError
from anncestry.provenance import records
from tests.toy import ROOT

pytestmark = pytest.mark.faults

RECORDS = 8
WRITER = """
import fcntl, os, stat, struct, sys
from pathlib import Path
from anncestry import durable
from anncestry.provenance import records
waits_for, number_of = sys.argv[1], int(sys.argv[2])
real = os.fsync
def fsync(handle):
    if waits_for == "both" or waits_for == ("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file"):
        real(handle)
os.fsync = fsync
if waits_for != "both":
    durable.sync_below = lambda folder: None
for made_again in range(2):
    for number in range(number_of):
        folder = Path(f"data/vectors/d@{number:012x}")
        with records.replacing(folder / "base.npy") as temporary:
            temporary.write_bytes(b"vectors of %d" % made_again * 999)
        (folder / "samples.parquet").write_bytes(b"samples of %d" % made_again * 999)
        records.write_record(
            folder / "record.json", stage="artifact", key=f"{number:012x}", spec={"again": made_again},
            body={"digest": "x", "toolchain": {}},
            outputs={name: folder / name for name in ("base.npy", "samples.parquet")},
        )
fresh = Path("scratch/fresh")
fresh.mkdir(parents=True)
(fresh / "file").write_text("of an index")
durable.place(fresh, Path("scratch/index"))
# At once, by this program: others on this machine may write all file systems at any moment.
shutdown, lose_the_log = 0x8004587D, struct.pack("I", 2)
fcntl.ioctl(os.open(".", os.O_RDONLY), shutdown, lose_the_log)
os._exit(0)
"""


def sh(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def ext4(tmp_path):
    """The device of an ext4 of its own."""
    assert os.geteuid() == 0, "NOT TESTED: power cuts. A disk of a test's own takes root to mount"
    image = tmp_path / "image"
    with open(image, "wb") as file:
        file.truncate(64 << 20)
    sh("mkfs.ext4", "-q", "-F", str(image))
    device = sh("losetup", "--find", "--show", str(image))
    yield device
    subprocess.run(["losetup", "--detach", device], check=True)


def lost_at_a_cut(device: str, waits_for: str, place: Path) -> list[str]:
    """What is not there, or not whole, or not the newest, when the power fails as soon as all records are written."""
    place.mkdir()
    alone = ("unshare", "--mount", "--propagation", "private")
    command = [*alone, sys.executable, "-m", __name__, device, waits_for, place]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def _lost(device: str, waits_for: str, place: str) -> list[str]:
    """In a namespace of mounts of its own."""
    sh("mount", "-o", "commit=300", device, place)  # nothing is written by itself meanwhile
    subprocess.run(
        [sys.executable, "-c", WRITER, waits_for, str(RECORDS)],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        check=True,
    )
    sh("umount", place)
    sh("mount", device, place)
    lost = []
    for number in range(RECORDS):
        path = Path(place) / f"data/vectors/d@{number:012x}/record.json"
        try:
            record = records.read_record(path, stage="artifact", key=f"{number:012x}")
            records.verify_outputs(path, record)
            if record["spec"] != {"again": 1}:
                lost.append(f"{path}: the older one")
        except DataError as error:
            lost.append(str(error))
    index = Path(place) / "scratch/index/file"
    try:
        whole = index.read_text() == "of an index"
    except OSError:  # gone, or an inode that was never written
        whole = False
    if not whole:
        lost.append(f"{index}: gone or empty")
    sh("umount", place)
    return lost


def test_records_and_what_they_seal_survive_a_power_cut_right_after_they_were_written(ext4, tmp_path):
    assert lost_at_a_cut(ext4, "both", tmp_path / "mounted") == []


@pytest.mark.parametrize("waits_for", ["nothing", "file", "folder"])
def test_without_waiting_for_both_file_and_folder_something_is_lost(waits_for, ext4, tmp_path):
    assert lost_at_a_cut(ext4, waits_for, tmp_path / "mounted")


if __name__ == "__main__":
    print(json.dumps(_lost(*sys.argv[1:])))
