"""`make test` on any machine: what can't be tested there is said at the end, and the rest passes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = ("tests/report/test_latex.py", "tests/drive/test_hosts.py", "tests/test_architecture.py")


def collected(path: str, *options: str) -> tuple[set[str], list[str]]:
    """The files with tests that would run with the programs on `path`, and the lines that say what can't be tested."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *options, *FILES]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    return {file for file in FILES if any(line.startswith(file) for line in lines)}, [
        line for line in lines if line.startswith("NOT TESTED")
    ]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH of a machine without LaTeX, a compiler, ip and unshare."""
    folder = tmp_path_factory.mktemp("bin")
    for name in ("git", "id", "sh"):
        (folder / name).symlink_to(str(shutil.which(name)))
    return str(folder)


def test_what_a_machine_can_t_test_is_one_line_and_the_rest_is_tested(bare):
    files, (said,) = collected(bare, "--what-this-machine-can")
    assert files == {"tests/drive/test_hosts.py", "tests/test_architecture.py"}, (
        "test_hosts.py has tests without ip, too"
    )
    assert "LaTeX tables (missing: pdflatex, kpsewhich)" in said
    assert "clients on other machines (missing: ip)" in said
    assert "isolation, clients on other machines (missing: unshare)" in said


def test_no_test_is_left_out_unless_that_was_asked_for(bare):
    files, said = collected(bare)
    assert files == set(FILES) and not said


def test_make_test_asks_for_it_and_installs_nothing_for_a_user_without_apt(bare):
    make = shutil.which("make")
    assert make
    done = subprocess.run(
        [make, "--dry-run", "test"], cwd=ROOT, env={"PATH": bare}, capture_output=True, text=True, check=True
    )
    assert "--what-this-machine-can" in done.stdout
    assert "apt-get" not in done.stdout
