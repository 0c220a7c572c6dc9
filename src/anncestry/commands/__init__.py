"""The commands of `anncestry`: each module holds some and their part of the parser. Here: what all of them need."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anncestry import workflow
from anncestry.cells.blocks import sentence
from anncestry.cells.matrix import Matrix

if TYPE_CHECKING:
    from anncestry.measure.server import Place

HERE = Path()


def command(commands: Any, function: Callable[..., None], name: str = "", *, has_json: bool = False) -> Any:
    """Add a command to the parser: named like its function, and with the first line of its docstring as help.

    One that prints a table `has_json`: with `--json` it prints that by `say_json` instead.
    """
    text = (function.__doc__ or "").split("\n")[0].replace("%", "%%")
    parser = commands.add_parser(name or function.__name__, help=text, description=text)
    parser.set_defaults(function=function)
    if has_json:
        parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    return parser


def say_json(options: argparse.Namespace, rows: Callable[[], Any]) -> bool:
    """Print `rows()` as JSON if the options ask for it; returns whether they do. NaN and infinities become null."""
    if getattr(options, "json", False):
        # Control characters are escaped as JSON has them; else what is printed would have them in its own way.
        print(json.dumps(_plain(rows()), indent=1).replace("\x7f", "\\u007f"))
        return True
    return False


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, (str, int, float)) else str(value)


class Run:
    """The matrix, resolved when a command first asks for it."""

    def __init__(self, experiment: str | None, program: Sequence[str] | None = None) -> None:
        self.program = program
        """The arguments of this process, or none if a test called the command."""
        choice = workflow.choice_of_environment()
        self.choice = choice if experiment is None else workflow.Choice(choice.folder, experiment)
        self._matrix: Matrix | None = None

    @property
    def matrix(self) -> Matrix:
        """All cells of the chosen experiment."""
        if self._matrix is None:
            self._matrix, _ = workflow.resolve(self.choice, HERE)
        return self._matrix

    def go_apart(self, keys: Sequence[str]) -> None:
        """Enter a network namespace before measuring servers, unless other machines must reach them.

        `keys` are those of loads or of queries. Downloads happen before, as the namespace has no network.
        """
        asked = [self.matrix.specs[key] for key in keys]
        loads = [self.matrix.specs[spec["load"]] if spec["stage"] == "query" else spec for spec in asked]
        hosts = any("driver_hosts" in spec.get("workload", {}) for spec in asked)
        if self.program is None or hosts or any(load["topology"]["runtime"] != "native" for load in loads):
            return
        from anncestry.drive import build
        from anncestry.runtimes import namespaces, throttle

        build.programs()
        even = any(throttle.is_even(load["topology"].get("storage_limits")) for load in loads)
        if even and not throttle.refused(even=True):  # else the load says what is missing
            throttle.built()
        for spec in asked:
            if "name" in spec.get("client_env", {}):  # else it is anncestry's own
                build.make(spec["client_env"]["name"])
        namespaces.enter(self.program, workflow.needs_interface(load["system"] for load in loads))

    def place(self, vectors: Path, artifact: Path) -> Place:
        """The folders, platform and ports for a load of these vectors."""
        from anncestry.measure.server import Place

        config = self.matrix.config
        return Place(
            vectors=vectors,
            artifact=artifact,
            platform=config.platforms[config.platform],
            first_port=config.load.first_port,
            storage=config.storage,
            disturbance=config.disturbance,
        )


def say_absent(matrix: Matrix) -> None:
    """Print how many cells are listed instead of measured, if any."""
    if said := sentence(matrix.absent):
        print(said)
