"""The user's cache: what can be made or fetched again at the cost of time only."""

from __future__ import annotations

import os
from pathlib import Path


def folder(*parts: str) -> Path:
    """`$XDG_CACHE_HOME/anncestry` (else in `~/.cache`), or what `parts` name in it; it need not be there yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").joinpath("anncestry", *parts)
