"""A finished tree: empty files where only presence matters, short records where specs do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anncestry.cells.matrix import Cell, Matrix
from tests.toy import stub

CREATED = "2026-01-01T00:00:00+00:00"


def load_body(matrix: Matrix, cell: Cell) -> dict[str, Any]:
    artifact = matrix.specs[cell.artifact]
    return {
        "times": {"load_s": 100.0},
        "server": {"start_s": 5.0, "stop_s": 1.0, "up_s": 110.0},
        "artifact": {"artifact": artifact["artifact"], "version": artifact["version"]},
    }


def query_body(cell: Cell) -> dict[str, Any]:
    return {
        "load_key": cell.load,
        "summary": {"mean_ms": {"value": 50.0}},
        "windows_s": [[100.0, 102.0], [200.0, 202.0]],
        "rounds": [
            {
                "session": {"key": f"{cell.load} {number}", "cells": 2},
                "start_s": [5.0],
                "open_s": [1.0],
                "up_s": 14.0,
            }
            for number in range(2)
        ],
    }


def write(path: str, matrix: Matrix, key: str, **body: Any) -> None:
    """A short record of this key, with `body` in it."""
    spec = matrix.specs[key]
    stub(Path(path), spec["stage"], key, **{"spec": spec, "created": CREATED, **body})


def touch(*paths: str) -> None:
    for path in paths:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).touch()


def finish(matrix: Matrix) -> None:
    """Leave what a run of everything leaves in the working directory, with records but without data."""
    for cell in {cell.vectors: cell for cell in matrix.cells}.values():
        write(cell.download_path, matrix, cell.download)
        write(cell.vectors_path, matrix, cell.vectors)
    for cell in {cell.truth: cell for cell in matrix.cells}.values():
        write(cell.truth_path, matrix, cell.truth)
    for cell in {cell.load: cell for cell in matrix.cells}.values():
        write(cell.artifact_path, matrix, cell.artifact)
        for path in (cell.index_path, cell.load_path):
            write(path, matrix, cell.load, **load_body(matrix, cell))
        touch(cell.load_path.replace(".json", ".resources.parquet"))
    for cell in matrix.cells:
        write(cell.query_path, matrix, cell.query, **query_body(cell))
        write(cell.recall_path, matrix, cell.recall)
        touch(cell.samples_path, cell.samples_path.replace(".samples.", ".resources."))
    publish(matrix)


def publish(matrix: Matrix) -> None:
    """Leave table and page."""
    rows = ["record,key"]
    for cell in matrix.cells:
        rows += [
            f"{cell.load_path},{cell.load}",
            f"{cell.query_path},{cell.query}",
            f"{cell.recall_path},{cell.recall}",
        ]
    for path, stage, key in (
        (matrix.table_path, "table", matrix.table),
        (matrix.report_path, "report", matrix.report),
    ):
        touch(path)
        stub(Path(path).with_name("record.json"), stage, key)
        (Path(path).parent / "numbers.csv").write_text("\n".join(rows) + "\n")
    touch(*(matrix.table_path.replace(".csv", end) for end in (".json", ".parquet")))
