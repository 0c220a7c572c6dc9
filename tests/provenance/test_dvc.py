"""What a team relies on when it shares results by git and DVC: real clones, real remotes, the flat engine."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

import tests.toy
from anncestry import workflow
from anncestry.drive import build
from anncestry.errors import DataError
from anncestry.provenance import running, versioning
from anncestry.provenance.attempts import Ledger
from tests.builders.s3 import s3_server
from tests.toy import ROOT, TOY, Toy

TRACKED = (".dvc/config", ".dvc/.gitignore", ".dvcignore", ".gitignore", ".gitattributes", "dvc.yaml")
"""What this repository gives a clone for DVC."""

BLUE = {"load": 1, "record": 1, "session": 3, "query": 1, "recall": 1, "table": 1, "report": 1, "all": 1}
"""Jobs of one system with one cell, its artifact apart."""

MERGE_DRIVER = "dvc git-hook merge-driver --ancestor %O --our %A --their %B"


@pytest.fixture(scope="module", autouse=True)
def alone(tmp_path_factory) -> Iterator[None]:
    """Nobody's own settings of git and DVC, and no way out: whatever DVC sent, it would send to a closed port."""
    home = tmp_path_factory.mktemp("home")
    nowhere = "http://127.0.0.1:9"
    # The driver, while there is a network: a new machine fetches modules of Go to build it.
    built = build.programs().driver.parent.parent
    shutil.copytree(built, home / "XDG_CACHE_HOME" / "anncestry" / "built" / built.name)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("DVC_SITE_CACHE_DIR", "DVC_GLOBAL_CONFIG_DIR", "DVC_SYSTEM_CONFIG_DIR", "XDG_CACHE_HOME"):
            patch.setenv(name, str(home / name))
        for role in ("AUTHOR", "COMMITTER"):
            patch.setenv(f"GIT_{role}_NAME", "tester")
            patch.setenv(f"GIT_{role}_EMAIL", "tester@example.org")
        patch.setenv("GIT_CONFIG_GLOBAL", str(home / "gitconfig"))
        patch.setenv("GIT_CONFIG_NOSYSTEM", "1")
        patch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(ROOT)]))
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
            patch.setenv(name, nowhere)
        for name in ("NO_PROXY", "no_proxy"):
            patch.setenv(name, "127.0.0.1")
        patch.delenv("CI", raising=False)
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        yield


@dataclass
class Clone:
    """A working tree of a user: git, DVC, a config of its own."""

    toy: Toy

    @property
    def folder(self) -> Path:
        return self.toy.folder

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        if command[0] == "anncestry" and command[1] != "keep":
            done = tests.toy.anncestry(self.folder, *command[1:])
        else:
            done = subprocess.run(
                command,
                cwd=self.folder,
                capture_output=True,
                text=True,
                check=False,
                stdin=subprocess.DEVNULL,
                timeout=900,
                env={**os.environ, "ANNCESTRY_CONFIG": str(self.folder / "config")},
            )
        if check:
            assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done

    def git(self, *arguments: str) -> str:
        return self.run("git", *arguments).stdout

    def dvc(self, *arguments: str) -> str:
        return self.run("dvc", *arguments).stdout

    def keep(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.run("anncestry", "keep", *arguments, check=check)

    def bump(self, system: str, version: str) -> None:
        self.toy.files["systems"][system]["version"] = version
        self.toy.save()

    def commit(self, message: str) -> None:
        self.git("commit", "--quiet", "--all", "--message", message)

    def clone(self, folder: Path) -> Clone:
        """A clone by git alone: no results, no cache."""
        subprocess.run(["git", "clone", "--quiet", str(self.folder), str(folder)], check=True)
        other = Clone(Toy(folder, copy.deepcopy(self.toy.files)))
        other.git("config", "merge.dvc.driver", MERGE_DRIVER)
        return other

    def twin(self, folder: Path) -> Clone:
        """This tree once more, with everything in it, and a remote of its own beside it."""
        shutil.copytree(self.folder, folder)
        shutil.copytree(self.folder.parent / "anncestry-remote", folder.parent / "anncestry-remote")
        return Clone(Toy(folder, copy.deepcopy(self.toy.files)))

    def objects(self) -> set[str]:
        remote = self.folder.parent / "anncestry-remote"
        return {str(path.relative_to(remote)) for path in remote.rglob("*") if path.is_file()}


def start(folder: Path) -> Clone:
    """A repository with a toy matrix: one dataset, two systems, one cell each."""
    toy = Toy(folder, copy.deepcopy(TOY))
    for names in ("datasets", "topologies", "workloads"):
        del toy.block[names][1:]
    toy.files["workloads"]["k5"]["runs"] = 3  # fewer tell nothing of noise
    toy.save()
    for name in TRACKED:
        source = ROOT / name
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copyfile)(source, folder / name)
    clone = Clone(toy)
    clone.git("init", "--quiet", "--initial-branch", "main")
    clone.git("config", "merge.dvc.driver", MERGE_DRIVER)
    clone.git("add", "--all")
    clone.git("commit", "--quiet", "--message", "the toy matrix")
    return clone


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> Clone:
    """Measured, kept and pushed; not to be changed by a test."""
    clone = start(tmp_path_factory.mktemp("a") / "checkout")
    clone.toy.snakemake()
    clone.keep("--push")
    return clone


@pytest.fixture
def mine(kept, tmp_path) -> Clone:
    return kept.twin(tmp_path / "mine" / "checkout")


# What keep does


def test_keep_commits_the_pointers_alone_and_says_what_is_new(kept):
    assert sorted(kept.git("show", "--name-only", "--format=").split()) == ["data.dvc", "results.dvc"]
    message = kept.git("log", "-1", "--format=%B")
    assert message.startswith("Results of default: 2 cells and 2 loads new\n")
    assert "blue-1.0: 1 cell and 1 load new" in message
    assert kept.git("status", "--porcelain") == ""


def test_keep_leaves_what_the_user_was_doing_as_it_was_and_commits_once(mine):
    (mine.folder / "results" / "remark.txt").write_text("a file more")
    (mine.folder / "notes.txt").write_text("untracked")
    (mine.folder / "staged.txt").write_text("staged")
    mine.git("add", "staged.txt")
    before = mine.git("status", "--porcelain")
    mine.keep("--quick")
    assert mine.git("status", "--porcelain") == before
    assert mine.git("show", "--name-only", "--format=").split() == ["results.dvc"]
    head = mine.git("rev-parse", "HEAD")
    assert "nothing new to keep" in mine.keep("--quick").stdout
    assert mine.git("rev-parse", "HEAD") == head


def test_what_does_not_verify_is_not_kept(mine):
    head = mine.git("rev-parse", "HEAD")
    victim = next((mine.folder / "results" / "query").rglob("*.samples.parquet"))
    victim.write_bytes(victim.read_bytes()[:-1] + b"?")
    done = mine.keep(check=False)
    assert done.returncode == 2
    assert victim.name in done.stdout + done.stderr
    assert mine.git("rev-parse", "HEAD") == head
    assert mine.git("status", "--porcelain") == ""


def test_an_experiment_with_cells_missing_is_kept_only_if_that_is_meant(mine):
    head = mine.git("rev-parse", "HEAD")
    mine.toy.block["workloads"].append("k5-category")
    mine.toy.save()
    mine.commit("one more workload")
    done = mine.keep(check=False)
    assert done.returncode == 2
    assert "keep: 2 of 4 cells of experiment default are not measured (blobs-l2/" in done.stderr
    assert "`anncestry keep --partial` keeps what there is" in done.stderr
    assert mine.git("rev-parse", "HEAD~1") == head
    for path in (mine.folder / "results" / "recall").rglob("*red-1.0*/**/*.json"):
        path.unlink()
    (mine.folder / "results" / "note.txt").write_text("kept along")
    assert "committed: Results of default" in mine.keep("--partial", "--gone").stdout
    victim = next((mine.folder / "results" / "query").rglob("*.samples.parquet"))
    victim.write_bytes(victim.read_bytes()[:-1] + b"?")
    assert victim.name in mine.keep("--partial", check=False).stderr, "what is there must still verify"


def test_an_experiment_whose_table_is_not_made_yet_is_not_kept(mine):
    for folder in (mine.folder / "results" / "table").iterdir():
        shutil.rmtree(folder)
    assert "experiment default has no table yet" in mine.keep(check=False).stderr


def test_results_that_are_not_here_are_not_taken_from_the_team_by_accident(mine):
    (gone := sorted(mine.folder.glob("results/recall/*/*/*/*.json"))[0]).unlink()
    mine.dvc("add", "--quiet", "results")  # by hand, which hides nothing
    done = mine.keep("--partial", "--quick", check=False)
    assert done.returncode == 2
    said = f"results.dvc lists what is not here: {gone.relative_to(mine.folder)}: `dvc checkout results.dvc`"
    assert said in done.stderr
    assert ", 1 gone" in mine.keep("--partial", "--quick", "--gone").stdout


def test_data_that_was_not_pulled_stays_the_team_s_whatever_results_shall_go(mine):
    before = (mine.folder / "data.dvc").read_text()
    sorted(mine.folder.glob("results/recall/*/*/*/*.json"))[0].unlink()
    for folder in (mine.folder / "data" / "truth").iterdir():
        shutil.rmtree(folder)
    done = mine.keep("--partial", "--quick", "--gone")
    assert "1 gone" in done.stdout and "data.dvc is unchanged" in done.stdout + done.stderr
    assert (mine.folder / "data.dvc").read_text() == before


# Two clones


@pytest.fixture(scope="module")
def upgraded(kept, tmp_path_factory) -> Clone:
    """A clone that pulled all, and two more commits, pushed: blue 1.1 in the place of 1.0, and its results.

    Not to be changed by a test. Beside it lie the remotes of git and DVC that it pushed to.
    """
    folder = tmp_path_factory.mktemp("upgraded")
    origin = folder / "origin.git"
    subprocess.run(["git", "clone", "--quiet", "--bare", str(kept.folder), str(origin)], check=True)
    shutil.copytree(kept.folder.parent / "anncestry-remote", folder / "anncestry-remote")
    clone = Clone(Toy(folder / "checkout", copy.deepcopy(kept.toy.files)))
    subprocess.run(["git", "clone", "--quiet", str(origin), str(clone.folder)], check=True)
    clone.git("tag", "before")
    clone.dvc("pull", "--quiet")
    assert clone.toy.planned() == {}
    clone.bump("blue-1.0", "1.1")
    assert clone.toy.planned() == {"artifact": 1, **BLUE}
    clone.commit("blue 1.1")
    clone.toy.snakemake()
    clone.keep("--push")
    clone.git("push", "--quiet")
    return clone


def test_two_clones_share_results_and_measure_only_what_changed(kept, upgraded, tmp_path):
    beside = upgraded.folder.parent
    shutil.copytree(beside / "anncestry-remote", tmp_path / "anncestry-remote")
    a = Clone(Toy(tmp_path / "a", copy.deepcopy(kept.toy.files)))
    subprocess.run(["git", "clone", "--quiet", str(beside / "origin.git"), str(a.folder)], check=True)
    a.git("reset", "--quiet", "--hard", "HEAD~2")  # as it was before the other clone pushed
    a.dvc("pull", "--quiet", "results.dvc")
    assert a.toy.jobs() == {}
    a.dvc("pull", "--quiet")
    assert a.toy.planned() == {}

    a.git("pull", "--quiet")
    a.toy.files = copy.deepcopy(upgraded.toy.files)
    refused = a.toy.snakemake("-n", check=False)
    assert refused.returncode != 0
    assert "dvc pull results.dvc" in refused.stdout + refused.stderr
    a.dvc("pull", "--quiet", "results.dvc")
    assert a.toy.planned() == {}
    assert "1.0" in a.dvc("params", "diff", "HEAD~2")
    assert a.run("anncestry", "verify").returncode == 0


def test_a_clone_with_results_only_keeps_without_touching_the_data_of_others(kept, tmp_path):
    b = kept.clone(tmp_path / "b")
    shutil.copytree(kept.folder.parent / "anncestry-remote", tmp_path / "anncestry-remote")
    b.dvc("pull", "--quiet", "results.dvc")
    for part, name in (("data", "made-again"), ("results", "new")):
        (b.folder / part).mkdir(exist_ok=True)
        (b.folder / part / name).touch()
    done = b.keep("--quick")
    assert "data.dvc is unchanged" in done.stderr
    assert b.git("show", "--name-only", "--format=").split() == ["results.dvc"]


def test_a_clone_with_pulled_results_verifies_them_and_says_why(kept, tmp_path):
    b = kept.clone(tmp_path / "b")
    shutil.copytree(kept.folder.parent / "anncestry-remote", tmp_path / "anncestry-remote")
    b.dvc("pull", "--quiet", "results.dvc")
    assert "all published numbers agree with the raw samples" in b.run("anncestry", "verify").stdout
    said = b.run("anncestry", "why", "--system", "blue-1.0", "--metric", "recall_by_id").stdout
    assert "✓ query record results/query/" in said and "✓ samples results/query/" in said
    assert "· truth record data/truth/" in said and "pull it (`dvc pull data.dvc`)" in said
    assert "✗" not in said


@pytest.mark.long
def test_results_of_two_branches_merge_cell_by_cell(mine):
    mine.git("checkout", "--quiet", "-b", "other")
    mine.bump("red-1.0", "1.1")
    mine.commit("red 1.1")
    mine.toy.snakemake()
    mine.keep()
    mine.git("checkout", "--quiet", "main")
    mine.dvc("checkout", "--quiet")
    mine.bump("red-1.0", "1.0")
    mine.bump("blue-1.0", "1.1")
    mine.commit("blue 1.1")
    mine.toy.snakemake()
    mine.keep()
    mine.git("merge", "--quiet", "other")
    mine.dvc("checkout", "--quiet")
    mine.toy.files["systems"]["red-1.0"]["version"] = "1.1"
    assert mine.toy.jobs() == {"table": 1, "report": 1, "all": 1}


def test_two_branches_that_changed_the_same_file_are_merged_as_the_docs_say(mine):
    results = mine.folder / "results"
    load, *_ = (results / "attempts").glob("*/*/*")
    before = len(Ledger(load).files())
    mine.git("checkout", "--quiet", "-b", "other")
    (results / "of-other").touch()
    Ledger(load).add("start", stage="session", queries=[])
    (results / "of-both").write_text("other")
    mine.keep("--quick")
    mine.git("checkout", "--quiet", "main")
    mine.dvc("checkout", "--quiet")
    (results / "of-main").touch()
    Ledger(load).add("start", stage="session", queries=[])
    (results / "of-both").write_text("main")
    mine.keep("--quick")
    assert mine.run("git", "merge", "other", check=False).returncode != 0
    mine.git("checkout", "--ours", "results.dvc")
    mine.dvc("checkout", "--quiet", "results.dvc")
    mine.dvc("get", "--quiet", ".", "results", "--rev", "other", "--out", "scratch/theirs")
    mine.run("cp", "-rn", "scratch/theirs/.", "results/")
    mine.dvc("add", "--quiet", "results")
    mine.git("add", "results.dvc")
    mine.git("commit", "--quiet", "--message", "merged")
    assert (results / "of-both").read_text() == "main"
    assert (results / "of-other").exists()
    assert (results / "of-main").exists()
    assert len(Ledger(load).files()) == before + 2, "what both branches tried on one load"
    assert mine.git("status", "--porcelain") == ""


# Comparing revisions


@pytest.fixture(scope="module")
def told_by_dvc(upgraded) -> dict[str, Any]:
    """DVC's own comparison of the metrics before and after, by file."""
    told: dict[str, Any] = json.loads(upgraded.dvc("metrics", "diff", "--json", "before"))
    return told


def compared(clone: Clone, *sides: str) -> dict[tuple[str, str, str], dict[str, Any]]:
    """The lines of a comparison by system, workload and metric."""
    clone.run("anncestry", "compare", *sides, "--out", "scratch/compared")
    lines = json.loads((clone.folder / "scratch" / "compared" / "comparison.json").read_text())["lines"]
    return {(line["system_a"], line["workload"], line["metric"]): line for line in lines if line["phase"] != "insert"}


def state(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("sides", [("before", "HEAD"), ("HEAD~2", "."), ("before",)])
def test_two_revisions_are_compared_and_the_checkout_stays_as_it_is(upgraded, told_by_dvc, sides):
    results, status = state(upgraded.folder / "results"), upgraded.git("status", "--porcelain")
    lines = compared(upgraded, *sides)
    p50 = lines["blue-1.0", "k5", "p50_ms"]
    assert p50["verdict"] in ("faster", "slower", "equivalent", "undetermined")
    assert p50["ratio"] == pytest.approx(p50["b"] / p50["a"])
    assert p50["low"] < p50["b"] - p50["a"] < p50["high"]
    number = told_by_dvc["results/metrics/default/blobs-l2/blue-1.0/standalone/k5.json"]["p50_ms"]
    assert (p50["a"], p50["b"]) == (number["old"], number["new"]), "the same numbers as DVC's"
    assert lines["blue-1.0", "", "load_s"]["verdict"] == "undetermined"
    assert lines["red-1.0", "k5", "p50_ms"]["verdict"] == "same record"
    assert (state(upgraded.folder / "results"), upgraded.git("status", "--porcelain")) == (results, status)


def test_a_clone_without_results_compares_what_the_remote_holds(upgraded, tmp_path):
    b = upgraded.clone(tmp_path / "b")
    shutil.copytree(upgraded.folder.parent / "anncestry-remote", tmp_path / "anncestry-remote")
    assert compared(b, "HEAD~2", "HEAD")["blue-1.0", "k5", "p50_ms"]["ratio"] > 0
    assert not (b.folder / "results").exists()
    assert not list(b.folder.rglob("*.samples.parquet")), "samples are not fetched"
    shutil.rmtree(tmp_path / "anncestry-remote")
    shutil.rmtree(b.folder / "scratch")
    shutil.rmtree(b.folder / ".dvc" / "tmp", ignore_errors=True)
    shutil.rmtree(b.folder / ".dvc" / "cache", ignore_errors=True)
    done = b.run("anncestry", "compare", "HEAD~2", "HEAD", check=False)
    assert done.returncode == 2
    assert "neither in DVC's cache nor on the remote" in done.stderr


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("before~1", "has no results; `anncestry keep`"),
        ("HEAD~99", "no system (known: blue-1.0, red-1.0); no experiment (with a table: default)"),
        ("HEAD~99", "no revision (no commit is called so; branches and tags: "),
        ("--output=x", "unrecognized arguments"),
    ],
)
def test_a_revision_that_is_none_or_has_no_results_is_said(upgraded, name, words):
    done = upgraded.run("anncestry", "compare", name, "HEAD", check=False)
    assert done.returncode == 2
    assert words in done.stderr


def test_a_tag_with_the_name_of_a_system_must_say_which_is_meant(mine):
    mine.git("tag", "red-1.0")
    done = mine.run("anncestry", "compare", "red-1.0", "blue-1.0", check=False)
    assert "'red-1.0' names a system and a git revision: say system:red-1.0 or revision:red-1.0" in done.stderr
    assert mine.run("anncestry", "compare", "system:red-1.0", "blue-1.0").returncode == 0


def test_recall_of_another_epoch_is_not_comparable_to_that_of_an_earlier_revision(mine):
    mine.toy.files["epochs"]["recall"]["epoch"] = 2
    mine.toy.save()
    mine.commit("another recall")
    mine.toy.snakemake()
    lines = compared(mine, "HEAD~1", ".")
    recall = lines["red-1.0", "k5", "recall_by_id"]
    assert (recall["verdict"], recall["reason"]) == ("not comparable", "other epoch of recall: 1 against 2")
    assert recall["a"] == recall["b"] == 1.0
    assert lines["red-1.0", "k5", "p50_ms"]["verdict"] == "same record"


def test_dvc_diffs_metrics_and_plots_cell_by_cell(upgraded, told_by_dvc):
    load, cell = "blobs-l2/blue-1.0/standalone.json", "blobs-l2/blue-1.0/standalone/k5.json"
    assert told_by_dvc.keys() == {f"results/metrics/default/{name}" for name in (load, cell)}, "only what changed"
    of_cell = told_by_dvc[f"results/metrics/default/{cell}"]
    assert of_cell.keys() >= {"p50_ms", "p95_ms", "qps"}
    assert of_cell["p50_ms"]["old"] != of_cell["p50_ms"]["new"]
    plots = json.loads(upgraded.dvc("plots", "diff", "--json", "before"))
    drawn = plots.get("data", plots)
    for kind in ("latency/default/blobs-l2/blue-1.0/standalone.csv", "latency/default/blobs-l2/red-1.0/standalone.csv"):
        (shown,) = (found for name, found in drawn.items() if kind in name)
        assert {revision for plot in shown for revision in plot["revisions"]} == {"before", "workspace"}


# Guards


@pytest.mark.long
def test_dvc_deletes_no_result_that_was_not_kept_unless_it_is_forced(mine):
    (mine.folder / "results" / "not-kept").touch()
    assert mine.run("dvc", "checkout", check=False).returncode != 0
    assert (mine.folder / "results" / "not-kept").exists()


def test_a_clone_that_forgot_to_pull_is_refused(kept, tmp_path):
    b = kept.clone(tmp_path / "b")
    shutil.copytree(kept.folder.parent / "anncestry-remote", tmp_path / "anncestry-remote")
    with pytest.raises(
        DataError, match=r"results\.dvc lists results that are missing here: run `dvc pull results\.dvc`"
    ):
        versioning.refuse_half_clone(b.folder)
    done = b.toy.snakemake("-n", check=False)
    assert done.returncode != 0
    assert "dvc pull results.dvc" in done.stdout + done.stderr


def test_a_clone_whose_remote_is_out_of_reach_runs_straight_away(kept, tmp_path):
    b = kept.clone(tmp_path / "b")
    assert b.toy.planned()["load"] == 2


@pytest.mark.parametrize(
    "config",
    ["[core]\n    analytics = false\n", "[core]\n    remote = gone\n", ""],
    ids=["no default remote", "a default remote without an entry", "an empty config"],
)
def test_a_clone_without_a_remote_runs_straight_away(kept, tmp_path, config):
    b = kept.clone(tmp_path / "b")
    (b.folder / ".dvc" / "config").write_text(config)
    versioning.refuse_half_clone(b.folder)


def test_a_remote_across_a_network_is_believed(kept, tmp_path):
    b = kept.clone(tmp_path / "b")
    b.dvc("remote", "add", "--quiet", "--local", "--default", "team", "s3://bucket/path")
    with pytest.raises(DataError, match="from remote team"):
        versioning.refuse_half_clone(b.folder)


def test_a_newcomer_without_any_results_runs_straight_away(tmp_path):
    clone = start(tmp_path / "checkout")
    assert clone.toy.planned()["load"] == 2


def test_a_pointer_in_conflict_is_refused_by_name(kept, tmp_path):
    b = kept.clone(tmp_path / "b")
    pointer = b.folder / "results.dvc"
    pointer.write_text("<<<<<<< HEAD\n" + pointer.read_text())
    with pytest.raises(DataError, match=r"results\.dvc: holds a merge conflict"):
        versioning.refuse_half_clone(b.folder)


# dvc status, dvc repro


def test_repro_verifies_and_then_has_nothing_to_do(mine):
    before = {path: path.stat().st_mtime_ns for path in (mine.folder / "results").rglob("*")}
    assert "all published numbers agree with the raw samples" in mine.dvc("repro")
    assert "up to date" in mine.dvc("repro")
    assert "up to date" in mine.dvc("status")
    assert {path: path.stat().st_mtime_ns for path in (mine.folder / "results").rglob("*")} == before


def test_repro_fails_where_a_number_was_changed(mine):
    victim = next((mine.folder / "results" / "query").rglob("*.json"))
    victim.write_text(victim.read_text().replace("p50_ms", "p50_ns"))
    done = mine.run("dvc", "repro", check=False)
    assert done.returncode != 0
    assert victim.name in done.stdout + done.stderr


@pytest.mark.long
def test_without_results_status_and_repro_say_so_and_measure_nothing(tmp_path):
    clone = start(tmp_path / "checkout")
    assert "results" in clone.dvc("status")
    done = clone.run("dvc", "repro", check=False)
    assert done.returncode != 0
    assert re.search(r"results.* does not exist|missing data", done.stdout + done.stderr)
    assert not (clone.folder / "results").exists()
    assert not (clone.folder / "scratch").exists()


@pytest.mark.long
def test_in_a_clone_that_forgot_to_pull_repro_changes_nothing(kept, tmp_path):
    b = kept.clone(tmp_path / "b")
    assert "deleted" in b.dvc("status")
    done = b.run("dvc", "repro", check=False)
    assert done.returncode != 0
    assert "results" in done.stderr
    assert b.git("status", "--porcelain") == ""
    assert not (b.folder / "results").exists()


# Remotes


def push_whole(mine: Clone) -> None:
    """Push until it succeeds, as a user would: a machine out of threads or space for a moment fails one push."""
    said = ""
    for _ in range(3):
        done = mine.run("dvc", "push", "--verbose", check=False)
        if done.returncode == 0:
            return
        said += done.stdout + done.stderr
    raise AssertionError(said)


def test_a_killed_push_leaves_the_remote_usable(mine, tmp_path):
    remote = mine.folder.parent / "anncestry-remote"
    shutil.rmtree(remote)
    push = subprocess.Popen(
        ["dvc", "push", "--quiet", "--jobs", "1"],
        cwd=mine.folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 600
        while not mine.objects() and push.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.001)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(push.pid, signal.SIGKILL)
        push.wait()
    push_whole(mine)
    b = mine.clone(mine.folder.parent / "b")
    b.dvc("pull", "--quiet")
    assert b.toy.planned() == {}
    assert b.run("anncestry", "verify").returncode == 0


@pytest.mark.long
def test_a_remote_in_an_s3_bucket_as_the_docs_set_it_up(mine, tmp_path):
    import boto3

    with s3_server(tmp_path / "moto.log") as address:
        boto3.client("s3", endpoint_url=address).create_bucket(Bucket="bench")
        mine.dvc("remote", "add", "--quiet", "--default", "team", "s3://bench/anncestry")
        mine.dvc("remote", "modify", "--quiet", "team", "endpointurl", address)
        mine.commit("a remote for the team")
        mine.keep("--quick", "--push")
        b = mine.clone(tmp_path / "b")
        done = b.toy.snakemake("-n", check=False)
        assert "from remote team" in done.stdout + done.stderr, done.stdout + done.stderr
        b.dvc("pull", "--quiet")
        assert b.toy.planned() == {}
        assert b.run("anncestry", "verify").returncode == 0


# What this repository ships


def test_dvc_calls_nobody(kept):
    config = (ROOT / ".dvc" / "config").read_text()
    assert "analytics = false" in config
    assert "check_update = false" in config
    assert not list((kept.folder / ".dvc" / "tmp").glob("updater*"))


def test_the_pipeline_never_produces_what_was_measured():
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    assert list(stages) == ["verify"]
    assert "outs" not in stages["verify"]


def test_a_damaged_result_of_another_experiment_is_not_kept_either(mine):
    head, pointer = mine.git("rev-parse", "HEAD"), (mine.folder / "results.dvc").read_text()
    mine.toy.files["config"]["matrix"][0]["systems"] = ["red-1.0"]
    mine.toy.save()
    mine.commit("one system less")
    mine.toy.snakemake()
    head = mine.git("rev-parse", "HEAD")
    victim = next((mine.folder / "results" / "query").glob("*/blue-1.0/**/*.samples.parquet"))
    victim.write_bytes(victim.read_bytes()[:-1] + b"?")
    done = mine.keep(check=False)
    assert done.returncode == 2
    assert f"{victim.name}: sha256" in done.stderr and "nothing is kept: `dvc checkout` with the path" in done.stderr
    assert mine.git("rev-parse", "HEAD") == head
    assert (mine.folder / "results.dvc").read_text() == pointer


def test_what_is_kept_stands_still_meanwhile(mine):
    with running.standing_still(mine.folder, "keep it"):
        done = mine.toy.snakemake(check=False)
        assert done.returncode != 0 and "is active here" in done.stdout + done.stderr
        said = "a run is at work in this folder: keep it once it has ended"
        with pytest.raises(DataError, match=said), running.standing_still(mine.folder, "keep it"):
            pass
    mine.toy.snakemake()


def test_a_job_goes_on_when_newer_results_are_pulled_meanwhile(kept, tmp_path, monkeypatch):
    b = kept.twin(tmp_path / "b" / "checkout")
    shutil.rmtree(b.folder / "results")
    shutil.rmtree(b.folder / ".dvc/cache", ignore_errors=True)
    choice = workflow.Choice(b.folder / "config", "default")
    with pytest.raises(DataError, match=r"results\.dvc lists results that are missing here"):
        workflow.resolve(choice, b.folder)
    monkeypatch.setenv(running.RUN, "1:1")
    workflow.resolve(choice, b.folder)
