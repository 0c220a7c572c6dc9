"""Write docs/config.md, the reference of the config's keys, from the schemas of workflow/schemas/ (make references)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from anncestry.cells.spec import resolved, schema

PAGE = Path(__file__).resolve().parents[2] / "docs" / "config.md"
FILES = ("config", "datasets", "systems", "topologies", "workloads", "parts", "storage", "platforms", "epochs")
HEAD = """# Keys of the config

This page lists every key of the config, with its type, unit, default and meaning.

`make references` writes it from `workflow/schemas/`; a test fails if it is out of date. Parsing rejects every
other key, and names the nearest one. [config/README.md](../config/README.md) lists the files. A dot leads into a
mapping, `[]` into each entry of a list, `*` into each entry of a mapping. "Or a list" means: each value of the list
makes a workload of its own.
"""
_MARKER = "<!-- not measured: settings and their limits -->\n"
_COLUMNS = "| key | type | unit | default | meaning |\n| --- | --- | --- | --- | --- |"
_SHORT = {"integer": "whole number", "object": "mapping", "array": "list", "string": "text", "boolean": "true or false"}

Part = Mapping[str, Any]


def page() -> str:
    """The whole page, as Markdown."""
    sections = [HEAD]
    for name in FILES:
        body = schema(name)
        # A file with entries of any name, or with keys of its own. The stages in epochs.yaml have the same keys.
        top = resolved(body.get("additionalProperties") or body)
        sections.append(f"## {body['title']}")
        if name == "epochs":
            top = body["properties"]["artifact"]
            own = {"properties": {"attestations": body["properties"]["attestations"]}}
            sections += [*_tables(own, ""), top["description"]]
        sections += _tables(top, "")
    return _linked("\n\n".join(section.strip() for section in sections) + "\n")


def _linked(text: str) -> str:
    """`text` with links to the pages that it names."""
    return re.sub(r"(?<![\w/])docs/([a-z-]+)\.md", r"[\1](\1.md)", text)


def _tables(part: Part, prefix: str) -> Iterator[str]:
    """A table of the keys of a part of a schema, then those of its variants."""
    if "properties" in part:
        yield "\n".join([_MARKER, _COLUMNS, *_rows(part, prefix)])
    for name, variants in _variants(part, prefix):
        for variant in map(resolved, variants):
            where = f"`{name}`: " if name else ""
            yield f"### {where}{variant['title']}"
            yield from _tables(variant, "")


def _inside(part: Part, name: str) -> Iterator[tuple[Part, str]]:
    """The mappings directly in a part: of keys, of the entries of a list, of those of a mapping."""
    below = [(part, f"{name}."), (part.get("items"), f"{name}[]."), (part.get("additionalProperties"), f"{name}.*.")]
    yield from ((resolved(each), prefix) for each, prefix in below if isinstance(each, Mapping))


def _rows(part: Part, prefix: str) -> Iterator[str]:
    by_pattern = {rules["title"]: rules for rules in part.get("patternProperties", {}).values()}
    for key, rules in {**part.get("properties", {}), **by_pattern}.items():
        rules = resolved(rules)
        default = _code(rules.get("default"))
        if not default and key in part.get("required", ()):
            default = "required"
        elif key in part.get("else", {}).get("required", ()):
            default = f"required without `{part['if']['required'][0]}`"
        yield f"| `{prefix}{key}` | {_type(rules)} | {rules.get('unit', '')} | {default} | {rules['description']} |"
        for inner, name in _inside(rules, f"{prefix}{key}"):
            yield from _rows(inner, name)


def _variants(part: Part, name: str) -> Iterator[tuple[str, list[Part]]]:
    """The variants of a part and of its keys, of those with keys of their own."""
    if of := [each for each in part.get("oneOf", ()) if "properties" in resolved(each)]:
        yield name.rstrip("."), of
    for key, rules in part.get("properties", {}).items():
        for inner, prefix in _inside(resolved(rules), f"{name}{key}"):
            yield from _variants(inner, prefix)


def _type(part: Part) -> str:
    part = resolved(part)
    if alternatives := part.get("oneOf") or part.get("anyOf"):
        texts = [_type(each) for each in alternatives]
        return f"{texts[0]}, or a list" if texts[1].startswith("list") else " or ".join(dict.fromkeys(texts))
    if "const" in part or "enum" in part:
        return ", ".join(_code(value) for value in part.get("enum", [part.get("const")]))
    if "type" not in part:
        return "any value"
    kinds = part["type"] if isinstance(part["type"], list) else [part["type"]]
    text = " or ".join(_SHORT.get(kind, kind) for kind in kinds)
    if "items" in part and "properties" not in part["items"] and "oneOf" not in part["items"]:
        return f"list of {_type(part['items'])}"
    lowest = part.get("minimum", f"> {part['exclusiveMinimum']}" if "exclusiveMinimum" in part else None)
    highest = part.get("maximum", f"< {part['exclusiveMaximum']}" if "exclusiveMaximum" in part else None)
    if highest is not None:
        return f"{text}, {lowest} to {highest}"
    if lowest is None:
        return text
    return f"{text}, {lowest}" if "exclusiveMinimum" in part else f"{text}, at least {lowest}"


def _code(value: Any) -> str:
    if value is None or value == [] or value == {}:
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


if __name__ == "__main__":
    PAGE.write_text(page())
