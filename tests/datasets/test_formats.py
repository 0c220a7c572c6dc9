"""Every vector format is read by chunks, and a file that is not what it claims is refused by name."""

from __future__ import annotations

import gzip
import random
import re
import struct
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from anncestry.datasets.formats import K_MAX, has_member, open_truth, open_vectors
from anncestry.errors import ConfigError, DataError

ROWS, DIM = 7, 4
FLOATS = np.arange(ROWS * DIM, dtype=np.float32).reshape(ROWS, DIM) / 8
BYTES = np.arange(ROWS * DIM, dtype=np.uint8).reshape(ROWS, DIM)


def vecs(values: NDArray[Any]) -> bytes:
    return b"".join(struct.pack("<i", len(row)) + row.tobytes() for row in values)


def xbin(values: NDArray[Any]) -> bytes:
    return struct.pack("<II", *values.shape) + values.tobytes()


def idx(values: NDArray[np.uint8]) -> bytes:
    """Images of 2 × 2 pixels."""
    return struct.pack(">HBBIII", 0, 8, 3, len(values), 2, 2) + values.tobytes()


def npy(values: NDArray[Any], fortran: bool = False) -> bytes:
    header = {"descr": values.dtype.str, "fortran_order": fortran, "shape": values.shape}
    text = repr(header).encode()
    text += b" " * (-(10 + len(text) + 1) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + values.tobytes("F" if fortran else "C")


SAMPLES: dict[str, tuple[str, bytes, NDArray[Any]]] = {
    "fvecs": ("fvecs", vecs(FLOATS), FLOATS),
    "ivecs": ("ivecs", vecs(BYTES.astype("<i4")), BYTES),
    "bvecs": ("bvecs", vecs(BYTES), BYTES),
    "fbin": ("fbin", xbin(FLOATS), FLOATS),
    "u8bin": ("u8bin", xbin(BYTES), BYTES),
    "ibin": ("ibin", xbin(BYTES.astype("<i4")), BYTES),
    "npy": ("npy", npy(FLOATS), FLOATS),
    "npy-float64": ("npy", npy(FLOATS.astype(">f8")), FLOATS),
    "npy-fortran": ("npy", npy(FLOATS, fortran=True), FLOATS),
    "idx": ("idx", idx(BYTES), BYTES),
    "idx-gzip": ("idx", gzip.compress(idx(BYTES), mtime=0), BYTES),
}


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def hdf5(path: Path, **members: Any) -> Path:
    with h5py.File(path, "w") as file:
        for name, value in members.items():
            file[name] = value
    return path


def read(path: Path, format: str, member: str | None = None, max_bytes: int = 2 * DIM * 4) -> NDArray[np.float32]:
    with open_vectors(path, format, member) as file:
        chunks = list(file.chunks(max_bytes))
        assert all(chunk.nbytes <= max(max_bytes, file.dim * 4) for chunk in chunks)
        assert all(chunk.dtype == np.float32 and chunk.flags.c_contiguous for chunk in chunks)
        assert (file.rows, file.dim) == (sum(map(len, chunks)), chunks[0].shape[1])
        return np.concatenate(chunks)


def refused(path: Path, format: str, because: str, member: str | None = None) -> None:
    with pytest.raises(DataError, match=because) as raised:
        read(path, format, member)
    sentence = str(raised.value)
    assert sentence.startswith(str(path)) and "\n" not in sentence


@pytest.mark.parametrize("name", SAMPLES)
def test_vectors_come_in_chunks_as_float32(name: str, tmp_path: Path) -> None:
    format, data, expected = SAMPLES[name]
    path = write(tmp_path / "vectors", data)
    np.testing.assert_array_equal(read(path, format), expected.astype(np.float32))


def test_hdf5_vectors_come_in_chunks_from_the_member_asked_for(tmp_path: Path) -> None:
    path = hdf5(tmp_path / "a.hdf5", train=FLOATS, test=BYTES.astype(np.float64))
    np.testing.assert_array_equal(read(path, "hdf5"), FLOATS)
    np.testing.assert_array_equal(read(path, "hdf5", "test"), BYTES)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_file_can_be_read_twice(name: str, tmp_path: Path) -> None:
    format, data, _ = SAMPLES[name]
    with open_vectors(write(tmp_path / "vectors", data), format) as file:
        np.testing.assert_array_equal(np.concatenate(list(file.chunks())), np.concatenate(list(file.chunks(16))))


@pytest.mark.parametrize("name", SAMPLES)
def test_a_file_cut_anywhere_is_refused_by_name(name: str, tmp_path: Path) -> None:
    format, data, _ = SAMPLES[name]
    row_bytes = {"fvecs": 20, "ivecs": 20, "bvecs": 8}.get(format)
    for length in range(len(data)):
        if row_bytes and length and length % row_bytes == 0:
            continue  # these formats have no count of rows: whole rows are a whole file, if a shorter one
        refused(write(tmp_path / f"cut{length}", data[:length]), format, "trunc|empty|not a sound|gzip")


@pytest.mark.parametrize("name", SAMPLES)
def test_bytes_too_many_are_refused(name: str, tmp_path: Path) -> None:
    format, data, _ = SAMPLES[name]
    refused(write(tmp_path / "long", data + b"\1"), format, "too long|not whole rows|gzip")


def test_an_hdf5_file_cut_anywhere_is_refused_by_name(tmp_path: Path) -> None:
    data = hdf5(tmp_path / "whole", train=np.zeros((500, DIM), dtype=np.float32)).read_bytes()
    for length in range(0, len(data), 97):
        refused(write(tmp_path / f"cut{length}", data[:length]), "hdf5", "not a whole HDF5 file")


def small_hdf5(path: Path, **options: Any) -> bytes:
    with h5py.File(path, "w") as file:
        file.create_dataset("train", data=FLOATS, **options)
    return path.read_bytes()


@pytest.mark.parametrize("name", [*SAMPLES, "hdf5", "hdf5-chunks"])
def test_damage_in_any_byte_never_shows_as_a_traceback(name: str, tmp_path: Path) -> None:
    """Either the values differ, or the user reads which file is damaged; no other exception gets out.

    Each byte in three ways: all bits turned, one bit turned (drawn by a seed), and another value (drawn, too); of HDF5,
    whose files are long, in one of the three.
    """
    if name.startswith("hdf5"):
        format = "hdf5"
        packed = {"chunks": (2, DIM), "compression": "gzip", "fletcher32": True} if name == "hdf5-chunks" else {}
        data = small_hdf5(tmp_path / "whole", **packed)
    else:
        format, data, _ = SAMPLES[name]
    path, draw = tmp_path / "damaged", random.Random(name)
    refusals = 0
    for position in range(len(data)):
        patterns = (0xFF, 1 << draw.randrange(8), draw.randrange(1, 256))
        for pattern in (draw.choice(patterns),) if format == "hdf5" else patterns:
            damaged = bytearray(data)
            damaged[position] ^= pattern
            try:
                read(write(path, bytes(damaged)), format)
            except DataError as error:
                refusals += 1
                assert str(path) in str(error) and "\n" not in str(error)
    assert refusals


@pytest.mark.parametrize(
    ("format", "data", "because"),
    [
        (
            "fvecs",
            vecs(FLOATS) + vecs(FLOATS[:1, :2]) + vecs(FLOATS[:1, :1]),
            "row 7 states dim 2, but the first row 4",
        ),
        ("bvecs", vecs(BYTES[:3]) + struct.pack("<i", 5) + b"1234", "row 3 states dim 5"),
        ("fvecs", struct.pack("<i", 0), "dim 0"),
        ("ivecs", struct.pack("<i", -3) + b"12345678", "dim -3"),
        ("fvecs", b"", "empty"),
        ("fbin", struct.pack("<II", 0, 4), "no vectors: 0 rows"),
        ("u8bin", struct.pack("<II", 3, 0), "no vectors: 3 rows of dim 0"),
        ("fbin", struct.pack("<II", ROWS + 1, DIM) + FLOATS.tobytes(), "truncated: .* 8 rows of dim 4"),
        ("fbin", struct.pack("<II", ROWS - 1, DIM) + FLOATS.tobytes(), "too long"),
        ("fbin", xbin(BYTES), "truncated"),
        ("idx", b"\x89PNG" + bytes(40), "not an IDX file"),
        ("idx", struct.pack(">HBBI", 0, 8, 1, 3) + b"123", "labels"),
        ("idx", struct.pack(">HBBIII", 0, 8, 3, 0, 2, 2), "no vectors"),
        ("idx", struct.pack(">HBBIII", 0, 8, 3, 9, 2, 2) + BYTES.tobytes(), "truncated"),
        (
            "idx",
            gzip.compress(struct.pack(">HBBIII", 0, 8, 3, 9, 2, 2) + BYTES.tobytes(), mtime=0),
            "ends in row 7 of 9",
        ),
        (
            "idx",
            gzip.compress(struct.pack(">HBBIII", 0, 8, 3, 6, 2, 2) + BYTES.tobytes(), mtime=0),
            "bytes after the 6 rows",
        ),
        ("npy", b"PK\3\4" + bytes(100), "not a sound npy"),
        ("npy", npy(FLOATS.ravel()), r"shape \(28,\), not"),
        ("npy", npy(FLOATS.reshape(7, 2, 2)), r"shape \(7, 2, 2\)"),
        ("npy", npy(FLOATS[:0]), "no vectors: 0 rows"),
        ("npy", npy(FLOATS.astype("S8")), r"holds \|S8, not numbers"),
        ("npy", npy(FLOATS.astype(complex)), "holds complex128, not numbers"),
        ("npy", npy(FLOATS > 1), "holds bool, not numbers"),
        ("npy", npy(np.full((1, 2), 2**24 + 1)), "row 0 holds an integer beyond"),
        ("ibin", xbin(np.array([[1], [-(2**25)]], dtype="<i4")), "row 1 holds an integer beyond"),
    ],
)
def test_an_inconsistent_file_is_refused_with_its_reason(
    format: str, data: bytes, because: str, tmp_path: Path
) -> None:
    refused(write(tmp_path / "vectors", data), format, because)


def test_npy_files_of_python_objects_are_never_unpickled(tmp_path: Path) -> None:
    path = tmp_path / "objects.npy"
    np.save(path, np.array([[print, 1]], dtype=object), allow_pickle=True)
    refused(path, "npy", "Python objects")


@pytest.mark.parametrize(
    ("value", "because"),
    [
        (FLOATS[0], r"shape \(4,\)"),
        (FLOATS[:0], "no vectors"),
        (np.array([[b"a"]]), "not numbers"),
        (h5py.Empty("f4"), "shape None"),
    ],
)
def test_an_hdf5_member_that_holds_no_vectors_is_refused(value: Any, because: str, tmp_path: Path) -> None:
    refused(hdf5(tmp_path / "a.hdf5", train=value), "hdf5", because)


def test_a_missing_hdf5_member_is_named_together_with_those_that_are_there(tmp_path: Path) -> None:
    path = hdf5(tmp_path / "a.hdf5", test=FLOATS)
    refused(path, "hdf5", "has no member train; it holds test")
    with h5py.File(path, "a") as file:
        file.create_group("train")
    refused(path, "hdf5", "member train is not an array")


@pytest.mark.parametrize("format", ["fvecs", "fbin", "npy", "idx", "hdf5"])
def test_a_missing_file_and_a_folder_are_refused(format: str, tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", format, "missing")
    refused(tmp_path, format, "not a file")


def test_an_unknown_format_is_the_configs_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown format 'xlsx'"):
        read(write(tmp_path / "a.xlsx", b"1,2"), "xlsx")


# Truth that a source ships

IDS = np.array([[0, 3, 2], [5, 1, -1]], dtype="<i4")
NEAR = np.array([[0.5, 1, 2], [0, 1, 1]], dtype="<f4")


def read_neighbors(path: Path, format: str) -> NDArray[np.int64]:
    with open_truth(path, format, "neighbors") as file:
        return np.concatenate(list(file.ids()))


def read_distances(path: Path, format: str) -> NDArray[np.float32] | None:
    with open_truth(path, format, "distances") as file:
        return None if not file.rows else np.concatenate(list(file.chunks()))


def ibin_truth(*arrays: NDArray[Any]) -> bytes:
    return struct.pack("<II", *IDS.shape) + b"".join(array.tobytes() for array in arrays)


@pytest.mark.parametrize(
    ("format", "make"),
    [
        ("ivecs", lambda path: write(path, vecs(IDS))),
        ("ibin", lambda path: write(path, ibin_truth(IDS, NEAR))),
        ("npy", lambda path: write(path, npy(IDS))),
        ("hdf5", lambda path: hdf5(path, neighbors=IDS, distances=NEAR)),
    ],
)
def test_shipped_neighbors_are_int64(format: str, make: Callable[[Path], Path], tmp_path: Path) -> None:
    path = make(tmp_path / "truth")
    ids = read_neighbors(path, format)
    assert ids.dtype == np.int64
    np.testing.assert_array_equal(ids, IDS)
    if format in ("ibin", "hdf5"):
        distances = read_distances(path, format)
        assert distances is not None and distances.dtype == np.float32
        np.testing.assert_array_equal(distances, NEAR)


def test_truth_without_distances_has_none(tmp_path: Path) -> None:
    assert read_distances(write(tmp_path / "a.ibin", ibin_truth(IDS)), "ibin") is None
    path = hdf5(tmp_path / "a.hdf5", neighbors=IDS)
    assert read_distances(path, "hdf5") is None
    assert has_member(path, "neighbors") and not has_member(path, "distances")


@pytest.mark.parametrize(
    ("format", "data", "because"),
    [
        ("ibin", ibin_truth(IDS, NEAR)[:-1], "truncated or corrupt"),
        ("ibin", ibin_truth(IDS, NEAR, NEAR), "truncated or corrupt"),
        ("ibin", b"\1\0", "header"),
        ("ibin", struct.pack("<II", 0, 10), "no vectors"),
        ("ivecs", vecs(np.array([[-7]], dtype="<i4")), "negative id"),
        ("npy", npy(NEAR), "float32, not as integers"),
        ("npy", npy(np.array([[2**63]], dtype=np.uint64)), "beyond int64"),
    ],
)
def test_damaged_truth_is_refused_by_name(format: str, data: bytes, because: str, tmp_path: Path) -> None:
    path = write(tmp_path / "truth", data)
    with pytest.raises(DataError, match=because) as raised:
        read_neighbors(path, format)
    assert re.match(re.escape(str(path)), str(raised.value))


def test_a_format_that_holds_no_truth_is_the_configs_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't hold neighbors"):
        read_neighbors(tmp_path / "a", "idx")
    with pytest.raises(ConfigError, match="can't hold distances"):
        read_distances(tmp_path / "a", "ivecs")


# What leads out of an HDF5 file

SECRET = np.full((ROWS, DIM), 7, dtype=np.float32)


def leading_out(path: Path, kind: str) -> Path:
    """A file whose member train is made of another file's bytes."""
    other = hdf5(path.with_name("other"), train=SECRET)
    bare = write(path.with_name("bare"), SECRET.tobytes())
    with h5py.File(path, "w") as file:
        file["own"] = FLOATS
        group = file.create_group("group")
        if kind == "external storage":
            file.create_dataset("train", SECRET.shape, "<f4", external=[(str(bare), 0, SECRET.nbytes)])
        elif kind == "a virtual dataset":
            layout = h5py.VirtualLayout(SECRET.shape, "<f4")
            layout[:] = h5py.VirtualSource(str(other), "train", SECRET.shape)
            file.create_virtual_dataset("train", layout)
        elif kind == "an endless virtual dataset":  # whose length is that of the files that are there
            layout = h5py.VirtualLayout((1, DIM), "<f4", maxshape=(None, DIM))
            layout[: h5py.h5s.UNLIMITED] = h5py.VirtualSource(str(other), "train", (1, DIM), maxshape=(None, DIM))[
                : h5py.h5s.UNLIMITED
            ]
            file.create_virtual_dataset("train", layout)
        elif kind == "an external link":
            file["train"] = h5py.ExternalLink(str(other), "train")
        elif kind == "a soft link":
            file["train"] = h5py.SoftLink("/own")
        elif kind == "a link to a group":
            group["far"] = h5py.ExternalLink(str(other), "/")
        elif kind == "a link in a group":
            group["train"] = h5py.SoftLink("/own")
        elif kind == "references":
            file["train"] = np.full((ROWS, DIM), file["own"].ref, dtype=h5py.ref_dtype)
            file["own"].attrs["train"] = h5py.ExternalLink(str(other), "train").path
    return path


@pytest.mark.parametrize(
    ("kind", "member", "because"),
    [
        ("external storage", "train", "is in external storage"),
        ("a virtual dataset", "train", "is a virtual dataset of other files"),
        ("an endless virtual dataset", "train", "is a virtual dataset of other files"),
        ("an external link", "train", "is a link; store the array itself"),
        ("a soft link", "train", "is a link; store the array itself"),
        ("a link to a group", "group/far/train", "is a link; store the array itself"),
        ("a link in a group", "/group/train", "is a link; store the array itself"),
        ("references", "train", "holds object, not numbers"),
    ],
)
def test_no_reader_follows_an_hdf5_file_into_another_one(kind: str, member: str, because: str, tmp_path: Path) -> None:
    """Before, the bytes of any file that the user can read could end up in a dataset."""
    path = leading_out(tmp_path / "a.hdf5", kind)
    refused(path, "hdf5", because, member)
    for half in ("neighbors", "distances"):
        with pytest.raises(DataError, match=because), open_truth(path, "hdf5", half, member):
            pass
    if "link" in kind:
        with pytest.raises(DataError, match=because):
            has_member(path, member)
    np.testing.assert_array_equal(read(path, "hdf5", "own"), FLOATS)


def test_an_hdf5_array_in_a_group_of_the_file_itself_is_read(tmp_path: Path) -> None:
    path = hdf5(tmp_path / "a.hdf5", **{"a/b/train": FLOATS})
    np.testing.assert_array_equal(read(path, "hdf5", "/a/b/train"), FLOATS)
    assert has_member(path, "a/b/train") and not has_member(path, "a/b/train/c") and not has_member(path, "b")


# What unpacks to more than it says


def packed_zeros(count: int) -> bytes:
    packer = zlib.compressobj(6)
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(count >> 20)) + packer.flush()


def chunks_of(path: Path, shape: tuple[int, int], chunks: tuple[int, int], data: bytes, **options: Any) -> Path:
    """An array of integers whose every chunk is stored as `data`."""
    with h5py.File(path, "w") as file:
        options = {"compression": "gzip", "maxshape": (None, None), **options}
        array = file.create_dataset("neighbors", shape, "<i4", chunks=chunks, **options)
        for row in range(0, shape[0], chunks[0]):
            for column in range(0, shape[1], chunks[1]):
                array.id.write_direct_chunk((row, column), data)
    return path


READING = """
import re, sys
from pathlib import Path
import h5py
from anncestry.datasets import formats
from anncestry.errors import DataError
def peak_kib():
    # Not getrusage's: a new program inherits that of who started it.
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
before = peak_kib()
try:
    with formats.open_truth(Path(sys.argv[1]), "hdf5", "neighbors") as file:
        for _ in file.ids():
            pass
except DataError as error:
    print(error, file=sys.stderr)
print(peak_kib() - before >> 10)
"""


@pytest.mark.parametrize(
    ("shape", "chunks", "unpacked", "because"),
    [
        (
            (300, 1 << 20),
            (1, 1 << 20),
            4 << 20,
            "lists of 1048576 values for each query, but at most 16384 are allowed",
        ),
        ((20, 10), (20, 10), 512 << 20, "holds more than its chunks of 800 bytes"),
        ((20, 10), (1 << 14, 1 << 13), 512 << 20, "packed in chunks of 536870912 bytes"),
    ],
)
def test_a_small_hdf5_file_that_unpacks_to_gigabytes_is_refused_in_little_memory(
    shape: tuple[int, int], chunks: tuple[int, int], unpacked: int, because: str, tmp_path: Path
) -> None:
    """A file of 1.5 MB took 5 GiB."""
    path = chunks_of(tmp_path / "bomb.hdf5", shape, chunks, packed_zeros(unpacked))
    assert path.stat().st_size < 8 << 20
    done = subprocess.run([sys.executable, "-c", READING, str(path)], capture_output=True, text=True, check=True)
    assert re.search(because, done.stderr), done.stderr
    assert int(done.stdout) < 250, f"{done.stdout} MiB more"


def test_an_hdf5_file_packed_in_any_other_way_than_gzip_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for number, options in enumerate([{"compression": "lzf"}, {"scaleoffset": 2}]):
            file.create_dataset(f"other{number}", data=FLOATS, chunks=(2, DIM), **options)
        for number, shuffle in enumerate((False, True)):
            options = {"compression": "gzip", "shuffle": shuffle, "fletcher32": shuffle}
            file.create_dataset(f"gzip{number}", data=FLOATS, chunks=(2, 3), **options)
        noise = np.random.default_rng(0).bytes(4 * ROWS * DIM)  # which gzip leaves as it is
        file.create_dataset("noise", data=np.frombuffer(noise, "<i4").reshape(ROWS, DIM), chunks=(2, 3), compression=9)
    for name in ("other0", "other1"):
        refused(tmp_path / "a.hdf5", "hdf5", "write it with gzip or unpacked", name)
    for name in ("gzip0", "gzip1"):
        np.testing.assert_array_equal(read(tmp_path / "a.hdf5", "hdf5", name), FLOATS)
    opened = open_truth(tmp_path / "a.hdf5", "hdf5", "neighbors", "noise")
    with opened as found, pytest.raises(DataError, match="negative id"):
        list(found.ids())  # they are read


@pytest.mark.parametrize("format", ["npy", "ivecs", "ibin"])
def test_lists_longer_than_any_that_is_asked_for_are_refused_before_they_are_read(format: str, tmp_path: Path) -> None:
    ids = np.zeros((1, K_MAX + 1), dtype="<i4")
    data = {"npy": npy(ids), "ivecs": vecs(ids), "ibin": xbin(ids)}[format]
    with pytest.raises(DataError, match="at most 16384 are allowed"):
        read_neighbors(write(tmp_path / "truth", data), format)


def test_an_npy_header_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x02\x00" + struct.pack("<I", 3 << 30))
        file.truncate(3 << 30)
    tracemalloc.start()
    refused(path, "npy", "a header of 3221225472 bytes")
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    with open(path, "wb") as file:
        np.lib.format.write_array(file, FLOATS, (2, 0))
    np.testing.assert_array_equal(read(path, "npy"), FLOATS)
