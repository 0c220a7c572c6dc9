"""Sets whose publisher says what queries are filtered by: his filters are ours, and his truth is held against ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anncestry.cells import config
from anncestry.datasets import formats, metadata, normalize, truth
from anncestry.errors import ConfigError, DataError
from tests.builders.publisher import (
    ASKED,
    BASE,
    QUERIES,
    ROWS,
    a_set,
    assert_has_content,
    get,
    publish_set,
)

FAR = ((QUERIES[:, None].astype(float) - BASE[None]) ** 2).sum(axis=2)
HEAD, TAIL = {"field": "id", "from_share": 0.1}, {"field": "id", "from_share": 0.9}


def neighbors_from(first: int, k: int) -> Any:
    return first + np.argsort(FAR[:, first:], axis=1)[:, :k]


def publish_filtered(folder: Path, head: Any = None) -> None:
    publish_set(folder)
    for name, ids in (("head", neighbors_from(9, 7) if head is None else head), ("tail", neighbors_from(81, 6))):
        table = {"id": pa.array(range(ASKED)), "neighbors_id": pa.array(ids.tolist())}
        pq.write_table(pa.table(table), folder / f"neighbors_{name}_1p.parquet", row_group_size=3)


def filtered_set(address: str) -> dict[str, Any]:
    files = [("neighbors_head_1p.parquet", HEAD), ("neighbors_tail_1p.parquet", TAIL)]
    return {**a_set(address), "filtered": [{"neighbors": file, "filter": filter} for file, filter in files]}


def solved(tmp_path: Path, filter: Any, prefix: int | None = None) -> dict[str, Any]:
    spec = {"metric": "l2", "prefix": prefix, "seed": 7}
    normalize.run(spec, tmp_path / "out", tmp_path / "vectors", key="v")
    asked = {"metric": "l2", "filter": filter, "depth": 5}
    return truth.run(asked, tmp_path / "vectors", tmp_path / "truth", key="t")


def test_published_truth_under_a_filter_is_held_against_ours(published: Any, tmp_path: Path) -> None:
    folder, address = published
    publish_filtered(folder)
    record = get(tmp_path, filtered_set(address))
    assert_has_content(tmp_path)
    assert record["shipped_filtered"] == [{"filter": HEAD, "k": 7}, {"filter": TAIL, "k": 6}]
    for filter, first in ((HEAD, 9), (TAIL, 81)):
        found = solved(tmp_path, filter)
        assert (np.load(tmp_path / "truth" / "ids.npy") == neighbors_from(first, 5)).all()
        assert (found["shipped"]["agreement"], found["shipped"]["ranks"]) == (1.0, 5)
        assert (found["matches"], found["selectivity"]) == (ROWS - first, (ROWS - first) / ROWS)
    assert solved(tmp_path, None)["shipped"]["agreement"] == 1.0
    assert solved(tmp_path, {"field": "id", "from_share": 0.5})["shipped"] is None, "nobody published that one"
    assert solved(tmp_path, HEAD, prefix=50)["shipped"] is None, "a prefix has a truth of its own"


@pytest.mark.parametrize("first", [8, 10])
def test_published_truth_of_another_filter_is_refused(published: Any, tmp_path: Path, first: int) -> None:
    folder, address = published
    near = neighbors_from(9, 7)
    near[0] = np.argsort(FAR[0])[:7] if first == 8 else neighbors_from(30, 7)[0]
    publish_filtered(folder, head=near)
    get(tmp_path, filtered_set(address))
    with pytest.raises(DataError, match=r"shipped_filtered_0.npy: the source's truth disagrees .* query 0"):
        solved(tmp_path, HEAD)


def test_a_set_without_ids_and_queries_is_taken_as_it_comes_and_lends_its_last_rows(
    published: Any,
    tmp_path: Path,
) -> None:
    folder, address = published
    every = np.concatenate([BASE, QUERIES])
    for number, part in enumerate(np.array_split(every, 3)):
        column = pa.array(part.astype(float).tolist(), pa.list_(pa.float64()))
        titles = pa.array(["x"] * len(part))
        pq.write_table(pa.table({"_id": titles, "openai": column}), folder / f"{number}.parquet", row_group_size=7)
    entry = {"kind": "parquet", "url": address, "base": [f"{number}.parquet" for number in range(3)]}
    entry |= {"queries": {"last": ASKED}, "columns": {"id": None, "vector": "openai"}}
    assert get(tmp_path, entry)["shipped"] is None
    assert (np.load(tmp_path / "out" / "base.npy") == BASE).all()
    assert (np.load(tmp_path / "out" / "queries.npy") == QUERIES).all()
    with pytest.raises(DataError, match=f"no vector for row {ROWS + ASKED}"):
        get(tmp_path / "more", entry, rows=ROWS + 1)
    with pytest.raises(DataError, match=f"row {ROWS + ASKED - 1} is not within"):
        get(tmp_path / "fewer", entry, rows=ROWS - 1)
    with pytest.raises(ConfigError, match="neighbours need ids"):
        get(tmp_path / "truth", {**entry, "neighbors": "neighbors.parquet"})


WITHOUT_IDS = {"kind": "parquet", "base": ["base.parquet"], "queries": "asked.parquet", "columns": {"id": None}}


def test_a_set_without_ids_may_bring_its_queries_in_a_file_and_lists_of_one_size(
    published: Any, tmp_path: Path
) -> None:
    """As Arrow writes embeddings: a column of lists of fixed size, and nothing else."""
    folder, address = published
    for name, part in (("base", BASE), ("asked", QUERIES)):
        flat = pa.array(part.astype(np.float32).reshape(-1))
        pq.write_table(
            pa.table({"emb": pa.FixedSizeListArray.from_arrays(flat, part.shape[1])}), folder / f"{name}.parquet"
        )
    get(tmp_path, {**WITHOUT_IDS, "url": address})
    assert (np.load(tmp_path / "out" / "base.npy") == BASE).all()
    assert (np.load(tmp_path / "out" / "queries.npy") == QUERIES).all()


def test_an_integer_that_has_no_float32_of_its_own_is_refused_in_every_format(published: Any, tmp_path: Path) -> None:
    folder, address = published
    whole = np.arange(BASE.size).reshape(BASE.shape)
    whole[3, 0] = (1 << 24) + 1
    lists = pa.array(whole.tolist(), pa.list_(pa.int64()))
    for name in ("base", "asked"):
        rows = lists if name == "base" else lists[: len(QUERIES)]
        pq.write_table(pa.table({"emb": rows}), folder / f"{name}.parquet")
    with pytest.raises(DataError, match=r"int64: holds an integer beyond ±2\^24, too wide for float32"):
        get(tmp_path, {**WITHOUT_IDS, "url": address})
    np.save(folder / "base.npy", whole)
    said = r"row 3 holds an integer beyond ±2\^24, too wide for float32"
    with formats.open_vectors(folder / "base.npy", "npy") as vectors, pytest.raises(DataError, match=said):
        list(vectors.chunks())


def test_a_filter_by_id_leaves_out_the_first_rows() -> None:
    category, price = np.zeros(1000, np.uint8), np.zeros(1000, np.float32)
    asked = metadata.resolve({"field": "id", "from_share": 0.99}, price, np.zeros(3, int))
    assert asked.distinct == ({"field": "id", "from": 990},)
    assert np.flatnonzero(metadata.matches(asked.distinct[0], category, price)).tolist() == list(range(990, 1000))
    swept, _ = config.sweep({"k10": {"filter": {"field": "id", "from_share": [0.01, 0.99]}}}, "w")
    assert list(swept) == ["k10-from0.01", "k10-from0.99"]
    for filter, said in (
        ({"field": "id", "from_share": 1}, "between 0 and 1"),
        ({"field": "id", "from": -1}, "whole number from 0"),
        ({"field": "id", "from": 1, "below": 2}, "unknown operator 'below'"),
    ):
        with pytest.raises(ConfigError, match=said):
            metadata.check_filter(filter)


def test_every_system_filters_by_the_ids_that_rows_have_anyway() -> None:
    from anncestry.engines.milvus.wire import expression
    from anncestry.engines.mysql.wire import where as mysql
    from anncestry.engines.pgvector.serve import condition
    from anncestry.engines.weaviate import wire
    from anncestry.engines.weaviate.wire import uuid_of

    filter = {"field": "id", "from": 990}
    assert expression(filter) == "id >= 990"
    assert mysql(filter) == "id >= 990"
    assert condition(filter) == " WHERE id >= 990"
    assert wire.where(filter) == f'{{operator:GreaterThanEqual,path:["id"],valueText:"{uuid_of(990)}"}}'
    asked = wire.filters(filter)
    assert (asked.target.property, asked.value_text) == ("_id", uuid_of(990))
