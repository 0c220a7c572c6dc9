"""Workloads that ask each query under its own conditions: which datasets have some, and which engines can be asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anncestry.errors import ConfigError, Unsupported

STORED = ("keyword", "int", "float")
"""Kinds of payload columns that are read from a source so far."""


def identity(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a dataset's key that its conditions are; nothing of one without."""
    return {"conditions": list(entry["conditions"])} if "conditions" in entry else {}


def is_known(entry: Mapping[str, Any]) -> bool:
    """Whether digests are declared of all that the dataset holds, so that its sources have no say in what it is."""
    wanted = {"base", "queries", *(["payload"] if "conditions" in entry else [])}
    return wanted <= set(entry["content"])


def check(dataset: str, entry: Mapping[str, Any], engine: object, name: str, asked: Mapping[str, Any]) -> None:
    """ConfigError for a workload that asks for conditions that are not there; Unsupported for what an engine lacks.

    `engine` is that of `name`; it says in `CONDITIONS` which kinds of columns it can be asked about.
    """
    kinds = entry.get("conditions", ())
    for kind in kinds:
        if kind not in STORED:
            raise Unsupported(f"dataset {dataset}: its conditions are on {kind}, which is unsupported so far")
    if kinds and "stream" in asked:
        raise Unsupported(f"stream: rows that are inserted meanwhile lack the payload that dataset {dataset} has")
    if (asked.get("filter") or {}).get("field") != "payload":
        return
    if not kinds:
        raise ConfigError(f"filter: dataset {dataset} has no conditions of its queries, which field payload asks for")
    offered = getattr(engine, "CONDITIONS", ())
    for kind in kinds:
        if kind not in offered:
            raise Unsupported(f"filter: engine {name} can't be asked with conditions on {kind} (dataset {dataset})")
