"""Redis at run time: loaded, asked and read back; `serve` starts it, `wire` makes commands of rows and searches."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncestry.engines.base import (
    Batch,
    Component,
    EngineOf,
    Kill,
    LoadResult,
    Probe,
    Spec,
    Vectors,
    components,
    listed,
)
from anncestry.engines.redis import METRICS, serve, wire
from anncestry.engines.redis.serve import RedisServer
from anncestry.engines.resp import CONFIG, STORE, command
from anncestry.progress import Progress

_PARAMETERS = {"M": "M", "ef_construction": "ef_construction"}
"""Our name of a parameter → that of FT.INFO."""
_MEMORY = {
    "vectors and graph": ("vector_index_sz_mb",),
    "other fields": ("inverted_sz_mb", "tag_overhead_sz_mb"),
    "names of rows": ("doc_table_size_mb", "key_table_size_mb"),
}
"""Part of the memory → what FT.INFO says of it."""
_DURABLE = (
    "BGREWRITEAOF, then WAITAOF: all rows in one file, synced, and its log empty; the graph is never stored, and is "
    "built again at each start"
)


class Redis(EngineOf[RedisServer]):
    narrows = True

    start = staticmethod(serve.start)

    def load(self, server: RedisServer, vectors: Vectors, index: Spec, load: Spec, progress: Progress) -> LoadResult:
        """Create the index, insert in batches, which are put into the graph at once, search, have the log rewritten."""
        result = LoadResult()
        columns = list(vectors.payload.columns)
        server.ask(wire.definition(vectors.base.shape[1], index, METRICS[vectors.metric], columns))
        kill = Kill(server, load, len(vectors.base), result)
        with self.encoded(server, vectors, load, result) as requests, result.phase("insert"):
            for ids, commands in requests:
                refused = kill.send(
                    partial(server.insert, commands, len(ids)), lambda answer: next(iter(answer.values()), None)
                )
                result.acknowledge(len(ids), len(refused), next(iter(refused.values()), None))
                progress.at(result.rows_sent)
                kill.when_due()
        with result.phase("index"):
            server.await_indexed()
        with result.phase("ready"):
            server.search_once()
        server.rewrite()
        result.durable(_DURABLE)
        return result

    def encode_insert(self, server: RedisServer, rows: Batch) -> bytes:
        return wire.insertion(rows)

    def await_open(self, server: RedisServer, index: Spec) -> None:
        server.await_indexed()
        server.search_once()

    def probe(self, server: RedisServer) -> Probe:
        told, vector = server.describe(), server.vector()
        rows, indexed = int(server.ask(command("DBSIZE"))), int(told["num_docs"])
        failures = int(told["hash_indexing_failures"])
        settings = {
            "index_type": vector["algorithm"].lower(),
            **{ours: int(vector[theirs]) for ours, theirs in _PARAMETERS.items() if theirs in vector},
            "distance": vector["distance_metric"],
            "appendonly": server.configured("appendonly"),
            "appendfsync": server.configured("appendfsync"),
            "maxmemory": server.configured("maxmemory"),
            "search_timeout_ms": server.search_timeout_ms(),
            "search_version": server.search_version(),
        }
        sizes = {part: sum(float(told[name]) for name in names) for part, names in _MEMORY.items()}
        sizes["all of it"] = int(server.info("memory")["used_memory"]) / 2**20
        memory = ", ".join(f"{part} {mib:.1f} MiB" for part, mib in sizes.items())
        # A vector of another length is acknowledged, and not indexed.
        waiting = int(told["indexing"])
        whole = (waiting, float(told["percent_indexed"]), failures, indexed) == (0, 1.0, 0, rows)
        detail = f"{indexed} of {rows} rows indexed, {failures} failures; memory: {memory}"
        version = server.info("server")["redis_version"]
        return Probe(version, rows, whole, detail, settings, 1, 1, 1)

    def asked_settings(self, system: Spec, index: Spec, metric: str, ef_search: int | None) -> dict[str, Any]:
        # ef and the policy of filtered searches travel in each request.
        return {
            "index_type": index["type"],
            **{name: index[name] for name in _PARAMETERS if name in index},
            "distance": METRICS[metric],
            "appendonly": "yes",
            "appendfsync": (system.get("settings") or {}).get("appendfsync", "everysec"),
            "search_timeout_ms": 0,
        }

    def data_components(self, data_dir: Path) -> list[Component]:
        # No file holds the graph.
        log = f"{STORE}/appendonlydir"
        parts = [
            ("rows", True, [f"{log}/*.base.*"]),
            ("log", False, [f"{log}/*.incr.aof", f"{log}/*.manifest"]),
            ("logs", False, ["logs"]),
            ("config", False, [CONFIG]),
        ]
        return components(data_dir, parts)

    def exact_filters(self, server: RedisServer, on: bool) -> None:
        server.exact = on

    def count(self, server: RedisServer, filter: Spec | None) -> int:
        return int(server.ask(wire.counting(filter))[0])

    def encode(
        self, server: RedisServer, queries: NDArray[np.float32], k: int, ef_search: int, filter: Spec | None
    ) -> list[bytes]:
        policy = "adhoc_bf" if server.exact else server.settings.get("hybrid_policy")
        options = ""
        if filter is not None and policy is not None:
            options += f"HYBRID_POLICY {policy.upper()} "
        # A scan is refused with an effort, and so is a flat index.
        scanned = filter is not None and policy == "adhoc_bf"
        if server.dim_and_type[1] == "hnsw" and not scanned:
            options += f"EF_RUNTIME {int(ef_search)} "
        return [wire.search(query, k, filter, options) for query in queries]

    def transport(self, server: RedisServer) -> dict[str, Any]:
        return server.sql_transport(kind="redis", raw=True)

    decode = staticmethod(wire.decode)

    def fairness(self, system: Spec, index: Spec, topology: Spec) -> dict[str, str]:
        settings = system.get("settings") or {}
        hnsw = index["type"] == "hnsw"
        policy = settings.get("hybrid_policy")
        chosen = f"HYBRID_POLICY {policy.upper()}" if policy else "its planner chooses, for each search"
        fsync = settings.get("appendfsync", "everysec")
        loss = {"always": "nothing", "everysec": "about a second", "no": "what the kernel had not written"}[fsync]
        built = f"M={index['M']} (2M at the bottom layer), ef_construction={index['ef_construction']}" if hnsw else ""
        return {
            "query protocol": "RESP 2: FT.SEARCH, the vector as float32 bytes; ids and distances (12 digits, as text) "
            "are fetched",
            "insert protocol": "RESP 2: HSET for each row, those of a batch sent at once (pipeline), one connection",
            **({"HNSW": built} if hnsw else {"index": "FLAT: every search looks at every vector"}),
            "ef applies to": "the one graph; EF_RUNTIME of each request" if hnsw else "nothing: no graph",
            "filters": "category is a TAG, price and region NUMERIC; by the vectors of the rows that pass (ADHOC_BF, "
            f"exact, without ef) or by batches of the graph's answers (BATCHES): {chosen}",
            "clients": "all searches run one after the other, in the server's main thread: this build has no WORKERS",
            "consistency": "one server: a row is found as soon as it is acknowledged",
            "durability": f"appendonly yes, appendfsync {fsync}: acknowledged after the log was written; a power cut "
            f"loses {loss}, a killed process nothing; the graph is never stored",
            "set by the system": listed(settings),
            "set by anncestry": "appendonly yes, appendfsync everysec unless the system sets it, no snapshots (save); "
            "TIMEOUT 0, as slow searches else return what they have after 0.5 s; password, path, port, loopback",
            "left at defaults": "maxmemory (none), auto-aof-rewrite (at twice the size, from 64 MB on), BLOCK_SIZE, "
            "EPSILON, the garbage collector of the index",
        }


ENGINE = Redis()
