"""What a native member may use is limited by control groups, or by what comes next, and the record says by which."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from anncestry import cli
from anncestry.engines import offers_of
from anncestry.errors import ConfigError, ServerError
from anncestry.provenance import gates
from anncestry.provenance.running import owner, owner_alive
from anncestry.runtimes import control_groups, leftovers
from anncestry.runtimes.base import Group, Limits, Member
from anncestry.runtimes.native import MARK, NativeProcess, clean_environment
from tests.servers import INDEX, STANDALONE, SYSTEMS
from tests.waiting import until

SHELL = Path("/bin/sh")
V2 = (control_groups.ROOT / "cgroup.controllers").exists()


def start(tmp_path: Path, script: str, asked: Limits, name: str = "toy") -> NativeProcess:
    return NativeProcess(name, [SHELL, "-c", script], clean_environment(), tmp_path, tmp_path / "log", asked)


@pytest.fixture(autouse=True)
def no_group_stays() -> Iterator[None]:
    yield
    assert [group for group in control_groups.groups() if f"-{os.getpid()}-" in f"{group.name}-"] == []


def groups_can_be_made() -> bool:
    enclosure = control_groups.enclose("try", Limits(cpus=1, memory_mib=64))
    enclosure.remove()
    return bool(enclosure.folders)


def test_a_process_is_held_from_its_first_instruction_on_and_its_group_goes_with_it(tmp_path: Path) -> None:
    process = start(tmp_path, "cat /proc/self/cgroup; sleep 60", Limits(cpus=0.5, memory_mib=64))
    try:
        until(lambda: "cpu" in process.log_tail(30) or "0::" in process.log_tail(30))
        how = process.limits()
        assert (how["cpus"]["asked"], how["memory_mib"]["asked"]) == (0.5, 64)
        if groups_can_be_made():
            assert re.search(rf"{control_groups.PREFIX}{os.getpid()}-\d+-toy", process.log_tail(30))
            assert how["cpus"]["by"].startswith("cgroup v") and how["memory_mib"]["by"].startswith("cgroup v")
            usage = process.usage()
            assert 0 <= usage["memory_anon_mib"] <= usage["memory_mib"] <= 64
            assert usage["oom_kills"] == 0
        else:
            assert how["cpus"]["by"] is None and "RLIMIT_DATA" in how["memory_mib"]["by"]
    finally:
        process.stop(0)


def test_who_takes_more_memory_than_allowed_is_killed_and_that_is_said(tmp_path: Path) -> None:
    program = f"{sys.executable} -c 'x = bytearray(200 << 20)'; sleep 60"
    process = NativeProcess(
        "greedy", [SHELL, "-c", f"exec {program.split(';')[0]}"], clean_environment(), tmp_path, tmp_path / "log",
        Limits(memory_mib=48),
    )  # fmt: skip
    try:
        until(lambda: not process.alive())
        if not groups_can_be_made():  # what stands in for one is said, and never called a control group
            assert "RLIMIT_DATA" in process.limits()["memory_mib"]["by"]
            return
        with pytest.raises(ServerError, match=r"greedy .* killed by its memory limit of 48 MiB"):
            process.check_alive()
        assert process.usage()["oom_kills"] >= 1
        facts = {"greedy": {"alive": False, "limits": process.limits(), "usage": process.usage()}}
        judged = gates.limits(facts)
        assert judged is not None and not judged.ok and "killed for memory: greedy" in judged.detail
    finally:
        process.stop(0)


def test_who_takes_more_cpu_than_allowed_is_throttled_and_that_is_accounted(tmp_path: Path) -> None:
    process = start(tmp_path, "while true; do :; done", Limits(cpus=0.05))
    try:
        if not groups_can_be_made():
            assert process.limits()["cpus"]["by"] is None
            return
        until(lambda: process.usage()["throttled_s"] > 0.1)
    finally:
        process.stop(0)


def fake_v1(tmp_path: Path) -> Path:
    for controller in ("memory", "cpu", "cpuacct"):
        (tmp_path / controller).mkdir()
    return tmp_path


def fake_v2(tmp_path: Path, controllers: str) -> Path:
    (tmp_path / "cgroup.controllers").write_text(controllers)
    (tmp_path / "cgroup.subtree_control").write_text(controllers)
    return tmp_path


def test_both_versions_of_control_groups_are_written_in_their_own_way(tmp_path: Path) -> None:
    one = control_groups.enclose("a", Limits(1.5, 100), fake_v1(tmp_path))
    assert (one.folders["memory"] / "memory.limit_in_bytes").read_text() == str(100 << 20)
    assert (one.folders["cpu"] / "cpu.cfs_quota_us").read_text() == "150000"
    (tmp_path / "two").mkdir()
    root = fake_v2(tmp_path / "two", "cpu memory pids")
    two = control_groups.enclose("a", Limits(1.5, 100), root)
    folder = two.folders[""]
    assert (folder.parent, (folder / "memory.max").read_text()) == (root, str(100 << 20))
    assert (folder / "cpu.max").read_text() == "150000 100000"
    assert two.limits()["cpus"] == {"asked": 1.5, "by": "cgroup v2 cpu.max in periods of 100 ms"}
    assert two.arguments() == [f"--join={folder / 'cgroup.procs'}"]


def test_two_servers_of_one_name_have_a_group_each(tmp_path: Path) -> None:
    root = fake_v1(tmp_path)
    first, second = (control_groups.enclose("weaviate 1.27.0", Limits(1.5, 100), root) for _ in range(2))
    assert set(first.folders.values()).isdisjoint(second.folders.values())
    assert first.limits() == second.limits()


def test_below_a_root_that_is_not_ours_the_group_is_made_in_what_was_delegated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As systemd lays it out for a user: processes only in leaves, controllers passed on by the slice above them."""
    (tmp_path / "cgroup.controllers").write_text("cpu io memory pids")
    (tmp_path / "cgroup.subtree_control").mkdir()  # can't be written: it is the machine's
    slice_, leaf = tmp_path / "user.slice" / "app.slice", tmp_path / "user.slice" / "app.slice" / "run.scope"
    leaf.mkdir(parents=True)
    (slice_ / "cgroup.subtree_control").write_text("cpu memory pids\n")
    (leaf / "cgroup.subtree_control").mkdir()  # a group with processes can't pass anything on (EBUSY)
    own = tmp_path / "own"
    own.write_text("1:name=systemd:/x\n0::/user.slice/app.slice/run.scope\n")
    monkeypatch.setattr(control_groups, "_OWN", own)
    enclosure = control_groups.enclose("a", Limits(2, 64), tmp_path)
    assert enclosure.folders[""].parent == slice_
    assert control_groups.groups(tmp_path) == [enclosure.folders[""]]


def test_groups_of_ours_are_found_wherever_they_lie_in_a_tree_of_version_2(tmp_path: Path) -> None:
    """One to freeze lies within the group of the session that began it, which another session has not above it."""
    assert control_groups.groups(tmp_path / "none") == []
    within = "user.slice/session-3.scope/anncestry-1-freeze-1"
    for tree, root in ((tmp_path / "pure", ""), (tmp_path / "hybrid", "unified")):
        (tree / root / within).mkdir(parents=True)
        (tree / root / "cgroup.controllers").write_text("cpu")
        assert control_groups.groups(tree) == [tree / root / within]


def test_a_tree_of_v2_without_its_controllers_is_not_taken_for_one_that_limits(tmp_path: Path) -> None:
    """A real one, where this machine has both versions: a group there would hold nothing."""
    tree = control_groups.ROOT / "unified"
    if not (tree / "cgroup.controllers").exists():
        (tree := tmp_path / "tree").mkdir()
        fake_v2(tree, "")
    enclosure = control_groups.enclose("a", Limits(1, 64), tree)
    assert enclosure.folders == {}
    assert "affinity" in enclosure.limits()["cpus"]["by"] and "RLIMIT_DATA" in enclosure.limits()["memory_mib"]["by"]


def test_the_accounts_of_a_v2_group_are_read(tmp_path: Path) -> None:
    enclosure = control_groups.enclose("a", Limits(1, 100), fake_v2(tmp_path, "cpu memory"))
    folder = enclosure.folders[""]
    (folder / "memory.current").write_text(f"{50 << 20}\n")
    (folder / "memory.stat").write_text(f"anon {20 << 20}\nfile {30 << 20}\n")
    (folder / "memory.events").write_text("low 0\nhigh 0\nmax 7\noom 2\noom_kill 1\n")
    (folder / "cpu.stat").write_text("usage_usec 2500000\nnr_throttled 4\nthrottled_usec 1500000\n")
    found = enclosure.usage()
    assert (found["memory_mib"], found["memory_anon_mib"], found["memory_cache_mib"]) == (50, 20, 30)
    assert (found["oom_kills"], found["cpu_s"], found["throttled_s"]) == (1, 2.5, 1.5)


@pytest.mark.parametrize(
    ("limits", "peak_mib", "said"),
    [
        (Limits(1, 100), 99, "by its memory limit of 100 MiB"),
        (Limits(1, 100), 40, "by the kernel, as the machine ran out of memory"),
        (Limits(1), 40, "by the kernel, as the machine ran out of memory"),
    ],
)
def test_who_is_killed_for_its_memory_is_told_whose_limit_it_was(
    tmp_path: Path, limits: Limits, peak_mib: int, said: str
) -> None:
    enclosure = control_groups.enclose("a", limits, fake_v2(tmp_path, "cpu memory"))
    folder = enclosure.folders[""]
    (folder / "memory.peak").write_text(f"{peak_mib << 20}\n")
    (folder / "memory.events").write_text("oom 1\noom_kill 0\n")
    assert enclosure.killed() == ""
    (folder / "memory.events").write_text("oom 1\noom_kill 1\n")
    assert enclosure.killed() == said


def test_without_control_groups_something_weaker_stands_in_and_is_named(tmp_path: Path) -> None:
    cpus = len(os.sched_getaffinity(0))
    enclosure = control_groups.enclose("a", Limits(1, 100), tmp_path / "none")
    assert "affinity to CPU" in enclosure.limits()["cpus"]["by"]
    assert "RLIMIT_DATA" in enclosure.limits()["memory_mib"]["by"]
    assert len(enclosure.affinity) == 1
    unmet = control_groups.enclose("a", Limits(cpus + 0.5), tmp_path / "none")
    assert unmet.limits() == {"cpus": {"asked": cpus + 0.5, "by": None}}
    judged = gates.limits({"a": {"alive": True, "limits": unmet.limits(), "usage": {}}})
    assert judged is not None and not judged.ok and "not enforced" in judged.detail
    assert "nothing holds cpus of a (docs/topologies.md, Limits, says what can)" in judged.detail


def test_without_control_groups_members_of_one_server_have_cpus_of_their_own_or_are_not_held(tmp_path: Path) -> None:
    """Two query nodes of one CPU each are not two nodes on the same one; a pair's other server is none of them."""
    cpus = len(os.sched_getaffinity(0))
    pinned: Counter[int] = Counter()
    members = [control_groups.enclose("a", Limits(1), tmp_path / "none", pinned) for _ in range(cpus + 1)]
    assert {cpu for member in members[:-1] for cpu in member.affinity} == os.sched_getaffinity(0)
    assert [len(member.affinity) for member in members] == [1] * cpus + [0]
    assert members[-1].limits() == {"cpus": {"asked": 1, "by": None}}
    assert control_groups.enclose("b", Limits(1), tmp_path / "none", Counter()).affinity == members[0].affinity


def test_what_stands_in_reaches_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_groups.enclose, "__defaults__", (tmp_path / "none", None))
    process = start(tmp_path, "ulimit -d; sleep 60", Limits(cpus=1, memory_mib=64))
    try:
        until(lambda: "65536" in process.log_tail())
        assert len(psutil.Process(process.pid).cpu_affinity()) == 1
    finally:
        process.stop(0)


def test_no_limit_asked_makes_no_group(tmp_path: Path) -> None:
    process = start(tmp_path, "sleep 60", Limits())
    try:
        assert (process.limits(), process.usage()) == ({}, {})
        assert gates.limits({"toy": {"alive": True, "limits": {}, "usage": {}}}) is None
    finally:
        process.stop(0)


@pytest.mark.parametrize("name", ["milvus-2.3.5", "weaviate-1.27.0"])
def test_a_memory_limit_below_what_a_system_needs_is_refused(name: str) -> None:
    system = SYSTEMS[name]
    with pytest.raises(ConfigError, match=r"limits\.memory_mib: 16 MiB"):
        offers_of(system["engine"]).check(system, {**STANDALONE, "limits": {"memory_mib": 16}}, INDEX, None)


# Groups of members


def test_the_dead_member_of_a_group_is_named_and_the_others_are_stopped_in_reverse(tmp_path: Path) -> None:
    group = Group()
    script = "trap 'exit 0' TERM; while true; do sleep 0.02; done"
    for role, name in (("store", "store"), ("node", "node1"), ("node", "node2")):
        (tmp_path / name).mkdir()
        process = start(tmp_path / name, script if name != "node2" else "echo the reason; exit 3", Limits(), name)
        group.add(Member(name, role, process, term_wait_s=120))
    until(lambda: group.dead() == ["node2"])
    with pytest.raises(ServerError, match="node2") as caught:
        group.check_alive()
    assert caught.value.log_tail == "the reason"
    assert "node2: the reason" in group.log_tail()
    ending = group.stop()
    assert list(group.endings)[-1] == "store"
    assert group.endings["node2"].returncode == 3
    assert (ending.signal, ending.returncode, ending.clean) == (None, 3, False) and group.stop() == ending
    assert not group.alive()


# What a killed run leaves


def test_a_pid_that_was_given_to_another_process_is_not_its_owner() -> None:
    mine = owner(os.getpid())
    assert owner_alive(mine)
    assert not owner_alive(f"{os.getpid()}:1")
    assert not owner_alive("nonsense")


def test_leftovers_are_named_and_cleaned_only_when_that_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("ANNCESTRY_MEASURE_LOCK", str(tmp_path / "measure.lock"))  # others may measure meanwhile
    copy = tmp_path / "scratch" / "session" / "abc" / "serve" / "data"
    copy.mkdir(parents=True)
    gone = subprocess.Popen(["/bin/true"])
    mark = owner(gone.pid)
    gone.wait()
    with subprocess.Popen(["/bin/sleep", "3600"], env={MARK: mark}) as orphan:
        every = leftovers.find
        # Other tests beside this one leave things of their own, which are theirs to end.
        ours = lambda here: [one for one in every(here) if one.kind == "data copy" or one.pid == orphan.pid]  # noqa: E731
        monkeypatch.setattr(leftovers, "find", ours)
        try:
            # The kernel shows the environment of a new program a moment after its parent goes on.
            until(lambda: any(leftover.pid == orphan.pid for leftover in leftovers.find(tmp_path)))
            assert cli.main(["leftovers"]) == 0
            said = capsys.readouterr().out
            assert f"pid {orphan.pid}" in said and "serve" in said and "--clean" in said
            assert orphan.poll() is None and copy.exists()
            assert cli.main(["leftovers", "--clean"]) == 0
            orphan.wait(timeout=120)
            assert not copy.exists()
        finally:
            orphan.kill()
    capsys.readouterr()
    assert cli.main(["leftovers"]) == 0
    assert "no leftovers" in capsys.readouterr().out


def test_a_server_of_a_run_that_goes_on_is_no_leftover(tmp_path: Path) -> None:
    process = start(tmp_path, "sleep 60", Limits())
    try:
        until(lambda: psutil.Process(process.pid).name() == "sh" or psutil.Process(process.pid).name() == "sleep")
        assert process.pid not in [leftover.pid for leftover in leftovers.find(tmp_path)]
    finally:
        process.stop(0)
