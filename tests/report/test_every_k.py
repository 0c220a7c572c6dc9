"""Whatever number of neighbours was asked for has its place in every table, chart and summary: one alone, and two."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pytest

from anncestry.report.charts import Figure, standard
from anncestry.report.model.cells import NO_CELL, Table
from anncestry.report.model.highlights import summary
from anncestry.report.model.material import Material
from anncestry.report.model.records import read_records
from anncestry.report.site.page import write_page
from anncestry.report.tables import glance, nodes, peaks
from anncestry.report.tables.standard import tables, tails
from casestudies import STUDIES, winners
from casestudies import figures as paper_figures
from tests.builders.world import FILTER, PUBLISHED, World, parsed, unpacked

DATASETS = {
    "fashion-mnist-784-euclidean": ("l2", 60000, 784),
    "random-xs-20-angular": ("cosine", 9000, 20),
    "random-20-angular-20k": ("cosine", 18000, 20),
}
"""Two of one dimension, and one that is alone in its own."""
CLIENTS = (4, 8, 16)


class Measured(NamedTuple):
    """What was measured for some numbers of neighbours, on one node and on three."""

    sizes: tuple[int, ...]
    material: Material

    def asked(self, ids: set[str]) -> set[int]:
        """The numbers of neighbours that these numbers of queries are of."""
        return {row["k"] for row in self.material.rows if row["number_id"] in ids and row["k"] is not None}


def _asked_for(k: int) -> dict[str, dict[str, Any]]:
    """The workloads of `k` neighbours: one client, one with a filter, and several for a fixed time."""
    asked = {"runs": 3, "queries": 1000, "warmup": 100, "k": k}
    return {
        f"k{k}": {**asked, "clients": 1},
        f"k{k}-category30": {**asked, "clients": 1, "filter": FILTER},
        **{f"k{k}-clients{n}": {**asked, "clients": n, "duration_s": 10} for n in CLIENTS},
    }


def _world(sizes: tuple[int, ...], patch: pytest.MonkeyPatch) -> World:
    workloads = {name: asked for k in sizes for name, asked in _asked_for(k).items()}
    patch.setattr("tests.builders.world.WORKLOADS", workloads)
    world = World(DATASETS)
    histogram = {"upper_ns": [1_000_000, 2_000_000], "counts": [900, 100]}
    for cell in world.cells:
        world.edit(cell["query_path"], lambda record: record.update(histogram=histogram))
    return world


def _on_three_nodes(df: pd.DataFrame) -> pd.DataFrame:
    """The numbers, and the same as if of a cluster that is slower by a fifth."""
    more = df.assign(topology="cluster-3", number_id=df["number_id"] + "c", value=df["value"] * 1.2)
    kept = df["metric"].isin(["rows", "dim"]) | df["metric"].str.startswith("recall")
    more.loc[kept, "value"] = df.loc[kept, "value"]
    return pd.concat([df, more], ignore_index=True)


@pytest.fixture(scope="module", params=[(20,), (10, 100)], ids=["20", "10 and 100"])
def measured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("world"))
        df = _world(request.param, patch).tidy()
        records = read_records(df)
        load = next(record for record in records.values() if record["stage"] == "load")
        topology = {**load["spec"]["topology"], "name": "cluster-3", "nodes": 3}
        cluster = {**load, "spec": {**load["spec"], "topology": topology}}
        yield Measured(request.param, Material(_on_three_nodes(df), {**records, "cluster": cluster}))


def _named(names: str, measured: Measured) -> list[str]:
    """The numbers of tables for each number of neighbours: that of the paper's 10 is bare."""
    return [name if k == 10 else f"{name}-{k}" for name in names.split() for k in measured.sizes]


def _ids(table: Table) -> set[str]:
    return {name for row in table.rows for cell in row.cells for name in (cell.number_id, *cell.parents)}


def _check_of_one_size(built: list[Table], measured: Measured) -> None:
    """Each of these tables has numbers of its own number of neighbours only, and says which that is."""
    for table in built:
        k = int(table.number.partition("-")[2] or 10)
        assert measured.asked(_ids(table)) == {k}, table.number
        said = {int(size) for size in re.findall(r"(?:K = |the )(\d+)(?: nearest|\b)", table.title + table.caption)}
        assert said == {k}, (table.number, table.caption)


def test_tables_i_to_x_have_every_number_of_neighbours(measured: Measured) -> None:
    shown = {table.number: table for table in tables(measured.material)}
    latencies = {(20,): ["IV-20"], (10, 100): ["IV", "V"]}[measured.sizes]
    clients = _named("X", measured)
    assert list(shown) == ["I", "II", "III", *latencies, "VI", "VII", "VIII", "IX", *clients]
    assert [shown[number].title for number in latencies] == [f"Latency, K = {k}, no filter" for k in measured.sizes]
    assert {column.group for column in shown["VI"].columns} == {f"K = {k}" for k in measured.sizes}
    assert {row.labels[2] for row in shown["VII"].rows} == {str(k) for k in measured.sizes}
    assert {column.group for column in shown["VIII"].columns} == {
        f"Recall@{k} by {by}" for k in measured.sizes for by in ("id", "distance")
    }
    for number in clients:
        assert [column.label for column in shown[number].columns] == [str(n) for n in CLIENTS]
    for number in (*latencies, "VI", "VIII", *clients):
        assert all(cell.value is not None for row in shown[number].rows for cell in row.cells), number
    _check_of_one_size([shown[number] for number in clients], measured)


def test_p99_by_clients_and_the_summary_are_of_every_number_of_neighbours(measured: Measured) -> None:
    built = tails(measured.material)
    assert [table.number for table in built] == _named("PC", measured)
    assert len({table.title for table in built}) == len(built), "each can be told from the others"
    numbers = {row["number_id"]: row for row in measured.material.rows}
    rates = {table.number: table for table in tables(measured.material)}
    for table, number in zip(built, _named("X", measured), strict=True):
        assert [column.label for column in table.columns] == [str(n) for n in CLIENTS]
        assert [row.labels for row in table.rows] == [row.labels for row in rates[number].rows]
        shown = [numbers[cell.number_id] for row in table.rows for cell in row.cells]
        assert {row["metric"] for row in shown} == {"p99_ms"} and all(row["value"] is not None for row in shown)
    _check_of_one_size(built, measured)
    (summary,) = peaks.tables(measured.material)
    places = {row.labels[:3] for row in summary.rows}
    assert len(places) == 2 * 2 * len(DATASETS), "each dataset, topology and system"
    assert sorted((row.labels[:3], row.labels[4]) for row in summary.rows) == sorted(
        (place, str(k)) for place in places for k in measured.sizes
    )
    for row in summary.rows:
        ids = {row.cells[place].number_id for place in range(3)} | {*row.cells[3].parents}
        assert measured.asked(ids) == {int(row.labels[4])}
        assert (numbers[row.cells[2].number_id]["clients"], row.cells[3].text) == (16, "16")


def test_tables_xi_to_xv_are_made_for_every_number_of_neighbours(measured: Measured) -> None:
    built = nodes.tables(measured.material)
    assert [table.number for table in built] == _named("XI XII XIII XIV XV", measured)
    assert all(cell.value is not None for table in built for row in table.rows for cell in row.cells)
    assert len({table.title for table in built}) == len(built), "each can be told from the others"
    _check_of_one_size(built, measured)


def test_verdicts_and_uses_are_of_every_number_of_neighbours(measured: Measured) -> None:
    *head_to_head, uses = winners.tables(measured.material)
    assert [table.number for table in head_to_head] == _named("XVI", measured)
    for k, table in zip(measured.sizes, head_to_head, strict=True):
        assert measured.asked(_ids(table)) == {k} and f"the {k} nearest" in table.caption
        compared = {row.labels[0] for row in table.rows if row.cells[0].text != "none"}
        assert compared >= {
            f"Recall@{k} (high-dim)",
            "Small-dataset latency (<100K)",
            "Low-dim latency (<200D)",
            "Filtered latency",
            "QPS, one client",
            "Concurrent QPS (4–8 clients)",
            "Concurrent stability (16 clients)",
            "Latency variance",
        }
        assert ("Storage efficiency" in compared) == (k == measured.sizes[0]), "of no number of neighbours: once"
    assert uses.number == "VI.B"
    of = {row.labels[:2]: row.cells for row in uses.rows}
    for use, names in winners.USES.items():
        sizes = [size for name, size in of if name == use]
        if winners.OF_DATA.issuperset(names):
            assert sizes == [NO_CELL], use
        elif use != "Short answers, large sets" and use != "Fewest resources":
            assert sizes == [str(k) for k in measured.sizes], use
    for (use, size), cells in of.items():
        assert measured.asked(set(cells[1].parents)) <= ({int(size)} if size != NO_CELL else set()), use
    for k in measured.sizes:
        for use in ("Short answers, small sets", "Most queries, one client", "Most queries, several clients"):
            assert of[use, str(k)][0].text == "weaviate-1.27.0" and of[use, str(k)][0].best, (use, k)


def test_further_numbers_of_neighbours_leave_out_what_compares_nothing(measured: Measured) -> None:
    """The first table has every criterion of the paper, whether or not something compares in it."""
    first, *others = winners.tables(measured.material)[:-1]
    assert [row.labels[0] for row in first.rows][4] == "Large-scale latency (>2M)"
    assert first.rows[4].cells[0].text == "none"
    assert not any(row.cells[0].text == "none" for table in others for row in table.rows)


def _marks(spec: dict[str, Any]) -> set[str]:
    return set(re.findall(r'"number_id": "([^"]+)"', json.dumps(spec)))


def _by_name(figures: list[Figure]) -> dict[str, Figure]:
    found = {figure.name: figure for figure in figures}
    assert len(found) == len(figures)
    return found


@pytest.mark.parametrize(
    ("name", "names_of_tables"),
    [("paper-4", "VII"), ("paper-6", "X"), ("paper-8", "XI"), ("paper-9", "XII XIII XIV XV")],
)
def test_figures_of_the_paper_have_panels_of_every_number_of_neighbours(
    measured: Measured, name: str, names_of_tables: str
) -> None:
    figure = _by_name(paper_figures.figures(measured.material))[name]
    assert list(figure.tables) == (["VII"] if name == "paper-4" else _named(names_of_tables, measured))
    of = {panel.heading: measured.asked(_marks(panel.spec)) for panel in figure.panels}
    assert len(of) == len(figure.panels)
    assert {k for sizes in of.values() for k in sizes} == set(measured.sizes)
    for heading, sizes in of.items():
        assert [int(k) for k in re.findall(r"(?:K = |Recall@)(\d+)", heading)] == list(sizes), heading
    parts = {re.sub(r"(K = |Recall@)\d+", "", heading) for heading in of}
    assert len(of) == len(parts) * len(measured.sizes), "each panel is there for each of them"


@pytest.mark.parametrize(
    ("name", "numbers", "folds"),
    [
        ("clients", {10: "X", 20: "X-20", 100: "X-100"}, False),
        ("p99-clients", {10: "PC", 20: "PC-20", 100: "PC-100"}, False),
        ("ecdf", {10: "IV", 20: "IV-20", 100: "V"}, True),
        ("distribution", {10: "IV", 20: "IV-20", 100: "V"}, True),
    ],
)
def test_charts_are_drawn_for_every_number_of_neighbours(
    measured: Measured, name: str, numbers: dict[int, str], folds: bool
) -> None:
    """The headline's has the bare name; of distributions, the others are folded."""
    drawn = _by_name(standard.figures(measured.material))
    first, *others = measured.sizes
    assert {found for found in drawn if found.startswith(name)} == {name, *(f"{name}-{k}" for k in others)}
    for k in measured.sizes:
        figure = drawn[name if k == first else f"{name}-{k}"]
        assert {k} == measured.asked({mark for panel in figure.panels for mark in _marks(panel.spec)})
        assert len(figure.panels) == 2 * len(DATASETS) and f"K = {k}" in figure.caption
        assert figure.tables == (numbers[k],)
        assert figure.folded == (folds and k != first)


def test_rates_and_p99_are_drawn_by_the_same_numbers_of_clients(measured: Measured) -> None:
    drawn = _by_name(standard.figures(measured.material))
    numbers = {row["number_id"]: row for row in measured.material.rows}
    for k in measured.sizes:
        of = {}
        for name, metric in (("clients", "qps"), ("p99-clients", "p99_ms")):
            figure = drawn[name if k == measured.sizes[0] else f"{name}-{k}"]
            rows = [numbers[mark] for panel in figure.panels for mark in _marks(panel.spec)]
            assert {row["metric"] for row in rows} == {metric}
            of[name] = {(r["dataset"], r["topology"], r["system"], r["clients"]) for r in rows}
            assert {row["clients"] for row in rows} == set(CLIENTS)
            for panel in figure.panels:
                (points,) = {json.dumps(layer["encoding"]["x"]) for layer in _of_lines(panel.spec)}
                assert json.loads(points)["axis"]["values"] == list(CLIENTS)
        assert of["clients"] == of["p99-clients"]


def test_lines_by_number_of_vectors_join_sets_of_one_dimension_only(measured: Measured) -> None:
    figure = _by_name(paper_figures.figures(measured.material))["paper-8"]
    for panel in figure.panels:
        points = [point for data in _data(panel.spec) for point in data if "series" in point]
        lines: dict[tuple[str, str], set[tuple[str, int]]] = {}
        for point in points:
            lines.setdefault((point["system"], point["series"]), set()).add((point["dataset"], point["at"]))
        twenty = {("random-xs-20-angular", 9000), ("random-20-angular-20k", 18000)}
        alone = {("fashion-mnist-784-euclidean", 60000)}
        assert sorted(map(sorted, lines.values())) == sorted(map(sorted, [twenty, alone] * 2)), panel.heading
        assert {(point["dimensions"], point["opacity"] == 1) for point in points} == {(20, True), (784, False)}
        assert {(point["at"], point["label"]) for point in points if point["label"]} == {(18000, "20-d")}
        assert all(layer["encoding"]["detail"]["field"] == "series" for layer in _of_lines(panel.spec))
        assert _of_lines(panel.spec)


def _data(spec: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
    for place in (spec, *spec["layer"]):
        if "data" in place:
            yield place["data"]["values"]


def _of_lines(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [layer for layer in spec["layer"] if layer["mark"]["type"] == "line"]


def test_the_first_table_is_of_one_and_names_the_others_and_the_summary_has_a_table_of_each(measured: Measured) -> None:
    (table,) = glance.tables(measured.material)
    first, *others = measured.sizes
    assert f"For the {first} nearest" in table.caption
    assert ("(K = 100 in the tables and charts below)" in table.caption) == bool(others)
    assert measured.asked(_ids(table)) == {first}
    said = summary(measured.material.numbers, {})
    assert "in the report" not in said
    blocks = said.split("\n\n")
    assert len(blocks) == len(measured.sizes)
    for k, block in zip(measured.sizes, blocks, strict=True):
        head, _, *rows = block.splitlines()
        assert f"p50_ms k={k}" in head and f"recall@{k}" in head and ("load_s" in head) == (k == first)
        of_systems = [row for row in rows if row.split()[0] in DATASETS]
        assert len(of_systems) == 2 * 2 * len(DATASETS), "each dataset, topology and system"
        assert all(" @" in row and " - " not in row for row in of_systems)
        assert f"workloads: p50 and recall k{k}; QPS k{k}-clients16" in rows


def test_the_summary_says_where_a_number_of_neighbours_is_that_no_plain_query_asked_for(measured: Measured) -> None:
    df = measured.material.numbers.copy()
    another = df[df["workload"] != ""].assign(k=7, client="sdk")
    said = summary(pd.concat([df, another], ignore_index=True), {})
    assert "k=7" not in said and "k = 7 as well: in the report" in said.splitlines()


def test_a_page_has_one_place_for_each_and_its_charts_lead_to_their_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    df = _world((10, 100), monkeypatch).tidy()
    page = write_page(df, tmp_path / "out", title="Two", facts=PUBLISHED, studies=STUDIES, chart_files=False)
    text = page.read_text(encoding="utf-8")
    ids = [attributes["id"] for _, attributes in parsed(unpacked(text)) if attributes.get("id")]
    assert len(ids) == len(set(ids))
    assert {"table-XI", "table-XI-100", "table-XVI", "table-XVI-100", "table-VI.B", "table-X-100"} <= set(ids)
    assert {"figure-ecdf", "figure-ecdf-100", "figure-clients", "figure-clients-100"} <= set(ids)
    captions = {
        name: of for name, of in re.findall(r'<h3 id="figure-([^"]+)">.*?(<figcaption.*?</figcaption>)', text, re.S)
    }
    assert 'Numbers: <a href="#table-V">Table V</a>.' in captions["ecdf-100"]
    assert 'Numbers: <a href="#table-XI">Table XI</a>, <a href="#table-XI-100">Table XI-100</a>.' in captions["paper-8"]
    folded = re.findall(r'<h3 id="figure-([^"]+)">[^<]*</h3>\s*<figcaption[^\n]*\n<details>', text)
    assert folded == ["ecdf-100", "distribution-100"]
    assert len(text.encode()) < 1.5e6
