"""Files by HTTP, from buckets, and out of archives.

Downloads go on where they were interrupted, and are verified as far as their source allows. Of a tar archive, plain or
gzip, and of a zip archive, only named members are written, and nothing outside of the folder.
"""

from __future__ import annotations

import lzma
import re
import shutil
import ssl
import stat
import struct
import tarfile
import threading
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from pathlib import Path, PurePosixPath
from typing import IO, Any
from urllib.parse import urlsplit

import numpy as np

import anncestry
from anncestry import durable
from anncestry.datasets import buckets
from anncestry.errors import DataError, damage, of_machine
from anncestry.progress import Progress
from anncestry.provenance.records import replacing, sha256_file
from anncestry.user_cache import locked
from anncestry.web import Watch

TIMEOUT_S = 10.0  # to connect, and between two reads
_ATTEMPTS = 3  # in a row that bring nothing new
_PAUSE_S = 1.0
_READ_BYTES = 1 << 20
_MOST_BYTES = 1 << 40
_LONGEST_S, _SLOWEST_BYTES_PER_S = 900.0, 100_000  # for anything, and what is added for as much as it may be
_HEAD = struct.Struct("<II")  # of a big-ann file
_HEADER_BYTES = 1 << 20  # of a member of an archive
_READ_WHOLE = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)
# What the readers of tar and of its compressions raise on damaged bytes.
_TAR_ERRORS = (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError, struct.error, ValueError, OverflowError)
# NotImplementedError and RuntimeError: an encryption that a flipped bit asks for.
_ZIP_ERRORS = (
    *(zipfile.BadZipFile, EOFError, OSError, zlib.error, struct.error),
    *(ValueError, OverflowError, NotImplementedError, RuntimeError),
)
_ZIPPED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Of the others, Python unpacks as much at once as a file asks for."""


def fetch(url: str, path: Path, sha256: str | None = None, most: int = _MOST_BYTES) -> str:
    """Download `url` to `path` unless it is there already; returns the sha256 of the file.

    The content grows in `path` + `.part`, and an interrupted download goes on from there where the server can vouch
    that the file is still the same (ETag or Last-Modified) or the sha256 will tell. The name `path` is taken only by a
    file that is as long as the server said and has the sha256, where one is given. Of several processes that want the
    same file, one downloads and the others wait. Honours the proxy variables of the environment.
    Raises DataError if the file can't be had, is longer than `most` bytes, or is not as declared.
    """
    with locked(path.with_name(path.name + ".lock"), f"the download of {path.name}"):
        if path.exists():
            try:
                return verified(path, sha256)
            except DataError:
                path.unlink()
        part = path.with_name(path.name + ".part")
        if urlsplit(url).scheme == buckets.SCHEME:
            part.unlink(missing_ok=True)
        # Where a resumed file is not as declared, it may have changed in between: then once more from its beginning.
        for _ in range(2 if part.exists() else 1):
            if urlsplit(url).scheme == buckets.SCHEME:
                buckets.download(url, part, most)
            else:
                _download(url, part, most, trust_partial=sha256 is not None)
            found = sha256_file(part)
            if sha256 in (None, found):
                durable.place(part, path)
                _remove_partial(part)
                return found
            _remove_partial(part)
        raise DataError(f"{url}: sha256 {found[:12]}… differs from the declared {str(sha256)[:12]}…")


def fetch_rows(url: str, path: Path, rows: int, dtype: np.dtype[Any]) -> tuple[str, int]:
    """Download the first `rows` rows of a big-ann file (uint32 rows, uint32 dim, values of `dtype`), and no more of it.

    Asked for by byte range, and resumed as in `fetch`; the header of `path` then states the rows that it holds.
    Returns the sha256 of that file and how many rows the whole one has.
    Raises DataError if the file can't be had, has fewer rows, or is not as long as its header says.
    """
    known = path.with_name(path.name + ".whole")
    with locked(path.with_name(path.name + ".lock"), f"the download of {path.name}"):
        if path.exists() and known.exists():
            return sha256_file(path), int(known.read_text())
        part, head = path.with_name(path.name + ".part"), path.with_name(path.name + ".head")
        head.unlink(missing_ok=True)
        size = _download(url, head, _HEAD.size, whole=False)
        whole, dim = _HEAD.unpack(head.read_bytes())
        head.unlink()
        _validator_file(head).unlink(missing_ok=True)
        row_bytes = dim * dtype.itemsize
        if not row_bytes or whole < rows:
            raise DataError(f"{url}: holds {whole} rows of dim {dim}, fewer than the {rows} rows of the config")
        if size is not None and size != _HEAD.size + whole * row_bytes:
            raise DataError(f"{url}: is {size} bytes long, but its header states {whole} rows of dim {dim}")
        _download(url, part, _HEAD.size + rows * row_bytes, whole=False)
        with open(part, "r+b") as file:
            file.write(_HEAD.pack(rows, dim))
        with replacing(known) as temporary:
            temporary.write_text(str(whole))
        durable.place(part, path)
        _remove_partial(part)
        return sha256_file(path), whole


class _Unreachable(Exception):
    """A failure after which a second attempt can't help."""


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Followed to http and https only, and not from the second to the first."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        scheme = urlsplit(newurl).scheme
        if scheme not in ("http", "https") or (scheme, req.type) == ("http", "https"):
            raise _Unreachable(f"leads from {req.type} to {scheme or 'nowhere'}, which anncestry doesn't follow")
        fp.close()  # else all that comes with it is read into memory
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener(watch: Watch) -> urllib.request.OpenerDirector:
    """Of http and https, and of nothing else. A new one each time: it keeps the proxies that the environment states."""

    class Watched(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
        def do_open(self, http_class: Any, req: Any, **options: Any) -> Any:
            return super().do_open(watch.of(http_class), req, **options)

    opener = urllib.request.OpenerDirector()
    for handler in (
        *(urllib.request.ProxyHandler(), urllib.request.UnknownHandler(), Watched(), _Redirects()),
        *(urllib.request.HTTPDefaultErrorHandler(), urllib.request.HTTPErrorProcessor()),
    ):
        opener.add_handler(handler)
    return opener


@contextmanager
def downloads(at_once: int) -> Iterator[ThreadPoolExecutor]:
    """Threads to download in, which give up when this one is ended: what they have stays, to go on from."""
    ended = threading.Event()
    pool = ThreadPoolExecutor(at_once, initializer=lambda: setattr(_here, "ended", ended))
    try:
        yield pool
    except BaseException:
        ended.set()
        raise
    finally:
        pool.shutdown(cancel_futures=ended.is_set())


_here = threading.local()


def _is_ended() -> bool:
    """Whether what this thread downloads for was ended."""
    ended = getattr(_here, "ended", None)
    return ended is not None and ended.is_set()


def _download(url: str, part: Path, most: int, trust_partial: bool = False, whole: bool = True) -> int | None:
    """Bring `part` to its full length, or to `most` bytes if not the `whole` is wanted, in several attempts if need be.

    Returns the length of the whole file where the server states it. The disk's OSError passes.
    """
    failures, best, reason = 0, -1, ""
    seconds = _LONGEST_S + most / _SLOWEST_BYTES_PER_S
    with Watch(seconds) as watch:
        while failures < _ATTEMPTS and not watch.over and not _is_ended():
            try:
                return _download_once(url, part, most, trust_partial, whole, watch)
            except _Unreachable as error:
                raise DataError(f"{url}: {' '.join(str(error).split())}") from None
            except (OSError, HTTPException) as error:
                if isinstance(error, OSError) and of_machine(error):
                    raise
                reason = _network_reason(error)
            size = part.stat().st_size if part.exists() else 0
            failures = 1 if size > best else failures + 1
            best = max(best, size)
            if failures < _ATTEMPTS:
                time.sleep(_PAUSE_S)
    raise DataError(f"{url}: " + (f"not complete within {seconds:.0f} s" if watch.over else reason))


def _download_once(url: str, part: Path, most: int, trust_partial: bool, whole: bool, watch: Watch) -> int | None:
    have = part.stat().st_size if part.exists() else 0
    if have and not whole and have == most:
        return None  # an earlier process had it all, but did not live to rename it
    validator_file = _validator_file(part)
    validator = validator_file.read_text() if validator_file.exists() else ""
    if not (validator or trust_partial) or have > most:
        have = 0
    response = _ask(url, part, have, validator, None if whole else most, watch)
    if response is None:
        return have  # an earlier process had it all, but did not live to rename it
    with response:
        start = _range_start(response, have)
        total, length = _lengths(response, start)
        if not whole:
            if length is not None and length < most:
                raise _Unreachable(f"is {length} bytes long, shorter than the {most} bytes of the config")
            total = most  # a server that knows no ranges sends all of it: the rest is not read
        if total is not None and total > most:
            raise _Unreachable(f"is {total} bytes long, but the config allows at most {most}")
        part.parent.mkdir(parents=True, exist_ok=True)
        if not start:  # of another file, of which nothing must stay under the new validator
            validator_file.unlink(missing_ok=True)
            part.write_bytes(b"")
        with replacing(validator_file) as temporary:
            temporary.write_text(_validator(response))
        with open(part, "r+b") as file, Progress(f"download {part.stem}", total, "B") as progress:
            file.seek(start)
            file.truncate()
            progress.at(start)
            # What there is, not so much of it: that would wait for all of it, at whatever pace.
            while data := response.read1(min(_READ_BYTES, most - file.tell() + whole)):
                file.write(data)
                progress.add(len(data))
                if _is_ended():
                    raise HTTPException("ended")
                if file.tell() > most:
                    file.truncate(0)
                    raise _Unreachable(f"sends more than {most} bytes, the maximum for this config")
    size = part.stat().st_size
    if watch.over or (total is not None and size != total):
        raise HTTPException(f"the download ended after {size} of {total} bytes")
    return length


def _ask(url: str, part: Path, have: int, validator: str, most: int | None, watch: Watch) -> HTTPResponse | None:
    """The answer, for what comes after the `have` bytes; None where there is no more."""
    headers = {"User-Agent": f"anncestry/{anncestry.__version__}", "Accept-Encoding": "identity"}
    if have or most is not None:
        headers["Range"] = f"bytes={have}-" + ("" if most is None else str(most - 1))
        if have and validator:
            headers["If-Range"] = validator
    try:
        request = urllib.request.Request(url, headers=headers)
        response: HTTPResponse = _opener(watch).open(request, timeout=TIMEOUT_S)
        return response
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and error.headers.get("Content-Range") == f"bytes */{have}":
            return None
        if error.code == 416:  # the part is not a beginning of the file
            _remove_partial(part)
            raise HTTPException("the server does not have the rest of the file") from None
        if error.code in (408, 429) or error.code >= 500:
            raise HTTPException(f"the server answered {error.code} {error.reason}") from None
        raise _Unreachable(f"the server answered {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            raise _Unreachable(f"its certificate is not valid ({error.reason.verify_message})") from None
        raise
    except ValueError as error:
        raise _Unreachable(f"redirects to an invalid address ({error})") from None


def _lengths(response: HTTPResponse, start: int) -> tuple[int | None, int | None]:
    """Where the answer (from `start` on) ends in the file, and how long that is on the server; None: not stated."""
    stated = response.headers.get("Content-Length")
    if stated is not None and not re.fullmatch(r"[0-9]{1,18}", stated):
        raise _Unreachable(f"the server states an invalid length, {stated[:40]!a}")
    end = None if stated is None else start + int(stated)
    if response.status != 206:
        return end, end
    whole = re.search(r"/([0-9]{1,18})$", response.headers.get("Content-Range", ""))
    return end, int(whole[1]) if whole else None


def _range_start(response: HTTPResponse, have: int) -> int:
    """The byte that the answer's content starts at: after what we have, or 0 where the server sends the whole file."""
    if response.status != 206:
        return 0
    stated = re.match(r"bytes ([0-9]{1,18})-", response.headers.get("Content-Range", ""))
    if stated is None or int(stated[1]) != have:
        raise HTTPException("the server sent a range that differs from the request")
    return have


def _validator(response: HTTPResponse) -> str:
    """What an If-Range header may hold: a strong ETag, else the date; empty where the server states neither."""
    etag = response.headers.get("ETag", "")
    return etag if etag and not etag.startswith("W/") else response.headers.get("Last-Modified", "")


def _validator_file(part: Path) -> Path:
    return part.with_name(part.name + ".validator")


def _remove_partial(part: Path) -> None:
    part.unlink(missing_ok=True)
    _validator_file(part).unlink(missing_ok=True)


def _network_reason(error: Exception) -> str:
    if isinstance(error, HTTPException):
        return str(error) or type(error).__name__
    reason = getattr(error, "reason", error)
    if isinstance(reason, TimeoutError):
        return f"no answer within {TIMEOUT_S:.0f} s"
    return f"can't be reached ({getattr(reason, 'strerror', None) or reason})"


def verified(path: Path, pinned: str | None, what: str = "") -> str:
    """The sha256 of a file; DataError, of `what` it is, unless it is the `pinned` one, where there is one."""
    found = sha256_file(path)
    if pinned is not None and found != pinned:
        raise DataError(f"{what or path}: sha256 {found[:12]}… differs from the declared {pinned[:12]}…")
    return found


# Archives


class _Header(tarfile.TarInfo):
    """Of a member. Those of the long names and other properties that come before one are read whole."""

    @classmethod
    def frombuf(cls, buf: Any, encoding: str, errors: str) -> _Header:
        found = super().frombuf(buf, encoding, errors)
        if found.type in _READ_WHOLE and found.size > _HEADER_BYTES:
            raise tarfile.ReadError(f"{found.size} bytes of properties of a member")
        if found.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError(f"{found.name!a} is a sparse file")
        return found


def extract(archive: Path, members: Mapping[str, int], folder: Path) -> dict[str, Path]:
    """Unpack these members into `folder`, under their names in the archive; returns name of the member → file.

    `members` says how many bytes each may have. Read in one pass, as a stream. DataError for a name that leads out of
    the archive, for a member that is longer, or no plain file (a link may lead anywhere), for one that is missing, and
    for a damaged archive.
    """
    wanted = {plain(archive, name): name for name in members}
    found: dict[str, Path] = {}
    folder.mkdir(parents=True, exist_ok=True)
    with (
        damage(_TAR_ERRORS, f"{archive}: damaged or no tar archive"),
        tarfile.open(archive, "r|*", tarinfo=_Header) as stream,
    ):
        for member in stream:
            name = wanted.get(plain(archive, member.name))
            if name is None or name in found:
                continue
            if not member.isreg() or member.issparse():
                raise DataError(f"{archive}: {member.name} is not a plain file")
            _require_size(archive, name, member.size, members)
            source = stream.extractfile(member)
            assert source is not None  # it is a plain file
            found[name] = _write_member(archive, name, member.size, source, folder)
            if len(found) == len(wanted):
                return found
    raise DataError(f"{archive}: holds no {_missing(wanted, found)}")


def extract_zip(archive: Path, members: Mapping[str, int], folder: Path) -> dict[str, Path]:
    """As `extract`, of a zip archive (a wheel is one), whose members may be stored or deflated."""
    wanted = {plain(archive, name): name for name in members}
    found: dict[str, Path] = {}
    folder.mkdir(parents=True, exist_ok=True)
    with damage(_ZIP_ERRORS, f"{archive}: damaged or no zip archive"), zipfile.ZipFile(archive) as stream:
        for member in stream.infolist():
            name = wanted.get(plain(archive, member.filename))
            if name is None or name in found:
                continue
            if member.is_dir() or stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG):
                raise DataError(f"{archive}: {name} is not a plain file")
            if member.compress_type not in _ZIPPED:
                raise DataError(f"{archive}: {name} is packed by another method than deflate")
            _require_size(archive, name, member.file_size, members)
            with stream.open(member) as source:
                found[name] = _write_member(archive, name, member.file_size, source, folder)
    if len(found) < len(wanted):
        raise DataError(f"{archive}: holds no {_missing(wanted, found)}")
    return found


def _require_size(archive: Path, name: str, size: int, members: Mapping[str, int]) -> None:
    if size > members[name]:
        raise DataError(f"{archive}: {name} has {size} bytes, but the config allows at most {members[name]}")


def _write_member(archive: Path, name: str, size: int, source: IO[bytes], folder: Path) -> Path:
    path = folder / plain(archive, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary, open(temporary, "wb") as target:
        shutil.copyfileobj(source, target, _READ_BYTES)
    if path.stat().st_size != size:
        raise DataError(f"{archive}: {name} ends before its {size} bytes")
    return path


def _missing(wanted: Mapping[str, str], found: Mapping[str, Path]) -> str:
    return next(name for name in wanted.values() if name not in found)


def plain(archive: Path, name: str) -> str:
    """The name without a leading "./"; DataError for one that leads out of where it is unpacked."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise DataError(f"{archive}: {name!r} points outside of the archive")
    return str(path)
