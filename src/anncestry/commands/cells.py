"""The commands about cells (cells, plan, drop, gc, epochs) and about the machine (leftovers, withdraw, engine)."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anncestry import user_cache, workflow
from anncestry.cells.matrix import Matrix
from anncestry.cells.plan import command_of, make
from anncestry.commands import HERE, Run, command, say_absent, say_json
from anncestry.errors import ServerError, UserError
from anncestry.home import EPOCHS
from anncestry.provenance import prune

_NAMES = ("dataset", "system", "topology", "workload")


def cells(run: Run, options: argparse.Namespace) -> None:
    """List the cells and pairs of an experiment and their finished stages."""
    if say_json(options, lambda: _cells(run.matrix)):
        return
    for cell in run.matrix.cells:
        there = " ".join(
            f"{stage}{'✓' if Path(path).exists() else '·'}"
            for stage, path in (("load", cell.load_path), ("query", cell.query_path), ("recall", cell.recall_path))
        )
        build = f" (build {cell.rebuild})" if cell.rebuild > 1 else ""
        print(f"{cell.query}  {there}  {cell.where}/{cell.workload}{build}")
    for pair in run.matrix.pairs:
        places = [("load a", pair.a.load_path), ("load b", pair.b.load_path), ("pair", pair.path)]
        there = " ".join(f"{stage}{'✓' if Path(path).exists() else '·'}" for stage, path in places)
        print(f"{pair.pair}  {there}  {pair.where}/{pair.workload}")
    for listed in run.matrix.absent:
        print(f"{'-' * 12}  {listed.state}  {'/'.join(listed.names[:4])}: {listed.reason}")


def _cells(matrix: Matrix) -> list[dict[str, Any]]:
    """A row for each cell, pair and absent cell: what it is of, its key, and whether each of its records is there."""
    rows: list[dict[str, Any]] = []
    for cell in matrix.cells:
        names = {name: getattr(cell, name) for name in (*_NAMES, "rebuild", "arm")}
        made = {"load": cell.load_path, "query": cell.query_path, "recall": cell.recall_path}
        rows.append({"kind": "cell", "key": cell.query, **names, "made": _made(made)})
    for pair in matrix.pairs:
        made = {"load_a": pair.a.load_path, "load_b": pair.b.load_path, "pair": pair.path}
        names = {name: getattr(pair, name) for name in _NAMES}
        rows.append({"kind": "pair", "key": pair.pair, **names, "made": _made(made)})
    for listed in matrix.absent:
        names = dict(zip(_NAMES, listed.names, strict=False))
        rows.append({"kind": listed.state, "key": None, **names, "reason": listed.reason})
    return rows


def _made(paths: Mapping[str, str]) -> dict[str, bool]:
    return {stage: Path(path).exists() for stage, path in paths.items()}


def plan(run: Run, options: argparse.Namespace) -> None:
    """Show which jobs would run, why, and an estimate of their time; start nothing."""
    from anncestry.provenance import estimate, explain, sizing

    if options.paper or options.fit:
        needed = sizing.needs(run.matrix)
        as_json = say_json(options, lambda: {"cells": [need.plain() for need in needed], **_absent(run.matrix)})
        if not as_json and options.paper:
            print("\n".join(sizing.lines(needed)))
            say_absent(run.matrix)
        if options.fit:
            sizing.refuse_unfit(run.matrix, needed)
        return
    matrix, missing = workflow.resolve(run.choice, HERE, mend=True)
    unable = _cant_run_here(matrix)
    if not options.json:
        say_absent(matrix)
        for topologies, why in unable:
            print(f"topology {', '.join(topologies)}: can't run on this machine: {why}")
    jobs = explain.jobs(matrix, missing)
    if not jobs and not options.json:
        print("nothing to run: everything is up to date")
        return
    earlier = explain.Earlier()
    estimates = estimate.estimate(matrix, jobs, earlier)
    reasons = explain.explain(matrix, jobs, earlier)
    if say_json(
        options,
        lambda: {
            "estimates": [vars(e) for e in estimates],
            "why": [vars(r) for r in reasons],
            "cant_run_here": [{"topology": name, "reason": why} for names, why in unable for name in names],
            **_absent(matrix),
        },
    ):
        return
    print("\n".join([estimate.headline(estimates), *estimate.lines(estimates), "", "why", *explain.lines(reasons)]))
    print(f"\nthis was a dry run; to start it: {command_of(matrix)}")


def _absent(matrix: Matrix) -> dict[str, Any]:
    """The cells that are listed instead of measured, as the JSON of `summary` has them."""
    return {"absent": [vars(cell) for cell in matrix.absent]}


def _cant_run_here(matrix: Matrix) -> list[tuple[list[str], str]]:
    """Topologies of the cells that this machine can't run, and what it lacks for them."""
    from anncestry.runtimes import throttle

    declared = {cell.topology: matrix.config.topologies[cell.topology].storage_limits for cell in matrix.cells}
    found = []
    for even in (False, True):
        limited = [name for name, limits in declared.items() if limits and throttle.is_even(limits.plain) == even]
        if limited and (why := throttle.refused(even=even)):
            found.append((sorted(limited), why))
    return found


def drop(run: Run, options: argparse.Namespace) -> None:
    """Remove cells and the tables and pages that show them; the next run measures them again."""
    _sweep(prune.drop(run.matrix, options.cells, options.load), options)


def gc(run: Run, options: argparse.Namespace) -> None:
    """Remove files that no experiment of the config needs."""
    folder = run.choice.folder
    matrices = [workflow.expand(workflow.Choice(folder, name)) for name in prune.experiments(folder)]
    _sweep(prune.collect([(matrix, make(matrix)) for matrix in matrices], options.results), options)


def _sweep(sweep: prune.Sweep, options: argparse.Namespace) -> None:
    """List the files to remove; with `--yes`, remove them."""
    listed = {"remove": sweep.remove, "keep": sweep.keep}
    if options.yes and sweep.remove:
        workflow.refuse_living(HERE)
    if options.json and options.yes:
        prune.remove(sweep)
    if say_json(
        options,
        lambda: {
            **{what: [vars(item) for item in items] for what, items in listed.items()},
            "left_alone": [{"path": path, "why": why} for path, why in sweep.strange],
            "removed": options.yes,
        },
    ):
        return
    for line in prune.lines(sweep):
        print(line)
    if not sweep.remove:
        print("nothing to remove")
    elif options.yes:
        prune.remove(sweep)
        print(f"removed: {prune.total(sweep)}")
    else:
        print(f"nothing removed; --yes removes {prune.total(sweep)}")


def epochs(run: Run, options: argparse.Namespace) -> None:
    """Report measuring code that changed; accept it with --bump or --attest."""
    from anncestry.provenance import code

    path = run.choice.folder / "epochs.yaml"
    if not path.exists():
        if options.bump or options.attest:
            raise UserError(f"{path}: missing: copy {EPOCHS} there, to have epochs of your own (docs/cells.md)")
        path = EPOCHS
    drifted = code.changed(path)
    if options.bump or options.attest:
        if options.attest and not options.why:
            raise UserError("--attest needs --why REASON: why can no number change?")
        code.settle(path, options.names or drifted, options.why if options.attest else None)
        return
    if drifted:
        raise UserError(
            f"{path}: measuring code of {', '.join(drifted)} changed under the same epoch: "
            "`anncestry epochs --bump` if numbers may change, `--attest --why REASON` if they can't"
        )
    print("no measuring code changed since its epoch")


def leftovers(run: Run, options: argparse.Namespace) -> None:
    """List what killed runs left on this machine: processes, containers, mounts, control groups, copies of data."""
    from anncestry.provenance import platform
    from anncestry.runtimes import leftovers as left

    if platform.measuring():
        raise ServerError("a measurement is running on this machine: wait for its end, then list leftovers")
    found = left.find(HERE)
    if not (as_json := say_json(options, lambda: [{"kind": each.kind, "name": each.name} for each in found])):
        for leftover in found:
            print(f"{leftover.kind}: {leftover.name}")
        if not found:
            print("no leftovers")
    if found and not options.clean and not as_json:
        print("`anncestry leftovers --clean` stops and removes these")
    elif options.clean:
        with platform.alone():  # a measurement that began meanwhile goes on; what is its own is left
            shown = {(each.kind, each.name) for each in found}
            problems = left.clean([each for each in left.find(HERE) if (each.kind, each.name) in shown])
        if problems:
            raise ServerError("; ".join(problems))


def withdraw(run: Run, options: argparse.Namespace) -> None:
    """Remove the collections that an experiment loaded into remote servers; leave all other collections."""
    from anncestry.measure import load

    found = False
    for name in load.withdraw(run.matrix, HERE, options.lost):
        found = True
        print(f"withdrawn: {name}")
    if not found:
        print("no remote server holds a collection of this experiment")


def engine(run: Run, options: argparse.Namespace) -> None:
    """Run a command with a container engine: the running one, or a temporary one."""
    from anncestry.runtimes import dockerd

    words = options.words[1:] if options.words[:1] == ["--"] else options.words
    if not words:
        raise UserError("no command given: `anncestry engine COMMAND …`")
    status = dockerd.run(words, user_cache.folder(), options.install)
    if status:
        raise SystemExit(status if status > 0 else 128 - status)


def add(commands: Any) -> None:
    command(commands, cells, has_json=True)
    parser = command(commands, plan, has_json=True)
    parser.add_argument(
        "--paper", action="store_true", help="estimate memory, disk and time of every cell from a model"
    )
    parser.add_argument("--fit", action="store_true", help="fail if a cell exceeds the declared platform")
    parser = command(commands, drop, has_json=True)
    parser.add_argument(
        "cells", nargs="+", metavar="CELL", help="a query key, or DATASET/SYSTEM/TOPOLOGY/WORKLOAD with wildcards"
    )
    parser.add_argument("--load", action="store_true", help="also remove their loads and everything measured on them")
    parser.add_argument("--yes", action="store_true", help="remove; without it, only say what would go")
    parser = command(commands, gc, has_json=True)
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--results", action="store_true", help="also remove old files in results/")
    choice.add_argument("--keep-results", action="store_false", dest="results", help="keep results/ (the default)")
    parser.add_argument("--yes", action="store_true", help="remove; without it, only say what would go")
    parser = command(commands, epochs)
    parser.add_argument("names", nargs="*", help="stages, engines and features to accept (default: all that changed)")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--bump", action="store_true", help="numbers may change: start a new epoch with new keys")
    choice.add_argument(
        "--attest", action="store_true", help="numbers can't change: keep the epoch, record the new sources"
    )
    parser.add_argument("--why", help="the reason of an attestation")
    parser = command(commands, leftovers, has_json=True)
    parser.add_argument("--clean", action="store_true", help="terminate the processes, remove the rest")
    parser = command(commands, withdraw)
    parser.add_argument(
        "--lost",
        action="store_true",
        help="also remove a collection of anncestry's whose load scratch/ no longer knows, as after `make clean`",
    )
    parser = command(commands, engine)
    parser.add_argument("--install", action="store_true", help="install Debian's docker.io if Docker is missing")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND …", help="the command to run")
