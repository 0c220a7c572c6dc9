"""Topologies are what they are declared to be, on the real servers; a dead member is noticed, and named."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import psutil
import pytest
import yaml

from anncestry import engines, workflow
from anncestry.drive import protocol
from anncestry.drive.client import OK
from anncestry.drive.driver import Driver
from anncestry.engines.base import Engine, ErrorReplyError, Placed, Server
from anncestry.errors import ConfigError, ServerError
from anncestry.progress import Progress
from anncestry.provenance import gates
from anncestry.provenance.records import read_record
from anncestry.runtimes import control_groups
from tests import ports
from tests.servers import (
    INDEX,
    ROOT,
    STANDALONE,
    SYSTEMS,
    TOPOLOGIES,
    SmallVectors,
    artifact,
    small_vectors,
    with_parts,
)
from tests.toy import workflow_command
from tests.waiting import until

WEAVIATE, MILVUS = "weaviate-1.27.0", "milvus-2.3.5"
K = 10
LIMITS = {"cpus": 1, "memory_mib": 2048}
DISTRIBUTED = {"etcd": "etcd-3.5.35", "log": "kafka-3.6.2"}


# Refusals, while a workflow is parsed.


@pytest.mark.parametrize(
    ("engine", "changes", "complaint"),
    [
        ("weaviate", {"nodes": 3, "shards": 3, "replicas": 4}, "4 replicas need as many nodes"),
        ("weaviate", {"nodes": 3, "shards": 1}, "leave some of 3 nodes empty"),
        ("weaviate", {"nodes": 2, "shards": 2}, "can't outvote"),
        ("weaviate", {"external": {"etcd": "etcd-3.5.35"}}, "weaviate has no external"),
        ("weaviate", {"roles": {"proxy": 2}}, "weaviate has no roles"),
        ("milvus", {"nodes": 2}, "more than one query node of milvus needs external"),
        ("milvus", {"external": {"log": "kafka-3.6.2"}}, "keeps its etcd inside only if nothing else is outside"),
        (
            "milvus",
            {"external": {**DISTRIBUTED, "log": "redis-7.4.1"}},
            "redis-7.4.1: the log of milvus is a part kafka or",
        ),
        ("milvus", {"external": DISTRIBUTED, "nodes": 2, "replicas": 3}, "3 replicas need as many query"),
        ("milvus", {"external": DISTRIBUTED, "roles": {"rootcoord": 2}}, r"roles\.rootcoord"),
        ("milvus", {"roles": {"proxy": 2}}, "one process, of all roles"),
        ("milvus", {"external_limits": {"etcd": {"cpus": 1}}}, r"external_limits\.etcd: there is no external etcd"),
        (
            "milvus",
            {"external": DISTRIBUTED, "external_limits": {"log": {"memory_mib": 512}}},
            r"external_limits\.log\.memory_mib: 512 MiB; it does not work with less than 1280",
        ),
        ("weaviate", {"external_limits": {"etcd": {"cpus": 1}}}, "weaviate has no external_limits"),
        ("weaviate", {"role_limits": {"querynode": {"cpus": 1}}}, "weaviate has no role_limits"),
        ("milvus", {"role_limits": {"querynode": {"cpus": 1}}}, "role_limits: a milvus without external log is one"),
        (
            "milvus",
            {"external": DISTRIBUTED, "role_limits": {"indexcoord": {"cpus": 1}}},
            r"role_limits\.indexcoord: unknown; of milvus 2\.3\.5: rootcoord, datacoord, querycoord, proxy, datanode",
        ),
        (
            "milvus",
            {"external": DISTRIBUTED, "role_limits": {"querynode": {"memory_mib": 256}}},
            r"role_limits\.querynode\.memory_mib: 256 MiB; milvus does not start with less than 512",
        ),
        ("milvus-2.2.16", {"external": {"etcd": "etcd-3.5.35", "object_store": "minio-20260212"}}, "OpenSSL"),
        ("milvus", {"consistency": "all"}, "milvus has no consistency"),
        ("milvus", {"entry": "all"}, "milvus has no entry"),
    ],
)
def test_a_topology_that_a_system_can_not_have_is_refused(engine: str, changes: dict[str, Any], complaint: str) -> None:
    system = SYSTEMS[{"weaviate": WEAVIATE, "milvus": MILVUS}.get(engine, engine)]
    with pytest.raises(ConfigError, match=complaint):
        engines.offers_of(system["engine"]).check(system, {**STANDALONE, **changes}, INDEX, None)


@pytest.mark.parametrize("key", ["entry", "consistency"])
def test_a_client_library_that_would_not_do_as_declared_is_refused(key: str) -> None:
    topology = {"runtime": "native", "nodes": 3, "shards": 3, "replicas": 3, key: "all"}
    workload = {"k": 10, "ef_search": 100, "client": "sdk"}
    with pytest.raises(ConfigError, match=f"client: sdk .*{key}"):
        engines.offers_of("weaviate").check(SYSTEMS[WEAVIATE], topology, INDEX, workload)


def configured(tmp_path: Path, experiment: dict[str, Any], topologies: dict[str, Any] | None = None) -> Path:
    """The project's config folder with an experiment `x`, and more topologies."""
    folder = tmp_path / "config"
    shutil.copytree(ROOT / "config", folder)
    (folder / "experiments" / "x.yaml").write_text(yaml.safe_dump(experiment))
    if topologies:
        with open(folder / "topologies.yaml", "a") as file:
            file.write("\n" + yaml.safe_dump(topologies))
    return folder


def block(system: str, topologies: list[str], workloads: tuple[str, ...] = ("smoke-k10",)) -> dict[str, Any]:
    return {"datasets": ["random-xs-20-angular"], "systems": [system], "topologies": topologies,
            "workloads": list(workloads)}  # fmt: skip


@pytest.mark.parametrize(
    ("topology", "complaint"),
    [
        ({"cpus": 1, "memory_mib": 3072}, r"1\.5 CPUs, 3072 MiB in standalone-equal and 3 CPUs, 9216 MiB in other"),
        ({"cpus": 0.5}, "other does not limit both cpus and memory_mib"),
    ],
)
def test_unequal_totals_are_refused_where_equal_ones_are_asked(
    tmp_path: Path, topology: dict[str, Any], complaint: str
) -> None:
    other = {"runtime": "native", "nodes": 3, "shards": 3, "replicas": 1, "limits": topology}
    experiment = {"equal_totals": True, "matrix": [block(WEAVIATE, ["standalone-equal", "other"])]}
    with pytest.raises(ConfigError, match=complaint):
        workflow.expand(workflow.Choice(configured(tmp_path, experiment, {"other": other}), "x"))


def test_what_stands_beside_a_system_counts_in_its_total(tmp_path: Path) -> None:
    experiment = {"equal_totals": True, "matrix": [block(MILVUS, ["standalone-equal", "standalone-external-equal"])]}
    folder = configured(tmp_path, experiment)
    assert workflow.expand(workflow.Choice(folder, "x")).cells
    beside = {**TOPOLOGIES["standalone-external-equal"], "limits": {"cpus": 1.5, "memory_mib": 3072}}
    unlimited = {name: value for name, value in beside.items() if name != "external_limits"}
    for changed, complaint in (
        (beside, r"3072 MiB in standalone-equal and 2 CPUs, 4096 MiB in other"),
        (unlimited, "other does not limit both cpus and memory_mib of its etcd"),
    ):
        experiment = {"equal_totals": True, "matrix": [block(MILVUS, ["standalone-equal", "other"])]}
        folder = configured(tmp_path / complaint[:4], experiment, {"other": changed})
        with pytest.raises(ConfigError, match=complaint):
            workflow.expand(workflow.Choice(folder, "x"))


def test_limits_by_role_are_refused_where_equal_totals_are_asked(tmp_path: Path) -> None:
    other = {**TOPOLOGIES["distributed-1"], "limits": LIMITS, "role_limits": {"querynode": {"cpus": 1}}}
    experiment = {"equal_totals": True, "matrix": [block(MILVUS, ["standalone-equal", "other"])]}
    with pytest.raises(ConfigError, match="other has role_limits"):
        workflow.expand(workflow.Choice(configured(tmp_path, experiment, {"other": other}), "x"))


def test_limits_by_role_are_part_of_a_key_only_where_they_are_given(tmp_path: Path) -> None:
    more = {"other": {**TOPOLOGIES["distributed-1"], "role_limits": {"querynode": {"cpus": 1}}}}
    experiment = {"matrix": [block(MILVUS, ["distributed-1", "other"])]}
    matrix = workflow.expand(workflow.Choice(configured(tmp_path, experiment, more), "x"))
    specs = {cell.topology: (cell.load, matrix.spec(cell.load, "load")["topology"]) for cell in matrix.cells}
    assert specs["distributed-1"][0] != specs["other"][0]
    assert "role_limits" not in specs["distributed-1"][1]
    assert specs["other"][1]["role_limits"] == {"querynode": {"cpus": 1}}


@pytest.mark.parametrize(
    "experiment",
    [
        "default",
        "topologies",
        "equal",
        "paper",
        "paper-containers",
        "faults",
        "faults-small",
        "containers",
        "scale-out",
        "scale-up",
    ],
)
def test_the_topologies_of_the_experiments_are_possible(experiment: str) -> None:
    assert workflow.expand(workflow.Choice(ROOT / "config", experiment)).cells


def test_a_part_that_is_not_pinned_is_refused_by_name(tmp_path: Path) -> None:
    other = {**TOPOLOGIES["standalone-external"], "external": {"etcd": "etcd-3.5.36"}}
    folder = configured(tmp_path, {"matrix": [block(MILVUS, ["other"])]}, {"other": other})
    with pytest.raises(
        ConfigError, match=r"other\.external: unknown part 'etcd-3\.5\.36'; did you mean 'etcd-3\.5\.35'"
    ):
        workflow.expand(workflow.Choice(folder, "x"))


def test_what_stands_beside_a_system_is_part_of_its_artifact_and_changes_its_key() -> None:
    matrix = workflow.expand(workflow.Choice(ROOT / "config", "topologies"))
    keys = {cell.topology: cell.artifact for cell in matrix.cells if cell.system == MILVUS}
    assert keys["standalone"] == keys["standalone-2cpu"] != keys["standalone-external"] != keys["distributed-2"]
    parts = matrix.spec(keys["distributed-2"], "artifact")["parts"]
    assert sorted(parts) == ["etcd-3.5.35", "java-17.0.9", "kafka-3.6.2", "minio-20260212"]
    assert "parts" not in matrix.spec(keys["standalone"], "artifact")


# Gates


def test_a_node_without_data_fails_the_topology_gate() -> None:
    declared = {"nodes": 3, "shards": 3, "replicas": 1}
    assert gates.topology(declared, 3, 3, 1, {"node1": 1, "node2": 1, "node3": 1}).ok
    idle = gates.topology(declared, 3, 3, 1, {"node1": 2, "node3": 1})
    assert not idle.ok and "only node1, node3 hold data, of 3 nodes" in idle.detail


def test_copies_that_do_not_add_up_fail_their_gate() -> None:
    assert gates.copies(6000, 2000, 3).ok
    assert not gates.copies(5999, 2000, 3).ok


def test_a_node_that_no_search_reaches_fails_its_gate() -> None:
    shared = gates.shared({"querynode1": 120.0, "querynode2": 100.0}, clients=2)
    assert shared is not None and shared.ok
    idle = gates.shared({"querynode1": 220.0, "querynode2": 0.0}, clients=2)
    assert idle is not None and not idle.ok and "idle: querynode2" in idle.detail
    told = gates.shared({"querynode1": 220.0, "querynode2": 0.0}, clients=1)
    assert told is not None and told.ok and "idle: querynode2" in told.detail, "one client may be served by one node"
    assert gates.shared({"standalone": 220.0}, clients=8) is None, "one alone shares with nobody"


def test_searches_by_node_stand_in_a_table_of_their_own() -> None:
    from anncestry.report.model import numbers
    from anncestry.report.model.material import Material
    from anncestry.report.tables import usage

    counts = {"querynode1": 300.0, "querynode2": 100.0}
    rows = [
        {"number_id": f"n{node}", "dataset": "d", "topology": "distributed-2", "system": "s", "workload": "w",
         "metric": f"searches[{node}]", "value": count, "unit": "searches", "client": "bytes", "reason": ""}
        for node, count in counts.items()
    ]  # fmt: skip
    (table,) = usage.by_node(Material(numbers.frame([{**row, "rebuild": 1} for row in rows]), {}))
    (row,) = table.rows
    assert [cell.text for cell in row.cells] == ["0.50", "300", "100"]
    assert row.cells[0].parents == ("nquerynode1", "nquerynode2")
    assert usage.by_node(Material(numbers.frame([]), {})) == []


def test_a_member_that_is_gone_fails_its_gate_by_name() -> None:
    facts = {"node1": {"alive": True}, "node2": {"alive": False}}
    judged = gates.members(facts, None, "after the queries")
    assert not judged.ok and "node2 not running" in judged.detail
    assert not gates.members({"node1": {"alive": True}}, "node3 is missed", "now").ok


# Real servers


def loaded(engine: Engine, server: Server, rows: int = 2000) -> SmallVectors:
    vectors = small_vectors("l2", rows=rows)
    with Progress("load", None) as progress:
        result = engine.load(server, vectors, INDEX, {"batch_rows": 500}, progress)
    assert (result.rows_acknowledged, result.insert_errors) == (rows, 0), result.first_error
    engine.apply(server, 200)
    return vectors


def ask(
    engine: Engine,
    server: Server,
    driver: Driver,
    folder: Path,
    vectors: SmallVectors,
    clients: int,
    duration_s: float | None = None,
    ready: Callable[[], None] = lambda: None,
) -> protocol.Outcome:
    """Search for 200 rows by their own vector, each client for all of them, once or for some time."""
    asked = np.arange(200)
    protocol.write_requests(folder, engine.encode(server, vectors.base[asked], K, 200, None))
    rows = np.resize(asked, (clients, 200))
    protocol.write_job(
        folder,
        requests=folder,
        transport=engine.transport(server),
        schedule=rows,
        prime=rows[:, :0],
        timeout_s=300,
        duration_s=duration_s,
    )
    driver.run(folder, check=server.check_alive, ready=ready)
    return protocol.read_outcome(folder)


def searched(
    engine: Engine, server: Server, driver: Driver, folder: Path, vectors: SmallVectors, clients: int
) -> float:
    """Share of 200 rows found by their own vector; asked by so many clients."""
    outcome = ask(engine, server, driver, folder, vectors, clients)
    found = 0
    for sample, response in zip(outcome.samples, outcome.responses, strict=True):
        assert sample["status"] == OK
        ids, _ = engine.decode(response, "l2")
        found += int(len(ids) == K and ids[0] == sample["query"])
    return found / len(outcome.samples)


def processes_in(folder: Path) -> list[str]:
    found = []
    for process in psutil.process_iter(["cmdline", "cwd", "status"]):
        words = [*(process.info["cmdline"] or []), process.info["cwd"] or ""]
        if process.info["status"] != psutil.STATUS_ZOMBIE and any(str(folder) in word for word in words):
            found.append(" ".join(words)[:200])
    return [line for line in found if "pytest" not in line]


@pytest.fixture
def nothing_stays(tmp_path: Path) -> Iterator[None]:
    yield
    assert processes_in(tmp_path) == []
    assert [group for group in control_groups.groups() if f"{control_groups.PREFIX}{os.getpid()}-" in group.name] == []


@pytest.mark.servers
@pytest.mark.parametrize("replicas", [1, 3])
def test_three_nodes_of_weaviate_hold_what_is_declared_and_a_dead_one_is_named(
    replicas: int, tmp_path: Path, nothing_stays: None
) -> None:
    engine = engines.get("weaviate")
    topology = {"runtime": "native", "nodes": 3, "shards": 3, "replicas": replicas, "entry": "all",
                "limits": {"memory_mib": 1024}}  # fmt: skip
    binary = artifact(WEAVIATE, tmp_path / "artifact")
    data = tmp_path / "data"
    server = engine.start(binary, data, SYSTEMS[WEAVIATE], topology)
    try:
        with Driver() as driver:
            vectors = loaded(engine, server)
            probe = engine.probe(server)
            assert (probe.nodes, probe.shards, probe.replicas, probe.rows) == (3, 3, replicas, 2000)
            assert searched(engine, server, driver, tmp_path / "first", vectors, clients=3) > 0.95
            assert all(member["alive"] for member in server.members().values())
    finally:
        server.stop()
    endpoints = server.endpoints
    server = engine.start(binary, data, SYSTEMS[WEAVIATE], topology)
    try:
        assert server.endpoints == endpoints, "the ports of the last start"
        engine.open(server, INDEX)
        engine.apply(server, 200)
        probe = engine.probe(server)
        assert {placed.node for placed in probe.placement} == {"node1", "node2", "node3"}
        assert sum(placed.rows or 0 for placed in probe.placement) == 2000 * replicas
        server.check_members()
        (pid,) = server.group["node2"].handle.pids()  # type: ignore[attr-defined]
        killer = threading.Timer(1.0, os.kill, (pid, signal.SIGKILL))  # once all clients are connected
        with pytest.raises(ServerError, match=r"weaviate 1\.27\.0 node2 .*not running any more"), Driver() as driver:
            ask(engine, server, driver, tmp_path / "long", vectors, clients=2, duration_s=60, ready=killer.start)
        killer.join()
        assert not server.members()["node2"]["alive"]
    finally:
        server.stop()


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, str]:
    """An experiment on three nodes, one of which was killed during a run: its folder, exit status, what was said."""
    folder = tmp_path_factory.mktemp("killed")
    workload = {"k": 10, "clients": 1, "runs": 1, "duration_s": 120, "queries": 200, "warmup": 20}
    config = configured(folder, {"matrix": [block(WEAVIATE, ["cluster-3"], ("long",))]})
    with open(config / "workloads.yaml", "a") as file:
        file.write("\n" + yaml.safe_dump({"long": workload}))
    run = subprocess.Popen(
        workflow_command(folder / "work", f"config_dir={config}", "experiment=x"),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True, cwd=ROOT,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 900
        job = None
        while job is None:
            assert run.poll() is None and time.monotonic() < deadline, run.stdout.read() if run.stdout else ""
            walk = os.walk(folder / "work" / "scratch")  # which passes over what the servers remove meanwhile
            job = next((at for at, _, files in walk if "job.json" in files and "oracle" not in at), None)
            time.sleep(0.1)
        time.sleep(1)
        folders = [(process, str(process.info["cwd"])) for process in psutil.process_iter(["cwd"])]
        (victim,) = [process for process, at in folders if at.startswith(str(folder)) and at.endswith("node2")]
        victim.kill()
        said, _ = run.communicate(timeout=900)
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGTERM)
            run.wait(30)
    return folder, run.returncode, said


@pytest.mark.long
@pytest.mark.servers
def test_a_node_that_dies_during_a_run_fails_the_cell_by_name_and_nothing_stays(killed: tuple[Path, int, str]) -> None:
    folder, status, said = killed
    assert status != 0
    assert "weaviate 1.27.0 node2" in said and "is not running any more" in said
    assert not list((folder / "work" / "results" / "query").rglob("*.json"))
    until(lambda: not processes_in(folder), "its processes to end")


@pytest.mark.long
@pytest.mark.servers
def test_a_load_says_what_each_node_used_and_they_add_up_to_the_server(killed: tuple[Path, int, str]) -> None:
    (path,) = (killed[0] / "work" / "results" / "load").rglob("cluster-3@*.json")
    used = read_record(path, stage="load")["resources"]
    nodes = [used[f"server/node{number}"]["load"] for number in (1, 2, 3)]
    assert {group for group in used if group.startswith("server/")} == {f"server/node{n}" for n in (1, 2, 3)}
    assert all(node["cpu_s"] > 0 and node["rss_peak_mib"] > 10 for node in nodes)
    for name in ("cpu_s", "io_write_mib", "rss_avg_mib"):
        assert sum(node[name] for node in nodes) == pytest.approx(used["server"]["load"][name])


def limited_by_role(members: dict[str, Any]) -> None:
    """Each query node is held to half a core, by quota, and nothing else is; the others are held by `limits`."""
    for name, facts in members.items():
        limits = {limit: how["asked"] for limit, how in facts["limits"].items() if how["by"]}
        beside = name in ("etcd", "object_store", "log")
        assert limits == ({"cpus": 0.5} if "querynode" in name else {} if beside else {"memory_mib": 2048}), name


@pytest.mark.servers
@pytest.mark.long
@pytest.mark.parametrize(
    ("system", "name"), [(MILVUS, "distributed-2"), ("milvus-2.2.16", "distributed-2-local-pulsar")]
)
def test_a_distributed_milvus_counts_its_searches_by_query_node_and_outlives_one(
    system: str, name: str, tmp_path: Path, nothing_stays: None
) -> None:
    engine = engines.get("milvus")
    topology = {**TOPOLOGIES[name], "limits": {"memory_mib": 2048}, "role_limits": {"querynode": {"cpus": 0.5}}}
    binary = with_parts(system, topology, tmp_path / "artifact")
    server = engine.start(binary, tmp_path / "data", SYSTEMS[system], topology)
    try:
        vectors = loaded(engine, server)
        with Driver() as driver:
            probe = engine.probe(server)
            assert (probe.nodes, probe.shards, probe.replicas, probe.rows) == (2, 1, 2, 2000)
            (segment,) = {placed.shard for placed in probe.placement}
            assert set(probe.placement) == {Placed(f"querynode{n}", segment, 2000) for n in (1, 2)}
            limited_by_role(server.members())
            assert ports.unlisted(server) == []
            before = server.counters()
            assert searched(engine, server, driver, tmp_path / "job", vectors, clients=4) > 0.95
            after = server.counters()
            assert sum(after[name]["searches"] - before[name]["searches"] for name in after) == 800
            server.check_members()
            os.kill(server.group["querynode2"].handle.pids()[0], signal.SIGKILL)  # type: ignore[attr-defined]
            until(lambda: not server.group.alive(), "the server to be no longer whole")
        with pytest.raises(ServerError, match=r"querynode2 .*not running any more"):
            server.check_members()
        assert not server.members()["querynode2"]["alive"] and server.members()["querynode1"]["alive"]
        if system == "milvus-2.2.16":  # it says nothing of the others any more
            with pytest.raises(ServerError, match="queryNode GetSegmentInfo: UNAVAILABLE"):
                engine.probe(server)
        else:
            probe = engine.probe(server)
            assert probe.nodes == 1
            assert not gates.topology(topology, probe.nodes, probe.shards, probe.replicas).ok
        import grpc

        transport = engine.transport(server)
        with grpc.insecure_channel(transport["target"], options=[("grpc.enable_http_proxy", 0)]) as channel:
            search = channel.unary_unary(transport["method"])
            (request,) = engine.encode(server, vectors.base[:1], K, 200, None)
            deadline, ids = time.monotonic() + 300, None
            while ids is None:
                try:
                    ids, _ = engine.decode(search(request, timeout=30), "l2")
                except ErrorReplyError:  # until the proxy has noticed
                    assert time.monotonic() < deadline
                    time.sleep(0.1)
            assert ids[0] == 0, "the other replica answers"
    finally:
        server.stop()
    parts = {part.name: part for part in engine.data_components(tmp_path / "data")}
    log, other = ("pulsar", "kafka") if name.endswith("-pulsar") else ("kafka", "pulsar")
    assert parts["index_files"].paths and parts[log].paths and not parts[other].paths and not parts["rocksmq"].paths


@pytest.mark.servers
def test_milvus_with_its_parts_beside_it_finds_its_data_again(tmp_path: Path, nothing_stays: None) -> None:
    engine = engines.get("milvus")
    held = {"etcd": {"memory_mib": 512}, "object_store": {"memory_mib": 768}}
    topology = {**TOPOLOGIES["standalone-external"], "external_limits": held}
    binary = with_parts(MILVUS, topology, tmp_path / "artifact")
    for first in (True, False):
        server = engine.start(binary, tmp_path / "data", SYSTEMS[MILVUS], topology)
        try:
            if first:
                vectors = loaded(engine, server)
            else:
                engine.open(server, INDEX)
            members = server.members()
            assert list(members) == ["etcd", "object_store", "standalone"]
            for place, limits_ in held.items():
                limit = members[place]["limits"]["memory_mib"]
                assert limit["asked"] == limits_["memory_mib"] and limit["by"], f"{place} is held, and by what is told"
            assert members["standalone"]["limits"] == {}
            probe = engine.probe(server)
            assert probe.rows == 2000 and probe.index_complete, probe.index_detail
            with Driver() as driver:
                assert searched(engine, server, driver, tmp_path / f"job{first}", vectors, clients=1) > 0.95
        finally:
            server.stop()


def test_the_roles_of_milvus_are_those_of_its_version() -> None:
    from anncestry.engines.milvus import members_of

    distributed = TOPOLOGIES["distributed-4"]
    assert list(members_of("2.3.5", STANDALONE)) == ["standalone"]
    assert list(members_of("2.3.5", TOPOLOGIES["standalone-external"])) == ["standalone"]
    newer = members_of("2.3.5", distributed)
    assert [role for role in newer.values()].count("querynode") == 4
    assert "indexcoord" in members_of("2.2.16", distributed) and "indexcoord" not in newer
    assert members_of("2.3.5", {**distributed, "roles": {"proxy": 2}}) | {"proxy2": "proxy"} == members_of(
        "2.3.5", {**distributed, "roles": {"proxy": 2}}
    )


def test_searches_of_a_query_node_are_read_from_its_metrics() -> None:
    from anncestry.engines.milvus.serve import read_metrics

    line = 'milvus_querynode_sq_req_count{{node_id="5",query_type="{kind}",scope="{scope}",status="{status}"}} {count}'
    text = "\n".join(
        line.format(kind=kind, scope=scope, status=status, count=count)
        for kind, scope, status, count in (
            ("search", "OnLeader", "total", 12),
            ("search", "FromLeader", "total", 1.2e1),
            ("search", "OnLeader", "success", 11),
            ("query", "OnLeader", "total", 3),
        )
    )
    assert read_metrics(text) == (5, {"searches": 12.0, "segment_searches": 12.0})
    assert read_metrics("") == (-1, {"searches": 0.0, "segment_searches": 0.0})
    older = 'milvus_querynode_sq_req_count{node_id="5",query_type="search",status="total"} 24'
    said = "2.2 counts a search where it is led and where it is done: twice on a node that is a replica by itself"
    assert read_metrics(older) == (5, {"searches": 12.0, "segment_searches": 12.0}), said


class _Answering:
    """A member of a Milvus of which only what it answers is of interest."""

    name, role, tls = "querynode1", "querynode", None
    addresses: ClassVar = {"metrics": "127.0.0.1:1"}
    handle = SimpleNamespace(alive=lambda: True)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"<html>", "no output: <html>"),
        (b"[]", "no output"),
        (b'{"code": 1}', "no output"),
        (b"\xff", "no text"),
        (b'{"output": "[a"}', "no value"),
        (b'{"output": 5}', "no value"),
    ],
)
def test_a_setting_of_milvus_that_cannot_be_read_is_a_sentence(monkeypatch, answer: bytes, said: str) -> None:
    from anncestry.engines.milvus import serve

    monkeypatch.setattr(serve, "http_get", lambda *_: answer)
    server = SimpleNamespace(
        rpc=None, facts=SimpleNamespace(evaluates=True), group=[_Answering()], address=lambda _: "127.0.0.1:1", tls=None
    )
    with pytest.raises(ServerError, match=f"queryNode.x: .*{said}"):
        serve.effective_setting(server, "queryNode.x")  # type: ignore[arg-type]


@pytest.mark.parametrize("answer", [b"\xff", b'milvus_querynode_sq_req_count{query_type="search",status="total"} many'])
def test_metrics_of_milvus_that_cannot_be_read_are_a_sentence(monkeypatch, answer: bytes) -> None:
    from anncestry.engines.milvus import serve

    monkeypatch.setattr(serve, "http_get", lambda *_: answer)
    server = serve.DistributedServer.__new__(serve.DistributedServer)
    server.group = [_Answering()]  # type: ignore[assignment]
    with pytest.raises(ServerError, match="the metrics of querynode1 can't be read"):
        server.counters()
