"""The commands of the workflow's rules: one function per rule, which takes the key of its output."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from anncestry import user_cache
from anncestry.cells.matrix import Cell, Pair
from anncestry.cells.plan import Session, command_of
from anncestry.cells.stage import STAGES
from anncestry.commands import Run, command
from anncestry.errors import Damaged, DataError, ServerError, UserError
from anncestry.provenance import platform, records, running

Spec = dict[str, Any]
Files = Mapping[str, Path]


def _files(run: Run, options: argparse.Namespace) -> dict[str, Path]:
    """The files of a job by label (`out`: the first that it makes), as its options or else the matrix have them."""
    stage, matrix = STAGES[options.command], run.matrix
    if options.command in ("table", "report"):
        out = matrix.table_path if options.command == "table" else matrix.report_path
        paths = {"table": matrix.table_path, "out": out}
    elif options.command in ("duet", "rounds"):
        paths = {"out": stage.output.format(key=options.key)}
    elif options.command == "pair":
        measured = matrix.pair(options.key)
        paths = {**stage.inputs(measured.a), "out": measured.path}
    else:
        cell = matrix.cell(options.queries[0] if options.command in _OF_MANY else options.key)
        more = {"part": options.part, "parts": len(matrix.truth_parts(cell))} if options.command == "truth_part" else {}
        paths = {**stage.inputs(cell, cell.older), "out": stage.path(cell, key=options.key, **more)}
    given = {label: path for label, path in vars(options).items() if label in paths and path is not None}
    if "older" in given:
        given |= dict(zip(stage.older, given["older"], strict=True))
    files = {label: Path(path) for label, path in (paths | given).items()}
    folder = files["out"].parent
    # A stage with a folder of its own begins by emptying it.
    empties = "{key}" in Path(stage.output).parent.name and folder != Path(paths["out"]).parent
    if empties and folder.exists() and any(folder.iterdir()):
        raise UserError(f"--out {files['out']}: {folder} is not empty: name a file in a folder of its own")
    return files


def artifact(run: Run, options: argparse.Namespace, spec: Spec, files: Files) -> None:
    """Fetch or build what a system runs."""
    from anncestry.runtimes import artifacts

    artifacts.run(spec, files["out"].parent, user_cache.folder(), options.key)


def download(run: Run, options: argparse.Namespace, spec: Spec, files: Files) -> None:
    """Download a dataset from its first source with the right content."""
    from anncestry.datasets import download as stage

    dataset = run.matrix.config.datasets[spec["name"]]
    spec = {**spec, "metric": dataset.metric, "sources": dataset.sources}
    stage.run(spec, files["out"].parent, user_cache.folder(), options.key)


def normalize(run: Run, options: argparse.Namespace, spec: Spec, files: Files) -> None:
    """Cut, normalise and describe the vectors of a dataset."""
    from anncestry.datasets import normalize as stage

    stage.run(spec, files["download"].parent, files["out"].parent, options.key)


def truth(run: Run, options: argparse.Namespace, spec: Spec, files: Files) -> None:
    """Compute exact neighbours."""
    from anncestry.datasets import truth as stage

    parts = options.parts or [Path(path) for path in run.matrix.truth_parts(run.matrix.cell(options.key))]
    gathered = (
        stage.gather(parts, options.key, records.identity(records.read_record(files["vectors"]))) if parts else None
    )
    stage.run(spec, files["vectors"].parent, files["out"].parent, options.key, gathered)


def truth_part(run: Run, options: argparse.Namespace, spec: Spec, files: Files) -> None:
    """Compute exact neighbours within one shard of the base."""
    from anncestry.datasets import truth as stage

    parts = run.matrix.truth_parts(run.matrix.cell(options.key))
    if not 1 <= options.part <= len(parts):
        raise UserError(f"truth {options.key} has {len(parts) or 'no'} parts; part {options.part} doesn't exist")
    stage.run_part(spec, options.key, files["vectors"].parent, files["out"], options.part, len(parts))


def load(run: Run, options: argparse.Namespace, spec: Spec, files: Files) -> None:
    """Measure the load of a dataset into a system, or its upgrade from an older system's data."""
    run.go_apart([options.key])
    from anncestry.measure import load as stage

    place = run.place(files["vectors"], files["artifact"])
    if "older" in files:
        stage.upgrade(spec, options.key, place, files["older"], files["older_record"], files["out"].parent)
    else:
        stage.run(spec, options.key, place, files["out"].parent)


def record(run: Run, options: argparse.Namespace, spec: Spec, files: Files) -> None:
    """Publish the record of a load."""
    records.promote(files["index"], files["out"], stage="load", key=options.key)


def session(run: Run, options: argparse.Namespace, spec: Spec, files: Files) -> None:
    """Measure one run of some cells of one load, on one server."""
    run.go_apart(options.queries)
    from anncestry.measure import session as stage

    outcome = stage.run(
        options.key,
        options.round,
        {query: run.matrix.spec(query, "query") for query in options.queries},
        files["load"],
        files["index"],
        run.place(files["vectors"], files["artifact"]),
        files["out"].parent,
    )
    failed = sum(state != "ok" for state in outcome.values())
    if failed:
        print(f"{failed} of {len(outcome)} cells failed: their query jobs report the reasons", file=sys.stderr)


def rounds(run: Run, options: argparse.Namespace, spec: Spec, files: Files) -> None:
    """Measure further rounds of the cells that need them, session by session."""
    from anncestry.measure import further

    choice = {"ANNCESTRY_CONFIG": str(run.choice.folder), "ANNCESTRY_EXPERIMENT": run.choice.experiment}

    def hold(session: Session) -> dict[str, str]:
        """In a process of its own, as each session has its own network."""
        queries = [cell.query for cell in session.cells]
        log = Path("logs") / session.stage.name / f"{session.key}.log"
        words = [sys.executable, "-m", "anncestry", "--log", str(log)]
        words += [session.stage.name, session.key, str(session.round), *queries]
        status = running.run_whole(words, env=os.environ | choice)
        if status:
            return dict.fromkeys(queries, f"its session ended with status {status}")
        return records.read_json(Path(session.path))["cells"]  # type: ignore[no-any-return]

    of_key = {cell.query: cell for cell in run.matrix.measured}
    decided = further.run(run.matrix, [of_key[query] for query in options.queries], hold)
    records.write_json(files["out"], decided)


def duet(run: Run, options: argparse.Namespace, spec: Spec, files: Files) -> None:
    """Measure some pairs of two loads on one fresh pair of servers."""
    run.go_apart([side["load"] for side in run.matrix.spec(options.queries[0], "pair")["sides"].values()])
    from anncestry.measure import duet as stage

    pairs = [run.matrix.pair(key) for key in options.queries]
    sides = [
        stage.Loaded(
            Path(side.load_path), Path(side.index_path), run.place(Path(side.vectors_path), Path(side.artifact_path))
        )
        for side in pairs[0].sides
    ]
    specs = {pair.pair: run.matrix.spec(pair.pair, "pair") for pair in pairs}
    outcome = stage.run(options.key, options.round, specs, sides, files["out"].parent)
    failed = sum(state != "ok" for state in outcome.values())
    if failed:
        print(f"{failed} of {len(outcome)} pairs failed: their jobs report the reasons", file=sys.stderr)


def pair(run: Run, options: argparse.Namespace, spec: Spec, files: Files) -> None:
    """Combine what was measured of a pair on all pairs of servers, or report why some is missing."""
    from anncestry.measure import pair as stage

    measured = run.matrix.pair(options.key)
    _refuse_missing(run, options, spec, measured)
    loads = {f"load_{name}": Path(side.load_path) for name, side in zip("ab", measured.sides, strict=True)}
    stage.run(spec, options.key, Path(measured.measured_path), loads, files["truth"], files["vectors"], files["out"])
    shutil.rmtree(measured.measured_path)


def _refuse_missing(run: Run, options: argparse.Namespace, spec: Spec, cell: Cell | Pair) -> None:
    """An error that says why, if runs of a cell or a pair are missing; its sessions will be tried again."""
    from anncestry.provenance.attempts import Ledger, count, words

    missing = [number for number in range(run.matrix.runs(cell)) if not Path(cell.run_path(number)).exists()]
    if not missing:
        return
    if not options.sessions and Path(cell.query_path).exists():
        raise DataError(
            f"{cell.query_path} exists already: to measure it again, run `anncestry drop {options.key} --yes` first"
        )
    if not options.sessions:
        raise DataError(f"{cell.run_path(missing[0])}: missing; sessions measure runs: `{command_of(run.matrix)}`")
    said: dict[str, str] = {}
    for session_file in map(Path, options.sessions):
        try:
            tried = records.read_json(session_file)
        except Damaged as error:
            tried = {"round": missing[0], "cells": {options.key: str(error)}}
        state = tried["cells"].get(options.key, "was not in the session")
        if state == "ok" and tried["round"] in missing:
            state = "was measured, but its files are missing"
        if state != "ok":
            # The other cells still need this session; the next call must not find it complete, but try again.
            session_file.with_name("failed").touch()
            said.setdefault(state, f"run {tried['round'] + 1}: {state}")
    where = f"{cell.workload} on {cell.system}, {cell.dataset}, {cell.topology}"
    tried = count(Ledger.of_measured(spec).lines(), options.key)
    raise ServerError(f"{where}: {'; '.join(said.values())} (so far {words(tried)})")


def query(run: Run, options: argparse.Namespace, spec: Spec, files: Files) -> None:
    """Combine the runs of a cell into one measurement, or report why runs are missing."""
    from anncestry.measure import publish

    cell = run.matrix.cell(options.key)
    _refuse_missing(run, options, spec, cell)
    # An earlier publication's, of other runs.
    scored = Path(STAGES["recall"].beside["scored"].format(key=cell.recall))
    scored.unlink(missing_ok=True)
    inputs = (Path(cell.measured_path), Path(cell.load_path), Path(cell.vectors_path))
    publish.run(spec, options.key, *inputs, files["out"], Path(cell.index_path))
    shutil.rmtree(cell.measured_path)
    if files["out"] == Path(cell.query_path) and Path(cell.truth_path).exists():
        # At once, as a process costs as much as most scores; the recall job moves it to its place. What is wrong with
        # it is for that job to say.
        from anncestry.measure import recall as scoring

        data = Path(cell.truth_path), Path(cell.vectors_path)
        with suppress(UserError):
            scoring.run(run.matrix.spec(cell.recall, "recall"), cell.recall, files["out"], *data, scored)


def recall(run: Run, options: argparse.Namespace, spec: Spec, files: Files) -> None:
    """Compute the recall of a cell's answers."""
    from anncestry.measure import recall as stage

    stage.run(spec, options.key, files["query"], files["truth"], files["vectors"], files["out"])


def table(run: Run, options: argparse.Namespace, spec: Spec, files: Files) -> None:
    """Write all numbers of an experiment as one tidy table."""
    from anncestry.report.model import numbers
    from anncestry.report.model.records import seal_table

    frame = numbers.tidy([cell.paths for cell in run.matrix.tabled])
    folder = files["out"].parent
    records.clear(folder)  # a killed job may have left files that are not in the record
    numbers.write(frame, folder)
    seal_table(folder, options.key, spec, frame)
    # Every cell is published, so nothing needs the files of sessions any more.
    for stage in ("session", "duet", "rounds"):
        shutil.rmtree(STAGES[stage].folder, ignore_errors=True)


def report(run: Run, options: argparse.Namespace, spec: Spec, files: Files) -> None:
    """Draw the page of an experiment."""
    from anncestry.report.model import numbers
    from anncestry.report.model.records import seal_report
    from anncestry.report.site import page
    from anncestry.report.site.catalogue import case_studies

    table_dir, folder = files["table"].parent, files["out"].parent
    table = table_dir / "record.json"
    records.verify_outputs(table, records.read_record(table, stage="table", key=run.matrix.table))
    records.clear(folder)
    page.write_page(numbers.read(table_dir), folder, **page.of_matrix(run.matrix), studies=case_studies())
    seal_report(folder, options.key, spec, table_dir)


_COMMANDS = (
    artifact, download, normalize, truth_part, truth, load, record, session, duet, rounds, query, pair, recall, table,
    report,
)  # fmt: skip
_OTHER = "in place of the file that the matrix has"
_OF_MANY = {"session", "duet", "rounds"}
_MEASURE, _FETCH = {"load", *_OF_MANY}, {"artifact", "download"}
_OF_ARROW = {"load", "session", "duet", "query", "pair", "recall"}
RULES: dict[str, Callable[[Run, argparse.Namespace, Spec, Files], None]] = {each.__name__: each for each in _COMMANDS}


class _NoPandas:
    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == "pandas":
            raise ImportError(name)


def _keep_pandas_out() -> None:
    """Arrow takes and gives no objects of pandas in this process from here on; whoever imports pandas has it.

    Its first array imports pandas, to look whether it was given one of those: 0.4 s of a core in each job. It tries
    once, and is told here that there is none.
    """
    import pyarrow as pa

    if "pandas" in sys.modules:
        return
    sys.meta_path.insert(0, _NoPandas)
    try:
        pa.array([])
    finally:
        sys.meta_path.remove(_NoPandas)


def _rule(run: Run, options: argparse.Namespace) -> None:
    """Make the output of a key: with the key's spec (a session has none), and the files of the job."""
    name = options.command
    if name in _OF_ARROW:
        _keep_pandas_out()
    spec = run.matrix.spec(options.key, STAGES[name].spec) if name not in _OF_MANY else {}
    # Builds and downloads may take hours, and wait for a network or a compiler more than they work.
    with nullcontext() if name in _MEASURE | _FETCH else platform.beside_none():
        RULES[name](run, options, spec, _files(run, options))


def add(commands: Any) -> None:
    for name, function in RULES.items():
        parser = command(commands, function)
        parser.set_defaults(function=_rule)
        parser.add_argument("key", help="of what it makes")
        needs = STAGES[name].needs if name != "duet" else ()  # those of two loads
        for label in (*(label for label in needs if label != "samples"), "out"):
            parser.add_argument(f"--{label}", type=Path, metavar="FILE", help=_OTHER)
        if name in ("session", "duet"):
            parser.add_argument("round", type=int, help="number of the round")
        if name in _OF_MANY:
            parser.add_argument("queries", nargs="+", help="keys of its cells or pairs")
        if name == "truth_part":
            parser.add_argument("part", type=int, help="number of the shard, from 1 on")
        if name == "truth":
            parser.add_argument("--parts", type=Path, nargs="*", metavar="FILE", help=_OTHER)
        if name == "load":
            parser.add_argument("--older", type=Path, nargs=2, metavar=("INDEX", "RECORD"), help=_OTHER)
        if name in ("query", "pair"):
            parser.add_argument("sessions", nargs="*", help="files of the sessions that measured it")
