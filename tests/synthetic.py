"""A results directory of any size: one cell is measured, the others are made from it by hand, each consistent."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

from anncestry import workflow
from anncestry.cells.matrix import Cell, Matrix
from anncestry.provenance import records
from anncestry.provenance.attempts import Ledger
from anncestry.report.model import numbers
from anncestry.report.model.records import seal_report, seal_table
from tests.toy import ROOT, Toy


def results(folder: Path, cells: int) -> Matrix:
    """A matrix of `cells` cells, a multiple of 20, whose every record, sample and table is there and fits together."""
    toy = Toy.make(folder)
    toy.block["datasets"], toy.block["systems"] = ["blobs-l2"], ["red-1.0"]
    toy.block["topologies"], toy.block["workloads"] = ["standalone"], ["k5"]
    toy.snakemake()
    first = _matrix(folder).cells[0]
    bodies = {stage: _read(folder / getattr(first, f"{stage}_path")) for stage in ("load", "query", "recall")}
    topology, workload = toy.files["topologies"]["standalone"], toy.files["workloads"]["k5"]
    toy.files["topologies"].update({f"t{number}": dict(topology) for number in range(10)})
    toy.files["workloads"].update(
        {f"w{number}": {**workload, "timeout_s": 1.0 + number} for number in range(cells // 20)}
    )
    toy.block["systems"] = ["red-1.0", "blue-1.0"]
    toy.block["topologies"] = [f"t{number}" for number in range(10)]
    toy.block["workloads"] = [f"w{number}" for number in range(cells // 20)]
    toy.save()
    matrix = _matrix(folder)
    loads: dict[str, str] = {}
    for cell in matrix.cells:
        if cell.load not in loads:
            loads[cell.load] = _write(folder, matrix, cell, "load", bodies, {})
        query = _write(folder, matrix, cell, "query", bodies, {"load": (cell.load_path, loads[cell.load])})
        samples = bodies["query"]["outputs"]["samples"]["sha256"]
        _write(
            folder, matrix, cell, "recall", bodies,
            {"query": (cell.query_path, query), "samples": (cell.samples_path, samples)},
        )  # fmt: skip
    here = Path.cwd()
    os.chdir(folder)
    try:
        table, page = Path(matrix.table_path).parent, Path(matrix.report_path).parent
        frame = numbers.tidy([cell.paths for cell in matrix.cells])
        numbers.write(frame, table)
        seal_table(table, matrix.table, matrix.spec(matrix.table, "table"), frame)
        page.mkdir(parents=True)
        (page / "index.html").write_text("<!doctype html>\n")
        seal_report(page, matrix.report, matrix.spec(matrix.report, "report"), table)
    finally:
        os.chdir(here)
    return matrix


def _matrix(folder: Path) -> Matrix:
    return workflow.expand(workflow.Choice(folder / "config", "default"))


def _read(path: Path) -> dict:
    body = json.loads(path.read_text())
    for entry in body["outputs"].values():
        entry["source"] = str(path.parent / entry["path"])
    return body


def _write(
    folder: Path, matrix: Matrix, cell: Cell, stage: str, bodies: dict, inputs: dict[str, tuple[str, str]]
) -> str:
    """Write one record, its files linked to those that were measured; returns the sha256 of the record."""
    path = folder / getattr(cell, f"{stage}_path")
    path.parent.mkdir(parents=True, exist_ok=True)
    key = getattr(cell, stage)
    body = {**bodies[stage], "key": key, "spec": matrix.spec(key, stage)}
    body["inputs"] = copy.deepcopy(body["inputs"])
    for label, (source, digest) in inputs.items():
        body["inputs"][label].update(path=source, sha256=digest)
    outputs = {}
    for label, entry in body["outputs"].items():
        name = f"{path.stem}.{label}.parquet"
        os.link(entry["source"], path.parent / name)
        outputs[label] = {"path": name, "sha256": entry["sha256"], "bytes": entry["bytes"]}
    body["outputs"] = outputs
    body.update(
        {
            name: {"query": cell.query, "load": cell.load}[name[:-4]]
            for name in ("query_key", "load_key")
            if name in body
        }
    )
    if stage in ("load", "query"):
        body |= _attempts(folder, matrix, cell).quote(cell.query if stage == "query" else "")
    path.write_text(json.dumps(records.seal(body), indent=1) + "\n")
    return records.sha256_file(path)


def _attempts(folder: Path, matrix: Matrix, cell: Cell) -> Ledger:
    """The ledger of a cell's load: one attempt at it, and one at all that was measured on it."""
    ledger = Ledger(folder / Ledger.of(matrix.spec(cell.load, "load"), cell.load).path, "0" * 8)
    if not ledger.files():
        with ledger.attempt(stage="load"):
            pass
        with ledger.attempt(stage="session", queries=[each.query for each in matrix.cells if each.load == cell.load]):
            pass
    return ledger


_MEASURED = """
import re
from pathlib import Path
from anncestry import cli, verify_published
verify_published.PAGE_ROWS_MAX = 0
status = cli.main(["verify"])
# Not ru_maxrss: that begins with what the parent process had.
print(status, int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) // 1024)
"""


def verify(folder: Path) -> tuple[int, int, str]:
    """Exit status of `anncestry verify` in a process of its own, its largest resident memory in MiB, what it said."""
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "ANNCESTRY_CONFIG": str(folder / "config")},
        capture_output=True,
        text=True,
        check=True,
    )
    status, peak_mib = done.stdout.split()[-2:]
    return int(status), int(peak_mib), done.stdout + done.stderr
