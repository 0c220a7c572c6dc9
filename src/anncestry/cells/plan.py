"""Present and missing outputs: present outputs have no inputs, missing runs form sessions."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path

from anncestry.cells.blocks import part_of_round
from anncestry.cells.config import DEFAULT_EXPERIMENT
from anncestry.cells.matrix import Cell, Matrix, Pair
from anncestry.cells.stage import RESULTS, STAGES, Need, Stage, key_of
from anncestry.home import CHECKOUT, RUN


@dataclass(frozen=True)
class Session:
    """A round of one load: run number `round` of each of its cells that lacks it, measured on one server.

    Or of the pairs of two loads, on one pair of servers.
    Round r of every load comes before round r + 1 of any, so that the runs of a cell are interleaved with those of
    the other systems, and a slow hour of the machine falls on all of them.
    """

    key: str
    round: int
    cells: tuple[Cell | Pair, ...]
    arms: tuple[str, ...] = ()

    @property
    def stage(self) -> Stage:
        return STAGES["duet" if isinstance(self.cells[0], Pair) else "session"]

    @property
    def name(self) -> str:
        first = self.cells[0]
        if isinstance(first, Pair):
            what = f"{len(self.cells)} workloads" if len(self.cells) > 1 else first.workload
            return f"pair {self.round + 1} of servers: {first.system} on {first.dataset}, {first.topology}, {what}"
        arm = f", arm {first.arm}" if first.arm else ""
        place = f"{first.system} on {first.dataset}, {first.topology}{arm}"
        return f"run {self.round + 1} of {len(self.cells)} cell{'s' * (len(self.cells) != 1)} of {place}"

    @property
    def place(self) -> float:
        """Where it comes among all sessions: by round, within a round by arm, the rest in an order drawn anew each
        round (the key's)."""
        drawn = int(self.key, 16) / float(16 ** len(self.key))
        return self.round + part_of_round(self.arms, self.cells[0].arm, self.round, drawn)

    @property
    def path(self) -> str:
        """Written when all cells of the session were tried."""
        return self.stage.output.format(key=self.key)

    @property
    def failed_path(self) -> str:
        """Written by a cell that the session could not measure: the next run of the workflow makes another attempt."""
        return self.stage.beside["failed"].format(key=self.key)

    @property
    def job(self) -> Job:
        return Job(self.stage.name, self.key, self.path, self.cells, self.round)


@dataclass(frozen=True)
class Job:
    """A job of Snakemake: a rule, and the record (or page, or table) that it makes.

    `cells` are those of which a session measures run number `round`; of any other rule the cell whose stage it is, and
    none for table and report.
    """

    rule: str
    key: str
    output: str
    cells: tuple[Cell | Pair, ...] = ()
    round: int = 0


@dataclass(frozen=True)
class Plan:
    """The inputs of every job.

    `sessions` by their key; `sessions_of` the sessions that measure the missing runs of a cell or a pair, by its key.
    """

    matrix: Matrix
    sessions: Mapping[str, Session]
    sessions_of: Mapping[str, tuple[Session, ...]]
    undecided: tuple[Cell | Pair, ...] = ()
    """What is measured by need, and of which nobody has decided yet that it needs no further round."""

    @cached_property
    def first_part(self) -> str:
        """The dataset with which measuring starts, so that a page shows some numbers soon: the smallest of several."""
        sizes = {}
        for session in self.sessions.values():
            entry = self.matrix.specs[_sides(session.cells[0])[0].load]["dataset"]
            sizes[session.cells[0].dataset] = entry["rows"] * entry["dim"]
        return min(sizes, key=lambda name: (sizes[name], name)) if len(sizes) > 1 else ""

    @cached_property
    def shown_after(self) -> set[str]:
        """The sessions after which a page of what is measured so far is worth drawing: the last of the first part's
        first round, and the last of each round of cells but the last round."""
        of_cells = [each for each in self.sessions.values() if not isinstance(each.cells[0], Pair)]
        rounds = sorted({each.round for each in of_cells})[:-1]
        parts = [(number, first) for number in rounds for first in (True, False)]
        groups = [[each for each in of_cells if (each.round, self.is_first(each)) == part] for part in parts]
        return {max(group, key=lambda each: each.place).key for group in groups if group}

    def is_first(self, what: Session | Cell) -> bool:
        """Whether a load, or a session of cells, belongs to the first part of the measuring."""
        if isinstance(what, Cell):
            return what.dataset == self.first_part
        return what.round == 0 and isinstance(what.cells[0], Cell) and self.is_first(what.cells[0])

    def missing_inputs(self, rule: str, wildcards: Mapping[str, str]) -> dict[str, str]:
        """Inputs by label; none if what shows that the job is complete is on disk: that depends on nothing any more.

        The key in its path says what it was made from; what is damaged was set aside before (`damage.mend`).
        """
        stage = STAGES[rule]
        outputs = (stage.files[label].format_map(wildcards) for label in stage.done)
        if all(os.path.exists(path) for path in outputs):  # noqa: PTH110 - called per cell
            return {}
        return {label: path for label, (_, path) in self.inputs(rule, wildcards["key"]).items()}

    def inputs(self, rule: str, key: str) -> dict[str, tuple[Job, str]]:
        """The files that the job of a key reads, complete or not: label → the job that makes it, and the path."""
        matrix = self.matrix
        if rule == "report":
            return {"table": self.table}
        if rule == "table":
            made = {
                f"{STAGES[name].spec}_{number}": self.made((name, "record"), cell)
                for number, cell in enumerate(matrix.cells)
                for name in RESULTS
            }
            for number, pair in enumerate(matrix.pairs):
                made[f"pair_{number}"] = self.made(("pair", "record"), pair)
                made |= {f"pair_load_{number}_{i}": self.made(("record", "record"), pair.sides[i]) for i in (0, 1)}
            return made
        if rule in ("query", "pair"):
            jobs = [each.job for each in self.sessions_of.get(key, ())]
            inputs = {f"run_{job.round}": (job, job.output) for job in jobs}
            if any(cell.query == key for cell in self.undecided):
                inputs["rounds"] = (self.rounds, self.rounds.output)
            if rule == "pair":
                side = matrix.pair(key).a
                inputs |= {label: self.made(need, side) for label, need in STAGES[rule].needs.items()}
            return inputs
        if rule == "rounds":
            held = {each.key: each for cell in self.undecided for each in self.sessions_of.get(cell.query, ())}
            inputs = {f"run_{number}": (each.job, each.path) for number, each in enumerate(held.values())}
            sides = {side.load: side for cell in self.undecided for side in _sides(cell)}
            for number, cell in enumerate(sides.values()):
                needs = STAGES["session"].needs.items()
                inputs |= {f"{label}_{number}": self.made(need, cell) for label, need in needs}
            return inputs
        if rule == "duet":
            named = zip("ab", _sides(self.sessions[key].cells[0]), strict=True)
            needs = STAGES[rule].needs.items()
            return {f"{label}_{side}": self.made(need, cell) for side, cell in named for label, need in needs}
        cell = self.cell(rule, key)
        stage = STAGES[rule]
        inputs = {label: self.made(need, cell) for label, need in stage.needs.items()}
        if cell.older is not None:
            inputs |= {label: self.made(need, cell.older) for label, need in stage.older.items()}
        if rule == "truth":
            parts = enumerate(matrix.truth_parts(cell), 1)
            inputs |= {f"part_{number}": (Job("truth_part", key, path, (cell,)), path) for number, path in parts}
        return inputs

    def cell(self, rule: str, key: str) -> Cell:
        """The cell whose files a job reads; of a session, the first of its cells, of a pair its first side."""
        if rule == "pair":
            return self.matrix.pair(key).a
        return _sides(self.sessions[key].cells[0])[0] if rule == "session" else self.matrix.cell(key)

    def made(self, need: Need, cell: Cell | Pair) -> tuple[Job, str]:
        """A file of a cell or a pair: the job that makes it, and its path."""
        name, label = need
        stage = STAGES[name]
        key = stage.key_of(cell)
        # A key that cells share is made as the first of them has it, by the rule and by its command.
        first = cell if isinstance(cell, Pair) else self.matrix.cell(key)
        return Job(name, key, stage.path(cell), (first,)), stage.path(cell, label)

    @property
    def rounds(self) -> Job:
        """The job of all further rounds."""
        key = key_of({"stage": "rounds", "queries": sorted(cell.query for cell in self.undecided)})
        return Job("rounds", key, STAGES["rounds"].output.format(key=key), self.undecided)

    @property
    def table(self) -> tuple[Job, str]:
        """The table: the job that makes it, and its path."""
        return Job("table", self.matrix.table, self.matrix.table_path), self.matrix.table_path


def _sides(cell: Cell | Pair) -> tuple[Cell, ...]:
    """The cells on whose loads a session of this one runs servers."""
    return cell.sides if isinstance(cell, Pair) else (cell,)


def results(cell: Cell | Pair) -> tuple[str, ...]:
    """The records of a cell or a pair that the table reads."""
    if isinstance(cell, Pair):
        return (cell.path, *(side.load_path for side in cell.sides))
    return tuple(STAGES[name].path(cell) for name in RESULTS)


def command_of(matrix: Matrix) -> str:
    """The command that runs a whole experiment, as one types it in the working directory."""
    # Snakemake looks for a Snakefile in the folder itself only; evidence/, within the checkout, has none of its own.
    around = CHECKOUT if CHECKOUT in Path.cwd().parents and not Path("Snakefile").exists() else None
    return run_of(matrix.config.experiment, f" -s {os.path.relpath(around / 'Snakefile')}" if around else "")


def run_of(experiment: str, snakefile: str = "") -> str:
    """The command that runs the experiment of this name in a folder that has a Snakefile, else with ` -s FILE`."""
    chosen = "" if experiment == DEFAULT_EXPERIMENT else f" --config experiment={experiment}"
    return RUN.replace("snakemake", f"snakemake{snakefile}", 1) + chosen


def undrawn(matrix: Matrix) -> str:
    """What to do where the table or the page of a matrix is missing, as the end of a sentence that names its folder."""
    lacking = {path for cell in matrix.measured for path in results(cell) if not Path(path).exists()}
    if lacking:
        pull = "`dvc pull results.dvc` brings what was kept of them, "
        kept = pull if Path("results.dvc").exists() else ""
        return f"missing, as are {len(lacking)} of its records: {kept}`{command_of(matrix)}` measures what is not here"
    return (
        f"not drawn here yet: `{command_of(matrix)}` draws table and page from the records that are here "
        "(it measures nothing, and takes seconds)"
    )


def files(matrix: Matrix, names: Iterable[str]) -> dict[str, tuple[Stage, str]]:
    """The first files of stages, of all cells and of the loads that upgrades open: path → stage and key."""
    paths: dict[str, tuple[Stage, str]] = {}
    for stage in (STAGES[name] for name in names):
        # A load that is upgraded, or a side of a pair, has no queries of its own.
        of_cells = matrix.cells if stage.name in ("query", "recall") else matrix.placed
        for each in matrix.pairs if stage.name == "pair" else of_cells:
            paths.setdefault(stage.path(each), (stage, stage.key_of(each)))
    return paths


def make(matrix: Matrix) -> Plan:
    """Look at the disk (a stat or two a cell, one more a run of a missing one) and group missing runs into sessions."""
    missing: dict[tuple[int, str], list[Cell | Pair]] = {}
    undecided: list[Cell | Pair] = []
    for cell in matrix.measured:
        if os.path.exists(cell.query_path) and os.path.exists(cell.samples_path):  # noqa: PTH110
            continue
        if matrix.by_need(cell) and not _is_decided(cell):
            undecided.append(cell)
        for number in range(matrix.runs(cell)):
            if not os.path.exists(cell.run_path(number)):  # noqa: PTH110
                missing.setdefault((number, cell.load), []).append(cell)
    sessions: dict[str, Session] = {}
    sessions_of: dict[str, tuple[Session, ...]] = {}
    for (number, _), cells in sorted(missing.items(), key=lambda item: item[0][0]):
        session = next_attempt(number, tuple(cells), matrix.config.arms)
        sessions[session.key] = session
        for cell in session.cells:
            sessions_of[cell.query] = (*sessions_of.get(cell.query, ()), session)
    return Plan(matrix, sessions, sessions_of, tuple(undecided))


def _is_decided(cell: Cell | Pair) -> bool:
    """Whether a cell needs no further round, and has all the runs of which that was said."""
    try:
        with open(cell.decided_path) as file:
            runs = json.load(file)["runs"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return all(os.path.exists(cell.run_path(number)) for number in range(runs))  # noqa: PTH110


def session_key(cells: Sequence[Cell | Pair], number: int, attempt: int) -> str:
    """Key of a session: one server on one loaded index, measuring run `number` of these cells."""
    queries = sorted(cell.query for cell in cells)
    return key_of({"stage": "session", "load": cells[0].load, "round": number, "queries": queries, "attempt": attempt})


def next_attempt(number: int, cells: tuple[Cell | Pair, ...], arms: tuple[str, ...]) -> Session:
    """The first session of these runs that has not failed yet."""
    for attempt in count():
        session = Session(session_key(cells, number, attempt), number, cells, arms)
        if not os.path.exists(session.failed_path):  # noqa: PTH110
            break
    return session
