"""Conditions that came with each query of a set, in Qdrant's form: what they say, and which columns they act on.

`{"and": [...], "or": [...]}`, either alone too: all of the first and at least one of the second. Each entry names a
field and what must hold of it: `{"a": {"match": {"value": "x"}}}` or `{"b": {"range": {"gt": 1, "lt": 2}}}` (also
`gte`, `lte`). No conditions (null, or an empty object): the query is asked without a filter.

A field that conditions name is a column, numbered in the order of the names; what it is asked for says its kind. The
filter made of a query's conditions is `{field: payload, all: [term, …], any: [term, …]}`, a term being
`{column: 0, equals: "x"}` or `{column: 1, above | from | below | to: number}` (>, ≥, <, ≤).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncestry.errors import ConfigError, DataError

KINDS = ("keyword", "int", "float")
"""What a column may hold; of whole numbers those that are exact as a float64, too, as which some systems take them."""
UNSUPPORTED_KINDS = ("geo",)
WHOLE_END = 1 << 53
WORD_BYTES = 1024
COLUMNS_MAX = 64
_TERMS_MAX = 64
_BOUNDS = {"gt": "above", "gte": "from", "lt": "below", "lte": "to"}
BOUNDS = tuple(_BOUNDS.values())


@dataclass(frozen=True)
class Asked:
    """The fields that conditions name, each with its kind, by name; the `distinct` filters, None for none; and `of`.

    `of` int64 (n,) says which of them each of n queries has.
    """

    columns: tuple[tuple[str, str], ...]
    distinct: tuple[dict[str, Any] | None, ...]
    of: NDArray[np.int64]


def word(value: object) -> str | None:
    """Why this is no keyword that every system stores and compares as it is, None where it is one."""
    if not isinstance(value, str):
        return f"{_short(value)} is no text"
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        return f"{_short(value)} is no text of whole characters"
    if not value or value != value.strip() or any(ord(letter) < 32 or ord(letter) == 127 for letter in value):
        return f"{_short(value)} is empty, or has a space at an end or a control character"
    return f"{_short(value)} has more than {WORD_BYTES} bytes" if size > WORD_BYTES else None


def number(value: object, kind: str) -> str | None:
    """Why this is no number of a column of this kind, None where it is one."""
    if isinstance(value, bool) or not isinstance(value, int if kind == "int" else int | float):
        return f"{_short(value)} is no {'whole number' if kind == 'int' else 'number'}"
    if isinstance(value, int):
        return None if abs(value) <= WHOLE_END else f"{_short(value)} is beyond ±2^53"
    return None if math.isfinite(value) else f"{value} is not finite"


class Reader:
    """Reads the conditions of one query after the other, of a set whose conditions are of these `kinds`.

    Equal conditions are kept once. DataError names the line.
    """

    def __init__(self, path: Path, kinds: Sequence[str]) -> None:
        self.path, self.kinds = path, tuple(kinds)
        self._distinct: dict[str, int] = {}
        self._of: list[int] = []
        self._matched: dict[str, str] = {}  # field → kind of the values that it is compared with
        self._fields: dict[str, str] = {}  # field → where it was first seen

    def add(self, line: int, conditions: object) -> None:
        """The conditions of the next query."""
        where = f"{self.path}: line {line}"
        terms = None if conditions is None or conditions == {} else self._read(where, conditions)
        text = json.dumps(terms, sort_keys=True)
        self._of.append(self._distinct.setdefault(text, len(self._distinct)))

    def done(self) -> Asked:
        """What all of them say."""
        if len(self._fields) > COLUMNS_MAX:
            raise DataError(f"{self.path}: conditions on {len(self._fields)} fields, more than {COLUMNS_MAX}")
        ranged = "float" if "float" in self.kinds else "int"
        columns = [(name, self._matched.get(name, ranged)) for name in sorted(self._fields)]
        for name, kind in columns:
            if kind not in self.kinds:
                said = ", ".join(self.kinds)
                raise DataError(f"{self._fields[name]}: a condition on {kind} ({name!r}), where the config says {said}")
        places = {name: (place, kind) for place, (name, kind) in enumerate(columns)}
        distinct = tuple(self._filter(json.loads(text), places) for text in self._distinct)
        return Asked(tuple(columns), distinct, np.array(self._of, dtype=np.int64))

    def _read(self, where: str, conditions: object) -> dict[str, list[list[Any]]]:
        if not isinstance(conditions, Mapping) or conditions.keys() - {"and", "or"}:
            raise DataError(f"{where}: conditions that are not an object of and, or: {_short(conditions)}")
        read: dict[str, list[list[Any]]] = {}
        for key, ours in (("and", "all"), ("or", "any")):
            entries = conditions.get(key, [])
            if not isinstance(entries, list) or (key in conditions and not entries) or len(entries) > _TERMS_MAX:
                raise DataError(f"{where}: {key} is not a list of 1 to {_TERMS_MAX} conditions: {_short(entries)}")
            read[ours] = [list(term) for entry in entries for term in self._terms(where, entry)]
            if key == "or" and len(read[ours]) > len(entries):
                raise DataError(f"{where}: an entry of or names more than one field")
        return read

    def _terms(self, where: str, entry: object) -> Iterator[tuple[str, Mapping[str, Any]]]:
        if not isinstance(entry, Mapping) or not entry:
            raise DataError(f"{where}: a condition that is no object: {_short(entry)}")
        for name, asked in entry.items():
            if not isinstance(asked, Mapping) or len(asked) != 1:
                raise DataError(f"{where}: a condition on {_short(name)} that is not one of match, range")
            ((operator, operand),) = asked.items()
            if operator == "match":
                yield name, {"equals": self._value(where, name, operand)}
            elif operator == "range":
                yield name, self._range(where, name, operand)
            else:
                raise DataError(f"{where}: a condition of kind {_short(operator)}, which is none of match, range")
            self._fields.setdefault(name, where)

    def _value(self, where: str, name: str, operand: object) -> Any:
        value = operand.get("value") if isinstance(operand, Mapping) and operand.keys() == {"value"} else None
        kind = "keyword" if isinstance(value, str) else "int"
        problem = word(value) if kind == "keyword" else number(value, "int")
        if problem is not None:
            raise DataError(f"{where}: a match on {_short(name)} with no value to compare with: {problem}")
        if self._matched.setdefault(name, kind) != kind:
            raise DataError(f"{where}: {_short(name)} is compared with {kind} here, with {self._matched[name]} before")
        return value

    def _range(self, where: str, name: str, operand: object) -> dict[str, Any]:
        asked = operand if isinstance(operand, dict) else {}
        bounds = {key: value for key, value in asked.items() if value is not None}
        if not bounds or bounds.keys() - _BOUNDS.keys():
            raise DataError(f"{where}: a range on {_short(name)} without bounds of {', '.join(_BOUNDS)}")
        for value in bounds.values():
            if (problem := number(value, "float")) is not None:
                raise DataError(f"{where}: a range on {_short(name)}: {problem}")
        return {_BOUNDS[key]: value for key, value in bounds.items()}

    def _filter(self, terms: Any, places: Mapping[str, tuple[int, str]]) -> dict[str, Any] | None:
        if terms is None:
            return None

        def of(name: str, asked: dict[str, Any]) -> dict[str, Any]:
            place, kind = places[name]
            if "equals" not in asked and kind == "keyword":
                raise DataError(f"{self._fields[name]}: {_short(name)} holds keywords, which have no range")
            return {"column": place, **_typed(asked, kind)}

        return {"field": "payload", **{key: [of(*term) for term in terms[key]] for key in ("all", "any")}}


def _typed(asked: dict[str, Any], kind: str) -> dict[str, Any]:
    """Bounds as the column's own type: of whole numbers `from` and `below`, whatever was said."""
    if "equals" in asked:
        return asked
    if kind == "float":
        return {key: float(value) for key, value in asked.items()}
    low = [math.floor(asked["above"]) + 1] if "above" in asked else []
    low += [math.ceil(asked["from"])] if "from" in asked else []
    high = [math.ceil(asked["below"])] if "below" in asked else []
    high += [math.floor(asked["to"]) + 1] if "to" in asked else []
    found = {**({"from": max(low)} if low else {}), **({"below": min(high)} if high else {})}
    # Beyond all values of such a column; a bound there says as much as any further out, and has few enough digits.
    return {key: min(max(value, -WHOLE_END), WHOLE_END + 1) for key, value in found.items()}


def check_resolved(filter: Mapping[str, Any]) -> None:
    """ConfigError unless this is `{field: payload}`, or a filter as `Reader` makes them."""
    if filter.keys() == {"field"}:
        return
    try:
        terms = [*filter["all"], *filter["any"]]
        good = filter.keys() == {"field", "all", "any"} and bool(terms) and all(map(_is_term, terms))
    except (KeyError, TypeError):
        good = False
    if not good:
        raise ConfigError("filter on payload: is each query's own, from its dataset: it has no other key")


def _is_term(term: Mapping[str, Any]) -> bool:
    asked = term.keys() - {"column"}
    return isinstance(term["column"], int) and (asked == {"equals"} or (bool(asked) and asked <= set(BOUNDS)))


def _short(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
