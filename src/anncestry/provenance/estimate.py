"""How long jobs will take, going by what earlier ones took: an estimate that says what it is based on.

A load goes by its own earlier record (of any key), else by the most similar one of the same engine; a session by the
latency, the duration and the server's start of its cells. Other jobs go by what Snakemake noted of earlier ones here.
From one dataset to another the work of a load grows with rows × dim at most, that of a search with dim (a graph visits
about log(rows) vectors), and a part of both not at all: the estimate is the geometric mean between not scaled and
scaled, and its range holds both.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from typing import Any, cast

from anncestry.cells.features import at
from anncestry.cells.matrix import Cell, Matrix
from anncestry.cells.plan import Job
from anncestry.cells.stage import stage_at
from anncestry.provenance.damage import marked
from anncestry.provenance.explain import RULES, Earlier, names_of

NOTHING = "no earlier record to go by"

_DEFAULT_S = {
    "artifact": 60.0,
    "download": 60.0,
    "normalize": 10.0,
    "truth_part": 60.0,
    "truth": 20.0,
    "load": 60.0,
    "record": 2.0,
    "query": 2.0,
    "pair": 5.0,
    "recall": 3.0,
    "table": 5.0,
    "report": 10.0,
}
_ARTIFACT_S = {"none": 1.0, "go-module": 300.0}
_SERVER_UP_S = 10.0
_RUN_OVERHEAD_S = 1.0
_QUERY_MS = 5.0
_PROBES = 8
"""About what a search for a rate takes: some to have one that passes and one that fails, some to halve between them."""

_SPREAD = {"same": (0.7, 1.5), "similar": (0.5, 2.0), "median": (0.5, 2.0), "default": (0.2, 5.0)}
"""Low and high end of a range, as factors of the estimate: conventions, not statistics (most cells ran once)."""

_READ_MAX = 20
_NOTED_MAX = 50


@dataclass(frozen=True)
class Guess:
    """Seconds that a job, or a part of it, will take, from `low_s` to `high_s`, and what says so."""

    seconds: float
    low_s: float
    high_s: float
    basis: str

    @classmethod
    def of(cls, seconds: float, spread: str, basis: str) -> Guess:
        low, high = _SPREAD[spread]
        return cls(seconds, low * seconds, high * seconds, basis)

    @classmethod
    def blind(cls, seconds: float, each: str = "") -> Guess:
        """A default, which goes by no record: of a job, or as `each` says."""
        return cls.of(seconds, "default", f"{NOTHING}: {each or f'{_time(seconds)} each'}")

    @classmethod
    def between(cls, seconds: float, factor: float, basis: str) -> Guess:
        """A guess between `seconds` and `factor` times that, and a similar job's spread on both sides."""
        low, high = _SPREAD["similar"]
        smaller, larger = sorted((seconds, factor * seconds))
        return cls(math.sqrt(smaller * larger), low * smaller, high * larger, basis)

    def plus(self, seconds: float) -> Guess:
        return Guess(self.seconds + seconds, self.low_s + seconds, self.high_s + seconds, self.basis)


@dataclass(frozen=True)
class Estimate:
    """Of all jobs of a rule, or of all rules: seconds one after another, and how many jobs go by what."""

    rule: str
    jobs: int
    seconds: float
    low_s: float
    high_s: float
    bases: Mapping[str, int]


def estimate(matrix: Matrix, running: Sequence[Job], earlier: Earlier) -> list[Estimate]:
    """Seconds of the jobs by rule, in the order of the rules."""
    guesser = _Guesser(matrix, earlier)
    by_rule: dict[str, list[Guess]] = {}
    for job in running:
        by_rule.setdefault(job.rule, []).append(guesser.of(job))
    return [
        Estimate(rule, len(guesses), *_totals(guesses), Counter(guess.basis for guess in guesses))
        for rule in RULES
        if (guesses := by_rule.get(rule))
    ]


def _totals(parts: Sequence[Guess | Estimate]) -> tuple[float, float, float]:
    """Sums of the seconds and of both ends of their ranges."""
    return sum(part.seconds for part in parts), sum(part.low_s for part in parts), sum(part.high_s for part in parts)


_AXES = ("dataset", "system", "topology", "workload")
_MASKS = [(dataset, system, topology, work) for dataset, work, topology, system in product((True, False), repeat=4)]
"""Which of the axes are the same, the most similar first."""
_Masked = tuple[str | None, ...]


def _masked(engine: str | None, names: Sequence[str], kept: tuple[bool, ...]) -> _Masked:
    """What cells have in common that are the same in the kept axes; their engine they always have."""
    return engine, *(name if keep else None for name, keep in zip(names, kept, strict=False))


@dataclass(frozen=True)
class _Near:
    """The nearest earlier record of a cell's stage: how near it is, and how much more work the cell is."""

    body: Mapping[str, Any]
    spread: str
    basis: str
    rows: float = 1.0
    dim: float = 1.0

    @property
    def scaled(self) -> bool:
        """Whether it is of a dataset of another size."""
        return self.rows * self.dim != 1.0


class _Guesser:
    def __init__(self, matrix: Matrix, earlier: Earlier) -> None:
        self._matrix, self._earlier = matrix, earlier
        self._near = cache(self._nearest)
        self._overheads: dict[str, tuple[float, float]] = {}

    def of(self, job: Job) -> Guess:
        if job.rule == "load":
            return self._load(cast(Cell, job.cells[0]))
        if job.rule == "session":
            return self._session(cast(tuple[Cell, ...], job.cells))
        if job.rule == "duet":
            return self._duet(len(job.cells))
        if job.rule == "rounds":
            most_s = 60 * self._matrix.config.rounds.minutes
            return Guess(most_s / 2, 0.0, most_s, "as many as cells need, within the time of the config")
        if noted := self._noted.get(job.rule):
            return Guess.of(statistics.median(noted), "median", f"median of {_many(len(noted), 'earlier job')} here")
        default_s = _DEFAULT_S[job.rule]
        if job.rule == "artifact":
            default_s = _ARTIFACT_S.get(self._matrix.spec(job.key, "artifact")["artifact"]["kind"], default_s)
        return Guess.blind(default_s)

    def _load(self, cell: Cell) -> Guess:
        near = self._near("load", cell)
        if near is None:
            return Guess.blind(_DEFAULT_S["load"])
        times = (_float(near.body, "times", name) for name in ("load_s", "upgrade_s"))
        load_s = next((seconds for seconds in times if seconds), _DEFAULT_S["load"])
        start_s, stop_s, up_s = (_float(near.body, "server", name) for name in ("start_s", "stop_s", "up_s"))
        around_s = (start_s or 0.0) + (stop_s or 0.0) if up_s is None else max(0.0, up_s - load_s)
        if near.scaled:
            return Guess.between(load_s, near.rows * near.dim, f"{near.basis}, scaled by rows × dim").plus(around_s)
        return Guess.of(load_s, near.spread, near.basis).plus(around_s)

    def _session(self, cells: Sequence[Cell]) -> Guess:
        """One server; one run of every cell, and what comes with each run."""
        up_s, run_s, server = self._overhead(cells[0])
        parts = [self._cell(cell) for cell in cells]
        bases = [basis for basis, _ in Counter(part.basis for part in parts).most_common()]
        if not any(basis.startswith(server) for basis in bases):
            bases.append(server)
        whole = "; ".join([*bases[:2], "…"] if len(bases) > 2 else bases)
        cells_s, low_s, high_s = _totals(parts)
        return Guess(cells_s, low_s, high_s, whole).plus(up_s + len(cells) * run_s)

    def _duet(self, workloads: int) -> Guess:
        """A fresh pair of servers: each comes up and is looked at, then each workload has its slices."""
        duet = self._matrix.config.duet
        seconds = 2 * _SERVER_UP_S + workloads * (8 * duet.blocks * duet.slice_s + _RUN_OVERHEAD_S)
        return Guess.of(seconds, "similar", "the configured slices")

    def _cell(self, cell: Cell) -> Guess:
        """A run of one cell: by time as long as asked, by count as long as its queries took."""
        work = self._workload(cell)
        duration_s = work.get("duration_s")
        if duration_s is not None and "slo" in work:
            most = 1 + work["slo"]["max_probes"]
            return Guess(_PROBES * duration_s, 2 * duration_s, most * duration_s, "the duration of each probe")
        if duration_s is not None:
            return Guess.of(duration_s, "same", "the configured duration")
        sent = math.ceil(work["queries"] / work.get("nq", 1) / work["clients"])
        near = self._near("query", cell)
        mean_ms = None if near is None else _float(near.body, "summary", "mean_ms", "value")
        if near is None or mean_ms is None:
            return Guess.blind(sent * _QUERY_MS / 1e3, f"{_QUERY_MS:g} ms a query")
        seconds = sent * mean_ms / 1e3
        if near.scaled:
            return Guess.between(seconds, near.dim, f"{near.basis}, scaled by dim")
        return Guess.of(seconds, near.spread, near.basis)

    def _overhead(self, cell: Cell) -> tuple[float, float, str]:
        """Seconds that a session's server takes to come up, seconds around each run, and what says so.

        What is around a run (driver processes, warm-up, checks) is what remains of the time a server was up.
        """
        near = self._near("query", cell)
        if near is None:
            return _SERVER_UP_S, _RUN_OVERHEAD_S, f"{NOTHING}: {_time(_SERVER_UP_S)} for a server"
        rounds = near.body.get("rounds", [])
        up_s = statistics.fmean(map(_coming_up_s, rounds)) if rounds else 0.0
        key = str(near.body.get("key"))
        if key not in self._overheads:
            self._overheads[key] = (up_s or _SERVER_UP_S, self._around_run(near.body))
        return (*self._overheads[key], near.basis)

    def _around_run(self, body: Mapping[str, Any]) -> float:
        """Seconds around a run: what its session's server was up beyond coming up and measuring, shared by its runs."""
        around: list[float] = []
        for number, own in enumerate(body.get("rounds", [])):
            whole_s, session = _float(own, "up_s"), own.get("session", {})
            same = (other for other in self._beside(body) if _session_of(other, number) == session.get("key"))
            windows = (window for other in same for window in other.get("windows_s", [])[number : number + 1])
            lengths = [end_s - start_s for start_s, end_s in windows]
            if whole_s is not None and lengths and len(lengths) == session.get("cells"):
                around.append(max(0.0, whole_s - _coming_up_s(own) - sum(lengths)) / len(lengths))
        return statistics.fmean(around) if around else _RUN_OVERHEAD_S

    def _beside(self, body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """All query records of the dataset, system and topology of one."""
        spec = body["spec"]
        prefix = "/".join(spec[axis]["name"] for axis in _AXES[:3]) + "/"
        for key, path in self._earlier.paths["query"].items():
            if names_of(path).startswith(prefix) and (other := self._earlier.record("query", key)) is not None:
                yield other

    def _workload(self, cell: Cell) -> Mapping[str, Any]:
        return self._matrix.spec(cell.query, "query")["workload"]  # type: ignore[no-any-return]

    # The nearest record

    def _nearest(self, stage: str, cell: Cell) -> _Near | None:
        """The most similar record of the same engine: dataset before workload before topology before system.

        Of several, one that was loaded if this one is, and upgraded in place if this one is; then the one of the
        workload that is most like the asked one, then the newest.
        """
        names = [str(getattr(cell, axis)) for axis in _AXES[: 3 if stage == "load" else 4]]
        workload = self._workload(cell) if stage == "query" else {}

        def likeness(body: Mapping[str, Any]) -> tuple[bool, int, str]:
            other = body["spec"].get("workload", {})
            alike = stage == "query" or ("upgrade_of" in body["spec"]) == (cell.older is not None)
            return alike, sum(other.get(part) == value for part, value in workload.items()), str(body.get("created"))

        for kept in _MASKS:
            keys = self._similar[stage].get(_masked(self._engines.get(cell.system), names, kept), ())[:_READ_MAX]
            if usable := [body for key in keys if (body := self._earlier.record(stage, key)) is not None]:
                return self._describe(max(usable, key=likeness), names)
        return None

    def _describe(self, body: Mapping[str, Any], names: Sequence[str]) -> _Near:
        spec = body["spec"]
        others = [spec[axis]["name"] for axis, name in zip(_AXES, names, strict=False) if spec[axis]["name"] != name]
        if not others:
            return _Near(body, "same", "its earlier record")
        basis = f"the record of {', '.join(others)}"
        was, now = self._sizes.get(spec["dataset"]["name"]), self._sizes.get(names[0])
        if spec["dataset"]["name"] == names[0] or was is None or now is None:
            return _Near(body, "similar", basis)
        return _Near(body, "similar", basis, rows=now[0] / was[0], dim=now[1] / was[1])

    @cached_property
    def _similar(self) -> dict[str, dict[_Masked, list[str]]]:
        """Stage → what records have in common with a cell → their keys."""
        keys: dict[str, dict[_Masked, list[str]]] = {"load": {}, "query": {}}
        for stage, by_mask in keys.items():
            for key, path in self._earlier.paths[stage].items():
                names = names_of(path).split("/")
                for kept in _MASKS:
                    by_mask.setdefault(_masked(self._engines.get(names[1]), names, kept), []).append(key)
        return keys

    @cached_property
    def _loads(self) -> list[Mapping[str, Any]]:
        """A spec for each dataset × system that was loaded: engines and sizes of what is no longer in the config."""
        keys = {tuple(names_of(path).split("/")[:2]): key for key, path in self._earlier.paths["load"].items()}
        return [spec for key in keys.values() if (spec := self._earlier.spec("load", key)) is not None]

    @cached_property
    def _engines(self) -> dict[str, str]:
        loaded = {spec["system"]["name"]: str(spec["system"]["engine"]) for spec in self._loads}
        return loaded | {name: system.engine for name, system in self._matrix.config.systems.items()}

    @cached_property
    def _sizes(self) -> dict[str, tuple[int, int]]:
        described = [*self._loads, *(spec for spec in self._matrix.specs.values() if spec["stage"] == "load")]
        return {spec["dataset"]["name"]: (spec["dataset"]["rows"], spec["dataset"]["dim"]) for spec in described}

    # What Snakemake noted

    @cached_property
    def _noted(self) -> dict[str, list[float]]:
        """Seconds of earlier jobs by rule, from Snakemake's notes on their outputs, at most `_NOTED_MAX` of each."""
        seconds: dict[str, list[float]] = {}
        folder = Path(".snakemake/metadata")
        for path in folder.rglob("*"):
            output = marked(path.relative_to(folder))
            stage = stage_at(output)
            rule = stage.name if stage is not None and stage.match(output) else None
            if rule is None or len(seconds.get(rule, ())) >= _NOTED_MAX:
                continue
            try:
                note = json.loads(path.read_text())
                seconds.setdefault(rule, []).append(max(0.0, note["endtime"] - note["starttime"]))
            except (OSError, ValueError, KeyError, TypeError):
                continue  # a note in another form than this one, of another version of Snakemake
        return seconds


def _float(body: Any, *steps: str) -> float | None:
    value = at(body, steps)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _coming_up_s(round_: Mapping[str, Any]) -> float:
    """Seconds that the server of a run took until it was searchable."""
    return sum(
        float(seconds)
        for name in ("start_s", "open_s")
        if isinstance(round_.get(name), list)
        for seconds in round_[name]
    )


def _session_of(body: Mapping[str, Any], number: int) -> str | None:
    """Key of the session that measured a run."""
    rounds = body.get("rounds", [])
    return rounds[number].get("session", {}).get("key") if number < len(rounds) else None


# For people


def _many(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _time(seconds: float) -> str:
    """Seconds with about two digits, in the unit that people would use."""
    for unit_s, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 1.5 * unit_s:
            number = seconds / unit_s
            return f"{number:.0f} {unit}" if number >= 9.5 else f"{number:.1f} {unit}".replace(".0 ", " ")
    return f"{seconds:.0f} s" if seconds >= 9.5 else f"{seconds:.1g} s"


def headline(estimates: Sequence[Estimate]) -> str:
    """How many jobs, and how long they take one after another."""
    total = sum(each.jobs for each in estimates)
    seconds, low_s, high_s = _totals(estimates)
    sentence = (
        f"{_many(total, 'job')} would run: about {_time(seconds)} one after another ({_time(low_s)} to {_time(high_s)})"
    )
    blind = sum(count for each in estimates for basis, count in each.bases.items() if NOTHING in basis)
    return sentence + (f"; {blind} of them with {NOTHING}" if blind else "")


def lines(estimates: Sequence[Estimate]) -> list[str]:
    """A table of the rules, for people."""
    shown = [f"{'rule':<10}{'jobs':>6}  {'about':>8}  going by"]
    for each in estimates:
        bases = sorted(each.bases.items(), key=lambda item: -item[1])
        first = "; ".join(basis if len(bases) == 1 else f"{count}: {basis}" for basis, count in bases[:3])
        more = f"; {sum(count for _, count in bases[3:])}: others" if len(bases) > 3 else ""
        shown.append(f"{each.rule:<10}{each.jobs:>6}  {_time(each.seconds):>8}  {first}{more}")
    return shown
