"""Replace secret values of the environment by the names of their variables in all output.

A server may quote a password in its error, a library an address in its own. Whoever reads such a variable says so here
(`secret`, `address`), in each process that does; whatever leaves it as text (records, outcomes, errors, logs) goes
through `text` or `body` first, which put the variable's name in the place of its value.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import re
import socket
import string
from contextlib import suppress
from typing import Any
from urllib.parse import quote

_WEAK = 8
"""A secret of fewer characters may be a word of its own: only whole words of a sentence are taken for it."""
_BASE64_MIN = 6
_BEGINNING = 12
"""Whoever quotes a secret may have cut it: a word that begins with so many of its characters is taken for it."""


class _Rules:
    """What stands instead of what matches each of some regular expressions, the longest first."""

    def __init__(self) -> None:
        self._marks: dict[str, str] = {}
        self._pattern: re.Pattern[str] | None = None
        self._ordered: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._marks)

    def learn(self, source: str, mark: str) -> None:
        if source not in self._marks:
            self._marks[source] = mark
            sources = sorted(self._marks, key=lambda each: (-len(each), each))
            self._ordered = [self._marks[each] for each in sources]
            self._pattern = re.compile("|".join(f"({each})" for each in sources))

    def apply(self, said: str) -> str:
        if self._pattern is None:
            return said
        return self._pattern.sub(lambda match: self._ordered[(match.lastindex or 1) - 1], said)


_strong, _beginnings, _of_sentences = _Rules(), _Rules(), _Rules()
_addresses: dict[str, str] = {}


def secret(variable: str, value: str) -> None:
    """`value` is what `variable` holds, and nobody's business."""
    mark, plain = f"[value of {variable}]", value.encode()
    forms = {value, " ".join(value.split()), *_quoted(value), plain.hex(), plain.hex().upper()}
    for form in forms - {""}:
        if len(value) < _WEAK:
            _of_sentences.learn(rf"(?<!\w){re.escape(form)}(?!\w)", mark)
        else:
            _learn(form, mark)
    for form in _base64(plain):
        if len(form) >= _BASE64_MIN:
            _learn(form, mark)
    password = value.partition(":")[2]  # of a login as user:password
    if len(password) >= _WEAK:
        secret(variable, password)


def _learn(form: str, mark: str) -> None:
    _strong.learn(re.escape(form), mark)
    if len(form) > _BEGINNING:
        _beginnings.learn(re.escape(form[:_BEGINNING]) + r"[^\s\"',;)\]}]*", mark)


def address(variable: str, value: str) -> None:
    """`variable` names somebody's endpoint, host:port."""
    restore({f"[address of {variable}]": value})


def addresses() -> dict[str, str]:
    """What stands for each address in text → host:port: for who has to connect, and reads text (see `restore`)."""
    return dict(_addresses)


def restore(known: dict[str, str]) -> None:
    """Know the addresses that another process knows."""
    for mark, value in known.items():
        if _addresses.get(mark) == value:
            continue
        _addresses[mark] = value
        host, _, port = value.rpartition(":")
        host = host.strip("[]")
        for name in {host, *_resolved(host)}:
            bare = re.escape(name)
            _strong.learn(rf"(?<![\w.-])(?i:\[{bare}\]|%5B{bare}%5D|{bare}):{port}(?!\d)", mark)
            if _loopback(name):
                continue  # it tells nothing, and is in much that is ours
            if "." in name or ":" in name:
                _strong.learn(rf"(?<![\w.-])(?i:{bare})(?![\w-]|\.\w)", mark)
            else:  # a name that could be any word
                _strong.learn(rf"(?<=['\"])(?i:{bare})(?=['\"])", mark)


def text(said: str) -> str:
    """The same without what is known: see `secret` and `address`."""
    said = _beginnings.apply(_strong.apply(said))
    return _of_sentences.apply(said) if " " in said else said


def short(said: str, characters: int = 300) -> str:
    """The beginning of the same: cut afterwards, as half a secret would not be known for one."""
    return text(said)[:characters]


def body(found: Any) -> Any:
    """The same for what is JSON, keys too; counts whose keys become one are added."""
    if not (_strong or _of_sentences):
        return found
    if isinstance(found, str):
        return text(found)
    if isinstance(found, list | tuple):
        return [body(each) for each in found]
    if not isinstance(found, dict):
        return found
    if all(type(value) is int and isinstance(key, str) for key, value in found.items()):
        return counts(found, None)
    return {body(key): body(value) for key, value in found.items()}


def counts(found: dict[str, int], characters: int | None = 300) -> dict[str, int]:
    """How often each text came, the same for its beginning."""
    result: dict[str, int] = {}
    for key, count in found.items():
        name = text(key)[:characters]
        result[name] = result.get(name, 0) + count
    return result


def _quoted(value: str) -> list[str]:
    """As JSON, Python, an address, and a gRPC status write it."""
    printed = string.punctuation.replace("%", "") + " "
    return [
        *(json.dumps(value, ensure_ascii=ascii)[1:-1] for ascii in (True, False)),
        *(repr(value)[1:-1], repr(value.encode())[2:-1]),
        *(quote(value, safe=safe) for safe in ("", "/", printed)),
    ]


def _base64(value: bytes) -> set[str]:
    """What base64 of any text with the value in it has, wherever it begins: without the letters it shares with more."""
    found = set()
    for ahead in range(3):
        whole = base64.b64encode(b"\0" * ahead + value).decode()
        shared = (0, 2, 3)[ahead]
        tail = {0: len(whole), 1: -3, 2: -2}[(ahead + len(value)) % 3]
        found |= {whole[shared:tail], whole[shared:tail].translate(str.maketrans("+/", "-_"))}
    return found


def _resolved(host: str) -> set[str]:
    """What the host's name stands for: a library's error may name that."""
    with suppress(OSError, UnicodeError):
        return {str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    return set()


def _loopback(name: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(name).is_loopback
    return name == "localhost"
