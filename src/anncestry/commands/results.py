"""The commands about results: tell them, compare them, verify them, keep them."""

from __future__ import annotations

import argparse
import math
import shutil
import sys
from pathlib import Path
from typing import Any

from anncestry import durable, workflow
from anncestry.cells import config as config_files
from anncestry.cells.matrix import PUBLISHED, Matrix
from anncestry.commands.run import HERE, Run, command_of, say_absent
from anncestry.errors import ConfigError, DataError


def summary(run: Run, options: argparse.Namespace) -> None:
    """The main numbers of an experiment, and where its page is."""
    from anncestry.report import numbers
    from anncestry.report import summary as text

    matrix = run.matrix
    if not Path(matrix.table_path).exists():
        raise DataError(f"{matrix.table_path}: not made yet; run `snakemake --cores 8 all`")
    if not options.short:
        print(text.summary(numbers.read(Path(matrix.table_path).parent)))
        say_absent(matrix)
    print(f"page: {_current_page(matrix)}")


def _current_page(matrix: Matrix) -> Path:
    """The page of this matrix under its lasting name, `reports/EXPERIMENT/`: a copy, made anew where it is another."""
    source = Path(matrix.report_path).parent
    target = Path("reports") / matrix.config.experiment
    stamp = target / ".report"
    if not stamp.exists() or stamp.read_text() != matrix.report or not (target / "index.html").exists():
        fresh = target.with_name(f".{target.name}")
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.copytree(source, fresh)
        (fresh / stamp.name).write_text(matrix.report)
        shutil.rmtree(target, ignore_errors=True)
        durable.place(fresh, target)
    return target / "index.html"


def compare(run: Run, options: argparse.Namespace) -> None:
    """Two systems, experiments, platforms or git revisions: faster, slower, the same within noise, not comparable."""
    from anncestry.provenance.revisions import Revisions
    from anncestry.report import compare as comparing
    from anncestry.report import compare_noise, compare_page, compare_sides, noise

    def current(name: str) -> str:
        try:
            return workflow.expand(workflow.Choice(run.choice.folder, name)).table
        except ConfigError:
            return ""  # measured once, and no longer in the config

    a, b = (
        compare_sides.find(name, Path("results"), run.choice.experiment, current, Revisions(HERE))
        for name in (options.a, options.b)
    )
    known = compare_noise.asked(options.noise) if options.noise else compare_noise.Noise()
    platform = config_files.load(run.choice.folder, run.choice.experiment).platform
    found = comparing.compare(a, b, known.with_measured(noise.measured(Path("results"), platform)))
    print(compare_page.summary(found, everything=options.all), end="")
    if options.out:
        print(f"page: {compare_page.write(found, options.out)}")


def verify(run: Run, options: argparse.Namespace) -> None:
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


def keep(run: Run, options: argparse.Namespace) -> None:
    """Verify, then put data/ and results/ under DVC and commit their pointers; --push sends the files to the remote."""
    from anncestry.provenance import versioning
    from anncestry.report import diffs, numbers

    matrix = run.matrix
    incomplete = _incomplete(matrix)
    if incomplete and not options.partial:
        raise DataError(
            f"{incomplete}: `{command_of(matrix)}` completes it, `anncestry keep --partial` keeps what there is"
        )
    verify(run, options)
    whole = Path(matrix.table_path).parent
    frame = numbers.tidy([cell.paths for cell in matrix.cells]) if incomplete else numbers.read(whole)
    diffs.write(frame, matrix.config.experiment, Path("results"))
    kept = versioning.keep(HERE, matrix.config.experiment, gone=options.gone, push=options.push)
    for remark in kept.remarks:
        print(remark, file=sys.stderr)
    print(f"✓ committed: {kept.message.rstrip()}" if kept.message else "✓ everything was kept already")


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


def _percent(text: str) -> float:
    """A percentage that is not negative, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no percentage")
    return value


def add(commands: Any) -> None:
    """Add these commands to the program's parser."""
    command = commands.add_parser("summary", help=(summary.__doc__ or ""))
    command.add_argument("--short", action="store_true", help="only where the page is")
    command.set_defaults(function=summary)
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
    command = commands.add_parser("keep", help=(keep.__doc__ or ""))
    command.add_argument("--quick", action="store_true", help="verify by re-hashing only")
    command.add_argument("--gone", action="store_true", help="results that are listed but not here shall go")
    command.add_argument("--partial", action="store_true", help="keep an experiment of which cells are missing")
    command.add_argument("--push", action="store_true", help="send the files to the remote, too")
    command.set_defaults(function=keep)
