"""The commands about what an experiment consists of: its cells, what would run, what goes, what measuring means."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from anncestry import workflow
from anncestry.commands.run import HERE, Run, command_of, say_absent
from anncestry.errors import UserError
from anncestry.provenance.prune import Sweep


def cells(run: Run, options: argparse.Namespace) -> None:
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


def plan(run: Run, options: argparse.Namespace) -> None:
    """What would run and why, and about how long it takes; nothing is started."""
    from anncestry.cells import explain
    from anncestry.provenance import estimate, sizing

    if options.paper or options.fit:
        needed = sizing.needs(run.matrix)
        if options.paper:
            print("\n".join(sizing.lines(needed)))
            say_absent(run.matrix)
        if options.fit:
            sizing.refuse_unfit(run.matrix, needed)
        return
    matrix, missing = workflow.resolve(run.choice, HERE, mend=True)
    say_absent(matrix)
    jobs = explain.jobs(matrix, missing)
    if not jobs:
        print("nothing would run: everything is there")
        return
    earlier = explain.Earlier()
    estimates = estimate.estimate(matrix, jobs, earlier)
    reasons = explain.explain(matrix, jobs, earlier)
    print("\n".join([estimate.headline(estimates), *estimate.lines(estimates), "", "why", *explain.lines(reasons)]))
    print(f"\nnothing is started; to run it: {command_of(matrix)}")


def drop(run: Run, options: argparse.Namespace) -> None:
    """Remove cells, and the tables and pages that show them, so that the next run measures them anew."""
    from anncestry.provenance import prune

    _sweep(prune.drop(run.matrix, options.cells, options.load), options.yes)


def gc(run: Run, options: argparse.Namespace) -> None:
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


def epochs(run: Run, options: argparse.Namespace) -> None:
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


def add(commands: Any) -> None:
    """Add these commands to the program's parser."""
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
    command = commands.add_parser("epochs", help=(epochs.__doc__ or ""))
    command.add_argument("stages", nargs="*", help="stages to settle (default: all that changed)")
    choice = command.add_mutually_exclusive_group()
    choice.add_argument("--bump", action="store_true", help="numbers may change: a new epoch, new keys")
    choice.add_argument("--attest", action="store_true", help="numbers can't change: record the new sources")
    command.add_argument("--why", help="the reason of an attestation")
    command.set_defaults(function=epochs)
