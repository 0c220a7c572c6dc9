"""What rows hold beside their vectors, as far as conditions of queries act on it; read from filter sets as JSON lines.

A line of queries is {"query": […], "conditions": …, "closest_ids": […]}, as Qdrant's filter sets have them. Conditions
are `{"and": [...], "or": [...]}`, either alone too: all of the first and at least one of the second. Each entry names a
field and what must hold of it: `{"a": {"match": {"value": "x"}}}` or `{"b": {"range": {"gt": 1, "lt": 2}}}` (also
`gte`, `lte`). No conditions (null, or an empty object): the query is asked without a filter.

A field that conditions name is a column, numbered in the order of the names; what it is asked for says its kind. The
filter made of a query's conditions is `{field: payload, all: [term, …], any: [term, …]}`, a term being
`{column: 0, equals: "x"}` or `{column: 1, above | from | below | to: number}` (>, ≥, <, ≤).

Stored beside the vectors: `payload_0.npy`, `payload_1.npy`, … (rows,), one a column: int64, float64, or, of keywords,
int32 places in the column's words; and `payload.json`: the columns' names, kinds and words, the distinct filters, and
which of them each query has.

`generate` draws columns and conditions by a seed, for datasets that are generated themselves.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from anncestry import large
from anncestry.datasets.formats import K_MAX, NpyWriter
from anncestry.errors import ConfigError, DataError
from anncestry.provenance.records import replacing

FILE = "payload.json"
_TYPES = {"keyword": "<i4", "int": "<i8", "float": "<f8"}
"""What a column may hold; of whole numbers those that are exact as a float64, too, as which some systems take them."""
WORD_BYTES = 1024
_WHOLE_END = 1 << 53
_COLUMNS_MAX = 64
_TERMS_MAX = 64
_WORDS_MAX = 1 << 20
_BATCH_ROWS = 4096
_ID_END = 1 << 63
_ZIPF_WORDS, _INT_END = 64, 100
_LINE_BYTES = 1 << 20
_FLOAT_END = 2.0**1023
_BOUNDS = {"gt": "above", "gte": "from", "lt": "below", "lte": "to"}
_COMPARE = {"above": np.greater, "from": np.greater_equal, "below": np.less, "to": np.less_equal}


@dataclass(frozen=True)
class Column:
    """One column: `name` is that of the source, `stored_as` what every system calls it, `values` (rows,) as stored."""

    name: str
    stored_as: str
    kind: str
    values: NDArray[Any]
    words: Sequence[str] = ()

    @property
    def file(self) -> str:
        return f"{self.stored_as}.npy"

    def part(self, rows: slice) -> list[Any]:
        """The values of these rows, as text, whole numbers or floats."""
        values: list[Any] = np.asarray(self.values[rows]).tolist()
        return [self.words[place] for place in values] if self.kind == "keyword" else values

    @cached_property
    def places(self) -> dict[str, int]:
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


def place(path: Path, asked: Payload, rows: int, folder: Path) -> None:
    """Write the columns that `asked` names, of the `rows` JSON lines of `path`, and its filters, to `folder`.

    Read line by line: memory holds the words of a column, and one batch of values. DataError names the line that lacks
    a value, or has one of another kind.
    """
    words: list[dict[str, int]] = [{} for _ in asked.columns]
    batch: list[list[Any]] = [[] for _ in asked.columns]
    count = 0
    with ExitStack() as stack:
        writers = [
            stack.enter_context(NpyWriter(stack.enter_context(replacing(folder / column.file)), (rows,), dtype))
            for column, dtype in ((column, column.values.dtype.str) for column in asked.columns)
        ]

        def flush() -> None:
            for writer, values in zip(writers, batch, strict=True):
                writer.write(np.array(values, dtype=writer.dtype))
                values.clear()

        for line, row in objects(path):
            count += 1
            if count > rows:
                raise DataError(f"{path}: line {line}: the base has only {rows} rows")
            for column, values, its_words in zip(asked.columns, batch, words, strict=True):
                values.append(_value(f"{path}: line {line}", row, column, its_words))
            if count % _BATCH_ROWS == 0:
                flush()
        if count != rows:
            raise DataError(f"{path}: holds {count} rows, but the base has {rows}")
        flush()
    columns = [
        {"name": column.name, "kind": column.kind, "words": list(its_words)}
        for column, its_words in zip(asked.columns, words, strict=True)
    ]
    body = {"columns": columns, "filters": asked.filters, "of": asked.of.tolist()}
    with replacing(folder / FILE) as temporary:
        temporary.write_text(json.dumps(body, separators=(",", ":")) + "\n")


def generate(rows: int, queries: int, kinds: Sequence[str], seed: int, folder: Path) -> None:
    """Write a column of each kind for `rows` rows, and conditions for each of the `queries`, to `folder`.

    Keywords are 64 words of Zipf's frequencies (21 % to 0.3 % of the rows); whole numbers (0 to 99) and floats are
    uniform. Queries take turns: one condition on each kind, two joined by `and`, two by `or`. A condition is a match of
    a keyword or a whole number, or a range of numbers that 1 % to 50 % of the rows are in (log-uniform widths). None
    depends on the vectors. Drawn by NumPy's legacy generator, whose streams are frozen.
    """
    random = np.random.RandomState([seed, len(kinds)])
    weights = 1 / np.arange(1, _ZIPF_WORDS + 1)
    values: dict[str, NDArray[Any]] = {
        "keyword": random.choice(_ZIPF_WORDS, size=rows, p=weights / weights.sum()),
        "int": random.randint(_INT_END, size=rows),
        "float": random.random_sample(rows),
    }

    def asked(kind: str) -> dict[str, Any]:
        if kind == "keyword":
            return {kind: {"match": {"value": f"word {random.randint(_ZIPF_WORDS)}"}}}
        if kind == "int" and random.randint(2):
            return {kind: {"match": {"value": int(random.randint(_INT_END))}}}
        end = _INT_END if kind == "int" else 1
        width = end * 10 ** random.uniform(-2, math.log10(0.5))
        low = random.uniform(0, end - width)
        return {kind: {"range": {"gte": low, "lt": low + width}}}

    lines = folder / "generated.jsonl"
    with replacing(lines) as temporary, open(temporary, "w") as file:
        for word, whole, number in zip(*(column.tolist() for column in values.values()), strict=True):
            file.write(json.dumps({"keyword": f"word {word}", "int": whole, "float": number}) + "\n")
    reader = Reader(lines, kinds)
    shapes = [*kinds, "and", "or"]
    for query in range(queries):
        shape = shapes[query % len(shapes)]
        joined = [kinds[place] for place in random.randint(len(kinds), size=2)]
        terms = [asked(kind) for kind in (joined if shape in ("and", "or") else [shape])]
        reader.add(query + 1, {"or" if shape == "or" else "and": terms})
    place(lines, reader.done(), rows, folder)


def _value(where: str, row: Mapping[str, Any], column: Column, words: dict[str, int]) -> Any:
    value, name = row.get(column.name), column.name
    if value is None:
        raise DataError(f"{where}: lacks {name!a}, which conditions use")
    if (problem := _problem(value, column.kind)) is not None:
        raise DataError(f"{where}: {name!a}: {problem}, but conditions expect {column.kind}")
    if column.kind != "keyword":
        return value + 0.0 if column.kind == "float" else value  # some systems order a negative zero before zero
    if value not in words and len(words) == _WORDS_MAX:
        raise DataError(f"{where}: {name!a}: more than {_WORDS_MAX} different keywords")
    return words.setdefault(value, len(words))


def files(folder: Path) -> list[Path]:
    return [folder / FILE, *(folder / column.file for column in open_payload(folder).columns)]


def facts(folder: Path) -> dict[str, Any]:
    """What a record says of the payload in this folder."""
    payload = open_payload(folder)
    return {
        "columns": {
            column.name: {"kind": column.kind, "words": len(column.words), "stored_as": column.stored_as}
            for column in payload.columns
        },
        "filters": len(payload.filters),
        "unfiltered_queries": sum(payload.filters[number] is None for number in payload.of),
    }


def open_payload(folder: Path) -> Payload:
    """The payload in this folder, its columns memory-mapped."""
    body = json.loads((folder / FILE).read_text())
    columns = []
    for place, column in enumerate(body["columns"]):
        values = np.load(folder / f"payload_{place}.npy", mmap_mode="r", allow_pickle=False)
        columns.append(Column(column["name"], f"payload_{place}", column["kind"], values, tuple(column["words"])))
    return Payload(tuple(columns), tuple(body["filters"]), np.array(body["of"], dtype=np.int64))


def content(folder: Path) -> str:
    """Digest of the payload in this folder: of what each file holds."""
    digest = hashlib.sha256((folder / FILE).read_bytes())
    for column in open_payload(folder).columns:
        for part in large.parts(len(column.values)):
            digest.update(np.ascontiguousarray(column.values[part]).data)
    return digest.hexdigest()


# Conditions


def _problem(value: object, kind: str) -> str | None:
    """Why a column of this kind can't hold the value as every system stores and compares it; None where it can."""
    if kind != "keyword":
        return _number_problem(value, kind)
    if not isinstance(value, str):
        return f"{_short(value)} is not text"
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        return f"{_short(value)} is not valid Unicode"
    if not value or value != value.strip() or any(ord(letter) < 32 or ord(letter) == 127 for letter in value):
        return f"{_short(value)} is empty, or has a space at an end or a control character"
    return f"{_short(value)} has more than {WORD_BYTES} bytes" if size > WORD_BYTES else None


def _number_problem(value: object, kind: str) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int if kind == "int" else int | float):
        return f"{_short(value)} is not a {'whole number' if kind == 'int' else 'number'}"
    if isinstance(value, int):
        return None if abs(value) < _WHOLE_END else f"{_short(value)} is not within ±2^53"
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
        where = f"{self.path}: line {line}"
        terms = None if conditions is None or conditions == {} else self._read(where, conditions)
        text = json.dumps(terms, sort_keys=True)
        self._of.append(self._distinct.setdefault(text, len(self._distinct)))

    def done(self) -> Payload:
        """The fields that conditions name as columns without values, by name; and the filters of the queries."""
        if len(self._fields) > _COLUMNS_MAX:
            raise DataError(f"{self.path}: conditions on {len(self._fields)} fields, more than {_COLUMNS_MAX}")
        ranged = "float" if "float" in self.kinds else "int"
        columns: dict[str, Column] = {}
        for place, name in enumerate(sorted(self._fields)):
            kind = self._matched.get(name, ranged)
            if kind not in self.kinds:
                raise DataError(
                    f"{self._fields[name]}: a condition on {kind} ({name!r}), but the config declares "
                    f"{', '.join(self.kinds)}"
                )
            columns[name] = Column(name, f"payload_{place}", kind, np.zeros(0, _TYPES[kind]))
        filters = tuple(self._filter(json.loads(text), columns) for text in self._distinct)
        return Payload(tuple(columns.values()), filters, np.array(self._of, dtype=np.int64))

    def _read(self, where: str, conditions: object) -> dict[str, list[list[Any]]]:
        if not isinstance(conditions, Mapping) or conditions.keys() - {"and", "or"}:
            raise DataError(f"{where}: conditions must be an object with `and` or `or`, not {_short(conditions)}")
        read: dict[str, list[list[Any]]] = {}
        for key, ours in (("and", "all"), ("or", "any")):
            entries = conditions.get(key, [])
            if not isinstance(entries, list) or (key in conditions and not entries) or len(entries) > _TERMS_MAX:
                raise DataError(f"{where}: {key} is not a list of 1 to {_TERMS_MAX} conditions: {_short(entries)}")
            read[ours] = [list(term) for entry in entries for term in self._terms(where, entry)]
            if key == "or" and len(read[ours]) > len(entries):
                raise DataError(f"{where}: an entry of `or` names more than one field")
        return read

    def _terms(self, where: str, entry: object) -> Iterator[tuple[str, Mapping[str, Any]]]:
        if not isinstance(entry, Mapping) or not entry:
            raise DataError(f"{where}: a condition must be an object, not {_short(entry)}")
        for name, asked in entry.items():
            if not isinstance(asked, Mapping) or len(asked) != 1:
                raise DataError(f"{where}: a condition on {_short(name)} needs exactly one of match, range")
            ((operator, operand),) = asked.items()
            if operator == "match":
                yield name, {"equals": self._value(where, name, operand)}
            elif operator == "range":
                yield name, self._range(where, name, operand)
            else:
                raise DataError(f"{where}: unknown condition {_short(operator)}; choose match or range")
            self._fields.setdefault(name, where)

    def _value(self, where: str, name: str, operand: object) -> Any:
        value = operand.get("value") if isinstance(operand, Mapping) and operand.keys() == {"value"} else None
        kind = "keyword" if isinstance(value, str) else "int"
        if (problem := _problem(value, kind)) is not None:
            raise DataError(f"{where}: the value of a match on {_short(name)} is not valid: {problem}")
        if self._matched.setdefault(name, kind) != kind:
            raise DataError(
                f"{where}: {_short(name)} is compared with {kind} here, but with {self._matched[name]} before"
            )
        return value

    def _range(self, where: str, name: str, operand: object) -> dict[str, Any]:
        asked = operand if isinstance(operand, dict) else {}
        bounds = {key: value for key, value in asked.items() if value is not None}
        if not bounds or bounds.keys() - _BOUNDS.keys():
            raise DataError(f"{where}: a range on {_short(name)} without bounds of {', '.join(_BOUNDS)}")
        for value in bounds.values():
            if (problem := _problem(value, "float")) is not None:
                raise DataError(f"{where}: a range on {_short(name)}: {problem}")
        return {_BOUNDS[key]: value for key, value in bounds.items()}

    def _filter(self, terms: Any, columns: Mapping[str, Column]) -> dict[str, Any] | None:
        if terms is None:
            return None
        names = list(columns)

        def of(name: str, asked: dict[str, Any]) -> dict[str, Any]:
            kind = columns[name].kind
            if "equals" not in asked and kind == "keyword":
                raise DataError(f"{self._fields[name]}: {_short(name)} holds keywords, so a range is impossible")
            return {"column": names.index(name), **_typed(asked, kind)}

        return {"field": "payload", **{key: [of(*term) for term in terms[key]] for key in ("all", "any")}}


def _typed(asked: dict[str, Any], kind: str) -> dict[str, Any]:
    """Bounds as the column's own type: of whole numbers `from` and `below`, whatever was said."""
    if "equals" in asked:
        return asked
    if kind == "float":
        return {key: float(value) + 0.0 for key, value in asked.items()}
    low = [math.floor(asked["above"]) + 1] if "above" in asked else []
    low += [math.ceil(asked["from"])] if "from" in asked else []
    high = [math.ceil(asked["below"])] if "below" in asked else []
    high += [math.floor(asked["to"]) + 1] if "to" in asked else []
    found = {**({"from": max(low)} if low else {}), **({"below": min(high)} if high else {})}
    # Beyond all values of such a column; a bound there says as much as any further out, and has few enough digits.
    return {key: min(max(value, -_WHOLE_END), _WHOLE_END) for key, value in found.items()}


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
        raise ConfigError("filter on payload: takes no other key, as the dataset has the conditions of each query")


def _is_term(term: Mapping[str, Any]) -> bool:
    asked = term.keys() - {"column"}
    return isinstance(term["column"], int) and (asked == {"equals"} or (bool(asked) and asked <= _COMPARE.keys()))


def _short(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


# Queries


def place_queries(
    path: Path,
    queries_to: Path,
    neighbors_to: Path,
    reader: Reader | None = None,
    queries: int | None = None,
    dim: int | None = None,
) -> bool:
    """Write the vectors of `query` as npy of float32 (n, dim) and, if no line has conditions, `closest_ids` (n, k).

    Returns whether the second was written: neighbours under conditions are not those of a plain search. With a `reader`
    of conditions, it is given those of each line, and the neighbours under them are written, lists padded with -1.
    DataError names the line that is damaged or of another shape, also than `queries` of `dim` numbers, where stated.
    """
    vectors: list[NDArray[np.float32]] = []
    closest: list[NDArray[np.int64]] = []
    for number, test in objects(path):
        where, query, ids = f"{path}: line {number}", test.get("query"), test.get("closest_ids")
        if not isinstance(query, list) or not query or not all(map(_is_number, query)):
            raise DataError(f"{where}: not a JSON object with a query of numbers")
        if len(query) != (len(vectors[0]) if vectors else dim or len(query)):
            than = "the first" if vectors else f"the {dim} numbers stated"
            raise DataError(f"{where}: the query differs in length from {than}")
        if queries and len(vectors) == queries:
            raise DataError(f"{where}: more than the {queries} queries of the config")
        with np.errstate(over="ignore"):  # becomes infinity, which the download stage refuses by row
            vectors.append(np.array(query, dtype=np.float64).astype(np.float32))
        if isinstance(ids, list) and (reader is not None or not test.get("conditions")):
            if len(ids) > K_MAX:
                raise DataError(f"{where}: {len(ids)} closest_ids, but at most {K_MAX} are allowed")
            if not all(type(value) is int and -1 <= value < _ID_END for value in ids):
                raise DataError(f"{where}: closest_ids must be ids")
            closest.append(np.array(ids, dtype=np.int64))
        if reader is not None:
            reader.add(number, test.get("conditions"))
    if not vectors:
        raise DataError(f"{path}: holds no queries")
    with replacing(queries_to) as temporary, open(temporary, "wb") as file:
        np.save(file, np.array(vectors))
    depths = {len(ids) for ids in closest}
    if len(closest) < len(vectors) or (reader is None and len(depths) != 1):
        return False
    padded = np.full((len(closest), max(depths)), -1, dtype=np.int64)
    for row, ids in zip(padded, closest, strict=True):
        row[: len(ids)] = ids
    with replacing(neighbors_to) as temporary, open(temporary, "wb") as file:
        np.save(file, padded)
    return True


def objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and object of every line that is not empty; DataError for any other line, and for one too long."""
    try:
        file: IO[bytes] = open(path, "rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise DataError(f"{path}: can't be read ({error.strerror})") from None
    with file:
        number = 0
        while line := file.readline(_LINE_BYTES + 1):
            number += 1
            if len(line) > _LINE_BYTES:
                raise DataError(f"{path}: line {number}: longer than {_LINE_BYTES} bytes")
            if not line.strip():
                continue
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                found = None
            if not isinstance(found, dict):
                raise DataError(f"{path}: line {number}: not a JSON object")
            yield number, found


def _is_number(value: object) -> bool:
    """Whether it is one, and not beyond floating point; NaN and infinity are refused later, by row."""
    return isinstance(value, float) or (type(value) is int and abs(value) < _FLOAT_END)
