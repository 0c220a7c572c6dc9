"""VectorDBBench's own concurrent search, on a collection that is there: run by its own interpreter, see peers.py.

python vectordbbench_runner.py TARGET QUERIES.npy K EF CLIENTS SECONDS   → its QPS, p99 and mean, as JSON
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
from vectordb_bench.backend.clients.api import MetricType
from vectordb_bench.backend.clients.milvus.config import HNSWConfig
from vectordb_bench.backend.clients.milvus.milvus import Milvus
from vectordb_bench.backend.runner.mp_runner import MultiProcessingSearchRunner


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


def main() -> None:
    logging.disable(logging.INFO)
    target, queries, k, ef, clients, seconds = sys.argv[1:]
    vectors = np.load(queries)
    db = AsOnItsOwn(
        dim=vectors.shape[1],
        db_config={"uri": f"http://{target}", "user": None, "password": None},
        db_case_config=HNSWConfig(M=16, efConstruction=200, ef=int(ef), metric_type=MetricType.L2),
        collection_name="Bench",
        drop_old=False,
    )
    runner = MultiProcessingSearchRunner(
        db, vectors.tolist(), k=int(k), concurrencies=[int(clients)], duration=int(seconds)
    )
    qps, _, _, p99, _, mean = runner.run()
    print(json.dumps({"qps": qps, "p99_ms": 1e3 * float(p99[0]), "mean_ms": 1e3 * float(mean[0])}))


if __name__ == "__main__":
    main()
