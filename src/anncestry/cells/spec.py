"""The entries of the config as frozen objects, and the schemas that define their keys.

A schema in `workflow/schemas/` holds each key's type, limits, unit, default and meaning; docs/config.md shows them.
The classes here add types for the code that reads an entry. Workloads stay mappings: `cells.features` completes them.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

import jsonschema_rs
import yaml

from anncestry.cells.indexes import BatchRows
from anncestry.home import SCHEMAS

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

_COMMON = "common.schema.yaml"

Made = TypeVar("Made", bound="Entry")


@dataclass(frozen=True)
class Entry:
    """An entry of a config file, or a part of one, with the schema's defaults; None for a key without a default."""

    plain: Mapping[str, Any]
    """The entry without defaults, as the file has it: keys and specs hold this."""


@dataclass(frozen=True)
class Limits(Entry):
    cpus: float | None
    memory_mib: int | None


@dataclass(frozen=True)
class StorageLimits(Entry):
    read_mib_per_s: float | None
    read_ops_per_s: int | None
    pacing: Literal["even"] | None
    latency_us: float | None


@dataclass(frozen=True)
class DeclaredStorage(Entry):
    paths: int
    nics: int


NODES_ROLE = "querynode"
"""The role that `nodes` counts in a system whose processes have roles."""


@dataclass(frozen=True)
class Topology(Entry):
    runtime: Literal["native", "docker", "remote"]
    nodes: int
    shards: int
    replicas: int
    storage: str | None
    storage_limits: StorageLimits | None
    declared_storage: DeclaredStorage | None
    limits: Limits
    role_limits: Mapping[str, Limits]
    publish: bool
    endpoints: Mapping[str, str]
    credentials: str | None
    tls: str | Mapping[str, str] | None
    entry: Literal["first", "all"]
    consistency: Literal["one", "quorum", "all"] | None
    external: Mapping[str, str]
    external_limits: Mapping[str, Limits]
    roles: Mapping[str, int]


def node_limits(topology: Mapping[str, Any]) -> Mapping[str, Any]:
    """The limits of each of the `nodes` of a plain topology: by role those of a query node, else those of all."""
    return (topology.get("role_limits") or {}).get(NODES_ROLE) or topology.get("limits") or {}


@dataclass(frozen=True)
class Kill(Entry):
    after_share: float


@dataclass(frozen=True)
class SystemLoad(Entry):
    client: Literal["sdk"] | None
    batch_rows: BatchRows | None
    upgrade_from: str | None
    kill: Kill | None


@dataclass(frozen=True)
class System(Entry):
    """A system with the keys that it inherits from the one that it is `of`."""

    engine: str
    version: str
    settings: Mapping[str, Any]
    index: Mapping[str, Any] | None
    load: SystemLoad
    artifact: Mapping[str, Any]
    built_as: str
    """The system whose artifact this one runs: its own name, or that of the one that it is `of`."""


@dataclass(frozen=True)
class Dataset(Entry):
    """A dataset, or a prefix with the keys of its whole dataset and its own number of rows."""

    metric: Literal["l2", "cosine"]
    rows: int
    queries: int
    dim: int
    licence: str
    published_as: Sequence[str]
    content: Mapping[str, str]
    zero_vectors: Literal["refuse", "leave_out", "keep"]
    conditions: Sequence[str]
    sources: Sequence[Mapping[str, Any]]
    prefix: int | None
    origin: str
    """The whole dataset: its own name, or that of the one that it is a prefix of."""


@dataclass(frozen=True)
class Part(Entry):
    version: str
    with_: Sequence[str]
    artifact: Mapping[str, Any]


@dataclass(frozen=True)
class Side(Entry):
    """One of the two systems of a pair."""

    system: str
    topology: str | None
    build: int
    effort: int | None


@dataclass(frozen=True)
class Block(Entry):
    datasets: Sequence[str]
    systems: Sequence[str]
    """Empty where `paired` has two sides."""
    paired: Sequence[Side]
    topologies: Sequence[str]
    workloads: Sequence[str]
    arm: str | None
    rebuilds: int
    unsupported: Literal["refused", "listed"]


@dataclass(frozen=True)
class Load(Entry):
    batch_rows: BatchRows
    first_port: int | None


@dataclass(frozen=True)
class Truth(Entry):
    shard_mib: float


@dataclass(frozen=True)
class Rounds(Entry):
    """In how many rounds cells are measured whose workloads don't say."""

    first: int
    most: int
    interval_percent: float
    minutes: float

    @property
    def rule(self) -> dict[str, Any]:
        """What decides on a cell by its own numbers."""
        return {"first": self.first, "most": self.most, "interval_percent": self.interval_percent}


@dataclass(frozen=True)
class Disturbance(Entry):
    """How much others may disturb a run, and how often it is measured again because they did."""

    others_pct: float
    gap_ms: float
    lag_ms: float
    repeats: int
    repeats_percent: float

    @classmethod
    def of(cls, **given: float) -> Disturbance:
        """The declared defaults, but for those `given`."""
        return read(cls, schema("config")["properties"]["disturbance"], given)

    @property
    def limits(self) -> dict[str, float]:
        return {"others_pct": self.others_pct, "gap_ms": self.gap_ms, "lag_ms": self.lag_ms}


BLOCKS_MIN = 10
"""Blocks that a pair needs over all of its pairs of servers: with fewer its record is invalid."""


@dataclass(frozen=True)
class Duet(Entry):
    """How pairs of servers are measured."""

    slice_s: float
    discard_ms: float
    blocks: int
    first: int
    most: int
    interval_percent: float

    @property
    def rule(self) -> dict[str, Any]:
        """What decides on a pair by its own numbers, in how many `rounds`: fresh pairs of servers."""
        return {"first": self.first, "most": self.most, "interval_percent": self.interval_percent}

    @property
    def slices(self) -> dict[str, Any]:
        """How the time of a workload on one pair of servers is cut."""
        return {"slice_s": self.slice_s, "discard_ms": self.discard_ms, "blocks": self.blocks}


@dataclass(frozen=True)
class Decide(Entry):
    """When two numbers differ or are equivalent."""

    margin_percent: float
    level: float

    @property
    def rule(self) -> dict[str, float]:
        """As fields of `metrics.decide.Rule`, and in the key of the page."""
        return {"margin": self.margin_percent / 100, "level": self.level}


@dataclass(frozen=True)
class Config(Entry):
    """config.yaml with an experiment's keys, and the other files; `expand` checks how they fit together."""

    title: str
    platform: str
    seed: int
    index: Mapping[str, Any]
    ef_search: int
    nprobe: int
    search_list: int
    load: Load
    driver: Literal["native", "python"]
    truth: Truth
    rounds: Rounds
    disturbance: Disturbance
    duet: Duet
    decide: Decide
    chart_files: bool
    equal_totals: bool
    arms: tuple[str, ...]
    matrix: Sequence[Block]
    folder: Path
    experiment: str
    datasets: Mapping[str, Dataset]
    systems: Mapping[str, System]
    topologies: Mapping[str, Topology]
    parts: Mapping[str, Part]
    storage: Mapping[str, Mapping[str, Any]]
    workloads: Mapping[str, Mapping[str, Any]]
    platforms: Mapping[str, Mapping[str, Any]]
    epochs: Mapping[str, int]
    """By stage."""
    engine_epochs: Mapping[str, int]
    """By engine, of those whose epoch was bumped: the first epoch is in no key."""
    feature_epochs: Mapping[str, int]
    """The same by feature of workloads."""

    @property
    def efforts(self) -> dict[str, int]:
        """The search effort for workloads without one, by its name in `indexes.EFFORTS`."""
        return {"ef_search": self.ef_search, "nprobe": self.nprobe, "search_list": self.search_list}

    @property
    def source(self) -> Path:
        """The file with the matrix."""
        return self.folder / ("config.yaml" if self.experiment == "default" else f"experiments/{self.experiment}.yaml")


@cache
def schema(name: str) -> Mapping[str, Any]:
    """The schema of a config file, with the definitions that it shares with others."""
    body = _read(f"{name}.schema.yaml")
    return {**body, "$defs": {_COMMON: _read(_COMMON)}}


@cache
def _read(file: str) -> dict[str, Any]:
    body: dict[str, Any] = yaml.load((SCHEMAS / file).read_text(), Loader=yaml.CSafeLoader)
    return body


def resolved(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """A part of a schema with the shared definition that it refers to."""
    if "$ref" not in part:
        return part
    return {**_read(_COMMON)["$defs"][part["$ref"].rpartition("/")[2]], **part}


def entries(model: type[Made], bodies: Mapping[str, Mapping[str, Any]], name: str) -> dict[str, Made]:
    """The entries of the valid file `name`.yaml."""
    each = schema(name)["additionalProperties"]
    return {key: read(model, each, body) for key, body in bodies.items()}


def read(model: type[Made], rules: Mapping[str, Any], body: Mapping[str, Any], **more: Any) -> Made:
    """`body`, which is valid by the schema `rules`, as a model; `more` are fields that are in no schema."""
    properties = resolved(rules)["properties"]
    values: dict[str, Any] = {"plain": body, **more}
    for field, hint in _hints(cast(Hashable, model)).items():
        if field not in values:
            key = field.rstrip("_")
            values[field] = _typed(hint, properties[key], body.get(key, properties[key].get("default")))
    return model(**values)


@cache
def _hints(model: Hashable) -> dict[str, Any]:
    return get_type_hints(model)


def _typed(hint: Any, rules: Mapping[str, Any], value: Any) -> Any:
    """A value as its field has it: what is declared as an entry becomes one, anything else stays."""
    kinds = [kind for kind in (hint, *get_args(hint)) if isinstance(kind, type) and issubclass(kind, Entry)]
    if not kinds or (value is None and hint not in kinds):
        return value
    if get_origin(hint) is Mapping:
        return {key: read(kinds[0], rules["additionalProperties"], each) for key, each in value.items()}
    if get_origin(hint) is Sequence:
        return tuple(read(kinds[0], rules["items"], each) for each in value)
    return read(kinds[0], rules, value or {})


class Schema:
    """A schema of draft 2020-12: validates with jsonschema-rs, which is fast; takes the messages from jsonschema."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self._body = dict(body)

    @cached_property
    def _quick(self) -> jsonschema_rs.Draft202012Validator:
        return jsonschema_rs.Draft202012Validator(self._body)

    def errors(self, instance: Any) -> list[ValidationError]:
        """What is wrong with `instance`; that nothing is, as of nearly all, is known a hundred times faster."""
        try:
            if self._quick.is_valid(instance):
                return []
        except (ValueError, TypeError):
            pass  # of what JSON has no word for (a date, a key that is no text): the other has its own view
        return list(_explaining()(self._body).iter_errors(instance))


@cache
def _explaining() -> Any:
    """jsonschema's validator, with `$` in patterns as the end of the text, as JSON Schema defines it.

    Python's `$` also matches before a final newline, and other validators don't support Python's `\\Z`.
    """
    # Imported here: it takes a tenth of a second, in thousands of jobs.
    from jsonschema import Draft202012Validator, ValidationError, validators

    def pattern(validator: Any, wanted: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
        if validator.is_type(instance, "string") and not re.search(re.sub(r"\$\Z", r"\\Z", wanted), instance):
            yield ValidationError(f"{instance!r} does not match {wanted!r}")

    return validators.extend(Draft202012Validator, {"pattern": pattern})  # type: ignore[no-untyped-call]
