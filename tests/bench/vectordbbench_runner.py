"""VectorDBBench's own concurrent search, on a collection that is there: run by its own interpreter, see peers.py.

python vectordbbench_runner.py TARGET QUERIES.npy K EF CLIENTS SECONDS   → its QPS, p99 and mean, as JSON
"""

from __future__ import annotations

import json
import logging
import sys

import numpy as np


def main() -> None:
    from vectordb_bench.backend.clients.api import MetricType
    from vectordb_bench.backend.clients.milvus.config import HNSWConfig
    from vectordb_bench.backend.clients.milvus.milvus import Milvus
    from vectordb_bench.backend.runner.mp_runner import MultiProcessingSearchRunner

    logging.disable(logging.INFO)
    target, queries, k, ef, clients, seconds = sys.argv[1:]
    vectors = np.load(queries)
    db = Milvus(
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
