"""Each limit that docs/gates.md states has two sides: what is just within it holds, what is just beyond it doesn't."""

from __future__ import annotations

import pytest

from anncestry.provenance import gates
from anncestry.provenance.gates import Gate

LIMITS = {
    "a load that is valid": (gates.loaded(True, "then"), gates.loaded(False, "then")),
    "an upgraded load that is": (gates.older_load(True, "s", "then"), gates.older_load(False, "s", "then")),
    "every row": (gates.row_count(9, 9, "after"), gates.row_count(8, 9, "after")),
    "no row twice": (gates.row_count(9, 9, "after"), gates.row_count(10, 9, "after")),
    "2 % idle": (gates.littles_law(2, 100, 981 * 10**8, 10**11), gates.littles_law(2, 100, 979 * 10**8, 10**11)),
    "more busy than there was time": (
        gates.littles_law(2, 100, 1019 * 10**8, 10**11),
        gates.littles_law(2, 100, 1021 * 10**8, 10**11),
    ),
    "50 µs idle a request": (
        gates.littles_law(1, 20, 10**6, 2 * 10**6),
        gates.littles_law(1, 20, 10**6 - 1, 2 * 10**6),
    ),
    "requests to judge by": (gates.littles_law(1, 19, 1, 10**12), gates.littles_law(1, 20, 1, 10**12)),
    "1 % outside of the protocol": (gates.decodable(1, 100), gates.decodable(2, 100)),
    "1 % with rows that the filter excludes": (gates.filtered(1, 100, 0.3), gates.filtered(2, 100, 0.3)),
    "an answer": (gates.answered(1, 9), gates.answered(0, 9)),
    "a whole warm-up": (gates.primed(0), gates.primed(1)),
    "known rows": (gates.possible(0, 9, 10), gates.possible(1, 9, 10)),
    "the count under a filter": (gates.selectivity(30, 30, 100), gates.selectivity(31, 30, 100)),
    "0.1 % of a distance": (gates.distances(1e-3, 9), gates.distances(1.1e-3, 9)),
    "recall 0.999 of a scan": (gates.oracle(0.999, 50, 0.01), gates.oracle(0.998, 50, 0.01)),
    "an oracle that answers": (gates.oracle(1.0, 50, 0.01), gates.oracle(None, 50, 0.01)),
    "all rows that match": (gates.complete(50, 50, 0, 20), gates.complete(49, 50, 0, 20)),
    "no others": (gates.complete(50, 50, 0, 20), gates.complete(50, 50, 1, 20)),
    "new queries 5 times as slow": (gates.not_cached(4.9, 1.0, 20, False), gates.not_cached(5.1, 1.0, 20, False)),
    "in 9 of 10 pairs": (gates.not_cached(9.0, 0.89, 20, False), gates.not_cached(9.0, 0.91, 20, False)),
    "not on disk": (gates.not_cached(9.0, 1.0, 20, True), gates.not_cached(9.0, 1.0, 20, False)),
    "three times the reference's misses, and .02": (
        gates.reference_recall(0.951, 0.99, 200, 64),
        gates.reference_recall(0.949, 0.99, 200, 64),
    ),
    "one program": (gates.artifact("a" * 64, "a" * 64), gates.artifact("a" * 64, "b" * 64)),
    "one version": (gates.version("1.0.0", "1.0.0"), gates.version("1.0.0", "1.0.1")),
    "changes that were acknowledged": (gates.rows_after_changes(9, 9, 10), gates.rows_after_changes(11, 9, 10)),
    "a stream": (gates.written("", []), gates.written("", ["insert"])),
    "the lock": (gates.alone(0.0, True), gates.alone(0.0, False)),
}


@pytest.mark.parametrize(("good", "bad"), LIMITS.values(), ids=LIMITS)
def test_a_limit_has_two_sides(good: Gate, bad: Gate) -> None:
    assert good.ok, good
    assert not bad.ok, bad
    assert good.gate == bad.gate
