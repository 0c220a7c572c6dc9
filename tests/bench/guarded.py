"""Whether `anncestry guard` finds regressions that are planted around a real server, by its own command.

python tests/bench/guarded.py [TURNS [HEAD ...]]      (default: one turn of all heads; 0: only report)

Weaviate 1.27.0 on Fashion-MNIST is the base, with the guard's defaults (10 minutes for its pairs). Heads:

same    the same program, given by its path: here an exit of 3 is a false alarm. It lies in a folder of its own in each
        turn, so that it is loaded anew: its index is another one than base's, as with whatever somebody builds
ef220   searches at an effort of 220 in place of 200, which costs some 6 % more processor time (docs/duet.md)
ef235   searches at an effort of 235, which makes answers some 11 % later
quota   the same program, held to less processor time than it takes (a control group's bandwidth)
flag    the same sources, built without inlining of any function
delay   the same program behind a proxy that passes each answer on later, by a share of the time that it took
        (planted/delay.go); its base stands behind the same proxy without a delay, and one client asks

Until turn 4, the flag stopped inlining of the project's own functions only (now `own`), and the proxy waited 60 µs
(`fixed`). They were changed after guards missed them: they cost 5 % of processor time in two guards and 1 % in two
others, 13 % of p50 in one and 4 % in another, probably by the machine. Their lines stay, and count.

A turn takes about an hour. Turns of `same` share the base's load and the base beside itself, which is half of the
time of the first (12 minutes). Each adds a line a head to docs/guard.csv; the report and the table of docs/guard.md are
of all lines.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from anncestry import registries  # noqa: E402
from anncestry.runtimes import building, control_groups  # noqa: E402
from tests.bench.lines import Lines  # noqa: E402

SYSTEM, DATASET = "weaviate-1.27.0", "fashion-mnist-784-euclidean"
PROGRAM = "weaviate-server"
CORES, DELAY_PERCENT = 1.75, 10
GCFLAGS = "-gcflags=all=-l"
HEADS = ("same", "ef220", "ef235", "quota", "flag", "delay")
SAYS = {
    "same": "nothing: the same program",
    "ef220": "searches at an effort of 220 in place of 200",
    "ef235": "searches at an effort of 235 in place of 200",
    "quota": f"{CORES:g} cores of processor time at most",
    "flag": f"built with `{GCFLAGS}`",
    "own": "built with `-gcflags=github.com/weaviate/weaviate/...=-l`",
    "delay": f"a proxy that passes each answer on {DELAY_PERCENT} % later; one client",
    "fixed": "a proxy that waits 60 µs before each answer; one client",
}
QUANTITIES = {"server_cpu_us_per_query": "CPU a query", "qps": "queries per second", "p50_ms": "p50"}
COLUMNS = (
    *("date", "commit", "turn", "head", "minutes", "exit"),
    *(f"{name}_{part}" for name in QUANTITIES for part in ("said", "change", "low", "high")),
)
LINES, DOC = Lines(ROOT / "docs" / "guard.csv", COLUMNS), ROOT / "docs" / "guard.md"
MARK, END = "<!-- measured: docs/guard.csv -->\n", "\n## "

_QUOTA = f"""#!/bin/sh
echo $$ >{{group}}/cgroup.procs || exit 1
exec "$(dirname "$0")/{PROGRAM}.real" "$@"
"""
_DELAY = f"""#!/bin/sh
own=$GRPC_PORT
export GRPC_PORT=$((own + 10000 > 65535 ? own - 10000 : own + 10000))
here=$(dirname "$0")
exec "$here/delay" "127.0.0.1:$own" "127.0.0.1:$GRPC_PORT" {{percent}} "$here/{PROGRAM}.real" "$@"
"""


def main(turns: int, heads: Sequence[str], place: Path) -> None:
    if unknown := set(heads) - set(HEADS):
        sys.exit(f"unknown heads: {', '.join(sorted(unknown))}; known: {', '.join(HEADS)}")
    built = Heads(place / "heads") if turns else None
    first = 1 + max((int(line["turn"]) for line in LINES.read()), default=0)
    for turn in range(first, first + turns):
        for head in heads or HEADS:
            assert built is not None
            LINES.add([measure(head, turn, first if head == "same" else turn, built, place)])
            print(f"turn {turn}: {head} measured", file=sys.stderr, flush=True)
    if built is not None:
        built.group.rmdir()
    print("\n".join(table(LINES.read())))
    before, _, old = DOC.read_text().partition(MARK)
    DOC.write_text("\n".join([before + MARK, *table(LINES.read()), ""]) + "".join(old.partition(END)[1:]))
    print(f"written to {DOC.relative_to(ROOT)}, from {LINES.path.relative_to(ROOT)}")


def _limited_group() -> Path:
    """A control group that a server, which may nothing, can enter by itself. Version 1 alone lets it."""
    group = control_groups.ROOT / "cpu" / f"{control_groups.PREFIX}{os.getpid()}-planted"
    try:
        group.mkdir()
    except OSError as error:
        sys.exit(f"the quota needs root, and control groups of version 1: {error}")
    (group / "cpu.cfs_quota_us").write_text(f"{CORES * control_groups.PERIOD_US:.0f}")
    (group / "cgroup.procs").chmod(0o666)
    return group


class Heads:
    """Folders of what a guard is given as base and heads, laid out like the artifact of the system."""

    def __init__(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        self.folder = folder
        artifact = yaml.safe_load((ROOT / "config" / "systems.yaml").read_text())[SYSTEM]["artifact"]
        go = building.go_tool(SYSTEM)
        environment = building.go_environment(go, artifact["module"])
        said = registries.run(
            [go, "mod", "download", "-json", f"{artifact['module']}@v{SYSTEM.partition('-')[2]}"], ROOT, environment
        )
        sources = Path(json.loads(said.stdout)["Dir"])
        plain = self._made("same")
        building.go_build(SYSTEM, go, environment, sources, artifact, plain)
        flags = f"{environment['GOFLAGS']} {GCFLAGS}"
        building.go_build(SYSTEM, go, {**environment, "GOFLAGS": flags}, sources, artifact, self._made("flag"))
        self.group = _limited_group()
        self._wrapped("quota", _QUOTA.format(group=self.group), plain)
        source = ROOT / "tests" / "bench" / "planted" / "delay.go"
        for name, percent in (("base", 0), ("delay", DELAY_PERCENT)):
            around = self._wrapped(name, _DELAY.format(percent=percent), plain)
            registries.run([go, "build", "-o", str(around / "delay"), str(source)], ROOT, environment, "delay.go")

    def same(self, turn: int) -> Path:
        """The program in a folder of its own: `turn` lies beside it, so that its digest is another one."""
        folder = self.folder / f"same-{turn}"
        shutil.copytree(self.folder / "same", folder)
        (folder / "turn").write_text(f"{turn}\n")
        return folder

    def _made(self, name: str) -> Path:
        (self.folder / name).mkdir(parents=True)
        return self.folder / name / PROGRAM

    def _wrapped(self, name: str, script: str, program: Path) -> Path:
        wrapper = self._made(name)
        shutil.copy2(program, wrapper.with_name(f"{PROGRAM}.real"))
        wrapper.write_text(script)
        wrapper.chmod(0o755)
        return wrapper.parent


def config_of(place: Path, turn: int) -> Path:
    """A copy of the config in which the pairs of this turn have keys of their own; loads are shared."""
    target = place / "config"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(ROOT / "config", target)
    epochs = yaml.safe_load((target / "epochs.yaml").read_text())
    epochs["pair"]["epoch"] = 1000 + turn
    (target / "epochs.yaml").write_text(yaml.safe_dump(epochs))
    return target


def measure(head: str, turn: int, pairs_of: int, built: Heads, place: Path) -> dict[str, Any]:
    """One guard, as a line of the file. The first whose pairs are of a turn measures the base beside itself, too."""
    base, folder, workload = SYSTEM, place / "direct", "k10-clients4"
    if head == "delay":
        base, folder, workload = f"{SYSTEM}={built.folder / 'base'}", place / "behind", "k10-clients1"
    build = built.same(turn) if head == "same" else built.folder / head
    other = f"{SYSTEM}@{head[2:]}" if head.startswith("ef") else f"{SYSTEM}={build}"
    command = [sys.executable, "-m", "anncestry", "guard", "--base", base, "--head", other]
    command += ["--dataset", DATASET, "--workload", workload, "--folder", str(folder)]
    paths = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    own = {"PYTHONPATH": paths, "ANNCESTRY_CONFIG": str(config_of(place, pairs_of))}
    started = time.monotonic()
    done = subprocess.run(command, cwd=place, env={**os.environ, **own}, capture_output=True, text=True, check=False)
    minutes = (time.monotonic() - started) / 60
    if done.returncode not in (0, 3, 4):
        sys.exit(
            f"turn {turn}, {head}: guard ended with {done.returncode}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        )
    found = {each["quantity"]: each for each in json.loads((folder / "guard.json").read_text())["findings"]}
    git = subprocess.run(
        ["git", "rev-parse", "--short=8", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    line = {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": git.stdout.strip(),
        "turn": turn,
        "head": head,
        "minutes": f"{minutes:.1f}",
        "exit": done.returncode,
    }
    for name in QUANTITIES:
        line[f"{name}_said"] = found[name]["said"]
        for part in ("change", "low", "high"):
            value = found[name][part]
            line[f"{name}_{part}"] = "" if value is None else f"{value:.4f}"
    return line


def table(known: Sequence[Mapping[str, str]]) -> list[str]:
    """A line a head: how often it was found, and by what."""
    heads = [*QUANTITIES.values()]
    found = [
        f"| planted | guards | exit 3 | minutes | {' | '.join(heads)} |",
        f"|---|---:|---:|---:|{'---|' * len(heads)}",
    ]
    for head, says in SAYS.items():
        of = [line for line in known if line["head"] == head]
        if not of:
            continue
        regressed = sum(line["exit"] == "3" for line in of)
        minutes = max(float(line["minutes"]) for line in of)
        cells = [cell(of, name) for name in QUANTITIES]
        found.append(f"| {says} | {len(of)} | {regressed} | ≤ {minutes:.0f} | {' | '.join(cells)} |")
    return found


def cell(of: Sequence[Mapping[str, str]], name: str) -> str:
    """How often this quantity regressed, and head over base of all guards together."""
    changes = [math.log(float(line[f"{name}_change"])) for line in of if line[f"{name}_change"]]
    regressed = sum(line[f"{name}_said"] == "regressed" for line in of)
    return f"× {math.exp(statistics.mean(changes)):.3f}, {regressed} regressed" if changes else "–"


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 1, sys.argv[2:], ROOT / "scratch" / "bench-guard")
