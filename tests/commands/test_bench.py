"""`anncestry bench`: one server in minutes, wherever it comes from; what can't be measured is said in one sentence."""

from __future__ import annotations

import argparse
import json
import os
import sys
import urllib.request
from pathlib import Path

import numpy as np
import psutil
import pytest

from anncestry import bench, cli
from anncestry.commands import benching
from anncestry.errors import ServerError, UserError
from anncestry.runtimes.native import free_ports
from tests.servers import artifact
from tests.toy import ROOT, Toy


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toy:
    toy = Toy.make(tmp_path)
    monkeypatch.chdir(toy.folder)
    monkeypatch.setenv("ANNCESTRY_CONFIG", str(toy.folder / "config"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (ROOT, ROOT / "src"))))
    monkeypatch.setattr(bench, "_RUN_S", 0.5)
    return toy


def run(*arguments: str) -> int:
    try:
        return cli.main(["bench", *arguments])
    except SystemExit as end:
        return int(end.code or 0)


def test_own_vectors_on_a_system_become_a_table_a_page_and_records_that_verify(
    toy: Toy, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path: path.read_bytes() for path in (toy.folder / "config").rglob("*") if path.is_file()}
    np.save("My_vectors.npy", np.random.default_rng(3).normal(size=(700, 8)).astype(np.float32))
    arguments = [
        "--system",
        "red-1.0",
        "--dataset",
        "My_vectors.npy",
        "--metric",
        "l2",
        "--k",
        "5",
        "--clients",
        "1",
        "2",
    ]
    assert run(*arguments, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["page"] == str((toy.folder / "bench/reports/bench/index.html").resolve())
    (row,) = said["rows"]
    assert row["dataset"] == "own-my-vectors" and row["recall"]["value"] == 1 and row["qps"]["clients"] == 2
    page = toy.folder / "bench/reports/bench/index.html"
    drawn = page.read_bytes()
    for file in (page, page.with_name(".report")):
        file.write_text("of another bench")
    assert run(*arguments) == 0, "nothing is measured again, and all is said again"
    assert "own-my-vectors" in capsys.readouterr().out
    assert page.read_bytes() == drawn
    assert before == {path: path.read_bytes() for path in (toy.folder / "config").rglob("*") if path.is_file()}
    monkeypatch.chdir("bench")
    monkeypatch.setenv("ANNCESTRY_CONFIG", str(Path("config").resolve()))
    assert cli.main(["--experiment", "bench", "verify"]) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--system", "nobody-1.0"], "--system: no system 'nobody-1.0' in systems.yaml; known: blue-1.0, red-1.0"),
        (["--engine", "nobody"], "--engine: no system of engine 'nobody' in systems.yaml; known engines: tests.flat"),
        (["--system", "red-1.0", "--artifact", "nothing/there"], "nothing/there: does not exist"),
        (["--system", "red-1.0", "--dataset", "nothing.npy", "--metric", "l2"], "nothing.npy"),
        (["--system", "red-1.0", "--dataset", "base.npy"], "base.npy: own vectors need --metric"),
        (["--system", "red-1.0", "--folder", "."], "--folder .: holds the config that is to be copied"),
        (["--system", "red-1.0", "--endpoint", "127.0.0.1:1"], "can't measure a server that somebody else started"),
        (
            ["--system", "red-1.0", "--endpoint", "h:1", "--command", "x"],
            "give one of --artifact, --endpoint and --command",
        ),
        (["--system", "red-1.0", "--command", ""], "--command: is empty: is a variable of your shell not set?"),
        (["--system", "red-1.0", "--artifact", " "], "--artifact: is empty"),
        (["--system", "red-1.0", "--endpoint", ""], "--endpoint: is empty"),
        (["--system", "red-1.0", "--metric", "l2"], "--metric: is for own vectors, and --dataset blobs-l2 is no file"),
        (["--system", "red-1.0", "--credentials", "KEY"], "--credentials: is for a server that runs already"),
    ],
)
def test_what_can_not_be_measured_is_refused_before_anything_is_started(
    toy: Toy, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert run("--dataset", "blobs-l2", *arguments) == 2
    assert said in capsys.readouterr().err
    assert not Path("bench/results").exists()


def test_the_newest_system_of_an_engine_is_the_one_with_the_highest_version_and_no_settings() -> None:
    systems = {
        "a-1.9": {"engine": "a", "version": "1.9.0"},
        "a-1.10": {"engine": "a", "version": "1.10.0"},
        "a-2-odd": {"engine": "a", "version": "2.0.0", "settings": {"odd": True}},
        "b-3": {"engine": "b", "version": "3"},
    }
    assert bench.newest(systems, "a") == "a-1.10"


def test_a_command_serves_while_it_is_measured_and_is_gone_with_its_children_afterwards(tmp_path: Path) -> None:
    children = f"{sys.executable} -m http.server --bind 127.0.0.1"
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with bench.started(f"sh -c '{children} {{port_b}} & {children} {{port}}; :'", ["a", "b"], tmp_path) as found:
        for address in found.values():
            assert direct.open(f"http://{address}", timeout=60).status == 200
        ports = {int(address.rpartition(":")[2]) for address in found.values()}
    listening = {each.laddr.port for each in psutil.net_connections() if each.status == psutil.CONN_LISTEN}
    assert not ports & listening


def test_a_command_that_ends_says_what_its_log_said_last(tmp_path: Path) -> None:
    failing = bench.started("sh -c 'echo no such flag; exit 3'", ["http"], tmp_path)
    with pytest.raises(ServerError, match="ended with 3 before it listened") as error, failing:
        pass
    assert "no such flag" in str(error.value)


def test_a_server_may_have_interfaces_that_only_some_versions_need(tmp_path: Path) -> None:
    systems = {"milvus-2.3.5": {"engine": "milvus"}}
    given = argparse.Namespace(endpoint=["proxy=h:1", "metrics=h:2"], command_line=None, credentials=None)
    with benching._endpoints(given, systems, "milvus-2.3.5", tmp_path) as found:
        assert found == {"proxy": "h:1", "metrics": "h:2"}
    given.endpoint = ["h:1", "sql=h:2"]
    said = "--endpoint sql: no interface of milvus; it has proxy, metrics"
    with pytest.raises(UserError, match=said), benching._endpoints(given, systems, "milvus-2.3.5", tmp_path):
        pass


def test_a_command_with_unknown_braces_is_refused(tmp_path: Path) -> None:
    wrong = bench.started("serve {prot}", ["http"], tmp_path)
    with pytest.raises(UserError, match=r"it may hold in braces: \{port\}, \{data\}, \{port_http\}"), wrong:
        pass


@pytest.mark.servers
@pytest.mark.parametrize("how", ["command", pytest.param("endpoint", marks=pytest.mark.long)])
def test_a_real_server_that_somebody_else_starts_is_loaded_and_measured(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "_RUN_S", 1.0)
    binary = artifact("weaviate-1.27.0", tmp_path / "artifact") / "weaviate-server"
    own = ("CLUSTER_GOSSIP_BIND_PORT", "CLUSTER_DATA_BIND_PORT", "RAFT_PORT", "RAFT_INTERNAL_RPC_PORT")
    settings = {
        "PERSISTENCE_DATA_PATH": "{data}",
        "GRPC_PORT": "{port_grpc}",
        "AUTHENTICATION_ANONYMOUS_ACCESS_ENABLED": "true",
        "DISABLE_TELEMETRY": "true",
        "GO_PROFILING_DISABLE": "true",
        "CLUSTER_HOSTNAME": "one",
        "CLUSTER_ADVERTISE_ADDR": "127.0.0.1",
        "CLUSTER_IN_LOCALHOST": "true",
        "RAFT_BOOTSTRAP_EXPECT": "1",
    } | dict(zip(own, free_ports(len(own)), strict=True))
    variables = " ".join(f"{name}={value}" for name, value in settings.items())
    line = f"env {variables} {binary} --scheme http --host 127.0.0.1 --port {{port}}"
    common = ["--system", "weaviate-1.27.0", "--dataset", "random-xs-20-angular", "--clients", "1", "--json"]
    if how == "command":
        assert run(*common, "--command", line) == 0
    else:
        with bench.started(line, ["http", "grpc"], tmp_path / "theirs") as found:
            assert run(*common, *(f"--endpoint={name}={address}" for name, address in found.items())) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["recall"]["value"] > 0.9 and row["qps"]["value"] > 0
    (record,) = Path("bench/results/query").glob("*/*/*/*.json")
    assert json.loads(record.read_text())["spec"]["workload"]["clients"] == 1
    at_work = [each.info["cmdline"] or [] for each in psutil.process_iter(["cmdline"])]
    assert not [line for line in at_work if str(binary) in line]


def test_a_command_that_is_no_program_is_one_sentence(tmp_path: Path) -> None:
    nothing = bench.started("./no-such-server {port}", ["http"], tmp_path)
    with pytest.raises(UserError, match=r"--command \./no-such-server \{port\}: can't be started"), nothing:
        pass
