"""Payload columns: what the rows of a set hold beside their vectors, as far as its queries' conditions act on it.

Stored beside the vectors: `payload_0.npy`, `payload_1.npy`, … (rows,), one a column: int64, float64, or, of keywords,
int32 places in the column's words; and `payload.json`: the columns' names, kinds and words, the distinct filters, and
which of them each query has (see `conditions`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncestry.datasets import conditions
from anncestry.datasets.formats import NpyWriter
from anncestry.datasets.jsonl import objects
from anncestry.errors import DataError
from anncestry.provenance.records import replacing

FILE = "payload.json"
_TYPES = {"keyword": "<i4", "int": "<i8", "float": "<f8"}
_WORDS_MAX = 1 << 20
_BATCH_ROWS = 4096


@dataclass(frozen=True)
class Column:
    """One column: `name` is that of the source, `stored_as` what every system calls it, `values` (rows,) as stored."""

    name: str
    stored_as: str
    kind: str
    values: NDArray[Any]
    words: Sequence[str] = ()

    def part(self, rows: slice) -> list[Any]:
        """The values of these rows, as text, whole numbers or floats."""
        values: list[Any] = np.asarray(self.values[rows]).tolist()
        return [self.words[place] for place in values] if self.kind == "keyword" else values

    @cached_property
    def places(self) -> dict[str, int]:
        """Where each word is."""
        return {word: place for place, word in enumerate(self.words)}


@dataclass(frozen=True)
class Payload:
    """The columns of a dataset, and the filters of its queries: `of` (queries,) indexes `filters`. Empty for none."""

    columns: tuple[Column, ...] = ()
    filters: tuple[Mapping[str, Any] | None, ...] = ()
    of: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def part(self, rows: slice) -> list[tuple[Column, list[Any]]]:
        """Each column with its values of these rows."""
        return [(column, column.part(rows)) for column in self.columns]

    def passes(self, filter: Mapping[str, Any], rows: NDArray[np.int64] | None = None) -> NDArray[np.bool_]:
        """Which rows pass one of `filters`, bool (n,): of these `rows` (n,), or of all."""
        shape = self.columns[0].values.shape if rows is None else rows.shape
        passing = np.ones(shape, dtype=np.bool_)
        for term in filter["all"]:
            passing &= self._holds(term, rows)
        if filter["any"]:
            some = np.zeros(shape, dtype=np.bool_)
            for term in filter["any"]:
                some |= self._holds(term, rows)
            passing &= some
        return passing

    def _holds(self, term: Mapping[str, Any], rows: NDArray[np.int64] | None) -> NDArray[np.bool_]:
        column = self.columns[term["column"]]
        values: NDArray[Any] = np.asarray(column.values) if rows is None else column.values[rows]
        if "equals" in term:
            wanted = column.places.get(term["equals"], -1) if column.kind == "keyword" else term["equals"]
            equal: NDArray[np.bool_] = values == wanted
            return equal
        holds = np.ones(values.shape, dtype=np.bool_)
        for bound, compare in _COMPARE.items():
            if bound in term:
                holds &= compare(values, term[bound])
        return holds


NO_PAYLOAD = Payload()
_COMPARE = {"above": np.greater, "from": np.greater_equal, "below": np.less, "to": np.less_equal}


def place(path: Path, asked: conditions.Asked, rows: int, folder: Path) -> None:
    """Write the columns that `asked` names, of the `rows` JSON lines of `path`, and what is asked, to `folder`.

    Read line by line: memory holds the words of a column, and one batch of values. DataError names the line that lacks
    a value, or has one of another kind.
    """
    words: list[dict[str, int]] = [{} for _ in asked.columns]
    batch: list[list[Any]] = [[] for _ in asked.columns]
    found = 0
    with ExitStack() as stack:
        writers = [
            stack.enter_context(NpyWriter(stack.enter_context(replacing(file)), (rows,), _TYPES[kind]))
            for file, (_, kind) in zip(column_files(folder, len(asked.columns)), asked.columns, strict=True)
        ]

        def flush() -> None:
            for writer, values in zip(writers, batch, strict=True):
                writer.write(np.array(values, dtype=writer.dtype))
                values.clear()

        for line, row in objects(path):
            found += 1
            if found > rows:
                raise DataError(f"{path}: line {line}: more than the {rows} rows of the base")
            for place, (name, kind) in enumerate(asked.columns):
                batch[place].append(_value(f"{path}: line {line}", row, name, kind, words[place]))
            if found % _BATCH_ROWS == 0:
                flush()
        if found != rows:
            raise DataError(f"{path}: holds {found} rows, the base has {rows}")
        flush()
    told = {
        "columns": [
            {"name": name, "kind": kind, "words": list(known)}
            for (name, kind), known in zip(asked.columns, words, strict=True)
        ],
        "filters": list(asked.distinct),
        "of": asked.of.tolist(),
    }
    with replacing(folder / FILE) as temporary:
        temporary.write_text(json.dumps(told, separators=(",", ":")) + "\n")


def _value(where: str, row: Mapping[str, Any], name: str, kind: str, words: dict[str, int]) -> Any:
    value = row.get(name)
    if value is None:
        raise DataError(f"{where}: has no {name!a}, which conditions act on")
    problem = conditions.word(value) if kind == "keyword" else conditions.number(value, kind)
    if problem is not None:
        raise DataError(f"{where}: {name!a}: {problem}, where conditions act on {kind}")
    if kind != "keyword":
        return value
    if value not in words and len(words) == _WORDS_MAX:
        raise DataError(f"{where}: {name!a}: more than {_WORDS_MAX} different keywords")
    return words.setdefault(value, len(words))


def column_files(folder: Path, columns: int) -> list[Path]:
    """Where the columns are."""
    return [folder / f"payload_{place}.npy" for place in range(columns)]


def files(folder: Path) -> list[Path]:
    """All of a payload's files."""
    return [folder / FILE, *column_files(folder, len(told(folder)["columns"]))]


def facts(folder: Path) -> dict[str, Any]:
    """What a record says of the payload in this folder."""
    found = told(folder)
    columns = [{**column, "words": len(column["words"])} for column in found["columns"]]
    return {
        "columns": {column.pop("name"): {**column, "stored_as": f"payload_{at}"} for at, column in enumerate(columns)},
        "filters": len(found["filters"]),
        "unfiltered_queries": sum(found["filters"][number] is None for number in found["of"]),
    }


def told(folder: Path) -> Any:
    """What `payload.json` of this folder says."""
    return json.loads((folder / FILE).read_text())


def open_payload(folder: Path) -> Payload:
    """The payload in this folder, its columns memory-mapped."""
    found = told(folder)
    columns = tuple(
        Column(
            column["name"],
            file.stem,
            column["kind"],
            np.load(file, mmap_mode="r", allow_pickle=False),
            tuple(column["words"]),
        )
        for file, column in zip(column_files(folder, len(found["columns"])), found["columns"], strict=True)
    )
    return Payload(columns, tuple(found["filters"]), np.array(found["of"], dtype=np.int64))


def content(folder: Path) -> str:
    """Digest of the payload in this folder: of what each file holds."""
    digest = hashlib.sha256((folder / FILE).read_bytes())
    for file in column_files(folder, len(told(folder)["columns"])):
        values = np.load(file, mmap_mode="r", allow_pickle=False)
        for first in range(0, len(values), 1 << 20):
            digest.update(np.ascontiguousarray(values[first : first + (1 << 20)]).data)
    return digest.hexdigest()
