"""Members of a tar archive, plain or gzip, unpacked by name: nothing else of it is written, and nothing outside."""

from __future__ import annotations

import lzma
import shutil
import struct
import tarfile
import zlib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from anncestry.errors import DataError
from anncestry.provenance.records import replacing

_CHUNK_BYTES = 1 << 20
# What the readers of tar and of its compressions raise on damaged bytes.
_DAMAGED = (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError, struct.error, ValueError, OverflowError)


def extract(archive: Path, members: Iterable[str], folder: Path) -> dict[str, Path]:
    """Unpack these members into `folder`, under their last names; returns name of the member → file.

    Read in one pass, as a stream. DataError for a name that leads out of the archive, for a member that is no plain
    file (a link may lead anywhere), for one that is missing, and for a damaged archive.
    """
    wanted = {_plain(archive, name): name for name in members}
    found: dict[str, Path] = {}
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(archive, "r|*") as stream:
            for member in stream:
                name = wanted.get(_plain(archive, member.name))
                if name is None or name in found:
                    continue
                if not member.isreg():
                    raise DataError(f"{archive}: {member.name} is no plain file")
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
    except _DAMAGED as error:
        raise DataError(f"{archive}: damaged or no tar archive ({error})") from None
    missing = next(name for name in wanted.values() if name not in found)
    raise DataError(f"{archive}: holds no {missing}")


def _plain(archive: Path, name: str) -> str:
    """The name without a leading "./"; DataError for one that leads out of where it is unpacked."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise DataError(f"{archive}: {name!r} leads out of the archive")
    return str(path)
