"""A vector set of Redis at run time: started, loaded, asked and read back."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncestry.engines.base import (
    Answer,
    Batch,
    Component,
    DecodeError,
    EngineOf,
    ErrorReplyError,
    LoadResult,
    Probe,
    Spec,
    Vectors,
    components,
    listed,
    wait_for,
)
from anncestry.engines.conditions import Comparison, in_text
from anncestry.engines.resp import CONFIG, STORE, RespServer, command, paired, read, start_resp
from anncestry.errors import ServerError
from anncestry.progress import Progress
from anncestry.runtimes.base import Group

KEY = "anncestry"
_OPEN_S = 3600.0
_DURABLE = "BGREWRITEAOF, then WAITAOF: vectors and graph in one file, synced, and its log empty"


class VectorsetServer(RespServer):
    """One Redis with one vector set. With `exact`, searches look at every vector."""

    collection = KEY

    def __init__(self, group: Group, topology: Spec, system: Spec) -> None:
        super().__init__(group, topology, system)
        self.exact = False
        self.graph: Spec = {}
        """How it is to be built: each insertion says so."""

    def describe(self) -> dict[str, Any]:
        """The set as the server describes it (VINFO)."""
        return paired(self.ask(command("VINFO", KEY)))

    def await_open(self) -> None:
        """Until it has read its rows."""
        wait_for("redis: the stored rows", lambda: self.ask(command("VCARD", KEY)), self, _OPEN_S, patient=True)

    def search_once(self) -> None:
        one = np.ones(int(self.describe()["vector-dim"]), np.float32)
        if not self.ask(command("VSIM", KEY, "FP32", one.tobytes(), "COUNT", 1)):
            raise ServerError("redis: a search finds nothing")


def condition(filter: Spec) -> str:
    """A workload's filter in the language of VSIM."""

    def say(one: Comparison) -> str:
        value = list(one.value) if isinstance(one.value, tuple) else one.value
        if isinstance(value, float):  # it reads no exponents
            value = np.format_float_positional(value, trim="0")
        return f".{one.column} {one.operator} {value}"

    return in_text(filter, say, " and ", " or ")


class Vectorset(EngineOf[VectorsetServer]):
    narrows = True

    def start(
        self, artifact_dir: Path, data_dir: Path, system: Spec, topology: Spec, first_port: int | None = None
    ) -> VectorsetServer:
        (program,) = artifact_dir.resolve().glob("*/purelib/*/bin/redis-server")
        return start_resp(VectorsetServer, [program], {}, data_dir, system, topology, first_port)

    def load(
        self, server: VectorsetServer, vectors: Vectors, index: Spec, load: Spec, progress: Progress
    ) -> LoadResult:
        """Insert in batches, each row into the graph before it is acknowledged; search, have the log rewritten."""
        result = LoadResult()
        server.graph = index
        with self.encoded(server, vectors, load, result) as requests, result.phase("insert"):
            for ids, commands in requests:
                refused = server.insert(commands, len(ids))
                result.acknowledge(len(ids), len(refused), next(iter(refused.values()), None))
                progress.at(result.rows_sent)
        with result.phase("index"):
            server.describe()
        with result.phase("ready"):
            server.search_once()
        server.rewrite()
        result.durable(_DURABLE)
        return result

    def encode_insert(self, server: VectorsetServer, rows: Batch) -> bytes:
        vectors, names, index = rows.base.astype("<f4", copy=False), rows.names, server.graph
        built = ["NOQUANT", "EF", index["ef_construction"]]
        return b"".join(
            command(
                *("VADD", KEY, "FP32", vector.tobytes(), row, *built),
                *("SETATTR", json.dumps(dict(zip(names, values, strict=True))), "M", index["M"]),
            )
            for row, vector, values in zip(range(rows.first, rows.end), vectors, rows.columns(), strict=True)
        )

    def await_open(self, server: VectorsetServer, index: Spec) -> None:
        server.await_open()
        server.search_once()

    def probe(self, server: VectorsetServer) -> Probe:
        told, rows = server.describe(), int(server.ask(command("VCARD", KEY)))
        attributed = int(told["attributes-count"])
        settings = {
            "index_type": "hnsw",
            "M": int(told["hnsw-m"]),
            "quantization": str(told["quant-type"]),
            "appendonly": server.configured("appendonly"),
            "appendfsync": server.configured("appendfsync"),
            "maxmemory": server.configured("maxmemory"),
        }
        memory = int(server.info("memory")["used_memory"]) / 2**20
        detail = f"{rows} rows in the graph, {attributed} with attributes; memory: all of it {memory:.1f} MiB"
        return Probe(server.info("server")["redis_version"], rows, attributed == rows, detail, settings, 1, 1, 1)

    def asked_settings(self, system: Spec, index: Spec, metric: str, ef_search: int | None) -> dict[str, Any]:
        # ef travels in each request. Nothing tells ef_construction.
        return {
            "index_type": "hnsw",
            "M": index["M"],
            "quantization": "f32",
            "appendonly": "yes",
            "appendfsync": "everysec",
        }

    def data_components(self, data_dir: Path) -> list[Component]:
        log = f"{STORE}/appendonlydir"
        parts = [
            ("rows and graph", True, [f"{log}/*.base.*"]),
            ("log", False, [f"{log}/*.incr.aof", f"{log}/*.manifest"]),
            ("logs", False, ["logs"]),
            ("config", False, [CONFIG]),
        ]
        return components(data_dir, parts)

    def exact_filters(self, server: VectorsetServer, on: bool) -> None:
        server.exact = on

    def count(self, server: VectorsetServer, filter: Spec | None) -> int:
        """(No call counts under a filter: an exact search for as many as there are returns each row that passes.)"""
        rows = int(server.ask(command("VCARD", KEY)))
        if filter is None:
            return rows
        one = np.ones(int(server.describe()["vector-dim"]), np.float32).tobytes()
        asked: list[bytes | str | int] = ["FP32", one, "COUNT", rows, "TRUTH", "FILTER", condition(filter)]
        return len(server.ask(command("VSIM", KEY, *asked)))

    def encode(
        self, server: VectorsetServer, queries: NDArray[np.float32], k: int, ef_search: int, filter: Spec | None
    ) -> list[bytes]:
        scanned = server.exact and filter is not None
        more: list[str | int] = ["TRUTH"] if scanned else ["EF", int(ef_search)]
        if filter is not None:
            more += ["FILTER", condition(filter)]
            if "filter_ef" in server.settings and not scanned:
                more += ["FILTER-EF", server.settings["filter_ef"]]
        vectors = queries.astype("<f4", copy=False)
        return [
            command("VSIM", KEY, "FP32", vector.tobytes(), "WITHSCORES", "COUNT", int(k), *more) for vector in vectors
        ]

    def transport(self, server: VectorsetServer) -> dict[str, Any]:
        return server.sql_transport(kind="redis", raw=True)

    def decode(self, response: bytes, metric: str) -> Answer:
        stream = io.BytesIO(response)
        reply = read(stream)
        if isinstance(reply, ErrorReplyError):
            raise reply
        if stream.read(1) or not isinstance(reply, list) or len(reply) % 2:
            raise DecodeError("not a reply of Redis to VSIM")
        try:
            ids = np.array([int(name) for name in reply[::2]], np.int64)
            scores = np.array([float(score) for score in reply[1::2]], np.float64)
        except (ValueError, TypeError, OverflowError) as error:
            raise DecodeError(f"not a reply of Redis to VSIM: {type(error).__name__}: {error}") from None
        if not np.isfinite(scores).all():
            raise DecodeError("a reply of Redis with a score that is no number")
        return ids, 2.0 * (1.0 - scores)

    def fairness(self, system: Spec, index: Spec, topology: Spec) -> dict[str, str]:
        settings = system.get("settings") or {}
        return {
            "query protocol": "RESP 2: VSIM, the vector as float32 bytes; ids and scores (as text) are fetched",
            "insert protocol": "RESP 2: VADD for each row, those of a batch sent at once (pipeline), one connection",
            "HNSW": f"M={index['M']} (2M at the bottom layer), EF={index['ef_construction']}, NOQUANT (float32); "
            "nothing reads ef_construction back",
            "ef applies to": "the one graph; EF of each request",
            "filters": "the graph is walked, and each row's attributes (JSON, no index) are compared; effort ends "
            f"after FILTER-EF={settings.get('filter_ef', 'default (100 times k)')}, maybe with fewer than k answers",
            "clients": "each search runs in a thread of its own",
            "consistency": "one server: a row is found as soon as it is acknowledged",
            "durability": "appendonly yes, appendfsync everysec: acknowledged after the log was written; a power cut "
            "loses about a second, a killed process nothing; vectors and graph are in the rewritten log",
            "set by the system": listed(settings),
            "set by anncestry": "appendonly yes, appendfsync everysec, no snapshots; password, path, port, loopback",
            "left at defaults": "maxmemory (none), auto-aof-rewrite (at twice the size, from 64 MB on)",
        }


ENGINE = Vectorset()
