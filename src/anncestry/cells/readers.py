"""Readers of vector files from other packages: how a source's `format` names one, and which code that is.

A format that is not among `BUILT_IN` is the name of an entry point of the group `anncestry.readers`, or the path of a
module (`my_package.my_reader`). Parsing a workflow imports no reader: it looks for the files of its code.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterable, Mapping
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from anncestry.cells.features import installed, is_path
from anncestry.errors import ConfigError

GROUP = "anncestry.readers"
BUILT_IN = ("hdf5", "fvecs", "ivecs", "bvecs", "fbin", "u8bin", "i8bin", "ibin", "npy", "idx", "csv", "json")
"""The formats that this package reads itself."""
_CODE = (*SOURCE_SUFFIXES, *EXTENSION_SUFFIXES)


def used(sources: Iterable[Mapping[str, Any]]) -> list[str]:
    """The formats of a dataset's sources that readers from elsewhere read, each once."""
    formats = (source.get("format") for source in sources)
    return list(dict.fromkeys(format for format in formats if format and format not in BUILT_IN))


def code_of(format: str) -> dict[str, str]:
    """The code that reads a format: `module`; `distribution` and `version` of an entry point's package; `sha256`.

    The digest is that of names and contents of all code in the package that the module belongs to, or of the module
    if it is a single file: a reader may be changed by what it imports from beside it.
    ConfigError if there is no such format, or no such module.
    """
    entry = installed(GROUP).get(format)
    if entry is None and not is_path(format):
        known = ", ".join([*BUILT_IN, *sorted(installed(GROUP))])
        raise ConfigError(
            f"unknown format {format!r}; known: {known}. A reader of another package is named by its entry point "
            f"(group {GROUP}) once that package is installed, or by the path of its module (docs/adding-a-reader.md)"
        )
    module = entry.module if entry else format.replace(":", ".")
    facts = {"module": module, "sha256": _digest(format, module)}
    if entry is not None and entry.dist is not None:
        facts |= {"distribution": entry.dist.name, "version": entry.dist.version}
    return facts


def _digest(format: str, module: str) -> str:
    parts = module.split(".")
    top: ModuleSpec | None = None
    found: ModuleSpec | None = None
    for number in range(len(parts)):
        found = _spec(".".join(parts[: number + 1]), found)
        if found is None:
            raise ConfigError(f"format {format!r}: its reader is the module {module!r}, which is not there")
        if top is None and (found.origin or number == len(parts) - 1):  # above may be folders that others share
            top = found
    assert top is not None
    digest = hashlib.sha256()
    for name, file in _files(top):
        digest.update(name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def _spec(name: str, parent: ModuleSpec | None) -> ModuleSpec | None:
    """Where a module lies; nothing is imported."""
    if parent is not None:
        within = parent.submodule_search_locations
        return None if within is None else PathFinder.find_spec(name, list(within))
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None


def _files(spec: ModuleSpec) -> list[tuple[str, Path]]:
    """The files of a module's code with their names in it, in the order of the names."""
    if spec.submodule_search_locations is None:
        file = Path(str(spec.origin))
        return [(file.name, file)] if file.is_file() else []
    folders = map(Path, spec.submodule_search_locations)
    return sorted(
        (file.relative_to(folder).as_posix(), file)
        for folder in folders
        for file in folder.rglob("*")
        if file.name.endswith(_CODE) and file.is_file()
    )
