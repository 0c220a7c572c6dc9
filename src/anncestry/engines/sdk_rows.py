"""Rows as a Python program inserts them: by a database's own client library, in a process of its own.

The parent is `inserter`. The child is this file alone (`python sdk_rows.py MODULE PACKAGE TARGET OPTIONS`), in the
environment of that library: at its top it imports nothing of ours. `MODULE` is a file with `inserting(target,
options)`, which returns a function from (first row, vectors, names of columns, their values row by row) to the rows
that were refused, by their place and with the reason, and one that ends the client.

Between the two go messages: the length of a head and of a body (two uint32, little-endian), the head in JSON, the body.
"""

from __future__ import annotations

import importlib.util
import json
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from anncestry.engines.base import Batch

_LENGTHS = struct.Struct("<II")


def message(head: Mapping[str, Any], body: bytes = b"") -> bytes:
    text = json.dumps(head).encode()
    return _LENGTHS.pack(len(text), len(body)) + text + body


def request(rows: Batch) -> bytes:
    """A batch as the child takes it."""
    columns = [list(values) for values in rows.columns()]
    head = {"first": rows.first, "dim": rows.base.shape[1], "names": rows.names, "values": columns}
    return message(head, rows.base.astype("<f4", copy=False).tobytes())


def _read(stream: IO[bytes]) -> tuple[dict[str, Any], bytes] | None:
    """The next message; None at the end."""
    lengths = stream.read(_LENGTHS.size)
    if len(lengths) < _LENGTHS.size:
        return None
    head, body = _LENGTHS.unpack(lengths)
    return json.loads(stream.read(head)), stream.read(body)


@contextmanager
def inserter(
    python: Path | str, module: Path, package: str, target: str, options: Mapping[str, Any], timeout_s: float
) -> Iterator[tuple[str, Callable[[range, bytes], dict[int, str]]]]:
    """The library's name and version, and what sends a batch by it: the rows that were refused, by place, and why.

    ServerError if the library, or its process, fails; or does not answer within `timeout_s`.
    """
    import os
    import select
    import subprocess
    import tempfile

    from anncestry import redact
    from anncestry.errors import ServerError
    from anncestry.runtimes.native import clean_environment

    command = [str(python), "-I", __file__, str(module), package, target, json.dumps(options)]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            env=clean_environment({}),
            start_new_session=True,
        )
        assert process.stdin is not None and process.stdout is not None
        told, answers = process.stdin, process.stdout

        def answer() -> dict[str, Any]:
            ready, _, _ = select.select([answers], [], [], timeout_s)
            found = _read(answers) if ready else None
            if found is not None and "failed" not in found[0]:
                return found[0]
            said.seek(0)
            died = said.read().decode(errors="replace").strip().splitlines()[-1:]
            why = found[0]["failed"] if found else f"no answer in {timeout_s:g} s" if not ready else f"it ended: {died}"
            raise ServerError(redact.text(f"{package}: {why}"))

        def insert(_: range, batch: bytes) -> dict[int, str]:
            try:
                told.write(batch)
                told.flush()
            except BrokenPipeError:
                pass  # `answer` tells why it ended
            return {int(place): why for place, why in answer()["refused"].items()}

        try:
            yield str(answer()["library"]), insert
        finally:
            try:
                told.close()
            except BrokenPipeError:
                pass
            try:
                process.wait(timeout=2)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()
            answers.close()


def _serve(module: str, package: str, target: str, options: str) -> None:
    """Insert each batch that comes on the input, and answer on the output, until the input ends."""
    spec = importlib.util.spec_from_file_location("inserting", module)
    assert spec is not None and spec.loader is not None
    library = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(library)
    out = sys.stdout.buffer
    sys.stdout = sys.stderr  # what a library prints is no answer

    def tell(head: Mapping[str, Any]) -> None:
        out.write(message(head))
        out.flush()

    try:
        insert, close = library.inserting(target, json.loads(options))
        tell({"library": f"{package} {version(package)}"})
        while (found := _read(sys.stdin.buffer)) is not None:
            head, body = found
            flat = memoryview(body).cast("f")
            rows = range(len(head["values"]))
            vectors = [flat[row * head["dim"] : (row + 1) * head["dim"]].tolist() for row in rows]
            tell({"refused": insert(head["first"], vectors, head["names"], head["values"])})
        close()
    except Exception as error:
        tell({"failed": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    _serve(*sys.argv[1:])
