"""The sheets of a page: where and with what was measured, and what each system was given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import version
from typing import Any

from anncestry.cells.indexes import effort_of
from anncestry.report.model.records import Records, codes_of, declared_storage, flat, merged, of_stage
from anncestry.report.site.shell import Sheet, listed

_Facts = Iterable[tuple[str, str]]


def machine(records: Records) -> Sheet:
    loads = of_stage(records, "load")
    facts = merged(dict(flat(record.get("platform"))) for record in records.values())
    facts["code"] = listed(sorted({code for record in records.values() for code in codes_of(record)}))
    facts |= {f"client {name}": value for name, value in merged(dict(flat(r.get("clients"))) for r in loads).items()}
    facts["drawn with"] = f"altair {version('altair')}, vl-convert {version('vl-convert-python')}"
    return Sheet(("Fact", "Value"), [(_words(name), value) for name, value in facts.items()], "Machine", "tight")


def systems(records: Records) -> Sheet:
    """Each system: what was asked to run, and what was found to run. Without rows where no load is."""
    return _matrix("Fact", _by_system(records, {"load": _as_run}), "Systems")


def fairness(records: Records) -> Sheet:
    """What each system was given, side by side: by its records' specs, then in the words of its engine.

    Without rows where no engine has any.
    """
    given = _by_system(records, {"load": _given, "query": _asked})
    told = _by_system(records, {"load": lambda record: flat(record.get("fairness"))})
    facts = {system: {**given[system], **told[system]} for system in told} if any(told.values()) else {}
    return _matrix("Topic", facts, "Fairness")


def gates(records: Records) -> Sheet:
    """Each gate: how many records had to pass it, and how many did."""
    passed = passed_gates(records, lambda record, gate: (str(record["stage"]), gate))
    rows = [(gate, stage, count) for (stage, gate), count in sorted(passed.items())]
    return Sheet(("Gate", "Stage", "Records that passed"), rows, "Gates", "tight")


def passed_gates(
    records: Records, by: Callable[[Mapping[str, Any], str], tuple[str, ...]]
) -> dict[tuple[str, ...], str]:
    """How many records had to pass each gate and did, in words; `by` groups a record and the name of a gate."""
    results: dict[tuple[str, ...], list[bool]] = {}
    for record in records.values():
        for gate in record.get("gates", ()):
            results.setdefault(by(record, str(gate["gate"])), []).append(bool(gate["ok"]))
    return {key: f"{sum(passed)} of {len(passed)}" for key, passed in results.items()}


def all_records(records: Records) -> Sheet:
    """The whole list, for those who read without a script or on paper."""
    # A path holds the stage and the key.
    rows = [(path, record["sha256"], str(record["created"])) for path, record in records.items()]
    return Sheet(("Record", "sha256", "Created"), rows, "Records", "records mono")


def _as_run(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What was run, and as what it was asked and found to run."""
    spec, server = record["spec"], record.get("server") or {}
    yield "server version", str(server.get("version", "unknown"))
    yield "artifact digest", str((record.get("artifact") or {}).get("digest", "unknown"))
    for name in ("system", "topology", "index", "load"):
        asked = spec.get(name)
        if isinstance(asked, Mapping):
            declared = declared_storage(asked)
            plain = {key: value for key, value in asked.items() if key not in ("name", "version", "declared_storage")}
            yield from ((f"{name}: {key}", value) for key, value in flat(plain))
            if declared:
                yield f"{name}: storage", declared
    for name in ("nodes", "shards", "replicas", "settings"):
        yield from ((f"found: {key}", value) for key, value in flat({name: server.get(name)}) if server.get(name))


def _given(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What one load was given."""
    spec = record["spec"]
    topology = spec.get("topology") or {}
    parts = [f"{topology[name]} {name}" for name in ("nodes", "shards", "replicas") if name in topology]
    if parts:
        yield "runs as", f"{topology.get('runtime', 'native')}: {', '.join(parts)}"
    by_role = topology.get("role_limits") or {}
    limits = dict(flat({**(topology.get("limits") or {}), **by_role}))
    yield "limits", ", ".join(f"{name} {value}" for name, value in limits.items()) or "none: the whole machine"
    yield from _batches(record)
    index = dict(flat(spec.get("index") or {}))
    if index:
        yield "index", ", ".join(f"{name} {value}" for name, value in index.items())


def _batches(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """How many rows an insert had; where that depends on the dimensions, by which rule, and what was sent."""
    rows = (record["spec"].get("load") or {}).get("batch_rows")
    if isinstance(rows, Mapping):
        yield "batch", f"{rows['least']} to {rows['most']} rows an insert, of {rows['values']:,} numbers"
        sent = ", ".join(f"{number} of {size} rows" for size, number in record.get("batch_sizes", ()))
        yield "batches sent", f"{sent} at {record['dim']} dimensions"
    elif rows:
        yield "batch", f"{rows} rows an insert"


def _asked(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """How one cell's queries were asked."""
    spec = record["spec"]
    by_library = (spec.get("workload") or {}).get("client", "bytes") != "bytes"
    yield (
        "encoding",
        "by the client library, within the time"
        if by_library
        else "before the clock starts; answers are decoded after it stops",
    )
    if spec.get("driver"):
        yield "driver", str(spec["driver"])
    if effort := record.get("ef_search") or effort_of(spec.get("workload") or {}):
        yield "search effort", str(effort)


def _by_system(
    records: Records, facts: Mapping[str, Callable[[Mapping[str, Any]], _Facts]]
) -> dict[str, dict[str, str]]:
    """The facts that each stage's records tell, by system."""
    systems = sorted({str(record["spec"]["system"]["name"]) for record in of_stage(records, "load")})
    found: dict[str, dict[str, str]] = {system: {} for system in systems}
    for stage, of in facts.items():
        told: dict[str, list[dict[str, str]]] = {system: [] for system in systems}
        for record in of_stage(records, stage):
            name = str(((record.get("spec") or {}).get("system") or {}).get("name", ""))
            if name in told:
                told[name].append(dict(of(record)))
        for system in systems:
            found[system] |= merged(told[system])
    return found


def _matrix(corner: str, columns: Mapping[str, Mapping[str, str]], name: str) -> Sheet:
    topics = list(dict.fromkeys(topic for facts in columns.values() for topic in facts))
    rows = [(topic, *(facts.get(topic, "—") for facts in columns.values())) for topic in topics]
    return Sheet((corner, *columns), rows, name, systems=True)


def _words(name: str) -> str:
    """The name of a fact as a reader would write it."""
    return name.replace("_gib", " (GiB)").replace("_1min", " (1 min)").replace("cpu_", "CPU ").replace("_", " ")
