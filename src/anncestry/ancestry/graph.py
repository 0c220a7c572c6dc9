"""All records of a matrix as a graph: what each was made from and what it made. Attestations and exports read it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from anncestry.cells.matrix import Matrix
from anncestry.errors import DataError
from anncestry.provenance import links, records, schema


@dataclass(frozen=True)
class File:
    """A file by its path in the working directory, with the digest that a record gives it."""

    path: str
    sha256: str
    bytes: int | None = None

    @property
    def here(self) -> bool:
        """Whether this clone has it."""
        return Path(self.path).exists()


@dataclass(frozen=True)
class Made:
    """One stage that was run: its record, the files that went in, and those that came out (the record among them)."""

    path: str
    body: Mapping[str, Any]
    used: tuple[File, ...]
    made: tuple[File, ...]

    @property
    def stage(self) -> str:
        """Its stage."""
        return str(self.body["stage"])

    @property
    def key(self) -> str:
        """Its key."""
        return str(self.body["key"])


def record_paths(matrix: Matrix) -> list[tuple[str, bool]]:
    """Every record of the matrix with whether it must be here; data and artifacts may be left out of a clone."""
    found: dict[str, bool] = {}
    for cell in matrix.cells:
        for path in (
            *(older.artifact_path for older in cell.chain),
            cell.artifact_path,
            cell.download_path,
            cell.vectors_path,
            cell.truth_path,
        ):
            found.setdefault(path, False)
        for path in (*(older.load_path for older in cell.chain), cell.load_path, cell.query_path, cell.recall_path):
            found.setdefault(path, True)
    for path in (matrix.table_path, matrix.report_path):
        found.setdefault(str(Path(path).with_name("record.json")), True)
    return list(found.items())


def walk(matrix: Matrix) -> Iterator[Made]:
    """Every stage whose record is here, one at a time; DataError for a missing result."""
    seen: set[str] = set()
    for path, needed in record_paths(matrix):
        file = Path(path)
        if file.exists():
            body = records.read_record(file)
            yield _made(path, body)
            ceiling = links.ceiling(body) if path.startswith("results/query/") else None
            if ceiling is not None and str(ceiling) not in seen and ceiling.exists():
                seen.add(str(ceiling))
                yield _made(str(ceiling), records.read_record(ceiling))
        elif needed:
            raise DataError(f"{path}: missing; an attestation or export is of complete results: run snakemake first")


def _made(path: str, body: Mapping[str, Any]) -> Made:
    """DataError for a record that lacks what its schema asks for, or names what lies outside of this folder."""
    schema.check(body, path, whole=True)
    try:
        datetime.fromisoformat(str(body["created"]))
    except ValueError:
        raise DataError(f"{path}: created is {body['created']!r}, which is no date") from None
    folder = Path(path).parent
    used = [File(entry["path"], entry["sha256"]) for entry in body["inputs"].values()]
    ceiling = links.ceiling(body) if body["stage"] == "query" else None
    if ceiling is not None and ceiling.exists():
        used.append(File(str(ceiling), records.sha256_file(ceiling)))
    used += [File(name, digest) for name, digest in (body.get("records") or {}).items()]
    made = [
        File(os.path.normpath(folder / entry["path"]), entry["sha256"], entry.get("bytes"))
        for entry in body["outputs"].values()
    ]
    for file in (*used, *made):
        if file.path.startswith(("/", "../")) or os.path.normpath(file.path) != file.path:
            raise DataError(f"{path}: names {file.path}, which does not lie in this folder")
    made.append(File(path, records.sha256_file(Path(path)), Path(path).stat().st_size))
    return Made(path, body, tuple(used), tuple(made))
