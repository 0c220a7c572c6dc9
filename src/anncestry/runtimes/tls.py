"""TLS to remote servers: always on if configured, with certificate and host name verified.

A topology's `tls` becomes a job's {"ca_file": path or None}: the file of trusted CAs, or the system's CAs. None instead
of the dict means no encryption, which needs an explicit `tls: none`.
"""

from __future__ import annotations

import hashlib
import os
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from anncestry.errors import ServerError, UserError
from anncestry.web import host_and_port

Named = Mapping[str, Any]
NONE = "none"
_CONNECT_S = 10.0
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""Where systems keep their CAs; where Go looks, too."""
_HOST = (62, 63, 64)
_TIME = (9, 10)
"""OpenSSL's codes (X509_V_ERR_…): not for this host, e-mail or address; not yet or no more valid."""


def named(topology: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a job is told; None of a server of one's own, or where the topology says `tls: none`."""
    if topology["runtime"] != "remote" or topology.get("tls") == NONE:
        return None
    variable = (topology.get("tls") or {}).get("ca")
    if variable is None:
        return {"ca_file": None}
    value = os.environ.get(variable, "")
    if not Path(value).is_file():
        raise UserError(f"the environment variable {variable}, tls.ca of the topology, names no file")
    return {"ca_file": str(Path(value).resolve())}


def roots(named: Named) -> bytes:
    """The CAs that are trusted, as PEM; UserError if there are none."""
    return roots_file(named).read_bytes()


def roots_file(named: Named) -> Path:
    """The file of the CAs that are trusted; UserError if there is none."""
    if named["ca_file"] is not None:
        return Path(named["ca_file"])
    default = ssl.get_default_verify_paths().cafile
    for path in ([default] if default else []) + list(_BUNDLES):
        if Path(path).is_file():
            return Path(path)
    raise UserError("this system has no CA file: install ca-certificates, or set tls.ca of the topology")


def context(named: Named, protocols: Sequence[str] = ()) -> ssl.SSLContext:
    """Verifies the certificate and its host, by the named CAs alone."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # which verifies; without any CA so far
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        made.load_verify_locations(cadata=roots(named).decode("ascii", "ignore"))
    except ssl.SSLError:
        where = "the system's file of CAs" if named["ca_file"] is None else "the file that tls.ca of the topology names"
        raise UserError(f"{where} holds no certificate (PEM)") from None
    if protocols:
        made.set_alpn_protocols(list(protocols))
    return made


def refusal(error: BaseException) -> str:
    """Why a handshake failed, in words. (A certificate's own names are left out: they may tell the endpoint.)"""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _HOST:
            return "the server's certificate is for another host"
        if error.verify_code in _TIME:
            return "the server's certificate has expired, or is not valid yet"
        return f"no trusted CA signed the server's certificate ({error.verify_message})"
    if isinstance(error, ssl.SSLError) and error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        return "the server does not speak TLS"
    if isinstance(error, TimeoutError):
        return f"no TLS within {_CONNECT_S:g} s: the server may not speak it"
    if isinstance(error, ssl.SSLError):
        return f"the TLS handshake failed ({error.reason or error})"
    return str(error) or type(error).__name__


def facts(connection: ssl.SSLSocket) -> dict[str, Any]:
    """What an encrypted connection came to. Names in certificates only as digests: they may tell the endpoint."""
    certificate = connection.getpeercert(binary_form=True) or b""
    said: Mapping[str, Any] = connection.getpeercert() or {}
    cipher = connection.cipher()
    return {
        "encrypted": True,
        "protocol": connection.version(),
        "cipher": cipher[0] if cipher else None,
        "certificate_sha256": hashlib.sha256(certificate).hexdigest(),
        "subject_sha256": _digest(said.get("subject")),
        "issuer_sha256": _digest(said.get("issuer")),
        "not_after": said.get("notAfter"),
    }


def _digest(name: Any) -> str:
    """Of a distinguished name, as "key=value" lines."""
    parts = [f"{key}={value}" for part in name or () for key, value in part]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


Begin = Callable[[socket.socket], None]
"""Asks for TLS where a protocol begins in the clear; ServerError if there is none."""


def asked(
    address: str, named: Named | None, protocols: Sequence[str] = (), begin: Begin | None = None
) -> dict[str, Any]:
    """Connect once, to learn what TLS comes to at host:port; ServerError says in a sentence why it can't be had."""
    if named is None:
        return {"encrypted": False}
    host, port = host_and_port(address)
    verifier = context(named, protocols)
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_S) as plain:
            if begin is not None:
                begin(plain)
            with verifier.wrap_socket(plain, server_hostname=host) as secured:
                if "h2" in protocols and secured.selected_alpn_protocol() != "h2":
                    raise ServerError("TLS: the server does not offer HTTP/2 (ALPN h2), which gRPC needs")
                return facts(secured)
    except OSError as error:
        raise ServerError(f"TLS: {refusal(error)}") from None
