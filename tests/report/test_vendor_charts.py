"""The charts of the documents on Milvus 2.2 and on gRPC in Weaviate, from their experiments as they are in config."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import altair as alt
import pandas as pd
import pytest
import vl_convert

from anncestry.cells.matrix import Cell
from anncestry.cells.spec import node_limits
from anncestry.report.charts import Figure
from anncestry.report.model.cells import Table, TableRow
from anncestry.report.model.material import Material
from anncestry.report.site.page import CHART_CONFIG
from casestudies import documents, protocols, scaling
from tests.builders.expanded import material_of, matrix_of

CORES, NODES = "milvus-scale-up", "milvus-scale-out"


def milvus_rate(cell: Cell, load: Mapping[str, Any], query: Mapping[str, Any]) -> float:
    """Grows by three quarters with twice the cores or the nodes, and with the version; a little with clients."""
    topology, clients = load["topology"], query["workload"]["clients"]
    size = (node_limits(topology).get("cpus") or 1) * topology["nodes"]
    return float(1000 * size**0.8 * (1 + clients / 1e4) * float(load["system"]["version"][:3]))


def weaviate_rate(cell: Cell, load: Mapping[str, Any], query: Mapping[str, Any]) -> float:
    by_rest = load["system"].get("settings", {}).get("protocol") == "rest"
    by_library = query["workload"].get("client") == "sdk"
    return 4000 / (10 + query["workload"]["ef_search"]) * (0.5 if by_rest else 1) * (0.7 if by_library else 1)


def weaviate_load_s(load: Mapping[str, Any]) -> float:
    return 200.0 if load["system"].get("settings", {}).get("protocol") == "rest" else 120.0


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A material for the name of an experiment, each made once."""

    @cache
    def of(experiment: str) -> Material:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(tmp_path_factory.mktemp(experiment))
            if experiment.startswith("weaviate"):
                return material_of(matrix_of(experiment), weaviate_rate, weaviate_load_s)
            return material_of(matrix_of(experiment), milvus_rate)

    return of


def figures_of(material: Material) -> dict[str, Figure]:
    return {figure.name: figure for figure in (*scaling.figures(material), *protocols.figures(material))}


def points(figure: Figure, metric: str) -> list[dict[str, Any]]:
    """The marks with a number of ours, of the panels of a metric; layers of one data share it."""
    found = {}
    for panel in figure.panels:
        for place in (panel.spec, *panel.spec["layer"]):
            for mark in place["data"]["values"] if "data" in place else ():
                if mark.get("number_id") and mark["what"] == metric and "low" not in mark:
                    found[mark["number_id"]] = mark
    return list(found.values())


def labels(figure: Figure, panel: int) -> list[str]:
    spec = figure.panels[panel].spec
    return [mark["label"] for layer in spec["layer"] for mark in layer["data"]["values"] if "label" in mark]


def table(material: Material, number: str) -> Table:
    return next(each for each in scaling.tables(material) if each.number == number)


def sides(of: Table) -> tuple[list[TableRow], list[TableRow]]:
    """The rows of ours, and the document's."""
    ours = [row for row in of.rows if row.labels[0] == documents.MEASURED]
    return ours, [row for row in of.rows if row not in ours]


def test_the_reports_two_charts_have_its_cores_and_nodes_each_with_its_clients(measured: Any) -> None:
    figures = figures_of(measured("milvus-2.2-cluster"))
    up, out = (
        sorted((mark["at"], mark["clients"]) for mark in points(figures[name], "qps")) for name in (CORES, NODES)
    )
    assert up == [(8, "500 clients"), (12, "300 clients"), (16, "600 clients"), (32, "600 clients")]
    assert out == [(1, "500 clients"), (2, "500 clients"), (4, "800 clients"), (8, "1200 clients")]
    assert {mark["series"] for mark in points(figures[CORES], "qps")} == {0}, "one line"
    assert labels(figures[CORES], 0) == [clients for _, clients in up]
    assert [len(points(figures[name], "p99_ms")) for name in (CORES, NODES)] == [4, 4]


def test_a_number_of_clients_that_asked_at_every_size_has_a_line_of_its_own(measured: Any) -> None:
    figures = figures_of(measured("milvus-2.2-cluster-laptop"))
    found: dict[tuple[str, str], list[float]] = {}
    for name in (CORES, NODES):
        for mark in points(figures[name], "qps"):
            found.setdefault((name, mark["clients"]), []).append(mark["at"])
    both = ("20 clients", "300 clients")
    assert {key: sorted(sizes) for key, sizes in found.items()} == {
        **{(CORES, clients): [0.25, 1, 2] for clients in both},
        **{(NODES, clients): [1, 2, 4, 8] for clients in both},
    }
    assert sorted(labels(figures[CORES], 0)) == list(both), "once, at the end of its line"


def test_a_line_is_of_what_the_records_say_of_a_topology_and_not_of_its_name(measured: Any) -> None:
    material = measured("milvus-2.2-cluster-laptop")
    names = {name: f"t{place}" for place, name in enumerate(sorted(set(material.numbers["topology"])))}

    def changed(**limits: Any) -> Material:
        """With other names, and other limits of the query node of two cores."""
        records = {}
        for path, record in material.records.items():
            topology = record["spec"].get("topology")
            if topology and record["stage"] == "load":
                topology = {**topology, "name": names[topology["name"]]}
                if topology["role_limits"] == {"querynode": {"cpus": 2}}:
                    topology["role_limits"] = {"querynode": {"cpus": 2, **limits}}
                record = {**record, "spec": {**record["spec"], "topology": topology}}
            records[path] = record
        numbers = material.numbers.assign(topology=material.numbers["topology"].map(names))
        return Material(numbers, records, material.facts)

    def sizes(of: Material) -> dict[str, list[float]]:
        return {n: sorted({mark["at"] for mark in points(f, "qps")}) for n, f in figures_of(of).items()}

    assert sizes(changed()) == sizes(material) == {CORES: [0.25, 1, 2], NODES: [1, 2, 4, 8]}
    other = sizes(changed(memory_mib=512))
    assert other == {CORES: [0.25, 1], NODES: [1, 2, 4, 8]}, "another size differs in memory, too"


def test_the_gain_by_cores_and_nodes_stands_beside_the_reports_where_both_asked_the_same(measured: Any) -> None:
    ours, theirs = sides(table(measured("milvus-2.2-cluster"), "D1-S"))
    assert [[cell.text for cell in row.cells[2:]] for row in theirs] == [
        ["1.43", "96", ours[0].cells[2].text],
        ["1.98", "99", ours[1].cells[2].text],
        ["2.84", "71", ours[2].cells[2].text],
        ["2.22", "111", ours[3].cells[2].text],
        ["2.70", "67", ours[4].cells[2].text],
        ["4.29", "54", ours[5].cells[2].text],
    ]
    assert [row.cells[-1].text for row in ours] == [row.cells[2].text for row in theirs]
    assert [row.cells[2].value for row in ours][-1] == pytest.approx(8**0.8 * 1.12 / 1.05)
    assert ours[-1].cells[3].value == pytest.approx(100 * ours[-1].cells[2].value / 8)
    assert all(len(row.cells[2].parents) == 2 for row in ours)
    assert all(cell.source for row in theirs for cell in row.cells[:4])


def test_a_published_gain_that_has_none_beside_it_says_why(measured: Any) -> None:
    ours, theirs = sides(table(measured("milvus-2.2-cluster-laptop"), "D1-S"))
    assert len(ours) == 10 and {row.cells[-1].text for row in ours} == {"—"}
    assert {row.cells[-1].text for row in theirs} == {"2.2.0, 8 cores, 1 node: nothing was measured of it here"}
    (linear,) = {
        round(row.cells[2].value, 6) for row in ours if row.labels[-1].endswith("cores of each query node: 0.25 → 1")
    }
    assert linear == round(4**0.8, 6)


def test_the_gain_by_version_stands_beside_the_two_that_the_report_claims(measured: Any) -> None:
    ours, theirs = sides(table(measured("milvus-2.2-report"), "D1-V"))
    cluster, standalone = theirs
    assert [cell.text for cell in cluster.cells[:4]] == ["6,904", "10,248", "+48.4", "at least 48"]
    assert [cell.text for cell in standalone.cells[:4]] == ["4,287", "7,522", "+75.5", "at least 75"]
    assert cluster.cells[4].text == "2.1.0, 12 cores, 1 node: its system was distributed, ours in one process"
    of_report = [row for row in ours if row.labels[3] == "milvus-2.1.0 → milvus-2.2.16"]
    assert len(of_report) == 5 and {row.cells[4].text for row in of_report} == {"+75.5"}
    assert standalone.cells[4].text == "; ".join(row.cells[2].text for row in of_report)
    assert of_report[0].cells[2].value == pytest.approx(100 * (2.2 / 2.1 - 1))


def test_versions_of_a_cluster_are_listed_as_those_of_one_process_are(measured: Any) -> None:
    material = measured("milvus-2.2-cluster")
    older = material.numbers.copy()
    older["system"], older["number_id"] = "milvus-2.1.0", older["number_id"] + "a"
    records = dict(material.records)
    for path, record in material.records.items():
        if record["stage"] == "load":
            spec = {
                **record["spec"],
                "system": {**record["spec"]["system"], "name": "milvus-2.1.0", "version": "2.1.0"},
            }
            records[path + "a"] = {**record, "spec": spec}
    older["record"] = older["record"].map(lambda path: path + "a" if path + "a" in records else path)
    both = Material(pd.concat([material.numbers, older], ignore_index=True), records, material.facts)
    ours, theirs = sides(table(both, "D1-V"))
    assert len(ours) == 7 and {row.cells[2].text for row in ours} == {"+0.0"}
    cluster = theirs[0]
    assert cluster.cells[4].text == "+0.0", "the report's one query node of 12 cores"
    assert [row.cells[4].text for row in ours].count("+48.4") == 1


def test_weaviate_is_drawn_by_ef_and_protocol_as_its_client_asked(measured: Any) -> None:
    material = measured("weaviate-grpc-client-laptop")
    figure = figures_of(material)["weaviate-protocols"]
    by_client = [panel for panel in figure.panels if panel.heading.endswith("through its Python client")]
    assert [panel.heading.partition(" · ")[0] for panel in by_client] == ["random-128-euclidean", "random-1536-angular"]
    drawn = points(Figure("", "", "", "", "", tuple(by_client)), "qps")
    assert {(mark["system"], mark["protocol"]) for mark in drawn} == {
        ("weaviate-1.23.9", "grpc"), ("weaviate-1.23.9-import", "grpc"),
        ("weaviate-1.23.9-rest", "rest"), ("weaviate-1.23.9-import-rest", "rest"),
    }  # fmt: skip
    assert {mark["at"] for mark in drawn} == {"16", "64", "256"} and len(drawn) == 2 * 4 * 3
    known = {row["number_id"]: row for row in material.by_any_client}
    for mark in drawn:
        row = known[mark["number_id"]]
        assert (row["client"], row["value"], str(row["ef_search"])) == ("sdk", mark["value"], mark["at"])
        assert mark["opacity"] == (0.5 if mark["protocol"] == "grpc" else 1)


def test_the_time_to_load_is_drawn_by_dataset_and_protocol_apart_by_who_inserts(measured: Any) -> None:
    figure = figures_of(measured("weaviate-grpc-client-laptop"))["weaviate-import"]
    assert [panel.heading.rpartition(" · ")[2] for panel in figure.panels] == [
        "inserted as encoded requests",
        "inserted through its Python client",
    ]
    drawn = points(Figure("", "", "", "", "", figure.panels[1:]), "load_s")
    assert {(mark["system"], mark["at"], mark["value"]) for mark in drawn} == {
        (f"weaviate-1.23.9-import{name}", dataset, seconds)
        for name, seconds in (("", 120), ("-rest", 200))
        for dataset in ("random-128-euclidean", "random-1536-angular")
    }


def test_both_versions_are_drawn_where_encoded_requests_asked_by_both_protocols(measured: Any) -> None:
    figures = figures_of(measured("weaviate-grpc-laptop"))
    versions = {panel.heading.split(" · ")[1] for panel in figures["weaviate-protocols"].panels}
    assert versions == {"Weaviate 1.23.9", "Weaviate 1.27.0"}
    assert protocols.figures(measured("milvus-2.2-cluster-laptop")) == []
    assert scaling.figures(measured("weaviate-grpc-laptop")) == scaling.tables(measured("weaviate-grpc-laptop")) == []


@pytest.mark.parametrize(
    "experiment", ["milvus-2.2-cluster", "milvus-2.2-cluster-laptop", "weaviate-grpc-client-laptop"]
)
def test_the_charts_are_what_vega_lite_draws_with_plain_numbers_on_their_axes(measured: Any, experiment: str) -> None:
    panels = [panel for figure in figures_of(measured(experiment)).values() for panel in figure.panels]
    assert len(panels) >= 4
    for panel in panels:
        alt.Chart.from_dict(dict(panel.spec))
        svg = vl_convert.vegalite_to_svg({**panel.spec, "width": 480, "config": CHART_CONFIG})
        texts = re.findall(r">([^<]+)</text>", svg)
        assert "0" in texts and not [text for text in texts if re.fullmatch(r"[-−]?[\d.]+e[-+−]?\d+", text)], (
            panel.heading
        )
