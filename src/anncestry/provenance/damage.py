"""What is damaged is never believed and never in the way: it gets another name, that is said, and it is made again.

Looked at before a run (and by `snakemake -n` and `anncestry plan`, so that all agree): of every record its JSON and its
seal, of the files that it names their lengths. Their contents are for the stages that read them, and for `verify`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from anncestry.cells.matrix import Cell, Matrix
from anncestry.errors import Damaged, DataError
from anncestry.provenance import links, prune, records

_STRANGE = (AttributeError, KeyError, TypeError)
"""What comes of a record whose parts are of other kinds than its schema says, which is not asked here."""


@dataclass
class _Found:
    """What is damaged: why, by the record's path; and the keys, by stage."""

    reasons: dict[Path, str] = field(default_factory=dict)
    keys: dict[str, list[str]] = field(default_factory=dict)
    quoting: dict[Path, list[str]] = field(default_factory=dict)
    """By the record of a client's ceiling, the queries that quote it."""

    def look(self, path: Path, stage: str, key: str) -> None:
        """Note a record that is there and is not whole."""
        try:
            record = records.read_sealed(path, stage, key)
            records.check_lengths(path, record)
            ceiling = links.ceiling(record) if stage == "query" else None
        except Damaged as error:
            self.add(path, stage, key, str(error))
        except DataError:
            # Not there: but files without the record that seals them are no table and no page.
            alone = stage in ("table", "report") and not path.exists() and path.parent.is_dir()
            if alone and any(path.parent.iterdir()):
                self.add(path, stage, key, f"{path}: missing, beside what it should seal")
        except _STRANGE:
            self.add(path, stage, key, f"{path}: sealed, but not as anncestry writes records")
        else:
            if ceiling is not None:
                self.quoting.setdefault(ceiling, []).append(key)

    def add(self, path: Path, stage: str, key: str, reason: str) -> None:
        """Note one."""
        self.reasons[path] = reason
        self.keys.setdefault(stage, []).append(key)


def mend(matrix: Matrix) -> list[str]:
    """Set aside what is damaged of a matrix, and what was made from measurements that are; returns a sentence each."""
    found = _Found()
    for path, stage, key in _expected(matrix):
        found.look(path, stage, key)
    for path in [path for path in found.quoting if path.exists()]:
        found.look(path, "ceiling", path.stem.rpartition("@")[2])
    return _set_aside(found, matrix)


def mend_one(matrix: Matrix, error: Damaged) -> list[str]:
    """The same for the one record that a stage found damaged, in itself or in a file that it names."""
    found = _Found()
    for path, stage, key in _expected(matrix):
        if path == error.record:
            found.add(path, stage, key, str(error))
    return _set_aside(found, matrix)


def _expected(matrix: Matrix) -> Iterator[tuple[Path, str, str]]:
    """Every record that may be there: its path, stage and key."""
    paths: dict[str, tuple[str, str]] = {}
    for cell in chain.from_iterable((*cell.chain, cell) for cell in matrix.cells):
        paths[cell.artifact_path] = "artifact", cell.artifact
        paths[cell.download_path] = "download", cell.download
        paths[cell.vectors_path] = "normalize", cell.vectors
        paths[cell.truth_path] = "truth", cell.truth
        paths[cell.index_path] = paths[cell.load_path] = "load", cell.load
    for cell in matrix.cells:
        paths[cell.query_path] = "query", cell.query
        paths[cell.recall_path] = "recall", cell.recall
        if os.path.isdir(cell.measured_path):  # noqa: PTH112 - called per cell
            paths |= {cell.run_path(number): ("run", cell.query) for number in range(matrix.runs(cell))}
    paths[str(Path(matrix.table_path).with_name("record.json"))] = "table", matrix.table
    paths[str(Path(matrix.report_path).with_name("record.json"))] = "report", matrix.report
    return ((Path(path), stage, key) for path, (stage, key) in paths.items())


def _set_aside(found: _Found, matrix: Matrix) -> list[str]:
    """Rename what was found, and what is of no use without it."""
    said = []
    useless = dict(_useless(found, matrix)) if found.reasons else {}
    for path, reason in found.reasons.items():
        parts = [part for part in _sealed_with(path) if os.path.lexists(part)]
        for part in parts or [path]:
            useless.pop(part, None)
            records.set_aside(part)
        said.append(f"{reason}: set aside as {_sealed_with(path)[0]}{records.DAMAGED}, to be made again")
    aside: dict[str, list[Path]] = {}
    for path, why in useless.items():
        if path.parts[0] == "results":
            records.set_aside(path)
            aside.setdefault(why, []).append(path)
        else:
            prune.discard(path)
    more = {why: f" and {len(paths) - 1} more" if paths[1:] else "" for why, paths in aside.items()}
    return said + [f"{paths[0]}{more[why]}: {why}: set aside, too" for why, paths in aside.items()]


def _sealed_with(record: Path) -> list[Path]:
    """What a record seals and can't be told from what is made next: set aside with it."""
    if record.parts[:2] in (("results", "load"), ("results", "query")):
        return prune.files_of(record)
    return [record.parent] if record.parts[1] in ("table", "report", "measured") else [record]


def _useless(found: _Found, matrix: Matrix) -> Iterator[tuple[Path, str]]:
    """What was made from what is measured anew: another measurement."""
    again = [key for path in found.reasons for key in found.quoting.get(path, ())]
    if queries := [*found.keys.get("query", ()), *again]:
        # Measured runs that were not published stay: they are of the same load.
        yield from _swept(prune.drop(matrix, queries), "goes with that measurement", ("results", "reports"))
    loads = {cell.load: cell for cell in matrix.cells}
    lost = {load for load, cell in loads.items() if _is_lost(cell, found, matrix)}
    if on_lost := [cell.query for cell in matrix.cells if cell.load in lost]:
        yield from _swept(prune.drop(matrix, on_lost, with_load=True), "was measured on that load")
    if runs := found.keys.get("run"):
        # Its session is over, and would not be held again.
        yield from _swept(prune.unpublished(runs), "its session", ("scratch/session",))
    if recalls := found.keys.get("recall"):
        yield from _swept(prune.showing(recalls), "shows it")


def _swept(
    sweep: prune.Sweep, why: str, tops: Iterable[str] = ("results", "reports", "scratch")
) -> Iterator[tuple[Path, str]]:
    return ((item.path, why) for item in sweep.remove if str(item.path).startswith(tuple(tops)))


def _is_lost(cell: Cell, found: _Found, matrix: Matrix) -> bool:
    """Whether a load's published record is damaged, and the index here is not (or is not known to be) the same load.

    Where it is, its record is published again, byte by byte what it was.
    """
    if Path(cell.load_path) not in found.reasons:
        return False
    try:
        loaded = records.identity(records.read_sealed(Path(cell.index_path), "load", cell.load))
        others = [Path(other.query_path) for other in matrix.cells if other.load == cell.load]
        measured_on = [
            records.read_sealed(path)["inputs"]["load"]["identity"]
            for path in others
            if path not in found.reasons and path.exists()
        ]
    except (DataError, *_STRANGE):
        return True
    return any(identity != loaded for identity in measured_on)
