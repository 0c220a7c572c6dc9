"""Datasets in buckets and in local folders of Parquet files: the content as from anywhere else, or one sentence."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from anncestry import workflow
from anncestry.cells import config
from anncestry.datasets import download, sources
from anncestry.datasets.sources import Content, Stated
from anncestry.errors import ConfigError, DataError
from anncestry.provenance.records import sha256_file
from tests.builders.configs import refused
from tests.builders.s3 import s3_server
from tests.toy import ROOT, Toy

ROWS, QUERIES, DIM = 300, 20, 8
KEYS = {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}


def vectors(seed: int, rows: int) -> Any:
    return np.random.default_rng(seed).normal(size=(rows, DIM)).astype(np.float32)


BASE, ASKED = vectors(1, ROWS), vectors(2, QUERIES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """base.npy, queries.npy, and the same as train.parquet (in another order) and test.parquet."""
    folder = tmp_path_factory.mktemp("files")
    np.save(folder / "base.npy", BASE)
    np.save(folder / "queries.npy", ASKED)
    order = np.random.default_rng(3).permutation(ROWS)
    for name, ids, values in (("train", order, BASE[order]), ("test", np.arange(QUERIES), ASKED)):
        parquet.write_table(pa.table({"id": ids, "emb": list(values)}), folder / f"{name}.parquet")
    return folder


@pytest.fixture(scope="module")
def bucket(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of a server of S3's protocol, whose bucket `sets` has these files."""
    import boto3

    with pytest.MonkeyPatch.context() as patch, s3_server(tmp_path_factory.mktemp("s3") / "moto.log") as address:
        for name, value in {**KEYS, "AWS_ENDPOINT_URL": address}.items():
            patch.setenv(name, value)
        for name in ("AWS_PROFILE", "http_proxy", "HTTP_PROXY"):
            patch.delenv(name, raising=False)
        client = boto3.client("s3")
        client.create_bucket(Bucket="sets")
        for file in folder.iterdir():
            client.upload_file(str(file), "sets", f"mine/{file.name}")
        yield address


def stated(cache: Path) -> Stated:
    return Stated(ROWS, QUERIES, DIM, cache)


def held(content: Content) -> tuple[Any, Any]:
    return np.load(content.parts["base"].path), np.load(content.parts["queries"].path)


def npy(url: str = "s3://sets/mine", **more: Any) -> dict[str, Any]:
    parts = {"base": f"{url}/base.npy", "queries": f"{url}/queries.npy"}
    return {"kind": "url", "format": "npy", **parts, **more}


def rows_by_id(where: dict[str, str]) -> dict[str, Any]:
    return {"kind": "parquet", **where, "base": ["train.parquet"], "queries": "test.parquet"}


def test_files_in_a_bucket_are_fetched_once_and_verified(bucket: str, folder: Path, tmp_path: Path) -> None:
    content = sources.obtain(npy(), stated(tmp_path))
    base, asked = held(content)
    assert (base == BASE).all() and (asked == ASKED).all()
    digests = {part: hashlib.sha256((folder / f"{part}.npy").read_bytes()).hexdigest() for part in ("base", "queries")}
    assert content.files == {f"{part}.npy": digest for part, digest in digests.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        assert sources.obtain(npy(sha256=digests), stated(tmp_path)).files == content.files, "from the cache"


def test_a_folder_of_parquet_files_may_be_in_a_bucket(bucket: str, tmp_path: Path) -> None:
    base, asked = held(sources.obtain(rows_by_id({"url": "s3://sets/mine/"}), stated(tmp_path)))
    assert (base == BASE).all() and (asked == ASKED).all()


def test_what_a_bucket_does_not_give_is_told_in_one_sentence(bucket: str, tmp_path: Path) -> None:
    for entry, said in (
        (npy("s3://sets/theirs"), r"^s3://sets/theirs/\w+\.npy: there is no such object, or bucket$"),
        (npy("s3://nobodys/mine"), r"^s3://nobodys/mine/\w+\.npy: there is no such object, or bucket$"),
        (npy(sha256={"base": "0" * 64, "queries": "0" * 64}), "differs from the declared 000000000000…"),
    ):
        with pytest.raises(DataError, match=said):
            sources.obtain(entry, stated(tmp_path))
    with pytest.raises(ConfigError, match="write s3://BUCKET/KEY"):
        sources.obtain({**npy(), "base": "s3://sets"}, stated(tmp_path))
    with pytest.raises(ConfigError, match="first_rows is for http and https, not for buckets"):
        sources.obtain({**npy(), "format": "fbin", "first_rows": 10}, stated(tmp_path))


def test_an_object_that_is_longer_than_the_config_allows_is_not_fetched(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stated, "file_bytes", lambda self, payloads=False: 100)
    with pytest.raises(DataError, match="bytes long, but the config allows at most 100"):
        sources.obtain(npy(), stated(tmp_path))
    assert not list(tmp_path.rglob("*.npy"))


def test_an_endpoint_that_nobody_serves_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("anncestry.datasets.buckets._ATTEMPTS", 1)
    with pytest.raises(DataError, match=r"^s3://sets/mine/\w+\.npy: .*onnect"):
        sources.obtain(npy(), stated(tmp_path))


def test_a_local_folder_is_read_where_it_is_by_a_variable(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = rows_by_id({"path": "$DATASET_LOCAL_DIR/files"})
    (tmp_path / "files").symlink_to(folder)
    monkeypatch.setenv("DATASET_LOCAL_DIR", str(tmp_path))
    content = sources.obtain(entry, stated(tmp_path / "cache"))
    base, asked = held(content)
    assert (base == BASE).all() and (asked == ASKED).all()
    assert set(content.files) == {"train.parquet", "test.parquet"}
    assert all(path.is_relative_to(tmp_path / "cache") for path in content.cached), "what is theirs is never removed"
    monkeypatch.delenv("DATASET_LOCAL_DIR")
    with pytest.raises(DataError, match=r"^\$DATASET_LOCAL_DIR/files: the variable DATASET_LOCAL_DIR is not set$"):
        sources.obtain(entry, stated(tmp_path / "cache"))
    monkeypatch.setenv("DATASET_LOCAL_DIR", str(tmp_path / "elsewhere"))
    with pytest.raises(DataError, match=r"elsewhere/files/train\.parquet: missing"):
        sources.obtain(entry, stated(tmp_path / "cache"))


@pytest.fixture
def copied(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A source whose files are in VectorDBBench's folder, DATASET_LOCAL_DIR, and whose server is none."""
    place = tmp_path / "vectordbbench" / "toy" / "toy_small_300"
    place.mkdir(parents=True)
    for name in ("train", "test"):
        shutil.copy(folder / f"{name}.parquet", place)
    near = [np.argsort(((BASE - asked) ** 2).sum(axis=1))[:5] for asked in ASKED]
    parquet.write_table(pa.table({"id": np.arange(QUERIES), "neighbors_id": near}), place / "neighbors.parquet")
    monkeypatch.setenv("DATASET_LOCAL_DIR", str(tmp_path / "vectordbbench"))
    filters = [{"neighbors": "neighbors_head_1p.parquet", "filter": {"field": "id", "from_share": 0.01}}]
    entry = rows_by_id({"url": "http://127.0.0.1:9/toy_small_300/"})
    return {**entry, "local_copy": "toy/toy_small_300", "neighbors": "neighbors.parquet", "filtered": filters}


def had(entry: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """The record of the download stage."""
    spec = {"name": "toy", "metric": "l2", "rows": ROWS, "queries": QUERIES, "dim": DIM, "sources": [entry]}
    return download.run(spec, tmp_path / "out", tmp_path / "cache", "0" * 12)


def test_vectordbbenchs_folder_is_read_first_and_the_record_says_so(copied: dict[str, Any], tmp_path: Path) -> None:
    record = had(copied, tmp_path)
    assert (np.load(tmp_path / "out" / "base.npy") == BASE).all()
    assert (np.load(tmp_path / "out" / "queries.npy") == ASKED).all()
    place = tmp_path / "vectordbbench" / "toy" / "toy_small_300"
    source = record["source"]
    assert source["files"] == {path.name: sha256_file(path) for path in place.iterdir()}
    assert source["entry"]["path"] == "$DATASET_LOCAL_DIR/toy/toy_small_300" and "url" not in source["entry"]
    assert not record["content_pinned"] and set(record["content"]) == {"base", "queries"}
    assert record["shipped"]["k"] == 5 and "shipped_filtered" not in record
    assert "no digest" in source["notes"]["train.parquet"]
    assert "these neighbours are not compared" in source["notes"]["neighbors_head_1p.parquet"]
    assert {path.name for path in place.iterdir()} == {"train.parquet", "test.parquet", "neighbors.parquet"}


def test_a_pinned_content_is_compared_with_that_of_the_copy(copied: dict[str, Any], tmp_path: Path) -> None:
    content = had(copied, tmp_path)["content"]
    spec = {"name": "toy", "metric": "l2", "rows": ROWS, "queries": QUERIES, "dim": DIM, "sources": [copied]}
    assert download.run({**spec, "content": content}, tmp_path / "out", tmp_path / "cache", "1" * 12)["content_pinned"]
    with pytest.raises(DataError, match="not the declared 000000000000…"):
        download.run({**spec, "content": {**content, "base": "0" * 64}}, tmp_path / "out", tmp_path / "cache", "2" * 12)


def test_without_the_variable_or_a_file_of_vectors_the_server_is_asked(
    copied: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anncestry.datasets.fetching._ATTEMPTS", 1)
    (tmp_path / "vectordbbench" / "toy" / "toy_small_300" / "train.parquet").unlink()
    with pytest.raises(DataError, match=r"train\.parquet: missing; http://127\.0\.0\.1:9/.*can't be reached"):
        had(copied, tmp_path)
    monkeypatch.delenv("DATASET_LOCAL_DIR")
    with pytest.raises(DataError, match=r"no source has its content \(http://127\.0\.0\.1:9/"):
        had(copied, tmp_path)


def test_the_sets_of_vectordbbench_have_its_folders_and_the_keys_of_their_addresses(tmp_path: Path) -> None:
    """As its `data_dir` has them: DATASET_LOCAL_DIR/{name}/{name}_{label}_{size}."""
    datasets = config.read_yaml(ROOT / "config" / "datasets.yaml")
    of = [(name, entry["sources"][0]) for name, entry in datasets.items() if name.startswith("vectordbbench-")]
    assert len(of) == 5
    for name, source in of:
        folder = Path(source["url"]).name
        assert source["local_copy"] == f"{folder.partition('_')[0]}/{folder}", name
    toy = Toy.make(tmp_path)
    toy.files["datasets"]["blobs-l2"]["sources"] = [rows_by_id({"url": "http://example.com/x/"})]
    toy.save()

    def keys() -> set[str]:
        cells = workflow.expand(workflow.Choice(toy.folder / "config", "default")).cells
        return {cell.download for cell in cells}

    before = keys()
    toy.files["datasets"]["blobs-l2"]["sources"][0]["local_copy"] = "toy/toy_small_300"
    toy.save()
    assert keys() == before, "where a copy is, is no part of what it is"


def test_a_path_with_a_variable_needs_content_as_the_key_holds_no_more_than_its_text(tmp_path: Path) -> None:
    toy = Toy.make(tmp_path)
    entry = toy.files["datasets"]["blobs-l2"]
    entry["sources"] = [{"kind": "file", "format": "npy", "base": "$HERE/b.npy", "queries": "$HERE/q.npy"}]
    entry["content"] = {}
    refused(toy, "blobs-l2.sources", "a path with a variable or ~ needs content")
    entry["sources"] = [{"kind": "file", "format": "npy", "base": "~/b.npy", "queries": "q.npy"}]
    refused(toy, "blobs-l2.sources", "a path with a variable or ~ needs content")
    entry["sources"] = [{"kind": "file", "format": "npy", "base": "$HERE/b.npy", "queries": "$HERE/q.npy"}]
    entry["content"] = {"base": "0" * 64, "queries": "1" * 64}
    toy.save()
    assert workflow.expand(workflow.Choice(toy.folder / "config", "default")).cells
