"""Each attack is caught by the gate that docs/measuring.md names: with that gate taken out, it passes."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from anncestry.provenance import gates, platform
from tests.builders.bench import failed
from tests.flat.engine import ENGINE as flat
from tests.toy import ROOT

HARD = {"M": 2, "ef_construction": 8}
"""A graph of few links, which finds little at a small ef, over more dimensions."""


def take_out(monkeypatch, *functions: str) -> None:
    """Have these gates pass whatever they find."""
    for name in functions:
        judge = getattr(gates, name)

        def passes(*found, judge=judge, **more):
            gate = judge(*found, **more)
            return None if gate is None else replace(gate, ok=True)

        monkeypatch.setattr(gates, name, passes)


def hard(files: dict) -> None:
    files["config"]["index"].update(HARD)
    files["datasets"]["blobs-l2"].update(dim=32)


LOADS = [
    # lie, with a reference index, the gate's function, and what catches the attack even then
    ("lose-rows", False, "row_count", set()),
    ("fail-rows", False, "inserts", set()),
    ("index-incomplete", False, "index_complete", set()),
    ("other-settings", False, "settings", set()),
    ("is-a-cluster", False, "topology", set()),
    ("other-version", False, "version", set()),
    ("never-ends", False, "stopped", set()),
    ("wrong-metric", False, "oracle", set()),
    ("ignore-filter", False, "oracle", set()),
    ("hide-one-in-100", False, "complete", set()),
    ("lost-tail", False, "findable", set()),
    ("lost-from-index", True, "findable", set()),
    ("caches-answers", False, "not_cached", set()),
    ("hard", True, "effort", set()),
]
QUERIES = [
    ("refuse", False, "answered", set()),
    ("garbage", False, "decodable", set()),
    ("cold", False, "primed", set()),
    ("lose-later", False, "row_count", set()),
    ("wrong-ids-of-seven", False, "distances", set()),
    ("silent-shard", True, "reference_recall", set()),
    ("narrow-filter", False, "selectivity", set()),
    ("narrow-search-filter", False, "findable_filtered", set()),
    ("unknown-ids", False, "possible", set()),
    ("ignore-filter", False, "filtered", set()),
]


@pytest.mark.parametrize(("lie", "compared", "gate", "others"), LOADS, ids=lambda value: str(value))
def test_a_load_that_lies_passes_without_the_gate_that_catches_it(bench, monkeypatch, lie, compared, gate, others):
    monkeypatch.setattr(flat, "plain_hnsw", compared)
    take_out(monkeypatch, gate)
    liar = bench("", change=hard) if lie == "hard" else bench(lie)
    assert set(failed(liar.load(liar.matrix.cells[0]))) == others


@pytest.mark.parametrize(("lie", "compared", "gate", "others"), QUERIES, ids=lambda value: str(value))
def test_a_system_that_lies_when_queried_passes_without_the_gate_that_catches_it(
    bench, monkeypatch, lie, compared, gate, others
):
    monkeypatch.setattr(flat, "plain_hnsw", compared)
    honest = bench()
    _, filtered, seven = honest.matrix.cells
    assert honest.load(seven)["valid"]
    start = flat.start
    monkeypatch.setattr(
        flat, "start", lambda a, d, system, t, first_port=None: start(a, d, {"settings": {"lie": lie}}, t, first_port)
    )
    take_out(monkeypatch, gate)
    cell = filtered if "filter" in lie else seven
    honest.query(cell)
    assert set(failed(honest.record(cell))) == others
