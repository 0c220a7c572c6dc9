"""Facts of records as words: nested ones as pairs, those of several records as one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any


def flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Nested facts as pairs of dotted name and text."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from flat(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, bool):
        yield name, "yes" if value else "no"
    elif isinstance(value, list):
        yield name, ", ".join(item if isinstance(item, str) else json.dumps(item) for item in value)
    elif name:
        yield name, "unknown" if value is None else str(value)


MANY = 6
"""More different numbers than these are told by the least and the largest."""


def merged(facts: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Facts of several records as one; where they differ, all values, in order of appearance, or their range."""
    found: dict[str, dict[str, None]] = {}
    for one in facts:
        for name, value in one.items():
            found.setdefault(name, {})[value] = None
    return {name: _several(list(values)) for name, values in found.items()}


def _several(values: list[str]) -> str:
    if len(values) > MANY:
        try:
            ordered = sorted(values, key=float)
        except ValueError:
            pass
        else:
            return f"{ordered[0]} to {ordered[-1]}"
    return " / ".join(values)


def of_stage(records: Mapping[str, Mapping[str, Any]], stage: str) -> list[Mapping[str, Any]]:
    """The records of one stage."""
    return [record for record in records.values() if record["stage"] == stage]
