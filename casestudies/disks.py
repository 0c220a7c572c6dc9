"""The claims of document D4: an index on disk against one in memory, and a faster path to storage against a slower one.

Where an index lies, and what its path is, stands in the records: names of systems, topologies and paths play no part.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import permutations, product
from typing import Any, NamedTuple

from anncestry.report.charts.storage import IN_BURSTS
from anncestry.report.model.cells import Column, Row, Table
from anncestry.report.model.material import Material
from anncestry.report.model.quantities import in_process
from anncestry.report.model.records import Setup, apart_from_storage, setup
from anncestry.report.published import Figure, Published
from anncestry.report.tables.spec import OTHER_EFFORT
from casestudies.checks import FOUR_PATHS, LOCAL, ONE_PATH, TWO_NICS
from casestudies.documents import THROUGH
from casestudies.gains import CHANGE, QUANTITIES, TIMES_LESS, Claim, Form, Gain, Place, loads, place_of, table

_DOCUMENT = "diskann"
IN_MEMORY, MAPPED, ON_DISK = "HNSW in memory", "HNSW mapped from files", "DiskANN on disk"
_UNITS = {"read_mib_per_s": "MiB/s", "read_ops_per_s": "reads/s"}
_IN_MEMORY = ("tmpfs", "ramfs")
"""File systems without a disk."""
_SHOWN = ("qps", "p95_ms")


def tables(material: Material) -> list[Table]:
    """Table D4-V: what an index on disk gains over one in memory, and a faster storage path over a slower one."""
    found = {place: _Load.of(record) for place, record in loads(material).items()}
    rows = [
        row
        for row in material.by_any_client
        if row["metric"] in _SHOWN and not row["filter"] and row["target_recall"] is None and place_of(row) in found
    ]
    return table(
        material,
        Table(
            "D4-V",
            "Gain of disk over memory, and of a faster storage path",
            "An index on disk, or mapped from files, against HNSW in memory: asked the same with the same effort, on"
            " one topology but for its storage, of one program, or of two libraries, each in its clients' processes;"
            " Table D4 has their recall. And what was measured on several storage paths: the faster ones against the"
            " slowest, by what their records say of limits, paths or medium. In percent; of p95 on a faster path, how"
            f" many times as long the slower one took. {IN_BURSTS}",
            ("Dataset", "Topology", "Compared", "Asked", "Quantity"),
            (Column("In memory, or slower path"), Column("On disk, or faster path")),
            (),
        ),
        [*_over_memory(rows, found), *_over_slower(rows, found, material.records)],
        _claims,
    )


# Disk over memory


class _Load(NamedTuple):
    """What a load's record says: the system, where its index lies (empty for other kinds), and its topology.

    `library`: whether it is one in its clients' processes; `apart`: the topology, but for its name and storage.
    """

    system: Setup
    kept: str
    library: bool
    apart: str

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> _Load:
        spec, system = record["spec"], setup(record)
        index = spec.get("index") or {}
        kind, plain = str(index.get("type")).lower(), index.get("quantizer", "none") == "none"
        graph = (MAPPED if system.mapped else IN_MEMORY) if kind == "hnsw" and plain else ""
        apart = json.dumps(apart_from_storage(spec["topology"]), sort_keys=True)
        return cls(system, ON_DISK if kind == "diskann" else graph, in_process(record), apart)


_Loads = Mapping[Place, _Load]


def _over_memory(rows: Iterable[Row], of: _Loads) -> Iterator[Gain]:
    by_question: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        by_question.setdefault((row["dataset"], row["workload"], row["metric"]), []).append(row)
    for _, asked in sorted(by_question.items()):
        memory = [row for row in asked if of[place_of(row)].kept == IN_MEMORY]
        disk = [row for row in asked if of[place_of(row)].kept in (MAPPED, ON_DISK)]
        for above, below in product(disk, memory):
            on_disk, in_memory = of[place_of(above)], of[place_of(below)]
            if not _is_comparable(in_memory, on_disk):
                continue
            # Of several topologies that differ in storage alone, the same one: elsewhere it would be another path, too.
            same = any((each["topology"], each["system"]) == (above["topology"], below["system"]) for each in memory)
            if same and below["topology"] != above["topology"]:
                continue
            why = "" if below["ef_search"] == above["ef_search"] else OTHER_EFFORT
            compared = f"{in_memory.kept} → {on_disk.kept.replace('HNSW ', '')}: {_named(below, above, 'system')}"
            yield _gain(below, above, compared, CHANGE, why)


def _is_comparable(memory: _Load, disk: _Load) -> bool:
    if memory.apart != disk.apart or memory.library != disk.library:
        return False
    a, b = memory.system, disk.system
    if disk.kept == MAPPED:
        return a == b._replace(mapped=False)
    return (a.engine, a.version, a.settings) == (b.engine, b.version, b.settings) or memory.library


# A faster path over a slower one


class _Path(NamedTuple):
    """What a record says of a storage path. `most`: what may be read of it in a second; `held`: how that is held."""

    name: str
    medium: str
    paths: int | None
    most: Mapping[str, float]
    held: tuple[Any, ...]

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> _Path:
        limits = facts.get("limits", {})
        most = limits.get("asked", {})
        held = limits.get("pacing"), limits.get("latency_us")
        return cls(str(facts["name"]), str(facts["filesystem"]), facts["paths"], most, held)

    @property
    def words(self) -> str:
        """Its limits."""
        said = [f"{most:g} {_UNITS[limit]}" for limit, most in self.most.items()]
        said += ["evenly paced"] if self.held[0] else []
        said += [f"each read {self.held[1]:g} µs later"] if self.held[1] else []
        return ", ".join(said) or "no limit"


def _over_slower(rows: Iterable[Row], of: _Loads, records: Mapping[str, Mapping[str, Any]]) -> Iterator[Gain]:
    by_question: dict[tuple[str, ...], list[tuple[Row, _Path]]] = {}
    for row in rows:
        facts = (records.get(row["record"]) or {}).get("storage_path")
        if facts is not None:
            question = (row["dataset"], row["system"], row["workload"], row["metric"], of[place_of(row)].apart)
            by_question.setdefault(question, []).append((row, _Path.of(facts)))
    for (_, system, _, metric, _), asked in sorted(by_question.items()):
        steps = [(a, b, words) for a, b in permutations(asked, 2) if (words := _step(a[1], b[1]))]
        faster = {id(b) for _, b, _ in steps}
        for (below, _), (above, _), words in (step for step in steps if id(step[0]) not in faster):
            form = TIMES_LESS if metric == "p95_ms" else CHANGE
            yield _gain(below, above, f"{system}: {words}", form)


def _step(slow: _Path, fast: _Path) -> str:
    """What makes one path faster than another that is like it else, in words; empty where nothing is known to."""
    if slow.name == fast.name:
        wider = slow.most.keys() == fast.most.keys() and slow.held == fast.held and _is_less(slow.most, fast.most)
        return f"{slow.words} → {fast.words}" if slow.most and (wider or not fast.most) else ""
    if slow.most or fast.most:
        return ""
    if slow.paths and fast.paths:
        return f"{_paths(slow.paths)} → {_paths(fast.paths)}" if slow.paths < fast.paths else ""
    in_memory = [path.medium in _IN_MEMORY for path in (slow, fast)]
    return f"{slow.medium} → {fast.medium}" if in_memory == [False, True] else ""


def _is_less(slow: Mapping[str, float], fast: Mapping[str, float]) -> bool:
    return slow != fast and all(slow[limit] <= fast[limit] for limit in slow)


def _paths(count: int) -> str:
    return f"{count} path{'' if count == 1 else 's'}"


# Both


def _gain(below: Row, above: Row, compared: str, form: Form, why: str = "") -> Gain:
    clients = f"{above['clients']} client{'' if above['clients'] == 1 else 's'}{THROUGH.get(above['client'], '')}"
    asked = ", ".join(filter(None, (f"{above['workload']}: K = {above['k']}", above["effort"], clients)))
    labels = (above["dataset"], _named(below, above, "topology"), compared, asked, QUANTITIES[above["metric"]])
    return Gain(labels, below, above, form, why)


def _named(below: Row, above: Row, name: str) -> str:
    return " → ".join(dict.fromkeys((below[name], above[name])))


def _claims(facts: Published) -> list[Claim]:
    """Each with the two figures of the document's tables that it is of."""
    highlight = partial(facts.one, "text Highlights", _DOCUMENT)
    claims = (
        (
            highlight(metric="change_pct", dataset="768d1m"),
            "“NVMe-oF DiskANN 4-path exceeds local HNSW Queries Per Second (QPS) by 56.9% at 1M vectors”",
            ("qps", LOCAL, FOUR_PATHS, CHANGE),
        ),
        (
            highlight(metric="change_pct", dataset="768d10m"),
            "“At 10M vectors, 4-path DiskANN delivers 19.4% more QPS than local HNSW”",
            ("qps", LOCAL, FOUR_PATHS, CHANGE),
        ),
        (
            facts.one("text Observations", _DOCUMENT, metric="change_pct"),
            "“At 1M, the 2-NIC configuration trails the 1-NIC 4-path by 17.0% in QPS”",
            ("qps", FOUR_PATHS, TWO_NICS, CHANGE),
        ),
        (
            highlight(metric="ratio"),
            "“single-path DiskANN p95 latency is 2,574 ms; four-path significantly reduces it to 24.9 ms, a 103×"
            " improvement”",
            ("p95_ms", ONE_PATH, FOUR_PATHS, TIMES_LESS),
        ),
    )
    found = []
    for claim, words, (metric, *topologies, form) in claims:
        below, above = (_printed(facts, claim.dataset, topology, metric) for topology in topologies)
        compared = " → ".join(dict.fromkeys(f"{each.system} {each.version} {each.index}" for each in (below, above)))
        labels = (below.dataset, " → ".join(topologies), compared, f"K = {below.k}", QUANTITIES[metric])
        two = [(f"{each.index}, {each.topology}", each) for each in (below, above)]
        found.append(Claim(labels, words, claim, form, (two[0], two[1])))
    return found


def _printed(facts: Published, dataset: str, topology: str, metric: str) -> Figure:
    """A number of the document's tables of results: its text, which restates them, says no k."""
    wanted = _DOCUMENT, dataset, topology, metric
    (found,) = (
        each for each in facts.figures if each.k and (each.document, each.dataset, each.topology, each.metric) == wanted
    )
    return found
