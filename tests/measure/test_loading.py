"""What the clock of a load covers: sending, not encoding; until rows are searchable, apart until they are durable."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from anncestry.cells.indexes import rows_a_batch
from anncestry.engines.base import LoadResult, Requests, batches
from anncestry.measure.load import _times
from anncestry.provenance.records import seal
from anncestry.report.model.cells import NO_CELL
from anncestry.report.site import sheets
from anncestry.report.tables import usage
from tests.builders.bench import failed
from tests.builders.configs import refused
from tests.builders.fixed_report import lay_out, material_of
from tests.flat.engine import ENGINE as flat
from tests.flat.engine import FlatServer
from tests.servers import small_vectors
from tests.toy import Toy

MILVUS, WEAVIATE = "milvus-2.3.5", "weaviate-1.27.0"


def test_a_phase_lasts_from_its_start_to_its_end_whatever_holds_the_client_up_between_two_reads_of_a_clock(
    monkeypatch,
) -> None:
    # A second clock for the length, read beside the first, once differed by the 1.7 ms that the client lost its core.
    reads_s = iter((10.0, 11.25))
    monkeypatch.setattr("anncestry.engines.base.time", SimpleNamespace(monotonic=lambda: next(reads_s)))
    result = LoadResult()
    with result.phase("insert"):
        pass
    assert result.seconds("insert") == 1.25


def test_every_insert_request_is_encoded_before_the_first_is_sent(bench, monkeypatch) -> None:
    seen: list[str] = []
    encode, send = flat.encode_insert, FlatServer.send
    monkeypatch.setattr(flat, "encode_insert", lambda *of: seen.append("encode") or encode(*of))
    monkeypatch.setattr(FlatServer, "send", lambda *of: seen.append(of[1]) or send(*of))
    honest = bench()
    record = honest.load(honest.matrix.cells[0])
    assert failed(record) == {}
    order = [what for what in seen if what in ("encode", "Insert")]
    assert len(order) == 2 * record["batches"] > 2
    assert order == ["encode"] * record["batches"] + ["Insert"] * record["batches"]
    assert record["times"]["encode_s"] > 0
    assert {"record.json", "resources.parquet", "data"} == {path.name for path in _folder(honest).iterdir()}


def _folder(bench: Any) -> Path:
    return Path(bench.matrix.cells[0].index_path).parent


def test_encoded_requests_wait_in_a_file_and_are_read_as_they_were(tmp_path: Path) -> None:
    vectors, result = small_vectors("l2", rows=64), LoadResult()
    tracemalloc.start()
    with Requests(tmp_path, batches(vectors, 1), lambda rows: bytes([rows.first]) * 2**20, result) as requests:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 4 * 2**20
        assert (len(requests), requests.longest) == (64, 2**20)
        for number, (ids, body) in enumerate(requests):
            assert (list(ids), body) == ([number], bytes([number]) * 2**20)
        assert requests[63][1][:2] == b"??"
        assert not list(tmp_path.iterdir()), "it has no name, so nothing is left of it after a crash"


def test_rows_of_an_insert_follow_from_the_dimensions_within_bounds(bench) -> None:
    rule = {"least": 50, "most": 200, "values": 800}
    by_dimensions = bench(change=lambda files: files["systems"]["blue-1.0"].update(load={"batch_rows": rule}))
    (load,) = {cell.load for cell in by_dimensions.matrix.cells}
    assert by_dimensions.matrix.spec(load, "load")["load"] == {"batch_rows": rule}
    record = by_dimensions.load(by_dimensions.matrix.cells[0])  # 540 rows of 8 dimensions
    assert failed(record) == {} and (record["batch_sizes"], record["batches"]) == ([[100, 5], [40, 1]], 6)
    told = dict(sheets.fairness({"load.json": record}).rows)
    assert told["batches sent"] == "5 of 100 rows, 1 of 40 rows at 8 dimensions"
    assert [rows_a_batch(rule, dim) for dim in (1, 4, 5, 16, 960)] == [200, 200, 160, 50, 50]


@pytest.mark.parametrize(
    ("load", "said"),
    [
        (
            {"batch_rows": {"least": 60, "most": 50, "values": 9}},
            "red-1.0.load.batch_rows: least 60 is more than most 50",
        ),
        ({"batch_rows": 5, "upgrade_from": "blue-1.0"}, "load.batch_rows: unsupported with an upgrade in place"),
    ],
)
def test_batches_that_no_load_can_have_are_refused(tmp_path: Path, load: dict[str, Any], said: str) -> None:
    toy = Toy.make(tmp_path)
    toy.files["systems"]["red-1.0"] |= {"version": "1.1", "load": load}
    refused(toy, said)


def test_searchable_and_durable_are_counted_from_the_first_insert() -> None:
    result = LoadResult(encode_s=1e6)
    for phase in ("insert", "index"):
        with result.phase(phase):
            pass
    result.durable("Flush")
    with result.phase("ready"):
        np.linalg.svd(np.ones((200, 200)))
    times = _times(result)
    assert times["encode_s"] == 1e6, "before the clock"
    assert 0 < times["durable_s"] < times["load_s"] < 1e6
    assert _times(replace(result, durable_at_s=None))["durable_s"] is None


def _table(records: Mapping[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """System → the end of its row of Table D (searchable, durable, asked); `records`: what is added to fixed ones."""
    monkeypatch.chdir(folder)
    cells = lay_out(folder)
    for path in filter(Path.exists, {Path(cell["load_path"]) for cell in cells}):
        record = json.loads(path.read_text())
        durable_s, durability = records.get(record["spec"]["system"]["name"], (None, None))
        if durability is not None:
            record["times"] |= {"encode_s": 0.5, "durable_s": durable_s}
            record["durability"] = durability
            path.write_text(json.dumps(seal({name: value for name, value in record.items() if name != "seal"})))
    (table,) = usage.loading(material_of(cells))
    return {row.labels[2]: [cell.text for cell in row.cells[-3:]] for row in table.rows}


def test_the_table_of_loads_says_until_when_and_what_was_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = _table({MILVUS: (3.5, "Flush"), WEAVIATE: (None, "no such call")}, tmp_path, monkeypatch)
    assert said[MILVUS][1:] == ["3.50", "Flush"]
    assert said[WEAVIATE][1:] == ["can't be asked", "no such call"]


def test_a_load_of_an_earlier_version_has_no_durable_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for _, durable, asked in _table({}, tmp_path, monkeypatch).values():
        assert (durable, asked) == ("not recorded", NO_CELL)
