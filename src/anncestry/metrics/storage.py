"""What a system keeps on disk."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_MIB = float(1 << 20)


def allocated_mib(paths: Iterable[Path]) -> float:
    """MiB allocated for files and folders (as `du`): holes don't count, preallocated blocks and folders do.

    A file linked several times counts once; links are not followed.
    """
    seen: set[tuple[int, int]] = set()
    total = 0

    def count(path: str) -> None:
        nonlocal total
        stat = os.lstat(path)
        if (stat.st_dev, stat.st_ino) not in seen:
            seen.add((stat.st_dev, stat.st_ino))
            total += stat.st_blocks * 512

    for top in paths:
        if not top.exists() and not top.is_symlink():
            continue
        count(str(top))
        if top.is_dir() and not top.is_symlink():
            for folder, folders, files in os.walk(top):
                for name in (*folders, *files):
                    count(os.path.join(folder, name))  # noqa: PTH118
    return total / _MIB
