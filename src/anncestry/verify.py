"""Verify: is every published number still what its raw samples say, and every file what its record says?

Files are re-hashed against their records, records against the specs of the matrix and against the records that were
made from them. Then every number is made again: summaries from raw samples, recall from returned ids and exact
neighbours (where those are here), the tidy table from the records, the page from the table. One changed byte anywhere
is found, and the file and the numbers that hang on it are named. Cells are looked at one by one: memory is bounded.
"""

from __future__ import annotations

import functools
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet

from anncestry.cells.matrix import Cell, Matrix
from anncestry.errors import DataError, UserError
from anncestry.measure import publish, recall
from anncestry.metrics import latency, resources
from anncestry.progress import Progress
from anncestry.provenance import records
from anncestry.report import noise, numbers, page

_REMADE = ("artifact", "vectors", "truth")
"""Inputs that are not measurements: a clone without them makes them again, with other dates in their records."""


@dataclass(frozen=True)
class Problem:
    """What is no longer true, in a sentence that names the file; `record` is the record whose numbers hang on it."""

    sentence: str
    record: str


@dataclass
class Findings:
    """Problems, and how much was looked at."""

    problems: list[Problem] = field(default_factory=list)
    records: int = 0
    files: int = 0
    absent: set[str] = field(default_factory=set)
    partial: bool = False

    def check(self, record: str, test: Callable[[], None]) -> bool:
        """Run a test that raises UserError; whether it passed."""
        try:
            test()
        except UserError as error:
            self.problems.append(Problem(str(error), record))
            return False
        return True


def verify(matrix: Matrix, published: Path | None, quick: bool = False, partial: bool = False) -> Findings:
    """Verify everything that the matrix publishes in the working directory; with `quick`, re-hash only.

    With `partial`, what was not measured (and without it, table and page can't be made) is no problem.
    """
    findings = Findings(partial=partial)
    loads = {each.load_path: each for cell in matrix.cells for each in (cell, *cell.chain)}
    with Progress("verify", len(loads) + len(matrix.cells) + 1, "record") as progress:
        for cell in loads.values():
            loaded = _record(findings, matrix, cell.load_path, "load", cell.load)
            if loaded is not None and not quick:
                findings.check(cell.load_path, functools.partial(_load, cell.load_path, loaded))
            progress.add(1)
        for cell in matrix.cells:
            _cell(findings, matrix, cell, quick)
            progress.add(1)
        if not quick and not (partial and not Path(matrix.report_path).exists()):
            _published(findings, matrix, published)
        progress.add(1)
    return findings


def _record(findings: Findings, matrix: Matrix, path: str, stage: str, key: str) -> dict[str, Any] | None:
    """A record that is whole, of the asked spec, and whose files and inputs are what it says; else None."""
    file = Path(path)
    found: dict[str, Any] = {}
    if findings.partial and not file.exists():
        return None

    def whole() -> None:
        found.update(records.read_record(file, stage=stage, key=key))
        spec = matrix.spec(key, stage)
        if found["spec"] != spec:
            raise DataError(f"{path}: its spec is not the one that its key stands for")
        findings.files += len(records.verify_outputs(file, found))

    findings.records += 1
    if not findings.check(path, whole):
        return None
    for label, entry in found["inputs"].items():
        source = Path(entry["path"])
        if not source.exists():
            findings.absent.add(source.parts[0])
            continue
        findings.check(path, functools.partial(_same, path, label, source, entry))
    return found


def _same(path: str, label: str, source: Path, entry: Mapping[str, Any]) -> None:
    """The input is the one that was used, or, for a stage that may be made again, one with the same contents."""
    if records.sha256_file(source) == entry["sha256"]:
        return
    if label in _REMADE and records.identity(records.read_record(source)) == entry["identity"]:
        return
    raise DataError(f"{source}: is not the {label} that {path} was made from (sha256 differs)")


def _cell(findings: Findings, matrix: Matrix, cell: Cell, quick: bool) -> None:
    measured = _record(findings, matrix, cell.query_path, "query", cell.query)
    scored = _record(findings, matrix, cell.recall_path, "recall", cell.recall)
    if quick or measured is None:
        return
    findings.check(cell.query_path, lambda: _summary(cell, measured))
    findings.check(cell.query_path, lambda: _resources(cell.query_path, measured, _over_runs(measured)))
    truth, vectors = Path(cell.truth_path), Path(cell.vectors_path)
    if scored is not None and truth.exists() and vectors.exists():
        findings.check(cell.recall_path, lambda: _recall(cell, measured, scored, truth, vectors))


def _summary(cell: Cell, measured: Mapping[str, Any]) -> None:
    """The record's summary, made again from the raw samples."""
    work, probes = measured["spec"]["workload"], measured.get("probes")
    columns = ["run", "query", "due_ns", "latency_ns", "status", *(["probe"] if probes is not None else [])]
    samples = parquet.ParquetFile(cell.samples_path).read(columns=columns)
    runs = publish.samples_of(work, samples, probes)
    again = latency.summarise(runs)
    if not _equal(measured["histogram"], latency.histogram(runs)):
        raise DataError(f"{cell.query_path}: its histogram is not that of its samples")
    if not _equal(measured["steadiness"], publish.steadiness(runs)):
        raise DataError(f"{cell.query_path}: its steadiness is not that of its samples")
    if "cold" in measured:
        starts = [{"cold": start} for start in measured["cold"]["starts"]]
        if not _equal(measured["cold"], publish.cold(runs, starts)):
            raise DataError(f"{cell.query_path}: its cold starts are not what its samples say")
    if probes is not None and not _equal(probes, publish.probes_of(work, samples, probes, probes)):
        raise DataError(f"{cell.query_path}: its probes are not what its samples say")
    for name, stored in measured["summary"].items():
        if not _equal(stored, again.get(name)):
            raise DataError(f"{cell.query_path}: {name} is {stored.get('value')}, its samples say {again.get(name)}")


def _load(path: str, loaded: Mapping[str, Any]) -> None:
    """The load's times, made again from the ends of its phases, and what was used in each of them."""
    phases = {name: (start_s, end_s) for name, start_s, end_s in loaded["phases"]}
    whole = (min(start for start, _ in phases.values()), max(end for _, end in phases.values()))
    if "upgrade_of" not in loaded["spec"]:  # an upgrade in place has the one phase, and no load time
        phases["load"] = whole
    for name, (start_s, end_s) in phases.items():
        if not math.isclose(loaded["times"][f"{name}_s"], end_s - start_s, rel_tol=1e-3, abs_tol=1e-3):
            raise DataError(f"{path}: {name}_s is {loaded['times'][f'{name}_s']}, its phases say {end_s - start_s}")
    windows = {name: [ends] for name, ends in phases.items()}
    _resources(path, loaded, lambda table: resources.by_group(table, windows))


def _over_runs(measured: Mapping[str, Any]) -> Callable[[Any], Any]:
    return lambda table: resources.over_runs(table, "query", measured["windows_s"])


def _resources(path: str, record: Mapping[str, Any], attribute: Callable[[Any], Any]) -> None:
    """CPU, memory and IO, made again from the samples of the processes."""
    samples = Path(path).parent / record["outputs"]["resources"]["path"]
    again = attribute(parquet.ParquetFile(samples).read())
    if not _equal(record["resources"], again):
        raise DataError(f"{path}: its resources are not what {samples.name} says")


def _recall(cell: Cell, measured: Mapping[str, Any], scored: Mapping[str, Any], truth: Path, vectors: Path) -> None:
    """The record's recall, made again from the returned ids."""
    for path in (truth, vectors):
        records.verify_outputs(path, records.read_record(path))
    again = recall.score(measured, Path(cell.samples_path), truth, vectors)
    for name, value in again.items():
        if not _equal(scored.get(name), value):
            raise DataError(f"{cell.recall_path}: {name} is {scored.get(name)}, its samples say {value}")


def _equal(stored: Any, again: Any) -> bool:
    """Equal, numbers up to the last digits in which libraries of another version may sum differently."""
    if isinstance(stored, Mapping) and isinstance(again, Mapping):
        return stored.keys() == again.keys() and all(_equal(stored[key], again[key]) for key in stored)
    if isinstance(stored, list) and isinstance(again, list):
        return len(stored) == len(again) and all(map(_equal, stored, again))
    if isinstance(stored, float) and isinstance(again, float | np.floating):
        return math.isclose(stored, float(again), rel_tol=1e-12, abs_tol=1e-12)
    return bool(stored == again)


def _published(findings: Findings, matrix: Matrix, published: Path | None) -> None:
    """Table and page, made again in a folder of their own and compared byte by byte."""
    table_dir, report_dir = Path(matrix.table_path).parent, Path(matrix.report_path).parent
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder)

        def table() -> None:
            frame = numbers.tidy([cell.paths for cell in matrix.cells])
            numbers.write(frame, fresh / "table")
            noise.write(frame, fresh / "table", matrix.config.platform)
            _compare(fresh / "table", table_dir, "the records say otherwise")

        def report() -> None:
            page.write_page(numbers.read(table_dir), fresh / "report", title=matrix.config.title, published=published)
            _compare(fresh / "report", report_dir, "the table says otherwise")

        if findings.check(str(table_dir), table):
            findings.check(str(report_dir), report)
    findings.files += sum(1 for path in (*table_dir.glob("*"), *report_dir.glob("*")) if path.is_file())


def _compare(again: Path, stored: Path, why: str) -> None:
    for path in sorted(again.iterdir()):
        other = stored / path.name
        if not other.exists():
            raise DataError(f"{other}: missing")
        if other.read_bytes() == path.read_bytes():
            continue
        # The bytes of Parquet depend on the version of the library that wrote it; its rows must not.
        other_library = path.suffix == ".parquet" and _writer(other) != _writer(path)
        if not other_library or _rows(other) != _rows(path):
            raise DataError(f"{other}: {why}")


def _writer(path: Path) -> str:
    """The library that wrote a Parquet file."""
    try:
        return str(parquet.read_metadata(path).created_by)
    except (OSError, ValueError):
        raise DataError(f"{path}: not a table of numbers") from None


def _rows(path: Path) -> Any:
    try:
        return numbers.rows_of(numbers.read(path.parent))
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{path}: not a table of numbers ({error})") from None


def hanging_on(findings: Findings, matrix: Matrix) -> Iterator[tuple[Problem, list[str]]]:
    """Each problem with the ids of the published numbers that hang on its record (all, if it is table or page)."""
    try:
        frame = numbers.read(Path(matrix.table_path).parent)
    except DataError:
        frame = None
    for problem in findings.problems:
        if frame is None:
            yield problem, []
            continue
        of = frame[frame["record"] == problem.record]
        if problem.record.startswith("results/load/"):
            key = Path(problem.record).stem.rpartition("@")[2]
            cells = [cell for cell in matrix.cells if cell.load == key]
            paths = {path for cell in cells for path in (cell.load_path, cell.query_path, cell.recall_path)}
            of = frame[frame["record"].isin(paths)]
        elif problem.record.startswith("results/query/"):
            key = Path(problem.record).stem.rpartition("@")[2]
            of = frame[frame["record"].isin({problem.record, matrix.cell(key).recall_path})]
        ids = of if len(of) else frame
        yield problem, sorted(ids[ids["value"].notna()]["number_id"])
