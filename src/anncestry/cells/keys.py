"""Keys: the identity of what a stage makes, derived from everything that could change it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

KEY_DIGITS = 12


def canonical(spec: Mapping[str, Any]) -> str:
    """Canonical JSON: sorted keys, no spaces, no NaN. Equal specs give equal text."""
    return json.dumps(spec, sort_keys=True, separators=(",", ":"), allow_nan=False)


def key_of(spec: Mapping[str, Any]) -> str:
    """First 12 hex digits of the sha256 of a spec's canonical JSON (48 bits: one collision expected at 17 million)."""
    return hashlib.sha256(canonical(spec).encode()).hexdigest()[:KEY_DIGITS]


def source_digest(files: tuple[Path, ...]) -> str:
    """One digest over the names and contents of source files, for stages that are cheap to repeat."""
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def python_files(folders: Iterable[Path]) -> tuple[Path, ...]:
    """All Python files below the folders (or the files themselves), sorted."""
    found: set[Path] = set()
    for folder in folders:
        found.update([folder] if folder.is_file() else folder.rglob("*.py"))
    return tuple(sorted(found))
