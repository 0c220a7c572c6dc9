"""TLS to somebody else's server: verified, never left out in silence, and what it came to is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anncestry.drive import protocol
from anncestry.drive.certificates import Certificates, make_certificates
from anncestry.drive.client import OK
from anncestry.drive.driver import Driver, client_facts
from anncestry.drive.null import NullServer
from anncestry.engines import get, offers_of
from anncestry.errors import ConfigError, ServerError, UserError
from anncestry.measure import ceiling
from anncestry.runtimes import tls
from anncestry.runtimes.remote import endpoint
from tests.hostile import forms
from tests.servers import INDEX
from tests.tls_pump import tap
from tests.waiting import until

WAYS = [("native", "grpc"), ("native", "http"), ("native", "mysql"), ("native", "postgres"), ("native", "redis"),
        ("python", "grpc"), ("python", "http")]  # fmt: skip
REFUSALS = {
    "expired": "certificate has expired, or is not valid yet",
    "other host": "certificate is for another host",
    "unknown CA": "no trusted CA signed the server's certificate",
    "plain": "TLS|not within its time|timed out",
}
REMOTE = {"runtime": "remote", "nodes": 1, "shards": 1, "replicas": 1, "endpoints": {"mysql": "TEST_TLS_MYSQL"},
          "credentials": "TEST_TLS_PASSWORD", "tls": {"ca": "TEST_TLS_CA"}}  # fmt: skip
POLARDB = {"engine": "mysql", "version": "8.0.2", "settings": {"dialect": "polardb"}}


@pytest.fixture(scope="module")
def drivers() -> Iterator[dict[str, Driver]]:
    with Driver("native") as native, Driver("python") as python:
        yield {"native": native, "python": python}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Certificates]:
    folder = tmp_path_factory.mktemp("certificates")
    return {
        "good": make_certificates(folder / "good"),
        "expired": make_certificates(folder / "expired", valid_days=-1),
        "other host": make_certificates(folder / "other", hosts=["db.example", "127.0.0.2"]),
        "unknown CA": make_certificates(folder / "unknown"),
    }


def run(driver: Driver, folder: Path, transport: dict[str, Any], *, request: bytes = b"request", **more: Any) -> Any:
    protocol.write_requests(folder, [request + str(number).encode() for number in range(10)])
    rows = np.tile(np.arange(10), (2, 4))
    protocol.write_job(
        folder, requests=folder, transport=transport, schedule=rows, prime=rows[:, :1], **{"timeout_s": 20.0, **more}
    )
    driver.run(folder)
    return protocol.read_outcome(folder)


@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_requests_go_and_answers_come_under_tls(
    way: tuple[str, str], drivers: dict[str, Driver], certificates: dict[str, Certificates], tmp_path: Path
) -> None:
    good = certificates["good"]
    with NullServer(way[1], echo=True, **good.files) as server:
        outcome = run(drivers[way[0]], tmp_path, {**server.transport, **good.trusted})
    assert (outcome.samples["status"] == OK).all(), outcome.facts
    for sample, response in zip(outcome.samples, outcome.responses, strict=True):
        assert b"re: request%d" % sample["query"] in response
    (told,) = client_facts([outcome.facts], 80)["tls"]
    assert told["protocol"] == "TLSv1.3"
    assert "AES" in told["cipher"] or "CHACHA20" in told["cipher"]
    assert len(told["certificate_sha256"]) == 64


SECRET = b"planted-0f1e2d3c4b5a69788796a5b4"
DATA, ALERT_BYTES = 23, 24
"""A TLS record of what is encrypted; how long one is at most that only says that the certificate is refused."""


def with_secret(kind: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a transport says for a secret to be sent."""
    monkeypatch.setenv("TEST_TLS_SECRET", SECRET.decode())
    return {
        "grpc": {"authorization": {"env": "TEST_TLS_SECRET", "scheme": "bearer"}},
        "http": {"headers": {"Authorization": f"Bearer {SECRET.decode()}"}},
    }.get(kind, {"user": SECRET.decode(), "password_env": "TEST_TLS_SECRET"})


def tls_records(kind: str, sent: bytes) -> list[tuple[int, int]]:
    """Type and length of each record of TLS, the only thing that may be sent but for the wish for it."""
    if kind == "postgres":
        assert sent[:8] == b"\0\0\0\x08\x04\xd2\x16\x2f"[: len(sent)]
    at = {"mysql": 36, "postgres": 8}.get(kind, 0)
    found = []
    while at < len(sent):
        kind_of, size = sent[at], int.from_bytes(sent[at + 3 : at + 5], "big")
        assert kind_of in (20, 21, 22, DATA) and sent[at + 1] == 3, f"in the clear: {sent!r}"
        found.append((kind_of, size))
        at += 5 + size
    return found


@pytest.mark.parametrize("why", REFUSALS)
@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_a_certificate_that_is_not_good_and_a_server_without_one_are_refused(
    way: tuple[str, str], why: str, certificates: dict[str, Certificates], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Before anything of a key, a password or a request is sent: what they are made of is in none of the bytes."""
    trusted = certificates["good" if why == "unknown CA" else why if why in certificates else "good"].trusted
    files = {} if why == "plain" else certificates[why].files
    with NullServer(way[1], echo=True, **files) as server, tap(server.target) as (target, seen), Driver(way[0]) as own:
        transport = {**server.transport, "target": target, **trusted, **with_secret(way[1], monkeypatch)}
        with pytest.raises(ServerError, match=f"no connection to .*({REFUSALS[why]})"):
            run(own, tmp_path, transport, request=SECRET, timeout_s=1.0 if why == "plain" else 20.0)
        until(lambda: seen)
        for sent in seen:
            assert not [form for form in forms(SECRET.decode()) if form in sent]
            assert all(kind != DATA or size <= ALERT_BYTES for kind, size in tls_records(way[1], bytes(sent))), bytes(
                sent
            )


@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_a_secret_that_is_sent_in_the_clear_would_be_seen(way: tuple[str, str], tmp_path: Path) -> None:
    """So that the test above can fail."""
    with NullServer(way[1], echo=True) as server, tap(server.target) as (target, seen), Driver(way[0]) as own:
        run(own, tmp_path, {**server.transport, "target": target}, request=SECRET)
    assert any(SECRET in sent for sent in seen)


@pytest.mark.parametrize("way", WAYS[:4], ids="-".join)
def test_messages_larger_than_any_buffer_pass_and_lost_connections_are_made_anew(
    way: tuple[str, str], drivers: dict[str, Driver], certificates: dict[str, Certificates], tmp_path: Path
) -> None:
    good = certificates["good"]
    with NullServer(way[1], echo=True, drop_every=9, **good.files) as server:
        outcome = run(drivers["native"], tmp_path, {**server.transport, **good.trusted}, request=b"x" * 900_000)
    lost = outcome.samples["status"] != OK
    assert 5 <= lost.sum() <= 10 and outcome.facts["reconnects"] >= 5, outcome.facts
    sizes = [len(response) for response, gone in zip(outcome.responses, lost, strict=True) if not gone]
    assert min(sizes) > 900_000


def test_the_cas_of_the_system_are_the_default_and_do_not_vouch_for_a_ca_of_ones_own(
    drivers: dict[str, Driver], certificates: dict[str, Certificates], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with NullServer("http", **certificates["good"].files) as server:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificates["good"].ca))  # where OpenSSL and Go look first
        assert tls.asked(server.target, {"ca_file": None})["encrypted"] is True
        with Driver("native") as driver:
            outcome = run(driver, tmp_path / "a", {**server.transport, "tls": {"ca_file": None}})
        assert (outcome.samples["status"] == OK).all()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificates["unknown CA"].ca))
        with pytest.raises(ServerError, match="no trusted CA signed the server's certificate"):
            tls.asked(server.target, {"ca_file": None})


def test_what_an_encrypted_connection_came_to_is_told_without_names(certificates: dict[str, Certificates]) -> None:
    good = certificates["good"]
    with NullServer("grpc", **good.files) as server:
        told = tls.asked(server.target, good.trusted["tls"], ("h2",))
    assert told["protocol"] == "TLSv1.3" and told["encrypted"] is True
    assert {len(told[name]) for name in ("certificate_sha256", "subject_sha256", "issuer_sha256")} == {64}
    assert told["subject_sha256"] != told["issuer_sha256"]
    assert "127.0.0.1" not in str(told)


def test_grpc_wants_http2_to_be_agreed_on(certificates: dict[str, Certificates]) -> None:
    good = certificates["good"]
    with NullServer("mysql", **good.files) as server, pytest.raises(ServerError, match="TLS"):
        tls.asked(server.target, good.trusted["tls"], ("h2",))


def test_an_endpoint_is_encrypted_unless_the_topology_says_that_nothing_is(monkeypatch: pytest.MonkeyPatch) -> None:
    topology = {"runtime": "remote", "endpoints": {"http": "TEST_TLS_HTTP"}}
    assert tls.named(topology) == {"ca_file": None}
    assert tls.named({**topology, "tls": "none"}) is None
    assert tls.named({"runtime": "native"}) is None
    monkeypatch.setenv("TEST_TLS_HTTP", "https://db.example:443/")
    assert endpoint(topology, "http") == "db.example:443"
    with pytest.raises(UserError, match=r"TEST_TLS_HTTP.* is https, where tls: none"):
        endpoint({**topology, "tls": "none"}, "http")
    monkeypatch.setenv("TEST_TLS_HTTP", "http://db.example:80")
    with pytest.raises(UserError, match=r"TEST_TLS_HTTP.* is plain http, where the topology asks for TLS"):
        endpoint(topology, "http")
    monkeypatch.delenv("TEST_TLS_CA", raising=False)
    with pytest.raises(UserError, match=r"TEST_TLS_CA, tls\.ca of the topology, names no file"):
        tls.named({**topology, "tls": {"ca": "TEST_TLS_CA"}})


def test_tls_is_for_servers_that_somebody_else_runs() -> None:
    native = {"runtime": "native", "nodes": 1, "shards": 1, "replicas": 1, "tls": "none"}
    with pytest.raises(ConfigError, match="tls is for runtime remote, not native"):
        offers_of("weaviate").check({"version": "1.27.0"}, native, INDEX, None)


@pytest.mark.parametrize(
    ("why", "complaint"), [("plain", "no connection for root: .*SSL"), *list(REFUSALS.items())[:3]]
)
def test_no_password_is_sent_to_a_mysql_that_offers_no_tls_or_a_bad_certificate(
    why: str, complaint: str, certificates: dict[str, Certificates], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_TLS_PASSWORD", "planted-password")
    ca = certificates["good" if why in ("plain", "unknown CA") else why].ca
    monkeypatch.setenv("TEST_TLS_CA", str(ca))
    files = {} if why == "plain" else certificates[why].files
    with NullServer("mysql", **files) as server:
        monkeypatch.setenv("TEST_TLS_MYSQL", server.target)
        with pytest.raises(ServerError, match=complaint):
            get("mysql").start(tmp_path, tmp_path / "data", POLARDB, REMOTE)


def test_a_cell_under_tls_has_a_ceiling_of_its_own(drivers: dict[str, Driver], tmp_path: Path) -> None:
    plain = ceiling.spec_of("here", "native", "grpc", 1, 100, 100)
    spec = ceiling.spec_of("here", "native", "grpc", 1, 100, 100, encrypted=True)
    found = ceiling.find(spec, drivers["native"], tmp_path)
    assert found["qps"] > 100 and found["spec"] == spec != plain
    assert "tls" not in plain, "what was measured without it keeps its key"
