"""What runs where a library is: in the process that builds its index, and in each client that searches it.

Run by its path, as a program (`main`, told what to do over a loopback connection) and as a module of the driver's
transport `inprocess` (`connect`). Imports nothing of ours: only the standard library, numpy, and the `adapter`, a file
that has

  PACKAGE                           the name of the package whose version is run
  Builder(folder, facts)            .add(vectors (m, d)) in the order of the rows, .finish() writes the index
  Searcher(folder, facts)           .search(query (d,), k, ef) → ids, canonical distances, nearest first;
                                    .describe() → {"rows": …, "settings": {…}} as the stored index says;
                                    .vectors(rows) → the vectors that it holds (m, d)

A library that stores metadata and filters by it has `FILTERS = True`, no `vectors`, and instead

  condition(comparisons)            what the library takes for comparisons [column, operator, value] that all hold
  Builder                           .add(vectors, columns {name: (m,)})
  Searcher                          .filtered(query, k, ef, condition, exact) → as `search`; exact: by every vector;
                                    .count(condition)

`facts` holds metric (l2 or cosine), dim, rows, index, settings, threads.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import struct
import sys
import time
from collections.abc import Callable
from functools import lru_cache
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = sys.argv[4:]  # before numpy: an artifact may bring the one that it was built for

import numpy as np

HEAD = struct.Struct("<III")
"""Of a request: k, ef, and the length of the JSON of a filter (0: none), which the float32 query follows.

The JSON is {"all": comparisons [column, operator, value], "exact": whether to look at every vector that passes}.
"""
COLUMNS = ("category", "price", "region")
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {"in": np.isin, ">=": np.greater_equal, "<": np.less}
_CONDITIONS = 1024
"""Of the last filters, what the library takes for them is kept, as a program that asks by the same ones would."""
Found = tuple[Any, Any]
Comparisons = list[list[Any]]


def adapter_of(path: str) -> Any:
    name = "adapter_" + Path(path).parent.name
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def facts_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "facts.json").read_text())  # type: ignore[no-any-return]


def filters(adapter: Any) -> bool:
    """Whether the library stores metadata and filters by it."""
    return getattr(adapter, "FILTERS", False)


def passing(folder: Path, comparisons: Comparisons) -> Any:
    """The rows of which all comparisons hold, by the columns that are stored beside an index without metadata."""
    keep: Any = None
    for column, operator, value in comparisons:
        holds = _OPERATORS[operator](np.load(folder / f"{column}.npy"), value)
        keep = holds if keep is None else keep & holds
    return np.flatnonzero(keep)


def connect(target: str, options: dict[str, Any], timeout_s: float) -> tuple[Callable[[bytes], Found], Any]:
    """Load the index in the folder `target`; returns what answers a request, and what ends it.

    Of a library without metadata, the answer under a filter is an exact scan of the vectors that the index holds: the
    exact-search oracle asks so.
    """
    folder = Path(target)
    facts = facts_of(folder)
    adapter = adapter_of(options["adapter"])
    held = [adapter.Searcher(folder, facts)]

    @lru_cache(_CONDITIONS)
    def read(asked: bytes) -> tuple[Any, bool]:
        wanted = json.loads(asked)
        return adapter.condition(wanted["all"]), wanted["exact"]

    def search(request: bytes) -> Found:
        k, ef, length = HEAD.unpack_from(request)
        query = np.frombuffer(request, "<f4", offset=HEAD.size + length)
        if not length:
            return held[0].search(query, k, ef)  # type: ignore[no-any-return]
        asked = request[HEAD.size : HEAD.size + length]
        if filters(adapter):
            return held[0].filtered(query, k, ef, *read(asked))  # type: ignore[no-any-return]
        return _scan(folder, held[0], json.loads(asked)["all"], query, k, facts)

    return search, held.clear


def _scan(folder: Path, searcher: Any, wanted: Comparisons, query: Any, k: int, facts: dict[str, Any]) -> Found:
    rows = passing(folder, wanted)
    vectors = np.asarray(searcher.vectors(rows), np.float64).reshape(len(rows), facts["dim"])
    exact = query.astype(np.float64)
    far = ((vectors - exact) ** 2).sum(axis=1) if facts["metric"] == "l2" else 1.0 - vectors @ exact
    best = np.argsort(far, kind="stable")[:k]
    return rows[best], far[best]


class Host:
    """The process that builds. What it has built it writes, and holds no longer: searching is its clients' part."""

    def __init__(self, adapter: str, folder: Path) -> None:
        self.adapter, self.folder = adapter_of(adapter), folder
        self.builder: Any = None
        self.columns: dict[str, list[Any]] = {}

    def version(self) -> str:
        return importlib.metadata.version(self.adapter.PACKAGE)

    def create(self, facts: dict[str, Any]) -> None:
        (self.folder / "facts.json").write_text(json.dumps(facts))
        self.builder = self.adapter.Builder(self.folder, facts)
        self.dim = facts["dim"]
        self.columns = {name: [] for name in COLUMNS}

    def add(self, vectors: bytes, columns: dict[str, tuple[str, bytes]]) -> None:
        rows = np.frombuffer(vectors, "<f4").reshape(-1, self.dim)
        metadata = {name: np.frombuffer(values, dtype) for name, (dtype, values) in columns.items()}
        if filters(self.adapter):
            self.builder.add(rows, metadata)
            return
        self.builder.add(rows)
        for name, values in metadata.items():
            self.columns[name].append(values)

    def finish(self) -> None:
        """Build what is not built yet, write all of it, and let it go."""
        self.builder.finish()
        self.builder = None
        for name, parts in self.columns.items():
            if parts:
                np.save(self.folder / f"{name}.npy", np.concatenate(parts))
        self.columns = {}

    def sync(self) -> None:
        """Have what was written on the disk: a library only writes it."""
        for path in [self.folder, *self.folder.rglob("*")]:
            file = os.open(path, os.O_RDONLY)
            os.fsync(file)
            os.close(file)

    def try_it(self) -> float:
        """Load the stored index and search it once; returns the seconds that this took."""
        started = time.monotonic()
        facts = facts_of(self.folder)
        searcher = self.adapter.Searcher(self.folder, facts)
        searcher.search(np.full(facts["dim"], 1.0 / facts["dim"] ** 0.5, np.float32), 1, 10)
        return time.monotonic() - started

    def describe(self) -> dict[str, Any]:
        """What the stored index says of itself; and of what it does not tell, what clients are given that open it."""
        facts = facts_of(self.folder)
        threads = facts.get("threads") if getattr(self.adapter, "THREADS", True) else None
        given = {**facts["settings"], **({"build_threads": threads} if threads else {})}
        said: dict[str, Any] = self.adapter.Searcher(self.folder, facts).describe()
        return {**said, "settings": {**given, **said["settings"]}}

    def count(self, wanted: Comparisons) -> int:
        if not filters(self.adapter):
            return len(passing(self.folder, wanted))
        searcher = self.adapter.Searcher(self.folder, facts_of(self.folder))
        return int(searcher.count(self.adapter.condition(wanted)))


def serve(host: Host, connection: Connection) -> None:
    """Answer calls (name, arguments) by (True, result) or (False, why not) until the other side is gone."""
    calls = ("version", "create", "add", "finish", "sync", "try_it", "describe", "count")
    while True:
        try:
            name, arguments = connection.recv()
        except EOFError:
            return
        try:
            assert name in calls, name
            answer = True, getattr(host, name)(*arguments)
        except Exception as error:
            answer = False, f"{type(error).__name__}: {error}"
        connection.send(answer)


def main() -> None:
    """Build what the one who started this says. Arguments: port, adapter, folder, folders for the path."""
    port, adapter, folder, *_ = sys.argv[1:]
    secret = bytes.fromhex(os.environ["ANNCESTRY_HOST_KEY"])
    host = Host(adapter, Path(folder))
    with Listener(("127.0.0.1", int(port)), authkey=secret) as listener:
        print("ready", flush=True)
        while True:
            try:
                with listener.accept() as connection:
                    serve(host, connection)
            except (EOFError, ConnectionError):
                pass  # somebody looked whether the port is open


if __name__ == "__main__":
    main()
