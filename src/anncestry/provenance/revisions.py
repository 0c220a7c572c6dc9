"""Results of git revisions, laid out beside the checkout, which stays as it is.

What `results.dvc` lists at a revision comes from DVC's cache, else from the default remote. Only what a comparison
reads is fetched: records, tables and metrics, not the samples.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from anncestry import durable
from anncestry.errors import DataError
from anncestry.provenance.versioning import pointer_at

FOLDER = Path("scratch/revision")
"""Where results are laid out, below the root: a folder for each listing, whose content never changes."""

_STAGES = ("load", "query", "recall", "metrics")
_NAMES_MAX = 12


class Revisions:
    """The revisions of the repository that holds `root`; there are none where there is no git."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def commit(self, name: str) -> str:
        """The full hash of the commit that git understands by `name` (HEAD~3, a tag, a branch); empty if none."""
        return self._git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}").strip()

    def names(self) -> list[str]:
        """Branches and tags, the newest first, for people; the rest as a number."""
        found = self._git(
            "for-each-ref", "--sort=-creatordate", "--format=%(refname:short)", "refs/heads", "refs/tags"
        ).split()
        more = [f"{len(found) - _NAMES_MAX} more"] if len(found) > _NAMES_MAX else []
        return found[:_NAMES_MAX] + more

    def results(self, name: str) -> Path:
        """The folder with the records, tables and metrics that were kept at a revision.

        DataError if nothing was kept then, or if neither cache nor remote has it.
        """
        commit = self.commit(name)
        pointer = pointer_at(self._root, "results", commit)
        if pointer is None:
            raise DataError(f"revision {name} ({commit[:12]}): no results were kept then (`anncestry keep` keeps them)")
        folder = self._root / FOLDER / pointer.listing
        if not folder.is_dir():
            self._lay_out(name, commit, folder)
        return folder / "results"

    def _lay_out(self, name: str, commit: str, folder: Path) -> None:
        """Fetch into a folder of another name first: one that is there is complete."""
        from dvc.api import DVCFileSystem  # takes a second

        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".", dir=folder.parent))
        try:
            tree = DVCFileSystem(str(self._root), rev=commit)
            wanted = [path for path in tree.find("results") if _is_read(path)]
            tree.get(wanted, [str(temporary / path) for path in wanted])
            if not folder.is_dir():
                durable.place(temporary, folder)
        except Exception as error:  # DVC's errors, and those of its remotes' libraries, have no root in common
            raise DataError(
                f"revision {name} ({commit[:12]}): its results are neither in DVC's cache nor to be had from the remote"
                f" ({str(error) or type(error).__name__})"
            ) from None
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _git(self, *arguments: str) -> str:
        """What git says; nothing where it fails, or isn't there."""
        try:
            return subprocess.run(
                ["git", "-C", str(self._root), *arguments],
                capture_output=True,
                text=True,
                check=False,
                stdin=subprocess.DEVNULL,
            ).stdout
        except FileNotFoundError:
            return ""


def _is_read(path: str) -> bool:
    """Whether a comparison reads a file of the results."""
    _, stage, *_ = Path(path).parts
    return path.endswith(".json") if stage in _STAGES else path.endswith("/numbers.parquet") and stage == "table"
