"""What the documents ask for, row by row: each has a status, a reason where it doesn't work, and what shows it."""

from __future__ import annotations

import hashlib
import json
import re
from datetime import date, timedelta
from functools import cache
from pathlib import Path

import pytest

from anncestry.errors import DataError
from anncestry.home import CONFIG
from anncestry.report.published import DOCUMENTS
from anncestry.workflow import Choice, expand
from casestudies import ledger, rows
from tests.bench import rotation
from tests.toy import ROOT

TABLE = rows.rows()


def test_the_page_is_made_of_the_table() -> None:
    text = rows.PAGE.read_text(encoding="utf-8")
    assert rows.page(text) == text, "run `make references`"


def test_every_document_has_rows_and_no_row_stands_twice() -> None:
    assert {row["document"] for row in TABLE} == set(DOCUMENTS)
    assert len({(row["document"], row["row"]) for row in TABLE}) == len(TABLE)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row['document']}: {row['row']}")
def test_a_row_says_what_shows_it_or_why_it_is_not_there(row: dict[str, str]) -> None:
    assert row["status"] in rows.STATUSES
    assert "never run whole" not in row["reason"], "the page says it of each experiment, by the ledger"
    assert row["shown_by"] if row["status"] in ("works", "stand-in", "remote only") else row["reason"]
    for each in filter(None, row["shown_by"].split("; ")):
        kind, _, name = each.partition(" ")
        if kind == "experiment":
            assert name == "default" or (ROOT / f"config/experiments/{name}.yaml").exists()
        elif kind == "test":
            file, _, test = name.partition("::")
            before, there, _ = (ROOT / file).read_text().partition(f"\ndef {test}(")
            assert there, name
            marked = before.partition("\n\n")[0] + before.rpartition("\n\n\n")[2]
            for mark in ("long", "docker"):
                told = f"`make test-{mark}`" in row["reason"]
                assert told or f"pytest.mark.{mark}" not in marked, f"{name}: make test leaves it out"
        else:
            assert kind == "table" and name in tables()


def test_what_only_experiments_show_that_never_ran_is_counted_and_nothing_else_is() -> None:
    def of(status: str, shown_by: str) -> bool:
        return rows.never_ran({"status": status, "shown_by": shown_by}, {"ran"})

    assert of("works", "experiment a") and of("stand-in", "experiment a; experiment b")
    assert not of("works", "experiment a; experiment ran") and not of("works", "experiment a; table D4")
    assert not of("remote only", "experiment a") and not of("works", "")


@cache
def tables() -> set[str]:
    """The numbers of all tables that the code makes."""
    sources = [*(ROOT / "src/anncestry/report/tables").glob("*.py"), *(ROOT / "casestudies").glob("*.py")]
    return set(re.findall(r'"([A-Z0-9.-]+)"', "\n".join(path.read_text() for path in sources)))


def test_the_ledger_counts_what_the_newest_table_quotes(tmp_path: Path) -> None:
    folder = measured(tmp_path)
    expected = {"experiment": "toy", "date": "2026-11-02", "commit": "0123abcd and changes", "cells": "3", "valid": "2"}
    expected |= {"epochs": "query 8, pair 2", "verified": ""}
    reason = "weaviate-1.27.0, k10: nothing lost: of 9000 searched for 56 are not found"
    assert list(ledger.of_folder(folder)) == [{**expected, "invalid": "1", "minutes": "12", "reason": reason}]


def test_of_cells_that_were_kept_the_ledger_has_the_commit_and_adds_up_the_minutes(tmp_path: Path) -> None:
    (line,) = ledger.of_folder(measured(tmp_path, other="fedcba9876"))
    # the load from 0 to 1, the cells from 4 to 12
    assert (line["commit"], line["minutes"]) == ("0123abcd and changes, fedcba98 and changes", "9")


def test_a_record_that_was_changed_or_lost_since_is_no_line_of_the_ledger(tmp_path: Path) -> None:
    record = measured(tmp_path) / "results" / "query0.json"
    record.write_text(record.read_text().replace("true", "false"))
    with pytest.raises(DataError, match=r"query0\.json: not the record that the table was made of"):
        list(ledger.of_folder(tmp_path))
    record.unlink()
    with pytest.raises(DataError, match=r"query0\.json: missing, but the table quotes it"):
        list(ledger.of_folder(tmp_path))


def test_of_two_runs_of_an_experiment_the_ledger_has_the_later_one() -> None:
    old, new = ({**dict.fromkeys(ledger.COLUMNS, ""), "experiment": "a", "date": f"2026-11-0{day}"} for day in (1, 2))
    other = {**old, "experiment": "b"}
    assert ledger.merged([new], [old, other]) == [new, other]
    assert ledger.merged([old, other], [new]) == [new, other]


def test_a_rotating_round_fails_where_more_cells_are_invalid_than_in_the_whole_run() -> None:
    known = {"invalid": "1", "date": "2026-11-02"}
    assert rotation.judged({"invalid": "1"}, known) == "" == rotation.judged({"invalid": "0"}, None)
    assert rotation.judged({"invalid": "2"}, known) == "2 cells invalid, 1 in the run of 2026-11-02"
    assert rotation.judged({"invalid": "1"}, None) == "1 cell invalid, 0 in the run of no day"


def test_every_night_another_experiment_takes_its_turn_until_all_had_theirs() -> None:
    table = ledger.lines()
    turns = rotation.taking_turns(table)
    left_out = [line for line in table if line["experiment"] not in turns]
    assert len(left_out) < len(turns)
    for line in left_out:
        assert line["experiment"] == "smoke" or int(line["minutes"]) > 60
    days = [date(2026, 11, 1) + timedelta(days=n) for n in range(len(turns))]
    assert sorted(rotation.todays(turns, day) for day in days) == sorted(turns)


def test_what_ci_runs_whole_and_what_is_longer_than_a_night_takes_no_turn() -> None:
    minutes = {"smoke": "2", "short": "60", "long": "61"}
    table = [{"experiment": name, "minutes": length} for name, length in minutes.items()]
    assert rotation.taking_turns(table) == ["short"]


@pytest.mark.parametrize(("experiment", "contained"), [("containers", True), ("smoke", False)])
def test_a_rotating_round_of_containers_has_an_engine_for_them(experiment: str, contained: bool) -> None:
    assert rotation.contained(CONFIG, experiment) == contained


@pytest.mark.parametrize("line", ledger.lines(), ids=lambda line: line["experiment"])
def test_the_ledger_knows_experiments_with_as_many_cells_as_they_have_today(line: dict[str, str]) -> None:
    matrix = expand(Choice(CONFIG, line["experiment"]))
    assert int(line["cells"]) == len(matrix.cells) + len(matrix.pairs), "run it whole again, or take the line away"
    assert int(line["cells"]) == int(line["valid"]) + int(line["invalid"])
    assert bool(int(line["invalid"])) == bool(line["reason"]), "what is invalid has a reason, and nothing else"


def test_a_reason_with_a_bar_stays_in_its_cell_of_the_section() -> None:
    line = {**dict.fromkeys(ledger.COLUMNS, "1"), "epochs": "query 99", "reason": "red|blue: nothing lost"}
    assert ledger.section([line]).splitlines()[-1].endswith(r"| red\|blue: nothing lost |")


def test_a_line_of_an_earlier_epoch_is_marked() -> None:
    line = {**dict.fromkeys(ledger.COLUMNS, "1"), "epochs": "query 99, pair 1"}
    assert r"| query 99, pair 1 \* |" in ledger.section([line])
    assert r"| query 99 |" in ledger.section([{**line, "epochs": "query 99"}])


def test_no_line_is_added_of_results_that_verify_does_not_agree_with(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"`anncestry --experiment toy verify` fails: .*toy"):
        ledger.main([str(measured(tmp_path))])


def measured(folder: Path, other: str | None = None) -> Path:
    """A folder with two tables of an experiment, of which the later one quotes a load and three cells.

    `other`: the commit that measured the cells, if it is not that of the load.
    """
    at = "2026-11-02T10:%02d:00+00:00"
    code = {"commit": "0123abcdef", "dirty": True}
    made = {"load.json": {"stage": "load", "created": at % 1, "server": {"up_s": 60.0}, "code": code}}
    stages = (("query", True), ("query", False), ("pair", True))
    spec = {"system": {"name": "weaviate-1.27.0"}, "workload": {"name": "k10"}}
    passed, failed = (
        {"gate": "answered", "ok": True, "detail": "200 of 200"},
        {"gate": "nothing lost", "ok": False, "detail": "of 9000 searched for 56 are not found"},
    )
    for n, (stage, valid) in enumerate(stages):
        of_stage = {**spec, "epoch": 2 if stage == "pair" else 9 - n}
        gates = [passed] if valid else [passed, failed, {**failed, "gate": "all rows that match"}]
        made[f"query{n}.json"] = {
            **{"stage": stage, "valid": valid, "spec": of_stage, "gates": gates},
            **{"created": at % (4 * n + 4), "code": code if other is None else {**code, "commit": other}},
        }
    (folder / "results").mkdir()
    for name, record in made.items():
        (folder / "results" / name).write_text(json.dumps(record))
    quoted = {f"results/{name}": hashlib.sha256((folder / "results" / name).read_bytes()).hexdigest() for name in made}
    for key, day, records in (("1", "01", {}), ("2", "02", quoted)):
        made_at = {"created": f"2026-11-{day}T10:12:00+00:00", "code": code}
        table = {"stage": "table", "spec": {"experiment": "toy"}, **made_at, "records": records}
        place = folder / "results" / "table" / f"toy@{key}"
        place.mkdir(parents=True)
        (place / "record.json").write_text(json.dumps(table))
    return folder
