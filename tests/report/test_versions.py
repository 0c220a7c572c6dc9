"""Which systems are versions of one program: by what the records of their loads say, and by no name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from anncestry.report.compare import changes
from anncestry.report.model.material import Material
from anncestry.report.model.numbers import frame
from tests.builders.expanded import matrix_of
from tests.builders.fixed_report import lay_out, material_of

Spec = dict[str, Any]


def versions_of(loads: Iterable[Spec], name: Callable[[str], str] = str) -> list[tuple[str, str]]:
    """The pairs of versions, given the specs of loads whose systems are renamed."""
    records = {}
    for number, spec in enumerate(loads):
        system = {**spec["system"], "name": name(spec["system"]["name"])}
        records[f"{number}.json"] = {"stage": "load", "spec": {**spec, "system": system}}
    return changes.versions(Material(frame([]), records))


def loads_of(experiment: str) -> list[Spec]:
    matrix = matrix_of(experiment)
    return [matrix.spec(key, "load") for key in dict.fromkeys(cell.load for cell in matrix.cells)]


def load(version: str, name: str = "", topology: str = "one", **settings: Any) -> Spec:
    system = {"name": name or version, "engine": "milvus", "version": version, "settings": settings}
    return {"dataset": {"name": "d"}, "topology": {"name": topology}, "index": {"type": "hnsw"}, "system": system}


BY_EXPERIMENT = {
    "milvus-2.2-report": [("milvus-2.1.0", "milvus-2.2.16"), ("milvus-2.2.16", "milvus-2.3.5")],
    "upgrade": [("weaviate-1.27.0", "weaviate-1.29.0"), ("weaviate-1.29.0", "weaviate-1.35.2")],
    "weaviate-grpc-laptop": [("weaviate-1.23.9", "weaviate-1.27.0"), ("weaviate-1.23.9-rest", "weaviate-1.27.0-rest")],
    "weaviate-grpc-client-laptop": [
        ("weaviate-1.23.9", "weaviate-1.27.0"),
        ("weaviate-1.23.9-import", "weaviate-1.27.0-import"),
    ],
}


@pytest.mark.parametrize("experiment", BY_EXPERIMENT)
def test_a_variant_stands_beside_its_own_kind_of_the_version_before(experiment: str) -> None:
    assert set(BY_EXPERIMENT[experiment]) <= set(versions_of(loads_of(experiment)))


def test_each_protocol_and_each_way_of_loading_is_compared_with_itself_alone() -> None:
    for experiment in ("weaviate-grpc-laptop", "weaviate-grpc-client-laptop"):
        assert versions_of(loads_of(experiment)) == BY_EXPERIMENT[experiment]


@pytest.mark.parametrize("experiment", BY_EXPERIMENT)
def test_a_renamed_system_is_a_version_as_before(experiment: str) -> None:
    loads = loads_of(experiment)
    assert versions_of(loads, "of-{}-here".format) == [
        (f"of-{older}-here", f"of-{newer}-here") for older, newer in versions_of(loads)
    ]


def test_table_fv_judges_the_versions_of_a_renamed_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    of_one_engine = {'"engine": "milvus"': '"engine": "weaviate"', '"2.3.5"': '"1.25.0"'}
    names = {"milvus-2.3.5": "last-year", "weaviate-1.27.0": "this-year"}
    (table,) = changes.tables(material_of(lay_out(tmp_path, of_one_engine | names)))
    assert table.number == "FV" and {row.labels[2] for row in table.rows} == {"last-year → this-year"}


def test_versions_are_set_up_alike_but_for_settings_that_one_of_them_lacks() -> None:
    old, new = load("2.2.16", cut=4), load("2.3.5", cut=4, strategy="new")
    assert versions_of([old, new]) == [("2.2.16", "2.3.5")]
    assert versions_of([new, old]) == [("2.2.16", "2.3.5")], "by version, whatever their order"
    others = (
        load("2.3.5", cut=5),
        load("2.3.5", cut=4, queryNode="storage"),
        {**load("2.3.5", cut=4), "index": {"type": "diskann"}},
        {**load("2.3.5", cut=4), "load": {"kill": {"after_share": 0.5}}},
        load("2.3.5", topology="another", cut=4),
        {**load("2.3.5", cut=4), "system": {**load("2.3.5", cut=4)["system"], "engine": "weaviate"}},
    )
    for other in others:
        assert versions_of([old, other]) == []


def test_of_several_that_are_set_up_alike_the_version_before_has_the_one_that_differs_least() -> None:
    old = load("2.2.16", cut=4)
    assert versions_of([old, load("2.3.5", "tuned", cut=4, more=1), load("2.3.5", "usual", cut=4)]) == [
        ("2.2.16", "usual")
    ]


def test_a_version_that_has_none_of_its_kind_right_before_it_has_the_last_one_that_there_is() -> None:
    kind = [load(version, f"{version}-sq", quantizer="sq") for version in ("2.1.0", "2.3.5")]
    plain = [load(version, quantizer="none") for version in ("2.1.0", "2.2.16", "2.3.5", "2.10.0")]
    assert versions_of([*kind, *plain]) == [
        ("2.1.0", "2.2.16"),
        ("2.2.16", "2.3.5"),
        ("2.1.0-sq", "2.3.5-sq"),
        ("2.3.5", "2.10.0"),
    ]
