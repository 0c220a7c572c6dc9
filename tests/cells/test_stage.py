"""The table of stages is the one place that knows where a stage's files lie, and what its rule reads."""

from __future__ import annotations

import re

import pytest

from anncestry.cells.matrix import Cell
from anncestry.cells.stage import RESULTS, STAGES, stage_at
from tests.toy import ROOT

SMK = sorted((ROOT / "workflow" / "rules").glob("*.smk"))
TABLE = ROOT / "src" / "anncestry" / "cells" / "stage.py"


def test_no_path_of_a_stage_is_spelled_outside_of_the_table() -> None:
    tops: dict[str, set[str]] = {}
    for stage in STAGES.values():
        tops.setdefault(stage.top, set()).add(stage.folder.name)
    spelled = re.compile(
        "|".join(rf"""\b{top}(?:/|"?,? /? ?")(?:{"|".join(sorted(names))})\b(?!\.)""" for top, names in tops.items())
    )
    assert spelled.search('Path("results", "load")') and spelled.search("scratch/index/{key}/record.json")
    texts = {path: path.read_text() for path in [*(ROOT / "src").rglob("*.py"), *SMK, ROOT / "Snakefile"]}
    texts.pop(TABLE)
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path, text in texts.items()
        for number, line in enumerate(text.splitlines(), 1)
        if spelled.search(line)
    ]
    assert found == [], "STAGES of anncestry.cells.stage has it"


def test_each_rule_has_the_files_and_the_inputs_of_its_stage() -> None:
    text = "\n".join(path.read_text() for path in SMK)
    parts = re.split(r"^rule (\w+):$", text, flags=re.MULTILINE)
    rules = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert rules.keys() - {"verify"} == {name for name, stage in STAGES.items() if stage.rule}
    for name, rule in rules.items():
        read = set(re.findall(r'\binputs\("(\w+)"\)', rule)) | set(re.findall(r'\bSTAGES\["(\w+)"\]', rule))
        assert read == ({name} if name != "verify" else set())


def test_a_stage_reads_files_of_stages_before_it() -> None:
    order = list(STAGES)
    for stage in STAGES.values():
        for name, label in (*stage.needs.values(), *stage.older.values()):
            assert label in STAGES[name].files
            assert order.index(name) < order.index(stage.name) or name in (need for need, _ in stage.older.values())


@pytest.mark.parametrize("name", ["artifact", "download", "normalize", "truth", "load", *RESULTS])
def test_a_path_says_its_stage_and_its_key(name: str) -> None:
    stage = STAGES[name]
    keys = (f"{number:012x}" for number in range(7))
    cell = Cell("glove-100k", "red-1.0", "standalone", "k10", "glove", *keys, built_as="red")
    path = stage.path(cell)
    assert stage_at(path) is stage
    assert (stage.match(path) or {})["key"] == stage.key_of(cell)
    assert stage.match(path + "x") is None and stage_at("elsewhere/" + path) is None
