"""Finding 5: a record or file that a power cut left empty or half is never believed, blocks nothing, is made again."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tests.toy
from anncestry import workflow
from anncestry.errors import Damaged
from anncestry.provenance import damage, platform, records
from tests.toy import Toy, parse_jobs

pytestmark = pytest.mark.faults

DATA = ("artifact", "download", "normalize", "truth")
PUBLISH = {"table": 1, "report": 1, "all": 1}


@pytest.fixture(scope="module")
def finished(finished_place):
    return finished_place


@pytest.fixture(scope="module")
def half_measured(finished, tmp_path_factory):
    """The same, but one cell's runs are measured and not yet put together."""
    toy = finished.copy(tmp_path_factory.mktemp("damaged") / "half", "data", "scratch", "results")
    anncestry(toy, "drop", "*/*/*/k5", "--yes")
    hold_sessions(toy)
    assert len(list(toy.folder.glob("scratch/measured/*/run-*/record.json"))) == 2
    return toy


def hold_sessions(toy: Toy) -> None:
    """As a run does that is killed when its sessions are over."""
    before = Path.cwd()
    os.chdir(toy.folder)
    try:
        _, plan = workflow.resolve(workflow.Choice(toy.folder / "config", "default"), Path())
    finally:
        os.chdir(before)
    for session in plan.sessions.values():
        done = anncestry(toy, "session", session.key, str(session.round), *(cell.query for cell in session.cells))
        assert done.returncode == 0, done.stderr


def anncestry(toy: Toy, *words: str) -> subprocess.CompletedProcess[str]:
    if words[0] in ("plan", "gc", "verify", "drop"):
        return tests.toy.anncestry(toy.folder, *words)
    return subprocess.run(  # what measures and publishes has a process of its own
        [sys.executable, "-m", "anncestry", *words],
        cwd=toy.folder,
        env={**toy.environment(), "ANNCESTRY_CONFIG": str(toy.folder / "config")},
        capture_output=True,
        text=True,
        check=False,
    )


def empty(path: Path) -> None:
    path.unlink()  # some are hard links
    path.touch()


def half(path: Path) -> None:
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[: len(content) // 2])


def zeros(path: Path) -> None:
    size = path.stat().st_size
    path.unlink()
    path.write_bytes(bytes(size))


CASES = {
    # What is damaged and how; what is not there besides; the jobs that make it again. Of those that the same jobs make
    # again one is made again, the others looked at by Snakemake: once they are set aside, what is missing is the same.
    "what a measurement needs": (
        {
            "scratch/artifact/*/record.json": empty,
            "data/download/*/record.json": zeros,
            "data/vectors/*/base.npy": half,
            "data/truth/*/record.json": half,
            "scratch/index/*/record.json": empty,
        },
        ["*/*/*/k5"],
        {**dict.fromkeys(DATA[:3], 1), "truth": 1, "load": 1, "session": 2, "query": 1, "recall": 1, **PUBLISH},
    ),
    "what nothing needs any more": ({"data/*/*/record.json": empty, "scratch/*/*/record.json": half}, [], {}),
    "a load that can be published again": ({"results/load/*/*/*.json": empty}, [], {"record": 1, "all": 1}),
    "a half file of such a load": ({"results/load/*/*/*.resources.parquet": half}, [], {"record": 1, "all": 1}),
    "a measurement": (
        {"results/query/*/*/*/k5@*[0-9a-f].json": empty}, [], {"session": 2, "query": 1, "recall": 1, **PUBLISH},
    ),
    "samples": (
        {"results/query/*/*/*/k5@*.samples.parquet": half}, [], {"session": 2, "query": 1, "recall": 1, **PUBLISH},
    ),
    "recall": ({"results/recall/*/*/*/k5@*.json": zeros}, [], {"recall": 1, **PUBLISH}),
    "a table's record": ({"results/table/*/record.json": empty}, [], {"table": 1, "all": 1}),
    "a table": ({"results/table/*/numbers.csv": half}, [], {"table": 1, "all": 1}),
    "a page": ({"results/report/*/index.html": empty}, [], {"report": 1, "all": 1}),
    "a page's record": ({"results/report/*/record.json": half}, [], {"report": 1, "all": 1}),
}  # fmt: skip
WHOLE = "data/vectors/*/base.npy"
"""What is made again after a stage has found it; of the others, only what would be made is looked at."""
TWINS = ("a half file of such a load", "samples", "a table's record", "a page's record")


@pytest.mark.parametrize("case", CASES)
def test_what_is_empty_or_half_is_set_aside_said_and_exactly_that_is_made_again(finished, tmp_path, case, capfd):
    toy = finished.copy(tmp_path / "toy", "data", "scratch", "results")
    patterns, dropped, jobs = CASES[case]
    if dropped:
        anncestry(toy, "drop", *dropped, "--yes")
    victims = [path for pattern in patterns for path in sorted(toy.folder.glob(pattern))]
    for pattern, spoil in patterns.items():
        for path in sorted(toy.folder.glob(pattern)):
            spoil(path)
    capfd.readouterr()
    if case in TWINS:
        looked = toy.snakemake("-n")
        said = looked.stdout + looked.stderr
        assert parse_jobs(said) == jobs
    else:
        assert toy.planned() == jobs
        said = capfd.readouterr().err
    for path in victims:
        assert str(path.relative_to(toy.folder)) in said, f"{path.name} is not named"
    assert said.count("set aside") >= len(victims)
    planned = anncestry(toy, "plan").stdout
    assert ("nothing to run" in planned) == (not jobs), planned
    listed = anncestry(toy, "gc", "--results").stdout
    assert "set aside, as it was damaged" in listed, listed
    if case in TWINS:
        return
    done = toy.snakemake()
    assert parse_jobs(done.stdout + done.stderr) == jobs
    assert toy.planned() == {}
    verified = anncestry(toy, "verify")
    assert verified.returncode == 0, verified.stderr


def test_a_load_that_is_lost_takes_what_was_measured_on_it_along(finished, tmp_path):
    """Its index is gone, too: what is loaded now is another build than the one that the cells were measured on."""
    toy = finished.copy(tmp_path / "toy", "data", "results")
    (load,) = toy.folder.glob("results/load/*/*/*.json")
    empty(load)
    assert toy.jobs() == {
        "artifact": 1, "load": 1, "record": 1, "session": 2, "query": 2, "recall": 2, **PUBLISH,
    }  # fmt: skip
    assert len(list(toy.folder.glob("results/query/*/*/*/*.json.damaged"))) == 2  # kept, under another name


@pytest.mark.parametrize("name", ["record.json", "samples.parquet"])
def test_a_half_run_that_was_not_published_yet_is_measured_again_and_no_other(half_measured, tmp_path, name):
    toy = half_measured.copy(tmp_path / "toy", "data", "scratch", "results")
    half(next(toy.folder.glob(f"scratch/measured/*/run-1/{name}")))
    jobs = {"session": 1, "query": 1, "recall": 1, **PUBLISH}
    if name != "record.json":  # whatever of a run is half, the same jobs make it again
        assert toy.planned() == jobs
        return
    made = toy.snakemake()
    assert parse_jobs(made.stdout + made.stderr) == jobs
    done = anncestry(toy, "verify")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("victim", "jobs"),
    [
        (WHOLE, {"normalize": 1, "recall": 1, **PUBLISH}),
        ("data/truth/*/ids.npy", {"truth": 1, "recall": 1, **PUBLISH}),
        ("results/query/*/*/*/k5@*.samples.parquet", {"session": 2, "query": 1, "recall": 1, **PUBLISH}),
        ("results/table/*/numbers.parquet", PUBLISH),
    ],
)
def test_a_file_of_the_right_length_and_another_content_is_found_by_the_stage_that_reads_it(
    finished, tmp_path, victim, jobs
):
    toy = finished.copy(tmp_path / "toy", "data", "scratch", "results")
    (recall,) = toy.folder.glob("results/recall/*/*/*/k5@*.json")
    wanted = json.loads(recall.read_text())["inputs"]["truth"]["path"].split("/")[2]
    (file,) = [path for path in toy.folder.glob(victim) if "truth" not in victim or wanted in str(path)]
    zeros(file)
    made_from_it = ["report"] if "table" in victim else ["table", "report"]
    if made_from_it[1:]:
        recall.unlink()
    for folder in made_from_it:
        shutil.rmtree(toy.folder / "results" / folder)
    refused = toy.snakemake(check=False)
    assert refused.returncode and "Traceback" not in refused.stderr
    assert f"{file.relative_to(toy.folder)}: sha256" in refused.stderr and "set aside" in refused.stderr, refused.stderr
    assert toy.planned() == jobs
    if victim != WHOLE:
        return
    made = toy.snakemake()
    assert parse_jobs(made.stdout + made.stderr) == jobs
    done = anncestry(toy, "verify")
    assert done.returncode == 0, done.stderr


def test_a_list_of_a_session_that_is_half_costs_another_attempt_and_no_help(half_measured, tmp_path):
    toy = half_measured.copy(tmp_path / "toy", "data", "scratch", "results")
    shutil.rmtree(next(toy.folder.glob("scratch/measured/*")))
    for folder in toy.folder.glob("scratch/session/*"):
        shutil.rmtree(folder)
    hold_sessions(toy)
    shutil.rmtree(next(toy.folder.glob("scratch/measured/*")))
    for file in toy.folder.glob("scratch/session/*/session.json"):
        half(file)
    refused = toy.snakemake(check=False)
    assert refused.returncode and "session.json: not valid JSON" in refused.stderr, refused.stderr
    toy.snakemake()
    assert toy.planned() == {}


def test_a_record_of_a_newer_version_is_left_where_it_is(finished, tmp_path, monkeypatch):
    """It is whole, though this program can't read it: measuring anew in its place would be a loss."""
    toy = finished.copy(tmp_path / "toy", "data", "scratch", "results")
    monkeypatch.chdir(toy.folder)
    (path,) = Path().glob("results/query/*/*/*/k5@*[0-9a-f].json")
    newer = records.seal({**json.loads(path.read_text()), "schema_version": 99})
    path.write_text(json.dumps(newer))
    assert damage.mend(workflow.expand(workflow.Choice(Path("config"), "default"))) == []
    assert path.exists()


def test_a_run_at_work_is_not_meddled_with(finished, tmp_path, monkeypatch, capfd):
    """Who only looks while a run draws its page sees a folder without its record, which is no damage."""
    toy = finished.copy(tmp_path / "toy", "data", "scratch", "results")
    monkeypatch.chdir(toy.folder)
    (page,) = Path().glob("results/report/*/record.json")
    page.unlink()
    choice = workflow.Choice(Path("config"), "default")
    monkeypatch.setattr("anncestry.provenance.running.at_work", lambda here: True)
    workflow.resolve(choice, Path(), mend=True)
    assert page.parent.exists()
    monkeypatch.undo()
    monkeypatch.chdir(toy.folder)
    workflow.resolve(choice, Path(), mend=True)
    assert not page.parent.exists() and "set aside" in capfd.readouterr().err


def test_a_damaged_output_names_the_record_that_seals_it(tmp_path):
    (tmp_path / "record.json").write_text("{}")
    (tmp_path / "x").write_text("x")
    body = {"outputs": {"x": {"path": "x", "sha256": "0" * 64, "bytes": 1}}}
    with pytest.raises(Damaged, match=r"x: sha256 .* differs") as caught:
        records.verify_outputs(tmp_path / "record.json", body)
    assert caught.value.record == tmp_path / "record.json"


def test_a_cell_that_is_there_is_measured_again_by_a_command_that_leaves_nothing_stale(finished, tmp_path):
    """It used to advise to delete the record, after which recall and table were stale."""
    toy = finished.copy(tmp_path / "toy", "data", "scratch", "results")
    (query,) = toy.folder.glob("results/query/*/*/*/k5@*[0-9a-f].json")
    key = query.stem.rpartition("@")[2]
    said = anncestry(toy, "query", key).stderr
    advice = re.search(r"to measure it again, run `anncestry (drop \S+ --yes)` first", said)
    assert advice and anncestry(toy, *advice[1].split()).returncode == 0, said
    assert toy.planned() == {"session": 2, "query": 1, "recall": 1, **PUBLISH}


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"platform": "x", "facts": {}}', '{"platform": "default", "facts": 1}']
)
def test_facts_of_the_machine_that_are_damaged_are_set_aside_and_kept_anew(tmp_path, content, capfd):
    """They would refuse every measurement."""
    kept = tmp_path / "default.json"
    kept.write_text(content)
    found = platform.check("default", {}, tmp_path)
    assert f"{kept}: " in capfd.readouterr().err and (tmp_path / "default.json.damaged").read_text() == content
    assert platform.kept_facts(kept, "default") == {name: found[name] for name in platform.IDENTITY}


@pytest.mark.parametrize("spoil", [empty, half, zeros])
def test_a_ceiling_that_is_damaged_is_set_aside_with_the_measurements_that_quote_it(finished, tmp_path, spoil):
    """Measured anew it is another number than they quote."""
    toy = finished.copy(tmp_path / "toy", "data", "scratch", "results")
    (ceiling,) = toy.folder.glob("results/ceiling/*.json")
    spoil(ceiling)
    assert toy.planned() == {"session": 2, "query": 2, "recall": 2, **PUBLISH}
    assert not ceiling.exists() and ceiling.with_name(f"{ceiling.name}.damaged").exists()
