"""Attempts: a ledger a load, of every start, what it died of, each run measured again, and each drop.

A folder in results/, with a file of JSON lines for each session, load and drop: no file is written by two of them, so
the ledgers of two branches or machines lie side by side when results are merged. Each line holds the sha256 of the line
before in its file, and is on the disk before what it tells of goes on. Records quote of each file the number of lines
and the sha256 of the last one, so `verify` sees a line that was changed, taken out or put in, and a file that is gone;
what no record quotes can be cut off unseen.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from anncestry import durable, redact
from anncestry.cells.stage import STAGES, canonical
from anncestry.errors import Damaged


def _digest(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def lines_of(file: Path) -> list[tuple[dict[str, Any], str]]:
    """The lines of a file, each with its sha256; Damaged if one is not JSON or does not follow the one before.

    Without what follows the last end of a line: a power cut tore it, and nothing that it tells of has begun.
    """
    found: list[tuple[dict[str, Any], str]] = []
    before = ""
    content = file.read_bytes() if file.exists() else b""
    content = content[: content.rfind(b"\n") + 1]
    for number, line in enumerate(content.splitlines(), start=1):
        try:
            entry = json.loads(line)
            follows = entry["before"] == before
        except (ValueError, KeyError, TypeError):
            raise Damaged(file, f"{file}: line {number} is no line of a ledger of attempts") from None
        if not follows:
            raise Damaged(
                file,
                f"{file}: line {number} does not follow the one before it: a line was changed, taken out or put in",
            )
        before = _digest(line)
        found.append((entry, before))
    return found


@dataclass(frozen=True)
class Ledger:
    """The ledger of one load and of all that was measured on it. What it adds has a file of its own."""

    path: Path
    """The folder with its files, beside which it was one file at first (`PATH.jsonl`)."""
    own: str = field(default_factory=lambda: secrets.token_hex(4))

    @classmethod
    def of(cls, spec: Mapping[str, Any], load: str) -> Ledger:
        """That of the load key `load`; `spec` is that of the load or of a query on it."""
        names = {axis: spec[axis]["name"] for axis in ("dataset", "system", "topology")}
        return cls(Path(STAGES["attempts"].output.format(**names, key=load)))

    @classmethod
    def of_measured(cls, spec: Mapping[str, Any]) -> Ledger:
        """That of the load which was measured; of a pair, that of its first side's. `spec` is of a query or a pair."""
        first = spec["sides"]["a"] if "sides" in spec else spec
        return cls.of({"dataset": spec["dataset"], **first}, first["load"])

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> tuple[Ledger, str]:
        """That which a record of a load, a query or a pair quotes, and the query or pair ("" of a load)."""
        if record["stage"] == "load":
            return cls.of(record["spec"], record["key"]), ""
        return cls.of_measured(record["spec"]), record["key"]

    def file(self, name: str) -> Path:
        return self.path / f"{name}.jsonl" if name else self.path.with_name(f"{self.path.name}.jsonl")

    def files(self) -> list[Path]:
        """Those that there are."""
        inside = sorted(self.path.glob("*.jsonl")) if self.path.is_dir() else []
        return [file for file in (self.file(""), *inside) if file.exists()]

    def add(self, event: str, **facts: Any) -> None:
        """Append a line, which is on the disk then. A last line that a power cut tore is cut off first."""
        path = self.file(self.own)
        new = not path.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            content = file.read()
            whole = content[: content.rfind(b"\n") + 1]
            file.truncate(len(whole))
            before = _digest(whole.splitlines()[-1]) if whole else ""
            line = {"at": datetime.now(UTC).isoformat(timespec="microseconds"), "event": event, **redact.body(facts)}
            file.write(canonical({**line, "before": before}).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        if new:
            durable.sync_names([path])

    @contextmanager
    def attempt(self, **facts: Any) -> Iterator[dict[str, Any]]:
        """An attempt: its start, and its end (with what the block puts there), or what it died of.

        One that is killed leaves a start without an end.
        """
        self.add("start", **facts)
        ending: dict[str, Any] = {}
        try:
            yield ending
        except BaseException as error:
            self.add("died", why=redact.short(" ".join(str(error).split()) or type(error).__name__))
            raise
        self.add("end", **ending)

    def read(self) -> dict[str, list[tuple[dict[str, Any], str]]]:
        """Name of each file and its lines (see `lines_of`), the first begun first."""
        files = {"" if file.parent != self.path else file.stem: lines_of(file) for file in self.files()}
        return dict(sorted(((name, lines) for name, lines in files.items() if lines), key=_begun))

    def lines(self) -> list[dict[str, Any]]:
        """The lines of all files."""
        return [line for lines in self.read().values() for line, _ in lines]

    def quote(self, query: str = "") -> dict[str, Any]:
        """For the record of a query, or of the load where none is named: what was attempted, and each file's end."""
        files = self.read()
        if not files:
            return {}
        ends = {name: {"lines": len(lines), "sha256": lines[-1][1]} for name, lines in files.items()}
        return {"attempts": {**count([line for lines in files.values() for line, _ in lines], query), "files": ends}}

    def failure(self, query: str = "") -> str:
        """How often this query (the load where none is named) was tried, and why the last try failed; "" if none did.

        For what has no record. A ledger that is damaged says so here: `verify` names it, too.
        """
        try:
            lines = self.lines()
        except Damaged as error:
            return str(error)
        counted, last = count(lines, query), ""
        mine = False
        for line in lines:
            if line["event"] == "start":
                mine = query in line.get("queries", ()) if query else line["stage"] == "load"
                last = "killed" if mine else last
            elif mine and line["event"] in ("end", "died"):
                last = line.get("why") or line.get("failed", {}).get(query, "")
                mine = False
        return f"{words(counted)}; the last: {last}" if counted["died"] and last else ""

    def check(self, quoted: Mapping[str, Any], query: str = "") -> None:
        """Damaged unless each file begins with the lines that were quoted, and they say what was quoted of them."""
        found = {}
        for name, end in quoted.get("files", {"": quoted}).items():
            file = self.file(name)
            found[name] = lines_of(file)[: end["lines"]]
            if len(found[name]) < end["lines"] or found[name][-1][1] != end["sha256"]:
                raise Damaged(file, f"{file}: does not hold the {end['lines']} lines that a record quotes")
        lines = [line for _, lines in sorted(found.items(), key=_begun) for line, _ in lines]
        counted = count(lines, query)
        if counted != {name: quoted[name] for name in counted}:
            raise Damaged(self.path, f"{self.path}: says other attempts than the record that quotes it")


def _begun(file: tuple[str, Sequence[tuple[Mapping[str, Any], str]]]) -> tuple[str, str]:
    """By which the files of a ledger are put in order: the time of the first line, and the name."""
    name, lines = file
    return lines[0][0]["at"], name


def count(lines: Sequence[Mapping[str, Any]], query: str = "") -> dict[str, int]:
    """Attempts at a query (at the load where none is named): starts; of them died; runs measured again; more.

    `restarts` of servers that died before they answered, `dropped` measurements. A start without an end before the
    next one was killed; the last one may still be at work.
    """
    found = dict.fromkeys(("starts", "died", "repeated", "restarts", "dropped"), 0)
    mine = False
    for line in lines:
        event = line["event"]
        if event == "start":
            found["died"] += mine
            mine = query in line.get("queries", ()) if query else line["stage"] == "load"
            found["starts"] += mine
        elif event in ("end", "died"):
            found["died"] += mine and (event == "died" or query in line.get("failed", ()))
            found["restarts"] += len(line.get("restarts", ())) if mine else 0
            mine = False
        elif event == "repeat":
            found["repeated"] += bool(query) and line["query"] == query
        elif event == "drop":
            found["dropped"] += line.get("load", False) or query in line.get("queries", ())
    return {name: int(number) for name, number in found.items()}


def words(quoted: Mapping[str, Any]) -> str:
    """What a record's `attempts` say, for people."""
    starts = quoted["starts"]
    said = [f"{quoted['died']} of {starts} starts died" if quoted["died"] else f"{starts} start{'s' * (starts != 1)}"]
    for name, what in (
        ("repeated", "measured again as it was disturbed"),
        ("restarts", "server started again"),
        ("dropped", "dropped"),
    ):
        if times := quoted[name]:
            said.append(f"{what} {times} time{'s' * (times != 1)}")
    return ", ".join(said)
