"""What a second try of a test changes, and what it does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import tries

ROOT = Path(__file__).resolve().parents[1]
TESTS = """
from pathlib import Path
import pytest

@pytest.mark.parametrize("number", range({unlucky}))
def test_unlucky(number):
    seen = Path("seen-" + str(number))
    if not seen.exists():
        seen.touch()
        raise AssertionError("recall .93")

def test_wrong():
    assert not {wrong}
"""


def ran(folder: Path, unlucky: int, wrong: bool, *workers: str) -> tuple[int, str]:
    (folder / "test_it.py").write_text(TESTS.format(unlucky=unlucky, wrong=wrong))
    command = [sys.executable, "-m", "pytest", "-p", "tests.tries", "-p", "no:cacheprovider", "--reruns", "1", *workers]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [*command, "test_it.py"], cwd=folder, env={**own, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        check=False, timeout=300,
    )  # fmt: skip
    return done.returncode, done.stdout


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "workers"])
def test_what_passes_at_its_second_try_has_passed_and_is_named_with_its_reason(tmp_path, workers):
    status, said = ran(tmp_path, tries.AT_MOST, False, *workers)
    assert status == 0, said
    assert said.count("test_it.py::test_unlucky[") == tries.AT_MOST
    assert "test_it.py::test_unlucky[0]: E AssertionError: recall .93" in said


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "workers"])
def test_where_many_need_a_second_try_the_run_has_failed(tmp_path, workers):
    status, said = ran(tmp_path, tries.AT_MOST + 1, False, *workers)
    assert status == 1, said
    assert "tests needed one: this run has failed." in said


def test_what_fails_twice_has_failed(tmp_path):
    status, said = ran(tmp_path, 0, True)
    assert status == 1 and "1 failed" in said, said
