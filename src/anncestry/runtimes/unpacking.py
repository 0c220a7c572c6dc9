"""Unpacking zip files that came from elsewhere."""

from __future__ import annotations

import errno
import lzma
import stat
import struct
import zipfile
import zlib
from pathlib import Path

from anncestry.errors import DataError

# NotImplementedError and RuntimeError: a compression or an encryption that a flipped bit asks for.
_DAMAGED = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError),
    *(ValueError, OverflowError, NotImplementedError, RuntimeError),
)
_SLACK_BYTES, _RATIO = 64 << 20, 100
# What a file system says to names that no sound archive has; None: what a decompressor says of its stream.
_OF_NAMES = (None, errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EINVAL)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a zip file into `folder`: plain files and folders, nothing of it if any member is anything else.

    DataError for a member that would end up outside of `folder`, for a link, a device or a pipe, for members of more
    than a hundred times the archive's size, and for a damaged archive.
    """
    inside = folder.resolve()
    try:
        with zipfile.ZipFile(archive) as members:
            for member in members.infolist():
                name = member.filename
                if "\\" in name or not (inside / name).resolve().is_relative_to(inside):
                    raise DataError(f"{archive.name}: its member {name!r} points outside of the archive")
                if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
                    raise DataError(f"{archive.name}: its member {name!r} is no plain file")
            size = sum(member.file_size for member in members.infolist())
            if size > _SLACK_BYTES + _RATIO * archive.stat().st_size:
                raise DataError(f"{archive.name}: {size} bytes in {archive.stat().st_size}: no program packs so well")
            members.extractall(inside)
            for member in members.infolist():
                if not member.is_dir() and member.external_attr >> 16 & 0o111:
                    (inside / member.filename).chmod(0o755)
    except _DAMAGED as error:
        raise DataError(f"{archive.name}: damaged ({error})") from None
    except OSError as error:
        if error.errno not in _OF_NAMES:
            raise
        raise DataError(f"{archive.name}: damaged ({error})") from None
