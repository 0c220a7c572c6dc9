"""Container images: made from an artifact's own files, or pulled by digest from a registry.

A local image is one layer: the artifact under /opt/artifact, what a program of it needs of other parts (a Java: jars)
under /opt/beside and, of this machine, the C libraries that its programs ask for, so that a container runs the very
bytes that the native runtime runs. It holds no shell, no command and no
setting; its tag is the digest of that layer, which the engine's own account of it must confirm.
"""

from __future__ import annotations

import hashlib
import io
import os
import posixpath
import re
import subprocess
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import IO

import docker
from docker.errors import APIError, ImageNotFound, NotFound
from docker.models.containers import Container
from docker.models.images import Image

from anncestry.errors import DataError
from anncestry.provenance.records import read_json, sha256_file
from anncestry.runtimes.artifacts import IMAGE

ROOT = "/opt/artifact"
"""Where an image has its artifact."""
_BESIDE = "/opt/beside"
"""Where it has what stands beside it."""
PARTS = "parts"
"""In an artifact's folder, what stands beside it: each with an image of its own."""
_REPOSITORY = "anncestry"
_ELF = b"\x7fELF"
_PASSWD = b"root:x:0:0:root:/:/nonexistent\n"
_LIBRARY = re.compile(r"^\s*(?:\S+ => )?(/\S+) \(0x")
_MISSING = re.compile(r"^\s*(\S+) => not found", re.MULTILINE)
_BLOCK = 1 << 20


@dataclass(frozen=True)
class ImageFacts:
    """An image as a record tells of it: `reference` (name and digest), `id`, digests of its `layers`, and of each file
    that came from this machine and not from the artifact its sha256."""

    reference: str
    id: str
    layers: list[str]
    host_files: dict[str, str] = field(default_factory=dict)
    programs: Mapping[str, str] = field(default_factory=dict)
    """Of an image of a registry: name of a program, or of a folder → its path inside."""
    beside: Sequence[Path] = ()
    """Folders of other parts that it has, too."""

    def inside(self, folder: Path, argument: str | Path) -> str:
        """An argument as it is inside: paths in the artifact's `folder` and those beside it are elsewhere there."""
        text = str(argument)
        if not self.programs:
            for other in self.beside:
                text = text.replace(f"{other}/", f"{_BESIDE}/{other.name}/")
            return text.replace(str(folder), ROOT)
        for name, at in self.programs.items():
            own = str(folder / name)
            if text == own or text.startswith(f"{own}/"):
                return at + text[len(own) :]
        return text


def image_of(client: docker.DockerClient, name: str, artifact_dir: Path) -> ImageFacts:
    """The image that an artifact is, or else the one that is made of it."""
    described = artifact_dir / IMAGE
    if not described.exists():
        return local_image(client, name, artifact_dir)
    asked = read_json(described)
    return replace(pulled_image(client, asked["image"]), programs=asked["programs"])


def local_image(client: docker.DockerClient, name: str, artifact_dir: Path, beside: Sequence[Path] = ()) -> ImageFacts:
    """The image of the artifact in `artifact_dir`, with the parts `beside` it, made where the engine lacks it.

    DataError if a program in it wants a library that neither the artifact nor this machine has.
    """
    files = dict(_artifact_files(artifact_dir, ROOT))
    for part in beside:
        files |= _artifact_files(part, f"{_BESIDE}/{part.name}")
    host = host_libraries(files.values())
    layer = _digest(files, host)
    reference = f"{_REPOSITORY}/{name}:{layer[:12]}"
    image = _have(client, reference)
    if image is None or image.attrs["RootFS"]["Layers"] != [f"sha256:{layer}"]:
        image = import_image(client, reference, files, host)
    found = image.attrs["RootFS"]["Layers"]
    if found != [f"sha256:{layer}"]:
        raise DataError(f"image {reference}: the engine loaded {found} instead of the layer sha256:{layer}")
    hashes = {path: sha256_file(real) for path, real in host.items()}
    return ImageFacts(reference, str(image.id), found, hashes, beside=tuple(beside))


def pulled_image(client: docker.DockerClient, reference: str) -> ImageFacts:
    """The image of a registry, by digest (NAME@sha256:…); asked of the registry only if the engine lacks it."""
    image = _have(client, reference)
    if image is None:
        try:
            image = client.images.pull(reference)
        except APIError as error:
            raise DataError(f"image {reference}: can't be pulled: {error.explanation or error}") from None
    if _familiar(reference) not in map(_familiar, image.attrs["RepoDigests"]):
        raise DataError(f"image {reference}: the engine knows it as {image.attrs['RepoDigests'] or 'nothing'}")
    return ImageFacts(reference, str(image.id), list(image.attrs["RootFS"]["Layers"]))


def _familiar(reference: str) -> str:
    """As Docker's engine writes it: of its own registry's images, neither that nor the folder `library` is said."""
    own = reference.removeprefix("docker.io/")
    return reference if own == reference else own.removeprefix("library/")


def file_of(client: docker.DockerClient, image: ImageFacts, path: str, labels: Mapping[str, str]) -> bytes | None:
    """A file of an image, links followed, of a container that has these labels and is never started; None if there is
    none."""
    if (image.id, path) not in _READ:
        made = client.containers.create(
            image.id, entrypoint=["never-started"], labels=dict(labels), network_mode="none"
        )
        try:
            _READ[image.id, path] = _read(made, path)
        finally:
            made.remove(force=True, v=True)
    return _READ[image.id, path]


_READ: dict[tuple[str, str], bytes | None] = {}
"""What was read of images, which never change: each member of a server asks again."""
_LINKS_MAX = 8


def _read(container: Container, path: str) -> bytes | None:
    for _ in range(_LINKS_MAX):
        try:
            stream, _ = container.get_archive(path)
        except NotFound:
            return None
        with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as tar:
            entry = tar.getmembers()[0]
            if not entry.issym():
                found = tar.extractfile(entry)
                return None if found is None else found.read()
            path = posixpath.normpath(posixpath.join(posixpath.dirname(path), entry.linkname))
    return None


def _have(client: docker.DockerClient, reference: str) -> Image | None:
    # Asked first: to run a missing image makes the engine try a registry.
    try:
        return client.images.get(reference)
    except ImageNotFound:
        return None


def import_image(
    client: docker.DockerClient,
    reference: str,
    files: Mapping[str, Path],
    host: Mapping[str, Path],
    changes: Sequence[str] = (),
) -> Image:
    """An image of one layer with these files and those of this machine, by their paths inside; `changes` are lines of
    a Dockerfile."""
    repository, tag = reference.rsplit(":", 1)
    read_end, write_end = os.pipe()
    child = os.fdopen(write_end, "wb")
    with os.fdopen(read_end, "rb") as source:

        def write() -> None:
            with child:
                _write_tar(child, files, host)

        writer = Thread(target=write, daemon=True)
        writer.start()
        client.api.import_image_from_stream(source, repository=repository, tag=tag, changes=list(changes) or None)
        writer.join()
    return client.images.get(reference)


def _artifact_files(artifact_dir: Path, root: str) -> Iterator[tuple[str, Path]]:
    for path in sorted(artifact_dir.rglob("*")):
        name = path.relative_to(artifact_dir).as_posix()
        if path.is_file() and name != "record.json" and not name.startswith((f"{PARTS}/", ".")):
            yield f"{root}/{name}", path


def host_libraries(files: Iterable[Path]) -> dict[str, Path]:
    """What the programs and libraries among `files` load from outside of their own folder, loader included: path → file
    that it leads to."""
    elves = [path for path in files if _is_elf(path)]
    own = {path.parent.resolve() for path in elves}
    environment = {"LD_LIBRARY_PATH": ":".join(sorted(map(str, own))), "PATH": os.environ.get("PATH", "/usr/bin")}
    wanted: set[str] = set()
    for path in elves:
        done = subprocess.run(
            ["ldd", str(path.resolve())], capture_output=True, text=True, env=environment, check=False
        )
        if done.returncode != 0:
            continue  # "not a dynamic executable": it needs nothing
        missing = _MISSING.search(done.stdout)
        if missing and ".so" in path.name:
            continue  # a library that this machine can't load: a Java's are for windows and sounds, too
        if missing:
            raise DataError(f"{path.name} needs {missing[1]}, which is missing in its artifact and on this machine")
        found = (match[1] for match in map(_LIBRARY.match, done.stdout.splitlines()) if match)
        wanted |= {library for library in found if Path(library).parent.resolve() not in own}
    return {library: Path(library).resolve() for library in sorted(wanted)}


def _is_elf(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(4) == _ELF


def _digest(files: Mapping[str, Path], host: Mapping[str, Path]) -> str:
    """sha256 of the layer's tar: what the engine calls the layer."""
    sha256 = hashlib.sha256()
    _write_tar(SimpleNamespace(write=sha256.update), files, host)  # type: ignore[arg-type]  # it only writes
    return sha256.hexdigest()


def _write_tar(sink: IO[bytes], files: Mapping[str, Path], host: Mapping[str, Path]) -> None:
    """The root file system: the same bytes whenever and by whomever it is written."""
    contents: dict[str, Path | bytes] = {"/etc/passwd": _PASSWD, **host, **files}
    folders = {"/tmp": 0o1777, "/run": 0o1777, "/data": 0o1777}
    for path in contents:
        for parent in Path(path).parents:
            folders.setdefault(str(parent), 0o755)
    with tarfile.open(fileobj=sink, mode="w|", format=tarfile.GNU_FORMAT, bufsize=_BLOCK) as tar:
        for folder in sorted(folders.keys() - {"/"}):
            entry = tarfile.TarInfo(folder[1:])
            entry.type, entry.mode = tarfile.DIRTYPE, folders[folder]
            tar.addfile(entry)
        for path, content in sorted(contents.items()):
            entry = tarfile.TarInfo(path[1:])
            if isinstance(content, bytes):
                entry.size, entry.mode = len(content), 0o644
                tar.addfile(entry, io.BytesIO(content))
            else:
                status = content.stat()
                entry.size, entry.mode = status.st_size, 0o755 if status.st_mode & 0o100 or path in host else 0o644
                with open(content, "rb") as file:
                    tar.addfile(entry, file)
