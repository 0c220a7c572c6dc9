"""`anncestry why`: which number is meant, and its chain as a tree."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from anncestry.ancestry.chain import Node
from anncestry.cells.matrix import Matrix
from anncestry.errors import DataError
from anncestry.provenance.links import State
from anncestry.report import numbers

SELECTORS = ("dataset", "system", "topology", "workload", "phase", "metric")
"""Columns of the tidy table by which a number may be asked for."""

_SHOWN = 8
_REPEATED = ("artifact", "code", "lock file", "platform", "CPU flags", "clients")
"""Facts that most records of a chain share: said in full where they differ from those above."""

_MARKS = {State.SAME: "✓", State.REMADE: "✓", State.CHANGED: "✗", State.ABSENT: "·"}


def find(matrix: Matrix, number: str | None, selectors: Mapping[str, str]) -> tuple[Path, dict[str, Any]]:
    """The folder of the table and the row of the one number that is meant; DataError says what there is instead.

    `number` is an id, the beginning of one (`#` before it, as in a page's address, is ignored), or None; `selectors`
    map columns to values. The present table is asked first, then, for an id, every other one in results/table/.
    """
    current = Path(matrix.table_path).parent
    if number is None:
        if not selectors:
            raise DataError("name a number: its id, or --" + " … --".join(SELECTORS))
        return current, _select(_read(current), selectors)
    start = number.lstrip("#").lower()
    folders = [current, *sorted(path.parent for path in Path("results/table").glob("*/numbers.parquet"))]
    looked = []
    for folder in dict.fromkeys(folders):
        if not (folder / "numbers.parquet").exists():
            continue
        looked.append(folder.name)
        frame = _read(folder)
        found = frame[frame["number_id"].str.startswith(start)]
        if len(found) == 1:
            return folder, numbers.rows_of(found)[0]
        if len(found):
            raise DataError(f"{len(found)} numbers begin with {number!r}: {_listed(found)}; give more digits")
    if not looked:
        raise DataError(f"{current}: not made or pulled yet, so there is no number {number!r} here")
    raise DataError(f"no number {number!r} in {', '.join(looked)}: ids are an n and ten hex digits, as on the page")


def _read(folder: Path) -> pd.DataFrame:
    if not (folder / "numbers.parquet").exists():
        raise DataError(f"{folder}: not made or pulled yet; `snakemake --cores 8 all` makes it from results")
    return numbers.read(folder)


def _select(frame: pd.DataFrame, selectors: Mapping[str, str]) -> dict[str, Any]:
    chosen = frame
    for column, value in selectors.items():
        known = sorted(set(chosen[column]) - {""})
        chosen = chosen[chosen[column] == value]
        if not len(chosen):
            close = difflib.get_close_matches(value, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known) or 'none'}"
            raise DataError(f"no number with {column} {value!r}; {hint}")
    if len(chosen) > 1:
        open_ones = [name for name in SELECTORS if name not in selectors and chosen[name].nunique() > 1]
        narrow = f"; narrow it by --{' or --'.join(open_ones)}" if open_ones else ""
        raise DataError(f"{len(chosen)} numbers are meant: {_listed(chosen)}{narrow}")
    return numbers.rows_of(chosen)[0]


def _listed(frame: pd.DataFrame) -> str:
    names = ("dataset", "system", "topology", "workload", "metric")
    lines = [
        f"{row['number_id']} ({' '.join(str(row[name]) for name in names if row[name])})"
        for row in numbers.rows_of(frame.head(_SHOWN))
    ]
    return ", ".join(lines) + (", …" if len(frame) > _SHOWN else "")


def lines(node: Node) -> list[str]:
    """The chain as a tree: ✓ what is what it was, ✗ what is not, · what isn't in this clone."""
    return [node.what, *(f"  {name}: {value}" for name, value in node.facts.items()), *_below(node.parts, "", {})]


def _below(nodes: Sequence[Node], indent: str, said_of: dict[str, str]) -> list[str]:
    said: list[str] = []
    for place, node in enumerate(nodes):
        last = place == len(nodes) - 1
        head = f"{indent}{'└' if last else '├'}─ {_MARKS[node.state]} {node.what}"
        said.append(" ".join(filter(None, (head, node.path, f"sha256 {node.sha256[:12]}…" if node.sha256 else ""))))
        inner = indent + ("   " if last else "│  ")
        bar = "│ " if node.parts else "  "
        if node.state in (State.CHANGED, State.REMADE):
            said.append(f"{inner}{bar}{node.state}")
        if node.detail:
            said.append(f"{inner}{bar}{node.detail}")
        for name, value in node.facts.items():
            again = name in _REPEATED and said_of.get(name) == value
            said.append(f"{inner}{bar}{name}: {'as above' if again else value}")
            said_of[name] = value
        said += _below(node.parts, inner, said_of)
    return said


def broken(node: Node) -> list[str]:
    """Paths of what is not what it was."""
    return sorted({part.path for part in node.walk() if part.state is State.CHANGED})
