"""What is there already and what is not: present outputs have no inputs, missing cells form sessions."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anncestry.cells.matrix import Cell, Matrix, session_key


@dataclass(frozen=True)
class Session:
    """The missing cells of one load, measured together on one server, so that their runs can be interleaved."""

    key: str
    cells: tuple[Cell, ...]

    @property
    def name(self) -> str:
        """For people."""
        first = self.cells[0]
        return f"{len(self.cells)} cells of {first.system} on {first.dataset}, {first.topology}"

    @property
    def path(self) -> str:
        """Written when all cells of the session were tried."""
        return f"scratch/session/{self.key}/session.json"

    @property
    def failed_path(self) -> str:
        """Written by a cell that the session could not measure: the next run makes another attempt."""
        return f"scratch/session/{self.key}/failed"


@dataclass(frozen=True)
class Plan:
    """The inputs of each stage that has still to run, by the stage's output."""

    sessions: Mapping[str, Session]
    session_of: Mapping[str, Session]

    def once(self, outputs: str | Sequence[str], inputs: Mapping[str, str]) -> Mapping[str, str]:
        """No inputs if all `outputs` are on disk, else `inputs`: what is complete depends on nothing any more.

        The key in its path says what it was made from; whether it still is what it was is `verify`'s business.
        """
        wanted = [outputs] if isinstance(outputs, str) else outputs
        return {} if all(os.path.exists(path) for path in wanted) else inputs  # noqa: PTH110 - called per cell


def make(matrix: Matrix) -> Plan:
    """Look at the disk (a stat or two a cell) and group the cells without a measurement into sessions."""
    missing: dict[str, list[Cell]] = {}
    for cell in matrix.cells:
        published = os.path.exists(cell.query_path) and os.path.exists(cell.samples_path)  # noqa: PTH110
        if not published and not os.path.exists(cell.measured_path):  # noqa: PTH110
            missing.setdefault(cell.load, []).append(cell)
    sessions: dict[str, Session] = {}
    session_of: dict[str, Session] = {}
    for load, cells in missing.items():
        session = _next_attempt(load, tuple(cells))
        sessions[session.key] = session
        session_of.update({cell.query: session for cell in cells})
    return Plan(sessions, session_of)


def _next_attempt(load: str, cells: tuple[Cell, ...]) -> Session:
    """The first session of these cells that has not failed yet."""
    attempt = 0
    while True:
        session = Session(session_key(load, (cell.query for cell in cells), attempt), cells)
        if not os.path.exists(session.failed_path):  # noqa: PTH110
            return session
        attempt += 1
