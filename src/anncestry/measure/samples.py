"""Raw samples of a cell, a row a request: written and read part by part, as an hour of them is larger than memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
from numpy.typing import NDArray

from anncestry import large
from anncestry.metrics import latency

_GROUP_BYTES = 16 << 20
"""Of a row group, uncompressed: what a reader may have to hold at once."""
_GROUP_ROWS = 1 << 20
_READ_ROWS = 1 << 16
_COLUMNS = {"query": np.uint32, "due_ns": np.int64, "latency_ns": np.int64, "status": np.uint8}

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
    names = ["run", *_COLUMNS, *(["probe"] if "slo" in workload else [])]
    found: dict[tuple[int, int | None], dict[str, large.Growing]] = {}
    for batch in parquet.ParquetFile(path).iter_batches(_READ_ROWS, columns=names):
        here = {name: batch.column(name).to_numpy() for name in names}
        runs, probes = here["run"], here.get("probe")
        for run in np.unique(runs).tolist():
            of_run = runs == run
            for probe in [None] if probes is None else np.unique(probes[of_run]).tolist():
                chosen = of_run if probes is None else of_run & (probes == probe)
                growing = found.setdefault((run, probe), {name: large.Growing(kind) for name, kind in _COLUMNS.items()})
                for name, target in growing.items():
                    target.append(here[name][chosen])
    return {
        place: _run({name: growing.array() for name, growing in columns.items()}, workload)
        for place, columns in found.items()
    }


def of(runs: Runs, workload: Mapping[str, Any], run: int, probe: int | None = None) -> latency.Run:
    """The samples of one run, or of one probe of it; where there are none, a run of none."""
    return runs.get((run, probe)) or _run({name: np.empty(0, kind) for name, kind in _COLUMNS.items()}, workload)


def _run(columns: Mapping[str, NDArray[Any]], workload: Mapping[str, Any]) -> latency.Run:
    return latency.Run(**columns, duration_s=workload.get("duration_s"))
