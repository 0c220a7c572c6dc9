"""Commands about results, and about their ancestry: why, attest, verify-attestation, export."""

from __future__ import annotations

import argparse
import math
import shutil
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from anncestry import durable, workflow
from anncestry.cells import config as config_files
from anncestry.cells.matrix import Matrix
from anncestry.cells.plan import command_of, results, undrawn
from anncestry.cells.stage import PAGES, STAMP
from anncestry.commands import HERE, Run, command, say_absent, say_json
from anncestry.errors import ConfigError, DataError
from anncestry.home import PUBLISHED

_SELECTORS = ("dataset", "system", "topology", "workload", "phase", "metric")


def summary(run: Run, options: argparse.Namespace) -> None:
    """Print the main numbers of an experiment and the path of its page."""
    matrix = run.matrix
    if not Path(matrix.table_path).exists():
        raise DataError(f"{matrix.table_path}: {undrawn(matrix)}")
    if say_json(options, lambda: highlights_of(matrix)):
        return
    print_table(matrix)
    print(f"page: {current_page(matrix)}")


def print_table(matrix: Matrix) -> None:
    """Print the main numbers as a table, and which cells are not among them."""
    from anncestry.report.model import highlights

    print(highlights.summary(_table(matrix), _nodes(matrix), _columns()))
    say_absent(matrix)


def _columns() -> int | None:
    """How wide the terminal is; None where the output is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def highlights_of(matrix: Matrix) -> dict[str, Any]:
    """The numbers of the summary with their ids, a row for each dataset, topology and system; the pairs, the cells
    that are listed instead of measured, and the page."""
    from anncestry.report.model import highlights

    absent = [asdict(cell) for cell in matrix.absent]
    return {
        **highlights.plain(_table(matrix), _nodes(matrix)),
        "absent": absent,
        "page": str(current_page(matrix)),
    }


def _nodes(matrix: Matrix) -> dict[str, int]:
    return {name: topology.nodes for name, topology in matrix.config.topologies.items()}


def _table(matrix: Matrix) -> Any:
    from anncestry.report.model import numbers

    return numbers.read(Path(matrix.table_path).parent)


def current_page(matrix: Matrix) -> Path:
    """Copy the page of this matrix to `reports/EXPERIMENT/` unless it is there; return its path."""
    from anncestry.provenance.records import sha256_file

    source = Path(matrix.report_path).parent
    target = PAGES / matrix.config.experiment
    stamp = target / STAMP
    # Not the key: the same cells may have been measured again, here or by whoever the results were pulled from.
    drawn = sha256_file(source / "record.json")
    if not stamp.exists() or stamp.read_text() != drawn or not (target / "index.html").exists():
        fresh = target.with_name(f".{target.name}")
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.copytree(source, fresh)
        (fresh / stamp.name).write_text(drawn)
        shutil.rmtree(target, ignore_errors=True)
        durable.place(fresh, target)
    return target / "index.html"


def compare(run: Run, options: argparse.Namespace) -> None:
    """Compare two systems, experiments, platforms or git revisions, with a verdict for each number."""
    from anncestry.provenance.versioning import Revisions
    from anncestry.report.compare import lines, sides, text
    from anncestry.report.model import noise
    from anncestry.report.model.verdicts import rule_of
    from anncestry.report.site import compare_page

    def current(name: str) -> str:
        try:
            return workflow.expand(workflow.Choice(run.choice.folder, name)).table
        except ConfigError:
            return ""  # measured once, and no longer in the config

    a, b = (
        sides.find(name, Path("results"), run.choice.experiment, current, Revisions(HERE))
        for name in (options.a, options.b)
    )
    known = noise.asked(options.noise) if options.noise else noise.Noise()
    config = config_files.load(run.choice.folder, run.choice.experiment)
    known = known.with_measured(noise.measured(Path("results"), config.platform))
    found = lines.compare(a, b, known, rule_of(config))
    page = compare_page.write(found, options.out) if options.out else None
    if say_json(options, found.plain):
        return
    print(text.summary(found, everything=options.all, width=_columns() or text.WIDTH_MIN), end="")
    if page:
        print(f"page: {page}")


def history(run: Run, options: argparse.Namespace) -> None:
    """Show kept results over commits: what changed, and where lines end because something else is measured."""
    from anncestry.provenance.versioning import Revisions
    from anncestry.report.history import lines, text

    chosen = {axis: getattr(options, axis) for axis in lines.AXES if getattr(options, axis) is not None}
    found = lines.of_commits(Revisions(HERE), run.choice.experiment, chosen, options.since)
    page = None
    if options.out:
        from anncestry.report.site import history_page

        page = history_page.write(found, options.out, f"History of {run.choice.experiment}")
    if say_json(options, found.plain):
        return
    print(text.summary(found), end="")
    if page:
        print(f"page: {page}")


def verify(run: Run, options: argparse.Namespace) -> None:
    """Recompute every published number from its raw samples, and hash every file again."""
    from anncestry import verify as auditor

    findings = auditor.verify(run.matrix, options.quick, getattr(options, "partial", False))
    hanging = list(auditor.hanging_on(findings, run.matrix))
    said = say_json(
        options,
        lambda: {
            "problems": [{"sentence": problem.sentence, "numbers": ids} for problem, ids in hanging],
            "remarks": findings.remarks,
            **{"records": findings.records, "files": findings.files, "not_here": sorted(findings.absent)},
            "recalls_not_made_again": findings.unscored,
        },
    )
    for problem, ids in hanging:
        print(f"✗ {problem.sentence}", file=sys.stderr)
        if ids:
            shown = ", ".join(ids[:6]) + (", …" if len(ids) > 6 else "")
            numbers = f"{len(ids)} number{'s' if len(ids) > 1 else ''}"
            print(f"  no longer supported: {numbers}: {shown}", file=sys.stderr)
    if not said:
        print("".join(f"{remark}\n" for remark in findings.remarks), end="")
    looked = f"checked {findings.records} records and {findings.files} files"
    if findings.absent:
        looked += f"; not here: inputs in {', '.join(sorted(findings.absent))}/"
    if findings.problems:
        found = len(findings.problems)
        raise DataError(f"{found} problem{'' if found == 1 else 's'}; {looked}")
    if said:
        return
    if options.quick:
        print(f"✓ {looked}")
    elif findings.unscored:
        count = f"{findings.unscored} record{'s' if findings.unscored > 1 else ''}"
        print(f"✓ all published numbers agree with the raw samples, but the recall of {count} was not made again, as")
        print(f"  its data is not here (`{command_of(run.matrix)}` or `dvc pull data.dvc` brings it); {looked}")
    else:
        print(f"✓ all published numbers agree with the raw samples; {looked}")


def keep(run: Run, options: argparse.Namespace) -> None:
    """Verify, put data/ and results/ under DVC, and commit their pointers; --push sends the files to the remote."""
    from anncestry.provenance import running, versioning

    with running.standing_still(HERE, "keep its results"):
        workflow.refuse_living(HERE)
        _keep(run, options)
    if options.push:
        versioning.push(HERE)


def _keep(run: Run, options: argparse.Namespace) -> None:
    from anncestry.provenance import versioning
    from anncestry.report import diffs
    from anncestry.report.model import numbers

    matrix = run.matrix
    incomplete = _incomplete(matrix)
    if incomplete and not options.partial:
        raise DataError(
            f"{incomplete}: `{command_of(matrix)}` completes it, `anncestry keep --partial` keeps what there is"
        )
    verify(run, options)
    whole = Path(matrix.table_path).parent
    frame = numbers.tidy([cell.paths for cell in matrix.tabled]) if incomplete else numbers.read(whole)
    diffs.write(frame, matrix.config.experiment, Path("results"))
    message, remarks = versioning.keep(HERE, matrix.config.experiment, gone=options.gone, vouch=_refuse_damaged)
    for remark in remarks:
        print(remark, file=sys.stderr)
    print(f"✓ committed: {message.rstrip()}" if message else "✓ nothing new to keep")


def _refuse_damaged(paths: Iterable[str]) -> None:
    """DataError if a file in results/ is not what its record says, of whichever experiment it is."""
    from anncestry.provenance import prune, records

    asked = {Path("results", path) for path in paths}
    for record in sorted({each for file in asked for each in (prune.record_of(file), file.with_name("record.json"))}):
        if record.exists():
            try:
                records.verify_outputs(record, records.read_record(record))
            except DataError as error:
                raise DataError(
                    f"{error}; nothing is kept: `dvc checkout` with the path of that file brings back what was kept "
                    "of it, `anncestry drop` removes its cell to measure it again"
                ) from None


def _incomplete(matrix: Matrix) -> str:
    """What of an experiment is not there yet, as the start of a sentence; empty if all is."""
    missing = [
        f"{cell.where}/{cell.workload}"
        for cell in matrix.measured
        if not all(Path(path).exists() for path in results(cell))
    ]
    if missing:
        more = ", …" if len(missing) > 3 else ""
        return (
            f"{len(missing)} of {len(matrix.measured)} cells of experiment {matrix.config.experiment} are not measured "
            f"({', '.join(missing[:3])}{more})"
        )
    made = {"table": matrix.table_path, "page": matrix.report_path}
    absent = [what for what, path in made.items() if not Path(path).exists()]
    return f"experiment {matrix.config.experiment} has no {' and no '.join(absent)} yet" if absent else ""


def why(run: Run, options: argparse.Namespace) -> None:
    """Show where a number comes from, down to the raw samples, and check each link."""
    from anncestry.ancestry import why as chain
    from anncestry.report import published

    if options.number and (traced := published.find(PUBLISHED, options.number)):
        if not say_json(options, traced.plain):
            print("\n".join(published.lines(traced)))
        return
    selectors = {name: getattr(options, name) for name in _SELECTORS if getattr(options, name) is not None}
    if options.number and selectors:
        raise DataError(f"give either the id {options.number!r} or --{next(iter(selectors))}, not both")
    folder, row = chain.find(run.matrix, options.number, selectors)
    node = chain.of_row(row, folder, run.matrix)
    if not say_json(options, node.plain):
        print("\n".join(chain.lines(node)))
    if broken := chain.broken(node):
        raise DataError(f"{row['number_id']}: its chain is broken at {', '.join(broken)}")


def attest(run: Run, options: argparse.Namespace) -> None:
    """Sign the results and the digests of their inputs (in-toto, SLSA provenance)."""
    from anncestry import verify
    from anncestry.ancestry import attest as signing

    key = signing.private(options.key)
    body = signing.statement(run.matrix)
    found = verify.verify(run.matrix)
    if "data" in found.absent:
        raise DataError(
            "data/: some of it is not here, so that recall was not computed again: `dvc pull data.dvc`, or run the "
            "workflow; `anncestry attest` signs only what passes the whole `anncestry verify`"
        )
    if problems := found.problems:
        more = f" ({len(problems) - 1} more: `anncestry verify`)" if problems[1:] else ""
        raise DataError(
            f"{problems[0].sentence}{more}; `anncestry attest` signs only results that pass `anncestry verify`"
        )
    print(f"✓ {signing.attest(body, key, options.out)}")


def verify_attestation(run: Run, options: argparse.Namespace) -> None:
    """Check a signed attestation against a public key and the local files, without network."""
    from anncestry.ancestry import attest as signing

    print(f"✓ {signing.verify(options.file, options.key, Path())}")


def export_crate(run: Run, options: argparse.Namespace) -> None:
    """Export the results as a Workflow Run RO-Crate."""
    from anncestry.ancestry import export

    print(f"✓ {export.write_crate(run.matrix, options.folder)}")


def export_prov(run: Run, options: argparse.Namespace) -> None:
    """Export the provenance of all records as W3C PROV-JSON."""
    from anncestry.ancestry import export

    print(f"✓ {export.write_prov(run.matrix, options.file)}")


def _percent(text: str) -> float:
    """A percentage that is not negative, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage")
    return value


def add(commands: Any) -> None:
    command(commands, summary, has_json=True)
    parser = command(commands, compare, has_json=True)
    parser.add_argument(
        "a", metavar="A", help="a system, an experiment (or EXPERIMENT@KEY), a platform, or a git revision"
    )
    parser.add_argument("b", metavar="B", nargs="?", default=".", help="compared with A (default: this folder)")
    parser.add_argument("--noise", type=_percent, metavar="PCT", help="treat differences of up to PCT percent as noise")
    parser.add_argument("--all", action="store_true", help="show all numbers, not only the headline ones")
    parser.add_argument("--out", type=Path, help="also write a page, CSV and JSON to this folder")
    parser = command(commands, history, has_json=True)
    parser.add_argument("--since", default="", metavar="REVISION", help="only commits after this one")
    parser.add_argument("--out", type=Path, help="also write a page and JSON to this folder")
    for name in _SELECTORS:
        parser.add_argument(f"--{name}", help=f"only lines of this {name}")
    parser = command(commands, verify, has_json=True)
    parser.add_argument("--quick", action="store_true", help="only hash the files again")
    parser = command(commands, keep)
    parser.add_argument("--quick", action="store_true", help="only hash the files again, don't recompute numbers")
    parser.add_argument("--gone", action="store_true", help="delete from DVC the results that are missing locally")
    parser.add_argument("--partial", action="store_true", help="keep an incomplete experiment")
    parser.add_argument("--push", action="store_true", help="also send the files to the remote")
    parser = command(commands, why, has_json=True)
    parser.add_argument(
        "number", nargs="?", help="the id of a number, or its first characters; without it, select by options"
    )
    for name in _SELECTORS:
        parser.add_argument(f"--{name}", help=f"select by {name}")
    parser = command(commands, attest)
    parser.add_argument(
        "--key", type=Path, required=True, help="private ed25519 key (PEM); `openssl genpkey` makes one"
    )
    parser.add_argument("--out", type=Path, default=Path("attestation.json"), help="write the envelope to this file")
    parser = command(commands, verify_attestation, "verify-attestation")
    parser.add_argument("file", type=Path, help="the file that `attest` wrote")
    parser.add_argument("--key", type=Path, required=True, help="public ed25519 key (PEM) of the signer")
    export = commands.add_parser("export", help="Export the results for other tools: crate or prov.")
    kinds = export.add_subparsers(dest="kind", required=True, metavar="KIND")
    parser = command(kinds, export_crate, "crate")
    parser.add_argument("folder", type=Path, help="a new folder")
    parser = command(kinds, export_prov, "prov")
    parser.add_argument("file", type=Path, nargs="?", default=Path("prov.json"), help="a file to write (prov.json)")
