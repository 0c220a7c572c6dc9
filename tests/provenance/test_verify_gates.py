"""Gates that `verify` makes again, and those that it can't: docs/auditing.md lists all, and this file holds it to that.

A record in which one gate was altered, and that was sealed again, is refused exactly where the page says so.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from anncestry import verify, verify_gates
from anncestry.features.fault.measuring import NARROWED
from anncestry.measure import judge
from anncestry.provenance import gates, records
from tests.builders.bench import failed, lie_when_queried, reseal, scored
from tests.toy import ROOT

NAMED = {
    "ROW_COUNT": {gates.ROW_COUNT}, "ORACLE": {gates.ORACLE}, "gates.ORACLE": {gates.ORACLE}, "LITTLE": {gates.LITTLE},
    "name": {"storage limits", NARROWED}, "judged.gate": set(), "again.gate": set(),
}  # fmt: skip
"""How the code names gates that it does not name in place."""


def page() -> dict[str, str]:
    """By gate: whether `verify` makes it again (yes, in part, no), as the page's table has it."""
    section = (ROOT / "docs/auditing.md").read_text().partition("| gate | made again |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1:3] for line in section.splitlines() if line.startswith("| `")]
    return {gate: made.strip() for names, made in rows for gate in re.findall(r"`([^`]+)`", names)}


def named(first: ast.expr) -> set[str]:
    return {str(first.value)} if isinstance(first, ast.Constant) else NAMED[ast.unparse(first)]


def test_the_page_has_each_gate_of_the_code_and_no_other():
    found: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Gate" and node.args:
                found |= named(node.args[0])
    assert page().keys() == found
    assert set(page().values()) == {"yes", "in part", "no"}


def said(bench, gate: str) -> list[str]:
    """What `verify` says of a gate of what the bench has published."""
    problems = verify.verify(bench.matrix, partial=True).problems
    return [each.sentence for each in problems if f"its gate `{gate}` " in each.sentence]


def published(bench, cell) -> Path:
    """The record of a cell, published with that of its load; nothing is scored, so that its gates stand alone."""
    records.promote(Path(cell.index_path), Path(cell.load_path), stage="load", key=cell.load)
    bench.publish(cell)
    return Path(cell.query_path)


def altered(stored: Iterable[dict[str, Any]], place: int, **changed: Any) -> dict[str, Any]:
    """The gates of a record of which one says something else, and the verdict that follows from them."""
    judged = [{**gate, **changed} if number == place else gate for number, gate in enumerate(stored)]
    return {"gates": judged, "valid": all(gate["ok"] for gate in judged)}


@pytest.mark.parametrize("stage", ["load", "query"])
def test_other_words_of_a_gate_are_refused_where_the_page_says_that_it_is_made_again(honest, stage):
    cell = honest.matrix.cells[1]  # filtered, in two runs
    path = published(honest, cell) if stage == "query" else Path(cell.load_path)
    if stage == "load":
        published(honest, cell)
    before = records.read_json(path)
    assert verify.verify(honest.matrix, partial=True).problems == []
    checked = page()
    for place, gate in enumerate(before["gates"]):
        for changed in ({"detail": f"{gate['detail']}, nearly"}, {"ok": False}):
            reseal(path, **altered(before["gates"], place, **changed))
            refused = bool(said(honest, gate["gate"]))
            if "ok" in changed and checked[gate["gate"]] != "yes":
                continue  # what is kept may not show that it was worse
            assert refused == (checked[gate["gate"]] != "no"), (gate, changed)
    reseal(path, **before)


@pytest.mark.parametrize("gate", sorted({*verify_gates.OF_LOADS, *verify_gates.OF_QUERIES}))
def test_a_gate_that_is_taken_out_of_a_sealed_record_is_missed(honest, gate):
    cell = honest.matrix.cells[0]
    queried = published(honest, cell)
    for path, names in ((Path(cell.load_path), verify_gates.OF_LOADS), (queried, verify_gates.OF_QUERIES)):
        stored = records.read_json(path)["gates"]
        reseal(path, gates=[each for each in stored if each["gate"] != gate])
        assert bool(said(honest, gate)) == (gate in names), path
        reseal(path, gates=stored)


def turned(bench, path: Path) -> dict[str, bool]:
    """By gate that failed in the record: whether `verify` refuses it as one that holds, sealed again."""
    assert not [each for each in verify.verify(bench.matrix, partial=True).problems if "its gate" in each.sentence]
    before = records.read_json(path)
    found = {}
    for place, gate in enumerate(before["gates"]):
        if not gate["ok"]:
            reseal(path, **altered(before["gates"], place, ok=True))
            found[gate["gate"]] = bool(said(bench, gate["gate"]))
    reseal(path, **before)
    return found


def told(lied: dict[str, bool], gate: str) -> None:
    """The gate failed, and that it and all others were turned is told exactly where the page says so."""
    assert gate in lied, "the server did not lie"
    assert lied == {name: page()[name] != "no" for name in lied}


LOADED = {
    "lose-rows": "row count", "fail-rows": "inserts", "is-a-cluster": "topology", "other-version": "server version",
    "never-ends": "stopped cleanly", "other-settings": "settings", "index-incomplete": "index complete",
}  # fmt: skip
QUERIED = {
    "unknown-ids": "known rows", "more": "known rows", "wrong-metric": "distances", "no-distances": "distances",
    "narrow-filter": "filter selectivity", "is-a-cluster": "topology",
}  # fmt: skip
IN_THE_COURSE = {
    "refuse": "answered", "garbage": "decodable", "cold": "warm-up", "lose-later": "row count",
    "wrong-ids-of-seven": "distances",
}  # fmt: skip


@pytest.mark.parametrize("lie", LOADED)
def test_a_verdict_on_a_load_that_was_turned_is_told(bench, lie):
    liar = bench(lie)
    cell = liar.matrix.cells[0]
    assert not liar.load(cell)["valid"]
    records.promote(Path(cell.index_path), Path(cell.load_path), stage="load", key=cell.load)
    told(turned(liar, Path(cell.load_path)), LOADED[lie])


@pytest.mark.parametrize("lie", QUERIED)
def test_a_verdict_on_queries_that_was_turned_is_told(honest_load, monkeypatch, lie):
    first, filtered, _ = honest_load.matrix.cells
    cell = filtered if "filter" in lie else first
    lie_when_queried(monkeypatch, lie)
    honest_load.query(cell, runs=2)
    told(turned(honest_load, published(honest_load, cell)), QUERIED[lie])


@pytest.mark.parametrize("lie", IN_THE_COURSE)
def test_a_verdict_on_a_run_that_was_turned_is_told(bench, lie):
    liar = bench(lie)
    seven = liar.matrix.cells[2]
    liar.load(seven)
    liar.query(seven)
    told(turned(liar, published(liar, seven)), IN_THE_COURSE[lie])


# Gates that this bench's systems and topologies do not have


def refused(remade: Iterable[verify_gates.Remade]) -> list[str]:
    return [problem for problem, stored, again in remade if stored != again]


PROBE = {
    "read_bytes": 4096, "of": "read_ops_per_s", "allowed_per_s": 100.0, "held_per_s": 300.0, "free_per_s": 400.0,
}  # fmt: skip
UNHELD = {"flat": {"alive": True, "limits": {"cpu": {"asked": 2, "by": None}}, "usage": {}}}
OLDER = {"valid": False, "created": "2026-11-29T00:00:00+00:00", "spec": {"system": {"name": "red-1.0"}}}


@pytest.mark.parametrize(
    ("gate", "part", "older"),
    [
        (gates.storage_probe(PROBE), {"storage_path": {"limits": {"probe": [PROBE]}}}, None),
        (gates.limits(UNHELD), {"server": {"members": UNHELD}}, None),
        (gates.older_load(False, "red-1.0", OLDER["created"]), {}, OLDER),
    ],
    ids=["storage limits, probed", "limits", "older load"],
)
def test_what_a_record_of_a_load_quotes_decides_its_gates(honest_load, gate, part, older):
    record = records.read_json(Path(honest_load.matrix.cells[0].index_path))
    assert refused(verify_gates.of_load(record, None)) == []
    for name, value in part.items():
        record[name] = {**record.get(name, {}), **value}
    stored = record["gates"]
    record["gates"] = [*stored, asdict(gate)]
    assert not gate.ok and refused(verify_gates.of_load(record, older)) == []
    record["gates"] = [*stored, {**asdict(gate), "ok": True}]
    (problem,) = refused(verify_gates.of_load(record, older))
    assert problem.startswith(f"its gate `{gate.gate}` is: ") and problem.endswith(", which fails")


def side(bench, cell, **loaded: Any) -> tuple[dict[str, Any], verify_gates.Kept]:
    """The record of a run of a cell, as a pair keeps one for each side, and what is kept of that run."""
    path = Path(cell.run_path(0))
    data, spec = verify_gates.Data(), bench.matrix.spec(cell.query, "query")
    where = cell.vectors_path, cell.vectors
    kept = verify_gates.Kept(
        spec["workload"], spec["platform"], path.with_name("samples.parquet"), None,
        bench.matrix.spec(cell.load, "load"), {**records.read_record(Path(cell.index_path)), **loaded},
        data.vectors(*where), data.asked(*where, spec["workload"], spec["seed"]), paired=True,
    )  # fmt: skip
    return records.read_json(path), kept


def test_each_side_of_a_pair_is_judged_again_on_each_pair_of_servers(honest):
    record, kept = side(honest, honest.matrix.cells[1])
    assert refused(kept.of_side(record, 0)) == []
    for place, gate in enumerate(record["gates"]):
        again = {**record, **altered(record["gates"], place, detail=f"{gate['detail']}, nearly")}
        if gate["gate"] in ("answered", "Little's law"):
            continue  # of their times: judge.gates_again makes these
        problems = refused(kept.of_side(again, 0))
        assert bool(problems) == (page()[gate["gate"]] != "no"), gate
        assert all(f"its gate `{gate['gate']}` " in problem for problem in problems)
    (problem,) = refused(kept.of_side({**record, "selectivity": record["selectivity"] / 2}, 0))[-1:]
    assert problem.startswith("its selectivity is ")


LOST = {"acknowledged": 540, "counted": 539, "lost_by_count": 1, "asked": 540, "lost_by_search": 1}
COUNTED = [{"node": "flat", "shard": "0", "rows": 539}]


@pytest.mark.parametrize(
    ("gate", "loaded", "placement"),
    [(gates.nothing_lost(LOST), {"kill": LOST}, []), (gates.copies(539, 540, 1), {}, COUNTED)],
    ids=["nothing lost", "copies"],
)
def test_what_the_load_and_the_nodes_counted_decides_gates_of_queries(honest, gate, loaded, placement):
    record, kept = side(honest, honest.matrix.cells[0], **loaded)
    record["server"]["placement"] = placement
    stored = copy.deepcopy(record["gates"])
    for each in stored:
        if placement and each["gate"] == "topology":
            each["detail"] += "; flat holds 1"
    for verdict, problems in ((False, 0), (True, 1)):
        record["gates"] = [*stored, {**asdict(gate), "ok": verdict}]
        assert len(refused(kept.of_side(record, 0))) == problems
    record["gates"] = stored
    assert f"its gate `{gate.gate}` is: missing" in refused(kept.of_side(record, 0))[0]


def test_a_node_that_got_no_search_is_told_by_what_the_nodes_counted(honest):
    path = published(honest, honest.matrix.cells[2])
    record = records.read_json(path)
    counted = {"a": {"searches": 50.0}, "b": {"searches": 0.0}}
    gate = gates.shared({"a": 50.0, "b": 0.0}, record["spec"]["workload"]["clients"])
    assert gate is not None and not gate.ok
    rounds = [{**of_run, "counters": counted} for of_run in record["rounds"]]
    reseal(path, rounds=rounds, gates=[*record["gates"], {**asdict(gate), "ok": True}])
    (problem,) = said(honest, "searches shared")
    assert str(path) in problem and problem.endswith(", which fails")


def test_an_index_that_was_loaded_at_another_time_is_judged_by_its_words(honest):
    record, kept = side(honest, honest.matrix.cells[0], created="2020-01-01T00:00:00+00:00", valid=False)
    assert refused(kept.of_side(record, 0)) == []
    place = next(place for place, gate in enumerate(record["gates"]) if gate["gate"] == "load")
    invalid = record["gates"][place]["detail"].replace(", valid", ", but is invalid")
    (problem,) = refused(kept.of_side({**record, **altered(record["gates"], place, detail=invalid)}, 0))
    assert problem.startswith("its gate `load` is: ")


K5 = {"k": 5, "clients": 2, "runs": 1, "queries": 20, "warmup": 5}
HONEST: dict[str, dict[str, Any]] = {
    "a target recall": {"target_recall": 0.9, "tuning_queries": 30},
    "a cold start": {"warmup": 0, "start": "cold"},
    "a fault": {"duration_s": 1.5, "fault": {"kind": "pause", "member": "flat", "at_s": 0.3, "for_s": 0.2}},
    "requests of several vectors": {"nq": 3, "filter": {"field": "category", "in": [1, 4, 7]}},
    "filters of several regions": {"filter": {"field": "region", "side": "same", "halvings": 2}},
    "changes": {"duration_s": 1.0, "stream": {"insert_per_s": 20, "delete_per_s": 20, "batch_rows": 2}},
}


@pytest.mark.parametrize(("dataset", "index"), [("blobs-l2", None), ("blobs-cosine", {"quantizer": "pq"})])
def test_no_gate_of_an_honest_system_is_told_whatever_is_asked_of_it(bench, dataset, index):
    def change(files: dict[str, Any]) -> None:
        files["workloads"] = {f"w{number}": {**K5, **more} for number, more in enumerate(HONEST.values())}
        files["config"]["matrix"][0]["workloads"] = [*files["workloads"]]
        if index is not None:
            files["systems"]["blue-1.0"]["index"] = index

    honest = bench(dataset=dataset, change=change)
    honest.load(honest.matrix.cells[0])
    assert set(honest.query(*honest.matrix.cells).values()) == {"ok"}
    for cell in honest.matrix.cells:
        path, _ = published(honest, cell), scored(honest, cell)
        assert failed(records.read_json(path)) == {}
    assert verify.verify(honest.matrix, partial=True).problems == []


def test_as_many_answers_are_looked_at_as_were():
    assert verify_gates.CHECKED_QUERIES == judge._CHECKED_QUERIES
    assert verify_gates.COMPARED_QUERIES_MIN == judge._COMPARED_QUERIES_MIN


def test_what_each_run_says_is_found_in_what_they_say_together():
    assert verify_gates.words({"detail": "0 of 3"}, 2) == {0: "0 of 3", 1: "0 of 3"}
    assert verify_gates.words({"detail": "run 1: a; b; run 12: c"}, 12) == {0: "a; b", 11: "c"}
    assert verify_gates.words({"detail": "not asked: run 2: x"}, 1) == {0: "not asked: run 2: x"}
