"""`anncestry guard`: base against head."""

from __future__ import annotations

import argparse
import re
from contextlib import chdir
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anncestry.commands import Run, command, results, say_json
from anncestry.errors import UserError

if TYPE_CHECKING:
    from anncestry.guard import Asked

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}


def guard(run: Run, options: argparse.Namespace) -> None:
    """Tell whether a head is slower, or finds less, than its base: both at once. Exit: 0 no, 3 yes, 4 can't tell."""
    from anncestry import guard as guarding
    from anncestry import workflow
    from anncestry.report.model.verdicts import rule_of

    asked = _asked(options)
    folder: Path = options.folder
    choice = guarding.prepare(asked, run.choice.folder, folder)
    if options.keys:
        keys = guarding.keys(workflow.expand(choice))
        if not say_json(options, lambda: keys):
            print("\n".join(f"{name}={key}" for name, key in keys.items()))
        return
    guarding.measure(choice, folder, options.cores, says_json=options.json)
    matrix = workflow.expand(choice)
    with chdir(folder):
        page = folder / results.current_page(matrix)  # what was measured before is not what was drawn last
    found = guarding.findings(matrix, folder, asked.quantities, rule_of(matrix.config))
    guarding.write(asked, found, folder)
    if not say_json(options, lambda: {**guarding.facts(found), "page": page}):
        print(guarding.text(asked, found), end="")
        print(f"page: {page}")
    if status := guarding.status(found):
        raise SystemExit(status)


def _asked(options: argparse.Namespace) -> Asked:
    """What the options ask; what none says, the file says, and else the default."""
    from anncestry import guard as guarding

    file = guarding.from_file(options.metrics) if options.metrics else {}

    def chosen(option: Any, name: str, default: Any) -> Any:
        return file.get(name, default) if option is None else option

    return guarding.Asked(
        options.base,
        options.head,
        chosen(options.dataset, "datasets", ["fashion-mnist-784-euclidean"]),
        chosen(options.workload, "workloads", ["k10-clients4"]),
        list(dict.fromkeys(chosen(options.quantity, "quantities", guarding.DEFAULT))),
        chosen(options.target_recall, "target_recall", None),
        chosen(options.margin, "margin_percent", 5.0),
        seconds(chosen(options.budget, "budget", "10m")),
    )


def seconds(text: str) -> float:
    """Seconds of "10m", "90s" or "1.5h"; UserError for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if found is None:
        raise UserError(f"--budget {text}: is no time; write 90s, 10m or 1.5h")
    return float(found[1]) * _UNITS_S[found[2]]


def add(commands: Any) -> None:
    parser = command(commands, guard, has_json=True)
    for side in ("base", "head"):
        parser.add_argument(
            f"--{side}", required=True, metavar="SYSTEM", help="or SYSTEM=PATH, or SYSTEM@EFFORT (docs/guard.md)"
        )
    parser.add_argument("--dataset", action="append", metavar="NAME", help="default: fashion-mnist-784-euclidean")
    parser.add_argument("--workload", action="append", metavar="NAME", help="a closed loop (default: k10-clients4)")
    parser.add_argument("--quantity", action="append", metavar="NAME", help="what is judged (docs/guard.md)")
    parser.add_argument("--target-recall", type=float, metavar="R", help="ask each side at the effort that reaches it")
    parser.add_argument("--margin", type=float, metavar="PERCENT", help="no regression within it (default: 5)")
    parser.add_argument("--budget", help="time for the measurement of pairs (default: 10m)")
    parser.add_argument("--metrics", type=Path, metavar="FILE", help="YAML with all these; an option overrides it")
    folder = "where it works; kept for the next call (default: guard)"
    parser.add_argument("--folder", type=Path, default=Path("guard"), help=folder)
    parser.add_argument("--keys", action="store_true", help="only print the keys of dataset, truth and driver")
    parser.add_argument("--cores", type=int, default=8, help="as for snakemake (default: 8)")
