"""Write docs/fairness.md: how each system is treated, from the config, its engine, and docs/fairness.yaml."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from anncestry import engines
from anncestry.cells import config
from anncestry.cells.spec import Config, System
from anncestry.errors import ConfigError, Unsupported

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "fairness.md"
FACTS = ROOT / "docs" / "fairness.yaml"
PARTS = ("why", "advice", "source")
HEAD = """# Fairness sheet

This page says what each system was given, what was left to it, and what its own documentation says.

`make references` writes this page from the config, from the engines (as the fairness sheet of each report), and from
`docs/fairness.yaml`; a test fails if it is out of date, or if a system or an engine has no row.

**The same for all:** vectors, queries and their order, machine, one system at a time, index (`index` of the
experiment, unless the system has its own), rows of an insert request. **Compared at equal recall:** a
`target_recall` finds the effort of each system on queries that are not reported, so that no system is fast because its
recall is low ([statistics](statistics.md)). `everyone` and `everyone-smoke` measure all systems like this."""
_STANDALONE = {"runtime": "native", "nodes": 1, "shards": 1, "replicas": 1}
_LIBRARY = "no server: each client searches the finished index"


def family(system: System) -> str:
    """The engine, or of engine mysql the dialect: what has one paragraph of facts."""
    return str(system.settings.get("dialect", system.engine))


def facts() -> dict[str, dict[str, str]]:
    """By family why its defaults were left, and the advice of its documentation with the source."""
    body: dict[str, dict[str, str]] = yaml.safe_load(FACTS.read_text())
    return body


def told(config: Config, system: System) -> Mapping[str, str]:
    """What the engine says of its treatment of a system, standalone, with the index that it builds.

    Unsupported, with the reason, for a system that is there to be listed as such.
    """
    index = {**config.index, **(system.index or {})} if "type" not in (system.index or {}) else dict(system.index or {})
    offers = engines.offers_of(system.engine)
    runtime = "remote" if system.artifact["kind"] == "none" else "native"
    entry = {**system.plain, "engine": system.engine, "version": system.version, "settings": dict(system.settings)}
    endpoints = {"endpoints": dict.fromkeys(offers.endpoints, "ADDRESS")} if runtime == "remote" else {}
    topology = {**_STANDALONE, "runtime": runtime, **endpoints}
    try:
        offers.check(entry, topology, index, None)
    except Unsupported:
        raise
    except ConfigError:  # it needs a topology of its own, such as one with a storage path
        pass
    return engines.get(system.engine).fairness(entry, index, topology)


def page() -> str:
    """The whole page, as Markdown."""
    config_ = config.load(ROOT / "config")
    first: dict[str, str] = {}
    for name, system in config_.systems.items():
        first.setdefault(family(system), name)
    says = {of: told(config_, config_.systems[name]) for of, name in first.items()}
    known = facts()
    sections = [HEAD, "## Acknowledged writes, side by side", _table(_writes(says, first))]
    sections += ["## Set, left at its default, and advised", "The first system of each engine or dialect."]
    for of, name in first.items():
        sections += [f"### {name}", _table(_settings(says[of], known.get(of, {})))]
    sections += ["## Every system", _table(_systems(config_))]
    return "\n\n".join(section.strip() for section in sections) + "\n"


def _table(rows: Iterator[tuple[str, ...]]) -> str:
    head, *body = rows
    lines = [head, tuple("---" for _ in head), *body]
    written = ("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    return "\n".join(["<!-- not measured: settings -->\n", *written])


def _writes(says: Mapping[str, Mapping[str, str]], first: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    yield "system", "durability of an acknowledged write", "what a search sees"
    for of, said in says.items():
        yield first[of], said["durability"], said.get("consistency", _LIBRARY)


def _settings(said: Mapping[str, str], known: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    yield "", ""
    yield "index", said.get("HNSW") or said.get("index", "")
    yield "set by the system's entry", said.get("set by the system", "nothing")
    yield "set by anncestry", said.get("set by anncestry", "nothing")
    yield "left at defaults", said.get("left at defaults", "everything else")
    for part, words in zip(PARTS, ("why left", "its documentation, for such a size", "source"), strict=True):
        yield words, known.get(part, "")


def _systems(config_: Config) -> Iterator[tuple[str, ...]]:
    yield "system", "engine", "index", "set by its entry"
    for name, system in config_.systems.items():
        try:
            words = told(config_, system).get("set by the system", "nothing")
        except Unsupported as reason:
            words = f"not measurable: {reason}"
        yield name, family(system), _index(system), words


def _index(system: System) -> str:
    own: Mapping[str, Any] = system.index or {}
    if not own:
        return "the experiment's"
    return ", ".join(f"{key} {value}" for key, value in own.items())


if __name__ == "__main__":
    PAGE.write_text(page())
