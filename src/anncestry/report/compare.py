"""Two sides set against each other, number by number: is B faster than A, the same within noise, or not comparable?

A side is a table of numbers with the records behind them, wherever it comes from. What a verdict means, and what it
can't mean: docs/comparing.md.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any, Protocol

import pandas as pd

from anncestry.errors import DataError, UserError
from anncestry.provenance.platform import IDENTITY
from anncestry.provenance.records import identity, read_record, sha256_file
from anncestry.report import diffs
from anncestry.report.compare_noise import Noise, between_pairs
from anncestry.report.numbers import ABSENT, MISSING, PHASES, first_builds, read, rows_of
from anncestry.report.tables import Row
from anncestry.report.welch import MIN_RUNS, Sample, difference_interval

SAME = "same within noise"
SAME_RECORD = "same record"
"""Both sides quote one file: nothing was measured twice."""
EQUAL = "equal"
"""Two measurements with one value, though their noise is unknown."""
UNKNOWN = "noise unknown"
NOT_COMPARABLE = "not comparable"

KINDS = ("system", "experiment", "platform", "revision")
"""What a side can be the name of; `find` tries them in this order."""

WORKING_TREE = "."
"""The name of what lies in this folder, whether it was kept or not."""

HEADLINE = (
    *("load_s", "p50_ms", "p95_ms", "p99_ms", "qps", "recall_by_id"),
    *("storage_total_mib", "storage_net_mib"),
)

_STAGES = ("load", "query", "recall")
_OF_CODE = {"code", "uncommitted code"}
"""Facts that any commit changes: of what measures, the epoch counts."""
_Body = Mapping[str, Any]

# Means over runs are rounded: runs that agree have a spread of this order, and it says nothing of noise.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Words:
    """What B is called where its value is less than A's, and where it is more; `better` is -1 for less, 0 neither."""

    less: str
    more: str
    better: int

    def of(self, sign: float) -> str:
        """The word for a difference B - A of this sign."""
        return self.less if sign < 0 else self.more


_TIME = Words("faster", "slower", -1)
_RATE = Words("slower", "faster", +1)
_RECALL = Words("worse", "better", +1)
_SIZE = Words("smaller", "larger", -1)
_FAILURES = Words("fewer", "more", -1)
_AMOUNT = Words("lower", "higher", 0)  # being busy is neither good nor bad


def words_of(metric: str) -> Words:
    """The words for a metric of the tidy table."""
    if metric.startswith("recall_"):
        return _RECALL
    if metric.startswith("storage_"):
        return _SIZE
    if metric in ("qps", "rows_per_s"):
        return _RATE
    if metric in ("errors", "timeouts", "fail_per_s"):
        return _FAILURES
    if metric.endswith("_ms") or metric in {f"{phase}_s" for phase in (*PHASES, "load", "upgrade")}:
        return _TIME
    return _AMOUNT


@dataclass(frozen=True)
class Side:
    """One side: a tidy frame (report/numbers.py), and by its path every record that the frame names.

    `records` may also hold the records of the vectors and the truth, under the paths by which loads and recalls quote
    them: with them, data under another key is known for the same if its content is. `kind` is one of KINDS, or empty;
    `commit` that of a revision.
    """

    label: str
    numbers: pd.DataFrame
    records: Mapping[str, _Body]
    kind: str = ""
    commit: str = ""


@dataclass(frozen=True)
class Line:
    """One number of both sides. Values are in `unit`; what is not there is None.

    `ratio` is b / a. `low` and `high` bound b - a with 95 % confidence, in `unit`: Welch's interval over runs, for
    recall Newcombe's over queries. `verdict` is of B against A; `noise` says what it took for noise, empty where none
    is known. `reason` says why there is no better verdict, and `note` what to bear in mind with this one. A system is
    empty where its side has none to set against the other's.
    """

    dataset: str
    topology: str
    workload: str
    system_a: str
    system_b: str
    phase: str
    metric: str
    unit: str
    a: float | None
    b: float | None
    std_a: float | None
    std_b: float | None
    runs_a: int | None
    runs_b: int | None
    ratio: float | None
    low: float | None
    high: float | None
    verdict: str
    noise: str
    reason: str
    note: str
    problem_a: str
    problem_b: str
    number_a: str
    number_b: str
    record_a: str
    record_b: str
    record_sha256_a: str
    record_sha256_b: str

    @property
    def decided(self) -> bool:
        """Whether the difference is larger than noise."""
        words = words_of(self.metric)
        return self.verdict in (words.less, words.more)

    @property
    def measured_twice(self) -> bool:
        """Whether both sides measured one and the same thing: under one key, but not in one record."""
        return (
            bool(self.number_a) and self.number_a == self.number_b and self.verdict not in (NOT_COMPARABLE, SAME_RECORD)
        )

    @property
    def better(self) -> str:
        """`a` or `b`, whichever is better by more than noise; empty if neither is."""
        words = words_of(self.metric)
        if not self.decided or not words.better:
            return ""
        return "b" if self.verdict == words.of(words.better) else "a"


@dataclass(frozen=True)
class Comparison:
    """All lines, and what else differs between the sides as (what, A's, B's): possible causes, not obstacles.

    `noise` is what was taken for noise beside the spread of runs.
    """

    a: Side
    b: Side
    lines: tuple[Line, ...]
    differences: tuple[tuple[str, str, str], ...]
    noise: Noise

    def counts(self) -> dict[str, int]:
        """How often each verdict was given, most frequent first."""
        verdicts = pd.Series([line.verdict for line in self.lines], dtype="str")
        return {str(verdict): int(count) for verdict, count in verdicts.value_counts(sort=True).items()}


# Sides


def side(label: str, numbers: pd.DataFrame, results: Path, *, kind: str = "") -> Side:
    """A side from a tidy frame, its records read from the folder `results`, wherever that lies.

    DataError if a record is missing, or no longer has the sha256 it had when the table was made.
    """
    numbers = first_builds(numbers)
    records: dict[str, _Body] = {}
    for path, digest in sorted(set(zip(numbers["record"], numbers["record_sha256"], strict=True))):
        if not digest:
            continue
        file = _below(results, path)
        records[path] = read_record(file)
        if sha256_file(file) != digest:
            raise DataError(f"{file}: not the record that the table was made from ({digest[:12]}…): make it again")
    # The data of a revision is not laid out: a record of the same identity in this folder says as much.
    data: dict[str, _Body] = {}
    for root in (Path(), results.parent):
        data |= _data_records(records.values(), root)
    return Side(label, numbers, records | data, kind)


def of_results(results: Path, experiment: str, *, label: str, kind: str = "revision", current: str = "") -> Side:
    """The side of one experiment's table in the folder `results`, of this checkout or of a revision laid out elsewhere.

    `experiment` may be EXPERIMENT@KEY; else `current` is the key to prefer. DataError names a table that is not there,
    and those among which nothing tells which is meant.
    """
    folder = _table_of(_tables(results, experiment), results, experiment, current)
    return side(label, read(folder), results, kind=kind)


class Revisions(Protocol):
    """Git's revisions and their results (provenance/revisions.py)."""

    def commit(self, name: str) -> str:
        """The hash of the commit that is meant by a name; empty if there is none."""

    def names(self) -> list[str]:
        """Names that people gave to revisions."""

    def results(self, name: str) -> Path:
        """The folder with the results of a revision; DataError if they can't be had."""


def find(
    name: str,
    results: Path,
    experiment: str,
    current: Callable[[str], str],
    revisions: Revisions | None = None,
) -> Side:
    """The side that a user means by `name`, with KIND: in front where a name alone means something else.

    A system of `experiment`; an experiment (or EXPERIMENT@KEY) with a table in `results`; a platform id that a table
    of `experiment` was measured on; a revision; WORKING_TREE. `current` gives the key of an experiment's present
    table, empty where the config knows no such experiment. UserError if nothing is called so, and for a revision that
    has the name of something else.
    """
    if name == WORKING_TREE:
        return of_results(results, experiment, label="working tree", kind="", current=current(experiment))
    prefix, colon, rest = name.partition(":")
    kinds, bare = ((prefix,), rest) if colon and prefix in KINDS else (KINDS, name)
    here = _Here(results, experiment, current, revisions)
    unlike = []
    for kind in kinds:
        found, known = here.look_up(kind, bare)
        if found is None:
            unlike.append(f"no {kind} ({known})")
        elif len(kinds) > 1 and kind != "revision" and revisions is not None and revisions.commit(bare):
            raise UserError(f"{name!r} names a {kind} and a git revision: say {kind}:{name} or revision:{name}")
        else:
            return found
    raise UserError(f"{name!r} names nothing that can be compared: {'; '.join(unlike)}")


@dataclass(frozen=True)
class _Here:
    """Where `find` looks; the fields are its parameters."""

    results: Path
    experiment: str
    current: Callable[[str], str]
    revisions: Revisions | None

    def look_up(self, kind: str, name: str) -> tuple[Side | None, str]:
        """The side of this kind and name, or None; and which names of this kind there are."""
        return {"system": self._system, "experiment": self._experiment, "platform": self._platform}.get(
            kind, self._revision
        )(name)

    def _system(self, name: str) -> tuple[Side | None, str]:
        tables = _tables(self.results, self.experiment)
        try:
            folder = _table_of(tables, self.results, self.experiment, self.current(self.experiment))
        except DataError as error:  # no reason to refuse a name that means something else
            return None, str(error)
        # Which systems there are is asked of the table alone: records are read only for a side that is meant.
        numbers = read(folder)
        chosen = numbers[numbers["system"] == name].reset_index(drop=True)
        known = f"known: {_listed(numbers['system'])}"
        return (None if chosen.empty else side(name, chosen, self.results, kind="system")), known

    def _experiment(self, name: str) -> tuple[Side | None, str]:
        if not _tables(self.results, name):
            return None, f"with a table: {_listed(_experiments(self.results))}"
        return of_results(self.results, name, label=name, kind="experiment", current=self.current(name)), ""

    def _platform(self, name: str) -> tuple[Side | None, str]:
        by_platform = _by_platform(self.results, self.experiment)
        if name not in by_platform:
            return None, f"measured on: {_listed(by_platform)}"
        folder = _table_of(by_platform[name], self.results, self.experiment, self.current(self.experiment))
        return side(name, read(folder), self.results, kind="platform"), ""

    def _revision(self, name: str) -> tuple[Side | None, str]:
        commit = self.revisions.commit(name) if self.revisions is not None else ""
        if self.revisions is None or not commit:
            names = self.revisions.names() if self.revisions is not None else []
            return None, f"no commit is called so; branches and tags: {', '.join(names) or 'none'}"
        folder = self.revisions.results(name)
        try:
            table = _table_of(_kept(_tables(folder, self.experiment), folder), folder, self.experiment, "")
        except DataError as error:
            raise DataError(f"revision {name} ({commit[:12]}): {error}") from None
        return replace(side(name, read(table), folder, kind="revision"), commit=commit), ""


def _kept(tables: Mapping[str, Path], results: Path) -> dict[str, Path]:
    """Of several tables of one experiment the one that was current when the results were kept, where that shows.

    `keep` leaves the metrics of the current table, and of none other, beside the tables.
    """
    if len(tables) < 2:
        return dict(tables)
    experiment = next(iter(tables)).rpartition("@")[0]
    there = {
        path.relative_to(results).as_posix(): json.loads(path.read_text())
        for path in (results / "metrics" / experiment).rglob("*.json")
    }

    def current(folder: Path) -> bool:
        said = diffs.files(read(folder), experiment)
        return there == {path: json.loads(text) for path, text in said.items() if path.startswith("metrics/")}

    # Tables of the same numbers, made by another version of this program, say the same.
    return dict([(name, folder) for name, folder in tables.items() if current(folder)][-1:] or tables)


def _below(results: Path, path: str) -> Path:
    """Where the record that a table calls results/… lies, if the results are in the folder `results`."""
    first, *rest = Path(path).parts
    if first != "results" or ".." in rest:
        raise DataError(f"{path}: a table's record that is not among the results")
    return results.joinpath(*rest)


def _data_records(records: Iterable[_Body], root: Path) -> dict[str, _Body]:
    """Records of vectors and truth that `records` were made from, where they are here and stand for the same files."""
    found: dict[str, _Body] = {}
    for record in records:
        for label in ("vectors", "truth"):
            quoted = _quoted(record, label)
            file = root / quoted.get("path", "")
            if not quoted or quoted["path"] in found or not file.exists():
                continue
            made_from = read_record(file)
            if identity(made_from) == quoted.get("identity") or sha256_file(file) == quoted["sha256"]:
                found[quoted["path"]] = made_from
    return found


def _quoted(record: _Body, label: str) -> dict[str, str]:
    """What a record says of one of its inputs (path, sha256, identity); empty if it has no such input."""
    return dict((record.get("inputs") or {}).get(label) or {})


def _tables(results: Path, experiment: str) -> dict[str, Path]:
    """The folders of an experiment's tables, by name (EXPERIMENT@KEY)."""
    name, _, key = experiment.partition("@")
    return {
        folder.name: folder
        for folder in sorted((results / "table").glob("*@*"))
        if folder.name.rpartition("@")[0] == name and (not key or folder.name == experiment)
    }


def _experiments(results: Path) -> set[str]:
    return {folder.name.rpartition("@")[0] for folder in (results / "table").glob("*@*")}


def _table_of(tables: Mapping[str, Path], results: Path, experiment: str, current: str) -> Path:
    """The table that is meant: the present one if it is among them, else the only one."""
    present = f"{experiment}@{current}"
    if present in tables:
        return tables[present]
    if not tables:
        raise DataError(
            f"{results / 'table'}: no table of experiment {experiment}, only of {_listed(_experiments(results))}"
        )
    if len(tables) > 1:
        raise DataError(f"{results / 'table'}: several tables of {experiment}: name one of {_listed(tables)}")
    return next(iter(tables.values()))


def _by_platform(results: Path, experiment: str) -> dict[str, dict[str, Path]]:
    """The tables of an experiment by the platform that their loads were measured on."""
    found: dict[str, dict[str, Path]] = {}
    for name, folder in _tables(results, experiment).items():
        numbers = read(folder)
        loads = numbers.loc[(numbers["metric"] == "load_s") & (numbers["record_sha256"] != ""), "record"]
        for path in loads.unique()[:1]:
            platform = str(read_record(_below(results, path), stage="load")["spec"].get("platform", ""))
            found.setdefault(platform, {})[name] = folder
    return found


def _listed(names: Iterable[object]) -> str:
    return ", ".join(sorted({str(name) for name in names})) or "none"


# Comparing


def compare(a: Side, b: Side, noise: Noise | None = None) -> Comparison:
    """Set every number of `b` against that of `a` with the same dataset, topology, workload, phase and metric.

    A difference counts if it is larger than the spread of runs tells, and larger than the `noise` of its metric: what
    is given, and what is found between numbers that both sides measured under one key, nothing known being different.
    Those are the evidence for the noise, and judged by their runs and what is given alone.

    Numbers that neither side is meant to have (a phase that both lack, a filter that neither was asked) are left out.

    Systems are paired by name; else, one system a side, whatever their names; else those of one engine, if each side
    has one left (an upgrade). DataError where a side's records lack one that its numbers name.
    """
    sides = (_Indexed("A", a), _Indexed("B", b))
    across_platforms = a.kind == b.kind == "platform"
    lines: list[Line] = []
    twice: list[Line] = []
    differences: dict[tuple[str, str, str], None] = {}
    for systems in _paired(sides[0].systems, sides[1].systems):
        pair = _Pair(sides, systems, across_platforms)
        found, unlike = list(pair.lines()), list(pair.differences())
        lines += found
        differences.update(dict.fromkeys(unlike))
        if {what for what, *_ in unlike} <= _OF_CODE:
            twice += [line for line in found if line.measured_twice]
    given = noise or Noise()
    known = given.with_measured(between_pairs((line.metric, line.a or 0, line.b or 0) for line in twice))
    judged = [_floored(line, given if line.measured_twice else known) for line in lines]
    return Comparison(a, b, tuple(sorted(_with_recall(judged), key=_place)), tuple(differences), known)


def _floored(line: Line, noise: Noise) -> Line:
    """A line that no longer counts as a difference if a floor hides it."""
    words = words_of(line.metric)
    # A share of a recall, or of a count of failures, is no noise that anybody means by so many percent.
    floor = noise.floor(line.metric, common=words not in (_RECALL, _FAILURES))
    if floor is None or line.low is None or line.a is None or line.b is None:
        return line
    told = replace(line, noise=f"{line.noise}; {floor}")
    if line.decided and floor.hides(line.a, line.b):
        return replace(told, verdict=SAME, note=f"more than {line.noise} tell, but within {floor}")
    return told


def _with_recall(lines: Iterable[Line]) -> Iterator[Line]:
    """The lines, where a query's speed differs with a note if its recall does, too."""
    of_cell: dict[tuple[str, ...], list[Line]] = {}
    for line in lines:
        cell = (line.dataset, line.topology, line.workload, line.system_a, line.system_b)
        of_cell.setdefault(cell, []).append(line)
    for members in of_cell.values():
        recall = next((line for line in members if line.metric == "recall_by_id" and line.decided), None)
        for line in members:
            speed = line.phase == "query" and words_of(line.metric) in (_TIME, _RATE)
            if recall is None or not (speed and line.decided):
                yield line
            else:
                yield replace(line, note=f"with {recall.verdict} recall: {recall.a:.4f} against {recall.b:.4f}")


def _place(line: Line) -> tuple[Any, ...]:
    rank = HEADLINE.index(line.metric) if line.metric in HEADLINE else len(HEADLINE)
    where = (line.dataset, line.topology, line.system_a, line.system_b)
    # Every second part is a number: clients2 comes before clients16.
    parts = re.split(r"([0-9]+)", line.workload)
    workload = [int(part) if place % 2 else part for place, part in enumerate(parts)]
    return (*where, workload, rank, line.phase, line.metric)


def _paired(a: Mapping[str, str], b: Mapping[str, str]) -> list[tuple[str, str]]:
    """Pairs of systems from name → engine of both sides; what finds no partner is paired with an empty name."""
    if len(a) == len(b) == 1:
        return [(next(iter(a)), next(iter(b)))]
    pairs = [(name, name) for name in a if name in b]
    left, right = ([name for name in side if name not in other] for side, other in ((a, b), (b, a)))
    for name in left:
        rivals = [other for other in left if a[other] == a[name]]
        heirs = [other for other in right if b[other] == a[name]]
        pairs.append((name, heirs[0] if a[name] and len(rivals) == len(heirs) == 1 else ""))
    taken = {heir for _, heir in pairs}
    return [*pairs, *(("", name) for name in right if name not in taken)]


class _Indexed:
    """A side's rows by their place."""

    def __init__(self, letter: str, given: Side) -> None:
        self.name = f"{letter} ({given.label})"
        self.records = given.records
        rows = rows_of(given.numbers)
        self.systems = {row["system"]: row["engine"] for row in rows}
        self.rows = {_key_of(row): row for row in rows}
        self._paths: dict[tuple[str, ...], str] = {}
        for row in rows:
            stage = row["phase"] if row["phase"] in _STAGES[1:] else "load"
            if row["record_sha256"]:
                self._paths[(stage, row["system"], row["dataset"], row["topology"], row["workload"])] = row["record"]
        self.cells = {key[:4] for key in self.rows}

    def record(self, stage: str, place: tuple[str, str, str, str]) -> _Body:
        """The record of a stage; `place` is (system, dataset, topology, workload)."""
        path = self._paths.get((stage, *place[:3], "" if stage == "load" else place[3]), "")
        if path not in self.records:
            raise DataError(f"{self.name}: {path or f'{stage} of {_listed(place)}'}: not among the records")
        return self.records[path]


def _key_of(row: Row) -> tuple[str, ...]:
    return tuple(row[name] for name in ("system", "dataset", "topology", "workload", "phase", "metric"))


class _Pair:
    """A system of either side."""

    def __init__(self, sides: tuple[_Indexed, _Indexed], systems: tuple[str, str], across_platforms: bool) -> None:
        self._sides = sides
        self._systems = systems
        self._across_platforms = across_platforms
        self._obstacles: dict[tuple[str, ...], str] = {}

    def lines(self) -> Iterator[Line]:
        """A line for each number that a side has or should have."""
        for key in self._keys():
            line = self._line(key)
            if not {line.problem_a, line.problem_b} <= ABSENT:  # such as the selectivity where no filter was asked
                yield line

    def differences(self) -> Iterator[tuple[str, str, str]]:
        """What else differs between the loads of the two systems."""
        places = dict.fromkeys(key[:2] for key in self._keys() if key[-1] == "load_s")
        for dataset, topology in places:
            rows = [self._row(rank, (dataset, topology, "", "load", "load_s")) for rank in (0, 1)]
            if any(row is None or not row["record_sha256"] for row in rows):
                continue
            first, second = (_facts(self._record(rank, "load", (dataset, topology, ""))) for rank in (0, 1))
            for what in dict.fromkeys((*first, *second)):
                if first.get(what) != second.get(what):
                    yield what, first.get(what, "–"), second.get(what, "–")

    def _keys(self) -> list[tuple[str, ...]]:
        """(dataset, topology, workload, phase, metric) of either side's rows, each once."""
        return list(
            dict.fromkeys(
                key[1:]
                for side, system in zip(self._sides, self._systems, strict=True)
                for key in side.rows
                if key[0] == system
            )
        )

    def _row(self, rank: int, key: tuple[str, ...]) -> Row | None:
        return self._sides[rank].rows.get((self._systems[rank], *key))

    def _record(self, rank: int, stage: str, cell: Sequence[str]) -> _Body:
        dataset, topology, workload = cell
        return self._sides[rank].record(stage, (self._systems[rank], dataset, topology, workload))

    def _line(self, key: tuple[str, ...]) -> Line:
        dataset, topology, workload, phase, metric = key
        a, b = (self._row(rank, key) for rank in (0, 1))
        problems = [self._problem(rank, key) for rank in (0, 1)]
        bare = Line(
            dataset=dataset,
            topology=topology,
            workload=workload,
            system_a=self._systems[0],
            system_b=self._systems[1],
            phase=phase,
            metric=metric,
            unit=next(row["unit"] for row in (a, b) if row is not None),
            a=a["value"] if a else None,
            b=b["value"] if b else None,
            std_a=a["std"] if a else None,
            std_b=b["std"] if b else None,
            runs_a=a["runs"] if a else None,
            runs_b=b["runs"] if b else None,
            ratio=None,
            low=None,
            high=None,
            verdict=NOT_COMPARABLE,
            noise="",
            reason="; ".join(
                f"{side.name}: {problem}" for side, problem in zip(self._sides, problems, strict=True) if problem
            ),
            note="",
            problem_a=problems[0],
            problem_b=problems[1],
            number_a=a["number_id"] if a else "",
            number_b=b["number_id"] if b else "",
            record_a=a["record"] if a else "",
            record_b=b["record"] if b else "",
            record_sha256_a=a["record_sha256"] if a else "",
            record_sha256_b=b["record_sha256"] if b else "",
        )
        if a is None or b is None or bare.reason:
            return bare
        if a["record_sha256"] == b["record_sha256"]:
            return replace(bare, verdict=SAME_RECORD, ratio=_ratio(a, b))
        obstacle = self._obstacle(_stage_of(phase), (dataset, topology, workload))
        if obstacle:
            return replace(bare, reason=obstacle)
        interval, reason = self._interval(a, b)
        line = replace(bare, ratio=_ratio(a, b), reason=reason)
        if interval is None:
            return replace(line, verdict=EQUAL if a["value"] == b["value"] else UNKNOWN)
        low, high = interval
        verdict = SAME if low <= 0 <= high else words_of(metric).of(low)
        return replace(line, low=low, high=high, verdict=verdict, noise="queries" if phase == "recall" else "runs")

    def _problem(self, rank: int, key: tuple[str, ...]) -> str:
        """Why a side has no such number; empty if it has."""
        row = self._row(rank, key)
        if row is not None:
            if row["value"] is not None:
                return ""
            reason = str(row["reason"])
            return reason if reason in MISSING | ABSENT else f"invalid: {reason}"
        if not self._systems[rank]:
            return f"no system to set against {self._systems[1 - rank]}"
        dataset, topology, workload, *_ = key
        there = (self._systems[rank], dataset, topology, workload) in self._sides[rank].cells
        return "no such number" if there else "no such cell"

    def _interval(self, a: Row, b: Row) -> tuple[tuple[float, float] | None, str]:
        """The interval of B - A; None with the reason where noise is unknown."""
        samples = [_sample(a), _sample(b)]
        few = [
            f"{side.name}: {_runs_text(row)}"
            for side, row, sample in zip(self._sides, (a, b), samples, strict=True)
            if sample.runs < MIN_RUNS
        ]
        if few:
            return None, f"{'; '.join(few)}: at least {MIN_RUNS} runs are needed"
        if a["phase"] == "recall":
            cell = (a["dataset"], a["topology"], a["workload"])
            asked = [int(self._record(rank, "recall", cell).get("queries") or 0) for rank in (0, 1)]
            if not all(asked):
                return None, "the number of queries is not recorded"
            return proportion_interval(b["value"], asked[1], a["value"], asked[0]), ""
        interval = difference_interval(samples[1], samples[0])
        return interval, "" if interval else "no run differed from another"

    def _obstacle(self, stage: str, cell: tuple[str, str, str]) -> str:
        """Why numbers of this stage can't be compared, whatever they are; empty if they can."""
        if (stage, *cell) not in self._obstacles:
            self._obstacles[(stage, *cell)] = "; ".join(dict.fromkeys(self._all_obstacles(stage, cell)))
        return self._obstacles[(stage, *cell)]

    def _all_obstacles(self, stage: str, cell: tuple[str, str, str]) -> Iterator[str]:
        chain = {
            name: (self._record(0, name, cell), self._record(1, name, cell))
            for name in _STAGES[: _STAGES.index(stage) + 1]
        }
        for name, (a, b) in chain.items():
            if not self._across_platforms:
                yield from _other_platform(a, b)
            epochs = [record["spec"].get("epoch") for record in (a, b)]
            if epochs[0] != epochs[1]:
                yield f"other epoch of {name}: {epochs[0]} against {epochs[1]}"
        a, b = chain["load"]
        yield from _other("dataset", a["spec"]["dataset"], b["spec"]["dataset"])
        yield from _other("topology", a["spec"]["topology"], b["spec"]["topology"])
        yield from self._other_content("vectors", "dataset", ("base", "queries", "category", "price"), a, b)
        if "query" in chain:
            # The seed chooses the warm-up queries and the order of the runs.
            asked = [{**record["spec"]["workload"], "seed": record["spec"].get("seed")} for record in chain["query"]]
            yield from _other("workload", *asked)
        if "recall" in chain:
            # Distances may differ in their last digit from machine to machine; what counts is who the nearest are.
            yield from self._other_content("truth", "truth", ("ids",), *chain["recall"])

    def _other_content(self, label: str, what: str, files: Sequence[str], a: _Body, b: _Body) -> Iterator[str]:
        """Whether an input is another: by its files' digests where its records are at hand, else by its key.

        Where the content is not pinned by the config (a made dataset), one key may stand for two contents: then the
        identities that the records quote differ.
        """
        quoted = [_quoted(record, label) for record in (a, b)]
        digests = []
        for side, entry in zip(self._sides, quoted, strict=True):
            outputs = side.records.get(entry.get("path", ""), {}).get("outputs") or {}
            digests.append({name: outputs[name]["sha256"] for name in files if name in outputs})
        keys = [record["spec"].get(label) for record in (a, b)]
        identities = [entry.get("identity") for entry in quoted]
        if all(digests):
            changed = [name for name in files if digests[0].get(name) != digests[1].get(name)]
            if changed:
                yield f"other {what}: the digest of {', '.join(changed)} differs"
        elif keys[0] != keys[1]:
            yield f"other {what}: {label} {keys[0]} against {keys[1]}"
        elif all(identities) and identities[0] != identities[1]:
            yield f"other {what}: another content behind {label} {keys[0]}"


def _stage_of(phase: str) -> str:
    return phase if phase in _STAGES else "load"


def _other_platform(a: _Body, b: _Body) -> Iterator[str]:
    """Another declared platform, or another machine under one name."""
    names = [record["spec"].get("platform") for record in (a, b)]
    if names[0] != names[1]:
        yield f"other platform: {names[0]} against {names[1]}"
        return
    machines = [{fact: (record.get("platform") or {}).get(fact) for fact in IDENTITY} for record in (a, b)]
    # A stage that measures nothing on a machine (recall) holds no facts of one.
    if all("platform" in record for record in (a, b)):
        yield from _other(f"machine behind platform {names[0]}", *machines)


def _other(what: str, a: _Body, b: _Body) -> Iterator[str]:
    """What differs in content behind the same name."""
    changed = [
        f"{name} {_said(a.get(name))} against {_said(b.get(name))}"
        for name in dict.fromkeys((*a, *b))
        if name != "name" and a.get(name) != b.get(name)
    ]
    if changed:
        yield f"other {what}: {', '.join(changed)}"


def _facts(load: _Body) -> dict[str, str]:
    """What a reader would look at for the cause of a difference."""
    spec, machine, code = load["spec"], load.get("platform") or {}, load.get("code") or {}
    facts = {
        "system": spec["system"]["name"],
        **{f"setting {name}": value for name, value in (spec["system"].get("settings") or {}).items()},
        **{f"index {name}": value for name, value in (spec.get("index") or {}).items()},
        **{f"load {name}": value for name, value in (spec.get("load") or {}).items()},
        "artifact": (load.get("artifact") or {}).get("digest", "")[:12] or None,
        **{f"client {name}": value for name, value in (load.get("clients") or {}).items()},
        "platform": spec.get("platform"),
        **{name: machine.get(name) for name in (*IDENTITY, "kernel", "os")},
        "code": code.get("commit"),
        "uncommitted code": code.get("diff_sha256"),
    }
    return {name: _said(value) for name, value in facts.items() if value is not None}


def _said(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _ratio(a: Row, b: Row) -> float | None:
    return float(b["value"]) / float(a["value"]) if a["value"] else None


def _sample(row: Row) -> Sample:
    """A number over its runs. What has no spread (one run, or a total over runs) counts as measured once."""
    if row["std"] is None:
        return Sample(row["value"], 0.0, 1)
    spread = row["std"] if row["std"] > _ROUNDING * abs(row["value"]) else 0.0
    return Sample(row["value"], spread, row["runs"] or 1)


def _runs_text(row: Row) -> str:
    runs = row["runs"]
    if runs is None:
        return "measured in passing"
    return "one run" if runs == 1 else f"{runs} runs" if runs < MIN_RUNS else "a total over runs"


def proportion_interval(
    first: float, first_count: int, second: float, second_count: int, confidence: float = 0.95
) -> tuple[float, float]:
    """The interval of `first` - `second`, both means over `*_count` (>= 1) queries of values from 0 to 1.

    Newcombe's hybrid score interval (Statistics in Medicine 17, 1998, method 10). It is wide rather than narrow: the
    score interval takes p (1 - p) for the variance of one query, the most that values from 0 to 1 with mean p can have
    (Bhatia and Davis 2000), and takes the queries of the two sides for different ones.
    """
    low_1, high_1 = _score_interval(first, first_count, confidence)
    low_2, high_2 = _score_interval(second, second_count, confidence)
    difference = first - second
    return (
        difference - math.hypot(first - low_1, high_2 - second),
        difference + math.hypot(high_1 - first, second - low_2),
    )


def _score_interval(p: float, count: int, confidence: float) -> tuple[float, float]:
    """Wilson's score interval of a proportion (1927): it does not collapse where p is 0 or 1."""
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    middle = p + z**2 / (2 * count)
    half = z * math.sqrt(p * (1 - p) / count + z**2 / (4 * count**2))
    whole = 1 + z**2 / count
    return (middle - half) / whole, (middle + half) / whole
