"""The tables for papers, set by a real LaTeX: all of a report, long ones, and those with hostile names."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from anncestry.cells.blocks import Absent
from anncestry.report.model.cells import Cell, Column, Table, TableRow
from anncestry.report.site.catalogue import tables_of
from anncestry.report.site.latex import LONGEST, PREAMBLE, as_tex
from anncestry.report.tables import spec
from casestudies import STUDIES
from tests.builders.fixed_report import lay_out, material_of
from tests.builders.world import HOSTILE

pytestmark = pytest.mark.browser

NASTY = r"[x]*~^\input{/etc/passwd}%$a_b#&--,,''``!?<<>>|" + '"\u00e9\u017e\u4e2d\U0001f600\x07' + HOSTILE


def _set(folder: Path, *tables: Path) -> str:
    """What pdflatex says of a document with these tables; the test fails where it stops at an error."""
    files = "".join(f"\\input{{{table.resolve().with_suffix('')}}}\n\\clearpage\n" for table in tables)
    preamble = "\n".join(PREAMBLE)
    document = f"\\documentclass{{article}}\n{preamble}\n\\begin{{document}}\n{files}\\end{{document}}\n"
    (folder / "paper.tex").write_text(document)
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "paper.tex"],
        cwd=folder,
        capture_output=True,
        check=False,
    )
    said = done.stdout.decode(errors="replace")
    assert done.returncode == 0, said[-2000:]
    assert "Missing character" not in said
    return said


def _table(rows: int, text: str) -> Table:
    body = tuple(TableRow((f"{text} {n}",), (Cell(text, 1.0, best=True), Cell("2 ± 1", 2.0))) for n in range(rows))
    return Table("Z", text, text, (text,), (Column(text, "%", text), Column("b")), body)


def test_every_table_of_a_report_can_be_set_and_no_float_is_wider_than_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    built = [table for _, of_group in tables_of(material_of(lay_out(tmp_path)), STUDIES) for table in of_group]
    floats = [table for table in built if len(table.rows) <= LONGEST]
    assert len(floats) >= 15 and len(floats) < len(built)
    for some in (floats, built):
        files = [tmp_path / f"table-{table.number}.tex" for table in some]
        for file, table in zip(files, some, strict=True):
            file.write_text(as_tex(table, table.number))
        said = _set(tmp_path, *files)
        assert some is built or not re.search(r"Overfull \\[hv]box", said)
        pages = re.search(r"Output written on paper\.pdf \((\d+) pages", said)
        assert pages and int(pages[1]) >= len(some)


def test_sentences_are_set_in_lines_and_no_wider_than_the_text(tmp_path: Path) -> None:
    reason = "index.type: scann is unsupported by milvus 2.2.16; it came with 2.3.0, and what it takes for it is said"
    (table,) = spec.of_absent(
        [Absent("blobs", f"milvus-{n}", "standalone", "k10", "", "unsupported", f"{reason} by {n}") for n in range(5)]
    )
    file = tmp_path / "listed.tex"
    file.write_text(as_tex(table, table.number))
    assert "p{24em}" in file.read_text() and not re.search(r"Overfull \\[hv]box", _set(tmp_path, file))


@pytest.mark.parametrize("rows", [1, LONGEST, 3 * LONGEST])
def test_whatever_a_name_holds_is_printed_and_not_obeyed(tmp_path: Path, rows: int) -> None:
    table = tmp_path / "nasty.tex"
    table.write_text(as_tex(_table(rows, NASTY), "nasty"))
    said = _set(tmp_path, table)
    assert "(/etc/passwd" not in said  # how TeX tells that it opens a file
    assert (r"\begin{longtable}" in table.read_text()) == (rows > LONGEST)
