"""Ids of rows."""

from __future__ import annotations

UUID_PREFIX = "a77ce570-0000-4000-8000-"
"""The high part of every id; the last twelve digits are the row. (Ids with leading zero bytes come back shorter.)"""


def uuid_of(row: int) -> str:
    """The id of a row."""
    return f"{UUID_PREFIX}{row:012x}"
