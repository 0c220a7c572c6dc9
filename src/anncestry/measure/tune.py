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
_Z = 1.6448536269514722  # quantile 0.95 of the standard normal distribution


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

    def gate(self) -> Gate:
        """A target that can't be reached says what the best was."""
        at = next(tried for tried in self.curve if tried.ef_search == self.ef_search)
        said = f"recall {at.recall:.4f} (at least {at.low:.4f}) at ef {at.ef_search} on {self.queries} held-out queries"
        if self.reached:
            return Gate("recall target", True, f"{said}, target {self.target_recall}")
        return Gate("recall target", False, f"target {self.target_recall} not reached, the best was {said}")


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


def tune(oracle: Oracle, base: Path, work: Mapping[str, Any], least: int, seed: int) -> Tuned:
    """Tune the search effort of a workload, from `least` on; leaves the server at the last effort that was tried.

    `base` is the file of the loaded vectors.
    """
    engine, vectors = oracle.engine, oracle.vectors
    k, target = work["k"], work["target_recall"]
    chosen = held_out(vectors, work["queries"], work["warmup"], work["tuning_queries"], seed)
    queries = np.asarray(vectors.queries[chosen])
    regions = np.asarray(vectors.query_region)[chosen]
    filters = Filtering.of(work.get("filter"), vectors, regions, chosen)
    asked = asked_of(filters, len(chosen))
    rows = len(vectors.base)
    depth = min(k, rows)
    what = queries, asked, columns_of(vectors)
    problem = Problem({"base": base}, vectors.metric, depth, rows, *what, payload=vectors.payload)
    truth, _ = problem.solve(range(rows), "truth of held-out queries")
    curve: list[Tried] = []

    def ask(ef_search: int) -> Tried:
        engine.apply(oracle.server, ef_search)
        answers = oracle.send(encode(engine, oracle.server, queries, k, ef_search, asked), k)
        far = recall.exact_distances(vectors.base, queries, answers.ids, vectors.metric)
        if filters is not None:
            far = np.where(filters.passing(np.arange(len(chosen)), answers.ids), far, np.inf)
        scores = recall.recall_by_distance(
            answers.ids, far, truth.distances, depth, abs_eps=recall.ABS_EPS[vectors.metric]
        )
        scores = scores[~np.isnan(scores)]
        mean = float(scores.mean()) if len(scores) else 0.0
        error = float(scores.std(ddof=1)) / math.sqrt(len(scores)) if len(scores) > 1 else 0.0
        curve.append(Tried(ef_search, mean, mean - _Z * error))
        print(f"tune {work['name']}: recall {mean:.4f} at ef {ef_search}", file=sys.stderr, flush=True)
        return curve[-1]

    ef_search, reached = search(ask, target, least)
    ordered = tuple(sorted(curve, key=lambda tried: tried.ef_search))
    return Tuned(ef_search, target, reached, len(chosen), ordered)


def once(path: Path, index: str, find: Callable[[], Tuned]) -> Tuned:
    """What was found before for this build of the index, `path` says, else what `find` finds: runs share one effort.

    `index` is the sha256 of the index' record: another build is tuned anew.
    """
    if path.exists():
        with suppress(DataError, KeyError, TypeError):  # one that can't be read is no reason not to measure
            kept = records.read_json(path)
            if kept["index"] == index:
                found = kept["tuned"]
                return Tuned(**{**found, "curve": tuple(Tried(**tried) for tried in found["curve"])})
    tuned = find()
    records.write_json(path, {"index": index, "tuned": redact.body(tuned.facts())})
    return tuned
