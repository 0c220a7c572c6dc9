"""VectorDBBench beside this program's driver: the same Milvus, collection and queries, in turn, at 1, 4 and 16 clients.

python tests/bench/peers.py

VectorDBBench (envs/vectordbbench.txt, an environment of its own in the user's cache) searches by its own client and its
own concurrent runner, and its QPS is the one that it reports.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from anncestry.drive import build, protocol  # noqa: E402
from anncestry.drive.driver import Driver  # noqa: E402
from anncestry.engines import get  # noqa: E402
from anncestry.progress import Progress  # noqa: E402
from tests.bench import clients as bench  # noqa: E402
from tests.servers import INDEX, SYSTEMS, artifact, running, small_vectors  # noqa: E402

SYSTEM = "milvus-2.3.5"
CLIENTS = tuple(int(n) for n in os.environ.get("CLIENTS", "1 4 16").split())
ROUNDS = int(os.environ.get("ROUNDS", "3"))
SECONDS = 5
GOAL = 1.5
PATIENCE_S = 40


def search(python: Path, asked: list[str], folder: Path) -> dict[str, float]:
    """One run of VectorDBBench: what it reports.

    Its start is a race: a worker that waits only after the others were told to go waits for ever. Such a run is ended
    and tried again.
    """
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    environment |= {"LOG_LEVEL": "ERROR", "LOG_FILE": str(folder / "vectordbbench.log")}
    for _ in range(3):
        with subprocess.Popen(
            [python, Path(__file__).with_name("vectordbbench_runner.py"), *asked],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=folder,
            start_new_session=True,
        ) as process:  # fmt: skip
            try:
                out, err = process.communicate(timeout=PATIENCE_S + 5 * int(asked[-2]))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                print("VectorDBBench hung at its start; once more", file=sys.stderr)
                continue
            if process.returncode != 0:
                sys.exit(f"VectorDBBench failed: {err[-2000:]}")
            found: dict[str, float] = json.loads(out.splitlines()[-1])
            return found
    sys.exit("VectorDBBench hung three times")


def main() -> None:
    python = build.interpreter("vectordbbench")
    engine = get(SYSTEMS[SYSTEM]["engine"])
    vectors = small_vectors("l2", bench.ROWS, bench.DIMENSIONS)
    queries = np.random.default_rng(8).normal(size=(bench.QUERIES, bench.DIMENSIONS)).astype(np.float32)
    theirs: dict[int, list[dict[str, float]]] = {}
    ours: dict[int, list[bench.Figure]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        np.save(folder / "queries.npy", queries)
        with running(SYSTEM, artifact(SYSTEM, folder / "artifact"), folder / "data") as server, Driver() as driver:
            with Progress(f"{SYSTEM}: load", bench.ROWS, "row") as progress:
                engine.load(server, vectors, INDEX, {"batch_rows": 500}, progress)
            protocol.write_requests(folder, engine.encode(server, queries, bench.K, bench.EF, None))
            with Progress("VectorDBBench and the driver", ROUNDS * len(CLIENTS), "pair") as progress:
                for number in range(ROUNDS):
                    for clients in CLIENTS:
                        asked = [server.endpoint, folder / "queries.npy", bench.K, bench.EF, clients, SECONDS]
                        theirs.setdefault(clients, []).append(search(python, [str(word) for word in asked], folder))
                        figure = bench.driven(
                            driver, folder / "job", engine.transport(server), False, clients, seconds=SECONDS
                        )
                        ours.setdefault(clients, []).append(figure)
                        print(
                            f"round {number + 1}, {clients} clients: VectorDBBench {theirs[clients][-1]['qps']:.0f}/s, "
                            f"the driver {figure.qps:.0f}/s",
                            flush=True,
                        )
                        progress.add(1)
    print(f"\n{SYSTEM}: {bench.ROWS:,} × {bench.DIMENSIONS}, k={bench.K}, ef={bench.EF}; medians of {ROUNDS} rounds")
    print(f"{'clients':>8}{'VectorDBBench QPS':>20}{'mean ms':>9}{'driver QPS':>12}{'mean ms':>9}{'ratio':>7}")
    for clients in CLIENTS:
        their_qps = statistics.median(run["qps"] for run in theirs[clients])
        their_ms = statistics.median(run["mean_ms"] for run in theirs[clients])
        our_qps = statistics.median(figure.qps for figure in ours[clients])
        our_ms = statistics.median(figure.mean_ms for figure in ours[clients])
        ratio = our_qps / their_qps
        verdict = (f"   goal ≥ {GOAL}: " + ("met" if ratio >= GOAL else "MISSED")) if clients == CLIENTS[-1] else ""
        print(f"{clients:8}{their_qps:20.0f}{their_ms:9.2f}{our_qps:12.0f}{our_ms:9.2f}{ratio:7.2f}{verdict}")


if __name__ == "__main__":
    main()
