"""docs/faults.md has a table of the faults that were tried: each row names a test, and there is that test."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from tests.toy import ROOT

EXPECTED = (
    "SIGKILL of Snakemake", "SIGKILL of the harness", "server at start", "mid-load", "mid-query", "SIGTERM", "Ctrl-C",
    "disk full", "half-downloaded", "damaged", "a server that hangs", "wrong ids", "loses rows", "fewer than k",
    "clock jumps", "two runs at once in one checkout", "read-only", "data directory that vanished",
    "killed DVC push", "SIGKILL of the container engine",
)  # fmt: skip
"""What a campaign of days has to survive, as the plan of this project names it."""
ELSEWHERE = ("make test-docker", "make test-slurm", "make test-long", "make test")


def table() -> list[tuple[str, str, str]]:
    """Fault, outcome and test of each row; "the same" is that of the row before."""
    lines = (ROOT / "docs" / "faults.md").read_text().partition("\n## Table\n")[2].partition("\n## ")[0].splitlines()
    found: list[tuple[str, str, str]] = []
    for line in [line for line in lines if line.startswith("| ")][2:]:
        fault, outcome, test = (cell.strip() for cell in line.strip("|").split("|"))
        found.append((fault, outcome, found[-1][2] if test == "the same" else test.strip("`")))
    return found


ROWS = table()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_every_fault_names_a_test_that_there_is_and_what_runs_it(row):
    fault, outcome, test = row
    found = re.fullmatch(r"(\w+/test_\w+\.py)::(test_\w+)", test)
    assert found, row
    text = (ROOT / "tests" / found[1]).read_text()
    before, at, _ = text.partition(f"\ndef {found[2]}(")
    assert at, f"{test}: there is no such test"
    own = before.rpartition("\n\n\n")[2]
    marks = set(
        re.findall(
            r"pytest\.mark\.(servers|docker|slurm|long)\b", own + "".join(re.findall(r"\npytestmark = .*", text))
        )
    )
    if "long" in marks:
        marks = {"long"}
    told = [target for target in ELSEWHERE if f"(`{target}`)" in fault + outcome]
    wanted = {
        "docker": "make test-docker",
        "slurm": "make test-slurm",
        "servers": "make test",
        "long": "make test-long",
    }
    assert told == [wanted[mark] for mark in sorted(marks)], f"{test}: make test-faults leaves out {marks}"


@pytest.mark.parametrize("fault", EXPECTED)
def test_every_fault_that_was_to_be_tried_is_listed(fault):
    assert [row for row in ROWS if fault.lower() in row[0].lower()], fault


def test_make_test_faults_runs_every_test_of_the_table():
    make = shutil.which("make")
    assert make
    done = subprocess.run([make, "--dry-run", "test-faults"], cwd=ROOT, capture_output=True, text=True, check=True)
    called = next(line for line in done.stdout.splitlines() if "faults.md" in line)
    words = re.search(r"\$\((.*?)\)", called)
    assert words
    listed = subprocess.run(["/bin/sh", "-c", words[1]], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(listed.stdout.split()) == {f"tests/{test}" for _, _, test in ROWS}
