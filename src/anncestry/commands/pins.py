"""Pins of another version: an artifact as it is at that version, with the digests that its registry's client tells.

What is told is believed once, as by hand; whatever is run later is compared with it.
"""

from __future__ import annotations

import copy
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from anncestry import registries
from anncestry.errors import ConfigError, DataError
from anncestry.runtimes import artifacts, building

_WITH_VERSION = ("stamp", "changed", "coordinates")
"""Keys whose texts hold the version. (Not `go`: Go has a version of its own, which may be the same.)"""
_OTHERS = {"wheel": ("release", "beside"), "python": ("version", "with")}
"""Of kinds that are packages, the key of the package's own version, here and in the packages under the second key."""
_BY_HAND = {
    "debian": "a Debian package's name holds more than the version, and its libraries change with it: `apt-cache show "
    "NAME` tells path and SHA256 of each for --artifact '{{kind: debian, packages: {{{debian}: SHA256, …}}}}'",
    "image": "an image is named by its digest, which has no version: `docker buildx imagetools inspect {image}:TAG` "
    "tells that of another one for --artifact '{{kind: image, image: {image}@sha256:DIGEST, programs: {programs}}}'",
    "path": "it is a build of your own, which no registry has: `anncestry bench --system {of} --artifact PATH` keeps "
    "another one, and writes its --artifact '{{kind: path, sha256: DIGEST}}' into bench/config/systems.yaml",
    "lock": "its lock covers go.mod and go.sum around the module, which only a build makes: give --artifact '{{kind: "
    "go-module, module: {module}, h1: SUM, lock: LOCK, …}}' with any LOCK, and the build's error tells the right one",
}


def pinned(
    of: str, artifact: Mapping[str, Any], old: str, new: str, release: str = ""
) -> tuple[dict[str, Any], list[str]]:
    """The artifact of system `of` at version `new` instead of `old`, and lines on what was pinned and what was kept.

    `release` is the version of a package that does not count as its database does. ConfigError where the version does
    not say what to ask for, with what to give by hand; DataError where the registry does not have it.
    """
    kind = "lock" if "lock" in artifact else artifact["kind"]
    if new == old and not release:
        raise ConfigError(f"--version: {of} has the version {old}; leave it out")
    if kind in _BY_HAND:
        said = _BY_HAND[kind].format(
            of=of,
            debian=_moved(next(iter(artifact.get("packages", ())), ""), old, new),
            image=artifact.get("image", "").partition("@")[0],
            programs=json.dumps(artifact.get("programs")).replace('"', ""),
            module=artifact.get("module"),
        )
        raise ConfigError(f"--version: {new} of {of} can't be pinned from here; {said}")
    if release and kind not in _OTHERS:
        raise ConfigError(f"--release: is of a Python package, but {of} is of kind {kind}; leave it out")
    fresh: dict[str, Any] = copy.deepcopy(dict(artifact))
    fresh |= {key: _moved(fresh[key], old, new) for key in _WITH_VERSION if key in fresh}
    with tempfile.TemporaryDirectory() as temporary:
        if kind in _OTHERS:
            lines = list(_packages(of, fresh, (old, new), release, Path(temporary)))
        elif kind == "go-module":
            lines = list(_go_module(fresh, new, Path(temporary)))
        elif kind == "maven":
            lines = list(_jars(of, fresh, new, artifact["coordinates"], Path(temporary)))
        else:
            lines = [f"nothing to pin: {of} fetches nothing"]
    return fresh, lines


def _moved(value: Any, old: str, new: str) -> Any:
    """The value with the new version wherever its texts hold the old one, as in v1.27.0 or 3.5.0.0 (not in 13.5.0)."""
    if isinstance(value, str):
        return re.sub(rf"(?<![\d.]){re.escape(old)}(?!\d)", lambda _: new, value)
    if isinstance(value, Mapping):
        return {key: _moved(each, old, new) for key, each in value.items()}
    return [_moved(each, old, new) for each in value]


def _packages(
    of: str, artifact: dict[str, Any], versions: tuple[str, str], release: str, folder: Path
) -> Iterator[str]:
    """Pin a package, and those beside it that had the database's version: they come out with it."""
    (old, new), (key, beside) = versions, _OTHERS[artifact["kind"]]
    if key in artifact and not release:
        raise ConfigError(
            f"--version: {of} runs {artifact['package']} {artifact[key]}, whose versions are not the database's: "
            f"name the one that holds {new}, as in --release {artifact[key]}"
        )
    if release:
        artifact[key] = release
    others = list(artifact.get(beside) or ())
    together = [other for other in others if other[key] == old]
    for other in together:
        other[key] = new
    for number, package in enumerate([artifact, *together]):
        name, version = package["package"], package.get(key, new)
        options = ["download", "--no-binary" if "source" in package else "--only-binary", ":all:", "--dest", "wheel"]
        if artifact["kind"] == "wheel":  # the Python of the config's pins, from which the stage takes it under any
            options += ["--python-version", artifacts.PINNED_FOR, "--implementation", "cp"]
        failure = f"can't pin {name} {version}"
        file, package["sha256"] = registries.release(name, version, options, folder / str(number), failure)
        yield f"pinned {name} {version}: {file} by pip, sha256 {package['sha256'][:12]}…"
    kept = [other for other in others if other not in together] + (artifact.get("source") or {}).get("build", [])
    yield from _kept([f"{other['package']} {other.get(key, other.get('version'))}" for other in kept], new)


def _go_module(artifact: dict[str, Any], new: str, folder: Path) -> Iterator[str]:
    """Pin a module by what go downloads, and compares with Go's checksum database unless the user switched that off."""
    tool, name = building.go_tool(artifact["module"]), f"{artifact['module']}@v{new}"
    asked = [tool, "env", "-json", "GOSUMDB", "GONOSUMDB"]
    own = registries.run(asked, folder, {**os.environ, "GOTOOLCHAIN": "local"}, "go env")
    environment = building.go_environment(tool, artifact["module"]) | json.loads(own.stdout)
    done = registries.run([tool, "mod", "download", "-json", name], folder, environment)
    try:
        told = json.loads(done.stdout)
    except json.JSONDecodeError:
        told = {"Error": done.stderr}
    if "Error" in told:
        reason = registries.without_addresses(registries.last_line(told["Error"]).strip())
        raise DataError(f"can't pin {name}: {reason}")
    artifact["h1"] = told["Sum"].removeprefix("h1:")
    yield f"pinned {name}: by go, {told['Sum'][:15]}…"
    yield from _kept([f"Go {artifact['go']}"], new)


def _jars(of: str, artifact: dict[str, Any], new: str, before: list[str], folder: Path) -> Iterator[str]:
    """Pin what Maven resolves the coordinates to."""
    moved = [name for name in artifact["coordinates"] if name not in before]
    if not moved:
        raise ConfigError(
            f"--version: no coordinate of {of} holds its version, so none can be moved to {new}: give --artifact "
            "'{kind: maven, coordinates: [GROUP:NAME:VERSION, …], sha256: DIGEST}' with any DIGEST, and the error of "
            "its first use tells the right one"
        )
    artifacts.fetch_jars(
        f"can't pin {new} of {of} (does its repository have it?)", artifact["coordinates"], folder / "jars"
    )
    found = building.hashes(folder / "jars")
    artifact["sha256"] = artifacts.digest_of(found)
    yield f"pinned {', '.join(moved)}: {len(found)} files by mvn, sha256 {artifact['sha256'][:12]}…"
    yield from _kept([name for name in artifact["coordinates"] if name in before], new)


def _kept(names: list[str], new: str) -> Iterator[str]:
    if names:
        yield f"kept {', '.join(names)}: if {new} needs another, give --artifact"
