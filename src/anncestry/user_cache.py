"""The user's cache: what can be made or fetched again at the cost of time only. Nobody else may write there."""

from __future__ import annotations

import fcntl
import grp
import os
import pwd
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from anncestry.errors import ConfigError, DataError, UserError


def folder(*parts: str) -> Path:
    """`$XDG_CACHE_HOME/anncestry` (else in `~/.cache`), or what `parts` name in it; made, for this user alone.

    UserError where anybody else may put something there (see `check`), as much of it is run. OSError if it can't be
    made.
    """
    path = Path(os.environ.get("XDG_CACHE_HOME") or expanded("~/.cache")).absolute().joinpath("anncestry", *parts)
    for place in (*reversed(path.parents), path):
        if not place.exists():
            place.mkdir(mode=0o700, exist_ok=True)
    check(path, len(parts) + 1)
    return path


def expanded(text: str) -> Path:
    """A path in which `~` is the user's home; ConfigError for a user who has none."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ConfigError(f"{text}: this user has no home folder: set HOME, or XDG_CACHE_HOME to a folder") from None


def without_privileges(folder: Path) -> None:
    """Take set-user-id, set-group-id and the sticky bit from all in a folder: what is fetched runs as who starts it."""
    for path in folder.rglob("*"):
        mode = path.lstat().st_mode
        if not stat.S_ISLNK(mode) and mode & 0o7000:
            path.chmod(mode & 0o777)


def check(path: Path, own: int = 1, variable: str = "XDG_CACHE_HOME") -> None:
    """UserError that names the folder where others than this user and root own `path` or one above, or may write it.

    The last `own` folders must be closed; above, one that all may write but not take from (/tmp) is as good.
    `variable` of the environment names another place.
    """
    owners = {0, os.geteuid(), *_unmapped()}
    for number, place in enumerate(dict.fromkeys([path, *path.parents, *(real := path.resolve()).parents, real])):
        status = place.lstat()
        if stat.S_ISLNK(status.st_mode):
            loose = False  # what it points to is looked at, too
        else:
            loose = _others_write(status) and (number < own or not status.st_mode & stat.S_ISVTX)
        if loose or status.st_uid not in owners:
            raise UserError(
                f"{place}: other users own or may write this folder, so what lies in {path} could be theirs and is "
                "not used: remove that, and take their rights here away (chmod go-w), or "
                f"set {variable} to a folder of yours"
            )


def _others_write(status: os.stat_result) -> bool:
    """Whether somebody but its owner may write a folder. A group that is its owner's alone is nobody else."""
    if not status.st_mode & stat.S_IWGRP or status.st_mode & stat.S_IWOTH:
        return bool(status.st_mode & stat.S_IWOTH)
    try:
        group, owner = grp.getgrgid(status.st_gid), pwd.getpwuid(status.st_uid)
    except KeyError:
        return True
    return group.gr_name != owner.pw_name or not set(group.gr_mem) <= {owner.pw_name}


def _unmapped() -> set[int]:
    """Whom files of root belong to in a user namespace that does not know root."""
    if Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]:
        return set()
    return {int(Path("/proc/sys/kernel/overflowuid").read_text())}


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold a lock file, waiting for another process that has it. The system drops the lock of a process that dies."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise DataError(f"{path.parent}: the cache can't be written ({error.strerror})") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another process to end {what}", file=sys.stderr)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
