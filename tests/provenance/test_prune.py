"""`anncestry drop` removes a cell wherever it shows, `anncestry gc` what nothing needs, and neither anything else."""

from __future__ import annotations

import copy
import json
import os
import re
from pathlib import Path

import pytest
import yaml

from anncestry import cli, workflow
from anncestry.cells import plan
from anncestry.cells.matrix import Cell, Matrix
from anncestry.cells.stage import STAGES
from anncestry.errors import DataError, UserError
from anncestry.provenance import explain, prune, records
from anncestry.provenance.attempts import Ledger
from tests.builders.configs import expand
from tests.builders.finished import finish, publish, query_body, touch, write
from tests.toy import Toy, counted

PATTERN = "blobs-l2/red-1.0/standalone/k5"


@pytest.fixture
def toy(tmp_path, monkeypatch):
    toy = Toy.make(tmp_path / "tree")
    monkeypatch.chdir(toy.folder)
    matrix = expand(toy)
    finish(matrix)
    for cell in matrix.cells:
        touch(str(Path(cell.index_path).parent / "data" / "segment"))
    return toy


def files() -> set[str]:
    return {str(path) for path in Path().rglob("*") if path.is_file() or path.is_symlink()}


def swept(toy: Toy, *wanted: str, load: bool = False) -> set[str]:
    """Drop for real; returns what is gone."""
    before = files()
    prune.remove(prune.drop(expand(toy), wanted, load))
    return before - files()


def cell_of(toy: Toy, pattern: str = PATTERN) -> Cell:
    return prune.choose(expand(toy), [pattern])[0]


def jobs(toy: Toy) -> dict[str, int]:
    matrix = expand(toy)
    return counted(explain.jobs(matrix, plan.make(matrix)))


def collected(toy: Toy, results: bool = False) -> prune.Sweep:
    toy.save()
    folder = toy.folder / "config"
    matrices = [workflow.expand(workflow.Choice(folder, name)) for name in prune.experiments(folder)]
    return prune.collect([(matrix, plan.make(matrix)) for matrix in matrices], results)


def paths(sweep: prune.Sweep) -> set[str]:
    return {str(item.path) for item in sweep.remove}


# Dropping


def test_a_dropped_cell_is_gone_with_its_samples_and_all_that_shows_it_and_nothing_else(toy):
    cell, matrix = cell_of(toy), expand(toy)
    gone = swept(toy, PATTERN)
    shown = {path for path in gone if path.startswith(("results/table/", "results/report/"))}
    assert gone - shown == {
        cell.query_path,
        cell.samples_path,
        cell.samples_path.replace(".samples.", ".resources."),
        cell.recall_path,
    }
    assert {matrix.table_path, matrix.report_path} <= shown


def test_a_dropped_cell_is_measured_anew_by_the_next_run_and_snakemake_agrees(toy):
    swept(toy, PATTERN)
    assert jobs(toy) == toy.jobs() == {"session": 2, "query": 1, "recall": 1, "table": 1, "report": 1, "all": 1}


def test_a_key_names_a_cell_as_well_as_its_names_do(toy):
    assert prune.choose(expand(toy), [cell_of(toy).query]) == prune.choose(expand(toy), [PATTERN])


@pytest.mark.parametrize(
    ("pattern", "number"),
    [
        ("*/red-1.0/*/*", 8),
        ("blobs-[lx]2/*/*/*", 8),
        ("*/*/*/k5", 8),
        ("*/blue-?.0/cluster-*/k5-*", 2),
        ("*/*/*/*", 16),
    ],
)
def test_wildcards_choose_as_a_shell_would(toy, pattern, number):
    assert len(prune.choose(expand(toy), [pattern])) == number


@pytest.mark.parametrize("wrong", ["0123456789ab", "*/red-2.0/*/*", "red-1.0", "*", "../../*/*"])
def test_what_names_no_cell_is_refused(toy, wrong):
    matrix = expand(toy)
    with pytest.raises(UserError, match=re.escape(wrong)):
        prune.choose(matrix, [PATTERN, wrong])


def test_the_key_of_another_stage_is_no_cell(toy):
    matrix, load = expand(toy), cell_of(toy).load
    with pytest.raises(UserError, match=load):
        prune.choose(matrix, [load])


def test_a_load_is_dropped_with_every_cell_that_was_measured_on_it(toy):
    swept(toy, PATTERN, load=True)
    assert jobs(toy) == toy.jobs() == {
        "load": 1, "record": 1, "session": 2, "query": 2, "recall": 2, "table": 1, "report": 1, "all": 1,
    }  # fmt: skip


def test_a_load_is_dropped_with_the_cells_of_another_experiment_that_was_measured_on_it(toy):
    matrix = expand(toy)
    other = copy.deepcopy(toy)
    other.block["workloads"].append("k7")
    theirs = expand(other)
    cell = prune.choose(theirs, [PATTERN.replace("k5", "k7")])[0]
    assert cell.query not in matrix.specs
    write(cell.query_path, theirs, cell.query, **query_body(cell))
    write(cell.recall_path, theirs, cell.recall)
    gone = swept(toy, PATTERN, load=True)
    assert {cell.query_path, cell.recall_path} <= gone


def test_recall_of_an_earlier_epoch_goes_with_the_measurement_that_it_scores(toy):
    old = cell_of(toy).recall_path
    toy.files["epochs"]["recall"]["epoch"] = 2
    assert cell_of(toy).recall_path != old
    assert old in swept(toy, PATTERN)


def test_tables_and_pages_of_every_experiment_and_key_go_if_they_show_the_cell(toy):
    matrix, cell = expand(toy), cell_of(toy)
    for folder in ("results/table/old@0123456789ab", "results/report/old@0123456789ab", "reports/default"):
        touch(f"{folder}/index.html")
        Path(folder, "numbers.csv").write_text(f"record,key\n{cell.query_path},{cell.query}\n")
    elsewhere = next(other for other in matrix.cells if other != cell)
    touch("results/table/other@0123456789ab/numbers.csv", "reports/README.md")
    Path("results/table/other@0123456789ab/numbers.csv").write_text(f"key\n{elsewhere.query}\n")
    swept(toy, PATTERN)
    assert [path.name for path in Path("results/table").iterdir()] == ["other@0123456789ab"]
    assert not list(Path("results/report").iterdir())
    assert [path.name for path in Path("reports").iterdir()] == ["README.md"], "it is git's, and no page"


def test_a_table_with_nothing_but_the_load_goes_with_the_load_only(toy):
    folder = Path("results/table/other@0123456789ab")
    touch(str(folder / "numbers.csv"))
    (folder / "numbers.csv").write_text(f"key\n{cell_of(toy).load}\n")
    swept(toy, PATTERN)
    assert folder.exists()
    swept(toy, PATTERN, load=True)
    assert not folder.exists()


def test_a_page_whose_cells_are_unknown_is_left_alone_and_named(toy):
    touch("results/report/old@0123456789ab/index.html", "results/table/mine/numbers.csv")
    sweep = prune.drop(expand(toy), [PATTERN])
    prune.remove(sweep)
    assert {str(path) for path, _ in sweep.strange} == {"results/report/old@0123456789ab", "results/table/mine"}
    assert Path("results/report/old@0123456789ab/index.html").exists()


def test_what_a_session_measured_but_did_not_publish_is_not_published_after_a_drop(toy):
    cell = cell_of(toy)
    touch(f"scratch/session/0123456789ab/{cell.query}/record.json", "scratch/session/111111111111/session.json")
    Path("scratch/session/111111111111/session.json").write_text(json.dumps({"cells": {cell.query: "ok"}}))
    touch("scratch/session/222222222222/333333333333/record.json")
    touch(cell.run_path(0), "scratch/measured/333333333333/run-0/record.json")
    swept(toy, PATTERN)
    assert [path.name for path in Path("scratch/session").iterdir()] == ["222222222222"]
    assert [path.name for path in Path("scratch/measured").iterdir()] == ["333333333333"]


def test_finished_runs_of_an_old_key_are_garbage_and_those_of_a_present_one_are_not(toy):
    touch(cell_of(toy).run_path(0), "scratch/measured/0123456789ab/run-0/record.json")
    assert paths(collected(toy)) == {"scratch/measured/0123456789ab"}


def test_what_was_measured_and_waits_for_being_published_goes_with_its_cell(toy):
    cell = cell_of(toy)
    touch(cell.measured_path, "scratch/measured/333333333333/record.json")
    swept(toy, PATTERN)
    assert [path.name for path in Path("scratch/measured").iterdir()] == ["333333333333"]
    assert paths(collected(toy)) == {"scratch/measured/333333333333"}


def test_parts_of_a_truth_are_garbage_when_it_is_whole_or_of_an_old_key_and_not_before(toy):
    truth = Path(cell_of(toy).truth_path)
    parts = Path("scratch/truth") / truth.parent.name
    touch(str(parts / "part-1-of-2.npz"), "scratch/truth/blobs-l2@0123456789ab/part-1-of-2.npz")
    sweep = collected(toy)
    assert (paths(sweep), sweep.strange) == ({str(parts), "scratch/truth/blobs-l2@0123456789ab"}, [])
    truth.unlink()
    assert str(parts) not in paths(collected(toy))


def test_results_of_a_revision_that_were_laid_out_are_garbage_and_metrics_are_not(toy):
    touch("scratch/revision/0123/results/load/x.json", "results/metrics/default/x.json", "results/plots/qps/x.csv")
    sweep = collected(toy, results=True)
    assert (paths(sweep), sweep.strange) == ({"scratch/revision/0123"}, [])


def test_a_cell_with_a_corrupt_record_can_be_dropped(toy):
    cell = cell_of(toy)
    Path(cell.query_path).write_text("{")
    Path(cell.recall_path).write_text("")
    assert {cell.query_path, cell.recall_path} <= swept(toy, PATTERN)


def test_listing_removes_nothing(toy):
    before = files()
    sweep = prune.drop(expand(toy), ["*/*/*/*"], with_load=True)
    assert len(sweep.remove) > 16 and prune.lines(sweep) and prune.total(sweep)
    collected(toy, results=True)
    assert files() == before


def test_nothing_is_removed_while_snakemake_runs_here(toy):
    touch(".snakemake/locks/0.input.lock")
    before = files()
    with pytest.raises(DataError, match="a run is at work in this folder: remove these files, which it"):
        swept(toy, PATTERN)
    assert files() == before


def test_folders_that_are_empty_afterwards_go_and_those_of_the_stages_stay(toy):
    swept(toy, "*/*/*/*")
    assert not list(Path("results/query").iterdir())
    assert Path("results/recall").is_dir()


# Links


def test_files_behind_a_link_out_of_the_tree_are_named_and_stay(toy, tmp_path):
    outside = tmp_path / "outside"
    Path("results").rename(outside)
    Path("results").symlink_to(outside)
    before = {path for path in outside.rglob("*") if path.is_file()}
    sweep = prune.drop(expand(toy), [PATTERN])
    prune.remove(sweep)
    assert not sweep.remove
    assert any("behind a link" in why for _, why in sweep.strange)
    assert {path for path in outside.rglob("*") if path.is_file()} == before


def test_garbage_behind_a_link_out_of_the_tree_stays(toy, tmp_path):
    outside = tmp_path / "outside"
    (outside / "444444444444").mkdir(parents=True)
    Path("scratch/index").rename(tmp_path / "was")
    Path("scratch/index").symlink_to(outside)
    sweep = collected(toy)
    prune.remove(sweep)
    assert (Path("scratch/index"), "lies outside of this folder, behind a link") in sweep.strange
    assert (outside / "444444444444").is_dir()


def test_a_file_that_is_a_link_goes_and_what_it_leads_to_stays(toy, tmp_path):
    cell, cached = cell_of(toy), tmp_path / "cached.parquet"
    Path(cell.samples_path).rename(cached)
    Path(cell.samples_path).symlink_to(cached)
    assert cell.samples_path in swept(toy, PATTERN)
    assert cached.exists()


def test_a_folder_that_is_a_link_goes_and_what_it_leads_to_stays(toy, tmp_path):
    index = Path(cell_of(toy).index_path).parent
    index.rename(tmp_path / "elsewhere")
    index.symlink_to(tmp_path / "elsewhere")
    swept(toy, PATTERN, load=True)
    assert not os.path.lexists(index)
    assert (tmp_path / "elsewhere" / "record.json").exists()


def test_a_link_inside_of_a_folder_that_goes_is_not_followed(toy, tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    (Path(cell_of(toy).index_path).parent / "data" / "link").symlink_to(tmp_path / "precious")
    swept(toy, PATTERN, load=True)
    assert (tmp_path / "precious" / "file").exists()


# Garbage


def test_a_tree_that_is_all_needed_has_no_garbage(toy):
    sweep = collected(toy, results=True)
    assert not sweep.remove and not sweep.keep and not sweep.strange


def bump(toy: Toy) -> tuple[Matrix, Matrix]:
    """The matrices before and after an upgrade of one system and another content of one dataset, both measured."""
    before = expand(toy)
    toy.files["systems"]["blue-1.0"]["version"] = "1.1"
    toy.files["datasets"]["blobs-l2"]["content"] = {"base": "0" * 64, "queries": "1" * 64}
    after = expand(toy)
    finish(after)
    return before, after


def test_after_an_upgrade_the_old_keys_are_garbage_scratch_first_and_results_stay(toy):
    before, after = bump(toy)
    sweep = collected(toy)
    old = [cell for cell in before.cells if cell.query not in after.specs]
    expected = {
        str(Path(path).parent)
        for cell in old
        for key, path in (
            (cell.load, cell.index_path),
            (cell.artifact, cell.artifact_path),
            (cell.truth, cell.truth_path),
            (cell.vectors, cell.vectors_path),
            (cell.download, cell.download_path),
        )
        if key not in after.specs
    }
    assert paths(sweep) == expected
    tops = [item.path.parts[0] for item in sweep.remove]
    assert tops == sorted(tops, reverse=True) and set(tops) == {"scratch", "data"}
    assert len(sweep.keep) == len(old) * (3 + 1) + 6 * 2 + 2


def test_results_are_garbage_only_on_request_and_what_is_needed_stays(toy):
    _before, after = bump(toy)
    prune.remove(collected(toy, results=True))
    assert jobs(toy) == {}
    assert {path.stem.split("@")[1] for path in Path("results/query").rglob("*.json")} == {c.query for c in after.cells}
    again = collected(toy, results=True)
    assert not again.remove


def test_the_attempts_at_a_load_that_is_gone_are_named_and_stay(toy):
    before, after = bump(toy)
    old = next(cell for cell in before.cells if cell.load not in after.specs)
    ledgers = [Ledger(Path(STAGES["attempts"].path(cell))) for cell in (old, after.cells[0])]
    for ledger in ledgers:
        ledger.add("start", stage="load")
    assert collected(toy).strange == [], "its record is kept"
    prune.remove(collected(toy, results=True))
    (named,) = collected(toy, results=True).strange
    assert named == (ledgers[0].path, "attempts at a load that no experiment has, and of which no record is left")
    assert all(ledger.files() for ledger in ledgers)


def test_what_another_experiment_needs_is_no_garbage(toy):
    (toy.folder / "config" / "experiments").mkdir()
    old = yaml.safe_dump({"matrix": copy.deepcopy(toy.files["config"]["matrix"])})
    (toy.folder / "config" / "experiments" / "all.yaml").write_text(old)
    toy.one_cell()
    publish(expand(toy))
    sweep = collected(toy)
    assert not sweep.remove
    assert {item.path.parts[1] for item in collected(toy, results=True).remove} <= {"table", "report"}


def test_sessions_that_are_still_to_be_published_stay_with_the_marks_of_failed_attempts(toy):
    Path(cell_of(toy).query_path).unlink()
    first, _ = plan.make(expand(toy)).sessions.values()
    touch(first.failed_path)
    second, _ = plan.make(expand(toy)).sessions.values()
    assert second.key != first.key
    touch(second.path, "scratch/session/0123456789ab/session.json")
    assert paths(collected(toy)) == {"scratch/session/0123456789ab"}


def test_an_index_of_an_interrupted_load_is_garbage_though_it_has_no_record(toy):
    touch("scratch/index/0123456789ab/data/segment")
    assert paths(collected(toy)) == {"scratch/index/0123456789ab"}


FOREIGN = [
    "scratch/notes.txt",
    "scratch/index/notes.txt",
    "scratch/session/mine/file",
    "data/mine/file",
    "data/vectors/mine/record.json",
    "data/vectors/blobs-l2@0123456789ab/base.npy",
    "data/truth/blobs-l2@0123456789ab/record.json",
    "results/mine.csv",
    "results/load/blobs-l2/red-1.0/notes.txt",
    "results/query/blobs-l2/red-1.0/standalone/k5@0123456789ab.samples.parquet",
    "results/recall/blobs-l2/red-1.0/standalone/k5@0123456789ab.json",
    "results/table/default@0123456789ab/other.csv",
    "results/report/mine/numbers.csv",
]


@pytest.mark.parametrize("path", FOREIGN)
def test_what_is_not_ours_is_named_and_left_alone(toy, path):
    touch(path)
    sweep = collected(toy, results=True)
    prune.remove(sweep)
    assert not sweep.remove
    assert [named for named, _ in sweep.strange if Path(path).is_relative_to(named)], sweep.strange
    assert Path(path).exists()


def test_a_config_that_is_not_valid_removes_nothing(toy):
    bump(toy)
    (toy.folder / "config" / "experiments").mkdir()
    (toy.folder / "config" / "experiments" / "broken.yaml").write_text("matrix: 7\n")
    with pytest.raises(UserError, match="broken"):
        collected(toy)


def test_sizes_are_those_on_disk_in_units_of_people(toy):
    target = Path("scratch/index/0123456789ab/data/segment")
    touch(str(target))
    target.write_bytes(os.urandom(3 << 20))
    (item,) = collected(toy).remove
    assert 3 << 20 <= item.bytes < 4 << 20
    assert any(line.strip().startswith("3.") and "MiB" in line for line in prune.lines(collected(toy)))


# The commands


@pytest.fixture
def say(toy, monkeypatch, capsys):
    """Runs a command on the toy; returns its exit status and what it said."""
    monkeypatch.setenv("ANNCESTRY_CONFIG", str(toy.folder / "config"))
    monkeypatch.delenv("ANNCESTRY_EXPERIMENT", raising=False)

    def run(*arguments: str) -> tuple[int, str]:
        toy.save()
        status = cli.main([*arguments])
        shown = capsys.readouterr()
        return status, shown.out + shown.err

    return run


def test_drop_without_yes_lists_says_so_and_removes_nothing(toy, say):
    before = files()
    status, text = say("drop", PATTERN)
    assert status == 0
    assert cell_of(toy).query_path in text
    assert "nothing removed; --yes removes " in text
    assert files() == before


def test_drop_with_yes_removes_what_it_listed(toy, say):
    say("drop", cell_of(toy).query, "--yes")
    assert jobs(toy)["query"] == 1
    assert say("drop", cell_of(toy).query, "--yes") == (0, "nothing to remove\n")


def test_drop_of_no_cell_is_an_error_that_a_user_can_mend(say):
    status, text = say("drop", "red", "--yes")
    assert status == 2
    assert "DATASET/SYSTEM/TOPOLOGY/WORKLOAD" in text


def test_gc_removes_only_with_yes_and_results_only_on_request(toy, say):
    bump(toy)
    before = files()
    assert "kept: " in say("gc")[1]
    assert files() == before
    assert say("gc", "--keep-results", "--yes")[0] == 0
    gone = before - files()
    assert gone and not [path for path in gone if path.startswith("results/")]
    assert say("gc", "--results", "--yes")[0] == 0
    assert [path for path in before - files() if path.startswith("results/")]
    assert jobs(toy) == {}


def test_a_dropped_load_takes_what_another_experiment_upgraded_from_it(toy):
    toy.files["systems"]["red-1.1"] = {**toy.files["systems"]["red-1.0"], "version": "1.1"}
    toy.files["systems"]["up"] = {"of": "red-1.1", "load": {"upgrade_from": "red-1.0"}}
    block = {**toy.block, "datasets": ["blobs-l2"], "topologies": ["standalone"], "systems": ["up"]}
    (toy.folder / "config" / "experiments").mkdir()
    (toy.folder / "config" / "experiments" / "other.yaml").write_text(yaml.safe_dump({"matrix": [block]}))
    other = expand(toy, "other")
    finish(other)
    of_up = {cell.load_path for cell in other.cells} | {cell.query_path for cell in other.cells}
    of_up |= {cell.recall_path for cell in other.cells} | {other.table_path}
    assert all(Path(path).exists() for path in of_up)
    told = prune.drop(expand(toy), ["blobs-l2/red-1.0/standalone/*"], True).drops
    assert {STAGES["attempts"].path(cell) for cell in other.cells} <= set(map(str, told)), "their ledgers say so, too"
    gone = swept(toy, "blobs-l2/red-1.0/standalone/*", load=True)
    assert of_up <= gone
    assert all(not Path(cell.index_path).parent.exists() for cell in other.cells)


def test_a_page_of_what_is_measured_so_far_goes_with_a_cell_that_it_shows(toy):
    cell = cell_of(toy)
    here = Path("reports/default/so-far")
    here.mkdir(parents=True)
    (here / "numbers.csv").write_text(f"record,key\n{cell.query_path},{cell.query}\n")
    prune.remove(prune.drop(expand(toy), [PATTERN]))
    assert not here.exists()


def test_a_folder_that_is_removed_only_in_part_is_no_finished_stage(toy, monkeypatch):
    index = Path(cell_of(toy).index_path)

    def killed(path):
        raise KeyboardInterrupt

    monkeypatch.setattr("shutil.rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        records.clear(index.parent)
    assert not index.exists() and index.parent.exists()


def test_json_says_removed_of_what_was_removed(toy, monkeypatch, capsys):
    monkeypatch.setenv("ANNCESTRY_CONFIG", str(toy.folder / "config"))
    monkeypatch.setattr("anncestry.provenance.running.at_work", lambda here: True)
    assert cli.main(["drop", PATTERN, "--yes", "--json"]) == 2
    assert capsys.readouterr().out == ""
    monkeypatch.setattr("anncestry.provenance.running.at_work", lambda here: False)
    assert cli.main(["drop", PATTERN, "--yes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["removed"] is True


def test_snakemake_may_not_make_finished_results_again(toy):
    before = files()
    for forced in (["--forceall"], ["--forcerun", "query"], ["--rerun-triggers", "mtime", "code", "--printshellcmds"]):
        done = toy.snakemake(*forced, check=False)
        assert done.returncode and "would remove finished" in done.stdout + done.stderr
    assert {path for path in before - files() if not path.startswith(".snakemake")} == set()
