"""Gates of a record made again, for `verify`, from what is kept: answers, vectors, truth, other records, and facts.

`measure.judge.gates_again` makes those that times, statuses and defects of samples decide. Those here need more: which
rows were returned, at which distances, what these rows are, the record of the load, or what the server said of itself,
as the record quotes it. Where what is kept says only how bad it was at least, the gate's own words say the rest, as far
as the files allow it. docs/auditing.md lists all gates, and tests/provenance/test_verify_gates.py holds it to that.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as compute
import pyarrow.parquet as parquet

from anncestry import engines
from anncestry.cells import features
from anncestry.cells.indexes import is_lossy
from anncestry.datasets.distance import Bools, Floats, Ids
from anncestry.drive.client import ERROR, OK
from anncestry.engines.base import Engine
from anncestry.errors import DataError
from anncestry.measure import samples
from anncestry.measure.oracle import over_codes
from anncestry.measure.publish import combine
from anncestry.measure.recall import Truth
from anncestry.measure.reference import Reference
from anncestry.measure.requests import distance_errors, nq_of
from anncestry.measure.vectors import Choice, Filtering, Vectors, choose, open_vectors
from anncestry.metrics.recall import ABS_EPS, exact_distances, recall_by_distance
from anncestry.provenance import gates
from anncestry.provenance.gates import Gate

Remade = tuple[str, Any, Any]
"""What to report if they differ, what a record holds, and what is made again."""
Record = Mapping[str, Any]

CHECKED_QUERIES, COMPARED_QUERIES_MIN = 200, 20
"""How many queries `judge` looks at the answers to, and how many it needs for a comparison."""
_KEPT_ERROR = 2.0**-24
"""Reported distances are kept as float32: half a unit in the last place, relative to them."""
_SAID_ERROR = 0.005
"""The same of an error that is said with three digits."""
_RECALL_ERROR, _LEAST_ERROR = 2e-3, 3e-4
"""What a recall that is said may differ by, as its truth was searched for in float32; and the least that is wanted, as
it comes from one with four digits."""
_PART_IDS = 1 << 17
_HELD_MAX = 16

_MEMBERS = "members alive"
_WHEN = ("before the queries", "after the queries")
_CHECKS = (gates.ORACLE, "rows findable", "no cached answers")
_ALWAYS = ("index complete", "settings", "nothing else measured")
OF_LOADS = (*_ALWAYS, *_CHECKS, _MEMBERS, "stopped cleanly")
OF_QUERIES = (*_ALWAYS, *_CHECKS, "load", "artifact digest")
"""Gates that can't be made again, or not always, and that each record of a load, or of queries, has nevertheless."""

_RUN = re.compile(r"(?:^|; )run (\d+): ")
_COUNT = re.compile(r"\d+(?= of \d+ )")
_ERROR_SAID = re.compile(r"(?<=relative error )\S+")
_LOADED_AT = re.compile(r"loaded at ([^,]+),")
_RECALLS = re.compile(r"recall ([\d.]+) over .* the reference index has ([\d.]+), at least ([\d.]+) wanted")


class Data:
    """Vectors of datasets, and what workloads ask of them, opened once for records that follow each other."""

    def __init__(self) -> None:
        self._vectors: dict[str, Vectors] = {}
        self._asked: dict[str, tuple[Choice, Filtering | None]] = {}

    def vectors(self, record: str, key: str) -> Vectors:
        """Those of the record at this path, whose files are known to be what it says."""
        if record not in self._vectors:
            _make_room(self._vectors)
            self._vectors[record] = open_vectors(Path(record), key, verify=False)
        return self._vectors[record]

    def asked(self, record: str, key: str, workload: Record, seed: int) -> tuple[Choice, Filtering | None]:
        """The queries that a workload measures, and what each is filtered by."""
        name = repr((record, *(workload.get(part) for part in ("queries", "warmup", "filter")), seed))
        if name not in self._asked:
            _make_room(self._asked)
            vectors = self.vectors(record, key)
            choice = choose(vectors, workload["queries"], workload["warmup"], seed)
            filtering = Filtering.of(workload.get("filter"), vectors, choice.regions, choice.queries)
            self._asked[name] = choice, filtering
        return self._asked[name]


def _make_room(held: dict[str, Any]) -> None:
    if len(held) >= _HELD_MAX:
        held.pop(next(iter(held)))


class _First:
    """The first good answers of a job to the queries of the lowest rows: those whose distances are checked."""

    def __init__(self, k: int) -> None:
        self.rows, self.ids, self.reported = np.empty(0, np.int64), np.empty((0, k), np.int64), np.empty((0, k))

    def add(self, rows: Ids, ids: Ids, reported: Floats) -> None:
        """Answers (n, k) that came after those before."""
        every = np.concatenate([self.rows, rows])
        first = np.unique(every, return_index=True)[1][:CHECKED_QUERIES]
        self.rows = every[first]
        self.ids = np.concatenate([self.ids, ids])[first]
        self.reported = np.concatenate([self.reported, reported])[first]

    def complete(self) -> tuple[Ids, Ids]:
        """The queries (n,) that were answered with k different rows, and these (n, k)."""
        ids = np.sort(self.ids, axis=1)
        whole = (ids[:, 0] >= 0) & (ids[:, 1:] != ids[:, :-1]).all(axis=1)
        return self.rows[whole], self.ids[whole]


class Answers:
    """What the samples of a run say of its answers: all but requests by vector, of which a request may have several."""

    def __init__(self) -> None:
        self.requests = self.failed = 0
        self.good = self.unknown = self.violating = 0
        self.jobs: dict[int, _First] = {}


@dataclass(frozen=True)
class Kept:
    """What is here of runs of a `workload` beside their record.

    `load` is the spec of their load, `loaded` its record if that is the one they were measured on, `asked` what
    `Data.asked` gives. Of data that are not here, `vectors`, `asked` and `truth` are None.
    """

    workload: Record
    platform: str
    samples: Path
    writes: Path | None
    load: Record
    loaded: Record | None
    vectors: Vectors | None = None
    asked: tuple[Choice, Filtering | None] | None = None
    truth: Truth | None = None
    paired: bool = False

    @cached_property
    def rows_known(self) -> int | None:
        """Rows that were loaded, and those that a stream inserted, as its file names them; None if nobody knows."""
        rows = len(self.vectors.base) if self.vectors is not None else self.loaded["rows"] if self.loaded else None
        others = any(features.is_path(feature.name) and feature.spends_server for feature in self._features)
        if rows is None or others:  # a feature from elsewhere may have inserted some, too
            return None
        if self.writes is None:
            return int(rows)
        writes = parquet.ParquetFile(self.writes).read(columns=["kind", "ids"])
        inserted = compute.list_flatten(writes.filter(compute.equal(writes["kind"], "insert"))["ids"])
        return max(int(rows), (compute.max(inserted).as_py() or 0) + 1)

    @cached_property
    def answers(self) -> dict[int, Answers]:
        """By number of the run."""
        k, nq, probes = self.workload["k"], nq_of(self.workload), "slo" in self.workload
        columns = ["run", "query", "status", "ids", "distances", *(["probe"] if probes else [])]
        columns += samples.BATCH_COLUMNS if nq > 1 else ()
        found: dict[int, Answers] = {}
        file = parquet.ParquetFile(self.samples)
        for batch in file.iter_batches(max(1, _PART_IDS // (k * nq)), columns=columns):
            table = pa.Table.from_batches([batch])
            runs, status = table["run"].to_numpy(), table["status"].to_numpy()
            jobs = table["probe"].to_numpy() if probes else np.zeros(len(table), np.uint8)
            of_request, query, ids = samples.answers_of(table, k, nq)
            reported, good = self._reported(table, ids), status[of_request] == OK
            unknown, violating = good & self._unknown(ids), good & self._violating(query, ids)
            for run in np.unique(runs).tolist():
                of, mine = found.setdefault(run, Answers()), runs == run
                of.requests += int(mine.sum())
                of.failed += int((mine & (status == ERROR)).sum())
                by_vector = mine[of_request]
                of.good += int((by_vector & good).sum())
                of.unknown += int((by_vector & unknown).sum())
                of.violating += int((by_vector & violating).sum())
                for job in np.unique(jobs[mine]).tolist():
                    chosen = good & (mine & (jobs == job))[of_request]
                    of.jobs.setdefault(job, _First(k)).add(query[chosen], ids[chosen], reported[chosen])
        return found

    def _reported(self, table: pa.Table, ids: Ids) -> Floats:
        """The reported distances of the ids (v, k), infinite where there is none."""
        lengths = [compute.list_value_length(table[name]) for name in ("ids", "distances")]
        held = ids != -1
        if not lengths[0].equals(lengths[1]) or int(held.sum()) != compute.sum(lengths[0]).as_py():
            raise DataError(f"{self.samples}: does not hold one distance for each id")
        reported = np.full(ids.shape, np.inf)
        reported[held] = compute.list_flatten(table["distances"]).to_numpy()
        return reported

    def _unknown(self, ids: Ids) -> Bools:
        """(v,) which of the answers hold an id that no row has."""
        rows = int(np.iinfo(np.int64).max) if self.rows_known is None else self.rows_known
        known: Bools = (ids >= -1) & (ids < rows)
        return np.asarray(~known.all(axis=1))

    def _violating(self, query: Ids, ids: Ids) -> Bools:
        """(v,) which of the answers hold a row that the filter excludes."""
        choice, filtering = self.asked or (None, None)
        if choice is None or filtering is None:
            return np.zeros(len(query), bool)
        return filtering.violating(np.searchsorted(choice.measured, query), ids)

    @cached_property
    def _engine(self) -> Engine:
        return engines.get(self.load["system"]["engine"])

    @cached_property
    def _features(self) -> list[features.Feature]:
        return features.of(self.workload)

    # Of each run

    def gates_of(self, told: Sequence[Record], stored: Sequence[Record], first: int = 0) -> list[dict[str, Any]]:
        """Gates of runs together, of which records have `told` and the gates `stored`; `first` is the first's number.

        Those that answers, vectors, truth and the load's record decide, some of them with the words of `stored`.
        """
        by_name = {gate["gate"]: gate for gate in stored}  # the last one: others of its name are of the server
        holds = {name for name, gate in by_name.items() if gate["ok"]}
        each = []
        for number, of_run in enumerate(told):
            said = {name: words(gate, len(told)).get(number) for name, gate in by_name.items()}
            run = self.answers.get(first + number, Answers())
            found = [*self._of_answers(run, said), *self._of_data(run, of_run, said, holds)]
            each.append([asdict(gate) for gate in [*found, *self._of_records(of_run, said, holds)]])
        return combine(each)

    def _of_answers(self, run: Answers, said: Said) -> Iterator[Gate]:
        """Of the requests that failed, only words say which were answered outside the protocol; and of the answers,
        which held more than k rows, as only k are kept."""
        yield gates.decodable(min(_count(said, "decodable"), run.failed), run.requests)
        if self.rows_known is not None:
            wrong = min(max(run.unknown, _count(said, "known rows")), run.good)
            yield gates.possible(wrong, run.good, self.workload["k"])

    def _of_data(self, run: Answers, told: Record, said: Said, holds: set[str]) -> Iterator[Gate]:
        if self.vectors is None or self.asked is None:
            return
        choice, filtering = self.asked
        yield self._distances(self.vectors, run, said.get("distances") or "")
        if filtering is not None:
            yield gates.filtered(run.violating, run.good, told["selectivity"])
            if _holds("filter selectivity", said, holds):  # else what the server counted is not to be known
                passing = zip(filtering.asked.distinct, filtering.matching.tolist(), strict=True)
                yield filtering.gate({repr(filter): count for filter, count in passing})
        elif self._has_reference(self.vectors) and (stated := said.get("reference recall", "")) is not None:
            yield from self._reference(self.vectors, choice, run, told["ef_search"], stated)

    def _distances(self, vectors: Vectors, run: Answers, said: str) -> Gate:
        """Up to what distances lost when they were kept: within that, the error is the one that is `said`."""
        found, lost = [np.empty(0)], 0.0
        for first in run.jobs.values():
            exact = exact_distances(vectors.base, np.asarray(vectors.queries[first.rows]), first.ids, vectors.metric)
            known = np.isfinite(exact)
            exact, reported, of_scores = exact[known], first.reported[known], self._engine.float32_scores
            found.append(distance_errors(reported, exact, vectors.metric, of_scores))
            moved = exact + np.where(np.isfinite(reported), np.abs(reported) * _KEPT_ERROR, 0.0)
            lost = max(lost, float(distance_errors(moved, exact, vectors.metric, of_scores).max(initial=0.0)))
        errors, index = np.concatenate(found), self.load["index"]
        lossy, nearest = is_lossy(index), over_codes(self._engine, index)

        def gate(error: float) -> Gate:
            return gates.estimates(error, len(errors), nearest) if lossy else gates.distances(error, len(errors))

        error = (float(np.median(errors)) if len(errors) else 0.0) if lossy else float(errors.max(initial=0.0))
        stated = _ERROR_SAID.search(said)
        before = float(stated[0]) if stated else error
        close = before == error or abs(before - error) <= lost + _SAID_ERROR * before
        return replace(gate(error), detail=gate(before if close else error).detail)

    def _has_reference(self, vectors: Vectors) -> bool:
        """Whether complete answers were held against those of a reference index, and their truth is here."""
        if self.truth is None or self.paired or any(feature.spends_server for feature in self._features):
            return False
        shards = self.load["topology"]["shards"]
        return Reference.of(vectors, self.load["index"], shards, self._engine) is not None

    def _reference(self, vectors: Vectors, choice: Choice, run: Answers, ef_search: int, said: str) -> Iterator[Gate]:
        """The system's recall is that of its answers; what the reference found, which no file has, is what is said."""
        assert self.truth is not None
        k = self.workload["k"]
        rows, ids = (run.jobs[max(run.jobs)] if run.jobs else _First(k)).complete()
        asked, ours, _ = np.intersect1d(rows, choice.measured[:CHECKED_QUERIES], return_indices=True)
        if len(asked) < COMPARED_QUERIES_MIN:
            return
        far = exact_distances(vectors.base, np.asarray(vectors.queries[asked]), ids[ours], vectors.metric)
        near = self.truth.of(asked)[1][:, :k]
        found = float(recall_by_distance(ids[ours], far, near, k, abs_eps=ABS_EPS[vectors.metric]).mean())
        stated = _RECALLS.match(said)
        before, theirs, least = map(float, stated.groups()) if stated else (found, 1.0, 0.0)
        if abs(before - found) > _RECALL_ERROR:
            before = found
        again = gates.reference_recall(before, theirs, len(asked), ef_search)
        wanted = _RECALLS.match(again.detail)
        if wanted is not None and abs(float(wanted[3]) - least) <= _LEAST_ERROR:
            again = Gate(again.gate, before >= least, again.detail.replace(f"least {wanted[3]}", f"least {least:.4f}"))
        yield again

    def _of_records(self, told: Record, said: Said, holds: set[str]) -> Iterator[Gate]:
        """What the record of the load decides; and what can be said only one way where it holds."""
        yield gates.on_platform(self.platform)
        if _holds("warm-up", said, holds):
            yield gates.primed(0)
        stated, loaded, digest = _LOADED_AT.search(said.get("load") or ""), self.loaded, told["artifact"]["digest"]
        if loaded is not None and (stated is None or stated[1] == loaded["created"]):
            yield gates.loaded(loaded["valid"], loaded["created"])
            yield gates.artifact(loaded["artifact"]["digest"], digest)
            yield from [gates.nothing_lost(loaded["kill"])] if "kill" in loaded else []
        elif stated is not None:  # the index was loaded again since, or before
            yield gates.loaded("load" in holds, stated[1])
            yield from [gates.artifact(digest, digest)] if _holds("artifact digest", said, holds) else []

    # All runs together

    def of_query(self, measured: Record) -> Iterator[Remade]:
        """What is made again of the record of a query."""
        stored, told = measured["gates"], [{**measured, **of_run} for of_run in measured["rounds"]]
        for gate in self.gates_of(told, stored):
            yield beside(stored, gate)
        newest = max(range(len(told)), key=lambda number: str(told[number]["created"]))  # whose server the record has
        yield from self._of_server(stored, measured, told[newest]["start_s"], newest, len(told))
        yield from self._of_filter(measured)

    def of_side(self, told: Record, number: int) -> Iterator[Remade]:
        """The same of one side of a pair, on one pair of servers."""
        for gate in self.gates_of([told], told["gates"], number):
            yield beside(told["gates"], gate)
        yield from self._of_server(told["gates"], told, told["server"]["start_s"], 0, 1)
        yield from self._of_filter(told)

    def _of_server(
        self, stored: Sequence[Record], record: Record, starts: Sequence[float], run: int, runs: int
    ) -> Iterator[Remade]:
        yield from _missing(stored, OF_QUERIES)
        yield from _agree(stored, _probed(record), run, runs)
        if self.loaded is None:
            return
        server, rows, here = record["server"], self.loaded["rows"], {gate["gate"] for gate in stored}
        if len(starts) > 1 or _MEMBERS not in here:  # they are of another server, or nobody looked after this one
            server = {**server, "members": {}}
        said = of_server(self.load, server, rows, *_WHEN)
        yield from _agree(stored, [*said, *_copies(self.load, server, rows)], run, runs)
        right = {gates.row_count(rows, rows, when).detail for when in _WHEN}
        for gate in stored:
            if gate["gate"] == gates.ROW_COUNT and gate["ok"]:  # of other runs and afterwards, only words are kept
                wrong = set(words(gate, runs).values()) - right
                yield f"its gate `{gates.ROW_COUNT}` holds, but says: {'; '.join(wrong)}", wrong, set()

    def _of_filter(self, record: Record) -> Iterator[Remade]:
        """The share of rows that pass the filter."""
        choice, filtering = self.asked or (None, None)
        if choice is not None and filtering is not None:
            every = np.arange(len(choice.measured))
            for name, again in (("selectivity", filtering.share(every)), ("filters", filtering.facts(every))):
                yield f"its {name} is {record.get(name)}, but its dataset gives {again}", record.get(name), again


def of_load(record: Record, older: Record | None) -> Iterator[Remade]:
    """What is made again of the record of a load; `older` is that of the load whose data an upgrade opened."""
    spec, server, rows, stored = record["spec"], record["server"], record["rows"], record["gates"]
    said = {gate["gate"]: gate["detail"] for gate in stored}
    holds = {gate["gate"] for gate in stored if gate["ok"]}
    upgrade, kill = "upgrade_of" in spec, "kill" in record
    when = "after the upgrade" if upgrade else "after the load"
    found = [gate for gate in of_server(spec, server, rows, when, when) if not (kill and gate.gate == gates.ROW_COUNT)]
    found += [gates.on_platform(spec["platform"]), *_probed(record)]
    if _holds("stopped cleanly", said, holds):
        found.append(gates.stopped(True, server["stop_signal"], server["stop_s"], 0))
    if not upgrade and _holds("inserts", said, holds):
        found.append(gates.inserts(rows, rows, 0, rows, None))
    if older is not None and str(older["created"]) in str(said.get("older load", older["created"])):
        found.append(gates.older_load(older["valid"], older["spec"]["system"]["name"], older["created"]))
    yield from _agree(stored, found, 0, 1)
    yield from _missing(stored, [name for name in OF_LOADS if not (kill and name in _CHECKS)])


def of_server(load: Record, server: Record, rows: int, when: str, after: str) -> Iterator[Gate]:
    """What the server of a `load` of so many rows said of itself, as a record has it, judged again."""
    holders = Counter(placed["node"] for placed in server.get("placement", ()))
    yield gates.row_count(server["rows"], rows, when)
    yield gates.topology(load["topology"], server["nodes"], server["shards"], server["replicas"], holders)
    yield gates.version(load["system"]["version"], server["version"])
    if members := server.get("members"):
        yield gates.members(members, None, after)
        limits = gates.limits(members)
        yield from [] if limits is None else [limits]


def _copies(load: Record, server: Record, rows: int) -> Iterator[Gate]:
    counts = [placed["rows"] for placed in server.get("placement", ()) if placed["rows"] is not None]
    if counts:
        yield gates.copies(sum(counts), rows, load["topology"]["replicas"])


def _probed(record: Record) -> Iterator[Gate]:
    return map(gates.storage_probe, record.get("storage_path", {}).get("limits", {}).get("probe", ()))


# What a record says

Said = Mapping[str, str | None]
"""What the gates of a record say of a run, by name: None of a gate that failed in other runs, and so does not tell."""


def words(gate: Record, runs: int) -> dict[int, str]:
    """What a gate of so many runs together (`publish.combine`) says of each that it names; of all if it names none."""
    detail = str(gate["detail"])
    before, *parts = _RUN.split(detail)
    if before or not parts:
        return dict.fromkeys(range(runs), detail)
    return {int(number) - 1: said for number, said in zip(parts[::2], parts[1::2], strict=True)}


def beside(stored: Sequence[Record], again: Record) -> Remade:
    """A gate that was made again from files beside the stored one of its name, the last if there are several."""
    known = next((gate for gate in reversed(stored) if gate["gate"] == again["gate"]), None)
    return _differs(known, again, "its samples give"), known, again


def _agree(stored: Sequence[Record], remade: Iterable[Gate], run: int, runs: int) -> Iterator[Remade]:
    """Gates of one run, made again from what a record quotes of its server: each is stored, or a worse one is.

    Worse may be what other runs or servers said; and of members, what the system itself said of them.
    """
    for gate in remade:
        same = [each for each in stored if each["gate"] == gate.gate]
        said = [(words(each, runs).get(run), each["ok"]) for each in same]
        worse = gate.ok and any(not ok and text != gate.detail for text, ok in said)
        differs = _differs(same[-1] if same else None, asdict(gate), "what it quotes gives")
        yield differs, True, worse or (gate.detail, gate.ok) in said


def _differs(known: Record | None, again: Record, given: str) -> str:
    said = "missing" if known is None else known["detail"]
    verdict = "" if known is None or known["ok"] == again["ok"] else f", which {'holds' if again['ok'] else 'fails'}"
    return f"its gate `{again['gate']}` is: {said}; but {given}: {again['detail']}{verdict}"


def _missing(stored: Sequence[Record], names: Iterable[str]) -> Iterator[Remade]:
    here = {gate["gate"] for gate in stored}
    for name in names:
        yield f"its gate `{name}` is missing, which every record of this stage has", True, name in here


def _holds(name: str, said: Said, holds: set[str]) -> bool:
    """Whether a record says that a gate holds, or, of one that it must have, nothing."""
    return name in holds or name not in said


def _count(said: Said, name: str) -> int:
    stated = _COUNT.match(said.get(name) or "")
    return int(stated[0]) if stated else 0
