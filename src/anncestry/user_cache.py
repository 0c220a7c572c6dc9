"""The user's cache: what can be made or fetched again at the cost of time only."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from anncestry.errors import ConfigError


def folder(*parts: str) -> Path:
    """`$XDG_CACHE_HOME/anncestry` (else in `~/.cache`), or what `parts` name in it; it need not be there yet."""
    return (Path(os.environ.get("XDG_CACHE_HOME") or expanded("~/.cache"))).joinpath("anncestry", *parts)


def without_privileges(folder: Path) -> None:
    """Take set-user-id, set-group-id and the sticky bit from all in a folder: what is fetched runs as who starts it."""
    for path in folder.rglob("*"):
        mode = path.lstat().st_mode
        if not stat.S_ISLNK(mode) and mode & 0o7000:
            path.chmod(mode & 0o777)


def expanded(text: str) -> Path:
    """A path in which `~` is the user's home; ConfigError for a user who has none."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ConfigError(f"{text}: this user has no home folder: set HOME, or XDG_CACHE_HOME to a folder") from None
