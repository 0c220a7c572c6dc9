"""Records are whole or absent, name what they were made from, and notice a changed byte; epochs guard the measuring."""

from __future__ import annotations

import hashlib
import json
import os
import shutil

import pytest
import yaml

from anncestry.cells.stage import STAGES, Stage
from anncestry.errors import ConfigError, DataError
from anncestry.provenance import code, records
from tests.toy import ROOT


def write(folder, **more):
    (folder / "made.bin").write_bytes(b"made")
    (folder / "source.bin").write_bytes(b"source")
    return records.write_record(
        folder / "record.json", stage="recall", key="0123456789ab", spec={"stage": "recall"},
        body={"query_key": "ba9876543210", "valid": True, "recall": {}},
        inputs={"source": folder / "source.bin"}, outputs={"samples": folder / "made.bin"}, **more,
    )  # fmt: skip


def test_a_record_names_inputs_outputs_and_code(tmp_path):
    record = write(tmp_path)
    assert records.read_record(tmp_path / "record.json", stage="recall", key="0123456789ab") == record
    assert record["outputs"]["samples"] == {
        "path": "made.bin",
        "sha256": records.sha256_file(tmp_path / "made.bin"),
        "bytes": 4,
    }
    assert record["inputs"]["source"]["sha256"] == records.sha256_file(tmp_path / "source.bin")
    assert len(record["code"]["commit"]) == 40


@pytest.mark.parametrize("position", [0, 3])
def test_one_changed_byte_is_found_and_named(tmp_path, position):
    record = write(tmp_path)
    content = bytearray((tmp_path / "made.bin").read_bytes())
    content[position] ^= 1
    (tmp_path / "made.bin").write_bytes(content)
    with pytest.raises(DataError, match=r"made\.bin: sha256"):
        records.verify_outputs(tmp_path / "record.json", record)


def test_a_missing_output_is_named(tmp_path):
    record = write(tmp_path)
    (tmp_path / "made.bin").unlink()
    with pytest.raises(DataError, match=r"made\.bin: missing"):
        records.verify_outputs(tmp_path / "record.json", record)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda text: text[: len(text) // 2], "not valid JSON"),
        (lambda text: "[]", "not a record"),
        (lambda text: text.replace('"schema_version": 2', '"schema_version": 3'), "wrote schema version 3"),
        (lambda text: text.replace('"schema_version": 2', '"schema_version": "two"'), "unknown schema version"),
        (
            lambda text: text.replace('"stage": "recall",\n "key"', '"stage": "load",\n "key"'),
            "stage load, expected recall",
        ),
        (lambda text: text.replace("0123456789ab", "ab0123456789"), "belongs to another spec"),
        (lambda text: text.replace('"valid": true', '"valid": false'), "changed since it was written"),
    ],
)
def test_a_truncated_foreign_or_newer_record_is_refused_by_name(tmp_path, edit, words):
    write(tmp_path)
    path = tmp_path / "record.json"
    path.write_text(edit(path.read_text()))
    with pytest.raises(DataError, match=words) as error:
        records.read_record(path, stage="recall", key="0123456789ab")
    assert "record.json" in str(error.value)


def older_load(tmp_path):
    """A load record as schema version 1 wrote it (commit 1acac39)."""
    path = tmp_path / "old.json"
    shutil.copy(ROOT / "tests" / "fixtures" / "load.schema1.json", path)
    return path


def test_a_record_of_the_version_before_is_read_as_one_of_today(tmp_path):
    path = older_load(tmp_path)
    assert json.loads(path.read_text())["schema_version"] == 1
    record = records.read_record(path, stage="load")
    assert record["schema_version"] == records.VERSION
    assert record["code"]["lock_sha256"] is None and record["platform"]["limits"] is None
    assert record["platform"]["load_average_before"] == record["platform"]["load_average_1min"]
    records.check_schema(record, path, whole=True)


def test_the_seal_of_an_older_record_is_checked_before_it_is_migrated(tmp_path):
    path = older_load(tmp_path)
    path.write_text(path.read_text().replace('"rows": 540,\n "dim"', '"rows": 541,\n "dim"'))
    with pytest.raises(DataError, match="its seal is broken"):
        records.read_record(path)


def test_migrations_go_from_version_to_version_up_to_the_present_one(tmp_path, monkeypatch):
    path = older_load(tmp_path)
    monkeypatch.setattr(records, "VERSION", 3)
    with pytest.raises(DataError, match="no migration from schema version 1"):
        records.migrate(json.loads(path.read_text()), path)
    monkeypatch.setitem(records.MIGRATIONS, 2, lambda record: {**record, "seen": record["schema_version"]})
    migrated = records.migrate(json.loads(path.read_text()), path)
    assert (migrated["schema_version"], migrated["seen"]) == (3, 2)


def test_a_record_that_does_not_fit_its_schema_is_neither_written_nor_read(tmp_path):
    with pytest.raises(DataError, match="'query_key' is a required property"):
        records.write_record(
            tmp_path / "a.json", stage="recall", key="0123456789ab", spec={}, body={"valid": True, "recall": {}}
        )
    assert not (tmp_path / "a.json").exists()
    body = write(tmp_path)
    records.write_json(tmp_path / "record.json", records.seal({**body, "valid": "yes"}))
    with pytest.raises(DataError, match=r"record\.json: not a recall record of schema version 2: valid: 'yes'"):
        records.read_record(tmp_path / "record.json")


def test_an_interrupted_write_leaves_neither_a_file_nor_a_temporary(tmp_path):
    with pytest.raises(RuntimeError), records.replacing(tmp_path / "a.json") as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_write_keeps_what_was_there(tmp_path):
    (tmp_path / "a.json").write_text("old")
    with pytest.raises(RuntimeError), records.replacing(tmp_path / "a.json") as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert (tmp_path / "a.json").read_text() == "old"


def test_infinity_and_nan_never_reach_a_record(tmp_path):
    with pytest.raises(ValueError, match="Out of range"):
        records.write_json(tmp_path / "a.json", {"p50_ms": float("inf")})


def test_what_changed_on_its_way_to_the_results_is_not_published(tmp_path):
    write(tmp_path)
    (tmp_path / "made.bin").write_bytes(b"MADE")
    with pytest.raises(DataError, match=r"made\.bin"):
        records.promote(tmp_path / "record.json", tmp_path / "out" / "k10@0123456789ab.json",
                        stage="recall", key="0123456789ab")  # fmt: skip
    assert not (tmp_path / "out" / "k10@0123456789ab.json").exists()


def test_a_published_record_names_its_files_beside_it(tmp_path):
    write(tmp_path)
    target = tmp_path / "out" / "k10@0123456789ab.json"
    records.promote(tmp_path / "record.json", target, stage="recall", key="0123456789ab")
    published = records.read_record(target)
    assert published["outputs"]["samples"]["path"] == "k10@0123456789ab.samples.bin"
    records.verify_outputs(target, published)


def test_measuring_code_is_what_its_epochs_say():
    assert code.changed(ROOT / "config" / "epochs.yaml") == [], "run `anncestry epochs` and follow what it says"


def test_changed_measuring_code_is_noticed_until_it_is_bumped_or_attested(tmp_path, monkeypatch):
    path = tmp_path / "epochs.yaml"
    shutil.copy(ROOT / "config" / "epochs.yaml", path)
    code.settle(path, list(code.sources()), "where this test starts")
    before = code._read(path)
    edited = tmp_path / "session.py"
    edited.write_text("# another way to measure\n")
    real = Stage.source_files
    monkeypatch.setattr(
        Stage, "source_files", lambda stage: (*real(stage), edited) if stage.name == "query" else real(stage)
    )
    assert code.changed(path) == ["query"]
    code.settle(path, ["query"], "a remark only")
    assert code.changed(path) == []
    assert code._read(path)["query"]["epoch"] == before["query"]["epoch"]
    assert code._read(path)["attestations"][-1] == {"why": "a remark only", "of": ["query"]}
    edited.write_text("# yet another\n")
    assert code.changed(path) == ["query"]
    code.settle(path, ["query"], None)
    assert code.changed(path) == []
    assert code._read(path)["query"]["epoch"] == before["query"]["epoch"] + 1
    assert not [each for each in code._read(path)["attestations"] if "query" in each["of"]]
    assert path.read_text().startswith("# What measuring means")
    with pytest.raises(ConfigError, match="unknown stage, feature or engine 'qury'"):
        code.settle(path, ["qury"], None)


def test_an_engine_is_settled_alone(tmp_path, monkeypatch):
    path = tmp_path / "epochs.yaml"
    shutil.copy(ROOT / "config" / "epochs.yaml", path)
    code.settle(path, list(code.sources()), "where this test starts")
    before = code._read(path)
    edited = tmp_path / "wire.py"
    edited.write_text("# another request\n")
    real = code.sources()
    monkeypatch.setattr(code, "sources", lambda: {**real, "milvus": (*real["milvus"], edited)})
    assert code.changed(path) == ["milvus"]
    code.settle(path, ["milvus"], None)
    assert code.changed(path) == []
    after = code._read(path)
    assert after["engines"]["milvus"]["epoch"] == before["engines"]["milvus"]["epoch"] + 1
    assert {**after, "engines": None, "attestations": None} == {**before, "engines": None, "attestations": None}


def test_a_reason_is_kept_once_with_all_that_it_is_of_also_of_a_file_of_earlier_versions(tmp_path):
    path = tmp_path / "epochs.yaml"

    def reasons() -> dict[str, list[str]]:
        return {each["why"]: each["of"] for each in code._read(path)["attestations"]}

    path.write_text((ROOT / "config" / "epochs.yaml").read_text().partition("attestations:")[0])
    older = code._read(path)
    older["load"]["attested"], older["engines"]["milvus"]["attested"] = ["both", "one"], ["both", "both"]
    path.write_text(yaml.safe_dump(older))
    code.settle(path, [], "nothing changed")
    assert reasons() == {"both": ["load", "milvus"], "one": ["load"]}
    code.settle(path, ["load", "stream"], "one")
    assert reasons() == {"both": ["load", "milvus"], "one": ["load", "stream"]}
    code.settle(path, ["load"], None)
    assert reasons() == {"both": ["milvus"], "one": ["stream"]}


def test_every_measuring_module_belongs_to_a_stage():
    covered = {path for files in code.sources().values() for path in files}
    covered |= {path for stage in STAGES.values() if not stage.cheap for path in stage.source_files()}
    package = ROOT / "src" / "anncestry"
    # Those of verdicts, which are in no record, but in the key of each table.
    covered |= {package / "metrics" / f"{name}.py" for name in ("decide", "moderate")}
    covered.add(package / "measure" / "rejudge.py")  # only verify asks it, once records are there
    measuring = {
        path
        for folder in ("measure", "drive", "engines", "datasets", "metrics", "runtimes")
        for path in (package / folder).rglob("*.py")
        if path.stat().st_size and not (path.name == "__init__.py" and path.parent.parent == package)
    }
    assert {os.path.relpath(path, package) for path in measuring - covered} == set()


def test_the_same_vectors_of_a_source_that_ships_no_neighbours_are_the_same():
    def made(*labels):
        outputs = {label: {"sha256": f"of {label}"} for label in labels}
        return {"stage": "download", "key": "k", "outputs": outputs}

    bare, shipping = made("base", "queries"), made("base", "queries", "shipped_ids")
    assert records.identity(bare) == records.identity(shipping) != records.identity(made("base"))
    # Records of before have the identity of everything that came along.
    old = {label: each["sha256"] for label, each in shipping["outputs"].items()}
    old = hashlib.sha256(records.canonical({"stage": "download", "key": "k", "outputs": old}).encode()).hexdigest()
    assert records.is_of(shipping, old) and records.is_of(shipping, records.identity(bare))
    assert not records.is_of(bare, old)
