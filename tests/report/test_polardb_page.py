"""The experiments of PolarDB's benchmark page ask what the page says it asked (the cases and parameters it states)."""

from __future__ import annotations

import pytest

from anncestry import workflow
from anncestry.cells.matrix import Matrix
from tests.servers import ROOT

PAGE = {
    "polardb-vectordbbench": (1_000_000, 768, 16, 256, 256),
    "polardb-vectordbbench-10m": (10_000_000, 768, 16, 500, 300),
    "polardb-vectordbbench-openai": (5_000_000, 1536, 16, 256, 256),
    "polardb-vectordbbench-remote": (1_000_000, 768, 16, 256, 256),
    "polardb-vectordbbench-remote-10m": (10_000_000, 768, 16, 500, 300),
    "polardb-vectordbbench-remote-openai": (5_000_000, 1536, 16, 256, 256),
    "polardb-vectordbbench-remote-sq": (1_000_000, 768, 16, 256, 256),
    "polardb-vectordbbench-remote-pq": (1_000_000, 768, 16, 256, 256),
}
"""Experiment → rows, dimensions, M, ef_construction, ef."""
CLIENTS = [(1, None), (20, 60), (40, 60), (60, 60), (80, 60), (100, 60)]
"""Serial, and its levels of concurrency for a minute each."""


def matrix_of(name: str) -> Matrix:
    return workflow.expand(workflow.Choice(ROOT / "config", name))


@pytest.mark.parametrize("name", PAGE)
def test_an_experiment_asks_what_the_page_asked(name: str) -> None:
    rows, dim, m, ef_construction, ef = PAGE[name]
    matrix = matrix_of(name)
    levels: dict[str, list[tuple[int, int | None]]] = {}
    for cell in matrix.cells:
        load, asked = matrix.specs[cell.load], matrix.specs[cell.query]["workload"]
        assert (load["dataset"]["rows"], load["dataset"]["dim"]) == (rows, dim)
        index = load["index"]
        assert (index["type"], index["M"], index["ef_construction"]) == ("hnsw", m, ef_construction)
        assert (asked["k"], asked["ef_search"], load["load"]["batch_rows"]) == (100, ef, 64)
        assert asked["queries"] == 1000
        if asked.get("filter") is None:
            levels.setdefault(cell.system, []).append((asked["clients"], asked.get("duration_s")))
    assert levels and all(found == CLIENTS for found in levels.values())


def test_each_kind_of_index_of_the_page_has_its_systems() -> None:
    codes = {
        cell.system: matrix.specs[cell.load]["index"].get("quantizer")
        for name in PAGE
        for matrix in [matrix_of(name)]
        for cell in matrix.cells
    }
    assert codes == {
        "seekdb-1.4.0-large": None, "seekdb-1.4.0-sq-large": "sq", "seekdb-1.4.0-bq-large": "bq",
        "mariadb-11.8.6-large": None,
        "polardb-8.0.2": None, "polardb-8.0.2-sq": "sq", "polardb-8.0.2-pq": "pq",
    }  # fmt: skip


@pytest.mark.parametrize("name", [*PAGE, "polardb-vectordbbench-laptop"])
def test_64_connections_insert_64_rows_a_statement_as_the_page_runs_vectordbbench(name: str) -> None:
    matrix = matrix_of(name)
    for cell in matrix.cells:
        load = matrix.specs[cell.load]
        assert load["system"]["settings"]["insert_connections"] == load["load"]["batch_rows"] == 64
