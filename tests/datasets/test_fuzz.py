"""Garbage, cuts and flipped bits: every reader says so in a sentence of its own, or gives what was written.

Derandomized: the same examples each time, as many as fit into a few seconds. More of them: ANNCESTRY_FUZZ=50 makes so
many times as many.
"""

from __future__ import annotations

import copy
import functools
import gzip
import io
import json
import os
import struct
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from anncestry import workflow
from anncestry.cells import config
from anncestry.datasets import fetching, formats, parquet, payload, truth
from anncestry.datasets.truth import Neighbors
from anncestry.drive import protocol
from anncestry.errors import UserError
from anncestry.provenance import records
from anncestry.runtimes.building import unpack
from tests.toy import TOY

TIMES = int(os.environ.get("ANNCESTRY_FUZZ", "1"))

ROWS, DIM = 7, 5
FLOATS = np.random.default_rng(1).standard_normal((ROWS, DIM)).astype(np.float32)
INTS = np.arange(ROWS * DIM, dtype=np.int32).reshape(ROWS, DIM)


def fuzzed(examples: int) -> Callable[[Any], Any]:
    return settings(
        max_examples=examples * TIMES,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


@contextmanager
def folder() -> Iterator[Path]:
    """A new folder for one example, in memory where the machine has such a place."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory, prefix="anncestry-fuzz-") as name:
        yield Path(name)


class Tally:
    """How many examples of a test were read, and how many refused."""

    def __init__(self) -> None:
        self.readings = self.refusals = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """An example: what reads it may refuse it."""
        try:
            yield
        except UserError:
            self.refusals += 1
        else:
            self.readings += 1

    def check(self) -> None:
        """A reader that refuses everything, or nothing, would pass every test of one example."""
        assert self.readings and self.refusals, f"{self.readings} read, {self.refusals} refused"


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """Bytes of a file that was cut, or flipped in a few bits, lengthened, patched, or is anything at all."""
    how = draw(st.sampled_from(("cut", "flip", "flip", "flip", "more", "patch", "garbage")))
    data = bytearray(whole)
    if how == "cut":
        return bytes(data[: draw(st.integers(0, max(0, len(data) - 1)))])
    if how == "flip":
        for _ in range(draw(st.integers(1, 4))):
            data[draw(st.integers(0, len(data) - 1))] ^= 1 << draw(st.integers(0, 7))
        return bytes(data)
    if how == "more":
        return bytes(data) + draw(st.binary(min_size=1, max_size=64))
    if how == "patch":
        at = draw(st.integers(0, len(data) - 1))
        patch = draw(st.binary(min_size=1, max_size=8))
        data[at : at + len(patch)] = patch
        return bytes(data)
    return draw(st.binary(max_size=256))


# Files of vectors


def vecs(values: np.ndarray) -> bytes:
    return b"".join(struct.pack("<i", DIM) + row.tobytes() for row in values)


def saved(write: Callable[[Any], Any]) -> bytes:
    buffer = io.BytesIO()
    write(buffer)
    return buffer.getvalue()


def hdf5(**options: Any) -> bytes:
    def write(buffer: io.BytesIO) -> None:
        with h5py.File(buffer, "w") as file:
            file.create_dataset("train", data=FLOATS, **options)

    return saved(write)


NPY = saved(lambda buffer: np.save(buffer, FLOATS))
IDX = struct.pack(">HBBII", 0, 8, 2, ROWS, DIM) + INTS.astype(np.uint8).tobytes()
VECTORS = {
    "fvecs": ("fvecs", vecs(FLOATS)),
    "ivecs": ("ivecs", vecs(INTS)),
    "bvecs": ("bvecs", vecs(INTS.astype(np.uint8))),
    "fbin": ("fbin", struct.pack("<II", ROWS, DIM) + FLOATS.tobytes()),
    "u8bin": ("u8bin", struct.pack("<II", ROWS, DIM) + INTS.astype(np.uint8).tobytes()),
    "npy": ("npy", NPY),
    "npy, Fortran": ("npy", saved(lambda buffer: np.save(buffer, np.asfortranarray(FLOATS)))),
    "json": ("json", json.dumps(FLOATS.tolist()).encode()),
    "json, words": ("json", json.dumps(dict(enumerate(FLOATS.tolist()))).encode()),
    "idx": ("idx", IDX),
    "idx.gz": ("idx", gzip.compress(IDX, mtime=0)),
    "hdf5": ("hdf5", hdf5()),
    "hdf5, chunks": ("hdf5", hdf5(chunks=(3, 2), compression="gzip", fletcher32=True)),
}


def read_vectors(data: bytes, format: str) -> tuple[tuple[int, int], np.ndarray]:
    """What the file states of itself, and the rows that were read."""
    with folder() as place:
        (place / "x").write_bytes(data)
        with formats.open_vectors(place / "x", format) as file:
            return (file.rows, file.dim), np.concatenate(list(file.chunks(64)))


@pytest.mark.parametrize("name", VECTORS)
def test_a_file_of_vectors_is_refused_or_read_to_its_end(name: str) -> None:
    format, whole = VECTORS[name]
    stated, rows = read_vectors(whole, format)
    assert stated == rows.shape == (ROWS, DIM)

    @fuzzed(60)
    @given(damaged(whole))
    def check(data: bytes) -> None:
        with suppress(UserError):
            stated, rows = read_vectors(data, format)
            assert rows.shape == stated and rows.dtype == np.float32
            assert len(data) >= len(whole) or stated != (ROWS, DIM), "a file that was cut is never whole"

    check()


@pytest.mark.parametrize(("format", "whole"), [("ivecs", vecs(INTS)), ("npy", saved(lambda file: np.save(file, INTS)))])
def test_truth_that_came_along_is_refused_or_made_of_ids(format: str, whole: bytes) -> None:
    tally = Tally()

    @fuzzed(40)
    @example(whole)
    @given(damaged(whole))
    def check(data: bytes) -> None:
        with folder() as place, tally.one():
            (place / "x").write_bytes(data)
            with formats.open_truth(place / "x", format, "neighbors") as file:
                ids = np.concatenate(list(file.ids()))
            assert ids.dtype == np.int64 and ids.ndim == 2 and ids.min() >= -1

    check()
    tally.check()


# Parquet


def table(**columns: Any) -> bytes:
    return saved(lambda buffer: pq.write_table(pa.table(columns), buffer))


PARQUET = table(id=np.arange(ROWS)[::-1].copy(), emb=list(FLOATS), near=list(INTS.astype(np.int64)))
ARRAYS = st.sampled_from(
    [
        pa.array([3, 1, None, 0]),
        pa.array([0.5, 1.0, 2.0, 3.0]),
        pa.array(["0", "1", "2", "3"]),
        pa.array([2**63, 1, 2, 3], pa.uint64()),
        pa.array([[1.0], [2.0], [3.0], [4.0]]),
        pa.array([[1], [2], None, [4]]),
        pa.array([[1, None], [2, 3], [3, 4], [4, 5]]),
        pa.array([["a"], ["b"], ["c"], ["d"]]),
        pa.array([[], [], [], []], pa.list_(pa.float32())),
        pa.array([[1.0, 2.0]] * 4, pa.list_(pa.float32(), 2)),
        pa.array([{"a": 1}] * 4),
        pa.array([None] * 4),
        pa.array([0, 1, 2, 3]),
        pa.array([[1], [2], [3], [0]]),
    ]
)


def place_parquet(data: bytes, rows: int, dim: int) -> np.ndarray:
    with folder() as place:
        (place / "x").write_bytes(data)
        queries = parquet.place_queries(place / "x", "id", "emb", dim, place / "queries.npy")
        parquet.place_neighbors(place / "x", "id", "near", queries, place / "near.npy")
        parquet.place_vectors([place / "x"], "id", "emb", rows, dim, place / "out.npy")
        return np.load(place / "out.npy")


def test_a_damaged_parquet_file_is_refused_or_gives_every_row() -> None:
    tally = Tally()

    @fuzzed(120)
    @example(PARQUET)
    @given(damaged(PARQUET))
    def check(data: bytes) -> None:
        with tally.one():
            assert place_parquet(data, ROWS, DIM).shape == (ROWS, DIM)

    check()
    tally.check()


def test_columns_of_other_kinds_are_refused() -> None:
    tally = Tally()

    @fuzzed(80)
    @example(pa.array([0, 1, 2, 3]), pa.array([[1.0], [2.0], [3.0], [4.0]]), pa.array([[1], [2], [3], [0]]))
    @given(ARRAYS, ARRAYS, ARRAYS)
    def check(id: Any, emb: Any, near: Any) -> None:
        with tally.one():
            placed = place_parquet(table(id=id, emb=emb, near=near), 4, 1)
            assert id.type == pa.int64() and sorted(id.to_pylist()) == [0, 1, 2, 3]
            assert placed.tolist() == [emb.to_pylist()[id.to_pylist().index(row)] for row in range(4)]

    check()
    tally.check()


# JSON lines

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
LINE = {"query": [0.5, 1.5], "closest_ids": [1, 2], "conditions": None}


def place_jsonl(data: bytes) -> tuple[np.ndarray, np.ndarray | None]:
    with folder() as place:
        (place / "x").write_bytes(data)
        brought = payload.place_queries(place / "x", place / "q.npy", place / "n.npy")
        return np.load(place / "q.npy"), np.load(place / "n.npy") if brought else None


LINES = (json.dumps(LINE) + "\n").encode() * 4


def test_damaged_json_lines_are_refused_or_queries() -> None:
    tally = Tally()

    @fuzzed(80)
    @example(LINES)
    @given(damaged(LINES))
    def check(data: bytes) -> None:
        with tally.one():
            queries, _ = place_jsonl(data)
            assert len(queries) == sum(bool(line.strip()) for line in data.split(b"\n")) and queries.ndim == 2

    check()
    tally.check()


def test_json_lines_with_other_values_are_refused_or_read_as_they_are() -> None:
    tally = Tally()
    values = JSON | st.lists(st.floats() | st.integers(), max_size=3)

    @fuzzed(80)
    @example({})
    @given(st.dictionaries(st.sampled_from(sorted(LINE)), values))
    def check(test: dict[str, Any]) -> None:
        line = {**LINE, **test}
        with tally.one():
            queries, near = place_jsonl(json.dumps(line).encode())
            with np.errstate(over="ignore"):
                expected = np.array([line["query"]], np.float64).astype(np.float32)
            np.testing.assert_array_equal(queries, expected)
            assert near is None or near.tolist() == [line["closest_ids"]]

    check()
    tally.check()


# Archives


def tar(mode: str) -> bytes:
    def write(buffer: io.BytesIO) -> None:
        with tarfile.open(fileobj=buffer, mode=mode, format=tarfile.PAX_FORMAT) as archive:
            for name, body in (("other", b"x" * 700), ("dir/ä", NPY)):
                member = tarfile.TarInfo(name)
                member.size = len(body)
                archive.addfile(member, io.BytesIO(body))

    return saved(write)


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_a_damaged_tar_is_refused_or_gives_whole_members_and_nothing_outside(mode: str) -> None:
    tally = Tally()

    @fuzzed(40)
    @example(tar(mode))
    @given(damaged(tar(mode)))
    def check(data: bytes) -> None:
        with folder() as place, tally.one():
            (place / "x").write_bytes(data)
            try:
                (found,) = fetching.extract(place / "x", {"dir/ä": 1 << 20}, place / "to").values()
                assert found.stat().st_size == len(NPY) or mode == "w", "only a plain one has no checksum"
            finally:
                assert {path.name for path in place.iterdir()} <= {"x", "to"}

    check()
    tally.check()


def test_a_damaged_zip_is_refused_or_gives_a_whole_member_and_nothing_outside() -> None:
    tally = Tally()

    @fuzzed(150)
    @example(zipped())
    @given(damaged(zipped()))
    def check(data: bytes) -> None:
        with folder() as place, tally.one():
            (place / "x").write_bytes(data)
            try:
                (found,) = fetching.extract_zip(place / "x", {"a/b": 1 << 20}, place / "to").values()
                assert found.read_bytes() == b"hello " * 20, "it has a checksum"
            finally:
                assert {path.name for path in place.iterdir()} <= {"x", "to"}

    check()
    tally.check()


def test_a_damaged_csv_is_refused_or_read_as_numbers() -> None:
    whole = "".join(",".join(map(str, row)) + "\n" for row in FLOATS.tolist()).encode()
    tally = Tally()

    @fuzzed(150)
    @example(whole)
    @given(damaged(whole))
    def check(data: bytes) -> None:
        with tally.one():
            stated, rows = read_vectors(data, "csv")
            assert rows.shape == stated and rows.dtype == np.float32

    check()
    tally.check()


def zipped() -> bytes:
    def write(buffer: io.BytesIO) -> None:
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a/b", b"hello " * 20)
            archive.writestr("a/c", b"")

    return saved(write)


def test_a_damaged_zip_is_refused_or_unpacked_within_its_folder() -> None:
    tally = Tally()

    @fuzzed(150)
    @example(zipped())
    @given(damaged(zipped()))
    def check(data: bytes) -> None:
        with folder() as place, tally.one():
            (place / "x").write_bytes(data)
            try:
                unpack(place / "x", place / "to")
            finally:
                assert {path.name for path in place.iterdir()} <= {"x", "to"}

    check()
    tally.check()


# Parts of truth


def part_of_truth() -> bytes:
    def write(buffer: io.BytesIO) -> None:
        about = {"key": "k", "vectors": "v", "part": 1, "parts": 2, "scanned": 3}
        np.savez(
            buffer,
            about=json.dumps(about),
            ids=INTS.astype(np.int64),
            distances=FLOATS,
            next_distances=FLOATS[:, 0],
            matching=np.arange(3),
        )

    return saved(write)


def test_a_damaged_part_of_truth_is_refused() -> None:
    tally = Tally()

    @fuzzed(120)
    @example(part_of_truth())
    @given(damaged(part_of_truth()))
    def check(data: bytes) -> None:
        with folder() as place, tally.one():
            (place / "x.npz").write_bytes(data)
            found, _ = truth._read_part(place / "x.npz", "k", "v", 1, 2)
            assert isinstance(found, Neighbors)
            np.testing.assert_array_equal(found.ids, INTS)  # a checksum covers it
            np.testing.assert_array_equal(found.distances, FLOATS)

    check()
    tally.check()


# Records


@functools.cache
def record() -> tuple[bytes, bytes]:
    """A record as it is written, and the file that it is of."""
    with folder() as place:
        (place / "ids.npy").write_bytes(NPY)
        body = {"queries": 7, "K": 5, "matching_rows": 7, "metric": "l2"}
        found = records.seal(
            {
                **{"schema_version": 2, "stage": "artifact", "key": "0123456789ab", "spec": {"stage": "artifact"}},
                "inputs": {},
                "outputs": {"ids": {"path": "ids.npy", "sha256": records.sha256_file(place / "ids.npy"), "bytes": 268}},
                **body,
            }
        )
        return json.dumps(found, indent=1).encode(), NPY


def read_record(data: bytes) -> dict[str, Any]:
    with folder() as place:
        (place / "record.json").write_bytes(data)
        (place / "ids.npy").write_bytes(record()[1])
        found = records.read_record(place / "record.json", stage="artifact", key="0123456789ab")
        records.verify_outputs(place / "record.json", found)
        return found


def test_the_record_that_is_damaged_below_is_sound() -> None:
    assert read_record(record()[0]) == json.loads(record()[0])


@fuzzed(200)
@given(damaged(record()[0]))
def test_a_damaged_record_is_refused_or_says_what_it_said(data: bytes) -> None:
    with suppress(UserError):
        assert read_record(data) == json.loads(record()[0])


def places(body: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a nested body."""
    if path:
        yield path
    for key, value in body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ():
        yield from places(value, (*path, key))


def changed(body: Any, path: tuple[Any, ...], value: Any, remove: bool) -> Any:
    """A copy of a nested body with another value at a place, or without it."""
    found = copy.deepcopy(body)
    at = functools.reduce(lambda part, key: part[key], path[:-1], found)
    if remove:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return found


@fuzzed(150)
@given(st.sampled_from(sorted(places(json.loads(record()[0])), key=str)), JSON, st.booleans())
def test_a_record_with_another_value_is_refused_even_if_it_is_sealed_again(path: Any, value: Any, remove: bool) -> None:
    forged = changed(json.loads(record()[0]), path, value, remove)
    with suppress(ValueError):  # NaN can't be sealed
        forged = records.seal(forged)
    with suppress(UserError):
        assert read_record(json.dumps(forged).encode()) == forged


# Configs

CONFIG_FILES = sorted(TOY)


def write_config(place: Path, files: dict[str, Any]) -> None:
    for name, body in files.items():
        text = body if isinstance(body, bytes) else yaml.safe_dump(body, sort_keys=False).encode()
        (place / f"{name}.yaml").write_bytes(text)


def expand(files: dict[str, Any]) -> None:
    with folder() as place:
        write_config(place, files)
        assert workflow.expand(workflow.Choice(place, "default")).cells


def test_the_config_that_is_damaged_below_is_sound() -> None:
    expand(TOY)


@fuzzed(60)
@given(st.data(), st.sampled_from(CONFIG_FILES))
def test_a_damaged_config_file_is_refused_or_makes_a_matrix(data: st.DataObject, name: str) -> None:
    whole = yaml.safe_dump(TOY[name], sort_keys=False).encode()
    with suppress(UserError):
        expand({**TOY, name: data.draw(damaged(whole))})


@fuzzed(150)
@given(st.data(), st.sampled_from(CONFIG_FILES), JSON, st.booleans())
def test_a_config_with_any_value_anywhere_is_refused_or_makes_a_matrix(
    data: st.DataObject, name: str, value: Any, remove: bool
) -> None:
    path = data.draw(st.sampled_from(sorted(places(TOY[name]), key=str)))
    with suppress(UserError):
        expand({**TOY, name: changed(TOY[name], path, value, remove)})


YAML = st.text(alphabet="ab: -?!&*[]{}\n\"'|>%@`#,~0<=", max_size=60) | st.sampled_from(
    [
        "a: &a [*a]",
        "a: &a {b: *a}",
        "{[1]: 2}",
        "? [a]\n: b",
        "!!set {a, b}",
        "a: 2020-99-99",
        "a: !!int x",
        "a: !!float y",
        "a: !!binary '*'",
        "!!omap a",
        "a: !!timestamp b",
        "a: 0b",
        "a: 1:99:99",
        "[" * 5000,
        "a: " + "9" * 5000,
        "x: &a [1,1,1,1,1,1,1,1,1]\n"
        + "".join(
            f"{n}{n}: &{n} [*{m},*{m},*{m},*{m},*{m},*{m},*{m}]\n" for m, n in zip("abcdefgh", "bcdefghi", strict=True)
        ),
        "1: 2",
        "on: off",
        "\x00",
        "\ufeff",
    ]
)


@fuzzed(200)
@given(YAML)
def test_any_text_is_refused_or_yaml_with_an_end(text: str) -> None:
    with folder() as place, suppress(UserError):
        (place / "x.yaml").write_text(text)
        json.dumps(config.read_yaml(place / "x.yaml"), default=str)


# What a driver leaves


def outcome() -> dict[str, bytes]:
    samples = np.zeros(3, protocol.SAMPLE)
    samples["query"], samples["offset"], samples["size"] = [4, 5, 6], [0, 2, 2], [2, 0, 3]
    facts = {"zero_ns": 1, "end_ns": 9, "driver": {}, "clients": [{"samples": 3, "prime_errors": 0, "errors": {}}]}
    return {"done.json": json.dumps(facts).encode(), "samples.0.bin": samples.tobytes(), "responses.0.bin": b"abcde"}


def read_outcome(files: dict[str, bytes]) -> protocol.Outcome:
    with folder() as place:
        for name, data in files.items():
            (place / name).write_bytes(data)
        return protocol.read_outcome(place)


def test_the_outcome_that_is_damaged_below_is_sound() -> None:
    assert read_outcome(outcome()).responses == [b"ab", b"", b"cde"]


@fuzzed(200)
@given(st.data(), st.sampled_from(sorted(outcome())))
def test_what_a_driver_left_is_refused_or_has_every_sample_with_its_whole_response(
    data: st.DataObject, name: str
) -> None:
    files = {**outcome(), name: data.draw(damaged(outcome()[name]))}
    with suppress(UserError):
        found = read_outcome(files)
        assert len(found.samples) == len(found.responses) == found.facts["clients"][0]["samples"] == 3
        assert [len(response) for response in found.responses] == found.samples["size"].tolist()


@fuzzed(60)
@given(st.data(), JSON, st.booleans())
def test_a_drivers_facts_with_any_value_anywhere_are_refused_or_read(
    data: st.DataObject, value: Any, remove: bool
) -> None:
    facts = json.loads(outcome()["done.json"])
    path = data.draw(st.sampled_from(sorted(places(facts), key=str)))
    files = {**outcome(), "done.json": json.dumps(changed(facts, path, value, remove)).encode()}
    with suppress(UserError):
        assert len(read_outcome(files).responses) in (0, 3)


@pytest.mark.parametrize("name", sorted(outcome()))
def test_a_file_of_a_driver_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(UserError, match=name.replace(".", r"\.")):
        read_outcome({other: data for other, data in outcome().items() if other != name})
