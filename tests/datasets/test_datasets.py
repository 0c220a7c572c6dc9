"""A dataset is had from the first source that gives the declared content, and reaches every engine in the same form."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from anncestry.datasets import download, fetching, metadata, normalize, sources
from anncestry.datasets.fetching import fetch
from anncestry.datasets.sources import ann_benchmarks_random, blobs
from anncestry.errors import ConfigError, DataError
from anncestry.provenance.records import read_record, verify_outputs

Floats = NDArray[np.float32]

BASE = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
QUERIES = np.random.default_rng(1).normal(size=(20, 4)).astype(np.float32)
ANOTHER = BASE + np.float32(1)


def digest(array: NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def hdf5_file(path: Path, base: Floats = BASE, queries: Floats = QUERIES, **truth: Any) -> Path:
    with h5py.File(path, "w") as file:
        file["train"], file["test"] = base, queries
        for name, values in truth.items():
            file[name] = values
    return path


def spec_of(*entries: dict[str, Any], pinned: bool = True, **changes: Any) -> dict[str, Any]:
    content = {"base": digest(BASE), "queries": digest(QUERIES)} if pinned else {}
    spec = {"name": "made", "rows": 300, "queries": 20, "dim": 4, "metric": "l2", "content": content}
    return {**spec, "sources": list(entries), **changes}


def local(path: Path, **more: Any) -> dict[str, Any]:
    return {"kind": "file", "path": str(path), "format": "hdf5", **more}


def get(folder: Path, spec: dict[str, Any]) -> dict[str, Any]:
    record = download.run(spec, folder / "out", folder / "cache", key="k")
    assert read_record(folder / "out" / "record.json", stage="download", key="k") == record
    return record


def assert_has_content(folder: Path) -> None:
    np.testing.assert_array_equal(np.load(folder / "out" / "base.npy"), BASE)
    np.testing.assert_array_equal(np.load(folder / "out" / "queries.npy"), QUERIES)


# The url source


@dataclass
class Server:
    """Serves `content` at any path. `cuts`: after how many bytes to break off, one answer each."""

    content: bytes
    address: str = ""
    etag: str | None = '"one"'
    ranges: bool = True
    status: int = 200
    cuts: list[int] = field(default_factory=list)
    stated_length: int | None = None
    requests: list[dict[str, str]] = field(default_factory=list)
    sent: int = 0

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.requests.append(dict(handler.headers))
        if self.status != 200:
            handler.send_error(self.status)
            return
        start, stop, wanted = 0, len(self.content), re.match(r"bytes=(\d+)-(\d*)", handler.headers.get("Range", ""))
        ranged = bool(wanted and self.ranges and handler.headers.get("If-Range", self.etag) == self.etag)
        if wanted and ranged:
            start, stop = int(wanted[1]), min(int(wanted[2]) + 1 if wanted[2] else stop, stop)
        if start >= len(self.content):
            handler.send_response(416)
            handler.send_header("Content-Range", f"bytes */{len(self.content)}")
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        handler.send_response(206 if ranged else 200)
        if ranged:
            handler.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(self.content)}")
        handler.send_header("Content-Length", str(self.stated_length or stop - start))
        if self.etag:
            handler.send_header("ETag", self.etag)
        handler.end_headers()
        end = start + self.cuts.pop(0) if self.cuts else stop
        self.sent += len(self.content[start:end])
        handler.wfile.write(self.content[start:end])


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(fetching, "_PAUSE_S", 0.0)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    state = Server(hdf5_file(tmp_path / "served.hdf5").read_bytes())

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.answer(self)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.address = f"http://127.0.0.1:{running.server_port}/made.hdf5"
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield state
    running.shutdown()
    running.server_close()


def remote(server: Server, **more: Any) -> dict[str, Any]:
    return {"kind": "url", "url": server.address, "format": "hdf5", **more}


@pytest.fixture
def refused() -> Iterator[str]:
    """An address whose port is taken, and where nobody listens."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{holder.getsockname()[1]}/made.hdf5"


def sha256_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_a_dataset_is_downloaded_verified_and_recorded(server: Server, tmp_path: Path) -> None:
    record = get(tmp_path, spec_of(remote(server, sha256=sha256_of(server.content))))
    assert_has_content(tmp_path)
    assert record["content"] == {"base": digest(BASE), "queries": digest(QUERIES)} and record["content_pinned"]
    assert (record["rows"], record["queries"], record["dim"]) == (300, 20, 4)
    assert record["source"]["kind"] == "url" and record["source"]["entry"]["url"] == server.address
    assert record["source"]["files"] == {"made.hdf5": sha256_of(server.content)}
    assert record["skipped"] == [] and record["shipped"] is None
    verify_outputs(tmp_path / "out" / "record.json", record)


def test_a_second_run_downloads_nothing(server: Server, tmp_path: Path) -> None:
    for _ in range(2):
        get(tmp_path, spec_of(remote(server)))
    assert len(server.requests) == 1


def test_a_file_damaged_in_the_cache_is_downloaded_anew(server: Server, tmp_path: Path) -> None:
    entry = remote(server, sha256=sha256_of(server.content))
    get(tmp_path, spec_of(entry))
    (cached,) = (tmp_path / "cache").rglob("made.hdf5")
    cached.write_bytes(b"damaged")
    get(tmp_path, spec_of(entry))
    assert_has_content(tmp_path)


@pytest.mark.parametrize("pinned", [True, False])
def test_an_interrupted_download_goes_on_where_it_ended(server: Server, pinned: bool, tmp_path: Path) -> None:
    server.cuts = [1000, 500]
    found = fetch(server.address, tmp_path / "a", sha256_of(server.content) if pinned else None)
    assert found == sha256_of(server.content) and (tmp_path / "a").read_bytes() == server.content
    assert [request.get("Range") for request in server.requests] == [None, "bytes=1000-", "bytes=1500-"]
    assert server.sent == len(server.content), "no byte was sent twice"


def test_a_later_run_resumes_what_an_earlier_one_left(server: Server, tmp_path: Path) -> None:
    server.cuts = [1000, 0, 0, 0]
    with pytest.raises(DataError, match=r"the download ended after 1000 of \d+ bytes"):
        fetch(server.address, tmp_path / "a")
    assert not (tmp_path / "a").exists()
    server.cuts = []
    assert fetch(server.address, tmp_path / "a") == sha256_of(server.content)
    assert server.sent == len(server.content)
    assert {path.name for path in tmp_path.iterdir()} == {"a", "a.lock", "served.hdf5"}


def test_a_file_that_changed_meanwhile_is_not_spliced(server: Server, tmp_path: Path) -> None:
    server.cuts = [1000, 0, 0, 0]
    with pytest.raises(DataError):
        fetch(server.address, tmp_path / "a")
    server.content, server.etag, server.cuts = server.content[::-1], '"two"', []
    assert fetch(server.address, tmp_path / "a") == sha256_of(server.content)


def test_without_etag_or_sha256_a_download_starts_over(server: Server, tmp_path: Path) -> None:
    server.etag, server.cuts = None, [1000]
    assert fetch(server.address, tmp_path / "a") == sha256_of(server.content)
    assert [request.get("Range") for request in server.requests] == [None, None]


def test_a_server_that_cannot_resume_sends_the_file_from_its_beginning(server: Server, tmp_path: Path) -> None:
    server.ranges, server.cuts = False, [1000]
    assert fetch(server.address, tmp_path / "a") == sha256_of(server.content)


def test_a_download_that_was_complete_but_not_renamed_is_taken(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.part").write_bytes(server.content)
    assert fetch(server.address, tmp_path / "a", sha256_of(server.content)) == sha256_of(server.content)
    assert server.sent == 0


def test_a_wrong_beginning_is_found_out_by_the_sha256(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.part").write_bytes(b"x" * 1000)
    assert fetch(server.address, tmp_path / "a", sha256_of(server.content)) == sha256_of(server.content)


def test_a_file_shorter_than_the_server_said_is_refused(server: Server, tmp_path: Path) -> None:
    server.stated_length = len(server.content) + 10
    server.ranges = False
    with pytest.raises(DataError, match=f"ended after {len(server.content)} of {len(server.content) + 10} bytes"):
        fetch(server.address, tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_after_a_wrong_sha256_the_next_source_is_used(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = get(tmp_path, spec_of(remote(server, sha256="0" * 64), local(tmp_path / "served.hdf5")))
    assert_has_content(tmp_path)
    assert record["source"]["kind"] == "file"
    assert "differs from the declared" in record["skipped"][0]["reason"]
    assert re.search(
        r"^made: skipped its source of kind url: .*differs from the declared", capsys.readouterr().err, re.M
    )
    assert not list((tmp_path / "cache").rglob("made.hdf5*.part")), "nothing is left to resume from"


def test_two_that_want_the_same_file_download_it_once(server: Server, tmp_path: Path) -> None:
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(fetch(server.address, tmp_path / "a"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [sha256_of(server.content)] * 4 and len(server.requests) == 1


def test_a_file_that_was_changed_after_it_was_read_is_known_and_one_that_is_gone_is_none(tmp_path: Path) -> None:
    file = hdf5_file(tmp_path / "mine.hdf5")
    source = get(tmp_path, spec_of(local(file), pinned=False))["source"]
    assert sources.changed_since(source) == []
    hdf5_file(file, ANOTHER)
    assert sources.changed_since(source) == [file]
    file.unlink()
    assert sources.changed_since(source) == []
    elsewhere = {**source, "entry": {**source["entry"], "path": "$NOT_SET_HERE/mine.hdf5"}}
    assert sources.changed_since(elsewhere) == []


def test_without_a_network_the_user_reads_each_source_and_its_reason(
    refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "_PAUSE_S", 0.0)
    with pytest.raises(DataError) as raised:
        get(tmp_path, spec_of({"kind": "url", "url": refused, "format": "hdf5"}, local(tmp_path / "nowhere.hdf5")))
    sentence = str(raised.value)
    assert sentence.startswith("dataset made: no source has its content")
    assert f"{refused}: can't be reached (Connection refused)" in sentence
    assert "nowhere.hdf5: missing" in sentence and "\n" not in sentence
    assert not (tmp_path / "out" / "record.json").exists()


@pytest.mark.parametrize(("status", "requests"), [(404, 1), (503, 3)])
def test_a_refusal_is_final_and_a_server_error_is_tried_again(
    server: Server, status: int, requests: int, tmp_path: Path
) -> None:
    server.status = status
    with pytest.raises(DataError, match=f"the server answered {status}"):
        fetch(server.address, tmp_path / "a")
    assert len(server.requests) == requests


def test_an_error_page_in_place_of_the_file_is_not_kept(server: Server, tmp_path: Path) -> None:
    whole, server.content = server.content, b"<html>be back soon</html>"
    with pytest.raises(DataError, match=r"made\.hdf5: not a whole HDF5 file"):
        get(tmp_path, spec_of(remote(server)))
    server.content = whole
    get(tmp_path, spec_of(remote(server)))
    assert_has_content(tmp_path)


def test_proxies_of_the_environment_are_used(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", server.address.removesuffix("/made.hdf5"))
    monkeypatch.setenv("no_proxy", "")
    assert fetch("http://dataset.invalid/made.hdf5", tmp_path / "a") == sha256_of(server.content)


# The first rows of a file, by byte range


def big_ann(values: NDArray[Any], rows: int | None = None) -> bytes:
    return struct.pack("<II", len(values) if rows is None else rows, values.shape[1]) + values.tobytes()


@pytest.mark.parametrize(("format", "dtype"), [("fbin", "<f4"), ("u8bin", "u1"), ("i8bin", "i1")])
def test_only_the_first_rows_are_fetched_and_the_header_says_how_many_they_are(
    server: Server, tmp_path: Path, format: str, dtype: str
) -> None:
    values = (np.arange(4000) % 100 - (50 if dtype != "u1" else 0)).reshape(1000, 4).astype(dtype)
    server.content = big_ann(values)
    (tmp_path / "q").write_bytes(big_ann(values[-5:]))
    entry = {"kind": "url", "base": server.address, "format": format, "first_rows": 30, "queries": server.address}
    record = get(tmp_path, spec_of(entry, rows=30, queries=1000, pinned=False))
    assert (np.load(tmp_path / "out" / "base.npy") == values[:30]).all()
    rows_sent = 8 + 30 * values.dtype.itemsize * 4
    assert {request.get("Range") for request in server.requests} == {None, "bytes=0-7", f"bytes=0-{rows_sent - 1}"}
    notes = record["source"]["notes"]
    assert notes == {"made.hdf5.first-30": "the first 30 of 1000 rows, by byte range; the header says 30"}
    assert (tmp_path / "cache" / "url").rglob("*first-30").__next__().stat().st_size == rows_sent


def test_a_prefix_that_was_interrupted_goes_on_where_it_ended(server: Server, tmp_path: Path) -> None:
    server.content, server.cuts = big_ann(BASE), [8, 1000, 500]
    assert fetching.fetch_rows(server.address, tmp_path / "x", 200, np.dtype("<f4"))[1] == 300
    asked = [request.get("Range") for request in server.requests]
    assert asked == ["bytes=0-7", "bytes=0-3207", "bytes=1000-3207", "bytes=1500-3207"]
    assert (tmp_path / "x").read_bytes() == big_ann(BASE[:200])
    fetching.fetch_rows(server.address, tmp_path / "x", 200, np.dtype("<f4"))
    assert len(server.requests) == 4, "what is there is not asked for again"


def test_of_a_server_without_ranges_no_more_than_the_prefix_is_read(server: Server, tmp_path: Path) -> None:
    server.content, server.ranges = big_ann(BASE), False
    fetching.fetch_rows(server.address, tmp_path / "x", 7, np.dtype("<f4"))
    assert (tmp_path / "x").read_bytes() == big_ann(BASE[:7])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (big_ann(BASE, rows=301), "bytes long, but its header states 301 rows of dim 4"),
        (big_ann(BASE[:100]), "holds 100 rows of dim 4, fewer than the 200 rows of the config"),
        (b"<html>", "is 6 bytes long, shorter than the 8 bytes of the config"),
        (struct.pack("<II", 9, 0), "holds 9 rows of dim 0"),
    ],
)
def test_a_file_that_is_not_as_its_header_says_has_no_first_rows(
    server: Server, tmp_path: Path, content: bytes, said: str
) -> None:
    server.content = content
    with pytest.raises(DataError, match=said):
        fetching.fetch_rows(server.address, tmp_path / "x", 200, np.dtype("<f4"))
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (
            {"base": "http://h/a", "queries": "http://h/b", "format": "npy"},
            "first_rows needs separate files of format fbin, u8bin, i8bin",
        ),
        ({"url": "http://h/a", "format": "hdf5"}, "first_rows needs separate files of format fbin"),
        (
            {"base": "http://h/a", "queries": "http://h/b", "format": "fbin", "sha256": {"base": "0" * 64}},
            "sha256.base: is for whole files",
        ),
    ],
)
def test_first_rows_of_what_has_none_are_refused(tmp_path: Path, entry: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        get(tmp_path, spec_of({"kind": "url", "first_rows": 3, **entry}))


# The file and debian sources, and what may be in an entry


def fvecs(values: NDArray[Any]) -> bytes:
    return b"".join(struct.pack("<i", len(row)) + row.tobytes() for row in values)


def test_parts_in_separate_files_bring_their_truth_along(tmp_path: Path) -> None:
    truth = np.tile(np.arange(5, dtype="<i4"), (20, 1))
    for name, values in (("base.fvecs", BASE), ("query.fvecs", QUERIES), ("truth.ivecs", truth)):
        (tmp_path / name).write_bytes(fvecs(values))
    entry = {
        "kind": "file",
        "format": "fvecs",
        "base": str(tmp_path / "base.fvecs"),
        "queries": str(tmp_path / "query.fvecs"),
        "neighbors": str(tmp_path / "truth.ivecs"),
    }
    record = get(tmp_path, spec_of(entry))
    assert_has_content(tmp_path)
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "shipped_ids.npy"), truth)
    assert record["shipped"] == {"k": 5, "distances": None} and len(record["source"]["files"]) == 3


def test_files_of_one_name_in_two_folders_are_each_held_to_their_digest(tmp_path: Path) -> None:
    entry: dict[str, Any] = {"kind": "file", "format": "npy", "sha256": {}}
    for part, values in (("base", BASE), ("queries", QUERIES)):
        path = tmp_path / part / "vectors.npy"
        path.parent.mkdir()
        np.save(path, values)
        entry |= {part: str(path)}
        entry["sha256"][part] = hashlib.sha256(path.read_bytes()).hexdigest()
    files = get(tmp_path / "1", spec_of(entry, pinned=False))["source"]["files"]
    assert list(files) == ["vectors.npy", "queries/vectors.npy"], "and no folder of this machine"
    np.save(tmp_path / "queries" / "vectors.npy", QUERIES + 1)
    with pytest.raises(DataError, match="sha256"):
        get(tmp_path / "2", spec_of(entry, pinned=False))


@pytest.mark.parametrize(("metric", "expected"), [("l2", 9.0), ("cosine", 3.0)])
def test_shipped_distances_become_canonical(metric: str, expected: float, tmp_path: Path) -> None:
    truth = {"neighbors": np.zeros((20, 1), dtype="i4"), "distances": np.full((20, 1), 3, dtype="f4")}
    path = hdf5_file(tmp_path / "a.hdf5", **truth)
    get(tmp_path, spec_of(local(path), metric=metric))
    assert (np.load(tmp_path / "out" / "shipped_distances.npy") == expected).all()


@pytest.mark.parametrize(
    ("truth", "because"),
    [
        ({"neighbors": np.full((20, 2), 300)}, "holds neighbor 300, but the base has 300 rows"),
        ({"neighbors": np.zeros((19, 2), dtype="i4")}, "neighbors of 19 queries"),
        ({"neighbors": np.zeros((20, 2), dtype="i4"), "distances": np.zeros((20, 3), "f4")}, r"shape \(20, 3\)"),
    ],
)
def test_shipped_truth_that_does_not_fit_the_vectors_is_refused(
    truth: dict[str, Any], because: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=because):
        get(tmp_path, spec_of(local(hdf5_file(tmp_path / "a.hdf5", **truth))))
    assert list((tmp_path / "out").iterdir()) == [], "nothing is left of a source that was refused"


APT = """#!{python}
import os, pathlib, sys
log = pathlib.Path(os.environ["APT_LOG"])
options = " ".join(sys.argv[1:])
log.write_text((log.read_text() if log.exists() else "") + options + "\\n")
own_lists = [a.partition("=")[2] for a in sys.argv if a.startswith("Dir::State::lists=")]
if sys.argv[-1] == "update":
    if os.environ.get("APT_OFFLINE"):
        sys.exit("W: something else\\nE: Failed to fetch http://user:password@mirror.invalid/x  Could not resolve")
    pathlib.Path(own_lists[0], "list").write_text("")
elif own_lists and pathlib.Path(own_lists[0], "list").exists() or os.environ.get("APT_KNOWS"):
    pathlib.Path(sys.argv[-1] + "_1_all.deb").write_text("package")
else:
    sys.exit("E: Unable to locate package " + sys.argv[-1])
"""
DPKG = """#!{python}
import os, pathlib, shutil, sys
shutil.copytree(os.environ["APT_TREE"], sys.argv[-1], symlinks=True)
"""


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for apt-get and dpkg-deb: the tests need neither a network nor Debian. Returns the log of calls."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, script in (("apt-get", APT), ("dpkg-deb", DPKG)):
        (tools / name).write_text(script.format(python=sys.executable))
        (tools / name).chmod(0o755)
    images = tmp_path / "tree" / "usr" / "share"
    images.mkdir(parents=True)
    for name, values in (("train.gz", BASE), ("test.gz", QUERIES)):
        header = struct.pack(">HBBIII", 0, 0x0D, 3, len(values), 2, 2)
        (images / name).write_bytes(gzip.compress(header + values.astype(">f4").tobytes()))
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setenv("APT_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("APT_TREE", str(tmp_path / "tree"))
    return tmp_path / "log"


DEBIAN = {
    "kind": "debian",
    "package": "images",
    "format": "idx",
    "base": "usr/share/train.gz",
    "queries": "usr/share/test.gz",
}


def test_a_package_is_had_through_private_lists_where_the_systems_do_not_know_it(apt: Path, tmp_path: Path) -> None:
    record = get(tmp_path, spec_of(DEBIAN))
    assert_has_content(tmp_path)
    first, update, second = apt.read_text().splitlines()
    assert first.endswith("download images") and "Dir::State::lists" not in first
    assert update.endswith("update") and "Dir::State::lists=" in update
    assert second.endswith("download images") and "Dir::State::lists=" in second
    assert all("Dir::Cache=" in call and "Debug::NoLocking=1" in call for call in (first, update, second))
    assert set(record["source"]["files"]) == {"images_1_all.deb", "train.gz", "test.gz"}
    get(tmp_path, spec_of(DEBIAN))
    assert len(apt.read_text().splitlines()) == 3, "the second time the package comes from the cache"


def test_lists_are_not_renewed_where_the_systems_know_the_package(
    apt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APT_KNOWS", "1")
    get(tmp_path, spec_of(DEBIAN))
    assert len(apt.read_text().splitlines()) == 1


def test_a_package_that_cannot_be_had_gives_the_reason_without_the_mirrors_address(
    apt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APT_OFFLINE", "1")
    with pytest.raises(DataError, match=r"apt-get: Failed to fetch .* Could not resolve") as raised:
        get(tmp_path, spec_of(DEBIAN))
    assert "mirror.invalid" not in str(raised.value) and "password" not in str(raised.value)
    assert not (tmp_path / "cache" / "debian" / "images").exists()


@pytest.mark.parametrize("absolute", [True, False])
def test_a_link_of_a_package_is_followed_within_the_package_only(apt: Path, tmp_path: Path, absolute: bool) -> None:
    images, outside = tmp_path / "tree" / "usr" / "share", tmp_path / "outside.gz"
    outside.write_bytes((images / "train.gz").read_bytes())
    (images / "train.gz").rename(images / "real.gz")
    (images / "train.gz").symlink_to("real.gz")
    get(tmp_path, spec_of(DEBIAN))
    shutil.rmtree(tmp_path / "cache")
    (images / "train.gz").unlink()
    (images / "train.gz").symlink_to(outside if absolute else "../" * 20 + str(outside)[1:])
    with pytest.raises(DataError, match=r"train\.gz is a link that points outside of the package"):
        get(tmp_path, spec_of(DEBIAN))


def test_without_apt_the_debian_source_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    record = get(tmp_path, spec_of(DEBIAN, local(hdf5_file(tmp_path / "a.hdf5"))))
    assert "needs apt-get, which is not installed" in record["skipped"][0]["reason"]


@pytest.mark.parametrize(
    ("entry", "because"),
    [
        ({"kind": "ftp"}, "unknown kind of source 'ftp'"),
        ({"kind": "url", "format": "fvecs", "base": "http://127.0.0.1/a"}, "lacks queries"),
        ({"kind": "url", "format": "fvecs", "url": "http://127.0.0.1/a"}, "only hdf5 can hold base and queries in one"),
        ({"kind": "url", "format": "hdf5", "url": "file:///etc/hostname"}, "use http, https or s3"),
        ({"kind": "url", "format": "hdf5", "url": "http://[::1/a"}, "not a URL"),
        ({"kind": "file", "format": "npy", "base": "a", "queries": "b", "sha256": "00"}, "sha256 needs a key for each"),
        ({"kind": "synthetic", "generator": "dice"}, "unknown generator"),
        ({"kind": "synthetic", "generator": "ann-benchmarks-random", "samples": 10}, "lacks centers"),
    ],
)
def test_an_entry_that_makes_no_sense_is_the_configs_error(entry: dict[str, Any], because: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=because):
        get(tmp_path, spec_of(entry))


def test_random_xs_20_is_that_of_ann_benchmarks_bit_for_bit() -> None:
    """The digests are those of scikit-learn 1.9.1: make_blobs, then train_test_split."""
    base, queries = ann_benchmarks_random(samples=10000, dim=20, centers=100, seed=1)
    assert (base.shape, queries.shape) == ((9000, 20), (1000, 20))
    assert digest(base) == "19b19c5fbd9bf17f59b81c134eaee6a708b05f9318b15bc37acdfd6946e8a4e6"
    assert digest(queries) == "3911165a1580b7dcb5f7287f1ec26369ef3e5436661145b56f2ce47bacf6953c"
    # Neither count divides: the first blobs get the rest, and the tenth is rounded up.
    base, queries = ann_benchmarks_random(samples=1003, dim=7, centers=9, seed=5)
    assert (base.shape, queries.shape) == ((902, 7), (101, 7))
    assert digest(base) == "a36e4d2e4130586364bbbb5712c0f8da806a7bd92d17a1b30da97708d07967ac"
    assert digest(queries) == "9795b89c1a81d7eca9af00b4f18359eb346b9b30722da57dfaa22f3f7afc5510"


def test_a_synthetic_dataset_needs_no_network(tmp_path: Path) -> None:
    entry = {"kind": "synthetic", "generator": "ann-benchmarks-random", "samples": 100, "centers": 3, "seed": 1}
    record = get(tmp_path, spec_of(entry, pinned=False, rows=90, queries=10, dim=5))
    assert np.load(tmp_path / "out" / "base.npy").shape == (90, 5)
    assert record["source"]["entry"] == entry and not record["content_pinned"]


def test_a_synthetic_dataset_of_any_size_is_made_block_by_block(tmp_path: Path) -> None:
    entry = {"kind": "synthetic", "generator": "blobs", "samples": 20_100, "centers": 3, "seed": 1}
    get(tmp_path, spec_of(entry, pinned=False, rows=20_000, queries=100, dim=5))
    base, queries = (np.load(tmp_path / "out" / f"{name}.npy") for name in ("base", "queries"))
    assert (base.shape, queries.shape) == ((20_000, 5), (100, 5))
    together = np.concatenate(list(blobs(range(20_100), 5, 3, 1)))
    np.testing.assert_array_equal(together, np.concatenate([base, queries]))
    assert digest(base) == "3b8bc1209884110c47dab129c3f12282900e7d145447d19f494220d29d88d5c0"


# Content


def test_other_content_under_the_same_name_is_refused_and_the_next_source_used(tmp_path: Path) -> None:
    wrong, right = hdf5_file(tmp_path / "wrong.hdf5", ANOTHER), hdf5_file(tmp_path / "right.hdf5")
    record = get(tmp_path, spec_of(local(wrong), local(right)))
    assert_has_content(tmp_path)
    assert re.search(r"wrong\.hdf5: its base have sha256 .* not the declared", record["skipped"][0]["reason"])


def test_content_not_declared_is_recorded_as_found_and_not_pinned(tmp_path: Path) -> None:
    record = get(tmp_path, spec_of(local(hdf5_file(tmp_path / "a.hdf5", ANOTHER)), pinned=False))
    assert record["content"]["base"] == digest(ANOTHER) and record["content_pinned"] is False


@pytest.mark.parametrize("changes", [{"rows": 299}, {"queries": 21}, {"dim": 5}])
def test_another_shape_than_declared_is_refused(changes: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.hdf5: holds \d+ vectors of dim 4 .* but the config states"):
        get(tmp_path, spec_of(local(hdf5_file(tmp_path / "a.hdf5")), **changes))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
def test_nan_and_infinity_are_refused_with_the_first_row(bad: float, tmp_path: Path) -> None:
    base = BASE.astype(np.float64)
    base[[123, 200], 2] = bad
    with pytest.raises(DataError, match=r"a\.hdf5: row 123 holds NaN or infinity"):
        get(tmp_path, spec_of(local(hdf5_file(tmp_path / "a.hdf5", base)), pinned=False))


def test_a_failed_run_leaves_no_record_of_an_earlier_one(tmp_path: Path) -> None:
    path = hdf5_file(tmp_path / "a.hdf5")
    get(tmp_path, spec_of(local(path)))
    path.unlink()
    with pytest.raises(DataError):
        get(tmp_path, spec_of(local(path)))
    assert list((tmp_path / "out").iterdir()) == []


# Normalize


def prepared(
    folder: Path,
    metric: str,
    prefix: int | None = None,
    base: Floats = BASE,
    queries: Floats = QUERIES,
    zero_vectors: str = "refuse",
    **truth: Any,
) -> dict[str, Any]:
    entry = local(hdf5_file(folder / "a.hdf5", base, queries, **truth))
    get(folder, spec_of(entry, pinned=False, rows=len(base), dim=base.shape[1], metric=metric))
    spec = {"metric": metric, "prefix": prefix, "seed": 7, "zero_vectors": zero_vectors}
    return normalize.run(spec, folder / "out", folder / "vectors", key="n")


def test_cosine_vectors_have_length_1_and_their_direction(tmp_path: Path) -> None:
    scales = np.logspace(-30, 30, len(BASE), dtype=np.float32)[:, np.newaxis]
    record = prepared(tmp_path, "cosine", base=BASE * scales)
    base = np.load(tmp_path / "vectors" / "base.npy")
    np.testing.assert_allclose(np.linalg.norm(base.astype(float), axis=1), 1, rtol=1e-7)
    lengths = np.linalg.norm(BASE.astype(float), axis=1, keepdims=True)
    np.testing.assert_allclose(base, BASE / lengths, rtol=1e-6)
    assert record["content"]["base"] == digest(base) and record["zero_vectors"] == {"base": 0, "queries": 0}
    assert "divided by its length" in record["rule"]


def with_zeros() -> dict[str, Floats]:
    base, queries = BASE.copy(), QUERIES.copy()
    base[[5, 299]], queries[3] = 0, 0
    return {"base": base, "queries": queries}


@pytest.mark.parametrize(("metric", "rule"), [("l2", "refuse"), ("cosine", "keep")])
def test_zero_vectors_that_are_kept_stay_zero_and_are_counted(metric: str, rule: str, tmp_path: Path) -> None:
    record = prepared(tmp_path, metric, **with_zeros(), zero_vectors=rule)
    assert record["zero_vectors"] == {"base": 2, "queries": 1}
    assert (np.load(tmp_path / "vectors" / "base.npy")[[5, 299]] == 0).all()


def test_zero_vectors_under_cosine_are_refused_with_their_number_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"2 of 300 rows and 1 of .* queries are zero.*zero_vectors.*leave_out or keep"):
        prepared(tmp_path, "cosine", **with_zeros())
    assert not (tmp_path / "vectors").exists()


@pytest.mark.parametrize("prefix", [None, 200])
def test_zero_vectors_that_are_left_out_leave_fewer_rows_and_no_truth_of_the_source(
    prefix: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = np.zeros((len(QUERIES), 10), np.int32)
    found = with_zeros()
    record = prepared(tmp_path, "cosine", prefix, **found, zero_vectors="leave_out", neighbors=ids)
    asked = found["base"][:prefix]
    rest = asked[asked.any(axis=1)]
    base, queries = (np.load(tmp_path / "vectors" / f"{name}.npy") for name in ("base", "queries"))
    np.testing.assert_allclose(base, rest / np.linalg.norm(rest, axis=1, keepdims=True), rtol=1e-5)
    assert (record["rows"], record["queries"]) == (len(base), len(queries)) == (len(rest), len(QUERIES) - 1)
    assert record["raw_bytes"] == base.nbytes and record["content"]["base"] == digest(base)
    assert len(np.load(tmp_path / "vectors" / "price.npy")) == len(rest)
    assert record["zero_vectors"] == {"base": len(asked) - len(rest), "queries": 1}
    assert not list((tmp_path / "vectors").glob("shipped_*"))
    assert "are zero: zero vectors left out" in capsys.readouterr().err


def test_l2_vectors_are_not_touched_and_take_no_second_place_on_disk(tmp_path: Path) -> None:
    record = prepared(tmp_path, "l2")
    for name in ("base", "queries"):
        assert (tmp_path / "vectors" / f"{name}.npy").samefile(tmp_path / "out" / f"{name}.npy")
    assert record["content"]["base"] == digest(BASE) and record["raw_bytes"] == 300 * 4 * 4
    verify_outputs(tmp_path / "vectors" / "record.json", record)


def test_where_files_cannot_be_linked_they_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("not on this file system")

    monkeypatch.setattr(os, "link", refuse)
    prepared(tmp_path, "l2")
    copy = tmp_path / "vectors" / "base.npy"
    assert not copy.samefile(tmp_path / "out" / "base.npy")
    np.testing.assert_array_equal(np.load(copy), BASE)


@pytest.mark.parametrize("metric", ["l2", "cosine"])
def test_a_prefix_is_the_first_rows_and_does_not_inherit_the_truth_of_all(metric: str, tmp_path: Path) -> None:
    truth = {"neighbors": np.full((20, 1), 250, dtype="i4"), "distances": np.ones((20, 1), dtype="f4")}
    record = prepared(tmp_path, metric, **truth)
    whole = {path.name: np.load(path) for path in (tmp_path / "vectors").glob("*.npy")}
    assert {"shipped_ids", "shipped_distances"} <= record["outputs"].keys()
    record = prepared(tmp_path, metric, prefix=100, **truth)
    assert record["rows"] == 100 and record["raw_bytes"] == 100 * 4 * 4
    for name in ("base.npy", "category.npy", "price.npy"):
        part = np.load(tmp_path / "vectors" / name)
        np.testing.assert_array_equal(part, whole[name][:100])
    assert not (tmp_path / "vectors" / "shipped_ids.npy").exists()
    assert record["outputs"].keys() == {"base", "queries", "category", "price", "region", "query_region"}


def test_a_prefix_longer_than_the_base_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds 300 rows, fewer than the prefix of 301"):
        prepared(tmp_path, "l2", prefix=301)
    with pytest.raises(ConfigError, match="prefix: must be at least 1"):
        prepared(tmp_path, "l2", prefix=0)


def test_a_download_changed_since_its_record_is_refused(tmp_path: Path) -> None:
    get(tmp_path, spec_of(local(hdf5_file(tmp_path / "a.hdf5"))))
    changed = BASE.copy()
    changed[17, 1] += 1
    np.save(tmp_path / "out" / "base.npy", changed)
    with pytest.raises(DataError, match=r"base\.npy: sha256"):
        normalize.run({"metric": "l2", "prefix": 9, "seed": 7}, tmp_path / "out", tmp_path / "vectors", key="n")


BIG = """
import hashlib, re, sys
from pathlib import Path
import numpy as np
from anncestry.datasets import normalize, truth
from anncestry.provenance.records import write_record

folder = Path(sys.argv[1])
rows, dim = 840_000, 128
block = np.random.default_rng(0).normal(size=(12_000, dim)).astype("<f4")
with open(folder / "base.npy", "wb") as file:
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (rows, dim)})
    for _ in range(rows // len(block)):
        file.write(block.data)
np.save(folder / "queries.npy", block[:5])
files = {name: folder / f"{name}.npy" for name in ("base", "queries")}
body = {"rows": rows, "queries": 5, "dim": dim, "content": {}}
write_record(folder / "record.json", stage="download", key="d", spec={}, body=body, outputs=files)
normalize.run({"metric": "cosine", "prefix": None, "seed": 1}, folder, folder / "vectors", "n")
normalized = int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
truth.run({"metric": "cosine", "filter": None, "depth": 10}, folder / "vectors", folder / "truth", "t")
found = int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
print((folder / "base.npy").stat().st_size >> 20, normalized >> 10, found >> 10)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of memory is read from /proc")
def test_memory_stays_bounded_on_a_file_larger_than_what_is_allowed(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", BIG, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    file_mib, normalize_mib, truth_mib = map(int, done.stdout.split())
    assert file_mib > 400
    assert normalize_mib < 250 and truth_mib < 350, f"peaks {normalize_mib} and {truth_mib} MiB"


# Metadata


def test_columns_have_the_stated_range_and_are_uniform() -> None:
    category, price = metadata.category(100_000, seed=1), metadata.price(100_000, seed=1)
    assert (category.dtype, price.dtype) == (np.uint8, np.float32)
    counts = np.bincount(category, minlength=10)
    assert len(counts) == 10 and abs(counts - 10_000).max() < 500
    deciles, _ = np.histogram(price, bins=10, range=(10, 1000))
    assert deciles.sum() == 100_000 and abs(deciles - 10_000).max() < 500
    assert abs(np.corrcoef(category, price)[0, 1]) < 0.02, "the columns are independent of each other"


@pytest.mark.parametrize("column", [metadata.category, metadata.price])
def test_a_row_has_the_same_value_in_every_prefix_and_another_under_another_seed(
    column: Callable[..., NDArray[Any]],
) -> None:
    whole = column(1000, 5)
    np.testing.assert_array_equal(column(10, 5), whole[:10])
    np.testing.assert_array_equal(column(10, 5, start=990), whole[990:])
    assert (column(1000, 6) != whole).mean() > 0.8


def test_the_values_are_fixed_for_good() -> None:
    """Whoever changes them changes every filtered truth ever published."""
    assert metadata.category(8, seed=42).tolist() == [2, 0, 4, 8, 9, 4, 3, 8]
    assert metadata.price(3, seed=42).tolist() == [902.6243896484375, 978.2992553710938, 55.65214538574219]


def test_filters_let_through_what_they_say() -> None:
    category = np.array([0, 1, 4, 7, 9], dtype=np.uint8)
    price = np.array([10, 20, 30, 40, 1000], dtype=np.float32)

    def passing(filter: dict[str, Any] | None) -> list[int]:
        return np.flatnonzero(metadata.matches(filter, category, price)).tolist()

    assert passing(None) == [0, 1, 2, 3, 4]
    assert passing({"field": "category", "in": [1, 7]}) == [1, 3]
    assert passing({"field": "price", "below": 30}) == [0, 1]
    assert passing({"field": "price", "from": 20, "below": 40}) == [1, 2]
