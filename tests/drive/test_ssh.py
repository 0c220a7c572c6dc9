"""Clients behind a real ssh: asked and answered as those here, and said by name where they can't be reached."""

from __future__ import annotations

import os
import re

import numpy as np
import psutil
import pyarrow.parquet as parquet
import pytest

from anncestry.drive import pools, protocol
from anncestry.drive.driver import Driver
from anncestry.errors import ServerError
from tests.builders.bench import Bench
from tests.ssh import sshd as running_sshd
from tests.toy import Toy
from tests.waiting import until


@pytest.fixture(scope="module")
def sshd(tmp_path_factory):
    assert os.geteuid() == 0, "NOT TESTED: load generators behind ssh. An sshd of a test's own takes root"
    with running_sshd(tmp_path_factory.mktemp("ssh") / "sshd") as running:
        yield running


def test_clients_behind_ssh_ask_the_same_and_nothing_of_theirs_is_left(sshd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLIENTS_A", sshd.command)
    monkeypatch.setenv(pools.ADDRESS, "127.0.0.2")  # another than that at which the session asks
    toy = Toy.make(tmp_path)
    toy.one_cell()
    here = {**toy.files["workloads"]["k7"], "clients": 2}
    toy.files["workloads"] |= {"here": here, "afar": {**here, "driver_hosts": ["CLIENTS_A"]}}
    toy.block["workloads"] = ["here", "afar"]
    bench = Bench(tmp_path, toy)
    bench.prepare()
    cells = {cell.workload: cell for cell in bench.matrix.cells}
    bench.load(cells["here"])
    assert set(bench.query(*cells.values()).values()) == {"ok"}
    records = {workload: bench.publish(cell) for workload, cell in cells.items()}

    def answers(workload: str) -> list[tuple[int, int, list[int]]]:
        table = parquet.read_table(cells[workload].samples_path)
        return sorted(zip(*(table[name].to_pylist() for name in ("client", "query", "ids")), strict=True))

    assert all(record["valid"] for record in records.values()), [record["gates"] for record in records.values()]
    assert answers("afar") == answers("here")
    (host,) = records["afar"]["client"]["hosts"]
    assert (host["name"], host["clients"], host["same_machine"]) == ("CLIENTS_A", 2, True)
    assert host["start_within_us"] > 0 and host["rtt_us"] > 0
    assert re.search(r"Accepted publickey for root from 127\.0\.0\.1", sshd.log)

    def left() -> list[str]:
        lines = (" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"]))
        return [line for line in lines if f"{tmp_path}/" in line]

    until(lambda: not left(), "what ran behind ssh to end")


def test_a_machine_that_ssh_does_not_let_in_is_named(sshd, tmp_path, monkeypatch):
    monkeypatch.setenv("CLIENTS_A", sshd.stranger)
    monkeypatch.setenv(pools.ADDRESS, "127.0.0.1")
    protocol.write_requests(tmp_path, [b"x"])
    one = np.zeros((1, 1))
    how = {"kind": "grpc", "target": "127.0.0.1:9", "method": "/x/Y"}
    protocol.write_job(tmp_path / "job", requests=tmp_path, transport=how, schedule=one, prime=one, timeout_s=1)
    with (
        Driver(shared=tmp_path / "shared") as driver,
        pytest.raises(ServerError, match="the machine of CLIENTS_A failed: it died"),
    ):
        driver.run(tmp_path / "job", hosts=["CLIENTS_A"])
