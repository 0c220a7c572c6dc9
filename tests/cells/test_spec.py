"""The keys of the config: described in the schemas, listed in docs/config.md, typed in `cells.spec`."""

from __future__ import annotations

import runpy
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from anncestry import workflow
from anncestry.cells import config, expand, features, spec
from anncestry.errors import ConfigError
from tests.builders.configs import refused
from tests.toy import ROOT, Toy

FILES = sorted(path.name.removesuffix(".schema.yaml") for path in spec.SCHEMAS.glob("*.yaml"))
FILES = [name for name in FILES if name not in ("common", "records")]
WITHOUT_UNIT = ("seed", "first_port", "epoch")


@pytest.fixture
def toy(tmp_path) -> Toy:
    return Toy.make(tmp_path)


def keys(part: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every key in a part of a schema, with its rules."""
    if isinstance(part, list):
        for each in part:
            yield from keys(each)
    elif isinstance(part, Mapping):
        part = spec.resolved(part)
        for key, rules in part.get("properties", {}).items():
            yield key, spec.resolved(rules)
        for name in ("items", "additionalProperties", "oneOf"):
            yield from keys(part.get(name))
        yield from keys(list(part.get("properties", {}).values()))


def test_the_page_of_all_keys_is_current():
    reference = runpy.run_path(str(ROOT / "tools" / "pages" / "reference.py"))
    assert reference["PAGE"].read_text() == reference["page"](), "run `make references`"


@pytest.mark.parametrize("file", FILES)
def test_each_key_has_a_sentence_and_each_number_a_unit(file):
    stages = ("epoch", "sources", "attestations", "why", "of")
    found = [(key, rules) for key, rules in keys(spec.schema(file)) if file != "epochs" or key in stages]
    assert found
    for key, rules in found:
        assert rules["description"].endswith("."), key
        first = rules.get("anyOf", [rules])[0]
        if first.get("type") in ("integer", "number") and key not in WITHOUT_UNIT:
            assert rules["unit"], key


MODELS = [
    (spec.Config, spec.schema("config")),
    (spec.Block, spec.schema("config")["properties"]["matrix"]["items"]),
    (spec.Load, spec.schema("config")["properties"]["load"]),
    (spec.Truth, spec.schema("config")["properties"]["truth"]),
    (spec.Dataset, spec.schema("datasets")["additionalProperties"]["oneOf"][1]),
    (spec.System, spec.schema("systems")["additionalProperties"]),
    (spec.SystemLoad, spec.schema("systems")["additionalProperties"]["properties"]["load"]),
    (spec.Kill, spec.schema("systems")["additionalProperties"]["properties"]["load"]["properties"]["kill"]),
    (spec.Topology, spec.schema("topologies")["additionalProperties"]),
    (spec.Limits, spec.schema("topologies")["additionalProperties"]["properties"]["limits"]),
    (
        spec.DeclaredStorage,
        spec.schema("topologies")["additionalProperties"]["properties"]["declared_storage"],
    ),
    (spec.Part, spec.schema("parts")["additionalProperties"]),
]
MADE = {
    "Config": [
        *("folder", "experiment", "datasets", "systems", "topologies"),
        *("parts", "storage", "workloads", "platforms", "epochs", "engine_epochs", "feature_epochs"),
    ],
    "Dataset": ["prefix", "origin"],
    "System": ["built_as"],
}
"""Fields that are in no schema: what reading the files makes of them."""
KINDS = {"integer": int, "number": float, "string": str, "boolean": bool}


@pytest.mark.parametrize(("model", "rules"), MODELS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_model_has_the_keys_types_and_defaults_of_its_schema(model, rules):
    rules = spec.resolved(rules)
    made = MADE.get(model.__name__, [])
    fields = {name.rstrip("_"): hint for name, hint in get_type_hints(model).items() if name not in ("plain", *made)}
    assert fields.keys() == rules["properties"].keys() - {"of"}
    needed = rules.get("required", rules.get("else", {}).get("required", ()))
    for key, hint in fields.items():
        rule = spec.resolved(rules["properties"][key])
        is_entry = isinstance(hint, type) and issubclass(hint, spec.Entry)
        if not is_entry:  # an absent entry becomes one without keys
            assert (type(None) in get_args(hint)) == (key not in needed and "default" not in rule), key
        kinds = [kind for kind in get_args(hint) if get_origin(kind) is Literal] or [hint]
        if "enum" in rule:
            assert list(get_args(kinds[0])) == rule["enum"], key
        elif isinstance(rule.get("type"), str) and rule["type"] in KINDS:
            assert KINDS[rule["type"]] in (hint, *get_args(hint)), key


def test_the_defaults_of_workloads_are_those_in_the_schema(toy):
    rules = spec.schema("workloads")["additionalProperties"]["properties"]
    bare = {"queries": 10, "warmup": 0, "duration_s": 10}
    cold = features.complete({**bare, "start": "cold"}, "w")
    assert cold["page_cache"] == rules["page_cache"]["default"]
    searching = features.complete({**bare, "loop": "open", "slo": {"p99_ms": 1}}, "w")
    assert searching["arrivals"] == rules["arrivals"]["default"]
    for key in ("precision", "max_probes"):
        assert searching["slo"][key] == rules["slo"]["properties"][key]["default"]
    stream = features.complete({**bare, "stream": {"insert_per_s": 5}}, "w")["stream"]
    assert {key: rule["default"] for key, rule in rules["stream"]["properties"].items()} == {
        **stream,
        "insert_per_s": 0,
    }
    assert rules["tuning_queries"]["default"] == expand.TUNING_QUERIES


@pytest.mark.parametrize(
    ("file", "path", "value", "words"),
    [
        ("workloads", ["k5", "nq"], 0, ["k5.nq: 0 is less than the minimum of 1"]),
        ("workloads", ["k5", "nq"], [1, 0], ["k5.nq.1: 0 is less than the minimum of 1"]),
        ("workloads", ["k5", "nq"], "two", ["k5.nq: 'two' is not of type 'integer'"]),
        ("topologies", ["standalone", "tls"], {"cas": "X"}, ["standalone.tls: unknown key 'cas'; did you mean 'ca'"]),
        ("topologies", ["standalone", "limits"], {"cpu": 1}, ["standalone.limits: unknown key 'cpu'", "'cpus'"]),
        ("config", ["index"], {"M": 16}, ["config.yaml: index: key 'type' is missing"]),
        ("config", ["index"], {"type": "hnsw", "M": 16}, ["index: key 'ef_construction' is missing"]),
        ("systems", ["red-1.0", "index"], {"m": 0}, ["red-1.0.index.m: 0 is less than the minimum"]),
        ("systems", ["red-1.0", "artifact"], {"kind": "maven", "sha256": "0" * 64}, ["'coordinates' is missing"]),
    ],
)
def test_an_error_names_the_key_within_shared_definitions_and_alternatives(toy, file, path, value, words):
    entry = toy.files[file]
    for step in path[:-1]:
        entry = entry[step]
    entry[path[-1]] = value
    refused(toy, *words)


def test_a_prefix_has_the_keys_of_its_dataset_and_its_own_rows(toy):
    toy.files["datasets"]["short"] = {"of": "blobs-l2", "prefix": 300}
    toy.save()
    datasets = config.load(toy.folder / "config").datasets
    whole, short = datasets["blobs-l2"], datasets["short"]
    assert (short.origin, short.prefix, short.rows, short.queries) == ("blobs-l2", 300, 300, whole.queries)
    assert (whole.origin, whole.prefix, whole.conditions) == ("blobs-l2", None, [])
    toy.files["datasets"]["shorter"] = {"of": "short", "prefix": 30}
    toy.save()
    with pytest.raises(ConfigError, match=r"shorter\.of: short is a prefix itself"):
        config.load(toy.folder / "config")


def test_the_readme_of_the_config_links_the_page():
    assert "docs/config.md" in (ROOT / "config" / "README.md").read_text()


@pytest.mark.parametrize(
    ("part", "written"),
    [
        ("workloads", {"client": "bytes"}),
        ("workloads", {"loop": "closed"}),
        ("workloads", {"start": "warm"}),
        ("workloads", {"timeout_s": 30}),
        ("workloads", {"duration_s": 2.0}),
        ("topologies", {"entry": "first"}),
        ("topologies", {"publish": False}),
    ],
)
def test_a_default_that_is_written_out_and_another_form_of_a_number_are_no_other_cell(toy, part, written):
    toy.block.update(datasets=["blobs-l2"], systems=["blue-1.0"], topologies=["standalone"], workloads=["k5"])
    toy.files["workloads"]["k5"]["duration_s"] = 2

    def keys_of_cell():
        toy.save()
        (cell,) = workflow.expand(workflow.Choice(toy.folder / "config", "default")).cells
        return cell.load, cell.query

    before = keys_of_cell()
    toy.files[part]["k5" if part == "workloads" else "standalone"] |= written
    assert keys_of_cell() == before
