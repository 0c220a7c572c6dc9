"""Sources: the ways to get a dataset's files. The same content may come from any of them.

An entry of `config/datasets.yaml` under `sources` has a `kind` and what that kind needs:

| kind | keys |
| --- | --- |
| `url` | `url` of one HDF5 file that holds everything, or a URL each in `base`, `queries`[, `neighbors`, `distances`] |
| `file` | the same with local paths: `path`, or `base`, `queries`[, `neighbors`, `distances`] |
| `debian` | `package` of the system's own apt configuration, and `base`, `queries` as paths within the package |
| `parquet` | `url` of a folder; `base` (list of files in it), `queries`[, `neighbors`]; columns id, emb, neighbors_id |
| `archive` | `url` (or `path`) of a tar, plain or gzip, and `base`, `queries`[, `neighbors`] as names of its members |
| `synthetic` | `generator: ann-benchmarks-random`, `samples`, `centers`, `seed` |

All but synthetic state a `format`. Optional: `truth_format`, `members` (part → HDF5 member), and `sha256`, that of the
one file or a mapping of part → digest. What is fetched stays in a cache folder, and is verified before each use.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
from numpy.typing import NDArray

import anncestry
from anncestry.datasets import archives, formats, jsonl, parquet
from anncestry.errors import ConfigError, DataError
from anncestry.progress import Progress
from anncestry.provenance.records import replacing, sha256_file

KINDS = ("url", "file", "debian", "parquet", "archive", "synthetic")
PARTS = ("base", "queries", "neighbors", "distances")
_REQUIRED_PARTS = ("base", "queries")
_MEMBERS = {"base": "train", "queries": "test", "neighbors": "neighbors", "distances": "distances"}
_TRUTH_FORMATS = {"hdf5": "hdf5", "npy": "npy", "fvecs": "ivecs", "bvecs": "ivecs", "fbin": "ibin", "u8bin": "ibin"}

_TIMEOUT_S = 10.0  # to connect, and between two reads
_ATTEMPTS = 3  # in a row that bring nothing new
_PAUSE_S = 1.0
_READ_BYTES = 1 << 20
_APT_TIMEOUT_S = 900
_AT_ONCE = 4  # files of one source


@dataclass(frozen=True)
class Part:
    """One array of a source: a file, its format, and the member of an HDF5 file."""

    path: Path
    format: str
    member: str | None = None


@dataclass(frozen=True)
class Content:
    """What a source gave: parts by name, sha256 of files by name, and cached files that no sha256 vouches for."""

    parts: Mapping[str, Part]
    files: Mapping[str, str]
    cached: tuple[Path, ...] = ()

    def forget(self) -> None:
        """Remove the cached files, which turned out to be of no use, so that the next run fetches them anew."""
        for path in self.cached:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def obtain(entry: Mapping[str, Any], *, dim: int, cache_dir: Path, rows: int = 0) -> Content:
    """Get the files of one source entry; `dim` and `rows` are the dataset's, which some kinds need.

    Raises DataError with the reason where the source can't be had now, ConfigError where the entry makes no sense.
    """
    kind = entry.get("kind")
    if kind == "url":
        return _obtain_url(entry, cache_dir)
    if kind == "file":
        return _obtain_file(entry)
    if kind == "debian":
        return _obtain_debian(entry, cache_dir)
    if kind == "parquet":
        return _obtain_parquet(entry, rows, dim, cache_dir)
    if kind == "archive":
        return _obtain_archive(entry, cache_dir)
    if kind == "synthetic":
        return _obtain_synthetic(entry, dim, cache_dir)
    raise ConfigError(f"a source of unknown kind {kind!r}; choose one of {', '.join(KINDS)}")


def describe(entry: Mapping[str, Any]) -> str:
    """A few words that tell a source from the others of its dataset."""
    what = next((entry[key] for key in ("url", "path", "package", "generator", "base") if key in entry), "")
    return f"{entry.get('kind')} {what}".strip()


# Entries: which file holds which part


def _locations(entry: Mapping[str, Any], whole: str | None) -> dict[str, str]:
    """Part → URL or path as the entry states it; `whole` is the key that may state one file for all parts."""
    sha256 = entry.get("sha256")
    if whole is not None and whole in entry:
        if entry.get("format") != "hdf5":
            raise ConfigError(f"source {describe(entry)}: only hdf5 holds base and queries in one file; state each")
        return dict.fromkeys(PARTS, str(entry[whole]))
    if sha256 is not None and not isinstance(sha256, Mapping):
        raise ConfigError(f"source {describe(entry)}: has several files, so sha256 must say base, queries, … of each")
    found = {part: str(entry[part]) for part in PARTS if part in entry}
    for part in _REQUIRED_PARTS:
        if part not in found:
            instead = f" (or {whole})" if whole else ""
            raise ConfigError(f"source {describe(entry)}: lacks {part}{instead}")
    return found


def _content(
    entry: Mapping[str, Any], paths: Mapping[str, Path], files: Mapping[str, str], cached: tuple[Path, ...] = ()
) -> Content:
    try:
        return Content(_parts(entry, paths), files, cached)
    except DataError:
        Content({}, {}, cached).forget()
        raise


def _parts(entry: Mapping[str, Any], paths: Mapping[str, Path]) -> dict[str, Part]:
    """The parts that are there. Truth within an HDF5 file is optional, vectors are not."""
    format = str(_need(entry, "format"))
    truth_format = str(entry.get("truth_format") or _TRUTH_FORMATS.get(format, format))
    members = {**_MEMBERS, **entry.get("members", {})}
    parts: dict[str, Part] = {}
    for name, path in paths.items():
        is_truth = name not in _REQUIRED_PARTS
        part_format = truth_format if is_truth else format
        member = members[name] if part_format == "hdf5" else None
        if is_truth and member is not None and not formats.has_member(path, member):
            continue
        parts[name] = Part(path, part_format, member)
    if "neighbors" in parts and parts["neighbors"].format == "ibin":
        parts.setdefault("distances", parts["neighbors"])  # big-ann truth holds both in one file
    return parts


def _need(entry: Mapping[str, Any], key: str) -> Any:
    if entry.get(key) is None:
        raise ConfigError(f"source {describe(entry)}: lacks {key}")
    return entry[key]


def _pinned(entry: Mapping[str, Any], part: str) -> str | None:
    sha256 = entry.get("sha256")
    return sha256.get(part) if isinstance(sha256, Mapping) else sha256


# file


def _obtain_file(entry: Mapping[str, Any]) -> Content:
    paths = {part: Path(text).expanduser() for part, text in _locations(entry, whole="path").items()}
    files: dict[str, str] = {}
    for part, path in paths.items():
        if not path.is_file():
            raise DataError(f"{path}: missing")
        if path.name not in files:
            files[path.name] = _verified(path, _pinned(entry, part))
    return _content(entry, paths, files)


def _verified(path: Path, pinned: str | None) -> str:
    found = sha256_file(path)
    if pinned is not None and found != pinned:
        raise DataError(f"{path}: sha256 {found[:12]}… differs from the declared {pinned[:12]}…")
    return found


# url


def _obtain_url(entry: Mapping[str, Any], cache_dir: Path) -> Content:
    paths: dict[str, Path] = {}
    files: dict[str, str] = {}
    unverified: list[Path] = []
    for part, url in _locations(entry, whole="url").items():
        path, pinned = _cache_path(url, cache_dir), _pinned(entry, part)
        if path not in paths.values():
            files[path.name] = fetch(url, path, pinned)
            if pinned is None:
                unverified.append(path)
        paths[part] = path
    return _content(entry, paths, files, cached=tuple(unverified))


def _cache_path(url: str, cache_dir: Path) -> Path:
    parsed = urlsplit(url)
    if parsed.scheme not in ("http", "https"):
        raise ConfigError(f"source url {url}: only http and https are fetched; use kind file for a local path")
    name = re.sub(r"[^\w.-]", "_", Path(unquote(parsed.path)).name) or "index"
    return cache_dir / "url" / hashlib.sha256(url.encode()).hexdigest()[:12] / name


def fetch(url: str, path: Path, sha256: str | None = None) -> str:
    """Download `url` to `path` unless it is there already; returns the sha256 of the file.

    The content grows in `path` + `.part`, and an interrupted download goes on from there where the server can vouch
    that the file is still the same (ETag or Last-Modified) or the sha256 will tell. The name `path` is taken only by a
    file that is as long as the server said and has the sha256, where one is given. Of several processes that want the
    same file, one downloads and the others wait. Honours the proxy variables of the environment.
    Raises DataError if the file can't be had, or is not as declared.
    """
    with _locked(path.with_name(path.name + ".lock"), f"the download of {path.name}"):
        if path.exists():
            try:
                return _verified(path, sha256)
            except DataError:
                path.unlink()
        part = path.with_name(path.name + ".part")
        # Where a resumed file is not as declared, it may have changed in between: then once more from its beginning.
        for _ in range(2 if part.exists() else 1):
            _download(url, part, trust_partial=sha256 is not None)
            found = sha256_file(part)
            if sha256 in (None, found):
                os.replace(part, path)
                _remove_partial(part)
                return found
            _remove_partial(part)
        raise DataError(f"{url}: the file has another sha256, {found[:12]}…, than the declared {str(sha256)[:12]}…")


class _Unreachable(Exception):
    """A failure after which a second attempt can't help."""


def _download(url: str, part: Path, trust_partial: bool) -> None:
    """Bring `part` to its full length, in several attempts if need be."""
    failures, best, reason = 0, -1, ""
    while failures < _ATTEMPTS:
        try:
            _download_once(url, part, trust_partial)
            return
        except _Unreachable as error:
            raise DataError(f"{url}: {error}") from None
        except (OSError, HTTPException) as error:
            reason = _network_reason(error)
        size = part.stat().st_size if part.exists() else 0
        failures = 1 if size > best else failures + 1
        best = max(best, size)
        if failures < _ATTEMPTS:
            time.sleep(_PAUSE_S)
    raise DataError(f"{url}: {reason}")


def _download_once(url: str, part: Path, trust_partial: bool) -> None:
    validator_file = _validator_file(part)
    have = part.stat().st_size if part.exists() else 0
    validator = validator_file.read_text() if validator_file.exists() else ""
    headers = {"User-Agent": f"anncestry/{anncestry.__version__}", "Accept-Encoding": "identity"}
    if have and (validator or trust_partial):
        headers["Range"] = f"bytes={have}-"
        if validator:
            headers["If-Range"] = validator
    try:
        # A new opener, as the one of urlopen keeps the proxies that the environment stated at its first use.
        request = urllib.request.Request(url, headers=headers)
        response: HTTPResponse = urllib.request.build_opener().open(request, timeout=_TIMEOUT_S)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and error.headers.get("Content-Range") == f"bytes */{have}":
            return  # an earlier process had it all, but did not live to rename it
        if error.code == 416:  # the part is not a beginning of the file
            _remove_partial(part)
            raise HTTPException("the server does not have the rest of the file") from None
        if error.code in (408, 429) or error.code >= 500:
            raise HTTPException(f"the server answered {error.code} {error.reason}") from None
        raise _Unreachable(f"the server answered {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            raise _Unreachable(f"its certificate is not valid ({error.reason.verify_message})") from None
        raise
    with response:
        start = _range_start(response, have)
        length = response.headers.get("Content-Length")
        total = start + int(length) if length is not None and length.isdigit() else None
        part.parent.mkdir(parents=True, exist_ok=True)
        validator_file.write_text(_validator(response))
        with open(part, "r+b" if start else "wb") as file, Progress(f"download {part.stem}", total, "B") as progress:
            file.seek(start)
            file.truncate()
            progress.at(start)
            while data := response.read(_READ_BYTES):
                try:
                    file.write(data)
                except OSError as error:
                    raise _Unreachable(f"can't be written to the cache ({error.strerror})") from None
                progress.add(len(data))
    size = part.stat().st_size
    if total is not None and size != total:
        raise HTTPException(f"the download ended after {size} of {total} bytes")


def _range_start(response: HTTPResponse, have: int) -> int:
    """The byte that the answer's content starts at: after what we have, or 0 where the server sends the whole file."""
    if response.status != 206:
        return 0
    stated = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    if stated is None or int(stated[1]) != have:
        raise HTTPException("the server sent another range than asked for")
    return have


def _validator(response: HTTPResponse) -> str:
    """What an If-Range header may hold: a strong ETag, else the date; empty where the server states neither."""
    etag = response.headers.get("ETag", "")
    return etag if etag and not etag.startswith("W/") else response.headers.get("Last-Modified", "")


def _validator_file(part: Path) -> Path:
    return part.with_name(part.name + ".validator")


def _remove_partial(part: Path) -> None:
    part.unlink(missing_ok=True)
    _validator_file(part).unlink(missing_ok=True)


def _network_reason(error: Exception) -> str:
    if isinstance(error, HTTPException):
        return str(error) or type(error).__name__
    reason = getattr(error, "reason", error)
    if isinstance(reason, TimeoutError):
        return f"no answer within {_TIMEOUT_S:.0f} s"
    return f"can't be reached ({getattr(reason, 'strerror', None) or reason})"


# debian


def _obtain_debian(entry: Mapping[str, Any], cache_dir: Path) -> Content:
    package = str(_need(entry, "package"))
    inside = _locations(entry, whole=None)
    folder = cache_dir / "debian" / package
    with _locked(folder.with_name(f"{package}.lock"), f"the download of package {package}"):
        if not folder.exists():
            _fetch_package(package, folder)
    paths = {part: folder / "tree" / path.lstrip("/") for part, path in inside.items()}
    for part, path in paths.items():
        if not path.is_file():
            raise DataError(f"package {package}: holds no {inside[part]}")
    files = {deb.name: sha256_file(deb) for deb in folder.glob("*.deb")}
    files |= {path.name: _verified(path, _pinned(entry, part)) for part, path in paths.items()}
    return _content(entry, paths, files, cached=(folder,))


def _fetch_package(package: str, folder: Path) -> None:
    """Leave `folder` with the package's .deb and its content unpacked in `tree`, whole or not at all; needs no root."""
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise DataError(f"package {package}: needs {tool}, which this system does not have")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{package}.") as temporary:
        new, state = Path(temporary, "package"), Path(temporary, "apt")
        (state / "lists" / "partial").mkdir(parents=True)
        (state / "cache" / "archives" / "partial").mkdir(parents=True)
        new.mkdir()
        apt = ["apt-get", "-q", "-o", "Debug::NoLocking=1", "-o", f"Dir::Cache={state / 'cache'}"]
        for option in (f"http::Timeout={_TIMEOUT_S:.0f}", f"https::Timeout={_TIMEOUT_S:.0f}", "Retries=1"):
            apt += ["-o", f"Acquire::{option}"]
        own_lists = ["-o", f"Dir::State::lists={state / 'lists'}"]
        print(f"package {package}: downloading through this system's apt configuration", file=sys.stderr)
        try:
            _run([*apt, "download", package], new)
        except DataError:
            # The system's lists may be missing or stale, and only root may renew them.
            _run([*apt, *own_lists, "update"], new)
            _run([*apt, *own_lists, "download", package], new)
        debs = list(new.glob("*.deb"))
        if len(debs) != 1:
            raise DataError(f"package {package}: apt-get left {len(debs)} packages instead of one")
        _run(["dpkg-deb", "-x", debs[0].name, "tree"], new)
        os.replace(new, folder)


def _run(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_APT_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise DataError(f"{command[0]}: not done within {_APT_TIMEOUT_S} s") from None
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith(("E:", "dpkg-deb: error"))]
        last = said[0] if said else (done.stderr.strip().splitlines() or ["no message"])[-1]
        # A package mirror's address is the machine's own business, and may hold a password.
        raise DataError(f"{command[0]}: " + re.sub(r"\w+://\S+", "(a mirror)", last.removeprefix("E: ")))


# parquet


def _obtain_parquet(entry: Mapping[str, Any], rows: int, dim: int, cache_dir: Path) -> Content:
    """Fetch the files, several at a time, and place their rows by id in npy files beside them."""
    names = {part: entry[part] for part in ("base", "queries", "neighbors") if part in entry}
    root = str(_need(entry, "url")).rstrip("/")
    listed = [*_need(entry, "base"), *(names[part] for part in ("queries", "neighbors") if part in names)]
    paths = {name: _cache_path(f"{root}/{name}", cache_dir) for name in listed}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        digests = dict(zip(paths, pool.map(lambda name: fetch(f"{root}/{name}", paths[name]), paths), strict=True))
    told = hashlib.sha256(json.dumps([digests, rows, dim], sort_keys=True).encode()).hexdigest()[:12]
    folder = cache_dir / "parquet" / told
    made = {part: folder / f"{part}.npy" for part in names}
    cached = (folder, *paths.values())
    with _locked(folder.with_name(f"{told}.lock"), f"the placing of {root}"):
        if not all(path.exists() for path in made.values()):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            try:
                with replacing(made["base"]) as to:
                    parquet.place_vectors([paths[name] for name in names["base"]], "id", "emb", rows, dim, to)
                with replacing(made["queries"]) as to, open(to, "wb") as file:
                    asked = parquet.place_queries(paths[names["queries"]], "id", "emb", file)
                if "neighbors" in made:
                    with replacing(made["neighbors"]) as to, open(to, "wb") as file:
                        parquet.place_neighbors(paths[names["neighbors"]], "id", "neighbors_id", asked, file)
            except DataError:
                Content({}, {}, cached).forget()
                raise
    return Content({part: Part(path, "npy") for part, path in made.items()}, digests, cached)


# archive


def _obtain_archive(entry: Mapping[str, Any], cache_dir: Path) -> Content:
    """Fetch the archive (or take a local one) and unpack the named members; JSON lines become npy files."""
    format, sha256 = str(_need(entry, "format")), entry.get("sha256")
    if "url" in entry:
        archive = _cache_path(str(entry["url"]), cache_dir)
        digest = fetch(str(entry["url"]), archive, sha256)
    else:
        archive = Path(str(_need(entry, "path"))).expanduser()
        digest = _verified(archive, sha256)
    names = _locations({key: value for key, value in entry.items() if key not in ("url", "path", "sha256")}, whole=None)
    folder = cache_dir / "archive" / digest[:12]
    cached = (folder, *((archive,) if "url" in entry and sha256 is None else ()))
    with _locked(folder.with_name(f"{digest[:12]}.lock"), f"the unpacking of {archive.name}"):
        found = {part: folder / Path(name).name for part, name in names.items()}
        if not all(path.exists() for path in found.values()):
            try:
                archives.extract(archive, set(names.values()), folder)
            except DataError:
                Content({}, {}, cached).forget()
                raise
        parts = {}
        for part, path in found.items():
            if path.suffix != ".jsonl":
                parts[part] = Part(path, format if part in _REQUIRED_PARTS else _TRUTH_FORMATS.get(format, format))
                continue
            queries, neighbors = folder / "queries.npy", folder / "neighbors.npy"
            if jsonl.place_queries(path, queries, neighbors):
                parts["neighbors"] = Part(neighbors, "npy")
            parts["queries"] = Part(queries, "npy")
    return Content(parts, {archive.name: digest}, cached)


# synthetic


def _obtain_synthetic(entry: Mapping[str, Any], dim: int, cache_dir: Path) -> Content:
    generator = _need(entry, "generator")
    if generator != "ann-benchmarks-random":
        raise ConfigError(f"source {describe(entry)}: unknown generator; choose ann-benchmarks-random")
    numbers = {key: int(_need(entry, key)) for key in ("samples", "centers", "seed")} | {"dim": dim}
    base, queries = ann_benchmarks_random(**numbers)
    name = hashlib.sha256(json.dumps([generator, numbers], sort_keys=True).encode()).hexdigest()[:12]
    folder = cache_dir / "synthetic" / name
    paths = {"base": folder / "base.npy", "queries": folder / "queries.npy"}
    for path, array in zip(paths.values(), (base, queries), strict=True):
        with replacing(path) as temporary, open(temporary, "wb") as file:
            np.save(file, array)
    files = {path.name: sha256_file(path) for path in paths.values()}
    return Content({name: Part(path, "npy") for name, path in paths.items()}, files, cached=(folder,))


def ann_benchmarks_random(
    samples: int, dim: int, centers: int, seed: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The base and queries, float32 (rows, dim), of ann-benchmarks' `random-*` datasets, bit for bit.

    Its code calls scikit-learn's make_blobs(n_samples, n_features, centers, random_state=seed) and then
    train_test_split(test_size=0.1, random_state=1); these are the same draws from NumPy's legacy generator, whose
    streams are frozen.
    """
    random = np.random.RandomState(seed)
    middles = random.uniform(-10.0, 10.0, size=(centers, dim))
    sizes = np.full(centers, samples // centers)
    sizes[: samples % centers] += 1
    blobs = [random.normal(middle, 1.0, size=(size, dim)) for middle, size in zip(middles, sizes, strict=True)]
    order = np.arange(samples)
    random.shuffle(order)
    points = np.concatenate(blobs)[order].astype(np.float32)
    split = np.random.RandomState(1).permutation(samples)
    held_out = math.ceil(samples * 0.1)
    return points[split[held_out:]], points[split[:held_out]]


# One process at a time


@contextmanager
def _locked(path: Path, what: str) -> Iterator[None]:
    """Hold a lock file, waiting for another process that has it. The system drops the lock of a process that dies."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise DataError(f"{path.parent}: the cache can't be written ({error.strerror})") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another process to end {what}", file=sys.stderr)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
