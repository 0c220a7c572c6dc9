"""From a number back to its samples: `why`, attestations, and the exports, on a finished toy matrix."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import socket
import subprocess
from pathlib import Path
from urllib.parse import unquote

import pytest
import requests
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from prov.model import ProvDocument

from anncestry import cli, workflow
from anncestry.ancestry import attest as signing
from anncestry.ancestry import export
from anncestry.provenance import records
from anncestry.report.model import numbers


@pytest.fixture(scope="module")
def finished(finished_place):
    return finished_place


@pytest.fixture
def run(finished, tmp_path, monkeypatch, capfd):
    """A copy of a finished tree, and a command on it: returns (exit status, what it said)."""
    toy = finished.copy(tmp_path / "clone", "data", "results", "scratch")
    monkeypatch.chdir(toy.folder)
    monkeypatch.setenv("ANNCESTRY_CONFIG", str(toy.folder / "config"))

    def command(*arguments: str) -> tuple[int, str]:
        status = cli.main(list(arguments))
        said = capfd.readouterr()
        return status, said.out + said.err

    return command


def one(pattern: str) -> Path:
    return sorted(Path().glob(pattern))[0]


def row(metric: str, workload: str) -> dict[str, object]:
    frame = numbers.read(one("results/table/*/numbers.parquet").parent)
    return numbers.rows_of(frame[(frame["metric"] == metric) & (frame["workload"] == workload)])[0]


# why


def test_why_shows_the_chain_from_the_number_to_samples_truth_dataset_artifact_and_code(run):
    asked = row("recall_by_id", "k5")
    status, said = run("why", str(asked["number_id"]))
    assert status == 0, said
    for step in (
        "tidy row results/table/",
        "recall record results/recall/",
        "query record results/query/",
        "load record results/load/",
        "truth record data/truth/",
        "download record data/download/",
        "artifact record scratch/artifact/",
        "2 runs, 80 samples: run 0: 40, run 1: 40",
        "source used: kind synthetic",
        "licence: synthetic",
        "lock file: ",
        "CPU flags: ",
        "load average: ",
        "clients: ",
        "ceiling record results/ceiling/",
        "attempts: 2 starts (results/attempts/blobs-l2/",
    ):
        assert step in said, step
    assert re.search(r"code: anncestry \S+ at [0-9a-f]{40}", said)
    assert re.search(r"gates: (\d+) of \1 passed", said)
    assert "✗" not in said


def test_an_id_may_be_shortened_as_long_as_it_is_one_number(run):
    asked = str(row("p50_ms", "k5")["number_id"])
    assert run("why", f"#{asked[:9]}")[1] == run("why", asked)[1]
    status, said = run("why", "n")
    assert status == 2 and "numbers begin with 'n'" in said and "give more digits" in said
    status, said = run("why", "nffffffffff")
    assert status == 2 and "no number 'nffffffffff' in default@" in said


def test_a_number_may_be_asked_for_by_what_it_is_of(run):
    asked = row("p50_ms", "k5")
    status, said = run("why", "--metric", "p50_ms", "--workload", "k5", "--json")
    body = json.loads(said)
    assert status == 0 and body["what"] == f"number {asked['number_id']}"
    assert body["parts"][1]["state"] == "same"
    status, said = run("why", "--metric", "p50_ms")
    assert status == 2 and "2 numbers are meant" in said and "--workload" in said
    status, said = run("why", "--metric", "p5_ms")
    assert status == 2 and re.search(r"did you mean 'p(50|95)_ms'\?", said)
    status, said = run("why")
    assert status == 2 and "name a number" in said
    status, said = run("why", "n0", "--metric", "p50_ms")
    assert status == 2 and "not both" in said


def test_each_link_is_checked_when_it_is_shown(run):
    asked = row("p50_ms", "k5")
    victim = one("results/query/*/*/*/k5@*.samples.parquet")
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    status, said = run("why", str(asked["number_id"]))
    assert status == 2
    assert f"✗ samples {victim}" in said
    assert f"its chain is broken at {victim}" in said


def test_what_a_clone_does_not_have_is_marked_and_says_where_it_is(run):
    shutil.rmtree("data")
    shutil.rmtree("scratch")
    status, said = run("why", str(row("recall_by_id", "k5")["number_id"]))
    assert status == 0, said
    assert "· truth record data/truth/" in said and "pull it (`dvc pull data.dvc`)" in said
    assert "pinned spec metric: l2" in said and "licence: synthetic" in said


def test_a_published_number_has_a_chain_too(run):
    status, said = run("why", "p3bbbda6519")
    assert status == 0
    assert "paper_benchmark_20260201_230242.json of minageus/vector-db-benchmark at faa003d" in said
    assert "printed as standalone, but run on cluster-3" in said
    status, said = run("why", "pzz")
    assert status == 2 and "no published number 'pzz'" in said


# Attestations


def keys(folder: Path, name: str) -> tuple[str, str]:
    private = Ed25519PrivateKey.generate()
    secret, public = folder / f"{name}.pem", folder / f"{name}.pub.pem"
    secret.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return str(secret), str(public)


@pytest.fixture
def attested(run, tmp_path):
    secret, public = keys(tmp_path, "mine")
    status, said = run("attest", "--key", secret)
    assert status == 0, said
    return secret, public


def test_an_attestation_is_checked_offline_by_the_public_key_alone(run, attested, monkeypatch):
    def refuse(*_: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    status, said = run("verify-attestation", "attestation.json", "--key", attested[1])
    assert status == 0, said
    assert re.search(r"all \d+ files are unchanged", said)


def test_an_attestation_is_an_in_toto_statement_of_slsa_provenance_without_secrets_or_places(run, attested):
    body = json.loads(Path("attestation.json").read_text())
    assert body["payloadType"] == "application/vnd.in-toto+json"
    payload = base64.b64decode(body["payload"]).decode()
    statement = json.loads(payload)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    names = {subject["name"] for subject in statement["subject"]}
    # A ledger of attempts grows with every later start; the signed records quote its lines.
    files = {str(path) for path in Path("results").rglob("*") if path.is_file() and path.suffix != ".jsonl"}
    assert names == files, "every file of the results, and nothing else"
    used = {material["name"] for material in statement["predicate"]["buildDefinition"]["resolvedDependencies"]}
    assert any(name.startswith("data/download/") for name in used)
    assert {"requirements.lock", "code"} <= used
    assert str(Path.cwd()) not in payload and "PRIVATE" not in payload


def test_an_attestation_names_every_commit_difference_and_lock_file_that_measured_a_round():
    ours = {"anncestry": "0.1.0", "commit": "a" * 40, "dirty": False, "diff_sha256": None, "lock_sha256": "1" * 64}
    other = {**ours, "commit": "b" * 40, "dirty": True, "diff_sha256": "d" * 64, "lock_sha256": "2" * 64}
    record = {"stage": "query", "code": ours, "rounds": [{"code": other}, {"code": ours}, {"code": other}]}
    assert records.all_codes(record) == [ours, other]
    named = [(each["name"], *each["digest"].items()) for each in signing.programs(records.all_codes(record))]
    assert named == [
        ("code", ("gitCommit", "a" * 40)),
        ("code", ("gitCommit", "b" * 40)),
        ("requirements.lock", ("sha256", "1" * 64)),
        ("requirements.lock", ("sha256", "2" * 64)),
        (f"uncommitted changes to {'b' * 40}", ("sha256", "d" * 64)),
    ]


def test_the_crate_and_prov_name_the_code_of_each_round(run, tmp_path, monkeypatch):
    """A record can't be changed here, as the crate looks at all digests: another round is only told of."""
    other = {"anncestry": "0.1.0", "commit": "c" * 40, "dirty": True, "diff_sha256": "d" * 64}
    told = records.all_codes
    monkeypatch.setattr(
        records, "all_codes", lambda body: told({**body, "rounds": [*body.get("rounds", ()), {"code": other}]})
    )
    assert run("export", "crate", str(tmp_path / "crate"))[0] == 0
    assert run("export", "prov", str(tmp_path / "prov.json"))[0] == 0
    name = f"{'c' * 40}-{'d' * 12}"
    assert name in (tmp_path / "crate" / "ro-crate-metadata.json").read_text()
    assert name in (tmp_path / "prov.json").read_text()


def test_another_key_a_changed_payload_and_a_changed_file_are_each_named(run, attested, tmp_path):
    _, other = keys(tmp_path, "other")
    status, said = run("verify-attestation", "attestation.json", "--key", other)
    assert status == 2 and "not signed by" in said

    victim = one("results/query/*/*/*/*.samples.parquet")
    content = bytearray(victim.read_bytes())
    content[7] ^= 1
    victim.write_bytes(content)
    status, said = run("verify-attestation", "attestation.json", "--key", attested[1])
    assert status == 2 and f"{victim}: changed" in said
    content[7] ^= 1
    victim.write_bytes(content)

    envelope = json.loads(Path("attestation.json").read_text())
    payload = base64.b64decode(envelope["payload"]).replace(b"default", b"defaulT", 1)
    Path("forged.json").write_text(json.dumps({**envelope, "payload": base64.b64encode(payload).decode()}))
    status, said = run("verify-attestation", "forged.json", "--key", attested[1])
    assert status == 2 and "changed since" in said

    Path("none.json").write_text("{}")
    status, said = run("verify-attestation", "none.json", "--key", attested[1])
    assert status == 2 and "none.json: not a DSSE envelope" in said


def test_nothing_is_signed_that_is_not_what_its_record_says(run, tmp_path):
    secret, _ = keys(tmp_path, "mine")
    victim = one("results/load/*/*/*.resources.parquet")
    victim.write_bytes(victim.read_bytes() + b"x")
    status, said = run("attest", "--key", secret)
    assert status == 2 and str(victim) in said
    assert not Path("attestation.json").exists()


def test_nothing_is_signed_whose_recall_could_not_be_computed_again(run, tmp_path):
    secret, _ = keys(tmp_path, "mine")
    shutil.rmtree("data/truth")
    status, said = run("attest", "--key", secret)
    assert status == 2 and "recall was not computed again" in said
    assert not Path("attestation.json").exists()


def test_a_missing_or_unfit_key_is_named_with_what_makes_one(run, tmp_path):
    status, said = run("attest", "--key", str(tmp_path / "no.pem"))
    assert status == 2 and "openssl genpkey -algorithm ed25519" in said
    curve = ec.generate_private_key(ec.SECP256R1())
    unfit = tmp_path / "ec.pem"
    unfit.write_bytes(curve.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    status, said = run("attest", "--key", str(unfit))
    assert status == 2 and "not an ed25519 key" in said


def sign(body: object, secret: str) -> None:
    signing.attest(body, signing.private(Path(secret)), Path("attestation.json"))


def test_an_attestation_of_nothing_says_so(run, attested):
    """Finding 14: a statement without a single subject was accepted."""
    matrix, _ = workflow.resolve(workflow.choice_of_environment(), Path())
    sign({**signing.statement(matrix), "subject": []}, attested[0])
    status, said = run("verify-attestation", "attestation.json", "--key", attested[1])
    assert status == 2 and "about no file at all" in said


def test_what_the_results_were_made_from_is_checked_where_it_is_here(run, attested):
    """Finding 14: materials were not looked at."""
    status, said = run("verify-attestation", "attestation.json", "--key", attested[1])
    assert status == 0 and re.search(r"(\d+) of \1 input files are here, and unchanged", said)
    victim = one("data/truth/*/ids.npy")
    content = victim.read_bytes()
    victim.write_bytes(content[:-1] + b"x")
    status, said = run("verify-attestation", "attestation.json", "--key", attested[1])
    assert status == 2 and f"{victim}: not what the results were made from" in said
    shutil.rmtree("data")
    status, said = run("verify-attestation", "attestation.json", "--key", attested[1])
    assert status == 0 and re.search(r"0 of [0-9]+ input files are here", said)


# Exports


@pytest.mark.parametrize("path", ["results/../../outside.csv", "../outside.csv", "results/./x.csv"])
@pytest.mark.parametrize("kind", ["crate", "prov"])
def test_an_export_writes_and_names_nothing_outside_of_its_folder(run, tmp_path, path, kind):
    """Finding 14: a path of an input such as results/../../x was copied to outside of the crate."""
    Path("../outside.csv").write_text("theirs")
    victim = one("results/query/*/*/*/k5@*.json")
    body = json.loads(victim.read_text())
    body["inputs"]["more"] = {"path": path, "sha256": records.sha256_file(Path("../outside.csv"))}
    victim.write_text(json.dumps(records.seal(body)))
    out = tmp_path / "deep" / "er" / "out"
    status, said = run("export", kind, str(out))
    assert status == 2 and str(victim) in said and "Traceback" not in said
    assert not out.exists() and not list((tmp_path / "deep").rglob("outside.csv"))


def test_a_link_in_the_results_leads_nothing_into_a_crate(run, tmp_path):
    victim = one("results/query/*/*/*/k5@*.samples.parquet")
    shutil.move(victim, tmp_path / "elsewhere")
    victim.symlink_to(tmp_path / "elsewhere")
    status, said = run("export", "crate", str(tmp_path / "crate"))
    assert status == 2 and f"{victim}: a link that leads out of results/" in said


@pytest.mark.parametrize("created", ["yesterday, after tea", "2026-13-45T00:00:00", "0000000000"])
def test_a_date_that_is_none_is_named(run, created):
    """Finding 14: `export prov` ended in a traceback."""
    victim = one("results/query/*/*/*/k5@*.json")
    victim.write_text(json.dumps(records.seal({**json.loads(victim.read_text()), "created": created})))
    status, said = run("export", "prov")
    assert status == 2 and f"{victim}: created is '{created}', which is no date" in said


def test_nothing_that_a_record_says_is_obeyed_by_a_terminal(run):
    """Finding 14: escape sequences of a record passed through `why`."""
    victim = one("results/query/*/*/*/k5@*.json")
    body = json.loads(victim.read_text())
    body["artifact"]["version"] = "1.0\x1b[2J\x1b]0;owned\x07\x9b31m\r\x08\u202eevil"
    body["gates"][0]["detail"] = "\x1b]8;;http://evil\x07"
    victim.write_text(json.dumps(records.seal(body)))
    for words in (["why", "--metric", "p50_ms", "--workload", "k5"], ["verify"], ["summary"]):
        _, said = run(*words)
        assert not set(said) & set("\x1b\x07\x08\x9b\r\u202e"), words
    _, said = run("why", "--metric", "p50_ms", "--workload", "k5")
    assert "\\x1b[2J" in said


def test_the_crate_holds_all_results_and_says_which_stage_made_which(run, tmp_path):
    status, said = run("export", "crate", str(tmp_path / "crate"))
    assert status == 0, said
    text = (tmp_path / "crate" / "ro-crate-metadata.json").read_text()
    graph = {unquote(entity["@id"]): entity for entity in json.loads(text)["@graph"]}
    files = {str(path) for path in Path("results").rglob("*") if path.is_file() and "platform" not in path.parts}
    assert files <= graph.keys()
    assert all((tmp_path / "crate" / name).read_bytes() == Path(name).read_bytes() for name in files)
    recall = next(e for e in graph.values() if e["@type"] == "CreateAction" and e["@id"].startswith("#run-recall"))
    assert {"results/query", "results/recall"} <= {
        "/".join(part["@id"].split("/")[:2])
        for name in ("object", "result")
        for part in (recall[name] if isinstance(recall[name], list) else [recall[name]])
    }
    assert str(Path.cwd()) not in text and str(Path.home()) not in text and os.uname().nodename not in text
    assert not any(identifier.startswith(("/", "file:")) for identifier in graph)
    status, said = run("export", "crate", str(tmp_path / "crate"))
    assert status == 2 and "not empty" in said


def test_a_crate_is_not_made_of_what_would_not_verify(run, tmp_path):
    victim = one("results/query/*/*/*/*.samples.parquet")
    victim.write_bytes(victim.read_bytes()[:-1])
    status, said = run("export", "crate", str(tmp_path / "crate"))
    assert status == 2 and str(victim) in said
    assert not (tmp_path / "crate").exists()


def _contexts(url: str) -> dict[str, object]:
    """The terms that a crate uses, as the published contexts map them: the validator asks the network for those."""
    schema = (
        "AggregateRating ControlAction CreateAction CreativeWork Dataset HowTo HowToStep Organization OrganizeAction "
    )
    schema += "PropertyValue SoftwareApplication SoftwareSourceCode about actionStatus agent contentSize dateCreated "
    schema += (
        "datePublished description disambiguatingDescription encodingFormat endTime error hasPart instrument license "
    )
    schema += "mainEntity mentions name object position programmingLanguage result softwareVersion startTime step url "
    schema += "version workExample alternateName identifier ComputerLanguage"
    terms = {name: f"http://schema.org/{name}" for name in schema.split()}
    terms |= {
        "File": "http://schema.org/MediaObject",
        "ComputationalWorkflow": "https://bioschemas.org/ComputationalWorkflow",
        "FormalParameter": "https://bioschemas.org/FormalParameter",
        "input": "https://bioschemas.org/ComputationalWorkflow#input",
        "output": "https://bioschemas.org/ComputationalWorkflow#output",
        "conformsTo": "http://purl.org/dc/terms/conformsTo",
    }
    run_terms = "https://w3id.org/ro/terms/workflow-run#"
    return {"@context": {"sha256": f"{run_terms}sha256"} if "workflow-run" in url else terms}


def test_the_crate_conforms_to_the_profile_by_the_profiles_own_validator(run, tmp_path, monkeypatch):
    from rocrate_validator import services
    from rocrate_validator.models import ValidationSettings
    from rocrate_validator.utils.http import HttpRequester

    def answer(self: object, url: str, **_: object) -> requests.Response:
        response = requests.Response()
        response.status_code, response.url = 200, url
        response.headers["Content-Type"] = "application/ld+json"
        response._content = json.dumps(_contexts(url)).encode()
        return response

    monkeypatch.setattr(HttpRequester, "get", answer, raising=False)
    assert run("export", "crate", str(tmp_path / "crate"))[0] == 0
    settings = ValidationSettings(
        rocrate_uri=str(tmp_path / "crate"),
        profile_identifier="provenance-run-crate-0.5",
        requirement_severity="REQUIRED",
        cache_path=tmp_path / "cache",
    )
    found = services.validate(settings)
    assert not found.has_issues(), [f"{issue.check.identifier}: {issue.message}" for issue in found.get_issues()]
    # The validator did look: a stage without its tool is no Process Run Crate.
    metadata = tmp_path / "crate" / "ro-crate-metadata.json"
    body = json.loads(metadata.read_text())
    del next(entity for entity in body["@graph"] if entity["@id"].startswith("#run-recall"))["instrument"]
    metadata.write_text(json.dumps(body))
    assert services.validate(settings).has_issues()


def test_prov_json_is_read_back_as_the_same_graph(run, tmp_path):
    out = tmp_path / "prov.json"
    status, said = run("export", "prov", str(out))
    assert status == 0, said
    text = out.read_text()
    read = ProvDocument.deserialize(content=text, format="json")
    matrix, _ = workflow.resolve(workflow.choice_of_environment(), Path())
    assert read == export.document(matrix)
    assert ProvDocument.deserialize(content=read.serialize(format="json"), format="json") == read
    assert str(Path.cwd()) not in text
    body = json.loads(text)
    samples = one("results/query/*/*/*/k5@*.samples.parquet")
    entity = next(name for name, e in body["entity"].items() if e["anncestry:path"] == str(samples))
    assert any(g["prov:entity"] == entity for g in body["wasGeneratedBy"].values())
    assert any(u["prov:entity"] == entity for u in body["used"].values()), "recall was made from them"


# The way of a number through git and DVC


@pytest.mark.program("openssl")
def test_attest_reads_the_keys_that_openssl_makes_as_its_messages_say(tmp_path):
    secret, public = tmp_path / "k.pem", tmp_path / "k.pub.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(secret)], check=True)
    subprocess.run(["openssl", "pkey", "-in", str(secret), "-pubout", "-out", str(public)], check=True)
    from anncestry.ancestry import attest

    assert attest._public(public).keyid == attest.CryptoSigner(attest.private(secret)).public_key.keyid
