"""The reference graph: built once for the same vectors and settings, never from a file that is not what was written."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from anncestry.measure import reference
from anncestry.measure.reference import Reference
from tests.servers import small_vectors

INDEX = {"type": "hnsw", "M": 8, "ef_construction": 64}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "anncestry" / "reference"


def some(metric: str, rows: int) -> SimpleNamespace:
    """Vectors with the record that names them by their content."""
    record = {"outputs": {"base": {"sha256": f"{metric}-{rows}"}, "queries": {"sha256": "its queries"}}}
    base = small_vectors(metric, rows).base
    return SimpleNamespace(base=base, queries=base[:20] + np.float32(0.1), metric=metric, record=record)


def answers(vectors, shards: int = 1) -> np.ndarray:
    return Reference(vectors, INDEX, shards).search(np.asarray(vectors.base[:50]), 5, 32)


@pytest.mark.parametrize("shards", [1, 3])
def test_the_next_session_takes_the_graph_that_one_before_it_built(cache, capfd, shards):
    vectors = some("cosine", 600)
    first = answers(vectors, shards)
    assert capfd.readouterr().err.count("building") == shards
    assert (answers(vectors, shards) == first).all()
    assert "building" not in capfd.readouterr().err
    assert len(list(cache.glob("*.faiss"))) == shards


def test_other_settings_are_another_graph(cache, capfd):
    vectors = some("l2", 300)
    answers(vectors)
    Reference(vectors, {**INDEX, "M": 16}).search(np.asarray(vectors.base[:5]), 5, 32)
    assert capfd.readouterr().err.count("building") == 2


def test_a_graph_that_is_not_what_was_written_is_built_again(cache, capfd):
    vectors = some("l2", 300)
    first = answers(vectors)
    (path,) = cache.glob("*.faiss")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    capfd.readouterr()
    assert (answers(vectors) == first).mean() > 0.9
    assert "building" in capfd.readouterr().err
    (path,) = cache.glob("*.faiss")
    assert path.read_bytes() != content


def test_graphs_that_were_used_longest_ago_are_forgotten(cache):
    cache.mkdir(parents=True)
    for age, name in enumerate(("new", "middle", "old")):
        (cache / f"{name}.faiss").write_bytes(bytes(100))
        os.utime(cache / f"{name}.faiss", (1000 - age, 1000 - age))
    reference._forget(cache, 250)
    assert sorted(path.stem for path in cache.glob("*.faiss")) == ["middle", "new"]


def test_the_same_rows_of_other_queries_have_other_answers(cache):
    vectors = some("l2", 300)
    rows = np.arange(5)
    _, far = Reference(vectors, INDEX).recall(rows, 5, 32)
    assert (Reference(vectors, INDEX).recall(rows, 5, 32)[1] == far).all()
    vectors.queries = np.asarray(vectors.queries)[::-1]
    vectors.record["outputs"]["queries"] = {"sha256": "others"}
    assert (Reference(vectors, INDEX).recall(rows, 5, 32)[1] != far).any()
