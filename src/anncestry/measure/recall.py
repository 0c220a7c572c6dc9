"""The recall stage: what the measured answers are worth, against exact neighbours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from anncestry.metrics.latency import over_runs, quantile
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
    records.verify_outputs(truth_record, records.read_record(truth_record, stage="truth", key=spec["truth"]))
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
    # Not `read_table`: that imports pandas, a third of the time of this whole stage.
    probes = measured.get("probes")
    streams = "stream" in measured
    nq = batches.size_of(measured["spec"]["workload"])
    columns = ["run", "query", "status", "ids", "due_ns", *(["probe"] if probes is not None else [])]
    columns += batches.COLUMNS if nq > 1 else ()
    columns += ["start_ns", "latency_ns"] if streams else []
    samples = parquet.ParquetFile(samples_path).read(columns=columns)
    if probes is not None:
        samples = _accepted(samples, probes)
    # By vector, of which a request may have several; of a request that failed no ids, so that it found nothing.
    of_request, query, ids = batches.answers_of(samples, k, nq)
    answered = samples["status"].to_numpy()[of_request] == OK
    runs = samples["run"].to_numpy()[of_request]
    truth_ids, truth_distances = (
        np.load(truth_record.parent / truth["outputs"][name]["path"], mmap_mode="r", allow_pickle=False)
        for name in ("ids", "distances")
    )

    judged: stream.Judged | None = None
    if streams:
        writes = parquet.ParquetFile(samples_path.parent / measured["outputs"]["writes"]["path"]).read()
        judged = stream.against_moment(samples, ids, writes, vectors, truth_ids, truth_distances)
        if judged.shallow:
            raise DataError(
                f"{truth_record}: {truth_ids.shape[1]} neighbours a query are too few: of {judged.shallow} answers of "
                f"{measured['key']} so many near rows were deleted that the next ones are not known"
            )
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
        filters = Filtering.of(truth["spec"]["filter"], vectors, np.asarray(vectors.query_region)[asked])
        if filters is not None:
            exact = np.where(filters.passing(np.arange(len(asked)), returned), exact, np.inf)
        near = (returned, exact, truth_distances[asked], k)
        wanted = truth_ids[asked]
    abs_eps = metric.ABS_EPS[vectors.metric]
    by_id = metric.recall_by_id(returned, wanted, k)[of_sample]
    by_distance = metric.recall_by_distance(*near, abs_eps=abs_eps)[of_sample]
    numbers = range(measured["spec"]["workload"]["runs"])
    known, of_query = np.unique(query, return_inverse=True)

    def by_run(scores: NDArray[np.float64]) -> dict[str, Any]:
        """Mean over runs of the mean over a run's queries, each query of the same weight however often it was asked."""
        parts = [(runs == number) & ~np.isnan(scores) for number in numbers]
        of_runs = []
        for part in parts:
            counts = np.bincount(of_query[part], minlength=len(known))
            means = np.bincount(of_query[part], scores[part], len(known))[counts > 0] / counts[counts > 0]
            of_runs.append(stats.Values(means, np.flatnonzero(counts)))
        summary = over_runs([float(run.value.mean()) if len(run.value) else float("nan") for run in of_runs])
        found = stats.clipped(stats.mean_interval(of_runs, len(known)), 0.0, 1.0)
        return {**summary, **found.facts()} if summary["value"] is not None else summary

    defined = by_id[~np.isnan(by_id)]
    by_id_over_runs = by_run(by_id)
    slo = measured["spec"]["workload"].get("slo")
    return {
        "query_key": measured["key"],
        "valid": measured["valid"],
        "recall": {
            "k": k,
            "by_id": by_id_over_runs,
            "by_distance": by_run(by_distance),
            "ndcg": by_run(metric.ndcg(*near, abs_eps=abs_eps)[of_sample]),
            "mrr": by_run(metric.reciprocal_rank(*near, abs_eps=abs_eps)[of_sample]),
        },
        **({"slo": capacity.verdict(slo, probes, by_id_over_runs["runs"])} if probes is not None else {}),
        # A mean hides queries that found nothing; answers, not queries, as the same query may be answered differently.
        "distribution": {
            "zero_share": float((defined == 0).mean()) if len(defined) else None,
            **{f"p{p}": quantile(defined, p / 100) if len(defined) else None for p in (1, 5, 50)},
        },
        **({} if judged is None else {"stream": stream.freshness(judged, ids, runs, len(numbers))}),
        **_under_fault(measured, runs, samples["due_ns"].to_numpy()[of_request] / 1e9, answered, by_distance),
        "worst_query": float(np.nanmin(by_id)) if np.isfinite(by_id).any() else None,
        "queries": len(np.unique(query)),
        "samples": len(samples),
        **({"vectors": len(query)} if nq > 1 else {}),
        "unanswered": int((~answered).sum()),
        "without_truth": int(np.isnan(by_id).sum()),
    }


def _under_fault(
    measured: Mapping[str, Any],
    runs: NDArray[np.integer[Any]],
    due_s: NDArray[np.float64],
    answered: NDArray[np.bool_],
    scores: NDArray[np.float64],
) -> dict[str, Any]:
    """Recall of what was answered, over time and while the fault lasted: loss that no error tells. Else nothing."""
    if "fault" not in measured:
        return {}
    during, over_time = [], []
    for number, times in enumerate(measured["fault"]["runs"]):
        mine = (runs == number) & answered & ~np.isnan(scores)
        inside = mine & (due_s >= times["made_s"]) & (due_s < (times["mended_s"] or np.inf))
        during.append(float(scores[inside].mean()) if inside.any() else float("nan"))
        steps = (due_s[mine] // STEP_S).astype(int)
        over_time.append([[step * STEP_S, float(scores[mine][steps == step].mean())] for step in np.unique(steps)])
    return {"fault": {"recall_during": over_runs(during), "over_time": over_time}}
