"""What lies under its final name is whole, also after a power cut: contents first, then the name, then its folder."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_NOT_KNOWN = (errno.EINVAL, errno.ENOTSUP)


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's entries, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:  # some network file systems know no such thing of a folder
        if error.errno not in _NOT_KNOWN:
            raise
    finally:
        os.close(handle)


def sync_names(files: Iterable[Path]) -> None:
    """Wait until the names of `files` are on the disk: their folders, and those above that may be as new.

    Folders above the working directory (above a file's own, of one elsewhere) were there before; one that may not be
    read can't be waited for.
    """
    here = Path.cwd()
    folders: dict[Path, None] = {}
    for file in files:
        folder = here / file.parent
        above = [each for each in folder.parents if each.is_relative_to(here)] or [folder.parent]
        folders |= dict.fromkeys([folder, *above])
    for folder in folders:
        with suppress(PermissionError):
            sync(folder)


def sync_below(folder: Path) -> None:
    """Wait until all that was written to the file system of `folder` is on its disk: of trees, whoever owns the files.

    One call, where each file would take one; `fsync` also needs to open it.
    """
    library = ctypes.CDLL(None, use_errno=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        if library.syncfs(handle):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(folder))
    finally:
        os.close(handle)


def place(source: Path, target: Path, new: bool = True) -> None:
    """Move a finished file or folder to its final name on the same file system, in place of a file there.

    `new` tells whether folders above the target's may be as new as it.
    """
    (sync_below if source.is_dir() else sync)(source)
    rename(source, target, new)


def rename(source: Path, target: Path, new: bool = True) -> None:
    """The same for what is on the disk already."""
    os.replace(source, target)
    if new:
        sync_names([target])
    else:
        with suppress(PermissionError):
            sync(target.parent)
