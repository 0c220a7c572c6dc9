"""Table J: pairs of servers are counted as they were measured, and what is invalid or unknown has no number."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from anncestry.metrics.decide import Outcome, Rule
from anncestry.report.model.cells import NO_CELL
from anncestry.report.model.material import Material
from anncestry.report.model.noise import Noise
from anncestry.report.tables import pairs

RATIO: dict[str, Any] = {"value": 1.0513, "low": 0.93, "high": 1.19, "log_error": 0.04, "freedom": 2}
RATIO |= {"unadjusted": {"value": 1.2, "low": 1.1, "high": 1.3}, "per_core_of_others": 0.1}
ROW = {"number_id": "n1", "record": "r", "metric": "pair_qps", "system": "a..b", "value": 1.0513, "low": 0.93}


def record(servers: int, **facts: Any) -> dict[str, Any]:
    contention = {"others_pct": 50.0, "server_cores": {"a": 0.9, "b": 0.9}, "others_more_cores": {"by_a_side": False}}
    return {"valid": True, "rounds": [{}] * servers, "quantities": {"qps": RATIO}, "contention": contention, **facts}


def material(record: dict[str, Any]) -> Material:
    row = {**ROW, "runs": None, "dataset": "d", "topology": "t", "workload": "w"}
    return cast(Material, SimpleNamespace(pairs=[row], records={"r": record}, rule=Rule(), noise=Noise()))


def test_further_pairs_of_servers_are_told_by_how_many_there_were() -> None:
    (verdict,) = pairs.verdicts(material(record(4))).values()
    # (1.96 + 0.84)² · 0.04² · 4 / 0.05² are 20.1 pairs of servers, of which there were 4.
    assert verdict.outcome is Outcome.UNDETERMINED and (verdict.further, verdict.of) == (17, "pairs of servers")


def test_a_side_that_makes_others_work_is_named() -> None:
    made = record(4)
    made["contention"] = {**made["contention"], "others_more_cores": {"value": -0.31, "by_a_side": True}}
    assert "others used 0.31 cores more beside a than chance: not corrected" in pairs._under(made, "qps")
    assert "beside" not in pairs._under(record(4), "qps")


def test_an_invalid_pair_shows_no_ratio_as_it_was() -> None:
    valid, invalid = (material(record(4, valid=valid)) for valid in (True, False))
    assert "as it was 1.200" in pairs._under(pairs._record(valid.pairs, valid), "qps")
    assert pairs._under(pairs._record(invalid.pairs, invalid), "qps") == NO_CELL


def test_memory_that_could_not_be_read_leaves_its_place_empty() -> None:
    assert pairs._under(record(4), "pss_mib") == NO_CELL
