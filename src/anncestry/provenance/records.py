"""Records: the JSON that a stage leaves behind, with the digests of what it was made from and of what it made."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from anncestry import durable, redact
from anncestry.errors import Damaged, DataError
from anncestry.provenance import schema

_CHUNK_BYTES = 4 << 20
_UNREADABLE = (errno.EISDIR, errno.EIO, errno.ELOOP, errno.ENXIO)
DAMAGED = ".damaged"
"""At the end of the name of what was set aside: read by nothing, listed by `anncestry gc`."""


_REMEMBERED_MAX = 4096
_remembered: dict[tuple[str, int, int, int, int], str] | None = None


@contextmanager
def hashing_once() -> Iterator[None]:
    """Meanwhile a file is hashed once, however often it is asked for: of readers only, beside whom nothing writes.

    One that is another by its inode, length or times is hashed again.
    """
    global _remembered
    before, _remembered = _remembered, {}
    try:
        yield
    finally:
        _remembered = before


def sha256_file(path: Path) -> str:
    """Hex sha256 of a file's bytes, read in chunks."""
    if _remembered is None:
        return _sha256(path)
    now = path.stat()
    file = (str(path), now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns)
    if file not in _remembered:
        if len(_remembered) >= _REMEMBERED_MAX:
            _remembered.pop(next(iter(_remembered)))
        _remembered[file] = _sha256(path)
    return _remembered[file]


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with _reading(path), open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, which takes its name when the block ends well.

    A file under its own name is therefore always whole, after a power cut as well; an interrupted job leaves nothing
    that looks like a result.
    """
    new = not path.parent.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        durable.place(temporary, path, new)
    finally:
        temporary.unlink(missing_ok=True)


def clear(folder: Path) -> None:
    """Remove a folder with all that is in it, if it is there; OSError if that can't be done: half of it would stay."""
    if folder.exists():
        shutil.rmtree(folder)


def write_json(path: Path, body: Any) -> None:
    """Write `body` as readable JSON, whole or not at all. NaN and infinity are refused: they are not JSON."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(body, indent=1, sort_keys=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file; DataError if it is missing, Damaged if it is not JSON."""
    try:
        with _reading(path):
            return json.loads(path.read_text())
    except FileNotFoundError:
        raise DataError(f"{path}: missing") from None
    except (ValueError, RecursionError) as error:  # also of bytes that are no text, and of a number without end
        raise Damaged(path, f"{path}: not valid JSON ({error})") from None


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Damaged for what can't be read for a reason that lies in this one file, as that it is a folder."""
    try:
        yield
    except OSError as error:
        if error.errno not in _UNREADABLE:
            raise
        raise Damaged(path, f"{path}: can't be read ({error.strerror})") from None


def seal(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record with `seal`, the sha256 of everything else in it: a change by accident is seen wherever it is read."""
    body = {name: value for name, value in record.items() if name != "seal"}
    return {**body, "seal": _digest(body)}


def identity(record: Mapping[str, Any]) -> str:
    """Digest of what a record stands for: stage, key, and the contents of its files, but not when and by whom.

    A stage that is made again from the same spec with the same result has the same identity.
    """
    outputs = {label: entry["sha256"] for label, entry in record["outputs"].items()}
    return _digest({"stage": record["stage"], "key": record["key"], "outputs": outputs})


def _digest(body: Mapping[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def write_record(
    path: Path,
    *,
    stage: str,
    key: str,
    spec: Mapping[str, Any],
    body: Mapping[str, Any],
    inputs: Mapping[str, Path] | None = None,
    outputs: Mapping[str, Path] | None = None,
) -> dict[str, Any]:
    """Write a stage's record to `path`, as the stage's last act.

    `inputs` and `outputs` map a label to a file; the record keeps each file's name and sha256, and of an input that is
    a record itself also its `identity`.
    An output is named relative to the record's folder, an input relative to the working directory.
    `body` is the stage's own part, merged at the top level, without secrets that somebody quoted (see `redact`).
    Returns the record.
    """
    from anncestry.provenance.code import code_facts

    record: dict[str, Any] = {
        "schema_version": schema.VERSION,
        "stage": stage,
        "key": key,
        "spec": dict(spec),
        "inputs": {label: _input(file) for label, file in (inputs or {}).items()},
        "outputs": {
            label: {
                "path": os.path.relpath(file, path.parent),
                "sha256": sha256_file(file),
                "bytes": file.stat().st_size,
            }
            for label, file in (outputs or {}).items()
        },
        "code": code_facts(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    clash = record.keys() & body.keys()
    assert not clash, f"body of {stage} redefines {clash}"
    sealed = seal({**record, **redact.body(dict(body))})
    schema.check(sealed, path, whole=True)
    for file in (outputs or {}).values():  # what it seals is on the disk before it is
        durable.sync(file)
    durable.sync_names((outputs or {}).values())
    write_json(path, sealed)
    durable.sync_names([path])
    return sealed


def _input(file: Path) -> dict[str, str]:
    entry = {"path": os.path.relpath(file), "sha256": sha256_file(file)}
    if file.suffix == ".json":
        entry["identity"] = identity(read_record(file))
    return entry


def read_record(path: Path, *, stage: str | None = None, key: str | None = None) -> dict[str, Any]:
    """Read a record and check that it is one, of this `stage` and `key` where given; DataError names the file.

    One of an earlier schema version is returned in the present one (see `schema`), with the seal that it was read with.
    """
    record = read_sealed(path, stage, key)
    schema.check(record, path, whole=False)
    return record


def read_sealed(path: Path, stage: str | None = None, key: str | None = None) -> dict[str, Any]:
    """The same without holding it against its stage's schema: quick, and enough to tell whether it was written so."""
    record = read_json(path)
    if not isinstance(record, dict) or "stage" not in record or "spec" not in record:
        raise Damaged(path, f"{path}: not a record of anncestry")
    migrated = schema.migrate(record, path)
    if stage is not None and record["stage"] != stage:
        raise Damaged(path, f"{path}: a record of stage {record['stage']}, expected {stage}")
    if key is not None and record.get("key") != key:
        raise Damaged(path, f"{path}: record of key {record.get('key')}, expected {key}: it belongs to another spec")
    if not _sealed(record):
        raise Damaged(path, f"{path}: changed since it was written (its seal is broken)")
    return migrated


def _sealed(record: Mapping[str, Any]) -> bool:
    try:
        return record == seal(record)
    except (ValueError, RecursionError):  # NaN or infinity, which nothing here writes
        return False


def verify_outputs(path: Path, record: Mapping[str, Any], but: Container[str] = ()) -> dict[str, Path]:
    """Re-hash the outputs of a record read from `path`; returns label → file. Damaged names one that differs.

    Those labelled as in `but` must be there with the length that the record says, and are not read.
    """
    files = check_lengths(path, record)
    for label, file in files.items():
        sha256 = record["outputs"][label]["sha256"]
        found = sha256 if label in but else sha256_file(file)
        if found != sha256:
            raise Damaged(path, f"{file}: sha256 {found[:12]}… differs from {sha256[:12]}… in {path}")
    return files


def check_lengths(path: Path, record: Mapping[str, Any]) -> dict[str, Path]:
    """The outputs of a record read from `path`, label → file; Damaged names one that is not there, or not as long."""
    files: dict[str, Path] = {}
    try:
        for label, entry in record["outputs"].items():
            files[label] = file = path.parent / entry["path"]
            status = file.stat()
            if not stat.S_ISREG(status.st_mode):
                raise Damaged(path, f"{file}: not a file, though {path} lists it")
            if status.st_size != entry.get("bytes", status.st_size):
                raise Damaged(path, f"{file}: {status.st_size} bytes, not the {entry['bytes']} that {path} says")
    except (FileNotFoundError, NotADirectoryError):
        raise Damaged(path, f"{file}: missing, though {path} lists it") from None
    except KeyError as error:
        raise DataError(f"{path}: a record without {error.args[0]} of its outputs") from None
    except (AttributeError, TypeError, ValueError) as error:
        raise Damaged(path, f"{path}: its outputs are not as anncestry writes them ({error})") from None
    return files


def set_aside(path: Path) -> None:
    """Give what is damaged another name, under which nothing uses it, in place of what was set aside before."""
    aside = path.with_name(path.name + DAMAGED)
    if aside.is_dir():
        shutil.rmtree(aside)
    with suppress(FileNotFoundError):  # another job was quicker
        durable.rename(path, aside)
