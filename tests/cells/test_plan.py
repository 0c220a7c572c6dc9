"""`anncestry plan` names the jobs that Snakemake's dry run counts, says what changed, and what its time is based on.

A finished tree is one whose files are there: empty where only their being there matters, short records where specs do.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from anncestry import cli, workflow
from anncestry.cells.matrix import Matrix
from anncestry.cells.stage import key_of
from anncestry.errors import ServerError
from anncestry.provenance import estimate, explain, records
from anncestry.provenance.attempts import Ledger
from tests.builders.configs import expand
from tests.builders.finished import finish, publish, touch, write
from tests.toy import Toy, counted, stub


@pytest.fixture
def toy(tmp_path, monkeypatch):
    toy = Toy.make(tmp_path)
    monkeypatch.chdir(toy.folder)
    return toy


@pytest.fixture
def finished(toy):
    finish(expand(toy))
    return toy


def remove(*patterns: str) -> None:
    for pattern in patterns:
        found = [path for path in Path().glob(pattern) if path.is_file()]
        assert found, pattern
        for path in found:
            path.unlink()


def planned(toy: Toy, mend: bool = True) -> tuple[Matrix, list[explain.Job], list[explain.Group]]:
    toy.save()
    matrix, plan = workflow.resolve(workflow.Choice(toy.folder / "config", "default"), Path(), mend)
    running = explain.jobs(matrix, plan)
    return matrix, running, explain.explain(matrix, running, explain.Earlier())


def reasons(toy: Toy, mend: bool = True) -> dict[str, dict[str, int]]:
    return {group.reason: dict(group.rules) for group in planned(toy, mend)[2]}


# The same jobs as Snakemake


def nothing(toy: Toy) -> None:
    pass


def version(toy: Toy) -> None:
    toy.files["systems"]["blue-1.0"]["version"] = "1.1"


def setting(toy: Toy) -> None:
    toy.files["systems"]["blue-1.0"]["settings"] = {"lie": "no"}


def digest(toy: Toy) -> None:
    toy.files["datasets"]["blobs-l2"]["content"] = {"base": "0" * 64, "queries": "1" * 64}


def more_workloads(toy: Toy) -> None:
    toy.block["workloads"].append("k7")


def fewer_workloads(toy: Toy) -> None:
    toy.block["workloads"].pop()


def query_epoch(toy: Toy) -> None:
    toy.files["epochs"]["query"]["epoch"] = 2


def engine_epoch(toy: Toy) -> None:
    toy.files["systems"]["blue-1.0"]["engine"] = "tests:flat"
    toy.files["epochs"]["engines"] = {"tests.flat": {"epoch": 2}}


def feature_epoch(toy: Toy) -> None:
    toy.files["workloads"]["k5"] |= {"start": "cold", "warmup": 0}
    toy.save()
    finish(expand(toy))
    toy.files["epochs"]["features"] = {"cold": {"epoch": 2}, "stream": {"epoch": 3}}


def recall_epoch(toy: Toy) -> None:
    toy.files["epochs"]["recall"]["epoch"] = 2


def title(toy: Toy) -> None:
    toy.files["config"]["title"] = "Another"


def results_only(toy: Toy) -> None:
    remove("data/**/*", "scratch/**/*")


def results_only_then_version(toy: Toy) -> None:
    results_only(toy)
    version(toy)


def no_scratch_then_more_workloads(toy: Toy) -> None:
    remove("scratch/**/*")
    more_workloads(toy)


def deleted_cell(toy: Toy) -> None:
    remove("results/query/blobs-l2/red-1.0/standalone/k5@*")


def deleted_samples(toy: Toy) -> None:
    remove("results/query/blobs-l2/red-1.0/standalone/k5@*.samples.parquet")


def deleted_samples_beside_a_deleted_cell(toy: Toy) -> None:
    deleted_samples(toy)
    remove("results/query/blobs-l2/red-1.0/standalone/k5-category@*.json")


def deleted_samples_and_recall(toy: Toy) -> None:
    deleted_samples(toy)
    remove("results/recall/blobs-l2/red-1.0/standalone/k5@*")


def deleted_resources(toy: Toy) -> None:
    remove("results/**/*.resources.parquet")


def deleted_load_record(toy: Toy) -> None:
    remove("results/load/blobs-l2/red-1.0/standalone@*")


def deleted_recall_without_data(toy: Toy) -> None:
    remove("data/**/*", "results/recall/blobs-l2/red-1.0/standalone/k5@*")


def deleted_samples_and_a_recall_of_another_cell_without_vectors(toy: Toy) -> None:
    remove("data/vectors/*/*", "data/truth/*/*")
    deleted_samples(toy)
    remove("results/recall/blobs-l2/blue-1.0/standalone/k5@*")


def deleted_table(toy: Toy) -> None:
    remove("results/table/*/*")


def by_need(toy: Toy) -> None:
    del toy.files["workloads"]["k5"]["runs"]


def a_session_that_failed(toy: Toy) -> None:
    deleted_cell(toy)
    _, plan = workflow.resolve(workflow.Choice(toy.folder / "config", "default"), Path())
    for session in plan.sessions.values():
        touch(session.failed_path, session.path)


def a_session_that_is_not_published_yet(toy: Toy) -> None:
    deleted_cell(toy)
    _, plan = workflow.resolve(workflow.Choice(toy.folder / "config", "default"), Path())
    for session in plan.sessions.values():
        touch(session.path)


def a_run_that_is_not_published_yet(toy: Toy) -> None:
    matrix = expand(toy)
    cell = matrix.cells[0]
    remove(cell.query_path, cell.samples_path)
    stub(Path(cell.run_path(1)), "run", cell.query)


def all_runs_that_are_not_published_yet(toy: Toy) -> None:
    a_run_that_is_not_published_yet(toy)
    cell = expand(toy).cells[0]
    stub(Path(cell.run_path(0)), "run", cell.query)


def mark(path: str) -> Path:
    """Where Snakemake marks an output as incomplete: a job makes it, or made it when its run was killed."""
    name = base64.urlsafe_b64encode(path.encode()).decode()
    parts = [name[start : start + 100] for start in range(0, len(name), 100)]
    return Path(".snakemake/incomplete", *(f"@{part}" for part in parts[:-1]), parts[-1])


def killed_before_snakemake_took_note(toy: Toy) -> None:
    cell = expand(toy).cells[0]
    for path in (cell.query_path, cell.samples_path, cell.load_path):
        name = base64.urlsafe_b64encode(path.encode()).decode()
        touch(f".snakemake/incomplete/{name}")


def an_upgrade_whose_older_load_is_gone(toy):
    toy.files["systems"]["red-1.1"] = {**toy.files["systems"]["red-1.0"], "version": "1.1"}
    toy.files["systems"]["up"] = {"of": "red-1.1", "load": {"upgrade_from": "red-1.0"}}
    toy.block["systems"] = ["up"]
    toy.save()
    matrix = expand(toy)
    finish(matrix)
    for cell in matrix.loaded:
        if cell.system == "red-1.0":
            Path(cell.load_path).unlink(missing_ok=True)


@pytest.mark.parametrize(
    "happened",
    [
        nothing, version, setting, digest, more_workloads, fewer_workloads, query_epoch, recall_epoch, engine_epoch,
        feature_epoch, title, results_only, results_only_then_version, no_scratch_then_more_workloads, deleted_cell,
        deleted_samples,
        deleted_samples_beside_a_deleted_cell, deleted_samples_and_recall, deleted_resources, deleted_load_record,
        deleted_recall_without_data, deleted_samples_and_a_recall_of_another_cell_without_vectors, deleted_table,
        by_need, a_session_that_failed, a_session_that_is_not_published_yet, a_run_that_is_not_published_yet,
        all_runs_that_are_not_published_yet, killed_before_snakemake_took_note,
        an_upgrade_whose_older_load_is_gone,
    ],
)  # fmt: skip
def test_it_counts_the_jobs_that_snakemake_would_run(finished, happened):
    happened(finished)
    assert counted(planned(finished)[1]) == finished.jobs()


def test_a_mark_of_incomplete_files_goes_where_the_record_is_whole_and_stays_elsewhere(finished):
    whole, other = expand(finished).cells[:2]
    Path(other.query_path).unlink()
    marks = [mark(path) for path in (whole.query_path, whole.samples_path, other.query_path, other.samples_path)]
    touch(*map(str, marks))
    planned(finished)
    assert [path.exists() for path in marks] == [False, False, True, True]


def test_without_any_result_it_counts_what_snakemake_counts_and_all_is_new(toy):
    _, running, groups = planned(toy)
    assert counted(running) == toy.jobs()
    assert {group.reason.split(":")[0] for group in groups} == {"new"}


# Why


def test_a_version_bump_is_one_reason_named_by_the_part_and_both_values(finished):
    version(finished)
    found = reasons(finished)
    assert found.pop("system.version: 1.0 → 1.1") == {
        "artifact": 1, "load": 4, "record": 4, "session": 8, "query": 8, "recall": 8,
    }  # fmt: skip
    assert found == {"other records than in the last table: 20 added, 20 gone": {"table": 1, "report": 1}}


def test_an_added_setting_is_named(finished):
    setting(finished)
    assert "system.settings.lie: none → no" in reasons(finished)


def test_another_dataset_digest_is_named_in_all_that_follows_from_it(finished):
    digest(finished)
    (reason, rules), *_ = reasons(finished).items()
    assert "dataset.content.base: none → 000000000000…" in reason
    assert "key" not in reason
    assert set(rules) == {"download", "normalize", "truth", "load", "record", "session", "query", "recall"}


def test_a_bumped_epoch_is_named_with_its_stage(finished):
    finished.files["epochs"]["load"]["epoch"] = 2
    (reason, rules), *_ = reasons(finished).items()
    assert reason == "epoch of load: 1 → 2"
    assert rules["recall"] == 16


def test_a_bumped_epoch_of_an_engine_is_named_with_the_engine(finished):
    finished.files["epochs"]["engines"] = {"tests.flat": {"epoch": 2}}
    (reason, rules), *_ = reasons(finished).items()
    assert reason == "epoch of engine tests.flat: 1 → 2"
    assert rules["load"] == 8 and rules["recall"] == 16


def test_a_bumped_epoch_of_a_feature_is_named_with_the_feature_and_measures_what_has_it(finished):
    feature_epoch(finished)
    _, running, groups = planned(finished)
    assert {cell.workload for job in running for cell in job.cells} == {"k5"}
    assert any(group.reason == "epoch of feature cold: 1 → 2" for group in groups)


def test_two_changes_are_both_named(finished):
    version(finished)
    query_epoch(finished)
    found = reasons(finished)
    assert found["epoch of query: 1 → 2; system.version: 1.0 → 1.1"] == {"session": 8, "query": 8, "recall": 8}
    assert found["epoch of query: 1 → 2"] == {"session": 8, "query": 8, "recall": 8}


def test_an_added_workload_is_new_and_nothing_else_is(finished):
    more_workloads(finished)
    assert reasons(finished)[explain.NEW] == {"session": 8, "query": 8, "recall": 8}


def test_an_added_filter_is_not_taken_for_a_change_of_another_truth(finished):
    finished.files["workloads"]["k7"]["filter"] = {"field": "category", "in": [2]}
    more_workloads(finished)
    assert reasons(finished)[explain.NEW]["truth"] == 2


def test_what_was_deleted_is_not_called_new_or_changed(finished):
    deleted_cell(finished)
    assert reasons(finished) == {explain.GONE: {"session": 2, "query": 1}}


def test_what_a_clone_lacks_is_told_from_what_changed(finished):
    results_only_then_version(finished)
    found = reasons(finished)
    assert found[explain.GONE] == {"download": 2, "normalize": 2, "truth": 4}
    assert found["system.version: 1.0 → 1.1"] == {
        "artifact": 1, "load": 4, "record": 4, "session": 8, "query": 8, "recall": 8,
    }  # fmt: skip


def test_a_failed_session_is_named_as_the_reason(finished):
    a_session_that_failed(finished)
    assert reasons(finished) == {explain.TRIED: {"session": 2, "query": 1}}


def test_what_was_tried_before_says_how_often_and_how_it_ended(finished):
    deleted_cell(finished)
    matrix = expand(finished)
    gone = next(cell for cell in matrix.cells if not Path(cell.query_path).exists())
    with (
        pytest.raises(ServerError),
        Ledger.of(matrix.spec(gone.query, "query"), gone.load).attempt(stage="session", queries=[gone.query]),
    ):
        raise ServerError("out of memory")
    assert list(reasons(finished)) == ["tried before: 1 of 1 starts died; the last: out of memory"]


def test_of_several_earlier_records_the_one_with_the_fewest_differences_is_compared(finished):
    finished.one_cell()
    far, near = expand(finished), None
    finished.files["config"]["index"]["M"] = 8
    finished.files["config"]["index"]["ef_construction"] = 50
    far = expand(finished)
    write(far.cells[0].load_path, far, far.cells[0].load, created="2027-01-01T00:00:00+00:00")
    finished.files["config"]["index"]["M"] = 16
    finished.files["config"]["index"]["ef_construction"] = 101
    near = expand(finished)
    assert near.cells[0].load != far.cells[0].load
    assert reasons(finished)["index.ef_construction: 100 → 101"]["record"] == 1


def test_of_equally_different_earlier_records_the_newest_is_compared(finished):
    finished.one_cell()
    for value, created in ((50, "2026-03-01"), (60, "2026-04-01"), (70, "2026-02-01")):
        finished.files["config"]["index"]["ef_construction"] = value
        other = expand(finished)
        write(other.cells[0].load_path, other, other.cells[0].load, created=created + "T00:00:00+00:00")
    finished.files["config"]["index"]["ef_construction"] = 101
    assert reasons(finished)["index.ef_construction: 60 → 101"]["record"] == 1


def test_an_upstream_record_that_is_gone_is_named_by_its_key(finished):
    before = expand(finished).cells[0].vectors
    remove("data/vectors/blobs-l2@*/record.json")
    digest(finished)
    assert any(f"normalize key: {before} → " in reason for reason in reasons(finished))


def test_a_record_that_can_not_be_read_explains_nothing_and_breaks_nothing(finished):
    version(finished)
    for path in Path("results/load").rglob("*.json"):
        path.write_text("{")
    assert reasons(finished, mend=False)[explain.NEW] == {"load": 4, "record": 4}


def test_other_code_of_the_table_is_told_from_other_records(finished):
    for path in list(Path("results/table").iterdir()):
        path.rename(path.with_name("default@0123456789ab"))
    remove("results/report/*/*")
    assert reasons(finished)["the code of the table changed, or what is listed and how arms are compared"]["table"] == 1


def test_another_title_draws_the_page_only_and_is_said(finished):
    title(finished)
    assert reasons(finished) == {
        "the title of the page changed, how it decides or what it draws, or its code or packages": {"report": 1}
    }


def test_a_thousand_cells_with_one_reason_are_one_paragraph(finished):
    query_epoch(finished)
    _, _, groups = planned(finished)
    shown = explain.lines(groups)
    assert shown[:2] == ["  epoch of query: 1 → 2", "      48 jobs: session 16, query 16, recall 16"]
    assert len(shown) == 5


def test_the_record_of_a_download_is_compared_by_what_its_key_depends_on(finished):
    matrix = expand(finished)
    cell = matrix.cells[0]
    spec = {**matrix.specs[cell.download], "metric": "l2"}
    write(cell.download_path, matrix, cell.download, spec=spec)
    assert key_of(explain.Earlier().spec("download", cell.download) or {}) == cell.download


# How long it takes


def estimated(toy: Toy) -> dict[str, estimate.Estimate]:
    matrix, running, _ = planned(toy)
    return {each.rule: each for each in estimate.estimate(matrix, running, explain.Earlier())}


def test_a_load_takes_as_long_as_its_earlier_record_says_with_the_server_around_it(finished):
    version(finished)
    load = estimated(finished)["load"]
    assert load.seconds == pytest.approx(4 * 110)
    assert load.bases == {"its earlier record": 4}
    assert load.low_s < load.seconds < load.high_s


def test_a_session_takes_its_queries_and_its_server(finished):
    version(finished)
    session = estimated(finished)["session"]
    # 2 sessions a load, each a run of 2 cells: 40 queries at 50 ms a run, 6 s to come up, 14 - 6 - 2 × 2 s around them.
    assert session.seconds == pytest.approx(4 * 2 * (2 * 40 * 0.05 + 6 + 4))
    assert session.bases == {"its earlier record": 8}


def test_a_timed_workload_takes_the_time_that_is_asked(finished):
    finished.files["workloads"]["k7"] |= {"duration_s": 30, "runs": 3}
    more_workloads(finished)
    session = estimated(finished)["session"]
    assert session.seconds == pytest.approx(8 * 3 * (30 + 6 + 2))


def test_a_search_for_a_rate_takes_as_many_probes_as_it_may(finished):
    finished.files["workloads"]["k7"] |= {"duration_s": 3, "runs": 1, "loop": "open", "slo": {"p99_ms": 10}}
    more_workloads(finished)
    session = estimated(finished)["session"]
    assert session.high_s >= 8 * 17 * 3 and session.seconds > 8 * 3 * 2


def test_another_dataset_of_the_same_system_is_scaled_and_said(finished):
    finished.files["datasets"]["large"] = {**finished.files["datasets"]["blobs-l2"], "rows": 540 * 100, "dim": 32}
    finished.block["datasets"].append("large")
    found = estimated(finished)
    load = found["load"]
    assert list(load.bases) in (["the record of blobs-l2, scaled by rows × dim"],
                                ["the record of blobs-cosine, scaled by rows × dim"])  # fmt: skip
    # Between 100 s and 400 times that, and 10 s around it.
    assert load.seconds == pytest.approx(4 * (100 * 20 + 10))
    assert load.low_s <= 4 * 110 < 4 * (100 * 400) <= load.high_s
    assert all(basis.endswith("scaled by dim") for basis in found["session"].bases)


def test_without_earlier_records_it_says_so(toy):
    matrix, running, _ = planned(toy)
    found = estimate.estimate(matrix, running, explain.Earlier())
    assert all(estimate.NOTHING in basis for each in found for basis in each.bases)
    assert f"{len(running)} of them with {estimate.NOTHING}" in estimate.headline(found)


def test_a_new_workload_goes_by_the_one_that_is_most_like_it(finished):
    for path in Path("results/query").rglob("k5-category@*.json"):
        body = json.loads(path.read_text())
        body["summary"]["mean_ms"]["value"] = 500.0
        path.write_text(json.dumps(records.seal(body)))
    finished.files["workloads"]["k7"] = {**finished.files["workloads"]["k5-category"], "k": 7}
    more_workloads(finished)
    session = estimated(finished)["session"]
    assert session.bases == {"the record of k5-category": 16}
    assert session.seconds == pytest.approx(8 * 2 * (40 * 0.5 + 6 + 2))


def test_jobs_that_are_not_measured_go_by_what_snakemake_noted_of_earlier_ones(finished):
    for number, seconds in enumerate((3.0, 4.0, 9.0)):
        name = base64.urlsafe_b64encode(f"results/recall/a/b/c/d@{number:012d}.json".encode()).decode()
        touch(f".snakemake/metadata/{name}", ".snakemake/metadata/not a note")
        Path(".snakemake/metadata", name).write_text(json.dumps({"starttime": 100.0, "endtime": 100.0 + seconds}))
    recall_epoch(finished)
    recall = estimated(finished)["recall"]
    assert recall.seconds == pytest.approx(16 * 4)
    assert recall.bases == {"median of 3 earlier jobs here": 16}


def test_a_system_of_another_engine_is_nothing_to_go_by(finished):
    for path in Path("results").rglob("*.json"):
        if path.parts[1] in ("load", "query"):
            body = json.loads(path.read_text())
            name = body["spec"]["system"]["name"]
            body["spec"]["system"] |= {"name": f"other-{name}", "engine": "other"}
            moved = Path(str(path).replace(name, f"other-{name}"))
            moved.parent.mkdir(parents=True, exist_ok=True)
            moved.write_text(json.dumps(body))
            path.unlink()
    version(finished)
    found = estimated(finished)
    for rule in ("load", "session"):
        assert all(estimate.NOTHING in basis for basis in found[rule].bases)


# Its own cost


def many(toy: Toy, number: int) -> None:
    """A matrix of `number` cells: as many workloads on the 8 loads."""
    each = number // 8
    toy.files["workloads"] = {
        f"w{i}": {"k": 1 + i % 100, "clients": 1, "runs": 1, "queries": 1 + i // 100, "warmup": 0} for i in range(each)
    }
    toy.block["workloads"] = list(toy.files["workloads"])


def test_five_thousand_present_cells_are_planned_without_reading_one(toy, monkeypatch):
    many(toy, 5000)
    matrix = expand(toy)
    for cell in matrix.cells:
        touch(cell.load_path, cell.query_path, cell.samples_path, cell.recall_path)
    publish(matrix)
    monkeypatch.setattr(explain, "peek", lambda *_: pytest.fail("a record was read"))
    assert planned(toy, mend=False)[1] == []


def test_a_thousand_missing_cells_are_planned_with_one_reason(toy):
    many(toy, 1000)
    finish(expand(toy))
    query_epoch(toy)
    matrix, running, groups = planned(toy)
    estimate.estimate(matrix, running, explain.Earlier())
    assert counted(running)["query"] == 1000
    assert groups[0].reason == "epoch of query: 1 → 2"


# The command


def said(capsys, *arguments: str) -> tuple[int, str]:
    status = cli.main([*arguments])
    shown = capsys.readouterr()
    return status, shown.out + shown.err


@pytest.fixture
def command(finished, monkeypatch):
    monkeypatch.setenv("ANNCESTRY_CONFIG", str(finished.folder / "config"))
    monkeypatch.delenv("ANNCESTRY_EXPERIMENT", raising=False)
    return finished


def test_the_command_says_how_many_jobs_how_long_and_why(command, capsys):
    version(command)
    command.save()
    status, text = said(capsys, "plan")
    assert status == 0
    assert text.startswith("35 jobs would run: about ")
    assert (
        "  system.version: 1.0 → 1.1\n      33 jobs: artifact 1, load 4, record 4, session 8, query 8, recall 8\n"
        in text
    )
    assert text.endswith("\nthis was a dry run; to start it: snakemake --cores 8 all --logger anncestry\n")


def test_the_command_says_that_nothing_would_run_and_changes_no_file(command, capsys):
    def state() -> set[tuple[str, int]]:
        return {(str(path), path.stat().st_mtime_ns) for path in Path().rglob("*")}

    before = state()
    assert said(capsys, "plan") == (0, "nothing to run: everything is up to date\n")
    assert state() == before
