"""Records: the JSON that a stage leaves behind, with the digests of what it was made from and of what it made.

`workflow/schemas/records.schema.yaml` defines each stage's record. A record is written in the present schema version
and checked in full; when it is read, the parts that it has must be of the right kind, so that older ones with fewer
parts can be read; `verify` checks it in full again. A version that this program does not know is refused.
"""

from __future__ import annotations

import copy
import errno
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import yaml

from anncestry import durable, redact
from anncestry.cells.spec import Schema
from anncestry.cells.stage import STAGES, canonical
from anncestry.errors import Damaged, DataError
from anncestry.home import SCHEMAS
from anncestry.provenance.code import code_facts

VERSION = 2
"""Schema version of the records that are written."""

REMADE = frozenset({"artifact", "download", "vectors", "truth"})
"""Inputs that are not measurements: a clone without them makes them again, with other dates in their records."""

_ENVELOPE = ["schema_version", "stage", "spec"]
_CHUNK_BYTES = 4 << 20
_UNREADABLE = (errno.EISDIR, errno.EIO, errno.ELOOP, errno.ENXIO)
DAMAGED = ".damaged"
"""At the end of the name of what was set aside: read by nothing, listed by `anncestry gc`."""


_hashes_once = False


@contextmanager
def hashing_once() -> Iterator[None]:
    """Within this block a file is hashed once, however often its digest is needed: for readers beside whom no program
    writes. A file with another inode, length or times is hashed again.
    """
    global _hashes_once
    before, _hashes_once = _hashes_once, True
    try:
        yield
    finally:
        _hashes_once = before
        _remembered.cache_clear()


def sha256_file(path: Path) -> str:
    """Hex sha256 of a file's bytes, read in chunks."""
    if not _hashes_once:
        return _sha256(path)
    now = path.stat()
    return _remembered(path, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns)


@lru_cache(maxsize=4096)
def _remembered(path: Path, *_: int) -> str:
    return _sha256(path)


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


def clear(path: Path) -> None:
    """Remove a file, link or folder, if it is there; OSError if that can't be done: half of a folder would stay.

    Of a folder, its record goes first: what is left of one that was not removed whole is no finished stage.
    """
    if path.is_dir() and not path.is_symlink():
        (path / "record.json").unlink(missing_ok=True)
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


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

    A stage that is made again from the same spec with the same result has the same identity. Neighbours that only some
    source of a dataset ships beside the same vectors are no part of it.
    """
    return _identity(record, [label for label in record["outputs"] if not label.startswith("shipped_")])


def is_of(record: Mapping[str, Any], identified: str | None) -> bool:
    """Whether it has this identity; earlier ones held everything that was shipped."""
    return identified in (identity(record), _identity(record, record["outputs"]))


def _identity(record: Mapping[str, Any], labels: Iterable[str]) -> str:
    outputs = {label: record["outputs"][label]["sha256"] for label in labels}
    return _digest({"stage": record["stage"], "key": record["key"], "outputs": outputs})


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical(body).encode()).hexdigest()


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
    record: dict[str, Any] = {
        "schema_version": VERSION,
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
    check_schema(sealed, path, whole=True)
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

    One of an earlier schema version is returned in the present one (see `migrate`), with the seal of the file.
    """
    record = read_sealed(path, stage, key)
    check_schema(record, path, whole=False)
    return record


def peek(path: Path, stage: str) -> dict[str, Any] | None:
    """What lies at `path` if it is a record of this stage, of any version and possibly damaged; else None."""
    try:
        record = read_json(path)
    except (DataError, OSError):
        return None
    ours = isinstance(record, dict) and record.get("stage") == stage and isinstance(record.get("spec"), dict)
    return record if ours else None


def read_sealed(path: Path, stage: str | None = None, key: str | None = None) -> dict[str, Any]:
    """The same without holding it against its stage's schema: quick, and enough to tell whether it was written so."""
    record = read_json(path)
    if not isinstance(record, dict) or "stage" not in record or "spec" not in record:
        raise Damaged(path, f"{path}: not a record of anncestry")
    migrated = migrate(record, path)
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
        digest = sha256 if label in but else sha256_file(file)
        if digest != sha256:
            raise Damaged(path, f"{file}: sha256 {digest[:12]}… differs from {sha256[:12]}… in {path}")
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
                raise Damaged(path, f"{file}: {status.st_size} bytes, but {path} lists {entry['bytes']}")
    except (FileNotFoundError, NotADirectoryError):
        raise Damaged(path, f"{file}: missing, though {path} lists it") from None
    except KeyError as error:
        raise DataError(f"{path}: the record lists outputs without {error.args[0]}") from None
    except (AttributeError, TypeError, ValueError) as error:
        raise Damaged(path, f"{path}: its list of outputs is not valid ({error})") from None
    return files


def set_aside(path: Path) -> None:
    """Give what is damaged another name, under which nothing uses it, in place of what was set aside before."""
    aside = path.with_name(path.name + DAMAGED)
    if aside.is_dir():
        shutil.rmtree(aside)
    with suppress(FileNotFoundError):  # another job was quicker
        durable.rename(path, aside)


class State(StrEnum):
    """What became of a file that a record names."""

    SAME = "same"
    REMADE = "made again, same contents"
    CHANGED = "changed"
    ABSENT = "not here"


def state(file: Path, entry: Mapping[str, Any], label: str = "") -> State:
    """Compare `file` with a record's entry of it; of an input that may be made again (by its `label`) the contents."""
    if not os.path.lexists(file):
        return State.ABSENT
    if not file.is_file():
        return State.CHANGED
    if sha256_file(file) == entry["sha256"]:
        return State.SAME
    if label in REMADE and "identity" in entry:
        with suppress(DataError, KeyError):
            if is_of(read_record(file), entry["identity"]):
                return State.REMADE
    return State.CHANGED


def refuse_other_vectors(path: Path, record: Mapping[str, Any], vectors: Path) -> None:
    """DataError if the record at `path` was made from other vectors than those of the record `vectors`.

    A key says what a dataset is meant to be; a source whose content no config pins may give another one tomorrow.
    """
    if not vectors.exists():
        raise DataError(f"{vectors}: missing; the next run of the workflow makes it again")
    read_record(vectors)  # a damaged one says so
    if state(vectors, record["inputs"]["vectors"], "vectors") is State.CHANGED:
        raise DataError(
            f"{path}: was made from other vectors than {vectors} has now: the dataset's source has changed. Pin its "
            "`content` in datasets.yaml: that gives new keys; `anncestry gc --results` lists what the old ones left"
        )


def vectors_of(record: Mapping[str, Any]) -> Any:
    """What the vectors are that a record was made from: their contents, where they may be made again."""
    entry = record["inputs"]["vectors"]
    return entry.get("identity", entry["sha256"])


def all_codes(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The code that wrote a record, then that of each of its rounds where it is another: those did the measuring."""
    rounds = (each.get("code") or {} for each in record.get("rounds") or ())
    return list({canonical(code): code for code in (record.get("code") or {}, *rounds)}.values())


def ceiling_of(record: Mapping[str, Any]) -> Path | None:
    """The record of the client's ceiling that a query record quotes; None for any other record."""
    quoted = (record.get("client") or {}).get("ceiling") or {} if record["stage"] == "query" else {}
    if "record" not in quoted:
        return None
    names = {"platform": record["spec"]["platform"], "key": quoted["record"]}
    return Path(STAGES["ceiling"].output.format(**{**quoted, **names}))


def promote(source: Path, target: Path, *, stage: str, key: str) -> None:
    """Copy the record `source` to `target`, and each of its outputs beside it as `STEM.LABEL.EXTENSION`.

    Outputs are verified first: what is published is what was measured.
    """
    record = read_record(source, stage=stage, key=key)
    for label, file in verify_outputs(source, record).items():
        published = target.with_name(f"{target.stem}.{label}{file.suffix}")
        with replacing(published) as temporary:
            shutil.copyfile(file, temporary)
        record["outputs"][label]["path"] = os.path.relpath(published, target.parent)
    write_json(target, seal(record))


# Schemas


def _from_1(record: dict[str, Any]) -> dict[str, Any]:
    """Version 2 names the lock file, limits, virtualisation, and the load after a measurement; 1 did not know them."""
    if isinstance(record.get("code"), dict):
        record["code"].setdefault("lock_sha256", None)
    machine = record.get("platform")
    if isinstance(machine, dict):
        machine.setdefault("load_average_before", machine.get("load_average_1min"))
        for name in ("cpu_flags", "governor", "virtualisation", "limits", "load_average_after"):
            machine.setdefault(name, None)
    return record


MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {1: _from_1}
"""For each earlier version, what makes a record of it one of the next; a fact that was not kept becomes None."""


def migrate(record: Mapping[str, Any], source: object) -> dict[str, Any]:
    """The record in the present version; DataError names `source` if its version is newer, or none."""
    version = record.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise DataError(f"{source}: unknown schema version {version!r}")
    if version > VERSION:
        raise DataError(
            f"{source}: a newer anncestry wrote schema version {version}; this one reads up to {VERSION}: "
            "update anncestry"
        )
    if version == VERSION:
        return dict(record)
    body: dict[str, Any] = copy.deepcopy(dict(record))
    while (step := body["schema_version"]) < VERSION:
        if step not in MIGRATIONS:
            raise DataError(f"{source}: no migration from schema version {version}")
        body = {**MIGRATIONS[step](body), "schema_version": step + 1}
    return body


def check_schema(record: Mapping[str, Any], source: object, *, whole: bool) -> None:
    """Check a record of the present version with the schema of its stage; DataError names `source` and the key.

    With `whole`, every part that the schema requires must be there; else only what is there must be right.
    """
    stage = record.get("stage")
    schema = _schema(stage, whole) if isinstance(stage, str) else None
    if schema is None:
        raise DataError(f"{source}: unknown stage {stage!r}")
    for error in schema.errors(record):
        where = ".".join(str(part) for part in error.absolute_path)
        message = error.message if len(error.message) < 160 else f"does not satisfy {error.validator!r}"
        raise DataError(f"{source}: not a {stage} record of schema version {VERSION}: {where or 'it'}: {message}")


@cache
def _schema(stage: str, whole: bool) -> Schema | None:
    """The schema of a stage's records; None for an unknown stage."""
    envelope = yaml.load((SCHEMAS / "records.schema.yaml").read_text(), Loader=yaml.CSafeLoader)
    parts = envelope["$defs"]
    if stage not in envelope["properties"]["stage"]["enum"]:
        return None
    if not whole:
        envelope["required"] = _ENVELOPE
        for part in (parts[stage], parts["measured"], parts["machine"], envelope["properties"]["code"]):
            part.pop("required", None)
    return Schema({**envelope, "allOf": [{"$ref": f"#/$defs/{stage}"}]})
