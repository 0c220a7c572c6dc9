"""Links: is the file that a record names still the one that was meant?"""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from anncestry.errors import DataError
from anncestry.provenance import records

REMADE = frozenset({"artifact", "download", "vectors", "truth"})
"""Inputs that are not measurements: a clone without them makes them again, with other dates in their records."""


class State(StrEnum):
    """What became of a file that a record names."""

    SAME = "same"
    REMADE = "made again, same contents"
    CHANGED = "changed"
    ABSENT = "not here"


def ceiling(body: Mapping[str, Any]) -> Path | None:
    """Where the record lies of the client's ceiling that a query record quotes; None where it quotes none."""
    quoted = (body.get("client") or {}).get("ceiling") or {}
    if "record" not in quoted:
        return None
    name = f"{body['spec']['platform']}-{quoted['transport']}-{quoted['clients']}@{quoted['record']}.json"
    return Path("results/ceiling", name)


def state(file: Path, entry: Mapping[str, Any], label: str = "") -> State:
    """Hold `file` against a record's entry of it; an input that may be made again (by its `label`) by its contents."""
    if not os.path.lexists(file):
        return State.ABSENT
    if not file.is_file():
        return State.CHANGED
    if records.sha256_file(file) == entry["sha256"]:
        return State.SAME
    if label in REMADE and "identity" in entry:
        try:
            if records.identity(records.read_record(file)) == entry["identity"]:
                return State.REMADE
        except (DataError, KeyError):
            pass
    return State.CHANGED
