"""Clients on other machines. Two network namespaces stand for those: addresses of their own, one file system."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from contextlib import ExitStack

import numpy as np
import psutil
import pyarrow.parquet as parquet
import pytest

from anncestry import engines, workflow
from anncestry.drive import pools, protocol
from anncestry.drive.client import OK
from anncestry.drive.driver import Driver
from anncestry.errors import ConfigError, ServerError, UserError
from anncestry.progress import Progress
from tests.builders.bench import Bench
from tests.servers import INDEX, artifact, running, small_vectors
from tests.toy import ROOT, Toy

NAMES = ("CLIENTS_A", "CLIENTS_B")


def ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def machines():
    """Namespaces, joined to this one by a wire each: by the names of variables that say how programs are run there."""
    assert os.geteuid() == 0, "NOT TESTED: driver_hosts. Network namespaces that stand for machines need root"
    assert shutil.which("ip"), "NOT TESTED: driver_hosts. The program ip is missing (Debian: iproute2)"
    made = {}
    with ExitStack() as stack, pytest.MonkeyPatch.context() as environment:
        for number, variable in enumerate(NAMES, 1):
            name, net = f"anncestry-{os.getpid()}-{number}", f"10.212.{os.getpid() % 125 * 2 + number - 1}"
            ip("netns", "add", name)
            stack.callback(ip, "netns", "delete", name)
            near, far = f"ann{number}n{os.getpid()}", f"ann{number}f{os.getpid()}"
            ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", name)
            stack.callback(subprocess.run, ["ip", "link", "delete", near], capture_output=True)
            ip("addr", "add", f"{net}.1/24", "dev", near)
            ip("link", "set", near, "up")
            ip("-n", name, "addr", "add", f"{net}.2/24", "dev", far)
            ip("-n", name, "link", "set", far, "up")
            ip("-n", name, "route", "add", "default", "via", f"{net}.1")
            environment.setenv(variable, f"ip netns exec {name}")
            if number == 1:
                environment.setenv(pools.ADDRESS, f"{net}.1")
            made[variable] = (name, far)
        yield made


def sent(machine: tuple[str, str]) -> int:
    """Packets that a machine has sent so far."""
    (link,) = json.loads(ip("-n", machine[0], "-s", "-j", "link", "show", machine[1]))
    return int(link["stats64"]["tx"]["packets"])


def test_clients_on_other_machines_ask_the_same_and_the_record_says_where_they_were(machines, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    there = psutil.Process().children()
    toy = Toy.make(tmp_path)
    toy.one_cell()
    afar = {**toy.files["workloads"]["k7"], "clients": 3, "driver_hosts": list(NAMES)}
    toy.files["workloads"] |= {"here": {**toy.files["workloads"]["k7"], "clients": 3}, "afar": afar}
    toy.files["workloads"]["paced"] = {**afar, "loop": "open", "rate_per_s": 100, "duration_s": 0.6}
    toy.block["workloads"] = ["here", "afar", "paced"]
    bench = Bench(tmp_path, toy)
    bench.prepare()
    cells = {cell.workload: cell for cell in bench.matrix.cells}
    bench.load(cells["here"])
    before = {name: sent(machine) for name, machine in machines.items()}
    assert set(bench.query(*cells.values()).values()) == {"ok"}
    records = {workload: bench.publish(cell) for workload, cell in cells.items()}

    def answers(workload: str) -> list[tuple[int, int, list[int]]]:
        table = parquet.read_table(cells[workload].samples_path)
        assert set(table["status"].to_pylist()) == {OK}
        return sorted(zip(*(table[name].to_pylist() for name in ("client", "query", "ids")), strict=True))

    assert all(record["valid"] for record in records.values()), [record["gates"] for record in records.values()]
    assert answers("afar") == answers("here"), "every client asks what it would have asked here"
    assert {client for client, _, _ in answers("paced")} == {0, 1, 2}
    for workload in ("afar", "paced"):
        client = records[workload]["client"]
        assert [(host["name"], host["clients"]) for host in client["hosts"]] == [(NAMES[0], 2), (NAMES[1], 1)]
        for host in client["hosts"]:
            assert host["rtt_us"] > 0 and host["start_within_us"] > 0 and host["cpu_s"] >= 0
            assert host["cpu_model"] and host["cores"] >= 1 and host["memory_gib"] > 0 and host["kernel"]
            assert host["same_machine"] is True, "a namespace is no machine, and the record does not pretend it is"
        assert client["ceiling"] is None
    assert "hosts" not in records["here"]["client"] and records["here"]["client"]["ceiling"]
    requests = {NAMES[0]: 2 * 13, NAMES[1]: 13}
    for name, machine in machines.items():
        assert sent(machine) - before[name] > requests[name], f"nothing was sent by {name}"
    assert not set(psutil.Process().children()) - set(there), "a process was left running"


@pytest.mark.servers
@pytest.mark.parametrize("system", ["mariadb-11.8.6", pytest.param("seekdb-1.4.0", marks=pytest.mark.long)])
def test_a_database_with_a_password_answers_clients_on_other_machines_as_those_here(
    machines, tmp_path, monkeypatch, system
):
    for variable in NAMES:
        nothing_of_ours = f"env -i PATH={os.environ['PATH']}"
        monkeypatch.setenv(variable, f"{nothing_of_ours} {os.environ[variable]}")
    mysql, vectors = engines.get("mysql"), small_vectors("l2", rows=200)
    asked = np.arange(20).reshape(2, 10)
    with (
        running(system, artifact(system, tmp_path / "artifact"), tmp_path / "data") as server,
        Driver(shared=tmp_path / "shared") as driver,
    ):
        with Progress("load", len(vectors.base), "rows") as progress:
            mysql.load(server, vectors, INDEX, {"batch_rows": 100}, progress)
        mysql.apply(server, 64)
        protocol.write_requests(tmp_path / "requests", mysql.encode(server, vectors.base[:20], 5, 64, None))
        for name, hosts in (("here", ()), ("afar", NAMES)):
            how = {"requests": tmp_path / "requests", "transport": mysql.transport(server), "timeout_s": 10}
            protocol.write_job(tmp_path / name, schedule=asked, prime=asked[:, :1], **how)
            driver.run(tmp_path / name, hosts=hosts)
    for client, queries in enumerate(asked):
        samples = np.fromfile(tmp_path / "afar" / f"samples.{client}.bin", protocol.SAMPLE)
        assert samples["query"].tolist() == queries.tolist() and (samples["status"] == OK).all()
        answers = [(tmp_path / name / f"responses.{client}.bin").read_bytes() for name in ("here", "afar")]
        assert answers[0] and answers[0] == answers[1]
    password = (tmp_path / "data" / "password").read_text().encode()
    written = [path for name in ("afar", "shared") for path in (tmp_path / name).rglob("*") if path.is_file()]
    assert written and not any(password in path.read_bytes() for path in written), "the password is in no file there"


@pytest.mark.parametrize(("clients", "machines_"), [(1, 2), (2, 2), (5, 2), (7, 3)])
@pytest.mark.parametrize("loop", ["closed", "open"])
def test_what_is_asked_is_dealt_out_once_each_and_put_together_under_the_clients_numbers(
    tmp_path, clients, machines_, loop
):
    random = np.random.RandomState(clients)
    rows = random.permutation(60)[None, :] if loop == "open" else random.randint(0, 60, (clients, 12))
    due = np.sort(random.randint(0, 10**9, 101)) if loop == "open" else None
    prime = np.arange(clients * 2).reshape(clients, 2)
    protocol.write_requests(tmp_path, [bytes([i]) for i in range(60)])
    targets = {"kind": "grpc", "targets": ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"]}
    protocol.write_job(
        tmp_path, requests=tmp_path, transport=targets, schedule=rows, prime=prime, timeout_s=1, due_ns=due
    )
    parts = pools.deal(tmp_path, json.loads((tmp_path / "job.json").read_text()), machines_)
    assert sorted(seat for _, seats in parts for seat in seats) == list(range(clients))
    asked: list[tuple[int, int]] = []
    for part, seats in parts:
        job = json.loads((part / "job.json").read_text())
        assert job["clients"] == len(seats)
        assert job["transport"]["targets"] == [targets["targets"][seat % 3] for seat in seats]
        mine = np.fromfile(part / "schedule.bin", "<u4").reshape(1 if loop == "open" else len(seats), -1)
        assert np.array_equal(np.fromfile(part / "prime.bin", "<u4").reshape(len(seats), 2), prime[seats])
        if due is None:
            assert np.array_equal(mine, rows[seats])
        else:
            at = np.fromfile(part / "due.bin", "<i8")
            asked += zip(at.tolist(), mine[0].tolist(), strict=True)
        for number, seat in enumerate(seats):
            samples = np.zeros(seat + 1, protocol.SAMPLE)
            samples["client"], samples["query"] = number, seat
            samples.tofile(part / f"samples.{number}.bin")
            (part / f"responses.{number}.bin").write_bytes(bytes([seat]))
        pools.gather(tmp_path, part, seats)
    if due is not None:
        assert sorted(asked) == sorted(zip(due.tolist(), rows[0][np.arange(101) % 60].tolist(), strict=True))
    for seat in range(clients):
        samples = np.fromfile(tmp_path / f"samples.{seat}.bin", protocol.SAMPLE)
        assert (samples["client"] == seat).all() and (samples["query"] == seat).all() and len(samples) == seat + 1
        assert (tmp_path / f"responses.{seat}.bin").read_bytes() == bytes([seat])


@pytest.mark.parametrize(
    ("variables", "kind", "sentence"),
    [
        ({}, UserError, "CLIENTS_A is not set: set it to the command"),
        ({"CLIENTS_A": "no-such-program x"}, UserError, "CLIENTS_A: no-such-program: No such file"),
        ({"CLIENTS_A": "env 'x"}, UserError, "CLIENTS_A is not a valid command"),
        ({"CLIENTS_A": "false"}, ServerError, "the machine of CLIENTS_A failed: it died"),
        ({"CLIENTS_A": "env", "ANNCESTRY_ADDRESS": ""}, UserError, "ANNCESTRY_ADDRESS is not set"),
        ({"CLIENTS_A": "env"}, ServerError, r"the machine of CLIENTS_A failed: .*refused.* reach the server"),
    ],
    ids=["unset", "missing", "quote", "dies", "address", "refused"],
)
def test_a_machine_that_cannot_be_used_is_named(tmp_path, monkeypatch, variables, kind, sentence):
    monkeypatch.delenv("CLIENTS_A", raising=False)
    for name, value in {"ANNCESTRY_ADDRESS": "127.0.0.2", **variables}.items():
        monkeypatch.setenv(name, value)
    protocol.write_requests(tmp_path, [b"x"])
    one = np.zeros((1, 1))
    how = {"kind": "grpc", "target": "127.0.0.1:9", "method": "/x/Y"}
    protocol.write_job(tmp_path / "job", requests=tmp_path, transport=how, schedule=one, prime=one, timeout_s=1)
    with Driver(shared=tmp_path / "shared") as driver, pytest.raises(kind, match=sentence):
        driver.run(tmp_path / "job", hosts=["CLIENTS_A"])


@pytest.mark.parametrize(
    ("workload", "topology", "config", "sentence"),
    [
        ({"client": "sdk"}, {}, {}, "unsupported with client: .*not a Python library"),
        ({}, {"runtime": "docker"}, {}, "other machines can't reach containers"),
        ({}, {}, {"driver": "python"}, "needs driver: native"),
    ],
    ids=["sdk", "docker", "python"],
)
def test_what_clients_on_other_machines_cannot_do_is_refused_while_parsing(
    tmp_path, workload, topology, config, sentence
):
    toy = Toy.make(tmp_path)
    toy.one_cell()
    toy.files["workloads"]["k5"] |= {"driver_hosts": ["CLIENTS_A"], **workload}
    toy.files["topologies"]["standalone"] |= topology
    toy.files["config"] |= config
    toy.save()
    with pytest.raises(ConfigError, match=rf"workloads.yaml: k5.driver_hosts: .*{sentence}"):
        workflow.expand(workflow.Choice(tmp_path / "config", "default"))


def test_a_system_that_listens_on_loopback_alone_is_refused_while_parsing(tmp_path):
    shutil.copytree(ROOT / "config", tmp_path / "config")
    (tmp_path / "config" / "experiments" / "afar.yaml").write_text(
        json.dumps(
            {
                "title": "x",
                "matrix": [
                    {
                        "datasets": ["sift-128-euclidean"],
                        "systems": ["pgvector-0.8.5"],
                        "topologies": ["standalone"],
                        "workloads": ["k10-afar"],
                    }
                ],
            }
        )
    )
    workloads = tmp_path / "config" / "workloads.yaml"
    one = {"k": 10, "clients": 1, "runs": 1, "queries": 10, "warmup": 0, "driver_hosts": ["CLIENTS_A"]}
    workloads.write_text(workloads.read_text() + f"\nk10-afar: {json.dumps(one)}\n")
    with pytest.raises(ConfigError, match="engine pgvector listens on loopback only"):
        workflow.expand(workflow.Choice(tmp_path / "config", "afar"))
