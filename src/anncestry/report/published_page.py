"""The page published.html: each published number that we measured, too, with the ratio and what can be said of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from anncestry.provenance.records import replacing
from anncestry.report import downloads
from anncestry.report.audit import Published
from anncestry.report.charts import colours
from anncestry.report.facts import flat, merged, of_stage
from anncestry.report.markup import Numbers, table, text
from anncestry.report.material import Material
from anncestry.report.numbers import rows_of
from anncestry.report.shell import ancestry, document, pages
from anncestry.report.tables import Table

NAME = "published.html"


def write(material: Material, facts: Published, built: Sequence[Table], out_dir: Path, *, title: str) -> Path:
    """Write published.html beside the page of results, with the tables of `beside`; returns its path."""
    path = out_dir / NAME
    with replacing(path) as temporary:
        temporary.write_text(_document(material, facts, built, title), encoding="utf-8")
    return path


def _document(material: Material, facts: Published, built: Sequence[Table], title: str) -> str:
    numbers, palette = Numbers(), colours(material.first)
    cells = [cell for content in built for row in content.rows for cell in row.cells]
    ids = {name for cell in cells for name in (*cell.parents, cell.number_id) if name}
    shown = [row for row in rows_of(material.numbers) if row["number_id"] in ids]
    behind = {row["record"] for row in shown} & material.records.keys()
    return document(
        title=f"Measured beside published: {title}",
        eyebrow="anncestry: the same question, asked again",
        opening=_opening(material, facts, built),
        downloads="",
        files={},
        sections=[
            (
                f"beside-{content.number}",
                content.title,
                table(content, palette, numbers)
                + downloads.links(downloads.names(content.number), f"Table {content.number}"),
            )
            for content in built
        ],
        ancestry=ancestry(shown, {path: material.records[path] for path in behind}),
        pages=pages(published=True),
        here=NAME,
    )


def _opening(material: Material, facts: Published, built: Sequence[Table]) -> str:
    lines = [row for content in built for row in content.rows if len(row.cells) > 1]
    covered = len({cell.source for row in lines for cell in row.cells if cell.source})
    counts = Counter(row.cells[3].text for row in lines)
    said = "; ".join(f"{count} {words}" for words, count in sorted(counts.items()))
    machine = merged(dict(flat(record.get("platform"))) for record in of_stage(material.records, "load"))
    cores = " × ".join(filter(None, (machine.get("cores", ""), machine.get("cpu_model", ""))))
    none = "" if covered else "<p>None of them is of a dataset, topology and question of this matrix.</p>\n"
    return (
        f'<p class="lede">{covered} of {len(facts.figures):,} published numbers have a measured counterpart'
        f"{': ' + text(said) if said else ''}.</p>\n"
        f"<p>Machine: ours {text(cores or 'unknown')}; the paper's records name none. Versions, clients and machines"
        " differ, so a ratio compares all of these, and a verdict holds the noise of runs and nothing else.</p>\n"
        f"{none}"
    )
