"""`anncestry engine-check`: a new engine, as it is and with lies."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from tabulate import tabulate  # type: ignore[import-untyped]

from anncestry.commands import Run, command, say_json
from anncestry.errors import ConfigError

LIES = (
    *("fewer-rows", "no-filter", "other-rows", "other-distances", "short", "repeats"),
    *("other-version", "other-settings", "index-incomplete", "a-cluster"),
)


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
    parser = command(commands, engine_check, "engine-check", has_json=True)
    parser.add_argument("engine", metavar="MODULE", help="my_package.my_engine, or the name of an engine")
    parser.add_argument("--version", required=True, help="of the system")
    parser.add_argument("--artifact", default="{kind: none}", metavar="YAML", help="as in systems.yaml ({kind: none})")
    parser.add_argument("--settings", metavar="YAML", help="as in systems.yaml")
    parser.add_argument("--metric", choices=("cosine", "l2"), default="cosine", help="of the vectors (cosine)")
    parser.add_argument("--folder", type=Path, default=Path("engine-check"), help="where it works (engine-check)")
    parser.add_argument(
        "--lies", nargs="*", choices=LIES, default=LIES, metavar="NAME", help=f"only these: {', '.join(LIES)} (all)"
    )
    parser.add_argument("--cores", type=int, default=8, help="as of snakemake (8)")
