"""The page published.html: each published number that we measured, too, with the ratio and what can be said of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from anncestry.report import downloads, shell
from anncestry.report.audit import Published
from anncestry.report.charts import colours
from anncestry.report.facts import flat, merged, of_stage
from anncestry.report.markup import Numbers
from anncestry.report.material import Material
from anncestry.report.numbers import rows_of
from anncestry.report.tables import Table

NAME = "published.html"


def write(material: Material, facts: Published, built: Sequence[Table], out_dir: Path, *, title: str) -> Path:
    """Write published.html beside the page of results, with the tables of `beside`; returns its path."""
    cells = [cell for content in built for row in content.rows for cell in row.cells]
    ids = {name for cell in cells for name in (*cell.parents, cell.number_id) if name}
    shown = [row for row in rows_of(material.numbers) if row["number_id"] in ids]
    behind = {row["record"] for row in shown} & material.records.keys()
    lines = [row for content in built for row in content.rows if len(row.cells) > 1]
    machine = merged(dict(flat(record.get("platform"))) for record in of_stage(material.records, "load"))
    return shell.write(
        out_dir / NAME,
        NAME,
        title=title,
        pages=shell.pages(published=True),
        ancestry=shell.ancestry(shown, {path: material.records[path] for path in behind}),
        numbers=Numbers(),
        colours=colours(material.first),
        tables=built,
        table_files=downloads.names,
        figures=len(facts.figures),
        covered=len({cell.source for row in lines for cell in row.cells if cell.source}),
        verdicts=sorted(Counter(row.cells[3].text for row in lines).items()),
        machine=" × ".join(filter(None, (machine.get("cores", ""), machine.get("cpu_model", "")))),
    )
