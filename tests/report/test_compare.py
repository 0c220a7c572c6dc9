"""What a comparison promises: a verdict only where noise is known and the question was the same."""

from __future__ import annotations

import csv
import hashlib
import json
import re
import shutil
import statistics
from collections.abc import Callable, Iterable
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from anncestry.errors import DataError, UserError
from anncestry.metrics.decide import Outcome, proportion_interval
from anncestry.metrics.defects import percent
from anncestry.provenance.records import identity, sha256_file
from anncestry.report import diffs
from anncestry.report.compare.lines import AMOUNT, HEADLINE, RECALL, Comparison, Line, Words, compare, words_of
from anncestry.report.compare.sides import Side, find, of_results, side
from anncestry.report.compare.text import summary
from anncestry.report.model import numbers
from anncestry.report.model.noise import asked
from anncestry.report.model.quantities import state_of
from anncestry.report.model.verdicts import Verdicts
from anncestry.report.site.compare_page import write
from tests.builders.world import HOSTILE, World, ancestry_of, made_invalid, numbers_behind, parsed

EQUAL, UNKNOWN, NOT_COMPARABLE = Outcome.EQUAL, Outcome.UNDETERMINED, Outcome.NOT_COMPARABLE
SAME, SAME_RECORD = Outcome.EQUIVALENT, Outcome.SAME_RECORD
MILVUS, WEAVIATE = "milvus-2.3.5", "weaviate-1.27.0"
RESULTS = Path("results")
Edit = Callable[[dict[str, Any]], object]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.chdir(tmp_path)
    return World({"fashion-mnist-784-euclidean": ("l2", 60000, 784)})


def _side(world: World, system: str = "", label: str = "", kind: str = "") -> Side:
    """The records as they are now; later edits of the files leave it as it is."""
    frame = world.tidy()
    chosen = frame[frame["system"] == system] if system else frame
    return side(label or system or "all", chosen, RESULTS, kind=kind)


def _again(world: World, edit: Edit = dict.copy, stage: str = "", workload: str = "") -> None:
    """Everything measured anew with the same outcome, except for what `edit` does to records of a stage."""
    paths = {path for cell in world.cells for name, path in cell.items() if name in ("load_path", "query_path")}
    for path in sorted(paths | {cell["recall_path"] for cell in world.cells}):
        if Path(path).exists():
            world.edit(path, lambda record: record.update(created=f"{record['created']}, again"))
    for cell in world.cells:
        if stage and (not workload or cell["workload"] == workload):
            world.edit(cell[f"{stage}_path"], edit)


def _changed(world: World, edit: Edit, stage: str, workload: str = "") -> Comparison:
    """Milvus before and after a change of its records."""
    before = _side(world, MILVUS, "before")
    _again(world, edit, stage, workload)
    return compare(before, _side(world, MILVUS, "after"))


def _line(comparison: Comparison, metric: str, workload: str = "k10") -> Line:
    found = [line for line in comparison.lines if (line.metric, line.workload) == (metric, workload)]
    assert len(found) == 1
    return found[0]


def _scaled(metric: str, factor: float, std: float | None = None) -> Edit:
    def edit(record: dict[str, Any]) -> None:
        entry = record["summary"][metric]
        entry.update(value=entry["value"] * factor, std=entry["std"] if std is None else std)

    return edit


def _of_spec(part: str, **facts: Any) -> Edit:
    return lambda record: record["spec"].setdefault(part, {}).update(facts)


# Verdicts


def test_a_side_against_itself_was_not_measured_twice(world: World) -> None:
    lines = compare(_side(world), _side(world)).lines
    with_numbers = [line for line in lines if line.a.value is not None]
    assert with_numbers and {line.verdict for line in with_numbers} == {SAME_RECORD}
    assert all(line.ratio in (1.0, None) and line.judged.low is None for line in lines)


def test_the_same_outcome_measured_again_is_never_faster_or_slower(world: World) -> None:
    found = _changed(world, dict.copy, "query")
    assert not any(line.judged.decided or line.better for line in found.lines)
    assert {line.verdict for line in found.lines if line.a.value is not None} == {SAME, EQUAL, UNKNOWN}
    assert _line(found, "p50_ms").verdict == SAME


@pytest.mark.parametrize(
    ("metric", "factor", "verdict", "better"),
    [
        ("p50_ms", 1.5, "slower", "a"),
        ("p99_ms", 0.5, "faster", "b"),
        ("qps", 1.5, "faster", "b"),
        ("qps", 0.5, "slower", "a"),
    ],
)
def test_a_shift_larger_than_noise_is_told(world: World, metric: str, factor: float, verdict: str, better: str) -> None:
    line = _line(_changed(world, _scaled(metric, factor), "query"), metric)
    assert (line.verdict, line.better) == (verdict, better)
    assert line.ratio == pytest.approx(factor)
    assert (
        line.a.value is not None
        and line.b.value is not None
        and line.judged.low is not None
        and line.judged.high is not None
    )
    assert line.judged.low < line.b.value - line.a.value < line.judged.high and line.judged.low * line.judged.high > 0


def test_a_shift_within_noise_is_not_told(world: World) -> None:
    found = _changed(world, _scaled("p50_ms", 1.5, std=1.5), "query")
    line = _line(found, "p50_ms")
    assert line.verdict == UNKNOWN and line.ratio == pytest.approx(1.5)
    assert re.fullmatch(r"undetermined \(\d+ more rounds\)", line.said)
    of = " or ".join(sorted({each.judged.of for each in found.lines if each.judged.further is not None}))
    assert "rounds" in of and f"+9: nine more {of} would probably determine it" in summary(found, everything=True)
    assert line.judged.low is not None and line.judged.high is not None and line.judged.low < 0 < line.judged.high


def test_the_other_way_round_every_verdict_is_turned(world: World) -> None:
    opposite = {
        ("faster", "slower"), ("slower", "faster"), ("better", "worse"), ("worse", "better"),
        ("smaller", "larger"), ("larger", "smaller"), ("less", "more"), ("more", "less"),
    }  # fmt: skip
    a, b = _side(world, MILVUS), _side(world, WEAVIATE)
    there, back = compare(a, b).lines, {line.metric + line.workload + line.phase: line for line in compare(b, a).lines}
    turned = [(line.verdict, back[line.metric + line.workload + line.phase].verdict) for line in there]
    assert any(line.judged.decided for line in there)
    same = (SAME, UNKNOWN, NOT_COMPARABLE, EQUAL)
    assert [(a, b) for a, b in turned if not (a == b if a in same else (a, b) in opposite)] == []


@pytest.mark.parametrize("workload", ["k10-clients1", "k10-clients16"])
def test_one_run_never_wins(world: World, workload: str) -> None:
    line = _line(_changed(world, _scaled("qps", 10), "query"), "qps", workload)
    assert line.verdict == UNKNOWN and not line.better and line.judged.low is None
    assert line.judged.reason.startswith("A (before): one run; B (after): one run")
    assert line.ratio == pytest.approx(10), "what was seen is shown"


def test_a_load_is_measured_once_so_its_time_and_size_name_no_winner(world: World) -> None:
    def slow(record: dict[str, Any]) -> None:
        record["times"]["load_s"] *= 10
        record["storage"]["total_mib"] *= 10

    found = _changed(world, slow, "load", workload="k10")
    assert {_line(found, metric, "").verdict for metric in ("load_s", "storage_total_mib")} == {UNKNOWN}


def test_two_runs_are_enough_where_it_is_known_how_much_such_numbers_vary(world: World) -> None:
    """As on the page: the variances of all cells are moderated. Recall is of queries, however many runs asked them."""

    def two(record: dict[str, Any]) -> None:
        for entry in record["summary"].values():
            if entry.get("std"):
                runs = [0.99 * entry["value"], 1.01 * entry["value"]]
                entry.update(runs=runs, std=statistics.stdev(runs))

    for cell in world.cells:
        world.edit(cell["query_path"], two)
    before = _side(world, MILVUS, "before")
    _again(world, _scaled("p50_ms", 2), "query")
    for cell in world.cells:
        world.edit(cell["recall_path"], _recall(0.8))
    found = compare(before, _side(world, MILVUS, "after"))
    assert _line(found, "p50_ms").a.runs == 2
    assert (_line(found, "p50_ms").verdict, _line(found, "recall_by_distance").verdict) == ("slower", "worse")


def test_latencies_at_each_sides_own_highest_rate_answer_no_common_question(world: World) -> None:
    for cell in world.cells:
        world.edit(cell["query_path"], _of_spec("workload", slo={"p99_ms": 10}))
    before = _side(world, MILVUS, "before")
    _again(world, _scaled("p50_ms", 2), "query")
    line = _line(compare(before, _side(world, MILVUS, "after")), "p50_ms")
    assert (line.verdict, line.judged.reason) == (NOT_COMPARABLE, "each side at its own highest rate")


def test_one_run_on_one_side_is_enough_to_know_nothing(world: World) -> None:
    def single(record: dict[str, Any]) -> None:
        record["summary"]["p50_ms"] = {"value": 99.0, "std": None, "runs": [99.0]}

    line = _line(_changed(world, single, "query"), "p50_ms")
    assert line.verdict == UNKNOWN and line.judged.reason == "B (after): one run: at least 3 runs are needed"


@pytest.mark.parametrize("std", [0.0, 1e-16])
def test_runs_that_agree_but_for_rounding_tell_nothing_of_noise(world: World, std: float) -> None:
    _again(world, _scaled("p50_ms", 1.0, std=std), "query")
    line = _line(_changed(world, _scaled("p50_ms", 1.01, std=std), "query"), "p50_ms")
    assert (line.verdict, line.judged.reason) == (UNKNOWN, "no run differed from another")


def test_a_single_difference_in_resources_is_no_verdict(world: World) -> None:
    found = compare(_side(world, MILVUS), _side(world, WEAVIATE))
    of_resources = [line for line in found.lines if re.search("cpu_(avg|s$)|rss|io_", line.metric)]
    assert of_resources and not any(line.judged.decided for line in of_resources)


# Noise that runs don't show


@pytest.mark.parametrize(("percent", "verdict"), [(20, "slower"), (60, UNKNOWN)])
def test_a_difference_that_is_no_larger_than_the_given_noise_is_none(
    world: World, percent: float, verdict: str
) -> None:
    before = _side(world, MILVUS, "before")
    _again(world, _scaled("p50_ms", 1.5), "query")
    found = compare(before, _side(world, MILVUS, "after"), asked(percent))
    line = _line(found, "p50_ms")
    assert (line.verdict, line.judged.noise) == (verdict, f"runs; {percent:.1f} % as asked")
    assert line.ratio == pytest.approx(1.5), "what was measured is shown all the same"
    assert f"{percent:.1f} % as asked" in " ".join(summary(found).split())
    assert (line.judged.note == "") == line.judged.decided


def test_a_given_noise_makes_no_winner_of_what_was_measured_once(world: World) -> None:
    before = _side(world, MILVUS, "before")
    _again(world, _scaled("qps", 10), "query")
    found = compare(before, _side(world, MILVUS, "after"), asked(1))
    assert _line(found, "qps", "k10-clients1").verdict == UNKNOWN


def test_a_percentage_of_noise_is_not_meant_for_recall(world: World) -> None:
    before = _side(world, MILVUS, "before")
    _again(world, _recall(0.8), "recall")
    assert _line(compare(before, _side(world, MILVUS, "after"), asked(50)), "recall_by_distance").verdict == "worse"


def _upgraded(world: World, factor: float) -> Comparison:
    """Milvus measured again under its keys and `factor` slower; Weaviate under new ones, 1.5 times slower."""
    before = _side(world, label="before")
    _again(world)
    for cell in world.cells:
        world.edit(cell["query_path"], _scaled("p50_ms", 1.5 if cell["system"] == WEAVIATE else factor))
    after = _side(world, label="after")
    other = after.numbers["system"] == WEAVIATE
    renumbered = after.numbers.assign(
        number_id=after.numbers["number_id"].where(~other, "x" + after.numbers["number_id"])
    )
    return compare(before, replace(after, numbers=renumbered))


def _of(comparison: Comparison, system: str) -> Line:
    return next(
        line for line in comparison.lines if (line.system_b, line.workload, line.metric) == (system, "k10", "p50_ms")
    )


@pytest.mark.parametrize(("factor", "verdict"), [(1.1, "slower"), (1.6, UNKNOWN)])
def test_what_was_measured_twice_under_one_key_tells_how_large_the_noise_is(
    world: World, factor: float, verdict: str
) -> None:
    found = _upgraded(world, factor)
    changed, repeated = _of(found, WEAVIATE), _of(found, MILVUS)
    assert changed.verdict == verdict
    assert re.search(rf"runs; {100 * factor - 100:.1f} % between \d+ numbers measured twice", changed.judged.noise)
    assert repeated.measured_twice and repeated.judged.noise == "runs", "the evidence is not judged by itself"


def test_an_upgrade_of_the_machine_between_two_measurements_is_no_noise(world: World) -> None:
    before = _side(world, label="before")
    _again(world, lambda record: record["platform"].update(kernel="7.0"), "load")
    _again(world, _scaled("p50_ms", 1.6), "query")
    assert compare(before, _side(world, label="after")).noise.of_metric == {}


# Recall: its noise is that of the queries


def _recall(share: float, queries: int = 1000, std: float = 0.0) -> Edit:
    def edit(record: dict[str, Any]) -> None:
        for by in ("by_id", "by_distance"):
            record["recall"][by].update(value=share, std=std)
        record["queries"] = queries

    return edit


def test_repeats_of_the_same_queries_do_not_make_recall_certain(world: World) -> None:
    _again(world, _recall(0.985), "recall")
    line = _line(_changed(world, _recall(0.986, std=7.9e-17), "recall"), "recall_by_distance")
    assert line.verdict == UNKNOWN


@pytest.mark.parametrize(("queries", "verdict"), [(1000, "worse"), (20, UNKNOWN)])
def test_a_loss_of_recall_is_told_if_there_were_queries_enough(world: World, queries: int, verdict: str) -> None:
    _again(world, _recall(0.99, queries), "recall")
    assert _line(_changed(world, _recall(0.93, queries), "recall"), "recall_by_distance").verdict == verdict


def test_the_interval_of_two_proportions_is_that_of_the_literature() -> None:
    # Newcombe 1998, table II, method 10.
    assert proportion_interval(56 / 70, 70, 48 / 80, 80) == pytest.approx((0.0524, 0.3339), abs=1e-4)
    assert proportion_interval(9 / 10, 10, 3 / 10, 10) == pytest.approx((0.1705, 0.8090), abs=1e-4)
    low, high = proportion_interval(1.0 + 2e-16, 1000, 1.0, 1000)
    assert low < 0 < high, "a perfect score is not certainty"


def test_a_side_with_defective_answers_or_another_recall_is_marked_and_never_the_better_one(world: World) -> None:
    def defective(share: float) -> Edit:
        def edit(record: dict[str, Any]) -> None:
            _scaled("p50_ms", 0.5)(record)
            share_of = {"value": share, "low": share / 2, "high": 2 * share}
            record["defects"] = {"share": share_of, "answers": 1000, "short": 9, "empty": 0, "repeated": 0}
            record["defects"] |= {"violating": 0, "failed": 0}

        return edit

    for share, better in ((0.0005, "b"), (0.02, "")):
        line = _line(comparison := _changed(world, defective(share), "query"), "p50_ms")
        assert (line.verdict, line.better) == ("faster", better)
        assert line.b.marks == f" † {percent(share)}"
        text = summary(comparison)
        assert f"† {percent(share)}" in text and "† So many answers of the cell" in text
        page = write(comparison, Path("out")).read_text()
        assert f"† {percent(share)}" in page and "So many answers of the cell" in page


def test_speed_at_another_recall_says_so(world: World) -> None:
    before = _side(world, MILVUS, "before")
    _again(world, _scaled("p50_ms", 0.5), "query")
    for cell in world.cells:
        world.edit(cell["recall_path"], _recall(0.8))
    found = compare(before, _side(world, MILVUS, "after"))
    line = _line(found, "p50_ms")
    assert (line.verdict, line.judged.note) == ("faster", "with worse recall: 0.9993 against 0.8000")
    assert line.better == "", "not at the same recall"
    assert "with worse recall: 0.9993 against 0.8000" in summary(found)


def test_less_processor_time_at_less_recall_is_not_called_better(world: World) -> None:
    def halved(record: dict[str, Any]) -> None:
        entry = record["server_cpu_us_per_query"]
        entry.update(value=entry["value"] * 0.5)

    before = _side(world, MILVUS, "before")
    _again(world, halved, "query")
    assert _line(compare(before, _side(world, MILVUS, "after")), "server_cpu_us_per_query").better == "b"
    for cell in world.cells:
        world.edit(cell["recall_path"], _recall(0.8))
    line = _line(compare(before, _side(world, MILVUS, "after")), "server_cpu_us_per_query")
    assert (line.verdict, line.better, line.less_recall) == ("less", "", True)


@pytest.mark.parametrize(
    ("mine", "better", "note"),
    [
        (0.9993, "b", ""),
        (0.9985, "b", ""),  # surely not less by the margin
        (0.9960, "", "with undetermined recall: 0.9993 against 0.9960"),
        (0.9000, "", "with worse recall: 0.9993 against 0.9000"),
    ],
)
def test_a_faster_side_wins_only_with_a_recall_that_is_surely_not_less_as_on_a_page(
    world: World, mine: float, better: str, note: str
) -> None:
    """Each query finds all, or (of some) half: the same queries of both sides are compared."""

    def scored(recall: float) -> Edit:
        missed = round(2 * 1000 * (1 - recall))
        found = [0.5] * missed + [1.0] * (1000 - missed)

        def edit(record: dict[str, Any]) -> None:
            for rule in ("by_id", "by_distance"):
                record["recall"][rule] |= {"value": recall, "runs": [recall] * 3}
            record["by_query"] = {"query": list(range(1000)), "by_id": found, "by_distance": found}

        return edit

    for cell in world.cells:
        world.edit(cell["recall_path"], scored(0.9993))
    before = _side(world, MILVUS, "before")
    _again(world, _scaled("p50_ms", 0.5), "query")
    for cell in world.cells:
        world.edit(cell["recall_path"], scored(mine))
    line = _line(compare(before, _side(world, MILVUS, "after")), "p50_ms")
    assert (line.verdict, line.better, line.judged.note) == ("faster", better, note)


def test_a_faster_side_with_more_recall_wins(world: World) -> None:
    for cell in world.cells:
        world.edit(cell["recall_path"], _recall(0.8))
    before = _side(world, MILVUS, "before")
    _again(world, _scaled("p50_ms", 0.5), "query")
    for cell in world.cells:
        world.edit(cell["recall_path"], _recall(0.9993))
    line = _line(compare(before, _side(world, MILVUS, "after")), "p50_ms")
    assert (line.better, line.judged.note) == ("b", "with better recall: 0.8000 against 0.9993")


# Not comparable


@pytest.mark.parametrize(
    ("stage", "edit", "reason"),
    [
        ("query", lambda r: r["spec"].update(platform="laptop"), "other platform: default against laptop"),
        ("load", lambda r: r["platform"].update(cores=2), "other machine behind platform default: cores 8 against 2"),
        ("load", _of_spec("dataset", rows=30000), "other dataset: rows 60000 against 30000"),
        ("load", lambda r: r["spec"].update(vectors="0" * 12), "other dataset: vectors None against 000000000000"),
        ("load", _of_spec("topology", nodes=3), "other topology: nodes 1 against 3"),
        ("load", lambda r: r["spec"].update(epoch=2), "other epoch of load: None against 2"),
        ("query", lambda r: r["spec"].update(epoch=2), "other epoch of query: None against 2"),
        ("query", _of_spec("workload", ef_search=50), "other workload: ef_search null against 50"),
        ("query", lambda r: r["spec"].update(seed=8), "other workload: seed null against 8"),
    ],
)
def test_another_question_is_not_comparable_and_says_why(world: World, stage: str, edit: Edit, reason: str) -> None:
    found = _changed(world, edit, stage, workload="k10")
    for line in (_line(found, "p50_ms"), _line(found, "recall_by_distance")):
        assert (line.verdict, line.judged.reason, line.ratio, line.judged.low) == (NOT_COMPARABLE, reason, None, None)
        assert line.a.value is not None and line.b.value is not None, "both numbers are still shown"
    affected = NOT_COMPARABLE if stage == "load" else EQUAL
    assert _line(found, "load_s", "").verdict == affected
    other = _line(found, "p50_ms", "k100")
    assert other.verdict == (NOT_COMPARABLE if stage == "load" else SAME), "a query's obstacle is its own cell's"
    assert reason in re.sub(r"\n +", " ", summary(found))


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda r: r["spec"].update(epoch=2), "other epoch of recall: None against 2"),
        (lambda r: r["spec"].update(truth="f" * 12), "other truth: truth None against ffffffffffff"),
    ],
)
def test_another_truth_makes_recall_incomparable_and_nothing_else(world: World, edit: Edit, reason: str) -> None:
    found = _changed(world, edit, "recall", workload="k10")
    line = _line(found, "recall_by_distance")
    assert (line.verdict, line.judged.reason) == (NOT_COMPARABLE, reason)
    assert _line(found, "p50_ms").verdict == SAME


def _with_vectors(world: World, key: str, digest: str) -> None:
    """Let the loads quote vectors of this key, whose base has this digest."""
    path = f"data/vectors/x@{key}/record.json"
    outputs = {"base": {"path": "base.npy", "sha256": hashlib.sha256(digest.encode()).hexdigest()}}
    World.write(
        path,
        {"schema_version": 1, "stage": "normalize", "key": key, "spec": {"stage": "normalize"}, "outputs": outputs},
    )
    quoted = {"path": path, "sha256": _sha256(path), "identity": identity(json.loads(Path(path).read_text()))}

    def edit(record: dict[str, Any]) -> None:
        record["spec"]["vectors"] = key
        record["inputs"]["vectors"] = quoted

    _again(world, edit, "load")


def _sha256(path: str) -> str:
    return sha256_file(Path(path))


@pytest.mark.parametrize(
    ("key", "digest", "reason"),
    [
        ("b" * 12, "one", ""),
        ("b" * 12, "two", "other dataset: the digest of base differs"),
        ("a" * 12, "two", "other dataset: the digest of base differs"),
    ],
)
def test_a_dataset_is_its_content_whatever_its_key(world: World, key: str, digest: str, reason: str) -> None:
    _with_vectors(world, "a" * 12, "one")
    before = _side(world, MILVUS, "before")
    _with_vectors(world, key, digest)
    line = _line(compare(before, _side(world, MILVUS, "after")), "p50_ms")
    assert (line.verdict, line.judged.reason) == (NOT_COMPARABLE if reason else SAME, reason)


@pytest.mark.parametrize(
    ("key", "digest", "reason"),
    [
        ("a" * 12, "one", ""),
        ("b" * 12, "one", "other dataset: vectors aaaaaaaaaaaa against bbbbbbbbbbbb"),
        ("a" * 12, "two", "other dataset: another content behind vectors aaaaaaaaaaaa"),
    ],
)
def test_without_the_data_a_dataset_is_what_the_records_quote(world: World, key: str, digest: str, reason: str) -> None:
    _with_vectors(world, "a" * 12, "one")
    shutil.rmtree("data")
    before = _side(world, MILVUS, "before")
    _with_vectors(world, key, digest)
    shutil.rmtree("data")
    line = _line(compare(before, _side(world, MILVUS, "after")), "p50_ms")
    assert (line.verdict, line.judged.reason) == (NOT_COMPARABLE if reason else SAME, reason)


def test_two_platforms_that_are_asked_for_are_compared(world: World) -> None:
    before = _side(world, MILVUS, "default", "platform")

    def moved(record: dict[str, Any]) -> None:
        record["spec"]["platform"] = "laptop"

    _again(world, moved, "load")
    _again(world, moved, "query")
    _again(world, _scaled("p50_ms", 0.5), "query")
    line = _line(compare(before, _side(world, MILVUS, "laptop", "platform")), "p50_ms")
    assert line.verdict == "faster"


# Sides with gaps


@pytest.mark.parametrize(("invalid", "letter"), [(MILVUS, "A"), (WEAVIATE, "B")])
def test_an_invalid_side_never_yields_a_ratio(world: World, invalid: str, letter: str) -> None:
    world.edit(world.cell(invalid, "k10")["query_path"], made_invalid)
    found = compare(_side(world, MILVUS), _side(world, WEAVIATE))
    of_cell = [line for line in found.lines if line.workload == "k10"]
    assert of_cell and all((line.ratio, line.verdict) == (None, NOT_COMPARABLE) for line in of_cell)
    reason = _line(found, "p50_ms").judged.reason
    assert reason == f"{letter} ({invalid}): invalid: row count: 25200 of 60000 rows"
    assert reason in summary(found)


def test_what_a_side_has_not_measured_is_named(world: World) -> None:
    Path(world.cell(WEAVIATE, "k10")["query_path"]).unlink()
    whole = _side(world, MILVUS)
    partial = _side(world, WEAVIATE)
    line = _line(compare(whole, partial), "p50_ms")
    assert (line.verdict, line.judged.reason) == (NOT_COMPARABLE, f"B ({WEAVIATE}): not measured")
    cut = Side("cut", partial.numbers[partial.numbers["workload"] != "k100"], partial.records)
    assert _line(compare(cut, whole), "p50_ms", "k100").judged.reason == "A (cut): no such cell"
    assert _line(compare(cut, whole), "flush_s", "").judged.reason == "A (cut): no such phase"


def test_what_neither_side_is_meant_to_have_is_left_out(world: World) -> None:
    found = compare(_side(world, MILVUS), _side(world, WEAVIATE))
    assert {line.workload for line in found.lines if line.metric == "selectivity"} == {
        "k10-category30",
        "k100-category30",
    }
    Path(world.cell(MILVUS, "k10")["query_path"]).unlink()
    Path(world.cell(WEAVIATE, "k10")["query_path"]).unlink()
    missing = _line(compare(_side(world, MILVUS), _side(world, WEAVIATE)), "p50_ms")
    assert missing.judged.reason == f"A ({MILVUS}): not measured; B ({WEAVIATE}): not measured"


def test_a_record_that_the_numbers_name_must_be_there(world: World) -> None:
    whole = _side(world, MILVUS)
    with pytest.raises(DataError, match=r"B \(bare\): results/load/.*: not among the records"):
        compare(whole, Side("bare", _side(world, WEAVIATE).numbers, {}))


def test_a_record_changed_after_the_table_was_made_is_refused(world: World) -> None:
    frame = world.tidy()
    path = world.cell(MILVUS, "k10")["load_path"]
    world.edit(path, lambda record: record.update(rows=1))
    with pytest.raises(DataError, match=f"{re.escape(path)}: not the record"):
        side("x", frame, RESULTS)


# Which system is set against which


def _systems(frame: pd.DataFrame, names: dict[str, str]) -> pd.DataFrame:
    return frame.assign(system=frame["system"].replace(names))


def test_systems_are_paired_by_name_then_by_engine(world: World) -> None:
    both = _side(world, label="before")
    upgraded = Side("after", _systems(both.numbers, {WEAVIATE: "weaviate-1.29.0"}), both.records)
    found = compare(both, upgraded)
    assert {(line.system_a, line.system_b) for line in found.lines} == {
        (MILVUS, MILVUS),
        (WEAVIATE, "weaviate-1.29.0"),
    }


def test_a_system_without_a_counterpart_is_named(world: World) -> None:
    found = compare(_side(world, label="both"), _side(world, MILVUS))
    alone = [line for line in found.lines if line.system_a == WEAVIATE]
    assert alone and all(line.system_b == "" and line.verdict == NOT_COMPARABLE for line in alone)
    assert all(f"B ({MILVUS}): no system to set against {WEAVIATE}" in line.judged.reason for line in alone)


def test_causes_that_are_no_obstacles_are_listed(world: World) -> None:
    found = _changed(world, _of_spec("index", M=32), "load")
    assert found.differences == (("index M", "16", "32"),)
    assert _line(found, "p50_ms").verdict == SAME
    assert "also differs: index M 16 → 32" in summary(found)


# Finding a side by name


def _table(world: World, name: str = "default@aaaaaaaaaaaa") -> None:
    numbers.write(world.tidy(), RESULTS / "table" / name)


class Git:
    """Revisions of these names, all with the results that lie here."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def commit(self, name: str) -> str:
        return "c0ffee" if name in self._names else ""

    def names(self) -> list[str]:
        return list(self._names)

    def results(self, name: str) -> Path:
        return RESULTS


def _find(name: str, **more: Any) -> Side:
    return find(name, RESULTS, "default", lambda experiment: "aaaaaaaaaaaa", **more)


def test_a_name_is_a_system_an_experiment_a_platform_or_a_revision(world: World) -> None:
    _table(world)
    _table(world, "smoke@bbbbbbbbbbbb")
    assert (_find(MILVUS).kind, set(_find(MILVUS).numbers["system"])) == ("system", {MILVUS})
    assert (_find("smoke").kind, _find("default").kind) == ("experiment", "experiment")
    assert _find("platform:default").kind == "platform"
    there = _find("HEAD~1", revisions=Git("HEAD~1"))
    assert (there.kind, there.label, there.commit) == ("revision", "HEAD~1", "c0ffee")
    assert _find(".").label == "working tree"


def test_a_name_of_nothing_is_refused_with_what_there_is(world: World) -> None:
    _table(world)
    with pytest.raises(
        UserError, match=rf"'milvus-9'.*no system \(known: {MILVUS}, {WEAVIATE}\).*with a table: default"
    ):
        _find("milvus-9")
    with pytest.raises(UserError, match=r"no revision \(no commit is called so; branches and tags: v1, v2\)"):
        _find("nowhere", revisions=Git("v1", "v2"))


@pytest.mark.parametrize(("name", "kind"), [(MILVUS, "system"), ("default", "experiment")])
def test_a_name_that_is_also_a_revision_must_say_which_is_meant(world: World, name: str, kind: str) -> None:
    _table(world)
    with pytest.raises(UserError, match=f"a {kind} and a git revision: say {kind}:{name} or revision:{name}"):
        _find(name, revisions=Git(name))
    assert _find(f"{kind}:{name}", revisions=Git(name)).kind == kind
    assert _find(f"revision:{name}", revisions=Git(name)).kind == "revision"


def test_of_several_tables_at_a_revision_that_is_meant_which_was_kept_as_current(world: World) -> None:
    _table(world, "default@0123456789ab")
    _again(world, _scaled("p50_ms", 2), "query")
    _table(world)
    with pytest.raises(DataError, match="several tables of default"):
        _find("HEAD", revisions=Git("HEAD"))
    diffs.write(numbers.read(RESULTS / "table" / "default@aaaaaaaaaaaa"), "default", RESULTS)
    found = _find("HEAD", revisions=Git("HEAD"))
    p50 = found.numbers.query(f"system == '{MILVUS}' and workload == 'k10' and metric == 'p50_ms'")["value"]
    assert p50.item() == pytest.approx(3.24, abs=0.01)


def test_nothing_measured_yet_is_said(world: World) -> None:
    with pytest.raises(UserError, match="no table of experiment default"):
        _find(MILVUS)


def test_of_several_tables_the_present_one_is_meant_else_one_must_be_named(world: World) -> None:
    _table(world)
    _table(world, "default@bbbbbbbbbbbb")
    assert _find("default").label == "default"
    with pytest.raises(DataError, match="default@aaaaaaaaaaaa, default@bbbbbbbbbbbb"):
        of_results(RESULTS, "default", label="x")
    assert of_results(RESULTS, "default@bbbbbbbbbbbb", label="x").label == "x"


def test_results_of_a_revision_may_lie_anywhere(world: World, tmp_path: Path) -> None:
    _table(world)
    here = of_results(RESULTS, "default", label="here")
    RESULTS.rename(tmp_path / "elsewhere")
    there = of_results(tmp_path / "elsewhere", "default", label="there")
    assert {line.verdict for line in compare(here, there).lines if line.a.value is not None} == {SAME_RECORD}


# Shown


def _texts(lines: Iterable[str]) -> list[str]:
    return [re.sub(r" +", " ", line).strip() for line in lines]


@pytest.mark.parametrize("everything", [False, True])
def test_the_text_fits_a_terminal_and_leads_with_what_matters(world: World, everything: bool) -> None:
    shown = summary(compare(_side(world, MILVUS), _side(world, WEAVIATE)), everything=everything).splitlines()
    assert all(len(line) <= 100 for line in shown)
    texts = _texts(shown)
    assert texts[:2] == [f"A {MILVUS}", f"B {WEAVIATE}"]
    metrics = [text.split()[0] for text in texts[texts.index("k10") + 1 :][:6]]
    assert metrics == ["p50_ms", "p95_ms", "p99_ms", "qps", "server_cpu_us_per_query", "recall_by_distance"]
    assert any(text.startswith("p50_ms 1.62 1.21 0.75 ") and " faster" in text for text in texts)
    assert texts.index("k10-clients2") < texts.index("k10-clients16"), "2 comes before 16"
    assert any("client_cpu_s" in text for text in texts) == everything
    assert any("corrected for all of them (Holm)" in text for text in " ".join(texts).split(". "))


def test_names_are_whole_where_the_terminal_is_wide_enough_and_cut_at_100_columns_else(world: World) -> None:
    long = f"{MILVUS}-with-{'a-very-' * 15}long-name"
    found = compare(_side(world, MILVUS, long), _side(world, WEAVIATE))
    assert f"A  {long}" in summary(found, width=160).splitlines()
    assert f"A  {long[:96]}…" in summary(found).splitlines()
    assert summary(found, width=40) == summary(found, width=100) == summary(found)


def test_hostile_names_stay_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    world = World({HOSTILE: ("l2", 1000, 8)})
    world.edit(
        world.cell(WEAVIATE, "k10")["query_path"],
        lambda r: r["gates"].append({"gate": HOSTILE, "ok": False, "detail": f"\x1b[2J\n{HOSTILE}"}),
    )
    found = compare(_side(world, MILVUS, HOSTILE), _side(world, WEAVIATE, f"\x1b]0;{HOSTILE}\x07"))
    shown = summary(found, everything=True)
    assert all(line.isprintable() and len(line) <= 100 for line in shown.splitlines())
    page = write(found, Path("out")).read_text()
    elements = parsed(page)
    assert not [tag for tag, _ in elements if tag == "img"]
    assert not [name for _, attributes in elements for name in attributes if name.startswith("on")]
    assert page.count("</script") == page.count("<script") == 4


def test_the_files_hold_every_line(world: World) -> None:
    found = compare(_side(world, MILVUS), _side(world, WEAVIATE))
    write(found, Path("out"))
    body = json.loads(Path("out/comparison.json").read_text())
    measured = ["2026-11-21T05:10:00+00:00", "2026-11-21T05:20:00+00:00"]
    assert body["a"] == {"label": MILVUS, "kind": "", "commit": "", "measured": measured}
    assert len(body["lines"]) == len(found.lines)
    with open("out/comparison.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(found.lines)
    for row, line in zip(rows, found.lines, strict=True):
        assert (row["verdict"], row["number_a"]) == (line.verdict, line.a.number)
        assert row["ratio"] == "" if line.ratio is None else float(row["ratio"]) == line.ratio


def test_every_number_of_the_page_leads_to_its_record(world: World) -> None:
    page = write(compare(_side(world, MILVUS), _side(world, WEAVIATE)), Path("out")).read_text()
    assert ">1.62 ± 0.02<" in page and ">0.9985<" in page, "repeats of recall are no ±"
    ancestry = ancestry_of(page)
    known = ancestry["numbers"]
    links = [a for tag, a in parsed(page) if tag == "a" and a.get("class") == "num"]
    assert len(links) > 100
    for link in links:
        for number in numbers_behind(link):
            record = known[number]["record"]
            assert known[number]["reason"] or ancestry["records"][record]["sha256"] == _sha256(record)


def test_a_number_measured_again_under_its_key_keeps_two_ancestries(world: World) -> None:
    found = _changed(world, _scaled("p50_ms", 2), "query")
    ancestry = ancestry_of(write(found, Path("out")).read_text())
    number = _line(found, "p50_ms").a.number
    assert number == _line(found, "p50_ms").b.number
    shown = {number: row["shown"] for number, row in ancestry["numbers"].items()}
    assert shown[f"{number}-a"].startswith("1.62 ") and shown[f"{number}-b"].startswith("3.24 ")


def test_the_page_needs_nothing_but_itself_and_its_ids_lead_somewhere(world: World) -> None:
    elements = parsed(write(compare(_side(world, MILVUS), _side(world, WEAVIATE)), Path("out")).read_text())
    ids = [a["id"] for _, a in elements if "id" in a]
    assert len(ids) == len(set(ids))
    links = {value for _, a in elements for name, value in a.items() if name in ("src", "href") and value}
    assert {link for link in links if link[0] != "#"} == {"data:,", "comparison.csv", "comparison.json"}
    assert {link[1:] for link in links if link[0] == "#"} <= set(ids)
    policy = next(a["content"] for tag, a in elements if tag == "meta" and "http-equiv" in a)
    assert policy and policy.startswith("default-src 'none'")


def test_equal_input_gives_an_equal_page(world: World) -> None:
    first, second = (write(compare(_side(world), _side(world)), Path(name)).read_bytes() for name in ("one", "two"))
    assert first == second


def test_two_systems_of_one_experiment_are_compared_round_by_round(world: World) -> None:
    """A round that was slow for both tells nothing of either, as in Table C."""
    for system, values in ((MILVUS, [1.0, 1.3, 1.6]), (WEAVIATE, [1.04, 1.37, 1.65])):

        def edit(record: dict[str, Any], values: list[float] = values) -> None:
            mean, std = statistics.mean(values), statistics.stdev(values)
            record["summary"]["p50_ms"].update(value=mean, std=std, runs=values)

        world.edit(world.cell(system, "k10")["query_path"], edit)
    widths = {}
    for kind in ("", "system"):
        found = compare(*(_side(world, name, kind=kind) for name in (MILVUS, WEAVIATE)))
        line = next(line for line in found.lines if (line.workload, line.metric) == ("k10", "p50_ms"))
        assert line.judged.low is not None and line.judged.high is not None, line.judged
        widths[kind] = line.judged.high - line.judged.low
    assert widths["system"] < 0.5 * widths[""]


def test_shares_of_defective_answers_are_compared_as_shares(world: World) -> None:
    for system, share in ((MILVUS, 0.0), (WEAVIATE, 0.02)):

        def edit(record: dict[str, Any], share: float = share) -> None:
            found = {"value": share, "std": None, "runs": [share], "low": 0.0, "high": 1.0, "interval": "95 %"}
            counts = dict.fromkeys(("short", "empty", "repeated", "violating", "failed"), 0)
            record["defects"] = {"answers": 3000, **counts, "share": found}

        world.edit(world.cell(system, "k10")["query_path"], edit)
    found = compare(_side(world, MILVUS), _side(world, WEAVIATE))
    line = next(line for line in found.lines if (line.workload, line.metric) == ("k10", "defect_share"))
    assert line.verdict == "more" and line.better == "a"
    assert (line.judged.low, line.judged.high) == pytest.approx(proportion_interval(0.02, 1000, 0.0, 1000))


def test_a_rate_that_a_search_found_is_compared_over_its_runs_and_is_no_share(world: World) -> None:
    for system, rates in ((MILVUS, [950.0, 960.0, 940.0]), (WEAVIATE, [1900.0, 1920.0, 1880.0])):

        def edit(record: dict[str, Any], rates: list[float] = rates) -> None:
            mean, std = statistics.mean(rates), statistics.stdev(rates)
            record["slo"] = {"max_rate_per_s": {"value": mean, "std": std, "runs": rates}}

        world.edit(world.cell(system, "k10")["recall_path"], edit)
    found = compare(_side(world, MILVUS), _side(world, WEAVIATE))
    line = next(line for line in found.lines if (line.workload, line.metric) == ("k10", "max_rate_per_s"))
    assert line.a.value == 950 and line.verdict == "faster"


def _searched(world: World, milvus: dict[str, Any], weaviate: dict[str, Any], factor: float = 2.0) -> Comparison:
    """Both systems at their own highest rates, Weaviate's `factor` times Milvus's; and how either's search ended."""
    sides = ((MILVUS, 950.0, milvus, (0.99, 1.0, 1.01)), (WEAVIATE, 950.0 * factor, weaviate, (1.0, 1.01, 0.99)))
    for system, rate, end, spread in sides:
        found = {"value": rate, "std": rate / 100, "runs": [each * rate for each in spread]}
        cell = world.cell(system, "k10")
        world.edit(cell["recall_path"], lambda r, found=found, end=end: r.update(slo={"max_rate_per_s": found, **end}))
        world.edit(cell["query_path"], lambda r, found=found: r["summary"].update(qps=found))
    return compare(_side(world, MILVUS), _side(world, WEAVIATE))


@pytest.mark.parametrize("metric", ["max_rate_per_s", "qps"])
@pytest.mark.parametrize("end", ["bound_by_probes", "client_bound", "unsettled"])
def test_a_rate_that_is_only_a_lower_limit_wins_above_the_other_and_never_loses(
    world: World, end: str, metric: str
) -> None:
    won = _line(_searched(world, {}, {end: [2]}), metric)
    assert (won.verdict, won.better) == ("faster", "b") and f"B ({WEAVIATE}): " in won.judged.note
    assert won.judged.note.endswith("in run 2: it is at least that")
    lost = _line(_searched(world, {end: [2]}, {}), metric)
    assert (lost.verdict, lost.better, lost.judged.further) == (UNKNOWN, "", None)
    assert lost.judged.reason.startswith(f"A ({MILVUS}): ")
    assert lost.judged.reason.endswith("in run 2: it may be higher, so nothing is told")


@pytest.mark.parametrize("limits", [({"bound_by_probes": [1, 2, 3]}, {}), ({}, {"client_bound": [1]})])
def test_a_lower_limit_is_equivalent_to_nothing_and_the_text_says_why(
    world: World, limits: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    assert _line(_searched(world, {}, {}, 1.0), "qps").verdict in (SAME, EQUAL)
    found = _searched(world, *limits, 1.0)
    assert _line(found, "qps").verdict == UNKNOWN
    assert "it may be higher, so nothing is told" in " ".join(summary(found).split())


def test_a_lower_limit_is_no_loser_on_the_page_either(world: World) -> None:
    for ends, decided in ((({}, {"client_bound": [1]}), True), (({"client_bound": [1]}, {}), False), (({}, {}), True)):
        _searched(world, *ends)
        rows = [row for row in numbers.rows_of(world.tidy()) if (row["metric"], row["workload"]) == ("qps", "k10")]
        pair = [next(row for row in rows if row["system"] == system) for system in (MILVUS, WEAVIATE)]
        every = numbers.rows_of(numbers.first_builds(world.tidy()))
        records = {path: json.loads(Path(path).read_text()) for path in {row["record"] for row in every} if path}
        (verdict,) = Verdicts(every, records).all([(pair[0], pair[1])])
        assert verdict.decided == decided


def test_a_search_that_did_not_reach_its_target_is_no_invalid_number(world: World) -> None:
    missed = {"max_rate_per_s": {"value": None, "std": None, "runs": []}, "reason": "p99 of run 1 is 12 ms"}
    for system in (MILVUS, WEAVIATE):
        world.edit(world.cell(system, "k10")["recall_path"], lambda record: record.update(slo=missed))
    rows = numbers.rows_of(world.tidy())
    reasons = {row["reason"] for row in rows if row["system"] == MILVUS and row["workload"] == "k10"}
    assert "target not reached: p99 of run 1 is 12 ms" in reasons
    assert state_of(reasons) == "valid"
    found = compare(_side(world, MILVUS), _side(world, WEAVIATE))
    line = next(line for line in found.lines if (line.workload, line.metric) == ("k10", "max_rate_per_s"))
    assert line.a.problem == "target not reached: p99 of run 1 is 12 ms"


def test_systems_of_several_builds_are_judged_by_these(world: World) -> None:
    frame = world.tidy()
    chosen = (frame["metric"] == "load_s") & (frame["rebuild"].fillna(1) == 1)
    assert len(set(frame[chosen]["system"])) == 2
    for system, mean in ((MILVUS, 10.0), (WEAVIATE, 20.0)):
        rows = chosen & (frame["system"] == system)
        frame.loc[rows, ["value", "rebuild_mean", "rebuild_std", "rebuilds"]] = [12.0, mean, mean / 100, 3]
    sides = [side(name, frame[frame["system"] == name], RESULTS) for name in (MILVUS, WEAVIATE)]
    (line,) = (line for line in compare(*sides).lines if line.metric == "load_s")
    assert (line.verdict, line.judged.noise) == ("slower", "builds")
    assert line.ratio == 2, "of all builds, not of the first ones"
    assert line.judged.low is not None and 9 < line.judged.low < 10
    (line,) = (line for line in compare(*sides, noise=asked(120)).lines if line.metric == "load_s")
    assert line.verdict == UNKNOWN, "a noise that is asked for holds for builds, too"


def test_a_feature_says_which_way_its_numbers_are_better() -> None:
    better = {
        "max_rate_per_s": ("slower", "faster", 1),
        "fault_recovered_s": ("faster", "slower", -1),
        "fault_lost": ("fewer", "more", -1),
        "stream_fresh_recall": ("worse", "better", 1),
        "stream_stale_share": ("less", "more", -1),
        "rate_per_s": ("lower", "higher", 0),
        "lag_p99_ms": ("lower", "higher", 0),
    }
    assert {metric: astuple(words_of(metric)) for metric in better} == better


@pytest.mark.parametrize(
    ("metric", "words"),
    [("robustness_0.9", RECALL), ("ndcg", RECALL), ("recall_worst1", RECALL), ("recall_zero_share", AMOUNT)],
)
def test_a_percentage_of_noise_is_meant_for_no_kind_of_recall(metric: str, words: Words) -> None:
    assert words_of(metric) is words


def test_what_only_one_side_has_is_counted_at_the_end_and_hides_nothing_that_both_have(world: World) -> None:
    whole = _side(world, MILVUS)
    cut = Side("cut", whole.numbers[whole.numbers["workload"] != "k100"], whole.records)
    found = compare(cut, whole)
    text = summary(found)
    head, _, rest = text.partition("only on one side:")
    assert "\n k100\n" not in head and "\n k10\n" in head
    gone = [line for line in found.lines if line.workload == "k100" and line.metric in HEADLINE]
    said = " ".join(rest.split())
    assert f"{len(gone)} numbers of" in said and "A (cut): no such cell" in said and "/k100" in said
