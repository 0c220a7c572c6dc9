"""Which code made a record: package version, git commit, and whether the tree differed from it."""

from __future__ import annotations

import hashlib
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import anncestry

ROOT = Path(__file__).resolve().parents[3]
"""The checkout that holds this package: the Snakefile, config/ and workflow/ lie here."""

LOCK = ROOT / "requirements.lock"
"""The locked environment: what `make env` installs."""

_PARTS = ("src", "workflow", "Snakefile", LOCK.name)
"""What of the checkout decides how something is measured, beside the config, which is in the specs."""


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True, timeout=20
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


@cache
def code_facts() -> dict[str, Any]:
    """Package version, git commit, dirty flag, and the sha256 of the uncommitted diff (None where there is no git).

    `lock_sha256` is that of requirements.lock, which pins every package by version and digest.
    """
    commit = _git("rev-parse", "HEAD")
    diff = _difference() if commit else None
    return {
        "anncestry": anncestry.__version__,
        "commit": commit.strip() if commit else None,
        "dirty": bool(diff) if diff is not None else None,
        "diff_sha256": hashlib.sha256(diff.encode()).hexdigest() if diff else None,
        "lock_sha256": hashlib.sha256(LOCK.read_bytes()).hexdigest() if LOCK.exists() else None,
    }


def _difference() -> str | None:
    """What the tree holds beyond its commit: changed lines, and files that git does not know yet, whole."""
    changed = _git("diff", "HEAD", "--", *_PARTS)
    new = _git("ls-files", "--others", "--exclude-standard", "--", *_PARTS)
    if changed is None or new is None:
        return None
    files = [ROOT / name for name in sorted(new.splitlines()) if (ROOT / name).is_file()]
    return changed + "".join(
        f"{file.relative_to(ROOT)} {hashlib.sha256(file.read_bytes()).hexdigest()}\n" for file in files
    )


@cache
def package_versions(*names: str) -> dict[str, str | None]:
    """Installed version of each distribution, None where it is not installed."""
    found: dict[str, str | None] = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found
