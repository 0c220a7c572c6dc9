"""The jobs that would run, as in Snakemake's dry run, each with its reason.

The jobs follow from the matrix and the disk, as in the Snakefile: a job runs if a target or another running job needs a
missing file of it; a finished stage has no inputs. `tests/cells/test_plan.py` compares the counts with Snakemake's.

A reason is the difference between the specs of the missing record and of the nearest earlier record of the same names.
If only the key of an earlier stage differs, the specs of that stage are compared, so a reason names the original change
and not its consequences.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from anncestry.cells.matrix import Matrix, Pair
from anncestry.cells.plan import Job, Plan, results, session_key
from anncestry.cells.stage import RECORDS, STAGES, key_of, stage_at
from anncestry.provenance.attempts import Ledger
from anncestry.provenance.records import peek

RULES = tuple(name for name, stage in STAGES.items() if stage.rule)
"""All rules, in the order in which their jobs run."""

NEW = "new: no earlier record of these names"
GONE = "output missing: deleted or not pulled"
TRIED = "tried before: its session failed"

_VALUE_CHARS = 48
_EPOCHS_MAX = 20


# What would run


def jobs(matrix: Matrix, plan: Plan) -> list[Job]:
    """The jobs that Snakemake would run in the working directory, in the order of the rules, without its `all`."""
    missing = cache(lambda path: not os.path.exists(path))  # noqa: PTH110 - called per cell
    published = (*chain.from_iterable(map(results, matrix.measured)), *(cell.load_path for cell in matrix.loaded))
    if not any(map(missing, (*published, matrix.table_path, matrix.report_path))):
        return []
    goal = Job("all", "", "")
    inputs, readers = _considered(goal, plan, missing)
    running = {goal}
    queue = [goal]
    while queue:
        job = queue.pop()
        # Inputs are ancient: what is made anew does not set off those that read it, what was missing does.
        for other, path in chain(inputs[job], readers.get(job, ())):
            if other not in running and missing(path):
                running.add(other)
                queue.append(other)
    order = {rule: number for number, rule in enumerate(RULES)}
    return sorted(running - {goal}, key=lambda job: (order[job.rule], job.output))


_Links = dict[Job, list[tuple[Job, str]]]


def _considered(goal: Job, plan: Plan, missing: Callable[[str], bool]) -> tuple[_Links, _Links]:
    """All jobs that Snakemake considers, each with the jobs and paths that it reads; and with those that read it."""
    report = Job("report", plan.matrix.report, plan.matrix.report_path)
    loads = [plan.made(("record", "record"), cell) for cell in plan.matrix.loaded]
    inputs: _Links = {goal: [*loads, *plan.inputs("table", "").values(), plan.table, (report, report.output)]}
    readers: _Links = {}
    stack = [goal]
    while stack:
        job = stack.pop()
        for maker, path in inputs[job]:
            readers.setdefault(maker, []).append((job, path))
            if maker not in inputs:
                published = maker.rule in ("query", "pair")
                incomplete = missing(maker.output) or (published and missing(maker.cells[0].samples_path))
                inputs[maker] = list(plan.inputs(maker.rule, maker.key).values()) if incomplete else []
                stack.append(maker)
    return inputs, readers


# Earlier records


class Earlier:
    """The records of any key that lie in the working directory, by stage and names; read only when asked for."""

    def __init__(self) -> None:
        self.record = cache(self._record)

    @cached_property
    def paths(self) -> dict[str, dict[str, str]]:
        """Stage → key → path of a record."""
        by_stage: dict[str, dict[str, str]] = {name: {} for name in RECORDS}
        for name, stage in RECORDS.items():
            for path in map(str, Path().glob(stage.glob())):
                if names := stage.match(path):
                    by_stage[name][names["key"]] = path
        return by_stage

    @cached_property
    def _keys(self) -> dict[tuple[str, str], list[str]]:
        by_names: dict[tuple[str, str], list[str]] = {}
        for stage, paths in self.paths.items():
            for key, path in paths.items():
                by_names.setdefault((stage, names_of(path)), []).append(key)
        return by_names

    def keys(self, stage: str, names: str) -> list[str]:
        """Keys of the stage's records of these names (DATASET/SYSTEM/…, as in their path)."""
        keys = self._keys.get((stage, names), [])
        if stage == "artifact":
            keys = list({*keys, *(key for key, spec in self._quoted.items() if spec["system"] == names)})
        return keys

    @cached_property
    def _quoted(self) -> dict[str, dict[str, Any]]:
        """Specs of artifacts by their key, as the records of loads quote them: artifacts are not published."""
        specs: dict[str, dict[str, Any]] = {}
        for load in self.paths["load"]:
            record = self.record("load", load)
            quoted = (record or {}).get("artifact")
            if record is None or not isinstance(quoted, Mapping):
                continue
            made = {
                "stage": "artifact",
                "system": record["spec"]["system"]["name"],
                "version": quoted.get("version"),
                "artifact": quoted.get("artifact"),
                **({"parts": quoted["parts"]} if "parts" in quoted else {}),
            }
            # The epoch is not quoted; the key says which one it was.
            key = record["spec"]["artifact"]
            possible = ({**made, "epoch": epoch} for epoch in range(1, _EPOCHS_MAX + 1))
            if spec := next((each for each in possible if key_of(each) == key), None):
                specs[key] = spec
        return specs

    def _record(self, stage: str, key: str) -> dict[str, Any] | None:
        """A record; None if there is none, or none that can be read: what can't be read explains nothing."""
        path = self.paths[stage].get(key)
        return None if path is None else peek(Path(path), stage)

    def spec(self, stage: str, key: str) -> dict[str, Any] | None:
        """The spec behind a record's key."""
        record = self.record(stage, key)
        if record is None:
            return self._quoted.get(key) if stage == "artifact" else None
        spec: dict[str, Any] = record["spec"]
        if stage != "download":
            return spec
        # The record of a download also holds what its key does not depend on: keep what gives the key.
        without = ((), ("metric",), ("metric", "sources"))
        less = [{name: spec[name] for name in spec if name not in out} for out in without]
        return next((smaller for smaller in less if key_of(smaller) == key), less[1])


def names_of(path: str) -> str:
    """The names in a record's path: DATASET, SYSTEM, or DATASET/SYSTEM/TOPOLOGY[/WORKLOAD]; empty for other paths."""
    stage = stage_at(path)
    names = stage.match(path) if stage is not None else None
    return "/".join(value for name, value in names.items() if name != "key") if names else ""


# Why


def _change(part: str, old: Any, new: Any) -> str:
    """That a part of a spec is another one than it was; `None` stands for a part that is not there."""
    return f"{part}: {_shown(old)} → {_shown(new)}"


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, separators=(",", ":"))
    if re.fullmatch(r"[0-9a-f]{32,}", text):
        return text[:12] + "…"
    return text if len(text) <= _VALUE_CHARS else text[: _VALUE_CHARS - 1] + "…"


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
    "normalize": {
        "metric": "dataset.metric",
        "prefix": "dataset.prefix",
        "zero_vectors": "dataset.zero_vectors",
    },
    "truth": {"metric": "dataset.metric", "filter": "workload.filter", "depth": "truth.depth"},
    "artifact": {"system": "system.name", "version": "system.version"},
    "load": {"upgrade_epoch": "epoch of upgrades"},
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
    """Why each job runs. It finds the reason of a key once."""

    def __init__(self, matrix: Matrix, running: Sequence[Job], earlier: Earlier) -> None:
        self._matrix, self._earlier = matrix, earlier
        self._running = {job.rule for job in running}
        self._of_stage = cache(self._find)
        self._changes = cache(self._compare)
        self._tried = {
            cell.query
            for job in running
            if job.rule in ("session", "duet") and job.key != session_key(job.cells, job.round, 0)
            for cell in job.cells
        }

    def of(self, job: Job) -> str:
        """The reason of a job, as one line."""
        if job.rule == "table":
            return self._table
        if job.rule == "report":
            return self._report
        if job.rule in ("session", "duet", "rounds"):
            # Its cells may have several reasons; the most frequent one speaks for all.
            stages = (("pair" if isinstance(cell, Pair) else "query", cell) for cell in job.cells)
            reasons = Counter(self._of_stage(stage, cell.query, cell.query_path) for stage, cell in stages)
            return reasons.most_common(1)[0][0]
        stage = STAGES[job.rule].spec
        return self._of_stage(stage, job.key, RECORDS[stage].path(job.cells[0]))

    def _find(self, stage: str, key: str, path: str) -> str:
        """Why the record of this stage, key and path is not there."""
        if stage in ("load", "query", "pair"):
            ledger, asked = Ledger.of_record({"stage": stage, "key": key, "spec": self._matrix.specs[key]})
            if said := ledger.failure(asked):
                return f"tried before: {said}"
        if key in self._tried:
            return TRIED
        if key in self._known:
            return GONE
        # A key that is still asked for was not replaced by this one (a dataset has several truths).
        keys = (old for old in self._earlier.keys(stage, names_of(path)) if old not in self._matrix.specs)
        nearest = min(
            (old for old in keys if self._earlier.spec(stage, old) is not None),
            key=lambda old: (len(self._changes(stage, old, key)), -_created(self._earlier.record(stage, old))),
            default=None,
        )
        return NEW if nearest is None else "; ".join(sorted(self._changes(stage, nearest, key)))

    def _compare(self, stage: str, old: str, new: str) -> frozenset[str]:
        """What differs between the specs of two keys of a stage, down to the stages that they are made from."""
        before = self._matrix.specs.get(old) or self._earlier.spec(stage, old)
        if before is None:
            return frozenset([_change(f"{stage} key", old, new)])
        changes: set[str] = set()
        after = self._matrix.specs[new]
        for path, one, other in _differences(before, after):
            upstream = _UPSTREAM.get(path[-1]) if len(path) == 1 or path[0] == "sides" else None
            if upstream and isinstance(one, str) and other in self._matrix.specs:
                changes |= self._changes(upstream, one, other)
            elif path[:2] == ("workload", "feature_epochs") and len(path) > 2:
                changes.add(_change(f"epoch of feature {path[2]}", one or 1, other or 1))
            elif path == ("engine_epoch",):
                changes.add(_change(f"epoch of engine {after['system']['engine']}", one or 1, other or 1))
            else:
                changes.add(_change(_part(stage, path), one, other))
        return frozenset(changes)

    @cached_property
    def _known(self) -> set[str]:
        """Keys of the matrix that were there once: those that a present record was made from, and theirs."""
        matrix = self._matrix
        keys: set[str] = set()
        all_there = os.path.exists(matrix.table_path) or os.path.exists(matrix.report_path)  # noqa: PTH110
        for cell in matrix.cells:
            for stage in (STAGES[name] for name in ("recall", "query", "record", "load", "truth", "normalize")):
                if all_there or os.path.exists(stage.path(cell)):  # noqa: PTH110 - called per cell
                    keys.add(stage.key_of(cell))
        keys |= {pair.pair for pair in matrix.pairs if all_there or os.path.exists(pair.path)}  # noqa: PTH110
        pending = list(keys)
        while pending:
            spec = matrix.specs[pending.pop()]
            sides = [side["load"] for side in spec.get("sides", {}).values()]
            for key in (*(spec.get(part) for part in _UPSTREAM), *sides):
                if isinstance(key, str) and key in matrix.specs and key not in keys:
                    keys.add(key)
                    pending.append(key)
        return keys

    @cached_property
    def _table(self) -> str:
        matrix = self._matrix
        if os.path.exists(matrix.report_path):  # noqa: PTH110
            return GONE
        tables = list(Path().glob(STAGES["table"].glob(experiment=matrix.config.experiment)))
        if not tables:
            return f"new: no earlier table of experiment {matrix.config.experiment}"
        was = column(max(tables, key=lambda path: path.stat().st_mtime), "record") or set()
        now = set(chain.from_iterable(map(results, matrix.measured)))
        if was == now:
            return "the code of the table changed, or what is listed and how arms are compared"
        return f"other records than in the last table: {len(now - was)} added, {len(was - now)} gone"

    @cached_property
    def _report(self) -> str:
        experiment = self._matrix.config.experiment
        if "table" in self._running:
            return self._table
        if any(Path().glob(STAGES["report"].glob(experiment=experiment))):
            return "the title of the page changed, how it decides or what it draws, or its code or packages"
        return f"new: no earlier page of experiment {experiment}"


def _created(record: Mapping[str, Any] | None) -> float:
    """When a record was made, as a number that grows with time."""
    digits = re.sub(r"\D", "", str((record or {}).get("created", "")))[:14]
    return float(digits or 0)


def column(table: Path, name: str) -> set[str] | None:
    """The values in a column of a CSV file of numbers; None if it can't be read, or has no such column."""
    try:
        with open(table, newline="") as file:
            rows = csv.reader(file)
            at = next(rows, []).index(name)
            return {row[at] for row in rows if len(row) > at}
    except (OSError, ValueError, UnicodeDecodeError, csv.Error):
        return None


@dataclass(frozen=True)
class Group:
    """Jobs that run for the same reason, counted by rule, and where in the matrix they are."""

    reason: str
    rules: Counter[str]
    where: str


def explain(matrix: Matrix, running: Sequence[Job], earlier: Earlier) -> list[Group]:
    """Why the jobs run, those with the same reason together, the largest group first."""
    reasons = _Reasons(matrix, running, earlier)
    groups: dict[str, list[Job]] = {}
    for job in running:
        groups.setdefault(reasons.of(job), []).append(job)
    made = [Group(reason, Counter(job.rule for job in members), _where(members)) for reason, members in groups.items()]
    return sorted(made, key=lambda group: -group.rules.total())


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
        total = group.rules.total()
        shown += [f"  {group.reason}", f"      {total} {'job' if total == 1 else 'jobs'}: {rules}"]
        if group.where:
            shown.append(f"      {group.where}")
    return shown
