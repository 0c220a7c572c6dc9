"""What is run is what was pinned, byte for byte, or it is refused in a sentence that names the system."""

from __future__ import annotations

import base64
import hashlib
import lzma
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from anncestry import user_cache
from anncestry.cells.stage import key_of
from anncestry.errors import Damaged, DataError, UserError
from anncestry.provenance.records import read_record, seal, sha256_file, write_json
from anncestry.runtimes import artifacts, building, images
from tests.builders import shelves

KEY = "0123456789ab"


@pytest.fixture
def wheel_spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A wheel with a packed program in it, that pip finds in a local folder and nowhere else."""
    program = lzma.compress(b"#!/bin/sh\necho toy\n")
    files = {"toyserver/bin/program.lzma": program, "toyserver/config.yaml": "a: 1\n"}
    wheel = shelves.wheel(tmp_path / "shelf", "toyserver", "1.2.3", files)
    shelves.pip_finds(tmp_path / "shelf", monkeypatch)
    artifact = {"kind": "wheel", "package": "toyserver", "sha256": sha256_file(wheel)}
    return {"system": "toy-1.2.3", "version": "1.2.3", "artifact": artifact}


def test_a_wheel_is_unpacked_with_its_programs_ready_to_run(wheel_spec: dict[str, Any], tmp_path: Path) -> None:
    record = artifacts.run(wheel_spec, tmp_path / "out", tmp_path / "cache", KEY)
    program = tmp_path / "out" / "toyserver" / "bin" / "program"
    assert subprocess.run([program], capture_output=True, text=True, check=True).stdout == "toy\n"
    assert "toyserver/bin/program.lzma" not in record["outputs"]
    hashes = {name: output["sha256"] for name, output in record["outputs"].items()}
    assert hashes["toyserver/bin/program"] == sha256_file(program)
    assert record["digest"] == artifacts.digest_of(hashes)


def test_everybody_may_read_an_artifact_whatever_the_umask_as_some_programs_run_as_nobody(
    wheel_spec: dict[str, Any], tmp_path: Path
) -> None:
    before = os.umask(0o077)
    try:
        record = artifacts.run(wheel_spec, tmp_path / "out", tmp_path / "cache", KEY)
    finally:
        os.umask(before)
    files = [tmp_path / "out" / output["path"] for output in record["outputs"].values()]
    folders = {folder for file in files for folder in file.parents if folder.is_relative_to(tmp_path / "out")}
    assert all(file.stat().st_mode & 0o004 for file in files)
    assert all(folder.stat().st_mode & 0o005 == 0o005 for folder in folders)
    (program,) = [file for file in files if file.name == "program"]
    assert program.stat().st_mode & 0o777 == 0o755


def test_what_a_killed_job_left_unpacked_is_gone_with_the_next_one_and_in_no_image(
    wheel_spec: dict[str, Any], tmp_path: Path
) -> None:
    left = tmp_path / "out" / ".abcd1234" / "whole" / "program"
    left.parent.mkdir(parents=True)
    left.write_text("half of it")
    assert [name for name, _ in images._artifact_files(tmp_path / "out", "/opt")] == []
    artifacts.run(wheel_spec, tmp_path / "out", tmp_path / "cache", KEY)
    assert not left.parent.parent.exists()


def test_a_build_of_ones_own_that_is_damaged_in_the_cache_is_kept_again_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    build = tmp_path / "build" / "bin" / "server"
    build.parent.mkdir(parents=True)
    build.write_text("#!/bin/sh\necho mine\n")
    artifact = artifacts.kept(tmp_path / "build")
    spec = {"system": "mine", "version": "1.0.0", "artifact": artifact}
    (copy,) = (tmp_path / "cache").rglob("server")
    copy.chmod(0o644)
    copy.write_text("#!/bin/sh\n")
    with pytest.raises(DataError, match=r"mine: the build with the digest .* is not what it was: give its path again"):
        artifacts.run(spec, tmp_path / "out", user_cache.folder(), KEY)
    build.chmod(0o755)  # the digest is of contents: that it is a program comes along, too
    assert artifacts.kept(tmp_path / "build") == artifact
    artifacts.run(spec, tmp_path / "out", user_cache.folder(), KEY)
    program = tmp_path / "out" / "bin" / "server"
    assert subprocess.run([program], capture_output=True, check=True).stdout == b"mine\n"


def test_files_of_another_wheel_come_beside_and_a_text_is_changed_where_it_is_declared(
    wheel_spec: dict[str, Any], tmp_path: Path
) -> None:
    one = wheel_spec["artifact"]
    one["beside"] = [{"package": "toyserver", "release": "1.2.3", "sha256": one["sha256"], "only": ["program"]}]
    one["changed"] = [{"file": "toyserver/config.yaml", "from": "a: 1", "to": "b: 2"}]
    artifacts.run(wheel_spec, tmp_path / "out", tmp_path / "cache", KEY)
    assert (tmp_path / "out" / "toyserver" / "config.yaml").read_text() == "b: 2\n"
    assert [path.name for path in (tmp_path / "out" / "beside").iterdir()] == ["program"]
    assert subprocess.run([tmp_path / "out" / "beside" / "program"], capture_output=True, check=True).stdout == b"toy\n"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            {"changed": [{"file": "toyserver/config.yaml", "from": "a: 1", "to": "a: 12"}]},
            "can't be replaced by b'a: 12'",
        ),
        ({"changed": [{"file": "toyserver/config.yaml", "from": "c: 1", "to": "d: 1"}]}, "holds b'c: 1' 0 times"),
        ({"changed": [{"file": "toyserver/none", "from": "a: 1", "to": "b: 1"}]}, "none holds b'a: 1' 0 times"),
        ({"beside": [{"only": ["programme"]}]}, "toyserver 1.2.3 has 0 files programme"),
    ],
)
def test_what_is_not_there_to_be_changed_or_taken_is_refused(
    wheel_spec: dict[str, Any], tmp_path: Path, more: dict[str, Any], said: str
) -> None:
    one = wheel_spec["artifact"]
    for other in more.get("beside", []):
        other |= {"package": "toyserver", "release": "1.2.3", "sha256": one["sha256"]}
    with pytest.raises(DataError, match=re.escape(said)):
        artifacts.run({**wheel_spec, "artifact": one | more}, tmp_path / "out", tmp_path / "cache", KEY)


def held(tmp_path: Path) -> Path:
    """The one archive in the cache."""
    (archive,) = (tmp_path / "cache" / "pinned").iterdir()
    return archive


def test_an_artifact_is_fetched_once_and_unpacked_from_the_cache_then(
    wheel_spec: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = artifacts.run(wheel_spec, tmp_path / "out1", tmp_path / "cache", KEY)
    monkeypatch.delenv("PIP_FIND_LINKS")
    second = artifacts.run(wheel_spec, tmp_path / "out2", tmp_path / "cache", KEY)
    assert first["digest"] == second["digest"]
    assert sorted(path.name for path in (tmp_path / "out2").iterdir()) == sorted(
        {Path(name).parts[0] for name in first["outputs"]} | {"record.json"}
    )


def test_two_jobs_that_need_the_same_jars_fetch_them_once_and_both_have_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = f"time.sleep(0.5)\nwith open({str(tmp_path / 'calls')!r}, 'a') as calls:\n    calls.write('fetched ')"
    shelves.maven(tmp_path / "tools", monkeypatch, calls)
    jar = "[('toy', '1.2.3')]"
    pin = artifacts.digest_of({"toy.jar": hashlib.sha256(jar.encode()).hexdigest()})
    artifact = {"kind": "maven", "coordinates": ["org.toy:toy:1.2.3"], "sha256": pin}
    spec = {"system": "toy-1.2.3", "version": "1.2.3", "artifact": artifact}
    with ThreadPoolExecutor(2) as jobs:
        outs = [tmp_path / "out1", tmp_path / "out2"]
        both = list(jobs.map(lambda out: artifacts.run(spec, out, tmp_path / "cache", KEY)["digest"], outs))
    assert both[0] == both[1]
    assert [(out / "toy.jar").read_text() for out in outs] == [jar, jar]
    assert (tmp_path / "calls").read_text() == "fetched "


def test_a_damaged_archive_in_the_cache_is_fetched_again(
    wheel_spec: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = artifacts.run(wheel_spec, tmp_path / "out", tmp_path / "cache", KEY)
    content = held(tmp_path).read_bytes()
    held(tmp_path).write_bytes(content[:-1])
    assert artifacts.run(wheel_spec, tmp_path / "out", tmp_path / "cache", KEY)["digest"] == first["digest"]
    assert held(tmp_path).read_bytes() == content
    held(tmp_path).write_bytes(content[:-1])
    monkeypatch.delenv("PIP_FIND_LINKS")
    with pytest.raises(DataError, match=r"toy-1\.2\.3: can't get toyserver 1\.2\.3"):
        artifacts.run(wheel_spec, tmp_path / "out", tmp_path / "cache", KEY)


def test_a_damaged_artifact_is_not_run_and_making_it_again_mends_it(wheel_spec: dict[str, Any], tmp_path: Path) -> None:
    first = artifacts.run(wheel_spec, tmp_path / "out", tmp_path / "cache", KEY)
    record, program = tmp_path / "out" / "record.json", tmp_path / "out" / "toyserver" / "bin" / "program"
    assert artifacts.opened(record, KEY) == first
    content = program.read_bytes()
    program.write_bytes(content[:-1] + b" ")
    with pytest.raises(Damaged, match=r"bin/program: sha256 .* differs ") as damaged:
        artifacts.opened(record, KEY)
    assert damaged.value.record == record  # which the command sets aside (tests/provenance/test_damaged.py)
    artifacts.run(wheel_spec, tmp_path / "out", tmp_path / "cache", KEY)
    assert artifacts.opened(record, KEY)["digest"] == first["digest"]
    assert subprocess.run([program], capture_output=True, text=True, check=True).stdout == "toy\n"


def test_what_was_made_for_another_python_is_damaged_and_made_again(
    wheel_spec: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifacts.run(wheel_spec, tmp_path / "out", tmp_path / "cache", KEY)
    record = tmp_path / "out" / "record.json"
    body = read_record(record, stage="artifact", key=KEY)
    body["toolchain"]["for Python"] = "3.99"
    write_json(record, seal(body))
    with pytest.raises(Damaged, match=r"was made for Python 3\.99, and this is 3\."):
        artifacts.opened(record, KEY)


def test_a_program_planted_in_the_cache_is_not_believed_for_the_manifest_beside_it(
    wheel_spec: dict[str, Any], tmp_path: Path
) -> None:
    """Finding 6: a program with a manifest of its own was taken, under a pin of zeros."""
    wheel_spec["artifact"]["sha256"] = "0" * 64
    artifact = {key: wheel_spec[key] for key in ("version", "artifact")}
    for folder in (f"artifact/{KEY}", f"built/{key_of({'stage': 'artifact', **artifact})}"):
        entry = tmp_path / "cache" / folder
        write_json(entry / "files" / "program", "evil")
        files = building.hashes(entry / "files")
        write_json(entry / "manifest.json", {"files": files, "toolchain": {}, "said": {}})
    planted = tmp_path / "cache" / "pinned" / f"{'0' * 64}-python{artifacts.PYTHON}.whl"
    planted.parent.mkdir()
    planted.write_bytes(next((tmp_path / "shelf").iterdir()).read_bytes())
    with pytest.raises(DataError, match=r"toy-1\.2\.3: .* sha256 is not the pinned 000000000000…"):
        artifacts.run(wheel_spec, tmp_path / "out", tmp_path / "cache", KEY)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_wheel_with_another_digest_is_refused(wheel_spec: dict[str, Any], tmp_path: Path) -> None:
    wheel_spec["artifact"]["sha256"] = "0" * 64
    with pytest.raises(DataError, match=r"toy-1\.2\.3: .* sha256 is not the pinned 000000000000…"):
        artifacts.run(wheel_spec, tmp_path / "out", tmp_path / "cache", KEY)
    assert not list((tmp_path / "out").iterdir())
    assert not list((tmp_path / "cache" / "pinned").iterdir())


@pytest.fixture
def wheel_of_another_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A release with a wheel for this Python and one for 3.9, each with a compiled module; that for 3.9 is pinned."""
    shelf, pins = tmp_path / "shelf", {}
    for tag in ("39", artifacts.PYTHON.replace(".", "")):
        files = {f"toylib/fast.cpython-{tag}-x86_64-linux-gnu.so": f"for {tag}"}
        pins[tag] = sha256_file(shelves.wheel(shelf, "toylib", "1.2.3", files, f"cp{tag}-none-any"))
    shelves.pip_finds(shelf, monkeypatch)
    monkeypatch.setattr(artifacts, "PINNED_FOR", "3.9")
    return {"system": "toy", "version": "1.2.3", "artifact": {"package": "toylib", "sha256": pins["39"]}}


def test_a_program_in_a_wheel_pinned_for_one_python_is_had_under_every_other(
    wheel_of_another_python: dict[str, Any], tmp_path: Path
) -> None:
    wheel_of_another_python["artifact"]["kind"] = "wheel"
    record = artifacts.run(wheel_of_another_python, tmp_path / "out", tmp_path / "cache", KEY)
    assert "toylib/fast.cpython-39-x86_64-linux-gnu.so" in record["outputs"]


def test_a_module_compiled_for_another_python_is_refused_by_what_it_needs(
    wheel_of_another_python: dict[str, Any], tmp_path: Path
) -> None:
    wheel_of_another_python["artifact"]["kind"] = "python"
    with pytest.raises(
        DataError, match=r"toy: its pinned package is for Python 3\.9, and this is 3\..*PYTHON=python3\.9"
    ):
        artifacts.run(wheel_of_another_python, tmp_path / "out", tmp_path / "cache", KEY)


def test_a_version_that_nobody_has_is_refused_with_the_reason(wheel_spec: dict[str, Any], tmp_path: Path) -> None:
    wheel_spec["version"] = "9.9.9"
    with pytest.raises(DataError, match=r"toy-1\.2\.3: can't get toyserver 9\.9\.9: .*No matching distribution"):
        artifacts.run(wheel_spec, tmp_path / "out", tmp_path / "cache", KEY)


def test_an_unknown_kind_is_refused(wheel_spec: dict[str, Any], tmp_path: Path) -> None:
    wheel_spec["artifact"]["kind"] = "floppy"
    with pytest.raises(DataError, match=r"floppy.*known: wheel, go-module"):
        artifacts.run(wheel_spec, tmp_path / "out", tmp_path / "cache", KEY)


@pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil", "a\\..\\evil"])
def test_an_archive_can_not_write_outside_of_its_folder(name: str, tmp_path: Path) -> None:
    archive = tmp_path / "evil.whl"
    with zipfile.ZipFile(archive, "w") as members:
        members.writestr(zipfile.ZipInfo(name), "x")
    with pytest.raises(DataError, match="points outside"):
        artifacts.unpack(archive, tmp_path / "inside")
    assert not (tmp_path / "evil").exists()


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "half.whl"
    archive.write_bytes(b"PK\x03\x04 and then nothing")
    with pytest.raises(DataError, match=r"half\.whl: damaged"):
        artifacts.unpack(archive, tmp_path)


# Go modules, from a proxy that is a folder.


@pytest.fixture
def go_spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """A module with one program, and the module that it needs, on a module proxy that is a folder."""
    proxy, needed, module = tmp_path / "proxy", "example.org/needed", "example.org/toy"
    mod = f"module {needed}\n\ngo 1.20\n"
    h1 = shelves.module(proxy, needed, {"go.mod": mod, "needed.go": 'package needed\n\nvar Text = "sound"\n'})
    line = f"{hashlib.sha256(mod.encode()).hexdigest()}  go.mod\n"
    mod_h1 = "h1:" + base64.b64encode(hashlib.sha256(line.encode()).digest()).decode()
    files = {
        "go.mod": f"module {module}\n\ngo 1.20\n\nrequire {needed} v1.0.0\n",
        "go.sum": f"{needed} v1.0.0 {h1}\n{needed} v1.0.0/go.mod {mod_h1}\n",
        "cmd/toy-server/main.go": f'package main\n\nimport "{needed}"\n\nvar Stamp = "none"\n\n'
        "func main() { println(needed.Text, Stamp) }\n",
    }
    h1 = shelves.module(proxy, module, files)
    shelves.go_finds(proxy, tmp_path / "modules", monkeypatch)
    artifact = {
        "kind": "go-module",
        "module": module,
        "main": "./cmd/toy-server",
        "h1": h1.removeprefix("h1:"),
        "go": "1.26.6",
        "stamp": {"main.Stamp": "v1.0.0"},
    }
    yield {"system": "toy-1.0.0", "version": "1.0.0", "artifact": artifact}
    subprocess.run(["chmod", "-R", "u+w", tmp_path / "modules"], check=False)  # Go makes its modules read-only


def test_a_go_module_is_built_as_pinned_whatever_the_users_go_settings(
    go_spec: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOROOT", "/nowhere")
    monkeypatch.setenv("GOFLAGS", "-tags=other -mod=vendor")
    monkeypatch.setenv("GOOS", "plan9")
    monkeypatch.setenv("GOTOOLCHAIN", "go1.99.9")
    record = artifacts.run(go_spec, tmp_path / "out", tmp_path / "cache", KEY)
    program = tmp_path / "out" / "toy-server"
    assert subprocess.run([program], capture_output=True, text=True, check=True).stderr == "sound v1.0.0\n"
    assert record["toolchain"] == {"go": "1.26.6"}
    assert str(tmp_path).encode() not in program.read_bytes()


def test_a_go_module_with_another_h1_is_refused(go_spec: dict[str, Any], tmp_path: Path) -> None:
    go_spec["artifact"]["h1"] = "x" * 43 + "="
    with pytest.raises(DataError, match=r"toy-1\.0\.0: example\.org/toy@v1\.0\.0 is h1:.*not the pinned h1:xxx"):
        artifacts.run(go_spec, tmp_path / "out", tmp_path / "cache", KEY)


@pytest.mark.parametrize(
    ("name", "said"),
    [("toy@*/cmd/toy-server/main", "not the pinned"), ("needed@*/needed", "needed@v1.0.0 has changed")],
)
def test_a_go_module_changed_in_the_users_module_cache_is_refused(
    go_spec: dict[str, Any], tmp_path: Path, name: str, said: str
) -> None:
    artifacts.run(go_spec, tmp_path / "out", tmp_path / "cache", KEY)
    (source,) = (tmp_path / "modules").glob(f"example.org/{name}.go")
    source.chmod(0o644)
    source.write_text(source.read_text().replace("none", "evil").replace("sound", "evil"))
    with pytest.raises(DataError, match=said):
        artifacts.run(go_spec, tmp_path / "out", tmp_path / "another-cache", KEY)


def test_what_go_compiles_in_is_not_taken_from_where_others_may_write(
    go_spec: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    monkeypatch.setenv("GOCACHE", str(tmp_path / "open"))
    with pytest.raises(UserError, match=r"/open: other users own or may write .*set GOCACHE to a folder of yours"):
        artifacts.run(go_spec, tmp_path / "out", tmp_path / "cache", KEY)


def test_a_damaged_program_is_built_again(go_spec: dict[str, Any], tmp_path: Path) -> None:
    first = artifacts.run(go_spec, tmp_path / "out", tmp_path / "cache", KEY)
    (cached,) = (tmp_path / "cache" / "built").glob("*/files/toy-server")
    cached.write_bytes(b"#!/bin/sh\necho damaged\n")
    second = artifacts.run(go_spec, tmp_path / "out", tmp_path / "cache", KEY)
    assert second["digest"] == first["digest"]
    program = tmp_path / "out" / "toy-server"
    assert subprocess.run([program], capture_output=True, text=True, check=True).stderr == "sound v1.0.0\n"


def test_another_go_than_the_pinned_one_is_refused(go_spec: dict[str, Any], tmp_path: Path) -> None:
    go_spec["artifact"]["go"] = "1.2.3"
    with pytest.raises(DataError, match=r"toy-1\.0\.0: needs Go 1\.2\.3, but the installed one is 1\.26\.6"):
        artifacts.run(go_spec, tmp_path / "out", tmp_path / "cache", KEY)


def test_a_go_module_that_nobody_has_is_refused_with_the_reason(go_spec: dict[str, Any], tmp_path: Path) -> None:
    go_spec["version"] = "7.7.7"
    with pytest.raises(DataError, match=r"toy-1\.0\.0: can't get example\.org/toy@v7\.7\.7: "):
        artifacts.run(go_spec, tmp_path / "out", tmp_path / "cache", KEY)


def test_no_pip_is_told(wheel_spec: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(DataError, match=r"can't get toyserver 1\.2\.3: no reason given"):
        artifacts.run(wheel_spec, tmp_path / "out", tmp_path / "cache", KEY)
