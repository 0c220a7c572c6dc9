"""What a database of the MySQL protocol is to this engine: its statements, what it lacks, how it is started."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from anncestry.engines.base import Spec
from anncestry.engines.offers import LARGEST_EFFORT, Freeze, Version, whole_number
from anncestry.errors import ConfigError
from anncestry.runtimes.base import Limits

TABLE = "bench"
"""The one table; its columns are id, v (the vector), category, price, region."""
MARKS = "anncestry_mark"
"""On a server that somebody else runs: the table that holds the mark of ours."""
INDEX = "vi"
READER = "anncestry"
"""The account that queries use on a server of our own: it may read, from loopback (see `admit_others`)."""

Ask = Callable[[str | bytes], list[tuple[Any, ...]]]
"""A statement → its rows."""


class Dialect(ABC):
    """One database. `distance` below is l2, cosine or inner_product: what its index is built for."""

    name: ClassVar[str]
    versions: ClassVar[tuple[Version, Version]]
    """From the first on, below the second."""
    runtimes: ClassVar[tuple[str, ...]]
    quantizers: ClassVar[tuple[str, ...]]
    """Those of `cells.indexes.QUANTIZERS` that it has beside a graph."""
    distances: ClassVar[Mapping[str, str]]
    """Distance → its name in the definition of an index."""
    m: ClassVar[tuple[int, int]]
    ef_construction: ClassVar[tuple[int, int]] = (4, 1000)
    has_ef_construction: ClassVar[bool] = True
    largest_k: ClassVar[int] = 10_000
    ef_max: ClassVar[int] = LARGEST_EFFORT
    memory_min_mib: ClassVar[int] = 256
    numbers: ClassVar[Mapping[str, tuple[int, int, int]]] = {}
    """Settings of its own, whole numbers: least, most, what is taken where nothing is said."""
    conditions: ClassVar[bool] = True
    """Whether queries can have conditions on payload columns."""
    read_back: ClassVar[tuple[str, ...]] = ()
    """Those of them that `effective` tells."""
    needs_interface: ClassVar[bool] = False
    """Whether it does not start where the loopback is the only network interface."""
    environment: ClassVar[Mapping[str, str]] = {}
    """Variables that it is started with."""

    patterns: ClassVar[Mapping[str, str]]
    """Of SHOW CREATE TABLE: where `distance`, `quantizer` (if it has any), `M` and `ef_construction` stand."""
    types: ClassVar[Mapping[str, str]] = {}
    """Quantizer, or none → what the definition of an index calls it."""

    # Parts of statements

    keys: ClassVar[str] = ", KEY kc(category), KEY kp(price), KEY kr(region)"
    """Of the definition of the table: the indexes that filters use. They come with the table."""
    table_options: ClassVar[str] = ""
    """After the definition of the table."""
    functions: ClassVar[Mapping[str, bytes]] = {}
    """Distance → its function. One that is not the index's makes a full scan, in silence."""
    no_zero_vectors: ClassVar[Mapping[str, str | None]] = {}
    """Distance → what it makes of a zero vector. None: it keeps it."""
    freeze: ClassVar[Freeze] = Freeze(no="was never tried frozen")
    """How long it may stand still."""
    durability: ClassVar[str] = ""
    """What `persist` asks, in words."""
    ef_variable: ClassVar[str]
    """The session's variable of the search effort."""
    hint: ClassVar[bytes] = b""
    """What comes after SELECT."""
    scan_hint: ClassVar[str] = ""
    """What comes after the table to keep a search off the vector index."""
    approximate: ClassVar[bytes] = b""
    """What comes before LIMIT to ask for the vector index."""

    def check(self, settings: Spec) -> None:
        """ConfigError for a setting that can't be; the keys are known ones."""
        cosine = settings.get("cosine_by", "cosine")
        if cosine not in ("cosine", "inner_product"):
            raise ConfigError(f"settings.cosine_by: {cosine!r} is neither cosine nor inner_product")
        if cosine not in self.distances:
            raise ConfigError(f"settings.cosine_by: unsupported: {self.name} has no {cosine}")
        whole_number("settings.insert_connections", settings.get("insert_connections", 1), 1, 256)
        for name, (low, high, _) in self.numbers.items():
            if name in settings:
                whole_number(f"settings.{name}", settings[name], low, high)

    def number(self, settings: Spec, name: str) -> int:
        """A setting of its own, or what is taken for it."""
        return int(settings.get(name, self.numbers[name][2]))

    @staticmethod
    def distance(settings: Spec, metric: str) -> str:
        """What vectors of this metric are compared by. (For cosine they have length 1: both ways give its order.)"""
        return metric if metric == "l2" else str(settings.get("cosine_by", "cosine"))

    # Statements

    def create(self, dim: int, payload: str = "") -> str:
        """Make the table; `payload` defines more columns."""
        columns = "category INT NOT NULL, price FLOAT NOT NULL, region INT NOT NULL"
        return (
            f"CREATE TABLE {TABLE}(id INT PRIMARY KEY, v VECTOR({dim}) NOT NULL, {columns}{self.keys}{payload})"
            f"{self.table_options}"
        )

    def check_fits(self, dim: int, index: Spec, settings: Spec) -> None:
        """ConfigError if vectors of `dim` numbers can't be cut as the index is told to: before any is inserted."""
        return

    @abstractmethod
    def build(self, dim: int, index: Spec, settings: Spec, distance: str) -> list[str]:
        """Build the vector index over the rows that are there."""

    def await_built(self, ask: Ask, rows: int) -> bool:
        """Whether the index covers all rows by now: asked again until it does. Here, building it was waiting for it."""
        return True

    def persist(self, ask: Ask) -> Callable[[], bool]:
        """Ask for rows and index in its files, synced; what is returned says whether they are. Of a server of ours."""
        raise NotImplementedError

    def distance_of(self, literal: bytes, distance: str) -> bytes:
        """The expression for the distance to a vector."""
        return b"%s(v,%s)" % (self.functions[distance], literal)

    def search(self, literal: bytes, distance: str, k: int, where: str, exact: bool) -> bytes:
        """Ids and distances (a column named like the distance) of the `k` rows nearest to a vector.

        `where` is a condition or empty; `exact` asks for a scan of all rows that pass it.
        """
        condition = f" WHERE {where}" if where else ""
        return b"SELECT %sid,%s AS %s FROM %s ORDER BY %s%s LIMIT %d" % (
            self.hint,
            self.distance_of(literal, distance),
            distance.encode(),
            (TABLE + (self.scan_hint if exact else "") + condition).encode(),
            distance.encode(),
            b"" if exact else self.approximate,
            k,
        )

    def session(self, ef_search: int) -> list[str]:
        """What a connection that searches says first."""
        return [f"SET {self.ef_variable}={ef_search}"]

    @abstractmethod
    def uses_index(self, plan: Sequence[Sequence[Any]]) -> bool:
        """Whether EXPLAIN's rows show the vector index."""

    # What it says of itself

    @abstractmethod
    def version(self, ask: Ask) -> str:
        """Three numbers."""

    def described(self, definition: str) -> dict[str, Any]:
        """Of SHOW CREATE TABLE: `distance`, `quantizer`, `M` and, if it has it, `ef_construction` of the index."""
        texts = {name: found(pattern, definition) for name, pattern in self.patterns.items()}
        return {
            "distance": _ours(self.distances, texts["distance"]),
            "quantizer": _ours(self.types, texts["quantizer"]) if "quantizer" in texts else "none",
            **{name: whole(texts[name]) for name in ("M", "ef_construction") if name in texts},
        }

    def effective(self, ask: Ask) -> dict[str, Any]:
        """Settings of its own as the server has them."""
        return {}

    @abstractmethod
    def complete(self, ask: Ask) -> tuple[bool, str]:
        """Whether the index is there for all rows, and that in words."""

    # Running it

    def arguments(
        self, artifact: Path, folder: Path, host: str, port: int, settings: Spec, limits: Limits
    ) -> list[str | Path]:
        """The command that starts it on `folder`; `host` holds one address or several, with commas between them."""
        raise ConfigError(f"topology: {self.name} can't be started here; supported: runtime remote")

    def prepare(self, artifact: Path, folder: Path, password: str) -> bool:
        """Make a new, empty `folder` one that it can start on; whether it is secure by that (see `secure`)."""
        return False

    def secure(self, ask: Ask, password: str) -> None:
        """On its first start: nobody gets in but root and the reader, from loopback, with this password."""
        raise ConfigError(f"topology: {self.name} can't be started here; supported: runtime remote")

    def admit_others(self, ask: Ask, password: str) -> None:
        """The reader gets in from other machines as well, by this password: at each start where they shall reach it."""
        ask(f"CREATE USER IF NOT EXISTS {READER}@'%' IDENTIFIED BY '{password}'")
        ask(f"GRANT SELECT ON test.* TO {READER}@'%'")

    @abstractmethod
    def fairness(self, settings: Spec, index: Spec) -> dict[str, str]:
        """How it is treated, where that differs from the others."""


def _ours(names: Mapping[str, str], theirs: str | None) -> str | None:
    """Our name of what is called so, in lower case, there."""
    return next((ours for ours, name in names.items() if name.lower() == theirs), None)


def found(pattern: str, text: str) -> str | None:
    """The first group of the first match, in lower case."""
    match = re.search(pattern, text, re.IGNORECASE)
    return None if match is None else match[1].lower()


def three_numbers(text: str) -> str:
    """The first version number in a text, as three numbers; the text itself where there is none."""
    match = re.search(r"\d+\.\d+\.\d+", text)
    return text if match is None else match[0]


def whole(text: str | None) -> int | None:
    """The number that a text is."""
    return None if text is None else int(text)
