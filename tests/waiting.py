"""Waiting for what has to come true, as long as a busy machine may need."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_MOST_S = 600


def whole(
    command: Sequence[str | Path], timeout_s: float, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """What a command said, once it has ended; when its time is over, it is killed with all that it started."""
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env=env, cwd=cwd, start_new_session=True, **quiet) as process:  # type: ignore[call-overload]
        try:
            said = process.communicate(timeout=timeout_s)
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, process.returncode, *said)


def until(true: Callable[[], object], what: str = "what has to come true", seconds: float = _MOST_S) -> None:
    """Return as soon as it is true; AssertionError if it does not come."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.02)
