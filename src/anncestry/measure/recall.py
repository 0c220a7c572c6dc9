"""The recall stage: what the measured answers are worth, against exact neighbours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
from numpy.typing import NDArray

from anncestry.datasets.distance import Bools, Floats, Ids
from anncestry.drive.client import OK
from anncestry.errors import Damaged, DataError
from anncestry.measure.requests import nq_of
from anncestry.measure.runs import measuring_of, runs_of
from anncestry.measure.samples import BATCH_COLUMNS, answers_of
from anncestry.measure.vectors import Filtering, Vectors, open_vectors
from anncestry.metrics import defects, stats
from anncestry.metrics import recall as metric
from anncestry.metrics.latency import over_runs, quantile_of_counts
from anncestry.provenance import records


def run(
    spec: Mapping[str, Any], key: str, query_record: Path, truth_record: Path, vectors_record: Path, out: Path
) -> dict[str, Any]:
    """Recall@k of every sample by both rules, averaged by run; writes the record to `out`."""
    measured = records.read_record(query_record, stage="query", key=spec["query"])
    records.refuse_other_vectors(query_record, measured, vectors_record)
    files = records.verify_outputs(query_record, measured)
    verify_truth(truth_record, spec["truth"], vectors_record)
    return records.write_record(
        out,
        stage="recall",
        key=key,
        spec=spec,
        body=score(measured, files["samples"], truth_record, vectors_record),
        inputs={
            "query": query_record,
            **{label: files[label] for label in ("samples", "writes") if label in files},
            "truth": truth_record,
            "vectors": vectors_record,
        },
    )


def verify_truth(path: Path, key: str, vectors_record: Path) -> None:
    """Damaged if the truth of this key, or the vectors that it was made from, are not what their records say."""
    truth = records.read_record(path, stage="truth", key=key)
    records.verify_outputs(path, truth)
    open_vectors(vectors_record, truth["spec"]["vectors"])
    _refuse_other_vectors(path, truth, vectors_record)


def _refuse_other_vectors(path: Path, truth: Mapping[str, Any], vectors_record: Path) -> None:
    """Damaged where the vectors were made again and became others: one key may stand for what a source now has."""
    state = records.state(vectors_record, truth["inputs"]["vectors"], "vectors")
    if state not in (records.State.SAME, records.State.REMADE):
        raise Damaged(path, f"{path}: is the truth of other vectors than those of {vectors_record} now")


@dataclass(frozen=True)
class Truth:
    """The exact neighbours that answers are compared with: `ids` and `distances` (asked, depth).

    `rows` int64 (asked,), ascending, are the queries that they belong to.
    """

    path: Path
    vectors: Vectors
    ids: Ids
    distances: Floats
    rows: Ids
    filters: Filtering | None

    @classmethod
    def read(cls, path: Path, vectors_record: Path) -> Truth:
        """That of the truth record at `path`."""
        record = records.read_record(path, stage="truth")
        _refuse_other_vectors(path, record, vectors_record)
        vectors = open_vectors(vectors_record, record["spec"]["vectors"], verify=False)
        ids, distances = (
            np.load(path.parent / record["outputs"][name]["path"], mmap_mode="r", allow_pickle=False)
            for name in ("ids", "distances")
        )
        # A truth of all queries, as all were once, has no file that says which.
        rows = np.load(path.parent / "queries.npy") if "queries" in record["outputs"] else np.arange(len(ids))
        filters = Filtering.of(record["spec"]["filter"], vectors, np.asarray(vectors.query_region))
        return cls(path, vectors, ids, distances, rows, filters)

    def of(self, query: Ids) -> tuple[Ids, Floats]:
        """The ids and distances (n, depth) of queries (n,); DataError for one whose neighbours are not known."""
        place = np.minimum(np.searchsorted(self.rows, query), len(self.rows) - 1)
        unknown = query[self.rows[place] != query]
        if len(unknown):
            raise DataError(f"{self.path}: has no neighbours of query {int(unknown[0])}, which was asked")
        return np.asarray(self.ids[place]), np.asarray(self.distances[place])

    def scores(self, query: Ids, ids: Ids, k: int) -> dict[str, Floats]:
        """Of answers to the rows `query` (n,) of the queries, with `ids` (n, k): each of `_NAMES`, (n,)."""
        # The same answer to the same query has the same recall: score each once, then give it to all its samples.
        distinct, of_sample = np.unique(np.concatenate([query[:, None], ids], axis=1), axis=0, return_inverse=True)
        asked, returned = distinct[:, 0], distinct[:, 1:]
        # A near row that the filter of its query excludes is no hit, however near.
        vectors = self.vectors
        exact = metric.exact_distances(vectors.base, vectors.queries[asked], returned, vectors.metric)
        if self.filters is not None:
            exact = np.where(self.filters.passing(asked, returned), exact, np.inf)
        scores = score_answers(returned, exact, *self.of(asked), k, vectors.metric)
        return {name: values[of_sample.reshape(-1)] for name, values in scores.items()}


def score_answers(
    returned: Ids, exact: Floats, truth_ids: Ids, truth_distances: Floats, k: int, of_metric: str
) -> dict[str, Floats]:
    near = (returned, exact, truth_distances, k)
    abs_eps = metric.ABS_EPS[of_metric]
    return {
        "by_id": metric.recall_by_id(returned, truth_ids, k),
        "by_distance": metric.recall_by_distance(*near, abs_eps=abs_eps),
        "ndcg": metric.ndcg(*near, abs_eps=abs_eps),
        "mrr": metric.reciprocal_rank(*near, abs_eps=abs_eps),
    }


def score(measured: Mapping[str, Any], samples_path: Path, truth_record: Path, vectors_record: Path) -> dict[str, Any]:
    """The body of a recall record, from the query record `measured`, its samples, the truth and the vectors."""
    truth = Truth.read(truth_record, vectors_record)
    work = measured["spec"]["workload"]
    k, nq = work["k"], nq_of(work)
    scores = _Scores(runs_of(measured), len(truth.vectors.queries))
    scorings = [of.scoring(measured, samples_path, truth) for of in measuring_of(work)]
    changes = [scoring for scoring in scorings if scoring is not None]
    columns = ["run", "query", "status", "ids", "due_ns", *(name for change in changes for name in change.columns)]
    columns += BATCH_COLUMNS if nq > 1 else ()
    columns += [name for name in ("defect",) if name in parquet.read_schema(samples_path).names]
    at_once = any(change.at_once for change in changes)
    for table in _parts(samples_path, columns, None if at_once else max(1, _PART_IDS // (k * nq))):
        for change in changes:
            table = change.choose(table)
        # By vector, of which a request may have several; of a request that failed no ids, so that it found nothing.
        of_request, query, ids = answers_of(table, k, nq)
        runs = table["run"].to_numpy()[of_request]
        others = (change.score(table, ids, runs) for change in changes)
        of_samples = next((each for each in others if each is not None), None)
        if of_samples is None:
            of_samples = truth.scores(query, ids, k)
        answered = table["status"].to_numpy()[of_request] == OK
        if "defect" in table.column_names and all(change.of_loaded for change in changes):
            _check_defects(samples_path, table, truth, query, ids, answered, nq)
        scores.add(runs, query, answered, of_samples)
        for change in changes:
            change.add(runs, table["due_ns"].to_numpy()[of_request] / 1e9, answered, of_samples)
        scores.requests += len(table)
    means = {name: scores.over_runs(name) for name in _NAMES}
    body = {
        "query_key": measured["key"],
        "valid": measured["valid"],
        "recall": {"k": k, **means},
        "distribution": scores.distribution(),
        **({} if changes else {"by_query": scores.by_query()}),
    }
    for change in changes:
        body |= change.body(means)
    return {
        **body,
        "worst_query": min(scores.values, default=None),
        "queries": int(scores.asked.sum()),
        "samples": scores.requests,
        **({"vectors": scores.vectors} if nq > 1 else {}),
        "unanswered": scores.unanswered,
        "without_truth": scores.without_truth,
    }


def _check_defects(path: Path, table: pa.Table, truth: Truth, query: Ids, ids: Ids, answered: Bools, nq: int) -> None:
    """DataError where samples deny what is wrong with their own ids, or claim what isn't."""
    wanted = (truth.of(query)[0][:, : ids.shape[1]] >= 0).sum(axis=1)
    violating = None if truth.filters is None else truth.filters.violating(query, ids)
    found = np.where(answered, defects.of_answers(ids, wanted, violating), 0).reshape(-1, nq)
    wrong = np.flatnonzero(np.bitwise_or.reduce(found, axis=1) != table["defect"].to_numpy())
    if len(wrong):
        raise DataError(f"{path}: {len(wrong)} answers do not have the defects that their column `defect` says")


_NAMES = ("by_id", "by_distance", "ndcg", "mrr")
_PAIRED = ("by_id", "by_distance")
_PART_IDS = 1 << 17


def _parts(path: Path, columns: Sequence[str], rows: int | None) -> Iterator[pa.Table]:
    """The samples in their order, so many at a time (None: all at once); at least one table, which may be empty."""
    # Not `read_table`: that imports pandas, a third of the time of this whole stage.
    file = parquet.ParquetFile(path)
    if rows is None or not file.metadata.num_rows:
        yield file.read(columns=list(columns))
        return
    for part in file.iter_batches(rows, columns=list(columns)):
        yield pa.Table.from_batches([part])


class _Scores:
    """What the scores of any number of samples come to: sums by run and query, and how often each recall was seen.

    Sums grow sample by sample, so that they don't depend on how the samples were cut into parts.
    """

    def __init__(self, runs: int, queries: int) -> None:
        self.runs = runs
        self.asked = np.zeros(queries, dtype=np.bool_)
        self.values: Counter[float] = Counter()
        self.requests = self.vectors = self.unanswered = self.without_truth = 0
        self._totals = {name: np.zeros(runs * queries) for name in _NAMES}
        self._counts = {name: np.zeros(runs * queries, dtype=np.int64) for name in _NAMES}

    def add(self, runs: NDArray[np.integer[Any]], query: Ids, answered: Bools, scores: Mapping[str, Floats]) -> None:
        """Count in samples, (n,) each; a score is NaN where there was nothing to find."""
        place = runs.astype(np.int64) * len(self.asked) + query
        for name, found in scores.items():
            known = ~np.isnan(found)
            np.add.at(self._totals[name], place[known], found[known])
            np.add.at(self._counts[name], place[known], 1)
        self.asked[query] = True
        by_id = scores["by_id"]
        values, counts = np.unique(by_id[~np.isnan(by_id)], return_counts=True)
        self.values.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
        self.vectors += len(query)
        self.unanswered += int((~answered).sum())
        self.without_truth += int(np.isnan(by_id).sum())

    def over_runs(self, name: str) -> dict[str, Any]:
        """Mean over runs of the mean over a run's queries, each query of the same weight however often it was asked."""
        known = np.flatnonzero(self.asked)
        totals, counts = (of[name].reshape(self.runs, -1)[:, known] for of in (self._totals, self._counts))
        of_runs = []
        for total, count in zip(totals, counts, strict=True):
            asked = np.flatnonzero(count)
            of_runs.append(stats.Values(total[asked] / count[asked], asked))
        summary = over_runs([float(run.value.mean()) if len(run.value) else float("nan") for run in of_runs])
        found = stats.share_interval(of_runs, len(known))
        return {**summary, **found.facts()} if summary["value"] is not None else summary

    def by_query(self) -> dict[str, list[Any]]:
        """What comparisons pair: the asked queries that have neighbours, by their rows, and each one's mean recalls."""
        totals, counts = (
            {name: of[name].reshape(self.runs, -1).sum(axis=0) for name in _PAIRED}
            for of in (self._totals, self._counts)
        )
        rows = np.flatnonzero(counts["by_id"])
        return {
            "query": rows.tolist(),
            **{name: np.round(totals[name][rows] / counts[name][rows], 6).tolist() for name in _PAIRED},
        }

    def distribution(self) -> dict[str, float | None]:
        """Of recall by id, over answers: a mean hides them, and the same query may be answered differently."""
        values = sorted(self.values)
        counts = [self.values[value] for value in values]
        return {
            "zero_share": self.values[0.0] / sum(counts) if counts else None,
            **{f"p{p}": quantile_of_counts(values, counts, p / 100) if counts else None for p in (1, 5, 50)},
        }
