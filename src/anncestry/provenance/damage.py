"""Before a run: damaged files get another name, and the run makes them again; complete ones are not made again.

Before a run (and in `snakemake -n` and `anncestry plan`, so that all agree), this checks the JSON and the seal of
every record, and the lengths of the files that it names. The stages that read these files, and `verify`, check their
contents.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from anncestry.cells.matrix import Cell, Matrix, Pair
from anncestry.cells.plan import files
from anncestry.cells.stage import STAGES, stage_at
from anncestry.errors import Damaged, DataError
from anncestry.provenance import prune, records

_MARKS = Path(".snakemake/incomplete")
_STRANGE = (AttributeError, KeyError, TypeError)
"""What reading a record raises whose parts are of other kinds than in its schema, which is not checked here."""


@dataclass
class _Found:
    """What is damaged: why, by the record's path; and the keys, by stage. `whole` are the records that are not."""

    reasons: dict[Path, str] = field(default_factory=dict)
    keys: dict[str, list[str]] = field(default_factory=dict)
    quoting: dict[Path, list[str]] = field(default_factory=dict)
    """By the record of a client's ceiling, the queries that quote it."""
    whole: set[Path] = field(default_factory=set)

    def look(self, path: Path, stage: str, key: str) -> None:
        try:
            record = records.read_sealed(path, stage, key)
            records.check_lengths(path, record)
            ceiling = records.ceiling_of(record)
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
            self.whole.add(path)
            if ceiling is not None:
                self.quoting.setdefault(ceiling, []).append(key)

    def add(self, path: Path, stage: str, key: str, reason: str) -> None:
        self.reasons[path] = reason
        self.keys.setdefault(stage, []).append(key)


def mend(matrix: Matrix) -> list[str]:
    """Set aside what is damaged of a matrix, and what was made from measurements that are; returns a sentence each."""
    damaged = _Found()
    for path, stage, key in _expected(matrix):
        damaged.look(path, stage, key)
    for path in [path for path in damaged.quoting if path.exists()]:
        damaged.look(path, "ceiling", path.stem.rpartition("@")[2])
    _keep_complete(damaged.whole)
    return _set_aside(damaged, matrix)


def _keep_complete(whole: Collection[Path]) -> None:
    """Remove Snakemake's marks of incomplete files from stages whose record, which they write last, is whole.

    A run that is killed after that, and before Snakemake takes note, leaves its marks. The next run would remove the
    files and, of a query, have nothing to make them from.
    """
    for mark in list(_MARKS.rglob("*")):
        output = marked(mark.relative_to(_MARKS))
        stage = stage_at(output)
        if stage is not None and "record" in stage.files:
            record = Path(output) if stage.match(output) else prune.record_of(Path(output))
            if record in whole:
                mark.unlink()


def marked(mark: Path) -> str:
    """The output that a file in `.snakemake/incomplete` or `metadata` is about; empty if it is about none.

    Its name, with its folders `@…` where that is too long, is the output's path in base64.
    """
    try:
        return base64.urlsafe_b64decode("".join(part.removeprefix("@") for part in mark.parts)).decode()
    except ValueError:
        return ""


def mend_one(matrix: Matrix, error: Damaged) -> list[str]:
    """The same for the one record that a stage found damaged, in itself or in a file that it names."""
    damaged = _Found()
    for path, stage, key in _expected(matrix):
        if path == error.record:
            damaged.add(path, stage, key, str(error))
    return _set_aside(damaged, matrix)


def _expected(matrix: Matrix) -> Iterator[tuple[Path, str, str]]:
    """Every record that may be there: its path, stage and key."""
    stages = files(matrix, ("artifact", "download", "normalize", "truth", "load", "record"))
    stages |= files(matrix, ("query", "recall", "pair"))
    paths = {path: (stage.spec, key) for path, (stage, key) in stages.items()}
    for cell in matrix.measured:
        if os.path.isdir(cell.measured_path):  # noqa: PTH112 - called per cell
            stage = "servers" if isinstance(cell, Pair) else "run"
            paths |= {cell.run_path(number): (stage, cell.query) for number in range(matrix.runs_most(cell))}
    for name, path, key in (("table", matrix.table_path, matrix.table), ("report", matrix.report_path, matrix.report)):
        paths[str(Path(path).with_name("record.json"))] = name, key
    return ((Path(path), stage, key) for path, (stage, key) in paths.items())


def _set_aside(damaged: _Found, matrix: Matrix) -> list[str]:
    """Rename what was found, and what is of no use without it."""
    sentences = []
    useless = dict(_useless(damaged, matrix)) if damaged.reasons else {}
    for path, reason in damaged.reasons.items():
        sealed = _sealed_with(path)
        parts = [part for part in sealed if os.path.lexists(part)]
        for part in parts or [path]:
            useless.pop(part, None)
            records.set_aside(part)
        sentences.append(f"{reason}: set aside as {sealed[0]}{records.DAMAGED}, and made again by the next run")
    aside: dict[str, list[Path]] = {}
    for path, why in useless.items():
        if path.parts[0] == "results":
            records.set_aside(path)
            aside.setdefault(why, []).append(path)
        else:
            records.clear(path)
    more = {why: f" and {len(paths) - 1} more" if paths[1:] else "" for why, paths in aside.items()}
    return sentences + [f"{paths[0]}{more[why]}: {why}: set aside, too" for why, paths in aside.items()]


def _sealed_with(record: Path) -> list[Path]:
    """What a record seals and can't be told from what is made next: set aside with it."""
    stage = stage_at(record)
    if stage in (STAGES["record"], STAGES["query"], STAGES["pair"]):
        return prune.files_of(record)
    return [record.parent] if stage in map(STAGES.get, ("table", "report", "run", "servers")) else [record]


def _useless(damaged: _Found, matrix: Matrix) -> Iterator[tuple[Path, str]]:
    """What was made from what is measured anew: another measurement."""
    again = [key for path in damaged.reasons for key in damaged.quoting.get(path, ())]
    if queries := [*damaged.keys.get("query", ()), *damaged.keys.get("pair", ()), *again]:
        # Measured runs that were not published stay: they are of the same load.
        yield from _swept(prune.drop(matrix, queries), "goes with that measurement", ("results", "reports"))
    loads = {cell.load: cell for cell in matrix.loaded}
    lost = {load for load, cell in loads.items() if _is_lost(cell, damaged, matrix)}
    if on_lost := [cell.query for cell in matrix.measured if lost.intersection(cell.loads)]:
        yield from _swept(prune.drop(matrix, on_lost, with_load=True), "was measured on that load")
    if runs := [*damaged.keys.get("run", ()), *damaged.keys.get("servers", ())]:
        # Its session is over, and would not be held again.
        folders = [str(STAGES[name].folder) for name in ("session", "duet")]
        yield from _swept(prune.add_sessions(prune.Sweep(), runs), "its session", folders)
        for cell in (one for one in matrix.measured if one.query in runs and matrix.by_need(one)):
            further = range(matrix.runs(cell), matrix.runs_most(cell))
            for path in (*(Path(cell.run_path(number)).parent for number in further), Path(cell.decided_path)):
                if path.exists() and path / "record.json" not in damaged.reasons:
                    yield path, "was measured because of that run"
    if recalls := damaged.keys.get("recall"):
        yield from _swept(prune.add_published(prune.Sweep(), recalls), "shows it")


def _swept(
    sweep: prune.Sweep, why: str, tops: Iterable[str] = ("results", "reports", "scratch")
) -> Iterator[tuple[Path, str]]:
    return ((item.path, why) for item in sweep.remove if str(item.path).startswith(tuple(tops)))


def _is_lost(cell: Cell, damaged: _Found, matrix: Matrix) -> bool:
    """Whether a load's published record is damaged, and the index here is not (or is not known to be) the same load.

    Where it is, its record is published again, byte by byte what it was.
    """
    if Path(cell.load_path) not in damaged.reasons:
        return False
    try:
        loaded = records.identity(records.read_sealed(Path(cell.index_path), "load", cell.load))
        others = [Path(other.query_path) for other in matrix.measured if cell.load in other.loads]
        named = [
            records.read_sealed(path)["inputs"] for path in others if path not in damaged.reasons and path.exists()
        ]
        published = Path(cell.load_path)
        measured_on = [
            entry["identity"]
            for inputs in named
            for label, entry in inputs.items()
            if label.startswith("load") and Path(entry["path"]) == published
        ]
    except (DataError, *_STRANGE):
        return True
    return any(identity != loaded for identity in measured_on)
