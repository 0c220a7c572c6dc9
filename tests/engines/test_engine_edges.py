"""What engines do where a machine, a value or a moment is another than usual; each without its server."""

from __future__ import annotations

import runpy
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from anncestry.cells.config import load
from anncestry.engines import get, offers_of
from anncestry.engines.base import ErrorReplyError
from anncestry.engines.chroma import engine as chroma
from anncestry.engines.milvus import wire as milvus_wire
from anncestry.engines.opensearch import engine as opensearch
from anncestry.engines.qdrant import wire as qdrant
from anncestry.engines.resp import RespServer
from anncestry.errors import ConfigError, ServerError, Unsupported
from anncestry.home import PACKAGE
from anncestry.measure.requests import distance_errors
from anncestry.provenance.gates import DISTANCE_REL_ERROR_MAX
from tests.servers import INDEX, ROOT, STANDALONE, SYSTEMS


def test_hnswlib_gets_so_many_rows_at_once_that_it_builds_on_all_threads(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes one thread for up to four rows a thread: as a batch of 64 on 16 threads."""
    calls: list[np.ndarray] = []

    class Index:
        def __init__(self, *_: object) -> None: ...
        def init_index(self, *_: object, **__: object) -> None: ...
        def save_index(self, path: str) -> None: ...
        def add_items(self, vectors: Any, ids: Any, num_threads: int) -> None:
            assert len(vectors) == len(ids)
            calls.append(ids)

    monkeypatch.setitem(sys.modules, "hnswlib", SimpleNamespace(Index=Index))
    adapter = runpy.run_path(str(PACKAGE / "engines" / "hnswlib" / "adapter.py"))
    facts = {"threads": 16, "metric": "l2", "dim": 2, "rows": 640, "seed": 1, "index": {"M": 8, "ef_construction": 8}}
    builder = adapter["Builder"](tmp_path, facts)
    for start in range(0, 640, 64):
        builder.add(np.zeros((min(64, 630 - start), 2), np.float32))
    builder.finish()
    assert all(len(ids) > 64 for ids in calls[:-1])
    assert np.concatenate(calls).tolist() == list(range(630))


def test_lancedb_is_told_no_number_of_threads_and_says_none() -> None:
    from anncestry.engines.lancedb import OFFERS

    with pytest.raises(ConfigError, match="unknown key 'build_threads'"):
        OFFERS.check({**SYSTEMS["lancedb-0.40.0-library"], "settings": {"build_threads": 2}}, STANDALONE, INDEX, None)


def test_distances_that_come_as_float32_scores_are_judged_by_the_digits_that_these_have() -> None:
    exact = np.array([1e-6, 1e-4, 1.0, 50.0])
    told = 1 / np.float32(1 / (1 + exact)).astype(np.float64) - 1
    assert distance_errors(told, exact, "l2").max() > DISTANCE_REL_ERROR_MAX
    assert distance_errors(told, exact, "l2", of_scores=True).max() <= DISTANCE_REL_ERROR_MAX
    wrong = distance_errors(exact * 1.01, exact, "l2", of_scores=True)
    assert (wrong[2:] > DISTANCE_REL_ERROR_MAX).all()
    assert get("opensearch").float32_scores and get("elasticsearch").float32_scores
    assert not get("weaviate").float32_scores


def test_redis_waits_for_a_rewrite_that_it_began_by_itself_and_for_the_end_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy = ErrorReplyError("ERR Background append only file rewriting already in progress")
    told = [
        {"aof_rewrite_in_progress": "1", "aof_rewrite_scheduled": "0", "aof_last_bgrewrite_status": "err"},
        {"aof_rewrite_in_progress": "0", "aof_rewrite_scheduled": "0", "aof_last_bgrewrite_status": "ok"},
    ]
    asked: list[bytes] = []

    class Scripted(RespServer):
        def __init__(self) -> None: ...
        def check_alive(self) -> None: ...
        def info(self, section: str) -> dict[str, str]:
            return told.pop(0)

        def send(self, commands: bytes, count: int) -> list[Any]:
            asked.append(commands)
            return [replies.pop(0)]

    replies: list[Any] = [busy, b"Background append only file rewriting started", [1, 0]]
    Scripted().rewrite()
    assert len(asked) == 3 and not told
    replies = [ErrorReplyError("ERR unknown command")]
    with pytest.raises(ServerError, match="unknown command"):
        Scripted().rewrite()


def test_chroma_counts_by_pages_as_an_answer_with_all_ids_may_be_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    import json

    monkeypatch.setattr(chroma, "_PAGE_ROWS", 3)
    ids = [str(number) for number in range(7)]

    def call(method: str, path: str, body: bytes) -> dict[str, list[str]]:
        asked = json.loads(body)
        return {"ids": ids[asked["offset"] : asked["offset"] + asked["limit"]]}

    server = SimpleNamespace(path="/c", call=call)
    assert get("chroma").count(server, {"field": "category", "in": [1, 2]}) == 7  # type: ignore[arg-type]


def test_opensearch_s_heap_is_the_one_asked_whatever_its_collector_leaves_out() -> None:
    """The serial collector, which a machine with one core gets, tells 989 MiB of 1024."""
    assert opensearch._heap_mib(["-Xms512m", "-Xmx512m", "-Xmx1024m", "-Dx=y"]) == 1024
    assert opensearch._heap_mib(["-Dx=y"]) == 0


def test_a_price_that_comes_back_as_the_double_beside_it_is_on_the_same_side_of_a_qdrant_bound() -> None:
    price = float(np.float32(417.31))
    below, above = float(np.nextafter(np.float32(price), np.float32(0))), np.nextafter(price, np.inf)
    (window,) = qdrant.condition({"field": "price", "from": price, "below": price + 1}).must
    lowest = window.field.range.gte
    assert below < lowest < np.nextafter(price, 0) < price < above


@pytest.mark.parametrize(
    ("system", "index", "effort", "said"),
    [
        ("mariadb-11.8.6", INDEX, {"ef_search": 20_000}, "20000 is more than 10000"),
        ("milvus-2.3.5", {"type": "scann", "nlist": 64, "reorder_k": 50}, {"nprobe": 8}, "reorder_k"),
    ],
)
def test_what_a_server_would_cut_off_or_refuse_is_refused_before(
    system: str, index: dict[str, Any], effort: dict[str, int], said: str
) -> None:
    entry = load(ROOT / "config").systems[system].plain
    with pytest.raises((ConfigError, Unsupported), match=said):
        offers_of(entry["engine"]).check(entry, STANDALONE, index, {"k": 10, **effort})


@pytest.mark.parametrize(
    ("asked", "rows", "built"),
    [
        ({"nlist": 2048}, 60_000, {"nlist": 1538}),
        ({"nlist": 64}, 9_000, {"nlist": 64}),
        ({"nlist": 64}, 2_496, {"nlist": 64}),
        ({"nlist": 64}, 2_495, {"nlist": 63}),
        ({"nlist": 64, "nbits": 16}, 9_000, {"nlist": 64, "nbits": 8}),
        ({"M": 16}, 10, {"M": 16}),
    ],
)
def test_milvus_reads_back_the_lists_that_its_rows_fill_not_those_that_it_repeats(asked, rows, built):
    """Its library trains on 39 rows a list at least."""
    assert milvus_wire.built_of_rows(asked, rows) == built
