"""Own data, a system, an endpoint and an experiment are added by one command each, or refused in one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from anncestry import cli, registries
from anncestry.cells import config
from anncestry.datasets import download, normalize
from anncestry.provenance.records import sha256_file
from tests.builders import shelves
from tests.toy import Toy

BASE = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
QUERIES = np.random.default_rng(1).normal(size=(20, 4)).astype(np.float32)
Floats = NDArray[np.float32]


@pytest.fixture(autouse=True)
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toy:
    toy = Toy.make(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANNCESTRY_CONFIG", "config")
    return toy


def npy(path: Path, vectors: Floats) -> None:
    np.save(path, vectors)


def lists(path: Path, vectors: Floats) -> None:
    pq.write_table(pa.table({"id": range(len(vectors)), "emb": list(vectors)}), path)


def fixed_lists(path: Path, vectors: Floats) -> None:
    array = pa.FixedSizeListArray.from_arrays(vectors.ravel(), vectors.shape[1])
    pq.write_table(pa.table({"emb": array}), path, row_group_size=7)


def hdf5(path: Path, vectors: Floats) -> None:
    with h5py.File(path, "w") as file:
        file["train"] = file["test"] = vectors


def lines(path: Path, vectors: Floats) -> None:
    path.write_text(
        "".join(json.dumps({"id": row, "emb": vector.tolist()}) + "\n" for row, vector in enumerate(vectors))
    )


def fvecs(path: Path, vectors: Floats) -> None:
    path.write_bytes(b"".join(np.int32(len(row)).tobytes() + row.tobytes() for row in vectors))


def add(*arguments: str, metric: str = "l2") -> int:
    return cli.main(["add", "dataset", "mine", "--metric", metric, *arguments])


def normalized(folder: Path) -> tuple[Floats, Floats]:
    """Base and queries as the stages download and normalize make them from the entry `mine`."""
    entry = config.read_yaml(Path("config/datasets.yaml"))["mine"]
    download.run({**entry, "name": "mine"}, folder / "download", folder / "cache", key="k")
    normalize.run({**entry, "seed": 1}, folder / "download", folder / "vectors", key="k")
    return np.load(folder / "vectors/base.npy"), np.load(folder / "vectors/queries.npy")


@pytest.mark.parametrize(
    ("ending", "write"),
    [
        ("npy", npy),
        ("parquet", lists),
        ("parquet", fixed_lists),
        ("h5", hdf5),
        ("jsonl", lines),
        ("fvecs", fvecs),
    ],
)
def test_each_format_becomes_a_dataset_with_its_digest_that_the_stages_take(
    ending: str, write: Callable[[Path, Floats], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / f"x.{ending}", BASE)
    write(tmp_path / f"y.{ending}", QUERIES)
    assert add("--base", f"x.{ending}", "--queries", f"y.{ending}") == 0, capsys.readouterr().err
    said = capsys.readouterr().out
    assert "config/datasets.yaml: mine" in said and "next: anncestry add experiment" in said
    base, queries = normalized(tmp_path)
    np.testing.assert_array_equal(base, BASE)
    np.testing.assert_array_equal(queries, QUERIES)
    entry = config.read_yaml(Path("config/datasets.yaml"))["mine"]
    assert (entry["rows"], entry["queries"], entry["dim"]) == (300, 20, 4) and len(entry["content"]) == 2


def test_queries_are_held_out_by_seed_where_there_are_none(tmp_path: Path) -> None:
    npy(tmp_path / "x.npy", BASE)
    assert add("--base", "x.npy", "--hold-out", "30", "--seed", "5") == 0
    base, queries = normalized(tmp_path)
    first = [sorted(map(tuple, part.tolist())) for part in (np.concatenate([base, queries]), BASE)]
    assert base.shape == (270, 4) and queries.shape == (30, 4) and first[0] == first[1]
    (tmp_path / "config/datasets.yaml").write_text(
        (tmp_path / "config/datasets.yaml").read_text().replace("mine:", "a:")
    )
    (tmp_path / "own/mine").rename(tmp_path / "own/a")
    assert add("--base", "x.npy", "--hold-out", "30", "--seed", "5") == 0
    np.testing.assert_array_equal(np.load("own/mine/queries.npy"), queries)


def test_a_pattern_names_many_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    for number in (2, 0, 1):
        lists(tmp_path / f"part-{number}.parquet", BASE[100 * number : 100 * number + 100])
    npy(tmp_path / "y.npy", QUERIES)
    assert add("--base", "part-*.parquet", "--queries", "y.npy") == 0
    np.testing.assert_array_equal(normalized(tmp_path)[0], BASE)


def test_one_hdf5_file_holds_base_and_queries(tmp_path: Path) -> None:
    with h5py.File("x.hdf5", "w") as file:
        file["train"], file["test"] = BASE, QUERIES
    assert add("--base", "x.hdf5") == 0
    np.testing.assert_array_equal(normalized(tmp_path)[1], QUERIES)


def test_comments_and_order_of_the_users_files_survive_byte_by_byte(tmp_path: Path) -> None:
    file = tmp_path / "config/datasets.yaml"
    before = "# mine!\n" + file.read_text() + "# the end"
    file.write_text(before)
    npy(tmp_path / "x.npy", BASE)
    assert add("--base", "x.npy") == 0
    assert file.read_text().startswith(before)


def test_lines_of_another_system_keep_their_ends(tmp_path: Path) -> None:
    file = tmp_path / "config/datasets.yaml"
    before = file.read_bytes().replace(b"\n", b"\r\n")
    file.write_bytes(before)
    npy(tmp_path / "x.npy", BASE)
    assert add("--base", "x.npy") == 0
    after = file.read_bytes()
    assert after.startswith(before) and after.count(b"\n") == after.count(b"\r\n") > before.count(b"\n")


def test_what_an_editor_left_in_the_config_stops_no_entry(tmp_path: Path) -> None:
    (tmp_path / "config/.#systems.yaml").symlink_to("somebody@host.1")
    npy(tmp_path / "x.npy", BASE)
    assert add("--base", "x.npy") == 0


def with_row(row: int, value: float) -> Floats:
    changed = BASE.copy()
    changed[row] = value
    return changed


@pytest.mark.parametrize(
    ("base", "arguments", "metric", "sentence"),
    [
        (BASE, ["--queries", "narrow.npy"], "l2", "narrow.npy: queries have 3 dimensions, but the base has 4"),
        (with_row(7, np.nan), [], "l2", "x.npy: row 7 holds NaN or infinity"),
        (with_row(7, 0), [], "cosine", "x.npy: 1 vectors are zero: say --zero-vectors leave_out, or keep"),
        (BASE, [], "ip", "--metric ip: give cosine or l2"),
        (BASE, ["--queries", "gone.npy"], "l2", "gone.npy: no such file"),
        (BASE, ["--queries", "y.txt"], "l2", "y.txt: unknown ending '.txt'"),
        (BASE[:5], [], "l2", "can't hold out 0 queries of 5 rows; give --queries"),
        (BASE, ["--zero-vectors", "keep"], "l2", "--zero-vectors keep: needs --metric cosine"),
        (BASE, ["--seed", "-1"], "l2", "--seed -1: must be at least 0"),
        (BASE, ["--hold-out", "0"], "l2", "can't hold out 0 queries of"),
        (BASE, ["--hold-out", "5", "--queries", "x.npy"], "l2", "--hold-out: there are queries, so none are held out"),
    ],
)
def test_what_can_be_no_dataset_is_refused_in_one_sentence_and_leaves_nothing(
    base: Floats,
    arguments: list[str],
    metric: str,
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    npy(tmp_path / "x.npy", base)
    npy(tmp_path / "narrow.npy", QUERIES[:, :3])
    (tmp_path / "y.txt").touch()
    before = (tmp_path / "config/datasets.yaml").read_bytes()
    assert add("--base", "x.npy", *arguments, metric=metric) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1
    assert (tmp_path / "config/datasets.yaml").read_bytes() == before and not (tmp_path / "own").exists()


def test_a_taken_name_and_a_name_that_no_dataset_can_have_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    npy(tmp_path / "x.npy", BASE)
    for name, sentence in (("blobs-l2", "blobs-l2 is there already"), ("../x", "'../x' does not match")):
        assert cli.main(["add", "dataset", name, "--metric", "l2", "--base", "x.npy"]) == 2
        assert sentence in capsys.readouterr().err
    assert not (tmp_path / "own").exists()


def test_zero_vectors_are_settled_by_the_rule_that_is_given(tmp_path: Path) -> None:
    npy(tmp_path / "x.npy", with_row(7, 0))
    npy(tmp_path / "y.npy", QUERIES)
    assert add("--base", "x.npy", "--queries", "y.npy", "--zero-vectors", "leave_out", metric="cosine") == 0
    assert len(normalized(tmp_path)[0]) == 299


def test_a_system_an_endpoint_and_an_experiment_are_planned_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ANNCESTRY_CONFIG")
    npy(tmp_path / "x.npy", np.tile(BASE, (2, 1)))
    assert add("--base", "x.npy") == 0
    assert cli.main(["add", "system", "green-1.0", "--of", "red-1.0", "--set", "journal=true"]) == 0
    assert cli.main(["add", "endpoint", "far", "--interface", "mysql=FAR", "--credentials", "FAR_PASSWORD"]) == 0
    words = ["add", "experiment", "my-mine", "--datasets", "mine", "--systems", "red-1.0", "green-1.0"]
    assert cli.main([*words, "--workloads", "k5"]) == 0
    assert "wrote config/experiments/my-mine.yaml: 2 cells\n" in capsys.readouterr().out, "as people type it"
    found = config.load(Path("config"), "my-mine")
    assert (
        found.systems["green-1.0"].settings == {"journal": True}
        and found.topologies["far"].credentials == "FAR_PASSWORD"
    )
    assert cli.main(["--experiment", "my-mine", "plan"]) == 0
    assert "jobs would run" in capsys.readouterr().out
    assert cli.main([*words, "--workloads", "k5"]) == 2, "its name is taken"


def test_a_system_that_changes_one_setting_keeps_the_other_settings_of_the_system_that_it_is_of() -> None:
    as_red = ["--engine", "tests.flat", "--version", "1.0", "--artifact", "{kind: none}"]
    assert cli.main(["add", "system", "green-1.0", *as_red, "--set", "journal=true", "--set", "rows=5"]) == 0
    assert cli.main(["add", "system", "green-2.0", "--of", "green-1.0", "--set", "rows=7"]) == 0
    assert config.load(Path("config"), "default").systems["green-2.0"].settings == {"journal": True, "rows": 7}


def test_a_version_is_added_by_one_command_that_pins_it_and_tells_where_the_pin_is_from(
    tmp_path: Path, toy: Toy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = shelves.wheel(tmp_path / "shelf", "toyserver", "1.1")
    shelves.pip_finds(tmp_path / "shelf", monkeypatch)
    artifact = {"kind": "wheel", "package": "toyserver", "sha256": "0" * 64}
    toy.files["systems"]["red-1.0"]["artifact"] = artifact
    toy.save()
    assert cli.main(["add", "system", "red-1.1", "--of", "red-1.0", "--version", "1.1"]) == 0, capsys.readouterr().err
    pinned = {**artifact, "sha256": sha256_file(wheel)}
    entry = {"of": "red-1.0", "version": "1.1", "artifact": pinned}
    assert config.read_yaml(Path("config/systems.yaml"))["red-1.1"] == entry
    line = f"pinned toyserver 1.1: {wheel.name} by pip, sha256 {pinned['sha256'][:12]}…\n"
    assert capsys.readouterr().out.startswith(f"{line}wrote config/systems.yaml: red-1.1\n")
    assert f"\n# {line}red-1.1:\n" in Path("config/systems.yaml").read_text()
    assert cli.main(["add", "system", "red-1.2", "--of", "red-1.1", "--version", "1.2"]) == 2
    assert "--of: red-1.1 is itself of red-1.0; name that" in capsys.readouterr().err


def test_a_system_of_a_clone_is_told_to_get_its_row_of_fairness(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["add", "system", "green-1.0", "--of", "red-1.0", "--version", "2.0"]) == 0
    assert "make references" not in capsys.readouterr().out, "a project of one's own has no docs"
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "fairness.yaml").touch()
    assert cli.main(["add", "system", "green-2.0", "--of", "red-1.0", "--version", "2.0"]) == 0
    assert "next: make references, which gives it a row in docs/fairness.md" in capsys.readouterr().out


def test_no_registry_is_asked_for_a_version_that_its_engine_does_not_take(
    toy: Toy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(registries, "run", lambda *_: pytest.fail("a registry was asked"))
    pinned = {"kind": "wheel", "package": "milvus", "sha256": "0" * 64}
    toy.files["systems"]["milvus-2.3.5"] = {"engine": "milvus", "version": "2.3.5", "artifact": pinned}
    toy.save()
    assert cli.main(["add", "system", "milvus-2.4.1", "--of", "milvus-2.3.5", "--version", "2.4.1"]) == 2
    assert "milvus 2.4.1 is not less than 2.4.0; supported: from 2.2.16 on" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["system", "green-1.0", "--of", "absent"],
        ["system", "green-1.0", "--engine", "tests.flat"],
        ["system", "green-1.0", "--of", "red-1.0", "--version", "2.0", "--release", "2.0"],
        ["system", "green-1.0", "--of", "red-1.0", "--release", "2.0"],
        ["system", "green-1.0", "--of", "absent", "--version", "2.0"],
        ["system", "blue-1.0", "--of", "red-1.0", "--version", "2.0"],
        ["endpoint", "standalone", "--interface", "mysql=FAR"],
        ["endpoint", "far", "--interface", "mysql"],
        ["experiment", "my", "--datasets", "absent", "--systems", "red-1.0"],
        ["experiment", "My", "--datasets", "blobs-l2", "--systems", "red-1.0"],
        ["experiment", "../x", "--datasets", "blobs-l2", "--systems", "red-1.0"],
        ["experiment", "default", "--datasets", "blobs-l2", "--systems", "red-1.0"],
    ],
)
def test_an_entry_that_the_config_can_t_have_changes_no_file(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in (tmp_path / "config").rglob("*.yaml")}

    before = files()
    assert cli.main(["add", *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert files() == before
