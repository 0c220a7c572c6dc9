"""docs/adding-a-feature.md holds a whole feature of a workload: taken out of the page, it is measured as others are."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from anncestry.errors import ConfigError
from anncestry.provenance.records import promote, seal
from anncestry.report.site.catalogue import tables_of
from anncestry.verify import verify
from tests.builders.bench import Bench, failed
from tests.builders.fixed_report import material_of
from tests.toy import ROOT

PAGE = ROOT / "docs" / "adding-a-feature.md"
KEY = "my_features.rest"


@pytest.fixture
def workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The page's workload, its feature installed beside."""
    blocks = dict(re.findall(r"^```\w+\n# (\S+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL))
    assert sorted(blocks) == ["rest.py", "workloads.yaml"]
    assert len(blocks["rest.py"].splitlines()) <= 60
    package = tmp_path / "modules" / "my_features"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "rest.py").write_text(blocks["rest.py"])
    monkeypatch.syspath_prepend(package.parent)
    workloads: dict[str, Any] = yaml.safe_load(blocks["workloads.yaml"])
    return workloads


def with_workload(workloads: dict[str, Any]) -> Callable[[dict[str, Any]], None]:
    def change(files: dict[str, Any]) -> None:
        files["workloads"] = workloads
        files["config"]["matrix"][0]["workloads"] = list(workloads)

    return change


def test_the_feature_of_the_page_has_its_gate_its_numbers_and_its_table(bench: Any, workload: dict[str, Any]) -> None:
    honest: Bench = bench(change=with_workload(workload))
    (cell,) = honest.matrix.cells
    honest.load(cell)
    promote(Path(cell.index_path), Path(cell.load_path), stage="load", key=cell.load)
    assert honest.query(cell, runs=2) == {cell.query: "ok"}
    record = honest.publish(cell)
    assert failed(record) == {}
    assert [gate["detail"] for gate in record["gates"] if gate["gate"] == "rest"]
    rested = record[KEY]
    assert rested["rested_s"]["value"] >= 0.2 and len(rested["runs"]) == 2
    assert rested["after_rest_ms"]["value"] > 0

    material = material_of([{**cell.paths, "recall_path": None}])
    (table,) = [table for _, group in tables_of(material) for table in group if table.number == "REST"]
    values = dict(zip((column.label for column in table.columns), table.rows[0].cells, strict=True))
    assert values["First query"].value == rested["after_rest_ms"]["value"]

    assert [str(problem) for problem in verify(honest.matrix, partial=True).problems] == []
    path = Path(cell.query_path)
    body = json.loads(path.read_text())
    body[KEY]["after_rest_ms"]["value"] /= 2
    path.write_text(json.dumps(seal({name: value for name, value in body.items() if name != "seal"})))
    (problem,) = verify(honest.matrix, partial=True).problems
    assert f"its {KEY} does not match its samples" in str(problem)


def test_a_wrong_value_and_an_unknown_module_are_refused_by_name(bench: Any, workload: dict[str, Any]) -> None:
    ((name, entry),) = workload.items()
    with pytest.raises(ConfigError, match="is less than or equal to the minimum of 0") as refused:
        bench(change=with_workload({name: {**entry, KEY: 0}}))
    assert f"{name}.{KEY}: " in str(refused.value)
    with pytest.raises(ConfigError, match=r"feature: no module .my_features\.sleep"):
        bench(change=with_workload({name: {**entry, "my_features.sleep": 1}}))
