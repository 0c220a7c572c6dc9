"""What stands beside a published figure, over all that were published: by the question, and by no name of ours."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from anncestry import engines
from anncestry.cells import config
from anncestry.cells.blocks import Room
from anncestry.cells.expand import expand as expand_matrix
from anncestry.cells.indexes import effort_of
from anncestry.report import counterpart
from anncestry.report.counterpart import Asked, Joined
from anncestry.report.model.material import Material
from anncestry.report.model.numbers import rows_of
from anncestry.report.published import Figure, Published
from anncestry.report.site import sheets
from casestudies import beside, documents
from tests.builders.world import World
from tests.toy import ROOT

FACTS = Published.beside(config.load(ROOT / "config"))
FIGURES = FACTS.figures
COMPARABLE = [figure for figure in FIGURES if not counterpart.never(figure) and figure.metric in counterpart.METRICS]


def asked(figure: Figure) -> Asked:
    return counterpart.of_figure(figure, FACTS.ours(figure.dataset)[0])


def test_every_dataset_of_a_published_figure_is_in_config() -> None:
    assert not [figure.dataset for figure in FIGURES if figure.dataset and not FACTS.ours(figure.dataset)]


def test_each_figure_can_be_joined_or_has_one_reason_why_it_never_is() -> None:
    reasons = Counter(counterpart.never(figure) for figure in FIGURES)
    assert sum(reasons.values()) == 1006
    assert reasons[""] == sum(bool(f.dataset) and not counterpart.never(f) for f in FIGURES)
    known = {counterpart.RESTATES, counterpart.BOUND, counterpart.SETTING, counterpart.OF_MACHINE, counterpart.VERDICT}
    known |= {counterpart.MADE, counterpart.NO_DATASET, counterpart.NO_K, counterpart.NO_MILVUS_CLUSTER, ""}
    known |= {counterpart.OF_WHOLE, counterpart.OF_BOTH}
    assert set(reasons) <= known


@pytest.mark.parametrize("figure", COMPARABLE, ids=lambda figure: figure.id)
def test_a_figure_stands_beside_its_own_question_and_not_beside_another(figure: Figure) -> None:
    theirs = asked(figure)
    assert counterpart.same(theirs, theirs) and counterpart.why_not(theirs, [theirs]) == ""
    assert counterpart.why_not(theirs, []) == counterpart.NOT_MEASURED
    others = {
        "distance": "cosine" if theirs.distance == "l2" else "l2",
        "replicas": (theirs.replicas or 0) + 1,
        "index": "hnsw" if theirs.index == "diskann" else "diskann",
        "memory_mib": None if theirs.memory_mib else 1.0,
        "k": (theirs.k or 0) + 1,
        "clients": (theirs.clients or 0) + 1,
        "distributed": not theirs.distributed,
        "nq": (theirs.nq or 0) + 1,
        "quantizer": "pq" if theirs.quantizer != "pq" else "sq",
        "protocol": "rest",
        "paths": (theirs.paths or 0) + 1,
        "nics": None,
    }
    for name, value in others.items():
        if getattr(theirs, name) is not None:
            ours = replace(theirs, **{name: value})
            assert not counterpart.same(theirs, ours)
            assert counterpart.why_not(theirs, [ours]).startswith("its ")


OF_SIFT = [f for f in COMPARABLE if f.place == "Table IV" and f.dataset == "sift-128-euclidean" and "50" in f.metric]


@pytest.mark.parametrize(
    ("config_of_ours", "joined"),
    [
        ({"sift-of-ours": {"published_as": ["sift-128-euclidean"]}}, 2),
        ({"sift-of-ours": {}}, 0),
        ({"sift-128-euclidean": {}}, 0),
        ({"sift-1m": {}}, 0),
    ],
    ids=["renamed", "not published", "by the paper's name", "by Milvus' name"],
)
def test_a_dataset_is_known_by_what_its_entry_says_and_not_by_its_name(
    config_of_ours: dict[str, dict[str, list[str]]], joined: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ((name, entry),) = config_of_ours.items()
    world = World({name: ("l2", 1_000_000, 128)})
    shipped = config.load(ROOT / "config")
    ours = replace(shipped.datasets["sift-128-euclidean"], published_as=entry.get("published_as", []))
    facts = Published.beside(replace(shipped, datasets={name: ours}))
    rows = rows_of(world.tidy())
    records = {row["record"]: json.loads(Path(row["record"]).read_text()) for row in rows}
    of = Joined(rows, records, facts)
    assert sum(len(of.rows(figure)) for figure in OF_SIFT) == joined
    reasons = {of.why_none(figure) for figure in OF_SIFT}
    assert reasons == ({""} if joined else {counterpart.NOT_IN_CONFIG})


CLUSTERED = [f for f in COMPARABLE if f.document == "paper" and asked(f).nodes == 3]


def test_the_cluster_of_the_paper_stands_beside_one_copy_of_each_shard_only() -> None:
    (factor,) = (figure for figure in FIGURES if figure.metric == "cfg_replication_factor")
    assert {figure.place for figure in CLUSTERED} >= {"Table XII", "Table XIII", "Table XIV", "Table XV"}
    topologies = config.load(ROOT / "config").topologies
    row = dict.fromkeys(("dataset", "engine", "ef_search", "k", "filter", "clients", "duration_s"))
    for figure in CLUSTERED:
        theirs = asked(figure)
        assert theirs.replicas == factor.number == 1
        for name, joins in (("cluster-3", True), ("cluster-3-rf3", False), ("cluster-3-rf3-4gb", False)):
            placed = counterpart.of_row(row, {"topology": topologies[name].plain}, {})  # type: ignore[arg-type]
            ours = replace(theirs, nodes=placed.nodes, replicas=placed.replicas, distributed=placed.distributed)
            said = "" if joins else "its number of replicas was 1, ours 3"
            assert counterpart.why_not(theirs, [ours]) == said


def test_each_figure_of_the_paper_and_of_the_document_on_diskann_states_its_distance() -> None:
    stated = {
        (figure.document, figure.dataset): asked(figure).distance
        for figure in COMPARABLE
        if figure.document in ("paper", "diskann") and figure.metric not in ("rows", "dim", "raw_mb")
    }
    assert len(stated) == 9 + 3
    ours = config.load(ROOT / "config").datasets
    for (document, dataset), distance in stated.items():
        assert distance in ("l2", "cosine")
        under_another = [name for name in FACTS.ours(dataset) if ours[name].metric != distance]
        # Its publisher has this one for L2; that its vectors have length 1 is not known.
        assert under_another == (["vectordbbench-laion-100m"] if dataset == "768d100m" else []), (document, dataset)
    others = {asked(f).distance for f in COMPARABLE if f.document not in ("paper", "diskann")}
    assert others == {None}, "the others state none"


def test_a_figure_under_another_distance_has_no_counterpart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    figures = [f for f in COMPARABLE if f.dataset == "768d100m" and f.metric not in ("rows", "dim", "raw_mb")]

    def reasons(distance: str) -> set[str]:
        rows = rows_of(World({"vectordbbench-laion-100m": (distance, 100_000_000, 768)}).tidy())
        records = {row["record"]: json.loads(Path(row["record"]).read_text()) for row in rows}
        joined = Joined(rows, records, FACTS)
        return {joined.why_none(figure) for figure in figures} - {counterpart.NOT_MEASURED}

    said = "its distance was cosine, ours L2"
    assert reasons("l2") == {said}
    assert reasons("cosine") and said not in reasons("cosine")


def test_one_number_for_two_systems_stands_beside_neither() -> None:
    both = [figure for figure in FIGURES if figure.id == "p6fbeca647d"]
    assert [(figure.system, counterpart.never(figure)) for figure in both] == [
        ("Milvus+Weaviate", "it is one number for two systems")
    ]
    assert not [figure for figure in COMPARABLE if "+" in str(asked(figure).engine)]


def test_the_report_on_milvus_states_nodes_replicas_and_limits_in_words() -> None:
    scale_out = [f for f in COMPARABLE if f.place == "2.2.0 scale-out (replicas)"]
    assert {asked(f).replicas for f in scale_out} == {1, 2, 4, 8}
    assert {(asked(f).cpus, asked(f).memory_mib, asked(f).M, asked(f).ef, asked(f).k) for f in scale_out} == {
        (8.0, 8192.0, 8, 64, 1)
    }
    two = next(asked(f) for f in scale_out if asked(f).replicas == 2)
    one = replace(two, nodes=1, replicas=1)
    assert counterpart.why_not(two, [one]) == "its number of nodes was 2, ours 1"
    assert counterpart.why_not(two, [replace(two, cpus=None)]) == "its limits were 8 cores, ours none"
    assert counterpart.why_not(two, [replace(two, memory_mib=None)]) == "its limits were 8 GB, ours none"


def test_limits_of_the_query_nodes_are_those_of_the_report_on_milvus() -> None:
    row = dict.fromkeys(("dataset", "engine", "ef_search", "k", "filter", "clients", "duration_s"))
    nodes = {"cpus": 8, "memory_mib": 8192}
    for topology, limits in (
        ({"limits": nodes}, nodes),
        ({"role_limits": {"querynode": nodes}, "limits": {"cpus": 1}}, nodes),
        ({"role_limits": {"querynode": {"cpus": 8}}, "limits": {"memory_mib": 512}}, {"cpus": 8, "memory_mib": None}),
        ({"role_limits": {"proxy": nodes}}, {"cpus": None, "memory_mib": None}),
    ):
        ours = counterpart.of_row(row, {"topology": topology}, {})  # type: ignore[arg-type]
        assert (ours.cpus, ours.memory_mib) == (limits["cpus"], limits["memory_mib"])


def asked_by(experiment: config.Config) -> list[Asked]:
    """What each cell of an experiment on Milvus asks, on a machine that is large enough."""
    room = Room("lab", 64, 512)
    matrix = expand_matrix(experiment, engines.offers_of, lambda: room)
    ours = []
    for cell in matrix.cells:
        query, load = matrix.spec(cell.query, "query"), matrix.spec(cell.load, "load")
        workload = {"duration_s": None, **query["workload"]}
        row = {"dataset": cell.dataset, "engine": "milvus", "ef_search": effort_of(workload), "filter": "", **workload}
        ours.append(counterpart.of_row(row, load, query))  # type: ignore[arg-type]
    return ours


def test_each_figure_of_the_cluster_of_milvus_2_2_can_be_joined_by_its_experiment() -> None:
    ours = asked_by(config.load(ROOT / "config", "milvus-2.2-cluster"))
    theirs = [f for f in COMPARABLE if f.place in ("2.2.0 scale-up (CPU cores)", "2.2.0 scale-out (replicas)")]
    assert len(theirs) == 32
    assert {counterpart.why_not(asked(figure), ours) for figure in theirs} == {""}


def test_an_index_in_memory_never_stands_beside_one_on_disk() -> None:
    kinds = Counter(asked(figure).index for figure in COMPARABLE if figure.document == "diskann" and figure.index)
    assert set(kinds) == {"hnsw", "diskann"}
    disk = next(asked(figure) for figure in COMPARABLE if figure.index == "DiskANN")
    assert counterpart.why_not(disk, [replace(disk, index="hnsw")]) == "its index was DISKANN, ours HNSW"


ON_PATHS = [figure for figure in COMPARABLE if asked(figure).index == "diskann"]


def test_every_figure_of_an_index_on_disk_states_its_paths_and_network_cards_and_no_other_does() -> None:
    assert len(ON_PATHS) == 45
    for figure in COMPARABLE:
        theirs = asked(figure)
        known = [f"nics={theirs.nics}", f"paths={theirs.paths}"] if figure in ON_PATHS else []
        assert [part for part in figure.detail.split("; ") if part in known] == known
        assert known or (theirs.paths, theirs.nics) == (None, None)


def test_an_index_on_disk_stands_beside_the_figures_of_its_own_paths_only() -> None:
    places = {(asked(f).paths, asked(f).nics) for f in ON_PATHS}
    assert places == {(1, 1), (4, 1), (4, 2)}
    for figure in ON_PATHS:
        beside = [
            other
            for other in ON_PATHS
            if (other.dataset, other.metric) == (figure.dataset, figure.metric)
            and counterpart.same(asked(other), asked(figure))
        ]
        assert beside == [figure]
        paths = asked(figure).paths
        unknown = replace(asked(figure), paths=None, nics=None)
        said = f"its number of paths to storage was {paths}, ours not known"
        assert counterpart.why_not(asked(figure), [unknown]) == said


def topologies_of(experiment: config.Config, changed: Callable[[dict[str, Any]], object]) -> config.Config:
    """The experiment with other names of its topologies, each entry changed."""
    entries = {}
    for name, entry in experiment.topologies.items():
        plain = dict(entry.plain)
        changed(plain)
        entries[f"{name}-renamed"] = replace(entry, plain=plain)
    matrix = [replace(b, topologies=[f"{name}-renamed" for name in b.topologies]) for b in experiment.matrix]
    return replace(experiment, topologies=entries, matrix=matrix)


OF_REMOTE = {"diskann-nvmeof-remote": "768d1m", "diskann-nvmeof-remote-10m": "768d10m"}


@pytest.mark.parametrize(("experiment", "dataset"), OF_REMOTE.items(), ids=OF_REMOTE)
def test_each_figure_of_an_index_on_disk_can_be_joined_where_its_storage_is_declared(
    experiment: str, dataset: str
) -> None:
    declared = config.load(ROOT / "config", experiment)
    renamed = topologies_of(declared, lambda _: None)
    undeclared = topologies_of(declared, lambda plain: plain.pop("declared_storage", None))
    theirs = [asked(figure) for figure in ON_PATHS if figure.dataset == dataset]
    assert len(theirs) == 15
    for ours in (asked_by(declared), asked_by(renamed)):
        assert {counterpart.why_not(each, ours) for each in theirs} == {""}
        for each in theirs:
            beside = [one for one in ours if counterpart.same(each, one)]
            assert {(one.index, one.paths, one.nics) for one in beside} == {("diskann", each.paths, each.nics)}
            assert all(one.declared.endswith("(declared, not read back)") for one in beside)
    said = "its number of paths to storage was {}, ours not known"
    assert {counterpart.why_not(each, asked_by(undeclared)) for each in theirs} == {said.format(1), said.format(4)}


def test_figures_of_an_index_on_disk_by_another_distance_are_not_joined_by_a_declaration() -> None:
    ours = asked_by(config.load(ROOT / "config", "diskann-nvmeof-remote-100m"))
    theirs = [asked(figure) for figure in ON_PATHS if figure.dataset == "768d100m"]
    assert len(theirs) == 15
    assert {counterpart.why_not(each, ours) for each in theirs} == {"its distance was cosine, ours L2"}


def on_disk(edit: Callable[[dict[str, Any]], object]) -> World:
    """Milvus 2.6.9 with DiskANN on a million rows, asked as the document asked it; `edit` changes its records."""
    world = World({"vectordbbench-cohere-1m": ("cosine", 1_000_000, 768)})

    def asked_with(record: dict[str, Any]) -> None:
        record["spec"]["ef_search"] = 100
        edit(record)

    def loaded(record: dict[str, Any]) -> None:
        record["spec"]["system"]["version"] = "2.6.9"
        record["spec"]["index"] = {"type": "diskann"}
        edit(record)

    cells = [cell for cell in world.cells if cell["system"].startswith("milvus")]
    for path in {cell["load_path"] for cell in cells}:
        world.edit(path, loaded)
    for cell in cells:
        world.edit(cell["query_path"], asked_with)
    return world


def material_of(world: World) -> Material:
    table = world.tidy()
    records = {path: json.loads(Path(path).read_text()) for path in table["record"].unique()}
    return Material(table, records, FACTS)


def test_the_paths_of_an_index_on_disk_are_those_of_its_record_and_unknown_of_a_remote_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    figures = [f for f in ON_PATHS if f.dataset == "768d1m" and f.metric in ("qps", "recall_by_id", "load_s")]

    def reasons(edit: Callable[[dict[str, Any]], object]) -> set[str]:
        material = material_of(on_disk(edit))
        joined = Joined(material.by_any_client, material.records, FACTS)
        assert not [row for figure in figures for row in joined.rows(figure)]
        return {joined.why_none(figure) for figure in figures}

    said = "its number of paths to storage was {}, ours {}"
    assert reasons(lambda _: None) == {said.format(count, "not known") for count in (1, 4)}
    of_device = {"name": "nvmeof-1path-2nic", "paths": 4}
    cards = "its number of network cards to storage was {}, ours not known"
    found = reasons(lambda record: record.update(storage_path=of_device))
    assert found == {said.format(1, 4), cards.format(1), cards.format(2)}


def test_a_number_that_is_joined_by_a_declaration_says_so_wherever_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def declared(record: dict[str, Any]) -> None:
        if record["stage"] == "load":
            record["spec"]["topology"] |= {"runtime": "remote", "declared_storage": {"paths": 4, "nics": 1}}

    material = material_of(on_disk(declared))
    said = "4 paths, 1 network card (declared, not read back)"
    of_its_paths = {figure.id for figure in ON_PATHS if figure.dataset == "768d1m" and asked(figure).nics == 1}
    of_its_paths &= {figure.id for figure in ON_PATHS if asked(figure).paths == 4}
    assert len(of_its_paths) == 5

    every = beside.joints(material, FACTS)
    assert {joint.figure.id for joint in every if joint.declared} == of_its_paths
    assert {joint.declared for joint in every} == {"", said}
    beside_published, _ = beside.tables(material)
    marked = [row for row in beside_published.rows if said in row.cells[-1].text]
    assert {row.cells[0].source for row in marked} == of_its_paths
    assert {row.cells[0].source for row in beside_published.rows if row not in marked}.isdisjoint(of_its_paths)
    beside.write_reasons(every, tmp_path / beside.FILE)
    with open(tmp_path / beside.FILE, newline="", encoding="utf-8") as file:
        assert {line["id"] for line in csv.DictReader(file) if line["declared"] == said} == of_its_paths

    (on_paths,) = [table for table in documents.tables(material) if table.number == "D4"]
    ours = [row for row in on_paths.rows if row.labels[0] == documents.MEASURED]
    assert ours and all(f"storage of {said}, " in row.labels[4] for row in ours)
    systems = {row[0]: row[1:] for row in sheets.systems(material.records).rows}
    assert systems["topology: storage"] == (said, "—")


def test_the_nearest_of_ours_gives_the_reason_whatever_their_order() -> None:
    theirs = next(asked(figure) for figure in COMPARABLE if figure.place == "Table IV")
    far, near = replace(theirs, engine="pgvector"), replace(theirs, k=1)
    said = {counterpart.why_not(theirs, ours) for ours in ([far, near], [near, far])}
    assert said == {"its k was 10, ours 1"}


def test_the_recall_of_a_prefix_by_the_neighbours_in_the_whole_dataset_is_never_joined() -> None:
    of_prefixes = [f for f in FIGURES if f.metric == "recall_by_id" and f.dataset.startswith("deep-image-96-")]
    assert len(of_prefixes) == 8
    assert {counterpart.never(figure) for figure in of_prefixes} == {counterpart.OF_WHOLE}


def test_a_load_by_grpc_never_stands_beside_one_by_rest() -> None:
    (load,) = (f for f in COMPARABLE if f.document == "weaviate-grpc" and f.metric == "load_s")
    theirs = asked(load)
    assert theirs.protocol == "grpc"
    assert counterpart.why_not(theirs, [replace(theirs, protocol="rest")]) == "its protocol was grpc, ours rest"


def test_one_client_of_vectordbbench_asks_a_fixed_count_of_queries() -> None:
    alone = [f for f in COMPARABLE if f.document == "polardb" and f.clients == "1" and f.k]
    assert alone and not any(asked(figure).timed for figure in alone if figure.metric.endswith("_ms"))


def test_latencies_of_the_document_on_diskann_are_of_one_client() -> None:
    latencies = [f for f in COMPARABLE if f.document == "diskann" and f.metric.endswith("_ms")]
    assert latencies and {(asked(f).clients, asked(f).timed) for f in latencies} == {(1, False)}


def test_a_load_whose_server_was_killed_stands_beside_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    world = World({"fashion-mnist-784-euclidean": ("l2", 60000, 784)})
    figures = [f for f in COMPARABLE if f.place == "Table II" and f.metric == "load_s"]

    def beside() -> int:
        rows = rows_of(world.tidy())
        records = {row["record"]: json.loads(Path(row["record"]).read_text()) for row in rows}
        joined = Joined(rows, records, FACTS)
        return sum(len(joined.rows(figure)) for figure in figures)

    assert beside() == 2
    for path in {cell["load_path"] for cell in world.cells}:
        world.edit(path, lambda record: record["spec"].setdefault("load", {}).update(kill={"after_share": 0.5}))
    assert beside() == 0


def test_megabytes_of_ten_to_the_sixth_bytes_are_turned_into_mebibytes() -> None:
    (raw,) = (f for f in FIGURES if f.document == "diskann" and f.metric == "raw_mb")
    assert counterpart.number(raw) == pytest.approx(307e9 / 2**20)
    printed = next(f for f in FIGURES if f.document == "paper" and f.metric == "storage_mb")
    assert counterpart.number(printed) == printed.number
