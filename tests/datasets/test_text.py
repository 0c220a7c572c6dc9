"""Vectors as text, CSV and JSON: read piece by piece, or refused in a sentence that names the file and the row."""

from __future__ import annotations

import gzip
import io
import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anncestry.datasets import formats, text
from anncestry.errors import DataError

FLOATS = np.random.default_rng(1).standard_normal((9, 5)).astype(np.float32)
LISTS = FLOATS.tolist()
AS_WORDS = {f'"{number}\\ é [{{,': row for number, row in enumerate(LISTS)}
AROUND = {
    "size": 9,
    "none": None,
    "text": 'a "quoted" ] }',
    "lists": [[1, {"a": []}], []],
    "vectors": AS_WORDS,
    "z": {},
}


def read(path: Path, data: bytes, format: str, member: str | None = None, columns: int | None = None) -> Any:
    path.write_bytes(data)
    with formats.open_vectors(path, format, member) as whole:
        file = whole.first(columns)
        rows = np.concatenate(list(file.chunks(3 * 5 * 8)))
        assert rows.shape == (file.rows, file.dim)
    return rows


def csv(lists: list[list[float]] = LISTS, end: str = "\n") -> bytes:
    return end.join(",".join(map(repr, row)) for row in lists).encode()


@pytest.mark.parametrize(
    "data", [csv(), csv() + b"\n", csv(end="\r\n"), gzip.compress(csv()), csv().replace(b",", b" , ")]
)
def test_lines_of_numbers_are_rows(data: bytes, tmp_path: Path) -> None:
    assert (read(tmp_path / "x", data, "csv") == FLOATS).all()
    assert (read(tmp_path / "x", data, "csv", columns=3) == FLOATS[:, :3]).all()


@pytest.mark.parametrize(
    ("body", "member"), [(LISTS, None), (AS_WORDS, None), (AROUND, "vectors"), ({"vectors": LISTS}, "vectors")]
)
@pytest.mark.parametrize("style", [{}, {"indent": 3}, {"ensure_ascii": False, "separators": (",", ":")}])
@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_lists_of_a_json_file_are_rows_however_it_is_cut_into_pieces(
    body: Any, member: str | None, style: dict[str, Any], piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "_PIECE_BYTES", piece)
    assert (read(tmp_path / "x", json.dumps(body, **style).encode(), "json", member) == FLOATS).all()


@pytest.mark.parametrize(
    ("data", "because"),
    [
        (b"", "holds no vectors"),
        (b"a,b\n1,2\n", "row 0 is no line of numbers between commas: 'a,b'"),
        (b"1,2\n1,nan\n", "row 1 is no line of numbers"),
        (b"1,2\n1_0,2\n", "row 1 is no line of numbers"),
        (b"1,2\n\n3,4\n", "row 1 is no line of numbers"),
        (b"1,2\n1,2,3\n", "row 1 has 3 numbers, but the first row 2"),
        ("1,²\n".encode(), "row 0 is no line of numbers"),
        (gzip.compress(csv())[:-9], "truncated or corrupt gzip stream"),
    ],
)
def test_a_csv_that_is_none_is_refused_by_row(data: bytes, because: str, tmp_path: Path) -> None:
    refused(tmp_path / "x", data, "csv", None, because)


@pytest.mark.parametrize(
    ("data", "member", "because"),
    [
        (b"", None, "truncated: ends within its JSON"),
        (b"3", None, "holds no array or object of lists$"),
        (b"[]", None, "holds no vectors"),
        (b"[[]]", None, "holds no vectors"),
        (b"[[1,2],[1]]", None, "row 1 has 1 numbers, but the first row 2"),
        (b"[[1,2],3]", None, "row 1 is no list of numbers"),
        (b'[[1,2],["a",3]]', None, "row 1 is no list of numbers"),
        (b"[[1,2],[NaN,3]]", None, "row 1 is no list of numbers"),
        (b"[[1,2],[null,3]]", None, "row 1 is no list of numbers"),
        (b"[[1,2],[[1],3]]", None, "row 1 is no list of numbers"),
        (b"[[1,2],[1,,3]]", None, "row 1 is no list of numbers"),
        (b"[[1,2] [1,3]]", None, "no JSON after row 0"),
        (b"[[1,2],[1,3]", None, "truncated: ends within its JSON"),
        (b'{"a": [1], b: [2]}', None, "no JSON where a name is expected"),
        (b'{"a" [1]}', None, "no JSON file with an object at row 0"),
        (b'{"\\x": [1]}', None, "no JSON name"),
        (b"[[1,2]]", "vectors", "no JSON file with an object"),
        (b'{"words": [], "of": {"vectors": [[1]]}}', "vectors", "has no key 'vectors'; there are words, of$"),
        (b'{"vectors": 3}', "vectors", "holds no array or object of lists under 'vectors'"),
        (b'["\xff"]', None, "no JSON file: not UTF-8"),
    ],
)
def test_a_json_file_of_anything_else_is_refused(data: bytes, member: str | None, because: str, tmp_path: Path) -> None:
    refused(tmp_path / "x", data, "json", member, because)


def refused(path: Path, data: bytes, format: str, member: str | None, because: str) -> None:
    with pytest.raises(DataError, match=because) as raised:
        read(path, data, format, member)
    assert str(raised.value).startswith(str(path)) and "\n" not in str(raised.value)


def test_a_number_beyond_float32_and_fewer_columns_than_asked_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"1,2\n1,1e39\n")
    with formats.open_vectors(tmp_path / "x", "csv") as file:
        with pytest.raises(DataError, match="row 1 holds NaN or infinity"):
            list(file.finite(2))
        with pytest.raises(DataError, match="has 2 numbers a row, fewer than the first 3 of the config"):
            file.first(3)


def test_a_row_or_a_name_without_an_end_is_not_read_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "_ROW_BYTES", 1 << 10)
    monkeypatch.setattr(text, "_PIECE_BYTES", 1 << 8)
    long = b"1," * (1 << 12)
    refused(tmp_path / "x", long, "csv", None, "row 0 is longer than 1024 bytes")
    refused(tmp_path / "x", b"[[1,2],[" + long, "json", None, "the list of row 1 is longer than 1024 characters")
    refused(tmp_path / "x", b'{"' + long, "json", None, "a name is longer than 1024 characters")


READING = """
import re, sys
from pathlib import Path
from anncestry.datasets import formats
def peak_kib():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
before = peak_kib()
with formats.open_vectors(Path(sys.argv[1]), sys.argv[2], sys.argv[3] or None) as file:
    rows = sum(len(chunk) for chunk in file.chunks(1 << 20))
print(rows, peak_kib() - before >> 10)
"""


@pytest.mark.parametrize(("format", "member"), [("csv", ""), ("json", "vectors")])
def test_memory_does_not_grow_with_the_file(format: str, member: str, tmp_path: Path) -> None:
    draw, row = random.Random(1), io.StringIO()
    row.write(",".join(f"{draw.random():.12f}" for _ in range(1000)))
    rows = 4000
    with open(tmp_path / "x", "w") as file:
        if format == "csv":
            file.writelines(f"{row.getvalue()}\n" for _ in range(rows))
        else:
            file.write('{"before": [' + '"word", ' * 1_000_000 + '1], "vectors": {')
            file.write(", ".join(f'"w{number}": [{row.getvalue()}]' for number in range(rows)) + "}}")
    size = (tmp_path / "x").stat().st_size >> 20
    command = [sys.executable, "-c", READING, str(tmp_path / "x"), format, member]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.fullmatch(r"(\d+) (\d+)\n", said)
    assert found is not None and int(found[1]) == rows
    assert size > 50 and int(found[2]) < 25, f"{found[2]} MiB more for a file of {size}"
