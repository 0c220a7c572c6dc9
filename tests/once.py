"""What is made once a session, by whichever worker of it needs it first."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def of_session(tmp_path_factory: pytest.TempPathFactory, name: str) -> Path:
    """A folder of this name that all workers of a session share."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name


def once(shared: Path, make: Callable[[Path], object]) -> Path:
    """A folder in `shared` that `make` has filled, in this process or in another: the others wait."""
    shared.mkdir(parents=True, exist_ok=True)
    folder, made = shared / "place", shared / "whole"
    with open(shared / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            shutil.rmtree(folder, ignore_errors=True)  # what another worker did not finish
            make(folder)
            made.touch()
    return folder
