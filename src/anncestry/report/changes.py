"""What a version changed, and how far apart the same thing is when it is built and measured again (A/A)."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

from anncestry.report import noise
from anncestry.report.compare import compare
from anncestry.report.compare_noise import Noise
from anncestry.report.compare_page import row_of
from anncestry.report.compare_sides import Side
from anncestry.report.compare_verdict import HEADLINE
from anncestry.report.material import Material
from anncestry.report.numbers import by_bytes, rows_of
from anncestry.report.tables import Cell, Column, Row, Table, TableRow, text_of


def tables(material: Material) -> list[Table]:
    """The tables of versions and of the noise floor, where several versions or several builds were measured."""
    return [table for table in (_versions(material), _floor(material)) if table.rows]


def versions(material: Material) -> list[tuple[str, str]]:
    """Pairs of systems of one engine at two neighbouring versions, the older first; variants are left out."""
    of_engine: dict[str, set[tuple[tuple[int, ...], str]]] = {}
    for record in material.records.values():
        system = record["spec"].get("system") or {}
        engine, version = str(system.get("engine", "")), str(system.get("version", ""))
        if record["stage"] == "load" and engine and system.get("name") == f"{engine}-{version}":
            order = tuple(int(part) for part in re.findall(r"\d+", version))
            of_engine.setdefault(engine, set()).add((order, f"{engine}-{version}"))
    return [
        (older, newer) for _, found in sorted(of_engine.items()) for (_, older), (_, newer) in pairwise(sorted(found))
    ]


def _versions(material: Material) -> Table:
    known = Noise().with_measured(noise.floors(by_bytes(material.numbers)))
    body: list[TableRow] = []
    for older, newer in versions(material):
        sides = [
            Side(name, material.plain[material.plain["system"] == name].reset_index(drop=True), material.records)
            for name in (older, newer)
        ]
        # What the matrix asks of one version only is no change.
        here = [set(zip(side.numbers["dataset"], side.numbers["topology"], strict=True)) for side in sides]
        for line in compare(sides[0], sides[1], known).lines:
            if line.metric in HEADLINE and (line.dataset, line.topology) in here[0] & here[1]:
                row = row_of(line, lambda letter, number, record: number)
                labels = (line.dataset, line.topology, f"{older} → {newer}", *row.labels)
                body.append(replace(row, labels=labels))
    return Table(
        "V",
        "From version to version",
        "Every engine that was measured at several versions: each version (B) against the one before it (A), judged as"
        " by anncestry compare. The interval is of B − A, by Welch's method over runs and, for recall, by Newcombe's"
        " over queries; where independent builds tell of more noise than runs do, theirs counts.",
        ("Dataset", "Topology", "Versions", "Workload", "Metric", "Unit"),
        (Column("A"), Column("B"), Column("B / A"), Column("B − A, 95 %"), Column("Verdict of B")),
        tuple(body),
    )


_SAME = ("dataset", "system", "topology", "workload", "phase", "metric")


def _floor(material: Material) -> Table:
    """For each headline metric, the two builds of one cell that differ most."""
    builds: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows_of(by_bytes(material.numbers)):
        if row["metric"] in HEADLINE and row["value"]:
            builds.setdefault(tuple(row[name] for name in _SAME), []).append(row)
    pairs: dict[str, list[tuple[float, Row, Row]]] = {}
    for cell, rows in builds.items():
        for a, b in combinations(sorted(rows, key=lambda row: row["rebuild"] or 1), 2):
            pairs.setdefault(str(cell[-1]), []).append((abs(b["value"] / a["value"] - 1), a, b))
    body = []
    for metric in HEADLINE:
        if metric not in pairs:
            continue
        apart, a, b = max(pairs[metric], key=lambda found: found[0])
        both = (a["number_id"], b["number_id"])
        every = tuple(dict.fromkeys(row["number_id"] for _, *two in pairs[metric] for row in two))
        cells = (
            Cell(f"{100 * apart:.1f}", 100 * apart, parents=both),
            *(
                Cell(text_of(row["value"], None, row["unit"]), row["value"], number_id=row["number_id"])
                for row in (a, b)
            ),
            Cell(str(len(pairs[metric])), parents=every),
        )
        where = " · ".join(filter(None, (a["dataset"], a["system"], a["topology"], a["workload"])))
        body.append(TableRow((metric, where, a["unit"]), cells))
    return Table(
        "A",
        "The same twice: the floor of noise",
        "Independent builds of one and the same thing, each measured as a cell of its own: the pair that differs most,"
        " of all pairs. No difference between two systems that is not larger means anything on this machine.",
        ("Metric", "Where it was largest", "Unit"),
        (Column("Largest difference", "%"), Column("One build"), Column("Another"), Column("Pairs")),
        tuple(body),
    )
