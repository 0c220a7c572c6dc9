"""Whether a system may be frozen in turns, as in pairs: python tests/bench/freezing.py SYSTEM [SECONDS]

The system has 5,000 rows of 64 dimensions, and two clients in closed loops. It is frozen 30 times for half a second,
then once for SECONDS (40). Every answer is decoded and compared with an exact search. Prints a row of the table in
docs/duet.md: milliseconds to freeze and to thaw (median, most), answers in turns and those that were bad (failed,
short, or of a recall below .5), the same of the long freeze and after, and how often clients connected anew.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from anncestry.drive import protocol  # noqa: E402
from anncestry.drive.client import OK  # noqa: E402
from anncestry.drive.driver import Driver  # noqa: E402
from anncestry.engines import get  # noqa: E402
from anncestry.runtimes.freeze import Side  # noqa: E402
from tests.servers import INDEX, SYSTEMS, exact, loaded, small_vectors  # noqa: E402

ROWS, DIMENSIONS, TURNS, SLICE_S = 5000, 64, 30, 0.5


def main(name: str, long_s: float) -> None:
    engine, vectors = get(SYSTEMS[name]["engine"]), small_vectors("cosine", ROWS, DIMENSIONS)
    queries = small_vectors("cosine", 200, DIMENSIONS).base[::-1].copy() * np.float32(-1)
    nearest = np.argsort(exact(vectors, queries), axis=1)[:, :10]
    took: dict[str, list[float]] = {"freeze": [], "thaw": []}
    with (
        tempfile.TemporaryDirectory() as place,
        loaded(name, INDEX, vectors, Path(place), SYSTEMS[name].get("settings", {})) as server,
        Side(server.group) as side,
    ):
        engine.apply(server, 200)

        def hold(seconds: float) -> None:
            for kind, act in (("freeze", side.freeze), ("thaw", side.thaw)):
                done = act()
                took[kind].append((done.done_ns - done.asked_ns) / 1e6)
                time.sleep(seconds if kind == "freeze" else SLICE_S)

        def turns() -> None:
            for _ in range(TURNS):
                hold(SLICE_S)

        def asked(label: str, beside: Any, seconds: float) -> tuple[int, int, int]:
            """Answers, bad ones, and connections that were made anew."""
            folder = Path(place) / label
            protocol.write_requests(folder, engine.encode(server, queries, 10, 200, None))
            protocol.write_job(
                folder / "job", requests=folder, transport=engine.transport(server), timeout_s=long_s + 30,
                schedule=np.tile(np.arange(len(queries)), (2, 1)), prime=np.empty((2, 0), int), duration_s=seconds,
            )  # fmt: skip
            thread = threading.Thread(target=beside)
            with Driver() as driver:
                driver.run(folder / "job", ready=thread.start)
            thread.join()
            outcome = protocol.read_outcome(folder / "job")
            rows = zip(outcome.samples["status"], outcome.samples["query"], outcome.responses, strict=True)
            bad = sum(s != OK or not good(engine.decode(r, "cosine")[0], nearest[q]) for s, q, r in rows)
            return len(outcome.responses), bad, outcome.facts["reconnects"]

        in_turns = asked("turns", turns, 2 * TURNS * SLICE_S + 1)
        milliseconds = {kind: f"{statistics.median(each):.1f}, {max(each):.1f}" for kind, each in took.items()}
        after = asked("long", lambda: hold(long_s), long_s + 10)
        engine.probe(server)
    print(
        f"| {name} | {milliseconds['freeze']} | {milliseconds['thaw']} | {in_turns[0]:,}, {in_turns[1]} |"
        f" {long_s:g} s | {after[0]:,}, {after[1]} | {in_turns[2] + after[2]} |"
    )


def good(ids: np.ndarray, nearest: np.ndarray) -> bool:
    return len(ids) == 10 and np.isin(ids, nearest).mean() >= 0.5


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 40.0)
