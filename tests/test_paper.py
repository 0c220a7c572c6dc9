"""The tables and figures of the paper and beyond, from fixed records: what each place shows, to the letter.

`fixtures/report.json` holds the records of a small made-up matrix, with an invalid load, a missing system and a missing
recall; `fixtures/report.txt` what all tables say of it. After a wanted change of a table, write the latter anew with
`python -m tests.test_paper`, and read its diff.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
import vl_convert

from anncestry.report import catalogue
from anncestry.report.charts import Figure
from anncestry.report.material import Material
from anncestry.report.numbers import tidy
from anncestry.report.page import CHART_CONFIG, write_page
from anncestry.report.tables import Table

FIXTURES = Path(__file__).parent / "fixtures"
PUBLISHED = Path(__file__).parents[1] / "config/published/paper.csv"
MILVUS, WEAVIATE = "milvus-2.3.5", "weaviate-1.27.0"


def lay_out(folder: Path) -> list[dict[str, str]]:
    """Write the fixed records below `folder`; returns the cells that they are of."""
    fixed = json.loads((FIXTURES / "report.json").read_text(encoding="utf-8"))
    for path, record in fixed["records"].items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(json.dumps(record))
    cells: list[dict[str, str]] = fixed["cells"]
    return cells


def material_of(cells: list[dict[str, str]]) -> Material:
    """What tables are made from, of records below the working directory."""
    df = tidy(cells)
    paths = sorted({path for path, digest in zip(df["record"], df["record_sha256"], strict=True) if digest})
    return Material(df, {path: json.loads(Path(path).read_text()) for path in paths}, PUBLISHED)


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
    return "\n".join(shown(table) for _, of_group in catalogue.tables_of(material) for table in of_group)


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Material:
    folder = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return material_of(lay_out(folder))


@pytest.fixture(scope="module")
def tables(material: Material) -> dict[str, Table]:
    return {table.number: table for _, of_group in catalogue.tables_of(material) for table in of_group}


@pytest.fixture(scope="module")
def figures(material: Material) -> dict[str, Figure]:
    return {figure.name: figure for figure in catalogue.figures_of(material)}


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


def test_every_table_of_the_paper_is_there_and_has_a_number_of_its_own(tables: dict[str, Table]) -> None:
    of_paper = ["I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII", "XIII", "XIV", "XV"]
    assert [number for number in tables if number in of_paper] == of_paper


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


def test_no_axis_shows_a_power_of_ten(figures: dict[str, Figure]) -> None:
    for figure in figures.values():
        for panel in figure.panels:
            for width in (900, 280):  # of a phone
                spec = {**panel.spec, "width": width, "config": CHART_CONFIG}
                svg = vl_convert.vegalite_to_svg(spec)
                labels = re.findall(r">([^<]+)</text>", svg)
                assert not [label for label in labels if re.fullmatch(r"[-−]?[\d.]+e[-+−]?\d+", label)], (
                    panel.description
                )


def test_names_that_look_like_markup_stay_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fixed = (FIXTURES / "report.json").read_text(encoding="utf-8")
    evil = "<img src=x onerror=alert(1)>"
    cells = lay_out(tmp_path)
    df = tidy(cells)
    assert "glove-25-angular" in fixed
    for column in ("dataset", "system", "topology", "workload"):
        df[column] = df[column].where(df[column] == "", df[column] + evil)
    page = write_page(df, tmp_path / "out", title="Hostile", published=PUBLISHED).read_text(encoding="utf-8")
    assert evil not in page and "&lt;img src=x" in page


def _write() -> None:
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        text = everything(material_of(lay_out(Path(folder))))
        os.chdir(here)
    (FIXTURES / "report.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    _write()
