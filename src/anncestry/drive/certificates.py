"""Certificates for a null server that speaks TLS, from a CA that is made with them."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)


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
