"""Raw samples of a cell, a row a request: written and read part by part, as an hour of them is larger than memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as compute
import pyarrow.parquet as parquet
from numpy.typing import NDArray

from anncestry import large
from anncestry.datasets.distance import Ids
from anncestry.errors import DataError
from anncestry.measure.requests import Answers
from anncestry.metrics import latency

_GROUP_BYTES = 16 << 20
"""Of a row group, uncompressed: what a reader may have to hold at once."""
_GROUP_ROWS = 1 << 20
_READ_ROWS = 1 << 16
_COLUMNS = {"query": np.uint32, "due_ns": np.int64, "latency_ns": np.int64, "status": np.uint8, "defect": np.uint8}

BATCH_COLUMNS = ("queries", "sizes")
"""What samples of requests of several vectors hold beside: the rows of the dataset's queries that were asked, and how
many of the request's `ids` (and `distances`) are each one's, in the same order."""

Runs = dict[tuple[int, int | None], latency.Run]
"""The samples by run (from 0 on) and, of a search for a rate, by probe."""


class Writer:
    """A file of samples; tables are added in the order of their rows, and may be of any size."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held: list[pa.Table] = []
        self._file: parquet.ParquetWriter | None = None

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._write()
        if self._file is not None:
            self._file.close()

    def add(self, table: pa.Table) -> None:
        """Rows that follow those that were added."""
        self._held.append(table)
        if sum(each.nbytes for each in self._held) > _GROUP_BYTES or sum(map(len, self._held)) >= _GROUP_ROWS:
            self._write()

    def _write(self) -> None:
        if not self._held:
            return
        table = pa.concat_tables(self._held)
        if self._file is None:
            self._file = parquet.ParquetWriter(self._path, table.schema, compression="zstd")
        self._file.write_table(table)
        self._held = []
        del table
        pa.default_memory_pool().release_unused()  # it keeps several groups otherwise


def join(paths: list[Path], target: Path) -> None:
    """The samples of these files, one after the other, as one file."""
    with Writer(target) as writer:
        for path in paths:
            file = parquet.ParquetFile(path)
            for group in range(file.num_row_groups):
                writer.add(file.read_row_group(group))
            if not file.num_row_groups:
                writer.add(file.read())


def by_run(path: Path, workload: Mapping[str, Any]) -> Runs:
    """When the requests of each run were due, what they took and what came of them; nothing of their answers."""
    file = parquet.ParquetFile(path)
    # Samples of earlier versions do not say what is wrong with an answer.
    kinds = {name: kind for name, kind in _COLUMNS.items() if name in file.schema_arrow.names}
    names = ["run", *kinds, *(["probe"] if "slo" in workload else [])]
    found: dict[tuple[int, int | None], dict[str, large.Growing]] = {}
    for batch in file.iter_batches(_READ_ROWS, columns=names):
        here = {name: batch.column(name).to_numpy() for name in names}
        runs, probes = here["run"], here.get("probe")
        for run in np.unique(runs).tolist():
            of_run = runs == run
            for probe in [None] if probes is None else np.unique(probes[of_run]).tolist():
                chosen = of_run if probes is None else of_run & (probes == probe)
                growing = found.setdefault((run, probe), {name: large.Growing(kind) for name, kind in kinds.items()})
                for name, target in growing.items():
                    target.append(here[name][chosen])
    return {
        place: _run({name: growing.array() for name, growing in columns.items()}, workload)
        for place, columns in found.items()
    }


def busy_by_run(path: Path, clients: int) -> dict[int, latency.Busy]:
    """How busy the clients of each run were."""
    found: dict[int, latency.Busy] = {}
    names = ["run", "client", "due_ns", "latency_ns"]
    for batch in parquet.ParquetFile(path).iter_batches(_READ_ROWS, columns=names):
        runs, *columns = (batch.column(name).to_numpy() for name in names)
        for run in np.unique(runs).tolist():
            found.setdefault(run, latency.Busy(clients)).add(*(column[runs == run] for column in columns))
    return found


def of(runs: Runs, workload: Mapping[str, Any], run: int, probe: int | None = None) -> latency.Run:
    """The samples of one run, or of one probe of it; where there are none, a run of none."""
    return runs.get((run, probe)) or _run({name: np.empty(0, kind) for name, kind in _COLUMNS.items()}, workload)


def _run(columns: Mapping[str, NDArray[Any]], workload: Mapping[str, Any]) -> latency.Run:
    return latency.Run(**columns, duration_s=workload.get("duration_s"))


def lists(values: NDArray[Any], sizes: Ids) -> pa.Array:
    """Each row of a column of lists holds the next `sizes` (rows,) of the values."""
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))


def table(
    run: int, rows: Ids, samples: NDArray[Any], answered: Answers, nq: int, defect: NDArray[np.uint8]
) -> pa.Table:
    """Raw data of a run, a row a request; `query` is a row of the dataset's queries, `status` 0 ok, 1 error, 2 timeout.

    Of requests of several vectors `query` is the first of them, and BATCH_COLUMNS say all. `defect` (vectors,) is what
    is wrong with each good answer (see `metrics.defects`); a request has the defects of all its answers.
    """
    kept = answered.ids != -1
    sizes = kept.sum(axis=1).reshape(-1, nq)
    n = len(sizes)
    of_batch = {"queries": (rows, np.uint32), "sizes": (sizes.reshape(-1), np.uint16)} if nq > 1 else {}
    return pa.table(
        {
            "run": pa.array(np.full(n, run, np.uint8)),
            "client": pa.array(samples["client"].astype(np.uint16)),
            "query": pa.array(rows[::nq].astype(np.uint32)),
            **{name: pa.array(samples[name].astype(np.int64)) for name in ("due_ns", "start_ns", "latency_ns")},
            "status": pa.array(answered.status[::nq]),
            "defect": pa.array(np.bitwise_or.reduce(defect.reshape(-1, nq), axis=1)),
            "ids": lists(answered.ids[kept], sizes.sum(axis=1)),
            "distances": lists(answered.distances[kept].astype(np.float32), sizes.sum(axis=1)),
            **{name: lists(values.astype(kind), np.full(n, nq)) for name, (values, kind) in of_batch.items()},
        }
    )


def answers_of(samples: pa.Table, k: int, nq: int) -> tuple[Ids, Ids, Ids]:
    """The answers in a table of samples, by vector: of which sample (v,), to which query (v,), ids (v, k).

    Ids are padded with -1. DataError where a request does not have `nq` vectors, or its answers are not as many ids as
    their sizes say.
    """
    lengths = {
        name: compute.list_value_length(samples[name]).to_numpy()
        for name in ("ids", *(BATCH_COLUMNS if nq > 1 else ()))
    }
    query, sizes = samples["query"], lengths["ids"]
    if nq > 1:
        if any((lengths[name] != nq).any() for name in BATCH_COLUMNS):
            raise DataError(f"samples: a request is not of {nq} vectors, as its workload says")
        query, sizes = compute.list_flatten(samples["queries"]), compute.list_flatten(samples["sizes"]).to_numpy()
        if (sizes.reshape(-1, nq).sum(axis=1) != lengths["ids"]).any():
            raise DataError("samples: the ids of a request are not as many as those of its vectors together")
    ids = np.full((len(sizes), k), -1, dtype=np.int64)
    ids[np.arange(k)[None, :] < sizes[:, None]] = compute.list_flatten(samples["ids"]).to_numpy()
    return np.repeat(np.arange(len(samples)), nq), query.to_numpy().astype(np.int64), ids
