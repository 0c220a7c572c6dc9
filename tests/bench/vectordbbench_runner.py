"""VectorDBBench's own runners, on a collection that is there: run by its own interpreter, see peers.py.

python vectordbbench_runner.py TARGET QUERIES.npy TRUTH.npy METRIC K EF CLIENTS SECONDS

prints what it counted, as JSON: without SECONDS (0) its serial search of every query once, which tells recall and p99;
else its concurrent search, which tells queries per second, p99 and mean.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version

import numpy as np
from vectordb_bench.backend.clients.api import MetricType
from vectordb_bench.backend.clients.milvus.config import HNSWConfig
from vectordb_bench.backend.clients.milvus.milvus import Milvus
from vectordb_bench.backend.runner.mp_runner import MultiProcessingSearchRunner
from vectordb_bench.backend.runner.serial_runner import SerialSearchRunner


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
    target, queries, truth, metric, k, ef, clients, seconds = sys.argv[1:]
    vectors = np.load(queries)
    db = AsOnItsOwn(
        dim=vectors.shape[1],
        db_config={"uri": f"http://{target}", "user": None, "password": None},
        # How the collection was made, which is there, decides nothing here: M and efConstruction.
        db_case_config=HNSWConfig(M=1, efConstruction=1, ef=int(ef), metric_type=MetricType(metric)),
        collection_name="Bench",
        drop_old=False,
    )
    asked = {"k": int(k), "test_data": vectors.tolist()}
    found = {"version": version("vectordb-bench")}
    if int(seconds):
        runner = MultiProcessingSearchRunner(db, **asked, concurrencies=[int(clients)], duration=int(seconds))
        qps, _, _, p99, _, mean = runner.run()
        found |= {"qps": qps, "p99_ms": 1e3 * float(p99[0]), "mean_ms": 1e3 * float(mean[0])}
    else:
        (recall, _, p99, _), _ = SerialSearchRunner(db, **asked, ground_truth=np.load(truth).tolist()).run()
        found |= {"recall_by_id": float(recall), "p99_ms": 1e3 * float(p99)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
