"""A failure beside other tests is tried once more alone; what fails alone, or fails in many files, stays a failure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import second_try

ONCE = """
from pathlib import Path
def test_fails_once():
    tried = Path("tried")
    if not tried.exists():
        tried.touch()
        raise AssertionError
def test_passes(): pass
"""
ALWAYS = "def test_fails_always(): raise AssertionError"


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, **files: str) -> tuple[int, int]:
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
    monkeypatch.chdir(folder)
    first = subprocess.run([sys.executable, "-m", "pytest", "-q", "--cache-clear"], check=False, capture_output=True)
    return first.returncode, second_try.main(first.returncode, ["-q"])


def test_a_test_that_passes_alone_passes_and_is_named(tmp_path, monkeypatch, capfd) -> None:
    assert run(tmp_path, monkeypatch, once=ONCE) == (1, 0)
    printed = capfd.readouterr().out
    assert "1 passed" in printed, "only what failed runs again"
    assert printed.endswith("alone they passed:\n  test_once.py::test_fails_once\n")


def test_a_test_that_fails_alone_stays_failed(tmp_path, monkeypatch, capfd) -> None:
    assert run(tmp_path, monkeypatch, once=ONCE, always=ALWAYS) == (1, 1)
    assert "MEND" not in capfd.readouterr().out


def test_failures_in_three_files_are_not_tried_again(tmp_path, monkeypatch, capfd) -> None:
    assert run(tmp_path, monkeypatch, a=ONCE.replace("tried", "a"), b=ALWAYS, c=ALWAYS) == (1, 1)
    assert "Once more" not in capfd.readouterr().out


@pytest.mark.parametrize("status", [0, 1, 2, 5])
def test_a_run_without_a_failed_test_ends_as_it_did(status, tmp_path, monkeypatch) -> None:
    """Also one whose tests passed and left a process behind: nothing of it can be tried again."""
    monkeypatch.chdir(tmp_path)
    assert second_try.main(status, []) == status
