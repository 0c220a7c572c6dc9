"""The charts of the documents on Milvus 2.2 and on gRPC in Weaviate, from their experiments as they are in config.

And of these and of that on DiskANN the tables of gains, each beside what the document claims.
"""

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
from casestudies import STUDIES, disks, documents, gains, protocols, scaling
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


def diskann_rate(cell: Cell, load: Mapping[str, Any], query: Mapping[str, Any]) -> float:
    """As much as the limit of the path lets through; half in memory's stead; twice by four paths."""
    system, topology = load["system"], load["topology"]
    on_disk = load["index"]["type"] == "diskann" or "storage" in system["settings"].values()
    limits, path = topology.get("storage_limits") or {}, topology.get("storage", "")
    if not on_disk:
        return 2000.0
    most = limits.get("read_mib_per_s", limits.get("read_ops_per_s", 0) / 256)
    return 3.4 * most if most else 1000.0 * (2 if "4path" in path else 1)


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
            if experiment.startswith("diskann"):
                return material_of(matrix_of(experiment), diskann_rate)
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
    made = (scaling.tables, protocols.tables, disks.tables)
    return next(each for of in made for each in of(material) if each.number == number)


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
    place = "(Summary, line 5)"
    assert texts(cluster) == ["6,904", "10,248", "+48.4 %", "—", f"at least 48 % {place}", cluster.cells[-1].text]
    assert texts(standalone)[:5] == ["4,287", "7,522", "+75.5 %", "—", f"at least 75 % {place}"]
    assert cluster.cells[-1].text == "2.1.0, 12 cores, 1 node: its system was distributed, ours in one process"
    of_report = [row for row in ours if row.labels[3] == "milvus-2.1.0 → milvus-2.2.16"]
    assert len(of_report) == 5 and {row.cells[-1].text for row in of_report} == {"+75.5 %"}
    assert standalone.cells[-1].text == "; ".join(row.cells[2].text for row in of_report)
    assert of_report[0].cells[2].value == pytest.approx(100 * (2.2 / 2.1 - 1))
    assert of_report[0].cells[3].text == "undetermined: at least 3 runs are needed", "an hour each, once"


def texts(row: TableRow) -> list[str]:
    return [cell.text for cell in row.cells]


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
    assert len(ours) == 7 and {row.cells[2].text for row in ours} == {"+0.0 %"}
    cluster = theirs[0]
    assert cluster.cells[-1].text == "+0.0 %", "the report's one query node of 12 cores"
    assert [row.cells[-1].text for row in ours].count("+48.4 %") == 1


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


# Gains of gRPC, of disk and of paths

GRPC_CLAIMS, DISK_CLAIMS = 3, 4


def rows_of(rows: list[TableRow], *words: str) -> list[TableRow]:
    """Those with each of the words in a label."""
    return [row for row in rows if all(any(word in label for label in row.labels) for word in words)]


def test_grpc_gains_over_rest_by_dataset_ef_and_client_each_with_what_it_rests_on(measured: Any) -> None:
    material = measured("weaviate-grpc-client")
    ours, _ = sides(table(material, "D2-V"))
    known = {row["number_id"]: row for row in material.by_any_client}
    assert len(ours) == 2 * (2 + 3 * 6 * 2), "loaded by both, and asked as bytes, or by the client after either load"
    for row in ours:
        below, above, gain = row.cells[:3]
        rest, grpc = known[below.number_id], known[above.number_id]
        assert gain.parents == (above.number_id, below.number_id)
        assert "-rest" in rest["system"] and "-rest" not in grpc["system"] and "1.23.9" in grpc["system"]
        same = ("dataset", "topology", "workload", "k", "ef_search", "clients", "client", "metric")
        assert all(rest[name] == grpc[name] for name in same)
        assert ("-import" in rest["system"]) == ("-import" in grpc["system"]), "loaded alike"
    (rate,) = rows_of(ours, "sift", "ef 64, 1 client", "queries per second", "k10-protocol-ef64")
    assert rate.labels[1:4] == ("sift-128-euclidean", "standalone", "weaviate-1.23.9-rest → weaviate-1.23.9")
    assert rate.cells[2].value == pytest.approx(2, rel=1e-3) and rate.cells[2].text.startswith("2.00 × (")
    assert rate.cells[3].text == "faster (beyond the noise of runs)"
    (mean,) = rows_of(ours, "sift", "mean", "k10-protocol-ef64")
    assert mean.cells[2].value == pytest.approx(-50, rel=1e-3) and mean.cells[3].text.startswith("faster")
    (load,) = rows_of(ours, "sift", "load (s)", "inserted through its Python client")
    assert load.cells[2].text == "−40.0 %", "loaded once, so that no noise is known"
    assert load.cells[3].text == "undetermined: at least 3 runs are needed"


def test_of_the_claims_on_grpc_the_import_alone_can_stand_beside_ours(measured: Any) -> None:
    ours, theirs = sides(table(measured("weaviate-grpc-client"), "D2-V"))
    rate, latency, load = theirs
    assert rate.cells[2].text == "over 2.6 ×" and latency.cells[2].text == "−40 % to −70 %"
    assert {row.cells[-1].text for row in (rate, latency)} == {"it names no dataset; it doesn't say k"}
    assert texts(load)[:3] == ["at least 2,520", "1,380", "at most −45.2 %"]
    beside = [row for row in ours if row.cells[-1].text != "—"]
    assert len(beside) == 2 and {row.labels[5] for row in beside} == {"load (s)"}
    assert {row.labels[1] for row in beside} == {"dbpedia-openai-1000k-angular"}
    assert {row.cells[-1].text for row in beside} == {"at most −45.2 %"}
    assert load.cells[-1].text == "−40.0 %; −40.0 %" and len(load.cells[-1].parents) == 4


def test_the_import_on_other_data_has_a_reason_in_place_of_our_gain(measured: Any) -> None:
    ours, theirs = sides(table(measured("weaviate-grpc-client-laptop"), "D2-V"))
    assert theirs[-1].cells[-1].text == "REST: nothing was measured of it here"
    assert ours and {row.cells[-1].text for row in ours} == {"—"}


def test_both_versions_of_weaviate_gain_each_over_its_own(measured: Any) -> None:
    ours, _ = sides(table(measured("weaviate-grpc-laptop"), "D2-V"))
    assert {row.labels[3] for row in ours} == {
        f"weaviate-{version}-rest → weaviate-{version}" for version in ("1.23.9", "1.27.0")
    }


def test_a_load_in_other_batches_is_no_counterpart_by_the_other_protocol(measured: Any) -> None:
    material = measured("weaviate-grpc-laptop")
    records = {
        path: {**record, "spec": {**record["spec"], "load": {"batch_rows": 7}}}
        if record["stage"] == "load" and record["spec"]["system"]["name"] == "weaviate-1.23.9-rest"
        else record
        for path, record in material.records.items()
    }
    ours, _ = sides(table(Material(material.numbers, records, material.facts), "D2-V"))
    assert {row.labels[3] for row in ours} == {"weaviate-1.27.0-rest → weaviate-1.27.0"}


def test_a_number_that_is_not_valid_gains_nothing_and_says_so(measured: Any) -> None:
    material = measured("weaviate-grpc-laptop")
    numbers = material.numbers.copy()
    failed = (numbers["system"] == "weaviate-1.27.0-rest") & (numbers["metric"] == "qps")
    numbers.loc[failed, ["value", "std", "low", "high"]] = None
    numbers.loc[failed, "reason"] = "known rows: 7 of 3000 answers short"
    ours, _ = sides(table(Material(numbers, material.records, material.facts), "D2-V"))
    for row in rows_of(ours, "weaviate-1.27.0-rest", "queries per second"):
        assert [row.cells[0].text, *texts(row)[2:4]] == ["invalid", "—", "—"]


def test_numbers_that_were_not_measured_in_turns_have_the_reason_in_place_of_a_gain(measured: Any) -> None:
    material = measured("weaviate-grpc-laptop")
    records = {
        path: {**record, "rounds": [{**each, "created": each["created"].replace("-21T", "-22T")} for each in rounds]}
        if "-rest" in path and (rounds := record.get("rounds"))
        else record
        for path, record in material.records.items()
    }
    ours, _ = sides(table(Material(material.numbers, records, material.facts), "D2-V"))
    queries = [row for row in ours if row.labels[5] != "load (s)"]
    assert {row.cells[2].text.partition(":")[0] for row in queries} == {"measured 24 h apart"}
    assert {row.cells[3].text for row in queries} == {"—"}


def test_disk_stands_against_memory_of_one_program_or_of_two_libraries(measured: Any) -> None:
    ours, _ = sides(table(measured("diskann-nvmeof-laptop"), "D4-V"))
    over_memory = rows_of(ours, "HNSW in memory")
    assert {row.labels[3] for row in over_memory} == {
        "HNSW in memory → mapped from files: milvus-2.3.5 → milvus-2.3.5-mmap"
    }, "the library is never set against a server"
    assert {row.labels[2] for row in over_memory} == {"standalone-on-disk", "standalone-on-memory"}
    ours, _ = sides(table(measured("diskann-saturation-laptop"), "D4-V"))
    assert {row.labels[3] for row in rows_of(ours, "HNSW in memory", "→")} == {
        "HNSW in memory → DiskANN on disk: hnswlib-0.8.0-library → diskann-0.7.0-m64-library"
    }
    (unlimited,) = rows_of(ours, "HNSW in memory", "standalone-on-memory", "queries per second")
    assert unlimited.cells[2].value == pytest.approx(-50, rel=1e-3) and unlimited.cells[3].text.startswith("slower")


def test_a_faster_path_stands_against_the_slowest_by_what_the_records_say(measured: Any) -> None:
    ours, _ = sides(table(measured("diskann-saturation-laptop"), "D4-V"))
    rates = {
        row.labels[3].partition(": ")[2]: row.cells[2]
        for row in rows_of(ours, "diskann-0.7.0-m64-library: ", "queries per second")
    }
    assert {words: round(cell.value or 0) for words, cell in rates.items()} == {
        "10 MiB/s → 20 MiB/s": 100,
        "10 MiB/s → 40 MiB/s": 300,
        "10 MiB/s → no limit": 2841,
        "10 MiB/s, evenly paced → no limit": 2841,
        "2560 reads/s → no limit": 2841,
    }
    (tail,) = rows_of(ours, "diskann-0.7.0-m64-library: 10 MiB/s → 40 MiB/s", "p95 (ms)")
    assert tail.cells[2].text.startswith("4.00 × (") and tail.cells[3].text.startswith("faster")
    control = rows_of(ours, "hnswlib-0.8.0-library: 10 MiB/s → 40 MiB/s")
    assert [row.cells[3].text for row in control] == ["equivalent", "equivalent"], "it reads nothing there"
    ours, _ = sides(table(measured("diskann-nvmeof-laptop"), "D4-V"))
    media = rows_of(ours, "diskann-0.7.0-library: ext4 → tmpfs")
    assert media and {row.labels[2] for row in media} == {"standalone-on-disk → standalone-on-memory"}


def test_paths_are_counted_by_the_records_and_their_network_cards_are_not_known(measured: Any) -> None:
    ours, theirs = sides(table(measured("diskann-nvmeof-paths"), "D4-V"))
    assert {row.labels[3].rpartition(": ")[2] for row in ours} == {"1 path → 4 paths"}
    rates = rows_of(ours, "queries per second")
    assert rates and {round(row.cells[2].value or 0) for row in rates} == {100}
    assert {row.cells[-1].text.split(": ")[0] for row in theirs} == {
        "HNSW, local DRAM",
        "DiskANN, remote NVMe-oF 4-path 1-NIC",
        "DiskANN, remote NVMe-oF 1-path 1-NIC",
    }


def test_the_claims_on_disks_stand_with_their_numbers_and_why_ours_are_not_beside_them(measured: Any) -> None:
    _, theirs = sides(table(measured("diskann-nvmeof"), "D4-V"))
    assert [texts(row)[:3] for row in theirs] == [
        ["5,081.6", "7,971.8", "+56.9 %"],
        ["557.8", "665.9", "+19.4 %"],
        ["7,971.8", "6,624.4", "−16.9 %"],
        ["2,574", "24.9", "103 ×"],
    ], "17.0 % is what the document makes of it: finding f106"
    assert [row.cells[-1].text for row in theirs[:2]] == ["HNSW, local DRAM: its version was 2.6, ours 2.3"] * 2
    assert theirs[2].cells[-1].text.startswith("DiskANN, remote NVMe-oF 4-path 1-NIC: its ")


def test_the_document_s_own_milvus_has_a_gain_that_stands_beside_the_claim_of_the_storage_that_is_declared(
    measured: Any,
) -> None:
    ours, theirs = sides(table(measured("diskann-nvmeof-remote"), "D4-V"))
    assert {row.labels[3] for row in ours} == {"HNSW in memory → DiskANN on disk: milvus-2.6.9 → milvus-2.6.9-diskann"}
    declared = ("1path-1nic", "4path-1nic", "4path-2nic")
    assert {row.labels[2] for row in ours} == {f"remote-milvus → remote-milvus-diskann-{each}" for each in declared}
    beside = {row.labels[2].rpartition("diskann-")[2] for row in ours if row.cells[-1].text == "+56.9 %"}
    assert beside == {"4path-1nic"} and {row.cells[-1].text for row in ours} == {"+56.9 %", "—"}
    assert [row.cells[-1].text.startswith("−50.0 %") for row in theirs] == [True, False, False, False]


@pytest.mark.parametrize(
    ("experiment", "number", "claims"),
    [
        ("weaviate-grpc-client-laptop", "D2-V", GRPC_CLAIMS),
        ("diskann-nvmeof-laptop", "D4-V", DISK_CLAIMS),
        ("milvus-2.2-report", "D1-V", 2),
    ],
)
def test_a_claim_has_its_words_and_the_place_of_its_number_in_the_document(
    measured: Any, experiment: str, number: str, claims: int
) -> None:
    material = measured(experiment)
    of = table(material, number)
    assert [column.label for column in of.columns[2:]] == ["Gain", "Verdict", "Claimed", "Beside it"]
    _, theirs = sides(of)
    assert len(theirs) == claims
    facts = {figure.id: figure for figure in material.facts.figures}
    for row in theirs:
        claimed, figure = row.cells[4], facts[row.cells[4].source]
        assert claimed.text.endswith(f" ({figure.place.removeprefix('text ')}, line {figure.line})")
        printed = dict(part.partition("=")[::2] for part in figure.detail.split("; ")).get("printed", figure.value)
        assert printed.lstrip("-") in claimed.text
        assert all(cell.source for cell in row.cells[:3] if cell.text != "—")


def test_gains_are_tables_of_the_page(measured: Any) -> None:
    (group,) = (group for group in STUDIES.groups if group.name == "documents")
    for experiment, number in (("weaviate-grpc-laptop", "D2-V"), ("diskann-nvmeof-laptop", "D4-V")):
        made = [each.number for make in group.tables for each in make(measured(experiment))]
        assert made.count(number) == 1
        assert not [each for each in made if each.startswith("D") and each not in ("D2", "D2-V", "D4", "D4-V")]


def test_what_was_asked_by_one_protocol_or_on_one_path_has_no_table_of_gains(measured: Any) -> None:
    for experiment in ("milvus-2.2-cluster-laptop", "milvus-2.2-report"):
        assert protocols.tables(measured(experiment)) == disks.tables(measured(experiment)) == []


def test_a_gain_is_told_as_a_change_or_as_so_many_times_with_its_interval() -> None:
    assert gains.CHANGE.text(0.5, (0.45, 0.55)) == "−50.0 % (−55.0 to −45.0)"
    assert gains.TIMES.text(2.6, (2, 3)) == "2.60 × (2.00 to 3.00)"
    assert gains.TIMES_LESS.text(24.9 / 2574) == "103 ×"
    assert gains.TIMES_LESS.text(0.5, (0.4, 0.625)) == "2.00 × (1.60 to 2.50)"
