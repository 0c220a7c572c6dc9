"""The view of a run: what a person sees of it, from what Snakemake says of its jobs."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from anncestry import board, workflow
from anncestry.board import Board
from anncestry.cells.plan import make
from anncestry.provenance import explain
from tests.toy import Toy

SECONDS = {"load": 10.0, "session": 5.0, "duet": 5.0, "query": 1.0}


class Run:
    """A run of a toy matrix, of which this says what Snakemake would."""

    def __init__(self, toy: Toy) -> None:
        toy.save()
        matrix = workflow.expand(workflow.Choice(toy.folder / "config", "default"))
        self.plan, self.now_s, self.number = make(matrix), 0.0, 0
        jobs = explain.jobs(matrix, self.plan)
        seconds = [SECONDS.get(job.rule, 0.0) for job in jobs]
        self.board = Board(self.plan, jobs, seconds, clock=lambda: self.now_s)

    def of(self, rule, where=lambda job: True):
        return [job for job in self.board.jobs if job.rule == rule and where(job)]

    def begin(self, job, log=None):
        self.number += 1
        self.board.begin(self.number, job.rule, [job.output], f"{job.rule} {job.key}", log)
        return self.number

    def do(self, job, took_s, failed=False):
        number = self.begin(job)
        self.now_s += took_s
        return self.board.end(number, failed)

    @property
    def text(self):
        console = Console(file=io.StringIO(), width=100)
        console.print(self.board.draw())
        return console.file.getvalue()


@pytest.fixture
def run(tmp_path, monkeypatch):
    toy = Toy.make(tmp_path)
    monkeypatch.chdir(tmp_path)
    toy.block.update(datasets=["blobs-l2"], topologies=["standalone"], workloads=["k5"])
    return Run(toy)


def states(run):
    return {system: (load, rounds, published) for _, system, load, rounds, published in run.board.rows()}


def test_before_anything_ran_all_waits_and_the_estimate_is_the_plans(run):
    assert states(run) == {
        "red-1.0, standalone": ("·", ["·", "·"], "0 of 1"),
        "blue-1.0, standalone": ("·", ["·", "·"], "0 of 1"),
    }
    # 2 loads and 4 sessions; 2 publications beside them count half.
    assert run.board.left_s == 2 * 10 + 4 * 5 + 2 * 0.5


def test_what_ran_is_marked_where_it_belongs_and_what_is_next_is_the_next_round(run):
    for load in run.of("load"):
        run.do(load, 10)
    (red, blue) = sorted(
        run.of("session", lambda job: job.round == 0), key=lambda job: job.cells[0].system != "red-1.0"
    )
    run.do(red, 5)
    run.begin(blue)
    assert states(run)["red-1.0, standalone"] == ("✓", ["✓", "·"], "0 of 1")
    assert states(run)["blue-1.0, standalone"] == ("✓", ["▸", "·"], "0 of 1")
    assert run.board.following.round == 1
    assert f"3 of {len(run.board.jobs)} jobs, 25 s; some 16 s left" in run.text
    assert f"▸ 0 s  session {blue.key}" in run.text


def test_jobs_that_take_twice_as_long_as_estimated_double_what_is_left(run):
    for load in run.of("load"):
        run.do(load, 20)
    assert run.board.left_s == 2 * 4 * 5 + 2 * 0.5


def test_rounds_have_a_pace_of_their_own_and_one_slow_job_does_not_stretch_the_rest(run):
    for load in run.of("load"):
        run.do(load, 30)
    *most, slow, last = run.of("session")
    for session in most:
        run.do(session, 5)
    run.do(slow, 60)
    run.begin(last)
    assert run.board.left_s == 5 + 2 * 0.5


def test_a_job_that_failed_is_marked_and_one_that_is_tried_again_is_not(run):
    load = run.of("load", lambda job: job.cells[0].system == "red-1.0")[0]
    assert run.do(load, 3, failed=True).message == f"load {load.key}"
    assert states(run)["red-1.0, standalone"][0] == "✗"
    assert run.board.done == 0
    assert f"0 of {len(run.board.jobs)} jobs, 3 s; 1 failed" in run.text, "what is left is not known"
    assert "then " not in run.text
    run.do(load, 10)
    assert " left\n" in run.text and "failed" not in run.text
    assert states(run)["red-1.0, standalone"][0] == "✓"


def test_what_is_not_of_the_plan_counts_for_nothing(run):
    run.board.begin(1, "all", ["nothing"], "Everything is up to date", None)
    assert run.board.end(1).message and run.board.end(2) is None
    assert run.board.headline.startswith(f"0 of {len(run.board.jobs)} jobs")


def test_how_far_a_job_is_comes_from_its_log(run, tmp_path):
    log = tmp_path / "log"
    last = "load red-1.0 ← blobs-l2:  40%|####      | 216/540 [00:09<00:13, 23.9row/s]"
    log.write_text(f"starting\n{last}\n")
    run.begin(run.of("load")[0], log)
    assert "▸ 0 s, 40%  load " in run.text
    assert board.logged(log, 1) == [last]
    assert board.logged(tmp_path / "none") == []


def test_on_a_small_terminal_what_runs_and_what_comes_next_stay_in_sight(run):
    run.begin(run.of("load")[0])
    lines = run.text.splitlines()
    assert lines[1].startswith("▸ ") and lines[2].startswith("  then ")
