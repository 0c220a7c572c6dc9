"""A flat-scan vector server over gRPC, small enough to read, with lies on demand (`lie` in its settings).

It exists so that the whole workflow, every gate and every fault can be tested in seconds. What it stores it writes to
its folder; what it answers is exact, unless it was told to lie.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import signal
import sys
import threading
import time
from concurrent import futures
from pathlib import Path

import grpc
import numpy as np


def burn(cpu_s: float) -> None:
    until = time.thread_time() + cpu_s
    while time.thread_time() < until:
        pass


class Store:
    def __init__(self, folder: Path, nodes: int, lie: str, version: str) -> None:
        self.folder, self.nodes, self.lie, self.version = folder, nodes, lie, version
        self.searches = self.of_seven = 0
        self.lock = threading.Lock()
        self.known: set[bytes] = set()
        self.vectors = np.empty((0, 0), np.float32)
        self.category, self.price = np.empty(0, np.uint8), np.empty(0, np.float32)
        self.region = np.empty(0, np.uint8)
        self.ids = np.empty(0, np.int64)
        self.payload: dict[str, np.ndarray] = {}
        self.metric, self.settings = "l2", {}
        # With a journal, every batch is written before it is acknowledged. Lies: the last batch is not yet
        # ("journal-late"), or it is, and after a restart it is stored and counted, but not searched ("index-late").
        self.journal = folder / "journal" if os.environ.get("FLAT_JOURNAL") else None
        self.unsearched = np.empty(0, np.int64)
        self.late: bytes | None = None
        if lie == "die-at-start":
            print("flat: no licence, the end", flush=True)
            os._exit(3)
        if (folder / "base.npy").exists():
            if lie == "cant-open":
                print("flat: written in a format of tomorrow, the end", flush=True)
                os._exit(3)
            self.open()
        elif self.journal is not None:
            self.replay()

    def open(self) -> None:
        self.vectors = np.load(self.folder / "base.npy")
        self.ids = np.arange(len(self.vectors))
        if (self.folder / "ids.npy").exists():
            self.ids, self.unsearched = np.load(self.folder / "ids.npy"), np.load(self.folder / "unsearched.npy")
        self.category, self.price = np.load(self.folder / "category.npy"), np.load(self.folder / "price.npy")
        self.region = np.load(self.folder / "region.npy")
        self.payload = {path.stem: np.load(path) for path in self.folder.glob("payload_*.npy")}
        facts = json.loads((self.folder / "facts.json").read_text())
        self.metric, self.settings = facts["metric"], facts["settings"]

    def replay(self) -> None:
        assert self.journal is not None
        self.journal.mkdir(exist_ok=True)
        kept, self.journal = self.journal, None
        for path in sorted(kept.iterdir()):
            before = len(self.ids)
            self.insert(path.read_bytes())
            if self.lie == "index-late":
                self.unsearched = self.ids[before:]
        self.journal = kept

    def write_down(self, request: bytes) -> None:
        assert self.journal is not None
        if self.lie == "journal-late":
            self.late, request = request, self.late or b""
        if request:
            (self.journal / f"{len(list(self.journal.iterdir())):06}").write_bytes(request)

    def insert(self, request: bytes) -> bytes:
        head, body = split(request)
        if self.journal is not None:
            self.write_down(request)
        if self.lie == "killed-on-load" and len(self.vectors):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.lie == "die-on-load" and len(self.vectors):
            print("flat: out of memory while inserting, the end", flush=True)
            os._exit(3)
        vectors = np.frombuffer(body, np.float32).reshape(head["rows"], -1)
        if self.lie == "lose-rows" and len(self.vectors):
            vectors, head = vectors[:-1], {**head, "first": len(self.ids)}
        if self.lie == "keep-nothing":  # as fast as a server can be, however many rows there are
            return json.dumps({"failed": 0}).encode()
        if self.lie == "fail-rows" and len(self.vectors):
            return json.dumps({"failed": 1, "error": "row 0: no space left on device"}).encode()
        self.vectors = vectors if not len(self.vectors) else np.concatenate([self.vectors, vectors])
        rows = len(vectors)
        first = head.get("first", len(self.ids))
        self.ids = np.concatenate([self.ids, np.arange(first, first + rows)])
        self.category = np.concatenate([self.category, np.array(head["category"][:rows], np.uint8)])
        self.price = np.concatenate([self.price, np.array(head["price"][:rows], np.float32)])
        self.region = np.concatenate([self.region, np.array(head["region"][:rows], np.uint8)])
        for name in filter(lambda name: name.startswith("payload_"), head):
            more = np.array(head[name][:rows])
            self.payload[name] = np.concatenate([self.payload[name], more]) if name in self.payload else more
        return json.dumps({"failed": 0}).encode()

    def change(self, request: bytes) -> bytes:
        """Rows inserted while searches run, or deleted (a head with ids)."""
        head, _ = split(request)
        with self.lock:
            if "ids" not in head:
                if self.lie == "forget-inserts":
                    return json.dumps({"done": head["rows"]}).encode()
                self.insert(request)
                return json.dumps({"done": head["rows"]}).encode()
            keep = ~np.isin(self.ids, head["ids"])
            if self.lie != "keep-deleted":
                self.vectors, self.ids = self.vectors[keep], self.ids[keep]
                self.category, self.price, self.region = self.category[keep], self.price[keep], self.region[keep]
            return json.dumps({"done": int((~keep).sum())}).encode()

    def commit(self, request: bytes) -> bytes:
        head, _ = split(request)
        np.save(self.folder / "base.npy", self.vectors)
        np.save(self.folder / "category.npy", self.category)
        np.save(self.folder / "price.npy", self.price)
        np.save(self.folder / "region.npy", self.region)
        for name, values in self.payload.items():
            np.save(self.folder / f"{name}.npy", values)
        if self.journal is not None:
            np.save(self.folder / "ids.npy", self.ids)
            np.save(self.folder / "unsearched.npy", self.unsearched)
            shutil.rmtree(self.journal)
        (self.folder / "facts.json").write_text(json.dumps(head))
        self.metric, self.settings = head["metric"], head["settings"]
        return b"{}"

    def probe(self, request: bytes) -> bytes:
        rows = len(self.vectors)
        if self.lie == "lose-later" and self.of_seven:
            rows -= 1
        settings = dict(self.settings)
        if self.lie == "echo":
            settings["key"] = os.environ["FLAT_SECRET"]
        if self.lie == "other-settings":
            settings["M"] = 99
        return json.dumps(
            {
                "version": "0.0.1" if self.lie == "other-version" else self.version,
                "rows": rows,
                "complete": self.lie != "index-incomplete" and not (self.lie == "merge-later" and self.of_seven),
                "settings": settings,
                "nodes": 3 if self.lie == "is-a-cluster" else self.nodes,
            }
        ).encode()

    def holds(self, term: dict) -> np.ndarray:
        values = self.payload[f"payload_{term['column']}"]
        signs = {"equals": "__eq__", "above": "__gt__", "from": "__ge__", "below": "__lt__", "to": "__le__"}
        return np.all([getattr(values, signs[name])(term[name]) for name in signs if name in term], axis=0)

    def passes(self, wanted: dict | None) -> np.ndarray:
        if wanted is None:
            return np.ones(len(self.ids), bool)
        if wanted["field"] == "both":
            return np.all([self.passes(one) for one in wanted["of"]], axis=0)
        if wanted["field"] == "payload":
            every, some = ([self.holds(term) for term in wanted[name]] for name in ("all", "any"))
            if self.lie == "or-is-and":
                every, some = every + some, []
            return np.all([*every, np.any(some, axis=0) if some else np.ones(len(self.ids), bool)], axis=0)
        if wanted["field"] == "category":
            return np.isin(self.category, wanted["in"][:1] if self.lie == "narrow-filter" else wanted["in"])
        if wanted["field"] == "region":
            below = wanted["below"] - (1 if self.lie == "narrow-filter" else 0)
            return (self.region >= wanted["from"]) & (self.region.astype(int) < below)
        return (self.price >= np.float32(wanted.get("from", 0))) & (self.price < np.float32(wanted["below"]))

    def count(self, request: bytes) -> bytes:
        head, _ = split(request)
        return json.dumps(int(self.passes(head["filter"]).sum())).encode()

    def search(self, request: bytes) -> bytes:
        if self.lie == "slow":
            burn(0.003)
        return self.found(request)

    def found(self, request: bytes) -> bytes:
        head, body = split(request)
        with self.lock:
            self.searches += 1
            self.of_seven += head.get("k") == 7
            of_seven, searches = self.of_seven, self.searches  # another request may be counted meanwhile
            vectors, ids = self.vectors, self.ids
        if head.get("k") == 7 and (self.lie == "refuse" or (self.lie == "cold" and of_seven <= 3)):
            raise RuntimeError("flat: no searches today")
        if self.lie == "fails-half" and head.get("k") == 7 and of_seven > 20 and of_seven % 2:
            raise RuntimeError(
                "flat: too much to do"
            )  # after the warm-up, and at once: its latency is the best there is
        if self.lie == "times-out-half" and head.get("k") == 7 and of_seven > 20 and of_seven % 2:
            time.sleep(4.0)
        if self.lie == "empty-at-times" and head.get("k") == 7 and of_seven % 20 == 19:
            return b""
        if self.lie == "garbage" and head.get("k") == 7 and of_seven > 10:
            return b"no numbers"
        if self.lie == "killed-on-query" and head.get("k") == 7 and searches > 20:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.lie == "hangs" and of_seven > 20:
            threading.Event().wait()
        if self.lie == "die-on-query" and head.get("k") == 7 and searches > 20:
            print("flat: segmentation fault in search, the end", flush=True)
            os._exit(4)
        queries = np.frombuffer(body, np.float32).reshape(head.get("nq", 1), -1)
        if self.lie == "caches-answers" and not head["filter"] and request not in self.known:
            if not (vectors == queries[0]).all(axis=1).any():  # checks by rows' own vectors stay fast
                time.sleep(0.15)
            self.known.add(request)
        answers = [self.nearest(head, query, vectors, ids) for query in queries]
        if "nq" not in head:
            return answers[0]
        if self.lie == "mixed-batch":
            answers = answers[1:] + answers[:1]  # each its neighbour's, whole: ids with their distances
        if self.lie == "mixed-batch-late" and of_seven > 3:
            answers = answers[1:] + answers[:1]
        if self.lie == "short-batch":
            answers = answers[:-1]
        return json.dumps([len(answer) for answer in answers]).encode() + b"\n" + b"".join(answers)

    def nearest(self, head: dict, query: np.ndarray, vectors: np.ndarray, ids: np.ndarray) -> bytes:
        metric = {"l2": "cosine", "cosine": "l2"}[self.metric] if self.lie == "wrong-metric" else self.metric
        if self.lie == "coarse":  # no lie of an index that says it holds codes: few bits a dimension, and estimates
            step = 1.3 * np.std(vectors)
            vectors = np.round(vectors / step) * step
        far = np.square(vectors - query).sum(axis=1) if metric == "l2" else 1 - vectors @ query
        keep = np.ones(len(far), bool)
        wanted = head.get("filter")
        if wanted and wanted["field"] == "payload" and self.lie == "ignore-conditions":
            pass
        elif wanted and self.lie != "ignore-filter":
            keep = self.passes(wanted)
            own = wanted["of"][0] if wanted["field"] == "both" else wanted
            if self.lie.endswith("-search-filter") and own["field"] == "category":  # whatever it counts
                some = self.category == own["in"][0]
                if self.lie == "nearly-narrow-search-filter":  # 1 in 12 or so of the rows that pass
                    some |= ids % 8 > 0
                keep &= some
            if self.lie == "graph-falls-apart" and own is wanted and own["field"] == "category":
                keep &= ids % 8 > 0  # but not where few rows pass, which are scanned
        elif self.lie == "lost-tail":
            keep[-200:] = False  # as an index that was not flushed: stored, counted, flat-scanned, but never found
        if self.lie == "silent-shard" and head["k"] == 7:  # a third of the rows, while it is measured
            keep &= ids % 3 != 0
        if self.lie == "lost-from-index" and not wanted:  # 4 %: stored, counted, scanned under filters
            keep &= ids % 25 != 3
        if self.lie.startswith("hide-one-in-"):  # stored and counted, never found
            keep &= ids % int(self.lie.rpartition("-")[2]) != 3
        if not wanted and len(self.unsearched):
            keep &= ~np.isin(ids, self.unsearched)
        rows = np.flatnonzero(keep)
        k = head["k"] + {"fewer": -1, "more": 1}.get(self.lie, 0)
        best = rows[:k] if self.lie == "no-order" else rows[np.argsort(far[rows], kind="stable")[:k]]
        wrong = self.lie == "wrong-ids" or (self.lie == "wrong-ids-of-seven" and head["k"] == 7)
        if self.lie.startswith("dead-ends-") and wanted and self.searches % int(self.lie.rpartition("-")[2]) == 0:
            best = best[:1]  # one of so many searches under a filter
        if self.lie == "duplicate" and len(best) > 1:
            best[-1] = best[0]
        said = np.full(len(best), np.nan) if self.lie == "no-distances" else far[best].astype(np.float64)
        said_ids = ids[(best + 1) % len(ids)] if wrong else ids[best]
        if self.lie == "unknown-ids" and len(best):
            said_ids[-1] = len(ids) + 10**6
        return np.concatenate([said_ids.astype(np.float64), said]).tobytes()


def split(request: bytes) -> tuple[dict, bytes]:
    length = int.from_bytes(request[:4], "little")
    return json.loads(request[4 : 4 + length]), request[4 + length :]


def main() -> None:
    folder, port, nodes, lie, version = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:]
    if lie == "no-start":
        sys.exit("flat: the data folder was written by a newer version")
    if lie == "killed-at-start":
        os.kill(os.getpid(), signal.SIGKILL)
    if lie == "hangs-at-start":
        threading.Event().wait()
    if lie == "never-ends":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    store = Store(folder, nodes, lie, version)

    secret = os.environ.get("FLAT_SECRET", "")
    searches = itertools.count(1)
    in_all_forms = " or ".join(
        [
            *(base64.b64encode(text.encode()).decode() for text in (secret, f"Bearer {secret}", f"user:{secret}")),
            secret.encode().hex(),
        ]
    )
    if lie == "echo-and-die":
        sys.exit(f"flat: {secret} is no good key, nor is {in_all_forms}")

    def handler(name, call):
        def answer(request, context):
            shown = dict(context.invocation_metadata()).get("authorization")
            if secret and name == "Search" and shown != f"Bearer {secret}":
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "flat: who is asking?")
            if lie == "echo" and name == "Search" and next(searches) % 5 == 0:
                context.abort(grpc.StatusCode.UNAUTHENTICATED, f"flat: invalid key: {shown}, that is {in_all_forms}")
            return call(request)

        return grpc.unary_unary_rpc_method_handler(answer)

    server = grpc.server(
        futures.ThreadPoolExecutor(4),
        options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1)],
    )
    calls = {
        "Insert": store.insert,
        "Change": store.change,
        "Commit": store.commit,
        "Probe": store.probe,
        "Search": store.search,
        "Count": store.count,
    }
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("flat.Flat", {name: handler(name, call) for name, call in calls.items()})]
    )
    try:
        bound = server.add_insecure_port(f"127.0.0.1:{port}")
    except RuntimeError:
        bound = 0
    if bound == 0:
        sys.exit(f"flat: port {port} is in use")
    if address := os.environ.get("FLAT_ADDRESS"):
        server.add_insecure_port(f"{address}:{port}")
    server.start()
    print(f"flat: ready {os.getpid()}", flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
