"""Verify: is every published number still what its raw samples say, and every file what its record says?

Files are re-hashed against their records, records against the specs of the matrix and against the records that were
made from them. Then every number is made again: summaries from raw samples, recall from returned ids and exact
neighbours (where those are here), the tidy table from the records, the page from the table. One changed byte anywhere
is found, and the file and the numbers that hang on it are named. Cells are looked at one by one: memory is bounded.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as compute
import pyarrow.csv as csv
import pyarrow.parquet as parquet

from anncestry import verify_published
from anncestry.cells.matrix import Cell, Matrix
from anncestry.errors import DataError
from anncestry.findings import Findings, Problem
from anncestry.measure import fault, killed, publish, recall, samples, stream
from anncestry.metrics import latency, resources
from anncestry.progress import Progress
from anncestry.provenance import links, prune, records, schema
from anncestry.provenance.platform import IDENTITY, kept_facts
from anncestry.report import numbers

_RECORDS = ("load", "query", "recall")
"""Folders of results/ that hold records."""


def verify(matrix: Matrix, published: Path | None, quick: bool = False, partial: bool = False) -> Findings:
    """Verify everything that the matrix publishes in the working directory; with `quick`, re-hash only.

    With `partial`, what was not measured (and without it, table and page can't be made) is no problem.
    """
    pool = pa.default_memory_pool()
    # Arrow's own pools keep what thousands of small files needed once; the system's gives it back.
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        with records.hashing_once():
            return _Verifier(matrix, published, quick, partial).run()
    finally:
        pa.set_memory_pool(pool)


class _Verifier:
    def __init__(self, matrix: Matrix, published: Path | None, quick: bool, partial: bool) -> None:
        self.matrix, self.published, self.quick, self.partial = matrix, published, quick, partial
        self.findings = Findings()
        self._facts = numbers.Facts()
        self._machine = _machine_of(matrix, self.findings)
        self._data: dict[str, bool] = {}

    def run(self) -> Findings:
        """Every record, then what lies beside them, then table and page."""
        matrix, findings = self.matrix, self.findings
        loads = {each.load_path: each for cell in matrix.cells for each in (cell, *cell.chain)}
        with Progress("verify", len(loads) + len(matrix.cells) + 1, "record") as progress:
            for cell in loads.values():
                for path in (cell.download_path, cell.vectors_path):
                    self._data_record(path)
                loaded = self._record(cell.load_path, "load", cell.load)
                if loaded is not None and not self.quick:
                    findings.check(cell.load_path, functools.partial(_load, cell.load_path, loaded))
                progress.add(1)
            for cell in matrix.cells:
                self._cell(cell)
                progress.add(1)
            self._others()
            if self.published is not None:
                verify_published.figures(findings, self.published.parent)
            if not (self.partial and not Path(matrix.report_path).exists()):
                verify_published.hashes(findings, matrix)
                if not self.quick:
                    verify_published.contents(findings, matrix, self.published, self._facts)
            progress.add(1)
        return findings

    def _record(self, path: str, stage: str, key: str) -> dict[str, Any] | None:
        """A record that is whole, of the asked spec, and whose files and inputs are what it says; else None."""
        file, findings = Path(path), self.findings
        if self.partial and not file.exists():
            return None
        found: dict[str, Any] = {}

        def whole() -> None:
            body = records.read_record(file, stage=stage, key=key)
            schema.check(body, path, whole=True)
            if body["spec"] != self.matrix.spec(key, stage):
                raise DataError(f"{path}: its spec is not the one that its key stands for")
            findings.files += len(records.verify_outputs(file, body))
            _gates(path, body)
            _ceiling(path, body)
            self._same_machine(path, body)
            found.update(body)

        findings.records += 1
        if not findings.check(path, whole):
            return None
        for label, entry in found["inputs"].items():
            source = Path(entry["path"])
            if ".." in source.parts:
                findings.add(Problem(f"{path}: its {label} {source} lies outside of this folder", path))
                continue
            try:
                state = links.state(source, entry, label)
            except DataError:
                state = links.State.CHANGED
            if state is links.State.ABSENT:
                findings.absent.add(source.parts[0])
            elif state is links.State.CHANGED:
                sentence = f"{source}: is not the {label} that {path} was made from (sha256 differs)"
                findings.add(Problem(sentence, path))
        return found

    def _same_machine(self, path: str, body: Mapping[str, Any]) -> None:
        """The facts of the machine are those of the platform, and of every other record: nothing is mixed."""
        for name, value in self._machine.items():
            found = (body.get("platform") or {}).get(name, value)
            if found != value:
                raise DataError(
                    f"{path}: measured on a machine with {name} {found!r}, its platform "
                    f"{self.matrix.config.platform!r} has {value!r}: results of two machines are mixed"
                )
        self._facts.add(path, body)

    def _data_record(self, path: str) -> bool:
        """Whether data is here and is what its record says; looked at once."""
        if path not in self._data:
            file = Path(path)

            def whole() -> None:
                listed = records.verify_outputs(file, records.read_record(file))
                self.findings.files += len(listed)
                left = {*file.parent.glob(f"*{records.DAMAGED}"), *file.parent.glob(".*")}  # of killed jobs, too
                verify_published.refuse_others(file.parent, {file, *listed.values(), *left}, path)

            self._data[path] = os.path.lexists(path) and self.findings.check(path, whole)
        return self._data[path]

    def _cell(self, cell: Cell) -> None:
        findings = self.findings
        here = [self._data_record(path) for path in (cell.truth_path, cell.vectors_path)]
        measured = self._record(cell.query_path, "query", cell.query)
        scored = self._record(cell.recall_path, "recall", cell.recall)
        if measured is not None and scored is not None and scored["valid"] != measured["valid"]:
            findings.add(Problem(f"{cell.recall_path}: valid is not what {cell.query_path} says", cell.recall_path))
        if self.quick or measured is None:
            return
        findings.check(cell.query_path, lambda: _summary(cell, measured))
        findings.check(cell.query_path, lambda: _resources(cell.query_path, measured, _over_runs(measured)))
        if scored is not None and all(here):
            truth, vectors = Path(cell.truth_path), Path(cell.vectors_path)
            findings.check(cell.recall_path, lambda: _recall(cell, measured, scored, truth, vectors))

    def _others(self) -> None:
        """What else lies in results/: records of other experiments, platforms or epochs, counted, not mixed in."""
        ours = {
            path
            for cell in self.matrix.cells
            for path in (cell.load_path, cell.query_path, cell.recall_path, *(each.load_path for each in cell.chain))
        }
        counted: Counter[str] = Counter()
        for stage in _RECORDS:
            for file in sorted(Path("results", stage).rglob("*.json")):
                if str(file) not in ours:
                    self.findings.check(str(file), functools.partial(self._count, file, stage, counted))
            for file in sorted(Path("results", stage).rglob("[!.]*")):
                if not (file.is_dir() or file.suffix in (".json", records.DAMAGED) or prune.record_of(file).exists()):
                    self.findings.add(Problem(f"{file}: is of no record: remove it", str(file)))
        for file in sorted(Path("results/ceiling").glob("*.json")):
            self.findings.files += 1
            self.findings.check(str(file), functools.partial(_sealed, file, "ceiling"))
        if counted:
            listed = ", ".join(f"{count} {words}" for words, count in sorted(counted.items()))
            self.findings.remarks.append(f"results/ also holds what this experiment does not use: {listed}")

    def _count(self, file: Path, stage: str, counted: Counter[str]) -> None:
        spec = records.read_record(file, stage=stage)["spec"]
        epoch, mine = spec.get("epoch"), self.matrix.config.epochs.get(stage)
        platform = spec.get("platform", self.matrix.config.platform)
        words = f"{stage} records"
        if epoch != mine:
            words += f" of epoch {epoch} (now {mine})"
        if platform != self.matrix.config.platform:
            words += f" of platform {platform!r}"
        counted[words] += 1


def _machine_of(matrix: Matrix, findings: Findings) -> dict[str, Any]:
    """The facts that make the matrix' platform: declared in the config, else those kept by the first measurement."""
    platform = matrix.config.platform
    declared = matrix.config.platforms.get(platform, {}).get("expect")
    if declared:
        return {name: value for name, value in declared.items() if name in IDENTITY}
    file = Path(f"results/platform/{platform}.json")
    found: dict[str, Any] = {}

    if file.exists():
        findings.files += 1
        findings.check(str(file), lambda: found.update(kept_facts(file, platform)))
    return found


def _sealed(file: Path, stage: str) -> None:
    """A record of this stage whose seal is whole."""
    records.read_record(file, stage=stage)


def _ceiling(path: str, body: Mapping[str, Any]) -> None:
    """What a query record quotes of its client's ceiling is what the ceiling's own record says."""
    file = links.ceiling(body)
    if file is None:
        return
    quoted = body["client"]["ceiling"]
    record = records.read_record(file, stage="ceiling", key=quoted["record"])
    schema.check(record, file, whole=True)
    best = max(record["runs"], key=lambda run: run["qps"])
    for name in ("qps", "floor_ms", "cpu_us_per_query"):
        if not _equal(record[name], best[name]):
            raise DataError(f"{file}: {name} is {record[name]}, its runs say {best[name]}")
        if not _equal(quoted[name], record[name]):
            raise DataError(f"{path}: quotes a ceiling of {name} {quoted[name]}, {file} says {record[name]}")


def _gates(path: str, body: Mapping[str, Any]) -> None:
    """A record is valid exactly if all of its gates hold."""
    if "gates" in body and body["valid"] != all(gate["ok"] for gate in body["gates"]):
        raise DataError(f"{path}: says valid {body['valid']}, its gates say otherwise")


def _summary(cell: Cell, measured: Mapping[str, Any]) -> None:
    """The record's summary, made again from the raw samples."""
    work, probes = measured["spec"]["workload"], measured.get("probes")
    by_run = samples.by_run(Path(cell.samples_path), work)
    runs = publish.samples_of(work, by_run, probes)
    again = latency.summarise(runs)
    if not _equal(measured["histogram"], latency.histogram(runs)):
        raise DataError(f"{cell.query_path}: its histogram is not that of its samples")
    if not _equal(measured["steadiness"], publish.steadiness(runs)):
        raise DataError(f"{cell.query_path}: its steadiness is not that of its samples")
    if "cold" in measured:
        starts = [{"cold": start} for start in measured["cold"]["starts"]]
        if not _equal(measured["cold"], publish.cold(runs, starts)):
            raise DataError(f"{cell.query_path}: its cold starts are not what its samples say")
    if probes is not None and not _equal(probes, publish.probes_of(work, by_run, probes, probes)):
        raise DataError(f"{cell.query_path}: its probes are not what its samples say")
    for name, stored in measured["summary"].items():
        if not _equal(stored, again.get(name)):
            raise DataError(f"{cell.query_path}: {name} is {stored.get('value')}, its samples say {again.get(name)}")
    if "batch" in measured:
        nq = work["nq"]
        for name, value in (
            ("nq", nq),
            ("requests_per_s", again["qps"]),
            ("vectors_per_s", publish.vectors_per_s(nq, again["qps"])),
        ):
            if not _equal(measured["batch"].get(name), value):
                raise DataError(f"{cell.query_path}: {name} of its requests is not what its samples say")
    if "fault" in measured and not _equal(measured["fault"], fault.summary(runs, measured["fault"]["runs"])):
        raise DataError(f"{cell.query_path}: what clients saw of its fault is not what its samples say")
    if "stream" in measured:
        writes = parquet.ParquetFile(Path(cell.query_path).parent / measured["outputs"]["writes"]["path"]).read()
        for name, value in stream.summary(writes, work["duration_s"]).items():
            if not _equal(measured["stream"].get(name), value):
                raise DataError(
                    f"{cell.query_path}: {name} of its stream is {measured['stream'].get(name)}, its samples of the "
                    f"changes say {value}"
                )


def _load(path: str, loaded: Mapping[str, Any]) -> None:
    """The load's times, made again from the ends of its phases, and what was used in each of them."""
    phases = {name: (start_s, end_s) for name, start_s, end_s in loaded["phases"]}
    whole = (min(start for start, _ in phases.values()), max(end for _, end in phases.values()))
    if "upgrade_of" not in loaded["spec"]:  # an upgrade in place has the one phase, and no load time
        phases["load"] = whole
    for name, (start_s, end_s) in phases.items():
        if not math.isclose(loaded["times"][f"{name}_s"], end_s - start_s, rel_tol=1e-3, abs_tol=1e-3):
            raise DataError(f"{path}: {name}_s is {loaded['times'][f'{name}_s']}, its phases say {end_s - start_s}")
    if "kill" in loaded:
        killed.check(path, loaded["kill"])
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


def hanging_on(findings: Findings, matrix: Matrix) -> Iterator[tuple[Problem, list[str]]]:
    """Each problem with the ids of the published numbers that hang on its record (all, if it is table or page)."""
    if not findings.problems:
        return
    table = _supported(Path(matrix.table_path).parent)
    for problem in findings.problems:
        if table is None or problem.numbers:
            yield problem, sorted(problem.numbers)
            continue
        paths = _made_from(problem.record, matrix)
        of = table.filter(compute.is_in(table["record"], pa.array(sorted(paths), pa.string()))) if paths else table
        yield problem, sorted(of["number_id"].to_pylist())


def _supported(folder: Path) -> pa.Table | None:
    """Id and record of every number that has a value, from the first file of the table that can still be read."""
    columns = ["number_id", "record", "value"]
    readers: list[Callable[[], Any]] = [
        lambda: parquet.read_table(folder / "numbers.parquet", columns=columns),
        lambda: csv.read_csv(
            folder / "numbers.csv",
            convert_options=csv.ConvertOptions(include_columns=columns, column_types={"value": pa.float64()}),
        ),
    ]
    for read in readers:
        with contextlib.suppress(OSError, KeyError, UnicodeDecodeError, pa.ArrowException):
            table = read()
            return table.filter(compute.is_valid(table["value"]))
    return None


def _made_from(path: str, matrix: Matrix) -> set[str]:
    """Records whose numbers hang on the record `path`; empty where that are all (a table, a page, a platform)."""
    if path.startswith("data/"):
        on_truth = {cell.recall_path for cell in matrix.cells if cell.truth_path == path}
        on_data = [cell for cell in matrix.cells if path in (cell.download_path, cell.vectors_path)]
        return on_truth | {one for cell in on_data for one in (cell.load_path, cell.query_path, cell.recall_path)}
    key = Path(path).stem.rpartition("@")[2]
    if path.startswith("results/load/"):
        cells = [cell for cell in matrix.cells if cell.load == key]
        return {path} | {one for cell in cells for one in (cell.load_path, cell.query_path, cell.recall_path)}
    if path.startswith("results/query/"):
        return {path} | {cell.recall_path for cell in matrix.cells if cell.query == key}
    return {path} if path.startswith("results/recall/") else set()
