"""What the report promises: every number has an ancestry, and what has none is not a number."""

from __future__ import annotations

import base64
import csv
import hashlib
import html
import json
import math
import re
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from anncestry.errors import DataError
from anncestry.metrics.decide import Outcome, Rule, Verdict
from anncestry.provenance.records import seal
from anncestry.report.charts import storage
from anncestry.report.model.cells import Table, text_of
from anncestry.report.model.highlights import summary
from anncestry.report.model.material import Material
from anncestry.report.model.numbers import read, write
from anncestry.report.model.quantities import NOT_MEASURED
from anncestry.report.model.records import read_records
from anncestry.report.model.verdicts import Verdicts
from anncestry.report.published import Published
from anncestry.report.site.page import write_page
from anncestry.report.tables import glance, usage
from anncestry.report.tables.standard import tables
from casestudies import STUDIES
from tests.builders.world import (
    FILTER,
    HOSTILE,
    PUBLISHED,
    WORKLOADS,
    World,
    ancestry_of,
    made_invalid,
    numbers_behind,
    over_runs,
    parsed,
    sha256,
    unpacked,
)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.chdir(tmp_path)
    return World()


def _values_of(df: pd.DataFrame, path: str) -> pd.Series[float]:
    return df.loc[df["record"] == path, "value"]


def _one(df: pd.DataFrame, path: str, metric: str) -> Any:
    rows = df[(df["record"] == path) & (df["metric"] == metric)]
    assert len(rows) == 1
    return rows.iloc[0]


def _table(df: pd.DataFrame, number: str, facts: Published | None = None) -> Table:
    material = Material(df, read_records(df) if facts else {}, facts)
    return next(table for table in tables(material) if table.number == number)


# The tidy table


def test_every_number_names_its_record_and_the_record_holds_it(world: World) -> None:
    df = world.tidy()
    assert df["number_id"].is_unique
    for path, digest in set(zip(df["record"], df["record_sha256"], strict=True)):
        assert digest == sha256(path)
    cell = world.cell("milvus-2.3.5", "k10")
    record = json.loads(Path(cell["query_path"]).read_text())
    row = _one(df, cell["query_path"], "p50_ms")
    assert (row["value"], row["std"], row["runs"]) == (
        record["summary"]["p50_ms"]["value"],
        record["summary"]["p50_ms"]["std"],
        3,
    )
    assert (row["unit"], row["k"], row["clients"], row["filter"]) == ("ms", 10, 1, "")
    assert _one(df, cell["load_path"], "rows_per_s")["value"] == pytest.approx(
        60000 / _one(df, cell["load_path"], "load_s")["value"]
    )
    of_load = df[(df["record"] == cell["load_path"]) & (df["phase"] == "load")]
    cpu_s = of_load[of_load["metric"] == "cpu_s"]["value"].item()
    assert _one(df, cell["load_path"], "server_cpu_us_per_row")["value"] == pytest.approx(1e6 * cpu_s / 60000)
    assert _one(df, cell["query_path"], "server_cpu_us_per_query")["std"] > 0


def test_the_filter_and_each_storage_component_are_told_apart(world: World) -> None:
    df = world.tidy()
    filtered = _one(df, world.cell("milvus-2.3.5", "k10-category30")["query_path"], "selectivity")
    assert (filtered["filter"], filtered["value"]) == ("category in {1, 4, 7}", 0.301)
    assert _one(df, world.cell("milvus-2.3.5", "k10")["load_path"], "storage_component_mib[log]")["value"] == 24


def test_an_invalid_record_never_becomes_a_number(world: World) -> None:
    cell = world.cell("weaviate-1.27.0", "k10")
    world.edit(cell["query_path"], made_invalid)
    df = world.tidy()
    for path in (cell["query_path"], cell["recall_path"]):
        here = df[df["record"] == path]
        assert here["value"].isna().all() and here["std"].isna().all() and not here["valid"].any()
        assert (here["reason"] == "row count: 25200 of 60000 rows").all()
    assert _values_of(df, world.cell("weaviate-1.27.0", "k100")["query_path"]).notna().any()


def test_an_invalid_load_takes_all_its_queries_with_it(world: World) -> None:
    cell = world.cell("weaviate-1.27.0", "k10")
    world.edit(cell["load_path"], made_invalid)
    df = world.tidy()
    of_load = df[(df["dataset"] == cell["dataset"]) & (df["system"] == cell["system"])]
    assert of_load["value"].isna().all()
    assert of_load["reason"].str.contains("25200 of 60000 rows").all()


def test_a_failed_gate_counts_even_where_a_record_calls_itself_valid(world: World) -> None:
    cell = world.cell("milvus-2.3.5", "k10")
    world.edit(cell["query_path"], lambda record: record["gates"].append({"gate": "g", "ok": False, "detail": "d"}))
    assert _values_of(world.tidy(), cell["query_path"]).isna().all()


def test_what_was_not_measured_keeps_its_place_with_the_reason(world: World) -> None:
    cell = world.cell("milvus-2.3.5", "k100")
    before = world.tidy()
    Path(cell["query_path"]).unlink()
    df = world.tidy()
    assert len(df) == len(before)
    here = df[df["record"] == cell["query_path"]]
    assert here["value"].isna().all() and (here["reason"] == NOT_MEASURED).all() and (here["record_sha256"] == "").all()
    assert (here["k"] == 100).all(), "its place in the tables is known from the other system's record"
    scores = df[df["record"] == cell["recall_path"]]
    assert scores["value"].isna().all(), "a recall without its queries can't be traced"


def test_a_query_without_its_load_is_no_number(world: World) -> None:
    cell = world.cell("milvus-2.3.5", "k10")
    Path(cell["load_path"]).unlink()
    assert _values_of(world.tidy(), cell["query_path"]).isna().all()


def test_a_stale_recall_is_refused(world: World) -> None:
    cell = world.cell("milvus-2.3.5", "k10")
    record = json.loads(Path(cell["query_path"]).read_text())
    record["summary"]["p50_ms"]["value"] = 0.001
    Path(cell["query_path"]).write_text(json.dumps(seal(record)))
    with pytest.raises(DataError) as refused:
        world.tidy()
    assert cell["recall_path"] in str(refused.value) and cell["query_path"] in str(refused.value)


def test_a_recall_that_does_not_name_its_queries_is_refused(world: World) -> None:
    cell = world.cell("milvus-2.3.5", "k10")
    world.edit(cell["recall_path"], lambda record: record.update(inputs={}))
    with pytest.raises(DataError, match="none named"):
        world.tidy()


@pytest.mark.parametrize(("stage", "name"), [("recall", "query_key"), ("query", "load_key")])
def test_a_record_of_another_key_is_refused_by_both_names(world: World, stage: str, name: str) -> None:
    cell = world.cell("milvus-2.3.5", "k10")
    world.edit(cell[f"{stage}_path"], lambda record: record.update({name: "ffffffffffff"}))
    with pytest.raises(DataError) as refused:
        world.tidy()
    assert "ffffffffffff" in str(refused.value)
    assert cell[f"{stage}_path"] in str(refused.value) and cell[f"{name[:-4]}_path"] in str(refused.value)


def test_a_record_at_the_place_of_another_cell_is_refused(world: World) -> None:
    cell = world.cell("milvus-2.3.5", "k10")
    world.edit(cell["query_path"], lambda record: record["spec"]["system"].update(name="weaviate-1.27.0"))
    with pytest.raises(DataError, match=r"of system weaviate-1\.27\.0, expected milvus-2\.3\.5"):
        world.tidy()


def test_a_text_in_place_of_a_number_is_refused(world: World) -> None:
    cell = world.cell("milvus-2.3.5", "k10")
    world.edit(cell["query_path"], lambda record: record["summary"]["qps"].update(value="fast"))
    with pytest.raises(DataError, match=r"summary\.qps\.value: .fast. is not of type"):
        world.tidy()


def test_a_phase_that_a_system_does_not_have_is_not_a_zero(world: World) -> None:
    row = _one(world.tidy(), world.cell("weaviate-1.27.0", "k10")["load_path"], "flush_s")
    assert math.isnan(row["value"]) and row["reason"] == "no such phase"


def test_the_order_of_what_goes_in_does_not_matter(world: World) -> None:
    forward = world.tidy()
    world.cells.reverse()
    pd.testing.assert_frame_equal(forward, world.tidy())


def test_the_three_files_hold_the_same_and_their_bytes_are_reproducible(world: World) -> None:
    Path(world.cell("milvus-2.3.5", "k100")["query_path"]).unlink()
    df = world.tidy()
    write(df, Path("a"))
    write(world.tidy(), Path("b"))
    names = [f"numbers.{kind}" for kind in ("csv", "json", "parquet")]
    assert [(Path("a") / name).read_bytes() for name in names] == [(Path("b") / name).read_bytes() for name in names]
    pd.testing.assert_frame_equal(read(Path("a")), df)
    rows = json.loads(Path("a/numbers.json").read_text())
    with open("a/numbers.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(rows) == len(lines) == len(df)
    for row, line in zip(rows, lines, strict=True):
        assert row["number_id"] == line["number_id"]
        assert line["value"] == "" if row["value"] is None else float(line["value"]) == row["value"]
    assert any(row["value"] is None for row in rows)


# Winners


def test_a_tie_has_no_bold_number_and_a_win_has_one(world: World) -> None:
    won = [cell.best for cell in _table(world.tidy(), "IV").rows[0].cells]
    assert won == [False, True] * 3, "the second system is lower by a quarter"
    cell = world.cell("weaviate-1.27.0", "k10")
    world.edit(cell["query_path"], lambda record: record["summary"]["p50_ms"].update(std=0.9))
    tied = [cell.best for cell in _table(world.tidy(), "IV").rows[0].cells]
    assert tied == [False, False, False, True, False, True]


def test_the_page_says_the_declared_margin(world: World, drawn: Drawn) -> None:
    assert "5 % (of recalls 0.005)" in drawn.index
    assert "3 % (of recalls 0.005)" in _page(world, rule=Rule(margin=0.03, level=0.01))
    assert "p beyond is at most 0.01" in Path("out/tables.html").read_text()


def test_one_run_never_wins(world: World) -> None:
    df = world.tidy()
    assert not any(cell.best for number in ("II", "X") for row in _table(df, number).rows for cell in row.cells)


def test_repeating_the_same_queries_on_one_index_names_no_winner_in_recall(world: World) -> None:
    assert not any(cell.best for row in _table(world.tidy(), "VIII").rows for cell in row.cells)


def test_an_invalid_competitor_leaves_no_winner_and_no_number(world: World) -> None:
    world.edit(world.cell("milvus-2.3.5", "k10")["query_path"], made_invalid)
    cells = _table(world.tidy(), "IV").rows[0].cells
    assert (cells[0].text, cells[0].value) == ("invalid", None)
    assert not any(cell.best for cell in cells)


# Tables


def test_all_ten_tables_are_there_and_every_number_in_them_is_in_the_frame(world: World) -> None:
    df = world.tidy()
    built = tables(Material(df, {}))
    assert [table.number for table in built] == ["I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X"]
    known = dict(zip(df["number_id"], df["value"], strict=True))
    for table in built:
        for row in table.rows:
            assert len(row.labels) == len(table.labels) and len(row.cells) == len(table.columns)
            for cell in row.cells:
                if cell.number_id and cell.value is not None:
                    assert known[cell.number_id] == cell.value
                if cell.value is not None and not cell.number_id:
                    assert set(cell.parents) <= known.keys() and cell.parents


def test_where_only_filters_were_asked_of_all_the_first_table_and_the_summary_are_of_one_and_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"runs": 3, "queries": 1000, "warmup": 100, "k": 10, "clients": 1}
    filtered, plain = {"filtered": {**asked, "filter": FILTER}}, {"plain": asked}
    monkeypatch.chdir(tmp_path)
    for workloads, said in ((filtered, True), ({**filtered, **plain}, False)):
        monkeypatch.setattr("tests.builders.world.WORKLOADS", workloads)
        df = World().tidy()
        (table,) = glance.tables(Material(df, {}))
        assert ("with the filter category in" if said else "without a filter") in table.caption
        assert all(cell.value is not None for row in table.rows for cell in row.cells[1:4])
        assert ("with the filter category in" in summary(df, {})) == said


def test_where_all_was_asked_through_client_libraries_the_summary_is_of_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"runs": 3, "queries": 1000, "warmup": 100, "k": 10, "clients": 1, "client": "sdk"}
    monkeypatch.setattr("tests.builders.world.WORKLOADS", {"k10-sdk": asked})
    monkeypatch.chdir(tmp_path)
    first = summary(World().tidy(), {})
    assert " - " not in first.splitlines()[2] and "p50 and recall k10-sdk" in first


def test_the_first_table_shows_the_least_recall_under_any_filter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"runs": 3, "queries": 1000, "warmup": 100, "k": 10, "clients": 1}
    monkeypatch.setattr(
        "tests.builders.world.WORKLOADS",
        {"plain": asked, "wide": {**asked, "filter": FILTER}, "narrow": {**asked, "filter": FILTER}},
    )
    monkeypatch.chdir(tmp_path)
    world = World()
    of = world.cell("milvus-2.3.5", "narrow")
    scored = json.loads(Path(of["recall_path"]).read_text())
    scored["recall"]["by_distance"].update(over_runs(0.62, 3, 0.0))
    world.write(of["recall_path"], scored)
    (table,) = glance.tables(Material(world.tidy(), {}))
    place = [column.label for column in table.columns].index("Recall@10, filtered")
    shown = {row.labels[-1]: row.cells[place] for row in table.rows if row.labels[0] == of["dataset"]}
    assert shown["milvus-2.3.5"].value == 0.62 and shown["weaviate-1.27.0"].value > 0.99
    assert not any(cell.best for cell in shown.values()), "recalls under two filters win nothing against each other"


def test_where_nobody_asked_alone_latency_and_recall_are_of_the_fewest_clients_and_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"runs": 3, "queries": 1000, "warmup": 100, "k": 10, "duration_s": 10}
    workloads = {f"k10-clients{n}": {**asked, "clients": n} for n in (20, 300)}
    monkeypatch.setattr("tests.builders.world.WORKLOADS", workloads)
    monkeypatch.chdir(tmp_path)
    df = World().tidy()
    (table,) = glance.tables(Material(df, {}))
    assert [column.label for column in table.columns][1:4] == ["p50, 20 clients", "Recall@10", "QPS, 300 clients"]
    assert "p50 and recall (by distance) of 20 clients" in table.caption
    assert all(cell.value is not None for row in table.rows for cell in row.cells[1:4])
    first = summary(df, {}).splitlines()[2]
    assert " @20 " in first and " @300 " in first and " - " not in first


def test_a_measured_number_stands_beside_what_the_paper_printed_for_the_same_question(world: World) -> None:
    df = world.tidy()
    mnist, made_up = _table(df, "IV", PUBLISHED).rows
    assert [cell.published for cell in mnist.cells[:4]] == ["3.38 ± 0.22", "2.41 ± 0.20", "4.02 ± 0.34", "3.48 ± 0.47"]
    assert not any(cell.published for cell in made_up.cells), "the paper has no such dataset"
    assert [cell.published for cell in _table(df, "VI", PUBLISHED).rows[0].cells] == ["287", "380", "270", "265"]
    assert [cell.published for cell in _table(df, "X", PUBLISHED).rows[0].cells] == ["295", "", "630", "1,053", "1,257"]
    assert _table(df, "II", PUBLISHED).rows[0].cells[-1].published == "4.1"
    assert [cell.published for cell in _table(df, "VII", PUBLISHED).rows[0].cells[:3]] == ["3.38", "3.50", "3.6"]
    assert [cell.published for cell in _table(df, "VIII", PUBLISHED).rows[0].cells[:2]] == ["0.999", "0.999"]


def test_a_cluster_run_of_the_paper_is_not_set_beside_a_single_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    df = World({"glove-100-angular": ("cosine", 1183514, 100)}).tidy()
    shown = [cell.published for number in ("II", "IV", "VIII") for cell in _table(df, number, PUBLISHED).rows[0].cells]
    assert not any(shown)


def test_runs_by_time_do_not_pose_as_runs_by_count(world: World) -> None:
    latency = _table(world.tidy(), "IV")
    expected = _one(world.tidy(), world.cell("milvus-2.3.5", "k10")["query_path"], "p50_ms")
    assert latency.rows[0].cells[0].number_id == expected["number_id"]
    assert latency.labels == ("Dataset",)


def _failing(world: World, system: str, workload: str, per_s: float) -> None:
    def edit(record: dict[str, Any]) -> None:
        runs = record["spec"]["workload"]["runs"]
        record["summary"].update(errors={"value": 3}, fail_per_s=over_runs(per_s, runs, 0.0))

    world.edit(world.cell(system, workload)["query_path"], edit)


def test_where_no_request_failed_no_column_says_so(world: World) -> None:
    assert not [
        column
        for content in tables(Material(world.tidy(), {}))
        for column in content.columns
        if "Failed" in column.group
    ]


@pytest.mark.parametrize(
    ("number", "workload", "group", "shown"),
    [
        ("IV", "k10", "Failed", [["2.5", "0.0"]]),
        ("V", "k100", "Failed", [["2.5", "0.0"]]),
        ("VII", "k10-category30", "Filter", [["2.5"], ["0.0"]]),
        ("X", "k10-clients16", "Failed, of clients", [["2.5"], ["0.0"]]),
    ],
)
def test_failed_requests_stand_beside_the_numbers_of_the_others(
    world: World, number: str, workload: str, group: str, shown: list[list[str]]
) -> None:
    _failing(world, "milvus-2.3.5", workload, 2.5)
    frame = world.tidy()
    content = next(found for found in tables(Material(frame, {})) if found.number == number)
    here = [place for place, column in enumerate(content.columns) if column.unit == "1/s" and column.group == group]
    rows = [row for row in content.rows if row.labels[0] == "fashion-mnist-784-euclidean" and "100" not in row.labels]
    assert [[row.cells[place].text.removesuffix(" ± 0") for place in here] for row in rows] == shown
    known = set(frame["number_id"])
    assert all(row.cells[place].number_id in known for row in rows for place in here), "failures have an ancestry, too"
    failing = [
        found.number
        for found in tables(Material(frame, {}))
        if any("Failed" in f"{c.group}{c.label}" for c in found.columns)
    ]
    assert failing == [number], "the other tables stay as they were"


def test_a_failure_in_ten_thousand_queries_is_not_printed_as_none() -> None:
    assert text_of(0.0004, None, "1/s") == "0.0004"
    assert text_of(0.0, None, "1/s") == "0.0"


def test_a_difference_that_is_not_determined_says_so(world: World) -> None:
    def slow(record: dict[str, Any]) -> None:
        record["summary"]["p50_ms"].update(std=2.0)

    world.edit(world.cell("milvus-2.3.5", "k10-category30")["query_path"], slow)
    first, second = (row.cells[2].text for row in _table(world.tidy(), "VII").rows[:2])
    assert first == "+40.0 (?)" and second == "+40.0"


# The page


def _page(world: World, chart_files: bool = False, **more: Any) -> str:
    """The page of results; without the files of its charts, whose drawing takes some 40 % of the time."""
    more |= {"title": "Two databases", "facts": PUBLISHED, "studies": STUDIES, "chart_files": chart_files}
    return unpacked(write_page(world.tidy(), Path("out"), **more).read_text())


@dataclass(frozen=True)
class Drawn:
    """The unedited world as a page with the files of its charts; several tests read it, so none may change it."""

    folder: Path
    df: pd.DataFrame
    index: str

    def file(self, name: str) -> Path:
        """A file beside the page."""
        return self.folder / "out" / name


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Drawn:
    folder = tmp_path_factory.mktemp("drawn")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        world = World()
        return Drawn(folder, world.tidy(), _page(world, chart_files=True))


def test_what_was_asked_through_a_library_stands_in_a_table_of_its_own_beside_the_same_as_bytes(
    world: World, drawn: Drawn
) -> None:
    assert "Through client libraries" not in drawn.index
    cell = world.cell("milvus-2.3.5", "k10-clients16")
    world.edit(cell["query_path"], lambda record: record["spec"]["workload"].update(client="sdk"))
    page = _page(world)
    df = world.tidy()
    (qps,) = df[(df["client"] == "sdk") & (df["metric"] == "qps")]["number_id"]
    assert "Through client libraries" in page
    opening = re.sub(r"<[^>]+>", "", page.split("</header>")[0])
    assert "Of 36 cells, 36 are measured" in opening, "cells are counted of every client"
    (table,) = usage.through_clients(Material(df, {}))
    (row,) = table.rows
    assert row.labels == (cell["dataset"], cell["topology"], "milvus-2.3.5", "16", "sdk", "k10-clients16")
    assert qps in [found.number_id for found in row.cells]
    # And in no other.
    for other in tables(Material(df, {})):
        assert qps not in [found.number_id for line in other.rows for found in line.cells]
    same = world.cell("milvus-2.3.5", "k10-clients4")
    asked = json.loads(Path(cell["query_path"]).read_text())["spec"]["workload"]
    world.edit(same["query_path"], lambda record: record["spec"]["workload"].update(clients=asked["clients"]))
    (table,) = usage.through_clients(Material(world.tidy(), {}))
    assert [row.labels[-2:] for row in table.rows] == [("bytes", "k10-clients4"), ("sdk", "k10-clients16")]


def test_a_number_that_may_be_the_clients_limit_is_marked_wherever_it_stands(world: World, drawn: Drawn) -> None:
    assert "‡" not in drawn.index
    cell = world.cell("milvus-2.3.5", "k10-clients16")
    qps = json.loads(Path(cell["query_path"]).read_text())["summary"]["qps"]["value"]
    world.edit(cell["query_path"], lambda record: record.update(client={"ceiling": {"qps": 1.9 * qps}}))
    df = world.tidy()
    assert df[df["client_bound"].fillna(False)]["record"].unique().tolist() == [cell["query_path"]]
    assert _one(df, cell["query_path"], "client_ceiling_qps")["value"] == pytest.approx(1.9 * qps)
    page = _page(world)
    assert " ‡<" in page
    assert "‡ Client-bound: more than half of what the client itself can send" in page


def test_a_number_that_others_disturbed_is_marked_wherever_it_stands_and_says_what_did(
    world: World, drawn: Drawn
) -> None:
    assert "¶" not in drawn.index
    cell = world.cell("milvus-2.3.5", "k10-clients16")
    above = ["run 2: other programs used 128 % of one core"]
    world.edit(cell["query_path"], lambda record: record.update(disturbance={"above": above, "runs": []}))
    df = world.tidy()
    assert df[df["disturbed"].fillna(False)]["record"].unique().tolist() == [cell["query_path"]]
    assert _one(df, cell["query_path"], "qps")["note"] == f"disturbed: {above[0]}"
    assert _one(df, cell["query_path"], "rss_peak_mib")["note"] == ""
    page = _page(world)
    assert " ¶<" in page
    assert "¶ Disturbed: other programs" in page


def test_a_cell_whose_answers_have_a_defect_is_marked_at_every_number_and_wins_nothing(
    world: World, drawn: Drawn
) -> None:
    assert " † 2 %" not in drawn.index
    best = world.cell("weaviate-1.27.0", "k10")
    assert [cell.best for cell in _table(world.tidy(), "IV").rows[0].cells] == [False, True] * 3

    def defective(record: dict[str, Any]) -> None:
        share = {"value": 0.02, "low": 0.01, "high": 0.04}
        counts = {"answers": 3000, "short": 60, "empty": 9, "repeated": 0, "violating": 0, "failed": 0}
        record["defects"] = {**counts, "share": share}

    world.edit(best["query_path"], defective)
    df = world.tidy()
    page = _page(world)
    mine = set(df[df["record"].isin({best["query_path"], best["recall_path"]}) & df["value"].notna()]["number_id"])
    shown = [
        cell for table in tables(Material(df, {})) for row in table.rows for cell in row.cells if cell.number_id in mine
    ]
    assert len({cell.number_id for cell in shown}) >= 6
    assert all(cell.text.endswith(" † 2 %") and not cell.best for cell in shown), "where it wins by a quarter, else"
    marks = [mark for mark in _marks(_inlined(page, "charts")) if mark.get("number_id") in mine and "shown" in mark]
    assert marks and all(mark["shown"].endswith(" † 2 %") for mark in marks)
    assert "† So many answers of the cell are short, empty or repeating" in page
    assert "2 % of answers have a defect (1 % to 4 %): 60 short, 9 empty, of 3,000" in set(df["note"])


def test_the_servers_processor_time_a_query_is_drawn_of_every_cell(drawn: Drawn) -> None:
    df = drawn.df
    of_query = df[(df["metric"] == "server_cpu_us_per_query") & df["value"].notna()]
    title = "server's processor time, microseconds a query"
    charts = [spec for spec in _inlined(drawn.index, "charts") if title in json.dumps(spec, ensure_ascii=False)]
    points = [mark for mark in _marks(charts) if "low" not in mark]
    assert {mark["number_id"]: mark["value"] for mark in points} == dict(
        zip(of_query["number_id"], of_query["value"], strict=True)
    )


def test_queries_on_a_limited_storage_path_are_drawn_by_its_limit(world: World) -> None:
    df = world.tidy()
    of_milvus = {"asked": {"read_mib_per_s": 20.0}}
    plain = {path: {**record, "storage_path": {}} for path, record in read_records(df).items()}
    limited = {
        path: {**of, "storage_path": {"limits": of_milvus} if "milvus" in path else {}} for path, of in plain.items()
    }
    (figure,) = storage.figures(Material(df, limited))
    drawn = [mark for panel in figure.panels for mark in _marks([panel.spec]) if "limit" in mark]
    assert {(mark["system"].partition("-")[0], mark["limit"]) for mark in drawn} == {
        ("milvus", "20 MiB/s"),
        ("weaviate", "no limit"),
    }
    assert {mark["what"] for mark in drawn} == {"qps", "p95_ms"}
    assert storage.figures(Material(df, plain)) == []


def test_an_evenly_paced_path_stands_at_its_limit_and_is_told_from_the_same_limit_in_slices(world: World) -> None:
    df = world.tidy()
    slices = {"asked": {"read_mib_per_s": 20.0}}
    limited = {
        path: {**of, "storage_path": {"limits": slices if "milvus" in path else {**slices, "pacing": "even"}}}
        for path, of in read_records(df).items()
    }
    (figure,) = storage.figures(Material(df, limited))
    drawn = [mark for panel in figure.panels for mark in _marks([panel.spec]) if "limit" in mark]
    assert {(mark["system"].partition("-")[0], mark["limit"], mark["pacing"]) for mark in drawn} == {
        ("milvus", "20 MiB/s", ""),
        ("weaviate", "20 MiB/s", "even"),
    }


def _inlined(page: str, name: str) -> Any:
    found = re.search(rf'<script type="application/json" id="data-{name}">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


def test_hostile_names_stay_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    world = World({HOSTILE: ("l2", 1000, 8)})
    for system in ("milvus-2.3.5", "weaviate-1.27.0"):
        world.edit(world.cell(system, "k10")["load_path"], lambda r: r["platform"].update(cpu_model=HOSTILE))
    world.edit(world.cell("milvus-2.3.5", "k10")["load_path"], lambda r: r["fairness"].update({HOSTILE: HOSTILE}))
    world.edit(
        world.cell("weaviate-1.27.0", "k10")["query_path"],
        lambda r: r["gates"].append({"gate": HOSTILE, "ok": False, "detail": HOSTILE}),
    )
    page = unpacked(write_page(world.tidy(), Path("out"), title=HOSTILE).read_text())
    elements = parsed(page)
    assert not [tag for tag, _ in elements if tag == "img"]
    assert not [name for _, attributes in elements for name in attributes if name.startswith("on")]
    assert html.escape(HOSTILE) in page
    assert HOSTILE in {row["dataset"] for row in ancestry_of(page)["numbers"].values()}
    assert page.count("</script") == page.count("<script") == 5


def test_the_page_needs_nothing_but_itself(drawn: Drawn) -> None:
    page = drawn.index
    elements = parsed(page)
    policy = next(a["content"] for tag, a in elements if tag == "meta" and "http-equiv" in a)
    assert policy and policy.startswith("default-src 'none'") and "unsafe-eval" not in policy
    links = [value for _, attributes in elements for name, value in attributes.items() if name in ("src", "href")]
    others = {link.partition("#")[0] for link in links if link and link[0] != "#"} - {"data:,"}
    assert {"index.html", "audit.html", "numbers.csv", "numbers.json", "numbers.parquet"} <= others
    assert any(link.startswith("charts/") for link in others)
    assert all(drawn.file(link).is_file() for link in others), "every link leads to a file beside the page"
    assert len(re.findall(r"<script>", page)) == 2, "the chart library once, and the page's own script"


def test_the_policy_admits_exactly_the_scripts_of_the_page(drawn: Drawn) -> None:
    page = drawn.index
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    hashes = {base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts}
    assert set(re.findall(r"'sha256-([^']+)'", page.split("</head>")[0])) == hashes


def test_the_report_as_text_has_the_summary_and_every_cell_of_every_table(drawn: Drawn) -> None:
    text = drawn.file("report.txt").read_text(encoding="utf-8")
    assert summary(drawn.df, {}).rstrip() in text
    tables = [json.loads(path.read_text()) for path in drawn.file("tables").glob("*.json")]
    assert len(tables) > 10
    for table in tables:
        (part,) = [part for part in text.split("\nTable ") if part.startswith(f"{table['table']}. ")]
        for row in table["rows"]:
            for cell in row["cells"]:
                assert f" {cell['shown']}{' *' if cell['best'] else ''}" in part


def test_every_linked_number_has_an_ancestry_that_ends_in_a_record(drawn: Drawn) -> None:
    page = drawn.index
    ancestry = ancestry_of(page)
    numbers = ancestry["numbers"]
    links = [a for tag, a in parsed(page) if tag == "a" and a.get("class") == "num"]
    assert len(links) > 100
    for link in links:
        for number in numbers_behind(link):
            record = numbers[number]["record"]
            assert ancestry["records"][record]["sha256"] == sha256(str(drawn.folder / record))


def test_ids_are_unique_and_every_inner_link_leads_somewhere(drawn: Drawn) -> None:
    elements = parsed(drawn.index)
    ids = [a["id"] for _, a in elements if "id" in a]
    assert len(ids) == len(set(ids))
    for tag, attributes in elements:
        href = attributes.get("href") or ""
        if tag == "a" and href.startswith("#"):
            assert href[1:] in ids


def _marks(specs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the marks of charts are drawn from; layers of one data share it."""
    places = [place for spec in specs for place in (spec, *spec.get("layer", [])) if "data" in place]
    return [datum for place in places for datum in place["data"]["values"]]


def test_every_mark_of_a_chart_carries_its_number(drawn: Drawn) -> None:
    page = drawn.index
    known = set(ancestry_of(page)["numbers"])
    specs = _inlined(page, "charts")
    assert len(specs) > 10, "five figures for each of two datasets, and those of the paper"
    marks = _marks(specs)
    assert marks and all(datum["number_id"] in known for datum in marks)
    assert not any("http" in json.dumps({k: v for k, v in spec.items() if k != "$schema"}) for spec in specs)


def test_a_screen_reader_finds_its_way(drawn: Drawn) -> None:
    elements = parsed(drawn.index)
    tags = [tag for tag, _ in elements]
    assert tags.count("main") == tags.count("h1") == tags.count("header") == 1
    assert tags.count("caption") == tags.count("table")
    assert all("scope" in attributes for tag, attributes in elements if tag == "th")
    assert all(a.get("tabindex") == "0" for tag, a in elements if tag == "div" and "scroll" in (a.get("class") or ""))
    assert all(a.get("aria-label") for tag, a in elements if tag == "div" and "data-chart" in a)


def test_what_is_invalid_or_missing_is_listed_and_shows_no_number(world: World) -> None:
    bad = world.cell("weaviate-1.27.0", "k10")
    world.edit(bad["query_path"], made_invalid)
    world.edit(bad["query_path"], lambda record: record["summary"]["qps"].update(value=987654321))
    Path(world.cell("milvus-2.3.5", "k100")["query_path"]).unlink()
    page = _page(world)
    gaps = page.split('id="gaps"')[1].split("</section>")[0]
    assert "row count: 25200 of 60000 rows" in gaps and "not measured" in gaps.lower()
    assert re.search(r">fashion-mnist-784-euclidean<.*>milvus-2\.3\.5<.*>k100<.*>query, recall<", gaps)
    assert "987654321" not in page and "987,654,321" not in page


def test_the_answer_stands_before_any_prose(drawn: Drawn) -> None:
    page = drawn.index
    title, rows = page.index("</h1>"), page.index('<table id="table-G">')
    between = page[title:rows]
    assert between.count("<p") == 1, "one line of what there is, when and where"
    line = " ".join(re.sub(r"<[^>]+>", " ", between).split())
    assert line.startswith("36 of 36 cells are valid. ") and "UTC" in line and len(line) < 120
    caption = re.search(r"<caption.*?</caption>", page[rows:], re.DOTALL)[0]
    assert len(re.sub(r"<[^>]+>", "", caption)) < 90, "the notes stand below the rows"
    below = page[page.index("</table>", rows) :]
    assert below.index("For the 10 nearest") < below.index('class="lede"')


def test_the_best_number_of_a_place_has_a_word_for_what_is_known_of_it(world: World) -> None:
    def close(record: dict[str, Any]) -> None:
        record["summary"]["p50_ms"].update(value=1.0, std=0.001, runs=[1.0, 1.001, 0.999], low=0.99, high=1.01)

    def noisy(record: dict[str, Any]) -> None:
        record["summary"]["p50_ms"].update(value=1.2, std=0.9, runs=[0.3, 1.2, 2.1], low=0.2, high=2.2)

    def words() -> dict[str, list[str]]:
        df = world.tidy()
        (table,) = glance.tables(Material(df, read_records(df)))
        found: dict[str, list[str]] = {}
        for row in table.rows[:2]:
            for column, cell in zip(table.columns, row.cells, strict=True):
                found.setdefault(column.label.replace(", one client", ""), []).append(cell.verdict)
                assert cell.best == (cell.verdict == "wins")
        return found

    first = words()
    assert sorted(first["p50"]) == ["", "wins"] and first["Recall@10"] == ["", ""], "of recall there are no verdicts"
    mine, other = (world.cell(system, "k10")["query_path"] for system in ("milvus-2.3.5", "weaviate-1.27.0"))
    world.edit(mine, close)
    world.edit(other, noisy)
    assert words()["p50"] == ["undetermined", ""]
    page = _page(world)
    assert '<span class="verdict">undetermined</span>' in page
    assert "undetermined, neither is known yet" in page and "equivalent, each other is surely" not in page


@pytest.mark.parametrize(
    ("outcomes", "word"),
    [
        ((Outcome.EQUIVALENT, Outcome.EQUIVALENT), "equivalent"),
        ((Outcome.EQUIVALENT, Outcome.MORE), "equivalent"),
        ((Outcome.EQUIVALENT, Outcome.UNDETERMINED), "undetermined"),
        ((Outcome.MORE, Outcome.MORE), "wins"),
    ],
)
def test_the_best_of_three_wins_over_both_or_is_equivalent_to_each_it_does_not_beat(
    outcomes: tuple[Outcome, Outcome], word: str
) -> None:
    rows = [{"number_id": name, "value": value, "workload": ""} for name, value in (("a", 1.0), ("b", 1.1), ("c", 1.2))]
    verdicts = Verdicts([], {})
    judged = zip(rows[1:], outcomes, strict=True)
    vars(verdicts)["of_systems"] = {
        ("a", row["number_id"]): (rows[0], row, Verdict(outcome)) for row, outcome in judged
    }
    assert verdicts.leader(rows, lower=True) == (0, word)
    assert verdicts.best(rows, lower=True) == (0 if word == "wins" else None)
    assert verdicts.leader([rows[0], None], lower=True) is None
    assert verdicts.leader(rows[1:], lower=True) is None, "what was not judged has no verdict"


def test_the_page_of_a_default_s_size_is_small_enough_to_hand_round(drawn: Drawn) -> None:
    assert drawn.file("index.html").stat().st_size < 1_500_000


def test_the_opening_is_made_of_the_data(drawn: Drawn) -> None:
    opening = drawn.index.split("</header>")[0]
    words = re.sub(r"<[^>]+>", "", opening)
    assert "Of 36 cells, 36 are measured and valid, 0 invalid, and 0 not measured." in words
    table = re.search(r'<table id="table-G">.*?</table>', opening, re.DOTALL)[0]
    rows = [re.sub(r"<[^>]+>", " ", row) for row in re.findall(r"<tr.*?</tr>", table, re.DOTALL)]
    assert "QPS, 16 clients" in rows[0] and "CPU a query (µs)" in re.sub(r"\s+", " ", rows[0])
    assert [row.split()[:2] for row in rows[1:3]] == [
        ["fashion-mnist-784-euclidean", "milvus-2.3.5"],
        ["fashion-mnist-784-euclidean", "weaviate-1.27.0"],
    ]
    assert "better by more than noise" in rows[2] and "better by more than noise" not in rows[1]


_DEFINITIONS = (
    r"p50|p95|p99",
    r"n − 1",
    r"95 % interval",
    r"100 % is one core",
    r"5 %(?= \(of recalls|: both)|0\.005(?=\)|, and at most)|at most 0\.05(?=\. Differs)",  # as declared: `decide`
    r"sha256",
    r"K = 100?",
    r"with the 100 nearest asked for",
    r"Distance l2",
    r"scaled to length 1\b",
    r"1000 / mean latency",
    r"rows × dimensions × 4 bytes",
    r"recall@\d+",
    r"[Ff]or the \d+ nearest",
    r"±",
    r"with \d+ clients?",
    r"at least \d+ runs",
    r"a factor of 1\.5",
    r"corrected p is at most 0\.05",
    r"can't be below 0\.1 with three runs a side, or 0\.03 with four",
)
"""Where prose may hold a digit that is no number of ours: names of metrics, and the words that define them."""


class _Prose(HTMLParser):
    """The running text of a page: paragraphs, captions and definitions, without numbers, names and code."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []
        self._open: list[tuple[str, bool, bool]] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag in ("meta", "link", "br", "input", "img"):
            return
        kinds = set((dict(attributes).get("class") or "").split())
        _, prose, out = self._open[-1] if self._open else ("", False, False)
        prose = prose or tag in ("p", "figcaption", "caption", "dt", "dd", "li")
        out = (
            out
            or bool(kinds & {"num", "count", "name", "mono", "facts", "legend", "invalid"})
            or tag in ("script", "style", "nav")
        )
        self._open.append((tag, prose, out))

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1][1] and not self._open[-1][2]:
            self.said.append(data)


def test_no_number_in_prose_is_typed_in(drawn: Drawn) -> None:
    """Whatever digit stands in running text is a link to a number, a name, or part of a definition."""
    reader = _Prose()
    reader.feed(drawn.index)
    left = " ".join(reader.said)
    names_of_workloads = rf"\((?:{'|'.join(map(re.escape, WORKLOADS))}|, )+\)"
    for words in (*_DEFINITIONS, r"Tables? [IVX]+(-\d+)?", r"Table D\d-[A-Z]", names_of_workloads):
        left = re.sub(words, "", left)
    assert len(left) > 2000, "there is prose to look at"
    assert not re.findall(r".{0,30}\d.{0,30}", left), re.findall(r".{0,30}\d.{0,30}", left)


def test_every_number_of_a_table_a_chart_and_the_prose_has_an_id_of_the_tidy_table(drawn: Drawn) -> None:
    page = drawn.index
    known = set(drawn.df["number_id"])
    named = {name for tag, a in parsed(page) if tag == "a" and a.get("class") == "num" for name in numbers_behind(a)}
    marks = set(re.findall(r'"number_id":"(n[0-9a-f]{10})"', page))
    assert named and marks
    assert named <= known and marks <= known
    numbers = re.findall(r'<td class="n[^>]*>(.*?)</td>', page)
    untraced = [cell for cell in numbers if re.match(r"[−-]?\d", cell)]
    assert not untraced


def test_a_page_is_refused_when_a_cell_is_deleted_after_its_table_was_made(world: World) -> None:
    frame = world.tidy()
    victim = Path(world.cell("milvus-2.3.5", "k10")["query_path"])
    victim.unlink()
    with pytest.raises(DataError, match=re.escape(str(victim))):
        write_page(frame, Path("out"), title="Two databases")
    assert not Path("out/index.html").exists()


def test_numbers_of_two_machines_are_never_one_table(world: World) -> None:
    world.edit(world.cell("weaviate-1.27.0", "k10")["load_path"], lambda r: r["platform"].update(cores=64))
    with pytest.raises(DataError, match=r"on a machine with cores 64, .* on one with 8"):
        world.tidy()


def test_the_audit_page_sets_ours_beside_the_papers_and_each_leads_to_the_other(drawn: Drawn) -> None:
    page = unpacked(drawn.file("audit.html").read_text())
    assert 'href="audit.html"' in drawn.index and 'href="index.html"' in page
    assert len(set(re.findall(r'<tr id="(p[0-9a-f]{10})"', page))) == 1006
    assert len(set(re.findall(r'<tr id="(f\d{3})"', page))) == 114
    linked = {name for tag, a in parsed(page) if tag == "a" and a.get("class") == "num" for name in numbers_behind(a)}
    assert linked and linked <= set(ancestry_of(page)["numbers"])
    assert re.search(r"milvus-2.3.5, standalone, k10, \d+\.\d\d times", page), "the ratio to the published number"
    assert "8 × Example CPU @ 3 GHz, 32 GiB" in page, "the machine is named"


def test_equal_input_gives_an_equal_page(world: World, drawn: Drawn) -> None:
    world.cells.reverse()
    assert _page(world, chart_files=True) == drawn.index


def test_a_record_changed_after_the_table_was_made_is_refused(world: World) -> None:
    df = world.tidy()
    path = world.cell("milvus-2.3.5", "k10")["load_path"]
    world.edit(path, lambda record: record.update(rows=1))
    with pytest.raises(DataError, match="make the table again"):
        write_page(df, Path("out"), title="t")
    assert not Path("out/index.html").exists()


def test_a_page_of_nothing_but_gaps_is_still_a_page(world: World) -> None:
    for path in Path("results").rglob("*.json"):
        path.unlink()
    assert "36 not measured" in re.sub(r"<[^>]+>", "", _page(world).split("</header>")[0])


# Beyond the paper


def _swept(world: World) -> World:
    """The cells of k10-clients* turned into a sweep: recall rises with ef, speed falls; one point is dominated."""
    for cell in list(world.cells):
        if not cell["workload"].startswith("k10-clients"):
            continue
        ef = {"1": 16, "2": 32, "4": 64, "8": 128, "16": 256}[cell["workload"].removeprefix("k10-clients")]
        recall = {16: 0.8, 32: 0.9, 64: 0.96, 128: 0.95, 256: 0.99}[ef]

        def as_swept(record: dict[str, Any], ef: int = ef) -> None:
            record["spec"]["workload"].update(clients=1, duration_s=None)
            record["ef_search"] = ef
            record["summary"]["qps"].update(over_runs(32000 / ef, 3))
            record["histogram"] = {"upper_ns": [1_000_000, 2_000_000], "counts": [900, 100]}

        world.edit(cell["query_path"], as_swept)
        scored = json.loads(Path(cell["recall_path"]).read_text())
        scored["recall"]["by_distance"].update(over_runs(recall, 3, 0.0), low=recall - 0.01, high=recall + 0.01)
        world.write(cell["recall_path"], scored)
    return world


def _more(world: World, number: str) -> Table:
    from anncestry.report.tables import effort

    df = world.tidy()
    records = {path: json.loads(Path(path).read_text()) for path in set(df["record"]) if Path(path).exists()}
    material = Material(df, records)
    made = [*effort.tables(material), *effort.comparisons(material)]
    return next(table for table in made if table.number == number)


def test_every_number_has_an_interval_or_says_why_not(world: World) -> None:
    df = world.tidy()
    known = df[df["value"].notna()]
    assert (known["interval"] != "").all()
    bounded = known[known["low"].notna()]
    assert (bounded["low"] <= bounded["value"]).all() and (bounded["value"] <= bounded["high"]).all()
    assert (known[known["low"].isna()]["interval"].str.startswith("none: ")).all()
    assert df[df["value"].isna()][["low", "high"]].isna().all().all()


def test_a_dominated_effort_is_on_no_front(world: World) -> None:
    rows = _more(_swept(world), "P").rows
    of = {row.labels[-1]: row.cells[-1].text for row in rows if row.labels[-2] == "milvus-2.3.5"}
    assert of["ef 128"] == "dominated"
    assert "QPS" in of["ef 16"] and "QPS" in of["ef 64"]


def test_two_workloads_at_one_effort_have_each_its_own_p99(world: World) -> None:
    swept = _swept(world)
    for cell in swept.cells:
        if cell["workload"] == "k10-clients2":  # now asks as k10-clients1 does, at the same ef
            world.edit(cell["query_path"], lambda record: record.update(ef_search=16))
            world.edit(cell["query_path"], lambda record: record["summary"]["p99_ms"].update(over_runs(77.0, 3)))
    rows = [row for row in _more(swept, "P").rows if row.labels[-2:] == ("milvus-2.3.5", "ef 16")]
    assert len(rows) == 4, "two datasets"
    assert sorted(row.cells[2].value == 77.0 for row in rows) == [False, False, True, True]


@pytest.mark.parametrize(("type", "effort"), [("ivf_flat", "nprobe 16"), ("a type of an engine elsewhere", "ef 16")])
def test_an_effort_is_called_what_its_index_calls_it(world: World, type: str, effort: str) -> None:
    ours = [cell for cell in world.cells if cell["system"] == "milvus-2.3.5"]
    for path in {cell[name] for cell in ours for name in ("load_path", "query_path")}:
        world.edit(path, lambda record: record["spec"].update(index={"type": type}))
    of = {(row.labels[-2], row.labels[-1]) for row in _more(_swept(world), "P").rows}
    assert {("milvus-2.3.5", effort), ("weaviate-1.27.0", "ef 16")} <= of


def test_what_a_recall_costs_is_told_with_bounds_and_never_beyond_the_sweep(world: World) -> None:
    rows = {row.labels[3]: row for row in _more(_swept(world), "E").rows if row.labels[0].startswith("fashion")}
    first = rows["0.95"].cells[0]
    assert first.value == pytest.approx(1000 - 500 * 5 / 6, rel=1e-3) and " to " in first.text
    assert len(first.parents) == 4
    assert rows["0.9"].cells[0].value == pytest.approx(1000)


def test_a_target_beyond_the_best_says_what_the_best_was(world: World) -> None:
    swept = _swept(world)
    for cell in swept.cells:
        if cell["workload"] == "k10-clients16":
            Path(cell["recall_path"]).unlink()
    rows = {row.labels[3]: row for row in _more(swept, "E").rows if row.labels[0].startswith("fashion")}
    assert rows["0.99"].cells[0].text == "target not reached, best was 0.9600"
    assert rows["0.99"].cells[0].value is None


def test_a_verdict_needs_a_corrected_p_and_else_it_is_undetermined(world: World) -> None:
    def noisy(record: dict[str, Any]) -> None:
        record["summary"]["p50_ms"].update(std=0.9)

    world.edit(world.cell("weaviate-1.27.0", "k10")["query_path"], noisy)
    rows = {(row.labels[0][:7], *row.labels[2:4]): row.cells for row in _more(world, "C").rows}
    assert rows["fashion", "k10", "p50_ms"][-1].text.startswith("undetermined (")
    clear = rows["fashion", "k100", "p50_ms"]
    assert clear[-1].text == "weaviate-1.27.0 is faster"
    assert float(clear[1].text) <= 0.05 < float(clear[2].text)
    assert not any(workload == "k10-clients1" for _, workload, _ in rows), "single runs are not compared"


def test_fronts_and_distributions_are_drawn_with_a_number_behind_every_mark(world: World) -> None:
    page = _page(_swept(world))
    known = set(ancestry_of(page)["numbers"])
    specs = _inlined(page, "charts")
    assert 'id="figure-pareto-qps"' in page and 'id="figure-pareto-p99"' in page and "figure-distribution" in page
    marks = _marks(specs)
    assert all(datum["number_id"] in known for datum in marks)
    assert any(datum.get("opacity") == 0.25 for datum in marks), "dominated points are pale"


def test_latency_distributions_can_be_had_in_hdr_columns(world: World) -> None:
    page = _page(_swept(world))
    assert 'href="latencies.csv"' in page
    with open("out/latencies.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert (lines[0]["rebuild"], lines[0]["arm"]) == ("1", "")
    assert [line["percentile"] for line in lines[:2]] == ["0.9", "1.0"]
    assert [line["1/(1-percentile)"] for line in lines[:2]] == ["10.0", "inf"]


def test_what_the_client_complains_of_stands_with_the_gates_of_the_record(world: World) -> None:
    said = "run 0: the schedule could not be kept: 1 % of the arrivals waited <9> ms"
    for cell in world.cells:
        world.edit(cell["query_path"], lambda record: record.setdefault("client", {}).update(complaints=[said]))
    _page(world)
    assert html.escape(said) in Path("out/cells.html").read_text()


def test_requests_that_failed_are_never_answered_in_distributions_either(world: World) -> None:
    def as_failed(record: dict[str, Any]) -> None:
        record["histogram"] = {"upper_ns": [1_000_000, 2_000_000], "counts": [800, 100]}
        record["summary"]["errors"]["value"] = 100

    for cell in world.cells:
        world.edit(cell["query_path"], as_failed)
    page = _page(world)
    with open("out/latencies.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["value_ms"] for line in lines[:3]] == ["1.0", "2.0", "inf"]
    assert [line["percentile"] for line in lines[:3]] == ["0.8", "0.9", "1.0"]
    shares = set(re.findall(r'"share": "([^"]*)"', json.dumps(_inlined(page, "charts"))))
    assert {"80 %", "90 %"} <= shares <= {"80 %", "90 %", "50 %", "95 %", "99 %", "99.9 %"}, "no line up to 100 %"


def test_filters_are_shown_by_selectivity_and_by_how_they_go_with_the_query(world: World) -> None:
    asked = {
        "k100": ({"field": "price", "share": 0.01}, 0.01),
        "k10": ({"field": "region", "side": "opposite", "halvings": 3}, 0.125),
        "k10-category30": (FILTER, 0.3),
    }
    for cell in world.cells:
        if cell["workload"] in asked:
            filter, share = asked[cell["workload"]]

            def as_filtered(record: dict[str, Any], filter: Any = filter, share: float = share) -> None:
                record["spec"]["workload"].update(filter=filter, k=10)
                record["selectivity"] = share

            world.edit(cell["query_path"], as_filtered)
    rows = _more(world, "F").rows
    shown = {row.labels[-2:] for row in rows if row.labels[0].startswith("fashion")}
    assert {("independent", "1 %"), ("far from the query", "12.5 %"), ("independent", "30 %")} <= shown
    page = _page(world)
    assert 'id="figure-filter-recall"' in page and 'id="figure-filter-latency"' in page


# The terminal


def test_headlines_compare_rates_of_one_number_of_clients_and_recall_that_counts_ties(world: World) -> None:
    df = world.tidy()
    of_weaviate = df["system"] == "weaviate-1.27.0"
    asked_less = df[~(of_weaviate & (df["clients"] == 16))].copy()
    asked_less.loc[of_weaviate & (asked_less["metric"] == "recall_by_id"), "value"] = 0.771
    asked_less.loc[of_weaviate & (asked_less["metric"] == "recall_by_distance"), "value"] = 0.999
    shown = summary(asked_less, {})
    assert " @8 " in shown and " @16 " not in shown
    assert re.search(r"weaviate-1\.27\.0 .* 0\.9990 .*\(0\.7710 by id\)", shown)


def test_the_summary_fits_a_terminal_and_keeps_its_numbers_whole(world: World) -> None:
    world.edit(world.cell("weaviate-1.27.0", "k10")["query_path"], made_invalid)
    Path(world.cell("milvus-2.3.5", "k100")["query_path"]).unlink()
    shown = summary(world.tidy(), {}, 100)
    assert all(len(line) <= 100 for line in shown.splitlines())
    assert "invalid" in shown and "1 cell not measured" in shown
    assert re.search(r"milvus-2\.3\.5 .* 1\.62 ± 0\.02 +\S+ ± 0 \(0\.9985 by id\) +3,953 @16 +0", shown)


def test_the_summary_names_topologies_where_there_are_several_and_cuts_no_name_without_need(world: World) -> None:
    df = world.tidy()
    one = df[df["topology"] == "standalone"]
    assert summary(one, {}).split()[:2] == ["dataset", "system"]
    clusters = one.assign(topology="cluster-3")
    head, _, *rows = summary(pd.concat([one, clusters], ignore_index=True), {}).splitlines()
    assert head.split()[:3] == ["dataset", "topology", "system"]
    places = {tuple(row.split()[:3]) for row in rows if row.startswith("fashion")}
    assert places >= {
        ("fashion-mnist-784-euclidean", topology, system)
        for topology in ("cluster-3", "standalone")
        for system in ("milvus-2.3.5", "weaviate-1.27.0")
    }
    assert "…" not in head + "".join(rows)


# Percentiles of too few answers


def _asked(runs: list[int]) -> Any:
    return lambda record: record["summary"].update(samples={"value": sum(runs), "runs": runs})


@pytest.mark.parametrize(
    ("runs", "none"),
    [
        ([1000, 1000, 1000], []),
        ([400, 400, 400], []),  # of all runs together
        ([300, 300, 300], ["p999_ms: 900 answers: too few for p99.9"]),
        ([100, 100, 100], ["p999_ms: 300 answers: too few for p99.9"]),
        ([100, 99, 100], ["p999_ms: 299 answers: too few for p99.9", "p99_ms: 99 answers a run: too few for p99"]),
        (
            [19, 40, 40],
            [
                "p95_ms: 19 answers a run: too few for p95",
                "p999_ms: 99 answers: too few for p99.9",
                "p99_ms: 19 answers a run: too few for p99",
            ],
        ),
    ],
)
def test_a_percentile_that_would_be_the_slowest_answer_is_none_and_says_so(
    world: World, runs: list[int], none: list[str]
) -> None:
    cell = world.cell("milvus-2.3.5", "k10")
    world.edit(cell["query_path"], lambda record: record["summary"].update(p999_ms=over_runs(9.0, 3)))
    world.edit(cell["query_path"], _asked(runs))
    df = world.tidy()
    rows = df[(df["record"] == cell["query_path"]) & df["reason"].str.contains("too few")]
    assert [f"{row['metric']}: {row['reason']}" for row in rows.to_dict("records")] == none
    assert rows["value"].isna().all() and rows["low"].isna().all() and not rows["valid"].any()
    assert _one(df, cell["query_path"], "p50_ms")["value"] and _one(df, cell["query_path"], "p50_ms")["valid"]


def test_such_a_cell_is_valid_and_wins_nothing_by_that_percentile(world: World) -> None:
    slow = [cell for cell in world.cells if cell["workload"] == "k10" and cell["system"] == "weaviate-1.27.0"]
    for cell in slow:
        world.edit(cell["query_path"], _asked([60, 60, 60]))
    df = world.tidy()
    material = Material(df, read_records(df))
    compared = {(a["workload"], a["metric"]) for a, _, _ in material.verdicts.of_systems.values()}
    assert ("k10", "p95_ms") in compared and ("k10", "p99_ms") not in compared
    (table,) = (table for table in tables(material) if table.number == "IV")
    shown = [cell for row in table.rows for cell in row.cells if cell.problem]
    assert {(cell.text, cell.problem) for cell in shown} == {("too few answers", "60 answers a run: too few for p99")}
    page = _page(world)
    assert "Of 36 cells, 36 are measured and valid" in re.sub(r"<[^>]+>", "", page)
