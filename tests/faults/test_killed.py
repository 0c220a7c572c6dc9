"""A run that is killed, interrupted or doubled leaves nothing running and nothing half; the next one needs no help."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import psutil
import pytest

from anncestry.errors import DataError
from anncestry.provenance import running
from tests.flat.engine import ENGINE as flat
from tests.flat.engine import FlatServer
from tests.toy import Toy, parse_jobs

pytestmark = pytest.mark.faults

PATIENCE_S = 900


def wait_for(what: Callable[[], object], run: subprocess.Popen[str] | None = None) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < deadline, "waited in vain"
        assert run is None or run.poll() is None, "the run has ended"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """One cell, loaded and not measured yet, on a server that hangs as long as the file `lie` says so."""
    toy = Toy.make(tmp_path_factory.mktemp("loaded") / "toy")
    toy.one_cell()
    toy.block["workloads"] = ["k7"]
    toy.files["workloads"]["k7"]["timeout_s"] = 2 * PATIENCE_S
    lie = toy.folder / "lie"
    lie.write_text("")
    toy.files["systems"]["red-1.0"]["settings"] = {"lie": f"@{lie}"}
    toy.snakemake("--until", "record", "truth", "--keep-going")
    lie.write_text("hangs")
    yield toy
    assert not toy.at_work()


@pytest.fixture
def hung(loaded, tmp_path):
    lie = loaded.folder / "lie"
    lie.write_text("hangs")
    yield loaded.copy(tmp_path / "toy", "data", "scratch", "results")
    lie.write_text("")


def measured_now(toy: Toy) -> bool:
    return bool(list((toy.folder / "scratch").rglob("job0/job.json")))


def completes(toy: Toy, loaded: Toy, page: bool = False) -> str:
    """Nothing runs on, nothing half passes for whole, and the next call does exactly what is missing; what it says.

    With `page` to its end, else up to the recall.
    """
    wait_for(lambda: not toy.at_work())
    assert not list((toy.folder / "results" / "query").rglob("*.json"))
    (loaded.folder / "lie").write_text("")
    done = toy.snakemake(*(() if page else ("--until", "recall", "--keep-going")))
    missing = {"session": 1, "query": 1, "recall": 1, **({"table": 1, "report": 1, "all": 1} if page else {})}
    assert parse_jobs(done.stdout + done.stderr) == missing
    return done.stderr


def test_while_a_run_lives_a_second_is_refused_and_once_it_is_killed_the_next_needs_no_unlocking(hung, loaded):
    with hung.running() as run:
        wait_for(lambda: measured_now(hung), run)
        second = hung.snakemake(check=False)
        assert second.returncode != 0
        said = [line for line in second.stderr.splitlines() if "another run of the workflow is active here" in line]
        assert len(said) == 1 and f"process {run.pid}" in said[0], second.stderr
        assert "Traceback" not in second.stderr
        assert hung.snakemake("-n").returncode == 0, "looking is allowed"
        run.kill()  # of Snakemake alone: its jobs are not killed with it
        run.wait()
        wait_for(lambda: not hung.at_work())
    assert list((hung.folder / ".snakemake" / "locks").iterdir())
    assert f"removed the lock of a killed run (process {run.pid}," in completes(hung, loaded, page=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_an_interrupted_run_stops_its_server_and_the_next_one_completes_it(hung, loaded, number):
    with hung.running() as run:
        wait_for(lambda: measured_now(hung), run)
        os.killpg(run.pid, number)  # as a terminal, or a service manager, sends it: to all
        assert run.wait(PATIENCE_S) != 0
    text = (hung.folder / "run.log").read_text()
    assert "Traceback" not in text
    completes(hung, loaded)


_HELD = """
import signal, sys, time
from anncestry import cli
ended = []
def held(run, options):
    try:
        print("at work", flush=True)
        time.sleep(600)
    finally:
        print("tidies up", flush=True)
        sys.stdin.readline()
        print("tidied up", flush=True)
cli._work = lambda options, program: held(None, options)
sys.exit(cli.main(["cells"]))
"""


@contextmanager
def held(handlers: str) -> Iterator[tuple[subprocess.Popen[str], IO[str], IO[str]]]:
    """A command at work, with these handlers of signals before it, its input and output: a line lets it tidy up."""
    code = f"import signal\n{handlers}\n{_HELD}"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdin is not None and run.stdout is not None
        assert run.stdout.readline() == "at work\n"
        yield run, run.stdin, run.stdout


@pytest.mark.parametrize(
    ("first", "second", "status"), [("SIGINT", "SIGTERM", 130), ("SIGTERM", "SIGINT", 143), ("SIGINT", "SIGINT", 130)]
)
def test_a_second_signal_does_not_cut_the_tidying_up_short(first: str, second: str, status: int) -> None:
    # Where the tests run in the background, SIGINT is ignored, and would be by all that they start.
    with held("signal.signal(signal.SIGINT, signal.default_int_handler)") as (run, to, said):
        run.send_signal(getattr(signal, first))
        assert said.readline() == "tidies up\n"
        run.send_signal(getattr(signal, second))
        time.sleep(0.2)
        print(file=to, flush=True)
        assert said.readline() == "tidied up\n" and run.wait(600) == status


def test_what_nohup_started_does_not_end_with_the_terminal() -> None:
    with held("signal.signal(signal.SIGHUP, signal.SIG_IGN)") as (run, to, _):
        run.send_signal(signal.SIGHUP)
        time.sleep(0.2)
        assert run.poll() is None
        run.send_signal(signal.SIGTERM)
        print(file=to, flush=True)
        assert run.wait(600) == 143


def test_a_program_that_is_run_whole_is_told_to_end_before_it_is_killed(tmp_path: Path) -> None:
    child = "import signal, sys, time\nsignal.signal(15, lambda *_: sys.exit(print('told', flush=True)))\n"
    child += "print('runs', flush=True)\ntime.sleep(600)"
    code = f"import sys; from anncestry.provenance import running; running.run_whole([sys.executable, '-c', {child!r}])"
    program = f"import signal, sys\nsignal.signal(15, lambda *_: sys.exit(3))\n{code}"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None and run.stdout.readline() == "runs\n"
        run.terminate()
        assert run.stdout.readline() == "told\n" and run.wait(600) == 3


def test_a_harness_that_is_killed_takes_its_server_along_and_its_run_is_measured_again(hung, loaded):
    with hung.running() as run:
        wait_for(lambda: measured_now(hung), run)
        for process in psutil.Process(run.pid).children(recursive=True):
            with suppress(psutil.Error):
                if process.cmdline()[1:4] == ["-m", "anncestry", "--log"]:
                    process.kill()
        assert run.wait(PATIENCE_S) != 0
    completes(hung, loaded)


def claimed(here: Path) -> subprocess.Popen[str]:
    """Another process that is at work in `here`."""
    code = "import sys; from pathlib import Path; from anncestry.provenance import running; "
    code += "running.claim(Path(sys.argv[1])); print(flush=True); sys.stdin.read()"
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(here)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None and other.stdout.readline()
    return other


def test_the_marker_is_held_by_the_living_only(tmp_path):
    assert not running.at_work(tmp_path)
    other = claimed(tmp_path)
    assert running.at_work(tmp_path)
    with pytest.raises(DataError, match=f"another run .*process {other.pid} on"):
        running.claim(tmp_path)
    other.kill()
    other.communicate()
    assert not running.at_work(tmp_path)


def test_only_a_lock_that_is_known_to_be_stale_is_taken_away(tmp_path):
    locks = tmp_path / ".snakemake" / "locks"
    locks.mkdir(parents=True)
    (locks / "0.output.lock").write_text("results/a.json\n")
    assert running.at_work(tmp_path), "a lock without a marker may be anybody's"
    claimed(tmp_path).communicate()
    assert list(locks.iterdir()), "… so it is left to Snakemake"
    claimed(tmp_path).communicate()
    assert not locks.exists(), "the run before was ours, on this machine, and has ended"
    marker = tmp_path / ".snakemake" / "anncestry-run"
    marker.write_text('{"pid": 1, "host": "another-machine", "since": "then"}')
    locks.mkdir()
    (locks / "0.output.lock").write_text("results/a.json\n")
    claimed(tmp_path).communicate()
    assert list(locks.iterdir()), "a run on another machine can't be seen from here"


@pytest.mark.parametrize(
    ("words", "works"),
    [
        ("--cores 8 all", True),
        ("all -c2 --config experiment=smoke --report-after-run --report r.html", True),
        ("--touch --cores 1", True),
        ("-n", False),
        ("-np --cores 8 all", False),
        ("--unlock", False),
        ("--lint", False),
        ("--dag", False),
        ("--summary", False),
        ("--report r.html", False),
    ],
)
def test_only_a_run_that_runs_jobs_claims_the_folder(words, works):
    assert running.runs_jobs(["/usr/bin/snakemake", *words.split()]) is works


def test_a_job_whose_run_is_gone_does_not_start(tmp_path, monkeypatch):
    other = claimed(tmp_path)
    mark = running.owner(other.pid)
    other.communicate()
    monkeypatch.setenv(running.RUN, mark)
    with pytest.raises(DataError, match="has ended"):
        running.end_with_run()


def test_a_signal_while_an_engine_tidies_up_before_it_stops_its_server_leaves_none_running(bench, monkeypatch):
    """As Ctrl-C while Milvus' engine still deletes its sessions."""
    honest = bench()
    groups, start = [], flat.start

    def started(*arguments, **more):
        server = start(*arguments, **more)
        groups.append(server.group)
        return server

    def interrupted(server):
        raise KeyboardInterrupt

    monkeypatch.setattr(flat, "start", started)
    monkeypatch.setattr(FlatServer, "stop", interrupted)
    with pytest.raises(KeyboardInterrupt):
        honest.load(honest.matrix.cells[0])
    (group,) = groups
    assert not group.alive()
