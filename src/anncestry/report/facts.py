"""Nested facts of records as pairs of words."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
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
