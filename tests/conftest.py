"""What holds for every test."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(scope="session", autouse=True)
def _workers_do_not_wait_for_each_other(tmp_path_factory):
    """Tests side by side are no measurements that disturb each other: each worker's wait for that worker's only."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANNCESTRY_MEASURE_LOCK", str(tmp_path_factory.mktemp("lock") / "measure.lock"))
        yield
