"""VectorDBBench's own runners, on rows that are there: run by an interpreter that has it, see peers.py.

python vectordbbench_runner.py DATABASE ACCESS QUERIES.npy TRUTH.npy METRIC K EF CLIENTS SECONDS

DATABASE names the module beside this one that makes VectorDBBench's client of it; ACCESS says in JSON how it gets in.
Prints what it counted, as JSON: without SECONDS (0) its serial search of every query once, which tells recall and p99;
else its concurrent search, which tells queries per second, p99 and mean.
"""

from __future__ import annotations

import json
import logging
import sys
from importlib import import_module
from importlib.metadata import version

import numpy as np
from vectordb_bench.backend.clients.api import MetricType
from vectordb_bench.backend.runner.mp_runner import MultiProcessingSearchRunner
from vectordb_bench.backend.runner.serial_runner import SerialSearchRunner


def main() -> None:
    logging.disable(logging.INFO)
    database, access, queries, truth, metric, k, ef, clients, seconds = sys.argv[1:]
    of_it = import_module(f"vectordbbench_{database}")
    vectors = np.load(queries)
    db = of_it.client(json.loads(access), vectors.shape[1], MetricType(metric), int(ef))
    asked = {"k": int(k), "test_data": vectors.tolist()}
    found = {"version": version("vectordb-bench"), "adapted": of_it.ADAPTED}
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
