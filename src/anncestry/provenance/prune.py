"""Remove a cell to measure it again, or old keys to free space.

Both first list the files to remove. They report and keep unknown files (another name, no record, or outside the
working directory) and never follow links.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import count, takewhile
from pathlib import Path
from typing import Any

from anncestry.cells.config import DEFAULT_EXPERIMENT
from anncestry.cells.matrix import Cell, Matrix, Pair
from anncestry.cells.plan import Plan, Session, session_key
from anncestry.cells.stage import PAGES, RECORDS, STAGES, Stage
from anncestry.errors import DataError, UserError
from anncestry.provenance import explain, running
from anncestry.provenance.attempts import Ledger
from anncestry.provenance.records import DAMAGED, clear, peek
from anncestry.provenance.versioning import REVISIONS

_KEY = re.compile(r"^[0-9a-f]{12}\Z")
_KEYED = re.compile(r"^((?P<name>[^/@]+)@)?(?P<key>[0-9a-f]{12})\Z")
_PUBLISHED = (*STAGES["query"].files, *STAGES["query"].beside, *STAGES["pair"].files)
_PARTS = tuple(dict.fromkeys(label for label in _PUBLISHED if label != "record"))
"""What may be published beside a record."""
_RECORD_FILE = re.compile(
    rf"^(?P<stem>[^/@]+@(?P<key>[0-9a-f]{{12}}))(?P<end>\.json|\.({'|'.join(_PARTS)})\.parquet)\Z"
)
_LINK = "lies outside of this folder, behind a link"
_OTHER_NAME = "not a name of ours"


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
    drops: dict[Path, dict[str, Any]] = field(default_factory=dict)
    """What ledgers of attempts are to say of it, before it is removed."""

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
    inside = path.rglob("*") if path.is_dir() and not path.is_symlink() else ()
    return sum(512 * each.lstat().st_blocks for each in (path, *inside))


def remove(sweep: Sweep) -> None:
    """Remove what the sweep lists, in its order, and the folders below the stages' that are empty then.

    DataError while Snakemake runs here: what is of no use to the present config may be what it works on.
    """
    with running.standing_still(Path(), "remove these files, which it may need,"):
        for path, said in sweep.drops.items():
            Ledger(path).add("drop", **said)
        for item in sweep.remove:
            if not _inside(item.path):
                raise DataError(f"{item.path}: {_LINK}")
            clear(item.path)
            for parent in list(item.path.parents)[:-3]:
                if any(parent.iterdir()):
                    break
                parent.rmdir()


# Drop


def choose(matrix: Matrix, wanted: Sequence[str]) -> list[Cell | Pair]:
    """The cells and pairs that `wanted` names: keys, or DATASET/SYSTEM/TOPOLOGY/WORKLOAD with shell-style wildcards.

    UserError for one that names no cell of the matrix.
    """
    chosen: dict[str, Cell | Pair] = {}
    for text in wanted:
        if text in matrix.pair_of:
            cells: list[Cell | Pair] = [matrix.pair(text)]
        elif _KEY.match(text):
            matrix.spec(text, "query")
            cells = [matrix.cell(text)]
        else:
            cells = [cell for cell in matrix.measured if _matches(cell, text)]
        if not cells:
            raise UserError(f"experiment {matrix.config.experiment} has no cell {text!r}: `anncestry cells` lists them")
        chosen.update((cell.query, cell) for cell in cells)
    return [cell for cell in matrix.measured if cell.query in chosen]


def _matches(cell: Cell | Pair, pattern: str) -> bool:
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
    named = {load for cell in chosen for load in cell.loads} if with_load else set()
    # What was upgraded in place from one of these is of data that would be loaded anew.
    loads = {
        cell.load: cell
        for cell in matrix.loaded
        if named.intersection((cell.load, *(each.load for each in cell.chain)))
    }
    cells = [*chosen, *(cell for cell in matrix.measured if not loads.keys().isdisjoint(cell.loads))]
    queries = {cell.query: Path(cell.query_path) for cell in cells}
    recalls = {cell.recall: Path(cell.recall_path) for cell in cells if isinstance(cell, Cell)}
    sweep = Sweep()
    for cell in loads.values():
        _add_made_from(sweep, queries, "query", cell.where, "load", loads)
        for folder in (STAGES["pair"].folder / cell.dataset).glob("*/*"):
            _add_made_from(sweep, queries, "pair", str(folder.relative_to(STAGES["pair"].folder)), "load", loads)
    upgraded = _upgraded(loads)
    for load, record in upgraded.items():
        where = str(record.parent.relative_to(STAGES["record"].folder) / record.stem.rpartition("@")[0])
        _add_made_from(sweep, queries, "query", where, "load", {load})
        for folder in (STAGES["pair"].folder / where.split("/")[0]).glob("*/*"):
            _add_made_from(sweep, queries, "pair", str(folder.relative_to(STAGES["pair"].folder)), "load", {load})
        _add_made_from(sweep, recalls, "recall", where, "query", queries)
    for where in {cell.where: None for cell in (*chosen, *loads.values())}:
        _add_made_from(sweep, recalls, "recall", where, "query", queries)
    add_sessions(sweep, queries)
    add_published(sweep, queries.keys() | recalls.keys() | loads.keys() | upgraded.keys())
    for path in recalls.values():
        sweep.add(path, f"recall of {_cell_of(path)}")
    for path in queries.values():
        for part in files_of(path):
            sweep.add(part, f"measurement of {_cell_of(path)}")
    for cell in loads.values():
        for part in files_of(Path(cell.load_path)):
            sweep.add(part, f"load of {cell.where}")
        sweep.add(Path(cell.index_path).parent, f"index of {cell.where}")
    for load, record in upgraded.items():
        for part in files_of(record):
            sweep.add(part, f"load of {_cell_of(record)}, upgraded from one of these")
        sweep.add(Path(STAGES["load"].output.format(key=load)).parent, f"index of {_cell_of(record)}")
    _add_drops(sweep, cells, loads, upgraded)
    return sweep


def _add_drops(
    sweep: Sweep, cells: Iterable[Cell | Pair], loads: Mapping[str, Cell], upgraded: Mapping[str, Path]
) -> None:
    """Add what the ledgers will say of the measured `cells` and of the loads that the sweep removes."""
    removed = {item.path for item in sweep.remove}
    for each in cells:
        first = each.a if isinstance(each, Pair) else each
        again = first.load in loads
        made = {Path(each.query_path), Path(each.measured_path), *([Path(first.load_path)] if again else ())}
        if made & removed:
            said = sweep.drops.setdefault(Path(STAGES["attempts"].path(first)), {"load": again, "queries": []})
            said["queries"].append(each.query)
    # Loads that no cell of this matrix is first measured on: second sides of pairs, and upgrades of other experiments.
    others = {Path(cell.load_path): STAGES["attempts"].path(cell) for cell in loads.values()}
    others |= {record: STAGES["attempts"].output.format(**_names_of(record)) for record in upgraded.values()}
    for record, ledger in others.items():
        if record in removed:
            sweep.drops.setdefault(Path(ledger), {"load": True, "queries": []})


def _names_of(record: Path) -> dict[str, str]:
    return STAGES["record"].match(str(record)) or {}


def _upgraded(loads: Collection[str]) -> dict[str, Path]:
    """Loads of other experiments that opened the data of one of these in place, or of one that did: key → record."""
    olders: dict[str, tuple[str, Path]] = {}
    for path in sorted(Path().glob(STAGES["record"].glob())) if loads else ():
        names = STAGES["record"].match(str(path))
        spec = _spec_of(path, "load", names["key"]) if names and _inside(path) else None
        if names and spec and "upgrade_of" in spec:
            olders[names["key"]] = spec["upgrade_of"], path
    found: dict[str, Path] = {}
    while True:
        more = {
            key: path
            for key, (older, path) in olders.items()
            if key not in found and key not in loads and (older in loads or older in found)
        }
        if not more:
            return found
        found |= more


def _cell_of(record: Path) -> str:
    """DATASET/SYSTEM/TOPOLOGY/WORKLOAD of a published record."""
    return "/".join((*record.parts[2:-1], record.stem.rpartition("@")[0]))


def _add_made_from(
    sweep: Sweep, found: dict[str, Path], stage: str, where: str, source: str, keys: Collection[str]
) -> None:
    """Add to `found` the records of a stage in one folder whose spec says that they were made from one of the keys.

    Those of the present matrix are not all: another experiment, or an earlier epoch, has its own.
    """
    for path in _entries(sweep, RECORDS[stage].folder / where):
        named = _RECORD_FILE.match(path.name)
        if not named or named["end"] != ".json" or named["key"] in found:
            continue
        spec = _spec_of(path, stage, named["key"])
        if spec is None:
            sweep.strange.append((path, f"is no record of {stage} {named['key']}"))
        elif any(of.get(source) in keys for of in (spec, *spec.get("sides", {}).values())):
            found[named["key"]] = path


def record_of(file: Path) -> Path:
    """The record that a file in results/ is published with, by its name; `FILE.json` if it is none of ours."""
    named = _RECORD_FILE.match(file.name)
    return file.with_name(f"{named['stem'] if named else file.name}.json")


def files_of(record: Path) -> list[Path]:
    """A record and what is published beside it, the record first: a present record means a complete stage."""
    return [record, *(record.with_name(f"{record.stem}.{part}.parquet") for part in _PARTS)]


def add_published(sweep: Sweep, keys: Collection[str]) -> Sweep:
    """Add tables and pages, of any experiment and key, that show one of the keys; and the pages' lasting copies."""
    places = {STAGES["report"].folder: "page", STAGES["table"].folder: "table", PAGES: "copy of the page"}
    found = [(folder, what) for place, what in places.items() for folder in _entries(sweep, place)]
    # A page of what is measured so far lies below that of its experiment.
    found = [(folder, what) for one, what in found for folder in (one, one / "so-far") if folder.is_dir()]
    for folder, what in found:
        if folder.parts[0] != "reports" and not ("@" in folder.name and _KEYED.match(folder.name)):
            sweep.strange.append((folder, _OTHER_NAME))
            continue
        named = explain.column(folder / "numbers.csv", "key")
        if named is None:
            sweep.strange.append((folder, f"has no readable numbers.csv, so the cells of this {what} are unknown"))
        elif not named.isdisjoint(keys):
            sweep.add(folder, f"{what} with these cells")
    return sweep


def add_sessions(sweep: Sweep, queries: Collection[str]) -> Sweep:
    """Add what sessions left of these queries and did not publish: else the next run would publish it."""
    for folder in (*_entries(sweep, STAGES["session"].folder), *_entries(sweep, STAGES["duet"].folder)):
        members = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        try:
            members |= json.loads((folder / "session.json").read_text())["cells"].keys()
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            pass  # a session that was interrupted has no list of its cells
        if not members.isdisjoint(queries):
            sweep.add(folder, "left over from a session with these cells")
    for folder in (*_entries(sweep, STAGES["run"].folder), *_entries(sweep, STAGES["servers"].folder)):
        if folder.name in queries:
            sweep.add(folder, "measured runs that were not published")
    return sweep


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
    made = {path.parent.name.rpartition("@")[2] for path in Path().glob(STAGES["truth"].glob())}
    for name, needed_keys, what in (
        ("load", keys, "stored index"),
        ("artifact", keys, "artifact"),
        ("session", sessions, "left over from a session"),
        ("duet", sessions, "left over from a session of a pair"),
        ("servers", keys, "measured pairs of servers that were not published"),
        ("run", keys, "measured runs that were not published"),
        ("truth_part", keys - made, "parts of truth"),
        ("rounds", set(), "left over from further rounds"),
    ):
        _unneeded(sweep, STAGES[name], needed_keys, what)
    for folder in _entries(sweep, REVISIONS):
        sweep.add(folder, "results of a revision, laid out to be compared")
    for name in ("truth", "normalize", "download", "report", "table"):
        stage = STAGES[name]
        _unneeded(sweep, stage, keys, name, keep=stage.top == "results" and not results)
    for name in ("recall", "query", "pair", "record"):
        stage = STAGES[name]
        for inner, _, _ in os.walk(stage.folder) if _entries(sweep, stage.folder) else ():
            _measured(sweep, Path(inner), keys, stage.spec, keep=not results)
    for path in sorted(Path().glob(STAGES["attempts"].glob())):
        load = STAGES["attempts"].match(str(path).removesuffix(".jsonl"))
        if load and load["key"] not in keys and not Path(STAGES["record"].output.format(**load)).exists():
            sweep.strange.append((path, "attempts at a load that no experiment has, and of which no record is left"))
    for top, names in _PLACES.items():
        others = (path for path in _entries(sweep, top) if path.name not in names)
        sweep.strange += ((path, _OTHER_NAME) for path in others)
    return sweep


def _attempts(session: Session) -> Iterator[str]:
    """Keys of a session's earlier attempts, whose marks say that they failed, and its own."""
    keys = (session_key(session.cells, session.round, attempt) for attempt in count())
    yield from takewhile(lambda key: key != session.key, keys)
    yield session.key


_OTHERS = {
    "scratch": {REVISIONS.name, "preview", "storage"},
    "data": {".gitignore"},
    "results": {"metrics", "plots", ".gitignore"},
}
_PLACES: Mapping[str, frozenset[str]] = {
    top: frozenset(others | {stage.folder.name for stage in STAGES.values() if stage.top == top})
    for top, others in _OTHERS.items()
}


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


def _unneeded(sweep: Sweep, stage: Stage, needed: Collection[str], what: str, keep: bool = False) -> None:
    """The folders of a stage that are named by a key which nothing needs."""
    for folder in _entries(sweep, stage.folder):
        named = _KEYED.match(folder.name)
        if not named or not folder.is_dir() or not (named["name"] or stage.top == "scratch"):
            sweep.strange.append((folder, _OTHER_NAME))
        elif named["key"] not in needed:
            if problem := _problem(stage, folder, named["key"]):
                sweep.strange.append((folder, problem))
            else:
                sweep.add(folder, what + (f" of {named['name']}" if named["name"] else _label(folder)), keep)


def _problem(stage: Stage, folder: Path, key: str) -> str:
    """Why a folder may not be this stage's. In scratch/ its name is enough: an interrupted stage has no record."""
    if stage.top == "results" and not (folder / "numbers.csv").exists():
        return "has no numbers.csv"
    if stage.top == "data" and _spec_of(folder / "record.json", stage.spec, key) is None:
        return f"has no record of {stage.spec} {key}"
    return ""


def _label(folder: Path) -> str:
    """What a stored index is of, if its record can be read."""
    spec = _spec_of(folder / "record.json", "load", folder.name)
    return "" if spec is None else " of " + "/".join(spec[axis]["name"] for axis in ("dataset", "system", "topology"))


def _spec_of(path: Path, stage: str, key: str) -> dict[str, Any] | None:
    """The spec in a record of this stage and key, of any version; None if it isn't one."""
    record = peek(path, stage)
    return record["spec"] if record and record.get("key") == key else None


def _measured(sweep: Sweep, folder: Path, needed: set[str], stage: str, keep: bool) -> None:
    """The files of one folder of results: those of a record of an old key together, the record first."""
    for path in _entries(sweep, folder):
        if path.is_dir() and not path.is_symlink():
            continue
        named = _RECORD_FILE.match(path.name)
        if not named:
            sweep.strange.append((path, _OTHER_NAME))
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
    number = len(sweep.remove)
    return f"{number} {'path' if number == 1 else 'paths'}, {size(sum(item.bytes for item in sweep.remove))}"
