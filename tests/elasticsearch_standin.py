"""A stand-in for Elasticsearch, as no package registry has its server: its REST interface, for one index in memory.

Written from its public reference. It takes the keys that the reference names and refuses any other with HTTP 400, as
the real one does; keeps rows in memory; finds them only after a refresh; and compares all of them, as it has no graph:
the fewer candidates are asked for, the more rows it leaves out, as a graph would.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

_SCRIPTS = {"l2norm(params.query, 'vector')": "l2_norm", "dotProduct(params.query, 'vector')": "dot_product"}

_WHOLE = {"total": 1, "successful": 1, "skipped": 0, "failed": 0}


class Refused(Exception):
    """Status and reason."""


def _only(where: str, given: Mapping[str, Any], known: set[str], needed: set[str] | None = None) -> None:
    unknown, missing = set(given) - known, (needed or set()) - set(given)
    if unknown or missing:
        raise Refused(400, f"[{where}] unknown field {sorted(unknown)}, missing {sorted(missing)}")


def reached(rows: list[int], effort: int) -> list[int]:
    """What a graph would reach at this effort: all from 100 on, of 10 four of five."""
    return [row for row in rows if row * 2654435761 % 2**32 % 100 >= 20 - effort // 5]


class Standin:
    """The one index, its mapping and its rows. `key` is what the header must hold; None: no security."""

    def __init__(self, key: str | None, version: str) -> None:
        self.key, self.version = key, version
        self.index: str | None = None
        self.mappings: dict[str, Any] = {}
        self.settings: dict[str, Any] = {}
        self.rows: dict[int, dict[str, Any]] = {}
        self.found: list[int] = []
        self.segments, self.status = 0, "green"
        self.searches: list[dict[str, Any]] = []
        self.seen: dict[tuple[Any, ...], tuple[list[int], np.ndarray]] = {}
        """What searches of one kind go through, until a row changes."""
        self.lock = threading.Lock()

    # Calls

    def answer(self, method: str, path: str, body: bytes) -> Any:
        path, _, _ = path.partition("?")
        parts = path.strip("/").split("/") if path != "/" else []
        if not parts:
            return {"version": {"number": self.version, "lucene_version": "9.12.0"}}
        if parts[0] == "_cluster":
            return {"status": self.status, "number_of_data_nodes": 1, "unassigned_shards": 0}
        name, call = parts[0], "/".join(parts[1:])
        if method == "PUT" and not call:
            return self._create(name, json.loads(body))
        if name != self.index:
            raise Refused(404, f"no such index [{name}]")
        if method == "DELETE" and not call:
            self.__init__(self.key, self.version)  # type: ignore[misc]
            return {"acknowledged": True}
        of = {
            "": lambda: {name: {"mappings": self.mappings}},
            "_mapping": lambda: {name: {"mappings": self.mappings}},
            "_settings": lambda: {name: {"settings": {"index": {k: str(v) for k, v in self.settings.items()}}}},
            "_segments": lambda: {"indices": {name: {"shards": {"0": [{"segments": self._segments()}]}}}},
            "_bulk": lambda: self._bulk(body),
            "_refresh": self._refresh,
            "_forcemerge": self._merge,
            "_flush": lambda: {"_shards": _WHOLE},
            "_count": lambda: self._count(json.loads(body) if body else {}),
            "_search": lambda: self._search(json.loads(body)),
        }
        if call not in of:
            raise Refused(400, f"no handler found for [{path}]")
        return of[call]()

    def _create(self, name: str, body: dict[str, Any]) -> Any:
        if self.index is not None:
            raise Refused(400, "resource_already_exists_exception")
        _only("index", body, {"settings", "mappings"})
        _only("mappings", body["mappings"], {"dynamic", "properties", "_meta"})
        field = body["mappings"]["properties"]["vector"]
        known = {"type", "element_type", "dims", "index", "similarity", "index_options"}
        _only("vector", field, known, {"type", "dims"})
        _only("index_options", field["index_options"], {"type", "m", "ef_construction"}, {"type"})
        if field["type"] != "dense_vector" or field["similarity"] not in _SCRIPTS.values():
            raise Refused(400, f"mapper_parsing_exception: {field}")
        self.index, self.mappings, self.settings = name, body["mappings"], body["settings"]["index"]
        return {"acknowledged": True}

    def _bulk(self, body: bytes) -> Any:
        lines = body.decode().split("\n")
        if lines[-1] != "":
            raise Refused(400, "The bulk request must be terminated by a newline [\\n]")
        items = []
        for action, source in zip(lines[:-1:2], lines[1:-1:2], strict=True):
            row, name = json.loads(source), json.loads(action)["index"]["_id"]
            try:
                self._add(int(name), row)
                items.append({"index": {"_id": name, "status": 201}})
            except Refused as refused:
                items.append({"index": {"_id": name, "status": 400, "error": {"reason": refused.args[1]}}})
        with self.lock:
            self.segments += 1
        return {"errors": any("error" in item["index"] for item in items), "items": items}

    def _add(self, name: int, row: dict[str, Any]) -> None:
        field = self.mappings["properties"]["vector"]
        _only("document", row, set(self.mappings["properties"]))
        vector = np.array(row["vector"], np.float32)
        if vector.shape != (field["dims"],):
            raise Refused(400, f"the [dense_vector] field [vector] has {len(vector)} dimensions")
        if field["similarity"] == "dot_product" and abs(float(vector @ vector) - 1) > 1e-4:
            raise Refused(400, "The [dot_product] similarity can only be used with unit-length vectors")
        self.rows[name] = {**row, "vector": vector}
        self.seen.clear()

    def _refresh(self) -> Any:
        self.found = sorted(self.rows)
        self.seen.clear()
        return {"_shards": _WHOLE}

    def _merge(self) -> Any:
        self.segments = 1
        return {"_shards": _WHOLE}

    def _segments(self) -> dict[str, Any]:
        each, more = divmod(len(self.found), max(1, self.segments))
        counts = [each + (number < more) for number in range(self.segments)]
        return {f"_{n}": {"num_docs": count, "deleted_docs": 0, "search": True} for n, count in enumerate(counts)}

    def _count(self, body: dict[str, Any]) -> Any:
        _only("count", body, {"query"})
        passing = [row for row in self.found if "query" not in body or self._passes(body["query"], self.rows[row])]
        return {"count": len(passing), "_shards": _WHOLE}

    # Searches

    def _passes(self, query: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
        ((kind, of),) = query.items()
        if kind == "bool":
            _only("bool", of, {"filter", "should", "minimum_should_match"})
            every = of.get("filter", [])
            every = every if isinstance(every, list) else [every]
            some = of.get("should", [])
            return all(self._passes(each, row) for each in every) and (
                not some or any(self._passes(each, row) for each in some)
            )
        ((column, value),) = of.items()
        if column not in self.mappings["properties"]:
            return False
        stored = row.get(column)
        if kind == "term":
            return bool(stored == value)
        if kind == "terms":
            return stored in value
        if kind == "range":
            _only("range", value, {"gt", "gte", "lt", "lte"})
            single = self.mappings["properties"][column]["type"] == "float"
            own = float(np.float32(stored)) if single else stored
            tests = {"gt": own.__gt__, "gte": own.__ge__, "lt": own.__lt__, "lte": own.__le__}
            return all(tests[bound](type(own)(limit)) for bound, limit in value.items())
        raise Refused(400, f"unknown query [{kind}]")

    def _search(self, body: dict[str, Any]) -> Any:
        _only("search", body, {"size", "_source", "knn", "query"}, {"size"})
        self.searches.append(body)
        if "knn" in body:
            asked = body["knn"]
            _only("knn", asked, {"field", "query_vector", "k", "num_candidates", "filter"}, {"field", "query_vector"})
            if not asked["k"] <= asked["num_candidates"] <= 10_000:
                raise Refused(400, "[num_candidates] cannot be less than [k], nor exceed [10000]")
            query, filter, most = asked["query_vector"], asked.get("filter"), min(asked["k"], body["size"])
        else:
            asked = body["query"]["script_score"]
            _only("script_score", asked, {"query", "script"}, {"query", "script"})
            _only("script", asked["script"], {"source", "params"}, {"source", "params"})
            wanted = self.mappings["properties"]["vector"]["similarity"]
            if not any(of == wanted and call in asked["script"]["source"] for call, of in _SCRIPTS.items()):
                raise Refused(400, f"script_exception: {asked['script']['source']}")
            query, filter, most = asked["script"]["params"]["query"], asked["query"], body["size"]
        kind = (body["knn"]["num_candidates"] if "knn" in body else None, json.dumps(filter))
        if kind not in self.seen:
            rows = self.found if "knn" not in body else reached(self.found, body["knn"]["num_candidates"])
            rows = [row for row in rows if filter is None or self._passes(filter, self.rows[row])]
            self.seen[kind] = rows, np.array([self.rows[row]["vector"] for row in rows], np.float64)
        hits = self._scored(np.array(query, np.float32), *self.seen[kind], most)
        return {"timed_out": False, "_shards": _WHOLE, "hits": {"hits": hits}}

    def _scored(self, query: np.ndarray, rows: list[int], vectors: np.ndarray, most: int) -> list[dict[str, Any]]:
        if not rows:
            return []
        if self.mappings["properties"]["vector"]["similarity"] == "l2_norm":
            scores = 1 / (1 + ((vectors - query) ** 2).sum(axis=1))
        else:
            scores = (1 + vectors @ query.astype(np.float64)) / 2
        order = np.argsort(-scores, kind="stable")[:most]
        return [{"_id": str(rows[place]), "_score": float(np.float32(scores[place]))} for place in order]


@contextmanager
def elasticsearch(key: str | None = None, version: str = "8.17.0", port: int = 0) -> Iterator[tuple[Standin, str]]:
    """The stand-in, and host:port where it listens (0: on a free port)."""
    standin = Standin(key, version)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _do(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            try:
                if standin.key is not None and self.headers.get("Authorization") != f"ApiKey {standin.key}":
                    raise Refused(401, "unable to authenticate")
                status, said = 200, standin.answer(self.command, self.path, body)
            except Refused as refused:
                status, said = refused.args[0], {"error": {"reason": refused.args[1]}, "status": refused.args[0]}
            reply = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        do_GET = do_PUT = do_POST = do_DELETE = _do

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield standin, f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
