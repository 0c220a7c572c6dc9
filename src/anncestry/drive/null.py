"""The null server, which sends prepared replies at once or with configured faults; and certificates for it."""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from anncestry.drive import build
from anncestry.errors import ServerError

_DAY = datetime.timedelta(days=1)


class NullServer:
    """A null server while the block lasts. `kind`: grpc, http, mysql, postgres, redis; the rest: `plan` of its source.

    With `certificate` and `key` (files) it speaks TLS; a transport's `tls` then is the caller's to say.
    """

    def __init__(self, kind: str, *, environment: dict[str, str] | None = None, **plan: Any) -> None:
        self.kind = kind
        self._process = subprocess.Popen(
            [str(build.programs().nullserver), json.dumps({"kind": kind, **plan})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            assert self._process.stderr is not None
            reason = self._process.stderr.read().strip()
            self.stop()
            raise ServerError(f"the null server did not start: {reason}")
        self.target = f"127.0.0.1:{line}"

    def __enter__(self) -> NullServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def transport(self) -> dict[str, Any]:
        """The transport of a job that reaches it."""
        how: dict[str, dict[str, Any]] = {
            "grpc": {"method": "/null.Null/Answer"},
            "http": {"method": "POST", "path": "/v1/answer", "headers": {"Content-Type": "application/json"}},
            "mysql": {"user": "root", "init": ["SET autocommit = 1"]},
            "postgres": {"user": "root", "database": "null", "init": ["SET jit = off"], "prepare": ["SELECT 1"]},
            "redis": {},
        }
        return {"kind": self.kind, "target": self.target, **how[self.kind]}

    def check_alive(self) -> None:
        if self._process.poll() is not None:
            raise ServerError(f"the null server ended ({self._process.returncode})")

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream:
                stream.close()


@dataclass(frozen=True)
class Certificates:
    """Files (PEM): of the CA, and of the server that it vouches for."""

    ca: Path
    certificate: Path
    key: Path

    @property
    def files(self) -> dict[str, str]:
        """The arguments of `NullServer` that make it speak TLS with them."""
        return {"certificate": str(self.certificate), "key": str(self.key)}

    @property
    def trusted(self) -> dict[str, Any]:
        """The part of a transport that trusts this CA."""
        return {"tls": {"ca_file": str(self.ca)}}


_LOOPBACK = ("127.0.0.1", "localhost")


def make_certificates(folder: Path, hosts: Sequence[str] = _LOOPBACK, valid_days: int = 1) -> Certificates:
    """Make a CA and, from it, a certificate for `hosts` (names, addresses); expired if `valid_days` is negative."""
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.datetime.now(datetime.UTC)
    ca_key, ca_name = ec.generate_private_key(ec.SECP256R1()), _name("a CA of anncestry's tests")
    ca = _certificate(ca_name, ca_name, ca_key, ca_key, now - 3 * _DAY, now + 3 * _DAY, None)
    key = ec.generate_private_key(ec.SECP256R1())
    until = now + valid_days * _DAY
    server = _certificate(_name(hosts[0]), ca_name, key, ca_key, min(now, until) - _DAY, until, hosts)
    made = Certificates(folder / "ca.pem", folder / "certificate.pem", folder / "key.pem")
    made.ca.write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    made.certificate.write_bytes(server.public_bytes(serialization.Encoding.PEM))
    made.key.touch(mode=0o600)
    made.key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return made


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    since: datetime.datetime,
    until: datetime.datetime,
    hosts: Sequence[str] | None,
) -> x509.Certificate:
    """A CA's where there are no hosts, else a server's for them."""
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(since)
        .not_valid_after(until)
        .add_extension(x509.BasicConstraints(ca=hosts is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if hosts is None:
        uses = dict.fromkeys(
            ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only",
             "decipher_only", "digital_signature"), False,
        )  # fmt: skip
        builder = builder.add_extension(x509.KeyUsage(**uses, key_cert_sign=True, crl_sign=True), critical=True)
    else:
        builder = builder.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
    return builder.sign(signer, hashes.SHA256())


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
