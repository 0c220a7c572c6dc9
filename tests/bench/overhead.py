"""The pipeline's own overhead: wall time of a whole run outside builds, downloads and the servers' work.

    python tests/bench/overhead.py [EXPERIMENT]     (default: the default matrix)

Runs the experiment in an empty folder. Artifacts come from the user's cache if they are there; either way their time
is left out. What remains is Snakemake, starting processes, normalising, truth, decoding, recall, tables and the page.
Truth is listed apart: it is work that somebody has to do, but ours.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def union_s(intervals: list[tuple[float, float]]) -> float:
    """Seconds covered by at least one of the intervals."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def main() -> None:
    """Run, and print the account."""
    experiment = sys.argv[1:2]
    with tempfile.TemporaryDirectory(prefix="anncestry-bench-") as folder:
        timeline = Path(folder) / "timeline.jsonl"
        config = ["--config", f"experiment={experiment[0]}"] if experiment else []
        started = time.time()
        done = subprocess.run(
            [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), "--cores", "8",
             "--directory", folder, "all", *config],
            env={**os.environ, "ANNCESTRY_TIMELINE": str(timeline)}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        wall_s = time.time() - started
        if done.returncode != 0:
            sys.exit(done.stdout + done.stderr)
        jobs = [json.loads(line) for line in timeline.read_text().splitlines()]
        loads = [json.loads(path.read_text()) for path in Path(folder).glob("results/load/*/*/*.json")]
        queries = [json.loads(path.read_text()) for path in Path(folder).glob("results/query/*/*/*/*.json")]
    sessions = {record["session"]["key"]: record["server"]["up_s"] for record in queries}
    servers_s = sum(record["server"]["up_s"] for record in loads) + sum(sessions.values())
    fetched_s = union_s([(j["start"], j["end"]) for j in jobs if j["command"] in ("artifact", "download")])
    truth_s = union_s([(j["start"], j["end"]) for j in jobs if j["command"] == "truth"])
    own_s = wall_s - servers_s - fetched_s
    print(f"whole run            {wall_s:7.1f} s")
    print(f"servers' work        {servers_s:7.1f} s")
    print(f"builds and downloads {fetched_s:7.1f} s")
    print(f"own overhead         {own_s:7.1f} s = {100 * own_s / wall_s:.1f} % (truth {truth_s:.1f} s of it)")
    commands = sorted({job["command"] for job in jobs})
    for command in commands:
        spans = [(job["start"], job["end"]) for job in jobs if job["command"] == command]
        print(f"  {command:<10} {len(spans):4d} jobs {union_s(spans):7.1f} s")


if __name__ == "__main__":
    main()
