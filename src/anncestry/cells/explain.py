"""What would run and why, before anything starts: the jobs that Snakemake's dry run counts, each with its reason.

The jobs come from the matrix and the disk, by the rule of the Snakefile: a job runs if something that runs, or that is
asked for, needs a file of it that is not there; what is complete depends on nothing. `tests/test_plan.py` holds the
counts against Snakemake's own.

A reason is found by comparing specs: that of the missing record with that of the nearest earlier record of the same
names. Where only the key of an earlier stage differs, that stage's specs are compared in turn, so that a reason names
what somebody changed and not what follows from it.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from anncestry.cells.keys import key_of
from anncestry.cells.matrix import Cell, Matrix, session_key
from anncestry.cells.plan import Plan

RULES = (
    "artifact", "download", "normalize", "truth_part", "truth", "load", "record", "session", "query", "recall", "table",
    "report", "all",
)  # fmt: skip
"""All rules, in the order in which their jobs run."""

NEW = "new: no earlier record of these names"
GONE = "made before, but not here: removed, or not pulled"
TRIED = "tried before: its session failed"

_VALUE_CHARS = 48
_EPOCHS_MAX = 20


# What would run


@dataclass(frozen=True)
class Job:
    """A job of Snakemake: a rule, and the record (or page, or table) that it makes.

    `cells` are those of which a session measures run number `round`; of any other rule the cell whose stage it is, and
    none for table and report.
    """

    rule: str
    key: str
    output: str
    cells: tuple[Cell, ...] = ()
    round: int = 0


@dataclass(frozen=True)
class _Stage:
    """A rule as the Snakefile has it: where its key and its record are, and of which rules it reads the records."""

    key: Callable[[Cell], str]
    output: Callable[[Cell], str]
    needs: tuple[str, ...] = ()


_STAGES: Mapping[str, _Stage] = {
    "artifact": _Stage(lambda c: c.artifact, lambda c: c.artifact_path),
    "download": _Stage(lambda c: c.download, lambda c: c.download_path),
    "normalize": _Stage(lambda c: c.vectors, lambda c: c.vectors_path, ("download",)),
    "truth_part": _Stage(lambda c: c.truth, lambda c: c.truth_path, ("normalize",)),
    "truth": _Stage(lambda c: c.truth, lambda c: c.truth_path, ("normalize",)),
    "load": _Stage(lambda c: c.load, lambda c: c.index_path, ("normalize", "artifact")),
    "record": _Stage(lambda c: c.load, lambda c: c.load_path, ("load",)),
    "query": _Stage(lambda c: c.query, lambda c: c.query_path),
    "recall": _Stage(lambda c: c.recall, lambda c: c.recall_path, ("query", "truth", "normalize")),
}
_SESSION_NEEDS = ("load", "record", "normalize", "artifact")
_WANTED = ("record", "query", "recall")


class _Dag:
    """All jobs that Snakemake considers, and the files that they want of each other."""

    def __init__(self, matrix: Matrix, plan: Plan) -> None:
        self._matrix, self._plan = matrix, plan
        self._there: dict[str, bool] = {}
        self._inputs: dict[Job, list[tuple[Job, str]]] = {}
        self._readers: dict[Job, list[tuple[Job, str]]] = {}
        self._goal = Job("all", "", "")

    def missing(self, path: str) -> bool:
        """Whether a file is not there; the disk is asked once."""
        if path not in self._there:
            self._there[path] = os.path.exists(path)  # noqa: PTH110 - called per cell
        return not self._there[path]

    def to_run(self) -> set[Job]:
        """The jobs that would run, the goal itself included."""
        matrix = self._matrix
        published = [path for cell in matrix.cells for path in (cell.load_path, cell.query_path, cell.recall_path)]
        if not any(self.missing(path) for path in (*published, matrix.table_path, matrix.report_path)):
            return set()
        self._build()
        running = {self._goal}
        queue = deque(running)
        while queue:
            job = queue.popleft()
            for maker, path in self._inputs[job]:
                if maker not in running and self.missing(path):
                    running.add(maker)
                    queue.append(maker)
            # Inputs are ancient: what is made anew does not set off those that read it, what was missing does.
            for reader, path in self._readers.get(job, ()):
                if reader not in running and self.missing(path):
                    running.add(reader)
                    queue.append(reader)
        return running

    def _build(self) -> None:
        stack = [self._goal]
        self._inputs[self._goal] = list(self._inputs_of(self._goal))
        while stack:
            job = stack.pop()
            for maker, path in self._inputs[job]:
                self._readers.setdefault(maker, []).append((job, path))
                if maker not in self._inputs:
                    self._inputs[maker] = list(self._inputs_of(maker))
                    stack.append(maker)

    def _inputs_of(self, job: Job) -> Iterator[tuple[Job, str]]:
        """What a job reads, as the Snakefile has it: the job that makes it, and the path."""
        if job == self._goal:
            yield from self._published()
            yield self._table(), self._matrix.table_path
            yield Job("report", self._matrix.report, self._matrix.report_path), self._matrix.report_path
        elif not self._incomplete(job):
            return
        elif job.rule == "report":
            yield self._table(), self._matrix.table_path
        elif job.rule == "table":
            yield from self._published()
        elif job.rule == "query":
            for session in self._plan.sessions_of.get(job.key, ()):
                yield Job("session", session.key, session.path, session.cells, session.round), session.path
        else:
            cell = job.cells[0]
            for rule in _SESSION_NEEDS if job.rule == "session" else _STAGES[job.rule].needs:
                yield self._job(rule, cell), _STAGES[rule].output(cell)
            if job.rule == "recall":
                yield self._job("query", cell), cell.samples_path
            if job.rule == "truth":
                for path in self._matrix.truth_parts(cell):
                    yield Job("truth_part", job.key, path, job.cells), path
            if job.rule == "load" and cell.older is not None:
                for rule in ("load", "record"):
                    yield self._job(rule, cell.older), _STAGES[rule].output(cell.older)

    def _incomplete(self, job: Job) -> bool:
        if job.rule == "query" and self.missing(job.cells[0].samples_path):
            return True
        return self.missing(job.output)

    def _published(self) -> Iterator[tuple[Job, str]]:
        for cell in self._matrix.cells:
            for rule in _WANTED:
                yield self._job(rule, cell), _STAGES[rule].output(cell)

    def _job(self, rule: str, cell: Cell) -> Job:
        stage = _STAGES[rule]
        key = stage.key(cell)
        # A key that cells share is made as the first of them has it, by the rule and by its command.
        return Job(rule, key, stage.output(cell), (self._matrix.cell(key),))

    def _table(self) -> Job:
        return Job("table", self._matrix.table, self._matrix.table_path)


def jobs(matrix: Matrix, plan: Plan) -> list[Job]:
    """The jobs that Snakemake would run in the working directory, in the order of the rules, without its `all`."""
    running = _Dag(matrix, plan).to_run()
    order = {rule: number for number, rule in enumerate(RULES)}
    return sorted((job for job in running if job.rule != "all"), key=lambda job: (order[job.rule], job.output))


def counts(found: Sequence[Job]) -> dict[str, int]:
    """Jobs by rule as Snakemake's dry run counts them: with one `all` if there is any, empty if there is none."""
    by_rule = Counter(job.rule for job in found)
    if found:
        by_rule["all"] = 1
    return {rule: by_rule[rule] for rule in RULES if by_rule[rule]}


# Earlier records

_RECORDS = {
    "artifact": "scratch/artifact/*@*/record.json",
    "download": "data/download/*@*/record.json",
    "normalize": "data/vectors/*@*/record.json",
    "truth": "data/truth/*@*/record.json",
    "load": "results/load/*/*/*@*.json",
    "query": "results/query/*/*/*/*@*.json",
    "recall": "results/recall/*/*/*/*@*.json",
}
_NAMED = re.compile(r"^[^/]+/[^/]+/(?P<names>.+)@(?P<key>[0-9a-f]{12})(?:\.json|/record\.json)\Z")


class Earlier:
    """The records of any key that lie in the working directory, by stage and names; read only when asked for."""

    def __init__(self) -> None:
        self._bodies: dict[tuple[str, str], dict[str, Any] | None] = {}

    @cached_property
    def paths(self) -> dict[str, dict[str, str]]:
        """Stage → key → path of a record."""
        found: dict[str, dict[str, str]] = {stage: {} for stage in _RECORDS}
        for stage, pattern in _RECORDS.items():
            for path in map(str, Path().glob(pattern)):
                if match := _NAMED.match(path):
                    found[stage][match["key"]] = path
        return found

    @cached_property
    def _keys(self) -> dict[tuple[str, str], list[str]]:
        found: dict[tuple[str, str], list[str]] = {}
        for stage, paths in self.paths.items():
            for key, path in paths.items():
                found.setdefault((stage, names_of(path)), []).append(key)
        return found

    def keys(self, stage: str, names: str) -> list[str]:
        """Keys of the stage's records of these names (DATASET/SYSTEM/…, as in their path)."""
        found = self._keys.get((stage, names), [])
        if stage == "artifact":
            found = list({*found, *(key for key, spec in self._quoted.items() if spec["system"] == names)})
        return found

    @cached_property
    def _quoted(self) -> dict[str, dict[str, Any]]:
        """Specs of artifacts by their key, as the records of loads quote them: artifacts are not published."""
        found: dict[str, dict[str, Any]] = {}
        for load in self.paths["load"]:
            record = self.record("load", load)
            quoted = (record or {}).get("artifact")
            if record is None or not isinstance(quoted, Mapping):
                continue
            # The epoch is not quoted; the key says which one it was.
            for epoch in range(1, _EPOCHS_MAX + 1):
                spec = {
                    "stage": "artifact",
                    "epoch": epoch,
                    "system": record["spec"]["system"]["name"],
                    "version": quoted.get("version"),
                    "artifact": quoted.get("artifact"),
                    **({"parts": quoted["parts"]} if "parts" in quoted else {}),
                }
                if key_of(spec) == record["spec"]["artifact"]:
                    found[record["spec"]["artifact"]] = spec
                    break
        return found

    def record(self, stage: str, key: str) -> dict[str, Any] | None:
        """A record; None if there is none, or none that can be read: what can't be read explains nothing."""
        at = (stage, key)
        if at not in self._bodies:
            self._bodies[at] = self._read(stage, key)
        return self._bodies[at]

    def _read(self, stage: str, key: str) -> dict[str, Any] | None:
        path = self.paths[stage].get(key)
        if path is None:
            return None
        try:
            body = json.loads(Path(path).read_text())
        except (OSError, ValueError):
            return None
        whole = isinstance(body, dict) and body.get("stage") == stage and isinstance(body.get("spec"), dict)
        return body if whole else None

    def spec(self, stage: str, key: str) -> dict[str, Any] | None:
        """The spec behind a record's key."""
        record = self.record(stage, key)
        if record is None:
            return self._quoted.get(key) if stage == "artifact" else None
        spec: dict[str, Any] = record["spec"]
        if stage != "download":
            return spec
        # The record of a download also holds what its key does not depend on: keep what gives the key.
        less = [{name: spec[name] for name in spec if name not in out} for out in ((), ("metric",))]
        less.append({name: spec[name] for name in spec if name not in ("metric", "sources")})
        return next((smaller for smaller in less if key_of(smaller) == key), less[1])


def names_of(path: str) -> str:
    """The names in a record's path: DATASET, SYSTEM, or DATASET/SYSTEM/TOPOLOGY[/WORKLOAD]; empty for other paths."""
    match = _NAMED.match(path)
    return match["names"] if match else ""


# Why


@dataclass(frozen=True)
class Change:
    """A part of a spec that is another one than it was; `None` stands for a part that is not there."""

    part: str
    old: str | None
    new: str | None

    def __str__(self) -> str:
        return f"{self.part}: {_shown(self.old)} → {_shown(self.new)}"


def _shown(value: str | None) -> str:
    if value is None:
        return "none"
    if re.fullmatch(r"[0-9a-f]{32,}", value):
        return value[:12] + "…"
    return value if len(value) <= _VALUE_CHARS else value[: _VALUE_CHARS - 1] + "…"


def _text(value: Any) -> str | None:
    if value is None:
        return None
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, separators=(",", ":"))


def _differences(old: Any, new: Any, at: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Paths at which two specs differ, each with both values; a part that is not there is None."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in sorted({*old, *new}):
            one, other = old.get(name), new.get(name)
            # A mapping that is not there at all is compared as an empty one: its parts are named, not its whole.
            if name not in old and isinstance(other, Mapping):
                one = {}
            if name not in new and isinstance(one, Mapping):
                other = {}
            yield from _differences(one, other, (*at, name))
    elif old != new:
        yield at, old, new


_PARTS = {
    "download": {"name": "dataset.source"},
    "normalize": {"metric": "dataset.metric", "prefix": "dataset.prefix"},
    "truth": {"metric": "dataset.metric", "filter": "workload.filter", "depth": "truth.depth"},
    "artifact": {"system": "system.name", "version": "system.version"},
}
"""What the parts of a spec are called by people, who know them from the files in config/."""

_UPSTREAM = {
    "download": "download",
    "vectors": "normalize",
    "truth": "truth",
    "artifact": "artifact",
    "load": "load",
    "upgrade_of": "load",
    "query": "query",
}
"""Parts of specs that hold the key of an earlier stage (some stages use the same name for something else)."""


def _part(stage: str, at: tuple[str, ...]) -> str:
    if at == ("epoch",):
        return f"epoch of {stage}"
    named = _PARTS.get(stage, {}).get(at[0])
    if named is None:
        named = f"dataset.{at[0]}" if stage == "download" else at[0]
    return ".".join((named, *at[1:]))


class _Reasons:
    """Why each job runs; finds the reason of a key once."""

    def __init__(self, matrix: Matrix, running: Sequence[Job], earlier: Earlier) -> None:
        self._matrix, self._earlier = matrix, earlier
        self._running = {job.rule for job in running}
        self._of_key: dict[tuple[str, str], str] = {}
        self._changed: dict[tuple[str, str, str], frozenset[Change]] = {}
        self._tried = {
            cell.query
            for job in running
            if job.rule == "session"
            and job.key != session_key(job.cells[0].load, job.round, (c.query for c in job.cells), 0)
            for cell in job.cells
        }

    def of(self, job: Job) -> str:
        """The reason of a job, as one line."""
        if job.rule == "table":
            return self._table
        if job.rule == "report":
            return self._report
        if job.rule == "session":
            # Its cells may have several reasons; the most frequent one speaks for all.
            return Counter(self.of_stage("query", cell.query, cell.query_path) for cell in job.cells).most_common(1)[0][
                0
            ]
        if job.rule in ("load", "record"):
            return self.of_stage("load", job.key, job.cells[0].load_path)
        if job.rule == "truth_part":
            return self.of_stage("truth", job.key, job.cells[0].truth_path)
        return self.of_stage(job.rule, job.key, job.output)

    def of_stage(self, stage: str, key: str, path: str) -> str:
        """Why the record of this stage, key and path is not there."""
        at = (stage, key)
        if at not in self._of_key:
            self._of_key[at] = self._find(stage, key, path)
        return self._of_key[at]

    def _find(self, stage: str, key: str, path: str) -> str:
        if key in self._tried:
            return TRIED
        if key in self._known:
            return GONE
        nearest: tuple[int, float, frozenset[Change]] | None = None
        for old in self._earlier.keys(stage, names_of(path)):
            # A key that is still asked for was not replaced by this one (a dataset has several truths).
            spec = None if old in self._matrix.specs else self._earlier.spec(stage, old)
            if spec is None:
                continue
            changes = self._changes(stage, old, key)
            newest = -_created(self._earlier.record(stage, old))
            if nearest is None or (len(changes), newest) < nearest[:2]:
                nearest = (len(changes), newest, changes)
        return NEW if nearest is None else "; ".join(sorted(map(str, nearest[2])))

    def _changes(self, stage: str, old: str, new: str) -> frozenset[Change]:
        """What differs between the specs of two keys of a stage, down to the stages that they are made from."""
        at = (stage, old, new)
        if at not in self._changed:
            self._changed[at] = frozenset(self._compare(stage, old, new))
        return self._changed[at]

    def _compare(self, stage: str, old: str, new: str) -> Iterator[Change]:
        before = self._matrix.specs.get(old) or self._earlier.spec(stage, old)
        if before is None:
            yield Change(f"{stage} key", old, new)
            return
        for path, one, other in _differences(before, self._matrix.specs[new]):
            upstream = _UPSTREAM.get(path[0])
            if upstream and len(path) == 1 and isinstance(one, str) and other in self._matrix.specs:
                yield from self._changes(upstream, one, other)
            else:
                yield Change(_part(stage, path), _text(one), _text(other))

    @cached_property
    def _known(self) -> set[str]:
        """Keys of the matrix that were there once: those that a present record was made from, and theirs."""
        matrix = self._matrix
        known: set[str] = set()
        all_there = os.path.exists(matrix.table_path) or os.path.exists(matrix.report_path)  # noqa: PTH110
        for cell in matrix.cells:
            seen = [
                key
                for key, path in (
                    (cell.recall, cell.recall_path),
                    (cell.query, cell.query_path),
                    (cell.load, cell.load_path),
                    (cell.load, cell.index_path),
                    (cell.truth, cell.truth_path),
                    (cell.vectors, cell.vectors_path),
                )
                if all_there or os.path.exists(path)  # noqa: PTH110 - called per cell
            ]
            known.update(seen)
        pending = list(known)
        while pending:
            spec = matrix.specs[pending.pop()]
            for part in _UPSTREAM:
                key = spec.get(part)
                if isinstance(key, str) and key in matrix.specs and key not in known:
                    known.add(key)
                    pending.append(key)
        return known

    @cached_property
    def _table(self) -> str:
        matrix = self._matrix
        if os.path.exists(matrix.report_path):  # noqa: PTH110
            return GONE
        tables = list(Path().glob(f"results/table/{matrix.config.experiment}@*/numbers.csv"))
        if not tables:
            return f"new: no earlier table of experiment {matrix.config.experiment}"
        was = _records_in(max(tables, key=lambda path: path.stat().st_mtime))
        now = {path for cell in matrix.cells for path in (cell.load_path, cell.query_path, cell.recall_path)}
        if was == now:
            return "the code of the table changed"
        return f"other records than in the last table: {len(now - was)} added, {len(was - now)} gone"

    @cached_property
    def _report(self) -> str:
        experiment = self._matrix.config.experiment
        if "table" in self._running:
            return self._table
        if any(Path().glob(f"results/report/{experiment}@*/index.html")):
            return "the title of the page changed, or its code or packages"
        return f"new: no earlier page of experiment {experiment}"


def _created(record: Mapping[str, Any] | None) -> float:
    """When a record was made, as a number that grows with time."""
    digits = re.sub(r"\D", "", str((record or {}).get("created", "")))[:14]
    return float(digits or 0)


def _records_in(table: Path) -> set[str]:
    """The paths of the records that a table of numbers names."""
    with open(table, newline="") as file:
        rows = csv.reader(file)
        header = next(rows, [])
        if "record" not in header:
            return set()
        at = header.index("record")
        return {row[at] for row in rows if len(row) > at}


@dataclass(frozen=True)
class Group:
    """Jobs that run for the same reason, counted by rule, and where in the matrix they are."""

    reason: str
    rules: Mapping[str, int]
    where: str

    @property
    def total(self) -> int:
        """How many jobs."""
        return sum(self.rules.values())


def explain(matrix: Matrix, running: Sequence[Job], earlier: Earlier) -> list[Group]:
    """Why the jobs run, those with the same reason together, the largest group first."""
    reasons = _Reasons(matrix, running, earlier)
    groups: dict[str, list[Job]] = {}
    for job in running:
        groups.setdefault(reasons.of(job), []).append(job)
    made = [Group(reason, Counter(job.rule for job in members), _where(members)) for reason, members in groups.items()]
    return sorted(made, key=lambda group: -group.total)


_AXES: Mapping[str, frozenset[str]] = {
    "dataset": frozenset({"artifact"}),
    "system": frozenset({"download", "normalize", "truth"}),
    "topology": frozenset({"artifact", "download", "normalize", "truth"}),
    "workload": frozenset({"artifact", "download", "normalize", "truth", "load", "record"}),
}
"""The names of a cell, each with the rules that do not depend on it."""


def _where(members: Iterable[Job]) -> str:
    """The names that the jobs have, an axis with many of them as a number."""
    members = list(members)
    shown = []
    for axis, without in _AXES.items():
        names = {str(getattr(cell, axis)) for job in members if job.rule not in without for cell in job.cells}
        if len(names) > 3:
            plural = "topologies" if axis == "topology" else f"{axis}s"
            shown.append(f"{len(names)} {plural}")
        elif names:
            shown.append(", ".join(sorted(names)))
    return " × ".join(shown)


def lines(groups: Sequence[Group]) -> list[str]:
    """The reasons for people: each with the jobs that it is a reason for, and where in the matrix these are."""
    shown = []
    for group in groups:
        rules = ", ".join(f"{rule} {group.rules[rule]}" for rule in RULES if rule in group.rules)
        shown += [f"  {group.reason}", f"      {group.total} {'job' if group.total == 1 else 'jobs'}: {rules}"]
        if group.where:
            shown.append(f"      {group.where}")
    return shown
