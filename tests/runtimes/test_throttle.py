"""A limited storage path is read as fast as its limits allow and no faster, and nothing of it outlives its run.

Where this machine can't limit one (no root, no loop devices, no controller), it is refused in one sentence.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest

from anncestry import cli, engines, verify
from anncestry.cells import config as configuration
from anncestry.errors import ConfigError, Unsupported, UserError
from anncestry.features.fault.measuring import narrowed
from anncestry.measure.server import StoragePath
from anncestry.metrics.resources import OPERATIONS, Sampler, of_device
from anncestry.provenance import gates
from anncestry.runtimes import control_groups, leftovers, storage, throttle
from anncestry.runtimes.namespaces import wrapped
from anncestry.runtimes.storage import Placed
from anncestry.runtimes.throttle import Limited
from tests.builders.bench import MakeBench, failed, on_a_path, reseal, scored
from tests.servers import INDEX, STANDALONE

ASKED: dict[str, Any] = {"read_mib_per_s": 20.0}
EVEN = {**ASKED, "pacing": "even"}
LATER = {**EVEN, "latency_us": 4000}
FASTEST = 20 * (1 + gates.STORAGE_SLACK)
LIMITED = {**STANDALONE, "storage": "here", "storage_limits": ASKED}


def ours() -> set[str]:
    """Devices, groups and pacing programs of limited storage paths of this process, or of one that has ended."""
    backing, found = Path("/sys/block").glob("loop*/loop/backing_file"), set()
    for file in backing:
        with suppress(OSError):  # another test's device may go at this moment
            if f"/anncestry-{os.getpid()}-" in (line := file.read_text()):
                found.add(line)
    groups = {group: int(group.name.split("-")[1]) for group in control_groups.groups() if "-storage-" in group.name}
    of_ours = {str(group) for group, pid in groups.items() if pid == os.getpid() or not psutil.pid_exists(pid)}
    children = {str(child) for child in psutil.Process().children(recursive=True)}
    mounted = {one.mountpoint for one in psutil.disk_partitions(all=True) if one.fstype == "fuse.pace"}
    return found | of_ours | children | {path for path in mounted if f"/anncestry-{os.getpid()}-" in path}


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    before = ours()
    yield
    assert ours() <= before


def limited(folder: Path, asked: dict[str, object] = ASKED) -> Limited | None:
    """One on a mount in `folder`; None where this machine refuses, and says what it lacks."""
    if why := throttle.refused(even=throttle.is_even(asked)):
        assert why.startswith("limits of a storage path need ")
        with pytest.raises(UserError, match="limits of a storage path need"):
            Limited.make(folder / "anncestry-test", asked)
        return None
    return Limited.make(folder / "anncestry-test", asked)


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder on a file system in memory."""
    folder = Path(tempfile.mkdtemp(prefix="anncestry-test-", dir="/dev/shm"))
    try:
        yield folder
        assert not list(folder.iterdir()), "nothing stays on the path"
    finally:
        # What a test that failed left mounted is in the way of no other.
        leftovers.clean([one for one in leftovers.find(folder) if str(folder) in one.name])
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize(
    ("asked", "allowed_per_s"),
    [
        (ASKED, {"read_mib_per_s": 320.0}),  # of 64 KiB each
        ({"read_ops_per_s": 1500.0}, {"read_ops_per_s": 1500.0}),
        ({**ASKED, "read_ops_per_s": 1500.0}, {"read_mib_per_s": 320.0, "read_ops_per_s": 1500.0}),
        (EVEN, {"read_mib_per_s": 320.0}),
        ({"read_ops_per_s": 1500.0, "pacing": "even"}, {"read_ops_per_s": 1500.0}),
    ],
    ids=["bandwidth", "operations", "both", "bandwidth, even", "operations, even"],
)
def test_a_probe_reads_at_the_limit_and_no_faster_and_without_it_faster(
    asked: dict[str, object], allowed_per_s: dict[str, float], memory: Path
) -> None:
    if (path := limited(memory, asked)) is None:
        return
    try:
        probes = path.probe()
    finally:
        path.remove()
    assert {probe["of"]: probe["allowed_per_s"] for probe in probes} == allowed_per_s
    # On a busy machine it may be slower, and the path, too: that is for the gate to say.
    for probe in probes:
        assert 0 < probe["held_per_s"] <= gates.PROBE_MOST * probe["allowed_per_s"] and probe["free_per_s"] > 0
        assert probe.get("pacing") == asked.get("pacing")


def test_evenly_paced_reads_come_as_fast_as_in_slices_and_each_takes_about_the_mean(memory: Path) -> None:
    probes = {}
    for name, asked in (("slices", ASKED), ("even", EVEN)):
        if (path := limited(memory, asked)) is None:
            return
        try:
            (probes[name],) = path.probe()
        finally:
            path.remove()
    slices, even = probes["slices"], probes["even"]
    # Both have the same limit, and a busy machine may keep either from reaching it: only what exceeds it is wrong.
    assert 0.3 < even["held_per_s"] / slices["held_per_s"] < 3
    # In slices it is about 4 times the mean here, evenly 1.1: no neighbour makes these two alike.
    unevenness = {name: probe["held_p95_ms"] / probe["held_mean_ms"] for name, probe in probes.items()}
    assert 1 <= unevenness["even"] < 0.75 * unevenness["slices"]


def test_a_probe_that_is_not_held_or_of_a_path_that_is_no_faster_is_invalid() -> None:
    probe = {"of": "read_mib_per_s", "read_bytes": 65536, "allowed_per_s": 320.0, "held_per_s": 315.0}
    assert gates.storage_probe({**probe, "free_per_s": 9000.0}).ok
    assert not gates.storage_probe({**probe, "held_per_s": 9000.0, "free_per_s": 9000.0}).ok  # no limit
    assert not gates.storage_probe({**probe, "free_per_s": 315.0}).ok  # the path itself is no faster
    assert not gates.storage_probe({**probe, "held_per_s": 160.0, "free_per_s": 9000.0}).ok  # the path is slower
    in_slices = {**probe, "free_per_s": 9000.0, "held_mean_ms": 25.0, "held_p95_ms": 101.0}
    assert gates.storage_probe(in_slices).ok
    assert not gates.storage_probe({**in_slices, "pacing": "even"}).ok  # it is not
    assert gates.storage_probe({**in_slices, "pacing": "even", "held_p95_ms": 27.0}).ok


def test_added_latency_is_of_each_read_and_takes_nothing_from_the_rate(memory: Path) -> None:
    if (path := limited(memory, LATER)) is None:
        return
    try:
        assert path.facts()["latency_us"] == 4000 and path.facts()["asked"] == ASKED
        rate, latency = path.probe()
        file = path.mount / "data"
        file.write_bytes(os.urandom(4 << 20))
        os.sync()
        beside = path._read(file, 4096, 1.0, [], threads=8)
        path.free()
        free = path._read(file, 4096, 0.5, [], threads=1)
    finally:
        path.remove()
    assert 0 < rate["held_per_s"] <= gates.PROBE_MOST * rate["allowed_per_s"] and rate["of"] == "read_mib_per_s"
    assert latency["held_least_ms"] >= 4 and latency["held_p50_ms"] - latency["plain_p50_ms"] > 3.6
    # Eight at once wait side by side, not for each other: more than one in 4 ms, on whatever machine.
    assert beside["least_ms"] >= 4 and beside["per_s"] > 300
    assert free["p50_ms"] < 4


@pytest.mark.parametrize(
    ("plain_ms", "held_ms", "least_ms", "ok"),
    [
        (0.3, 1.32, 1.01, True),
        (0.3, 0.31, 0.2, False),  # nothing is added
        (0.3, 1.1, 1.01, False),  # less than is asked
        (0.3, 1.9, 1.01, False),  # more
        (0.3, 1.32, 0.4, False),  # not to all
    ],
)
def test_latency_that_is_not_added_to_each_read_is_invalid(
    plain_ms: float, held_ms: float, least_ms: float, ok: bool
) -> None:
    times = {"plain_p50_ms": plain_ms, "held_p50_ms": held_ms, "held_least_ms": least_ms}
    gate = gates.storage_probe({"of": "latency_us", "read_bytes": 4096, "latency_us": 1000.0, **times})
    assert (gate.gate, gate.ok) == ("storage latency, probed", ok), gate.detail


@pytest.mark.parametrize("asked", [ASKED, EVEN], ids=["slices", "even"])
def test_a_path_that_keeps_a_quarter_of_its_limit_is_read_at_a_quarter_until_it_has_all_again(
    asked: dict[str, object], memory: Path
) -> None:
    if (path := limited(memory, asked)) is None:
        return
    try:
        path.keep(0.25)
        (narrow,) = path.probe()
        path.keep(1.0)
        (wide,) = path.probe()
    finally:
        path.remove()
    assert 0 < narrow["held_per_s"] <= 0.25 * narrow["allowed_per_s"] * gates.PROBE_MOST
    assert 0 < wide["held_per_s"] <= wide["allowed_per_s"] * gates.PROBE_MOST


def test_the_path_s_own_counters_tell_a_program_that_escaped_its_limit(memory: Path) -> None:
    if (path := limited(memory)) is None:
        return
    script = "import os, sys; file = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT); import mmap\n"
    script += (
        "whole = mmap.mmap(-1, 1 << 20)\nfor at in range(int(sys.argv[2])): os.preadv(file, [whole], at % 16 << 20)"
    )
    judged = {}
    try:
        file = path.mount / "data"
        file.write_bytes(os.urandom(16 << 20))
        os.sync()
        for name, options, reads in (("held", path.options(), 128), ("escaped", [], 4096)):
            command = wrapped(options, [sys.executable, "-I", "-c", script, file, str(reads)])
            with Sampler({}, 60.0, device=lambda: storage.device_totals(path.device) or (0, 0, 0, 0)) as sampler:
                subprocess.run(command, check=True)
            table = sampler.table()
            at = table["at_s"].to_numpy()
            used = of_device(table, [(float(at.min()), float(at.max()))])
            assert used is not None and used["io_read_mib"] >= 128
            judged[name] = gates.storage_limits(ASKED, used)
    finally:
        path.remove()
    assert judged["held"].ok, judged["held"].detail
    assert not judged["escaped"].ok and "at most" in judged["escaped"].detail


def test_nobody_escapes_a_limit_that_is_evenly_paced_and_its_device_counts_all(memory: Path) -> None:
    if (path := limited(memory, EVEN)) is None:
        return
    try:
        assert path.options() == [] and len(path.helpers()) == 1
        file = path.mount / "data"
        file.write_bytes(os.urandom(8 << 20))
        os.sync()
        before = storage.device_totals(path.device)
        assert before is not None
        started = time.monotonic()
        subprocess.run(["dd", f"if={file}", "of=/dev/null", "bs=1M", "iflag=direct", "status=none"], check=True)
        took_s, after = time.monotonic() - started, storage.device_totals(path.device)
        assert after is not None and after[1] - before[1] >= 8 << 20
        assert took_s > 0.3  # at 20 MiB/s they take 0.4 s
        path.free()
        (free,) = path.probe()
        assert free["held_per_s"] > 2 * free["allowed_per_s"]
    finally:
        path.remove()


@pytest.mark.parametrize(
    ("asked", "goes"), [(ASKED, True), (EVEN, True), (ASKED, False)], ids=["slices", "even", "a folder that stays"]
)
def test_a_device_goes_with_the_folder_of_its_mount_whoever_has_a_copy_of_that(
    asked: dict[str, object], goes: bool, memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (path := limited(memory, asked)) is None:
        return
    backing = Path("/sys/block") / path.device / "loop" / "backing_file"
    assert _is_ours(backing)
    # As a server of Milvus: with folders of its own, and so with copies of all mounts, shared with nobody.
    alone = ["unshare", "--mount", "--propagation", "private"]
    say = "print(open('/proc/self/mounts').read(), flush=True); input()"
    command = [*alone, *wrapped([f"--private={tmp_path / 'own'}"], [sys.executable, "-I", "-S", "-c", say])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin is not None and program.stdout is not None
        mounts = "".join(iter(program.stdout.readline, "\n"))
        if goes:
            path.remove()
        else:
            with monkeypatch.context() as patch:
                patch.setattr(Path, "rmdir", lambda folder: None)
                throttle.unmount(path.mount)
        deadline = time.monotonic() + (10 if goes else 0.5)
        while (kept := _is_ours(backing)) and time.monotonic() < deadline:
            time.sleep(0.05)
        print(file=program.stdin, flush=True)
    assert str(path.mount) in mounts and kept is not goes
    path.remove()


def _is_ours(backing: Path) -> bool:
    """Whether a loop device is there, with a file of this process below it."""
    try:
        return f"/anncestry-{os.getpid()}-" in backing.read_text()
    except OSError:
        return False


def test_reads_beyond_a_limit_or_of_a_device_that_nobody_counted_are_invalid() -> None:
    used = {"wall_s": 4.0, "io_read_mib": 80.0, "io_reads": 20_000.0}
    assert gates.storage_limits({"read_mib_per_s": 20}, used).ok
    assert not gates.storage_limits({"read_mib_per_s": 17}, used).ok
    assert gates.storage_limits({"read_mib_per_s": 20, "read_ops_per_s": 5000}, used).ok
    assert not gates.storage_limits({"read_mib_per_s": 20, "read_ops_per_s": 4000}, used).ok
    assert not gates.storage_limits({"read_mib_per_s": 20}, None).ok


def test_both_versions_of_control_groups_are_written_in_their_own_way(tmp_path: Path) -> None:
    (tmp_path / "one" / "blkio").mkdir(parents=True)
    asked = {"read_mib_per_s": 10, "read_ops_per_s": 2500}
    group, by = throttle.hold("g", "7:3", asked, tmp_path / "one")
    assert (group / "blkio.throttle.read_bps_device").read_text() == "7:3 10485760"
    assert (group / "blkio.throttle.read_iops_device").read_text() == "7:3 2500"
    assert by == "cgroup v1 blkio.throttle"
    throttle.allow(group, "7:3", {"read_mib_per_s": 2.5})
    assert (group / "blkio.throttle.read_bps_device").read_text() == "7:3 2621440"
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "cgroup.controllers").write_text("cpu io")
    group, by = throttle.hold("g", "7:3", asked, tmp_path / "two")
    assert (group / "io.max").read_text() == "7:3 rbps=10485760 riops=2500" and by == "cgroup v2 io.max"
    assert (tmp_path / "two" / "cgroup.subtree_control").read_text() == "+io"
    throttle.allow(group, "7:3", {"read_mib_per_s": 2.5})
    assert (group / "io.max").read_text() == "7:3 rbps=2621440"


def test_where_no_controller_limits_io_a_sentence_says_so(tmp_path: Path) -> None:
    assert "a controller of control groups that limits IO" in throttle.refused(tmp_path)


@pytest.mark.parametrize("asked", [ASKED, EVEN], ids=["slices", "even"])
def test_what_a_killed_run_left_is_found_and_ended(asked: dict[str, object], memory: Path, tmp_path: Path) -> None:
    if throttle.refused(even=throttle.is_even(asked)):
        return
    script = (
        "import os, signal\nfrom pathlib import Path\nfrom anncestry.runtimes.throttle import Limited\n"
        f"made = Limited.make(Path({str(memory)!r}) / 'anncestry-killed', {asked!r})\n"
        "print(*made.helpers(), flush=True)\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
    assert killed.returncode == -9 and (memory / "anncestry-killed").is_mount()
    pacing = [int(pid) for pid in killed.stdout.split()]
    assert len(pacing) == (asked is EVEN)
    deadline = time.monotonic() + 60
    while any(_runs(pid) for pid in pacing) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(_runs(pid) for pid in pacing), "the kernel ends it with the run"
    found = [one for one in leftovers.find(tmp_path) if str(memory) in one.name or "-storage-killed" in one.name]
    assert {one.kind for one in found} == {"storage mount", *([] if pacing else ["control group"])}
    assert leftovers.clean(found) == [] and list(memory.iterdir()) == []
    again = [one for one in leftovers.find(tmp_path) if str(memory) in one.name or "-storage-killed" in one.name]
    assert again == []


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_what_a_run_left_that_was_killed_before_its_evenly_paced_file_had_a_device_is_found(
    memory: Path, tmp_path: Path
) -> None:
    if throttle.refused(even=True):
        return
    script = (
        "import os, signal\nfrom pathlib import Path\nfrom anncestry.runtimes.throttle import Pace\n"
        f"image = Path({str(memory)!r}) / f'anncestry-{{os.getpid()}}-open.img'\nimage.write_bytes(bytes(4096))\n"
        "Pace(image)\nimage.unlink()\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    found = [one for one in leftovers.find(tmp_path) if str(memory) in one.name and one.kind == "storage mount"]
    assert len(found) == 1 and leftovers.clean(found) == [] and list(memory.iterdir()) == []


@pytest.mark.parametrize("asked", [ASKED, EVEN], ids=["slices", "even"])
def test_the_next_run_on_the_same_data_ends_what_a_killed_one_left_mounted(
    asked: dict[str, object], memory: Path, tmp_path: Path
) -> None:
    if throttle.refused(even=throttle.is_even(asked)):
        return
    (tmp_path / "data").mkdir()
    left = Placed.put("here", memory, tmp_path / "data", limits=asked)
    assert left.limited is not None
    (left.folder / "file").write_text("left")
    if left.limited.group is not None:
        throttle.remove_group(left.limited.group)
    if left.limited.pace is not None:
        os.kill(left.limited.pace.pid, signal.SIGKILL)
        left.limited.pace.stop()
    again = Placed.put("here", memory, tmp_path / "data", limits=asked)
    assert list(again.folder.iterdir()) == []
    (again.folder / "file").write_text("kept")
    again.take_back()
    assert (tmp_path / "data" / storage.FOLDER / "file").read_text() == "kept" and list(memory.iterdir()) == []


@pytest.mark.parametrize(
    "pacing", [{}, {"pacing": "even"}, {"pacing": "even", "latency_us": 1000}], ids=["slices", "even", "later"]
)
def test_a_cell_on_a_limited_path_says_how_it_was_held(pacing: dict[str, Any], bench: MakeBench, memory: Path) -> None:
    def change(files: dict) -> None:  # type: ignore[type-arg]
        on_a_path(memory)(files)
        files["topologies"]["standalone"]["storage_limits"] = {"read_mib_per_s": 20, **pacing}

    honest = bench(change=change)
    cell, table = honest.matrix.cells[0], honest.matrix.config.storage
    if throttle.refused(even=bool(pacing)):
        with pytest.raises(UserError, match="storage 'here': limits of a storage path need"):
            honest.load(cell, storage=table)
        return
    probed = {"storage limits, probed", *(["storage latency, probed"] if "latency_us" in pacing else [])}
    assert failed(honest.load(cell, storage=table)).keys() <= probed
    assert honest.query(cell, runs=2, storage=table) == {cell.query: "ok"}
    record = honest.record(cell)
    # The probe reads at the rate that this machine gives it: on a busy one it may say that this was too slow.
    assert failed(record).keys() <= probed
    assert {"storage limits", *probed} <= {g["gate"] for g in record["gates"]}
    said = record["storage_path"]
    assert said["limits"]["asked"] == {"read_mib_per_s": 20} and said["limits"].get("pacing") == pacing.get("pacing")
    assert said["limits"]["by"].startswith("one clock" if pacing else "cgroup v")
    probe, *of_latency = said["limits"]["probe"]
    assert [each["latency_us"] for each in of_latency] == [said["limits"][name] for name in pacing if name != "pacing"]
    assert min(probe["held_mean_ms"], probe["held_p95_ms"]) > 0
    assert said["device"].startswith("loop") and said["filesystem"] == "ext4"

    published, _ = scored(honest, cell)
    assert verify.verify(honest.matrix, partial=True).problems == []
    honest_gate = next(gate for gate in published["gates"] if gate["gate"] == "storage limits")
    forged = {**honest_gate, "detail": honest_gate["detail"].replace("in ", "in 1")}
    reseal(Path(cell.query_path), gates=[forged if gate == honest_gate else gate for gate in published["gates"]])
    said_by = " ".join(problem.sentence for problem in verify.verify(honest.matrix, partial=True).problems)
    assert "its gate on storage limits differs from what its samples give" in said_by


def test_paths_lost_during_a_run_are_measured_and_a_forged_gate_on_them_is_found(
    bench: MakeBench, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, kept, keep = {"kind": "path_loss", "keeps": 0.25, "at_s": 1, "for_s": 2.5}, [], Limited.keep

    def keep_and_note(path: Limited, share: float) -> None:
        kept.append(share)
        keep(path, share)

    monkeypatch.setattr(Limited, "keep", keep_and_note)

    def change(files: dict) -> None:  # type: ignore[type-arg]
        on_a_path(memory)(files)
        files["topologies"]["standalone"]["storage_limits"] = {"read_mib_per_s": 20}
        files["workloads"]["k5"] |= {"duration_s": 5, "fault": lost}

    honest = bench(change=change)
    cell, table = next(c for c in honest.matrix.cells if c.workload == "k5"), honest.matrix.config.storage
    if throttle.refused():
        return
    honest.load(cell, storage=table)
    assert honest.query(cell, runs=2, storage=table) == {cell.query: "ok"}
    assert kept == [0.25, 1.0] * 2
    published, _ = scored(honest, cell)
    assert failed(published).keys() <= {"storage limits, probed"}
    (gate,) = [gate for gate in published["gates"] if gate["gate"] == "storage limits, paths lost"]
    assert "at most" in gate["detail"] and "Little's law" in {gate["gate"] for gate in published["gates"]}
    for run in published["fault"]["runs"]:
        assert (run["kind"], run["member"]) == ("path_loss", "storage path")
        assert run["mended_s"] - run["made_s"] >= 2.5 and run["lost"] == 0 and run["whole_s"] is not None

    assert verify.verify(honest.matrix, partial=True).problems == []
    forged = {**gate, "detail": gate["detail"].replace("in ", "in 1")}
    reseal(Path(cell.query_path), gates=[forged if each == gate else each for each in published["gates"]])
    said_by = " ".join(problem.sentence for problem in verify.verify(honest.matrix, partial=True).problems)
    assert "its gate on the lost paths differs from what its samples give" in said_by


@pytest.mark.parametrize(
    ("rates", "ok"),
    [
        # MiB a second: before the loss, in its first second, until half a second before its end, then, afterwards.
        ((20, 20, 5, 20, 20), True),
        ((20, 5, 6, 5, 20), False),
        ((20, 20, 20, 20, 20), False),
        ((0, 0, 0, 0, 0), True),
    ],
)
def test_while_paths_are_lost_no_more_is_read_than_the_share_that_was_kept(rates: tuple[float, ...], ok: bool) -> None:
    times, ends_s = {"made_s": 4.0, "mended_s": 12.0}, (104.0, 105.0, 111.5, 112.0, 116.0)
    at_s = np.arange(100.0, 116.1, 0.25)
    edges = np.concatenate([[100.0], ends_s])
    read = np.interp(at_s, edges, np.concatenate([[0.0], np.cumsum(np.diff(edges) * rates)]))
    columns = {"at_s": at_s, "io_read_mib": read, **dict.fromkeys(("io_write_mib", *OPERATIONS), np.zeros(len(at_s)))}
    device = pa.table({"group": ["device"] * len(at_s), **columns})
    gate = narrowed({"read_mib_per_s": 20}, 0.25, device, (100.0, 116.0), times)
    assert (gate.gate, gate.ok) == ("storage limits, paths lost", ok), gate.detail
    assert not narrowed({"read_mib_per_s": 20}, 0.25, None, (100.0, 116.0), times).ok


def test_paths_can_only_be_lost_of_a_path_with_limits() -> None:
    system = {"version": "0.7.0", "artifact": {"kind": "wheel"}}
    fault = {"kind": "path_loss", "keeps": 0.25, "at_s": 1, "for_s": 2}
    workload = {"k": 10, "clients": 1, "duration_s": 5, "search_list": 64, "fault": fault}
    index = {"type": "diskann", "max_degree": 32, "build_list": 64, "m": 16}
    offers = engines.offers_of("diskann")
    offers.check(system, LIMITED, index, workload)
    with pytest.raises(ConfigError, match=r"fault\.kind: path_loss needs a topology with storage_limits"):
        offers.check(system, STANDALONE, index, workload)
    with pytest.raises(Unsupported, match="fault: diskann is a library"):
        offers.check(system, LIMITED, index, {**workload, "fault": {**fault, "kind": "kill", "member": "node1"}})


@pytest.mark.parametrize(
    ("engine", "version", "topology", "complaint"),
    [
        ("diskann", "0.7.0", {**STANDALONE, "storage_limits": ASKED}, "add the key storage"),
        ("diskann", "0.7.0", {**LIMITED, "storage_limits": {"pacing": "even"}}, "add read_mib_per_s or read_ops_per_s"),
        (
            "diskann",
            "0.7.0",
            {**LIMITED, "storage_limits": {"pacing": "even", "latency_us": 5}},
            "add read_mib_per_s or",
        ),
        ("diskann", "0.7.0", {**LIMITED, "storage_limits": {**ASKED, "latency_us": 5}}, "add pacing: even"),
        ("milvus", "2.3.5", LIMITED, "engine milvus has no storage_limits to choose"),
    ],
)
def test_limits_without_a_path_or_of_a_server_are_refused(
    engine: str, version: str, topology: dict[str, object], complaint: str
) -> None:
    system = {"version": version, "artifact": {"kind": "wheel"}}
    with pytest.raises((ConfigError, Unsupported), match=complaint):
        engines.offers_of(engine).check(system, topology, INDEX, None)


@pytest.mark.parametrize(
    "limits",
    [{}, {"read_mib_per_s": 0}, {"write_mib_per_s": 5}, {"read_mib_per_s": 5, "pacing": "odd"}, {"latency_us": 0}],
)
def test_a_limit_that_is_none_is_refused(limits: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="storage_limits"):
        configuration.validate({"t": {**LIMITED, "storage_limits": limits}}, "topologies", Path("topologies.yaml"))


def test_a_machine_that_can_not_limit_is_named_before_a_server_starts_and_by_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(even: bool = False) -> str:
        return f"limits of a storage path need {'FUSE' if even else 'root'}, which is not here"

    monkeypatch.setattr(throttle, "refused", refused)
    table = {"here": {"environment": "HERE", "default": str(tmp_path)}}
    with pytest.raises(UserError, match="storage 'here': limits of a storage path need root"):
        StoragePath.of({"system": {}, "topology": LIMITED}, table)
    with pytest.raises(UserError, match="storage 'here': limits of a storage path need FUSE"):
        StoragePath.of({"system": {}, "topology": {**LIMITED, "storage_limits": EVEN}}, table)
    assert cli.main(["--experiment", "diskann-saturation-laptop", "plan"]) == 0
    said = capsys.readouterr().out
    assert "standalone-read-40mib: can't run on this machine: limits of a storage path need root" in said
    assert "standalone-read-10mib-even: can't run on this machine: limits of a storage path need FUSE" in said
    assert cli.main(["--experiment", "diskann-saturation-laptop", "plan", "--json"]) == 0
    unable = {each["topology"]: each["reason"] for each in json.loads(capsys.readouterr().out)["cant_run_here"]}
    assert unable["standalone-read-40mib"] == refused() and unable["standalone-read-10mib-even"] == refused(even=True)


def test_one_clock_for_all_reads_needs_fuse_and_no_controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "controller" not in throttle.refused(tmp_path, even=True)
    monkeypatch.setattr(throttle, "_FUSE", tmp_path / "no-fuse")
    assert "no-fuse), for pacing: even" in throttle.refused(even=True) and "no-fuse" not in throttle.refused()
