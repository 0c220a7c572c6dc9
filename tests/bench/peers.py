"""VectorDBBench's own runners beside this program's driver: the same server, rows, index, queries and clients, in turn.

python tests/bench/peers.py [EXPERIMENT …]      (default: all of EXPERIMENTS)

They ask what the experiment asks as bytes at a fixed effort, of its dataset, where VectorDBBench has a client of the
system (RUNNERS). Its packages are an environment of their own in the user's cache. It searches by its own client and
its own runners, and what is kept of it, in config/published/peers.csv, is what it counts itself: it keeps no samples,
so that nobody can verify it. The report shows it beside ours (Table D3-V).
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from anncestry import workflow  # noqa: E402
from anncestry.cells.matrix import Cell, Matrix  # noqa: E402
from anncestry.cells.stage import STAGES  # noqa: E402
from anncestry.drive import build, protocol  # noqa: E402
from anncestry.drive.driver import Driver  # noqa: E402
from anncestry.engines import get  # noqa: E402
from anncestry.engines.base import Server  # noqa: E402
from anncestry.engines.milvus.serve import MilvusServer  # noqa: E402
from anncestry.engines.mysql import dialect_of  # noqa: E402
from anncestry.engines.mysql.serve import MySQLServer  # noqa: E402
from anncestry.home import PUBLISHED  # noqa: E402
from anncestry.measure.recall import Truth  # noqa: E402
from anncestry.measure.vectors import choose, open_vectors  # noqa: E402
from anncestry.progress import Progress  # noqa: E402
from anncestry.provenance import platform  # noqa: E402
from anncestry.report.published import PEERS, SUMS, Published  # noqa: E402
from tests.bench import clients as bench  # noqa: E402
from tests.servers import artifact  # noqa: E402

EXPERIMENTS = ("clients-laptop", "polardb-vectordbbench-laptop")
RUNNERS = {"milvus": "vectordbbench", "mariadb": "vectordbbench-mariadb"}
"""Database → environment (envs/) with VectorDBBench's client of it, and its module beside this one."""
FOLDER = ROOT / "scratch" / "peers"
ROUNDS = int(os.environ.get("ROUNDS", "3"))
SECONDS = 30
"""VectorDBBench's default. Its rate counts the time in which its clients connect, which is most of a few seconds."""
GOALS = {"milvus": 1.5}
"""Database → the driver's rate over VectorDBBench's at the most clients, where the client is what both wait for."""
PATIENCE_S = 40
COUNTED = {"qps": 0, "p99_ms": 2, "mean_ms": 2, "recall_by_id": 4}
"""What VectorDBBench tells, and the digits after the point that are kept of it."""

Told = dict[str, Any]
"""What one run of VectorDBBench told: `version`, what was `adapted` in its client, and of COUNTED what it counts."""
Asked = dict[Cell, Mapping[str, Any]]
"""Cells of one load, and their workloads."""


def search(python: Path, asked: Sequence[object], clients: int, folder: Path) -> Told:
    """One run of VectorDBBench: what it reports.

    Its start is a race: a worker that waits only after the others were told to go waits for ever. Such a run is ended
    and tried again.
    """
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    environment |= {"LOG_LEVEL": "ERROR", "LOG_FILE": str(folder / "vectordbbench.log")}
    for _ in range(3):
        with subprocess.Popen(
            [python, Path(__file__).with_name("vectordbbench_runner.py"), *map(str, asked)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=folder,
            start_new_session=True,
        ) as process:  # fmt: skip
            try:
                out, err = process.communicate(timeout=PATIENCE_S + SECONDS + 5 * clients)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                print("VectorDBBench hung at its start; once more", file=sys.stderr)
                continue
            if process.returncode != 0:
                sys.exit(f"VectorDBBench failed: {err[-2000:]}")
            found: Told = json.loads(out.splitlines()[-1])
            return found
    sys.exit("VectorDBBench hung three times")


def database(system: Mapping[str, Any]) -> str:
    """What a system is, by its record: of the MySQL protocol its dialect, else its engine."""
    return str((system.get("settings") or {}).get("dialect", system["engine"]))


def asked_of(matrix: Matrix) -> list[Asked]:
    """What both can ask, load by load: as bytes, at a fixed effort, of a database in RUNNERS."""
    found: dict[str, Asked] = {}
    for cell in matrix.cells:
        work, system = matrix.spec(cell.query, "query")["workload"], matrix.spec(cell.load, "load")["system"]
        if "client" not in work and "ef_search" in work and database(system) in RUNNERS:
            found.setdefault(cell.load, {})[cell] = work
    return list(found.values())


def made(matrix: Matrix, cell: Cell) -> tuple[Path, Path]:
    """The records of the cell's vectors and of its truth, made in FOLDER where they are missing."""
    paths = [STAGES[stage].path(cell) for stage in ("normalize", "truth")]
    experiment = matrix.config.experiment
    FOLDER.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", "--snakefile", ROOT / "Snakefile", "--directory", FOLDER, "--cores", "2",
         *paths, "--quiet", "all", "--config", f"experiment={experiment}", f"config_dir={ROOT / 'config'}"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}, check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"the data of {experiment} can't be had: see above")
    vectors, truth = (FOLDER / path for path in paths)
    return vectors, truth


def access(server: Server) -> tuple[dict[str, str], str]:
    """How VectorDBBench's client gets at what is loaded, and its name of the distance."""
    if isinstance(server, MySQLServer):  # by the account that may set the server's variables, as it does
        assert server.credentials is not None
        login = {"user": server.user, "password_env": server.credentials["env"], "database": server.database}
        return {"target": server.endpoint, "table": server.collection, **login}, server.table().distance.upper()
    assert isinstance(server, MilvusServer)
    return {"target": server.endpoint, "table": server.collection}, server.metric_type


def measured(matrix: Matrix, asked: Asked) -> list[dict[str, str]]:
    """Load the system that these cells ask, and ask it in turn: a line for each cell."""
    first, work = next(iter(asked.items()))
    k, ef = work["k"], work["ef_search"]
    assert all((each["k"], each["ef_search"]) == (k, ef) for each in asked.values())
    load, seed = matrix.spec(first.load, "load"), matrix.spec(first.query, "query")["seed"]
    of, engine = database(load["system"]), get(load["system"]["engine"])
    python = build.interpreter(RUNNERS[of])
    vectors_record, truth_record = made(matrix, first)
    vectors = open_vectors(vectors_record, first.vectors)
    chosen = choose(vectors, work["queries"], work["warmup"], seed).measured
    queries = np.asarray(vectors.queries[chosen])
    theirs: dict[Cell, list[Told]] = {cell: [] for cell in asked}
    ours: dict[Cell, list[bench.Figure]] = {cell: [] for cell in asked}
    loads: list[float] = []
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        folder = Path(temporary)
        np.save(folder / "queries.npy", queries)
        np.save(folder / "truth.npy", Truth.read(truth_record, vectors_record).of(chosen)[0][:, :k])
        program = artifact(first.built_as, folder / "artifact")
        stack.enter_context(platform.alone())
        server = engine.start(program, folder / "data", load["system"], load["topology"])
        stack.callback(server.stop)
        driver = stack.enter_context(Driver())
        with Progress(f"{first.system}: load", len(vectors.base), "row") as progress:
            engine.load(server, vectors, load["index"], load["load"], progress)
        engine.apply(server, ef)
        protocol.write_requests(folder, engine.encode(server, queries, k, ef, None))
        way_in, metric = access(server)
        with Progress("VectorDBBench and the driver", ROUNDS * len(asked), "pair") as progress:
            for _ in range(ROUNDS):
                for cell, work in asked.items():
                    seconds = SECONDS if "duration_s" in work else 0
                    words = (of, json.dumps(way_in), folder / "queries.npy", folder / "truth.npy", metric, k, ef,
                             work["clients"], seconds)  # fmt: skip
                    theirs[cell].append(search(python, words, work["clients"], folder))
                    lasts_s = work.get("duration_s", bench.SECONDS)
                    job = (driver, folder / "job", engine.transport(server), len(queries), work["clients"], lasts_s)
                    ours[cell].append(bench.driven(*job))
                    loads.append(os.getloadavg()[0])
                    progress.add(1)
    return [line(load, asked[cell], told, ours[cell], loads) for cell, told in theirs.items()]


def main() -> None:
    for experiment in sys.argv[1:] or EXPERIMENTS:
        matrix = workflow.expand(workflow.Choice(ROOT / "config", experiment))
        for asked in asked_of(matrix):
            lines = measured(matrix, asked)
            keep(lines)
            show(lines)
    print("Next: python -m tests.report.test_paper, as the fixed report shows these figures, too")


def line(
    load: Mapping[str, Any],
    work: Mapping[str, Any],
    told: Sequence[Told],
    ours: Sequence[bench.Figure],
    loads: Sequence[float],
) -> dict[str, str]:
    """A line of the kept file: what was asked, of what, by what, where and when; medians of what it told, of the
    driver's rate in turn with it, and of the machine's `loads`."""
    facts, index, system = platform.facts(), load["index"], load["system"]
    of = database(system)
    builds_by_it = system["engine"] != "mysql" or dialect_of(system).has_ef_construction
    medians = {
        name: f"{statistics.median(run[name] for run in told):.{digits}f}" if name in told[0] else ""
        for name, digits in COUNTED.items()
    }
    return {
        "tool": "VectorDBBench",
        "version": told[0]["version"],
        "environment_sha256": build.identity(RUNNERS[of])["sha256"],
        "adapted": told[0]["adapted"],
        "date": datetime.now(UTC).date().isoformat(),
        "commit": subprocess.check_output(["git", "rev-parse", "--short=8", "HEAD"], cwd=ROOT, text=True).strip(),
        **{name: str(facts[name]) for name in platform.IDENTITY},
        "dataset": load["dataset"]["name"],
        "engine": of,
        "system_version": system["version"],
        "topology": load["topology"]["name"],
        "index": index["type"],
        "M": str(index["M"]),
        "ef_construction": str(index["ef_construction"]) if builds_by_it else "",
        "ef": str(work["ef_search"]),
        "k": str(work["k"]),
        "clients": str(work["clients"]),
        "duration_s": str(SECONDS) if "duration_s" in work else "",
        "rounds": str(len(told)),
        **medians,
        "driver_qps": f"{statistics.median(figure.qps for figure in ours):.0f}",
        "load_average": f"{statistics.median(loads):.1f}",
    }


def keep(lines: Sequence[Mapping[str, str]]) -> None:
    """Write the lines in the place of those of the same system and dataset, and the digests of all that others
    published."""
    same = ("engine", "system_version", "topology", "dataset")
    of = [lines[0][name] for name in same]
    kept = [told for told in Published().peers if [told[name] for name in same] != of]
    with open(PUBLISHED / PEERS, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, lines[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted([*kept, *lines], key=lambda told: list(RUNNERS).index(told["engine"])))
    digests = (
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(PUBLISHED.glob("*.csv"))
    )
    (PUBLISHED / SUMS).write_text("".join(digests))


def show(lines: Sequence[Mapping[str, str]]) -> None:
    """The figures beside the driver's rates, in turn on the same server, and the goal, if there is one."""
    of = lines[0]
    goal = GOALS.get(of["engine"])
    print(f"\n{of['engine']} {of['system_version']}, {of['dataset']}, k={of['k']}, ef={of['ef']}")
    print(f"medians of {ROUNDS} rounds, in turn; load average {of['load_average']}")
    print(
        f"{'clients':>8}{'VectorDBBench QPS':>20}{'p99 ms':>9}{'mean ms':>9}{'recall':>8}{'driver QPS':>12}{'ratio':>7}"
    )
    for told in lines:
        counted = f"{told['qps']:>20}{told['p99_ms']:>9}{told['mean_ms']:>9}{told['recall_by_id']:>8}"
        ratio = f"{float(told['driver_qps']) / float(told['qps']):7.2f}" if told["qps"] else f"{'':7}"
        met = f"   goal ≥ {goal}: {'met' if float(ratio) >= goal else 'MISSED'}" if goal and told is lines[-1] else ""
        print(f"{told['clients']:>8}{counted}{told['driver_qps']:>12}{ratio}{met}")


if __name__ == "__main__":
    main()
