"""The recall stage: what the measured answers are worth, against exact neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
from numpy.typing import NDArray

from anncestry.datasets.metadata import matches
from anncestry.drive.protocol import OK
from anncestry.measure.vectors import open_vectors
from anncestry.metrics import recall as metric
from anncestry.metrics.latency import over_runs
from anncestry.provenance import records


def returned_ids(samples: Any, k: int) -> NDArray[np.int64]:
    """Ids of all samples, (n, k), padded with -1."""
    column = samples["ids"].combine_chunks()
    sizes = np.diff(column.offsets.to_numpy())
    ids = np.full((len(sizes), k), -1, dtype=np.int64)
    ids[np.arange(k)[None, :] < sizes[:, None]] = column.flatten().to_numpy()
    return ids


def run(
    spec: Mapping[str, Any], key: str, query_record: Path, truth_record: Path, vectors_record: Path, out: Path
) -> dict[str, Any]:
    """Recall@k of every sample by both rules, averaged by run; writes the record to `out`."""
    measured = records.read_record(query_record, stage="query", key=spec["query"])
    samples = records.verify_outputs(query_record, measured)["samples"]
    records.verify_outputs(truth_record, records.read_record(truth_record, stage="truth", key=spec["truth"]))
    return records.write_record(
        out,
        stage="recall",
        key=key,
        spec=spec,
        body=score(measured, samples, truth_record, vectors_record),
        inputs={"query": query_record, "samples": samples, "truth": truth_record, "vectors": vectors_record},
    )


def score(measured: Mapping[str, Any], samples_path: Path, truth_record: Path, vectors_record: Path) -> dict[str, Any]:
    """The body of a recall record, from the query record `measured`, its samples, the truth and the vectors."""
    truth = records.read_record(truth_record, stage="truth")
    vectors = open_vectors(vectors_record, truth["spec"]["vectors"], verify=False)
    k = measured["spec"]["workload"]["k"]
    # Not `read_table`: that imports pandas, a third of the time of this whole stage.
    samples = parquet.ParquetFile(samples_path).read(columns=["run", "query", "status", "ids"])
    answered = samples["status"].to_numpy() == OK
    query = samples["query"].to_numpy().astype(np.int64)
    runs = samples["run"].to_numpy()
    ids = returned_ids(samples, k)  # of a request that failed: none, so that it found nothing
    truth_ids, truth_distances = (
        np.load(truth_record.parent / truth["outputs"][name]["path"], mmap_mode="r", allow_pickle=False)
        for name in ("ids", "distances")
    )

    # The same answer to the same query has the same recall: score each once, then give it to all its samples.
    answers = np.concatenate([query[:, None], ids], axis=1)
    distinct, of_sample = np.unique(answers, axis=0, return_inverse=True)
    of_sample = of_sample.reshape(-1)
    asked, returned = distinct[:, 0], distinct[:, 1:]
    # A near row that the filter excludes is no hit, however near.
    passes = None
    if truth["spec"]["filter"] is not None:
        passes = matches(truth["spec"]["filter"], np.asarray(vectors.category), np.asarray(vectors.price))
    exact = metric.exact_distances(vectors.base, vectors.queries[asked], returned, vectors.metric, matches=passes)
    by_id = metric.recall_by_id(returned, truth_ids[asked], k)[of_sample]
    by_distance = metric.recall_by_distance(
        returned, exact, truth_distances[asked], k, abs_eps=metric.ABS_EPS[vectors.metric]
    )[of_sample]

    def by_run(scores: NDArray[np.float64]) -> dict[str, Any]:
        numbers = range(measured["spec"]["workload"]["runs"])
        defined = ~np.isnan(scores)
        means = [scores[(runs == number) & defined] for number in numbers]
        return over_runs([float(part.mean()) if len(part) else float("nan") for part in means])

    return {
        "query_key": measured["key"],
        "valid": measured["valid"],
        "recall": {"k": k, "by_id": by_run(by_id), "by_distance": by_run(by_distance)},
        "worst_query": float(np.nanmin(by_id)) if np.isfinite(by_id).any() else None,
        "queries": len(np.unique(query)),
        "samples": len(query),
        "unanswered": int((~answered).sum()),
        "without_truth": int(np.isnan(by_id).sum()),
    }
