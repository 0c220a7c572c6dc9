"""`anncestry systems` says of every system what its engine offers and what its records show; nothing by its name."""

from __future__ import annotations

import json
import shutil

import pytest
import yaml

from anncestry import cli
from anncestry.commands import systems
from anncestry.errors import DataError
from tests.toy import ROOT


def rows(capsys, *words):
    capsys.readouterr()
    assert cli.main(["systems", *words, "--json"]) == 0
    return {row["system"]: row for row in json.loads(capsys.readouterr().out)}


@pytest.fixture
def real(tmp_path, monkeypatch, capsys):
    """The project's own systems, listed in an empty folder with a config that knows of no run."""
    config = tmp_path / "config"
    shutil.copytree(ROOT / "config", config)
    (config / systems.RAN).unlink(missing_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANNCESTRY_CONFIG", str(config))
    monkeypatch.delenv("ANNCESTRY_EXPERIMENT", raising=False)
    return rows(capsys)


def test_every_system_of_the_config_is_listed_once_in_its_order(real):
    assert list(real) == list(yaml.safe_load((ROOT / "config" / "systems.yaml").read_text()))
    assert {row["last"] for row in real.values()} == {""}, "no record is there, so none ran"


def test_how_a_system_is_had_follows_from_its_artifact_and_its_engine(real):
    assert real["faiss-1.15.1-library"]["had"] == ["in process"]
    assert real["weaviate-1.27.0"]["had"] == ["native", "image", "remote"]
    assert real["chroma-1.5.9"]["had"] == ["native"]
    assert real["polardb-8.0.2"]["had"] == real["milvus-2.6.9"]["had"] == ["remote"]


def test_what_a_system_offers_is_what_its_engine_does_not_refuse(real):
    assert real["hnswlib-0.8.0-library"]["filters"] == [] and "price" in real["mariadb-11.8.6"]["filters"]
    assert real["lancedb-0.40.0-library"]["filters"] == ["category", "price", "region", "id"]
    assert "id" in real["pgvector-0.8.5"]["filters"] and "id" not in real["chroma-1.5.9"]["filters"]
    assert "payload float" in real["milvus-2.3.5"]["filters"]
    assert not any(field.startswith("payload") for field in real["polardb-8.0.2"]["filters"]), "of no tried dialect"
    assert real["seekdb-1.4.0"]["indexes"] == ["hnsw (sq, bq)"]
    assert "diskann, remote only" in real["milvus-2.3.5"]["indexes"] and "scann" in real["milvus-2.3.5"]["indexes"]
    assert not any(kind.startswith("scann") for kind in real["milvus-2.2.16"]["indexes"]), "scann came with 2.3"
    assert real["weaviate-1.27.0"]["cluster"] and not real["pgvector-0.8.5"]["cluster"]
    assert real["weaviate-1.35.2"]["upgrade"] == ["weaviate-1.27.0", "weaviate-1.29.0"]
    assert real["milvus-2.3.5"]["sdk"] and not real["seekdb-1.4.0"]["sdk"]
    assert real["milvus-2.3.5"]["freeze_s"] == 15.0 and "library" in real["faiss-1.15.1-library"]["freeze_s"]


@pytest.fixture(scope="module")
def finished(finished_place):
    return finished_place


def test_what_ran_is_read_from_records_and_kept_in_the_config(finished, tmp_path, monkeypatch, capsys):
    place = finished.copy(tmp_path / "clone", "results")
    monkeypatch.chdir(place.folder)
    monkeypatch.setenv("ANNCESTRY_CONFIG", str(place.folder / "config"))
    first, *others = rows(capsys).values()
    records = [json.loads(path.read_text()) for path in (place.folder / "results" / "query").rglob("*@*.json")]
    assert (first["system"], first["valid"], first["invalid"]) == ("red-1.0", 2, 0)
    assert first["last"] == max(record["created"] for record in records)[:10]
    assert others and all(row["last"] == "" for row in others), "defined, and never run"
    rows(capsys, "--record")
    shutil.rmtree(place.folder / "results")
    again = rows(capsys)["red-1.0"]
    assert {**again, "commit": first["commit"]} == first, "the file of the config knows it without the records"
    assert cli.main(["systems"]) == 0
    text = capsys.readouterr().out
    assert f"last run: {first['last']} (2 cells)" in text and "last run: never" in text


def test_an_older_record_does_not_replace_a_later_day():
    row = dict.fromkeys(systems.COLUMNS, "")
    known = {"a": {**row, "system": "a", "last": "2026-11-20"}, "b": {**row, "system": "b", "last": "2026-11-20"}}
    found = {"a": {**row, "system": "a", "last": "2026-11-19"}, "b": {**row, "system": "b", "last": "2026-11-21"}}
    assert {name: row["last"] for name, row in systems.merged(known, found).items()} == {
        "a": "2026-11-20",
        "b": "2026-11-21",
    }


def test_a_file_of_other_columns_is_refused(tmp_path):
    (tmp_path / systems.RAN).write_text("system,day\na,2026-11-20\n")
    with pytest.raises(DataError, match="not of the columns system, version, last"):
        systems.of_file(tmp_path / systems.RAN)
