"""Tests that leave something on the machine fail, even if each of them passed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from anncestry.runtimes import control_groups
from anncestry.runtimes.base import Limits
from tests.remains import Before
from tests.toy import ROOT

_LEAVES = """
import subprocess
import pytest

@pytest.mark.servers
def test_that_passes(tmp_path):
    process = subprocess.Popen(["sleep", "{seconds}"], cwd=tmp_path, start_new_session=True)
    (tmp_path.parent / "pid").write_text(str(process.pid))
"""


@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize(("seconds", "status"), [("600", 1), ("0", 0)])
def test_a_process_that_is_left_fails_the_session_and_is_named(
    seconds: str, status: int, workers: str, tmp_path: Path
) -> None:
    (tmp_path / "test_it.py").write_text(_LEAVES.format(seconds=seconds))
    paths = f"{ROOT}{os.pathsep}{ROOT / 'src'}"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "--rootdir", str(tmp_path),
         "--basetemp", str(tmp_path / "base"), "-c", os.devnull, "-W", "ignore", "-n", workers,
         str(tmp_path / "test_it.py")],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths, "TESTS_REMAINS_WAIT_S": "2" if status else "300"},
        capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip
    (told,) = (tmp_path / "base").rglob("pid")
    pid = int(told.read_text())
    try:
        assert done.returncode == status, done.stdout + done.stderr
        assert "1 passed" in done.stdout
        assert (f"process {pid}: sleep 600" in done.stdout) == bool(status)
    finally:
        if psutil.pid_exists(pid):
            psutil.Process(pid).kill()


def test_a_control_group_that_is_left_is_named(tmp_path: Path) -> None:
    before = Before()
    enclosure = control_groups.enclose("left", Limits(memory_mib=64))
    try:
        named = {f"control group {folder}" for folder in enclosure.folders.values()}
        assert named <= set(before.remains(tmp_path))
    finally:
        enclosure.remove()
    assert not named & set(before.remains(tmp_path))
