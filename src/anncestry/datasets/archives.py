"""Members of a tar archive, plain or gzip, unpacked by name: nothing else of it is written, and nothing outside."""

from __future__ import annotations

import lzma
import shutil
import struct
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from anncestry.errors import DataError, damage
from anncestry.provenance.records import replacing

_CHUNK_BYTES = 1 << 20
_HEADER_BYTES = 1 << 20
_READ_WHOLE = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)
# What the readers of tar and of its compressions raise on damaged bytes.
_DAMAGED = (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError, struct.error, ValueError, OverflowError)


class _Header(tarfile.TarInfo):
    """Of a member. Those of the long names and other properties that come before one are read whole."""

    @classmethod
    def frombuf(cls, buf: Any, encoding: str, errors: str) -> _Header:
        found = super().frombuf(buf, encoding, errors)
        if found.type in _READ_WHOLE and found.size > _HEADER_BYTES:
            raise tarfile.ReadError(f"{found.size} bytes of properties of a member")
        if found.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError(f"{found.name!a} is a sparse file")
        return found


def extract(archive: Path, members: Mapping[str, int], folder: Path) -> dict[str, Path]:
    """Unpack these members into `folder`, under their last names; returns name of the member → file.

    `members` says how many bytes each may have. Read in one pass, as a stream. DataError for a name that leads out of
    the archive, for a member that is longer, or no plain file (a link may lead anywhere), for one that is missing, and
    for a damaged archive.
    """
    wanted = {_plain(archive, name): name for name in members}
    found: dict[str, Path] = {}
    folder.mkdir(parents=True, exist_ok=True)
    with (
        damage(_DAMAGED, f"{archive}: damaged or no tar archive"),
        tarfile.open(archive, "r|*", tarinfo=_Header) as stream,
    ):
        for member in stream:
            name = wanted.get(_plain(archive, member.name))
            if name is None or name in found:
                continue
            if not member.isreg() or member.issparse():
                raise DataError(f"{archive}: {member.name} is no plain file")
            if member.size > members[name]:
                raise DataError(
                    f"{archive}: {member.name} has {member.size} bytes, where {members[name]} are the most for what "
                    "the config states"
                )
            source = stream.extractfile(member)
            assert source is not None  # it is a plain file
            path = folder / PurePosixPath(name).name
            with replacing(path) as temporary, open(temporary, "wb") as target:
                shutil.copyfileobj(source, target, _CHUNK_BYTES)
            if path.stat().st_size != member.size:
                raise DataError(f"{archive}: {member.name} ends before its {member.size} bytes")
            found[name] = path
            if len(found) == len(wanted):
                return found
    missing = next(name for name in wanted.values() if name not in found)
    raise DataError(f"{archive}: holds no {missing}")


def _plain(archive: Path, name: str) -> str:
    """The name without a leading "./"; DataError for one that leads out of where it is unpacked."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise DataError(f"{archive}: {name!r} leads out of the archive")
    return str(path)
