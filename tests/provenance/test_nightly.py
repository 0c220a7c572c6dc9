"""The recipe for nights: measures again, keeps, compares with the night before, and tells what changed."""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.toy import ROOT, TOY, Toy

SCRIPT = ROOT / "docs" / "workflows" / "nightly.sh"


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toy:
    """A repository of a toy matrix of one cell, with git and DVC, and nobody's own settings of these."""
    for name in ("DVC_SITE_CACHE_DIR", "DVC_GLOBAL_CONFIG_DIR", "DVC_SYSTEM_CONFIG_DIR", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "nightly")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "nightly@example.org")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(ROOT)]))
    monkeypatch.setenv("SNAKEFILE", str(ROOT / "Snakefile"))
    toy = Toy(tmp_path / "checkout", copy.deepcopy(TOY))
    toy.one_cell()
    toy.files["workloads"]["k5"]["runs"] = 3
    toy.save()
    monkeypatch.setenv("ANNCESTRY_CONFIG", str(toy.folder / "config"))
    for name in (".dvc/config", ".dvc/.gitignore", ".dvcignore", ".gitignore", "dvc.yaml"):
        (toy.folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, toy.folder / name)
    git(toy, "init", "--quiet", "--initial-branch", "main")
    git(toy, "add", "--all")
    git(toy, "commit", "--quiet", "--message", "the toy matrix")
    return toy


def git(toy: Toy, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=toy.folder, capture_output=True, text=True, check=True)
    return done.stdout


def night(toy: Toy) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SCRIPT, "default"], cwd=toy.folder, capture_output=True, text=True, check=False)


@pytest.mark.long
def test_a_night_measures_keeps_and_tells_what_changed_and_one_that_fails_loses_nothing(toy: Toy) -> None:
    first = night(toy)
    assert first.returncode == 0, first.stderr
    assert "No results were kept before" in first.stdout and "over 1 commit" in first.stdout
    (record,) = (toy.folder / "results" / "query").rglob("*.json")
    before = record.read_bytes()
    second = night(toy)
    assert second.returncode == 0, second.stderr
    assert record.read_bytes() != before, "measured again"
    assert git(toy, "log", "--format=%s").count("Results of default") == 2
    assert "## Against the results before" in second.stdout and "p50" in second.stdout
    assert "over 2 commits" in second.stdout
    assert second.stdout == (toy.folder / "scratch/nightly/changed.md").read_text()
    for page in ("compare", "history"):
        assert (toy.folder / "scratch/nightly" / page / "index.html").exists()

    toy.files["systems"]["red-1.0"]["settings"] = {"lie": "die-at-start"}
    toy.save()
    kept = record.read_bytes()
    failed = night(toy)
    assert failed.returncode != 0 and failed.stdout == ""
    assert git(toy, "log", "--format=%s").count("Results of default") == 2
    subprocess.run(["dvc", "checkout", "--quiet", "--force", "results.dvc"], cwd=toy.folder, check=True)
    assert record.read_bytes() == kept, "what was kept is there again"
