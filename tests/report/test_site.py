"""The pages beside the results, and what can be downloaded: every file linked, every table in formats that agree."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urldefrag
from xml.etree import ElementTree

import pandas as pd
import pyarrow.parquet as pq
import pytest
import vl_convert

from anncestry import workflow
from anncestry.cells.matrix import Matrix
from anncestry.cells.stage import PACKAGE, STAGES, code_below
from anncestry.home import CASE_STUDIES
from anncestry.provenance import gates
from anncestry.report.model.cells import Cell, Column, Table, TableRow
from anncestry.report.site import downloads, latex, more_pages, shell
from anncestry.report.site.page import write_page
from casestudies import STUDIES
from tests.builders.world import HOSTILE, PUBLISHED, World, unpacked
from tests.toy import ROOT, Toy

PAGES = {"index.html", "published.html", "tables.html", "cells.html", "method.html", "audit.html"}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """36 cells, one of them invalid and one not measured, in the working directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("world"))
        world = World()
        bad = world.cell("weaviate-1.27.0", "k10")["query_path"]
        world.edit(bad, lambda record: record["gates"].append({"gate": "known rows", "ok": False, "detail": "7 short"}))
        Path(world.cell("milvus-2.3.5", "k100")["query_path"]).unlink()
        write_page(world.tidy(), Path("site"), title="Two databases", facts=PUBLISHED, studies=STUDIES)
        yield world


class _Links(HTMLParser):
    def __init__(self, page: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.targets: set[str] = set()
        text = unpacked(page.read_text())
        self.feed(text)
        # A number's address opens its ancestry, wherever the page shows it.
        self.ids |= set(re.findall(r'"(n[0-9a-f]{10})"', text))

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.ids |= {found["id"]} if "id" in found else set()
        if tag == "a":
            self.targets.add(found["href"])


def test_every_link_of_every_page_leads_to_a_file_and_to_a_place_in_it(world):
    pages = {path.name: _Links(path) for path in Path("site").glob("*.html")}
    assert set(pages) == PAGES
    for name, page in pages.items():
        assert {urldefrag(target).url for target in page.targets} >= PAGES, f"{name} has the navigation"
        for target in page.targets:
            file, place = urldefrag(target)
            assert not file or (Path("site") / file).is_file(), f"{name}: {target}"
            if place and (not file or file in pages):
                assert place in pages[file or name].ids, f"{name}: {target}"


def test_every_table_is_there_in_five_formats_that_say_the_same(world):
    page = "".join(Path("site", name).read_text() for name in ("index.html", "published.html", "tables.html"))
    numbers = re.findall(r'<table id="table-([^"]+)"', page)
    assert {"II", "IV", "X", "B", "M"} <= set(numbers) and len(numbers) == len(set(numbers))
    known = set(world.tidy()["number_id"])
    for number in numbers:
        files = {suffix: Path("site") / name for suffix, name in downloads.names(number).items()}
        assert all(f'href="{path.relative_to("site")}"' in page for path in files.values())
        plain = json.loads(files["json"].read_text())
        cells = [cell for row in plain["rows"] for cell in row["cells"]]
        csv = pd.read_csv(files["csv"], keep_default_na=False, dtype=str)
        rows = pq.read_table(files["parquet"]).to_pylist()
        assert len(csv) == len(rows) == len(cells)
        shown = csv["shown"].str.removeprefix("'").tolist()  # before a sign, so that no spreadsheet computes it
        assert shown == [row["shown"] for row in rows] == [cell["shown"] for cell in cells]
        assert {name for cell in cells for name in cell["numbers"]} <= known
        for suffix, escape in (("tex", latex.tex), ("md", downloads.markdown)):
            text = files[suffix].read_text()
            assert all(escape(cell["shown"]) in text for cell in cells), number


def test_every_chart_is_there_as_svg_and_png_with_its_title_and_legend(world):
    page = Path("site/index.html").read_text()
    images = sorted(Path("site/charts").glob("*.svg"))
    assert len(images) == len(re.findall(r'data-chart="\d+"', page)) >= 10
    for svg in images:
        png = svg.with_suffix(".png")
        assert f'href="charts/{svg.name}"' in page and f'href="charts/{png.name}"' in page
        assert png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        words = "".join(ElementTree.parse(svg).getroot().itertext())
        assert "milvus-2.3.5" in words and "currentColor" not in svg.read_text()


def test_a_page_whose_charts_are_not_drawn_as_files_offers_none(world, tmp_path):
    path = write_page(world.tidy(), tmp_path, title="Two databases", chart_files=False)
    assert "data-chart=" in path.read_text() and 'href="charts/' not in path.read_text()
    assert not (tmp_path / "charts").exists()


def test_whether_charts_are_drawn_as_files_is_in_the_key_of_the_page_only(tmp_path):
    toy = Toy.make(tmp_path)
    without, with_files = (_matrix(toy, chart_files) for chart_files in (False, True))
    assert without.report != with_files.report
    assert (without.table, without.cells) == (with_files.table, with_files.cells)


def _matrix(toy: Toy, chart_files: bool) -> Matrix:
    toy.files["config"]["chart_files"] = chart_files
    toy.save()
    return workflow.expand(workflow.Choice(toy.folder / "config", "default"))


def _table(text: str) -> Table:
    return Table(
        "X1",
        text,
        text,
        ("Dataset",),
        (Column(text, "%", text), Column("b")),
        (TableRow((text,), (Cell(text, 1.0, best=True), Cell("2 ± 1", 2.0))),),
    )


def test_latex_prints_signs_instead_of_obeying_them():
    assert latex.tex(r"a_b & 50 % of $x$ #1 {~^} \input{x}") == (
        r"a\_b \& 50 \% of \$x\$ \#1 \{\textasciitilde{}\textasciicircum{}\} \textbackslash{}input\{x\}"
    )
    assert latex.tex("1.4 ± 0.2\nms — µs") == r"1.4 $\pm$ 0.2 ms \textemdash{} \textmu{}s"
    nasty = "\\write18{rm} % & _ ^ ~ # $ {\n" + HOSTILE
    text = "".join(line for line in latex.as_tex(_table(nasty), "nasty").splitlines(True) if not line.startswith("%"))
    ours = (
        r"\\(begin|end|caption|label|toprule|midrule|bottomrule|multicolumn|textbf|text[a-z]+|pm|\\|[{}&%$#_]"
        r"|centering|sbox|ifdim|wd|linewidth|resizebox|usebox|else|fi)"
    )
    bare = re.sub(ours, "", text)
    assert "\\" not in bare, bare
    plain = re.sub(r"\\[{}&%$#_]|\\\\", "", text)
    assert plain.count("{") == plain.count("}")
    assert [line.count("&") for line in plain.splitlines() if line.endswith(" ")] == [2, 2, 2]
    assert "%" not in plain and "#" not in plain


def test_markdown_cells_stay_cells():
    text = downloads.as_markdown(_table("a|b*c_d`e<f>\n| --- |" + HOSTILE))
    rows = text.splitlines()[2:]
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 4 for row in rows), rows
    assert not re.search(r"(?<!\\)[<`]", text)


def test_each_cell_is_listed_with_its_state_and_why(world):
    page = Path("site/cells.html").read_text()
    lines = re.findall(r"<tr data-cell.*?</tr>", page)
    assert len(lines) == 36
    assert "36 cells: 34 valid, 1 invalid, 1 not measured." in page
    (invalid,) = [line for line in lines if ">invalid<" in line]
    assert "known rows: 7 short" in invalid and 'data-system="weaviate-1.27.0"' in invalid
    (missing,) = [line for line in lines if ">not measured</td>" in line]
    assert 'data-workload="k100"' in missing
    for cell in world.cells:
        key = Path(cell["load_path"]).stem.rpartition("@")[2]
        assert f'href="#load-{key}"' in page and f'id="load-{key}"' in page
    assert "index.M: 16" in page, "the spec of a load"


def test_the_method_names_every_gate_with_what_it_demands():
    declared = dict(more_pages.declared_gates())
    made = {
        gate.gate
        for gate in (gates.row_count(1, 1, ""), gates.oracle(1.0, 1, 0.1), gates.primed(0), gates.version("1", "1"))
    }
    assert made <= declared.keys() and all(len(words) > 20 for words in declared.values())
    limits = {name: value for name, value, _ in more_pages.thresholds(gates)}
    assert limits["oracle recall min"] == f"{gates.ORACLE_RECALL_MIN:g}"


def test_every_gate_of_a_report_is_explained_in_its_method(world):
    page = Path("site/method.html").read_text()
    for name in ("row count", "settings", "known rows"):
        assert f'<th scope="row">{name}</th>' in page
    rules = re.findall(r"<dt>.+</dt><dd>(.+)</dd>", page.partition('id="rules"')[2].partition("</section>")[0])
    assert len(rules) >= 10 and all(len(reason) > 30 for reason in rules)


def test_a_page_has_another_key_when_any_file_that_it_is_made_of_changes():
    sources = {path for name in ("table", "report") for path in STAGES[name].source_files()} | {
        *code_below(CASE_STUDIES)
    }
    inside = [path for folder in (PACKAGE / "report", CASE_STUDIES) for path in folder.rglob("*")]
    files = {path for path in inside if path.is_file() and "__pycache__" not in path.parts}
    assert files <= sources
    imported = {
        name
        for path in files
        if path.suffix == ".py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("anncestry")
        for name in (node.module, *(f"{node.module}.{part.name}" for part in node.names))
    }
    paths = {name: ROOT / "src" / f"{name.replace('.', '/')}.py" for name in imported}
    others = {name for name, path in paths.items() if path.exists() and path not in sources}
    # These give errors, the content of records, names of facts, paths, and the config, which is in the key: no page
    # quotes their texts.
    assert others == {
        f"anncestry.{name}"
        for name in (
            "errors",
            "home",
            "user_cache",
            "cells.matrix",
            "cells.spec",
            "cells.stage",
            "provenance.records",
            "provenance.platform",
            "provenance.versioning",
        )
    }


def test_a_wheel_has_the_templates_and_what_pages_inline():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    for name, folder in (("anncestry.report.site", PACKAGE / "report" / "site"), ("casestudies", CASE_STUDIES)):
        packed = {path for pattern in declared[name] for path in folder.glob(pattern) if path.suffix != ".pyc"}
        files = {path for path in folder.rglob("*") if path.is_file()}
        assert packed == {path for path in files if path.suffix not in (".py", ".pyc")}


def test_published_numbers_stand_beside_ours_with_the_machine_named(world):
    page = Path("site/published.html").read_text()
    assert "8 × Example CPU @ 3 GHz" in page
    table = page.partition('<table id="table-B">')[2].partition("</table>")[0]
    lines = re.findall(r"<tr data-.*?</tr>", table)
    assert lines and all("audit.html#p" in line and 'class="num"' in line for line in lines)


def test_a_page_of_others_figures_is_left_out_where_there_are_none(world, tmp_path):
    write_page(world.tidy(), tmp_path / "plain", title="Two databases")
    assert {path.name for path in (tmp_path / "plain").glob("*.html")} == PAGES - {"published.html", "audit.html"}
    whole, plain = (
        {path.name: path.read_bytes() for path in folder.iterdir()}
        for folder in (Path("site/charts"), tmp_path / "plain/charts")
    )
    assert plain and plain.items() <= whole.items()
    assert all(name.startswith("paper-") for name in whole.keys() - plain.keys())


def test_the_script_of_the_charts_is_kept_and_a_changed_one_is_made_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    shell.bundle.cache_clear()
    made = shell.bundle()
    (kept,) = tmp_path.rglob("*.js")
    assert kept.read_text() == made
    kept.write_text(made + "\n// something else")
    shell.bundle.cache_clear()
    assert shell.bundle() == made
    assert kept.read_text() == made
    monkeypatch.setattr(vl_convert, "javascript_bundle", None)
    shell.bundle.cache_clear()
    assert shell.bundle() == made, "read, not made"


def test_the_pages_are_the_same_bytes_whatever_order_the_sets_of_a_process_have(tmp_path):
    """Else `verify`, which draws them again and compares, would find fault with what nobody has touched."""
    draw = (
        "from pathlib import Path; from casestudies import STUDIES; "
        "from anncestry.report.site.page import write_page; "
        "from tests.builders.world import PUBLISHED, World; "
        "write_page(World().tidy(), Path('site'), title='Two databases', facts=PUBLISHED, studies=STUDIES)"
    )
    for seed in ("1", "2"):
        (tmp_path / seed).mkdir()
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
        subprocess.run([sys.executable, "-c", draw], cwd=tmp_path / seed, env=environment, check=True)
    first, second = (
        {path.relative_to(tmp_path / seed): path.read_bytes() for path in (tmp_path / seed / "site").rglob("*.*")}
        for seed in ("1", "2")
    )
    assert len(first) > len(PAGES)
    assert {path for path in first.keys() | second.keys() if first.get(path) != second.get(path)} == set()


def test_what_all_rows_of_a_wide_table_are_of_is_said_once_above_it(tmp_path):
    template = tmp_path / "table.html"
    template.write_text('{% from "parts.html" import table with context %}{{ table(content) }}')
    labels = ("Dataset", "Topology", "Workload", "System")
    for rows, gone in (
        ((("blobs", "standalone", "k10", "a"), ("blobs", "standalone", "k100", "a")), ["Dataset", "Topology"]),
        ((("blobs", "standalone", "k10", "a"), ("rings", "cluster", "k10", "b")), ["Workload"]),
        ((("blobs", "standalone", "k10", "a"),), []),
    ):
        content = Table(
            "Q", "Rates", "Queries.", labels, (Column("QPS"),), tuple(TableRow(row, (Cell("1"),)) for row in rows)
        )
        page = shell.write(
            tmp_path / "page.html", template, title="", content=content, numbers=shell.Numbers(), colours={}
        )
        table = page.read_text()
        headings = re.findall(r'<th scope="col"[^>]*>(.*?)</th>', table)
        assert headings == [*(label for label in labels if label not in gone), "QPS"]
        said = [f"{label.lower()} {rows[0][labels.index(label)]}" for label in gone]
        assert ("Of all rows: " in table) == bool(gone)
        assert f"Of all rows: {'; '.join(said)}." in re.sub("<[^>]*>", "", table) or not gone
        assert table.count(f'data-dataset="{rows[0][0]}"') == sum(row[0] == rows[0][0] for row in rows)
        assert all(len(re.findall(r'<th scope="row"', row)) == 4 - len(gone) for row in table.split("<tr ")[1:])
