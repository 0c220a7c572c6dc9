"""Storage paths: folders or mounts, by name, on which a system keeps its data while it runs.

config/storage.yaml declares the names; an environment variable holds the path on this machine, so no key or record
holds it. Data is on the path only while its server runs.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from anncestry import durable
from anncestry.errors import DataError, UserError
from anncestry.runtimes import throttle
from anncestry.runtimes.throttle import Limited

FOLDER = "storage"
"""In a data folder: what lies, or is to lie, on the topology's storage path."""
_MARK = "anncestry-"


def declared(name: str, table: Mapping[str, Mapping[str, Any]]) -> Path:
    """The folder of storage path `name`; UserError, which names it, if there is none or it can't be written to."""
    entry = table[name]
    variable = entry["environment"]
    text = os.environ.get(variable) or entry.get("default")
    if not text:
        raise UserError(f"storage {name!r}: the environment variable {variable} is not set: it holds the folder")
    said = variable if os.environ.get(variable) else "its default in config/storage.yaml"
    folder = Path(text).absolute()
    if "default" in entry and not os.environ.get(variable) and not Path(entry["default"]).is_absolute():
        folder.mkdir(parents=True, exist_ok=True)  # one of the project's own
    if not folder.is_dir():
        raise UserError(f"storage {name!r}: {folder} ({said}) is not a folder")
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(f"storage {name!r}: {folder} ({said}) can't be written to: {error.strerror}") from None
    return folder


@dataclass(frozen=True)
class Placed:
    """A data folder whose FOLDER is a link to `folder`, on the storage path `name`, or a `limited` mount there."""

    name: str
    data_dir: Path
    folder: Path
    limited: Limited | None = None

    @classmethod
    def put(
        cls,
        name: str,
        path: Path,
        data_dir: Path,
        stored: Path | None = None,
        limits: Mapping[str, Any] | None = None,
    ) -> Placed:
        """Make a folder of its own on `path` for `data_dir`, with what is in `stored`; what a killed run left goes.

        With `limits` it is on a mount of its own, which throttles: see `throttle.Limited`.
        """
        own = path.resolve() / (_MARK + hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:16])
        _clear(own)
        limited = Limited.make(own, limits) if limits else None
        if limited is None:
            own.mkdir(mode=0o700)
        placed = cls(name, data_dir, own / "data", limited)
        try:
            if stored is None:
                placed.folder.mkdir()
            else:
                copy([stored], placed.folder)
        except BaseException:
            placed.remove()
            raise
        link = data_dir / FOLDER
        link.unlink(missing_ok=True)
        link.symlink_to(placed.folder)
        return placed

    def take_back(self) -> None:
        """Move what lies on the path into the data folder, in place of the link."""
        (self.data_dir / FOLDER).unlink(missing_ok=True)
        if self.limited is not None:
            self.limited.free()
        copy([self.folder], self.data_dir / FOLDER)
        self.remove()

    def remove(self) -> None:
        """Remove what lies on the path."""
        if self.limited is not None:
            self.limited.remove()
        else:
            shutil.rmtree(self.folder.parent, ignore_errors=True)

    def helpers(self) -> list[int]:
        """Processes of ours that serve what is read from it."""
        return [] if self.limited is None else self.limited.helpers()

    def mapped_mib(self, pids: Iterable[int], proc: Path = Path("/proc")) -> float | None:
        """MiB of files on the path that these processes have mapped; None where their maps can't be read."""
        inside, total, read = f"{self.folder}/", 0, False
        for pid in pids:
            try:
                lines = (proc / str(pid) / "maps").read_text().splitlines()
            except OSError:
                continue
            read = True
            for line in lines:
                fields = line.split(maxsplit=5)
                if len(fields) == 6 and fields[5].startswith(inside):  # ended by " (deleted)" once its name is gone
                    low, _, high = fields[0].partition("-")
                    total += int(high, 16) - int(low, 16)
        return total / 2**20 if read else None


def _clear(own: Path) -> None:
    """Remove what a killed run left there; UserError for what is no folder of this user's, as others can write there,
    too."""
    if not os.path.lexists(own):
        return
    status = own.lstat()
    mounted = os.path.ismount(own)  # never of a link
    if not stat.S_ISDIR(status.st_mode) or not (mounted or status.st_uid == os.geteuid()):
        raise UserError(f"{own}: is not of this user: have it removed by its owner")
    throttle.unmount(own)
    if own.exists():
        shutil.rmtree(own)


def data_folder(data_dir: Path, topology: Mapping[str, Any]) -> Path:
    """Where a system keeps its data: the folder on its topology's storage path, else `data_dir` itself."""
    return (data_dir / FOLDER).resolve() if "storage" in topology else data_dir


def copy(sources: Iterable[Path], target: Path) -> None:
    """Copy files or folders with their metadata to `target`, sharing blocks where the file system can (reflink).

    The copy is on the disk then: the kernel would write it back half a minute later, while something is measured.
    """
    words = ["cp", "-a", "--reflink=auto", *map(str, sources), str(target)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise DataError(f"copying to {target} failed: {done.stderr.strip()}")
    durable.sync_below(target)


def facts(name: str, table: Mapping[str, Mapping[str, Any]], mount: Path | None = None) -> dict[str, Any]:
    """What storage path `name` is: file system, block device, how it is attached, and which other names are on it.

    `mount` is where on it the data lie, if that is a file system of its own.

    None stands for what this machine does not show; no path is in it.
    """
    folder = mount or declared(name, table)
    number = folder.stat().st_dev
    same = []
    for other, entry in table.items():
        text = os.environ.get(entry["environment"]) or entry.get("default")
        if other != name and text and Path(text).is_dir() and Path(text).stat().st_dev == number:
            same.append(other)
    return {
        "name": name,
        "filesystem": _filesystem(folder),
        "free_gib": round(shutil.disk_usage(folder).free / 2**30, 1),
        **device(os.major(number), os.minor(number)),
        "same_device_as": sorted(same),
    }


def device(major: int, minor: int, sys: Path = Path("/sys")) -> dict[str, Any]:
    """A block device: its name, whether it rotates, its model, transport and paths; None each where it is not shown.

    `transport` is that of NVMe as the kernel names it (pcie, rdma, tcp, fc), else the bus; `paths` counts the
    controllers that a multipath NVMe namespace is reached by, or the devices below a mapped one.
    """
    nothing: dict[str, Any] = {"device": None, "rotational": None, "model": None, "transport": None, "paths": None}
    try:
        found = (sys / "dev" / "block" / f"{major}:{minor}").resolve(strict=True)
    except OSError:
        return nothing
    if (found / "partition").exists():
        found = found.parent
    below = sorted(path.name for path in (found / "slaves").iterdir()) if (found / "slaves").is_dir() else []
    controllers = _controllers(found)
    transports = sorted({_text(path / "transport") or "nvme" for path in controllers})
    bus = next((part.rstrip("0123456789") for part in reversed(found.parts) if part.startswith(_BUSES)), None)
    rotational = _text(found / "queue" / "rotational")
    return {
        "device": found.name,
        "rotational": None if rotational is None else rotational == "1",
        "model": _text(found / "device" / "model"),
        "transport": ", ".join(transports) or bus,
        "paths": len(controllers) or len(below) or None,
    }


_BUSES = ("virtio", "usb", "ata", "host")


def _controllers(found: Path) -> list[Path]:
    """NVMe controllers that a namespace is reached by: its own, or, of a multipath one, those of its subsystem."""
    if not found.name.startswith("nvme"):
        return []
    own = found / "device"
    if (own / "transport").exists():
        return [own]
    return sorted(path for path in own.glob("nvme*") if (path / "transport").exists())


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except OSError:
        return None


def _filesystem(folder: Path) -> str | None:
    """The type of the mount that holds `folder`, as the kernel names it."""
    where = folder.resolve()
    mounts = [mount for mount in psutil.disk_partitions(all=True) if where.is_relative_to(mount.mountpoint)]
    # Of two mounts at one place the later one counts.
    return str(max(reversed(mounts), key=lambda mount: len(mount.mountpoint)).fstype) if mounts else None


def device_totals(name: str) -> tuple[int, int, int, int] | None:
    """Of a block device since it is there: reads, bytes read, writes, bytes written; None if it isn't listed."""
    device = psutil.disk_io_counters(perdisk=True, nowrap=False).get(name)
    return None if device is None else (device.read_count, device.read_bytes, device.write_count, device.write_bytes)
