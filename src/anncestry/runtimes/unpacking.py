"""Unpacking zip files that came from elsewhere."""

from __future__ import annotations

import zipfile
from pathlib import Path

from anncestry.errors import DataError


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a zip file; DataError for a member that would end up outside of `folder`, or a damaged archive."""
    inside = folder.resolve()
    try:
        with zipfile.ZipFile(archive) as members:
            for name in members.namelist():
                if "\\" in name or not (inside / name).resolve().is_relative_to(inside):
                    raise DataError(f"{archive.name}: its member {name!r} points outside of the archive")
            members.extractall(inside)
            for member in members.infolist():
                if not member.is_dir() and member.external_attr >> 16 & 0o111:
                    (inside / member.filename).chmod(0o755)
    except (zipfile.BadZipFile, EOFError) as error:
        raise DataError(f"{archive.name}: damaged ({error})") from None
