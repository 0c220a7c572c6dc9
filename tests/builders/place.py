"""What several files look at, measured once a session, whichever worker needs it first."""

from __future__ import annotations

import fcntl
import os

import pytest

from tests.toy import Toy


@pytest.fixture(scope="session")
def finished_place(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    """One dataset on one system and topology, with both workloads, measured to the end.

    All workers share it, so no test may change it: what changes anything works on a copy.
    """
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "finished_place"
    whole = shared / "whole"
    shared.mkdir(exist_ok=True)
    with open(shared / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if whole.exists():
            return Toy.place(shared / "toy")
        toy = Toy.finished_place(shared / "toy")
        whole.touch()
        return toy
