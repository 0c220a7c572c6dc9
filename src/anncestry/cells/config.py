"""Config files: read, validated against their schemas, merged with an experiment.

Precedence, lowest first: `config/config.yaml`, then `config/experiments/NAME.yaml`, key by key at the top level.
"""

from __future__ import annotations

import difflib
import math
import re
import shutil
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from anncestry.cells import spec
from anncestry.cells.features import at, installed
from anncestry.cells.spec import Config, Dataset, Part, Schema, System, Topology
from anncestry.cells.stage import engine_folders
from anncestry.errors import ConfigError
from anncestry.home import EPOCHS

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

DEFAULT_EXPERIMENT = "default"
# What PyYAML raises beside its own: of bytes that are no text, a date that there is not, a tag that doesn't fit.
_YAML_ERRORS = (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError, RecursionError)
_PARTS_MAX = 1_000_000
_NAME = re.compile(r"^[a-z0-9][a-z0-9._-]*\Z")
_SWEPT = (
    (("nq",), "nq"),
    (("ef_search",), "ef"),
    (("nprobe",), "nprobe"),
    (("search_list",), "list"),
    (("filter", "share"), "share"),
    (("filter", "halvings"), "halvings"),
    (("filter", "from_share"), "from"),
    (("target_recall",), "recall"),
    (("rate_per_s",), "rate"),
    (("stream", "insert_per_s"), "insert"),
    (("client",), ""),
)
"""Path of each key of a workload that may be a list, and what the names of the workloads call it, in this order."""


class _Loader(yaml.CSafeLoader):
    """YAML's safe loader, which also refuses a key given twice: the last would win without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":  # `<<`: its keys are meant to be given again
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(None, None, "a key must not be a list", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} occurs twice", key_node.start_mark)
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
    """ConfigError for what aliases can make of a small file (an endless one, one that holds itself), and for values
    that are none of JSON's: .inf, .nan, dates, bytes, sets."""
    todo, seen = [body], 0
    while todo:
        part = todo.pop()
        seen += 1
        if seen > _PARTS_MAX:
            raise ConfigError(f"{path}: more than {_PARTS_MAX} values: does an alias (*) contain itself?")
        if isinstance(part, dict):
            if wrong := [key for key in part if not isinstance(key, str)]:
                raise ConfigError(f"{path}: key {wrong[0]!r} is not text; quote it")
            todo.extend(part.values())
        elif isinstance(part, list):
            todo.extend(part)
        elif isinstance(part, float) and not math.isfinite(part):
            raise ConfigError(f"{path}: {part} is not a finite number (.inf and .nan are not allowed)")
        elif part is not None and not isinstance(part, str | int | float):
            raise ConfigError(f"{path}: {part!r} is read as a {type(part).__name__}: quote it")


def copy(folder: Path, target: Path, but: str = "") -> None:
    """Copy the files of a config into `target`, `but` for a folder of it; hidden ones, as of an editor, stay behind."""
    for path in sorted(folder.rglob("*")):
        within = path.relative_to(folder)
        if path.is_file() and within.parts[0] != but and not any(part.startswith(".") for part in within.parts):
            (target / within).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / within)


def check_name(name: str, option: str) -> None:
    """ConfigError unless this can name an experiment, system, dataset, …"""
    if not _NAME.match(name):
        raise ConfigError(f"{option}: {name!r} can't be a name: use small letters, digits, '.', '_' and '-'")


@cache
def _schema(name: str, partial: bool) -> Schema:
    return Schema({**spec.schema(name), "required": []} if partial else spec.schema(name))


def validate(body: Any, schema: str, path: Path, partial: bool = False) -> None:
    """Check `body` of file `path` against `workflow/schemas/SCHEMA.schema.yaml`; ConfigError names file and key."""
    errors = sorted(_schema(schema, partial).errors(body), key=lambda e: [str(p) for p in e.absolute_path])
    if errors:
        raise ConfigError(f"{path}: {_sentence(errors[0])}")


def _sentence(error: ValidationError) -> str:
    if error.validator in ("oneOf", "anyOf") and error.context:
        # Report the intended variant: the one whose `kind`, `field` or type fits, else the one with fewest faults.
        branches: dict[int, list[ValidationError]] = {}
        for part in error.context:
            branches.setdefault(int(part.schema_path[0]), []).append(part)
        return _sentence(min(branches.values(), key=lambda b: (any(map(_is_of_another, b)), len(b)))[0])
    where = ".".join(str(part) for part in error.absolute_path)
    prefix = f"{where}: " if where else ""
    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        assert isinstance(error.schema, Mapping)
        known = sorted(error.schema.get("properties", {}))
        patterns = "|".join(error.schema.get("patternProperties", ())) or "$^"
        extra = sorted(str(key) for key in error.instance if key not in known and not re.search(patterns, str(key)))
        if extra[0] == "driver_hosts":
            return f"{prefix}driver_hosts: belongs to a workload (docs/cluster.md)"
        return f"{prefix}unknown key {extra[0]!r}{_hint(extra[0], known)}"
    if error.validator == "required":
        assert isinstance(error.validator_value, list)
        assert isinstance(error.instance, dict)
        missing = [key for key in error.validator_value if key not in error.instance]
        return f"{prefix}key {missing[0]!r} is missing"
    message = error.message if len(error.message) < 200 else f"does not satisfy {error.validator!r} of its schema"
    return f"{prefix}{message}"


def _is_of_another(error: ValidationError) -> bool:
    """Whether an error in a variant shows that the config means another variant."""
    return error.validator == "const" or (error.validator == "type" and not error.path)


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


def _systems(given: Mapping[str, dict[str, Any]], path: Path) -> dict[str, System]:
    """Systems, each with the keys that it inherits; ConfigError for a cycle of upgrades."""
    rules = spec.schema("systems")["additionalProperties"]
    systems: dict[str, System] = {}
    for name, entry in given.items():
        parent: dict[str, Any] = look_up(given, entry["of"], "system", f"{path}: {name}.of") if "of" in entry else {}
        if "of" in parent:
            raise ConfigError(f"{path}: {name}.of: {entry['of']} has an `of` itself; name a system without one")
        inherited = {key: value for key, value in parent.items() if key != "load"}
        own = {key: value for key, value in entry.items() if key != "of"}
        # What is run is the other's unless this entry says otherwise: it is fetched or built once.
        built_as = entry["of"] if "of" in entry and not own.keys() & {"version", "artifact", "engine"} else name
        systems[name] = spec.read(System, rules, {**inherited, **own, "built_as": built_as}, built_as=built_as)
    for name in systems:
        chain = [name]
        while (older := systems[chain[-1]].load.upgrade_from) is not None:
            look_up(systems, older, "system", f"{path}: {chain[-1]}.load.upgrade_from")
            if older in chain:
                raise ConfigError(f"{path}: {name}.load.upgrade_from: {' ← '.join([*chain, older])} is a cycle")
            chain.append(older)
    return systems


_RANGE = re.compile(r"([^{}]*)\{([0-9]+)\.\.([0-9]+)\}([^{}]*)\Z")
_FILES_MAX = 100_000


def _file_names(name: str, where: str) -> list[str]:
    """The names that `train-{00..99}.parquet` stands for: each whole number, of as many digits as the first at least.

    Any other name stands for itself; ConfigError for one that isn't well written.
    """
    if found := set(name) & set("*?[]"):
        raise ConfigError(
            f"{where}: {name!r}: has {min(found)!r}, as if it were a pattern; a key needs the names: write the range, "
            "such as part-{00..99}.parquet"
        )
    if not set(name) & set("{}"):
        return [name]
    if (range_ := _RANGE.match(name)) is None:
        raise ConfigError(f"{where}: {name!r}: has braces, but not one range, such as part-{{00..99}}.parquet")
    before, first, last, after = range_.groups()
    count = int(last) - int(first) + 1
    if count < 1:
        raise ConfigError(f"{where}: {name!r}: its range ends before it begins; write {{{last}..{first}}}")
    if count > _FILES_MAX:
        raise ConfigError(f"{where}: {name!r}: its range has more than {_FILES_MAX:,} files")
    return [f"{before}{number:0{len(first)}}{after}" for number in range(int(first), int(last) + 1)]


def _with_files(source: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """A source with every range of files written out, so that a key knows the names alone."""
    if source["kind"] != "parquet":
        return source
    names = [each for name in source["base"] for each in _file_names(name, f"{where}.base")]
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise ConfigError(f"{where}.base: names {twice[0]} twice; its rows would be read twice")
    return {**source, "base": names}


_LOCAL = ("file", "parquet", "archive")
"""Kinds of sources that may be paths of this machine."""


def _datasets(given: Mapping[str, dict[str, Any]], path: Path) -> dict[str, Dataset]:
    """Datasets, each prefix with the keys of its whole dataset."""
    prefix, whole = spec.schema("datasets")["additionalProperties"]["oneOf"]
    rules = {"properties": {**prefix["properties"], **whole["properties"]}}
    datasets: dict[str, Dataset] = {}
    for name, entry in given.items():
        body, origin = entry, name
        if "of" in entry:
            origin = entry["of"]
            parent = look_up(given, origin, "dataset", f"{path}: {name}.of")
            if "of" in parent:
                raise ConfigError(f"{path}: {name}.of: {origin} is a prefix itself; name a whole dataset")
            if entry["prefix"] > parent["rows"]:
                raise ConfigError(f"{path}: {name}.prefix: {entry['prefix']} rows of {parent['rows']}")
            body = {**parent, "published_as": [], **entry, "rows": entry["prefix"]}
            del body["of"]
        body = {**body, "sources": [_with_files(each, f"{path}: {origin}.sources") for each in body["sources"]]}
        pinned = {"base", "queries", *(["payload"] if "conditions" in body else [])} <= set(body.get("content") or {})
        for source in () if pinned else body["sources"]:
            texts = [str(value) for value in source.values()] if source["kind"] in _LOCAL else []
            if any("$" in text or text.startswith("~") for text in texts):
                raise ConfigError(
                    f"{path}: {name}.sources: a path with a variable or ~ needs content: {{base: …, queries: …}}, as "
                    "other files may be there for another user, and the key holds no more than this text"
                )
        if body.get("zero_vectors", "refuse") != "refuse":
            where = f"{path}: {name}.zero_vectors: {body['zero_vectors']}"
            if body["metric"] != "cosine":
                raise ConfigError(
                    f"{where}: needs metric: cosine; under {body['metric']} a zero vector is like any other"
                )
            if body["zero_vectors"] == "leave_out" and "conditions" in body:
                raise ConfigError(
                    f"{where}: unsupported with conditions, which count the rows and queries as they came"
                )
        datasets[name] = spec.read(Dataset, rules, body, origin=origin)
    return datasets


def sweep(workloads: Mapping[str, Mapping[str, Any]], where: str) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Workloads with every list expanded (`ef_search: [16, 32]` of k10 makes k10-ef16 and k10-ef32), and their names.

    ConfigError where an expanded name is taken. `where` names the file.
    """
    expanded: dict[str, Any] = {}
    names: dict[str, list[str]] = {}
    for name, entry in workloads.items():
        axes = [
            [(path, label, value) for value in found]
            for path, label in _SWEPT
            if isinstance(found := at(entry, path), list)
        ]
        names[name] = []
        for values in product(*axes):
            variant: dict[str, Any] = dict(entry)
            for path, _, value in values:
                variant = _with(variant, path, value)
            full = "-".join([name, *(_variant(label, value) for _, label, value in values)])
            if full in expanded or (full != name and full in workloads):
                raise ConfigError(f"{where}: {name}: its variant {full} has the name of another workload; rename one")
            expanded[full] = _unsaid(variant, "workloads")
            names[name].append(full)
    return expanded, names


_SILENT = {"workloads": ("client", "loop", "start", "timeout_s"), "topologies": ("entry", "publish")}
"""By file, keys that say nothing where they have their default. (`nq: 1` says something: a batch of one.)"""


def _unsaid(entry: Mapping[str, Any], name: str) -> dict[str, Any]:
    """An entry of the valid file `name`.yaml without defaults that are written out: whoever says them means no other
    cell. Nor does whoever writes 2.0 for 2."""
    properties = spec.schema(name)["additionalProperties"]["properties"]
    kept = {
        key: value
        for key, value in entry.items()
        if key not in _SILENT[name] or value != spec.resolved(properties[key])["default"]
    }
    return {key: _whole(value) for key, value in kept.items()}


def _whole(value: Any) -> Any:
    """The same with whole numbers as integers."""
    if isinstance(value, Mapping):
        return {key: _whole(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_whole(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _variant(label: str, value: Any) -> str:
    return f"{label}{value}" if isinstance(value, str) else f"{label}{value:g}"


def name_all(asked: Iterable[str], names: Mapping[str, list[str]]) -> list[str]:
    """The names of a matrix, a swept workload's replaced by those of its variants; unknown ones stay as they are."""
    return [variant for name in asked for variant in names.get(name, [name])]


def _with(entry: Mapping[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    first, *rest = path
    return {**entry, first: _with(entry[first], tuple(rest), value) if rest else value}


def _block(block: dict[str, Any], names: Mapping[str, list[str]]) -> dict[str, Any]:
    """A block of the matrix with all its workloads by name, and mappings for the sides of its pair."""
    sides = [{"system": side} if isinstance(side, str) else side for side in block.get("paired", ())]
    return {**block, "paired": sides, "workloads": name_all(block["workloads"], names)}


def load(folder: Path, experiment: str = DEFAULT_EXPERIMENT) -> Config:
    """Read and validate all files of a config folder, with the experiment's keys in place of the default ones."""

    def part(name: str, otherwise: Path | None = None) -> dict[str, Any]:
        path = folder / f"{name}.yaml"
        if otherwise and not path.exists():
            path = otherwise  # epochs belong to the code: a project that has none takes the package's
        body = read_yaml(path)
        validate(body, name, path)
        assert isinstance(body, dict)
        return body

    def optional(name: str) -> dict[str, Any]:
        return part(name) if (folder / f"{name}.yaml").exists() else {}

    main = part("config")
    if experiment != DEFAULT_EXPERIMENT:
        path = folder / "experiments" / f"{experiment}.yaml"
        if not _NAME.match(experiment) or not path.exists():
            known = [DEFAULT_EXPERIMENT, *(p.stem for p in (folder / "experiments").glob("*.yaml"))]
            raise ConfigError(f"unknown experiment {experiment!r}{_hint(experiment, known)}")
        overlay = read_yaml(path)
        validate(overlay, "config", path, partial=True)
        main = {**main, **overlay}
    datasets = _datasets(part("datasets"), folder / "datasets.yaml")
    systems = _systems(part("systems"), folder / "systems.yaml")
    workloads, names = sweep(part("workloads"), str(folder / "workloads.yaml"))
    blocks = [_block(block, names) for block in main["matrix"]]
    platforms, epochs = part("platforms"), part("epochs", EPOCHS)
    for name in epochs.get("engines", {}):
        if "." not in name and ":" not in name:  # else a module from elsewhere, whose epoch is kept by hand
            engines = {**engine_folders(), **installed("anncestry.engines")}
            look_up(engines, name, "engine", f"{folder / 'epochs.yaml'}: engines")
    look_up(platforms, main["platform"], "platform", f"{folder / 'config.yaml'}: platform")
    return spec.read(
        Config,
        spec.schema("config"),
        # Rounds and slices are in keys: 10.0 is no other cell than 10.
        {**_whole(main), "matrix": blocks},
        folder=folder,
        experiment=experiment,
        arms=tuple(main.get("arms", ())),
        datasets=datasets,
        systems=systems,
        topologies=spec.entries(Topology, _topologies(part("topologies")), "topologies"),
        parts=spec.entries(Part, optional("parts"), "parts"),
        storage=optional("storage"),
        workloads=workloads,
        platforms=platforms,
        epochs={name: entry["epoch"] for name, entry in epochs.items() if "epoch" in entry},  # of stages
        engine_epochs=_bumped(epochs.get("engines", {})),
        feature_epochs=_bumped(epochs.get("features", {})),
    )


def _topologies(bodies: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {name: _unsaid(entry, "topologies") for name, entry in bodies.items()}


def _bumped(entries: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """Name → epoch, of those that are beyond their first one."""
    return {name: entry["epoch"] for name, entry in entries.items() if entry["epoch"] > 1}
