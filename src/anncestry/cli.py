"""`anncestry`: one command a rule of the workflow, and a few for people.

Commands that a rule calls take the key of what they make; the matrix that the key belongs to is the one of the
environment (ANNCESTRY_CONFIG, ANNCESTRY_EXPERIMENT: set by the Snakefile), else the default one.
Exit status: 0 done, 2 something that the user can mend (one sentence says what), 1 a fault of this program.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TextIO

from anncestry import user_cache, workflow
from anncestry.ancestry import commands as ancestry_commands
from anncestry.cells import config as config_files
from anncestry.cells.config import DEFAULT_EXPERIMENT
from anncestry.cells.matrix import PUBLISHED, Cell, Matrix
from anncestry.errors import ConfigError, DataError, ServerError, UserError, of_machine
from anncestry.provenance import running
from anncestry.provenance.prune import Sweep

HERE = Path()


def cache_dir() -> Path:
    """Where downloads and builds are kept for the next checkout; never needed, always verified before use."""
    folder = user_cache.folder()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class _Run:
    """The matrix, resolved when a command first asks for it."""

    def __init__(self, experiment: str | None) -> None:
        choice = workflow.choice_of_environment()
        self.choice = choice if experiment is None else workflow.Choice(choice.folder, experiment)
        self._matrix: Matrix | None = None

    @property
    def matrix(self) -> Matrix:
        if self._matrix is None:
            self._matrix, _ = workflow.resolve(self.choice, HERE)
        return self._matrix

    def place(self, cell: Cell) -> Any:
        from anncestry.measure.load import Place

        config = self.matrix.config
        return Place(
            vectors=Path(cell.vectors_path),
            artifact=Path(cell.artifact_path),
            platform=config.platforms[config.platform],
            first_port=config.load.get("first_port"),
            storage=config.storage,
        )


# One function a rule


def artifact(run: _Run, options: argparse.Namespace) -> None:
    """Fetch or build what a system runs."""
    from anncestry.runtimes import artifacts

    spec = run.matrix.spec(options.key, "artifact")
    artifacts.run(spec, Path(run.matrix.cell(options.key).artifact_path).parent, cache_dir(), options.key)


def download(run: _Run, options: argparse.Namespace) -> None:
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


def normalize(run: _Run, options: argparse.Namespace) -> None:
    """Prefix, normalised vectors and metadata."""
    from anncestry.datasets import normalize as stage

    cell = run.matrix.cell(options.key)
    spec = run.matrix.spec(options.key, "normalize")
    stage.run(spec, Path(cell.download_path).parent, Path(cell.vectors_path).parent, options.key)


def truth(run: _Run, options: argparse.Namespace) -> None:
    """Exact neighbours."""
    from anncestry.datasets import shards
    from anncestry.datasets import truth as stage

    cell = run.matrix.cell(options.key)
    spec = run.matrix.spec(options.key, "truth")
    parts = [Path(path) for path in run.matrix.truth_parts(cell)]
    gathered = shards.gather(parts, options.key) if parts else None
    stage.run(spec, Path(cell.vectors_path).parent, Path(cell.truth_path).parent, options.key, gathered)


def truth_part(run: _Run, options: argparse.Namespace) -> None:
    """Exact neighbours within one shard of the base."""
    from anncestry.datasets import shards

    cell = run.matrix.cell(options.key)
    parts = run.matrix.truth_parts(cell)
    if not 1 <= options.part <= len(parts):
        raise UserError(f"truth {options.key} has {len(parts) or 'no'} parts: there is no part {options.part}")
    spec = run.matrix.spec(options.key, "truth")
    out = Path(parts[options.part - 1])
    shards.run(spec, options.key, Path(cell.vectors_path).parent, out, options.part, len(parts))


def load(run: _Run, options: argparse.Namespace) -> None:
    """Load a dataset into a system, or open an older system's data with it, measured."""
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


def record(run: _Run, options: argparse.Namespace) -> None:
    """Publish the record of a load."""
    from anncestry.provenance.promote import promote

    cell = run.matrix.cell(options.key)
    promote(Path(cell.index_path), Path(cell.load_path), stage="load", key=options.key)


def session(run: _Run, options: argparse.Namespace) -> None:
    """Measure one run of some cells of one load, on one server."""
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


def query(run: _Run, options: argparse.Namespace) -> None:
    """Publish the runs of a cell as one measurement, or say why its sessions have not measured them."""
    from anncestry.measure import publish
    from anncestry.provenance import records

    cell = run.matrix.cell(options.key)
    missing = [number for number in range(run.matrix.runs(cell)) if not Path(cell.run_path(number)).exists()]
    if missing:
        if not options.sessions:
            raise DataError(f"{cell.query_path} is there already: delete it to measure this cell again")
        said: dict[str, str] = {}
        for session_file in map(Path, options.sessions):
            tried = records.read_json(session_file)
            state = tried["cells"].get(options.key, "was not part of the session")
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


def recall(run: _Run, options: argparse.Namespace) -> None:
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


def table(run: _Run, options: argparse.Namespace) -> None:
    """All numbers of an experiment as one tidy table."""
    from anncestry.report import numbers, sealed

    spec = run.matrix.spec(options.key, "table")
    frame = numbers.tidy([cell.paths for cell in run.matrix.cells])
    folder = Path(run.matrix.table_path).parent
    numbers.write(frame, folder)
    sealed.table(folder, options.key, spec, frame)
    # Every cell is published: what sessions left (failed attempts among it) is of no use any more.
    shutil.rmtree("scratch/session", ignore_errors=True)


def report(run: _Run, options: argparse.Namespace) -> None:
    """The page of an experiment."""
    from anncestry.report import numbers, page, sealed

    spec = run.matrix.spec(options.key, "report")
    table_dir, folder = Path(run.matrix.table_path).parent, Path(run.matrix.report_path).parent
    frame, title = numbers.read(table_dir), run.matrix.config.title
    page.write_page(frame, folder, title=title, published=PUBLISHED, absent=run.matrix.absent)
    sealed.report(folder, options.key, spec, table_dir)


# For people


def leftovers(run: _Run, options: argparse.Namespace) -> None:
    """What killed runs left on this machine: processes, containers, control groups, copies of data."""
    from anncestry.provenance import platform
    from anncestry.runtimes import leftovers as left

    if platform.measuring():
        raise ServerError("something is being measured on this machine: what is left over shows when that is done")
    found = left.find(HERE)
    for leftover in found:
        print(f"{leftover.kind}: {leftover.name}")
    if not found:
        print("nothing is left over")
    elif not options.clean:
        print("`anncestry leftovers --clean` ends and removes these")
    else:
        problems = left.clean(found)
        if problems:
            raise ServerError("; ".join(problems))


def withdraw(run: _Run, options: argparse.Namespace) -> None:
    """Remove what the loads of an experiment left on servers that somebody else runs: our marked collections only."""
    from anncestry.measure.withdraw import withdraw as withdrawn

    found = False
    for name in withdrawn(run.matrix, HERE):
        found = True
        print(f"withdrawn: {name}")
    if not found:
        print("nothing of this experiment is on a server that somebody else runs")


def summary(run: _Run, options: argparse.Namespace) -> None:
    """The main numbers of an experiment, and where its page is."""
    from anncestry.report import numbers
    from anncestry.report import summary as text

    matrix = run.matrix
    if not Path(matrix.table_path).exists():
        raise DataError(f"{matrix.table_path}: not made yet; run `snakemake --cores 8 all`")
    if not options.short:
        print(text.summary(numbers.read(Path(matrix.table_path).parent)))
        _say_absent(matrix)
    print(f"page: {_current_page(matrix)}")


def _say_absent(matrix: Matrix) -> None:
    """How many cells are listed instead of measured, if any is."""
    from anncestry.cells.absent import sentence

    if said := sentence(matrix.absent):
        print(said)


def _current_page(matrix: Matrix) -> Path:
    """The page of this matrix under its lasting name, `reports/EXPERIMENT/`: a copy, made anew where it is another."""
    source = Path(matrix.report_path).parent
    target = Path("reports") / matrix.config.experiment
    stamp = target / ".report"
    if not stamp.exists() or stamp.read_text() != matrix.report or not (target / "index.html").exists():
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target)
        stamp.write_text(matrix.report)
    return target / "index.html"


def compare(run: _Run, options: argparse.Namespace) -> None:
    """Two systems, experiments, platforms or git revisions: faster, slower, the same within noise, not comparable."""
    from anncestry.provenance.revisions import Revisions
    from anncestry.report import compare as comparing
    from anncestry.report import compare_noise, compare_page, noise

    def current(name: str) -> str:
        try:
            return workflow.expand(workflow.Choice(run.choice.folder, name)).table
        except ConfigError:
            return ""  # measured once, and no longer in the config

    a, b = (
        comparing.find(name, Path("results"), run.choice.experiment, current, Revisions(HERE))
        for name in (options.a, options.b)
    )
    known = compare_noise.asked(options.noise) if options.noise else compare_noise.Noise()
    platform = config_files.load(run.choice.folder, run.choice.experiment).platform
    found = comparing.compare(a, b, known.with_measured(noise.measured(Path("results"), platform)))
    print(compare_page.summary(found, everything=options.all), end="")
    if options.out:
        print(f"page: {compare_page.write(found, options.out)}")


def verify(run: _Run, options: argparse.Namespace) -> None:
    """Whether every published number is still what its raw samples say, and every file what its record says."""
    from anncestry import verify as auditor

    findings = auditor.verify(run.matrix, PUBLISHED, options.quick, getattr(options, "partial", False))
    for problem, ids in auditor.hanging_on(findings, run.matrix):
        print(f"✗ {problem.sentence}", file=sys.stderr)
        if ids:
            shown = ", ".join(ids[:6]) + (", …" if len(ids) > 6 else "")
            numbers = f"{len(ids)} number{'s' if len(ids) > 1 else ''}"
            print(f"  no longer supported: {numbers}: {shown}", file=sys.stderr)
    for remark in findings.remarks:
        print(remark)
    looked = f"{findings.records} records and {findings.files} files looked at"
    if findings.absent:
        looked += f"; not here, so not looked at: inputs in {', '.join(sorted(findings.absent))}/"
    if findings.problems:
        raise DataError(f"{len(findings.problems)} things are not what they were; {looked}")
    print(
        f"✓ what can be made again from raw samples is what is published; {looked}"
        if not options.quick
        else f"✓ {looked}"
    )


def keep(run: _Run, options: argparse.Namespace) -> None:
    """Verify, then put data/ and results/ under DVC and commit their pointers; --push sends the files to the remote."""
    from anncestry.provenance import versioning
    from anncestry.report import diffs, numbers

    matrix = run.matrix
    incomplete = _incomplete(matrix)
    if incomplete and not options.partial:
        raise DataError(
            f"{incomplete}: `{_command(matrix)}` completes it, `anncestry keep --partial` keeps what there is"
        )
    verify(run, options)
    whole = Path(matrix.table_path).parent
    frame = numbers.tidy([cell.paths for cell in matrix.cells]) if incomplete else numbers.read(whole)
    diffs.write(frame, matrix.config.experiment, Path("results"))
    kept = versioning.keep(HERE, matrix.config.experiment, gone=options.gone, push=options.push)
    for remark in kept.remarks:
        print(remark, file=sys.stderr)
    print(f"✓ committed: {kept.message.rstrip()}" if kept.message else "✓ everything was kept already")


def _command(matrix: Matrix) -> str:
    """What a user types to run all of an experiment."""
    name = matrix.config.experiment
    return "snakemake --cores 8 all" + ("" if name == DEFAULT_EXPERIMENT else f" --config experiment={name}")


def _incomplete(matrix: Matrix) -> str:
    """What of an experiment is not there yet, as the start of a sentence; empty if all is."""
    missing = [
        f"{cell.where}/{cell.workload}"
        for cell in matrix.cells
        if not all(Path(path).exists() for path in (cell.load_path, cell.query_path, cell.recall_path))
    ]
    if missing:
        more = ", …" if len(missing) > 3 else ""
        return (
            f"{len(missing)} of {len(matrix.cells)} cells of experiment {matrix.config.experiment} are not measured "
            f"({', '.join(missing[:3])}{more})"
        )
    made = {"table": matrix.table_path, "page": matrix.report_path}
    absent = [what for what, path in made.items() if not Path(path).exists()]
    return f"experiment {matrix.config.experiment} has no {' and no '.join(absent)} yet" if absent else ""


def cells(run: _Run, options: argparse.Namespace) -> None:
    """The cells of an experiment, and which of their stages are there."""
    for cell in run.matrix.cells:
        there = " ".join(
            f"{stage}{'✓' if Path(path).exists() else '·'}"
            for stage, path in (("load", cell.load_path), ("query", cell.query_path), ("recall", cell.recall_path))
        )
        build = f" (build {cell.rebuild})" if cell.rebuild > 1 else ""
        print(f"{cell.query}  {there}  {cell.where}/{cell.workload}{build}")
    for listed in run.matrix.absent:
        print(f"{'-' * 12}  {listed.state}  {'/'.join(listed.names[:4])}: {listed.reason}")


def plan(run: _Run, options: argparse.Namespace) -> None:
    """What would run and why, and about how long it takes; nothing is started."""
    from anncestry.cells import explain
    from anncestry.provenance import estimate, sizing

    if options.paper or options.fit:
        needed = sizing.needs(run.matrix)
        if options.paper:
            print("\n".join(sizing.lines(needed)))
            _say_absent(run.matrix)
        if options.fit:
            sizing.refuse_unfit(run.matrix, needed)
        return
    matrix, missing = workflow.resolve(run.choice, HERE)
    _say_absent(matrix)
    jobs = explain.jobs(matrix, missing)
    if not jobs:
        print("nothing would run: everything is there")
        return
    earlier = explain.Earlier()
    estimates = estimate.estimate(matrix, jobs, earlier)
    reasons = explain.explain(matrix, jobs, earlier)
    print("\n".join([estimate.headline(estimates), *estimate.lines(estimates), "", "why", *explain.lines(reasons)]))
    print(f"\nnothing is started; to run it: {_command(matrix)}")


def drop(run: _Run, options: argparse.Namespace) -> None:
    """Remove cells, and the tables and pages that show them, so that the next run measures them anew."""
    from anncestry.provenance import prune

    _sweep(prune.drop(run.matrix, options.cells, options.load), options.yes)


def gc(run: _Run, options: argparse.Namespace) -> None:
    """Remove what no experiment of the config needs any more."""
    from anncestry.cells.plan import make
    from anncestry.provenance import prune

    folder = run.choice.folder
    matrices = [workflow.expand(workflow.Choice(folder, name)) for name in prune.experiments(folder)]
    _sweep(prune.collect([(matrix, make(matrix)) for matrix in matrices], options.results), options.yes)


def _sweep(sweep: Sweep, yes: bool) -> None:
    """Say what would be removed; with `yes`, remove it."""
    from anncestry.provenance import prune

    for line in prune.lines(sweep):
        print(line)
    if not sweep.remove:
        print("there is nothing to remove")
    elif yes:
        prune.remove(sweep)
        print(f"removed: {prune.total(sweep)}")
    else:
        print(f"nothing was removed; with --yes these go: {prune.total(sweep)}")


def epochs(run: _Run, options: argparse.Namespace) -> None:
    """Whether measuring code changed under the same epoch; --bump or --attest settles it."""
    from anncestry.provenance import epochs as guard

    path = run.choice.folder / "epochs.yaml"
    drifted = guard.changed(path)
    if options.bump or options.attest:
        if options.attest and not options.why:
            raise UserError("--attest needs --why: the reason why no number can change")
        guard.settle(path, options.stages or drifted, options.why if options.attest else None)
        return
    if drifted:
        raise UserError(
            f"{path}: measuring code of {', '.join(drifted)} changed under the same epoch: "
            "`anncestry epochs --bump` if numbers may change, `--attest --why REASON` if they can't"
        )
    print("measuring code is what its epochs say")


def engine(run: _Run, options: argparse.Namespace) -> None:
    """Run a command beside a container engine: the one that answers, else one for the time of the command."""
    from anncestry.runtimes import dockerd

    command = options.words[1:] if options.words[:1] == ["--"] else options.words
    if not command:
        raise UserError("which command? `anncestry engine COMMAND …`")
    status = dockerd.run(command, cache_dir(), options.install)
    if status:
        raise SystemExit(status if status > 0 else 128 - status)


RULES: dict[str, Callable[[_Run, argparse.Namespace], None]] = {
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


def _percent(text: str) -> float:
    """A percentage that is not negative, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no percentage")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="anncestry", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--experiment", help="another matrix than the default one: config/experiments/NAME.yaml")
    parser.add_argument("--log", type=Path, help="also write what is said to this file")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
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
    command = commands.add_parser("summary", help=(summary.__doc__ or ""))
    command.add_argument("--short", action="store_true", help="only where the page is")
    command.set_defaults(function=summary)
    command = commands.add_parser("leftovers", help=(leftovers.__doc__ or ""))
    command.add_argument("--clean", action="store_true", help="ask the processes to end, remove the rest")
    command.set_defaults(function=leftovers)
    command = commands.add_parser("withdraw", help=(withdraw.__doc__ or ""))
    command.set_defaults(function=withdraw)
    command = commands.add_parser("compare", help=(compare.__doc__ or "").replace("%", "%%"))
    command.add_argument(
        "a", metavar="A", help="a system, an experiment (or EXPERIMENT@KEY), a platform, or a git revision"
    )
    command.add_argument(
        "b", metavar="B", nargs="?", default=".", help="what is judged against A (default: this folder)"
    )
    command.add_argument(
        "--noise",
        type=_percent,
        metavar="PCT",
        help="a difference of up to so many percent is noise, whatever runs say",
    )
    command.add_argument("--all", action="store_true", help="all numbers, not the headline ones only")
    command.add_argument("--out", type=Path, help="also write a page, CSV and JSON to this folder")
    command.set_defaults(function=compare)
    command = commands.add_parser("verify", help=(verify.__doc__ or ""))
    command.add_argument("--quick", action="store_true", help="re-hash only")
    command.set_defaults(function=verify)
    ancestry_commands.add(commands)
    command = commands.add_parser("keep", help=(keep.__doc__ or ""))
    command.add_argument("--quick", action="store_true", help="verify by re-hashing only")
    command.add_argument("--gone", action="store_true", help="results that are listed but not here shall go")
    command.add_argument("--partial", action="store_true", help="keep an experiment of which cells are missing")
    command.add_argument("--push", action="store_true", help="send the files to the remote, too")
    command.set_defaults(function=keep)
    commands.add_parser("cells", help=(cells.__doc__ or "")).set_defaults(function=cells)
    command = commands.add_parser("plan", help=(plan.__doc__ or ""))
    command.add_argument("--paper", action="store_true", help="memory, disk and time of every cell, from a model")
    command.add_argument("--fit", action="store_true", help="refuse what can't fit the declared platform")
    command.set_defaults(function=plan)
    command = commands.add_parser("drop", help=(drop.__doc__ or ""))
    command.add_argument(
        "cells", nargs="+", metavar="CELL", help="a query key, or DATASET/SYSTEM/TOPOLOGY/WORKLOAD with wildcards"
    )
    command.add_argument("--load", action="store_true", help="also their loads, with all that was measured on those")
    command.add_argument("--yes", action="store_true", help="remove; without it, only say what would go")
    command.set_defaults(function=drop)
    command = commands.add_parser("gc", help=(gc.__doc__ or ""))
    choice = command.add_mutually_exclusive_group()
    choice.add_argument("--results", action="store_true", help="also results/")
    choice.add_argument("--keep-results", action="store_false", dest="results", help="all but results/ (the default)")
    command.add_argument("--yes", action="store_true", help="remove; without it, only say what would go")
    command.set_defaults(function=gc)
    command = commands.add_parser("engine", help=(engine.__doc__ or ""))
    command.add_argument("--install", action="store_true", help="where none is installed, have Debian's docker.io")
    command.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND …", help="what to run")
    command.set_defaults(function=engine)
    command = commands.add_parser("epochs", help=(epochs.__doc__ or ""))
    command.add_argument("stages", nargs="*", help="stages to settle (default: all that changed)")
    choice = command.add_mutually_exclusive_group()
    choice.add_argument("--bump", action="store_true", help="numbers may change: a new epoch, new keys")
    choice.add_argument("--attest", action="store_true", help="numbers can't change: record the new sources")
    command.add_argument("--why", help="the reason of an attestation")
    command.set_defaults(function=epochs)
    return parser


def _note_time(command: str, started: float) -> None:
    """Append when this command ran to the file that ANNCESTRY_TIMELINE names, if it names one (`make bench` does)."""
    timeline = os.environ.get("ANNCESTRY_TIMELINE")
    if timeline:
        with open(timeline, "a") as file:
            file.write(json.dumps({"command": command, "start": started, "end": time.time()}) + "\n")


class _Tee:
    """Standard error and a log file at once. One that can't be written any more does not keep the work from ending."""

    def __init__(self, stream: TextIO, log: TextIO) -> None:
        self._stream, self._log = stream, log

    def write(self, text: str) -> int:
        with suppress(OSError):  # a full disk: what is said still reaches the other
            self._log.write(text.replace("\r", "\n"))
            self._log.flush()
        with suppress(OSError):  # nobody reads it any more, as a run that was killed
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()


def _close(log: TextIO) -> None:
    with suppress(OSError):
        log.close()


def _end_tidily(number: int, frame: object) -> None:
    """Leave by an exception, so that every server is stopped on the way out."""
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    options = _parser().parse_args(arguments)
    with ExitStack() as stack:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGHUP):
                stack.callback(signal.signal, number, signal.signal(number, _end_tidily))
        stack.callback(_note_time, options.command, time.time())
        try:
            if options.log:
                options.log.parent.mkdir(parents=True, exist_ok=True)
                original = sys.stderr
                log = open(options.log, "w")  # noqa: SIM115 - closed by the stack, after all that may speak
                stack.callback(_close, log)
                sys.stderr = _Tee(original, log)
                stack.callback(setattr, sys, "stderr", original)
            if options.command in RULES:
                running.end_with_run()
            options.function(_Run(options.experiment), options)
        except UserError as error:
            print(f"anncestry {options.command}: {error}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print(f"anncestry {options.command}: interrupted", file=sys.stderr)
            return 130
        except OSError as error:
            sentence = of_machine(error)
            if sentence is None:
                traceback.print_exc()
            print(f"anncestry {options.command}: {sentence or error}", file=sys.stderr)
            return 1 if sentence is None else 2
        except Exception:
            traceback.print_exc()
            return 1
    return 0
