"""faiss: HNSW or a flat scan, in the client's own process; a reference point for what a server costs over it."""

from __future__ import annotations

from pathlib import Path

from anncestry.engines.base import Spec, check_hnsw, refuse_unknown
from anncestry.engines.inprocess import Library


def _check_index(index: Spec) -> None:
    if index.get("type") == "flat":
        refuse_unknown("index of type flat", index, ("type",))
    else:
        check_hnsw("faiss", index, m=(2, 2048), ef_construction=(2, 32_768))


def _statements(index: Spec) -> dict[str, str]:
    if index["type"] == "flat":
        return {"index": "IndexFlat: every vector is compared; ef has no meaning"}
    return {"index": f"IndexHNSWFlat: M={index['M']} (2M at the bottom), efConstruction={index['ef_construction']}"}


_LIBRARY = Library(
    "faiss",
    Path(__file__).with_name("adapter.py"),
    oldest=(1, 15, 0),
    below=(1, 16, 0),
    check_index=_check_index,
    stored=["faiss.index"],
    statements=_statements,
)
check = _LIBRARY.check
limited = _LIBRARY.limited
check_upgrade = _LIBRARY.check_upgrade
asked_settings = _LIBRARY.asked_settings
fairness = _LIBRARY.fairness
data_components = _LIBRARY.data_components
start = _LIBRARY.start
load = _LIBRARY.load
open = _LIBRARY.open
apply = _LIBRARY.apply
exact_filters = _LIBRARY.exact_filters
probe = _LIBRARY.probe
encode = _LIBRARY.encode
transport = _LIBRARY.transport
sdk_transport = _LIBRARY.sdk_transport
sdk_decode = _LIBRARY.sdk_decode
count = _LIBRARY.count
decode = _LIBRARY.decode
