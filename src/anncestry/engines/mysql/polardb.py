"""PolarDB for MySQL: vectors in a columnar index (IMCI), a cloud service that can't be run here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from anncestry.engines.base import Spec
from anncestry.engines.mysql.dialect import TABLE, Ask, Dialect, three_numbers
from anncestry.errors import ConfigError

_THERE = "/* FORCE_IMCI_NODES */ "
"""Before a statement: a cluster's endpoint shall send it to the columnar node."""
_METRICS = {"l2": b"EUCLIDEAN", "cosine": b"COSINE", "inner_product": b"DOT"}


class PolarDB(Dialect):
    """Its statements as VectorDBBench sends them. Filters: the columns are in the columnar index."""

    name = "polardb"
    versions = ((8, 0, 2), (8, 1, 0))  # vectors came with 8.0.2.2.30
    runtimes = ("remote",)
    quantizers = ("sq", "pq")
    distances = {"l2": "EUCLIDEAN", "cosine": "COSINE", "inner_product": "INNER_PRODUCT"}  # noqa: RUF012
    types = {"none": "FAISS_HNSW_FLAT", "sq": "FAISS_HNSW_SQ", "pq": "FAISS_HNSW_PQ"}  # noqa: RUF012
    patterns = {  # noqa: RUF012 - in the comment that asked for the index
        "distance": r"metric=(\w+)",
        "quantizer": r"imci_vector_index=(\w+)",
        "M": r"max_degree=(\d+)",
        "ef_construction": r"ef_construction=(\d+)",
    }
    m = (2, 128)
    ef_construction = (2, 4096)
    conditions = False
    numbers = {"pq_m": (1, 4096, 16), "pq_nbits": (1, 16, 8)}  # noqa: RUF012
    keys = ""
    table_options = " ENGINE=InnoDB COMMENT 'COLUMNAR=1'"  # which puts the table into the columnar index
    ef_variable = "polar_vector_index_hnsw_ef_search"
    hint = b"/*+ SET_VAR(imci_enable_fast_vector_search=on) */ "  # the fast way through the columnar index

    def check_fits(self, dim: int, index: Spec, settings: Spec) -> None:
        parts = self.number(settings, "pq_m")
        if index.get("quantizer") == "pq" and dim % parts:
            raise ConfigError(f"settings.pq_m: {parts} does not divide the {dim} dimensions of the vectors")

    def build(self, dim: int, index: Spec, settings: Spec, distance: str) -> list[str]:
        """Asked for by a comment on the column; `await_built` waits for it."""
        quantizer = index.get("quantizer", "none")
        options = [f"metric={self.distances[distance]}", f"max_degree={index['M']}"]
        options.append(f"ef_construction={index['ef_construction']}")
        if quantizer == "pq":
            options += [f"{name}={self.number(settings, name)}" for name in self.numbers]
        if quantizer == "sq":
            options.append("sq_type=8bit")
        return [
            f"ALTER TABLE {TABLE} MODIFY COLUMN v VECTOR({dim}) NOT NULL "
            f'COMMENT "imci_vector_index={self.types[quantizer]}({",".join(options)})"',
            "SET GLOBAL imci_vector_index_dump_rows_threshold=1",
            f"{_THERE}ANALYZE TABLE {TABLE}",
        ]

    def await_built(self, ask: Ask, rows: int) -> bool:
        """The columnar node follows by itself."""
        return self._vectors(ask) >= rows

    @staticmethod
    def _vectors(ask: Ask) -> int:
        """As the columnar node counts them, which has the index. Other databases may have a table of this name, too."""
        rows = ask(
            f"{_THERE}SELECT VECTORS FROM information_schema.imci_vector_index_stats "
            f"WHERE SCHEMA_NAME=DATABASE() AND TABLE_NAME='{TABLE}'"
        )
        return sum(int(row[0]) for row in rows)

    def distance_of(self, literal: bytes, distance: str) -> bytes:
        return b"DISTANCE(v,%s,'%s')" % (literal, _METRICS[distance])

    def session(self, ef_search: int) -> list[str]:
        """All searches by the columnar index, one thread each."""
        return [
            "SET query_cache_type=OFF",
            "SET use_imci_engine=FORCED",
            "SET imci_enable_vector_search=ON",
            "SET imci_max_dop=1",
            "SET cost_threshold_for_imci=0",
            *super().session(ef_search),
        ]

    def search(self, literal: bytes, distance: str, k: int, where: str, exact: bool) -> bytes:
        """Exact: by the columnar scan, for which there is a variable of its own."""
        statement = super().search(literal, distance, k, where, exact)
        scan = b"/*+ SET_VAR(imci_enable_vector_search=off) */ "
        return statement.replace(self.hint, scan, 1) if exact else statement

    def uses_index(self, plan: Sequence[Sequence[Any]]) -> bool:
        """The columnar plan names a search or an index of vectors: a scan's may name the column, or its distance."""
        return any(re.search(r"vector[ _]?(search|index)", str(cell), re.IGNORECASE) for row in plan for cell in row)

    def version(self, ask: Ask) -> str:
        """Its own variable; that of MySQL is the version it started from."""
        rows = ask("SHOW VARIABLES LIKE 'polardb_version'") or ask("SHOW VARIABLES LIKE 'version'")
        return three_numbers(str(rows[0][1]))

    def complete(self, ask: Ask) -> tuple[bool, str]:
        ((rows,),) = ask(f"SELECT COUNT(*) FROM {TABLE}")
        vectors = self._vectors(ask)
        return vectors == rows, f"{vectors} of {rows} rows in the vector index"

    def fairness(self, settings: Spec, index: Spec) -> dict[str, str]:
        return {
            "HNSW": f"{self.types[index.get('quantizer', 'none')]}, max_degree={index['M']}, "
            f"ef_construction={index['ef_construction']}, on the columnar node",
            "filters": "by the columnar index; how, it does not say",
            "durability": "the service's",
            "set by anncestry": "the columnar index forced, one thread a search, no query cache",
        }
