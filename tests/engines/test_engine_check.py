"""`anncestry engine-check`: a right engine passes with every lie caught; one that hides something is told what."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from anncestry import engine_check, engines, workflow
from anncestry.commands import systems
from tests.servers import SYSTEMS
from tests.toy import ROOT

PAGE = (ROOT / "docs" / "adding-an-engine.md").read_text()
BLOCKS = dict(re.findall(r"^```\w+\n# (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))


def checked(folder: Path, *arguments: str) -> tuple[int, Any, str]:
    """Exit status, findings by name and what was said, of a check of the engine of the page."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANNCESTRY_")}
    done = subprocess.run(
        [sys.executable, "-m", "anncestry", "engine-check", "scan.scan_engine", "--json", "--cores", "2", *arguments],
        cwd=folder, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=2300,
        env={**environment, "PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    found = {each["name"]: each for each in json.loads(done.stdout)} if done.stdout else {}
    return done.returncode, found, done.stdout + done.stderr


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The engine that docs/adding-an-engine.md holds."""
    folder = tmp_path / "scan"
    folder.mkdir()
    (folder / "__init__.py").touch()
    for name in ("scan_engine.py", "scan_server.py"):
        (folder / name).write_text(BLOCKS[name])
    return folder


@pytest.mark.long
def test_the_engine_of_the_page_passes_and_each_lie_is_caught_by_what_looks_for_it(package: Path) -> None:
    status, found, said = checked(package.parent, "--version", "1.0.0")
    assert status == 0, said
    assert found.keys() == {"honest", *engine_check.LIES} and all(each["passed"] for each in found.values())
    expected = {
        "fewer-rows": "row count",
        "no-filter": "filter applied",
        "other-rows": "distances",
        "other-distances": "distances",
        "short": "defects of answers",
        "repeats": "defects of answers",
        "other-version": "server version",
        "other-settings": "settings",
        "index-incomplete": "index complete",
        "a-cluster": "topology",
    }
    assert {name: gate for name, gate in expected.items() if gate not in found[name]["by"].split(", ")} == {}


def test_an_engine_that_reads_no_settings_back_and_one_that_answers_badly_are_told(package: Path) -> None:
    engine = package / "scan_engine.py"
    text = engine.read_text()
    nothing = text.replace('{"metric": said["metric"]}, 1, 1, 1', "{}, 1, 1, 1")
    nothing = nothing.replace('return {"metric": metric}', "return {}")
    assert nothing.count("{}, 1, 1, 1") == 1 and "return {}" in nothing
    engine.write_text(nothing)
    status, found, said = checked(package.parent, "--version", "1.0.0", "--lies", "other-settings", "other-version")
    assert status == 3, said
    assert {name for name, each in found.items() if not each["passed"]} == {"other-settings"}
    assert found["other-settings"]["by"] == "nothing"


def test_the_command_names_every_lie() -> None:
    assert set(systems.LIES) == engine_check.LIES.keys()


def test_an_engine_without_filters_is_asked_without(tmp_path: Path) -> None:
    system = {key: value for key, value in SYSTEMS["hnswlib-0.8.0-library"].items() if key != "engine"}
    choice = engine_check._prepare("hnswlib", engines.offers_of("hnswlib"), system, "cosine", tmp_path, ["short"])
    cells = {(cell.system, cell.workload) for cell in workflow.expand(choice).cells}
    assert cells == {("honest", "k5"), ("honest", "k5-clients4"), ("short", "k5")}


def test_an_engine_that_can_not_be_loaded_or_is_not_there_is_one_sentence(package: Path) -> None:
    engine = package / "scan_engine.py"
    text = engine.read_text()
    engine.write_text(text.replace("Offers(", "Offers(metrics=('cosine',), ", 1))
    status, _, said = checked(package.parent, "--version", "1.0.0", "--metric", "l2")
    assert status == 2 and "scan.scan_engine searches by cosine only" in said and "Traceback" not in said
    engine.write_text(text)
    (package / "scan_server.py").write_text("raise SystemExit('no licence')\n")
    status, _, said = checked(package.parent, "--version", "1.0.0", "--lies")
    assert status == 2 and "could not be loaded even as it is" in said and "no licence" in said
