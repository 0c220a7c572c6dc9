"""Removing what was measured or made: a cell, to measure it anew; old keys, to have their space back.

Both first say what they would remove. What is not recognised as a file of this program (another name, no record, or
not below the working directory) is named and left alone; links are never followed.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from anncestry.cells.config import DEFAULT_EXPERIMENT
from anncestry.cells.matrix import Cell, Matrix
from anncestry.cells.plan import Plan, Session, attempt_key
from anncestry.errors import DataError, UserError
from anncestry.provenance import running
from anncestry.provenance.records import DAMAGED, read_json
from anncestry.provenance.revisions import FOLDER as REVISIONS

_KEY = re.compile(r"^[0-9a-f]{12}\Z")
_KEYED = re.compile(r"^(?P<name>[^/@]+)@(?P<key>[0-9a-f]{12})\Z")
_RECORD_FILE = re.compile(
    r"^(?P<stem>[^/@]+@(?P<key>[0-9a-f]{12}))(?P<end>\.json|\.samples\.parquet|\.resources\.parquet|\.writes\.parquet)\Z"
)
_LINK = "lies outside of this folder, behind a link"


@dataclass(frozen=True)
class Item:
    """A file or folder of this program, what it is, and the bytes that it takes on disk."""

    path: Path
    what: str
    bytes: int


@dataclass
class Sweep:
    """What is to be removed, in that order; what could be, but is kept; and what is left alone, with the reason."""

    remove: list[Item] = field(default_factory=list)
    keep: list[Item] = field(default_factory=list)
    strange: list[tuple[Path, str]] = field(default_factory=list)

    def add(self, path: Path, what: str, keep: bool = False) -> None:
        """Take up something that is there, if it lies in the working directory."""
        if not os.path.lexists(path):
            return
        if not _inside(path):
            self.strange.append((path, _LINK))
            return
        (self.keep if keep else self.remove).append(Item(path, what, _bytes(path)))


def _inside(path: Path) -> bool:
    """Whether the folder that holds `path` lies in the working directory, whatever links lead to it."""
    return not path.is_absolute() and path.parent.resolve().is_relative_to(Path.cwd().resolve())


def _bytes(path: Path) -> int:
    """Bytes on disk of a file, or of all files below a folder; a link counts as itself."""
    total = 512 * path.lstat().st_blocks
    if path.is_dir() and not path.is_symlink():
        for folder, folders, files in os.walk(path):
            total += sum(512 * (Path(folder) / name).lstat().st_blocks for name in (*folders, *files))
    return total


def remove(sweep: Sweep) -> None:
    """Remove what the sweep lists, in its order, and the folders below the stages' that are empty then.

    DataError while Snakemake runs here: what is of no use to the present config may be what it works on.
    """
    refuse_while_running()
    for item in sweep.remove:
        if not _inside(item.path):
            raise DataError(f"{item.path}: {_LINK}")
        discard(item.path)
        for parent in list(item.path.parents)[:-3]:
            if any(parent.iterdir()):
                break
            parent.rmdir()


def discard(path: Path) -> None:
    """Remove a file, a link, or a folder with all in it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def refuse_while_running() -> None:
    """DataError if a run of the workflow is at work in the working directory."""
    if running.at_work(Path()):
        raise DataError("Snakemake is running in this folder, and may need what is to go: wait for it")


# Drop


def choose(matrix: Matrix, wanted: Sequence[str]) -> list[Cell]:
    """The cells that `wanted` names: query keys, or DATASET/SYSTEM/TOPOLOGY/WORKLOAD with shell-style wildcards.

    UserError for one that names no cell of the matrix.
    """
    chosen: dict[str, Cell] = {}
    for text in wanted:
        if _KEY.match(text):
            matrix.spec(text, "query")
            found = [matrix.cell(text)]
        else:
            found = [cell for cell in matrix.cells if _matches(cell, text)]
        if not found:
            raise UserError(
                f"no cell of experiment {matrix.config.experiment} is {text!r}: `anncestry cells` lists them"
            )
        chosen.update((cell.query, cell) for cell in found)
    return [cell for cell in matrix.cells if cell.query in chosen]


def _matches(cell: Cell, pattern: str) -> bool:
    parts = pattern.split("/")
    names = (cell.dataset, cell.system, cell.topology, cell.workload)
    if len(parts) != len(names):
        raise UserError(
            f"{pattern!r} is neither a query key nor DATASET/SYSTEM/TOPOLOGY/WORKLOAD (`*` matches any name)"
        )
    return all(fnmatchcase(name, part) for name, part in zip(names, parts, strict=True))


def drop(matrix: Matrix, wanted: Sequence[str], with_load: bool = False) -> Sweep:
    """What there is of the wanted cells, and of every table and page with their numbers.

    With their loads goes everything that was measured on them, by any experiment: its records name a load record that
    would be another one. Nothing that shows a cell outlives its record, should the removal be interrupted.
    """
    chosen = choose(matrix, wanted)
    loads = {cell.load: cell for cell in chosen} if with_load else {}
    # What was upgraded in place from one of these is of data that would be loaded anew.
    loads |= {cell.load: cell for cell in matrix.cells if any(older.load in loads for older in cell.chain)}
    cells = [*chosen, *(cell for cell in matrix.cells if cell.load in loads)]
    queries = {cell.query: Path(cell.query_path) for cell in cells}
    recalls = {cell.recall: Path(cell.recall_path) for cell in cells}
    sweep = Sweep()
    for cell in loads.values():
        _add_made_from(sweep, queries, "query", cell.where, "load", loads)
    for where in {cell.where: None for cell in chosen}:
        _add_made_from(sweep, recalls, "recall", where, "query", queries)
    _sessions_of(sweep, queries)
    _published(sweep, queries.keys() | recalls.keys() | loads.keys())
    for path in recalls.values():
        sweep.add(path, f"recall of {_cell_of(path)}")
    for path in queries.values():
        for part in files_of(path):
            sweep.add(part, f"measurement of {_cell_of(path)}")
    for cell in loads.values():
        for part in files_of(Path(cell.load_path)):
            sweep.add(part, f"load of {cell.where}")
        sweep.add(Path(cell.index_path).parent, f"index of {cell.where}")
    return sweep


def _cell_of(record: Path) -> str:
    """DATASET/SYSTEM/TOPOLOGY/WORKLOAD of a published record."""
    return "/".join((*record.parts[2:-1], record.stem.rpartition("@")[0]))


def _add_made_from(
    sweep: Sweep, found: dict[str, Path], stage: str, where: str, source: str, keys: Collection[str]
) -> None:
    """Add to `found` the records of a stage in one folder whose spec says that they were made from one of the keys.

    Those of the present matrix are not all: another experiment, or an earlier epoch, has its own.
    """
    for path in _entries(sweep, f"results/{stage}/{where}"):
        named = _RECORD_FILE.match(path.name)
        if not named or named["end"] != ".json" or named["key"] in found:
            continue
        spec = _spec_of(path, stage, named["key"])
        if spec is None:
            sweep.strange.append((path, f"is no record of {stage} {named['key']}"))
        elif spec.get(source) in keys:
            found[named["key"]] = path


def showing(keys: Collection[str]) -> Sweep:
    """Tables and pages that show one of the keys."""
    sweep = Sweep()
    _published(sweep, keys)
    return sweep


def unpublished(queries: Collection[str]) -> Sweep:
    """What sessions left of these queries."""
    sweep = Sweep()
    _sessions_of(sweep, queries)
    return sweep


def record_of(file: Path) -> Path:
    """The record that a file in results/ is published with, by its name; the file itself if it is none of ours."""
    named = _RECORD_FILE.match(file.name)
    return file.with_name(f"{named['stem']}.json") if named else file.with_name(f"{file.name}.json")


def files_of(record: Path) -> list[Path]:
    """A record and what is published beside it, the record first: a present record means a complete stage."""
    return [record, *(record.with_name(f"{record.stem}.{part}.parquet") for part in ("samples", "resources", "writes"))]


def _published(sweep: Sweep, keys: Collection[str]) -> None:
    """Tables and pages, of any experiment and key, that name one of the keys; and the pages' lasting copies."""
    places = {"results/report": "page", "results/table": "table", "reports": "copy of the page"}
    for folder, what in ((folder, what) for place, what in places.items() for folder in _entries(sweep, place)):
        if folder.parts[0] != "reports" and not _KEYED.match(folder.name):
            sweep.strange.append((folder, "not a name of ours"))
            continue
        named = _keys_in(folder / "numbers.csv")
        if named is None:
            sweep.strange.append(
                (folder, f"has no numbers.csv that can be read, so which cells this {what} shows is unknown")
            )
        elif not named.isdisjoint(keys):
            sweep.add(folder, f"{what} with these cells")


def _keys_in(numbers: Path) -> set[str] | None:
    """The keys whose numbers a table holds; None if it isn't a table of numbers."""
    try:
        with open(numbers, newline="") as file:
            rows = csv.reader(file)
            at = next(rows, []).index("key")
            return {row[at] for row in rows if len(row) > at}
    except (OSError, ValueError, UnicodeDecodeError, csv.Error):
        return None


def _sessions_of(sweep: Sweep, queries: Collection[str]) -> None:
    """Sessions of which a part was measured but not published: else the next run would publish that part."""
    for folder in _entries(sweep, "scratch/session"):
        members = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        try:
            members |= json.loads((folder / "session.json").read_text())["cells"].keys()
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            pass  # a session that was interrupted has no list of its cells
        if not members.isdisjoint(queries):
            sweep.add(folder, "left over from a session with these cells")
    for folder in _entries(sweep, "scratch/measured"):
        if folder.name in queries:
            sweep.add(folder, "measured runs that were not published")


# Collecting garbage


def experiments(config_folder: Path) -> list[str]:
    """All experiments of a config folder, the default one first."""
    return [DEFAULT_EXPERIMENT, *sorted(path.stem for path in (config_folder / "experiments").glob("*.yaml"))]


def collect(needed: Sequence[tuple[Matrix, Plan]], results: bool = False) -> Sweep:
    """What none of the matrices needs: scratch first, then data, then results (kept unless `results`)."""
    matrices = [matrix for matrix, _ in needed]
    keys = {key for matrix in matrices for key in matrix.specs}
    sessions = {key for _, plan in needed for session in plan.sessions.values() for key in _attempts(session)}
    sweep = Sweep()
    for top in _PLACES:
        for path in (*Path(top).glob(f"*/*{DAMAGED}"), *Path(top).glob(f"*/*/**/*{DAMAGED}")):
            sweep.add(path, "set aside, as it was damaged", keep=top == "results" and not results)
    for folder in _entries(sweep, "scratch/index"):
        _scratch(sweep, folder, keys, "stored index")
    for folder in _entries(sweep, "scratch/artifact"):
        _scratch(sweep, folder, keys, "artifact")
    for folder in _entries(sweep, "scratch/session"):
        _scratch(sweep, folder, sessions, "left over from a session")
    for folder in _entries(sweep, "scratch/measured"):
        _scratch(sweep, folder, keys, "measured runs that were not published")
    for folder in _entries(sweep, "scratch/truth"):
        whole = (Path("data/truth") / folder.name / "record.json").exists()
        _scratch(sweep, folder, set() if whole else keys, "parts of truth")
    for folder in _entries(sweep, REVISIONS):
        sweep.add(folder, "results of a revision, laid out to be compared")
    for place, stage in (("truth", "truth"), ("vectors", "normalize"), ("download", "download")):
        for folder in _entries(sweep, f"data/{place}"):
            _data(sweep, folder, keys, stage)
    for place in ("report", "table"):
        for folder in _entries(sweep, f"results/{place}"):
            _made(sweep, folder, keys, place, keep=not results)
    for stage in ("recall", "query", "load"):
        for folder in _folders(sweep, Path("results") / stage):
            _measured(sweep, folder, keys, stage, keep=not results)
    _others(sweep)
    return sweep


def _attempts(session: Session) -> Iterator[str]:
    """Keys of a session's earlier attempts, whose marks say that they failed, and its own."""
    attempt = 0
    while True:
        key = attempt_key(session, attempt)
        yield key
        if key == session.key:
            return
        attempt += 1


_PLACES: Mapping[str, frozenset[str]] = {
    "scratch": frozenset({"index", "artifact", "session", "measured", "truth", "revision"}),
    "data": frozenset({"truth", "vectors", "download", ".gitignore"}),
    "results": frozenset(
        {"load", "query", "recall", "table", "report", "platform", "ceiling", "metrics", "plots", ".gitignore"}
    ),
}


def _others(sweep: Sweep) -> None:
    """Name what lies beside the stages' folders."""
    for top, known in _PLACES.items():
        for path in _entries(sweep, top):
            if path.name not in known:
                sweep.strange.append((path, "not a name of ours"))


def _entries(sweep: Sweep, folder: str | Path) -> list[Path]:
    """What lies in a folder of the working directory; one that is a link to elsewhere is named, and not looked into."""
    folder = Path(folder)
    if not folder.is_dir():
        return []
    if not _inside(folder / "entry"):
        if (folder, _LINK) not in sweep.strange:
            sweep.strange.append((folder, _LINK))
        return []
    return sorted(path for path in folder.iterdir() if not path.name.endswith(DAMAGED))


def _folders(sweep: Sweep, top: Path) -> Iterator[Path]:
    """The folder and all below it, links not followed."""
    if _entries(sweep, top):
        for folder, _, _ in os.walk(top):
            yield Path(folder)


def _scratch(sweep: Sweep, folder: Path, needed: set[str], what: str) -> None:
    """A folder in scratch/, which is known by its name: an interrupted stage leaves no record."""
    keyed = _KEYED.match(folder.name)
    key = keyed["key"] if keyed else folder.name
    if not _KEY.match(key) or not folder.is_dir():
        sweep.strange.append((folder, "not a name of ours"))
    elif key not in needed:
        sweep.add(folder, what + (f" of {keyed['name']}" if keyed else _label(folder / "record.json")))


def _label(record: Path) -> str:
    """What a stored index is of, if its record can be read."""
    spec = _spec_of(record, "load", record.parent.name)
    return "" if spec is None else " of " + "/".join(spec[axis]["name"] for axis in ("dataset", "system", "topology"))


def _spec_of(path: Path, stage: str, key: str) -> dict[str, Any] | None:
    """The spec in a record of this stage and key, of whatever version; None if it isn't one."""
    try:
        record = read_json(path)
    except (DataError, OSError):
        return None
    ours = isinstance(record, dict) and record.get("stage") == stage and record.get("key") == key
    return record["spec"] if ours and isinstance(record.get("spec"), dict) else None


def _data(sweep: Sweep, folder: Path, needed: set[str], stage: str) -> None:
    keyed = _KEYED.match(folder.name)
    if not keyed or not folder.is_dir():
        sweep.strange.append((folder, "not a name of ours"))
    elif keyed["key"] not in needed:
        if _spec_of(folder / "record.json", stage, keyed["key"]) is not None:
            sweep.add(folder, f"{stage} of {keyed['name']}")
        else:
            sweep.strange.append((folder, f"has no record of {stage} {keyed['key']}"))


def _made(sweep: Sweep, folder: Path, needed: set[str], place: str, keep: bool) -> None:
    keyed = _KEYED.match(folder.name)
    if not keyed or not folder.is_dir():
        sweep.strange.append((folder, "not a name of ours"))
    elif keyed["key"] not in needed:
        if (folder / "numbers.csv").exists():
            sweep.add(folder, f"{place} of {keyed['name']}", keep)
        else:
            sweep.strange.append((folder, "has no numbers.csv"))


def _measured(sweep: Sweep, folder: Path, needed: set[str], stage: str, keep: bool) -> None:
    """The files of one folder of results: those of a record of an old key together, the record first."""
    for path in _entries(sweep, folder):
        if path.is_dir() and not path.is_symlink():
            continue
        named = _RECORD_FILE.match(path.name)
        if not named:
            sweep.strange.append((path, "not a name of ours"))
        elif named["key"] not in needed:
            record = path.with_name(named["stem"] + ".json")
            if _spec_of(record, stage, named["key"]) is None:
                sweep.strange.append((path, f"has no record of {stage} {named['key']}"))
            elif path == record:
                for part in files_of(record):
                    sweep.add(part, f"{stage} of {'/'.join(folder.parts[2:])}", keep)


# For people


def size(count: float) -> str:
    """Bytes in the unit that people would use."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 10 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def lines(sweep: Sweep) -> list[str]:
    """What a sweep would remove (the files of one thing as one line), what it keeps, and what it leaves alone."""
    things: dict[str, list[Item]] = {}
    for item in sweep.remove:
        things.setdefault(item.what, []).append(item)
    shown = []
    for what, items in things.items():
        more = f" and {len(items) - 1} more" if len(items) > 1 else ""
        shown.append(f"{size(sum(item.bytes for item in items)):>10}  {what}: {items[0].path}{more}")
    if sweep.keep:
        kept = size(sum(item.bytes for item in sweep.keep))
        shown.append(
            f"kept: {len(sweep.keep)} files and folders of other keys in results/, {kept}; --results removes them"
        )
    return shown + [f"left alone: {path}: {why}" for path, why in sweep.strange]


def total(sweep: Sweep) -> str:
    """How much a sweep removes."""
    number = len(sweep.remove)
    return f"{number} {'path' if number == 1 else 'paths'}, {size(sum(item.bytes for item in sweep.remove))}"
