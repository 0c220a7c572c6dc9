"""Config files: read, validated against their schemas, merged with an experiment.

Precedence, lowest first: `config/config.yaml`, then `config/experiments/NAME.yaml`, key by key at the top level.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from anncestry.cells import variants
from anncestry.cells.indexes import EFFORTS
from anncestry.errors import ConfigError
from anncestry.schemas import Schema

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

SCHEMAS = Path(__file__).resolve().parents[3] / "workflow" / "schemas"
DEFAULT_EXPERIMENT = "default"
# What PyYAML raises beside its own: of bytes that are no text, a date that there is not, a tag that doesn't fit.
_YAML_ERRORS = (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError, RecursionError)
_PARTS_MAX = 1_000_000
_NAME = re.compile(r"^[a-z0-9][a-z0-9._-]*\Z")


_TRUTH_SHARD_MIB = 4096.0


@dataclass(frozen=True)
class Config:
    """Everything that is asked for, valid by itself; how its parts fit together is `matrix.expand`'s business."""

    folder: Path
    experiment: str
    title: str
    platform: str
    seed: int
    index: dict[str, Any]
    efforts: dict[str, int]
    """By its name in `indexes.EFFORTS`, the search effort where a workload says none."""
    load: dict[str, Any]
    truth_shard_mib: float
    driver: str
    equal_totals: bool
    arms: tuple[str, ...]
    blocks: list[dict[str, Any]]
    datasets: dict[str, dict[str, Any]]
    systems: dict[str, dict[str, Any]]
    topologies: dict[str, dict[str, Any]]
    parts: dict[str, dict[str, Any]]
    storage: dict[str, dict[str, Any]]
    workloads: dict[str, dict[str, Any]]
    platforms: dict[str, dict[str, Any]]
    epochs: dict[str, int]


class _Loader(yaml.CSafeLoader):
    """YAML's safe loader, which also refuses a key given twice: the last would win without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":  # `<<`: its keys are meant to be given again
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(None, None, "a key that is a list", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is given twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> Any:
    """Read one YAML file; ConfigError names the file and line."""
    try:
        with open(path) as file:
            body = yaml.load(file, Loader=_Loader)
    except FileNotFoundError:
        raise ConfigError(f"{path}: missing") from None
    except OSError as error:
        raise ConfigError(f"{path}: can't be read ({error.strerror})") from None
    except _YAML_ERRORS as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    _walk(body, path)
    return body


def _walk(body: Any, path: Path) -> None:
    """ConfigError for what aliases can make of a small file (an endless one, one that holds itself), .inf and .nan."""
    todo, seen = [body], 0
    while todo:
        part = todo.pop()
        seen += 1
        if seen > _PARTS_MAX:
            raise ConfigError(f"{path}: more than {_PARTS_MAX} values: does an alias (*) hold itself?")
        if isinstance(part, dict):
            if wrong := [key for key in part if not isinstance(key, str)]:
                raise ConfigError(f"{path}: key {wrong[0]!r} is not text: put it into quotes")
            todo.extend(part.values())
        elif isinstance(part, list):
            todo.extend(part)
        elif isinstance(part, float) and not math.isfinite(part):
            raise ConfigError(f"{path}: {part} is no number that can be meant here (.inf and .nan are refused)")


@cache
def _schema(name: str, partial: bool) -> Schema:
    body = yaml.load((SCHEMAS / f"{name}.schema.yaml").read_text(), Loader=yaml.CSafeLoader)
    return Schema({**body, "required": []} if partial else body)


def validate(body: Any, schema: str, path: Path, partial: bool = False) -> None:
    """Check `body` of file `path` against `workflow/schemas/SCHEMA.schema.yaml`; ConfigError names file and key."""
    errors = sorted(_schema(schema, partial).errors(body), key=lambda e: [str(p) for p in e.absolute_path])
    if errors:
        raise ConfigError(f"{path}: {_sentence(errors[0])}")


def _sentence(error: ValidationError) -> str:
    if error.validator == "oneOf" and error.context:
        # Speak of the variant that was meant: the one whose `kind` or `field` fits, else the one with fewest faults.
        branches: dict[int, list[ValidationError]] = {}
        for part in error.context:
            branches.setdefault(int(part.schema_path[0]), []).append(part)
        best = min(branches.values(), key=lambda b: (any(e.validator == "const" for e in b), len(b)))
        return _sentence(best[0])
    where = ".".join(str(part) for part in error.absolute_path)
    prefix = f"{where}: " if where else ""
    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        assert isinstance(error.schema, Mapping)
        known = sorted(error.schema.get("properties", {}))
        extra = sorted(str(key) for key in error.instance if key not in known)
        if extra[0] == "driver_hosts":
            return f"{prefix}driver_hosts: is a key of workloads: it is they that say who asks (docs/cluster.md)"
        return f"{prefix}unknown key {extra[0]!r}{_hint(extra[0], known)}"
    if error.validator == "required":
        assert isinstance(error.validator_value, list)
        assert isinstance(error.instance, dict)
        missing = [key for key in error.validator_value if key not in error.instance]
        return f"{prefix}key {missing[0]!r} is missing"
    message = error.message if len(error.message) < 200 else f"does not satisfy {error.validator!r} of its schema"
    return f"{prefix}{message}"


def _hint(name: str, known: Iterable[str]) -> str:
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(known)}" if known else ""


def look_up(table: Mapping[str, Any], name: str, kind: str, where: str) -> Any:
    """`table[name]`, or a ConfigError that says `where` the name was used and which names there are."""
    if name not in table:
        raise ConfigError(f"{where}: unknown {kind} {name!r}{_hint(name, table)}")
    return table[name]


def _systems(given: Mapping[str, dict[str, Any]], path: Path) -> dict[str, dict[str, Any]]:
    """Systems, each with all that the one it is `of` says and itself doesn't; ConfigError for a ring of upgrades."""
    systems: dict[str, dict[str, Any]] = {}
    for name, entry in given.items():
        parent: dict[str, Any] = look_up(given, entry["of"], "system", f"{path}: {name}.of") if "of" in entry else {}
        if "of" in parent:
            raise ConfigError(f"{path}: {name}.of: {entry['of']} is itself of another system")
        inherited = {key: value for key, value in parent.items() if key != "load"}
        own = {key: value for key, value in entry.items() if key != "of"}
        # What is run is the other's unless this entry says otherwise: it is fetched or built once.
        built_as = entry["of"] if "of" in entry and not own.keys() & {"version", "artifact", "engine"} else name
        systems[name] = {**inherited, **own, "built_as": built_as}
    for name in systems:
        chain = [name]
        while (older := systems[chain[-1]].get("load", {}).get("upgrade_from")) is not None:
            look_up(systems, older, "system", f"{path}: {chain[-1]}.load.upgrade_from")
            if older in chain:
                raise ConfigError(f"{path}: {name}.load.upgrade_from: {' ← '.join([*chain, older])} has no beginning")
            chain.append(older)
    return systems


def load(folder: Path, experiment: str = DEFAULT_EXPERIMENT) -> Config:
    """Read and validate all files of a config folder, with the experiment's keys in place of the default ones."""

    def part(name: str) -> dict[str, Any]:
        path = folder / f"{name}.yaml"
        body = read_yaml(path)
        validate(body, name, path)
        assert isinstance(body, dict)
        return body

    main = part("config")
    if experiment != DEFAULT_EXPERIMENT:
        path = folder / "experiments" / f"{experiment}.yaml"
        if not _NAME.match(experiment) or not path.exists():
            known = [DEFAULT_EXPERIMENT, *(p.stem for p in (folder / "experiments").glob("*.yaml"))]
            raise ConfigError(f"unknown experiment {experiment!r}{_hint(experiment, known)}")
        overlay = read_yaml(path)
        validate(overlay, "config", path, partial=True)
        main = {**main, **overlay}
    datasets = part("datasets")
    for name, entry in datasets.items():
        if "of" in entry:
            parent = look_up(datasets, entry["of"], "dataset", f"{folder / 'datasets.yaml'}: {name}.of")
            if "of" in parent:
                raise ConfigError(f"{folder / 'datasets.yaml'}: {name}.of: {entry['of']} is itself a prefix")
            if entry["prefix"] > parent["rows"]:
                raise ConfigError(
                    f"{folder / 'datasets.yaml'}: {name}.prefix: {entry['prefix']} rows of {parent['rows']}"
                )
    systems = _systems(part("systems"), folder / "systems.yaml")
    workloads, names = variants.sweep(part("workloads"), str(folder / "workloads.yaml"))
    blocks = [{**block, "workloads": variants.name_all(block["workloads"], names)} for block in main["matrix"]]
    platforms = part("platforms")
    look_up(platforms, main["platform"], "platform", f"{folder / 'config.yaml'}: platform")
    return Config(
        folder=folder,
        experiment=experiment,
        title=main["title"],
        platform=main["platform"],
        seed=main["seed"],
        index=main["index"],
        efforts={name: main[name] for name in EFFORTS if name in main},
        load=main["load"],
        truth_shard_mib=main.get("truth", {}).get("shard_mib", _TRUTH_SHARD_MIB),
        driver=main.get("driver", "native"),
        equal_totals=main.get("equal_totals", False),
        arms=tuple(main.get("arms", ())),
        blocks=blocks,
        datasets=datasets,
        systems=systems,
        topologies=part("topologies"),
        parts=part("parts") if (folder / "parts.yaml").exists() else {},
        storage=part("storage") if (folder / "storage.yaml").exists() else {},
        workloads=workloads,
        platforms=platforms,
        epochs={stage: entry["epoch"] for stage, entry in part("epochs").items()},
    )
