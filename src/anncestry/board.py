"""One calm view of a run: rounds × systems, what runs now, what comes next, and the minutes left.

It is fed with what Snakemake says of its jobs. What they are, and how long they take, is known from the plan.
"""

from __future__ import annotations

import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from anncestry.cells.matrix import Cell, Matrix, Pair
from anncestry.cells.plan import Job, Plan

MEASURING = ("load", "session", "duet", "rounds")
"""Rules whose jobs run one at a time, with the machine to themselves."""
WAITS, RUNS, DONE, FAILED, NONE = "·", "▸", "✓", "✗", ""
_STYLES = {WAITS: "dim", RUNS: "bold cyan", DONE: "green", FAILED: "bold red", NONE: ""}
_TAIL_BYTES = 400
_PERCENT = re.compile(r"(\d+%)\|")
"""How a progress bar (tqdm's) begins."""
_PACE = (0.5, 3.0)
"""By how much the time that jobs took so far may correct the estimate."""


@dataclass
class Planned:
    """A job of the plan, the seconds that it will take, and what became of it."""

    job: Job
    seconds: float
    state: str = WAITS
    message: str = ""
    log: Path | None = None
    begun: float = 0.0
    took_s: float = 0.0


@dataclass
class Board:
    """The jobs of a run of this plan (`jobs`, each with the `seconds` that it will take) and what became of each."""

    plan: Plan
    jobs: Sequence[Job]
    seconds: Sequence[float]
    clock: Callable[[], float] = time.monotonic
    matrix: Matrix = field(init=False)
    _planned: dict[tuple[str, str], Planned] = field(init=False)
    _numbered: dict[int, Planned] = field(init=False, default_factory=dict)
    _since: float = field(init=False)

    def __post_init__(self) -> None:
        self.matrix = self.plan.matrix
        self._planned = {
            (job.rule, job.output): Planned(job, each) for job, each in zip(self.jobs, self.seconds, strict=True)
        }
        self._since = self.clock()

    # What Snakemake says

    def begin(self, number: int, rule: str, outputs: Sequence[str], message: str, log: Path | None) -> None:
        """Job `number` of Snakemake runs; it makes `outputs`."""
        found = next((self._planned[rule, path] for path in outputs if (rule, path) in self._planned), None)
        job = found or Planned(Job(rule, "", ""), 0.0)
        job.state, job.message, job.log, job.begun = RUNS, message, log, self.clock()
        self._numbered[number] = job

    def end(self, number: int, failed: bool = False) -> Planned | None:
        """Job `number` is over; returns what it was, None if it never began."""
        job = self._numbered.get(number)
        if job is not None:
            if job.state == RUNS:
                job.took_s = self.clock() - job.begun
            job.state = FAILED if failed else DONE
        return job

    # What is to be seen

    @property
    def done(self) -> int:
        """How many jobs of the plan are over and did not fail."""
        return sum(job.state == DONE for job in self._planned.values())

    @property
    def failed(self) -> int:
        """How many jobs of the plan failed, and were not tried again yet."""
        return sum(job.state == FAILED for job in self._planned.values())

    @property
    def left_s(self) -> float:
        """Seconds that all that is left will take, by the plan's estimate and the pace so far.

        Measurements run one after another; other jobs run beside builds, and are taken as half of their time.
        """
        paces = {rule: self._pace(rule) for rule in MEASURING}
        left_s = 0.0
        for job in self._planned.values():
            share = paces.get(job.job.rule, 0.5)
            if job.state == WAITS:
                left_s += share * job.seconds
            elif job.state == RUNS:
                left_s += max(0.0, share * job.seconds - (self.clock() - job.begun))
        return left_s

    def _pace(self, rule: str) -> float:
        """What jobs of `rule` took over what was estimated: the median, so that one slow index says nothing of others.

        Until one of them is done, that of all measurements; 1 before any.
        """
        known = [job for job in self._planned.values() if job.state == DONE and job.job.rule in MEASURING]
        known = [job for job in known if job.seconds > 0]
        own = [job for job in known if job.job.rule == rule] or known
        if not own:
            return 1.0
        return min(max(statistics.median(job.took_s / job.seconds for job in own), _PACE[0]), _PACE[1])

    @property
    def headline(self) -> str:
        """How much of it is done, since when, and how long it will take."""
        spent = f"{self.done} of {len(self._planned)} jobs, {spell(self.clock() - self._since)}"
        if self.failed:  # what else will run is Snakemake's to decide
            return f"{spent}; {self.failed} failed"
        return f"{spent}; some {spell(self.left_s)} left" if self.done < len(self._planned) else spent

    @property
    def running(self) -> list[Planned]:
        # A copy: views are drawn in a thread of their own.
        return [job for job in [*self._numbered.values()] if job.state == RUNS]

    @property
    def following(self) -> Job | None:
        """What is measured next: the first part, then loads before rounds, in the order of the plan."""

        def place(job: Job) -> tuple[bool, bool, float]:
            session = self.plan.sessions.get(job.key)
            what = session or next(iter(job.cells), None)
            later = what is None or isinstance(what, Pair) or not self.plan.is_first(what)
            return job.rule == "rounds", later, -1.0 if session is None else session.place

        return min((job.job for job in self._of(*MEASURING) if job.state == WAITS), key=place, default=None)

    def rows(self) -> Iterator[tuple[str, str, str, list[str], str]]:
        """Of each place where something is measured: dataset, system, load, each round, cells published of all."""
        rounds = max((self.matrix.runs(cell) for cell in self.matrix.measured), default=0)
        places: dict[tuple[str, str, str], list[Cell | Pair]] = {}
        datasets = list(dict.fromkeys(cell.dataset for cell in self.matrix.measured))
        for cell in sorted(self.matrix.measured, key=lambda cell: datasets.index(cell.dataset)):
            places.setdefault((cell.dataset, cell.system, cell.topology), []).append(cell)
        # Looked up once a view, which is drawn while others measure.
        of_load = {job.job.key: job for job in self._of("load")}
        of_round: dict[tuple[int | None, str], list[Planned]] = {}
        for job in self._of("session", "duet"):
            for cell in job.job.cells:
                of_round.setdefault((job.job.round, cell.query), []).append(job)
        waiting = {job.job.key for job in self._of("query", "pair") if job.state != DONE}
        for (dataset, system, topology), cells in places.items():
            loads = {load for cell in cells for load in (cell.loads if isinstance(cell, Pair) else (cell.load,))}
            load = self._state(of_load[key] for key in loads & of_load.keys())
            keys = {cell.query for cell in cells}
            each = [
                self._state(job for key in keys for job in of_round.get((number, key), ()))
                if any(number < self.matrix.runs(cell) for cell in cells)
                else NONE
                for number in range(rounds)
            ]
            shown = system.replace("..", " : ") + f", {topology.replace('..', ' : ')}"
            yield dataset, shown, load, each, f"{len(keys - waiting)} of {len(keys)}"

    def _of(self, *rules: str) -> Iterator[Planned]:
        return (job for job in self._planned.values() if job.job.rule in rules)

    @staticmethod
    def _state(jobs: Iterator[Planned]) -> str:
        states = {job.state for job in jobs}
        if len(states) == 2 and states == {WAITS, DONE}:
            return RUNS  # a part of it is done
        return next((state for state in (FAILED, RUNS, WAITS) if state in states), DONE)

    def draw(self) -> Group:
        """The view, for a terminal."""
        found = list(self.rows())
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("")
        table.add_column("load", justify="center")
        for number in range(len(found[0][3]) if found else 0):
            table.add_column(f"round {number + 1}" if number == 0 else str(number + 1), justify="center")
        table.add_column("published", justify="right")
        dataset = ""
        for of, system, load, rounds, published in found:
            if of != dataset:
                table.add_row(Text(of, style="bold"))
                dataset = of
            marks = [Text(state, style=_STYLES[state]) for state in (load, *rounds)]
            table.add_row(f"  {system}", *marks, published)
        # The table last: of a view that is taller than the terminal, the end is cut off.
        lines: list[Text | Table] = [Text(f"{self.matrix.config.experiment}: {self.headline}", style="bold")]
        now = sorted(self.running, key=lambda job: job.job.rule not in MEASURING)
        for job in now[:4]:
            far = f"{spell(self.clock() - job.begun)}{_progress(job.log)}"
            lines.append(Text(f"▸ {far}  {job.message}", no_wrap=True, overflow="ellipsis"))
        if len(now) > 4:
            lines.append(Text(f"  and {len(now) - 4} more", style="dim"))
        if not self.failed and (following := self.following) is not None:
            lines.append(Text(f"  then {_title(following)}", style="dim", no_wrap=True, overflow="ellipsis"))
        return Group(*lines, table)


def spell(seconds: float) -> str:
    """Seconds, as people say it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _title(job: Job) -> str:
    if job.rule == "rounds":
        return "further rounds where intervals are wide"
    first = job.cells[0]
    what = f"load {first.system}" if job.rule == "load" else f"round {job.round + 1} of {first.system}"
    return f"{what} on {first.dataset}, {first.topology}"


def _progress(log: Path | None) -> str:
    """What the job said last, where that is how far it is."""
    if log is None:
        return ""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
            last = file.read().decode(errors="replace").splitlines()[-1:]
    except OSError:
        return ""
    return "".join(f", {found[1]}" for line in last if (found := _PERCENT.search(line)))


def logged(log: Path | None, lines: int = 5) -> list[str]:
    """The last lines of a job's log."""
    try:
        return [] if log is None else log.read_text(errors="replace").splitlines()[-lines:]
    except OSError:
        return []


def seconds_of(guesses: Mapping[str, float], jobs: Sequence[Job]) -> list[float]:
    """The share of each job in the estimate of its rule."""
    counts = Counter(job.rule for job in jobs)
    return [guesses.get(job.rule, 0.0) / counts[job.rule] for job in jobs]
