"""`anncestry guard`: a head that got worse is told by exit 3, one that didn't is never; what can't be told is 4."""

from __future__ import annotations

import json
import math
import os
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from anncestry import cli, engine_check, guard
from anncestry.commands import guarding, results
from anncestry.errors import ConfigError, DataError, UserError
from anncestry.metrics.decide import Rule
from anncestry.report.site.more_pages import declared_gates
from anncestry.runtimes import artifacts
from tests.toy import ROOT, Toy

DUET = {"slice_s": 0.05, "discard_ms": 5, "blocks": 6, "first": 2, "most": 2}
ASKED = guard.Asked("red-1.0", "slow-1.0", ["blobs-l2"], ["k5"], budget_s=320)


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toy:
    toy = Toy.make(tmp_path)
    toy.files["config"]["duet"] = dict(DUET)
    toy.files["systems"]["slow-1.0"] = {**toy.files["systems"]["red-1.0"], "settings": {"lie": "slow"}}
    toy.save()
    monkeypatch.chdir(toy.folder)
    monkeypatch.setenv("ANNCESTRY_CONFIG", str(toy.folder / "config"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (ROOT, ROOT / "src"))))
    return toy


def run(*arguments: str) -> int:
    """The exit status of a guard on the toy."""
    common = ["--dataset", "blobs-l2", "--workload", "k5", "--budget", "320s", "--folder", "guard"]
    try:
        return cli.main(["guard", *common, *arguments])
    except SystemExit as end:
        return int(end.code or 0)


def test_a_slower_head_is_told_by_the_exit_status_on_the_terminal_and_in_files(
    toy: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(4):  # what can't be told, as the machine stood still, is asked again
        folder = Path(f"guard{number}")
        status = run("--base", "red-1.0", "--head", "slow-1.0", "--folder", str(folder))
        said = capsys.readouterr().out
        if status != 4:
            break
    assert status == 3
    assert "slow-1.0 against red-1.0: REGRESSED (margin 5 %)" in said
    assert (folder / "reports/guard/index.html").exists()
    found = {each["quantity"]: each for each in json.loads((folder / "guard.json").read_text())["findings"]}
    assert found.keys() == set(guard.DEFAULT)
    cpu = found["server_cpu_us_per_query"]
    assert cpu["said"] == "regressed" and cpu["low"] > 1 and cpu["head"] > cpu["base"] + 2500
    assert found["qps"]["head"] < found["qps"]["base"]
    assert found["recall"]["base"] == found["recall"]["head"] == 1
    assert found["recall"]["said"] == "can't tell" and "more queries" in found["recall"]["note"], "of 40 queries"
    suite = ElementTree.parse(folder / "junit.xml").getroot()
    failed = {case.get("name") for case in suite.iter("testcase") if case.find("failure") is not None}
    assert "server_cpu_us_per_query" in failed
    values = {each["name"]: each for each in json.loads((folder / "benchmark.json").read_text())}
    qps = values["blobs-l2, k5: queries per second"]
    assert qps["unit"] == "1/(1/s)" and math.isclose(qps["value"], 1 / found["qps"]["head"])
    otava = (folder / "otava.csv").read_text().splitlines()
    assert len(otava) == 2 and "blobs-l2.k5.server_cpu_us_per_query head / base" in otava[0].split(",")
    assert "| quantity" in (folder / "guard.md").read_text()


def test_what_a_guard_says_as_json_is_that_of_its_file_and_nothing_else_is_on_standard_output(
    toy: Toy, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    finding = guard.Finding("blobs-l2", "k5", "qps", 2000.0, 1000.0, 0.5, 0.45, 0.55, guard.Ruling.REGRESSED)
    asked_for_json = []
    monkeypatch.setattr(guard, "measure", lambda *_, says_json: asked_for_json.append(says_json))
    monkeypatch.setattr(guard, "findings", lambda *_: [finding])
    monkeypatch.setattr(results, "current_page", lambda _: Path("reports/guard/index.html"))
    assert run("--base", "red-1.0", "--head", "slow-1.0", "--json") == 3
    said = json.loads(capsys.readouterr().out)
    assert said.pop("page") == "guard/reports/guard/index.html"
    assert said == json.loads(Path("guard/guard.json").read_text())
    assert said["findings"][0]["said"] == "regressed" and asked_for_json == [True]


def test_a_budget_without_room_for_four_pairs_of_servers_is_refused_before_anything_is_started(toy: Toy) -> None:
    assert run("--base", "red-1.0", "--head", "slow-1.0", "--budget", "30s") == 2
    assert not Path("guard/results").exists()
    with pytest.raises(UserError, match=r"4 pairs of servers for 1 workload\(s\) on 1 dataset\(s\), .* about 320 s"):
        guard.prepare(
            guard.Asked("red-1.0", "slow-1.0", ["blobs-l2"], ["k5"], budget_s=100), config(toy), Path("guard")
        )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"base": "nobody-1.0"}, r"--base: no system 'nobody-1\.0' in systems\.yaml; known: "),
        ({"head": "red-1.0"}, "--base and --head are both red-1.0"),
        ({"head": "red-1.0@fast"}, "--head red-1.0@fast: is neither SYSTEM, nor SYSTEM=PATH, nor SYSTEM@EFFORT"),
        ({"head": "red-1.0=nothing/there"}, "nothing/there: does not exist"),
        ({"head": "slow-1.0="}, "--head slow-1.0=: is neither SYSTEM, nor SYSTEM=PATH"),
        ({"head": "slow-1.0@"}, "--head slow-1.0@: is neither SYSTEM, nor SYSTEM=PATH"),
        ({"workloads": ["k5000"]}, "--workload: no workload 'k5000'"),
        ({"margin_percent": 60.0}, "--margin 60: must be more than 0 and at most 50 %"),
        ({"quantities": ["beauty"]}, "--quantity beauty: unknown; known: server_cpu_us_per_query, qps"),
    ],
)
def test_what_can_not_be_compared_is_refused_in_one_sentence(toy: Toy, change: dict[str, Any], said: str) -> None:
    asked = {"base": "red-1.0", "head": "slow-1.0", "datasets": ["blobs-l2"], "workloads": ["k5"], **change}
    with pytest.raises(UserError, match=said):
        guard.prepare(guard.Asked(**asked), config(toy), Path("guard"))


def upgraded(toy: Toy, lie: str) -> tuple[Path, Sequence[str]]:
    """The file that says how the head lies, and a guard of it: a version that opens in place what the base wrote."""
    lies = toy.folder / "lie"
    lies.write_text(lie)
    newer = {"version": "1.1", "settings": {"lie": f"@{lies}"}}
    toy.files["systems"]["red-1.1"] = {**toy.files["systems"]["red-1.0"], **newer}
    toy.files["systems"]["up"] = {"of": "red-1.1", "load": {"upgrade_from": "red-1.0"}}
    toy.save()
    return lies, ("--base", "red-1.0", "--head", "up")


def not_loaded(capsys: pytest.CaptureFixture[str], why: str) -> None:
    """A head that was not loaded is said in one sentence."""
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("anncestry guard: up could not be loaded with blobs-l2 (") and why in said
    assert said.endswith("what was measured stays in guard: the same command goes on from there")
    assert not Path("guard/guard.json").exists()


def test_a_head_that_can_not_open_what_the_base_wrote_is_one_sentence(
    toy: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    _, sides = upgraded(toy, "cant-open")
    assert run(*sides) == 2
    not_loaded(capsys, "flat: written in a format of tomorrow")


@pytest.mark.long
def test_a_head_that_never_comes_up_is_one_sentence_and_once_mended_the_guard_goes_on_with_what_was_measured(
    toy: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    lies, sides = upgraded(toy, "die-at-start")
    assert run(*sides) == 2
    not_loaded(capsys, "flat: no licence")
    kept = {path: path.read_bytes() for path in Path("guard/results/load").rglob("*.json")}
    assert any("red-1.0" in path.parts for path in kept), "the load of the base is there"
    lies.write_text("")
    assert run(*sides) in (0, 3, 4) and Path("guard/guard.json").exists()
    assert {path: path.read_bytes() for path in kept} == kept, "and was not made again"


def test_a_base_that_can_not_read_what_a_newer_version_wrote_is_refused_before_anything_is_started(
    toy: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    toy.files["systems"]["red-1.1"] = {**toy.files["systems"]["red-1.0"], "version": "1.1"}
    toy.files["systems"]["down"] = {"of": "red-1.0", "load": {"upgrade_from": "red-1.1"}}
    toy.save()
    assert run("--base", "down", "--head", "red-1.1") == 2
    assert "down: flat 1.0 can't read what 1.1 wrote" in capsys.readouterr().err
    assert not Path("guard/results").exists()


def test_a_dataset_that_a_side_lacks_is_refused_before_anything_is_started(
    toy: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--base", "red-1.0", "--head", "slow-1.0", "--dataset", "blobs-l3", "--budget", "11m") == 2
    assert "unknown dataset 'blobs-l3'" in capsys.readouterr().err
    assert not Path("guard/results").exists()


def test_both_sides_get_the_same_vectors_of_each_dataset(toy: Toy) -> None:
    asked = guard.Asked("red-1.0", "slow-1.0", ["blobs-l2", "blobs-cosine"], ["k5"], budget_s=640)
    pairs = guard.workflow.expand(guard.prepare(asked, config(toy), Path("guard"))).pairs
    assert {pair.dataset for pair in pairs} == {"blobs-l2", "blobs-cosine"}
    assert all(pair.a.vectors == pair.b.vectors and pair.a.truth == pair.b.truth for pair in pairs)
    assert len({pair.a.vectors for pair in pairs}) == 2


def test_the_config_of_a_project_stays_as_it_is(toy: Toy) -> None:
    before = {path: path.read_bytes() for path in config(toy).rglob("*") if path.is_file()}
    guard.prepare(ASKED, config(toy), Path("guard"))
    assert {path: path.read_bytes() for path in config(toy).rglob("*") if path.is_file()} == before
    with pytest.raises(UserError, match="holds the config that is to be copied"):
        guard.prepare(ASKED, config(toy), toy.folder)


def test_equal_recall_asks_each_side_at_the_effort_that_reaches_it(toy: Toy) -> None:
    toy.files["workloads"]["k5"] |= {"queries": 20, "tuning_queries": 30}
    toy.save()
    choice = guard.prepare(
        guard.Asked("red-1.0", "slow-1.0", ["blobs-l2"], ["k5"], target_recall=0.9, budget_s=320),
        config(toy),
        Path("g"),
    )
    (control, pair) = guard.workflow.expand(choice).pairs
    assert control.workload == pair.workload == "k5-recall90"


def test_what_somebody_built_is_an_artifact_by_its_content(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    built, again = tmp_path / "built", tmp_path / "again"
    for folder, content in ((built, "one"), (again, "one")):
        (folder / "lib").mkdir(parents=True)
        (folder / "server").write_text(content)
        (folder / "server").chmod(0o755)
        (folder / "lib" / "part").write_text("part")
    artifact = artifacts.kept(built)
    assert artifact == artifacts.kept(again) and artifact["kind"] == "path"
    (again / "server").write_text("two")
    assert artifacts.kept(again) != artifact
    cache = tmp_path / "cache" / "anncestry"
    spec = {"system": "red-1.0-head", "version": "1.0", "artifact": artifact}
    record = artifacts.run(spec, tmp_path / "out", cache, "k" * 12)
    assert record["digest"] == artifact["sha256"] and os.access(tmp_path / "out" / "server", os.X_OK)
    (cache / "paths" / artifact["sha256"] / "server").write_text("changed")
    with pytest.raises(DataError, match=r"red-1\.0-head: the build with the digest .* is not what it was"):
        artifacts.run(spec, tmp_path / "out2", cache, "k" * 12)


def test_a_difference_within_the_margin_is_no_regression_however_sure() -> None:
    cpu = guard.QUANTITIES["server_cpu_us_per_query"]
    records = {change: ratio(change, 0.004) for change in (0.98, 1.0, 1.02, 1.10, 0.90)}
    said = {change: guard.ruling_of(judged(record), cpu, Rule(margin=0.05)) for change, record in records.items()}
    assert said == {
        0.98: guard.Ruling.NO_REGRESSION,
        1.0: guard.Ruling.NO_REGRESSION,
        1.02: guard.Ruling.NO_REGRESSION,
        1.10: guard.Ruling.REGRESSED,
        0.90: guard.Ruling.IMPROVED,
    }
    assert guard.ruling_of(judged(ratio(1.02, 0.03)), cpu, Rule(margin=0.05)) is guard.Ruling.CANT_TELL


def test_an_invalid_pair_says_nothing_of_any_quantity_and_names_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run in which nothing was answered has no recall either."""
    side = {"recall": {"by_distance": {"value": None}}, "queries": 2, "by_query": {"query": [2], "by_distance": [1.0]}}
    nothing = {"a": 0.0, "b": 0.0, "value": None, "low": None, "high": None, "log_error": None, "freedom": 0.0}
    record = {
        "spec": {"workload": {}},
        "sides": {"a": side, "b": side},
        "quantities": {name: nothing for name in guard.DEFAULT if name != "recall"},
        "rounds": [{}] * 6,
        "gates": [{"gate": "a: answered", "ok": False, "detail": "run 6: 0 of 0 requests answered"}],
        "valid": False,
    }
    monkeypatch.setattr(guard, "_record", lambda folder, pair: record)
    pair = SimpleNamespace(dataset="blobs", workload="k5", is_control=False)
    found = guard.findings(cast(Any, SimpleNamespace(pairs=[pair])), Path(), guard.DEFAULT, Rule())
    assert [finding.quantity for finding in found] == list(guard.DEFAULT)
    assert {finding.said for finding in found} == {guard.Ruling.CANT_TELL} and guard.status(found) == 4
    assert {finding.note for finding in found} == {"invalid: a: answered: run 6: 0 of 0 requests answered"}
    assert "0 of 0 requests" in guard.text(guard.Asked("a", "b", ["blobs"], ["k5"]), found)


def test_a_percentile_of_too_few_answers_regresses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def said(rate: float) -> guard.Finding:
        tail = {"a": 50.0, "b": 90.0, "value": 1.8, "low": 1.7, "high": 1.9, "log_error": 0.02, "freedom": 4.0}
        record = {
            "spec": {"workload": {}, "slices": {"slice_s": 0.5, "discard_ms": 100, "blocks": 3}},
            "quantities": {"qps": {"a": 2 * rate, "b": rate}, "p99_ms": tail},
            **{"rounds": [{}] * 6, "gates": [], "valid": True},
        }
        monkeypatch.setattr(guard, "_record", lambda folder, pair: record)
        pair = SimpleNamespace(dataset="blobs", workload="k5", is_control=False)
        (found,) = guard.findings(cast(Any, SimpleNamespace(pairs=[pair])), Path(), ["p99_ms"], Rule())
        return found

    # In a block, a side is watched for four slices of 0.4 s.
    assert said(70.0).said is guard.Ruling.REGRESSED
    few = said(20.0)
    assert (few.said, few.note) == (guard.Ruling.CANT_TELL, "32 answers a block: too few for p99")


def ratio(value: float, error: float) -> dict[str, Any]:
    entry = {"a": 1.0, "b": value, "value": value, "log_error": error, "freedom": 5.0}
    return {"quantities": {"server_cpu_us_per_query": entry}, "rounds": [{}] * 6, "spec": {"workload": {}}}


def judged(record: dict[str, Any]) -> Any:
    (verdict,) = guard.judge_all([guard._evidence(record, "server_cpu_us_per_query")], Rule(margin=0.05))
    return verdict


@pytest.mark.parametrize(
    ("failed", "control", "said"),
    [
        (["b: row count"], True, guard.Ruling.REGRESSED),
        (["b: filter applied", "b: settings"], True, guard.Ruling.REGRESSED),
        (["b: row count"], False, guard.Ruling.CANT_TELL),
        (["a: row count", "b: row count"], True, guard.Ruling.CANT_TELL),
        (["b: warm-up"], True, guard.Ruling.CANT_TELL),
        (["frozen in time"], True, guard.Ruling.CANT_TELL),
    ],
)
def test_a_head_that_alone_loses_rows_or_answers_wrongly_is_a_regression(
    monkeypatch: pytest.MonkeyPatch, failed: list[str], control: bool, said: guard.Ruling
) -> None:
    gates = [{"gate": name, "ok": False, "detail": "d"} for name in failed]
    records = {
        False: {**ratio(1.0, 0.004), "valid": False, "gates": gates},
        True: {**ratio(1.0, 0.004), "valid": control, "gates": []},
    }
    monkeypatch.setattr(guard, "_record", lambda folder, pair: records[pair.is_control])
    pairs = [SimpleNamespace(dataset="blobs", workload="k5", is_control=each) for each in (True, False)]
    (found,) = guard.findings(cast(Any, SimpleNamespace(pairs=pairs)), Path(), ["server_cpu_us_per_query"], Rule())
    assert (found.said, found.note) == (said, f"invalid: {failed[0]}: d")


@pytest.mark.parametrize(("target", "said"), [(None, guard.Ruling.REGRESSED), (0.9, guard.Ruling.NO_REGRESSION)])
def test_recall_above_the_target_that_was_asked_for_is_no_regression(
    monkeypatch: pytest.MonkeyPatch, target: float | None, said: guard.Ruling
) -> None:
    def side(value: float) -> dict[str, Any]:
        found = [value] * 1000
        by_query = {"query": list(range(1000)), "by_distance": found}
        return {"recall": {"by_distance": {"value": value}}, "queries": 1000, "by_query": by_query}

    asked = {} if target is None else {"target_recall": target}
    record = {"sides": {"a": side(0.99), "b": side(0.91)}, "quantities": {}, "rounds": [{}] * 6, "gates": []}
    record |= {"valid": True, "spec": {"workload": asked}}
    monkeypatch.setattr(guard, "_record", lambda folder, pair: record)
    pair = SimpleNamespace(dataset="blobs", workload="k5", is_control=False)
    (found,) = guard.findings(cast(Any, SimpleNamespace(pairs=[pair])), Path(), ["recall"], Rule())
    assert found.said is said and (found.base, found.head) == (0.99, 0.91)


def test_a_long_budget_asks_for_no_more_pairs_than_there_may_be_and_for_an_interval_within_the_margin(
    toy: Toy,
) -> None:
    choice = guard.prepare(replace(ASKED, budget_s=36_000, margin_percent=4.0), config(toy), Path("guard"))
    duet = yaml.safe_load((choice.folder / "experiments" / "guard.yaml").read_text())["duet"]
    assert (duet["first"], duet["most"], duet["interval_percent"]) == (6, 100, 2.0)


def test_files_of_one_s_own_dataset_are_found_from_the_folder_too(toy: Toy) -> None:
    source = {"kind": "file", "format": "npy", "base": "own/mine/base.npy", "queries": "/else/queries.npy"}
    toy.files["datasets"]["mine"] = {**toy.files["datasets"]["blobs-l2"], "sources": [source]}
    toy.save()
    target = guard.copied(config(toy), Path("guard"))
    (kept,) = yaml.safe_load((target / "datasets.yaml").read_text())["mine"]["sources"]
    assert kept == {**source, "base": str((toy.folder / "own/mine/base.npy").resolve())}


def test_a_quantity_that_no_record_has_can_not_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    record = {**ratio(1.0, 0.004), "valid": True, "gates": []}
    record["quantities"]["server_cpu_us_per_query"] |= {"low": 0.99, "high": 1.01}
    monkeypatch.setattr(guard, "_record", lambda folder, pair: record)
    pair = SimpleNamespace(dataset="blobs", workload="k5", is_control=False)
    names = ("server_cpu_us_per_query", "pss_anon_mib")
    found = guard.findings(cast(Any, SimpleNamespace(pairs=[pair])), Path(), names, Rule())
    assert [finding.said for finding in found] == [guard.Ruling.NO_REGRESSION, guard.Ruling.CANT_TELL]
    assert found[1].note == "not recorded"


def test_a_folder_where_a_run_is_at_work_is_refused_and_its_config_stays(
    toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard.prepare(ASKED, config(toy), Path("guard"))
    before = {path: path.read_bytes() for path in Path("guard").rglob("*") if path.is_file()}
    monkeypatch.setattr("anncestry.provenance.running.at_work", lambda folder: folder == Path("guard"))
    with pytest.raises(UserError, match="--folder guard: a run is at work there"):
        guard.prepare(replace(ASKED, workloads=["k7"]), config(toy), Path("guard"))
    assert {path: path.read_bytes() for path in Path("guard").rglob("*") if path.is_file()} == before


def test_a_folder_with_a_config_that_is_somebody_s_own_is_refused_and_its_config_stays(toy: Toy) -> None:
    own = Path("project") / "config" / "systems.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("mine: {}")
    with pytest.raises(UserError, match="--folder project: holds a config that would be replaced"):
        guard.prepare(ASKED, config(toy), Path("project"))
    assert own.read_text() == "mine: {}"
    guard.prepare(ASKED, config(toy), Path("guard"))
    guard.prepare(ASKED, config(toy), Path("guard"))


def test_what_was_built_is_loaded_as_its_system_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "kept", lambda path: {"kind": "path", "sha256": "0" * 64})
    parent = {"engine": "milvus", "version": "2.3.5", "artifact": {"kind": "none"}}
    child = {"of": "a", "load": {"batch_rows": 500, "upgrade_from": "b", "kill": {"after_share": 0.5}}}
    entry = guard.built({"a": parent, "a-batches": child}, "a-batches", Path("build"))
    assert entry == {
        "engine": "milvus", "version": "2.3.5", "load": {"batch_rows": 500}, "artifact": artifacts.kept(Path()),
    }  # fmt: skip
    assert "load" not in guard.built({"a": parent}, "a", Path("build"))


def test_a_config_that_is_not_yaml_is_one_sentence(toy: Toy) -> None:
    with open(config(toy) / "systems.yaml", "a") as file:
        file.write("x: [\n")
    with pytest.raises(ConfigError, match=r"systems\.yaml"):
        guard.prepare(ASKED, config(toy), Path("guard"))


def test_a_time_is_read_with_its_unit() -> None:
    assert [guarding.seconds(text) for text in ("90s", "10m", "1.5h")] == [90, 600, 5400]
    with pytest.raises(UserError, match="--budget 10: is no time"):
        guarding.seconds("10")


def config(toy: Toy) -> Path:
    return toy.folder / "config"


def test_the_gates_that_convict_a_head_or_a_lie_are_gates() -> None:
    gates = {name for name, _ in declared_gates()}
    assert gates >= guard._OF_HEAD
    caught_by = {gate for _, _, of in engine_check.LIES.values() for gate in of}
    assert caught_by - {engine_check._DEFECTS} <= gates
