"""Other people's numbers: each has its trace, each finding its recomputation, and what we measured stands beside it."""

from __future__ import annotations

import re
import shutil

import pytest

from anncestry.errors import DataError
from anncestry.home import PUBLISHED
from anncestry.report import published
from anncestry.report.published import Published
from casestudies import audit, checks


@pytest.fixture(scope="module")
def facts():
    return Published()


def test_every_published_number_has_an_id_a_place_and_a_line(facts):
    assert len(facts.figures) == 1006 and len({figure.id for figure in facts.figures}) == 1006
    assert all(figure.place and figure.line and figure.document in published.DOCUMENTS for figure in facts.figures)
    assert all(re.fullmatch("p[0-9a-f]{10}", figure.id) for figure in facts.figures)


def test_the_papers_tables_are_traced_number_by_number(facts):
    traced = [figure for figure in facts.figures if figure.source_file]
    assert len(traced) == 383
    assert sum(bool(figure.agrees) for figure in traced) == 376
    assert {figure.place for figure in traced if not figure.agrees} == {
        "Table VII", "Table X", "Table XII", "Table XIII",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("check", "words"),
    [
        ("load_ratios", "3.59 to 8.51"),
        ("load_ratio_by_size", "0.63 over 9 datasets"),
        ("cluster_latency", "+40.5 %"),
        ("cluster_qps", "-54.4 %"),
        ("scaling_16", "5.17 times"),
        ("significance", "p50 differs for gist-960-euclidean; for 8 of them, Deep-5M among them, that can't be told"),
        ("storage_ratios", "8.4 to 257.8 times raw"),
        ("storage_linear", "0.37 against raw size, 0.89 against rows"),
        ("glove_recall", "43.9% of the cluster's 0.9178"),
        ("milvus_stopped", "64.0 million bytes less"),
        ("cluster_as_standalone", "29 numbers of GloVe-100"),
        ("milvus22_cores", "2.84 times for 4 times (71%)"),
        ("grpc_throughput", "2.6 times is 61.5 % less"),
        ("polardb_little", "within 0.48 % in 15 rows"),
        ("diskann_paths", "103.4"),
        ("diskann_recall_100m", "0.9900 in the table, 0.9925 in the text"),
    ],
)
def test_findings_are_made_again_from_the_numbers(facts, check, words):
    assert words in checks.check(check, facts).text


def test_a_finding_follows_the_facts_and_not_a_text(facts, tmp_path):
    shutil.copytree(PUBLISHED, tmp_path / "published")
    path = tmp_path / "published" / "numbers.csv"
    path.write_text(path.read_text().replace(",743.496,", ",743.9,"))
    assert checks.check("rounding_x", facts).text.startswith("1 of 40")
    assert checks.check("rounding_x", Published(tmp_path / "published")).text.startswith("0 of 40")


def test_every_finding_is_recomputed_or_says_what_was_read(facts):
    again = checks.recomputed(facts)
    assert len(facts.findings) == 114
    for finding in facts.findings:
        assert (finding["id"] in again) != bool(finding["found"]), finding
        assert finding["verdict"] in audit._VERDICTS
    used = {name for finding in facts.findings for name in finding["check"].split()}
    assert used == checks.CHECKS.keys()


def test_an_unknown_check_is_named(tmp_path):
    shutil.copytree(PUBLISHED, tmp_path / "published")
    path = tmp_path / "published" / "findings.csv"
    path.write_text(path.read_text().replace("load_ratios", "lode_ratios"))
    with pytest.raises(DataError, match=r"findings\.csv: f001: unknown check 'lode_ratios'"):
        checks.recomputed(Published(tmp_path / "published"))


def test_the_sums_fit_the_files():
    import hashlib

    for name, digest in published.digests(PUBLISHED).items():
        assert hashlib.sha256((PUBLISHED / name).read_bytes()).hexdigest() == digest, name
    assert published.digests(PUBLISHED).keys() == {path.name for path in PUBLISHED.glob("*.csv")}
