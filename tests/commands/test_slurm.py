"""A real Slurm of this machine alone: one node, jobs submitted by Snakemake's own executor with our profile."""

from __future__ import annotations

import json
import signal
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from anncestry.report.model.quantities import COUNTED
from tests.slurm import slurm
from tests.toy import ROOT, Toy
from tests.waiting import until

pytestmark = pytest.mark.slurm

ON_SLURM = (
    *("--profile", str(ROOT / "profiles/slurm"), "--slurm-no-account", "--slurm-status-command", "squeue"),
    *("--slurm-init-seconds-before-status-checks", "3"),
)
MEASURED = ("rule_load", "rule_session")
SAME = ("number_id", "dataset", "system", "topology", "workload", "phase", "metric", "unit", "runs", "record", "key")


@pytest.fixture(scope="module")
def found():
    """A cluster, as Snakemake and what it starts find it."""
    with (
        tempfile.TemporaryDirectory(prefix="anncestry-slurm-") as folder,
        slurm(Path(folder)) as running,
        pytest.MonkeyPatch.context() as environment,
    ):
        for name, value in running.environment.items():
            environment.setenv(name, value)
        yield running
    assert [daemon.returncode is not None for daemon in running.daemons] == [True] * 3


@dataclass
class Told:
    """A toy whose run on Slurm was told to end while it measured, and completed by the next; and what Slurm did."""

    toy: Toy
    here: Toy
    loaded_ns: int
    queried_before: list[Path]
    jobs: list[dict[str, str]]


@pytest.fixture(scope="module")
def told(found, tmp_path_factory):
    """One dataset, system and topology; two workloads in two rounds. `here` is the same, made without Slurm."""
    here = Toy.finished_place(tmp_path_factory.mktemp("here") / "place")
    toy = here.copy(tmp_path_factory.mktemp("slurm") / "place")
    before = {job["JobId"] for job in found.history()}

    def measuring() -> bool:
        rows = found.ask("squeue", "--noheader", "--states=RUNNING", "--format=%k").splitlines()
        return any(row.startswith("rule_session") for row in rows)

    with toy.running(*ON_SLURM) as run:
        until(lambda: measuring() or run.poll() is not None, "a session to run", 600)
        assert run.poll() is None, (toy.folder / "run.log").read_text()
        run.send_signal(signal.SIGTERM)
        assert run.wait(300) != 0
    until(lambda: not found.jobs(), "the jobs to end")
    until(lambda: not toy.at_work(), "the session to end")
    loaded_ns, queried = load(toy).stat().st_mtime_ns, sorted((toy.folder / "results/query").rglob("*.json"))
    toy.snakemake(*ON_SLURM)
    return Told(toy, here, loaded_ns, queried, [job for job in found.history() if job["JobId"] not in before])


def load(toy: Toy) -> Path:
    [path] = (toy.folder / "results/load").rglob("*@????????????.json")
    return path


def numbers(toy: Toy) -> list[dict[str, Any]]:
    """The table: which numbers there are, and the values of those that no clock decides on."""
    [path] = (toy.folder / "results/table").rglob("numbers.json")
    return [
        {name: row[name] for name in SAME} | ({"value": row["value"]} if row["unit"] in COUNTED else {})
        for row in json.loads(path.read_text())
    ]


def recalls(toy: Toy) -> dict[str, object]:
    return {
        str(path.relative_to(toy.folder)): json.loads(path.read_text())["recall"]
        for path in sorted((toy.folder / "results/recall").rglob("*.json"))
    }


def names(toy: Toy) -> set[str]:
    """Of what was published, and of the data that it was made from; keys are part of them."""
    found = [path for part in ("results", "data") for path in (toy.folder / part).rglob("*") if path.is_file()]
    return {str(path.relative_to(toy.folder)) for path in found}


def data(toy: Toy) -> dict[str, object]:
    """Of each dataset's stages, the digests of what they made."""
    return {
        str(path.relative_to(toy.folder)): json.loads(path.read_text())["outputs"]
        for path in sorted((toy.folder / "data").rglob("record.json"))
    }


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
        assert "Slurm still has jobs of an earlier, killed run" in refused.stdout + refused.stderr
        assert f"scancel {orphans[0]}" in refused.stdout + refused.stderr
    finally:
        found.ask("scontrol", "update", f"nodename={node}", "state=resume")
    until(lambda: not found.jobs(), "the orphans to end")
    states = {job["JobId"]: job["JobState"] for job in found.history()}
    assert {states[job] for job in orphans} == {"COMPLETED"}, "a job ended with a run that was not its own"


def test_a_run_told_to_end_submits_nothing_more_and_the_next_one_measures_what_is_missing_only(told):
    assert told.queried_before == [], "it went on after it was told to end"
    assert load(told.toy).stat().st_mtime_ns == told.loaded_ns, "what was complete ran again"
    sessions = [job for job in told.jobs if job["Comment"].startswith("rule_session")]
    assert len(sessions) == 2, "the session that ran when the run was told to end was measured again"
    assert told.toy.jobs() == {}


def test_slurm_makes_what_this_machine_alone_does(told):
    assert len(recalls(told.here)) == 2
    assert names(told.toy) == names(told.here)
    assert data(told.toy) == data(told.here)
    assert recalls(told.toy) == recalls(told.here)
    assert len(numbers(told.here)) > 50
    assert numbers(told.toy) == numbers(told.here)


def test_each_measured_job_has_the_node_for_itself(told):
    assert {job["JobState"] for job in told.jobs} == {"COMPLETED"}
    measured = [job for job in told.jobs if job["Comment"].startswith(MEASURED)]
    assert len(measured) == 3, [job["Comment"] for job in told.jobs]
    for job in measured:
        assert (job["OverSubscribe"], job["NumCPUs"]) == ("NO", "8"), "not the whole node"
        for other in told.jobs:
            apart = other["EndTime"] <= job["StartTime"] or job["EndTime"] <= other["StartTime"]
            assert other is job or apart, (job["Comment"], other["Comment"])
