"""What every command is given: the matrix that is meant, and where things lie."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from anncestry import user_cache, workflow
from anncestry.cells.config import DEFAULT_EXPERIMENT
from anncestry.cells.matrix import Cell, Matrix

if TYPE_CHECKING:
    from anncestry.measure.load import Place

HERE = Path()


def cache_dir() -> Path:
    """Where downloads and builds are kept for the next checkout; never needed, always verified before use."""
    return user_cache.folder()


class Run:
    """The matrix, resolved when a command first asks for it."""

    def __init__(self, experiment: str | None, program: Sequence[str] | None = None) -> None:
        self.program = program
        """The arguments of this program, where a command is all that the process is for."""
        choice = workflow.choice_of_environment()
        self.choice = choice if experiment is None else workflow.Choice(choice.folder, experiment)
        self._matrix: Matrix | None = None

    @property
    def matrix(self) -> Matrix:
        """All cells of the experiment that is meant."""
        if self._matrix is None:
            self._matrix, _ = workflow.resolve(self.choice, HERE)
        return self._matrix

    def go_apart(self, keys: Sequence[str]) -> None:
        """Before servers are measured: go on in a network of their own, where nobody from outside has to get in.

        `keys` are those of the load, or of the queries. What has to be fetched is fetched before.
        """
        asked = [self.matrix.specs[key] for key in keys]
        loaded = self.matrix.specs[asked[0]["load"]] if asked[0]["stage"] == "query" else asked[0]
        hosts = any("driver_hosts" in spec.get("workload", {}) for spec in asked)
        if self.program is None or hosts or loaded["topology"]["runtime"] != "native":
            return
        from anncestry.drive import build
        from anncestry.runtimes import client_env, namespaces

        build.programs()
        for spec in asked:
            if "client_env" in spec:
                client_env.interpreter(spec["client_env"]["name"])
        namespaces.enter(self.program)

    def place(self, cell: Cell) -> Place:
        """Where the load of a cell is measured."""
        from anncestry.measure.load import Place

        config = self.matrix.config
        return Place(
            vectors=Path(cell.vectors_path),
            artifact=Path(cell.artifact_path),
            platform=config.platforms[config.platform],
            first_port=config.load.get("first_port"),
            storage=config.storage,
        )


def say_absent(matrix: Matrix) -> None:
    """How many cells are listed instead of measured, if any is."""
    from anncestry.cells.absent import sentence

    if said := sentence(matrix.absent):
        print(said)


def command_of(matrix: Matrix) -> str:
    """What a user types to run all of an experiment."""
    name = matrix.config.experiment
    return "snakemake --cores 8 all" + ("" if name == DEFAULT_EXPERIMENT else f" --config experiment={name}")
