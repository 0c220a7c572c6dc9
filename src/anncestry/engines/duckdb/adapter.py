"""DuckDB with vss, where it runs: see `library_host`. It tells Euclidean distances, not squared, and inner products.

The extension lies in a package beside it and is loaded from there: nothing is downloaded.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

PACKAGE = "duckdb"
FILTERS = True
_FILE = "rows.duckdb"
_METRICS = {"l2": "l2sq", "cosine": "ip"}
"""Cosine by the inner product: the vectors have length 1."""
_FUNCTIONS = {"l2": "array_distance", "cosine": "array_negative_inner_product"}
_NODE_BYTES, _LINK_BYTES = 14, 4
"""Of usearch's graph: what a node takes on the bottom layer beside its links, and a link."""


def condition(comparisons: list[list[Any]]) -> str:
    def value(asked: Any) -> str:
        return f"({', '.join(map(str, asked))})" if isinstance(asked, list) else repr(asked)

    return " AND ".join(f"{column} {operator} {value(asked)}" for column, operator, asked in comparisons)


def _connect(path: Path, threads: int, read_only: bool) -> Any:
    offline = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
    connection = duckdb.connect(str(path), read_only=read_only, config={"threads": threads, **offline})
    package = importlib.util.find_spec("duckdb_extension_vss")
    assert package is not None and package.origin is not None
    place = Path(package.origin).parent / "extensions" / f"v{duckdb.__version__}" / "vss.duckdb_extension"
    connection.execute(f"LOAD '{place}'")
    return connection


class Builder:
    """Inserts rows as they come; the index is built of them in the end."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        self.facts, self.rows = facts, 0
        self.connection = _connect(folder / _FILE, facts["threads"], read_only=False)
        self.connection.execute("SET hnsw_enable_experimental_persistence = true")
        self.connection.execute(
            f"CREATE TABLE rows (id BIGINT, vector FLOAT[{facts['dim']}], "
            "category UTINYINT, price FLOAT, region UTINYINT)"
        )

    def add(self, vectors: Any, columns: dict[str, Any]) -> None:
        ids = np.arange(self.rows, self.rows + len(vectors))
        lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), self.facts["dim"])
        self.connection.register("batch", pa.table({"id": ids, "vector": lists, **columns}))
        self.connection.execute("INSERT INTO rows SELECT id, vector, category, price, region FROM batch")
        self.connection.unregister("batch")
        self.rows += len(vectors)

    def finish(self) -> None:
        asked, metric = self.facts["index"], _METRICS[self.facts["metric"]]
        self.connection.execute(
            f"CREATE INDEX graph ON rows USING HNSW (vector) WITH (metric = '{metric}', M = {asked['M']}, "
            f"M0 = {2 * asked['M']}, ef_construction = {asked['ef_construction']})"
        )
        self.connection.execute("CHECKPOINT")
        self.connection.close()


class Searcher:
    """Searches the stored file, one query at a time, on one thread."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        path = folder / _FILE
        if not path.exists():
            raise FileNotFoundError(str(path))
        self.connection = _connect(path, 1, read_only=True)
        self.squared, self.ef = facts["metric"] == "l2", 0
        self.distance = f"{_FUNCTIONS[facts['metric']]}(vector, ?::FLOAT[{facts['dim']}])"
        self.scans = bool(facts["settings"].get("scan_filtered"))

    def search(self, query: Any, k: int, ef: int) -> tuple[Any, Any]:
        return self._answer(query, k, ef, "", self.distance)

    def filtered(self, query: Any, k: int, ef: int, condition: str, exact: bool) -> tuple[Any, Any]:
        """No index orders by the sum of a distance and 0: a scan."""
        order = f"{self.distance} + 0" if exact or self.scans else self.distance
        return self._answer(query, k, ef, f"WHERE {condition}", order)

    def _answer(self, query: Any, k: int, ef: int, where: str, order: str) -> tuple[Any, Any]:
        if ef != self.ef:
            self.connection.execute(f"SET hnsw_ef_search = {ef}")
            self.ef = ef
        statement = f"SELECT id, {order} AS distance FROM rows {where} ORDER BY distance LIMIT {k}"
        found = self.connection.execute(statement, [query]).fetchnumpy()
        distances = np.asarray(found["distance"], np.float64)
        return found["id"], distances * distances if self.squared else 1.0 + distances

    def count(self, condition: str) -> int:
        return int(self._one(f"SELECT count(*) FROM rows WHERE {condition}"))

    def describe(self) -> dict[str, Any]:
        """What it says of its graph. (M by the size of a node on the bottom layer.)"""
        metric, indexed, levels = self._all("SELECT metric, count, levels_stats FROM pragma_hnsw_index_info()")[0]
        bottom = levels[0]
        links = (bottom["allocated_bytes"] / bottom["nodes"] - _NODE_BYTES) / _LINK_BYTES
        settings = {
            "index_type": "hnsw",
            "metric": next((name for name, own in _METRICS.items() if own == metric), metric),
            "M": int(links) // 2,
            "scan_filtered": int(self.scans),
            "vss": self._one("SELECT extension_version FROM duckdb_extensions() WHERE extension_name = 'vss'"),
        }
        return {"rows": self._one("SELECT count(*) FROM rows"), "indexed": indexed, "settings": settings}

    def _all(self, statement: str) -> Any:
        return self.connection.execute(statement).fetchall()

    def _one(self, statement: str) -> Any:
        return self._all(statement)[0][0]
