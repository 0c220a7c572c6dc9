"""The commands for people: found by task, completed by the shell, and read by programs."""

from __future__ import annotations

import csv
import json
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from anncestry import cli, workflow
from anncestry.cells.blocks import Absent
from anncestry.cli import _Out
from anncestry.commands import results, say_json
from tests.toy import ROOT


@pytest.fixture(scope="module")
def toy(finished_place, tmp_path_factory):
    return finished_place.copy(tmp_path_factory.mktemp("finished") / "toy", "data", "results", "scratch", "reports")


@pytest.fixture
def here(toy, monkeypatch):
    monkeypatch.chdir(toy.folder)
    monkeypatch.setenv("ANNCESTRY_CONFIG", str(toy.folder / "config"))
    monkeypatch.delenv("ANNCESTRY_EXPERIMENT", raising=False)


def said(capsys, *words, status=0):
    capsys.readouterr()
    assert cli.main(list(words)) == status
    return capsys.readouterr().out


def as_json(capsys, *words, status=0):
    return json.loads(said(capsys, *words, "--json", status=status))


def commands():
    (found,) = [each for each in cli.parser()._actions if hasattr(each, "choices") and each.dest == "command"]
    return found.choices


def test_every_command_is_in_one_group_and_those_of_rules_come_last():
    grouped = [name for names in cli.GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(commands())
    assert list(cli.GROUPS.values())[-1] == tuple(cli.RULES)
    help_ = cli.parser().format_help()
    assert help_.index("read results:") < help_.index("summary") < help_.index("measure:") < help_.index("normalize")


def test_the_page_of_all_commands_is_current():
    reference = runpy.run_path(str(ROOT / "tools" / "pages" / "commands.py"))
    assert reference["PAGE"].read_text() == reference["page"](), "run `make references`"


def test_each_argument_of_each_command_says_what_it_is():
    def arguments(parser, name):
        for each in parser._actions:
            if isinstance(each.choices, dict):
                for kind, below in each.choices.items():
                    yield from arguments(below, f"{name} {kind}".strip())
            else:
                yield f"{name} {each.dest}", each.help

    helps = dict(arguments(cli.parser(), ""))
    assert len(helps) > 100 and [name for name, help_ in helps.items() if not help_] == []


def test_a_shell_completes_commands_and_options(tmp_path, capsys):
    script = tmp_path / "completion"
    script.write_text(said(capsys, "completion", "bash"))
    asked = (
        f"source {script}; COMP_WORDS=(anncestry comp); COMP_CWORD=1; _shtab_anncestry; echo ${{COMPREPLY[@]}}; "
        "COMP_WORDS=(anncestry compare --n); COMP_CWORD=2; _shtab_anncestry; echo ${COMPREPLY[@]}"
    )
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["compare completion", "--noise"]
    assert said(capsys, "completion", "zsh").startswith("#compdef anncestry")
    assert "complete -c anncestry" in said(capsys, "completion", "fish")


@pytest.mark.parametrize(
    ("shell", "only_read"),
    [
        pytest.param("zsh", "-n", marks=pytest.mark.program("zsh")),
        pytest.param("fish", "--no-execute", marks=pytest.mark.program("fish")),
    ],
)
def test_a_shell_can_read_its_script(tmp_path, capsys, shell, only_read):
    script = tmp_path / "completion"
    script.write_text(said(capsys, "completion", shell))
    done = subprocess.run([shell, only_read, str(script)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_cells_as_json_are_those_of_the_text(here, capsys):
    rows = as_json(capsys, "cells")
    text = said(capsys, "cells")
    assert [row["key"] for row in rows] == [line.split()[0] for line in text.splitlines()]
    assert all(row["made"] == {"load": True, "query": True, "recall": True} for row in rows)


def test_the_summary_as_json_has_the_numbers_of_the_table_unrounded(here, capsys, toy):
    found = as_json(capsys, "summary")
    assert found["page"] == "reports/default/index.html"
    (table,) = (toy.folder / "results" / "table").glob("*/numbers.csv")
    numbers = list(csv.DictReader(table.open()))
    values, spreads = ({row["number_id"]: row[of] for row in numbers} for of in ("value", "std"))
    (row,) = found["rows"]
    assert (row["system"], row["cells"]) == ("red-1.0", {"valid": 2, "invalid": 0, "missing": 0})
    for name in ("load", "p50", "recall", "qps"):
        assert row[name]["value"] == pytest.approx(float(values[row[name]["number_id"]]), rel=1e-12)
    for name in ("p50", "recall", "qps"):
        assert row[name]["std"] == pytest.approx(float(spreads[row[name]["number_id"]]), rel=1e-12)
    assert row["qps"]["std"] > 0 and row["qps"]["runs"] == 2
    assert found["pairs"] == [] and found["absent"] == []


def test_the_summary_as_json_has_the_cells_that_are_listed_instead_of_measured(here):
    matrix = workflow.expand(workflow.choice_of_environment())
    listed = Absent("blobs-l2", "red-1.0", "standalone", "k9", "", "unsupported", "it has no such filter")
    assert results.highlights_of(replace(matrix, absent=(listed,)))["absent"] == [
        {
            **{"dataset": "blobs-l2", "system": "red-1.0", "topology": "standalone", "workload": "k9", "arm": ""},
            **{"state": "unsupported", "reason": "it has no such filter"},
        }
    ]


PRINT_NO_TABLE = {
    "keep": "the commit that it made",
    "attest": "the file that it wrote",
    "verify-attestation": "one sentence",
    "export crate": "the folder that it wrote",
    "export prov": "the file that it wrote",
    "preview": "what the page rests on, and the page; `summary --json` has its numbers",
    "epochs": "one sentence",
    "withdraw": "a line for each collection as it is removed",
    "init": "the folder that it wrote, and what to type next",
    "add dataset": "the entry that it wrote, and what to type next",
    "add system": "the entry that it wrote, and what to type next",
    "add endpoint": "the entry that it wrote, and what to type next",
    "add experiment": "the file that it wrote, and what to type next",
    "engine": "what the command prints that it runs",
    "completion": "a script for the shell",
}
"""What each command without `--json` prints."""


def test_every_command_that_prints_a_table_prints_it_as_json_too():
    def each(parsers, above=""):
        for name, parser in parsers.items():
            kinds = [action.choices for action in parser._actions if isinstance(action.choices, dict)]
            yield from each(kinds[0], f"{above}{name} ") if kinds else [(f"{above}{name}", parser)]

    of_people = {name: parser for name, parser in each(commands()) if name not in cli.RULES}
    lacking = {name for name, parser in of_people.items() if "--json" not in parser._option_string_actions}
    assert lacking == PRINT_NO_TABLE.keys(), "give it `--json`, or say what it prints instead"
    assert not any("--json" in commands()[rule]._option_string_actions for rule in cli.RULES), "a rule's makes a file"


@pytest.mark.parametrize(("columns", "widest"), [("60", 100), ("100", 100), ("180", 180)])
def test_a_comparison_is_as_wide_as_the_terminal_and_never_narrower_than_its_numbers(
    here, capsys, monkeypatch, columns, widest
):
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(results.sys.stdout, "isatty", lambda: True)
    lines = said(capsys, "compare", "default", "default").splitlines()
    assert widest - 20 < max(map(len, lines)) <= widest


def test_a_comparison_as_json_is_that_of_its_file(here, capsys, tmp_path):
    found = as_json(capsys, "compare", "default", "default", "--out", str(tmp_path / "out"))
    assert found == json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert {line["verdict"] for line in found["lines"] if line["a"] is not None} == {"same record"}
    few = {(line["metric"], line["verdict"]) for line in found["lines"] if line["a"] is None}
    assert few == {(name, "not comparable") for name in ("p99_ms", "p999_ms")}, "a toy has too few answers"


def test_a_plan_as_json_says_what_runs_and_why(here, capsys, toy):
    assert as_json(capsys, "plan") == {"estimates": [], "why": [], "cant_run_here": [], "absent": []}
    (row, *_) = as_json(capsys, "cells")
    dropped = as_json(capsys, "drop", row["key"])
    assert dropped["remove"] and dropped["removed"] is False
    assert all(Path(item["path"]).exists() for item in dropped["remove"])
    needs = as_json(capsys, "plan", "--paper")["cells"]
    assert [need["workload"] for need in needs] == ["k5", "k5-category"] and all(n["memory_bytes"] > 0 for n in needs)
    text = said(capsys, "plan")
    assert text == "nothing to run: everything is up to date\n"


def test_what_verify_found_as_json_names_the_numbers_that_are_no_longer_true(here, capsys, toy):
    assert as_json(capsys, "verify")["problems"] == []
    (row, *_) = as_json(capsys, "cells")
    (samples,) = (toy.folder / "results").rglob(f"*@{row['key']}.samples.parquet")
    whole = samples.read_bytes()
    samples.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    try:
        found = as_json(capsys, "verify", "--quick", status=2)
    finally:
        samples.write_bytes(whole)
    assert found["problems"] and all(problem["numbers"] for problem in found["problems"])


def test_numbers_that_json_lacks_become_null(capsys):
    options = cli.parser().parse_args(["cells", "--json"])
    assert say_json(options, lambda: [float("nan"), {"a": (float("inf"), Path("x"), 1)}])
    assert json.loads(capsys.readouterr().out) == [None, {"a": [None, "x", 1]}]


def test_control_characters_are_escaped_as_json_has_them(capsys):
    options = cli.parser().parse_args(["cells", "--json"])
    text = "bell \x07, delete \x7f, C1 \x9b, ±"
    out = _Out(sys.stdout)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        assert say_json(options, lambda: [text])
    assert json.loads(capsys.readouterr().out) == [text]
