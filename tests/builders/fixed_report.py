"""The fixed records of `tests/fixtures/report.json`, and what tables are made of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from anncestry.provenance.records import seal
from anncestry.report.model.material import Material
from anncestry.report.model.numbers import tidy
from anncestry.report.model.records import read_records
from tests.builders.world import PUBLISHED
from tests.toy import ROOT

FIXTURES = ROOT / "tests/fixtures"


def lay_out(folder: Path, renamed: Mapping[str, str] | None = None) -> list[dict[str, str]]:
    """Write the fixed records below `folder`, with other words for some; returns the cells that they are of."""
    fixed = json.loads(_renamed((FIXTURES / "report.json").read_text(encoding="utf-8"), renamed))
    for path, record in sorted(fixed["records"].items()):  # queries come before recalls
        if renamed:
            record = json.loads(_renamed(json.dumps(record), renamed))
            if record["stage"] == "recall":
                query = record["inputs"]["query"]
                query["sha256"] = hashlib.sha256((folder / query["path"]).read_bytes()).hexdigest()
            record = seal({name: value for name, value in record.items() if name != "seal"})
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(json.dumps(record))
    cells: list[dict[str, str]] = fixed["cells"]
    return cells


def _renamed(text: str, words: Mapping[str, str] | None) -> str:
    for word, other in (words or {}).items():
        text = text.replace(word, other)
    return text


def material_of(cells: list[dict[str, str]]) -> Material:
    """What tables are made from, of records below the working directory."""
    df = tidy(cells)
    return Material(df, read_records(df), PUBLISHED)
