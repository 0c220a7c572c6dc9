"""Vector files of every common format, read row block by row block and distrusted throughout.

| format | a file holds |
| --- | --- |
| `hdf5` | ANN-Benchmarks: members `train`, `test`, `neighbors`, `distances` |
| `fvecs`, `ivecs`, `bvecs` | TEXMEX: each row is int32 dim, then dim values of float32, int32 or uint8 |
| `fbin`, `u8bin`, `i8bin`, `ibin` | big-ann: uint32 rows, uint32 dim, then the values (float32, uint8, int8, int32) |
| `npy` | NumPy: two dimensions, C or Fortran order, plain numbers |
| `idx` | MNIST: big-endian header and values, plain or gzip; the images of rows × columns become rows of pixels |
| `csv`, `json` | text: lines of numbers between commas, plain or gzip; lists of numbers (see `text`) |
| any other | what a reader of another package makes of it (see `readers`) |

A file is checked against its own header when it is opened; what only reading can show (a row of another dimension,
a gzip stream that ends early) is checked while it is read. Either way the user gets a `DataError` of one sentence.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from anncestry.cells.readers import BUILT_IN
from anncestry.datasets import readers, text
from anncestry.errors import ConfigError, DataError, damage

Floats = NDArray[np.float32]

_VECS = {"fvecs": "<f4", "ivecs": "<i4", "bvecs": "u1"}
XBIN = {"fbin": "<f4", "u8bin": "u1", "i8bin": "i1"}
"""Those of big-ann that hold vectors, and the type of their values."""
_XBIN = {**XBIN, "ibin": "<i4"}
_TRUTH = {
    "neighbors": (("hdf5", "ivecs", "ibin", "npy"), "iu", "integers"),
    "distances": (("hdf5", "ibin", "fvecs", "npy"), "f", "floating point"),
}
"""By half: formats that may hold it, kinds of its numbers, and these in words."""
_IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}

TEXTS = ("csv", "json")
"""Those that are text, which takes more bytes than its numbers."""
_ZIPPED = ("idx", "csv")
"""Those that may be packed by gzip."""

_CHUNK_BYTES = 64 << 20
_FLOAT32_EXACT = 1 << 24  # every integer up to here has a float32 of its own
TOO_WIDE = "an integer beyond ±2^24, too wide for float32"
_DIM_LIMIT = 1 << 20  # far above any vector in use; a gzip stream can't be sized up before memory is asked for
K_MAX = 16384
"""The longest list of shipped neighbours that is read: as long as the longest that a workload asks for."""
_GZIP_MAGIC = b"\x1f\x8b"
_NPY_HEADER_BYTES = 10_000  # as NumPy has it
_GZIP_ERRORS = (EOFError, zlib.error, gzip.BadGzipFile)
# What NumPy's header parser is seen to raise on damaged bytes.
_NPY_ERRORS = (
    *(struct.error, ValueError, TypeError, KeyError, SyntaxError, TokenError),
    *(OverflowError, MemoryError, RecursionError),
)
# h5py turns the library's errors into any of these, by the place where the damage is met.
_HDF5_ERRORS = (OSError, RuntimeError, ValueError, TypeError, KeyError, AttributeError, OverflowError, MemoryError)
_HDF5_FILTERS = (2, 1, 3)  # shuffle, deflate (gzip) and fletcher32, as they are applied


@dataclass(frozen=True)
class VectorFile:
    """An open file of `rows` × `dim` vectors, whose values are stored as `dtype`."""

    path: Path
    rows: int
    dim: int
    dtype: np.dtype[Any]
    _blocks: Callable[[int], Iterator[NDArray[Any]]]

    def first(self, columns: int | None) -> VectorFile:
        """The same with the first `columns` numbers of each row alone (None: all); DataError if there are fewer."""
        if columns is None:
            return self
        if columns > self.dim:
            raise DataError(f"{self.path}: has {self.dim} numbers a row, fewer than the first {columns} of the config")
        return replace(self, dim=columns, _blocks=lambda rows: (block[:, :columns] for block in self._blocks(rows)))

    def chunks(self, max_bytes: int = _CHUNK_BYTES) -> Iterator[Floats]:
        """Yield all rows in order, from the first one on, as C-ordered float32 arrays (n, dim) of at most `max_bytes`.

        A chunk holds at least one row. Raises DataError where the file turns out damaged, or where an integer has
        no float32 of its own (float64 values are rounded, as ANN-Benchmarks' readers do).
        """
        rows_per_chunk = max(1, max_bytes // (self.dim * max(4, self.dtype.itemsize)))
        start = 0
        for block in self._blocks(rows_per_chunk):
            if not is_exact(block):
                row = start + int(_too_wide(block).any(axis=1).argmax())
                raise DataError(f"{self.path}: row {row} holds {TOO_WIDE}")
            with np.errstate(over="ignore", invalid="ignore"):  # the download stage refuses infinity and NaN by row
                yield np.ascontiguousarray(block, dtype=np.float32)
            start += len(block)

    def ids(self) -> Iterator[NDArray[np.int64]]:
        """Yield all rows as ids, int64 (n, K), -1 padding; DataError for an id below that, or beyond int64."""
        for block in self._blocks(max(1, _CHUNK_BYTES // (self.dim * 8))):
            if self.dtype == np.uint64 and bool((block > np.iinfo(np.int64).max).any()):
                raise DataError(f"{self.path}: neighbors hold an id beyond int64")
            ids = block.astype(np.int64)
            if bool((ids < -1).any()):
                raise DataError(f"{self.path}: neighbors hold a negative id other than the padding -1")
            yield ids

    def finite(self, rows: int, max_bytes: int = _CHUNK_BYTES) -> Iterator[Floats]:
        """`chunks` of the first `rows` rows; DataError names the first of them that holds NaN or infinity."""
        start = 0
        for whole in self.chunks(max_bytes):
            chunk = whole[: rows - start]
            finite = np.isfinite(chunk)
            if not finite.all():
                row = start + int((~finite).any(axis=1).argmax())
                raise DataError(f"{self.path}: row {row} holds NaN or infinity (as float32)")
            yield chunk
            start += len(chunk)
            if start == rows < self.rows:  # of all rows, what comes after the last is checked, too
                return


@contextmanager
def open_vectors(path: Path, format: str, member: str | None = None, half: str = "") -> Iterator[VectorFile]:
    """Open a file of vectors for reading by chunks.

    `member` names the array of an HDF5 file (default `train`), or the key of a JSON file's object (default: the file is
    the array), and means nothing to other formats. `half` is that of big-ann truth (ibin): neighbors, or the distances
    after them.
    Raises ConfigError for an unknown format, DataError for a file that is missing, empty, damaged or inconsistent.
    """
    if format not in BUILT_IN:
        yield _vectors_from_elsewhere(path, format)
        return
    if format == "hdf5":
        with _open_hdf5(path) as file:
            yield _hdf5_vectors(path, file, member or "train")
        return
    with _open_raw(path, format) as stream:
        if format in TEXTS:
            yield _text_vectors(path, stream, format, member)
            return
        truth = format == "ibin" and half
        layout = _xbin_truth_layout(path, stream, half) if truth else _layout(path, stream, format)
        yield _raw_vectors(path, stream, layout)


@contextmanager
def open_truth(path: Path, format: str, half: str, member: str | None = None) -> Iterator[VectorFile]:
    """Open one half of shipped truth (queries, K), as the file states it: its neighbors or its distances.

    Neighbors are for `VectorFile.ids`. There are no rows where the file holds no distances. `member` of an HDF5 file
    is called as that half by default; big-ann truth (ibin) may hold both halves.
    Raises DataError for a damaged file, for values of another kind, and for lists of more than K_MAX.
    """
    formats, kinds, numbers = _TRUTH[half]
    if format not in formats:
        raise ConfigError(f"format {format} can't hold {half}; choose one of {', '.join(formats)}")
    member = member or half
    if format == "hdf5" and half == "distances" and not has_member(path, member):
        yield VectorFile(path, 0, 0, np.dtype("<f4"), lambda _: iter(()))
        return
    with open_vectors(path, format, member, half) as file:
        if file.dim > K_MAX:
            raise DataError(f"{path}: holds lists of {file.dim} values for each query, but at most {K_MAX} are allowed")
        if file.dtype.kind not in kinds:
            raise DataError(f"{path}: {half} are stored as {file.dtype}, not as {numbers}")
        yield file


def has_member(path: Path, member: str) -> bool:
    """Whether an HDF5 file holds an array of that name; DataError if it is not a sound HDF5 file."""
    with _open_hdf5(path) as file, _hdf5_errors_of(path, "the file"):
        return _hdf5_node(path, file, member) is not None


@dataclass
class NpyWriter:
    """Writes an npy file of a known `shape` chunk by chunk. A context manager."""

    path: Path
    shape: tuple[int, ...]
    dtype: str = "<f4"

    def __enter__(self) -> NpyWriter:
        self._digest = hashlib.sha256()
        self._file: IO[bytes] = open(self.path, "wb")  # closed by __exit__
        header = {"descr": self.dtype, "fortran_order": False, "shape": self.shape}
        np.lib.format.write_array_header_1_0(self._file, header)
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, chunk: NDArray[Any]) -> None:
        data = np.ascontiguousarray(chunk, dtype=self.dtype).data
        self._digest.update(data)
        self._file.write(data)

    @property
    def sha256(self) -> str:
        """Hex sha256 of the bytes of the rows written so far."""
        return self._digest.hexdigest()


def drawn(rows: int, count: int, seed: int) -> NDArray[np.int64]:
    """The numbers (count,), ascending, of the rows that a seed draws as queries, of so many."""
    return np.sort(np.random.default_rng(seed).choice(rows, count, replace=False))


def split(chunks: Iterable[Floats], held: NDArray[np.int64], base: NpyWriter, queries: NpyWriter) -> None:
    """Write the rows `held` (ascending) of all `chunks` as queries, and the others, in their order, as base."""
    start = 0
    for chunk in chunks:
        inside = held[np.searchsorted(held, start) : np.searchsorted(held, start + len(chunk))] - start
        queries.write(chunk[inside])
        base.write(np.delete(chunk, inside, axis=0))
        start += len(chunk)


def is_exact(values: NDArray[Any]) -> bool:
    """Whether each of the `values` (any shape), if they are integers, has a float32 of its own."""
    return values.dtype.kind not in "iu" or values.dtype.itemsize < 4 or not bool(_too_wide(values).any())


def _too_wide(values: NDArray[Any]) -> NDArray[np.bool_]:
    wide: NDArray[np.bool_] = (values > _FLOAT32_EXACT) | (values < -_FLOAT32_EXACT)
    return wide


def content(path: Path) -> str:
    """Hex sha256 of the bytes of an npy file's rows: of a dataset's arrays, what `NpyWriter.sha256` says of them."""
    digest = hashlib.sha256()
    with open_vectors(path, "npy") as vectors:
        for chunk in vectors.chunks():
            digest.update(np.ascontiguousarray(chunk, dtype="<f4").data)
    return digest.hexdigest()


# HDF5


@contextmanager
def _open_hdf5(path: Path) -> Iterator[Any]:
    import h5py  # in the few jobs that read HDF5

    _require_file(path)
    with damage(_HDF5_ERRORS, f"{path}: not a whole HDF5 file"):
        file = h5py.File(path, "r")
    with file:
        yield file


def _hdf5_errors_of(path: Path, what: str) -> AbstractContextManager[None]:
    return damage(_HDF5_ERRORS, f"{path}: {what} is damaged")


def _hdf5_node(path: Path, file: Any, member: str) -> Any:
    """What the file itself holds under a name, None for nothing; DataError where a link leads there.

    A link may lead into any file that this user can read.
    """
    import h5py

    node = file
    for name in member.encode().split(b"/"):
        if name in (b"", b"."):
            continue
        if not isinstance(node, h5py.Group) or not node.id.links.exists(name):
            return None
        if node.id.links.get_info(name).type != h5py.h5l.TYPE_HARD:
            raise DataError(f"{path}: member {member} is a link; store the array itself")
        node = node[name]
    return node


def _hdf5_array(path: Path, file: Any, member: str) -> Any:
    import h5py

    with _hdf5_errors_of(path, f"member {member}"):
        array = _hdf5_node(path, file, member)
        if array is None:
            raise DataError(f"{path}: has no member {member}; it holds {', '.join(sorted(file)) or 'nothing'}")
        if not isinstance(array, h5py.Dataset):
            raise DataError(f"{path}: member {member} is not an array")
        stored = array.id.get_create_plist()  # before its shape, for which a virtual one opens its files
        if stored.get_layout() not in (h5py.h5d.COMPACT, h5py.h5d.CONTIGUOUS, h5py.h5d.CHUNKED):
            raise DataError(f"{path}: member {member} is a virtual dataset of other files; store the array itself")
        if stored.get_external_count():
            raise DataError(f"{path}: member {member} is in external storage; store the array itself")
        if array.dtype.kind not in "fiu":
            raise DataError(f"{path}: member {member} holds {array.dtype}, not numbers")
        if array.shape is None or len(array.shape) != 2:
            raise DataError(f"{path}: member {member} has shape {array.shape}, not (rows, dim)")
        _require_rows(path, *array.shape)
        _require_written(path, member, array)
        _require_packing(path, member, array)
    return array


def _require_written(path: Path, member: str, array: Any) -> None:
    """DataError where parts of an array were never written, which would read as zeros without a word."""
    if array.chunks is None:
        whole, there = array.size * array.dtype.itemsize, array.id.get_storage_size()
    else:
        whole = math.prod(-(-length // step) for length, step in zip(array.shape, array.chunks, strict=True))
        there = array.id.get_num_chunks()
    if there < whole:
        raise DataError(f"{path}: member {member} is incomplete: {there} of {whole}")


def _require_packing(path: Path, member: str, array: Any) -> None:
    """DataError for chunks that are packed in a way that `_require_sizes` does not know, or are too large."""
    stored = array.id.get_create_plist()
    filters = [stored.get_filter(number)[0] for number in range(stored.get_nfilters())]
    if filters != [each for each in _HDF5_FILTERS if each in filters]:
        raise DataError(f"{path}: member {member} is packed by HDF5 filters {filters}: write it with gzip or unpacked")
    if filters and _chunk_bytes(array) > _CHUNK_BYTES:
        raise DataError(
            f"{path}: member {member} is packed in chunks of {_chunk_bytes(array)} bytes, where {_CHUNK_BYTES} are the "
            "most: write it with smaller ones"
        )


def _chunk_bytes(array: Any) -> int:
    return int(math.prod(array.chunks)) * int(array.dtype.itemsize)


def _require_sizes(path: Path, member: str, array: Any, rows: range) -> None:
    """DataError where a packed chunk that begins in `rows` is longer than it says: the library unpacks all of it."""
    if not array.id.get_create_plist().get_nfilters():
        return
    size = _chunk_bytes(array)
    down, across = array.chunks
    for row in range(-(-rows.start // down) * down, rows.stop, down):
        for column in range(0, array.shape[1], across):
            info = array.id.get_chunk_info_by_coord((row, column))
            too_long = info.size > size + size // 100 + 64  # gzip makes it a little longer at the worst
            if not too_long:
                with suppress(zlib.error):  # one that was left as it is, or is damaged: then the library says so
                    unpacked = zlib.decompressobj().decompress(array.id.read_direct_chunk((row, column))[1], size + 1)
                    too_long = len(unpacked) > size
            if too_long:
                raise DataError(f"{path}: member {member}, after row {row}, holds more than its chunks of {size} bytes")


def _hdf5_vectors(path: Path, file: Any, member: str) -> VectorFile:
    array = _hdf5_array(path, file, member)
    rows, dim = array.shape

    def blocks(rows_per_block: int) -> Iterator[NDArray[Any]]:
        for start in range(0, rows, rows_per_block):
            with _hdf5_errors_of(path, f"member {member}, after row {start},"):
                _require_sizes(path, member, array, range(start, min(start + rows_per_block, rows)))
                block = array[start : start + rows_per_block]
            yield block

    return VectorFile(path, rows, dim, array.dtype, blocks)


# Readers of other packages


def _vectors_from_elsewhere(path: Path, format: str) -> VectorFile:
    reader = readers.load(format)
    _require_file(path)
    said = readers.header(format, reader, path)
    _require_rows(path, said.rows, said.dim)

    def blocks(rows_per_block: int) -> Iterator[NDArray[Any]]:
        return readers.blocks(format, reader, path, said, rows_per_block)

    return VectorFile(path, said.rows, said.dim, np.dtype(said.dtype), blocks)


# Text


def _text_vectors(path: Path, stream: IO[bytes], format: str, member: str | None) -> VectorFile:
    """Read twice: what it holds is known once all of it was read."""

    def rows_of() -> Iterator[list[float]]:
        with _gzip_errors_of(path):
            stream.seek(0)
            yield from text.lines(path, stream) if format == "csv" else text.lists(path, stream, member)

    rows = dim = 0
    for vector in rows_of():
        dim = dim or len(vector)
        if len(vector) != dim:
            raise DataError(f"{path}: row {rows} has {len(vector)} numbers, but the first row {dim}")
        rows += 1
    _require_rows(path, rows, dim)

    def blocks(rows_per_block: int) -> Iterator[NDArray[Any]]:
        vectors = rows_of()
        for start in range(0, rows, rows_per_block):
            block = np.empty((min(rows_per_block, rows - start), dim))
            for row in range(len(block)):
                block[row] = next(vectors)
            yield block

    return VectorFile(path, rows, dim, np.dtype(np.float64), blocks)


# Formats whose rows have one length: everything but HDF5, text and those from elsewhere


@dataclass(frozen=True)
class _Layout:
    """Where the values lie: after `offset` bytes, `rows` rows of `lead` bytes (the row's own dim) and `dim` values.

    Or, by `columns` (Fortran order), the first value of each row, then the second of each, …
    """

    rows: int
    dim: int
    dtype: np.dtype[Any]
    offset: int
    lead: int = 0
    whole: bool = True
    """Whether nothing comes after."""
    columns: bool = False

    @property
    def row_bytes(self) -> int:
        return self.lead + self.dim * self.dtype.itemsize


def _raw_vectors(path: Path, stream: IO[bytes], layout: _Layout) -> VectorFile:
    def columns(rows_per_block: int) -> Iterator[NDArray[Any]]:
        for start in range(0, layout.rows, rows_per_block):
            block = np.empty((min(rows_per_block, layout.rows - start), layout.dim), layout.dtype)
            for column in range(layout.dim):
                stream.seek(layout.offset + (column * layout.rows + start) * layout.dtype.itemsize)
                data = stream.read(len(block) * layout.dtype.itemsize)
                if len(data) != len(block) * layout.dtype.itemsize:
                    raise DataError(f"{path}: truncated: ends in column {column} of {layout.dim}")
                block[:, column] = np.frombuffer(data, layout.dtype)
            yield block

    def blocks(rows_per_block: int) -> Iterator[NDArray[Any]]:
        with _gzip_errors_of(path):
            stream.seek(layout.offset)
            for start in range(0, layout.rows, rows_per_block):
                count = min(rows_per_block, layout.rows - start)
                data = stream.read(count * layout.row_bytes)
                if len(data) != count * layout.row_bytes:
                    found = start + len(data) // layout.row_bytes
                    raise DataError(f"{path}: truncated: ends in row {found} of {layout.rows}")
                yield _values(path, data, layout, start)
            # Reading to the end also makes gzip compare its checksum.
            if layout.whole and stream.read(1):
                raise DataError(f"{path}: has bytes after the {layout.rows} rows of its header")

    return VectorFile(path, layout.rows, layout.dim, layout.dtype, columns if layout.columns else blocks)


def _values(path: Path, data: bytes, layout: _Layout, start: int) -> NDArray[Any]:
    """The values (n, dim) of whole rows, the first of which is row `start` of the file."""
    if not layout.lead:
        return np.frombuffer(data, dtype=layout.dtype).reshape(-1, layout.dim)
    rows = np.frombuffer(data, dtype=np.uint8).reshape(-1, layout.row_bytes)
    dims = np.ascontiguousarray(rows[:, : layout.lead]).view("<i4")[:, 0]
    if bool((dims != layout.dim).any()):
        first = int((dims != layout.dim).argmax())
        raise DataError(f"{path}: row {start + first} states dim {dims[first]}, but the first row {layout.dim}")
    return np.ascontiguousarray(rows[:, layout.lead :]).view(layout.dtype)


@contextmanager
def _open_raw(path: Path, format: str) -> Iterator[IO[bytes]]:
    _require_file(path)
    with open(path, "rb") as plain:
        zipped = format in _ZIPPED and plain.read(2) == _GZIP_MAGIC
        plain.seek(0)
        if zipped:
            with gzip.open(plain) as unzipped:
                yield unzipped  # type: ignore[misc]  # GzipFile reads bytes, which typeshed does not say of IO
        else:
            yield plain


def _layout(path: Path, stream: IO[bytes], format: str) -> _Layout:
    if format in _VECS:
        return _vecs_layout(path, stream, np.dtype(_VECS[format]))
    if format in _XBIN:
        return _xbin_layout(path, stream, np.dtype(_XBIN[format]))
    return _npy_layout(path, stream) if format == "npy" else _idx_layout(path, stream)


def _vecs_layout(path: Path, stream: IO[bytes], dtype: np.dtype[Any]) -> _Layout:
    size = path.stat().st_size
    if size == 0:
        raise DataError(f"{path}: empty")
    (dim,) = struct.unpack("<i", _header(path, stream, 4))
    if dim <= 0:
        raise DataError(f"{path}: the first row states dim {dim}, so this is not a file of that format")
    row_bytes = 4 + dim * dtype.itemsize
    if size % row_bytes:
        raise DataError(f"{path}: truncated or corrupt: {size} bytes are not whole rows of {row_bytes} (dim {dim})")
    return _Layout(size // row_bytes, dim, dtype, offset=0, lead=4)


def _xbin_layout(path: Path, stream: IO[bytes], dtype: np.dtype[Any]) -> _Layout:
    rows, dim = struct.unpack("<II", _header(path, stream, 8))
    return _checked(path, _Layout(rows, dim, dtype, offset=8))


def _npy_layout(path: Path, stream: IO[bytes]) -> _Layout:
    with damage(_NPY_ERRORS, f"{path}: not a sound npy file"):
        version = np.lib.format.read_magic(stream)
        (length,) = struct.unpack("<I", stream.read(4)) if version == (2, 0) else (0,)
        if length > _NPY_HEADER_BYTES:  # which would all be read
            raise ValueError(f"a header of {length} bytes")
        stream.seek(8)
        # Version 3 exists for field names in UTF-8, that is for records, which are no vectors.
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, fortran_order, dtype = read(stream)
    if dtype.hasobject:
        raise DataError(f"{path}: holds pickled Python objects; save it with allow_pickle=False")
    if dtype.kind not in "fiu":
        raise DataError(f"{path}: holds {dtype}, not numbers")
    if len(shape) != 2:
        raise DataError(f"{path}: has shape {shape}, not (rows, dim)")
    return _checked(path, _Layout(*shape, dtype, stream.tell(), columns=fortran_order))


def _idx_layout(path: Path, stream: IO[bytes]) -> _Layout:
    zero, code, axes = struct.unpack(">HBB", _header(path, stream, 4))
    if zero != 0 or code not in _IDX_TYPES or axes == 0:
        raise DataError(f"{path}: not an IDX file: wrong magic number")
    if axes < 2:
        raise DataError(f"{path}: holds one value a row (labels?), not vectors")
    rows, *shape = struct.unpack(f">{axes}I", _header(path, stream, 4 * axes))
    layout = _Layout(rows, math.prod(shape), np.dtype(_IDX_TYPES[code]), offset=4 + 4 * axes)
    return _checked(path, layout, sized=not isinstance(stream, gzip.GzipFile))


def _xbin_truth_layout(path: Path, stream: IO[bytes], half: str) -> _Layout:
    """Of the neighbors of a big-ann truth file, or of the distances after them; no rows where it lacks these."""
    queries, k = struct.unpack("<II", _header(path, stream, 8))
    _require_rows(path, queries, k)
    size, values = path.stat().st_size, queries * k
    if size not in (8 + 4 * values, 8 + 8 * values):
        raise DataError(
            f"{path}: truncated or corrupt: {size} bytes, where {queries} queries of {k} neighbors "
            f"take {8 + 4 * values} (ids) or {8 + 8 * values} (ids and distances)"
        )
    if half == "neighbors":
        return _Layout(queries, k, np.dtype("<i4"), offset=8, whole=False)
    return _Layout(queries if size > 8 + 4 * values else 0, k, np.dtype("<f4"), offset=8 + 4 * values)


# What every format asks for


def _gzip_errors_of(path: Path) -> AbstractContextManager[None]:
    return damage(_GZIP_ERRORS, f"{path}: truncated or corrupt gzip stream")


def _header(path: Path, stream: IO[bytes], count: int) -> bytes:
    with _gzip_errors_of(path):
        data = stream.read(count)
    if len(data) != count:
        raise DataError(f"{path}: truncated: ends within its header")
    return data


def _require_file(path: Path) -> None:
    if not path.exists():
        raise DataError(f"{path}: missing")
    if not path.is_file():
        raise DataError(f"{path}: not a file")
    try:
        path.open("rb").close()
    except OSError as error:
        raise DataError(f"{path}: can't be read ({error.strerror})") from None


def _require_rows(path: Path, rows: int, dim: int) -> None:
    if rows <= 0 or dim <= 0:
        raise DataError(f"{path}: holds no vectors: {rows} rows of dim {dim}")
    if dim > _DIM_LIMIT:
        raise DataError(f"{path}: corrupt: its header states vectors of dim {dim}")


def _checked(path: Path, layout: _Layout, sized: bool = True) -> _Layout:
    """The layout; DataError unless there are rows, and, of a file whose size says so (`sized`), exactly these."""
    _require_rows(path, layout.rows, layout.dim)
    expected, size = layout.offset + layout.rows * layout.row_bytes, path.stat().st_size
    if sized and size != expected:
        how, what = "truncated" if size < expected else "too long", f"{layout.rows} rows of dim {layout.dim}"
        raise DataError(f"{path}: {how}: {size} bytes, but its header states {what}, which take {expected}")
    return layout
