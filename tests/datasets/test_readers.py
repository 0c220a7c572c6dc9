"""docs/adding-a-reader.md holds a whole reader: what it reads is measured, its code is in the key and the record."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

from anncestry import workflow
from anncestry.cells import readers
from anncestry.cells.features import installed
from anncestry.datasets import download, formats
from anncestry.errors import ConfigError, DataError
from tests.toy import ROOT, Toy

PAGE = (ROOT / "docs" / "adding-a-reader.md").read_text()
BLOCKS: dict[str, str] = dict(re.findall(r"^```\w+\n# (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
CODE = BLOCKS["tsv_vectors.py"]


def install(site: Path, version: str = "1.0", module: str = "tsv_vectors", code: str = CODE) -> None:
    """What an installer leaves of a package with one reader, whose name is tsv."""
    facts = site / "tsv_vectors.dist-info"
    facts.mkdir(parents=True, exist_ok=True)
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tsv-vectors\nVersion: {version}\n")
    (facts / "entry_points.txt").write_text(f"[anncestry.readers]\ntsv = {module}\n")
    (site / "tsv_vectors.py").write_text(code)


def said(toy: Toy, site: Path, *arguments: str) -> str:
    toy.save()
    environment = {**toy.environment(site), "ANNCESTRY_CONFIG": str(toy.folder / "config")}
    command = [sys.executable, "-m", "anncestry", *arguments]
    done = subprocess.run(
        command, cwd=toy.folder, env=environment, capture_output=True, text=True, check=False, timeout=900
    )
    return done.stdout + done.stderr


def test_what_the_reader_of_the_page_reads_is_measured_and_knows_its_code(tmp_path: Path) -> None:
    site = tmp_path / "site"
    install(site)
    toy = Toy.make(tmp_path / "toy")
    random = np.random.default_rng(3)
    for name, rows in (("base", 200), ("queries", 20)):
        np.savetxt(toy.folder / f"{name}.tsv", random.normal(size=(rows, 8)), delimiter="\t")
    toy.files["datasets"] = yaml.safe_load(BLOCKS["datasets.yaml"])
    toy.files["workloads"] = {"k5": {"k": 5, "clients": 1, "runs": 1, "queries": 10, "warmup": 5}}
    toy.block.update(datasets=["mine"], systems=["red-1.0"], topologies=["standalone"], workloads=["k5"])
    toy.snakemake(modules=site)

    (path,) = toy.folder.glob("data/download/mine@*/record.json")
    record = json.loads(path.read_text())
    code = record["source"]["reader"]
    assert (code["distribution"], code["version"], code["module"]) == ("tsv-vectors", "1.0", "tsv_vectors")
    assert record["spec"]["readers"] == {"tsv": code}
    asked = np.loadtxt(toy.folder / "queries.tsv", np.float32, delimiter="\t")
    assert np.array_equal(np.load(path.with_name("queries.npy")), asked)
    chain = said(toy, site, "why", "--metric", "p50_ms")
    assert f"reader: module tsv_vectors, sha256 {code['sha256']}, distribution tsv-vectors, version 1.0" in chain

    install(site, version="1.1", code=CODE + "# better\n")
    plan = said(toy, site, "plan")
    assert "dataset.readers.tsv.version: 1.0 → 1.1" in plan
    assert f"dataset.readers.tsv.sha256: {code['sha256'][:12]}… → " in plan

    (site / "tsv_vectors.dist-info" / "entry_points.txt").unlink()
    assert f"{toy.folder / 'config' / 'datasets.yaml'}: mine.sources: unknown format 'tsv'" in said(toy, site, "plan")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed packages, which this process looks into."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    installed.cache_clear()
    yield folder
    installed.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tsv_vectors", "parted")]:
        del sys.modules[name]


LYING = """
import numpy as np
from anncestry.datasets.readers import Header, Reader
class Lying(Reader):
    def header(self, path):
        return Header({rows}, 4)
    def blocks(self, path, rows_per_block):
        {blocks}
READER = Lying()
"""


@pytest.mark.parametrize(
    ("code", "because"),
    [
        ("import no_such_package", "its reader 'tsv_vectors' can't be imported .*no_such_package"),
        ("READER = print", "'tsv_vectors' has no READER that is a Reader"),
        (LYING.format(rows="'three'", blocks="pass"), "which is no shape of vectors"),
        (LYING.format(rows=0, blocks="pass"), "which is no shape of vectors"),
        (LYING.format(rows=3, blocks="1 / 0"), "the reader of 'tsv' failed .ZeroDivisionError: division by zero"),
        (LYING.format(rows=3, blocks="return [np.ones((2, 4), 'f4')]"), "gave 2 rows, but its header says 3"),
        (LYING.format(rows=3, blocks="yield np.ones((4, 4), 'f4')"), "gave more rows, but its header says 3"),
        (LYING.format(rows=3, blocks="yield np.ones((3, 5), 'f4')"), r"gave float32 \(3, 5\), where its header says"),
        (LYING.format(rows=3, blocks="yield np.ones((3, 4), 'f8')"), r"gave float64 \(3, 4\), where its header says"),
        (LYING.format(rows=3, blocks="yield np.ones((0, 4), 'f4')"), "gave 0 rows, where 1 to"),
        (LYING.format(rows=3, blocks="yield [1, 2, 3, 4]"), "gave list, where its header says"),
    ],
)
def test_a_reader_that_breaks_or_lies_is_told_in_one_sentence(code: str, because: str, site: Path) -> None:
    install(site, code=code)
    file = site / "vectors.tsv"
    file.write_text("1,2,3,4\n")
    with pytest.raises(DataError, match=because) as raised, formats.open_vectors(file, "tsv") as vectors:
        list(vectors.chunks())
    assert "\n" not in str(raised.value)


def test_a_reader_that_is_not_there_is_told_before_anything_runs(site: Path) -> None:
    install(site, module="nobody.wrote_this")
    with pytest.raises(ConfigError, match=r"its reader is the module 'nobody.wrote_this', which is not there"):
        readers.code_of("tsv")
    with pytest.raises(ConfigError, match=r"unknown format 'cvs'; known: hdf5, .*, tsv"):
        readers.code_of("cvs")


def test_declared_digests_are_the_data_whoever_reads_it(site: Path, tmp_path: Path) -> None:
    install(site)
    paths = {name: site / f"{name}.tsv" for name in ("base", "queries")}
    arrays = {name: np.arange(40 if name == "base" else 8, dtype=np.float32).reshape(-1, 4) for name in paths}
    for name, path in paths.items():
        np.savetxt(path, arrays[name], delimiter="\t")
    source = {"kind": "file", "format": "tsv", **{name: str(path) for name, path in paths.items()}}
    entry = {"metric": "l2", "rows": 10, "queries": 2, "dim": 4, "licence": "own", "sources": [source]}
    digests = {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in arrays.items()}
    toy = Toy.make(tmp_path / "toy")
    toy.files["datasets"] = {"pinned": {**entry, "content": digests}, "open": {**entry, "content": {}}}
    toy.files["workloads"] = {"k5": {"k": 5, "clients": 1, "runs": 1, "queries": 2, "warmup": 5}}
    toy.block.update(datasets=["pinned", "open"], workloads=["k5"])
    toy.save()

    def keys() -> dict[str, str]:
        matrix = workflow.expand(workflow.Choice(toy.folder / "config", "default"))
        return {cell.dataset: cell.download for cell in matrix.cells}

    before = keys()
    in_key = {"tsv": readers.code_of("tsv")}
    install(site, code=CODE + "# better\n")
    after = keys()
    assert after["pinned"] == before["pinned"] and after["open"] != before["open"]

    spec = {"name": "pinned", **entry, "content": digests}
    record = download.run(spec, tmp_path / "out", tmp_path / "cache", "0" * 12)
    assert record["source"]["reader"] == readers.code_of("tsv")
    with pytest.raises(DataError, match="the reader of 'tsv' has changed since this run began"):
        download.run({**spec, "readers": in_key}, tmp_path / "out", tmp_path / "cache", "0" * 12)
    other = {**source, "format": "nobodys"}
    record = download.run({**spec, "sources": [other, source]}, tmp_path / "out", tmp_path / "cache", "0" * 12)
    assert "unknown format 'nobodys'" in record["skipped"][0]["reason"]


def test_code_beside_a_reader_is_part_of_it_and_nothing_of_it_is_imported(site: Path) -> None:
    package = site / "parted"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "reader.py").write_text("raise SystemExit('imported')")
    (package / "helper.py").write_text("ONE = 1")
    before = readers.code_of("parted.reader")
    assert before.keys() == {"module", "sha256"}
    (package / "notes.txt").write_text("no code")
    assert readers.code_of("parted.reader") == before
    (package / "helper.py").write_text("ONE = 2")
    assert readers.code_of("parted.reader")["sha256"] != before["sha256"]
