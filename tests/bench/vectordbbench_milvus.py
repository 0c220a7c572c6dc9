"""VectorDBBench's client of Milvus, on a collection that is there: see vectordbbench_runner.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from vectordb_bench.backend.clients.api import MetricType
from vectordb_bench.backend.clients.milvus.config import HNSWConfig
from vectordb_bench.backend.clients.milvus.milvus import Milvus

ADAPTED = "it searches with consistency Session, as collections that it makes have it"


class AsOnItsOwn(Milvus):
    """VectorDBBench's client, searching as it does on collections that it makes.

    It makes them with consistency "Session". Ours has Milvus' default, "Strong", under which every search waits up to
    0.2 s for the clock of the message queue: that would be no comparison.
    """

    @contextmanager
    def init(self) -> Iterator[None]:
        with super().init():
            self.col.search = partial(self.col.search, consistency_level="Session")
            yield


def client(access: Mapping[str, str], dim: int, metric: MetricType, ef: int) -> Milvus:
    return AsOnItsOwn(
        dim=dim,
        db_config={"uri": f"http://{access['target']}", "user": None, "password": None},
        # How the collection was made, which is there, decides nothing here: M and efConstruction.
        db_case_config=HNSWConfig(M=1, efConstruction=1, ef=ef, metric_type=metric),
        collection_name=access["table"],
        drop_old=False,
    )
