"""Every table and figure that a page can show, in the order in which it shows them: to add one, add it here.

A maker returns what the material has something for, and an empty list otherwise. Numbers of tables and names of figures
are ids of places on the page: each stands for one only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import cast

from altair.utils import schemapi

from anncestry.report.charts import Figure, over_time
from anncestry.report.charts import pairs as pair_charts
from anncestry.report.charts import standard as standard_charts
from anncestry.report.charts import storage as storage_charts
from anncestry.report.compare import changes
from anncestry.report.model.cells import Table
from anncestry.report.model.material import Material
from anncestry.report.model.numbers import by_bytes
from anncestry.report.published import Published
from anncestry.report.tables import effort, everyone, glance, nodes, peaks, spec, standard, usage
from anncestry.report.tables import pairs as pair_tables

MakeTables = Callable[[Material], list[Table]]
MakeFigures = Callable[[Material], list[Figure]]


RESULTS, MORE = "index.html", "tables.html"
"""The page that answers first, and that with the tables for those who look closer: the first stays small and quick."""


@dataclass(frozen=True)
class Group:
    """Tables that belong together: `name` is the id of their section, `intro` a sentence in front of them.

    `page` is the file of the site that shows them.
    """

    name: str
    heading: str
    tables: tuple[MakeTables, ...]
    intro: str = ""
    page: str = RESULTS


@dataclass(frozen=True)
class ExtraPage:
    """A page that a case study adds to the site: its file, its name in the list of pages, and the page it follows.

    `write` gets the material, what is published, the tables of the groups that name this page, the folder, and the
    title of the site.
    """

    file: str
    name: str
    after: str
    write: Callable[[Material, Published, Sequence[Table], Path, str], object]


@dataclass(frozen=True)
class CaseStudies:
    """What belongs to single documents: all that the report knows of the package casestudies."""

    figures: tuple[MakeFigures, ...] = ()
    groups: tuple[Group, ...] = ()
    pages: tuple[ExtraPage, ...] = ()


OPENING = Group("glance", "At a glance", (glance.tables,))
"""What a page opens with."""

FIRST = (
    Group("pairs", "In pairs", (pair_tables.tables,)),
    Group("tables", "Tables", (standard.tables, peaks.tables, nodes.tables)),
    Group(
        "arms",
        "Before and after, with a control",
        (lambda m: changes.of_arms(by_bytes(m.numbers), m.rule, m.records),),
    ),
)
"""The tables that come first on a page: what was measured."""

LAST = (
    Group("changes", "From version to version, and twice the same", (changes.tables,)),
    Group("recall", "At equal recall", (everyone.at_one_recall, effort.tables)),
    Group(
        "beyond",
        "Beyond the paper",
        (spec.of_features, usage.storage_paths, spec.of_defects, spec.of_killed, usage.through_clients),
    ),
    Group("tails", "p99 by clients", (standard.tails,), page=MORE),
    Group("sure", "How sure differences are", (effort.comparisons,), page=MORE),
    Group("hardest", "The hardest queries", (everyone.hardest,), page=MORE),
    Group(
        "usage",
        "What it took",
        (usage.loading, usage.over_libraries, usage.by_node, usage.during_queries, usage.of_members),
        page=MORE,
    ),
    Group("absent", "What can't be measured here", (lambda m: spec.of_absent(m.absent),)),
)
"""The tables that come last, after those of the case studies."""

FIGURES: tuple[MakeFigures, ...] = (
    pair_charts.figures,
    standard_charts.figures,
    storage_charts.figures,
    over_time.of_loads,
    over_time.of_queries,
    lambda m: [figure for feature in m.features for figure in feature.figures(m)],
    over_time.of_members,
    lambda m: changes.figures(by_bytes(m.numbers)),
)
"""The figures that come after those of the case studies."""


def tables_of(material: Material, studies: CaseStudies | None = None) -> list[tuple[Group, list[Table]]]:
    """The groups that have a table for this material, each with its tables."""
    groups = (OPENING, *FIRST, *(studies.groups if studies else ()), *LAST)
    built = [(group, [table for make in group.tables for table in make(material)]) for group in groups]
    return [(group, found) for group, found in built if found]


def names(extra: Sequence[ExtraPage]) -> dict[str, str]:
    """The pages of a site, file → name, in the order in which each page lists them."""
    found = {}
    own = {RESULTS: "Results", MORE: "More tables", "cells.html": "Cells", "method.html": "Method"}
    for file, name in own.items():
        found[file] = name
        found |= {page.file: page.name for page in extra if page.after == file}
    return found


def figures_of(material: Material, studies: CaseStudies | None = None) -> list[Figure]:
    """The figures that have something to show of this material."""
    with schemapi.debug_mode(False):  # no check against Vega-Lite's schema, which takes a second: tests make it
        return [figure for make in (*(studies.figures if studies else ()), *FIGURES) for figure in make(material)]


def case_studies() -> CaseStudies:
    """`STUDIES` of the package casestudies, which is no part of this one; empty ones if Python doesn't find it."""
    if find_spec("casestudies") is None:
        return CaseStudies()
    return cast(CaseStudies, import_module("casestudies").STUDIES)
