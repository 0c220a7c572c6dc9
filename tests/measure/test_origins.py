"""Rounds of one cell were measured on one machine and storage path, by the same load generators."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anncestry.errors import DataError
from anncestry.provenance import records
from tests.builders.bench import Bench


def _other_path(body: dict[str, Any]) -> None:
    body["storage_path"] = {"filesystem": "ext4", "rotational": True, "model": "an old disk", "device": "sdb"}


def _other_quota(body: dict[str, Any]) -> None:
    body["platform"]["limits"] = {**body["platform"].get("limits", {}), "cpu_cores": 1.5}


def _other_generator(body: dict[str, Any]) -> None:
    body["client"]["jobs"][0]["hosts"] = [{"name": "another", "cores": 64}]


@pytest.mark.parametrize(
    ("change", "named"),
    [(_other_path, "storage path"), (_other_quota, "limit of cpu_cores"), (_other_generator, "load generators")],
    ids=["path", "quota", "generator"],
)
def test_a_round_that_was_measured_elsewhere_is_refused(
    honest: Bench, change: Callable[[dict[str, Any]], None], named: str
) -> None:
    cell = honest.matrix.cells[0]
    path = Path(cell.run_path(1))
    body = records.read_json(path)
    change(body)
    records.write_json(path, records.seal(body))
    with pytest.raises(DataError, match=named):
        honest.publish(cell)


def test_a_disk_that_is_called_otherwise_today_is_the_same(honest: Bench) -> None:
    cell = honest.matrix.cells[0]
    for number, device in enumerate(("sda", "sdb")):
        path = Path(cell.run_path(number))
        body = records.read_json(path)
        body["storage_path"] = {"filesystem": "ext4", "model": "a disk", "device": device}
        records.write_json(path, records.seal(body))
    assert honest.publish(cell)["valid"]
