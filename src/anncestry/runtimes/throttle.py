"""Storage paths of limited rates: a file system on a loop device, which one control group reads no faster than asked.

The kernel holds the rates (blkio.throttle of control groups version 1, io.max of version 2) for all processes of the
group together; in version 1 not for those of a group below it. It releases what may be read in slices of about 100 ms:
rates and means are right, the shape of latencies is bursty. What is in the page cache is read without limit.

A killed run leaves at most a mount, its device and a group, all of which name its process: the file below the device
has lost its name, and the device goes with the mount. `ended` finds them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from anncestry.errors import UserError
from anncestry.runtimes.control_groups import PREFIX, ROOT, parents_v2
from anncestry.runtimes.namespaces import wrapped

_MIB = 1 << 20
_SYS = Path("/sys/block")
_PROGRAMS = ("losetup", "mkfs.ext4", "mount", "umount")
_FILE = re.compile(rf"/{PREFIX}(\d+)-[^/]*\.img( \(deleted\))?$")
_GROUP_NAMED = "-storage-"
PROBE_BYTES = {"read_mib_per_s": 64 << 10, "read_ops_per_s": 4 << 10}
"""What a probe of each limit reads at once."""
_PROBE_MIB, _HELD_S, _FREE_S, _PROBE_THREADS = 16, 2.0, 0.5, 8
_PROBE = """
import mmap, os, random, sys, threading, time
path, block, duration_s, count = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
file, done = os.open(path, os.O_RDONLY | os.O_DIRECT), []
blocks, start = os.fstat(file).st_size // block, time.monotonic()
def read():
    buffer, reads = mmap.mmap(-1, block), 0
    while time.monotonic() < start + duration_s:
        reads += os.preadv(file, [buffer], random.randrange(blocks) * block) == block
    done.append(reads)
threads = [threading.Thread(target=read) for _ in range(count)]
[thread.start() for thread in threads], [thread.join() for thread in threads]
print(sum(done) / (time.monotonic() - start))
"""


def refused(root: Path = ROOT) -> str:
    """Why this user can't limit a storage path on this machine, in one sentence; "" if he can."""
    lacking = [] if os.geteuid() == 0 else ["root"]
    lacking += [] if Path("/dev/loop-control").exists() else ["loop devices (/dev/loop-control)"]
    lacking += [f"the program {name}" for name in _PROGRAMS if shutil.which(name) is None]
    one, two = root / "blkio" / "blkio.throttle.read_bps_device", root / "cgroup.controllers"
    if not one.exists() and not (two.exists() and "io" in two.read_text().split()):
        lacking.append("a controller of control groups that limits IO (blkio of version 1, io of version 2)")
    return f"limits of a storage path need {', '.join(lacking)}, which is not here" if lacking else ""


@dataclass(frozen=True)
class Limited:
    """A file system that its `group` reads at most as fast as `asked`; `number` is MAJOR:MINOR of its device."""

    asked: Mapping[str, float]
    mount: Path
    device: str
    number: str
    group: Path
    by: str

    @classmethod
    def make(cls, mount: Path, asked: Mapping[str, float], root: Path = ROOT) -> Limited:
        """An empty one, mounted on `mount`; UserError names what the machine lacks, or what it refused."""
        if why := refused(root):
            raise UserError(why)
        own = f"{PREFIX}{os.getpid()}"
        image = mount.parent / f"{own}-{mount.name.removeprefix(PREFIX)}.img"
        try:
            with image.open("wb") as file:
                file.truncate(shutil.disk_usage(mount.parent).free // 10 * 9 // _MIB * _MIB)
            device = _run("losetup", "--find", "--show", "--direct-io=on", image)
        finally:
            image.unlink(missing_ok=True)
        try:
            # No journal and no table filled later: nothing reads or writes by itself.
            _run("mkfs.ext4", "-q", "-O", "^has_journal", "-E", "lazy_itable_init=0", "-N", "16384", device)
            mount.mkdir()
            _run("mount", "-o", "noatime", device, mount)
        finally:
            _run("losetup", "--detach", device)  # at once, or with its mount
        number = f"{os.major(mount.stat().st_dev)}:{os.minor(mount.stat().st_dev)}"
        name = f"{own}{_GROUP_NAMED}{mount.name.removeprefix(PREFIX)}"
        try:
            group, by = hold(name, number, asked, root)
        except BaseException:
            unmount(mount)
            raise
        return cls(asked, mount, Path(device).name, number, group, by)

    def options(self) -> list[str]:
        """For `namespaces`: a program that is held from its first instruction on."""
        return [f"--join={self.group / 'cgroup.procs'}"]

    def enter(self, pids: Iterable[int]) -> None:
        """Hold these processes, and all that they have started, from now on."""
        for pid in pids:
            with suppress(psutil.NoSuchProcess):
                for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
                    with suppress(ProcessLookupError):
                        (self.group / "cgroup.procs").write_text(str(process.pid))

    def keep(self, share: float) -> None:
        """From now on it is read at most as fast as this share of what was asked."""
        allow(self.group, self.number, {limit: share * rate for limit, rate in self.asked.items()})

    def probe(self) -> list[dict[str, Any]]:
        """What is read at random within the group in two seconds, and outside of it, for each limit.

        Of each: "of" (the limit), "read_bytes" at once, "allowed_per_s" (reads, by the tighter limit), "held_per_s" and
        "free_per_s".
        """
        file, found = self.mount / "probe", []
        file.write_bytes(os.urandom(_PROBE_MIB << 20))
        os.sync()
        try:
            for limit in self.asked:
                size = PROBE_BYTES[limit]
                held = self._reads_per_s(file, size, _HELD_S, self.options())
                free = self._reads_per_s(file, size, _FREE_S, [])
                of_bytes = self.asked.get("read_mib_per_s", float("inf")) * _MIB / size
                allowed = min(of_bytes, self.asked.get("read_ops_per_s", float("inf")))
                rates = {"allowed_per_s": allowed, "held_per_s": held, "free_per_s": free}
                found.append({"of": limit, "read_bytes": size, **rates})
        finally:
            file.unlink()
        return found

    def _reads_per_s(self, file: Path, size: int, duration_s: float, options: Sequence[str]) -> float:
        asked = (str(size), str(duration_s), str(_PROBE_THREADS))
        program: list[str | Path] = [sys.executable, "-I", "-S", "-c", _PROBE, file, *asked]
        return float(_run(*wrapped(options, program)))

    def remove(self) -> None:
        """Unmount it, which takes the device along, and remove the group; who is still in it is held no longer."""
        unmount(self.mount)
        remove_group(self.group)


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
    """Nothing, if nothing is mounted there; what is still open on it stays until it is closed."""
    while mount.is_mount():
        _run("umount", "--lazy", mount)
    with suppress(OSError):
        mount.rmdir()


def remove_group(group: Path) -> None:
    """Put its members back to where it lies, and remove it."""
    with suppress(FileNotFoundError):
        for pid in (group / "cgroup.procs").read_text().split():
            with suppress(OSError):
                (group.parent / "cgroup.procs").write_text(pid)
        group.rmdir()


@dataclass(frozen=True)
class Ended:
    """A device of a run that has ended, and where it is mounted."""

    device: str
    mounts: tuple[Path, ...]

    def remove(self) -> None:
        for mount in self.mounts:
            unmount(mount)
        with suppress(UserError):  # it went with its last mount
            _run("losetup", "--detach", self.device)


def ended(sys: Path = _SYS) -> Iterator[Ended]:
    """The loop devices of ours whose makers have ended."""
    for backing in sorted(sys.glob("loop*/loop/backing_file")):
        with suppress(OSError):
            made_by = _FILE.search(backing.read_text().strip())
            if made_by is not None and not psutil.pid_exists(int(made_by[1])):
                device = f"/dev/{backing.parent.parent.name}"
                mounts = (part.mountpoint for part in psutil.disk_partitions(all=True) if part.device == device)
                yield Ended(device, tuple(map(Path, mounts)))


def _run(*command: str | Path) -> str:
    """The output of a program; UserError with its complaint if it fails."""
    words, environment = list(map(str, command)), {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        raise UserError(f"{command[0]} failed: {done.stderr.strip() or done.returncode}")
    return done.stdout.strip()
