"""What verification finds, and verify the published files: rebuild the table from the records, the page from the table.

The table is rebuilt in pieces, one place (dataset, system, topology) and some workloads at a time, in its own order,
and compared with its three files while they are read, so memory does not grow with the matrix.
"""

from __future__ import annotations

import errno
import tempfile
import zipfile
from collections.abc import Callable, Collection, Iterator, Sequence, Set
from dataclasses import dataclass, field
from filecmp import cmp
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as parquet

from anncestry.cells.matrix import Cell, Matrix, Pair
from anncestry.cells.plan import results, undrawn
from anncestry.cells.stage import PAGES, STAMP
from anncestry.errors import DataError, UserError
from anncestry.home import PUBLISHED
from anncestry.provenance import records
from anncestry.report import published as published_facts
from anncestry.report.model import numbers
from anncestry.report.site import page
from anncestry.report.site.catalogue import case_studies

WORKLOADS_AT_ONCE = 40
PAGE_ROWS_MAX = 100_000
"""A page is drawn again in memory; that of a larger table is held against its digest alone, and that is said."""

# What goes wrong here with any file: no fault of the one that is looked at.
_OF_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


# What contents that are not what they should be may raise.
_OF_CONTENT = (
    *(ArithmeticError, AttributeError, EOFError, LookupError, TypeError, ValueError),
    *(pa.ArrowException, zipfile.BadZipFile),
)


@dataclass(frozen=True)
class Problem:
    """What is no longer true, in a sentence that names the file.

    `record` is the record (or folder) whose numbers hang on it; `numbers` are their ids where they are known already.
    """

    sentence: str
    record: str
    numbers: tuple[str, ...] = ()


@dataclass
class Findings:
    """Problems, and how much was looked at; `remarks` are true and no problem, but should be known."""

    problems: list[Problem] = field(default_factory=list)
    records: int = 0
    files: int = 0
    absent: set[str] = field(default_factory=set)
    remarks: list[str] = field(default_factory=list)
    unscored: int = 0
    """Records whose recall was not made again, as the data that it needs is not here."""
    broken: set[str] = field(default_factory=set)

    def add(self, problem: Problem) -> None:
        """Note a problem, once."""
        if problem not in self.problems:
            self.problems.append(problem)
            self.broken.add(problem.record)

    def check(self, record: str, test: Callable[[], object]) -> bool:
        """Run a test that raises UserError; whether it passed. Contents that break a test are a problem, too."""
        try:
            test()
        except UserError as error:
            self.add(Problem(str(error), record))
            return False
        except OSError as error:
            if error.errno in _OF_DISK:
                raise
            self.add(Problem(f"{record}: can't be read ({error})", record))
            return False
        except _OF_CONTENT as error:
            self.add(
                Problem(f"{record}: can't be made again from what it says ({type(error).__name__}: {error})", record)
            )
            return False
        return True


def hashes(findings: Findings, matrix: Matrix) -> None:
    """Every file of table and page against the records beside them."""
    for stage, path, key in (("table", matrix.table_path, matrix.table), ("report", matrix.report_path, matrix.report)):
        folder = Path(path).parent
        if folder.exists():
            findings.check(str(folder), partial(_published, findings, folder / "record.json", stage, key, matrix))
            if stage == "report":
                findings.check(str(folder), partial(_shown, folder, PAGES / matrix.config.experiment))
        else:
            findings.add(Problem(f"{folder}: {undrawn(matrix)}", str(folder)))


def _published(findings: Findings, record: Path, stage: str, key: str, matrix: Matrix) -> None:
    """Table or page are whole, of the asked spec, and made from what lies here."""
    body = whole(findings, record, stage=stage, key=key)
    if body["spec"] != matrix.spec(key, stage):
        raise DataError(f"{record}: its spec does not match its key")
    for label, entry in body["inputs"].items():
        if records.state(Path(entry["path"]), entry) is not records.State.SAME:
            raise DataError(f"{record}: was made from another {label} than {entry['path']}: make the page again")


def _shown(report: Path, shown: Path) -> None:
    """DataError if the page that people open is a copy of this one, and not as it was made.

    An older one is nobody's claim of today: the next run replaces it.
    """
    stamp = shown / STAMP
    if not stamp.exists() or stamp.read_text() != records.sha256_file(report / "record.json"):
        return
    for made in sorted(file for file in report.rglob("*") if file.is_file()):
        copy = shown / made.relative_to(report)
        if not copy.is_file() or not cmp(made, copy, shallow=False):
            raise DataError(f"{copy}: is not what {made} is: remove {shown}, and `anncestry summary` copies it again")


def whole(findings: Findings, record: Path, left: Collection[Path] = (), **of: str) -> dict[str, Any]:
    """The record; DataError if it or a file that it lists is not what it was, or beside them lies more than is `left`.

    `of` may name the record's stage and key.
    """
    body = records.read_record(record, **of)
    listed = records.verify_outputs(record, body)
    findings.files += len(listed)
    refuse_others(record.parent, {record, *listed.values(), *left}, str(record))
    return body


def contents(findings: Findings, matrix: Matrix, facts: numbers.Facts) -> None:
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
        findings.remarks.append(f"{report_dir}: too large to draw again ({rows} numbers); checked by its digest only")
        return

    def report() -> None:
        with tempfile.TemporaryDirectory() as folder:
            fresh = Path(folder)
            page.write_page(numbers.read(table_dir), fresh, **page.of_matrix(matrix), studies=case_studies())
            for path in sorted(file for file in fresh.rglob("*") if file.is_file()):
                other = report_dir / path.relative_to(fresh)
                if not other.exists():
                    raise DataError(f"{other}: missing")
                # The bytes of Parquet depend on the version of the library that wrote it; its rows must not.
                if not (_equal_tables(path, other) if path.suffix == ".parquet" else cmp(path, other, shallow=False)):
                    raise DataError(f"{other}: differs from the table")
            drawn = {report_dir / path.relative_to(fresh) for path in fresh.rglob("*")}
            refuse_others(report_dir, {report_dir / "record.json", *drawn}, "the page, drawn again")

    findings.check(str(report_dir), report)


def refuse_others(folder: Path, known: Set[Path], by: str) -> None:
    """DataError for a file or link in a folder that is not one of those that are `known`, `by` whatever says so."""
    for path in sorted(folder.rglob("*")):
        if path not in known and (path.is_symlink() or not path.is_dir()):
            raise DataError(f"{path}: is not part of {by}; remove it")


def _equal_tables(one: Path, other: Path) -> bool:
    try:
        return bool(parquet.read_table(one).to_pylist() == parquet.read_table(other).to_pylist())
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{other}: not a table ({error})") from None


def _table(findings: Findings, matrix: Matrix, folder: Path, facts: numbers.Facts) -> None:
    stored = _Stored(folder / "numbers.parquet", findings, str(folder))
    texts = [_Text(folder / name, findings, str(folder)) for name in ("numbers.csv", "numbers.json")]
    first = True
    for cells, workloads, with_load in _pieces(matrix.tabled):
        before = stored.take(cells[0], workloads, with_load)
        try:
            fresh = numbers.tidy([cell.paths for cell in cells], facts)
        except UserError as error:
            if not any(path in findings.broken for cell in cells for path in results(cell)):
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


def _pieces(cells: Sequence[Cell | Pair]) -> Iterator[tuple[list[Cell | Pair], set[str], bool]]:
    """Cells in the order of the table: a place, some workloads at once; and whether the load's rows come along."""

    def place(cell: Cell | Pair) -> tuple[str, str, str]:
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
    sentence = f"{folder / 'numbers.parquet'}: differs from the records"
    findings.add(Problem(sentence, str(folder), tuple(differing)))


class _File:
    """A file of the table that is compared as it is read; no longer once it is known to differ."""

    def __init__(self, path: Path, findings: Findings, record: str) -> None:
        self._path, self._findings, self._record = path, findings, record
        self.readable = True

    def _fail(self, sentence: str) -> None:
        self.readable = False
        self._findings.add(Problem(f"{self._path}: {sentence}", self._record))


class _Stored(_File):
    """The stored rows, read batch by batch, taken piece by piece."""

    def __init__(self, path: Path, findings: Findings, record: str) -> None:
        super().__init__(path, findings, record)
        self._rows = self._read()
        self._ahead = next(self._rows, None)

    def _read(self) -> Iterator[dict[str, Any]]:
        try:
            for batch in parquet.ParquetFile(self._path).iter_batches(batch_size=4096):
                yield from batch.to_pylist()
        except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
            self._fail(f"not a table of numbers ({error})")

    def take(self, cell: Cell | Pair, workloads: set[str], with_load: bool) -> pd.DataFrame:
        """The rows that come next and belong to this place and these workloads."""
        place = {"dataset": cell.dataset, "system": cell.system, "topology": cell.topology}
        names = workloads | ({""} if with_load else set())
        rows = []
        while (row := self._ahead) and place.items() <= row.items() and row.get("workload") in names:
            rows.append(row)
            self._ahead = next(self._rows, None)
        return numbers.frame(rows)

    def end(self) -> None:
        """Nothing may be left."""
        if self.readable and self._ahead is not None:
            self._fail("holds rows of cells that are not in the matrix")


class _Text(_File):
    """A text file, compared byte by byte."""

    def __init__(self, path: Path, findings: Findings, record: str) -> None:
        super().__init__(path, findings, record)
        self._file: BinaryIO | None = None
        try:
            self._file = path.open("rb")
        except OSError:
            self._fail("missing")

    def expect(self, text: str) -> None:
        """The file must go on with this."""
        content = text.encode()
        if self.readable and self._file and self._file.read(len(content)) != content:
            self._fail("differs from the records")

    def end(self) -> None:
        """The file must end here."""
        if self.readable and self._file and self._file.read(1):
            self._fail("has rows after the last number")
        if self._file:
            self._file.close()


def figures(findings: Findings) -> None:
    """The published figures of others that the pages quote, against the digests beside them."""
    folder = PUBLISHED
    for name, digest in published_facts.digests(folder).items():
        file = folder / name
        findings.files += 1
        if not file.exists():
            findings.add(Problem(f"{file}: missing, though {folder / published_facts.SUMS} lists it", str(file)))
        elif records.sha256_file(file) != digest:
            findings.add(Problem(f"{file}: its sha256 differs from {folder / published_facts.SUMS}", str(file)))
