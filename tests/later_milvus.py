"""A stand-in for a later Milvus with DISKANN, in front of a real 2.3.5: no package registry has a later server.

It forwards every call, and changes only how the server calls itself and its index: an index that is asked for as
DISKANN is built as HNSW, searched with `search_list` as its ef, and described as DISKANN.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import grpc
from pymilvus.grpc_gen import milvus_pb2

from anncestry.engines.channel import CHANNEL_OPTIONS

BUILT = {"M": 16, "efConstruction": 100}


class _Forwarded(grpc.GenericRpcHandler):
    def __init__(self, target: str, version: str) -> None:
        self._channel = grpc.insecure_channel(target, options=CHANNEL_OPTIONS)
        self._version = version
        self._on_disk = False

    def service(self, details: Any) -> Any:
        send = self._channel.unary_unary(details.method)
        change = getattr(self, f"_{details.method.rpartition('/')[2].lower()}", None)

        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            try:
                return bytes(change(request, send) if change else send(request))
            except grpc.RpcError as error:
                context.abort(error.code(), error.details())
                raise

        return grpc.unary_unary_rpc_method_handler(answer)

    def _getversion(self, request: bytes, send: Callable[[bytes], bytes]) -> bytes:
        reply = milvus_pb2.GetVersionResponse.FromString(send(request))
        reply.version = f"v{self._version}"
        return bytes(reply.SerializeToString())

    def _createindex(self, request: bytes, send: Callable[[bytes], bytes]) -> bytes:
        asked = milvus_pb2.CreateIndexRequest.FromString(request)
        self._on_disk = _changed(asked.extra_params, "index_type", {"DISKANN": "HNSW"})
        if self._on_disk:
            _set(asked.extra_params, "params", json.dumps(BUILT))
        return send(asked.SerializeToString())

    def _search(self, request: bytes, send: Callable[[bytes], bytes]) -> bytes:
        if not self._on_disk:
            return send(request)
        asked = milvus_pb2.SearchRequest.FromString(request)
        for pair in asked.search_params:
            if pair.key == "params" and "search_list" in (said := json.loads(pair.value)):
                pair.value = json.dumps({"ef": said["search_list"]})
        return send(asked.SerializeToString())

    def _describeindex(self, request: bytes, send: Callable[[bytes], bytes]) -> bytes:
        reply = milvus_pb2.DescribeIndexResponse.FromString(send(request))
        for index in reply.index_descriptions if self._on_disk else ():
            _changed(index.params, "index_type", {"HNSW": "DISKANN"})
            _set(index.params, "params", "{}")
        return bytes(reply.SerializeToString())


def _changed(pairs: Any, key: str, of: dict[str, str]) -> bool:
    """Whether the pair of this key had a value in `of`, by which it is replaced."""
    for pair in pairs:
        if pair.key == key and pair.value in of:
            pair.value = of[pair.value]
            return True
    return False


def _set(pairs: Any, key: str, value: str) -> None:
    for pair in pairs:
        if pair.key == key:
            pair.value = value


@contextmanager
def later_milvus(target: str, version: str) -> Iterator[str]:
    """HOST:PORT of the stand-in for `version`, in front of the Milvus at `target`."""
    server = grpc.server(futures.ThreadPoolExecutor(8), (_Forwarded(target, version),), options=CHANNEL_OPTIONS)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()
