"""Storage paths: declared by name, refused where they can't be used, held to, their IO told or said to be unknown."""

from __future__ import annotations

import mmap
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from anncestry import durable, engines, workflow
from anncestry.cells import config as configuration
from anncestry.errors import ConfigError, Unsupported, UserError
from anncestry.measure import publish
from anncestry.measure.server import StoragePath
from anncestry.metrics import resources
from anncestry.progress import Progress
from anncestry.provenance import records
from anncestry.report.tables.usage import described
from anncestry.runtimes import storage
from anncestry.runtimes.storage import FOLDER, Placed
from tests.builders.bench import MakeBench, failed, on_a_path
from tests.servers import INDEX, ROOT, STANDALONE, SYSTEMS, artifact, small_vectors

ON_PATH = {**STANDALONE, "storage": "here"}


# What can be declared.


def table(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """One storage path, whose variable holds the folder."""
    monkeypatch.setenv("HERE", str(folder))
    return {"here": {"environment": "HERE"}}


def test_a_path_that_is_not_there_or_can_not_be_written_to_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = table(tmp_path, monkeypatch)
    assert storage.declared("here", declared) == tmp_path
    monkeypatch.setenv("HERE", str(tmp_path / "gone"))
    with pytest.raises(UserError, match=r"storage 'here': .*/gone \(HERE\) is not a folder"):
        storage.declared("here", declared)
    monkeypatch.setenv("HERE", "/proc")  # where not even root can write
    with pytest.raises(UserError, match=r"storage 'here': /proc \(HERE\) can't be written to"):
        storage.declared("here", declared)
    monkeypatch.delenv("HERE")
    with pytest.raises(UserError, match="the environment variable HERE is not set"):
        storage.declared("here", declared)
    monkeypatch.chdir(tmp_path)
    assert storage.declared("here", {"here": {"environment": "HERE", "default": "scratch/here"}}).is_dir()


def test_a_copy_of_an_index_is_on_the_disk_before_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the kernel would write it back while something is measured."""
    synced: list[list[Path]] = []
    monkeypatch.setattr(durable, "sync_below", lambda folder: synced.append(sorted(Path(folder).rglob("*"))))
    (tmp_path / "stored").mkdir()
    (tmp_path / "stored" / "index").write_bytes(bytes(1000))
    storage.copy([tmp_path / "stored"], tmp_path / "copy")
    assert synced == [[tmp_path / "copy" / "index"]], "and all of it was there then"


def test_two_names_on_one_device_are_told_and_not_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declared = {**table(tmp_path, monkeypatch), "there": {"environment": "THERE"}, "unset": {"environment": "UNSET"}}
    (tmp_path / "there").mkdir()
    monkeypatch.setenv("THERE", str(tmp_path / "there"))
    facts = storage.facts("here", declared)
    assert facts["same_device_as"] == ["there"]
    assert facts["filesystem"] and str(tmp_path) not in str(facts)
    assert "same device as there" in described(facts)


def test_a_remote_namespace_is_told_by_its_transport_and_the_number_of_its_paths(tmp_path: Path) -> None:
    namespace = tmp_path / "devices" / "virtual" / "nvme-subsystem" / "nvme-subsys0" / "nvme0n1"
    (namespace / "nvme0n1p1").mkdir(parents=True)
    (namespace / "nvme0n1p1" / "partition").write_text("1\n")
    (namespace / "queue").mkdir()
    (namespace / "queue" / "rotational").write_text("0\n")
    for number in range(4):
        controller = namespace.parent / f"nvme{number}"
        controller.mkdir()
        (controller / "transport").write_text("rdma\n")
    (namespace.parent / "model").write_text("OpenFlex  \n")
    (namespace / "device").symlink_to("..")
    links = tmp_path / "dev" / "block"
    links.mkdir(parents=True)
    (links / "259:1").symlink_to(namespace / "nvme0n1p1")
    found = storage.device(259, 1, tmp_path)
    assert found == {"device": "nvme0n1", "rotational": False, "model": "OpenFlex", "transport": "rdma", "paths": 4}
    assert set(storage.device(259, 2, tmp_path).values()) == {None}  # not to be seen is not "no"
    everything = {"name": "far", "filesystem": "xfs", "same_device_as": [], **found}
    assert described(everything) == "far: xfs, device nvme0n1, rdma, OpenFlex, not rotating, 4 paths"


# What is refused while parsing.


MILVUS = {"version": "2.3.5"}
MAPPED = {"version": "2.3.5", "settings": {"queryNode.mmapDirPath": "storage"}}


@pytest.mark.parametrize(
    ("engine", "system", "topology", "complaint"),
    [
        ("weaviate", {"version": "1.27.0"}, ON_PATH, "engine weaviate has no storage to choose"),
        ("milvus", MILVUS, {**ON_PATH, "runtime": "docker"}, "storage is for runtime native, not docker"),
        ("milvus", MILVUS, {**ON_PATH, "external": {"etcd": "etcd-3.5.35"}}, "only where it is one process"),
        ("milvus", MAPPED, STANDALONE, "in a topology that has a storage path"),
        ("milvus", {**MAPPED, "settings": {"queryNode.mmapDirPath": "/tmp"}}, ON_PATH, "'/tmp': it can only be"),
        ("milvus", {"version": "2.3.5", "settings": {"localStorage.path": "/x"}}, ON_PATH, "is set by anncestry"),
    ],
)
def test_what_can_not_be_put_on_a_path_is_refused(
    engine: str, system: Mapping[str, Any], topology: Mapping[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        engines.offers_of(engine).check({**system, "artifact": {"kind": "wheel"}}, topology, INDEX, None)


def test_mapped_files_are_a_matter_of_later_versions() -> None:
    with pytest.raises(Unsupported, match=r"unsupported by milvus 2\.2\.16"):
        engines.offers_of("milvus").check({**MAPPED, "version": "2.2.16"}, ON_PATH, INDEX, None)
    engines.offers_of("milvus").check({**MAPPED, "artifact": SYSTEMS["milvus-2.3.5"]["artifact"]}, ON_PATH, INDEX, None)


@pytest.mark.parametrize(
    ("body", "complaint"),
    [({"disk": {}}, "disk: key 'environment' is missing"), ({"disk": {"environment": "/mnt"}}, "disk.environment")],
)
def test_a_storage_file_names_variables_not_paths(body: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        configuration.validate(body, "storage", Path("config/storage.yaml"))


def test_the_experiments_of_the_document_have_a_cell_for_each_path() -> None:
    here, on_paths = (
        workflow.expand(workflow.Choice(ROOT / "config", name)) for name in ("diskann-nvmeof", "diskann-nvmeof-paths")
    )
    assert len(here.cells) == 3 * 2 * 3 - 1, "30 clients of the library do not fit where there are 100 million rows"
    assert {cell.topology for cell in here.cells} == {"standalone", "standalone-on-disk"}
    assert len(on_paths.cells) == 3 * (3 * 2 * 2 - 1)
    assert {cell.topology for cell in on_paths.cells} == {"nvmeof-1path-1nic", "nvmeof-4path-1nic", "nvmeof-4path-2nic"}
    assert len(workflow.expand(workflow.Choice(ROOT / "config", "diskann-nvmeof-laptop")).cells) == 12


# Held to.


def test_data_lies_on_the_path_while_a_server_runs_and_nowhere_else(bench: MakeBench, tmp_path: Path) -> None:
    folder = tmp_path / "mount"
    folder.mkdir()
    honest = bench(change=on_a_path(folder))
    cell, table = honest.matrix.cells[0], honest.matrix.config.storage
    record = honest.load(cell, storage=table)
    assert failed(record) == {}
    (said,) = [gate["detail"] for gate in record["gates"] if gate["gate"] == "storage path"]
    assert "MiB of vectors, metadata and index on here, 0.0 MiB elsewhere" in said
    stored = Path(cell.index_path).parent / "data" / FOLDER
    assert (stored / "base.npy").exists() and not stored.is_symlink()
    assert list(folder.iterdir()) == []  # taken back
    assert record["storage"]["net_mib"] > 0 and record["storage_path"]["name"] == "here"
    assert honest.query(cell, runs=2, storage=table) == {cell.query: "ok"}
    assert failed(honest.record(cell)) == {} and list(folder.iterdir()) == []
    published = publish.run(
        honest.matrix.spec(cell.query, "query"),
        cell.query,
        Path(cell.measured_path),
        Path(cell.index_path),
        Path(cell.vectors_path),
        Path(cell.query_path),
    )
    device, told = published["storage_path"]["device"], published["resources"].get("device")
    assert (told is None) == (device is None) or "diskstats" not in published["storage_path"]["io_of_device"]
    assert str(tmp_path) not in str(records.read_record(Path(cell.query_path))["storage_path"])


def test_a_server_that_writes_elsewhere_is_invalid(bench: MakeBench, tmp_path: Path) -> None:
    folder = tmp_path / "mount"
    folder.mkdir()
    liar = bench("elsewhere", change=on_a_path(folder))
    record = liar.load(liar.matrix.cells[0], storage=liar.matrix.config.storage)
    assert set(failed(record)) == {"storage path"}
    assert failed(record)["storage path"].startswith("0.0 MiB of vectors, metadata and index on here, ")


def test_a_load_that_fails_leaves_nothing_on_the_path(bench: MakeBench, tmp_path: Path) -> None:
    folder = tmp_path / "mount"
    folder.mkdir()
    dead = bench("no-start", change=on_a_path(folder))
    with pytest.raises(UserError):
        dead.load(dead.matrix.cells[0], storage=dead.matrix.config.storage)
    assert list(folder.iterdir()) == []
    with pytest.raises(UserError, match="is not a folder"):
        dead.load(dead.matrix.cells[0], storage={"here": {"environment": "HERE", "default": str(tmp_path / "no")}})


def test_a_path_that_nobody_declares_is_refused(bench: MakeBench) -> None:
    def change(files: dict[str, Any]) -> None:
        files["topologies"]["standalone"]["storage"] = "her"
        files["storage"] = {"here": {"environment": "HERE"}}

    with pytest.raises(ConfigError, match=r"standalone\.storage: unknown storage path 'her'; did you mean 'here'"):
        bench(change=change)


def test_files_that_are_mapped_are_seen_even_when_their_names_are_gone(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "mount").mkdir()
    placed = Placed.put("here", tmp_path / "mount", tmp_path / "data")
    assert placed.mapped_mib([os.getpid()]) == 0.0
    path = tmp_path / "data" / FOLDER / "vectors"
    path.write_bytes(bytes(2 << 20))
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
        path.unlink()
        assert placed.mapped_mib([os.getpid()]) == pytest.approx(2.0)
    assert placed.mapped_mib([2**22 + 1]) is None  # nobody's maps: not zero
    again = Placed.put("here", tmp_path / "mount", tmp_path / "data")
    assert again.folder == placed.folder and list(again.folder.iterdir()) == []  # what was left is gone
    again.take_back()
    assert list((tmp_path / "mount").iterdir()) == []


# What was read and written.


def test_the_io_of_a_device_is_the_difference_of_its_totals() -> None:
    totals = iter([(10, 1 << 20, 20, 2 << 20), (14, 9 << 20, 21, 3 << 20)] + [(18, 17 << 20, 22, 4 << 20)] * 1000)
    with resources.Sampler({"server": lambda: [os.getpid()]}, 60.0, device=lambda: next(totals)) as sampler:
        start_s = time.monotonic()
        sampler.sample()
    window = {"query": [(0.0, time.monotonic() + 1)]}
    used = resources.by_group(sampler.table(), window)["device"]["query"]
    assert {name: value for name, value in used.items() if name != "wall_s"} == {
        "io_read_mib": 16.0,
        "io_write_mib": 2.0,
        "io_reads": 8.0,
        "io_writes": 2.0,
    }
    assert start_s > 0


def test_where_no_device_is_sampled_there_is_no_number_of_one() -> None:
    with resources.Sampler({"server": lambda: [os.getpid()]}, 60.0) as sampler:
        pass
    assert "device" not in resources.by_group(sampler.table(), {"query": [(0.0, time.monotonic())]})
    assert sampler.table().column_names == list(resources.COLUMNS)


def test_totals_of_a_device_are_bytes_of_512_a_sector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    (tmp_path / "diskstats").write_text(" 254 0 vda 7 1 16 9 5 2 24 9 0 1 2\n 254 1 vda1 1 0 8 0 0 0 0 0 0 0 0\n")
    assert storage.device_totals("vda") == (7, 8192, 5, 12288)
    assert storage.device_totals("nvme0n1") is None


# With a real server.


@pytest.mark.servers
def test_milvus_keeps_and_maps_its_files_on_the_path_and_opens_a_copy_of_them_on_another(tmp_path: Path) -> None:
    name, engine, vectors = "milvus-2.3.5-mmap", engines.get("milvus"), small_vectors("l2")
    system = {**SYSTEMS["milvus-2.3.5"], **SYSTEMS[name], "name": name}
    spec = {"system": system, "topology": ON_PATH}
    files = artifact("milvus-2.3.5", tmp_path / "artifact")
    for folder in ("first", "second", "data", "copy"):
        (tmp_path / folder).mkdir()
    path = StoragePath.of(spec, {"here": {"environment": "HERE", "default": str(tmp_path / "first")}})
    assert path is not None
    placed = Placed.put("here", tmp_path / "first", tmp_path / "data")
    server = engine.start(files, tmp_path / "data", system, ON_PATH)
    try:
        with Progress("load", len(vectors.base), "rows") as progress:
            engine.load(server, vectors, INDEX, {"batch_rows": 500}, progress)
        probe = engine.probe(server)
        asked = engine.asked_settings(system, INDEX, "l2", None)
        assert {key: probe.settings[key] for key in asked} == asked
        mapped_mib = placed.mapped_mib(server.group.pids())
    finally:
        server.stop()
    gate = path.gate(engine, placed, mapped_mib)
    assert gate.ok and mapped_mib, gate.detail
    placed.take_back()
    shutil.copytree(tmp_path / "data", tmp_path / "copy", dirs_exist_ok=True, ignore=shutil.ignore_patterns(FOLDER))
    there = Placed.put("there", tmp_path / "second", tmp_path / "copy", tmp_path / "data" / FOLDER)
    server = engine.start(files, tmp_path / "copy", system, ON_PATH)
    try:
        engine.open(server, INDEX)
        assert engine.probe(server).rows == len(vectors.base)
        assert there.mapped_mib(server.group.pids())
    finally:
        server.stop()
        there.remove()
