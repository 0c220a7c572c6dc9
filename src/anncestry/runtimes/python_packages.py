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
from anncestry.runtimes.go import last_line
from anncestry.runtimes.unpacking import unpack

_NETWORK_TIMEOUT_S = 1800
_BUILD_FLAGS = "-g0"
"""No debug information: it would hold paths of this machine."""


def make(system: str, version: str, artifact: Mapping[str, Any], files: Path) -> dict[str, str]:
    """Put the package of `artifact`, and the packages that it is used `with`, into the folder `files`.

    `package`, its `version` (else that of the system) and `sha256` name a wheel; with `source`, a source distribution
    that is compiled here: by the machine's C++ compiler with `source.flags`, by the pinned packages of `source.build`
    and nothing else. Returns the toolchain.
    """
    toolchain: dict[str, str] = {}
    with tempfile.TemporaryDirectory(dir=files.parent) as temporary:
        folder = Path(temporary)
        for number, package in enumerate(artifact.get("with", ())):
            unpack(_wheel(system, package, folder / f"with{number}"), files)
        own = {"version": version, **artifact}
        source = artifact.get("source")
        if source is None:
            unpack(_wheel(system, own, folder / "own"), files)
        else:
            toolchain = _compiled(system, own, source, folder, files)
    return toolchain


def _pip(arguments: Sequence[str], folder: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pip", *arguments, "--no-input", "--quiet", "--disable-pip-version-check"],
        cwd=folder,
        env=dict(environment),
        capture_output=True,
        text=True,
        timeout=_NETWORK_TIMEOUT_S,
        check=False,
    )


def _pinned(package: Mapping[str, Any], folder: Path) -> list[str]:
    """A file of requirements with the one package, and the options that hold pip to it."""
    folder.mkdir(parents=True)
    line = f"{package['package']}=={package['version']} --hash=sha256:{package['sha256']}\n"
    (folder / "requirements.txt").write_text(line)
    return ["--no-deps", "--require-hashes", "--requirement", "requirements.txt"]


def _reason(package: Mapping[str, Any], output: str) -> str:
    if "DO NOT MATCH THE HASHES" in output:
        return f"its sha256 is not the pinned {package['sha256'][:12]}…"
    return last_line(output)


def _wheel(system: str, package: Mapping[str, Any], folder: Path) -> Path:
    """Download one wheel with the user's own pip configuration; DataError if it is not the pinned one."""
    options = _pinned(package, folder)
    done = _pip(["download", *options, "--only-binary", ":all:", "--dest", "wheel"], folder, os.environ)
    if done.returncode != 0:
        raise DataError(
            f"{system}: can't get {package['package']} {package['version']}: {_reason(package, done.stderr)}"
        )
    (wheel,) = (folder / "wheel").iterdir()
    return wheel


def _compiled(
    system: str, package: Mapping[str, Any], source: Mapping[str, Any], folder: Path, files: Path
) -> dict[str, str]:
    compiler = shutil.which("g++")
    if compiler is None:
        raise DataError(f"{system}: no g++ on the PATH; the package g++ brings it (apt-get install g++)")
    tools = folder / "tools"
    for number, tool in enumerate(source["build"]):
        unpack(_wheel(system, tool, folder / f"tool{number}"), tools)
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
    done = _pip(["wheel", *options, *only], folder / "own", environment)
    if done.returncode != 0:
        reason = _reason(package, done.stdout + done.stderr)
        raise DataError(f"{system}: can't build {package['package']} {package['version']}: {reason}")
    (wheel,) = (folder / "own" / "wheel").iterdir()
    unpack(wheel, files)
    said = subprocess.run([compiler, "-dumpfullversion"], capture_output=True, text=True, check=True)
    return {"g++": said.stdout.strip(), "python": sys.version.split()[0], "flags": flags}
