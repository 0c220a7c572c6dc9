"""Measured figures in the pages: what counts as one, the marker that says where it is from, and those of the evidence.

A block (a paragraph, list, table, or listing) with a measured figure has a marker in the block before it, an HTML
comment that no reader of the site sees:

    <!-- evidence: KIND EXPERIMENT … -->       this script writes the block from the results that ship (KINDS below);
                                               each row of a table has its id
    <!-- measured: COMMAND; DATE; COMMIT -->   what measured it, when, with which code
    <!-- here since: COMMAND; DATE; COMMIT --> older than the markers: the commit from which a page has it in these
                                               words; COMMAND as the page names it, or "command not recorded"
    <!-- measured: FILE.csv -->                the kept file that the block is written from, with dates and commits
    <!-- not measured: WHY -->                 a setting, a limit or an example: says why it is no result

The second is for new figures. Of the third nobody knows which code measured them: measure them again rather than guess.

A figure is

- a number with one of the units below: times, rates, percent, `1.6 times` (and `factor of 8`);
- a share with two decimals or more: `.89`, `0.95`, `1.000`, as recalls and ratios are written;
- a number after ±, or an interval in brackets;
- of a table whose head has such a unit, a percentile or a recall, every row with a number.

None is a number after a word that makes it a bound (`at most`, `less than`, `≤`, `every`, … below), the level of an
interval (`95 % interval`), a share that passes a filter (`30 % of the rows pass`), or code (`…`, and listings in a
language). The rule can't tell other settings from results, so a marker does. Counts, ratios above one without their
word, shares with one decimal and sizes in prose are not found.

`python tools/pages/measured.py [FOLDER]` writes all blocks of the first kind from the results in FOLDER: by default
evidence/, where `make evidence SHOW="smoke upgrade-small findings"` has drawn their pages.

    numbers EXPERIMENT      a table of what people ask for
    headline EXPERIMENT     the same in short: of one client, without a filter, and the loads
    defects EXPERIMENT      a table of what the checks found
    when EXPERIMENT …       when they were measured, with which code, and what the marks mean
    compare EXPERIMENT A B  what `anncestry compare` prints
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
EVIDENCE = ROOT / "evidence"
COMMAND = "python tools/pages/measured.py"
SHOWN = {
    "load_s": "load time",
    "p50_ms": "median latency",
    "p99_ms": "99th percentile",
    "qps": "throughput",
    "recall_by_distance": "recall",
    "pair_qps": "throughput, b / a",
    "pair_server_cpu_us_per_query": "CPU a query, b / a",
    "pair_p99_ms": "99th percentile, b / a",
}
"""Metrics, with what people call them."""
FOUND = {
    "recall_by_id": "recall by id",
    "short_answers": "answers with too few different rows",
    "repeated_answers": "answers that hold a row twice",
    "kill_acknowledged": "rows acknowledged",
    "kill_lost_by_count": "of these, missing in the count",
    "kill_lost_by_search": "of these, found by no search",
}
"""The same of what the checks found. Where no answer has a defect, there is no row."""
HEADLINE = ("load_s", "p50_ms", "qps", "recall_by_distance")
TABLES = {"numbers": SHOWN, "headline": {name: SHOWN[name] for name in HEADLINE}, "defects": FOUND}
"""Kinds of tables, with the metrics that they show."""
EXPERIMENTS = ("smoke", "upgrade-small", "findings")
"""Those whose results ship."""

_UNITS = "ms|µs|QPS|s|seconds?|min|minutes?|h|hours?|%|times(?! k)|queries (?:a|per) second"
_FIGURE = re.compile(
    rf"(?:\d[\d,]*)?\.?\d+\s(?:{_UNITS})(?![\w-])"  # 2.1 ms, 30 s, .5 %, 1.6 times
    r"|(?<![\w.,/-])(?:0?\.\d\d+|1\.00+)(?![\w.,]*\d)"  # .89, 0.95, 1.000, but no version
    r"|\bfactor of \d[\d.]*"
    r"|±\s?\d(?!\d*\^)"  # 1.61 ± 0.18, but not ±2^24
    r"|\(-?[\d,]*\.?\d+ ?(?:–|…|to) ?-?[\d,]*\.\d+\)"  # 1.04 (0.89 – 1.1)
)
_BOUND = re.compile(
    r"(?:[≤≥<>]|\b(?:at\s+(?:most|least)|up\s+to|(?:more|less|fewer)\s+than|within|above|below|beyond|every|worst"
    r"|significant\s+at|margin(?:\s+of)?))\s*$",
    re.IGNORECASE,
)
"""What makes the number after it a bound."""
_LEVEL = re.compile(
    r"\s(?:one-sided\s)?(?:interval|bound)s?\b"  # 95 % interval
    r"|(?:\sto\s[\d.]+\s%)?(?:\sof(?:\s[\w,]+){1,2})?\spass\b"  # 30 % of the rows pass
)
"""What makes the number before it a level, or a filter's share."""
_HEAD = re.compile(rf"(?<![\w’'])(?:{_UNITS}|CPU s|MiB|p50|p95|p99|±|recall)(?!\w)")
_ID = re.compile(r"`n[0-9a-f]{10}`")
_MARKER = re.compile(r"<!-- (evidence|measured|here since|not measured): (.+) -->")
_MEASURED = re.compile(r"[^;]+; 20\d\d-[01]\d-[0-3]\d; [0-9a-f]{7,40}")


@dataclass(frozen=True)
class Block:
    """What stands between two empty lines, without its heading; `line` is its first, `marker` what stands before it."""

    line: int
    text: str
    marker: str = ""


def blocks(page: str) -> Iterator[Block]:
    """The blocks of a page in Markdown, markers and headings left out; a listing in ``` is one."""
    lines: list[str] = []
    start, marker, fenced = 0, "", False
    for number, line in enumerate([*page.splitlines(), ""], start=1):
        ends = not fenced and (not line.strip() or line.startswith("#"))
        if line.lstrip().startswith("```"):
            fenced = not fenced
        if ends and lines:
            text = "\n".join(lines)
            if _MARKER.fullmatch(text.strip()):
                marker = text.strip()
            else:
                yield Block(start, text, marker)
                marker = ""
            lines = []
        elif not ends:
            start = start if lines else number
            lines.append(line)


def figures(text: str) -> list[str]:
    """The measured figures in a block, by the rule at the top; of a table, rows that have one."""
    first, *rest = text.lstrip().splitlines()
    if first.startswith("```") and first not in ("```", "```text"):
        return []
    plain = re.sub(r"`[^`\n]*`", "", text)
    if first.startswith("|") and _HEAD.search(first):
        return [row for row in rest[1:] if re.search(r"\|[^|]*\d", row)]
    return [
        found.group()
        for found in _FIGURE.finditer(plain)
        if not (_BOUND.search(plain, 0, found.start()) or _LEVEL.match(plain, found.end()))
    ]


def faults(page: str) -> Iterator[str]:
    """What a page says of its figures' sources that is missing or wrong: a sentence with the line of each block."""
    for block in blocks(page):
        found = figures(block.text)
        if block.marker:
            if said := _fault_of_marker(block, found):
                yield f"line {block.line}: {said}"
        elif found:
            yield f"line {block.line}: {found[0].strip()!r} is a measured figure in a block without a marker"


def _fault_of_marker(block: Block, found: list[str]) -> str:
    matched = _MARKER.fullmatch(block.marker)
    assert matched is not None
    kind, source = matched.groups()
    if kind == "measured" and source.endswith(".csv"):
        file = ROOT / source
        there = file.is_file() and {"date", "commit"} <= set(file.read_text().partition("\n")[0].split(","))
        return "" if there else f"{source} is no kept file with dates and commits"
    if kind in ("measured", "here since") and not _MEASURED.fullmatch(source):
        return f"{source!r} is not COMMAND; DATE; COMMIT"
    if kind != "evidence":
        return ""
    of, *words = source.split()
    if of not in (*TABLES, "when", "compare") or not words or not {words[0]} <= {*EXPERIMENTS}:
        return f"{source!r} is no kind of block of an experiment whose results ship: {COMMAND} says which there are"
    if of in TABLES and not found:
        return "no figures under a marker of the evidence"
    rows = block.text.splitlines()[2:] if of in TABLES else []
    without = [row for row in rows if not _ID.search(row)]
    return f"{without[0]!r} has no id that `anncestry why` takes" if without else ""


# The evidence


def pages() -> Iterator[Path]:
    """The pages with blocks that are written from the evidence."""
    for path in (ROOT / "README.md", EVIDENCE / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        if "<!-- evidence: " in path.read_text(encoding="utf-8"):
            yield path


def written(text: str, folder: Path) -> str:
    """A page with the blocks under its markers of the evidence written from the results in `folder`."""
    lines = text.splitlines()
    for block in reversed(list(blocks(text))):
        matched = _MARKER.fullmatch(block.marker)
        if matched and matched[1] == "evidence":
            kind, *words = matched[2].split()
            start = block.line - 1
            lines[start : start + len(block.text.splitlines())] = block_of(kind, words, folder).splitlines()
    return "\n".join(lines) + "\n"


def block_of(kind: str, words: list[str], folder: Path) -> str:
    """What stands under a marker of the evidence, as Markdown."""
    if kind == "when":
        return _when(words, folder)
    if kind == "compare":
        return _compared(*words, folder)
    (experiment,) = words
    names = TABLES[kind]
    said = [
        f"| system | workload | quantity | value | `anncestry --experiment {experiment} why` |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in _rows(experiment, folder, names):
        if kind != "headline" or not row["workload"] or (row["clients"] == 1 and not row["filter"]):
            place = f"{row['system'].replace('..', ' → ')} | {row['workload'] or '–'} | {names[row['metric']]}"
            said.append(f"| {place} | {_value(row)} | `{row['number_id']}` |")
    return "\n".join(said)


def _table(experiment: str, folder: Path) -> list[dict[str, Any]]:
    """All numbers of an experiment."""
    from anncestry.report.model import numbers

    (table,) = sorted((folder / "results" / "table").glob(f"{experiment}@*"))
    return list(numbers.rows_of(numbers.read(table)))


def _rows(experiment: str, folder: Path, names: Iterable[str]) -> list[dict[str, Any]]:
    """Those of some metrics, by system and workload, metrics in the order of `names`."""
    order = list(names)
    rows = [row for row in _table(experiment, folder) if row["metric"] in order]
    rows = [row for row in rows if row["value"] or not (row["value"] is None or row["metric"].endswith("_answers"))]
    return sorted(rows, key=lambda row: (row["system"], row["workload"], order.index(row["metric"])))


def _when(experiments: Iterable[str], folder: Path) -> str:
    paths = {str(row["record"]) for name in experiments for row in _table(name, folder) if row["record"]}
    records = [json.loads((folder / path).read_text()) for path in sorted(paths)]
    return (
        f"`{COMMAND}` writes this from the results that `make evidence` pulls. Measured on "
        f"{_listed({record['created'][:10] for record in records})}, with the code of "
        f"{_listed({_commit(record) for record in records})}. ¶: other programs disturbed it; †: share of answers "
        "with a defect, such as too few rows. In brackets: the 95 % interval. Of pairs: side b over side a."
    )


def _compared(experiment: str, a: str, b: str, folder: Path) -> str:
    command = [sys.executable, "-m", "anncestry", "--experiment", experiment, "compare", a, b]
    environment = {**os.environ, "COLUMNS": "100", "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    told = subprocess.run(command, cwd=folder, env=environment, text=True, capture_output=True, check=True)
    return f"```text\n{told.stdout.strip()}\n```"


def _value(row: dict[str, Any]) -> str:
    from anncestry.report.model.cells import marks, text_of

    if row["metric"].startswith("pair_") or row["metric"] == "recall_by_id":
        return f"{row['value']:.3f} ({row['low']:.3f} to {row['high']:.3f})"
    unit = {"fraction": "", "1/s": " QPS"}.get(row["unit"], f" {row['unit']}")
    return text_of(row["value"], row["std"], row["unit"]) + unit + marks(row)


def _commit(record: dict[str, Any]) -> str:
    code = record["code"]
    return f"{code['commit'][:8]}{' and changes' if code['dirty'] else ''}"


def _listed(found: set[str]) -> str:
    return ", ".join(sorted(found))


if __name__ == "__main__":
    of_results = Path(sys.argv[1]) if sys.argv[1:] else EVIDENCE
    for path in pages():
        path.write_text(written(path.read_text(encoding="utf-8"), of_results), encoding="utf-8")
