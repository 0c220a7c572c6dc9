"""VectorDBBench's own runners beside this program's driver: the same Milvus, collection, queries and clients, in turn.

python tests/bench/peers.py

They ask what the experiment clients-laptop asks as bytes, of its dataset. VectorDBBench (envs/vectordbbench.txt, an
environment of its own in the user's cache) searches by its own client and its own runners, and what is kept of it, in
config/published/peers.csv, is what it counts itself: it keeps no samples, so that nobody can verify it. The report
shows it beside ours (Table D3-V).
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
from anncestry.home import PUBLISHED  # noqa: E402
from anncestry.measure.recall import Truth  # noqa: E402
from anncestry.measure.vectors import choose, open_vectors  # noqa: E402
from anncestry.progress import Progress  # noqa: E402
from anncestry.provenance import platform  # noqa: E402
from anncestry.report.published import PEERS, SUMS  # noqa: E402
from tests.bench import clients as bench  # noqa: E402
from tests.servers import SYSTEMS, artifact, running  # noqa: E402

EXPERIMENT = "clients-laptop"
FOLDER = ROOT / "scratch" / "peers"
ROUNDS = int(os.environ.get("ROUNDS", "3"))
SECONDS = 30
"""VectorDBBench's default. Its rate counts the time in which its clients connect, which is most of a few seconds."""
GOAL = 1.5
PATIENCE_S = 40
COUNTED = {"qps": 0, "p99_ms": 2, "mean_ms": 2, "recall_by_id": 4}
"""What VectorDBBench tells, and the digits after the point that are kept of it."""

Told = dict[str, Any]
"""What one run of VectorDBBench told: `version`, and of COUNTED what it counts."""


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


def made(matrix: Matrix, cell: Cell) -> tuple[Path, Path]:
    """The records of the cell's vectors and of its truth, made in FOLDER where they are missing."""
    paths = [STAGES[stage].path(cell) for stage in ("normalize", "truth")]
    FOLDER.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", "--snakefile", ROOT / "Snakefile", "--directory", FOLDER, "--cores", "2",
         *paths, "--quiet", "all", "--config", f"experiment={EXPERIMENT}", f"config_dir={ROOT / 'config'}"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}, check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"the data of {EXPERIMENT} can't be had: see above")
    vectors, truth = (FOLDER / path for path in paths)
    return vectors, truth


def main() -> None:
    python, matrix = build.interpreter("vectordbbench"), workflow.expand(workflow.Choice(ROOT / "config", EXPERIMENT))
    asked = {cell: matrix.spec(cell.query, "query")["workload"] for cell in matrix.cells}
    asked = {cell: work for cell, work in asked.items() if "client" not in work}  # as bytes
    first = next(iter(asked))
    load, seed = matrix.spec(first.load, "load"), matrix.spec(first.query, "query")["seed"]
    vectors_record, truth_record = made(matrix, first)
    vectors = open_vectors(vectors_record, first.vectors)
    work = asked[first]
    measured = choose(vectors, work["queries"], work["warmup"], seed).measured
    queries = np.asarray(vectors.queries[measured])
    theirs: dict[Cell, list[Told]] = {cell: [] for cell in asked}
    ours: dict[Cell, list[bench.Figure]] = {cell: [] for cell in asked}
    loads: list[float] = []
    engine, entry = get(load["system"]["engine"]), SYSTEMS[first.system]
    assert load["system"].items() >= {name: entry[name] for name in ("engine", "version", "settings")}.items()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        np.save(folder / "queries.npy", queries)
        np.save(folder / "truth.npy", Truth.read(truth_record, vectors_record).of(measured)[0][:, : work["k"]])
        with (
            running(first.system, artifact(first.system, folder / "artifact"), folder / "data") as server,
            Driver() as driver,
        ):
            with Progress(f"{first.system}: load", len(vectors.base), "row") as progress:
                engine.load(server, vectors, load["index"], load["load"], progress)
            protocol.write_requests(folder, engine.encode(server, queries, work["k"], work["ef_search"], None))
            with Progress("VectorDBBench and the driver", ROUNDS * len(asked), "pair") as progress:
                for _ in range(ROUNDS):
                    for cell, work in asked.items():
                        seconds = SECONDS if "duration_s" in work else 0
                        words = (server.endpoint, folder / "queries.npy", folder / "truth.npy", server.metric_type,
                                 work["k"], work["ef_search"], work["clients"], seconds)  # fmt: skip
                        theirs[cell].append(search(python, words, work["clients"], folder))
                        lasts_s = work.get("duration_s", bench.SECONDS)
                        job = (driver, folder / "job", engine.transport(server), False, work["clients"], lasts_s)
                        ours[cell].append(bench.driven(*job))
                        loads.append(os.getloadavg()[0])
                        progress.add(1)
    lines = [line(load, asked[cell], told, ours[cell], loads) for cell, told in theirs.items()]
    keep(lines)
    print("Next: python -m tests.report.test_paper, as the fixed report shows these figures, too")
    show(lines)


def line(
    load: Mapping[str, Any],
    work: Mapping[str, Any],
    told: Sequence[Told],
    ours: Sequence[bench.Figure],
    loads: Sequence[float],
) -> dict[str, str]:
    """A line of the kept file: what was asked, of what, by what, where and when; medians of what it told, of the
    driver's rate in turn with it, and of the machine's `loads`."""
    facts, index = platform.facts(), load["index"]
    medians = {
        name: f"{statistics.median(run[name] for run in told):.{digits}f}" if name in told[0] else ""
        for name, digits in COUNTED.items()
    }
    return {
        "tool": "VectorDBBench",
        "version": told[0]["version"],
        "environment_sha256": build.identity("vectordbbench")["sha256"],
        "date": datetime.now(UTC).date().isoformat(),
        "commit": subprocess.check_output(["git", "rev-parse", "--short=8", "HEAD"], cwd=ROOT, text=True).strip(),
        **{name: str(facts[name]) for name in platform.IDENTITY},
        "dataset": load["dataset"]["name"],
        "engine": load["system"]["engine"],
        "system_version": load["system"]["version"],
        "topology": load["topology"]["name"],
        "index": index["type"],
        "M": str(index["M"]),
        "ef_construction": str(index["ef_construction"]),
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
    """Write the lines, and the digests of all that others published."""
    with open(PUBLISHED / PEERS, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, lines[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    digests = (
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(PUBLISHED.glob("*.csv"))
    )
    (PUBLISHED / SUMS).write_text("".join(digests))


def show(lines: Sequence[Mapping[str, str]]) -> None:
    """The figures beside the driver's rates, in turn on the same server, and the goal."""
    of = lines[0]
    print(f"\n{of['engine']} {of['system_version']}, {of['dataset']}, k={of['k']}, ef={of['ef']}")
    print(f"medians of {ROUNDS} rounds, in turn; load average {of['load_average']}")
    print(
        f"{'clients':>8}{'VectorDBBench QPS':>20}{'p99 ms':>9}{'mean ms':>9}{'recall':>8}{'driver QPS':>12}{'ratio':>7}"
    )
    for told in lines:
        counted = f"{told['qps']:>20}{told['p99_ms']:>9}{told['mean_ms']:>9}{told['recall_by_id']:>8}"
        ratio = f"{float(told['driver_qps']) / float(told['qps']):7.2f}" if told["qps"] else f"{'':7}"
        met = f"   goal ≥ {GOAL}: {'met' if float(ratio) >= GOAL else 'MISSED'}" if told is lines[-1] else ""
        print(f"{told['clients']:>8}{counted}{told['driver_qps']:>12}{ratio}{met}")


if __name__ == "__main__":
    main()
