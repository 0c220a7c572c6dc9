"""All systems at one recall: hard queries, the price of a million, and one table with verdicts."""

from __future__ import annotations

import json
import math
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import pytest
from scipy import stats

from anncestry.metrics import robust
from anncestry.metrics.decide import Outcome, Share, judge
from anncestry.report import charts
from anncestry.report.model import verdicts
from anncestry.report.model.derived import COST, mean_of_logs
from anncestry.report.model.material import Material
from anncestry.report.site import catalogue
from anncestry.report.tables import effort, everyone
from casestudies import winners
from tests.builders.world import World

MILVUS, WEAVIATE = "milvus-2.3.5", "weaviate-1.27.0"


@pytest.fixture
def world(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = World({"random-xs-20-angular": ("cosine", 9000, 20)})
    for cell in made.cells:
        misses = 30 if cell["system"] == WEAVIATE else 3
        recalls = [0.2] * misses + [1.0] * (1000 - misses)
        by_query = {"query": list(range(1000)), "by_id": recalls, "by_distance": recalls}
        made.edit(cell["recall_path"], lambda record, by_query=by_query: record.update(by_query=by_query))
        if cell["workload"] in ("k10", "k10-clients8"):
            made.edit(cell["query_path"], tuned)
    return made


def tuned(record):
    record["spec"]["workload"]["target_recall"] = 0.95
    record["ef_search"] = 200


def material_of(world):
    df = world.tidy()
    return Material(df, _records(df))


def _records(df):
    return {path: json.loads(Path(path).read_text()) for path in df["record"].unique() if Path(path).exists()}


def number(df, cell, metric):
    (row,) = df[
        (df["system"] == cell["system"]) & (df["workload"] == cell["workload"]) & (df["metric"] == metric)
    ].to_dict("records")
    return row


def test_the_tidy_table_has_what_follows_from_each_querys_recall(world):
    df = world.tidy()
    row = number(df, world.cell(WEAVIATE, "k10"), "robustness_0.9")
    assert (row["value"], row["unit"], row["interval"]) == (0.97, "fraction", robust.OF_QUERIES)
    worst = number(df, world.cell(WEAVIATE, "k10"), "recall_worst1")
    assert worst["value"] == pytest.approx(0.2) and worst["low"] < 0.2 <= worst["high"]
    assert number(df, world.cell(MILVUS, "k10"), "recall_worst1")["value"] == pytest.approx((3 * 0.2 + 7) / 10)


def test_a_record_without_the_recall_of_each_query_has_no_such_number_and_says_so(world):
    cell = world.cell(MILVUS, "k10")
    world.edit(cell["recall_path"], lambda record: record.pop("by_query"))
    row = number(world.tidy(), cell, "robustness_0.5")
    assert math.isnan(row["value"]) and row["reason"] == "not recorded"


def test_a_million_queries_cost_in_seconds_what_one_costs_in_microseconds(world):
    df = world.tidy()
    cell = world.cell(MILVUS, "k10")
    one, million = (number(df, cell, metric) for metric in ("server_cpu_us_per_query", COST))
    assert (million["value"], million["unit"]) == (one["value"], "CPU-s")
    assert million["low"] < million["value"] < million["high"] and "logarithms over runs" in million["interval"]
    single = number(df, world.cell(MILVUS, "k10-clients8"), COST)
    assert math.isnan(single["low"]) and "one run" in single["interval"]


def test_the_interval_of_a_cost_is_students_t_of_the_logarithms():
    values = [900.0, 1000.0, 1150.0, 1020.0]
    wanted = stats.ttest_1samp([math.log(value) for value in values], 0).confidence_interval(0.95)
    found = mean_of_logs(values)
    assert (found.low, found.high) == pytest.approx((math.exp(wanted.low), math.exp(wanted.high)))
    assert mean_of_logs([1000.0]).low is None and mean_of_logs([0.0, 1.0]).low is None


def test_two_robustnesses_are_compared_query_by_query(world):
    records = _records(world.tidy())
    rows = {
        row["system"]: row
        for row in material_of(world).rows
        if (row["workload"], row["metric"]) == ("k10", "robustness_0.9")
    }
    first, second = (verdicts.of_queries(rows[name], records[rows[name]["record"]]) for name in (MILVUS, WEAVIATE))
    assert first.by_query.keys() == set(range(1000)) and set(first.by_query.values()) == {0.0, 1.0}
    assert judge(first, second).outcome is Outcome.LESS
    worst = {**rows[MILVUS], "metric": "recall_worst1"}
    assert verdicts.of_queries(worst, records[worst["record"]]) == Share(worst["value"], 10), "ten queries, no thousand"


def test_hard_queries_have_a_table_with_a_row_a_cell(world):
    (table,) = everyone.hardest(material_of(world))
    place = next(row for row in table.rows if row.labels[2] == "k10" and row.labels[4] == WEAVIATE)
    assert [column.label for column in table.columns] == [
        "Recall",
        *(f"Queries with at least {delta}" for delta in ("0.5", "0.9", "1")),
        "Recall of the worst 1 %",
    ]
    assert place.cells[2].text.startswith("0.9700 (0.95") and place.cells[4].value == pytest.approx(0.2)


def test_the_price_of_a_million_queries_stands_at_the_recall_that_was_tuned_for(world):
    (table,) = [table for table in effort.tables(material_of(world)) if table.number == "Q"]
    assert {row.labels[3] for row in table.rows} == {"0.95"}
    cell = table.rows[0].cells[0]
    assert "ef 200, recall 0.9993" in cell.text and cell.number_id


def test_all_systems_stand_in_one_table_with_verdicts(world):
    (table,) = everyone.at_one_recall(material_of(world))
    labels = [column.label for column in table.columns]
    assert labels[:6] == [
        *("Queries per second, 1 client", "p99, 1 client", "CPU a query, 1 client"),
        *("Queries per second, 8 clients", "p99, 8 clients", "CPU a query, 8 clients"),
    ]
    assert labels[6:9] == ["Memory", "Disk", "Load"] and any("category in" in label for label in labels)
    assert {row.labels[4] for row in table.rows} == {MILVUS, WEAVIATE}
    fast = next(row for row in table.rows if row.labels[4] == WEAVIATE)
    slow = next(row for row in table.rows if row.labels[4] == MILVUS)
    assert fast.cells[0].best and not slow.cells[0].best, "it is made up to be faster by a quarter, at equal recall"
    assert (fast.cells[-1].text, slow.cells[-1].text) == (MILVUS, "none")
    assert all(cell.text for row in table.rows for cell in row.cells)


def test_with_less_recall_nobody_wins(world):
    cell = world.cell(WEAVIATE, "k10")

    def worse(record):
        record["recall"]["by_distance"] = {**record["recall"]["by_distance"], "value": 0.9}
        record["by_query"]["by_distance"] = [0.9] * 1000

    world.edit(cell["recall_path"], worse)
    (table,) = everyone.at_one_recall(material_of(world))
    fast = next(row for row in table.rows if row.labels[4] == WEAVIATE)
    assert not fast.cells[0].best and fast.cells[-1].text == f"none; not decided: {MILVUS}"
    choice, _, lacks = recommended(world)[1]["Most queries, one client, at recall ≥ 0.95"]
    assert choice.text == winners.UNDETERMINED and lacks.text.startswith("the best has less recall")


def recommended(world):
    """Table XVI for the 10 nearest by criterion, and the uses of Table VI.B for them, with their cells."""
    head_to_head, *_, by_use = winners.tables(material_of(world))
    return (
        {row.labels[0]: row.cells for row in head_to_head.rows},
        {row.labels[0]: row.cells for row in by_use.rows if row.labels[1] == "10"},
    )


def test_what_was_tuned_for_a_recall_is_recommended_at_that_recall(world):
    criteria, uses = recommended(world)
    chosen = uses["Most queries, one client, at recall ≥ 0.95"][0]
    assert chosen.text == WEAVIATE and chosen.best, "whom Table EQ has in bold"
    assert criteria["QPS, one client, at recall ≥ 0.95"][2].text == "Winner (1 of 1)"
    assert {"Most queries, several clients", "Most queries, several clients, at recall ≥ 0.95"} <= uses.keys()
    assert "Fewest resources, at recall ≥ 0.95" in uses and "Short answers, small sets, at recall ≥ 0.95" in uses
    assert not {"QPS, one client", "Latency variance"} & criteria.keys(), "one client asked at that recall alone"


def test_searches_of_different_target_recalls_are_never_compared_with_each_other(world):
    targets = {row["number_id"]: row["target_recall"] for row in material_of(world).rows}
    for cells in recommended(world):
        for name, (first, second, *_) in cells.items():
            found = {targets[number] for number in (*first.parents, *second.parents)}
            assert found <= {0.95 if name.endswith(", at recall ≥ 0.95") else None}, name


def test_a_recall_that_was_tuned_for_is_no_merit(world):
    criteria, uses = recommended(world)
    assert uses["Recall"][0].text == "tuned for, not compared"
    for of, said in (("standard", "tuned for, not compared"), ("high-dim", "nothing to compare")):
        assert [cell.text for cell in criteria[f"Recall@10 ({of})"]] == ["none", said, said]


def test_the_stability_of_tuned_searches_is_that_of_whatever_efforts_they_needed(world):
    for cell in world.cells:
        if cell["workload"] == "k10-clients16":
            world.edit(cell["query_path"], tuned)
            world.edit(cell["query_path"], lambda record: record.update(ef_search=240))
    criteria, _ = recommended(world)
    assert len(criteria["Concurrent stability (16 clients), at recall ≥ 0.95"][0].parents) == 4


def test_where_nothing_was_tuned_for_a_recall_there_is_no_such_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    material = material_of(World({"random-xs-20-angular": ("cosine", 9000, 20)}))
    assert everyone.at_one_recall(material) == []


def test_no_two_of_twelve_systems_have_the_same_colour_and_no_two_of_thirty_the_same_sign():
    assert len(set(charts.colours(f"system-{number:02}" for number in range(24)).values())) == 24
    palette = charts.colours(f"system-{number:02}" for number in range(30))
    signs = set(zip(palette.values(), charts.shapes(len(palette)), strict=True))
    assert len(signs) == 30


def test_the_page_lists_these_tables(world):
    numbers = [
        table.number
        for _, tables in catalogue.tables_of(material_of(world), catalogue.case_studies())
        for table in tables
    ]
    assert {"EQ", "Q", "H"} <= set(numbers)
    assert len(numbers) == len(set(numbers)), "a number is the id of one place on the page"


@pytest.mark.parametrize(("systems", "pairs"), [(2, 1), (6, 15), (7, 6), (15, 14)])
def test_of_many_systems_the_table_of_verdicts_has_the_best_beside_each_of_the_others(systems, pairs):
    def row(number: int, metric: str) -> dict[str, object]:
        place = {"dataset": "d", "topology": "t", "workload": "w", "metric": metric}
        return {**place, "system": f"s{number:02}", "number_id": f"{metric}{number}", "value": 10.0 + number}

    judged = {}
    for metric in ("p50_ms", "qps"):
        rows = [row(number, metric) for number in range(systems)]
        judged |= {(a["number_id"], b["number_id"]): (a, b, None) for a, b in combinations(rows, 2)}
    found = [(a, b) for a, b, _ in effort.shown(SimpleNamespace(of_systems=judged))]
    assert len(found) == 2 * pairs
    if systems > 6:
        best = {"p50_ms": "s00", "qps": f"s{systems - 1:02}"}
        assert all(best[a["metric"]] in (a["system"], b["system"]) for a, b in found)
