"""Verify what is published: the tidy table made again from the records, the page from the table.

The table is made again in pieces, a place (dataset, system, topology) and some workloads at a time, in the order in
which it is written, and compared with its three files as they are read: memory does not grow with the matrix.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence, Set
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as parquet

from anncestry.cells.matrix import Cell, Matrix
from anncestry.errors import DataError, UserError
from anncestry.findings import Findings, Problem
from anncestry.provenance import records
from anncestry.report import audit, numbers, page

WORKLOADS_AT_ONCE = 40
PAGE_ROWS_MAX = 100_000
"""A page is drawn again in memory; that of a larger table is held against its digest alone, and that is said."""


def hashes(findings: Findings, matrix: Matrix) -> None:
    """Every file of table and page against the records beside them."""
    for stage, folder, key in (
        ("table", Path(matrix.table_path).parent, matrix.table),
        ("report", Path(matrix.report_path).parent, matrix.report),
    ):
        sealed = folder / "record.json"

        def whole(sealed: Path = sealed, stage: str = stage, key: str = key) -> None:
            body = records.read_record(sealed, stage=stage, key=key)
            listed = records.verify_outputs(sealed, body)
            findings.files += len(listed)
            refuse_others(sealed.parent, {sealed, *listed.values()}, str(sealed))

        if not folder.exists():
            findings.add(
                Problem(f"{folder}: missing: `snakemake --cores 8 all` makes it from the records", str(folder))
            )
        else:
            findings.check(str(folder), whole)


def contents(findings: Findings, matrix: Matrix, published: Path | None, facts: numbers.Facts) -> None:
    """Table and page, made again and compared."""
    table_dir, report_dir = Path(matrix.table_path).parent, Path(matrix.report_path).parent
    if not table_dir.exists():
        return
    before = len(findings.problems)
    _table(findings, matrix, table_dir, facts)
    if len(findings.problems) > before or not report_dir.exists() or str(report_dir) in findings.broken:
        return
    rows = parquet.ParquetFile(table_dir / "numbers.parquet").metadata.num_rows
    if rows > PAGE_ROWS_MAX:
        findings.remarks.append(f"{report_dir}: of {rows} numbers, so held against its digest, not drawn again")
        return

    def report() -> None:
        with tempfile.TemporaryDirectory() as folder:
            fresh = Path(folder)
            frame = numbers.read(table_dir)
            page.write_page(frame, fresh, title=matrix.config.title, published=published, absent=matrix.absent)
            for path in sorted(file for file in fresh.rglob("*") if file.is_file()):
                other = report_dir / path.relative_to(fresh)
                if not other.exists():
                    raise DataError(f"{other}: missing")
                # The bytes of Parquet depend on the version of the library that wrote it; its rows must not.
                same = _equal_tables(path, other) if path.suffix == ".parquet" else _equal_files(path, other)
                if not same:
                    raise DataError(f"{other}: the table says otherwise")
            drawn = {report_dir / path.relative_to(fresh) for path in fresh.rglob("*")}
            refuse_others(report_dir, {report_dir / "record.json", *drawn}, "the page, drawn again")

    findings.check(str(report_dir), report)


def refuse_others(folder: Path, known: Set[Path], by: str) -> None:
    """DataError for a file or link in a folder that is not one of those that are `known`, `by` whatever says so."""
    for path in sorted(folder.rglob("*")):
        if path not in known and (path.is_symlink() or not path.is_dir()):
            raise DataError(f"{path}: is no part of {by}: remove it")


def _equal_files(one: Path, other: Path) -> bool:
    return records.sha256_file(one) == records.sha256_file(other)


def _equal_tables(one: Path, other: Path) -> bool:
    try:
        return bool(parquet.read_table(one).to_pylist() == parquet.read_table(other).to_pylist())
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{other}: not a table ({error})") from None


def _table(findings: Findings, matrix: Matrix, folder: Path, facts: numbers.Facts) -> None:
    stored = _Stored(folder / "numbers.parquet", findings, str(folder))
    texts = [
        _Text(folder / "numbers.csv", findings, str(folder)),
        _Text(folder / "numbers.json", findings, str(folder)),
    ]
    first = True
    for cells, workloads, with_load in _pieces(matrix.cells):
        before = stored.take(cells[0], workloads, with_load)
        try:
            fresh = numbers.tidy([cell.paths for cell in cells], facts)
        except UserError as error:
            if not any(path in findings.broken for cell in cells for path in _paths(cell)):
                findings.add(Problem(str(error), str(folder)))
            fresh = before
        else:
            if not with_load:
                fresh = fresh[fresh["workload"] != ""].reset_index(drop=True)
            _compare_rows(findings, folder, numbers.rows_of(before), numbers.rows_of(fresh), stored.readable)
        rows = numbers.rows_of(fresh)
        texts[0].expect(numbers.inert(fresh).to_csv(index=False, header=first, lineterminator="\n"))
        texts[1].expect(("[\n" if first else ",\n") + numbers.as_json(rows)[2:-2])
        first = False
    if first:  # no cell can be measured here: a table of headings
        texts[0].expect(numbers.frame([]).to_csv(index=False, lineterminator="\n"))
    texts[1].expect("[]\n" if first else "\n]\n")
    stored.end()
    for text in texts:
        text.end()


def _paths(cell: Cell) -> tuple[str, str, str]:
    return cell.load_path, cell.query_path, cell.recall_path


def _pieces(cells: Sequence[Cell]) -> Iterator[tuple[list[Cell], set[str], bool]]:
    """Cells in the order of the table: a place, some workloads at once; and whether the load's rows come along."""

    def place(cell: Cell) -> tuple[str, str, str]:
        return cell.dataset, cell.system, cell.topology

    for _, group in groupby(sorted(cells, key=lambda cell: (place(cell), cell.workload)), key=place):
        # Whole workloads: all builds of a cell are in one piece, as their rows tell of each other.
        here = {name: list(builds) for name, builds in groupby(group, key=lambda cell: cell.workload)}
        for start in range(0, len(here), WORKLOADS_AT_ONCE):
            names = list(here)[start : start + WORKLOADS_AT_ONCE]
            yield [cell for name in names for cell in here[name]], set(names), start == 0


def _compare_rows(
    findings: Findings, folder: Path, stored: list[dict[str, Any]], fresh: list[dict[str, Any]], readable: bool
) -> None:
    if not readable or stored == fresh:
        return
    known = {row["number_id"]: row for row in stored}
    differing = [row["number_id"] for row in fresh if known.get(row["number_id"]) != row]
    differing += sorted(known.keys() - {row["number_id"] for row in fresh})
    sentence = f"{folder / 'numbers.parquet'}: the records say otherwise"
    findings.add(Problem(sentence, str(folder), tuple(differing)))


class _Stored:
    """The stored rows, read batch by batch, taken piece by piece."""

    def __init__(self, path: Path, findings: Findings, record: str) -> None:
        self._path, self._findings, self._record = path, findings, record
        self.readable = True
        self._waiting: list[dict[str, Any]] = []
        self._batches: Iterator[Any] = iter(())
        try:
            self._batches = parquet.ParquetFile(path).iter_batches(batch_size=4096)
        except (OSError, pa.ArrowException) as error:
            self._fail(f"{path}: not a table of numbers ({error})")

    def _fail(self, sentence: str) -> None:
        self.readable = False
        self._findings.add(Problem(sentence, self._record))

    def _next(self) -> dict[str, Any] | None:
        while not self._waiting:
            try:
                batch = next(self._batches, None)
            except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
                self._fail(f"{self._path}: not a table of numbers ({error})")
                batch = None
            if batch is None:
                return None
            self._waiting = batch.to_pylist()[::-1]
        return self._waiting[-1]

    def take(self, cell: Cell, workloads: set[str], with_load: bool) -> pd.DataFrame:
        """The rows that come next and belong to this place and these workloads."""
        wanted = workloads | ({""} if with_load else set())
        rows = []
        while (row := self._next()) is not None:
            where = (row.get("dataset"), row.get("system"), row.get("topology"))
            if where != (cell.dataset, cell.system, cell.topology) or row.get("workload") not in wanted:
                break
            rows.append(self._waiting.pop())
        return numbers.frame(rows)

    def end(self) -> None:
        """Nothing may be left."""
        if self.readable and self._next() is not None:
            self._fail(f"{self._path}: holds rows that no cell of the matrix has")


class _Text:
    """A text file that is compared as it is read."""

    def __init__(self, path: Path, findings: Findings, record: str) -> None:
        self._path, self._findings, self._record = path, findings, record
        self._good = True
        self._file: BinaryIO | None = None
        try:
            self._file = path.open("rb")
        except OSError:
            self._fail(f"{path}: missing")

    def _fail(self, sentence: str) -> None:
        self._good = False
        self._findings.add(Problem(sentence, self._record))

    def expect(self, text: str) -> None:
        """The file must go on with this."""
        content = text.encode()
        if self._good and self._file and self._file.read(len(content)) != content:
            self._fail(f"{self._path}: the records say otherwise")

    def end(self) -> None:
        """The file must end here."""
        if self._good and self._file and self._file.read(1):
            self._fail(f"{self._path}: goes on beyond the last number")
        if self._file:
            self._file.close()


def figures(findings: Findings, folder: Path) -> None:
    """The published figures of others that the pages quote, against the digests beside them."""
    for name, digest in audit.digests(folder).items():
        file = folder / name
        findings.files += 1
        if not file.exists():
            findings.add(Problem(f"{file}: missing, though {folder / audit.SUMS} lists it", str(file)))
        elif records.sha256_file(file) != digest:
            findings.add(Problem(f"{file}: is not what {folder / audit.SUMS} says", str(file)))
