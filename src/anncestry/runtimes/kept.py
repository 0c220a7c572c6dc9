"""What the user's cache keeps of programs: archives by the digest that pins them, and what was built of pinned sources.

An archive is hashed against its pin whenever it is used, and unpacked anew. What was built has no pin: it is used if
every file is as it was made, in a folder that nobody else may write (`user_cache`), and made again if not.
"""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from anncestry import durable
from anncestry.errors import DataError
from anncestry.provenance.records import clear, read_json, sha256_file, write_json

FILES = "files"
_MANIFEST = "manifest.json"


def archive(cache: Path, name: str, sha256: str, fetch: Callable[[Path], Path]) -> Path:
    """A file of this digest, kept as `name`; else `fetch` leaves it in a folder that it is given, and says where.

    DataError if what was fetched is another.
    """
    held = cache / "pinned" / name
    if not held.is_file() or sha256_file(held) != sha256:
        held.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=held.parent) as temporary:
            fetched = fetch(Path(temporary))
            if sha256_file(fetched) != sha256:
                raise DataError(f"{fetched.name}: its sha256 is not the pinned {sha256[:12]}…")
            durable.place(fetched, held)
    return held


def built(entry: Path, build: Callable[[Path], Any]) -> dict[str, Any]:
    """What `build` leaves in the folder that it is given, kept as `entry`/files: built if it is not there or damaged.

    Returns {"files": name → sha256, "said": what `build` returned}. One job builds, others wait for it.
    """
    entry.mkdir(parents=True, exist_ok=True)
    with open(entry / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            manifest: dict[str, Any] = read_json(entry / _MANIFEST)
            if manifest["files"] == hashes(entry / FILES):
                return manifest
        except (DataError, OSError, KeyError, TypeError):
            pass
        (entry / _MANIFEST).unlink(missing_ok=True)
        clear(entry / FILES)
        (entry / FILES).mkdir()
        said = build(entry / FILES)
        manifest = {"files": hashes(entry / FILES), "said": said}
        write_json(entry / _MANIFEST, manifest)
    return manifest


def hashes(folder: Path) -> dict[str, str]:
    """Name → sha256 of the files in a folder, but for what Python compiles beside its modules when they are used."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.parent.name != "__pycache__")
    return {path.relative_to(folder).as_posix(): sha256_file(path) for path in files}
