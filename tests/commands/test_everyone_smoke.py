"""`everyone-smoke`: every native system and library that the smoke experiment leaves out, in one matrix, for real.

With one workload and one round, as CI has minutes; whole it is one of those that `make test-experiments` turns through.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
import yaml

from tests.toy import ROOT, anncestry, run_workflow

EXPERIMENT = "everyone-smoke"
ASKED = {
    "k": 10, "clients": 1, "runs": 1, "duration_s": 2, "queries": 200, "warmup": 20,
    "tuning_queries": 200, "target_recall": 0.95,
}  # fmt: skip


def systems(engines: frozenset[str] = frozenset({"milvus", "weaviate"})) -> list[str]:
    """Those of the experiment that are of other engines than the smoke's, which are measured there."""
    known = yaml.safe_load((ROOT / "config" / "systems.yaml").read_text())
    (block,) = yaml.safe_load((ROOT / "config" / "experiments" / f"{EXPERIMENT}.yaml").read_text())["matrix"]
    return [name for name in block["systems"] if known[known[name].get("of", name)]["engine"] not in engines]


pytestmark = [pytest.mark.servers, pytest.mark.long, pytest.mark.makes(*systems())]


@pytest.fixture(scope="module")
def everyone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("everyone")
    config = folder / "config"
    shutil.copytree(ROOT / "config", config)
    path, workloads = config / "experiments" / f"{EXPERIMENT}.yaml", config / "workloads.yaml"
    experiment = yaml.safe_load(path.read_text())
    experiment["matrix"][0] |= {"systems": systems(), "workloads": ["asked"]}
    path.write_text(yaml.safe_dump(experiment))
    workloads.write_text(yaml.safe_dump({**yaml.safe_load(workloads.read_text()), "asked": ASKED}))
    run_workflow(folder, f"experiment={EXPERIMENT}", f"config_dir={config}")
    yield folder


def test_every_system_is_loaded_and_asked_at_the_recall_that_all_are_asked_at(everyone: Path) -> None:
    (table,) = (everyone / "results" / "table").glob(f"{EXPERIMENT}@*/numbers.parquet")
    numbers = pd.read_parquet(table)
    recall = numbers[(numbers.metric == "recall_by_distance") & (numbers.workload == "asked")].set_index("system")
    assert sorted(recall.index) == sorted(systems())
    assert recall.valid.all() and (recall.value >= 0.9).all(), recall.value
    qps = numbers[(numbers.metric == "qps") & (numbers.workload == "asked")].set_index("system")
    assert sorted(qps.index) == sorted(systems()) and (qps.value > 1).all()
    loaded = [json.loads(path.read_text()) for path in (everyone / "results" / "load").rglob("*.json")]
    assert len(loaded) == len(systems()) and all(record["valid"] for record in loaded)


def test_all_of_it_verifies(everyone: Path) -> None:
    done = anncestry(everyone, "--experiment", EXPERIMENT, "verify")
    assert done.returncode == 0, done.stdout + done.stderr
