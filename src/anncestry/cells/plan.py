"""What is there already and what is not: present outputs have no inputs, missing runs form sessions."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anncestry.cells.arms import part_of_round
from anncestry.cells.matrix import Cell, Matrix, session_key


@dataclass(frozen=True)
class Session:
    """A round of one load: run number `round` of each of its cells that lacks it, measured on one server.

    Round r of every load comes before round r + 1 of any, so that the runs of a cell are interleaved with those of
    the other systems, and a slow hour of the machine falls on all of them.
    """

    key: str
    round: int
    cells: tuple[Cell, ...]
    arms: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """For people."""
        first = self.cells[0]
        arm = f", arm {first.arm}" if first.arm else ""
        place = f"{first.system} on {first.dataset}, {first.topology}{arm}"
        return f"run {self.round + 1} of {len(self.cells)} cells of {place}"

    @property
    def place(self) -> float:
        """Where it comes among all sessions: by round, within a round by arm, the rest in an order drawn anew each
        round (the key's)."""
        drawn = int(self.key, 16) / float(16 ** len(self.key))
        return self.round + part_of_round(self.arms, self.cells[0].arm, self.round, drawn)

    @property
    def path(self) -> str:
        """Written when all cells of the session were tried."""
        return f"scratch/session/{self.key}/session.json"

    @property
    def failed_path(self) -> str:
        """Written by a cell that the session could not measure: the next run of the workflow makes another attempt."""
        return f"scratch/session/{self.key}/failed"


@dataclass(frozen=True)
class Plan:
    """The inputs of each stage that has still to run, by the stage's output.

    `sessions` by their key; `sessions_of` the sessions that measure a cell's missing runs, by the cell's query key.
    """

    sessions: Mapping[str, Session]
    sessions_of: Mapping[str, tuple[Session, ...]]

    def once(self, outputs: str | Sequence[str], inputs: Mapping[str, str]) -> Mapping[str, str]:
        """No inputs if all `outputs` are on disk, else `inputs`: what is complete depends on nothing any more.

        The key in its path says what it was made from; what is damaged was set aside before (`damage.mend`).
        """
        wanted = [outputs] if isinstance(outputs, str) else outputs
        return {} if all(os.path.exists(path) for path in wanted) else inputs  # noqa: PTH110 - called per cell


def make(matrix: Matrix) -> Plan:
    """Look at the disk (a stat or two a cell, one more a run of a missing one) and group missing runs into sessions."""
    missing: dict[tuple[int, str], list[Cell]] = {}
    for cell in matrix.cells:
        published = os.path.exists(cell.query_path) and os.path.exists(cell.samples_path)  # noqa: PTH110
        if published:
            continue
        for number in range(matrix.runs(cell)):
            if not os.path.exists(cell.run_path(number)):  # noqa: PTH110
                missing.setdefault((number, cell.load), []).append(cell)
    sessions: dict[str, Session] = {}
    sessions_of: dict[str, tuple[Session, ...]] = {}
    for number, load in sorted(missing, key=lambda at: at[0]):
        session = _next_attempt(load, number, tuple(missing[number, load]), matrix.config.arms)
        sessions[session.key] = session
        for cell in session.cells:
            sessions_of[cell.query] = (*sessions_of.get(cell.query, ()), session)
    return Plan(sessions, sessions_of)


def attempt_key(session: Session, attempt: int) -> str:
    """Key of another attempt of a session."""
    return session_key(session.cells[0].load, session.round, (cell.query for cell in session.cells), attempt)


def _next_attempt(load: str, number: int, cells: tuple[Cell, ...], arms: tuple[str, ...]) -> Session:
    """The first session of these runs that has not failed yet."""
    attempt = 0
    while True:
        session = Session(session_key(load, number, (cell.query for cell in cells), attempt), number, cells, arms)
        if not os.path.exists(session.failed_path):  # noqa: PTH110
            return session
        attempt += 1
