"""`verify` finds one changed byte anywhere and names the file and the numbers that hang on it."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

from anncestry import cli
from anncestry.provenance import records
from tests.toy import Toy


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    toy = Toy.make(tmp_path_factory.mktemp("toy"))
    for names in ("datasets", "systems", "topologies"):
        toy.block[names] = toy.block[names][:1]
    toy.snakemake()
    return toy


@pytest.fixture
def audit(finished, tmp_path, monkeypatch, capfd):
    """A copy of a finished tree, and `verify` on it: returns (exit status, what it said)."""
    toy = finished.copy(tmp_path / "clone", "data", "results")
    monkeypatch.chdir(toy.folder)
    monkeypatch.setenv("ANNCESTRY_CONFIG", str(toy.folder / "config"))

    def verify(*arguments: str) -> tuple[int, str]:
        status = cli.main(["verify", *arguments])
        said = capfd.readouterr()
        return status, said.out + said.err

    return verify


def one(pattern: str) -> Path:
    return sorted(Path().glob(pattern))[0]


def flip(path: Path, at: float = 0.5) -> None:
    content = bytearray(path.read_bytes())
    content[int(at * (len(content) - 1))] ^= 1
    path.write_bytes(content)


def test_an_untouched_tree_is_what_it_says(audit):
    status, said = audit()
    assert status == 0, said
    assert "what can be made again from raw samples is what is published" in said


def test_a_clone_without_data_verifies_what_is_there_and_says_what_is_not(audit):
    import shutil

    shutil.rmtree("data")
    status, said = audit()
    assert status == 0, said
    assert re.search(r"not looked at: inputs in data, scratch/|not looked at: inputs in data/", said)


KINDS = [
    "results/load/*/*/*.json",
    "results/load/*/*/*.resources.parquet",
    "results/query/*/*/*/*.json",
    "results/query/*/*/*/*.samples.parquet",
    "results/query/*/*/*/*.resources.parquet",
    "results/recall/*/*/*/*.json",
    "results/table/*/numbers.csv",
    "results/table/*/numbers.json",
    "results/table/*/numbers.parquet",
    "results/report/*/index.html",
    "results/report/*/numbers.csv",
    "data/vectors/*/base.npy",
    "data/vectors/*/record.json",
    "data/truth/*/ids.npy",
    "data/truth/*/distances.npy",
    "data/truth/*/record.json",
]


@pytest.mark.parametrize("kind", KINDS)
def test_one_flipped_bit_in_any_kind_of_file_is_found_and_the_file_named(audit, kind):
    for at in (0.1, 0.5, 0.97):
        victim = one(kind)
        before = victim.read_bytes()
        flip(victim, at)
        status, said = audit()
        assert status == 2, f"bit at {at} of {victim} not noticed"
        assert victim.name in said or str(victim.parent) in said, said
        victim.unlink()  # some are hard links
        victim.write_bytes(before)
    assert audit()[0] == 0


def test_one_changed_digit_of_a_published_number_is_found(audit):
    victim = one("results/query/*/*/*/k5@*.json")
    body = json.loads(victim.read_text())
    body["summary"]["p50_ms"]["value"] *= 1.01
    victim.write_text(json.dumps(body, indent=1) + "\n")
    status, said = audit()
    assert status == 2
    assert f"{victim}: changed since it was written" in said
    assert re.search(r"no longer supported: \d+ numbers: n[0-9a-f]{10}", said)


def test_a_forged_record_with_a_matching_digest_chain_still_fails_its_samples(audit):
    """Who changes the summary and everything made from it can't change what the samples say."""
    import hashlib

    victim = one("results/query/*/*/*/k5@*.json")
    body = json.loads(victim.read_text())
    body["summary"]["qps"]["value"] = 1e6
    records.write_json(victim, records.seal(body))
    digest = hashlib.sha256(victim.read_bytes()).hexdigest()
    for path in Path("results/recall").rglob("*.json"):
        scored = json.loads(path.read_text())
        if scored["inputs"]["query"]["path"] == str(victim):
            scored["inputs"]["query"]["sha256"] = digest
            records.write_json(path, records.seal(scored))
    status, said = audit()
    assert status == 2
    assert "qps is 1000000.0, its samples say" in said


def test_a_deleted_record_is_named(audit):
    victim = one("results/recall/*/*/*/*.json")
    victim.unlink()
    status, said = audit()
    assert status == 2
    assert f"{victim}: missing" in said


def test_quick_only_hashes_and_still_finds_a_changed_sample(audit):
    flip(one("results/query/*/*/*/*.samples.parquet"))
    status, said = audit("--quick")
    assert status == 2
    assert "samples.parquet: sha256" in said


def test_random_flips_are_found(audit):
    """Any bit of any published file, not only those somebody thought of."""
    chance = random.Random(5)
    files = sorted(path for path in Path("results").rglob("*") if path.is_file() and "platform" not in path.parts)
    for victim in chance.sample(files, min(12, len(files))):
        before = victim.read_bytes()
        flip(victim, chance.random())
        status, said = audit()
        assert status == 2, f"{victim}: {said}"
        victim.write_bytes(before)
