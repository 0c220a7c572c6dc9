"""The tables and figures of the paper and beyond, from fixed records: what each place shows, to the letter.

`fixtures/report.json` holds the records of a small made-up matrix, with an invalid load, a missing system and a missing
recall; `fixtures/report.txt` what all tables say of it. After a wanted change of a table, write the latter anew with
`python -m tests.report.test_paper`, and read its diff.
"""

from __future__ import annotations

import ast
import csv
import html
import json
import os
import re
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import altair as alt
import jsonschema
import pandas as pd
import pytest
import vl_convert

import anncestry
import casestudies
from anncestry.home import PUBLISHED
from anncestry.metrics.decide import Sample, Share, judge
from anncestry.report.charts import Figure, Panel
from anncestry.report.compare import changes
from anncestry.report.counterpart import Joined
from anncestry.report.model import records
from anncestry.report.model.cells import NO_CELL, Table, text_of
from anncestry.report.model.material import Material
from anncestry.report.model.verdicts import Verdicts
from anncestry.report.published import PEERS, Published, peer_id
from anncestry.report.site import catalogue, sheets
from anncestry.report.site.page import CHART_CONFIG
from anncestry.report.tables import peaks, standard
from casestudies import STUDIES, audit, beside, checks, documents, vectordbbench, winners
from casestudies.winners import UNJUDGED
from tests.builders.fixed_report import FIXTURES, lay_out, material_of

MILVUS, WEAVIATE = "milvus-2.3.5", "weaviate-1.27.0"


def shown(table: Table) -> str:
    """A table as text: a line a row; * marks what is better by more than noise, [] what was published."""
    heads = [" ".join(filter(None, (c.group, c.label, f"({c.unit})" if c.unit else ""))) for c in table.columns]
    lines = [f"Table {table.number}. {table.title}", " | ".join((*table.labels, *heads))]
    for row in table.rows:
        cells = [
            cell.text + ("*" if cell.best else "") + (f" [{cell.published}]" if cell.published else "")
            for cell in row.cells
        ]
        lines.append(" | ".join((*row.labels, *cells)))
    return "\n".join(lines) + "\n"


def everything(material: Material) -> str:
    """All tables of a page as text."""
    return "\n".join(shown(table) for _, of_group in catalogue.tables_of(material, STUDIES) for table in of_group)


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Material:
    folder = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return material_of(lay_out(folder))


@pytest.fixture(scope="module")
def tables(material: Material) -> dict[str, Table]:
    return {table.number: table for _, of_group in catalogue.tables_of(material, STUDIES) for table in of_group}


@pytest.fixture(scope="module")
def figures(material: Material) -> dict[str, Figure]:
    return {figure.name: figure for figure in catalogue.figures_of(material, STUDIES)}


def test_every_chart_is_what_the_schema_of_vega_lite_allows(figures: dict[str, Figure]) -> None:
    specs = [panel.spec for figure in figures.values() for panel in figure.panels]
    assert len(specs) > 20
    for spec in specs:
        alt.Chart.from_dict(dict(spec))
    with pytest.raises(jsonschema.ValidationError):
        alt.Chart.from_dict({**specs[0], "width": "wide"})


def _row(table: Table, *labels: str) -> Any:
    return next(row.cells for row in table.rows if set(labels) <= set(row.labels))


def _marks(figure: Figure) -> list[dict[str, Any]]:
    """What the marks of a figure are drawn from; layers of one data share it."""
    found = []
    for panel in figure.panels:
        for place in (panel.spec, *panel.spec["layer"]):
            found += place["data"]["values"] if "data" in place else []
    return found


# Tables


def test_all_tables_say_what_they_said_before(material: Material) -> None:
    assert everything(material) == (FIXTURES / "report.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("value", "std", "unit", "printed"),
    [
        (1.0, None, "requests", "1"),
        (200.0, None, "searches", "200"),
        (1234567.0, None, "rows", "1,234,567"),
        (3.0, 0.0, "queries", "3 ± 0"),
        (4 / 3, 0.58, "queries", "1.3 ± 0.6"),  # a mean over runs
        (7.0, None, "MiB", "7.0"),  # measured, not counted
    ],
)
def test_what_is_counted_is_printed_as_a_whole_number_if_it_is_one(
    value: float, std: float | None, unit: str, printed: str
) -> None:
    assert text_of(value, std, unit) == printed


def test_what_stands_beside_ours_goes_by_what_a_topology_is_and_not_by_its_name(
    material: Material, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    renamed = material_of(lay_out(tmp_path, {"standalone": "one-box", "cluster-3": "three-boxes"}))

    def printed(of: Material) -> list[str]:
        built = (table for _, group in catalogue.tables_of(of, STUDIES) for table in group)
        return sorted(cell.published for table in built for row in table.rows for cell in row.cells if cell.published)

    assert printed(renamed) == printed(material) != []


def test_every_table_of_the_paper_is_there_and_has_a_number_of_its_own(tables: dict[str, Table]) -> None:
    of_paper = ["I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII", "XIII", "XIV", "XV", "XVI"]
    assert [number for number in tables if number in of_paper] == of_paper


def test_no_two_tables_have_one_number() -> None:
    """Each stands for one place of a page, also those that no fixed record here has something for."""
    numbers: dict[str, list[str]] = {}
    folders = Path(anncestry.__file__).parent / "report", Path(casestudies.__file__).parent
    for file in sorted(file for folder in folders for file in folder.rglob("*.py")):
        tree = ast.parse(file.read_text())
        known = {
            node.targets[0].id: node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and isinstance(node.value, ast.Constant)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Table", "TableSpec") and node.args:
                number = (
                    node.args[0].value
                    if isinstance(node.args[0], ast.Constant)
                    else known.get(ast.unparse(node.args[0]))
                )
                if number is not None:
                    numbers.setdefault(str(number), []).append(file.name)
    for number in checks.TABLES:  # of the paper, whichever code makes them
        numbers[number] = sorted({*numbers.get(number, []), "standard.py"})
    assert len(numbers) > 15
    assert {number: files for number, files in numbers.items() if len(files) > 1} == {}


def test_every_number_has_an_id_or_parents_that_the_table_of_numbers_has(
    material: Material, tables: dict[str, Table]
) -> None:
    known = set(material.numbers["number_id"])
    for table in tables.values():
        for row in table.rows:
            for cell in row.cells:
                ids = {cell.number_id, *cell.parents} - {""}
                assert ids <= known, (table.number, row.labels, cell)
                assert ids or cell.value is None, (table.number, row.labels, cell)


def test_what_is_invalid_or_missing_says_so_and_never_shows_a_number(tables: dict[str, Table]) -> None:
    gist = _row(tables["XI"], "gist-960-euclidean", "standalone")
    glove = _row(tables["XI"], "glove-25-angular", "standalone")
    assert gist[3].text == "invalid" and "25200 of 1000000 rows" in gist[3].problem
    assert glove[3].text == "not measured" and glove[3].value is None


def test_what_a_load_read_and_wrote_stands_in_the_table_of_loading(tables: dict[str, Table]) -> None:
    table = tables["II"]
    found = {
        (column.group, column.system): cell.text
        for column, cell in zip(table.columns, _row(table, "sift-128-euclidean", "cluster-3"), strict=True)
        if column.group in ("Read", "Written")
    }
    assert found == {
        **{("Read", MILVUS): NO_CELL, ("Written", MILVUS): NO_CELL},
        **{("Read", WEAVIATE): "0.0", ("Written", WEAVIATE): "512"},
    }


def test_dimension_is_compared_among_datasets_of_one_size(tables: dict[str, Table]) -> None:
    sizes = [row.labels[0] for row in tables["XI"].rows if "standalone" in row.labels]
    dims = [row.cells[0].value for row in tables["XI"].rows if "standalone" in row.labels]
    assert sizes == ["60 k", "1 M to 1.18 M", "1 M to 1.18 M", "1 M to 1.18 M"]
    assert dims == [784, 25, 128, 960]


def test_several_nodes_stand_against_one_and_the_change_names_both_numbers(tables: dict[str, Table]) -> None:
    one, several, change = _row(tables["XII"], "sift-128-euclidean", WEAVIATE)
    assert change.value == pytest.approx(100 * (several.value / one.value - 1))
    assert change.parents == (several.number_id, one.number_id)
    assert (one.published, several.published, change.published) == ("3.32", "4.30", "30")


def test_a_figure_of_the_paper_stands_only_beside_the_topology_that_it_ran_on(tables: dict[str, Table]) -> None:
    """The paper's GloVe-100 rows ran on the cluster; its cluster column of Milvus is no cluster of Milvus."""
    for number in ("XII", "XIII", "XIV", "XV"):
        assert all(row.labels[2] == WEAVIATE for row in tables[number].rows)


# Winners, and measured beside published


def _verdicts(table: Table) -> dict[str, list[str]]:
    return {row.labels[0]: [cell.text for cell in row.cells] for row in table.rows}


def test_a_winner_is_one_whose_difference_can_t_be_noise(material: Material) -> None:
    df = material.numbers.copy()
    df.loc[df["metric"] == "recall_by_distance", "value"] = 0.99
    (found, *_) = winners.tables(Material(df, material.records, material.facts))
    verdicts = _verdicts(found)
    assert verdicts["Small-dataset latency (<100K)"] == ["1", NO_CELL, "Winner (1 of 1)"]
    assert verdicts["Low-dim latency (<200D)"] == ["1", "Undetermined", "Undetermined"], "by its three rounds in pairs"
    assert verdicts["Concurrent QPS (4–8 clients)"] == ["4", NO_CELL, "Winner (2 of 4)"]


def test_what_is_faster_with_less_recall_wins_nothing(tables: dict[str, Table]) -> None:
    """D4: here the faster system finds a hundredth less."""
    verdicts = _verdicts(tables["XVI"])
    assert verdicts["Small-dataset latency (<100K)"] == ["1", "Undetermined", "Undetermined"]
    assert not any(cell.best for row in tables["IV"].rows for cell in row.cells if row.labels[0].startswith("fashion"))
    said = {row.labels[2:]: row.cells[-1].text for row in tables["C"].rows if row.labels[0].startswith("fashion")}
    assert "is faster, with recall" in said["k10", "p50_ms", f"{MILVUS} against {WEAVIATE}"]


def test_what_was_measured_once_has_no_winner(tables: dict[str, Table]) -> None:
    verdicts = _verdicts(tables["XVI"])
    assert verdicts["Data loading speed"][1:] == verdicts["Storage efficiency"][1:] == ["Undetermined", "Undetermined"]


def test_a_judgement_is_no_measurement_and_the_paper_s_verdict_stands_beside(tables: dict[str, Table]) -> None:
    row = next(row for row in tables["XVI"].rows if row.labels == ("Deployment simplicity",))
    assert [(cell.text, cell.published) for cell in row.cells[1:]] == [(UNJUDGED, "—"), (UNJUDGED, "Winner")]


def test_loads_that_were_built_several_times_can_have_a_winner(material: Material) -> None:
    def built(rebuild_mean: float) -> Any:
        return dict(rebuilds=4, rebuild_mean=rebuild_mean, rebuild_std=rebuild_mean / 100)

    df = material.numbers.copy()
    for system, mean in ((MILVUS, 10.0), (WEAVIATE, 20.0)):
        for column, value in built(mean).items():
            df.loc[(df["metric"] == "load_s") & (df["system"] == system), column] = value
    found = winners.tables(Material(df, material.records, material.facts))[0]
    assert _verdicts(found)["Data loading speed"][1:] == ["Winner (2 of 2)", NO_CELL]


def test_more_comparisons_need_more_evidence() -> None:
    """p = 0.02 is enough alone, and not as one of five."""
    weak = _comparison(10.0, 11.0, 0.29)
    p = judge(*(entry.judged_by for entry in weak.entries.values())).p
    assert p is not None and 0.01 < p < 0.05
    known = Verdicts([], {})
    assert winners.decide([weak], known)[id(weak)].winner == "a"
    others = [_comparison(10.0, 10.1, 0.3) for _ in range(4)]
    assert winners.decide([weak, *others], known)[id(weak)].winner == winners.UNDETERMINED


def test_what_is_undetermined_says_how_many_more_rounds_it_takes(tables: dict[str, Table]) -> None:
    uses = {row.labels[:2]: row.cells for row in tables["VI.B"].rows}
    choose, rests, lacks = uses["Most queries, several clients", "10"]
    assert choose.text == winners.UNDETERMINED and rests.parents, "and it rests on numbers that have links"
    assert re.search(r"more rounds: up to [\d,]+", lacks.text)
    assert uses["Loading", NO_CELL][2].text == "measured once: needs several builds (2 ×)"


def test_sets_by_their_size_and_by_their_dimension_are_uses_apart(tables: dict[str, Table], material: Material) -> None:
    """Fashion-MNIST is both small and of many dimensions, SIFT neither."""
    datasets = {row["number_id"]: row["dataset"].partition("-")[0] for row in material.rows}
    of = {row.labels[0]: row.cells[1] for row in tables["VI.B"].rows if row.labels[1] == "10"}
    of = {use: {datasets[number] for number in cell.parents} for use, cell in of.items()}
    assert of["Short answers, small sets"] == of["Short answers, high dimensions"] == {"fashion"}
    assert (of["Short answers, low dimensions"], of["Short answers, large sets"]) == ({"sift"}, set())


def test_what_is_only_a_judgement_is_chosen_for_nobody(tables: dict[str, Table]) -> None:
    (row,) = (row for row in tables["VI.B"].rows if row.labels[0] == "Simple to operate")
    assert row.labels[1] == NO_CELL and row.cells[0].text == UNJUDGED and not row.cells[0].best


def test_a_recall_with_defective_answers_wins_nothing() -> None:
    known = Verdicts([], {})
    recalls = {n: winners.Entry(v, (n,), Share(v, 10_000)) for n, v in (("a", 0.99), ("b", 0.9))}
    fair = winners.Comparison(recalls, lower=False)
    assert winners.decide([fair], known)[id(fair)].winner == "a"
    bad = winners.Comparison({**recalls, "a": replace(recalls["a"], defective=True)}, lower=False)
    assert winners.decide([bad], known)[id(bad)] == winners.Decision(
        winners.UNDETERMINED, ("the best has defective answers",)
    )


def test_memory_is_judged_between_builds_and_is_a_resource(material: Material) -> None:
    df = material.numbers.copy()
    df.loc[df["metric"] == "recall_by_distance", "value"] = 0.99
    for system, mib in ((MILVUS, 900.0), (WEAVIATE, 600.0)):
        of = (df["metric"] == "pss_mib") & (df["phase"] == "query") & (df["system"] == system)
        df.loc[of, ["value", "reason", "rebuilds", "rebuild_mean", "rebuild_std"]] = [mib, "", 4, mib, mib / 200]
    found, *_, by_use = winners.tables(Material(df, material.records, material.facts))
    assert _verdicts(found)["Memory (4–8 clients)"] == ["8", NO_CELL, "Winner (8 of 8)"]
    fewest = next(row for row in by_use.rows if row.labels[0] == "Fewest resources")
    assert "Memory (4–8 clients)" in fewest.labels[2] and f"{WEAVIATE} wins" in fewest.cells[1].text


def _comparison(a: float, b: float, std: float) -> winners.Comparison:
    return winners.Comparison(
        {n: winners.Entry(v, (n,), Sample(v, std, 3)) for n, v in (("a", a), ("b", b))}, lower=True
    )


def _three(values: dict[str, float], std: float = 0.01) -> winners.Comparison:
    """Systems with these times, of five runs each."""
    return winners.Comparison({n: winners.Entry(v, (n,), Sample(v, std, 5)) for n, v in values.items()}, lower=True)


def test_two_that_are_equivalent_and_ahead_of_a_third_are_tied_and_the_third_has_lost() -> None:
    comparison = _three({"a": 1.0, "b": 1.001, "c": 2.0})
    decisions = winners.decide([comparison], Verdicts([], {}))
    assert decisions[id(comparison)] == winners.Decision(winners.TIED, ahead=("a", "b"))
    said = {name: winners._cell(name, [comparison], decisions, []).text for name in "abc"}
    assert said == {"a": winners.TIED, "b": winners.TIED, "c": NO_CELL}
    chosen = winners._choice([comparison], [decisions[id(comparison)]], [])
    assert chosen == "a or b", "and not any of them"


def test_who_wins_one_comparison_is_no_winner_where_another_wins_elsewhere() -> None:
    first, second = _three({"a": 1.0, "b": 2.0}), _three({"b": 2.0, "c": 1.0})
    decisions = winners.decide([first, second], Verdicts([], {}))
    said = winners._cell("a", [first, second], decisions, [])
    assert (said.text, said.best) == ("Mixed (1 of 1)", False)
    assert winners._choice([first, second], [*decisions.values()], ["a", "c"]) == "it depends"


def test_a_published_number_stands_beside_its_measured_one_with_ratio_and_verdict(tables: dict[str, Table]) -> None:
    cells = _row(tables["B"], "Table IV", "sift-128-euclidean, p50_ms, K = 10, 1 client", WEAVIATE)
    published, measured, ratio, verdict, differs = cells
    assert published.text == "3.32 ± 0.50" and ratio.value == pytest.approx(measured.value / 3.32)
    assert (verdict.text, differs.text) == ("lower", "asked through a client library there")
    cells = _row(tables["B"], "Table IV", "gist-960-euclidean, p50_ms, K = 10, 1 client", MILVUS)
    assert cells[3].text == "lower" and "version 2.3 there" in cells[4].text


def test_only_the_same_question_is_a_counterpart(tables: dict[str, Table]) -> None:
    """No figure without a dataset, no bound, none of what is invalid or missing, and no cluster of Milvus."""
    labels = {(row.labels[2], row.labels[3], row.labels[4]) for row in tables["B"].rows}
    assert not {system for figure, _, system in labels if figure.startswith("gist") and system == WEAVIATE}
    assert not {topology for _, topology, system in labels if system == MILVUS and "cluster" in topology}
    clustered = [row.cells[0].text for row in tables["B"].rows if row.labels[1:4:2] == ("Table XII", "cluster-3")]
    assert clustered == ["4.30"]


def test_every_published_figure_is_joined_or_says_why_not_and_no_topology_s_name_counts(
    material: Material, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert material.facts is not None
    said = beside.reasons(beside.joints(material, material.facts))
    assert sum(joined + sum(count for _, count in others) for _, joined, others in said) == 1006
    assert said[0][1] > 10
    monkeypatch.chdir(tmp_path)
    other = material_of(lay_out(tmp_path, {"standalone": "plain", "cluster-3": "trio"}))
    assert {row["topology"] for row in other.rows} == {"plain", "trio"}
    assert beside.reasons(beside.joints(other, material.facts)) == said


def test_each_published_figure_has_our_numbers_or_a_reason_in_the_file_and_on_the_audit_page(
    material: Material, tmp_path: Path
) -> None:
    assert material.facts is not None
    known = set(material.numbers["number_id"])
    beside.write(material, material.facts, [], tmp_path, "t")
    audit.write(material, material.facts, [], tmp_path, "t")
    assert f'href="{beside.FILE}"' in (tmp_path / beside.PAGE).read_text()
    page = (tmp_path / "audit.html").read_text()
    on_page = dict(re.findall(r'<tr id="(p\w+)">(.*?)</tr>', page, re.DOTALL))
    with open(tmp_path / beside.FILE, newline="", encoding="utf-8") as file:
        lines = {line["id"]: line for line in csv.DictReader(file)}
    assert list(lines) == [figure.id for figure in material.facts.figures] and len(lines) == 1006
    for figure in material.facts.figures:
        line = lines[figure.id]
        assert {name: line[name] for name in ("document", "place", "value", "dataset", "detail")} == {
            name: getattr(figure, name) for name in ("document", "place", "value", "dataset", "detail")
        }
        ids = line["numbers"].split()
        assert set(ids) <= known and bool(ids) != bool(line["why_not"]), figure
        shown = on_page[figure.id]
        assert all(name in shown for name in ids) and html.escape(line["why_not"], quote=False) in html.unescape(shown)
    joined = [line for line in lines.values() if line["numbers"]]
    assert len(joined) > 40 and any(line["metric"] == "load_ratio" for line in joined)


def test_machines_are_told_apart(tables: dict[str, Table]) -> None:
    said = {row.labels[0]: row.cells[0].text for row in tables["M"].rows}
    assert "Example CPU" in said["This page"] and "neither" in said["the paper"]
    assert "cpu_cores 48 cores" in said["DiskANN over NVMe-oF with Milvus 2.6.9"]


# The other documents, versions, and the same twice


def _changed(material: Material, **columns: Any) -> Material:
    """The material with other values in columns of its rows of Milvus."""
    df = material.numbers.copy()
    for column, value in columns.items():
        df.loc[(df["system"] == MILVUS) & (df["workload"] != ""), column] = value
    return Material(df, material.records, material.facts)


def _as_weaviate(material: Material, name: str, version: str, **spec: Any) -> Material:
    """The material with its Milvus on record as a Weaviate of this name, version, and further parts of its spec."""
    records = json.loads(json.dumps(material.records).replace(MILVUS, name))
    for record in records.values():
        if record["stage"] == "load" and record["spec"]["system"]["name"] == name:
            settings = spec.get("settings", {})
            record["spec"]["system"] |= {"engine": "weaviate", "version": version, "settings": settings}
            record["spec"] |= {"load": {**record["spec"]["load"], **spec.get("load", {})}}
    client = {"client": "sdk"} if "load" in spec else {}
    return replace(_changed(material, engine="weaviate", **client, system=name), records=records)


def test_a_document_s_table_appears_with_its_question_and_keeps_both_sources_apart(material: Material) -> None:
    assert documents.tables(material) == []
    (nearest,) = documents.tables(_changed(material, k=1))
    assert nearest.number == "D1"
    ours = [row for row in nearest.rows if row.labels[0] == documents.MEASURED]
    theirs = [row for row in nearest.rows if row not in ours]
    assert len(ours) == 16 and all(cell.number_id or cell.text == NO_CELL for row in ours for cell in row.cells)
    assert "30,655" in {row.cells[0].text for row in theirs} and all(row.cells[0].source for row in theirs)
    assert documents.tables(_as_weaviate(material, f"{WEAVIATE}-rest", "1.27.0")) == [], "whatever it is called"
    by_rest = _as_weaviate(material, "asked-otherwise", "1.27.0", settings={"protocol": "rest"})
    (by_protocol,) = documents.tables(by_rest)
    assert by_protocol.number == "D2"
    words = {row.labels[4] for row in by_protocol.rows if "asked-otherwise" in row.labels}
    assert words and all("by REST and GraphQL, 1 client" in each for each in words)
    by_library = _as_weaviate(material, "any-name", "1.23.9", load={"client": "sdk"})
    (of_library,) = documents.tables(by_library)
    assert of_library.number == "D2", "the document's version, asked as the document asked it"
    asked = {row.labels[4] for row in of_library.rows if row.labels[0] == documents.MEASURED}
    told = "by gRPC, loaded by that client, 1 client, through its Python client"
    assert asked and all(words.endswith(told) for words in asked)
    assert "2,520" in {cell.text for row in of_library.rows for cell in row.cells}
    assert documents.tables(_as_weaviate(material, "weaviate-1.23.9", "1.25.0", load={"client": "sdk"})) == []
    (of_mysql,) = documents.tables(_changed(material, engine="mysql"))
    assert of_mysql.number == "D3" and "13,060.41" in "".join(c.text for r in of_mysql.rows for c in r.cells)


def test_an_index_on_disk_stands_beside_the_document_s(material: Material) -> None:
    records = {path: dict(record) for path, record in material.records.items()}
    for record in records.values():
        if record["stage"] == "load":
            record["spec"] = {**record["spec"], "index": {"type": "diskann"}}
    (table,) = documents.tables(Material(material.numbers, records, material.facts))
    assert table.number == "D4" and any("remote NVMe-oF" in row.labels[2] for row in table.rows)


def test_memory_and_bytes_read_a_query_stand_with_an_index_on_disk_and_a_library(material: Material) -> None:
    records = {path: dict(record) for path, record in material.records.items()}
    for record in records.values():
        if record["stage"] == "load":
            record["spec"] = {**record["spec"], "index": {"type": "diskann"}}
    df = material.numbers.copy()
    df.loc[df["system"] == WEAVIATE, ["system", "engine"]] = ["hnswlib-0.8.0-library", "hnswlib"]
    of_queries = df["phase"] == "query"
    for metric, value in (("io_read_mib", 300.0), ("samples", 3000.0), ("pss_mib", 700.0), ("pss_anon_mib", 650.0)):
        df.loc[of_queries & (df["metric"] == metric), ["value", "reason"]] = [value, ""]
    (table,) = documents.tables(Material(df, records, material.facts))
    assert [column.label for column in table.columns][-3:] == ["Memory (PSS)", "Memory in no file", "Read a query"]
    ours = [row for row in table.rows if row.labels[0] == documents.MEASURED]
    for system in (MILVUS, "hnswlib-0.8.0-library"):
        pss, anonymous, read = next(r for r in ours if r.labels[1].startswith("sift") and system in r.labels).cells[-3:]
        assert (pss.value, anonymous.value, read.value) == (700, 650, pytest.approx(300 * 2**20 / 3000))
        assert read.text == "104,858" and len(read.parents) == 2


def test_the_summary_has_the_peak_of_the_ladder_with_its_clients_for_every_k(material: Material) -> None:
    df = material.numbers.copy()
    df = df[df["dataset"].str.startswith("sift")]
    df.loc[df["system"] == MILVUS, "engine"] = "mysql"
    ladder = (df["system"] == MILVUS) & df["duration_s"].notna()
    for clients, rate, p99 in ((1, 500.0, 2.0), (4, 1900.0, 4.0), (8, 1500.0, 9.0), (16, 9999.0, 30.0)):
        for metric, value in (("qps", rate), ("p99_ms", p99)):
            df.loc[ladder & (df["clients"] == clients) & (df["metric"] == metric), ["value", "reason"]] = [value, ""]
    df.loc[ladder & (df["clients"] == 16), "defect_share"] = 0.01
    hundred = df[(df["system"] == MILVUS) & (df["workload"] != "")].assign(k=100)
    hundred[["workload", "number_id"]] = hundred[["workload", "number_id"]] + "-k100"
    changed = Material(pd.concat([df, hundred], ignore_index=True), material.records, material.facts)
    (summary,) = peaks.tables(changed)
    ours = [row for row in summary.rows if MILVUS in row.labels]
    assert [row.labels[-1] for row in ours] == ["10", "100"]
    for row in ours:
        recall, p99, peak, clients, load, _ = row.cells
        assert (peak.value, clients.text) == (1900, "4"), "sixteen clients were answered more often, but with defects"
        assert recall.value is not None and p99.value is not None and load.value is not None
    assert any(WEAVIATE in row.labels for row in summary.rows), "of every engine"
    (beside_polardb,) = vectordbbench.tables(changed)
    of_mysql = [row for row in beside_polardb.rows if row.labels[0] == documents.MEASURED]
    assert [(row.labels[1:], row.cells) for row in of_mysql] == [(row.labels, row.cells) for row in ours]
    assert "13,060.41" in {row.cells[2].text for row in beside_polardb.rows if row not in of_mysql}
    of_hundred = next(table for table in standard.tails(changed) if table.number == "PC-100")
    assert [column.label for column in of_hundred.columns] == ["1", "4", "8", "16"]
    assert [[cell.value for cell in row.cells] for row in of_hundred.rows] == [[2, 4, 9, 30]]


def test_the_document_s_summary_stands_beside_databases_of_its_protocol_only(material: Material) -> None:
    assert peaks.tables(material) and vectordbbench.tables(material) == []


def test_what_one_number_of_clients_asked_has_no_peak_and_a_tuned_search_has_one_of_its_own(material: Material) -> None:
    df = material.numbers.copy()
    (before,) = peaks.tables(material)
    assert peaks.tables(Material(df[df["clients"].isna() | (df["clients"] == 1)], material.records)) == []
    df.loc[df["workload"] != "", "target_recall"] = 0.95
    df.loc[df["clients"] > 1, "ef_search"] = 99
    (tuned,) = peaks.tables(Material(df, material.records))
    assert {row.labels[3] for row in tuned.rows} == {"recall 0.95"}, "whatever effort each number of clients needed"
    assert [row.cells for row in tuned.rows] == [row.cells for row in before.rows]


def own_runner_s(material: Material, folder: Path, told: dict[str, str]) -> list[Table]:
    """Table D3-V where its own runner told this alone."""
    folder = folder / f"published-{peer_id(told)}"
    shutil.copytree(PUBLISHED, folder)
    with open(folder / PEERS, "w", newline="") as file:
        writer = csv.DictWriter(file, told)
        writer.writeheader()
        writer.writerow(told)
    return vectordbbench.own_runner(Material(material.numbers, material.records, Published(folder)))


def asked_by_its_runner(material: Material) -> tuple[dict[str, str], Any]:
    """A line that was kept of Milvus, made one of the same question as a rate of ours, and that rate."""
    assert material.facts is not None
    joined = Joined(material.by_any_client, material.records, material.facts)
    rates = (row for row in material.by_any_client if row["metric"] == "qps" and row["value"] is not None)
    ours = next(row for row in rates if row["system"] == MILVUS and row["clients"] > 1)
    question = joined.asked(ours)
    told = next(told for told in material.facts.peers if told["engine"] == "milvus")
    asked = {name: str(getattr(question, name)) for name in ("dataset", "M", "ef_construction", "ef", "k", "clients")}
    counted = {"duration_s": "4", "qps": "200", "driver_qps": "300", "p99_ms": "9.5", "recall_by_id": ""}
    return {**told, **asked, **counted}, ours


def test_what_vectordbbench_s_runner_counted_stands_beside_ours_of_the_same_question_only(
    material: Material, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, ours = asked_by_its_runner(material)
    (table,) = own_runner_s(material, tmp_path, told)
    theirs, in_turn, *rest = table.rows
    assert "not verifiable" in in_turn.labels[0] and [in_turn.cells[0].text, in_turn.cells[-1].text] == ["300", "1.50"]
    assert "not verifiable" in theirs.labels[0] and [cell.text for cell in theirs.cells[:2]] == ["200", "9.5"]
    assert not any(cell.number_id or cell.value is not None for cell in (*theirs.cells, *in_turn.cells)), (
        "no number of ours"
    )
    beside = next(row for row in rest if row.cells[0].number_id == ours["number_id"])
    assert beside.cells[-1].value == ours["value"] / 200 and beside.cells[-1].parents == (ours["number_id"],)
    told_by = {cell.source for cell in (*theirs.cells, *in_turn.cells) if cell.text != NO_CELL}
    assert told_by == {peer_id(told)}, "each leads to what is known of its origin"
    assert "of another machine" in table.caption and f"of milvus, {told['adapted']}" in table.caption
    for name, other in (("ef", "7"), ("clients", "99"), ("k", "3"), ("system_version", "2.2.16"), ("duration_s", "")):
        assert own_runner_s(material, tmp_path, {**told, name: other}) == [], f"another {name} is another question"
    for limits in ({"cpus": 1}, {"memory_mib": 8192}):
        for record in material.records.values():
            monkeypatch.setitem(record["spec"].setdefault("topology", {}), "limits", limits)
        assert own_runner_s(material, tmp_path / str(limits), told) == [], "its server had no limits"


def test_its_runner_s_figures_of_mariadb_stand_beside_the_dialect_of_a_record_whatever_its_name(
    material: Material, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, ours = asked_by_its_runner(material)
    # Its index has no ef_construction, whatever the configuration says.
    told |= {"engine": "mariadb", "system_version": "11.8.6", "ef_construction": ""}
    assert own_runner_s(material, tmp_path / "before", told) == []
    for record in material.records.values():
        if (system := record["spec"].get("system", {})).get("name") == MILVUS and "engine" in system:
            of_it = {"engine": "mysql", "version": told["system_version"], "settings": {"dialect": "mariadb"}}
            for name, value in of_it.items():
                monkeypatch.setitem(system, name, value)
    (table,) = own_runner_s(material, tmp_path, told)
    assert table.rows[0].labels[3] == f"mariadb-{told['system_version']}"
    beside = next(row for row in table.rows if row.cells[0].number_id == ours["number_id"])
    assert beside.labels[3] == MILVUS, "its name is no condition"
    assert f"of mariadb, {told['adapted']}" in table.caption
    assert own_runner_s(material, tmp_path, {**told, "engine": "seekdb"}) == [], "another dialect of the same engine"


def test_each_version_is_judged_against_the_one_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    older = "weaviate-1.25.0"
    cells = lay_out(tmp_path, {MILVUS: older, '"engine": "milvus"': '"engine": "weaviate"', '"2.3.5"': '"1.25.0"'})
    (table,) = changes.tables(material_of(cells))
    assert table.number == "FV" and {row.labels[2] for row in table.rows} == {f"{older} → {WEAVIATE}"}
    p50 = next(r for r in table.rows if r.labels[0].startswith("fashion") and r.labels[3:5] == ("k10", "p50_ms"))
    assert p50.cells[2].parents
    assert p50.cells[4].text == "faster, with undetermined recall: 0.9993 against 0.9873"
    load = next(r for r in table.rows if r.labels[0].startswith("fashion") and r.labels[4] == "load_s")
    assert load.cells[4].text == "undetermined"


def test_the_same_twice_tells_the_floor_of_noise(material: Material) -> None:
    again = material.numbers[material.numbers["system"] == MILVUS].copy()
    again["rebuild"], again["value"] = 2, again["value"] * 1.03
    again["number_id"] = again["number_id"] + "b"
    df = pd.concat([material.numbers, again], ignore_index=True)
    (table,) = changes.tables(Material(df, material.records, material.facts))
    p50 = next(row for row in table.rows if row.labels[0] == "p50_ms")
    assert table.number == "A" and p50.cells[0].text == "3.0"
    assert p50.cells[0].parents == (p50.cells[1].number_id, p50.cells[2].number_id)


# Figures


def test_the_paper_s_nine_figures_are_drawn_for_what_was_measured(figures: dict[str, Figure]) -> None:
    assert [name for name in figures if name.startswith("paper-")] == [f"paper-{number}" for number in range(1, 10)]


def test_bars_show_the_numbers_of_the_tables(figures: dict[str, Figure], material: Material) -> None:
    values = {row["number_id"]: row["value"] for row in material.rows}
    for name, figure in figures.items():
        for mark in _marks(figure):
            if "number_id" in mark:
                assert mark["value"] == values[mark["number_id"]], (name, mark)


def test_what_has_no_number_says_so_in_its_place_of_a_chart(figures: dict[str, Figure]) -> None:
    labels = {mark["label"] for mark in _marks(figures["paper-3"]) if "label" in mark}
    assert labels == {"invalid", "not measured"}


def test_the_filtered_bar_stands_beside_the_unfiltered_one(figures: dict[str, Figure]) -> None:
    series = {mark["series"] for mark in _marks(figures["paper-4"])}
    assert series == {MILVUS, f"{MILVUS} + filter", WEAVIATE, f"{WEAVIATE} + filter"}


def test_axes_are_those_of_the_paper(figures: dict[str, Figure]) -> None:
    spec = figures["paper-1"].panels[0].spec
    y = next(layer["encoding"]["y"] for layer in spec["layer"] if layer["mark"]["type"] == "bar")
    assert y["scale"]["type"] == "log"
    recall = figures["paper-5"].panels[0].spec
    assert [layer["encoding"]["y"]["scale"]["domain"] for layer in recall["layer"][:1]] == [[0, 1.05]]
    clients = figures["paper-6"].panels[0].spec["layer"][0]["encoding"]["x"]
    assert clients["axis"]["values"] == [1, 4, 8, 16] and "type" not in clients["scale"]


def _axes(panel: Panel) -> dict[str, list[float]]:
    """The domain of each axis of a quantity, by its channel; all layers that are drawn along it have the same."""
    found = {}
    for channel in ("x", "y"):
        layers = panel.spec.get("layer", [panel.spec])
        encodings = [layer["encoding"].get(channel, {}) for layer in layers]
        domains = [each.get("scale", {}).get("domain") for each in encodings if each.get("type") == "quantitative"]
        if domains:
            assert domains.count(domains[0]) == len(domains) and domains[0] is not None, (panel.heading, channel)
            found[channel] = list(domains[0])
    return found


def test_one_node_stands_before_several_and_their_panels_have_one_axis(
    figures: dict[str, Figure], tables: dict[str, Table]
) -> None:
    of_one_dataset: dict[str, list[str]] = {}
    for row in tables["G"].rows:
        of_one_dataset.setdefault(row.labels[0], []).append(row.labels[1])
    assert any(len(set(topologies)) == 2 for topologies in of_one_dataset.values())
    for topologies in of_one_dataset.values():
        assert topologies == sorted(topologies, reverse=True), "standalone, then cluster-3"

    compared = 0
    for name, figure in figures.items():
        panels: dict[str, list[Panel]] = {}
        for panel in figure.panels:
            heading, dot, topology = panel.heading.rpartition(" · ")
            if dot and topology in ("standalone", "cluster-3"):
                panels.setdefault(heading, []).append(panel)
        for heading, group in panels.items():
            if len(group) == 2:
                assert group[0].heading.endswith("standalone"), (name, heading)
                one, several = (_axes(panel) for panel in group)
                assert one and one == several, (name, heading)
                compared += len(one)
    assert compared > 10


def _of_two_speeds(material: Material) -> Material:
    """The material with distributions, and with two efforts; what several nodes answer takes longer, and finds less."""
    df = material.numbers.copy()
    several = df["topology"] == "cluster-3"
    latencies = several & df["metric"].isin(["p50_ms", "p95_ms", "p99_ms"])
    df.loc[latencies, "value"] *= 30
    df.loc[several & df["metric"].str.startswith("recall_by"), "value"] *= 0.7
    df.loc[df["workload"] != "", "ef_search"] = 100
    again = df[df["workload"] != ""].assign(ef_search=200)
    for column in ("number_id", "workload"):
        again[column] += "-high"
    records = {}
    for path, record in material.records.items():
        slower = 30 if record["spec"].get("topology", {}).get("name") == "cluster-3" else 1
        histogram = {"upper_ns": [1_000_000 * slower, 2_000_000 * slower], "counts": [900, 100 * slower]}
        records[path] = {**record, "histogram": histogram} if record["stage"] == "query" else record
    return Material(pd.concat([df, again], ignore_index=True), records, material.facts)


def test_distributions_and_fronts_of_one_node_and_of_several_have_one_axis(material: Material) -> None:
    drawn = {figure.name: figure for figure in catalogue.figures_of(_of_two_speeds(material), STUDIES)}
    for name in ("latency", "ecdf", "distribution", "pareto-qps", "pareto-p99", "clients"):
        of_sift = [panel for panel in drawn[name].panels if panel.heading.startswith("sift")]
        assert [panel.heading.rpartition(" · ")[2] for panel in of_sift] == ["standalone", "cluster-3"], name
        one, several = map(_axes, of_sift)
        assert one and one == several, name
        ticks = [
            [layer["encoding"][channel].get("axis", {}).get("values") for layer in panel.spec["layer"]
             for channel in ("x", "y") if channel in layer["encoding"]]
            for panel in of_sift
        ]  # fmt: skip
        assert [each for each in ticks[0] if each] == [each for each in ticks[1] if each], name


def _of_one_system(material: Material, topologies: int) -> Material:
    """The numbers of one system as if it had been measured on so many topologies."""
    df = material.numbers[material.numbers["system"] == WEAVIATE]
    one, several = (df[df["topology"] == name] for name in ("standalone", "cluster-3"))
    more = [
        several.assign(topology=f"cluster-{n}", number_id=several["number_id"] + f"-{n}")
        for n in range(4, topologies + 2)
    ]
    return Material(pd.concat([one, several, *more], ignore_index=True), material.records, material.facts)


def test_a_dozen_topologies_have_a_dozen_signs_and_colours(material: Material) -> None:
    drawn = {figure.name: figure for figure in catalogue.figures_of(_of_one_system(material, 12), STUDIES)}
    scales = [
        layer["encoding"][channel]["scale"]
        for panel in drawn["paper-9"].panels
        for layer in panel.spec["layer"]
        for channel in ("shape", "color")
        if layer["encoding"].get(channel, {}).get("field") == "topology"
    ]
    assert {len(scale["domain"]) for scale in scales} == {12} and len(scales) > 2
    for scale in scales:
        assert len(set(scale["range"])) == 12
    curves = next(panel for panel in drawn["paper-9"].panels if panel.heading.startswith("(c)"))
    assert vl_convert.vegalite_to_svg({**curves.spec, "width": 600, "config": CHART_CONFIG})


def test_of_one_system_topologies_are_the_bars_of_one_panel(material: Material) -> None:
    drawn = {figure.name: figure for figure in catalogue.figures_of(_of_one_system(material, 3), STUDIES)}
    for number in range(1, 7):
        figure = drawn[f"paper-{number}"]
        assert not [panel.heading for panel in figure.panels if " · cluster-" in panel.heading], figure.name
        topologies = {mark["topology"] for mark in _marks(figure) if "topology" in mark}
        assert topologies == {"standalone", "cluster-3", "cluster-4"}, figure.name


def test_no_axis_shows_a_power_of_ten(figures: dict[str, Figure]) -> None:
    panels = [panel for figure in figures.values() for panel in figure.panels if '"log"' in json.dumps(panel.spec)]
    assert panels
    for panel in panels:
        for width in (900, 280):  # of a phone
            svg = vl_convert.vegalite_to_svg({**panel.spec, "width": width, "config": CHART_CONFIG})
            labels = re.findall(r">([^<]+)</text>", svg)
            assert not [label for label in labels if re.fullmatch(r"[-−]?[\d.]+e[-+−]?\d+", label)], panel.description


def test_the_fairness_sheet_says_what_each_system_was_given(material: Material) -> None:
    tuned = {path: {**record, "ef_search": 120} for path, record in material.records.items()}
    sheet = sheets.fairness(tuned)
    assert sheet is not None
    rows = {row[0]: row[1:] for row in sheet.rows}
    for topic, given in {
        "limits": "none: the whole machine",
        "batch": " rows an insert",
        "index": "M 16",
        "search effort": "120",
        "encoding": "before the clock starts",
        "protocol": "gRPC",
    }.items():
        cells = rows[topic]
        assert len(cells) >= 2 and all(given in cell and cell != "—" for cell in cells), (topic, cells)


def test_facts_of_many_records_are_told_by_their_range() -> None:
    assert records.merged({"load": str(0.5 * n), "id": "a"} for n in (3, 1, 10, 2, 20, 5, 7)) == {
        "load": "0.5 to 10.0",
        "id": "a",
    }
    assert records.merged([{"id": "b"}, {"id": "a"}]) == {"id": "b / a"}


def _write() -> None:
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        text = everything(material_of(lay_out(Path(folder))))
        os.chdir(here)
    (FIXTURES / "report.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    _write()
