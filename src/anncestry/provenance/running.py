"""One run of the workflow at a time in a working directory; its jobs end with it.

Snakemake's lock is a file that survives a killed run. Therefore a run also holds `flock` on a marker, which the kernel
releases with the process. A Snakemake lock without a holder of the marker is stale and gets removed; a second run while
the first is alive fails with one sentence.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from anncestry.errors import DataError

RUN = "ANNCESTRY_RUN"
"""In the environment of every job: the `owner` that runs the workflow."""
_FOLDER = Path(".snakemake")
_MARKER = "anncestry-run"
_TRIES, _TRY_S = 5, 0.1
_SQUEUE_S, _PATH_CHARS = 60, 4096
_PATIENCE_S = 180.0
"""A cluster of containers takes its time to stop."""

_LOOKS_ONLY = (
    *("dryrun", "lint", "list_rules", "list_target_rules", "print_compilation", "dag", "rulegraph", "filegraph"),
    *("d3dag", "containerize", "unlock", "generate_unit_tests", "cleanup_metadata", "conda_cleanup_envs"),
    *("conda_create_envs_only", "list_conda_envs", "cleanup_shadow", "container_cleanup_images", "list_changes"),
    *("list_input_changes", "list_params_changes", "list_untracked", "summary", "detailed_summary", "archive"),
)
"""Options of Snakemake with which it runs no job, by their names in its parser."""

_held: TextIO | None = None


def owner(pid: int) -> str:
    """A process, also told from a later one of the same pid: "PID:START", its start in ticks since the machine's."""
    with open(f"/proc/{pid}/stat") as file:
        return f"{pid}:{file.read().rpartition(')')[2].split()[19]}"


def owner_alive(mark: str) -> bool:
    """Whether the process that an `owner` names still runs."""
    pid = mark.partition(":")[0]
    try:
        return pid.isdigit() and owner(int(pid)) == mark
    except OSError:
        return False


def runs_jobs(argv: Sequence[str]) -> bool:
    """Whether a command line of Snakemake's is one that runs jobs (and locks), not one that only looks."""
    if Path(argv[0]).name not in ("snakemake", "__main__.py"):
        return False  # Snakemake was called as a library: its own lock has to do
    from snakemake.cli import get_argument_parser

    given = vars(get_argument_parser().parse_args(list(argv[1:])))
    if given.get("report") is not None and not given.get("report_after_run"):
        return False
    return not any(given.get(name) not in (None, False) for name in _LOOKS_ONLY)


def claim(here: Path, refuse_living: Callable[[Path], None] = lambda here: None) -> None:
    """Be the one run at work in `here` until this process ends; take away the lock of one that was killed.

    DataError if another run lives, or jobs of a killed one do: in Slurm, or where `refuse_living` looks and raises it.
    A lock whose run was on another machine of the cluster is left to Snakemake: the marker can't be trusted across
    every shared file system.
    """
    global _held
    folder = here / _FOLDER
    folder.mkdir(exist_ok=True)
    marker = open(folder / _MARKER, "a+")  # noqa: SIM115 - held as long as this process lives
    if not _lock(marker):
        other = _read(marker)
        marker.close()
        raise DataError(
            f"{here.resolve()}: another run of the workflow is active here (process {other.get('pid', '?')} on "
            f"{other.get('host', '?')}, since {other.get('since', '?')}): wait for its end, or terminate it"
        )
    try:
        orphans = in_slurm(here)
        if orphans:
            raise DataError(
                f"{here.resolve()}: Slurm still has jobs of an earlier, killed run: wait for their end, or "
                f"scancel {' '.join(orphans)}"
            )
        refuse_living(here)
    except DataError:
        marker.close()
        raise
    before, locks = _read(marker), folder / "locks"
    if locks.is_dir() and any(locks.iterdir()) and before.get("host") == socket.gethostname():
        shutil.rmtree(locks)
        removed = f"removed the lock of a killed run (process {before['pid']}, since {before['since']})"
        print(removed, file=sys.stderr, flush=True)
    _write(marker)
    _held = marker


def in_slurm(here: Path) -> list[str]:
    """Ids of this user's jobs in Slurm that write their output below `here`; none where no Slurm answers.

    Known by their output, as Slurm's own idea of a job's folder is where Snakemake was called, not its `--directory`.
    """
    squeue = shutil.which("squeue")
    if squeue is None:
        return []
    command = [squeue, "--me", "--noheader", f"--Format=JobID:24,STDOUT:{_PATH_CHARS}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SQUEUE_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    inside = f"{(here / _FOLDER).resolve()}{os.sep}"
    rows = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    return [row[0] for row in rows if len(row) == 2 and row[1].startswith(inside)]


def _lock(marker: TextIO) -> bool:
    """Take the marker for good; tried for a while, as somebody who only asks (`at_work`) holds it for an instant."""
    for _ in range(_TRIES):
        try:
            fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_TRY_S)
        else:
            return True
    return False


def _write(marker: TextIO) -> None:
    """Say who holds the marker."""
    marker.truncate(0)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    json.dump({"pid": os.getpid(), "host": socket.gethostname(), "since": now}, marker)
    marker.flush()


def _read(marker: TextIO) -> dict[str, Any]:
    """What the last run wrote of itself; nothing if it was ended before it could."""
    marker.seek(0)
    try:
        body = json.loads(marker.read())
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def at_work(here: Path) -> bool:
    """Whether a run is at work in `here`, by its marker; by Snakemake's lock where there is no marker."""
    try:
        with open(here / _FOLDER / _MARKER) as marker:
            fcntl.flock(marker, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if _read(marker).get("host") == socket.gethostname():
                return False
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    locks = here / _FOLDER / "locks"
    return locks.is_dir() and any(locks.iterdir())


@contextmanager
def standing_still(here: Path, to: str) -> Iterator[None]:
    """No run starts in `here` meanwhile. DataError while one is at work: what is asked `to` be done waits for it."""
    refusal = f"a run is at work in this folder: {to} once it has ended"
    if at_work(here):
        raise DataError(refusal)
    (here / _FOLDER).mkdir(exist_ok=True)
    with open(here / _FOLDER / _MARKER, "a+") as marker:
        if not _lock(marker):
            raise DataError(refusal)
        if orphans := in_slurm(here):
            raise DataError(f"{refusal} (Slurm still has its jobs {', '.join(orphans)})")
        _write(marker)
        yield


def by_another(here: Path) -> bool:
    """Whether a run that is not this process' own is at work in `here`."""
    return _held is None and at_work(here)


def run_whole(words: Sequence[str], **options: Any) -> int:
    """Run a program to its end, and return its status. If this process is to end before, so is the program: it is told,
    and has `_PATIENCE_S` to stop its servers. (`subprocess.run` would kill it at once.)"""
    with subprocess.Popen(words, **options) as process:
        try:
            return process.wait()
        except BaseException as error:
            if not isinstance(error, KeyboardInterrupt):  # which the terminal sends to both
                process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_PATIENCE_S)
            process.kill()
            raise


def end_with_run() -> None:
    """End this job (SIGTERM, so that it stops its servers) as soon as the run it belongs to is gone.

    A run that is killed can't end its jobs, and they would measure on, unseen, beside those of the next run. A thread
    sleeps on the run's pidfd, so that watching costs a measurement nothing. Does nothing where no run is named.
    """
    mark = os.environ.get(RUN, "")
    pid = mark.partition(":")[0]
    if not pid.isdigit():
        return
    try:
        handle = os.pidfd_open(int(pid))
    except OSError:
        handle = None
    if handle is None or not owner_alive(mark):
        raise DataError(f"the run of this job (process {pid}) has ended")
    watched = handle

    def watch() -> None:
        poll = select.poll()
        poll.register(watched, select.POLLIN)
        poll.poll()
        try:
            print(f"the run of this job (process {pid}) has ended, so this job ends too", file=sys.stderr, flush=True)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="end with the run", daemon=True).start()
