"""The commands that rules of the workflow call: one function a rule, given the key of what it makes."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from anncestry.cells.matrix import PUBLISHED
from anncestry.commands.run import Run, cache_dir
from anncestry.errors import Damaged, DataError, ServerError, UserError


def artifact(run: Run, options: argparse.Namespace) -> None:
    """Fetch or build what a system runs."""
    from anncestry.runtimes import artifacts

    spec = run.matrix.spec(options.key, "artifact")
    artifacts.run(spec, Path(run.matrix.cell(options.key).artifact_path).parent, cache_dir(), options.key)


def download(run: Run, options: argparse.Namespace) -> None:
    """Get a dataset from the first of its sources that has it, verified by content."""
    from anncestry.datasets import download as stage

    cell = run.matrix.cell(options.key)
    spec = run.matrix.spec(options.key, "download")
    config = run.matrix.config
    entry = config.datasets[spec["name"]]
    stage.run(
        {**spec, "metric": entry["metric"], "sources": entry["sources"]},
        Path(cell.download_path).parent,
        cache_dir(),
        options.key,
    )


def normalize(run: Run, options: argparse.Namespace) -> None:
    """Prefix, normalised vectors and metadata."""
    from anncestry.datasets import normalize as stage

    cell = run.matrix.cell(options.key)
    spec = run.matrix.spec(options.key, "normalize")
    stage.run(spec, Path(cell.download_path).parent, Path(cell.vectors_path).parent, options.key)


def truth(run: Run, options: argparse.Namespace) -> None:
    """Exact neighbours."""
    from anncestry.datasets import shards
    from anncestry.datasets import truth as stage

    cell = run.matrix.cell(options.key)
    spec = run.matrix.spec(options.key, "truth")
    parts = [Path(path) for path in run.matrix.truth_parts(cell)]
    gathered = shards.gather(parts, options.key) if parts else None
    stage.run(spec, Path(cell.vectors_path).parent, Path(cell.truth_path).parent, options.key, gathered)


def truth_part(run: Run, options: argparse.Namespace) -> None:
    """Exact neighbours within one shard of the base."""
    from anncestry.datasets import shards

    cell = run.matrix.cell(options.key)
    parts = run.matrix.truth_parts(cell)
    if not 1 <= options.part <= len(parts):
        raise UserError(f"truth {options.key} has {len(parts) or 'no'} parts: there is no part {options.part}")
    spec = run.matrix.spec(options.key, "truth")
    out = Path(parts[options.part - 1])
    shards.run(spec, options.key, Path(cell.vectors_path).parent, out, options.part, len(parts))


def load(run: Run, options: argparse.Namespace) -> None:
    """Load a dataset into a system, or open an older system's data with it, measured."""
    run.go_apart([options.key])
    from anncestry.measure import load as stage
    from anncestry.measure import upgrade

    cell = run.matrix.cell(options.key)
    if cell.older is not None:
        upgrade.run(
            run.matrix.spec(options.key, "load"),
            options.key,
            run.place(cell),
            Path(cell.older.index_path),
            Path(cell.older.load_path),
            Path(cell.index_path).parent,
        )
        return
    stage.run(
        run.matrix.spec(options.key, "load"),
        options.key,
        run.place(cell),
        Path(cell.index_path).parent,
    )


def record(run: Run, options: argparse.Namespace) -> None:
    """Publish the record of a load."""
    from anncestry.provenance.promote import promote

    cell = run.matrix.cell(options.key)
    promote(Path(cell.index_path), Path(cell.load_path), stage="load", key=options.key)


def session(run: Run, options: argparse.Namespace) -> None:
    """Measure one run of some cells of one load, on one server."""
    run.go_apart(options.queries)
    from anncestry.measure import session as stage

    cell = run.matrix.cell(options.queries[0])
    outcome = stage.run(
        options.key,
        options.round,
        {query: run.matrix.spec(query, "query") for query in options.queries},
        Path(cell.load_path),
        Path(cell.index_path),
        run.place(cell),
        Path(f"scratch/session/{options.key}"),
    )
    failed = sum(state != "ok" for state in outcome.values())
    if failed:
        print(f"{failed} of {len(outcome)} cells failed: each says why when it is kept", file=sys.stderr)


def query(run: Run, options: argparse.Namespace) -> None:
    """Publish the runs of a cell as one measurement, or say why its sessions have not measured them."""
    from anncestry.measure import publish
    from anncestry.provenance import records

    cell = run.matrix.cell(options.key)
    missing = [number for number in range(run.matrix.runs(cell)) if not Path(cell.run_path(number)).exists()]
    if missing:
        if not options.sessions:
            raise DataError(
                f"{cell.query_path} is there already: `anncestry drop {options.key} --yes` has it measured again"
            )
        said: dict[str, str] = {}
        for session_file in map(Path, options.sessions):
            try:
                tried = records.read_json(session_file)
            except Damaged as error:
                tried = {"round": missing[0], "cells": {options.key: str(error)}}
            state = tried["cells"].get(options.key, "was not part of the session")
            if state == "ok" and tried["round"] in missing:
                state = "was measured, and is not there any more"
            if state != "ok":
                # The other cells still need this session; the next call must not find it complete, but try again.
                session_file.with_name("failed").touch()
                said.setdefault(state, f"run {tried['round'] + 1}: {state}")
        where = f"{cell.workload} on {cell.system}, {cell.dataset}, {cell.topology}"
        raise ServerError(f"{where}: {'; '.join(said.values())}")
    publish.run(
        run.matrix.spec(options.key, "query"),
        options.key,
        Path(cell.measured_path),
        Path(cell.load_path),
        Path(cell.vectors_path),
        Path(cell.query_path),
    )
    shutil.rmtree(cell.measured_path)


def recall(run: Run, options: argparse.Namespace) -> None:
    """Recall of a cell's measured answers."""
    from anncestry.measure import recall as stage

    cell = run.matrix.cell(options.key)
    stage.run(
        run.matrix.spec(options.key, "recall"),
        options.key,
        Path(cell.query_path),
        Path(cell.truth_path),
        Path(cell.vectors_path),
        Path(cell.recall_path),
    )


def table(run: Run, options: argparse.Namespace) -> None:
    """All numbers of an experiment as one tidy table."""
    from anncestry.provenance import records
    from anncestry.report import numbers, sealed

    spec = run.matrix.spec(options.key, "table")
    frame = numbers.tidy([cell.paths for cell in run.matrix.cells])
    folder = Path(run.matrix.table_path).parent
    records.clear(folder)  # of what a killed job left: the files in it are those of its record
    numbers.write(frame, folder)
    sealed.table(folder, options.key, spec, frame)
    # Every cell is published: what sessions left (failed attempts among it) is of no use any more.
    shutil.rmtree("scratch/session", ignore_errors=True)


def report(run: Run, options: argparse.Namespace) -> None:
    """The page of an experiment."""
    from anncestry.provenance import records
    from anncestry.report import numbers, page, sealed

    spec = run.matrix.spec(options.key, "report")
    table_dir, folder = Path(run.matrix.table_path).parent, Path(run.matrix.report_path).parent
    table = table_dir / "record.json"
    records.verify_outputs(table, records.read_record(table, stage="table", key=run.matrix.table))
    frame, title = numbers.read(table_dir), run.matrix.config.title
    records.clear(folder)
    page.write_page(frame, folder, title=title, published=PUBLISHED, absent=run.matrix.absent)
    sealed.report(folder, options.key, spec, table_dir)


RULES: dict[str, Callable[[Run, argparse.Namespace], None]] = {
    "artifact": artifact,
    "download": download,
    "normalize": normalize,
    "truth_part": truth_part,
    "truth": truth,
    "load": load,
    "record": record,
    "session": session,
    "query": query,
    "recall": recall,
    "table": table,
    "report": report,
}


def add(commands: Any) -> None:
    """Add these commands to the program's parser."""
    for name, function in RULES.items():
        command = commands.add_parser(name, help=(function.__doc__ or "").split("\n")[0])
        command.add_argument("key")
        if name == "session":
            command.add_argument("round", type=int)
            command.add_argument("queries", nargs="+")
        if name == "truth_part":
            command.add_argument("part", type=int)
        if name == "query":
            command.add_argument("sessions", nargs="*")
        command.set_defaults(function=function)
