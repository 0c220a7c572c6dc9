"""Further rounds of the cells whose numbers vary more than the config allows, after the first rounds of all cells."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from anncestry.cells.matrix import Cell, Matrix, Pair
from anncestry.cells.plan import Session, next_attempt
from anncestry.measure import pair
from anncestry.measure.publish import measured_by_need, rates_of
from anncestry.metrics.duet import to_stop_percent
from anncestry.metrics.rounds import WIDE, decide
from anncestry.provenance import platform, records

Hold = Callable[[Session], Mapping[str, str]]
"""Holds a session; returns "ok" or why its run failed, by query key."""


def run(matrix: Matrix, cells: Sequence[Cell | Pair], hold: Hold) -> dict[str, Any]:
    """Measure further rounds of the cells and pairs until none needs one, or the time of the config for them is over.

    Round r of every load comes before round r + 1 of any, as in the first rounds. What was measured before counts, so
    that a run that was interrupted goes on. Leaves each cell's decision beside its runs; returns all by query key.
    """
    # Of one that has no first runs, its own job says why: the others go on without it.
    cells = [cell for cell in cells if all(map(os.path.exists, map(cell.run_path, range(matrix.runs(cell)))))]
    started = time.monotonic()
    minutes = matrix.config.rounds.minutes
    why = dict.fromkeys((cell.query for cell in cells), f"the {minutes:g} minutes for further rounds were over")
    for session in _sessions(matrix, cells):
        if time.monotonic() - started >= 60 * minutes:
            break
        print(f"further rounds: {session.name}", file=sys.stderr, flush=True)
        for query, state in hold(session).items():
            if state != "ok":
                why[query] = f"run {session.round + 1} failed: {state}"
                failed = Path(session.failed_path)
                failed.parent.mkdir(parents=True, exist_ok=True)  # it may have died before it made its folder
                failed.touch()
    spent = round((time.monotonic() - started) / 60, 2)
    decided: dict[str, Any] = {}
    with platform.beside_none():
        for cell in cells:
            wide, valid, count = _state(matrix, cell)
            stopped = why[cell.query] if valid else "a gate failed, so that no number is shown"
            decided[cell.query] = {"runs": count, "minutes": spent, **({"stopped": stopped} if wide else {})}
            records.write_json(Path(cell.decided_path), decided[cell.query])
    return decided


def _state(matrix: Matrix, cell: Cell | Pair) -> tuple[bool, bool, int]:
    """Whether a cell may become narrower and is not narrow yet, whether its gates hold, and how many runs it has."""
    paired = isinstance(cell, Pair)
    spec, measured = matrix.spec(cell.query, "pair" if paired else "query"), Path(cell.measured_path)
    rule = spec["workload"]["rounds"]
    count = measured_by_need(measured, rule)
    valid = all(records.read_record(Path(cell.run_path(number)))["valid"] for number in range(count))
    if paired:
        decided = decide(pair.blocks_so_far(measured, spec, cell.query, count), rule, to_stop_percent)
    else:
        decided = decide(rates_of(measured, spec, cell.query, count), rule)
    return decided["state"] == WIDE, valid, count


def _sessions(matrix: Matrix, cells: Sequence[Cell | Pair]) -> Iterator[Session]:
    """The next sessions, round by round; looks at what those before have measured. A cell that fails has no further."""
    first, most = (of(map(matrix.runs if of is min else matrix.runs_most, cells), default=0) for of in (min, max))
    for number in range(first, most):
        wanting: dict[str, list[Cell | Pair]] = {}
        with platform.beside_none():  # to read and sort all samples takes a core, also from another run's measurement
            for cell in cells:
                wide, valid, count = _state(matrix, cell)
                if wide and valid and count == number:
                    wanting.setdefault(cell.load, []).append(cell)
        sessions = [next_attempt(number, tuple(of_load), matrix.config.arms) for of_load in wanting.values()]
        yield from sorted(sessions, key=lambda session: session.place)
