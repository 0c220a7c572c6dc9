"""The command that draws a page while its experiment is still being measured."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anncestry import durable
from anncestry.cells.matrix import Cell, Matrix, Pair
from anncestry.cells.plan import command_of
from anncestry.commands import Run, command
from anncestry.errors import DataError
from anncestry.provenance import platform


@dataclass
class _Standing:
    """What a page of `matrix` can rest on now: published cells, and the runs of others that are complete."""

    matrix: Matrix
    folder: Path
    runs: list[int] = field(default_factory=list)
    """How many runs each cell has that has some."""

    def paths(self, cell: Cell | Pair) -> dict[str, Any]:
        """Names and records of a cell, as the tidy table wants them."""
        if isinstance(cell, Pair) or "query_path" not in cell.paths:
            return cell.paths
        if Path(cell.query_path).exists():
            self.runs.append(self.matrix.runs(cell))
            return cell.paths
        return {**cell.paths, **self._published_here(cell)}

    def _published_here(self, cell: Cell) -> Mapping[str, str]:
        """Records of the runs that a cell has, made in a folder of their own: results hold only whole cells."""
        from anncestry.measure import publish
        from anncestry.measure import recall as scoring

        here = publish.runs_here(Path(cell.measured_path), self.matrix.runs_most(cell))
        if not here or not Path(cell.load_path).exists():
            return {}
        self.runs.append(here)
        spec, query = self.matrix.spec(cell.query, "query"), self.folder / f"{cell.query}.json"
        inputs = (Path(cell.measured_path), Path(cell.load_path), Path(cell.vectors_path))
        try:
            publish.run(spec, cell.query, *inputs, query, so_far=here)
        except DataError as error:  # which the rule that publishes meets, too, and mends
            print(f"{cell.query_path}: not shown: {error}", file=sys.stderr)
            self.runs.pop()
            return {}
        if not Path(cell.truth_path).exists():
            return {"query_path": str(query)}
        recall = self.folder / f"{cell.recall}.json"
        spec = self.matrix.spec(cell.recall, "recall")
        scoring.run(spec, cell.recall, query, Path(cell.truth_path), Path(cell.vectors_path), recall)
        return {"query_path": str(query), "recall_path": str(recall)}

    @property
    def sentence(self) -> str:
        """How much that is."""
        cells = self.matrix.cells
        if not self.runs:
            return f"None of {len(cells)} cells has numbers yet."
        most = max(self.matrix.runs(cell) for cell in cells)
        few, many = min(self.runs), max(self.runs)
        rounds = f"round {many}" if few == many else f"rounds {few} to {many}"
        pairs = " Pairs are shown once all their servers are measured." if self.matrix.pairs else ""
        return f"So far: {len(self.runs)} of {len(cells)} cells have numbers, of {rounds} of {most}.{pairs}"


def preview(run: Run, options: argparse.Namespace) -> None:
    """Draw a page of what has been measured so far, while the rest is measured."""
    matrix = run.matrix
    with platform.beside_none():
        print(f"{draw(matrix)}\npage: {matrix.so_far_path}")


def draw(matrix: Matrix) -> str:
    """Draw the page of what is measured so far; returns what it rests on, in a sentence."""
    from anncestry.report.model import numbers
    from anncestry.report.site import page
    from anncestry.report.site.catalogue import case_studies

    standing = _Standing(matrix, Path("scratch/preview") / matrix.config.experiment)
    shutil.rmtree(standing.folder, ignore_errors=True)
    frame = numbers.tidy([standing.paths(cell) for cell in matrix.tabled])
    sentence, target = standing.sentence, Path(matrix.so_far_path).parent
    fresh = standing.folder / "page"
    rest = f"The rest follows, or comes with: {command_of(matrix)}"
    page.write_page(frame, fresh, **page.of_matrix(matrix), studies=case_studies(), so_far=f"{sentence} {rest}")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(target, ignore_errors=True)
    durable.place(fresh, target)
    return sentence


def add(commands: Any) -> None:
    command(commands, preview)
