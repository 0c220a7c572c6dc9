"""The ledger of docs/documents.md: each experiment that was measured whole, when, at which commit, with which outcome.

`python -m casestudies.ledger FOLDER` adds what the newest tables in FOLDER/results say to docs/ledger.csv, a line an
experiment; `python -m casestudies.rows` writes the section. A line is made of records whose digests the table quotes,
once `anncestry verify` agrees with the whole experiment. FOLDER is a checkout: verify is its own.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from typing import Any

import yaml

from anncestry.errors import DataError
from anncestry.home import CONFIG, HOME

FILE = HOME / "docs" / "ledger.csv"
HEADING = "## Experiments that ran\n"
COLUMNS = ("experiment", "date", "commit", "epochs", "cells", "valid", "invalid", "minutes", "verified", "reason")
_MEASURED = ("query", "pair")
_NUMBERS = ("cells", "valid", "invalid", "minutes")


def lines() -> list[dict[str, str]]:
    """The ledger, by experiment."""
    if not FILE.exists():
        return []
    with open(FILE, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def of_folder(folder: Path) -> Iterator[dict[str, str]]:
    """A line for each experiment with a table in `folder`, of its newest.

    Cells are measured cells and pairs. Minutes run from the start of the first load to the last recall; where
    cells were kept and others measured later, with other code, those of each commit are added up. Epochs are the
    earliest of the cells and of the pairs. DataError for a record that is missing, or isn't the one that the table
    quotes.
    """
    newest: dict[str, Mapping[str, Any]] = {}
    for path in sorted((folder / "results/table").glob("*@*/record.json")):
        table = json.loads(path.read_text())
        name = table["spec"]["experiment"]
        if name not in newest or newest[name]["created"] < table["created"]:
            newest[name] = table
    for name, table in sorted(newest.items()):
        records = [_quoted(folder, path, digest) for path, digest in table["records"].items()]
        measured = [record for record in records if record["stage"] in _MEASURED]
        outcomes = [bool(record["valid"]) for record in measured]
        commits = sorted(_spans_s(records).items(), key=itemgetter(1))
        yield {
            "experiment": name,
            "date": table["created"][:10],
            "commit": ", ".join(commit for commit, _ in commits),
            "epochs": _epochs(measured),
            "cells": str(len(outcomes)),
            "valid": str(outcomes.count(True)),
            "invalid": str(outcomes.count(False)),
            "minutes": f"{sum(end_s - start_s for _, (start_s, end_s) in commits) / 60:.0f}",
            "verified": "",
            "reason": "; ".join(dict.fromkeys(_reason(record) for record in measured if not record["valid"])),
        }


def _epochs(measured: Sequence[Mapping[str, Any]]) -> str:
    """As `query 9, pair 7`: what measuring meant, of what was measured first."""
    found: dict[str, int] = {}
    for record in measured:
        stage, epoch = record["stage"], record["spec"]["epoch"]
        found[stage] = min(found.get(stage, epoch), epoch)
    return ", ".join(f"{stage} {found[stage]}" for stage in _MEASURED if stage in found)


def _outdated(epochs: str) -> bool:
    """Whether one of these epochs is earlier than that of the code now."""
    now = yaml.safe_load((CONFIG / "epochs.yaml").read_text(encoding="utf-8"))
    return any(int(epoch) < now[stage]["epoch"] for stage, epoch in map(str.split, epochs.split(", ")))


def verified(folder: Path, experiment: str) -> str:
    """ "yes" once `anncestry verify` agrees with the experiment in a checkout; DataError, with its words, if not."""
    paths = os.pathsep.join((str(folder / "src"), str(folder)))
    command = [sys.executable, "-m", "anncestry", "--experiment", experiment, "verify"]
    told = subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": paths}, text=True, capture_output=True)
    if told.returncode:
        raise DataError(f"{folder}: `anncestry --experiment {experiment} verify` fails: {told.stdout}{told.stderr}")
    return "yes"


def _spans_s(records: Sequence[Mapping[str, Any]]) -> dict[str, tuple[float, float]]:
    """When the first record of each commit was begun, and the last one made; inputs aside, which may be older."""
    spans: dict[str, tuple[float, float]] = {}
    for record in records:
        if record["stage"] in ("load", *_MEASURED, "recall"):
            end_s, code = _at_s(record), record["code"]
            start_s = end_s - (record["server"].get("up_s", 0.0) if record["stage"] == "load" else 0.0)
            commit = code["commit"][:8] + (" and changes" if code["dirty"] else "")
            first_s, last_s = spans.get(commit, (start_s, end_s))
            spans[commit] = min(first_s, start_s), max(last_s, end_s)
    return spans


def _reason(record: Mapping[str, Any]) -> str:
    """Why a record is invalid: of which system and workload it is, and the first gate that it failed."""
    spec = record["spec"]
    names = [spec[part]["name"] for part in ("system", "workload") if part in spec]
    failed = [f"{gate['gate']}: {gate['detail']}" for gate in record["gates"] if not gate["ok"]]
    return ": ".join([*([", ".join(names)] if names else []), *failed[:1]])


def _quoted(folder: Path, path: str, digest: str) -> Mapping[str, Any]:
    try:
        content = (folder / path).read_bytes()
    except FileNotFoundError:
        raise DataError(f"{folder / path}: missing, but the table quotes it; run the experiment again") from None
    if hashlib.sha256(content).hexdigest() != digest:
        raise DataError(f"{folder / path}: not the record that the table was made of; run the experiment again")
    return dict(json.loads(content))


def _at_s(record: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(record["created"]).timestamp()


def merged(known: Sequence[Mapping[str, str]], found: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
    """A line an experiment, the later of two; a run is as late as its date, and `found` later than `known`."""
    by_name = {line["experiment"]: line for line in known}
    for line in found:
        if line["date"] >= by_name.get(line["experiment"], line)["date"]:
            by_name[line["experiment"]] = line
    return [by_name[name] for name in sorted(by_name)]


def section(table: Sequence[Mapping[str, str]]) -> str:
    """The section as Markdown."""
    said = [
        HEADING,
        "Each was measured whole on a shared machine of two cores, in the minutes from its first load to its last"
        " recall (two commits: cells were kept, and others measured later);"
        " cells include pairs; a reason says which gate an invalid one failed. \\*: an epoch is earlier than today's:"
        " code that measures has changed since, and numbers may be others now. Verified: `anncestry verify` agreed when"
        " the line was added (the first lines don't say)."
        " `python -m casestudies.ledger FOLDER` adds the results in a folder.\n",
        f"<!-- measured: {FILE.relative_to(HOME)} -->\n",
        f"| {' | '.join(COLUMNS)} |",
        f"|{'|'.join(' ---: ' if name in _NUMBERS else ' --- ' for name in COLUMNS)}|",
        *(f"| `{line['experiment']}` | {' | '.join(_cell(line, name) for name in COLUMNS[1:])} |" for line in table),
    ]
    return "\n".join(said) + "\n"


def _cell(line: Mapping[str, str], name: str) -> str:
    """For a table of Markdown, where a bar would end the cell."""
    mark = " \\*" if name == "epochs" and _outdated(line[name]) else ""
    return line[name].replace("|", r"\|") + mark


def main(folders: Sequence[str]) -> None:
    table: Sequence[Mapping[str, str]] = lines()
    for folder in folders:
        place = Path(folder).resolve()
        found = [{**line, "verified": verified(place, line["experiment"])} for line in of_folder(place)]
        table = merged(table, found)
    with open(FILE, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)


if __name__ == "__main__":
    main(sys.argv[1:])
