"""`anncestry systems`: what every system of the config is, how it is had, what it offers, and whether it ever ran.

Nothing is said of a system by name: an engine's offers are asked as the matrix asks them, with the topologies of the
config; what ran is read from the records in results/, and from the file of the config that keeps what they said.

`anncestry engine-check`: a new engine, as it is and with lies.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from tabulate import tabulate  # type: ignore[import-untyped]

from anncestry import engines
from anncestry.cells import config as config_files
from anncestry.cells.indexes import EFFORT, ON_GPU, QUANTIZERS
from anncestry.cells.spec import Config, System
from anncestry.cells.stage import STAGES
from anncestry.commands import HERE, Run, command, say_json
from anncestry.engines.offers import Offers, Parameter
from anncestry.errors import ConfigError, DataError, Unsupported
from anncestry.provenance.records import replacing

RAN = "ran.csv"
"""In the config folder: the systems that were run, as `anncestry systems --record` found in results/."""
COLUMNS = ("system", "version", "last", "commit", "valid", "invalid")
LIES = (
    *("fewer-rows", "no-filter", "other-rows", "other-distances", "short", "repeats"),
    *("other-version", "other-settings", "index-incomplete", "a-cluster"),
)
_HAD = {"native": "native", "docker": "image", "remote": "remote"}
_ONE = {"nodes": 1, "shards": 1, "replicas": 1}
_FIELDS: Mapping[str, Mapping[str, Any]] = {
    "category": {"field": "category", "in": [1]},
    "price": {"field": "price", "below": 1.0},
    "region": {"field": "region", "from": 0, "below": 1},
    "id": {"field": "id", "from": 1},
}


@dataclass(frozen=True)
class Listed:
    """A system: `had` are native, image, remote or in process; `filters` fields and kinds of payload columns.

    `upgrade` are the systems of the config whose data folder it opens; `freeze_s` the seconds that it may stand still,
    or the reason why it may not. `last` is the day (UTC) of its latest record, empty if it was never run; so many of
    its records of queries are `valid` and `invalid`.
    """

    system: str
    engine: str
    version: str
    had: tuple[str, ...]
    filters: tuple[str, ...]
    indexes: tuple[str, ...]
    cluster: bool
    upgrade: tuple[str, ...]
    sdk: bool
    stream: bool
    freeze_s: float | str
    last: str
    commit: str
    valid: int
    invalid: int

    @property
    def ran(self) -> str:
        """Whether it was ever run, in words."""
        if not self.last:
            return "never"
        wrong = f", {self.invalid} invalid" if self.invalid else ""
        return f"{self.last} ({self.valid} cells{wrong})"


def listed(config: Config, here: Path) -> list[Listed]:
    """Every system of the config, in its order; what ran is known from the config's file and results/ in `here`."""
    known = of_file(config.folder / RAN)
    ran = merged(known, of_results(here))
    return [_listed(config, name, system, ran.get(name)) for name, system in config.systems.items()]


def _listed(config: Config, name: str, system: System, ran: Mapping[str, str] | None) -> Listed:
    offers = engines.offers_of(system.engine)
    places = [
        {"runtime": runtime, **_ONE, **({"endpoints": dict.fromkeys(offers.endpoints, "X")} if remote else {})}
        for runtime in offers.runtimes
        for remote in (runtime == "remote",)
        if remote or system.artifact["kind"] != "none"
    ]
    index = system.index if system.index and "type" in system.index else {**config.index, **(system.index or {})}
    places = [place for place in places if _can(offers, system, place, index)]
    had = ("in process",) if offers.in_process and places else tuple(_HAD[str(place["runtime"])] for place in places)
    fields = [field for field, asked in _FIELDS.items() if _can(offers, system, places, index, {"filter": asked})]
    payload = _can(offers, system, places, index, {"filter": {"field": "payload"}})
    clusters = (topology.plain for topology in config.topologies.values() if topology.nodes > 1)
    freeze = offers.may_freeze(system.plain, places[0]) if places else None
    ran = ran or dict.fromkeys(COLUMNS, "")
    return Listed(
        system=name,
        engine=system.engine,
        version=system.version,
        had=had,
        filters=(*fields, *(f"payload {kind}" for kind in offers.conditions if payload)),
        indexes=tuple(_indexes(offers, system, places, index)),
        cluster=any(_can(offers, system, topology, index) for topology in clusters),
        upgrade=tuple(_opened(config, offers, name, system)),
        sdk=_can(offers, system, places, index, {"client": "sdk"}),
        stream=_can(offers, system, places, index, {"stream": {}}),
        freeze_s="runs nowhere here" if freeze is None else freeze.no or freeze.longest_s,
        last=ran["last"],
        commit=ran["commit"],
        valid=int(ran["valid"] or 0),
        invalid=int(ran["invalid"] or 0),
    )


def _can(
    offers: Offers,
    system: System,
    places: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    index: Mapping[str, Any],
    asked: Mapping[str, Any] | None = None,
) -> bool:
    """Whether the engine refuses neither one of these topologies with this index, nor what is asked there."""
    for place in [places] if isinstance(places, Mapping) else places:
        with suppress(ConfigError):
            offers.check(system.plain, place, index, None if asked is None else {"k": 10, **asked})
            return True
    return False


def _indexes(
    offers: Offers, system: System, places: Sequence[Mapping[str, Any]], index: Mapping[str, Any]
) -> Iterator[str]:
    """The types of index that the system has at its version: each with its quantizers, and where, if not everywhere."""
    for kind in (kind for kind in EFFORT if kind not in ON_GPU):
        known = (offers.indexes or {}).get(kind, {})
        wanted: dict[str, Any] = {name: _sample(parameter) for name, parameter in known.items() if parameter.needed}
        if not known and kind == index["type"]:
            wanted = {name: value for name, value in index.items() if name != "quantizer"}
        wanted = {"type": kind, **wanted}
        having = [place for place in places if not _lacks(offers, system, place, wanted)]
        if not having:
            continue
        quantizers = [
            name for name in QUANTIZERS if not _lacks(offers, system, having[0], {**wanted, "quantizer": name})
        ]
        where = (
            "" if len(having) == len(places) else f", {' or '.join(_HAD[place['runtime']] for place in having)} only"
        )
        yield kind + (f" ({', '.join(quantizers)})" if quantizers else "") + where


def _sample(parameter: Parameter) -> int:
    return max(parameter.low, min(64, parameter.high))


def _lacks(offers: Offers, system: System, place: Mapping[str, Any], index: Mapping[str, Any]) -> bool:
    """Whether the engine lacks this index by name; a parameter that it would have otherwise is no lack."""
    try:
        offers.check(system.plain, place, index, None)
    except Unsupported:
        return True
    except ConfigError:
        return False
    return False


def _opened(config: Config, offers: Offers, name: str, system: System) -> Iterator[str]:
    """The systems, each of an artifact of its own, whose data folder this one opens: those that the config upgrades."""
    for older_name, older in config.systems.items():
        if (
            older_name == name
            or older.built_as != older_name
            or "none" in (older.artifact["kind"], system.artifact["kind"])
        ):
            continue
        with suppress(ConfigError):
            offers.check_upgrade(system.plain, older.plain)
            yield older_name


# What ran


def of_file(path: Path) -> dict[str, Mapping[str, str]]:
    """The systems that a file of the config says were run; DataError if it is none."""
    if not path.exists():
        return {}
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if any(tuple(row) != COLUMNS or None in row.values() for row in rows):
        raise DataError(
            f"{path}: a row is not of the columns {', '.join(COLUMNS)}; `anncestry systems --record` writes it"
        )
    return {row["system"]: row for row in rows}


def of_results(here: Path) -> dict[str, Mapping[str, str]]:
    """The systems of which `here` has records of queries."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted(here.glob(STAGES["query"].glob())):
        try:
            record = json.loads(path.read_text())
            spec, created, code = record["spec"]["system"], str(record["created"]), record["code"]
            name, version, valid = str(spec["name"]), str(spec.get("version", "")), bool(record["valid"])
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path}: no record of queries ({error}); `anncestry plan` sets a damaged one aside"
            ) from None
        row = found.setdefault(name, dict.fromkeys(COLUMNS, "") | {"system": name, "valid": "0", "invalid": "0"})
        count = "valid" if valid else "invalid"
        row[count] = str(int(row[count]) + 1)
        if created[:10] >= row["last"]:
            commit = str(code.get("commit") or "")[:8]
            row |= {"version": version, "last": created[:10], "commit": commit}
    return dict(found)


def merged(
    known: Mapping[str, Mapping[str, str]], found: Mapping[str, Mapping[str, str]]
) -> dict[str, Mapping[str, str]]:
    """A row a system: that of the later day, and of one day `found`."""
    later = {name: row for name, row in found.items() if name not in known or row["last"] >= known[name]["last"]}
    return {name: row for name, row in sorted({**known, **later}.items())}


# The command


def systems(run: Run, options: argparse.Namespace) -> None:
    """List every system: its version, how it is had, what it offers, and when it last ran."""
    config = config_files.load(run.choice.folder, run.choice.experiment)
    if options.record:
        path = config.folder / RAN
        rows = merged(of_file(path), of_results(HERE))
        with replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows.values())
    found = listed(config, HERE)
    if say_json(options, lambda: [asdict(each) for each in found]):
        return
    for each in found:
        print(f"{each.system}: {each.engine} {each.version}, {' or '.join(each.had) or 'runs nowhere here'}")
        print(f"    filters: {', '.join(each.filters) or 'none'}")
        print(f"    indexes: {'; '.join(each.indexes) or 'none to choose'}")
        freeze = f"up to {each.freeze_s:g} s" if isinstance(each.freeze_s, float) else f"no: {each.freeze_s}"
        more = {
            "cluster": _yes(each.cluster),
            "sdk": _yes(each.sdk),
            "stream": _yes(each.stream),
            "upgrade from": ", ".join(each.upgrade) or "–",
            "freeze": freeze,
        }
        print("    " + "; ".join(f"{name}: {said}" for name, said in more.items()))
        print(f"    last run: {each.ran}")


def _yes(said: bool) -> str:
    return "yes" if said else "no"


def engine_check(run: Run, options: argparse.Namespace) -> None:
    """Check an engine of your own: each gate must hold on it, and each of ten lies must be caught."""
    from anncestry import engine_check as checking

    system: dict[str, Any] = {"version": options.version}
    for key, text in (("artifact", options.artifact), ("settings", options.settings)):
        try:
            value = yaml.safe_load(text) if text else None
        except yaml.YAMLError as error:
            raise ConfigError(f"--{key}: {text!r} is not YAML ({' '.join(str(error).split())})") from None
        if value is not None:
            system[key] = value
    sys.path.insert(0, str(Path.cwd()))  # where a module is that nobody has installed yet
    options.folder.mkdir(parents=True, exist_ok=True)
    found = checking.check(options.engine, system, options.metric, options.folder, options.cores, options.lies)
    if not say_json(options, lambda: [asdict(each) for each in found]):
        rows = [["✓" if each.passed else "✗", each.name, each.wrong, each.by] for each in found]
        print(tabulate(rows, headers=["", "system", "what is wrong", "caught by"]))
    if not all(each.passed for each in found):
        raise SystemExit(3)


def add(commands: Any) -> None:
    parser = command(commands, systems, has_json=True)
    parser.add_argument(
        "--record", action="store_true", help=f"first add what ran, by results/, to {RAN} of the config"
    )
    parser = command(commands, engine_check, "engine-check", has_json=True)
    parser.add_argument("engine", metavar="MODULE", help="my_package.my_engine, or the name of an engine")
    parser.add_argument("--version", required=True, help="of the system")
    artifact = "as in systems.yaml (default: {kind: none})"
    parser.add_argument("--artifact", default="{kind: none}", metavar="YAML", help=artifact)
    parser.add_argument("--settings", metavar="YAML", help="as in systems.yaml")
    parser.add_argument("--metric", choices=("cosine", "l2"), default="cosine", help="of the vectors (default: cosine)")
    folder = "where it works (default: engine-check)"
    parser.add_argument("--folder", type=Path, default=Path("engine-check"), help=folder)
    lies = f"only these (default: all): {', '.join(LIES)}"
    parser.add_argument("--lies", nargs="*", choices=LIES, default=LIES, metavar="NAME", help=lies)
    parser.add_argument("--cores", type=int, default=8, help="as for snakemake (default: 8)")
