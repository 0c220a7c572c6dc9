"""Readers from other packages (`cells.readers` finds them): what one has to do, and how its answers are checked.

A reader says how many vectors a file holds, and yields them block by block. It is trusted no more than a file is:
what it yields is compared with what it said, and whatever it raises becomes a sentence that names it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncestry.cells import readers
from anncestry.errors import DataError, of_machine


@dataclass(frozen=True)
class Header:
    """What a file holds: `rows` vectors of `dim` values, each stored as the NumPy type `dtype` (float or integer)."""

    rows: int
    dim: int
    dtype: str = "<f4"


class Reader:
    """Reads files of one format. A module's `READER` is an object of a subclass.

    A file that is damaged, or of another format, is a DataError of one sentence with the path in it.
    """

    def header(self, path: Path) -> Header:
        """What the file says of itself; reads no vectors."""
        raise NotImplementedError

    def blocks(self, path: Path, rows_per_block: int) -> Iterator[NDArray[Any]]:
        """All vectors in the order of the file, from the first on: arrays (n, dim), n at most `rows_per_block`."""
        raise NotImplementedError


def load(format: str) -> Reader:
    """The reader of a format from elsewhere; ConfigError if there is none, DataError if its code can't be used."""
    module = readers.code_of(format)["module"]
    with _errors_of(f"format {format!r}: its reader {module!r} can't be imported"):
        reader = getattr(import_module(module), "READER", None)
    if not isinstance(reader, Reader):
        raise DataError(f"format {format!r}: {module!r} has no READER that is a Reader (docs/adding-a-reader.md)")
    return reader


def header(format: str, reader: Reader, path: Path) -> Header:
    """What a reader says of a file; DataError if that is no shape of vectors."""
    with _errors_of(f"{path}: the reader of {format!r} failed"):
        found = reader.header(path)
        whole = isinstance(found, Header) and type(found.rows) is type(found.dim) is int
        if not whole or found.rows <= 0 or found.dim <= 0 or np.dtype(found.dtype).kind not in "fiu":
            raise DataError(f"{path}: the reader of {format!r} gave {found!r}, which is no shape of vectors of numbers")
    return found


def blocks(format: str, reader: Reader, path: Path, said: Header, rows_per_block: int) -> Iterator[NDArray[Any]]:
    """A reader's blocks, each an array (n, dim) of the type that its header named; DataError unless they fit to it."""
    rows = 0
    with _errors_of(f"{path}: the reader of {format!r} failed"):
        found = iter(reader.blocks(path, rows_per_block))
    while True:
        with _errors_of(f"{path}: the reader of {format!r} failed after row {rows}"):
            block = next(found, None)
        if block is None:
            break
        if not isinstance(block, np.ndarray) or block.shape[1:] != (said.dim,) or block.dtype != np.dtype(said.dtype):
            what = f"{block.dtype} {block.shape}" if isinstance(block, np.ndarray) else type(block).__name__
            raise DataError(
                f"{path}: after row {rows} the reader of {format!r} gave {what}, where its header says {said.dtype} "
                f"(rows, {said.dim})"
            )
        if not 1 <= len(block) <= rows_per_block:
            raise DataError(f"{path}: the reader of {format!r} gave {len(block)} rows, where 1 to {rows_per_block} fit")
        rows += len(block)
        if rows > said.rows:
            break
        yield block
    if rows != said.rows:
        how = "more" if rows > said.rows else f"{rows}"
        raise DataError(f"{path}: the reader of {format!r} gave {how} rows, but its header says {said.rows}")


@contextmanager
def _errors_of(where: str) -> Iterator[None]:
    """What somebody else's code raises as a DataError; its own DataErrors, and errors of this machine, pass."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and of_machine(error):
            raise
        raise DataError(f"{where} ({type(error).__name__}: {' '.join(str(error).split())})") from error
