"""Every table and figure that a page can show, in the order in which it shows them: to add one, add it here.

A maker returns what the material has something for, and an empty list otherwise. Numbers of tables and names of figures
are ids of places on the page: each stands for one only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from anncestry.report import (
    absent_table,
    arms,
    batch_table,
    beside,
    changes,
    charts,
    curves,
    documents,
    fault_course,
    killed_table,
    library_table,
    members,
    more_tables,
    nodes,
    paper_charts,
    paper_tables,
    storage_table,
    stream_table,
    tables,
    timeline,
    timeline_queries,
    winners,
)
from anncestry.report.charts import Figure
from anncestry.report.material import Material
from anncestry.report.numbers import by_bytes
from anncestry.report.tables import Table

MakeTables = Callable[[Material], list[Table]]
MakeFigures = Callable[[Material], list[Figure]]


@dataclass(frozen=True)
class Group:
    """Tables that belong together: `name` is the id of their section, `intro` a sentence in front of them.

    `page` is the file of the site that shows them.
    """

    name: str
    heading: str
    tables: tuple[MakeTables, ...]
    intro: str = ""
    page: str = "index.html"


GROUPS = (
    Group("tables", "Tables", (lambda m: tables.tables(m.plain, m.paper), paper_tables.tables)),
    Group("arms", "Before and after, with a control", (lambda m: arms.tables(by_bytes(m.numbers)),)),
    Group("winners", "Who wins what", (winners.tables,)),
    Group("beside", "Measured beside published", (beside.tables,), page="published.html"),
    Group("documents", "Questions of the other documents", (documents.tables,)),
    Group("changes", "From version to version, and twice the same", (changes.tables,)),
    Group(
        "more",
        "Beyond the paper",
        (
            lambda m: more_tables.tables(m.plain, m.records),
            lambda m: stream_table.tables(m.plain),
            lambda m: batch_table.tables(m.first),
            lambda m: storage_table.tables(m.plain, m.records),
            lambda m: fault_course.tables(m.plain),
            lambda m: killed_table.tables(m.plain),
            lambda m: more_tables.libraries(m.first),
            library_table.tables,
            lambda m: nodes.tables(m.plain),
            timeline_queries.tables,
            members.tables,
        ),
    ),
    Group("absent", "What can't be measured here", (lambda m: absent_table.tables(m.absent),)),
)
"""All tables, by section."""

FIGURES: tuple[MakeFigures, ...] = (
    paper_charts.figures,
    lambda m: charts.figures(m.plain),
    lambda m: curves.figures(m.plain, m.records),
    timeline.figures,
    timeline_queries.figures,
    fault_course.figures,
    members.figures,
    lambda m: arms.figures(by_bytes(m.numbers)),
)
"""All figures."""


def tables_of(material: Material) -> list[tuple[Group, list[Table]]]:
    """The groups that have a table for this material, each with its tables."""
    built = [(group, [table for make in group.tables for table in make(material)]) for group in GROUPS]
    return [(group, found) for group, found in built if found]


def figures_of(material: Material) -> list[Figure]:
    """The figures that have a panel for this material."""
    return [figure for make in FIGURES for figure in make(material)]
