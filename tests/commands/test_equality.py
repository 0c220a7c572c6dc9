"""`make equality`: what it compares, what it takes for equal, and that what is published depends on nothing else."""

from __future__ import annotations

import hashlib
import json
import shutil

import pytest

from anncestry import workflow
from tests.bench import equality

SENTENCE = "nothing to run: everything is up to date"
PARTS = (
    "src",
    "casestudies",
    "config",
    "workflow",
    "profiles",
    "envs",
    "Snakefile",
    "pyproject.toml",
    "requirements.lock",
)


@pytest.fixture(scope="module")
def both_sides(tmp_path_factory):
    """The smoke experiment of this tree, and of a copy: every source file another, and one sentence."""
    folder, patch = tmp_path_factory.mktemp("equality"), pytest.MonkeyPatch()
    patch.setattr(equality, "HERE", folder / "scratch")
    try:
        copy = folder / "checkout"
        copy.mkdir()
        for part in PARTS:
            whole = equality.ROOT / part
            (shutil.copytree if whole.is_dir() else shutil.copyfile)(whole, copy / part)
        for source in (copy / "src").rglob("*.py"):
            source.write_text(source.read_text().replace(SENTENCE, "all of it is there") + "# another file\n")
        kept, _ = equality.shipped()
        sides = {
            "here": equality.Side(equality.ROOT, {"PYTHONHASHSEED": "1", "TZ": "UTC"}),
            "copy": equality.Side(copy, {"PYTHONHASHSEED": "4242", "TZ": "Asia/Kathmandu", "COLUMNS": "60"}),
        }
        for name, side in sides.items():
            equality.render(side, kept, folder / name, ["smoke"], numbers=3)
        yield folder / "here", folder / "copy"
    finally:
        patch.undo()


@pytest.mark.long
def test_a_checkout_of_other_files_seeds_and_time_zone_differs_by_its_changed_sentence_only(both_sides):
    found = list(equality.differences(*both_sides))
    assert [line.partition(":")[0] for line in found] == ["kept/smoke/plan.txt"]
    assert all(f"  - {SENTENCE}\n  + all of it is there" in line for line in found)


@pytest.mark.long
def test_every_path_of_the_matrix_is_among_the_jobs(both_sides):
    said = (both_sides[0] / "config" / "smoke" / "jobs.txt").read_text()
    for cell in workflow.expand(workflow.Choice(equality.ROOT / "config", "smoke")).cells:
        for stage in ("download", "vectors", "truth", "artifact", "index", "load", "query", "samples", "recall"):
            assert getattr(cell, f"{stage}_path") in said
    assert "results/report/smoke@<key of report smoke>/index.html" in said


@pytest.mark.long
def test_page_table_and_answers_are_compared(both_sides):
    kept = both_sides[0] / "kept" / "smoke"
    page = (kept / "report" / "index.html").read_text()
    assert "weaviate-1.27.0" in page
    assert json.loads((kept / "table" / "numbers.json").read_text())
    assert "exit status 0" in (kept / "verify.txt").read_text()
    assert "exit status 2" in (kept / "damaged" / "verify.txt").read_text()
    assert "milvus-2.3.5" in (kept / "compared" / "index.html").read_text()
    assert not list(kept.glob("no-page.txt"))


def _side(folder, key, number="1", commit="a"):
    """A table, its record, and a page's that quotes both."""
    (folder / "table").mkdir(parents=True)
    (folder / "table" / "numbers.json").write_text(number)
    digest = hashlib.sha256(number.encode()).hexdigest()
    own = f'"created": "at {commit}", "code": {{"commit": "{commit}"}}, "seal": "{key}0"'
    (folder / "table" / "record.json").write_text(f'{{"numbers": "{digest}", "path": "results/table/x@{key}", {own}}}')
    quoted = hashlib.sha256((folder / "table" / "record.json").read_bytes()).hexdigest()
    (folder / "page.txt").write_text(f"table {key} in {folder}, sha256 {quoted}, {quoted[:12]}…, made at {commit}")
    equality.Rules(folder, folder / "checkout").apply(folder, folder.with_suffix(".out"))
    return folder.with_suffix(".out")


def test_another_commit_folder_and_key_of_sources_are_no_difference(tmp_path):
    base = _side(tmp_path / "base", "0123456789ab")
    assert not list(equality.differences(base, _side(tmp_path / "now", "ba9876543210", commit="b")))
    assert (base / "page.txt").read_text().endswith("<sha256 of table/record.json>…, made <created>")


def test_another_number_is_found_in_its_file_and_by_the_digest_that_quotes_it(tmp_path):
    base = _side(tmp_path / "base", "0123456789ab")
    found = list(equality.differences(base, _side(tmp_path / "now", "ba9876543210", number="2")))
    assert [line.partition(":")[0] for line in found] == ["table/numbers.json", "table/record.json"]
    assert found[0].endswith(":1, column 1\n  - 1\n  + 2")


def test_a_file_of_one_side_only_is_a_difference(tmp_path):
    for side in ("base", "now"):
        (tmp_path / side).mkdir()
    (tmp_path / "base" / "table.csv").touch()
    assert list(equality.differences(tmp_path / "base", tmp_path / "now")) == ["table.csv: not of this tree"]
