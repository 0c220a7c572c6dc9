"""The results that ship with the repository: pulled offline, they are what this code measures, and verify."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, suppress
from functools import cache
from pathlib import Path

import pytest

from anncestry.cells.plan import command_of
from anncestry.provenance import explain
from anncestry.workflow import Choice, expand, resolve
from tests.toy import ROOT, counted, parse_jobs

PUBLISH = {"table", "report", "all"}
MEASURED = runpy.run_path(str(ROOT / "tools" / "pages" / "measured.py"))
BUILD = runpy.run_path(str(ROOT / "tools" / "pages" / "build.py"))
COPYING = """
import shutil, sys
folders = dict(line.split(": ") for line in open(sys.argv[-1]) if line.startswith(("docs_dir", "site_dir")))
shutil.copytree(folders["docs_dir"].strip(), folders["site_dir"].strip())
"""
"""Makes the pages' folder that of the site, in place of mkdocs, which `make docs` installs and runs."""


def cut_off(folder: Path) -> dict[str, str]:
    """An environment without a proxy or a home of the user's: a program asks nobody but the repository's own folder."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])  # casestudies/ is this checkout's, too
    environment = {**os.environ, "PYTHONPATH": paths, "HOME": str(folder), "DVC_NO_ANALYTICS": "1"}
    told = [name for name in environment if name.lower().endswith("_proxy") or name.startswith("ANNCESTRY_")]
    return {name: value for name, value in environment.items() if name not in told}


@cache
def apart() -> tuple[str, ...]:
    """What to type before a command so that it has no network at all, not even this machine's own address.

    Nothing where the machine refuses such a namespace; then `cut_off` alone is left.
    """
    for words in (("unshare", "--net"), ("unshare", "--user", "--map-current-user", "--net")):
        with suppress(FileNotFoundError):
            if subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0:
                return words
    return ()


def call(folder: Path, *arguments: str, status: int = 0) -> str:
    """Run a module of Python without a network; what it said."""
    done = subprocess.run(
        [*apart(), sys.executable, "-m", *arguments], cwd=folder, env=cut_off(folder), capture_output=True, text=True,
        check=False, timeout=2300,
    )  # fmt: skip
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def typed(*programs: str) -> Iterator[str]:
    """What the page tells a reader without make to type, of these programs, in its order."""
    text = (ROOT / "evidence" / "README.md").read_text()
    return (line for line in re.findall(r"^ {4}(\S.*)$", text, re.MULTILINE) if line.startswith(programs))


def type_in(folder: Path, command: str, status: int = 0) -> str:
    """Type a command of the page in `folder`, which is outside of the checkout."""
    words = shlex.split(command.replace("../Snakefile", str(ROOT / "Snakefile")))
    return call(folder, *words, *(["--nocolor"] if words[0] == "snakemake" else []), status=status)


def drawn(folder: Path, experiment: str) -> dict[str, int]:
    """Jobs that the workflow ran."""
    asked = ("-s", str(ROOT / "Snakefile"), "--cores", "2", "--nocolor", "all")
    return parse_jobs(call(folder, "snakemake", *asked, "--config", f"experiment={experiment}"))


def cloned(clone: Path) -> Path:
    """A clone, of which nothing is pulled."""
    (clone / ".dvc").mkdir(parents=True)
    shutil.copyfile(ROOT / ".dvc" / "config", clone / ".dvc" / "config")
    shutil.copyfile(ROOT / ".dvcignore", clone / ".dvcignore")
    made = shutil.ignore_patterns("results", "data", "reports", "scratch", "logs", ".snakemake")
    shutil.copytree(ROOT / "evidence", clone / "evidence", ignore=made)
    subprocess.run(["git", "init", "-q", clone], check=True)
    return clone


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone's evidence, pulled."""
    clone = cloned(tmp_path_factory.mktemp("here") / "clone")
    (pull,) = typed("dvc")
    type_in(clone, pull)
    return clone / "evidence"


def test_they_take_a_clone_at_most_25_mb() -> None:
    files = [path for path in (ROOT / "evidence" / "store").rglob("*") if path.is_file()]
    assert 1_000_000 < sum(path.stat().st_size for path in files) <= 25_000_000, "docs/auditing.md says so"


def test_before_they_are_pulled_nothing_is_measured_but_one_sentence_says_how_to_pull_them(tmp_path: Path) -> None:
    evidence = cloned(tmp_path / "clone") / "evidence"
    (draw,) = typed("snakemake")
    said = type_in(evidence, draw, status=1)
    (told,) = re.findall(r"results\.dvc lists .*", said)
    (pull,) = re.findall(
        r"lists results that are missing here: run `(dvc pull .*)` \(from remote evidence\) first", told
    )
    assert not (evidence / "scratch").exists() and not (evidence / "results").exists()
    type_in(evidence, pull)
    assert parse_jobs(type_in(evidence, draw)).keys() <= PUBLISH


def test_make_evidence_renew_may_measure_all_of_them_again(tmp_path: Path) -> None:
    clone = cloned(tmp_path / "clone")
    told = subprocess.run(
        ["make", "-n", "evidence-renew", "ALL=1"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    begin = told.stdout[told.stdout.index("[ -d evidence/results ]") :].partition("\nfor ")[0]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(["sh", "-c", begin], cwd=clone, check=True, env={**cut_off(clone), "PATH": path})
    with chdir(clone / "evidence"):
        matrix, made = resolve(Choice(ROOT / "config", "smoke"), Path())
        assert counted(explain.jobs(matrix, made))["load"] == 2


@pytest.mark.parametrize("experiment", MEASURED["EXPERIMENTS"])
def test_the_shipped_results_are_what_this_code_would_measure(evidence: Path, experiment: str) -> None:
    with chdir(evidence):
        matrix, made = resolve(Choice(ROOT / "config", experiment), Path(), mend=True)
        jobs = counted(explain.jobs(matrix, made))
    assert jobs.keys() <= PUBLISH, "measure them again: make evidence-renew"


def test_the_page_of_smoke_is_made_and_asked_as_its_readme_says_and_who_forgets_to_draw_it_is_told_how(
    evidence: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, verify, why, summary, _ = typed("snakemake", "anncestry")
    for asking in (verify, why, summary):
        said = type_in(evidence, asking, status=2)
        told = "not drawn here yet: `snakemake --cores 8 all --logger anncestry --config experiment=smoke` draws"
        assert told in said, asking
    monkeypatch.chdir(ROOT / "evidence")
    of_smoke = expand(Choice(ROOT / "config", "smoke"))
    told = "snakemake -s ../Snakefile --cores 8 all --logger anncestry --config experiment=smoke"
    assert command_of(of_smoke) == told
    assert draw == told.replace("--cores 8", "--cores 2").replace(" --logger anncestry", ""), "the page says it, too"
    assert parse_jobs(type_in(evidence, draw)).keys() <= PUBLISH
    assert "all published numbers agree with the raw samples" in type_in(evidence, verify)
    assert "number n" in type_in(evidence, why) and "milvus-2.3.5" in type_in(evidence, summary)


def test_they_verify_and_lead_to_their_samples_and_a_changed_byte_is_told(evidence: Path) -> None:
    pages = {page: page.read_text() for page in MEASURED["pages"]()}
    for experiment in MEASURED["EXPERIMENTS"]:
        page = evidence / "reports" / experiment / "index.html"
        if not page.exists():  # that of smoke was drawn and verified above, as its readme says
            assert drawn(evidence, experiment).keys() <= PUBLISH
            verified = call(evidence, "anncestry", "--experiment", experiment, "verify")
            assert "all published numbers agree with the raw samples" in verified
        assert 100_000 < page.stat().st_size <= 1_500_000, "small enough to be sent by mail (docs/reports.md)"
        of_experiment = "\n".join(pages.values()).partition(f"`anncestry --experiment {experiment} why`")[2]
        (number, *_) = re.findall(r"`(n[0-9a-f]{10})` \|$", of_experiment, re.MULTILINE)
        assert f"number {number}" in call(evidence, "anncestry", "--experiment", experiment, "why", number)
    assert ROOT / "README.md" in pages, "the first numbers that a reader sees are among those that ship"
    for path, text in pages.items():
        assert MEASURED["written"](text, evidence) == text, f"{path}: with all three drawn: {MEASURED['COMMAND']}"
    verify = ("anncestry", "--experiment", "smoke", "verify", "--quick")
    (why,) = (line for line in typed("anncestry") if " why " in line)
    assert ".samples.parquet" in type_in(evidence, why)
    (samples,) = evidence.glob("results/query/*/milvus-2.3.5/standalone/smoke-k10@*.samples.parquet")
    body = bytearray(samples.read_bytes())
    body[len(body) // 2] ^= 1
    samples.chmod(0o644)
    samples.write_bytes(body)
    assert samples.name in call(evidence, *verify, status=2)


def test_the_site_of_the_documentation_has_the_report_of_the_shipped_smoke_as_its_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = BUILD["site"].__globals__["_run"]

    def planned(folder: Path, *command: str, **own: str) -> None:
        """Pull as it does; in place of drawing the page, let Snakemake plan it."""
        drawing = command[0] == "snakemake"
        run(folder, *command, *(["--dry-run"] if drawing else []), **own)
        if drawing:
            report = folder / "reports" / "smoke"
            report.mkdir(parents=True)
            for name in ("index.html", "numbers.csv"):
                (report / name).write_text(f"{name} of the shipped results")

    monkeypatch.setitem(BUILD["site"].__globals__, "_run", planned)
    (tmp_path / "mkdocs.py").write_text(COPYING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    site = BUILD["site"](tmp_path / "site")
    assert list((tmp_path / "site" / "example" / "results").glob("query/*/milvus-2.3.5/standalone/smoke-k10@*.json"))
    assert "  - Example: example/index.html\n" in (tmp_path / "site" / "mkdocs.yml").read_text()
    assert {path.name: path.read_text() for path in (site / "example").iterdir()} == {
        name: f"{name} of the shipped results" for name in ("index.html", "numbers.csv")
    }
