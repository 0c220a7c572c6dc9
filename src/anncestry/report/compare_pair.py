"""One system of either side, number by number: what can't be compared and why, and what the runs say of the rest."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from anncestry.errors import DataError
from anncestry.provenance.platform import IDENTITY
from anncestry.report.absence import ABSENT, MISSING
from anncestry.report.compare_sides import Body, Side, listed, quoted_input
from anncestry.report.compare_verdict import EQUAL, NOT_COMPARABLE, SAME, SAME_RECORD, UNKNOWN, Line, words_of
from anncestry.report.numbers import rows_of
from anncestry.report.proportion import proportion_interval
from anncestry.report.tables import Row
from anncestry.report.welch import MIN_RUNS, Sample, difference_interval

_STAGES = ("load", "query", "recall")

# Means over runs are rounded: runs that agree have a spread of this order, and it says nothing of noise.
_ROUNDING = 1e-12


class Indexed:
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

    def record(self, stage: str, place: tuple[str, str, str, str]) -> Body:
        """The record of a stage; `place` is (system, dataset, topology, workload)."""
        path = self._paths.get((stage, *place[:3], "" if stage == "load" else place[3]), "")
        if path not in self.records:
            raise DataError(f"{self.name}: {path or f'{stage} of {listed(place)}'}: not among the records")
        return self.records[path]


def _key_of(row: Row) -> tuple[str, ...]:
    return tuple(row[name] for name in ("system", "dataset", "topology", "workload", "phase", "metric"))


class Pair:
    """A system of either side."""

    def __init__(self, sides: tuple[Indexed, Indexed], systems: tuple[str, str], across_platforms: bool) -> None:
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

    def _record(self, rank: int, stage: str, cell: Sequence[str]) -> Body:
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

    def _other_content(self, label: str, what: str, files: Sequence[str], a: Body, b: Body) -> Iterator[str]:
        """Whether an input is another: by its files' digests where its records are at hand, else by its key.

        Where the content is not pinned by the config (a made dataset), one key may stand for two contents: then the
        identities that the records quote differ.
        """
        quoted = [quoted_input(record, label) for record in (a, b)]
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


def _other_platform(a: Body, b: Body) -> Iterator[str]:
    """Another declared platform, or another machine under one name."""
    names = [record["spec"].get("platform") for record in (a, b)]
    if names[0] != names[1]:
        yield f"other platform: {names[0]} against {names[1]}"
        return
    machines = [{fact: (record.get("platform") or {}).get(fact) for fact in IDENTITY} for record in (a, b)]
    # A stage that measures nothing on a machine (recall) holds no facts of one.
    if all("platform" in record for record in (a, b)):
        yield from _other(f"machine behind platform {names[0]}", *machines)


def _other(what: str, a: Body, b: Body) -> Iterator[str]:
    """What differs in content behind the same name."""
    changed = [
        f"{name} {_said(a.get(name))} against {_said(b.get(name))}"
        for name in dict.fromkeys((*a, *b))
        if name != "name" and a.get(name) != b.get(name)
    ]
    if changed:
        yield f"other {what}: {', '.join(changed)}"


def _facts(load: Body) -> dict[str, str]:
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
