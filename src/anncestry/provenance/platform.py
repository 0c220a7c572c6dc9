"""The measuring machine: its facts, its declared platform id, and its measuring lock."""

from __future__ import annotations

import errno
import fcntl
import os
import platform as python_platform
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from anncestry import user_cache
from anncestry.cells.stage import STAGES
from anncestry.errors import ConfigError, Damaged, UserError
from anncestry.provenance import records

IDENTITY = ("cpu_model", "cores", "memory_gib", "machine")
"""Facts that make one platform; the others (kernel, load) may change from day to day and are only recorded."""


def _first_line(path: str) -> str | None:
    try:
        return Path(path).read_text().splitlines()[0].strip()
    except (OSError, IndexError):
        return None


def _cpuinfo() -> dict[str, str]:
    """What the kernel says of the first processor."""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
        return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return {}


def facts() -> dict[str, Any]:
    """CPU, memory, kernel, governor, virtualisation, limits and present load of this machine."""
    processor = _cpuinfo()
    flags = processor.get("flags", "").split()
    release = python_platform.freedesktop_os_release() if Path("/etc/os-release").exists() else None
    return {
        "cpu_model": processor.get("model name") or python_platform.processor() or "unknown",
        "cpu_flags": sorted(flag for flag in flags if flag.startswith(("avx", "sse4", "fma", "amx", "bmi"))),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "machine": python_platform.machine(),
        "kernel": python_platform.release(),
        "os": "unknown" if release is None else " ".join(release.get("PRETTY_NAME", "").split()),
        "governor": _first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "vendor": _first_line("/sys/class/dmi/id/sys_vendor"),
        "hypervisor": "hypervisor" in flags,
        "virtualisation": virtualisation(),
        "limits": limits(),
        "python": sys.version.split()[0],
        "load_average_1min": round(os.getloadavg()[0], 2),
    }


def virtualisation() -> str | None:
    """What `systemd-detect-virt` calls the virtual machine or container that this is; None where it can't be asked."""
    try:
        done = subprocess.run(["systemd-detect-virt"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def limits(proc: Path = Path("/proc/self"), root: Path = Path("/sys/fs/cgroup")) -> dict[str, float | None]:
    """What this process may use at most, by its cgroup (v2) and those above it, and by its own limits.

    `cpu_cores` in cores, `memory_mib` in MiB, `open_files` a count; None where there is no limit, or none can be read.
    """
    cores: list[float] = []
    memory: list[float] = []
    with suppress(OSError, ValueError):
        inside = next(line[3:] for line in (proc / "cgroup").read_text().splitlines() if line.startswith("0::"))
        folder = root / inside.strip("/")
        for group in (folder, *folder.parents):
            if not group.is_relative_to(root):
                break
            quota, _, period = (_first_line(str(group / "cpu.max")) or "max").partition(" ")
            if quota != "max":
                cores.append(int(quota) / int(period))
            most = _first_line(str(group / "memory.max")) or "max"
            if most != "max":
                memory.append(int(most) / 2**20)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return {
        "cpu_cores": min(cores, default=None),
        "memory_mib": min(memory, default=None),
        "open_files": None if files == resource.RLIM_INFINITY else files,
    }


def afterwards(machine: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of `check`, with the load of the machine before (as there) and after the measurement, which is now."""
    before = machine.get("load_average_before", machine["load_average_1min"])
    return {**machine, "load_average_before": before, "load_average_after": round(os.getloadavg()[0], 2)}


def check(platform_id: str, declared: Mapping[str, Any], folder: Path = STAGES["platform"].folder) -> dict[str, Any]:
    """Facts of this machine, held against the declared platform; ConfigError names what differs.

    Where nothing is declared under `expect`, the first measurement keeps the machine's facts in `folder`, and every
    later one must agree with them: one id never mixes two machines.
    """
    machine = facts()
    expected, source = dict(declared.get("expect", {})), "config/platforms.yaml"
    if not expected:
        kept = folder / f"{platform_id}.json"
        source = str(kept)
        try:
            expected = kept_facts(kept, platform_id) if kept.exists() else {}
        except Damaged as error:
            records.set_aside(kept)
            print(f"{error}: set aside and replaced by the facts of this machine", file=sys.stderr, flush=True)
        if not expected:
            records.write_json(kept, records.seal({"platform": platform_id, "facts": machine}))
    for name, value in expected.items():
        if machine[name] != value:
            raise ConfigError(
                f"platform {platform_id!r} ({source}) has {name} {value!r}, but this machine has {machine[name]!r}: "
                "declare another platform in config/platforms.yaml and choose it in config/config.yaml"
            )
    return {"id": platform_id, **machine}


def kept_facts(file: Path, platform_id: str) -> dict[str, Any]:
    """The facts by which the first measurement's machine is known; Damaged if the file is not what it wrote."""
    return {name: value for name, value in all_kept(file, platform_id).items() if name in IDENTITY}


def all_kept(file: Path, platform_id: str) -> dict[str, Any]:
    """All facts of the first measurement's machine; Damaged as `kept_facts`."""
    body = records.read_json(file)
    # Before they had seals, these files held two keys and nothing else.
    sealed = isinstance(body, dict) and body.keys() != {"platform", "facts"}
    try:
        if (sealed and body != records.seal(body)) or body["platform"] != platform_id:
            raise Damaged(file, f"{file}: changed since it was written (its seal is broken)")
        return {**body["facts"], **{name: body["facts"][name] for name in IDENTITY}}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise Damaged(file, f"{file}: holds no facts of a machine") from None


_SHARED = (Path("/run/lock"), Path("/var/lock"), Path("/tmp"))
"""Where every user of a machine may keep a lock."""


def lock_path() -> Path:
    """The measuring lock of this machine, shared by all its users; `ANNCESTRY_MEASURE_LOCK` names another file.

    In the first of `_SHARED` that is there and lets everybody in. A machine without any has one a user, in his cache
    folder, named after the host, as homes may be shared by several.
    """
    if named := os.environ.get("ANNCESTRY_MEASURE_LOCK"):
        return Path(named)
    for folder in _SHARED:
        if folder.is_dir() and folder.stat().st_mode & 0o1003 == 0o1003:
            return folder / "anncestry-measure.lock"
    return user_cache.folder() / f"measure-{python_platform.node()}.lock"


def _open_lock() -> int:
    """The lock file, opened as far as this user may; whoever comes first makes it. UserError if it can't be had."""
    path = lock_path()
    for flags in (os.O_RDWR, os.O_RDONLY, os.O_RDWR | os.O_CREAT | os.O_EXCL, os.O_RDONLY):
        try:
            handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
        except (FileNotFoundError, FileExistsError):
            continue
        except OSError as error:
            if flags == os.O_RDWR and error.errno in (errno.EACCES, errno.EROFS):
                continue  # another user's: to read is enough
            raise UserError(
                f"{path}: the measuring lock of this machine can't be opened ({error.strerror}): its owner can "
                "remove it, or set ANNCESTRY_MEASURE_LOCK to another file"
            ) from None
        if flags & os.O_CREAT:
            os.fchmod(handle, 0o644)  # whatever the umask
        return handle
    raise UserError(f"{path}: the measuring lock of this machine keeps disappearing: does a program clean its folder?")


def _lock(wait: bool, kind: int = fcntl.LOCK_EX) -> int | None:
    """Hold the lock, as a handle to close; None if another does and this does not `wait`."""
    while True:
        handle = _open_lock()
        try:
            fcntl.flock(handle, kind | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(handle)
            return None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), lock_path().stat()):
                return handle
        os.close(handle)  # removed while it was waited for: what others hold is another


def measuring() -> bool:
    handle = _lock(wait=False, kind=fcntl.LOCK_SH)
    if handle is not None:
        os.close(handle)
    return handle is None


@dataclass(frozen=True)
class Lock:
    """The machine's lock while it is held; `waited_s` seconds for it."""

    waited_s: float
    _handle: int

    def held(self) -> bool:
        """Whether whoever measures now has to wait: the file of the lock is still the one that is held."""
        with suppress(OSError):
            return os.path.samestat(os.fstat(self._handle), lock_path().stat())
        return False


@contextmanager
def beside_none() -> Iterator[None]:
    """Do what is not measured while nothing is measured on this machine: wait for the end, and have others wait.

    What runs so may run beside each other.
    """
    handle = _lock(wait=False, kind=fcntl.LOCK_SH)
    if handle is None:
        print("waiting for a measurement on this machine to end", file=sys.stderr, flush=True)
        handle = _lock(wait=True, kind=fcntl.LOCK_SH)
    assert handle is not None
    try:
        yield
    finally:
        os.close(handle)


@contextmanager
def alone() -> Iterator[Lock]:
    """Hold the machine for one measurement. Another's measurement is waited for.

    Snakemake's threads already keep the jobs of one run apart; this keeps two runs apart. The kernel drops the lock
    with the process, however it ends.
    """
    started = time.monotonic()
    handle = _lock(wait=False)
    if handle is None:
        print("waiting for another measurement on this machine to end", file=sys.stderr, flush=True)
        handle = _lock(wait=True)
    assert handle is not None
    try:
        yield Lock(time.monotonic() - started, handle)
    finally:
        os.close(handle)
