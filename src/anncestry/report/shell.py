"""What all pages have around their content: head, policy, headings, contents, and the ancestry of every number.

A page is one file that fetches nothing; its content security policy admits only the scripts that were put there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anncestry.provenance.records import replacing
from anncestry.report.markup import DIMENSIONS, render, script, static
from anncestry.report.tables import Row, text_of

Records = Mapping[str, Mapping[str, Any]]
"""Records by path, each with its `sha256`."""


@dataclass(frozen=True)
class Charts:
    """Vega-Lite specs in the order of their places on the page, what they have in common, and the script that draws."""

    specs: Sequence[Mapping[str, Any]] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    bundle: str = ""


def pages(published: bool) -> dict[str, str]:
    """The pages of a site, file → name; those that set ours beside others' only where there is something published."""
    return {
        "index.html": "Results",
        **({"published.html": "Measured beside published"} if published else {}),
        "cells.html": "Cells",
        "method.html": "Method",
        **({"audit.html": "Published before, audited"} if published else {}),
    }


def write(
    path: Path,
    template: str,
    *,
    title: str,
    pages: Mapping[str, str] | None = None,
    ancestry: Mapping[str, Any] | None = None,
    charts: Charts | None = None,
    **content: Any,
) -> Path:
    """Write a page of this template, which shows `content`; returns its path.

    `pages` are all pages of the site, file → name; `ancestry` is that of `ancestry`, None where no number is shown.
    """
    charts = charts or Charts()
    page = render(
        template,
        title=title,
        here=path.name,
        pages=pages or {},
        ancestry=ancestry or {"columns": ["number_id", *DIMENSIONS], "rows": [], "records": {}},
        charts=charts,
        scripts=[script(code) for code in (charts.bundle, static("page.js")) if code],
        style=static("page.css"),
        contents=[],
        **content,
    )
    with replacing(path) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return path


def ancestry(rows: Sequence[Row], records: Records) -> dict[str, Any]:
    """What a page's script shows of a number; column names once, records once."""
    columns = [
        *("number_id", "metric", "unit", "phase", "reason", "dataset", "system", "topology", "workload"),
        *("k", "nq", "clients", "filter", "runs", "key", "record"),
    ]
    lines = []
    for row in rows:
        has = row["value"] is not None
        shown = f"{text_of(row['value'], row['std'], row['unit'])} {row['unit']}" if has else "no number"
        if has and row.get("low") is not None:
            low, high = (text_of(row[end], None, row["unit"]) for end in ("low", "high"))
            shown += f", {low} to {high} ({row['interval']})"
        lines.append([*(row[name] for name in columns), shown])
    return {
        "columns": [*columns, "shown"],
        "rows": lines,
        "records": {
            path: {
                "sha256": record["sha256"],
                "created": str(record["created"]),
                "code": code_of(record),
                "parts": [
                    [f"{kind.removesuffix('s')}: {label}", str(entry["path"]), str(entry["sha256"])]
                    for kind in ("inputs", "outputs")
                    for label, entry in (record.get(kind) or {}).items()
                ],
            }
            # Sorted: a page is the same bytes whoever draws it, or verify could not compare.
            for path, record in sorted(records.items())
        },
    }


def code_of(record: Mapping[str, Any]) -> str:
    """With which version of this program a record was made, in words."""
    code = record.get("code") or {}
    commit = str(code.get("commit") or "no commit")[:12]
    changed = " with uncommitted changes" if code.get("dirty") else ""
    return f"anncestry {code.get('anncestry', '')} at {commit}{changed}"
