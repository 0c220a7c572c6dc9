"""Verify every published number against its raw samples, and every file against its record.

This hashes files against their records, and compares records with the specs of the matrix and with the records made
from them. It then recomputes every number: summaries from raw samples, recall from returned ids and exact neighbours
(if they are here), the tidy table from the records, the page from the table. It detects any changed byte and names the
file and the numbers that depend on it. It processes cells one by one, so memory is bounded.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as compute
import pyarrow.csv as csv
import pyarrow.parquet as parquet

from anncestry import verify_gates, verify_published
from anncestry.cells import plan
from anncestry.cells.indexes import effort_of
from anncestry.cells.matrix import Cell, Matrix, Pair
from anncestry.cells.stage import RESULTS, STAGES, stage_at
from anncestry.datasets import formats, payload
from anncestry.datasets.sources import changed_since
from anncestry.errors import DataError, UserError
from anncestry.measure import judge, load, pair, publish, recall, samples
from anncestry.measure.duet import SIDES, workload_of
from anncestry.measure.runs import Published, measuring_of
from anncestry.metrics import defects, disturbance, latency, resources, rounds
from anncestry.metrics.duet import to_stop_percent
from anncestry.progress import Progress
from anncestry.provenance import gates, prune, records
from anncestry.provenance.attempts import Ledger, lines_of
from anncestry.provenance.platform import IDENTITY, kept_facts
from anncestry.report.model import numbers
from anncestry.verify_gates import Remade
from anncestry.verify_published import Findings, Problem


def verify(matrix: Matrix, quick: bool = False, partial: bool = False) -> Findings:
    """Verify everything that the matrix publishes in the working directory; with `quick`, re-hash only.

    With `partial`, what was not measured (and without it, table and page can't be made) is no problem.
    """
    pool = pa.default_memory_pool()
    # Arrow's own pools keep what thousands of small files needed once; the system's gives it back.
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        with records.hashing_once():
            return _Verifier(matrix, quick, partial).run()
    finally:
        pa.set_memory_pool(pool)


class _Verifier:
    def __init__(self, matrix: Matrix, quick: bool, partial: bool) -> None:
        self.matrix, self.quick, self.partial = matrix, quick, partial
        self.findings = Findings()
        self._facts = numbers.Facts()
        self._machine = _machine_of(matrix, self.findings)
        self._data: dict[str, bool] = {}
        self._kept = verify_gates.Data()
        self._listed: dict[Path, set[Path] | None] = {}
        """Of the record that was asked about last."""

    def run(self) -> Findings:
        """Every record, then what lies beside them, then table and page."""
        matrix, findings = self.matrix, self.findings
        loads = {cell.load_path: cell for cell in matrix.loaded}
        with Progress("verify", len(loads) + len(matrix.measured) + 1, "record") as progress:
            for cell in loads.values():
                for stage in ("download", "normalize"):
                    self._data_record(cell, stage)
                loaded = self._record(cell.load_path, "load", cell.load)
                if loaded is not None and not self.quick:
                    fewer = matrix.config.datasets[cell.dataset].zero_vectors == "leave_out"
                    self._compare(cell.load_path, _load(cell.load_path, loaded, fewer))
                progress.add(1)
            for cell in matrix.cells:
                self._cell(cell)
                progress.add(1)
            for each in matrix.pairs:
                self._pair(each)
                progress.add(1)
            self._others()
            verify_published.figures(findings)
            if not (self.partial and not Path(matrix.report_path).exists()):
                verify_published.hashes(findings, matrix)
                if not self.quick:
                    verify_published.contents(findings, matrix, self._facts)
            progress.add(1)
        return findings

    def _record(self, path: str, stage: str, key: str) -> dict[str, Any] | None:
        """A record that is whole, of the asked spec, and whose files and inputs are what it says; else None."""
        file, findings = Path(path), self.findings
        if self.partial and not file.exists():
            return None
        findings.records += 1
        body: dict[str, Any] = {}

        def whole() -> None:
            body.update(records.read_record(file, stage=stage, key=key))
            records.check_schema(body, path, whole=True)
            if body["spec"] != self.matrix.spec(key, stage):
                raise DataError(f"{path}: its spec does not match its key")
            findings.files += len(records.verify_outputs(file, body))
            if "gates" in body and body["valid"] != all(gate["ok"] for gate in body["gates"]):
                raise DataError(f"{path}: `valid` is {body['valid']}, but its gates give the opposite")
            _ceiling(path, body)
            if stage in ("load", "query", "pair"):
                for part in ("attempts", *(("disturbance",) if stage != "pair" else ())):
                    if part not in body:
                        raise DataError(f"{path}: has no part `{part}`, which every record of this stage has")
                ledger, asked = Ledger.of_record(body)
                ledger.check(body["attempts"], asked)
            self._same_machine(path, body)

        if not findings.check(path, whole):
            return None
        for label, entry in body["inputs"].items():
            self._input(path, label, entry)
        return body

    def _input(self, path: str, label: str, entry: Mapping[str, Any]) -> None:
        """An input of a record, if it is here, is what the record says."""
        source = Path(entry["path"])
        if ".." in source.parts:
            self.findings.add(Problem(f"{path}: its {label} {source} is outside this folder", path))
            return
        try:
            state = records.state(source, entry, label)
        except DataError:
            state = records.State.CHANGED
        if state is records.State.ABSENT:
            self.findings.absent.add(source.parts[0])
        elif state is records.State.CHANGED:
            self.findings.add(Problem(f"{source}: differs from the {label} of {path} (sha256)", path))

    def _same_machine(self, path: str, body: Mapping[str, Any]) -> None:
        """The facts of the machine are those of the platform, and of every other record: nothing is mixed."""
        for name, value in self._machine.items():
            measured_on = (body.get("platform") or {}).get(name, value)
            if measured_on != value:
                raise DataError(
                    f"{path}: measured on a machine with {name} {measured_on!r}, its platform "
                    f"{self.matrix.config.platform!r} has {value!r}: results of two machines are mixed"
                )
        self._facts.add(path, body)

    def _data_record(self, cell: Cell, stage: str) -> bool:
        """Whether data is here, is what its record says, and is of the asked spec and content; looked at once."""
        path = STAGES[stage].path(cell)
        if path not in self._data:
            whole = partial(self._data_whole, cell, stage, Path(path))
            self._data[path] = os.path.lexists(path) and self.findings.check(path, whole)
        return self._data[path]

    def _data_whole(self, cell: Cell, stage: str, path: Path) -> None:
        left = {*path.parent.glob(f"*{records.DAMAGED}"), *path.parent.glob(".*")}  # of killed jobs, too
        key = STAGES[stage].key_of(cell)
        body = verify_published.whole(self.findings, path, left, stage=stage, key=key)
        # That of a download says also where it may be had from, which is not in the key.
        asked = self.matrix.spec(key, stage)
        if {name: body["spec"].get(name) for name in asked} != asked:
            raise DataError(f"{path}: its spec does not match its key")
        if stage == "download" and not self.quick:
            pinned = self.matrix.config.datasets[cell.origin].content
            _compare(str(path), _content(path.parent, body["content"], pinned))
            self.findings.remarks += [
                f"{file}: changed since it was read: the numbers of dataset {cell.dataset} are of what it was; make "
                "what it is now a dataset of another name"
                for file in changed_since(body["source"])
            ]
        for label, entry in body["inputs"].items():
            self._input(str(path), label, entry)

    def _cell(self, cell: Cell) -> None:
        findings = self.findings
        here = [self._data_record(cell, stage) for stage in ("truth", "normalize")]
        measured = self._record(cell.query_path, "query", cell.query)
        scored = self._record(cell.recall_path, "recall", cell.recall)
        if measured is not None and scored is not None and scored["valid"] != measured["valid"]:
            findings.add(Problem(f"{cell.recall_path}: `valid` differs from {cell.query_path}", cell.recall_path))
        if self.quick or measured is None:
            return
        self._compare(cell.query_path, _query(cell, measured))
        self._compare(cell.query_path, _query_resources(cell, measured))
        self._answers(cell.query_path, cell, measured, here)
        if scored is not None and all(here):
            self._compare(cell.recall_path, _recall(cell, measured, scored))
        findings.unscored += scored is not None and not all(here)

    def _pair(self, paired: Pair) -> None:
        here = [self._data_record(paired.a, stage) for stage in ("truth", "normalize")]
        measured = self._record(paired.path, "pair", paired.pair)
        if measured is None or self.quick:
            return
        self._compare(paired.path, _pair(paired, measured, all(here)))
        for side, cell in zip(SIDES, paired.sides, strict=True):
            self._answers(paired.path, cell, measured, here, side)
        self.findings.unscored += not all(here)

    def _answers(
        self, path: str, cell: Cell, measured: Mapping[str, Any], here: Sequence[bool], side: str = ""
    ) -> None:
        """Gates of a query, or of a `side` of a pair, that more than its times decide; `here`: truth, and vectors."""
        spec, kept = measured["spec"], self._kept
        workload = workload_of(spec, side) if side else spec["workload"]
        files = {label: Path(path).parent / entry["path"] for label, entry in measured["outputs"].items()}
        data = (cell.vectors_path, cell.vectors)
        referred = all(here) and not side and workload.get("filter") is None

        def remade() -> Iterator[Remade]:
            runs = verify_gates.Kept(
                workload,
                spec["platform"],
                files[f"samples_{side}" if side else "samples"],
                files.get("writes"),
                self.matrix.spec(cell.load, "load"),
                _input_record(measured, f"load_{side}" if side else "load"),
                kept.vectors(*data) if here[1] else None,
                kept.asked(*data, workload, spec["seed"]) if here[1] else None,
                recall.Truth.read(Path(cell.truth_path), Path(data[0])) if referred else None,
                paired=bool(side),
            )
            if not side:
                yield from runs.of_query(measured)
            for each in measured["rounds"] if side else ():
                of_side = runs.of_side(each["sides"][side], each["run"])
                yield from ((f"side {side}: {said}", stored, again) for said, stored, again in of_side)

        self._compare(path, remade())

    def _compare(self, path: str, remade: Iterable[Remade]) -> None:
        self.findings.check(path, lambda: _compare(path, remade))

    def _others(self) -> None:
        """What else lies in results/: records of other experiments, platforms or epochs, counted, not mixed in."""
        stages = (*RESULTS, "pair")
        ours = plan.files(self.matrix, stages)
        counted: Counter[str] = Counter()
        for stage in (STAGES[name] for name in stages):
            for file in sorted(stage.folder.rglob("[!.]*.json")):  # hidden ones are of killed jobs
                if str(file) not in ours:
                    self.findings.check(str(file), partial(self._count, file, stage.spec, counted))
            for file in sorted(stage.folder.rglob("[!.]*")):
                if not (file.is_dir() or file.suffix in (".json", records.DAMAGED) or self._is_listed(file)):
                    self.findings.add(Problem(f"{file}: no record lists this file; remove it", str(file)))
        for file in sorted(STAGES["ceiling"].folder.glob("[!.]*.json")):
            self.findings.files += 1
            self.findings.check(str(file), partial(records.read_record, file, stage="ceiling"))
        for file in sorted(STAGES["attempts"].folder.rglob("*.jsonl")):
            self.findings.files += 1
            self.findings.check(str(file), partial(lines_of, file))
        if counted:
            listed = ", ".join(f"{count} {words}" for words, count in sorted(counted.items()))
            self.findings.remarks.append(f"results/ also holds records that this experiment does not use: {listed}")

    def _is_listed(self, file: Path) -> bool:
        """Whether the record beside it lists it; one that can't be read is a problem of its own."""
        record = prune.record_of(file)
        if record not in self._listed:
            self._listed = {record: None}
            with contextlib.suppress(UserError, KeyError, TypeError, AttributeError):
                outputs = records.read_record(record)["outputs"].values()
                self._listed = {record: {record.parent / entry["path"] for entry in outputs}}
        listed = self._listed[record]
        return record.exists() if listed is None else file in listed

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
    file = Path(STAGES["platform"].output.format(platform=platform))
    kept: dict[str, Any] = {}
    if file.exists():
        findings.files += 1
        findings.check(str(file), lambda: kept.update(kept_facts(file, platform)))
    elif any(Path(cell.load_path).exists() for cell in matrix.loaded):
        findings.add(Problem(f"{file}: missing: it holds the machine that all of this was measured on", str(file)))
    return kept


def _compare(path: str, remade: Iterable[Remade]) -> None:
    """DataError for the first part of the record `path` that differs from what it was made from."""
    for problem, stored, again in remade:
        if not _equal(stored, again):
            raise DataError(f"{path}: {problem}")


def _input_record(body: Mapping[str, Any], label: str) -> dict[str, Any] | None:
    """The record that is an input of another, if it lies here as it was then."""
    entry = body["inputs"].get(label)
    here = entry is not None and records.state(Path(entry["path"]), entry) is records.State.SAME
    return records.read_record(Path(entry["path"])) if here else None


def _content(folder: Path, stated: Mapping[str, str], pinned: Mapping[str, str]) -> Iterator[Remade]:
    """The digests of a dataset's arrays: as its record states them, as the config pins them, and of what lies here."""
    for name, digest in stated.items():
        declared = pinned.get(name) or digest
        yield f"its {name} have sha256 {digest[:12]}…, but the config declares {declared[:12]}…", digest, declared
        found = payload.content(folder) if name == "payload" else formats.content(folder / f"{name}.npy")
        yield f"its {name} have sha256 {found[:12]}…, but the record says {digest[:12]}…", digest, found


def _ceiling(path: str, body: Mapping[str, Any]) -> None:
    """The ceiling that a query record quotes is the best of its runs; so is that in the ceiling's own record.

    Two clones may each have measured one, and a merge keeps one file: a quote brings the runs that it is the best of.
    (Earlier ones didn't, and must be those of the file.)
    """
    file = records.ceiling_of(body)
    if file is None:
        return
    quoted = body["client"]["ceiling"]
    record = records.read_record(file, stage="ceiling", key=quoted["record"])
    records.check_schema(record, file, whole=True)
    for where, stated, runs in (
        (str(file), record, record["runs"]),
        (f"{path}: its ceiling", quoted, quoted.get("runs", record["runs"])),
    ):
        best = max(runs, key=lambda run: run["qps"])
        _compare(
            where,
            (
                (f"{name} is {stated[name]}, but the runs give {best[name]}", stated[name], best[name])
                for name in ("qps", "floor_ms", "cpu_us_per_query")
            ),
        )


def _query(cell: Cell, measured: Mapping[str, Any]) -> Iterator[Remade]:
    """The summary of a measurement, and the parts of its features, from its files."""
    folder = Path(cell.query_path).parent
    files = {label: folder / entry["path"] for label, entry in measured["outputs"].items()}
    published = Published(measured["spec"]["workload"], files, stored=measured)
    columns = set(parquet.read_schema(files["samples"]).names)
    yield "its samples don't say which answers have a defect", "defect" in columns, True
    told = [{**measured, **of_run} for of_run in measured["rounds"]]
    again = judge.gates_again(published.workload, files["samples"], published.by_run, told)
    for gate in publish.combine([[asdict(gate) for gate in of_run] for of_run in again]):
        yield verify_gates.beside(measured["gates"], gate)
    runs, summary = published.of_runs, published.summary
    yield "its histogram does not match its samples", measured["histogram"], latency.histogram(runs)
    yield "its steadiness does not match its samples", measured["steadiness"], publish.steadiness(runs)
    yield "its defects do not match its samples", measured.get("defects"), defects.summarise(runs)
    for name in summary | measured["summary"]:
        known, given = measured["summary"].get(name), summary.get(name)
        yield f"{name} is {(known or {}).get('value')}, but the samples give {given}", known, given
    tuning, asked = measured["tuning"], measured["spec"]["workload"]
    effort = effort_of(asked) if tuning is None else tuning["ef_search"]
    yield f"ef_search is {measured['ef_search']}, but it was asked with {effort}", measured["ef_search"], effort
    used = published.server_cpu_us_per_query
    yield "its server_cpu_us_per_query does not match its samples", measured.get("server_cpu_us_per_query"), used
    counted = publish.searches(measured["rounds"]) if any(each["counters"] for each in measured["rounds"]) else None
    yield "its searches by node do not match what its rounds counted", measured.get("searches"), counted
    if "rounds" in published.workload:
        rates, rule, stated = summary["qps"]["runs"], published.workload["rounds"], measured["need"]
        decision = rounds.decide(rates, rule)
        yield "its rounds' decision does not match its samples", {name: stated.get(name) for name in decision}, decision
        wrong = rounds.problem(rates, rule, stated)
        yield f"its rounds break the declared rule: {wrong}", wrong, ""
    for measuring in measuring_of(published.workload):
        yield from measuring.again(published)


def _pair(stored: Pair, measured: Mapping[str, Any], with_truth: bool) -> Iterator[Remade]:
    """The ratios of a pair, its recall and all else that its samples and slices give."""
    folder, spec = Path(stored.path).parent, measured["spec"]
    files = {label: folder / entry["path"] for label, entry in measured["outputs"].items()}
    truth = Path(stored.a.truth_path) if with_truth else None
    again = pair.made_again(spec, files, measured["rounds"], truth, Path(stored.a.vectors_path))
    for name, value in again.items():
        known = measured[name]
        if name == "sides":
            known = {side: {part: known[side].get(part) for part in of} for side, of in value.items()}
        yield f"its {name} are not those that its samples and slices give", known, value
    for side in SIDES:
        workload, path = workload_of(spec, side), files[f"samples_{side}"]
        told = [each["sides"][side] for each in measured["rounds"]]
        judged = judge.gates_again(workload, path, samples.by_run(path, workload), told)
        for each, of_servers in zip(told, judged, strict=True):
            for gate in of_servers:
                yield verify_gates.beside(each["gates"], asdict(gate))
    rule = spec["workload"]["rounds"]
    blocks = pair.Measured(files, spec["slices"]).blocks("qps")
    decision = rounds.decide(blocks, rule, to_stop_percent)
    stated = {name: measured["need"].get(name) for name in decision}
    yield "its decision on further pairs of servers does not match its slices", stated, decision
    wrong = rounds.problem(blocks, rule, measured["need"], to_stop_percent)
    yield f"its pairs of servers break the declared rule: {wrong}", wrong, ""
    windows, table = [each["window_s"] for each in measured["rounds"]], _samples_of_processes(stored.path, measured)
    yield _RESOURCES, measured["resources"], resources.over_runs(table, "query", windows)


def _load(path: str, loaded: Mapping[str, Any], fewer: bool) -> Iterator[Remade]:
    """The times of a load, from the ends of its phases, the resources in each of them, and its gates.

    With `fewer`, rows of its dataset may have been left out: how many, only its vectors say.
    """
    data = loaded["spec"]["dataset"]
    yield f"dim is {loaded['dim']}, but its dataset has {data['dim']}", loaded["dim"], data["dim"]
    rows, vectors = data["rows"], Path(loaded["inputs"]["vectors"]["path"])
    if fewer:
        rows = records.read_record(vectors)["rows"] if vectors.exists() else min(loaded["rows"], rows)
    yield f"rows is {loaded['rows']}, but its dataset has {rows}", loaded["rows"], rows
    phases = {name: (start_s, end_s) for name, start_s, end_s in loaded["phases"]}
    whole = (min(start for start, _ in phases.values()), max(end for _, end in phases.values()))
    if "upgrade_of" not in loaded["spec"]:  # an upgrade in place has the one phase, and no load time
        phases["load"] = whole
    for name, (start_s, end_s) in phases.items():
        stored, again = loaded["times"][f"{name}_s"], end_s - start_s
        close = math.isclose(stored, again, rel_tol=1e-6, abs_tol=1e-6)
        yield f"{name}_s is {stored}, but its phases give {again}", close, True
    if "kill" in loaded:
        load.check_lost(path, loaded["kill"])
    kept = loaded["storage"]
    if kept["net_mib"] is not None:
        net_mib = sum(kept["components"][name] for name in kept["net_components"])
        yield f"net_mib is {kept['net_mib']}, but its components give {net_mib}", kept["net_mib"], net_mib
    table = _samples_of_processes(path, loaded)
    used = resources.by_group(table, {name: [at] for name, at in phases.items()})
    yield _RESOURCES, loaded["resources"], used
    phase = "upgrade" if "upgrade_of" in loaded["spec"] else "load"
    yield _DISTURBANCE, loaded["disturbance"], _disturbance(loaded["disturbance"], used, phase)
    yield from verify_gates.of_load(loaded, _input_record(loaded, "older"))


def _query_resources(cell: Cell, measured: Mapping[str, Any]) -> Iterator[Remade]:
    windows, table = measured["windows_s"], _samples_of_processes(cell.query_path, measured)
    yield _RESOURCES, measured["resources"], resources.over_runs(table, "query", windows)
    by_run = [table.filter(compute.equal(table["run"], number)) for number in range(len(windows))]
    runs = [
        _disturbance(run, resources.by_group(by_run[number], {"query": [windows[number]]}), "query")
        for number, run in enumerate(measured["disturbance"]["runs"])
    ]
    yield _DISTURBANCE, measured["disturbance"], disturbance.over_runs(runs)
    limits = measured.get("storage_path", {}).get("limits")
    if limits is not None:
        read = [resources.of_device(each, [window]) for each, window in zip(by_run, windows, strict=True)]
        again = publish.combine([[asdict(gates.storage_limits(limits["asked"], each))] for each in read])
        stored = [gate for gate in measured["gates"] if gate["gate"] == again[0]["gate"]]
        yield f"its gate on storage limits differs from what its samples give: {again[0]['detail']}", stored, again


_RESOURCES = "its resources differ from those recomputed from its samples of processes"
_DISTURBANCE = "its disturbance differs from that recomputed from its samples of processes"


def _samples_of_processes(path: str, record: Mapping[str, Any]) -> pa.Table:
    """The samples from which CPU, memory and IO were found."""
    return parquet.ParquetFile(Path(path).parent / record["outputs"]["resources"]["path"]).read()


def _disturbance(stored: Mapping[str, Any], used: Mapping[str, Any], phase: str) -> dict[str, Any]:
    """What disturbed a phase: what others used, again, and by the stored limits what was above them."""
    return disturbance.judged({**stored, **disturbance.of_phase(used, phase)}, stored["limits"])


def _recall(cell: Cell, measured: Mapping[str, Any], scored: Mapping[str, Any]) -> Iterator[Remade]:
    """The recall, from the returned ids."""
    again = recall.score(measured, Path(cell.samples_path), Path(cell.truth_path), Path(cell.vectors_path))
    for name, value in again.items():
        stored = scored.get(name)
        told = f"{name} is {stored}, but the samples give {value}"
        if name == "by_query":
            told = "recalls by query are not those that the samples give"
        yield told, stored, value


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
        rows = table.filter(compute.is_in(table["record"], pa.array(sorted(paths), pa.string()))) if paths else table
        yield problem, sorted(rows["number_id"].to_pylist())


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
    stage = stage_at(path)
    if stage is None or (stage.name not in (*RESULTS, "pair") and stage.top != "data"):
        return set()
    made = set() if stage.top == "data" else {path}
    for cell in matrix.cells:
        parts = [STAGES[name].path(cell) for name in ("download", "normalize", "record", "query", "recall")]
        if path in parts:
            made.update(parts[max(2, parts.index(path)) :])
        elif path == cell.truth_path:
            made.add(cell.recall_path)
    for paired in matrix.pairs:
        names = ("download", "normalize", "truth", "record")
        if path in {STAGES[name].path(side) for side in paired.sides for name in names}:
            made.add(paired.path)
    return made
