"""`anncestry bench`: one server, measured in minutes."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from anncestry import engines, workflow
from anncestry.cells.config import read_yaml
from anncestry.commands import Run, command, own, results, say_json
from anncestry.errors import UserError


def bench(run: Run, options: argparse.Namespace) -> None:
    """Measure one server in minutes: as anncestry starts it, as you built it, by your command, or where it runs."""
    from anncestry import bench as benching
    from anncestry import guard as guarding

    given = [name for name in ("artifact", "endpoint", "command_line") if getattr(options, name) is not None]
    for name in given:
        # What is left of --artifact "$BUILD" where nothing was built: it must not measure the released server.
        if not all(map(str.strip, [*getattr(options, name)] if name == "endpoint" else [getattr(options, name)])):
            raise UserError(f"--{name.partition('_')[0]}: is empty: is a variable of your shell not set?")
    if len(given) > 1:
        raise UserError("give one of --artifact, --endpoint and --command: each says where the server comes from")
    folder: Path = options.folder.resolve()
    systems = read_yaml(run.choice.folder / "systems.yaml")
    system = options.system or benching.newest(systems, options.engine)
    guarding.copied(run.choice.folder, options.folder)
    dataset = _dataset(options, folder)
    with _endpoints(options, systems, system, folder) as endpoints:
        asked = benching.Asked(
            system,
            dataset,
            options.k,
            options.clients,
            options.target_recall,
            None if options.artifact is None else Path(options.artifact),
            endpoints,
            options.credentials,
        )
        os.environ.update({benching.variable(interface): address for interface, address in endpoints.items()})
        choice = benching.prepare(asked, folder)
        matrix = workflow.expand(choice)
        is_drawn = (folder / matrix.report_path).exists()
        guarding.measure(choice, folder, options.cores, says_json=options.json)
    with chdir(folder):
        page = results.current_page(matrix).resolve()  # what was measured before is not what was drawn last
        if options.json:
            say_json(options, lambda: {**results.highlights_of(matrix), "page": str(page)})
        elif is_drawn:  # else the workflow has printed it
            results.print_table(matrix)
        invalid = [cell for cell in matrix.cells if not _is_valid(cell.query_path) or not _is_valid(cell.recall_path)]
    if not options.json:
        print(f"page: {page}")
    if invalid:
        raise SystemExit(3)


def _is_valid(path: str) -> bool:
    from anncestry.provenance.records import read_json

    return bool(read_json(Path(path))["valid"])


def _dataset(options: argparse.Namespace, folder: Path) -> str:
    """The name of a dataset of the config; own vectors become one first."""
    path = Path(options.dataset)
    if path.suffix.lower() not in own.FORMATS:
        for option in ("queries", "metric", "column"):
            if getattr(options, option) is not None:
                raise UserError(f"--{option}: is for own vectors, and --dataset {path} is no file of vectors")
        return str(options.dataset)
    if options.metric is None:
        raise UserError(f"--dataset {path}: own vectors need --metric cosine or --metric l2")
    name = "own-" + re.sub("[^a-z0-9.]+", "-", path.stem.lower())
    shutil.rmtree(folder / "own" / name, ignore_errors=True)
    given = argparse.Namespace(
        name=name,
        base=[str(path.resolve())],
        queries=[str(options.queries.resolve())] if options.queries else None,
        metric=options.metric,
        column=options.column,
        query_column=None,
        hold_out=None,
        seed=0,
        zero_vectors="refuse",
        licence="not stated",
    )
    with chdir(folder), redirect_stdout(sys.stderr):
        into = Run(None)
        into.choice = workflow.Choice(folder / "config", into.choice.experiment)
        own.dataset(into, given)
    return name


@contextmanager
def _endpoints(
    options: argparse.Namespace, systems: dict[str, Any], system: str, folder: Path
) -> Iterator[dict[str, str]]:
    """Interface → address of a server that runs already, or that the user's command starts; empty where we start it."""
    from anncestry import bench as benching

    if not options.endpoint and not options.command_line:
        if options.credentials is not None:
            raise UserError("--credentials: is for a server that runs already, or that --command starts")
        yield {}
        return
    if system not in systems:
        raise UserError(f"--system: no system {system!r} in systems.yaml")
    entry = {**systems.get(systems[system].get("of", ""), {}), **systems[system]}
    offers = engines.offers_of(entry["engine"])
    interfaces, more = offers.endpoints, offers.more_endpoints
    if not interfaces:
        raise UserError(f"{system}: its engine {entry['engine']} can't measure a server that somebody else started")
    if options.command_line:
        used = [name for name in more if f"{{port_{name}}}" in options.command_line]
        with benching.started(options.command_line, [*interfaces, *used], folder) as found:
            yield found
        return
    pairs = [text.partition("=")[::2] for text in options.endpoint]
    given = {interface if address else interfaces[0]: address or interface for interface, address in pairs}
    if wrong := set(given) - {*interfaces, *more}:
        known = ", ".join([*interfaces, *more])
        raise UserError(f"--endpoint {min(wrong)}: no interface of {entry['engine']}; it has {known}")
    yield given


def add(commands: Any) -> None:
    parser = command(commands, bench, has_json=True)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--system", metavar="NAME", help="a system of systems.yaml")
    what.add_argument("--engine", metavar="NAME", help="an engine: its newest system")
    parser.add_argument("--artifact", metavar="PATH", help="what you built of it: a file or folder")
    parser.add_argument(
        "--command", dest="command_line", metavar="COMMAND", help="starts it: './server -p {port} -D {data}'"
    )
    parser.add_argument("--endpoint", action="append", metavar="[INTERFACE=]HOST:PORT", help="where it runs already")
    parser.add_argument(
        "--credentials", metavar="VARIABLE", help="variable with the password (SQL), USER:PASSWORD (Milvus) or API key"
    )
    parser.add_argument(
        "--dataset", default="fashion-mnist-784-euclidean", metavar="NAME|FILE", help="of the config, or own vectors"
    )
    parser.add_argument("--queries", type=Path, metavar="FILE", help="queries beside own vectors (default: held out)")
    parser.add_argument("--metric", choices=("cosine", "l2"), help="of own vectors")
    parser.add_argument("--column", help="column (Parquet), key (JSON lines) or member (HDF5) of own vectors")
    parser.add_argument("--k", type=int, default=10, help="neighbours (default: 10)")
    clients = "clients of each workload (default: 1 8)"
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8], metavar="N", help=clients)
    parser.add_argument("--target-recall", type=float, metavar="R", help="search with the effort that reaches it")
    folder = "where it works; kept for the next call (default: bench)"
    parser.add_argument("--folder", type=Path, default=Path("bench"), help=folder)
    parser.add_argument("--cores", type=int, default=8, help="as for snakemake (default: 8)")
