"""What a guard reads from a file and writes for other programs, and its GitHub Action."""

from __future__ import annotations

import csv
import json
import os
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from anncestry import cli, guard
from anncestry.drive import build
from anncestry.errors import ConfigError
from tests.toy import ROOT, Toy

ACTION = ROOT / "action.yml"
WORKFLOWS = ROOT / "docs" / "workflows"
ASKED = guard.Asked("red-1.0", "slow-1.0", ["blobs-l2"], ["k5"])
ACTIONLINT = "github.com/rhysd/actionlint/cmd/actionlint@v1.7.7"


def finding(quantity: str, head: float | None, change: float | None) -> guard.Finding:
    return guard.Finding("blobs-l2", "k5", quantity, 1.0, head, change, None, None, guard.Ruling.CANT_TELL)


def test_each_guard_is_a_row_of_the_csv_and_the_config_by_which_otava_reads_it(tmp_path: Path) -> None:
    first, second = datetime(2026, 10, 1, 4, tzinfo=UTC), datetime(2026, 10, 2, 4, tzinfo=UTC)
    guard.otava(ASKED, [finding("p50_ms", 1.1, 1.05)], tmp_path, first)
    guard.otava(ASKED, [finding("p50_ms", 1.2, 1.15), finding("qps", 900.0, 0.9)], tmp_path, second)
    with open(tmp_path / "otava.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["time"] for row in rows] == [first.isoformat(), second.isoformat()]
    assert [row["blobs-l2.k5.p50_ms"] for row in rows] == ["1.1", "1.2"]
    assert [row["blobs-l2.k5.qps head / base"] for row in rows] == ["nan", "0.9"], "a column more is none less"
    test = yaml.safe_load((tmp_path / "otava.yaml").read_text())["tests"]["guard"]
    assert test["file"] == "otava.csv" and test["time_column"] == "time"
    assert {*test["attributes"], *(metric["column"] for metric in test["metrics"].values()), "time"} == set(rows[0])
    directions = {name: metric["direction"] for name, metric in test["metrics"].items()}
    assert directions["blobs-l2.k5.p50_ms"] == -1 and directions["blobs-l2.k5.qps"] == 1


def test_the_example_of_the_documents_is_what_a_guard_does_by_itself() -> None:
    given = guard.from_file(WORKFLOWS / "guard-metrics.yaml")
    plain = guard.Asked("a", "b", ["fashion-mnist-784-euclidean"], ["k10-clients4"])
    assert given.pop("budget") == "10m" and plain.budget_s == 600
    assert guard.Asked("a", "b", **given) == guard.Asked(
        "a", "b", list(plain.datasets), list(plain.workloads), list(plain.quantities)
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("quantitys: [qps]", r"metrics.yaml: unknown key 'quantitys'; did you mean 'quantities'\?"),
        ("quantities: [beauty]", "metrics.yaml: quantities: 'beauty' is unknown; known: server_cpu_us_per_query"),
        ("workloads: []", r"metrics.yaml: workloads: \[\] should be non-empty"),
        ("margin_percent: 0", "metrics.yaml: margin_percent: 0 is less than or equal to the minimum of 0"),
        ("budget: 10", "metrics.yaml: budget: 10 is not of type 'string'"),
        ("datasets: [", "metrics.yaml: not valid YAML"),
        (None, "metrics.yaml: missing"),
    ],
)
def test_a_wrong_file_of_metrics_is_refused_with_the_key_and_what_may_be_there(
    tmp_path: Path, text: str | None, said: str
) -> None:
    path = tmp_path / "metrics.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        guard.from_file(path)


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toy:
    toy = Toy.make(tmp_path)
    toy.files["config"]["duet"] = {"slice_s": 0.05, "discard_ms": 5, "blocks": 6, "first": 2, "most": 2}
    toy.files["systems"]["slow-1.0"] = {**toy.files["systems"]["red-1.0"], "settings": {"lie": "slow"}}
    toy.save()
    (toy.folder / "metrics.yaml").write_text("datasets: [blobs-l2]\nworkloads: [k5]\nquantities: [qps]\nbudget: 320s\n")
    monkeypatch.chdir(toy.folder)
    monkeypatch.setenv("ANNCESTRY_CONFIG", str(toy.folder / "config"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (ROOT, ROOT / "src"))))
    return toy


def keys(toy: Toy, capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, str]:
    sides = ("--base", "red-1.0", "--head", "slow-1.0")
    assert cli.main(["guard", *sides, "--metrics", "metrics.yaml", "--keys", *arguments]) == 0
    return dict(line.split("=") for line in capsys.readouterr().out.splitlines())


def test_caches_go_by_the_keys_of_data_and_driver(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    first = keys(toy, capsys)
    assert first == keys(toy, capsys) and first["driver"] == build.digest()[:16]
    assert not (toy.folder / "guard" / "data").exists(), "nothing was made"
    assert keys(toy, capsys, "--margin", "3", "--budget", "8m") == first, "of what is asked of the data, nothing"
    assert keys(toy, capsys, "--dataset", "blobs-cosine")["data"] != first["data"], "an option goes before the file"


# The action


def steps() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(ACTION.read_text())["runs"]["steps"]
    return found


def step(name: str, toy: Toy, inputs: Mapping[str, str], **more: str) -> subprocess.CompletedProcess[str]:
    """Run a step of the action by itself, as a runner would: its inputs come by the environment only."""
    (found,) = [each for each in steps() if each["name"] == name]
    own = {}
    for variable, value in found["env"].items():
        name_of = value.removeprefix("${{ ").removesuffix(" }}")
        own[variable] = inputs.get(name_of.removeprefix("inputs."), more.get(name_of, ""))
    files = {name: str(toy.folder / name) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", found["run"]],
        cwd=toy.folder,
        env={**os.environ, **own, **files},
        capture_output=True,
        text=True,
        check=False,
    )


def outputs(toy: Toy) -> dict[str, str]:
    return dict(line.split("=", 1) for line in (toy.folder / "GITHUB_OUTPUT").read_text().splitlines())


@pytest.mark.long
def test_the_steps_of_the_action_measure_summarize_and_fail_where_it_regressed(toy: Toy) -> None:
    inputs = {"base": "red-1.0", "head": "slow-1.0", "metrics": "metrics.yaml", "folder": "guard"}
    asked = step("Keys of dataset, truth and driver", toy, inputs)
    assert asked.returncode == 0, asked.stderr
    assert outputs(toy).keys() == {"data", "driver"}
    done = step("Guard", toy, inputs)
    assert done.returncode == 0, done.stderr
    assert outputs(toy)["status"] == "3"
    assert "slow-1.0 against red-1.0: REGRESSED" in (toy.folder / "GITHUB_STEP_SUMMARY").read_text()
    found = json.loads((toy.folder / "guard" / "guard.json").read_text())["findings"]
    assert [each["quantity"] for each in found] == ["qps"], "as the file says"
    ended = step("Guard", toy, {**inputs, "head": "nobody-1.0"})
    assert outputs(toy)["status"] == "2" and "no system 'nobody-1.0'" in ended.stderr
    assert (toy.folder / "GITHUB_STEP_SUMMARY").read_text().count("against") == 1, "no summary of what was before"


@pytest.mark.parametrize(
    ("fail_on", "failing"),
    [("regressed", {"2", "3"}), ("unsure", {"2", "3", "4"}), ("never", {"2"})],
)
def test_the_verdict_fails_the_job_as_asked(toy: Toy, fail_on: str, failing: set[str]) -> None:
    ends = {
        status: step("Verdict", toy, {"fail-on": fail_on}, **{"steps.guard.outputs.status": status}).returncode
        for status in ("0", "2", "3", "4")
    }
    assert {status for status, code in ends.items() if code} == failing


@pytest.fixture(scope="module")
def actionlint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pinned actionlint, built by Go once in this environment."""
    folder = ROOT / ".venv" / "actionlint" / ACTIONLINT.rpartition("@")[2]
    if not (folder / "actionlint").exists():
        own = {"GOBIN": str(folder), "GOFLAGS": "", "GO111MODULE": "on"}
        subprocess.run(["go", "install", ACTIONLINT], check=True, env={**os.environ, **own}, timeout=600)
    return folder / "actionlint"


def lint(actionlint: Path, folder: Path) -> str:
    """What actionlint says of the workflows in a folder; empty if nothing."""
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    done = subprocess.run([actionlint, "-no-color"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


@pytest.mark.long
def test_actionlint_finds_nothing_in_the_action_and_in_the_workflows_that_use_it(
    actionlint: Path, tmp_path: Path
) -> None:
    place = tmp_path / ".github" / "workflows"
    place.mkdir(parents=True)
    (tmp_path / "action.yml").write_text(ACTION.read_text())
    for path in WORKFLOWS.glob("*.yml"):
        (place / path.name).write_text(path.read_text())
    (place / "steps.yml").write_text(yaml.safe_dump(as_workflow(), sort_keys=False))
    (tmp_path / ".github" / "actionlint.yaml").write_text("self-hosted-runner: {labels: [benchmarks]}\n")
    assert lint(actionlint, tmp_path) == ""
    for file, right, wrong, said in (
        ("steps.yml", "inputs.metrics", "inputs.metric", 'property "metric" is not defined'),
        ("steps.yml", "steps.keys.outputs", "steps.key.outputs", 'property "key" is not defined'),
        ("guard.yml", "head:", "tail:", 'missing input "head"'),
    ):
        before = (place / file).read_text()
        (place / file).write_text(before.replace(right, wrong))
        assert said in lint(actionlint, tmp_path), "a planted mistake is found"
        (place / file).write_text(before)


def as_workflow() -> dict[str, Any]:
    """The steps of the action as a job: actionlint reads steps of workflows only."""
    inputs = yaml.safe_load(ACTION.read_text())["inputs"]
    asked = {name: {"type": "string", "required": False} for name in inputs}
    job = {"runs-on": "ubuntu-latest", "steps": steps()}
    return {"name": "steps", "on": {"workflow_call": {"inputs": asked}}, "jobs": {"steps": job}}


def test_no_input_of_the_action_stands_in_a_script() -> None:
    """What a pull request may name (a branch, a path) is data of a script, never a part of it."""
    scripts = [each["run"] for each in steps() if "run" in each]
    assert len(scripts) > 4 and not [script for script in scripts if "${{" in script]
