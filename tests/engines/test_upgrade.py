"""A team upgrades a database: a line in the config, exactly that system's jobs, both versions side by side.

In place: a newer version opens what an older one has loaded; no load time is made up for it. First on the toy matrix,
then on the smoke experiment with real servers.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pandas as pd
import pytest
import yaml

import tests.toy
from tests.builders.configs import expand, refused
from tests.toy import ROOT, Toy, parse_jobs, run_workflow

PUBLISH = {"table": 1, "report": 1, "all": 1}
UPGRADED = "not measured: upgraded in place"


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Two systems on one dataset, standalone, two workloads."""
    toy = Toy.make(tmp_path_factory.mktemp("toy"))
    toy.block["datasets"] = ["blobs-l2"]
    toy.block["topologies"] = ["standalone"]
    toy.snakemake()
    return toy


@pytest.fixture
def toy(measured, tmp_path):
    return measured.copy(tmp_path / "clone", "data", "results", "scratch")


def in_place(toy: Toy) -> Toy:
    """The same with blue 1.1 on what blue 1.0 has loaded."""
    toy.files["systems"]["blue-1.1"] = {**toy.files["systems"]["blue-1.0"], "version": "1.1"}
    toy.files["systems"]["blue-1.0-to-1.1"] = {"of": "blue-1.1", "load": {"upgrade_from": "blue-1.0"}}
    toy.block["systems"].append("blue-1.0-to-1.1")
    return toy


@pytest.fixture(scope="module")
def upgraded(measured, tmp_path_factory):
    toy = in_place(measured.copy(tmp_path_factory.mktemp("upgraded") / "clone", "data", "results", "scratch"))
    toy.snakemake()
    return toy


def state(folder, *words: str) -> dict[str, tuple[int, bytes]]:
    """Time of change and bytes of every file whose path has one of the words in it."""
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file() and any(word in str(path.relative_to(folder)) for word in words)
    }


def numbers_of(toy: Toy) -> pd.DataFrame:
    tables = sorted((toy.folder / "results" / "table").glob("*/numbers.parquet"), key=lambda path: path.stat().st_mtime)
    return pd.read_parquet(tables[-1])


def load_record(folder, system: str) -> dict:
    (path,) = (folder / "results" / "load").glob(f"*/{system}/standalone@*.json")
    return json.loads(path.read_text())


# Adding is a change in config alone.


def test_an_added_version_of_a_system_is_a_change_in_config_alone(toy):
    toy.files["systems"]["blue-1.1"] = {**toy.files["systems"]["blue-1.0"], "version": "1.1"}
    assert toy.jobs() == {}
    toy.block["systems"].append("blue-1.1")
    one_system = {"artifact": 1, "load": 1, "record": 1, "session": 2, "query": 2, "recall": 2}
    assert toy.planned() == {**one_system, **PUBLISH}


def test_an_added_topology_is_a_change_in_config_alone(toy):
    toy.files["topologies"]["three"] = {"runtime": "native", "nodes": 3, "shards": 1, "replicas": 1}
    assert toy.planned() == {}
    toy.block["topologies"].append("three")
    assert toy.planned() == {"load": 2, "record": 2, "session": 4, "query": 4, "recall": 4, **PUBLISH}


def test_an_added_workload_is_a_change_in_config_alone(toy):
    toy.files["workloads"]["k3"] = {**toy.files["workloads"]["k5"], "k": 3}
    assert toy.planned() == {}
    toy.block["workloads"].append("k3")
    assert toy.planned() == {"session": 4, "query": 2, "recall": 2, **PUBLISH}


def test_an_added_dataset_is_a_change_in_config_alone(toy):
    source = {**toy.files["datasets"]["blobs-l2"]["sources"][0], "seed": 9}
    toy.files["datasets"]["more-blobs"] = {**toy.files["datasets"]["blobs-l2"], "sources": [source]}
    assert toy.planned() == {}
    toy.block["datasets"].append("more-blobs")
    one_dataset = {"download": 1, "normalize": 1, "truth": 2, "load": 2, "record": 2}
    assert toy.planned() == {**one_dataset, "session": 4, "query": 4, "recall": 4, **PUBLISH}


# In place.


def test_an_upgrade_in_place_loads_nothing_anew(toy):
    assert in_place(toy).planned() == {
        "artifact": 1, "load": 1, "record": 1, "session": 2, "query": 2, "recall": 2, **PUBLISH,
    }  # fmt: skip


def test_an_upgrade_in_place_without_the_stored_index_loads_that_again_with_the_older_version(measured, tmp_path):
    toy = in_place(measured.copy(tmp_path / "clone", "data", "results"))
    assert toy.planned() == {"artifact": 2, "load": 2, "record": 1, "session": 2, "query": 2, "recall": 2, **PUBLISH}


def test_an_upgrade_in_place_needs_no_cell_of_the_older_version(tmp_path):
    toy = in_place(Toy.make(tmp_path))
    toy.one_cell()
    toy.block["systems"] = ["blue-1.0-to-1.1"]
    jobs = {"artifact": 2, "download": 1, "normalize": 1, "truth": 1, "load": 2, "record": 2, "session": 2}
    assert toy.planned() == {**jobs, "query": 1, "recall": 1, **PUBLISH}


def test_another_setting_of_the_older_version_upgrades_again_what_it_loads(upgraded, tmp_path):
    toy = upgraded.copy(tmp_path / "clone", "data", "results", "scratch")
    toy.files["systems"]["blue-1.0"]["settings"] = {"lie": ""}
    toy.files["systems"]["blue-1.1"]["settings"] = {}
    assert toy.planned() == {"load": 2, "record": 2, "session": 4, "query": 4, "recall": 4, **PUBLISH}


def test_an_upgrade_in_place_says_how_long_it_took_and_no_load_time(upgraded):
    found = numbers_of(upgraded)
    mine = found[(found.system == "blue-1.0-to-1.1") & (found.workload == "")].set_index("metric")
    assert mine.loc["upgrade_s"].value > 0
    for name in ("insert_s", "index_s", "ready_s", "load_s", "rows_per_s"):
        assert pd.isna(mine.loc[name].value) and mine.loc[name].reason == UPGRADED, name
    assert (mine.loc[["rows", "storage_total_mib"]].value > 0).all()
    assert not (found[found.system == "blue-1.0"].metric == "upgrade_s").any()
    speed = found[(found.system == "blue-1.0-to-1.1") & (found.metric == "p50_ms")]
    assert len(speed) == 2 and speed.valid.all()


def test_an_upgrade_in_place_passes_the_gates_of_a_load_and_names_the_load_that_it_opened(upgraded):
    older, newer = load_record(upgraded.folder, "blue-1.0"), load_record(upgraded.folder, "blue-1.0-to-1.1")
    assert newer["valid"], newer["gates"]
    assert {gate["gate"] for gate in older["gates"]} - {gate["gate"] for gate in newer["gates"]} == {"inserts"}
    assert newer["spec"]["upgrade_of"] == newer["upgraded_from"]["load"] == older["key"]
    assert newer["inputs"]["older"]["path"].endswith(f"@{older['key']}.json")
    assert (newer["server"]["version"], older["server"]["version"]) == ("1.1", "1.0")
    # The toy's server is a Python program: to start it takes this much of a processor at the least.
    assert newer["resources"]["server"]["upgrade"]["cpu_s"] > 0.02


def test_the_older_index_and_results_are_as_they_were(measured, upgraded):
    older = load_record(measured.folder, "blue-1.0")["key"]
    for part in (f"scratch/index/{older}", "results/load/blobs-l2/blue-1.0/", "results/query/blobs-l2/blue-1.0/"):
        before = {
            path.removeprefix(str(measured.folder)): found[1] for path, found in state(measured.folder, part).items()
        }
        after = {
            path.removeprefix(str(upgraded.folder)): found[1] for path, found in state(upgraded.folder, part).items()
        }
        assert before and before == after


def test_what_an_upgrade_in_place_lost_makes_it_invalid(toy):
    in_place(toy).files["systems"]["blue-1.1"]["settings"] = {"lie": "lost-tail"}
    toy.snakemake("--until", "record", "--keep-going")
    failed = [gate["gate"] for gate in load_record(toy.folder, "blue-1.0-to-1.1")["gates"] if not gate["ok"]]
    assert failed == ["rows findable"]


def test_an_upgrade_of_an_upgrade_opens_what_the_first_left(toy):
    in_place(toy).files["systems"]["blue-1.2"] = {**toy.files["systems"]["blue-1.0"], "version": "1.2"}
    toy.files["systems"]["blue-to-1.2"] = {"of": "blue-1.2", "load": {"upgrade_from": "blue-1.0-to-1.1"}}
    toy.block["systems"] = ["blue-to-1.2"]
    toy.block["workloads"] = ["k5"]
    jobs = {"artifact": 2, "load": 2, "record": 2, "session": 2, "query": 1, "recall": 1, **PUBLISH}
    assert toy.jobs() == toy.planned() == jobs
    toy.snakemake()
    assert toy.planned() == {}
    last = load_record(toy.folder, "blue-to-1.2")
    assert last["valid"] and last["upgraded_from"]["version"] == "1.1"
    assert load_record(toy.folder, "blue-1.0-to-1.1")["valid"]
    assert not list((toy.folder / "results" / "query").glob("*/blue-1.0-to-1.1/**/*.json")), "it needs no cell of it"


def anncestry(toy: Toy, *arguments: str) -> str:
    done = tests.toy.anncestry(toy.folder, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_what_an_upgrade_in_place_published_is_verified_with_the_load_that_it_came_from(upgraded, tmp_path):
    toy = upgraded.copy(tmp_path / "clone", "data", "results", "scratch")
    assert "✓" in anncestry(toy, "verify")
    (older,) = (toy.folder / "results" / "load").glob("*/blue-1.0/standalone@*.json")
    older.write_text(older.read_text().replace('"rows": 540', '"rows": 541'))
    with pytest.raises(AssertionError, match=r"blue-1\.0-to-1\.1"):
        anncestry(toy, "verify")


def test_a_number_of_an_upgrade_in_place_leads_to_the_load_that_was_opened(upgraded):
    found = numbers_of(upgraded)
    number = found[(found.system == "blue-1.0-to-1.1") & (found.metric == "p50_ms")].number_id.iloc[0]
    said = anncestry(upgraded, "why", number)
    assert "older record" in said and "results/load/blobs-l2/blue-1.0/standalone@" in said


def test_both_ways_to_the_newer_version_can_be_compared(upgraded):
    said = anncestry(upgraded, "compare", "blue-1.0", "blue-1.0-to-1.1", "--all")
    assert "p50_ms" in said and UPGRADED in said


def test_dropping_a_load_drops_the_upgrades_of_it(upgraded, tmp_path):
    toy = upgraded.copy(tmp_path / "clone", "data", "results", "scratch")
    anncestry(toy, "drop", "--load", "--yes", "blobs-l2/blue-1.0/standalone/*")
    assert toy.planned() == {"load": 2, "record": 2, "session": 4, "query": 4, "recall": 4, **PUBLISH}


def test_collecting_garbage_keeps_the_load_that_an_upgrade_came_from(upgraded, tmp_path):
    toy = upgraded.copy(tmp_path / "clone", "data", "results", "scratch")
    toy.block["systems"] = ["blue-1.0-to-1.1"]
    toy.save()
    anncestry(toy, "gc", "--results", "--yes")
    assert load_record(toy.folder, "blue-1.0")["valid"]


@pytest.mark.parametrize(
    ("name", "entry", "words"),
    [
        ("up", {"of": "blue-1.1", "load": {"upgrade_from": "blu-1.0"}}, ["up.load.upgrade_from", "mean 'blue-1.0'"]),
        ("up", {"of": "blue-1.2", "load": {"upgrade_from": "blue-1.0"}}, ["up.of", "unknown system 'blue-1.2'"]),
        ("up", {"of": "blue-1.0", "load": {"upgrade_from": "blue-1.1"}}, ["up: flat 1.0 can't read what 1.1"]),
        ("up", {"of": "blue-1.1", "load": {"upgrade_from": "up"}}, ["up.load.upgrade_from: up ← up is a cycle"]),
        ("up", {"of": "blue-1.1", "load": {"upgrade": "blue-1.0"}}, ["up.load", "upgrade"]),
        ("up", {"load": {"upgrade_from": "blue-1.0"}}, ["up: key 'engine' is missing"]),
    ],
)  # fmt: skip
def test_an_upgrade_that_can_not_be_is_refused_by_name(toy, name, entry, words):
    in_place(toy).files["systems"][name] = entry
    toy.block["systems"] = [name]
    refused(toy, "systems.yaml", *words)


def test_a_version_that_an_engine_does_not_know_is_refused_by_the_name_of_its_system(toy):
    real = yaml.safe_load((ROOT / "config" / "systems.yaml").read_text())
    toy.files["systems"]["weaviate-2"] = {**real["weaviate-1.35.2"], "version": "2.0.0"}
    toy.block["systems"] = ["weaviate-2"]
    refused(toy, "system weaviate-2", "weaviate 2.0.0 is not less than 1.36.0", "supported: from 1.23.9")


def test_loads_have_the_keys_that_they_had_before_there_were_upgrades(toy):
    spec = expand(toy)
    loads = [body for body in spec.specs.values() if body["stage"] == "load"]
    assert all(body["load"] == {"batch_rows": 200} and "upgrade_of" not in body for body in loads)


# For real: the smoke experiment, and a bump of Weaviate in its config.


class Smoke:
    """The smoke experiment in a folder of its own, with a config of its own; one cell a system."""

    def __init__(self, folder) -> None:
        self.folder, self.experiment = folder, folder / "config" / "experiments" / "smoke.yaml"
        shutil.copytree(ROOT / "config", folder / "config")
        self.edit(lambda block: block.update(workloads=["smoke-k10"]))

    def edit(self, change) -> None:
        body = yaml.safe_load(self.experiment.read_text())
        change(body["matrix"][0])
        self.experiment.write_text(yaml.safe_dump(body, sort_keys=False))

    def run(self, *command: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", *command], capture_output=True, text=True, check=False, cwd=self.folder,
            stdin=subprocess.DEVNULL, timeout=1800,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}", "ANNCESTRY_CONFIG": str(self.folder / "config")},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def snakemake(self, *arguments: str) -> str:
        asked = ("experiment=smoke", f"config_dir={self.folder / 'config'}")
        done = run_workflow(self.folder, *asked, arguments=arguments)
        return done.stdout + done.stderr

    def table(self) -> str:
        tables = (self.folder / "results" / "table").glob("smoke@*")
        return max(tables, key=lambda path: path.stat().st_mtime).name


@pytest.fixture(scope="module")
def smoke(finished_smoke, tmp_path_factory):
    """Of what the whole experiment has measured, one workload."""
    found = Smoke(tmp_path_factory.mktemp("smoke"))
    for part in ("data", "results", "scratch"):
        subprocess.run(["cp", "-a", finished_smoke / part, found.folder / part], check=True)
    assert parse_jobs(found.snakemake()) == PUBLISH
    return found


@pytest.mark.servers
@pytest.mark.long
def test_a_bump_of_weaviate_runs_weaviate_only_and_says_what_changed(smoke):
    before, first = state(smoke.folder, "results/", "scratch/index/", "data/"), smoke.table()
    smoke.edit(lambda block: block.update(systems=["milvus-2.3.5", "weaviate-1.29.0"]))
    jobs = {"artifact": 1, "load": 1, "record": 1, "session": 2, "query": 1, "recall": 1, **PUBLISH}
    said = smoke.snakemake("-n")
    assert parse_jobs(said) == jobs
    assert "milvus" not in said
    said = smoke.snakemake()
    assert "load milvus" not in said and "query milvus" not in said
    assert parse_jobs(smoke.snakemake("-n")) == {}

    after = state(smoke.folder, "results/", "scratch/index/", "data/")
    milvus = {path for path in before if "milvus-2.3.5" in path}
    older = {path for path in before if "weaviate-1.27.0" in path and "/results/" in path}
    assert len(milvus) >= 6 and len(older) >= 6
    assert {path: after[path] for path in before} == before  # bytes and times of all that was there, Milvus' included
    assert len([path for path in after if "weaviate-1.29.0" in path and path.endswith(".json")]) >= 3

    said = smoke.run("anncestry", "--experiment", "smoke", "compare", first, smoke.table(), "--all")
    assert "weaviate-1.27.0" in said and "weaviate-1.29.0" in said
    verdicts = ("faster", "slower", "equivalent", "undetermined", "equal")
    assert any(verdict in said for verdict in verdicts), said
    assert "same record" in said  # Milvus, on both sides
    assert "✓" in smoke.run("anncestry", "--experiment", "smoke", "verify")


@pytest.mark.servers
@pytest.mark.long
@pytest.mark.parametrize(
    ("older", "system"), [("weaviate-1.27.0", "weaviate-1.27.0-to-1.29.0"), ("milvus-2.2.16", "milvus-2.2.16-to-2.3.5")]
)
def test_a_real_server_opens_what_its_older_version_loaded(smoke, older, system):
    smoke.edit(lambda block: block.update(systems=[system], workloads=["smoke-k10-clients2"]))
    jobs = parse_jobs(smoke.snakemake("-n"))
    assert jobs["load"] == (1 if older == "weaviate-1.27.0" else 2)
    smoke.snakemake()
    record = load_record(smoke.folder, system)
    assert record["valid"], record["gates"]
    assert record["times"]["upgrade_s"] > 0 and record["upgraded_from"]["system"] == older
    found = numbers_of(smoke)
    assert found[found.metric == "p50_ms"].valid.all()
    assert (found[found.metric == "recall_by_distance"].value >= 0.95).all()
