"""Equal recall: the smallest search effort that reaches a target recall, found on queries that are not reported.

Tuned on the queries that it reports, a system looks better than it is: the effort fits those queries. So the workload's
held-out queries, neither measured nor warm-up, are asked at one effort after the other, and their exact neighbours are
computed on the spot. An effort is enough if the lower end of the one-sided 95 % interval of the mean recall reaches the
target: that is the margin, and with more held-out queries it is smaller. What is reported is the recall of the measured
queries at the effort found.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anncestry import redact
from anncestry.cells.expand import SURE_Z, shown_at_least
from anncestry.datasets.distance import Floats
from anncestry.datasets.truth import Problem
from anncestry.errors import DataError
from anncestry.measure.oracle import Oracle
from anncestry.measure.requests import asked_of, encode
from anncestry.measure.vectors import Filtering, columns_of, held_out
from anncestry.metrics import recall
from anncestry.provenance import records
from anncestry.provenance.gates import Gate

EF_MAX = 4096
"""Efforts beyond are not tried: by then a graph search visits a good part of most bases."""
_RESOLUTION = 16  # the effort found is within 1/16 of the smallest that is enough


@dataclass(frozen=True)
class Tried:
    """An effort, the mean recall by distance of the held-out queries at it, and the lower end of its interval."""

    ef_search: int
    recall: float
    low: float


@dataclass(frozen=True)
class Tuned:
    """The effort to measure at, whether it reaches the target, and everything that was tried, by effort."""

    ef_search: int
    target_recall: float
    reached: bool
    queries: int
    curve: tuple[Tried, ...]

    def facts(self) -> dict[str, Any]:
        return {**asdict(self), "curve": [asdict(tried) for tried in self.curve]}

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Tuned:
        """The one whose `facts` these are."""
        return cls(**{**facts, "curve": tuple(Tried(**tried) for tried in facts["curve"])})

    def gate(self) -> Gate:
        """A target that can't be reached says what the best was."""
        at = next(tried for tried in self.curve if tried.ef_search == self.ef_search)
        said = f"recall {at.recall:.4f} (at least {at.low:.4f}) at ef {at.ef_search} on {self.queries} held-out queries"
        if at.low >= self.target_recall:
            return Gate("recall target", True, f"{said}, target {self.target_recall}")
        return Gate("recall target", False, f"target {self.target_recall} not reached, the best was {said}")


def surely(recalls: Floats) -> float:
    """The recall of all queries that the `recalls` (n,) of some show: the lower end of their mean's one-sided 95 %
    interval. Where all agree, they say nothing of those that don't, and their number does."""
    if len(recalls) < 2:
        return 0.0
    error = float(recalls.std(ddof=1)) / math.sqrt(len(recalls))
    low = float(recalls.mean()) - SURE_Z * error
    return low if error else min(low, shown_at_least(len(recalls)))


def search(ask: Callable[[int], Tried], target: float, lowest: int, highest: int = EF_MAX) -> tuple[int, bool]:
    """The smallest effort from `lowest` on whose recall is surely `target`, by doubling and then halving the gap.

    Returns the effort with the best recall, and False, if none up to `highest` is enough.
    """
    known: dict[int, Tried] = {}

    def enough(ef_search: int) -> bool:
        if ef_search not in known:
            known[ef_search] = ask(ef_search)
        return known[ef_search].low >= target

    below, at = 0, lowest
    while not enough(at):
        if at >= highest:
            return min(known, key=lambda ef: (-known[ef].recall, ef)), False
        below, at = at, min(2 * at, highest)
    while below and at - below > max(1, below // _RESOLUTION):
        middle = (below + at) // 2
        below, at = (below, middle) if enough(middle) else (middle, at)
    return at, True


class HeldOut:
    """The held-out queries of a workload, with their exact neighbours, to ask the server of `oracle` at efforts.

    `base` is the file of the loaded vectors. No effort is asked twice: workloads with the same `question`, which differ
    in clients or in their target, share what was asked.
    """

    def __init__(self, oracle: Oracle, base: Path, work: Mapping[str, Any], seed: int) -> None:
        self._oracle, self._name, self._k = oracle, work["name"], work["k"]
        vectors = oracle.vectors
        chosen = held_out(vectors, work["queries"], work["warmup"], work["tuning_queries"], seed)
        self._queries = np.asarray(vectors.queries[chosen])
        regions = np.asarray(vectors.query_region)[chosen]
        self._filters = Filtering.of(work.get("filter"), vectors, regions, chosen)
        self._asked = asked_of(self._filters, len(chosen))
        rows = len(vectors.base)
        what = self._queries, self._asked, columns_of(vectors)
        problem = Problem({"base": base}, vectors.metric, min(self._k, rows), rows, *what, payload=vectors.payload)
        self._truth, _ = problem.solve(range(rows), "truth of held-out queries")
        self._tried: dict[int, Tried] = {}

    @staticmethod
    def question(work: Mapping[str, Any], seed: int) -> str:
        """Names what is asked for a workload: the same queries, as many neighbours, under the same filter."""
        asked = (work["k"], work["queries"], work["warmup"], work["tuning_queries"], work.get("filter"), seed)
        return repr(asked)

    def __len__(self) -> int:
        return len(self._queries)

    def at(self, ef_search: int) -> Tried:
        """Their recall at an effort; leaves the server at it if it is a new one."""
        if ef_search not in self._tried:
            self._tried[ef_search] = tried = self._ask(ef_search)
            print(f"tune {self._name}: recall {tried.recall:.4f} at ef {ef_search}", file=sys.stderr, flush=True)
        return self._tried[ef_search]

    def _ask(self, ef_search: int) -> Tried:
        oracle, vectors, queries = self._oracle, self._oracle.vectors, self._queries
        oracle.engine.apply(oracle.server, ef_search)
        requests = encode(oracle.engine, oracle.server, queries, self._k, ef_search, self._asked)
        answers = oracle.send(requests, self._k)
        far = recall.exact_distances(vectors.base, queries, answers.ids, vectors.metric)
        if self._filters is not None:
            far = np.where(self._filters.passing(np.arange(len(queries)), answers.ids), far, np.inf)
        true, depth = self._truth.distances, min(self._k, len(vectors.base))
        scores = recall.recall_by_distance(answers.ids, far, true, depth, abs_eps=recall.ABS_EPS[vectors.metric])
        scores = scores[~np.isnan(scores)]
        mean = float(scores.mean()) if len(scores) else 0.0
        return Tried(ef_search, mean, surely(scores))


def tune(queries: HeldOut, target: float, least: int, most: int = EF_MAX) -> Tuned:
    """The smallest search effort from `least` to `most` at which the queries reach the recall `target`."""
    looked_at: set[Tried] = set()

    def ask(ef_search: int) -> Tried:
        looked_at.add(tried := queries.at(ef_search))
        return tried

    ef_search, reached = search(ask, target, least, min(most, EF_MAX))
    ordered = tuple(sorted(looked_at, key=lambda tried: tried.ef_search))
    return Tuned(ef_search, target, reached, len(queries), ordered)


def once(path: Path, index: str, find: Callable[[], Tuned]) -> Tuned:
    """What was found before for this build of the index, `path` says, else what `find` finds: runs share one effort.

    `index` is the sha256 of the index' record: another build is tuned anew.
    """
    if path.exists():
        with suppress(DataError, KeyError, TypeError):  # one that can't be read is no reason not to measure
            kept = records.read_json(path)
            if kept["index"] == index:
                return Tuned.of(kept["tuned"])
    tuned = find()
    records.write_json(path, {"index": index, "tuned": redact.body(tuned.facts())})
    return tuned
