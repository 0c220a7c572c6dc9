"""Vectors as text: CSV (a vector a line) and JSON (lists of numbers), read piece by piece.

Memory holds a row and a piece of the file, however long it is. Numbers are read as float64.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from anncestry.errors import DataError

_PIECE_BYTES = 1 << 20
_ROW_BYTES = 32 << 20
"""The longest row, or name, that is read."""
_NUMBERS = re.compile(r"[-+0-9.eE,\s]*")
_SPACE = re.compile(r"\s*")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_LIST = re.compile(r"\[[^\[\]]*[\[\]]")
"""Or, where it holds another one, what is before that."""
_STRUCTURE = re.compile(r'["\[\]{}]')
_SCALAR_END = re.compile(r"[,\]}]")


def lines(path: Path, stream: IO[bytes]) -> Iterator[list[float]]:
    """The numbers of each line, between commas; DataError for a line that holds anything else, or none."""
    row = 0
    while line := stream.readline(_ROW_BYTES):
        if len(line) == _ROW_BYTES:
            raise DataError(f"{path}: row {row} is longer than {_ROW_BYTES} bytes")
        try:
            yield [_number(each) for each in line.decode("ascii").split(",")]
        except ValueError:
            shown = line[:40].decode("ascii", "replace").strip()
            raise DataError(f"{path}: row {row} is no line of numbers between commas: {shown!a}") from None
        row += 1


def _number(text: str) -> float:
    if _NUMBERS.fullmatch(text) is None:  # float() takes words and underscores, too
        raise ValueError(text)
    return float(text)


def lists(path: Path, stream: IO[bytes], member: str | None) -> Iterator[list[float]]:
    """The lists of numbers of a JSON array, or those that are the values of an object ({word: vector}), in their order.

    The file is that array or object, or, with `member`, an object that has it under this key. What comes after it is
    not read. DataError for anything else, with the number of the row.
    """
    found = _Scanner(path, stream)
    if member is not None:
        found.expect("{", "an object")
        _to_member(found, member)
    opened = found.take()
    if opened not in ("[", "{"):
        raise DataError(f"{path}: holds no array or object of lists{_under(member)}")
    row, closing = 0, "]" if opened == "[" else "}"
    if found.peek() == closing:
        return
    while True:
        if opened == "{":
            found.string()
            found.expect(":", f"an object at row {row}")
        yield found.numbers(row)
        row += 1
        after = found.take()
        if after == closing:
            return
        if after != ",":
            raise DataError(f"{path}: no JSON after row {row - 1}{_under(member)}")


def _under(member: str | None) -> str:
    return "" if member is None else f" under {member!r}"


def _to_member(found: _Scanner, member: str) -> None:
    """Go on to the value of a key of the object that was just opened."""
    names: list[str] = []
    while found.peek() == '"':
        name = found.string()
        found.expect(":", "an object")
        if name == member:
            return
        names.append(name if len(name) <= 40 else f"{name[:40]}…")
        found.skip()
        if found.peek() == ",":
            found.take()
    there = ", ".join(names[:10]) + ("" if len(names) <= 10 else ", …")
    raise DataError(f"{found.path}: has no key {member!r}; there are {there or 'none'}")


class _Scanner:
    """Reads a JSON text from its beginning, piece by piece."""

    def __init__(self, path: Path, stream: IO[bytes]) -> None:
        self.path = path
        self._stream = stream
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self._text, self._at = "", 0

    def peek(self) -> str:
        """The next character that is no space."""
        while True:
            match = _SPACE.match(self._text, self._at)
            assert match is not None  # of nothing at least
            self._at = match.end()
            if self._at < len(self._text):
                return self._text[self._at]
            self._more()

    def take(self) -> str:
        found = self.peek()
        self._at += 1
        return found

    def expect(self, character: str, what: str) -> None:
        if self.peek() != character:
            raise DataError(f"{self.path}: no JSON file with {what}: {self._text[self._at : self._at + 20]!a}")
        self._at += 1

    def string(self) -> str:
        if self.peek() != '"':
            raise DataError(f"{self.path}: no JSON where a name is expected")
        found = self._until(_STRING, "a name")
        try:
            return str(json.loads(found))
        except ValueError:
            raise DataError(f"{self.path}: no JSON name: {found[:40]!a}") from None

    def numbers(self, row: int) -> list[float]:
        """The list that comes next."""
        if self.peek() == "[":
            found = self._until(_LIST, f"the list of row {row}")
            if found[-1] == "]" and _NUMBERS.fullmatch(found, 1, len(found) - 1):
                try:
                    return [float(each) for each in json.loads(found)]
                except (ValueError, OverflowError):
                    pass
        raise DataError(f"{self.path}: row {row} is no list of numbers")

    def skip(self) -> None:
        """Go on to after the value that comes next."""
        if self.peek() not in '"[{':
            while (match := _SCALAR_END.search(self._text, self._at)) is None:
                self._at = len(self._text)
                self._more()
            self._at = match.start()
            return
        depth = 0
        while True:
            match = _STRUCTURE.search(self._text, self._at)
            if match is None:
                self._at = len(self._text)
                self._more()
                continue
            self._at = match.start()
            if match[0] == '"':
                self._until(_STRING, "a text")
            else:
                self._at += 1
                depth += 1 if match[0] in "[{" else -1
            if depth <= 0:
                return

    def _until(self, pattern: re.Pattern[str], what: str) -> str:
        """What matches from here on, which may end in a later piece of the file."""
        while (match := pattern.match(self._text, self._at)) is None:
            if len(self._text) - self._at > _ROW_BYTES:
                raise DataError(f"{self.path}: {what} is longer than {_ROW_BYTES} characters")
            self._more()
        self._at = match.end()
        return match[0]

    def _more(self) -> None:
        """Read as much again as is held; DataError at the end of the file."""
        held = self._text[self._at :]
        data = self._stream.read(max(_PIECE_BYTES, len(held)))
        try:
            more = self._decode(data, not data)
        except UnicodeDecodeError:
            raise DataError(f"{self.path}: no JSON file: not UTF-8") from None
        if not data:
            raise DataError(f"{self.path}: truncated: ends within its JSON")
        self._text, self._at = held + more, 0
