"""A page while the rest is measured: what it shows is true, says what it rests on, and never becomes a result."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from anncestry import workflow
from anncestry.cells import plan
from anncestry.commands import preview
from anncestry.datasets import truth
from anncestry.provenance import records
from anncestry.report.model import numbers
from tests.builders.bench import reseal
from tests.toy import Toy


@pytest.fixture
def two(bench):
    """Both systems on one dataset, each with the workload k5 of two runs, loaded."""

    def change(files):
        files["config"]["matrix"][0].update(
            datasets=["blobs-l2"], systems=["red-1.0", "blue-1.0"], topologies=["standalone"], workloads=["k5"]
        )

    made = bench(change=change)
    made.prepare()
    cell = made.matrix.cells[0]
    spec = made.matrix.spec(cell.truth, "truth")
    truth.run(spec, Path(cell.vectors_path).parent, Path(cell.truth_path).parent, cell.truth)
    return made


def publish_load(cell):
    records.promote(Path(cell.index_path), Path(cell.load_path), stage="load", key=cell.load)


def shown(matrix):
    frame = numbers.read(Path(matrix.so_far_path).parent)
    return {
        (row["system"], row["metric"]): row
        for row in numbers.rows_of(frame)
        if row["metric"] in ("qps", "recall_by_id", "load_s")
    }


def test_before_a_cell_has_a_run_the_page_says_that_nothing_has_numbers(two):
    assert preview.draw(two.matrix) == "None of 2 cells has numbers yet."
    assert "None of 2 cells has numbers yet." in Path(two.matrix.so_far_path).read_text()


def test_a_cell_with_one_of_two_runs_shows_that_run_and_results_stay_empty(two):
    red = two.matrix.cells[0]
    two.load(red)
    publish_load(red)
    two.query(red)
    run = two.record(red)
    before = sorted(Path("results").rglob("*"))
    assert preview.draw(two.matrix) == "So far: 1 of 2 cells have numbers, of round 1 of 2."
    assert sorted(Path("results").rglob("*")) == before
    assert Path(red.run_path(0)).exists() and json.loads(Path(red.run_path(0)).read_text()) == run
    page = Path(two.matrix.so_far_path).read_text()
    assert (
        "So far: 1 of 2 cells have numbers, of round 1 of 2." in page
        and "snakemake --cores 8 all --logger anncestry" in page
    )
    assert "as CSV" in page and "as SVG" not in page
    assert not (Path(two.matrix.so_far_path).parent / "charts").exists(), "measurements wait for this page"
    found = shown(two.matrix)
    assert found["red-1.0", "qps"]["value"] > 0 and found["red-1.0", "recall_by_id"]["value"] == 1.0
    assert found["blue-1.0", "qps"]["value"] is None and "not measured" in found["blue-1.0", "qps"]["reason"]
    two.query(red, runs=2)
    assert preview.draw(two.matrix) == "So far: 1 of 2 cells have numbers, of round 2 of 2."
    assert shown(two.matrix)["red-1.0", "qps"]["value"] != found["red-1.0", "qps"]["value"]


def test_the_smallest_dataset_comes_first_and_pages_follow_its_first_round_and_each_but_the_last(
    tmp_path,
):
    toy = Toy.make(tmp_path)
    toy.files["datasets"]["blobs-cosine"]["rows"] += 1
    toy.files["datasets"]["blobs-cosine"]["sources"][0]["samples"] += 1
    toy.block.update(topologies=["standalone"], workloads=["k5", "k7"])
    toy.save()
    matrix = workflow.expand(workflow.Choice(toy.folder / "config", "default"))
    made = plan.make(matrix)
    assert made.first_part == "blobs-l2"
    after = [made.sessions[key] for key in made.shown_after]
    assert [each.round for each in after] == [0, 0]
    small, last = sorted(after, key=lambda each: not made.is_first(each))
    assert small.cells[0].dataset == "blobs-l2" and last.cells[0].dataset == "blobs-cosine"
    for each in made.sessions.values():
        ends = small if made.is_first(each) else last
        assert each.round > 0 or each.place <= ends.place


def test_make_all_shows_a_page_before_the_last_round_and_the_whole_page_replaces_it(tmp_path):
    toy = Toy.make(tmp_path)
    toy.one_cell()
    done = toy.snakemake("--logger=anncestry", "all")
    said = done.stdout + done.stderr
    assert "a page of what is measured so far: reports/default/so-far/index.html" in said
    assert "So far: 1 of 1 cells have numbers, of round 1 of 2." in "".join(
        log.read_text() for log in (tmp_path / "logs/session").iterdir()
    )
    assert (tmp_path / "reports/default/index.html").exists() and not (tmp_path / "reports/default/so-far").exists()
    page = "page: reports/default/index.html"
    assert said.count(page) == 1
    (log,) = re.findall("the whole log of this run: (.+)", said)
    assert log.startswith(".snakemake/log/") and "Measuring run 2 of 1 cell" in (tmp_path / log).read_text()
    again = toy.snakemake("--logger=anncestry", "all")
    said = again.stdout + again.stderr
    assert "everything is up to date" in said and said.count(page) == 1, "a run with nothing to do says it, too"


def test_without_the_view_no_page_is_drawn_before_the_last_round(finished_place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    nothing_here = workflow.expand(workflow.Choice(finished_place.folder / "config", "default"))
    assert plan.make(nothing_here).shown_after, "with the view there were one"
    said = finished_place.log("session")
    assert "blobs-l2" in said and "So far" not in said


def test_a_page_of_what_there_is_so_far_removes_no_run_of_another_build(two, capsys):
    red = two.matrix.cells[0]
    two.load(red)
    publish_load(red)
    two.query(red, runs=2)
    run = Path(red.run_path(0))
    record = records.read_json(run)
    record["inputs"]["index"] = {**record["inputs"]["index"], "sha256": "0" * 64}
    reseal(run, **record)
    assert preview.draw(two.matrix) == "None of 2 cells has numbers yet."
    assert "not shown: " in capsys.readouterr().err
    assert run.exists() and Path(red.run_path(1)).exists()
