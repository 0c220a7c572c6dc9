"""What stages cost as a dataset grows, under a hard limit of 1 GiB: 0.5, 1, 2 and 5 million × 96, made on the fly.

python tests/bench/scale.py [ROWS …]      (default: 500000 1000000 2000000 5000000)
python tests/bench/scale.py faiss [ROWS]  the time of truth over that of faiss' own flat search (default: 1000000)

`growth` is by how much CPU grew for each time that the rows did: 1 is linear, 2 would be as their square. Each stage is
a process of its own, whose start (about half a second) is in its time: small sizes look dearer than they are.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tests.scale import DEPTH, DIM, QUERIES, Bench  # noqa: E402

SIZES = (500_000, 1_000_000, 2_000_000, 5_000_000)
LIMIT_MIB = 1024
ANSWERS_PER_ROW = 0.2
LINEAR = 1.15
"""Growth up to which a cost is called linear: sorting and caches are in it."""
ROUNDS = 5
FAISS_GOAL = 1.3


def stages(sizes: list[int]) -> int:
    """Measure each size; 1 if a stage grows faster than its rows."""
    print(f"{'rows':>9} {'stage':<12} {'wall s':>8} {'CPU s':>8} {'heap MiB':>9}  growth (limit {LIMIT_MIB} MiB)")
    before: dict[str, tuple[int, float]] = {}
    faster = 0
    for rows in sizes:
        with tempfile.TemporaryDirectory(prefix="anncestry-bench-") as folder:
            bench = Bench.make(Path(folder), rows, LIMIT_MIB)
            costs = bench.prepare()
            costs["load (rows)"] = bench.run("load-rows", bench.cell.vectors_path, bench.cell.vectors)
            costs["recall"] = bench.score(bench.answers(int(rows * ANSWERS_PER_ROW)))
            for stage, cost in costs.items():
                growth = ""
                if stage in before:
                    was, cpu_s = before[stage]
                    exponent = math.log(cost.cpu_s / cpu_s) / math.log(rows / was)
                    faster += exponent > LINEAR
                    growth = f"{exponent:.2f}, {'linear' if exponent <= LINEAR else 'faster than the rows'}"
                before[stage] = rows, cost.cpu_s
                print(
                    f"{rows:>9} {stage:<12} {cost.wall_s:>8.1f} {cost.cpu_s:>8.1f} {cost.heap_mib:>9}  {growth}",
                    flush=True,
                )
    return int(bool(faster))


def faiss_ratio(rows: int) -> int:
    """Truth from a file, and faiss' flat search of an array in memory, in turn; 1 if the goal is missed."""
    import faiss

    from anncestry.datasets import truth

    random = np.random.default_rng(1)
    with tempfile.TemporaryDirectory(prefix="anncestry-bench-") as folder:
        path = Path(folder) / "base.npy"
        base = random.standard_normal((rows, DIM), dtype=np.float32)
        np.save(path, base)
        queries = random.standard_normal((QUERIES, DIM), dtype=np.float32)
        index = faiss.IndexFlatL2(DIM)
        index.add(base)  # not in its time
        every = np.ones(rows, dtype=np.bool_)
        faiss.omp_set_num_threads(len(os.sched_getaffinity(0)))
        times: dict[str, list[tuple[float, float]]] = {"faiss": [], "truth": []}
        for _ in range(ROUNDS):
            for who, spent in times.items():
                wall_s, cpu_s = time.perf_counter(), time.process_time()
                if who == "faiss":
                    index.search(queries, DEPTH)
                else:
                    truth.nearest(path, queries, "l2", DEPTH, every)
                spent.append((time.perf_counter() - wall_s, time.process_time() - cpu_s))
    wall = statistics.median(ours[0] / theirs[0] for ours, theirs in zip(times["truth"], times["faiss"], strict=True))
    cpu = statistics.median(ours[1] / theirs[1] for ours, theirs in zip(times["truth"], times["faiss"], strict=True))
    medians = {who: statistics.median(each[0] for each in spent) for who, spent in times.items()}
    met = "met" if wall <= FAISS_GOAL else "missed"
    print(
        f"{rows} × {DIM}, {QUERIES} queries, depth {DEPTH}, {ROUNDS} rounds in turn: "
        f"faiss {medians['faiss']:.2f} s, truth {medians['truth']:.2f} s; "
        f"median ratio {wall:.2f} of time, {cpu:.2f} of CPU (goal {FAISS_GOAL}: {met})"
    )
    return int(wall > FAISS_GOAL)


def main() -> int:
    """Both, or what was asked."""
    words = sys.argv[1:]
    if words[:1] == ["faiss"]:
        return faiss_ratio(int(words[1]) if words[1:] else 1_000_000)
    return stages([int(word) for word in words] or list(SIZES)) | (0 if words else faiss_ratio(1_000_000))


if __name__ == "__main__":
    sys.exit(main())
