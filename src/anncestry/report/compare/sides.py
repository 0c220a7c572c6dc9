"""A side of a comparison: its numbers with their records, found by what a user calls it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from anncestry.cells.stage import STAGES
from anncestry.errors import DataError, UserError
from anncestry.provenance.records import is_of, read_record, sha256_file
from anncestry.provenance.versioning import Revisions
from anncestry.report import diffs
from anncestry.report.model.numbers import PAIRED, first_builds, read

WORKING_TREE = "."
"""The name of what lies in this folder, whether it was kept or not."""

Body = Mapping[str, Any]
"""A record, as it was read."""


@dataclass(frozen=True)
class Side:
    """One side: a tidy frame (report/model/numbers.py), and by its path every record that the frame names.

    `records` may also hold the records of the vectors and the truth, under the paths by which loads and recalls quote
    them: with them, data under another key is known for the same if its content is. `kind` is one of KINDS, or empty;
    `commit` that of a revision.
    """

    label: str
    numbers: pd.DataFrame
    records: Mapping[str, Body]
    kind: str = ""
    commit: str = ""


def side(label: str, numbers: pd.DataFrame, results: Path, *, kind: str = "") -> Side:
    """A side from a tidy frame, its records read from the folder `results`, wherever that lies.

    DataError if a record is missing, or no longer has the sha256 it had when the table was made.
    """
    numbers = first_builds(numbers)
    records: dict[str, Body] = {}
    for path, digest in sorted(set(zip(numbers["record"], numbers["record_sha256"], strict=True))):
        if not digest:
            continue
        file = _below(results, path)
        records[path] = read_record(file)
        if sha256_file(file) != digest:
            raise DataError(f"{file}: not the record that the table was made from ({digest[:12]}…): make it again")
    # The data of a revision is not laid out: a record of the same identity in this folder says as much.
    data: dict[str, Body] = {}
    for root in (Path(), results.parent):
        data |= _data_records(records.values(), root)
    return Side(label, numbers, records | data, kind)


def of_results(results: Path, experiment: str, *, label: str, kind: str = "revision", current: str = "") -> Side:
    """The side of one experiment's table in the folder `results`, of this checkout or of a revision laid out elsewhere.

    `experiment` may be EXPERIMENT@KEY; else `current` is the key to prefer. DataError names a table that is not there,
    and those among which nothing tells which is meant.
    """
    folder = _table_of(_tables(results, experiment), results, experiment, current)
    return side(label, read(folder), results, kind=kind)


@dataclass(frozen=True)
class _Here:
    """Where `find` looks; the fields are its parameters.

    Each method gives the side of a name; or None, and which names of this kind there are.
    """

    results: Path
    experiment: str
    current: Callable[[str], str]
    revisions: Revisions | None

    def system(self, name: str) -> tuple[Side | None, str]:
        try:
            folder = self._table(_tables(self.results, self.experiment))
        except DataError as error:  # no reason to refuse a name that means something else
            return None, str(error)
        # The table alone says which systems there are: records are read only for a side that is meant.
        numbers = read(folder)
        chosen = numbers[numbers["system"] == name].reset_index(drop=True)
        known = f"known: {listed(numbers['system'])}"
        if chosen.empty:
            return None, known
        found = side(name, chosen, self.results, kind="system")
        return replace(found, records={**found.records, **_pairs_of(name, numbers, self.results)}), known

    def named_experiment(self, name: str) -> tuple[Side | None, str]:
        if not _tables(self.results, name):
            return None, f"with a table: {listed(_experiments(self.results))}"
        return of_results(self.results, name, label=name, kind="experiment", current=self.current(name)), ""

    def platform(self, name: str) -> tuple[Side | None, str]:
        by_platform = _by_platform(self.results, self.experiment)
        if name not in by_platform:
            return None, f"measured on: {listed(by_platform)}"
        return side(name, read(self._table(by_platform[name])), self.results, kind="platform"), ""

    def revision(self, name: str) -> tuple[Side | None, str]:
        commit = self.revisions.commit(name) if self.revisions is not None else ""
        if self.revisions is None or not commit:
            names = self.revisions.names() if self.revisions is not None else []
            return None, f"no commit is called so; branches and tags: {', '.join(names) or 'none'}"
        folder = self.revisions.results(name)
        try:
            table = _table_of(_kept(_tables(folder, self.experiment), folder), folder, self.experiment, "")
        except DataError as error:
            raise DataError(f"revision {name} ({commit[:12]}): {error}") from None
        return replace(side(name, read(table), folder, kind="revision"), commit=commit), ""

    def _table(self, tables: Mapping[str, Path]) -> Path:
        return _table_of(tables, self.results, self.experiment, self.current(self.experiment))


_FINDERS: Mapping[str, Callable[[_Here, str], tuple[Side | None, str]]] = {
    "system": _Here.system,
    "experiment": _Here.named_experiment,
    "platform": _Here.platform,
    "revision": _Here.revision,
}
KINDS = tuple(_FINDERS)
"""What a side can be the name of; `find` tries them in this order."""


def find(
    name: str, results: Path, experiment: str, current: Callable[[str], str], revisions: Revisions | None = None
) -> Side:
    """The side that a user means by `name`, with KIND: in front where a name alone means something else.

    A system of `experiment`; an experiment (or EXPERIMENT@KEY) with a table in `results`; a platform id that a table
    of `experiment` was measured on; a revision; WORKING_TREE. `current` gives the key of an experiment's present
    table, empty where the config knows no such experiment. UserError if nothing is called so, and for a revision that
    has the name of something else.
    """
    if name == WORKING_TREE:
        return of_results(results, experiment, label="working tree", kind="", current=current(experiment))
    prefix, colon, rest = name.partition(":")
    kinds, bare = ((prefix,), rest) if colon and prefix in KINDS else (KINDS, name)
    here = _Here(results, experiment, current, revisions)
    unlike = []
    for kind in kinds:
        meant, known = _FINDERS[kind](here, bare)
        if meant is None:
            unlike.append(f"no {kind} ({known})")
        elif len(kinds) > 1 and kind != "revision" and revisions is not None and revisions.commit(bare):
            raise UserError(f"{name!r} names a {kind} and a git revision: say {kind}:{name} or revision:{name}")
        else:
            return meant
    raise UserError(f"{name!r} names nothing that can be compared: {'; '.join(unlike)}")


def _kept(tables: Mapping[str, Path], results: Path) -> dict[str, Path]:
    """Of several tables of one experiment the one that was current when the results were kept, where that shows.

    `keep` leaves the metrics of the current table, and of none other, beside the tables.
    """
    if len(tables) < 2:
        return dict(tables)
    experiment = next(iter(tables)).rpartition("@")[0]
    there = {
        path.relative_to(results).as_posix(): json.loads(path.read_text())
        for path in (results / "metrics" / experiment).rglob("*.json")
    }

    def current(folder: Path) -> bool:
        files = diffs.files(read(folder), experiment)
        return there == {path: json.loads(text) for path, text in files.items() if path.startswith("metrics/")}

    # Tables of the same numbers, made by another version of this program, say the same.
    return dict([(name, folder) for name, folder in tables.items() if current(folder)][-1:] or tables)


def _pairs_of(system: str, numbers: pd.DataFrame, results: Path) -> dict[str, Body]:
    """The records of the pairs in which a system was measured, by path."""
    rows = numbers[(numbers["phase"] == PAIRED) & (numbers["record_sha256"] != "")]
    named = zip(rows["record"], rows["system"], strict=True)
    paths = {str(path) for path, both in named if system in str(both).split("..")}
    return {path: read_record(_below(results, path), stage="pair") for path in sorted(paths)}


def _below(results: Path, path: str) -> Path:
    """Where the record that a table calls results/… lies, if the results are in the folder `results`."""
    first, *rest = Path(path).parts
    if first != "results" or ".." in rest:
        raise DataError(f"{path}: a table's record that is not among the results")
    return results.joinpath(*rest)


def _data_records(records: Iterable[Body], root: Path) -> dict[str, Body]:
    """Records of vectors and truth that `records` were made from, where they are here and stand for the same files."""
    data: dict[str, Body] = {}
    for record in records:
        for label in ("vectors", "truth"):
            quoted = quoted_input(record, label)
            file = root / quoted.get("path", "")
            if not quoted or quoted["path"] in data or not file.exists():
                continue
            made_from = read_record(file)
            if is_of(made_from, quoted.get("identity")) or sha256_file(file) == quoted["sha256"]:
                data[quoted["path"]] = made_from
    return data


def quoted_input(record: Body, label: str) -> dict[str, str]:
    """What a record says of one of its inputs (path, sha256, identity); empty if it has no such input."""
    return dict((record.get("inputs") or {}).get(label) or {})


def _folders(results: Path) -> list[Path]:
    """The folders of all tables; each is called EXPERIMENT@KEY."""
    return sorted((results / STAGES["table"].folder.name).glob("*@*"))


def _experiments(results: Path) -> set[str]:
    return {folder.name.rpartition("@")[0] for folder in _folders(results)}


def _tables(results: Path, experiment: str) -> dict[str, Path]:
    """The folders of an experiment's tables, or of the one that EXPERIMENT@KEY names, by name."""
    return {
        folder.name: folder
        for folder in _folders(results)
        if experiment in (folder.name, folder.name.rpartition("@")[0])
    }


def _table_of(tables: Mapping[str, Path], results: Path, experiment: str, current: str) -> Path:
    """The table that is meant: the present one if it is among them, else the only one."""
    present = f"{experiment}@{current}"
    if present in tables:
        return tables[present]
    where = results / STAGES["table"].folder.name
    if not tables:
        raise DataError(f"{where}: no table of experiment {experiment}, only of {listed(_experiments(results))}")
    if len(tables) > 1:
        raise DataError(f"{where}: several tables of {experiment}: name one of {listed(tables)}")
    return next(iter(tables.values()))


def _by_platform(results: Path, experiment: str) -> dict[str, dict[str, Path]]:
    """The tables of an experiment by the platform that their loads were measured on."""
    tables: dict[str, dict[str, Path]] = {}
    for name, folder in _tables(results, experiment).items():
        numbers = read(folder)
        loads = numbers.loc[(numbers["metric"] == "load_s") & (numbers["record_sha256"] != ""), "record"]
        for path in loads.unique()[:1]:
            platform = str(read_record(_below(results, path), stage="load")["spec"].get("platform", ""))
            tables.setdefault(platform, {})[name] = folder
    return tables


def listed(names: Iterable[object]) -> str:
    """Names for a sentence, each once; `none` where there are none."""
    return ", ".join(sorted({str(name) for name in names})) or "none"
