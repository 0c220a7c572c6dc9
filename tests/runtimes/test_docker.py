"""The docker runtime on a real engine: images, limits, deaths told by name, nothing left behind, real clusters."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import grpc
import numpy as np
import psutil
import pytest

from anncestry.cli import main
from anncestry.drive import protocol
from anncestry.drive.client import OK
from anncestry.drive.driver import Driver
from anncestry.engines import get
from anncestry.engines.base import DecodeError
from anncestry.errors import ServerError, UserError
from anncestry.features.fault.measuring import Fault, impact
from anncestry.measure.requests import decode
from anncestry.progress import Progress
from anncestry.runtimes import dockerd, leftovers
from anncestry.runtimes.base import Limits
from anncestry.runtimes.docker import Remnant, remnants
from anncestry.runtimes.images import local_image
from anncestry.runtimes.native import free_ports
from tests.containers import Bench, engine, programs
from tests.servers import INDEX, SYSTEMS, TOPOLOGIES, artifact, small_vectors, with_parts
from tests.toy import ROOT, parse_jobs, run_workflow

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def client() -> Iterator[docker.DockerClient]:
    client = engine()
    before = {found.id for found in remnants(client)}
    yield client
    assert [found for found in remnants(client) if found.id not in before] == []


@pytest.fixture
def bench(client: docker.DockerClient, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(client, tmp_path, programs(tmp_path / "artifact", "sleep", "tail", "cat"))
    yield bench
    bench.close()


def wait_until(true: Callable[[], object], timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.1)


# Images


def test_an_image_is_the_artifacts_own_bytes_and_is_made_once(bench: Bench, client: docker.DockerClient) -> None:
    again = local_image(client, "test", bench.artifact)
    assert again == bench.image
    assert bench.image.reference.endswith(bench.image.layers[0].removeprefix("sha256:")[:12])
    assert any("libc.so" in path for path in bench.image.host_files), "and what of this machine is in it is told"
    (bench.artifact / "sleep").write_bytes((bench.artifact / "cat").read_bytes())
    assert local_image(client, "test", bench.artifact).layers != bench.image.layers


# One container


def test_a_container_runs_as_this_user_on_the_folder_and_its_output_is_kept(bench: Bench) -> None:
    (bench.folder / "words").write_text("found on the same path inside\n")
    container = bench.start(bench.pod(), "reader", "cat", str(bench.folder / "words"))
    wait_until(lambda: not container.alive())
    ending = container.stop(1)
    assert (ending.signal, ending.returncode) == (None, 0)
    assert container.log_tail() == "found on the same path inside"
    assert (bench.folder / "reader.log").read_text() == "found on the same path inside\n"


def test_limits_are_what_the_engine_says_and_what_the_kernel_accounts(bench: Bench) -> None:
    container = bench.start(bench.pod(), "one", "sleep", "60", limits=Limits(0.5, 96))
    said = container.limits()
    assert said["cpus"] == {"asked": 0.5, "effective": 0.5, "by": "container engine"}
    assert said["memory_mib"] == {"asked": 96, "effective": 96, "by": "container engine"}
    used = container.usage()
    assert 0 < used["memory_mib"] < 96 and used["oom_kills"] == 0 and used["cpu_s"] >= 0
    assert container.facts()["layers"] == bench.image.layers


def test_a_death_for_lack_of_memory_is_named_with_the_limit(bench: Bench) -> None:
    container = bench.start(bench.pod(), "eater", "tail", "/dev/zero", limits=Limits(None, 48))
    wait_until(lambda: not container.alive(), 300)
    with pytest.raises(ServerError, match=r"test eater .* was killed for lack of memory at 48 MiB"):
        container.check_alive()


def test_a_death_by_itself_is_named_with_its_exit_code_and_last_words(bench: Bench) -> None:
    container = bench.start(bench.pod(), "wrong", "cat", "/nowhere")
    wait_until(lambda: not container.alive())
    with pytest.raises(ServerError, match=r"exit code 1\)") as error:
        container.check_alive()
    assert "/nowhere: No such file" in error.value.log_tail


def test_a_program_that_does_not_end_in_time_is_killed(bench: Bench) -> None:
    container = bench.start(bench.pod(), "deaf", "sleep", "60")  # process 1 of a container ignores SIGTERM by default
    ending = container.stop(0.5)
    assert (ending.signal, ending.returncode) == ("SIGKILL", -9)
    assert not container.alive() and container.stop(1) is ending


def test_one_that_ends_while_it_is_being_stopped_is_no_error(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    container = bench.start(bench.pod(), "quick", "cat", "/nowhere")
    wait_until(lambda: not container.alive())
    state, said = container._state, iter([{"Status": "running"}] * 2)
    monkeypatch.setattr(container, "_state", lambda: next(said, None) or state())
    assert container.stop(0.2).returncode == 1


def test_a_container_that_somebody_else_removed_is_noticed(bench: Bench, client: docker.DockerClient) -> None:
    pod = bench.pod()
    container = bench.start(pod, "gone", "sleep", "60")
    client.containers.get(f"anncestry-{pod.session}-gone").remove(force=True)
    wait_until(lambda: not container.alive())
    with pytest.raises(ServerError, match="was removed by somebody else"):
        container.check_alive()
    container.stop(1)


# Names and ports that are taken


def test_a_taken_container_name_is_told(bench: Bench) -> None:
    bench.start(bench.pod(session="twice"), "one", "sleep", "60")
    with pytest.raises(UserError, match="container name anncestry-twice-one is taken: `anncestry leftovers` lists"):
        bench.start(bench.pod(session="twice"), "one", "sleep", "60")


def test_a_taken_port_is_told(bench: Bench) -> None:
    (port,) = free_ports(1)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", port))
        holder.listen()
        with pytest.raises(ServerError, match="test one: address already in use"):
            bench.start(bench.pod(publish=True), "one", "sleep", "60", ports=(port,))


# Faults


def test_a_paused_container_stands_still_and_goes_on(bench: Bench) -> None:
    container = bench.start(bench.pod(), "one", "sleep", "60")
    container.pause()
    assert container.alive() and container._state()["Status"] == "paused"
    container.resume()
    assert container._state()["Status"] == "running"
    container.pause()
    assert container.stop(0).signal == "SIGKILL", "one that is paused can be stopped"


def test_a_killed_or_cut_off_container_comes_back_at_its_address(bench: Bench) -> None:
    pod = bench.pod()
    container = bench.start(pod, "one", "sleep", "60")
    bench.start(pod, "two", "sleep", "60")

    def addresses() -> list[str]:
        container._container.reload()
        networks = container._container.attrs["NetworkSettings"]["Networks"]
        return [network["IPAddress"] for network in networks.values()]

    container.kill()
    assert not container.alive()
    container.restart()
    assert container.alive() and addresses() == [pod.host("one")]
    container.cut_off()
    assert addresses() == []
    container.reconnect()
    assert addresses() == [pod.host("one")]


# What killed runs leave behind

_KILLED = """
import sys, time
from pathlib import Path
from tests.containers import Bench, engine
bench = Bench(engine(), Path(sys.argv[1]), Path(sys.argv[1]) / "artifact")
pod = bench.pod()
bench.start(pod, "one", "sleep", "600")
print(pod.session, flush=True)
time.sleep(600)
"""


def _left(client: docker.DockerClient, session: str) -> list[Remnant]:
    return [found for found in remnants(client) if found.session == session]


def test_what_a_killed_run_left_behind_is_named_and_removed_only_on_request(
    bench: Bench,
    client: docker.DockerClient,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", _KILLED, str(bench.folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    mine = bench.pod()
    bench.start(mine, "mine", "sleep", "60")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as run:
        assert run.stdout is not None
        session = run.stdout.readline().strip()
        assert [(found.kind, found.used) for found in _left(client, session)] == [
            ("container", True),
            ("network", True),
        ]
        client.containers.get(f"anncestry-{session}-one").pause()  # as `runtimes.freeze` does
        run.kill()
    assert [(found.used, found.paused) for found in _left(client, session)] == [(False, True), (False, False)]
    assert [one.frozen for one in leftovers.find(tmp_path) if session in one.name] == [True, False]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # whatever else is measured on this machine
    assert main(["leftovers"]) == 0
    said = capsys.readouterr().out
    assert f"container: anncestry-{session}-one" in said and f"network: anncestry-{session}" in said
    assert mine.session not in said and len(_left(client, session)) == 2
    found = [one for one in leftovers.find(tmp_path) if session in one.name]
    assert leftovers.clean(found) == []
    assert _left(client, session) == []
    assert len(_left(client, mine.session)) == 2, "what is in use stays"


_ASKED_TO_END = """
import signal, sys, time
from pathlib import Path
from anncestry import cli
from anncestry.commands import rules
from tests.containers import Bench, engine
# Where the tests run in the background, SIGINT is ignored, and would be by all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
def measure(run, options):
    bench = Bench(engine(), Path(sys.argv[1]), Path(sys.argv[1]) / "artifact")
    pod = bench.pod()
    try:
        bench.start(pod, "one", "sleep", "600")
        print(pod.session, flush=True)
        time.sleep(600)
    finally:
        pod.close()
rules._rule = measure
sys.exit(cli.main(["load", "a-load"]))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_run_that_is_asked_to_end_leaves_nothing(bench: Bench, client: docker.DockerClient, number: int) -> None:
    command = [sys.executable, "-c", _ASKED_TO_END, str(bench.folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as run:
        assert run.stdout is not None
        session = run.stdout.readline().strip()
        assert len(_left(client, session)) == 2
        run.send_signal(number)
        assert run.wait(60) == 128 + number
    assert _left(client, session) == []


# An engine of one's own


def test_a_command_can_have_an_engine_of_its_own_that_is_gone_afterwards(tmp_path: Path) -> None:
    environment = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/nobody.sock", "XDG_CACHE_HOME": str(tmp_path)}
    code = "import docker, os; print(os.environ['DOCKER_HOST']); print(docker.from_env().version()['Version'])"
    command = [sys.executable, "-m", "anncestry", "engine", sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    address = done.stdout.splitlines()[0].removeprefix("unix://")
    assert not Path(address).parent.exists()
    running = [p.info["cmdline"] or [] for p in psutil.process_iter(["cmdline"])]
    assert not [command for command in running if str(tmp_path) in " ".join(command)]


_ENGINE_DIES = """
import sys
from pathlib import Path
from anncestry import cli
from anncestry.commands import rules
from tests.containers import Bench, engine, programs
def measure(run, options):
    folder = Path(sys.argv[1])
    bench = Bench(engine(), folder, programs(folder / "artifact", "sleep"))
    pod = bench.pod()
    try:
        one = bench.start(pod, "one", "sleep", "600")
        print(one.pids()[0], flush=True)
        sys.stdin.readline()
    finally:
        pod.close()
rules._rule = measure
sys.exit(cli.main(["load", "a-load"]))
"""


def test_an_engine_that_is_killed_is_named_and_leaves_nothing_and_the_next_one_starts(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "DOCKER_HOST": f"unix://{tmp_path}/nobody.sock",
        "XDG_CACHE_HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT),
    }
    engine_of_its_own = [sys.executable, "-m", "anncestry", "engine"]
    command = [*engine_of_its_own, sys.executable, "-c", _ENGINE_DIES, str(tmp_path / "bench")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as run:
        assert run.stdout is not None
        line = run.stdout.readline()
        assert line.strip().isdigit(), run.communicate()
        inside = psutil.Process(int(line))
        (daemon,) = [p for p in psutil.Process(run.pid).children() if p.name() == "dockerd"]
        words = daemon.cmdline()
        folder = str(Path(words[words.index("--exec-root") + 1]).parent)
        daemon.kill()
        said = run.communicate("\n", timeout=600)[1]
    assert run.returncode == 2, said
    assert "Traceback" not in said
    assert "anncestry load: test one: the container engine at unix://" in said and "does not answer any more" in said
    assert not inside.is_running()
    again = subprocess.run([*engine_of_its_own, "docker", "ps", "--all", "--quiet"], env=environment, check=False,
                           capture_output=True, text=True, timeout=600)  # fmt: skip
    assert again.returncode == 0, again.stderr
    running = [" ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])]
    assert not [command for command in running if str(tmp_path) in command or folder in command]
    mounts = Path("/proc/mounts").read_text()
    assert folder not in mounts and str(tmp_path) not in mounts


def test_a_failing_command_passes_its_status_on(client: docker.DockerClient) -> None:
    assert dockerd.run([sys.executable, "-c", "raise SystemExit(7)"], Path("/nowhere"), False) == 7


# Real systems

STANDALONE = {"runtime": "docker", "nodes": 1, "shards": 1, "replicas": 1}
CLUSTER = {"runtime": "docker", "nodes": 3, "shards": 3, "replicas": 1, "limits": {"cpus": 1, "memory_mib": 1024}}


def _load(engine: Any, server: Any, metric: str = "cosine") -> int:
    vectors = small_vectors(metric)
    with Progress("load", len(vectors.base), "row") as progress:
        engine.load(server, vectors, INDEX, {"batch_rows": 500}, progress)
    return len(vectors.base)


def test_a_node_that_stands_still_or_is_cut_off_is_missed_and_one_that_is_killed_is_named(
    client: docker.DockerClient, tmp_path: Path
) -> None:
    name, entry = next((name, entry) for name, entry in SYSTEMS.items() if entry["engine"] == "weaviate")
    weaviate = get("weaviate")
    server = weaviate.start(artifact(name, tmp_path / "artifact"), tmp_path / "data", entry, CLUSTER)
    try:
        rows = _load(weaviate, server)
        probe = weaviate.probe(server)
        assert (probe.nodes, probe.shards, probe.replicas, probe.rows) == (3, 3, 1, rows)
        server.check_members()
        for facts in server.members().values():
            assert {limit["effective"] for limit in facts["limits"].values()} == {1, 1024}
            assert facts["reached_by"] == "the container's address on the bridge"

        seen = _fault_during_a_run(weaviate, server, tmp_path / "pause", "pause", "node2")
        assert seen["lost"] > 0 and seen["whole_s"] is not None, "one that stands still is waited for, and goes on"
        assert weaviate.probe(server).rows == rows
        seen = _fault_during_a_run(weaviate, server, tmp_path / "partition", "partition", "node3")
        assert seen["made_s"] >= 0.5 and seen["mended_s"] - seen["made_s"] >= 2
        assert seen["whole_s"] is not None, "a short partition heals by itself"
        assert seen["lost"] > 0, "with one copy of each shard, the cluster can't answer without it"
        assert sum(step["requests"] for step in seen["steps"]) == seen["requests"]
        assert weaviate.probe(server).rows == rows

        third = server.group["node3"].handle
        third.cut_off()
        with pytest.raises(ServerError, match="node3"):
            _until_missed(server)
        third.reconnect()
        # Apart for half a minute, this Weaviate's nodes give each other up for good: it takes a restart to come back.
        third.kill()
        third.restart()
        wait_until(lambda: _whole(server) and _rows(weaviate, server) == rows, 300)

        server.group["node2"].handle.kill()
        with pytest.raises(ServerError, match=r"node2 .* is not running any more \(exit code 137\)"):
            server.check_alive()
    finally:
        server.stop()


def _fault_during_a_run(engine: Any, server: Any, folder: Path, kind: str, member: str) -> dict[str, Any]:
    queries = small_vectors("cosine").base[:100]
    protocol.write_requests(folder, engine.encode(server, queries, 10, 64, None))
    every = np.arange(len(queries))[None, :]
    transport = engine.transport(server)
    protocol.write_job(
        folder, requests=folder, transport=transport, schedule=every, prime=every[:, :5], timeout_s=1.0, duration_s=6.0
    )
    fault = Fault(server, {"kind": kind, "member": member, "at_s": 1, "for_s": 2})
    with Driver() as driver:
        done = driver.run(folder, check=fault.check, ready=fault.begin)
    fault.end(timeout_s=90)
    outcome = protocol.read_outcome(folder)
    answered = decode(engine.decode, outcome.responses, outcome.samples["status"], 10, "cosine")
    times = fault.times(done["zero_ns"] / 1e9)
    due_s, latency_ms = outcome.samples["due_ns"] / 1e9, outcome.samples["latency_ns"] / 1e6
    return {**times, **impact(due_s, latency_ms, answered.status == OK, times)}


def _until_missed(server: Any) -> None:
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        server.check_members()
        time.sleep(0.5)


def _whole(server: Any) -> bool:
    try:
        server.check_members()
    except ServerError:
        return False
    return True


def _rows(engine: Any, server: Any) -> int | None:
    """Rows that it counts; None while a member that came back does not know its collections yet."""
    try:
        return int(engine.probe(server).rows)
    except ServerError:
        return None


def test_whatever_dies_of_a_milvus_with_etcd_and_an_object_store_is_named_during_the_run(
    client: docker.DockerClient, tmp_path: Path
) -> None:
    name, milvus = "milvus-2.3.5", get("milvus")
    topology = TOPOLOGIES["docker-standalone-external"]
    server = milvus.start(with_parts(name, topology, tmp_path / "artifact"), tmp_path / "data", SYSTEMS[name], topology)
    try:
        rows = _load(milvus, server, "l2")
        assert milvus.probe(server).rows == rows
        milvus.apply(server, 64)
        assert [member.name for member in server.group] == ["etcd", "object_store", "standalone"]  # type: ignore[attr-defined]
        requests, every = milvus.encode(server, small_vectors("l2").base[:100], 10, 64, None), np.arange(100)[None, :]
        how = milvus.transport(server)
        for place in ("object_store", "standalone", "etcd"):
            member = server.group[place].handle  # type: ignore[attr-defined]
            folder = tmp_path / place
            protocol.write_requests(folder, requests)
            protocol.write_job(
                folder, requests=folder, transport=how, schedule=every, prime=every[:, :0], timeout_s=5, duration_s=60
            )  # fmt: skip
            killer = threading.Timer(1.0, member.kill)
            killer.start()
            gone = rf"{PLACES[place]}.* is not running any more \(exit code 137\)"
            with pytest.raises(ServerError, match=gone), Driver() as driver:
                driver.run(folder, check=server.check_alive)
            killer.join()
            assert [name for name, facts in server.members().items() if not facts["alive"]] == [place]
            if place != "etcd":  # without which Milvus soon ends, too
                member.restart()
                wait_until(lambda: _holds(server, milvus, requests[0], rows), 600)
    finally:
        server.stop()


PLACES = {"etcd": "etcd", "object_store": "minio", "standalone": "milvus"}


def _holds(server: Any, engine: Any, request: bytes, rows: int) -> bool:
    """Whether a search succeeds again, and all rows are there."""
    how = engine.transport(server)
    with grpc.insecure_channel(how["target"], options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            ids, _ = engine.decode(channel.unary_unary(how["method"])(request, timeout=5), "l2")
            return len(ids) == 10 and engine.probe(server).rows == rows
        except (grpc.RpcError, DecodeError, ServerError):
            return False


def test_a_server_behind_published_ports_answers_and_says_so(client: docker.DockerClient, tmp_path: Path) -> None:
    name, entry = next((name, entry) for name, entry in SYSTEMS.items() if entry["engine"] == "weaviate")
    weaviate = get("weaviate")
    topology = {**STANDALONE, "publish": True}
    server = weaviate.start(artifact(name, tmp_path / "artifact"), tmp_path / "data", entry, topology)
    try:
        assert server.endpoint.startswith("127.0.0.1:")
        rows = _load(weaviate, server)
        assert weaviate.probe(server).rows == rows
        assert [facts["reached_by"] for facts in server.members().values()] == ["a port that the engine publishes"]
    finally:
        server.stop()


def test_the_whole_pipeline_on_containers_passes_every_gate(
    client: docker.DockerClient, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("containers")

    run_workflow(folder, "experiment=containers", timeout_s=6000)
    loads = [json.loads(path.read_text()) for path in (folder / "results" / "load").rglob("*.json")]
    queries = [json.loads(path.read_text()) for path in (folder / "results" / "query").rglob("*.json")]
    recalls = [json.loads(path.read_text()) for path in (folder / "results" / "recall").rglob("*.json")]
    assert (len(loads), len(queries), len(recalls)) == (6, 7, 7)
    for record in [*loads, *queries]:
        assert record["valid"], [gate for gate in record["gates"] if not gate["ok"]]
        (limits,) = [gate for gate in record["gates"] if gate["gate"] == "limits"][:1]
        assert "by container engine" in limits["detail"]
    assert {record["spec"]["topology"]["nodes"] for record in loads} == {1, 2, 3}
    (cut,) = [record["fault"]["runs"][0] for record in queries if "fault" in record]
    assert (cut["kind"], cut["member"]) == ("partition", "node3") and cut["requests"] > 500
    pairs = [json.loads(path.read_text()) for path in (folder / "results" / "pair").rglob("*.json")]
    assert len(pairs) == 2, "a pair, and its control"
    for record in pairs:
        assert record["valid"], [gate for gate in record["gates"] if not gate["ok"]]
        assert {by for each in record["rounds"] for by in each["frozen_by"]} == {"pause of the container engine"}
        assert record["contention"]["frozen_cpu_share"] < 0.01
    again = run_workflow(folder, "experiment=containers", arguments=["-n"])
    assert parse_jobs(again.stdout + again.stderr) == {}
