"""Taking back what a load left on a server that somebody else runs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from anncestry import engines
from anncestry.cells.matrix import Matrix
from anncestry.engines.group import as_group
from anncestry.runtimes import remote


def withdraw(matrix: Matrix, here: Path) -> Iterator[str]:
    """Drop the collection of every remote load of `matrix` that was loaded from `here`; yields a name for each.

    Only the collection that this very load made and marked: ServerError if it is gone, or another one stands there.
    What is kept of the load beside its record goes, too, so that asking again loads again.
    """
    for cell in {cell.load: cell for cell in matrix.cells}.values():
        spec = matrix.spec(cell.load, "load")
        folder = here / Path(cell.index_path).parent
        if spec["topology"]["runtime"] != "remote" or not remote.was_loaded(folder / "data"):
            continue
        server = engines.get(spec["system"]["engine"]).start(here, folder / "data", spec["system"], spec["topology"])
        try:
            as_group(server).drop()
        finally:
            server.stop()
        shutil.rmtree(folder)
        yield f"{cell.dataset} of {cell.system}, {cell.topology}"
