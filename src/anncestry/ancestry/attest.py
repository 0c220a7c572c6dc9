"""Signed attestations: who vouches for which results, and what they were made from.

An in-toto Statement v1 whose subjects are all files of the experiment's results, with a SLSA Provenance v1 predicate
that says how they came about, in a DSSE envelope signed with an ed25519 key. Checked offline, by the public key alone.
https://in-toto.io/Statement/v1, https://slsa.dev/provenance/v1, https://github.com/secure-systems-lab/dsse
"""

from __future__ import annotations

import binascii
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer._crypto_signer import CryptoSigner
from securesystemslib.signer._key import SSlibKey

from anncestry.ancestry.export import walk
from anncestry.cells.matrix import Matrix
from anncestry.cells.stage import STAGES, canonical
from anncestry.errors import DataError
from anncestry.provenance import records
from anncestry.provenance.code import code_facts

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
PAYLOAD = "application/vnd.in-toto+json"
BUILD_TYPE = "https://github.com/anncestry/anncestry/attestations/results/v1"
BUILDER = "https://github.com/anncestry/anncestry"


def attest(body: Mapping[str, Any], key: Ed25519PrivateKey, out: Path) -> str:
    """Sign a statement, write the envelope to `out`, and say of how many files it is."""
    payload = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    envelope = Envelope(payload, PAYLOAD, {})
    signature = envelope.sign(CryptoSigner(key))
    records.write_json(out, envelope.to_dict())
    return f"{out}: {len(body['subject'])} files, signed by key {signature.keyid}"


def statement(matrix: Matrix) -> dict[str, Any]:
    """What there is to sign, every file re-hashed now; DataError if one is missing or not what it was."""
    subjects: dict[str, str] = {}
    used: dict[str, str] = {}
    created: list[str] = []
    codes: dict[str, Mapping[str, Any]] = {}
    for stage in walk(matrix):
        # What lies outside of results/ can be made again; it is named among what went in.
        mine = stage.path.startswith("results/")
        for file in stage.made:
            (subjects if mine else used)[file.path] = file.sha256
        for file in stage.used:
            used.setdefault(file.path, file.sha256)
        if mine:
            created.append(str(stage.body["created"]))
            codes |= {canonical(code): code for code in records.all_codes(stage.body)}
    platform = Path(STAGES["platform"].output.format(platform=matrix.config.platform))
    if platform.exists():
        subjects[str(platform)] = records.sha256_file(platform)
    for path, digest in subjects.items():
        state = records.state(Path(path), {"sha256": digest})
        if state is not records.State.SAME:
            raise DataError(f"{path}: {state}; `anncestry attest` signs only results that pass `anncestry verify`")
        if used.get(path, digest) != digest:
            raise DataError(f"{path}: is not what later results were made from: `anncestry verify` names them")
    materials = [
        {"name": path, "digest": {"sha256": digest}} for path, digest in sorted(used.items()) if path not in subjects
    ]
    materials += programs(codes.values())
    return {
        "_type": STATEMENT,
        "subject": [{"name": path, "digest": {"sha256": digest}} for path, digest in sorted(subjects.items())],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "experiment": matrix.config.experiment,
                    "title": matrix.config.title,
                    "platform": matrix.config.platform,
                    "cells": sorted(cell.query for cell in matrix.measured),
                },
                "internalParameters": {
                    "epochs": dict(matrix.config.epochs),
                    **({"engine_epochs": matrix.config.engine_epochs} if matrix.config.engine_epochs else {}),
                    **({"feature_epochs": matrix.config.feature_epochs} if matrix.config.feature_epochs else {}),
                },
                "resolvedDependencies": materials,
            },
            "runDetails": {
                "builder": {"id": BUILDER, "version": {"anncestry": str(code_facts()["anncestry"])}},
                "metadata": {
                    "invocationId": matrix.report,
                    "startedOn": min(created, default=""),
                    "finishedOn": max(created, default=""),
                },
            },
        },
    }


def programs(codes: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The commits that made results, what trees had beyond them, and the lock files of their packages; each once."""
    found: dict[tuple[str, str, str], None] = {}
    for code in codes:
        commit = str(code.get("commit") or "")
        found[("code", "gitCommit", commit)] = None
        found[(f"uncommitted changes to {commit}", "sha256", str(code.get("diff_sha256") or ""))] = None
        found[("requirements.lock", "sha256", str(code.get("lock_sha256") or ""))] = None
    for name, algorithm, digest in sorted(found):
        if digest:
            yield {"name": name, "digest": {algorithm: digest}}


def verify(path: Path, key: Path, here: Path) -> str:
    """Check an envelope's signature by a public key, and every file that it names below the folder `here`.

    Returns what was checked, in words. Of what went in, only data is: its records bear dates.
    DataError says what is wrong: no envelope, another key, a changed payload, or files that are not what was signed.
    """
    public = _public(key)
    raw = records.read_json(path)
    try:
        envelope = Envelope.from_dict(raw)
    except (AttributeError, KeyError, TypeError, ValueError, binascii.Error) as error:
        raise DataError(f"{path}: not a DSSE envelope ({type(error).__name__}: {error})") from None
    try:
        keyid = next(iter(envelope.verify([public], 1)))
    except VerificationError:
        signers = ", ".join(envelope.signatures) or "nobody"
        raise DataError(
            f"{path}: not signed by {key} (key {public.keyid}): signed by {signers}, or changed since"
        ) from None
    body = _statement_of(path, envelope)
    if not body["subject"]:
        raise DataError(f"{path}: signed, but about no file at all")
    wrong = [f"{name}: {state}" for name, state in _differing(body["subject"], here)]
    if wrong:
        shown = "; ".join(wrong[:10]) + ("; …" if len(wrong) > 10 else "")
        raise DataError(f"{path}: {len(wrong)} of {len(body['subject'])} files are not what was signed: {shown}")
    materials = [
        each
        for each in body["predicate"]["buildDefinition"]["resolvedDependencies"]
        if each["name"].startswith("data/") and not each["name"].endswith("/record.json")
    ]
    states = dict(_differing(materials, here))
    if changed := [name for name, state in states.items() if state is not records.State.ABSENT]:
        raise DataError(f"{path}: {', '.join(changed[:10])}: not what the results were made from")
    return (
        f"{path}: signed by key {keyid}; all {len(body['subject'])} files are unchanged\n"
        f"{len(materials) - len(states)} of {len(materials)} input files are here, and unchanged"
    )


def _statement_of(path: Path, envelope: Envelope) -> Mapping[str, Any]:
    try:
        body = json.loads(envelope.payload)
        good = (
            envelope.payload_type == PAYLOAD
            and body["_type"] == STATEMENT
            and body["predicateType"] == PREDICATE
            and all(
                isinstance(file["name"], str) and all(isinstance(digest, str) for digest in file["digest"].values())
                for file in (*body["subject"], *body["predicate"]["buildDefinition"]["resolvedDependencies"])
            )
            and all("sha256" in subject["digest"] for subject in body["subject"])
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        good = False
    if not good:
        raise DataError(f"{path}: signed, but not an in-toto statement of SLSA provenance")
    return body  # type: ignore[no-any-return]


def _differing(files: Sequence[Mapping[str, Any]], here: Path) -> Iterator[tuple[str, records.State]]:
    root = here.resolve()
    for subject in files:
        file = (here / subject["name"]).resolve()
        if not file.is_relative_to(root):
            raise DataError(f"{subject['name']}: points outside of the folder that is checked")
        state = records.state(file, {"sha256": subject["digest"].get("sha256")})
        if state is not records.State.SAME:
            yield subject["name"], state


def private(path: Path) -> Ed25519PrivateKey:
    """The key in a file; DataError says how to make one."""
    make = f"`openssl genpkey -algorithm ed25519 -out {path}` makes a key"
    read = partial(load_pem_private_key, password=None)
    key: Ed25519PrivateKey = _key(path, read, Ed25519PrivateKey, "an unencrypted private", make)
    return key


def _public(path: Path) -> SSlibKey:
    make = f"`openssl pkey -in PRIVATE -pubout -out {path}` makes it from the private key"
    return SSlibKey.from_crypto(_key(path, load_pem_public_key, Ed25519PublicKey, "a public", make))


def _key(path: Path, read: Callable[[bytes], object], kind: type, what: str, make: str) -> Any:
    try:
        key = read(path.read_bytes())
    except FileNotFoundError:
        raise DataError(f"{path}: missing; {make}") from None
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise DataError(f"{path}: not {what} key in PEM ({error})") from None
    if not isinstance(key, kind):
        raise DataError(f"{path}: not an ed25519 key")
    return key
