"""Sets whose queries have conditions on payloads, as Qdrant publishes them: columns, truth of each query, requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anncestry import engines, workflow
from anncestry.cells.config import read_yaml
from anncestry.datasets import metadata, normalize, payload, truth
from anncestry.engines import lucene
from anncestry.engines.qdrant import wire as qdrant
from anncestry.engines.redis import wire as redis
from anncestry.errors import ConfigError, DataError, Unsupported
from anncestry.measure.vectors import Filtering, choose, open_vectors
from anncestry.provenance import records
from tests.builders.bench import failed
from tests.builders.publisher import archive, get, npy
from tests.flat.engine import ENGINE as flat
from tests.toy import ROOT, Toy

ROWS, ASKED, DIM, K = 400, 60, 6, 7
RANDOM = np.random.default_rng(5)
BASE = RANDOM.normal(size=(ROWS, DIM)).astype(np.float32)
QUERIES = RANDOM.normal(size=(ASKED, DIM)).astype(np.float32)
WORDS = ["the", "a", "A", 'say "no\\', "it's 50 %_", "dé 😀", "or", "null"]
"""Keywords that a language of conditions could take for something else."""
PAYLOADS = [
    {
        "word": WORDS[RANDOM.integers(len(WORDS))],
        "Field name": WORDS[RANDOM.integers(2, 5)],
        "n": int(RANDOM.integers(-10, 10)),
        "x": float(RANDOM.random()),
        "left alone": None,
    }
    for _ in range(ROWS)
]
KINDS = ["keyword", "int", "float"]


def match(name: str, value: Any) -> dict[str, Any]:
    return {name: {"match": {"value": value}}}


def between(name: str, **bounds: float | None) -> dict[str, Any]:
    return {name: {"range": bounds}}


def conditions_of(query: int) -> Any:
    """One, two joined by and, two by or, ranges of both kinds, none, and one that no row fulfils."""
    word, other = WORDS[query % len(WORDS)], WORDS[query % 3 + 2]
    return [
        {"and": [match("word", word)]},
        {"and": [match("word", word), match("Field name", other)]},
        {"or": [match("word", word), match("word", other)]},
        {"and": [between("x", gt=0.2, lt=0.2 + query / 100)]},
        {"or": [between("x", gte=PAYLOADS[query]["x"], lt=None), match("n", query % 20 - 10)]},
        {"and": [between("n", gt=-2.5, lte=query % 7)], "or": [match("word", word), between("x", lte=0.5)]},
        None,
        {"and": [match("word", "nobody's")]},
    ][query % 8]


def fulfils(row: dict[str, Any], asked: Any) -> bool:
    """Qdrant's meaning, said plainly."""

    def holds(entry: dict[str, Any]) -> bool:
        ((name, ask),) = entry.items()
        if "match" in ask:
            return bool(row[name] == ask["match"]["value"])
        signs = {"gt": "__gt__", "gte": "__ge__", "lt": "__lt__", "lte": "__le__"}
        bounds = {sign: float(bound) for sign, bound in ask["range"].items() if bound is not None}
        return all(getattr(float(row[name]), signs[sign])(bound) for sign, bound in bounds.items())

    if not asked:
        return True
    return all(map(holds, asked.get("and", []))) and ("or" not in asked or any(map(holds, asked["or"])))


PASSING = np.array([[fulfils(row, conditions_of(query)) for row in PAYLOADS] for query in range(ASKED)])
FAR = np.where(PASSING, ((QUERIES[:, None].astype(float) - BASE[None]) ** 2).sum(axis=2), np.inf)
ORDER = np.argsort(FAR, axis=1, kind="stable")
CLOSEST = [row[: min(K, passing.sum())].tolist() for row, passing in zip(ORDER, PASSING, strict=True)]


def lines(rows: list[Any]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def asked_lines(closest: Any = CLOSEST, asked: Any = conditions_of) -> list[dict[str, Any]]:
    return [
        {"query": QUERIES[query].tolist(), "conditions": asked(query), "closest_ids": closest[query]}
        for query in range(ASKED)
    ]


def publish(folder: Path, rows: Any = PAYLOADS, tests: Any = None) -> None:
    members = {"vectors.npy": npy(BASE), "payloads.jsonl": lines(rows), "tests.jsonl": lines(tests or asked_lines())}
    archive(folder / "set.tgz", {f"./{name}": body for name, body in members.items()})


def entry_of(**where: str) -> dict[str, Any]:
    members = {"base": "vectors.npy", "queries": "tests.jsonl", "payloads": "payloads.jsonl"}
    return {"kind": "archive", **where, "format": "npy", **members}


def got(tmp_path: Path, entry: dict[str, Any], **changes: Any) -> dict[str, Any]:
    spec = {"rows": ROWS, "queries": ASKED, "dim": DIM, "conditions": KINDS, **changes}
    return get(tmp_path, entry, **spec)


def made(tmp_path: Path, prefix: int | None = None) -> Path:
    """The folder of the normalized set, published in `tmp_path`."""
    publish(tmp_path)
    got(tmp_path, entry_of(path=str(tmp_path / "set.tgz")))
    spec = {"metric": "l2", "prefix": prefix, "seed": 7}
    normalize.run(spec, tmp_path / "out", tmp_path / "vectors", key="v")
    return tmp_path / "vectors"


OWN = {"metric": "l2", "filter": {"field": "payload"}, "depth": K}


def test_each_query_has_the_truth_of_its_own_conditions_and_the_publisher_s_agrees(
    published: Any,
    tmp_path: Path,
) -> None:
    folder, address = published
    publish(folder)
    record = got(tmp_path, entry_of(url=f"{address}/set.tgz"))
    columns = record["payload"]["columns"]
    assert {name: column["kind"] for name, column in columns.items()} == {
        "Field name": "keyword", "n": "int", "word": "keyword", "x": "float",
    }, "what no condition names is no column"  # fmt: skip
    assert record["content"].keys() == {"base", "queries", "payload"}
    assert "notes" not in record["source"], "nothing is left out"
    normalize.run({"metric": "l2", "prefix": None, "seed": 7}, tmp_path / "out", tmp_path / "vectors", key="v")
    found = truth.run(OWN, tmp_path / "vectors", tmp_path / "truth", key="t")
    ids = np.load(tmp_path / "truth" / "ids.npy")
    assert [row[row >= 0].tolist() for row in ids] == CLOSEST
    assert (np.load(tmp_path / "truth" / "matching.npy") == PASSING.sum(axis=1)).all(), "selectivity of each query"
    assert (found["shipped"]["agreement"], found["shipped"]["ranks"]) == (1.0, K)
    assert (found["selectivity_min"], found["selectivity_max"]) == (0.0, 1.0)
    assert found["selectivity"] == pytest.approx(PASSING.mean())
    parts = [tmp_path / f"{part}.npz" for part in (1, 2, 3)]
    for part, path in enumerate(parts, start=1):
        truth.run_part(OWN, "t", tmp_path / "vectors", path, part, 3)
    of = records.identity(records.read_record(tmp_path / "vectors" / "record.json"))
    truth.run(OWN, tmp_path / "vectors", tmp_path / "again", key="t", gathered=truth.gather(parts, "t", of))
    for name in ("ids.npy", "distances.npy", "matching.npy"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "truth" / name).read_bytes(), (
            "shards change none"
        )
    plain = truth.run({**OWN, "filter": None}, tmp_path / "vectors", tmp_path / "plain", key="t")
    assert plain["shipped"] is None, "neighbours under conditions are not those of a plain search"


@pytest.mark.parametrize("wrong", ["one that does not pass", "one too few", "a farther one"])
def test_neighbours_of_another_condition_are_refused(wrong: str, tmp_path: Path) -> None:
    closest = [list(ids) for ids in CLOSEST]
    if wrong == "one that does not pass":
        closest[8][-1] = int(np.flatnonzero(~PASSING[8])[0])
    elif wrong == "one too few":
        closest[8].pop()
    else:
        closest[8][-1] = int(ORDER[8, K + 3])
    publish(tmp_path, tests=asked_lines(closest))
    got(tmp_path, entry_of(path=str(tmp_path / "set.tgz")))
    normalize.run({"metric": "l2", "prefix": None, "seed": 7}, tmp_path / "out", tmp_path / "vectors", key="v")
    with pytest.raises(DataError, match=r"shipped_conditioned.npy: .* 1 queries, the first being query 8"):
        truth.run(OWN, tmp_path / "vectors", tmp_path / "truth", key="t")


def test_a_prefix_keeps_the_conditions_and_has_a_truth_of_its_own(tmp_path: Path) -> None:
    found = truth.run(OWN, made(tmp_path, prefix=150), tmp_path / "truth", key="t")
    assert found["shipped"] is None
    nearest = np.argsort(FAR[:, :150], axis=1, kind="stable")[:, :K]
    nearest[np.isinf(np.take_along_axis(FAR, nearest, axis=1))] = -1
    assert (np.load(tmp_path / "truth" / "ids.npy") == nearest).all()


def test_the_content_of_a_payload_can_be_declared_and_is_part_of_what_a_dataset_is(tmp_path: Path) -> None:
    publish(tmp_path)
    entry = entry_of(path=str(tmp_path / "set.tgz"))
    content = got(tmp_path, entry)["content"]
    assert got(tmp_path, entry, content=content)["content_pinned"]
    other = [{**PAYLOADS[0], "n": 77}, *PAYLOADS[1:]]
    publish(tmp_path, rows=other)
    with pytest.raises(DataError, match=r"payload of sha256 .* not the declared"):
        got(tmp_path, entry, content=content)


def changed(**values: Any) -> list[Any]:
    return [*PAYLOADS[:4], {**PAYLOADS[4], **values}, *PAYLOADS[5:]]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (changed(word=None), "payloads.jsonl: line 5: lacks 'word'"),
        (changed(word=["a", "b"]), r"line 5: 'word': \['a', 'b'\] is not text, but conditions expect keyword"),
        (changed(word=3), "line 5: 'word': 3 is not text"),
        (changed(word=" a"), "line 5: 'word': ' a' is empty, or has a space at an end"),
        (changed(word="a\x00b"), "line 5: 'word': .* control character"),
        (changed(word="\ud800"), "line 5: 'word': .* not valid Unicode"),
        (changed(word="é" * 600), "line 5: 'word': .* more than 1024 bytes"),
        (changed(n=1.5), "line 5: 'n': 1.5 is not a whole number"),
        (changed(n=True), "line 5: 'n': True is not a whole number"),
        (changed(n=2**53 + 1), r"line 5: 'n': 9007199254740993 is not within ±2\^53"),
        (changed(x=float("nan")), "line 5: 'x': nan is not finite"),
        (changed(x="0.5"), "line 5: 'x': '0.5' is not a number"),
        ([*PAYLOADS[:4], ["x"], *PAYLOADS[5:]], "line 5: not a JSON object"),
        (changed(more="x" * (1 << 20)), "line 5: longer than 1048576 bytes"),
        (PAYLOADS[:-1], f"holds {ROWS - 1} rows, but the base has {ROWS}"),
        ([*PAYLOADS, PAYLOADS[0]], f"line {ROWS + 1}: the base has only {ROWS} rows"),
    ],
)  # fmt: skip
def test_a_row_without_the_value_that_conditions_act_on_is_named(rows: Any, said: str, tmp_path: Path) -> None:
    publish(tmp_path, rows=rows)
    with pytest.raises(DataError, match=said):
        got(tmp_path, entry_of(path=str(tmp_path / "set.tgz")))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"not": []}, "conditions must be an object with `and` or `or`"),
        ([], "conditions must be an object"),
        ({"and": []}, "and is not a list of 1 to 64 conditions"),
        ({"and": [{"word": {"match": {}}}]}, "the value of a match on 'word' is not valid"),
        ({"and": [match("word", True)]}, "True is not a whole number"),
        ({"and": [match("word", 3)]}, "'word' is compared with int here, but with keyword before"),
        ({"and": [match("x", 0.5)]}, "the value of a match on 'x' is not valid: 0.5 is not a whole number"),
        ({"and": [between("word", gt=1)]}, "'word' holds keywords, so a range is impossible"),
        ({"and": [between("x")]}, "a range on 'x' without bounds of gt, gte, lt, lte"),
        ({"and": [between("x", above=1)]}, "a range on 'x' without bounds"),
        ({"and": [between("x", gt=float("inf"))]}, "a range on 'x': inf is not finite"),
        (
            {"and": [{"x": {"geo": {"lat": 1, "lon": 1, "radius": 5}}}]},
            "unknown condition 'geo'; choose match or range",
        ),
        ({"or": [{**match("word", "a"), **match("n", 1)}]}, "an entry of `or` names more than one field"),
        ({"and": [match("y", 1)]}, "payloads.jsonl: line 1: lacks 'y'"),
    ],
)
def test_conditions_that_are_not_understood_are_named_not_left_out(asked: Any, said: str, tmp_path: Path) -> None:
    publish(tmp_path, tests=asked_lines(asked=lambda query: asked if query == 3 else conditions_of(query)))
    with pytest.raises(DataError, match=said):
        got(tmp_path, entry_of(path=str(tmp_path / "set.tgz")))


def test_what_the_config_says_of_a_set_and_what_the_set_is_must_agree(tmp_path: Path) -> None:
    publish(tmp_path)
    entry = entry_of(path=str(tmp_path / "set.tgz"))
    with pytest.raises(DataError, match=r"tests.jsonl: line \d+: a condition on int \('n'\), but the config declares"):
        got(tmp_path, entry, conditions=["keyword", "float"])
    with pytest.raises(ConfigError, match="lacks payloads"):
        got(tmp_path, {key: value for key, value in entry.items() if key != "payloads"})
    with pytest.raises(ConfigError, match="payloads need a dataset with conditions"):
        get(tmp_path, entry, rows=ROWS, queries=ASKED, dim=DIM)


def test_bounds_of_whole_numbers_are_whole_and_within_what_every_system_takes() -> None:
    for asked, said in (
        ({"above": 2.5, "to": 7}, {"from": 3, "below": 8}),
        ({"from": 2.5, "below": 7.5}, {"from": 3, "below": 8}),
        ({"above": 2, "below": 7}, {"from": 3, "below": 7}),
        ({"from": -1e300, "below": 1e300}, {"from": -(2**53), "below": 2**53}),
    ):
        assert payload._typed(asked, "int") == said


def test_both_bounds_of_a_range_are_one_condition_where_a_language_has_ranges() -> None:
    """To a planner, two halves are not one range: it takes each for about half of the rows."""
    near = {"field": "region", "from": 128, "below": 130}
    payload_range = {"column": "n", "from": 3, "below": 8}
    own = {"field": "payload", "all": [payload_range], "any": []}
    assert redis.condition(near) == ("@region:[$p0 ($p1]", ["p0", "128", "p1", "130"])
    assert redis.condition(own)[0] == "@payload_n:[$p0 ($p1]"
    assert lucene.condition(near) == {"range": {"region": {"gte": 128, "lt": 130}}}
    (field,) = (condition.field for condition in qdrant.condition(near).must)
    assert (field.key, field.range.gte, field.range.lt) == ("region", 128, 130)
    assert redis.condition({"field": "region", "from": 128})[0] == "@region:[$p0 +inf]", "one bound stays one"
    empty = {"field": "payload", "all": [{"column": "n", "from": 8, "below": 3}], "any": []}
    assert redis.condition(empty)[0] == "(@payload_n:[$p0 +inf] @payload_n:[-inf ($p1])", "an empty one is no range"


def test_a_query_is_asked_under_its_own_conditions_and_warm_up_under_those_that_are_asked(tmp_path: Path) -> None:
    folder = made(tmp_path)
    vectors = open_vectors(folder / "record.json", "v")
    for count, warmup, source in ((40, 10, "unmeasured queries"), (40, 30, "base rows")):
        choice = choose(vectors, count, warmup, seed=3)
        assert choice.warmup_source.startswith(source)
        filters = Filtering.of({"field": "payload"}, vectors, choice.regions, choice.queries)
        assert filters is not None
        assert (choice.queries[:count] == choice.measured).all() and len(choice.queries) == count + warmup
        every = np.arange(count + warmup)
        assert (filters.wanted(every, ROWS) == PASSING[choice.queries].sum(axis=1)).all()
        ids = np.tile(np.arange(-1, ROWS + 1), (count + warmup, 1))
        assert (filters.passing(every, ids)[:, 1:-1] == PASSING[choice.queries]).all()
        assert not filters.passing(every, ids)[:, [0, -1]].any(), "padding and unknown ids pass nothing"


def filter_of(query: int, tmp_path: Path) -> Any:
    vectors = payload.open_payload(made(tmp_path))
    return metadata.resolve({"field": "payload"}, np.zeros(9, np.float32), np.zeros(1, int), vectors, np.array([query]))


def test_every_language_says_what_the_conditions_say(tmp_path: Path) -> None:
    from anncestry.engines.milvus.wire import expression
    from anncestry.engines.mysql.wire import where as mysql
    from anncestry.engines.pgvector.serve import condition as pgvector
    from anncestry.engines.weaviate import wire

    (both,) = filter_of(21, tmp_path).distinct  # n in (-2.5, 0] and (word = …, or x ≤ 0.5)
    assert expression(both) == '(payload_1 >= -2 && payload_1 < 1 && (payload_2 == "dé 😀" || payload_3 <= 0.5))'
    asked = wire.filters(both)
    assert asked.operator == wire._Operator.OPERATOR_AND and len(asked.filters) == 3
    low, high, either = asked.filters
    assert (low.target.property, low.value_int, high.value_int) == ("payload_1", -2, 1)
    assert either.operator == wire._Operator.OPERATOR_OR
    assert [one.value_text or one.value_number for one in either.filters] == ["dé 😀", 0.5]
    assert wire.where(both) == (
        '{operator:And,operands:[{operator:GreaterThanEqual,path:["payload_1"],valueInt:-2},'
        '{operator:LessThan,path:["payload_1"],valueInt:1},{operator:Or,operands:['
        '{operator:Equal,path:["payload_2"],valueText:"dé 😀"},'
        '{operator:LessThanEqual,path:["payload_3"],valueNumber:0.5}]}]}'
    )
    assert (
        mysql(both) == "(payload_1 >= -2 AND payload_1 < 1 AND (payload_2 = X'64c3a920f09f9880' OR payload_3 <= 0.5e0))"
    )
    assert pgvector(
        {"field": "payload", "all": [], "any": [{"column": 0, "equals": "it's"}, {"column": 1, "to": 3}]}
    ) == (" WHERE (payload_0 = 'it''s' OR payload_1 <= '3'::bigint)")
    (one,) = filter_of(24, tmp_path).distinct
    assert expression(one) == 'payload_2 == "the"'


def test_a_filter_narrowed_to_one_price_keeps_its_own_words_in_every_language(tmp_path: Path) -> None:
    from anncestry.engines.conditions import narrowed
    from anncestry.engines.milvus.wire import expression
    from anncestry.engines.mysql.wire import where as mysql
    from anncestry.engines.pgvector.serve import condition as pgvector
    from anncestry.engines.weaviate import wire

    price = {"field": "price", "from": 20.5, "below": 20.75}
    assert narrowed(None, price) == price
    category = narrowed({"field": "category", "in": [1, 4]}, price)
    assert expression(category) == "(category in [1, 4] && (price >= 20.5 && price < 20.75))"
    assert mysql(category) == "(category IN (1,4) AND (price >= 20.5e0 AND price < 20.75e0))"
    assert pgvector(category).startswith(" WHERE (category IN (")
    asked = wire.filters(category)
    assert asked.operator == wire._Operator.OPERATOR_AND
    assert [one.target.property for one in (asked.filters[0], *asked.filters[1].filters)] == [
        "category", "price", "price",
    ]  # fmt: skip
    assert wire.where(category).startswith('{operator:And,operands:[{operator:ContainsAny,path:["category"]')
    (own,) = filter_of(21, tmp_path).distinct
    assert expression(narrowed(own, price)) == f"({expression(own)} && (price >= 20.5 && price < 20.75))"


# Gates


def ask_own(files: dict[str, Any], path: Path) -> None:
    files["datasets"]["blobs-l2"] = {
        "metric": "l2", "rows": ROWS, "queries": ASKED, "dim": DIM, "content": {}, "licence": "x",
        "conditions": KINDS, "sources": [entry_of(path=str(path))],
    }  # fmt: skip
    files["workloads"]["k5-category"]["filter"] = {"field": "payload"}
    files["config"]["matrix"][0]["workloads"] = ["k5", "k5-category"]


@pytest.mark.parametrize(
    ("lie", "gate", "said"),
    [
        ("", "", ""),
        ("ignore-conditions", "filter applied", "violate the filter"),
        ("or-is-and", "filter selectivity", "filters are counted otherwise"),
    ],
)
def test_a_system_that_reads_conditions_otherwise_or_not_at_all_is_refused(
    bench: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lie: str,
    gate: str,
    said: str,
) -> None:
    publish(tmp_path)
    honest = bench(change=lambda files: ask_own(files, tmp_path / "set.tgz"))
    plain, own = honest.matrix.cells
    assert failed(honest.load(plain)) == {}
    start = flat.start
    monkeypatch.setattr(
        flat, "start", lambda a, d, system, t, first_port=None: start(a, d, {"settings": {"lie": lie}}, t, first_port)
    )
    assert set(honest.query(plain, own).values()) == {"ok"}
    record, wrong = honest.record(own), failed(honest.record(own))
    assert failed(honest.record(plain)) == {}
    if lie:
        assert said in wrong[gate]
        return
    assert wrong == {}
    asked = np.load(tmp_path / Path(own.vectors_path).parent / "queries.npy")
    assert len(asked) == ASKED and record["filters"]["distinct"] > 20
    assert (record["filters"]["selectivity_min"], record["filters"]["selectivity_max"]) == (0.0, 1.0)


# What can't be asked is said while the workflow is parsed


def refused(folder: Path, change: Any) -> str:
    toy = Toy.make(folder)
    toy.one_cell()
    toy.files["datasets"]["blobs-l2"] |= {"conditions": KINDS, "sources": [entry_of(path="x.tgz")]}
    toy.files["workloads"]["k5"]["filter"] = {"field": "payload"}
    change(toy.files)
    toy.save()
    with pytest.raises(ConfigError) as caught:
        workflow.expand(workflow.Choice(folder / "config", "default"))
    return f"{type(caught.value).__name__}: {caught.value}"


def test_what_has_no_conditions_or_can_not_ask_them_is_refused_by_name(tmp_path: Path) -> None:
    def of(**changes: Any) -> Any:
        def change(files: dict[str, Any]) -> None:
            for name, values in changes.items():
                files[{"dataset": "datasets", "workload": "workloads"}[name]][
                    {"dataset": "blobs-l2", "workload": "k5"}[name]
                ].update(values)

        return change

    said = refused(tmp_path / "1", lambda files: files["datasets"]["blobs-l2"].pop("conditions"))
    assert "k5: filter: dataset blobs-l2 has no conditions of its queries" in said
    said = refused(tmp_path / "2", of(dataset={"conditions": ["geo"]}))
    assert said.startswith("Unsupported: ") and "conditions are on geo" in said
    assert "unsupported with a filter by payload" in refused(tmp_path / "3", of(workload={"nq": 2}))
    stream = {"stream": {"insert_per_s": 1}, "duration_s": 5, "filter": None}
    said = refused(tmp_path / "4", lambda files: (of(workload=stream)(files), files["workloads"]["k5"].pop("filter")))
    assert said.startswith("Unsupported: ") and "lack the payload that dataset blobs-l2 has" in said
    mixed = {"filter": {"field": "payload", "below": 3}}
    assert "filter" in refused(tmp_path / "5", of(workload=mixed))


@pytest.mark.parametrize("name", ["hnswlib-0.8.0", "faiss-1.14.3", "diskann-0.7.0"])
def test_a_library_that_stores_no_payload_says_so(name: str) -> None:
    systems = read_yaml(ROOT / "config" / "systems.yaml")
    entry = next(entry for known, entry in systems.items() if known.startswith(name.split("-")[0]))
    topology = {"runtime": "native", "nodes": 1, "shards": 1, "replicas": 1}
    index = entry.get("index") or {"type": "hnsw", "M": 16, "ef_construction": 100}
    work = {"k": 5, "ef_search": 50, "filter": {"field": "payload"}}
    with pytest.raises(Unsupported, match=f"filter: {name.split('-')[0]}"):
        engines.offers_of(entry["engine"]).check(entry, topology, index, work)


def test_what_was_not_tried_is_not_claimed() -> None:
    remote = {"runtime": "remote", "nodes": 1, "shards": 1, "replicas": 1, "endpoints": {"mysql": "X"}}
    system = {"engine": "mysql", "version": "8.0.2", "settings": {"dialect": "polardb", "user": "u", "database": "d"}}
    index, work = {"type": "hnsw", "M": 16, "ef_construction": 100}, {"k": 5, "ef_search": 50}
    engines.offers_of("mysql").check(system, remote, index, work)
    with pytest.raises(Unsupported, match="conditions on payload are unsupported by polardb"):
        engines.offers_of("mysql").check(system, remote, index, {**work, "filter": {"field": "payload"}})


def test_the_sets_of_the_config_say_which_columns_their_conditions_act_on() -> None:
    sets = read_yaml(ROOT / "config" / "datasets.yaml")
    kinds = {name: entry["conditions"] for name, entry in sets.items() if "conditions" in entry}
    assert kinds == {
        "qdrant-random-keywords-1m": ["keyword"],
        "qdrant-random-ints-1m": ["int"],
        "qdrant-random-float-1m": ["float"],
        "qdrant-hnm-105k": ["keyword"],
        "random-xs-20-conditions": ["keyword", "int", "float"],
    }
    for source in (sets[name]["sources"][0] for name in kinds):
        assert source["kind"] == "synthetic" or source["payloads"] == "payloads.jsonl"


def test_columns_and_conditions_are_drawn_by_the_seed_for_rows_that_are_generated(tmp_path: Path) -> None:
    declared = read_yaml(ROOT / "config" / "datasets.yaml")["random-xs-20-conditions"]
    (entry,) = declared["sources"]
    stated = {key: declared[key] for key in ("rows", "queries", "dim", "conditions", "metric")}
    assert get(tmp_path, entry, **stated)["content"] == declared["content"]
    drawn = payload.open_payload(tmp_path / "out")
    assert {column.name: column.kind for column in drawn.columns} == {kind: kind for kind in KINDS}
    shares = np.array([drawn.passes(drawn.filters[number]).mean() for number in drawn.of])
    assert 0.3 < np.quantile(shares, 0.95) < 0.6 and 0.001 < np.quantile(shares, 0.25) < 0.02
    other = get(tmp_path, {**entry, "seed": 2}, **stated)["content"]
    assert other["payload"] != declared["content"]["payload"]
