"""Records with plausible numbers for every cell of an experiment as it is in config: what it asks is real."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anncestry import engines
from anncestry.cells import config
from anncestry.cells.blocks import Room
from anncestry.cells.expand import expand
from anncestry.cells.matrix import Cell, Matrix
from anncestry.report.model.material import Material
from anncestry.report.model.numbers import tidy
from anncestry.report.model.records import read_records
from anncestry.report.published import Published
from tests.builders.world import World, over_runs, recorded, sha256
from tests.toy import ROOT

Rate = Callable[[Cell, dict[str, Any], dict[str, Any]], float]
"""Queries per second of a cell, from the specs of its load and its queries."""


def matrix_of(experiment: str) -> Matrix:
    """The experiment on a machine that has room for all of it."""
    return expand(config.load(ROOT / "config", experiment), engines.offers_of, lambda: Room("lab", 64, 512))


def material_of(matrix: Matrix, rate: Rate, load_s: Callable[[dict[str, Any]], float] = lambda load: 100.0) -> Material:
    """What a report of it is made from; the records lie below the working directory."""
    for cell in matrix.cells:
        load, query = matrix.spec(cell.load, "load"), matrix.spec(cell.query, "query")
        asked, data = query["workload"], load["dataset"]
        runs = asked.get("runs", 3)
        shape = (data["metric"], data["rows"], data["dim"])
        of_load, of_query, of_recall = recorded(shape, cell.load, cell.query_path)
        of_load = {**of_load, "spec": load, "times": {**of_load["times"], "load_s": load_s(load)}}
        World.write(cell.load_path, of_load)
        qps = rate(cell, load, query)
        ms = 1000 * asked["clients"] / qps
        summary = {
            **of_query["summary"],
            "qps": over_runs(qps, runs),
            **{f"{name}_ms": over_runs(ms * part, runs) for name, part in (("p50", 0.9), ("p99", 2.5))},
        }
        World.write(
            cell.query_path, {**of_query, "spec": query, "summary": summary, "ef_search": asked.get("ef_search", 64)}
        )
        of_recall["inputs"]["query"]["sha256"] = sha256(cell.query_path)
        World.write(cell.recall_path, {**of_recall, "query_key": cell.query, "spec": {"query_key": cell.query}})
    df = tidy([cell.paths for cell in matrix.cells])
    return Material(df, read_records(df), Published.beside(matrix.config), pages={}, absent=matrix.absent)
