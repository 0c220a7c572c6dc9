"""Milvus, standalone, from 2.2.16 on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from anncestry.engines.base import (
    Component,
    Spec,
    check_hnsw,
    check_search,
    check_single_native,
    lazy,
)
from anncestry.errors import ConfigError

if TYPE_CHECKING:
    from anncestry.engines.milvus.ingest import load
    from anncestry.engines.milvus.serve import apply, open, probe, start
    from anncestry.engines.milvus.wire import decode, encode, transport
else:
    __getattr__ = lazy(
        __name__,
        {
            "load": "ingest",
            "start": "serve",
            "open": "serve",
            "apply": "serve",
            "probe": "serve",
            "encode": "wire",
            "transport": "wire",
            "decode": "wire",
        },
    )

__all__ = [
    "apply",
    "asked_settings",
    "check",
    "data_components",
    "decode",
    "encode",
    "fairness",
    "load",
    "open",
    "probe",
    "start",
    "transport",
]

_RESERVED = ("etcd", "localStorage.path", "rocksmq.path", "log.file.rootPath", "mq", "kafka", "pulsar", "natsmq")


def check(system: Spec, topology: Spec, index: Spec, workload: Spec | None) -> None:
    """ConfigError for a combination that this engine can't run."""
    check_single_native("milvus", topology)
    check_hnsw("milvus", index, m=(4, 64), ef_construction=(8, 512))
    for dotted, value in (system.get("settings") or {}).items():
        if "." not in dotted or isinstance(value, dict | list):
            raise ConfigError(f"settings: {dotted}: {value!r} is not a dotted name of milvus.yaml with one value")
        if dotted.endswith((".port", ".ip", "Port")) or dotted.startswith(_RESERVED):
            raise ConfigError(f"settings: {dotted} is set by anncestry and can't be changed")
    if workload is not None:
        check_search("milvus", workload, largest_k=16_384)


def asked_settings(system: Spec, index: Spec, metric: str, ef_search: int | None) -> dict[str, Any]:
    """What the server must say of itself. ef_search is None: it is no setting of the server."""
    return {
        "index_type": index["type"],
        "metric": metric,
        "M": index["M"],
        "ef_construction": index["ef_construction"],
        "ef_search": None,
        **(system.get("settings") or {}),
    }
