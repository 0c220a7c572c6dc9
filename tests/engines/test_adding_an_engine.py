"""docs/adding-an-engine.md holds a whole engine: taken out of the page as it stands, it is measured like any other."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import yaml

from tests.toy import ROOT, Toy

PAGE = ROOT / "docs" / "adding-an-engine.md"


def blocks() -> dict[str, str]:
    """The page's blocks of code, by the file that their first line names."""
    found = re.findall(r"^```\w+\n# (\S+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return dict(found)


def test_the_engine_of_the_page_is_measured_to_the_end_and_all_its_gates_hold(tmp_path: Path) -> None:
    package = tmp_path / "modules" / "scan"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    found = blocks()
    assert sorted(found) == ["scan_engine.py", "scan_server.py", "systems.yaml"]
    assert len(found["scan_engine.py"].splitlines()) <= 100
    for name in ("scan_engine.py", "scan_server.py"):
        (package / name).write_text(found[name])
    toy = Toy.make(tmp_path / "toy")
    toy.files["systems"] = yaml.safe_load(found["systems.yaml"])
    toy.block.update(datasets=["blobs-cosine"], systems=["scan-1.0.0"], topologies=["standalone"])
    toy.snakemake(modules=package.parent)
    (table,) = (toy.folder / "results" / "table").glob("*/numbers.csv")
    with open(table, newline="") as file:
        recalls = {float(row["value"]) for row in csv.DictReader(file) if row["metric"] == "recall_by_distance"}
    assert recalls == {1.0}
    for stage in ("load", "query"):
        records = [json.loads(path.read_text()) for path in (toy.folder / "results" / stage).rglob("*@*.json")]
        assert len(records) == {"load": 1, "query": len(toy.block["workloads"])}[stage]
        assert all(record["valid"] for record in records), [record["gates"] for record in records]

    toy.block["topologies"] = ["cluster-3"]
    refused = toy.snakemake("-n", check=False, modules=package.parent)
    assert refused.returncode != 0 and "topology: scan is one server" in refused.stdout + refused.stderr
