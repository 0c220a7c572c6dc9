"""Write docs/records.md, the reference of the records' keys, from records.schema.yaml (make references)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = ROOT / "workflow" / "schemas" / "records.schema.yaml"
PAGE = ROOT / "docs" / "records.md"
HEAD = """# Keys of the records

This page lists what the record of each stage holds, so that a program can read it.

`make references` writes it from `workflow/schemas/records.schema.yaml`; a test fails if it is out of date. A record is
a JSON file. [architecture.md](architecture.md#stages-and-files) says where each stage's record is, `anncestry why ID`
shows the records behind a number, and `anncestry verify` checks them. The tables list what anncestry validates; records
hold more, and a stage may add keys. Fields with several runs are mappings of `value` (the mean), `std` (their sample
standard deviation) and `runs` (one value a run, null for none), and mostly `low`, `high` and `interval`
([statistics.md](statistics.md)).
"""
STAGES = {
    "artifact": "what a system runs",
    "download": "a dataset as it was fetched",
    "normalize": "the vectors that every system gets",
    "truth": "the exact neighbours",
    "load": "a load, or an upgrade in place",
    "run": "one run of a cell, in a session",
    "query": "the runs of a cell",
    "recall": "the score of a cell's answers",
    "servers": "a pair on one fresh pair of servers",
    "pair": "a pair on all of them",
    "ceiling": "the client against the null server",
    "table": "all numbers of an experiment",
    "report": "the page of an experiment",
}
_TYPES = {"integer": "whole number", "object": "mapping", "array": "list", "string": "text", "boolean": "true or false"}
_ROW_HEAD = "| key | type | meaning |\n| --- | --- | --- |"

Part = Mapping[str, Any]


def page() -> str:
    """The whole page, as Markdown."""
    schema = yaml.safe_load(SCHEMA.read_text())
    shared = schema["$defs"]
    parts = [HEAD.strip(), "## Every record", _table(schema, shared)]
    parts += [
        "## Every measurement",
        "Records of loads and queries hold these keys, too.",
        _table(shared["measured"], shared),
    ]
    for stage, words in STAGES.items():
        parts += [f"## {stage}: {words}", _table(shared[stage], shared)]
    return _linked("\n\n".join(parts) + "\n")


def _linked(text: str) -> str:
    """`text` with links to the pages that it names."""
    return re.sub(r"(?<![\w/])docs/([a-z-]+)\.md", r"[\1](\1.md)", text)


def _table(part: Part, shared: Part) -> str:
    return "\n".join([_ROW_HEAD, *_rows(part, shared, "")])


def _rows(part: Part, shared: Part, prefix: str) -> Iterator[str]:
    for key, rules in part.get("properties", {}).items():
        name = f"{prefix}{key}"
        yield f"| `{name}` | {_type(rules, shared)} | {rules.get('description', '')} |"
        yield from _rows(rules, shared, f"{name}.")
        if isinstance(each := rules.get("additionalProperties"), Mapping):
            yield from _rows(each, shared, f"{name}.*.")


def _type(rules: Part, shared: Part) -> str:
    if reference := rules.get("$ref"):
        name = reference.rpartition("/")[2]
        words = {"over_runs": "number of several runs", "sha256": "sha256", "count": "whole number", "path": "text"}
        words |= {"sha256_or_null": "sha256 or null", "number_or_null": "number or null"}
        return words.get(name) or _type(shared[name], shared)
    if "enum" in rules:
        return ", ".join(f"`{value}`" for value in rules["enum"])
    if "const" in rules:
        return f"`{rules['const']}`"
    kinds = rules.get("type", "object")
    return " or ".join(_TYPES.get(kind, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds))


if __name__ == "__main__":
    PAGE.write_text(page())
