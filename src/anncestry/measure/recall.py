"""The recall stage: what the measured answers are worth, against exact neighbours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
from numpy.typing import NDArray

from anncestry.drive.protocol import OK
from anncestry.errors import DataError
from anncestry.measure import batches, stream
from anncestry.measure.fault import STEP_S
from anncestry.measure.filtering import Filtering
from anncestry.measure.vectors import open_vectors
from anncestry.metrics import capacity, stats
from anncestry.metrics import recall as metric
from anncestry.metrics.latency import over_runs, quantile_of_counts
from anncestry.provenance import records


def _accepted(samples: Any, probes: Sequence[Sequence[Mapping[str, Any]]]) -> Any:
    """The samples at each run's highest rate that kept the bound on latency."""
    best = [capacity.accepted(of_run) for of_run in probes]
    wanted = np.array([-1 if probe is None else probe["number"] for probe in best])
    return samples.filter(pa.array(samples["probe"].to_numpy() == wanted[samples["run"].to_numpy()]))


def run(
    spec: Mapping[str, Any], key: str, query_record: Path, truth_record: Path, vectors_record: Path, out: Path
) -> dict[str, Any]:
    """Recall@k of every sample by both rules, averaged by run; writes the record to `out`."""
    measured = records.read_record(query_record, stage="query", key=spec["query"])
    files = records.verify_outputs(query_record, measured)
    truth = records.read_record(truth_record, stage="truth", key=spec["truth"])
    records.verify_outputs(truth_record, truth)
    open_vectors(vectors_record, truth["spec"]["vectors"])
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


def score(measured: Mapping[str, Any], samples_path: Path, truth_record: Path, vectors_record: Path) -> dict[str, Any]:
    """The body of a recall record, from the query record `measured`, its samples, the truth and the vectors.

    Of a run with changes, what was changed (the file beside the samples) says what the truth of each moment was.
    """
    truth = records.read_record(truth_record, stage="truth")
    vectors = open_vectors(vectors_record, truth["spec"]["vectors"], verify=False)
    k = measured["spec"]["workload"]["k"]
    probes = measured.get("probes")
    streams = "stream" in measured
    nq = batches.size_of(measured["spec"]["workload"])
    columns = ["run", "query", "status", "ids", "due_ns", *(["probe"] if probes is not None else [])]
    columns += batches.COLUMNS if nq > 1 else ()
    columns += ["start_ns", "latency_ns"] if streams else []
    truth_ids, truth_distances = (
        np.load(truth_record.parent / truth["outputs"][name]["path"], mmap_mode="r", allow_pickle=False)
        for name in ("ids", "distances")
    )
    filters = Filtering.of(truth["spec"]["filter"], vectors, np.asarray(vectors.query_region))
    abs_eps = metric.ABS_EPS[vectors.metric]
    scores = _Scores(measured["spec"]["workload"]["runs"], len(vectors.queries), "fault" in measured)
    freshness: dict[str, Any] = {}
    for samples in _parts(samples_path, columns, None if streams else max(1, _PART_IDS // (k * nq))):
        if probes is not None:
            samples = _accepted(samples, probes)
        # By vector, of which a request may have several; of a request that failed no ids, so that it found nothing.
        of_request, query, ids = batches.answers_of(samples, k, nq)
        runs = samples["run"].to_numpy()[of_request]
        if streams:
            writes = parquet.ParquetFile(samples_path.parent / measured["outputs"]["writes"]["path"]).read()
            judged = stream.against_moment(samples, ids, writes, vectors, truth_ids, truth_distances)
            if judged.shallow:
                raise DataError(
                    f"{truth_record}: {truth_ids.shape[1]} neighbours a query are too few: of {judged.shallow} answers "
                    f"of {measured['key']} so many near rows were deleted that the next ones are not known"
                )
            freshness = {"stream": stream.freshness(judged, ids, runs, scores.runs)}
            of_sample = np.arange(len(ids))
            returned, wanted = ids, judged.truth_ids
            near = (returned, judged.exact, judged.truth_distances, k)
        else:
            # The same answer to the same query has the same recall: score each once, then give it to all its samples.
            answers = np.concatenate([query[:, None], ids], axis=1)
            distinct, of_sample = np.unique(answers, axis=0, return_inverse=True)
            of_sample = of_sample.reshape(-1)
            asked, returned = distinct[:, 0], distinct[:, 1:]
            # A near row that the filter of its query excludes is no hit, however near.
            exact = metric.exact_distances(vectors.base, vectors.queries[asked], returned, vectors.metric)
            if filters is not None:
                exact = np.where(filters.passing(asked, returned), exact, np.inf)
            near = (returned, exact, truth_distances[asked], k)
            wanted = truth_ids[asked]
        scores.add(
            runs,
            query,
            samples["status"].to_numpy()[of_request] == OK,
            samples["due_ns"].to_numpy()[of_request],
            {
                "by_id": metric.recall_by_id(returned, wanted, k)[of_sample],
                "by_distance": metric.recall_by_distance(*near, abs_eps=abs_eps)[of_sample],
                "ndcg": metric.ndcg(*near, abs_eps=abs_eps)[of_sample],
                "mrr": metric.reciprocal_rank(*near, abs_eps=abs_eps)[of_sample],
            },
        )
        scores.requests += len(samples)
    means = {name: scores.over_runs(name) for name in _NAMES}
    slo = measured["spec"]["workload"].get("slo")
    return {
        "query_key": measured["key"],
        "valid": measured["valid"],
        "recall": {"k": k, **means},
        **({"slo": capacity.verdict(slo, probes, means["by_id"]["runs"])} if probes is not None else {}),
        "distribution": scores.distribution(),
        **freshness,
        **_under_fault(measured, scores),
        "worst_query": min(scores.values, default=None),
        "queries": int(scores.asked.sum()),
        "samples": scores.requests,
        **({"vectors": scores.vectors} if nq > 1 else {}),
        "unanswered": scores.unanswered,
        "without_truth": scores.without_truth,
    }


_NAMES = ("by_id", "by_distance", "ndcg", "mrr")
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

    def __init__(self, runs: int, queries: int, over_time: bool) -> None:
        self.runs = runs
        self.asked = np.zeros(queries, dtype=np.bool_)
        self.values: Counter[float] = Counter()
        self.requests = self.vectors = self.unanswered = self.without_truth = 0
        self.in_time: list[tuple[NDArray[Any], ...]] | None = [] if over_time else None
        """Run, due time, whether it was answered and recall by distance of each sample, where that is asked for."""
        self._totals = {name: np.zeros(runs * queries) for name in _NAMES}
        self._counts = {name: np.zeros(runs * queries, dtype=np.int64) for name in _NAMES}

    def add(
        self,
        runs: NDArray[np.integer[Any]],
        query: NDArray[np.int64],
        answered: NDArray[np.bool_],
        due_ns: NDArray[np.int64],
        scores: Mapping[str, NDArray[np.float64]],
    ) -> None:
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
        if self.in_time is not None:
            self.in_time.append((runs, due_ns / 1e9, answered, scores["by_distance"]))

    def over_runs(self, name: str) -> dict[str, Any]:
        """Mean over runs of the mean over a run's queries, each query of the same weight however often it was asked."""
        known = np.flatnonzero(self.asked)
        totals, counts = (of[name].reshape(self.runs, -1)[:, known] for of in (self._totals, self._counts))
        of_runs = []
        for total, count in zip(totals, counts, strict=True):
            asked = np.flatnonzero(count)
            of_runs.append(stats.Values(total[asked] / count[asked], asked))
        summary = over_runs([float(run.value.mean()) if len(run.value) else float("nan") for run in of_runs])
        found = stats.clipped(stats.mean_interval(of_runs, len(known)), 0.0, 1.0)
        return {**summary, **found.facts()} if summary["value"] is not None else summary

    def distribution(self) -> dict[str, float | None]:
        """Of recall by id, over answers: a mean hides them, and the same query may be answered differently."""
        values = sorted(self.values)
        counts = [self.values[value] for value in values]
        return {
            "zero_share": self.values[0.0] / sum(counts) if counts else None,
            **{f"p{p}": quantile_of_counts(values, counts, p / 100) if counts else None for p in (1, 5, 50)},
        }


def _under_fault(measured: Mapping[str, Any], scores: _Scores) -> dict[str, Any]:
    """Recall of what was answered, over time and while the fault lasted: loss that no error tells. Else nothing."""
    if scores.in_time is None:
        return {}
    runs, due_s, answered, by_distance = (np.concatenate(each) for each in zip(*scores.in_time, strict=True))
    during, over_time = [], []
    for number, times in enumerate(measured["fault"]["runs"]):
        mine = (runs == number) & answered & ~np.isnan(by_distance)
        inside = mine & (due_s >= times["made_s"]) & (due_s < (times["mended_s"] or np.inf))
        during.append(float(by_distance[inside].mean()) if inside.any() else float("nan"))
        steps = (due_s[mine] // STEP_S).astype(int)
        over_time.append([[step * STEP_S, float(by_distance[mine][steps == step].mean())] for step in np.unique(steps)])
    return {"fault": {"recall_during": over_runs(during), "over_time": over_time}}
