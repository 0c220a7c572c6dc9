"""`make test` on any machine: what can't be tested there is said at the end, and the rest passes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from anncestry.runtimes import artifacts
from tests import needs, servers
from tests.servers import SYSTEMS

ROOT = Path(__file__).resolve().parents[1]
OF_PROGRAMS = ("tests/provenance/test_ancestry.py",)
FILES = ("tests/report/test_latex.py", "tests/drive/test_hosts.py", "tests/test_architecture.py")
OF_ENGINES = tuple(
    f"tests/engines/test_{name}.py"
    for name in ("mysql", "polardb", "zero_vectors", "freezing", "libraries", "opensearch", "clusters")
)


def listed(path: str, files: Sequence[str], *options: str) -> tuple[list[str], list[str]]:
    """The tests that would run with the programs on `path`, and the lines that say what can't be tested."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:cacheprovider", *options, *files]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in lines if "::" in line], [line for line in lines if line.startswith("NOT TESTED")]


def collected(path: str, *options: str) -> tuple[set[str], list[str]]:
    """The files with tests that would run with the programs on `path`, and the lines that say what can't be tested."""
    names, said = listed(path, FILES, *options)
    return {file for file in FILES if any(name.startswith(file) for name in names)}, said


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH of a machine without LaTeX, a compiler, ip and unshare."""
    folder = tmp_path_factory.mktemp("bin")
    for name in ("git", "id", "sh"):
        (folder / name).symlink_to(str(shutil.which(name)))
    return str(folder)


def test_what_a_machine_can_t_test_is_one_line_and_the_rest_is_tested(bare):
    files, (said,) = collected(bare, "--what-this-machine-can")
    assert files == {"tests/drive/test_hosts.py", "tests/test_architecture.py"}, (
        "test_hosts.py has tests without ip, too"
    )
    assert "LaTeX tables (missing: pdflatex, kpsewhich)" in said
    assert "clients on other machines (missing: ip)" in said
    assert "isolation, clients on other machines (missing: unshare)" in said


def test_a_test_that_runs_a_program_is_left_out_where_that_is_missing_and_the_rest_of_its_file_is_not(bare):
    here, (said,) = listed(bare, OF_PROGRAMS, "--what-this-machine-can")
    assert here and not any("the_keys_that_openssl_makes" in name for name in here)
    assert "the_keys_that_openssl_makes" in (ROOT / OF_PROGRAMS[0]).read_text()
    assert "keys that openssl made (missing: openssl)" in said


def test_where_apt_and_compilers_are_missing_the_systems_that_need_them_are_left_out_and_all_others_tested(bare):
    here, (said,) = listed(bare, OF_ENGINES, "--what-this-machine-can")
    assert "MariaDB (missing: apt-get, dpkg-deb)" in said
    assert "hnswlib, which is compiled (missing: g++)" in said
    assert "OpenSearch (missing: mvn)" in said and "Kafka and Pulsar (missing: mvn)" in said
    everywhere, _ = listed(bare, OF_ENGINES)
    out = {name.partition("::")[2] for name in everywhere} - {name.partition("::")[2] for name in here}
    for function, missing, there in (
        ("test_a_copied_folder_is_searchable_and_a_killed_server_noticed", "mariadb-11.8.6", "seekdb-1.4.0"),
        ("test_a_system_keeps_zero_vectors_as_it_offers", "mariadb-11.8.6", "faiss-1.15.1-library"),
        ("test_a_system_keeps_zero_vectors_as_it_offers", "hnswlib-0.8.0-library", "redis-7.4.1"),
        ("test_a_system_keeps_zero_vectors_as_it_offers", "opensearch-3.5.0", "milvus-2.3.5"),
        ("test_a_distributed_milvus_counts_its_searches", "distributed-2", ""),
        ("test_its_variables_have_scopes", "", "no such"),
    ):
        assert any(name.startswith(function) and missing in name for name in out), f"{function} needs {missing}"
        assert not there or not any(name.startswith(function) and there in name for name in out)
    built = [name for name in here if "test_libraries.py" in name and "-l2]" in name]
    assert any("faiss" in name for name in built) and not any("hnswlib" in name for name in built)
    for function in ("test_who_offers_to_keep_zero_vectors", "test_two_slices_may_be_as_long_as_was_tried"):
        assert any(f"{function}[mariadb-11.8.6" in name for name in here), "who starts no server needs nothing"


@pytest.mark.parametrize(
    ("system", "needed"),
    [
        ("mariadb-11.8.6-large", "MariaDB"),
        ("hnswlib-0.8.0-library", "hnswlib, which is compiled"),
        ("diskann-0.7.0-m64-library", "usearch, DiskANN, LanceDB, DuckDB"),
        ("lancedb-0.40.0-library", "usearch, DiskANN, LanceDB, DuckDB"),
        ("opensearch-3.5.0-to-3.6.0", "OpenSearch"),
        ("faiss-1.15.1-library", ""),
        ("weaviate-1.27.0", ""),
    ],
)
def test_what_a_test_needs_is_known_from_the_systems_that_it_makes(request, system, needed):
    assert not any(need.of_artifacts and need.has(request.node) for need in needs.NEEDS), "it starts no server"
    request.node.add_marker(pytest.mark.makes(system))
    assert [need.tested for need in needs.NEEDS if need.has(request.node)] == ([needed] if needed else [])


def test_a_test_that_makes_what_it_did_not_state_fails(request):
    mariadb = SYSTEMS["mariadb-11.8.6"]["artifact"]
    with pytest.raises(pytest.fail.Exception, match=r"needs what not every machine has: MariaDB\. State it"):
        servers.will_make(mariadb)
    request.node.add_marker(pytest.mark.makes("mariadb-11.8.6"))
    servers.will_make(mariadb)


@pytest.mark.parametrize(("python", "missing"), [("3.11", ""), ("3.12", "Python 3.11"), ("3.13", "Python 3.11")])
def test_libraries_of_one_python_are_left_out_on_another(monkeypatch, python, missing):
    monkeypatch.setattr(artifacts, "PYTHON", python)
    (need,) = (each for each in needs.NEEDS if "LanceDB" in each.tested)
    assert need.missing() == missing


def test_no_test_is_left_out_unless_that_was_asked_for(bare):
    files, said = collected(bare)
    assert files == set(FILES) and not said


def test_make_test_asks_for_it_and_installs_nothing_for_a_user_without_apt(bare):
    make = shutil.which("make")
    assert make
    done = subprocess.run(
        [make, "--dry-run", "test"], cwd=ROOT, env={"PATH": bare}, capture_output=True, text=True, check=True
    )
    assert "--what-this-machine-can" in done.stdout
    assert "apt-get" not in done.stdout
