"""The commands about the machine and servers: what runs left there, and a container engine to run beside."""

from __future__ import annotations

import argparse
from typing import Any

from anncestry.commands.run import HERE, Run, cache_dir
from anncestry.errors import ServerError, UserError


def leftovers(run: Run, options: argparse.Namespace) -> None:
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


def withdraw(run: Run, options: argparse.Namespace) -> None:
    """Remove what the loads of an experiment left on servers that somebody else runs: our marked collections only."""
    from anncestry.measure.withdraw import withdraw as withdrawn

    found = False
    for name in withdrawn(run.matrix, HERE):
        found = True
        print(f"withdrawn: {name}")
    if not found:
        print("nothing of this experiment is on a server that somebody else runs")


def engine(run: Run, options: argparse.Namespace) -> None:
    """Run a command beside a container engine: the one that answers, else one for the time of the command."""
    from anncestry.runtimes import dockerd

    command = options.words[1:] if options.words[:1] == ["--"] else options.words
    if not command:
        raise UserError("which command? `anncestry engine COMMAND …`")
    status = dockerd.run(command, cache_dir(), options.install)
    if status:
        raise SystemExit(status if status > 0 else 128 - status)


def add(commands: Any) -> None:
    """Add these commands to the program's parser."""
    command = commands.add_parser("leftovers", help=(leftovers.__doc__ or ""))
    command.add_argument("--clean", action="store_true", help="ask the processes to end, remove the rest")
    command.set_defaults(function=leftovers)
    command = commands.add_parser("withdraw", help=(withdraw.__doc__ or ""))
    command.set_defaults(function=withdraw)
    command = commands.add_parser("engine", help=(engine.__doc__ or ""))
    command.add_argument("--install", action="store_true", help="where none is installed, have Debian's docker.io")
    command.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND …", help="what to run")
    command.set_defaults(function=engine)
