"""Datasets as others publish them (Parquet by ids, tar archives, JSON lines), fetched from a real HTTP server."""

from __future__ import annotations

import gzip
import io
import json
import re
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anncestry.datasets import fetching, parquet, payload, sources
from anncestry.errors import ConfigError, DataError
from tests.builders.publisher import (
    ASKED,
    BASE,
    DIM,
    FLOAT,
    QUERIES,
    ROWS,
    TRUTH,
    K,
    a_set,
    archive,
    assert_has_content,
    get,
    npy,
    publish_set,
    vectors_file,
)

# Parquet, as VectorDBBench publishes it


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_shuffled_rows_are_placed_by_their_ids_and_truth_goes_with_its_query(
    published: tuple[Path, str], tmp_path: Path, kind: Any
) -> None:
    folder, address = published
    publish_set(folder, kind)
    record = get(tmp_path, a_set(address))
    assert_has_content(tmp_path)
    assert record["shipped"] == {"k": K, "distances": None}
    assert len(record["source"]["files"]) == 4
    for file in folder.iterdir():
        file.unlink()
    get(tmp_path, a_set(address))  # all of it was kept
    assert_has_content(tmp_path)


@pytest.mark.parametrize(
    ("ids", "vectors", "said"),
    [
        ([0, 1, 1], BASE[:3], "an id occurs twice"),
        ([0, 1, 3], BASE[:3], "id 3 is not within the 3 rows stated"),
        ([-1, 1, 2], BASE[:3], "id -1 is not within"),
        ([0, 2], BASE[:2], "no vector for id 1; found 2 of 3"),
        ([0, 1, 2], BASE[:3, :5], "holds vectors of dim 5, but the config states 6"),
    ],
)
def test_ids_that_are_not_those_of_the_rows_are_refused(ids: Any, vectors: Any, said: str, tmp_path: Path) -> None:
    vectors_file(tmp_path / "train.parquet", ids, vectors)
    with pytest.raises(DataError, match=said):
        parquet.place_vectors([tmp_path / "train.parquet"], "id", "emb", 3, DIM, tmp_path / "out.npy")


def test_vectors_of_different_lengths_and_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.parquet"
    pq.write_table(pa.table({"id": [0, 1], "emb": [[1.0, 2.0], [1.0]]}), path)
    with pytest.raises(DataError, match="vectors of different lengths"):
        parquet.place_vectors([path], "id", "emb", 2, 2, tmp_path / "out.npy")
    with pytest.raises(DataError, match="has no column 'vector'; there are id, emb"):
        parquet.place_vectors([path], "id", "vector", 2, 2, tmp_path / "out.npy")
    path.write_bytes(b"PAR1 and nothing")
    with pytest.raises(DataError, match="not a Parquet file"):
        parquet.place_vectors([path], "id", "emb", 2, 2, tmp_path / "out.npy")


def long_lists(path: Path, name: str, rows: int, length: int, kind: Any) -> None:
    """Zeros, of which 30 million take 100 kB: a list of `length` and `rows` - 1 of one value."""
    offsets = np.concatenate([[0], length + np.arange(rows)]).astype(np.int64)
    lists = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(np.zeros(length + rows - 1), kind))
    table = pa.table({"id": pa.array(np.arange(rows)), name: lists})
    pq.write_table(table, path, row_group_size=rows, write_page_index=False)


DOWNLOADING = """
import json, re, sys
from pathlib import Path
from anncestry.datasets import download
from anncestry.errors import DataError
def peak_kib():
    # Not getrusage's: a new program inherits that of who started it.
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
before = peak_kib()
try:
    download.run(json.loads(sys.argv[1]), Path("out"), Path("cache"), "k")
except DataError as error:
    print(error, file=sys.stderr)
print(peak_kib() - before >> 10)
"""


def refused_in_little_memory(folder: Path, entry: dict[str, Any], because: str) -> None:
    """A source that unpacks to hundreds of MiB is refused, having taken few, in memory and on disk."""
    spec = {"name": "made", "rows": ROWS, "queries": ASKED, "dim": DIM, "metric": "l2", "content": {}}
    done = subprocess.run(
        [sys.executable, "-c", DOWNLOADING, json.dumps({**spec, "sources": [entry]})],
        **{"cwd": folder, "capture_output": True, "text": True, "check": True},
    )
    assert re.search(because, done.stderr), done.stderr
    assert int(done.stdout) < 150, f"{done.stdout} MiB more"
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 16 << 20


@pytest.mark.parametrize("part", ["base", "queries", "neighbors"])
def test_a_small_parquet_file_that_unpacks_to_hundreds_of_megabytes_is_refused_in_little_memory(
    published: tuple[Path, str], tmp_path: Path, part: str
) -> None:
    folder, address = published
    publish_set(folder)
    if part == "base":
        long_lists(folder / "shuffle_train-00-of-02.parquet", "emb", ROWS // 2, 50_000_000, FLOAT)
    elif part == "queries":
        long_lists(folder / "test.parquet", "emb", ASKED, 50_000_000, FLOAT)
    else:
        long_lists(folder / "neighbors.parquet", "neighbors_id", ASKED, 30_000_000, pa.int64())
    refused_in_little_memory(tmp_path, a_set(address), r"values in \d+ rows, but at most \d+ rows of \d+ are allowed")


ENDING = """
import os, sys
import pyarrow as pa
import pyarrow.parquet as pq
whole = open(sys.argv[1], "rb").read()
for at in range(len(whole) - 8 - int.from_bytes(whole[-8:-4], "little"), len(whole) - 8):
    damaged = bytearray(whole)
    damaged[at] ^= 1
    child = os.fork()
    if not child:
        os.close(2)
        try:
            group = pq.ParquetFile(pa.BufferReader(bytes(damaged))).metadata.row_group(0)
            group.column(0), group.column(1)
        finally:
            os._exit(0)
    if os.WIFSIGNALED(os.waitpid(child, 0)[1]):
        open(sys.argv[1], "wb").write(damaged)
        sys.exit(0)
sys.exit("no bit of the footer ends Arrow any more: check_sizes needs no process of its own")
"""


def test_a_parquet_footer_that_ends_the_process_that_reads_it_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"id": np.arange(ROWS), "emb": list(BASE)}), path)
    parquet.check_sizes(path, "id", "emb", ROWS, DIM)
    subprocess.run([sys.executable, "-c", ENDING, str(path)], check=True)
    with pytest.raises(DataError, match=r"x\.parquet: not a Parquet file \(its footer can't be read\)"):
        parquet.check_sizes(path, "id", "emb", ROWS, DIM)


def test_truth_that_lacks_a_query_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [0, 2], "neighbors_id": [[1], [2]]}), tmp_path / "n.parquet")
    with pytest.raises(DataError, match="holds no neighbours for query 1"):
        parquet.place_neighbors(tmp_path / "n.parquet", "id", "neighbors_id", np.arange(3), tmp_path / "out.npy")


# Archives, as TEXMEX and Qdrant publish them


def vecs(values: Any, kind: str) -> bytes:
    return b"".join(np.int32(len(row)).tobytes() + row.astype(kind).tobytes() for row in np.asarray(values))


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


TEXMEX = {
    "./sift/sift_base.fvecs": vecs(BASE, "<f4"),
    "sift/sift_learn.fvecs": b"not wanted",
    "sift/sift_query.fvecs": vecs(QUERIES, "<f4"),
    "sift/sift_groundtruth.ivecs": vecs(TRUTH, "<i4"),
}
SIFT = {
    "kind": "archive",
    "format": "fvecs",
    "base": "sift/sift_base.fvecs",
    "queries": "sift/sift_query.fvecs",
    "neighbors": "sift/sift_groundtruth.ivecs",
}


def test_members_of_a_tar_are_unpacked_and_nothing_else(published: tuple[Path, str], tmp_path: Path) -> None:
    folder, address = published
    archive(folder / "sift.tar.gz", TEXMEX)
    get(tmp_path, {**SIFT, "url": f"{address}/sift.tar.gz"})
    assert_has_content(tmp_path)
    assert not list((tmp_path / "cache").rglob("*learn*"))
    (folder / "sift.tar.gz").unlink()
    get(tmp_path, {**SIFT, "url": f"{address}/sift.tar.gz"})
    get(tmp_path / "again", {**SIFT, "path": str(archive(tmp_path / "own.tar.gz", TEXMEX))})


@pytest.mark.parametrize(
    ("name", "special"),
    [
        ("a", link("a", "/etc/passwd")),
        ("a", link("a", "../../outside", tarfile.LNKTYPE)),
        ("a", link("a", "", tarfile.FIFOTYPE)),
        ("a", link("a", "", tarfile.DIRTYPE)),
    ],
)
def test_a_member_that_is_no_plain_file_is_refused(name: str, special: tarfile.TarInfo, tmp_path: Path) -> None:
    path = archive(tmp_path / "x.tar.gz", {}, special)
    with pytest.raises(DataError, match="a is not a plain file"):
        fetching.extract(path, {name: 1 << 20}, tmp_path / "to")
    assert not list((tmp_path / "to").iterdir())


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside", "a/../../outside"])
def test_a_name_that_leads_out_of_the_archive_is_refused(name: str, tmp_path: Path) -> None:
    path = archive(tmp_path / "x.tar.gz", {name: b"x", "a": b"y"})
    with pytest.raises(DataError, match="points outside of the archive"):
        fetching.extract(path, {"a": 1 << 20}, tmp_path / "to")
    with pytest.raises(DataError, match="points outside of the archive"):
        fetching.extract(path, {name: 1 << 20}, tmp_path / "to")
    assert not (tmp_path / "outside").exists()


def test_an_archive_that_is_damaged_or_lacks_a_member_is_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "x.tar.gz", {"a": np.random.default_rng(0).bytes(200_000)})
    with pytest.raises(DataError, match="holds no b"):
        fetching.extract(path, {"b": 1 << 20}, tmp_path / "to")
    path.write_bytes(path.read_bytes()[:50_000])
    with pytest.raises(DataError, match="damaged or no tar archive"):
        fetching.extract(path, {"a": 1 << 20}, tmp_path / "to")
    path.write_bytes(b"<html>not found</html>")
    with pytest.raises(DataError, match="damaged or no tar archive"):
        fetching.extract(path, {"a": 1 << 20}, tmp_path / "to")


@pytest.mark.parametrize("packed", ["gz", "xz"])
def test_a_small_archive_that_unpacks_to_hundreds_of_megabytes_is_refused_before_it_does(
    packed: str, tmp_path: Path
) -> None:
    """126 bytes wrote 300 MiB."""
    zeros = bytes(300 << 20)
    with tarfile.open(tmp_path / "set.tgz", f"w:{packed}") as tar:
        info = tarfile.TarInfo("base.npy")
        info.size = len(zeros)
        tar.addfile(info, io.BytesIO(zeros))
    entry = {"kind": "archive", "path": "set.tgz", "format": "npy", "base": "base.npy", "queries": "tests.jsonl"}
    refused_in_little_memory(tmp_path, entry, r"base.npy has 314572800 bytes, but the config allows at most \d+")


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK])
def test_properties_of_members_that_fill_memory_are_not_read(kind: bytes, tmp_path: Path) -> None:
    info = tarfile.TarInfo("base.npy")
    info.type, info.size = kind, 300 << 20
    with gzip.open(tmp_path / "set.tgz", "wb") as file:
        file.write(info.tobuf(tarfile.GNU_FORMAT))
        for _ in range(300):
            file.write(bytes(1 << 20))
    entry = {"kind": "archive", "path": "set.tgz", "format": "npy", "base": "base.npy", "queries": "tests.jsonl"}
    refused_in_little_memory(tmp_path, entry, "314572800 bytes of properties of a member")


def test_a_sparse_member_is_refused(tmp_path: Path) -> None:
    info = tarfile.TarInfo("a")
    info.type = tarfile.GNUTYPE_SPARSE
    with pytest.raises(DataError, match="'a' is a sparse file"):
        fetching.extract(archive(tmp_path / "x.tar.gz", {}, info), {"a": 1 << 20}, tmp_path / "to")


def lines_of(conditions: Any = None) -> bytes:
    lines = [
        {"query": query.tolist(), "conditions": conditions, "closest_ids": near.tolist()}
        for query, near in zip(QUERIES.astype(float), TRUTH, strict=True)
    ]
    return "\n".join(map(json.dumps, lines)).encode() + b"\n"


@pytest.mark.parametrize("conditions", [None, {"and": [{"a": {"match": {"value": 3}}}]}])
def test_queries_of_json_lines_bring_their_truth_only_without_conditions(conditions: Any, tmp_path: Path) -> None:
    path = archive(tmp_path / "set.tgz", {"vectors.npy": npy(BASE), "tests.jsonl": lines_of(conditions)})
    entry = {"kind": "archive", "path": str(path), "format": "npy", "base": "vectors.npy", "queries": "tests.jsonl"}
    record = get(tmp_path, entry)
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "base.npy"), BASE)
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "queries.npy"), QUERIES)
    assert (record["shipped"] is None) == (conditions is not None)
    said = record["source"].get("notes", {}).get("tests.jsonl", "")
    assert ("conditions are not asked" in said) == (conditions is not None), "nobody takes them for filtered ones"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('{"query": [1, 2]}\n{"query": [1]}', "line 2: the query differs in length"),
        ('{"query": [1, 2]}\n{"query"', "line 2: not a JSON object"),
        ('{"query": ["a"]}', "line 1: not a JSON object"),
        ("", "holds no queries"),
        ('{"query": [1, 2]}\n' * 4, "line 4: more than the 3 queries"),
        ('{"query": [1, 2, 3]}', "line 1: the query differs in length from the 2 numbers stated"),
        (
            f'{{"query": [1, 2], "closest_ids": {[0] * 16385}}}',
            "line 1: 16385 closest_ids, but at most 16384 are allowed",
        ),
        (f'{{"query": [1, 2], "more": "{"x" * (1 << 20)}"}}', "line 1: longer than 1048576 bytes"),
        ("x" * (1 << 20), "line 1: not a JSON object"),
    ],
)
def test_a_damaged_or_endless_line_is_named(lines: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(lines)
    with pytest.raises(DataError, match=said):
        payload.place_queries(tmp_path / "t.jsonl", tmp_path / "q.npy", tmp_path / "n.npy", None, 3, 2)


def test_an_entry_without_its_files_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"d: made\.sources\.0"):
        get(Path("x"), {"kind": "parquet", "url": "http://127.0.0.1:1/x", "queries": "test.parquet"})


def test_two_members_of_one_name_are_two_files_and_another_choice_of_members_is_another_folder(tmp_path: Path) -> None:
    members = {"train/vectors.fvecs": vecs(BASE, "<f4"), "test/vectors.fvecs": vecs(QUERIES, "<f4")}
    path = archive(tmp_path / "x.tar.gz", {**members, "more/vectors.fvecs": vecs(QUERIES[::-1], "<f4")})
    entry = {"kind": "archive", "format": "fvecs", "path": str(path), "base": "train/vectors.fvecs"}
    stated = sources.Stated(ROWS, len(QUERIES), DIM, tmp_path / "cache")
    for name, queries in (("test", QUERIES), ("more", QUERIES[::-1])):
        content = sources.obtain({**entry, "queries": f"{name}/vectors.fvecs"}, stated)
        assert content.parts["base"].path != content.parts["queries"].path
        assert content.parts["queries"].path.read_bytes() == vecs(queries, "<f4")
    assert len([each for each in (tmp_path / "cache/archive").iterdir() if each.is_dir()]) == 2


def test_a_local_archive_that_is_not_there_leaves_the_next_source_its_turn(tmp_path: Path) -> None:
    stated = sources.Stated(ROWS, len(QUERIES), DIM, tmp_path / "cache")
    with pytest.raises(DataError, match=r"gone\.tar\.gz: missing"):
        sources.obtain({**SIFT, "path": str(tmp_path / "gone.tar.gz")}, stated)


def test_a_large_file_is_not_forgotten_for_what_the_config_may_have_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_FORGOTTEN_BYTES", 10)
    large, small = tmp_path / "large", tmp_path / "small"
    large.write_bytes(bytes(11))
    small.write_bytes(bytes(10))
    said = rf"no such column; if a file is what is wrong, remove it: {large}$"
    with pytest.raises(DataError, match=said), sources.forgetting([large, small]):
        raise DataError("no such column")
    assert large.exists() and not small.exists()


def test_downloads_give_up_when_whoever_asked_is_ended() -> None:
    begun, seen = threading.Event(), []

    def download() -> None:
        begun.set()
        while not fetching._is_ended():
            time.sleep(0.01)
        seen.append("ended")

    with pytest.raises(KeyboardInterrupt), fetching.downloads(1) as pool:
        pool.submit(download)
        pool.submit(seen.append, "never begun")
        assert begun.wait(600)
        raise KeyboardInterrupt
    assert seen == ["ended"]
