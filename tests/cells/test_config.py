"""Bad input to the matrix is refused while parsing, by a sentence that names the file and the key."""

from __future__ import annotations

import pytest

from anncestry import workflow
from anncestry.cells import config
from anncestry.errors import ConfigError
from anncestry.metrics.decide import Rule
from anncestry.report.model.verdicts import rule_of
from tests.builders.configs import expand, refused
from tests.servers import SYSTEMS
from tests.toy import ROOT, Toy


def test_what_decides_is_in_the_key_of_the_page_only_and_is_what_verdicts_have_without_a_config(toy):
    plain = expand(toy)
    assert rule_of(plain.config) == Rule()
    toy.files["config"]["decide"] = {"margin_percent": 2, "level": 0.01}
    other = expand(toy)
    assert rule_of(other.config) == Rule(margin=0.02, level=0.01)
    assert other.table == plain.table and [cell.paths for cell in other.cells] == [cell.paths for cell in plain.cells]
    assert other.report != plain.report


@pytest.fixture
def toy(tmp_path):
    return Toy.make(tmp_path)


@pytest.mark.parametrize(
    ("kind", "singular"),
    [("datasets", "dataset"), ("systems", "system"), ("topologies", "topology"), ("workloads", "workload")],
)
def test_an_unknown_name_in_the_matrix_is_refused_and_a_close_one_suggested(toy, kind, singular):
    known = next(iter(toy.files[kind]))
    toy.block[kind][0] = known + "x"
    refused(toy, "config.yaml", f"matrix.0.{kind}", f"unknown {singular} '{known}x'", f"did you mean '{known}'")


@pytest.mark.parametrize(
    ("file", "path", "value", "words"),
    [
        ("config", ["seed"], "three", ["config.yaml: seed", "integer"]),
        ("config", ["index", "M"], 1, ["config.yaml: index.M"]),
        ("config", ["index", "efc"], 16, ["config.yaml: index", "unknown key 'efc'"]),
        ("config", ["platfrom"], "x", ["config.yaml", "unknown key 'platfrom'", "did you mean 'platform'"]),
        ("datasets", ["blobs-l2", "metric"], "euclid", ["datasets.yaml: blobs-l2.metric"]),
        ("datasets", ["blobs-l2", "rows"], 2.5, ["datasets.yaml: blobs-l2.rows"]),
        ("datasets", ["blobs-l2", "sources", 0, "seeed"], 1, ["datasets.yaml: blobs-l2.sources.0", "'seeed'"]),
        ("systems", ["red-1.0", "vesion"], "1", ["systems.yaml: red-1.0", "'vesion'", "did you mean 'version'"]),
        ("systems", ["red-1.0", "engine"], "oracle", ["unknown engine 'oracle'", "milvus", "weaviate"]),
        ("topologies", ["standalone", "nodes"], 0, ["topologies.yaml: standalone.nodes"]),
        ("topologies", ["standalone", "runtime"], "lxc", ["topologies.yaml: standalone.runtime"]),
        ("workloads", ["k5", "k"], "ten", ["workloads.yaml: k5.k"]),
        ("workloads", ["k5", "filter"], {"field": "category", "in": [12]}, ["workloads.yaml: k5.filter.in.0", "12"]),
        ("workloads", ["k5", "filter"], {"field": "colour"}, ["workloads.yaml: k5.filter"]),
        ("platforms", ["default", "expect"], {"cores": "many"}, ["platforms.yaml: default.expect.cores"]),
        ("epochs", ["load", "epoch"], 0, ["epochs.yaml: load.epoch"]),
        ("epochs", ["engines"], {"tests.flat": {"epoch": 0}}, ["epochs.yaml: engines.tests.flat.epoch"]),
        ("epochs", ["engines"], {"milvis": {"epoch": 2}}, ["epochs.yaml: engines", "did you mean 'milvus'"]),
    ],
)
def test_a_wrong_type_or_an_unknown_key_is_refused_by_file_and_key(toy, file, path, value, words):
    entry = toy.files[file] = __import__("copy").deepcopy(toy.files[file])
    for step in path[:-1]:
        entry = entry[step]
    entry[path[-1]] = value
    refused(toy, *words)


def test_more_neighbours_than_rows_are_refused(toy):
    toy.files["workloads"]["k5"]["k"] = 541
    refused(toy, "workloads.yaml: k5.k", "541", "blobs-l2", "540 rows")


def test_more_queries_than_the_dataset_has_are_refused(toy):
    toy.files["workloads"]["k5"]["queries"] = 61
    refused(toy, "workloads.yaml: k5.queries", "61", "60")


def test_a_prefix_longer_than_its_dataset_is_refused(toy):
    toy.files["datasets"]["long"] = {"of": "blobs-l2", "prefix": 541}
    refused(toy, "datasets.yaml: long.prefix", "541", "540")


def test_a_combination_that_an_engine_can_not_do_is_refused_while_parsing(toy):
    toy.files["topologies"]["cluster-3"]["nodes"] = 4
    refused(toy, "flat", "topology")


def test_a_key_given_twice_is_refused(toy):
    path = toy.folder / "config" / "platforms.yaml"
    path.write_text("default: {}\ndefault: {}\n")
    with pytest.raises(ConfigError, match=r"platforms\.yaml.*'default' occurs twice"):
        config.load(toy.folder / "config")


def test_a_file_that_is_not_yaml_or_missing_is_refused_by_name(toy):
    path = toy.folder / "config" / "systems.yaml"
    path.write_text("red: [1, 2\n")
    with pytest.raises(ConfigError, match=r"systems\.yaml: not valid YAML"):
        config.load(toy.folder / "config")
    path.unlink()
    with pytest.raises(ConfigError, match=r"systems\.yaml: missing"):
        config.load(toy.folder / "config")


def test_an_unknown_experiment_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"unknown experiment 'smok'; did you mean 'smoke'"):
        config.load(ROOT / "config", "smok")


def test_every_experiment_that_is_shipped_expands():
    names = ["default", *(path.stem for path in (ROOT / "config" / "experiments").glob("*.yaml"))]
    for name in names:
        matrix = workflow.expand(workflow.Choice(ROOT / "config", name))
        assert matrix.cells or matrix.absent, name


def test_the_default_matrix_is_the_one_that_is_promised():
    cells = workflow.expand(workflow.Choice(ROOT / "config", "default")).cells
    assert {cell.dataset for cell in cells} == {"fashion-mnist-784-euclidean", "random-xs-20-angular"}
    assert {cell.system for cell in cells} == {"milvus-2.3.5", "weaviate-1.27.0"}
    clustered = {cell.dataset for cell in cells if cell.topology == "cluster-3"}
    assert clustered == {"fashion-mnist-784-euclidean"}, "the small dataset says little more, in minutes"
    assert {cell.topology for cell in cells if cell.system == "weaviate-1.27.0"} == {"standalone", "cluster-3"}
    assert len(cells) == len(set(cells)) == (2 * 2 + 1) * 7


def test_equal_specs_have_equal_keys_whatever_the_order_of_their_parts(toy):
    before = expand(toy).cells
    toy.files["workloads"]["k5"] = dict(reversed(toy.files["workloads"]["k5"].items()))
    assert expand(toy).cells == before


def test_a_published_name_of_a_dataset_draws_the_page_again_and_measures_nothing(toy):
    before = expand(toy)
    toy.files["datasets"]["blobs-l2"]["published_as"] = ["their-blobs"]
    after = expand(toy)
    assert after.cells == before.cells and after.table == before.table and after.report != before.report


def test_a_prefix_has_a_truth_of_its_own(toy):
    toy.files["datasets"]["short"] = {"of": "blobs-l2", "prefix": 300}
    toy.block["datasets"] = ["blobs-l2", "short"]
    whole, short = (
        cell
        for cell in expand(toy).cells
        if (cell.system, cell.topology) == ("red-1.0", "standalone") and cell.workload == "k5"
    )
    assert whole.download == short.download
    assert whole.truth != short.truth
    assert whole.load != short.load


def test_what_a_source_is_does_not_matter_where_the_content_is_pinned(toy):
    pinned = {"base": "0" * 64, "queries": "1" * 64}
    toy.files["datasets"]["blobs-l2"] = {**toy.files["datasets"]["blobs-l2"], "content": pinned}
    before = expand(toy).cells
    toy.files["datasets"]["blobs-l2"]["sources"] = [{"kind": "file", "format": "hdf5", "path": "elsewhere.hdf5"}]
    assert expand(toy).cells == before


def test_a_range_of_files_is_in_the_key_as_the_names_that_it_stands_for(toy):
    shipped = config.read_yaml(ROOT / "config" / "datasets.yaml")["vectordbbench-laion-100m"]
    (source,) = shipped["sources"]
    assert source["base"] == ["train-{00..99}-of-100.parquet"]
    toy.block["datasets"] = ["large"]
    toy.files["datasets"]["large"] = shipped
    by_range = expand(toy)
    names = [f"train-{number:02}-of-100.parquet" for number in range(100)]
    toy.files["datasets"]["large"] = {**shipped, "sources": [{**source, "base": names}]}
    by_names = expand(toy)
    assert by_range.cells == by_names.cells and by_range.specs == by_names.specs
    toy.files["datasets"]["large"]["sources"][0]["base"] = names[:-1]
    assert expand(toy).cells != by_names.cells


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (["a.parquet", "part-{8..11}.parquet"], ["a", "part-8", "part-9", "part-10", "part-11"]),
        (["{098..101}.parquet"], ["098", "099", "100", "101"]),
        (["{7..7}.parquet"], ["7"]),
    ],
)
def test_numbers_of_a_range_have_as_many_digits_as_the_first_or_more(toy, given, names):
    _of_files(toy, given)
    (source,) = expand(toy).config.datasets["blobs-l2"].sources
    assert source["base"] == [f"{name}.parquet" for name in names]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["part-*.parquet"], ["'part-*.parquet'", "has '*'", "part-{00..99}.parquet"]),
        (["part-{9..0}.parquet"], ["ends before it begins; write {0..9}"]),
        (["part-{a..c}.parquet"], ["has braces, but not one range"]),
        (["{0..1}-{0..1}.parquet"], ["has braces, but not one range"]),
        (["part-{0..1.parquet"], ["has braces, but not one range"]),
        (["{0..999999}.parquet"], ["more than 100,000 files"]),
        (["part-{0..3}.parquet", "part-2.parquet"], ["names part-2.parquet twice"]),
        (["part/{0..3}.parquet"], ["does not match"]),
    ],
)
def test_a_range_that_can_not_be_read_is_refused_with_what_is_wrong(toy, given, words):
    _of_files(toy, given)
    refused(toy, "datasets.yaml", "blobs-l2.sources", *words)


def _of_files(toy, base):
    source = {"kind": "parquet", "url": "https://example.org/x", "base": base, "queries": "test.parquet"}
    toy.files["datasets"]["blobs-l2"]["sources"] = [source]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rate_per_s": 100, "duration_s": 1}, ["workloads.yaml: k5.rate_per_s", "needs loop: open"]),
        ({"arrivals": "poisson"}, ["k5.arrivals", "needs loop: open"]),
        ({"loop": "open", "rate_per_s": 100}, ["k5", "needs duration_s"]),
        ({"loop": "open", "duration_s": 1}, ["k5", "needs rate_per_s, or slo"]),
        ({"loop": "open", "duration_s": 1, "rate_per_s": 5}, ["k5", "about 5 requests"]),
        ({"slo": {"p99_ms": 5}, "duration_s": 1}, ["k5.slo", "needs loop: open"]),
        (
            {"loop": "open", "slo": {"p99_ms": 5}, "duration_s": 1, "rate_per_s": 9},
            ["k5.rate_per_s", "searches for the rate"],
        ),
        ({"loop": "open", "slo": {"p99_ms": 0}, "duration_s": 1}, ["k5.slo.p99_ms"]),
        ({"loop": "open", "slo": {"recall": 0.9}, "duration_s": 1}, ["k5.slo", "'p99_ms' is missing"]),
        (
            {"loop": "open", "slo": {"p99_ms": 500}, "duration_s": 3},
            ["k5.slo.p99_ms", "500 ms is too long for probes of 3 s", "set duration_s to 10 or more"],
        ),
        ({"loop": "half-open"}, ["k5.loop"]),
    ],
)
def test_an_impossible_load_is_refused_by_name(toy, changes, words):
    toy.files["workloads"]["k5"] = {**toy.files["workloads"]["k5"], **changes}
    refused(toy, *words)


def test_a_list_of_rates_is_a_workload_of_each_and_the_matrix_names_them_all(toy):
    toy.files["workloads"]["k5"] |= {"loop": "open", "duration_s": 1, "rate_per_s": [100, 250.5]}
    names = {cell.workload for cell in expand(toy).cells}
    assert names == {"k5-rate100", "k5-rate250.5", "k5-category"}


def test_a_closed_loop_has_the_key_that_it_had_before_there_were_others(toy):
    workload = expand(toy).specs[expand(toy).cells[0].query]["workload"]
    assert workload.keys() == {"name", "ef_search", "timeout_s", "k", "clients", "runs", "queries", "warmup"}


def test_an_epoch_of_an_engine_is_in_the_keys_of_its_loads_from_the_second_on(toy):
    toy.files["systems"]["blue-1.0"]["engine"] = "tests:flat"
    before = expand(toy)
    toy.files["epochs"]["engines"] = {"tests:flat": {"epoch": 1}}
    assert expand(toy).specs == before.specs
    toy.files["epochs"]["engines"] = {"tests:flat": {"epoch": 2}}
    for old, new in zip(before.cells, expand(toy).cells, strict=True):
        bumped = old.system == "blue-1.0"
        assert [(old.load != new.load), (old.query != new.query), (old.recall != new.recall)] == [bumped] * 3
        assert (old.artifact, old.vectors, old.truth) == (new.artifact, new.vectors, new.truth)


def test_zero_vectors_are_kept_only_by_systems_that_can_and_a_rule_other_than_the_default_is_in_the_key(toy):
    before = expand(toy)
    cosine = toy.files["datasets"]["blobs-cosine"]
    cosine["zero_vectors"] = "keep"
    for old, new in zip(before.cells, expand(toy).cells, strict=True):
        assert (old.vectors != new.vectors) == (old.dataset == "blobs-cosine")
        assert ("zero_vectors" in expand(toy).specs[new.vectors]) == (old.dataset == "blobs-cosine")
    toy.files["systems"]["blue-1.0"] = SYSTEMS["mariadb-11.8.6"]
    toy.block.update(topologies=["standalone"], workloads=["k5"])
    refused(toy, "blobs-cosine", "zero_vectors: keep: unsupported by mariadb", "use zero_vectors: leave_out")
    cosine["zero_vectors"] = "leave_out"
    assert expand(toy).cells


def test_a_rule_for_zero_vectors_needs_cosine_and_rows_that_nothing_else_counts(toy):
    toy.files["datasets"]["blobs-l2"]["zero_vectors"] = "leave_out"
    refused(toy, "datasets.yaml: blobs-l2.zero_vectors: leave_out: needs metric: cosine")
    del toy.files["datasets"]["blobs-l2"]["zero_vectors"]
    toy.files["datasets"]["blobs-cosine"] |= {"zero_vectors": "leave_out", "conditions": ["int"]}
    refused(toy, "blobs-cosine.zero_vectors: leave_out: unsupported with conditions")
