"""VectorDBBench's client of MariaDB, on a table that is there: see vectordbbench_runner.py.

As it is released it can search no MariaDB: between the table and ORDER its statement lacks a space (1.0.18, and 2.0.0
still). A table's name that ends in one sends the statement that is meant. The connector's only version with wheels has
other names for the two classes that its annotations name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import mariadb
from vectordb_bench.backend.clients.api import MetricType

mariadb.Connection, mariadb.Cursor = mariadb.SyncConnection, mariadb.SyncCursor

from vectordb_bench.backend.clients.mariadb.config import MariaDBHNSWConfig  # noqa: E402
from vectordb_bench.backend.clients.mariadb.mariadb import MariaDB  # noqa: E402

ADAPTED = "its statement has the space before ORDER that it lacks, and its connector's classes the names it expects"


def client(access: Mapping[str, str], dim: int, metric: MetricType, ef: int) -> MariaDB:
    host, _, port = access["target"].rpartition(":")
    password = os.environ[access["password_env"]]
    db = MariaDB(
        dim=dim,
        db_config={"host": host, "port": int(port), "user": access["user"], "password": password},
        # How the index was made, which is there, decides nothing here: M; nor is the cache of the graph set again.
        db_case_config=MariaDBHNSWConfig(M=None, ef_search=ef, max_cache_size=None, metric_type=metric),
        collection_name=f"{access['table']} ",
        drop_old=False,
    )
    db.db_name = access["database"]
    return db
