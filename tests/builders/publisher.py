"""Datasets as others publish them, served by a real HTTP server."""

from __future__ import annotations

import io
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anncestry.cells.config import validate
from anncestry.datasets import download

FLOAT = pa.float32()
ROWS, DIM, ASKED, K = 90, 6, 8, 5
BASE = np.random.default_rng(0).normal(size=(ROWS, DIM)).astype(np.float32)
QUERIES = np.random.default_rng(1).normal(size=(ASKED, DIM)).astype(np.float32)
TRUTH = np.argsort(((QUERIES[:, None] - BASE[None]) ** 2).sum(axis=2), axis=1)[:, :K]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, str]]:
    """A folder and the address under which it is served."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "published"
    folder.mkdir()
    running = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield folder, f"http://127.0.0.1:{running.server_port}"
    running.shutdown()
    running.server_close()


def get(folder: Path, entry: dict[str, Any], **changes: Any) -> dict[str, Any]:
    spec = {"name": "made", "rows": ROWS, "queries": ASKED, "dim": DIM, "metric": "l2", "content": {}, **changes}
    validate(
        {"made": {**{k: v for k, v in spec.items() if k != "name"}, "licence": "x", "sources": [entry]}},
        "datasets",
        Path("d"),
    )
    return download.run({**spec, "sources": [entry]}, folder / "out", folder / "cache", key="k")


def assert_has_content(folder: Path) -> None:
    np.testing.assert_array_equal(np.load(folder / "out" / "base.npy"), BASE)
    np.testing.assert_array_equal(np.load(folder / "out" / "queries.npy"), QUERIES)
    np.testing.assert_array_equal(np.load(folder / "out" / "shipped_ids.npy"), TRUTH)


def vectors_file(path: Path, ids: Any, vectors: Any, kind: Any = FLOAT) -> None:
    table = {
        "id": pa.array(ids, pa.int64()),
        "emb": pa.array([list(map(float, row)) for row in vectors], pa.list_(kind)),
    }
    pq.write_table(pa.table(table), path, row_group_size=16)


def publish_set(folder: Path, kind: Any = FLOAT) -> None:
    """Two shuffled files of vectors, queries and neighbours each in an order of their own."""
    shuffled = np.random.default_rng(2).permutation(ROWS)
    for number, ids in enumerate(np.array_split(shuffled, 2)):
        vectors_file(folder / f"shuffle_train-0{number}-of-02.parquet", ids, BASE[ids], kind)
    order = np.random.default_rng(3).permutation(ASKED)
    vectors_file(folder / "test.parquet", order, QUERIES[order], kind)
    other = np.random.default_rng(4).permutation(ASKED)
    neighbors = {"id": pa.array(other), "neighbors_id": pa.array([TRUTH[query].tolist() for query in other])}
    pq.write_table(pa.table(neighbors), folder / "neighbors.parquet")


def a_set(address: str) -> dict[str, Any]:
    files = ["shuffle_train-00-of-02.parquet", "shuffle_train-01-of-02.parquet"]
    return {
        "kind": "parquet",
        "url": f"{address}/",
        "base": files,
        "queries": "test.parquet",
        "neighbors": "neighbors.parquet",
    }


def npy(values: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def archive(path: Path, members: dict[str, bytes], *special: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for info in special:
            tar.addfile(info)
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path
