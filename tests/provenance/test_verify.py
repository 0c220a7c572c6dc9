"""`verify` finds one changed byte anywhere and names the file and the numbers that hang on it."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from anncestry import cli, verify_published, workflow
from anncestry.home import PUBLISHED
from anncestry.provenance import records
from anncestry.report.model import numbers
from anncestry.report.model.records import seal_report, seal_table
from tests import synthetic
from tests.toy import anncestry


@pytest.fixture(scope="module")
def with_charts(finished_place, tmp_path_factory):
    """The finished place, its page drawn again with the files of its charts: verify then draws them, too."""
    toy = finished_place.copy(tmp_path_factory.mktemp("finished") / "toy", "data", "results")
    toy.files["config"]["chart_files"] = True
    toy.save()
    matrix = workflow.expand(workflow.Choice(toy.folder / "config", "default"))
    shutil.rmtree(toy.folder / "results/report")
    drawn = anncestry(toy.folder, "report", matrix.report)
    assert drawn.returncode == 0, drawn.stderr
    return toy


@pytest.fixture
def audit(request, finished_place, tmp_path, monkeypatch, capfd):
    """A copy of a finished tree, and `verify` on it: returns (exit status, what it said).

    Its page has the files of its charts where the `kind` of a test is one.
    """
    of_charts = "kind" in request.fixturenames and "/charts/" in request.getfixturevalue("kind")
    finished = request.getfixturevalue("with_charts") if of_charts else finished_place
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
    before = path.read_bytes()
    place = int(at * (len(before) - 1))
    content = before
    while content == before or (path.suffix == ".json" and _same_json(before, content)):
        content = before[:place] + bytes([before[place] ^ 1]) + before[place + 1 :]
        place -= 1
    path.write_bytes(content)


def _same_json(one: bytes, other: bytes) -> bool:
    """As where the 17th digit of a fraction changed, which makes no other number, or white space."""
    try:
        return bool(json.loads(one) == json.loads(other))
    except ValueError:
        return False


def test_an_untouched_tree_is_what_it_says(audit):
    status, said = audit()
    assert status == 0, said
    assert "all published numbers agree with the raw samples" in said


def test_a_clone_without_data_verifies_what_is_there_and_says_what_is_not(audit):
    shutil.rmtree("data")
    status, said = audit()
    assert status == 0, said
    assert re.search(r"not here: inputs in data, scratch/|not here: inputs in data/", said)
    assert re.search(r"but the recall of \d+ records was not made again, as\s+its data is not here", said)


def test_data_that_are_not_of_the_asked_content_or_spec_or_were_made_from_other_data_are_named(audit):
    """Each sealed anew, with all its digests right: only what was asked for, and what it was made from, tell."""
    pinned = one("data/download/*/base.npy")
    array = np.load(pinned)
    array[0, 0] += 1
    for stage, name in (("download", "download"), ("vectors", "normalize"), ("truth", "truth")):
        record = one(f"data/{stage}/*/record.json")
        before = record.read_bytes()
        body = json.loads(before)
        record.write_text(json.dumps(records.seal({**body, "spec": {**body["spec"], "epoch": 7}})))
        status, said = audit("--quick")
        assert status == 2 and f"{record}: its spec does not match its key" in said, name
        record.write_bytes(before)
    record, kept = pinned.with_name("record.json"), pinned.read_bytes()
    body = json.loads(record.read_text())
    np.save(pinned, array)
    body["outputs"]["base"]["sha256"] = records.sha256_file(pinned)
    record.write_text(json.dumps(records.seal(body)))
    status, said = audit()
    assert status == 2 and re.search(rf"{record}: its base have sha256 \w{{12}}…, but the record says \w{{12}}…", said)
    assert re.search(rf"{record}: differs from the download of data/vectors/", said)
    pinned.write_bytes(kept)


def test_a_table_and_a_page_are_held_against_their_specs_and_the_page_against_its_table(audit):
    for stage in ("table", "report"):
        record = one(f"results/{stage}/*/record.json")
        before = record.read_bytes()
        body = json.loads(before)
        record.write_text(json.dumps(records.seal({**body, "spec": {**body["spec"], "experiment": "other"}})))
        status, said = audit("--quick")
        assert status == 2 and f"{record}: its spec does not match its key" in said, stage
        record.write_bytes(before)
    body["inputs"]["table"]["sha256"] = "0" * 64
    record.write_text(json.dumps(records.seal(body)))
    status, said = audit("--quick")
    assert status == 2 and f"{record}: was made from another table than results/table/" in said


def test_two_clones_may_quote_a_ceiling_each_and_one_that_is_not_the_best_of_its_runs_is_named(audit):
    file = one("results/ceiling/*.json")
    other = json.loads(file.read_text())
    for each in (other, *other["runs"]):
        each["qps"] *= 2
    file.write_text(json.dumps(records.seal(other)))
    status, said = audit()
    assert status == 0, said  # a merge kept the other clone's file
    path = next(path for path in sorted(Path().glob("results/query/*/*/*/*.json")) if "ceiling" in path.read_text())
    body = json.loads(path.read_text())
    body["client"]["ceiling"]["qps"] *= 2
    path.write_text(json.dumps(records.seal(body)))
    status, said = audit("--quick")
    assert status == 2 and f"{path}: its ceiling: qps is " in said


def test_what_a_killed_job_left_hidden_is_no_problem_and_a_machine_that_is_gone_is_one(audit):
    (path := one("results/query/*/*/*/*.json")).with_name(f".{path.name}.abcd.json").write_text("")
    path.with_name(f".{path.name}.efgh.json").write_bytes(path.read_bytes())
    status, said = audit("--quick")
    assert status == 0 and "does not use" not in said, said
    (machine := one("results/platform/*.json")).unlink()
    status, said = audit("--quick")
    assert status == 2 and f"{machine}: missing: it holds the machine" in said


KINDS = [
    "results/load/*/*/*.json",
    "results/load/*/*/*.resources.parquet",
    "results/query/*/*/*/*.json",
    "results/query/*/*/*/*.samples.parquet",
    "results/query/*/*/*/*.resources.parquet",
    "results/recall/*/*/*/*.json",
    "results/ceiling/*.json",
    "results/platform/*.json",
    "results/table/*/record.json",
    "results/report/*/record.json",
    "results/table/*/numbers.csv",
    "results/table/*/numbers.json",
    "results/table/*/numbers.parquet",
    "results/report/*/index.html",
    "results/report/*/audit.html",
    "results/report/*/numbers.csv",
    "results/report/*/cells.html",
    "results/report/*/method.html",
    "results/report/*/published.html",
    "results/report/*/tables.html",
    "results/report/*/tables/*.tex",
    "results/report/*/tables/*.parquet",
    "results/report/*/charts/*.svg",
    "results/report/*/charts/*.png",
    "data/vectors/*/base.npy",
    "data/vectors/*/record.json",
    "data/truth/*/ids.npy",
    "data/truth/*/distances.npy",
    "data/truth/*/record.json",
]


@pytest.mark.parametrize("kind", KINDS)
def test_one_flipped_bit_in_any_kind_of_file_is_found_and_the_file_named(audit, kind):
    parsed = kind.endswith(".json") or kind.startswith("results/table/")
    for at in (0.1, 0.5, 0.97):
        victim = one(kind)
        before = victim.read_bytes()
        flip(victim, at)
        # What is not parsed any more once its digest is wrong is found the same way wherever the bit is.
        status, said = audit(*(() if parsed or at == 0.5 else ("--quick",)))
        assert status == 2, f"bit at {at} of {victim} not noticed"
        assert victim.name in said or str(victim.parent) in said, said
        assert re.search(r"no longer supported: \d+ numbers?: n[0-9a-f]{10}", said), said
        victim.unlink()  # some are hard links
        victim.write_bytes(before)


def test_one_changed_digit_of_a_published_number_is_found(audit):
    victim = one("results/query/*/*/*/k5@*.json")
    body = json.loads(victim.read_text())
    body["summary"]["p50_ms"]["value"] *= 1.01
    victim.write_text(json.dumps(body, indent=1) + "\n")
    status, said = audit()
    assert status == 2
    assert f"{victim}: changed since it was written" in said
    assert re.search(r"no longer supported: \d+ numbers: n[0-9a-f]{10}", said)


@pytest.mark.parametrize("kind", ["results/query/*/*/*/k5@*.json", "results/load/*/*/*.json"])
def test_a_disturbance_that_is_made_smaller_is_not_what_the_samples_say(audit, kind):
    victim = one(kind)
    body = json.loads(victim.read_text())
    run = body["disturbance"]["runs"][0] if "runs" in body["disturbance"] else body["disturbance"]
    run["others_pct"] += 1.0
    records.write_json(victim, records.seal(body))
    status, said = audit()
    assert status == 2
    assert f"{victim}: its disturbance differs from that recomputed" in said


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
    assert "qps is 1000000.0, but the samples give" in said


def test_a_search_effort_that_was_not_asked_with_is_found(audit):
    victim = one("results/query/*/*/*/k5@*.json")
    body = json.loads(victim.read_text())
    body["ef_search"] += 1
    records.write_json(victim, records.seal(body))
    status, said = audit()
    assert status == 2
    assert re.search(r"ef_search is \d+, but it was asked with \d+", said), said


def rewritten(victim: Path, column: str, edit: Callable[[list[list[float]], pa.Table], None]) -> None:
    """Edit a column of lists in a query's samples, and seal all that has their digest again."""
    body = json.loads(victim.read_text())
    samples = victim.with_name(body["outputs"]["samples"]["path"])
    table = parquet.read_table(samples)
    values, before = table[column].to_pylist(), body["outputs"]["samples"]["sha256"]
    edit(values, table)
    place = table.column_names.index(column)
    parquet.write_table(table.set_column(place, column, pa.array(values, table[column].type)), samples)
    size = samples.stat().st_size
    victim.write_text(reseal(victim.read_text(), lambda body: body["outputs"]["samples"].update(bytes=size)))
    swap(before, records.sha256_file(samples))


def unknown_id(victim: Path) -> None:
    rewritten(victim, "ids", lambda ids, _: ids[0].__setitem__(0, 540))


def doubled(victim: Path) -> None:
    rewritten(victim, "distances", lambda distances, _: distances[0].__setitem__(1, 2 * distances[0][1] + 1))


def excluded(victim: Path) -> None:
    """The last row of an answer is one that the filter excludes, at its true distance; no defect says so."""
    folder = one("data/vectors/*/record.json").parent
    base, queries, category = (np.load(folder / f"{name}.npy") for name in ("base", "queries", "category"))
    row = int(np.flatnonzero(~np.isin(category, [1, 4, 7]))[0])

    def to_it(distances: list[list[float]], table: pa.Table) -> None:
        query = queries[table["query"][0].as_py()].astype(float)
        distances[0][-1] = float(((base[row].astype(float) - query) ** 2).sum())

    rewritten(victim, "distances", to_it)
    rewritten(victim, "ids", lambda ids, _: ids[0].__setitem__(-1, row))


def said_of_itself(*path: str, value: object) -> Callable[[Path], None]:
    """Have the server have said something else, as the record quotes it."""

    def change(victim: Path) -> None:
        def edit(body: dict) -> None:
            place = body
            for name in path[:-1]:
                place = place[name]
            place[path[-1]] = value

        victim.write_text(reseal(victim.read_text(), edit))

    return change


OF_THE_SERVER = {
    "row count": ("server", "rows", 539),
    "topology": ("server", "nodes", 3),
    "server version": ("server", "version", "0.0.1"),
    "members alive": ("server", "members", "flat", "alive", False),
}
DENIED = {
    ("query", "known rows"): unknown_id,
    ("query", "distances"): doubled,
    ("query", "filter applied"): excluded,
    ("query", "artifact digest"): said_of_itself("artifact", "digest", value="0" * 64),
    **{
        (stage, gate): said_of_itself(*path, value=value)
        for stage in ("load", "query")
        for gate, (*path, value) in OF_THE_SERVER.items()
    },
}


@pytest.mark.parametrize(("stage", "gate"), DENIED)
def test_what_is_kept_shows_a_failure_that_a_gate_denies(audit, stage, gate):
    """All digests fit, and every gate of the record holds: `verify` names record, gate and numbers."""
    victim = one("results/load/*/*/*.json" if stage == "load" else "results/query/*/*/*/k5-category@*.json")
    before = records.sha256_file(victim)
    DENIED[stage, gate](victim)
    swap(before, records.sha256_file(victim))
    assert json.loads(victim.read_text())["valid"]
    status, said = audit()
    assert status == 2
    assert re.search(rf"{victim}: its gate `{gate}` is: .*; but .*, which fails", said), said
    assert re.search(r"no longer supported: \d+ numbers?: n[0-9a-f]{10}", said), said


def test_a_net_storage_that_its_components_do_not_give_is_found(audit):
    victim = one("results/load/*/*/*.json")
    body = json.loads(victim.read_text())
    body["storage"]["net_mib"] /= 2
    records.write_json(victim, records.seal(body))
    status, said = audit()
    assert status == 2
    assert re.search(r"net_mib is [\d.]+, but its components give [\d.]+", said), said


def test_the_page_that_people_open_is_held_against_the_page(audit, capfd):
    assert cli.main(["summary"]) == 0  # copies it to where people look
    capfd.readouterr()
    shown = one("reports/*/index.html")
    shown.write_text(shown.read_text().replace("</title>", ", improved</title>"))
    status, said = audit()
    assert status == 2
    assert f"{shown}: is not what " in said
    shown.unlink()
    assert f"{shown}: is not what " in audit()[1]


def test_a_deleted_record_is_named(audit):
    victim = one("results/recall/*/*/*/*.json")
    victim.unlink()
    status, said = audit()
    assert status == 2
    assert f"{victim}: missing" in said


@pytest.mark.parametrize("kind", KINDS)
def test_one_changed_digit_in_any_kind_of_text_is_found_by_quick_too(audit, kind):
    victim = one(kind)
    if victim.suffix not in (".json", ".csv", ".html"):
        flip(victim)
    else:
        text = content = victim.read_text()
        place = len(text) * 2 // 3
        while content == text or (victim.suffix == ".json" and _same_json(content.encode(), text.encode())):
            place = text.rindex("1", 0, place)
            content = text[:place] + "2" + text[place + 1 :]
        victim.unlink()
        victim.write_text(content)
    status, said = audit("--quick")
    assert status == 2 and victim.name in said, said


@pytest.mark.parametrize("name", ["numbers.csv", "runs.csv", "findings.csv"])
def test_a_changed_published_figure_is_named(audit, tmp_path, monkeypatch, name):
    folder = tmp_path / "published"
    shutil.copytree(PUBLISHED, folder)
    monkeypatch.setattr(verify_published, "PUBLISHED", folder)
    assert audit("--quick")[0] == 0
    text = (folder / name).read_text()
    (folder / name).write_text(text.replace("1", "2", 1))
    status, said = audit("--quick")
    assert status == 2 and f"{name}: its sha256 differs from" in said


def test_the_number_whose_row_was_changed_is_the_one_that_is_named(audit):
    """A forged table, sealed again with everything beside it: the records still say otherwise, and which number."""
    folder = one("results/table/*/record.json").parent
    frame = numbers.read(folder)
    victim = frame["number_id"][frame["metric"] == "p50_ms"].iloc[0]
    frame.loc[frame["number_id"] == victim, "value"] *= 1.5
    sealed_record = records.read_record(folder / "record.json")
    numbers.write(frame, folder)
    seal_table(folder, sealed_record["key"], sealed_record["spec"], frame)
    status, said = audit()
    assert status == 2
    assert f"{folder / 'numbers.parquet'}: differs from the records" in said
    assert f"no longer supported: 1 number: {victim}" in said


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda text: text[: len(text) // 2], "not valid JSON"),
        (lambda text: '{"stage": 1}', "not a record of anncestry"),
        (lambda text: text.replace('"schema_version": 2', '"schema_version": 99'), "a newer anncestry"),
        (lambda text: reseal(text, lambda body: body.pop("summary")), "'summary' is a required property"),
        (lambda text: reseal(text, lambda body: body.update(valid=False)), "but its gates give the opposite"),
        (lambda text: reseal(text, lambda body: body["spec"].update(seed=8)), "its spec does not match its key"),
        (lambda text: reseal(text, lambda body: body["platform"].update(cores=512)), "two machines are mixed"),
    ],
)
def test_a_truncated_foreign_newer_or_mixed_in_record_is_named(audit, damage, words):
    victim = one("results/query/*/*/*/k5@*.json")
    victim.write_text(damage(victim.read_text()))
    status, said = audit()
    assert status == 2 and str(victim) in said and words in said, said
    assert re.search(r"no longer supported: \d+ numbers", said)


def reseal(text, edit):
    body = json.loads(text)
    edit(body)
    return json.dumps(records.seal(body), indent=1) + "\n"


def test_a_load_of_more_rows_than_its_dataset_has_is_refused(audit):
    victim = one("results/load/*/*/*.json")
    rows = json.loads(victim.read_text())["rows"]
    before = records.sha256_file(victim)
    victim.write_text(reseal(victim.read_text(), lambda body: body.update(rows=2 * rows)))
    swap(before, records.sha256_file(victim))
    status, said = audit()
    assert status == 2 and f"{victim}: rows is {2 * rows}, but its dataset has {rows}" in said, said


def test_records_of_another_epoch_or_platform_beside_ours_are_counted_and_kept_apart(audit):
    source = one("results/query/*/*/*/k5@*.json")
    for name, edit in (
        ("old", lambda body: body["spec"].update(epoch=0)),
        ("far", lambda body: body["spec"].update(platform="another")),
    ):
        source.with_name(f"{name}@0123456789ab.json").write_text(reseal(source.read_text(), edit))
    status, said = audit()
    assert status == 0, said
    assert "1 query records of epoch 0 (now 1)" in said and "1 query records of platform 'another'" in said
    (source.parent / "foreign@0123456789ac.json").write_text("{")
    status, said = audit()
    assert status == 2 and "foreign@0123456789ac.json: not valid JSON" in said


def test_results_of_the_version_before_still_verify(audit):
    """Records as schema version 1 wrote them: no lock file, limits or load afterwards."""
    for victim in [one("results/load/*/*/*.json"), *sorted(Path("results/query").rglob("*.json"))]:

        def older(body):
            body["schema_version"] = 1
            del body["code"]["lock_sha256"]
            for name in ("limits", "virtualisation", "load_average_after"):
                del body["platform"][name]

        before = records.sha256_file(victim)
        victim.write_text(reseal(victim.read_text(), older))
        swap(before, records.sha256_file(victim))
    Path(one("results/platform/*.json")).write_text(
        json.dumps({k: v for k, v in json.loads(one("results/platform/*.json").read_text()).items() if k != "seal"})
    )
    for folder in ("table", "report"):
        shutil.rmtree(f"results/{folder}")
    matrix, _ = workflow.resolve(workflow.choice_of_environment(), Path())
    for command, key in (("table", matrix.table), ("report", matrix.report)):
        assert cli.main([command, key]) == 0
    status, said = audit()
    assert status == 0, said


def swap(old, new):
    """Let every record that was made from a file of one digest be made from that of another."""
    for path in Path("results").rglob("*.json"):
        if path.parts[1] in ("load", "query", "recall") and old in path.read_text():
            before = records.sha256_file(path)
            path.write_text(reseal(path.read_text().replace(old, new), lambda body: None))
            swap(before, records.sha256_file(path))


def test_snakemake_verify_is_a_target(finished_place, tmp_path):
    toy = finished_place.copy(tmp_path / "clone", "data", "results")
    flip(sorted((toy.folder / "results" / "query").rglob("*.samples.parquet"))[0])
    done = toy.snakemake("verify", check=False)
    assert done.returncode != 0
    assert "samples.parquet: sha256" in toy.log("verify")


def test_quick_only_hashes_and_still_finds_a_changed_sample(audit):
    flip(one("results/query/*/*/*/*.samples.parquet"))
    status, said = audit("--quick")
    assert status == 2
    assert "samples.parquet: sha256" in said


def test_random_flips_are_found(audit):
    """Any bit of any published file, not only those somebody thought of."""
    chance = random.Random(5)
    files = sorted(path for path in Path("results").rglob("*") if path.is_file())
    for number, victim in enumerate(chance.sample(files, min(12, len(files)))):
        before = victim.read_bytes()
        flip(victim, chance.random())
        status, said = audit(*(() if number % 3 == 0 else ("--quick",)))
        assert status == 2, f"{victim}: {said}"
        victim.write_bytes(before)
    assert audit()[0] == 0, "as it was, all agrees"


@pytest.mark.long
def test_memory_does_not_grow_with_the_number_of_cells(tmp_path):
    peaks = {}
    for cells in (40, 200):
        synthetic.results(tmp_path / str(cells), cells)
        status, peaks[cells], said = synthetic.verify(tmp_path / str(cells))
        assert status == 0, said
        assert "checked by its digest only" in said, "a page of so many numbers is not drawn again, and that is said"
    # The table of numbers grows: some 0.1 MiB a cell. Samples held for longer than their cell would be megabytes each.
    assert peaks[200] - peaks[40] < 0.3 * (200 - 40), f"MiB by cells: {peaks}"


PLANTED = [
    "results/report/*/extra.html",
    "results/report/*/tables/extra.html",
    "results/report/*/.hidden",
    "results/table/*/extra.csv",
    "data/vectors/*/extra.npy",
    "results/query/*/*/*/extra.html",
    "results/load/*/*/none@0123456789ab.resources.parquet",
]


@pytest.mark.parametrize("pattern", PLANTED)
def test_a_planted_file_is_no_part_of_what_was_sealed(audit, pattern):
    """Finding 13: what verification lets pass is the files of the records, and no other."""
    folder, _, name = pattern.rpartition("/")
    planted = one(folder) / name
    planted.write_text("<p>not ours")
    for words in ((), ("--quick",)):
        status, said = audit(*words)
        assert status == 2, said
        assert f"{planted}: no record lists this file" in said or f"{planted}: is " in said, said
    planted.unlink()
    planted.symlink_to("/etc/passwd")
    assert audit()[0] == 2
    planted.unlink()
    assert audit("--quick")[0] == 0


def test_a_planted_page_that_is_listed_and_sealed_again_is_not_of_the_page_drawn_again(audit, tmp_path, capfd):
    """Finding 13: listed in the record it was signed."""
    folder = one("results/report/*/record.json").parent
    (folder / "extra.html").write_text("<p>not ours")
    record = records.read_record(folder / "record.json")
    seal_report(folder, record["key"], record["spec"], one("results/table/*/record.json").parent)
    status, said = audit()
    assert status == 2 and f"{folder / 'extra.html'}: is not part of the page, drawn again" in said
    key = Ed25519PrivateKey.generate()
    secret = tmp_path / "key.pem"
    secret.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    assert cli.main(["attest", "--key", str(secret)]) == 2
    assert "extra.html: is not part of the page" in capfd.readouterr().err
    assert not Path("attestation.json").exists()


def test_a_summary_in_text_that_is_sealed_again_is_not_of_the_page_drawn_again(audit):
    folder = one("results/report/*/record.json").parent
    (folder / "report.txt").write_text("all won\n")
    record = records.read_record(folder / "record.json")
    seal_report(folder, record["key"], record["spec"], one("results/table/*/record.json").parent)
    status, said = audit()
    assert status == 2 and str(folder / "report.txt") in said


@pytest.mark.parametrize(
    "wrong", ["../../../../../../../../../proc/self/mem", "/proc/self/mem", "a/../../b", "./a", "a//b", "a\n", "..", ""]
)
@pytest.mark.parametrize("part", ["inputs", "outputs"])
def test_a_path_in_a_record_lies_in_this_folder_and_a_strange_one_ends_nothing_else(audit, part, wrong):
    """Finding 14: `/proc/self/mem` as an output ended all of verify with "the disk reports an error"."""

    def edit(body):
        next(iter(body[part].values()))["path"] = wrong

    victim = one("results/query/*/*/*/k5@*.json")
    victim.write_text(reseal(victim.read_text(), edit))
    status, said = audit()
    assert status == 2 and str(victim) in said and "Traceback" not in said
    assert "records and" in said, "the others were looked at"


@pytest.mark.parametrize("kind", ["folder", "/proc/self/mem", "itself"])
@pytest.mark.parametrize(
    "victim", ["results/recall/*/*/*/k5@*.json", "results/table/*/record.json", "data/truth/*/record.json"]
)
def test_what_is_no_file_in_a_records_place_is_named(audit, victim, kind):
    """Finding 14: a folder there was a traceback."""
    path = one(victim)
    path.unlink()
    path.mkdir() if kind == "folder" else path.symlink_to(path.name if kind == "itself" else kind)
    status, said = audit()
    assert status == 2 and str(path) in said and "Traceback" not in said
    assert "records and" in said, "the others were looked at"
