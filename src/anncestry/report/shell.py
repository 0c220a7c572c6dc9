"""What all pages have around their content: head, policy, headings, contents, and the ancestry of every number.

A page is one file that fetches nothing; its content security policy admits only the scripts that were put there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from anncestry.report.assets import CSS
from anncestry.report.markup import inline_json, script, text
from anncestry.report.scripts import JS
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


def document(
    *,
    title: str,
    eyebrow: str,
    opening: str,
    downloads: str,
    files: Mapping[str, str],
    sections: Sequence[tuple[str, str, str]],
    ancestry: Mapping[str, Any],
    charts: Charts | None = None,
    pages: Mapping[str, str] | None = None,
    here: str = "",
) -> str:
    """A whole page.

    `opening` is HTML, as is the content of each of `sections` (id, heading, content), of which empty ones are left
    out; `files` are what can be downloaded, name → file, after the words `downloads`; `ancestry` is that of `ancestry`.
    `pages` are all pages of the site, file → name, of which this is the file `here`.
    """
    charts = charts or Charts()
    scripts = [script(code) for code in (charts.bundle, JS) if code]
    images = "data: blob:" if charts.bundle else "data:"
    policy = (
        f"default-src 'none'; script-src {' '.join(digest for _, digest in scripts)}; style-src 'unsafe-inline';"
        f" img-src {images}; base-uri 'none'; form-action 'none'"
    )
    shown = [section for section in sections if section[2]]
    contents = "".join(f'<li><a href="#{name}">{text(heading)}</a></li>' for name, heading, _ in shown)
    body = "".join(
        f'<section aria-labelledby="{name}"><h2 id="{name}">{text(heading)}</h2>\n{content}</section>\n'
        for name, heading, content in shown
    )
    links = ", ".join(f'<a href="{text(file)}" download>{text(name)}</a>' for name, file in files.items())
    current = ' aria-current="page"'
    others = "".join(
        f'<li><a href="{text(file)}"{current if file == here else ""}>{text(name)}</a></li>'
        for file, name in (pages or {}).items()
    )
    site = f'<nav class="pages" aria-label="Pages"><ul>{others}</ul></nav>\n' if others else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{text(title)}</title>\n<style>{CSS}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#main">To the results</a>\n'
        f'<header>\n{site}<p class="eyebrow">{text(eyebrow)}</p>\n'
        f"<h1>{text(title)}</h1>\n{opening}"
        + (f'<p class="downloads">{text(downloads)}: {links}</p>\n' if links else "")
        + (f'<nav aria-label="Contents"><ul>{contents}</ul></nav>\n' if contents else "")
        + "</header>\n"
        '<main id="main">\n<div id="filter" role="group" aria-label="Filter" hidden></div>\n'
        f"{body}</main>\n"
        "<footer><p>Made from records alone: equal records give an equal page, byte for byte."
        " It fetches nothing.</p></footer>\n"
        '<div id="why" popover role="dialog" aria-label="Ancestry of a number"></div>\n'
        f"{inline_json('data-ancestry', ancestry)}{inline_json('data-charts', list(charts.specs))}"
        f"{inline_json('data-config', charts.config)}{''.join(code for code, _ in scripts)}</body>\n</html>\n"
    )


def glossary(pairs: Sequence[tuple[str, str]]) -> str:
    """Terms and what they mean, as a list."""
    items = "".join(f"<dt>{text(term)}</dt><dd>{text(meaning)}</dd>\n" for term, meaning in pairs)
    return f'<dl class="words">{items}</dl>\n'


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
