"""The commands about ancestry: why, attest, verify-attestation, export."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from anncestry.cells.matrix import PUBLISHED
from anncestry.commands.run import Run
from anncestry.errors import DataError

_SELECTORS = ("dataset", "system", "topology", "workload", "phase", "metric")


def why(run: Run, options: argparse.Namespace) -> None:
    """Where a number comes from: its chain down to raw samples, each link checked now."""
    from anncestry.ancestry import chain
    from anncestry.ancestry import why as asking
    from anncestry.report import audit

    if options.number and (traced := audit.find(audit.FOLDER, options.number)):
        print(json.dumps(traced.plain(), indent=1) if options.json else "\n".join(audit.lines(traced)))
        return
    selectors = {name: getattr(options, name) for name in _SELECTORS if getattr(options, name) is not None}
    if options.number and selectors:
        raise DataError(f"give either the id {options.number!r} or --{next(iter(selectors))}, not both")
    folder, row = asking.find(run.matrix, options.number, selectors)
    node = chain.of_row(row, folder, run.matrix)
    print(json.dumps(node.plain(), indent=1) if options.json else "\n".join(asking.lines(node)))
    if broken := asking.broken(node):
        raise DataError(f"{row['number_id']}: its chain is broken at {', '.join(broken)}")


def attest(run: Run, options: argparse.Namespace) -> None:
    """Sign what the results directory holds and what it was made from (in-toto, SLSA provenance)."""
    from anncestry import verify
    from anncestry.ancestry import attest as signing

    key = signing.private(options.key)
    body = signing.statement(run.matrix)
    if problems := verify.verify(run.matrix, PUBLISHED).problems:
        more = f" ({len(problems) - 1} more: `anncestry verify`)" if problems[1:] else ""
        raise DataError(f"{problems[0].sentence}{more}; nothing is signed that `anncestry verify` would not let pass")
    made = signing.attest(body, key, options.out)
    print(f"✓ {made.path}: {made.subjects} files, signed by key {made.keyid}")


def verify_attestation(run: Run, options: argparse.Namespace) -> None:
    """Check a signed attestation against a public key and the files that are here; no network."""
    from anncestry.ancestry import attest as signing

    found = signing.verify(options.file, options.key, Path())
    print(f"✓ {options.file}: signed by key {found.keyid}; all {found.subjects} files are what was signed")
    print(f"of {found.materials} files of data that they were made from, {found.looked} are here and the same")


def export_crate(run: Run, options: argparse.Namespace) -> None:
    """A Workflow Run RO-Crate of the results: a folder that any reader of RO-Crate understands."""
    from anncestry.ancestry import crate

    print(f"✓ {crate.write(run.matrix, options.folder)}")


def export_prov(run: Run, options: argparse.Namespace) -> None:
    """The chain of all records as W3C PROV, in PROV-JSON."""
    from anncestry.ancestry import prov

    print(f"✓ {prov.write(run.matrix, options.file)}")


def add(commands: Any) -> None:
    """Add these commands to the program's parser."""
    command = commands.add_parser("why", help=why.__doc__)
    command.add_argument("number", nargs="?", help="a number's id or the beginning of it (else choose it by options)")
    for name in _SELECTORS:
        command.add_argument(f"--{name}", help=f"the number of this {name}")
    command.add_argument("--json", action="store_true", help="the chain as JSON")
    command.set_defaults(function=why)

    command = commands.add_parser("attest", help=attest.__doc__)
    command.add_argument(
        "--key", type=Path, required=True, help="private ed25519 key (PEM); `openssl genpkey` makes one"
    )
    command.add_argument("--out", type=Path, default=Path("attestation.json"), help="the envelope to write")
    command.set_defaults(function=attest)

    command = commands.add_parser("verify-attestation", help=verify_attestation.__doc__)
    command.add_argument("file", type=Path, help="what `attest` wrote")
    command.add_argument("--key", type=Path, required=True, help="public ed25519 key (PEM) of who signed it")
    command.set_defaults(function=verify_attestation)

    command = commands.add_parser("export", help="The results for other tools: crate or prov.")
    kinds = command.add_subparsers(dest="kind", required=True, metavar="KIND")
    kind = kinds.add_parser("crate", help=export_crate.__doc__)
    kind.add_argument("folder", type=Path, help="a new folder")
    kind.set_defaults(function=export_crate)
    kind = kinds.add_parser("prov", help=export_prov.__doc__)
    kind.add_argument("file", type=Path, nargs="?", default=Path("prov.json"))
    kind.set_defaults(function=export_prov)
