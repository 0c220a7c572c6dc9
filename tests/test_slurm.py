"""A real Slurm of this machine alone: one node, jobs submitted by Snakemake's own executor with our profile."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.slurm import slurm, until
from tests.toy import ROOT, Toy

pytestmark = pytest.mark.slurm

ON_SLURM = (
    *("--profile", str(ROOT / "profiles/slurm"), "--slurm-no-account", "--slurm-status-command", "squeue"),
    *("--slurm-init-seconds-before-status-checks", "3"),
)


@pytest.fixture(scope="module")
def cluster():
    with tempfile.TemporaryDirectory(prefix="anncestry-slurm-") as folder, slurm(Path(folder)) as running:
        yield running
    assert [daemon.returncode is not None for daemon in running.daemons] == [True] * 3


@pytest.fixture
def found(cluster, monkeypatch):
    """The cluster, as Snakemake and what it starts find it."""
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    return cluster


def test_a_killed_run_leaves_jobs_that_the_next_one_names_and_they_end_well(found, tmp_path):
    toy = Toy.make(tmp_path / "place")
    toy.one_cell()
    node = found.ask("sinfo", "--noheader", "--format=%n").strip()
    found.ask("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
    try:
        with toy.running(*ON_SLURM) as run:
            until(found.jobs, "a job to be submitted")
            run.kill()
            run.wait()
        orphans = found.jobs()
        refused = toy.snakemake(*ON_SLURM, check=False)
        assert refused.returncode != 0
        assert "Slurm still has jobs of an earlier run that was killed" in refused.stdout + refused.stderr
        assert f"scancel {orphans[0]}" in refused.stdout + refused.stderr
    finally:
        found.ask("scontrol", "update", f"nodename={node}", "state=resume")
    until(lambda: not found.jobs(), "the orphans to end")
    states = {job["JobId"]: job["JobState"] for job in found.history()}
    assert {states[job] for job in orphans} == {"COMPLETED"}, "a job ended with a run that was not its own"
