"""An engine for tests: a flat scan in a process of its own, written as any engine is, and able to lie on request."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from anncestry.engines.base import Component, DecodeError, Engine, Kill, LoadResult, Probe, Server, wait_for
from anncestry.errors import ServerError
from anncestry.runtimes import credentials
from anncestry.runtimes.base import Group, Member
from anncestry.runtimes.native import NativeProcess, claim_ports, clean_environment, free_ports
from anncestry.runtimes.storage import data_folder


class FlatServer(Server):
    def __init__(self, group: Group, topology: Mapping) -> None:
        super().__init__(group, topology)
        self.secret_in: str | None = None
        self.channel = grpc.insecure_channel(
            self.endpoint, options=[("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", -1)]
        )

    @property
    def endpoint(self) -> str:
        return self.group["flat"].addresses["grpc"]

    def call(self, method: str, head: Mapping, body: bytes = b"") -> bytes:
        return self.send(method, pack(head, body))

    def send(self, method: str, request: bytes) -> bytes:
        limit_s = float(os.environ.get("FLAT_PROBE_S", "60")) if method == "Probe" else 60.0
        try:
            return self.channel.unary_unary(f"/flat.Flat/{method}")(request, timeout=limit_s)
        except grpc.RpcError as error:
            raise ServerError(f"flat: {method}: {error.code().name}: {error.details()}") from None

    def stop(self):
        self.channel.close()
        return super().stop()


def pack(head: Mapping, body: bytes) -> bytes:
    text = json.dumps(head).encode()
    return len(text).to_bytes(4, "little") + text + body


class Flat(Engine):
    plain_hnsw = False
    narrows = True

    def asked_settings(self, system: Mapping, index: Mapping, metric: str, ef_search: int | None) -> dict[str, Any]:
        return {"metric": metric, "M": index["M"]}

    def fairness(self, system: Mapping, index: Mapping, topology: Mapping) -> dict[str, str]:
        return {"protocol": "gRPC", "index": "none: a flat scan"}

    def data_components(self, data_dir: Path) -> list[Component]:
        return [
            Component("vectors", True, (*data_dir.glob("*.npy"), *data_dir.glob("storage/*.npy"))),
            Component("bookkeeping", False, tuple(data_dir.glob("*.json")) + tuple(data_dir.glob("*.log"))),
        ]

    def start(
        self, artifact_dir: Path, data_dir: Path, system: Mapping, topology: Mapping, first_port: int | None = None
    ):
        if first_port:
            return self._start_at(claim_ports(first_port, 1)[0], data_dir, system, topology)
        for _ in range(5):  # another may have taken a free port by the time that the server binds it
            try:
                return self._start_at(free_ports(1)[0], data_dir, system, topology)
            except ServerError as error:
                failure = error
                if "is in use" not in error.log_tail:
                    break
        raise failure

    def _start_at(self, port: int, data_dir: Path, system: Mapping, topology: Mapping):
        data_dir.mkdir(parents=True, exist_ok=True)
        started = time.monotonic()
        settings = system.get("settings", {})
        lie = settings.get("lie", "")
        if lie.startswith("@"):  # what is wrong now, and is mended later: nothing that a key knows of
            lie = Path(lie[1:]).read_text()
        secret_in = settings.get("authorization")  # the variable with the secret that every search must show
        process = NativeProcess(
            "flat",
            [
                sys.executable,
                str(Path(__file__).with_name("server.py")),
                str(data_dir if lie == "elsewhere" else data_folder(data_dir, topology)),
                str(port),
                str(topology["nodes"]),
                lie,
                system.get("version", "1.0"),
            ],
            clean_environment(
                {
                    **({"FLAT_JOURNAL": "1"} if settings.get("journal") else {}),  # what is inserted outlives a kill
                    **({"FLAT_SECRET": credentials.read(secret_in, "the secret")} if secret_in else {}),
                    **({"FLAT_ADDRESS": os.environ["ANNCESTRY_ADDRESS"]} if "ANNCESTRY_ADDRESS" in os.environ else {}),
                }
            ),
            data_dir,
            data_dir / "server.log",
        )
        if "FLAT_OUTSIDE" in os.environ:  # what this process is held by, the server is not (see tests/scale.py)
            for group_file in filter(None, os.environ["FLAT_OUTSIDE"].split(os.pathsep)):
                Path(group_file).write_text(str(process.pid))
            with suppress(PermissionError):
                resource.prlimit(process.pid, resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        group = Group()
        patience_s = 3 if lie == "never-ends" else 120  # a busy machine may take some
        group.add(Member("flat", "node", process, {"grpc": f"127.0.0.1:{port}"}, term_wait_s=patience_s))
        server = FlatServer(group, topology)
        server.secret_in = secret_in

        def listens() -> bool | None:
            # By its own word: on its port may listen somebody else.
            return f"flat: ready {process.pid}\n" in f"{process.log_tail()}\n" or None

        try:
            wait_for("flat: an answer", listens, server, settings.get("start_within_s", 120))
            server.call("Probe", {})
        except BaseException:
            server.stop()
            raise
        server.start_s, server.began_s = time.monotonic() - started, started
        return server

    def load(self, server: FlatServer, vectors, index: Mapping, load: Mapping, progress) -> LoadResult:
        result = LoadResult()
        kill = Kill(server, load, len(vectors.base), result)
        with self.encoded(server, vectors, load, result) as requests, result.phase("insert"):
            for ids, request in requests:
                try:
                    insert = partial(server.send, "Insert", request)
                    answer = json.loads(kill.send(insert, lambda reply: json.loads(reply).get("error")))
                except ServerError:
                    time.sleep(0.2)
                    server.check_alive()
                    raise
                result.acknowledge(len(ids), answer["failed"], answer.get("error"))
                progress.at(result.rows_sent)
                kill.when_due()
        with result.phase("index"):
            server.call("Commit", {"metric": vectors.metric, "settings": {"metric": vectors.metric, "M": index["M"]}})
        with result.phase("ready"):
            server.call("Probe", {})
        return result

    def open(self, server: FlatServer, index: Mapping) -> float:
        server.call("Probe", {})
        return 0.0

    def probe(self, server: FlatServer) -> Probe:
        said = json.loads(server.call("Probe", {}))
        return Probe(
            said["version"],
            said["rows"],
            said["complete"],
            f"{said['rows']} rows scanned",
            said["settings"],
            said["nodes"],
            1,
            1,
        )

    def count(self, server: FlatServer, filter: Mapping | None) -> int:
        return int(json.loads(server.call("Count", {"filter": filter})))

    def encode(
        self, server: FlatServer, queries: np.ndarray, k: int, ef_search: int, filter: Mapping | None
    ) -> list[bytes]:
        return [pack({"k": k, "filter": filter}, row.tobytes()) for row in np.ascontiguousarray(queries)]

    def encode_batches(self, server: FlatServer, batches: np.ndarray, k: int, ef_search: int, filter: Mapping | None):
        head = {"k": k, "filter": filter, "nq": batches.shape[1]}
        return [pack(head, rows.tobytes()) for rows in np.ascontiguousarray(batches)]

    def decode_batch(self, response: bytes, metric: str) -> list[tuple[np.ndarray, np.ndarray]]:
        sizes, _, body = response.partition(b"\n")
        found = []
        for size in json.loads(sizes):
            found.append(self.decode(body[:size], metric))
            body = body[size:]
        return found

    def transport(self, server: FlatServer) -> dict[str, Any]:
        found: dict[str, Any] = {"kind": "grpc", "target": server.endpoint, "method": "/flat.Flat/Search"}
        if server.secret_in:
            found["authorization"] = {"env": server.secret_in, "scheme": "bearer"}
        return found

    def decode(self, response: bytes, metric: str) -> tuple[np.ndarray, np.ndarray]:
        if len(response) % 16:
            raise DecodeError(f"{len(response)} bytes are no ids with distances")
        values = np.frombuffer(response, np.float64)
        half = len(values) // 2
        return values[:half].astype(np.int64), values[half:]

    def write_transport(self, server: FlatServer, kind: str) -> dict[str, str]:
        return {"kind": "grpc", "target": server.endpoint, "method": "/flat.Flat/Change"}

    def encode_insert(self, server: FlatServer, rows) -> bytes:
        columns = {name: getattr(rows, name).tolist() for name in ("category", "price", "region")}
        columns |= {column.stored_as: values for column, values in rows.payload}
        return pack({"first": rows.first, "rows": len(rows.base), **columns}, np.ascontiguousarray(rows.base).tobytes())

    def encode_delete(self, server: FlatServer, ids) -> bytes:
        return pack({"ids": list(ids)}, b"")

    def decode_write(self, kind: str, response: bytes) -> int:
        return json.loads(response)["done"]


ENGINE = Flat()
